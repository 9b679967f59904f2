//! The server as its clients see it: real sockets, a real disk.

#![allow(clippy::unwrap_used, missing_docs)]

mod bad_requests;
mod cluster;
mod http;
mod kv;
mod lease;
mod maintenance;
mod recipes;
mod running;
mod start;
mod watch;
