//! What is done to a cluster while it works.
//!
//! Kept true: every fault ends by itself, and all of them when the time for
//! faults is over. A node that has stopped by itself is ended and started again.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use pontoon_raftgroup::{GroupId, NodeId};
use pontoon_wal::disk::sim::Rng;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::cluster::Ending;
use crate::plan::Fault;
use crate::seeds::Sim;

/// Does what the plan says, then ends all of it.
pub(crate) async fn rage(sim: Rc<Sim>) {
    let mut rng = Rng::new(sim.plan.seed ^ 0xfa17);
    let end = Instant::now() + sim.plan.duration;
    let weights: u64 = sim.plan.faults.iter().map(|(_, weight)| weight).sum();
    let mut running = JoinSet::new();
    while Instant::now() < end {
        let calm = 1 + rng.below(sim.plan.calm.as_millis() as u64);
        sleep(Duration::from_millis(calm)).await;
        if weights == 0 {
            continue;
        }
        let mut drawn = rng.below(weights);
        let chosen = sim
            .plan
            .faults
            .iter()
            .find(|(_, weight)| match drawn < *weight {
                true => true,
                false => {
                    drawn -= weight;
                    false
                }
            });
        let fault = chosen.expect("weights add up").0;
        sim.history.borrow_mut().count(fault.name());
        running.spawn_local(inflict(Rc::clone(&sim), fault, Rng::new(rng.next_u64())));
    }
    sim.enough.set(true);
    sim.relief.notify_waiters();
    while running.join_next().await.is_some() {}
    heal(&sim).await;
}

/// Ends all faults.
async fn heal(sim: &Rc<Sim>) {
    let network = &sim.cluster.network;
    network.heal_all();
    network.set_loss(0.0);
    network.set_duplication(0.0);
    network.set_latency(Duration::from_micros(100)..=Duration::from_millis(2));
    for from in sim.cluster.ids() {
        for to in sim.cluster.ids() {
            network.set_slow(from, to, Duration::ZERO);
        }
        sim.cluster.disk(from).slow_syncs(Duration::ZERO);
    }
    for id in sim.cluster.ids() {
        while sim.starting.borrow().contains(&id) {
            sleep(Duration::from_millis(1)).await;
        }
        // A fault that has not struck yet must not do so later.
        if sim.tainted.borrow().contains(&id) {
            end(sim, id, Ending::PowerCut);
        }
        start(sim, id).await;
    }
    sim.healed.set(true);
    sim.history.borrow_mut().healed = sim.trace.now();
    sim.trace.say("faults", "all end");
}

fn millis(rng: &mut Rng, max: u64) -> Duration {
    Duration::from_millis(1 + rng.below(max))
}

pub(crate) fn end(sim: &Sim, id: NodeId, ending: Ending) {
    // What a failed sync left in the page cache would be there after a kill,
    // and gone after the next power cut.
    let tainted = sim.tainted.borrow_mut().remove(&id);
    let ending = if tainted { Ending::PowerCut } else { ending };
    sim.trace
        .say(format_args!("node {id}"), format_args!("{ending:?}"));
    sim.history.borrow_mut().count("node ended");
    sim.cluster.end(id, ending);
}

/// Starts a node that doesn't run. If its disk fails meanwhile, again.
pub(crate) async fn start(sim: &Rc<Sim>, id: NodeId) {
    if sim.cluster.running(id).is_some() || !sim.starting.borrow_mut().insert(id) {
        return;
    }
    // One that is gone, or goes meanwhile, is not started.
    let is_gone = || sim.cluster.is_gone(id);
    for _ in 0..10 {
        if is_gone() {
            break;
        }
        sim.trace.say(format_args!("node {id}"), "starts");
        let Err(error) = sim.cluster.start_node(id).await else {
            match is_gone() {
                true => sim.cluster.end(id, Ending::PowerCut),
                false => crate::watchers::collect(sim, id),
            }
            break;
        };
        sim.trace.say(format_args!("node {id}"), &error);
        if !is_of_disk(&error) {
            let promise = "A node opens after any crash.";
            sim.violate(promise, format!("node {id}: {error}"));
            break;
        }
        end(sim, id, Ending::PowerCut);
    }
    sim.starting.borrow_mut().remove(&id);
}

/// Whether a failure is one that was made.
fn is_of_disk(failure: &str) -> bool {
    failure.contains("simulated crash") || failure.contains("os error 5")
}

/// Ends nodes and starts them again after a while.
async fn bounce(sim: &Rc<Sim>, ids: &[NodeId], ending: Ending, away: Duration) {
    let ids: Vec<_> = ids
        .iter()
        .filter(|id| sim.cluster.running(**id).is_some())
        .collect();
    for id in &ids {
        end(sim, **id, ending);
    }
    sim.wait(away).await;
    for id in ids {
        start(sim, *id).await;
    }
}

async fn inflict(sim: Rc<Sim>, fault: Fault, mut rng: Rng) {
    let rng = &mut rng;
    let network = &sim.cluster.network;
    let nodes = sim.cluster.ids();
    let node = nodes[rng.below(nodes.len() as u64) as usize];
    let other = nodes[rng.below(nodes.len() as u64) as usize];
    let long = millis(rng, 6000);
    let disk = sim.cluster.disk(node);
    sim.trace.say(
        "faults",
        format_args!("{fault:?} node {node} other {other} for {long:?}"),
    );
    match fault {
        Fault::PowerCut => {
            // Where logs are short, so long that it needs a snapshot.
            let short = sim.cluster.shape.log_entries_kept < 100;
            let away = if short { 3 * long } else { long };
            bounce(&sim, &[node], Ending::PowerCut, away).await;
        }
        Fault::Kill => bounce(&sim, &[node], Ending::Kill, long / 3).await,
        Fault::Outage => bounce(&sim, &nodes, Ending::PowerCut, long / 4).await,
        Fault::DiskStops => {
            disk.crash_at(disk.operations() + rng.below(60));
            sim.tainted.borrow_mut().insert(node);
        }
        Fault::SyncFails => {
            disk.fail_sync_at(disk.syncs() + rng.below(20));
            sim.tainted.borrow_mut().insert(node);
        }
        Fault::SlowDisk => {
            disk.slow_syncs(millis(rng, 400));
            sim.wait(long).await;
            sim.cluster.disk(node).slow_syncs(Duration::ZERO);
        }
        Fault::Partition | Fault::Bridge => {
            let side = rng.next_u64();
            // Often the sequencer, so that both sides think all is well.
            let bridge = match rng.chance(1, 2) {
                true => leader_of(&sim, GroupId::ROOT).unwrap_or(node),
                false => node,
            };
            let bridge = (fault == Fault::Bridge).then_some(bridge);
            let cuts = || {
                let pairs = nodes
                    .iter()
                    .flat_map(|one| nodes.iter().map(move |two| (*one, *two)));
                pairs.filter(|(one, two)| {
                    let apart = (side >> one.0 ^ side >> two.0) & 1 == 1;
                    apart && bridge != Some(*one) && bridge != Some(*two)
                })
            };
            // It may be that one of them hears the bridge without being heard.
            let unheard = bridge.filter(|_| rng.chance(1, 2));
            let unheard = || unheard.map(|bridge| (other, bridge));
            let cuts = || cuts().chain(unheard());
            cuts().for_each(|(one, two)| network.cut(one, two));
            sim.wait(long).await;
            cuts().for_each(|(one, two)| network.heal(one, two));
        }
        Fault::OneWay => {
            network.cut(node, other);
            sim.wait(long).await;
            network.heal(node, other);
        }
        Fault::Deaf => {
            let deaf = rng.chance(1, 2);
            let ways = || {
                nodes
                    .iter()
                    .map(|to| if deaf { (*to, node) } else { (node, *to) })
            };
            ways().for_each(|(one, two)| network.cut(one, two));
            sim.wait(long).await;
            ways().for_each(|(one, two)| network.heal(one, two));
        }
        Fault::Deposed => {
            let group = match rng.chance(1, 2) {
                true => GroupId::ROOT,
                false => some_group(&sim, rng),
            };
            let leaders = leaders_of(&sim, group);
            let [leader] = leaders[..] else {
                // One is cut off already.
                return;
            };
            let others = nodes.iter().filter(|to| **to != leader);
            let ways = || others.clone().flat_map(|to| [(leader, *to), (*to, leader)]);
            ways().for_each(|(one, two)| network.cut(one, two));
            // So long that leases end with the next leader.
            sim.wait(Duration::from_secs(4) + long).await;
            ways().for_each(|(one, two)| network.heal(one, two));
        }
        Fault::Delay => {
            let min = millis(rng, 50);
            network.set_latency(min..=min + millis(rng, 300));
            sim.wait(long).await;
            network.set_latency(Duration::from_micros(100)..=Duration::from_millis(2));
        }
        Fault::SlowPath => {
            // Often between the sequencer and another leader, so that others
            // overtake a grant, or the question for it.
            let sequencer = leader_of(&sim, GroupId::ROOT).unwrap_or(node);
            let group = some_group(&sim, rng);
            let leader = leader_of(&sim, group).unwrap_or(other);
            let (from, to) = match rng.below(3) {
                0 => (sequencer, leader),
                1 => (leader, sequencer),
                _ => (node, other),
            };
            network.set_slow(from, to, millis(rng, 1500));
            sim.wait(long).await;
            network.set_slow(from, to, Duration::ZERO);
        }
        Fault::SlowNode => {
            let slow = |by| {
                for to in &nodes {
                    network.set_slow(node, *to, by);
                }
            };
            slow(millis(rng, 1500));
            for _ in 0..3 {
                hand_over(&sim, rng).await;
                sim.wait(long / 3).await;
            }
            slow(Duration::ZERO);
        }
        Fault::Loss => {
            network.set_loss([0.01, 0.05, 0.2][rng.below(3) as usize]);
            sim.wait(long).await;
            network.set_loss(0.0);
        }
        Fault::Duplication => {
            network.set_duplication([0.05, 0.5][rng.below(2) as usize]);
            sim.wait(long).await;
            network.set_duplication(0.0);
        }
        Fault::Reset => network.reset(node, other),
        Fault::Transfer => hand_over(&sim, rng).await,
    }
}

/// Has a leader give its group to another node.
async fn hand_over(sim: &Rc<Sim>, rng: &mut Rng) {
    let group = some_group(sim, rng);
    let to = sim.cluster.any(rng);
    if let Some(leader) = leader_of(sim, group)
        && let Some(running) = sim.cluster.running(leader)
    {
        running.during(running.node.transfer(group, to)).await;
    }
}

/// One of the groups that some node has a replica of.
fn some_group(sim: &Sim, rng: &mut Rng) -> GroupId {
    let groups: Vec<_> = sim.cluster.groups().into_iter().collect();
    match groups.len() as u64 {
        0 => GroupId::ROOT,
        count => groups[rng.below(count) as usize],
    }
}

/// A node that thinks it leads a group.
fn leader_of(sim: &Sim, group: GroupId) -> Option<NodeId> {
    leaders_of(sim, group).first().copied()
}

/// The nodes that think they lead a group: several, if one of them is cut off.
pub(crate) fn leaders_of(sim: &Sim, group: GroupId) -> Vec<NodeId> {
    let running = sim.cluster.all_running().into_iter();
    let leaders = running.filter(|(_, running)| {
        let status = running.node.status();
        status
            .iter()
            .any(|status| status.group == group && status.leads)
    });
    leaders.map(|(id, _)| id).collect()
}

/// Sees who leads and who has stopped; ends and starts those who have.
pub(crate) async fn look_after(sim: Rc<Sim>) {
    let mut rng = Rng::new(sim.plan.seed ^ 0x100c);
    let mut snapshots = std::collections::BTreeMap::new();
    loop {
        sleep(Duration::from_millis(50)).await;
        for (id, running) in sim.cluster.all_running() {
            let mut failed = None;
            for status in running.node.status() {
                let group = status.group;
                if status.leads
                    && sim
                        .history
                        .borrow_mut()
                        .leaders
                        .insert((group, status.term.0))
                {
                    let name = if group.is_root() {
                        "epoch"
                    } else {
                        "term of another group"
                    };
                    sim.history.borrow_mut().count(name);
                    let term = status.term;
                    sim.trace.say(
                        format_args!("node {id}"),
                        format_args!("leads group {group} in term {term}"),
                    );
                }
                let installed = snapshots.entry((running.start, group)).or_insert(0);
                while *installed < status.snapshots {
                    *installed += 1;
                    sim.history.borrow_mut().count("snapshot installed");
                    sim.trace.say(
                        format_args!("node {id}"),
                        format_args!("group {group} from a snapshot"),
                    );
                }
                failed = failed.or(status.failure);
            }
            let Some(failure) = failed else {
                continue;
            };
            // It is to see to itself.
            let own = |ids: &RefCell<BTreeSet<NodeId>>| ids.borrow().contains(&id);
            if !is_of_disk(&failure) && (own(&sim.damaged) || own(&sim.leaving)) {
                continue;
            }
            sim.trace.say(
                format_args!("node {id}"),
                format_args!("has stopped: {failure}"),
            );
            sim.history.borrow_mut().count("node stopped by itself");
            if !is_of_disk(&failure) {
                let promise = "A replica stops only if its disk fails.";
                sim.violate(promise, format!("node {id}: {failure}"));
            }
            let ending = match rng.chance(1, 3) && !sim.cluster.disk(id).crashed() {
                true => Ending::Kill,
                false => Ending::PowerCut,
            };
            end(&sim, id, ending);
            let (away, sim) = (millis(&mut rng, 2000), Rc::clone(&sim));
            tokio::task::spawn_local(async move {
                sim.wait(away).await;
                start(&sim, id).await;
            });
        }
    }
}
