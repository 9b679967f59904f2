//! Leases (rule 13).

use bytes::Bytes;
use pontoon_engine::Revision;

/// A lease that was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseGranted {
    /// Its id.
    pub id: i64,
    /// How long it lives without a sign of life.
    pub ttl_secs: i64,
    /// The newest revision then.
    pub revision: Revision,
}

/// What is known of a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseStatus {
    /// How long it has left, in whole seconds.
    pub ttl_secs: i64,
    /// How long it was granted for.
    pub granted_secs: i64,
    /// The keys that hang on it, if they were asked for.
    pub keys: Vec<Bytes>,
}
