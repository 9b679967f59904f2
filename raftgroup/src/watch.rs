//! Watches: what happens to keys, in the order of revisions (rule 11).
//!
//! Kept true:
//! - Every event of the keys from the first revision on is delivered, once,
//!   in order, and all events of a revision together.
//! - Over several groups, only what all of them have closed is delivered.
//! - A watch holds no events of its own: it reads what the stores have. Only
//!   if a compaction is about to take what a watch that had caught up was not
//!   given yet, it is kept for it. What is kept is bounded, for a watch and for
//!   all watches of the node, and so is what is read to find it: a watch that
//!   is further behind is cancelled as compacted. Of groups that have no replica
//!   here it has what was pulled and not delivered yet (`watch/remote.rs`).

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::task::Poll;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use parking_lot::Mutex;
use pontoon_engine::{EngineError, Event, KeyRange, KeyValue, ReadBudget, Reject, Revision, Store};

use crate::map::within;
use crate::mutation::{Mutation, mutated};
use crate::node::Inner;
use crate::position::GroupId;
use crate::replica::Replica;

mod remote;

use remote::Pulled;
pub(crate) use remote::{PIECES_MAX, Piece, Pull};

/// What is to be watched.
#[derive(Clone, Debug)]
pub struct Watch {
    /// The keys.
    pub keys: KeyRange,
    /// The first revision; 0 and below: the next one.
    pub from: Revision,
    /// Whether events tell what was there before.
    pub prev_kv: bool,
}

/// What a watch gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// What happened, in order, with whole revisions.
    Events(Vec<Event>),
    /// The watch is over: what it should deliver next is compacted. This is
    /// the lowest revision that can be watched from.
    Compacted(Revision),
}

/// Bytes of events in a delivery, unless a single revision has more.
pub const DELIVERY_BYTES: usize = 64 << 10;

/// What is read for a delivery, unless a single revision is larger.
const DELIVERY: ReadBudget = ReadBudget {
    bytes_max: DELIVERY_BYTES,
    changes_max: 1 << 14,
};

/// Revisions of a delivery.
const DELIVERY_REVISIONS_MAX: i64 = 4096;

/// Bytes of events that are kept for a watch over a compaction.
const KEPT_BYTES_MAX: usize = 1 << 20;

/// Bytes of events that are kept for all watches of a node.
const KEPT_BYTES_TOTAL_MAX: usize = 32 << 20;

/// Changes that a compaction of a group looks at for all watches together: it
/// is applied meanwhile.
const KEPT_CHANGES_MAX: usize = 1 << 16;

/// A watch, from which deliveries are taken.
pub struct WatchStream {
    node: Arc<Inner>,
    place: Option<Arc<Place>>,
    wanted: Watch,
    /// Pieces in flight. They go on while nobody waits for a delivery.
    pulls: Mutex<FuturesUnordered<BoxFuture<'static, Came>>>,
}

/// What came of a pull.
struct Came {
    pull: Pull,
    piece: Option<Piece>,
}

/// Where the events of a part are.
enum Source {
    /// In the replica here.
    Here(Arc<Replica>),
    /// Only at other members.
    There(GroupId),
}

/// Where a watch stands.
struct Place {
    prev_kv: bool,
    state: Mutex<State>,
}

struct State {
    /// Where its keys are, and the version of the map that says so.
    parts: Vec<(GroupId, KeyRange)>,
    version: u64,
    /// All before this revision is delivered.
    next: Revision,
    /// It was given all there was, at some time since it fell behind.
    caught_up: bool,
    /// What a compaction took.
    kept: BTreeMap<GroupId, Kept>,
    /// What was pulled of groups that have no replica here.
    pulled: BTreeMap<GroupId, Pulled>,
}

/// Events that are in no store any more.
struct Kept {
    events: VecDeque<Event>,
    /// They reach to this revision.
    reach: Revision,
    bytes: usize,
    /// Bytes that are kept for all watches of the node.
    total: Arc<AtomicUsize>,
}

impl Kept {
    fn through(reach: Revision, total: &Arc<AtomicUsize>) -> Self {
        Self {
            events: VecDeque::new(),
            reach,
            bytes: 0,
            total: Arc::clone(total),
        }
    }

    fn extend(&mut self, events: Vec<Event>) {
        for event in events {
            let event = on_its_own(event);
            self.bytes += event.bytes();
            self.total.fetch_add(event.bytes(), Relaxed);
            self.events.push_back(event);
        }
    }

    /// The first event, if it isn't above a revision.
    fn pop_through(&mut self, through: Revision) -> Option<Event> {
        let event = self
            .events
            .pop_front_if(|event| event.change.revision <= through)?;
        self.bytes -= event.bytes();
        self.total.fetch_sub(event.bytes(), Relaxed);
        Some(event)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.total.fetch_sub(self.bytes, Relaxed);
    }
}

/// The event in memory of its own: parts of a larger buffer would hold all of
/// it.
fn on_its_own(mut event: Event) -> Event {
    let own = |kv: &mut KeyValue| {
        kv.key = Bytes::copy_from_slice(&kv.key);
        kv.value = Bytes::copy_from_slice(&kv.value);
    };
    own(&mut event.kv);
    event.prev_kv.as_mut().map(own);
    event
}

/// The watches of a node.
#[derive(Default)]
pub(crate) struct Watches {
    /// By the groups that they look at.
    places: Mutex<BTreeMap<GroupId, Vec<Weak<Place>>>>,
    kept_bytes: Arc<AtomicUsize>,
}

impl Inner {
    /// Watches that were not given all that they could be.
    pub(crate) fn watches_behind(&self) -> usize {
        let mut passed = BTreeMap::new();
        let mut passed_in = |group: GroupId| {
            let replica = || self.replica(group).map(|replica| self.passed(&replica));
            *passed.entry(group).or_insert_with(replica)
        };
        let places = self.watches.all().into_iter();
        let behind = places.filter(|place| {
            let (groups, next) = {
                let state = place.state.lock();
                let groups = state.parts.iter().map(|(group, _)| *group);
                (groups.collect::<Vec<_>>(), state.next)
            };
            // What one of its groups can't say, it can't be given.
            let passed = groups.into_iter().map(&mut passed_in).min().flatten();
            passed.is_some_and(|passed| next <= passed)
        });
        behind.count()
    }
}

impl Watches {
    /// All that are still there.
    fn all(&self) -> Vec<Arc<Place>> {
        let places = self.places.lock();
        let places = places.values().flatten().filter_map(Weak::upgrade);
        let places = places.map(|place| (Arc::as_ptr(&place), place));
        places.collect::<BTreeMap<_, _>>().into_values().collect()
    }

    fn add(&self, place: &Arc<Place>, groups: impl Iterator<Item = GroupId>) {
        let mut watches = self.places.lock();
        for group in groups {
            let places = watches.entry(group).or_default();
            if places.len().is_power_of_two() {
                places.retain(|place| place.strong_count() > 0);
            }
            places.push(Arc::downgrade(place));
        }
    }

    /// A part of a group's keys is in another group from now on.
    pub(crate) fn split(&self, parent: GroupId, child: GroupId, keys: &KeyRange) {
        let places: Vec<_> = {
            let watches = self.places.lock();
            let places = watches.get(&parent).into_iter().flatten();
            places.filter_map(Weak::upgrade).collect()
        };
        for place in places {
            if place.state.lock().split(parent, child, keys) {
                self.add(&place, std::iter::once(child));
            }
        }
    }

    /// The store is about to forget what is below `floor`. An error if it
    /// can't be read; then watches hear that it is compacted.
    pub(crate) fn keep_below(
        &self,
        group: GroupId,
        store: &Arc<Store>,
        floor: Revision,
    ) -> Result<(), EngineError> {
        let mut places: Vec<_> = {
            let watches = self.places.lock();
            let places = watches.get(&group).into_iter().flatten();
            places.filter_map(Weak::upgrade).collect()
        };
        // Those that lack least come first: the budget suffices for most.
        places.sort_by_cached_key(|place| Reverse(place.state.lock().next));
        let mut changes_left = KEPT_CHANGES_MAX;
        let kept = places.iter().map(|place| {
            let through = floor.previous();
            place.keep(group, store, through, &self.kept_bytes, &mut changes_left)
        });
        kept.fold(Ok(()), Result::and)
    }
}

impl WatchStream {
    pub(crate) fn new(node: &Arc<Inner>, wanted: Watch) -> Self {
        let mut stream = Self {
            node: Arc::clone(node),
            place: None,
            wanted,
            pulls: Mutex::default(),
        };
        // From now on, if that can be said already.
        stream.take_place();
        stream
    }

    /// Everything through this revision has been delivered.
    #[must_use]
    pub fn delivered(&self) -> Revision {
        let place = self.place.as_ref();
        place.map_or(Revision(0), |place| place.state.lock().next.previous())
    }

    /// The next delivery; `None` if the node has ended.
    pub async fn next(&mut self) -> Option<Delivery> {
        self.next_through(Revision(i64::MAX)).await
    }

    /// The next delivery, of events up to a revision only.
    pub async fn next_through(&mut self, last: Revision) -> Option<Delivery> {
        let next = self.next_in(last, || std::future::ready(()));
        next.await.map(|(delivery, _)| delivery)
    }

    /// The same, back-pressured: when there is something to read, and not
    /// before, `room` is awaited for it, and what that gives comes with the
    /// delivery. A delivery without events needs no room.
    pub async fn next_in<F: Future>(
        &mut self,
        last: Revision,
        room: impl Fn() -> F,
    ) -> Option<(Delivery, Option<F::Output>)> {
        let mut held = None;
        let mut progress = self.node.progress.subscribe();
        loop {
            progress.mark_unchanged();
            self.take_place();
            let mut applied = None;
            if let Some(place) = self.place.clone()
                && let Some(sources) = self.sources(&place)
            {
                // Before looking, so that nothing slips through.
                applied = match &sources[..] {
                    [Source::Here(only)] => Some(only.group.applied()),
                    _ => None,
                };
                if let Some(applied) = &mut applied {
                    applied.mark_unchanged();
                }
                match self.look(&place, &sources, last, held.is_some()) {
                    Looked::Found(delivery) => return Some((delivery, held)),
                    Looked::Due => {
                        held = Some(room().await);
                        continue;
                    }
                    Looked::More => {
                        tokio::task::yield_now().await;
                        continue;
                    }
                    Looked::Nothing => self.pull(&place, &sources),
                    // Its keys are elsewhere now, or will be.
                    Looked::Moved => {
                        applied = None;
                        if self.follow_map(&place) {
                            continue;
                        }
                    }
                }
            }
            held = None;
            let came = std::future::poll_fn(|context| {
                // An empty one is at its end, and says so.
                match self.pulls.lock().poll_next_unpin(context) {
                    Poll::Ready(None) => Poll::Pending,
                    came => came,
                }
            });
            let waited = match &mut applied {
                // A watch inside one group is given what is applied; but it
                // may be split, and its replica may go.
                Some(applied) => tokio::select! {
                    biased;
                    changed = applied.changed() => match changed {
                        Ok(()) => true,
                        Err(_) => progress.changed().await.is_ok(),
                    },
                    changed = self.node.cluster_changed() => changed,
                },
                None => tokio::select! {
                    biased;
                    came = came => match self.came(came) {
                        Some(compacted) => return Some((compacted, None)),
                        None => true,
                    },
                    changed = progress.changed() => changed.is_ok(),
                },
            };
            if !waited {
                return None;
            }
        }
    }

    /// Asks for pieces of the parts that are elsewhere and hold the others back.
    fn pull(&self, place: &Arc<Place>, sources: &[Source]) {
        let root = self.node.root_applied();
        let mut state = place.state.lock();
        let state = &mut *state;
        for (source, (group, keys)) in sources.iter().zip(&state.parts) {
            if matches!(source, Source::Here(_)) {
                continue;
            }
            let kept = state.kept.get(group).map(|kept| kept.reach);
            let pulled = state.pulled.entry(*group).or_default();
            let closed = self.node.closed(*group);
            let passed = pulled.passed(&self.node, *group, root);
            if pulled.asked || !pulled.is_empty() || closed <= passed {
                continue;
            }
            let from = match mutated(Mutation::NewSourceBeginsAnew) {
                true => state.next,
                false => begins(state.next, kept, Some(pulled)),
            };
            let pull = Pull {
                group: *group,
                map: state.version,
                keys: keys.clone(),
                from,
                prev_kv: place.prev_kv,
                caught_up: state.caught_up,
            };
            pulled.asked = true;
            let piece = self.node.pull(pull.clone(), pulled);
            let came = async move {
                let piece = piece.await;
                Came { pull, piece }
            };
            self.pulls.lock().push(Box::pin(came));
        }
    }

    /// Takes a piece that came, if it is what is wanted now.
    fn came(&self, came: Option<Came>) -> Option<Delivery> {
        let (Some(Came { pull, piece }), Some(place)) = (came, &self.place) else {
            return None;
        };
        let mut state = place.state.lock();
        let state = &mut *state;
        let kept = state.kept.get(&pull.group).map(|kept| kept.reach);
        let pulled = state.pulled.get_mut(&pull.group)?;
        pulled.asked = false;
        let asked = begins(state.next, kept, Some(pulled));
        let part = (pull.group, pull.keys);
        // (It may have been delivered what is before the piece without it, as
        // the closed marks said that there is nothing.)
        let is_wanted = state.version == pull.map && pull.from <= asked;
        let is_late = pull.from < asked && matches!(piece, Some(Piece::Compacted(_)));
        if !is_wanted || is_late || !state.parts.contains(&part) {
            return None;
        }
        let floor = pulled.came(asked, piece)?;
        Some(Delivery::Compacted(floor))
    }

    /// Looks for the keys where the map has them; `false` if that is no news.
    fn follow_map(&self, place: &Arc<Place>) -> bool {
        let map = self.node.cluster.borrow().map.clone();
        let Some(map) = map else {
            return false;
        };
        let mut state = place.state.lock();
        if map.version <= state.version {
            return false;
        }
        let parts = map.parts(&self.wanted.keys);
        let before = std::mem::replace(&mut state.parts, parts.clone());
        state.version = map.version;
        // What was kept of a range over a compaction counts for both halves.
        let mut new = Vec::new();
        for (group, keys) in parts {
            if before.iter().any(|(known, _)| *known == group) {
                continue;
            }
            new.push(group);
            let holder = before.iter().find(|(_, all)| all.overlaps(&keys));
            let pulled = holder.and_then(|(holder, _)| state.pulled.get(holder));
            if let Some(pulled) = pulled.map(Pulled::of_child) {
                state.pulled.entry(group).or_insert(pulled);
            }
            let kept = holder.and_then(|(holder, _)| state.kept.get(holder));
            if let Some(kept) = kept.map(|kept| Kept::through(kept.reach, &kept.total)) {
                state.kept.entry(group).or_insert(kept);
            }
        }
        drop(state);
        self.node.watches.add(place, new.into_iter());
        true
    }

    fn take_place(&mut self) {
        if self.place.is_some() {
            return;
        }
        let map = self.node.cluster.borrow().map.clone();
        let Some(map) = map else {
            return;
        };
        let parts = map.parts(&self.wanted.keys);
        let groups: Vec<_> = parts.iter().map(|(group, _)| *group).collect();
        let mut place = Place {
            prev_kv: self.wanted.prev_kv,
            state: Mutex::new(State {
                parts,
                version: map.version,
                next: self.wanted.from,
                caught_up: false,
                kept: BTreeMap::new(),
                pulled: BTreeMap::new(),
            }),
        };
        let Some(sources) = self.sources(&place) else {
            return;
        };
        let state = place.state.get_mut();
        let shown = self.shown(state, &sources);
        let covers = self.covers(state, &sources);
        if self.wanted.from.0 > 0 {
            state.caught_up = covers && shown.is_some_and(|shown| shown < state.next);
        } else {
            let Some(shown) = shown.filter(|_| covers) else {
                return;
            };
            // What a client was told of has happened before.
            let told = groups.iter().map(|group| self.node.answers.last(*group));
            let told = told.max().unwrap_or_default();
            state.next = shown.max(told).next();
            state.caught_up = true;
        }
        let place = Arc::new(place);
        self.node.watches.add(&place, groups.into_iter());
        self.place = Some(place);
    }

    /// Where the parts are; `None` if a replica that belongs here isn't open.
    fn sources(&self, place: &Place) -> Option<Vec<Source>> {
        let map = self.node.cluster.borrow().map.clone()?;
        let state = place.state.lock();
        let groups = state.parts.iter().map(|(group, _)| *group);
        let sources = groups.map(|group| {
            let placed = map.placed(group);
            let is_here = placed.is_none_or(|placed| placed.members.contains(&self.node.me));
            match self.node.replica(group) {
                Some(replica) if is_here => Some(Source::Here(replica)),
                None if is_here => None,
                _ => Some(Source::There(group)),
            }
        });
        sources.collect()
    }

    /// What all parts show here for good.
    fn passed(&self, state: &State, sources: &[Source]) -> Revision {
        let root = self.node.root_applied();
        let passed = sources.iter().map(|source| match source {
            Source::Here(replica) => self.node.passed(replica),
            Source::There(group) => {
                let pulled = state.pulled.get(group);
                pulled.map_or(Revision(0), |pulled| {
                    pulled.passed(&self.node, *group, root)
                })
            }
        });
        passed.min().unwrap_or_default()
    }

    /// The same, with what other members show of the parts that are there;
    /// `None` if nothing is known of one.
    fn shown(&self, state: &State, sources: &[Source]) -> Option<Revision> {
        let shown = sources.iter().map(|source| match source {
            Source::Here(replica) => self.node.passed(replica),
            Source::There(group) => {
                let pulled = state.pulled.get(group);
                let reach = pulled.map_or(Revision(0), |pulled| pulled.reach);
                self.node.closed(*group).max(reach)
            }
        });
        shown.min().filter(|shown| shown.0 > 0)
    }

    /// Whether the parts are those of the map, and of the replicas here. Asked
    /// after what they have passed was taken, it says that this was about all
    /// of the keys.
    fn covers(&self, state: &State, sources: &[Source]) -> bool {
        let mut pairs = sources.iter().zip(&state.parts);
        sources.len() == state.parts.len()
            && self.node.map_version() == Some(state.version)
            && pairs.all(|(source, (group, keys))| match source {
                Source::Here(replica) => {
                    replica.id == *group && within(keys, &replica.group.store().bounds())
                }
                Source::There(there) => there == group,
            })
    }

    fn look(&self, place: &Place, sources: &[Source], last: Revision, has_room: bool) -> Looked {
        let floor = self.node.floor();
        let mut state = place.state.lock();
        let passed = self.passed(&state, sources);
        let shown = self.shown(&state, sources);
        // After what was passed was taken: it is about all of the keys.
        if !self.covers(&state, sources) {
            return Looked::Moved;
        }
        if !state.caught_up && state.next < floor {
            return Looked::Found(Delivery::Compacted(floor));
        }
        if passed < state.next {
            // Also one that begins later was given all there is.
            state.caught_up |= shown.is_some_and(|shown| shown < state.next);
            return Looked::Nothing;
        }
        if last < state.next {
            return Looked::Nothing;
        }
        if !has_room {
            return Looked::Due;
        }
        let window = state.next.0.saturating_add(DELIVERY_REVISIONS_MAX - 1);
        let mut through = passed.min(last).min(Revision(window));
        let mut events = Vec::new();
        let parts = state.parts.clone();
        for (source, (group, keys)) in sources.iter().zip(&parts) {
            let Source::Here(replica) = source else {
                continue;
            };
            let kept = state.kept.get(group).map(|kept| kept.reach);
            let from = begins(state.next, kept, state.pulled.get(group));
            if from > through {
                continue;
            }
            let store = replica.group.store();
            let read = store.events_within(keys, from, through, place.prev_kv, DELIVERY);
            let read = read.and_then(|read| match read.through < from {
                // A revision is never split.
                true => Ok((store.events(keys, from, from, place.prev_kv)?, from)),
                false => Ok((read.events, read.through)),
            });
            match read {
                Ok((more, reach)) => {
                    events.extend(more);
                    through = reach;
                }
                Err(EngineError::Reject(Reject::Compacted)) => {
                    return Looked::Found(Delivery::Compacted(store.floor().max(floor)));
                }
                Err(EngineError::Undecided(_)) => return Looked::Nothing,
                Err(error) => {
                    replica.group.report(&error);
                    return Looked::Nothing;
                }
            }
        }
        if parts.len() > 1 || !state.kept.is_empty() || !state.pulled.is_empty() {
            events.retain(|event| event.change.revision <= through);
            state.take_kept(through, &mut events);
            state.take_pulled(through, sources, &mut events);
            events.sort_by_key(|event| event.change);
        }
        state.next = through.next();
        state.caught_up |= shown.is_some_and(|shown| shown <= through);
        match events.is_empty() {
            true => Looked::More,
            false => Looked::Found(Delivery::Events(events)),
        }
    }
}

/// The first revision of a part that is neither delivered, nor kept, nor pulled.
fn begins(next: Revision, kept: Option<Revision>, pulled: Option<&Pulled>) -> Revision {
    let reach = kept.max(pulled.map(|pulled| pulled.reach));
    next.max(reach.unwrap_or_default().next())
}

enum Looked {
    Found(Delivery),
    /// There are revisions to read, which needs room.
    Due,
    /// Nothing in these revisions, but there are more.
    More,
    Nothing,
    /// The keys are not where they were.
    Moved,
}

impl State {
    /// Looks for a part of its keys elsewhere; whether there is something.
    fn split(&mut self, parent: GroupId, child: GroupId, keys: &KeyRange) -> bool {
        let is_known = self.parts.iter().any(|(group, _)| *group == child);
        let at = self
            .parts
            .iter()
            .position(|(group, part)| *group == parent && part.overlaps(keys));
        let Some(at) = at.filter(|_| !is_known) else {
            return false;
        };
        let whole = self.parts[at].1.clone();
        let mut part = whole.clone();
        if whole.contains(&keys.key) && whole.key < keys.key {
            self.parts[at].1.end = keys.key.clone();
            part.key = keys.key.clone();
            self.parts.insert(at + 1, (child, part));
        } else {
            self.parts[at] = (child, part);
        }
        // What was kept of it over a compaction counts for both.
        if let Some(kept) = self.kept.get(&parent) {
            let kept = Kept::through(kept.reach, &kept.total);
            self.kept.insert(child, kept);
        }
        if let Some(pulled) = self.pulled.get(&parent).map(Pulled::of_child) {
            self.pulled.insert(child, pulled);
        }
        true
    }

    /// Takes what was pulled, also of a group that has a replica here by now.
    fn take_pulled(&mut self, through: Revision, sources: &[Source], events: &mut Vec<Event>) {
        let is_there = |group: &GroupId| {
            let mut sources = sources.iter();
            sources.any(|source| matches!(source, Source::There(there) if there == group))
        };
        self.pulled.retain(|group, pulled| {
            pulled.take(through, events);
            pulled.reach > through || is_there(group)
        });
    }

    /// Takes what was kept, also for a group that has none of the keys any more.
    fn take_kept(&mut self, through: Revision, events: &mut Vec<Event>) {
        self.kept.retain(|_, kept| {
            while let Some(event) = kept.pop_through(through) {
                events.push(event);
            }
            kept.reach > through
        });
    }
}

impl Place {
    /// Keeps what a watch that has caught up was not given yet; one for which
    /// that is too much is compared with the floor like any other.
    fn keep(
        &self,
        group: GroupId,
        store: &Arc<Store>,
        through: Revision,
        total: &Arc<AtomicUsize>,
        changes_left: &mut usize,
    ) -> Result<(), EngineError> {
        let mut state = self.state.lock();
        if !state.caught_up || state.next > through {
            return Ok(());
        }
        let parts = state.parts.iter().filter(|(part, _)| *part == group);
        let parts: Vec<_> = parts.cloned().collect();
        if parts.is_empty() {
            return Ok(());
        }
        let bounds = store.bounds();
        let kept = state.kept.remove(&group);
        let mut kept = kept.unwrap_or_else(|| Kept::through(Revision(0), total));
        let from = begins(state.next, Some(kept.reach), state.pulled.get(&group));
        if from > through {
            state.kept.insert(group, kept);
            return Ok(());
        }
        let others: usize = state.kept.values().map(|kept| kept.bytes).sum();
        for (_, keys) in &parts {
            let budget = ReadBudget {
                bytes_max: KEPT_BYTES_MAX
                    .saturating_sub(others + kept.bytes)
                    .min(KEPT_BYTES_TOTAL_MAX.saturating_sub(total.load(Relaxed))),
                changes_max: *changes_left,
            };
            let read = store.events_within(keys, from, through, self.prev_kv, budget);
            if let Ok(read) = &read {
                *changes_left -= read.changes;
            }
            match read {
                Ok(read) if read.through == through && within(keys, &bounds) => {
                    kept.extend(read.events);
                }
                // It is too slow, or a part of its keys is elsewhere, by a
                // snapshot that was past the split.
                found => {
                    state.caught_up = false;
                    state.kept.clear();
                    return found.map(|_| ());
                }
            }
        }
        kept.reach = through;
        state.kept.insert(group, kept);
        Ok(())
    }
}
