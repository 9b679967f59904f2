//! How a transaction is cut into what each group evaluates, and how their
//! answers become one.
//!
//! Kept true: what the parts find and change, put together, is what one group
//! with all the keys would have found and changed, in the same order.

use std::collections::BTreeMap;

use pontoon_engine::{
    Answer, Compare, DeleteAnswer, KeyRange, Op, Range, Reject, Revision, Txn, TxnAnswer, join,
    part,
};

use crate::map::RangeMap;
use crate::position::GroupId;

/// A transaction over several groups.
pub(super) struct Plan<'a> {
    txn: &'a Txn,
    /// Its own comparisons, then those of the transactions inside, as they come.
    compares: Vec<&'a Compare>,
    pub(super) groups: BTreeMap<GroupId, Keys>,
}

/// What of it lies in one group.
#[derive(Default)]
pub(super) struct Keys {
    /// All that is looked at or changed.
    pub(super) ranges: Vec<KeyRange>,
    /// The comparisons, by their number.
    probes: Vec<(usize, Compare)>,
}

/// What a group says about a comparison.
#[derive(Clone, Copy)]
pub(super) struct Verdict {
    found: bool,
    holds: bool,
}

impl<'a> Plan<'a> {
    pub(super) fn of(txn: &'a Txn, map: &RangeMap) -> Self {
        let mut plan = Self {
            txn,
            compares: Vec::new(),
            groups: BTreeMap::new(),
        };
        plan.add(txn, map);
        plan
    }

    fn add(&mut self, txn: &'a Txn, map: &RangeMap) {
        for compare in &txn.compare {
            let number = self.compares.len();
            self.compares.push(compare);
            for (group, keys) in map.parts(&compare.keys) {
                let place = self.groups.entry(group).or_default();
                place.ranges.push(keys.clone());
                let compare = Compare {
                    keys,
                    ..compare.clone()
                };
                place.probes.push((number, compare));
            }
        }
        for op in txn.success.iter().chain(&txn.failure) {
            if let Op::Txn(inner) = op {
                self.add(inner, map);
            }
            for (group, op) in cut(op, map) {
                let ranges = &mut self.groups.entry(group).or_default().ranges;
                match op {
                    Op::Range(range) => ranges.push(range.keys),
                    Op::Put(put) => ranges.push(KeyRange::one(put.key)),
                    Op::DeleteRange(delete) => ranges.push(delete.keys),
                    Op::Txn(_) | Op::Missing => {}
                }
            }
        }
    }

    /// Whether each comparison holds, given what all groups said.
    pub(super) fn holds(&self, said: &BTreeMap<GroupId, Vec<Verdict>>) -> Vec<bool> {
        let mut verdicts: Vec<Vec<Verdict>> = vec![Vec::new(); self.compares.len()];
        for (group, keys) in &self.groups {
            let said = said.get(group).into_iter().flatten();
            for ((number, _), verdict) in keys.probes.iter().zip(said) {
                verdicts[*number].push(*verdict);
            }
        }
        // Where no group has a key, each has compared with what isn't there.
        let holds = |verdicts: Vec<Verdict>| {
            let any = verdicts.iter().any(|verdict| verdict.found);
            verdicts
                .iter()
                .filter(|verdict| verdict.found == any)
                .all(|verdict| verdict.holds)
        };
        verdicts.into_iter().map(holds).collect()
    }

    /// The steps that are taken when the comparisons come out like this.
    pub(super) fn path(&self, holds: &[bool], map: &RangeMap) -> Path<'a> {
        let mut path = Path {
            root: Branch::default(),
            leaves: Vec::new(),
        };
        let mut holds = holds.iter().copied();
        path.root = choose(self.txn, true, &mut holds, &mut path.leaves, map);
        path
    }
}

impl Keys {
    /// Asks for all verdicts in one go.
    pub(super) fn probe(&self) -> Txn {
        let count = |keys: &KeyRange| {
            let mut range = Range::of(keys.clone());
            range.count_only = true;
            vec![Op::Range(range)]
        };
        let probes = self.probes.iter().map(|(_, compare)| {
            Op::Txn(Txn {
                compare: vec![compare.clone()],
                success: count(&compare.keys),
                failure: count(&compare.keys),
            })
        });
        Txn {
            success: probes.collect(),
            ..Txn::default()
        }
    }

    /// The verdicts in the answer to that.
    pub(super) fn verdicts(&self, answer: Answer) -> Option<Vec<Verdict>> {
        let Answer::Txn(answer) = answer else {
            return None;
        };
        let verdict = |answer: Answer| {
            let Answer::Txn(TxnAnswer {
                succeeded, answers, ..
            }) = answer
            else {
                return None;
            };
            match &answers[..] {
                [Answer::Range(counted)] => Some(Verdict {
                    found: counted.count > 0,
                    holds: succeeded,
                }),
                _ => None,
            }
        };
        let verdicts: Vec<_> = answer
            .answers
            .into_iter()
            .map(verdict)
            .collect::<Option<_>>()?;
        (verdicts.len() == self.probes.len()).then_some(verdicts)
    }
}

/// The steps of a transaction that are taken.
pub(super) struct Path<'a> {
    root: Branch,
    leaves: Vec<Leaf<'a>>,
}

#[derive(Default)]
struct Branch {
    succeeded: bool,
    steps: Vec<Taken>,
}

enum Taken {
    /// Number of the leaf.
    Leaf(usize),
    Branch(Branch),
}

/// A step that is no transaction.
struct Leaf<'a> {
    op: &'a Op,
    /// In key order.
    parts: Vec<(GroupId, Op)>,
}

/// What the groups said to their parts of a leaf.
type Answers = BTreeMap<GroupId, std::vec::IntoIter<Answer>>;

impl Path<'_> {
    /// What a group is to do, in order, with the number of each.
    pub(super) fn ops(&self, group: GroupId) -> Vec<(usize, Op)> {
        let leaves = self.leaves.iter().enumerate();
        let parts = leaves.flat_map(|(number, leaf)| {
            let parts = leaf.parts.iter().filter(move |(of, _)| *of == group);
            parts.map(move |(_, op)| (number, op.clone()))
        });
        parts.collect()
    }

    /// What all groups are to do, in the order of the whole.
    pub(super) fn steps(&self) -> impl Iterator<Item = (GroupId, Op)> {
        let parts = self.leaves.iter().flat_map(|leaf| &leaf.parts);
        parts.map(|(group, op)| (*group, op.clone()))
    }

    /// Whether a step reads at a revision that it names.
    pub(super) fn names_revisions(&self) -> bool {
        self.leaves
            .iter()
            .any(|leaf| matches!(leaf.op, Op::Range(range) if range.revision != 0))
    }

    /// The leases that its puts name.
    pub(super) fn leases(&self) -> impl Iterator<Item = i64> {
        self.leaves.iter().filter_map(|leaf| match leaf.op {
            Op::Put(put) if put.lease != 0 => Some(put.lease),
            _ => None,
        })
    }

    /// The places of each group's changes among all, given how many each of
    /// its ops makes.
    pub(super) fn places(
        &self,
        changes: &BTreeMap<GroupId, Vec<u32>>,
    ) -> BTreeMap<GroupId, Vec<(u32, u32)>> {
        let mut left: BTreeMap<_, _> = changes
            .iter()
            .map(|(group, changes)| (*group, changes.iter()))
            .collect();
        let mut places: BTreeMap<GroupId, Vec<(u32, u32)>> = BTreeMap::new();
        let mut next = 0u32;
        for (group, _) in self.leaves.iter().flat_map(|leaf| &leaf.parts) {
            let count = left.get_mut(group).and_then(Iterator::next);
            let count = count.copied().unwrap_or(0);
            if count > 0 {
                places.entry(*group).or_default().push((next, count));
                next += count;
            }
        }
        places
    }

    /// The refusal that one group with all keys would have come upon first.
    pub(super) fn first_refusal(
        &self,
        refused: &BTreeMap<GroupId, (u32, Reject)>,
    ) -> Option<Reject> {
        let number = |(group, (at, _)): &(&GroupId, &(u32, Reject))| {
            self.ops(**group)
                .get(*at as usize)
                .map_or(usize::MAX, |(number, _)| *number)
        };
        let first = refused.iter().min_by_key(number);
        first.map(|(_, (_, reject))| reject.clone())
    }

    /// The answer to the whole, with the revision `own` if it changes something.
    pub(super) fn answer(
        &self,
        answers: BTreeMap<GroupId, Vec<Answer>>,
        own: Revision,
        before: Revision,
    ) -> Option<TxnAnswer> {
        let mut answers: Answers = answers
            .into_iter()
            .map(|(group, answers)| (group, answers.into_iter()))
            .collect();
        let mut header = before;
        let mut leaves = Vec::new();
        for leaf in &self.leaves {
            leaves.push(Some(leaf.answer(&mut answers, &mut header, own)?));
        }
        let mut whole = self.root.answer(&mut leaves)?;
        whole.revision = header;
        Some(whole)
    }
}

impl Branch {
    fn answer(&self, leaves: &mut [Option<Answer>]) -> Option<TxnAnswer> {
        let mut answers = Vec::with_capacity(self.steps.len());
        for step in &self.steps {
            answers.push(match step {
                Taken::Leaf(number) => leaves.get_mut(*number)?.take()?,
                Taken::Branch(inner) => Answer::Txn(inner.answer(leaves)?),
            });
        }
        Some(TxnAnswer {
            revision: Revision(0),
            succeeded: self.succeeded,
            answers,
        })
    }
}

impl Leaf<'_> {
    /// Joins the answers to its parts; `header` becomes `own` with the first change.
    fn answer(
        &self,
        answers: &mut Answers,
        header: &mut Revision,
        own: Revision,
    ) -> Option<Answer> {
        let parts = self.parts.iter();
        let parts = parts.map(|(group, _)| answers.get_mut(group)?.next());
        let parts: Vec<Answer> = parts.collect::<Option<_>>()?;
        match self.op {
            Op::Range(range) => {
                let found = parts.into_iter().map(|part| match part {
                    Answer::Range(found) => Some(found),
                    _ => None,
                });
                let mut found: Vec<_> = found.collect::<Option<_>>()?;
                let mut whole = match found.len() {
                    1 => found.pop()?,
                    _ => join(range, found),
                };
                whole.revision = *header;
                Some(Answer::Range(whole))
            }
            Op::Put(_) => {
                *header = own;
                let Ok([Answer::Put(mut answer)]) = <[Answer; 1]>::try_from(parts) else {
                    return None;
                };
                answer.revision = own;
                Some(Answer::Put(answer))
            }
            Op::DeleteRange(_) => {
                let mut whole = DeleteAnswer::default();
                for part in parts {
                    let Answer::DeleteRange(part) = part else {
                        return None;
                    };
                    whole.deleted += part.deleted;
                    whole.prev_kvs.extend(part.prev_kvs);
                }
                if whole.deleted > 0 {
                    *header = own;
                }
                whole.revision = *header;
                Some(Answer::DeleteRange(whole))
            }
            Op::Txn(_) | Op::Missing => None,
        }
    }
}

/// Takes the branches that `holds` says; it has a word for each comparison, of
/// those not taken too.
fn choose<'a>(
    txn: &'a Txn,
    taken: bool,
    holds: &mut impl Iterator<Item = bool>,
    leaves: &mut Vec<Leaf<'a>>,
    map: &RangeMap,
) -> Branch {
    let mut succeeded = true;
    for _ in &txn.compare {
        succeeded &= holds.next().unwrap_or(false);
    }
    let mut branch = Branch {
        succeeded,
        steps: Vec::new(),
    };
    let both = [(&txn.success, succeeded), (&txn.failure, !succeeded)];
    for (ops, chosen) in both {
        for op in ops {
            if let Op::Txn(inner) = op {
                let inner = choose(inner, taken && chosen, &mut *holds, leaves, map);
                if chosen {
                    branch.steps.push(Taken::Branch(inner));
                }
            } else if taken && chosen {
                branch.steps.push(Taken::Leaf(leaves.len()));
                leaves.push(Leaf {
                    op,
                    parts: cut(op, map),
                });
            }
        }
    }
    branch
}

/// What of a step lies in which group, in key order.
fn cut(op: &Op, map: &RangeMap) -> Vec<(GroupId, Op)> {
    match op {
        Op::Range(range) => {
            let parts = map.parts(&range.keys);
            let whole = parts.len() == 1;
            let parts = parts.into_iter().map(|(group, keys)| {
                let mut range = match whole {
                    true => range.clone(),
                    false => part(range, &[]),
                };
                range.keys = keys;
                (group, Op::Range(range))
            });
            parts.collect()
        }
        Op::Put(put) => vec![(map.group_of(&put.key), op.clone())],
        Op::DeleteRange(delete) => {
            let parts = map.parts(&delete.keys).into_iter().map(|(group, keys)| {
                let mut delete = delete.clone();
                delete.keys = keys;
                (group, Op::DeleteRange(delete))
            });
            parts.collect()
        }
        Op::Txn(_) | Op::Missing => Vec::new(),
    }
}
