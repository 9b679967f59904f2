//! Clients that watch, and the collectors that learn from each replica what
//! it has written.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use pontoon_engine::{KeyRange, Revision};
use pontoon_raftgroup::{Delivery, NodeId, RangeMap, Watch};
use pontoon_wal::disk::sim::Rng;
use tokio::time::sleep;

use crate::cluster::Running;
use crate::history::{Seen, Watched};
use crate::seeds::Sim;
use crate::workload::{key, letters};

/// How soon what a node's map says is followed.
const LOOK: Duration = Duration::from_millis(20);

/// How soon it is noted that nothing was written.
const COLLECTED: Duration = Duration::from_millis(100);

/// Follows all replicas of a node that has just started; when ranges are cut,
/// the parts too.
pub(crate) fn collect(sim: &Rc<Sim>, id: NodeId) {
    let Some(running) = sim.cluster.running(id) else {
        return;
    };
    let sim = Rc::clone(sim);
    tokio::task::spawn_local(async move {
        let mut map = Arc::new(RangeMap::first(
            &sim.cluster.shape.splits,
            &BTreeMap::new(),
            0,
        ));
        let mut followed = BTreeSet::new();
        loop {
            for (placed, keys) in map.ranges() {
                // What isn't here, those collect who have it.
                if sim.cluster.shape.replicas > 0 && !placed.members.contains(&id) {
                    continue;
                }
                if followed.insert((keys.key.clone(), keys.end.clone())) {
                    let (sim, running) = (Rc::clone(&sim), running.clone());
                    tokio::task::spawn_local(collect_keys(sim, id, running, keys));
                }
            }
            if running.during(sleep(LOOK)).await.is_none() || sim.over.get() {
                return;
            }
            map = running.node.map().unwrap_or(map);
        }
    });
}

async fn collect_keys(sim: Rc<Sim>, id: NodeId, running: Running, keys: KeyRange) {
    let mut from = Revision(1);
    loop {
        let mut stream = running.node.watch(Watch {
            keys: keys.clone(),
            from,
            prev_kv: false,
        });
        loop {
            let next = tokio::select! {
                biased;
                next = running.during(stream.next()) => Some(next),
                () = sleep(COLLECTED) => None,
            };
            let truth = &mut sim.history.borrow_mut().truth;
            match next {
                Some(None | Some(None)) => return,
                Some(Some(Some(Delivery::Events(events)))) => {
                    truth.add(sim.trace.now(), id, &events);
                }
                Some(Some(Some(Delivery::Compacted(floor)))) => {
                    from = floor;
                    break;
                }
                None => {}
            }
            let collected = truth.collected.entry(keys.key.clone()).or_default();
            *collected = stream.delivered().0.max(*collected);
        }
    }
}

/// Watches, resuming at other nodes, until the run is over.
pub(crate) async fn watch(sim: Rc<Sim>, number: u64) {
    let mut rng = Rng::new(sim.plan.seed ^ 0x3a7c << 16 ^ number);
    let rng = &mut rng;
    sleep(Duration::from_millis(rng.below(5000))).await;
    let letter = rng.below(sim.plan.letters);
    let keys = match rng.below(4) {
        0 => KeyRange::one(key(letter, rng.below(sim.plan.keys_per_letter))),
        1 => letters(letter, letter + rng.below(sim.plan.letters - letter)),
        _ => KeyRange::all(),
    };
    let prev_kv = rng.chance(1, 2);
    // How long it takes over a delivery.
    let slow = [0, 0, 50, 2000][rng.below(4) as usize];
    let restless = rng.chance(1, 3);
    let mut from = match rng.below(3) {
        0 => 0,
        1 => 1,
        _ => (sim.history.borrow().newest - rng.below(50) as i64).max(1),
    };
    let place = sim.history.borrow().watches.len();
    sim.history.borrow_mut().watches.push(Watched {
        keys: keys.clone(),
        prev_kv,
        seen: Vec::new(),
        drained: false,
    });
    let note = |node, seen| {
        let mut history = sim.history.borrow_mut();
        let tick = history.tick();
        history.count(match seen {
            Seen::Began { .. } => "watch: begun or resumed",
            Seen::Events(_) => "watch: delivery",
            Seen::Compacted(_) => "watch: compacted",
        });
        history.watches[place].seen.push((tick, node, seen));
    };
    loop {
        let all = sim.cluster.all_running();
        if all.is_empty() {
            sleep(Duration::from_millis(100)).await;
            continue;
        }
        let (id, running) = all[rng.below(all.len() as u64) as usize].clone();
        let wanted = Watch {
            keys: keys.clone(),
            from: Revision(from),
            prev_kv,
        };
        let mut stream = running.node.watch(wanted);
        if from <= 0 && stream.delivered().0 > 0 {
            from = stream.delivered().0 + 1;
        }
        note(
            id,
            Seen::Began {
                from: (from > 0).then_some(from),
            },
        );
        sim.trace.say(
            format_args!("watch {number}"),
            format_args!("from {from} at node {id}"),
        );
        let stays = Duration::from_millis(if restless {
            1 + rng.below(6000)
        } else {
            1 << 30
        });
        let leaves = sleep(stays);
        tokio::pin!(leaves);
        loop {
            let next = running.during(stream.next());
            let delivery = tokio::select! {
                biased;
                delivery = next => delivery,
                () = sim.quiesced(), if sim.over.get() => {
                    sim.history.borrow_mut().watches[place].drained = true;
                    return;
                },
                () = &mut leaves, if !sim.over.get() => None,
                () = sim.ending.notified() => continue,
            };
            match delivery {
                None | Some(None) => break,
                Some(Some(Delivery::Events(events))) => {
                    let last = events.last().map_or(0, |event| event.change.revision.0);
                    sim.trace.say(
                        format_args!("watch {number}"),
                        format_args!("{} events to {last}", events.len()),
                    );
                    from = from.max(last + 1);
                    note(id, Seen::Events(events));
                    if slow > 0 && !sim.over.get() {
                        sleep(Duration::from_millis(rng.below(slow))).await;
                    }
                }
                Some(Some(Delivery::Compacted(floor))) => {
                    sim.trace.say(
                        format_args!("watch {number}"),
                        format_args!("{from} is below {floor}"),
                    );
                    note(id, Seen::Compacted(floor.0));
                    from = floor.0;
                    break;
                }
            }
        }
        sleep(Duration::from_millis(10)).await;
    }
}
