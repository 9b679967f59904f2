//! What happened to keys, for watchers.
//!
//! Kept true: the events of a revision are told all or not at all, in the
//! order of its changes, and the newest ones, kept in memory, are the same
//! that the tables would tell.

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;

use crate::error::{EngineError, Reject};
use crate::keys::KeyRange;
use crate::position::{Change, Revision};
use crate::read::change_at;
use crate::request::KeyValue;
use crate::store::{Facts, Store, Tables};
use crate::tables::{Kind, Table, change_key};
use crate::version::{ChangeRecord, Version};

/// Whether a key was put or deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// It has another version.
    Put,
    /// It is gone.
    Delete,
}

/// One change of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// When.
    pub change: Change,
    /// What.
    pub kind: EventKind,
    /// The new version; of a deleted key just the key and the mod revision.
    pub kv: KeyValue,
    /// The version before this revision, if it was asked for, there is one,
    /// and it is not compacted.
    pub prev_kv: Option<KeyValue>,
}

impl Event {
    /// What it takes in memory, about.
    #[must_use]
    pub fn bytes(&self) -> usize {
        size_of::<Self>() + kv_bytes(&self.kv) + self.prev_kv.as_ref().map_or(0, kv_bytes)
    }
}

fn kv_bytes(kv: &KeyValue) -> usize {
    kv.key.len() + kv.value.len()
}

/// An event in memory.
#[derive(Clone, Debug)]
pub(crate) struct RecentEvent {
    pub(crate) change: Change,
    pub(crate) created: bool,
    /// As in [`Event`]; a version of 0 marks a deletion.
    pub(crate) kv: KeyValue,
}

impl RecentEvent {
    fn bytes(&self) -> usize {
        size_of::<Self>() + kv_bytes(&self.kv)
    }
}

/// The newest events.
pub(crate) struct Recent {
    events: VecDeque<RecentEvent>,
    bytes: usize,
    bytes_max: usize,
    /// All events above this revision are here.
    after: Revision,
}

impl Recent {
    pub(crate) fn after(revision: Revision, bytes_max: usize) -> Self {
        Self {
            events: VecDeque::new(),
            bytes: 0,
            bytes_max,
            after: revision,
        }
    }

    /// Adds the events of an entry; those of a transaction that was decided
    /// late find their place.
    pub(crate) fn add(&mut self, events: &mut Vec<RecentEvent>) {
        for event in events.drain(..) {
            if event.change.revision <= self.after {
                continue;
            }
            self.bytes += event.bytes();
            let place = match self.events.back() {
                Some(last) if last.change > event.change => self
                    .events
                    .partition_point(|other| other.change < event.change),
                _ => self.events.len(),
            };
            self.events.insert(place, event);
        }
        while self.bytes > self.bytes_max
            && let Some(event) = self.events.pop_front()
        {
            self.bytes -= event.bytes();
            self.after = event.change.revision;
        }
    }

    /// Events of the wanted keys in these revisions, if all of them are here,
    /// as far as the budget reaches.
    fn read(
        &self,
        wanted: &Wanted<'_>,
        from: Revision,
        budget: &mut Budget,
    ) -> Option<Vec<RecentEvent>> {
        if from <= self.after {
            return None;
        }
        let start = self
            .events
            .partition_point(|event| event.change.revision < from);
        let mut found = Vec::new();
        for event in self.events.range(start..) {
            if event.change.revision > wanted.through || !budget.scan(event.change) {
                break;
            }
            if !wanted.keys.contains(&event.kv.key) {
                continue;
            }
            let bytes = size_of::<Event>() + kv_bytes(&event.kv);
            if !budget.take(event.change, bytes) {
                break;
            }
            found.push(event.clone());
        }
        Some(found)
    }
}

/// How much may be read at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadBudget {
    /// Bytes of events.
    pub bytes_max: usize,
    /// Changes that are looked at, of whichever keys.
    pub changes_max: usize,
}

impl ReadBudget {
    /// No bound.
    pub const UNBOUNDED: Self = Self {
        bytes_max: usize::MAX,
        changes_max: usize::MAX,
    };
}

/// Events of whole revisions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventsRead {
    /// In order.
    pub events: Vec<Event>,
    /// All events through this revision are among them.
    pub through: Revision,
    /// Changes that were looked at.
    pub changes: usize,
}

/// What is left of a [`ReadBudget`].
struct Budget {
    bytes: usize,
    changes: usize,
    /// The change for which it didn't suffice.
    exceeded: Option<Change>,
}

impl Budget {
    fn of(budget: ReadBudget) -> Self {
        Self {
            bytes: budget.bytes_max,
            changes: budget.changes_max,
            exceeded: None,
        }
    }

    /// The whole revisions of what was read.
    fn read(self, of: ReadBudget, mut events: Vec<Event>, through: Revision) -> EventsRead {
        let through = match self.exceeded {
            Some(change) => change.revision.previous(),
            None => through,
        };
        if self.exceeded.is_some() {
            events.retain(|event| event.change.revision <= through);
        }
        EventsRead {
            events,
            through,
            changes: of.changes_max - self.changes,
        }
    }

    fn scan(&mut self, change: Change) -> bool {
        if self.exceeded.is_none() && self.changes == 0 {
            self.exceeded = Some(change);
        }
        self.changes = self.changes.saturating_sub(1);
        self.exceeded.is_none()
    }

    /// Whether there are as many bytes left. It may be asked for a change
    /// before the one at which something else was exceeded.
    fn take(&mut self, change: Change, bytes: usize) -> bool {
        if let Some(left) = self.bytes.checked_sub(bytes) {
            self.bytes = left;
            return true;
        }
        self.exceeded = Some(change);
        false
    }
}

/// Changes that are read before writers get in.
const STRETCH_CHANGES: usize = if cfg!(feature = "shuttle") { 2 } else { 256 };

/// What is asked for.
struct Wanted<'a> {
    keys: &'a KeyRange,
    through: Revision,
    prev_kv: bool,
    /// The floor when it was asked for. If it rises, that doesn't matter to
    /// an answer that is on its way.
    floor: Revision,
}

impl Store {
    /// The events of `keys` from one revision through another, in order.
    /// Refused if some of them are compacted, or not decided yet.
    pub fn events(
        &self,
        keys: &KeyRange,
        from: Revision,
        through: Revision,
        prev_kv: bool,
    ) -> Result<Vec<Event>, EngineError> {
        let all = self.events_within(keys, from, through, prev_kv, ReadBudget::UNBOUNDED)?;
        Ok(all.events)
    }

    /// The same, but only of the first revisions whose events fit into the
    /// budget: none, if those of the first don't. The memory and the time that
    /// it takes are bounded by the budget.
    pub fn events_within(
        &self,
        keys: &KeyRange,
        from: Revision,
        through: Revision,
        prev_kv: bool,
        budget: ReadBudget,
    ) -> Result<EventsRead, EngineError> {
        let mut left = Budget::of(budget);
        let events = self.read_events(keys, from, through, prev_kv, &mut left)?;
        Ok(left.read(budget, events, through))
    }

    /// What the budget suffices for.
    fn read_events(
        &self,
        keys: &KeyRange,
        from: Revision,
        through: Revision,
        prev_kv: bool,
        budget: &mut Budget,
    ) -> Result<Vec<Event>, EngineError> {
        let (wanted, _pin) = {
            let tables = self.tables.read();
            let Facts {
                floor, revision, ..
            } = tables.facts;
            if from < floor {
                return Err(Reject::Compacted.into());
            }
            let undecided = tables.staged.keys().next();
            if let Some(revision) = undecided.filter(|first| **first <= through) {
                return Err(EngineError::Undecided(*revision));
            }
            let through = through.min(revision);
            // Also what was there right before the first of them.
            let pin = self.pin_read(from.previous().max(floor));
            (
                Wanted {
                    keys,
                    through,
                    prev_kv,
                    floor,
                },
                pin,
            )
        };
        // Before the first compaction the floor is below all revisions.
        let from = from.max(Revision::FIRST);
        let mut events = Vec::new();
        let recent = self.recent.lock().read(&wanted, from, budget);
        if let Some(recent) = recent {
            let tables = self.tables.read();
            for event in recent {
                let event = tables.complete(event, &wanted)?;
                let prev = event.prev_kv.as_ref().map_or(0, kv_bytes);
                if !budget.take(event.change, prev) {
                    break;
                }
                events.push(event);
            }
        } else {
            let mut next = Some(Change {
                revision: from,
                sub: 0,
            });
            while let Some(change) = next {
                next = self
                    .tables
                    .read()
                    .add_events(change, &wanted, budget, &mut events)?;
            }
        }
        self.tables.read().forget(&wanted, &mut events)?;
        Ok(events)
    }
}

impl Store {
    /// As [`Store::events_within`], of what is in memory, also if it is
    /// compacted: of that it tells no version before. `None` if some of it is
    /// not in memory.
    pub fn recent_events_within(
        &self,
        keys: &KeyRange,
        from: Revision,
        through: Revision,
        prev_kv: bool,
        budget: ReadBudget,
    ) -> Result<Option<EventsRead>, EngineError> {
        let tables = self.tables.read();
        let undecided = tables.staged.keys().next();
        if let Some(revision) = undecided.filter(|first| **first <= through) {
            return Err(EngineError::Undecided(*revision));
        }
        let wanted = Wanted {
            keys,
            through: through.min(tables.facts.revision),
            prev_kv,
            floor: tables.facts.floor,
        };
        let mut left = Budget::of(budget);
        let from = from.max(Revision::FIRST);
        let Some(recent) = self.recent.lock().read(&wanted, from, &mut left) else {
            return Ok(None);
        };
        let events = recent
            .into_iter()
            .map(|event| tables.complete(event, &wanted));
        let events = events.collect::<Result<_, _>>()?;
        Ok(Some(left.read(budget, events, through)))
    }
}

impl Tables {
    /// An event from memory, with what only the tables know.
    fn complete(&self, event: RecentEvent, wanted: &Wanted<'_>) -> Result<Event, EngineError> {
        let deleted = event.kv.version == 0;
        let raw = change_key(event.change);
        let record = match wanted.prev_kv && !event.created {
            true => self.get(Table::Changes, &raw)?,
            false => None,
        };
        let prev_kv = match record {
            Some(item) => self.prev_kv(event.change, &self.change_record(&raw, item)?, wanted)?,
            None => None,
        };
        Ok(Event {
            change: event.change,
            kind: if deleted {
                EventKind::Delete
            } else {
                EventKind::Put
            },
            kv: event.kv,
            prev_kv,
        })
    }

    /// Appends events of some changes; returns the change to go on with.
    fn add_events(
        &self,
        from: Change,
        wanted: &Wanted<'_>,
        budget: &mut Budget,
        events: &mut Vec<Event>,
    ) -> Result<Option<Change>, EngineError> {
        let mut cursor = self.seek(Table::Changes, &change_key(from))?;
        let mut raw = Vec::new();
        for _ in 0..STRETCH_CHANGES {
            if !cursor.key_into(&mut raw) {
                return Ok(None);
            }
            let change = change_at(self, &raw)?;
            if change.revision > wanted.through || !budget.scan(change) {
                return Ok(None);
            }
            let item = cursor.item().expect("there is a key");
            let record = self.change_record(&raw, item)?;
            // (Of what is being shed only parts may be left.)
            if wanted.keys.contains(record.key) && !self.facts.is_shed(record.key) {
                let event = self.event(change, &record, wanted)?;
                if let Some(event) = &event
                    && !budget.take(change, event.bytes())
                {
                    return Ok(None);
                }
                events.extend(event);
            }
            cursor.next()?;
        }
        Ok(match cursor.key_into(&mut raw) {
            true => Some(change_at(self, &raw)?),
            false => None,
        })
    }

    /// The event of a change; none if nothing is left of it.
    fn event(
        &self,
        change: Change,
        record: &ChangeRecord<'_>,
        wanted: &Wanted<'_>,
    ) -> Result<Option<Event>, EngineError> {
        let key = record.key;
        let (kind, kv) = match record.kind {
            Kind::Delete => (
                EventKind::Delete,
                KeyValue {
                    key: Bytes::copy_from_slice(key),
                    modified: change.revision,
                    ..KeyValue::default()
                },
            ),
            Kind::Create | Kind::Update => match self.version_of(key, change)? {
                Some(version) => (EventKind::Put, version.kv(key, &self.pages)?.to_owned()),
                // Superseded in the same revision, and swept.
                None if change.revision <= wanted.floor => return Ok(None),
                None => return Err(self.damaged_record(Table::Changes, key)),
            },
        };
        let prev_kv = match wanted.prev_kv && record.kind != Kind::Create {
            true => self.prev_kv(change, record, wanted)?,
            false => None,
        };
        Ok(Some(Event {
            change,
            kind,
            kv,
            prev_kv,
        }))
    }

    /// Leaves out what is forgotten of the floor's own revision: all that it
    /// did to a key but the last, swept or not.
    fn forget(&self, wanted: &Wanted<'_>, events: &mut Vec<Event>) -> Result<(), EngineError> {
        let floor = wanted.floor;
        if events
            .first()
            .is_none_or(|first| first.change.revision > floor)
        {
            return Ok(());
        }
        let mut last = HashMap::new();
        let start = Change {
            revision: floor,
            sub: 0,
        };
        let mut cursor = self.seek(Table::Changes, &change_key(start))?;
        let mut raw = Vec::new();
        while cursor.key_into(&mut raw) {
            let change = change_at(self, &raw)?;
            if change.revision > floor {
                break;
            }
            let item = cursor.item().expect("there is a key");
            let key = self.change_record(&raw, item)?.key;
            if wanted.keys.contains(key) {
                last.insert(key, change);
            }
            cursor.next()?;
        }
        events.retain(|event| {
            event.change.revision > floor || last.get(&event.kv.key[..]) == Some(&event.change)
        });
        Ok(())
    }

    /// The version that a put made.
    pub(crate) fn version_of(
        &self,
        key: &[u8],
        change: Change,
    ) -> Result<Option<Version<'_>>, EngineError> {
        if let Some(item) = self.get(Table::Current, key)? {
            let version = self.version(Table::Current, key, item)?;
            if version.head.change == change {
                return Ok(Some(version));
            }
        }
        let superseded = self.superseded_after(key, change.next(), &mut Vec::new())?;
        Ok(superseded.filter(|version| version.head.change == change))
    }

    /// The version of the changed key right before the revision of a change,
    /// if it can be read.
    fn prev_kv(
        &self,
        change: Change,
        record: &ChangeRecord<'_>,
        wanted: &Wanted<'_>,
    ) -> Result<Option<KeyValue>, EngineError> {
        let at = change.revision.previous();
        if at < wanted.floor {
            return Ok(None);
        }
        let before = match record.before {
            Some(before) if before.head.change.revision <= at => Some(before),
            // Another change of the same revision came before.
            _ => self.version_at(record.key, at, &mut Vec::new())?,
        };
        let kv = before
            .map(|before| before.kv(record.key, &self.pages))
            .transpose()?;
        Ok(kv.map(|kv| kv.to_owned()))
    }
}
