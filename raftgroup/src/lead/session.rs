//! The leader of a group and the sequencer (rules 4, 5 and 7).

use std::collections::BTreeMap;
use std::sync::Arc;

use pontoon_engine::Revision;
use tokio::time::Instant;

use super::{Event, Granted, Lead, RETRY, Source};
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
    /// The place of the grant that is taken next, those that came before
    /// their turn, and since when one is missing.
    pub(super) next_place: u64,
    pub(super) early: BTreeMap<u64, Granted>,
    pub(super) hole_since: Option<Instant>,
}

impl Session {
    /// The one after session `number` of this term.
    pub(super) fn after(number: u64) -> Self {
        Self {
            number,
            ..Self::default()
        }
    }
}

impl Lead<'_> {
    /// The revisions that are on their way, or undecided, lowest first.
    fn written(&self) -> Vec<(Revision, Revision)> {
        let flights = self.flights.iter().filter(|flight| flight.is_granted());
        let flights = flights.map(|flight| (flight.first, flight.last));
        let undecided = self.replica.group.store().undecided();
        let undecided = undecided.into_iter().map(|revision| (revision, revision));
        let mut written: Vec<_> = flights.chain(undecided).collect();
        written.sort_unstable();
        written.dedup();
        written
    }

    /// Whether this is said to the session that is open now (rule 5).
    pub(super) fn is_current(&self, stamp: Stamp) -> bool {
        let Source::Sequencer(session) = &self.source else {
            return false;
        };
        let with = session.with.map(|(epoch, _)| epoch);
        stamp.group == self.replica.id
            && with == Some(stamp.epoch)
            && (stamp.term, stamp.session) == (self.term, session.number)
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
        let (node, replica, term) = (Arc::clone(self.node), Arc::clone(self.replica), self.term);
        self.calls.push(Box::pin(async move {
            let (epoch, sequencer) = node.sequencer_known().await;
            // Rule 4: this round begins after the epoch was learned.
            let confirmed = replica.rounds.confirm_in(term).await.is_ok();
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
        if confirmed {
            self.doubt_grants();
        }
        let term = self.term;
        let pending = self.written();
        let resolved = self.resolved();
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
        session.reported = resolved;
        session.next_place = 1;
        session.early.clear();
        session.hole_since = None;
        // What was asked before is void with the old session (rule 5).
        for batch in &mut self.asked {
            batch.ask = None;
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
        let applied = (self.resolved(), self.applied.1);
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
            batch.reports = applied.0;
            let message = Message::Ask(Ask {
                stamp: Stamp {
                    epoch,
                    group: self.replica.id,
                    term: self.term,
                    session: session.number,
                },
                count: batch.items.len() as u64,
                root: batch.root,
                leases: batch.leases.clone(),
                applied,
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
            Grant::Made { first, place, root } => {
                if let Source::Sequencer(session) = &mut self.source {
                    session.reported = session.reported.max(batch.reports);
                }
                let granted = Granted::Batch { ask, first, root };
                self.take_grant(place, granted).await;
            }
            Grant::Stale { root } => {
                // If it doesn't, it will be refused again.
                self.node.root_catches_up(root).await;
                self.evaluate_again();
            }
            Grant::Ignored => self.lose_session(),
        }
    }

    /// A batch has its revisions, and all that was granted before it is taken.
    pub(super) async fn take_batch(&mut self, ask: u64, first: Revision) {
        let at = self.asked.iter().position(|batch| batch.ask == Some(ask));
        let Some(mut batch) = at.and_then(|at| self.asked.remove(at)) else {
            return;
        };
        if batch.is_late() {
            let store = self.replica.group.store();
            self.evaluate_late(&mut batch, first, &store);
        } else {
            self.grant(&mut batch, first);
        }
        self.propose(batch, first).await;
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
        let (revision, index) = (self.resolved(), self.applied.1);
        let Source::Sequencer(session) = &mut self.source else {
            return;
        };
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
