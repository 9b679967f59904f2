//! Groups in which nothing happens cost nothing: their timers rest, and nodes
//! watch each other instead.
//!
//! Kept true: a group rests only when every member has all of its log; those
//! that a peer's fate concerns are woken when it changes, and one that its
//! leader asks for a leader, because its replica there has stopped.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::codec::Wire;
use crate::message::Message;
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
            if busy || group.is_quiet() {
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

    /// Wakes a quiet group whose leader leads it no more: it asks who does.
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
    replica.busy.store(true, Ordering::Relaxed);
    replica.group.set_quiet(false);
}
