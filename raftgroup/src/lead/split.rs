//! The leader of a range that is split, and of the root group that notes it.
//!
//! Kept true: between the entry that makes a group smaller and the map that
//! says so, neither half evaluates anything; nothing is on its way, latched or
//! undecided when the entry is proposed.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pontoon_engine::{KeyRange, Revision, Step};
use tokio::time::Instant;

use super::{Flight, Freight, Lead, Source};
use crate::cluster::{Cluster, ceiling_step, map_step, splits_step};
use crate::map::RangeMap;
use crate::message::{Answered, Declined, Done, Work};
use crate::position::{GroupId, LogIndex};
use crate::replica::Job;
use crate::split::{SplitRecord, Splits, Splitting, abandon_step, forget_step, upper};

/// What doesn't come to an end by then must go on, and the split waits.
const FREEZE_MAX: Duration = Duration::from_millis(300);

/// Before it is tried again.
const THAW: Duration = Duration::from_millis(700);

/// Splits, as this leader has to do with them.
#[derive(Default)]
pub(super) struct SplitsHere {
    /// Which one is being prepared, and when it is abandoned.
    prepares: Option<(Splitting, Instant)>,
    /// Children up to this one were abandoned.
    abandoned: GroupId,
    abandoning: bool,
    /// The root group is being told that one was abandoned.
    cancels: Option<GroupId>,
    /// Nothing new is evaluated until this one is done, or given up.
    pub(super) freezing: Option<(Splitting, Instant)>,
    /// The entry is proposed, or applied: nothing is evaluated before the map
    /// says so.
    pub(super) frozen: bool,
    thaws: Option<(Splitting, Instant)>,
    /// What is still in the store though it was split off.
    sheds: Vec<GroupId>,
    shedding: bool,
    /// To the root group's leader: jobs that change what it notes.
    jobs: Vec<Job>,
    pub(super) noting: bool,
}

impl SplitsHere {
    pub(super) fn of(records: &[SplitRecord], abandoned: GroupId) -> Self {
        Self {
            sheds: records.iter().map(|record| record.child).collect(),
            abandoned,
            ..Self::default()
        }
    }

    pub(super) fn waits_for_marks(&self) -> bool {
        !self.sheds.is_empty()
    }

    pub(super) fn is_frozen(&self) -> bool {
        self.frozen || self.freezing.is_some()
    }

    /// Nothing of leases may change while the map is.
    pub(super) fn holds_leases(&self) -> bool {
        self.noting || self.is_frozen() || !self.jobs.is_empty()
    }

    pub(super) fn due(&self) -> Option<Instant> {
        let freezing = self.freezing.as_ref().map(|(_, until)| *until);
        let thaws = self.thaws.as_ref().map(|(_, at)| *at);
        let abandons = self.prepares.as_ref().map(|(_, at)| *at);
        let idle = !self.frozen && !self.abandoning;
        [
            freezing.filter(|_| !self.frozen),
            thaws,
            abandons.filter(|_| idle),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    pub(super) fn end(&mut self) -> Vec<Job> {
        std::mem::take(&mut self.jobs)
    }
}

impl Lead<'_> {
    /// Begins to prepare a split that was noted.
    pub(super) fn follow_splits(&mut self, cluster: &Cluster) {
        let mut noted = cluster.splits.under_way.iter();
        let splitting = noted.find(|splitting| splitting.parent == self.replica.id);
        let Some(splitting) = splitting.cloned() else {
            self.splits.prepares = None;
            return;
        };
        let (node, replica, term) = (Arc::clone(self.node), Arc::clone(self.replica), self.term);
        if splitting.child <= self.splits.abandoned {
            if self.splits.cancels.replace(splitting.child) != Some(splitting.child) {
                self.node
                    .scope
                    .spawn(async move { node.cancel_split(splitting).await });
            }
            return;
        }
        let prepares = self.splits.prepares.as_ref();
        if prepares.is_some_and(|(known, _)| *known == splitting) {
            return;
        }
        let give_up_at = Instant::now() + self.node.config.split_max;
        self.splits.prepares = Some((splitting.clone(), give_up_at));
        self.node.scope.spawn(async move {
            node.prepare_split(&replica, term, splitting).await;
        });
    }

    /// Abandons a split that takes too long. An entry says so: whoever leads
    /// the parent later doesn't split it either.
    async fn abandon_split(&mut self) {
        let now = Instant::now();
        let overdue = self.splits.prepares.as_ref().filter(|(_, at)| *at <= now);
        let Some((splitting, _)) = overdue.cloned() else {
            return;
        };
        if self.splits.frozen || self.splits.abandoning || self.draining || self.leaving {
            return;
        }
        let (parent, child) = (splitting.parent, splitting.child);
        tracing::warn!(%parent, %child, "the split is abandoned: it takes too long");
        self.splits.freezing = None;
        self.splits.thaws = None;
        self.splits.abandoning = true;
        let flight = Flight {
            id: self.launched,
            first: Revision(0),
            last: Revision(0),
            freight: Freight::Abandon(child),
        };
        self.launch(flight, vec![abandon_step(child)], |_| ()).await;
    }

    /// The entry that abandons a split is applied, or was not taken.
    pub(super) fn abandon_landed(&mut self, child: GroupId, applied: bool) {
        self.splits.abandoning = false;
        if applied {
            self.splits.abandoned = child;
            self.splits.prepares = None;
        }
    }

    /// A quorum has copied the upper half.
    pub(super) fn freeze(&mut self, splitting: Splitting) {
        let abandons = self.splits.abandoning || splitting.child <= self.splits.abandoned;
        if !self.splits.is_frozen() && !self.leaving && !abandons {
            let until = Instant::now() + FREEZE_MAX;
            self.splits.freezing = Some((splitting, until));
        }
    }

    /// Does what can be done about splits.
    pub(super) async fn advance_splits(&mut self, cluster: &Cluster) {
        let now = Instant::now();
        if self.splits.thaws.as_ref().is_some_and(|(_, at)| *at <= now)
            && let Some((splitting, _)) = self.splits.thaws.take()
        {
            self.freeze(splitting);
        }
        self.note_splits(cluster).await;
        self.shed(cluster).await;
        self.abandon_split().await;
        if self.splits.frozen || self.draining {
            return;
        }
        let Some((splitting, until)) = self.splits.freezing.clone() else {
            return;
        };
        let still = self.flights.is_empty()
            && self.asked.is_empty()
            && self.latches.is_empty()
            && self.is_settled()
            && self.replica.group.store().undecided().is_empty();
        if still {
            return self.propose_split(splitting, cluster).await;
        }
        if until <= now {
            self.splits.freezing = None;
            self.splits.thaws = Some((splitting, now + THAW));
        }
    }

    async fn propose_split(&mut self, splitting: Splitting, cluster: &Cluster) {
        let membership = self.replica.group.membership();
        let bounds = self.replica.group.store().bounds();
        let keys = upper(&bounds, &splitting.key);
        let noted = cluster.splits.under_way.contains(&splitting);
        let Some(keys) = keys.filter(|_| noted && !membership.joint) else {
            self.splits.freezing = None;
            self.splits.thaws = noted.then(|| (splitting, Instant::now() + THAW));
            return;
        };
        let record = SplitRecord {
            child: splitting.child,
            keys,
            voters: membership.voters.into_iter().collect(),
            learners: membership.learners.into_iter().collect(),
        };
        let lower = KeyRange {
            key: bounds.key,
            end: splitting.key.clone(),
        };
        let mut steps = vec![Step::Bounds { keys: lower }, record.step()];
        if self.replica.id.is_root() {
            steps.extend(self.map_steps(&splitting, cluster));
        }
        self.splits.frozen = true;
        let flight = Flight {
            id: self.launched,
            first: Revision(0),
            last: Revision(0),
            freight: Freight::Split(splitting),
        };
        self.launch(flight, steps, |_| ()).await;
    }

    /// The split entry is applied, or was not taken.
    pub(super) fn split_landed(&mut self, splitting: Splitting, applied: bool) {
        if !applied {
            self.splits.frozen = false;
            self.splits.freezing = None;
            self.splits.thaws = Some((splitting, Instant::now() + THAW));
            return;
        }
        self.splits.sheds.push(splitting.child);
        if !self.replica.id.is_root() {
            let node = Arc::clone(self.node);
            self.node.scope.spawn(async move {
                node.map_split(splitting.parent, splitting.child).await;
            });
        }
    }

    /// Lets go of what was split off, once the child stands on its own.
    async fn shed(&mut self, cluster: &Cluster) {
        let busy = self.splits.shedding || self.splits.frozen || self.draining;
        if self.splits.sheds.is_empty() || busy {
            return;
        }
        let Some(map) = &cluster.map else {
            return;
        };
        let stands = {
            let told = self.node.told.lock();
            let mut sheds = self.splits.sheds.iter();
            sheds.all(|child| map.keys_of(*child).is_some() && told.knows(*child))
        };
        if !stands {
            return;
        }
        self.splits.shedding = true;
        let mut steps = vec![Step::Shed];
        steps.extend(self.splits.sheds.iter().map(|child| forget_step(*child)));
        let flight = Flight {
            id: self.launched,
            first: Revision(0),
            last: Revision(0),
            freight: Freight::Shed,
        };
        self.launch(flight, steps, |_| ()).await;
    }

    pub(super) fn shed_landed(&mut self, applied: bool) {
        self.splits.shedding = false;
        if applied {
            self.splits.sheds.clear();
        }
    }

    /// At the root group's leader: work about splits.
    pub(super) fn split_work(&mut self, job: Job) {
        match self.replica.id.is_root() && !self.leaving {
            true => self.splits.jobs.push(job),
            false => job.finish(Err(Declined::Again)),
        }
    }

    /// Proposes what is to be noted, one change at a time.
    async fn note_splits(&mut self, cluster: &Cluster) {
        if self.splits.jobs.is_empty() || self.splits.noting || self.draining {
            return;
        }
        // One entry at a time changes the map: each is made of what is applied.
        if self.splits.frozen || self.changing_members {
            return;
        }
        let Some(map) = cluster.map.clone() else {
            return;
        };
        let mut jobs = std::mem::take(&mut self.splits.jobs).into_iter();
        for job in jobs.by_ref() {
            let (child, steps) = match &job.work {
                Work::Split { key } => self.note_split(key, &map, cluster),
                Work::MapSplit { parent, child } => self.note_map(*parent, *child, &map, cluster),
                Work::CancelSplit { parent, child } => note_cancel(*parent, *child, cluster),
                _ => (None, Vec::new()),
            };
            let Some(child) = child else {
                job.finish(Err(Declined::Again));
                continue;
            };
            if steps.is_empty() {
                let index = self.replica.applied();
                job.finish(Ok(group(child, index)));
                continue;
            }
            if !self.is_settled() {
                // First what is on its way about leases, which it builds on.
                self.splits.jobs.push(job);
                break;
            }
            self.splits.noting = true;
            let flight = Flight {
                id: self.launched,
                first: Revision(0),
                last: Revision(0),
                freight: Freight::Noted,
            };
            self.launch(flight, steps, move |outcome| {
                job.finish(outcome.map(|index| group(child, index)));
            })
            .await;
            break;
        }
        self.splits.jobs.extend(jobs);
    }

    pub(super) fn noted(&mut self) {
        self.splits.noting = false;
    }

    /// Notes that a range is to be split; the number of the child, if it can be.
    fn note_split(
        &self,
        key: &Bytes,
        map: &RangeMap,
        cluster: &Cluster,
    ) -> (Option<GroupId>, Vec<Step>) {
        if let Some(group) = map.group_that_begins_with(key) {
            return (Some(group), Vec::new());
        }
        let parent = map.group_of(key);
        let mut under_way = cluster.splits.under_way.iter();
        if let Some(noted) = under_way.find(|splitting| splitting.parent == parent) {
            return ((noted.key == *key).then_some(noted.child), Vec::new());
        }
        let next = cluster.splits.next.max(map.next_group());
        let child = GroupId(next);
        let mut splits = Splits {
            next: next + 1,
            ..cluster.splits.clone()
        };
        splits.under_way.push(Splitting {
            parent,
            child,
            key: key.clone(),
        });
        (Some(child), vec![splits_step(&splits)])
    }

    /// The map says that a parent's log has the split.
    fn note_map(
        &self,
        parent: GroupId,
        child: GroupId,
        map: &RangeMap,
        cluster: &Cluster,
    ) -> (Option<GroupId>, Vec<Step>) {
        if map.keys_of(child).is_some() {
            return (Some(child), Vec::new());
        }
        let mut under_way = cluster.splits.under_way.iter();
        let noted = under_way.find(|noted| noted.parent == parent && noted.child == child);
        match noted {
            Some(splitting) => (Some(child), self.map_steps(splitting, cluster)),
            None => (None, Vec::new()),
        }
    }

    /// The map with the child in it, which is registered with every lease that
    /// may have keys there.
    fn map_steps(&self, splitting: &Splitting, cluster: &Cluster) -> Vec<Step> {
        let map = cluster.map.as_ref();
        let Some(map) = map.and_then(|map| map.split(splitting)) else {
            return Vec::new();
        };
        let mut splits = cluster.splits.clone();
        splits.under_way.retain(|noted| noted != splitting);
        let mut steps = vec![map_step(&map), splits_step(&splits)];
        if matches!(self.source, Source::Own) {
            // The first sequencer counts on.
            let last = self.replica.group.store().last_revision();
            steps.push(ceiling_step(last));
        }
        for (id, mut lease) in self.node.leases.all() {
            let concerned = splitting.parent.is_root() || lease.groups.contains(&splitting.parent);
            if concerned {
                lease.groups.push(splitting.child);
                lease.groups.sort_unstable();
                steps.push(lease.step(id));
            }
        }
        steps
    }
}

/// The parent's log has abandoned the split: it is not under way any more.
fn note_cancel(parent: GroupId, child: GroupId, cluster: &Cluster) -> (Option<GroupId>, Vec<Step>) {
    let mut splits = cluster.splits.clone();
    splits
        .under_way
        .retain(|noted| noted.parent != parent || noted.child != child);
    let steps = match splits == cluster.splits {
        true => Vec::new(),
        false => vec![splits_step(&splits)],
    };
    (Some(child), steps)
}

fn group(child: GroupId, index: LogIndex) -> Done {
    Done {
        answer: Answered::Group(child),
        index,
    }
}
