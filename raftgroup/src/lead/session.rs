//! The leader of a group and the sequencer (rules 4, 5 and 7).

use std::sync::Arc;

use pontoon_engine::Revision;

use super::{Event, Lead, RETRY, Source};
use crate::ledger::{Ask, Hello, Resolved, Stamp};
use crate::message::{Grant, Heard, Message};
use crate::position::{NodeId, Term};

/// How this leader is known to the sequencer.
#[derive(Default)]
pub(super) struct Session {
    /// Counts announcements in this term.
    pub(super) number: u64,
    /// Who was told, once it has agreed.
    pub(super) with: Option<(Term, NodeId)>,
    /// An announcement is on its way.
    pub(super) calling: bool,
    pub(super) asks: u64,
    pub(super) reported: Revision,
    pub(super) reporting: bool,
}

impl Lead<'_> {
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
    pub(super) fn announce(&mut self) {
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

    pub(super) fn hello(&mut self, epoch: Term, sequencer: NodeId, confirmed: bool) {
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

    pub(super) fn announced(&mut self, epoch: Term, sequencer: NodeId, number: u64, heard: bool) {
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
    pub(super) fn ask(&mut self) {
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
            batch.reports = self.applied.0;
            let message = Message::Ask(Ask {
                stamp: Stamp {
                    epoch,
                    group: self.replica.id,
                    term: self.term,
                    session: session.number,
                },
                count: batch.items.len() as u64,
                root: batch.root,
                applied: self.applied,
            });
            let call = self.node.call(sequencer, &message, self.node.timing.call);
            self.calls.push(Box::pin(async move {
                let granted = call.await.unwrap_or(Grant::Ignored);
                Event::Granted { ask, granted }
            }));
        }
    }

    pub(super) async fn granted(&mut self, ask: u64, granted: Grant) {
        let Some(batch) = self.asked.iter_mut().find(|batch| batch.ask == Some(ask)) else {
            // Of an older session.
            return;
        };
        match granted {
            Grant::Made { first, root } => {
                batch.granted = Some((first, root));
                if let Source::Sequencer(session) = &mut self.source {
                    session.reported = session.reported.max(batch.reports);
                }
            }
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

    /// Reports what is applied, unless there will be a question soon that can
    /// say so too.
    pub(super) fn report(&mut self) {
        let Source::Sequencer(session) = &mut self.source else {
            return;
        };
        let (revision, index) = self.applied;
        let Some((epoch, sequencer)) = session.with else {
            return;
        };
        let busy = !self.asked.is_empty() || !self.flights.is_empty();
        if busy || session.reporting || revision <= session.reported {
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
}
