//! One replica of one Raft group: everything that touches openraft.
//!
//! Kept true:
//! - No type of openraft leaves this module.
//! - A proposal is refused (and then it is certainly not in the log), applied
//!   here, or unknown; whoever made it hears so exactly once.
//! - Leadership is confirmed by a round of messages that starts after it was
//!   asked for. No clock is trusted for that.
//! - A replica whose disk failed stops, and says why.

use std::collections::BTreeSet;
use std::future::{Future, ready};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::runtime::watched as watch;
use bytes::Bytes;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::{ClientWriteError, Fatal, InitializeError, RaftError};
use openraft::raft::ClientWriteResult;
use openraft::{ReadPolicy, SnapshotPolicy};
use pontoon_engine::{EngineError, Revision, Step, Store};
use pontoon_wal::Wal;
use pontoon_wal::disk::Disk;
use tokio::sync::oneshot;

use crate::counters::Counters;
use crate::format::{FormatVersion, Unreadable};
use crate::health::Health;
use crate::position::{GroupId, LogIndex, NodeId, Term};
use crate::runtime::Scope;

mod begin;
mod failure;
mod log;
mod machine;
mod members;
mod message;
mod peers;
mod probe;
mod receive;
mod record;
mod retention;
mod snapshot;
mod tenders;
#[cfg(test)]
mod tests;
mod types;
mod watch_over;

pub(crate) use begin::{Begin, begin_again, doom, membership_record};
pub(crate) use failure::Stop;
pub(crate) use members::Membership;
#[cfg(test)]
use members::Unchanged;
pub(crate) use peers::Peers;
#[allow(unused_imports, reason = "for those who encode proposals")]
pub(crate) use record::ROOM_BYTES;
pub(crate) use retention::{Kept, tell_of_rotations};
pub(crate) use tenders::Tenders;

use failure::Failure;
use log::GroupLog;
use machine::{Replica, StateMachine};
use peers::Links;
use probe::Probe;
use receive::Lanes;
use retention::{Retention, SentSnapshots};
use snapshot::Incoming;
use types::{Reply, Types};
use watch_over::Overseer;

type Raft = openraft::Raft<Types, StateMachine>;

/// Most entries of one message; their bytes are bounded where they are read.
const APPEND_ENTRIES_MAX: u64 = 1024;
/// Requests that wait for a group's core. Memory is taken as they come.
const QUEUE_REQUESTS_MAX: u64 = 1024;
/// Requests that a group's core takes in one go. A batch of the layer above is one.
const API_BATCH_MAX: u64 = 32;
/// Entries whose way is recorded for statistics that nobody reads.
const LOG_STAGES: u64 = 1;
/// How long a piece of a snapshot may take, and the installation of all of it.
const SNAPSHOT_WITHIN: Duration = Duration::from_secs(60);

/// What turns entries into steps, and hears what was applied.
pub(crate) trait Machine: Send + Sync + 'static {
    /// The store was opened; nothing more is applied before this returns.
    fn opened(&self, _store: &Arc<Store>) -> Result<(), EngineError> {
        Ok(())
    }

    /// The steps of a proposed entry; `term` is the entry's own. An error
    /// stops the replica.
    fn steps(
        &self,
        store: &Arc<Store>,
        term: Term,
        command: Bytes,
    ) -> Result<Vec<Step>, Unreadable>;

    /// The newest format that this node understands.
    fn newest_format(&self) -> FormatVersion {
        FormatVersion::NEWEST
    }

    /// No entry has a later format, as far as this node knows.
    fn cluster_format(&self) -> FormatVersion {
        FormatVersion::FIRST
    }

    /// An entry was applied to `store`, or a snapshot became it (then there
    /// are no steps). Called in order, before the proposer hears of it.
    fn applied(&self, store: &Arc<Store>, index: LogIndex, term: Term, steps: &[Step]);

    /// The group shows that the entry was applied, so whoever is woken by this
    /// finds it. (Who is woken earlier may look too early, and never again.)
    fn shown(&self, index: LogIndex);

    /// An entry with [`Step::Compact`] is about to be applied.
    fn before_compact(&self, store: &Arc<Store>, floor: Revision);

    /// A snapshot is about to take the store's place, when this is ready.
    fn before_install(&self) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(ready(()))
    }
}

/// How a replica is kept.
#[derive(Clone)]
pub(crate) struct GroupConfig {
    pub(crate) node: NodeId,
    pub(crate) group: GroupId,
    /// What it does if it has no log.
    pub(crate) begin: Begin,
    /// Of the tree file.
    pub(crate) path: PathBuf,
    pub(crate) store: pontoon_engine::Config,
    pub(crate) timing: Timing,
    /// What is kept of the log for slow followers, though the store needs it no more.
    pub(crate) kept: Kept,
    /// Changes when the node's log has grown by a segment.
    pub(crate) rotations: watch::Sender<u64>,
    /// Pieces of a snapshot that are under way at most.
    pub(crate) snapshot_window: usize,
    /// The condition of the node.
    pub(crate) health: Arc<Health>,
    pub(crate) counters: Arc<Counters>,
}

/// Heartbeats and elections, as measured by this node's clock.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// Between two signs of life of a leader.
    pub heartbeat: Duration,
    /// Silence after which a follower may stand for election.
    pub election_min: Duration,
    /// Silence after which it does.
    pub election_max: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_millis(200),
            election_min: Duration::from_millis(1000),
            election_max: Duration::from_millis(1500),
        }
    }
}

/// Who leads, as far as this replica knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Leadership {
    pub(crate) term: Term,
    pub(crate) leader: Option<NodeId>,
    /// This node leads, and its first entry of the term is applied here.
    pub(crate) ready: bool,
    /// This node has won the term, but leads nothing while its disk stalls.
    pub(crate) suspended: bool,
}

/// What became of a proposal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Proposed {
    /// It was applied here.
    Applied(LogIndex),
    /// It is not in the log and never will be.
    Refused,
    /// Nobody knows, or not yet.
    Unknown,
}

/// A quorum heard this node as the leader of `term`, in a round that began
/// after it was asked for. Everything that was committed before is at or below
/// `index`, which may have yet to be committed itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Confirmed {
    pub(crate) term: Term,
    pub(crate) index: LogIndex,
}

/// This node does not lead, or can't prove that it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this node doesn't lead the group")]
pub(crate) struct NotLeader;

/// Why a replica can't be opened or begun.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GroupFailure {
    /// The store failed.
    #[error(transparent)]
    Store(EngineError),
    /// The disk failed: nothing more can be done in this process.
    #[error("{0}")]
    Disk(String),
    /// What is on disk doesn't fit together: the replica must be rebuilt.
    #[error("the replica is damaged: {0}")]
    Damaged(String),
    /// The configuration can't work.
    #[error("bad configuration: {0}")]
    Config(String),
    /// openraft has stopped, or didn't start.
    #[error("the replica has stopped: {0}")]
    Stopped(String),
}

impl From<EngineError> for GroupFailure {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Damaged { .. } => Self::Damaged(error.to_string()),
            // With a full disk it is tried again.
            EngineError::Disk { .. } if !error.is_no_space() => Self::Disk(error.to_string()),
            _ => Self::Store(error),
        }
    }
}

impl From<Stop> for GroupFailure {
    fn from(reason: Stop) -> Self {
        match reason {
            Stop::Damaged(reason) => Self::Damaged(reason),
            Stop::Disk(reason) => Self::Disk(reason),
            Stop::Other(reason) => Self::Stopped(reason),
        }
    }
}

/// Numbers for status pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) last: LogIndex,
    pub(crate) committed: LogIndex,
    pub(crate) applied: LogIndex,
    pub(crate) purged: LogIndex,
    pub(crate) snapshots_installed: u64,
}

/// One replica of one group.
pub(crate) struct Group {
    node: NodeId,
    store_id: u128,
    raft: Raft,
    replica: Arc<Replica>,
    log: GroupLog,
    scope: Scope,
    leadership: watch::Receiver<Leadership>,
    /// Held by who changes the members.
    changing: tokio::sync::Mutex<()>,
    probe: Arc<Probe>,
    /// Proposals that have not been heard of yet.
    proposals: watch::Sender<usize>,
    lanes: Lanes,
    incoming: Incoming,
    tenders: Arc<Tenders>,
    /// The term in which this node began to hand over.
    handed_over: AtomicU64,
    /// It was told to stop.
    closing: Arc<AtomicBool>,
    counters: Arc<Counters>,
}

impl Group {
    /// Opens the replica, or creates it, and starts its tasks in `scope`.
    pub(crate) async fn open(
        config: GroupConfig,
        wal: Wal,
        disk: Arc<dyn Disk>,
        tenders: &Arc<Tenders>,
        peers: Arc<dyn Peers>,
        machine: Arc<dyn Machine>,
        scope: &Scope,
    ) -> Result<Arc<Self>, GroupFailure> {
        let failure = Arc::new(Failure::new(Arc::clone(&config.health)));
        let log = GroupLog::new(wal, config.group, Arc::clone(&failure));
        begin::check_doomed(&log)?;
        let store_id = config.store.store;
        let replica = Replica::open(
            config.group,
            config.path,
            config.store,
            disk,
            tenders,
            machine,
            Arc::clone(&failure),
        )?;
        begin::check(&config.begin, &log, &replica)?;
        replica.opened()?;
        let probe = Arc::new(Probe::new(
            config.timing.election_max,
            Arc::clone(&config.health),
        ));
        let links = Links {
            peers,
            group: config.group,
            store: store_id,
            append_within: config.timing.election_min,
            window: config.snapshot_window,
            sent: SentSnapshots::default(),
            tenders: Arc::clone(tenders),
            probe: Arc::clone(&probe),
            failure: Arc::clone(&failure),
            health: Arc::clone(&config.health),
            counters: Arc::clone(&config.counters),
        };
        let sent = links.sent.clone();
        let failed = |fatal| not_started(&failure, fatal);
        let raft = Raft::new(
            config.node.0,
            Arc::new(openraft_config(&config.timing)?),
            links,
            log.clone(),
            StateMachine(Arc::clone(&replica)),
        );
        let raft = scope.enter(raft).await.map_err(failed)?;
        probe.observe(raft.data_metrics());
        // The core answers once it runs, and then its metrics are there.
        raft.is_initialized().await.map_err(failed)?;
        if let Begin::Members(members) = &config.begin
            && !log.is_begun()
        {
            initialize(&raft, members).await?;
        }
        let closing = Arc::new(AtomicBool::new(false));
        let overseer = Overseer {
            node: config.node,
            raft: raft.clone(),
            replica: Arc::clone(&replica),
            probe: Arc::clone(&probe),
            health: config.health,
            closing: Arc::clone(&closing),
        };
        let retention = Retention {
            node: config.node,
            raft: raft.clone(),
            log: log.clone(),
            sent,
            kept: config.kept,
            rotations: config.rotations,
        };
        scope.spawn(retention.run(replica.stores()));
        let leadership = overseer.start(scope);
        Ok(Arc::new(Self {
            node: config.node,
            store_id,
            raft,
            replica,
            log,
            scope: scope.clone(),
            leadership,
            changing: tokio::sync::Mutex::default(),
            probe,
            proposals: watch::Sender::new(0),
            lanes: Lanes::default(),
            incoming: Incoming::new(Arc::clone(&config.counters)),
            tenders: Arc::clone(tenders),
            handed_over: AtomicU64::new(0),
            closing,
            counters: Arc::clone(&config.counters),
        }))
    }

    /// The store. A snapshot may replace it: then this is the new one.
    pub(crate) fn store(&self) -> Arc<Store> {
        self.replica.store()
    }

    /// Who leads.
    pub(crate) fn leadership(&self) -> watch::Receiver<Leadership> {
        self.leadership.clone()
    }

    pub(crate) fn leadership_now(&self) -> Leadership {
        *self.leadership.borrow()
    }

    /// Who leads, as far as this replica knows.
    pub(crate) fn leader(&self) -> Option<NodeId> {
        self.leadership_now().leader
    }

    /// What the store has applied now.
    pub(crate) fn applied_index(&self) -> LogIndex {
        self.replica.applied_index()
    }

    /// What the store has applied.
    pub(crate) fn applied(&self) -> watch::Receiver<LogIndex> {
        self.replica.applied()
    }

    /// Whether there is too little room for more entries: none may be admitted.
    pub(crate) fn is_full(&self) -> bool {
        self.log.is_full() || self.store().is_full()
    }

    /// Proposes an entry, if this node leads in `term`. `done` is called
    /// exactly once, from any task. A buffer of its own, with
    /// [`ROOM_BYTES`] to spare, goes into the log as it is.
    pub(crate) async fn propose(
        &self,
        term: Term,
        command: Bytes,
        done: Box<dyn FnOnce(Proposed) + Send>,
    ) {
        if self.is_full() {
            return done(Proposed::Refused);
        }
        if self.is_quiet() {
            self.wake().await;
        }
        self.proposals.send_modify(|count| *count += 1);
        let proposals = self.proposals.clone();
        let reply = Reply::new(move |result: Option<ClientWriteResult<Types>>| {
            proposals.send_modify(|count| *count -= 1);
            done(match result {
                Some(Ok(response)) => Proposed::Applied(LogIndex(response.log_id.index + 1)),
                Some(Err(ClientWriteError::ForwardToLeader(_))) => Proposed::Refused,
                _ => Proposed::Unknown,
            });
        });
        let command = record::of_proposal(term.0, command);
        // An error drops the reply, which says so itself.
        let _ = self
            .raft
            .write(command)
            .with_leader(term.0)
            .responder(reply)
            .await;
    }

    /// Asks a quorum, from now on, whether this node leads, and in which term.
    /// The node may have lost its lead since the caller last looked, and won
    /// another: see [`Rounds::confirm_in`](crate::rounds::Rounds::confirm_in).
    pub(crate) async fn confirm(&self) -> Result<Confirmed, NotLeader> {
        match self.raft.get_read_log_id(ReadPolicy::ReadIndex).await {
            // At least the first entry of the leader's own term, so its term is
            // the leader's. A step-down fails the rounds of that term.
            Ok((read, _)) => Ok(Confirmed {
                term: Term(**read.committed_leader_id()),
                index: LogIndex(read.index() + 1),
            }),
            Err(_) => Err(NotLeader),
        }
    }

    /// Returns when everything up to `index` is applied here.
    pub(crate) async fn wait_applied(&self, index: LogIndex) {
        if self.applied_index() >= index {
            return;
        }
        let mut applied = self.applied();
        // The sender is ours.
        let _ = applied.wait_for(|applied| *applied >= index).await;
    }

    /// Hands the leadership to `to`, if it can; refuses proposals meanwhile.
    pub(crate) async fn transfer(&self, to: NodeId) {
        if to == self.node {
            // openraft would refuse proposals until its timers end that.
            return;
        }
        let term = self.leadership.borrow().term;
        self.handed_over.store(term.0, Ordering::Relaxed);
        // A replica that has stopped leads nothing.
        let _ = self.raft.trigger().transfer_leader(to.0).await;
    }

    /// Whether the lead was left to another node in this term.
    pub(crate) fn is_handed_over(&self) -> bool {
        self.handed_over.load(Ordering::Relaxed) == self.leadership_now().term.0
    }

    /// Stands for election now, if this node is a voter and hears no leader.
    pub(crate) async fn elect(&self) {
        wake(&self.raft, &self.probe);
        // A replica that has stopped leads nothing.
        let _ = self.raft.trigger().elect(true).await;
    }

    /// Turns the timers off, or on again. A leader is heard by a quorum before
    /// it has timers again, so that it doesn't find itself out of time.
    pub(crate) fn set_quiet(self: &Arc<Self>, quiet: bool) {
        if quiet {
            self.probe.quiet.send_replace(true);
            set_ticks(&self.raft, &self.probe);
        } else if self.is_quiet() {
            match self.leads() {
                true => {
                    let group = Arc::clone(self);
                    self.scope.spawn(async move { group.wake().await });
                }
                false => wake(&self.raft, &self.probe),
            }
        }
    }

    pub(crate) fn is_quiet(&self) -> bool {
        *self.probe.quiet.borrow()
    }

    async fn wake(&self) {
        // A leader that no quorum hears needs its timers all the more.
        let _ = self.confirm().await;
        wake(&self.raft, &self.probe);
    }

    /// Why this replica has stopped, if it has.
    pub(crate) fn failure(&self) -> Option<Stop> {
        self.replica.failure.get().or_else(|| {
            let metrics = self.raft.metrics();
            let state = metrics.borrow_watched().running_state.clone();
            state.err().map(|fatal| Stop::Other(fatal.to_string()))
        })
    }

    /// Stops the replica if who read its store has found it damaged, or the
    /// disk failing.
    pub(crate) fn report(&self, error: &EngineError) {
        match Stop::from(error) {
            Stop::Other(error) => {
                let group = self.replica.group();
                tracing::warn!(%group, error, "the store can't be read");
            }
            reason => self.replica.failure.set(reason),
        }
    }

    /// Gives what is free at the end of the tree's file back to the file
    /// system, while the replica serves; returns how many bytes, `None` if it
    /// has failed.
    pub(crate) async fn trim(&self) -> Option<u64> {
        let (done, trimmed) = oneshot::channel();
        let (store, failure) = (self.store(), Arc::clone(&self.replica.failure));
        let part = move || {
            let trimmed = store.trim();
            if let Err(error) = &trimmed {
                failure.set(Stop::from(error));
            }
            // Nobody waits any more: fine.
            let _ = done.send(trimmed.ok());
        };
        self.tenders.copy(self.replica.group(), part).ok()?;
        trimmed.await.ok().flatten()
    }

    /// Ends it in order, and so that the next start has nothing to apply
    /// again, unless that takes too long.
    pub(crate) async fn finish(&self, within: Duration) {
        self.closing.store(true, Ordering::Release);
        let is_well = self.failure().is_none();
        // It may have stopped by itself.
        let _ = self.raft.shutdown().await;
        let store = self.store();
        let applied = store.applied().index;
        let mut checkpoints = store.checkpoints();
        if is_well && checkpoints.borrow_and_update().index < applied {
            store.request_checkpoint();
            let durable = checkpoints.wait_for(|durable| durable.index >= applied);
            if !matches!(tokio::time::timeout(within, durable).await, Ok(Ok(_))) {
                let group = self.replica.group();
                tracing::warn!("group {group}: it ends without a checkpoint");
            }
        }
        self.close().await;
    }

    /// Ends it in order.
    pub(crate) async fn close(&self) {
        self.closing.store(true, Ordering::Release);
        // It may have stopped by itself.
        let _ = self.raft.shutdown().await;
        self.lanes.clear();
        self.incoming.close();
        self.store().close();
    }

    /// Ends it; nothing of its files is in use any more.
    pub(crate) async fn end(&self) {
        self.close().await;
        self.replica.end().await;
    }

    /// Ends it and removes all it has on disk. Before this node may be a
    /// member again, a leader has committed that it is none, or no voter.
    pub(crate) async fn destroy(&self) -> Result<(), GroupFailure> {
        self.end().await;
        begin::remove(&self.log, self.replica.disk(), self.replica.path()).await
    }

    pub(crate) fn counts(&self) -> Counts {
        let metrics = self.raft.data_metrics();
        let metrics = metrics.borrow_watched();
        Counts {
            last: place(metrics.last_log),
            committed: place(metrics.local_committed),
            applied: *self.replica.applied().borrow(),
            purged: place(metrics.purged),
            snapshots_installed: self.replica.installs(),
        }
    }

    fn leads(&self) -> bool {
        self.leadership.borrow().leader == Some(self.node)
    }
}

/// Gives a replica its timers back.
fn wake(raft: &Raft, probe: &Probe) {
    probe.woken();
    set_ticks(raft, probe);
}

/// Turns openraft's ticks on or off, after what they depend on has changed.
fn set_ticks(raft: &Raft, probe: &Probe) {
    raft.runtime_config().tick(probe.wants_ticks());
}

/// Gives a group its first members. Every one of them is asked to do the same;
/// one that has heard of another knows them already.
async fn initialize(raft: &Raft, members: &BTreeSet<NodeId>) -> Result<(), GroupFailure> {
    let members: BTreeSet<u64> = members.iter().map(|node| node.0).collect();
    match raft.initialize(members).await {
        Ok(()) | Err(RaftError::APIError(InitializeError::NotAllowed(_))) => Ok(()),
        Err(RaftError::APIError(error)) => Err(GroupFailure::Config(error.to_string())),
        Err(RaftError::Fatal(error)) => Err(GroupFailure::Stopped(error.to_string())),
    }
}

/// A position of openraft's, as it is counted here.
fn place(id: Option<types::LogId>) -> LogIndex {
    LogIndex(id.map_or(0, |id| id.index + 1))
}

/// Why openraft didn't start. What it dislikes of the log and the store, though
/// both could be read, is damage.
fn not_started(failure: &Failure, fatal: Fatal<Types>) -> GroupFailure {
    match (failure.get(), fatal) {
        (Some(reason), _) => reason.into(),
        (None, Fatal::StorageError(error)) => GroupFailure::Damaged(error.to_string()),
        (None, fatal) => GroupFailure::Stopped(fatal.to_string()),
    }
}

fn openraft_config(timing: &Timing) -> Result<openraft::Config, GroupFailure> {
    let millis = |duration: Duration| duration.as_millis() as u64;
    // A follower waits for the lease and then for a timeout between the two
    // below, of which the longer one is the lease too: together they are the
    // silence that was asked for.
    let lease = timing.election_max / 2;
    let timeout_min = timing.election_min.saturating_sub(lease);
    let config = openraft::Config {
        cluster_name: String::new(),
        heartbeat_interval: millis(timing.heartbeat),
        election_timeout_min: millis(timeout_min).max(millis(timing.heartbeat) + 1),
        election_timeout_max: millis(lease),
        install_snapshot_timeout: millis(SNAPSHOT_WITHIN),
        max_payload_entries: APPEND_ENTRIES_MAX,
        // Checkpoints are the snapshots, and what they make superfluous in
        // the log is removed by us alone.
        snapshot_policy: SnapshotPolicy::Never,
        max_in_snapshot_log_to_keep: u64::MAX,
        api_channel_size: Some(QUEUE_REQUESTS_MAX),
        notification_channel_size: Some(QUEUE_REQUESTS_MAX),
        state_machine_channel_size: Some(QUEUE_REQUESTS_MAX),
        // Memory is taken for these at once, in every group.
        api_batch_capacity: API_BATCH_MAX,
        log_stage_capacity: Some(LOG_STAGES),
        enable_pre_vote: Some(true),
        // A leader that restarts must not go on in its term: others may have
        // entries of it that its own disk had not kept yet, and it would put
        // different ones in their place.
        enable_leader_restore: Some(false),
        // A replica that was rebuilt has less than it had: the leader that
        // remembers better would wait for it in vain.
        allow_log_reversion: Some(true),
        // The probe does what it would do.
        quorum_loss_probe_interval: None,
        ..openraft::Config::default()
    };
    config
        .validate()
        .map_err(|error| GroupFailure::Config(error.to_string()))
}

/// What `docs/format.md` says of this part.
#[cfg(test)]
pub(crate) mod documented {
    use bytes::Bytes;

    use openraft::entry::RaftEntry;

    use super::types::{LogEntry, LogId, Membership, StoredMembership, Vote, log_id};
    use super::{ROOM_BYTES, log, record};
    use crate::format::{open, seal};

    pub(crate) const CONSTANTS: [(&str, u64); 8] = [
        ("RECORD_END_BYTES", ROOM_BYTES as u64),
        ("RECORD_BLANK", record::Kind::Blank as u64),
        ("RECORD_PROPOSAL", record::Kind::Proposal as u64),
        ("RECORD_MEMBERSHIP", record::Kind::Membership as u64),
        ("META_VOTE", log::META_VOTE as u64),
        ("META_PURGED", log::META_PURGED as u64),
        ("META_COMMITTED", log::META_COMMITTED as u64),
        ("META_DOOMED", log::META_DOOMED as u64),
    ];

    pub(crate) fn is_membership(content: Bytes) -> bool {
        open::<StoredMembership>("raft/membership", content).is_ok()
    }

    /// Values of a stream, and log records.
    pub(crate) fn samples() -> impl Iterator<Item = (&'static str, Bytes)> {
        let voters = vec![[1, 2].into(), [1, 300].into()];
        let membership = Membership::new_with_defaults(voters, [4]);
        let entry = |payload| record::of_entry(&LogEntry::new(log_id(7, 3), payload));
        [
            ("vote", seal(&Vote::new_committed(7, 300))),
            ("position", seal(&Some(log_id(7, 3)))),
            ("blank", entry(openraft::EntryPayload::Blank)),
            (
                "membership",
                entry(openraft::EntryPayload::Membership(membership)),
            ),
            ("proposal", record::of_proposal(7, "proposal".into()).0),
        ]
        .into_iter()
    }

    pub(crate) fn is_read(name: &'static str, bytes: Bytes) -> bool {
        match name {
            "vote" => open(name, bytes) == Ok(Vote::new_committed(7, 300)),
            "position" => open::<Option<LogId>>(name, bytes) == Ok(Some(log_id(7, 3))),
            _ => record::to_entry(3, bytes.clone())
                .is_ok_and(|entry| record::of_entry(&entry) == bytes),
        }
    }
}
