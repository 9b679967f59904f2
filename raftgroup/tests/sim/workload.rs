//! Clients: what they ask, and how they take the answers down.
//!
//! Kept true: every value written names the operation that wrote it, so that
//! a write whose outcome nobody was told can be told from the others.

use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use pontoon_engine::{
    Compare, DeleteRange, KeyRange, Op, Operand, Put, Range, Relation, Request, Revision,
    SortOrder, SortTarget, Txn,
};
use pontoon_raftgroup::{GroupId, NodeId};
use pontoon_wal::disk::sim::Rng;
use tokio::time::sleep;

use crate::cluster::{Running, Shape};
use crate::history::{Asked, Operation, Outcome};
use crate::seeds::Sim;

/// The keys of a group: those that begin with its letter.
pub(crate) fn key(group: GroupId, number: u64) -> Bytes {
    format!("{}{number}", letter(group)).into()
}

pub(crate) fn group_keys(shape: &Shape, group: GroupId) -> KeyRange {
    let first = if group.is_root() {
        "\0".to_owned()
    } else {
        letter(group).to_string()
    };
    match shape.splits.get(group.0 as usize) {
        Some(next) => KeyRange::new(first, next.clone()),
        None => KeyRange::new(first, "\0"),
    }
}

fn letter(group: GroupId) -> char {
    char::from(b'a' + group.0 as u8)
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
                answer.map(|answer| Outcome::Answer(pontoon_engine::Answer::Range(answer)))
            }
            Asked::Compact(revision) => {
                let newest = node.compact(Revision(revision), within).await;
                newest.map(Outcome::Compacted)
            }
        }
    });
    let outcome = match outcome.await {
        Some(Ok(outcome)) => outcome,
        Some(Err(failure)) if failure.is_certain() => Outcome::Failed(failure),
        Some(Err(pontoon_raftgroup::Failure::TimedOut)) => {
            Outcome::Unknown("outcome: unknown, timed out")
        }
        Some(Err(_)) => Outcome::Unknown("outcome: unknown, leader changed"),
        None => Outcome::Unknown("outcome: unknown, the node ended"),
    };
    sim.trace.say(
        format_args!("client {client}"),
        format_args!("{number}: {outcome:?}"),
    );
    let mut history = sim.history.borrow_mut();
    history.count(match &outcome {
        Outcome::Answer(_) | Outcome::Compacted(_) => "outcome: answered",
        Outcome::Failed(pontoon_raftgroup::Failure::Reject(_)) => "outcome: rejected",
        Outcome::Failed(_) => "outcome: failed for certain",
        Outcome::Unknown(why) => why,
    });
    let returned = history.tick();
    if let Outcome::Answer(answer) = &outcome {
        history.learn(answer);
    }
    let operation = &mut history.operations[number];
    if !matches!(outcome, Outcome::Unknown(_)) {
        operation.returned = returned;
    }
    operation.outcome = outcome.clone();
    outcome
}

/// A client, until the run is over.
pub(crate) async fn client(sim: Rc<Sim>, number: u64) {
    let mut rng = Rng::new(sim.plan.seed ^ 0xc11e << 16 ^ number);
    let rng = &mut rng;
    let mut bound = NodeId(1 + rng.below(sim.cluster.shape.nodes));
    while !sim.healed.get() {
        sleep(Duration::from_millis(
            rng.below(1 + sim.plan.pause.as_millis() as u64),
        ))
        .await;
        let running = match sim.cluster.running(bound) {
            Some(running) if !rng.chance(1, 40) => running,
            _ => {
                bound = NodeId(1 + rng.below(sim.cluster.shape.nodes));
                continue;
            }
        };
        let within = Duration::from_millis(500 + rng.below(3500));
        let mut maker = Maker {
            sim: &sim,
            rng: &mut *rng,
            kind: "",
        };
        let known = maker.snapshot();
        let make = |id| maker.asked(id, &known);
        let outcome = ask(&sim, number, bound, &running, within, make).await;
        sim.history.borrow_mut().count(maker.kind);
        if matches!(outcome, Outcome::Unknown(_)) && rng.chance(1, 2) {
            bound = NodeId(1 + rng.below(sim.cluster.shape.nodes));
        }
    }
}

/// Compacts now and then.
pub(crate) async fn compact(sim: Rc<Sim>, every: Duration) {
    let mut rng = Rng::new(sim.plan.seed ^ 0xc0_4ac7);
    while !sim.healed.get() {
        sleep(Duration::from_millis(
            1 + rng.below(2 * every.as_millis() as u64),
        ))
        .await;
        let id = NodeId(1 + rng.below(sim.cluster.shape.nodes));
        let Some(running) = sim.cluster.running(id) else {
            continue;
        };
        let back = [0, 1, 5, 50][rng.below(4) as usize];
        let revision = sim.history.borrow().newest - rng.below(back + 1) as i64;
        sim.history.borrow_mut().count("ask: compact");
        let within = Duration::from_secs(3);
        ask(&sim, 0, id, &running, within, |_| {
            Asked::Compact(revision.max(1))
        })
        .await;
    }
}

/// What a client knows when it asks.
struct Known {
    newest: i64,
    versions: std::collections::BTreeMap<Bytes, (i64, i64)>,
}

struct Maker<'a> {
    sim: &'a Sim,
    rng: &'a mut Rng,
    kind: &'static str,
}

impl Maker<'_> {
    fn snapshot(&self) -> Known {
        let history = self.sim.history.borrow();
        Known {
            newest: history.newest,
            versions: history.known.clone(),
        }
    }

    fn group(&mut self) -> GroupId {
        GroupId(
            self.rng
                .below(self.sim.cluster.shape.splits.len() as u64 + 1),
        )
    }

    fn key(&mut self, group: GroupId) -> Bytes {
        key(group, self.rng.below(self.sim.plan.keys_per_group))
    }

    fn asked(&mut self, id: usize, known: &Known) -> Asked {
        let group = self.group();
        let request = match self.rng.below(100) {
            0..24 => self.put(id, group),
            24..28 => {
                self.kind = "ask: put, ignoring the value";
                Request::Put(Put {
                    key: self.key(group),
                    ignore_value: true,
                    prev_kv: self.rng.chance(1, 2),
                    ..Put::default()
                })
            }
            28..36 => {
                self.kind = "ask: delete";
                let keys = match self.rng.chance(2, 3) {
                    true => KeyRange::one(self.key(group)),
                    false => self.within(group),
                };
                Request::DeleteRange(DeleteRange {
                    keys,
                    prev_kv: self.rng.chance(1, 2),
                })
            }
            36..60 => Request::Txn(self.txn(id, group, known, 0)),
            60..82 => {
                self.kind = "ask: range";
                Request::Range(self.range(group, known))
            }
            _ => {
                self.kind = "ask: serializable range";
                return Asked::Serializable(self.range(group, known));
            }
        };
        Asked::Request(request)
    }

    fn put(&mut self, id: usize, group: GroupId) -> Request {
        self.kind = "ask: put";
        Request::Put(Put {
            key: self.key(group),
            value: id.to_string().into(),
            prev_kv: self.rng.chance(1, 3),
            ..Put::default()
        })
    }

    /// Some keys of a group.
    fn within(&mut self, group: GroupId) -> KeyRange {
        match self.rng.below(3) {
            0 => group_keys(&self.sim.cluster.shape, group),
            1 => KeyRange::new(key(group, 0), format!("{}~", letter(group))),
            _ => KeyRange::new(self.key(group), format!("{}~", letter(group))),
        }
    }

    fn range(&mut self, group: GroupId, known: &Known) -> Range {
        let keys = match self.rng.below(5) {
            0 | 1 => KeyRange::one(self.key(group)),
            2 => self.within(group),
            3 => KeyRange::all(),
            _ => KeyRange::new(self.key(group), "\0"),
        };
        let mut range = Range::of(keys);
        if self.rng.chance(1, 3) {
            range.limit = self.rng.below(5) as i64;
        }
        if self.rng.chance(1, 4) {
            range.revision = (known.newest - self.rng.below(60) as i64).max(0);
        }
        if self.rng.chance(1, 4) {
            range.order = [SortOrder::Ascend, SortOrder::Descend][self.rng.below(2) as usize];
            let target = self.rng.below(5) as usize;
            range.target = [
                SortTarget::Key,
                SortTarget::Version,
                SortTarget::Create,
                SortTarget::Modified,
                SortTarget::Value,
            ][target];
        }
        range.keys_only = self.rng.chance(1, 8);
        range.count_only = self.rng.chance(1, 8);
        if self.rng.chance(1, 10) {
            range.modified_min = (known.newest - self.rng.below(30) as i64).max(0);
        }
        range
    }

    /// All of a transaction lies in one group. What deletes also puts.
    fn txn(&mut self, id: usize, group: GroupId, known: &Known, depth: u64) -> Txn {
        let at = self.key(group);
        let (modified, version) = known.versions.get(&at).copied().unwrap_or_default();
        let operand = match self.rng.below(5) {
            0 | 1 => Operand::Modified(modified),
            2 => Operand::Version(version),
            3 => Operand::Create(0),
            _ => Operand::Value(self.rng.below(100).to_string().into()),
        };
        let relation = match self.rng.below(4) {
            0 => Relation::Greater,
            1 => Relation::NotEqual,
            _ => Relation::Equal,
        };
        let compare = Compare {
            keys: KeyRange::one(at.clone()),
            operand,
            relation,
        };
        self.kind = match (depth, self.rng.below(6)) {
            (0, 0) => "ask: txn, nested",
            (0, 1) => "ask: txn, only reading",
            (0, 2) => "ask: txn, empty on failure",
            (0, _) => "ask: txn",
            _ => self.kind,
        };
        let put = |value: String| {
            Op::Put(Put {
                key: at.clone(),
                value: value.into(),
                prev_kv: true,
                ..Put::default()
            })
        };
        let mut reading = self.range(group, known);
        reading.keys = self.within(group);
        let reading = Op::Range(reading);
        let level = "+".repeat(depth as usize);
        let (mut success, mut failure) = (vec![reading.clone()], vec![reading]);
        if self.kind != "ask: txn, only reading" {
            success.push(put(format!("{id}{level}s")));
            success.push(Op::Range(Range::of(KeyRange::one(at.clone()))));
            let other = self.key(group);
            if other != at && depth == 0 {
                success.push(Op::DeleteRange(DeleteRange {
                    keys: KeyRange::one(other),
                    prev_kv: true,
                }));
            }
            if self.kind != "ask: txn, empty on failure" {
                failure.push(put(format!("{id}{level}f")));
            }
        }
        if self.kind == "ask: txn, nested" && depth == 0 {
            success.remove(1);
            success.push(Op::Txn(self.txn(id, group, known, 1)));
        }
        Txn {
            compare: vec![compare],
            success,
            failure,
        }
    }
}

/// The groups whose keys are asked for, by the first letters of the keys.
pub(crate) fn groups_of(asked: &Asked) -> std::ops::RangeInclusive<u64> {
    fn of_keys(keys: &KeyRange) -> std::ops::RangeInclusive<u64> {
        let group = |key: &[u8]| match key.first() {
            Some(letter @ b'a'..=b'h') => u64::from(letter - b'a'),
            _ => 0,
        };
        let first = group(&keys.key);
        match keys.end.as_ref() {
            b"" => first..=first,
            b"\0" => first..=7,
            // It lies in one group.
            _ => first..=first,
        }
    }
    match asked {
        Asked::Serializable(range) | Asked::Request(Request::Range(range)) => of_keys(&range.keys),
        Asked::Request(Request::Put(put)) => of_keys(&KeyRange::one(put.key.clone())),
        Asked::Request(Request::DeleteRange(delete)) => of_keys(&delete.keys),
        Asked::Request(Request::Txn(txn)) => of_keys(&txn.compare[0].keys),
        Asked::Request(Request::LeaseRevoke(_)) | Asked::Compact(_) => 0..=0,
    }
}
