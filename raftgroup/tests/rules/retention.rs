//! How much log is kept: for followers that lack it, within a budget.

use std::path::Path;

use pontoon_raftgroup::{Member, NodeId};
use pontoon_wal::disk::Disk;

use crate::cluster::{Client, Cluster, LONG, ROOT, simulate, until};

/// So few that a snapshot under way would be overtaken at once.
const ENTRIES_KEPT: u64 = 20;

/// A cluster whose logs have been shortened, and a fourth member that was taken
/// in and doesn't run yet.
async fn about_to_join(kept_bytes: u64) -> (Cluster, u64) {
    let cluster = Cluster::start_with(3, &[], |config| {
        config.log_entries_kept = ENTRIES_KEPT;
        config.log_bytes_max = 20 << 10;
        config.log_kept_bytes = kept_bytes;
    })
    .await;
    let leader = cluster.until_led_among(ROOT, &[1, 2, 3]).await;
    let value = "v".repeat(2000);
    for i in 0..300 {
        cluster.node(leader).put(&format!("k{i:03}"), &value).await;
    }
    let learner = Member {
        address: String::new(),
        learner: true,
    };
    let node = cluster.node(leader);
    let added = node.member_add(NodeId(4), learner, LONG).await;
    added.expect("it is taken in");
    (cluster, leader)
}

/// Joins under load; how many snapshots it took, and how many entries the
/// leader's log got while the first was under way.
async fn join_under_load(cluster: &mut Cluster, leader: u64) -> (u64, u64) {
    cluster.slow(leader, 4, 300);
    let before = cluster.replica(leader, ROOT).expect("it leads").last.0;
    let id = cluster.join().await;
    let node = cluster.node(leader);
    let snapshots = |cluster: &Cluster| cluster.replica(id, ROOT).map_or(0, |one| one.snapshots);
    let value = "w".repeat(200);
    for i in 0.. {
        node.put(&format!("k{:03}", i % 300), &value).await;
        assert!(i < 20_000, "no snapshot came");
        if snapshots(cluster) > 0 {
            break;
        }
    }
    let during = cluster.replica(leader, ROOT).expect("it leads").last.0 - before;
    for i in 0..200 {
        node.put(&format!("k{i:03}"), &value).await;
    }
    let applied = |id| cluster.replica(id, ROOT).map(|one| one.applied);
    until(|| applied(id) == applied(leader)).await;
    (snapshots(cluster), during)
}

#[test]
fn a_replica_that_joins_under_load_needs_one_snapshot() {
    simulate(async {
        let (mut cluster, leader) = about_to_join(64 << 20).await;
        let (snapshots, during) = join_under_load(&mut cluster, leader).await;
        assert!(during > 4 * ENTRIES_KEPT, "only {during} entries");
        assert_eq!(snapshots, 1);
    });
}

/// Bytes of all files of a member's log.
fn log_bytes(cluster: &Cluster, id: u64) -> u64 {
    let (disk, dir) = (cluster.disk(id), Path::new("/data/wal"));
    let names = disk.list(dir).expect("it has a log");
    let size = |name: &String| {
        let file = disk.open(&dir.join(name), false);
        file.and_then(|file| file.size()).unwrap_or(0)
    };
    names.iter().map(size).sum()
}

async fn stays_within(splits: &[&'static str]) {
    const LOG_BYTES_MAX: u64 = 2 << 20;
    let cluster = Cluster::start_with(3, splits, |config| {
        config.segment_bytes = 64 << 10;
        config.keep_log_within(LOG_BYTES_MAX);
    })
    .await;
    let value = "v".repeat(8000);
    let mut most = 0;
    for i in 0..1200 {
        let first = b'a' + (i % 20) as u8;
        let key = format!("{}{:02}", char::from(first), i % 60);
        cluster.node(1).put(&key, &value).await;
        if i % 16 == 0 {
            most = (1..=3)
                .map(|id| log_bytes(&cluster, id))
                .fold(most, u64::max);
        }
    }
    assert!(most <= LOG_BYTES_MAX, "{most} bytes");
    assert!(
        most > LOG_BYTES_MAX / 8,
        "only {most} bytes: nothing is kept"
    );
}

#[test]
fn after_many_large_puts_the_log_is_within_its_size() {
    simulate(stays_within(&[]));
}

#[test]
fn the_groups_of_a_node_share_the_size_of_the_log() {
    simulate(stays_within(&[
        "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p", "z",
    ]));
}

/// A follower that is away is waited for within the budget, and no longer.
#[test]
fn a_follower_that_is_away_is_not_waited_for_beyond_the_budget() {
    for (kept_bytes, snapshots) in [(64 << 20, 0), (100 << 10, 1)] {
        simulate(async {
            let cluster = Cluster::start_with(3, &[], |config| {
                config.log_entries_kept = ENTRIES_KEPT;
                config.log_bytes_max = 20 << 10;
                config.log_kept_bytes = kept_bytes;
            })
            .await;
            let leader = cluster.until_led_among(ROOT, &[1, 2, 3]).await;
            let away = leader % 3 + 1;
            cluster.network.isolate(NodeId(away));
            let value = "v".repeat(2000);
            for i in 0..300 {
                cluster.node(leader).put(&format!("k{i:03}"), &value).await;
            }
            cluster.network.heal_all();
            let applied = |id| cluster.replica(id, ROOT).map(|one| one.applied);
            until(|| applied(away) == applied(leader)).await;
            let replica = cluster.replica(away, ROOT).expect("it is there");
            assert_eq!(replica.snapshots, snapshots, "{kept_bytes} bytes");
        });
    }
}
