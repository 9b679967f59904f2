//! Reads that wait for what is below them (rule 9).

use pontoon_engine::Revision;
use tokio::sync::oneshot;

use super::{Lead, Source};
use crate::replica::Barrier;

/// A read that waits until all that is granted below it is applied.
pub(super) struct Waiting {
    pub(super) revision: Revision,
    /// What was asked until then counts.
    pub(super) asks: u64,
    pub(super) passed: oneshot::Sender<()>,
}

impl Lead<'_> {
    pub(super) fn wait_for(&mut self, barrier: Barrier) {
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
    pub(super) fn let_pass(&mut self) {
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
}
