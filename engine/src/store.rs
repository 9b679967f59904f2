//! The state of one range replica.
//!
//! Kept true:
//! - One writer at a time (`writer`): applying an entry, ending a generation,
//!   sweeping what was compacted. So a checkpoint has whole entries.
//! - Readers share `tables` for short stretches and see, at a revision, what
//!   never changes; a writer takes it for one change at a time.
//! - Locks are taken in this order: `checkpointing`, `tally`, `writer`,
//!   `tables`, then one of `durable`, `reads`, `recent`, `counts`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::sync::{Mutex, RwLock};
use bytes::Bytes;
use pontoon_wal::disk::MappedFile;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::counters::Counters;
use crate::counts::Counts;
use crate::effects::Staged;
use crate::error::EngineError;
use crate::events::Recent;
use crate::keys::KeyRange;
use crate::node::{Child, Item};
use crate::pages::Pages;
use crate::position::{Applied, Change, Revision};
use crate::split::Split;
use crate::tables::{Table, record_key};
use crate::tally::{Next, Tally};
use crate::tree;

/// What can be chosen about a store.
#[derive(Clone, Debug)]
pub struct Config {
    /// Which store this is; a file of another one is refused.
    pub store: u128,
    /// Changed pages in memory that start a checkpoint.
    pub dirty_bytes_max: usize,
    /// Bytes of applied entries since the last checkpoint that start another
    /// one, so that the log can be shortened.
    pub log_bytes_max: u64,
    /// Memory for the newest events.
    pub recent_bytes_max: usize,
    /// An entry that takes longer to apply is warned of.
    pub slow_apply: Duration,
    /// Where work is counted; stores may share them.
    pub counters: Arc<Counters>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            store: 0,
            dirty_bytes_max: 128 << 20,
            log_bytes_max: 256 << 20,
            recent_bytes_max: 16 << 20,
            slow_apply: Duration::from_millis(100),
            counters: Arc::default(),
        }
    }
}

/// Sums of hashes: equal for replicas with equal content, whatever their
/// files look like. The sum of several ranges is that of the range they make.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContentHash {
    /// Of all versions of all keys that can still be read.
    pub keys: u64,
    /// Of the records of the layer above.
    pub records: u64,
}

/// The state of one range replica, in one file.
pub struct Store {
    pub(crate) config: Config,
    pub(crate) path: PathBuf,
    pub(crate) file: Arc<dyn MappedFile>,
    pub(crate) writer: Mutex<()>,
    /// Held while a checkpoint is under way.
    pub(crate) checkpointing: Mutex<()>,
    pub(crate) tables: RwLock<Tables>,
    /// Revisions that unfinished reads need, with how many do.
    pub(crate) reads: Mutex<BTreeMap<Revision, usize>>,
    pub(crate) recent: Mutex<Recent>,
    pub(crate) counts: Mutex<Counts>,
    /// The count of what lies outside the bounds, while it is under way.
    pub(crate) tally: Mutex<Option<Tally>>,
    /// Generation of the last checkpoint on disk.
    pub(crate) durable: Mutex<Durable>,
    /// What the last checkpoint on disk has applied, for those who wait for one.
    pub(crate) checkpointed: watch::Sender<Applied>,
    pub(crate) log_bytes: AtomicU64,
    /// There is something to do in the background.
    pub(crate) wake: Notify,
    pub(crate) checkpoint_wanted: AtomicBool,
    pub(crate) waits_for_room: AtomicBool,
    pub(crate) closing: AtomicBool,
    pub(crate) failure: OnceLock<EngineError>,
}

/// The checkpoint that a crash would leave us with.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Durable {
    pub(crate) generation: u64,
    pub(crate) applied: Applied,
    /// What the checkpoint before it had applied.
    pub(crate) applied_before: Applied,
}

/// All tables, and what is known of them as a whole.
pub(crate) struct Tables {
    pub(crate) pages: Pages,
    pub(crate) roots: [Child; Table::ALL.len()],
    pub(crate) facts: Facts,
    /// Undecided transactions.
    pub(crate) staged: BTreeMap<Revision, Staged>,
    /// How often a transaction was committed below newer revisions.
    pub(crate) late: u64,
    /// What the sweep was last after.
    pub(crate) sweep_target: Option<Revision>,
    /// When it began, while it is under way.
    pub(crate) sweep_since: Option<Instant>,
    /// Where shedding goes on.
    pub(crate) shed: Next,
}

/// What is known of the tables as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The newest revision that is visible here.
    pub revision: Revision,
    /// The highest revision of a write or a stage.
    pub last: Revision,
    /// The lowest revision that can be read.
    pub floor: Revision,
    /// The floor that was last swept up to completely.
    pub swept: Revision,
    /// The change where the sweep goes on.
    pub sweep: Change,
    /// The log entry up to which everything is applied.
    pub applied: Applied,
    /// The keys that the store is responsible for.
    pub bounds: KeyRange,
    /// Sums of hashes of all that the tables hold.
    pub hash: ContentHash,
    /// Of these, the sum of what lies outside the bounds, if it is known.
    pub outside: Option<u64>,
    /// Keys outside the bounds of which other stores may still be made.
    pub splits: Vec<Split>,
    /// Whether all else outside the bounds is being removed.
    pub shedding: bool,
}

impl Default for Facts {
    fn default() -> Self {
        Self {
            revision: Revision::FIRST,
            last: Revision::FIRST,
            floor: Revision(-1),
            swept: Revision(-1),
            sweep: Change::default(),
            applied: Applied::default(),
            bounds: KeyRange::all(),
            hash: ContentHash::default(),
            outside: Some(0),
            splits: Vec::new(),
            shedding: false,
        }
    }
}

impl Tables {
    pub(crate) fn root(&self, table: Table) -> Child {
        self.roots[table as usize]
    }

    pub(crate) fn get(&self, table: Table, key: &[u8]) -> Result<Option<Item<'_>>, EngineError> {
        tree::get(&self.pages, self.root(table), key)
    }

    pub(crate) fn seek(&self, table: Table, key: &[u8]) -> Result<tree::Cursor<'_>, EngineError> {
        tree::Cursor::seek(&self.pages, self.root(table), key)
    }

    pub(crate) fn rank(&self, table: Table, key: &[u8]) -> Result<u64, EngineError> {
        tree::rank(&self.pages, self.root(table), key)
    }

    pub(crate) fn put(
        &mut self,
        table: Table,
        key: &[u8],
        item: Item<'_>,
    ) -> Result<(), EngineError> {
        tree::put(&mut self.pages, &mut self.roots[table as usize], key, item).map(|_| ())
    }

    /// Like [`Tables::put`], for records that may be long and that end with
    /// what they are replaced by.
    pub(crate) fn put_record(
        &mut self,
        table: Table,
        key: &[u8],
        content: Bytes,
    ) -> Result<(), EngineError> {
        const INLINE_BYTES_MAX: usize = 1024;
        let (payload, run) = match content.len() > INLINE_BYTES_MAX {
            true => (Bytes::new(), Some(self.pages.add_value(content))),
            false => (content, None),
        };
        let item = Item {
            payload: &payload,
            run,
        };
        let old = tree::put(&mut self.pages, &mut self.roots[table as usize], key, item)?;
        if let Some(Some(run)) = old {
            self.pages.give_up_value(run)?;
        }
        Ok(())
    }

    /// What [`Tables::put_record`] stored.
    pub(crate) fn record(&self, table: Table, key: &[u8]) -> Result<Option<&[u8]>, EngineError> {
        match self.get(table, key)? {
            None => Ok(None),
            Some(Item { run: Some(run), .. }) => self.pages.value(run).map(Some),
            Some(Item { payload, .. }) => Ok(Some(payload)),
        }
    }

    /// Removes an entry and the value that it keeps elsewhere.
    pub(crate) fn remove(&mut self, table: Table, key: &[u8]) -> Result<bool, EngineError> {
        let old = tree::remove(&mut self.pages, &mut self.roots[table as usize], key)?;
        if let Some(Some(run)) = old {
            self.pages.give_up_value(run)?;
        }
        Ok(old.is_some())
    }

    pub(crate) fn damaged_record(&self, table: Table, key: &[u8]) -> EngineError {
        self.pages.damaged(
            self.root(table).page,
            &format!(
                "the record of {:?} in {} makes no sense",
                key.escape_ascii().to_string(),
                table.name()
            ),
        )
    }
}

impl Store {
    /// The newest revision that is visible.
    pub fn revision(&self) -> Revision {
        self.tables.read().facts.revision
    }

    /// The highest revision of anything applied, staged transactions included.
    pub fn last_revision(&self) -> Revision {
        self.tables.read().facts.last
    }

    /// The lowest revision that can be read; below 0 before the first compaction.
    pub fn floor(&self) -> Revision {
        self.tables.read().facts.floor
    }

    /// The log entry up to which everything is applied.
    pub fn applied(&self) -> Applied {
        self.tables.read().facts.applied
    }

    /// The log entries after this one are needed to recover, whichever of the
    /// two checkpoints in the file survives.
    pub fn log_needed_after(&self) -> Applied {
        self.durable.lock().applied_before
    }

    /// What the last checkpoint has applied; it changes with every checkpoint.
    pub fn checkpoints(&self) -> watch::Receiver<Applied> {
        self.checkpointed.subscribe()
    }

    /// Reads under way for which a compaction waits.
    pub fn open_reads(&self) -> usize {
        self.reads.lock().values().sum()
    }

    /// The keys that this store is responsible for.
    pub fn bounds(&self) -> KeyRange {
        self.tables.read().facts.bounds.clone()
    }

    /// Keys that were split off and not shed yet: of each, a store of its own
    /// can be made.
    pub fn splits(&self) -> Vec<Split> {
        self.tables.read().facts.splits.clone()
    }

    /// Whether what lies outside the bounds is still being removed.
    pub fn is_shedding(&self) -> bool {
        self.tables.read().facts.shedding
    }

    /// Revisions of undecided transactions, lowest first.
    pub fn undecided(&self) -> Vec<Revision> {
        self.tables.read().staged.keys().copied().collect()
    }

    /// What is staged at `revision`.
    pub fn staged(&self, revision: Revision) -> Option<Staged> {
        self.tables.read().staged.get(&revision).cloned()
    }

    /// A record of the layer above.
    pub fn record(&self, name: &[u8]) -> Result<Option<Bytes>, EngineError> {
        let tables = self.tables.read();
        let record = tables.record(Table::Records, &record_key(name))?;
        Ok(record.map(Bytes::copy_from_slice))
    }

    /// Visits the records whose names begin with `prefix`, in order.
    pub fn records(
        &self,
        prefix: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<(), EngineError> {
        let tables = self.tables.read();
        let prefix = record_key(prefix);
        let mut cursor = tables.seek(Table::Records, &prefix)?;
        let mut key = Vec::new();
        while cursor.key_into(&mut key) && key.starts_with(&prefix) {
            let content = tables.record(Table::Records, &key)?;
            let missing = || tables.damaged_record(Table::Records, &key);
            visit(&key[1..], content.ok_or_else(missing)?);
            cursor.next()?;
        }
        Ok(())
    }

    /// The error for a record that is there and makes no sense to the layer
    /// above: the file isn't what was written.
    pub fn damaged_record(&self, name: &[u8]) -> EngineError {
        let tables = self.tables.read();
        tables.damaged_record(Table::Records, &record_key(name))
    }

    /// The error for a record whose format the layer above doesn't know: the
    /// file is as a later release has written it.
    pub fn foreign_record(&self, name: &[u8], reason: &dyn std::fmt::Display) -> EngineError {
        EngineError::Foreign {
            file: self.tables.read().pages.path().to_owned(),
            reason: format!("record {:?}: {reason}", name.escape_ascii().to_string()),
        }
    }

    /// Bytes of changed pages in memory.
    pub fn dirty_bytes(&self) -> usize {
        self.tables.read().pages.dirty_bytes()
    }

    /// Whether twice as much is in memory as a checkpoint is begun for. An
    /// executor that is faster than the disk watches this and slows down; applying
    /// never waits.
    #[must_use]
    pub fn is_behind(&self) -> bool {
        self.dirty_bytes() > 2 * self.config.dirty_bytes_max
    }

    /// Length of the file, and how much of it is free.
    pub fn file_bytes(&self) -> (u64, u64) {
        let tables = self.tables.read();
        let page = crate::format::PAGE_BYTES as u64;
        (
            tables.pages.space.end() * page,
            tables.pages.space.available() * page,
        )
    }

    /// How much of the file the newest state needs. The rest is free, or will be
    /// when the last two checkpoints are superseded.
    pub fn used_bytes(&self) -> u64 {
        self.tables.read().pages.space.needed() * crate::format::PAGE_BYTES as u64
    }

    /// The failure that stopped the store, if one has.
    pub fn failure(&self) -> Option<&EngineError> {
        self.failure.get()
    }

    /// An error if the store has stopped: the one that stopped it, so that
    /// every caller can tell damage from a failed disk.
    pub(crate) fn running(&self) -> Result<(), EngineError> {
        match self.failure.get() {
            None => Ok(()),
            Some(failure) => Err(failure.clone()),
        }
    }

    pub(crate) fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), EngineError> {
        write_at(&self.path, &*self.file, offset, bytes)
    }

    pub(crate) fn sync(&self) -> Result<(), EngineError> {
        let synced = self.file.sync();
        synced.map_err(|error| EngineError::disk(&self.path, "sync", error))
    }

    /// Stops the store: what failed once on disk is not tried again. The first
    /// failure is kept.
    pub(crate) fn stop(&self, error: EngineError) -> EngineError {
        if self.failure.set(error.clone()).is_ok() {
            // Its user, who is told, says so.
            tracing::debug!(%error, "a store has stopped");
        }
        error
    }

    /// Ends the background work.
    pub fn close(&self) {
        self.closing.store(true, Ordering::Release);
        self.wake.notify_one();
    }
}

pub(crate) fn write_at(
    path: &Path,
    file: &dyn MappedFile,
    offset: u64,
    bytes: &[u8],
) -> Result<(), EngineError> {
    file.write_at(offset, bytes).map_err(|error| {
        let operation = format!("write of {} bytes at {offset:#x}", bytes.len());
        EngineError::disk(path, operation, error)
    })
}
