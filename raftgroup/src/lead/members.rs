//! The root group's leader changes the members.
//!
//! Kept true: the list of members, where each group is, and who is not to be
//! counted there change in one entry; the groups follow (`reconcile.rs`).

use std::collections::BTreeSet;

use pontoon_engine::{Revision, Step};

use super::{Flight, Freight, Lead};
use crate::cluster::{Cluster, alarms_step, damaged_step, map_step, members_step, versions_step};
use crate::map::RangeMap;
use crate::member::{Alarm, Counted, MemberReject, MemberWork, Members};
use crate::message::{Answered, Declined, Done, Work};
use crate::position::{GroupId, NodeId};
use crate::replica::Job;
use crate::versions::Versions;

/// So many entries behind is in sync.
const IN_SYNC_ENTRIES: u64 = 64;

/// Alarms that are on.
pub(crate) type Alarms = BTreeSet<(Alarm, NodeId)>;

/// Who must not be counted where.
pub(crate) type Damaged = BTreeSet<(GroupId, NodeId)>;

impl Lead<'_> {
    pub(super) fn member_work(&mut self, job: Job) {
        match self.replica.id.is_root() && !self.leaving {
            true => self.member_jobs.push(job),
            false => job.finish(Err(Declined::Again)),
        }
    }

    /// Proposes changes, one at a time. What changes nothing is answered at
    /// once, and doesn't keep others waiting.
    pub(super) async fn change_members(&mut self, cluster: &Cluster) {
        while !self.member_jobs.is_empty() && !self.changing_members && !self.draining {
            // One entry at a time changes the map: each is made of what is applied.
            if self.splits.is_frozen() || self.splits.noting {
                return;
            }
            let (Some(map), Some(members)) = (&cluster.map, &cluster.members) else {
                return;
            };
            let job = self.member_jobs.remove(0);
            let Work::Member(work) = &job.work else {
                continue;
            };
            let change = Change {
                members: (**members).clone(),
                damaged: cluster.damaged.clone(),
                alarms: cluster.alarms.clone(),
                versions: cluster.versions.clone(),
            };
            let steps = match change.steps_of(work.clone(), map) {
                Ok(steps) => steps,
                Err(reject) => {
                    job.finish(Err(Declined::Member(reject)));
                    continue;
                }
            };
            if steps.is_empty() {
                let index = self.replica.applied();
                job.finish(Ok(Done {
                    answer: Answered::Done,
                    index,
                }));
                continue;
            }
            self.changing_members = true;
            let flight = Flight {
                id: self.launched,
                first: Revision(0),
                last: Revision(0),
                freight: Freight::Members,
            };
            self.launch(flight, steps, move |outcome| {
                job.finish(outcome.map(|index| Done {
                    answer: Answered::Done,
                    index,
                }));
            })
            .await;
        }
    }

    /// How this group counts a node.
    pub(super) fn count(&self, job: Job) {
        let Work::Count { id } = &job.work else {
            return;
        };
        let group = &self.replica.group;
        let membership = group.membership();
        let last = group.last();
        let matched = match *id == self.node.me {
            true => Some(last),
            false => group
                .progress()
                .and_then(|progress| progress.get(id).copied()),
        };
        let counted = Counted {
            member: membership.nodes().contains(id),
            in_sync: matched.is_some_and(|matched| matched.0 + IN_SYNC_ENTRIES >= last.0)
                && matched.is_some_and(|matched| matched.0 > 0),
            term: self.term,
            leader: self.node.me,
            committed: membership.committed,
            last,
        };
        // It counts only from one who led in this term when it looked. (After
        // the round the members may be those of a later leader.)
        let (rounds, term) = (self.replica.rounds.clone(), self.term);
        self.node.scope.spawn(async move {
            match rounds.confirm_in(term).await {
                Ok(index) => job.finish(Ok(Done {
                    answer: Answered::Counted(counted),
                    index,
                })),
                Err(_) => job.finish(Err(Declined::NotLeader(None))),
            }
        });
    }
}

#[derive(Clone, PartialEq, Eq)]
struct Change {
    members: Members,
    damaged: Damaged,
    alarms: Alarms,
    versions: Versions,
}

impl Change {
    fn with(mut self, work: MemberWork) -> Result<Self, MemberReject> {
        let known = |members: &Members, id: NodeId| match members.contains_key(&id) {
            true => Ok(()),
            false => Err(MemberReject::NotFound),
        };
        match work {
            MemberWork::Add { id, member } => match self.members.contains_key(&id) {
                true => return Err(MemberReject::Exists),
                false => {
                    self.members.insert(id, member);
                }
            },
            MemberWork::Promote { id } => match self.members.get_mut(&id) {
                Some(member) if member.learner => member.learner = false,
                Some(_) => return Err(MemberReject::NotLearner),
                None => return Err(MemberReject::NotFound),
            },
            MemberWork::Remove { id } => {
                known(&self.members, id)?;
                self.members.remove(&id);
                self.damaged.retain(|(_, node)| *node != id);
                self.alarms.retain(|(_, node)| *node != id);
                if self.members.values().all(|member| member.learner) {
                    return Err(MemberReject::NotEnough);
                }
            }
            MemberWork::Update { id, address } => match self.members.get_mut(&id) {
                Some(member) => member.address = address,
                None => return Err(MemberReject::NotFound),
            },
            MemberWork::Damaged { id, group } => {
                known(&self.members, id)?;
                self.damaged.insert((group, id));
            }
            MemberWork::Rebuilt { id, group } => {
                self.damaged.remove(&(group, id));
            }
            MemberWork::Alarm { id, alarm, on } => {
                match on {
                    true => self.alarms.insert((alarm, id)),
                    false => self.alarms.remove(&(alarm, id)),
                };
            }
            MemberWork::Version { id, version } => {
                known(&self.members, id)?;
                self.versions.tell(id, version)?;
            }
            MemberWork::Thin => {}
        }
        self.versions.follow(&self.members);
        Ok(self)
    }

    /// What is to be done for some work, if anything.
    fn steps_of(&self, work: MemberWork, map: &RangeMap) -> Result<Vec<Step>, MemberReject> {
        if work == MemberWork::Thin {
            let thinned = map.thinned(&self.members);
            return Ok(thinned.iter().map(map_step).collect());
        }
        Ok(self.clone().with(work)?.steps(self, map))
    }

    /// From what was before to this.
    fn steps(&self, before: &Self, map: &RangeMap) -> Vec<Step> {
        let mut steps = Vec::new();
        if self.members != before.members || self.damaged != before.damaged {
            steps.push(members_step(&self.members));
            steps.push(damaged_step(&self.damaged));
            steps.push(map_step(&map.placed_on(&self.members)));
        }
        if self.alarms != before.alarms {
            steps.push(alarms_step(&self.alarms));
        }
        if self.versions != before.versions {
            steps.push(versions_step(&self.versions));
        }
        steps
    }
}
