//! A disk in memory that loses, tears and refuses by seed.
//!
//! Kept true:
//! - One seed and one order of calls give one behaviour: nothing here depends
//!   on addresses, threads or the time of day.
//! - What a file holds and what it loses is told in `inode.rs`.
//! - Names change at once and become durable with their directory; a power cut
//!   keeps a prefix of what a directory has not synced.
//! - Operations, writes and syncs are numbered from 0, each from the making of
//!   the disk: `crash_at(n)` lets n operations happen.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{Committed, Disk, DiskFile, MappedFile, Mapping, Task};
use crate::blocks::{BLOCK_BYTES, Blocks};

mod host;
mod inode;
mod mapping;
mod seed;

pub use host::host;
use inode::{Fate, Inode};
use mapping::SimMapping;
pub use seed::{Rng, SimClock};

/// What a device writes whole or not at all.
pub const SECTOR_BYTES: usize = 512;

/// How a commit becomes durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CommitStyle {
    /// Just what the commit wrote becomes durable, as with `RWF_DSYNC`.
    #[default]
    DataSyncWrite,
    /// All that was written to the file becomes durable, as with `pwrite` and `fdatasync`.
    WriteThenSync,
}

/// The simulated disk; clones are handles on the same one.
#[derive(Clone)]
pub struct SimDisk(Arc<Mutex<State>>);

impl SimDisk {
    /// An empty disk without faults; `seed` decides how long commits take.
    pub fn new(seed: u64) -> Self {
        Self::of(State {
            rng: Rng::new(seed),
            ..State::default()
        })
    }

    /// A disk that holds these files durably.
    pub fn from_files(files: impl IntoIterator<Item = (PathBuf, Vec<u8>)>) -> Self {
        let disk = Self::new(0);
        for (path, bytes) in files {
            disk.write_file(&path, bytes);
        }
        disk
    }

    /// Chooses how commits become durable; [`CommitStyle::DataSyncWrite`] unless told.
    pub fn set_commit_style(&self, style: CommitStyle) {
        self.0.lock().style = style;
    }

    /// Chooses what [`Disk::commits_in_flight_max`] says for
    /// [`CommitStyle::DataSyncWrite`]; 4 unless told.
    pub fn set_commits_in_flight_max(&self, count: usize) {
        self.0.lock().commits_in_flight_max = Some(count);
    }

    /// Operations done so far: writes, changes of size, submitted and finished
    /// commits, syncs, and changes and syncs of directories. Each is a point to crash at.
    pub fn operations(&self) -> u64 {
        self.0.lock().done.operations
    }

    /// Writes so far, failed ones too: `write_at` and submitted commits.
    pub fn writes(&self) -> u64 {
        self.0.lock().done.writes
    }

    /// Syncs so far, failed ones too: `sync` and finished commits, not `sync_dir`.
    pub fn syncs(&self) -> u64 {
        self.0.lock().done.syncs
    }

    /// From operation `n` on nothing has an effect and every call fails.
    pub fn crash_at(&self, n: u64) {
        self.0.lock().faults.crash_at = Some(n);
    }

    /// Whether an operation met the crash.
    pub fn crashed(&self) -> bool {
        self.0.lock().crashed
    }

    /// Sync `n` fails, and what it should have made durable stays readable but
    /// no later sync saves it: the kernel took it for clean. Other commits in
    /// flight are spared, their own end decides.
    pub fn fail_sync_at(&self, n: u64) {
        self.0.lock().faults.failing_syncs.insert(n);
    }

    /// Write `n` fails and writes nothing.
    pub fn fail_write_at(&self, n: u64) {
        self.0.lock().faults.failing_writes.insert(n);
    }

    /// From now on some reads return less than was asked.
    pub fn short_reads(&self, seed: u64) {
        self.0.lock().faults.short_reads = Some(Rng::new(seed));
    }

    /// Whether nothing more can be run in the background, as if the machine
    /// had no threads left.
    pub fn no_background(&self, none: bool) {
        self.0.lock().faults.no_background = none;
    }

    /// Commits submitted from now on take this much longer.
    pub fn slow_syncs(&self, extra: Duration) {
        self.0.lock().faults.slow_syncs = extra;
    }

    /// The device stops answering: commits that are in flight or submitted from
    /// now on don't complete before [`SimDisk::resume`]. Calls that block their
    /// thread on a real disk go on, because a simulation has only one. A reboot
    /// ends it.
    pub fn hang(&self) {
        self.0.lock().faults.hung = true;
    }

    /// Ends [`SimDisk::hang`]: what waited completes at once.
    pub fn resume(&self) {
        let mut state = self.0.lock();
        state.faults.hung = false;
        state.resumed.notify_waiters();
    }

    /// Whether the file system is mounted read-only, as Linux does after an
    /// error: every change fails with `EROFS`, reads go on. What was written
    /// but not synced stays readable and no later sync saves it. A reboot
    /// doesn't end it: the next start finds the disk the same.
    pub fn read_only(&self, read_only: bool) {
        self.0.lock().read_only = read_only;
    }

    /// Whether writes, changes of size and syncs of files that are read through
    /// a mapping fail with `EIO`, other files being well. A failed sync is as in
    /// [`SimDisk::fail_sync_at`]. A reboot ends it.
    pub fn fail_tree_io(&self, fail: bool) {
        self.0.lock().faults.tree_io = fail;
    }

    /// Whether there is no room for files that are read through a mapping to
    /// grow, other files being on another disk.
    pub fn fill_trees(&self, full: bool) {
        self.0.lock().trees_full = full;
    }

    /// Most bytes that all named files may have; at first there is no limit.
    /// A new file needs a free block, though it takes none.
    pub fn capacity(&self, bytes: u64) {
        self.0.lock().capacity = Some(bytes);
    }

    /// Flips one bit, on the medium and in the page cache. Panics if the file has no such bit.
    pub fn flip_bit(&self, path: &Path, bit_offset: u64) {
        let mut state = self.0.lock();
        let ino = state.named(path).expect("a file to flip a bit of");
        let id = state.new_id();
        let inode = state.inode(ino);
        let (at, mask) = (in_memory(bit_offset / 8), 1 << (bit_offset % 8));
        assert!(at < inode.len(), "no bit {bit_offset} in {path:?}");
        inode.flip(at, mask, id);
    }

    /// Whether whoever reads through a mapping must check each time, so that a
    /// bit that flips under a running store is found by the next read. Unlike
    /// faults, it stays when the machine reboots.
    pub fn set_volatile(&self, volatile: bool) {
        self.0.lock().volatile = volatile;
    }

    /// Ends all faults, those too that have not struck yet. A disk that has
    /// crashed stays so.
    pub fn end_faults(&self) {
        let mut state = self.0.lock();
        state.faults = Faults::default();
        state.read_only = false;
        state.resumed.notify_waiters();
    }

    /// What is there after the power failed now and came back: a new disk,
    /// without faults and locks, all of it durable; but still read-only if it
    /// was. This one is unaffected.
    pub fn power_cut(&self, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let mut state = self.0.lock().rebooted();
        for changes in mem::take(&mut state.dir_changes).into_values() {
            let survive = in_memory(rng.below(changes.len() as u64 + 1));
            for change in changes.into_iter().take(survive) {
                apply(&mut state.names_durable, change);
            }
        }
        state.names = state.names_durable.clone();
        state.drop_unreachable();
        for inode in state.inodes.values_mut() {
            inode.lose_power(&mut rng);
        }
        state.rng = rng;
        Self::of(state)
    }

    /// What is there after the process was killed now: a new disk, without
    /// faults and locks, where all is visible that was, and what was not synced
    /// still is not; but still read-only if it was. This one is unaffected.
    pub fn process_kill(&self) -> Self {
        Self::of(self.0.lock().rebooted())
    }

    /// A copy of everything, faults, counts and a crash too, but of no lock;
    /// commits in flight are plain writes in it.
    pub fn fork(&self) -> Self {
        Self::of(self.0.lock().copy())
    }

    /// The visible contents of a file. Like all that follows, this is no
    /// operation and works after a crash.
    pub fn read_file(&self, path: &Path) -> Option<Vec<u8>> {
        let mut state = self.0.lock();
        let ino = state.named(path).ok()?;
        let inode = state.inode(ino);
        let mut bytes = vec![0; inode.len()];
        inode.read(0, &mut bytes);
        Some(bytes)
    }

    /// Puts a new durable file there, in a directory that is made if need be.
    /// A handle on the file that it replaces keeps the old contents.
    pub fn write_file(&self, path: &Path, bytes: Vec<u8>) {
        let mut state = self.0.lock();
        let ino = state.new_inode();
        *state.inode(ino) = Inode::holding(bytes);
        state
            .dirs
            .extend(parent(path).ancestors().map(PathBuf::from));
        state.set_name_durably(path, Some(ino));
    }

    /// Removes a file durably, if it is there.
    pub fn remove_file(&self, path: &Path) {
        self.0.lock().set_name_durably(path, None);
    }

    /// The visible files, in order.
    pub fn paths(&self) -> Vec<PathBuf> {
        self.0.lock().names.keys().cloned().collect()
    }

    fn of(state: State) -> Self {
        Self(Arc::new(Mutex::new(state)))
    }

    fn create_file(&self, path: &Path) -> io::Result<Arc<SimFile>> {
        let mut state = self.0.lock();
        state.change()?;
        state.check_dir(parent(path))?;
        if state.names.contains_key(path) || state.dirs.contains(path) {
            return Err(refused(io::ErrorKind::AlreadyExists, path));
        }
        state.check_space(BLOCK_BYTES)?;
        let ino = state.new_inode();
        state.change_dir(parent(path), vec![(path.into(), Some(ino))]);
        Ok(self.file(&mut state, ino, true))
    }

    fn open_file(&self, path: &Path, writable: bool) -> io::Result<Arc<SimFile>> {
        let mut state = self.0.lock();
        state.alive()?;
        let ino = state.named(path)?;
        if writable {
            state.check_writable()?;
        }
        Ok(self.file(&mut state, ino, writable))
    }

    /// Waits while the device hangs.
    async fn answers(&self) {
        loop {
            let resumed = {
                let state = self.0.lock();
                if !state.faults.hung {
                    return;
                }
                // Created under the lock, so that no `resume` falls in between.
                Arc::clone(&state.resumed).notified_owned()
            };
            resumed.await;
        }
    }

    fn file(&self, state: &mut State, ino: u64, writable: bool) -> Arc<SimFile> {
        Arc::new(SimFile {
            disk: self.clone(),
            ino,
            writable,
            handle: state.inode(ino).handle(),
        })
    }
}

impl Disk for SimDisk {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        let mut state = self.0.lock();
        state.alive()?;
        if !state.dirs.contains(dir) {
            state.check_writable()?;
        }
        state.dirs.extend(dir.ancestors().map(PathBuf::from));
        Ok(())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let state = self.0.lock();
        state.alive()?;
        state.check_dir(dir)?;
        let paths = state.names.keys().chain(&state.dirs);
        let inside = paths.filter(|path| path.parent() == Some(dir));
        let names = inside.filter_map(|path| path.file_name());
        Ok(names.map(|n| n.to_string_lossy().into_owned()).collect())
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        Ok(self.create_file(path)?)
    }

    fn open(&self, path: &Path, writable: bool) -> io::Result<Arc<dyn DiskFile>> {
        Ok(self.open_file(path, writable)?)
    }

    fn create_mapped(&self, path: &Path) -> io::Result<Arc<dyn MappedFile>> {
        Ok(self.create_file(path)?)
    }

    fn open_mapped(&self, path: &Path, writable: bool) -> io::Result<Arc<dyn MappedFile>> {
        Ok(self.open_file(path, writable)?)
    }

    /// Within one directory only: which half of a move between two survives a
    /// power cut is not simulated.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.0.lock();
        state.change()?;
        let ino = state.named(from)?;
        if parent(from) != parent(to) {
            return Err(refused(io::ErrorKind::CrossesDevices, to));
        }
        state.change_dir(
            parent(to),
            vec![(from.into(), None), (to.into(), Some(ino))],
        );
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut state = self.0.lock();
        state.change()?;
        state.named(path)?;
        state.change_dir(parent(path), vec![(path.into(), None)]);
        Ok(())
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let mut state = self.0.lock();
        state.change()?;
        state.check_dir(dir)?;
        for change in state.dir_changes.remove(dir).unwrap_or_default() {
            apply(&mut state.names_durable, change);
        }
        state.drop_unreachable();
        Ok(())
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn Any + Send + Sync>> {
        let mut state = self.0.lock();
        state.alive()?;
        state.check_writable()?;
        if state.locks.get(path).is_some_and(|l| l.strong_count() > 0) {
            return Err(refused(io::ErrorKind::WouldBlock, path));
        }
        let guard = Arc::new(());
        state.locks.insert(path.into(), Arc::downgrade(&guard));
        Ok(Box::new(guard))
    }

    fn is_locked(&self, path: &Path) -> io::Result<bool> {
        let state = self.0.lock();
        state.alive()?;
        Ok(state.locks.get(path).is_some_and(|l| l.strong_count() > 0))
    }

    fn run_commits(&self, _name: &str, task: Task) -> io::Result<()> {
        host::run(task);
        Ok(())
    }

    fn run_background(&self, _name: &str, task: Task) -> io::Result<()> {
        if self.0.lock().faults.no_background {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        host::run(task);
        Ok(())
    }

    fn commits_in_flight_max(&self) -> usize {
        let state = self.0.lock();
        match state.style {
            CommitStyle::DataSyncWrite => state.commits_in_flight_max.unwrap_or(4),
            CommitStyle::WriteThenSync => 1,
        }
    }

    fn describe(&self) -> String {
        format!("simulated, {:?}", self.0.lock().style)
    }
}

/// Names that change together: each now means an inode, or nothing.
type DirChange = Vec<(PathBuf, Option<u64>)>;

#[derive(Clone, Default)]
struct State {
    names: BTreeMap<PathBuf, u64>,
    names_durable: BTreeMap<PathBuf, u64>,
    /// What `names` has and `names_durable` has not, by directory, oldest first.
    dir_changes: BTreeMap<PathBuf, Vec<DirChange>>,
    dirs: BTreeSet<PathBuf>,
    inodes: BTreeMap<u64, Inode>,
    /// Next number of an inode or a write.
    id_next: u64,
    /// Held as long as the guard is, which has the other end.
    locks: BTreeMap<PathBuf, Weak<()>>,
    style: CommitStyle,
    commits_in_flight_max: Option<usize>,
    capacity: Option<u64>,
    trees_full: bool,
    read_only: bool,
    volatile: bool,
    rng: Rng,
    done: Counts,
    faults: Faults,
    crashed: bool,
    /// Tells the commits that hang.
    resumed: Arc<Notify>,
}

#[derive(Clone, Default)]
struct Counts {
    operations: u64,
    writes: u64,
    syncs: u64,
}

#[derive(Clone, Default)]
struct Faults {
    crash_at: Option<u64>,
    failing_syncs: BTreeSet<u64>,
    failing_writes: BTreeSet<u64>,
    short_reads: Option<Rng>,
    slow_syncs: Duration,
    no_background: bool,
    hung: bool,
    tree_io: bool,
}

impl State {
    fn alive(&self) -> io::Result<()> {
        match self.crashed {
            true => Err(io::Error::other("simulated crash")),
            false => Ok(()),
        }
    }

    /// Counts an operation, unless the crash comes before it.
    fn operate(&mut self) -> io::Result<()> {
        let crash_at = self.faults.crash_at;
        self.crashed |= crash_at.is_some_and(|n| self.done.operations >= n);
        self.alive()?;
        self.done.operations += 1;
        Ok(())
    }

    /// Counts an operation that changes something, or syncs it.
    fn change(&mut self) -> io::Result<()> {
        self.operate()?;
        self.check_writable()
    }

    fn check_writable(&self) -> io::Result<()> {
        match self.read_only {
            true => Err(io::Error::from_raw_os_error(EROFS)),
            false => Ok(()),
        }
    }

    fn check_tree_io(&self) -> io::Result<()> {
        match self.faults.tree_io {
            true => Err(io::Error::from_raw_os_error(EIO)),
            false => Ok(()),
        }
    }

    fn check_tree_space(&mut self, ino: u64, end: u64) -> io::Result<()> {
        match self.trees_full && end > self.inode(ino).len() as u64 {
            true => Err(io::ErrorKind::StorageFull.into()),
            false => Ok(()),
        }
    }

    fn inode(&mut self, ino: u64) -> &mut Inode {
        let inode = self.inodes.get_mut(&ino);
        inode.expect("names and handles keep their inode")
    }

    fn named(&self, path: &Path) -> io::Result<u64> {
        let ino = self.names.get(path).copied();
        ino.ok_or_else(|| refused(io::ErrorKind::NotFound, path))
    }

    fn check_dir(&self, dir: &Path) -> io::Result<()> {
        match self.dirs.contains(dir) {
            true => Ok(()),
            false => Err(refused(io::ErrorKind::NotFound, dir)),
        }
    }

    fn check_space(&self, growth: usize) -> io::Result<()> {
        let Some(capacity) = self.capacity.filter(|_| growth > 0) else {
            return Ok(());
        };
        let files = self.names.values().filter_map(|ino| self.inodes.get(ino));
        let allocated: usize = files.map(Inode::len).sum();
        match (allocated + growth) as u64 > capacity {
            true => Err(io::ErrorKind::StorageFull.into()),
            false => Ok(()),
        }
    }

    fn new_id(&mut self) -> u64 {
        self.id_next += 1;
        self.id_next
    }

    fn new_inode(&mut self) -> u64 {
        let ino = self.new_id();
        self.inodes.insert(ino, Inode::default());
        ino
    }

    fn change_dir(&mut self, dir: &Path, change: DirChange) {
        apply(&mut self.names, change.clone());
        let changes = self.dir_changes.entry(dir.into()).or_default();
        changes.push(change);
    }

    fn set_name_durably(&mut self, path: &Path, ino: Option<u64>) {
        // Older changes of this name must not come back over it.
        for change in self.dir_changes.values_mut().flatten() {
            change.retain(|(changed, _)| changed != path);
        }
        apply(&mut self.names, vec![(path.into(), ino)]);
        apply(&mut self.names_durable, vec![(path.into(), ino)]);
    }

    /// Puts a write into the page cache; gives its id.
    fn write(&mut self, ino: u64, offset: u64, bytes: &[u8], fate: Fate) -> io::Result<u64> {
        self.operate()?;
        self.done.writes += 1;
        self.check_writable()?;
        if self.faults.failing_writes.contains(&(self.done.writes - 1)) {
            return Err(io::Error::from_raw_os_error(EIO));
        }
        let offset = in_memory(offset);
        let len = self.inode(ino).len();
        self.check_space((offset + bytes.len()).saturating_sub(len))?;
        let id = self.new_id();
        self.inode(ino).write(id, offset, bytes, fate);
        Ok(id)
    }

    fn set_size(&mut self, ino: u64, bytes: usize) -> io::Result<()> {
        self.change()?;
        let len = self.inode(ino).len();
        self.check_space(bytes.saturating_sub(len))?;
        self.inode(ino).set_len(bytes);
        Ok(())
    }

    /// Ends a sync, or the commit that made the write `committed`.
    fn sync(&mut self, ino: u64, committed: Option<u64>) -> io::Result<()> {
        self.operate()?;
        self.done.syncs += 1;
        let failing = self.faults.failing_syncs.contains(&(self.done.syncs - 1));
        let fails = match (self.read_only, failing) {
            (true, _) => Some(EROFS),
            (_, true) => Some(EIO),
            _ => None,
        };
        let all = committed.is_none() || self.style == CommitStyle::WriteThenSync;
        let inode = self.inode(ino);
        if let Some(errno) = fails {
            inode.lose(|write| Some(write.id) == committed || (all && write.fate == Fate::Dirty));
            return Err(io::Error::from_raw_os_error(errno));
        }
        inode.make_durable(committed.filter(|_| !all));
        Ok(())
    }

    /// How long a commit takes: whole milliseconds, because tokio's timer
    /// would not keep apart what is closer.
    fn commit_delay(&mut self) -> Duration {
        Duration::from_millis(1 + self.rng.below(8)) + self.faults.slow_syncs
    }

    /// Handles and commits in flight stay with the original.
    fn copy(&self) -> Self {
        let mut copy = self.clone();
        copy.locks.clear();
        copy.resumed = Arc::default();
        for inode in copy.inodes.values_mut() {
            inode.forget_handles();
        }
        copy.drop_unreachable();
        copy
    }

    fn rebooted(&self) -> Self {
        Self {
            done: Counts::default(),
            faults: Faults::default(),
            crashed: false,
            ..self.copy()
        }
    }

    /// Forgets the files that have no handle and no name now or after any power cut.
    fn drop_unreachable(&mut self) {
        let changes = self.dir_changes.values().flatten().flatten();
        let named = self.names.values().chain(self.names_durable.values());
        let reachable: BTreeSet<u64> = named
            .copied()
            .chain(changes.filter_map(|(_, ino)| *ino))
            .collect();
        self.inodes
            .retain(|ino, inode| reachable.contains(ino) || inode.is_open());
    }
}

struct SimFile {
    disk: SimDisk,
    ino: u64,
    writable: bool,
    handle: Arc<()>,
}

impl SimFile {
    fn write(&self, offset: u64, bytes: &[u8], fate: Fate) -> io::Result<u64> {
        assert_aligned(offset, bytes.len());
        if !self.writable {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        self.disk.0.lock().write(self.ino, offset, bytes, fate)
    }
}

impl DiskFile for SimFile {
    fn size(&self) -> io::Result<u64> {
        let mut state = self.disk.0.lock();
        state.alive()?;
        Ok(state.inode(self.ino).len() as u64)
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        assert_aligned(offset, into.len());
        let mut state = self.disk.0.lock();
        state.alive()?;
        let count = state.inode(self.ino).read(in_memory(offset), into);
        let Some(rng) = state.faults.short_reads.as_mut().filter(|_| count > 0) else {
            return Ok(count);
        };
        // Rare enough that nobody who tries again meets it many times in a row.
        if !rng.chance(1, 4) {
            return Ok(count);
        }
        let short = in_memory(rng.below(count as u64)) + 1;
        let whole = short - short % BLOCK_BYTES;
        let ends_on_block = whole > 0 && rng.chance(1, 2);
        Ok(if ends_on_block { whole } else { short })
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.write(offset, bytes, Fate::Dirty).map(drop)
    }

    fn sync(&self) -> io::Result<()> {
        self.disk.0.lock().sync(self.ino, None)
    }

    fn commit(self: Arc<Self>, offset: u64, blocks: Blocks, _alone: bool) -> Committed {
        let submitted = self.write(offset, blocks.as_slice(), Fate::InFlight);
        // The time runs from here, not from when somebody first waits.
        let submitted = submitted.map(|id| {
            let delay = self.disk.0.lock().commit_delay();
            (id, tokio::time::sleep(delay))
        });
        Box::pin(async move {
            let (id, done) = match submitted {
                Ok(submitted) => submitted,
                Err(error) => return (Err(error), blocks),
            };
            done.await;
            self.disk.answers().await;
            let result = self.disk.0.lock().sync(self.ino, Some(id));
            (result, blocks)
        })
    }
}

/// The same file as any other: nothing here bypasses the page cache.
impl MappedFile for SimFile {
    fn size(&self) -> io::Result<u64> {
        DiskFile::size(self)
    }

    fn set_size(&self, bytes: u64) -> io::Result<()> {
        if !self.writable {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let mut state = self.disk.0.lock();
        state.check_tree_io()?;
        state.check_tree_space(self.ino, bytes)?;
        state.set_size(self.ino, in_memory(bytes))
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        {
            let mut state = self.disk.0.lock();
            state.check_tree_io()?;
            state.check_tree_space(self.ino, offset + bytes.len() as u64)?;
        }
        DiskFile::write_at(self, offset, bytes)
    }

    fn write_out(&self, _offset: u64, _bytes: u64) -> io::Result<()> {
        let state = self.disk.0.lock();
        state.check_tree_io()?;
        state.check_writable()
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.disk.0.lock();
        state.check_tree_io().inspect_err(|_| {
            let inode = state.inode(self.ino);
            inode.lose(|write| write.fate == Fate::Dirty);
        })?;
        state.sync(self.ino, None)
    }

    fn map(&self, bytes: u64) -> io::Result<Box<dyn Mapping>> {
        self.disk.0.lock().alive()?;
        Ok(Box::new(SimMapping::new(self, bytes)))
    }
}

/// What Linux says when a device fails.
const EIO: i32 = 5;
/// And when a file system is mounted read-only.
const EROFS: i32 = 30;

fn refused(kind: io::ErrorKind, path: &Path) -> io::Error {
    io::Error::new(kind, format!("{}: {kind}", path.display()))
}

fn parent(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new(""))
}

fn in_memory(bytes: u64) -> usize {
    usize::try_from(bytes).expect("simulated files fit in memory")
}

fn assert_aligned(offset: u64, bytes: usize) {
    let aligned = offset.is_multiple_of(BLOCK_BYTES as u64) && bytes.is_multiple_of(BLOCK_BYTES);
    assert!(aligned, "{bytes} bytes at {offset:#x} are not whole blocks");
}

fn apply(names: &mut BTreeMap<PathBuf, u64>, change: DirChange) {
    for (path, ino) in change {
        match ino {
            Some(ino) => names.insert(path, ino),
            None => names.remove(&path),
        };
    }
}

#[cfg(test)]
mod tests;
