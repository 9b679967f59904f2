//! Applying log entries.
//!
//! Kept true: an entry is checked whole before any of it is applied, and then
//! applied whole; what it makes of the tables depends on them and on the
//! entry alone, so replicas that apply the same entries hold the same.

use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;
use xxhash_rust::xxh3::xxh3_64;

use crate::effects::{self, Effect, Staged};
use crate::entry::{Entry, Step};
use crate::error::EngineError;
use crate::events::RecentEvent;
use crate::node::{Item, RunRef};
use crate::position::{Change, Revision};
use crate::request::KeyValue;
use crate::store::{Store, Tables};
use crate::tables::{Kind, Table, change_key, history_key, lease_key, record_key};
use crate::tend::QUIET_BYTES_MIN;
use crate::tree;
use crate::version::{ChangeRecord, Head, Version, hash, lies_apart, record_hash, tombstone_hash};

impl Store {
    /// Applies the entry after [`Store::applied`]. An entry that can't be
    /// applied changes nothing.
    pub fn apply(&self, entry: &Entry) -> Result<(), EngineError> {
        self.running()?;
        let since = Instant::now();
        let _writer = self.writer.lock();
        self.check(entry)?;
        let dirty_before = self.dirty_bytes();
        let mut scratch = Scratch::default();
        let effects = entry.steps.iter().map(|step| match step {
            Step::Write { effects, .. } => effects.len(),
            _ => 0,
        });
        scratch.events.reserve(effects.sum());
        let mut bytes = 0;
        for step in &entry.steps {
            bytes += self
                .apply_step(step, &mut scratch)
                .map_err(|error| self.stop(error))?;
        }
        // Before the revision is visible: who sees it finds its events.
        self.recent.lock().add(&mut scratch.events);
        let dirty_bytes = {
            let mut tables = self.tables.write();
            tables.facts.applied = entry.applied;
            // Readers see the revision only now, when all of it is there.
            tables.facts.revision = tables.facts.revision.max(scratch.visible);
            tables.pages.dirty_bytes()
        };
        let log_bytes = self.log_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        // From there on it is looked at whether anybody still writes.
        let grown = dirty_before <= QUIET_BYTES_MIN && dirty_bytes > QUIET_BYTES_MIN;
        if grown
            || dirty_bytes > self.config.dirty_bytes_max
            || log_bytes > self.config.log_bytes_max
        {
            self.wake.notify_one();
        }
        self.note_applied(entry, &scratch, since.elapsed());
        Ok(())
    }

    fn note_applied(&self, entry: &Entry, scratch: &Scratch, took: Duration) {
        let counters = &self.config.counters;
        counters.puts.fetch_add(scratch.puts, Ordering::Relaxed);
        counters
            .put_bytes
            .fetch_add(scratch.put_bytes, Ordering::Relaxed);
        counters
            .deletes
            .fetch_add(scratch.deletes, Ordering::Relaxed);
        counters.apply_took.record_time(took);
        if took > self.config.slow_apply {
            counters.slow_applies.fetch_add(1, Ordering::Relaxed);
            let (index, took) = (entry.applied.index, took.as_millis());
            tracing::warn!(index, took_ms = took, "applying an entry took long");
        }
    }

    /// Finds everything that would keep the entry from being applied.
    fn check(&self, entry: &Entry) -> Result<(), EngineError> {
        let tables = self.tables.read();
        let index = entry.applied.index;
        let refuse = |reason: String| Err(EngineError::Unappliable { index, reason });
        if index <= tables.facts.applied.index {
            return refuse(format!(
                "entry {} is already applied",
                tables.facts.applied.index
            ));
        }
        let mut last = tables.facts.last;
        let mut bounds = &tables.facts.bounds;
        let mut undecided: Vec<(Revision, &[Effect])> = tables
            .staged
            .iter()
            .map(|(revision, staged)| (*revision, &staged.effects[..]))
            .collect();
        for step in &entry.steps {
            match step {
                Step::Write { revision, effects }
                | Step::Stage {
                    revision, effects, ..
                } => {
                    if *revision <= last {
                        return refuse(format!("revision {revision} is not above {last}"));
                    }
                    last = *revision;
                    for effect in effects {
                        let key = effect.key();
                        if !bounds.contains(key) {
                            return refuse(format!("key {key:?} is outside the range"));
                        }
                        let held = undecided
                            .iter()
                            .find(|(_, effects)| effects.iter().any(|e| e.key() == key));
                        if let Some((by, _)) = held {
                            return refuse(format!("key {key:?} is held by revision {by}"));
                        }
                    }
                    if let Step::Stage { subs, .. } = step {
                        if !effects::are_places(subs, effects.len()) {
                            return refuse(format!("{subs:?} are no places of its changes"));
                        }
                        undecided.push((*revision, effects));
                    }
                }
                Step::Commit { revision } => {
                    let Some(i) = undecided.iter().position(|(staged, _)| staged == revision)
                    else {
                        return refuse(format!("nothing is staged at revision {revision}"));
                    };
                    undecided.remove(i);
                }
                Step::Void { revision } => undecided.retain(|(staged, _)| staged != revision),
                Step::Reach { revision } => last = last.max(*revision),
                Step::Compact { floor } => {
                    if floor.0 > last.0 || undecided.iter().any(|(staged, _)| staged <= floor) {
                        return refuse(format!("floor {floor} is above what is decided"));
                    }
                }
                Step::Bounds { keys } => {
                    if !bounds.covers(keys) || keys.bounds().is_none() {
                        return refuse(format!("{keys:?} are not among {bounds:?}"));
                    }
                    bounds = keys;
                    let outside = |effect: &Effect| !keys.contains(effect.key());
                    let held = undecided.iter().find(|(_, e)| e.iter().any(outside));
                    if let Some((by, _)) = held {
                        return refuse(format!("revision {by} holds keys outside {keys:?}"));
                    }
                }
                Step::Record { .. } | Step::Shed => {}
            }
        }
        Ok(())
    }

    /// Applies one step; returns roughly how many bytes it has in the log.
    fn apply_step(&self, step: &Step, scratch: &mut Scratch) -> Result<u64, EngineError> {
        match step {
            Step::Write { revision, effects } => {
                self.apply_effects(*revision, (0..).zip(effects), scratch)
            }
            Step::Stage {
                revision,
                effects,
                subs,
            } => {
                let bytes = effects::encode(effects, subs);
                let length = bytes.len() as u64;
                let mut tables = self.tables.write();
                let key = change_key(Change {
                    revision: *revision,
                    sub: 0,
                });
                tables.put_record(Table::Staged, &key, bytes.into())?;
                let staged = Staged {
                    effects: effects.clone(),
                    subs: subs.clone(),
                };
                tables.staged.insert(*revision, staged);
                tables.facts.last = tables.facts.last.max(*revision);
                Ok(length)
            }
            Step::Commit { revision } => {
                let staged = self.staged(*revision);
                let Staged { effects, subs } = staged.expect("the entry was checked");
                let places = subs.into_iter().zip(&effects);
                let bytes = self.apply_effects(*revision, places, scratch)?;
                self.recent.lock().add(&mut scratch.events);
                // Only now, so that nobody reads half of it.
                self.unstage(*revision)?;
                Ok(bytes)
            }
            Step::Void { revision } => self.unstage(*revision),
            Step::Reach { revision } => {
                let mut tables = self.tables.write();
                tables.facts.last = tables.facts.last.max(*revision);
                scratch.visible = scratch.visible.max(*revision);
                Ok(0)
            }
            Step::Compact { floor } => {
                let mut tables = self.tables.write();
                tables.facts.floor = tables.facts.floor.max(*floor);
                drop(tables);
                self.wake.notify_one();
                Ok(0)
            }
            Step::Record { name, content } => self.tables.write().set_record(name, content.clone()),
            Step::Bounds { keys } => {
                self.tables.write().narrow(keys, scratch.visible);
                self.wake.notify_one();
                Ok(0)
            }
            Step::Shed => {
                self.tables.write().shed();
                self.wake.notify_one();
                Ok(0)
            }
        }
    }

    fn unstage(&self, revision: Revision) -> Result<u64, EngineError> {
        let mut tables = self.tables.write();
        tables.remove(Table::Staged, &change_key(Change { revision, sub: 0 }))?;
        tables.staged.remove(&revision);
        Ok(0)
    }

    fn apply_effects<'e>(
        &self,
        revision: Revision,
        effects: impl Iterator<Item = (u32, &'e Effect)>,
        scratch: &mut Scratch,
    ) -> Result<u64, EngineError> {
        let mut bytes = 0;
        let late = {
            // Before the first change is there, so that no reader takes the
            // tables for those of an older revision.
            let mut tables = self.tables.write();
            tables.facts.last = tables.facts.last.max(revision);
            revision <= tables.facts.revision
        };
        for (sub, effect) in effects {
            let change = Change { revision, sub };
            // Readers get in between, but no longer wait than for one change.
            let mut tables = self.tables.write();
            tables.late += u64::from(late);
            match effect {
                Effect::Put { key, value, lease } => {
                    let put_bytes = (key.len() + value.len()) as u64;
                    bytes += put_bytes;
                    scratch.puts += 1;
                    scratch.put_bytes += put_bytes;
                    tables.put_key(change, key, value, *lease, scratch)?;
                }
                Effect::Delete { key } => {
                    bytes += key.len() as u64;
                    scratch.deletes += 1;
                    tables.delete_key(change, key, scratch)?;
                }
            }
        }
        scratch.visible = scratch.visible.max(revision);
        Ok(bytes)
    }
}

/// Memory that is used again for each change, and what an entry adds up to.
#[derive(Default)]
struct Scratch {
    key: Vec<u8>,
    old: Vec<u8>,
    old_run: Option<RunRef>,
    new: Vec<u8>,
    events: Vec<RecentEvent>,
    visible: Revision,
    puts: u64,
    put_bytes: u64,
    deletes: u64,
}

impl Tables {
    fn put_key(
        &mut self,
        change: Change,
        key: &Bytes,
        value: &Bytes,
        lease: i64,
        scratch: &mut Scratch,
    ) -> Result<(), EngineError> {
        let (place, old) = self.find_current(key, scratch)?;
        let head = match old {
            Some(old) => Head {
                change,
                create: old.create,
                version: old.version + 1,
                lease,
            },
            None => Head {
                change,
                create: change.revision,
                version: 1,
                lease,
            },
        };
        let new = &mut scratch.new;
        new.clear();
        head.encode(new);
        let value_hash = xxh3_64(value);
        let added = hash(key, new, value_hash);
        let run = match lies_apart(key.len(), value.len()) {
            true => {
                new.extend_from_slice(&value_hash.to_le_bytes());
                Some(self.pages.add_value(value.clone()))
            }
            false => {
                new.extend_from_slice(value);
                None
            }
        };
        let root = &mut self.roots[Table::Current as usize];
        tree::put_at(
            &mut self.pages,
            root,
            place,
            key,
            Item { payload: new, run },
        )?;
        let kind = if old.is_some() {
            Kind::Update
        } else {
            Kind::Create
        };
        self.note_change(change, kind, key, scratch)?;
        self.move_lease(key, old.map_or(0, |old| old.lease), lease)?;
        self.facts.hash.keys = self.facts.hash.keys.wrapping_add(added);
        scratch.events.push(RecentEvent {
            change,
            created: old.is_none(),
            kv: KeyValue {
                key: key.clone(),
                value: value.clone(),
                create: head.create,
                modified: change.revision,
                version: head.version,
                lease,
            },
        });
        Ok(())
    }

    fn delete_key(
        &mut self,
        change: Change,
        key: &Bytes,
        scratch: &mut Scratch,
    ) -> Result<(), EngineError> {
        let (place, old) = self.find_current(key, scratch)?;
        let Some(old) = old else {
            return Ok(());
        };
        tree::remove_at(
            &mut self.pages,
            &mut self.roots[Table::Current as usize],
            place,
        )?;
        self.note_change(change, Kind::Delete, key, scratch)?;
        self.move_lease(key, old.lease, 0)?;
        let hash = &mut self.facts.hash.keys;
        *hash = hash.wrapping_add(tombstone_hash(key, change));
        scratch.events.push(RecentEvent {
            change,
            created: false,
            kv: KeyValue {
                key: key.clone(),
                modified: change.revision,
                ..KeyValue::default()
            },
        });
        Ok(())
    }

    /// Finds the newest version of `key` and copies it, for the change that
    /// supersedes it; its value, if it lies apart, goes with it.
    fn find_current(
        &mut self,
        key: &[u8],
        scratch: &mut Scratch,
    ) -> Result<(tree::Place, Option<Head>), EngineError> {
        let place = tree::find(
            &mut self.pages,
            &mut self.roots[Table::Current as usize],
            key,
        )?;
        scratch.old.clear();
        scratch.old_run = None;
        let Some(item) = place.item(&self.pages)? else {
            return Ok((place, None));
        };
        let Some((head, _)) = Head::decode(item.payload) else {
            return Err(self.damaged_record(Table::Current, key));
        };
        scratch.old.extend_from_slice(item.payload);
        scratch.old_run = item.run;
        Ok((place, Some(head)))
    }

    /// Records a change, with the version before it.
    fn note_change(
        &mut self,
        change: Change,
        kind: Kind,
        key: &[u8],
        scratch: &mut Scratch,
    ) -> Result<(), EngineError> {
        let record = &mut scratch.new;
        ChangeRecord::encode_start(kind, key, record);
        record.extend_from_slice(&scratch.old);
        self.put(
            Table::Changes,
            &change_key(change),
            Item {
                payload: record,
                run: scratch.old_run,
            },
        )?;
        if kind != Kind::Create {
            history_key(key, change, &mut scratch.key);
            self.put(
                Table::History,
                &scratch.key,
                Item {
                    payload: &[],
                    run: None,
                },
            )?;
        }
        Ok(())
    }

    fn move_lease(&mut self, key: &[u8], from: i64, to: i64) -> Result<(), EngineError> {
        if from == to {
            return Ok(());
        }
        if from != 0 {
            self.remove(Table::Leases, &lease_key(from, key))?;
        }
        if to != 0 {
            self.put(
                Table::Leases,
                &lease_key(to, key),
                Item {
                    payload: &[],
                    run: None,
                },
            )?;
        }
        Ok(())
    }

    pub(crate) fn set_record(
        &mut self,
        name: &[u8],
        content: Option<Bytes>,
    ) -> Result<u64, EngineError> {
        let key = record_key(name);
        let mut sum = self.facts.hash.records;
        if let Some(old) = self.record(Table::Records, &key)? {
            sum = sum.wrapping_sub(record_hash(name, old));
        }
        let bytes = match content {
            None => {
                self.remove(Table::Records, &key)?;
                0
            }
            Some(content) => {
                sum = sum.wrapping_add(record_hash(name, &content));
                let bytes = content.len() as u64;
                self.put_record(Table::Records, &key, content)?;
                bytes
            }
        };
        self.facts.hash.records = sum;
        Ok(name.len() as u64 + bytes)
    }

    /// The version that `item` of `table` under `key` is.
    pub(crate) fn version<'a>(
        &self,
        table: Table,
        key: &[u8],
        item: Item<'a>,
    ) -> Result<Version<'a>, EngineError> {
        Version::decode(item).ok_or_else(|| self.damaged_record(table, key))
    }
}
