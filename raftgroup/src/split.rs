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
//! entry, or comes from the child's leader; never of anything else.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use pontoon_engine::{Copying, KeyRange, Step, Store};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use crate::codec::{Wire, wire};
use crate::error::Failure;
use crate::message::{Answered, Heard, Message, Work};
use crate::node::Inner;
use crate::position::{GroupId, NodeId, Term};
use crate::raft::{Begin, membership_record};
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

impl SplitRecord {
    /// The splits of a store whose upper halves are still in it.
    pub(crate) fn all(store: &Store) -> Vec<Self> {
        let mut found = Vec::new();
        let read = store.records(PREFIX, &mut |_, content| match Self::decode(
            Bytes::copy_from_slice(content),
        ) {
            Some(record) => found.push(record),
            None => tracing::error!("a split's record makes no sense"),
        });
        if let Err(error) = read {
            tracing::error!("splits: {error}");
        }
        found
    }

    pub(crate) fn step(&self) -> Step {
        Step::Record {
            name: name(self.child),
            content: Some(self.encode()),
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

/// The split that an entry makes, if it does.
pub(crate) fn made_by(steps: &[Step]) -> Option<SplitRecord> {
    steps.iter().find_map(|step| match step {
        Step::Record {
            name,
            content: Some(content),
        } if name.starts_with(PREFIX) => SplitRecord::decode(content.clone()),
        _ => None,
    })
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

/// After this long a leader that is ready itself doesn't wait for others.
const PATIENCE: Duration = Duration::from_secs(30);

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
            for record in SplitRecord::all(&parent.group.store()) {
                wanted.insert(record.child, (parent.id, record.keys));
            }
        }
        for (child, (parent, keys)) in wanted {
            if node.replica(child).is_none()
                && !node.has_tree(child)
                && !node.damaged.lock().contains_key(&child)
                && !node.copies.under_way.lock().contains_key(&child)
                && let Some(parent) = node.replica(parent)
            {
                begin(&node, parent, child, keys);
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

fn begin(node: &Arc<Inner>, parent: Arc<Replica>, child: GroupId, keys: KeyRange) {
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
    let made = Arc::clone(node);
    node.scope.spawn(async move {
        let outcome = make(&made, &parent, child, &keys, &copy).await;
        if let Err(reason) = outcome {
            tracing::warn!("group {child}, from group {}: {reason}", parent.id);
        }
        made.copies.under_way.lock().remove(&child);
        copy.over.send_replace(true);
        // What was given up may be begun again.
        tokio::time::sleep(RETRY).await;
        made.copies.news.notify_one();
    });
}

/// Makes the replica of a child.
async fn make(
    node: &Arc<Inner>,
    parent: &Arc<Replica>,
    child: GroupId,
    keys: &KeyRange,
    copy: &Arc<Copy>,
) -> Result<(), String> {
    let store = parent.group.store();
    let (done, copied) = oneshot::channel();
    let copier = Copier {
        node: Arc::downgrade(node),
        parent: Arc::clone(parent),
        store: Arc::clone(&store),
        child,
        keys: keys.clone(),
        copy: Arc::clone(copy),
    };
    drop(store);
    node.tend_store(
        child,
        Box::new(move || {
            Box::pin(async move {
                // Nobody waits any more: the node has ended.
                let _ = done.send(copier.run().await);
            })
        }),
    )?;
    let gone = |_| "the copy has ended".to_owned();
    copied.await.map_err(gone)??;
    node.watches.split(parent.id, child, keys);
    node.answers.split(parent.id, child);
    let replica = node
        .open_replica(child, Begin::Born)
        .await
        .map_err(|error| error.to_string())?;
    if parent.group.leader() == Some(node.me) {
        // Who led the parent leads the child, unless that is too much for it.
        replica.group.elect().await;
    }
    Ok(())
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
    async fn run(self) -> Result<(), String> {
        let (disk, path, config) = {
            let node = self.node.upgrade().ok_or("the node has ended")?;
            let config = node.group_config(self.child);
            (node.disk(), config.path, config.store)
        };
        let text = |error: pontoon_engine::EngineError| error.to_string();
        let keys = self.keys.clone();
        let mut copying = Copying::begin(&self.store, &disk, &path, config, keys).map_err(text)?;
        loop {
            while copying.advance().map_err(text)? {
                tokio::task::yield_now().await;
                self.look()?;
            }
            self.copy.ready.store(true, Ordering::Release);
            if let Some(record) = self.look()? {
                let voters = record.voters.into_iter().collect();
                let learners = record.learners.into_iter().collect();
                let record = membership_record(&voters, &learners);
                return copying.finish(&[record]).map_err(text);
            }
            tokio::time::sleep(FOLLOW_EVERY).await;
        }
    }

    /// Whether to go on; the split, if its entry is applied.
    fn look(&self) -> Result<Option<SplitRecord>, String> {
        let node = self.node.upgrade().ok_or("the node has ended")?;
        let records = SplitRecord::all(&self.store);
        let record = records
            .into_iter()
            .find(|record| record.child == self.child);
        if record.is_some() {
            self.copy.split.store(true, Ordering::Release);
            return Ok(record);
        }
        if !Arc::ptr_eq(&self.store, &self.parent.group.store()) {
            return Err("its parent was replaced by a snapshot".to_owned());
        }
        let cluster = node.cluster.borrow();
        let mut wanted = cluster.splits.under_way.iter();
        match wanted.any(|splitting| splitting.child == self.child) {
            true => Ok(None),
            false => match &cluster.map {
                // The map has it, so the entry will come.
                Some(map) if map.keys_of(self.child).is_some() => Ok(None),
                _ => Err("it is not wanted any more".to_owned()),
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
                    return self.until_split(child, deadline).await;
                }
                Err(Undone::Moved) => {}
                Err(Undone::Failed(failure)) => return Err(failure),
            }
        }
    }

    async fn until_split(&self, child: GroupId, deadline: Instant) -> Result<GroupId, Failure> {
        let mut cluster = self.cluster.subscribe();
        let has = |cluster: &crate::cluster::Cluster| {
            let map = cluster.map.as_ref();
            map.is_some_and(|map| map.keys_of(child).is_some())
        };
        match tokio::time::timeout_at(deadline, cluster.wait_for(has)).await {
            Ok(Ok(())) => Ok(child),
            Ok(Err(_)) => Err(Failure::Stopped),
            Err(_) => Err(Failure::TimedOut),
        }
    }

    /// For the parent's leader: returns when a quorum of its replicas has
    /// copied the upper half, and tells it.
    pub(crate) async fn prepare_split(
        self: &Arc<Self>,
        replica: &Arc<Replica>,
        term: Term,
        splitting: Splitting,
    ) {
        let begun = Instant::now();
        loop {
            tokio::time::sleep(RETRY).await;
            let leadership = *replica.group.leadership().borrow();
            if !leadership.ready || leadership.term != term {
                return;
            }
            if !self.copies.is_ready(splitting.child) {
                continue;
            }
            let voters = replica.group.membership().voters;
            let mut ready = usize::from(voters.contains(&self.me));
            for voter in voters.iter().filter(|voter| **voter != self.me) {
                let message = Message::SplitReady {
                    child: splitting.child,
                };
                let heard: Heard = self
                    .call(*voter, &message, self.timing.call)
                    .await
                    .unwrap_or(false);
                ready += usize::from(heard);
            }
            if 2 * ready > voters.len() || begun.elapsed() > PATIENCE {
                break;
            }
        }
        let _ = replica.notes.send(Note::Split(splitting));
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
            let deadline = Instant::now() + self.timing.call;
            let work = Work::MapSplit { parent, child };
            if let Ok(map) = self.map_known(deadline).await {
                let done = self.work(GroupId::ROOT, map.version, work, deadline).await;
                if let Ok(done) = done {
                    self.root_catches_up(done.index).await;
                }
            }
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
            let rate = (writes - before) / MEASURE_EVERY.as_secs();
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
