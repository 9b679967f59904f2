//! Rule 15: an alarm binds everybody from when it was acknowledged on, and
//! nobody from when its end was.

use pontoon_engine::{DeleteRange, KeyRange, Op, Put, Request, Txn};
use pontoon_raftgroup::{Alarm, Failure, GroupId, NodeId};

use crate::cluster::{Client, Cluster, LONG, ROOT, put, put_if, revision, simulate};

/// Node 3 leads the last group and hears of the root group's entries late.
async fn unheard(splits: &[&'static str]) -> Cluster {
    let cluster = Cluster::start(3, splits).await;
    cluster.lead(ROOT, 1).await;
    cluster.lead(GroupId(splits.len() as u64), 3).await;
    cluster.node(3).put("n", "1").await;
    cluster.slow(1, 3, 100);
    cluster
}

fn on(cluster: &Cluster, id: u64) -> bool {
    !cluster.node(id).alarms().is_empty()
}

/// In one group and over two, on the path that is taken and on the other.
fn txns() -> [Txn; 3] {
    let over = |keys: [&str; 2]| Txn {
        success: keys.map(|key| Op::Put(put(key, "2"))).into(),
        ..Txn::default()
    };
    [over(["n", "o"]), over(["a", "n"]), put_if("n", 1000, "2")]
}

#[test]
fn rule_15_no_write_is_evaluated_by_one_who_has_not_heard_of_the_alarm() {
    for (alarm, failure) in [
        (Alarm::NoSpace, Failure::NoSpace),
        (Alarm::Corrupt, Failure::Corrupt),
    ] {
        simulate(async {
            let cluster = unheard(&["f", "m"]).await;
            let (first, third) = (cluster.node(1), cluster.node(3));
            let raised = first.alarm(NodeId(2), alarm, true, LONG).await;
            assert_eq!(raised, Ok(()));
            assert!(on(&cluster, 1) && !on(&cluster, 3));
            let written = third.request(Request::Put(put("n", "2")), LONG).await;
            assert_eq!(written, Err(failure.clone()));
            for txn in txns() {
                let written = third.txn(txn, LONG).await;
                assert_eq!(written.err(), Some(failure.clone()));
            }
            let granted = third.lease_grant(0, 60, LONG).await;
            assert_eq!(granted.err(), Some(failure.clone()));
            assert_eq!(third.get("n").await.kvs[0].value, "1");
        });
    }
}

/// In one group and over two: a lease that isn't there, and nothing to delete.
#[test]
fn rule_15_the_alarm_comes_before_what_else_a_write_is_told() {
    let lease = |key| {
        Op::Put(Put {
            lease: 77,
            ..put(key, "2")
        })
    };
    let delete = |key: &'static str| {
        Op::DeleteRange(DeleteRange {
            keys: KeyRange::one(key),
            prev_kv: false,
        })
    };
    for ops in [
        vec![lease("n")],
        vec![lease("a"), lease("n")],
        vec![delete("o")],
        vec![delete("b"), delete("o")],
    ] {
        simulate(async {
            let cluster = unheard(&["f", "m"]).await;
            let (first, third) = (cluster.node(1), cluster.node(3));
            let raised = first.alarm(NodeId(2), Alarm::Corrupt, true, LONG).await;
            assert_eq!(raised, Ok(()));
            assert!(!on(&cluster, 3));
            let txn = Txn {
                success: ops,
                ..Txn::default()
            };
            assert_eq!(third.txn(txn, LONG).await.err(), Some(Failure::Corrupt));
        });
    }
}

/// Compactions, and the end of leases in one group and in several.
#[test]
fn rule_15_what_changes_no_key_is_refused_while_the_cluster_is_corrupt() {
    for splits in [&["f", "m"][..], &[]] {
        simulate(async {
            let cluster = unheard(splits).await;
            let (first, third) = (cluster.node(1), cluster.node(3));
            for (lease, keys) in [(1, &[][..]), (2, &["b"]), (3, &["a", "n"])] {
                third.lease_grant(lease, 600, LONG).await.unwrap();
                for key in keys {
                    let put = Put {
                        lease,
                        ..put(key, "1")
                    };
                    third.request(Request::Put(put), LONG).await.unwrap();
                }
            }
            let raised = first.alarm(NodeId(2), Alarm::Corrupt, true, LONG).await;
            assert_eq!(raised, Ok(()));
            assert_eq!(on(&cluster, 3), splits.is_empty());
            for number in [2, 0, 1000] {
                let compacted = third.compact(revision(number), LONG).await;
                assert_eq!(compacted, Err(Failure::Corrupt));
            }
            for lease in 1..=4 {
                let revoked = third.lease_revoke(lease, LONG).await;
                assert_eq!(revoked, Err(Failure::Corrupt), "lease {lease}");
            }
            let ended = first.alarm(NodeId(2), Alarm::Corrupt, false, LONG).await;
            assert_eq!(ended, Ok(()));
            assert!(third.compact(revision(2), LONG).await.is_ok());
            for lease in 1..=3 {
                assert!(third.lease_revoke(lease, LONG).await.is_ok());
            }
        });
    }
}

#[test]
fn rule_15_nobody_is_refused_for_an_alarm_that_has_ended() {
    for splits in [&["f", "m"][..], &[]] {
        simulate(async {
            let cluster = unheard(splits).await;
            let (first, third) = (cluster.node(1), cluster.node(3));
            let raised = first.alarm(NodeId(2), Alarm::NoSpace, true, LONG).await;
            assert_eq!(raised, Ok(()));
            let refused = third.request(Request::Put(put("n", "2")), LONG).await;
            assert_eq!(refused, Err(Failure::NoSpace));
            // What needs no space is done.
            assert_eq!(third.delete("n").await.1, 1);
            let ended = first.alarm(NodeId(2), Alarm::NoSpace, false, LONG).await;
            assert_eq!(ended, Ok(()));
            for txn in txns() {
                assert!(third.txn(txn, LONG).await.is_ok());
            }
        });
    }
}
