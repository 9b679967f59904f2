//! Numbers about stores while they work. Reading them costs the stores nothing.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use pontoon_wal::Histogram;
use tokio::time::Instant;

/// Counts since they were made, of all stores that share them.
#[derive(Debug)]
pub struct Counters {
    /// Keys put.
    pub puts: AtomicU64,
    /// Bytes of those keys and their values.
    pub put_bytes: AtomicU64,
    /// Keys deleted.
    pub deletes: AtomicU64,
    /// Nanoseconds that applying an entry took.
    pub apply_took: Histogram,
    /// Entries that took longer than `Config::slow_apply`.
    pub slow_applies: AtomicU64,
    /// Nanoseconds from the first sync of a checkpoint, whose pages are written
    /// by then, until the checkpoint is durable.
    pub commit_took: Histogram,
    /// Nanoseconds from the first page of another store's copy until it has its
    /// name here.
    pub copy_took: Histogram,
    /// Nanoseconds of those in which it was synced and given its name.
    pub copy_sync_took: Histogram,
    /// Versions and tombstones that compactions removed.
    pub compacted: AtomicU64,
    /// Nanoseconds from the first change that a compaction swept to its last.
    pub compaction_took: Histogram,
    /// Nanoseconds for which compactions held writers up at a time.
    pub compaction_pause: Histogram,
    /// Milliseconds from `made` to the end of the last compaction, plus one; 0:
    /// there was none.
    last_compaction: AtomicU64,
    made: Instant,
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            puts: AtomicU64::default(),
            put_bytes: AtomicU64::default(),
            deletes: AtomicU64::default(),
            apply_took: Histogram::default(),
            slow_applies: AtomicU64::default(),
            commit_took: Histogram::default(),
            copy_took: Histogram::default(),
            copy_sync_took: Histogram::default(),
            compacted: AtomicU64::default(),
            compaction_took: Histogram::default(),
            compaction_pause: Histogram::default(),
            last_compaction: AtomicU64::default(),
            made: Instant::now(),
        }
    }
}

impl Counters {
    /// How long ago the last compaction ended, if there was one.
    #[must_use]
    pub fn since_compaction(&self) -> Option<Duration> {
        let at = self.last_compaction.load(Relaxed).checked_sub(1)?;
        let at = Duration::from_millis(at);
        Some(self.made.elapsed().saturating_sub(at))
    }

    /// A compaction that began to sweep at `since` has ended.
    pub(crate) fn compaction_ended(&self, since: Instant) {
        self.compaction_took.record_time(since.elapsed());
        let at = self.made.elapsed().as_millis();
        let at = u64::try_from(at).unwrap_or(u64::MAX).saturating_add(1);
        self.last_compaction.store(at, Relaxed);
    }
}
