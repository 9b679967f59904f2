//! A load for anything that speaks etcd's v3 API, lighter than what it loads.
//!
//! Kept true: what is measured is the server, not this. Requests are encoded
//! once and patched, answers are read no further than is needed to check them,
//! HTTP/2 is spoken without a gRPC library, and every report says how much of
//! the machine the load itself took.
//!
//! `workload` has what clients ask, `run` asks it in a closed loop, `report`
//! tells what came of it, `compare` takes turns between servers. A new load is
//! a variant of [`Workload`](workload::Workload) and its
//! [`Client`](workload::Client).

pub mod answers;
pub mod compare;
pub mod connection;
pub mod failure;
pub mod fill;
mod http2;
pub mod messages;
pub mod report;
pub mod run;
pub mod templates;
pub mod watchers;
pub mod workload;
