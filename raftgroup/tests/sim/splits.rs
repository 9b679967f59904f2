//! Cuts ranges while the cluster works.

use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use pontoon_wal::disk::sim::Rng;
use tokio::time::Instant;

use crate::faults::starve;
use crate::history::{Asked, Outcome};
use crate::seeds::Sim;
use crate::workload::{ask, first, key};

/// Most groups of a run.
const GROUPS_MAX: usize = 10;

/// As many cuts as the plan has, over the time that it has for faults.
pub(crate) async fn split(sim: Rc<Sim>) {
    let rng = &mut Rng::new(sim.plan.seed ^ 0x5911);
    let longest = 2 * sim.plan.duration.as_millis() as u64 / sim.plan.splits.max(1);
    for _ in 0..sim.plan.splits {
        let pause = 1 + rng.below(longest);
        sim.wait(Duration::from_millis(pause)).await;
        let cut = some_key(&sim, rng);
        // Once more if it is known to have failed; another one if it isn't.
        let until = Instant::now() + Duration::from_secs(10);
        while !sim.enough.get() && Instant::now() < until {
            let node = sim.cluster.any(rng);
            let few = sim.cluster.groups().len() < GROUPS_MAX;
            if let Some(running) = sim.cluster.running(node).filter(|_| few) {
                let within = Duration::from_millis(1000 + rng.below(5000));
                let asked = |_| Asked::Split(cut.clone());
                if sim.plan.starved_splits {
                    starve_one(&sim, rng);
                }
                let outcome = ask(&sim, 0, node, &running, within, asked).await;
                if let Outcome::Split(_) = outcome {
                    sim.history.borrow_mut().count("split: done");
                }
                if !matches!(outcome, Outcome::Failed(_)) {
                    break;
                }
            }
            sim.wait(Duration::from_millis(200)).await;
        }
    }
}

/// Some member gets little processor time while a range is split.
fn starve_one(sim: &Rc<Sim>, rng: &mut Rng) {
    let (sim, node) = (Rc::clone(sim), sim.cluster.any(rng));
    let rng = Rng::new(rng.next_u64());
    tokio::task::spawn_local(async move { starve(&sim, node, rng).await });
}

/// Somewhere between keys or at one of them, also where no key is.
pub(crate) fn some_key(sim: &Sim, rng: &mut Rng) -> Bytes {
    let letter = rng.below(sim.plan.letters);
    match rng.below(5) {
        0 | 1 => first(letter).to_string().into(),
        2 => key(letter, rng.below(sim.plan.keys_per_letter)),
        3 => format!("{}!{}", first(letter), rng.below(3)).into(),
        _ => format!("{}~", first(letter)).into(),
    }
}
