//! Ranges that are split while they are used.

use bytes::Bytes;
use pontoon_engine::{Answer, KeyRange, Put, Range, Request, Revision};
use pontoon_raftgroup::{Delivery, GroupId, Node, Watch};
use tokio::task::spawn_local;
use tokio::time::timeout;

use crate::cluster::{Client, Cluster, LONG, ROOT, pause, simulate};

async fn split(node: &Node, key: &'static str) -> GroupId {
    let group = node.split(Bytes::from(key), LONG).await;
    group.expect("it is split")
}

async fn count(node: &Node) -> i64 {
    let range = Request::Range(Range::of(KeyRange::all()));
    match node.request(range, LONG).await {
        Ok(Answer::Range(answer)) => answer.count,
        other => panic!("{other:?}"),
    }
}

/// Writes go on through one split after the other; every one of them is seen
/// once, in order, by a watch that began before.
async fn under_load(splits: &'static [&'static str]) {
    let cluster = Cluster::start(3, splits).await;
    let first = cluster.node(1).put("a0", "0").await;
    let mut watch = cluster.node(3).watch(Watch {
        keys: KeyRange::all(),
        from: Revision(first),
        prev_kv: false,
    });
    let writers = (0..4u64).map(|writer| {
        let node = cluster.node(1 + writer % 3);
        spawn_local(async move {
            let mut revisions = Vec::new();
            for n in 0..100u64 {
                let letter = char::from(b'a' + ((n * 7 + writer) % 26) as u8);
                let key = format!("{letter}{writer}");
                revisions.push(node.put(&key, &n.to_string()).await);
                pause(5).await;
            }
            revisions
        })
    });
    let writers: Vec<_> = writers.collect();
    pause(100).await;
    let mut groups = Vec::new();
    for key in ["m", "t", "g"] {
        groups.push(split(&cluster.node(2), key).await);
        pause(50).await;
    }
    assert_eq!(split(&cluster.node(1), "m").await, groups[0]);
    let mut written = vec![first];
    for writer in writers {
        written.extend(writer.await.expect("it writes"));
    }
    written.sort_unstable();
    let last = written[written.len() - 1];
    let mut seen = Vec::new();
    while seen.last() != Some(&last) {
        match timeout(LONG, watch.next()).await {
            Ok(Some(Delivery::Events(events))) => {
                seen.extend(events.iter().map(|event| event.change.revision.0));
            }
            other => panic!("{other:?} after {:?}", seen.last()),
        }
    }
    assert_eq!(seen, written);
    let map = cluster.node(1).map().expect("there is one");
    assert_eq!(map.ranges().count(), splits.len() + 4);
    for id in 1..=3 {
        assert_eq!(count(&cluster.node(id)).await, 104);
    }
}

#[test]
fn a_split_loses_and_repeats_nothing_from_one_group_on() {
    simulate(under_load(&[]));
}

#[test]
fn a_split_loses_and_repeats_nothing_among_many_groups() {
    simulate(under_load(&["e", "p"]));
}

#[test]
fn revisions_stay_dense_over_a_split() {
    simulate(async {
        let cluster = Cluster::start(3, &[]).await;
        let mut last = cluster.node(1).put("a", "0").await;
        for key in ["m", "c", "x"] {
            split(&cluster.node(2), key).await;
            for key in ["a", "d", "n", "z"] {
                assert_eq!(cluster.node(3).put(key, "1").await, last + 1);
                last += 1;
            }
        }
    });
}

/// A lease has keys in what is split off.
#[test]
fn a_split_takes_registrations_of_leases_along() {
    for splits in [&[][..], &["b"]] {
        simulate(async {
            let cluster = Cluster::start(3, splits).await;
            cluster.lead(ROOT, 1).await;
            let node = cluster.node(2);
            node.lease_grant(7, 600, LONG).await.expect("it is granted");
            for key in ["d", "n"] {
                let put = Put {
                    key: Bytes::from(key),
                    lease: 7,
                    ..Put::default()
                };
                let put = node.request(Request::Put(put), LONG).await;
                put.expect("it is attached");
            }
            split(&node, "m").await;
            let last = node.put("z", "x").await;
            let revoked = node.lease_revoke(7, LONG).await;
            assert_eq!(revoked.expect("it is revoked").0, last + 1);
            for key in ["d", "n"] {
                assert!(cluster.node(3).get(key).await.kvs.is_empty(), "{key}");
            }
        });
    }
}

#[test]
fn a_range_that_grows_too_large_is_split_by_itself() {
    simulate(async {
        let cluster = Cluster::start_with(3, &[], |config| config.range_bytes_max = 200_000).await;
        let value = "x".repeat(1000);
        for n in 0..300 {
            cluster.node(1).put(&format!("k{n:03}"), &value).await;
        }
        let ranges = || cluster.node(1).map().expect("known").ranges().count();
        crate::cluster::until(|| ranges() > 1).await;
        assert_eq!(count(&cluster.node(2)).await, 300);
    });
}
