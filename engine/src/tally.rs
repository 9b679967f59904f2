//! The sum of the hashes of what lies outside the bounds.
//!
//! Kept true: as long as the sum is not known, all that it counts stands
//! still, because the sweep and shedding wait for it; from then on they keep
//! it right. So it is counted once for a split, in short stretches.

use crate::error::EngineError;
use crate::keys::KeyRange;
use crate::position::{Change, Revision};
use crate::read::change_at;
use crate::store::{Facts, Store, Tables};
use crate::tables::{Table, change_key};

/// Records that are looked at before writers get in.
const STRETCH_RECORDS: usize = if cfg!(feature = "shuttle") { 2 } else { 256 };

/// Where a walk over all keys and changes goes on.
#[derive(Debug)]
pub(crate) enum Next {
    /// With the first of `current` that is not below this key.
    Key(Vec<u8>),
    /// With the first of `changes` that is not below this one.
    Change(Change),
}

impl Default for Next {
    fn default() -> Self {
        Self::Key(Vec::new())
    }
}

/// A count under way.
pub(crate) struct Tally {
    bounds: KeyRange,
    /// Later changes are inside.
    through: Revision,
    next: Next,
    sum: u64,
}

impl Tally {
    pub(crate) fn begin(facts: &Facts) -> Self {
        Self {
            bounds: facts.bounds.clone(),
            through: facts.last,
            next: Next::default(),
            sum: 0,
        }
    }

    /// Counts to the end.
    pub(crate) fn finish(mut self, store: &Store) -> Result<u64, EngineError> {
        while self.step(&store.tables.read())? {}
        store.know_outside(&self);
        Ok(self.sum)
    }

    /// Counts some; `false` when all is counted.
    fn step(&mut self, tables: &Tables) -> Result<bool, EngineError> {
        match &self.next {
            Next::Key(from) => self.next = self.count_keys(tables, from.clone())?,
            Next::Change(from) => match self.count_changes(tables, *from)? {
                Some(next) => self.next = Next::Change(next),
                None => return Ok(false),
            },
        }
        Ok(true)
    }

    fn count_keys(&mut self, tables: &Tables, from: Vec<u8>) -> Result<Next, EngineError> {
        let mut from = from;
        for _ in 0..STRETCH_RECORDS {
            let Some(key) = tables.first_without(&[&self.bounds], from)? else {
                return Ok(Next::Change(Change::default()));
            };
            if let Some(item) = tables.get(Table::Current, &key)? {
                let version = tables.version(Table::Current, &key, item)?;
                self.sum = self.sum.wrapping_add(version.hash(&key));
            }
            from = key;
            from.push(0);
        }
        Ok(Next::Key(from))
    }

    fn count_changes(
        &mut self,
        tables: &Tables,
        from: Change,
    ) -> Result<Option<Change>, EngineError> {
        let mut change = from;
        let mut cursor = tables.seek(Table::Changes, &change_key(from))?;
        let mut raw = Vec::new();
        for _ in 0..STRETCH_RECORDS {
            if !cursor.key_into(&mut raw) {
                return Ok(None);
            }
            change = change_at(tables, &raw)?;
            if change.revision > self.through {
                return Ok(None);
            }
            let record = tables.change_record(&raw, cursor.item().expect("there is a key"))?;
            if !self.bounds.contains(record.key) {
                self.sum = self.sum.wrapping_add(record.hash(change));
            }
            cursor.next()?;
        }
        Ok(Some(change.next()))
    }
}

impl Store {
    /// Counts some of what lies outside, unless that is known; `true` if it
    /// still is not.
    pub(crate) fn tally_step(&self) -> Result<bool, EngineError> {
        if self.tables.read().facts.outside.is_some() {
            return Ok(false);
        }
        let mut under_way = self.tally.lock();
        let tables = self.tables.read();
        let mut tally = match under_way.take() {
            Some(tally) if tally.bounds == tables.facts.bounds => tally,
            _ => Tally::begin(&tables.facts),
        };
        if tally.step(&tables)? {
            *under_way = Some(tally);
        } else {
            drop(tables);
            self.know_outside(&tally);
        }
        Ok(true)
    }

    /// Keeps what a finished count says, if it is still of these bounds.
    fn know_outside(&self, tally: &Tally) {
        let _writer = self.writer.lock();
        let facts = &mut self.tables.write().facts;
        if facts.bounds == tally.bounds {
            facts.outside.get_or_insert(tally.sum);
        }
    }
}

impl Tables {
    /// The first key of `current` from `from` on that is in none of the ranges.
    pub(crate) fn first_without(
        &self,
        ranges: &[&KeyRange],
        from: Vec<u8>,
    ) -> Result<Option<Vec<u8>>, EngineError> {
        let mut key = from;
        loop {
            let from = key.clone();
            if !self.seek(Table::Current, &from)?.key_into(&mut key) {
                return Ok(None);
            }
            match ranges.iter().find(|range| range.contains(&key)) {
                None => return Ok(Some(key)),
                Some(range) => match range.behind() {
                    Some(behind) => key = behind.to_vec(),
                    None => return Ok(None),
                },
            }
        }
    }
}
