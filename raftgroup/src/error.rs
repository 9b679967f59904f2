//! What a caller hears when a request was not served, grouped by what it may
//! do about it. The texts are etcd's where etcd has one.

use pontoon_engine::Reject;

use crate::member::MemberReject;

/// Why a request was not served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// Refused; nothing has changed.
    #[error(transparent)]
    Reject(#[from] Reject),
    /// A change of members is refused; nothing has changed.
    #[error(transparent)]
    Member(#[from] MemberReject),
    /// More is asked than can be done; nothing has changed, try later.
    #[error("etcdserver: too many requests")]
    TooManyRequests,
    /// There is nobody to do it; nothing has changed, try later.
    #[error("etcdserver: no leader")]
    NoLeader,
    /// The disk is full; nothing has changed.
    #[error("etcdserver: mvcc: database space exceeded")]
    NoSpace,
    /// What the cluster holds can't be trusted; nothing has changed.
    #[error("etcdserver: corrupt cluster")]
    Corrupt,
    /// The request is larger than a log entry can be; nothing has changed.
    #[error("etcdserver: request is too large")]
    TooLarge,
    /// Too few replicas could copy the range in time; it is as it was.
    #[error("pontoon: the split was abandoned: too few replicas were ready in time")]
    SplitAbandoned,
    /// Whether it was done is not known.
    #[error("etcdserver: leader changed")]
    LeaderChanged,
    /// Whether it was done is not known.
    #[error("etcdserver: request timed out")]
    TimedOut,
    /// This node no longer serves.
    #[error("etcdserver: server stopped")]
    Stopped,
}

impl Failure {
    /// Whether the request certainly changed nothing.
    #[must_use]
    pub fn is_certain(&self) -> bool {
        !matches!(self, Self::LeaderChanged | Self::TimedOut)
    }
}
