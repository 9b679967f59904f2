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
use crate::store::{Store, Tables};
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
        let pin = {
            let tables = self.tables.read();
            if from < tables.facts.floor {
                return Err(Reject::Compacted.into());
            }
            if let Some(revision) = tables
                .staged
                .keys()
                .next()
                .filter(|first| **first <= through)
            {
                return Err(EngineError::Undecided(*revision));
            }
            self.pin_read(from)
        };
        let through = through.min(self.revision());
        // Before the first compaction the floor is below all revisions.
        let from = from.max(Revision::FIRST);
        let recent = self.recent.lock().read(keys, from, through);
        let mut events = Vec::new();
        if let Some(recent) = recent {
            let tables = self.tables.read();
            for event in recent {
                let deleted = event.kv.version == 0;
                events.push(Event {
                    change: event.change,
                    kind: if deleted {
                        EventKind::Delete
                    } else {
                        EventKind::Put
                    },
                    prev_kv: match prev_kv && !event.created {
                        true => tables.prev_kv(event.change)?,
                        false => None,
                    },
                    kv: event.kv,
                });
            }
            tables.forget_at_floor(keys, &mut events)?;
            drop(pin);
            return Ok(events);
        }
        let mut next = Some(Change {
            revision: from,
            sub: 0,
        });
        while let Some(change) = next {
            next = self
                .tables
                .read()
                .events(keys, change, through, prev_kv, &mut events)?;
        }
        self.tables.read().forget_at_floor(keys, &mut events)?;
        drop(pin);
        Ok(events)
    }
}

impl Tables {
    /// Appends events of some changes; returns the change to go on with.
    fn events(
        &self,
        keys: &KeyRange,
        from: Change,
        through: Revision,
        prev_kv: bool,
        events: &mut Vec<Event>,
    ) -> Result<Option<Change>, EngineError> {
        let mut cursor = self.seek(Table::Changes, &change_key(from))?;
        let mut raw = Vec::new();
        for _ in 0..STRETCH_CHANGES {
            if !cursor.key_into(&mut raw) {
                return Ok(None);
            }
            let change = change_at(self, &raw)?;
            if change.revision > through {
                return Ok(None);
            }
            let item = cursor.item().expect("there is a key");
            let record = self.change_record(&raw, item)?;
            if keys.contains(record.key) {
                events.extend(self.event(change, &record, prev_kv)?);
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
        prev_kv: bool,
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
                None if change.revision <= self.facts.floor => return Ok(None),
                None => return Err(self.damaged_record(Table::Changes, key)),
            },
        };
        let prev_kv = match prev_kv && record.kind != Kind::Create {
            true => self.prev_kv_of(change, record)?,
            false => None,
        };
        Ok(Some(Event {
            change,
            kind,
            kv,
            prev_kv,
        }))
    }

    /// Leaves out what is forgotten of the floor's own revision.
    fn forget_at_floor(&self, keys: &KeyRange, events: &mut Vec<Event>) -> Result<(), EngineError> {
        let floor = self.facts.floor;
        if events
            .first()
            .is_some_and(|first| first.change.revision <= floor)
        {
            let last = self.last_at_floor(keys)?;
            events.retain(|event| {
                event.change.revision > floor || last.get(&event.kv.key[..]) == Some(&event.change)
            });
        }
        Ok(())
    }

    /// The last change of each of `keys` at the floor. What a revision did to
    /// a key before is forgotten once the floor is there, swept or not.
    fn last_at_floor(&self, keys: &KeyRange) -> Result<HashMap<&[u8], Change>, EngineError> {
        let mut last = HashMap::new();
        let start = Change {
            revision: self.facts.floor,
            sub: 0,
        };
        let mut cursor = self.seek(Table::Changes, &change_key(start))?;
        let mut raw = Vec::new();
        while cursor.key_into(&mut raw) {
            let change = change_at(self, &raw)?;
            if change.revision > self.facts.floor {
                break;
            }
            let item = cursor.item().expect("there is a key");
            let key = self.change_record(&raw, item)?.key;
            if keys.contains(key) {
                last.insert(key, change);
            }
            cursor.next()?;
        }
        Ok(last)
    }

    /// The version that a put made.
    fn version_of(&self, key: &[u8], change: Change) -> Result<Option<Version<'_>>, EngineError> {
        if let Some(item) = self.get(Table::Current, key)? {
            let version = self.version(Table::Current, key, item)?;
            if version.head.change == change {
                return Ok(Some(version));
            }
        }
        let next = Change {
            sub: change.sub + 1,
            ..change
        };
        let superseded = self.superseded_after(key, next)?;
        Ok(superseded.filter(|version| version.head.change == change))
    }

    /// The version of the changed key right before the revision of a change,
    /// if it can be read.
    fn prev_kv(&self, change: Change) -> Result<Option<KeyValue>, EngineError> {
        let raw = change_key(change);
        match self.get(Table::Changes, &raw)? {
            Some(item) => self.prev_kv_of(change, &self.change_record(&raw, item)?),
            None => Ok(None),
        }
    }

    fn prev_kv_of(
        &self,
        change: Change,
        record: &ChangeRecord<'_>,
    ) -> Result<Option<KeyValue>, EngineError> {
        let at = Revision(change.revision.0 - 1);
        if at < self.facts.floor {
            return Ok(None);
        }
        let before = match record.before {
            Some(before) if before.head.change.revision <= at => Some(before),
            // Another change of the same revision came before.
            _ => self.version_at(record.key, at)?,
        };
        let kv = before
            .map(|before| before.kv(record.key, &self.pages))
            .transpose()?;
        Ok(kv.map(|kv| kv.to_owned()))
    }
}
