//! The store that stands beside the log: what a put costs a processor, and
//! what checkpoints and snapshots do to the log's disk.
//!
//! Kept true: it is the engine's own code that evaluates, applies, writes
//! checkpoints and reads snapshots.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use pontoon_engine::{
    Applied, Config, Entry, Pending, Put, Request, Revision, Step, Store, Ticket, evaluate,
};
use pontoon_wal::disk::sim::Rng;
use pontoon_wal::disk::{Backend, Disk, RealDisk};
use serde::Serialize;

use crate::disk::DiskError;
use crate::disk::stop::Stop;

/// Keys that puts are spread over: more than fit a processor's caches.
pub(crate) const KEYS: u64 = 50_000;
/// Puts of an entry while the cost of one is measured.
const ENTRY_PUTS: usize = 128;
/// Between two checkpoints beside the log: less than in a server, so that
/// there are several in a few seconds.
const CHECKPOINT_EVERY: Duration = Duration::from_millis(700);
/// How long a checkpoint may take that is under way at the end.
const PATIENCE: Duration = Duration::from_secs(30);
/// Revisions that are kept.
const HISTORY: i64 = 50_000;
/// How much faster than this the tree beside the log is not written.
const BESIDE_PUTS_MAX: f64 = 10_000.0;

pub(crate) struct Tree {
    store: Arc<Store>,
    rng: Rng,
    value: Bytes,
    index: u64,
    revision: i64,
    ticket: u32,
    tended: Option<std::sync::mpsc::Receiver<()>>,
    stop: Stop,
}

impl Tree {
    /// A store in `dir` that has all keys.
    pub(crate) fn make(dir: &Path, value_bytes: usize, stop: &Stop) -> Result<Self, DiskError> {
        std::fs::create_dir_all(dir).map_err(|error| DiskError::at(dir, error))?;
        let disk = RealDisk::new(Backend::Auto, dir).map_err(|error| DiskError::at(dir, error))?;
        // As a server has it, so that a put costs what it costs there.
        let config = Config {
            store: 1,
            ..Config::default()
        };
        let store = Arc::new(Store::open(&disk, &dir.join("tree"), config)?);
        let mut rng = Rng::new(7);
        let words = (0..value_bytes.div_ceil(8)).map(|_| rng.next_u64().to_le_bytes());
        let mut value: Vec<u8> = words.flatten().collect();
        value.truncate(value_bytes);
        let tending = Arc::clone(&store);
        let (ended, tended) = std::sync::mpsc::channel();
        disk.run_background(
            "tree",
            Box::new(move || {
                Box::pin(async move {
                    // What went wrong is what the store says of itself.
                    let _ = tending.tend().await;
                    drop(tending);
                    let _ = ended.send(());
                })
            }),
        )
        .map_err(DiskError::Machine)?;
        let mut tree = Self {
            store,
            rng,
            value: value.into(),
            index: 0,
            revision: 1,
            ticket: 0,
            tended: Some(tended),
            stop: stop.clone(),
        };
        for first in (0..KEYS).step_by(1000) {
            if stop.is_interrupted() {
                break;
            }
            let puts = (first..first + 1000)
                .map(|number| tree.put(number))
                .collect();
            tree.write(puts)?;
        }
        Ok(tree)
    }

    fn put(&self, number: u64) -> Put {
        let namespace = number / 100;
        Put {
            key: format!("/registry/pods/namespace-{namespace:03}/pod-{number:010}").into(),
            value: self.value.clone(),
            ..Put::default()
        }
    }

    /// As many puts to any keys.
    fn puts(&mut self, count: usize) -> Vec<Put> {
        let numbers: Vec<_> = (0..count).map(|_| self.rng.below(KEYS)).collect();
        numbers.into_iter().map(|number| self.put(number)).collect()
    }

    /// Evaluates puts and applies them as one entry, as a leader does.
    fn write(&mut self, puts: Vec<Put>) -> Result<(), DiskError> {
        let base = Revision(self.revision);
        let mut pending = Pending::new();
        let mut steps = Vec::with_capacity(puts.len() + 1);
        for put in puts {
            self.revision += 1;
            self.ticket = self.ticket.wrapping_add(1);
            let own = Revision(self.revision);
            let request = Request::Put(put);
            let evaluated = evaluate(&self.store, &pending, base, own, &|_| true, &request)?;
            pending.add(Ticket(self.ticket), own, evaluated.changes);
            steps.push(Step::Write {
                revision: own,
                effects: evaluated.effects,
            });
        }
        if self.revision % 10_000 < steps.len() as i64 && self.revision > 2 * HISTORY {
            steps.push(Step::Compact {
                floor: Revision(self.revision - HISTORY),
            });
        }
        self.index += 1;
        let entry = Entry {
            applied: Applied {
                index: self.index,
                term: 1,
                leader: 1,
            },
            steps,
        };
        self.store.apply(&entry)?;
        pending.retire(Ticket(self.ticket));
        Ok(())
    }

    /// Writes and copies the store on two threads until it is told to end.
    pub(crate) fn beside(mut self, puts_per_s: f64) -> Result<Beside, DiskError> {
        let over = Arc::new(AtomicBool::new(false));
        let store = Arc::clone(&self.store);
        let copies_over = Arc::clone(&over);
        let reader = std::thread::Builder::new()
            .name("copies".to_owned())
            .spawn(move || copy(&store, &copies_over))
            .map_err(DiskError::Machine)?;
        let writes_over = Arc::clone(&over);
        let rate = puts_per_s.min(BESIDE_PUTS_MAX);
        let writer = std::thread::Builder::new()
            .name("writes".to_owned())
            .spawn(move || {
                let checkpoints = self.store.checkpoints();
                let (mut seen, mut count) = (checkpoints.borrow().index, 0);
                let (start, mut written) = (Instant::now(), 0u64);
                let mut checkpoint_at = start;
                while !writes_over.load(Ordering::Relaxed) {
                    let due = (start.elapsed().as_secs_f64() * rate) as u64 - written;
                    if due < ENTRY_PUTS as u64 || self.is_behind() {
                        std::thread::sleep(Duration::from_millis(2));
                    } else {
                        let puts = self.puts(ENTRY_PUTS);
                        self.write(puts)?;
                        written += ENTRY_PUTS as u64;
                    }
                    if Instant::now() >= checkpoint_at {
                        self.store.request_checkpoint();
                        checkpoint_at += CHECKPOINT_EVERY;
                    }
                    let newest = checkpoints.borrow().index;
                    count += u64::from(newest != seen);
                    seen = newest;
                }
                Ok((self, count, written))
            })
            .map_err(DiskError::Machine)?;
        Ok(Beside {
            over,
            writer: Some(writer),
            reader: Some(reader),
        })
    }

    /// The disk doesn't keep up with checkpoints: who writes waits.
    fn is_behind(&self) -> bool {
        self.store.dirty_bytes() > 2 * Config::default().dirty_bytes_max
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        self.store.close();
        if let Some(tended) = self.tended.take() {
            // A checkpoint that is under way writes into the directory still.
            let _ = tended.recv_timeout(self.stop.patience(PATIENCE));
        }
    }
}

/// Reads the last checkpoint whole, again and again; returns the bytes.
fn copy(store: &Arc<Store>, over: &AtomicBool) -> Result<u64, DiskError> {
    let mut bytes = 0;
    while !over.load(Ordering::Relaxed) {
        let snapshot = store.snapshot()?;
        let mut page = 0;
        while !over.load(Ordering::Relaxed)
            && let Some(piece) = snapshot.read(page)?
        {
            bytes += piece.bytes.len() as u64;
            page = piece.page + piece.bytes.len() as u64 / PAGE_BYTES;
            // As fast as a follower on a network would take it.
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(snapshot);
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(bytes)
}

const PAGE_BYTES: u64 = pontoon_engine::format::PAGE_BYTES as u64;

type Written = Result<(Tree, u64, u64), DiskError>;

/// A tree at work beside the log.
pub(crate) struct Beside {
    over: Arc<AtomicBool>,
    writer: Option<JoinHandle<Written>>,
    reader: Option<JoinHandle<Result<u64, DiskError>>>,
}

/// What it did.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct BesideDone {
    pub(crate) checkpoints: u64,
    pub(crate) tree_puts: u64,
    pub(crate) snapshot_bytes: u64,
}

impl Beside {
    /// Ends it.
    pub(crate) fn end(mut self) -> Result<(Tree, BesideDone), DiskError> {
        self.over.store(true, Ordering::Relaxed);
        let reader = self.reader.take().map(JoinHandle::join);
        let writer = self.writer.take().map(JoinHandle::join);
        let (Some(Ok(read)), Some(Ok(written))) = (reader, writer) else {
            return Err(DiskError::Stuck);
        };
        let (tree, checkpoints, tree_puts) = written?;
        let done = BesideDone {
            checkpoints,
            tree_puts,
            snapshot_bytes: read?,
        };
        Ok((tree, done))
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        // They may still write into a directory that is about to go.
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}
