//! Copies of a store: the pages of its last checkpoint, while it goes on.
//!
//! Kept true: as long as a snapshot lives, none of its pages is written. Each
//! run is checked when it is read and again when it is installed, and the
//! copy has its name only once all of it is durable.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use pontoon_wal::disk::{Disk, MappedFile};
use tokio::time::Instant;

use crate::error::EngineError;
use crate::format::{META_PAGES, PAGE_BYTES, PageHeader, checksum};
use crate::open::{View, clear_unfinished, create_unfinished, give_name, unfinished_name};
use crate::pages::check_run;
use crate::position::Applied;
use crate::space::{Chunk, is_marked};
use crate::store::{Store, write_at};

/// Most bytes of a piece, longer runs aside: small enough to be still in the
/// processor's memory when it is checked, sent and written.
const PIECE_BYTES: usize = 256 << 10;
/// So much is copied while those who apply wait.
const STEP_BYTES: usize = 64 << 10;

/// A checkpoint that stands still.
pub struct Snapshot {
    store: Arc<Store>,
    generation: u64,
    applied: Applied,
    meta: Piece,
    used: Vec<Arc<Chunk>>,
    end: u64,
}

/// Pages that lie side by side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Number of the first.
    pub page: u64,
    /// Their bytes.
    pub bytes: Bytes,
}

impl Store {
    /// The last checkpoint, kept as it is until the snapshot is dropped.
    pub fn snapshot(self: &Arc<Self>) -> Result<Snapshot, EngineError> {
        let mut tables = self.tables.write();
        // While this is held the meta page stays: it is replaced by the
        // checkpoint after the next one.
        let durable = self.durable.lock();
        let view = View::new(&self.path, &*self.file)?;
        let page = durable.generation % META_PAGES;
        let meta = view.meta(page)?;
        tables.pages.space.pin(durable.generation);
        // From here on dropping the snapshot unpins it.
        let mut snapshot = Snapshot {
            store: Arc::clone(self),
            generation: durable.generation,
            applied: durable.applied,
            meta: Piece {
                page,
                bytes: Bytes::copy_from_slice(view.page(page)),
            },
            used: Vec::new(),
            end: meta.end,
        };
        drop(durable);
        drop(tables);
        snapshot.used = view.map(&meta)?.used;
        Ok(snapshot)
    }
}

impl Snapshot {
    /// The log entry up to which everything is in it.
    #[must_use]
    pub fn applied(&self) -> Applied {
        self.applied
    }

    /// Bytes of all its pages.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let pages: u64 = self
            .used
            .iter()
            .flat_map(|chunk| chunk.iter())
            .map(|word| u64::from(word.count_ones()))
            .sum();
        pages * PAGE_BYTES as u64
    }

    /// The next pages from `page` on; `None` when there are no more. The last
    /// piece is the one that makes the others a store.
    pub fn read(&self, page: u64) -> Result<Option<Piece>, EngineError> {
        if page > self.end {
            return Ok(None);
        }
        let start = (page.max(META_PAGES)..self.end).find(|page| is_marked(&self.used, *page));
        let Some(start) = start else {
            let mut meta = self.meta.clone();
            // Beyond all pages, so that the next call finds nothing.
            meta.page += self.end + 1;
            return Ok(Some(meta));
        };
        let mut bytes = Vec::with_capacity(PIECE_BYTES);
        let mut page = start;
        let is_ours = |page| page < self.end && is_marked(&self.used, page);
        while bytes.len() < PIECE_BYTES && is_ours(page) {
            let tables = self.store.tables.read();
            let step = bytes.len() + STEP_BYTES;
            while bytes.len() < step && is_ours(page) {
                let run = tables.pages.on_disk(page)?;
                bytes.extend_from_slice(run);
                page += (run.len() / PAGE_BYTES) as u64;
            }
        }
        let ahead = (PIECE_BYTES / PAGE_BYTES) as u64;
        self.store.tables.read().pages.prefetch(page, ahead);
        let bytes = bytes.into();
        Ok(Some(Piece { page: start, bytes }))
    }
}

impl Piece {
    /// The page to read on from.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.page + (self.bytes.len() / PAGE_BYTES) as u64
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        self.store.tables.write().pages.space.unpin(self.generation);
    }
}

/// A copy that is being written.
pub struct Install {
    path: PathBuf,
    file: Arc<dyn MappedFile>,
    meta: Option<(u64, Vec<u8>)>,
    since: Instant,
}

impl Install {
    /// Begins a copy that will be at `path`, in place of what is there.
    pub fn begin(disk: &dyn Disk, path: &Path) -> Result<Self, EngineError> {
        clear_unfinished(disk, path)?;
        let file = create_unfinished(disk, path)?;
        Ok(Self {
            path: path.to_owned(),
            file,
            meta: None,
            since: Instant::now(),
        })
    }

    /// When it was begun.
    #[must_use]
    pub fn since(&self) -> Instant {
        self.since
    }

    /// Writes a piece, if all of it is whole.
    pub fn add(&mut self, piece: &Piece) -> Result<(), EngineError> {
        let mut rest = &piece.bytes[..];
        let mut page = piece.page;
        while !rest.is_empty() {
            let header = PageHeader::decode(rest);
            let pages = header.map_or(0, |header| header.pages as usize);
            let run = rest
                .split_at_checked(pages.saturating_mul(PAGE_BYTES))
                .filter(|_| pages > 0);
            let Some((run, after)) = run else {
                return Err(self.damaged(page, "a piece of a snapshot is cut off"));
            };
            let header = header.unwrap_or_default();
            if header.page < META_PAGES {
                if header.crc != checksum(run) {
                    return Err(self.damaged(page, "its checksum is wrong"));
                }
                self.meta = Some((header.page, run.to_vec()));
                return Ok(());
            }
            check_run(run, page).map_err(|reason| self.damaged(page, reason))?;
            page += pages as u64;
            rest = after;
        }
        let offset = piece.page * PAGE_BYTES as u64;
        self.write_at(offset, &piece.bytes)?;
        let bytes = piece.bytes.len() as u64;
        self.file.write_out(offset, bytes).map_err(|error| {
            let operation = format!("write-out of {bytes} bytes at {offset:#x}");
            EngineError::disk(&self.unfinished(), operation, error)
        })
    }

    /// Gives the copy its name.
    pub fn finish(self, disk: &dyn Disk) -> Result<(), EngineError> {
        let Some((page, bytes)) = &self.meta else {
            return Err(self.damaged(0, "the snapshot has no end"));
        };
        self.sync()?;
        self.write_at(page * PAGE_BYTES as u64, bytes)?;
        self.sync()?;
        let view = View::new(&self.path, &*self.file)?;
        view.map(&view.meta(*page)?)?;
        drop(view);
        give_name(disk, &self.path)
    }

    fn damaged(&self, page: u64, reason: &str) -> EngineError {
        EngineError::Damaged {
            file: self.path.clone(),
            page,
            reason: reason.to_owned(),
        }
    }

    fn unfinished(&self) -> PathBuf {
        unfinished_name(&self.path)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), EngineError> {
        write_at(&self.unfinished(), &*self.file, offset, bytes)
    }

    fn sync(&self) -> Result<(), EngineError> {
        let synced = self.file.sync();
        synced.map_err(|error| EngineError::disk(&self.unfinished(), "sync", error))
    }
}
