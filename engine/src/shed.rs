//! Removing what lies outside the bounds, once no other store will be made
//! of it.
//!
//! Kept true: each piece is short, and removes nothing that is inside the
//! bounds or may still be copied. How far it has come is known in memory
//! alone: after a restart the walk begins anew and finds the less.

use std::sync::atomic::Ordering;

use crate::error::EngineError;
use crate::position::Change;
use crate::read::change_at;
use crate::store::{Store, Tables};
use crate::sync;
use crate::tables::{Table, change_key, history_key, lease_key};
use crate::tally::Next;

/// Changes that are passed over before others get in.
const LOOKED_AT_MAX: usize = 16;

impl Store {
    /// Removes up to `records_max` records that lie outside the bounds.
    /// `true` if there is more to do now.
    pub fn shed_step(&self, records_max: usize) -> Result<bool, EngineError> {
        self.running()?;
        if !self.is_shedding() {
            return Ok(false);
        }
        if self.tally_step()? {
            return Ok(true);
        }
        let mut left = records_max;
        loop {
            let writer = self.writer.lock();
            let mut tables = self.tables.write();
            // Narrower bounds may have come meanwhile, and must be counted.
            if tables.facts.outside.is_none() {
                return Ok(true);
            }
            if !tables.facts.shedding || self.is_held_still(&tables) {
                return Ok(false);
            }
            if left == 0 {
                return Ok(true);
            }
            left -= 1;
            if !tables.shed_one().map_err(|error| self.stop(error))? {
                tables.facts.shedding = false;
                // So that a restart doesn't look for it again, and that the
                // pages can be used.
                self.checkpoint_wanted.store(true, Ordering::Release);
                self.wake.notify_one();
                return Ok(false);
            }
            sync::hand_over(writer, tables);
        }
    }

    /// Whether somebody reads who needs all that is there.
    fn is_held_still(&self, tables: &Tables) -> bool {
        let reads = self.reads.lock();
        let first = reads.keys().next();
        first.is_some_and(|at| *at < tables.facts.sweep.revision)
    }
}

impl Tables {
    /// Removes the next record, or passes over some that stay; `false` at
    /// the end.
    fn shed_one(&mut self) -> Result<bool, EngineError> {
        match std::mem::take(&mut self.shed) {
            Next::Key(from) => match self.first_without(&self.facts.kept(), from)? {
                Some(key) => {
                    self.remove_key(&key)?;
                    self.shed = Next::Key(key);
                }
                None => self.shed = Next::Change(Change::default()),
            },
            Next::Change(from) => match self.shed_change(from)? {
                Some(next) => self.shed = Next::Change(next),
                None => return Ok(false),
            },
        }
        Ok(true)
    }

    /// Removes the newest version of a key, if there is one.
    pub(crate) fn remove_key(&mut self, key: &[u8]) -> Result<(), EngineError> {
        let Some(item) = self.get(Table::Current, key)? else {
            return Ok(());
        };
        let version = self.version(Table::Current, key, item)?;
        let (gone, lease) = (version.hash(key), version.head.lease);
        if lease != 0 {
            self.remove(Table::Leases, &lease_key(lease, key))?;
        }
        self.remove(Table::Current, key)?;
        self.uncount(!self.facts.bounds.contains(key), gone);
        Ok(())
    }

    fn shed_change(&mut self, from: Change) -> Result<Option<Change>, EngineError> {
        let mut cursor = self.seek(Table::Changes, &change_key(from))?;
        let (mut raw, mut history) = (Vec::new(), Vec::new());
        let mut change = from;
        for _ in 0..LOOKED_AT_MAX {
            if !cursor.key_into(&mut raw) {
                return Ok(None);
            }
            change = change_at(self, &raw)?;
            let record = self.change_record(&raw, cursor.item().expect("there is a key"))?;
            if !self.facts.is_shed(record.key) {
                cursor.next()?;
                continue;
            }
            let gone = record.hash(change);
            if record.before.is_some() {
                history_key(record.key, change, &mut history);
            }
            drop(cursor);
            self.remove(Table::Changes, &raw)?;
            if !history.is_empty() {
                self.remove(Table::History, &history)?;
            }
            self.uncount(true, gone);
            break;
        }
        Ok(Some(change.next()))
    }
}
