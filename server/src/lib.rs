//! Speaks etcd to clients and moves their requests to the right group.
//!
//! Kept true: what clients see (answers, errors, limits, their order) is
//! etcd's; what happens to the data is decided by the crates below. This crate
//! knows protobuf and gRPC, and no disk format but that of its own identity.

#![forbid(unsafe_code)]

mod authority;
mod bounds;
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
mod exit;
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
mod log;
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
mod readiness;
mod serve;
mod stop;
mod stream_queue;
mod url;
mod version;
mod voters;
mod watch;

pub use config::{AutoCompaction, ClusterState, Config, ConfigError, LogFormat, LogOutput};
pub use exit::{EXIT_CODES, EXIT_DISK, EXIT_REFUSED, EXIT_STOPPED, EXIT_USAGE};
pub use flags::{FLAGS, Flag, Form, GATES, Gate, Meaning, Parsed, Set, Usage, parse, usage};
pub use log::Log;
pub use metrics::{METRICS, Metric};
pub use notify::notify;
pub use pontoon_raftgroup::Fault;
pub use serve::{FailureWatch, Server, StartError};
pub use version::{API_VERSION, describe};
