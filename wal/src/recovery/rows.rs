//! Every row of the decision table, each on a log made by hand to hit it.

use std::collections::HashSet;
use std::path::PathBuf;

use super::*;
use crate::disk::sim::SimDisk;
use crate::format::{Digest, Kind, RecordHeader};

const SEGMENT_BYTES: u32 = 8 * BLOCK_BYTES as u32;
const STREAM: u64 = 5;

fn salt(segment: u32) -> u64 {
    0x1234_5678_9abc_def0 * u64::from(segment)
}

/// A block of a segment made by hand.
#[derive(Clone, Copy)]
enum Block {
    /// A commit with this number and epoch that knew this position to be durable.
    Commit(u64, u64, Lsn),
    /// The same with a damaged record.
    Torn(u64, u64, Lsn),
    /// No commit header.
    Blank,
}
use Block::{Blank, Commit, Torn};

/// Position of the nth block after the header block.
fn at(segment: u32, block: u32) -> Lsn {
    Lsn::new(SegmentId(segment), (block + 1) * BLOCK_BYTES as u32)
}

/// One commit: the entry with the commit's number as its index (and for the
/// first commit, the record that founds the stream at index 1).
fn commit(segment: u32, offset: u32, seq: u64, epoch: u64, durable: Lsn) -> Vec<u8> {
    let mut digest = Digest::new(epoch);
    let mut records = Vec::new();
    let mut add = |kind: Kind, index, ordinal, payload: &[u8]| {
        let header = RecordHeader {
            crc: 0,
            payload_bytes: payload.len() as u32,
            stream: STREAM,
            index,
            ordinal,
            kind: kind as u32,
        };
        let at = offset + (CommitHeader::BYTES + records.len()) as u32;
        let bytes = header.to_bytes(salt(segment), at, payload);
        digest.add(bytes.first_chunk().unwrap());
        records.extend(bytes);
        records.extend(payload);
    };
    let founds = u32::from(seq == 1);
    if seq == 1 {
        add(Kind::Purge, 1, 0, b"");
    }
    add(Kind::Entry, seq, founds, b"payload");
    let header = CommitHeader {
        lsn: Lsn::new(SegmentId(segment), offset).0,
        seq,
        epoch,
        durable: durable.0,
        first_segment: 1,
        records: founds + 1,
        record_bytes: records.len() as u32,
        digest: digest.finish(),
        ..CommitHeader::default()
    };
    let mut block = header.to_bytes(salt(segment)).to_vec();
    block.extend(records);
    block
}

fn disk_with(segments: &[&[Block]]) -> SimDisk {
    let dir = PathBuf::from("/log");
    let identity = Identity {
        log: 99,
        node: 1,
        ..Identity::default()
    };
    let mut block = identity.to_bytes().to_vec();
    block.resize(BLOCK_BYTES, 0);
    let mut files = vec![(dir.join(IDENTITY_NAME), block)];
    for (segment, blocks) in (1..).zip(segments) {
        let header = SegmentHeader {
            log: 99,
            node: 1,
            salt: salt(segment),
            segment,
            segment_bytes: SEGMENT_BYTES,
            ..SegmentHeader::default()
        };
        let mut bytes = header.to_bytes().to_vec();
        for (number, block) in (1..).zip(*blocks) {
            bytes.resize(number * BLOCK_BYTES, 0);
            let offset = bytes.len() as u32;
            match *block {
                Blank => {}
                Commit(seq, epoch, durable) => {
                    bytes.extend(commit(segment, offset, seq, epoch, durable));
                }
                Torn(seq, epoch, durable) => {
                    bytes.extend(commit(segment, offset, seq, epoch, durable));
                    *bytes.last_mut().unwrap() ^= 1;
                }
            }
        }
        bytes.resize(SEGMENT_BYTES as usize, 0);
        files.push((dir.join(segment_name(SegmentId(segment))), bytes));
    }
    SimDisk::from_files(files)
}

/// What recovery makes of it: the number of the last commit, or the damage.
fn outcome(segments: &[&[Block]]) -> Result<u64, Damage> {
    let disk = disk_with(segments);
    match recover(
        &disk,
        Path::new("/log"),
        Depth::Footers,
        &mut |_, _, _, _| {},
    ) {
        Ok(found) => {
            let found = found.expect("there is a log");
            let entries = found
                .streams
                .get(&StreamId(STREAM))
                .map_or(0, |stream| stream.slots.len() as u64);
            assert_eq!(entries, found.chain.seq, "one entry a commit");
            Ok(found.chain.seq)
        }
        Err(WalError::Damaged(damage)) => Err((*damage).clone()),
        Err(other) => panic!("unexpected: {other}"),
    }
}

fn stops_at(segments: &[&[Block]], file: &str, block: u32, index: Option<u64>) {
    let damage = outcome(segments).expect_err("this is damage");
    assert!(damage.file.ends_with(file), "{damage}");
    let (start, end) = (at(1, block).offset(), at(1, block + 1).offset());
    assert!((start..end).contains(&(damage.offset as u32)), "{damage}");
    assert_eq!(damage.index.map(|index| index.0), index, "{damage}");
}

#[test]
fn the_table_has_every_combination_once() {
    let rows: HashSet<_> = TABLE
        .iter()
        .map(|row| format!("{:?} {:?}", row.0, row.1))
        .collect();
    assert_eq!(rows.len(), 16);
}

/// Read as sentences, the table says three things.
#[test]
fn the_table_keeps_its_promises() {
    for (here, ahead, decision) in TABLE {
        let acknowledged_and_gone = here != Here::Commit && ahead == Ahead::Acknowledged;
        assert_eq!(
            decision == Decision::Stop,
            acknowledged_and_gone || (here, ahead) == (Here::Torn, Ahead::Continues)
        );
        assert_eq!(decision == Decision::Accept, here == Here::Commit);
        if decision == Decision::NextSegment {
            assert_eq!(ahead, Ahead::Continues);
        }
    }
}

#[test]
fn commit_and_nothing_ahead_is_accepted() {
    assert_eq!(outcome(&[&[Commit(1, 1, at(1, 0))]]), Ok(1));
}

#[test]
fn commit_and_blank_lead_to_the_next_segment_when_the_log_continues_there() {
    let first = [Commit(1, 1, at(1, 0)), Commit(2, 1, at(1, 1))];
    let second = [Commit(3, 1, at(1, 2))];
    assert_eq!(outcome(&[&first, &second]), Ok(3));
}

#[test]
fn commits_with_others_ahead_are_accepted_whether_acknowledged_or_not() {
    let unacknowledged = [Commit(1, 1, at(1, 0)), Commit(2, 1, at(1, 0))];
    assert_eq!(outcome(&[&unacknowledged]), Ok(2));
    let acknowledged = [Commit(1, 1, at(1, 0)), Commit(2, 1, at(1, 1))];
    assert_eq!(outcome(&[&acknowledged]), Ok(2));
}

#[test]
fn torn_and_nothing_ahead_is_the_end() {
    assert_eq!(
        outcome(&[&[Commit(1, 1, at(1, 0)), Torn(2, 1, at(1, 1))]]),
        Ok(1)
    );
}

#[test]
fn torn_though_the_next_segment_has_that_very_commit_is_damage() {
    let first = [Commit(1, 1, at(1, 0)), Torn(2, 1, at(1, 1))];
    let second = [Commit(2, 1, at(1, 1))];
    stops_at(&[&first, &second], "0000000001.wal", 1, Some(2));
}

#[test]
fn torn_with_unacknowledged_commits_ahead_is_the_end() {
    let blocks = [
        Commit(1, 1, at(1, 0)),
        Torn(2, 1, at(1, 1)),
        Commit(3, 1, at(1, 1)),
    ];
    assert_eq!(outcome(&[&blocks]), Ok(1));
    assert_eq!(outcome(&[&blocks[..2], &blocks[2..]]), Ok(1));
}

#[test]
fn torn_but_acknowledged_is_damage() {
    let blocks = [
        Commit(1, 1, at(1, 0)),
        Torn(2, 1, at(1, 1)),
        Commit(3, 1, at(1, 1)),
        Commit(4, 1, at(1, 2)),
    ];
    stops_at(&[&blocks], "0000000001.wal", 1, Some(2));
    stops_at(&[&blocks[..2], &blocks[2..]], "0000000001.wal", 1, Some(2));
}

#[test]
fn stale_and_nothing_ahead_is_the_end() {
    // Commits 2 and 3 of epoch 1 were cut; epoch 2 has overwritten only 2.
    let blocks = [
        Commit(1, 1, at(1, 0)),
        Commit(2, 2, at(1, 1)),
        Commit(3, 1, at(1, 1)),
    ];
    assert_eq!(outcome(&[&blocks]), Ok(2));
}

#[test]
fn stale_leads_to_the_next_segment_when_the_log_continues_there() {
    let first = [
        Commit(1, 1, at(1, 0)),
        Commit(2, 2, at(1, 1)),
        Commit(3, 1, at(1, 1)),
    ];
    let second = [Commit(3, 2, at(1, 2))];
    assert_eq!(outcome(&[&first, &second]), Ok(3));
}

#[test]
fn stale_with_unacknowledged_commits_ahead_is_the_end() {
    let first = [
        Commit(1, 1, at(1, 0)),
        Commit(2, 2, at(1, 1)),
        Commit(3, 1, at(1, 1)),
        Commit(4, 2, at(1, 2)),
    ];
    assert_eq!(outcome(&[&first]), Ok(2));
}

#[test]
fn stale_where_an_acknowledged_commit_was_is_damage() {
    let first = [
        Commit(1, 1, at(1, 0)),
        Commit(2, 2, at(1, 1)),
        Commit(3, 1, at(1, 1)),
        Commit(4, 2, at(1, 3)),
    ];
    stops_at(&[&first], "0000000001.wal", 2, Some(3));
}

#[test]
fn blank_and_nothing_ahead_is_the_end_also_at_the_very_start() {
    assert_eq!(outcome(&[&[]]), Ok(0));
    assert_eq!(outcome(&[&[Commit(1, 1, at(1, 0)), Blank]]), Ok(1));
    assert_eq!(outcome(&[&[Commit(1, 1, at(1, 0))], &[]]), Ok(1));
}

#[test]
fn blank_with_unacknowledged_commits_ahead_is_the_end() {
    let blocks = [
        Commit(1, 1, at(1, 0)),
        Blank,
        Commit(3, 1, at(1, 1)),
        Commit(4, 1, at(1, 1)),
    ];
    assert_eq!(outcome(&[&blocks]), Ok(1));
    assert_eq!(outcome(&[&blocks[..1], &blocks[1..]]), Ok(1));
}

#[test]
fn blank_where_an_acknowledged_commit_was_is_damage() {
    let blocks = [
        Commit(1, 1, at(1, 0)),
        Blank,
        Commit(3, 1, at(1, 1)),
        Commit(4, 1, at(1, 2)),
    ];
    stops_at(&[&blocks], "0000000001.wal", 1, None);
    // The missing commit was the first of the second segment.
    let second = [Blank, Commit(3, 1, at(1, 1)), Commit(4, 1, at(2, 1))];
    stops_at(&[&blocks[..1], &second], "0000000002.wal", 0, None);
    // Nothing at all is left before the proof.
    stops_at(
        &[&[Blank, Commit(2, 1, at(1, 1))]],
        "0000000001.wal",
        0,
        None,
    );
}

/// A flipped bit anywhere in an acknowledged commit is found, wherever it is.
#[test]
fn a_flipped_bit_in_an_acknowledged_commit_is_always_damage() {
    let blocks = [
        Commit(1, 1, at(1, 0)),
        Commit(2, 1, at(1, 1)),
        Commit(3, 1, at(1, 2)),
    ];
    let whole = disk_with(&[&blocks]);
    let bytes = commit(1, at(1, 1).offset(), 2, 1, at(1, 1)).len() as u64;
    let path = Path::new("/log").join(segment_name(SegmentId(1)));
    for bit in 0..bytes * 8 {
        let disk = whole.fork();
        disk.flip_bit(&path, u64::from(at(1, 1).offset()) * 8 + bit);
        let result = recover(
            &disk,
            Path::new("/log"),
            Depth::Footers,
            &mut |_, _, _, _| {},
        );
        assert!(matches!(result, Err(WalError::Damaged(_))), "bit {bit}");
    }
}
