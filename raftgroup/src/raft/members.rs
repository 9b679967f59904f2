//! Who belongs to a group, how far each member is, and how that is changed.
//!
//! Kept true:
//! - Members are changed by the leader of the term that the caller names, one
//!   change at a time, through joint memberships: any two quorums that may
//!   decide meet.
//! - A change is answered when it is committed, refused (then at most the
//!   steps before the refused one are there), or lost (then nobody knows).
//! - A leader that is no voter any more hands over once that is committed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::{ChangeMembershipError, ClientWriteError, PreconditionFailed, RaftError};
use openraft::metrics::RaftServerMetrics;
use openraft::{EntryPayload, Instant as _, Precondition, ServerState};

use crate::position::{LogIndex, NodeId, Term};
use crate::raft::begin::membership;
use crate::raft::types::{LogId, Types};
use crate::raft::{Group, Leadership, place};

/// Who belongs to a group, as a replica knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Membership {
    /// Who votes; while `joint`, those before and those after the change.
    pub(crate) voters: BTreeSet<NodeId>,
    pub(crate) joint: bool,
    /// Who is only kept up to date.
    pub(crate) learners: BTreeSet<NodeId>,
    /// The entry that says so.
    pub(crate) index: LogIndex,
    /// Whether that entry is committed. It is in effect either way.
    pub(crate) committed: bool,
}

impl Membership {
    pub(crate) fn of(server: &RaftServerMetrics<Types>) -> Self {
        let effective = &server.membership_config;
        let learners = effective.membership().learner_ids();
        Self {
            voters: effective.voter_ids().map(NodeId).collect(),
            joint: effective.get_joint_config().len() > 1,
            learners: learners.map(NodeId).collect(),
            index: place(*effective.log_id()),
            committed: effective.log_id() == server.committed_membership_config.log_id(),
        }
    }

    /// Voters and learners.
    pub(crate) fn nodes(&self) -> BTreeSet<NodeId> {
        &self.voters | &self.learners
    }
}

/// Why members were not changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unchanged {
    /// This node doesn't lead in that term, or can't prove it.
    #[error("this node doesn't lead the group")]
    NotLeader,
    /// Another change is under way, or the leader has just begun: try again.
    #[error("another change of members is under way")]
    Busy,
    /// The leadership was lost on the way: whether it was changed is not known.
    #[error("the leadership was lost")]
    Lost,
    /// There can't be such members.
    #[error("{0}")]
    Invalid(String),
}

impl Group {
    /// Who belongs to the group, as far as this replica knows.
    pub(crate) fn membership(&self) -> Membership {
        Membership::of(&self.raft.server_metrics().borrow_watched())
    }

    /// The voters of the membership in effect.
    #[cfg(test)]
    pub(crate) fn members(&self) -> BTreeSet<NodeId> {
        self.membership().voters
    }

    /// All other members, learners too.
    pub(crate) fn peers(&self) -> BTreeSet<NodeId> {
        let mut nodes = self.membership().nodes();
        nodes.remove(&self.node);
        nodes
    }

    /// The last position of the log here.
    pub(crate) fn last(&self) -> LogIndex {
        place(self.raft.data_metrics().borrow_watched().last_log)
    }

    /// How far the log of each member is known to be this leader's; `None` if
    /// this node doesn't lead.
    pub(crate) fn progress(&self) -> Option<BTreeMap<NodeId, LogIndex>> {
        let metrics = self.raft.data_metrics();
        let metrics = metrics.borrow_watched();
        let matched = metrics.replication.as_ref()?.iter();
        Some(
            matched
                .map(|(node, id)| (NodeId(*node), place(*id)))
                .collect(),
        )
    }

    /// The last position, if this node leads, every member has all of the log
    /// and no change of members is under way.
    pub(crate) fn settled(&self) -> Option<LogIndex> {
        // Until another leads, the others need their timers: a leader that
        // hands over refuses everything and shows no sign of life.
        let leadership = *self.leadership.borrow();
        if !leadership.ready || self.is_handed_over() {
            return None;
        }
        let membership = self.membership();
        let changing = membership.joint || self.changing.try_lock().is_err();
        if changing || !membership.voters.contains(&self.node) || *self.proposals.borrow() > 0 {
            return None;
        }
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let last = metrics.last_applied.filter(|applied| {
            metrics.state == ServerState::Leader && metrics.last_log_index == Some(applied.index)
        })?;
        let followers = metrics.replication.as_ref()?;
        followers
            .values()
            .all(|matched| *matched == Some(last))
            .then(|| place(Some(last)))
    }

    /// For how long no quorum has acknowledged this leader; `None` if it
    /// doesn't lead. Nobody acknowledges anything in a quiet group: there, ask
    /// a round instead ([`Group::confirm`]).
    pub(crate) fn quorum_age(&self) -> Option<Duration> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        if metrics.state != ServerState::Leader {
            return None;
        }
        if metrics.membership_config.voter_ids().eq([self.node.0]) {
            return Some(Duration::ZERO);
        }
        let acked = metrics.last_quorum_acked.as_ref();
        // Not yet, or not since there are other voters.
        Some(acked.map_or(Duration::MAX, |acked| acked.elapsed()))
    }

    /// Makes `node` a learner, if it isn't a member yet. Doesn't wait until
    /// it has anything.
    #[cfg(test)]
    pub(crate) async fn add_learner(&self, term: Term, node: NodeId) -> Result<(), Unchanged> {
        let _turn = self.changing.try_lock().map_err(|_| Unchanged::Busy)?;
        let now = self.effective().await?;
        let mut nodes = now.nodes.clone();
        if !nodes.insert(node) {
            return Ok(());
        }
        self.append_members(term, &now, now.voters.clone(), nodes)
            .await?;
        Ok(())
    }

    /// Makes exactly these the voters, and those of `learners` that aren't
    /// voters the learners. Nobody else is a member then. Goes on with a
    /// change that was left in the middle. As long as no quorum hears this
    /// node, it waits; who waits no longer leaves the change in the middle.
    pub(crate) async fn set_members(
        &self,
        term: Term,
        voters: &BTreeSet<NodeId>,
        learners: &BTreeSet<NodeId>,
    ) -> Result<(), Unchanged> {
        if voters.is_empty() {
            return Err(Unchanged::Invalid("somebody has to vote".to_owned()));
        }
        let _turn = self.changing.try_lock().map_err(|_| Unchanged::Busy)?;
        let goal = voters | learners;
        let mut now = self.effective().await?;
        while now.voters != [voters.clone()] || now.nodes != goal {
            let last = now.voters.last();
            let (voters, nodes) = if last == Some(voters) {
                (vec![voters.clone()], goal.clone())
            } else {
                // Of a joint membership the newer half goes on.
                let before = last.cloned().unwrap_or_default();
                (vec![before, voters.clone()], &now.nodes | &goal)
            };
            now = self.append_members(term, &now, voters, nodes).await?;
        }
        if !voters.contains(&self.node) {
            self.hand_over(voters).await;
        }
        Ok(())
    }

    /// Hands over to who has most. openraft does so itself only when this
    /// node is no member at all, and not at once.
    async fn hand_over(&self, voters: &BTreeSet<NodeId>) {
        let progress = self.progress().unwrap_or_default();
        let next = voters.iter().max_by_key(|node| progress.get(node));
        if let Some(next) = next {
            self.transfer(*next).await;
        }
    }

    /// The membership in effect, and not a moment ago.
    async fn effective(&self) -> Result<Effective, Unchanged> {
        if self.is_quiet() {
            self.wake().await;
        }
        let effective = self
            .raft
            .with_raft_state(|state| state.membership_state.effective().clone());
        let effective = effective.await.map_err(|_| Unchanged::NotLeader)?;
        let voters = effective.get_joint_config().iter();
        let nodes = effective.nodes();
        Ok(Effective {
            id: *effective.log_id(),
            voters: voters
                .map(|set| set.iter().copied().map(NodeId).collect())
                .collect(),
            nodes: nodes.map(|(node, _)| NodeId(*node)).collect(),
        })
    }

    /// Appends one membership after the one that was seen, and waits until it
    /// is committed.
    async fn append_members(
        &self,
        term: Term,
        seen: &Effective,
        voters: Vec<BTreeSet<NodeId>>,
        nodes: BTreeSet<NodeId>,
    ) -> Result<Effective, Unchanged> {
        let me = Some(self.node);
        let mut leadership = self.leadership();
        let elsewhere = |now: &Leadership| now.term != term || now.leader != me;
        if elsewhere(&leadership.borrow()) {
            return Err(Unchanged::NotLeader);
        }
        let next = membership(voters.clone(), nodes.clone());
        let conditions = [
            Precondition::CommittedLeaderId {
                committed_leader_id: term.0.into(),
            },
            Precondition::LastMembershipLogId {
                last_membership_log_id: seen.id,
            },
        ];
        let appended = self
            .raft
            .append_membership(next, EntryPayload::Blank, conditions);
        let id = tokio::select! {
            biased;
            appended = appended => appended.map_err(unchanged)?.log_id,
            // Whoever leads now may have removed this node, and then nobody
            // tells it what became of the entry.
            _ = leadership.wait_for(elsewhere) => return Err(Unchanged::Lost),
        };
        Ok(Effective {
            id: Some(id),
            voters,
            nodes,
        })
    }
}

/// The membership that a change begins with.
struct Effective {
    id: Option<LogId>,
    /// Two sets while it is joint, the newer one last.
    voters: Vec<BTreeSet<NodeId>>,
    nodes: BTreeSet<NodeId>,
}

fn unchanged(error: RaftError<Types, ClientWriteError<Types>>) -> Unchanged {
    let error = match error {
        RaftError::APIError(error) => error,
        RaftError::Fatal(_) => return Unchanged::Lost,
    };
    match error {
        ClientWriteError::ForwardToLeader(_) => Unchanged::NotLeader,
        ClientWriteError::LogEntryDiscarded(_) => Unchanged::Lost,
        ClientWriteError::PreconditionFailed(PreconditionFailed::CommittedLeaderIdMismatch {
            ..
        }) => Unchanged::NotLeader,
        ClientWriteError::PreconditionFailed(_) => Unchanged::Busy,
        ClientWriteError::ChangeMembershipError(
            ChangeMembershipError::InProgress(_) | ChangeMembershipError::UncommittedLeaderLog(_),
        ) => Unchanged::Busy,
        ClientWriteError::ChangeMembershipError(error) => Unchanged::Invalid(error.to_string()),
    }
}
