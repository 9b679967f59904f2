//! Reads that wait for what is below them (rule 9).

use pontoon_engine::Revision;
use tokio::sync::oneshot;

use super::{Lead, Source};
use crate::replica::Barrier;
use crate::txn::TxnId;

/// A read that waits until all that is granted below it is applied.
pub(super) struct Waiting {
    pub(super) revision: Revision,
    /// What was asked until then counts.
    pub(super) asks: u64,
    /// Transactions over several groups that are decided before.
    pub(super) txns: Vec<TxnId>,
    pub(super) passed: oneshot::Sender<()>,
}

impl Lead<'_> {
    /// A barrier of another term is dropped, and its read hears that this node
    /// doesn't lead.
    pub(super) fn wait_for(&mut self, barrier: Barrier) {
        if barrier.term != self.term {
            return;
        }
        let asks = match &self.source {
            Source::Sequencer(session) => session.asks,
            _ => 0,
        };
        self.waiting.push(Waiting {
            revision: barrier.revision,
            asks,
            txns: self.latches.before_read(&barrier.touches),
            passed: barrier.passed,
        });
    }

    /// Lets reads pass that have all they waited for.
    pub(super) fn let_pass(&mut self) {
        let asks = || self.asked.iter().filter_map(|batch| batch.ask);
        let mut granted = self.flights.iter().filter(|flight| flight.first.0 > 0);
        let oldest = granted.next().map(|flight| flight.first);
        let latches = &self.latches;
        let passes = |waiting: &mut Waiting| {
            waiting.txns.retain(|txn| latches.get(*txn).is_some());
            waiting.passes(asks(), oldest)
        };
        for waiting in self.waiting.extract_if(.., passes) {
            self.base = self.base.max(waiting.revision);
            // Nobody waits any more: fine.
            let _ = waiting.passed.send(());
        }
    }
}

impl Waiting {
    /// Whether nothing can come any more that the read should see: of the
    /// questions without an answer none is as old as the read, and the oldest
    /// write that is not applied is above it.
    fn passes(&self, mut unanswered: impl Iterator<Item = u64>, oldest: Option<Revision>) -> bool {
        let answered = unanswered.all(|ask| ask > self.asks);
        answered && self.txns.is_empty() && oldest.is_none_or(|oldest| oldest > self.revision)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(revision: i64, asks: u64) -> Waiting {
        Waiting {
            revision: Revision(revision),
            asks,
            txns: Vec::new(),
            passed: oneshot::channel().0,
        }
    }

    #[test]
    fn rule_9b_a_read_passes_when_all_that_was_asked_before_it_is_answered() {
        let read = waiting(10, 3);
        assert!(read.passes([].into_iter(), None));
        assert!(read.passes([4, 5].into_iter(), None));
        assert!(!read.passes([3, 4].into_iter(), None));
    }

    #[test]
    fn rule_9b_a_read_passes_when_the_transactions_before_it_are_decided() {
        let mut read = waiting(10, 3);
        read.txns.push(TxnId((1, 1)));
        assert!(!read.passes([].into_iter(), None));
        read.txns.clear();
        assert!(read.passes([].into_iter(), None));
    }

    #[test]
    fn rule_9c_a_read_passes_when_all_at_or_below_it_is_applied() {
        let read = waiting(10, 3);
        assert!(read.passes([].into_iter(), Some(Revision(11))));
        assert!(!read.passes([].into_iter(), Some(Revision(10))));
        assert!(!read.passes([].into_iter(), Some(Revision(2))));
    }
}
