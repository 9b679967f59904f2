//! The machine's own files.
//!
//! Kept true: how commits reach the disk is decided once, when the disk is
//! made, and `describe` says what was decided and why.

use std::any::Any;
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::thread;

use super::mapped::RealMappedFile;
use super::{Committed, Disk, DiskFile, MappedFile, Task, uring};
use crate::blocks::Blocks;

/// How commits reach the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// io_uring where the kernel allows it, else system calls with a warning.
    Auto,
    /// io_uring, or an error that says why not.
    Uring,
    /// Writes with a data sync on the committing thread.
    Syscalls,
}

/// Files of the operating system.
pub struct RealDisk {
    uring: bool,
    direct: bool,
    description: String,
}

impl RealDisk {
    /// Finds out what works in `dir` (made if it isn't there).
    pub fn new(backend: Backend, dir: &Path) -> io::Result<Self> {
        std::fs::create_dir_all(dir)?;
        let (uring, how) = match (backend, uring_allowed()) {
            (Backend::Syscalls, _) => (false, "system calls (chosen)".to_owned()),
            (_, Ok(())) => (true, "io_uring".to_owned()),
            (Backend::Auto, Err(error)) => {
                tracing::warn!("io_uring is not available ({error}): committing with system calls");
                (
                    false,
                    format!("system calls (io_uring not available: {error})"),
                )
            }
            (Backend::Uring, Err(error)) => {
                return Err(io::Error::new(
                    error.kind(),
                    format!("io_uring was asked for but is not available: {error}"),
                ));
            }
        };
        let direct = direct_writes_allowed(dir)?;
        let cache = match &direct {
            Ok(()) => "O_DIRECT".to_owned(),
            Err(error) => {
                tracing::warn!(
                    "no O_DIRECT in {} ({error}): writing through the page cache",
                    dir.display()
                );
                format!("through the page cache (no O_DIRECT: {error})")
            }
        };
        Ok(Self {
            uring,
            direct: direct.is_ok(),
            description: format!("{how}, {cache}"),
        })
    }

    /// A disk to look at a log with: changes nothing, tries nothing out.
    #[must_use]
    pub fn for_inspection() -> Self {
        Self {
            uring: false,
            direct: false,
            description: "read only".to_owned(),
        }
    }

    /// Whether commits go through io_uring.
    #[must_use]
    pub fn uses_uring(&self) -> bool {
        self.uring
    }

    fn file(&self, options: &mut OpenOptions, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        if self.direct {
            options.custom_flags(libc::O_DIRECT);
        }
        Ok(Arc::new(RealFile {
            file: Arc::new(options.read(true).open(path)?),
            uring: self.uring,
        }))
    }
}

/// Kernels and containers forbid io_uring in several ways; all show up here.
fn uring_allowed() -> io::Result<()> {
    // On its own thread, because a ring's runtime can't start inside another runtime.
    thread::spawn(uring::probe)
        .join()
        .unwrap_or_else(|_| Err(io::Error::other("the probe of io_uring panicked")))
}

/// Whether files in `dir` can be written with O_DIRECT; the inner error says why
/// not. The outer one is a failure of the disk, with file and operation.
fn direct_writes_allowed(dir: &Path) -> io::Result<io::Result<()>> {
    let path = dir.join(format!("probe-{}.tmp", std::process::id()));
    let opened = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .custom_flags(libc::O_DIRECT)
        .open(&path);
    let tried = match opened {
        Ok(file) => about_direct(file.write_all_at(Blocks::zeroed(1).as_slice(), 0))
            .map_err(|error| named(&path, "write", error)),
        Err(error) => about_direct(Err(error)).map_err(|error| named(&path, "open", error)),
    };
    match std::fs::remove_file(&path) {
        Err(error) if tried.is_ok() && error.kind() != io::ErrorKind::NotFound => {
            Err(named(&path, "remove", error))
        }
        _ => tried,
    }
}

/// Tells a refusal of O_DIRECT from a failure of the disk. A full disk refuses
/// nothing: it takes O_DIRECT when it has room.
fn about_direct(tried: io::Result<()>) -> io::Result<io::Result<()>> {
    use io::ErrorKind::{InvalidInput, QuotaExceeded, StorageFull, Unsupported};
    match tried {
        Ok(()) => Ok(Ok(())),
        Err(error) => match error.kind() {
            StorageFull | QuotaExceeded => Ok(Ok(())),
            InvalidInput | Unsupported => Ok(Err(error)),
            _ => Err(error),
        },
    }
}

fn named(path: &Path, operation: &str, error: io::Error) -> io::Error {
    let text = format!("{}: {operation}: {error}", path.display());
    io::Error::new(error.kind(), text)
}

impl Disk for RealDisk {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        std::fs::create_dir_all(dir)?;
        match dir.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => self.sync_dir(parent),
            _ => Ok(()),
        }
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        std::fs::read_dir(dir)?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect()
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.file(OpenOptions::new().write(true).create_new(true), path)
    }

    fn open(&self, path: &Path, writable: bool) -> io::Result<Arc<dyn DiskFile>> {
        self.file(OpenOptions::new().write(writable), path)
    }

    fn create_mapped(&self, path: &Path) -> io::Result<Arc<dyn MappedFile>> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true);
        Ok(Arc::new(RealMappedFile::open(&options, path)?))
    }

    fn open_mapped(&self, path: &Path, writable: bool) -> io::Result<Arc<dyn MappedFile>> {
        let mut options = OpenOptions::new();
        options.read(true).write(writable);
        Ok(Arc::new(RealMappedFile::open(&options, path)?))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        File::open(dir)?.sync_all()
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn Any + Send + Sync>> {
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)?;
        match file.try_lock() {
            Ok(()) => Ok(Box::new(Locked(file))),
            Err(TryLockError::WouldBlock) => Err(io::ErrorKind::WouldBlock.into()),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    fn is_locked(&self, path: &Path) -> io::Result<bool> {
        let file = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            file => file?,
        };
        match file.try_lock_shared() {
            Ok(()) => Ok(false),
            Err(TryLockError::WouldBlock) => Ok(true),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    fn run_commits(&self, name: &str, task: Task) -> io::Result<()> {
        if !self.uring {
            return self.run_background(name, task);
        }
        let (ready, started) = std::sync::mpsc::sync_channel(1);
        thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                uring::run(task, |outcome| {
                    // The receiver waits right below.
                    let _ = ready.send(outcome);
                });
            })?;
        started
            .recv()
            .unwrap_or_else(|_| Err(io::Error::other("the commit thread ended at once")))
    }

    fn run_background(&self, name: &str, task: Task) -> io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()?;
        thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || runtime.block_on(task()))?;
        Ok(())
    }

    fn commits_in_flight_max(&self) -> usize {
        if self.uring { 3 } else { 1 }
    }

    fn describe(&self) -> String {
        self.description.clone()
    }
}

/// A locked file. Closing it is not enough to unlock it: a child process that
/// is just being started has a copy of the descriptor.
struct Locked(File);

impl Drop for Locked {
    fn drop(&mut self) {
        if let Err(error) = self.0.unlock() {
            tracing::warn!("a lock could not be released: {error}");
        }
    }
}

struct RealFile {
    file: Arc<File>,
    uring: bool,
}

impl DiskFile for RealFile {
    fn size(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.file.read_at(into, offset) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result,
            }
        }
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn commit(self: Arc<Self>, offset: u64, blocks: Blocks, alone: bool) -> Committed {
        if self.uring && !alone {
            return Box::pin(uring::write_durably(Arc::clone(&self.file), offset, blocks));
        }
        let result = write_durably(&self.file, offset, blocks.as_slice());
        Box::pin(std::future::ready((result, blocks)))
    }
}

/// One call that writes and syncs, where the file system knows it; else two.
fn write_durably(file: &File, offset: u64, bytes: &[u8]) -> io::Result<()> {
    use rustix::io::{Errno, IoSlice, ReadWriteFlags, pwritev2};
    let mut written = 0;
    while written < bytes.len() {
        let rest = [IoSlice::new(&bytes[written..])];
        match pwritev2(file, &rest, offset + written as u64, ReadWriteFlags::DSYNC) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => written += count,
            Err(Errno::INTR) => {}
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) if written == 0 => {
                file.write_all_at(bytes, offset)?;
                return file.sync_data();
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the probe of O_DIRECT makes of an error.
    #[derive(Debug, PartialEq, Eq)]
    enum Verdict {
        Direct,
        Cached,
        Failed,
    }

    #[test]
    fn a_full_or_failing_disk_is_not_one_without_o_direct() {
        for (errno, verdict) in [
            (libc::EINVAL, Verdict::Cached),
            (libc::EOPNOTSUPP, Verdict::Cached),
            (libc::ENOSPC, Verdict::Direct),
            (libc::EDQUOT, Verdict::Direct),
            (libc::EIO, Verdict::Failed),
            (libc::EROFS, Verdict::Failed),
            (libc::ENOMEM, Verdict::Failed),
        ] {
            let found = match about_direct(Err(io::Error::from_raw_os_error(errno))) {
                Ok(Ok(())) => Verdict::Direct,
                Ok(Err(_)) => Verdict::Cached,
                Err(_) => Verdict::Failed,
            };
            assert_eq!(found, verdict, "errno {errno}");
        }
    }

    #[test]
    fn a_probe_that_fails_names_file_operation_and_error() {
        let dir = Path::new("/proc/self/fdinfo");
        let error = direct_writes_allowed(dir)
            .map(drop)
            .unwrap_err()
            .to_string();
        assert!(error.starts_with("/proc/self/fdinfo/probe-"), "{error}");
        assert!(
            error.contains(".tmp: open: ") && error.contains("(os error "),
            "{error}"
        );
    }
}
