//! raft-engine, TiKV's log, under the same load. Its interface blocks, so a
//! writer is a thread: that is how it is meant to be used.

use std::io;
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use raft_engine::{Command, Config, Engine, LogBatch, MessageExt, ReadableSize};
use raft_proto::eraftpb::Entry;

use crate::appenders::Load;
use crate::samples::Samples;

/// How often files that are not needed any more are looked for.
const PURGE_INTERVAL: Duration = Duration::from_millis(200);

struct Entries;

impl MessageExt for Entries {
    type Entry = Entry;

    fn index(entry: &Entry) -> u64 {
        entry.index
    }
}

/// An open raft-engine.
pub struct Peer {
    engine: Engine,
}

impl Peer {
    /// Opens it set up for its best: old files are used again and some are
    /// filled before the start, so that a sync need not wait for the file
    /// system's books.
    pub fn open(dir: &Path) -> io::Result<Self> {
        let config = Config {
            dir: dir.display().to_string(),
            target_file_size: ReadableSize::mb(32),
            purge_threshold: ReadableSize::mb(128),
            enable_log_recycle: true,
            prefill_for_recycle: true,
            ..Config::default()
        };
        Ok(Self {
            engine: Engine::open(config).map_err(io::Error::other)?,
        })
    }

    /// Runs the load with one thread per stream.
    pub fn run(&self, load: Load) -> io::Result<Samples> {
        let ready = Barrier::new(load.appenders as usize + 1);
        let over = AtomicBool::new(false);
        let mut all = Samples::default();
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..load.appenders)
                .map(|id| {
                    let ready = &ready;
                    scope.spawn(move || {
                        ready.wait();
                        self.writer(load, id)
                    })
                })
                .collect();
            let purger = scope.spawn(|| self.purge_until(&over));
            ready.wait();
            let start = Instant::now();
            for writer in writers {
                let samples = writer
                    .join()
                    .map_err(|_| io::Error::other("a writer panicked"))??;
                all.nanos.extend(samples.nanos);
            }
            all.elapsed = start.elapsed();
            over.store(true, Ordering::Relaxed);
            purger.thread().unpark();
            purger
                .join()
                .map_err(|_| io::Error::other("the purger panicked"))?
        })?;
        Ok(all)
    }

    fn writer(&self, load: Load, id: u64) -> io::Result<Samples> {
        let region = id + 1;
        let live_max = load.live_entries_max();
        let mut index = self.engine.last_index(region).unwrap_or(0);
        let mut entries = [Entry::default()];
        entries[0].data = vec![id as u8; load.entry_bytes].into();
        let mut batch = LogBatch::default();
        let mut samples = Samples::default();
        let start = Instant::now();
        let mut before = start;
        while before - start < load.time {
            index += 1;
            entries[0].index = index;
            if (index + id).is_multiple_of(live_max) {
                batch.add_command(region, Command::Compact { index });
            }
            batch
                .add_entries::<Entries>(region, &entries)
                .map_err(io::Error::other)?;
            self.engine
                .write(&mut batch, true)
                .map_err(io::Error::other)?;
            let now = Instant::now();
            samples.add(now - before);
            before = now;
        }
        Ok(samples)
    }

    fn purge_until(&self, over: &AtomicBool) -> io::Result<()> {
        while !over.load(Ordering::Relaxed) {
            self.engine
                .purge_expired_files()
                .map_err(io::Error::other)?;
            std::thread::park_timeout(PURGE_INTERVAL);
        }
        Ok(())
    }
}
