//! Ranges that are split while they are used.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use pontoon_engine::{Answer, EventKind, KeyRange, Op, Put, Range, Reject, Request, Revision, Txn};
use pontoon_raftgroup::{Config, Delivery, Failure, GroupId, Node, NodeId, Watch};
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::{Instant, timeout};

use crate::cluster::{
    Client, Cluster, LONG, ROOT, SHORT, pause, put, range, revision, simulate, until, use_all,
};
use crate::txn::move_one;

pub(crate) async fn split(node: &Node, key: &'static str) -> GroupId {
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

/// Nobody knows whether the lost leader had noted it; to ask again is the same.
#[test]
fn a_split_is_asked_for_again_when_the_root_leader_is_lost() {
    simulate(async {
        let cluster = Cluster::start(3, &[]).await;
        cluster.lead(ROOT, 1).await;
        cluster.node(2).put("n", "1").await;
        cluster.part(1, 2);
        cluster.part(1, 3);
        let child = split(&cluster.node(2), "m").await;
        assert_eq!(split(&cluster.node(3), "m").await, child);
        assert_eq!(cluster.node(3).get("n").await.kvs[0].value, "1");
    });
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
        until(|| ranges() > 1).await;
        assert_eq!(count(&cluster.node(2)).await, 300);
    });
}

/// A group beside the root group, whose leader reaches the root group's late.
async fn far_from_the_root() -> Cluster {
    let cluster = Cluster::start(3, &["f"]).await;
    cluster.lead(ROOT, 1).await;
    cluster.lead(GroupId(1), 2).await;
    use_all(&cluster.node(3), &KEYS).await;
    cluster.slow(2, 1, 400);
    cluster
}

/// One in the root group, one in each half of what is split.
const KEYS: [&str; 3] = ["a", "g", "n"];

/// Asks for a split of the second group, in the background.
fn begin_split(cluster: &Cluster) -> JoinHandle<GroupId> {
    let node = cluster.node(3);
    spawn_local(async move { split(&node, "m").await })
}

/// The group that is split off there.
const CHILD: GroupId = GroupId(2);

fn is_mapped(cluster: &Cluster, id: u64) -> bool {
    let map = cluster.node(id).map().expect("it is known");
    map.keys_of(CHILD).is_some()
}

/// The parent's log has the split for a while before the map has it. Reads of
/// what is split off, and writes of what isn't, come all the time by then, by a
/// node from which everybody is near.
#[test]
fn rule_s3_neither_half_answers_before_the_map_has_the_child() {
    simulate(async {
        let cluster = far_from_the_root().await;
        let splitting = begin_split(&cluster);
        let answered = Rc::new(RefCell::new(Vec::new()));
        let (mut born, mut mapped) = (None, None);
        for n in 0..2000u64 {
            let now = Instant::now();
            if born.is_none() && cluster.replica(2, CHILD).is_some() {
                born = Some(now);
            }
            if mapped.is_none() && (1..=3).any(|id| is_mapped(&cluster, id)) {
                mapped = Some(now);
            }
            if n.is_multiple_of(10) {
                let (node, answered) = (cluster.node(3), Rc::clone(&answered));
                spawn_local(async move {
                    match born.is_none() || n.is_multiple_of(20) {
                        true => drop(node.get(KEYS[2]).await),
                        false => drop(node.put(KEYS[1], "new").await),
                    }
                    answered.borrow_mut().push(Instant::now());
                });
            }
            pause(1).await;
        }
        let (born, mapped) = (born.expect("it is born"), mapped.expect("it is mapped"));
        assert!(mapped - born > Duration::from_millis(300));
        let answered = answered.take();
        let before = answered.iter().filter(|at| **at < born);
        assert!(before.count() > 10);
        // (What was answered just before is still on its way.)
        let begins = born + Duration::from_millis(5);
        let between = answered.iter().filter(|at| begins < **at && **at < mapped);
        assert_eq!(between.count(), 0);
        splitting.await.expect("it is split");
        use_all(&cluster.node(3), &KEYS).await;
    });
}

#[test]
fn rule_s3_who_leads_the_parent_next_repeats_the_map_entry() {
    simulate(async {
        let mut cluster = far_from_the_root().await;
        let splitting = begin_split(&cluster);
        until(|| {
            [2, 3]
                .iter()
                .all(|id| cluster.replica(*id, CHILD).is_some())
        })
        .await;
        assert!(!is_mapped(&cluster, 1));
        cluster.kill(2);
        // What it said to the root group's leader was still on its way.
        pause(500).await;
        assert!(!is_mapped(&cluster, 1));
        assert_eq!(splitting.await.expect("it runs"), CHILD);
        for id in [1, 3] {
            use_all(&cluster.node(id), &KEYS).await;
        }
    });
}

#[test]
fn rule_s3_a_split_is_completed_when_all_were_down_in_its_middle() {
    let mut in_the_middle = 0;
    for millis in (0..320).step_by(20) {
        simulate(async {
            let mut cluster = Cluster::start(3, &["f"]).await;
            cluster.lead(ROOT, 1).await;
            cluster.lead(GroupId(1), 2).await;
            use_all(&cluster.node(1), &KEYS).await;
            cluster.slow(2, 1, 100);
            let splitting = begin_split(&cluster);
            pause(millis).await;
            let born = (1..=3).any(|id| cluster.replica(id, CHILD).is_some());
            let mapped = (1..=3).any(|id| is_mapped(&cluster, id));
            in_the_middle += u32::from(born && !mapped);
            splitting.abort();
            for id in 1..=3 {
                cluster.cut_power(id);
            }
            for id in 1..=3 {
                cluster.start_again(id).await;
            }
            cluster.until_led_among(ROOT, &[1, 2, 3]).await;
            if born {
                // Nobody has to ask for it again.
                until(|| is_mapped(&cluster, 1)).await;
            }
            assert_eq!(split(&cluster.node(1), "m").await, CHILD);
            for id in 1..=3 {
                assert_eq!(count(&cluster.node(id)).await, 3, "after {millis} ms");
                use_all(&cluster.node(id), &KEYS).await;
            }
        });
    }
    assert!(in_the_middle > 0);
}

/// The child's leader is near node 3, its parent's is not: what is said about
/// the child is there before the entry that makes it.
#[test]
fn rule_s4_a_message_for_a_child_makes_no_replica_of_it() {
    simulate(async {
        let cluster = Cluster::start(3, &["f"]).await;
        cluster.lead(ROOT, 1).await;
        cluster.lead(GroupId(1), 2).await;
        use_all(&cluster.node(3), &KEYS).await;
        cluster.slow(2, 3, 400);
        let parent = |id| cluster.replica(id, GroupId(1)).expect("it is there");
        let splitting = begin_split(&cluster);
        let before = parent(2).applied;
        let child = |id| cluster.replica(id, CHILD);
        until(|| child(1).is_some() && child(2).is_some_and(|one| one.leads)).await;
        let after = parent(2).applied;
        cluster.node(2).transfer(CHILD, NodeId(1)).await;
        until(|| child(1).is_some_and(|one| one.leads)).await;
        assert!(before < after && parent(3).applied < after);
        let mut messages = 0;
        while parent(3).applied < after {
            assert_eq!(child(3), None);
            pause(1).await;
            messages += 1;
        }
        assert!(messages > 200, "{messages}");
        until(|| {
            child(3).is_some_and(|here| Some(here.applied) == child(1).map(|one| one.applied))
        })
        .await;
        // It is made of what node 3 had.
        assert_eq!(child(3).map(|here| here.snapshots), Some(0));
        splitting.await.expect("it is split");
        assert_eq!(
            cluster.node(3).content(CHILD),
            cluster.node(1).content(CHILD)
        );
    });
}

#[test]
fn rule_s4_who_was_away_gets_the_child_from_its_leader() {
    simulate(async {
        let few = |config: &mut Config| {
            config.log_entries_kept = 10;
            config.log_bytes_max = 1;
            config.log_kept_bytes = 1 << 10;
        };
        let mut cluster = Cluster::start_with(3, &["f"], few).await;
        use_all(&cluster.node(1), &KEYS).await;
        cluster.network.isolate(NodeId(3));
        for group in 0..2 {
            cluster.until_led_among(GroupId(group), &[1, 2]).await;
        }
        split(&cluster.node(1), "m").await;
        for n in 0..60 {
            cluster.node(1).put(&format!("g{n}"), "x").await;
            cluster.node(1).put(&format!("n{n}"), "x").await;
        }
        cluster.network.rejoin(NodeId(3));
        let applied = |id, group| cluster.replica(id, group).map(|one| one.applied);
        for group in [ROOT, GroupId(1), CHILD] {
            until(|| applied(3, group).is_some() && applied(3, group) == applied(1, group)).await;
        }
        for group in [GroupId(1), CHILD] {
            let replica = cluster.replica(3, group).expect("it is there");
            assert!(replica.snapshots > 0, "group {group}");
            assert_eq!(
                cluster.node(3).content(group),
                cluster.node(1).content(group)
            );
        }
        pause(3000).await;
        cluster.kill(1);
        use_all(&cluster.node(3), &KEYS).await;
        assert_eq!(count(&cluster.node(3)).await, 123);
    });
}

#[test]
fn a_range_in_which_nothing_was_written_can_be_split() {
    for splits in [&[][..], &["f"]] {
        simulate(async {
            let cluster = Cluster::start(3, splits).await;
            split(&cluster.node(1), "m").await;
            split(&cluster.node(2), "p").await;
            assert_eq!(count(&cluster.node(3)).await, 0);
            use_all(&cluster.node(3), &["a", "g", "n", "q"]).await;
        });
    }
}

/// A leader announces itself anew whenever what it asked was overtaken by a
/// compaction. After a split it begins anew in the same term.
#[test]
fn rule_4_a_leader_that_begins_anew_counts_its_sessions_on() {
    simulate(async {
        let cluster = Cluster::start(3, &["f"]).await;
        cluster.lead(ROOT, 1).await;
        cluster.lead(GroupId(1), 2).await;
        // It asks before it has heard of the compaction, each time.
        cluster.slow(1, 2, 40);
        for _ in 0..100 {
            let floor = cluster.node(2).put("g", "x").await;
            let compacted = cluster.node(1).compact(revision(floor), LONG).await;
            assert_eq!(compacted, Ok(revision(floor)));
            cluster.node(2).put("g", "y").await;
        }
        cluster.slow(1, 2, 0);
        split(&cluster.node(2), "m").await;
        assert_eq!(cluster.leader(GroupId(1), &[2]), Some(2));
        let written = cluster.node(2).put_within("g", "z", SHORT).await;
        assert!(written.is_ok(), "{written:?}");
    });
}

/// Node 3 leads a group whose split it has, and is cut off from the root
/// group's leader, who could tell it so.
#[test]
fn rule_s3_a_leader_whose_map_is_older_than_its_store_waits() {
    simulate(async {
        let cluster = Cluster::start(3, &["f"]).await;
        cluster.lead(ROOT, 1).await;
        cluster.lead(GroupId(1), 2).await;
        use_all(&cluster.node(2), &KEYS).await;
        cluster.part(1, 3);
        split(&cluster.node(2), "m").await;
        let last = cluster.node(2).put("n", "by its owner").await;
        // Long enough for the parent to let go of what was split off.
        pause(300).await;
        let applied = |id| cluster.replica(id, GroupId(1)).map(|one| one.applied);
        until(|| applied(3) == applied(2)).await;
        assert!(!is_mapped(&cluster, 3));
        cluster.node(2).transfer(GroupId(1), NodeId(3)).await;
        until(|| cluster.leader(GroupId(1), &[2, 3]) == Some(3)).await;
        for key in ["g", "n"] {
            let written = cluster.node(3).put_within(key, "too early", SHORT).await;
            assert!(written.is_err(), "{key}: {written:?}");
        }
        assert!(!is_mapped(&cluster, 3));
        cluster.network.heal_all();
        let read = cluster.node(3).get("n").await;
        assert_eq!(read.kvs[0].value, "by its owner");
        assert_eq!(read.kvs[0].modified.0, last);
        use_all(&cluster.node(3), &KEYS).await;
    });
}

#[test]
fn both_halves_have_the_compaction_floor_and_the_last_revision() {
    for splits in [&[][..], &["f"]] {
        simulate(async {
            let mut cluster = Cluster::start(3, splits).await;
            let old = cluster.node(1).put("n", "1").await;
            cluster.node(1).put("n", "2").await;
            let floor = cluster.node(1).put("g", "1").await;
            let compacted = cluster.node(1).compact(revision(floor), LONG).await;
            compacted.expect("it is compacted");
            let last = cluster.node(1).put("g", "2").await;
            let parent = GroupId(splits.len() as u64);
            let floors = |group| (1..=3).map(move |id| (id, group));
            let has = |(id, group)| {
                let replica = cluster.replica(id, group);
                replica.is_some_and(|one| one.floor.0 >= floor && one.revision.0 >= last)
            };
            until(|| floors(parent).all(has)).await;
            let child = split(&cluster.node(2), "m").await;
            until(|| floors(child).all(|(id, group)| cluster.replica(id, group).is_some())).await;
            assert!(floors(child).chain(floors(parent)).all(has));
            for id in 1..=3 {
                cluster.cut_power(id);
            }
            for id in 1..=3 {
                cluster.start_again(id).await;
            }
            let mut below = range("n");
            below.revision = old;
            let read = cluster.node(3).request(Request::Range(below), LONG).await;
            assert_eq!(read, Err(Failure::Reject(Reject::Compacted)));
            assert!(cluster.node(3).put("n", "3").await > last);
        });
    }
}

/// A transaction is decided in the group that is then split, and not in the
/// other one, which has to ask what became of it: about a key that the child
/// has by then.
#[test]
fn what_is_recorded_of_transactions_stays_with_the_parent() {
    simulate(async {
        // (Leaders stay where they are: they are spread.)
        let mut cluster = Cluster::start(3, &["f", "t", "w", "y"]).await;
        for (group, leader) in [(0, 2), (1, 2), (2, 3), (3, 3), (4, 1)] {
            cluster.lead(GroupId(group), leader).await;
        }
        use_all(&cluster.node(1), &["n", "u"]).await;
        cluster.slow(1, 3, 300);
        let both = Txn {
            success: vec![Op::Put(put("n", "both")), Op::Put(put("u", "both"))],
            ..Txn::default()
        };
        let done = cluster.node(1).txn(both, LONG).await;
        let done = done.expect("it is answered");
        let asked = Instant::now();
        split(&cluster.node(2), "m").await;
        // What node 3 is told of the decision is still on its way, and it has
        // not asked yet.
        assert!(asked.elapsed() < Duration::from_millis(180));
        cluster.kill(3);
        for key in ["n", "u"] {
            let read = cluster.node(1).get(key).await;
            assert_eq!(read.kvs[0].value, "both", "{key}");
            assert_eq!(read.kvs[0].modified, done.revision);
        }
        cluster.start_again(3).await;
        use_all(&cluster.node(3), &["a", "g", "n", "u"]).await;
    });
}

/// Revokes a lease; asks again if nobody knows whether it was revoked.
async fn revoke(node: &Node, id: i64) {
    let mut revoked = node.lease_revoke(id, LONG).await;
    while revoked.as_ref().is_err_and(|failure| !failure.is_certain()) {
        revoked = match node.lease_revoke(id, LONG).await {
            Err(Failure::Reject(Reject::LeaseNotFound)) => return,
            revoked => revoked,
        };
    }
    revoked.expect("it is revoked");
}

/// What a watch has seen of all keys, when it has seen `z`: each revision
/// whole, and once.
async fn follow(node: Node, after: i64) -> BTreeMap<Bytes, Bytes> {
    let mut watch = node.watch(Watch {
        keys: KeyRange::all(),
        from: Revision(after + 1),
        prev_kv: false,
    });
    let mut seen = BTreeMap::new();
    let mut through = after;
    while !seen.contains_key(&b"z"[..]) {
        match timeout(LONG, watch.next()).await {
            Ok(Some(Delivery::Events(events))) => {
                assert!(events[0].change.revision.0 > through);
                assert!(events.is_sorted_by_key(|event| event.change));
                through = events[events.len() - 1].change.revision.0;
                for event in events {
                    match event.kind {
                        EventKind::Put => seen.insert(event.kv.key, event.kv.value),
                        EventKind::Delete => seen.remove(&event.kv.key),
                    };
                }
            }
            other => panic!("{other:?} after {through}"),
        }
    }
    seen
}

/// Transactions over groups, leases and a compaction are under way while
/// ranges are split; a watch that began before sees all of it, in order.
#[test]
fn transactions_leases_and_a_compaction_go_on_through_splits() {
    simulate(async {
        let cluster = Cluster::start(3, &["t"]).await;
        let numbers = ["a", "g", "n", "u", "x"];
        let mut first = 0;
        for key in numbers {
            first = cluster.node(1).put(key, "100").await;
        }
        let seen = spawn_local(follow(cluster.node(3), first));
        let movers = (0..4usize).map(|n| {
            let node = cluster.node(1 + n as u64 % 3);
            spawn_local(async move {
                let mut moved = 0;
                while moved < 12 {
                    let (from, to) = (numbers[(n + moved) % 5], numbers[(n + moved + 2) % 5]);
                    moved += usize::from(move_one(&node, from, to).await);
                    pause(5).await;
                }
            })
        });
        let leases = (1..=3i64).map(|n| {
            let node = cluster.node(n as u64);
            spawn_local(async move {
                for round in 0..6 {
                    let id = 100 * n + round;
                    node.lease_grant(id, 600, LONG)
                        .await
                        .expect("it is granted");
                    for key in ["b", "h", "o", "v", "y"] {
                        let put = Put {
                            lease: id,
                            ..put(&format!("{key}{id}"), "leased")
                        };
                        node.request(Request::Put(put), LONG).await.expect("put");
                    }
                    revoke(&node, id).await;
                    for key in ["b", "h", "o", "v", "y"] {
                        let left = node.get(&format!("{key}{id}")).await;
                        assert!(left.kvs.is_empty(), "{key}{id}");
                    }
                }
            })
        });
        let working: Vec<_> = movers.chain(leases).collect();
        for key in ["f", "m", "w"] {
            pause(60).await;
            let node = cluster.node(2);
            let splitting = spawn_local(async move { split(&node, key).await });
            pause(30).await;
            let now = cluster.node(1).get("a").await.revision;
            let compacted = cluster.node(1).compact(now, LONG).await;
            compacted.expect("it is compacted");
            splitting.await.expect("it is split");
        }
        for work in working {
            work.await.expect("it works");
        }
        cluster.node(1).put("z", "end").await;
        let seen = seen.await.expect("it watches");
        let range = Request::Range(Range::of(KeyRange::all()));
        let Ok(Answer::Range(all)) = cluster.node(2).request(range, LONG).await else {
            panic!("it is not read");
        };
        let all: BTreeMap<_, _> = all.kvs.into_iter().map(|kv| (kv.key, kv.value)).collect();
        assert_eq!(seen, all);
        let sum = numbers.map(|key| {
            let value = std::str::from_utf8(&all[key.as_bytes()]).expect("text");
            value.parse::<i64>().expect("a number")
        });
        assert_eq!(sum.iter().sum::<i64>(), 500);
    });
}

/// Nothing of a child is left on a disk.
fn has_no_file_of(cluster: &Cluster, id: u64, child: GroupId) -> bool {
    let name = format!("/{child}.tree");
    let paths = cluster.disk(id).paths().into_iter();
    let mut paths = paths.map(|path| path.to_string_lossy().into_owned());
    !paths.any(|path| path.contains(&name))
}

/// The leader of the parent can't copy the range; the two others can.
#[test]
fn s2_a_split_needs_a_quorum_of_copies_and_not_its_leaders() {
    simulate(async {
        let cluster = Cluster::start(3, &["m"]).await;
        let parent = GroupId(1);
        cluster.lead(parent, 2).await;
        cluster.node(1).put("n", "1").await;
        cluster.node(1).put("t", "1").await;
        cluster.disk(2).no_background(true);
        let child = split(&cluster.node(1), "t").await;
        // It is said to be done when it serves.
        let read = cluster.node(1).get_within("t", SHORT).await;
        assert!(read.is_ok(), "{read:?}");
        assert!(cluster.replica(2, child).is_none_or(|one| !one.leads));
        cluster.disk(2).no_background(false);
        until(|| cluster.replica(2, child).is_some()).await;
        use_all(&cluster.node(2), &["n", "t"]).await;
    });
}

#[test]
fn s2_a_split_that_takes_too_long_is_abandoned_and_leaves_nothing() {
    simulate(async {
        let change = |config: &mut Config| config.split_max = Duration::from_secs(5);
        let cluster = Cluster::start_with(3, &["m"], change).await;
        let parent = GroupId(1);
        cluster.lead(parent, 2).await;
        cluster.node(1).put("t", "1").await;
        cluster.disk(1).no_background(true);
        cluster.disk(3).no_background(true);
        let begun = Instant::now();
        let given_up = cluster.node(1).split("t".into(), LONG).await;
        assert_eq!(given_up, Err(Failure::SplitAbandoned));
        assert!(
            begun.elapsed() < Duration::from_secs(7),
            "{:?}",
            begun.elapsed()
        );
        let child = GroupId(2);
        for id in 1..=3 {
            until(|| has_no_file_of(&cluster, id, child)).await;
        }
        use_all(&cluster.node(3), &["n", "t"]).await;
        // Whoever leads the parent later doesn't split it either.
        cluster.lead(parent, 3).await;
        pause(2000).await;
        assert!(
            cluster
                .node(1)
                .map()
                .is_some_and(|map| map.placed(child).is_none())
        );
        cluster.disk(1).no_background(false);
        cluster.disk(3).no_background(false);
        let child = split(&cluster.node(1), "t").await;
        assert_eq!(child, GroupId(3));
        use_all(&cluster.node(2), &["n", "t"]).await;
    });
}
