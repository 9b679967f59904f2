//! After the faults: everything must work again, within bounded time.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pontoon_engine::{ContentHash, KeyRange, Op, Put, Range, Request, Txn};
use pontoon_raftgroup::{Delivery, GroupId, LogIndex, Member, NodeId, RangeMap, Watch};
use pontoon_wal::disk::sim::Rng;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout_at};

use crate::history::{Asked, Outcome};
use crate::seeds::Sim;
use crate::workload::{ask, first, key};

/// In which all must be well again.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// How long a transaction may take when there are no faults, however many
/// want the same keys.
const DEADLINE: Duration = Duration::from_secs(15);

/// What was seen at the end.
#[derive(Default)]
pub(crate) struct End {
    /// What didn't get done in time.
    pub(crate) stuck: Vec<String>,
    /// Of each group, what each node has.
    pub(crate) contents: BTreeMap<GroupId, BTreeMap<NodeId, Option<(LogIndex, ContentHash)>>>,
    /// What each node takes for the map.
    pub(crate) maps: BTreeMap<NodeId, Option<Arc<RangeMap>>>,
    /// Whom each node takes for members.
    pub(crate) members: BTreeMap<NodeId, Option<BTreeMap<NodeId, Member>>>,
}

/// Writes to every group from every node, reads and watches everything, then
/// waits until all replicas are the same.
pub(crate) async fn come_to_rest(sim: &Rc<Sim>) -> End {
    let mut end = End::default();
    let deadline = Instant::now() + PATIENCE;
    if sim.plan.splits > 0 && !splits(sim, deadline).await {
        end.stuck.push("a split".to_owned());
    }
    for id in sim.cluster.ids() {
        for key in a_key_of_each_group(sim) {
            let text = format!("a put of {key:?} at node {id}");
            let put = move |number: usize| {
                let value = number.to_string().into();
                Asked::Request(Request::Put(Put {
                    key,
                    value,
                    ..Put::default()
                }))
            };
            if !insist(sim, id, deadline, put).await {
                end.stuck.push(text);
            }
        }
    }
    for id in sim.cluster.ids() {
        let all = || Range::of(KeyRange::all());
        if !insist(sim, id, deadline, |_| Asked::Request(Request::Range(all()))).await {
            end.stuck.push(format!("a read of all keys at node {id}"));
        }
        if !insist(sim, id, deadline, |_| Asked::Serializable(all())).await {
            end.stuck
                .push(format!("a serializable read of all keys at node {id}"));
        }
        if !watches(sim, id, deadline).await {
            end.stuck.push(format!("a watch of all keys at node {id}"));
        }
    }
    if sim.plan.across > 0 {
        end.stuck.extend(contest(sim).await);
    }
    end.stuck.extend(leases_left(sim).await);
    if !end.stuck.is_empty() {
        for (id, running) in sim.cluster.all_running() {
            for status in running.node.status() {
                end.stuck.push(format!("\nnode {id}: {status:?}"));
            }
        }
    }
    sim.over.set(true);
    sim.ending.notify_waiters();
    let deadline = Instant::now() + PATIENCE;
    loop {
        look(sim, &mut end);
        let same = end.contents.values().all(is_one) && is_one(&end.maps) && is_one(&end.members);
        let not_upgraded = match sim.plan.upgrade {
            true => sim.not_upgraded(),
            false => Vec::new(),
        };
        if same && not_upgraded.is_empty() {
            return end;
        }
        if Instant::now() > deadline {
            let stuck = |id| format!("the upgrade of node {id}");
            end.stuck.extend(not_upgraded.into_iter().map(stuck));
            return end;
        }
        sleep(Duration::from_millis(100)).await;
    }
}

/// Keys that nothing else is about, one in each range.
fn a_key_of_each_group(sim: &Sim) -> Vec<Bytes> {
    let map = sim.cluster.map();
    let ranges = map.iter().flat_map(|map| map.ranges());
    let keys = ranges.map(|(placed, keys)| match placed.start.is_empty() {
        true => Bytes::from_static(b"A"),
        false => {
            let inside = Bytes::from([&placed.start[..], b"~"].concat());
            match keys.contains(&inside) {
                true => inside,
                false => placed.start.clone(),
            }
        }
    });
    keys.collect()
}

/// Asks until there is an answer.
async fn insist(
    sim: &Rc<Sim>,
    id: NodeId,
    deadline: Instant,
    make: impl FnOnce(usize) -> Asked + Clone,
) -> bool {
    while Instant::now() < deadline {
        let within = Duration::from_secs(5).min(deadline - Instant::now());
        if let Some(running) = sim.cluster.running(id) {
            let outcome = ask(sim, 0, id, &running, within, make.clone()).await;
            if matches!(outcome, Outcome::Answer(_)) {
                return true;
            }
        }
        sleep(Duration::from_millis(100)).await;
    }
    false
}

/// Whether a range can be cut.
async fn splits(sim: &Rc<Sim>, deadline: Instant) -> bool {
    let rng = &mut Rng::new(sim.plan.seed ^ 0x5912);
    let cut = Bytes::from(format!("{}9~", first(rng.below(sim.plan.letters))));
    while Instant::now() < deadline {
        let id = sim.cluster.any(rng);
        if let Some(running) = sim.cluster.running(id) {
            let asked = |_| Asked::Split(cut.clone());
            let outcome = ask(sim, 0, id, &running, Duration::from_secs(5), asked).await;
            let map = sim.cluster.map();
            let mut ranges = map.iter().flat_map(|map| map.ranges());
            if matches!(outcome, Outcome::Split(_)) || ranges.any(|(placed, _)| placed.start == cut)
            {
                return true;
            }
        }
        sleep(Duration::from_millis(100)).await;
    }
    false
}

/// All clients at once, at the same keys in several groups: nobody starves.
async fn contest(sim: &Rc<Sim>) -> Vec<String> {
    let mut contestants = JoinSet::new();
    for client in 1..=sim.plan.clients {
        let sim = Rc::clone(sim);
        contestants.spawn_local(async move {
            let rng = &mut Rng::new(sim.plan.seed ^ 0xc0_47e5 << 16 ^ client);
            for _ in 0..4 {
                let id = sim.cluster.any(rng);
                let Some(running) = sim.cluster.running(id) else {
                    continue;
                };
                let most = sim.plan.letters.min(2 + rng.below(3));
                let from = rng.below(sim.plan.letters);
                let letters = (from..from + most).map(|letter| letter % sim.plan.letters);
                let txn = |number: usize| {
                    let put = |letter| Put {
                        key: key(letter, 0),
                        value: number.to_string().into(),
                        ..Put::default()
                    };
                    Asked::Request(Request::Txn(Txn {
                        success: letters.map(|letter| Op::Put(put(letter))).collect(),
                        ..Txn::default()
                    }))
                };
                let outcome = ask(&sim, client, id, &running, DEADLINE, txn).await;
                if !matches!(outcome, Outcome::Answer(_)) {
                    return Some(format!("a transaction at node {id}: {outcome:?}"));
                }
            }
            None
        });
    }
    let mut stuck = Vec::new();
    while let Some(done) = contestants.join_next().await {
        stuck.extend(done.ok().flatten());
    }
    stuck
}

/// The leases that are still somewhere, though nobody has kept them alive.
async fn leases_left(sim: &Rc<Sim>) -> Vec<String> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let all = sim.cluster.all_running().into_iter();
        let left = all.flat_map(|(id, running)| {
            let leases = running.node.leases().into_iter();
            leases.map(move |lease| format!("the end of lease {lease} at node {id}"))
        });
        let left: Vec<_> = left.collect();
        if left.is_empty() || Instant::now() > deadline {
            break left;
        }
        sleep(Duration::from_millis(200)).await;
    }
}

/// Whether a watch over all keys gets to the last of them.
async fn watches(sim: &Rc<Sim>, id: NodeId, deadline: Instant) -> bool {
    let Some(running) = sim.cluster.running(id) else {
        return false;
    };
    let last = *sim
        .history
        .borrow()
        .truth
        .writes
        .keys()
        .next_back()
        .unwrap_or(&0);
    let mut stream = running.node.watch(Watch {
        keys: KeyRange::all(),
        from: pontoon_engine::Revision(last),
        prev_kv: false,
    });
    let delivery = timeout_at(deadline, running.during(stream.next())).await;
    matches!(delivery, Ok(Some(Some(Delivery::Events(_)))))
}

fn look(sim: &Sim, end: &mut End) {
    let ids = sim.cluster.ids();
    let nodes: BTreeMap<_, _> = ids
        .iter()
        .map(|id| (*id, sim.cluster.running(*id).map(|running| running.node)))
        .collect();
    let map = sim.cluster.map();
    let of_nodes = |group| {
        let of = |node: &Option<pontoon_raftgroup::Node>| node.as_ref()?.content(group);
        let all = nodes.iter().map(|(id, node)| (*id, of(node)));
        // Who need not have it has none, in the end.
        let placed = map.as_ref().and_then(|map| map.placed(group));
        let is_due = |id| placed.is_none_or(|placed| placed.members.contains(&id));
        all.filter(|(id, content)| content.is_some() || is_due(*id))
            .collect()
    };
    let groups = sim.cluster.groups().into_iter();
    end.contents = groups.map(|group| (group, of_nodes(group))).collect();
    let maps = nodes.iter().map(|(id, node)| {
        let map = node.as_ref().and_then(|node| node.map());
        (*id, map)
    });
    end.maps = maps.collect();
    let members = nodes.iter().map(|(id, node)| {
        let members = node.as_ref().map(|node| node.members());
        (*id, members)
    });
    end.members = members.collect();
}

pub(crate) fn is_one<T: PartialEq>(of_nodes: &BTreeMap<NodeId, Option<T>>) -> bool {
    let mut all = of_nodes.values();
    let first = all.next();
    first.is_some_and(Option::is_some) && all.all(|other| Some(other) == first)
}
