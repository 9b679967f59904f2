//! Which nodes have which group, and who leads it.

use std::collections::BTreeSet;

use pontoon_engine::{Op, Reject, Txn};
use pontoon_raftgroup::{Failure, GroupId, MemberReject, NodeId};

use crate::cluster::{
    Client, Cluster, LONG, ROOT, SHORT, pause, put, range, revision, simulate, until, use_all,
};
use crate::split::split;
use crate::txn::move_one;

/// The groups that the map places on each node, and those that it has.
fn placed_and_there(cluster: &Cluster, id: u64) -> (BTreeSet<GroupId>, BTreeSet<GroupId>) {
    let map = cluster.node(id).map().expect("it is known");
    let placed = map
        .ranges()
        .filter(|(placed, _)| placed.members.contains(&NodeId(id)));
    let placed = placed.map(|(placed, _)| placed.group).collect();
    let status = cluster.node(id).status();
    (placed, status.iter().map(|one| one.group).collect())
}

async fn until_as_the_map_says(cluster: &Cluster) {
    for id in cluster.running() {
        until(|| {
            let (placed, there) = placed_and_there(cluster, id);
            placed == there
        })
        .await;
    }
}

#[test]
fn by_default_every_group_is_on_every_voter() {
    simulate(async {
        let cluster = Cluster::start(5, &["f", "m"]).await;
        split(&cluster.node(1), "t").await;
        until_as_the_map_says(&cluster).await;
        let map = cluster.node(1).map().expect("it is known");
        let all: Vec<_> = (1..=5).map(NodeId).collect();
        for (placed, _) in map.ranges() {
            assert_eq!((&placed.voters, &placed.members), (&all, &all));
        }
        assert!((1..=5).all(|id| cluster.node(id).status().len() == 4));
    });
}

/// Seven nodes, of which three have a group and five vote in the root group.
async fn seven() -> Cluster {
    let splits = &["c", "f", "m", "t"];
    Cluster::start_with(7, splits, |config| config.replicas = 3).await
}

#[test]
fn with_three_replicas_a_group_is_on_three_nodes_and_the_root_group_votes_on_five() {
    simulate(async {
        let cluster = seven().await;
        split(&cluster.node(1), "p").await;
        until_as_the_map_says(&cluster).await;
        let map = cluster.node(1).map().expect("it is known");
        for (placed, _) in map.ranges() {
            let many = (placed.voters.len(), placed.members.len());
            let due = if placed.group.is_root() {
                (5, 7)
            } else {
                (3, 3)
            };
            assert_eq!(many, due, "group {}", placed.group);
        }
    });
}

/// It begins on every member, since the root group is.
#[test]
fn with_three_replicas_what_is_split_off_from_the_root_group_is_on_three_nodes() {
    simulate(async {
        let cluster = Cluster::start_with(7, &[], |config| config.replicas = 3).await;
        let keys = ["a", "n", "t"];
        use_all(&cluster.node(1), &keys).await;
        let child = split(&cluster.node(1), "m").await;
        let of_child = split(&cluster.node(2), "p").await;
        let voters = |group| {
            let map = cluster.node(3).map().expect("it is known");
            map.placed(group).expect("it is there").voters.clone()
        };
        until(|| voters(child).len() == 3 && voters(of_child).len() == 3).await;
        until_as_the_map_says(&cluster).await;
        assert_eq!(voters(ROOT).len(), 5);
        for id in cluster.running() {
            use_all(&cluster.node(id), &keys).await;
        }
    });
}

#[test]
fn with_three_replicas_requests_work_from_every_member() {
    simulate(async {
        let cluster = seven().await;
        let keys = ["a", "d", "g", "n", "u"];
        for id in 1..=7 {
            use_all(&cluster.node(id), &keys).await;
        }
        for key in keys {
            cluster.node(1).put(key, "10").await;
        }
        for id in 1..=7 {
            let node = cluster.node(id);
            while !move_one(&node, "d", "u").await {}
            let here = node.get_here("u").await.expect("it is read");
            assert_eq!(here.kvs[0].value, (10 + id).to_string());
            let lease = node.lease_grant(0, 60, LONG).await.expect("granted");
            node.lease_revoke(lease.id, LONG).await.expect("revoked");
        }
    });
}

/// A member without a replica asks the voters who leads. One whose disk hangs
/// doesn't know; then another one is asked, also for what is sent only once. A
/// latch that a refused transaction doesn't let go of would hold the next write
/// up until it expires.
#[test]
fn with_three_replicas_a_voter_that_knows_no_leader_holds_nobody_up() {
    simulate(async {
        let cluster = Cluster::start_with(5, &["m"], |config| config.replicas = 3).await;
        let group = GroupId(1);
        let map = cluster.node(1).map().expect("it is known");
        let voters = map.placed(group).expect("it is placed").voters.clone();
        let outsider = (1..=5).find(|id| !voters.contains(&NodeId(*id)));
        let outsider = cluster.node(outsider.expect("there are five"));
        let [hangs, others @ ..] = &voters[..] else {
            panic!("{voters:?}");
        };
        let others: Vec<_> = others.iter().map(|id| id.0).collect();
        cluster.lead(ROOT, others[0]).await;
        cluster.lead(group, hangs.0).await;
        let old = outsider.put("a", "0").await;
        let floor = outsider.put("n", "0").await;
        let compacted = outsider.compact(revision(floor), LONG).await;
        compacted.expect("it is compacted");
        cluster.disk(hangs.0).hang();
        outsider.put("n", "1").await;
        let leader = cluster.until_led_among(group, &others).await;
        let mut at_old = range("a");
        at_old.revision = old;
        let refused = Txn {
            success: vec![
                Op::Put(put("a", "2")),
                Op::Put(put("n", "2")),
                Op::Range(at_old),
            ],
            ..Txn::default()
        };
        for _ in 0..20 {
            let outcome = outsider.txn(refused.clone(), LONG).await;
            assert_eq!(outcome, Err(Failure::Reject(Reject::Compacted)));
            let done = cluster.node(leader).put_within("n", "3", SHORT).await;
            assert!(done.is_ok(), "{done:?}");
        }
    });
}

/// Whoever is asked, and one who has nothing of the group too.
#[test]
fn a_group_goes_to_whom_it_is_told() {
    simulate(async {
        let cluster = seven().await;
        let group = GroupId(1);
        let map = cluster.node(1).map().expect("it is known");
        let placed = map.placed(group).expect("it is placed").clone();
        let outsider = (1..=7).find(|id| !placed.members.contains(&NodeId(*id)));
        let outsider = outsider.expect("there are seven");
        for to in &placed.voters {
            let moved = cluster.node(outsider).move_leader(group, *to, LONG).await;
            assert_eq!(moved, Ok(()));
            let look = cluster.node(to.0).look(group).expect("it is there");
            assert_eq!(look.keys, Some(0));
            use_all(&cluster.node(outsider), &["d"]).await;
            cluster.node(outsider).delete("d").await;
        }
        assert_eq!(cluster.node(outsider).look(group), None);
        let to = NodeId(outsider);
        let refused = cluster.node(1).move_leader(group, to, LONG).await;
        assert_eq!(refused, Err(Failure::Member(MemberReject::NotFound)));
    });
}

/// Three of seven are left, which would be too few if all seven voted.
#[test]
fn who_only_listens_in_the_root_group_has_no_vote() {
    simulate(async {
        let mut cluster = seven().await;
        let map = cluster.node(1).map().expect("it is known");
        let root = map.placed(ROOT).expect("it is placed");
        let voters: Vec<_> = root.voters.iter().map(|node| node.0).collect();
        let left = &voters[..3];
        for id in (1..=7).filter(|id| !left.contains(id)) {
            cluster.kill(id);
        }
        cluster.until_led_among(ROOT, left).await;
        use_all(&cluster.node(left[0]), &["a"]).await;
    });
}

/// Of the groups that the root group's leader has no replica of, too.
#[test]
fn with_three_replicas_leaders_are_spread_over_those_that_have_them() {
    simulate(async {
        let splits = &["b", "c", "d", "f", "m", "p", "t"];
        let cluster = Cluster::start_with(5, splits, |config| config.replicas = 3).await;
        let map = cluster.node(1).map().expect("it is known");
        let groups: Vec<_> = map.ranges().map(|(placed, _)| placed.clone()).collect();
        let led = || {
            let mut led = std::collections::BTreeMap::new();
            for id in 1..=5 {
                let status = cluster.node(id).status();
                led.insert(NodeId(id), status.iter().filter(|one| one.leads).count());
            }
            led
        };
        for one in 1..=5 {
            for placed in groups.iter().filter(|placed| !placed.group.is_root()) {
                if placed.voters.contains(&NodeId(one)) {
                    cluster.lead(placed.group, one).await;
                }
            }
            until(|| {
                let led = led();
                let evenly = |placed: &pontoon_raftgroup::Placed| {
                    let leader = placed.voters.iter().find(|id| {
                        let replica = cluster.replica(id.0, placed.group);
                        replica.is_some_and(|replica| replica.leads)
                    });
                    let least = placed.voters.iter().filter_map(|id| led.get(id)).min();
                    leader.is_some_and(|leader| {
                        led.get(leader) <= least.map(|least| least + 1).as_ref()
                    })
                };
                led.values().sum::<usize>() == groups.len() && groups.iter().all(evenly)
            })
            .await;
        }
    });
}

/// A replica that its group doesn't count any more goes, and keeps nobody from
/// the group meanwhile.
#[test]
fn with_three_replicas_groups_move_when_members_come_and_go() {
    simulate(async {
        let splits = &["b", "c", "d", "f", "m", "p", "t"];
        let mut cluster = Cluster::start_with(5, splits, |config| config.replicas = 3).await;
        let keys = ["a", "b", "c", "d", "f", "m", "p", "t"];
        for come in 6..=8 {
            let member = pontoon_raftgroup::Member {
                address: String::new(),
                learner: false,
            };
            let added = cluster.node(1).member_add(NodeId(come), member, LONG).await;
            added.expect("it is taken in");
            assert_eq!(cluster.join().await, come);
            for id in cluster.running() {
                use_all(&cluster.node(id), &keys).await;
            }
            until_as_the_map_says(&cluster).await;
        }
        for go in [8, 7] {
            let removed = cluster.node(1).member_remove(NodeId(go), LONG).await;
            removed.expect("it is removed");
            cluster.kill(go);
            until_as_the_map_says(&cluster).await;
            for id in cluster.running() {
                use_all(&cluster.node(id), &keys).await;
            }
        }
    });
}

/// All keys count at every member, whichever it has.
#[test]
fn with_three_replicas_every_member_says_the_same_hash() {
    simulate(async {
        let cluster = seven().await;
        for key in ["a", "d", "g", "n", "u"] {
            cluster.node(1).put(key, "here").await;
        }
        let at = cluster.node(1).put("a", "last").await;
        let mut found = std::collections::BTreeSet::new();
        for id in 1..=7 {
            let node = cluster.node(id);
            let end = tokio::time::Instant::now() + LONG;
            let sum = loop {
                let here = node.hash(crate::cluster::revision(at));
                let all = match here {
                    Ok(here) => node.hash_with_others(here).await,
                    failed => failed,
                };
                match all {
                    Ok(all) => break all,
                    Err(failure) => assert!(tokio::time::Instant::now() < end, "{failure}"),
                }
                pause(50).await;
            };
            found.insert(sum.sum);
        }
        assert_eq!(found.len(), 1, "{found:?}");
    });
}

async fn until_spread(cluster: &Cluster) {
    let spread = || {
        let led = cluster.led();
        let (most, least) = (led.iter().max(), led.iter().min());
        led.iter().sum::<usize>() == 6 && most <= least.map(|least| least + 1).as_ref()
    };
    until(spread).await;
}

#[test]
fn leaders_are_spread_after_splits_and_returns_and_restarts() {
    simulate(async {
        let mut cluster = Cluster::start(3, &[]).await;
        for key in ["c", "f", "m", "p", "t"] {
            split(&cluster.node(1), key).await;
        }
        until_spread(&cluster).await;
        // One is away, and the others lead what it led.
        cluster.kill(3);
        for group in 0..6 {
            cluster.until_led_among(GroupId(group), &[1, 2]).await;
        }
        cluster.start_again(3).await;
        until_spread(&cluster).await;
        // All were away, and who comes first leads everything.
        for id in [1, 2, 3] {
            cluster.cut_power(id);
        }
        for id in [1, 2] {
            cluster.start_again(id).await;
        }
        for group in 0..6 {
            cluster.until_led_among(GroupId(group), &[1, 2]).await;
        }
        pause(3000).await;
        cluster.start_again(3).await;
        until_spread(&cluster).await;
        use_all(&cluster.node(2), &["a", "d", "g", "n", "q", "u"]).await;
    });
}
