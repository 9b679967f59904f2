//! Quorum rounds, one for all that wait.
//!
//! Kept true:
//! - A caller is answered by a round that began after it asked.
//! - A round counts only for the term that its caller leads in. A node that
//!   lost its lead and won it again since has forgotten what others did in
//!   between, and its caller's knowledge is older than that.
//! - All that was committed when the round began is applied here before the
//!   caller goes on.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::counters::{Counters, ROUND_SLOW};
use crate::mutation::{Mutation, mutated};
use crate::position::{LogIndex, Term};
use crate::raft::{Confirmed, Group, NotLeader};
use crate::runtime::Scope;

type Waiter = oneshot::Sender<Result<Confirmed, NotLeader>>;

/// The rounds of one group.
pub(crate) struct Rounds {
    group: Arc<Group>,
    scope: Scope,
    counters: Arc<Counters>,
    gathering: Mutex<Gathering>,
}

#[derive(Default)]
struct Gathering {
    waiting: Vec<Waiter>,
    running: bool,
}

impl Rounds {
    pub(crate) fn new(group: Arc<Group>, scope: Scope, counters: Arc<Counters>) -> Arc<Self> {
        Arc::new(Self {
            group,
            scope,
            counters,
            gathering: Mutex::default(),
        })
    }

    /// Returns when a quorum has confirmed, in a round that began after the
    /// call, that this node leads in `term`, and when everything committed
    /// before that round is applied here: it is at or below the index.
    ///
    /// An error if another term is confirmed or the lead is lost. The caller
    /// must then drop what it was about to say: its term may have been over
    /// when it found that out.
    pub(crate) async fn confirm_in(self: &Arc<Self>, term: Term) -> Result<LogIndex, NotLeader> {
        let confirmed = self.next_round().await?;
        if confirmed.term != term && !mutated(Mutation::RoundOfAnyTerm) {
            return Err(NotLeader);
        }
        self.applied_in(term, confirmed.index).await
    }

    /// Waits until `index` is applied, unless the lead in `term` is lost: a
    /// replica that has stopped applies nothing more.
    async fn applied_in(&self, term: Term, index: LogIndex) -> Result<LogIndex, NotLeader> {
        if self.group.applied_index() >= index {
            return Ok(index);
        }
        let mut leadership = self.group.leadership();
        tokio::select! {
            biased;
            () = self.group.wait_applied(index) => Ok(index),
            _ = leadership.wait_for(|now| now.term != term || now.leader.is_none()) => {
                Err(NotLeader)
            }
        }
    }

    /// The next round that begins, whatever its term.
    async fn next_round(self: &Arc<Self>) -> Result<Confirmed, NotLeader> {
        let (waiter, answer) = oneshot::channel();
        let start = {
            let mut gathering = self.gathering.lock();
            gathering.waiting.push(waiter);
            !std::mem::replace(&mut gathering.running, true)
        };
        if start {
            let rounds = Arc::clone(self);
            self.scope.spawn(async move { rounds.run().await });
        }
        answer.await.unwrap_or(Err(NotLeader))
    }

    async fn run(&self) {
        loop {
            let waiting = {
                let mut gathering = self.gathering.lock();
                if gathering.waiting.is_empty() {
                    gathering.running = false;
                    return;
                }
                std::mem::take(&mut gathering.waiting)
            };
            let since = Instant::now();
            let answer = self.group.confirm().await;
            if answer.is_err() {
                self.counters.rounds_failed.fetch_add(1, Relaxed);
            }
            if since.elapsed() > ROUND_SLOW {
                self.counters.rounds_slow.fetch_add(1, Relaxed);
            }
            for waiter in waiting {
                // Nobody waits any more: fine.
                let _ = waiter.send(answer);
            }
        }
    }
}
