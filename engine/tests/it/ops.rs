//! What random work is made of, and how work that fails is made small.

use std::fmt;

use bytes::Bytes;
use pontoon_engine::{
    Compare, DeleteRange, KeyRange, Op, Operand, Put, Range, Relation, Request, SortOrder,
    SortTarget, Txn,
};
use pontoon_wal::disk::sim::Rng;

use crate::model::Model;

/// Comparisons and steps that a transaction may have; low, so that some have more.
pub(crate) const TXN_OPS_MAX: usize = 8;

/// One thing to do.
#[derive(Clone, Debug)]
pub(crate) enum Action {
    /// Evaluates a request on top of those that wait, and takes all of them, or
    /// just the `oldest`, on to `pace`. `named`: its revision is granted before
    /// it is evaluated.
    Request {
        request: Request,
        named: bool,
        pace: Pace,
        oldest: Option<usize>,
    },
    /// Reads applied state.
    Read(Range),
    /// Grants a lease.
    Grant(i64),
    /// Replays events.
    Events {
        keys: KeyRange,
        from: i64,
        through: i64,
        prev_kv: bool,
    },
    /// Raises the floor, if that is allowed.
    Compact(i64),
    /// Forgets some of what is below the floor.
    CompactStep(usize),
    /// Stages what a request changes; the first change has place `first`, and
    /// each is `apart` from the one before it.
    Stage {
        request: Request,
        first: u32,
        apart: u32,
    },
    /// Decides the oldest staged transaction.
    Decide { commit: bool },
    /// Sets or removes a record.
    Record(u8, Option<Bytes>),
    /// Makes what is applied durable.
    Checkpoint,
    /// Power fails and comes back.
    PowerCut(u64),
}

/// How far requests are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Pace {
    Wait,
    Grant,
    Apply,
    Retire,
}

/// What one run is made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    letters: &'static [u8],
    key_len_max: u64,
}

impl Shape {
    pub(crate) fn random(rng: &mut Rng) -> Self {
        let (letters, key_len_max): (&[u8], _) = match rng.below(5) {
            0 => (b"ab", 2),
            1 => (b"\0a\xff", 3),
            2 => (b"abcdefgh", 3),
            _ => (b"abc", 3),
        };
        Self {
            letters,
            key_len_max,
        }
    }
}

/// Makes actions that make sense in the state that the model is in.
pub(crate) struct Maker<'a> {
    pub(crate) rng: &'a mut Rng,
    pub(crate) shape: Shape,
    pub(crate) model: &'a Model,
}

impl Maker<'_> {
    pub(crate) fn action(&mut self) -> Action {
        match self.rng.below(1000) {
            0..680 => Action::Request {
                request: self.request(),
                named: self.rng.chance(1, 4),
                pace: match self.rng.below(10) {
                    0..6 => Pace::Wait,
                    6 => Pace::Grant,
                    7 => Pace::Apply,
                    _ => Pace::Retire,
                },
                oldest: self.half().then(|| 1 + self.below(3)),
            },
            680..810 => Action::Read(self.range()),
            810..840 => Action::Grant(self.lease()),
            840..890 => Action::Events {
                keys: self.keys(),
                from: self.revision(),
                through: self.revision(),
                prev_kv: self.half(),
            },
            890..910 => Action::Compact(self.revision()),
            910..945 => Action::CompactStep(1 + self.below(20)),
            945..960 => Action::Stage {
                request: self.request(),
                first: self.below(3) as u32,
                apart: 1 + self.below(3) as u32,
            },
            960..980 => Action::Decide {
                commit: self.rng.chance(2, 3),
            },
            980..990 => {
                let content = self.half().then(|| self.value());
                Action::Record(self.below(3) as u8, content)
            }
            990..997 => Action::Checkpoint,
            _ => Action::PowerCut(self.rng.next_u64()),
        }
    }

    fn request(&mut self) -> Request {
        match self.rng.below(100) {
            0..45 => Request::Put(self.put()),
            45..55 => Request::DeleteRange(self.delete()),
            55..66 => Request::Range(self.range()),
            66..98 => Request::Txn(self.txn(0)),
            _ => Request::LeaseRevoke(self.lease()),
        }
    }

    fn range(&mut self) -> Range {
        let mut range = Range::of(self.keys());
        if self.half() {
            range.limit = self.pick(&[0, 1, 1, 2, 3, 10, -1, i64::MAX]);
        }
        if self.rng.chance(1, 3) {
            range.revision = self.revision();
        }
        if self.rng.chance(1, 3) {
            range.order = self.pick(&[SortOrder::None, SortOrder::Ascend, SortOrder::Descend]);
            range.target = self.pick(&[
                SortTarget::Key,
                SortTarget::Version,
                SortTarget::Create,
                SortTarget::Modified,
                SortTarget::Value,
            ]);
        }
        range.keys_only = self.rng.chance(1, 5);
        range.count_only = self.rng.chance(1, 8);
        if self.rng.chance(1, 6) {
            for bound in [
                &mut range.modified_min,
                &mut range.modified_max,
                &mut range.create_min,
                &mut range.create_max,
            ] {
                if self.rng.chance(1, 3) {
                    *bound = self.revision();
                }
            }
        }
        range
    }

    fn put(&mut self) -> Put {
        let mut put = Put {
            key: self.key(),
            value: self.value(),
            lease: 0,
            prev_kv: self.rng.chance(1, 4),
            ignore_value: self.rng.chance(1, 12),
            ignore_lease: self.rng.chance(1, 12),
        };
        if self.rng.chance(1, 4) {
            put.lease = self.lease();
        }
        if put.ignore_value && !self.rng.chance(1, 10) {
            put.value = Bytes::new();
        }
        if put.ignore_lease && !self.rng.chance(1, 10) {
            put.lease = 0;
        }
        put
    }

    fn delete(&mut self) -> DeleteRange {
        DeleteRange {
            keys: self.keys(),
            prev_kv: self.rng.chance(1, 3),
        }
    }

    fn txn(&mut self, depth: u64) -> Txn {
        Txn {
            compare: (0..self.below(3)).map(|_| self.compare()).collect(),
            success: (0..self.below(5)).map(|_| self.op(depth)).collect(),
            failure: (0..self.below(4)).map(|_| self.op(depth)).collect(),
        }
    }

    fn op(&mut self, depth: u64) -> Op {
        match self.rng.below(100) {
            0..40 => Op::Put(self.put()),
            40..60 => Op::DeleteRange(self.delete()),
            60..84 => Op::Range(self.range()),
            84..99 if depth < 3 => Op::Txn(self.txn(depth + 1)),
            99 if self.half() => Op::Missing,
            _ => Op::Put(self.put()),
        }
    }

    fn compare(&mut self) -> Compare {
        let operand = match self.rng.below(11) {
            0..2 => Operand::Version(self.below(4) as i64),
            2..4 => Operand::Create(self.revision()),
            4..6 => Operand::Modified(self.revision()),
            6..8 => Operand::Value(self.value()),
            8..10 => Operand::Lease(self.lease()),
            _ => Operand::Unknown,
        };
        Compare {
            keys: self.keys(),
            operand,
            relation: self.pick(&[
                Relation::Equal,
                Relation::Greater,
                Relation::Greater,
                Relation::Less,
                Relation::NotEqual,
                Relation::NotEqual,
                Relation::Unknown,
            ]),
        }
    }

    fn keys(&mut self) -> KeyRange {
        let key = self.key();
        match self.rng.below(12) {
            0..5 => KeyRange::one(key),
            5..7 => {
                // All that start with the key, unless it ends with the highest byte.
                let mut end = key.to_vec();
                if let Some(last) = end.last_mut() {
                    *last = last.wrapping_add(1);
                }
                KeyRange::new(key, end)
            }
            7 => KeyRange::new(key, &b"\0"[..]),
            8 => KeyRange::all(),
            // Often the wrong way round.
            9 => KeyRange::new(key, self.key()),
            _ => {
                let other = self.key();
                KeyRange::new(key.clone().min(other.clone()), key.max(other))
            }
        }
    }

    fn key(&mut self) -> Bytes {
        if self.rng.chance(1, 300) {
            return Bytes::new();
        }
        let len = 1 + self.rng.below(self.shape.key_len_max);
        let mut key: Vec<u8> = (0..len).map(|_| self.pick(self.shape.letters)).collect();
        if self.rng.chance(1, 400) {
            let len = self.pick(&[200, 3000, 20_000]);
            key.resize(len, b'x');
        }
        key.into()
    }

    fn value(&mut self) -> Bytes {
        let len = match self.rng.below(1500) {
            0 => self.pick(&[300, 5000, 30_000, 100_000]),
            _ => self.below(3),
        };
        let letter = self.pick(b"vw");
        vec![letter; len].into()
    }

    fn lease(&mut self) -> i64 {
        self.pick(&[1, 1, 1, 1, 2, 2, 3, -7, 0])
    }

    /// Some revision between the floor and the future, seldom a wilder one.
    fn revision(&mut self) -> i64 {
        if self.rng.chance(1, 30) {
            return self.pick(&[-5, -1, 0, 1, 1 << 62, i64::MAX]);
        }
        let (floor, newest) = (self.model.floor.max(1), self.model.revision);
        let (from, to) = match self.rng.below(8) {
            0 => (floor - 2, floor + 1),
            1..5 => (newest - 4, newest + 3),
            _ => (floor, newest),
        };
        from + self.below((to - from + 1) as u64) as i64
    }

    fn half(&mut self) -> bool {
        self.rng.chance(1, 2)
    }

    fn below(&mut self, n: u64) -> usize {
        self.rng.below(n) as usize
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64)]
    }
}

/// Leaves out what can be left out of work that fails, first in large pieces.
/// `failure` says, if the work fails, at which revision each of the actions
/// before the failing one left the model.
pub(crate) fn shrink(
    mut actions: Vec<Action>,
    failure: impl Fn(&[Action]) -> Option<Vec<i64>>,
) -> Vec<Action> {
    let Some(mut revisions) = failure(&actions) else {
        return actions;
    };
    let mut piece = actions.len();
    loop {
        let mut smaller = false;
        let mut at = 0;
        while at < actions.len() {
            let end = (at + piece).min(actions.len());
            let smallest = [true, false].into_iter().find_map(|shifted| {
                let mut fewer = actions.clone();
                let revision = |action: usize| revisions.get(action).or(revisions.last());
                if shifted {
                    // So that they still mean what they meant.
                    let before = at.checked_sub(1).map_or(Some(&1), revision)?;
                    let after = revision(end - 1)?;
                    shift(&mut fewer[end..], *before, after - before);
                }
                fewer.drain(at..end);
                Some((failure(&fewer)?, fewer))
            });
            match smallest {
                Some(found) => {
                    (revisions, actions) = found;
                    smaller = true;
                }
                None => at = end,
            }
        }
        if piece == 1 && !smaller {
            return actions;
        }
        piece = piece.div_ceil(2);
    }
}

/// Lowers the revisions above `above` that the actions talk of.
fn shift(actions: &mut [Action], above: i64, by: i64) {
    let mut lower = |revision: &mut i64| {
        if *revision > above {
            *revision = (*revision - by).max(above);
        }
    };
    for action in actions {
        match action {
            Action::Request { request, .. } | Action::Stage { request, .. } => match request {
                Request::Range(range) => each_revision(range, &mut lower),
                Request::Txn(txn) => each_revision_of_txn(txn, &mut lower),
                _ => {}
            },
            Action::Read(range) => each_revision(range, &mut lower),
            Action::Events { from, through, .. } => {
                [from, through].into_iter().for_each(&mut lower)
            }
            Action::Compact(floor) => lower(floor),
            _ => {}
        }
    }
}

fn each_revision(range: &mut Range, change: &mut impl FnMut(&mut i64)) {
    change(&mut range.revision);
    change(&mut range.modified_min);
    change(&mut range.modified_max);
    change(&mut range.create_min);
    change(&mut range.create_max);
}

fn each_revision_of_txn(txn: &mut Txn, change: &mut impl FnMut(&mut i64)) {
    for compare in &mut txn.compare {
        if let Operand::Create(given) | Operand::Modified(given) = &mut compare.operand {
            change(given);
        }
    }
    for op in txn.success.iter_mut().chain(&mut txn.failure) {
        match op {
            Op::Range(range) => each_revision(range, change),
            Op::Txn(txn) => each_revision_of_txn(txn, change),
            _ => {}
        }
    }
}

/// One line without what goes without saying.
impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const DEFAULTS: [&str; 19] = [
            ", limit: 0",
            ", revision: 0",
            ", order: None",
            ", target: Key",
            ", keys_only: false",
            ", count_only: false",
            ", modified_min: 0",
            ", modified_max: 0",
            ", create_min: 0",
            ", create_max: 0",
            ", lease: 0",
            ", prev_kv: false",
            ", ignore_value: false",
            ", ignore_lease: false",
            ", end: b\"\"",
            "compare: [], ",
            ", failure: []",
            ", named: false",
            ", oldest: None",
        ];
        let mut text = format!("{self:?}");
        for default in DEFAULTS {
            text = text.replace(default, "");
        }
        // Long keys and values are runs of one letter.
        for letter in ["x", "v", "w"] {
            let run = letter.repeat(50);
            let short = format!("{letter}~");
            text = text.replace(&run, &short);
            while text.contains(&short.repeat(2)) {
                text = text.replace(&short.repeat(2), &short);
            }
        }
        f.write_str(&text)
    }
}
