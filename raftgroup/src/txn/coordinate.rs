//! The coordinator of a transaction over several groups (rule 12): the node
//! that a client sent it to.
//!
//! Kept true:
//! - Nothing is asked of the sequencer before every participant holds its
//!   latch and has its effects.
//! - Nobody waits for the replicas of a client's node while latches are held: its
//!   disk may hang. (Who revokes a lease leads the root group.)
//! - It is tried again only if it is certain that nothing was done; committed
//!   means that every participant's prepare is committed.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::join_all;
use pontoon_engine::{Answer, Op, Reject, Request, Revision, Txn};
use tokio::time::Instant;

use super::finish::fate_of;
use super::plan::{Path, Plan};
use super::{Fate, Hold, Part, Participant, TxnAnswered, TxnAsk, TxnAsked, TxnId, TxnWork, as_txn};
use crate::error::Failure;
use crate::lead::{forbidden, is_read_only};
use crate::lease::{LeaseAnswered, LeaseName, LeaseWork, gone_step};
use crate::map::RangeMap;
use crate::message::{Answered, Declined, Message, Outcome, Work};
use crate::node::Inner;
use crate::position::{GroupId, LogIndex, Term};
use crate::route::failure;

/// Why an attempt came to nothing.
pub(crate) enum Tried {
    /// Nothing was done: once more.
    Again,
    /// It turned out to change nothing.
    NoChange,
    Failed(Failure),
}

impl From<Failure> for Tried {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl From<Declined> for Tried {
    fn from(declined: Declined) -> Self {
        match declined {
            // Latches and what was evaluated under them are no changes.
            Declined::Again | Declined::NotLeader(_) | Declined::Unknown | Declined::Moved => {
                Self::Again
            }
            declined => Self::Failed(failure(declined)),
        }
    }
}

/// What one participant is to do, and what it said.
struct Evaluated {
    answers: BTreeMap<GroupId, Answer>,
    changes: BTreeMap<GroupId, Vec<u32>>,
    leases: Vec<LeaseName>,
    root: LogIndex,
    own: Option<Revision>,
}

/// A transaction that this node coordinates, until it knows the outcome or
/// gives up.
struct OpenTxn {
    node: Arc<Inner>,
    id: TxnId,
}

impl Drop for OpenTxn {
    fn drop(&mut self) {
        self.node.open_txns.lock().remove(&self.id);
    }
}

impl Inner {
    /// Serves a write whose keys lie in several groups.
    pub(crate) async fn transact(
        self: &Arc<Self>,
        request: &Request,
        map: &RangeMap,
        deadline: Instant,
    ) -> Result<Answer, Tried> {
        if forbidden(&self.cluster.borrow().alarms, request).is_some() {
            // Also for what it might do and won't, as in etcd.
            self.check_alarms(request).await?;
        }
        let txn = as_txn(request);
        let plan = Plan::of(&txn, map);
        self.register_leases(request, map, deadline).await?;
        let changes_nothing = is_read_only(request);
        let tried = match changes_nothing {
            true => Err(Tried::NoChange),
            false => self.attempt(&plan, map, deadline).await,
        };
        let tried = match tried {
            Err(Tried::NoChange) => {
                let looked = self.look(&plan, map, deadline).await;
                self.heed_alarms(request)?;
                looked
            }
            // No grant has told of an alarm.
            Err(Tried::Failed(Failure::Reject(_))) => {
                self.check_alarms(request).await?;
                tried
            }
            tried => tried,
        };
        let answer = tried?;
        Ok(match (request, answer) {
            (Request::DeleteRange(_), Answer::Txn(mut answer)) if answer.answers.len() == 1 => {
                answer.answers.remove(0)
            }
            (_, answer) => answer,
        })
    }

    /// Refuses what goes against an alarm, as things are (rule 15).
    async fn check_alarms(self: &Arc<Self>, request: &Request) -> Result<(), Tried> {
        self.know_root().await?;
        self.heed_alarms(request)
    }

    /// The same, as far as this node knows.
    fn heed_alarms(&self, request: &Request) -> Result<(), Tried> {
        match forbidden(&self.cluster.borrow().alarms, request) {
            Some(declined) => Err(declined.into()),
            None => Ok(()),
        }
    }

    /// Evaluates at a read point what is expected to change nothing (rule 1).
    /// Then this node knows all of the root group that was acknowledged before.
    async fn look(
        self: &Arc<Self>,
        plan: &Plan<'_>,
        map: &RangeMap,
        deadline: Instant,
    ) -> Result<Answer, Tried> {
        let at = self.read_point().await.ok_or(Tried::Again)?;
        if !self.root_catches_up(at.root).await {
            return Err(Tried::Again);
        }
        let mut said = BTreeMap::new();
        let look = |group: GroupId, txn: Txn| {
            let work = Work::Look {
                request: Request::Txn(txn),
                at,
            };
            async move {
                let done = self.work_once(group, map.version, work, deadline).await?;
                match done.answer {
                    Answered::Answer(answer) => Ok(Some(answer)),
                    Answered::Changes => Ok(None),
                    _ => Err(Declined::Again),
                }
            }
        };
        for (group, keys) in &plan.groups {
            let answer = match look(*group, keys.probe()).await {
                // Compacted since the point was captured: another will do.
                Err(Declined::Reject(_)) => return Err(Tried::Again),
                answer => answer?.ok_or(Tried::Again)?,
            };
            let verdicts = keys.verdicts(answer).ok_or(Tried::Again)?;
            said.insert(*group, verdicts);
        }
        let path = plan.path(&plan.holds(&said), map);
        let mut answers = BTreeMap::new();
        for group in plan.groups.keys() {
            let ops = path.ops(*group).into_iter().map(|(_, op)| op).collect();
            let txn = Txn {
                success: ops,
                ..Txn::default()
            };
            match look(*group, txn).await {
                Ok(Some(Answer::Txn(answer))) => {
                    answers.insert(*group, answer.answers);
                }
                // It changes something after all: begin anew.
                Ok(_) => return Err(Tried::Again),
                Err(Declined::Reject(_)) => {
                    // Another group may refuse an earlier step.
                    for (group, op) in path.steps() {
                        let names = matches!(&op, Op::Range(range) if range.revision != 0);
                        let txn = Txn {
                            success: vec![op],
                            ..Txn::default()
                        };
                        match look(group, txn).await {
                            // Compacted since, unless it named what is compacted.
                            Err(Declined::Reject(Reject::Compacted)) if !names => break,
                            looked => looked?,
                        };
                    }
                    return Err(Tried::Again);
                }
                Err(declined) => return Err(declined.into()),
            }
        }
        self.told_of(plan.groups.keys().copied(), at.revision);
        let answer = path.answer(answers, at.revision, at.revision);
        answer.map(Answer::Txn).ok_or(Tried::Again)
    }

    /// A client is told of a revision in these groups (rule 16).
    fn told_of(&self, groups: impl Iterator<Item = GroupId>, revision: Revision) {
        groups.for_each(|group| self.answers.note(group, revision));
    }

    /// One attempt under latches.
    async fn attempt(
        self: &Arc<Self>,
        plan: &Plan<'_>,
        map: &RangeMap,
        deadline: Instant,
    ) -> Result<Answer, Tried> {
        let open = self.open_txn();
        let txn = open.id;
        let mut terms = BTreeMap::new();
        let tried = self
            .under_latches(txn, plan, map, &mut terms, deadline)
            .await;
        if !matches!(
            tried,
            Ok(_) | Err(Tried::Failed(Failure::LeaderChanged | Failure::TimedOut))
        ) {
            self.unlatch(txn, terms.keys().copied());
        }
        tried
    }

    fn open_txn(self: &Arc<Self>) -> OpenTxn {
        let id = TxnId((self.me.0, self.scope.random()));
        self.open_txns.lock().insert(id);
        OpenTxn {
            node: Arc::clone(self),
            id,
        }
    }

    async fn under_latches(
        self: &Arc<Self>,
        txn: TxnId,
        plan: &Plan<'_>,
        map: &RangeMap,
        terms: &mut BTreeMap<GroupId, Term>,
        deadline: Instant,
    ) -> Result<Answer, Tried> {
        let mut said = BTreeMap::new();
        for (group, keys) in &plan.groups {
            let hold = Hold::Keys(keys.ranges.clone());
            let latched = self
                .latch(txn, *group, map.version, hold, keys.probe(), deadline)
                .await;
            // If it isn't known, it may be held all the same.
            terms.insert(*group, Term(0));
            let (term, verdicts) = latched?;
            terms.insert(*group, term);
            said.insert(*group, keys.verdicts(verdicts).ok_or(Tried::Again)?);
        }
        let path = plan.path(&plan.holds(&said), map);
        let newest = match path.names_revisions() {
            true => self.read_point().await.ok_or(Tried::Again)?.revision,
            false => Revision(0),
        };
        let evaluated = self
            .evaluate_parts(txn, plan, &path, map, newest, deadline)
            .await?;
        if evaluated
            .changes
            .values()
            .flatten()
            .all(|count| *count == 0)
        {
            return Err(Tried::NoChange);
        }
        let mut places = path.places(&evaluated.changes);
        let participants = terms.iter().map(|(group, term)| Participant {
            group: *group,
            term: *term,
            places: places.remove(group).unwrap_or_default(),
        });
        let ask = TxnAsk {
            epoch: Term(0),
            txn,
            participants: participants.collect(),
            root: evaluated.root,
            leases: evaluated.leases,
            exactly: evaluated.own,
        };
        let revision = self.commit_txn(ask, map.version, deadline).await?;
        let answers = evaluated.answers.into_iter().map(|(group, mut answer)| {
            answer.complete(&|_| revision);
            let answers = match answer {
                Answer::Txn(answer) => answer.answers,
                other => vec![other],
            };
            (group, answers)
        });
        let answer = path.answer(answers.collect(), revision, revision.previous());
        answer
            .map(Answer::Txn)
            .ok_or(Tried::Failed(Failure::LeaderChanged))
    }

    async fn latch(
        self: &Arc<Self>,
        txn: TxnId,
        group: GroupId,
        map: u64,
        hold: Hold,
        probe: Txn,
        deadline: Instant,
    ) -> Result<(Term, Answer), Tried> {
        let left = deadline.saturating_duration_since(Instant::now());
        let work = TxnWork::Latch {
            hold,
            probe,
            within_millis: left.as_millis() as u64,
        };
        let work = Work::Txn { txn, work };
        match self.work_once(group, map, work, deadline).await?.answer {
            Answered::Txn(TxnAnswered::Latched { term, verdicts }) => Ok((term, verdicts)),
            _ => Err(Tried::Again),
        }
    }

    /// Lets latches go that were not granted a revision.
    fn unlatch(self: &Arc<Self>, txn: TxnId, groups: impl Iterator<Item = GroupId>) {
        for group in groups {
            let node = Arc::clone(self);
            self.scope.spawn(async move {
                let work = Work::Txn {
                    txn,
                    work: TxnWork::Unlatch,
                };
                let _ = node.txn_once(group, work, node.soon()).await;
            });
        }
    }

    /// Has every participant evaluate its part.
    async fn evaluate_parts(
        self: &Arc<Self>,
        txn: TxnId,
        plan: &Plan<'_>,
        path: &Path<'_>,
        map: &RangeMap,
        newest: Revision,
        deadline: Instant,
    ) -> Result<Evaluated, Tried> {
        let (mut newest, mut own) = (newest, None);
        loop {
            let calls = plan.groups.keys().map(|group| {
                let ops = path.ops(*group).into_iter().map(|(_, op)| op);
                let part = Part::Ops(ops.collect());
                let work = TxnWork::Evaluate { part, newest, own };
                let work = Work::Txn { txn, work };
                async move {
                    let outcome = self.work_once(*group, map.version, work, deadline).await;
                    (*group, outcome)
                }
            });
            let mut evaluated = Evaluated {
                answers: BTreeMap::new(),
                changes: BTreeMap::new(),
                leases: Vec::new(),
                root: LogIndex(u64::MAX),
                own,
            };
            let mut refused = BTreeMap::new();
            let mut ungranted = false;
            for (group, outcome) in join_all(calls).await {
                match outcome?.answer {
                    Answered::Txn(TxnAnswered::Evaluated {
                        answer,
                        changes,
                        leases,
                        root,
                    }) => {
                        evaluated.answers.insert(group, answer);
                        evaluated.changes.insert(group, changes);
                        evaluated.leases.extend(leases);
                        evaluated.root = evaluated.root.min(root);
                    }
                    Answered::Txn(TxnAnswered::Refused { at, reject }) => {
                        refused.insert(group, (at, reject));
                    }
                    Answered::Txn(TxnAnswered::Ungranted) => ungranted = true,
                    _ => return Err(Tried::Again),
                }
            }
            if let Some(reject) = path.first_refusal(&refused) {
                return Err(self.refusal(reject, path).await);
            }
            if !ungranted {
                return Ok(evaluated);
            }
            if own.is_some() {
                return Err(Tried::Again);
            }
            // It hangs on its own revision: the next one, if nobody is faster.
            newest = self.read_point().await.ok_or(Tried::Again)?.revision;
            own = Some(newest.next());
        }
    }

    /// A refusal by what a participant knew of leases counts only if the root
    /// group's leader knows no better (rule 15). The replica here would do, too,
    /// once it has caught up; but its disk may hang, and others wait for the
    /// latches meanwhile.
    async fn refusal(self: &Arc<Self>, reject: Reject, path: &Path<'_>) -> Tried {
        if reject != Reject::LeaseNotFound {
            return Tried::Failed(reject.into());
        }
        let asked = path.leases().map(|id| {
            let work = Work::Lease(LeaseWork::Status { id });
            self.txn_once(GroupId::ROOT, work, self.soon())
        });
        let is_gone = |outcome: Outcome| {
            let answer = outcome.map(|done| done.answer);
            answer == Ok(Answered::Lease(LeaseAnswered::Status(None)))
        };
        match join_all(asked).await.into_iter().any(is_gone) {
            true => Tried::Failed(reject.into()),
            false => Tried::Again,
        }
    }

    /// Returns when this node knows all of the root group that was acknowledged.
    async fn know_root(self: &Arc<Self>) -> Result<(), Tried> {
        let point = self.read_point().await.ok_or(Tried::Again)?;
        match self.root_catches_up(point.root).await {
            true => Ok(()),
            false => Err(Tried::Again),
        }
    }

    /// Asks for the revision, waits until all are prepared, has them decide.
    async fn commit_txn(
        self: &Arc<Self>,
        mut ask: TxnAsk,
        map: u64,
        deadline: Instant,
    ) -> Result<Revision, Tried> {
        let txn = ask.txn;
        let groups: Vec<_> = ask.participants.iter().map(|part| part.group).collect();
        // A suspected one may never answer.
        let sequencer = self.sequencer();
        let Some((epoch, sequencer)) = sequencer.filter(|(_, at)| self.link.is_alive(*at)) else {
            return Err(Tried::Again);
        };
        ask.epoch = epoch;
        // Those who wait for the prepares are there before they are made.
        let awaits: Vec<_> = groups
            .iter()
            .map(|group| {
                let (node, group) = (Arc::clone(self), *group);
                self.scope.spawn(async move {
                    let work = Work::Txn {
                        txn,
                        work: TxnWork::Await { granted_in: None },
                    };
                    fate_of(node.work_once(group, map, work, deadline).await)
                })
            })
            .collect();
        let within = deadline.saturating_duration_since(Instant::now());
        let asked = self.call::<TxnAsked>(sequencer, &Message::TxnAsk(ask), within);
        let (revision, sessions) = match asked.await {
            Some(TxnAsked::Granted(revision, sessions)) => (Some(revision), sessions),
            Some(TxnAsked::Refused) => {
                awaits.iter().for_each(|waiting| waiting.abort());
                return Err(Tried::Again);
            }
            None => {
                if self.release(txn, &groups).await {
                    awaits.iter().for_each(|waiting| waiting.abort());
                    return Err(Tried::Again);
                }
                (None, Vec::new())
            }
        };
        let mut fates = Vec::new();
        for waiting in awaits {
            fates.push(waiting.await.ok().flatten().unwrap_or(Fate::Unknown));
        }
        loop {
            if fates.iter().all(|fate| is_in_favour(*fate)) {
                // It is committed. Those who don't hear so ask each other.
                let Some(revision) = revision else {
                    // Nobody here knows at which revision.
                    return Err(Tried::Failed(Failure::LeaderChanged));
                };
                self.decide(txn, revision, true, &groups);
                self.told_of(groups.into_iter(), revision);
                return Ok(revision);
            }
            if fates.contains(&Fate::Void) {
                if let Some(revision) = revision {
                    self.decide(txn, revision, false, &groups);
                }
                return Err(Tried::Again);
            }
            // Its latch may be gone, with its leader or not: what is found there?
            if self.pause(deadline).await.is_err() {
                return Err(Tried::Failed(Failure::TimedOut));
            }
            for (fate, group) in fates.iter_mut().zip(&groups) {
                if !is_in_favour(*fate) {
                    let mut granted_in = sessions.iter().filter(|(of, _)| of == group);
                    let granted_in = granted_in.next().map(|(_, session)| *session);
                    let work = Work::Txn {
                        txn,
                        work: TxnWork::Await { granted_in },
                    };
                    let told = self.txn_once(*group, work, self.soon()).await;
                    *fate = fate_of(told).unwrap_or(Fate::Unknown);
                }
            }
        }
    }

    /// Nobody knows whether the revision was granted: the sequencer is gone.
    /// Returns whether the transaction can't be committed any more, because a
    /// participant has let go of its latch.
    async fn release(self: &Arc<Self>, txn: TxnId, groups: &[GroupId]) -> bool {
        let released = groups.iter().map(|group| async move {
            let work = Work::Txn {
                txn,
                work: TxnWork::Release,
            };
            let told = self.txn_once(*group, work, self.soon()).await;
            let answer = told.map(|done| done.answer);
            answer == Ok(Answered::Txn(TxnAnswered::Released(true)))
        });
        join_all(released).await.contains(&true)
    }

    /// Has all participants log what was decided, and then forget it.
    fn decide(self: &Arc<Self>, txn: TxnId, revision: Revision, commit: bool, groups: &[GroupId]) {
        let decided = if commit { Fate::Committed } else { Fate::Void };
        let (node, groups) = (Arc::clone(self), groups.to_vec());
        self.scope.spawn(async move {
            let tell = |group: GroupId, work: TxnWork| {
                let work = Work::Txn { txn, work };
                node.txn_once(group, work, node.soon())
            };
            let work = TxnWork::Decide { revision, commit };
            let told = groups.iter().map(|group| tell(*group, work.clone()));
            let told = join_all(told).await.into_iter().map(fate_of);
            let all = told.into_iter().all(|fate| fate == Some(decided));
            if all {
                join_all(groups.iter().map(|group| tell(*group, TxnWork::Forget))).await;
            }
        });
    }

    /// Work about a transaction, sent once to whoever leads the group.
    pub(super) async fn txn_once(
        self: &Arc<Self>,
        group: GroupId,
        work: Work,
        deadline: Instant,
    ) -> Outcome {
        let map = self.cluster.borrow().map.as_ref().map(|map| map.version);
        self.work_once(group, map.unwrap_or(0), work, deadline)
            .await
    }

    /// One attempt to delete all that hangs on a lease, and the lease (rule 13).
    pub(crate) async fn revoke_once(
        self: &Arc<Self>,
        lease: LeaseName,
        deadline: Instant,
    ) -> Result<Option<Revision>, Tried> {
        let open = self.open_txn();
        let txn = open.id;
        let mut latched = BTreeMap::new();
        let tried = self
            .revoke_under_latches(txn, lease, &mut latched, deadline)
            .await;
        if !matches!(tried, Ok(Some(_))) {
            self.unlatch(txn, latched.keys().copied());
        }
        tried
    }

    async fn revoke_under_latches(
        self: &Arc<Self>,
        txn: TxnId,
        lease: LeaseName,
        latched: &mut BTreeMap<GroupId, Term>,
        deadline: Instant,
    ) -> Result<Option<Revision>, Tried> {
        let map = self.map_known(deadline).await.map_err(Tried::Failed)?;
        let groups = self.leases.groups_of(lease).ok_or(Tried::Again)?;
        for group in &groups {
            let hold = Hold::Lease(lease.id);
            let probe = Txn::default();
            latched.insert(*group, Term(0));
            let held = self.latch(txn, *group, map.version, hold, probe, deadline);
            latched.insert(*group, held.await?.0);
        }
        let (mut oldest, mut newest) = (LogIndex(u64::MAX), LogIndex(0));
        let mut counts = BTreeMap::new();
        for group in &groups {
            let then = match group.is_root() {
                true => vec![gone_step(lease.id)],
                false => Vec::new(),
            };
            let work = TxnWork::Evaluate {
                part: Part::Revoke(lease.id, then),
                newest: Revision(0),
                own: None,
            };
            let work = Work::Txn { txn, work };
            let done = self.work_once(*group, map.version, work, deadline).await?;
            let Answered::Txn(TxnAnswered::Evaluated { changes, root, .. }) = done.answer else {
                return Err(Tried::Again);
            };
            (oldest, newest) = (oldest.min(root), newest.max(root));
            counts.insert(*group, changes.iter().sum::<u32>());
        }
        // A group may have been split before it was latched: then its child
        // has a part of the keys. From now on none can be.
        if !self.root_catches_up(newest).await
            || self.leases.groups_of(lease).as_ref() != Some(&groups)
        {
            return Err(Tried::Again);
        }
        let map = self.map_known(deadline).await.map_err(Tried::Failed)?;
        // In the order of the keys, as if they were in one group.
        let mut participants = Vec::new();
        let mut next = 0;
        for (placed, _) in map.ranges() {
            if let (Some(term), Some(count)) =
                (latched.get(&placed.group), counts.get(&placed.group))
            {
                let run = (*count > 0).then_some((next, *count));
                participants.push(Participant {
                    group: placed.group,
                    term: *term,
                    places: run.into_iter().collect(),
                });
                next += count;
            }
        }
        participants.sort_unstable_by_key(|participant| participant.group);
        if next == 0 {
            return Ok(None);
        }
        let ask = TxnAsk {
            epoch: Term(0),
            txn,
            participants,
            root: oldest,
            leases: Vec::new(),
            exactly: None,
        };
        self.commit_txn(ask, map.version, deadline).await.map(Some)
    }
}

fn is_in_favour(fate: Fate) -> bool {
    matches!(fate, Fate::Prepared | Fate::Committed)
}
