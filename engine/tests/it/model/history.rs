//! What each key became, and when.

use std::collections::BTreeMap;

use bytes::Bytes;
use pontoon_engine::{Change, Event, EventKind, KeyRange, KeyValue, Revision};

/// Revision, and place within the revision.
pub(super) type When = (i64, u32);

/// `None` is deleted.
#[derive(Default)]
pub(super) struct History(BTreeMap<Bytes, BTreeMap<When, Option<KeyValue>>>);

/// One change.
pub(super) type Became = (Bytes, When, Option<KeyValue>);

impl History {
    pub(super) fn get(&self, key: &Bytes, at: i64) -> Option<KeyValue> {
        let versions = self.0.get(key)?;
        versions.range(..=(at, u32::MAX)).next_back()?.1.clone()
    }

    pub(super) fn live(&self, keys: &KeyRange, at: i64) -> Vec<KeyValue> {
        let from = self.0.range(keys.key.clone()..);
        let found = from.take_while(|(key, _)| within(keys, key));
        found.filter_map(|(key, _)| self.get(key, at)).collect()
    }

    pub(super) fn insert(&mut self, (key, when, kv): Became) {
        self.0.entry(key).or_default().insert(when, kv);
    }

    /// Takes out what happened from a revision on.
    pub(super) fn split_off(&mut self, revision: i64) -> Vec<Became> {
        let mut taken = Vec::new();
        for (key, versions) in &mut self.0 {
            let later = versions.split_off(&(revision, 0));
            taken.extend(later.into_iter().map(|(when, kv)| (key.clone(), when, kv)));
        }
        taken
    }

    /// What happened to the keys in these revisions, in order. At the floor
    /// itself only the last change of each key is remembered.
    pub(super) fn events(
        &self,
        keys: &KeyRange,
        from: i64,
        through: i64,
        floor: i64,
        prev_kv: bool,
    ) -> Vec<Event> {
        let mut events = Vec::new();
        for (key, versions) in self.0.iter().filter(|(key, _)| within(keys, key)) {
            for (&(revision, sub), kv) in versions {
                let last = versions.range(..=(revision, u32::MAX)).next_back().unwrap();
                let forgotten = revision == floor && *last.0 != (revision, sub);
                if revision < from || revision > through || forgotten {
                    continue;
                }
                let created = kv.as_ref().is_some_and(|kv| kv.create.0 == revision);
                // Compacted, if the change is at the floor.
                let prev = (revision > floor).then(|| self.get(key, revision - 1));
                events.push(Event {
                    change: Change {
                        revision: Revision(revision),
                        sub,
                    },
                    kind: match kv {
                        Some(_) => EventKind::Put,
                        None => EventKind::Delete,
                    },
                    kv: kv.clone().unwrap_or(KeyValue {
                        key: key.clone(),
                        modified: Revision(revision),
                        ..KeyValue::default()
                    }),
                    prev_kv: prev.flatten().filter(|_| prev_kv && !created),
                });
            }
        }
        events.sort_by_key(|event| event.change);
        events
    }
}

pub(super) fn within(keys: &KeyRange, key: &Bytes) -> bool {
    match keys.end.as_ref() {
        b"" => *key == keys.key,
        b"\0" => *key >= keys.key,
        _ => *key >= keys.key && *key < keys.end,
    }
}
