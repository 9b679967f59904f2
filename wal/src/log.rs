//! The log as its users see it.
//!
//! Kept true: the order in which batches of a stream become visible is the
//! order in which they are written; memory held by the queue and the cache
//! stays within the configuration.

use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};

use crate::batch::{Batch, Op};
use crate::blocks::BLOCK_BYTES;
use crate::clock::Clock;
use crate::counters::Counters;
use crate::disk::Disk;
use crate::effects::Effects;
use crate::error::WalError;
use crate::format::{FIRST_COMMIT, segment_bytes_valid};
use crate::health::{Failure, Progress};
use crate::janitor::Job;
use crate::position::{LogIndex, StreamId};
use crate::segments::SegmentTable;
use crate::stream::{Bounds, Cell};
use crate::writer::{QueuedOp, Request};

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
            cache_bytes_max: 32 << 20,
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

    pub(crate) fn check(&self) -> Result<(), WalError> {
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
    /// Counts segments that became full.
    pub(crate) rotations: watch::Sender<u64>,
    pub(crate) space_low: AtomicBool,
    /// Room in the queue, in bytes.
    pub(crate) queue: Semaphore,
    pub(crate) jobs: mpsc::WeakUnboundedSender<Job>,
    pub(crate) counters: Counters,
    pub(crate) failure: Arc<Failure>,
    pub(crate) progress: Progress,
}

impl Shared {
    /// Ends the log for good: from now on nothing is reported durable. The
    /// first failure counts; returns it.
    pub(crate) fn set_failed(&self, reason: &str) -> Arc<str> {
        let reason = self.failure.set(reason);
        self.queue.close();
        reason
    }

    fn check_failed(&self) -> Result<(), WalError> {
        match self.failure.get() {
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
    pub(crate) shared: Arc<Shared>,
    pub(crate) requests: mpsc::UnboundedSender<Request>,
    pub(crate) ended: Arc<Mutex<Option<oneshot::Receiver<()>>>>,
}

impl Wal {
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

    /// Whether entries are refused because the disk is full, unless they were
    /// [admitted](Batch::admitted) before.
    #[must_use]
    pub fn is_space_low(&self) -> bool {
        self.shared.space_low.load(Relaxed)
    }

    /// Why the log takes no more writes, if it doesn't.
    #[must_use]
    pub fn failure(&self) -> Option<Arc<str>> {
        self.shared.failure.get().cloned()
    }

    /// Completes when the log has failed, with the file, the operation and the
    /// system's error; never, if the log is closed before. It doesn't keep the
    /// log open.
    pub fn failed(&self) -> impl Future<Output = Arc<str>> + Send + 'static + use<> {
        Arc::clone(&self.shared.failure).wait()
    }

    /// How long nothing has become durable though an append waits for it, also
    /// one that waits for a new segment; zero while none waits. Costs two
    /// atomic loads and a look at the log's clock.
    #[must_use]
    pub fn stalled_for(&self) -> Duration {
        self.shared.progress.stalled_for(self.shared.clock.now())
    }

    /// Bytes of the segment files that hold the log.
    #[must_use]
    pub fn disk_bytes(&self) -> u64 {
        let segments = self.shared.segments.lock();
        segments.usage().map_or(0, |usage| {
            usage.bytes + u64::from(self.shared.config.segment_bytes)
        })
    }

    /// Changes whenever a segment is full, so that its owner can shorten streams
    /// in time. Ends when the log does.
    #[must_use]
    pub fn rotations(&self) -> watch::Receiver<u64> {
        self.shared.rotations.subscribe()
    }

    /// The most bytes that each stream may take on disk so that all together
    /// take `bytes_max`: streams that take less leave their part to the others.
    /// `u64::MAX` while all together take no more than that.
    #[must_use]
    pub fn fair_share(&self, bytes_max: u64) -> u64 {
        let mut sizes: Vec<u64> = {
            let streams = self.shared.streams.read();
            let logged = |cell: &Cell| cell.lock().logged.as_ref().map(|logged| logged.bytes);
            streams.values().filter_map(logged).collect()
        };
        fair_share(&mut sizes, bytes_max)
    }

    /// The first of the newest entries of a stream that together take
    /// `bytes_max` on disk at most. Entries that are not yet written don't count.
    #[must_use]
    pub fn first_within(&self, stream: StreamId, bytes_max: u64) -> Option<LogIndex> {
        let cell = self.shared.find(stream)?;
        let guard = cell.lock();
        let logged = guard.logged.as_ref()?;
        Some(LogIndex(logged.first_within(bytes_max)))
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
        if batch.may_be_refused() && self.is_space_low() {
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
            assert!(permits > 0, "an append holds some of the queue");
            let queued_at = self.shared.clock.now();
            self.shared.progress.begin(queued_at);
            let request = Request {
                ops,
                done,
                record_bytes: batch.record_bytes,
                footer_bytes: batch.footer_bytes,
                permits,
                queued_at,
                flags: 0,
            };
            // The writer ends before its senders only when it has failed, and
            // then `done` must still run.
            if let Err(refused) = self.requests.send(request) {
                self.shared.progress.give_up(1);
                (refused.0.done)(Err(WalError::Closed.into()));
            }
            return Ok(());
        }
    }
}

/// The highest limit that cuts these sizes to `bytes_max` together.
fn fair_share(sizes: &mut [u64], bytes_max: u64) -> u64 {
    if sizes.iter().sum::<u64>() <= bytes_max {
        return u64::MAX;
    }
    sizes.sort_unstable();
    let mut rest = bytes_max;
    for (at, &size) in sizes.iter().enumerate() {
        let share = rest / (sizes.len() - at) as u64;
        if size > share {
            return share;
        }
        rest -= size;
    }
    u64::MAX
}

/// What a queued request costs besides its records.
const REQUEST_BYTES: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_streams_leave_their_part_to_large_ones() {
        for (sizes, bytes_max, share) in [
            (&mut [][..], 0, u64::MAX),
            (&mut [10, 20, 30], 60, u64::MAX),
            (&mut [10, 20, 30], 59, 29),
            (&mut [30, 10, 30], 50, 20),
            (&mut [30, 30, 30], 60, 20),
            (&mut [1000, 1, 0], 101, 100),
            (&mut [5], 0, 0),
        ] {
            let case = format!("{sizes:?} to {bytes_max}");
            assert_eq!(fair_share(sizes, bytes_max), share, "{case}");
            if share < u64::MAX {
                let cut: u64 = sizes.iter().map(|size| *size.min(&share)).sum();
                assert!(cut <= bytes_max, "{case}");
            }
        }
    }
}
