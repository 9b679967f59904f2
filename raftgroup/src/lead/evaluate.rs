//! From held jobs to batches: what each request would change, and what
//! changes nothing and is answered at once.

use std::sync::Arc;
use std::time::Duration;

use pontoon_engine::{
    Answer, Effects, EngineError, Evaluated, Op, Request, Revision, Store, Ticket, Txn, evaluate,
};

use super::{Alarms, Batch, Item, Lead, Source};
use crate::lease::LeaseName;
use crate::map::Touches;
use crate::member::Alarm;
use crate::message::{Declined, Work};
use crate::node::Inner;
use crate::position::LogIndex;
use crate::replica::{Job, Replica};

/// Bytes of effects that one entry gathers; a larger request has its own.
const BATCH_BYTES_MAX: usize = 1 << 20;

/// Bytes of effects that a request may have.
pub(super) const REQUEST_BYTES_MAX: usize = 8 << 20;

impl Lead<'_> {
    /// Evaluates held jobs into one batch.
    pub(super) async fn evaluate(&mut self) {
        let store = self.replica.group.store();
        if store.is_behind() {
            // The disk is behind: whoever writes waits for it.
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let root = self.node.root_applied();
        // As they are at that entry, or later: who grants knows (rule 15).
        let alarms = self.node.cluster.borrow().alarms.clone();
        let mut batch = Batch {
            first: Ticket(self.ticket),
            items: Vec::new(),
            root,
            ask: None,
            reports: Revision(0),
            leases: Vec::new(),
        };
        let mut bytes = 0;
        while bytes < BATCH_BYTES_MAX
            && let Some(job) = self.held.pop_front()
        {
            let Work::Request(request) = &job.work else {
                self.start(job);
                continue;
            };
            if forbidden(&alarms, request).is_some() {
                self.settle_forbidden(job);
                continue;
            }
            if is_read_only(request) {
                self.settle(job);
                continue;
            }
            if let Some(declined) = self.node.declined_for_space(self.replica) {
                job.finish(Err(declined));
                continue;
            }
            let job = self.revoke_otherwise(job);
            let Some((job, names)) = job.and_then(|job| self.admit(job)) else {
                continue;
            };
            let Work::Request(request) = &job.work else {
                continue;
            };
            let ticket = Ticket(self.ticket);
            let own = match &self.source {
                Source::Own => Revision(self.last.0 + 1 + batch.items.len() as i64),
                _ => Revision::of(ticket),
            };
            match self.evaluated(&store, own, request) {
                Ok(evaluated) if !evaluated.effects.is_empty() => {
                    let size = effects_bytes(&evaluated.effects);
                    if size > REQUEST_BYTES_MAX {
                        job.finish(Err(Declined::TooLarge));
                        continue;
                    }
                    bytes += size;
                    self.pending.add(ticket, own, evaluated.changes);
                    self.ticket += 1;
                    batch.leases.extend(names);
                    let then = self.lease_goes_with(request);
                    batch.items.push(Item {
                        job,
                        answer: evaluated.answer,
                        effects: evaluated.effects,
                        then,
                    });
                }
                Ok(_) if matches!(request, Request::LeaseRevoke(_)) => {
                    self.revoke_without_keys(job)
                }
                // It changes nothing, or is refused, as things will be: what
                // it is told must hold as things are.
                Ok(_) | Err(EngineError::Reject(_)) => self.settle(job),
                Err(EngineError::Ungranted(_)) => {
                    if batch.items.is_empty() && self.asked.is_empty() {
                        // It hangs on its own revision.
                        self.evaluate_granted(job, names, &store, root).await;
                    } else {
                        self.held.push_front(job);
                    }
                    break;
                }
                Err(EngineError::Undecided(_)) => job.finish(Err(Declined::Again)),
                Err(error) => {
                    self.replica.group.report(&error);
                    job.finish(Err(Declined::Again));
                }
            }
        }
        if batch.items.is_empty() {
            return;
        }
        match &mut self.source {
            Source::Own => {
                let first = self.last.next();
                self.propose(batch, first).await;
            }
            Source::Ledger(ledger, _) => {
                let first = ledger.lock().own(batch.items.len() as u64);
                self.grant(&mut batch, first);
                self.propose(batch, first).await;
            }
            Source::Sequencer(_) => {
                self.asked.push_back(batch);
                self.ask();
            }
        }
    }

    fn evaluated(
        &self,
        store: &Store,
        own: Revision,
        request: &Request,
    ) -> Result<Evaluated, EngineError> {
        let leases = |id| self.lease_alive(id);
        evaluate(store, &self.pending, self.base, own, &leases, request)
    }

    /// Whether a request may be evaluated now; if it must wait, it is taken
    /// care of. Also says which leases it names.
    fn admit(&mut self, job: Job) -> Option<(Job, Vec<LeaseName>)> {
        let Work::Request(request) = &job.work else {
            return None;
        };
        if let Request::Put(put) = request
            && put.lease == 0
            && !self.latches.has(&put.key)
        {
            // As most are: nothing is in its way.
            if self.map.group_of(&put.key) == self.replica.id {
                return Some((job, Vec::new()));
            }
            job.finish(Err(Declined::Moved));
            return None;
        }
        let touches = Touches::of(request);
        if touches.keys.iter().any(|keys| !self.covers(keys)) {
            job.finish(Err(Declined::Moved));
            return None;
        }
        let names = match self.lease_names(&touches.leases) {
            Ok(names) => names,
            Err(()) => {
                self.register(touches, job);
                return None;
            }
        };
        let job = self.latches.block(touches, job)?;
        Some((job, names))
    }

    /// Evaluates a request that looks at its own revision: the revision comes
    /// first. If it turns out to need none, there is a gap.
    async fn evaluate_granted(
        &mut self,
        job: Job,
        leases: Vec<LeaseName>,
        store: &Arc<Store>,
        root: LogIndex,
    ) {
        let ticket = Ticket(self.ticket);
        self.ticket += 1;
        let mut batch = Batch {
            first: ticket,
            items: vec![Item {
                job,
                answer: Answer::LeaseRevoke(Revision(0)),
                effects: Effects::new(),
                then: Vec::new(),
            }],
            root,
            ask: None,
            reports: Revision(0),
            leases,
        };
        match &mut self.source {
            Source::Own => unreachable!("revisions are known at once"),
            Source::Ledger(ledger, _) => {
                let first = ledger.lock().own(1);
                self.evaluate_late(&mut batch, first, store);
                self.propose(batch, first).await;
            }
            Source::Sequencer(_) => {
                self.asked.push_back(batch);
                self.ask();
            }
        }
    }

    /// Evaluates what was put off until its revision was known.
    pub(super) fn evaluate_late(&mut self, batch: &mut Batch, own: Revision, store: &Arc<Store>) {
        let item = &mut batch.items[0];
        let Work::Request(request) = &item.job.work else {
            return;
        };
        if let Ok(evaluated) = self.evaluated(store, own, request) {
            self.pending.add(batch.first, own, evaluated.changes);
            item.answer = evaluated.answer;
            item.effects = evaluated.effects;
        }
    }

    /// Puts revisions where tickets stood for them.
    pub(super) fn grant(&mut self, batch: &mut Batch, first: Revision) {
        self.grants.push((batch.first, batch.items.len(), first));
        for (at, revision) in (0..batch.items.len()).zip(first.0..) {
            let ticket = Ticket(batch.first.0 + at as u32);
            self.pending.grant(ticket, Revision(revision));
        }
        let grants = &self.grants;
        let granted = |ticket: Ticket| {
            let run = grants.iter().rev().find(|run| run.0 <= ticket);
            let run = run.expect("earlier tickets were granted before");
            Revision(run.2.0 + i64::from(ticket.0 - run.0.0))
        };
        for item in &mut batch.items {
            item.answer.complete(&granted);
        }
        if self.asked.is_empty() {
            self.grants.clear();
        }
    }

    /// Answers what changes nothing from what is there for good (rule 1).
    pub(super) fn settle(&self, job: Job) {
        let (node, replica) = (Arc::clone(self.node), Arc::clone(self.replica));
        let many = !matches!(self.source, Source::Own);
        self.node.scope.spawn(async move {
            let outcome = node.settle(&replica, &job.work, many).await;
            match outcome {
                Some(outcome) => job.finish(outcome),
                // It changes something after all.
                None => replica.enqueue(job),
            }
        });
    }

    /// Refuses what goes against an alarm, if that is still on as things are.
    fn settle_forbidden(&self, job: Job) {
        let (node, replica) = (Arc::clone(self.node), Arc::clone(self.replica));
        let many = !matches!(self.source, Source::Own);
        self.node.scope.spawn(async move {
            let Work::Request(request) = &job.work else {
                return;
            };
            match node.still_forbidden(&replica, request, many).await {
                Ok(()) => replica.enqueue(job),
                Err(declined) => job.finish(Err(declined)),
            }
        });
    }

    /// Starts work that isn't evaluated with the writes.
    fn start(&mut self, job: Job) {
        match &job.work {
            Work::Compact { .. } => self.compactions.push(job),
            work if work.is_aside() => job.finish(Err(Declined::Again)),
            _ => self.settle(job),
        }
    }
}

pub(super) fn effects_bytes(effects: &Effects) -> usize {
    let bytes = |effect: &pontoon_engine::Effect| match effect {
        pontoon_engine::Effect::Put { key, value, .. } => key.len() + value.len(),
        pontoon_engine::Effect::Delete { key } => key.len(),
    };
    effects.iter().map(|effect| 16 + bytes(effect)).sum()
}

impl Inner {
    /// Whether alarms still forbid a request once this node knows all that was
    /// acknowledged.
    pub(super) async fn still_forbidden(
        self: &Arc<Self>,
        replica: &Arc<Replica>,
        request: &Request,
        many: bool,
    ) -> Result<(), Declined> {
        let nothing = Touches::default();
        self.settle_point(replica, None, &nothing, many).await?;
        match forbidden(&self.cluster.borrow().alarms, request) {
            Some(declined) => Err(declined),
            None => Ok(()),
        }
    }
}

/// Why a request can't be served while these alarms are on.
pub(crate) fn forbidden(alarms: &Alarms, request: &Request) -> Option<Declined> {
    if alarms.is_empty() {
        return None;
    }
    if is_logged(request)
        && let Some(declined) = unsound(alarms)
    {
        return Some(declined);
    }
    (is_on(alarms, Alarm::NoSpace) && has_put(request)).then_some(Declined::NoSpace)
}

/// Why nothing can be changed while these alarms are on.
pub(crate) fn unsound(alarms: &Alarms) -> Option<Declined> {
    is_on(alarms, Alarm::Corrupt).then_some(Declined::Corrupt)
}

fn is_on(alarms: &Alarms, wanted: Alarm) -> bool {
    alarms.iter().any(|(alarm, _)| *alarm == wanted)
}

/// Whether a request goes through etcd's log, though it may change nothing.
fn is_logged(request: &Request) -> bool {
    match request {
        Request::Range(_) => false,
        Request::Txn(txn) => {
            let mut ops = txn.success.iter().chain(&txn.failure);
            ops.any(|op| !matches!(op, Op::Range(_)))
        }
        Request::Put(_) | Request::DeleteRange(_) | Request::LeaseRevoke(_) => true,
    }
}

/// Whether a request could put something.
fn has_put(request: &Request) -> bool {
    fn puts(txn: &Txn) -> bool {
        txn.success.iter().chain(&txn.failure).any(|op| match op {
            Op::Put(_) => true,
            Op::Txn(inner) => puts(inner),
            Op::Range(_) | Op::DeleteRange(_) | Op::Missing => false,
        })
    }
    match request {
        Request::Put(_) => true,
        Request::Txn(txn) => puts(txn),
        Request::Range(_) | Request::DeleteRange(_) | Request::LeaseRevoke(_) => false,
    }
}

/// Whether a request can't change anything.
pub(crate) fn is_read_only(request: &Request) -> bool {
    fn reads(txn: &Txn) -> bool {
        txn.success.iter().chain(&txn.failure).all(|op| match op {
            Op::Range(_) | Op::Missing => true,
            Op::Txn(inner) => reads(inner),
            Op::Put(_) | Op::DeleteRange(_) => false,
        })
    }
    match request {
        Request::Range(_) => true,
        Request::Txn(txn) => reads(txn),
        Request::Put(_) | Request::DeleteRange(_) | Request::LeaseRevoke(_) => false,
    }
}
