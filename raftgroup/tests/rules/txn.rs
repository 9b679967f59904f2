//! Rule 12: transactions over several groups.

use std::time::Duration;

use bytes::Bytes;
use pontoon_engine::{
    Answer, Compare, DeleteRange, KeyRange, Op, Operand, Put, Range, RangeAnswer, Reject, Relation,
    Request, Revision, Txn,
};
use pontoon_raftgroup::{Condition, Failure, GroupId, Node, NodeId, Timing, Watch};
use tokio::task::spawn_local;
use tokio::time::Instant;

use crate::cluster::{Client, Cluster, LONG, ROOT, SHORT, pause, simulate, use_all};

fn put(key: &'static str, value: &'static str) -> Op {
    Op::Put(Put {
        key: Bytes::from(key),
        value: Bytes::from(value),
        prev_kv: true,
        ..Put::default()
    })
}

fn is(key: &'static str, value: &'static str) -> Compare {
    Compare {
        keys: KeyRange::one(key),
        operand: Operand::Value(Bytes::from(value)),
        relation: Relation::Equal,
    }
}

fn all() -> Op {
    Op::Range(Range::of(KeyRange::all()))
}

fn both(compare: Vec<Compare>, one: &'static str, two: &'static str) -> Txn {
    Txn {
        compare,
        success: vec![put("a", one), all(), put("n", two), all()],
        failure: vec![all()],
    }
}

#[test]
fn rule_12_a_transaction_over_groups_is_one_revision() {
    simulate(async {
        let cluster = Cluster::start(3, &["f", "m"]).await;
        cluster.lead(ROOT, 1).await;
        cluster.lead(GroupId(1), 2).await;
        cluster.lead(GroupId(2), 3).await;
        let first = cluster.node(1).put("g", "0").await;
        for (n, id) in (1..=3).cycle().take(9).enumerate() {
            let done = cluster.node(id).txn(both(Vec::new(), "1", "1"), LONG).await;
            let done = done.expect("it is answered");
            assert_eq!(done.revision.0, first + n as i64 + 1);
            let [_, Answer::Range(before), _, Answer::Range(after)] = &done.answers[..] else {
                panic!("{done:?}");
            };
            // What was read between the two puts, and behind them.
            assert_eq!(before.kvs.len(), if n == 0 { 2 } else { 3 });
            assert_eq!(after.kvs.len(), 3);
            assert_eq!(after.kvs[2].modified, done.revision);
        }
        let failed = both(vec![is("n", "0")], "2", "2");
        let failed = cluster.node(2).txn(failed, LONG).await;
        let failed = failed.expect("it is answered");
        assert!(!failed.succeeded);
        assert_eq!(failed.revision.0, first + 9);
        let passed = both(vec![is("n", "1"), is("a", "1")], "2", "2");
        let passed = cluster.node(3).txn(passed, LONG).await;
        assert!(passed.expect("it is answered").succeeded);
        assert_eq!(cluster.node(1).get("a").await.kvs[0].value, "2");
        assert_eq!(cluster.node(1).get("n").await.kvs[0].value, "2");
    });
}

/// Node 3 sequences, node 2 leads the two groups that transactions are over.
async fn sequenced_by_3() -> Cluster {
    let cluster = Cluster::start(3, &["f", "m"]).await;
    cluster.lead(ROOT, 3).await;
    cluster.lead(GroupId(1), 2).await;
    cluster.lead(GroupId(2), 2).await;
    use_all(&cluster.node(1), &["a", "g", "n"]).await;
    cluster
}

/// Whether its revision was granted, nobody can say; but a latch that is let go
/// of without a prepare means that it was not used, and never will be.
#[test]
fn rule_12_a_transaction_whose_sequencer_is_gone_is_tried_again() {
    simulate(async {
        let cluster = sequenced_by_3().await;
        cluster.part(3, 1);
        cluster.part(3, 2);
        let begun = Instant::now();
        let txn = Txn {
            success: vec![put("g", "1"), put("n", "1")],
            ..Txn::default()
        };
        let done = cluster.node(1).txn(txn, LONG).await;
        assert!(done.is_ok(), "{done:?}");
        let bound = 2 * Timing::default().election_max + Duration::from_secs(1);
        assert!(begun.elapsed() <= bound, "it took {:?}", begun.elapsed());
    });
}

/// The sequencer is gone once it has told the participants of the revision, but
/// not the coordinator. That all are prepared is all that the coordinator will
/// ever hear: the transaction is committed, but it can't tell at which revision.
#[test]
fn rule_12_a_coordinator_that_missed_the_revision_waits_for_nothing_more() {
    simulate(async {
        let cluster = sequenced_by_3().await;
        cluster.network.cut(NodeId(3), NodeId(1));
        let begun = Instant::now();
        let txn = Txn {
            success: vec![put("g", "1"), put("n", "1")],
            ..Txn::default()
        };
        let done = cluster.node(1).txn(txn, LONG).await;
        assert_eq!(done, Err(Failure::LeaderChanged));
        let bound = 2 * Timing::default().election_max + Duration::from_secs(1);
        assert!(begun.elapsed() <= bound, "it took {:?}", begun.elapsed());
        for key in ["g", "n"] {
            assert_eq!(cluster.node(2).get(key).await.kvs[0].value, "1");
        }
    });
}

/// The coordinator's own replicas don't catch up. What it has to find out under
/// latches it asks those who know, so its disk holds nobody else up.
#[test]
fn rule_12_a_coordinator_whose_disk_hangs_holds_nobody_up() {
    simulate(async {
        let cluster = Cluster::start(3, &["f", "m"]).await;
        for group in [ROOT, GroupId(1), GroupId(2)] {
            cluster.lead(group, 1).await;
        }
        cluster.disk(3).hang();
        let node = cluster.node(1);
        while cluster.node(3).condition() != Condition::Stalled {
            use_all(&node, &["a", "g", "n"]).await;
        }
        // Of this it will hear nothing before it has answered for the rest.
        let lease = node.lease_grant(0, 60, LONG).await;
        let lease = lease.expect("it is granted").id;
        let revoked = node.lease_revoke(lease, LONG).await;
        revoked.expect("it is revoked");
        let coordinator = cluster.node(3);
        let refused = spawn_local(async move {
            let revoked = Op::Put(Put {
                key: Bytes::from("n"),
                lease,
                ..Put::default()
            });
            let txn = Txn {
                success: vec![put("g", "1"), revoked],
                ..Txn::default()
            };
            coordinator.txn(txn, LONG).await
        });
        for _ in 0..100 {
            let done = node.put_within("n", "1", SHORT).await;
            assert!(done.is_ok(), "{done:?}");
            pause(20).await;
        }
        cluster.disk(3).resume();
        let refused = refused.await.expect("it ends");
        assert_eq!(refused, Err(Failure::Reject(Reject::LeaseNotFound)));
    });
}

/// The coordinator knows the revision, but no participant has heard of it: the
/// grants are void with the sessions in which they were lost.
#[test]
fn rule_12_a_transaction_whose_grants_are_lost_is_tried_again() {
    simulate(async {
        let cluster = Cluster::start(3, &["f", "m"]).await;
        cluster.lead(ROOT, 3).await;
        cluster.lead(GroupId(1), 1).await;
        cluster.lead(GroupId(2), 1).await;
        use_all(&cluster.node(2), &["a", "g", "n"]).await;
        let begun = Instant::now();
        cluster.network.cut(NodeId(3), NodeId(1));
        let coordinator = cluster.node(2);
        let txn = spawn_local(async move {
            let txn = Txn {
                success: vec![put("g", "1"), put("n", "1")],
                ..Txn::default()
            };
            coordinator.txn(txn, LONG).await
        });
        pause(200).await;
        cluster.network.heal(NodeId(3), NodeId(1));
        let done = txn.await.expect("it ends");
        assert!(done.is_ok(), "{done:?}");
        let bound = 2 * Timing::default().election_max + Duration::from_secs(1);
        assert!(begun.elapsed() <= bound, "it took {:?}", begun.elapsed());
    });
}

#[test]
fn rule_12_what_only_reads_is_refused_for_its_first_step_that_is() {
    simulate(async {
        let cluster = Cluster::start(3, &["f", "m"]).await;
        let node = cluster.node(1);
        let old = node.put("a", "1").await;
        let floor = node.put("n", "1").await;
        node.compact(Revision(floor), LONG)
            .await
            .expect("it is compacted");
        let at = |key: &'static str, revision: i64| {
            let mut range = Range::of(KeyRange::one(key));
            range.revision = revision;
            Op::Range(range)
        };
        let txn = |success| Txn {
            success,
            ..Txn::default()
        };
        for (first, second, reject) in [
            (at("n", floor + 9), at("a", old), Reject::FutureRevision),
            (at("n", old), at("a", floor + 9), Reject::Compacted),
        ] {
            let steps = vec![at("g", 0), first, second];
            let refused = cluster.node(2).txn(txn(steps), LONG).await;
            assert_eq!(refused, Err(Failure::Reject(reject)));
        }
    });
}

#[test]
fn rule_12_a_deletion_over_groups_is_one_revision() {
    simulate(async {
        let cluster = Cluster::start(3, &["f", "m"]).await;
        for key in ["a", "b", "g", "n", "o"] {
            cluster.node(1).put(key, "x").await;
        }
        let last = cluster.node(2).put("z", "x").await;
        let mut watch = cluster.node(3).watch(Watch {
            keys: KeyRange::all(),
            from: pontoon_engine::Revision(last + 1),
            prev_kv: false,
        });
        let delete = Request::DeleteRange(DeleteRange {
            keys: KeyRange::new("b", "o"),
            prev_kv: true,
        });
        let answer = cluster.node(2).request(delete.clone(), LONG).await;
        let Ok(Answer::DeleteRange(answer)) = answer else {
            panic!("{answer:?}");
        };
        assert_eq!((answer.revision.0, answer.deleted), (last + 1, 3));
        let keys: Vec<_> = answer.prev_kvs.iter().map(|kv| kv.key.clone()).collect();
        assert_eq!(keys, ["b", "g", "n"]);
        let Some(pontoon_raftgroup::Delivery::Events(events)) = watch.next().await else {
            panic!("no events");
        };
        let places: Vec<_> = events.iter().map(|event| event.change.sub).collect();
        assert_eq!(places, [0, 1, 2]);
        // Nothing is left to delete: no revision.
        let Ok(Answer::DeleteRange(again)) = cluster.node(1).request(delete, LONG).await else {
            panic!("not answered");
        };
        assert_eq!((again.revision.0, again.deleted), (last + 1, 0));
    });
}

/// A write that depends on a key waits for its revision when a transaction
/// over groups wants to change that key.
#[test]
fn rule_12_a_latch_waits_for_what_was_read_and_has_no_revision() {
    simulate(async {
        let cluster = Cluster::start(3, &["f", "m"]).await;
        cluster.lead(ROOT, 1).await;
        cluster.lead(GroupId(1), 2).await;
        cluster.lead(GroupId(2), 3).await;
        cluster.node(1).put("g", "0").await;
        cluster.slow(2, 1, 40);
        let depends = Txn {
            compare: vec![is("g", "0")],
            success: vec![put("h", "1")],
            failure: Vec::new(),
        };
        let node = cluster.node(2);
        let depends = spawn_local(async move { node.txn(depends, LONG).await });
        pause(5).await;
        let changes = Txn {
            success: vec![put("g", "2"), put("n", "2")],
            ..Txn::default()
        };
        let changes = cluster.node(3).txn(changes, LONG).await;
        let changes = changes.expect("it is answered");
        let depends = depends.await.expect("it runs");
        let depends = depends.expect("it is answered");
        assert!(depends.succeeded);
        assert!(depends.revision < changes.revision);
    });
}

/// Takes one from a number and adds it to another; `false` if somebody else
/// changed them meanwhile.
pub(crate) async fn move_one(node: &Node, from: &'static str, to: &'static str) -> bool {
    let (one, two) = (node.get(from).await, node.get(to).await);
    let number = |answer: &RangeAnswer| {
        let value = String::from_utf8_lossy(&answer.kvs[0].value).into_owned();
        value.parse::<i64>().expect("a number")
    };
    let same = |key: &'static str, answer: &RangeAnswer| Compare {
        keys: KeyRange::one(key),
        operand: Operand::Modified(answer.kvs[0].modified.0),
        relation: Relation::Equal,
    };
    let set = |key: &'static str, value: i64| {
        Op::Put(Put {
            key: Bytes::from(key),
            value: Bytes::from(value.to_string()),
            ..Put::default()
        })
    };
    let txn = Txn {
        compare: vec![same(from, &one), same(to, &two)],
        success: vec![set(from, number(&one) - 1), set(to, number(&two) + 1)],
        failure: Vec::new(),
    };
    let done = node.txn(txn, LONG).await.expect("it is answered");
    done.succeeded
}

/// Many clients move one from key to key, over all groups at once.
#[test]
fn rule_12_sums_stay_while_many_move() {
    simulate(async {
        let cluster = Cluster::start(3, &["f", "m"]).await;
        let keys = ["a", "g", "n"];
        for key in keys {
            cluster.node(1).put(key, "100").await;
        }
        let movers = (0..6u64).map(|n| {
            let node = cluster.node(1 + n % 3);
            spawn_local(async move {
                let mut moved = 0;
                while moved < 5 {
                    let (from, to) = (keys[n as usize % 3], keys[(n as usize + 1) % 3]);
                    moved += u64::from(move_one(&node, from, to).await);
                }
            })
        });
        let movers: Vec<_> = movers.collect();
        for _ in 0..50 {
            let range = Request::Range(Range::of(KeyRange::all()));
            let answer = cluster.node(2).request(range, LONG).await;
            let Ok(Answer::Range(answer)) = answer else {
                panic!("{answer:?}");
            };
            let values = answer.kvs.iter().map(|kv| {
                let value = String::from_utf8_lossy(&kv.value).into_owned();
                value.parse::<i64>().expect("a number")
            });
            assert_eq!(values.sum::<i64>(), 300, "{answer:?}");
            pause(3).await;
        }
        for mover in movers {
            mover.await.expect("it moves");
        }
    });
}

/// Whoever coordinates dies at some moment, and a participant's leader hands
/// over: what comes next builds on what became of the transaction.
#[test]
fn rule_12_a_new_leader_builds_on_what_it_decided() {
    for millis in 0..40 {
        simulate(async {
            let mut cluster = Cluster::start(3, &["m"]).await;
            cluster.lead(ROOT, 1).await;
            cluster.lead(GroupId(1), 2).await;
            cluster.node(1).put("n", "0").await;
            let node = cluster.node(3);
            let asked = spawn_local(async move {
                let _ = node.txn(both(Vec::new(), "1", "1"), LONG).await;
            });
            pause(millis).await;
            cluster.kill(3);
            asked.abort();
            cluster.node(2).transfer(GroupId(1), NodeId(1)).await;
            let put = Txn {
                success: vec![put("n", "2")],
                ..Txn::default()
            };
            let put = cluster.node(1).txn(put, LONG).await;
            let put = put.expect("it is answered");
            let [Answer::Put(put)] = &put.answers[..] else {
                panic!("{put:?}");
            };
            let before = put.prev_kv.as_ref().expect("there was something");
            let now = cluster.node(1).get("n").await;
            assert_eq!(now.kvs[0].version, before.version + 1, "after {millis} ms");
            let all_or_none = cluster.node(1).get("a").await.kvs.is_empty();
            assert_eq!(before.value == "0", all_or_none, "after {millis} ms");
            assert_eq!(now.kvs[0].version, if all_or_none { 2 } else { 3 });
        });
    }
}
