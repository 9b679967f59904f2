//! Old segments go: purged ones at once, and those that an idle or lagging
//! stream keeps by moving what is live in them.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::Bytes;
use pontoon_wal::disk::sim::SimDisk;
use pontoon_wal::inspect::{Depth, inspect};
use pontoon_wal::{Batch, LogIndex, StreamId};

use super::twin::{Step, Twin, batch_of, dir, open_sim, simulate};

#[test]
fn idle_and_lagging_streams_do_not_keep_old_segments() {
    simulate(async {
        let disk = SimDisk::new(1);
        let (wal, _) = open_sim(&disk, 1).unwrap();
        let mut twin = Twin::default();
        let idle = [
            Step::Append(1, vec![Bytes::from_static(b"idle"); 3]),
            Step::Meta(1, 4, Bytes::from_static(b"vote")),
            Step::Append(2, vec![Bytes::from(vec![2; 900]); 20]),
            // Purged whole: only the floor says that it ever had entries.
            Step::Append(3, vec![Bytes::from_static(b"x"); 7]),
            Step::Purge(3, 7),
            Step::Purge(4, 1000),
        ];
        wal.commit(batch_of(&mut twin, &idle)).await.unwrap();
        for round in 0..400u64 {
            let busy = [
                Step::Append(9, vec![Bytes::from(vec![round as u8; 2500])]),
                Step::Purge(9, round.saturating_sub(5)),
            ];
            wal.commit(batch_of(&mut twin, &busy)).await.unwrap();
            if round % 50 == 0 {
                assert_eq!(Twin::of(&wal).unwrap(), twin);
            }
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(wal.counters().entries_moved.load(Relaxed) >= 23);
        assert!(
            wal.disk_bytes() <= 7 * (64 << 10),
            "{} bytes",
            wal.disk_bytes()
        );
        assert_eq!(Twin::of(&wal).unwrap(), twin);
        let killed = disk.process_kill();
        drop(wal);
        let facts = inspect(&killed, &dir(), Depth::Everything)
            .unwrap()
            .unwrap()
            .log
            .unwrap();
        assert!(
            facts
                .streams
                .iter()
                .all(|stream| stream.oldest_segment.0 > 1)
        );
        let (wal, _) = open_sim(&killed, 2).unwrap();
        assert_eq!(Twin::of(&wal).unwrap(), twin);
    });
}

/// What is moved is readable all the while, and a truncation or purge that
/// comes in between is not undone by the move.
#[test]
fn moves_never_bring_back_what_was_removed_meanwhile() {
    for seed in 0..30u64 {
        simulate(async {
            let disk = SimDisk::new(seed);
            let (wal, _) = open_sim(&disk, seed).unwrap();
            let mut twin = Twin::default();
            let start = [Step::Append(
                1,
                (0..60).map(|at| Bytes::from(vec![at; 700])).collect(),
            )];
            wal.commit(batch_of(&mut twin, &start)).await.unwrap();
            let mut moved_before = 0;
            for round in 0..200u64 {
                let mut steps = vec![
                    Step::Append(9, vec![Bytes::from(vec![round as u8; 2500])]),
                    Step::Purge(9, round),
                ];
                // As soon as moving starts, change what is being moved.
                let moved = wal.counters().entries_moved.load(Relaxed);
                if moved > moved_before {
                    let stream = &twin.streams[&1];
                    match (seed + round) % 3 {
                        0 => steps.push(Step::Purge(1, stream.first + 2)),
                        1 => {
                            let from = stream.next().saturating_sub(3).max(stream.first);
                            steps.push(Step::Truncate(1, from));
                            steps.push(Step::Append(1, vec![Bytes::from(vec![99; 700]); 4]));
                        }
                        _ => {}
                    }
                }
                moved_before = moved;
                wal.append(batch_of(&mut twin, &steps), |result| result.unwrap())
                    .await
                    .unwrap();
                assert_eq!(Twin::of(&wal).unwrap(), twin, "seed {seed} round {round}");
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert!(wal.counters().entries_moved.load(Relaxed) > 0);
            assert_eq!(Twin::of(&wal).unwrap(), twin);
            let killed = disk.process_kill();
            drop(wal);
            let (wal, _) = open_sim(&killed, 2).unwrap();
            assert_eq!(Twin::of(&wal).unwrap(), twin, "seed {seed}");
        });
    }
}

#[test]
fn a_dropped_stream_leaves_nothing_behind() {
    simulate(async {
        let disk = SimDisk::new(2);
        let (wal, _) = open_sim(&disk, 1).unwrap();
        for round in 0..50u64 {
            let mut batch = Batch::new();
            let entries = vec![Bytes::from(vec![1; 3000]); 5];
            batch.append(StreamId(round), LogIndex(0), entries);
            batch.meta(StreamId(round), 0, Bytes::from_static(b"vote"));
            wal.commit(batch).await.unwrap();
            let mut batch = Batch::new();
            batch.drop_stream(StreamId(round));
            wal.commit(batch).await.unwrap();
            assert!(wal.streams().is_empty());
            assert!(wal.bounds(StreamId(round)).is_none());
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(
            wal.disk_bytes() <= 2 * (64 << 10),
            "{} bytes",
            wal.disk_bytes()
        );
        let killed = disk.process_kill();
        drop(wal);
        let (wal, _) = open_sim(&killed, 2).unwrap();
        assert!(wal.streams().is_empty());
        // Its number can be used again, from the beginning.
        let mut batch = Batch::new();
        batch.append(StreamId(3), LogIndex(0), vec![Bytes::from_static(b"again")]);
        wal.commit(batch).await.unwrap();
    });
}

#[test]
fn what_streams_take_on_disk_is_counted_and_found_again() {
    simulate(async {
        let disk = SimDisk::new(7);
        let (wal, _) = open_sim(&disk, 7).unwrap();
        let mut rotations = wal.rotations();
        let (small, large) = (StreamId(1), StreamId(2));
        let entries = |count: usize| vec![Bytes::from(vec![5; 1000]); count];
        let mut batch = Batch::new();
        batch
            .append(small, LogIndex(0), entries(2))
            .append(large, LogIndex(0), entries(12));
        wal.commit(batch).await.unwrap();
        let mut batch = Batch::new();
        batch
            .truncate_from(large, LogIndex(11))
            .purge_below(large, LogIndex(1));
        wal.commit(batch).await.unwrap();
        for reopened in [false, true] {
            let wal = match reopened {
                false => wal.clone(),
                true => open_sim(&disk.process_kill(), 8).unwrap().0,
            };
            // Twelve entries of a little more than 1000 bytes.
            let all = (12_000..13_000).find(|max| wal.fair_share(*max) == u64::MAX);
            let each = all.unwrap() / 12;
            assert_eq!(wal.fair_share(6 * each), 4 * each);
            assert_eq!(wal.fair_share(2 * each), each);
            for (bytes_max, first) in [(10 * each, 1), (4 * each, 7), (4 * each - 1, 8), (0, 11)] {
                let within = wal.first_within(large, bytes_max);
                assert_eq!(within, Some(LogIndex(first)), "{bytes_max} bytes");
            }
            assert_eq!(wal.first_within(StreamId(3), 0), None);
        }
        assert!(!rotations.has_changed().unwrap());
        for first in (11..100).step_by(10) {
            let mut batch = Batch::new();
            batch.append(large, LogIndex(first), entries(10));
            wal.commit(batch).await.unwrap();
        }
        assert!(*rotations.borrow_and_update() >= 1);
    });
}
