//! What is done beside openraft's own tasks, when something changed: saying
//! who leads and who belongs, stopping after a failure.
//!
//! Kept true: a leadership is `ready` only when an entry of its term is
//! applied, and the first one is the leader's own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::runtime::watched as watch;
use openraft::ServerState;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::metrics::RaftServerMetrics;

use crate::health::{Condition, Health};
use crate::position::{NodeId, Term};
use crate::raft::failure::Stop;
use crate::raft::machine::Replica;
use crate::raft::probe::Probe;
use crate::raft::types::Types;
use crate::raft::{Leadership, Raft, set_ticks};
use crate::runtime::Scope;

/// What watches over one replica.
pub(crate) struct Overseer {
    pub(crate) node: NodeId,
    pub(crate) raft: Raft,
    pub(crate) replica: Arc<Replica>,
    pub(crate) probe: Arc<Probe>,
    pub(crate) health: Arc<Health>,
    /// The replica was told to stop.
    pub(crate) closing: Arc<AtomicBool>,
}

impl Overseer {
    /// Starts the tasks, which end with the scope or with openraft.
    pub(crate) fn start(self, scope: &Scope) -> watch::Receiver<Leadership> {
        let first = seen(self.node, &self.raft.server_metrics().borrow_watched());
        let says = watch::Sender::new(first);
        let leadership = says.subscribe();
        scope.spawn(self.say_who_leads(says));
        leadership
    }

    /// Ends when openraft does, and ends openraft when something else failed.
    async fn say_who_leads(self, says: watch::Sender<Leadership>) {
        let Self {
            node,
            raft,
            replica,
            probe,
            health,
            closing,
        } = self;
        let mut servers = raft.server_metrics();
        let mut applied = replica.applied();
        let mut condition = health.subscribe();
        loop {
            let seen = seen(node, &servers.borrow_and_update());
            let wins = seen.leader == Some(node);
            // Alone, it has nobody to leave the lead to.
            let alone = replica.membership().membership().voter_ids().count() < 2;
            let stalled = *condition.borrow_and_update() == Condition::Stalled;
            set_ticks(&raft, &probe);
            let suspended = wins && stalled && !alone;
            applied.mark_unchanged();
            let ready = wins && !suspended && replica.applied_term() == seen.term;
            let now = Leadership {
                leader: seen.leader.filter(|_| !suspended),
                ready,
                suspended,
                ..seen
            };
            says.send_if_modified(|said| std::mem::replace(said, now) != now);
            tokio::select! {
                biased;
                changed = servers.changed() => {
                    if changed.is_err() {
                        break;
                    }
                }
                _ = applied.changed(), if wins && !ready => {}
                _ = condition.changed() => {}
                () = replica.failure.failed() => break,
            }
        }
        // It may have stopped by itself.
        let _ = raft.shutdown().await;
        says.send_modify(|said| {
            *said = Leadership {
                term: said.term,
                ..Leadership::default()
            };
        });
        if closing.load(Ordering::Acquire) {
            return;
        }
        let state = raft.metrics().borrow_watched().running_state.clone();
        let cause = state
            .err()
            .map_or_else(String::new, |fatal| format!(": {fatal}"));
        let reason = format!(
            "group {}: its Raft core has stopped{cause}",
            replica.group()
        );
        // If the cause is known, it is kept instead; it may come a little later.
        replica.failure.set(Stop::Other(reason));
        tokio::time::sleep(CAUSE_WITHIN).await;
        match replica.failure.get() {
            Some(Stop::Damaged(_)) => health.report_damage(),
            Some(Stop::Disk(reason) | Stop::Other(reason)) => health.fail(reason),
            None => {}
        }
    }
}

/// How long the cause of a failure may come after who suffers from it.
const CAUSE_WITHIN: Duration = Duration::from_millis(100);

/// What openraft says of the group, with nobody ready.
fn seen(node: NodeId, server: &RaftServerMetrics<Types>) -> Leadership {
    // openraft names who won the last election; a leader that was removed
    // has won it, and leads no more.
    let leads = |leader: &u64| *leader != node.0 || server.state == ServerState::Leader;
    Leadership {
        term: Term(server.vote.leader_id.term),
        leader: server.current_leader.filter(leads).map(NodeId),
        ready: false,
        suspended: false,
    }
}
