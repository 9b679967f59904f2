//! How long clients wait, and what may hold them up.
//!
//! Kept true: while of each group's voters a quorum is up and well and messages
//! arrive, no request through a member that is up and well waits longer than two
//! election timeouts and a second after the last cause, and no range serves
//! nobody for longer.
//!
//! All causes are noted through this file. They are generous: what could hold
//! a request up counts as if it did.
//!
//! | cause | concerns | lasts |
//! |---|---|---|
//! | messages get lost, because nodes are cut off or by chance | everybody | to the end of the run: the simulated network keeps the connection, which TCP would not, and some calls wait long for an answer that doesn't come |
//! | messages are repeated or slow, and the time that slow ones take to arrive; a disk is slow; a member is starved of processor time; members change | everybody | as long as it does |
//! | of some group's voters no quorum is up and well | everybody: what a transaction over groups has prepared in another group waits for this one, and others wait for that | as long as it does |
//! | a member starts or ends, its disk begins or ceases to fail or to hang, one of its replicas is found damaged or is whole again, a leader hands over, a connection breaks | everybody | an instant |
//! | a member's disk fails or hangs, or one of its replicas is rebuilt | requests through it | until it is well or ends |
//!
//! A member is well if it has none of the last and its disk was never damaged:
//! a rebuilt replica may not have its vote back yet. Splits, leases, compactions
//! and contention are no causes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use pontoon_engine::{Answer, Request};
use pontoon_raftgroup::{Failure, NodeId, Timing};

use crate::cluster::Shape;
use crate::history::{Asked, History, Operation, Outcome};
use crate::seeds::Sim;
use crate::trace::Stamp;

pub(crate) const PROMISE: &str =
    "Nobody waits longer than two election timeouts and a second after the last cause.";

/// How long a request may wait without a cause, by the slowest clock.
pub(crate) fn bound(shape: &Shape) -> Duration {
    2 * election_timeout(shape) + Duration::from_secs(1)
}

/// By the slowest clock.
pub(crate) fn election_timeout(shape: &Shape) -> Duration {
    let slowest = shape.seconds.iter().copied().max().unwrap_or(100);
    Timing::default().election_max * slowest.max(100) / 100
}

/// When clients could be held up.
#[derive(Default)]
pub(crate) struct Causes {
    spans: Vec<Span>,
    /// Members that are not well, with their spans that have not ended.
    unwell: BTreeMap<NodeId, BTreeSet<usize>>,
    without_quorum: Option<usize>,
    /// When the first message may have got lost.
    lossy_since: Option<Duration>,
}

#[derive(Clone, Copy)]
struct Span {
    from: Duration,
    until: Duration,
    /// If it concerns only those who ask this member.
    through: Option<NodeId>,
}

/// What is wrong with a member, until it is well or ends.
#[derive(Clone, Copy)]
pub(crate) struct Illness(usize);

impl Causes {
    fn begin(&mut self, now: Duration, through: Option<NodeId>) -> usize {
        self.spans.push(Span {
            from: now,
            until: Duration::MAX,
            through,
        });
        self.spans.len() - 1
    }

    fn instant(&mut self, now: Duration) {
        let span = self.begin(now, None);
        self.spans[span].until = now;
    }

    fn recover(&mut self, now: Duration, illness: usize) {
        for spans in self.unwell.values_mut() {
            if spans.remove(&illness) {
                self.spans[illness].until = now;
            }
        }
    }

    fn set_quorum(&mut self, now: Duration, there_is: bool) {
        match (there_is, self.without_quorum) {
            (true, Some(span)) => {
                self.spans[span].until = now;
                self.without_quorum = None;
            }
            (false, None) => self.without_quorum = Some(self.begin(now, None)),
            _ => {}
        }
    }

    fn is_well(&self, id: NodeId) -> bool {
        self.unwell.get(&id).is_none_or(BTreeSet::is_empty)
    }

    /// The longest stretch of a time without a cause that concerns those who ask
    /// `node`, or, without one, requests in general.
    fn longest_calm(&self, node: Option<NodeId>, from: Duration, until: Duration) -> Duration {
        let until = self.lossy_since.map_or(until, |lossy| lossy.min(until));
        let mut calm = Duration::ZERO;
        let mut calm_since = from;
        // Spans are in the order in which they began.
        for span in &self.spans {
            let concerns = span.through.is_none() || span.through == node;
            if concerns && span.until >= calm_since && span.from < until {
                calm = calm.max(span.from.saturating_sub(calm_since));
                calm_since = span.until;
            }
        }
        calm.max(until.saturating_sub(calm_since))
    }

    fn was_well(&self, node: NodeId, from: Duration, until: Duration) -> bool {
        let of_node = self.spans.iter().filter(|span| span.through == Some(node));
        let mut at_that_time = of_node.filter(|span| span.until >= from && span.from <= until);
        at_that_time.next().is_none()
    }
}

/// Holds everybody up until it is dropped, and a little longer.
pub(crate) struct Disturbance<'a> {
    sim: &'a Sim,
    span: usize,
    lag: Duration,
}

impl Drop for Disturbance<'_> {
    fn drop(&mut self) {
        let now = self.sim.trace.now();
        let mut history = self.sim.history.borrow_mut();
        history.causes.spans[self.span].until = now + self.lag;
    }
}

impl Sim {
    /// Something has happened that could hold anybody up.
    pub(crate) fn cause(&self) {
        let now = self.trace.now();
        let there_is_quorum = self.has_quorums();
        let causes = &mut self.history.borrow_mut().causes;
        causes.instant(now);
        causes.set_quorum(now, there_is_quorum);
    }

    /// From now on everybody may be held up, and for `lag` after the end.
    pub(crate) fn disturb(&self, lag: Duration) -> Disturbance<'_> {
        let now = self.trace.now();
        let span = self.history.borrow_mut().causes.begin(now, None);
        Disturbance {
            sim: self,
            span,
            lag,
        }
    }

    /// From now on messages get lost.
    pub(crate) fn lose_messages(&self) {
        let now = self.trace.now();
        let causes = &mut self.history.borrow_mut().causes;
        causes.lossy_since.get_or_insert(now);
    }

    /// A member is not well from now on.
    pub(crate) fn falls_ill(&self, id: NodeId) -> Illness {
        let now = self.trace.now();
        let illness = {
            let causes = &mut self.history.borrow_mut().causes;
            let span = causes.begin(now, Some(id));
            causes.unwell.entry(id).or_default().insert(span);
            Illness(span)
        };
        self.cause();
        illness
    }

    pub(crate) fn recovers(&self, illness: Illness) {
        let now = self.trace.now();
        self.history.borrow_mut().causes.recover(now, illness.0);
        self.cause();
    }

    /// Whatever was wrong with a member, it is not any more.
    pub(crate) fn is_well_again(&self, id: NodeId) {
        let unwell = self.history.borrow_mut().causes.unwell.remove(&id);
        let now = self.trace.now();
        for illness in unwell.into_iter().flatten() {
            self.history.borrow_mut().causes.spans[illness].until = now;
        }
        self.cause();
    }

    /// Whether of each group's voters a quorum is up and well. (Where a group is
    /// on three of five nodes, a quorum of the nodes is not enough.)
    fn has_quorums(&self) -> bool {
        let causes = &self.history.borrow().causes;
        let is_well = |id: &NodeId| {
            self.cluster.is_running(*id)
                && causes.is_well(*id)
                && !self.damaged.borrow().contains(id)
        };
        let has_quorum = |voters: &[NodeId]| {
            let well = voters.iter().filter(|id| is_well(id));
            2 * well.count() > voters.len()
        };
        match self.cluster.map() {
            Some(map) => map.ranges().all(|(placed, _)| has_quorum(&placed.voters)),
            None => has_quorum(&self.cluster.shape.ids().collect::<Vec<_>>()),
        }
    }
}

/// Everything that was asked, except to split a range: that waits for copies.
fn waited(history: &History) -> impl Iterator<Item = &Operation> {
    let asked = history.operations.iter();
    asked.filter(|operation| {
        operation.until != Duration::MAX && !matches!(operation.asked, Asked::Split(_))
    })
}

pub(crate) fn check(history: &History, shape: &Shape) -> Result<(), String> {
    let (causes, bound) = (&history.causes, bound(shape));
    for operation in waited(history) {
        let Operation {
            node, at, until, ..
        } = *operation;
        let calm = causes.longest_calm(Some(node), at, until);
        if calm > bound {
            let until = Stamp(until);
            return Err(format!(
                "{calm:?} without a cause, until {until}:\n{operation}"
            ));
        }
    }
    serves(history, shape, bound)
}

/// Whether every range served somebody again in time. Those who are told soon
/// that nobody leads it don't wait, but aren't served either.
fn serves(history: &History, shape: &Shape, bound: Duration) -> Result<(), String> {
    let regions = history.regions(shape);
    let mut of_regions: BTreeMap<_, Vec<&Operation>> = BTreeMap::new();
    for operation in waited(history).filter(|operation| !operation.is_serializable()) {
        let Some(request) = operation.asked.request() else {
            continue;
        };
        let mut groups = regions.groups_of(&request).into_iter();
        if let (Some(group), None) = (groups.next(), groups.next()) {
            of_regions.entry(group).or_default().push(operation);
        }
    }
    let causes = &history.causes;
    for operations in of_regions.values_mut() {
        operations.sort_by_key(|operation| operation.until);
        let mut served = Duration::ZERO;
        let mut unserved_since = None;
        for operation in operations {
            let Operation {
                node, at, until, ..
            } = **operation;
            let is_unserved = match &operation.outcome {
                Outcome::Failed(Failure::Reject(_)) => false,
                Outcome::Failed(_) | Outcome::Unknown(_) => true,
                _ => false,
            };
            if !is_unserved {
                (served, unserved_since) = (until, None);
            } else if causes.was_well(node, at, until) {
                let since = *unserved_since.get_or_insert(at.max(served));
                let calm = causes.longest_calm(None, since, until);
                if calm > bound {
                    let since = Stamp(since);
                    return Err(format!(
                        "nobody was served since {since}, {calm:?} of that without a cause:\n{operation}"
                    ));
                }
            }
        }
    }
    Ok(())
}

/// The longest waits by kind, and how often clients tried in vain at most.
pub(crate) fn longest(history: &History, shape: &Shape) -> BTreeMap<&'static str, u64> {
    let regions = history.regions(shape);
    let mut longest = BTreeMap::new();
    let mut note = |what, value: u64| {
        let known = longest.entry(what).or_insert(0);
        *known = value.max(*known);
    };
    // Of each client, comparisons that failed since the last that held.
    let mut in_vain: BTreeMap<u64, u64> = BTreeMap::new();
    for operation in waited(history) {
        let Operation {
            node, at, until, ..
        } = *operation;
        let waited = (until - at).as_millis() as u64;
        let calm = history.causes.longest_calm(Some(node), at, until);
        let calm = calm.as_millis() as u64;
        let Some(request) = operation.asked.request() else {
            note("longest wait, ms: leases and compactions", waited);
            note(
                "longest wait without a cause, ms: leases and compactions",
                calm,
            );
            continue;
        };
        let several = regions.groups_of(&request).len() > 1;
        let reads = matches!(request, Request::Range(_));
        let (what, without_cause) = match (&operation.asked, reads, several) {
            (Asked::Serializable(_), ..) => (
                "longest wait, ms: serializable read",
                "longest wait without a cause, ms: serializable read",
            ),
            (_, true, false) => (
                "longest wait, ms: read",
                "longest wait without a cause, ms: read",
            ),
            (_, true, true) => (
                "longest wait, ms: read over groups",
                "longest wait without a cause, ms: read over groups",
            ),
            (_, false, false) => (
                "longest wait, ms: write",
                "longest wait without a cause, ms: write",
            ),
            (_, false, true) => (
                "longest wait, ms: write over groups",
                "longest wait without a cause, ms: write over groups",
            ),
        };
        note(what, waited);
        note(without_cause, calm);
        if several && operation.at >= history.healed {
            note("longest wait, ms: over groups, after the faults", waited);
        }
        let (Request::Txn(_), true) = (&request, several) else {
            continue;
        };
        let tries = in_vain.entry(operation.client).or_default();
        match &operation.outcome {
            Outcome::Answer(Answer::Txn(answer)) if answer.succeeded => *tries = 0,
            _ => *tries += 1,
        }
        note("most in a row: txns over groups in vain", *tries);
    }
    longest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    /// From 10 to 12 everybody is held up, from 20 to 30 who asks node 1,
    /// something happens at 25, and messages are lost from 50 on.
    fn causes() -> Causes {
        let mut causes = Causes::default();
        let span = causes.begin(secs(10), None);
        causes.spans[span].until = secs(12);
        let ill = causes.begin(secs(20), Some(NodeId(1)));
        causes.unwell.entry(NodeId(1)).or_default().insert(ill);
        causes.instant(secs(25));
        causes.recover(secs(30), ill);
        causes.lossy_since = Some(secs(50));
        causes
    }

    #[test]
    fn what_holds_a_request_up_is_taken_off_its_wait() {
        let causes = causes();
        let calm = |node, from, until| {
            let calm = causes.longest_calm(Some(NodeId(node)), secs(from), secs(until));
            calm.as_secs()
        };
        assert_eq!(calm(2, 0, 5), 5);
        assert_eq!(calm(2, 4, 11), 6);
        assert_eq!(calm(2, 8, 16), 4);
        assert_eq!(calm(2, 14, 40), 15);
        assert_eq!(calm(1, 14, 40), 10);
        assert_eq!(calm(1, 21, 29), 0);
        assert_eq!(calm(2, 25, 29), 4);
        assert_eq!(calm(2, 47, 90), 3);
        assert_eq!(calm(2, 51, 90), 0);
        assert!(causes.is_well(NodeId(1)) && causes.was_well(NodeId(1), secs(31), secs(40)));
        assert!(!causes.was_well(NodeId(1), secs(28), secs(40)));
    }

    #[test]
    fn without_a_quorum_nobody_is_promised_anything() {
        let mut causes = Causes::default();
        for (at, there_is) in [(5, false), (6, false), (9, true), (9, true)] {
            causes.set_quorum(secs(at), there_is);
        }
        let calm = |from, until| causes.longest_calm(None, secs(from), secs(until));
        assert_eq!(calm(3, 14), secs(5));
        assert_eq!(calm(6, 8), secs(0));
    }
}
