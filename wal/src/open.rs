//! How a log comes to run: what recovery found is taken up where it ends, or
//! a new log is made, and the two tasks are started.
//!
//! Kept true: nothing that was recovered is relied on before it is durable;
//! the directory is locked as long as any task may write to it.

use std::any::Any;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use parking_lot::{Mutex, RwLock};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};

use crate::blocks::Blocks;
use crate::clock::Clock;
use crate::counters::Counters;
use crate::disk::Disk;
use crate::effects::Effects;
use crate::error::WalError;
use crate::format::{
    CommitHeader, FIRST_COMMIT, IDENTITY_NAME, Identity, LOCK_NAME, PREPARING_NAME, RESERVE_NAME,
    segment_name,
};
use crate::health::Progress;
use crate::janitor::{Janitor, Job};
use crate::log::{Config, Opened, Shared, Wal};
use crate::position::SegmentId;
use crate::recovery::{self, Depth, Recovered, recover};
use crate::scan::Chain;
use crate::segments::{Full, SegmentFile};
use crate::stream::{LiveChange, Stream};
use crate::writer::{Start, Writer};

impl Wal {
    /// Opens the log in `config.dir`, or makes it, and starts its tasks.
    pub fn open(
        config: Config,
        disk: Arc<dyn Disk>,
        clock: Arc<dyn Clock>,
    ) -> Result<(Self, Opened), WalError> {
        config.check()?;
        let dir = config.dir.clone();
        disk.create_dir(&dir)
            .map_err(|error| WalError::io(&dir, "creation", error))?;
        let lock_path = dir.join(LOCK_NAME);
        let lock = disk.lock(&lock_path).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => WalError::Locked(dir.clone()),
            _ => WalError::io(&lock_path, "lock", error),
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
            rotations: watch::Sender::new(0),
            space_low: AtomicBool::new(false),
            jobs: jobs.downgrade(),
            counters: Counters::default(),
            failure: Arc::default(),
            progress: Progress::default(),
        });
        let plan = match found {
            None => shared.create()?,
            Some(found) => shared.resume(found)?,
        };
        let opened = plan.opened.clone();
        let wal = shared.start(plan, jobs, job_queue, lock)?;
        Ok((wal, opened))
    }
}

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
        for name in [segment_name(SegmentId(1)), PREPARING_NAME.to_owned()] {
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
        let unfinished = PREPARING_NAME;
        let mut block = Blocks::default();
        block.put(&identity.to_bytes());
        block.seal();
        let file = self.disk.create(&self.config.dir.join(unfinished));
        let file = self.at(unfinished, "creation", file)?;
        self.write(unfinished, &*file, 0, block.as_slice())?;
        self.sync(unfinished, &*file)?;
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
            let name = segment_name(segment.id);
            let file = SegmentFile {
                id: segment.id,
                salt: segment.header.salt,
                bytes: segment.header.segment_bytes,
                file: self.open_for_writing(&name)?,
            };
            self.segments.lock().add(file.clone());
            if !segment.sealed {
                // What was read may have been in the page cache only, left by
                // a process that was killed: make it true before relying on it.
                self.sync(&name, &*file.file)?;
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
        let size = self.at(RESERVE_NAME, "read of its size", size)?;
        if size != u64::from(self.config.segment_bytes) {
            self.remove(RESERVE_NAME)?;
            return Ok(false);
        }
        Ok(true)
    }

    /// Spares are used as they are, if they have the size that is wanted now.
    fn keep_spares(&self, found: Vec<recovery::Segment>) -> Result<Vec<SegmentFile>, WalError> {
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
                Ok(SegmentFile {
                    id: spare.id,
                    salt: spare.header.salt,
                    bytes: spare.header.segment_bytes,
                    file: self.open_for_writing(&segment_name(spare.id))?,
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
        let at = |what: &'static str| {
            move |error| WalError::Io {
                what: what.to_owned(),
                error: Arc::new(error),
            }
        };
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
