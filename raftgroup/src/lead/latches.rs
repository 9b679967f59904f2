//! Latches: which keys a transaction over several groups holds here (rule 12).
//!
//! Kept true:
//! - Who came first goes first: a latch waits for the overlapping latches and
//!   writes before it, a write for the latches before it. So nobody starves,
//!   and since latches are taken in the order of the groups, nobody waits in
//!   a circle.
//! - A latch is held only when no write to its keys is on its way, and nothing
//!   that was evaluated waits for its revision; one of a lease only when no
//!   transaction before it may still hang keys on it.

use bytes::Bytes;
use pontoon_engine::{Effects, KeyRange, Revision, Step, Txn};
use tokio::time::Instant;

use crate::map::Touches;
use crate::position::GroupId;
use crate::replica::Job;
use crate::txn::TxnId;

pub(super) struct Latch {
    pub(super) txn: TxnId,
    arrival: u64,
    pub(super) keys: Vec<KeyRange>,
    /// Whatever names this lease waits too.
    pub(super) lease: Option<i64>,
    /// The leases that its changes hang keys on, once they are known.
    pub(super) names: Vec<i64>,
    pub(super) state: State,
    /// When it is given up; not once it is prepared.
    pub(super) until: Instant,
    /// Those who wait for what becomes of it.
    pub(super) waiters: Vec<Job>,
}

pub(super) enum State {
    /// Others come first; the job is to be answered when it is held.
    Waiting {
        job: Job,
        probe: Txn,
    },
    Held,
    /// What it will change is known; a grant may be on its way.
    Evaluated {
        effects: Effects,
        then: Vec<Step>,
    },
    /// Its prepare is in the log, or about to be.
    Preparing(Prepared),
    /// Its prepare is applied, and it is undecided.
    Prepared(Prepared),
}

#[derive(Clone)]
pub(super) struct Prepared {
    pub(super) revision: Revision,
    pub(super) participants: Vec<GroupId>,
    pub(super) then: Vec<Step>,
    /// When the others are asked for what became of it.
    pub(super) ask_at: Instant,
    pub(super) asking: bool,
}

#[derive(Default)]
pub(super) struct Latches {
    /// In the order in which they came.
    list: Vec<Latch>,
    /// Jobs that wait for latches, in the order in which they came.
    blocked: Vec<(u64, Touches, Job)>,
    arrivals: u64,
}

impl Latches {
    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Whether some transaction latches this key.
    pub(super) fn has(&self, key: &Bytes) -> bool {
        let mut latched = self.list.iter().flat_map(|latch| &latch.keys);
        latched.any(|keys| keys.contains(key))
    }

    pub(super) fn add(
        &mut self,
        txn: TxnId,
        keys: Vec<KeyRange>,
        lease: Option<i64>,
        state: State,
        until: Instant,
    ) {
        self.arrivals += 1;
        self.list.push(Latch {
            txn,
            arrival: self.arrivals,
            keys,
            lease,
            names: Vec::new(),
            state,
            until,
            waiters: Vec::new(),
        });
    }

    pub(super) fn get(&self, txn: TxnId) -> Option<&Latch> {
        self.list.iter().find(|latch| latch.txn == txn)
    }

    /// Whether there is a latch that nothing was prepared under.
    pub(super) fn is_free_to_go(&self, txn: TxnId) -> bool {
        let state = self.get(txn).map(|latch| &latch.state);
        !matches!(state, None | Some(State::Preparing(_) | State::Prepared(_)))
    }

    pub(super) fn get_mut(&mut self, txn: TxnId) -> Option<&mut Latch> {
        self.list.iter_mut().find(|latch| latch.txn == txn)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Latch> {
        self.list.iter_mut()
    }

    /// Keeps a job back that overlaps a latch; gives it back if none does.
    pub(super) fn block(&mut self, touches: Touches, job: Job) -> Option<Job> {
        if !self.list.iter().any(|latch| latch.overlaps(&touches)) {
            return Some(job);
        }
        self.arrivals += 1;
        self.blocked.push((self.arrivals, touches, job));
        None
    }

    /// The jobs that no latch keeps back any more.
    pub(super) fn unblocked(&mut self) -> Vec<Job> {
        let list = &self.list;
        let is_free = |(arrival, touches, _): &mut (u64, Touches, Job)| {
            !list
                .iter()
                .any(|latch| latch.arrival < *arrival && latch.overlaps(touches))
        };
        let free = self.blocked.extract_if(.., is_free);
        free.map(|(_, _, job)| job).collect()
    }

    /// Waiting latches that nothing before them overlaps, as far as what is
    /// here is concerned.
    pub(super) fn next(&self) -> Vec<TxnId> {
        let free = self.list.iter().filter(|latch| self.is_free(latch));
        free.map(|latch| latch.txn).collect()
    }

    /// Whether it is still one of those.
    pub(super) fn is_next(&self, txn: TxnId) -> bool {
        self.get(txn).is_some_and(|latch| self.is_free(latch))
    }

    fn is_free(&self, latch: &Latch) -> bool {
        // More keys may hang on a lease than when its latch came, so one that
        // came later may hold them.
        let goes_first = |other: &Latch| other.arrival < latch.arrival || !other.is_waiting();
        let mut others = self.list.iter().filter(|other| other.txn != latch.txn);
        let mut blocked = self.blocked.iter();
        latch.is_waiting()
            && !others.any(|other| goes_first(other) && other.meets(latch))
            && !blocked
                .any(|(arrival, touches, _)| *arrival < latch.arrival && latch.overlaps(touches))
    }

    /// Those who wait for what becomes of a transaction that is not prepared.
    pub(super) fn take_waiters(&mut self) -> Vec<Job> {
        let open = self.list.iter_mut().filter(|latch| latch.may_expire());
        open.flat_map(|latch| std::mem::take(&mut latch.waiters))
            .collect()
    }

    pub(super) fn remove(&mut self, txn: TxnId) -> Option<Latch> {
        let at = self.list.iter().position(|latch| latch.txn == txn)?;
        Some(self.list.remove(at))
    }

    /// Those whose time is over.
    pub(super) fn expired(&self, now: Instant) -> Vec<TxnId> {
        let list = self.list.iter();
        let expired = list.filter(|latch| latch.may_expire() && latch.until <= now);
        expired.map(|latch| latch.txn).collect()
    }

    /// When something is to be looked at again.
    pub(super) fn due(&self) -> Option<Instant> {
        let due = self.list.iter().filter_map(|latch| match &latch.state {
            State::Prepared(prepared) => (!prepared.asking).then_some(prepared.ask_at),
            State::Preparing(_) => None,
            _ => Some(latch.until),
        });
        due.min()
    }

    /// The transactions that a read of these keys must wait for: those that
    /// may have a revision already.
    pub(super) fn before_read(&self, touches: &Touches) -> Vec<TxnId> {
        let before = self.list.iter().filter(|latch| {
            !matches!(latch.state, State::Waiting { .. } | State::Held) && latch.overlaps(touches)
        });
        before.map(|latch| latch.txn).collect()
    }

    /// Ends all; returns the jobs that waited in line, and the latches.
    pub(super) fn end(&mut self) -> (Vec<Job>, Vec<Latch>) {
        let jobs = self.blocked.drain(..).map(|(_, _, job)| job);
        (jobs.collect(), std::mem::take(&mut self.list))
    }
}

impl Latch {
    fn is_waiting(&self) -> bool {
        matches!(self.state, State::Waiting { .. })
    }

    /// Whether nothing was prepared under it.
    pub(super) fn may_expire(&self) -> bool {
        !matches!(self.state, State::Preparing(_) | State::Prepared(_))
    }

    fn overlaps(&self, touches: &Touches) -> bool {
        self.lease
            .is_some_and(|lease| touches.leases.contains(&lease))
            || meet(&self.keys, &touches.keys)
    }

    fn meets(&self, other: &Self) -> bool {
        let names = |one: &Self, lease| one.lease == Some(lease) || one.names.contains(&lease);
        self.lease.is_some_and(|lease| names(other, lease))
            || other.lease.is_some_and(|lease| names(self, lease))
            || meet(&self.keys, &other.keys)
    }
}

fn meet(some: &[KeyRange], others: &[KeyRange]) -> bool {
    some.iter()
        .any(|keys| others.iter().any(|other| keys.overlaps(other)))
}

/// Just these keys.
pub(super) fn each(keys: impl IntoIterator<Item = Bytes>) -> Vec<KeyRange> {
    keys.into_iter().map(KeyRange::one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Work;

    fn job() -> Job {
        let revision = Revision(1);
        Job::new(Work::Compact { revision }).0
    }

    fn keys(from: &'static str, to: &'static str) -> Vec<KeyRange> {
        vec![KeyRange::new(from, to)]
    }

    fn touches(key: &'static str) -> Touches {
        Touches {
            keys: vec![KeyRange::one(key)],
            ..Touches::default()
        }
    }

    fn wait(latches: &mut Latches, number: u64, keys: Vec<KeyRange>) -> TxnId {
        let txn = TxnId((0, number));
        let state = State::Waiting {
            job: job(),
            probe: Txn::default(),
        };
        latches.add(txn, keys, None, state, Instant::now());
        txn
    }

    #[test]
    fn rule_12_who_came_first_goes_first() {
        let mut latches = Latches::default();
        let first = wait(&mut latches, 1, keys("a", "c"));
        let apart = wait(&mut latches, 2, keys("m", "n"));
        // A write waits for the first, a third latch for the write.
        assert!(latches.block(touches("b"), job()).is_none());
        assert!(latches.block(touches("x"), job()).is_some());
        assert!(latches.has(&"b".into()) && !latches.has(&"x".into()));
        let third = wait(&mut latches, 3, keys("b", "b1"));
        assert_eq!(latches.next(), [first, apart]);
        assert!(latches.unblocked().is_empty());
        latches.remove(first);
        assert_eq!(latches.next(), [apart]);
        assert_eq!(latches.unblocked().len(), 1);
        assert_eq!(latches.next(), [apart, third]);
    }

    #[test]
    fn rule_13_what_names_a_lease_waits_for_its_latch() {
        let mut latches = Latches::default();
        let txn = TxnId((0, 1));
        let keys = each([Bytes::from_static(b"k")]);
        latches.add(txn, keys, Some(7), State::Held, Instant::now());
        let mut names = touches("other");
        names.leases.push(7);
        assert!(latches.block(names, job()).is_none());
        assert!(latches.block(touches("k"), job()).is_none());
        assert!(latches.block(touches("other"), job()).is_some());
    }

    #[test]
    fn rule_13_a_latch_of_a_lease_waits_for_what_may_hang_keys_on_it() {
        let mut latches = Latches::default();
        let hangs = TxnId((0, 1));
        let until = Instant::now();
        latches.add(hangs, keys("a", "b"), None, State::Held, until);
        latches.iter_mut().for_each(|latch| latch.names.push(7));
        let revokes = wait(&mut latches, 2, keys("c", "d"));
        latches.get_mut(revokes).expect("it waits").lease = Some(7);
        assert!(!latches.is_next(revokes));
        latches.remove(hangs);
        assert_eq!(latches.next(), [revokes]);
        // Another one holds a key that hangs on the lease since.
        let later = TxnId((0, 3));
        latches.add(later, keys("e", "f"), None, State::Held, until);
        latches.get_mut(revokes).expect("it waits").keys = keys("e", "f");
        assert!(!latches.is_next(revokes));
    }

    #[test]
    fn rule_9b_a_read_waits_for_what_may_have_a_revision() {
        let mut latches = Latches::default();
        let (held, evaluated) = (TxnId((0, 1)), TxnId((0, 2)));
        latches.add(held, keys("a", "b"), None, State::Held, Instant::now());
        let state = State::Evaluated {
            effects: Effects::new(),
            then: Vec::new(),
        };
        latches.add(evaluated, keys("c", "d"), None, state, Instant::now());
        assert!(latches.before_read(&touches("a")).is_empty());
        assert_eq!(latches.before_read(&touches("c")), [evaluated]);
        assert!(latches.before_read(&touches("e")).is_empty());
    }
}
