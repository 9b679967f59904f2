//! What is done to a cluster while it works.
//!
//! Kept true: every fault ends by itself, and all of them when the time for
//! faults is over. Nobody looks after a node but `supervisor.rs`.

use std::rc::Rc;
use std::time::Duration;

use futures_util::future::join_all;
use pontoon_raftgroup::{GroupId, NodeId};
use pontoon_wal::disk::sim::Rng;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::cluster::Ending;
use crate::plan::Fault;
use crate::seeds::Sim;
use crate::supervisor::{end, start};

/// The longest that a slow message takes.
const SLOW_MAX: Duration = Duration::from_millis(1500);

/// Does what the plan says, then ends all of it.
pub(crate) async fn rage(sim: Rc<Sim>) {
    let mut rng = Rng::new(sim.plan.seed ^ 0xfa17);
    let end = Instant::now() + sim.plan.duration;
    let weights: u64 = sim.plan.faults.iter().map(|(_, weight)| weight).sum();
    let mut running = JoinSet::new();
    while Instant::now() < end {
        let calm = millis(&mut rng, sim.plan.calm.as_millis() as u64);
        sim.wait(sim.plan.calm_min + calm).await;
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
        let lull = sim.plan.lulls && rng.chance(1, 2);
        if lull {
            become_quiet(&sim).await;
        }
        sim.history.borrow_mut().count(fault.name());
        running.spawn_local(inflict(Rc::clone(&sim), fault, Rng::new(rng.next_u64())));
        if lull {
            sim.wait(millis(&mut rng, 6000)).await;
            sim.hush(false);
        }
    }
    sim.enough.set(true);
    sim.relief.notify_waiters();
    while running.join_next().await.is_some() {}
    heal(&sim).await;
}

/// Silences the clients until groups have no timers any more.
async fn become_quiet(sim: &Rc<Sim>) {
    sim.hush(true);
    let slowest = sim.plan.shape.seconds.iter().copied().max().unwrap_or(100);
    // A node looks once in this time, and what it finds busy is left alone.
    let quiet_after = sim.plan.shape.quiet_after * slowest.max(100) / 100;
    sim.wait(2 * quiet_after + Duration::from_secs(1)).await;
    let running = sim.cluster.all_running().into_iter();
    let mut replicas = running.flat_map(|(_, running)| running.node.status());
    let all = replicas.all(|status| status.quiet);
    sim.history.borrow_mut().count(match all {
        true => "fault: while all groups are quiet",
        false => "fault: while some groups are quiet",
    });
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
        // A fault that has not struck yet must not do so later.
        sim.cluster.disk(from).end_faults();
        if let Some(running) = sim.cluster.running(from) {
            running.starve(Duration::ZERO);
        }
        sim.is_well_again(from);
    }
    let started = sim.cluster.ids().into_iter().map(async |id| {
        // Somebody else may be about to start it.
        start(sim, id).await;
        while sim.starting.borrow().contains(&id) {
            sleep(Duration::from_millis(1)).await;
        }
    });
    join_all(started).await;
    sim.hush(false);
    sim.healed.set(true);
    sim.history.borrow_mut().healed = sim.trace.now();
    sim.trace.say("faults", "all end");
}

fn millis(rng: &mut Rng, max: u64) -> Duration {
    Duration::from_millis(1 + rng.below(max))
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
    // None waits for another: a damaged one needs the others to start.
    join_all(ids.into_iter().map(|id| start(sim, *id))).await;
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
            sim.falls_ill(node);
        }
        Fault::SyncFails => {
            disk.fail_sync_at(disk.syncs() + rng.below(20));
            sim.tainted.borrow_mut().insert(node);
            sim.falls_ill(node);
        }
        Fault::TreeFails => {
            let illness = sim.falls_ill(node);
            disk.fail_tree_io(true);
            sim.tainted.borrow_mut().insert(node);
            sim.wait(2 * long).await;
            disk.fail_tree_io(false);
            sim.recovers(illness);
        }
        Fault::ReadOnly => {
            let illness = sim.falls_ill(node);
            disk.read_only(true);
            sim.tainted.borrow_mut().insert(node);
            sim.wait(2 * long).await;
            // It stays so when the process exits.
            sim.cluster.disk(node).read_only(false);
            sim.recovers(illness);
        }
        Fault::DiskHangs => {
            let illness = sim.falls_ill(node);
            disk.hang();
            sim.hung.borrow_mut().insert(node, Instant::now());
            let secs = [5, 5, 60][rng.below(3) as usize];
            sim.wait(Duration::from_secs(1) + millis(rng, 1000 * secs))
                .await;
            disk.resume();
            sim.hung.borrow_mut().remove(&node);
            sim.hung_until.borrow_mut().insert(node, Instant::now());
            sim.recovers(illness);
        }
        Fault::Starved => starve(&sim, node, Rng::new(rng.next_u64())).await,
        Fault::SlowDisk => {
            let _disturbed = sim.disturb(Duration::from_millis(400));
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
            sim.lose_messages();
            cuts().for_each(|(one, two)| network.cut(one, two));
            sim.wait(long).await;
            cuts().for_each(|(one, two)| network.heal(one, two));
        }
        Fault::OneWay => {
            sim.lose_messages();
            network.cut(node, other);
            sim.wait(long).await;
            network.heal(node, other);
        }
        Fault::Deaf => {
            sim.lose_messages();
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
            sim.lose_messages();
            let others = nodes.iter().filter(|to| **to != leader);
            let ways = || others.clone().flat_map(|to| [(leader, *to), (*to, leader)]);
            ways().for_each(|(one, two)| network.cut(one, two));
            // So long that leases end with the next leader.
            sim.wait(Duration::from_secs(4) + long).await;
            ways().for_each(|(one, two)| network.heal(one, two));
        }
        Fault::Delay => {
            let _disturbed = sim.disturb(Duration::from_millis(350));
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
            let _disturbed = sim.disturb(SLOW_MAX);
            network.set_slow(from, to, millis(rng, SLOW_MAX.as_millis() as u64));
            sim.wait(long).await;
            network.set_slow(from, to, Duration::ZERO);
        }
        Fault::SlowNode => {
            let slow = |by| {
                for to in &nodes {
                    network.set_slow(node, *to, by);
                }
            };
            let _disturbed = sim.disturb(SLOW_MAX);
            slow(millis(rng, SLOW_MAX.as_millis() as u64));
            for _ in 0..3 {
                hand_over(&sim, rng).await;
                sim.wait(long / 3).await;
            }
            slow(Duration::ZERO);
        }
        Fault::Loss => {
            sim.lose_messages();
            network.set_loss([0.01, 0.05, 0.2][rng.below(3) as usize]);
            sim.wait(long).await;
            network.set_loss(0.0);
        }
        Fault::Duplication => {
            let _disturbed = sim.disturb(Duration::ZERO);
            network.set_duplication([0.05, 0.5][rng.below(2) as usize]);
            sim.wait(long).await;
            network.set_duplication(0.0);
        }
        Fault::Reset => {
            network.reset(node, other);
            sim.cause();
        }
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
        sim.cause();
        running.during(running.node.transfer(group, to)).await;
        sim.cause();
    }
}

/// A node gets little processor time for a while.
pub(crate) async fn starve(sim: &Sim, id: NodeId, mut rng: Rng) {
    let Some(running) = sim.cluster.running(id) else {
        return;
    };
    let longest = Duration::from_millis(50 + rng.below(251));
    sim.trace.say(
        format_args!("node {id}"),
        format_args!("waits up to {longest:?} for its turns"),
    );
    let _disturbed = sim.disturb(longest);
    running.starve(longest);
    sim.wait(millis(&mut rng, 6000)).await;
    running.starve(Duration::ZERO);
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
