//! The types that openraft is given.
//!
//! Kept true: at most one leader per term (the layers above name a leadership
//! by its term alone), and whoever proposes hears of it exactly once.

use std::fmt;

use bytes::Bytes;
use openraft::impls::{EmptyNode, InlineBatch, leader_id_std};
use openraft::raft::responder::Responder;
use openraft::type_config::alias::{EntryOf, LogIdOf, SnapshotMetaOf, StoredMembershipOf, VoteOf};
use openraft::vote::RaftLeaderId;
use openraft::{AnyError, EntryPayload, OptionalSend, RaftTypeConfig};

use crate::raft::record;
use crate::runtime::Runtime;

/// What openraft is made of here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Types;

impl RaftTypeConfig for Types {
    type D = Command;
    type R = ();
    type NodeId = u64;
    type Node = EmptyNode;
    type Term = u64;
    type LeaderId = leader_id_std::LeaderId<u64, u64>;
    type Vote = openraft::Vote<Self::LeaderId>;
    type Payload = EntryPayload<Command, u64, EmptyNode>;
    type Entry = openraft::Entry<<Self::LeaderId as RaftLeaderId>::Committed, Self::Payload>;
    type AsyncRuntime = Runtime;
    type Responder<T>
        = Reply<T>
    where
        T: OptionalSend + 'static;
    type Batch<T>
        = InlineBatch<T>
    where
        T: OptionalSend + 'static;
    type ErrorSource = AnyError;
}

pub(crate) type Vote = VoteOf<Types>;
pub(crate) type LogId = LogIdOf<Types>;
pub(crate) type LogEntry = EntryOf<Types>;
pub(crate) type Membership = openraft::Membership<u64, EmptyNode>;
pub(crate) type StoredMembership = StoredMembershipOf<Types>;
pub(crate) type SnapshotMeta = SnapshotMetaOf<Types>;
pub(crate) type AppendRequest = openraft::raft::AppendEntriesRequest<Types>;

/// A log id, as openraft counts: the first entry has index 0.
pub(crate) fn log_id(term: u64, index: u64) -> LogId {
    LogId {
        leader_id: term.into(),
        index,
    }
}

/// What was proposed, as the record that the log holds (see [`record`]).
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Command(pub(crate) Bytes);

impl Command {
    /// What the layer above proposed.
    pub(crate) fn payload(&self) -> Bytes {
        record::payload(&self.0)
    }
}

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Calls back with a result, or with `None` when there won't be one.
pub(crate) struct Reply<T>(Option<Box<dyn FnOnce(Option<T>) + Send>>);

impl<T> Reply<T> {
    pub(crate) fn new(done: impl FnOnce(Option<T>) + Send + 'static) -> Self {
        Self(Some(Box::new(done)))
    }
}

impl<T: Send + 'static> Responder<Types, T> for Reply<T> {
    fn on_complete(mut self, result: T) {
        if let Some(done) = self.0.take() {
            done(Some(result));
        }
    }
}

impl<T> Drop for Reply<T> {
    fn drop(&mut self) {
        if let Some(done) = self.0.take() {
            done(None);
        }
    }
}
