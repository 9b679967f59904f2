//! Watches: what happens to keys, in the order of revisions (rule 11).
//!
//! Kept true:
//! - Every event of the keys from the first revision on is delivered, once,
//!   in order, and all events of a revision together.
//! - Over several groups, only what all of them have closed is delivered.
//! - A watch holds no events of its own: it reads what the stores have. Only
//!   if a compaction is about to take what a watch that had caught up was not
//!   given yet, it is kept for it, up to a limit.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use pontoon_engine::{EngineError, Event, KeyRange, Reject, Revision, Store};

use crate::map::within;
use crate::node::Inner;
use crate::position::GroupId;
use crate::replica::Replica;

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

/// Bytes of events that are read in one go, about.
const CHUNK_BYTES: usize = 256 << 10;

/// Revisions that are read in one go at most.
const WINDOW_MAX: i64 = 4096;

/// Bytes of events that are kept for a watch over a compaction.
const KEPT_BYTES_MAX: usize = 1 << 20;

/// A watch, from which deliveries are taken.
pub struct WatchStream {
    node: Arc<Inner>,
    place: Option<Arc<Place>>,
    wanted: Watch,
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
    /// Revisions to read in one go.
    window: i64,
    /// Events that a compaction took, with the revision they reach to.
    kept: BTreeMap<GroupId, (VecDeque<Event>, Revision)>,
}

/// The watches of a node, by the groups that they look at.
#[derive(Default)]
pub(crate) struct Watches(Mutex<BTreeMap<GroupId, Vec<Weak<Place>>>>);

impl Watches {
    fn add(&self, place: &Arc<Place>, groups: impl Iterator<Item = GroupId>) {
        let mut watches = self.0.lock();
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
            let watches = self.0.lock();
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
        let places: Vec<_> = {
            let watches = self.0.lock();
            let places = watches.get(&group).into_iter().flatten();
            places.filter_map(Weak::upgrade).collect()
        };
        let kept = places
            .iter()
            .map(|place| place.keep(group, store, floor.previous()));
        kept.fold(Ok(()), Result::and)
    }
}

impl WatchStream {
    pub(crate) fn new(node: &Arc<Inner>, wanted: Watch) -> Self {
        let mut stream = Self {
            node: Arc::clone(node),
            place: None,
            wanted,
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
        let mut progress = self.node.progress.subscribe();
        loop {
            progress.mark_unchanged();
            self.take_place();
            let mut applied = None;
            if let Some(place) = self.place.clone()
                && let Some(replicas) = self.replicas(&place)
            {
                // Before looking, so that nothing slips through.
                applied = match &replicas[..] {
                    [only] => Some(only.group.applied()),
                    _ => None,
                };
                if let Some(applied) = &mut applied {
                    applied.mark_unchanged();
                }
                match self.look(&place, &replicas) {
                    Looked::Found(delivery) => return Some(delivery),
                    Looked::More => {
                        tokio::task::yield_now().await;
                        continue;
                    }
                    Looked::Nothing => {}
                    // Its keys are elsewhere now, or will be.
                    Looked::Moved => {
                        applied = None;
                        if self.follow_map(&place) {
                            continue;
                        }
                    }
                }
            }
            let waited = match &mut applied {
                // A watch inside one group is given what is applied; but it
                // may be split.
                Some(applied) => tokio::select! {
                    biased;
                    changed = applied.changed() => changed.is_ok(),
                    changed = self.node.cluster_changed() => changed,
                },
                None => progress.changed().await.is_ok(),
            };
            if !waited {
                return None;
            }
        }
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
            let reach = holder.and_then(|(holder, _)| state.kept.get(holder));
            if let Some(reach) = reach.map(|(_, reach)| *reach) {
                state.kept.entry(group).or_insert((VecDeque::new(), reach));
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
                window: 64,
                kept: BTreeMap::new(),
            }),
        };
        let Some(replicas) = self.replicas(&place) else {
            return;
        };
        if self.wanted.from.0 > 0 {
            let passed = self.passed(&replicas);
            let state = place.state.get_mut();
            let covers = self.node.covers(state.version, &state.parts, &replicas);
            state.caught_up = covers && passed < state.next;
        } else {
            // What a client was told of has happened before.
            let told = replicas
                .iter()
                .map(|replica| self.node.answers.last(replica.id));
            let told = told.max().unwrap_or_default();
            let passed = self.passed(&replicas);
            let state = place.state.get_mut();
            if !self.node.covers(state.version, &state.parts, &replicas) {
                return;
            }
            state.next = passed.max(told).next();
            state.caught_up = true;
        }
        let place = Arc::new(place);
        self.node.watches.add(&place, groups.into_iter());
        self.place = Some(place);
    }

    fn replicas(&self, place: &Place) -> Option<Vec<Arc<Replica>>> {
        let state = place.state.lock();
        let groups = state.parts.iter();
        let replicas = groups.map(|(group, _)| self.node.replica(*group));
        replicas.collect()
    }

    /// What all parts show for good.
    fn passed(&self, replicas: &[Arc<Replica>]) -> Revision {
        let passed = replicas.iter().map(|replica| self.node.passed(replica));
        passed.min().unwrap_or_default()
    }

    fn look(&self, place: &Place, replicas: &[Arc<Replica>]) -> Looked {
        let passed = self.passed(replicas);
        let floor = self.node.floor();
        let mut state = place.state.lock();
        // After what was passed was taken: it is about all of the keys.
        if !self.node.covers(state.version, &state.parts, replicas) {
            return Looked::Moved;
        }
        if !state.caught_up && state.next < floor {
            return Looked::Found(Delivery::Compacted(floor));
        }
        if passed < state.next {
            // Also one that begins later was given all there is.
            state.caught_up = true;
            return Looked::Nothing;
        }
        let through = passed.min(Revision(state.next.0.saturating_add(state.window - 1)));
        let mut events = Vec::new();
        let parts = state.parts.clone();
        for (replica, (group, keys)) in replicas.iter().zip(&parts) {
            let kept = state.kept.get(group);
            let from = kept.map_or(state.next, |(_, reach)| reach.next().max(state.next));
            if from > through {
                continue;
            }
            let store = replica.group.store();
            match store.events(keys, from, through, place.prev_kv) {
                Ok(more) => events.extend(more),
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
        if parts.len() > 1 || !state.kept.is_empty() {
            state.take_kept(through, &mut events);
            events.sort_by_key(|event| event.change);
        }
        state.next = through.next();
        state.caught_up |= through == passed;
        state.adapt(&events);
        match events.is_empty() {
            true => Looked::More,
            false => Looked::Found(Delivery::Events(events)),
        }
    }
}

enum Looked {
    Found(Delivery),
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
        if let Some((_, reach)) = self.kept.get(&parent) {
            let reach = *reach;
            self.kept.insert(child, (VecDeque::new(), reach));
        }
        true
    }

    /// Takes what was kept, also for a group that has none of the keys any more.
    fn take_kept(&mut self, through: Revision, events: &mut Vec<Event>) {
        self.kept.retain(|_, (kept, reach)| {
            while let Some(event) = kept.pop_front_if(|event| event.change.revision <= through) {
                events.push(event);
            }
            *reach > through
        });
    }

    /// Reads more revisions at a time where little happens.
    fn adapt(&mut self, events: &[Event]) {
        let bytes = events.iter().map(event_bytes).sum::<usize>();
        if bytes > CHUNK_BYTES {
            self.window = (self.window / 2).max(1);
        } else if bytes < CHUNK_BYTES / 4 {
            self.window = (self.window * 2).min(WINDOW_MAX);
        }
    }
}

impl Place {
    /// Keeps what a watch that has caught up was not given yet.
    fn keep(
        &self,
        group: GroupId,
        store: &Arc<Store>,
        through: Revision,
    ) -> Result<(), EngineError> {
        let mut state = self.state.lock();
        if !state.caught_up || state.next > through {
            return Ok(());
        }
        let next = state.next;
        let parts = state.parts.iter().filter(|(part, _)| *part == group);
        let parts: Vec<_> = parts.cloned().collect();
        if parts.is_empty() {
            return Ok(());
        }
        let bounds = store.bounds();
        let (mut events, reach) = state.kept.remove(&group).unwrap_or_default();
        for (_, keys) in &parts {
            let from = next.max(reach.next());
            match store.events(keys, from, through, self.prev_kv) {
                Ok(more) if within(keys, &bounds) => events.extend(more),
                // A part of it is elsewhere, by a snapshot that was past the split.
                found => {
                    state.caught_up = false;
                    return found.map(|_| ());
                }
            }
        }
        if events.iter().map(event_bytes).sum::<usize>() > KEPT_BYTES_MAX {
            // Too slow: it is compared with the floor like any other.
            state.caught_up = false;
            state.kept.clear();
            return Ok(());
        }
        state.kept.insert(group, (events, through));
        Ok(())
    }
}

fn event_bytes(event: &Event) -> usize {
    let prev = event
        .prev_kv
        .as_ref()
        .map_or(0, |kv| kv.key.len() + kv.value.len());
    size_of::<Event>() + event.kv.key.len() + event.kv.value.len() + prev
}
