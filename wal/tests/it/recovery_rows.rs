//! What recovery makes of whole directories: missing, doubled, foreign and
//! damaged files. (`wal/src/recovery/rows.rs` has the rows of the decision
//! table, on logs made by hand.)

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use pontoon_wal::disk::sim::{Rng, SimDisk};
use pontoon_wal::format::segment_name;
use pontoon_wal::inspect::{Depth, RecordFacts, dump, inspect};
use pontoon_wal::{
    BLOCK_BYTES, Batch, Config, Damage, LogIndex, Opened, SegmentId, StreamId, Wal, WalError,
};

use super::twin::{SMALL, Twin, dir, open_sim, open_with, random_batch, simulate, small_config};

fn segment(id: u32) -> PathBuf {
    dir().join(segment_name(SegmentId(id)))
}

/// Opens without ever moving anything, so that segments stay where they are.
fn open_still(disk: &SimDisk, seed: u64) -> Result<(Wal, Opened), WalError> {
    let config = Config {
        clean_above_bytes: u64::MAX,
        ..small_config(&dir())
    };
    open_with(config, Arc::new(disk.clone()), seed)
}

/// A log of several sealed segments as a crash would leave it, and its state.
/// Nothing is purged, so every segment is needed.
fn crashed_log() -> (SimDisk, Twin) {
    simulate(async {
        let disk = SimDisk::new(1);
        let mut twin = Twin::default();
        let (wal, _) = open_still(&disk, 1).unwrap();
        for number in 0..200u64 {
            let entry = Bytes::from(vec![number as u8; 700]);
            let mut batch = Batch::new();
            for id in [number % 2, 9] {
                let next = wal.bounds(StreamId(id)).map_or(0, |bounds| bounds.1.0);
                batch.append(StreamId(id), LogIndex(next), vec![entry.clone()]);
                twin.apply(&super::twin::Step::Append(id, vec![entry.clone()]));
            }
            wal.commit(batch).await.unwrap();
        }
        // Seals are written in the background: let them finish.
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        (disk.process_kill(), twin)
    })
}

fn state(disk: &SimDisk) -> Result<Twin, WalError> {
    simulate(async {
        let (wal, _) = open_still(disk, 9)?;
        Twin::of(&wal)
    })
}

fn damage(disk: &SimDisk) -> Damage {
    match state(disk) {
        Err(WalError::Damaged(damage)) => (*damage).clone(),
        Err(other) => panic!("not told as damage: {other}"),
        Ok(_) => panic!("opened as if nothing were wrong"),
    }
}

fn records(disk: &SimDisk) -> Vec<RecordFacts> {
    let mut records = Vec::new();
    let inspection = dump(disk, &dir(), Depth::Everything, &mut |record| {
        records.push(record);
    });
    inspection.unwrap().unwrap().log.unwrap();
    records
}

#[test]
fn an_untouched_crashed_log_opens_by_its_footers() {
    let (disk, twin) = crashed_log();
    simulate(async {
        let (wal, opened) = open_still(&disk, 2).unwrap();
        assert_eq!(Twin::of(&wal).unwrap(), twin);
        assert!(opened.segments > 4, "{opened:?}");
        assert_eq!(opened.scanned, 1, "{opened:?}");
        assert!(!opened.was_closed && !opened.cut, "{opened:?}");
    });
}

#[test]
fn damage_in_an_unsealed_middle_names_file_offset_stream_and_index() {
    let (disk, _) = crashed_log();
    let records = records(&disk);
    let last_segment = records.last().unwrap().at.segment();
    let victim = records
        .iter()
        .filter(|record| record.at.segment() == last_segment)
        .nth(3)
        .unwrap();
    disk.flip_bit(
        &segment(last_segment.0),
        (u64::from(victim.at.offset()) + 40) * 8,
    );
    let damage = damage(&disk);
    assert_eq!(damage.file, segment(last_segment.0));
    assert_eq!(damage.offset, u64::from(victim.at.offset()));
    assert_eq!(damage.stream, Some(victim.stream));
    assert_eq!(damage.index, Some(LogIndex(victim.index)));
}

#[test]
fn damage_in_a_sealed_segment_is_found_by_a_read_and_by_a_full_check() {
    let (disk, _) = crashed_log();
    let victim = records(&disk)
        .into_iter()
        .find(|record| record.stream == StreamId(9) && record.index == 5)
        .unwrap();
    disk.flip_bit(
        &segment(victim.at.segment().0),
        (u64::from(victim.at.offset()) + 100) * 8,
    );
    simulate(async {
        let (wal, _) = open_still(&disk, 3).unwrap();
        let whole = |from, to| wal.read(StreamId(9), LogIndex(from), LogIndex(to), usize::MAX);
        assert_eq!(whole(0, 5).unwrap().len(), 5);
        match whole(0, 6) {
            Err(WalError::Damaged(damage)) => {
                assert_eq!(damage.offset, u64::from(victim.at.offset()));
                assert_eq!(damage.stream, Some(StreamId(9)));
                assert_eq!(damage.index, Some(LogIndex(5)));
            }
            other => panic!("{other:?}"),
        }
    });
    let inspection = inspect(&disk, &dir(), Depth::Everything).unwrap().unwrap();
    match inspection.log {
        Err(WalError::Damaged(damage)) => assert_eq!(damage.index, Some(LogIndex(5))),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_damaged_footer_or_trailer_costs_time_and_nothing_else() {
    let (disk, twin) = crashed_log();
    let inspection = inspect(&disk, &dir(), Depth::Footers).unwrap().unwrap();
    let seal = inspection.segments[1].seal.unwrap();
    let trailer_at = inspection.segments[1].file_bytes - BLOCK_BYTES as u64;
    for offset in [u64::from(seal.end) + 50, trailer_at + 20] {
        let disk = disk.fork();
        disk.flip_bit(&segment(2), offset * 8);
        simulate(async {
            let (wal, opened) = open_still(&disk, 4).unwrap();
            assert_eq!(opened.scanned, 2, "{opened:?}");
            assert_eq!(Twin::of(&wal).unwrap(), twin);
            wal.close().await;
            // It was sealed again.
            let (_wal, opened) = open_still(&disk, 5).unwrap();
            assert_eq!(opened.scanned, 1, "{opened:?}");
        });
    }
}

#[test]
fn a_damaged_footer_over_damaged_records_is_damage() {
    let (disk, _) = crashed_log();
    let victim = records(&disk)
        .into_iter()
        .find(|record| record.at.segment() == SegmentId(2))
        .unwrap();
    let trailer_at = u64::from(small_config(&dir()).segment_bytes) - BLOCK_BYTES as u64;
    disk.flip_bit(&segment(2), trailer_at * 8);
    disk.flip_bit(&segment(2), (u64::from(victim.at.offset()) + 40) * 8);
    let damage = damage(&disk);
    assert_eq!(damage.file, segment(2));
    assert_eq!(damage.stream, Some(victim.stream));
}

#[test]
fn a_missing_segment_is_named_wherever_it_was() {
    let (disk, _) = crashed_log();
    let count = disk
        .paths()
        .iter()
        .filter(|path| path.extension().is_some())
        .count() as u32;
    let last_used = records(&disk).last().unwrap().at.segment().0;
    assert!(last_used < count + 1);
    for missing in 1..=last_used {
        let disk = disk.fork();
        disk.remove_file(&segment(missing));
        assert_eq!(damage(&disk).file, segment(missing), "segment {missing}");
    }
    // The newest ones gone, down to a sealed one: the one behind it must exist.
    for id in last_used..=count {
        disk.remove_file(&segment(id));
    }
    assert_eq!(damage(&disk).file, segment(last_used));
}

#[test]
fn a_spare_segment_may_be_missing() {
    let (disk, twin) = crashed_log();
    let last_used = records(&disk).last().unwrap().at.segment().0;
    assert!(disk.read_file(&segment(last_used + 1)).is_some());
    disk.remove_file(&segment(last_used + 1));
    assert_eq!(state(&disk).unwrap(), twin);
}

#[test]
fn all_segments_missing_is_damage_not_a_new_log() {
    let (disk, _) = crashed_log();
    for path in disk.paths() {
        if path.extension().is_some() {
            disk.remove_file(&path);
        }
    }
    assert_eq!(damage(&disk).file, segment(1));
}

#[test]
fn a_copy_of_a_segment_under_another_name_is_refused() {
    let (disk, _) = crashed_log();
    let copy = disk.read_file(&segment(2)).unwrap();
    let over = disk.fork();
    over.write_file(&segment(3), copy.clone());
    assert!(damage(&over).what.contains("copy of segment 2"));
    let beside = disk.fork();
    beside.write_file(&dir().join("2.wal"), copy);
    assert!(damage(&beside).what.contains("not the name of a segment"));
}

#[test]
fn a_missing_identity_is_damage() {
    let (disk, _) = crashed_log();
    disk.remove_file(&dir().join("identity"));
    assert!(
        damage(&disk)
            .what
            .contains("identity of the log is missing")
    );
}

#[test]
fn a_damaged_identity_or_header_is_damage() {
    let (disk, _) = crashed_log();
    for (path, at) in [(dir().join("identity"), 30), (segment(2), 50)] {
        let disk = disk.fork();
        disk.flip_bit(&path, at * 8);
        assert_eq!(damage(&disk).file, path);
    }
}

#[test]
fn a_shortened_segment_is_damage() {
    let (disk, _) = crashed_log();
    for keep in [0, 100, BLOCK_BYTES, 5 * BLOCK_BYTES] {
        let disk = disk.fork();
        let mut bytes = disk.read_file(&segment(2)).unwrap();
        bytes.truncate(keep);
        disk.write_file(&segment(2), bytes);
        assert_eq!(damage(&disk).file, segment(2), "{keep} bytes kept");
    }
}

#[test]
fn another_version_is_told_by_its_number() {
    let (disk, _) = crashed_log();
    for (path, header_bytes) in [(dir().join("identity"), 40), (segment(2), 56)] {
        let disk = disk.fork();
        let mut bytes = disk.read_file(&path).unwrap();
        bytes[4] = 77;
        // Without a right checksum it is just damaged.
        disk.write_file(&path, bytes.clone());
        assert_eq!(damage(&disk).file, path);
        let sum = crc32fast::hash(&bytes[4..header_bytes]);
        bytes[..4].copy_from_slice(&sum.to_le_bytes());
        disk.write_file(&path, bytes);
        match state(&disk) {
            Err(WalError::WrongVersion {
                file,
                found: 77,
                known: 1,
            }) => assert_eq!(file, path),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn another_nodes_directory_is_refused_untouched() {
    let (disk, twin) = crashed_log();
    simulate(async {
        let config = Config {
            node: 8,
            ..small_config(&dir())
        };
        let before: Vec<_> = disk
            .paths()
            .iter()
            .map(|path| disk.read_file(path))
            .collect();
        match open_with(config, Arc::new(disk.clone()), 1) {
            Err(WalError::OtherNode {
                expected: 8,
                found: 7,
                ..
            }) => {}
            other => panic!("{:?}", other.map(|_| ())),
        }
        let after: Vec<_> = disk
            .paths()
            .iter()
            .map(|path| disk.read_file(path))
            .collect();
        assert!(before == after[..before.len()], "nothing was changed");
    });
    assert_eq!(state(&disk).unwrap(), twin);
}

#[test]
fn another_logs_segment_is_refused() {
    let (disk, _) = crashed_log();
    let (other, _) = simulate(async {
        let disk = SimDisk::new(2);
        let (wal, _) = open_still(&disk, 77).unwrap();
        wal.close().await;
        (disk, ())
    });
    disk.write_file(&segment(1), other.read_file(&segment(1)).unwrap());
    assert!(damage(&disk).what.contains("another log"));
}

#[test]
fn an_open_directory_is_locked() {
    simulate(async {
        let disk = SimDisk::new(3);
        let (wal, _) = open_still(&disk, 1).unwrap();
        match open_still(&disk, 2) {
            Err(WalError::Locked(path)) => assert_eq!(path, dir()),
            other => panic!("{:?}", other.map(|_| ())),
        }
        wal.close().await;
        open_still(&disk, 3).unwrap();
    });
}

/// A recycled segment's old commits lie behind the end of the log, and stay dead.
#[test]
fn what_a_recycled_segment_held_before_is_not_taken_for_the_log() {
    simulate(async {
        let disk = SimDisk::new(4);
        let mut rng = Rng::new(4);
        let mut twin = Twin::default();
        let (wal, _) = open_sim(&disk, 4).unwrap();
        while wal
            .counters()
            .segments_recycled
            .load(std::sync::atomic::Ordering::Relaxed)
            < 5
        {
            let batch = random_batch(&mut rng, &mut twin, &SMALL);
            wal.commit(batch).await.unwrap();
        }
        let facts = inspect(&disk, &dir(), Depth::Footers)
            .unwrap()
            .unwrap()
            .log
            .unwrap();
        let behind = disk.read_file(&segment(facts.end.segment().0)).unwrap();
        let behind = &behind[facts.end.offset() as usize..];
        assert!(
            behind.iter().any(|&byte| byte != 0),
            "there is garbage to be mistaken for data"
        );
        let killed = disk.process_kill();
        drop(wal);
        let (wal, _) = open_sim(&killed, 5).unwrap();
        assert_eq!(Twin::of(&wal).unwrap(), twin);
    });
}

/// A log that was closed in order has no tail that could be cut: damage to its
/// last commit is damage, not a torn write.
#[test]
fn damage_to_the_last_batch_of_a_closed_log_is_not_taken_for_a_torn_tail() {
    let (disk, _) = crashed_log();
    simulate(async {
        let (wal, _) = open_still(&disk, 6).unwrap();
        let mut batch = Batch::new();
        batch.meta(StreamId(9), 1, Bytes::from_static(b"the last vote"));
        wal.commit(batch).await.unwrap();
        wal.close().await;
    });
    let last = *records(&disk).last().unwrap();
    disk.flip_bit(
        &segment(last.at.segment().0),
        (u64::from(last.at.offset()) + 35) * 8,
    );
    assert_eq!(damage(&disk).stream, Some(StreamId(9)));
}

/// Released segments wait to be used again; damage to them harms nobody.
#[test]
fn damage_to_a_segment_that_is_not_needed_any_more_does_not_count() {
    simulate(async {
        let disk = SimDisk::new(5);
        let (wal, _) = open_still(&disk, 5).unwrap();
        for index in 0..200u64 {
            let mut batch = Batch::new();
            batch.append(
                StreamId(1),
                LogIndex(index),
                vec![Bytes::from(vec![1; 3000])],
            );
            if index == 190 {
                batch.purge_below(StreamId(1), LogIndex(190));
            }
            wal.commit(batch).await.unwrap();
        }
        let twin = Twin::of(&wal).unwrap();
        let disk = disk.process_kill();
        let ids: Vec<_> = disk
            .paths()
            .iter()
            .filter_map(|path| path.file_stem()?.to_str()?.parse::<u32>().ok())
            .collect();
        let facts = inspect(&disk, &dir(), Depth::Footers)
            .unwrap()
            .unwrap()
            .log
            .unwrap();
        let needed = facts.first_needed.0;
        let unneeded: Vec<_> = ids.into_iter().filter(|&id| id < needed).collect();
        assert!(!unneeded.is_empty(), "some segments wait to be used again");
        for id in unneeded {
            for offset in [50, 3 * BLOCK_BYTES as u64 + 50] {
                let disk = disk.fork();
                disk.flip_bit(&segment(id), offset * 8);
                let (wal, _) = open_still(&disk, 6).unwrap();
                assert_eq!(Twin::of(&wal).unwrap(), twin, "segment {id}");
                let checked = inspect(&disk.fork(), &dir(), Depth::Everything);
                checked.unwrap().unwrap().log.unwrap();
            }
        }
        let needed = disk.fork();
        needed.flip_bit(&segment(facts.first_needed.0), 50 * 8);
        assert!(matches!(open_still(&needed, 7), Err(WalError::Damaged(_))));
    });
}

/// The same for a log that was idle for a while before it crashed.
#[test]
fn damage_to_the_last_batch_of_an_idle_log_is_not_taken_for_a_torn_tail() {
    simulate(async {
        let disk = SimDisk::new(8);
        let (wal, _) = open_still(&disk, 8).unwrap();
        let mut batch = Batch::new();
        batch.meta(StreamId(9), 1, Bytes::from_static(b"the last vote"));
        wal.commit(batch).await.unwrap();
        let commits = || {
            wal.counters()
                .commits
                .load(std::sync::atomic::Ordering::Relaxed)
        };
        let before = commits();
        tokio::time::sleep(std::time::Duration::from_secs(100)).await;
        assert_eq!(commits(), before + 1, "one proof is enough");
        let disk = disk.process_kill();
        let last = *records(&disk).last().unwrap();
        disk.flip_bit(&segment(1), (u64::from(last.at.offset()) + 35) * 8);
        match open_still(&disk, 9) {
            Err(WalError::Damaged(damage)) => assert_eq!(damage.stream, Some(StreamId(9))),
            other => panic!("{:?}", other.map(|_| ())),
        }
    });
}
