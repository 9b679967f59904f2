//! Members come and go; every group follows.

use pontoon_raftgroup::{Failure, GroupId, Member, MemberReject, NodeId};

use crate::cluster::{Client, Cluster, LONG, ROOT, pause, simulate, until};

fn member(learner: bool) -> Member {
    Member {
        address: String::new(),
        learner,
    }
}

#[test]
fn a_learner_gets_everything_and_then_a_vote() {
    simulate(async {
        let mut cluster = Cluster::start(3, &["f", "m"]).await;
        for key in ["a", "g", "n"] {
            cluster.node(1).put(key, "1").await;
        }
        let node = cluster.node(1);
        let early = node.member_promote(NodeId(4), LONG).await;
        assert_eq!(early, Err(Failure::Member(MemberReject::NotFound)));
        node.member_add(NodeId(4), member(true), LONG)
            .await
            .expect("it is taken in");
        let again = node.member_add(NodeId(4), member(true), LONG).await;
        assert_eq!(again, Err(Failure::Member(MemberReject::Exists)));
        let early = node.member_promote(NodeId(4), LONG).await;
        assert_eq!(early, Err(Failure::Member(MemberReject::NotInSync)));
        let id = cluster.join().await;
        until(|| cluster.node(id).status().len() == 3).await;
        let mut promoted = node.member_promote(NodeId(4), LONG).await;
        while promoted == Err(Failure::Member(MemberReject::NotInSync)) {
            pause(50).await;
            promoted = node.member_promote(NodeId(4), LONG).await;
        }
        promoted.expect("it is promoted");
        assert!(!node.members()[&NodeId(4)].learner);
        // Two of the old ones are gone: the new one's vote counts everywhere.
        pause(3000).await;
        cluster.kill(2);
        for key in ["a", "g", "n"] {
            cluster.node(4).put(key, "2").await;
        }
        assert_eq!(cluster.node(4).get("g").await.kvs[0].value, "2");
    });
}

#[test]
fn a_dead_member_is_replaced() {
    simulate(async {
        let mut cluster = Cluster::start(3, &["f", "m"]).await;
        cluster.node(1).put("n", "1").await;
        cluster.kill(3);
        let node = cluster.node(1);
        // Its leader may die with what it was asked: then nobody knows.
        while let Err(failure) = node.member_remove(NodeId(3), LONG).await {
            match failure {
                Failure::Member(MemberReject::NotFound) => break,
                failure => assert!(!failure.is_certain(), "{failure}"),
            }
        }
        node.member_add(NodeId(4), member(false), LONG)
            .await
            .expect("it is taken in");
        let id = cluster.join().await;
        for group in 0..3 {
            cluster.until_led_among(GroupId(group), &[1, 2, id]).await;
        }
        pause(5000).await;
        // Now any one of the three may go.
        cluster.kill(1);
        for key in ["a", "g", "n"] {
            cluster.node(id).put(key, "2").await;
        }
    });
}

#[test]
fn a_member_that_leads_everything_is_removed() {
    simulate(async {
        let cluster = Cluster::start(3, &["m"]).await;
        cluster.lead(ROOT, 1).await;
        cluster.lead(GroupId(1), 1).await;
        cluster.node(2).put("n", "1").await;
        let removed = cluster.node(2).member_remove(NodeId(1), LONG).await;
        removed.expect("it is removed");
        for key in ["a", "n"] {
            cluster.node(2).put(key, "2").await;
        }
        assert_eq!(cluster.node(1).is_removed().await, Some(true));
        assert_eq!(cluster.node(2).members().len(), 2);
    });
}

#[test]
fn leaders_are_spread_within_one_per_voter() {
    simulate(async {
        let cluster = Cluster::start(3, &["c", "f", "m", "p", "t"]).await;
        for group in 0..6 {
            cluster.lead(GroupId(group), 1).await;
        }
        let spread = || {
            let led = |id| {
                let status = cluster.node(id).status();
                status.iter().filter(|replica| replica.leads).count()
            };
            [led(1), led(2), led(3)] == [2, 2, 2]
        };
        until(spread).await;
    });
}

#[test]
fn who_leaves_in_order_leads_nothing() {
    simulate(async {
        let cluster = Cluster::start(3, &["f", "m"]).await;
        for group in 0..3 {
            cluster.lead(GroupId(group), 2).await;
        }
        cluster.node(2).leave(LONG).await;
        for group in 0..3 {
            assert_ne!(cluster.leader(GroupId(group), &[1, 3]), Some(2));
        }
        cluster.node(1).put("n", "1").await;
    });
}
