//! The machine's disk made slower on purpose, to rehearse a worse one.
//!
//! Kept true: it does what the real one does, only later; a commit is never
//! said to be durable before it is.

use std::any::Any;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use pontoon_wal::Blocks;
use pontoon_wal::disk::{Committed, Disk, DiskFile, MappedFile, RealDisk, Task};

/// Every commit takes this much longer.
pub(crate) struct SlowDisk {
    pub(crate) real: RealDisk,
    pub(crate) extra: Duration,
}

struct SlowFile {
    real: Arc<dyn DiskFile>,
    extra: Duration,
}

impl SlowDisk {
    fn slow(&self, real: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        Arc::new(SlowFile {
            real,
            extra: self.extra,
        })
    }
}

impl Disk for SlowDisk {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        self.real.create_dir(dir)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.real.list(dir)
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.real.create(path).map(|file| self.slow(file))
    }

    fn open(&self, path: &Path, writable: bool) -> io::Result<Arc<dyn DiskFile>> {
        self.real.open(path, writable).map(|file| self.slow(file))
    }

    fn create_mapped(&self, path: &Path) -> io::Result<Arc<dyn MappedFile>> {
        self.real.create_mapped(path)
    }

    fn open_mapped(&self, path: &Path, writable: bool) -> io::Result<Arc<dyn MappedFile>> {
        self.real.open_mapped(path, writable)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.real.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.real.remove(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.real.sync_dir(dir)
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn Any + Send + Sync>> {
        self.real.lock(path)
    }

    fn is_locked(&self, path: &Path) -> io::Result<bool> {
        self.real.is_locked(path)
    }

    fn run_commits(&self, name: &str, task: Task) -> io::Result<()> {
        self.real.run_commits(name, task)
    }

    fn run_background(&self, name: &str, task: Task) -> io::Result<()> {
        self.real.run_background(name, task)
    }

    fn commits_in_flight_max(&self) -> usize {
        self.real.commits_in_flight_max()
    }

    fn describe(&self) -> String {
        let extra = self.extra.as_millis();
        format!(
            "{}, every commit made {extra} ms longer on purpose",
            self.real.describe()
        )
    }
}

impl DiskFile for SlowFile {
    fn size(&self) -> io::Result<u64> {
        self.real.size()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.real.read_at(offset, into)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.real.write_at(offset, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.real.sync()
    }

    fn commit(self: Arc<Self>, offset: u64, blocks: Blocks, alone: bool) -> Committed {
        let extra = self.extra;
        let committed = Arc::clone(&self.real).commit(offset, blocks, alone);
        Box::pin(async move {
            let outcome = committed.await;
            tokio::time::sleep(extra).await;
            outcome
        })
    }
}
