//! The log as its users see it.
//!
//! Kept true: the order in which batches of a stream become visible is the
//! order in which they are written; memory held by the queue and the cache
//! stays within the configuration.

use std::any::Any;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::batch::{Batch, Op};
use crate::blocks::{BLOCK_BYTES, Blocks};
use crate::clock::Clock;
use crate::counters::Counters;
use crate::disk::Disk;
use crate::effects::Effects;
use crate::error::WalError;
use crate::format::{
    CommitHeader, FIRST_COMMIT, IDENTITY_NAME, Identity, LOCK_NAME, RESERVE_NAME,
    segment_bytes_valid, segment_name,
};
use crate::janitor::{Janitor, Job};
use crate::position::{LogIndex, SegmentId, StreamId};
use crate::recovery::{Depth, Recovered, recover};
use crate::scan::Chain;
use crate::segments::{Full, SegmentFile, SegmentTable};
use crate::stream::{Bounds, Cell, LiveChange, Stream};
use crate::writer::{QueuedOp, Request, Start, Writer};

/// How the log is kept.
#[derive(Clone, Debug)]
pub struct Config {
    /// Its directory, which holds nothing else.
    pub dir: PathBuf,
    /// Whose log it is. A directory written for another node is refused.
    pub node: u64,
    /// Size of a segment file.
    pub segment_bytes: u32,
    /// Bytes that one commit gathers at most; a larger batch is a commit of its own.
    pub commit_bytes_max: usize,
    /// Commits in flight at most; 0 leaves it to the disk.
    pub in_flight_max: usize,
    /// Bytes that wait to become durable at most; further appends wait for room.
    pub queue_bytes_max: usize,
    /// Durable entries kept in memory, in bytes.
    pub cache_bytes_max: usize,
    /// Segments made ahead.
    pub spare_segments: usize,
    /// Above this size of the log, live entries are moved out of old segments
    /// that are mostly garbage, so that an idle stream can't keep them.
    pub clean_above_bytes: u64,
}

impl Config {
    /// The defaults for a log of `node` in `dir`.
    pub fn new(dir: impl Into<PathBuf>, node: u64) -> Self {
        Self {
            dir: dir.into(),
            node,
            segment_bytes: 32 << 20,
            commit_bytes_max: 1 << 20,
            in_flight_max: 0,
            queue_bytes_max: 16 << 20,
            cache_bytes_max: 64 << 20,
            spare_segments: 1,
            clean_above_bytes: 256 << 20,
        }
    }

    /// Whether a batch can be written at all.
    pub(crate) fn check_size(&self, batch: &Batch) -> Result<(), WalError> {
        let limit = self.segment_bytes as usize - FIRST_COMMIT as usize - BLOCK_BYTES;
        let bytes = batch.commit_bytes().next_multiple_of(BLOCK_BYTES)
            + (Effects::default().footer_bytes() + batch.footer_bytes)
                .next_multiple_of(BLOCK_BYTES);
        if bytes > limit {
            return Err(WalError::BatchTooLarge { bytes, limit });
        }
        Ok(())
    }

    fn check(&self) -> Result<(), WalError> {
        let problem = if !segment_bytes_valid(self.segment_bytes) {
            "segment_bytes must be a multiple of 4096 from 32 KiB to 1 GiB"
        } else if self.spare_segments == 0 {
            "spare_segments must be at least 1"
        } else if self.queue_bytes_max == 0 || self.queue_bytes_max > u32::MAX as usize {
            "queue_bytes_max must be above 0 and below 4 GiB"
        } else {
            return Ok(());
        };
        Err(WalError::Config(problem.to_owned()))
    }
}

/// What opening found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Opened {
    /// Whether there was no log before.
    pub created: bool,
    /// Whether the log had been closed in order.
    pub was_closed: bool,
    /// Whether unacknowledged commits were found behind the end and cut off.
    pub cut: bool,
    /// Segments that hold the log.
    pub segments: usize,
    /// Of these, how many had to be read whole.
    pub scanned: usize,
}

/// What all parts of a running log share.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) clock: Arc<dyn Clock>,
    /// Which log this is; every segment says it.
    pub(crate) log: u128,
    pub(crate) in_flight_max: usize,
    pub(crate) streams: RwLock<FxHashMap<StreamId, Cell>>,
    pub(crate) segments: Mutex<SegmentTable>,
    /// The oldest segment that the log needs, as commits say it.
    pub(crate) first_segment: AtomicU32,
    pub(crate) space_low: AtomicBool,
    /// Room in the queue, in bytes.
    pub(crate) queue: Semaphore,
    pub(crate) jobs: mpsc::WeakUnboundedSender<Job>,
    pub(crate) counters: Counters,
    failed: OnceLock<Arc<str>>,
}

impl Shared {
    /// The first failure counts; returns it.
    pub(crate) fn set_failed(&self, reason: &str) -> Arc<str> {
        let reason = self.failed.get_or_init(|| Arc::from(reason));
        self.queue.close();
        Arc::clone(reason)
    }

    fn check_failed(&self) -> Result<(), WalError> {
        match self.failed.get() {
            Some(reason) => Err(WalError::Failed(Arc::clone(reason))),
            None => Ok(()),
        }
    }

    pub(crate) fn find(&self, stream: StreamId) -> Option<Cell> {
        self.streams.read().get(&stream).cloned()
    }

    fn find_or_add(&self, stream: StreamId) -> Cell {
        self.find(stream)
            .unwrap_or_else(|| Arc::clone(self.streams.write().entry(stream).or_default()))
    }

    /// Takes a dropped stream off the map, unless it is another one by now.
    pub(crate) fn forget(&self, stream: StreamId, cell: &Cell) {
        let mut streams = self.streams.write();
        if streams
            .get(&stream)
            .is_some_and(|current| Arc::ptr_eq(current, cell))
        {
            streams.remove(&stream);
        }
    }
}

/// One log for all the streams of a node. Clones are handles of the same log;
/// it closes in order when the last one is gone.
#[derive(Clone)]
pub struct Wal {
    shared: Arc<Shared>,
    requests: mpsc::UnboundedSender<Request>,
    ended: Arc<Mutex<Option<oneshot::Receiver<()>>>>,
}

impl Wal {
    /// Opens the log in `config.dir`, or makes it, and starts its tasks.
    pub fn open(
        config: Config,
        disk: Arc<dyn Disk>,
        clock: Arc<dyn Clock>,
    ) -> Result<(Self, Opened), WalError> {
        config.check()?;
        let dir = config.dir.clone();
        let at = |error| WalError::io(dir.display().to_string(), error);
        disk.create_dir(&dir).map_err(at)?;
        let lock = disk
            .lock(&dir.join(LOCK_NAME))
            .map_err(|error| match error.kind() {
                io::ErrorKind::WouldBlock => WalError::Locked(dir.clone()),
                _ => at(error),
            })?;
        let found = recover(&*disk, &dir, Depth::Footers, &mut |_, _, _, _| {})?;
        if let Some(found) = &found
            && found.identity.node != config.node
        {
            return Err(WalError::OtherNode {
                dir,
                expected: config.node,
                found: found.identity.node,
            });
        }
        let log = match &found {
            Some(found) => found.identity.log,
            None => u128::from(clock.random()) << 64 | u128::from(clock.random()),
        };
        let (jobs, job_queue) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared {
            in_flight_max: match config.in_flight_max {
                0 => disk.commits_in_flight_max(),
                limit => limit.min(disk.commits_in_flight_max()),
            },
            queue: Semaphore::new(config.queue_bytes_max),
            config,
            disk,
            clock,
            log,
            streams: RwLock::default(),
            segments: Mutex::default(),
            first_segment: AtomicU32::new(1),
            space_low: AtomicBool::new(false),
            jobs: jobs.downgrade(),
            counters: Counters::default(),
            failed: OnceLock::new(),
        });
        let plan = match found {
            None => shared.create()?,
            Some(found) => shared.resume(found)?,
        };
        let opened = plan.opened.clone();
        let wal = shared.start(plan, jobs, job_queue, lock)?;
        Ok((wal, opened))
    }

    /// Makes a batch visible to reads at once and durable soon; `done` runs
    /// when it is, or when it never will be. Waits while the queue is full.
    ///
    /// An error means that nothing was changed and `done` will not run.
    /// `done` runs on the commit thread and should be short; it fits openraft's
    /// flush callback: `wal.append(batch, |result| flushed.io_completed(result))`.
    pub async fn append(
        &self,
        batch: Batch,
        done: impl FnOnce(io::Result<()>) + Send + 'static,
    ) -> Result<(), WalError> {
        let permits = self.admit(&batch)?;
        if let Ok(permit) = self.shared.queue.try_acquire_many(permits) {
            permit.forget();
        } else {
            match self.shared.queue.acquire_many(permits).await {
                Ok(permit) => permit.forget(),
                Err(_) => {
                    self.shared.check_failed()?;
                    return Err(WalError::Closed);
                }
            }
        }
        self.enqueue(batch, Box::new(done), permits as usize)
            .inspect_err(|_| self.shared.queue.add_permits(permits as usize))
    }

    /// [`Wal::append`], then waits until it is durable.
    pub async fn commit(&self, batch: Batch) -> Result<(), WalError> {
        let (done, durable) = oneshot::channel();
        self.append(batch, move |result| {
            // Nobody waits any more: fine.
            let _ = done.send(result.is_ok());
        })
        .await?;
        match durable.await {
            Ok(true) => Ok(()),
            _ => {
                self.shared.check_failed()?;
                Err(WalError::Closed)
            }
        }
    }

    /// Entries of `stream` from `from` to before `to`: as many as there are
    /// and as fit `bytes_max`, but at least one if there is one. Recent ones
    /// come from memory, others from the disk, for which this call blocks.
    pub fn read(
        &self,
        stream: StreamId,
        from: LogIndex,
        to: LogIndex,
        bytes_max: usize,
    ) -> Result<Vec<Bytes>, WalError> {
        self.shared.read(stream, from.0, to.0, bytes_max)
    }

    /// The first entry that is there and the next one to come, if the stream exists.
    #[must_use]
    pub fn bounds(&self, stream: StreamId) -> Option<(LogIndex, LogIndex)> {
        let cell = self.shared.find(stream)?;
        let guard = cell.lock();
        let view = guard.view.as_ref()?;
        Some((LogIndex(view.first), LogIndex(view.next)))
    }

    /// The index from which on entries are in memory, if the stream exists.
    #[must_use]
    pub fn cached_from(&self, stream: StreamId) -> Option<LogIndex> {
        let cell = self.shared.find(stream)?;
        let guard = cell.lock();
        guard.view.as_ref().map(|view| LogIndex(view.tail_first()))
    }

    /// A metadata value, as it was last set.
    #[must_use]
    pub fn meta(&self, stream: StreamId, key: u8) -> Option<Bytes> {
        let cell = self.shared.find(stream)?;
        let guard = cell.lock();
        guard.view.as_ref()?.metas.get(&key).cloned()
    }

    /// All streams, in order.
    #[must_use]
    pub fn streams(&self) -> Vec<StreamId> {
        let streams = self.shared.streams.read();
        let mut ids: Vec<_> = streams
            .iter()
            .filter(|(_, cell)| cell.lock().view.is_some())
            .map(|(&id, _)| id)
            .collect();
        ids.sort_unstable();
        ids
    }

    /// Numbers about what happened since the log was opened.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// Whether entries are refused because the disk is full.
    #[must_use]
    pub fn is_space_low(&self) -> bool {
        self.shared.space_low.load(Relaxed)
    }

    /// Why the log takes no more writes, if it doesn't.
    #[must_use]
    pub fn failure(&self) -> Option<Arc<str>> {
        self.shared.failed.get().cloned()
    }

    /// Bytes of the segment files that hold the log.
    #[must_use]
    pub fn disk_bytes(&self) -> u64 {
        let segments = self.shared.segments.lock();
        segments.usage().map_or(0, |usage| {
            usage.bytes + u64::from(self.shared.config.segment_bytes)
        })
    }

    /// Writes what is queued, closes in order and lets go of the directory.
    /// Other handles must be gone: it waits for them.
    pub async fn close(self) {
        let ended = self.ended.lock().take();
        drop(self);
        if let Some(ended) = ended {
            // An error means that it ended without saying so: the same to us.
            let _ = ended.await;
        }
    }

    /// Checks what can be checked without locks; returns the room it needs.
    fn admit(&self, batch: &Batch) -> Result<u32, WalError> {
        self.shared.check_failed()?;
        self.shared.config.check_size(batch)?;
        if batch.has_entries() && self.is_space_low() {
            return Err(WalError::NoSpace);
        }
        let bytes = batch.commit_bytes() + REQUEST_BYTES;
        Ok(bytes.min(self.shared.config.queue_bytes_max) as u32)
    }

    /// Checks the batch against its streams, changes them, and queues it, all
    /// under their locks: so the queue has each stream's changes in order.
    fn enqueue(
        &self,
        batch: Batch,
        done: crate::writer::Done,
        permits: usize,
    ) -> Result<(), WalError> {
        // Most batches are about one stream: they need no memory here.
        let mut ids: SmallVec<[_; 2]> = batch.ops.iter().map(|op| op.stream).collect();
        // Locks are taken in one order, so that two batches can't wait for each other.
        ids.sort_unstable();
        ids.dedup();
        loop {
            let cells: SmallVec<[Cell; 2]> =
                ids.iter().map(|&id| self.shared.find_or_add(id)).collect();
            let mut guards: SmallVec<[_; 2]> = cells.iter().map(|cell| cell.lock()).collect();
            if guards.iter().any(|stream| stream.retired) {
                continue;
            }
            let place = |op: &Op| ids.binary_search(&op.stream).expect("every id is listed");
            let mut bounds: SmallVec<[_; 2]> =
                guards.iter().map(|stream| Bounds::of(stream)).collect();
            for op in &batch.ops {
                bounds[place(op)].follow(op.stream, &op.change)?;
            }
            let ops = batch
                .ops
                .into_iter()
                .map(|op| {
                    let at = place(&op);
                    QueuedOp {
                        ticket: guards[at].change_view(&op.change),
                        cell: Arc::clone(&cells[at]),
                        stream: op.stream,
                        change: op.change,
                    }
                })
                .collect();
            let request = Request {
                ops,
                done,
                record_bytes: batch.record_bytes,
                footer_bytes: batch.footer_bytes,
                permits,
                queued_at: self.shared.clock.now(),
                flags: 0,
            };
            // The writer ends before its senders only when it has failed, and
            // then `done` must still run.
            if let Err(refused) = self.requests.send(request) {
                (refused.0.done)(Err(WalError::Closed.into()));
            }
            return Ok(());
        }
    }
}

/// What a queued request costs besides its records.
const REQUEST_BYTES: usize = 256;

/// The directory is ours until the last task that writes to it has ended.
struct Held {
    lock: Option<Box<dyn Any + Send + Sync>>,
    end: Option<oneshot::Sender<()>>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.lock = None;
        if let Some(end) = self.end.take() {
            // Nobody waits for the end: fine.
            let _ = end.send(());
        }
    }
}

/// How a log starts to run.
struct Plan {
    opened: Opened,
    start: Start,
    spares: Vec<SegmentFile>,
    unsealed: Vec<Full>,
    has_reserve: bool,
}

impl Shared {
    /// Makes a log where there was none.
    fn create(&self) -> Result<Plan, WalError> {
        for name in [
            segment_name(SegmentId(1)),
            crate::format::PREPARING_NAME.to_owned(),
        ] {
            // Left by a creation that didn't get as far as its identity.
            if self.disk.open(&self.config.dir.join(&name), false).is_ok() {
                self.remove(&name)?;
            }
        }
        let first = self.prepare(SegmentId(1), &mut Default::default())?;
        let identity = Identity {
            log: self.log,
            node: self.config.node,
            ..Identity::default()
        };
        self.write_identity(&identity)?;
        self.segments.lock().add(first.clone());
        Ok(Plan {
            opened: Opened {
                created: true,
                was_closed: true,
                segments: 1,
                ..Opened::default()
            },
            start: Start {
                active: first,
                end: FIRST_COMMIT,
                effects: Effects::default(),
                first_seq: 1,
                last: Chain::default(),
            },
            spares: Vec::new(),
            unsealed: Vec::new(),
            has_reserve: false,
        })
    }

    fn write_identity(&self, identity: &Identity) -> Result<(), WalError> {
        let unfinished = crate::format::PREPARING_NAME;
        let path = self.config.dir.join(unfinished);
        let mut block = Blocks::default();
        block.put(&identity.to_bytes());
        block.seal();
        self.disk
            .create(&path)
            .and_then(|file| {
                file.write_at(0, block.as_slice())?;
                file.sync()
            })
            .map_err(|error| WalError::io(path.display().to_string(), error))?;
        self.rename(unfinished, IDENTITY_NAME)
    }

    /// Takes up a log where it ends.
    fn resume(&self, found: Recovered) -> Result<Plan, WalError> {
        for name in &found.litter {
            self.remove(name)?;
        }
        let opened = Opened {
            created: false,
            was_closed: found.chain.flags & CommitHeader::CLOSES != 0,
            cut: found.cut,
            segments: found.segments.len(),
            scanned: found
                .segments
                .iter()
                .filter(|segment| !segment.sealed)
                .count(),
        };
        let first_segment = found.chain.first_segment.max(1);
        self.first_segment.store(first_segment, Relaxed);
        let mut unsealed = Vec::new();
        for segment in found.segments {
            let path = self.config.dir.join(segment_name(segment.id));
            let at = |error| WalError::io(path.display().to_string(), error);
            let file = SegmentFile {
                id: segment.id,
                salt: segment.header.salt,
                bytes: segment.header.segment_bytes,
                file: self.disk.open(&path, true).map_err(at)?,
            };
            self.segments.lock().add(file.clone());
            if !segment.sealed {
                // What was read may have been in the page cache only, left by
                // a process that was killed: make it true before relying on it.
                file.file.sync().map_err(at)?;
                unsealed.push(Full {
                    file,
                    effects: segment.effects,
                    first_seq: segment.first_seq,
                    last_seq: segment.chain.seq,
                    last_epoch: segment.chain.epoch,
                    last_flags: segment.chain.flags,
                    first_segment: segment.chain.first_segment.max(1),
                    end: segment.end,
                });
            }
        }
        let active = unsealed.pop().expect("the last segment is never sealed");
        assert_eq!(active.end(), found.end, "the log goes on where it ends");
        let mut live = LiveChange::default();
        let mut streams = self.streams.write();
        for (id, logged) in found.streams {
            logged.count_live(&mut live);
            streams.insert(id, Arc::new(Mutex::new(Stream::recovered(logged))));
        }
        self.segments.lock().count(&live);
        Ok(Plan {
            opened,
            start: Start {
                active: active.file,
                end: active.end,
                effects: active.effects,
                first_seq: match active.first_seq {
                    0 => found.chain.seq + 1,
                    first => first,
                },
                last: found.chain,
            },
            spares: self.keep_spares(found.spares)?,
            unsealed,
            has_reserve: found.has_reserve && self.keep_reserve()?,
        })
    }

    /// Whether the reserve has the size that is wanted now; else it goes.
    fn keep_reserve(&self) -> Result<bool, WalError> {
        let path = self.config.dir.join(RESERVE_NAME);
        let size = self.disk.open(&path, false).and_then(|file| file.size());
        let size = size.map_err(|error| WalError::io(path.display().to_string(), error))?;
        if size != u64::from(self.config.segment_bytes) {
            self.remove(RESERVE_NAME)?;
            return Ok(false);
        }
        Ok(true)
    }

    /// Spares are used as they are, if they have the size that is wanted now.
    fn keep_spares(
        &self,
        found: Vec<crate::recovery::Segment>,
    ) -> Result<Vec<SegmentFile>, WalError> {
        let fitting = found
            .iter()
            .take_while(|spare| spare.header.segment_bytes == self.config.segment_bytes)
            .count();
        // From the end, so that a crash in between leaves no gap.
        for spare in found[fitting..].iter().rev() {
            self.remove(&segment_name(spare.id))?;
        }
        found[..fitting]
            .iter()
            .map(|spare| {
                let path = self.config.dir.join(segment_name(spare.id));
                Ok(SegmentFile {
                    id: spare.id,
                    salt: spare.header.salt,
                    bytes: spare.header.segment_bytes,
                    file: self
                        .disk
                        .open(&path, true)
                        .map_err(|error| WalError::io(path.display().to_string(), error))?,
                })
            })
            .collect()
    }

    /// Starts the writer and the janitor.
    fn start(
        self: Arc<Self>,
        plan: Plan,
        jobs: mpsc::UnboundedSender<Job>,
        job_queue: mpsc::UnboundedReceiver<Job>,
        lock: Box<dyn Any + Send + Sync>,
    ) -> Result<Wal, WalError> {
        let (requests, request_queue) = mpsc::unbounded_channel();
        let spares_max = self.config.spare_segments.max(plan.spares.len());
        let (ready, ready_queue) = mpsc::channel(spares_max);
        let mut next = plan.start.active.id.next();
        for spare in plan.spares {
            next = spare.id.next();
            ready
                .try_send(spare)
                .expect("there is room for every spare");
        }
        for full in plan.unsealed {
            jobs.send(Job::Seal(Box::new(full)))
                .expect("the receiver is at hand");
        }
        let janitor = Janitor::new(
            Arc::clone(&self),
            job_queue,
            ready,
            requests.downgrade(),
            next,
            plan.has_reserve,
        );
        let (end, ended) = oneshot::channel();
        let held = Arc::new(Held {
            lock: Some(lock),
            end: Some(end),
        });
        let held_by_janitor = Arc::clone(&held);
        let at = |what: &'static str| move |error| WalError::io(what, error);
        self.disk
            .run_background(
                "wal-janitor",
                Box::new(move || {
                    Box::pin(async move {
                        janitor.run().await;
                        drop(held_by_janitor);
                    })
                }),
            )
            .map_err(at("starting the janitor"))?;
        let (shared, start) = (Arc::clone(&self), plan.start);
        self.disk
            .run_commits(
                "wal-commit",
                Box::new(move || {
                    let writer = Writer::new(shared, start, request_queue, ready_queue, jobs);
                    Box::pin(async move {
                        writer.run().await;
                        drop(held);
                    })
                }),
            )
            .map_err(at("starting the commit thread"))?;
        Ok(Wal {
            shared: self,
            requests,
            ended: Arc::new(Mutex::new(Some(ended))),
        })
    }
}
