//! Members come, change their part, and go.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use openraft::EntryPayload;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep, timeout};

use super::snapshots::write_past;
use super::{Cluster, STORE, new_disk, nodes, propose, simulate};
use crate::position::{NodeId, Term};
use crate::raft::message::{self, Request};
use crate::raft::{Begin, Group, Proposed, Unchanged, begin};

impl Cluster {
    /// Adds an empty node as a learner.
    async fn join(&mut self, id: u64) {
        self.open(id, new_disk(1000 + id), Begin::Empty).await;
        let (leader, term) = self.leader().await;
        let added = self.group(leader).add_learner(term, NodeId(id)).await;
        assert_eq!(added, Ok(()));
    }

    /// Waits until the leader knows that a member has all of the log.
    async fn catches_up(&self, id: u64) {
        let caught_up = async {
            loop {
                let (leader, _) = self.leader().await;
                let leader = self.group(leader);
                let progress = leader.progress().unwrap_or_default();
                if progress.get(&NodeId(id)) == Some(&leader.last()) {
                    return;
                }
                sleep(Duration::from_millis(10)).await;
            }
        };
        let caught_up = timeout(Duration::from_secs(60), caught_up).await;
        caught_up.expect("it catches up");
    }

    async fn set_members(
        &self,
        voters: impl IntoIterator<Item = u64>,
        learners: impl IntoIterator<Item = u64>,
    ) -> Result<(), Unchanged> {
        let (leader, term) = self.leader().await;
        let leader = self.group(leader);
        leader
            .set_members(term, &nodes(voters), &nodes(learners))
            .await
    }

    /// A voter that doesn't lead.
    async fn follower(&self) -> u64 {
        let (leader, _) = self.leader().await;
        leader % 3 + 1
    }
}

/// Whether a proposal is applied soon.
async fn commits(group: &Arc<Group>, term: Term) -> bool {
    let proposed = timeout(Duration::from_secs(2), propose(group, term, "x".into())).await;
    matches!(proposed, Ok(Proposed::Applied(_)))
}

#[test]
fn a_learner_catches_up_by_the_log_and_doesnt_count() {
    simulate(async {
        let mut cluster = Cluster::start(60).await;
        cluster.write("before").await;
        cluster.join(4).await;
        cluster.catches_up(4).await;
        let index = cluster.converge().await;
        assert_eq!(cluster.group(4).counts().snapshots_installed, 0);
        for node in cluster.nodes.values() {
            let membership = node.group.membership();
            assert_eq!(membership.voters, nodes([1, 2, 3]), "node {}", node.id);
            assert_eq!(membership.learners, nodes([4]));
            assert!(membership.committed && !membership.joint);
            assert!(membership.index.0 > 0 && membership.index <= index);
            let others = nodes((1..=4).filter(|id| *id != node.id));
            assert_eq!(node.group.peers(), others);
        }
        // Two of three voters are a quorum, with or without the learner.
        let (leader, term) = cluster.leader().await;
        cluster.net.cut(4);
        cluster.net.cut(leader % 3 + 1);
        let group = cluster.group(leader);
        assert!(commits(&group, term).await);
        cluster.net.mend(4);
        cluster.net.cut((leader + 1) % 3 + 1);
        assert!(!commits(&group, term).await);
    });
}

#[test]
fn a_group_is_settled_when_its_learners_have_all() {
    simulate(async {
        let mut cluster = Cluster::start(61).await;
        cluster.join(4).await;
        cluster.catches_up(4).await;
        cluster.net.cut(4);
        cluster.write("not there yet").await;
        let (leader, _) = cluster.leader().await;
        sleep(Duration::from_secs(5)).await;
        assert_eq!(cluster.group(leader).settled(), None);
        cluster.net.mend(4);
        cluster.catches_up(4).await;
        while cluster.group(leader).settled().is_none() {
            sleep(Duration::from_millis(10)).await;
        }
        // A quiet group changes its members too.
        for node in cluster.nodes.values() {
            node.group.set_quiet(true);
        }
        sleep(Duration::from_secs(3600)).await;
        assert_eq!(cluster.set_members([1, 2, 3, 4], []).await, Ok(()));
        cluster.converge().await;
        assert_eq!(cluster.leader().await.0, leader);
    });
}

#[test]
fn a_learner_catches_up_by_a_snapshot() {
    simulate(async {
        let mut cluster = Cluster::start(62).await;
        cluster.open(4, new_disk(4), Begin::Empty).await;
        write_past(&cluster, 4).await;
        let (leader, term) = cluster.leader().await;
        let leader = cluster.group(leader);
        assert_eq!(leader.add_learner(term, NodeId(4)).await, Ok(()));
        cluster.catches_up(4).await;
        cluster.converge().await;
        assert_eq!(cluster.group(4).counts().snapshots_installed, 1);
        assert_eq!(cluster.group(4).membership().learners, nodes([4]));
        // Again, for nothing.
        let before = leader.membership();
        assert_eq!(leader.add_learner(term, NodeId(4)).await, Ok(()));
        assert_eq!(leader.membership(), before);
    });
}

#[test]
fn a_learner_that_becomes_a_voter_counts_and_leads() {
    simulate(async {
        let mut cluster = Cluster::start(63).await;
        cluster.join(4).await;
        cluster.catches_up(4).await;
        assert_eq!(cluster.set_members(1..=4, []).await, Ok(()));
        cluster.converge().await;
        for node in cluster.nodes.values() {
            assert_eq!(node.group.members(), nodes(1..=4));
            assert!(!node.group.membership().joint);
        }
        let (leader, term) = cluster.leader().await;
        let others: Vec<u64> = (1..=3).filter(|id| *id != leader).collect();
        // Now three of four are needed, and the new one is as good as any.
        cluster.net.cut(others[0]);
        assert!(commits(&cluster.group(leader), term).await);
        cluster.net.cut(others[1]);
        assert!(!commits(&cluster.group(leader), term).await);
        cluster.net.mend(others[0]);
        cluster.net.mend(others[1]);
        cluster.write("after all that was under way").await;
        cluster.converge().await;
        let (leader, _) = cluster.leader().await;
        cluster.group(leader).transfer(NodeId(4)).await;
        assert_eq!(cluster.leader_of(&[4]).await.0, 4);
        cluster.write("led by the new one").await;
        cluster.converge().await;
    });
}

#[test]
fn a_voter_that_is_demoted_is_kept_up_to_date_and_counts_no_more() {
    simulate(async {
        let cluster = Cluster::start(64).await;
        let demoted = cluster.follower().await;
        let voters: Vec<u64> = (1..=3).filter(|id| *id != demoted).collect();
        assert_eq!(cluster.set_members(voters.clone(), [demoted]).await, Ok(()));
        cluster.write("after").await;
        cluster.converge().await;
        assert_eq!(
            cluster.group(demoted).membership().learners,
            nodes([demoted])
        );
        // Both voters are needed. The learner doesn't stand for election.
        let (leader, term) = cluster.leader().await;
        let other = voters.into_iter().find(|id| *id != leader).unwrap();
        cluster.net.cut(other);
        assert!(!commits(&cluster.group(leader), term).await);
        cluster.net.cut(leader);
        cluster.group(demoted).elect().await;
        sleep(Duration::from_secs(60)).await;
        assert_eq!(cluster.group(demoted).leadership().borrow().term, term);
    });
}

#[test]
fn a_leader_that_is_demoted_hands_over_and_follows() {
    simulate(async {
        let cluster = Cluster::start(65).await;
        let (leader, term) = cluster.leader().await;
        let index = cluster.write("before").await;
        let voters: Vec<u64> = (1..=3).filter(|id| *id != leader).collect();
        let started = Instant::now();
        assert_eq!(cluster.set_members(voters.clone(), [leader]).await, Ok(()));
        let (next, next_term) = cluster.leader_of(&voters).await;
        assert!(next_term > term && next != leader);
        // It was told to, and no timeout was waited for.
        assert!(started.elapsed() < Duration::from_millis(300));
        cluster.write("after").await;
        assert!(cluster.converge().await > index);
        let group = cluster.group(leader);
        let seen = *group.leadership().borrow();
        assert_eq!((seen.leader, seen.ready), (Some(NodeId(next)), false));
        assert_eq!(group.quorum_age(), None);
        assert_eq!(group.progress(), None);
        // And back again.
        assert_eq!(cluster.set_members(1..=3, []).await, Ok(()));
        cluster.converge().await;
    });
}

#[test]
fn a_follower_that_is_removed_disturbs_nobody() {
    simulate(async {
        let mut cluster = Cluster::start(66).await;
        let removed = cluster.follower().await;
        let voters: Vec<u64> = (1..=3).filter(|id| *id != removed).collect();
        let (_, term) = cluster.leader().await;
        assert_eq!(cluster.set_members(voters.clone(), []).await, Ok(()));
        let last = cluster.write("after").await;
        sleep(Duration::from_secs(60)).await;
        assert_eq!(cluster.leader_of(&voters).await.1, term);
        let group = cluster.group(removed);
        assert!(group.applied_index() < last);
        assert!(!group.leadership().borrow().ready);
        assert_eq!(propose(&group, term, "x".into()).await, Proposed::Refused);
        drop(group);
        // Nor when it is the only one with timers.
        for voter in &voters {
            cluster.group(*voter).set_quiet(true);
        }
        sleep(Duration::from_secs(60)).await;
        assert_eq!(cluster.leader_of(&voters).await.1, term);
        assert_eq!(cluster.group(voters[0]).peers(), nodes([voters[1]]));
        // It may come back as somebody new.
        cluster.group(removed).destroy().await.unwrap();
        cluster.stop(removed);
        cluster.open(removed, new_disk(9), Begin::Empty).await;
        let (leader, term) = cluster.leader_of(&voters).await;
        let leader = cluster.group(leader);
        assert_eq!(leader.add_learner(term, NodeId(removed)).await, Ok(()));
        cluster.catches_up(removed).await;
        assert_eq!(cluster.set_members(1..=3, []).await, Ok(()));
        cluster.converge().await;
    });
}

/// A leader removes itself. With `deaf`, nobody hears whom it wants to follow it.
async fn remove_leader(seed: u64, deaf: bool) {
    let mut cluster = Cluster::start(seed).await;
    let (leader, term) = cluster.leader().await;
    let voters: Vec<u64> = (1..=3).filter(|id| *id != leader).collect();
    if deaf {
        cluster.net.tamper(Some(Box::new(|_, _, message| {
            match message::decode(STORE, message.clone()) {
                Ok(Request::TakeOver { .. }) => bytes::Bytes::new(),
                _ => message,
            }
        })));
    }
    let group = cluster.group(leader);
    let acknowledged = Arc::new(Mutex::new(Vec::new()));
    let writer = tokio::spawn({
        let (group, acknowledged) = (Arc::clone(&group), Arc::clone(&acknowledged));
        async move {
            for i in 0.. {
                match propose(&group, term, format!("w{i}").into()).await {
                    Proposed::Applied(_) => acknowledged.lock().push(format!("w{i}")),
                    _ => return,
                }
            }
        }
    });
    sleep(Duration::from_millis(20)).await;
    assert_eq!(cluster.set_members(voters.clone(), []).await, Ok(()));
    let (next, next_term) = cluster.leader_of(&voters).await;
    assert!(next != leader && next_term > term);
    let mut leadership = group.leadership();
    let stepped_down = leadership.wait_for(|now| now.leader != Some(NodeId(leader)) && !now.ready);
    let stepped_down = timeout(Duration::from_secs(2), stepped_down).await;
    assert!(stepped_down.is_ok(), "{:?}", group.leadership().borrow());
    timeout(Duration::from_secs(60), writer)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(group.quorum_age(), None);
    assert!(group.confirm().await.is_err());
    assert_eq!(group.settled(), None);
    assert_eq!(group.failure(), None);
    drop((group, leadership));
    cluster.stop(leader);
    cluster.write("after").await;
    cluster.converge().await;
    let acknowledged = acknowledged.lock();
    assert!(!acknowledged.is_empty());
    for command in &*acknowledged {
        let store = cluster.group(next).store();
        let record = store.record(command.as_bytes()).unwrap();
        assert!(record.is_some(), "{command}");
    }
}

#[test]
fn a_leader_that_removes_itself_steps_down_and_another_leads() {
    for seed in 70..75 {
        simulate(remove_leader(seed, false));
    }
}

#[test]
fn another_leads_even_if_it_was_not_told_to() {
    for seed in 75..80 {
        simulate(remove_leader(seed, true));
    }
}

#[test]
fn a_dead_member_is_replaced_while_writes_go_on() {
    for seed in 80..84 {
        simulate(async {
            let mut cluster = Cluster::start(seed).await;
            cluster.write("first").await;
            // Sometimes the leader dies.
            let (leader, _) = cluster.leader().await;
            let dead = match seed % 2 {
                0 => leader,
                _ => leader % 3 + 1,
            };
            drop(cluster.stop(dead));
            cluster.open(4, new_disk(seed), Begin::Empty).await;
            let alive: Vec<u64> = cluster.nodes.keys().copied().collect();
            let done = Arc::new(AtomicBool::new(false));
            let cluster = Arc::new(cluster);
            let writer = tokio::spawn({
                let (cluster, done) = (Arc::clone(&cluster), Arc::clone(&done));
                async move {
                    let mut written = 0;
                    while !done.load(Ordering::Relaxed) {
                        let name = format!("{written}-{}", "v".repeat(500));
                        cluster.write(name).await;
                        written += 1;
                    }
                    written
                }
            });
            let (leader, term) = cluster.leader_of(&alive).await;
            let leader = cluster.group(leader);
            assert_eq!(leader.add_learner(term, NodeId(4)).await, Ok(()));
            sleep(Duration::from_secs(1)).await;
            assert_eq!(cluster.set_members(alive.clone(), []).await, Ok(()));
            sleep(Duration::from_secs(1)).await;
            done.store(true, Ordering::Relaxed);
            let written = writer.await.unwrap();
            assert!(written > 50, "{written}");
            cluster.converge().await;
            for node in cluster.nodes.values() {
                assert_eq!(node.group.members(), nodes(alive.clone()));
                for i in 0..written {
                    let name = format!("{i}-{}", "v".repeat(500));
                    let record = node.group.store().record(&name.as_bytes()[..40]);
                    assert!(record.unwrap().is_some(), "{i} on {}", node.id);
                }
            }
        });
    }
}

#[test]
fn changes_are_refused_for_a_reason() {
    simulate(async {
        let cluster = Cluster::start(90).await;
        let (leader, term) = cluster.leader().await;
        let none = BTreeSet::new();
        let group = cluster.group(leader);
        let follower = cluster.group(leader % 3 + 1);
        let refused = follower.add_learner(term, NodeId(4)).await;
        assert_eq!(refused, Err(Unchanged::NotLeader));
        let early = Term(term.0 + 1);
        let refused = group.set_members(early, &nodes([1, 2]), &none).await;
        assert_eq!(refused, Err(Unchanged::NotLeader));
        let refused = group.set_members(term, &none, &nodes([1])).await;
        assert!(matches!(refused, Err(Unchanged::Invalid(_))));
        assert_eq!(group.membership(), follower.membership());
        // One at a time.
        let (voters, learners) = (nodes(1..=3), nodes([4]));
        let (one, other) = tokio::join!(
            group.set_members(term, &voters, &learners),
            group.add_learner(term, NodeId(5)),
        );
        assert_eq!((one, other), (Ok(()), Err(Unchanged::Busy)));
        assert_eq!(group.membership().learners, nodes([4]));
    });
}

#[test]
fn a_change_by_a_leader_that_others_have_removed_is_lost() {
    simulate(async {
        let cluster = Cluster::start(93).await;
        let (leader, term) = cluster.leader().await;
        let group = cluster.group(leader);
        cluster.net.cut(leader);
        let lost = {
            let group = Arc::clone(&group);
            tokio::spawn(async move { group.add_learner(term, NodeId(4)).await })
        };
        let others: Vec<u64> = (1..=3).filter(|id| *id != leader).collect();
        let (next, next_term) = cluster.leader_of(&others).await;
        let next = cluster.group(next);
        let removed = next
            .set_members(next_term, &nodes(others), &nodes([]))
            .await;
        assert_eq!(removed, Ok(()));
        cluster.net.mend(leader);
        let lost = timeout(Duration::from_secs(60), lost).await;
        assert_eq!(lost.unwrap().unwrap(), Err(Unchanged::Lost));
        assert_eq!(next.membership().learners, nodes([]));
    });
}

#[test]
fn a_change_that_was_left_in_the_middle_is_gone_on_with() {
    simulate(async {
        let mut cluster = Cluster::start(91).await;
        cluster.join(4).await;
        cluster.catches_up(4).await;
        let (leader, _) = cluster.leader().await;
        let group = cluster.group(leader);
        let joint = begin::membership(vec![nodes(1..=3), nodes(2..=4)], nodes(1..=4));
        let appended = group.raft.append_membership(joint, EntryPayload::Blank, []);
        appended.await.unwrap();
        assert!(group.membership().joint);
        assert_eq!(group.members(), nodes(1..=4));
        sleep(Duration::from_secs(1)).await;
        assert_eq!(group.settled(), None);
        drop(group);
        cluster.restart(leader).await;
        // To somewhere else than it was meant to go.
        cluster.open(5, new_disk(5), Begin::Empty).await;
        assert_eq!(cluster.set_members([1, 2, 3, 5], [4]).await, Ok(()));
        cluster.converge().await;
        let (leader, _) = cluster.leader().await;
        let membership = cluster.group(leader).membership();
        assert!(!membership.joint && membership.committed);
        assert_eq!(membership.voters, nodes([1, 2, 3, 5]));
        assert_eq!(membership.learners, nodes([4]));
    });
}

#[test]
fn a_leader_that_is_no_voter_is_never_settled() {
    simulate(async {
        let cluster = Cluster::start(94).await;
        let (leader, term) = cluster.leader().await;
        let group = cluster.group(leader);
        let others = nodes((1..=3).filter(|id| *id != leader));
        // Somebody asked for it and did not wait.
        for voters in [vec![nodes(1..=3), others.clone()], vec![others.clone()]] {
            let next = begin::membership(voters, &others | &nodes([leader]));
            let appended = group.raft.append_membership(next, EntryPayload::Blank, []);
            appended.await.unwrap();
        }
        sleep(Duration::from_secs(5)).await;
        assert_eq!(group.progress().unwrap().len(), 3);
        assert_eq!(group.settled(), None);
        // Asked again, it hands over.
        let again = group.set_members(term, &others, &nodes([leader])).await;
        assert_eq!(again, Ok(()));
        let others: Vec<u64> = others.iter().map(|node| node.0).collect();
        cluster.leader_of(&others).await;
    });
}

#[test]
fn a_leader_knows_when_a_quorum_last_heard_it() {
    simulate(async {
        let mut cluster = Cluster::new(92);
        let alone = Begin::Members(nodes([1]));
        cluster.open(1, new_disk(92), alone).await;
        cluster.converge().await;
        let group = cluster.group(1);
        sleep(Duration::from_secs(5)).await;
        assert_eq!(group.quorum_age(), Some(Duration::ZERO));
        cluster.join(2).await;
        cluster.catches_up(2).await;
        assert_eq!(cluster.set_members([1, 2], []).await, Ok(()));
        sleep(Duration::from_secs(5)).await;
        let heartbeats = Duration::from_millis(300);
        assert!(group.quorum_age().unwrap() < heartbeats);
        assert_eq!(cluster.group(2).quorum_age(), None);
        cluster.net.cut(2);
        sleep(Duration::from_secs(5)).await;
        assert!(group.quorum_age().unwrap() > Duration::from_secs(4));
    });
}
