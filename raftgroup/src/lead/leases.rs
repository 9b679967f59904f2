//! The root group's leader as the keeper of leases (rule 13), and what other
//! leaders ask of it.
//!
//! Kept true:
//! - A lease that is being revoked, or about to be, is unknown to everybody.
//! - A sign of life is answered after a quorum round of this leader's term that
//!   began after it came, and it counts from when it came.
//! - A new leader gives every lease its full time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use pontoon_engine::{Put, Reject, Request, Revision, Step};
use tokio::time::Instant;

use super::evaluate::{forbidden, unsound};
use super::{Event, Flight, Freight, Lead, Source};
use crate::lease::{
    Deadlines, LeaseAnswered, LeaseKnown, LeaseName, LeaseRecord, LeaseWork, TTL_SECS_MAX,
    gone_step,
};
use crate::map::Touches;
use crate::message::{Answered, Declined, Done, Work};
use crate::position::{GroupId, LogIndex};
use crate::replica::Job;

/// Leases that are revoked at a time in several groups.
const DRIVEN_MAX: usize = 64;

/// Leases that are looked at in one go when their time is over.
const EXPIRED_MAX: usize = 256;

/// When a lease that should be gone is looked at again.
const RETRY: Duration = Duration::from_secs(1);

/// In a second.
const NANOS: u128 = 1_000_000_000;

#[derive(Default)]
pub(super) struct Lessor {
    deadlines: Deadlines,
    /// Changes that are not proposed yet.
    queue: Vec<Change>,
    /// What leases become with what is proposed or about to be, by the flight
    /// that has it.
    proposed: BTreeMap<i64, (Option<u64>, Option<LeaseRecord>)>,
    /// Their time is over, and they are not gone yet.
    ending: BTreeSet<LeaseName>,
    /// Revoked in several groups by a task of their own, for those who wait.
    driven: BTreeMap<LeaseName, Vec<Job>>,
    /// Questions that wait for the next round, and those that have theirs.
    asked: Vec<(Job, Instant)>,
    confirming: Vec<(Job, Instant)>,
    births: u64,
}

struct Change {
    id: i64,
    record: Option<LeaseRecord>,
    done: Option<(Job, LeaseAnswered)>,
}

fn done(answered: LeaseAnswered, index: LogIndex) -> Done {
    Done {
        answer: Answered::Lease(answered),
        index,
    }
}

impl Lessor {
    /// One that has granted so many leases in this term already.
    pub(super) fn after(births: u64) -> Self {
        Self {
            births,
            ..Self::default()
        }
    }

    /// How many leases were granted in this term.
    pub(super) fn births(&self) -> u64 {
        self.births
    }

    /// Whether so many are being revoked, or about to be, that others wait.
    fn is_busy(&self) -> bool {
        self.driven.len() + self.proposed.len() >= DRIVEN_MAX
    }

    pub(super) fn due(&self) -> Option<Instant> {
        let next = self.deadlines.next();
        next.filter(|_| !self.is_busy())
    }

    /// Ends it; returns the jobs for which nothing was done. Those whose lease
    /// is being revoked hear that nobody knows: whoever leads next goes on.
    pub(super) fn end(&mut self) -> Vec<Job> {
        for job in std::mem::take(&mut self.driven).into_values().flatten() {
            job.finish(Err(Declined::Unknown));
        }
        let queue = self.queue.drain(..).filter_map(|change| change.done);
        let mut jobs: Vec<_> = queue.map(|(job, _)| job).collect();
        let asked = self.asked.drain(..).chain(self.confirming.drain(..));
        jobs.extend(asked.map(|(job, _)| job));
        jobs
    }
}

impl Lead<'_> {
    /// Every lease has its full time again; what is being revoked goes on.
    pub(super) fn take_up_leases(&mut self) {
        if !self.replica.id.is_root() {
            return;
        }
        for (id, lease) in self.node.leases.all() {
            match lease.revoking {
                true => self.drive(lease.name(id), Vec::new()),
                false => self.extend(id, &lease, Instant::now()),
            }
        }
    }

    fn extend(&mut self, id: i64, lease: &LeaseRecord, from: Instant) {
        let name = lease.name(id);
        let secs = u128::from(lease.ttl_secs.unsigned_abs());
        let nanos = self.node.config.second.as_nanos().saturating_mul(secs);
        let life = Duration::new((nanos / NANOS) as u64, (nanos % NANOS) as u32);
        let end = from.checked_add(life);
        // One that lives longer than the clock counts is looked at again.
        let far = from + Duration::from_secs(365 * 24 * 3600);
        self.lessor.deadlines.extend(name, end.unwrap_or(far));
    }

    /// The lease as it will be.
    fn lease(&self, id: i64) -> Option<LeaseRecord> {
        match self.lessor.proposed.get(&id) {
            Some((_, record)) => record.clone(),
            None => self.node.leases.get(id),
        }
    }

    /// Whether keys may hang on a lease.
    pub(super) fn lease_alive(&self, id: i64) -> bool {
        match self.replica.id.is_root() {
            true => self.lease(id).is_some_and(|lease| !lease.revoking),
            false => self.node.leases.alive(id).is_some(),
        }
    }

    /// The leases behind these ids, as far as they are alive; an error if one
    /// of them can't have keys of this group yet.
    pub(super) fn lease_names(&self, ids: &[i64]) -> Result<Vec<LeaseName>, ()> {
        if self.replica.id.is_root() {
            return Ok(Vec::new());
        }
        let mut names = Vec::new();
        for id in ids {
            if let Some(name) = self.node.leases.alive(*id) {
                if !self.node.leases.is_registered(*id, self.replica.id) {
                    return Err(());
                }
                names.push(name);
            }
        }
        Ok(names)
    }

    /// Has the root group note that keys of this group will hang on leases,
    /// then looks at the job again.
    pub(super) fn register(&self, touches: Touches, job: Job) {
        let (node, replica) = (Arc::clone(self.node), Arc::clone(self.replica));
        self.node.scope.spawn(async move {
            let deadline = Instant::now() + node.timing.call;
            for lease in touches.leases {
                let Some(name) = node.leases.alive(lease) else {
                    continue;
                };
                if node
                    .register_lease(name, replica.id, deadline)
                    .await
                    .is_err()
                {
                    return job.finish(Err(Declined::Again));
                }
            }
            replica.enqueue(job);
        });
    }

    /// Work about leases.
    pub(super) fn lease_work(&mut self, job: Job) {
        let Work::Lease(work) = &job.work else {
            return;
        };
        if !self.replica.id.is_root() || self.leaving {
            return job.finish(Err(Declined::Again));
        }
        match work.clone() {
            LeaseWork::Grant { id, ttl_secs } => self.grant_lease(id, ttl_secs, job),
            LeaseWork::Revoke { id } => self.revoke(id, job),
            LeaseWork::KeepAlive { .. } | LeaseWork::Status { .. } => {
                self.lessor.asked.push((job, Instant::now()));
                self.ask_alive();
            }
            LeaseWork::Register { lease, group } => self.register_here(lease, group, job),
        }
    }

    fn grant_lease(&mut self, id: i64, ttl_secs: i64, job: Job) {
        let mut id = id;
        while id == 0 {
            let any = (self.node.scope.random() >> 1).cast_signed();
            id = if self.lease(any).is_none() { any } else { 0 };
        }
        // (As if it were a put: a lease needs space.)
        let alarms = self.node.cluster.borrow().alarms.clone();
        if let Some(declined) = forbidden(&alarms, &Request::Put(Put::default())) {
            return self.refuse(declined, job);
        }
        if ttl_secs > TTL_SECS_MAX {
            return self.refuse(Declined::Reject(Reject::LeaseTtlTooLarge), job);
        }
        if self.lease(id).is_some() {
            return self.refuse(Declined::Reject(Reject::LeaseExists), job);
        }
        self.lessor.births += 1;
        let ttl_secs = ttl_secs.max(self.node.config.lease_ttl_secs_min);
        let record = LeaseRecord {
            birth: (self.term.0, self.lessor.births),
            ttl_secs,
            revoking: false,
            groups: Vec::new(),
        };
        let granted = LeaseAnswered::Granted {
            id,
            ttl_secs,
            revision: Revision(0),
        };
        self.change_lease(id, Some(record), Some((job, granted)));
    }

    /// Refuses for what this node knows, once it is certain that nobody else
    /// leads.
    pub(super) fn refuse(&self, declined: Declined, job: Job) {
        let (rounds, term) = (Arc::clone(&self.replica.rounds), self.term);
        self.node.scope.spawn(async move {
            match rounds.confirm_in(term).await {
                Ok(_) => job.finish(Err(declined)),
                Err(_) => job.finish(Err(Declined::NotLeader(None))),
            }
        });
    }

    /// The newest revision that this leader knows of.
    fn newest(&self) -> Revision {
        match &self.source {
            Source::Ledger(ledger, _) => ledger.lock().read_point(),
            _ => self.replica.group.store().revision(),
        }
    }

    fn revoke(&mut self, id: i64, mut job: Job) {
        if let Some(declined) = unsound(&self.node.cluster.borrow().alarms) {
            return self.refuse(declined, job);
        }
        let Some(mut lease) = self.lease(id).filter(|lease| !lease.revoking) else {
            // It goes; that it is gone is not said before it is.
            return match self.node.leases.get(id) {
                Some(_) => job.finish(Err(Declined::Again)),
                None => self.refuse(Declined::Reject(Reject::LeaseNotFound), job),
            };
        };
        if self.is_simple(&lease) {
            job.work = Work::Request(Request::LeaseRevoke(id));
            return self.held.push_back(job);
        }
        lease.revoking = true;
        let name = lease.name(id);
        self.change_lease(id, Some(lease), None);
        self.lessor.driven.entry(name).or_default().push(job);
    }

    /// Whether revoking it is a write like any other: all its keys are here,
    /// and no transaction over groups may have to do with them.
    fn is_simple(&self, lease: &LeaseRecord) -> bool {
        lease.groups.is_empty() && self.latches.is_empty()
    }

    /// Takes back a revocation that isn't such a write any more; gives back
    /// what is no such thing.
    pub(super) fn revoke_otherwise(&mut self, job: Job) -> Option<Job> {
        let Work::Request(Request::LeaseRevoke(id)) = job.work else {
            return Some(job);
        };
        match self.lease(id) {
            Some(lease) if !self.is_simple(&lease) => {
                self.revoke(id, job);
                None
            }
            _ => Some(job),
        }
    }

    fn register_here(&mut self, name: LeaseName, group: GroupId, job: Job) {
        let lease = self.lease(name.id);
        let lease = lease.filter(|lease| lease.birth == name.birth && !lease.revoking);
        let Some(mut lease) = lease.filter(|_| !self.lessor.ending.contains(&name)) else {
            return self.refuse(Declined::Reject(Reject::LeaseNotFound), job);
        };
        if !lease.groups.contains(&group) {
            lease.groups.push(group);
            lease.groups.sort_unstable();
        }
        let registered = LeaseAnswered::Registered;
        self.change_lease(name.id, Some(lease), Some((job, registered)));
    }

    fn change_lease(
        &mut self,
        id: i64,
        record: Option<LeaseRecord>,
        done: Option<(Job, LeaseAnswered)>,
    ) {
        self.lessor.proposed.insert(id, (None, record.clone()));
        self.lessor.queue.push(Change { id, record, done });
    }

    /// Proposes what changes, all in one entry.
    pub(super) async fn propose_leases(&mut self) {
        if self.draining || self.lessor.queue.is_empty() || self.splits.holds_leases() {
            return;
        }
        let id = self.launched;
        // When it is applied, so is all that was proposed before.
        let revision = self.newest().max(self.last);
        let mut steps = Vec::new();
        let mut waiting = Vec::new();
        for mut change in std::mem::take(&mut self.lessor.queue) {
            // A split may have registered a child since.
            if let Some(record) = &mut change.record
                && let Some(known) = self.node.leases.get(change.id)
                && known.birth == record.birth
            {
                record.groups.extend(known.groups);
                record.groups.sort_unstable();
                record.groups.dedup();
            }
            steps.push(match &change.record {
                Some(record) => record.step(change.id),
                None => gone_step(change.id),
            });
            // The last change of a lease is what it becomes.
            let proposed = (Some(id), change.record);
            self.lessor.proposed.insert(change.id, proposed);
            let done = change.done;
            waiting.extend(done.map(|(job, answered)| (job, answered.at(revision))));
        }
        let flight = Flight {
            id,
            first: Revision(0),
            last: Revision(0),
            freight: Freight::Leases,
        };
        self.launch(flight, steps, move |outcome| {
            for (job, answered) in waiting {
                job.finish(outcome.clone().map(|index| done(answered, index)));
            }
        })
        .await;
    }

    /// What was proposed had no effect: that nothing hangs on a lease, as
    /// things would have been, is looked at again.
    pub(super) fn look_at_leases_again(&mut self) {
        for change in std::mem::take(&mut self.lessor.queue) {
            match change {
                Change {
                    id,
                    record: None,
                    done: Some((job, _)),
                } => {
                    self.lessor.proposed.remove(&id);
                    self.held.push_back(job);
                }
                other => self.lessor.queue.push(other),
            }
        }
    }

    /// Whether nothing about leases is on its way into the log, be it a change
    /// of one or a decision that ends one: who writes what they are now would
    /// bring back what they were.
    pub(super) fn is_settled(&self) -> bool {
        let mut proposed = self.lessor.proposed.values();
        let mut flights = self.flights.iter();
        let ends_one = |flight: &Flight| match &flight.freight {
            Freight::Decisions(decisions) => decisions.iter().any(|one| !one.then.is_empty()),
            _ => false,
        };
        !proposed.any(|(flight, _)| flight.is_some()) && !flights.any(ends_one)
    }

    /// A flight has ended: the leases that it changed are as the store says.
    pub(super) fn leases_landed(&mut self, flight: u64) {
        let landed =
            |(_, (by, _)): &(&i64, &(Option<u64>, Option<LeaseRecord>))| *by == Some(flight);
        let ids: Vec<i64> = self
            .lessor
            .proposed
            .iter()
            .filter(landed)
            .map(|(id, _)| *id)
            .collect();
        for id in ids {
            self.lessor.proposed.remove(&id);
            let lease = self.node.leases.get(id);
            self.forget_gone(id, lease.as_ref());
            let Some(lease) = lease else {
                continue;
            };
            let name = lease.name(id);
            let jobs = self.lessor.driven.remove(&name).unwrap_or_default();
            if lease.revoking {
                self.drive(name, jobs);
                continue;
            }
            // A revocation was not taken; those who asked ask again.
            for job in jobs {
                job.finish(Err(Declined::Again));
            }
            if self.lessor.deadlines.end(name).is_none() {
                self.extend(id, &lease, Instant::now());
            }
        }
    }

    /// Forgets what had this id and is gone.
    fn forget_gone(&mut self, id: i64, lease: Option<&LeaseRecord>) {
        let still = lease.map(|lease| lease.birth);
        let is_gone = |name: &LeaseName| name.id == id && Some(name.birth) != still;
        self.lessor.deadlines.remove_if(id, is_gone);
        self.lessor.ending.retain(|name| !is_gone(name));
        let gone = self.lessor.driven.extract_if(.., |name, _| is_gone(name));
        let jobs: Vec<_> = gone.flat_map(|(_, jobs)| jobs).collect();
        let (index, revision) = (self.replica.applied(), self.newest());
        for job in jobs {
            job.finish(Ok(done(LeaseAnswered::Revoked(revision), index)));
        }
    }

    /// The steps that go with a request: a lease that is revoked is gone.
    pub(super) fn lease_goes_with(&mut self, request: &Request) -> Vec<Step> {
        let Request::LeaseRevoke(id) = request else {
            return Vec::new();
        };
        let proposed = (Some(self.launched), None);
        self.lessor.proposed.insert(*id, proposed);
        vec![gone_step(*id)]
    }

    /// A lease on which nothing hangs takes no revision.
    pub(super) fn revoke_without_keys(&mut self, job: Job) {
        let Work::Request(Request::LeaseRevoke(id)) = job.work else {
            return;
        };
        let revoked = LeaseAnswered::Revoked(Revision(0));
        self.change_lease(id, None, Some((job, revoked)));
    }

    /// Revokes a lease that may have keys in several groups.
    fn drive(&mut self, name: LeaseName, jobs: Vec<Job>) {
        self.lessor.driven.insert(name, jobs);
        let (node, replica, term) = (Arc::clone(self.node), Arc::clone(self.replica), self.term);
        self.node.scope.spawn(async move {
            node.drive_revocation(&replica, term, name).await;
        });
    }

    /// A lease was revoked at a revision, or nothing hangs on it.
    pub(super) fn revoked(&mut self, name: LeaseName, revision: Option<Revision>) {
        let lease = self.node.leases.get(name.id);
        let still = lease
            .as_ref()
            .is_some_and(|lease| lease.birth == name.birth);
        if still && revision.is_none() {
            return self.change_lease(name.id, None, None);
        }
        // It went with a transaction of which nobody heard the end: then the
        // revision of its deletes is not known, and no other is told.
        let index = self.replica.applied();
        let outcome = revision.map(|revision| done(LeaseAnswered::Revoked(revision), index));
        for job in self.lessor.driven.remove(&name).into_iter().flatten() {
            job.finish(outcome.clone().ok_or(Declined::Unknown));
        }
        self.forget_gone(name.id, lease.as_ref());
    }

    /// Ends leases whose time is over, some at a time.
    pub(super) fn expire_leases(&mut self) {
        if self.draining || self.leaving {
            return;
        }
        let now = Instant::now();
        for _ in 0..EXPIRED_MAX {
            if self.lessor.is_busy() {
                return;
            }
            let Some(name) = self.lessor.deadlines.pop(now) else {
                return;
            };
            let lease = self.lease(name.id);
            let Some(mut lease) = lease.filter(|lease| lease.birth == name.birth) else {
                continue;
            };
            // Until it is gone it is looked at again.
            self.lessor.deadlines.extend(name, now + RETRY);
            if self.lessor.ending.insert(name) {
                self.node.counters.leases_expired.fetch_add(1, Relaxed);
            }
            if lease.revoking || self.lessor.proposed.contains_key(&name.id) {
                continue;
            }
            if self.is_simple(&lease) {
                let work = Work::Request(Request::LeaseRevoke(name.id));
                self.held.push_back(Job::new(work).0);
            } else {
                lease.revoking = true;
                self.change_lease(name.id, Some(lease), None);
            }
        }
    }

    /// Begins a round for all who asked since the last one began.
    fn ask_alive(&mut self) {
        if !self.lessor.confirming.is_empty() || self.lessor.asked.is_empty() {
            return;
        }
        self.lessor.confirming = std::mem::take(&mut self.lessor.asked);
        let (rounds, term) = (Arc::clone(&self.replica.rounds), self.term);
        self.calls.push(Box::pin(async move {
            let confirmed = rounds.confirm_in(term).await.is_ok();
            Event::Alive { confirmed }
        }));
    }

    /// Answers those for whom the round was.
    pub(super) fn alive(&mut self, confirmed: bool) {
        let index = self.replica.applied();
        for (job, came) in std::mem::take(&mut self.lessor.confirming) {
            let answered = match &job.work {
                _ if !confirmed => {
                    job.finish(Err(Declined::NotLeader(None)));
                    continue;
                }
                Work::Lease(LeaseWork::KeepAlive { id }) => {
                    let alive = self.keep_alive(*id, came);
                    alive.map(LeaseAnswered::Alive)
                }
                Work::Lease(LeaseWork::Status { id }) => {
                    let known = self.status(*id);
                    known.map(LeaseAnswered::Status)
                }
                _ => continue,
            };
            job.finish(answered.map(|answered| done(answered, index)));
        }
        self.ask_alive();
    }

    /// The lease, if it is alive. One that is about to go is gone only when
    /// that is in the log: until then nobody can say.
    fn certain(&self, id: i64) -> Result<Option<LeaseRecord>, Declined> {
        let lease = self.node.leases.get(id).filter(|lease| !lease.revoking);
        let Some(lease) = lease else {
            return Ok(None);
        };
        let goes = self.lease(id).is_none_or(|lease| lease.revoking);
        match goes || self.lessor.ending.contains(&lease.name(id)) {
            true => Err(Declined::Again),
            false => Ok(Some(lease)),
        }
    }

    fn keep_alive(&mut self, id: i64, came: Instant) -> Result<Option<i64>, Declined> {
        let Some(lease) = self.certain(id)? else {
            return Ok(None);
        };
        self.extend(id, &lease, came);
        self.node.counters.leases_renewed.fetch_add(1, Relaxed);
        Ok(Some(lease.ttl_secs))
    }

    fn status(&self, id: i64) -> Result<Option<LeaseKnown>, Declined> {
        let Some(lease) = self.certain(id)? else {
            return Ok(None);
        };
        let end = self.lessor.deadlines.end(lease.name(id));
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        let left = left.unwrap_or_default().as_nanos() / self.node.config.second.as_nanos();
        Ok(Some(LeaseKnown {
            left_secs: i64::try_from(left).unwrap_or(i64::MAX),
            granted_secs: lease.ttl_secs,
            groups: lease.groups,
        }))
    }
}
