//! A load for anything that speaks etcd's v3 API, lighter than what it loads.
//!
//! Kept true: what is measured is the server, not this. Requests are encoded
//! once and patched, answers are read no further than is needed to check them,
//! HTTP/2 is spoken without a gRPC library, and every report says how much of
//! the machine the load itself took.
//!
//! `workload` has what clients ask, `run` takes a load through its phases and
//! `worker` asks, in a closed loop or at the times that `pacing` knows; `tally`
//! counts, `cost` looks at the load itself, `report` tells what came of it and
//! `page` shows it; `compare` takes turns between servers, `target` judges a
//! rate, `k8s` simulates a control plane. A new load is a variant of
//! [`Workload`](workload::Workload) and its [`Client`](workload::Client).

pub mod access;
pub mod acks;
pub mod answers;
pub mod compaction;
pub mod compare;
pub mod connection;
pub mod cost;
pub mod draw;
pub mod expiries;
pub mod failure;
pub mod fill;
mod http2;
pub mod k8s;
pub mod messages;
pub mod pacing;
pub mod page;
pub mod ratio;
pub mod report;
pub mod run;
pub mod tally;
pub mod target;
pub mod templates;
pub mod txns;
pub mod values;
pub mod watchers;
pub mod worker;
pub mod workload;
