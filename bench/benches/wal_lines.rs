//! The speed lines of the log: what it does, what the machine could do, and
//! whether the ratio is what we promised ourselves.
//!
//! `cargo bench -p pontoon-bench --bench wal_lines [-- FILTER] [-- --json]`;
//! with `--features peers` also against raft-engine. `bench/README.md` says
//! what each line means.
//!
//! Kept true: in every round ours and the reference take turns in the same
//! directory, so that what else the machine does hits both.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use bytes::Bytes;
use pontoon_bench::appenders::{self, Load};
use pontoon_bench::lines::{Line, Target};
use pontoon_bench::runner::{Group, run, watched};
use pontoon_bench::{child, proc, raw};
use pontoon_wal::disk::{Backend, RealDisk};
use pontoon_wal::format::segment_name;
use pontoon_wal::inspect::{Depth, inspect};
use pontoon_wal::{Batch, Config, LogIndex, StreamId, Wal};
use tokio::runtime::Runtime;

/// Records are allocated on one thread and freed on another, which this
/// allocator is made for. Peers in the same process have it too.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_millis(1000);
const MIB: f64 = (1 << 20) as f64;

const GROUPS: &[Group] = &[
    Group {
        names: &["one-appender"],
        measure: |bench| watched(|| one_appender(bench.dir)),
    },
    Group {
        names: &["appenders-64"],
        measure: |bench| watched(|| many_appenders(bench.dir, 64, 20.0)),
    },
    Group {
        names: &["appenders-1024"],
        measure: |bench| watched(|| many_appenders(bench.dir, 1024, 100.0)),
    },
    Group {
        names: &["bandwidth", "bandwidth-synced"],
        measure: |bench| watched(|| bandwidth(bench.dir)),
    },
    #[cfg(feature = "peers")]
    Group {
        names: &["raft-engine-1-rate", "raft-engine-1-p99"],
        measure: |bench| watched(|| raft_engine(bench.dir, 1)),
    },
    #[cfg(feature = "peers")]
    Group {
        names: &["raft-engine-16-rate", "raft-engine-16-p99"],
        measure: |bench| watched(|| raft_engine(bench.dir, 16)),
    },
    #[cfg(feature = "peers")]
    Group {
        names: &["raft-engine-256-rate", "raft-engine-256-p99"],
        measure: |bench| watched(|| raft_engine(bench.dir, 256)),
    },
    Group {
        names: &["fallback"],
        measure: |bench| watched(|| fallback(bench.dir)),
    },
    Group {
        names: &["recovery-scan", "open-reads"],
        measure: |bench| watched(|| recovery(bench.dir)),
    },
    Group {
        names: &["memory-1", "memory-1-reopened"],
        measure: |bench| memory(bench.dir, 1),
    },
    Group {
        names: &["memory-1000", "memory-1000-reopened"],
        measure: |bench| memory(bench.dir, 1000),
    },
];

fn main() -> io::Result<ExitCode> {
    if let Some((role, dir)) = child::role() {
        return be_child(&role, &dir).map(|()| ExitCode::SUCCESS);
    }
    run("wal-lines", GROUPS, env!("CARGO_TARGET_TMPDIR"))
}

fn be_child(role: &str, dir: &Path) -> io::Result<()> {
    match role.split_once(' ') {
        Some(("appenders", "syscalls")) => {
            child::forbid_uring()?;
            appenders_child(dir, false)
        }
        Some(("appenders", _)) => appenders_child(dir, true),
        Some(("memory", streams)) => memory_child(dir, streams.parse().map_err(io::Error::other)?),
        _ => Err(io::Error::other(format!("unknown role {role}"))),
    }
}

/// One appender against the best raw way plus the way to the ring and back.
fn one_appender(dir: &Path) -> io::Result<Vec<Line>> {
    let mut line = Line::new(
        "one-appender",
        "p50 until durable, 1 appender, 512 B / best raw 4 KiB write p50 + empty hand-off p50",
        "µs",
        Target::AtMost(1.3),
    );
    let (cached, direct) = (dir.join("cached"), dir.join("direct"));
    raw::zeroed_file(&cached, 64 << 20)?;
    raw::zeroed_file(&direct, 64 << 20)?;
    with_log(&dir.join("log"), |runtime, wal| {
        let load = load(1, 512);
        runtime.block_on(appenders::run(wal, load))?;
        for _ in 0..ROUNDS {
            let ours = runtime.block_on(appenders::run(wal, load))?.micros(0.5);
            let synced = raw::write_and_sync(&cached, 4096, ROUND)?.micros(0.5);
            let ring = raw::write_direct(&direct, 4096, ROUND)?.micros(0.5);
            let hand_off = runtime.block_on(async {
                // On a worker, where appenders are.
                tokio::spawn(raw::hand_offs(ROUND / 2))
                    .await
                    .map_err(io::Error::other)?
            })?;
            let hand_off = hand_off.micros(0.5);
            line.round(ours, synced.min(ring) + hand_off);
            line.aside("raw pwrite+fdatasync", synced);
            line.aside("raw io_uring O_DIRECT+DSYNC", ring);
            line.aside("hand-off", hand_off);
        }
        Ok(())
    })?;
    Ok(vec![line])
}

/// Group commit against one plain write and sync for each record.
fn many_appenders(dir: &Path, appenders: u64, target: f64) -> io::Result<Vec<Line>> {
    let mut line = Line::new(
        format!("appenders-{appenders}"),
        format!("durable entries, {appenders} appenders, 512 B / one pwrite+fdatasync each"),
        "/s",
        Target::AtLeast(target),
    );
    let plain = dir.join("plain");
    raw::zeroed_file(&plain, 64 << 20)?;
    with_log(&dir.join("log"), |runtime, wal| {
        let load = load(appenders, 512);
        runtime.block_on(appenders::run(wal, load))?;
        for _ in 0..ROUNDS {
            let before = Progress::of(wal);
            let ours = runtime.block_on(appenders::run(wal, load))?;
            before.explain(wal, &mut line);
            line.aside("p50 µs", ours.micros(0.5));
            line.aside("p99 µs", ours.micros(0.99));
            let reference = raw::write_and_sync(&plain, 512, ROUND)?;
            line.aside("reference p50 µs", reference.micros(0.5));
            line.disturbed += usize::from(reference.held_up());
            line.round(ours.rate(), reference.rate());
        }
        Ok(())
    })?;
    Ok(vec![line])
}

/// Large entries against the disk's bandwidth.
fn bandwidth(dir: &Path) -> io::Result<Vec<Line>> {
    let what = "durable bytes, 16 appenders, 64 KiB / raw sequential O_DIRECT writes";
    let mut line = Line::new(
        "bandwidth",
        format!("{what}, 16 x 64 KiB in flight, synced at the end"),
        "MiB/s",
        Target::AtLeast(0.7),
    );
    let mut synced = Line::new(
        "bandwidth-synced",
        format!("{what}, 4 x 256 KiB in flight, each synced"),
        "MiB/s",
        Target::None,
    );
    let file = dir.join("raw");
    raw::zeroed_file(&file, 256 << 20)?;
    with_log(&dir.join("log"), |runtime, wal| {
        let load = load(16, 64 << 10);
        runtime.block_on(appenders::run(wal, load))?;
        for _ in 0..ROUNDS {
            let before = Progress::of(wal);
            let samples = runtime.block_on(appenders::run(wal, load))?;
            before.explain(wal, &mut line);
            line.aside("p50 µs", samples.micros(0.5));
            let ours = samples.rate() * load.entry_bytes as f64 / MIB;
            let plain = raw::write_bandwidth(&file, 64 << 10, 16, false, ROUND)?;
            let each = raw::write_bandwidth(&file, 256 << 10, 4, true, ROUND)?;
            line.round(ours, plain / MIB);
            synced.round(ours, each / MIB);
        }
        Ok(())
    })?;
    Ok(vec![line, synced])
}

/// TiKV's log, one thread for each of its writers.
#[cfg(feature = "peers")]
fn raft_engine(dir: &Path, streams: u64) -> io::Result<Vec<Line>> {
    let what = format!("{streams} streams, 512 B / raft-engine with a thread each");
    let mut rate = Line::new(
        format!("raft-engine-{streams}-rate"),
        format!("durable entries, {what}"),
        "/s",
        Target::AtLeast(1.0),
    );
    let mut p99 = Line::new(
        format!("raft-engine-{streams}-p99"),
        format!("p99 until durable, {what}"),
        "µs",
        Target::AtMost(1.0),
    );
    let peer = pontoon_bench::peer::Peer::open(&dir.join("raft-engine"))?;
    with_log(&dir.join("log"), |runtime, wal| {
        let load = load(streams, 512);
        runtime.block_on(appenders::run(wal, load))?;
        peer.run(load)?;
        for _ in 0..ROUNDS {
            let ours = runtime.block_on(appenders::run(wal, load))?;
            let theirs = peer.run(load)?;
            let held_up = usize::from(theirs.held_up());
            rate.disturbed += held_up;
            p99.disturbed += held_up;
            rate.round(ours.rate(), theirs.rate());
            p99.round(ours.micros(0.99), theirs.micros(0.99));
        }
        Ok(())
    })?;
    Ok(vec![rate, p99])
}

/// Without io_uring against with it, each in a process of its own.
fn fallback(dir: &Path) -> io::Result<Vec<Line>> {
    let mut line = Line::new(
        "fallback",
        "durable entries, 64 appenders, 512 B, io_uring forbidden / allowed",
        "/s",
        Target::AtLeast(0.7),
    );
    let ask = |backend: &str| {
        let figures = child::ask(&format!("appenders {backend}"), &dir.join(backend))?;
        figures.first().copied().ok_or_else(no_answer)
    };
    for _ in 0..ROUNDS {
        let without = ask("syscalls")?;
        line.round(without, ask("uring")?);
    }
    Ok(vec![line])
}

/// The child of [`fallback`]: the rate of 64 appenders.
fn appenders_child(dir: &Path, uring: bool) -> io::Result<()> {
    let disk = RealDisk::new(Backend::Auto, dir)?;
    assert_eq!(
        disk.uses_uring(),
        uring,
        "the backend is the one that is left"
    );
    with_log(dir, |runtime, wal| {
        let load = load(64, 512);
        runtime.block_on(appenders::run(wal, load))?;
        let samples = runtime.block_on(appenders::run(wal, load))?;
        child::answer(&[samples.rate()]);
        Ok(())
    })
}

/// Reading the log back whole, and opening it without doing so.
fn recovery(dir: &Path) -> io::Result<Vec<Line>> {
    let mut scan = Line::new(
        "recovery-scan",
        "checking ~512 MiB of 512 B..4 KiB entries / raw sequential O_DIRECT reads",
        "MiB/s",
        Target::AtLeast(0.5),
    );
    let mut reads = Line::new(
        "open-reads",
        "bytes read to open that log after it was closed / bytes of its segments",
        "MiB",
        Target::None,
    );
    let log = dir.join("log");
    with_log(&log, |runtime, wal| runtime.block_on(fill(wal, 512 << 20)))?;
    let disk = RealDisk::new(Backend::Auto, &log)?;
    let survey = inspect(&disk, &log, Depth::Footers)?.ok_or_else(no_answer)?;
    let paths: Vec<_> = survey
        .segments
        .iter()
        .map(|segment| log.join(segment_name(segment.id)))
        .collect();
    for _ in 0..ROUNDS {
        let start = Instant::now();
        let found = inspect(&disk, &log, Depth::Everything)?.ok_or_else(no_answer)?;
        let ours = start.elapsed().as_secs_f64();
        found.log?;
        let start = Instant::now();
        let bytes = raw::read_direct(paths.iter().map(PathBuf::as_path))? as f64 / MIB;
        let theirs = start.elapsed().as_secs_f64();
        scan.round(bytes / ours, bytes / theirs);

        let before = proc::read_bytes()?;
        let (wal, _) = Wal::open(
            Config::new(&log, 1),
            Arc::new(RealDisk::new(Backend::Auto, &log)?),
            Arc::new(pontoon_wal::SystemClock::default()),
        )?;
        reads.round((proc::read_bytes()? - before) as f64 / MIB, bytes);
        appenders::runtime()?.block_on(wal.close());
    }
    Ok(vec![scan, reads])
}

/// Writes about `bytes` of entries of many sizes into a few streams.
async fn fill(wal: &Wal, bytes: usize) -> io::Result<()> {
    let source = Bytes::from(vec![0xa5; 4096]);
    let mut next = [0; 16];
    let mut written = 0;
    // Any fixed rule that mixes sizes and streams.
    for step in 0u64.. {
        let mut batch = Batch::new();
        for (stream, next) in next.iter_mut().enumerate() {
            let entries: Vec<_> = (0..8)
                .map(|entry| {
                    let mix = (step * 131 + stream as u64 * 31 + entry * 17) % 8;
                    source.slice(..512 + 512 * mix as usize)
                })
                .collect();
            written += entries.iter().map(Bytes::len).sum::<usize>();
            let first = LogIndex(*next);
            *next += entries.len() as u64;
            batch.append(StreamId(stream as u64), first, entries);
        }
        wal.commit(batch).await?;
        if written >= bytes {
            break;
        }
    }
    Ok(())
}

/// Two million and some: just beyond a power of two, in one stream and in each
/// of a thousand, where memory that doubles as it grows is at its worst.
const LIVE_ENTRIES: u64 = 2_100_000;

/// What the index costs, while it grows and after it was read back.
fn memory(dir: &Path, streams: u64) -> io::Result<Vec<Line>> {
    let what = format!("memory per live entry, 2.1 million of 16 B in {streams} streams");
    let line = |suffix: &str, when: &str| {
        Line::new(
            format!("memory-{streams}{suffix}"),
            format!("{what}, {when} / 40 B"),
            "B",
            Target::AtMost(1.0),
        )
    };
    let mut lines = vec![line("", "as written"), line("-reopened", "after reopening")];
    for line in &mut lines {
        let figures = child::ask_for_memory(&format!("memory {streams}"), dir)?;
        line.round(figures.first().copied().ok_or_else(no_answer)?, 40.0);
    }
    Ok(lines)
}

/// The child of [`memory`]: what memory grew by for each entry, which it
/// writes if they are not there.
fn memory_child(dir: &Path, streams: u64) -> io::Result<()> {
    let config = Config {
        cache_bytes_max: 64 << 10,
        ..Config::new(dir, 1)
    };
    let runtime = appenders::runtime()?;
    // Threads and allocator have started when this is over.
    runtime.block_on(async { tokio::spawn(async {}).await })?;
    let before = proc::rss_anon_bytes()?;
    let (wal, opened) = appenders::open(config, Backend::Auto)?;
    if opened.created {
        runtime.block_on(fill_small(&wal, streams))?;
    }
    let grown = proc::rss_anon_bytes()?.saturating_sub(before);
    let live: u64 = wal
        .streams()
        .into_iter()
        .filter_map(|stream| wal.bounds(stream))
        .map(|(first, next)| next.0 - first.0)
        .sum();
    assert_eq!(live, LIVE_ENTRIES, "every entry is there");
    child::answer(&[grown as f64 / live as f64]);
    runtime.block_on(wal.close());
    Ok(())
}

async fn fill_small(wal: &Wal, streams: u64) -> io::Result<()> {
    const ENTRIES: u64 = 1000;
    let each = LIVE_ENTRIES / streams;
    for first in (0..each).step_by(ENTRIES as usize) {
        for stream in 0..streams {
            let entries = (first..each.min(first + ENTRIES))
                .map(|_| Bytes::from_static(&[0x3c; 16]))
                .collect();
            let mut batch = Batch::new();
            batch.append(StreamId(stream), LogIndex(first), entries);
            wal.commit(batch).await?;
        }
    }
    Ok(())
}

/// How far the log's own counters were.
struct Progress {
    commits: u64,
    batches: u64,
}

impl Progress {
    fn of(wal: &Wal) -> Self {
        let counters = wal.counters();
        Self {
            commits: counters.commits.load(Relaxed),
            batches: counters.batches.load(Relaxed),
        }
    }

    fn explain(&self, wal: &Wal, line: &mut Line) {
        let now = Self::of(wal);
        let commits = (now.commits - self.commits) as f64;
        line.aside(
            "batches per commit",
            (now.batches - self.batches) as f64 / commits,
        );
    }
}

fn load(appenders: u64, entry_bytes: usize) -> Load {
    Load {
        appenders,
        entry_bytes,
        time: ROUND,
    }
}

/// A log and a runtime for its callers; closed in order afterwards.
fn with_log(dir: &Path, work: impl FnOnce(&Runtime, &Wal) -> io::Result<()>) -> io::Result<()> {
    let runtime = appenders::runtime()?;
    let wal = appenders::open_default(dir)?;
    let outcome = work(&runtime, &wal);
    runtime.block_on(wal.close());
    outcome
}

fn no_answer() -> io::Error {
    io::Error::other("there is no answer")
}
