//! Groups in which nothing happens cost nothing: their timers rest, and nodes
//! watch each other instead.
//!
//! Kept true: a group rests only when every member has all of its log; those
//! that a peer's fate concerns are woken when it changes. A quiet group whose
//! believed leader doesn't lead it is woken by whoever notices: who forwards a
//! request to it, or the check that every follower makes twice in an election
//! timeout. Waking never needs the believed leader's disk.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::codec::Wire;
use crate::message::Message;
use crate::mutation::{Mutation, mutated};
use crate::node::Inner;
use crate::position::{GroupId, LogIndex, NodeId, Term};
use crate::replica::Replica;

/// Lets the timers of groups rest in which nothing happens.
pub(crate) async fn rest(node: Arc<Inner>) {
    loop {
        tokio::time::sleep(node.config.quiet_after).await;
        let replicas: Vec<_> = node.replicas.read().values().cloned().collect();
        for replica in replicas {
            let busy = replica.busy.swap(false, Ordering::Relaxed);
            let group = &replica.group;
            if busy || group.is_quiet() || node.health.is_stalled() {
                continue;
            }
            let Some(index) = group.settled() else {
                continue;
            };
            group.set_quiet(true);
            let quiet = Message::Quiet {
                group: replica.id,
                term: group.leadership().borrow().term,
                index,
            };
            for member in group.peers() {
                // One that doesn't hear it will call for an election and be heard.
                let _ = node.link.tell(member, quiet.encode());
            }
        }
    }
}

/// Asks those who are believed to lead quiet groups whether they do, and wakes
/// the groups that nobody leads: their members have no timers to find out.
pub(crate) async fn check_leaders(node: Arc<Inner>) {
    loop {
        tokio::time::sleep(node.config.timing.election_min / 2).await;
        let mut believed: BTreeMap<NodeId, Vec<(GroupId, Term)>> = BTreeMap::new();
        for replica in node.replicas() {
            let leadership = replica.group.leadership_now();
            match leadership.leader {
                _ if !replica.group.is_quiet() => {}
                None => wake(&replica),
                Some(leader) if leader == node.me => {}
                Some(leader) => {
                    let groups = believed.entry(leader).or_default();
                    groups.push((replica.id, leadership.term));
                }
            }
        }
        for (leader, groups) in believed {
            let node = Arc::clone(&node);
            // On its own: a peer that is slow to answer holds nobody up.
            node.scope.clone().spawn(async move {
                let message = Message::Leads { groups };
                let not_led: Option<Vec<GroupId>> =
                    node.call(leader, &message, node.timing.call).await;
                for group in not_led.into_iter().flatten() {
                    if let Some(replica) = node.replica(group) {
                        node.wake_without(leader, &replica);
                    }
                }
            });
        }
    }
}

/// Groups that are woken in one go.
const WAKE_MAX: usize = 64;

impl Inner {
    /// Wakes the quiet groups that are concerned by what happened to a peer:
    /// those that it leads, and those that this node leads.
    pub(crate) fn wake_groups(self: &Arc<Self>, peer: NodeId) {
        let node = Arc::clone(self);
        self.scope.spawn(async move {
            let replicas: Vec<_> = node.replicas.read().values().cloned().collect();
            for some in replicas.chunks(WAKE_MAX) {
                for replica in some.iter().filter(|replica| replica.group.is_quiet()) {
                    let leader = replica.group.leadership().borrow().leader;
                    if leader.is_none_or(|leader| leader == peer || leader == node.me) {
                        wake(replica);
                    }
                }
                tokio::task::yield_now().await;
            }
        });
    }

    /// Wakes the quiet groups whose leader is none of these nodes any more:
    /// nothing will be heard of its fate.
    pub(crate) fn wake_strangers(&self, nodes: &BTreeMap<NodeId, String>) {
        for replica in self.replicas() {
            let leader = replica.group.leader();
            if replica.group.is_quiet()
                && leader.is_some_and(|leader| leader != self.me && !nodes.contains_key(&leader))
            {
                wake(&replica);
            }
        }
    }

    /// Of these groups and terms, the groups that this node doesn't lead.
    pub(crate) fn not_led(&self, groups: &[(GroupId, Term)]) -> Vec<GroupId> {
        let leads = |group: GroupId, term: Term| {
            let replica = self.replica(group);
            replica.is_some_and(|replica| {
                let leadership = replica.group.leadership_now();
                leadership.leader == Some(self.me) && leadership.term == term
            })
        };
        let groups = groups.iter().filter(|(group, term)| !leads(*group, *term));
        groups.map(|(group, _)| *group).collect()
    }

    /// Wakes a quiet group that its believed leader turned out not to lead.
    pub(crate) fn wake_without(&self, leader: NodeId, replica: &Replica) {
        if replica.group.is_quiet() && replica.group.leader() == Some(leader) {
            wake(replica);
        }
    }

    pub(crate) fn rest_follower(&self, from: NodeId, group: GroupId, term: Term, index: LogIndex) {
        let Some(replica) = self.replica(group) else {
            return;
        };
        let leadership = *replica.group.leadership().borrow();
        if leadership.term == term
            && leadership.leader == Some(from)
            && replica.applied() >= index
            && self.link.is_alive(from)
        {
            replica.group.set_quiet(true);
        }
    }
}

fn wake(replica: &Replica) {
    if mutated(Mutation::QuietGroupSleepsOn) {
        return;
    }
    replica.busy.store(true, Ordering::Relaxed);
    replica.group.set_quiet(false);
}
