//! Members come and go while the cluster works.
//!
//! Kept true: one change at a time, begun only when no other member is away
//! for good or rebuilds itself, and when the groups had time to follow the last
//! one; so of the votes that count, a majority is never away by what is done
//! here.

use std::collections::BTreeMap;
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use pontoon_raftgroup::{Failure, Member, Node, NodeId};
use pontoon_wal::disk::sim::Rng;
use tokio::time::{Instant, sleep};

use crate::end::PATIENCE;
use crate::seeds::Sim;
use crate::supervisor::start;
use crate::upgrade;

const PROMISE: &str = "Members change as long as a majority is there.";

/// How long the groups may take to follow a change.
const FOLLOWED: Duration = Duration::from_secs(5);

/// How long one attempt may take.
const WITHIN: Duration = Duration::from_secs(5);

/// As many changes as the plan has, over the time that it has for faults.
pub(crate) async fn change(sim: Rc<Sim>) {
    let rng = &mut Rng::new(sim.plan.seed ^ 0xc4a_9e5);
    let longest = 2 * sim.plan.duration.as_millis() as u64 / sim.plan.changes.max(1);
    for _ in 0..sim.plan.changes {
        let pause = 1 + rng.below(longest);
        sim.wait(Duration::from_millis(pause)).await;
        let _alone = sim.peril.lock().await;
        if sim.enough.get() {
            return;
        }
        // The groups follow one after the other.
        let _disturbed = sim.disturb(FOLLOWED);
        let members = members(&sim);
        let voters = members.values().filter(|member| !member.learner).count();
        // One that rebuilds itself may never have finished.
        let spare = if sim.plan.damages > 0 { 5 } else { 3 };
        let node = sim.cluster.any(rng);
        match rng.below(4) {
            _ if members.is_empty() => {}
            0 => take_in(&sim, rng).await,
            1 if voters >= spare => {
                sim.history.borrow_mut().count("members: one sent away");
                send_away(&sim, rng, node).await;
            }
            _ if voters >= spare => {
                sim.history.borrow_mut().count("members: one lost its disk");
                sim.trace
                    .say(format_args!("node {node}"), "is lost for good");
                lose(&sim, node);
                send_away(&sim, rng, node).await;
                take_in(&sim, rng).await;
            }
            _ => {}
        }
    }
}

/// The members, as the one knows them who has the newest map.
pub(crate) fn members(sim: &Sim) -> BTreeMap<NodeId, Member> {
    let running = sim.cluster.all_running().into_iter();
    let known = running.filter_map(|(_, running)| {
        let map = running.node.map()?;
        Some((map.version, running.node.members()))
    });
    let newest = known.max_by_key(|(version, _)| *version);
    newest.map(|(_, members)| members).unwrap_or_default()
}

/// A new member, first as one that only listens; mostly it becomes a voter.
async fn take_in(sim: &Rc<Sim>, rng: &mut Rng) {
    let id = sim.cluster.add();
    if sim.plan.upgrade {
        sim.cluster.set_release(id, upgrade::NEW);
    }
    let member = Member {
        address: String::new(),
        learner: true,
    };
    let add = |node: Node| {
        let member = member.clone();
        async move { node.member_add(id, member, WITHIN).await }
    };
    let is_added = |members: &BTreeMap<NodeId, Member>| members.contains_key(&id);
    if !insist(sim, rng, format!("adds {id}"), is_added, add).await {
        lose(sim, id);
        return;
    }
    sim.history.borrow_mut().count("members: one taken in");
    start(sim, id).await;
    if rng.chance(1, 4) {
        return;
    }
    let promote = |node: Node| async move { node.member_promote(id, WITHIN).await };
    let is_voter =
        |members: &BTreeMap<NodeId, Member>| members.get(&id).is_some_and(|member| !member.learner);
    if insist(sim, rng, format!("promotes {id}"), is_voter, promote).await {
        sim.history
            .borrow_mut()
            .count("members: one became a voter");
        // It returns before all groups count the voter. Until they do, some
        // need both sets of voters.
        sim.wait(FOLLOWED).await;
    }
}

fn lose(sim: &Sim, id: NodeId) {
    sim.cluster.lose(id);
    sim.is_well_again(id);
}

async fn send_away(sim: &Rc<Sim>, rng: &mut Rng, id: NodeId) {
    sim.leaving.borrow_mut().insert(id);
    let remove = |node: Node| async move { node.member_remove(id, WITHIN).await };
    let is_removed = |members: &BTreeMap<NodeId, Member>| !members.contains_key(&id);
    if insist(sim, rng, format!("removes {id}"), is_removed, remove).await
        && !sim.cluster.is_gone(id)
    {
        lose(sim, id);
    }
}

/// Asks one member after the other for a change, until it is made.
async fn insist<F: Future<Output = Result<(), Failure>>>(
    sim: &Rc<Sim>,
    rng: &mut Rng,
    what: String,
    is_made: impl Fn(&BTreeMap<NodeId, Member>) -> bool,
    change: impl Fn(Node) -> F,
) -> bool {
    let mut until = None;
    while until.is_none_or(|until| Instant::now() < until) {
        if sim.healed.get() && until.is_none() {
            until = Some(Instant::now() + PATIENCE);
        }
        let all = sim.cluster.all_running();
        if !all.is_empty() {
            let (id, running) = &all[rng.below(all.len() as u64) as usize];
            let outcome = running.during(change(running.node.clone())).await;
            sim.trace.say(
                format_args!("node {id}"),
                format_args!("{what}: {outcome:?}"),
            );
            match outcome {
                Some(Ok(())) => return true,
                // An earlier attempt may have done it; give the groups time to follow.
                Some(Err(failure)) if failure.is_certain() && is_made(&members(sim)) => {
                    sim.wait(WITHIN).await;
                    return true;
                }
                _ => {}
            }
        }
        sleep(Duration::from_millis(200)).await;
    }
    sim.violate(PROMISE, format!("nobody {what}"));
    false
}
