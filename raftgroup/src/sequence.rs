//! The sequencer: a role of the root group's leader.
//!
//! Kept true: a grant or a read point leaves only after a quorum of the root
//! group confirmed, in a round that began after it was made, that this is
//! still the leader of the term in which it was made (rule 3). One round
//! serves all that wait.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use pontoon_engine::Revision;
use tokio::sync::{Notify, mpsc};

use crate::runtime::watched as watch;
use tokio::task::AbortHandle;

use crate::cluster::ceiling_step;
use crate::codec::Wire;
use crate::command::{Command, Kind};
use crate::ledger::{Ask, Asked, Hello, Ledger, LedgerOpen, Resolved, Tally, TxnEntered, TxnPlace};
use crate::link::Reply;
use crate::marks::{GroupMark, Marks};
use crate::message::{Grant, Heard, Message, ReadPoint};
use crate::node::Inner;
use crate::position::{LogIndex, NodeId, Term};
use crate::raft::{NotLeader, Proposed};
use crate::replica::{Note, Replica};
use crate::txn::{TxnAsk, TxnAsked, TxnGrant};

/// A sequencer at work.
#[derive(Clone)]
pub(crate) struct Sequencing(Arc<Desk>);

/// Who sequences here, if anybody does. It doesn't keep it from ending: a
/// leader whose tasks are ended has no time to say so.
#[derive(Default)]
pub(crate) struct Role {
    desk: Mutex<Weak<Desk>>,
    tally: Arc<Tally>,
}

impl Role {
    pub(crate) fn current(&self) -> Option<Sequencing> {
        self.desk.lock().upgrade().map(Sequencing)
    }

    pub(crate) fn tally(&self) -> &Tally {
        &self.tally
    }
}

struct Desk {
    node: Arc<Inner>,
    replica: Arc<Replica>,
    term: Term,
    ledger: Arc<Mutex<Ledger>>,
    questions: mpsc::UnboundedSender<Question>,
    /// Counts what members should hear of.
    news: watch::Sender<u64>,
    /// A ceiling is on its way into the log.
    raising: Mutex<bool>,
    raised: Notify,
    tasks: Mutex<Vec<AbortHandle>>,
}

/// What must be confirmed before it is answered. There are never more than
/// each group's batches in flight and one read point for each node.
enum Question {
    Ask(Ask, Reply),
    ReadPoint(Reply),
    Txn(TxnAsk, Reply),
}

impl Sequencing {
    /// Takes up the role; the leader's own first entry is applied.
    pub(crate) fn begin(
        node: &Arc<Inner>,
        replica: &Arc<Replica>,
        term: Term,
    ) -> (Arc<Mutex<Ledger>>, Self) {
        let cluster = node.cluster.borrow().clone();
        let ledger = Ledger::new(
            term,
            replica.group.store().last_revision(),
            &replica.group.store().undecided(),
            cluster.ceiling,
            cluster.changed,
            replica.applied(),
        );
        let ledger = ledger.counted(Arc::clone(&node.sequencing.tally));
        let ledger = Arc::new(Mutex::new(ledger));
        let (questions, inbox) = mpsc::unbounded_channel();
        let desk = Arc::new(Desk {
            node: Arc::clone(node),
            replica: Arc::clone(replica),
            term,
            ledger: Arc::clone(&ledger),
            questions,
            news: watch::Sender::new(0),
            raising: Mutex::new(false),
            raised: Notify::new(),
            tasks: Mutex::default(),
        });
        let sequencing = Self(desk);
        let tasks = [
            node.scope.spawn(answer(Arc::clone(&sequencing.0), inbox)),
            node.scope.spawn(tell_all(Arc::clone(&sequencing.0))),
        ];
        *sequencing.0.tasks.lock() = tasks.iter().map(|task| task.abort_handle()).collect();
        *node.sequencing.desk.lock() = Arc::downgrade(&sequencing.0);
        (ledger, sequencing)
    }

    /// Gives up the role.
    pub(crate) fn end(&self) {
        let desk = &self.0;
        for task in desk.tasks.lock().drain(..) {
            task.abort();
        }
        let mut current = desk.node.sequencing.desk.lock();
        if current.ptr_eq(&Arc::downgrade(desk)) {
            *current = Weak::new();
        }
    }

    pub(crate) fn open(&self) -> LedgerOpen {
        self.0.ledger.lock().open()
    }

    /// Members should hear of what changed in the ledger.
    pub(crate) fn changed(&self) {
        self.0.news.send_modify(|count| *count += 1);
    }

    pub(crate) fn hello(&self, from: NodeId, hello: &Hello, reply: Reply) {
        let map = self.0.node.cluster.borrow().map.clone();
        let known = map.is_some_and(|map| map.keys_of(hello.stamp.group).is_some());
        let heard: Heard = known && self.0.ledger.lock().hello(from, hello);
        reply.send(heard.encode());
        self.changed();
    }

    pub(crate) fn resolved(&self, resolved: &Resolved, reply: Reply) {
        let heard: Heard = self.0.ledger.lock().resolved(resolved);
        reply.send(heard.encode());
        self.changed();
    }

    pub(crate) fn ask(&self, ask: Ask, reply: Reply) {
        // It has ended: the reply is dropped, and the asker hears so.
        let _ = self.0.questions.send(Question::Ask(ask, reply));
    }

    pub(crate) fn txn(&self, ask: TxnAsk, reply: Reply) {
        if ask.participants.iter().any(|part| part.group.is_root()) {
            // The root group prepares in the step that allocates, so its
            // leader does both.
            let _ = self.0.replica.notes.send(Note::RootTxn { ask, reply });
        } else {
            let _ = self.0.questions.send(Question::Txn(ask, reply));
        }
    }

    /// Enters the grant of a transaction; sends it when it is confirmed.
    pub(crate) fn enter_txn(&self, ask: TxnAsk, reply: Reply) -> Option<Revision> {
        let desk = &self.0;
        match desk.enter_txn(&ask) {
            TxnEntered::Refused | TxnEntered::Wait => {
                reply.send(TxnAsked::Refused.encode());
                let desk = Arc::clone(desk);
                let scope = desk.node.scope.clone();
                scope.spawn(async move { raise_ceiling(&desk).await });
                None
            }
            TxnEntered::Granted(revision, places) => {
                let at_desk = Arc::clone(desk);
                desk.node.scope.spawn(async move {
                    if at_desk.confirm().await.is_ok() {
                        at_desk.send_txn(&ask, revision, &places, reply);
                    }
                });
                Some(revision)
            }
        }
    }

    pub(crate) fn read_point(&self, epoch: Term, reply: Reply) {
        if epoch == self.0.term {
            let _ = self.0.questions.send(Question::ReadPoint(reply));
        } else {
            reply.send(None::<ReadPoint>.encode());
        }
    }
}

impl Desk {
    /// A round of this sequencer's own epoch (rule 3).
    async fn confirm(&self) -> Result<(), NotLeader> {
        let confirmed = self.replica.rounds.confirm_in(self.term).await;
        confirmed.map(|_| ())
    }

    /// The root entry that goes with what the ledger said, asked for
    /// afterwards: a group that was born meanwhile may have been granted
    /// revisions, and who hears of them must know the map that has it (rules 8
    /// and 15). The map is published, and the group announces itself, before
    /// the entry counts as applied.
    fn root(&self) -> LogIndex {
        let changed = self.node.cluster.borrow().changed;
        self.replica.applied().max(changed)
    }

    fn enter_txn(&self, ask: &TxnAsk) -> TxnEntered {
        let changed = self.node.cluster.borrow().changed;
        let alive = self.node.leases.all_alive(&ask.leases);
        let mut ledger = self.ledger.lock();
        ledger.changed(changed);
        ledger.txn(ask, alive)
    }

    /// A read point for those who asked before the last round. What was
    /// committed before it is applied by now, so the point is not below what
    /// any member has shown or acknowledged: the root group's own writes may
    /// be above the ceiling, and the ledger hears late that they are applied.
    fn read_point(&self) -> ReadPoint {
        let revision = {
            let mut ledger = self.ledger.lock();
            ledger.root_has(self.replica.group.store().last_revision());
            ledger.read_point()
        };
        ReadPoint {
            revision,
            root: self.root(),
        }
    }

    /// Puts a confirmed grant into the stream of each participant.
    fn send_txn(
        self: &Arc<Self>,
        ask: &TxnAsk,
        revision: Revision,
        places: &[TxnPlace],
        reply: Reply,
    ) {
        let root = self.root();
        for place in places {
            let group = place.stamp.group;
            let part = ask.participants.iter().find(|part| part.group == group);
            let grant = Message::TxnGrant(TxnGrant {
                stamp: place.stamp,
                place: place.place,
                txn: ask.txn,
                revision,
                places: part.map(|part| part.places.clone()).unwrap_or_default(),
                participants: ask.participants.iter().map(|part| part.group).collect(),
                root,
            });
            let call = self
                .node
                .call::<Heard>(place.node, &grant, self.node.timing.call);
            // One that doesn't hear it finds a hole among its grants, or its
            // latch ends; then it begins a new session.
            self.node.scope.spawn(call);
        }
        let sessions = places
            .iter()
            .map(|place| (place.stamp.group, place.stamp.session));
        reply.send(TxnAsked::Granted(revision, sessions.collect()).encode());
    }
}

/// Answers questions, a round at a time.
async fn answer(desk: Arc<Desk>, mut inbox: mpsc::UnboundedReceiver<Question>) {
    let mut questions = Vec::new();
    let mut asks = VecDeque::new();
    let mut readers = Vec::new();
    let mut txns = Vec::new();
    loop {
        tokio::select! {
            biased;
            count = inbox.recv_many(&mut questions, 4096) => if count == 0 {
                return;
            },
            () = desk.raised.notified() => {},
        }
        for question in questions.drain(..) {
            match question {
                Question::Ask(ask, reply) => asks.push_back((ask, reply)),
                Question::ReadPoint(reply) => readers.push(reply),
                Question::Txn(ask, reply) => match desk.enter_txn(&ask) {
                    TxnEntered::Granted(revision, places) => {
                        txns.push((ask, revision, places, reply));
                    }
                    TxnEntered::Refused | TxnEntered::Wait => {
                        reply.send(TxnAsked::Refused.encode());
                    }
                },
            }
        }
        let changed = desk.node.cluster.borrow().changed;
        let reports = !asks.is_empty();
        let mut granted = Vec::new();
        {
            let mut ledger = desk.ledger.lock();
            ledger.changed(changed);
            while let Some((ask, reply)) = asks.pop_front() {
                let alive = desk.node.leases.all_alive(&ask.leases);
                match ledger.ask(&ask, alive) {
                    Asked::Granted(first, place) => granted.push((first, place, reply)),
                    Asked::Stale => reply.send(Grant::Stale { root: changed }.encode()),
                    Asked::Ignored => reply.send(Grant::Ignored.encode()),
                    Asked::Wait => {
                        asks.push_front((ask, reply));
                        break;
                    }
                }
            }
        }
        let root = desk.root();
        if reports {
            desk.news.send_modify(|count| *count += 1);
        }
        raise_ceiling(&desk).await;
        if granted.is_empty() && readers.is_empty() && txns.is_empty() {
            continue;
        }
        if desk.confirm().await.is_err() {
            // The replies are dropped. What was granted stays outstanding.
            readers.clear();
            txns.clear();
            continue;
        }
        for (first, place, reply) in granted {
            reply.send(Grant::Made { first, place, root }.encode());
        }
        for (ask, revision, places, reply) in txns.drain(..) {
            desk.send_txn(&ask, revision, &places, reply);
        }
        let served = readers.len() as u64;
        let tally = &desk.node.sequencing.tally;
        tally.read_points.fetch_add(served, Relaxed);
        let point = desk.read_point();
        for reply in readers.drain(..) {
            reply.send(Some(point).encode());
        }
    }
}

/// Proposes a higher ceiling when it is time (rule 2).
async fn raise_ceiling(desk: &Arc<Desk>) {
    let Some(ceiling) = desk.ledger.lock().ceiling_wanted() else {
        return;
    };
    if std::mem::replace(&mut *desk.raising.lock(), true) {
        return;
    }
    let version = desk.node.cluster_version();
    let command = Command {
        kind: Kind::Steps,
        term: desk.term,
        base: None,
        steps: vec![ceiling_step(ceiling)],
    };
    let at_desk = Arc::clone(desk);
    let done = Box::new(move |proposed| {
        if let Proposed::Applied(_) = proposed {
            *at_desk.raising.lock() = false;
            at_desk.ledger.lock().ceiling_committed(ceiling);
            at_desk.news.send_modify(|count| *count += 1);
            at_desk.raised.notify_one();
            return;
        }
        // What was refused now would be refused again at once.
        let scope = at_desk.node.scope.clone();
        scope.spawn(async move {
            tokio::time::sleep(RETRY).await;
            *at_desk.raising.lock() = false;
            at_desk.raised.notify_one();
        });
    });
    desk.replica
        .group
        .propose(desk.term, command.to_proposal(version), done)
        .await;
}

/// Before what didn't work is tried again, also telling a member.
const RETRY: Duration = Duration::from_millis(100);

/// Has every member told, also those that come later.
async fn tell_all(desk: Arc<Desk>) {
    let mut cluster = desk.node.cluster.subscribe();
    let mut told: BTreeMap<NodeId, AbortHandle> = BTreeMap::new();
    loop {
        cluster.mark_unchanged();
        let members = desk.node.member_list();
        told.retain(|member, task| {
            let stays = members.contains_key(member);
            if !stays {
                task.abort();
            }
            stays
        });
        for member in members.into_keys() {
            told.entry(member).or_insert_with(|| {
                let task = desk.node.scope.spawn(tell(Arc::clone(&desk), member));
                let task = task.abort_handle();
                desk.tasks.lock().push(task.clone());
                task
            });
        }
        if cluster.changed().await.is_err() {
            return;
        }
    }
}

/// Tells one member how far everything is closed (rule 8): as soon as there
/// is news and it has heard the last.
async fn tell(desk: Arc<Desk>, member: NodeId) {
    let mut news = desk.news.subscribe();
    let mut sequence = 0;
    // In the order of the groups.
    let mut told: Vec<GroupMark> = Vec::new();
    let mut told_open = Revision(0);
    loop {
        news.mark_unchanged();
        let (open, all): (_, Vec<_>) = {
            let ledger = desk.ledger.lock();
            (ledger.read_point(), ledger.marks().collect())
        };
        let root = desk.root();
        let is_told = |mark: &GroupMark| {
            let place = told.binary_search_by_key(&mark.group, |told| told.group);
            sequence > 0 && place.is_ok_and(|place| told[place] == *mark)
        };
        let groups: Vec<_> = all.iter().filter(|mark| !is_told(mark)).copied().collect();
        if sequence > 0 && groups.is_empty() && open == told_open {
            if news.changed().await.is_err() {
                return;
            }
            continue;
        }
        let marks = Message::Marks(Marks {
            epoch: desk.term,
            sequence,
            root,
            open,
            groups,
        });
        let heard: Heard = desk
            .node
            .call(member, &marks, desk.node.timing.call)
            .await
            .unwrap_or(false);
        if heard {
            sequence += 1;
            told = all;
            told_open = open;
        } else {
            // Something may be missing: next time everything is told.
            sequence = 0;
            tokio::time::sleep(RETRY).await;
        }
    }
}
