//! Files that are written through the page cache and read through a mapping.
//!
//! Kept true: a reference into a mapping covers just the bytes that were asked
//! for, never the rest, which others may be writing or which may not be in the
//! file; and it borrows the mapping, so that it can't outlive it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use memmap2::{Advice, MmapOptions, MmapRaw};

use super::{MappedFile, Mapping};
use crate::blocks::BLOCK_BYTES;

mod fault;

/// How much may be on its way to the disk when more is written out.
const WRITTEN_OUT_BYTES: u64 = 16 << 20;

/// A file of the operating system; never `O_DIRECT`, which would go past the
/// pages that the mapping shows.
pub(super) struct RealMappedFile {
    file: File,
    path: Arc<[u8]>,
}

impl RealMappedFile {
    pub(super) fn open(options: &OpenOptions, path: &Path) -> io::Result<Self> {
        Ok(Self {
            file: options.open(path)?,
            path: path.as_os_str().as_bytes().into(),
        })
    }
}

impl MappedFile for RealMappedFile {
    fn size(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn set_size(&self, bytes: u64) -> io::Result<()> {
        self.file.set_len(bytes)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    fn write_out(&self, offset: u64, bytes: u64) -> io::Result<()> {
        sync_range(&self.file, offset, bytes, libc::SYNC_FILE_RANGE_WRITE)?;
        let wait = libc::SYNC_FILE_RANGE_WAIT_BEFORE;
        match offset.checked_sub(WRITTEN_OUT_BYTES) {
            Some(before) => sync_range(&self.file, before, bytes, wait),
            None => Ok(()),
        }
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn map(&self, bytes: u64) -> io::Result<Box<dyn Mapping>> {
        let bytes = usize::try_from(bytes).map_err(|_| io::ErrorKind::InvalidInput)?;
        let memory = MmapOptions::new()
            .len(bytes)
            .map_raw_read_only(&self.file)?;
        // What lies beside a page is rarely what comes next; see `prefetch`.
        memory.advise(Advice::Random)?;
        let name = fault::Named::new(memory.as_ptr().addr(), bytes, Arc::clone(&self.path))?;
        Ok(Box::new(RealMapping {
            _name: name,
            memory,
        }))
    }
}

#[allow(unsafe_code)]
fn sync_range(file: &File, offset: u64, bytes: u64, how: libc::c_uint) -> io::Result<()> {
    let too_far = |_| io::Error::from(io::ErrorKind::InvalidInput);
    let offset = offset.try_into().map_err(too_far)?;
    let bytes = bytes.try_into().map_err(too_far)?;
    // SAFETY: the file is open and no memory is involved.
    if unsafe { libc::sync_file_range(file.as_raw_fd(), offset, bytes, how) } == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EIO | libc::ENOSPC | libc::EDQUOT) => Err(error),
        // The system doesn't know the call, or forbids it.
        _ => Ok(()),
    }
}

/// Its name goes first: the address may be somebody else's once it is unmapped.
struct RealMapping {
    _name: fault::Named,
    memory: MmapRaw,
}

impl Mapping for RealMapping {
    fn bytes(&self) -> u64 {
        self.memory.len() as u64
    }

    #[allow(unsafe_code)]
    unsafe fn slice(&self, offset: u64, bytes: usize) -> &[u8] {
        let mapped = self.memory.len();
        let start = usize::try_from(offset).ok();
        let start = start.filter(|start| {
            let end = start.checked_add(bytes);
            start.is_multiple_of(BLOCK_BYTES) && end.is_some_and(|end| end <= mapped)
        });
        let start = start.unwrap_or_else(|| {
            panic!("{bytes} bytes at {offset:#x} of a mapping of {mapped} bytes")
        });
        // SAFETY: checked above, `start..start + bytes` lies inside the
        // mapping, which is readable and lives as long as `self`. The caller
        // promises that the file has these bytes and that nobody changes them.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr().add(start), bytes) }
    }

    fn prefetch(&self, offset: u64, bytes: usize) {
        if let Ok(offset) = usize::try_from(offset) {
            // Nothing depends on it.
            let _ = self.memory.advise_range(Advice::WillNeed, offset, bytes);
        }
    }
}
