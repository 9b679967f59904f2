//! Bits flip on a node's disk while it is down. Often the others are such that
//! its vote, and what it had acknowledged, would make the difference. Or they
//! flip while it runs, and are found by the next read.
//!
//! Kept true: at most a minority of the nodes in a run, and the next one only
//! when the last has all data again; so what was acknowledged is always on
//! somebody's disk, and so are enough votes.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use pontoon_raftgroup::{GroupId, LogIndex, NodeId};
use pontoon_wal::disk::sim::Rng;
use tokio::time::sleep;

use crate::cluster::Ending;
use crate::seeds::Sim;
use crate::supervisor::{end, start};

const SECTOR_BYTES: u64 = 512;
const PAGE_BYTES: u64 = 4096;

/// What the fifth byte of a page is in leaves and branches.
const NODE_KINDS: [u8; 2] = [1, 2];

/// As often as the plan says, over the time that it has for faults.
pub(crate) async fn damage(sim: Rc<Sim>) {
    let rng = &mut Rng::new(sim.plan.seed ^ 0xda_3a6e);
    let longest = sim.plan.duration.as_millis() as u64 / sim.plan.damages.max(1);
    for _ in 0..sim.plan.damages {
        let pause = 1 + rng.below(longest);
        sim.wait(Duration::from_millis(pause)).await;
        let _alone = sim.peril.lock().await;
        let node = sim.cluster.any(rng);
        if sim.enough.get() || sim.cluster.running(node).is_none() {
            continue;
        }
        let due = applied(&sim);
        match rng.chance(1, 2) {
            _ if sim.plan.shape.volatile => while_it_runs(&sim, rng, node),
            true => among_others(&sim, rng, node).await,
            false => among_those_behind(&sim, rng, node).await,
        }
        while !sim.healed.get() && !has(&sim, node, &due) {
            sleep(Duration::from_millis(200)).await;
        }
    }
}

/// Bits flip in nodes of a tree that the node uses.
fn while_it_runs(sim: &Sim, rng: &mut Rng, node: NodeId) {
    let disk = sim.cluster.disk(node);
    let is_tree = |path: &PathBuf| path.to_string_lossy().ends_with(".tree");
    let trees: Vec<_> = disk.paths().into_iter().filter(is_tree).collect();
    if trees.is_empty() {
        return;
    }
    let path = &trees[rng.below(trees.len() as u64) as usize];
    let bytes = disk.read_file(path).expect("it was listed");
    let pages = (0_u64..).zip(bytes.chunks_exact(PAGE_BYTES as usize));
    // Not the meta pages: they are read at the start only.
    let nodes = pages
        .skip(2)
        .filter(|(_, page)| NODE_KINDS.contains(&page[4]));
    let mut nodes: Vec<_> = nodes.map(|(page, _)| page).collect();
    if rng.chance(1, 2) && !nodes.is_empty() {
        // Just one, which may not be in use any more.
        nodes = vec![nodes[rng.below(nodes.len() as u64) as usize]];
    }
    sim.damaged.borrow_mut().insert(node);
    sim.falls_ill(node);
    sim.history.borrow_mut().count("damage: tree, running");
    for page in nodes {
        let bit = 8 * PAGE_BYTES * page + rng.below(8 * PAGE_BYTES);
        disk.flip_bit(path, bit);
        sim.trace.say(
            format_args!("node {node}"),
            format_args!("bit {bit} of {} flips", path.display()),
        );
    }
}

async fn among_others(sim: &Rc<Sim>, rng: &mut Rng, node: NodeId) {
    damaged_end(sim, rng, node);
    sim.wait(Duration::from_millis(rng.below(3000))).await;
    start(sim, node).await;
}

/// As many as may be away hear nothing for a while, so that what the rest
/// acknowledges is nowhere else. Then the damaged one comes back beside them,
/// and the others that have it do so only later. Together they would be a
/// quorum.
async fn among_those_behind(sim: &Rc<Sim>, rng: &mut Rng, node: NodeId) {
    let mut behind = sim.cluster.ids();
    behind.retain(|id| *id != node);
    let mut hold = Vec::new();
    while hold.len() < behind.len() {
        hold.push(behind.remove(rng.below(behind.len() as u64) as usize));
    }
    let mut apart = Vec::new();
    for one in hold.iter().chain([&node]) {
        apart.extend(behind.iter().flat_map(|two| [(*one, *two), (*two, *one)]));
    }
    let network = &sim.cluster.network;
    sim.trace
        .say("faults", format_args!("{behind:?} fall behind {hold:?}"));
    sim.lose_messages();
    apart.iter().for_each(|(one, two)| network.cut(*one, *two));
    sim.wait(Duration::from_millis(500 + rng.below(2500))).await;
    let is_running = |id: &NodeId| sim.cluster.running(*id).is_some();
    let runs = is_running(&node);
    if runs {
        damaged_end(sim, rng, node);
        hold.retain(is_running);
        hold.iter().for_each(|id| end(sim, *id, some_ending(rng)));
    }
    apart.iter().for_each(|(one, two)| network.heal(*one, *two));
    if !runs {
        // Another fault was faster.
        return;
    }
    let away = Duration::from_millis(1000 + rng.below(5000));
    let others = async {
        sim.wait(away).await;
        for id in &hold {
            start(sim, *id).await;
        }
    };
    // It may have to wait for them.
    tokio::join!(start(sim, node), others);
}

fn some_ending(rng: &mut Rng) -> Ending {
    [Ending::PowerCut, Ending::Kill][rng.below(2) as usize]
}

fn damaged_end(sim: &Sim, rng: &mut Rng, node: NodeId) {
    end(sim, node, some_ending(rng));
    flip(sim, rng, node);
    sim.damaged.borrow_mut().insert(node);
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
    let (files, kind) = match segments.is_empty() || rng.chance(1, 3) {
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
    let say = |what: String| sim.trace.say(format_args!("node {id}"), what);
    let path_shown = path.display();
    if kind == "damage: log" && rng.chance(3, 4) {
        // A few bits would mostly lie where nobody looks again.
        for sector in 0..bytes.len() as u64 / SECTOR_BYTES {
            disk.flip_bit(
                path,
                8 * SECTOR_BYTES * sector + rng.below(8 * SECTOR_BYTES),
            );
        }
        return say(format!("a bit in each sector of {path_shown} flips"));
    }
    for _ in 0..1 + rng.below(4) {
        let bit = rng.below(8 * used as u64);
        disk.flip_bit(path, bit);
        say(format!("bit {bit} of {path_shown} flips"));
    }
}
