//! The leader as a participant of transactions over several groups (rule 12).
//!
//! Kept true:
//! - A prepare is proposed when, and only when, its grant leaves this group's
//!   stream in the current session while its latch is held; otherwise only
//!   the revision is reached, and that it is void is a record.
//! - Grants are taken in the order in which they were made.
//! - What was decided here is a log entry before anybody hears of it.
//! - A record that can't be read stops the replica: nobody is told a fate, and
//!   nothing is proposed that hangs on it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use pontoon_engine::{
    Answer, Effect, Effects, EngineError, KeyRange, Pending, Request, Revision, Step, Ticket, Txn,
    evaluate,
};
use tokio::time::Instant;

use super::evaluate::{REQUEST_BYTES_MAX, effects_bytes, forbidden};
use super::latches::{Latch, Prepared, State, each};
use super::{Flight, Freight, Lead, Source};
use crate::codec::Wire;
use crate::link::Reply;
use crate::map::Touches;
use crate::message::{Answered, Declined, Done, Work};
use crate::mutation::{Mutation, mutated};
use crate::position::{GroupId, LogIndex};
use crate::replica::{Job, Replica};
use crate::txn::{
    Fate, Hold, Part, TxnAnswered, TxnAsk, TxnAsked, TxnGrant, TxnId, TxnRecord, TxnWork,
    forget_step,
};

/// The longest that one who may have died waits for a latch.
const LATCH_MAX: Duration = Duration::from_secs(5);

/// After how long the others are asked for the fate of what is prepared.
const FINISH_AFTER: Duration = Duration::from_millis(500);

/// How long what can be forgotten may wait for an entry to ride along with.
const FORGET_WITHIN: Duration = Duration::from_millis(500);

/// A hole among the grants that isn't filled by then is one for good.
const HOLE_MAX: Duration = Duration::from_millis(500);

/// What is to be decided.
#[derive(Clone)]
pub(super) struct Decision {
    pub(super) txn: TxnId,
    pub(super) revision: Revision,
    pub(super) participants: Vec<GroupId>,
    pub(super) fate: Fate,
    pub(super) then: Vec<Step>,
}

/// Transactions over several groups, as this leader takes part in them.
#[derive(Default)]
pub(super) struct Txns {
    /// Decisions that are not proposed yet, with those who wait for them.
    decisions: Vec<(Decision, Vec<Job>)>,
    /// Those that are, and not applied.
    deciding: BTreeMap<TxnId, Fate>,
    forgettable: Vec<TxnId>,
    forget_at: Option<Instant>,
    /// When records without anybody to forget them are looked at.
    tidy_at: Option<Instant>,
}

/// A grant, taken when its turn comes.
pub(super) enum Granted {
    /// Of ordinary writes: which question it answers.
    Batch {
        ask: u64,
        first: Revision,
        root: LogIndex,
    },
    Txn(TxnGrant),
}

fn done(answered: TxnAnswered, index: LogIndex) -> Done {
    Done {
        answer: Answered::Txn(answered),
        index,
    }
}

impl Lead<'_> {
    /// Takes over what is undecided in the store, with its latches.
    pub(super) fn take_over(&mut self) -> Result<(), EngineError> {
        let now = Instant::now();
        let records = TxnRecord::all(&self.replica.group.store());
        let records = records.inspect_err(|error| self.replica.group.report(error));
        for (txn, record) in records? {
            if record.fate != Fate::Prepared {
                self.txns.tidy_at = Some(now + TIDY_AFTER);
                continue;
            }
            let staged = self.replica.group.store().staged(record.revision);
            let state = State::Prepared(Prepared {
                revision: record.revision,
                participants: record.participants,
                then: record.then,
                ask_at: now,
                asking: false,
            });
            self.latches.add(txn, record.keys, None, state, now);
            if let (Some(staged), Some(latch)) = (staged, self.latches.get_mut(txn)) {
                latch.names = leases_of(&staged.effects);
            }
        }
        Ok(())
    }

    /// Work about a transaction.
    pub(super) fn txn_work(&mut self, job: Job) {
        let Work::Txn { txn, work } = &job.work else {
            return;
        };
        let txn = *txn;
        match work.clone() {
            TxnWork::Latch {
                hold,
                probe,
                within_millis,
            } => self.latch(txn, hold, probe, within_millis, job),
            TxnWork::Evaluate { part, newest, own } => {
                self.evaluate_part(txn, part, newest, own, job);
            }
            TxnWork::Unlatch => {
                if self.latches.is_free_to_go(txn) {
                    self.unlatch(txn);
                }
                job.finish(Ok(done(TxnAnswered::Done, LogIndex(0))));
            }
            TxnWork::Release => {
                let released = self.latches.is_free_to_go(txn);
                if released {
                    self.release(txn);
                }
                job.finish(Ok(done(TxnAnswered::Released(released), LogIndex(0))));
            }
            TxnWork::Await { granted_in } => {
                if self.is_lost(txn, granted_in) {
                    self.unlatch(txn);
                }
                match (self.fate(txn), self.latches.get_mut(txn)) {
                    (Ok(Fate::Unknown), Some(latch)) => latch.waiters.push(job),
                    (Ok(Fate::Unknown), None) => self.look_up(txn, Fate::Void, job),
                    (fate, _) => self.tell_fate(fate, job),
                }
            }
            TxnWork::Decide { revision, commit } => {
                let fate = if commit { Fate::Committed } else { Fate::Void };
                self.decide(txn, revision, fate, job);
            }
            TxnWork::Inquire {
                revision,
                participants,
            } => self.inquire(txn, revision, participants, job),
            TxnWork::Forget => {
                let forgotten = self.forget(txn);
                job.finish(forgotten.map(|()| done(TxnAnswered::Done, LogIndex(0))));
            }
            TxnWork::Ask => match self.latches.get(txn) {
                // Its prepare may yet come.
                Some(_) => self.look_up(txn, Fate::Prepared, job),
                None => self.look_up(txn, Fate::Unknown, job),
            },
        }
    }

    fn latch(&mut self, txn: TxnId, hold: Hold, probe: Txn, within_millis: u64, job: Job) {
        let closed = matches!(self.source, Source::Own) || self.leaving || self.splits.is_frozen();
        if closed || self.latches.get(txn).is_some() {
            return job.finish(Err(Declined::Again));
        }
        let within = Duration::from_millis(within_millis).min(LATCH_MAX);
        let (keys, lease) = match hold {
            Hold::Keys(keys) => {
                if keys.iter().any(|range| !self.covers(range)) {
                    return job.finish(Err(Declined::Again));
                }
                (keys, None)
            }
            Hold::Lease(lease) => match self.keys_of_lease(lease) {
                Ok(keys) => (keys, Some(lease)),
                Err(error) => return job.finish(Err(self.replica.unreadable(&error))),
            },
        };
        let state = State::Waiting { job, probe };
        let until = Instant::now() + within;
        self.latches.add(txn, keys, lease, state, until);
    }

    /// What hangs on a lease, or will with what is on its way.
    fn keys_of_lease(&self, lease: i64) -> Result<Vec<KeyRange>, EngineError> {
        let mut keys: Vec<_> = self.pending.keys_of_lease(lease).cloned().collect();
        self.replica.group.store().lease_keys(lease, &mut |key| {
            keys.push(bytes::Bytes::copy_from_slice(key));
        })?;
        Ok(each(keys))
    }

    /// Gives latches to those whose turn it is.
    pub(super) fn hold_latches(&mut self) {
        // What was evaluated without them and has no revision yet may have read
        // their keys: its revision would be above theirs.
        if self.latches.is_empty() || !self.asked.is_empty() || self.draining {
            return;
        }
        // Others wait no longer for one who has died.
        let held_max = 2 * self.node.config.timing.election_min;
        for txn in self.latches.next() {
            let lease = self.latches.get(txn).and_then(|latch| latch.lease);
            // What was before it in line may have hung more on the lease.
            let hanging = lease.map(|lease| self.keys_of_lease(lease)).transpose();
            let hanging = match hanging {
                Ok(hanging) => hanging,
                Err(error) => {
                    self.replica.group.report(&error);
                    self.unlatch(txn);
                    continue;
                }
            };
            if let (Some(keys), Some(latch)) = (hanging, self.latches.get_mut(txn)) {
                latch.keys = keys;
            }
            if !self.latches.is_next(txn) {
                continue;
            }
            let Some(latch) = self.latches.get_mut(txn) else {
                continue;
            };
            if latch.keys.iter().any(|keys| self.pending.touches(keys)) {
                continue;
            }
            let State::Waiting { job, probe } = std::mem::replace(&mut latch.state, State::Held)
            else {
                continue;
            };
            latch.until = latch.until.min(Instant::now() + held_max);
            let store = self.replica.group.store();
            let base = store.revision();
            let own = Revision::of(Ticket(0));
            let (none, leases) = (Pending::new(), |_| true);
            let request = Request::Txn(probe);
            match evaluate(&store, &none, base, own, &leases, &request) {
                Ok(evaluated) => {
                    let latched = TxnAnswered::Latched {
                        term: self.term,
                        verdicts: evaluated.answer,
                    };
                    job.finish(Ok(done(latched, self.replica.applied())));
                }
                Err(error) => {
                    self.replica.group.report(&error);
                    tracing::warn!("group {}: {error}", self.replica.id);
                    self.unlatch(txn);
                    job.finish(Err(Declined::Again));
                }
            }
        }
    }

    fn evaluate_part(
        &mut self,
        txn: TxnId,
        part: Part,
        newest: Revision,
        own: Option<Revision>,
        job: Job,
    ) {
        let held = self.latches.get(txn).map(|latch| &latch.state);
        if !matches!(held, Some(State::Held | State::Evaluated { .. })) {
            return job.finish(Err(Declined::Again));
        }
        if let Some(declined) = self.node.declined_for_space(self.replica) {
            return job.finish(Err(declined));
        }
        let root = self.node.root_applied();
        let (ops, then, revokes) = match part {
            Part::Ops(ops) => (ops, Vec::new(), None),
            Part::Revoke(lease, then) => (Vec::new(), then, Some(lease)),
        };
        let names = match self.lease_names(&Touches::of_ops(&ops).leases) {
            Ok(names) => names,
            Err(()) => return job.finish(Err(Declined::Again)),
        };
        let store = self.replica.group.store();
        let base = store.revision().max(newest);
        let own = own.unwrap_or(Revision::of(Ticket(0)));
        let mut pending = Pending::new();
        pending.raise_floor(self.node.floor());
        let leases = |id| revokes == Some(id) || self.lease_alive(id);
        let run = |request: &Request| evaluate(&store, &pending, base, own, &leases, request);
        let request = match revokes {
            Some(lease) => Request::LeaseRevoke(lease),
            None => Request::Txn(Txn {
                success: ops.clone(),
                ..Txn::default()
            }),
        };
        let alarms = self.node.cluster.borrow().alarms.clone();
        if forbidden(&alarms, &request).is_some() {
            let (node, replica) = (Arc::clone(self.node), Arc::clone(self.replica));
            self.node.scope.spawn(async move {
                let still = node.still_forbidden(&replica, &request, true).await;
                job.finish(Err(still.err().unwrap_or(Declined::Again)));
            });
            return;
        }
        let answered = match run(&request) {
            Ok(evaluated) if effects_bytes(&evaluated.effects) > REQUEST_BYTES_MAX => {
                return job.finish(Err(Declined::TooLarge));
            }
            Ok(evaluated) => {
                let changes = match &evaluated.answer {
                    Answer::Txn(answer) => answer.answers.iter().map(changes).collect(),
                    _ => vec![evaluated.effects.len() as u32],
                };
                let effects = evaluated.effects;
                if let Some(latch) = self.latches.get_mut(txn) {
                    latch.names = leases_of(&effects);
                    latch.state = State::Evaluated { effects, then };
                }
                TxnAnswered::Evaluated {
                    answer: evaluated.answer,
                    changes,
                    leases: names,
                    root,
                }
            }
            Err(EngineError::Reject(reject)) => {
                // The first of them that is refused.
                let refused = |count: &usize| {
                    let request = Request::Txn(Txn {
                        success: ops[..*count].to_vec(),
                        ..Txn::default()
                    });
                    matches!(run(&request), Err(EngineError::Reject(_)))
                };
                let at = (1..ops.len()).find(refused).unwrap_or(ops.len()) as u32;
                TxnAnswered::Refused {
                    at: at.saturating_sub(1),
                    reject,
                }
            }
            Err(EngineError::Ungranted(_)) => TxnAnswered::Ungranted,
            Err(error) => {
                self.replica.group.report(&error);
                tracing::warn!("group {}: {error}", self.replica.id);
                return job.finish(Err(Declined::Again));
            }
        };
        if revokes.is_none() {
            return job.finish(Ok(done(answered, self.replica.applied())));
        }
        // That nothing hangs on a lease counts only from one who leads in the
        // term of the latch.
        let (rounds, term) = (Arc::clone(&self.replica.rounds), self.term);
        self.node.scope.spawn(async move {
            match rounds.confirm_in(term).await {
                Ok(index) => job.finish(Ok(done(answered, index))),
                Err(_) => job.finish(Err(Declined::NotLeader(None))),
            }
        });
    }

    /// Tells the fate that is recorded here, or `unrecorded` if none is. If the
    /// transaction has no latch now, no prepare of it will come, because a latch
    /// is taken once; and one that came before, in this term or an earlier one,
    /// is applied when the round is.
    fn look_up(&self, txn: TxnId, unrecorded: Fate, job: Job) {
        let (replica, term) = (Arc::clone(self.replica), self.term);
        self.node.scope.spawn(async move {
            let Ok(index) = replica.rounds.confirm_in(term).await else {
                return job.finish(Err(Declined::NotLeader(None)));
            };
            let fate = fate_in(&replica, txn).map(|fate| match fate {
                Fate::Unknown if mutated(Mutation::LostGrantIsUntold) => fate,
                Fate::Unknown => unrecorded,
                fate => fate,
            });
            job.finish(fate.map(|fate| done(TxnAnswered::Fate(fate), index)));
        });
    }

    /// What is known here for good.
    fn fate(&self, txn: TxnId) -> Result<Fate, Declined> {
        fate_in(self.replica, txn)
    }

    fn tell_fate(&self, fate: Result<Fate, Declined>, job: Job) {
        let applied = self.replica.applied();
        job.finish(fate.map(|fate| done(TxnAnswered::Fate(fate), applied)));
    }

    /// Lets go of a latch for which a revision may have been granted.
    fn release(&mut self, txn: TxnId) {
        let state = self.latches.get(txn).map(|latch| &latch.state);
        if matches!(state, Some(State::Evaluated { .. })) {
            // A grant may be on its way, or lost: it is void with the session.
            self.lose_session();
        }
        self.unlatch(txn);
    }

    /// Whether a transaction was granted its revision in an earlier session, and
    /// the grant has not come: it is void with that session.
    fn is_lost(&self, txn: TxnId, granted_in: Option<u64>) -> bool {
        let (Source::Sequencer(session), Some(granted_in)) = (&self.source, granted_in) else {
            return false;
        };
        let state = self.latches.get(txn).map(|latch| &latch.state);
        granted_in < session.number
            && matches!(state, Some(State::Evaluated { .. }))
            && !mutated(Mutation::LostGrantIsUntold)
    }

    /// A new session begins: those who wait for what they were granted in an
    /// earlier one are to ask again.
    pub(super) fn doubt_grants(&mut self) {
        if mutated(Mutation::LostGrantIsUntold) {
            return;
        }
        for job in self.latches.take_waiters() {
            self.tell_fate(Ok(Fate::Unknown), job);
        }
    }

    fn unlatch(&mut self, txn: TxnId) {
        let Some(latch) = self.latches.remove(txn) else {
            return;
        };
        self.end_latch(latch, Declined::Again);
        for job in self.latches.unblocked().into_iter().rev() {
            self.held.push_front(job);
        }
    }

    /// Answers those who wait for a latch that is gone; `declined` is for who
    /// waits to get it.
    pub(super) fn end_latch(&self, latch: Latch, declined: Declined) {
        let fate = match latch.may_expire() {
            true if mutated(Mutation::LostGrantIsUntold) => Ok(Fate::Unknown),
            // No record is needed: it was not prepared in this term and, since
            // its latch is taken once, never will be.
            true => Ok(Fate::Void),
            false => self.fate(latch.txn),
        };
        if let State::Waiting { job, .. } = latch.state {
            job.finish(Err(declined));
        }
        for job in latch.waiters {
            self.tell_fate(fate.clone(), job);
        }
    }

    /// At the root group's leader: allocates the revision and prepares.
    pub(super) async fn root_txn(&mut self, ask: TxnAsk, reply: Reply) {
        let Source::Ledger(_, sequencing) = &self.source else {
            return reply.send(TxnAsked::Refused.encode());
        };
        let sequencing = sequencing.clone();
        if self.draining || self.leaving {
            return reply.send(TxnAsked::Refused.encode());
        }
        let grant = TxnGrant {
            stamp: crate::ledger::Stamp {
                epoch: self.term,
                group: self.replica.id,
                term: self.term,
                session: 0,
            },
            place: 0,
            txn: ask.txn,
            revision: Revision(0),
            places: ask
                .participants
                .iter()
                .find(|part| part.group.is_root())
                .map(|part| part.places.clone())
                .unwrap_or_default(),
            participants: ask.participants.iter().map(|part| part.group).collect(),
            root: LogIndex(0),
        };
        if let Some(revision) = sequencing.enter_txn(ask, reply) {
            self.prepare(TxnGrant { revision, ..grant }).await;
        }
    }

    /// A grant came; it is taken when all before it are.
    pub(super) async fn take_grant(&mut self, place: u64, granted: Granted) {
        let Source::Sequencer(session) = &mut self.source else {
            return;
        };
        if place < session.next_place {
            return;
        }
        session.early.insert(place, granted);
        self.take_grants().await;
    }

    pub(super) async fn take_grants(&mut self) {
        while !self.draining
            && let Source::Sequencer(session) = &mut self.source
            && session.with.is_some()
            && let Some(granted) = session.early.remove(&session.next_place)
        {
            session.next_place += 1;
            let root = match &granted {
                Granted::Batch { root, .. } => *root,
                Granted::Txn(grant) => grant.root,
            };
            if !self.node.root_catches_up(root).await {
                // What is not taken now is void with the session.
                return self.lose_session();
            }
            match granted {
                Granted::Batch { ask, first, .. } => self.take_batch(ask, first).await,
                Granted::Txn(grant) => self.prepare(grant).await,
            }
        }
        if let Source::Sequencer(session) = &mut self.source {
            session.hole_since = match session.early.is_empty() {
                true => None,
                false => session.hole_since.or(Some(Instant::now())),
            };
        }
    }

    pub(super) fn lose_session(&mut self) {
        if let Source::Sequencer(session) = &mut self.source {
            session.with = None;
        }
    }

    /// A grant of a transaction left the stream: prepares, if the latch is
    /// held, or reaches the revision.
    async fn prepare(&mut self, grant: TxnGrant) {
        let TxnGrant { txn, revision, .. } = grant;
        let mut steps = Vec::new();
        let mut freight = Freight::Reach;
        let latch = self.latches.get_mut(txn);
        let evaluated = latch.and_then(|latch| match &mut latch.state {
            State::Evaluated { effects, then } => {
                let (effects, then) = (std::mem::take(effects), std::mem::take(then));
                Some((latch.keys.clone(), effects, then))
            }
            _ => None,
        });
        let count: u64 = grant.places.iter().map(|place| u64::from(place.1)).sum();
        match evaluated {
            Some((keys, effects, then)) if count == effects.len() as u64 => {
                let record = TxnRecord {
                    fate: Fate::Prepared,
                    revision,
                    participants: grant.participants.clone(),
                    keys,
                    then: then.clone(),
                };
                let places = grant.places.iter();
                let subs = places.flat_map(|(first, count)| *first..first + count);
                steps.push(Step::Stage {
                    revision,
                    effects,
                    subs: subs.collect(),
                });
                steps.push(record.step(txn));
                freight = Freight::Prepare(txn);
                if let Some(latch) = self.latches.get_mut(txn) {
                    latch.state = State::Preparing(Prepared {
                        revision,
                        participants: grant.participants,
                        then,
                        ask_at: Instant::now() + FINISH_AFTER,
                        asking: false,
                    });
                }
            }
            _ => {
                // The latch is not held: this revision is void here.
                let Ok(fate) = self.fate(txn) else {
                    return;
                };
                steps.push(Step::Reach { revision });
                steps.push(Step::Void { revision });
                if fate == Fate::Unknown {
                    let record = TxnRecord {
                        fate: Fate::Void,
                        revision,
                        participants: grant.participants,
                        keys: Vec::new(),
                        then: Vec::new(),
                    };
                    steps.push(record.step(txn));
                }
                self.txns.tidy_at = Some(Instant::now() + TIDY_AFTER);
            }
        }
        let flight = Flight {
            id: self.launched,
            first: revision,
            last: revision,
            freight,
        };
        self.launch(flight, steps, |_| ()).await;
    }

    /// The prepare is applied.
    pub(super) fn prepared(&mut self, txn: TxnId) {
        let applied = self.replica.applied();
        let Some(latch) = self.latches.get_mut(txn) else {
            return;
        };
        if let State::Preparing(prepared) = &latch.state {
            latch.state = State::Prepared(prepared.clone());
        }
        for job in std::mem::take(&mut latch.waiters) {
            let fate = TxnAnswered::Fate(Fate::Prepared);
            job.finish(Ok(done(fate, applied)));
        }
    }

    fn decide(&mut self, txn: TxnId, revision: Revision, fate: Fate, job: Job) {
        let known = match self.fate(txn) {
            Ok(known) => known,
            Err(declined) => return job.finish(Err(declined)),
        };
        let state = self.latches.get(txn).map(|latch| &latch.state);
        match state {
            // (The store may have the prepare before this leader hears of it.)
            Some(State::Prepared(prepared) | State::Preparing(prepared))
                if prepared.revision == revision && known == Fate::Prepared =>
            {
                let decision = Decision {
                    txn,
                    revision,
                    participants: prepared.participants.clone(),
                    fate,
                    then: prepared.then.clone(),
                };
                self.add_decision(decision, Some(job));
            }
            Some(State::Preparing(_)) => job.finish(Err(Declined::Again)),
            _ if known == fate || known == Fate::Unknown => self.tell_fate(Ok(known), job),
            _ => job.finish(Err(Declined::Again)),
        }
    }

    /// Another participant, whose prepare is undecided, asks for ours.
    fn inquire(&mut self, txn: TxnId, revision: Revision, participants: Vec<GroupId>, job: Job) {
        let fate = self.fate(txn);
        if fate != Ok(Fate::Unknown) {
            return self.tell_fate(fate, job);
        }
        if let Some(State::Preparing(_)) = self.latches.get(txn).map(|latch| &latch.state) {
            return job.finish(Err(Declined::Again));
        }
        // There is no prepare, and from now on there will be none.
        let decision = Decision {
            txn,
            revision,
            participants,
            fate: Fate::Void,
            then: Vec::new(),
        };
        self.unlatch(txn);
        self.add_decision(decision, Some(job));
        self.txns.tidy_at = Some(Instant::now() + TIDY_AFTER);
    }

    /// What a finisher found out about a transaction that is prepared here.
    pub(super) fn found(&mut self, txn: TxnId, fate: Fate) {
        let Some(latch) = self.latches.get_mut(txn) else {
            return;
        };
        let State::Prepared(prepared) = &mut latch.state else {
            return;
        };
        prepared.asking = false;
        prepared.ask_at = Instant::now() + FINISH_AFTER;
        if !matches!(fate, Fate::Committed | Fate::Void) {
            return;
        }
        let decision = Decision {
            txn,
            revision: prepared.revision,
            participants: prepared.participants.clone(),
            fate,
            then: prepared.then.clone(),
        };
        self.txns.tidy_at = Some(Instant::now() + TIDY_AFTER);
        self.add_decision(decision, None);
    }

    fn add_decision(&mut self, decision: Decision, job: Option<Job>) {
        let decisions = &mut self.txns.decisions;
        let same = decisions
            .iter_mut()
            .find(|(other, _)| other.txn == decision.txn);
        match same {
            Some((_, jobs)) => jobs.extend(job),
            None if self.txns.deciding.contains_key(&decision.txn) => {
                // It is on its way into the log: ask again.
                if let Some(job) = job {
                    job.finish(Err(Declined::Again));
                }
            }
            None => decisions.push((decision, job.into_iter().collect())),
        }
    }

    /// Proposes what is decided, all in one entry, and what is to be forgotten.
    pub(super) async fn propose_decisions(&mut self) {
        let now = Instant::now();
        let forget = self.txns.forget_at.is_some_and(|at| at <= now);
        if self.draining || (self.txns.decisions.is_empty() && !forget) {
            return;
        }
        let decided = std::mem::take(&mut self.txns.decisions);
        let mut steps = Vec::new();
        let mut waiting = Vec::new();
        let mut decisions = Vec::with_capacity(decided.len());
        for (decision, jobs) in decided {
            let Decision { txn, revision, .. } = decision;
            steps.push(match decision.fate {
                Fate::Committed => Step::Commit { revision },
                _ => Step::Void { revision },
            });
            if decision.fate == Fate::Committed {
                steps.extend(decision.then.iter().cloned());
            }
            let record = TxnRecord {
                fate: decision.fate,
                revision,
                participants: decision.participants.clone(),
                keys: Vec::new(),
                then: Vec::new(),
            };
            steps.push(record.step(txn));
            waiting.extend(jobs.into_iter().map(|job| (job, decision.fate)));
            self.txns.deciding.insert(txn, decision.fate);
            decisions.push(decision);
        }
        steps.extend(self.forget_steps());
        let flight = Flight {
            id: self.launched,
            first: Revision(0),
            last: Revision(0),
            freight: Freight::Decisions(decisions),
        };
        self.launch(flight, steps, move |outcome| {
            for (job, fate) in waiting {
                let told = outcome.clone();
                job.finish(told.map(|index| done(TxnAnswered::Fate(fate), index)));
            }
        })
        .await;
    }

    /// Decisions are applied, or were not taken.
    pub(super) fn decided(&mut self, decisions: Vec<Decision>, applied: bool) {
        for decision in decisions {
            self.txns.deciding.remove(&decision.txn);
            if applied {
                self.unlatch(decision.txn);
            } else {
                self.add_decision(decision, None);
            }
        }
    }

    fn forget(&mut self, txn: TxnId) -> Result<(), Declined> {
        if matches!(self.fate(txn)?, Fate::Committed | Fate::Void) {
            self.txns.forgettable.push(txn);
            let by = Instant::now() + FORGET_WITHIN;
            self.txns.forget_at.get_or_insert(by);
        }
        Ok(())
    }

    /// What can be forgotten, for an entry to carry along.
    pub(super) fn forget_steps(&mut self) -> Vec<Step> {
        self.txns.forget_at = None;
        let forgettable = std::mem::take(&mut self.txns.forgettable);
        forgettable.into_iter().map(forget_step).collect()
    }

    /// Looks after what was left: latches whose holder is gone, prepares that
    /// nobody decides, records that nobody forgets, holes among the grants.
    pub(super) fn look_after(&mut self) {
        let now = Instant::now();
        for txn in self.latches.expired(now) {
            self.release(txn);
        }
        let mut asks = Vec::new();
        for latch in self.latches.iter_mut() {
            if let State::Prepared(prepared) = &mut latch.state
                && !prepared.asking
                && prepared.ask_at <= now
            {
                prepared.asking = true;
                asks.push((latch.txn, prepared.revision, prepared.participants.clone()));
            }
        }
        for (txn, revision, participants) in asks {
            let (node, replica) = (Arc::clone(self.node), Arc::clone(self.replica));
            let term = self.term;
            self.node.scope.spawn(async move {
                node.finish(&replica, term, txn, revision, &participants)
                    .await;
            });
        }
        if self.txns.tidy_at.is_some_and(|at| at <= now) {
            self.txns.tidy_at = None;
            self.tidy(now);
        }
        if let Source::Sequencer(session) = &mut self.source
            && session
                .hole_since
                .is_some_and(|since| since + HOLE_MAX <= now)
        {
            session.hole_since = None;
            self.lose_session();
        }
    }

    /// Forgets decided transactions that no participant needs any more.
    fn tidy(&mut self, now: Instant) {
        let records = match TxnRecord::all(&self.replica.group.store()) {
            Ok(records) => records,
            Err(error) => return self.replica.group.report(&error),
        };
        let decided = records
            .into_iter()
            .filter(|(_, record)| record.fate != Fate::Prepared);
        let decided: Vec<_> = decided.take(TIDY_MAX).collect();
        if decided.is_empty() {
            return;
        }
        self.txns.tidy_at = Some(now + TIDY_AFTER);
        let (node, replica) = (Arc::clone(self.node), Arc::clone(self.replica));
        self.node.scope.spawn(async move {
            for (txn, record) in decided {
                node.tidy(&replica, txn, &record.participants).await;
            }
        });
    }

    pub(super) fn txns_due(&self) -> Option<Instant> {
        let hole = match &self.source {
            Source::Sequencer(session) => session.hole_since.map(|since| since + HOLE_MAX),
            _ => None,
        };
        let dues = [
            self.latches.due(),
            self.txns.forget_at.filter(|_| !self.draining),
            self.txns.tidy_at,
            hole,
        ];
        dues.into_iter().flatten().min()
    }

    /// Decisions that wait are not made here any more.
    pub(super) fn end_txns(&mut self) {
        let decisions = std::mem::take(&mut self.txns.decisions);
        for job in decisions.into_iter().flat_map(|(_, jobs)| jobs) {
            job.finish(Err(Declined::NotLeader(None)));
        }
    }
}

/// What a replica's store says for good. A record that can't be read says
/// nothing: not that there is none, for then a transaction that others have
/// committed would be void here.
fn fate_in(replica: &Replica, txn: TxnId) -> Result<Fate, Declined> {
    match TxnRecord::of(&replica.group.store(), txn) {
        Ok(record) => Ok(record.map_or(Fate::Unknown, |record| record.fate)),
        Err(error) => Err(replica.unreadable(&error)),
    }
}

/// Between two looks at records that nobody forgets.
const TIDY_AFTER: Duration = Duration::from_secs(10);

/// So many are looked at in one go.
const TIDY_MAX: usize = 256;

/// The leases that changes hang keys on.
fn leases_of(effects: &Effects) -> Vec<i64> {
    let leases = effects.iter().filter_map(|effect| match effect {
        Effect::Put { lease, .. } => Some(*lease).filter(|lease| *lease != 0),
        Effect::Delete { .. } => None,
    });
    leases.collect()
}

/// How many changes an op made, by its answer.
fn changes(answer: &Answer) -> u32 {
    match answer {
        Answer::Put(_) => 1,
        Answer::DeleteRange(answer) => u32::try_from(answer.deleted).unwrap_or(u32::MAX),
        _ => 0,
    }
}
