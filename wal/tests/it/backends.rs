//! The real disk, with both backends: the same suite for io_uring and for
//! plain system calls, and `kill -9` in a loop.
//!
//! A killed process leaves the page cache alone, so these runs test recovery
//! and not durability; durability is proved by the simulated power cuts.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use bytes::Bytes;
use pontoon_wal::disk::sim::Rng;
use pontoon_wal::disk::{Backend, Disk, RealDisk};
use pontoon_wal::inspect::{Depth, inspect};
use pontoon_wal::{Batch, Config, LogIndex, Opened, StreamId, SystemClock, Wal, WalError};

use super::twin::{SMALL, Twin, random_batch, small_config};

/// Runs `test` for every backend that this machine allows.
fn for_each_backend(test: impl Fn(Backend, &Path)) {
    for backend in [Backend::Syscalls, Backend::Uring] {
        let dir = temp_dir();
        if let Err(error) = RealDisk::new(backend, dir.path()) {
            assert!(backend == Backend::Uring, "{error}");
            // CI must not lose this half without anybody noticing.
            assert!(std::env::var_os("CI").is_none(), "{error}");
            eprintln!("NOT TESTED HERE: {error}");
            continue;
        }
        test(backend, dir.path());
    }
}

/// On the disk that holds the build, because a temporary directory may be in memory.
fn temp_dir() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn open(backend: Backend, dir: &Path, config: Config) -> Result<(Wal, Opened), WalError> {
    let disk = RealDisk::new(backend, dir).unwrap();
    assert_eq!(disk.uses_uring(), backend == Backend::Uring);
    Wal::open(config, Arc::new(disk), Arc::new(SystemClock::default()))
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .build()
        .unwrap()
}

#[test]
fn the_log_on_a_real_disk_agrees_with_its_twin() {
    for_each_backend(|backend, dir| {
        let mut rng = Rng::new(11);
        let mut twin = Twin::default();
        let runtime = runtime();
        for round in 0..4 {
            let (wal, opened) = open(backend, dir, small_config(dir)).unwrap();
            assert_eq!(opened.created, round == 0);
            assert_eq!(Twin::of(&wal).unwrap(), twin);
            runtime.block_on(async {
                for _ in 0..200 {
                    let batch = random_batch(&mut rng, &mut twin, &SMALL);
                    if rng.chance(1, 5) {
                        wal.commit(batch).await.unwrap();
                    } else {
                        wal.append(batch, |result| result.unwrap()).await.unwrap();
                    }
                    if rng.chance(1, 10) {
                        assert_eq!(Twin::of(&wal).unwrap(), twin);
                    }
                }
                wal.close().await;
            });
        }
        let disk = RealDisk::for_inspection();
        let inspection = inspect(&disk, dir, Depth::Everything).unwrap().unwrap();
        assert!(inspection.log.unwrap().closed);
    });
}

/// Many writers at once, each with its own stream, while others read.
#[test]
fn concurrent_writers_and_readers_see_their_streams_in_order() {
    for_each_backend(|backend, dir| {
        let config = Config {
            segment_bytes: 1 << 20,
            cache_bytes_max: 64 << 10,
            queue_bytes_max: 256 << 10,
            clean_above_bytes: 4 << 20,
            ..Config::new(dir, 7)
        };
        let (wal, _) = open(backend, dir, config.clone()).unwrap();
        let payload = |stream: u64, index: u64| {
            let len = (stream * 31 + index * 17) % 900;
            Bytes::from(format!("{stream}/{index}/{}", "x".repeat(len as usize)))
        };
        runtime().block_on(async {
            let writers: Vec<_> = (0..32u64)
                .map(|stream| {
                    let wal = wal.clone();
                    tokio::spawn(async move {
                        for index in 0..300 {
                            let mut batch = Batch::new();
                            let entries = vec![payload(stream, index)];
                            batch.append(StreamId(stream), LogIndex(index), entries);
                            // Idle streams stay behind; the others purge as they go.
                            if stream % 4 != 0 && index % 50 == 49 {
                                batch.purge_below(StreamId(stream), LogIndex(index - 20));
                            }
                            wal.commit(batch).await.unwrap();
                            if index % 20 == 0 {
                                let (first, next) = wal.bounds(StreamId(stream)).unwrap();
                                assert_eq!(next.0, index + 1);
                                let entries =
                                    wal.read(StreamId(stream), first, next, usize::MAX).unwrap();
                                for (index, entry) in (first.0..).zip(&entries) {
                                    assert_eq!(*entry, payload(stream, index));
                                }
                            }
                        }
                    })
                })
                .collect();
            for writer in writers {
                writer.await.unwrap();
            }
            wal.close().await;
        });
        let (wal, _) = open(backend, dir, config).unwrap();
        for stream in 0..32u64 {
            let (first, next) = wal.bounds(StreamId(stream)).unwrap();
            assert_eq!(next.0, 300);
            assert_eq!(first.0, if stream % 4 == 0 { 0 } else { 279 });
            let entries = wal.read(StreamId(stream), first, next, usize::MAX).unwrap();
            assert_eq!(entries.len() as u64, next.0 - first.0);
            for (index, entry) in (first.0..).zip(&entries) {
                assert_eq!(*entry, payload(stream, index));
            }
        }
    });
}

#[test]
fn a_directory_in_use_is_refused_also_to_another_process() {
    for_each_backend(|backend, dir| {
        let (wal, _) = open(backend, dir, small_config(dir)).unwrap();
        assert!(matches!(
            open(backend, dir, small_config(dir)),
            Err(WalError::Locked(_))
        ));
        let child = child("locked", dir, backend).output().unwrap();
        let said = String::from_utf8_lossy(&child.stdout);
        assert!(said.contains("in use by another process"), "{said}");
        runtime().block_on(wal.close());
        open(backend, dir, small_config(dir)).unwrap();
    });
}

/// A log can be taken up by the other backend at any time.
#[test]
fn backends_can_take_turns() {
    for_each_backend(|backend, dir| {
        let mut rng = Rng::new(5);
        let mut twin = Twin::default();
        for turn in 0..4 {
            let backend = if turn % 2 == 0 {
                backend
            } else {
                Backend::Syscalls
            };
            let (wal, _) = open(backend, dir, small_config(dir)).unwrap();
            assert_eq!(Twin::of(&wal).unwrap(), twin);
            runtime().block_on(async {
                for _ in 0..50 {
                    wal.commit(random_batch(&mut rng, &mut twin, &SMALL))
                        .await
                        .unwrap();
                }
                wal.close().await;
            });
        }
    });
}

/// Segment sizes may change from one run to the next.
#[test]
fn a_log_goes_on_with_another_segment_size() {
    for_each_backend(|backend, dir| {
        let mut rng = Rng::new(6);
        let mut twin = Twin::default();
        for segment_bytes in [64 << 10, 256 << 10, 64 << 10, 1 << 20] {
            let config = Config {
                segment_bytes,
                ..small_config(dir)
            };
            let (wal, _) = open(backend, dir, config).unwrap();
            assert_eq!(Twin::of(&wal).unwrap(), twin);
            runtime().block_on(async {
                for _ in 0..150 {
                    wal.commit(random_batch(&mut rng, &mut twin, &SMALL))
                        .await
                        .unwrap();
                }
                wal.close().await;
            });
        }
    });
}

const KILLS: u64 = 30;

/// `kill -9` at a random moment of a writing process, again and again on the
/// same directory: everything that it said was durable is there.
#[test]
fn a_killed_process_loses_nothing_it_acknowledged() {
    for_each_backend(|backend, dir| {
        let mut acknowledged: BTreeMap<u64, u64> = BTreeMap::new();
        let mut rng = Rng::new(31);
        for run in 0..KILLS {
            let mut process = child("writer", dir, backend)
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let lines = BufReader::new(process.stdout.take().unwrap()).lines();
            let enough = 1 + rng.below(400);
            let mut heard = 0;
            for line in lines.map_while(Result::ok) {
                // The test harness writes to the same pipe.
                let said = line.rsplit_once("durable ").map(|(_, said)| said);
                let Some((stream, index)) = said.and_then(|said| said.split_once('/')) else {
                    continue;
                };
                let (stream, index) = (stream.parse().unwrap(), index.parse().unwrap());
                let newest = acknowledged.entry(stream).or_insert(index);
                *newest = index.max(*newest);
                heard += 1;
                if heard == enough {
                    process.kill().unwrap();
                }
            }
            process.wait().unwrap();
            assert!(heard >= enough, "run {run}: it ended by itself");

            let (wal, _) = open(backend, dir, kill_config(dir)).unwrap();
            for (&stream, &index) in &acknowledged {
                let (first, next) = wal.bounds(StreamId(stream)).expect("the stream is there");
                assert!(
                    next.0 > index,
                    "run {run}: {stream}/{index} was acknowledged"
                );
                let entries = wal.read(StreamId(stream), first, next, usize::MAX).unwrap();
                for (index, entry) in (first.0..).zip(&entries) {
                    assert_eq!(*entry, kill_payload(stream, index), "{stream}/{index}");
                }
            }
            runtime().block_on(wal.close());
        }
    });
}

fn kill_config(dir: &Path) -> Config {
    Config {
        segment_bytes: 256 << 10,
        clean_above_bytes: 1 << 20,
        ..Config::new(dir, 7)
    }
}

fn kill_payload(stream: u64, index: u64) -> Bytes {
    Bytes::from(format!("{stream}:{index}:").repeat(1 + (index % 40) as usize))
}

/// io_uring forbidden, as container runtimes do it: a named fallback, and it works.
#[test]
fn without_io_uring_the_fallback_says_why_and_works() {
    let dir = temp_dir();
    let output = child("forbidden", dir.path(), Backend::Auto)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("io_uring not available"), "{said}{errors}");
    assert!(said.contains("wrote and read back"), "{said}{errors}");
}

/// This test program again, in the given role.
fn child(role: &str, dir: &Path, backend: Backend) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args([
            "backends::child_process",
            "--exact",
            "--nocapture",
            "--test-threads=1",
        ])
        .env("PONTOON_CHILD_ROLE", role)
        .env("PONTOON_CHILD_DIR", dir)
        .env(
            "PONTOON_CHILD_URING",
            (backend == Backend::Uring).to_string(),
        );
    command
}

/// Not a test of its own: what the child processes of the others run.
#[test]
fn child_process() {
    let Ok(role) = std::env::var("PONTOON_CHILD_ROLE") else {
        return;
    };
    let dir = std::env::var_os("PONTOON_CHILD_DIR").unwrap();
    let dir = Path::new(&dir);
    let backend = match std::env::var("PONTOON_CHILD_URING").as_deref() {
        Ok("true") => Backend::Uring,
        _ => Backend::Syscalls,
    };
    match role.as_str() {
        "locked" => match open(backend, dir, small_config(dir)) {
            Ok(_) => println!("opened"),
            Err(error) => println!("{error}"),
        },
        "writer" => write_until_killed(backend, dir),
        "forbidden" => write_without_uring(dir),
        other => panic!("no such role: {other}"),
    }
}

fn write_until_killed(backend: Backend, dir: &Path) {
    let (wal, _) = open(backend, dir, kill_config(dir)).unwrap();
    runtime().block_on(async {
        let writers: Vec<_> = (0..6u64)
            .map(|stream| {
                let wal = wal.clone();
                tokio::spawn(async move {
                    let id = StreamId(stream);
                    let start = wal.bounds(id).map_or(0, |bounds| bounds.1.0);
                    // Bounded, in case nobody kills it.
                    for index in start..start + 20_000 {
                        let mut batch = Batch::new();
                        batch.append(id, LogIndex(index), vec![kill_payload(stream, index)]);
                        if stream != 0 && index % 100 == 99 {
                            batch.purge_below(id, LogIndex(index - 50));
                        }
                        wal.commit(batch).await.unwrap();
                        println!("durable {stream}/{index}");
                    }
                })
            })
            .collect();
        for writer in writers {
            writer.await.unwrap();
        }
    });
}

fn write_without_uring(dir: &Path) {
    forbid_io_uring();
    let disk = RealDisk::new(Backend::Auto, dir).unwrap();
    println!("{}", disk.describe());
    let clock = Arc::new(SystemClock::default());
    let (wal, _) = Wal::open(small_config(dir), Arc::new(disk), clock).unwrap();
    let mut twin = Twin::default();
    let mut rng = Rng::new(1);
    runtime().block_on(async {
        for _ in 0..50 {
            wal.commit(random_batch(&mut rng, &mut twin, &SMALL))
                .await
                .unwrap();
        }
    });
    assert_eq!(Twin::of(&wal).unwrap(), twin);
    println!("wrote and read back");
}

fn forbid_io_uring() {
    use seccompiler::{SeccompAction, SeccompFilter};
    let calls = [
        libc::SYS_io_uring_setup,
        libc::SYS_io_uring_enter,
        libc::SYS_io_uring_register,
    ];
    let filter = SeccompFilter::new(
        calls.into_iter().map(|call| (call, vec![])).collect(),
        SeccompAction::Allow,
        SeccompAction::Errno(libc::EPERM as u32),
        std::env::consts::ARCH.try_into().unwrap(),
    )
    .unwrap();
    let program: seccompiler::BpfProgram = filter.try_into().unwrap();
    seccompiler::apply_filter_all_threads(&program).unwrap();
}
