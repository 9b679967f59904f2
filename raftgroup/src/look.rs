//! What people may know of a range and of the ledger, and one thing that they may
//! ask.
//!
//! Kept true: looking changes nothing and waits for nobody.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use pontoon_engine::Revision;
use tokio::time::Instant;

use crate::error::Failure;
use crate::ledger::LedgerOpen;
use crate::member::MemberReject;
use crate::message::Work;
use crate::node::{Inner, Node};
use crate::position::{GroupId, LogIndex, NodeId};
use crate::split::Splitting;

/// What a member knows of a replica besides its status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Look {
    /// Keys in it; `None` while an undecided transaction leaves that open.
    pub keys: Option<u64>,
    /// Writes that it has proposed as a leader since it was opened.
    pub writes: u64,
    /// The same in a second, when that was last measured.
    pub writes_per_sec: u64,
    /// Requests that wait for it.
    pub waiting: usize,
    /// Transactions over several groups that are staged and not decided.
    pub undecided: usize,
    /// Whether keys that were split off are still being removed.
    pub shedding: bool,
    /// How far the log of each member is known to be this leader's; `None` if
    /// it doesn't lead.
    pub progress: Option<BTreeMap<NodeId, LogIndex>>,
    /// Whom the group counts, voters and learners, by the log of this replica.
    pub counted: BTreeSet<NodeId>,
}

/// What a member has done as the sequencer since it was started. With one
/// group there is none: its leader just counts on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LedgerLook {
    /// Grants that it made, also those of which it doesn't know that they
    /// arrived.
    pub grants: u64,
    /// Revisions in them.
    pub revisions: u64,
    /// Times that it refused to grant, because what the asker knew of the
    /// cluster was old.
    pub stale: u64,
    /// Read points that it gave to members, each for all reads that waited
    /// there.
    pub read_points: u64,
    /// `None` if it isn't the sequencer now.
    pub open: Option<LedgerOpen>,
}

impl Node {
    /// Looks at the ledger.
    #[must_use]
    pub fn look_at_ledger(&self) -> LedgerLook {
        let tally = self.0.sequencing.tally();
        LedgerLook {
            grants: tally.grants.load(Ordering::Relaxed),
            revisions: tally.revisions.load(Ordering::Relaxed),
            stale: tally.stale.load(Ordering::Relaxed),
            read_points: tally.read_points.load(Ordering::Relaxed),
            open: self.0.sequencing.current().map(|desk| desk.open()),
        }
    }

    /// Looks at the replica of a group, if there is one here.
    #[must_use]
    pub fn look(&self, group: GroupId) -> Option<Look> {
        let replica = self.0.replica(group)?;
        let store = replica.group.store();
        let keys = store.count(&store.bounds(), store.revision());
        let keys = keys.map_err(|error| replica.group.report(&error));
        let jobs = &replica.jobs;
        Some(Look {
            keys: keys.ok().and_then(|keys| u64::try_from(keys).ok()),
            writes: replica.writes.load(Ordering::Relaxed),
            writes_per_sec: replica.writes_per_sec.load(Ordering::Relaxed),
            waiting: jobs.max_capacity() - jobs.capacity(),
            undecided: store.undecided().len(),
            shedding: store.is_shedding(),
            progress: replica.group.progress(),
            counted: replica.group.membership().nodes(),
        })
    }

    /// The undecided transaction that changes a key, if one is staged here.
    #[must_use]
    pub fn undecided(&self, group: GroupId, key: &[u8]) -> Option<Revision> {
        let store = self.0.replica(group)?.group.store();
        store.undecided().into_iter().find(|revision| {
            let staged = store.staged(*revision);
            staged.is_some_and(|staged| staged.effects.iter().any(|effect| effect.key() == key))
        })
    }

    /// Splits that are noted and not done.
    #[must_use]
    pub fn splits_under_way(&self) -> Vec<Splitting> {
        self.0.cluster.borrow().splits.under_way.clone()
    }

    /// Has a member lead a group, whoever leads it now; returns when it does.
    /// Where leaders are spread unevenly then, one may be moved again.
    pub async fn move_leader(
        &self,
        group: GroupId,
        to: NodeId,
        within: Duration,
    ) -> Result<(), Failure> {
        self.0.move_leader(group, to, Instant::now() + within).await
    }
}

impl Inner {
    async fn move_leader(
        self: &Arc<Self>,
        group: GroupId,
        to: NodeId,
        deadline: Instant,
    ) -> Result<(), Failure> {
        loop {
            let map = self.map_known(deadline).await?;
            let placed = map.placed(group);
            if !placed.is_some_and(|placed| placed.voters.contains(&to)) {
                return Err(MemberReject::NotFound.into());
            }
            let work = Work::Transfer { to };
            // If it doesn't come about, it is tried again.
            let _ = self.work_once(group, map.version, work, deadline).await;
            let soon = (Instant::now() + self.timing.call).min(deadline);
            while Instant::now() < soon {
                let counted = self.counted(group, to, soon).await;
                if counted.is_ok_and(|counted| counted.leader == to) {
                    return Ok(());
                }
                self.pause(deadline).await?;
            }
            self.pause(deadline).await?;
        }
    }
}
