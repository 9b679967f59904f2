//! Clients: what they ask, and how they take the answers down.
//!
//! Kept true: every value written names the operation that wrote it, so that
//! a write whose outcome nobody was told can be told from the others.

use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use pontoon_engine::{Answer, KeyRange, Revision};
use pontoon_raftgroup::{Failure, NodeId};
use pontoon_wal::disk::sim::Rng;

use crate::cluster::Running;
use crate::history::{Asked, Operation, Outcome};
use crate::seeds::Sim;
use crate::waits;

pub(crate) mod accounts;
pub(crate) mod leases;
mod make;

use make::Maker;

/// A key, by its first letter and what follows.
pub(crate) fn key(letter: u64, number: u64) -> Bytes {
    format!("{}{number}", first(letter)).into()
}

/// The first letters of keys.
pub(crate) fn first(letter: u64) -> char {
    char::from(b'a' + letter as u8)
}

/// All keys with these first letters.
pub(crate) fn letters(from: u64, through: u64) -> KeyRange {
    KeyRange::new(first(from).to_string(), first(through + 1).to_string())
}

/// Asks, and takes the answer down.
pub(crate) async fn ask(
    sim: &Sim,
    client: u64,
    id: NodeId,
    running: &Running,
    within: Duration,
    make: impl FnOnce(usize) -> Asked,
) -> Outcome {
    let (number, asked) = {
        let mut history = sim.history.borrow_mut();
        let number = history.operations.len();
        let asked = make(number);
        let invoked = history.tick();
        history.operations.push(Operation {
            client,
            node: id,
            start: running.start,
            at: sim.trace.now(),
            invoked,
            returned: u64::MAX,
            until: Duration::MAX,
            asked: asked.clone(),
            outcome: Outcome::Unknown("outcome: none yet"),
        });
        (number, asked)
    };
    sim.trace.say(
        format_args!("client {client}"),
        format_args!("{number} at node {id}: {asked:?}"),
    );
    let node = &running.node;
    let outcome = running.during(async {
        match asked {
            Asked::Request(request) => node.request(request, within).await.map(Outcome::Answer),
            Asked::Serializable(range) => {
                let answer = node.read_serializable(&range, within).await;
                answer.map(|answer| Outcome::Answer(Answer::Range(answer)))
            }
            Asked::Compact(revision) => {
                let newest = node.compact(Revision(revision), within).await;
                newest.map(Outcome::Compacted)
            }
            Asked::Grant { id, ttl_secs } => {
                let granted = node.lease_grant(id, ttl_secs, within).await;
                granted.map(Outcome::Granted)
            }
            Asked::Revoke(id) => {
                let revision = node.lease_revoke(id, within).await;
                revision.map(|revision| Outcome::Answer(Answer::LeaseRevoke(revision)))
            }
            Asked::KeepAlive(id) => {
                let alive = node.lease_keep_alive(id, within).await;
                alive.map(Outcome::Alive)
            }
            Asked::Status { id, keys } => {
                let status = node.lease_status(id, keys, within).await;
                status.map(Outcome::Status)
            }
            Asked::Split(key) => node.split(key, within).await.map(Outcome::Split),
        }
    });
    let outcome = match outcome.await {
        Some(Ok(outcome)) => outcome,
        Some(Err(failure)) if failure.is_certain() => Outcome::Failed(failure),
        Some(Err(Failure::TimedOut)) => Outcome::Unknown("outcome: unknown, timed out"),
        Some(Err(_)) => Outcome::Unknown("outcome: unknown, leader changed"),
        None => Outcome::Unknown("outcome: unknown, the node ended"),
    };
    sim.trace.say(
        format_args!("client {client}"),
        format_args!("{number}: {outcome:?}"),
    );
    let mut history = sim.history.borrow_mut();
    history.count(match &outcome {
        Outcome::Failed(Failure::Reject(_)) => "outcome: rejected",
        Outcome::Failed(_) => "outcome: failed for certain",
        Outcome::Unknown(why) => why,
        _ => "outcome: answered",
    });
    let returned = history.tick();
    if let Outcome::Answer(answer) = &outcome {
        history.learn(answer);
    }
    let operation = &mut history.operations[number];
    if !matches!(outcome, Outcome::Unknown(_)) {
        operation.returned = returned;
    }
    operation.until = sim.trace.now();
    operation.outcome = outcome.clone();
    outcome
}

/// A client, until the run is over.
pub(crate) async fn client(sim: Rc<Sim>, number: u64) {
    let mut rng = Rng::new(sim.plan.seed ^ 0xc11e << 16 ^ number);
    let rng = &mut rng;
    let mut bound = sim.cluster.any(rng);
    while !sim.healed.get() {
        let pause = rng.below(1 + sim.plan.pause.as_millis() as u64);
        sim.pause(Duration::from_millis(pause)).await;
        let running = match sim.cluster.running(bound) {
            Some(running) if !rng.chance(1, 40) => running,
            _ => {
                bound = sim.cluster.any(rng);
                continue;
            }
        };
        // Some are so patient that they see whether they wait too long.
        let within = match rng.chance(1, 2) {
            true => waits::bound(&sim.plan.shape) + Duration::from_millis(500 + rng.below(2000)),
            false => Duration::from_millis(500 + rng.below(3500)),
        };
        let mut maker = Maker::new(&sim, rng);
        let make = |id| maker.asked(id);
        let outcome = ask(&sim, number, bound, &running, within, make).await;
        let kind = maker.kind;
        sim.history.borrow_mut().count(kind);
        if matches!(outcome, Outcome::Unknown(_)) && rng.chance(1, 2) {
            bound = sim.cluster.any(rng);
        }
    }
}

/// Compacts now and then.
pub(crate) async fn compact(sim: Rc<Sim>, every: Duration) {
    let mut rng = Rng::new(sim.plan.seed ^ 0xc0_4ac7);
    while !sim.healed.get() {
        let pause = 1 + rng.below(2 * every.as_millis() as u64);
        sim.pause(Duration::from_millis(pause)).await;
        let id = sim.cluster.any(&mut rng);
        let Some(running) = sim.cluster.running(id) else {
            continue;
        };
        let back = [0, 1, 5, 50][rng.below(4) as usize];
        let revision = sim.history.borrow().newest - rng.below(back + 1) as i64;
        // What nobody has seen would be missing in the history.
        let collected = sim.history.borrow().truth.collected.values().min().copied();
        let revision = revision.min(collected.unwrap_or(0) + 1);
        sim.history.borrow_mut().count("ask: compact");
        let within = Duration::from_secs(6);
        ask(&sim, 0, id, &running, within, |_| {
            Asked::Compact(revision.max(1))
        })
        .await;
    }
}
