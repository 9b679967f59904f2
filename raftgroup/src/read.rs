//! Reads: linearizable ones at a confirmed point (rule 9), serializable ones
//! at what the replicas here have passed (rule 16).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use pontoon_engine::{
    Answer, EngineError, KeyRange, Pending, Range, RangeAnswer, Reject, Request, Revision, Store,
    evaluate, join, part, range,
};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::error::Failure;
use crate::lead::forbidden;
use crate::map::{Placed, RangeMap, Touches, within};
use crate::message::{Answered, Declined, Done, Message, Outcome, ReadPoint, Work};
use crate::mutation::{Mutation, mutated};
use crate::node::Inner;
use crate::position::{GroupId, LogIndex, Term};
use crate::replica::{Barrier, Note, Replica};
use crate::route::Undone;
use crate::runtime::aside;

/// Those who wait for a read point; one question to the sequencer serves all
/// who came before it.
#[derive(Default)]
pub(crate) struct ReadPoints(Mutex<Gathering>);

#[derive(Default)]
struct Gathering {
    waiting: Vec<oneshot::Sender<Option<ReadPoint>>>,
    running: bool,
}

/// The highest revision that clients of this member were told (rule 16), of
/// each group, also while there is no replica of it here, and of any group.
#[derive(Default)]
pub(crate) struct Answers {
    groups: Mutex<BTreeMap<GroupId, Revision>>,
    highest: AtomicI64,
}

impl Answers {
    /// A client was told of a revision.
    pub(crate) fn note(&self, group: GroupId, revision: Revision) {
        let mut groups = self.groups.lock();
        let last = groups.entry(group).or_default();
        *last = revision.max(*last);
        self.note_any(revision);
    }

    /// A client was told of a revision, though not by an answer from a group.
    pub(crate) fn note_any(&self, revision: Revision) {
        // The answer itself tells others of it, so nobody relies on the order
        // of this and other memory.
        self.highest.fetch_max(revision.0, Ordering::Relaxed);
    }

    pub(crate) fn last(&self, group: GroupId) -> Revision {
        self.groups.lock().get(&group).copied().unwrap_or_default()
    }

    pub(crate) fn highest(&self) -> Revision {
        Revision(self.highest.load(Ordering::Relaxed))
    }

    /// What was told of a group was told of what is split off from it.
    pub(crate) fn split(&self, parent: GroupId, child: GroupId) {
        self.note(child, self.last(parent));
    }
}

/// How soon a read that waits for marks notices that none will come.
const LOOK: Duration = Duration::from_millis(50);

/// Looks for keys. Nobody else waits meanwhile, if there may be many.
fn find(store: &Store, revision: Revision, wanted: &Range) -> Result<RangeAnswer, EngineError> {
    match wanted.is_short() {
        true => range(store, revision, wanted),
        false => aside(|| range(store, revision, wanted)),
    }
}

impl Inner {
    /// A revision that everything acknowledged until now is at or below.
    pub(crate) async fn read_point(self: &Arc<Self>) -> Option<ReadPoint> {
        let (waiter, point) = oneshot::channel();
        let start = {
            let mut gathering = self.read_points.0.lock();
            gathering.waiting.push(waiter);
            !std::mem::replace(&mut gathering.running, true)
        };
        if start {
            let node = Arc::clone(self);
            self.scope
                .spawn(async move { node.ask_for_read_points().await });
        }
        point.await.ok().flatten()
    }

    async fn ask_for_read_points(&self) {
        loop {
            let waiting = {
                let mut gathering = self.read_points.0.lock();
                if gathering.waiting.is_empty() {
                    gathering.running = false;
                    return;
                }
                std::mem::take(&mut gathering.waiting)
            };
            let point = match self.sequencer() {
                Some((epoch, sequencer)) => {
                    let question = Message::ReadPoint { epoch };
                    self.call(sequencer, &question, self.timing.call)
                        .await
                        .unwrap_or(None)
                }
                None => None,
            };
            for waiter in waiting {
                // Nobody waits any more: fine.
                let _ = waiter.send(point);
            }
        }
    }

    /// At the leader of a group: does what changes nothing, on what is there
    /// for good. `None` if it turns out to change something.
    pub(crate) async fn settle(
        self: &Arc<Self>,
        replica: &Arc<Replica>,
        work: &Work,
        many: bool,
    ) -> Option<Outcome> {
        let given = match work {
            Work::Read { at, .. } | Work::LeaseKeys { at, .. } => *at,
            Work::Look { at, .. } => Some(*at),
            _ => None,
        };
        let touches = match work {
            Work::Read { range, .. } => Touches {
                keys: vec![range.keys.clone()],
                ..Touches::default()
            },
            Work::Request(request) | Work::Look { request, .. } => Touches::of(request),
            _ => Touches {
                keys: vec![KeyRange::all()],
                ..Touches::default()
            },
        };
        let point = self.settle_point(replica, given, &touches, many).await;
        let revision = match point {
            Ok(revision) => revision,
            Err(declined) => return Some(Err(declined)),
        };
        // By now this node knows the map that was in force at the point.
        let everywhere = matches!(work, Work::LeaseKeys { .. });
        if !everywhere && !self.still_has(replica, &touches, many) {
            return Some(Err(Declined::Moved));
        }
        let store = replica.group.store();
        let floor = self.floor();
        if revision < floor {
            // Compacted since it was captured: another point will do.
            return Some(Err(match given {
                None => Declined::Again,
                Some(_) => Declined::Reject(Reject::Compacted),
            }));
        }
        let found = match work {
            Work::Read { range: wanted, .. } => {
                if wanted.revision > 0 && wanted.revision < floor.0 {
                    return Some(Err(Declined::Reject(Reject::Compacted)));
                }
                find(&store, revision, wanted).map(Answer::Range)
            }
            Work::LeaseKeys { lease, .. } => {
                let mut keys = Vec::new();
                let found = store.lease_keys(*lease, &mut |key| {
                    keys.push(Bytes::copy_from_slice(key));
                });
                let map = self.cluster.borrow().map.clone();
                let due = map.and_then(|map| map.keys_of(replica.id));
                return Some(match found {
                    Ok(()) if due != Some(store.bounds()) => Err(Declined::Moved),
                    Ok(()) => Ok(Done {
                        answer: Answered::Keys(keys),
                        index: replica.applied(),
                    }),
                    Err(error) => Err(replica.unreadable(&error)),
                });
            }
            Work::Request(request) | Work::Look { request, .. } => {
                // This node knows of every alarm that was acknowledged (rule 15).
                // (Who looks for a transaction heeds them for all of it.)
                if matches!(work, Work::Request(_))
                    && let Some(declined) = forbidden(&self.cluster.borrow().alarms, request)
                {
                    return Some(Err(declined));
                }
                let mut pending = Pending::new();
                pending.raise_floor(floor);
                let leases = |lease| self.leases.alive(lease).is_some();
                match evaluate(
                    &store,
                    &pending,
                    revision,
                    revision.next(),
                    &leases,
                    request,
                ) {
                    Ok(evaluated)
                        if evaluated.effects.is_empty()
                            && !matches!(request, Request::LeaseRevoke(_)) =>
                    {
                        Ok(evaluated.answer)
                    }
                    Ok(_) if matches!(work, Work::Look { .. }) => {
                        return Some(Ok(Done {
                            answer: Answered::Changes,
                            index: replica.applied(),
                        }));
                    }
                    Ok(_) => return None,
                    Err(error) => Err(error),
                }
            }
            _ => return None,
        };
        Some(match found {
            Ok(answer) => Ok(Done {
                answer: Answered::Answer(answer),
                index: replica.applied(),
            }),
            Err(EngineError::Reject(reject)) => Err(Declined::Reject(reject)),
            Err(EngineError::Undecided(_) | EngineError::Ungranted(_)) => Err(Declined::Again),
            Err(error) => {
                replica.group.report(&error);
                Err(Declined::Again)
            }
        })
    }

    /// A revision at which this leader shows what will never change (rule 9).
    /// All of it is of one term: the leader that the point reaches, and the
    /// round.
    pub(crate) async fn settle_point(
        self: &Arc<Self>,
        replica: &Arc<Replica>,
        given: Option<ReadPoint>,
        touches: &Touches,
        many: bool,
    ) -> Result<Revision, Declined> {
        let not_leader = Declined::NotLeader(None);
        if !many {
            // One group: what is committed now is all there is.
            let term = self.leads_in(replica)?;
            let confirmed = replica.rounds.confirm_in(term).await;
            confirmed.map_err(|_| not_leader)?;
            return Ok(replica.group.store().revision());
        }
        let point = match given {
            Some(point) => point,
            None => self.read_point().await.ok_or(Declined::Again)?,
        };
        if !self.root_catches_up(point.root).await {
            return Err(Declined::Again);
        }
        let term = self.leads_in(replica)?;
        let (passed, barrier) = oneshot::channel();
        let _ = replica.notes.send(Note::Barrier(Barrier {
            term,
            revision: point.revision,
            touches: touches.clone(),
            passed,
        }));
        // (a) A round that began after the point was captured.
        let confirmed = replica.rounds.confirm_in(term).await;
        confirmed.map_err(|_| not_leader.clone())?;
        // (b), (c) What was asked for is answered, what is at or below is applied.
        barrier.await.map_err(|_| not_leader)?;
        Ok(point.revision)
    }

    /// The term in which this node leads, as far as it knows; or who leads.
    fn leads_in(&self, replica: &Replica) -> Result<Term, Declined> {
        let now = replica.group.leadership_now();
        match now.leader == Some(self.me) {
            true => Ok(now.term),
            false => Err(Declined::NotLeader(now.leader)),
        }
    }

    /// Whether a group still has these keys, and is still the only one if it
    /// was, as the map and the replica here say. (The replica is ahead of the map
    /// when its range was split.)
    fn still_has(&self, replica: &Replica, touches: &Touches, many: bool) -> bool {
        let bounds = replica.group.store().bounds();
        let cluster = self.cluster.borrow();
        let Some(map) = &cluster.map else {
            return false;
        };
        let mut keys = touches.keys.iter();
        match many {
            true => keys.all(|keys| map.has(replica.id, keys) && within(keys, &bounds)),
            false => map.is_one_group() && keys.all(|keys| within(keys, &bounds)),
        }
    }

    /// The replica of the only group, if there is one group and this node leads it.
    fn led_alone(&self) -> Option<Arc<Replica>> {
        let alone = {
            let cluster = self.cluster.borrow();
            cluster.map.as_ref().is_some_and(|map| map.is_one_group())
        };
        let replica = self.replica(GroupId::ROOT).filter(|_| alone)?;
        (replica.group.leader() == Some(self.me)).then_some(replica)
    }

    pub(crate) fn leads_alone(&self) -> bool {
        self.led_alone().is_some()
    }

    /// Whether this node leads the only group, as a quorum says after the call,
    /// and has applied all that was acknowledged before it.
    pub(crate) async fn confirm_alone(self: &Arc<Self>) -> bool {
        let Some(replica) = self.led_alone() else {
            return false;
        };
        replica.busy.store(true, Ordering::Relaxed);
        let nothing = Touches::default();
        let point = self.settle_point(&replica, None, &nothing, false).await;
        point.is_ok()
    }

    /// A linearizable read for which [`Inner::confirm_alone`] was asked after
    /// it came. `None` if that doesn't do any more.
    pub(crate) fn read_alone(&self, wanted: &Range) -> Option<Result<RangeAnswer, Failure>> {
        let replica = self.led_alone()?;
        let store = replica.group.store();
        let (revision, floor) = (store.revision(), self.floor());
        if wanted.revision > 0 && wanted.revision < floor.0 {
            return Some(Err(Failure::Reject(Reject::Compacted)));
        }
        match range(&store, revision, wanted) {
            Ok(answer) => {
                self.answers.note(replica.id, revision);
                Some(Ok(answer))
            }
            Err(EngineError::Reject(reject)) => Some(Err(reject.into())),
            // The long way tells why.
            Err(_) => None,
        }
    }

    /// A linearizable read, from this node.
    pub(crate) async fn read(
        self: &Arc<Self>,
        wanted: &Range,
        deadline: Instant,
    ) -> Result<RangeAnswer, Failure> {
        loop {
            let map = self.map_known(deadline).await?;
            let parts = map.parts(&wanted.keys);
            let at = match map.is_one_group() {
                true => None,
                false => match self.read_point().await {
                    Some(point) => Some(point),
                    None => {
                        self.pause(deadline).await?;
                        continue;
                    }
                },
            };
            let mut answers = Vec::with_capacity(parts.len());
            let mut again = false;
            for (group, keys) in parts {
                let mut range = part(wanted, &answers);
                range.keys = keys;
                let work = Work::Read { range, at };
                match self.work(group, map.version, work, deadline).await {
                    Ok(done) => match done.answer {
                        Answered::Answer(Answer::Range(answer)) => answers.push(answer),
                        _ => return Err(Failure::TimedOut),
                    },
                    Err(Undone::Moved) => {
                        again = true;
                        self.pause(deadline).await?;
                        break;
                    }
                    // The point itself was compacted, not what was asked for.
                    Err(Undone::Failed(Failure::Reject(Reject::Compacted)))
                        if wanted.revision <= 0 || wanted.revision >= self.floor().0 =>
                    {
                        again = true;
                        break;
                    }
                    Err(Undone::Failed(failure)) => return Err(failure),
                }
            }
            if !again {
                return Ok(join(wanted, answers));
            }
        }
    }

    /// A read of what this member has, if it has all of it.
    pub(crate) async fn read_serializable(
        self: &Arc<Self>,
        wanted: &Range,
        deadline: Instant,
    ) -> Result<RangeAnswer, Failure> {
        let mut progress = self.progress.subscribe();
        // A member that lags behind what it has told waits a little for itself.
        let patience = (Instant::now() + self.timing.call).min(deadline);
        // What was told of other groups before this read, too, as long as marks
        // can be expected to come.
        let told = match mutated(Mutation::SerializablePerGroup) {
            true => Revision(0),
            false => self.answers.highest(),
        };
        loop {
            progress.mark_unchanged();
            let map = self.map_known(deadline).await?;
            let parts = map.parts(&wanted.keys);
            let mut places = parts.iter().map(|(group, _)| map.placed(*group));
            let here = |placed: &Placed| placed.members.contains(&self.me);
            if !places.all(|placed| placed.is_some_and(here)) {
                // Nothing to wait for: it is not kept here.
                return Box::pin(self.read(wanted, deadline)).await;
            }
            let hears = self.hears_sequencer() && Instant::now() < patience;
            let at_least = if hears { told } else { Revision(0) };
            match self.read_here(wanted, &map, at_least)? {
                Some(answer) => return Ok(answer),
                None if Instant::now() >= patience => {
                    return Box::pin(self.read(wanted, deadline)).await;
                }
                None => {
                    let wait = match hears {
                        true => patience.min(Instant::now() + LOOK),
                        false => patience,
                    };
                    // It looks again either way.
                    let _ = tokio::time::timeout_at(wait, progress.changed()).await;
                }
            }
        }
    }

    /// Whether marks can be expected: somebody sequences, and is heard.
    fn hears_sequencer(&self) -> bool {
        self.sequencer()
            .is_some_and(|(_, node)| node == self.me || self.link.is_alive(node))
    }

    /// Rule 16; `None` if this member must wait or ask others, also if it would
    /// answer below `at_least`.
    fn read_here(
        &self,
        wanted: &Range,
        map: &RangeMap,
        at_least: Revision,
    ) -> Result<Option<RangeAnswer>, Failure> {
        let parts = map.parts(&wanted.keys);
        let mut replicas = Vec::with_capacity(parts.len());
        for (group, _) in &parts {
            match self.replica(*group) {
                Some(replica) => replicas.push(replica),
                None => return Ok(None),
            }
        }
        let passed = replicas.iter().map(|replica| self.passed(replica)).min();
        let revision = passed.unwrap_or_default();
        if !self.covers(map.version, &parts, &replicas) {
            return Ok(None);
        }
        let floor = self.floor();
        let behind = replicas.iter().any(|replica| {
            revision < self.answers.last(replica.id) || revision < replica.group.store().floor()
        });
        if behind || revision < Revision::FIRST.max(at_least) {
            return Ok(None);
        }
        if wanted.revision > 0 && wanted.revision < floor.0 {
            return Err(Failure::Reject(Reject::Compacted));
        }
        let mut answers = Vec::with_capacity(parts.len());
        for (replica, (_, keys)) in replicas.iter().zip(&parts) {
            let mut asked = part(wanted, &answers);
            asked.keys = keys.clone();
            match find(&replica.group.store(), revision, &asked) {
                Ok(answer) => answers.push(answer),
                Err(EngineError::Reject(reject)) => return Err(reject.into()),
                Err(EngineError::Undecided(_)) => return Ok(None),
                Err(error) => {
                    replica.group.report(&error);
                    return Err(Failure::Stopped);
                }
            }
        }
        for replica in &replicas {
            self.answers.note(replica.id, revision);
        }
        Ok(Some(join(wanted, answers)))
    }

    /// Whether the parts are still those of the map, and the replicas' own.
    /// Asked after what they have passed was taken, it says that this was
    /// about all of the keys (a range may be split meanwhile).
    pub(crate) fn covers(
        &self,
        version: u64,
        parts: &[(GroupId, KeyRange)],
        replicas: &[Arc<Replica>],
    ) -> bool {
        let mut pairs = replicas.iter().zip(parts);
        self.map_version() == Some(version)
            && pairs.all(|(replica, (_, keys))| within(keys, &replica.group.store().bounds()))
    }

    /// What a replica here shows for good: what was closed and it has reached,
    /// and at least what it has itself, since entries come in the order of
    /// their revisions (rule 6).
    pub(crate) fn passed(&self, replica: &Replica) -> Revision {
        let store = replica.group.store();
        let own = match store.undecided().first() {
            Some(undecided) => undecided.previous().min(store.revision()),
            None => store.revision(),
        };
        let root: LogIndex = self.root_applied();
        let told = self.told.lock().passed(replica.id, replica.applied(), root);
        match store.undecided().first() {
            Some(undecided) => told.min(undecided.previous()).max(own),
            None => told.max(own),
        }
    }
}
