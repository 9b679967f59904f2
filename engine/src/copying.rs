//! Making a store of keys that are split off, while the store that has them
//! goes on.
//!
//! Kept true:
//! - Whatever is copied of `changes` is final: sweeps and shedding wait.
//! - A change is copied once, when its whole revision is there, and after all
//!   earlier changes of its key. If it is later than the walk over `current`
//!   can have seen, the version that it made is copied with it.
//! - The copy has its name only once all of it is durable, in both of its
//!   checkpoints.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use pontoon_wal::disk::Disk;

use crate::error::EngineError;
use crate::keys::KeyRange;
use crate::node::Item;
use crate::open::{give_name, unfinished_name};
use crate::position::{Applied, Change, Revision};
use crate::read::{ReadPin, change_at};
use crate::split::Split;
use crate::store::{Config, Facts, Store, Tables};
use crate::tables::{CHANGE_BYTES, Kind, Table, change_key, history_key, lease_key};
use crate::tally::Next;

/// Records that are looked at, and bytes that are copied, before writers get in.
const STRETCH_RECORDS: usize = if cfg!(feature = "shuttle") { 2 } else { 256 };
const STRETCH_BYTES: usize = 64 << 10;
/// Changed pages of the copy in memory, at most.
const DIRTY_BYTES_MAX: usize = 8 << 20;

/// What the log entry that a store begins with is called in it. The log of a
/// store that was split off begins behind it.
const FIRST_APPLIED: Applied = Applied {
    index: 1,
    term: 0,
    leader: 0,
};

/// A copy of some keys of a store that is being made.
pub struct Copying {
    /// The store, of which all stays where it is meanwhile.
    from: ReadPin<Arc<Store>>,
    to: Store,
    disk: Arc<dyn Disk>,
    path: PathBuf,
    keys: KeyRange,
    /// Up to here nothing has changed since the copy was begun.
    settled: Revision,
    next: Next,
    /// Transactions that were undecided when the copy passed their revisions.
    undecided: BTreeSet<Revision>,
    /// Where the copy of one that was decided since goes on.
    late: Option<Change>,
    is_named: bool,
}

/// What was read and is to be written.
enum Row {
    /// The newest version of a key.
    Version(Bytes, Stored),
    /// There is none any more.
    Gone(Bytes),
    Change(Change, Stored),
}

/// An item outside its pages.
struct Stored {
    payload: Vec<u8>,
    value: Option<Bytes>,
}

/// Rows of one stretch.
#[derive(Default)]
struct Rows {
    list: Vec<Row>,
    bytes: usize,
}

impl Copying {
    /// Begins a copy of `keys` that will be at `path`, in place of what is
    /// there.
    pub fn begin(
        store: &Arc<Store>,
        disk: &Arc<dyn Disk>,
        path: &Path,
        config: Config,
        keys: KeyRange,
    ) -> Result<Self, EngineError> {
        let to = Store::unnamed(&**disk, path, config)?;
        let tables = store.tables.read();
        let undecided = tables.staged.keys().next();
        let newest = tables.facts.revision;
        Ok(Self {
            settled: undecided.map_or(newest, |first| newest.min(first.previous())),
            from: ReadPin::of_all(Arc::clone(store), &tables),
            to,
            disk: Arc::clone(disk),
            path: path.to_owned(),
            keys,
            next: Next::default(),
            undecided: BTreeSet::new(),
            late: None,
            is_named: false,
        })
    }

    /// Copies some more. `false` when all that the store has now is copied;
    /// what changes later, later calls copy. It waits for the disk of the copy.
    pub fn advance(&mut self) -> Result<bool, EngineError> {
        self.to.running()?;
        self.from.store.running()?;
        let mut rows = Rows::default();
        let more = self.read(&mut rows)?;
        {
            let mut tables = self.to.tables.write();
            for row in rows.list {
                tables.add(row).map_err(|error| self.to.stop(error))?;
            }
        }
        if self.to.dirty_bytes() > self.to.config.dirty_bytes_max.min(DIRTY_BYTES_MAX) {
            self.to.force_checkpoint()?;
        }
        Ok(more)
    }

    /// Completes the copy and gives it its name. The keys must have been split
    /// off with [`crate::Step::Bounds`], and not be shed. What the store is
    /// from its first entry on is the same wherever and whenever it is made.
    pub fn finish(mut self, records: &[(Bytes, Bytes)]) -> Result<(), EngineError> {
        let (split, (sweep, swept)) = self.split()?;
        while self.advance()? {}
        let to = &self.to;
        {
            let mut tables = to.tables.write();
            for (name, content) in records {
                tables
                    .set_record(name, Some(content.clone()))
                    .map_err(|error| to.stop(error))?;
            }
            tables.facts = Facts {
                revision: split.revision,
                last: split.last,
                floor: split.floor,
                swept,
                sweep,
                applied: FIRST_APPLIED,
                bounds: split.keys,
                ..tables.facts.clone()
            };
        }
        // Whichever of its two checkpoints survives has all of it.
        to.force_checkpoint()?;
        to.force_checkpoint()?;
        give_name(&*self.disk, &self.path)?;
        self.is_named = true;
        Ok(())
    }

    /// How the keys were split off, and how far they are swept.
    fn split(&self) -> Result<(Split, (Change, Revision)), EngineError> {
        // No entry is half applied.
        let _writer = self.from.store.writer.lock();
        let facts = &self.from.store.tables.read().facts;
        let split = facts.splits.iter().find(|split| split.keys == self.keys);
        let split = split.ok_or_else(|| EngineError::NotSplit(self.keys.clone()))?;
        Ok((split.clone(), split.sweep(facts)))
    }

    /// Reads the next stretch; `false` if it is the last for now.
    fn read(&mut self, rows: &mut Rows) -> Result<bool, EngineError> {
        let tables = self.from.store.tables.read();
        // What was decided since comes first: later changes build on it.
        if self.late.is_none() {
            let mut undecided = self.undecided.iter().copied();
            let decided = undecided.find(|revision| !tables.staged.contains_key(revision));
            self.late = decided.map(|revision| Change { revision, sub: 0 });
        }
        if let Some(from) = self.late {
            let next = self.read_changes(&tables, from, from.revision, rows)?;
            if next.is_none() {
                self.undecided.remove(&from.revision);
            }
            self.late = next;
            return Ok(true);
        }
        let (next, more) = match &self.next {
            Next::Key(from) => match self.read_versions(&tables, from, rows)? {
                Some(next) => (Next::Key(next), true),
                None => (Next::Change(Change::default()), true),
            },
            Next::Change(from) => {
                let through = tables.facts.revision;
                let next = self.read_changes(&tables, *from, through, rows)?;
                let end = Change {
                    revision: through.next(),
                    sub: 0,
                };
                let more = next.is_some();
                let next = next.unwrap_or(end);
                let passed = tables.staged.range(..next.revision);
                self.undecided.extend(passed.map(|(revision, _)| *revision));
                (Next::Change(next), more)
            }
        };
        self.next = next;
        Ok(more)
    }

    /// Reads newest versions; returns where to go on.
    fn read_versions(
        &self,
        tables: &Tables,
        from: &[u8],
        rows: &mut Rows,
    ) -> Result<Option<Vec<u8>>, EngineError> {
        let mut cursor = tables.seek(Table::Current, from.max(&self.keys.key))?;
        let mut key = Vec::new();
        for _ in 0..STRETCH_RECORDS {
            if !cursor.key_into(&mut key) || !self.keys.contains(&key) {
                return Ok(None);
            }
            if rows.bytes >= STRETCH_BYTES {
                return Ok(Some(key));
            }
            let item = cursor.item().expect("there is a key");
            tables.version(Table::Current, &key, item)?;
            let stored = rows.store(tables, item)?;
            let key = Bytes::copy_from_slice(&key);
            rows.list.push(Row::Version(key, stored));
            cursor.next()?;
        }
        key.push(0);
        Ok(Some(key))
    }

    /// Reads changes through a revision; returns where to go on. Revisions
    /// that are undecided are passed over whole: some of one may be there
    /// already, because it is just being committed.
    fn read_changes(
        &self,
        tables: &Tables,
        from: Change,
        through: Revision,
        rows: &mut Rows,
    ) -> Result<Option<Change>, EngineError> {
        let mut next = from;
        let mut cursor = tables.seek(Table::Changes, &change_key(next))?;
        let mut raw = Vec::with_capacity(CHANGE_BYTES);
        for _ in 0..STRETCH_RECORDS {
            if !cursor.key_into(&mut raw) {
                return Ok(None);
            }
            let change = change_at(tables, &raw)?;
            if change.revision > through {
                return Ok(None);
            }
            if rows.bytes >= STRETCH_BYTES {
                break;
            }
            if tables.staged.contains_key(&change.revision) {
                next = Change {
                    revision: change.revision.next(),
                    sub: 0,
                };
                cursor = tables.seek(Table::Changes, &change_key(next))?;
                continue;
            }
            let item = cursor.item().expect("there is a key");
            let record = tables.change_record(&raw, item)?;
            if self.keys.contains(record.key) {
                let stored = rows.store(tables, item)?;
                rows.list.push(Row::Change(change, stored));
                if change.revision > self.settled {
                    rows.renew(tables, change, record.kind, record.key)?;
                }
            }
            next = change.next();
            cursor.next()?;
        }
        Ok(Some(next))
    }
}

impl Drop for Copying {
    fn drop(&mut self) {
        if !self.is_named {
            // If that fails, whoever makes or opens a store there removes it.
            let _ = self.disk.remove(&unfinished_name(&self.path));
        }
    }
}

impl Rows {
    fn store(&mut self, tables: &Tables, item: Item<'_>) -> Result<Stored, EngineError> {
        let value = item.run.map(|run| tables.pages.value(run)).transpose()?;
        let value = value.map(Bytes::copy_from_slice);
        self.bytes += item.payload.len() + value.as_ref().map_or(0, Bytes::len);
        Ok(Stored {
            payload: item.payload.to_vec(),
            value,
        })
    }

    /// Adds what a change made of the newest version of its key, unless it
    /// has changed again: then that change will tell.
    fn renew(
        &mut self,
        tables: &Tables,
        change: Change,
        kind: Kind,
        key: &[u8],
    ) -> Result<(), EngineError> {
        let current = tables.get(Table::Current, key)?;
        let key = Bytes::copy_from_slice(key);
        match current {
            Some(item) => {
                let version = tables.version(Table::Current, &key, item)?;
                if version.head.change == change {
                    let stored = self.store(tables, item)?;
                    self.list.push(Row::Version(key, stored));
                }
            }
            None if kind == Kind::Delete => self.list.push(Row::Gone(key)),
            None => {}
        }
        Ok(())
    }
}

impl Tables {
    /// Adds what was read elsewhere.
    fn add(&mut self, row: Row) -> Result<(), EngineError> {
        const EMPTY: Item<'_> = Item {
            payload: &[],
            run: None,
        };
        match row {
            Row::Gone(key) => self.remove_key(&key),
            Row::Version(key, stored) => {
                self.remove_key(&key)?;
                let item = self.store(&stored);
                let version = self.version(Table::Current, &key, item)?;
                self.put(Table::Current, &key, item)?;
                let lease = version.head.lease;
                if lease != 0 {
                    self.put(Table::Leases, &lease_key(lease, &key), EMPTY)?;
                }
                self.count(version.hash(&key));
                Ok(())
            }
            Row::Change(change, stored) => {
                let item = self.store(&stored);
                let raw = change_key(change);
                let record = self.change_record(&raw, item)?;
                self.put(Table::Changes, &raw, item)?;
                if record.before.is_some() {
                    let mut history = Vec::new();
                    history_key(record.key, change, &mut history);
                    self.put(Table::History, &history, EMPTY)?;
                }
                self.count(record.hash(change));
                Ok(())
            }
        }
    }

    fn store<'s>(&mut self, stored: &'s Stored) -> Item<'s> {
        let value = stored.value.clone();
        Item {
            payload: &stored.payload,
            run: value.map(|value| self.pages.add_value(value)),
        }
    }

    fn count(&mut self, added: u64) {
        let sum = &mut self.facts.hash.keys;
        *sum = sum.wrapping_add(added);
    }
}
