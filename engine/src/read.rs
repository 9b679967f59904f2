//! Reading at a revision.
//!
//! Kept true: what is read at a revision never changes. A long read works in
//! short stretches, between which writers get in, and finds its place again
//! by key; what it may still need is not swept away meanwhile.

use std::ops::{ControlFlow, Deref};

use bytes::Bytes;

use crate::error::{EngineError, Reject};
use crate::keys::KeyRange;
use crate::node::Item;
use crate::position::{Change, Revision};
use crate::request::{KeyValue, KvRef};
use crate::store::{Store, Tables};
use crate::tables::{
    CHANGE_BYTES, Kind, Table, change_key, change_of, history_key, history_parts, history_prefix,
    lease_key,
};
use crate::tree;
use crate::version::{ChangeRecord, Version};

/// Keys, or entries of history, that a read looks at before it lets writers in.
const STRETCH_KEYS: usize = if cfg!(feature = "shuttle") { 2 } else { 256 };
/// Bytes of values likewise.
const STRETCH_BYTES: usize = 64 << 10;
/// With at most so many changes since, a past revision is read as the
/// present, corrected.
const CORRECTED_CHANGES_MAX: u64 = if cfg!(feature = "shuttle") { 3 } else { 512 };

type Visit<'v> = &'v mut dyn FnMut(KvRef<'_>) -> bool;

impl Store {
    /// The version of `key` at a revision.
    pub fn get(&self, key: &[u8], at: Revision) -> Result<Option<KeyValue>, EngineError> {
        let mut found = None;
        self.visit_key(key, at, &mut |kv| found = Some(kv.to_owned()))?;
        Ok(found)
    }

    /// Visits the version of `key` at a revision where it lies, if there is
    /// one. `visit` must not call the store.
    pub fn visit_key(
        &self,
        key: &[u8],
        at: Revision,
        visit: &mut dyn FnMut(KvRef<'_>),
    ) -> Result<(), EngineError> {
        let tables = self.tables.read();
        tables.readable(at)?;
        tables.decided(&KeyRange::one(Bytes::new()), Some(key), at)?;
        if let Some(version) = tables.version_at(key, at, &mut Vec::new())? {
            visit(version.kv(key, &tables.pages)?);
        }
        Ok(())
    }

    /// Visits the keys that are live at a revision, in order, until `visit`
    /// returns false. It must not call the store.
    pub fn scan(&self, keys: &KeyRange, at: Revision, visit: Visit<'_>) -> Result<(), EngineError> {
        if keys.is_one() {
            return self.visit_key(&keys.key, at, &mut |kv| {
                visit(kv);
            });
        }
        let mut from = Vec::new();
        let mut pin = None;
        loop {
            let tables = self.tables.read();
            tables.readable(at)?;
            tables.decided(keys, None, at)?;
            let start = if pin.is_none() { &keys.key[..] } else { &from };
            match tables.stretch(start, keys.upper(), at, visit)? {
                ControlFlow::Break(()) => return Ok(()),
                ControlFlow::Continue(next) => from = next,
            }
            // Before the lock is let go, so that no sweep gets in between.
            pin.get_or_insert_with(|| self.pin_read(at));
        }
    }

    /// Number of keys that are live at a revision. It costs no more than the
    /// changes since then.
    pub fn count(&self, keys: &KeyRange, at: Revision) -> Result<i64, EngineError> {
        if keys.is_one() {
            let mut count = 0;
            self.visit_key(&keys.key, at, &mut |_| count = 1)?;
            return Ok(count);
        }
        if let Some(count) = self.counts.lock().get(at, &keys.key, &keys.end) {
            self.tables.read().readable(at)?;
            return Ok(count);
        }
        loop {
            if let Some(count) = self.count_now(keys, at)? {
                return Ok(count);
            }
        }
    }

    /// The count, unless an undecided transaction was committed meanwhile.
    fn count_now(&self, keys: &KeyRange, at: Revision) -> Result<Option<i64>, EngineError> {
        let mut tables = self.tables.read();
        tables.readable(at)?;
        tables.decided(keys, None, at)?;
        let start = tables.rank(Table::Current, &keys.key)?;
        let end = match keys.upper() {
            Some(end) => tables.rank(Table::Current, end)?,
            None => tables.root(Table::Current).count,
        };
        let mut count = end.saturating_sub(start) as i64;
        let (through, late) = (tables.change_last()?, tables.late);
        let mut from = change_key(Change {
            revision: at.next(),
            sub: 0,
        });
        let mut pin = None;
        let Some(through) = through.filter(|last| from <= *last) else {
            return Ok(Some(count));
        };
        loop {
            let next = tables.count_changes(keys, &from, &through, &mut count)?;
            let Some(next) = next else {
                return Ok(Some(count));
            };
            from = next;
            pin.get_or_insert_with(|| self.pin_read(at));
            drop(tables);
            tables = self.tables.read();
            if tables.late != late {
                return Ok(None);
            }
        }
    }

    /// Remembers that `count` keys are left from `key` to `end` at a revision.
    pub(crate) fn remember_count(&self, at: Revision, key: Bytes, end: &Bytes, count: i64) {
        self.counts.lock().set(at, key, end.clone(), count);
    }

    /// The key in the middle of those that the store is responsible for;
    /// `None` if there are fewer than two.
    pub fn middle_key(&self) -> Result<Option<Bytes>, EngineError> {
        let tables = self.tables.read();
        let bounds = &tables.facts.bounds;
        let root = tables.root(Table::Current);
        let first = tables.rank(Table::Current, &bounds.key)?;
        let behind = match bounds.behind() {
            Some(end) => tables.rank(Table::Current, &end)?,
            None => root.count,
        };
        let count = behind.saturating_sub(first);
        if count < 2 {
            return Ok(None);
        }
        let key = tree::select(&tables.pages, root, first + count / 2)?;
        Ok(key.map(Bytes::from))
    }

    /// Visits the keys inside the bounds that hang on a lease now, in order.
    pub fn lease_keys(&self, lease: i64, visit: &mut dyn FnMut(&[u8])) -> Result<(), EngineError> {
        let tables = self.tables.read();
        let prefix = lease_key(lease, &[]);
        let mut cursor = tables.seek(Table::Leases, &prefix)?;
        let mut key = Vec::new();
        while cursor.key_into(&mut key)
            && let Some(key) = key.strip_prefix(&prefix[..])
        {
            if tables.facts.bounds.contains(key) {
                visit(key);
            }
            cursor.next()?;
        }
        Ok(())
    }

    /// Keeps what can be read at a revision from being swept away.
    pub(crate) fn pin_read(&self, at: Revision) -> ReadPin<&Self> {
        ReadPin::new(self, at)
    }
}

/// An unfinished read.
pub(crate) struct ReadPin<S: Deref<Target = Store>> {
    pub(crate) store: S,
    at: Revision,
}

impl<S: Deref<Target = Store>> ReadPin<S> {
    fn new(store: S, at: Revision) -> Self {
        *store.reads.lock().entry(at).or_default() += 1;
        Self { store, at }
    }

    /// Keeps everything where it is that these tables of the store hold now:
    /// nothing is swept or shed.
    pub(crate) fn of_all(store: S, tables: &Tables) -> Self {
        Self::new(store, tables.facts.sweep.revision.previous())
    }
}

impl<S: Deref<Target = Store>> Drop for ReadPin<S> {
    fn drop(&mut self) {
        let mut reads = self.store.reads.lock();
        if let Some(count) = reads.get_mut(&self.at) {
            *count -= 1;
            if *count == 0 {
                reads.remove(&self.at);
                // The sweep may have waited for it.
                self.store.wake.notify_one();
            }
        }
    }
}

impl Tables {
    /// Whether what is to be read at a revision is still whole. (Whether a
    /// client may read it, the floor says.)
    pub(crate) fn readable(&self, at: Revision) -> Result<(), Reject> {
        match at < self.facts.sweep.revision {
            true => Err(Reject::Compacted),
            false => Ok(()),
        }
    }

    /// Whether no undecided transaction could still change what is read.
    fn decided(
        &self,
        keys: &KeyRange,
        one: Option<&[u8]>,
        at: Revision,
    ) -> Result<(), EngineError> {
        let touches = |key: &[u8]| one.map_or_else(|| keys.contains(key), |one| one == key);
        let undecided = self
            .staged
            .range(..=at)
            .find(|(_, staged)| staged.effects.iter().any(|effect| touches(effect.key())));
        match undecided {
            Some((revision, _)) => Err(EngineError::Undecided(*revision)),
            None => Ok(()),
        }
    }

    /// The version of `key` at a revision.
    pub(crate) fn version_at(
        &self,
        key: &[u8],
        at: Revision,
        scratch: &mut Vec<u8>,
    ) -> Result<Option<Version<'_>>, EngineError> {
        if let Some(item) = self.get(Table::Current, key)? {
            let version = self.version(Table::Current, key, item)?;
            if version.head.change.revision <= at {
                return Ok(Some(version));
            }
        } else if at >= self.facts.last {
            return Ok(None);
        }
        self.version_in_past(key, at, scratch)
    }

    /// The version of `key` at a revision, if it was superseded since.
    fn version_in_past(
        &self,
        key: &[u8],
        at: Revision,
        scratch: &mut Vec<u8>,
    ) -> Result<Option<Version<'_>>, EngineError> {
        let since = Change {
            revision: at.next(),
            sub: 0,
        };
        let before = self.superseded_after(key, since, scratch)?;
        // If it is newer than that, the key was not there.
        Ok(before.filter(|version| version.head.change.revision <= at))
    }

    /// The version that the first change of `key` from `change` on superseded.
    pub(crate) fn superseded_after(
        &self,
        key: &[u8],
        change: Change,
        history: &mut Vec<u8>,
    ) -> Result<Option<Version<'_>>, EngineError> {
        history_key(key, change, history);
        let cursor = self.seek(Table::History, history)?;
        history.truncate(history.len() - CHANGE_BYTES);
        let found = cursor
            .here()
            .and_then(|(leaf, i)| change_of_key(history, leaf.prefix(), leaf.suffix(i)));
        match found {
            None => Ok(None),
            Some(change) => match self.get(Table::Changes, &change)? {
                None => Err(self.damaged_record(Table::History, key)),
                Some(item) => Ok(self.change_record(&change, item)?.before),
            },
        }
    }

    /// The last key of `changes`.
    pub(crate) fn change_last(&self) -> Result<Option<[u8; CHANGE_BYTES]>, EngineError> {
        let mut cursor = self.seek(Table::Changes, &[0xff; CHANGE_BYTES])?;
        let mut key = Vec::new();
        if !cursor.back()? || !cursor.key_into(&mut key) {
            return Ok(None);
        }
        let Ok(key) = key.try_into() else {
            return Err(self.damaged_record(Table::Changes, &[]));
        };
        Ok(Some(key))
    }

    /// Undoes what some changes did to the number of keys; returns where to go on.
    fn count_changes(
        &self,
        keys: &KeyRange,
        from: &[u8],
        through: &[u8],
        count: &mut i64,
    ) -> Result<Option<[u8; CHANGE_BYTES]>, EngineError> {
        let mut cursor = self.seek(Table::Changes, from)?;
        let mut key = Vec::new();
        for _ in 0..STRETCH_KEYS {
            if !cursor.key_into(&mut key) || &key[..] > through {
                return Ok(None);
            }
            let item = cursor.item().expect("there is a key");
            let record = self.change_record(&key, item)?;
            if keys.contains(record.key) {
                *count += match record.kind {
                    Kind::Create => -1,
                    Kind::Update => 0,
                    Kind::Delete => 1,
                };
            }
            cursor.next()?;
        }
        if !cursor.key_into(&mut key) {
            return Ok(None);
        }
        let next: Result<[u8; CHANGE_BYTES], _> = key.try_into();
        let nonsense = |key: Vec<u8>| self.damaged_record(Table::Changes, &key);
        next.map(Some).map_err(nonsense)
    }

    /// A record of `changes`.
    pub(crate) fn change_record<'a>(
        &self,
        key: &[u8],
        item: Item<'a>,
    ) -> Result<ChangeRecord<'a>, EngineError> {
        ChangeRecord::decode(item).ok_or_else(|| self.damaged_record(Table::Changes, key))
    }

    /// Visits some keys from `start` on. Returns where to go on, unless the
    /// end is reached or the visitor has enough.
    fn stretch(
        &self,
        start: &[u8],
        end: Option<&[u8]>,
        at: Revision,
        visit: Visit<'_>,
    ) -> Result<ControlFlow<(), Vec<u8>>, EngineError> {
        if at >= self.facts.last {
            return self.stretch_of_present(start, end, visit);
        }
        let after = change_key(Change {
            revision: at.next(),
            sub: 0,
        });
        let changes = self.root(Table::Changes).count - self.rank(Table::Changes, &after)?;
        match changes {
            0 => self.stretch_of_present(start, end, visit),
            1..=CORRECTED_CHANGES_MAX => self.stretch_corrected(start, end, at, visit),
            _ => self.stretch_merged(start, end, at, visit),
        }
    }

    fn stretch_of_present(
        &self,
        start: &[u8],
        end: Option<&[u8]>,
        visit: Visit<'_>,
    ) -> Result<ControlFlow<(), Vec<u8>>, EngineError> {
        let mut cursor = self.seek(Table::Current, start)?;
        let mut key = Vec::with_capacity(256);
        let mut left = Left::default();
        while let Some((leaf, first)) = cursor.here() {
            let prefix = leaf.prefix();
            key.clear();
            key.extend_from_slice(prefix);
            for i in first..leaf.count() {
                key.truncate(prefix.len());
                key.extend_from_slice(leaf.suffix(i));
                if end.is_some_and(|end| &key[..] >= end) {
                    return Ok(ControlFlow::Break(()));
                }
                if left.is_used_up() {
                    return Ok(ControlFlow::Continue(key));
                }
                let version = self.version(Table::Current, &key, leaf.item(i))?;
                let kv = version.kv(&key, &self.pages)?;
                left.take(&kv);
                if !visit(kv) {
                    return Ok(ControlFlow::Break(()));
                }
            }
            cursor.next_leaf()?;
        }
        Ok(ControlFlow::Break(()))
    }

    /// Reads the present, but looks the keys that changed since then up in history.
    fn stretch_corrected(
        &self,
        start: &[u8],
        end: Option<&[u8]>,
        at: Revision,
        visit: Visit<'_>,
    ) -> Result<ControlFlow<(), Vec<u8>>, EngineError> {
        let mut changed: Vec<&[u8]> = Vec::new();
        let mut changes = self.seek(
            Table::Changes,
            &change_key(Change {
                revision: at.next(),
                sub: 0,
            }),
        )?;
        while let Some(item) = changes.item() {
            let key = self.change_record(&[], item)?.key;
            if key >= start && end.is_none_or(|end| key < end) {
                changed.push(key);
            }
            changes.next()?;
        }
        changed.sort_unstable();
        changed.dedup();
        let mut changed = changed.into_iter().peekable();
        let mut scratch = Vec::new();
        let mut cursor = self.seek(Table::Current, start)?;
        let mut key = Vec::with_capacity(256);
        let mut left = Left::default();
        loop {
            let mut present = cursor.key_into(&mut key);
            if present && end.is_some_and(|end| &key[..] >= end) {
                present = false;
            }
            let next = changed
                .peek()
                .copied()
                .filter(|changed| !present || *changed <= &key[..]);
            if !present && next.is_none() {
                return Ok(ControlFlow::Break(()));
            }
            if left.is_used_up() {
                return Ok(ControlFlow::Continue(next.map_or(key, <[u8]>::to_vec)));
            }
            let version = match next {
                Some(changed) => self.version_at(changed, at, &mut scratch)?,
                None => {
                    let item = cursor.item().expect("there is a key");
                    Some(self.version(Table::Current, &key, item)?)
                }
            };
            let this = next.unwrap_or(&key);
            let kv = version
                .map(|version| version.kv(this, &self.pages))
                .transpose()?;
            left.take_entry();
            if let Some(kv) = kv {
                left.take(&kv);
                if !visit(kv) {
                    return Ok(ControlFlow::Break(()));
                }
            }
            let both = next.is_some_and(|next| present && next == &key[..]);
            if next.is_some() {
                changed.next();
            }
            if next.is_none() || both {
                cursor.next()?;
            }
        }
    }

    /// Walks the present and history side by side.
    fn stretch_merged(
        &self,
        start: &[u8],
        end: Option<&[u8]>,
        at: Revision,
        visit: Visit<'_>,
    ) -> Result<ControlFlow<(), Vec<u8>>, EngineError> {
        let (mut key, mut past, mut raw) = (Vec::new(), Vec::new(), Vec::new());
        let mut other = Vec::new();
        let mut cursor = self.seek(Table::Current, start)?;
        history_prefix(start, &mut raw);
        let mut history = self.seek(Table::History, &raw)?;
        let mut left = Left::default();
        loop {
            let mut present = cursor.key_into(&mut key);
            if present && end.is_some_and(|end| &key[..] >= end) {
                present = false;
            }
            let mut has_past = history.key_into(&mut raw);
            if has_past {
                if history_parts(&raw, &mut past).is_none() {
                    return Err(self.damaged_record(Table::History, &raw));
                }
                has_past = end.is_none_or(|end| &past[..] < end);
            }
            let (this, from_present) = match (present, has_past) {
                (false, false) => return Ok(ControlFlow::Break(())),
                (true, false) => (&key, true),
                (false, true) => (&past, false),
                (true, true) => match key <= past {
                    true => (&key, true),
                    false => (&past, false),
                },
            };
            let with_past = has_past && (!from_present || key == past);
            if left.is_used_up() {
                return Ok(ControlFlow::Continue(this.clone()));
            }
            left.take_entry();
            let mut version = None;
            if from_present {
                let item = cursor.item().expect("there is a key");
                version = Some(self.version(Table::Current, this, item)?)
                    .filter(|version| version.head.change.revision <= at);
            }
            if version.is_none() && with_past {
                version = self.version_in_past(this, at, &mut other)?;
            }
            let kv = version
                .map(|version| version.kv(this, &self.pages))
                .transpose()?;
            if let Some(kv) = kv {
                left.take(&kv);
                if !visit(kv) {
                    return Ok(ControlFlow::Break(()));
                }
            }
            if with_past {
                // Over the other versions of the key: step by step while they
                // are few, then with one long step.
                history_prefix(this, &mut raw);
                let mut steps = 0;
                while history.key_into(&mut other) && other.starts_with(&raw) {
                    steps += 1;
                    if steps > 4 {
                        raw.extend_from_slice(&[0xff; CHANGE_BYTES + 1]);
                        history = self.seek(Table::History, &raw)?;
                        break;
                    }
                    history.next()?;
                }
            }
            if from_present {
                cursor.next()?;
            }
        }
    }
}

/// The change of an entry of history whose key is in two parts, if the entry
/// is of the key that `key` is the start of.
fn change_of_key(key: &[u8], prefix: &[u8], suffix: &[u8]) -> Option<[u8; CHANGE_BYTES]> {
    if prefix.len() + suffix.len() != key.len() + CHANGE_BYTES {
        return None;
    }
    let first = prefix.len().min(key.len());
    if prefix[..first] != key[..first] || !suffix.starts_with(&key[first..]) {
        return None;
    }
    let mut change = [0; CHANGE_BYTES];
    let (from_prefix, from_suffix) = (&prefix[first..], &suffix[key.len() - first..]);
    change[..from_prefix.len()].copy_from_slice(from_prefix);
    change[from_prefix.len()..].copy_from_slice(from_suffix);
    Some(change)
}

/// What is left of a stretch.
struct Left {
    entries: usize,
    bytes: usize,
}

impl Default for Left {
    fn default() -> Self {
        Self {
            entries: STRETCH_KEYS,
            bytes: STRETCH_BYTES,
        }
    }
}

impl Left {
    fn is_used_up(&self) -> bool {
        self.entries == 0 || self.bytes == 0
    }

    fn take(&mut self, kv: &KvRef<'_>) {
        self.take_entry();
        self.bytes = self.bytes.saturating_sub(kv.value.len());
    }

    fn take_entry(&mut self) {
        self.entries = self.entries.saturating_sub(1);
    }
}

/// The change that a key of `changes` stands for.
pub(crate) fn change_at(tables: &Tables, key: &[u8]) -> Result<Change, EngineError> {
    change_of(key).ok_or_else(|| tables.damaged_record(Table::Changes, key))
}
