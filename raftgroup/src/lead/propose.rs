//! From batches to entries of the log.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use pontoon_engine::{Revision, Step, Ticket};
use tokio::sync::oneshot;

use super::{Batch, Event, Flight, Freight, Lead};
use crate::command::{Command, Kind};
use crate::format::FormatVersion;
use crate::message::{Answered, Declined, Done};
use crate::mutation::{Mutation, mutated};
use crate::position::{LogIndex, Term};
use crate::raft::Proposed;
use crate::replica::Replica;

/// Answers those who wait for an entry, once.
#[derive(Clone)]
pub(super) struct Finish(Arc<Mutex<Option<Answer>>>);

type Answer = Box<dyn FnOnce(Result<LogIndex, Declined>) + Send>;

impl Finish {
    fn new(answer: impl FnOnce(Result<LogIndex, Declined>) + Send + 'static) -> Self {
        Self(Arc::new(Mutex::new(Some(Box::new(answer)))))
    }

    /// Tells the outcome, unless one was told.
    pub(super) fn finish(&self, outcome: Result<LogIndex, Declined>) {
        let answer = self.0.lock().take();
        if let Some(answer) = answer {
            answer(outcome);
        }
    }
}

impl Lead<'_> {
    /// Makes one entry of a batch that has its revisions.
    pub(super) async fn propose(&mut self, batch: Batch, first: Revision) {
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
            steps.extend(item.then);
            waiting.push((item.job.waiter, item.answer));
        }
        // Also without a write: the group has come this far.
        if steps.is_empty() {
            steps.push(Step::Reach { revision: last });
        }
        let writes = &self.replica.writes;
        writes.fetch_add(count as u64, Ordering::Relaxed);
        steps.extend(self.forget_steps());
        let flight = Flight {
            id: self.launched,
            first,
            last,
            freight: Freight::Writes(Ticket(batch.first.0 + count as u32 - 1)),
        };
        self.launch(flight, steps, move |outcome: Result<LogIndex, Declined>| {
            for (waiter, answer) in waiting {
                waiter.tell(match &outcome {
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

    pub(super) async fn launch(
        &mut self,
        flight: Flight,
        steps: Vec<Step>,
        finish: impl FnOnce(Result<LogIndex, Declined>) + Send + 'static,
    ) {
        let version = match mutated(Mutation::KindBeforeAllKnow) {
            true => self.node.config.newest_format,
            false => self.node.cluster_version(),
        };
        let command = Command {
            kind: version.into(),
            term: self.term,
            base: Some(self.last),
            steps,
        };
        let command = command.to_proposal(version);
        self.last = self.last.max(flight.last);
        self.launched += 1;
        let id = flight.id;
        self.flights.push_back(flight);
        let flight = id;
        let finish = Finish::new(finish);
        self.unanswered.insert(flight, finish.clone());
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
            finish.finish(outcome);
            // The leader is gone: fine.
            let _ = events.send(event);
        });
        let group = &self.replica.group;
        group.propose(self.term, command, done).await;
    }
}

pub(crate) async fn propose_and_wait(
    replica: &Replica,
    version: FormatVersion,
    term: Term,
    steps: Vec<Step>,
) -> Option<()> {
    let command = Command {
        kind: Kind::Steps,
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
        .propose(term, command.to_proposal(version), done)
        .await;
    matches!(proposed.await, Ok(Proposed::Applied(_))).then_some(())
}
