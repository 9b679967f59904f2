//! One file: what is durable of it, and what only the page cache holds.
//!
//! Kept true:
//! - A file is its durable bytes plus the changes that only the page cache
//!   holds, oldest first. Reads see both; a power cut keeps the durable bytes
//!   and, of the cached writes, the sectors that the seed chooses; of the
//!   cached sizes it keeps a prefix, because a file system journals them.
//! - A change that becomes durable is cut out of the older cached writes, so
//!   that nothing older can come back over it. (Commits in flight that overlap
//!   therefore behave as if the device kept their order, which no real one
//!   promises.)
//! - While the version stays the same, so does all that can be read.

use std::mem;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use super::{Rng, SECTOR_BYTES, in_memory};

#[derive(Clone, Default)]
pub(super) struct Inode {
    durable: Arc<Vec<u8>>,
    /// Changes that are not all in `durable`, oldest first.
    cached: Vec<Change>,
    version: u64,
    /// Open files have a clone, so that the count tells whether there are any.
    handles: Arc<()>,
}

impl Inode {
    pub(super) fn holding(durable: Vec<u8>) -> Self {
        Self {
            durable: Arc::new(durable),
            ..Self::default()
        }
    }

    pub(super) fn handle(&self) -> Arc<()> {
        self.handles.clone()
    }

    pub(super) fn is_open(&self) -> bool {
        Arc::strong_count(&self.handles) > 1
    }

    /// For a copy: handles and commits in flight stay with the original.
    pub(super) fn forget_handles(&mut self) {
        self.handles = Arc::default();
        for write in self.writes() {
            if write.fate == Fate::InFlight {
                write.fate = Fate::Dirty;
            }
        }
    }

    pub(super) fn version(&self) -> u64 {
        self.version
    }

    pub(super) fn len(&self) -> usize {
        let len = self.durable.len();
        self.cached.iter().fold(len, |len, change| match change {
            Change::Write(write) => len.max(write.range().end),
            Change::Size(bytes) => *bytes,
        })
    }

    pub(super) fn read(&self, offset: usize, into: &mut [u8]) -> usize {
        let end = self.len().min(offset + into.len());
        let asked = offset..end.max(offset);
        let into = &mut into[..asked.len()];
        into.fill(0);
        let mut show = |start: usize, bytes: &[u8]| {
            let from = asked.start.max(start);
            let to = asked.end.min(start + bytes.len());
            if from < to {
                into[from - offset..to - offset].copy_from_slice(&bytes[from - start..to - start]);
            }
        };
        show(0, &self.durable);
        for change in &self.cached {
            match change {
                Change::Write(write) => show(write.offset, &write.bytes),
                // What it cut off is zeros, should the file have grown again.
                Change::Size(bytes) if asked.end > *bytes => {
                    let cut = asked.start.max(*bytes);
                    show(cut, &vec![0; asked.end - cut]);
                }
                Change::Size(_) => {}
            }
        }
        asked.len()
    }

    pub(super) fn write(&mut self, id: u64, offset: usize, bytes: &[u8], fate: Fate) {
        self.version += 1;
        self.cached.push(Change::Write(Write {
            id,
            offset,
            bytes: Bytes::copy_from_slice(bytes),
            fate,
        }));
    }

    pub(super) fn set_len(&mut self, bytes: usize) {
        self.version += 1;
        self.cached.push(Change::Size(bytes));
    }

    /// Changes one visible byte, wherever it is kept; `id` is for the write
    /// that this is if the byte is not kept at all yet.
    pub(super) fn flip(&mut self, at: usize, mask: u8, id: u64) {
        self.version += 1;
        let visible = |inode: &Self| {
            let mut byte = [0];
            inode.read(at, &mut byte);
            byte[0]
        };
        let before = visible(self);
        if at < self.durable.len() {
            Arc::make_mut(&mut self.durable)[at] ^= mask;
        }
        for write in self.writes().filter(|w| w.range().contains(&at)) {
            let mut bytes = write.bytes.to_vec();
            bytes[at - write.offset] ^= mask;
            write.bytes = bytes.into();
        }
        // A zero of a size that was not synced has no place of its own.
        if visible(self) == before {
            self.write(id, at, &[before ^ mask], Fate::Dirty);
        }
    }

    /// No later sync saves the chosen writes. Sizes are not chosen: they are
    /// the journal's, which goes on.
    pub(super) fn lose(&mut self, chosen: impl Fn(&Write) -> bool) {
        for write in self.writes().filter(|write| chosen(write)) {
            write.fate = Fate::Lost;
        }
    }

    /// Makes everything durable but for the writes that a failed sync lost; or
    /// just the write `only`, with the sizes that it was written on top of.
    pub(super) fn make_durable(&mut self, only: Option<u64>) {
        let chosen =
            |write: &Write| write.fate != Fate::Lost && only.is_none_or(|id| write.id == id);
        let is_chosen = |change: &Change| matches!(change, Change::Write(write) if chosen(write));
        let end = match only {
            None => self.cached.len(),
            Some(_) => self.cached.iter().rposition(is_chosen).unwrap_or(0),
        };
        let mut rest: Vec<Change> = Vec::new();
        for (index, change) in mem::take(&mut self.cached).into_iter().enumerate() {
            let hole = match &change {
                Change::Write(write) if chosen(write) => {
                    put(&mut self.durable, write.offset, &write.bytes);
                    write.range()
                }
                Change::Size(bytes) if index < end => {
                    Arc::make_mut(&mut self.durable).resize(*bytes, 0);
                    *bytes..usize::MAX
                }
                _ => {
                    rest.push(change);
                    continue;
                }
            };
            let outside = rest.into_iter().flat_map(|older| older.outside(&hole));
            rest = outside.collect();
        }
        self.cached = rest;
    }

    /// Keeps of each cached write the sectors that the seed chooses, and of
    /// the cached sizes the first few.
    pub(super) fn lose_power(&mut self, rng: &mut Rng) {
        let is_size = |change: &&Change| matches!(change, Change::Size(_));
        let mut sizes = match self.cached.iter().filter(is_size).count() {
            0 => 0,
            count => rng.below(count as u64 + 1),
        };
        for change in mem::take(&mut self.cached) {
            match change {
                Change::Write(write) if write.fate == Fate::Lost => {}
                Change::Write(write) => self.tear(&write, rng),
                Change::Size(_) if sizes == 0 => {}
                Change::Size(bytes) => {
                    sizes -= 1;
                    Arc::make_mut(&mut self.durable).resize(bytes, 0);
                }
            }
        }
    }

    fn tear(&mut self, write: &Write, rng: &mut Rng) {
        let sectors = write.bytes.chunks(SECTOR_BYTES);
        let pattern = rng.below(5);
        let cut = in_memory(rng.below(sectors.len() as u64 + 1));
        let leaves_garbage = rng.chance(1, 4);
        for (index, sector) in sectors.enumerate() {
            let survives = match pattern {
                0 => false,
                1 => true,
                2 => index < cut,
                3 => index >= cut,
                _ => rng.chance(1, 2),
            };
            let offset = write.offset + index * SECTOR_BYTES;
            if survives {
                put(&mut self.durable, offset, sector);
            } else if leaves_garbage && rng.chance(1, 4) {
                let words = std::iter::repeat_with(|| rng.next_u64().to_le_bytes());
                let garbage: Vec<u8> = words.flatten().take(sector.len()).collect();
                put(&mut self.durable, offset, &garbage);
            }
        }
    }

    fn writes(&mut self) -> impl Iterator<Item = &mut Write> {
        self.cached.iter_mut().filter_map(|change| match change {
            Change::Write(write) => Some(write),
            Change::Size(_) => None,
        })
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// The next sync makes it durable.
    Dirty,
    /// So does the end of its commit.
    InFlight,
    /// A sync failed: it is in the page cache until the power fails.
    Lost,
}

/// What the page cache holds and the medium may not.
#[derive(Clone)]
enum Change {
    Write(Write),
    /// The file was cut or grown to this many bytes.
    Size(usize),
}

impl Change {
    fn outside(self, hole: &Range<usize>) -> impl Iterator<Item = Self> + use<> {
        let (write, size) = match self {
            Self::Write(write) => (Some(write), None),
            size @ Self::Size(_) => (None, Some(size)),
        };
        let hole = hole.clone();
        let parts = write.into_iter().flat_map(move |w| w.outside(&hole));
        parts.map(Self::Write).chain(size)
    }
}

/// A write in the page cache, or what newer durable changes left of it.
#[derive(Clone)]
pub(super) struct Write {
    pub(super) id: u64,
    offset: usize,
    bytes: Bytes,
    pub(super) fate: Fate,
}

impl Write {
    fn range(&self) -> Range<usize> {
        self.offset..self.offset + self.bytes.len()
    }

    fn outside(self, hole: &Range<usize>) -> impl Iterator<Item = Self> + use<> {
        let Range { start, end } = self.range();
        let parts = [start..end.min(hole.start), start.max(hole.end)..end];
        let parts = parts.into_iter().filter(|part| !part.is_empty());
        parts.map(move |part| Self {
            offset: part.start,
            bytes: self.bytes.slice(part.start - start..part.end - start),
            ..self
        })
    }
}

fn put(contents: &mut Arc<Vec<u8>>, offset: usize, bytes: &[u8]) {
    let contents = Arc::make_mut(contents);
    let end = offset + bytes.len();
    if contents.len() < end {
        contents.resize(end, 0);
    }
    contents[offset..end].copy_from_slice(bytes);
}
