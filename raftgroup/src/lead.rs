//! The leader of a group at work: evaluate, ask for revisions, propose, apply.
//!
//! Kept true:
//! - Entries are proposed in the order of their revisions (rule 6), each on
//!   the state that it was evaluated on.
//! - Whoever is told that nothing was done, nothing was done for; whoever
//!   waits for an entry whose fate is not known hears just that.
//! - What is held in memory is bounded: by the queue of jobs, by the number
//!   of batches on their way, and by the bytes of each.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use pontoon_engine::{
    Answer, Effects, EngineError, Op, Pending, Reject, Request, Revision, Step, Store, Ticket, Txn,
    evaluate,
};
use tokio::sync::{mpsc, oneshot};

use crate::runtime::watched as watch;

use crate::cluster::{Cluster, ceiling_step, map_step};
use crate::command::Command;
use crate::ledger::{Ask, Hello, Ledger, Resolved, Stamp};
use crate::map::RangeMap;
use crate::message::{Answered, Declined, Done, Grant, Heard, Message, Work};
use crate::node::Inner;
use crate::position::{LogIndex, NodeId, Term};
use crate::raft::{Leadership, Proposed};
use crate::replica::{Barrier, Job, Replica};
use crate::sequence::Sequencing;

/// Jobs that are evaluated in one go.
const BATCH_JOBS_MAX: usize = 1024;

/// Bytes of effects that one entry gathers; a larger request has its own.
const BATCH_BYTES_MAX: usize = 1 << 20;

/// Bytes of effects that a request may have.
const REQUEST_BYTES_MAX: usize = 8 << 20;

/// Tickets are counted anew when nothing is on its way, at the latest then.
const TICKET_MAX: u32 = u32::MAX / 2;

/// Batches that are proposed and not applied; one more may wait for its revisions.
const IN_FLIGHT_MAX: usize = 4;

/// Serves a replica's jobs for as long as the node runs: does them while it
/// leads, and says who leads while it doesn't.
pub(crate) async fn serve(
    node: Arc<Inner>,
    replica: Arc<Replica>,
    mut jobs: mpsc::Receiver<Job>,
    mut barriers: mpsc::UnboundedReceiver<Barrier>,
) {
    let mut leadership = replica.group.leadership();
    // The last term in which this node led and lost track.
    let mut spent = Term(0);
    loop {
        let now = *leadership.borrow_and_update();
        if now.ready && now.leader == Some(node.me) && now.term > spent {
            match Lead::begin(&node, &replica, now.term).await {
                Some(mut lead) => {
                    spent = lead.run(&mut jobs, &mut barriers, &mut leadership).await;
                }
                // What it proposed first was not taken; does it still lead?
                None => tokio::time::sleep(RETRY).await,
            }
            continue;
        }
        tokio::select! {
            biased;
            changed = leadership.changed() => if changed.is_err() {
                return;
            },
            // Dropped: who waits for it hears that this node doesn't lead.
            Some(_) = barriers.recv() => {},
            job = jobs.recv() => match job {
                Some(job) => {
                    let leader = now.leader.filter(|leader| *leader != node.me);
                    job.finish(Err(match now.leader {
                        // It leads, but not yet in order.
                        Some(me) if me == node.me && now.term > spent => Declined::Again,
                        _ => Declined::NotLeader(leader),
                    }));
                }
                None => return,
            },
        }
    }
}

/// Where revisions come from.
enum Source {
    /// There is one group: the next one is the next one.
    Own,
    /// The root group among many: the ledger is here.
    Ledger(Arc<Mutex<Ledger>>, Sequencing),
    /// Any other: the sequencer is asked.
    Sequencer(Session),
}

/// How this leader is known to the sequencer.
#[derive(Default)]
struct Session {
    /// Counts announcements in this term.
    number: u64,
    /// Who was told, once it has agreed.
    with: Option<(Term, NodeId)>,
    /// An announcement is on its way.
    calling: bool,
    asks: u64,
    reported: Revision,
    reporting: bool,
}

/// Evaluated requests that become one entry.
struct Batch {
    first: Ticket,
    items: Vec<Item>,
    /// The root entry that it was evaluated after.
    root: LogIndex,
    /// Which question it waits for.
    ask: Option<u64>,
    granted: Option<(Revision, LogIndex)>,
}

struct Item {
    job: Job,
    answer: Answer,
    effects: Effects,
}

/// An entry that was proposed.
struct Flight {
    id: u64,
    /// The last request in it; `None` if it has none.
    through: Option<Ticket>,
    first: Revision,
    last: Revision,
}

/// What happened elsewhere.
enum Event {
    /// A flight was applied.
    Applied {
        flight: u64,
        index: LogIndex,
    },
    /// A flight is certain not to have changed anything.
    NoEffect {
        flight: u64,
    },
    /// It was waited for a while after a flight without effect.
    Rested,
    /// Nobody knows what will become of a flight.
    Lost,
    /// A round after the epoch was learned.
    Confirmed {
        epoch: Term,
        sequencer: NodeId,
        confirmed: bool,
    },
    Announced {
        epoch: Term,
        sequencer: NodeId,
        session: u64,
        heard: bool,
    },
    Granted {
        ask: u64,
        granted: Grant,
    },
    Reported {
        session: u64,
        revision: Revision,
        heard: bool,
    },
}

/// A read that waits until all that is granted below it is applied.
struct Waiting {
    revision: Revision,
    /// What was asked until then counts.
    asks: u64,
    passed: oneshot::Sender<()>,
}

/// Ends with what came of it.
type Call = Pin<Box<dyn Future<Output = Event> + Send>>;

struct Lead<'a> {
    node: &'a Arc<Inner>,
    replica: &'a Arc<Replica>,
    term: Term,
    map: Arc<RangeMap>,
    source: Source,
    pending: Pending,
    ticket: u32,
    /// All that is not pending is at or below it.
    base: Revision,
    /// The group's last revision when all that was proposed is applied.
    last: Revision,
    asked: VecDeque<Batch>,
    flights: VecDeque<Flight>,
    launched: u64,
    /// The newest entry that was applied in this term, with its revision.
    applied: (Revision, LogIndex),
    /// Jobs that can't be evaluated yet.
    held: VecDeque<Job>,
    compactions: Vec<Job>,
    compacting: bool,
    waiting: Vec<Waiting>,
    /// What was granted, while there are answers that name its tickets.
    grants: Vec<(Ticket, usize, Revision)>,
    /// A flight had no effect: nothing new until all have ended, and not at
    /// once, because what was refused now will be refused again.
    draining: bool,
    resting: bool,
    /// The map has changed: nothing new, and over when all flights have ended.
    leaving: bool,
    /// What was asked of others, on its way.
    calls: FuturesUnordered<Call>,
    events: mpsc::UnboundedSender<Event>,
    happened: Option<mpsc::UnboundedReceiver<Event>>,
}

impl<'a> Lead<'a> {
    /// Takes up the lead; `None` if it was lost before anything was done.
    async fn begin(node: &'a Arc<Inner>, replica: &'a Arc<Replica>, term: Term) -> Option<Self> {
        let (events, happened) = mpsc::unbounded_channel();
        let cluster = node.cluster.borrow().clone();
        let map = match cluster.map {
            Some(map) => map,
            None if replica.id.is_root() => {
                let first = Arc::new(node.first_map());
                let store = replica.group.store();
                let mut steps = vec![map_step(&first)];
                if !first.is_one_group() {
                    // Nothing is granted yet, so the first sequencer counts on.
                    steps.push(ceiling_step(store.last_revision()));
                }
                steps.extend(first.keys_of(replica.id).map(|keys| Step::Bounds { keys }));
                propose_and_wait(replica, term, steps).await?;
                first
            }
            None => return None,
        };
        let store = replica.group.store();
        let keys = map.keys_of(replica.id)?;
        if store.bounds() != keys {
            propose_and_wait(replica, term, vec![Step::Bounds { keys }]).await?;
        }
        let store = replica.group.store();
        let source = if map.is_one_group() {
            Source::Own
        } else if replica.id.is_root() {
            let (ledger, sequencing) = Sequencing::begin(node, replica, term);
            Source::Ledger(ledger, sequencing)
        } else {
            Source::Sequencer(Session::default())
        };
        Some(Self {
            node,
            replica,
            term,
            map,
            source,
            pending: Pending::new(),
            ticket: 0,
            base: store.revision(),
            last: store.last_revision(),
            asked: VecDeque::new(),
            flights: VecDeque::new(),
            launched: 0,
            applied: (store.last_revision(), replica.applied()),
            held: VecDeque::new(),
            compactions: Vec::new(),
            compacting: false,
            waiting: Vec::new(),
            grants: Vec::new(),
            draining: false,
            resting: false,
            leaving: false,
            calls: FuturesUnordered::new(),
            events,
            happened: Some(happened),
        })
    }

    /// Leads until it can't; returns the term that is spent.
    async fn run(
        &mut self,
        jobs: &mut mpsc::Receiver<Job>,
        barriers: &mut mpsc::UnboundedReceiver<Barrier>,
        leadership: &mut watch::Receiver<Leadership>,
    ) -> Term {
        let mut happened = self.happened.take().expect("it runs once");
        let mut cluster = self.node.cluster.subscribe();
        let mut progress = self.node.progress.subscribe();
        let mut root = self.node.root().group.leadership();
        let mut batch = Vec::new();
        let mut spent = Term(self.term.0 - 1);
        loop {
            let now = cluster.borrow_and_update().clone();
            self.advance(&now).await;
            if self.leaving && self.flights.is_empty() {
                break;
            }
            let floor_waits = self.floor_waits();
            let mut event = None;
            tokio::select! {
                biased;
                changed = leadership.changed() => {
                    let now = *leadership.borrow_and_update();
                    let leads = now.ready && now.leader == Some(self.node.me);
                    if changed.is_err() || !leads || now.term != self.term {
                        break;
                    }
                },
                Some(next) = happened.recv() => event = Some(next),
                Some(next) = self.calls.next() => event = Some(next),
                Some(barrier) = barriers.recv() => self.wait_for(barrier),
                changed = cluster.changed() => {
                    let version = cluster.borrow().map.as_ref().map(|map| map.version);
                    if changed.is_err() {
                        break;
                    }
                    self.leaving |= version != Some(self.map.version);
                },
                changed = root.changed() => if changed.is_err() {
                    // The root replica has stopped: nothing can be led here.
                    spent = self.term;
                    break;
                },
                _ = progress.changed(), if floor_waits => {},
                count = jobs.recv_many(&mut batch, BATCH_JOBS_MAX), if self.may_evaluate() => {
                    if count == 0 {
                        break;
                    }
                    self.wake().await;
                    self.held.extend(batch.drain(..));
                },
            }
            while let Some(next) = event {
                if !self.on(next).await {
                    spent = self.term;
                }
                event = happened.try_recv().ok();
            }
            if spent == self.term {
                break;
            }
        }
        self.end(leadership.borrow().leader);
        spent
    }

    /// Does what can be done now.
    async fn advance(&mut self, cluster: &Cluster) {
        self.pending.raise_floor(cluster.floor);
        if self.draining && !self.resting && self.flights.is_empty() {
            self.restart();
        }
        if self.flights.is_empty() && self.asked.is_empty() {
            self.ticket = 0;
            self.grants.clear();
        }
        while !self.held.is_empty() && self.may_evaluate() {
            let held = self.held.len();
            self.evaluate().await;
            if self.held.len() == held {
                break;
            }
        }
        if !self.draining {
            self.compact(cluster).await;
        }
        self.announce();
        self.report();
        self.let_pass();
    }

    fn may_evaluate(&self) -> bool {
        let ready = match &self.source {
            Source::Own | Source::Ledger(..) => true,
            Source::Sequencer(session) => session.with.is_some(),
        };
        let paused = self.draining || self.leaving || self.ticket > TICKET_MAX;
        // What comes while a question is on its way gathers for the next one.
        ready && !paused && self.asked.is_empty() && self.flights.len() < IN_FLIGHT_MAX
    }

    /// A quiet group is woken by a quorum round: its followers hear of it.
    async fn wake(&mut self) {
        if self.replica.group.is_quiet() {
            // If it fails, so will the proposals.
            let _ = self.replica.rounds.confirm().await;
        }
    }

    /// Evaluates held jobs into one batch.
    async fn evaluate(&mut self) {
        let store = self.replica.group.store();
        if store.dirty_bytes() > self.node.dirty_bytes_max {
            // The disk is behind: whoever writes waits for it.
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let root = self.node.root_applied();
        let mut batch = Batch {
            first: Ticket(self.ticket),
            items: Vec::new(),
            root,
            ask: None,
            granted: None,
        };
        let mut bytes = 0;
        while bytes < BATCH_BYTES_MAX
            && let Some(job) = self.held.pop_front()
        {
            let Work::Request(request) = &job.work else {
                self.start(job);
                continue;
            };
            if is_read_only(request) {
                self.settle(job);
                continue;
            }
            if self.node.wal.is_space_low() {
                job.finish(Err(Declined::NoSpace));
                continue;
            }
            let ticket = Ticket(self.ticket);
            let own = match &self.source {
                Source::Own => Revision(self.last.0 + 1 + batch.items.len() as i64),
                _ => Revision::of(ticket),
            };
            let leases = |_| false;
            match evaluate(&store, &self.pending, self.base, own, &leases, request) {
                Ok(evaluated) if !evaluated.effects.is_empty() => {
                    let size = effects_bytes(&evaluated.effects);
                    if size > REQUEST_BYTES_MAX {
                        job.finish(Err(Declined::TooLarge));
                        continue;
                    }
                    bytes += size;
                    self.pending.add(ticket, own, evaluated.changes);
                    self.ticket += 1;
                    batch.items.push(Item {
                        job,
                        answer: evaluated.answer,
                        effects: evaluated.effects,
                    });
                }
                // It changes nothing, or is refused, as things will be: what
                // it is told must hold as things are.
                Ok(_) | Err(EngineError::Reject(_)) => self.settle(job),
                Err(EngineError::Ungranted(_)) => {
                    if batch.items.is_empty() && self.asked.is_empty() {
                        // It hangs on its own revision.
                        self.evaluate_granted(job, &store, root).await;
                    } else {
                        self.held.push_front(job);
                    }
                    break;
                }
                Err(EngineError::Undecided(_)) => job.finish(Err(Declined::Again)),
                Err(error) => {
                    tracing::error!("group {}: {error}", self.replica.id);
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

    /// Evaluates a request that looks at its own revision: the revision comes
    /// first. If it turns out to need none, there is a gap.
    async fn evaluate_granted(&mut self, job: Job, store: &Arc<Store>, root: LogIndex) {
        let ticket = Ticket(self.ticket);
        self.ticket += 1;
        let mut batch = Batch {
            first: ticket,
            items: vec![Item {
                job,
                answer: Answer::LeaseRevoke(Revision(0)),
                effects: Effects::new(),
            }],
            root,
            ask: None,
            granted: None,
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
    fn evaluate_late(&mut self, batch: &mut Batch, own: Revision, store: &Arc<Store>) {
        let item = &mut batch.items[0];
        let Work::Request(request) = &item.job.work else {
            return;
        };
        let leases = |_| false;
        if let Ok(evaluated) = evaluate(store, &self.pending, self.base, own, &leases, request) {
            self.pending.add(batch.first, own, evaluated.changes);
            item.answer = evaluated.answer;
            item.effects = evaluated.effects;
        }
    }

    /// Puts revisions where tickets stood for them.
    fn grant(&mut self, batch: &mut Batch, first: Revision) {
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

    /// Makes one entry of a batch that has its revisions.
    async fn propose(&mut self, batch: Batch, first: Revision) {
        let count = batch.items.len();
        let last = Revision(first.0 + count as i64 - 1);
        let mut steps = Vec::with_capacity(count);
        let mut waiting = Vec::with_capacity(count);
        for (item, revision) in batch.items.into_iter().zip(first.0..) {
            if item.effects.is_empty() {
                // It was evaluated late and needs no revision after all.
                self.settle(item.job);
                continue;
            }
            steps.push(Step::Write {
                revision: Revision(revision),
                effects: item.effects,
            });
            waiting.push((item.job.reply, item.answer));
        }
        // Also without a write: the group has come this far.
        if steps.is_empty() {
            steps.push(Step::Reach { revision: last });
        }
        let flight = Flight {
            id: self.launched,
            through: Some(Ticket(batch.first.0 + count as u32 - 1)),
            first,
            last,
        };
        self.launch(flight, steps, move |outcome: Result<LogIndex, Declined>| {
            for (reply, answer) in waiting {
                // Nobody waits any more: fine.
                let _ = reply.send(match &outcome {
                    Ok(index) => Ok(Done {
                        answer: Answered::Answer(answer),
                        index: *index,
                    }),
                    Err(declined) => Err(declined.clone()),
                });
            }
        })
        .await;
    }

    async fn launch(
        &mut self,
        flight: Flight,
        steps: Vec<Step>,
        finish: impl FnOnce(Result<LogIndex, Declined>) + Send + 'static,
    ) {
        let command = Command {
            term: self.term,
            base: Some(self.last),
            steps,
        };
        let command = command.to_proposal();
        self.last = self.last.max(flight.last);
        self.launched += 1;
        let id = flight.id;
        self.flights.push_back(flight);
        let flight = id;
        let events = self.events.clone();
        let follow = Arc::clone(&self.replica.follow);
        let done = Box::new(move |proposed| {
            let (event, outcome) = match proposed {
                Proposed::Applied(index) if follow.had_effect(index) => {
                    (Event::Applied { flight, index }, Ok(index))
                }
                Proposed::Applied(_) | Proposed::Refused => {
                    (Event::NoEffect { flight }, Err(Declined::Again))
                }
                Proposed::Unknown => (Event::Lost, Err(Declined::Unknown)),
            };
            finish(outcome);
            // The leader is gone: fine.
            let _ = events.send(event);
        });
        let group = &self.replica.group;
        group.propose(self.term, command, done).await;
    }

    /// Takes note of an event; `false` if the lead is lost.
    async fn on(&mut self, event: Event) -> bool {
        match event {
            Event::Applied { flight, index } => {
                let Some(flight) = self.landed(flight) else {
                    return true;
                };
                if let Some(through) = flight.through {
                    self.pending.retire(through);
                } else {
                    self.compacting = false;
                }
                self.base = self.base.max(flight.last);
                self.applied = (self.applied.0.max(flight.last), index);
                if let Source::Ledger(ledger, sequencing) = &self.source {
                    ledger.lock().own_applied(flight.last, index);
                    sequencing.changed();
                }
            }
            Event::NoEffect { flight } => {
                self.landed(flight);
                self.draining = true;
                if !std::mem::replace(&mut self.resting, true) {
                    let events = self.events.clone();
                    self.node.scope.spawn(async move {
                        tokio::time::sleep(RETRY).await;
                        let _ = events.send(Event::Rested);
                    });
                }
            }
            Event::Rested => self.resting = false,
            Event::Lost => return false,
            Event::Confirmed {
                epoch,
                sequencer,
                confirmed,
            } => {
                self.hello(epoch, sequencer, confirmed);
            }
            Event::Announced {
                epoch,
                sequencer,
                session,
                heard,
            } => {
                self.announced(epoch, sequencer, session, heard);
            }
            Event::Granted { ask, granted } => self.granted(ask, granted).await,
            Event::Reported {
                session,
                revision,
                heard,
            } => {
                let Source::Sequencer(current) = &mut self.source else {
                    return true;
                };
                if current.number == session {
                    current.reporting = false;
                    if heard {
                        current.reported = current.reported.max(revision);
                    } else {
                        current.with = None;
                    }
                }
            }
        }
        true
    }

    /// A flight has ended. One that was not taken may do so before those
    /// launched earlier.
    fn landed(&mut self, id: u64) -> Option<Flight> {
        let at = self.flights.iter().position(|flight| flight.id == id)?;
        self.flights.remove(at)
    }

    /// All flights have ended, some without effect: begin again with what is there.
    fn restart(&mut self) {
        for batch in std::mem::take(&mut self.asked) {
            self.held
                .extend(batch.items.into_iter().map(|item| item.job));
        }
        let store = self.replica.group.store();
        self.draining = false;
        self.compacting = false;
        self.pending = Pending::new();
        self.ticket = 0;
        self.grants.clear();
        self.last = store.last_revision();
        self.base = self.base.max(store.revision());
        match &mut self.source {
            Source::Own => {}
            Source::Ledger(ledger, sequencing) => {
                ledger.lock().own_void();
                sequencing.changed();
            }
            // The sequencer must know that what it granted is void.
            Source::Sequencer(session) => session.with = None,
        }
    }

    // --- the sequencer (rules 4, 5, 7) ---

    /// The revisions that are on their way.
    fn written(&self) -> impl Iterator<Item = (Revision, Revision)> {
        let writes = self
            .flights
            .iter()
            .filter(|flight| flight.through.is_some());
        writes.map(|flight| (flight.first, flight.last))
    }

    /// Begins to announce itself, if the sequencer is another one than it
    /// knows, or must hear of a new session.
    fn announce(&mut self) {
        let Source::Sequencer(session) = &mut self.source else {
            return;
        };
        let known = self.node.sequencer();
        if session.calling || (session.with.is_some() && session.with == known) {
            return;
        }
        session.with = None;
        session.calling = true;
        let (node, replica) = (Arc::clone(self.node), Arc::clone(self.replica));
        self.calls.push(Box::pin(async move {
            let (epoch, sequencer) = node.sequencer_known().await;
            // Rule 4: this round begins after the epoch was learned.
            let confirmed = replica.rounds.confirm().await.is_ok();
            if !confirmed {
                tokio::time::sleep(RETRY).await;
            }
            Event::Confirmed {
                epoch,
                sequencer,
                confirmed,
            }
        }));
    }

    fn hello(&mut self, epoch: Term, sequencer: NodeId, confirmed: bool) {
        let term = self.term;
        let pending = self.written().collect();
        let Source::Sequencer(session) = &mut self.source else {
            return;
        };
        if !confirmed {
            session.calling = false;
            return;
        }
        session.number += 1;
        session.reporting = false;
        let number = session.number;
        let hello = Hello {
            stamp: Stamp {
                epoch,
                group: self.replica.id,
                term,
                session: number,
            },
            pending,
            applied: self.applied.1,
        };
        session.reported = self.applied.0;
        // What was asked before is void with the old session (rule 5).
        for batch in &mut self.asked {
            batch.ask = None;
            batch.granted = None;
        }
        let node = Arc::clone(self.node);
        let call = node.call(sequencer, &Message::Hello(hello), node.timing.call);
        self.calls.push(Box::pin(async move {
            let heard: Heard = call.await.unwrap_or(false);
            if !heard {
                tokio::time::sleep(RETRY).await;
            }
            Event::Announced {
                epoch,
                sequencer,
                session: number,
                heard,
            }
        }));
    }

    fn announced(&mut self, epoch: Term, sequencer: NodeId, number: u64, heard: bool) {
        let Source::Sequencer(session) = &mut self.source else {
            return;
        };
        session.calling = false;
        if number == session.number && heard {
            session.with = Some((epoch, sequencer));
            self.ask();
        }
    }

    /// Asks for what was not asked for in this session.
    fn ask(&mut self) {
        let Source::Sequencer(session) = &mut self.source else {
            return;
        };
        let Some((epoch, sequencer)) = session.with else {
            return;
        };
        for batch in self.asked.iter_mut().filter(|batch| batch.ask.is_none()) {
            session.asks += 1;
            let ask = session.asks;
            batch.ask = Some(ask);
            let message = Message::Ask(Ask {
                stamp: Stamp {
                    epoch,
                    group: self.replica.id,
                    term: self.term,
                    session: session.number,
                },
                count: batch.items.len() as u64,
                root: batch.root,
            });
            let call = self.node.call(sequencer, &message, self.node.timing.call);
            self.calls.push(Box::pin(async move {
                let granted = call.await.unwrap_or(Grant::Ignored);
                Event::Granted { ask, granted }
            }));
        }
    }

    async fn granted(&mut self, ask: u64, granted: Grant) {
        let Some(batch) = self.asked.iter_mut().find(|batch| batch.ask == Some(ask)) else {
            // Of an older session.
            return;
        };
        match granted {
            Grant::Made { first, root } => batch.granted = Some((first, root)),
            Grant::Stale { root } => {
                // If it doesn't, it will be refused again.
                self.node.root_catches_up(root).await;
                return self.evaluate_again();
            }
            Grant::Ignored => {
                if let Source::Sequencer(session) = &mut self.source {
                    session.with = None;
                }
                return;
            }
        }
        while !self.draining
            && let Some((first, root)) = self.asked.front().and_then(|batch| batch.granted)
            && let Some(mut batch) = self.asked.pop_front()
        {
            if !self.node.root_catches_up(root).await {
                self.asked.push_front(batch);
                if let Source::Sequencer(session) = &mut self.source {
                    session.with = None;
                }
                return;
            }
            let late = batch.items.len() == 1 && batch.items[0].effects.is_empty();
            if late {
                let store = self.replica.group.store();
                self.evaluate_late(&mut batch, first, &store);
            } else {
                self.grant(&mut batch, first);
            }
            self.propose(batch, first).await;
        }
    }

    /// The cluster has changed since the waiting batches were evaluated: they
    /// become jobs again (rule 15).
    fn evaluate_again(&mut self) {
        let Some(oldest) = self.asked.front() else {
            return;
        };
        self.pending.withdraw(oldest.first);
        self.ticket = oldest.first.0;
        for batch in std::mem::take(&mut self.asked).into_iter().rev() {
            for item in batch.items.into_iter().rev() {
                self.held.push_front(item.job);
            }
        }
        self.grants.clear();
        if let Source::Sequencer(session) = &mut self.source {
            session.with = None;
        }
    }

    /// Reports what is applied.
    fn report(&mut self) {
        let Source::Sequencer(session) = &mut self.source else {
            return;
        };
        let (revision, index) = self.applied;
        let Some((epoch, sequencer)) = session.with else {
            return;
        };
        if session.reporting || revision <= session.reported {
            return;
        }
        session.reporting = true;
        let number = session.number;
        let message = Message::Resolved(Resolved {
            stamp: Stamp {
                epoch,
                group: self.replica.id,
                term: self.term,
                session: number,
            },
            revision,
            index,
        });
        let call = self.node.call(sequencer, &message, self.node.timing.call);
        self.calls.push(Box::pin(async move {
            let heard = call.await.unwrap_or(false);
            Event::Reported {
                session: number,
                revision,
                heard,
            }
        }));
    }

    // --- reads (rule 9) ---

    fn wait_for(&mut self, barrier: Barrier) {
        let asks = match &self.source {
            Source::Sequencer(session) => session.asks,
            _ => 0,
        };
        self.waiting.push(Waiting {
            revision: barrier.revision,
            asks,
            passed: barrier.passed,
        });
    }

    /// Lets reads pass that have all they waited for.
    fn let_pass(&mut self) {
        let (asked, flights, base) = (&self.asked, &self.flights, &mut self.base);
        let passes = |waiting: &mut Waiting| {
            let answered = asked
                .iter()
                .all(|batch| batch.ask.is_none_or(|ask| ask > waiting.asks));
            let applied = flights
                .front()
                .is_none_or(|flight| flight.first > waiting.revision);
            answered && applied
        };
        for waiting in self.waiting.extract_if(.., passes) {
            *base = (*base).max(waiting.revision);
            // Nobody waits any more: fine.
            let _ = waiting.passed.send(());
        }
    }

    /// Starts work that isn't evaluated with the writes.
    fn start(&mut self, job: Job) {
        match &job.work {
            Work::Compact { .. } => self.compactions.push(job),
            Work::Read { .. } | Work::Request(_) => self.settle(job),
        }
    }

    /// Answers what changes nothing from what is there for good (rule 1).
    fn settle(&self, job: Job) {
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

    // --- compaction (rule 15) ---

    fn floor_waits(&self) -> bool {
        matches!(self.source, Source::Sequencer(_))
            && !self.compacting
            && self.node.cluster.borrow().floor > self.replica.group.store().floor()
    }

    async fn compact(&mut self, cluster: &Cluster) {
        for job in std::mem::take(&mut self.compactions) {
            let Work::Compact { revision } = job.work else {
                continue;
            };
            let checked = match &self.source {
                _ if !self.replica.id.is_root() => Err(Reject::FutureRevision),
                _ if revision <= cluster.floor => Err(Reject::Compacted),
                // A client may have heard of a write before this task has.
                Source::Own if revision > self.replica.group.store().revision() => {
                    Err(Reject::FutureRevision)
                }
                // The router compared it with a read point.
                _ => Ok(()),
            };
            match checked {
                Ok(()) => self.raise_floor(revision, Some(job)).await,
                Err(reject) => job.finish(Err(Declined::Reject(reject))),
            }
        }
        let store_floor = self.replica.group.store().floor();
        if matches!(self.source, Source::Sequencer(_))
            && !self.compacting
            && cluster.floor > store_floor
            && self.node.closed(self.replica.id) >= cluster.floor
        {
            self.compacting = true;
            self.raise_floor(cluster.floor, None).await;
        }
    }

    async fn raise_floor(&mut self, floor: Revision, job: Option<Job>) {
        let flight = Flight {
            id: self.launched,
            through: None,
            first: floor,
            last: floor,
        };
        let newest = self.base.max(floor);
        let steps = vec![Step::Reach { revision: floor }, Step::Compact { floor }];
        self.launch(flight, steps, move |outcome| {
            if let Some(job) = job {
                job.finish(outcome.map(|index| Done {
                    answer: Answered::Compacted(newest),
                    index,
                }));
            }
        })
        .await;
    }

    /// Nothing more is done here; what was proposed is answered when its fate
    /// is known.
    fn end(&mut self, leader: Option<NodeId>) {
        let leader = leader.filter(|leader| *leader != self.node.me);
        let asked = std::mem::take(&mut self.asked);
        let jobs = asked
            .into_iter()
            .flat_map(|batch| batch.items)
            .map(|item| item.job);
        for job in jobs
            .chain(self.held.drain(..))
            .chain(self.compactions.drain(..))
        {
            job.finish(Err(Declined::NotLeader(leader)));
        }
        if let Source::Ledger(_, sequencing) = &self.source {
            sequencing.end();
        }
        self.replica.busy.store(true, Ordering::Relaxed);
    }
}

/// Before something that didn't work is tried again.
const RETRY: Duration = Duration::from_millis(20);

pub(crate) async fn propose_and_wait(
    replica: &Replica,
    term: Term,
    steps: Vec<Step>,
) -> Option<()> {
    let command = Command {
        term,
        base: None,
        steps,
    };
    let (done, proposed) = oneshot::channel();
    let done = Box::new(move |outcome| {
        // Nobody waits any more: fine.
        let _ = done.send(outcome);
    });
    replica
        .group
        .propose(term, command.to_proposal(), done)
        .await;
    matches!(proposed.await, Ok(Proposed::Applied(_))).then_some(())
}

fn effects_bytes(effects: &Effects) -> usize {
    let bytes = |effect: &pontoon_engine::Effect| match effect {
        pontoon_engine::Effect::Put { key, value, .. } => key.len() + value.len(),
        pontoon_engine::Effect::Delete { key } => key.len(),
    };
    effects.iter().map(|effect| 16 + bytes(effect)).sum()
}

/// Whether a request can't change anything.
fn is_read_only(request: &Request) -> bool {
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
