//! Many Raft groups, one revision order.
//!
//! The promise: every replica of a group applies the same effects in the same
//! order, and the revisions of all groups have one order that respects real
//! time. The crate refuses to know protobuf and gRPC.

mod cluster;
mod codec;
mod command;
mod compare;
mod counters;
mod error;
mod format;
mod health;
mod lead;
mod lease;
mod ledger;
mod lend;
mod link;
mod look;
mod map;
mod marks;
mod member;
mod mend;
mod message;
mod mutation;
mod node;
mod opening;
mod position;
mod raft;
mod read;
mod reconcile;
mod records;
mod replica;
mod rest;
mod rounds;
mod route;
mod runtime;
mod sequence;
mod split;
mod txn;
mod versions;
mod watch;

pub use counters::{Counters, Transfers};
pub use error::Failure;
pub use format::FormatVersion;
pub use health::{Condition, Fault, Unserved};
pub use lease::{LeaseGranted, LeaseStatus};
pub use ledger::LedgerOpen;
pub use link::{
    CallError, Handler, Inbox, Link, Network, PeerEvent, Plain, Reply, SimCounts, SimDelivery,
    SimNetwork, Stream, TcpConfig, TcpNetwork, Timing as LinkTiming, Unsent, Wrap,
};
pub use look::{LedgerLook, Look};
pub use map::{Placed, RangeMap, profile};
pub use member::{Alarm, Member, MemberReject};
#[doc(hidden)]
pub use mutation::Mutation;
pub use node::{Config, ContentSum, Node, NodeFailure, ReplicaStatus};
pub use position::{GroupId, LogIndex, NodeId, Term};
pub use raft::Timing;
pub use runtime::Scope;
pub use split::Splitting;
pub use versions::ClusterVersion;
pub use watch::{DELIVERY_BYTES, Delivery, Watch, WatchStream};
