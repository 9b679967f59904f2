//! Page numbers to bytes: clean pages lie in the mapped file, pages that no
//! checkpoint has yet lie in memory.
//!
//! Kept true:
//! - A page gets its final number when it is first changed in a generation,
//!   so a checkpoint writes pages and never rewrites a pointer.
//! - A page of the current generation may be changed in place; any other is
//!   copied to a new number first. So what a checkpoint is writing stands still.
//! - The page above a page of the current generation is of it too.
//! - A clean page's checksum and shape were checked before anyone saw it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use bytes::Bytes;
use pontoon_wal::disk::{MappedFile, Mapping};

use crate::error::EngineError;
use crate::format::{
    PAGE_BYTES, PageHeader, PageKind, RUN_HEADER_BYTES, RunHeader, checksum, run_pages,
};
use crate::node::{self, Node, RunRef};
use crate::space::{FrozenMap, Run, Space};

/// A slot for each page: what is known of it.
const UNCHECKED: u32 = 0;
const CHECKED: u32 = 1;
/// From here on: where in `dirty` it is.
const DIRTY: u32 = 2;
/// Slots that are made at once: few, because a node may have thousands of
/// trees with a few pages each.
const SLOTS: usize = 1 << 12;
/// Least bytes to map.
const MAP_BYTES_MIN: u64 = 64 << 20;

/// The pages of one tree file.
pub(crate) struct Pages {
    path: PathBuf,
    file: Arc<dyn MappedFile>,
    mapping: Box<dyn Mapping>,
    slots: Vec<Box<[AtomicU32]>>,
    dirty: Vec<Option<Dirty>>,
    vacant: Vec<u32>,
    /// Memory of single pages to use again: fresh memory would cost a fault each.
    spare: Vec<Arc<[u8]>>,
    spare_max: usize,
    /// Pages that became dirty in this generation; some may be given up again.
    fresh: Vec<u64>,
    dirty_bytes: usize,
    generation: u64,
    /// Pages that the file has; more may be taken already.
    file_pages: u64,
    pub(crate) space: Space,
}

struct Dirty {
    generation: u64,
    content: Content,
}

/// Bytes of a page in memory.
#[derive(Clone)]
pub(crate) enum Content {
    /// A node, all of its pages.
    Node(Arc<[u8]>),
    /// A large value, without the header of its run.
    Value(Bytes),
}

impl Content {
    /// Pages that it takes.
    pub(crate) fn pages(&self) -> u64 {
        match self {
            Self::Node(bytes) => (bytes.len() / PAGE_BYTES) as u64,
            Self::Value(value) => run_pages(value.len()),
        }
    }

    fn bytes(&self) -> usize {
        self.pages() as usize * PAGE_BYTES
    }
}

impl Pages {
    pub(crate) fn new(
        path: &Path,
        file: Arc<dyn MappedFile>,
        generation: u64,
        space: Space,
        spare_bytes_max: usize,
    ) -> Result<Self, EngineError> {
        let mut pages = Self {
            mapping: map(path, &*file, space.end())?,
            path: path.to_owned(),
            file,
            slots: Vec::new(),
            dirty: Vec::new(),
            vacant: Vec::new(),
            spare: Vec::new(),
            spare_max: spare_bytes_max / PAGE_BYTES,
            fresh: Vec::new(),
            dirty_bytes: 0,
            generation,
            file_pages: 0,
            space,
        };
        pages.cover_end();
        pages.map_end()?;
        Ok(pages)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn file(&self) -> &Arc<dyn MappedFile> {
        &self.file
    }

    /// The generation that the next checkpoint will have.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Bytes of pages in memory.
    pub(crate) fn dirty_bytes(&self) -> usize {
        self.dirty_bytes
    }

    /// Bytes of pages in memory, and of memory that is kept for more.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.dirty_bytes + self.spare.len() * PAGE_BYTES
    }

    /// The memory that is kept for more.
    pub(crate) fn take_spare(&mut self) -> Vec<Arc<[u8]>> {
        std::mem::take(&mut self.spare)
    }

    /// The node on `page`.
    pub(crate) fn node(&self, page: u64) -> Result<Node<'_>, EngineError> {
        let bytes = match self.slot(page) {
            CHECKED => self.mapped(page),
            UNCHECKED => self.check(page)?,
            slot => match self.content(slot) {
                Content::Node(bytes) => bytes,
                Content::Value(_) => {
                    return Err(self.damaged(page, "a value where a node should be"));
                }
            },
        };
        if bytes[4] > PageKind::Branch as u8 {
            return Err(self.damaged(page, "not a node"));
        }
        Ok(Node::new(bytes))
    }

    /// Bytes of the pages of the node on `page`, which may be empty.
    pub(crate) fn node_bytes(&self, page: u64) -> Result<usize, EngineError> {
        Ok(self.node(page)?.bytes().len())
    }

    /// The large value in `run`.
    pub(crate) fn value(&self, run: RunRef) -> Result<&[u8], EngineError> {
        let bytes = match self.slot(run.page) {
            CHECKED => self.mapped(run.page),
            UNCHECKED => self.check(run.page)?,
            slot => match self.content(slot) {
                Content::Value(value) => return Ok(value),
                Content::Node(bytes) => bytes,
            },
        };
        let length = run.bytes as usize;
        let value = bytes.get(RUN_HEADER_BYTES..RUN_HEADER_BYTES + length);
        match value {
            Some(value) if bytes[4] == PageKind::Value as u8 => Ok(value),
            _ => Err(self.damaged(run.page, "not the value that should be here")),
        }
    }

    /// Checks a run that starts at `page`, if it is on disk: how many pages it has.
    pub(crate) fn scrub(&self, page: u64) -> Result<u64, EngineError> {
        let slot = self.slot(page);
        if slot >= DIRTY {
            return Ok(self.content(slot).pages());
        }
        let bytes = self.check(page)?;
        Ok((bytes.len() / PAGE_BYTES) as u64)
    }

    /// The run at `page` of a checkpoint that is on disk.
    pub(crate) fn on_disk(&self, page: u64) -> Result<&[u8], EngineError> {
        self.check(page)
    }

    fn slot(&self, page: u64) -> u32 {
        self.slot_of(page)
            .map_or(UNCHECKED, |slot| slot.load(Ordering::Relaxed))
    }

    fn slot_of(&self, page: u64) -> Option<&AtomicU32> {
        self.slots
            .get(page as usize / SLOTS)?
            .get(page as usize % SLOTS)
    }

    fn content(&self, slot: u32) -> &Content {
        let dirty = self.dirty[(slot - DIRTY) as usize].as_ref();
        &dirty.expect("a slot points to a dirty page").content
    }

    /// The bytes of the run at `page`, which was checked.
    fn mapped(&self, page: u64) -> &[u8] {
        let pages = u32::from_le_bytes(
            self.file_bytes(page, 1)[24..28]
                .try_into()
                .expect("four bytes"),
        );
        match pages {
            1 => self.file_bytes(page, 1),
            _ => self.file_bytes(page, u64::from(pages)),
        }
    }

    #[allow(unsafe_code)]
    fn file_bytes(&self, page: u64, pages: u64) -> &[u8] {
        // SAFETY: callers ask for pages below the end of the file that the
        // last checkpoint refers to. `Space` doesn't let them be written
        // while it does, and the file is only cut (`cut_end`) with `self`
        // borrowed mutably, so not while this slice lives.
        unsafe {
            self.mapping
                .slice(page * PAGE_BYTES as u64, pages as usize * PAGE_BYTES)
        }
    }

    /// What is known of a page on disk that was found to be right.
    fn known(&self) -> u32 {
        if self.mapping.is_volatile() {
            UNCHECKED
        } else {
            CHECKED
        }
    }

    /// Whether `page` was not read since the file was opened.
    pub(crate) fn is_cold(&self, page: u64) -> bool {
        self.slot(page) == UNCHECKED
    }

    /// Says that pages will be wanted soon.
    pub(crate) fn prefetch(&self, page: u64, pages: u64) {
        let pages = pages.min(self.file_pages.saturating_sub(page));
        if pages > 0 {
            let bytes = pages as usize * PAGE_BYTES;
            self.mapping.prefetch(page * PAGE_BYTES as u64, bytes);
        }
    }

    /// Checks a run that lies in the file, and remembers that it was.
    #[cold]
    fn check(&self, page: u64) -> Result<&[u8], EngineError> {
        if page >= self.file_pages || !self.space.is_taken(page) {
            return Err(self.damaged(page, "a reference to a page that is not in use"));
        }
        let header = PageHeader::decode(self.file_bytes(page, 1)).expect("a page is longer");
        let pages = u64::from(header.pages);
        if pages == 0 || pages > self.file_pages - page {
            return Err(self.damaged(page, "its length makes no sense"));
        }
        let bytes = self.file_bytes(page, pages);
        check_run(bytes, page).map_err(|reason| self.damaged(page, reason))?;
        if let Some(slot) = self.slot_of(page) {
            slot.store(self.known(), Ordering::Relaxed);
        }
        Ok(bytes)
    }

    pub(crate) fn damaged(&self, page: u64, reason: &str) -> EngineError {
        EngineError::Damaged {
            file: self.path.clone(),
            page,
            reason: reason.to_owned(),
        }
    }

    /// Whether `page` may be changed in place.
    pub(crate) fn is_own(&self, page: u64) -> bool {
        let slot = self.slot(page);
        slot >= DIRTY
            && self.dirty[(slot - DIRTY) as usize]
                .as_ref()
                .is_some_and(|dirty| dirty.generation == self.generation)
    }

    /// The bytes of a node that may be changed in place.
    pub(crate) fn node_mut(&mut self, page: u64) -> &mut [u8] {
        let slot = self.slot(page);
        let dirty = self.dirty[(slot - DIRTY) as usize].as_mut();
        match dirty {
            Some(Dirty {
                generation,
                content: Content::Node(bytes),
            }) if *generation == self.generation => {
                Arc::get_mut(bytes).expect("only pages of earlier generations are shared")
            }
            _ => panic!("page {page} is not a node that may be changed"),
        }
    }

    /// Makes `page` one that may be changed in place; returns its new number.
    pub(crate) fn own(&mut self, page: u64) -> Result<u64, EngineError> {
        if self.is_own(page) {
            return Ok(page);
        }
        let spare = self.spare.pop();
        let copy = image_in(spare, self.node(page)?.bytes());
        self.give_up(Run {
            page,
            pages: (copy.len() / PAGE_BYTES) as u64,
        });
        Ok(self.add(Content::Node(copy)))
    }

    /// Puts another image in the place of a node that may be changed; returns
    /// its number, which is new if the length is.
    pub(crate) fn replace(&mut self, page: u64, image: Vec<u8>) -> u64 {
        let bytes = self.node_mut(page);
        if bytes.len() == image.len() {
            bytes.copy_from_slice(&image);
            return page;
        }
        let pages = (bytes.len() / PAGE_BYTES) as u64;
        self.give_up(Run { page, pages });
        self.add_node(image)
    }

    /// A new node.
    pub(crate) fn add_node(&mut self, image: Vec<u8>) -> u64 {
        let spare = self.spare.pop();
        self.add(Content::Node(image_in(spare, &image)))
    }

    /// A new large value.
    pub(crate) fn add_value(&mut self, value: Bytes) -> RunRef {
        let bytes = u32::try_from(value.len()).expect("values are below 4 GiB");
        let page = self.add(Content::Value(value));
        RunRef { page, bytes }
    }

    fn add(&mut self, content: Content) -> u64 {
        let page = self.space.take(content.pages());
        self.cover_end();
        self.dirty_bytes += content.bytes();
        let dirty = Some(Dirty {
            generation: self.generation,
            content,
        });
        let index = match self.vacant.pop() {
            Some(index) => {
                self.dirty[index as usize] = dirty;
                index
            }
            None => {
                self.dirty.push(dirty);
                self.dirty.len() as u32 - 1
            }
        };
        self.set_slot(page, DIRTY + index);
        self.fresh.push(page);
        page
    }

    fn set_slot(&self, page: u64, to: u32) {
        let slot = self.slot_of(page).expect("slots reach to the end");
        slot.store(to, Ordering::Relaxed);
    }

    fn cover_end(&mut self) {
        let chunks = (self.space.end() as usize).div_ceil(SLOTS);
        if chunks > self.slots.len() {
            self.slots
                .resize_with(chunks, || bytemuck::zeroed_slice_box(SLOTS));
        }
    }

    /// Gives up the node on `page`, or the value in a run.
    pub(crate) fn give_up(&mut self, run: Run) {
        let slot = self.slot(run.page);
        let own = self.is_own(run.page);
        if own {
            // Nobody else has seen it: it is as if it had never been.
            self.forget(run.page, slot);
        }
        self.space.give_up(run, self.generation, own);
    }

    pub(crate) fn give_up_value(&mut self, run: RunRef) -> Result<(), EngineError> {
        let pages = run_pages(run.bytes as usize);
        // The reference comes from disk, and the value is not worth reading.
        if !(run.page..run.page.saturating_add(pages)).all(|page| self.space.is_used(page)) {
            return Err(self.damaged(run.page, "a value whose pages are not in use"));
        }
        self.give_up(Run {
            page: run.page,
            pages,
        });
        Ok(())
    }

    fn forget(&mut self, page: u64, slot: u32) -> Option<Content> {
        let index = slot - DIRTY;
        let dirty = self.dirty[index as usize].take()?;
        self.vacant.push(index);
        self.dirty_bytes -= dirty.content.bytes();
        self.set_slot(page, UNCHECKED);
        Some(dirty.content)
    }

    /// Ends the current generation: from now on its pages stand still.
    /// Returns them (some may be given up already) and the map.
    pub(crate) fn freeze(&mut self) -> (Vec<u64>, FrozenMap) {
        let map = self.space.freeze(self.generation);
        self.cover_end();
        self.generation += 1;
        (std::mem::take(&mut self.fresh), map)
    }

    /// The bytes of a page of `generation`, if it is one.
    pub(crate) fn frozen(&self, page: u64, generation: u64) -> Option<Content> {
        let slot = self.slot(page);
        let dirty = self
            .dirty
            .get(slot.checked_sub(DIRTY)? as usize)?
            .as_ref()?;
        (dirty.generation == generation).then(|| dirty.content.clone())
    }

    /// Lets go of pages of `generation`, which the file has now; whether it really
    /// has, the next read of each finds out. Returns the memory, so that it can be
    /// freed without holding a lock.
    pub(crate) fn thaw(&mut self, pages: &[u64], generation: u64) -> Vec<Content> {
        let mut memory = Vec::with_capacity(pages.len());
        for &page in pages {
            if self.frozen(page, generation).is_some() {
                memory.extend(self.forget(page, self.slot(page)));
            }
        }
        memory
    }

    /// Keeps memory that [`Pages::thaw`] gave back, as much as is useful.
    pub(crate) fn keep(&mut self, memory: &mut Vec<Content>) {
        while self.spare.len() < self.spare_max
            && let Some(content) = memory.pop()
        {
            if let Content::Node(mut bytes) = content
                && bytes.len() == PAGE_BYTES
                && Arc::get_mut(&mut bytes).is_some()
            {
                self.spare.push(bytes);
            }
        }
    }

    /// Makes the mapping reach to the end of the file.
    pub(crate) fn map_end(&mut self) -> Result<(), EngineError> {
        let size = self.size()?;
        if size > self.mapping.bytes() {
            self.mapping = map(&self.path, &*self.file, size / PAGE_BYTES as u64)?;
        }
        self.file_pages = size / PAGE_BYTES as u64;
        Ok(())
    }

    /// Gives free pages at the end of the file back to the file system.
    pub(crate) fn cut_end(&mut self) -> Result<u64, EngineError> {
        let end = self.space.cut_end() * PAGE_BYTES as u64;
        let size = self.size()?;
        if size > end {
            self.file.set_size(end).map_err(|error| {
                EngineError::disk(&self.path, format!("cut to {end} bytes"), error)
            })?;
            self.file_pages = end / PAGE_BYTES as u64;
        }
        Ok(size.saturating_sub(end))
    }

    fn size(&self) -> Result<u64, EngineError> {
        let size = self.file.size();
        size.map_err(|error| EngineError::disk(&self.path, "size", error))
    }
}

/// `image`, in memory that may be there already.
fn image_in(spare: Option<Arc<[u8]>>, image: &[u8]) -> Arc<[u8]> {
    if let Some(mut spare) = spare
        && let Some(bytes) = Arc::get_mut(&mut spare)
        && bytes.len() == image.len()
    {
        bytes.copy_from_slice(image);
        return spare;
    }
    Arc::from(image)
}

fn map(path: &Path, file: &dyn MappedFile, end: u64) -> Result<Box<dyn Mapping>, EngineError> {
    let bytes = (2 * end * PAGE_BYTES as u64)
        .next_power_of_two()
        .max(MAP_BYTES_MIN);
    file.map(bytes)
        .map_err(|error| EngineError::disk(path, format!("map of {bytes} bytes"), error))
}

/// Checks the bytes of a whole run that should be at `page`.
pub(crate) fn check_run(bytes: &[u8], page: u64) -> Result<(), &'static str> {
    let header = RunHeader::decode(bytes).ok_or("too short")?;
    if header.crc != checksum(bytes) {
        return Err("its checksum is wrong");
    }
    if header.page != page {
        return Err("it was written for another place");
    }
    match header.kind {
        kind if kind == PageKind::Leaf as u8 || kind == PageKind::Branch as u8 => {
            node::check_shape(bytes)
        }
        kind if kind == PageKind::Value as u8
            || kind == PageKind::Map as u8
            || kind == PageKind::MapIndex as u8 =>
        {
            if header.bytes as usize > bytes.len() - RUN_HEADER_BYTES {
                return Err("it says that it is longer than it is");
            }
            Ok(())
        }
        _ => Err("it is of no known kind"),
    }
}
