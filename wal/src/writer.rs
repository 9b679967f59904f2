//! The commit loop: gathers requests into commits, has several in flight,
//! and reports them durable in order.
//!
//! Kept true: commits are numbered and placed in the order in which they are
//! composed; a block that was submitted is never written again by this run;
//! a callback runs only when its commit **and all before it** are durable;
//! after the first failure nothing is ever reported durable again.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use smallvec::SmallVec;
use tokio::sync::mpsc;

use crate::batch::Change;
use crate::blocks::{BLOCK_BYTES, Blocks};
use crate::compose::{CachedAppend, Commit};
use crate::effects::Effects;
use crate::format::{CommitHeader, FIRST_COMMIT, segment_name};
use crate::janitor::Job;
use crate::log::Shared;
use crate::position::{Lsn, StreamId};
use crate::scan::Chain;
use crate::segments::{Full, SegmentFile};
use crate::stream::Cell;

/// Runs once, when the batch is durable or the log has failed.
pub(crate) type Done = Box<dyn FnOnce(io::Result<()>) + Send>;

/// A batch on its way to the disk.
pub(crate) struct Request {
    pub(crate) ops: SmallVec<[QueuedOp; 1]>,
    pub(crate) done: Done,
    pub(crate) record_bytes: usize,
    pub(crate) footer_bytes: usize,
    /// What it holds of the queue's budget; 0 for the log's own requests.
    pub(crate) permits: usize,
    pub(crate) queued_at: Duration,
    /// Flags for the commit's header.
    pub(crate) flags: u32,
}

pub(crate) struct QueuedOp {
    pub(crate) cell: Cell,
    pub(crate) stream: StreamId,
    pub(crate) change: Change,
    /// Which append this is, for the cache.
    pub(crate) ticket: Option<u64>,
}

impl Request {
    /// A commit without records, for what its header says.
    pub(crate) fn marker(flags: u32, done: Done) -> Self {
        Self {
            ops: SmallVec::new(),
            done,
            record_bytes: 0,
            footer_bytes: 0,
            permits: 0,
            queued_at: Duration::ZERO,
            flags,
        }
    }

    /// 1 if a caller waits for it, 0 if it is one of the log's own.
    fn appends(&self) -> u64 {
        u64::from(self.permits > 0)
    }
}

/// Where the loop starts.
pub(crate) struct Start {
    pub(crate) active: SegmentFile,
    pub(crate) end: u32,
    pub(crate) effects: Effects,
    pub(crate) first_seq: u64,
    /// The last commit of the run before.
    pub(crate) last: Chain,
}

pub(crate) struct Writer {
    shared: Arc<Shared>,
    requests: mpsc::UnboundedReceiver<Request>,
    ready: mpsc::Receiver<SegmentFile>,
    jobs: mpsc::UnboundedSender<Job>,

    active: SegmentFile,
    /// Where the next commit goes.
    end: u32,
    effects: Effects,
    first_seq: u64,

    /// The last commit composed, or the last one of the run before.
    last: Chain,
    epoch: u64,
    /// Everything before is durable.
    durable: Lsn,

    pending: VecDeque<Request>,
    in_flight: VecDeque<InFlight>,
    in_flight_max: usize,
    /// Until when the time with a commit under way is counted.
    busy_since: Duration,
    running: FuturesUnordered<Running>,
    /// Full segments with commits that are not durable yet.
    unsealed: VecDeque<Full>,
    spare_memory: Vec<Blocks>,
    cache: Cache,
    /// Commits in a row during which nobody else came.
    lonely: u32,
    /// Whether the last commit has records.
    unproved: bool,
}

/// A log that is idle for so long gets a commit that proves its last records.
const IDLE_MIN: Duration = Duration::from_secs(1);

/// After so many lonely commits there is probably one caller, who waits for
/// each. Then it is faster to write in the call than to wait for the ring, and
/// if somebody else comes after all, one commit waits for the end of another.
const LONELY_MIN: u32 = 8;

type Running = Pin<Box<dyn Future<Output = (u64, io::Result<()>, Blocks)>>>;

struct InFlight {
    seq: u64,
    end: Lsn,
    started: Duration,
    durable: bool,
    done: Vec<Done>,
    /// How many of them are appends.
    appends: u64,
    permits: usize,
    records: u32,
    record_bytes: u32,
    written_bytes: usize,
    cached: Vec<CachedAppend>,
    moved: Vec<(Cell, u64)>,
}

/// Durable entries that are still in memory, oldest first.
#[derive(Default)]
struct Cache {
    appends: VecDeque<CachedAppend>,
    bytes: usize,
}

impl Cache {
    fn add(&mut self, append: CachedAppend, bytes_max: usize) {
        self.bytes += append.bytes;
        self.appends.push_back(append);
        while self.bytes > bytes_max
            && let Some(oldest) = self.appends.pop_front()
        {
            self.bytes -= oldest.bytes;
            if let Some(view) = oldest.cell.lock().view.as_mut() {
                view.evict(oldest.ticket);
            }
        }
    }
}

impl Writer {
    pub(crate) fn new(
        shared: Arc<Shared>,
        start: Start,
        requests: mpsc::UnboundedReceiver<Request>,
        ready: mpsc::Receiver<SegmentFile>,
        jobs: mpsc::UnboundedSender<Job>,
    ) -> Self {
        // The first commit of an epoch goes alone. Were another one durable
        // without it, the next run would take the same epoch again and could
        // mistake that commit for its own.
        let opens = Request::marker(CommitHeader::OPENS, Box::new(|_| {}));
        Self {
            durable: Lsn::new(start.active.id, start.end),
            active: start.active,
            end: start.end,
            effects: start.effects,
            first_seq: start.first_seq,
            last: start.last,
            epoch: start.last.epoch + 1,
            requests,
            ready,
            jobs,
            pending: VecDeque::from([opens]),
            in_flight: VecDeque::new(),
            in_flight_max: 1,
            busy_since: Duration::ZERO,
            running: FuturesUnordered::new(),
            unsealed: VecDeque::new(),
            spare_memory: Vec::new(),
            cache: Cache::default(),
            lonely: 0,
            unproved: false,
            shared,
        }
    }

    /// Runs until every handle of the log is gone, then closes it cleanly.
    pub(crate) async fn run(mut self) {
        let mut incoming = Vec::new();
        let mut closing = false;
        let mut wants_segment = false;
        // The janitor writes too, and its failures are the log's.
        let failed = Arc::clone(&self.shared.failure).wait();
        tokio::pin!(failed);
        loop {
            let waited = wants_segment;
            wants_segment = self.submit();
            if wants_segment && !waited {
                self.shared.counters.segment_stalls.fetch_add(1, Relaxed);
            }
            if closing && self.pending.is_empty() && self.in_flight.is_empty() {
                return;
            }
            tokio::select! {
                biased;
                reason = &mut failed => return self.fail(&reason).await,
                Some((seq, result, blocks)) = self.running.next(), if !self.running.is_empty() => {
                    if let Err(reason) = self.completed(seq, result, blocks) {
                        return self.fail(&reason).await;
                    }
                }
                segment = self.ready.recv(), if wants_segment => match segment {
                    Some(segment) => self.roll_to(segment),
                    None => return self.fail("nobody makes segments any more").await,
                },
                () = tokio::time::sleep(IDLE_MIN), if !closing && self.wants_proof() => {
                    self.pending.push_back(Request::marker(0, Box::new(|_| {})));
                }
                count = self.requests.recv_many(&mut incoming, 4096), if !closing && self.has_slot() => {
                    self.pending.extend(incoming.drain(..));
                    if count == 0 {
                        closing = true;
                        let closes = Request::marker(CommitHeader::CLOSES, Box::new(|_| {}));
                        self.pending.push_back(closes);
                    }
                }
            }
        }
    }

    /// Whether another commit may go. While none may, requests gather in the
    /// channel, where they wake nobody.
    fn has_slot(&self) -> bool {
        self.in_flight.len() < self.in_flight_max
    }

    /// Whether all is durable, yet no commit says so of the last records:
    /// should they rot, recovery would take them for a torn tail.
    fn wants_proof(&self) -> bool {
        self.in_flight.is_empty() && self.pending.is_empty() && self.unproved
    }

    /// Submits what may go. True if that needs a new segment first.
    fn submit(&mut self) -> bool {
        while self.has_slot()
            && let Some(first) = self.pending.front()
        {
            if !self.fits(first.record_bytes, first.footer_bytes) {
                match self.ready.try_recv() {
                    Ok(segment) => self.roll_to(segment),
                    Err(_) => return true,
                }
            }
            let (mut count, mut record_bytes, mut footer_bytes) = (0, 0, 0);
            for request in &self.pending {
                let records = record_bytes + request.record_bytes;
                let footer = footer_bytes + request.footer_bytes;
                let within = records <= self.shared.config.commit_bytes_max;
                if count > 0 && !(within && self.fits(records, footer)) {
                    break;
                }
                (count, record_bytes, footer_bytes) = (count + 1, records, footer);
            }
            let requests = self.pending.drain(..count).collect();
            self.commit(requests);
        }
        false
    }

    /// Whether a commit fits the active segment, with the footer that follows.
    fn fits(&self, record_bytes: usize, footer_bytes: usize) -> bool {
        let commit = (CommitHeader::BYTES + record_bytes).next_multiple_of(BLOCK_BYTES);
        let footer = (self.effects.footer_bytes() + footer_bytes).next_multiple_of(BLOCK_BYTES);
        self.end as usize + commit + footer + BLOCK_BYTES <= self.active.bytes as usize
    }

    /// Leaves the active segment for a new one.
    fn roll_to(&mut self, segment: SegmentFile) {
        assert!(
            self.end > FIRST_COMMIT || self.active.bytes < segment.bytes,
            "what was accepted fits an empty segment"
        );
        assert_eq!(segment.id, self.active.id.next(), "segments come in order");
        self.shared.segments.lock().add(segment.clone());
        let file = std::mem::replace(&mut self.active, segment);
        self.unsealed.push_back(Full {
            file,
            effects: std::mem::take(&mut self.effects),
            first_seq: self.first_seq,
            last_seq: self.last.seq,
            last_epoch: self.last.epoch,
            last_flags: self.last.flags,
            first_segment: self.last.first_segment.max(1),
            end: std::mem::replace(&mut self.end, FIRST_COMMIT),
        });
        self.first_seq = self.last.seq + 1;
        self.seal_durable();
    }

    /// Hands full segments to the janitor once all their commits are durable:
    /// a footer is proof of that.
    fn seal_durable(&mut self) {
        while let Some(full) = self
            .unsealed
            .pop_front_if(|full| full.end() <= self.durable)
        {
            self.shared.rotations.send_modify(|count| *count += 1);
            // Without a janitor nobody seals: recovery reads the segment instead.
            let _ = self.jobs.send(Job::Seal(Box::new(full)));
        }
    }

    /// Composes one commit of all the requests and submits it.
    fn commit(&mut self, requests: Vec<Request>) {
        let seq = self.last.seq + 1;
        let started = self.shared.clock.now();
        let start = self.end;
        let memory = self.spare_memory.pop().unwrap_or_default();
        let mut commit = Commit::new(memory, &self.active, start, self.epoch, &mut self.effects);
        let mut done = Vec::with_capacity(requests.len());
        let (mut appends, mut permits, mut flags) = (0, 0, 0);
        for request in requests {
            if request.queued_at > Duration::ZERO {
                let waited = started.saturating_sub(request.queued_at);
                self.shared.counters.queue_wait.record_time(waited);
            }
            appends += request.appends();
            for op in request.ops {
                commit.add(op, &self.shared);
            }
            permits += request.permits;
            done.push(request.done);
            flags |= request.flags;
        }

        let mut header = CommitHeader {
            lsn: Lsn::new(self.active.id, start).0,
            seq,
            epoch: self.epoch,
            durable: self.durable.0,
            first_segment: self.shared.first_segment.load(Relaxed),
            flags,
            ..CommitHeader::default()
        };
        commit.describe(&mut header);
        let mut blocks = commit.blocks;
        blocks.as_mut_slice()[..CommitHeader::BYTES]
            .copy_from_slice(&header.to_bytes(self.active.salt));
        blocks.seal();
        self.end += blocks.len() as u32;
        if self.shared.segments.lock().count(&commit.live) {
            // Without a janitor nobody looks: the segment stays.
            let _ = self.jobs.send(Job::Look);
        }

        let is_first = self.in_flight.is_empty();
        if is_first {
            self.busy_since = started;
        }
        let alone = self.lonely >= LONELY_MIN && self.pending.is_empty() && is_first;
        self.in_flight.push_back(InFlight {
            seq,
            end: Lsn::new(self.active.id, self.end),
            started,
            durable: false,
            done,
            appends,
            permits,
            records: header.records,
            record_bytes: header.record_bytes,
            written_bytes: blocks.len(),
            cached: commit.cached,
            moved: commit.moved,
        });
        self.last.follow(&header);
        self.unproved = header.records > 0;
        let committed = Arc::clone(&self.active.file).commit(u64::from(start), blocks, alone);
        self.running.push(Box::pin(async move {
            let (result, blocks) = committed.await;
            (seq, result, blocks)
        }));
    }

    /// Takes note of a completion and reports what is durable through now.
    fn completed(
        &mut self,
        seq: u64,
        result: io::Result<()>,
        blocks: Blocks,
    ) -> Result<(), String> {
        let oldest = self.in_flight.front().map_or(seq, |commit| commit.seq);
        let commit = &mut self.in_flight[(seq - oldest) as usize];
        if let Err(error) = result {
            let segment = segment_name(commit.end.segment());
            let start = commit.end.offset() as usize - blocks.len();
            return Err(format!(
                "{}: write of {} bytes at {start:#x}: {error}",
                self.shared.config.dir.join(segment).display(),
                blocks.len(),
            ));
        }
        commit.durable = true;
        let now = self.shared.clock.now();
        let latency = now.saturating_sub(commit.started);
        self.shared.counters.sync_latency.record_time(latency);
        let busy = now.saturating_sub(self.busy_since);
        let busy = u64::try_from(busy.as_nanos()).unwrap_or(u64::MAX);
        self.shared.counters.busy.fetch_add(busy, Relaxed);
        self.busy_since = now;
        // Looked at before the callbacks run: their callers will come back.
        let nobody_came =
            self.in_flight.len() == 1 && self.pending.is_empty() && self.requests.is_empty();
        self.lonely = if nobody_came {
            self.lonely.saturating_add(1)
        } else {
            0
        };
        if blocks.capacity() <= 2 * self.shared.config.commit_bytes_max {
            self.spare_memory.push(blocks);
        }
        self.in_flight_max = self.shared.in_flight_max;
        while self.in_flight.front().is_some_and(|commit| commit.durable) {
            if let Some(reason) = self.shared.failure.get() {
                return Err(reason.to_string());
            }
            let commit = self.in_flight.pop_front().expect("there is a first one");
            self.durable = commit.end;
            self.report(commit, now);
        }
        self.seal_durable();
        Ok(())
    }

    fn report(&mut self, commit: InFlight, now: Duration) {
        self.shared.progress.advance(now, commit.appends);
        let counters = &self.shared.counters;
        counters.commits.fetch_add(1, Relaxed);
        counters
            .batches
            .fetch_add(commit.done.len() as u64, Relaxed);
        counters
            .records
            .fetch_add(u64::from(commit.records), Relaxed);
        counters
            .record_bytes
            .fetch_add(u64::from(commit.record_bytes), Relaxed);
        counters
            .written_bytes
            .fetch_add(commit.written_bytes as u64, Relaxed);
        counters.commit_batches.record(commit.done.len() as u64);
        for (cell, index) in commit.moved {
            if let Some(logged) = cell.lock().logged.as_mut() {
                logged.moving.remove(&index);
            }
        }
        self.shared.queue.add_permits(commit.permits);
        for done in commit.done {
            done(Ok(()));
        }
        for append in commit.cached {
            self.cache.add(append, self.shared.config.cache_bytes_max);
        }
    }

    /// Tells everybody, now and from now on, that nothing more is durable.
    async fn fail(mut self, reason: &str) {
        let reason = self.shared.set_failed(reason);
        self.jobs.send(Job::Stop).ok();
        let error = || {
            Err(io::Error::other(crate::WalError::Failed(Arc::clone(
                &reason,
            ))))
        };
        let progress = &self.shared.progress;
        for commit in self.in_flight.drain(..) {
            progress.give_up(commit.appends);
            commit.done.into_iter().for_each(|done| done(error()));
        }
        for request in self.pending.drain(..) {
            progress.give_up(request.appends());
            (request.done)(error());
        }
        while let Some(request) = self.requests.recv().await {
            progress.give_up(request.appends());
            (request.done)(error());
        }
    }
}
