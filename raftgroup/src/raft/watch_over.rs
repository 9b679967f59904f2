//! What is done beside openraft's own tasks, when something changed: saying
//! who leads and who belongs, shortening the log, stopping after a failure.
//!
//! Kept true: a leadership is `ready` only when an entry of its term is
//! applied, and the first one is the leader's own; the log keeps what either
//! of the two checkpoints on disk needs.

use std::sync::Arc;

use crate::runtime::watched as watch;
use openraft::ServerState;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::metrics::RaftServerMetrics;
use pontoon_engine::Store;

use crate::position::{NodeId, Term};
use crate::raft::machine::Replica;
use crate::raft::types::Types;
use crate::raft::{Leadership, Raft};
use crate::runtime::Scope;

pub(crate) fn start(
    scope: &Scope,
    node: NodeId,
    raft: &Raft,
    replica: &Arc<Replica>,
    log_entries_kept: u64,
) -> watch::Receiver<Leadership> {
    let says = watch::Sender::new(seen(node, &raft.server_metrics().borrow_watched()));
    let leadership = says.subscribe();
    scope.spawn(say_who_leads(node, raft.clone(), Arc::clone(replica), says));
    scope.spawn(shorten_log(
        raft.clone(),
        replica.stores(),
        log_entries_kept,
    ));
    leadership
}

/// What openraft says of the group, with nobody ready.
fn seen(node: NodeId, server: &RaftServerMetrics<Types>) -> Leadership {
    // openraft names who won the last election; a leader that was removed
    // has won it, and leads no more.
    let leads = |leader: &u64| *leader != node.0 || server.state == ServerState::Leader;
    Leadership {
        term: Term(server.vote.leader_id.term),
        leader: server.current_leader.filter(leads).map(NodeId),
        ready: false,
    }
}

/// Ends when openraft does, and ends openraft when something else failed.
async fn say_who_leads(
    node: NodeId,
    raft: Raft,
    replica: Arc<Replica>,
    says: watch::Sender<Leadership>,
) {
    let mut servers = raft.server_metrics();
    let mut applied = replica.applied();
    loop {
        let now = seen(node, &servers.borrow_and_update());
        let leads = now.leader == Some(node);
        applied.mark_unchanged();
        let ready = leads && replica.applied_term() == now.term;
        let now = Leadership { ready, ..now };
        says.send_if_modified(|said| std::mem::replace(said, now) != now);
        tokio::select! {
            biased;
            changed = servers.changed() => {
                if changed.is_err() {
                    break;
                }
            }
            _ = applied.changed(), if leads && !ready => {}
            () = replica.failure.failed() => break,
        }
    }
    // It may have stopped by itself.
    let _ = raft.shutdown().await;
    says.send_modify(|said| {
        said.leader = None;
        said.ready = false;
    });
}

/// Removes entries from the log after each checkpoint.
async fn shorten_log(raft: Raft, mut stores: watch::Receiver<Arc<Store>>, kept: u64) {
    loop {
        let store = Arc::clone(&*stores.borrow_and_update());
        let mut checkpoints = store.checkpoints();
        loop {
            tokio::select! {
                biased;
                _ = checkpoints.changed() => {
                    if shorten(&raft, &store, kept).await.is_err() {
                        return;
                    }
                }
                replaced = stores.changed() => match replaced {
                    Ok(()) => break,
                    Err(_) => return,
                }
            }
        }
    }
}

/// openraft removes nothing behind its snapshot, and it learns of this
/// checkpoint only now. But the log is needed since the one before, which it
/// knows: so there is nothing to wait for.
async fn shorten(
    raft: &Raft,
    store: &Store,
    kept: u64,
) -> Result<(), openraft::errors::Fatal<super::Types>> {
    raft.trigger().snapshot().await?;
    let spare = store.applied().index.saturating_sub(kept);
    let superfluous = spare.min(store.log_needed_after().index);
    match superfluous.checked_sub(1) {
        Some(last) => raft.trigger().purge_log(last).await,
        None => Ok(()),
    }
}
