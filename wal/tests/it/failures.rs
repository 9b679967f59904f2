//! Failed writes and syncs, a full disk, a full queue, and wrong requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use bytes::Bytes;
use pontoon_wal::disk::sim::{CommitStyle, Rng, SimDisk};
use pontoon_wal::{Batch, Config, LogIndex, StreamId, Wal, WalError};

use super::crash::History;
use super::twin::{SMALL, Twin, dir, open_sim, open_with, simulate, small_config};

fn entry(stream: u64, index: u64, bytes: usize) -> Batch {
    let mut batch = Batch::new();
    batch.append(
        StreamId(stream),
        LogIndex(index),
        vec![Bytes::from(vec![stream as u8; bytes])],
    );
    batch
}

async fn settle() {
    tokio::time::sleep(Duration::from_secs(10)).await;
}

/// A failed write or sync is final: nothing is acknowledged afterwards, and
/// what was acknowledged before survives a power cut.
#[test]
fn a_failed_write_or_sync_ends_the_log_and_loses_nothing() {
    for style in [CommitStyle::DataSyncWrite, CommitStyle::WriteThenSync] {
        for fault in 0..120 {
            simulate(async {
                let disk = SimDisk::new(fault);
                disk.set_commit_style(style);
                if fault % 2 == 0 {
                    disk.fail_sync_at(4 + fault / 2);
                } else {
                    disk.fail_write_at(20 + fault / 2);
                }
                let mut history = History::new(Twin::default());
                let Ok((wal, _)) = open_sim(&disk, fault) else {
                    return;
                };
                history.write(&wal, &mut Rng::new(fault), &SMALL, 300).await;
                settle().await;
                let reason = wal.failure().expect("the fault was met");
                assert!(!reason.is_empty());
                // Wherever the first failure was, no append is taken any more.
                let refused = wal.commit(entry(77, 0, 10)).await;
                assert!(matches!(refused, Err(WalError::Failed(_))), "{refused:?}");
                drop(wal);
                settle().await;
                let context = format!("{style:?} fault {fault}");
                let (wal, _) = open_sim(&disk.power_cut(fault), 1)
                    .unwrap_or_else(|error| panic!("{context}: {error}"));
                history.check(&wal, &context);
            });
        }
    }
}

#[test]
fn wrong_requests_are_refused_and_change_nothing() {
    simulate(async {
        let disk = SimDisk::new(1);
        let (wal, _) = open_sim(&disk, 1).unwrap();
        wal.commit(entry(1, 0, 10)).await.unwrap();
        let before = Twin::of(&wal).unwrap();

        let not_next = wal.commit(entry(1, 2, 10)).await;
        assert!(matches!(
            not_next,
            Err(WalError::NotNext {
                stream: StreamId(1),
                expected: LogIndex(1),
                found: LogIndex(2)
            })
        ));
        assert!(matches!(
            wal.commit(entry(2, 1, 10)).await,
            Err(WalError::NotNext { .. })
        ));
        // The first half of a batch is not done when the second can't be.
        let mut half = entry(1, 1, 10);
        half.truncate_from(StreamId(5), LogIndex(0));
        assert!(matches!(
            wal.commit(half).await,
            Err(WalError::UnknownStream(StreamId(5)))
        ));
        let mut unknown = Batch::new();
        unknown.drop_stream(StreamId(6));
        assert!(matches!(
            wal.commit(unknown).await,
            Err(WalError::UnknownStream(_))
        ));
        let too_large = wal.commit(entry(1, 1, 100_000)).await;
        assert!(
            matches!(too_large, Err(WalError::BatchTooLarge { .. })),
            "{too_large:?}"
        );
        assert!(matches!(
            wal.read(StreamId(5), LogIndex(0), LogIndex(1), 1),
            Err(WalError::UnknownStream(_))
        ));

        assert_eq!(Twin::of(&wal).unwrap(), before);
        wal.commit(entry(1, 1, 10)).await.unwrap();
        let mut purge = Batch::new();
        purge.purge_below(StreamId(1), LogIndex(2));
        wal.commit(purge).await.unwrap();
        assert!(matches!(
            wal.read(StreamId(1), LogIndex(1), LogIndex(2), 1),
            Err(WalError::Purged {
                first: LogIndex(2),
                ..
            })
        ));
        assert!(
            wal.read(StreamId(1), LogIndex(2), LogIndex(9), 1)
                .unwrap()
                .is_empty()
        );
    });
}

#[test]
fn impossible_configurations_are_refused() {
    simulate(async {
        for config in [
            Config {
                segment_bytes: 5000,
                ..small_config(&dir())
            },
            Config {
                segment_bytes: 4096,
                ..small_config(&dir())
            },
            Config {
                spare_segments: 0,
                ..small_config(&dir())
            },
            Config {
                queue_bytes_max: 0,
                ..small_config(&dir())
            },
        ] {
            let refused = open_with(config, Arc::new(SimDisk::new(1)), 1);
            assert!(matches!(refused, Err(WalError::Config(_))));
        }
    });
}

/// The largest batch that is accepted fits, whatever was in the segment.
#[test]
fn every_batch_that_is_accepted_fits_a_segment() {
    simulate(async {
        let disk = SimDisk::new(2);
        let (wal, _) = open_sim(&disk, 2).unwrap();
        let mut next = 0;
        let mut accepted = 0;
        for bytes in (40_000..66_000).step_by(487) {
            match wal.commit(entry(1, next, bytes)).await {
                Ok(()) => {
                    next += 1;
                    accepted += 1;
                }
                Err(WalError::BatchTooLarge { .. }) => {}
                Err(other) => panic!("{bytes}: {other}"),
            }
            wal.commit(entry(
                2,
                wal.bounds(StreamId(2)).map_or(0, |bounds| bounds.1.0),
                3000,
            ))
            .await
            .unwrap();
        }
        assert!(accepted > 10);
        let many: Vec<_> = (0..300).map(|_| Bytes::new()).collect();
        let mut batch = Batch::new();
        batch.append(StreamId(3), LogIndex(0), many);
        wal.commit(batch).await.unwrap();
        wal.close().await;
        let (wal, _) = open_sim(&disk, 3).unwrap();
        assert_eq!(wal.bounds(StreamId(1)).unwrap().1, LogIndex(next));
        assert_eq!(wal.bounds(StreamId(3)).unwrap().1, LogIndex(300));
    });
}

/// With a disk that doesn't answer, appends wait instead of piling up.
#[test]
fn a_full_queue_makes_appends_wait() {
    simulate(async {
        let disk = SimDisk::new(3);
        let (wal, _) = open_sim(&disk, 3).unwrap();
        wal.commit(entry(1, 0, 10)).await.unwrap();
        disk.slow_syncs(Duration::from_secs(1000));
        let queued = Arc::new(AtomicUsize::new(0));
        let done = Arc::new(AtomicUsize::new(0));
        for writer in 0..100u64 {
            let (wal, queued, done) = (wal.clone(), Arc::clone(&queued), Arc::clone(&done));
            tokio::task::spawn_local(async move {
                let appended = wal.append(entry(100 + writer, 0, 2000), move |result| {
                    result.unwrap();
                    done.fetch_add(1, SeqCst);
                });
                appended.await.unwrap();
                queued.fetch_add(1, SeqCst);
            });
        }
        tokio::time::sleep(Duration::from_secs(10)).await;
        let waiting = queued.load(SeqCst);
        // 64 KiB of queue hold some thirty batches of two and a bit.
        assert!((20..40).contains(&waiting), "{waiting} are queued");
        tokio::time::sleep(Duration::from_secs(100_000)).await;
        assert_eq!(queued.load(SeqCst), 100);
        assert_eq!(done.load(SeqCst), 100);
    });
}

async fn fill(wal: &Wal, stream: u64) -> u64 {
    let mut next = wal.bounds(StreamId(stream)).map_or(0, |bounds| bounds.1.0);
    loop {
        match wal.commit(entry(stream, next, 3000)).await {
            Ok(()) => next += 1,
            Err(WalError::NoSpace) => return next,
            Err(other) => panic!("{other}"),
        }
    }
}

/// A full disk is noticed while the log can still take what must go on:
/// votes, marks, and the purge that makes room again.
#[test]
fn a_full_disk_refuses_entries_but_takes_votes_and_purges() {
    simulate(async {
        let disk = SimDisk::new(4);
        disk.capacity(10 * (64 << 10));
        let (wal, _) = open_sim(&disk, 4).unwrap();
        wal.commit(entry(2, 0, 500)).await.unwrap();
        let full_at = fill(&wal, 1).await;
        assert!(wal.is_space_low() && full_at > 50, "{full_at}");
        for vote in 0..10u8 {
            let mut batch = Batch::new();
            batch.meta(StreamId(2), 0, Bytes::from(vec![vote]));
            wal.commit(batch).await.unwrap();
        }
        assert!(matches!(
            wal.commit(entry(2, 1, 5)).await,
            Err(WalError::NoSpace)
        ));
        // Reads go on.
        assert_eq!(
            wal.read(StreamId(1), LogIndex(0), LogIndex(5), 1 << 20)
                .unwrap()
                .len(),
            5
        );
        // Still full after a crash and a restart.
        let killed = disk.process_kill();
        drop(wal);
        let (wal, _) = open_sim(&killed, 5).unwrap();
        settle().await;
        assert!(wal.is_space_low());
        assert_eq!(wal.meta(StreamId(2), 0), Some(Bytes::from_static(&[9])));

        let mut purge = Batch::new();
        purge.purge_below(StreamId(1), LogIndex(full_at));
        wal.commit(purge).await.unwrap();
        settle().await;
        assert!(!wal.is_space_low(), "the purge made room");
        wal.commit(entry(1, full_at, 500)).await.unwrap();
        assert!(wal.failure().is_none());
        // And again, to see that nothing leaked.
        fill(&wal, 1).await;
        // Room that others make is noticed, too.
        killed.capacity(40 * (64 << 10));
        settle().await;
        assert!(!wal.is_space_low());
        wal.commit(entry(2, 1, 5)).await.unwrap();
    });
}

/// Entries that their owner can't decline any more are not refused: they go to
/// the reserve, and what exceeds it waits for room.
#[test]
fn a_full_disk_takes_admitted_entries_into_the_reserve() {
    simulate(async {
        let disk = SimDisk::new(6);
        disk.capacity(10 * (64 << 10));
        let (wal, _) = open_sim(&disk, 6).unwrap();
        let full_at = fill(&wal, 1).await;
        let admitted = |index| {
            let mut batch = entry(1, index, 3000);
            batch.admitted();
            batch
        };
        for index in full_at..full_at + 8 {
            wal.commit(admitted(index)).await.unwrap();
        }
        assert!(wal.is_space_low());
        let refused = wal.commit(entry(1, full_at + 8, 3000)).await;
        assert!(matches!(refused, Err(WalError::NoSpace)), "{refused:?}");
        // More than the reserve holds.
        let last = full_at + 100;
        let writer = wal.clone();
        let writes = tokio::task::spawn_local(async move {
            for index in full_at + 8..last {
                writer.commit(admitted(index)).await.unwrap();
            }
        });
        settle().await;
        assert!(!writes.is_finished() && wal.stalled_for() > Duration::ZERO);
        assert!(wal.failure().is_none());
        disk.capacity(40 * (64 << 10));
        settle().await;
        writes.await.unwrap();
        assert!(!wal.is_space_low());
        assert_eq!(wal.bounds(StreamId(1)).unwrap().1, LogIndex(last));
    });
}

#[test]
fn no_space_at_all_is_said_when_the_log_is_made() {
    simulate(async {
        let disk = SimDisk::new(5);
        disk.capacity(40 << 10);
        match open_sim(&disk, 5) {
            Err(WalError::Io { error, .. }) => {
                assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
            }
            other => panic!("{:?}", other.map(|_| ())),
        }
        disk.capacity(1 << 20);
        open_sim(&disk, 5).unwrap();
    });
}

/// A reserve that was made for another segment size is not used.
#[test]
fn a_full_disk_after_a_change_of_segment_size_leaves_a_log_that_opens() {
    for (before, after) in [(64 << 10, 128 << 10), (128 << 10, 64 << 10)] {
        simulate(async {
            let disk = SimDisk::new(6);
            let config = |segment_bytes| Config {
                segment_bytes,
                ..small_config(&dir())
            };
            let open = |segment_bytes, disk: &SimDisk| {
                open_with(config(segment_bytes), Arc::new(disk.clone()), 1)
            };
            let (wal, _) = open(before, &disk).unwrap();
            wal.commit(entry(1, 0, 500)).await.unwrap();
            settle().await;
            wal.close().await;
            disk.capacity(1 << 20);
            let (wal, _) = open(after, &disk).unwrap();
            let full_at = fill(&wal, 1).await;
            let killed = disk.process_kill();
            drop(wal);
            let (wal, _) = open(after, &killed).unwrap();
            assert_eq!(wal.bounds(StreamId(1)).unwrap().1, LogIndex(full_at));
        });
    }
}

/// Runs a log into a fault and gives the reason for its failure. Nothing is
/// reported durable once the failure is known, and everybody who waits hears.
async fn reason_of(disk: &SimDisk, wal: &Wal, inject: impl FnOnce()) -> String {
    wal.commit(entry(1, 0, 10)).await.unwrap();
    settle().await;
    let failed = wal.failed();
    tokio::pin!(failed);
    let at_once = tokio::time::timeout(Duration::ZERO, &mut failed).await;
    assert!(at_once.is_err(), "{at_once:?}");
    inject();
    let (answered, asked) = (Arc::new(AtomicUsize::new(0)), 120_usize);
    for n in 0..asked {
        let (log, answered) = (wal.clone(), Arc::clone(&answered));
        tokio::task::spawn_local(async move {
            let done = {
                let (log, answered) = (log.clone(), Arc::clone(&answered));
                move |result: std::io::Result<()>| {
                    assert!(result.is_err() || log.failure().is_none());
                    answered.fetch_add(1, SeqCst);
                }
            };
            let batch = entry(10 + n as u64, 0, 3000);
            if log.append(batch, done).await.is_err() {
                answered.fetch_add(1, SeqCst);
            }
        });
    }
    let reason = tokio::time::timeout(Duration::from_secs(60), failed)
        .await
        .unwrap_or_else(|_| panic!("no failure after {} operations", disk.operations()));
    settle().await;
    assert_eq!(answered.load(SeqCst), asked);
    assert_eq!(wal.stalled_for(), Duration::ZERO);
    assert_eq!(wal.failure().as_deref(), Some(&*reason));
    assert_eq!(&*wal.failed().await, &*reason);
    reason.to_string()
}

/// What failed, where and why: for the commits, and for all that is done to
/// segments beside them.
#[test]
fn a_failure_names_file_operation_and_error() {
    simulate(async {
        let disk = SimDisk::new(8);
        let (wal, _) = open_sim(&disk, 8).unwrap();
        let reason = reason_of(&disk, &wal, || disk.read_only(true)).await;
        let (file, rest) = reason.split_once(": ").unwrap();
        assert_eq!(file, dir().join("0000000001.wal").display().to_string());
        let operation = rest
            .strip_suffix(": Read-only file system (os error 30)")
            .unwrap();
        assert!(operation.starts_with("write of "), "{reason}");
        assert!(operation.contains(" bytes at 0x"), "{reason}");
        // A start on the same disk says so, too.
        drop(wal);
        settle().await;
        let Err(refused) = open_sim(&disk, 9) else {
            panic!("a read-only disk was taken");
        };
        let refused = refused.to_string();
        assert!(
            refused.starts_with(&*dir().display().to_string()),
            "{refused}"
        );
        assert!(
            refused.ends_with("Read-only file system (os error 30)"),
            "{refused}"
        );
    });
    let mut operations = std::collections::BTreeSet::new();
    for fault in 0..96 {
        simulate(async {
            let disk = SimDisk::new(fault);
            let (wal, _) = open_sim(&disk, fault).unwrap();
            let inject = || match fault % 2 {
                0 => disk.fail_sync_at(disk.syncs() + fault / 2 % 12),
                _ => disk.fail_write_at(disk.writes() + fault / 2 % 12),
            };
            let reason = reason_of(&disk, &wal, inject).await;
            let parts: Vec<_> = reason.split(": ").collect();
            let [file, operation, error] = parts[..] else {
                panic!("{reason}");
            };
            assert!(file.starts_with(&*dir().display().to_string()), "{reason}");
            assert_eq!(error, "Input/output error (os error 5)");
            let name = file.rsplit('/').next().unwrap();
            let name = name.trim_start_matches(|c: char| c.is_ascii_digit());
            let operation = operation.split(" of ").next().unwrap();
            operations.insert(format!("{operation} of {name}"));
        });
    }
    let operations: Vec<_> = operations.iter().map(String::as_str).collect();
    assert_eq!(
        operations,
        [
            "sync of .wal",
            "sync of preparing.tmp",
            "write of .wal",
            "write of preparing.tmp"
        ]
    );
}

/// A failure of the janitor is one of the log: those are answered, too, whose
/// own commits are still under way.
#[test]
fn a_failure_beside_the_commits_answers_those_that_hang() {
    simulate(async {
        let disk = SimDisk::new(9);
        disk.capacity(10 * (64 << 10));
        let (wal, _) = open_sim(&disk, 9).unwrap();
        // From now on the janitor tries every second to make a segment.
        fill(&wal, 1).await;
        disk.hang();
        let mut vote = Batch::new();
        vote.meta(StreamId(2), 0, Bytes::from_static(b"1"));
        let waiting = tokio::task::spawn_local({
            let wal = wal.clone();
            async move { wal.commit(vote).await }
        });
        let second = Duration::from_secs(1);
        tokio::time::sleep(3 * second).await;
        assert!(!waiting.is_finished() && wal.failure().is_none());
        assert_eq!(wal.stalled_for(), 3 * second);
        disk.read_only(true);
        tokio::time::sleep(2 * second).await;
        let refused = waiting.await.unwrap();
        assert!(matches!(refused, Err(WalError::Failed(_))), "{refused:?}");
        let expected = format!(
            "{}: creation: Read-only file system (os error 30)",
            dir().join("preparing.tmp").display()
        );
        assert_eq!(&*wal.failed().await, expected);
        assert_eq!(wal.stalled_for(), Duration::ZERO);
        // The commit ends well, which changes nothing.
        disk.read_only(false);
        disk.resume();
        settle().await;
        assert!(wal.commit(entry(3, 0, 10)).await.is_err());
    });
}

/// The time during which nothing becomes durable counts from the last progress,
/// and only while something waits.
#[test]
fn a_disk_that_hangs_shows_as_a_stall() {
    simulate(async {
        let disk = SimDisk::new(10);
        let (wal, _) = open_sim(&disk, 10).unwrap();
        wal.commit(entry(1, 0, 10)).await.unwrap();
        settle().await;
        assert_eq!(wal.stalled_for(), Duration::ZERO);
        disk.hang();
        let second = Duration::from_secs(1);
        tokio::time::sleep(5 * second).await;
        assert_eq!(wal.stalled_for(), Duration::ZERO, "nothing waits");
        let waiting = tokio::task::spawn_local({
            let wal = wal.clone();
            async move { wal.commit(entry(1, 1, 10)).await }
        });
        tokio::time::sleep(3 * second).await;
        assert_eq!(wal.stalled_for(), 3 * second);
        // Later ones don't hide the first.
        let later = tokio::task::spawn_local({
            let wal = wal.clone();
            async move { wal.commit(entry(2, 0, 10)).await }
        });
        tokio::time::sleep(3 * second).await;
        assert_eq!(wal.stalled_for(), 6 * second);
        disk.resume();
        waiting.await.unwrap().unwrap();
        later.await.unwrap().unwrap();
        assert_eq!(wal.stalled_for(), Duration::ZERO);
    });
}

/// The directory stays locked while anything may still write to it, also
/// after a failure in the background.
#[test]
fn a_failed_log_keeps_its_directory_until_it_is_closed() {
    simulate(async {
        let disk = SimDisk::new(7);
        let (wal, _) = open_sim(&disk, 7).unwrap();
        settle().await;
        // The next sync of the janitor fails, not one of a commit.
        let next = disk.syncs();
        for sync in next + 30..next + 40 {
            disk.fail_sync_at(sync);
        }
        let mut next = 0;
        while wal.failure().is_none() {
            let _ = wal.commit(entry(1, next, 3000)).await;
            next += 1;
        }
        settle().await;
        assert!(matches!(open_sim(&disk, 8), Err(WalError::Locked(_))));
        wal.close().await;
        assert!(!matches!(
            open_sim(&disk.process_kill(), 9),
            Err(WalError::Locked(_))
        ));
    });
}
