//! A member opens what an earlier release left: its log, its trees, and what
//! the root group knows.
//!
//! `tests/golden` has a directory for each version, as a crash leaves it: the
//! files of the member, cut where only zeros follow, their sizes in `sizes`,
//! and in `content` what it answers. (Samples of each record and entry are
//! beside it: `src/format/tests.rs`.)

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use pontoon_engine::{Answer, KeyRange, Op, Range, Request, Revision, Txn};
use pontoon_raftgroup::{Alarm, Config, FormatVersion, Node, NodeId};
use pontoon_wal::disk::sim::SimDisk;

use crate::cluster::{Client, Cluster, LONG, ROOT, pause, put, simulate, until};

/// Where a member's files are.
const DATA: &str = "/data";

fn golden(version: u8) -> PathBuf {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    dir.join(format!("member-v{version}"))
}

fn small(config: &mut Config) {
    config.segment_bytes = 64 << 10;
    // Some of it is in trees, the rest only in the log.
    config.log_bytes_max = 4 << 10;
}

/// A group that was there from the beginning, and one that is split off.
async fn start() -> Cluster {
    Cluster::start_with(1, &["m"], small).await
}

/// All that a member answers.
async fn content(node: &Node) -> String {
    let mut text = String::new();
    let mut line = |what: String| writeln!(text, "{what}").expect("memory");
    let map = node.map().expect("it is known");
    for (placed, keys) in map.ranges() {
        line(format!("{placed:?}: {keys:?}"));
    }
    line(format!("{:?} {:?}", node.members(), node.alarms()));
    line(format!("floor {}", node.floor()));
    for lease in node.leases() {
        let status = node.lease_status(lease, true, LONG).await;
        let status = status.expect("it answers").expect("it is there");
        let (ttl, keys) = (status.granted_secs, status.keys);
        line(format!("lease {lease}: {ttl} s, {keys:?}"));
    }
    // An earlier revision, and the newest one.
    for revision in [20, 0] {
        let mut range = Range::of(KeyRange::all());
        range.revision = revision;
        let answer = node.request(Request::Range(range), LONG).await;
        let Ok(Answer::Range(answer)) = answer else {
            panic!("{answer:?}");
        };
        line(format!("at {revision}:"));
        for kv in answer.kvs {
            line(format!("{kv:?}"));
        }
    }
    text
}

/// Run by hand when there is a new version:
/// `cargo test -p pontoon-raftgroup --test rules golden -- --ignored`.
#[test]
#[ignore = "it makes what the test below reads"]
fn make_a_golden_member() {
    simulate(async {
        let cluster = start().await;
        let node = cluster.node(1);
        for count in 0..30 {
            node.put(["a", "b", "n", "z"][count % 4], &format!("value {count}"))
                .await;
        }
        node.lease_grant(7, 1_000_000, LONG)
            .await
            .expect("it is granted");
        let leased = |key: &str| {
            let mut put = put(key, "on a lease");
            put.lease = 7;
            Op::Put(put)
        };
        // Over both groups.
        let txn = Txn {
            success: vec![
                leased("c"),
                leased("o"),
                Op::Put(put("p", &"large".repeat(500))),
            ],
            ..Txn::default()
        };
        node.txn(txn, LONG).await.expect("it is done");
        node.compact(Revision(9), LONG)
            .await
            .expect("it is compacted");
        let child = node.split(Bytes::from_static(b"t"), LONG).await;
        child.expect("it is split");
        node.delete("a").await;
        node.put("zz", "in the child").await;
        let alarm = node.alarm(NodeId(1), Alarm::Corrupt, true, LONG);
        alarm.await.expect("it is raised");
        let alarm = node.alarm(NodeId(1), Alarm::NoSpace, true, LONG);
        alarm.await.expect("it is raised");
        let alarm = node.alarm(NodeId(1), Alarm::Corrupt, false, LONG);
        alarm.await.expect("it is over");
        pause(3000).await;
        let disk = cluster.disk(1).process_kill();
        let kept = golden(FormatVersion::NEWEST.0);
        fs::create_dir_all(&kept).expect("a directory");
        fs::write(kept.join("content"), content(&node).await).expect("a file");
        let mut sizes = String::new();
        for path in disk.paths() {
            let bytes = disk.read_file(&path).expect("it is there");
            let below = path.strip_prefix(DATA).expect("it is the member's");
            let name = below.display().to_string();
            writeln!(sizes, "{name} {}", bytes.len()).expect("memory");
            let end = bytes.iter().rposition(|byte| *byte != 0);
            let bytes = &bytes[..end.map_or(0, |end| end + 1)];
            fs::write(kept.join(name.replace('/', "-")), bytes).expect("a file");
        }
        fs::write(kept.join("sizes"), sizes).expect("a file");
    });
}

#[test]
fn a_member_of_every_version_is_opened_and_has_what_it_had() {
    for version in 1..=FormatVersion::NEWEST.0 {
        let kept = golden(version);
        let sizes = fs::read_to_string(kept.join("sizes")).expect("it is kept");
        let files = sizes.lines().map(|line| {
            let (name, bytes) = line.split_once(' ').expect("a name and a size");
            let mut content = fs::read(kept.join(name.replace('/', "-"))).expect("it is kept");
            content.resize(bytes.parse().expect("a size"), 0);
            (Path::new(DATA).join(name), content)
        });
        let disk = SimDisk::from_files(files);
        let expected = fs::read_to_string(kept.join("content")).expect("it is kept");
        simulate(async {
            let mut cluster = start().await;
            cluster.kill(1);
            cluster.set_disk(1, disk);
            cluster.start_again(1).await;
            let node = cluster.node(1);
            until(|| node.map().is_some_and(|map| map.ranges().count() == 3)).await;
            cluster.until_led(ROOT).await;
            assert_eq!(content(&node).await, expected, "version {version}");
            // It goes on, and so does the next start.
            let alarm = node.alarm(NodeId(1), Alarm::NoSpace, false, LONG);
            alarm.await.expect("it is over");
            for key in ["a", "n", "z"] {
                node.put(key, "new").await;
            }
            node.lease_revoke(7, LONG).await.expect("it is revoked");
            let more = content(&node).await;
            pause(3000).await;
            cluster.kill(1);
            cluster.start_again(1).await;
            let node = cluster.node(1);
            cluster.until_led(ROOT).await;
            assert_eq!(content(&node).await, more, "version {version}");
        });
    }
}
