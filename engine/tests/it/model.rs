//! etcd's promises, said as plainly as they can be: every version of every
//! key in a map, and nothing done for speed. Slow, and meant to be read.
//!
//! It shares types with the engine and no thought.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use pontoon_engine::{
    Answer, Compare, DeleteAnswer, DeleteRange, Event, KeyRange, KeyValue, Op, Operand, Put,
    PutAnswer, Range, RangeAnswer, Reject, Relation, Request, Revision, SortOrder, SortTarget, Txn,
    TxnAnswer,
};

mod check;
mod history;

use check::check;
use history::{Became, History};

pub(crate) struct Model {
    /// Of the newest write; a new store has 1.
    pub(crate) revision: i64,
    /// The lowest revision that can be read.
    pub(crate) floor: i64,
    pub(crate) leases: BTreeSet<i64>,
    history: History,
    /// The same of transactions that are not decided.
    staged: BTreeMap<i64, Vec<Became>>,
    /// Changes that the request being executed has made so far.
    changes: u32,
}

impl Model {
    pub(crate) fn new() -> Self {
        Self {
            revision: 1,
            floor: -1,
            leases: BTreeSet::new(),
            history: History::default(),
            staged: BTreeMap::new(),
            changes: 0,
        }
    }

    /// Executes a request; if it changes anything, that makes one revision.
    pub(crate) fn execute(&mut self, request: &Request, ops_max: usize) -> Result<Answer, Reject> {
        check(request, ops_max)?;
        let answer = match request {
            Request::Range(range) => self.range(range).map(Answer::Range),
            Request::Put(put) => self.put(put).map(Answer::Put),
            Request::DeleteRange(delete) => Ok(Answer::DeleteRange(self.delete(delete))),
            Request::Txn(txn) => self.top_txn(txn).map(Answer::Txn),
            Request::LeaseRevoke(lease) => self.revoke(*lease).map(Answer::LeaseRevoke),
        };
        if answer.is_ok() {
            self.revision = self.now();
        } else {
            self.history.split_off(self.revision + 1);
        }
        self.changes = 0;
        answer
    }

    pub(crate) fn compact(&mut self, revision: i64) -> Result<(), Reject> {
        match revision {
            _ if revision <= self.floor => Err(Reject::Compacted),
            _ if revision > self.revision => Err(Reject::FutureRevision),
            _ => {
                self.floor = revision;
                Ok(())
            }
        }
    }

    /// Executes a request but keeps its changes from sight until it is decided.
    pub(crate) fn stage(&mut self, request: &Request, ops_max: usize) -> Result<Answer, Reject> {
        let answer = self.execute(request, ops_max)?;
        let changes = self.history.split_off(self.revision);
        self.staged.insert(self.revision, changes);
        Ok(answer)
    }

    pub(crate) fn decide(&mut self, revision: i64, commit: bool) {
        let changes = self.staged.remove(&revision).unwrap_or_default();
        for became in changes.into_iter().filter(|_| commit) {
            self.history.insert(became);
        }
    }

    pub(crate) fn events(
        &self,
        keys: &KeyRange,
        from: i64,
        through: i64,
        prev_kv: bool,
    ) -> Result<Vec<Event>, Reject> {
        if from < self.floor {
            return Err(Reject::Compacted);
        }
        Ok(self
            .history
            .events(keys, from, through, self.floor, prev_kv))
    }

    /// The keys that hang on a lease.
    pub(crate) fn lease_keys(&self, lease: i64) -> Vec<Bytes> {
        let all = self.history.live(&KeyRange::all(), self.now()).into_iter();
        let attached = all.filter(|kv| kv.lease == lease);
        attached.map(|kv| kv.key).collect()
    }

    /// The revision as the request being executed sees it.
    fn now(&self) -> i64 {
        self.revision + i64::from(self.changes > 0)
    }

    fn change(&mut self, key: &Bytes, kv: Option<KeyValue>) {
        let when = (self.revision + 1, self.changes);
        self.history.insert((key.clone(), when, kv));
        self.changes += 1;
    }

    pub(crate) fn range(&self, range: &Range) -> Result<RangeAnswer, Reject> {
        let at = match range.revision {
            ..=0 => self.now(),
            future if future > self.now() => return Err(Reject::FutureRevision),
            past if past < self.floor => return Err(Reject::Compacted),
            past => past,
        };
        let mut kvs = self.history.live(&range.keys, at);
        let count = kvs.len() as i64;
        if range.count_only {
            kvs.clear();
        }
        let limit = if range.limit > 0 {
            range.limit as usize
        } else {
            usize::MAX
        };
        let bounds = [
            (range.modified_min, range.modified_max),
            (range.create_min, range.create_max),
        ];
        if range.order == SortOrder::None && bounds == [(0, 0); 2] {
            // Cut before it is sorted: the quirk of an order that isn't said.
            kvs.truncate(limit.saturating_add(1));
        }
        kvs.retain(|kv| {
            [kv.modified.0, kv.create.0]
                .iter()
                .zip(bounds)
                .all(|(revision, (min, max))| {
                    (min == 0 || min <= *revision) && (max == 0 || *revision <= max)
                })
        });
        kvs.sort_by(|a, b| {
            let ascending = match range.target {
                SortTarget::Key => a.key.cmp(&b.key),
                SortTarget::Version => a.version.cmp(&b.version),
                SortTarget::Create => a.create.cmp(&b.create),
                SortTarget::Modified => a.modified.cmp(&b.modified),
                SortTarget::Value => a.value.cmp(&b.value),
            };
            match range.order {
                SortOrder::Descend => ascending.reverse(),
                _ => ascending,
            }
        });
        let more = kvs.len() > limit;
        kvs.truncate(limit);
        for kv in kvs.iter_mut().filter(|_| range.keys_only) {
            kv.value = Bytes::new();
            if range.target != SortTarget::Value {
                kv.lease = 0;
            }
        }
        Ok(RangeAnswer {
            revision: Revision(self.now()),
            kvs,
            more,
            count,
        })
    }

    fn put(&mut self, put: &Put) -> Result<PutAnswer, Reject> {
        self.check_put(put)?;
        let prev = self.history.get(&put.key, self.now());
        let own = Revision(self.revision + 1);
        let mut kv = KeyValue {
            key: put.key.clone(),
            value: put.value.clone(),
            create: own,
            modified: own,
            version: 1,
            lease: put.lease,
        };
        if let Some(prev) = &prev {
            kv.create = prev.create;
            kv.version = prev.version + 1;
            if put.ignore_value {
                kv.value = prev.value.clone();
            }
            if put.ignore_lease {
                kv.lease = prev.lease;
            }
        }
        self.change(&put.key, Some(kv));
        Ok(PutAnswer {
            revision: own,
            prev_kv: prev.filter(|_| put.prev_kv),
        })
    }

    fn check_put(&self, put: &Put) -> Result<(), Reject> {
        if put.lease != 0 && !self.leases.contains(&put.lease) {
            return Err(Reject::LeaseNotFound);
        }
        let needs_key = put.ignore_value || put.ignore_lease;
        if needs_key && self.history.get(&put.key, self.now()).is_none() {
            return Err(Reject::KeyNotFound);
        }
        Ok(())
    }

    fn delete(&mut self, delete: &DeleteRange) -> DeleteAnswer {
        let doomed = self.history.live(&delete.keys, self.now());
        for kv in &doomed {
            self.change(&kv.key, None);
        }
        DeleteAnswer {
            revision: Revision(self.now()),
            deleted: doomed.len() as i64,
            prev_kvs: doomed.into_iter().filter(|_| delete.prev_kv).collect(),
        }
    }

    fn revoke(&mut self, lease: i64) -> Result<Revision, Reject> {
        if !self.leases.remove(&lease) {
            return Err(Reject::LeaseNotFound);
        }
        for key in self.lease_keys(lease) {
            self.change(&key, None);
        }
        Ok(Revision(self.now()))
    }

    fn top_txn(&mut self, txn: &Txn) -> Result<TxnAnswer, Reject> {
        self.check_txn(txn)?;
        let mut answer = self.txn(txn)?;
        answer.revision = Revision(self.now());
        Ok(answer)
    }

    /// What must hold for all that is going to be done, before any of it is.
    fn check_txn(&self, txn: &Txn) -> Result<(), Reject> {
        for op in self.branch(txn).1 {
            match op {
                // Only 0 is the newest revision here.
                Op::Range(range) if range.revision == 0 => {}
                Op::Range(range) if range.revision > self.revision => {
                    return Err(Reject::FutureRevision);
                }
                Op::Range(range) if range.revision < self.floor => return Err(Reject::Compacted),
                Op::Put(put) => self.check_put(put)?,
                Op::Txn(txn) => self.check_txn(txn)?,
                Op::Range(_) | Op::DeleteRange(_) | Op::Missing => {}
            }
        }
        Ok(())
    }

    fn txn(&mut self, txn: &Txn) -> Result<TxnAnswer, Reject> {
        let (succeeded, ops) = self.branch(txn);
        let mut answers = Vec::new();
        for op in ops {
            answers.push(match op {
                Op::Range(range) => Answer::Range(self.range(range)?),
                Op::Put(put) => Answer::Put(self.put(put)?),
                Op::DeleteRange(delete) => Answer::DeleteRange(self.delete(delete)),
                Op::Txn(txn) => Answer::Txn(self.txn(txn)?),
                Op::Missing => unreachable!("checked"),
            });
        }
        Ok(TxnAnswer {
            revision: Revision(0),
            succeeded,
            answers,
        })
    }

    /// Which way a transaction goes.
    fn branch<'a>(&self, txn: &'a Txn) -> (bool, &'a [Op]) {
        let holds = txn.compare.iter().all(|compare| self.holds(compare));
        (holds, if holds { &txn.success } else { &txn.failure })
    }

    /// Comparisons see the state before the whole transaction.
    fn holds(&self, compare: &Compare) -> bool {
        let mut kvs = self.history.live(&compare.keys, self.revision);
        if kvs.is_empty() {
            if matches!(compare.operand, Operand::Value(_)) {
                return false;
            }
            kvs.push(KeyValue::default());
        }
        kvs.iter().all(|kv| {
            let ordering = match &compare.operand {
                Operand::Version(given) => kv.version.cmp(given),
                Operand::Create(given) => kv.create.0.cmp(given),
                Operand::Modified(given) => kv.modified.0.cmp(given),
                Operand::Value(given) => kv.value.cmp(given),
                Operand::Lease(given) => kv.lease.cmp(given),
                Operand::Unknown => Ordering::Equal,
            };
            match compare.relation {
                Relation::Equal => ordering == Ordering::Equal,
                Relation::Greater => ordering == Ordering::Greater,
                Relation::Less => ordering == Ordering::Less,
                Relation::NotEqual => ordering != Ordering::Equal,
                Relation::Unknown => true,
            }
        })
    }
}
