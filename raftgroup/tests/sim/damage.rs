//! Bits flip on a node's disk while it is down.
//!
//! Kept true: at most a minority of the nodes in a run, and the next one only
//! when the last has all data again; so what was acknowledged is always on
//! somebody's disk, and so are enough votes.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use pontoon_raftgroup::{GroupId, LogIndex, NodeId};
use pontoon_wal::disk::sim::Rng;
use tokio::time::sleep;

use crate::cluster::Ending;
use crate::faults::{end, start};
use crate::seeds::Sim;

/// As often as the plan says, over the time that it has for faults.
pub(crate) async fn damage(sim: Rc<Sim>) {
    let rng = &mut Rng::new(sim.plan.seed ^ 0xda_3a6e);
    let longest = 2 * sim.plan.duration.as_millis() as u64 / sim.plan.damages.max(1);
    for _ in 0..sim.plan.damages {
        let pause = 1 + rng.below(longest);
        sim.wait(Duration::from_millis(pause)).await;
        let _alone = sim.peril.lock().await;
        let node = sim.cluster.any(rng);
        if sim.enough.get() || sim.cluster.running(node).is_none() {
            continue;
        }
        let due = applied(&sim);
        let ending = [Ending::PowerCut, Ending::Kill][rng.below(2) as usize];
        end(&sim, node, ending);
        flip(&sim, rng, node);
        sim.damaged.borrow_mut().insert(node);
        let away = Duration::from_millis(rng.below(3000));
        sim.wait(away).await;
        start(&sim, node).await;
        while !sim.healed.get() && !has(&sim, node, &due) {
            sleep(Duration::from_millis(200)).await;
        }
    }
}

/// The last entries that anybody has applied.
fn applied(sim: &Sim) -> BTreeMap<GroupId, LogIndex> {
    let mut applied = BTreeMap::new();
    for (_, running) in sim.cluster.all_running() {
        for status in running.node.status() {
            let highest = applied.entry(status.group).or_insert(status.applied);
            *highest = status.applied.max(*highest);
        }
    }
    applied
}

/// Whether a node has got that far in all groups, and works.
fn has(sim: &Sim, id: NodeId, due: &BTreeMap<GroupId, LogIndex>) -> bool {
    let Some(running) = sim.cluster.running(id) else {
        return false;
    };
    let status = running.node.status();
    due.iter().all(|(group, due)| {
        let of_group = status.iter().find(|status| status.group == *group);
        of_group.is_some_and(|status| status.applied >= *due && status.failure.is_none())
    })
}

/// Flips some bits of a tree, or of the log.
fn flip(sim: &Sim, rng: &mut Rng, id: NodeId) {
    let disk = sim.cluster.disk(id);
    let named = |ending: &str| {
        let paths = disk.paths().into_iter();
        let paths = paths.filter(|path| path.to_string_lossy().ends_with(ending));
        paths.collect::<Vec<_>>()
    };
    // The newest segments are left alone: whether damage in what was written
    // last is a torn write nobody can tell.
    let mut segments = named(".wal");
    segments.truncate(segments.len().saturating_sub(2));
    let (files, kind) = match segments.is_empty() || rng.chance(1, 2) {
        true => (named(".tree"), "damage: tree"),
        false => (segments, "damage: log"),
    };
    if files.is_empty() {
        return;
    }
    let path = &files[rng.below(files.len() as u64) as usize];
    let bytes = disk.read_file(path).expect("it was listed");
    let used = bytes
        .iter()
        .rposition(|byte| *byte != 0)
        .map_or(0, |last| last + 1);
    if used == 0 {
        return;
    }
    sim.history.borrow_mut().count(kind);
    for _ in 0..1 + rng.below(4) {
        let bit = rng.below(8 * used as u64);
        disk.flip_bit(path, bit);
        sim.trace.say(
            format_args!("node {id}"),
            format_args!("bit {bit} of {} flips", path.display()),
        );
    }
}
