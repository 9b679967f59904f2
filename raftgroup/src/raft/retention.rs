//! How much of a group's log is kept for followers.
//!
//! Kept true:
//! - The log has what either of the two checkpoints on disk needs.
//! - The groups of a node together keep `bytes_max` at most, apart from what
//!   has no checkpoint yet; a group that is over its share of that is asked for
//!   checkpoints. Groups that need less leave their share to the others.
//! - Within that, nothing is removed that a follower lacks: neither while it
//!   catches up nor while a snapshot is on its way to it. So a replica that
//!   joins under load needs one snapshot.
//! - What all followers have is kept up to `entries_max` entries.

use std::collections::BTreeMap;
use std::sync::Arc;

use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::Fatal;
use parking_lot::Mutex;
use pontoon_engine::Store;
use pontoon_wal::Wal;

use crate::mutation::{Mutation, mutated};
use crate::position::NodeId;
use crate::raft::log::GroupLog;
use crate::raft::types::Types;
use crate::raft::{Raft, place};
use crate::runtime::watched as watch;

/// How much log is kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kept {
    /// Of a group, if all its followers have it.
    pub(crate) entries_max: u64,
    /// Of all groups of the node together.
    pub(crate) bytes_max: u64,
}

/// The position of the last snapshot that was begun to be sent to each follower.
#[derive(Clone, Debug, Default)]
pub(crate) struct SentSnapshots(Arc<Mutex<BTreeMap<NodeId, u64>>>);

impl SentSnapshots {
    /// A snapshot with everything up to entry `index`, counted from 1, is on
    /// its way. It counts until the follower has as much, or gets another.
    pub(crate) fn begin(&self, to: NodeId, index: u64) {
        self.0.lock().insert(to, index);
    }

    fn get(&self, to: NodeId) -> u64 {
        self.0.lock().get(&to).copied().unwrap_or(0)
    }
}

/// Shortens the log of one group.
pub(crate) struct Retention {
    pub(crate) node: NodeId,
    pub(crate) raft: Raft,
    pub(crate) log: GroupLog,
    pub(crate) sent: SentSnapshots,
    pub(crate) kept: Kept,
    /// Changes when the node's log has grown by a segment.
    pub(crate) rotations: watch::Sender<u64>,
}

/// Tells all groups of a node when its log has grown by a segment. (The log's
/// own channel would wake them in an order that no seed decides.)
pub(crate) async fn tell_of_rotations(wal: Wal, rotations: watch::Sender<u64>) {
    let mut full = wal.rotations();
    drop(wal);
    while full.changed().await.is_ok() {
        rotations.send_replace(*full.borrow_and_update());
    }
}

impl Retention {
    /// Shortens the log after each checkpoint and whenever the node's log has
    /// grown by a segment, until the replica or the log ends.
    pub(crate) async fn run(self, mut stores: watch::Receiver<Arc<Store>>) {
        let mut rotations = self.rotations.subscribe();
        loop {
            let store = Arc::clone(&*stores.borrow_and_update());
            let mut checkpoints = store.checkpoints();
            loop {
                let shortened = tokio::select! {
                    biased;
                    _ = checkpoints.changed() => {
                        // openraft removes nothing behind its snapshot, and it
                        // learns of this checkpoint only now. But the log is
                        // needed since the one before, which it knows: so
                        // there is nothing to wait for.
                        match self.raft.trigger().snapshot().await {
                            Ok(()) => self.shorten(&store).await,
                            stopped => stopped,
                        }
                    }
                    rotated = rotations.changed() => match rotated {
                        Ok(()) => self.shorten(&store).await,
                        Err(_) => return,
                    },
                    replaced = stores.changed() => match replaced {
                        Ok(()) => break,
                        Err(_) => return,
                    }
                };
                if shortened.is_err() {
                    return;
                }
            }
        }
    }

    async fn shorten(&self, store: &Store) -> Result<(), Fatal<Types>> {
        let needed_after = store.log_needed_after().index;
        let applied = store.applied().index;
        let within_budget = self.log.first_within(self.kept.bytes_max);
        if within_budget > needed_after && applied > needed_after {
            store.request_checkpoint();
        }
        let spare = applied
            .saturating_sub(self.kept.entries_max)
            .min(self.followers_have());
        let superfluous = spare.max(within_budget).min(needed_after);
        match superfluous.checked_sub(1) {
            Some(last) => self.raft.trigger().purge_log(last).await,
            None => Ok(()),
        }
    }

    /// The entry up to which every follower has the log, or will have it with
    /// the snapshot that it is being sent. One that lacks entries which are
    /// already gone doesn't count: it needs another snapshot, and the next one
    /// has a checkpoint's entries.
    fn followers_have(&self) -> u64 {
        if mutated(Mutation::PurgeIgnoresFollowers) {
            return u64::MAX;
        }
        let metrics = self.raft.data_metrics();
        let metrics = metrics.borrow_watched();
        let purged = place(metrics.purged).0;
        let followers = metrics.replication.iter().flatten();
        let followers = followers.filter(|(id, _)| **id != self.node.0);
        let have = followers.map(|(id, matched)| {
            let sent = self.sent.get(NodeId(*id));
            place(*matched).0.max(sent)
        });
        have.filter(|have| *have >= purged)
            .min()
            .unwrap_or(u64::MAX)
    }
}
