//! One replica of one group on this node, and what follows from its entries.
//!
//! Kept true: an entry that was evaluated on another state than it meets has
//! no effect, on any replica, and its proposer hears so.

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use bytes::Bytes;
use parking_lot::Mutex;
use pontoon_engine::{EngineError, Revision, Step, Store};
use tokio::sync::{mpsc, oneshot};

use crate::command::{Command, Kind};
use crate::compare::Compared;
use crate::format::{FormatVersion, Unreadable};
use crate::lease::LeaseName;
use crate::link::Reply;
use crate::map::Touches;
use crate::message::{Declined, Outcome, Work};
use crate::node::Inner;
use crate::position::{GroupId, LogIndex, Term};
use crate::raft::{Group, Machine};
use crate::records;
use crate::rounds::Rounds;
use crate::split::Splitting;
use crate::txn::{Fate, TxnAsk, TxnGrant, TxnId};

/// Work that waits for the leader.
pub(crate) struct Job {
    pub(crate) work: Work,
    pub(crate) waiter: Waiter,
}

/// Who waits for an outcome. One that is dropped untold hears that too, and
/// knows nothing then.
pub(crate) enum Waiter {
    Task(oneshot::Sender<Outcome>),
    /// Called where the outcome is known, so it must be quick.
    Call(Box<dyn FnOnce(Outcome) + Send>),
}

impl Job {
    /// Work, and what will come of it.
    pub(crate) fn new(work: Work) -> (Self, oneshot::Receiver<Outcome>) {
        let (waiter, outcome) = oneshot::channel();
        let waiter = Waiter::Task(waiter);
        (Self { work, waiter }, outcome)
    }

    pub(crate) fn finish(self, outcome: Outcome) {
        self.waiter.tell(outcome);
    }
}

impl Waiter {
    pub(crate) fn tell(self, outcome: Outcome) {
        match self {
            // Nobody waits any more: fine.
            Self::Task(waiter) => drop(waiter.send(outcome)),
            Self::Call(call) => call(outcome),
        }
    }
}

/// One replica.
pub(crate) struct Replica {
    pub(crate) id: GroupId,
    pub(crate) group: Arc<Group>,
    pub(crate) rounds: Arc<Rounds>,
    pub(crate) follow: Arc<Follow>,
    pub(crate) jobs: mpsc::Sender<Job>,
    pub(crate) notes: mpsc::UnboundedSender<Note>,
    /// What it held when replicas were last compared.
    pub(crate) compared: Mutex<Option<Compared>>,
    /// Writes that it has proposed as a leader.
    pub(crate) writes: AtomicU64,
    /// The same in a second, when that was last measured.
    pub(crate) writes_per_sec: AtomicU64,
    /// Something was asked since it was last looked whether the group is quiet.
    pub(crate) busy: AtomicBool,
}

/// What the leader is told besides work that waits in line. There are never
/// more than there are requests under way.
pub(crate) enum Note {
    Barrier(Barrier),
    /// Work that must not wait for what is evaluated.
    Job(Job),
    /// A grant of a transaction came, in this group's stream.
    TxnGrant {
        grant: TxnGrant,
        reply: Reply,
    },
    /// To the root group's leader: a transaction in which it takes part.
    RootTxn {
        ask: TxnAsk,
        reply: Reply,
    },
    /// What was found out about an undecided transaction.
    Found {
        txn: TxnId,
        fate: Fate,
    },
    /// A quorum has copied what is to be split off.
    Split(Splitting),
    /// A lease was revoked, at a revision if keys hung on it.
    Revoked {
        lease: LeaseName,
        revision: Option<Revision>,
    },
}

/// Waits until all that is granted at or below `revision` is applied (rule 9).
/// Only the leader of `term` lets it pass: what another one waits for is not
/// what the round of that term confirms.
pub(crate) struct Barrier {
    pub(crate) term: Term,
    pub(crate) revision: Revision,
    /// What will be read.
    pub(crate) touches: Touches,
    pub(crate) passed: oneshot::Sender<()>,
}

impl Replica {
    pub(crate) fn new(
        id: GroupId,
        group: Arc<Group>,
        rounds: Arc<Rounds>,
        follow: Arc<Follow>,
        jobs: mpsc::Sender<Job>,
        notes: mpsc::UnboundedSender<Note>,
    ) -> Self {
        Self {
            id,
            group,
            rounds,
            follow,
            jobs,
            notes,
            compared: Mutex::default(),
            writes: AtomicU64::new(0),
            writes_per_sec: AtomicU64::new(0),
            busy: AtomicBool::new(true),
        }
    }

    /// Queues work, or says why not.
    pub(crate) fn enqueue(&self, job: Job) {
        self.busy.store(true, Ordering::Relaxed);
        if job.work.is_aside() {
            if let Err(mpsc::error::SendError(Note::Job(job))) = self.notes.send(Note::Job(job)) {
                job.finish(Err(Declined::NotLeader(None)));
            }
            return;
        }
        match self.jobs.try_send(job) {
            Ok(()) => {}
            Err(mpsc::error::TrySendError::Full(job)) => job.finish(Err(Declined::TooManyRequests)),
            Err(mpsc::error::TrySendError::Closed(job)) => {
                job.finish(Err(Declined::NotLeader(None)));
            }
        }
    }

    pub(crate) fn applied(&self) -> LogIndex {
        self.group.applied_index()
    }

    /// Stops the replica, because something in its store can't be read; what
    /// to answer to whoever wanted to know it.
    pub(crate) fn unreadable(&self, error: &EngineError) -> Declined {
        self.group.report(error);
        Declined::NotLeader(None)
    }
}

/// Turns a group's entries into steps, and tells the node what came of them.
pub(crate) struct Follow {
    id: GroupId,
    node: Weak<Inner>,
    /// The newest format that this node understands.
    newest: FormatVersion,
    /// Entries of [`Kind::Trial`] that were applied.
    pub(crate) trials: AtomicU64,
    /// The entry at hand was meant for another state.
    refused: AtomicBool,
    /// Entries that had no effect, until their proposer asks.
    without_effect: Mutex<BTreeSet<LogIndex>>,
}

/// Entries without effect that are remembered; they are proposed by this
/// node, and it asks at once.
const WITHOUT_EFFECT_MAX: usize = 1024;

impl Follow {
    pub(crate) fn new(id: GroupId, node: Weak<Inner>, newest: FormatVersion) -> Arc<Self> {
        Arc::new(Self {
            id,
            node,
            newest,
            trials: AtomicU64::new(0),
            refused: AtomicBool::new(false),
            without_effect: Mutex::default(),
        })
    }

    /// Whether an entry had an effect; to be asked once.
    pub(crate) fn had_effect(&self, index: LogIndex) -> bool {
        !self.without_effect.lock().remove(&index)
    }
}

impl Machine for Follow {
    fn opened(&self, store: &Arc<Store>) -> Result<(), EngineError> {
        match self.node.upgrade() {
            Some(node) if self.id.is_root() => node.read_root(store),
            _ => Ok(()),
        }
    }

    fn newest_format(&self) -> FormatVersion {
        self.newest
    }

    fn cluster_format(&self) -> FormatVersion {
        let node = self.node.upgrade();
        node.map_or(FormatVersion::FIRST, |node| node.cluster_version())
    }

    fn steps(
        &self,
        store: &Arc<Store>,
        term: Term,
        command: Bytes,
    ) -> Result<Vec<Step>, Unreadable> {
        let last = store.last_revision();
        let admitted = Command::admitted(command, term, last, self.newest)?;
        self.refused
            .store(admitted.steps.is_none(), Ordering::Relaxed);
        if admitted.kind == Kind::Trial {
            self.trials.fetch_add(1, Ordering::Relaxed);
        }
        let steps = admitted.steps.unwrap_or_default();
        records::check(&steps)?;
        Ok(steps)
    }

    fn applied(&self, store: &Arc<Store>, index: LogIndex, _term: Term, steps: &[Step]) {
        if self.refused.swap(false, Ordering::Relaxed) {
            let mut without_effect = self.without_effect.lock();
            without_effect.insert(index);
            if without_effect.len() > WITHOUT_EFFECT_MAX {
                without_effect.pop_first();
            }
        }
        if let Some(node) = self.node.upgrade() {
            node.entry_applied(self.id, store, index, steps);
        }
    }

    fn shown(&self, _index: LogIndex) {
        if let Some(node) = self.node.upgrade() {
            node.progress.send_modify(|count| *count += 1);
        }
    }

    fn before_install(&self) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let (id, node) = (self.id, self.node.upgrade());
        Box::pin(async move {
            if let Some(node) = node {
                node.copies.all_made(id).await;
            }
        })
    }

    fn before_compact(&self, store: &Arc<Store>, floor: Revision) {
        if let Some(node) = self.node.upgrade() {
            let kept = node.watches.keep_below(self.id, store, floor);
            if let (Err(error), Some(replica)) = (kept, node.replica(self.id)) {
                replica.group.report(&error);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use pontoon_engine::{Applied, Effect, Entry};
    use pontoon_wal::disk::Disk;
    use pontoon_wal::disk::sim::SimDisk;

    use super::*;

    fn write(revision: i64) -> Vec<Step> {
        let effect = Effect::Put {
            key: Bytes::from_static(b"key"),
            value: Bytes::from(revision.to_string()),
            lease: 0,
        };
        vec![Step::Write {
            revision: Revision(revision),
            effects: [effect].into_iter().collect(),
        }]
    }

    fn entry(index: u64, steps: Vec<Step>) -> Entry {
        let applied = Applied {
            index,
            term: 1,
            leader: 1,
        };
        Entry { applied, steps }
    }

    fn store() -> Arc<Store> {
        let disk = SimDisk::new(1);
        disk.create_dir(Path::new("/trees")).expect("a directory");
        let config = pontoon_engine::Config::default();
        let store = Store::open(&disk, Path::new("/trees/1.tree"), config);
        Arc::new(store.expect("it opens"))
    }

    /// Two entries are in flight, the second made for what the first makes.
    /// The first never comes.
    #[test]
    fn rule_6_an_entry_on_another_state_has_no_effect() {
        let store = store();
        let follow = Follow::new(GroupId(1), Weak::new(), FormatVersion::NEWEST);
        let follows = |index: u64, base, steps: Vec<Step>| {
            let command = Command {
                kind: Kind::Steps,
                term: Term(1),
                base: Some(Revision(base)),
                steps,
            };
            let steps = follow.steps(&store, Term(1), command.to_proposal(FormatVersion::FIRST));
            let steps = steps.expect("it makes sense");
            let entry = entry(index, steps);
            store.apply(&entry).expect("it is applied");
            follow.applied(&store, LogIndex(index), Term(1), &entry.steps);
            (follow.had_effect(LogIndex(index)), store.last_revision().0)
        };
        assert_eq!(follows(1, 1, write(2)), (true, 2));
        assert_eq!(follows(2, 5, write(6)), (false, 2));
        assert_eq!(follows(3, 2, write(7)), (true, 7));
        // What is late is refused too, whatever its revision.
        assert_eq!(follows(4, 2, write(8)), (false, 7));
        assert_eq!(follows(5, 7, write(9)), (true, 9));
    }

    /// Were it applied, a prepare would be there that nobody can read, or a
    /// lease would seem to be gone.
    #[test]
    fn an_entry_whose_record_cant_be_decoded_is_not_applied() {
        let store = store();
        let follow = Follow::new(GroupId(1), Weak::new(), FormatVersion::NEWEST);
        let steps = |name: &'static [u8]| {
            let record = Step::Record {
                name: Bytes::from_static(name),
                content: Some(Bytes::from_static(&[1, 0xff, 0xff])),
            };
            let command = Command {
                kind: Kind::Steps,
                term: Term(1),
                base: None,
                steps: vec![record],
            };
            follow.steps(&store, Term(1), command.to_proposal(FormatVersion::FIRST))
        };
        assert!(steps(b"txn/\x01\x02").is_err());
        assert!(steps(b"lease/\0\0\0\0\0\0\0\x07").is_err());
        assert!(steps(b"compare").is_ok());
    }

    #[test]
    fn rule_6_a_store_refuses_a_revision_that_is_not_above_the_last() {
        let store = store();
        store.apply(&entry(1, write(5))).expect("it is applied");
        for revision in [4, 5] {
            let refused = store.apply(&entry(2, write(revision)));
            assert!(refused.is_err(), "{revision}");
        }
        assert_eq!(store.last_revision(), Revision(5));
    }
}
