//! What a store does in the background: checkpoints, sweeps, shedding, scrubs.
//!
//! Kept true: every piece of it is short, and others get in between. A store
//! that nobody writes to holds few changed pages in memory.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use crate::error::EngineError;
use crate::format::META_PAGES;
use crate::position::{Change, Revision};
use crate::store::Store;
use crate::tables::{Table, change_key};

/// While nothing else is to do, so many pages are checked, so often, until
/// all were; then they rest, so that a store in which nothing happens costs
/// nothing.
const SCRUB_PAGES: u64 = 64;
const SCRUB_PAUSE: Duration = Duration::from_millis(250);
const SCRUB_REST: Duration = Duration::from_secs(600);

/// Before what a full disk refused is tried again.
const FULL_DISK_PAUSE: Duration = Duration::from_millis(500);

/// How long the others have everything for themselves between two goes of the
/// sweep, so that few who write meet it at all.
const SWEEP_PAUSE: Duration = Duration::from_millis(1);
/// Changes swept in one go, at least; more if there is much to sweep, so that
/// no write rate leaves it behind for good.
const SWEEP_CHANGES_MIN: u64 = 32;
const SWEEP_CHANGES_SHARE: u64 = 1 << 16;
/// Records shed in one go.
const SHED_RECORDS: usize = 64;

/// After so long without a write, what was written becomes a checkpoint and
/// its memory is let go, if it is as much as this.
const QUIET_AFTER: Duration = Duration::from_secs(2);
pub(crate) const QUIET_BYTES_MIN: usize = 4 << 20;

impl Store {
    /// Works until the store is closed or fails. Run it on one thread or
    /// task, for this store or together with that of others, on a runtime
    /// with timers.
    pub async fn tend(&self) -> Result<(), EngineError> {
        let ended = self.work().await;
        // Whatever it was, the next who asks meets the same error.
        ended.map_err(|error| self.stop(error))
    }

    async fn work(&self) -> Result<(), EngineError> {
        let mut scrubbed = 0;
        let mut scrub_at = Instant::now() + SCRUB_PAUSE;
        let mut quiet = Quiet::default();
        while !self.closing.load(Ordering::Acquire) {
            if self.is_checkpoint_due() {
                let mut checkpoint = self.begin_checkpoint()?;
                while self.retry_when_full(|| checkpoint.step(self)).await? {
                    tokio::task::yield_now().await;
                }
                self.retry_when_full(|| checkpoint.write_map(self)).await?;
                checkpoint.finish(self)?;
            } else if self.compact_step(self.sweep_changes()?)? || self.shed_step(SHED_RECORDS)? {
                tokio::time::sleep(SWEEP_PAUSE).await;
            } else if quiet.is_due(self) {
                if !self.let_go() {
                    self.request_checkpoint();
                }
            } else if timeout_at(quiet.look_at(scrub_at), self.wake.notified())
                .await
                .is_err()
                && scrub_at <= Instant::now()
            {
                scrubbed = self.scrub(scrubbed)?;
                scrub_at = Instant::now()
                    + match scrubbed {
                        0 => SCRUB_REST,
                        _ => SCRUB_PAUSE,
                    };
            }
        }
        Ok(())
    }

    /// Does a part of a checkpoint again until the disk has room for it. What
    /// is not written stays in memory and in the log.
    async fn retry_when_full<T>(
        &self,
        mut part: impl FnMut() -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        loop {
            match part() {
                Err(error) if error.is_no_space() && !self.closing.load(Ordering::Acquire) => {
                    if !self.waits_for_room.swap(true, Ordering::Relaxed) {
                        tracing::warn!(%error, "the disk is full: a checkpoint waits");
                    }
                    tokio::time::sleep(FULL_DISK_PAUSE).await;
                }
                outcome => {
                    self.waits_for_room.store(false, Ordering::Relaxed);
                    return outcome;
                }
            }
        }
    }

    /// Whether a checkpoint waits for room on the disk. What is applied
    /// meanwhile stays in memory.
    #[must_use]
    pub fn waits_for_room(&self) -> bool {
        self.waits_for_room.load(Ordering::Relaxed)
    }

    /// Whether so much is in memory meanwhile that nothing more should come.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.waits_for_room() && self.is_behind()
    }

    fn sweep_changes(&self) -> Result<usize, EngineError> {
        let tables = self.tables.read();
        let end = change_key(Change {
            revision: tables.facts.floor.next().max(Revision::FIRST),
            sub: 0,
        });
        let waiting = tables.rank(Table::Changes, &end)?;
        Ok((SWEEP_CHANGES_MIN + waiting / SWEEP_CHANGES_SHARE) as usize)
    }

    fn is_checkpoint_due(&self) -> bool {
        self.checkpoint_wanted.load(Ordering::Acquire)
            || self.log_bytes.load(Ordering::Relaxed) > self.config.log_bytes_max
            || self.dirty_bytes() > self.config.dirty_bytes_max
    }

    /// Whether so much is in memory that it is worth a look whether anybody
    /// still writes.
    fn is_loaded(&self) -> bool {
        self.tables.read().pages.memory_bytes() > QUIET_BYTES_MIN
    }

    /// Lets memory go that nobody uses; `false` if a checkpoint must come first.
    fn let_go(&self) -> bool {
        let mut tables = self.tables.write();
        let spare = tables.pages.take_spare();
        let clean = tables.pages.dirty_bytes() <= QUIET_BYTES_MIN;
        drop(tables);
        // It is freed while nobody waits.
        drop(spare);
        clean
    }

    /// Checks the next pages, which were asked for a pause ago.
    fn scrub(&self, page: u64) -> Result<u64, EngineError> {
        let mut page = page;
        for _ in 0..SCRUB_PAGES {
            page = self.scrub_step(page, 1)?;
            if page == 0 {
                break;
            }
        }
        self.tables.read().pages.prefetch(page, SCRUB_PAGES);
        Ok(page)
    }

    /// Checks the pages on disk from `page` on, about `pages` of them, against
    /// their checksums. Returns where to go on, 0 when all were seen.
    pub fn scrub_step(&self, page: u64, pages: u64) -> Result<u64, EngineError> {
        let tables = self.tables.read();
        if tables.pages.generation() != self.durable.lock().generation + 1 {
            // Some pages are still on their way.
            return Ok(page);
        }
        let space = &tables.pages.space;
        let mut page = page.max(META_PAGES);
        let stop = page + pages;
        while page < stop {
            if page >= space.end() {
                return Ok(0);
            }
            page += match space.is_used(page) {
                true => tables.pages.scrub(page)?,
                false => 1,
            };
        }
        Ok(page)
    }

    /// Gives free pages at the end of the file back to the file system, while
    /// serving. Returns how many bytes. It makes checkpoints first, because
    /// what the last two have isn't free; see [`Store::checkpoint`].
    pub fn trim(&self) -> Result<u64, EngineError> {
        for _ in 0..META_PAGES {
            self.force_checkpoint()?;
        }
        let _writer = self.writer.lock();
        let result = self.tables.write().pages.cut_end();
        result.map_err(|error| self.stop(error))
    }
}

/// Whether nobody writes.
#[derive(Default)]
struct Quiet {
    /// The last entry that was seen applied, and since when, if it is watched.
    since: Option<(u64, Instant)>,
}

impl Quiet {
    /// Whether much is in memory and nothing was applied for a while.
    fn is_due(&mut self, store: &Store) -> bool {
        if !store.is_loaded() {
            self.since = None;
            return false;
        }
        let (now, applied) = (Instant::now(), store.applied().index);
        match self.since {
            Some((seen, since)) if seen == applied => now >= since + QUIET_AFTER,
            _ => {
                self.since = Some((applied, now));
                false
            }
        }
    }

    fn look_at(&self, or: Instant) -> Instant {
        self.since
            .map_or(or, |(_, since)| or.min(since + QUIET_AFTER))
    }
}
