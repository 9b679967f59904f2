//! Logs that earlier releases wrote are opened, and have what they had.
//!
//! A directory below `tests/golden` is a log as a crash leaves it, with its
//! files cut where only zeros follow, their sizes in `sizes`, and what it holds
//! in `content`.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use pontoon_wal::disk::{Backend, RealDisk};
use pontoon_wal::format::{SEGMENT_BYTES_MIN, VERSION};
use pontoon_wal::{Batch, Config, LogIndex, StreamId, SystemClock, Wal};

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn config(dir: &Path) -> Config {
    Config {
        segment_bytes: SEGMENT_BYTES_MIN,
        commit_bytes_max: 4 << 10,
        queue_bytes_max: 64 << 10,
        spare_segments: 1,
        ..Config::new(dir, 7)
    }
}

fn open(dir: &Path) -> Wal {
    let disk = RealDisk::new(Backend::Syscalls, dir).unwrap();
    let clock = Arc::new(SystemClock::default());
    Wal::open(config(dir), Arc::new(disk), clock).unwrap().0
}

/// All that is in it.
fn content(wal: &Wal) -> String {
    let mut text = String::new();
    for stream in wal.streams() {
        let (first, next) = wal.bounds(stream).unwrap();
        writeln!(text, "stream {stream}: {} to {}", first.0, next.0).unwrap();
        for key in 0..=255 {
            if let Some(value) = wal.meta(stream, key) {
                writeln!(text, "meta {key}: {}", value.escape_ascii()).unwrap();
            }
        }
        let mut index = first;
        while index < next {
            for entry in wal.read(stream, index, next, 4 << 10).unwrap() {
                let (head, rest) = entry.split_at(entry.len().min(20));
                let (head, rest) = (head.escape_ascii(), rest.len());
                writeln!(text, "entry {}: {head} and {rest} more", index.0).unwrap();
                index = LogIndex(index.0 + 1);
            }
        }
    }
    text
}

/// Run by hand when there is a new version:
/// `cargo test -p pontoon-wal --test it golden -- --ignored`.
#[tokio::test]
#[ignore = "it makes what the test below reads"]
async fn make_a_golden_log() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let log = dir.path().join("log");
    let wal = open(&log);
    let entries = |indexes: std::ops::Range<u64>| -> Vec<Bytes> {
        let entry = |index: u64| {
            let text = format!("entry {index} ").repeat(1 + index as usize % 40);
            Bytes::from(text)
        };
        indexes.map(entry).collect()
    };
    for round in 0..12 {
        let mut batch = Batch::new();
        batch.append(
            StreamId(1),
            LogIndex(10 * round),
            entries(10 * round..10 * round + 10),
        );
        batch.meta(StreamId(1), 1, Bytes::from(format!("round {round}")));
        wal.commit(batch).await.unwrap();
    }
    let mut batch = Batch::new();
    batch
        .append(StreamId(2), LogIndex(0), entries(0..5))
        .truncate_from(StreamId(2), LogIndex(3))
        .meta(StreamId(3), 255, Bytes::from_static(b"no entries"))
        .append(StreamId(4), LogIndex(0), entries(0..2));
    wal.commit(batch).await.unwrap();
    let mut batch = Batch::new();
    batch
        .append(StreamId(2), LogIndex(3), entries(103..105))
        .purge_below(StreamId(1), LogIndex(40))
        .drop_stream(StreamId(4));
    wal.commit(batch).await.unwrap();
    let kept = golden().join(format!("v{VERSION}"));
    fs::create_dir_all(&kept).unwrap();
    let mut sizes = String::new();
    for file in fs::read_dir(&log).unwrap() {
        let file = file.unwrap();
        let name = file.file_name().into_string().unwrap();
        let bytes = fs::read(file.path()).unwrap();
        writeln!(sizes, "{name} {}", bytes.len()).unwrap();
        let end = bytes.iter().rposition(|byte| *byte != 0);
        fs::write(kept.join(name), &bytes[..end.map_or(0, |end| end + 1)]).unwrap();
    }
    fs::write(kept.join("sizes"), sizes).unwrap();
    fs::write(kept.join("content"), content(&wal)).unwrap();
    wal.close().await;
}

#[tokio::test]
async fn a_log_of_every_version_is_opened_and_has_what_it_had() {
    for version in 1..=VERSION {
        let kept = golden().join(format!("v{version}"));
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let log = dir.path().join("log");
        fs::create_dir(&log).unwrap();
        for line in fs::read_to_string(kept.join("sizes")).unwrap().lines() {
            let (name, bytes) = line.split_once(' ').unwrap();
            fs::write(log.join(name), fs::read(kept.join(name)).unwrap()).unwrap();
            let file = fs::File::options().write(true).open(log.join(name));
            file.unwrap().set_len(bytes.parse().unwrap()).unwrap();
        }
        let expected = fs::read_to_string(kept.join("content")).unwrap();
        let wal = open(&log);
        assert_eq!(content(&wal), expected, "version {version}");
        // It goes on, and is the same the next time.
        let mut batch = Batch::new();
        batch.append(
            StreamId(2),
            LogIndex(5),
            vec![Bytes::from_static(b"one more")],
        );
        wal.commit(batch).await.unwrap();
        let more = content(&wal);
        wal.close().await;
        let wal = open(&log);
        assert_eq!(content(&wal), more, "version {version}");
        assert!(more.contains("one more"));
        wal.close().await;
    }
}
