//! Electing, proposing, handing over, dying and coming back.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, sleep, timeout};

use super::{Cluster, propose, simulate};
use crate::position::{LogIndex, NodeId, Term};
use crate::raft::{Confirmed, NotLeader, Proposed};

#[test]
fn a_thousand_proposals_of_many_tasks_are_applied_in_one_order() {
    simulate(async {
        let cluster = Cluster::start(1).await;
        let (leader, term) = cluster.leader().await;
        let group = cluster.group(leader);
        assert_eq!(group.members(), (1..=3).map(NodeId).collect());
        let tasks: Vec<_> = (0..8)
            .map(|task| {
                let group = group.clone();
                tokio::spawn(async move {
                    let mut last = LogIndex(0);
                    for i in 0..125 {
                        let command = Bytes::from(format!("{task}-{i}"));
                        let proposed = propose(&group, term, command).await;
                        let Proposed::Applied(index) = proposed else {
                            panic!("{proposed:?}");
                        };
                        assert!(index > last && index <= *group.applied().borrow());
                        last = index;
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        let index = cluster.converge().await;
        assert!(index.0 >= 1001, "{index}");
        let told = cluster.nodes[&1].machine.told.lock().clone();
        for node in cluster.nodes.values() {
            let others = node.machine.told.lock();
            assert_eq!(*others, told, "node {}", node.id);
            assert_eq!(node.group.failure(), None);
            assert_eq!(node.group.counts().applied, index);
            assert_eq!(node.group.counts().last, index);
        }
    });
}

#[test]
fn who_is_woken_by_an_entry_finds_it_applied() {
    simulate(async {
        let cluster = Cluster::start(1).await;
        for command in ["a", "b", "c"] {
            cluster.write(command).await;
        }
        let index = cluster.converge().await;
        for node in cluster.nodes.values() {
            let shown = node.machine.shown.lock();
            assert_eq!(shown.last().map(|(index, _)| *index), Some(index));
            assert!(shown.iter().all(|(index, applied)| applied == index));
        }
    });
}

#[test]
fn who_ends_in_order_leaves_nothing_to_apply_again() {
    simulate(async {
        let cluster = Cluster::start(1).await;
        cluster.write("a").await;
        let index = cluster.converge().await;
        let group = cluster.group(1);
        let durable = || group.store().checkpoints().borrow().index;
        assert!(durable() < index.0);
        group.finish(Duration::from_secs(5)).await;
        assert_eq!(durable(), index.0);
    });
}

#[test]
fn only_who_leads_in_the_term_may_propose() {
    simulate(async {
        let cluster = Cluster::start(2).await;
        let (leader, term) = cluster.leader().await;
        let follower = leader % 3 + 1;
        let refused = propose(&cluster.group(follower), term, "a".into()).await;
        assert_eq!(refused, Proposed::Refused);
        let early = propose(&cluster.group(leader), Term(term.0 + 1), "b".into()).await;
        assert_eq!(early, Proposed::Refused);
        assert_eq!(cluster.group(follower).confirm().await, Err(NotLeader));
        let seen = *cluster.group(follower).leadership().borrow();
        assert_eq!((seen.leader, seen.ready), (Some(NodeId(leader)), false));
        cluster.group(leader).confirm().await.unwrap();
    });
}

#[test]
fn a_leader_that_nobody_hears_confirms_nothing_and_its_proposal_is_unknown() {
    simulate(async {
        let cluster = Cluster::start(3).await;
        let (leader, term) = cluster.leader().await;
        cluster.net.cut(leader);
        let group = cluster.group(leader);
        assert_eq!(group.confirm().await, Err(NotLeader));
        let lost = tokio::spawn({
            let group = group.clone();
            async move { propose(&group, term, "lost".into()).await }
        });
        let others: Vec<u64> = (1..=3).filter(|id| *id != leader).collect();
        let (next, next_term) = cluster.leader_of(&others).await;
        assert!(next_term > term);
        let kept = propose(&cluster.group(next), next_term, "kept".into()).await;
        assert!(matches!(kept, Proposed::Applied(_)));
        cluster.net.mend(leader);
        let lost = timeout(Duration::from_secs(30), lost).await.unwrap();
        assert!(matches!(
            lost.unwrap(),
            Proposed::Unknown | Proposed::Refused
        ));
        cluster.converge().await;
        assert!(group.store().record(b"kept").unwrap().is_some());
    });
}

#[test]
fn leadership_is_handed_over_and_taken() {
    simulate(async {
        let cluster = Cluster::start(4).await;
        let (leader, term) = cluster.leader().await;
        cluster.write("before").await;
        let to = leader % 3 + 1;
        cluster.group(leader).transfer(NodeId(to)).await;
        let (next, next_term) = cluster.leader_of(&[to]).await;
        assert_eq!(next, to);
        assert!(next_term > term);
        cluster.write("between").await;
        cluster.converge().await;
        // Who hears its leader doesn't get far.
        cluster
            .group(leader)
            .raft
            .trigger()
            .elect(true)
            .await
            .unwrap();
        sleep(Duration::from_secs(1)).await;
        assert_eq!(cluster.leader().await, (next, next_term));
    });
}

#[test]
fn a_leader_that_should_hand_over_to_itself_goes_on() {
    simulate(async {
        let cluster = Cluster::start(4).await;
        let (leader, term) = cluster.leader().await;
        let group = cluster.group(leader);
        group.transfer(NodeId(leader)).await;
        // Without timers, nothing would end a transfer.
        group.set_quiet(true);
        cluster.write("after").await;
        assert_eq!(cluster.leader().await, (leader, term));
    });
}

/// What happened in a run, in order, with times.
async fn run(seed: u64) -> Vec<String> {
    let mut cluster = Cluster::start(seed).await;
    let start = Instant::now();
    let mut events = Vec::new();
    let mut acknowledged = BTreeSet::new();
    for round in 0..6 {
        for i in 0..30 {
            let command = format!("{round}-{i}-{}", "x".repeat(i * 20));
            cluster.write(command.clone()).await;
            acknowledged.insert(command);
        }
        let (leader, term) = cluster.leader().await;
        events.push(format!("{:?} {leader} {term}", start.elapsed()));
        let victim = match round % 2 {
            0 => leader,
            _ => leader % 3 + 1,
        };
        cluster.restart(victim).await;
    }
    cluster.write("the end").await;
    let index = cluster.converge().await;
    events.push(format!("{:?} {index}", start.elapsed()));
    for node in cluster.nodes.values() {
        let store = node.group.store();
        for command in &acknowledged {
            let name = &command.as_bytes()[..command.len().min(40)];
            let record = store.record(name).unwrap();
            assert_eq!(
                record.as_deref(),
                Some(command.as_bytes()),
                "node {}",
                node.id
            );
        }
        events.push(format!("{:?}", store.applied_hash().unwrap()));
    }
    events
}

#[test]
fn nothing_acknowledged_is_lost_when_power_fails_again_and_again() {
    for seed in 10..20 {
        simulate(run(seed));
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    assert_eq!(simulate(run(7)), simulate(run(7)));
    assert_ne!(simulate(run(7)), simulate(run(8)));
}

#[test]
fn a_quiet_group_costs_no_message_and_wakes_by_a_proposal() {
    simulate(async {
        let cluster = Cluster::start(5).await;
        cluster.write("first").await;
        let index = cluster.converge().await;
        let (leader, term) = cluster.leader().await;
        while cluster.group(leader).settled() != Some(index) {
            sleep(Duration::from_millis(10)).await;
        }
        let others = cluster.nodes.keys().filter(|id| **id != leader);
        assert!(
            others
                .clone()
                .all(|id| cluster.group(*id).settled().is_none())
        );
        for node in cluster.nodes.values() {
            node.group.set_quiet(true);
        }
        sleep(Duration::from_secs(2)).await;
        let before = cluster.net.messages();
        sleep(Duration::from_secs(3600)).await;
        assert_eq!(cluster.net.messages(), before);
        // A read asks a quorum and lets everybody sleep on.
        let confirmed = cluster.group(leader).confirm().await;
        assert_eq!(confirmed, Ok(Confirmed { term, index }));
        assert!(cluster.nodes.values().all(|node| node.group.is_quiet()));
        sleep(Duration::from_secs(3600)).await;
        let woken = propose(&cluster.group(leader), term, "woken".into()).await;
        assert!(matches!(woken, Proposed::Applied(_)), "{woken:?}");
        cluster.converge().await;
        assert!(cluster.nodes.values().all(|node| !node.group.is_quiet()));
        sleep(Duration::from_secs(10)).await;
        assert_eq!(cluster.leader().await, (leader, term));
        // A leader that dies is missed again.
        cluster.net.cut(leader);
        let others: Vec<u64> = others.copied().collect();
        cluster.leader_of(&others).await;
    });
}
