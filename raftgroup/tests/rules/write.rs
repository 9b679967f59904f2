//! Rules 1 and 10: what a write is given, and what it waits for.

use tokio::time::Instant;

use crate::cluster::{Client, Cluster, LONG, ROOT, SHORT, pause, put_if, simulate};
use pontoon_raftgroup::{GroupId, NodeId};

/// Writes in turn, through all nodes, with things in between that change nothing.
async fn dense(splits: &[&'static str], first: Option<i64>) {
    let cluster = Cluster::start(3, splits).await;
    let mut last = cluster.node(1).put("a", "0").await;
    assert!(first.is_none_or(|first| first == last));
    for n in 0..30 {
        let node = cluster.node(1 + n % 3);
        let key = ["a", "g", "n"][n as usize % 3];
        assert_eq!(node.put(key, &n.to_string()).await, last + 1);
        last += 1;
        assert_eq!(node.delete("nothing").await, (last, 0));
        let failed = node.txn(put_if(key, 1000, "never"), SHORT).await;
        let failed = failed.expect("it is answered");
        assert_eq!((failed.succeeded, failed.revision.0), (false, last));
        assert_eq!(node.get(key).await.revision.0, last);
    }
}

#[test]
fn rule_1_revisions_are_dense_in_one_group() {
    simulate(dense(&[], Some(2)));
}

#[test]
fn rule_1_revisions_are_dense_over_many_groups() {
    simulate(dense(&["f", "m"], None));
}

/// A leader that was deposed without hearing of it still has the old state. A
/// compare that fails there holds where the new leader is.
#[test]
fn rule_1_what_changes_nothing_is_answered_at_a_confirmed_point() {
    for splits in [&["m"][..], &[]] {
        simulate(async {
            let cluster = Cluster::start(3, splits).await;
            let group = GroupId(splits.len() as u64);
            cluster.lead(ROOT, 1).await;
            cluster.lead(group, 3).await;
            cluster.node(1).put("n", "once").await;
            pause(300).await;
            cluster.network.isolate(NodeId(3));
            cluster.until_led_among(group, &[1, 2]).await;
            cluster.node(1).put("n", "twice").await;
            let late = cluster.node(3).txn(put_if("n", 2, "thrice"), SHORT).await;
            assert!(late.is_err(), "{late:?}");
            cluster.network.rejoin(NodeId(3));
            let done = cluster.node(3).txn(put_if("n", 2, "thrice"), LONG).await;
            assert!(done.expect("it is answered").succeeded);
        });
    }
}

/// The grant of a lower revision is on its way to a leader that never gets it.
#[test]
fn rule_10_a_write_waits_for_no_lower_revision_of_another_group() {
    simulate(async {
        let cluster = Cluster::start(3, &["f", "m"]).await;
        cluster.lead(ROOT, 1).await;
        cluster.lead(GroupId(1), 2).await;
        cluster.lead(GroupId(2), 3).await;
        let before = cluster.node(1).put("n", "0").await;
        // Questions arrive, answers don't.
        cluster.network.cut(NodeId(1), NodeId(2));
        let stuck = cluster.node(2);
        let stuck = tokio::spawn(async move { stuck.put("g", "stuck").await });
        pause(50).await;
        let began = Instant::now();
        // One revision is missing: it was granted to the other group.
        assert_eq!(cluster.node(3).put("n", "1").await, before + 2);
        assert!(began.elapsed() < SHORT / 5);
        assert!(!stuck.is_finished());
        cluster.network.heal_all();
        let stuck = stuck.await.expect("it ends");
        assert!(stuck > before + 2);
    });
}
