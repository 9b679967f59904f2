//! Simulated mappings: copies of what a read would return.
//!
//! Kept true: a copy that was handed out stays where it is and as it is until
//! the mapping goes. The same bytes are copied once: a new copy is made only
//! when they changed since the last one.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use super::{SimDisk, SimFile, in_memory};
use crate::blocks::{BLOCK_BYTES, Blocks};
use crate::disk::Mapping;

pub(super) struct SimMapping {
    disk: SimDisk,
    ino: u64,
    bytes: u64,
    copies: Copies,
    made: Mutex<Made>,
    _handle: Arc<()>,
}

#[derive(Default)]
struct Made {
    count: usize,
    /// By offset and length: the newest copy, and a version of the file at
    /// which it was right.
    newest: BTreeMap<(u64, usize), (usize, u64)>,
}

impl SimMapping {
    pub(super) fn new(file: &SimFile, bytes: u64) -> Self {
        Self {
            disk: file.disk.clone(),
            ino: file.ino,
            bytes,
            copies: Copies::default(),
            made: Mutex::default(),
            _handle: file.handle.clone(),
        }
    }
}

impl Mapping for SimMapping {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn is_volatile(&self) -> bool {
        self.disk.0.lock().volatile
    }

    /// Also panics if the bytes are not in the file.
    #[allow(unsafe_code)]
    unsafe fn slice(&self, offset: u64, bytes: usize) -> &[u8] {
        let end = offset.checked_add(bytes as u64);
        let inside = end.is_some_and(|end| end <= self.bytes);
        assert!(
            inside && offset.is_multiple_of(BLOCK_BYTES as u64),
            "{bytes} bytes at {offset:#x} of a mapping of {} bytes",
            self.bytes
        );
        let mut made = self.made.lock();
        let newest = made.newest.get(&(offset, bytes)).copied();
        let mut state = self.disk.0.lock();
        let inode = state.inode(self.ino);
        let version = inode.version();
        let index = match newest {
            Some((index, at)) if at == version => index,
            _ => {
                let mut now = Blocks::zeroed(bytes);
                let read = inode.read(in_memory(offset), &mut now.as_mut_slice()[..bytes]);
                assert_eq!(read, bytes, "bytes that the file has at {offset:#x}");
                let newest = newest.map(|(index, _)| index);
                let same = newest.filter(|&index| {
                    let last = self.copies.slot(index).get();
                    last.is_some_and(|last| last.as_slice() == now.as_slice())
                });
                same.unwrap_or_else(|| {
                    let index = made.count;
                    made.count += 1;
                    self.copies.slot(index).get_or_init(|| now);
                    index
                })
            }
        };
        made.newest.insert((offset, bytes), (index, version));
        let copy = self.copies.slot(index).get().expect("it was made above");
        &copy.as_slice()[..bytes]
    }
}

/// Copies by number, which never move: the nth part has twice the slots of the
/// one before.
#[derive(Default)]
struct Copies([OnceLock<Box<[OnceLock<Blocks>]>>; 32]);

impl Copies {
    fn slot(&self, index: usize) -> &OnceLock<Blocks> {
        let part = (index + 1).ilog2() as usize;
        let slots = 1 << part;
        let new = || (0..slots).map(|_| OnceLock::new()).collect();
        &self.0[part].get_or_init(new)[index + 1 - slots]
    }
}
