//! Rule 14: what goes on, and what waits, when a leader dies.

use pontoon_raftgroup::GroupId;

use crate::cluster::{Client, Cluster, ROOT, SHORT, simulate, soon};

#[test]
fn rule_14_when_a_groups_leader_dies_the_others_go_on() {
    simulate(async {
        let mut cluster = Cluster::start(3, &["f", "m"]).await;
        cluster.lead(ROOT, 1).await;
        cluster.lead(GroupId(1), 2).await;
        cluster.lead(GroupId(2), 3).await;
        let mut last = cluster.node(1).put("g", "0").await;
        cluster.kill(2);
        let node = cluster.node(3);
        let waits = tokio::spawn(async move { node.put("g", "1").await });
        for n in 0..20 {
            let key = ["a", "n"][n % 2];
            let written = soon(cluster.node(1).put(key, "1")).await;
            let written = written.expect("it doesn't wait");
            assert!(written > last);
            last = written;
            let read = soon(cluster.node(3).get(key)).await;
            assert!(read.expect("it doesn't wait").revision.0 >= written);
        }
        assert!(!waits.is_finished());
        assert!(waits.await.expect("it ends") > last);
    });
}

#[test]
fn rule_14_when_the_sequencer_dies_revisions_jump_and_never_repeat() {
    simulate(async {
        let mut cluster = Cluster::start(5, &["f", "m"]).await;
        cluster.lead(GroupId(1), 5).await;
        cluster.lead(GroupId(2), 5).await;
        let mut last = 0;
        for sequencer in [1, 2] {
            cluster.lead(ROOT, sequencer).await;
            for n in 0..10 {
                let written = cluster.node(5).put(["a", "g", "n"][n % 3], "1").await;
                assert!(written > last);
                last = written;
            }
            cluster.kill(sequencer);
            // Nothing is granted until there is another one.
            let early = cluster.node(5).put_within("n", "2", SHORT).await;
            assert!(early.is_err(), "{early:?}");
            let written = cluster.node(5).put("n", "3").await;
            assert!(written > last + 1000, "{written} after {last}");
            last = written;
        }
    });
}
