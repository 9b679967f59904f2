//! Speaks etcd to clients and moves their requests to the right group.
//!
//! Kept true: what clients see (answers, errors, limits, their order) is
//! etcd's; what happens to the data is decided by the crates below. This crate
//! knows protobuf and gRPC, and no disk format but that of its own identity.

#![forbid(unsafe_code)]

mod authority;
mod calls;
mod card;
mod cluster;
mod compactor;
mod config;
mod convert;
mod discovery;
mod door;
mod drift;
mod election;
mod endpoints;
mod failure;
mod flags;
mod front;
mod gather;
mod header;
mod health;
mod host;
mod identity;
mod kv;
mod lease;
mod lock;
mod maintenance;
mod metrics;
mod node;
mod notify;
mod peers;
mod pings;
mod queue;
mod quota;
mod range_stream;
mod ranges;
mod serve;
mod stop;
mod url;
mod version;
mod watch;

pub use config::{AutoCompaction, ClusterState, Config, ConfigError, LogFormat, LogOutput};
pub use flags::{FLAGS, Flag, Form, GATES, Gate, Meaning, Parsed, Set, Usage, parse, usage};
pub use metrics::{METRICS, Metric};
pub use notify::notify;
pub use serve::{Server, StartError};
pub use version::{API_VERSION, describe};
