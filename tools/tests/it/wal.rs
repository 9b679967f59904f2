//! `pontoonctl wal` on real logs, whole and broken.

use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use bytes::Bytes;
use pontoon_wal::disk::{Backend, RealDisk};
use pontoon_wal::format::segment_name;
use pontoon_wal::{Batch, Config, LogIndex, SegmentId, StreamId, SystemClock, Wal};
use serde_json::Value;
use tempfile::TempDir;

use super::{
    Answer, BINARY, answer, contents, flip, json, last_line, lines_of_json, number, patch, table,
};

const NODE: u64 = 7;
const COMMITS: u64 = 50;
/// Large enough that little of a commit's blocks is padding: a log that is
/// mostly garbage would be cleaned while it is looked at.
const ENTRY_BYTES: u64 = 5000;
const SEGMENT_BYTES: u64 = 1 << 18;
const BLOCK_BYTES: u64 = 4096;
const RECORD_HEADER_BYTES: u64 = 32;

// Logs to look at.

fn open(dir: &Path) -> Wal {
    let config = Config {
        segment_bytes: SEGMENT_BYTES as u32,
        ..Config::new(dir, NODE)
    };
    let disk = RealDisk::new(Backend::Syscalls, dir).unwrap();
    Wal::open(config, Arc::new(disk), Arc::new(SystemClock::default()))
        .unwrap()
        .0
}

fn block_on<T>(task: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap()
        .block_on(task)
}

fn close(wal: Wal) {
    block_on(wal.close());
}

/// Streams 1 to 3 with an entry each per commit, then one commit with a
/// record of every other kind. Four segments or so, one of them not sealed.
async fn fill(wal: &Wal) {
    for index in 0..COMMITS {
        let mut batch = Batch::new();
        for stream in 1..=3 {
            let payload = Bytes::from(vec![stream as u8; ENTRY_BYTES as usize]);
            batch.append(StreamId(stream), LogIndex(index), vec![payload]);
        }
        wal.commit(batch).await.unwrap();
    }
    let mut batch = Batch::new();
    batch
        .meta(StreamId(1), 5, Bytes::from_static(b"vote"))
        .truncate_from(StreamId(2), LogIndex(COMMITS - 1))
        .purge_below(StreamId(3), LogIndex(10))
        .meta(StreamId(4), 0, Bytes::new())
        .drop_stream(StreamId(4));
    wal.commit(batch).await.unwrap();
}

struct Sample(TempDir);

impl Sample {
    fn closed() -> Self {
        let this = Self(tempfile::tempdir().unwrap());
        let wal = open(this.dir());
        block_on(fill(&wal));
        close(wal);
        this
    }

    fn dir(&self) -> &Path {
        self.0.path()
    }

    fn segment(&self, id: u64) -> PathBuf {
        self.dir().join(segment_name(SegmentId(id as u32)))
    }

    fn records(&self) -> Vec<Value> {
        lines_of_json(&pontoonctl(self.dir(), &["dump", "--json"]).expect(0))
    }

    /// The segment that the log ends in, and the offset there.
    fn end(&self) -> (u64, u64) {
        let report = json(&pontoonctl(self.dir(), &["inspect", "--json"]).expect(0));
        let end = &report["log"]["end"];
        (number(&end["segment"]), number(&end["offset"]))
    }
}

// Looks at them.

/// `pontoonctl wal <words> <dir>`, which must leave the directory as it is.
#[track_caller]
fn pontoonctl(dir: &Path, words: &[&str]) -> Answer {
    let before = contents(dir);
    let answer = pontoonctl_in_motion(dir, words);
    assert!(before == contents(dir), "{words:?} changed the directory");
    answer
}

/// The same while a log's own tasks may still be making files.
fn pontoonctl_in_motion(dir: &Path, words: &[&str]) -> Answer {
    answer(
        Command::new(BINARY)
            .arg("wal")
            .args(words)
            .arg(dir)
            .stdout(Stdio::piped()),
    )
}

// Whole logs.

#[test]
fn inspect_shows_a_log_as_text() {
    let sample = Sample::closed();
    let text = pontoonctl(sample.dir(), &["inspect"]).expect(0);
    let (newest, end) = sample.end();
    assert!(newest >= 4, "several segments: {newest}");
    for fact in [
        "node         7\n",
        "epoch        1\n",
        // One that opens, the entries, the other kinds, one that closes.
        &format!("last commit  {}\n", COMMITS + 3),
        &format!("end          {newest}:{end:#x}\n"),
        "closed       in order\n",
        "tail         no unacknowledged tail\n",
    ] {
        assert!(text.contains(fact), "{fact:?} in\n{text}");
    }

    let segments = table(&text, "segment");
    let mut next_commit = 1;
    for (id, row) in (1..).zip(&segments) {
        assert_eq!(row[0], id.to_string());
        assert_eq!(row[1], SEGMENT_BYTES.to_string());
        if id > newest {
            assert_eq!(row[2..], ["spare", "-", "-"]);
            continue;
        }
        assert_eq!(row[2], if id == newest { "unsealed" } else { "sealed" });
        let (first, last) = row[3].split_once("..").unwrap();
        assert_eq!(first, next_commit.to_string());
        next_commit = last.parse::<u64>().unwrap() + 1;
        assert!(row[4].starts_with("0x"), "{row:?}");
    }
    assert_eq!(next_commit, COMMITS + 4);
    assert_eq!(segments[newest as usize - 1][4], format!("{end:#x}"));

    let streams = table(&text, "stream");
    assert_eq!(
        streams,
        [
            ["1", "0", "50", "50", "250000", "1", "1.."],
            ["2", "0", "49", "49", "245000", "0", "1.."],
            ["3", "10", "50", "40", "200000", "0", "1.."],
        ]
    );
}

#[test]
fn inspect_shows_a_log_as_json() {
    let sample = Sample::closed();
    let report = json(&pontoonctl(sample.dir(), &["inspect", "--json"]).expect(0));
    assert_eq!(report["clean"], true);
    assert_eq!(report["in_use"], false);
    assert_eq!(report["damage"], Value::Null);

    let log = &report["log"];
    let id = log["id"].as_str().unwrap();
    assert!(id.len() == 32 && id.chars().all(|c| c.is_ascii_hexdigit()));
    // The file has it, too: little-endian, after checksum, version and magic.
    let identity = fs::read(sample.dir().join("identity")).unwrap();
    let expected = u128::from_le_bytes(*identity[16..].first_chunk().unwrap());
    assert_eq!(id, format!("{expected:032x}"));
    assert_eq!(log["node"], NODE);
    assert_eq!(log["epoch"], 1);
    assert_eq!(log["last_commit"], COMMITS + 3);
    assert_eq!(log["closed_in_order"], true);
    assert_eq!(log["unacknowledged_tail"], false);
    assert_eq!(log["streams"].as_array().unwrap().len(), 3);
    let stream = &log["streams"][0];
    assert_eq!(stream["id"], 1);
    assert_eq!(stream["entries"], COMMITS);
    assert_eq!(stream["bytes"], COMMITS * ENTRY_BYTES);
    assert_eq!(stream["metas"][0]["key"], 5);
    assert_eq!(stream["metas"][0]["bytes"], 4);
    assert_eq!(stream["oldest_segment"], 1);

    let segment = &report["segments"][0];
    assert_eq!(segment["number"], 1);
    assert_eq!(segment["file_bytes"], SEGMENT_BYTES);
    assert_eq!(segment["state"], "sealed");
    assert_eq!(segment["commits"]["first"], 1);
    assert_eq!(segment["header_problem"], Value::Null);
    assert!(number(&segment["end"]) < SEGMENT_BYTES);
    assert!(segment.get("records").is_none(), "only check reads them");
}

#[test]
fn check_calls_a_whole_log_clean() {
    let sample = Sample::closed();
    let text = pontoonctl(sample.dir(), &["check"]).expect(0);
    assert_eq!(last_line(&text), "clean");
    assert!(text.contains("identity: node 7, log "), "{text}");
    assert!(
        text.contains("streams: 3 with 139 entries, none missing\n"),
        "{text}"
    );
    assert!(text.contains("closed in order"), "{text}");

    let report = json(&pontoonctl(sample.dir(), &["check", "--json"]).expect(0));
    assert_eq!(report["clean"], true);
    let mut records = 0;
    for segment in report["segments"].as_array().unwrap() {
        let (id, count) = (&segment["number"], number(&segment["records"]));
        let verdict = match segment["state"].as_str().unwrap() {
            "spare" => "good header, spare".to_owned(),
            state => format!("good header, {state}, {count} good records"),
        };
        let line = format!("segment {id}: {verdict}\n");
        assert!(text.contains(&line), "{line:?} in\n{text}");
        records += count;
    }
    assert_eq!(records, sample.records().len() as u64);
}

#[test]
fn dump_shows_every_record_once() {
    let sample = Sample::closed();
    let records = sample.records();
    let kinds = |kind: &str| records.iter().filter(|r| r["kind"] == kind).count() as u64;
    assert_eq!(kinds("entry"), 3 * COMMITS);
    assert_eq!(kinds("meta"), 2);
    assert_eq!(kinds("truncate"), 1);
    // Four found a stream, one was asked for.
    assert_eq!(kinds("purge"), 5);
    assert_eq!(kinds("drop"), 1);

    let positions: Vec<_> = records
        .iter()
        .map(|record| (number(&record["segment"]), number(&record["offset"])))
        .collect();
    assert!(positions.is_sorted_by(|a, b| a < b), "in the log's order");
    let entry = records.iter().find(|r| r["kind"] == "entry").unwrap();
    assert_eq!(entry["segment"], 1);
    assert_eq!(entry["commit"], 2);
    assert_eq!(entry["epoch"], 1);
    assert_eq!(entry["stream"], 1);
    assert_eq!(entry["index"], 0);
    assert_eq!(entry["payload_bytes"], ENTRY_BYTES);
    let dropped = records.iter().find(|r| r["kind"] == "drop").unwrap();
    assert_eq!(dropped["stream"], 4);
    assert_eq!(dropped["index"], Value::Null);

    let text = pontoonctl(sample.dir(), &["dump"]).expect(0);
    let rows = table(&text, "position");
    assert_eq!(rows.len(), records.len());
    for (row, record) in rows.iter().zip(&records) {
        let offset = number(&record["offset"]);
        assert_eq!(row[0], format!("{}:{offset:#x}", record["segment"]));
        assert_eq!(row[1], record["commit"].to_string());
        assert_eq!(row[2], record["epoch"].to_string());
        assert_eq!(row[3], record["kind"].as_str().unwrap());
        assert_eq!(row[4], record["stream"].to_string());
        assert_eq!(row[5], record["index"].to_string().replace("null", "-"));
        assert_eq!(row[6], record["payload_bytes"].to_string());
    }
}

#[test]
fn dump_filters_by_stream_and_segment() {
    let sample = Sample::closed();
    let all = sample.records();
    type Takes = fn(&Value) -> bool;
    let filters: [(&[&str], Takes); 4] = [
        (&["--stream", "2"], |r| r["stream"] == 2),
        (&["--segment", "2"], |r| r["segment"] == 2),
        (&["--stream", "3", "--segment", "1"], |r| {
            r["stream"] == 3 && r["segment"] == 1
        }),
        (&["--stream", "99"], |_| false),
    ];
    for (words, takes) in filters {
        let out = pontoonctl(sample.dir(), &[&["dump", "--json"], words].concat()).expect(0);
        let expected: Vec<_> = all.iter().filter(|r| takes(r)).cloned().collect();
        assert_eq!(lines_of_json(&out), expected, "{words:?}");
        let out = pontoonctl(sample.dir(), &[&["dump"], words].concat()).expect(0);
        let header = usize::from(!expected.is_empty());
        assert_eq!(out.lines().count(), expected.len() + header, "{words:?}");
    }
}

#[test]
fn a_reader_that_goes_ends_a_dump_quietly() {
    let sample = Sample::closed();
    for words in [&["dump"][..], &["dump", "--json"]] {
        let (code, err) = with_a_reader_that_goes(sample.dir(), words);
        assert_eq!((code, err.as_str()), (0, ""), "{words:?}");
    }
}

#[test]
fn a_reader_that_goes_does_not_change_the_verdict_of_a_check() {
    let sample = Sample::closed();
    fs::remove_file(sample.segment(2)).unwrap();
    let (code, err) = with_a_reader_that_goes(sample.dir(), &["check"]);
    assert_eq!((code, err.as_str()), (1, ""));
}

/// Exit code and stderr when nobody reads what is printed.
fn with_a_reader_that_goes(dir: &Path, words: &[&str]) -> (i32, String) {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let answer = answer(
        Command::new(BINARY)
            .arg("wal")
            .args(words)
            .arg(dir)
            .stdout(writer),
    );
    (answer.code, answer.err)
}

#[test]
fn output_that_cannot_be_written_is_an_error() {
    let sample = Sample::closed();
    for command in ["check", "inspect", "dump"] {
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let answer = answer(
            Command::new(BINARY)
                .args(["wal", command])
                .arg(sample.dir())
                .stdout(full),
        );
        assert!(
            answer.err.contains("writing the output"),
            "{command}: {}",
            answer.err
        );
        answer.expect(2);
    }
}

#[test]
fn a_second_run_counts_as_an_epoch() {
    let sample = Sample::closed();
    close(open(sample.dir()));
    let report = json(&pontoonctl(sample.dir(), &["inspect", "--json"]).expect(0));
    assert_eq!(report["log"]["epoch"], 2);
    assert_eq!(report["log"]["last_commit"], COMMITS + 5);
    pontoonctl(sample.dir(), &["check"]).expect(0);
}

#[test]
fn a_log_that_was_only_made_is_clean() {
    let sample = Sample(tempfile::tempdir().unwrap());
    close(open(sample.dir()));
    let text = pontoonctl(sample.dir(), &["inspect"]).expect(0);
    assert_eq!(table(&text, "stream").len(), 0);
    let text = pontoonctl(sample.dir(), &["check"]).expect(0);
    assert!(text.contains("streams: 0 with 0 entries"), "{text}");
    assert_eq!(pontoonctl(sample.dir(), &["dump"]).expect(0), "");
}

/// After a crash: the closing commit never reached the disk, and then not
/// all of the last one with records.
#[test]
fn a_torn_tail_is_clean_and_told() {
    let sample = Sample::closed();
    let (segment, end) = sample.end();
    let records = sample.records();
    let last = records.last().unwrap();
    assert_eq!(last["segment"], segment, "the last record is in the newest");
    patch(
        &sample.segment(segment),
        end - BLOCK_BYTES,
        BLOCK_BYTES,
        |block| block.fill(0),
    );
    let text = pontoonctl(sample.dir(), &["inspect"]).expect(0);
    assert!(text.contains("closed       not in order\n"), "{text}");
    assert!(
        text.contains("tail         no unacknowledged tail\n"),
        "{text}"
    );

    flip(&sample.segment(segment), number(&last["offset"]) + 1);
    let text = pontoonctl(sample.dir(), &["inspect"]).expect(0);
    assert!(
        text.contains("tail         an unacknowledged tail"),
        "{text}"
    );
    let report = json(&pontoonctl(sample.dir(), &["check", "--json"]).expect(0));
    assert_eq!(report["clean"], true);
    assert_eq!(report["log"]["unacknowledged_tail"], true);
    assert_eq!(report["log"]["closed_in_order"], false);
}

// Broken logs.

/// `check` in text and JSON, both of which must say the same damage; gives
/// the JSON's.
#[track_caller]
fn damage_by_check(sample: &Sample) -> Value {
    let text = pontoonctl(sample.dir(), &["check"]).expect(1);
    let report = json(&pontoonctl(sample.dir(), &["check", "--json"]).expect(1));
    assert_eq!(report["clean"], false);
    assert_eq!(report["log"], Value::Null);
    let damage = &report["damage"];
    let mut line = format!(
        "damaged: {} at offset {:#x}: {}",
        damage["file"].as_str().unwrap(),
        number(&damage["offset"]),
        damage["what"].as_str().unwrap(),
    );
    if let Some(stream) = damage["stream"].as_u64() {
        line += &format!(" (stream {stream}");
        if let Some(index) = damage["index"].as_u64() {
            line += &format!(", index {index}");
        }
        line += ")";
    }
    assert_eq!(last_line(&text), line);
    damage.clone()
}

#[test]
fn a_flipped_byte_is_named_by_file_offset_stream_and_index() {
    let sample = Sample::closed();
    let records = sample.records();
    let hit = records
        .iter()
        .position(|r| r["segment"] == 2 && r["kind"] == "entry" && r["stream"] == 2)
        .map(|first| first + 9)
        .unwrap();
    let record = &records[hit];
    assert_eq!(record["segment"], 2);
    let offset = number(&record["offset"]);
    let payload_middle = offset + RECORD_HEADER_BYTES + ENTRY_BYTES / 2;
    flip(&sample.segment(2), payload_middle);

    let damage = damage_by_check(&sample);
    assert_eq!(damage["file"], sample.segment(2).display().to_string());
    assert_eq!(damage["offset"], offset);
    assert_eq!(damage["what"], "a record is damaged");
    assert_eq!(damage["stream"], record["stream"]);
    assert_eq!(damage["index"], record["index"]);

    let text = pontoonctl(sample.dir(), &["check"]).expect(1);
    assert!(text.contains("segment 1: good header, "), "{text}");
    assert!(
        text.contains("segment 3: good header, records not read\n"),
        "{text}"
    );

    // Opening reads only the footers, and so does inspect.
    pontoonctl(sample.dir(), &["inspect"]).expect(0);

    // A dump shows what comes before the damaged commit, then the damage.
    let commit = number(&record["commit"]);
    let before: Vec<_> = records
        .iter()
        .filter(|r| number(&r["commit"]) < commit)
        .cloned()
        .collect();
    let mut lines = lines_of_json(&pontoonctl(sample.dir(), &["dump", "--json"]).expect(1));
    assert_eq!(lines.pop().unwrap()["damage"], damage);
    assert_eq!(lines, before);
    let answer = pontoonctl(sample.dir(), &["dump"]);
    assert!(answer.err.starts_with("damaged: "), "{}", answer.err);
    assert_eq!(answer.expect(1).lines().count(), before.len() + 1);
}

#[test]
fn a_missing_middle_segment_is_damage() {
    let sample = Sample::closed();
    fs::remove_file(sample.segment(2)).unwrap();
    let damage = damage_by_check(&sample);
    assert_eq!(damage["file"], sample.segment(2).display().to_string());
    assert_eq!(damage["what"], "a segment is missing");
    let text = pontoonctl(sample.dir(), &["inspect"]).expect(1);
    assert!(last_line(&text).starts_with("damaged: "), "{text}");
    let segments = table(&text, "segment");
    assert_eq!((segments[0][0], segments[1][0]), ("1", "3"));
    pontoonctl(sample.dir(), &["dump"]).expect(1);
}

#[test]
fn a_missing_newest_segment_is_damage() {
    let sample = Sample::closed();
    let (newest, _) = sample.end();
    for id in newest..newest + 4 {
        // Spares, too, as many as there are.
        let _ = fs::remove_file(sample.segment(id));
    }
    let damage = damage_by_check(&sample);
    assert_eq!(damage["file"], sample.segment(newest).display().to_string());
}

#[test]
fn another_version_is_refused() {
    let segment = segment_name(SegmentId(2));
    for (name, header_bytes) in [("identity", 40), (segment.as_str(), 56)] {
        let sample = Sample::closed();
        let path = sample.dir().join(name);
        patch(&path, 0, header_bytes, |header| {
            header[4] = 9;
            let sum = crc32fast::hash(&header[4..]);
            header[..4].copy_from_slice(&sum.to_le_bytes());
        });
        let damage = damage_by_check(&sample);
        assert_eq!(damage["file"], path.display().to_string());
        assert_eq!(damage["offset"], 4);
        let what = damage["what"].as_str().unwrap();
        assert!(what.contains("format version 9"), "{what}");
        pontoonctl(sample.dir(), &["inspect"]).expect(1);
        pontoonctl(sample.dir(), &["dump"]).expect(1);
    }
}

#[test]
fn a_file_of_something_else_is_damage() {
    let sample = Sample::closed();
    patch(&sample.segment(3), 8, 1, |magic| magic[0] ^= 1);
    let damage = damage_by_check(&sample);
    assert_eq!(damage["file"], sample.segment(3).display().to_string());
    let text = pontoonctl(sample.dir(), &["check"]).expect(1);
    assert!(text.contains("segment 3: bad header: "), "{text}");
    let text = pontoonctl(sample.dir(), &["inspect"]).expect(1);
    assert_eq!(table(&text, "segment")[2][2], "bad");
}

#[test]
fn a_short_segment_is_damage() {
    let sample = Sample::closed();
    let file = OpenOptions::new()
        .write(true)
        .open(sample.segment(2))
        .unwrap();
    for bytes in [SEGMENT_BYTES / 2, 100, 0] {
        file.set_len(bytes).unwrap();
        let damage = damage_by_check(&sample);
        assert_eq!(damage["file"], sample.segment(2).display().to_string());
        pontoonctl(sample.dir(), &["inspect"]).expect(1);
    }
}

#[test]
fn a_missing_identity_is_damage() {
    let sample = Sample::closed();
    fs::remove_file(sample.dir().join("identity")).unwrap();
    let damage = damage_by_check(&sample);
    assert!(damage["file"].as_str().unwrap().ends_with("/identity"));
}

// No logs.

#[test]
fn where_there_is_no_log_there_is_no_verdict() {
    let empty = tempfile::tempdir().unwrap();
    let nowhere = empty.path().join("nowhere");
    let file = tempfile::NamedTempFile::new().unwrap();
    let other = tempfile::tempdir().unwrap();
    fs::write(other.path().join("notes.txt"), "not a log").unwrap();
    for command in ["check", "inspect", "dump"] {
        for dir in [empty.path(), &nowhere, file.path(), other.path()] {
            for words in [&[command][..], &[command, "--json"]] {
                let answer = pontoonctl(dir, words);
                let named = answer.err.contains(&dir.display().to_string());
                assert!(named, "{words:?} {}: {}", dir.display(), answer.err);
                assert_eq!(answer.expect(2), "");
            }
        }
    }
}

#[test]
fn wrong_usage_exits_with_2() {
    let sample = Sample::closed();
    for words in [
        &["frobnicate"][..],
        &["check", "--stream", "1"],
        &["dump", "--stream", "x"],
        &["dump", "--segment", "-1"],
    ] {
        let answer = pontoonctl(sample.dir(), words);
        assert!(!answer.err.is_empty());
        answer.expect(2);
    }
}

#[test]
fn every_help_has_an_example() {
    for words in [
        &[][..],
        &["wal", "check"],
        &["wal", "inspect"],
        &["wal", "dump"],
    ] {
        let help = answer(
            Command::new(BINARY)
                .args(words)
                .arg("--help")
                .stdout(Stdio::piped()),
        )
        .expect(0);
        assert!(help.contains("Example: pontoonctl wal "), "{help}");
    }
}

// Logs in use.

#[test]
fn an_open_log_can_be_inspected_but_not_checked() {
    let sample = Sample(tempfile::tempdir().unwrap());
    let wal = open(sample.dir());
    block_on(fill(&wal));

    let answer = pontoonctl_in_motion(sample.dir(), &["check"]);
    assert!(answer.err.contains("stop the node first"), "{}", answer.err);
    assert_eq!(answer.expect(2), "");

    let warning = "pontoonctl: in use by a running process: the newest entries may be in motion\n";
    let answer = pontoonctl_in_motion(sample.dir(), &["inspect", "--json"]);
    assert_eq!(answer.err, warning);
    let report = json(&answer.expect(0));
    assert_eq!(report["in_use"], true);
    assert_eq!(report["log"]["closed_in_order"], false);
    assert_eq!(report["log"]["streams"][0]["entries"], COMMITS);

    let answer = pontoonctl_in_motion(sample.dir(), &["dump", "--stream", "1"]);
    assert_eq!(answer.err, warning);
    answer.expect(0);

    close(wal);
    pontoonctl(sample.dir(), &["check"]).expect(0);
}

/// The lock alone makes the difference; with nobody writing, the directory
/// must stay as it is here as well.
#[test]
fn a_held_lock_is_respected_and_left_alone() {
    let sample = Sample::closed();
    let lock = File::open(sample.dir().join("lock")).unwrap();
    lock.try_lock().unwrap();
    pontoonctl(sample.dir(), &["check"]).expect(2);
    for command in ["inspect", "dump"] {
        let answer = pontoonctl(sample.dir(), &[command]);
        assert!(answer.err.contains("in use"), "{}", answer.err);
        answer.expect(0);
    }
    lock.unlock().unwrap();
    let answer = pontoonctl(sample.dir(), &["inspect"]);
    assert_eq!(answer.err, "");
    answer.expect(0);
}

#[test]
fn a_damaged_footer_is_told_though_a_node_would_do_without_it() {
    let sample = Sample::closed();
    let report = json(&pontoonctl(sample.dir(), &["inspect", "--json"]).expect(0));
    assert_eq!(report["segments"][1]["state"], "sealed");
    let end = number(&report["segments"][1]["end"]);
    flip(&sample.segment(2), end + 20);
    let report = json(&pontoonctl(sample.dir(), &["check", "--json"]).expect(1));
    assert_eq!(report["damage"]["offset"], end);
    let what = report["damage"]["what"].as_str().unwrap();
    assert!(what.contains("footer is damaged"), "{what}");
    assert_ne!(report["log"], Value::Null, "it can still be opened");
}
