//! The disk, as the log sees it: a trait, because disks lie and a simulation
//! must be able to lie in their place.
//!
//! A disk also says where the tasks that wait for it run: the real one gives
//! the commit loop a thread with an io_uring, the simulated one runs
//! everything on the caller's single-threaded runtime, so that a seed decides
//! the order of all that happens.

use std::any::Any;
use std::future::Future;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;

use crate::blocks::Blocks;

mod mapped;
mod real;
pub mod sim;
mod uring;

pub use real::{Backend, RealDisk};

/// How a process exits whose disk has failed: `EX_IOERR` of `sysexits.h`.
pub const EXIT_DISK_FAILED: i32 = 74;

/// Makes a task on the thread where it will run.
pub type Task = Box<dyn FnOnce() -> Pin<Box<dyn Future<Output = ()>>> + Send>;

/// What comes back from a commit: how it went, and the memory to use again.
pub type Committed = Pin<Box<dyn Future<Output = (io::Result<()>, Blocks)>>>;

/// Files and directories, and the threads that serve them.
pub trait Disk: Send + Sync + 'static {
    /// Makes `dir` and its parents, durably; not an error if it is there.
    fn create_dir(&self, dir: &Path) -> io::Result<()>;
    /// Names in `dir`, in no order.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;
    /// Makes a new file for reading and writing; an error if it exists.
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;
    /// Opens an existing file, for writing too if `writable`.
    fn open(&self, path: &Path, writable: bool) -> io::Result<Arc<dyn DiskFile>>;
    /// Makes a new file that is read through a mapping; an error if it exists.
    fn create_mapped(&self, path: &Path) -> io::Result<Arc<dyn MappedFile>>;
    /// Opens an existing file to be read through a mapping, for writing too if `writable`.
    fn open_mapped(&self, path: &Path, writable: bool) -> io::Result<Arc<dyn MappedFile>>;
    /// Renames a file, replacing what is at `to`; durable after [`Disk::sync_dir`].
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file; durable after [`Disk::sync_dir`].
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Makes created, renamed and removed names in `dir` durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    /// Holds `path` for this process until the guard is dropped.
    /// [`io::ErrorKind::WouldBlock`] if another process holds it.
    fn lock(&self, path: &Path) -> io::Result<Box<dyn Any + Send + Sync>>;
    /// Whether a process holds `path`; not if there is no such file.
    fn is_locked(&self, path: &Path) -> io::Result<bool>;
    /// Starts the task that commits; its files' [`DiskFile::commit`] is called only there.
    fn run_commits(&self, name: &str, task: Task) -> io::Result<()>;
    /// Starts a task that may block on this disk.
    fn run_background(&self, name: &str, task: Task) -> io::Result<()>;
    /// Most commits that are worth having in flight.
    fn commits_in_flight_max(&self) -> usize;
    /// How commits reach the disk and why so, for logs and status pages.
    fn describe(&self) -> String;
}

/// An open file. Offsets, lengths and memory are whole blocks, because the
/// file may bypass the page cache.
pub trait DiskFile: Send + Sync {
    /// Current length in bytes.
    fn size(&self) -> io::Result<u64>;
    /// Reads into `into`; fewer bytes than asked is not the end of the file, 0 is.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize>;
    /// Writes all of `bytes`; durable after [`DiskFile::sync`].
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Makes all that was written to this file durable.
    fn sync(&self) -> io::Result<()>;
    /// Writes `blocks` and makes them durable, without regard to other writes.
    /// Submitted when called, done when the future is; several may be in flight
    /// and may finish in any order. With `alone`, the caller has nothing else
    /// to do meanwhile, and the call itself may take as long as the write.
    fn commit(self: Arc<Self>, offset: u64, blocks: Blocks, alone: bool) -> Committed;
}

/// An open file that is written through the page cache, whatever the disk does
/// with other files, and read through a mapping. Writes are whole blocks.
pub trait MappedFile: Send + Sync {
    /// Current length in bytes.
    fn size(&self) -> io::Result<u64>;
    /// Grows the file with zeros or cuts it; durable after [`MappedFile::sync`],
    /// until then a power cut keeps a prefix of such changes. Space for the
    /// zeros may be found missing only when they are written over.
    fn set_size(&self, bytes: u64) -> io::Result<()>;
    /// Writes all of `bytes`, growing the file when needed; mappings show it at
    /// once, and it is durable after [`MappedFile::sync`].
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Says that these bytes were written for good: they are on their way to
    /// the disk soon, and whoever writes much waits for it now and then, so
    /// that a sync has little to do. Only its errors matter: the sync that
    /// follows may not tell them again.
    fn write_out(&self, _offset: u64, _bytes: u64) -> io::Result<()> {
        Ok(())
    }
    /// Makes all that was written to this file durable, and its size.
    fn sync(&self) -> io::Result<()>;
    /// Maps the first `bytes` bytes, which may reach beyond the end of the
    /// file: what the file grows into is then readable without a new mapping.
    fn map(&self, bytes: u64) -> io::Result<Box<dyn Mapping>>;
}

/// The contents of a file as memory. Keeps the file alive, but not its name.
pub trait Mapping: Send + Sync {
    /// How much was mapped, whatever the size of the file.
    fn bytes(&self) -> u64;
    /// What the file holds now, in memory that starts on a block boundary as
    /// `offset` must. Panics if the mapping doesn't reach that far.
    ///
    /// # Safety
    ///
    /// The bytes lie inside the file, not just inside the mapping, and nobody
    /// writes to them or cuts them off while the slice lives.
    #[allow(unsafe_code)]
    unsafe fn slice(&self, offset: u64, bytes: usize) -> &[u8];
    /// Whether each read must be checked anew. A real file is trusted once it
    /// was checked, and later damage is found by scrubs; a simulation may want
    /// the next read to find it.
    fn is_volatile(&self) -> bool {
        false
    }
    /// Says that these bytes will be wanted soon; what is read otherwise is
    /// read page by page. It is but a hint.
    fn prefetch(&self, _offset: u64, _bytes: usize) {}
}

/// Reads exactly `bytes` (a multiple of the block size) at `offset`, however
/// short the single reads are.
pub(crate) fn read_blocks(file: &dyn DiskFile, offset: u64, bytes: usize) -> io::Result<Blocks> {
    let mut blocks = Blocks::zeroed(bytes);
    read_into(file, offset, blocks.as_mut_slice())?;
    Ok(blocks)
}

/// [`read_blocks`] into memory that is already there.
pub(crate) fn read_into(file: &dyn DiskFile, offset: u64, into: &mut [u8]) -> io::Result<()> {
    use crate::blocks::BLOCK_BYTES;
    let mut filled = 0;
    let mut fruitless = 0;
    while filled < into.len() {
        let got = file.read_at(offset + filled as u64, &mut into[filled..])?;
        if filled + got >= into.len() {
            break;
        }
        // A direct read must go on from a block boundary.
        let whole = got - got % BLOCK_BYTES;
        fruitless = if whole == 0 { fruitless + 1 } else { 0 };
        if got == 0 || fruitless > 16 {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                format!("file ends at {:#x}", offset + (filled + got) as u64),
            ));
        }
        filled += whole;
    }
    Ok(())
}
