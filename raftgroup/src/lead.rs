//! The leader of a group at work: evaluate, ask for revisions, propose, apply.
//!
//! Kept true:
//! - Entries are proposed in the order of their revisions (rule 6), each on
//!   the state that it was evaluated on.
//! - Whoever is told that nothing was done, nothing was done for; whoever
//!   waits for an entry whose fate is not known hears just that.
//! - What is held in memory is bounded: by the queue of jobs, by the number
//!   of batches on their way, and by the bytes of each.

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use pontoon_engine::{Answer, Effects, KeyRange, Pending, Revision, Step, Ticket};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::cluster::{Cluster, ceiling_step, map_step, members_step};
use crate::codec::Wire;
use crate::lease::LeaseName;
use crate::ledger::Ledger;
use crate::map::RangeMap;
use crate::message::{Answered, Declined, Done, Grant, Heard, Work};
use crate::node::Inner;
use crate::position::{GroupId, LogIndex, NodeId, Term};
use crate::raft::Leadership;
use crate::replica::{Job, Note, Replica};
use crate::runtime::watched as watch;
use crate::sequence::Sequencing;
use crate::split::{SplitRecord, Splitting, abandoned};
use crate::txn::TxnId;

mod evaluate;
mod floor;
mod latches;
mod leases;
mod members;
mod propose;
mod reads;
mod session;
mod split;
mod txn;

pub(crate) use evaluate::{forbidden, is_read_only, unsound};
use latches::Latches;
use leases::Lessor;
pub(crate) use members::{Alarms, Damaged};
pub(crate) use propose::propose_and_wait;
use reads::Waiting;
use session::Session;
use split::SplitsHere;
use txn::{Decision, Granted, Txns};

/// Jobs that are evaluated in one go.
const BATCH_JOBS_MAX: usize = 1024;

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
    mut notes: mpsc::UnboundedReceiver<Note>,
) {
    let mut leadership = replica.group.leadership();
    // The last term in which this node led and lost track.
    let mut spent = Term(0);
    let me = node.me;
    // It goes on when its group is split, until the term is over.
    let mut sequencer: Option<(Term, AtDesk)> = None;
    let mut counted = (Term(0), Counted::default());
    let mut hand_over_at = None;
    // A leader that can't serve for so long leaves it to another.
    let useless_max = node.config.timing.election_max;
    loop {
        let now = *leadership.borrow_and_update();
        let leads = now.ready && now.leader == Some(me) && now.term > spent;
        // One whose disk stalls may go on in the same epoch: its books must stay.
        let keeps_books = |term: Term| term == now.term && (leads || now.suspended);
        if let Some((_, (_, sequencing))) = sequencer.take_if(|(term, _)| !keeps_books(*term)) {
            sequencing.end();
        }
        let declined = |now: Leadership| match now.leader {
            // It leads, but not yet in order.
            Some(leader) if leader == me && now.term > spent => Declined::Again,
            leader => Declined::NotLeader(leader.filter(|leader| *leader != me)),
        };
        if leads {
            let goes_on = sequencer.clone().map(|(_, at_desk)| at_desk);
            if counted.0 != now.term {
                counted = (now.term, Counted::default());
            }
            match Lead::begin(&node, &replica, now.term, goes_on, counted.1).await {
                Some(mut lead) => {
                    if let Source::Ledger(ledger, sequencing) = &lead.source {
                        let at_desk = (Arc::clone(ledger), sequencing.clone());
                        sequencer = Some((now.term, at_desk));
                    }
                    hand_over_at = None;
                    spent = lead.run(&mut jobs, &mut notes, &mut leadership).await;
                    counted.1 = lead.counted();
                }
                // What it proposed first was not taken; does it still lead?
                None => {
                    tokio::time::sleep(RETRY).await;
                    let useless = node.sequencer().is_some() || replica.id.is_root();
                    let by = hand_over_at.get_or_insert_with(|| Instant::now() + useless_max);
                    if useless && *by <= Instant::now() {
                        hand_over_at = None;
                        node.hand_over(&replica).await;
                    }
                }
            }
            continue;
        }
        // Nobody leads in a spent term any more, but as long as the others hear
        // this node, they wait for it. The same if it doesn't get ready.
        let wins = now.leader == Some(me);
        let patience = if now.term <= spent {
            HAND_OVER_AFTER
        } else {
            useless_max
        };
        hand_over_at = wins.then(|| hand_over_at.unwrap_or_else(|| Instant::now() + patience));
        tokio::select! {
            biased;
            changed = leadership.changed() => if changed.is_err() {
                return;
            },
            () = sleep_until(hand_over_at) => {
                hand_over_at = None;
                node.hand_over(&replica).await;
            },
            // Others are dropped: who waits hears that this node doesn't lead.
            Some(note) = notes.recv() => if let Note::Job(job) = note {
                job.finish(Err(declined(now)));
            },
            job = jobs.recv() => match job {
                Some(job) => job.finish(Err(declined(now))),
                None => return,
            },
        }
    }
}

/// The sequencer, and its books.
type AtDesk = (Arc<Mutex<Ledger>>, Sequencing);

/// Numbers that are used once in a term. A leader that begins anew in its term
/// counts on: the sequencer refuses a session that isn't newer (rule 4), and a
/// lease is known by its birth (rule 13).
#[derive(Clone, Copy, Default)]
struct Counted {
    sessions: u64,
    births: u64,
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

/// Evaluated requests that become one entry.
struct Batch {
    first: Ticket,
    items: Vec<Item>,
    /// The root entry that it was evaluated after.
    root: LogIndex,
    /// Which question it waits for.
    ask: Option<u64>,
    /// What that question reports as applied.
    reports: Revision,
    /// The leases that it names.
    leases: Vec<LeaseName>,
}

impl Batch {
    /// Whether it is evaluated only when its revision is known.
    fn is_late(&self) -> bool {
        self.items.len() == 1 && self.items[0].effects.is_empty()
    }
}

struct Item {
    job: Job,
    answer: Answer,
    effects: Effects,
    /// What is done with it besides.
    then: Vec<Step>,
}

/// An entry that was proposed.
struct Flight {
    id: u64,
    /// Revisions that were granted for it, if any were.
    first: Revision,
    last: Revision,
    freight: Freight,
}

/// What an entry is about.
enum Freight {
    /// Requests, up to this one.
    Writes(Ticket),
    /// A compaction floor.
    Floor,
    Prepare(TxnId),
    /// A revision that turned out to be void.
    Reach,
    Decisions(Vec<Decision>),
    Leases,
    /// The group becomes smaller.
    Split(Splitting),
    /// A split takes too long: it will not happen.
    Abandon(GroupId),
    /// What it was split off may go.
    Shed,
    /// Something about splits, in the root group.
    Noted,
    Members,
    /// An entry at which replicas are compared.
    Compare,
}

impl Flight {
    /// Whether it uses revisions of its own.
    fn is_granted(&self) -> bool {
        matches!(
            self.freight,
            Freight::Writes(_) | Freight::Prepare(_) | Freight::Reach
        )
    }
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
    /// A round after signs of life of leases came.
    Alive {
        confirmed: bool,
    },
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
    /// Who waits for each of them.
    unanswered: BTreeMap<u64, propose::Finish>,
    launched: u64,
    /// The newest entry that was applied in this term, with its revision.
    applied: (Revision, LogIndex),
    /// Jobs that can't be evaluated yet.
    held: VecDeque<Job>,
    compactions: Vec<Job>,
    compacting: bool,
    waiting: Vec<Waiting>,
    latches: Latches,
    txns: Txns,
    lessor: Lessor,
    splits: SplitsHere,
    /// Changes of members that are not proposed yet, and whether one is.
    member_jobs: Vec<Job>,
    changing_members: bool,
    /// When replicas are compared next, and the entry of the last time.
    compare_at: Instant,
    compared: LogIndex,
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

/// The first bounds of a store, of which nothing is split off.
fn bounds(keys: KeyRange) -> [Step; 2] {
    [Step::Bounds { keys }, Step::Shed]
}

impl<'a> Lead<'a> {
    /// Takes up the lead; `None` if it was lost before anything was done. A
    /// sequencer of the same term goes on.
    async fn begin(
        node: &'a Arc<Inner>,
        replica: &'a Arc<Replica>,
        term: Term,
        sequencer: Option<AtDesk>,
        counted: Counted,
    ) -> Option<Self> {
        let (events, happened) = mpsc::unbounded_channel();
        let cluster = node.cluster.borrow().clone();
        let map = match cluster.map {
            Some(map) => map,
            None if replica.id.is_root() => {
                let first = Arc::new(node.first_map());
                let store = replica.group.store();
                let members = node.first_members();
                let mut steps = vec![members_step(&members), map_step(&first)];
                if !first.is_one_group() {
                    // Nothing is granted yet, so the first sequencer counts on.
                    steps.push(ceiling_step(store.last_revision()));
                }
                steps.extend(first.keys_of(replica.id).into_iter().flat_map(bounds));
                propose_and_wait(replica, node.cluster_version(), term, steps).await?;
                first
            }
            None => return None,
        };
        let store = replica.group.store();
        let records = SplitRecord::all(&store).map_err(|error| replica.group.report(&error));
        let records = records.ok()?;
        let abandoned = abandoned(&store).map_err(|error| replica.group.report(&error));
        let abandoned = abandoned.ok()?;
        for record in &records {
            if map.keys_of(record.child).is_none() {
                // The log has a split that the map hasn't: that comes first.
                let mapped = node.map_split(replica.id, record.child);
                let _ = tokio::time::timeout(node.timing.call, mapped).await;
                return None;
            }
        }
        let keys = map.keys_of(replica.id)?;
        let known = store.bounds();
        if known != keys && known != KeyRange::all() {
            // The group was split, and this node's map doesn't say so yet.
            let mut cluster = node.cluster.subscribe();
            let _ = tokio::time::timeout(node.timing.call, cluster.changed()).await;
            return None;
        }
        if known != keys {
            propose_and_wait(replica, node.cluster_version(), term, bounds(keys).into()).await?;
        }
        let store = replica.group.store();
        let source = if map.is_one_group() {
            Source::Own
        } else if replica.id.is_root() {
            let (ledger, sequencing) =
                sequencer.unwrap_or_else(|| Sequencing::begin(node, replica, term));
            Source::Ledger(ledger, sequencing)
        } else {
            Source::Sequencer(Session::after(counted.sessions))
        };
        let mut lead = Self {
            node,
            replica,
            term,
            map,
            source,
            pending: Pending::new(),
            ticket: 0,
            base: store.last_revision(),
            last: store.last_revision(),
            asked: VecDeque::new(),
            flights: VecDeque::new(),
            unanswered: BTreeMap::new(),
            launched: 0,
            applied: (store.last_revision(), replica.applied()),
            held: VecDeque::new(),
            compactions: Vec::new(),
            compacting: false,
            waiting: Vec::new(),
            latches: Latches::default(),
            txns: Txns::default(),
            lessor: Lessor::after(counted.births),
            splits: SplitsHere::of(&records, abandoned),
            member_jobs: Vec::new(),
            changing_members: false,
            compare_at: Instant::now() + node.config.compare_every,
            compared: replica.applied(),
            grants: Vec::new(),
            draining: false,
            resting: false,
            leaving: false,
            calls: FuturesUnordered::new(),
            events,
            happened: Some(happened),
        };
        lead.take_up_leases();
        match lead.take_over() {
            Ok(()) => Some(lead),
            Err(error) => {
                replica.group.report(&error);
                None
            }
        }
    }

    fn counted(&self) -> Counted {
        let sessions = match &self.source {
            Source::Sequencer(session) => session.number,
            Source::Own | Source::Ledger(..) => 0,
        };
        Counted {
            sessions,
            births: self.lessor.births(),
        }
    }

    /// Leads until it can't; returns the term that is spent.
    async fn run(
        &mut self,
        jobs: &mut mpsc::Receiver<Job>,
        notes: &mut mpsc::UnboundedReceiver<Note>,
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
            self.follow(&now);
            self.advance(&now).await;
            if self.leaving && self.flights.is_empty() {
                break;
            }
            let floor_waits = self.floor_waits() || self.splits.waits_for_marks();
            let due = self.due();
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
                Some(note) = notes.recv() => {
                    self.note(note).await;
                    while let Ok(note) = notes.try_recv() {
                        self.note(note).await;
                    }
                },
                changed = cluster.changed() => if changed.is_err() {
                    break;
                },
                () = sleep_until(due) => {},
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

    /// Takes note of the map: one that changes this group's keys, or makes it
    /// one of many, is for a leader that begins anew.
    fn follow(&mut self, cluster: &Cluster) {
        self.follow_splits(cluster);
        let Some(map) = &cluster.map else {
            return;
        };
        if map.version == self.map.version {
            return;
        }
        let id = self.replica.id;
        // (A split's own entry makes the map, where the root group is split.)
        let same = map.keys_of(id) == self.map.keys_of(id)
            && map.is_one_group() == self.map.is_one_group();
        self.leaving |= !same;
        if same {
            self.map = Arc::clone(map);
        }
    }

    /// Whether this group has all of these keys.
    fn covers(&self, keys: &KeyRange) -> bool {
        self.map.has(self.replica.id, keys)
    }

    async fn note(&mut self, note: Note) {
        match note {
            Note::Barrier(barrier) => self.wait_for(barrier),
            Note::Job(job) => match &job.work {
                Work::Lease(_) => self.lease_work(job),
                Work::Split { .. } | Work::MapSplit { .. } | Work::CancelSplit { .. } => {
                    self.split_work(job);
                }
                Work::Member(_) => self.member_work(job),
                Work::Count { .. } => self.count(job),
                Work::Transfer { to } => {
                    let (node, group, to) = (Arc::clone(self.node), self.replica.id, *to);
                    self.node.scope.spawn(async move {
                        node.transfer(group, to).await;
                        job.finish(Ok(Done {
                            answer: Answered::Done,
                            index: LogIndex(0),
                        }));
                    });
                }
                _ => self.txn_work(job),
            },
            Note::TxnGrant { grant, reply } => {
                let heard: Heard = self.is_current(grant.stamp);
                reply.send(heard.encode());
                if heard {
                    self.take_grant(grant.place, Granted::Txn(grant)).await;
                }
            }
            Note::RootTxn { ask, reply } => self.root_txn(ask, reply).await,
            Note::Split(splitting) => self.freeze(splitting),
            Note::Found { txn, fate } => self.found(txn, fate),
            Note::Revoked { lease, revision } => self.revoked(lease, revision),
        }
    }

    /// When something is to be looked at again.
    fn due(&self) -> Option<Instant> {
        // Put off until all flights have ended: looking at it before then, again
        // and again, would help nobody.
        let put_off = self.draining || self.leaving;
        let busy = self.applied.1 > self.compared;
        let begun = [
            self.lessor.due(),
            self.splits.due(),
            busy.then_some(self.compare_at),
        ];
        let begun = begun.into_iter().flatten().filter(|_| !put_off);
        let due = begun.chain(self.txns_due()).min();
        // What is due and could not be done waits for something else.
        due.map(|due| due.max(Instant::now() + TICK))
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
        self.look_after();
        self.take_grants().await;
        self.expire_leases();
        self.hold_latches();
        self.propose_decisions().await;
        self.advance_splits(cluster).await;
        self.change_members(cluster).await;
        self.propose_comparison().await;
        while !self.held.is_empty() && self.may_evaluate() {
            let held = self.held.len();
            self.evaluate().await;
            if self.held.len() == held {
                break;
            }
        }
        // What was evaluated may end leases.
        self.propose_leases().await;
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
        let frozen = self.splits.is_frozen();
        let paused = self.draining || self.leaving || frozen || self.ticket > TICKET_MAX;
        // What comes while a question is on its way gathers for the next one.
        ready && !paused && self.asked.is_empty() && self.flights.len() < IN_FLIGHT_MAX
    }

    /// A quiet group is woken by a quorum round: its followers hear of it.
    async fn wake(&mut self) {
        if self.replica.group.is_quiet() {
            // If it fails, so will the proposals.
            let _ = self.replica.rounds.confirm_in(self.term).await;
        }
    }

    /// Takes note of an event; `false` if the lead is lost.
    async fn on(&mut self, event: Event) -> bool {
        match event {
            Event::Applied { flight, index } => {
                let Some(flight) = self.landed(flight) else {
                    return true;
                };
                self.base = self.base.max(flight.last);
                self.applied = (self.applied.0.max(flight.last), index);
                let id = flight.id;
                match flight.freight {
                    Freight::Writes(through) => self.pending.retire(through),
                    Freight::Floor => self.compacting = false,
                    Freight::Prepare(txn) => self.prepared(txn),
                    Freight::Decisions(decisions) => self.decided(decisions, true),
                    Freight::Split(splitting) => self.split_landed(splitting, true),
                    Freight::Abandon(child) => self.abandon_landed(child, true),
                    Freight::Shed => self.shed_landed(true),
                    Freight::Noted => self.noted(),
                    Freight::Members => self.changing_members = false,
                    Freight::Compare => self.compare(index),
                    Freight::Reach | Freight::Leases => {}
                }
                self.leases_landed(id);
                let resolved = self.resolved();
                if let Source::Ledger(ledger, sequencing) = &self.source {
                    let newest = self.applied.0;
                    ledger.lock().own_applied(newest, resolved, index);
                    sequencing.changed();
                }
            }
            Event::NoEffect { flight } => {
                if let Some(flight) = self.landed(flight) {
                    self.leases_landed(flight.id);
                    match flight.freight {
                        Freight::Decisions(decisions) => self.decided(decisions, false),
                        Freight::Split(splitting) => self.split_landed(splitting, false),
                        Freight::Abandon(child) => self.abandon_landed(child, false),
                        Freight::Shed => self.shed_landed(false),
                        Freight::Noted => self.noted(),
                        Freight::Members => self.changing_members = false,
                        _ => {}
                    }
                }
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
            Event::Alive { confirmed } => self.alive(confirmed),
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
        self.unanswered.remove(&id);
        let at = self.flights.iter().position(|flight| flight.id == id)?;
        self.flights.remove(at)
    }

    /// The revision through which everything is applied and decided.
    fn resolved(&self) -> Revision {
        let undecided = self.replica.group.store().undecided();
        match undecided.first() {
            Some(first) => self.applied.0.min(first.previous()),
            None => self.applied.0,
        }
    }

    /// Puts an entry into the log at which replicas are compared, if it is
    /// time and something has happened since the last.
    async fn propose_comparison(&mut self) {
        let now = Instant::now();
        if self.compare_at > now || self.applied.1 <= self.compared || self.draining {
            return;
        }
        self.compare_at = now + self.node.config.compare_every;
        let flight = Flight {
            id: self.launched,
            first: Revision(0),
            last: Revision(0),
            freight: Freight::Compare,
        };
        let steps = vec![crate::compare::step(self.term)];
        self.launch(flight, steps, |_| ()).await;
    }

    fn compare(&mut self, index: LogIndex) {
        self.compared = index;
        let (node, replica) = (Arc::clone(self.node), Arc::clone(self.replica));
        self.node
            .scope
            .spawn(async move { node.compare(&replica, index).await });
    }

    /// All flights have ended, some without effect: begin again with what is there.
    fn restart(&mut self) {
        for batch in std::mem::take(&mut self.asked) {
            self.held
                .extend(batch.items.into_iter().map(|item| item.job));
        }
        self.look_at_leases_again();
        let store = self.replica.group.store();
        self.draining = false;
        self.compacting = false;
        self.pending = Pending::new();
        self.ticket = 0;
        self.grants.clear();
        self.last = store.last_revision();
        self.base = self.base.max(store.last_revision());
        match &mut self.source {
            Source::Own => {}
            Source::Ledger(ledger, sequencing) => {
                ledger.lock().own_void(&store.undecided());
                sequencing.changed();
            }
            // The sequencer must know that what it granted is void.
            Source::Sequencer(session) => session.with = None,
        }
        // What was granted and not prepared will not be: its latch is held
        // until somebody asks, or its time is over.
        for latch in self.latches.iter_mut() {
            if matches!(latch.state, latches::State::Preparing(_)) {
                latch.state = latches::State::Held;
            }
        }
    }

    /// Nothing more is done here. What was proposed is answered when its fate
    /// is known, or after an election timeout as unknown: a disk that hangs, or
    /// a network that is cut, may keep its fate from this node for long.
    fn end(&mut self, leader: Option<NodeId>) {
        let leader = leader.filter(|leader| *leader != self.node.me);
        let asked = std::mem::take(&mut self.asked);
        let (waiting, latches) = self.latches.end();
        let jobs = asked
            .into_iter()
            .flat_map(|batch| batch.items)
            .map(|item| item.job);
        for job in jobs
            .chain(self.held.drain(..))
            .chain(self.compactions.drain(..))
            .chain(waiting)
            .chain(self.lessor.end())
            .chain(self.splits.end())
            .chain(std::mem::take(&mut self.member_jobs))
        {
            job.finish(Err(Declined::NotLeader(leader)));
        }
        for latch in latches {
            self.end_latch(latch, Declined::NotLeader(leader));
        }
        self.end_txns();
        let unanswered = std::mem::take(&mut self.unanswered);
        if !unanswered.is_empty() {
            let patience = self.node.config.timing.election_min;
            self.node.scope.spawn(async move {
                tokio::time::sleep(patience).await;
                for finish in unanswered.into_values() {
                    finish.finish(Err(Declined::Unknown));
                }
            });
        }
        self.replica.busy.store(true, Ordering::Relaxed);
    }
}

/// Never, if it isn't said when.
async fn sleep_until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

/// Before something that is due is looked at again.
const TICK: Duration = Duration::from_millis(5);

/// Before a lead that can't be used is handed over.
const HAND_OVER_AFTER: Duration = Duration::from_millis(200);

/// Before something that didn't work is tried again.
const RETRY: Duration = Duration::from_millis(20);
