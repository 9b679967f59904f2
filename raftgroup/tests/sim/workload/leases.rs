//! Clients that have leases: they hang keys on them, keep them alive for a
//! while, and revoke them or let them end. And clients that keep others' leases
//! alive through one node and look at them through all, also when they are gone.
//!
//! Kept true: a lease is asked for by one client only, and under the same id
//! again only when that client knows that it is gone. Any client may put keys
//! on it.

use std::rc::Rc;
use std::time::Duration;

use pontoon_engine::{Op, Put, Reject, Request, Txn};
use pontoon_raftgroup::{Failure, GroupId, NodeId};
use pontoon_wal::disk::sim::Rng;

use super::{ask, key};
use crate::faults::leaders_of;
use crate::history::{Asked, Outcome};
use crate::seeds::Sim;
use crate::waits;

/// Longest time to live.
pub(crate) const TTL_SECS_MAX: u64 = 6;

/// Numbers of clients that have leases begin here.
const FIRST: u64 = 100;

/// Numbers of clients that visit them begin here.
const VISITORS: u64 = 200;

/// Ids that a client chooses are its number times this, and a count.
const IDS: i64 = 1000;

struct Lease {
    id: i64,
    /// It is left to itself.
    left: bool,
}

/// A client with leases, until the run is over.
pub(crate) async fn lessee(sim: Rc<Sim>, number: u64) {
    let client = FIRST + number;
    let rng = &mut Rng::new(sim.plan.seed ^ 0x1ea5e << 16 ^ number);
    let mut held: Vec<Lease> = Vec::new();
    // Ids that can be used again.
    let mut gone: Vec<i64> = Vec::new();
    let mut ids = (1..).map(|count| client as i64 * IDS + count);
    while !sim.healed.get() {
        sim.pause(Duration::from_millis(rng.below(400))).await;
        let node = sim.cluster.any(rng);
        let Some(running) = sim.cluster.running(node) else {
            continue;
        };
        let within = match rng.chance(1, 2) {
            true => waits::bound(&sim.plan.shape) + Duration::from_millis(500),
            false => Duration::from_millis(500 + rng.below(3500)),
        };
        if held.is_empty() || (held.len() < 3 && rng.chance(1, 6)) {
            let id = match (rng.below(3), gone.pop()) {
                (0, again) => {
                    gone.extend(again);
                    0
                }
                (_, Some(again)) => again,
                (_, None) => ids.next().expect("there are enough"),
            };
            // Rather a short one.
            let longest = 1 + rng.below(TTL_SECS_MAX);
            let ttl_secs = 1 + rng.below(longest) as i64;
            let grant = |_| Asked::Grant { id, ttl_secs };
            let id = match ask(&sim, client, node, &running, within, grant).await {
                Outcome::Granted(granted) => {
                    sim.history.borrow_mut().count("lease: granted");
                    granted.id
                }
                // It may be there yet.
                Outcome::Unknown(_) if id != 0 => id,
                _ => continue,
            };
            sim.history.borrow_mut().leases.push(id);
            held.push(Lease { id, left: false });
            continue;
        }
        let place = rng.below(held.len() as u64) as usize;
        let id = held[place].id;
        let mut revokes = false;
        let asked: Box<dyn FnOnce(usize) -> Asked> = match rng.below(100) {
            0..35 if held[place].left => continue,
            0..35 => Box::new(move |_| Asked::KeepAlive(id)),
            35..68 => {
                let puts = attach(&sim, rng, client, id);
                Box::new(move |number| put_all(puts, number))
            }
            68..82 => {
                let keys = rng.chance(3, 4);
                Box::new(move |_| Asked::Status { id, keys })
            }
            82..90 => {
                revokes = true;
                Box::new(move |_| Asked::Revoke(id))
            }
            _ => {
                held[place].left = true;
                continue;
            }
        };
        let outcome = ask(&sim, client, node, &running, within, asked).await;
        let is_gone = match outcome {
            Outcome::Answer(_) => revokes,
            Outcome::Alive(ttl) => ttl.is_none(),
            Outcome::Status(status) => status.is_none(),
            Outcome::Failed(Failure::Reject(reject)) => reject == Reject::LeaseNotFound,
            _ => false,
        };
        if is_gone {
            sim.history.borrow_mut().count(match revokes {
                true => "lease: revoked",
                false => "lease: found to be gone",
            });
            held.remove(place);
            if id / IDS == client as i64 && rng.chance(1, 2) {
                gone.push(id);
            }
        }
    }
}

/// A client that visits leases of others, until the run is over.
pub(crate) async fn visitor(sim: Rc<Sim>, number: u64) {
    let client = VISITORS + number;
    let rng = &mut Rng::new(sim.plan.seed ^ 0x10_04e5 << 16 ^ number);
    while !sim.healed.get() {
        sim.pause(Duration::from_millis(rng.below(400))).await;
        let leases = sim.history.borrow().leases.clone();
        if leases.is_empty() {
            continue;
        }
        let newest = rng.below(8.min(leases.len() as u64)) as usize;
        let id = leases[leases.len() - 1 - newest];
        let home = some_leader(&sim, rng);
        for _ in 0..rng.below(30) {
            sim.pause(Duration::from_millis(rng.below(600))).await;
            let node = match rng.chance(1, 2) {
                true => home,
                false => some_leader(&sim, rng),
            };
            let Some(running) = sim.cluster.running(node) else {
                break;
            };
            let asked = |_| match node == home {
                true => Asked::KeepAlive(id),
                false => Asked::Status { id, keys: false },
            };
            let within = Duration::from_millis(300 + rng.below(1000));
            ask(&sim, client, node, &running, within, asked).await;
        }
    }
}

/// Mostly a node that thinks it leads the root group: it may be mistaken.
fn some_leader(sim: &Sim, rng: &mut Rng) -> NodeId {
    let leaders = leaders_of(sim, GroupId::ROOT);
    match leaders.len() as u64 {
        0 => sim.cluster.any(rng),
        _ if rng.chance(1, 4) => sim.cluster.any(rng),
        count => leaders[rng.below(count) as usize],
    }
}

/// Puts that hang keys on a lease, or now and then take one off it. With
/// several groups, keys of several.
fn attach(sim: &Sim, rng: &mut Rng, client: u64, id: i64) -> Vec<Put> {
    let across = sim.plan.letters > 1 && rng.below(100) < sim.plan.across;
    let letters = match across {
        true => 2 + rng.below(sim.plan.letters - 1),
        false => 1,
    };
    let from = rng.below(sim.plan.letters);
    let puts = (0..letters).map(|step| {
        let letter = (from + step) % sim.plan.letters;
        let number = match rng.chance(1, 2) {
            // Which only this client puts, though others delete it.
            true => client,
            false => rng.below(sim.plan.keys_per_letter),
        };
        Put {
            key: key(letter, number),
            lease: if rng.chance(1, 6) { 0 } else { id },
            ..Put::default()
        }
    });
    puts.collect()
}

fn put_all(mut puts: Vec<Put>, number: usize) -> Asked {
    for put in &mut puts {
        put.value = number.to_string().into();
    }
    Asked::Request(match puts.len() {
        1 => Request::Put(puts.remove(0)),
        _ => Request::Txn(Txn {
            success: puts.into_iter().map(Op::Put).collect(),
            ..Txn::default()
        }),
    })
}
