//! What clients ask of keys, by chance.
//!
//! Kept true: what deletes in a transaction also puts, so that its write names
//! it; no transaction changes a key twice; accounts are changed by transfers only.

use std::collections::BTreeSet;

use bytes::Bytes;
use pontoon_engine::{
    Compare, DeleteRange, KeyRange, KeyValue, Op, Operand, Put, Range, Relation, Request,
    SortOrder, SortTarget, Txn,
};
use pontoon_wal::disk::sim::Rng;

use super::{accounts, first, key, letters};
use crate::history::Asked;
use crate::plan::Plan;
use crate::seeds::Sim;

/// What a client knows when it asks.
pub(super) struct Maker<'a> {
    pub(super) plan: &'a Plan,
    pub(super) rng: &'a mut Rng,
    /// Newest versions of keys that any client saw.
    pub(super) known: std::collections::BTreeMap<Bytes, KeyValue>,
    newest: i64,
    leases: Vec<i64>,
    pub(super) kind: &'static str,
}

impl<'a> Maker<'a> {
    pub(super) fn new(sim: &'a Sim, rng: &'a mut Rng) -> Self {
        let history = sim.history.borrow();
        Self {
            plan: &sim.plan,
            rng,
            known: history.known.clone(),
            newest: history.newest,
            leases: history.leases.clone(),
            kind: "",
        }
    }

    fn letter(&mut self) -> u64 {
        self.rng.below(self.plan.letters)
    }

    fn key(&mut self, letter: u64) -> Bytes {
        key(letter, self.rng.below(self.plan.keys_per_letter))
    }

    /// Whether what is asked is to be over several letters.
    fn across(&mut self) -> bool {
        self.plan.letters > 1 && self.rng.below(100) < self.plan.across
    }

    pub(super) fn asked(&mut self, id: usize) -> Asked {
        if self.plan.accounts > 0 && self.rng.chance(1, 4) {
            return accounts::asked(self, id);
        }
        let letter = self.letter();
        let request = match self.rng.below(100) {
            0..24 => {
                self.kind = "ask: put";
                Request::Put(Put {
                    key: self.key(letter),
                    value: id.to_string().into(),
                    prev_kv: self.rng.chance(1, 3),
                    lease: self.lease(),
                    ..Put::default()
                })
            }
            24..28 => {
                self.kind = "ask: put, ignoring the value";
                Request::Put(Put {
                    key: self.key(letter),
                    ignore_value: true,
                    ignore_lease: self.rng.chance(1, 4),
                    prev_kv: self.rng.chance(1, 2),
                    ..Put::default()
                })
            }
            28..36 => Request::DeleteRange(self.delete(letter)),
            36..60 => Request::Txn(self.any_txn(id)),
            60..82 => {
                self.kind = "ask: range";
                Request::Range(self.range(letter))
            }
            _ => {
                self.kind = "ask: serializable range";
                return Asked::Serializable(self.range(letter));
            }
        };
        Asked::Request(request)
    }

    /// Seldom one.
    fn lease(&mut self) -> i64 {
        match self.leases.len() as u64 {
            0 => 0,
            _ if self.rng.chance(3, 4) => 0,
            // Mostly one that is alive.
            all => self.leases[(all - 1 - self.rng.below(all.min(5))) as usize],
        }
    }

    fn delete(&mut self, letter: u64) -> DeleteRange {
        self.kind = "ask: delete";
        let keys = match self.rng.below(3) {
            0 | 1 => KeyRange::one(self.key(letter)),
            _ if self.plan.accounts == 0 && self.across() => {
                self.kind = "ask: delete over letters";
                self.some_letters(letter)
            }
            _ => self.within(letter),
        };
        let prev_kv = self.rng.chance(1, 2);
        DeleteRange { keys, prev_kv }
    }

    /// Some keys with this letter, none of them an account.
    fn within(&mut self, letter: u64) -> KeyRange {
        let start = match self.rng.chance(1, 2) {
            true => key(letter, 0),
            false => self.key(letter),
        };
        KeyRange::new(start, format!("{}~", first(letter)))
    }

    /// All with some letters, or from a key of one to a key of another.
    fn some_letters(&mut self, letter: u64) -> KeyRange {
        let other = self.letter();
        let (from, through) = (letter.min(other), letter.max(other));
        match self.rng.chance(1, 2) {
            true => letters(from, through),
            false => KeyRange::new(self.key(from), key(through, 9)),
        }
    }

    fn range(&mut self, letter: u64) -> Range {
        let keys = match self.rng.below(6) {
            0 | 1 => KeyRange::one(self.key(letter)),
            2 => self.within(letter),
            3 => KeyRange::all(),
            4 => self.some_letters(letter),
            _ => KeyRange::new(self.key(letter), "\0"),
        };
        let mut range = Range::of(keys);
        if self.rng.chance(1, 3) {
            range.limit = self.rng.below(5) as i64;
        }
        if self.rng.chance(1, 4) {
            range.revision = (self.newest - self.rng.below(60) as i64).max(0);
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
            range.modified_min = (self.newest - self.rng.below(30) as i64).max(0);
        }
        range
    }

    /// A transaction at keys with one letter, or with two to four.
    fn any_txn(&mut self, id: usize) -> Txn {
        let across = self.across();
        let mut of: BTreeSet<u64> = BTreeSet::from([self.letter()]);
        if across {
            let most = self.plan.letters.min(2 + self.rng.below(3));
            while (of.len() as u64) < most {
                of.insert(self.letter());
            }
        }
        self.kind = match (self.rng.below(6), across) {
            (0, false) => "ask: txn, nested",
            (1, false) => "ask: txn, only reading",
            (2, false) => "ask: txn, empty on failure",
            (3, false) => "ask: txn, reading all and writing one",
            (_, false) => "ask: txn",
            (0, true) => "ask: txn over letters, nested",
            (1, true) => "ask: txn over letters, only reading",
            (2, true) => "ask: txn over letters, empty on failure",
            (3, true) => "ask: txn over letters, reading all and writing one",
            (_, true) => "ask: txn over letters",
        };
        let twice = of.iter().chain(&of).copied().collect::<Vec<_>>();
        let mut keys: Vec<_> = Vec::new();
        for letter in twice {
            let key = self.key(letter);
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        if self.kind.ends_with("writing one") {
            let first = self.rng.below(keys.len() as u64) as usize;
            keys.rotate_left(first);
        }
        self.txn(id, &keys, 0)
    }

    /// A transaction that changes some of these keys, at least the first, and
    /// compares some.
    fn txn(&mut self, id: usize, keys: &[Bytes], depth: usize) -> Txn {
        let reading_only = self.kind.ends_with("only reading");
        let nested = self.kind.ends_with("nested") && depth < 2 && keys.len() > 1;
        let (mine, inner) = match nested {
            true => keys.split_at(keys.len() / 2),
            false => (keys, &[][..]),
        };
        let compared = 1 + self.rng.below(keys.len().min(3) as u64) as usize;
        let compare = keys.iter().rev().take(compared);
        let compare = compare.map(|key| self.compare(key)).collect();
        let letter = u64::from(keys[0][0] - b'a');
        let mut reading = self.range(letter);
        if !self.kind.contains("over letters") {
            reading.keys = self.within(letter);
        }
        let mut success = vec![Op::Range(reading)];
        let mut written = mine;
        if self.kind.ends_with("writing one") {
            let all = keys.iter().cloned().map(KeyRange::one);
            success = all.map(|key| Op::Range(Range::of(key))).collect();
            written = &mine[..1];
        }
        let mut failure = success.clone();
        if !reading_only {
            let level = "+".repeat(depth);
            for (place, key) in written.iter().enumerate() {
                let deletes = place > 0 && self.rng.chance(1, 4);
                success.push(match deletes {
                    true => Op::DeleteRange(DeleteRange {
                        keys: KeyRange::one(key.clone()),
                        prev_kv: true,
                    }),
                    false => self.put(key, format!("{id}{level}s")),
                });
            }
            let last = written[written.len() - 1].clone();
            success.push(Op::Range(Range::of(KeyRange::one(last))));
            if !self.kind.ends_with("empty on failure") {
                for key in written.iter().step_by(2) {
                    failure.push(self.put(key, format!("{id}{level}f")));
                }
            }
        }
        if nested {
            success.push(Op::Txn(self.txn(id, inner, depth + 1)));
            if self.rng.chance(1, 2) {
                failure.push(Op::Txn(self.txn(id, inner, depth + 1)));
            }
        }
        Txn {
            compare,
            success,
            failure,
        }
    }

    fn put(&mut self, key: &Bytes, value: String) -> Op {
        Op::Put(Put {
            key: key.clone(),
            value: value.into(),
            lease: self.lease(),
            prev_kv: true,
            ..Put::default()
        })
    }

    fn compare(&mut self, key: &Bytes) -> Compare {
        let known = self.known.get(key).cloned().unwrap_or_default();
        let operand = match self.rng.below(5) {
            0 | 1 => Operand::Modified(known.modified.0),
            2 => Operand::Version(known.version),
            3 => Operand::Create(0),
            _ => Operand::Value(self.rng.below(100).to_string().into()),
        };
        let relation = match self.rng.below(4) {
            0 => Relation::Greater,
            1 => Relation::NotEqual,
            _ => Relation::Equal,
        };
        Compare {
            keys: KeyRange::one(key.clone()),
            operand,
            relation,
        }
    }
}
