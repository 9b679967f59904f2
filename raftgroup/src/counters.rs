//! Numbers about a node while it works. Reading them costs the node nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use pontoon_wal::Histogram;
use tokio::time::Instant;

use crate::position::NodeId;

/// A quorum round that takes longer is a slow one, as in etcd.
pub(crate) const ROUND_SLOW: Duration = Duration::from_millis(500);

/// Counts since the node was opened.
#[derive(Debug, Default)]
pub struct Counters {
    /// Of its stores, together.
    pub stores: Arc<pontoon_engine::Counters>,
    /// Quorum rounds of leaders here, for reads and leases, that failed.
    pub rounds_failed: AtomicU64,
    /// Those that took longer than half a second.
    pub rounds_slow: AtomicU64,
    /// Snapshots that are being installed now.
    pub installing: AtomicU64,
    /// Leases that were granted, as the root group's replica here has applied.
    pub leases_granted: AtomicU64,
    /// Leases that have gone, likewise.
    pub leases_revoked: AtomicU64,
    /// Seconds that the granted leases live without a sign of life.
    pub lease_ttl_secs: Histogram,
    /// Signs of life that this node took as the root group's leader.
    pub leases_renewed: AtomicU64,
    /// Leases whose time was over while it was that.
    pub leases_expired: AtomicU64,
    snapshots: Mutex<BTreeMap<NodeId, Exchanged>>,
}

#[derive(Debug, Default)]
struct Exchanged {
    sent: Arc<Transfers>,
    received: Arc<Transfers>,
}

impl Counters {
    /// Snapshots sent to a node.
    #[must_use]
    pub fn snapshots_to(&self, node: NodeId) -> Arc<Transfers> {
        Arc::clone(&self.snapshots.lock().entry(node).or_default().sent)
    }

    /// Snapshots received from a node.
    #[must_use]
    pub fn snapshots_from(&self, node: NodeId) -> Arc<Transfers> {
        Arc::clone(&self.snapshots.lock().entry(node).or_default().received)
    }
}

/// Snapshots on their way in one direction between two nodes.
#[derive(Debug, Default)]
pub struct Transfers {
    /// How many there are now.
    pub under_way: AtomicU64,
    /// How many arrived whole.
    pub done: AtomicU64,
    /// How many were given up.
    pub failed: AtomicU64,
    /// Nanoseconds that the whole ones took.
    pub took: Histogram,
}

/// One of them; it has failed if it is dropped before it is done.
pub(crate) struct Transfer {
    transfers: Arc<Transfers>,
    since: Instant,
    done: bool,
}

impl Transfer {
    pub(crate) fn begin(transfers: Arc<Transfers>) -> Self {
        transfers.under_way.fetch_add(1, Relaxed);
        Self {
            transfers,
            since: Instant::now(),
            done: false,
        }
    }

    pub(crate) fn done(mut self) {
        self.done = true;
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        let transfers = &self.transfers;
        transfers.under_way.fetch_sub(1, Relaxed);
        if self.done {
            transfers.done.fetch_add(1, Relaxed);
            transfers.took.record_time(self.since.elapsed());
        } else {
            transfers.failed.fetch_add(1, Relaxed);
        }
    }
}

/// Counted as long as it is there.
pub(crate) struct Present<'c>(&'c AtomicU64);

impl<'c> Present<'c> {
    pub(crate) fn new(count: &'c AtomicU64) -> Self {
        count.fetch_add(1, Relaxed);
        Self(count)
    }
}

impl Drop for Present<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transfer_ends_once_as_done_or_as_failed() {
        let counters = Counters::default();
        let to = counters.snapshots_to(NodeId(7));
        let counted = || {
            let counts = [&to.under_way, &to.done, &to.failed];
            (counts.map(|count| count.load(Relaxed)), to.took.count())
        };
        let (first, second) = (
            Transfer::begin(Arc::clone(&to)),
            Transfer::begin(counters.snapshots_to(NodeId(7))),
        );
        assert_eq!(counted(), ([2, 0, 0], 0));
        first.done();
        assert_eq!(counted(), ([1, 1, 0], 1));
        drop(second);
        assert_eq!(counted(), ([0, 1, 1], 1));
        assert_eq!(counters.snapshots_from(NodeId(7)).failed.load(Relaxed), 0);
    }
}
