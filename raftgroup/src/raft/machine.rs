//! The group's state: the log applied to a store.
//!
//! Kept true:
//! - Every entry is applied, also one without steps, so the store says how far
//!   the log was applied. Its positions count from 1: entry `i` of openraft is
//!   `i + 1` here, and 0 is before the first.
//! - Whoever proposed an entry hears of it after the layer above has.
//! - The store may be replaced by a snapshot. Readers of the old one keep it.
//! - One background task tends the store and installs snapshots, because a
//!   checkpoint must not wait for itself; where it runs, see `tenders.rs`.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use futures_util::{Stream, TryStreamExt};
use openraft::storage::{EntryResponder, RaftStateMachine};
use openraft::type_config::alias::SnapshotOf;
use openraft::{EntryPayload, OptionalSend, RaftSnapshotBuilder};
use parking_lot::Mutex;
use pontoon_engine::{Applied, EngineError, Entry, Install, Step, Store};
use pontoon_wal::disk::Disk;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::runtime::watched as watch;

use crate::format::{self, FormatVersion, Unreadable};
use crate::position::{GroupId, LogIndex, Term};
use crate::raft::failure::{Failure, Stop};
use crate::raft::log::log_id_before;
use crate::raft::tenders::Tenders;
use crate::raft::types::{LogEntry, LogId, SnapshotMeta, StoredMembership, Types};
use crate::raft::{GroupFailure, Machine};

/// The record of the last membership that was applied.
pub(crate) const MEMBERSHIP: &[u8] = b"raft/membership";

/// What a replica's parts share.
pub(crate) struct Replica {
    group: GroupId,
    path: PathBuf,
    config: pontoon_engine::Config,
    disk: Arc<dyn Disk>,
    machine: Arc<dyn Machine>,
    stores: watch::Sender<Arc<Store>>,
    applied: watch::Sender<LogIndex>,
    /// Term of the last entry that was applied.
    applied_term: AtomicU64,
    /// The last membership that the last checkpoint has, and those since.
    memberships: Mutex<Vec<StoredMembership>>,
    installs: AtomicU64,
    jobs: mpsc::UnboundedSender<Job>,
    pub(crate) failure: Arc<Failure>,
}

/// What the background task is asked to do, and who waits for it.
enum Job {
    /// Replace the store by a copy.
    Replace {
        copy: SnapshotData,
        done: oneshot::Sender<Result<Arc<Store>, EngineError>>,
    },
    End(oneshot::Sender<()>),
}

/// A snapshot as openraft sees it.
pub(crate) type Snapshot = SnapshotOf<Types, SnapshotData>;

/// What a snapshot is, by where it comes from.
pub(crate) enum SnapshotData {
    /// A checkpoint of this replica, which stands still.
    Pinned {
        pages: pontoon_engine::Snapshot,
        /// What is in it is of no later version.
        formats: FormatVersion,
    },
    /// Only what the checkpoint has applied: nobody reads it.
    Known,
    /// A copy of another replica's, all of which was received.
    Received(Install),
}

impl Replica {
    /// Opens the store, or makes one, and begins to tend it.
    pub(crate) fn open(
        group: GroupId,
        path: PathBuf,
        config: pontoon_engine::Config,
        disk: Arc<dyn Disk>,
        tenders: &Tenders,
        machine: Arc<dyn Machine>,
        failure: Arc<Failure>,
    ) -> Result<Arc<Self>, GroupFailure> {
        let store = Arc::new(Store::open(&*disk, &path, config.clone())?);
        let Applied { index, term, .. } = store.applied();
        let membership = match store.record(MEMBERSHIP)? {
            None => StoredMembership::default(),
            Some(record) => match format::open("membership record", record) {
                Ok(membership) => membership,
                Err(error @ Unreadable::Nonsense { .. }) => {
                    return Err(GroupFailure::Damaged(error.to_string()));
                }
                Err(error) => return Err(store.foreign_record(MEMBERSHIP, &error).into()),
            },
        };
        let (jobs, queue) = mpsc::unbounded_channel();
        let replica = Arc::new(Self {
            group,
            path,
            config,
            disk: Arc::clone(&disk),
            machine,
            stores: watch::Sender::new(Arc::clone(&store)),
            applied: watch::Sender::new(LogIndex(index)),
            applied_term: AtomicU64::new(term),
            memberships: Mutex::new(vec![membership]),
            installs: AtomicU64::new(0),
            jobs,
            failure,
        });
        let background = Background {
            store,
            queue,
            disk,
            path: replica.path.clone(),
            config: replica.config.clone(),
            failure: Arc::clone(&replica.failure),
        };
        tenders
            .run(group, Box::new(move || Box::pin(background.run())))
            .map_err(|error| GroupFailure::Stopped(format!("no background task: {error}")))?;
        Ok(replica)
    }

    /// Before the first entry.
    pub(crate) fn opened(&self) -> Result<(), EngineError> {
        self.machine.opened(&self.store())
    }

    pub(crate) fn group(&self) -> GroupId {
        self.group
    }

    pub(crate) fn store(&self) -> Arc<Store> {
        self.stores.borrow().clone()
    }

    /// The store, and which one it is by then.
    pub(crate) fn stores(&self) -> watch::Receiver<Arc<Store>> {
        self.stores.subscribe()
    }

    pub(crate) fn applied_index(&self) -> LogIndex {
        *self.applied.borrow()
    }

    pub(crate) fn applied(&self) -> watch::Receiver<LogIndex> {
        self.applied.subscribe()
    }

    pub(crate) fn applied_term(&self) -> Term {
        Term(self.applied_term.load(Ordering::Acquire))
    }

    /// The newest format that this node understands.
    pub(crate) fn newest(&self) -> FormatVersion {
        self.machine.newest_format()
    }

    pub(crate) fn installs(&self) -> u64 {
        self.installs.load(Ordering::Relaxed)
    }

    /// The last membership that was applied.
    pub(crate) fn membership(&self) -> StoredMembership {
        self.memberships.lock().last().cloned().unwrap_or_default()
    }

    pub(crate) fn disk(&self) -> &dyn Disk {
        &*self.disk
    }

    pub(crate) fn path(&self) -> &std::path::Path {
        &self.path
    }

    /// Applies one entry and tells the layer above.
    fn apply(&self, store: &Arc<Store>, entry: LogEntry) -> Result<(), Stop> {
        let id = entry.log_id;
        let (index, term) = (LogIndex(id.index + 1), Term(id.leader_id.term));
        let steps = match entry.payload {
            EntryPayload::Blank => Vec::new(),
            EntryPayload::Normal(command) => {
                let steps = self.machine.steps(store, term, command.payload());
                steps.map_err(|error| Stop::Other(error.to_string()))?
            }
            EntryPayload::Membership(membership) => {
                let membership = StoredMembership::new(Some(id), membership);
                let step = Step::Record {
                    name: Bytes::from_static(MEMBERSHIP),
                    content: Some(format::seal(&membership)),
                };
                self.memberships.lock().push(membership);
                vec![step]
            }
        };
        let floors = steps.iter().filter_map(|step| match step {
            Step::Compact { floor } => Some(*floor),
            _ => None,
        });
        if let Some(floor) = floors.max() {
            self.machine.before_compact(store, floor);
        }
        let applied = Applied {
            index: index.0,
            term: term.0,
            leader: 0,
        };
        let entry = Entry { applied, steps };
        store.apply(&entry).map_err(|error| Stop::from(&error))?;
        self.publish(store, applied, &entry.steps);
        Ok(())
    }

    fn publish(&self, store: &Arc<Store>, applied: Applied, steps: &[Step]) {
        let (index, term) = (LogIndex(applied.index), Term(applied.term));
        self.machine.applied(store, index, term, steps);
        self.applied_term.store(term.0, Ordering::Release);
        self.applied.send_replace(index);
        self.machine.shown(index);
    }

    /// What `applied` and the membership by then are, in openraft's words.
    fn meta(&self, applied: Applied) -> SnapshotMeta {
        let last = log_id_before(applied.index, applied.term);
        let mut memberships = self.memberships.lock();
        let then = memberships
            .iter()
            .rposition(|membership| *membership.log_id() <= last)
            .unwrap_or(0);
        let last_membership = memberships[then].clone();
        // Nobody will ask about a checkpoint before the last two.
        memberships.drain(..then.saturating_sub(1));
        SnapshotMeta {
            last_log_id: last,
            last_membership,
        }
    }

    /// Waits for a checkpoint that has everything applied so far.
    async fn checkpoint(&self) {
        let store = self.store();
        let wanted = store.applied().index;
        let mut checkpoints = store.checkpoints();
        if checkpoints.borrow().index < wanted {
            store.request_checkpoint();
            // The store, which has the other end, is held here.
            let _ = checkpoints
                .wait_for(|applied| applied.index >= wanted)
                .await;
        }
    }

    async fn install(&self, meta: &SnapshotMeta, copy: SnapshotData) -> Result<(), Stop> {
        self.machine.before_install().await;
        let (done, installed) = oneshot::channel();
        let gone = || Stop::Other("the background task has ended".to_owned());
        let job = Job::Replace { copy, done };
        self.jobs.send(job).map_err(|_| gone())?;
        let store = installed.await.map_err(|_| gone())?;
        let store = store.map_err(|error| Stop::from(&error))?;
        let applied = store.applied();
        let found = log_id_before(applied.index, applied.term);
        if found != meta.last_log_id {
            return Err(Stop::Damaged(format!(
                "a snapshot of {:?} was announced, one of {found:?} came",
                meta.last_log_id
            )));
        }
        *self.memberships.lock() = vec![meta.last_membership.clone()];
        let old = self.stores.send_replace(Arc::clone(&store));
        old.close();
        self.installs.fetch_add(1, Ordering::Relaxed);
        self.publish(&store, applied, &[]);
        Ok(())
    }

    /// Ends the background task. When this returns, nobody touches the tree any more.
    pub(crate) async fn end(&self) {
        let (done, ended) = oneshot::channel();
        // It may have ended by itself.
        let _ = self.jobs.send(Job::End(done));
        let _ = ended.await;
    }

    fn failed(&self, what: &str, reason: impl Into<Stop>) -> io::Error {
        let what = format!("{what} in group {}", self.group);
        let reason = reason.into().while_doing(&what);
        self.failure.set(reason.clone());
        io::Error::other(reason)
    }
}

/// What may block on the disk.
struct Background {
    store: Arc<Store>,
    queue: mpsc::UnboundedReceiver<Job>,
    disk: Arc<dyn Disk>,
    path: PathBuf,
    config: pontoon_engine::Config,
    failure: Arc<Failure>,
}

impl Background {
    /// Works until the replica is gone.
    async fn run(mut self) {
        let mut tending = true;
        loop {
            let job = tokio::select! {
                biased;
                job = self.queue.recv() => job,
                result = self.store.tend(), if tending => {
                    if let Err(error) = result {
                        self.failure.set(Stop::from(&error));
                    }
                    tending = false;
                    continue;
                }
            };
            let (copy, done) = match job {
                None => return,
                Some(Job::Replace { copy, done }) => (copy, done),
                Some(Job::End(done)) => {
                    drop(self);
                    // Nobody waits any more: fine.
                    let _ = done.send(());
                    return;
                }
            };
            // From here on nobody applies to the old store.
            let opened = self.replace(copy);
            if let Ok(store) = &opened {
                self.store = Arc::clone(store);
                tending = true;
            }
            // Nobody waits any more: the replica is ending.
            let _ = done.send(opened);
        }
    }

    fn replace(&self, copy: SnapshotData) -> Result<Arc<Store>, EngineError> {
        let copy = match copy {
            SnapshotData::Received(copy) => copy,
            SnapshotData::Pinned { pages, .. } => {
                let mut copy = Install::begin(&*self.disk, &self.path)?;
                let mut page = 0;
                while let Some(piece) = pages.read(page)? {
                    page = piece.next();
                    copy.add(&piece)?;
                }
                copy
            }
            SnapshotData::Known => {
                let reason = "a snapshot without content".to_owned();
                return Err(EngineError::Stopped(reason));
            }
        };
        let (since, syncing) = (copy.since(), Instant::now());
        copy.finish(&*self.disk)?;
        let counters = &self.config.counters;
        counters.copy_took.record_time(since.elapsed());
        counters.copy_sync_took.record_time(syncing.elapsed());
        let store = Store::open(&*self.disk, &self.path, self.config.clone())?;
        Ok(Arc::new(store))
    }
}

/// The state as openraft sees it.
pub(crate) struct StateMachine(pub(crate) Arc<Replica>);

impl RaftStateMachine<Types> for StateMachine {
    type SnapshotData = SnapshotData;
    type SnapshotBuilder = Checkpointed;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, StoredMembership), io::Error> {
        let applied = self.0.store().applied();
        let last = log_id_before(applied.index, applied.term);
        Ok((last, self.0.membership()))
    }

    async fn apply<S>(&mut self, mut entries: S) -> Result<(), io::Error>
    where
        S: Stream<Item = Result<EntryResponder<Types>, io::Error>> + Unpin + OptionalSend,
    {
        let store = self.0.store();
        while let Some((entry, responder)) = entries.try_next().await? {
            let index = entry.log_id.index + 1;
            self.0
                .apply(&store, entry)
                .map_err(|reason| self.0.failed(&format!("applying entry {index}"), reason))?;
            if let Some(responder) = responder {
                responder.send(());
            }
        }
        Ok(())
    }

    async fn try_create_snapshot_builder(&mut self, force: bool) -> Option<Checkpointed> {
        if force {
            self.0.checkpoint().await;
        }
        Some(Checkpointed(Arc::clone(&self.0)))
    }

    async fn get_snapshot_builder(&mut self) -> Checkpointed {
        Checkpointed(Arc::clone(&self.0))
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta,
        snapshot: SnapshotData,
    ) -> Result<(), io::Error> {
        let installed = self.0.install(meta, snapshot).await;
        installed.map_err(|reason| self.0.failed("installing a snapshot", reason))
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot>, io::Error> {
        let store = self.0.store();
        if store.checkpoints().borrow().index == 0 {
            return Ok(None);
        }
        let snapshot = store
            .snapshot()
            .map_err(|error| self.0.failed("taking a snapshot", &error))?;
        Ok(Some(Snapshot {
            meta: self.0.meta(snapshot.applied()),
            snapshot: SnapshotData::Pinned {
                pages: snapshot,
                formats: self.0.machine.cluster_format(),
            },
        }))
    }
}

/// Says what the last checkpoint has: it is openraft's snapshot, whether or
/// not somebody ever reads it.
pub(crate) struct Checkpointed(Arc<Replica>);

impl RaftSnapshotBuilder<Types> for Checkpointed {
    type SnapshotData = SnapshotData;

    async fn build_snapshot(&mut self) -> Result<Snapshot, io::Error> {
        let applied = *self.0.store().checkpoints().borrow();
        Ok(Snapshot {
            meta: self.0.meta(applied),
            snapshot: SnapshotData::Known,
        })
    }
}
