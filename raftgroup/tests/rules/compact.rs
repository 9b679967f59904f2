//! Rule 15: after an acknowledged compaction nobody reads below it.

use pontoon_engine::{Op, Range, Request, Txn};
use pontoon_raftgroup::{Failure, GroupId, NodeId};

use crate::cluster::{Client, Cluster, LONG, ROOT, SHORT, put, range, revision, simulate, until};

const COMPACTED: &str = "etcdserver: mvcc: required revision has been compacted";

fn text<T>(outcome: Result<T, Failure>) -> String {
    outcome
        .err()
        .map(|failure| failure.to_string())
        .unwrap_or_default()
}

/// Written through node 1, to each group, and compacted there.
async fn compacted(cluster: &Cluster) -> (i64, Range) {
    cluster.node(1).put("a", "1").await;
    let old = cluster.node(1).put("n", "1").await;
    cluster.node(1).put("g", "1").await;
    let floor = cluster.node(1).put("n", "2").await;
    let done = cluster.node(1).compact(revision(floor), LONG).await;
    assert_eq!(done, Ok(revision(floor)));
    let mut below = range("n");
    below.revision = old;
    (floor, below)
}

#[test]
fn rule_15_no_read_is_below_an_acknowledged_compaction() {
    for splits in [&["f", "m"][..], &[]] {
        for reader in 1..=3 {
            simulate(async {
                let cluster = Cluster::start(3, splits).await;
                cluster.lead(ROOT, 1).await;
                cluster.lead(GroupId(splits.len() as u64), 3).await;
                let (floor, mut below) = compacted(&cluster).await;
                let node = cluster.node(reader);
                let read = node.request(Request::Range(below.clone()), LONG).await;
                assert_eq!(text(read), COMPACTED);
                // In the only thing that it does, or beside a write.
                let reads = vec![Op::Range(below.clone())];
                let writes = vec![Op::Range(below.clone()), Op::Put(put("n", "3"))];
                for success in [reads, writes] {
                    let txn = Txn {
                        success,
                        ..Txn::default()
                    };
                    assert_eq!(text(node.txn(txn, LONG).await), COMPACTED);
                }
                below.revision = floor;
                let at = node.request(Request::Range(below), LONG).await;
                assert!(at.is_ok(), "{at:?}");
            });
        }
    }
}

/// The leader of the group hears of the floor later than node 2.
async fn compacted_unheard() -> (Cluster, Range) {
    let cluster = Cluster::start(3, &["f", "m"]).await;
    cluster.lead(ROOT, 1).await;
    cluster.lead(GroupId(2), 3).await;
    cluster.slow(1, 3, 300);
    let (_, below) = compacted(&cluster).await;
    (cluster, below)
}

#[test]
fn rule_15_no_read_is_answered_by_one_who_has_not_heard_of_the_compaction() {
    simulate(async {
        let (cluster, below) = compacted_unheard().await;
        let read = cluster.node(2).request(Request::Range(below), LONG).await;
        assert_eq!(text(read), COMPACTED);
    });
}

#[test]
fn rule_15_no_write_is_evaluated_by_one_who_has_not_heard_of_the_compaction() {
    simulate(async {
        let (cluster, below) = compacted_unheard().await;
        let txn = Txn {
            success: vec![Op::Range(below), Op::Put(put("n", "3"))],
            ..Txn::default()
        };
        let outcome = cluster.node(3).txn(txn, LONG).await;
        assert_eq!(text(outcome), COMPACTED);
        assert_eq!(cluster.node(2).get("n").await.kvs[0].value, "2");
    });
}

#[test]
fn rule_15_every_group_applies_the_floor_through_its_log() {
    simulate(async {
        let cluster = Cluster::start(3, &["f", "m"]).await;
        cluster.network.isolate(NodeId(2));
        for group in 0..3 {
            cluster.until_led_among(GroupId(group), &[1, 3]).await;
        }
        let (floor, _) = compacted(&cluster).await;
        cluster.network.heal_all();
        for id in 1..=3 {
            let node = cluster.node(id);
            until(|| {
                let status = node.status();
                status.len() == 3 && status.iter().all(|replica| replica.floor.0 == floor)
            })
            .await;
        }
        let again = cluster.node(2).compact(revision(floor), LONG).await;
        assert_eq!(text(again), COMPACTED);
        let future = cluster.node(2).compact(revision(floor + 1), LONG).await;
        assert_eq!(
            text(future),
            "etcdserver: mvcc: required revision is a future revision"
        );
    });
}

#[test]
fn rule_15_one_who_no_longer_leads_refuses_no_revision_as_future() {
    simulate(async {
        let cluster = Cluster::start(3, &[]).await;
        cluster.lead(ROOT, 1).await;
        cluster.node(1).put("a", "1").await;
        cluster.network.isolate(NodeId(1));
        cluster.until_led_among(ROOT, &[2, 3]).await;
        let acknowledged = cluster.node(2).put("a", "2").await;
        // Node 1 has not heard of it, nor that it no longer leads.
        let node = cluster.node(1);
        let compacted = node.compact(revision(acknowledged), SHORT).await;
        assert_eq!(compacted, Err(Failure::TimedOut));
    });
}
