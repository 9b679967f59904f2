//! Reading pages of a file that nothing is known of.
//!
//! Kept true: bytes are handed out only after their checksum, their place
//! and their shape were found good, and nothing can change them afterwards.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use pontoon_wal::Blocks;
use pontoon_wal::disk::{Disk, DiskFile};

use crate::error::EngineError;
use crate::format::{
    MAGIC, META_PAGES, Meta, PAGE_BYTES, PageKind, RUN_HEADER_BYTES, RunHeader, VERSION, checksum,
    run_pages,
};
use crate::node::{Child, Item, Node, RunRef};
use crate::open::decode_facts;
use crate::pages::check_run;
use crate::store::Facts;
use crate::tables::{STATE_NAME, Table};

/// Bytes of nodes that are kept for the next look.
const CACHE_BYTES_MAX: usize = 32 << 20;
/// Pages that are read at once; a longer run is taken whole only when its
/// checksum says that it is one.
const READ_PAGES_MAX: u64 = 256;
/// As in the tree: no tree is deeper.
pub(super) const LEVELS_MAX: u8 = 40;

pub(super) struct Reader {
    pub(super) path: PathBuf,
    file: Arc<dyn DiskFile>,
    /// Length of the file.
    pub(super) bytes: u64,
    /// Whole pages in it.
    pub(super) pages: u64,
    cache: RefCell<HashMap<u64, Rc<Run>>>,
    cache_bytes: Cell<usize>,
}

/// A node, a value or a page of the map: all its pages, found good.
pub(super) struct Run {
    pub(super) header: RunHeader,
    bytes: Blocks,
}

impl Run {
    pub(super) fn bytes(&self) -> &[u8] {
        self.bytes.as_slice()
    }

    pub(super) fn pages(&self) -> u64 {
        u64::from(self.header.pages)
    }

    /// Only of runs that [`Reader::node`] gave out.
    pub(super) fn node(&self) -> Node<'_> {
        Node::new(self.bytes())
    }

    /// Only of runs that are not nodes.
    pub(super) fn content(&self) -> &[u8] {
        &self.bytes()[RUN_HEADER_BYTES..][..self.header.bytes as usize]
    }
}

impl Reader {
    pub(super) fn open(disk: &dyn Disk, path: &Path) -> Result<Self, EngineError> {
        let fail = |error| EngineError::disk(path, "read", error);
        let file = disk.open(path, false).map_err(fail)?;
        let bytes = file.size().map_err(fail)?;
        let reader = Self {
            path: path.to_owned(),
            file,
            bytes,
            pages: bytes / PAGE_BYTES as u64,
            cache: RefCell::default(),
            cache_bytes: Cell::new(0),
        };
        // A directory opens, too, and is not a file that could be read.
        reader
            .file
            .read_at(0, Blocks::zeroed(PAGE_BYTES).as_mut_slice())
            .map_err(fail)?;
        Ok(reader)
    }

    /// Bytes of pages, unchecked.
    pub(super) fn raw(&self, page: u64, pages: u64) -> Result<Blocks, String> {
        if pages > self.pages || page > self.pages - pages {
            return Err("it lies behind the end of the file".to_owned());
        }
        let mut blocks = Blocks::zeroed(pages as usize * PAGE_BYTES);
        let into = blocks.as_mut_slice();
        let mut filled = 0;
        while filled < into.len() {
            let at = page * PAGE_BYTES as u64 + filled as u64;
            match self.file.read_at(at, &mut into[filled..]) {
                Ok(0) => return Err("the file ends here".to_owned()),
                Ok(bytes) => filled += bytes,
                Err(error) => return Err(format!("it can't be read: {error}")),
            }
        }
        Ok(blocks)
    }

    /// The run that begins at `page`.
    pub(super) fn run(&self, page: u64) -> Result<Run, String> {
        if page < META_PAGES {
            return Err("a reference to a meta page".to_owned());
        }
        let mut bytes = self.raw(page, 1)?;
        let header = RunHeader::decode(bytes.as_slice()).expect("a page is longer");
        let pages = u64::from(header.pages);
        if pages == 0 || pages > self.pages - page {
            return Err("its length makes no sense".to_owned());
        }
        if pages > READ_PAGES_MAX {
            self.check_long(page, pages, header.crc)?;
        }
        if pages > 1 {
            bytes = self.raw(page, pages)?;
        }
        check_run(bytes.as_slice(), page)?;
        let header = RunHeader::decode(bytes.as_slice()).expect("a page is longer");
        if u64::from(header.pages) != pages {
            return Err("it is in motion".to_owned());
        }
        Ok(Run { header, bytes })
    }

    fn check_long(&self, page: u64, pages: u64, crc: u32) -> Result<(), String> {
        let mut hasher = crc32fast::Hasher::new();
        let mut next = page;
        while next < page + pages {
            let some = READ_PAGES_MAX.min(page + pages - next);
            let bytes = self.raw(next, some)?;
            let skip = if next == page { 4 } else { 0 };
            hasher.update(&bytes.as_slice()[skip..]);
            next += some;
        }
        match hasher.finalize() == crc {
            true => Ok(()),
            false => Err("its checksum is wrong".to_owned()),
        }
    }

    /// The node on `page`.
    pub(super) fn node(&self, page: u64) -> Result<Rc<Run>, String> {
        if let Some(run) = self.cache.borrow().get(&page) {
            return Ok(Rc::clone(run));
        }
        let run = Rc::new(self.run(page)?);
        if run.header.kind > PageKind::Branch as u8 {
            return Err("not a node".to_owned());
        }
        if run.header.level >= LEVELS_MAX {
            return Err("the tree is too deep".to_owned());
        }
        let bytes = self.cache_bytes.get() + run.bytes().len();
        if bytes > CACHE_BYTES_MAX {
            self.cache.borrow_mut().clear();
            self.cache_bytes.set(run.bytes().len());
        } else {
            self.cache_bytes.set(bytes);
        }
        self.cache.borrow_mut().insert(page, Rc::clone(&run));
        Ok(run)
    }

    /// The child that hangs in branch cell `i`.
    pub(super) fn child(&self, branch: &Run, i: usize) -> Result<Rc<Run>, String> {
        let child = self.node(branch.node().child(i).page)?;
        match child.header.level + 1 == branch.header.level {
            true => Ok(child),
            false => Err("a node of the wrong level".to_owned()),
        }
    }

    /// The large value in a run.
    pub(super) fn value(&self, at: RunRef) -> Result<Run, String> {
        let run = self.run(at.page)?;
        if run.header.kind != PageKind::Value as u8
            || run.header.bytes != at.bytes
            || run.pages() != run_pages(at.bytes as usize)
        {
            return Err("not the value that should be here".to_owned());
        }
        Ok(run)
    }

    /// Whether anything says that this is a tree file.
    pub(super) fn is_tree(&self) -> bool {
        let magic_at = Meta::LAYOUT.offset("magic");
        (0..META_PAGES.min(self.pages)).any(|page| {
            let Ok(bytes) = self.raw(page, 1) else {
                return true;
            };
            let meta = Meta::decode(bytes.as_slice()).expect("a page is longer");
            let looks_so = bytes.as_slice()[magic_at..].starts_with(&MAGIC.to_le_bytes());
            looks_so || meta.kind == PageKind::Meta as u8 && meta.crc == checksum(bytes.as_slice())
        })
    }

    /// The meta page in place 0 or 1.
    pub(super) fn meta(&self, page: u64) -> Result<Meta, String> {
        let bytes = self.raw(page, 1)?;
        if bytes.as_slice().iter().all(|byte| *byte == 0) {
            return Err("it is empty, as in a file made of a snapshot".to_owned());
        }
        let meta = Meta::decode(bytes.as_slice()).expect("a page is longer");
        if meta.crc != checksum(bytes.as_slice()) {
            return Err("its checksum is wrong".to_owned());
        }
        if meta.kind != PageKind::Meta as u8 || meta.magic != MAGIC {
            return Err("not a meta page of a tree file".to_owned());
        }
        if meta.version != VERSION {
            return Err(format!(
                "its format is version {}, this program knows {VERSION}",
                meta.version
            ));
        }
        if meta.page != page || meta.generation % META_PAGES != page {
            return Err("it was written for another place".to_owned());
        }
        Ok(meta)
    }

    /// Where `key` is. `Err` if a page on the way can't be read.
    pub(super) fn get(&self, root: Child, key: &[u8]) -> Result<Option<Entry>, ()> {
        if root.page == 0 {
            return Ok(None);
        }
        let mut page = root.page;
        let mut run = self.node(page).map_err(drop)?;
        while !run.node().is_leaf() {
            let i = run.node().route(key);
            page = run.node().child(i).page;
            run = self.child(&run, i).map_err(drop)?;
        }
        let found = run.node().search(key).ok();
        Ok(found.map(|i| Entry { page, run, i }))
    }

    /// What a record of the tables `staged` and `records` holds.
    pub(super) fn record(&self, item: Item<'_>) -> Result<Vec<u8>, String> {
        match item.run {
            None => Ok(item.payload.to_vec()),
            Some(run) => self.value(run).map(|run| run.content().to_vec()),
        }
    }

    /// What the checkpoint says of its store.
    pub(super) fn store_facts(&self, meta: &Meta) -> Option<Facts> {
        let root = super::root(meta, Table::Records);
        let entry = self.get(root, STATE_NAME).ok()??;
        decode_facts(&self.record(entry.item()).ok()?)
    }
}

/// An entry of a table, with the leaf that has it.
pub(super) struct Entry {
    pub(super) page: u64,
    run: Rc<Run>,
    i: usize,
}

impl Entry {
    pub(super) fn key(&self) -> Vec<u8> {
        self.run.node().key(self.i)
    }

    pub(super) fn item(&self) -> Item<'_> {
        self.run.node().item(self.i)
    }
}

/// The entries of a table in order, as far as they can be read.
pub(super) struct Scan<'r> {
    reader: &'r Reader,
    /// From the root down: a page and which of its cells is next.
    path: Vec<(u64, Rc<Run>, usize)>,
    seen: Bits,
    /// Pages that could not be read, and why; the first few.
    pub(super) unread: Vec<(u64, String)>,
}

impl<'r> Scan<'r> {
    /// From the first key that is not below `from`.
    pub(super) fn new(reader: &'r Reader, root: Child, from: &[u8]) -> Self {
        let mut scan = Self {
            reader,
            path: Vec::new(),
            seen: Bits::default(),
            unread: Vec::new(),
        };
        if root.page != 0 {
            let node = reader.node(root.page);
            scan.go_down(root.page, node);
        }
        while let Some((_, run, next)) = scan.path.last_mut() {
            let node = run.node();
            if node.is_leaf() {
                let (Ok(i) | Err(i)) = node.search(from);
                *next = i;
                break;
            }
            let i = node.route(from);
            *next = i + 1;
            let (page, child) = (node.child(i).page, reader.child(run, i));
            if !scan.go_down(page, child) {
                break;
            }
        }
        scan
    }

    fn go_down(&mut self, page: u64, node: Result<Rc<Run>, String>) -> bool {
        match node {
            Ok(_) if !self.seen.set(page) => false,
            Ok(run) => {
                self.path.push((page, run, 0));
                true
            }
            Err(reason) => {
                if self.unread.len() < 100 {
                    self.unread.push((page, reason));
                }
                false
            }
        }
    }
}

impl Iterator for Scan<'_> {
    type Item = Entry;

    fn next(&mut self) -> Option<Entry> {
        loop {
            let (page, run, next) = self.path.last_mut()?;
            let i = *next;
            *next += 1;
            let node = run.node();
            if i >= node.count() {
                self.path.pop();
            } else if node.is_leaf() {
                return Some(Entry {
                    page: *page,
                    run: Rc::clone(run),
                    i,
                });
            } else {
                let (page, child) = (node.child(i).page, self.reader.child(run, i));
                self.go_down(page, child);
            }
        }
    }
}

/// A set of page numbers.
#[derive(Clone, Default)]
pub(super) struct Bits(Vec<u64>);

impl Bits {
    pub(super) fn has(&self, page: u64) -> bool {
        let word = self.0.get(page as usize / 64);
        word.is_some_and(|word| word & 1 << (page % 64) != 0)
    }

    /// Adds a page, which must lie inside the file; `false` if it is there.
    pub(super) fn set(&mut self, page: u64) -> bool {
        let word = page as usize / 64;
        if word >= self.0.len() {
            self.0.resize(word + 1, 0);
        }
        let new = !self.has(page);
        self.0[word] |= 1 << (page % 64);
        new
    }

    pub(super) fn set_all(&mut self, pages: impl IntoIterator<Item = u64>) {
        for page in pages {
            self.set(page);
        }
    }

    pub(super) fn count(&self) -> u64 {
        self.0.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// Pages that are here and not in `other`, in runs: first and last.
    pub(super) fn without(&self, other: &Self) -> Vec<(u64, u64)> {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for (w, word) in self.0.iter().enumerate() {
            let mut rest = word & !other.0.get(w).copied().unwrap_or(0);
            while rest != 0 {
                let page = w as u64 * 64 + u64::from(rest.trailing_zeros());
                rest &= rest - 1;
                match runs.last_mut() {
                    Some((_, last)) if *last + 1 == page => *last = page,
                    _ => runs.push((page, page)),
                }
            }
        }
        runs
    }
}
