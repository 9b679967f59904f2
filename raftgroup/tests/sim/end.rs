//! After the faults: everything must work again, within bounded time.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use pontoon_engine::{ContentHash, KeyRange, Put, Range, Request};
use pontoon_raftgroup::{Delivery, GroupId, LogIndex, NodeId, Watch};
use tokio::time::{Instant, sleep, timeout_at};

use crate::history::{Asked, Outcome};
use crate::seeds::Sim;
use crate::workload::{ask, key};

/// In which all must be well again.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// What was seen at the end.
#[derive(Default)]
pub(crate) struct End {
    /// What didn't get done in time.
    pub(crate) stuck: Vec<String>,
    /// Of each group, what each node has.
    pub(crate) contents: BTreeMap<GroupId, BTreeMap<NodeId, Option<(LogIndex, ContentHash)>>>,
}

/// Writes to every group from every node, reads and watches everything, then
/// waits until all replicas are the same.
pub(crate) async fn come_to_rest(sim: &Rc<Sim>) -> End {
    let mut end = End::default();
    let deadline = Instant::now() + PATIENCE;
    for id in sim.cluster.shape.ids() {
        for group in sim.cluster.shape.groups() {
            let key = key(group, 0);
            let put = move |number: usize| {
                let value = number.to_string().into();
                Asked::Request(Request::Put(Put {
                    key,
                    value,
                    ..Put::default()
                }))
            };
            if !insist(sim, id, deadline, put).await {
                end.stuck
                    .push(format!("a put to group {group} at node {id}"));
            }
        }
    }
    for id in sim.cluster.shape.ids() {
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
    if !end.stuck.is_empty() {
        for (id, running) in sim.cluster.all_running() {
            for status in running.node.status() {
                end.stuck.push(format!("\nnode {id}: {status:?}"));
            }
        }
    }
    sim.over.set(true);
    sim.ending.notify_waiters();
    while Instant::now() < deadline {
        end.contents = contents(sim);
        if end.contents.values().all(is_one) {
            break;
        }
        sleep(Duration::from_millis(100)).await;
    }
    end
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

fn contents(sim: &Sim) -> BTreeMap<GroupId, BTreeMap<NodeId, Option<(LogIndex, ContentHash)>>> {
    let of = |id, group| {
        sim.cluster
            .running(id)
            .and_then(|running| running.node.content(group))
    };
    let groups = sim.cluster.shape.groups().map(|group| {
        let nodes = sim.cluster.shape.ids().map(|id| (id, of(id, group)));
        (group, nodes.collect())
    });
    groups.collect()
}

pub(crate) fn is_one<T: PartialEq>(of_nodes: &BTreeMap<NodeId, Option<T>>) -> bool {
    let mut all = of_nodes.values();
    let first = all.next();
    first.is_some_and(Option::is_some) && all.all(|other| Some(other) == first)
}
