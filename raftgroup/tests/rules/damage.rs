//! Bits flip on a disk: what was damaged is found, not trusted, and rebuilt.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use pontoon_engine::{Applied, Effect, Entry, Step, Store};
use pontoon_raftgroup::{Alarm, Config, GroupId, Node, NodeId};
use pontoon_wal::disk::sim::SimDisk;
use tokio::time::Instant;

use crate::cluster::{Client, Cluster, ROOT, pause, simulate, until, use_all, value};

/// The group beside the root group.
const OTHER: GroupId = GroupId(1);

/// One in each of the two.
const KEYS: [&str; 2] = ["a", "n"];

/// Stores are written to disk all the time.
fn eager(config: &mut Config) {
    config.log_bytes_max = 1;
}

/// The log has small files; stores are written to disk late, if at all.
fn in_pieces(config: &mut Config) {
    config.segment_bytes = 128 << 10;
}

fn eager_in_pieces(config: &mut Config) {
    eager(config);
    in_pieces(config);
}

/// Three nodes and two groups with some keys in them, all of it on disk.
async fn filled(value_bytes: usize, change: impl Fn(&mut Config)) -> Cluster {
    let cluster = Cluster::start_with(3, &["m"], change).await;
    for n in 0..100 {
        for key in KEYS {
            let name = format!("{key}{n:03}");
            let value = format!("<{name}>{}", "x".repeat(value_bytes));
            cluster.node(1).put(&name, &value).await;
        }
    }
    pause(1000).await;
    cluster
}

/// Whether a key has the value that it got there.
async fn is_there(node: &Node, key: &str) -> bool {
    let read = node.get(key).await;
    value(&read).0.starts_with(&format!("<{key}>"))
}

fn tree(group: GroupId) -> PathBuf {
    Path::new("/data/trees").join(format!("{group}.tree"))
}

/// Damages what says where everything else is.
fn damage_head(disk: &SimDisk, group: GroupId) {
    for page in 0..2 {
        disk.flip_bit(&tree(group), 8 * (4096 * page + 40));
    }
}

/// Damages a value, one that is far back in the file; returns its key.
fn damage_value(disk: &SimDisk, group: GroupId) -> String {
    let file = disk.read_file(&tree(group)).expect("it is there");
    let key = KEYS[group.0 as usize];
    let mark = format!("<{key}");
    let found = file
        .windows(mark.len())
        .rposition(|at| at == mark.as_bytes());
    let at = found.expect("it is there");
    disk.flip_bit(&tree(group), 8 * (at as u64 + 100));
    let name = &file[at + 1..at + 5];
    String::from_utf8(name.to_vec()).expect("text")
}

/// Damages the older part of the log. (What is damaged at its end looks as if
/// it had never been written.)
fn damage_log(disk: &SimDisk) {
    let paths = disk.paths().into_iter();
    let logs = paths.filter(|path| path.extension().is_some_and(|end| end == "wal"));
    let logs: Vec<_> = logs.collect();
    assert!(logs.len() > 4, "{logs:?}");
    for path in &logs[..2] {
        let bytes = disk.read_file(path).expect("it is there").len() as u64;
        for sector in 0..bytes / 512 {
            disk.flip_bit(path, 8 * (512 * sector + 100));
        }
    }
}

/// Waits until a node's replica of a group is whole and has everything.
async fn until_whole(cluster: &Cluster, id: u64, group: GroupId) {
    let applied = |id| cluster.replica(id, group).map(|one| one.applied);
    let others = cluster.running().into_iter().filter(|one| *one != id);
    let most = others.map(applied).max().flatten();
    until(|| !cluster.node(id).damaged().contains_key(&group) && applied(id) >= most).await;
}

/// Node 3 is whole again: it holds the same as the others, and its votes
/// count, so that one of the others may go.
async fn is_rebuilt(cluster: &mut Cluster) {
    for group in [ROOT, OTHER] {
        until_whole(cluster, 3, group).await;
    }
    pause(5000).await;
    for group in [ROOT, OTHER] {
        let (here, there) = (
            cluster.node(3).content(group),
            cluster.node(2).content(group),
        );
        assert_eq!(here, there, "group {group}");
    }
    cluster.kill(1);
    use_all(&cluster.node(3), &KEYS).await;
    assert!(cluster.node(3).alarms().is_empty());
}

#[test]
fn a_damaged_tree_is_found_when_it_is_opened_and_rebuilt() {
    simulate(async {
        let mut cluster = filled(800, eager).await;
        cluster.kill(3);
        damage_head(cluster.disk(3), OTHER);
        // Nobody tells it yet what to do.
        cluster.network.isolate(NodeId(3));
        cluster.start_again(3).await;
        until(|| cluster.node(3).damaged().contains_key(&OTHER)).await;
        assert_eq!(cluster.replica(3, OTHER), None);
        cluster.network.rejoin(NodeId(3));
        use_all(&cluster.node(1), &KEYS).await;
        is_rebuilt(&mut cluster).await;
    });
}

#[test]
fn a_damaged_tree_is_found_when_it_is_read_and_rebuilt() {
    simulate(async {
        let mut cluster = filled(800, eager).await;
        cluster.kill(3);
        let key = damage_value(cluster.disk(3), OTHER);
        cluster.start_again(3).await;
        until(|| cluster.replica(3, OTHER).is_some()).await;
        let read = cluster.node(3).get_here(&key).await;
        assert!(read.is_err(), "{read:?}");
        until(|| cluster.node(3).damaged().contains_key(&OTHER)).await;
        use_all(&cluster.node(1), &KEYS).await;
        is_rebuilt(&mut cluster).await;
        assert!(is_there(&cluster.node(3), &key).await);
    });
}

#[test]
fn a_damaged_tree_is_found_though_nobody_reads_it() {
    simulate(async {
        let mut cluster = filled(800, eager).await;
        cluster.kill(3);
        damage_value(cluster.disk(3), OTHER);
        cluster.start_again(3).await;
        until(|| cluster.node(3).damaged().contains_key(&OTHER)).await;
        is_rebuilt(&mut cluster).await;
    });
}

#[test]
fn who_leads_while_its_root_replica_is_rebuilt_hands_over() {
    simulate(async {
        let mut cluster = filled(800, eager).await;
        cluster.lead(ROOT, 1).await;
        cluster.kill(3);
        damage_value(cluster.disk(3), ROOT);
        cluster.start_again(3).await;
        let is_rebuilding = || cluster.node(3).damaged().contains_key(&ROOT);
        // Without node 3, the root group needs the slow disk for every entry,
        // so that it leads meanwhile.
        cluster.slow_disk(2, 900);
        until(is_rebuilding).await;
        while cluster.leader(OTHER, &[3]) != Some(3) {
            assert!(is_rebuilding(), "it leads too late");
            let leader = cluster.leader(OTHER, &[1, 2]).unwrap_or(1);
            cluster.node(leader).transfer(OTHER, NodeId(3)).await;
            pause(50).await;
        }
        assert!(is_rebuilding());
        cluster.slow_disk(2, 0);
        // It leads, knows nothing of the root group, and so does nothing.
        until(|| cluster.leader(OTHER, &[1, 2]) != Some(3)).await;
        use_all(&cluster.node(1), &KEYS).await;
        is_rebuilt(&mut cluster).await;
    });
}

#[test]
fn with_a_damaged_log_all_replicas_are_rebuilt() {
    simulate(async {
        let mut cluster = filled(800, eager_in_pieces).await;
        cluster.kill(3);
        damage_log(cluster.disk(3));
        cluster.start_again(3).await;
        let aside = |path: &PathBuf| path.to_string_lossy().ends_with(".damaged");
        assert!(cluster.disk(3).paths().iter().any(aside));
        is_rebuilt(&mut cluster).await;
    });
}

/// Only nodes 1 and 3 have what was acknowledged last, and then node 3 may
/// have lost it. Did it vote, node 2 would lead without it.
async fn no_vote(change: impl Fn(&mut Config), damage: impl Fn(&SimDisk)) {
    let mut cluster = filled(800, change).await;
    cluster.lead(OTHER, 1).await;
    cluster.node(1).put("n", "old").await;
    pause(500).await;
    cluster.network.isolate(NodeId(2));
    cluster.node(1).put("n", "new").await;
    cluster.kill(1);
    cluster.kill(3);
    damage(cluster.disk(3));
    cluster.network.rejoin(NodeId(2));
    let opened = cluster.try_again(3, Duration::from_secs(10)).await;
    let written = cluster
        .node(2)
        .put_within("n", "no", Duration::from_secs(10))
        .await;
    assert!(written.is_err(), "{written:?}");
    match opened {
        // It may have its root replica: that is not enough.
        Some(opened) => {
            opened.expect("it opens");
            assert!(cluster.node(3).damaged().contains_key(&OTHER));
            assert_eq!(cluster.replica(3, OTHER), None);
            let read = cluster.node(3).get_here("n").await;
            assert!(read.is_err(), "{read:?}");
            cluster.start_again(1).await;
        }
        None => {
            cluster.start_again(1).await;
            cluster.start_again(3).await;
        }
    }
    assert_eq!(value(&cluster.node(2).get("n").await).0, "new");
    is_rebuilt(&mut cluster).await;
}

#[test]
fn a_replica_with_a_damaged_tree_neither_serves_nor_votes() {
    simulate(no_vote(eager, |disk| damage_head(disk, OTHER)));
}

#[test]
fn a_node_with_a_damaged_log_neither_serves_nor_votes() {
    simulate(no_vote(eager_in_pieces, damage_log));
}

/// Without their log these stores look as if they were new.
#[test]
fn a_node_with_a_damaged_log_and_empty_trees_neither_serves_nor_votes() {
    simulate(no_vote(in_pieces, damage_log));
}

/// The leader of the group hears late that it must not count node 5.
#[test]
fn a_damaged_replica_begins_anew_only_when_its_group_does_not_count_it() {
    simulate(async {
        let mut cluster = Cluster::start_with(5, &["m"], eager).await;
        cluster.lead(ROOT, 1).await;
        cluster.lead(OTHER, 2).await;
        use_all(&cluster.node(1), &KEYS).await;
        pause(500).await;
        cluster.kill(5);
        damage_head(cluster.disk(5), OTHER);
        cluster.slow(1, 2, 600);
        cluster.start_again(5).await;
        until(|| cluster.node(5).damaged().contains_key(&OTHER)).await;
        pause(400).await;
        assert!(cluster.node(5).damaged().contains_key(&OTHER));
        cluster.slow(1, 2, 0);
        until_whole(&cluster, 5, OTHER).await;
    });
}

/// The node that leads the root group has to ask itself. It finds the damage
/// when it looks at everything again.
async fn damaged_leader(group: GroupId) {
    let mut cluster = filled(800, eager).await;
    cluster.lead(ROOT, 3).await;
    pause(5000).await;
    assert_eq!(cluster.leader(ROOT, &[1, 2, 3]), Some(3));
    let key = damage_value(cluster.disk(3), group);
    let begun = Instant::now();
    while !cluster.node(3).damaged().contains_key(&group) {
        assert!(begun.elapsed() < Duration::from_secs(1000));
        pause(10).await;
    }
    use_all(&cluster.node(1), &KEYS).await;
    is_rebuilt(&mut cluster).await;
    assert!(is_there(&cluster.node(3), &key).await);
}

#[test]
fn the_root_groups_leader_rebuilds_another_replica_of_its_own() {
    simulate(damaged_leader(OTHER));
}

#[test]
fn the_root_groups_leader_rebuilds_its_root_replica() {
    simulate(damaged_leader(ROOT));
}

/// The power fails at one operation of the rebuilding after the other. What is
/// left is damaged, or knows in which term its group stopped counting it.
async fn power_cuts(cluster: &mut Cluster, damaged: &SimDisk, every: usize) {
    let groups = [ROOT, OTHER];
    let terms = groups.map(|group| cluster.replica(1, group).expect("it is there").term);
    let few = Duration::from_secs(3);
    let (mut again, mut begun) = (0, 0);
    for operations in (1..).step_by(every) {
        let disk = damaged.fork();
        disk.crash_at(disk.operations() + operations);
        cluster.set_disk(3, disk.clone());
        if let Some(Ok(())) = cluster.try_again(3, few).await {
            let whole = || {
                groups
                    .iter()
                    .all(|group| cluster.replica(3, *group).is_some())
            };
            until(|| disk.crashed() || whole()).await;
            cluster.kill(3);
        }
        cluster.set_disk(3, disk.power_cut(operations));
        cluster.network.isolate(NodeId(3));
        // If its root replica is damaged, it asks others, who don't hear it.
        if let Some(opened) = cluster.try_again(3, few).await {
            opened.expect("it opens");
            let is_damaged = || cluster.node(3).damaged().contains_key(&OTHER);
            // (One that begins anew knows of no other group yet.)
            let knows = || cluster.node(3).map().is_some();
            until(|| is_damaged() || cluster.replica(3, OTHER).is_some() || !knows()).await;
            again += u64::from(is_damaged());
            for (group, term) in groups.iter().zip(terms) {
                if let Some(replica) = cluster.replica(3, *group) {
                    assert!(replica.term >= term, "after {operations}: {replica:?}");
                }
            }
            begun += u64::from(!is_damaged());
            cluster.kill(3);
        } else {
            again += 1;
        }
        cluster.network.rejoin(NodeId(3));
        if !disk.crashed() {
            break;
        }
    }
    assert!(again > 3 && begun > 0, "{again} {begun}");
    cluster.start_again(3).await;
    is_rebuilt(cluster).await;
}

/// Two groups that have had some leaders; then node 3 is gone, and damaged.
async fn led_by_many(change: impl Fn(&mut Config)) -> Cluster {
    let mut cluster = filled(800, change).await;
    for leader in [1, 2, 1, 2, 1] {
        cluster.lead(OTHER, leader).await;
        cluster.lead(ROOT, leader).await;
    }
    pause(500).await;
    cluster.kill(3);
    cluster
}

#[test]
fn a_power_cut_while_a_replica_is_rebuilt_never_leaves_a_new_voter() {
    simulate(async {
        let mut cluster = led_by_many(eager).await;
        damage_head(cluster.disk(3), OTHER);
        let damaged = cluster.disk(3).process_kill();
        power_cuts(&mut cluster, &damaged, 1).await;
    });
}

#[test]
fn a_power_cut_while_a_log_is_replaced_never_leaves_a_new_voter() {
    simulate(async {
        let mut cluster = led_by_many(in_pieces).await;
        damage_log(cluster.disk(3));
        let damaged = cluster.disk(3).process_kill();
        power_cuts(&mut cluster, &damaged, 1).await;
    });
}

/// An entry does something else to the store of node 3 than to the others.
#[test]
fn a_replica_that_holds_something_else_raises_an_alarm() {
    simulate(async {
        let often = |config: &mut Config| {
            config.log_bytes_max = 50_000;
            config.compare_every = Duration::from_secs(2);
        };
        let mut cluster = Cluster::start_with(3, &["m"], often).await;
        cluster.lead(OTHER, 1).await;
        for _ in 0..30 {
            cluster.node(1).put("n", &"x".repeat(2000)).await;
        }
        pause(5000).await;
        assert_eq!(cluster.node(1).alarms(), []);
        cluster.kill(3);
        write_something_else(cluster.disk(3));
        cluster.start_again(3).await;
        cluster.node(1).put("p", "x").await;
        until(|| cluster.node(1).alarms() == [(Alarm::Corrupt, NodeId(3))]).await;
        assert_ne!(
            cluster.node(3).content(OTHER),
            cluster.node(1).content(OTHER)
        );
        assert_eq!(
            cluster.node(2).content(OTHER),
            cluster.node(1).content(OTHER)
        );
    });
}

/// Applies the next entry to the store on a disk, which is a put, as another.
fn write_something_else(disk: &SimDisk) {
    let config = pontoon_engine::Config {
        store: 7 + u128::from(OTHER.0),
        ..pontoon_engine::Config::default()
    };
    let store = Store::open(disk, &tree(OTHER), config).expect("it opens");
    let applied = store.applied();
    let effect = Effect::Put {
        key: Bytes::from("o"),
        value: Bytes::from("wrong"),
        lease: 0,
    };
    let entry = Entry {
        applied: Applied {
            index: applied.index + 1,
            ..applied
        },
        steps: vec![Step::Write {
            revision: store.last_revision().next(),
            effects: [effect].into_iter().collect(),
        }],
    };
    store.apply(&entry).expect("it is applied");
    store.checkpoint().expect("it is written");
}
