//! The load on the log: appenders that wait until an entry is durable before
//! they append the next one.
//!
//! Kept true: an appender has one stream and one entry under way; what it
//! purges keeps the live log at [`LIVE_BYTES`], so segments are used again as
//! they are in real use.

use std::future::poll_fn;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::task::AtomicWaker;
use pontoon_wal::disk::{Backend, RealDisk};
use pontoon_wal::{Batch, Config, LogIndex, Opened, StreamId, SystemClock, Wal};
use tokio::runtime::Runtime;

use crate::samples::Samples;

/// About how many bytes of entries are live at a time, all appenders together.
pub const LIVE_BYTES: usize = 32 << 20;

/// How long a loop may take beyond its time before it counts as stuck.
const PATIENCE: Duration = Duration::from_secs(30);

/// A load.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// How many append at the same time; appender `i` has stream `i`.
    pub appenders: u64,
    /// Bytes of an entry.
    pub entry_bytes: usize,
    /// How long they go on.
    pub time: Duration,
}

impl Load {
    /// Entries that a stream has when the older ones are purged.
    #[must_use]
    pub fn live_entries_max(&self) -> u64 {
        (LIVE_BYTES as u64 / (self.appenders * self.entry_bytes as u64)).clamp(8, 1000)
    }
}

/// The runtime that the appenders run on.
pub fn runtime() -> io::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_time()
        .build()
}

/// Opens a log with the machine's files.
pub fn open(config: Config, backend: Backend) -> io::Result<(Wal, Opened)> {
    let disk = RealDisk::new(backend, &config.dir)?;
    Ok(Wal::open(
        config,
        Arc::new(disk),
        Arc::new(SystemClock::default()),
    )?)
}

/// Opens a log as it is by default.
pub fn open_default(dir: &Path) -> io::Result<Wal> {
    open(Config::new(dir, 1), Backend::Auto).map(|(wal, _)| wal)
}

/// Runs the load; every operation is an entry made durable.
pub async fn run(wal: &Wal, load: Load) -> io::Result<Samples> {
    let start = Instant::now();
    let tasks: Vec<_> = (0..load.appenders)
        .map(|id| tokio::spawn(appender(wal.clone(), load, id, start + load.time)))
        .collect();
    let mut all = Samples::default();
    let gathered = tokio::time::timeout(load.time + PATIENCE, async {
        for task in tasks {
            let samples = task.await.map_err(io::Error::other)??;
            all.nanos.extend(samples.nanos);
        }
        Ok(())
    });
    gathered
        .await
        .map_err(|_| io::Error::other("the log is stuck"))
        .flatten()?;
    all.elapsed = start.elapsed();
    Ok(all)
}

async fn appender(wal: Wal, load: Load, id: u64, until: Instant) -> io::Result<Samples> {
    let stream = StreamId(id);
    // Each has its own bytes, as each would in real use.
    let payload = Bytes::from(vec![id as u8; load.entry_bytes]);
    let live_max = load.live_entries_max();
    let durable = Arc::new(Durable::default());
    let mut index = wal.bounds(stream).map_or(0, |(_, next)| next.0);
    let mut samples = Samples::default();
    let mut before = Instant::now();
    while before < until {
        let mut batch = Batch::new();
        // Not all at the same time.
        if (index + id).is_multiple_of(live_max) {
            batch.purge_below(stream, LogIndex(index));
        }
        batch.append(stream, LogIndex(index), vec![payload.clone()]);
        let done = Arc::clone(&durable);
        wal.append(batch, move |result| done.set(result.is_ok()))
            .await?;
        durable.wait().await?;
        index += 1;
        let now = Instant::now();
        samples.add(now - before);
        before = now;
    }
    Ok(samples)
}

/// A wake-up that is used again and again: it costs no allocation, so what is
/// measured is the log.
#[derive(Default)]
struct Durable {
    outcome: AtomicU8,
    waker: AtomicWaker,
}

const UNKNOWN: u8 = 0;
const WELL: u8 = 1;
const FAILED: u8 = 2;

impl Durable {
    fn set(&self, well: bool) {
        let outcome = if well { WELL } else { FAILED };
        self.outcome.store(outcome, Ordering::Release);
        self.waker.wake();
    }

    async fn wait(&self) -> io::Result<()> {
        poll_fn(|context| {
            self.waker.register(context.waker());
            match self.outcome.swap(UNKNOWN, Ordering::AcqRel) {
                UNKNOWN => Poll::Pending,
                WELL => Poll::Ready(Ok(())),
                _ => Poll::Ready(Err(io::Error::other("the log has failed"))),
            }
        })
        .await
    }
}
