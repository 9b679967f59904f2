//! A record that can't be read or decoded stops its replica, which is rebuilt.
//! It never counts as a record that isn't there.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use pontoon_engine::{Applied, Entry, Op, Step, Store, Txn};
use pontoon_raftgroup::{Config, GroupId, Node, NodeId};
use pontoon_wal::disk::sim::SimDisk;
use tokio::task::spawn_local;

use crate::cluster::{Client, Cluster, LONG, ROOT, pause, put, simulate, until, use_all};

/// The group beside the root group.
const OTHER: GroupId = GroupId(1);

/// One in each of the two.
const KEYS: [&str; 2] = ["a", "n"];

/// Stores are written to disk all the time.
fn eager(config: &mut Config) {
    config.log_bytes_max = 1;
}

/// The stores on disk are behind the log.
fn late(config: &mut Config) {
    config.log_bytes_max = 50_000;
}

fn tree(group: GroupId) -> PathBuf {
    Path::new("/data/trees").join(format!("{group}.tree"))
}

/// Writes to both groups.
fn both(value: &str) -> Txn {
    Txn {
        success: KEYS.iter().map(|key| Op::Put(put(key, value))).collect(),
        ..Txn::default()
    }
}

/// Where the contents of records of transactions begin in a tree, behind their
/// version, in all checkpoints that are in it.
fn txn_records(disk: &SimDisk, group: GroupId) -> Vec<usize> {
    const PREFIX: &[u8] = b"\x01txn/";
    let file = disk.read_file(&tree(group)).expect("it is there");
    let starts = file.windows(PREFIX.len()).enumerate();
    let starts = starts.filter(|(_, bytes)| *bytes == PREFIX);
    let contents = starts.map(|(start, _)| {
        let mut at = start + PREFIX.len();
        // The two numbers of its name, and the length of the content.
        for _ in 0..3 {
            at += file[at..]
                .iter()
                .position(|byte| *byte < 0x80)
                .expect("an end")
                + 1;
        }
        at + 1
    });
    contents.collect()
}

/// What the records of transactions on disk begin with: their fates.
fn fates(disk: &SimDisk, group: GroupId) -> Vec<u8> {
    let file = disk.read_file(&tree(group)).expect("it is there");
    let records = txn_records(disk, group);
    records.into_iter().map(|at| file[at]).collect()
}

const COMMITTED: u8 = 2;

/// Whether a node has an undecided prepare in a group.
fn is_open(node: &Node, group: GroupId) -> bool {
    let key = KEYS[group.0 as usize];
    node.undecided(group, key.as_bytes()).is_some()
}

/// A transaction over both groups is acknowledged and committed in the root
/// group, which node 1 leads. The coordinator dies before the other group,
/// which node 2 leads, hears of it.
async fn half_decided(cluster: &mut Cluster) {
    cluster.lead(ROOT, 1).await;
    cluster.lead(OTHER, 2).await;
    use_all(&cluster.node(3), &KEYS).await;
    let node = cluster.node(3);
    let done = spawn_local(async move { node.txn(both("new"), LONG).await });
    while !is_open(&cluster.node(1), ROOT) || !is_open(&cluster.node(2), OTHER) {
        pause(1).await;
    }
    cluster.network.cut(NodeId(3), NodeId(2));
    let done = done.await.expect("it runs");
    assert!(done.expect("it is acknowledged").succeeded);
    while is_open(&cluster.node(1), ROOT) {
        pause(1).await;
    }
    cluster.kill(3);
    cluster.network.heal(NodeId(3), NodeId(2));
    while !fates(cluster.disk(1), ROOT).contains(&COMMITTED) {
        pause(1).await;
    }
    // The checkpoint is whole, and read from the file.
    pause(50).await;
    assert!(is_open(&cluster.node(2), OTHER), "it asks too early");
}

/// The other group asks the root group's leader what became of the
/// transaction. The leader has the record, but a bit of it has flipped.
#[test]
fn rule_12_an_acknowledged_transaction_is_not_half_undone_by_a_damaged_record() {
    simulate(async {
        let mut cluster = Cluster::start_with(3, &["m"], eager).await;
        half_decided(&mut cluster).await;
        let disk = cluster.disk(1);
        for at in txn_records(disk, ROOT) {
            disk.flip_bit(&tree(ROOT), 8 * at as u64 + 6);
        }
        assert!(!fates(disk, ROOT).contains(&COMMITTED));
        let stopped = || cluster.node(1).damaged().contains_key(&ROOT);
        until(|| stopped() || !is_open(&cluster.node(2), OTHER)).await;
        let stopped = stopped();
        cluster.start_again(3).await;
        for key in KEYS {
            assert_eq!(cluster.node(2).get(key).await.kvs[0].value, "new", "{key}");
        }
        assert!(stopped, "its leader went on with a damaged record");
        until(|| cluster.node(1).damaged().is_empty()).await;
        use_all(&cluster.node(1), &KEYS).await;
    });
}

/// The same without damage: the other group finds out and commits.
#[test]
fn rule_12_an_acknowledged_transaction_is_finished_without_its_coordinator() {
    simulate(async {
        let mut cluster = Cluster::start_with(3, &["m"], eager).await;
        half_decided(&mut cluster).await;
        for key in KEYS {
            assert_eq!(cluster.node(2).get(key).await.kvs[0].value, "new", "{key}");
        }
        assert!(cluster.node(1).damaged().is_empty());
    });
}

/// Puts a record that makes no sense into the store on a disk, whose pages are
/// all whole, in the place of the next entry.
fn write_nonsense(disk: &SimDisk, group: GroupId, name: &'static [u8]) {
    let config = pontoon_engine::Config {
        store: 7 + u128::from(group.0),
        ..pontoon_engine::Config::default()
    };
    let store = Store::open(disk, &tree(group), config).expect("it opens");
    let applied = store.applied();
    let entry = Entry {
        applied: Applied {
            index: applied.index + 1,
            ..applied
        },
        steps: vec![Step::Record {
            name: Bytes::from_static(name),
            // Behind its version.
            content: Some(Bytes::from_static(&[1, 0xff, 0xff])),
        }],
    };
    store.apply(&entry).expect("it is applied");
    store.checkpoint().expect("it is written");
}

/// Node 3 has a record that makes no sense. It is found when the node leads
/// the group, at the latest.
async fn is_rebuilt_with(group: GroupId, name: &'static [u8]) {
    let mut cluster = Cluster::start_with(3, &["m"], late).await;
    for _ in 0..30 {
        for key in KEYS {
            cluster.node(1).put(key, &"x".repeat(2000)).await;
        }
    }
    pause(1000).await;
    cluster.kill(3);
    write_nonsense(cluster.disk(3), group, name);
    let opened = cluster.try_again(3, LONG).await;
    opened.expect("it opens in time").expect("it opens");
    // (A node whose root replica is damaged rebuilds it before it is open.)
    if group != ROOT {
        let found = || cluster.node(3).damaged().contains_key(&group);
        for _ in 0..100 {
            if found() {
                break;
            }
            if let Some(leader) = cluster.leader(group, &[1, 2]) {
                cluster.node(leader).transfer(group, NodeId(3)).await;
            }
            pause(100).await;
        }
        assert!(found(), "{}", name.escape_ascii());
    }
    let whole = || cluster.node(3).damaged().is_empty() && cluster.replica(3, group).is_some();
    until(whole).await;
    pause(5000).await;
    for group in [ROOT, OTHER] {
        let (here, there) = (
            cluster.node(3).content(group),
            cluster.node(1).content(group),
        );
        assert_eq!(here, there, "{}: group {group}", name.escape_ascii());
    }
    cluster.kill(1);
    use_all(&cluster.node(3), &KEYS).await;
}

#[test]
fn rule_12_a_leader_that_cant_decode_a_transactions_record_is_rebuilt() {
    simulate(is_rebuilt_with(OTHER, b"txn/\x01\x02"));
}

#[test]
fn a_leader_that_cant_decode_a_splits_record_is_rebuilt() {
    simulate(is_rebuilt_with(OTHER, b"split/\x09"));
}

#[test]
fn rule_13_a_node_that_cant_decode_a_lease_rebuilds_its_root_replica() {
    simulate(is_rebuilt_with(ROOT, b"lease/\0\0\0\0\0\0\0\x07"));
}

/// Without its map, the leader of the root group would begin with the first one.
#[test]
fn a_node_that_cant_decode_the_map_rebuilds_its_root_replica() {
    simulate(is_rebuilt_with(ROOT, b"cluster/map"));
}

/// Without a ceiling, there would seem to be one group.
#[test]
fn rule_2_a_node_that_cant_decode_the_ceiling_rebuilds_its_root_replica() {
    simulate(is_rebuilt_with(ROOT, b"cluster/ceiling"));
}
