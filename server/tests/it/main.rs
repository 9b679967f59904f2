//! The server as its clients see it: real sockets, a real disk.

#![allow(clippy::unwrap_used, missing_docs)]

mod bad_requests;
mod cluster;
mod deploy;
mod docs;
mod flags;
mod http;
mod kv;
mod lease;
mod maintenance;
mod metrics;
mod process;
mod ranges;
mod recipes;
mod running;
mod start;
mod watch;
mod wire;
