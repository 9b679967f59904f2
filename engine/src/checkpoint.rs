//! Checkpoints: the file catches up with memory while applying goes on.
//!
//! Kept true, so that a crash at any moment leaves a whole checkpoint:
//! 1. Pages are written only where the two checkpoints on disk have none.
//! 2. The meta page is written after everything it leads to is durable.
//! 3. It replaces the older of the two.

use std::sync::atomic::Ordering;

use tokio::time::Instant;

use crate::error::EngineError;
use crate::format::{
    MAGIC, META_PAGES, Meta, PAGE_BYTES, PageKind, RUN_HEADER_BYTES, RunHeader, VERSION, run_pages,
    seal,
};
use crate::node::Child;
use crate::open::encode_facts;
use crate::pages::Content;
use crate::position::Applied;
use crate::space::FrozenMap;
use crate::store::{Durable, Store};
use crate::sync::MutexGuard;
use crate::tables::{STATE_NAME, Table};

/// Pages looked up or let go of while others wait.
const STEP_PAGES: usize = 16;
/// Most bytes of one write, longer runs aside.
const WRITE_BYTES: usize = 1 << 20;

/// A checkpoint under way. Between its steps anything may happen to the store.
pub(crate) struct Checkpoint<'s> {
    /// One at a time: each builds on the one before it.
    _turn: MutexGuard<'s, ()>,
    generation: u64,
    applied: Applied,
    roots: [Child; Table::ALL.len()],
    end: u64,
    /// Pages that this generation changed, in order.
    pages: Vec<u64>,
    map: FrozenMap,
    written: usize,
    buffer: Vec<u8>,
    /// Where the buffer's first byte belongs.
    buffer_page: u64,
}

impl Store {
    /// Makes everything that is applied durable in the file. It waits for the
    /// disk, and for a checkpoint that is under way, so it is not for the
    /// thread that runs [`Store::tend`].
    pub fn checkpoint(&self) -> Result<(), EngineError> {
        if self.tables.read().facts.applied == self.durable.lock().applied
            && self.durable.lock().generation > 0
        {
            return Ok(());
        }
        self.force_checkpoint()
    }

    pub(crate) fn force_checkpoint(&self) -> Result<(), EngineError> {
        let mut checkpoint = self.begin_checkpoint()?;
        let mut write = || {
            while checkpoint.step(self)? {}
            checkpoint.write_map(self)
        };
        // Half a checkpoint can't be left behind, and nobody is here to retry.
        write().map_err(|error| self.stop(error))?;
        checkpoint.finish(self)
    }

    /// Asks the background work for a checkpoint, because the log has grown.
    pub fn request_checkpoint(&self) {
        self.checkpoint_wanted.store(true, Ordering::Release);
        self.wake.notify_one();
    }

    /// Ends the current generation.
    pub(crate) fn begin_checkpoint(&self) -> Result<Checkpoint<'_>, EngineError> {
        self.running()?;
        let turn = self.checkpointing.lock();
        let _writer = self.writer.lock();
        let mut tables = self.tables.write();
        let facts = encode_facts(&tables.facts);
        tables
            .put_record(Table::Records, STATE_NAME, facts)
            .map_err(|error| self.stop(error))?;
        let generation = tables.pages.generation();
        let (pages, map) = tables.pages.freeze();
        self.log_bytes.store(0, Ordering::Relaxed);
        self.checkpoint_wanted.store(false, Ordering::Relaxed);
        let checkpoint = Checkpoint {
            _turn: turn,
            generation,
            applied: tables.facts.applied,
            roots: tables.roots,
            end: tables.pages.space.end(),
            pages,
            map,
            written: 0,
            buffer: Vec::with_capacity(WRITE_BYTES),
            buffer_page: 0,
        };
        Ok(checkpoint)
    }
}

/// Stops the store, unless the write can be tried again.
fn stop(store: &Store, error: EngineError) -> EngineError {
    match error.is_no_space() {
        true => error,
        false => store.stop(error),
    }
}

impl Checkpoint<'_> {
    /// Writes some pages; `false` when there are no more. If the disk is full,
    /// nothing is lost and the step can be tried again; any other error has
    /// stopped the store.
    pub(crate) fn step(&mut self, store: &Store) -> Result<bool, EngineError> {
        self.write_some(store).map_err(|error| stop(store, error))
    }

    /// Writes the map of pages, after the pages; to be tried again like
    /// [`Checkpoint::step`].
    pub(crate) fn write_map(&mut self, store: &Store) -> Result<(), EngineError> {
        self.write_map_pages(store)
            .map_err(|error| stop(store, error))
    }

    fn write_some(&mut self, store: &Store) -> Result<bool, EngineError> {
        if self.written == 0 {
            self.pages.sort_unstable();
            self.pages.dedup();
        }
        let next = self.pages.len().min(self.written + STEP_PAGES);
        let contents: Vec<(u64, Content)> = {
            let tables = store.tables.read();
            self.pages[self.written..next]
                .iter()
                .filter_map(|&page| Some((page, tables.pages.frozen(page, self.generation)?)))
                .collect()
        };
        for (page, content) in contents {
            match content {
                Content::Node(bytes) => {
                    self.write(store, page, |out| out.copy_from_slice(&bytes), bytes.len())?
                }
                Content::Value(value) => self.write_run(store, page, PageKind::Value, &value)?,
            }
        }
        self.written = next;
        Ok(next < self.pages.len())
    }

    /// Adds a run that is not a node.
    fn write_run(
        &mut self,
        store: &Store,
        page: u64,
        kind: PageKind,
        content: &[u8],
    ) -> Result<(), EngineError> {
        let pages = run_pages(content.len());
        let header = RunHeader {
            kind: kind as u8,
            pages: u32::try_from(pages).expect("runs are below 16 TiB"),
            bytes: u32::try_from(content.len()).expect("values are below 4 GiB"),
            ..RunHeader::default()
        };
        let fill = |out: &mut [u8]| {
            out[..RUN_HEADER_BYTES].copy_from_slice(&header.encode());
            out[RUN_HEADER_BYTES..][..content.len()].copy_from_slice(content);
        };
        self.write(store, page, fill, pages as usize * PAGE_BYTES)
    }

    /// Adds a run to the buffer, which holds only runs that lie side by side.
    fn write(
        &mut self,
        store: &Store,
        page: u64,
        fill: impl FnOnce(&mut [u8]),
        bytes: usize,
    ) -> Result<(), EngineError> {
        let next = self.buffer_page + (self.buffer.len() / PAGE_BYTES) as u64;
        if page != next || self.buffer.len() + bytes > WRITE_BYTES {
            self.flush(store)?;
            self.buffer_page = page;
        }
        let start = self.buffer.len();
        self.buffer.resize(start + bytes, 0);
        let run = &mut self.buffer[start..];
        fill(run);
        seal(run, page, self.generation);
        Ok(())
    }

    fn flush(&mut self, store: &Store) -> Result<(), EngineError> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        store.write_at(self.buffer_page * PAGE_BYTES as u64, &self.buffer)?;
        self.buffer.clear();
        Ok(())
    }

    /// Makes what was written durable, then the page that leads to it, and lets
    /// go of the pages' memory.
    pub(crate) fn finish(self, store: &Store) -> Result<(), EngineError> {
        let since = Instant::now();
        self.write_meta(store).map_err(|error| store.stop(error))?;
        let counters = &store.config.counters;
        counters.commit_took.record_time(since.elapsed());
        store
            .tables
            .write()
            .pages
            .map_end()
            .map_err(|error| store.stop(error))?;
        for pages in self.pages.chunks(STEP_PAGES) {
            let mut tables = store.tables.write();
            let mut memory = tables.pages.thaw(pages, self.generation);
            tables.pages.keep(&mut memory);
            drop(tables);
            // The rest is freed while nobody waits.
            drop(memory);
        }
        store.tables.write().pages.space.reclaim(self.generation);
        let mut durable = store.durable.lock();
        *durable = Durable {
            generation: self.generation,
            applied: self.applied,
            applied_before: durable.applied,
        };
        drop(durable);
        store.checkpointed.send_replace(self.applied);
        Ok(())
    }

    fn write_map_pages(&mut self, store: &Store) -> Result<(), EngineError> {
        for at in 0..self.map.chunks.len() {
            let (page, chunk) = &self.map.chunks[at];
            let bytes: Vec<u8> = chunk.iter().flat_map(|word| word.to_le_bytes()).collect();
            self.write_run(store, *page, PageKind::Map, &bytes)?;
        }
        let places: Vec<u8> = self
            .map
            .places
            .iter()
            .flat_map(|page| page.to_le_bytes())
            .collect();
        self.write_run(store, self.map.index.page, PageKind::MapIndex, &places)?;
        self.flush(store)
    }

    fn write_meta(&self, store: &Store) -> Result<(), EngineError> {
        assert!(self.buffer.is_empty(), "the map is written before this");
        store.sync()?;
        let place = self.generation % META_PAGES;
        let mut page = vec![0; PAGE_BYTES];
        page[..Meta::BYTES].copy_from_slice(&self.meta(store.config.store).encode());
        seal(&mut page, place, self.generation);
        store.write_at(place * PAGE_BYTES as u64, &page)?;
        store.sync()
    }

    fn meta(&self, store: u128) -> Meta {
        let [current, history, changes, leases, staged, records] = self.roots;
        Meta {
            kind: PageKind::Meta as u8,
            pages: 1,
            version: VERSION,
            magic: MAGIC,
            store,
            end: self.end,
            map_index: self.map.index.page,
            current: current.page,
            current_count: current.count,
            history: history.page,
            history_count: history.count,
            changes: changes.page,
            changes_count: changes.count,
            leases: leases.page,
            leases_count: leases.count,
            staged: staged.page,
            staged_count: staged.count,
            records: records.page,
            records_count: records.count,
            ..Meta::default()
        }
    }
}
