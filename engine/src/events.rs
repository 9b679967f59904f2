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
        size_of::<Self>() + self.kv.key.len() + self.kv.value.len()
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

    /// Events of `keys` in these revisions, if all of them are here.
    fn read(&self, keys: &KeyRange, from: Revision, through: Revision) -> Option<Vec<RecentEvent>> {
        if from <= self.after {
            return None;
        }
        let start = self
            .events
            .partition_point(|event| event.change.revision < from);
        let events = self.events.range(start..);
        let events = events.take_while(|event| event.change.revision <= through);
        Some(
            events
                .filter(|event| keys.contains(&event.kv.key))
                .cloned()
                .collect(),
        )
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
        let recent = self.recent.lock().read(keys, from, wanted.through);
        if let Some(recent) = recent {
            let tables = self.tables.read();
            for event in recent {
                events.push(tables.complete(event, &wanted)?);
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
                    .add_events(change, &wanted, &mut events)?;
            }
        }
        self.tables.read().forget(&wanted, &mut events)?;
        Ok(events)
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
        events: &mut Vec<Event>,
    ) -> Result<Option<Change>, EngineError> {
        let mut cursor = self.seek(Table::Changes, &change_key(from))?;
        let mut raw = Vec::new();
        for _ in 0..STRETCH_CHANGES {
            if !cursor.key_into(&mut raw) {
                return Ok(None);
            }
            let change = change_at(self, &raw)?;
            if change.revision > wanted.through {
                return Ok(None);
            }
            let item = cursor.item().expect("there is a key");
            let record = self.change_record(&raw, item)?;
            // (Of what is being shed only parts may be left.)
            if wanted.keys.contains(record.key) && !self.facts.is_shed(record.key) {
                events.extend(self.event(change, &record, wanted)?);
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
