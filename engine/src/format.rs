//! The bytes of a tree file. `docs/format.md` explains them, and a test
//! compares its tables with the layouts here.
//!
//! Kept true: every page, or run of pages that belong together, begins with a
//! checksum over all its other bytes and with its own page number, so that a
//! page that was damaged or written to the wrong place is never taken for good.

use pontoon_wal::format::Layout;
use pontoon_wal::layout;

/// Version of everything below.
pub const VERSION: u32 = 2;
/// Bytes of a page.
pub const PAGE_BYTES: usize = 4096;
/// The first bytes of a tree file, after the header: "PNTNTREE".
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"PNTNTREE");
/// Pages 0 and 1 say where everything is, in turns.
pub(crate) const META_PAGES: u64 = 2;
/// Bytes that name a run.
pub(crate) const RUN_REF_BYTES: usize = 12;
/// Bytes before a node's prefix.
pub(crate) const NODE_HEADER_BYTES: usize = NodeHeader::BYTES;
/// Bytes before a value in its run.
pub(crate) const RUN_HEADER_BYTES: usize = RunHeader::BYTES;
/// Pages that one page of the map covers.
pub(crate) const MAP_PAGES: u64 = 8 * (PAGE_BYTES - RUN_HEADER_BYTES) as u64;

/// What a page, or a run of pages, holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum PageKind {
    /// Entries of a table.
    Leaf = 1,
    /// Subtrees.
    Branch = 2,
    /// One large value.
    Value = 3,
    /// Which pages are in use, one bit each.
    Map = 4,
    /// Where the pages of the map are.
    MapIndex = 5,
    /// Where everything is.
    Meta = 6,
}

layout! {
    /// The first bytes of every page or run, whatever it holds.
    PageHeader {
        crc: u32,
        kind: u8,
        level: u8,
        shift: u8,
        reserved: u8,
        page: u64,
        generation: u64,
        pages: u32,
    }
}

layout! {
    /// A node: the page header, and where its cells are.
    NodeHeader {
        crc: u32,
        kind: u8,
        level: u8,
        shift: u8,
        reserved: u8,
        page: u64,
        generation: u64,
        pages: u32,
        count: u16,
        prefix: u16,
        cells: u32,
        wasted: u32,
    }
}

layout! {
    /// A run that is not a node (a value, a page of the map or of its index):
    /// the page header, and how many bytes follow.
    RunHeader {
        crc: u32,
        kind: u8,
        level: u8,
        shift: u8,
        reserved: u8,
        page: u64,
        generation: u64,
        pages: u32,
        bytes: u32,
    }
}

layout! {
    /// A meta page: the page header, and the roots of a whole checkpoint.
    Meta {
        crc: u32,
        kind: u8,
        level: u8,
        shift: u8,
        reserved: u8,
        page: u64,
        generation: u64,
        pages: u32,
        version: u32,
        magic: u64,
        store: u128,
        end: u64,
        map_index: u64,
        current: u64,
        current_count: u64,
        history: u64,
        history_count: u64,
        changes: u64,
        changes_count: u64,
        leases: u64,
        leases_count: u64,
        staged: u64,
        staged_count: u64,
        records: u64,
        records_count: u64,
    }
}

layout! {
    /// The state of a store beside its tables: the first bytes of the record
    /// of that name, before the keys that the store is responsible for.
    State {
        revision: i64,
        last: i64,
        floor: i64,
        swept: i64,
        sweep_revision: i64,
        sweep_sub: u32,
        key_bytes: u32,
        index: u64,
        term: u64,
        leader: u64,
        keys_hash: u64,
        records_hash: u64,
        outside_hash: u64,
        end_bytes: u32,
        splits: u32,
        is_outside_known: u8,
        is_shedding: u8,
    }
}

layout! {
    /// Keys that were split off: what stands before the first key and the end.
    SplitHead {
        floor: i64,
        revision: i64,
        last: i64,
        key_bytes: u32,
        end_bytes: u32,
    }
}

impl NodeHeader {
    pub(crate) const KIND: usize = Self::LAYOUT.offset("kind");
    pub(crate) const LEVEL: usize = Self::LAYOUT.offset("level");
    pub(crate) const SHIFT: usize = Self::LAYOUT.offset("shift");
    pub(crate) const PAGES: usize = Self::LAYOUT.offset("pages");
    pub(crate) const COUNT: usize = Self::LAYOUT.offset("count");
    pub(crate) const PREFIX: usize = Self::LAYOUT.offset("prefix");
    pub(crate) const CELLS: usize = Self::LAYOUT.offset("cells");
    pub(crate) const WASTED: usize = Self::LAYOUT.offset("wasted");
}

impl PageHeader {
    const PAGE: usize = Self::LAYOUT.offset("page");
    const GENERATION: usize = Self::LAYOUT.offset("generation");
}

/// Completes a run that is about to be written: its place, its age, its checksum.
pub(crate) fn seal(bytes: &mut [u8], page: u64, generation: u64) {
    bytes[PageHeader::PAGE..][..8].copy_from_slice(&page.to_le_bytes());
    bytes[PageHeader::GENERATION..][..8].copy_from_slice(&generation.to_le_bytes());
    let crc = checksum(bytes);
    bytes[..4].copy_from_slice(&crc.to_le_bytes());
}

/// The structures of a tree file.
pub const LAYOUTS: &[Layout] = &[
    PageHeader::LAYOUT,
    NodeHeader::LAYOUT,
    RunHeader::LAYOUT,
    Meta::LAYOUT,
    State::LAYOUT,
    SplitHead::LAYOUT,
];

/// Checksum of a run: all its bytes but the checksum itself.
pub(crate) fn checksum(bytes: &[u8]) -> u32 {
    crc32fast::hash(&bytes[4..])
}

/// Bytes that a value takes in a run of its own, in pages.
pub(crate) fn run_pages(bytes: usize) -> u64 {
    (RUN_HEADER_BYTES + bytes).div_ceil(PAGE_BYTES) as u64
}
