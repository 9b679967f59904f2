//! Keeps segments ready ahead of the writer and gets rid of those behind it.
//!
//! Kept true: a segment has its final name only when its header and its
//! zeros are durable; an old segment is touched only after a durable commit
//! said that the log begins behind it; the reserve is given up only when the
//! disk is full, and from then on entries are refused until it is back.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::sync::mpsc;

use crate::batch::{Batch, Change};
use crate::blocks::{BLOCK_BYTES, Blocks};
use crate::disk::DiskFile;
use crate::error::WalError;
use crate::format::{PREPARING_NAME, RESERVE_NAME, SegmentHeader, Trailer, segment_name};
use crate::log::Shared;
use crate::position::{SegmentId, StreamId};
use crate::segments::{Full, SegmentFile, Usage};
use crate::stream::{Cell, Slot};
use crate::writer::{QueuedOp, Request};

/// What the writer asks for, and what the janitor's own requests report.
pub(crate) enum Job {
    /// Write the footer of a full, durable segment.
    Seal(Box<Full>),
    /// The oldest segment may not be needed any more.
    Look,
    /// Live entries of the oldest segment were written again.
    Moved,
    /// The log durably begins at this segment.
    Released(SegmentId),
    /// The log has failed.
    Stop,
}

/// Most bytes that are moved in one go, so that moving never holds up commits.
const MOVE_BYTES_MAX: usize = 256 << 10;
/// Old segments that are kept to be used again.
const POOL_SEGMENTS_MAX: usize = 4;
/// How often a full disk is looked at again.
const FULL_DISK_RETRY: Duration = Duration::from_secs(1);

enum Step {
    Job(Option<Job>),
    MakeSegment,
    MakeReserve,
    TryAgain,
}

pub(crate) struct Janitor {
    shared: Arc<Shared>,
    jobs: mpsc::UnboundedReceiver<Job>,
    ready: mpsc::Sender<SegmentFile>,
    requests: mpsc::WeakUnboundedSender<Request>,
    /// The next segment to make.
    next: SegmentId,
    /// Released segments, still under their old names.
    pool: VecDeque<SegmentId>,
    has_reserve: bool,
    /// A move or a release is under way.
    busy: bool,
    /// Unset by an entry that can't be read, and so not moved.
    can_clean: bool,
}

impl Janitor {
    pub(crate) fn new(
        shared: Arc<Shared>,
        jobs: mpsc::UnboundedReceiver<Job>,
        ready: mpsc::Sender<SegmentFile>,
        requests: mpsc::WeakUnboundedSender<Request>,
        next: SegmentId,
        has_reserve: bool,
    ) -> Self {
        Self {
            shared,
            jobs,
            ready,
            requests,
            next,
            pool: VecDeque::new(),
            has_reserve,
            busy: false,
            can_clean: true,
        }
    }

    /// Runs until the writer is gone.
    pub(crate) async fn run(mut self) {
        // A log that was closed while full may have much to get rid of.
        self.look();
        loop {
            let full = self.shared.space_low.load(Relaxed);
            let outcome = match self.next_step(full).await {
                Step::Job(None | Some(Job::Stop)) => return,
                Step::Job(Some(job)) => self.job(job),
                Step::MakeSegment => self.make_segment(),
                Step::MakeReserve => self.make_reserve(),
                Step::TryAgain => self.recover_space(),
            };
            let outcome = match outcome {
                Err(error) if is_full(&error) => self.use_reserve(),
                outcome => outcome,
            };
            if let Err(error) = outcome {
                // The writer hears of it and answers everybody.
                self.shared.set_failed(&error.to_string());
                return;
            }
        }
    }

    /// What is most urgent now: to free, then to keep the writer going.
    async fn next_step(&mut self, full: bool) -> Step {
        tokio::select! {
            biased;
            job = self.jobs.recv() => Step::Job(job),
            Ok(_) = self.ready.reserve(), if !full => Step::MakeSegment,
            () = std::future::ready(()), if !full && !self.has_reserve => Step::MakeReserve,
            () = tokio::time::sleep(FULL_DISK_RETRY), if full => Step::TryAgain,
        }
    }

    fn job(&mut self, job: Job) -> Result<(), WalError> {
        match job {
            Job::Seal(full) => self.seal(&full)?,
            Job::Look | Job::Stop => {}
            Job::Moved => self.busy = false,
            Job::Released(first) => {
                self.busy = false;
                self.release_before(first)?;
            }
        }
        self.look();
        Ok(())
    }

    /// Writes the footer, so that the next open need not read the segment.
    fn seal(&self, full: &Full) -> Result<(), WalError> {
        if full.file.id.0 < self.shared.first_segment.load(Relaxed) {
            return Ok(());
        }
        self.shared.seal(full)
    }

    /// Starts what there is to do about the oldest segment.
    fn look(&mut self) {
        if self.busy {
            return;
        }
        let Some(usage) = self.shared.segments.lock().usage() else {
            return;
        };
        if usage.first_needed > usage.oldest {
            self.start_release(usage.first_needed);
        } else if self.worth_cleaning(&usage) {
            self.start_move(usage.oldest);
        }
    }

    /// Moving pays when most of what the segments hold is garbage.
    fn worth_cleaning(&self, usage: &Usage) -> bool {
        let large = usage.bytes > self.shared.config.clean_above_bytes;
        (large || self.shared.space_low.load(Relaxed))
            && self.can_clean
            && usage.segments > 1
            && usage.live_bytes * 2 < usage.bytes
    }

    /// Has a commit say that the log begins at `first`.
    fn start_release(&mut self, first: SegmentId) {
        let Some(requests) = self.requests.upgrade() else {
            return;
        };
        self.shared.first_segment.store(first.0, Relaxed);
        let report = self.report(Job::Released(first));
        self.busy = requests.send(Request::marker(0, report)).is_ok();
    }

    fn start_move(&mut self, segment: SegmentId) {
        let Some(requests) = self.requests.upgrade() else {
            return;
        };
        let Some(file) = self.shared.segments.lock().get(segment).cloned() else {
            return;
        };
        let gathered = self.gather(&file).and_then(|(batch, cells)| {
            self.shared.config.check_size(&batch)?;
            Ok((batch, cells))
        });
        let (batch, cells) = match gathered {
            Ok(gathered) => gathered,
            Err(error) => {
                // The entry's reader will hear of it; the segment stays.
                tracing::error!("a live entry can't be moved, so old segments stay: {error}");
                self.can_clean = false;
                return;
            }
        };
        if batch.is_empty() {
            return;
        }
        let request = Request {
            ops: batch
                .ops
                .into_iter()
                .zip(cells)
                .map(|(op, cell)| QueuedOp {
                    cell,
                    stream: op.stream,
                    change: op.change,
                    ticket: None,
                })
                .collect(),
            record_bytes: batch.record_bytes,
            footer_bytes: batch.footer_bytes,
            ..Request::marker(0, self.report(Job::Moved))
        };
        self.busy = requests.send(request).is_ok();
    }

    /// Some of what is live in a segment, with the streams it belongs to.
    fn gather(&self, file: &SegmentFile) -> Result<(Batch, Vec<Cell>), WalError> {
        let bytes_max = MOVE_BYTES_MAX.min(self.shared.config.segment_bytes as usize / 4);
        let mut batch = Batch::new();
        let mut cells = Vec::new();
        for (stream, cell) in self.shared.all_streams() {
            let (changes, slots) = live_in(&cell, file.id);
            let entries = slots.into_iter().map(|(index, from)| {
                let payload = self.shared.read_slot(stream, index, from, file)?;
                Ok::<_, WalError>(Change::Move {
                    index,
                    from,
                    payload,
                })
            });
            for change in changes.into_iter().map(Ok).chain(entries) {
                let change = change?;
                // A large one goes alone: then it fits, as it did when it came.
                let bytes = batch.record_bytes + change.bytes_max().0;
                if bytes > bytes_max && !batch.is_empty() {
                    return Ok((batch, cells));
                }
                batch.add(stream, change);
                cells.push(Arc::clone(&cell));
            }
        }
        Ok((batch, cells))
    }

    /// A callback that comes back as a job when all is well. A failure needs
    /// no report: the writer stops the janitor itself.
    fn report(&self, job: Job) -> Box<dyn FnOnce(io::Result<()>) + Send> {
        let jobs = self.shared.jobs.clone();
        Box::new(move |result| {
            if result.is_ok()
                && let Some(jobs) = jobs.upgrade()
            {
                let _ = jobs.send(job);
            }
        })
    }

    /// Gets rid of the segments before `first`, or keeps them to use again.
    fn release_before(&mut self, first: SegmentId) -> Result<(), WalError> {
        loop {
            let Some(usage) = self.shared.segments.lock().usage() else {
                return Ok(());
            };
            if usage.oldest >= first {
                break;
            }
            let Some(segment) = self.shared.segments.lock().remove(usage.oldest) else {
                break;
            };
            // A reader that still has the file must go on finding its entries there.
            let unread = Arc::strong_count(&segment.file) == 1;
            let fitting = segment.bytes == self.shared.config.segment_bytes;
            if unread && fitting && self.pool.len() < POOL_SEGMENTS_MAX {
                self.pool.push_back(segment.id);
            } else {
                self.shared.remove(&segment_name(segment.id))?;
            }
        }
        if self.shared.space_low.load(Relaxed) {
            self.recover_space()?;
        }
        Ok(())
    }

    fn make_segment(&mut self) -> Result<(), WalError> {
        if let Ok(permit) = self.ready.try_reserve() {
            permit.send(self.shared.prepare(self.next, &mut self.pool)?);
            self.next = self.next.next();
        }
        Ok(())
    }

    fn make_reserve(&mut self) -> Result<(), WalError> {
        self.shared.make_blank(&mut self.pool)?;
        self.shared.rename(PREPARING_NAME, RESERVE_NAME)?;
        self.has_reserve = true;
        Ok(())
    }

    /// The disk is full: the writer gets the reserve, callers get refusals.
    fn use_reserve(&mut self) -> Result<(), WalError> {
        if !self.shared.space_low.swap(true, Relaxed) {
            tracing::error!("no space left for the log: entries are refused until there is");
        }
        if self.has_reserve
            && let Ok(permit) = self.ready.try_reserve()
        {
            let used = self
                .shared
                .rename(RESERVE_NAME, PREPARING_NAME)
                .and_then(|()| {
                    self.has_reserve = false;
                    self.shared.finish(self.next)
                });
            match used {
                Ok(segment) => {
                    permit.send(segment);
                    self.next = self.next.next();
                }
                // Not even that fits: it is tried again.
                Err(error) if is_full(&error) => {
                    tracing::error!(%error, "the reserve can't be used");
                }
                Err(error) => return Err(error),
            }
        }
        self.look();
        Ok(())
    }

    /// Entries are accepted again when the reserve and a next segment are there.
    fn recover_space(&mut self) -> Result<(), WalError> {
        if !self.has_reserve {
            self.make_reserve()?;
        }
        self.make_segment()?;
        self.shared.space_low.store(false, Relaxed);
        tracing::info!("there is space for the log again");
        Ok(())
    }
}

fn is_full(error: &WalError) -> bool {
    matches!(error, WalError::Io { error, .. } if matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    ))
}

/// What of a stream is live in a segment: statements to make again, and entries.
fn live_in(cell: &Cell, segment: SegmentId) -> (Vec<Change>, Vec<(u64, Slot)>) {
    let guard = cell.lock();
    let Some(logged) = &guard.logged else {
        return (Vec::new(), Vec::new());
    };
    let floor = (logged.floor_at == segment).then_some(Change::MoveFloor { from: segment });
    let metas = logged
        .metas
        .iter()
        .filter(|(_, meta)| meta.at == segment)
        .map(|(&key, meta)| Change::MoveMeta {
            key,
            from: segment,
            value: meta.value.clone(),
        });
    let slots = (logged.first..)
        .zip(&logged.slots)
        .filter(|(_, slot)| slot.segment == segment.0)
        .map(|(index, slot)| (index, *slot))
        .collect();
    (floor.into_iter().chain(metas).collect(), slots)
}

/// Files on disk.
impl Shared {
    /// Makes segment `id`, from an old one if there is one.
    pub(crate) fn prepare(
        &self,
        id: SegmentId,
        pool: &mut VecDeque<SegmentId>,
    ) -> Result<SegmentFile, WalError> {
        self.make_blank(pool)?;
        self.finish(id)
    }

    /// Makes a file of a segment's size under the name for unfinished ones.
    fn make_blank(&self, pool: &mut VecDeque<SegmentId>) -> Result<(), WalError> {
        if let Some(old) = pool.pop_front() {
            self.counters.segments_recycled.fetch_add(1, Relaxed);
            // Durable before the header changes: or a crash could leave a
            // segment whose name and header disagree.
            return self.rename(&segment_name(old), PREPARING_NAME);
        }
        self.counters.segments_made.fetch_add(1, Relaxed);
        let path = self.config.dir.join(PREPARING_NAME);
        let mut created = self.disk.create(&path);
        if matches!(&created, Err(error) if error.kind() == io::ErrorKind::AlreadyExists) {
            // Left by an attempt for which the disk was too full.
            self.remove(PREPARING_NAME)?;
            created = self.disk.create(&path);
        }
        let file = self.at(PREPARING_NAME, "creation", created)?;
        let filled = self.fill_with_zeros(&*file);
        if matches!(&filled, Err(error) if is_full(error)) {
            self.remove(PREPARING_NAME)?;
        }
        filled
    }

    /// Written out, because a write into space that is merely reserved makes
    /// the file system change its books, which a commit would then wait for.
    fn fill_with_zeros(&self, file: &dyn DiskFile) -> Result<(), WalError> {
        let zeros = Blocks::zeroed((self.config.segment_bytes as usize).min(1 << 20));
        let mut offset = 0;
        while offset < self.config.segment_bytes as usize {
            let rest = self.config.segment_bytes as usize - offset;
            let chunk = &zeros.as_slice()[..zeros.len().min(rest)];
            self.write(PREPARING_NAME, file, offset as u64, chunk)?;
            offset += chunk.len();
        }
        self.sync(PREPARING_NAME, file)
    }

    /// Turns the unfinished file into segment `id`.
    fn finish(&self, id: SegmentId) -> Result<SegmentFile, WalError> {
        let file = self.open_for_writing(PREPARING_NAME)?;
        let header = SegmentHeader {
            log: self.log,
            node: self.config.node,
            salt: self.clock.random(),
            segment: id.0,
            segment_bytes: self.config.segment_bytes,
            ..SegmentHeader::default()
        };
        let mut block = Blocks::default();
        block.put(&header.to_bytes());
        block.seal();
        self.write(PREPARING_NAME, &*file, 0, block.as_slice())?;
        self.sync(PREPARING_NAME, &*file)?;
        self.rename(PREPARING_NAME, &segment_name(id))?;
        Ok(SegmentFile {
            id,
            salt: header.salt,
            bytes: header.segment_bytes,
            file,
        })
    }

    /// Writes the footer and the trailer of a full segment.
    pub(crate) fn seal(&self, full: &Full) -> Result<(), WalError> {
        let footer = full.effects.encode();
        let trailer = Trailer {
            segment: full.file.id.0,
            end: full.end,
            footer_bytes: footer.len() as u32,
            footer_crc: Trailer::footer_crc(&footer, full.file.salt),
            first_segment: full.first_segment,
            first_seq: full.first_seq,
            last_seq: full.last_seq,
            last_epoch: full.last_epoch,
            last_flags: full.last_flags,
            ..Trailer::default()
        };
        let mut blocks = Blocks::default();
        blocks.put(&footer);
        blocks.seal();
        let trailer_at = u64::from(full.file.bytes) - BLOCK_BYTES as u64;
        assert!(
            u64::from(full.end) + blocks.len() as u64 <= trailer_at,
            "room for the footer was kept"
        );
        let mut last = Blocks::default();
        last.put(&trailer.to_bytes(full.file.salt));
        last.seal();
        let (name, file) = (segment_name(full.file.id), &*full.file.file);
        self.write(&name, file, u64::from(full.end), blocks.as_slice())?;
        self.write(&name, file, trailer_at, last.as_slice())?;
        self.sync(&name, file)
    }

    pub(crate) fn open_for_writing(&self, name: &str) -> Result<Arc<dyn DiskFile>, WalError> {
        let opened = self.disk.open(&self.config.dir.join(name), true);
        self.at(name, "open", opened)
    }

    pub(crate) fn write(
        &self,
        name: &str,
        file: &dyn DiskFile,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), WalError> {
        let operation = format_args!("write of {} bytes at {offset:#x}", bytes.len());
        self.at(name, operation, file.write_at(offset, bytes))
    }

    pub(crate) fn sync(&self, name: &str, file: &dyn DiskFile) -> Result<(), WalError> {
        self.at(name, "sync", file.sync())
    }

    pub(crate) fn rename(&self, from: &str, to: &str) -> Result<(), WalError> {
        let dir = &self.config.dir;
        let renamed = self.disk.rename(&dir.join(from), &dir.join(to));
        self.at(from, format_args!("rename to {to}"), renamed)?;
        self.sync_dir()
    }

    pub(crate) fn remove(&self, name: &str) -> Result<(), WalError> {
        let removed = self.disk.remove(&self.config.dir.join(name));
        self.at(name, "removal", removed)?;
        self.sync_dir()
    }

    fn sync_dir(&self) -> Result<(), WalError> {
        let dir = &self.config.dir;
        let synced = self.disk.sync_dir(dir);
        synced.map_err(|error| WalError::io(dir, "sync of the directory", error))
    }

    /// Adds the file and the operation to an error.
    pub(crate) fn at<T>(
        &self,
        name: &str,
        operation: impl fmt::Display,
        result: io::Result<T>,
    ) -> Result<T, WalError> {
        result.map_err(|error| WalError::io(&self.config.dir.join(name), operation, error))
    }

    /// Streams, in order, so that a simulated run can be repeated.
    fn all_streams(&self) -> Vec<(StreamId, Cell)> {
        let streams = self.streams.read();
        let mut all: Vec<_> = streams
            .iter()
            .map(|(&id, cell)| (id, Arc::clone(cell)))
            .collect();
        all.sort_unstable_by_key(|(id, _)| *id);
        all
    }
}
