//! Finishing what a coordinator left behind (rule 12).
//!
//! Kept true: only a participant whose own prepare is undecided, and who
//! leads by a round of its term that began after it saw that, makes another
//! one commit a void; nobody forgets before all are known to be decided and
//! the coordinator asks no more.

use std::sync::Arc;

use pontoon_engine::Revision;
use tokio::time::Instant;

use super::{Fate, TxnAnswered, TxnId, TxnRecord, TxnWork};
use crate::message::{Answered, Message, Outcome, Work};
use crate::node::Inner;
use crate::position::{GroupId, Term};
use crate::replica::{Note, Replica};

impl Inner {
    /// Asks all other participants what became of a transaction whose prepare
    /// is undecided here, and tells this group's leader, who leads in `term`.
    pub(crate) async fn finish(
        self: &Arc<Self>,
        replica: &Arc<Replica>,
        term: Term,
        txn: TxnId,
        revision: Revision,
        participants: &[GroupId],
    ) {
        let mut fate = Fate::Unknown;
        if replica.rounds.confirm_in(term).await.is_ok() && is_undecided(replica, txn) {
            fate = Fate::Committed;
            for group in participants.iter().filter(|group| **group != replica.id) {
                let work = TxnWork::Inquire {
                    revision,
                    participants: participants.to_vec(),
                };
                fate = match self.txn_fate(*group, txn, work).await {
                    Fate::Prepared | Fate::Committed => fate,
                    Fate::Void => Fate::Void,
                    Fate::Unknown => Fate::Unknown,
                };
                if fate != Fate::Committed {
                    break;
                }
            }
        }
        // It has ended: whoever leads next asks again.
        let _ = replica.notes.send(Note::Found { txn, fate });
    }

    /// Forgets a decided transaction if nobody needs its record any more.
    pub(crate) async fn tidy(
        self: &Arc<Self>,
        replica: &Arc<Replica>,
        txn: TxnId,
        participants: &[GroupId],
    ) {
        if self.may_be_open(txn).await {
            return;
        }
        for group in participants.iter().filter(|group| **group != replica.id) {
            let work = Work::Txn {
                txn,
                work: TxnWork::Ask,
            };
            let told = fate_of(self.txn_once(*group, work, self.soon()).await);
            if !told.is_some_and(|fate| fate != Fate::Prepared) {
                return;
            }
        }
        let work = Work::Txn {
            txn,
            work: TxnWork::Forget,
        };
        let _ = self.txn_once(replica.id, work, self.soon()).await;
    }

    /// Whether the coordinator of a transaction may still ask for its records.
    async fn may_be_open(self: &Arc<Self>, txn: TxnId) -> bool {
        let coordinator = txn.coordinator();
        if coordinator == self.me {
            return self.is_open(txn);
        }
        // One that is no member any more asks nobody.
        self.addresses().contains_key(&coordinator)
            && self
                .call(coordinator, &Message::IsOpen { txn }, self.timing.call)
                .await
                .unwrap_or(true)
    }

    /// Whether this node coordinates a transaction and awaits its outcome.
    pub(crate) fn is_open(&self, txn: TxnId) -> bool {
        self.open_txns.lock().contains(&txn)
    }

    /// What a group's leader says, or that nobody knows.
    async fn txn_fate(self: &Arc<Self>, group: GroupId, txn: TxnId, work: TxnWork) -> Fate {
        let work = Work::Txn { txn, work };
        let told = fate_of(self.txn_once(group, work, self.soon()).await);
        told.unwrap_or(Fate::Unknown)
    }

    /// When a call that is repeated anyway is given up.
    pub(super) fn soon(&self) -> Instant {
        Instant::now() + self.timing.call
    }
}

/// Whether its prepare is undecided here. If nobody can say, the replica stops.
fn is_undecided(replica: &Replica, txn: TxnId) -> bool {
    match TxnRecord::of(&replica.group.store(), txn) {
        Ok(record) => record.is_some_and(|record| record.fate == Fate::Prepared),
        Err(error) => {
            replica.group.report(&error);
            false
        }
    }
}

/// The fate that an outcome tells; `None` if it tells none.
pub(super) fn fate_of(outcome: Outcome) -> Option<Fate> {
    match outcome.ok()?.answer {
        Answered::Txn(TxnAnswered::Fate(fate)) => Some(fate),
        _ => None,
    }
}
