//! Parts of the log under criterion, to see what a change did to one of them.
//! Whether the log is fast enough is `wal_lines`' question.
//!
//! `cargo bench -p pontoon-bench --bench wal [-- FILTER]`

use std::hint::black_box;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bytes::Bytes;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use futures_util::future::try_join_all;
use pontoon_bench::appenders::{open, runtime};
use pontoon_wal::disk::Backend;
use pontoon_wal::{Batch, Config, LogIndex, StreamId, Wal};
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// Records are allocated on one thread and freed on another, which this
/// allocator is made for. Peers in the same process have it too.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const STREAM: StreamId = StreamId(1);
/// A stream is purged when it has so many entries, so that runs of any length
/// use segments again.
const LIVE_ENTRIES_MAX: u64 = 1000;

fn directory() -> TempDir {
    let parent = std::env::var_os("PONTOON_BENCH_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_TARGET_TMPDIR")), PathBuf::from);
    std::fs::create_dir_all(&parent)
        .and_then(|()| {
            tempfile::Builder::new()
                .prefix("wal-bench-")
                .tempdir_in(parent)
        })
        .expect("a directory can be made for the bench")
}

fn log(dir: &Path, cache_bytes_max: usize) -> Wal {
    let config = Config {
        cache_bytes_max,
        ..Config::new(dir, 1)
    };
    open(config, Backend::Auto).expect("the log opens").0
}

/// Appends one entry to a stream, purging now and then.
fn next_batch(wal: &Wal, stream: StreamId, entry: &Bytes) -> Batch {
    let next = wal.bounds(stream).map_or(0, |(_, next)| next.0);
    let mut batch = Batch::new();
    if next.is_multiple_of(LIVE_ENTRIES_MAX) {
        batch.purge_below(stream, LogIndex(next));
    }
    batch.append(stream, LogIndex(next), vec![entry.clone()]);
    batch
}

/// Runs on a worker, where real callers are.
fn timed<F>(runtime: &Runtime, work: F) -> Duration
where
    F: Future<Output = io::Result<()>> + Send + 'static,
{
    runtime.block_on(async {
        let start = Instant::now();
        tokio::spawn(work)
            .await
            .expect("the work doesn't panic")
            .expect("the log works");
        start.elapsed()
    })
}

fn append(criterion: &mut Criterion) {
    let runtime = runtime().expect("a runtime starts");
    let dir = directory();
    let wal = log(dir.path(), 64 << 20);
    let entry = Bytes::from(vec![0xa5; 512]);
    let mut group = criterion.benchmark_group("append");
    group
        .sample_size(20)
        .warm_up_time(Duration::from_secs(1))
        .measurement_time(Duration::from_secs(3));

    group.bench_function("1 appender, 512 B, until durable", |bencher| {
        bencher.iter_custom(|count| {
            let (wal, entry) = (wal.clone(), entry.clone());
            timed(&runtime, async move {
                for _ in 0..count {
                    wal.commit(next_batch(&wal, STREAM, &entry)).await?;
                }
                Ok(())
            })
        });
    });

    const APPENDERS: u64 = 64;
    group.throughput(Throughput::Elements(APPENDERS));
    group.bench_function("64 appenders, 512 B, until durable", |bencher| {
        bencher.iter_custom(|count| {
            let (wal, entry) = (wal.clone(), entry.clone());
            timed(&runtime, async move {
                let appenders = (0..APPENDERS).map(|id| {
                    let (wal, entry) = (wal.clone(), entry.clone());
                    tokio::spawn(async move {
                        for _ in 0..count {
                            wal.commit(next_batch(&wal, StreamId(id), &entry)).await?;
                        }
                        io::Result::Ok(())
                    })
                });
                let outcomes = try_join_all(appenders).await.map_err(io::Error::other)?;
                outcomes.into_iter().collect()
            })
        });
    });

    // The disk has always something to do, and every commit is full: what is
    // left is composing and checksums.
    const ENTRIES: u64 = 1024;
    group.throughput(Throughput::Bytes(ENTRIES * 512));
    group.bench_function("composing, 1024 x 512 B, queue always full", |bencher| {
        bencher.iter_custom(|count| {
            let (wal, entry) = (wal.clone(), entry.clone());
            timed(&runtime, async move {
                let stream = StreamId(APPENDERS + 1);
                for _ in 0..count {
                    let next = wal.bounds(stream).map_or(0, |(_, next)| next.0);
                    let mut batch = Batch::new();
                    batch.purge_below(stream, LogIndex(next));
                    batch.append(
                        stream,
                        LogIndex(next),
                        vec![entry.clone(); ENTRIES as usize],
                    );
                    wal.append(batch, |_| {}).await?;
                }
                // What was queued last counts too.
                wal.commit(next_batch(&wal, stream, &entry)).await?;
                Ok(())
            })
        });
    });
    group.finish();
    runtime.block_on(wal.close());
}

const STORED: u64 = 65_536;
const READ: u64 = 64;

/// Fills a stream with entries of 512 B, few of which stay in memory.
async fn store(wal: &Wal) -> io::Result<()> {
    let entry = Bytes::from(vec![0xa5; 512]);
    for first in (0..STORED).step_by(256) {
        let mut batch = Batch::new();
        batch.append(STREAM, LogIndex(first), vec![entry.clone(); 256]);
        wal.commit(batch).await?;
    }
    Ok(())
}

fn read(criterion: &mut Criterion) {
    let runtime = runtime().expect("a runtime starts");
    let dir = directory();
    let wal = log(dir.path(), 1 << 20);
    runtime.block_on(store(&wal)).expect("the log works");
    let mut group = criterion.benchmark_group("read");
    group
        .sample_size(20)
        .warm_up_time(Duration::from_secs(1))
        .measurement_time(Duration::from_secs(2));
    group.throughput(Throughput::Elements(READ));
    let mut bench = |name: &str, from: &dyn Fn(u64) -> u64| {
        let mut turn = 0;
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                turn += 1;
                let from = from(turn);
                let entries = wal
                    .read(STREAM, LogIndex(from), LogIndex(from + READ), usize::MAX)
                    .expect("what was stored is there");
                assert_eq!(entries.len() as u64, READ);
                black_box(entries)
            });
        });
    };
    let cached_from = wal.cached_from(STREAM).expect("the stream is there").0;
    assert!(
        (READ..STORED - READ).contains(&cached_from),
        "some entries are in memory and some are not"
    );
    bench("64 entries from memory", &|_| STORED - READ);
    // Jumps about, so that nothing is read twice in a row.
    bench("64 entries from disk", &|turn| {
        (turn * 7919) % (cached_from - READ)
    });
    group.finish();
    runtime.block_on(wal.close());
}

fn reopen(criterion: &mut Criterion) {
    let runtime = runtime().expect("a runtime starts");
    let dir = directory();
    let wal = log(dir.path(), 1 << 20);
    runtime.block_on(async {
        store(&wal).await.expect("the log works");
        wal.close().await;
    });
    let mut group = criterion.benchmark_group("open");
    group
        .sample_size(10)
        .warm_up_time(Duration::from_secs(1))
        .measurement_time(Duration::from_secs(3));
    group.bench_function("65536 entries in 2 segments, closed in order", |bencher| {
        bencher.iter_custom(|count| {
            let mut opening = Duration::ZERO;
            for _ in 0..count {
                let start = Instant::now();
                let wal = log(dir.path(), 1 << 20);
                opening += start.elapsed();
                runtime.block_on(wal.close());
            }
            opening
        });
    });
    group.finish();
}

criterion_group!(benches, append, read, reopen);
criterion_main!(benches);
