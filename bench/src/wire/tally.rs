//! What is counted while a load runs.
//!
//! Kept true: counting costs a request well below a microsecond, and what is
//! known can be looked at while the load runs on.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;

use super::failure::Failure;
use super::workload::Outcome;

/// Times are told apart up to this, and to three digits.
const NANOS_MAX: u64 = 600_000_000_000;
/// More kinds of errors than this are not told apart.
const KINDS_MAX: usize = 40;

/// Times to so many digits.
#[must_use]
pub fn times(digits: u8) -> Histogram<u64> {
    Histogram::new_with_bounds(1, NANOS_MAX, digits).expect("these bounds are in order")
}

/// What one thread has counted.
pub struct Tally {
    /// By the kind of request.
    pub classes: Vec<Histogram<u64>>,
    /// Failures by the kind of request.
    pub failures: Vec<u64>,
    /// Answered while it was measured, whatever was asked before.
    pub answered_in_time: u64,
    /// Since it was last looked at.
    pub recent: Recent,
    /// How late requests of an open loop were sent although somebody was free.
    pub lag: Histogram<u64>,
    /// Requests of an open loop for which nobody was free when they were due.
    pub late: u64,
    /// From when a put was sent until a watcher had its event.
    pub sent_to_event: Histogram<u64>,
    /// From when a put was acknowledged until then; 0 if the event was first.
    pub ack_to_event: Histogram<u64>,
    /// How long after they were due leases expired that nobody kept alive.
    pub expiry: Histogram<u64>,
    /// Compared with what was no longer true.
    pub conflicts: u64,
    /// Seen by watchers.
    pub events: u64,
    /// Failures by what they say.
    pub errors: BTreeMap<String, u64>,
}

/// What was counted since it was last looked at.
pub struct Recent {
    /// To two digits.
    pub latency: Histogram<u64>,
    /// Failures.
    pub errors: u64,
    /// Events.
    pub events: u64,
}

impl Default for Recent {
    fn default() -> Self {
        Self {
            latency: times(2),
            errors: 0,
            events: 0,
        }
    }
}

impl Recent {
    /// Moves what was counted there to here.
    pub fn take(&mut self, other: &mut Self) {
        self.latency
            .add(&other.latency)
            .expect("all have the same bounds");
        // Clearing would leave its maximum.
        other.latency.reset();
        self.errors += std::mem::take(&mut other.errors);
        self.events += std::mem::take(&mut other.events);
    }
}

impl Tally {
    /// For so many kinds of requests.
    #[must_use]
    pub fn new(classes: usize) -> Self {
        Self {
            classes: (0..classes).map(|_| times(3)).collect(),
            failures: vec![0; classes],
            answered_in_time: 0,
            recent: Recent::default(),
            lag: times(2),
            late: 0,
            sent_to_event: times(3),
            ack_to_event: times(3),
            expiry: times(3),
            conflicts: 0,
            events: 0,
            errors: BTreeMap::new(),
        }
    }

    /// A request was answered, before the end or after it.
    pub fn answered(&mut self, class: usize, outcome: Outcome, took: Duration, in_time: bool) {
        let took = nanos(took);
        self.classes[class].saturating_record(took);
        if in_time {
            self.answered_in_time += 1;
            self.recent.latency.saturating_record(took);
        }
        if outcome == Outcome::Conflict {
            self.conflicts += 1;
        }
    }

    /// A request was answered that was due before it was measured: it tells of
    /// the rate, as one that is answered after the end does not.
    pub fn answered_from_before(&mut self, took: Duration) {
        self.answered_in_time += 1;
        self.recent.latency.saturating_record(nanos(took));
    }

    /// A request of an open loop was sent, so long after it was due; none if
    /// nobody was free for it.
    pub fn sent(&mut self, lag: Option<Duration>) {
        match lag {
            Some(lag) => self.lag.saturating_record(nanos(lag).max(1)),
            None => self.late += 1,
        }
    }

    /// A request failed.
    pub fn failed(&mut self, class: usize, failure: &Failure) {
        self.failures[class] += 1;
        self.add_error(failure.to_string(), 1);
    }

    /// Events came. The first of them took so long since it was sent and since
    /// it was acknowledged, if that is known.
    pub fn events(&mut self, count: u64, sent: Option<Duration>, acked: Option<Duration>) {
        self.events += count;
        self.recent.events += count;
        if let Some(took) = sent {
            self.sent_to_event.saturating_record(nanos(took));
        }
        if let Some(took) = acked {
            self.ack_to_event.saturating_record(nanos(took).max(1));
        }
    }

    /// A watcher saw that a lease has expired, so long after it was due.
    pub fn expired(&mut self, late: Duration) {
        self.expiry.saturating_record(nanos(late).max(1));
    }

    /// Counts an error; with too many kinds, among the others.
    pub fn add_error(&mut self, kind: String, count: u64) {
        let known = self.errors.contains_key(&kind) || self.errors.len() < KINDS_MAX;
        let kind = if known { kind } else { "others".to_owned() };
        *self.errors.entry(kind).or_default() += count;
        self.recent.errors += count;
    }

    /// Adds what another one has counted.
    pub fn add(&mut self, other: &Self) {
        let same = "all have the same bounds";
        for (ours, theirs) in self.classes.iter_mut().zip(&other.classes) {
            ours.add(theirs).expect(same);
        }
        for (ours, theirs) in self.failures.iter_mut().zip(&other.failures) {
            *ours += theirs;
        }
        self.answered_in_time += other.answered_in_time;
        self.lag.add(&other.lag).expect(same);
        self.late += other.late;
        self.sent_to_event.add(&other.sent_to_event).expect(same);
        self.ack_to_event.add(&other.ack_to_event).expect(same);
        self.expiry.add(&other.expiry).expect(same);
        self.conflicts += other.conflicts;
        self.events += other.events;
        for (kind, count) in &other.errors {
            self.add_error(kind.clone(), *count);
        }
    }

    /// Everything that has happened, good or bad.
    #[must_use]
    pub fn activity(&self) -> u64 {
        let answers = self.classes.iter().map(Histogram::len).sum::<u64>();
        answers + self.events + self.errors.values().sum::<u64>()
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_errors_are_bounded() {
        let mut tally = Tally::new(1);
        for number in 0..1000 {
            tally.add_error(format!("error {number}"), 1);
        }
        assert_eq!(tally.errors.len(), KINDS_MAX + 1);
        assert_eq!(tally.activity(), 1000);
    }

    #[test]
    fn what_is_recent_is_seen_once() {
        let mut tally = Tally::new(2);
        tally.answered(1, Outcome::Read, Duration::from_millis(1), true);
        tally.answered(0, Outcome::Read, Duration::from_millis(1), false);
        tally.failed(0, &Failure::Answer("malformed"));
        let mut recent = Recent::default();
        recent.take(&mut tally.recent);
        assert_eq!((recent.latency.len(), recent.errors), (1, 1));
        let mut again = Recent::default();
        again.take(&mut tally.recent);
        assert_eq!((again.latency.len(), again.errors), (0, 0));
        assert_eq!(again.latency.max(), 0);
        assert_eq!((tally.answered_in_time, tally.activity()), (1, 3));
    }
}
