//! Every group follows what the root group says about members.
//!
//! Kept true: who is to vote gets everything first (as a learner) and only
//! then a vote; who is removed, or damaged, is counted by no group in the end,
//! and a damaged one goes first of all; leaders are spread evenly over those who
//! are there.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::Instant;

use crate::cluster::Cluster;
use crate::map::Placed;
use crate::member::MemberWork;
use crate::message::{Answered, Heard, Message, Work};
use crate::mutation::{Mutation, mutated};
use crate::node::Inner;
use crate::position::{GroupId, NodeId};
use crate::raft::Membership;
use crate::replica::Replica;

/// Between two looks, while something is to be done.
const EVERY: Duration = Duration::from_millis(100);

/// Between two moves of leaderships.
const BALANCE_EVERY: Duration = Duration::from_secs(2);

/// Who has so little left to get has all, about.
const CAUGHT_UP_ENTRIES: u64 = 64;

/// Makes the groups that this node leads follow, for as long as it runs.
pub(crate) async fn reconcile(node: Arc<Inner>) {
    let mut cluster = node.cluster.subscribe();
    let mut balanced = Instant::now();
    let mut known = BTreeMap::new();
    loop {
        let now = cluster.borrow_and_update().clone();
        let addresses = node.addresses();
        known.extend(addresses.clone());
        known.retain(|id, _| addresses.contains_key(id) || node.is_counted_here(*id));
        node.link.set_peers(&known);
        node.wake_strangers(&addresses);
        node.tell_of_rebuilt(&now).await;
        let mut settled = true;
        for replica in node.replicas() {
            settled &= node.follow_members(&replica, &now).await;
            settled &= node.follow_removal(&replica, &now).await;
        }
        if balanced.elapsed() >= BALANCE_EVERY {
            balanced = Instant::now();
            node.thin(&now).await;
            node.balance(&now).await;
        }
        let pause = if settled { BALANCE_EVERY / 2 } else { EVERY };
        if let Ok(Err(_)) = tokio::time::timeout(pause, cluster.changed()).await {
            return;
        }
    }
}

/// What a group's members should be.
struct Target {
    voters: BTreeSet<NodeId>,
    learners: BTreeSet<NodeId>,
}

impl Target {
    fn of(placed: &Placed, cluster: &Cluster) -> Self {
        let counts = |node: &&NodeId| {
            !cluster.damaged.contains(&(placed.group, **node))
                && cluster
                    .members
                    .as_ref()
                    .is_some_and(|members| members.contains_key(*node))
        };
        let voters: BTreeSet<_> = placed.voters.iter().filter(counts).copied().collect();
        let members = placed.members.iter().filter(counts).copied();
        Self {
            learners: members.filter(|node| !voters.contains(node)).collect(),
            voters,
        }
    }

    /// The next membership on the way there: nobody gets a vote before it has
    /// caught up, and nobody who is still welcome goes before all have. A member
    /// that was removed stays that long, too, if the others are no quorum.
    fn next(
        &self,
        now: &Membership,
        caught_up: &BTreeSet<NodeId>,
        welcome: &BTreeSet<NodeId>,
        damaged: &BTreeSet<NodeId>,
    ) -> (BTreeSet<NodeId>, BTreeSet<NodeId>) {
        let voters: BTreeSet<_> = self
            .voters
            .iter()
            .filter(|node| now.voters.contains(node) || caught_up.contains(node))
            .copied()
            .collect();
        let all = voters == self.voters;
        let mut next = voters.clone();
        if !all {
            // Those who will go stay until the others are there.
            let may_stay =
                |node: &&NodeId| !damaged.contains(node) && !self.learners.contains(node);
            let may_stay = now.voters.iter().filter(may_stay);
            next.extend(may_stay.clone().filter(|node| welcome.contains(node)));
            if 2 * next.intersection(caught_up).count() <= next.len() {
                next.extend(may_stay.filter(|node| caught_up.contains(node)));
            }
        }
        let waiting = self.voters.iter().filter(|node| !next.contains(node));
        let mut learners: BTreeSet<_> = waiting.chain(&self.learners).copied().collect();
        learners.retain(|node| !next.contains(node));
        (next, learners)
    }
}

impl Inner {
    /// Where all nodes are that this one may have to do with.
    pub(crate) fn addresses(&self) -> BTreeMap<NodeId, String> {
        let members = self.member_list().into_iter();
        let mut addresses: BTreeMap<_, _> =
            members.map(|(id, member)| (id, member.address)).collect();
        if self.cluster.borrow().members.is_none() {
            addresses.extend(self.config.members.clone());
        }
        addresses
    }

    /// Whether some group here counts a node, which may have been removed.
    fn is_counted_here(&self, id: NodeId) -> bool {
        let replicas = self.replicas().into_iter();
        let mut counting =
            replicas.filter(|replica| replica.group.membership().nodes().contains(&id));
        counting.next().is_some()
    }

    /// Brings the members of a group that this node leads closer to what they
    /// should be. `true` if they are.
    async fn follow_members(self: &Arc<Self>, replica: &Arc<Replica>, cluster: &Cluster) -> bool {
        let leadership = *replica.group.leadership().borrow();
        if !leadership.ready || leadership.leader != Some(self.me) {
            return true;
        }
        let (Some(map), Some(members)) = (&cluster.map, &cluster.members) else {
            return true;
        };
        let Some(placed) = map.placed(replica.id) else {
            return true;
        };
        let now = replica.group.membership();
        let mut splits = cluster.splits.under_way.iter();
        if splits.any(|splitting| splitting.parent == replica.id) && !now.joint {
            // The child gets the members that its parent has: they stay. (A
            // change that was begun comes to its end first.)
            return false;
        }
        let target = Target::of(placed, cluster);
        if target.voters.is_empty()
            || (!now.joint && now.voters == target.voters && now.learners == target.learners)
        {
            return true;
        }
        let last = replica.group.last();
        let progress = replica.group.progress().unwrap_or_default();
        let mut caught_up: BTreeSet<_> = progress
            .iter()
            .filter(|(node, matched)| {
                matched.0 > 0
                    && matched.0 + CAUGHT_UP_ENTRIES >= last.0
                    && self.link.is_alive(**node)
            })
            .map(|(node, _)| *node)
            .collect();
        caught_up.insert(self.me);
        let welcome = members.keys().copied().collect();
        let damaged = cluster.damaged.iter();
        let damaged = damaged.filter(|(group, _)| *group == replica.id);
        let damaged = damaged.map(|(_, node)| *node).collect();
        let (voters, learners) = target.next(&now, &caught_up, &welcome, &damaged);
        if voters.is_empty() {
            return false;
        }
        if now.joint || now.voters != voters || now.learners != learners {
            let term = leadership.term;
            let changed = replica.group.set_members(term, &voters, &learners);
            match tokio::time::timeout(5 * self.timing.call, changed).await {
                Ok(Ok(())) => {
                    tracing::info!(
                        "group {}: voters {voters:?}, learners {learners:?}",
                        replica.id
                    );
                }
                Ok(Err(reason)) => tracing::debug!("group {}: {reason}", replica.id),
                Err(_) => tracing::debug!("group {}: its members change slowly", replica.id),
            }
        }
        false
    }

    /// Removes a replica that the group doesn't count and the map doesn't
    /// place here. `true` if there is nothing to do.
    async fn follow_removal(self: &Arc<Self>, replica: &Arc<Replica>, cluster: &Cluster) -> bool {
        let Some(map) = &cluster.map else {
            return true;
        };
        let placed = map.placed(replica.id);
        let stays = placed.is_none_or(|placed| placed.members.contains(&self.me));
        if stays || replica.id.is_root() {
            return true;
        }
        let mut splits = cluster.splits.under_way.iter();
        if splits.any(|splitting| splitting.parent == replica.id) {
            return false;
        }
        let soon = Instant::now() + self.timing.call;
        match self.counted(replica.id, self.me, soon).await {
            Ok(counted) if counted.is_out() => {}
            _ => return false,
        }
        let Some(_claim) = self.claims.claim(replica.id) else {
            return false;
        };
        self.copies.all_made(replica.id).await;
        self.replicas.write().remove(&replica.id);
        if let Err(error) = replica.group.destroy().await {
            // What is left of it says that it is to be removed.
            let group = replica.id;
            tracing::error!(%group, %error, "the replica could not be removed");
        }
        true
    }

    /// Has ranges on too many members placed like others, once they serve; the
    /// root group's leader sees to that.
    async fn thin(self: &Arc<Self>, cluster: &Cluster) {
        let (Some(map), Some(members)) = (&cluster.map, &cluster.members) else {
            return;
        };
        if self.root().group.leader() != Some(self.me) || map.thinned(members).is_none() {
            return;
        }
        let all_serve = {
            let told = self.told.lock();
            map.ranges().all(|(placed, _)| told.knows(placed.group))
        };
        if all_serve {
            let soon = Instant::now() + self.timing.call;
            // If it doesn't come about, it is tried again.
            let _ = self.change_members(MemberWork::Thin, soon).await;
        }
    }

    /// Moves a leadership from who has most to who has least, if that is out
    /// of balance; the root group's leader sees to that.
    async fn balance(self: &Arc<Self>, cluster: &Cluster) {
        let root = *self.root().group.leadership().borrow();
        let Some(map) = &cluster.map else {
            return;
        };
        if !root.ready || root.leader != Some(self.me) || !cluster.splits.under_way.is_empty() {
            return;
        }
        let mut led: BTreeMap<NodeId, Vec<GroupId>> = BTreeMap::new();
        for (placed, _) in map.ranges() {
            for voter in &placed.voters {
                led.entry(*voter).or_default();
            }
        }
        if !led.keys().all(|voter| self.link.is_alive(*voter)) {
            return;
        }
        let voters: BTreeSet<NodeId> = led.keys().copied().collect();
        for (placed, _) in map.ranges() {
            match self.leader_of(placed.group, map.version).await {
                Some(leader) => led.entry(leader).or_default().push(placed.group),
                None => return,
            }
        }
        let most = led.iter().max_by_key(|(_, groups)| groups.len());
        let Some((_, groups)) = most else {
            return;
        };
        for group in groups.iter().rev() {
            let Some(placed) = map.placed(*group) else {
                continue;
            };
            let load = |node: &&NodeId| led.get(*node).map_or(usize::MAX, Vec::len);
            let least = placed.voters.iter().min_by_key(load);
            if let Some(least) = least
                && load(&least) + 1 < groups.len()
            {
                let mut takers = self.takers().await;
                takers.extend(self.takes_leads().then_some(self.me));
                if !takers.is_superset(&voters) {
                    // One is about to stop, or has trouble with its disk.
                    return;
                }
                let soon = Instant::now() + self.timing.call;
                let work = Work::Transfer { to: *least };
                // If it doesn't come about, it is tried again.
                let _ = self.work_once(*group, map.version, work, soon).await;
                return;
            }
        }
    }

    /// Who leads a group, as the replica here knows, or else the leader itself
    /// says.
    async fn leader_of(self: &Arc<Self>, group: GroupId, map: u64) -> Option<NodeId> {
        if let Some(replica) = self.replica(group) {
            return replica.group.leader();
        }
        if mutated(Mutation::SpreadsOnlyWhatIsHere) {
            return None;
        }
        let soon = Instant::now() + self.timing.call;
        let work = Work::Count { id: self.me };
        match self.work_once(group, map, work, soon).await.ok()?.answer {
            Answered::Counted(counted) => Some(counted.leader),
            _ => None,
        }
    }

    /// Hands all that this node leads to others and takes no lead any more.
    /// Returns when it leads nothing, when nobody could take what it leads, or
    /// at the deadline.
    pub(crate) async fn hand_over_all(self: &Arc<Self>, deadline: Instant) {
        self.leaving.store(true, Ordering::Relaxed);
        loop {
            let led = self.led();
            if led.is_empty() {
                return;
            }
            if Instant::now() >= deadline {
                tracing::warn!(ranges = led.len(), "leaderships not handed over in time");
                return;
            }
            let takers = self.takers().await;
            if !led.iter().any(|replica| self.has_heir(replica, &takers)) {
                tracing::info!(ranges = led.len(), "no member takes over, closing anyway");
                return;
            }
            self.hand_over_to(&led, &takers).await;
            tokio::time::sleep(EVERY).await;
        }
    }

    fn led(&self) -> Vec<Arc<Replica>> {
        let mut replicas = self.replicas();
        replicas.retain(|replica| replica.group.leader() == Some(self.me));
        replicas
    }

    /// The peers that would lead more, by their own word.
    async fn takers(self: &Arc<Self>) -> BTreeSet<NodeId> {
        let peers = self.addresses().into_keys();
        let alive = peers.filter(|peer| *peer != self.me && self.link.is_alive(*peer));
        let asked = alive.map(|peer| {
            let takes = self.call::<Heard>(peer, &Message::TakesLeads, self.timing.call);
            async move { takes.await.unwrap_or(false).then_some(peer) }
        });
        join_all(asked).await.into_iter().flatten().collect()
    }

    /// Whether this node may be given the lead of a group: it isn't about to
    /// stop, and its disk has room and doesn't stall.
    pub(crate) fn takes_leads(&self) -> bool {
        !self.leaving.load(Ordering::Relaxed) && !self.is_space_low() && !self.health.is_stalled()
    }

    /// Whether one of `takers` could win an election in a group now.
    pub(crate) fn has_heir(&self, replica: &Replica, takers: &BTreeSet<NodeId>) -> bool {
        let voters = replica.group.membership().voters;
        let alive = voters.iter().filter(|voter| self.link.is_alive(**voter));
        2 * alive.count() > voters.len() && !voters.is_disjoint(takers)
    }

    async fn hand_over_to(&self, led: &[Arc<Replica>], takers: &BTreeSet<NodeId>) {
        for replica in led {
            if let Some(next) = self.successor(replica, |node| takers.contains(&node)) {
                self.transfer(replica.id, next).await;
            }
        }
    }

    /// Hands over the lead of a group, if anybody else takes it.
    pub(crate) async fn hand_over(self: &Arc<Self>, replica: &Arc<Replica>) {
        let takers = self.takers().await;
        self.hand_over_to(std::slice::from_ref(replica), &takers)
            .await;
    }

    /// Leaves the lead of all groups to others at once. Nothing is written, so
    /// it needs no disk: those who don't hear of it time out.
    pub(crate) async fn resign_all(&self) {
        for replica in self.replicas() {
            let leadership = replica.group.leadership_now();
            let wins = leadership.leader == Some(self.me) || leadership.suspended;
            if wins && let Some(next) = self.successor(&replica, |_| true) {
                replica.busy.store(true, Ordering::Relaxed);
                replica.group.transfer(next).await;
            }
        }
    }

    /// Leaves the lead of all groups to peers that have room for more entries:
    /// this node has none. `again`: also of groups that it has left to somebody
    /// in this term. A second candidate would only split the votes, unless the
    /// first one is gone.
    pub(crate) async fn leave_to_those_with_room(self: &Arc<Self>, again: bool) {
        let mut led = self.led();
        if led.is_empty() {
            return;
        }
        let takers = self.takers().await;
        self.health.set_with_room(Some(takers.clone()));
        led.retain(|replica| again || !replica.group.is_handed_over());
        self.hand_over_to(&led, &takers).await;
    }

    /// The voter that has most of a group's log, of those who are there and fit.
    fn successor(&self, replica: &Replica, fits: impl Fn(NodeId) -> bool) -> Option<NodeId> {
        let voters = replica.group.membership().voters;
        let progress = replica.group.progress().unwrap_or_default();
        let others = voters
            .into_iter()
            .filter(|node| *node != self.me && self.link.is_alive(*node) && fits(*node));
        others.max_by_key(|node| progress.get(node).copied())
    }

    /// Whether this node was removed and no group counts it, as others say;
    /// `None` if nobody says.
    pub(crate) async fn is_removed(self: &Arc<Self>) -> Option<bool> {
        for peer in self.addresses().into_keys().filter(|peer| *peer != self.me) {
            let message = Message::IsMember { node: self.me };
            let told = self.call::<Option<bool>>(peer, &message, self.timing.call);
            if let Some(Some(counted)) = told.await {
                return Some(!counted);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(ids: &[u64]) -> BTreeSet<NodeId> {
        ids.iter().map(|id| NodeId(*id)).collect()
    }

    fn next(
        target: (&[u64], &[u64]),
        now: (&[u64], &[u64]),
        caught_up: &[u64],
        welcome: &[u64],
    ) -> (BTreeSet<NodeId>, BTreeSet<NodeId>) {
        let target = Target {
            voters: nodes(target.0),
            learners: nodes(target.1),
        };
        let now = Membership {
            voters: nodes(now.0),
            learners: nodes(now.1),
            ..Membership::default()
        };
        target.next(&now, &nodes(caught_up), &nodes(welcome), &nodes(&[9]))
    }

    #[test]
    fn nobody_votes_before_it_has_caught_up() {
        let all = &[1, 2, 3, 4];
        let (voters, learners) = next((all, &[]), (&[1, 2, 3], &[]), &[1, 2, 3], all);
        assert_eq!((voters, learners), (nodes(&[1, 2, 3]), nodes(&[4])));
        let (voters, learners) = next((all, &[]), (&[1, 2, 3], &[4]), all, all);
        assert_eq!((voters, learners), (nodes(all), nodes(&[])));
    }

    #[test]
    fn who_is_replaced_stays_until_the_other_is_there() {
        let all = &[1, 2, 3, 4];
        let target = (&[1, 2, 4][..], &[][..]);
        let (voters, learners) = next(target, (&[1, 2, 3], &[]), &[1, 2, 3], all);
        assert_eq!((voters, learners), (nodes(&[1, 2, 3]), nodes(&[4])));
        let (voters, learners) = next(target, (&[1, 2, 3], &[4]), all, all);
        assert_eq!((voters, learners), (nodes(&[1, 2, 4]), nodes(&[])));
        // One that was removed goes at once, unless it is needed.
        let (voters, _) = next(target, (&[1, 2, 3], &[4]), &[1, 2, 3], &[1, 2, 4]);
        assert_eq!(voters, nodes(&[1, 2]));
        let (voters, _) = next(target, (&[1, 2, 3], &[4]), &[1, 3], &[1, 2, 4]);
        assert_eq!(voters, nodes(&[1, 2, 3]));
        // One that is damaged always does.
        let (voters, _) = next(target, (&[1, 2, 9], &[4]), &[1, 9], &[1, 2, 4, 9]);
        assert_eq!(voters, nodes(&[1, 2]));
    }

    #[test]
    fn who_only_listens_has_no_vote() {
        let (voters, learners) = next(
            (&[1, 2, 3], &[4]),
            (&[1, 2, 3], &[4]),
            &[1, 2, 3, 4],
            &[1, 2, 3, 4],
        );
        assert_eq!((voters, learners), (nodes(&[1, 2, 3]), nodes(&[4])));
    }
}
