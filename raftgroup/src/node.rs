//! A member of the cluster: its log, its replicas, its link to the others.
//!
//! Kept true: a node has a replica of every group that the map places on it,
//! as soon as it knows the map; a message for any other group finds nobody.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use parking_lot::{Mutex, RwLock};
use pontoon_engine::{
    Answer, ContentHash, EngineError, Range, RangeAnswer, Reject, Request, Revision, Step, Store,
};
use pontoon_wal::disk::Disk;
use pontoon_wal::{Clock, Wal, WalError};

use crate::runtime::watched as watch;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::cluster::Cluster;
use crate::codec::Wire;
use crate::counters::Counters;
use crate::error::Failure;
use crate::format::FormatVersion;
use crate::health::{self, Fault, Health};
use crate::lead;
use crate::lease::{LeaseGranted, LeaseStatus, Leases};
use crate::link::{self, CallError, Handler, Link, Network, PeerEvent, Reply};
use crate::map::{RangeMap, within};
use crate::marks::Told;
use crate::member::{Alarm, Member, MemberWork};
use crate::mend::Gate;
use crate::message::{Heard, Message};
use crate::opening::Claims;
use crate::position::{GroupId, LogIndex, NodeId, Term};
use crate::raft::{GroupFailure, Tenders, Timing};
use crate::read::{Answers, ReadPoints};
use crate::replica::{Note, Replica};
use crate::runtime::{Scope, aside};
use crate::sequence::Role;
use crate::split::Copies;
use crate::txn::TxnId;
use crate::watch::{PIECES_MAX, Watch, WatchStream, Watches};
use crate::{compare, mend, opening, raft, reconcile, rest, split, versions};

/// How long the last checkpoints may take when a node ends.
const FINISH_WITHIN: Duration = Duration::from_secs(10);

/// A replica that has so many committed entries to apply has not caught up.
const BEHIND_ENTRIES_MAX: u64 = 1000;

/// How long another member may take to sum up a group.
const HASH_WITHIN: Duration = Duration::from_secs(30);

/// How a node is kept.
#[derive(Clone, Debug)]
pub struct Config {
    /// Which member this is.
    pub node: NodeId,
    /// Which cluster it belongs to.
    pub cluster: u128,
    /// Where its files are.
    pub dir: PathBuf,
    /// Where its log is, if not there.
    pub wal_dir: Option<PathBuf>,
    /// The first members and where they are.
    pub members: BTreeMap<NodeId, String>,
    /// Whether it joins a cluster that is there, which must have taken it in.
    pub join: bool,
    /// Where a new cluster's keys are cut.
    pub splits: Vec<Bytes>,
    /// How many replicas a group of a new cluster has; 0: one on every member.
    pub replicas: u64,
    /// Heartbeats and elections.
    pub timing: Timing,
    /// Most comparisons or steps of a transaction.
    pub txn_ops_max: usize,
    /// Requests that may wait for the leader of one group.
    pub queue_jobs_max: usize,
    /// Memory for changed pages of all trees together.
    pub dirty_bytes_max: usize,
    /// Memory for the newest events of all groups together.
    pub recent_bytes_max: usize,
    /// Log entries of a group that are kept though all its followers have them.
    pub log_entries_kept: u64,
    /// Bytes of log entries that are kept for slow followers, of all groups
    /// together; see [`Config::keep_log_within`].
    pub log_kept_bytes: u64,
    /// Bytes of applied entries of a group that start a checkpoint.
    pub log_bytes_max: u64,
    /// Size of a segment of the log.
    pub segment_bytes: u32,
    /// Bytes that one commit of the log gathers at most; 0: as it is by default.
    pub commit_bytes_max: usize,
    /// Commits of the log in flight at most; 0 leaves it to the disk.
    pub commits_in_flight_max: usize,
    /// After how much silence a group's timers rest.
    pub quiet_after: Duration,
    /// A range whose tree has more bytes than this in use is split.
    pub range_bytes_max: u64,
    /// A range with more writes than this in a second is split; 0: never.
    pub range_writes_max: u64,
    /// Ranges are not split by themselves when there are so many.
    pub groups_max: usize,
    /// Between two comparisons of a group's replicas, while it is written to.
    pub compare_every: Duration,
    /// The shortest life of a lease.
    pub lease_ttl_secs_min: i64,
    /// What this node takes for a second of a lease's life.
    pub second: Duration,
    /// How long the disk may hang before the node fails.
    pub stall_max: Duration,
    /// How long a split may take before it is abandoned.
    pub split_max: Duration,
    /// A log entry that takes longer to apply is warned of.
    pub slow_apply: Duration,
    /// The newest format that this node understands. Not [`FormatVersion::NEWEST`]
    /// only in tests, which take it for another release.
    #[doc(hidden)]
    pub newest_format: FormatVersion,
    /// The newest version of the cluster that this node agrees to.
    pub cluster_version_max: FormatVersion,
}

impl Config {
    /// The defaults for a member of a cluster.
    #[must_use]
    pub fn new(
        node: NodeId,
        cluster: u128,
        dir: impl Into<PathBuf>,
        members: BTreeMap<NodeId, String>,
    ) -> Self {
        Self {
            node,
            cluster,
            dir: dir.into(),
            wal_dir: None,
            members,
            join: false,
            splits: Vec::new(),
            replicas: 0,
            timing: Timing::default(),
            txn_ops_max: 128,
            queue_jobs_max: 8192,
            dirty_bytes_max: 256 << 20,
            recent_bytes_max: 64 << 20,
            log_entries_kept: 10_000,
            log_kept_bytes: 384 << 20,
            log_bytes_max: 256 << 20,
            segment_bytes: 32 << 20,
            commit_bytes_max: 0,
            commits_in_flight_max: 0,
            quiet_after: Duration::from_secs(5),
            range_bytes_max: 4 << 30,
            range_writes_max: 0,
            groups_max: 64,
            compare_every: Duration::from_secs(60),
            lease_ttl_secs_min: 2,
            second: Duration::from_secs(1),
            stall_max: Duration::from_secs(60),
            split_max: Duration::from_secs(600),
            slow_apply: Duration::from_millis(100),
            newest_format: FormatVersion::NEWEST,
            cluster_version_max: FormatVersion::NEWEST,
        }
    }
}

impl Config {
    /// Sets how much log is kept so that its files take `bytes` at most, if the
    /// disk keeps up with checkpoints. Up to half of what lies in segments may
    /// be garbage, and seven segments are made ahead, in reserve or waiting to
    /// be used again.
    pub fn keep_log_within(&mut self, bytes: u64) {
        let segment = u64::from(self.segment_bytes);
        self.log_kept_bytes = (bytes / 2).saturating_sub(4 * segment).max(segment);
    }

    /// Where its log is.
    pub(crate) fn log_dir(&self) -> PathBuf {
        let apart = self.wal_dir.clone();
        apart.unwrap_or_else(|| self.dir.join("wal"))
    }
}

/// Why a node can't be opened.
#[derive(Debug, thiserror::Error)]
pub enum NodeFailure {
    /// Its log can't.
    #[error(transparent)]
    Wal(#[from] WalError),
    /// A replica can't.
    #[error("group {0}: {1}")]
    Group(GroupId, String),
    /// A replica is damaged.
    #[error("group {0} is damaged: {1}")]
    Damaged(GroupId, String),
    /// The network can't be used.
    #[error("network: {0}")]
    Network(std::io::Error),
    /// A directory can't be made.
    #[error("disk: {0}")]
    Disk(std::io::Error),
    /// The disk failed, or hangs.
    #[error(transparent)]
    Failed(Fault),
    /// The thread that watches the disk can't be started.
    #[error("threads: {0}")]
    Threads(std::io::Error),
}

impl NodeFailure {
    pub(crate) fn of(group: GroupId, error: GroupFailure) -> Self {
        match error {
            GroupFailure::Damaged(reason) => Self::Damaged(group, reason),
            GroupFailure::Disk(reason) => Self::Failed(Fault(reason)),
            error => Self::Group(group, error.to_string()),
        }
    }
}

/// What is derived from [`Timing`] for calls.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallTiming {
    /// For messages about grants, marks and read points.
    pub(crate) call: Duration,
}

/// What all parts of a node share.
pub(crate) struct Inner {
    this: Weak<Self>,
    pub(crate) me: NodeId,
    pub(crate) config: Config,
    pub(crate) scope: Scope,
    pub(crate) health: Arc<Health>,
    pub(crate) counters: Arc<Counters>,
    /// It is about to stop.
    pub(crate) leaving: AtomicBool,
    pub(crate) timing: CallTiming,
    pub(crate) txn_ops_max: usize,
    pub(crate) wal: Wal,
    /// Changes when the log has grown by a segment.
    pub(crate) rotations: watch::Sender<u64>,
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) tenders: Arc<Tenders>,
    pub(crate) link: Arc<Link>,
    pub(crate) root: RwLock<Option<Arc<Replica>>>,
    pub(crate) replicas: RwLock<BTreeMap<GroupId, Arc<Replica>>>,
    pub(crate) cluster: watch::Sender<Cluster>,
    /// Groups whose replicas here are being rebuilt, and why.
    pub(crate) damaged: Mutex<BTreeMap<GroupId, String>>,
    /// Groups whose replicas could not be opened yet, and why.
    pub(crate) troubles: Mutex<BTreeMap<GroupId, String>>,
    pub(crate) claims: Claims,
    pub(crate) leases: Leases,
    /// Transactions that this node coordinates.
    pub(crate) open_txns: Mutex<BTreeSet<TxnId>>,
    pub(crate) copies: Copies,
    /// Counts applied entries and marks.
    pub(crate) progress: watch::Sender<u64>,
    pub(crate) told: Mutex<Told>,
    pub(crate) sequencing: Role,
    pub(crate) read_points: ReadPoints,
    pub(crate) answers: Answers,
    pub(crate) watches: Watches,
    /// For pieces of watches whose groups are elsewhere.
    pub(crate) pieces: Semaphore,
}

/// A member of the cluster.
#[derive(Clone)]
pub struct Node(pub(crate) Arc<Inner>);

impl Node {
    /// Opens a node, or makes a new one, and starts its tasks in `scope`.
    pub async fn open(
        config: Config,
        disk: Arc<dyn Disk>,
        clock: Arc<dyn Clock>,
        network: Arc<dyn Network>,
        scope: Scope,
    ) -> Result<Self, NodeFailure> {
        disk.create_dir(&config.dir.join("trees"))
            .map_err(NodeFailure::Disk)?;
        let mut wal = pontoon_wal::Config::new(config.log_dir(), config.node.0);
        wal.segment_bytes = config.segment_bytes;
        wal.clean_above_bytes = wal.clean_above_bytes.min(config.log_kept_bytes);
        if config.commit_bytes_max > 0 {
            wal.commit_bytes_max = config.commit_bytes_max;
        }
        wal.in_flight_max = config.commits_in_flight_max;
        let (trees, alone) = (config.dir.join("trees"), config.members.len() < 2);
        let wal = mend::open_log(wal, &trees, alone, &disk, &clock).await?;
        let timing = link::Timing {
            ping: config.timing.heartbeat,
            suspect: config.timing.election_min,
        };
        let link = Link::new(config.node, clock.random(), network, timing);
        let inner = Arc::new_cyclic(|this| Inner {
            this: this.clone(),
            me: config.node,
            timing: CallTiming {
                call: config.timing.election_min,
            },
            txn_ops_max: config.txn_ops_max,
            scope,
            health: Arc::default(),
            counters: Arc::default(),
            leaving: AtomicBool::new(false),
            wal,
            rotations: watch::Sender::new(0),
            tenders: Arc::new(Tenders::new(Arc::clone(&disk))),
            disk,
            link,
            root: RwLock::default(),
            replicas: RwLock::default(),
            cluster: watch::Sender::new(Cluster::default()),
            damaged: Mutex::default(),
            troubles: Mutex::default(),
            claims: Claims::default(),
            leases: Leases::default(),
            open_txns: Mutex::default(),
            copies: Copies::default(),
            progress: watch::Sender::new(0),
            told: Mutex::default(),
            sequencing: Role::default(),
            read_points: ReadPoints::default(),
            answers: Answers::default(),
            watches: Watches::default(),
            pieces: Semaphore::new(PIECES_MAX),
            config,
        });
        health::watch(&inner).map_err(NodeFailure::Threads)?;
        let rotations = raft::tell_of_rotations(inner.wal.clone(), inner.rotations.clone());
        inner.scope.spawn(rotations);
        let gate = Arc::new(Gate::default());
        let started = inner
            .link
            .start(&inner.scope, Arc::clone(&gate) as Arc<dyn Handler>);
        started.map_err(NodeFailure::Network)?;
        inner.link.set_peers(&inner.config.members);
        tokio::select! {
            biased;
            // To rebuild it may take long, and needs others.
            fault = inner.failed() => return Err(NodeFailure::Failed(fault)),
            opened = inner.open_root() => opened?,
        }
        gate.open(&inner);
        inner.scope.spawn(opening::follow_map(Arc::clone(&inner)));
        inner.scope.spawn(split::tend(Arc::clone(&inner)));
        inner.scope.spawn(split::watch_sizes(Arc::clone(&inner)));
        inner.scope.spawn(reconcile::reconcile(Arc::clone(&inner)));
        inner.scope.spawn(rest::rest(Arc::clone(&inner)));
        inner.scope.spawn(rest::check_leaders(Arc::clone(&inner)));
        inner.scope.spawn(mend::watch_damage(Arc::clone(&inner)));
        inner.scope.spawn(versions::tell(Arc::clone(&inner)));
        Ok(Self(inner))
    }

    /// Which member this is.
    #[must_use]
    pub fn id(&self) -> NodeId {
        self.0.me
    }

    /// Serves a request: a linearizable read or a write.
    pub async fn request(&self, request: Request, within: Duration) -> Result<Answer, Failure> {
        let answer = self.0.request(request, Instant::now() + within).await;
        self.0.unless_failing(answer)
    }

    /// The short way for a write whose group this member leads: `done` is called
    /// with its outcome, where that is known, so it must be quick. It gets `None`
    /// if nothing was done and [`Node::request`] should be asked; if it is
    /// dropped, nobody knows what was done. Returns whether it went this way.
    pub fn hand_in(
        &self,
        request: Request,
        done: impl FnOnce(Option<Result<Answer, Failure>>) + Send + 'static,
    ) -> bool {
        self.0.hand_in(request, done)
    }

    /// Whether this member leads the only group, as far as it knows.
    #[must_use]
    pub fn leads_alone(&self) -> bool {
        self.0.leads_alone()
    }

    /// Whether it does, as a quorum says after the call; one call serves all
    /// reads that came before it.
    pub async fn confirm_alone(&self) -> bool {
        self.0.confirm_alone().await
    }

    /// The short way for a linearizable read that came before a call of
    /// [`Node::confirm_alone`] which said yes. `None` if [`Node::request`]
    /// should be asked.
    #[must_use]
    pub fn read_alone(&self, range: &Range) -> Option<Result<RangeAnswer, Failure>> {
        match range.keys.key.is_empty() {
            true => Some(Err(Reject::EmptyKey.into())),
            false => self.0.read_alone(range),
        }
    }

    /// Reads what this member has, without asking others if it can.
    pub async fn read_serializable(
        &self,
        range: &Range,
        within: Duration,
    ) -> Result<RangeAnswer, Failure> {
        pontoon_engine::check(&Request::Range(range.clone()), self.0.txn_ops_max)?;
        self.0
            .read_serializable(range, Instant::now() + within)
            .await
    }

    /// Forgets what can't be seen at `revision` or later; returns the newest revision.
    pub async fn compact(&self, revision: Revision, within: Duration) -> Result<Revision, Failure> {
        let newest = self.0.compact(revision, Instant::now() + within).await;
        self.0.unless_failing(newest)
    }

    /// Grants a lease; `id` 0 lets the cluster choose.
    pub async fn lease_grant(
        &self,
        id: i64,
        ttl_secs: i64,
        within: Duration,
    ) -> Result<LeaseGranted, Failure> {
        let deadline = Instant::now() + within;
        let granted = self.0.lease_grant(id, ttl_secs, deadline).await;
        self.0.unless_failing(granted)
    }

    /// Ends a lease and deletes the keys that hang on it; returns the revision.
    pub async fn lease_revoke(&self, id: i64, within: Duration) -> Result<Revision, Failure> {
        let revoked = self.0.lease_revoke(id, Instant::now() + within).await;
        self.0.unless_failing(revoked)
    }

    /// A sign of life; returns how long the lease lives from now on, `None`
    /// if there is no such lease.
    pub async fn lease_keep_alive(
        &self,
        id: i64,
        within: Duration,
    ) -> Result<Option<i64>, Failure> {
        let alive = self.0.lease_keep_alive(id, Instant::now() + within).await;
        self.0.unless_failing(alive)
    }

    /// What is known of a lease, with its keys if they are wanted.
    pub async fn lease_status(
        &self,
        id: i64,
        keys: bool,
        within: Duration,
    ) -> Result<Option<LeaseStatus>, Failure> {
        let deadline = Instant::now() + within;
        self.0.lease_status(id, keys, deadline).await
    }

    /// The leases that this member knows of.
    #[must_use]
    pub fn leases(&self) -> Vec<i64> {
        self.0.leases.ids()
    }

    /// Cuts the range that has `key` in two, of which the second begins with it.
    pub async fn split(&self, key: Bytes, within: Duration) -> Result<GroupId, Failure> {
        let child = self.0.split(key, Instant::now() + within).await;
        self.0.unless_failing(child)
    }

    /// Takes a member in, as a voter or as one who only listens.
    pub async fn member_add(
        &self,
        id: NodeId,
        member: Member,
        within: Duration,
    ) -> Result<(), Failure> {
        let work = MemberWork::Add { id, member };
        let deadline = Instant::now() + within;
        self.0.change_members(work, deadline).await.map(|_| ())
    }

    /// Makes a member that only listens a voter.
    pub async fn member_promote(&self, id: NodeId, within: Duration) -> Result<(), Failure> {
        self.0.member_promote(id, Instant::now() + within).await
    }

    /// Removes a member; returns when no group counts it any more.
    pub async fn member_remove(&self, id: NodeId, within: Duration) -> Result<(), Failure> {
        self.0.member_remove(id, Instant::now() + within).await
    }

    /// Changes where a member is reached.
    pub async fn member_update(
        &self,
        id: NodeId,
        address: String,
        within: Duration,
    ) -> Result<(), Failure> {
        let work = MemberWork::Update { id, address };
        let deadline = Instant::now() + within;
        self.0.change_members(work, deadline).await.map(|_| ())
    }

    /// Hands over all that this member leads, as far as others take it, and
    /// ends it in order.
    pub async fn leave(self, within: Duration) {
        self.0.hand_over_all(Instant::now() + within).await;
        self.close().await;
    }

    /// Whether this member was removed and no group counts it any more, as
    /// others say, so that it may stop; `None` if nobody says.
    pub async fn is_removed(&self) -> Option<bool> {
        self.0.is_removed().await
    }

    /// The members, as this one knows them.
    #[must_use]
    pub fn members(&self) -> BTreeMap<NodeId, Member> {
        self.0.member_list()
    }

    /// Follows the events of a range of keys.
    #[must_use]
    pub fn watch(&self, watch: Watch) -> WatchStream {
        WatchStream::new(&self.0, watch)
    }

    /// Hands the leadership of a group to another member, if this one has it.
    pub async fn transfer(&self, group: GroupId, to: NodeId) {
        self.0.transfer(group, to).await;
    }

    /// Whether a group has a leader that a quorum has heard of late, as far as
    /// this member can tell.
    #[must_use]
    pub fn has_leader(&self, group: GroupId) -> bool {
        let replica = self.0.replica(group);
        replica.is_some_and(|replica| self.0.has_leader(&replica))
    }

    /// The range map, if it is known.
    #[must_use]
    pub fn map(&self) -> Option<Arc<RangeMap>> {
        self.0.cluster.borrow().map.clone()
    }

    /// What is known of each replica here.
    #[must_use]
    pub fn status(&self) -> Vec<ReplicaStatus> {
        let replicas = self.0.replicas.read();
        replicas.values().map(|replica| replica.status()).collect()
    }

    /// Alarms that are on, as this member knows.
    #[must_use]
    pub fn alarms(&self) -> Vec<(Alarm, NodeId)> {
        let cluster = self.0.cluster.borrow();
        cluster.alarms.iter().copied().collect()
    }

    /// Raises an alarm about a member, or ends it.
    pub async fn alarm(
        &self,
        id: NodeId,
        alarm: Alarm,
        on: bool,
        within: Duration,
    ) -> Result<(), Failure> {
        let work = MemberWork::Alarm { id, alarm, on };
        let deadline = Instant::now() + within;
        self.0.change_members(work, deadline).await.map(|_| ())
    }

    /// Groups whose replicas here are damaged and being rebuilt, and why.
    #[must_use]
    pub fn damaged(&self) -> BTreeMap<GroupId, String> {
        self.0.damaged.lock().clone()
    }

    /// Positions and content of a replica, to compare with others.
    #[must_use]
    pub fn content(&self, group: GroupId) -> Option<(LogIndex, ContentHash)> {
        let replica = self.0.replica(group)?;
        let hash = replica.group.store().applied_hash();
        let hash = hash.map_err(|error| replica.group.report(&error));
        let (applied, hash) = hash.ok()?;
        Some((LogIndex(applied.index), hash))
    }

    /// The newest revision that a replica here has.
    #[must_use]
    pub fn revision(&self) -> Revision {
        let replicas = self.0.replicas.read();
        let revisions = replicas
            .values()
            .map(|replica| replica.group.store().revision());
        revisions.max().unwrap_or(Revision::FIRST)
    }

    /// A client of this member was told of a revision, though not by an answer
    /// to a request: later reads here are not below it (rule 16).
    pub fn note_told(&self, revision: Revision) {
        self.0.answers.note_any(revision);
    }

    /// The highest revision that clients of this member were told of.
    #[must_use]
    pub fn told(&self) -> Revision {
        self.0.answers.highest()
    }

    /// The lowest revision that can be read; below 0 before the first compaction.
    #[must_use]
    pub fn floor(&self) -> Revision {
        self.0.floor()
    }

    /// Watches here that were not given all that they could be.
    #[must_use]
    pub fn watches_behind(&self) -> usize {
        self.0.watches_behind()
    }

    /// Numbers about this node while it works.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.0.counters
    }

    /// Its end of the connections to the other members.
    #[must_use]
    pub fn link(&self) -> &Arc<Link> {
        &self.0.link
    }

    /// Whether a member was heard of late, or is this one.
    #[must_use]
    pub fn is_alive(&self, id: NodeId) -> bool {
        id == self.0.me || self.0.link.is_alive(id)
    }

    /// For how long another member has been heard of without a break; `None` if
    /// it isn't heard of.
    #[must_use]
    pub fn alive_for(&self, id: NodeId) -> Option<Duration> {
        self.0.link.alive_for(id)
    }

    /// The root group's term, and who leads it, as far as this member knows.
    #[must_use]
    pub fn leadership(&self) -> (Term, Option<NodeId>) {
        let root = self.0.root.read();
        let root = root.as_ref().expect("it is opened first");
        let leadership = root.group.leadership_now();
        (leadership.term, leadership.leader)
    }

    /// Whether the replicas here have removed all that compactions let go.
    #[must_use]
    pub fn is_swept(&self) -> bool {
        let floor = self.0.floor();
        let replicas = self.0.replicas.read();
        replicas.values().all(|replica| {
            let store = replica.group.store();
            store.floor() >= floor && store.is_swept()
        })
    }

    /// The sum of what is current in all replicas here at a revision, which is
    /// returned too, as is the floor; 0 and below: the newest that all of them
    /// show for good. It is the same at every member that holds all replicas,
    /// before and after a compaction to that revision. Whoever asks while not all
    /// of them are open, or have come to the floor, may ask again, as for a
    /// revision of the future.
    pub fn hash(&self, revision: Revision) -> Result<ContentSum, Failure> {
        let floor = self.0.floor();
        let map = self.map().ok_or(Reject::FutureRevision)?;
        let here = map.ranges().map(|(placed, _)| placed);
        let here = here.filter(|placed| placed.members.contains(&self.0.me));
        let replicas: Option<Vec<_>> = here.map(|placed| self.0.replica(placed.group)).collect();
        let replicas = replicas.ok_or(Reject::FutureRevision)?;
        let passed = replicas.iter().map(|replica| self.0.passed(replica)).min();
        let newest = passed.unwrap_or(Revision::FIRST);
        let at = match revision.0 <= 0 {
            true => newest,
            false => revision,
        };
        if at > newest {
            return Err(Reject::FutureRevision.into());
        }
        if at < floor {
            return Err(Reject::Compacted.into());
        }
        let mut sum = 0_u64;
        for replica in &replicas {
            let store = replica.group.store();
            // A group that had no write lately is at an earlier revision.
            match store.hash(at.min(store.revision())) {
                Ok(hash) => sum = sum.wrapping_add(hash.keys),
                Err(EngineError::Reject(reject)) => return Err(reject.into()),
                Err(EngineError::Undecided(_)) => return Err(Failure::TooManyRequests),
                Err(error) => {
                    replica.group.report(&error);
                    return Err(Failure::Stopped);
                }
            }
        }
        // Floors only rise: who has this one now had no higher one before.
        let even = |replica: &Arc<Replica>| replica.group.store().floor() == floor;
        let same = self.map().is_some_and(|now| Arc::ptr_eq(&now, &map));
        match same && self.0.floor() == floor && replicas.iter().all(even) {
            true => Ok(ContentSum { at, sum, floor }),
            false => Err(Reject::FutureRevision.into()),
        }
    }

    /// The same of all keys: what [`Node::hash`] found here, and what other
    /// members hold of the groups that have no replica here. Who may ask again
    /// is told so as there.
    pub async fn hash_with_others(&self, here: ContentSum) -> Result<ContentSum, Failure> {
        let again = || Failure::from(Reject::FutureRevision);
        let node = &self.0;
        let map = self.map().ok_or_else(again)?;
        let mut sum = here.sum;
        for (placed, _) in map.ranges() {
            if placed.members.contains(&node.me) {
                continue;
            }
            let members = placed.members.iter();
            let mut alive = members.filter(|id| node.link.is_alive(**id));
            let source = alive.next().ok_or_else(again)?;
            let question = Message::Sum {
                group: placed.group,
                map: map.version,
                at: here.at,
                floor: here.floor,
            };
            let found = node.call::<Option<u64>>(*source, &question, HASH_WITHIN);
            let keys = found.await.flatten().ok_or_else(again)?;
            sum = sum.wrapping_add(keys);
        }
        match node.map_version() == Some(map.version) {
            true => Ok(ContentSum { sum, ..here }),
            false => Err(again()),
        }
    }

    /// Gives what is free at the ends of this member's trees back to the file
    /// system, one after the other, while it serves; returns how many bytes.
    pub async fn trim(&self) -> Result<u64, Failure> {
        if self.0.is_space_low() {
            // It takes checkpoints first, and they take space.
            return Err(Failure::NoSpace);
        }
        let replicas: Vec<_> = self.0.replicas.read().values().cloned().collect();
        let mut bytes = 0;
        for replica in replicas {
            bytes += replica.group.trim().await.ok_or(Failure::Stopped)?;
        }
        Ok(bytes)
    }

    /// Numbers about the node's log.
    #[must_use]
    pub fn log_counters(&self) -> &pontoon_wal::Counters {
        self.0.wal.counters()
    }

    /// Ends the node in order.
    pub async fn close(self) {
        let replicas: Vec<_> = self.0.replicas.read().values().cloned().collect();
        let finished = replicas.iter().map(|one| one.group.finish(FINISH_WITHIN));
        join_all(finished).await;
        self.0.scope.end();
        self.0.health.close();
    }
}

/// What [`Node::hash`] has summed up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContentSum {
    /// The revision at which it was taken.
    pub at: Revision,
    /// The sum of the hashes of what is current there.
    pub sum: u64,
    /// The lowest revision that can be read.
    pub floor: Revision,
}

/// What is known of a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaStatus {
    /// Its group.
    pub group: GroupId,
    /// The term it knows.
    pub term: Term,
    /// Who leads, as far as it knows.
    pub leader: Option<NodeId>,
    /// Whether it leads and has taken up work.
    pub leads: bool,
    /// The last entry of its log, durable or not.
    pub last: LogIndex,
    /// The last entry that it knows to be committed.
    pub committed: LogIndex,
    /// The last entry that it has applied.
    pub applied: LogIndex,
    /// Length of its tree's file.
    pub file_bytes: u64,
    /// How much of that the tree needs.
    pub used_bytes: u64,
    /// The newest revision in it.
    pub revision: Revision,
    /// Its compaction floor.
    pub floor: Revision,
    /// Reads under way for which a compaction waits.
    pub open_reads: usize,
    /// Whether its timers rest.
    pub quiet: bool,
    /// How often another's checkpoint became its own since it was opened.
    pub snapshots: u64,
    /// Why it has stopped, if it has.
    pub failure: Option<String>,
}

impl Replica {
    fn status(&self) -> ReplicaStatus {
        let leadership = *self.group.leadership().borrow();
        let store = self.group.store();
        let (file_bytes, _) = store.file_bytes();
        let counts = self.group.counts();
        ReplicaStatus {
            group: self.id,
            term: leadership.term,
            leader: leadership.leader,
            leads: leadership.ready,
            last: counts.last,
            committed: counts.committed.max(counts.applied),
            applied: counts.applied,
            file_bytes,
            used_bytes: store.used_bytes(),
            revision: store.revision(),
            floor: store.floor(),
            open_reads: store.open_reads(),
            quiet: self.group.is_quiet(),
            snapshots: counts.snapshots_installed,
            failure: self.group.failure().map(|reason| reason.to_string()),
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.health.close();
    }
}

impl Inner {
    pub(crate) fn this(&self) -> Option<Arc<Self>> {
        self.this.upgrade()
    }

    /// The sum of what a replica here holds at a revision, if it has come so
    /// far and has this floor.
    fn sum_of(&self, group: GroupId, map: u64, at: Revision, floor: Revision) -> Option<u64> {
        let replica = self.replica(group)?;
        let store = replica.group.store();
        let keys = self.cluster.borrow().map.as_ref()?.keys_of(group)?;
        let is_due = || {
            self.map_version() == Some(map)
                && within(&keys, &store.bounds())
                && store.floor() == floor
        };
        if self.passed(&replica) < at || !is_due() {
            return None;
        }
        let hash = aside(|| store.hash(at.min(store.revision())));
        match hash {
            Ok(hash) => is_due().then_some(hash.keys),
            Err(EngineError::Reject(_) | EngineError::Undecided(_)) => None,
            Err(error) => {
                replica.group.report(&error);
                None
            }
        }
    }

    /// The replica of the root group, which every node has.
    pub(crate) fn root(&self) -> Arc<Replica> {
        let root = self.root.read().clone();
        root.expect("it is opened first")
    }

    pub(crate) fn root_applied(&self) -> LogIndex {
        self.root().applied()
    }

    /// Waits until the root entry is applied here (rule 15). `false` if that
    /// takes too long.
    pub(crate) async fn root_catches_up(&self, index: LogIndex) -> bool {
        let root = self.root();
        let applied = root.group.wait_applied(index);
        tokio::time::timeout(self.timing.call, applied)
            .await
            .is_ok()
    }

    pub(crate) fn replica(&self, group: GroupId) -> Option<Arc<Replica>> {
        self.replicas.read().get(&group).cloned()
    }

    /// Returns when what is known of the cluster changes; `false` if it won't.
    pub(crate) async fn cluster_changed(&self) -> bool {
        self.cluster.subscribe().changed().await.is_ok()
    }

    pub(crate) fn replicas(&self) -> Vec<Arc<Replica>> {
        self.replicas.read().values().cloned().collect()
    }

    pub(crate) fn floor(&self) -> Revision {
        self.cluster.borrow().floor
    }

    /// The map of a cluster that has none.
    pub(crate) fn first_map(&self) -> RangeMap {
        let members = self.first_members();
        RangeMap::first(&self.config.splits, &members, self.config.replicas)
    }

    pub(crate) async fn transfer(&self, group: GroupId, to: NodeId) {
        if let Some(replica) = self.replica(group) {
            // While it hands over, a leader shows no sign of life. If `to`
            // doesn't hear of it, others must have their timers to go on.
            replica.busy.store(true, Ordering::Relaxed);
            if replica.group.is_quiet() {
                let term = replica.group.leadership().borrow().term;
                let version = self.cluster_version();
                lead::propose_and_wait(&replica, version, term, Vec::new()).await;
            }
            replica.group.transfer(to).await;
        }
    }

    /// Whether a group has a leader that a quorum has heard of late, as far as
    /// this node can tell.
    pub(crate) fn has_leader(&self, replica: &Replica) -> bool {
        let Some(leader) = replica.group.leader() else {
            return false;
        };
        if leader != self.me {
            return self.link.is_alive(leader);
        }
        if replica.group.is_quiet() {
            // It has no heartbeats: its members watch each other.
            let voters = replica.group.membership().voters;
            let alive = voters.iter().filter(|voter| self.link.is_alive(**voter));
            return 2 * alive.count() > voters.len();
        }
        let age = replica.group.quorum_age();
        age.is_some_and(|age| age < self.config.timing.election_max)
    }

    /// What keeps this member from serving a group that is placed on it.
    pub(crate) fn missing(&self, group: GroupId) -> Option<String> {
        if let Some(reason) = self.damaged.lock().get(&group) {
            return Some(format!("its replica is being rebuilt: {reason}"));
        }
        let Some(replica) = self.replica(group) else {
            let trouble = self.troubles.lock().get(&group).cloned();
            return Some(trouble.map_or_else(
                || "its replica is not open yet".to_owned(),
                |trouble| format!("its replica can't be opened: {trouble}"),
            ));
        };
        if let Some(stop) = replica.group.failure() {
            return Some(format!("its replica has stopped: {stop}"));
        }
        if !self.has_leader(&replica) {
            return Some("no leader".to_owned());
        }
        let counts = replica.group.counts();
        let behind = counts.committed.0.saturating_sub(counts.applied.0);
        (behind > BEHIND_ENTRIES_MAX).then(|| format!("{behind} entries behind"))
    }

    /// Who sequences, and in which epoch: the leader of the root group.
    pub(crate) fn sequencer(&self) -> Option<(Term, NodeId)> {
        let leadership = *self.root().group.leadership().borrow();
        leadership.leader.map(|leader| (leadership.term, leader))
    }

    pub(crate) async fn sequencer_known(&self) -> (Term, NodeId) {
        let mut leadership = self.root().group.leadership();
        loop {
            if let Some(known) = self.sequencer() {
                return known;
            }
            if leadership.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// How far a group is closed, as far as this node was told.
    pub(crate) fn closed(&self, group: GroupId) -> Revision {
        self.told.lock().closed(group)
    }

    /// Calls another node, or this one; queued when this returns.
    pub(crate) fn call<T: Wire>(
        &self,
        to: NodeId,
        message: &Message,
        within: Duration,
    ) -> impl Future<Output = Option<T>> + Send + use<T> {
        let answer = self.call_for(to, message, within);
        async move { answer.await.ok() }
    }

    /// The same, and why there is no answer.
    pub(crate) fn call_for<T: Wire>(
        &self,
        to: NodeId,
        message: &Message,
        within: Duration,
    ) -> impl Future<Output = Result<T, CallError>> + Send + use<T> {
        let answer = self.link.call(to, message.encode(), within);
        async move { T::decode(answer.await?).ok_or(CallError::Lost) }
    }

    /// An entry was applied by a replica here.
    pub(crate) fn entry_applied(
        &self,
        group: GroupId,
        store: &Arc<Store>,
        index: LogIndex,
        steps: &[Step],
    ) {
        if group.is_root() {
            self.root_applied_entry(store, index, steps);
        }
        if steps.iter().any(compare::is_about) {
            self.note_content(group, store, index);
        }
        if let Some(split) = split::made_by(steps) {
            self.watches.split(group, split.child, &split.keys);
            self.answers.split(group, split.child);
        }
        // (A snapshot has no steps, and may have brought anything.)
        if steps.is_empty() || steps.iter().any(split::is_about) {
            self.copies.news.notify_one();
        }
    }

    /// Takes over what the root group's store has, which stands still.
    pub(crate) fn read_root(&self, store: &Store) -> Result<(), EngineError> {
        let cluster = Cluster::read(store, self.config.newest_format)?;
        self.leases.read(store)?;
        self.cluster.send_replace(cluster);
        Ok(())
    }

    fn root_applied_entry(&self, store: &Arc<Store>, index: LogIndex, steps: &[Step]) {
        if steps.is_empty() {
            // A snapshot may have brought anything.
            if let Err(error) = self.read_root(store) {
                // What this node knows of the cluster would be wrong for good.
                match &*self.root.read() {
                    Some(root) if matches!(error, EngineError::Damaged { .. }) => {
                        root.group.report(&error);
                    }
                    _ => self.health.fail(format!("the root group's state: {error}")),
                }
            }
            return;
        }
        self.leases.follow(steps, &self.counters);
        self.cluster
            .send_if_modified(|cluster| cluster.follow(index, steps));
        let versions = self
            .cluster
            .borrow()
            .versions
            .check(self.config.newest_format);
        if let Err(too_old) = versions {
            self.health.fail(too_old.to_string());
        }
    }
}

impl Handler for Inner {
    fn told(&self, from: NodeId, message: Bytes) {
        match Message::decode(message) {
            Some(Message::Quiet { group, term, index }) => {
                self.rest_follower(from, group, term, index);
            }
            Some(Message::Failing) => {
                tracing::warn!(peer = %from, "the peer has failed");
                self.link.forsake(from);
                self.peer(from, PeerEvent::Suspected);
            }
            _ => {}
        }
    }

    fn called(&self, from: NodeId, message: Bytes, reply: Reply) {
        let Some(message) = Message::decode(message) else {
            tracing::warn!("node {from} sent a message that makes no sense");
            return;
        };
        let sequencing = || self.sequencing.current();
        match message {
            Message::Raft { group, body } => {
                if let Some(replica) = self.replica(group) {
                    let reply = Box::new(move |answer| reply.send(answer));
                    replica.group.receive(from, body, reply);
                }
            }
            Message::Hello(hello) => match sequencing() {
                Some(sequencing) => sequencing.hello(from, &hello, reply),
                None => reply.send(false.encode()),
            },
            Message::Ask(ask) => {
                if let Some(sequencing) = sequencing() {
                    sequencing.ask(ask, reply);
                }
            }
            Message::Resolved(resolved) => match sequencing() {
                Some(sequencing) => sequencing.resolved(&resolved, reply),
                None => reply.send(false.encode()),
            },
            Message::ReadPoint { epoch } => {
                if let Some(sequencing) = sequencing() {
                    sequencing.read_point(epoch, reply);
                }
            }
            Message::Marks(marks) => {
                let heard: Heard = self.told.lock().hear(&marks);
                self.progress.send_modify(|count| *count += 1);
                reply.send(heard.encode());
            }
            Message::Forward(forward) => {
                let Some(node) = self.this() else {
                    return;
                };
                self.scope.spawn(async move {
                    let outcome = node.serve_forwarded(from, forward).await;
                    reply.send(outcome.encode());
                });
            }
            Message::TxnAsk(ask) => {
                if let Some(sequencing) = sequencing() {
                    sequencing.txn(ask, reply);
                }
            }
            Message::TxnGrant(grant) => {
                if let Some(replica) = self.replica(grant.stamp.group) {
                    let _ = replica.notes.send(Note::TxnGrant { grant, reply });
                }
            }
            Message::SplitReady { child } => {
                let heard: Heard = self.copies.is_ready(child);
                reply.send(heard.encode());
            }
            Message::Compared { group, index } => {
                reply.send(self.content_at(group, index).encode());
            }
            Message::IsMember { node } => {
                let Some(this) = self.this() else {
                    return;
                };
                self.scope.spawn(async move {
                    reply.send(this.is_counted(node).await.encode());
                });
            }
            Message::TakesLeads => {
                let heard: Heard = self.takes_leads();
                reply.send(heard.encode());
            }
            Message::Sum {
                group,
                map,
                at,
                floor,
            } => {
                let Some(node) = self.this() else {
                    return;
                };
                self.scope.spawn(async move {
                    reply.send(node.sum_of(group, map, at, floor).encode());
                });
            }
            Message::Pull(pull) => {
                let Some(node) = self.this() else {
                    return;
                };
                // It may read from the disk.
                self.scope
                    .spawn(async move { reply.send(node.piece(&pull).encode()) });
            }
            Message::IsOpen { txn } => reply.send(self.is_open(txn).encode()),
            Message::Leads { groups } => reply.send(self.not_led(&groups).encode()),
            Message::Quiet { .. } | Message::Failing => {}
        }
    }

    fn peer(&self, peer: NodeId, event: PeerEvent) {
        let Some(node) = self.this() else {
            return;
        };
        tracing::info!("node {peer}: {event:?}");
        for replica in self.replicas.read().values() {
            replica.group.peer_lost(peer);
        }
        node.wake_groups(peer);
    }
}
