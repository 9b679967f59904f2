//! The members of the cluster, as the root group knows them, and what can be
//! asked about them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::codec::wire;
use crate::error::Failure;
use crate::format::FormatVersion;
use crate::message::{Answered, Done, Work};
use crate::node::Inner;
use crate::position::{GroupId, LogIndex, NodeId, Term};
use crate::route::Undone;

/// A member, as the root group knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Where it is reached.
    pub address: String,
    /// Whether it only listens: it has all data, but no vote.
    pub learner: bool,
}

wire!(struct Member { address, learner });

/// All of them.
pub(crate) type Members = BTreeMap<NodeId, Member>;

/// Why members are not changed. The texts are etcd's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemberReject {
    /// There is one with this id.
    #[error("etcdserver: member ID already exist")]
    Exists,
    /// There is none with this id.
    #[error("etcdserver: member not found")]
    NotFound,
    /// It votes already.
    #[error("etcdserver: can only promote a learner member")]
    NotLearner,
    /// It hasn't all data yet.
    #[error("etcdserver: can only promote a learner member which is in sync with leader")]
    NotInSync,
    /// Nobody would be left to vote, or not enough of those who are there.
    #[error("etcdserver: re-configuration failed due to not enough started members")]
    NotEnough,
    /// It doesn't understand the version of the cluster.
    #[error("pontoon: the version of the cluster is newer than what the member understands")]
    TooOld,
}

wire!(enum MemberReject {
    0 => Exists, 1 => NotFound, 2 => NotLearner, 3 => NotInSync, 4 => NotEnough,
    5 => TooOld,
});

/// What is wrong with a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Alarm {
    /// Its disk is full, or its quota is used up.
    NoSpace,
    /// It holds something else than the others.
    Corrupt,
}

wire!(enum Alarm { 0 => NoSpace, 1 => Corrupt });

/// Work of the root group's leader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MemberWork {
    Add {
        id: NodeId,
        member: Member,
    },
    Promote {
        id: NodeId,
    },
    Remove {
        id: NodeId,
    },
    Update {
        id: NodeId,
        address: String,
    },
    /// Its replica of a group can't be trusted: the group must not count it.
    Damaged {
        id: NodeId,
        group: GroupId,
    },
    /// It begins anew there.
    Rebuilt {
        id: NodeId,
        group: GroupId,
    },
    /// Raises an alarm, or ends it.
    Alarm {
        id: NodeId,
        alarm: Alarm,
        on: bool,
    },
    /// Up to which version it understands and agrees to.
    Version {
        id: NodeId,
        version: FormatVersion,
    },
    /// Ranges on too many members are to be placed like others.
    Thin,
}

wire!(enum MemberWork {
    0 => Add { id, member },
    1 => Promote { id },
    2 => Remove { id },
    3 => Update { id, address },
    4 => Damaged { id, group },
    5 => Rebuilt { id, group },
    6 => Alarm { id, alarm, on },
    7 => Version { id, version },
    8 => Thin,
});

/// How a group's leader counts a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counted {
    /// Whether it is a member at all, in what is in effect or being left.
    pub(crate) member: bool,
    /// Whether it has all that the leader has, about.
    pub(crate) in_sync: bool,
    pub(crate) term: Term,
    pub(crate) leader: NodeId,
    /// Whether what is in effect is committed.
    pub(crate) committed: bool,
    /// The last entry of the leader's log.
    pub(crate) last: LogIndex,
}

wire!(struct Counted { member, in_sync, term, leader, committed, last });

impl Counted {
    /// Whether it is no member, and no other leader can find that it is.
    pub(crate) fn is_out(&self) -> bool {
        !self.member && self.committed
    }
}

/// Between two looks.
const RETRY: Duration = Duration::from_millis(50);

impl Inner {
    /// The members, as far as this node knows.
    pub(crate) fn member_list(&self) -> Members {
        let cluster = self.cluster.borrow();
        match &cluster.members {
            Some(members) => (**members).clone(),
            None => self.first_members(),
        }
    }

    /// Those of a new cluster.
    pub(crate) fn first_members(&self) -> Members {
        let members = self.config.members.iter();
        let member = |address: &String| Member {
            address: address.clone(),
            learner: false,
        };
        members
            .map(|(id, address)| (*id, member(address)))
            .collect()
    }

    /// Has the root group's leader change the members.
    pub(crate) async fn change_members(
        self: &Arc<Self>,
        work: MemberWork,
        deadline: Instant,
    ) -> Result<Done, Failure> {
        loop {
            let map = self.map_known(deadline).await?;
            let work = Work::Member(work.clone());
            match self.work(GroupId::ROOT, map.version, work, deadline).await {
                Ok(done) => {
                    self.root_catches_up(done.index).await;
                    return Ok(done);
                }
                Err(Undone::Moved) => {}
                Err(Undone::Failed(failure)) => return Err(failure),
            }
        }
    }

    /// How a group counts a node, by what its leader says.
    pub(crate) async fn counted(
        self: &Arc<Self>,
        group: GroupId,
        id: NodeId,
        deadline: Instant,
    ) -> Result<Counted, Failure> {
        loop {
            let map = self.map_known(deadline).await?;
            let work = Work::Count { id };
            match self.work(group, map.version, work, deadline).await {
                Ok(done) => match done.answer {
                    Answered::Counted(counted) => return Ok(counted),
                    _ => return Err(Failure::LeaderChanged),
                },
                Err(Undone::Moved) => {}
                Err(Undone::Failed(failure)) => return Err(failure),
            }
        }
    }

    pub(crate) async fn member_promote(
        self: &Arc<Self>,
        id: NodeId,
        deadline: Instant,
    ) -> Result<(), Failure> {
        match self.member_list().get(&id) {
            Some(member) if member.learner => {}
            Some(_) => return Err(MemberReject::NotLearner.into()),
            None => return Err(MemberReject::NotFound.into()),
        }
        let map = self.map_known(deadline).await?;
        for (placed, _) in map.ranges() {
            if placed.members.contains(&id) {
                let counted = self.counted(placed.group, id, deadline).await?;
                if !counted.in_sync {
                    return Err(MemberReject::NotInSync.into());
                }
            }
        }
        let work = MemberWork::Promote { id };
        self.change_members(work, deadline).await.map(|_| ())
    }

    /// Removes a member; returns when no group counts it. Asked again, it waits
    /// for that, too.
    pub(crate) async fn member_remove(
        self: &Arc<Self>,
        id: NodeId,
        deadline: Instant,
    ) -> Result<(), Failure> {
        let work = MemberWork::Remove { id };
        match self.change_members(work, deadline).await {
            Err(Failure::Member(MemberReject::NotFound)) => match self.is_counted(id).await {
                Some(true) => {}
                Some(false) => return Err(MemberReject::NotFound.into()),
                None => return Err(Failure::TimedOut),
            },
            removed => drop(removed?),
        }
        let map = self.map_known(deadline).await?;
        for (placed, _) in map.ranges() {
            loop {
                match self.counted(placed.group, id, deadline).await {
                    Ok(counted) if counted.is_out() => break,
                    // If it led, there is another leader soon. It is removed
                    // already: only when it isn't counted is still open.
                    Ok(_) | Err(Failure::LeaderChanged | Failure::NoLeader) => {}
                    Err(failure) => return Err(failure),
                }
                if Instant::now() + RETRY >= deadline {
                    return Err(Failure::TimedOut);
                }
                tokio::time::sleep(RETRY).await;
            }
        }
        Ok(())
    }

    /// Whether a node is a member, or some group still counts it; `None` if
    /// that can't be said.
    pub(crate) async fn is_counted(self: &Arc<Self>, id: NodeId) -> Option<bool> {
        let (map, members) = {
            let cluster = self.cluster.borrow();
            (cluster.map.clone()?, cluster.members.clone()?)
        };
        if members.contains_key(&id) {
            return Some(true);
        }
        let soon = Instant::now() + self.timing.call;
        for (placed, _) in map.ranges() {
            let counted = self.counted(placed.group, id, soon).await.ok()?;
            if !counted.is_out() {
                return Some(true);
            }
        }
        Some(false)
    }
}
