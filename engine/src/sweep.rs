//! Compaction: what no revision from the floor on can see is removed, a few
//! changes at a time.
//!
//! Kept true: a change at the floor or below loses the version that it
//! superseded, which only reads below it could see; a change below the floor
//! goes altogether. So for every key the newest version at the floor stays,
//! and so do the changes exactly at the floor, for a watch that starts there.
//! Of keys that were split off, the floor of the split counts; the sweep goes
//! past what it leaves of them.

use std::sync::atomic::Ordering;

use tokio::time::Instant;

use crate::error::{EngineError, Reject};
use crate::node::Item;
use crate::position::{Change, Revision};
use crate::read::change_at;
use crate::store::{Store, Tables};
use crate::sync;
use crate::tables::{Kind, Table, change_key, history_key};
use crate::tree;
use crate::version::{ChangeRecord, tombstone_hash};

impl Store {
    /// Whether the floor may be raised to `revision`, in etcd's terms.
    pub fn check_compact(&self, revision: Revision) -> Result<(), Reject> {
        let tables = self.tables.read();
        if revision <= tables.facts.floor {
            return Err(Reject::Compacted);
        }
        if revision > tables.facts.revision {
            return Err(Reject::FutureRevision);
        }
        Ok(())
    }

    /// Whether everything that the floor lets go is gone.
    pub fn is_swept(&self) -> bool {
        let tables = self.tables.read();
        let facts = &tables.facts;
        facts.floor <= facts.swept || facts.floor < facts.sweep.revision
    }

    /// Removes what up to `changes_max` changes left behind. `true` if there
    /// is more to do now.
    pub fn compact_step(&self, changes_max: usize) -> Result<bool, EngineError> {
        self.running()?;
        if self.tally_step()? {
            return Ok(true);
        }
        let mut left = changes_max;
        loop {
            let writer = self.writer.lock();
            let since = Instant::now();
            let mut tables = self.tables.write();
            if tables.facts.outside.is_none() {
                return Ok(true);
            }
            // Unfinished reads still need what they see.
            let needed = self.reads.lock().keys().next().copied();
            let floor = tables.facts.floor;
            let target = needed.map_or(floor, |needed| needed.min(floor));
            let counters = &self.config.counters;
            if target <= tables.facts.swept || target < tables.facts.sweep.revision {
                if target == floor
                    && let Some(since) = tables.sweep_since.take()
                {
                    counters.compaction_ended(since);
                }
                return Ok(false);
            }
            tables.sweep_since.get_or_insert_with(Instant::now);
            if left == 0 {
                return Ok(true);
            }
            left -= 1;
            // One at a time: who comes meanwhile need not even go to sleep.
            let removed = tables.sweep_one(target);
            let removed = removed.map_err(|error| self.stop(error))?;
            counters.compacted.fetch_add(removed, Ordering::Relaxed);
            sync::hand_over(writer, tables);
            counters.compaction_pause.record_time(since.elapsed());
        }
    }
}

impl Tables {
    /// Sweeps the next change towards `target`, or notes that there is none.
    /// Returns how many versions and tombstones it removed.
    fn sweep_one(&mut self, target: Revision) -> Result<u64, EngineError> {
        let (mut raw, mut start, mut history) = (Vec::new(), Vec::new(), Vec::new());
        // Changes that stay are passed over, but once for each target.
        let from = match self.sweep_target == Some(target) {
            true => self.facts.sweep,
            false => self.sweep_from(target),
        };
        self.sweep_target = Some(target);
        let cursor = self.seek(Table::Changes, &change_key(from))?;
        let change = match cursor.key_into(&mut raw) {
            true => Some(change_at(self, &raw)?),
            false => None,
        };
        let Some(change) = change.filter(|change| change.revision <= target) else {
            drop(cursor);
            // The next compaction begins with what this one left.
            self.facts.swept = target;
            self.facts.sweep = Change {
                revision: target,
                sub: 0,
            };
            return Ok(0);
        };
        let record = self.change_record(&raw, cursor.item().expect("there is a key"))?;
        let (kind, key) = (record.kind, record.key);
        let split = self.facts.split_of(key);
        let target = split.map_or(target, |split| target.min(split.floor));
        if change.revision > target {
            drop(cursor);
            self.facts.sweep = change.next();
            return Ok(0);
        }
        let is_outside = !self.facts.bounds.contains(key);
        let has_before = record.before.is_some();
        let mut gone = record.before.map_or(0, |before| before.hash(key));
        let drops_tombstone = kind == Kind::Delete && change.revision < target;
        if drops_tombstone {
            gone = gone.wrapping_add(tombstone_hash(key, change));
        }
        ChangeRecord::encode_start(kind, key, &mut start);
        history_key(key, change, &mut history);
        drop(cursor);
        if change.revision < target {
            self.remove(Table::Changes, &raw)?;
        } else if has_before {
            self.put_smaller(Table::Changes, &raw, &start)?;
        }
        if has_before {
            self.remove(Table::History, &history)?;
        }
        self.uncount(is_outside, gone);
        self.facts.sweep = change.next();
        Ok(u64::from(has_before) + u64::from(drops_tombstone))
    }

    /// The change where a sweep with this target begins. Below it, those that were swept are
    /// gone; what is left of a revision that was the target once is swept again.
    pub(crate) fn sweep_from(&self, target: Revision) -> Change {
        match self.facts.sweep {
            Change { revision, .. } if revision < target => Change { revision, sub: 0 },
            sweep => sweep,
        }
    }

    /// Replaces a record by one that keeps nothing elsewhere.
    fn put_smaller(&mut self, table: Table, key: &[u8], payload: &[u8]) -> Result<(), EngineError> {
        let item = Item { payload, run: None };
        let old = tree::put(&mut self.pages, &mut self.roots[table as usize], key, item)?;
        if let Some(Some(run)) = old {
            self.pages.give_up_value(run)?;
        }
        Ok(())
    }
}
