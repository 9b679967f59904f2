//! A rolling upgrade while the cluster works: members get a release that has one
//! more kind of entry, one after the other.
//!
//! Kept true: a member goes back to the older release only while another one
//! that has it holds the version of the cluster back. One whose going back the
//! others didn't hear of in time ends, and says why.

use std::rc::Rc;
use std::time::Duration;

use pontoon_raftgroup::{FormatVersion, NodeId};
use pontoon_wal::disk::sim::Rng;
use tokio::time::sleep;

use crate::cluster::{Ending, Running};
use crate::seeds::Sim;
use crate::supervisor::{end, start};

/// What the older release understands, and the newer one.
pub(crate) const OLD: FormatVersion = FormatVersion::NEWEST;
pub(crate) const NEW: FormatVersion = FormatVersion(OLD.0 + 1);

const NEVER_MET: &str = "A member never meets what it doesn't know.";

/// Has some members get the newer release and go back, and then all get it.
pub(crate) async fn upgrade(sim: Rc<Sim>) {
    let rng = &mut Rng::new(sim.plan.seed ^ 0x0b6_4ade);
    let pause = 2 * sim.plan.duration.as_millis() as u64 / 3 / sim.plan.shape.nodes;
    // Members that leave may be those that hold the version back.
    if sim.plan.changes == 0 {
        let mut tried = sim.cluster.ids();
        while tried.len() > 1 && rng.chance(1, 2) {
            let id = tried.remove(rng.below(tried.len() as u64) as usize);
            replace(&sim, id, NEW).await;
            sim.wait(Duration::from_millis(rng.below(pause))).await;
            sim.went_back.borrow_mut().insert(id);
            replace(&sim, id, OLD).await;
            until_told(&sim, id).await;
            sim.history.borrow_mut().count("upgrade: one went back");
        }
    }
    while let Some(id) = any_old(&sim, rng) {
        sim.wait(Duration::from_millis(rng.below(pause))).await;
        replace(&sim, id, NEW).await;
    }
    sim.history.borrow_mut().count("upgrade: done");
}

fn any_old(sim: &Sim, rng: &mut Rng) -> Option<NodeId> {
    let mut old = sim.cluster.ids();
    old.retain(|id| sim.cluster.release(*id) == OLD);
    (!old.is_empty()).then(|| old.remove(rng.below(old.len() as u64) as usize))
}

/// Has a member run this release.
async fn replace(sim: &Rc<Sim>, id: NodeId, release: FormatVersion) {
    sim.cluster.set_release(id, release);
    while !sim.cluster.is_gone(id) {
        match sim.cluster.running(id) {
            Some(running) if running.release == release => return,
            Some(_) => {
                let text = format_args!("gets release {release}");
                sim.trace.say(format_args!("node {id}"), text);
                end(sim, id, Ending::Kill);
                start(sim, id).await;
            }
            // Somebody is about to start it, or a fault has it wait.
            None => sleep(Duration::from_millis(10)).await,
        }
    }
}

/// Until the others know that a member went back.
async fn until_told(sim: &Sim, id: NodeId) {
    let knows = |running: &Running| running.node.cluster_version().members.get(&id) == Some(&OLD);
    loop {
        let running = sim.cluster.all_running();
        if !running.is_empty() && running.iter().all(|(_, running)| knows(running)) {
            return;
        }
        sleep(Duration::from_millis(10)).await;
    }
}

impl Sim {
    /// Whether a member ends as it should, because it went back too late.
    pub(crate) fn went_back_too_late(&self, id: NodeId, failure: &str) -> bool {
        let of_cluster = format!("the cluster has version {NEW}");
        let of_entry = format!("in format version {NEW}; this one understands up to {OLD}");
        let is_told = failure.contains(&of_cluster) || failure.contains(&of_entry);
        let went_back = is_told && self.went_back.borrow().contains(&id);
        if went_back {
            self.history
                .borrow_mut()
                .count("upgrade: one went back too late");
        }
        went_back
    }

    /// Sees that nobody meets what it doesn't know.
    pub(crate) fn look_at_version(&self, id: NodeId, running: &Running) {
        if running.release == NEW || self.went_back.borrow().contains(&id) {
            return;
        }
        let (version, trials) = (running.node.cluster_version(), running.node.trial_entries());
        if version.cluster > running.release || trials > 0 {
            let detail = format!("node {id} has {trials} entries, and {version:?}");
            self.violate(NEVER_MET, detail);
        }
    }

    /// Those that don't have what all members understand, once they could.
    pub(crate) fn not_upgraded(&self) -> Vec<NodeId> {
        let mut running = self.cluster.all_running();
        running.retain(|(_, running)| running.node.cluster_version().cluster < NEW);
        running.into_iter().map(|(id, _)| id).collect()
    }
}
