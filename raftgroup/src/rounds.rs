//! Quorum rounds, one for all that wait.
//!
//! Kept true: whoever asks is answered by a round that began after it asked.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::position::LogIndex;
use crate::raft::{Group, NotLeader};
use crate::runtime::Scope;

type Waiter = oneshot::Sender<Result<LogIndex, NotLeader>>;

/// The rounds of one group.
pub(crate) struct Rounds {
    group: Arc<Group>,
    scope: Scope,
    gathering: Mutex<Gathering>,
}

#[derive(Default)]
struct Gathering {
    waiting: Vec<Waiter>,
    running: bool,
}

impl Rounds {
    pub(crate) fn new(group: Arc<Group>, scope: Scope) -> Arc<Self> {
        Arc::new(Self {
            group,
            scope,
            gathering: Mutex::default(),
        })
    }

    /// Whether this node still leads, after a quorum said so; everything
    /// committed before is at or below the index.
    pub(crate) async fn confirm(self: &Arc<Self>) -> Result<LogIndex, NotLeader> {
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
            let answer = self.group.confirm().await;
            for waiter in waiting {
                // Nobody waits any more: fine.
                let _ = waiter.send(answer);
            }
        }
    }
}
