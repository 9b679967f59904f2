//! Members come and go; every group follows.

use pontoon_raftgroup::{Failure, GroupId, Member, MemberReject, NodeId};

use tokio::task::spawn_local;

use crate::cluster::{Client, Cluster, LONG, ROOT, SHORT, pause, simulate, until, use_all};

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

/// A voter that is not there yet takes nothing from the others: two of three
/// are enough until it has everything.
#[test]
fn in_every_group_a_new_voter_listens_first_and_then_votes() {
    simulate(async {
        let keys = ["a", "g", "n"];
        let mut cluster = Cluster::start(3, &["f", "m"]).await;
        use_all(&cluster.node(1), &keys).await;
        let node = cluster.node(1);
        let added = node.member_add(NodeId(4), member(false), LONG).await;
        added.expect("it is taken in");
        pause(3000).await;
        cluster.kill(3);
        use_all(&cluster.node(1), &keys).await;
        cluster.start_again(3).await;
        let id = cluster.join().await;
        for group in 0..3 {
            let has_all = |id, group| cluster.replica(id, group).map(|one| one.applied);
            let group = GroupId(group);
            until(|| has_all(id, group).is_some() && has_all(id, group) == has_all(1, group)).await;
        }
        // Now it takes three of four.
        pause(3000).await;
        cluster.kill(3);
        cluster.network.isolate(NodeId(4));
        for key in keys {
            let alone = cluster.node(1).put_within(key, "no", 4 * SHORT).await;
            assert!(alone.is_err(), "{key}: {alone:?}");
        }
        cluster.network.rejoin(NodeId(4));
        use_all(&cluster.node(1), &keys).await;
    });
}

/// The new one gets nothing of one group, whose leader doesn't reach it.
#[test]
fn promote_refuses_until_all_groups_are_in_sync() {
    simulate(async {
        let mut cluster = Cluster::start(3, &["f", "m"]).await;
        for (group, leader) in [(0, 1), (1, 2), (2, 3)] {
            cluster.lead(GroupId(group), leader).await;
        }
        let node = cluster.node(1);
        let added = node.member_add(NodeId(4), member(true), LONG).await;
        added.expect("it is taken in");
        cluster.part(3, 4);
        let id = cluster.join().await;
        for group in [ROOT, GroupId(1)] {
            let applied = |id| cluster.replica(id, group).map(|one| one.applied);
            until(|| applied(id).is_some() && applied(id) == applied(1)).await;
        }
        for _ in 0..10 {
            pause(300).await;
            let early = node.member_promote(NodeId(4), LONG).await;
            assert_eq!(early, Err(Failure::Member(MemberReject::NotInSync)));
        }
        cluster.network.heal_all();
        let mut promoted = node.member_promote(NodeId(4), LONG).await;
        while promoted == Err(Failure::Member(MemberReject::NotInSync)) {
            pause(50).await;
            promoted = node.member_promote(NodeId(4), LONG).await;
        }
        promoted.expect("it is promoted");
    });
}

/// The leader of a group hears late that a member is removed, and counts it
/// until then: it could not do without it, if another one failed.
#[test]
fn a_removed_member_stops_only_when_no_group_counts_it() {
    simulate(async {
        let cluster = Cluster::start(5, &["m"]).await;
        cluster.lead(ROOT, 3).await;
        cluster.lead(GroupId(1), 2).await;
        cluster.slow(3, 2, 600);
        let node = cluster.node(1);
        let removing = spawn_local(async move { node.member_remove(NodeId(5), LONG).await });
        until(|| cluster.node(1).members().len() == 4).await;
        pause(300).await;
        assert!(!removing.is_finished());
        assert_ne!(cluster.node(5).is_removed().await, Some(true));
        cluster.slow(3, 2, 0);
        removing.await.expect("it runs").expect("it is removed");
        assert_eq!(cluster.node(5).is_removed().await, Some(true));
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

/// A member that leaves takes no lead from another that leaves.
#[test]
fn members_that_leave_together_dont_wait_for_each_other() {
    simulate(async {
        let cluster = Cluster::start(3, &["f", "m"]).await;
        let begin = tokio::time::Instant::now();
        tokio::join!(
            cluster.node(1).leave(LONG),
            cluster.node(2).leave(LONG),
            cluster.node(3).leave(LONG),
        );
        let took = begin.elapsed();
        assert!(took < SHORT, "{took:?}");
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
