//! Splitting a range, as a node that has a replica of it sees it.
//!
//! A split is noted in the root group. Every replica of the parent then copies
//! the upper half while writes go on. When a quorum has, the parent's leader
//! stops evaluating, waits for all that is on its way, and proposes the entry
//! that makes the parent smaller; then the root group's map says so too. Each
//! replica that applies the entry completes its copy, which is the replica of
//! the child. What was split off stays in the parent until the child has
//! committed an entry of its own, so that a snapshot of the parent is enough
//! to make the child elsewhere.
//!
//! Kept true: a child's replica is made of the parent's state at the split
//! entry, or comes from the child's leader; never of anything else. Whether a
//! split happens is decided by the parent's log: it has the split entry, or an
//! entry that abandons it, whichever is first.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use parking_lot::Mutex;
use pontoon_engine::{Copying, EngineError, KeyRange, Step, Store};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use crate::cluster::Cluster;
use crate::codec::{Wire, wire};
use crate::error::Failure;
use crate::format::{self, Unreadable, seal};
use crate::message::{Answered, Heard, Message, Work};
use crate::mutation::{Mutation, mutated};
use crate::node::{Inner, NodeFailure};
use crate::opening::Claim;
use crate::position::{GroupId, LogIndex, NodeId, Term};
use crate::raft::{Begin, membership_record};
use crate::records;
use crate::replica::{Note, Replica};
use crate::route::Undone;

/// A split that was noted in the root group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Splitting {
    /// The group that becomes smaller.
    pub parent: GroupId,
    /// The group that gets the rest.
    pub child: GroupId,
    /// The first key of the child.
    pub key: Bytes,
}

wire!(struct Splitting { parent, child, key });

/// What the root group knows of splits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Splits {
    /// Group numbers from here on were never used.
    pub(crate) next: u64,
    pub(crate) under_way: Vec<Splitting>,
}

wire!(struct Splits { next, under_way });

/// What a parent's store keeps of a split until its upper half may go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SplitRecord {
    pub(crate) child: GroupId,
    pub(crate) keys: KeyRange,
    pub(crate) voters: Vec<NodeId>,
    pub(crate) learners: Vec<NodeId>,
}

wire!(struct SplitRecord { child, keys, voters, learners });

const PREFIX: &[u8] = b"split/";

/// The record of the last split that a parent has abandoned.
const ABANDONED: &[u8] = b"split-abandoned";

impl SplitRecord {
    fn open(content: Bytes) -> Result<Self, Unreadable> {
        format::open("split record", content)
    }

    /// The splits of a store whose upper halves are still in it.
    pub(crate) fn all(store: &Store) -> Result<Vec<Self>, EngineError> {
        records::read_all(store, PREFIX, |_, content| Self::open(content))
    }

    pub(crate) fn step(&self) -> Step {
        Step::Record {
            name: name(self.child),
            content: Some(seal(self)),
        }
    }
}

/// Forgets a split.
pub(crate) fn forget_step(child: GroupId) -> Step {
    Step::Record {
        name: name(child),
        content: None,
    }
}

/// Abandons a split for good, and all before it.
pub(crate) fn abandon_step(child: GroupId) -> Step {
    Step::Record {
        name: Bytes::from_static(ABANDONED),
        content: Some(seal(&child)),
    }
}

/// Children up to this one are not split off any more.
pub(crate) fn abandoned(store: &Store) -> Result<GroupId, EngineError> {
    let abandoned = records::read(store, ABANDONED, |content| {
        format::open("abandoned split", content)
    })?;
    Ok(abandoned.unwrap_or(GroupId::ROOT))
}

/// The split that an entry makes, if it does.
pub(crate) fn made_by(steps: &[Step]) -> Option<SplitRecord> {
    steps.iter().find_map(|step| match step {
        Step::Record {
            name,
            content: Some(content),
        } if name.starts_with(PREFIX) => SplitRecord::open(content.clone()).ok(),
        _ => None,
    })
}

/// Whether a record, if it is a split's, can be decoded.
pub(crate) fn can_read(name: &[u8], content: &Bytes) -> Result<(), Unreadable> {
    match name.starts_with(PREFIX) {
        true => SplitRecord::open(content.clone()).map(drop),
        false => Ok(()),
    }
}

/// Whether a step is about a split.
pub(crate) fn is_about(step: &Step) -> bool {
    matches!(step, Step::Record { name, .. } if name.starts_with(PREFIX))
}

fn name(child: GroupId) -> Bytes {
    let mut name = PREFIX.to_vec();
    child.put(&mut name);
    name.into()
}

/// The copies that are made on this node, by the child they are for.
#[derive(Default)]
pub(crate) struct Copies {
    under_way: Mutex<BTreeMap<GroupId, Arc<Copy>>>,
    /// There may be one to begin.
    pub(crate) news: Notify,
    /// There may be a replica to open.
    pub(crate) opens: Notify,
}

struct Copy {
    parent: GroupId,
    /// All that the parent had was copied at some time.
    ready: AtomicBool,
    /// The split entry is applied here.
    split: AtomicBool,
    /// It is made, or given up.
    over: tokio::sync::watch::Sender<bool>,
}

impl Copies {
    pub(crate) fn is_ready(&self, child: GroupId) -> bool {
        let copies = self.under_way.lock();
        let copy = copies.get(&child);
        copy.is_some_and(|copy| copy.ready.load(Ordering::Acquire))
    }

    /// Returns when no child is being made of this group's store as it stands.
    pub(crate) async fn all_made(&self, parent: GroupId) {
        loop {
            let waiting = {
                let copies = self.under_way.lock();
                let mut made = copies
                    .values()
                    .filter(|copy| copy.parent == parent && copy.split.load(Ordering::Acquire));
                made.find(|copy| !*copy.over.borrow())
                    .map(|copy| copy.over.subscribe())
            };
            let Some(mut waiting) = waiting else {
                return;
            };
            let _ = waiting.wait_for(|over| *over).await;
        }
    }
}

/// Between two looks at what changed since.
const FOLLOW_EVERY: Duration = Duration::from_millis(20);

/// Between two looks whether others are ready, and other things to repeat.
const RETRY: Duration = Duration::from_millis(50);

/// Elections that the parent's leader calls for the child in an election
/// timeout: the other replicas may be made a little later.
const ELECTIONS: u32 = 4;

/// Begins the copies that are to be made here, for as long as the node runs.
pub(crate) async fn tend(node: Arc<Inner>) {
    let mut cluster = node.cluster.subscribe();
    loop {
        let news = node.copies.news.notified();
        // A parent that has come past a split may leave its child to the map.
        node.copies.opens.notify_one();
        let under_way = cluster.borrow_and_update().splits.under_way.clone();
        let mut wanted: BTreeMap<GroupId, (GroupId, KeyRange)> = BTreeMap::new();
        for splitting in under_way {
            if let Some(parent) = node.replica(splitting.parent)
                && let Some(keys) = upper(&parent.group.store().bounds(), &splitting.key)
            {
                wanted.insert(splitting.child, (splitting.parent, keys));
            }
        }
        for parent in node.replicas() {
            match SplitRecord::all(&parent.group.store()) {
                Ok(records) => wanted.extend(
                    records
                        .into_iter()
                        .map(|record| (record.child, (parent.id, record.keys))),
                ),
                Err(error) => parent.group.report(&error),
            }
        }
        for (child, (parent, keys)) in wanted {
            if node.replica(child).is_none()
                && let Some(parent) = node.replica(parent)
                && let Some(claim) = node.claims.claim(child)
            {
                begin(&node, parent, child, keys, claim);
            }
        }
        tokio::select! {
            biased;
            changed = cluster.changed() => if changed.is_err() {
                return;
            },
            () = news => {},
        }
    }
}

/// What a split at `key` takes from a range.
pub(crate) fn upper(bounds: &KeyRange, key: &Bytes) -> Option<KeyRange> {
    (bounds.contains(key) && bounds.key < key).then(|| KeyRange {
        key: key.clone(),
        end: bounds.end.clone(),
    })
}

/// Begins to make a child's replica, unless there is one.
fn begin(node: &Arc<Inner>, parent: Arc<Replica>, child: GroupId, keys: KeyRange, claim: Claim) {
    // Under the claim nobody else opens it or changes its files.
    if node.replica(child).is_some()
        || node.has_tree(child) != Some(false)
        || node.damaged.lock().contains_key(&child)
    {
        return;
    }
    let copy = Arc::new(Copy {
        parent: parent.id,
        ready: AtomicBool::new(false),
        split: AtomicBool::new(false),
        over: tokio::sync::watch::Sender::new(false),
    });
    node.copies
        .under_way
        .lock()
        .insert(child, Arc::clone(&copy));
    let node = Arc::clone(node);
    node.scope.clone().spawn(async move {
        let outcome = make(&node, &parent, child, &keys, &copy).await;
        node.copies.under_way.lock().remove(&child);
        drop(claim);
        copy.over.send_replace(true);
        match outcome {
            Ok(replica) => return call_elections(&node, &parent, &replica).await,
            Err(NotMade::GaveUp(reason)) => {
                tracing::info!(%child, parent = %parent.id, reason, "no copy of the range");
            }
            Err(NotMade::Engine(error)) => node.split_failed(&parent, child, &error),
            Err(NotMade::Node(NodeFailure::Damaged(child, reason))) => node.mend(child, reason),
            Err(NotMade::Node(NodeFailure::Failed(fault))) => node.health.fail(fault.0),
            Err(NotMade::Node(error)) => {
                // Its tree is there: whoever follows the map opens it.
                tracing::warn!(%child, parent = %parent.id, %error, "the replica didn't open");
            }
        }
        // What was given up may be begun again.
        tokio::time::sleep(RETRY).await;
        node.copies.news.notify_one();
    });
}

/// Why the replica of a child was not made.
enum NotMade {
    /// It is not wanted any more, or the parent's store was replaced.
    GaveUp(String),
    /// The parent's store or the copy failed.
    Engine(EngineError),
    /// The copy is there, but could not be opened.
    Node(NodeFailure),
}

impl From<EngineError> for NotMade {
    fn from(error: EngineError) -> Self {
        Self::Engine(error)
    }
}

/// Makes the replica of a child.
async fn make(
    node: &Arc<Inner>,
    parent: &Arc<Replica>,
    child: GroupId,
    keys: &KeyRange,
    copy: &Arc<Copy>,
) -> Result<Arc<Replica>, NotMade> {
    let (done, copied) = oneshot::channel();
    let copier = Copier {
        node: Arc::downgrade(node),
        parent: Arc::clone(parent),
        store: parent.group.store(),
        child,
        keys: keys.clone(),
        copy: Arc::clone(copy),
    };
    let started = node.tend_store(
        child,
        Box::new(move || {
            Box::pin(async move {
                // Nobody waits any more: the node has ended.
                let _ = done.send(copier.run().await);
            })
        }),
    );
    started.map_err(NotMade::GaveUp)?;
    let gone = |_| NotMade::GaveUp("the copy has ended".to_owned());
    copied.await.map_err(gone)??;
    node.watches.split(parent.id, child, keys);
    node.answers.split(parent.id, child);
    let opened = node.open_replica(child, Begin::Born).await;
    opened.map_err(NotMade::Node)
}

/// The leader of the parent leads the child, unless that is too much for it.
async fn call_elections(node: &Arc<Inner>, parent: &Replica, child: &Replica) {
    for _ in 0..ELECTIONS {
        if parent.group.leader() != Some(node.me) || child.group.leader().is_some() {
            return;
        }
        child.group.elect().await;
        tokio::time::sleep(node.config.timing.election_min / ELECTIONS).await;
    }
}

/// Where the stores are tended.
struct Copier {
    node: Weak<Inner>,
    parent: Arc<Replica>,
    store: Arc<Store>,
    child: GroupId,
    keys: KeyRange,
    copy: Arc<Copy>,
}

impl Copier {
    async fn run(self) -> Result<(), NotMade> {
        let (disk, path, config) = {
            let node = self.node()?;
            let config = node.group_config(self.child);
            (node.disk(), config.path, config.store)
        };
        let keys = self.keys.clone();
        let mut copying = Copying::begin(&self.store, &disk, &path, config, keys)?;
        loop {
            while copying.advance()? {
                tokio::task::yield_now().await;
                self.look()?;
            }
            self.copy.ready.store(true, Ordering::Release);
            if let Some(record) = self.look()? {
                let voters = record.voters.into_iter().collect();
                let learners = record.learners.into_iter().collect();
                let record = membership_record(&voters, &learners);
                return Ok(copying.finish(&[record])?);
            }
            tokio::time::sleep(FOLLOW_EVERY).await;
        }
    }

    fn node(&self) -> Result<Arc<Inner>, NotMade> {
        let gone = || NotMade::GaveUp("the node has ended".to_owned());
        self.node.upgrade().ok_or_else(gone)
    }

    /// Whether to go on; the split, if its entry is applied.
    fn look(&self) -> Result<Option<SplitRecord>, NotMade> {
        let node = self.node()?;
        let records = SplitRecord::all(&self.store)?;
        let record = records
            .into_iter()
            .find(|record| record.child == self.child);
        if record.is_some() {
            self.copy.split.store(true, Ordering::Release);
            return Ok(record);
        }
        if !self.store.bounds().contains(&self.keys.key) {
            // The child stands on its own, and its leader brings it here.
            let reason = "its parent has dropped the upper half";
            return Err(NotMade::GaveUp(reason.to_owned()));
        }
        let parent = node.replica(self.parent.id);
        if parent.is_none_or(|parent| !Arc::ptr_eq(&parent, &self.parent)) {
            let reason = "its parent is not here any more";
            return Err(NotMade::GaveUp(reason.to_owned()));
        }
        if !Arc::ptr_eq(&self.store, &self.parent.group.store()) {
            let reason = "its parent was replaced by a snapshot";
            return Err(NotMade::GaveUp(reason.to_owned()));
        }
        let cluster = node.cluster.borrow();
        let mut wanted = cluster.splits.under_way.iter();
        match wanted.any(|splitting| splitting.child == self.child) {
            true => Ok(None),
            false => match &cluster.map {
                // The map has it, so the entry will come.
                Some(map) if map.keys_of(self.child).is_some() => Ok(None),
                _ => Err(NotMade::GaveUp("it is not wanted any more".to_owned())),
            },
        }
    }
}

impl Inner {
    /// Cuts a range in two; returns the group that has the second part, once
    /// the map says so.
    pub(crate) async fn split(
        self: &Arc<Self>,
        key: Bytes,
        deadline: Instant,
    ) -> Result<GroupId, Failure> {
        if key.is_empty() {
            return Err(pontoon_engine::Reject::EmptyKey.into());
        }
        loop {
            let map = self.map_known(deadline).await?;
            if let Some(group) = map.group_that_begins_with(&key) {
                return Ok(group);
            }
            let work = Work::Split { key: key.clone() };
            match self.work(GroupId::ROOT, map.version, work, deadline).await {
                Ok(done) => {
                    let Answered::Group(child) = done.answer else {
                        return Err(Failure::LeaderChanged);
                    };
                    return self.until_split(child, done.index, deadline).await;
                }
                Err(Undone::Moved) => {}
                // It may have been noted. To ask again is idempotent: a range
                // that begins with the key, or is about to, is not cut again.
                Err(Undone::Failed(Failure::LeaderChanged)) => self.pause(deadline).await?,
                Err(Undone::Failed(failure)) => return Err(failure),
            }
        }
    }

    /// Waits until the child of a noted split serves.
    async fn until_split(
        self: &Arc<Self>,
        child: GroupId,
        noted: LogIndex,
        deadline: Instant,
    ) -> Result<GroupId, Failure> {
        let mut cluster = self.cluster.subscribe();
        let is_over = |cluster: &Cluster| {
            let map = cluster.map.as_ref();
            let mapped = map.is_some_and(|map| map.keys_of(child).is_some());
            mapped
                || !cluster
                    .splits
                    .under_way
                    .iter()
                    .any(|one| one.child == child)
        };
        let over = async {
            self.root().group.wait_applied(noted).await;
            cluster.wait_for(is_over).await.is_ok()
        };
        match tokio::time::timeout_at(deadline, over).await {
            Ok(true) => {}
            Ok(false) => return Err(Failure::Stopped),
            Err(_) => return Err(Failure::TimedOut),
        }
        let map = self.map_known(deadline).await?;
        if map.keys_of(child).is_none() {
            return Err(Failure::SplitAbandoned);
        }
        let mut progress = self.progress.subscribe();
        loop {
            progress.mark_unchanged();
            if self.told.lock().knows(child) {
                return Ok(child);
            }
            match tokio::time::timeout_at(deadline, progress.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return Err(Failure::Stopped),
                Err(_) => return Err(Failure::TimedOut),
            }
        }
    }

    /// For the parent's leader: tells it when a quorum of its replicas has
    /// copied the upper half, this one or not.
    pub(crate) async fn prepare_split(
        self: &Arc<Self>,
        replica: &Arc<Replica>,
        term: Term,
        splitting: Splitting,
    ) {
        loop {
            tokio::time::sleep(RETRY).await;
            let leadership = replica.group.leadership_now();
            let noted = self.cluster.borrow().splits.under_way.contains(&splitting);
            if !leadership.ready || leadership.term != term || !noted {
                return;
            }
            if mutated(Mutation::SplitWaitsForOwnCopy) && !self.copies.is_ready(splitting.child) {
                continue;
            }
            let voters = replica.group.membership().voters;
            let message = Message::SplitReady {
                child: splitting.child,
            };
            let ready = voters.iter().map(|voter| {
                let heard = self.call::<Heard>(*voter, &message, self.timing.call);
                async move { heard.await.unwrap_or(false) }
            });
            let ready = join_all(ready).await.into_iter().filter(|ready| *ready);
            if 2 * ready.count() > voters.len() {
                break;
            }
        }
        let _ = replica.notes.send(Note::Split(splitting));
    }

    /// Has the root group forget a split that the parent's log has abandoned,
    /// however often it takes.
    pub(crate) async fn cancel_split(self: &Arc<Self>, splitting: Splitting) {
        let noted = || self.cluster.borrow().splits.under_way.contains(&splitting);
        while noted() {
            let work = Work::CancelSplit {
                parent: splitting.parent,
                child: splitting.child,
            };
            self.note_at_root(work).await;
            if noted() {
                tokio::time::sleep(RETRY).await;
            }
        }
    }

    /// Has the root group's leader note something about a split, if it can now.
    async fn note_at_root(self: &Arc<Self>, work: Work) {
        let deadline = Instant::now() + self.timing.call;
        if let Ok(map) = self.map_known(deadline).await
            && let Ok(done) = self.work(GroupId::ROOT, map.version, work, deadline).await
        {
            self.root_catches_up(done.index).await;
        }
    }

    /// What failed while a child was made.
    fn split_failed(&self, parent: &Replica, child: GroupId, error: &EngineError) {
        match error {
            EngineError::Disk { .. } if !error.is_no_space() => self.health.fail(error.to_string()),
            EngineError::Damaged { .. } => parent.group.report(error),
            _ => tracing::warn!(%child, parent = %parent.id, %error, "no copy of the range"),
        }
    }

    /// Has the root group's map say what the parent's log says already,
    /// however often it takes.
    pub(crate) async fn map_split(self: &Arc<Self>, parent: GroupId, child: GroupId) {
        let known = || {
            let cluster = self.cluster.borrow();
            let map = cluster.map.as_ref();
            map.is_some_and(|map| map.keys_of(child).is_some())
        };
        while !known() {
            self.note_at_root(Work::MapSplit { parent, child }).await;
            if !known() {
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

/// Between two looks whether a range has grown too large, or too busy.
const MEASURE_EVERY: Duration = Duration::from_secs(5);

/// How long a split that was begun by itself may take to be noted.
const NOTED_WITHIN: Duration = Duration::from_secs(60);

/// Splits ranges that this node leads when they are too large or too busy,
/// for as long as the node runs.
pub(crate) async fn watch_sizes(node: Arc<Inner>) {
    let mut written: BTreeMap<GroupId, u64> = BTreeMap::new();
    loop {
        tokio::time::sleep(MEASURE_EVERY).await;
        for replica in node.replicas() {
            let writes = replica.writes.load(Ordering::Relaxed);
            let before = written.insert(replica.id, writes).unwrap_or(writes);
            // A replica that was rebuilt counts from 0 again.
            let rate = writes.saturating_sub(before) / MEASURE_EVERY.as_secs();
            replica.writes_per_sec.store(rate, Ordering::Relaxed);
            if let Some(key) = node.should_split(&replica, rate) {
                tracing::info!("group {} is split at {key:?}", replica.id);
                let deadline = Instant::now() + NOTED_WITHIN;
                if let Err(failure) = node.split(key, deadline).await {
                    tracing::warn!("group {} was not split: {failure}", replica.id);
                }
            }
        }
    }
}

impl Inner {
    /// Where a range should be split, if it should.
    fn should_split(&self, replica: &Replica, rate: u64) -> Option<Bytes> {
        if replica.group.leader() != Some(self.me) {
            return None;
        }
        let cluster = self.cluster.borrow().clone();
        let map = cluster.map?;
        let mut under_way = cluster.splits.under_way.iter();
        let store = replica.group.store();
        if map.ranges().count() >= self.config.groups_max
            || under_way.any(|splitting| splitting.parent == replica.id)
            || !store.splits().is_empty()
            || store.is_shedding()
        {
            return None;
        }
        let (bytes, free) = store.file_bytes();
        let large = bytes.saturating_sub(free) > self.config.range_bytes_max;
        let busy = self.config.range_writes_max > 0 && rate > self.config.range_writes_max;
        if !large && !busy {
            return None;
        }
        match store.middle_key() {
            Ok(key) => key.filter(|key| map.group_that_begins_with(key).is_none()),
            Err(error) => {
                replica.group.report(&error);
                None
            }
        }
    }
}
