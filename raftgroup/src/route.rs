//! From a request to the leader of the group that has its keys, and back.
//!
//! Kept true: work is sent again only if it is certain that it was not done,
//! or if it changes nothing; and never after its deadline.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use pontoon_engine::{Answer, Reject, Request, Revision, check};
use tokio::time::Instant;

use crate::error::Failure;
use crate::lead::unsound;
use crate::link::CallError;
use crate::map::RangeMap;
use crate::message::{Answered, Declined, Done, Forward, Message, Outcome, Work};
use crate::mutation::{Mutation, mutated};
use crate::node::Inner;
use crate::position::{GroupId, NodeId};
use crate::replica::{Job, Replica, Waiter};
use crate::txn::Tried;

/// Pause before work is sent again.
const PAUSE: Duration = Duration::from_millis(5);

impl Inner {
    /// Serves a request that a client sent to this node.
    pub(crate) async fn request(
        self: &Arc<Self>,
        request: Request,
        deadline: Instant,
    ) -> Result<Answer, Failure> {
        check(&request, self.txn_ops_max)?;
        match &request {
            Request::Range(range) => return self.read(range, deadline).await.map(Answer::Range),
            Request::LeaseRevoke(lease) => {
                let revoked = Box::pin(self.lease_revoke(*lease, deadline)).await;
                return revoked.map(Answer::LeaseRevoke);
            }
            _ => {}
        }
        loop {
            let map = self.map_known(deadline).await?;
            let tried = match map.one_group_of(&request) {
                Some(group) => {
                    let work = Work::Request(request.clone());
                    match self.work(group, map.version, work, deadline).await {
                        Ok(done) => match done.answer {
                            Answered::Answer(answer) => Ok(answer),
                            _ => Err(Tried::Failed(Failure::TimedOut)),
                        },
                        Err(Undone::Moved) => Err(Tried::Again),
                        Err(Undone::Failed(failure)) => Err(Tried::Failed(failure)),
                    }
                }
                // On its own, so that the others are small.
                None => Box::pin(self.transact(&request, &map, deadline)).await,
            };
            match tried {
                Ok(answer) => return Ok(answer),
                Err(Tried::Failed(failure)) => return Err(failure),
                Err(Tried::Again | Tried::NoChange) => self.pause(deadline).await?,
            }
        }
    }

    /// Hands a write to the leader of its group, if that is this node, and has
    /// `done` called with what came of it; returns whether it was handed in.
    pub(crate) fn hand_in(
        self: &Arc<Self>,
        request: Request,
        done: impl FnOnce(Option<Result<Answer, Failure>>) + Send + 'static,
    ) -> bool {
        let cluster = self.cluster.borrow();
        let map = cluster.map.as_ref();
        let group = map.and_then(|map| map.one_group_of(&request));
        drop(cluster);
        let replica = group.and_then(|group| self.replica(group));
        let Some(replica) = replica.filter(|replica| replica.group.leader() == Some(self.me))
        else {
            return false;
        };
        if let Err(reject) = check(&request, self.txn_ops_max) {
            done(Some(Err(reject.into())));
            return true;
        }
        let (node, group) = (Arc::clone(self), replica.id);
        let told = move |outcome: Outcome| {
            done(match outcome {
                Ok(_) if node.is_failing() => Some(Err(Failure::LeaderChanged)),
                // It is applied here: this node leads.
                Ok(Done {
                    answer: Answered::Answer(answer),
                    ..
                }) => {
                    node.answers.note(group, revision_of(&answer));
                    Some(Ok(answer))
                }
                Ok(_) | Err(Declined::Unknown) => Some(Err(Failure::LeaderChanged)),
                Err(Declined::NotLeader(_) | Declined::Again | Declined::Moved) => None,
                Err(declined) => Some(Err(failure(declined))),
            });
        };
        replica.enqueue(Job {
            work: Work::Request(request),
            waiter: Waiter::Call(Box::new(told)),
        });
        true
    }

    /// Raises the compaction floor; returns the newest revision.
    pub(crate) async fn compact(
        self: &Arc<Self>,
        revision: Revision,
        deadline: Instant,
    ) -> Result<Revision, Failure> {
        loop {
            let map = self.map_known(deadline).await?;
            if !map.is_one_group() {
                let point = tokio::time::timeout_at(deadline, self.read_point());
                let point = point.await.map_err(|_| Failure::TimedOut)?;
                let Some(point) = point else {
                    self.pause(deadline).await?;
                    continue;
                };
                if !self.root_catches_up(point.root).await {
                    self.pause(deadline).await?;
                    continue;
                }
                if unsound(&self.cluster.borrow().alarms).is_some() {
                    return Err(Failure::Corrupt);
                }
                if revision <= self.floor() {
                    return Err(Reject::Compacted.into());
                }
                if revision > point.revision {
                    return Err(Reject::FutureRevision.into());
                }
            }
            let work = Work::Compact { revision };
            match self.work(GroupId::ROOT, map.version, work, deadline).await {
                Ok(done) => match done.answer {
                    Answered::Compacted(newest) => return Ok(newest),
                    _ => return Err(Failure::TimedOut),
                },
                Err(Undone::Moved) => self.pause(deadline).await?,
                Err(Undone::Failed(failure)) => return Err(failure),
            }
        }
    }

    /// Has work done by the leader of a group, whoever that is.
    pub(crate) async fn work(
        self: &Arc<Self>,
        group: GroupId,
        map: u64,
        work: Work,
        deadline: Instant,
    ) -> Result<Done, Undone> {
        let read_only = matches!(work, Work::Read { .. });
        let repeatable = read_only || matches!(work, Work::Count { .. });
        loop {
            let outcome = self.work_once(group, map, work.clone(), deadline).await;
            match outcome {
                Ok(done) => {
                    self.acknowledge(group, &done, read_only, deadline).await;
                    return Ok(done);
                }
                Err(Declined::Moved) => return Err(Undone::Moved),
                Err(Declined::NotLeader(_) | Declined::Again) => {}
                Err(Declined::Unknown) if repeatable => {}
                Err(Declined::Unknown) if Instant::now() >= deadline => {
                    return Err(Failure::TimedOut.into());
                }
                Err(declined) => return Err(failure(declined).into()),
            }
            if self.map_version() != Some(map) {
                return Err(Undone::Moved);
            }
            self.pause(deadline).await?;
        }
    }

    /// Has work done by the leader of a group, if this node knows it or is told.
    /// A node that declines because it doesn't lead the group had no effect, so
    /// the next one is asked, each at most once.
    pub(crate) async fn work_once(
        self: &Arc<Self>,
        group: GroupId,
        map: u64,
        work: Work,
        deadline: Instant,
    ) -> Outcome {
        let mut asked = BTreeSet::new();
        let mut hint = None;
        while let Some(node) = self.whom_to_ask(group, hint, &asked) {
            asked.insert(node);
            let outcome = self.work_at(node, group, map, work.clone(), deadline).await;
            match outcome {
                Err(Declined::NotLeader(leader)) => hint = leader,
                outcome => return outcome,
            }
        }
        Err(Declined::NotLeader(None))
    }

    /// The leader of a group, as far as this node knows or `hint` says; or else,
    /// where the replica here can't know it, a voter that may. One whose disk
    /// hangs, or that is cut off, doesn't. `None` if there is nobody left.
    fn whom_to_ask(
        &self,
        group: GroupId,
        hint: Option<NodeId>,
        asked: &BTreeSet<NodeId>,
    ) -> Option<NodeId> {
        let replica = self.counted_replica(group);
        let known = replica.as_ref().and_then(|replica| replica.group.leader());
        let mut leaders = [hint, known].into_iter().flatten();
        match leaders.find(|leader| !asked.contains(leader)) {
            Some(leader) if leader == self.me => replica.map(|_| leader),
            // A suspected one would not answer; another will lead soon.
            Some(leader) => self.link.is_alive(leader).then_some(leader),
            None if replica.is_none() || self.health.is_stalled() => {
                self.some_other_voter(group, asked)
            }
            None => None,
        }
    }

    /// The replica here, unless the map places the group elsewhere: that one may
    /// not be counted any more, and then hears of no leader. If it leads, it is
    /// counted.
    fn counted_replica(&self, group: GroupId) -> Option<Arc<Replica>> {
        let replica = self.replica(group)?;
        let counts = self.is_placed_here(group) || replica.group.leader() == Some(self.me);
        counts.then_some(replica)
    }

    /// Has work done by a node, if it leads the group.
    async fn work_at(
        self: &Arc<Self>,
        node: NodeId,
        group: GroupId,
        version: u64,
        work: Work,
        deadline: Instant,
    ) -> Outcome {
        let replica = self.counted_replica(group);
        if node == self.me {
            return match &replica {
                Some(replica) => self.work_here(replica, work, deadline).await,
                None => Err(Declined::NotLeader(None)),
            };
        }
        let forward = Forward {
            group,
            map: version,
            work,
        };
        let outcome = self.work_there(node, forward, deadline).await;
        if let (Err(Declined::NotLeader(_)), Some(replica)) = (&outcome, &replica) {
            // Nobody may lead it, and a quiet group would never notice.
            self.wake_without(node, replica);
        }
        outcome
    }

    /// Whether the map, if it is known, places a group on this node.
    fn is_placed_here(&self, group: GroupId) -> bool {
        let cluster = self.cluster.borrow();
        let placed = cluster.map.as_ref().and_then(|map| map.placed(group));
        placed.is_none_or(|placed| placed.members.contains(&self.me))
            || mutated(Mutation::MovedReplicaRoutes)
    }

    /// A voter of a group that may know who leads it, where the replica here
    /// doesn't: there is none, it is on its way out, or its disk stalls.
    fn some_other_voter(&self, group: GroupId, asked: &BTreeSet<NodeId>) -> Option<NodeId> {
        let map = self.cluster.borrow().map.clone()?;
        let voters = map.placed(group)?.voters.iter();
        let mut others: Vec<_> = voters.filter(|voter| **voter != self.me).collect();
        // One that is gone would let its caller wait.
        if others.iter().any(|voter| self.link.is_alive(**voter)) {
            others.retain(|voter| self.link.is_alive(**voter));
        }
        others.retain(|voter| !asked.contains(voter));
        match others.len() {
            0 => None,
            count => Some(*others[self.scope.random() as usize % count]),
        }
    }

    pub(crate) fn map_version(&self) -> Option<u64> {
        self.cluster.borrow().map.as_ref().map(|map| map.version)
    }

    async fn work_here(
        self: &Arc<Self>,
        replica: &Arc<Replica>,
        work: Work,
        deadline: Instant,
    ) -> Outcome {
        let outcome = self.done_here(replica, work);
        // Whoever had it takes too long.
        let outcome = tokio::time::timeout_at(deadline, outcome).await;
        outcome.unwrap_or(Err(Declined::Unknown))
    }

    /// Has work done here, if this node leads the group. A read waits for no
    /// write that is asked for after it.
    async fn done_here(self: &Arc<Self>, replica: &Arc<Replica>, work: Work) -> Outcome {
        if let Work::Read { at, .. } = &work {
            replica.busy.store(true, Ordering::Relaxed);
            let settled = self.settle(replica, &work, at.is_some()).await;
            return settled.unwrap_or(Err(Declined::Unknown));
        }
        let (job, outcome) = Job::new(work);
        replica.enqueue(job);
        // Whoever had it may be gone.
        outcome.await.unwrap_or(Err(Declined::Unknown))
    }

    pub(crate) async fn work_there(
        self: &Arc<Self>,
        leader: NodeId,
        forward: Forward,
        deadline: Instant,
    ) -> Outcome {
        let within = deadline.saturating_duration_since(Instant::now());
        let message = Message::Forward(forward);
        match self.call_for::<Outcome>(leader, &message, within).await {
            Ok(outcome) => outcome,
            Err(CallError::Unsent) => Err(Declined::NotLeader(None)),
            Err(CallError::Lost | CallError::TimedOut) => Err(Declined::Unknown),
        }
    }

    /// Answers a write after the replica here, if there is one, has it too, so
    /// that the client finds it here (rule 16). What was only read needs no
    /// replica: what it tells is noted, and serializable reads here wait for it.
    async fn acknowledge(&self, group: GroupId, done: &Done, read_only: bool, deadline: Instant) {
        if !read_only
            && self.is_placed_here(group)
            && let Some(replica) = self.replica(group)
            && replica.applied() < done.index
            && !self.health.is_stalled()
            && !self.is_space_low()
        {
            // If it takes too long: it is done all the same, and reads here wait.
            let _ = tokio::time::timeout_at(deadline, replica.group.wait_applied(done.index)).await;
        }
        let revision = match &done.answer {
            Answered::Compacted(revision) => *revision,
            Answered::Answer(answer) => revision_of(answer),
            _ => return,
        };
        self.answers.note(group, revision);
    }

    /// Does work that another node sent here.
    pub(crate) async fn serve_forwarded(
        self: &Arc<Self>,
        from: NodeId,
        forward: Forward,
    ) -> Outcome {
        let Some(replica) = self.replica(forward.group) else {
            return Err(Declined::NotLeader(None));
        };
        self.wake_without(from, &replica);
        if !forward.work.is_aside() && self.map_version() != Some(forward.map) {
            // One of the two knows an older map; both will know soon.
            return Err(Declined::Again);
        }
        match self.done_here(&replica, forward.work).await {
            Ok(_) if self.is_failing() => Err(Declined::Unknown),
            outcome => outcome,
        }
    }

    /// The range map, as soon as there is one.
    pub(crate) async fn map_known(&self, deadline: Instant) -> Result<Arc<RangeMap>, Failure> {
        if let Some(map) = &self.cluster.borrow().map {
            return Ok(Arc::clone(map));
        }
        let mut cluster = self.cluster.subscribe();
        let known = cluster.wait_for(|cluster| cluster.map.is_some());
        match tokio::time::timeout_at(deadline, known).await {
            Ok(Ok(())) => cluster.borrow().map.clone().ok_or(Failure::Stopped),
            Ok(Err(_)) => Err(Failure::Stopped),
            Err(_) => Err(Failure::NoLeader),
        }
    }

    /// A short pause; an error if the deadline is over.
    pub(crate) async fn pause(&self, deadline: Instant) -> Result<(), Failure> {
        if Instant::now() + PAUSE >= deadline {
            return Err(Failure::TimedOut);
        }
        tokio::time::sleep(PAUSE).await;
        Ok(())
    }
}

/// Why work was not done.
pub(crate) enum Undone {
    /// The map has changed; nothing was done.
    Moved,
    Failed(Failure),
}

impl From<Failure> for Undone {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

pub(crate) fn failure(declined: Declined) -> Failure {
    match declined {
        Declined::Reject(reject) => Failure::Reject(reject),
        Declined::NotLeader(_) | Declined::Again | Declined::Moved => Failure::NoLeader,
        Declined::Member(reject) => Failure::Member(reject),
        Declined::TooManyRequests => Failure::TooManyRequests,
        Declined::NoSpace => Failure::NoSpace,
        Declined::Corrupt => Failure::Corrupt,
        Declined::TooLarge => Failure::TooLarge,
        Declined::Unknown => Failure::LeaderChanged,
    }
}

fn revision_of(answer: &Answer) -> Revision {
    match answer {
        Answer::Range(answer) => answer.revision,
        Answer::Put(answer) => answer.revision,
        Answer::DeleteRange(answer) => answer.revision,
        Answer::Txn(answer) => answer.revision,
        Answer::LeaseRevoke(revision) => *revision,
    }
}
