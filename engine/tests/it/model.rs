//! etcd's promises, said as plainly as they can be: every version of every
//! key in a map, and nothing done for speed. Slow, and meant to be read.
//!
//! It shares types with the engine and no thought. What is refused before any
//! key is looked at is in `refused.rs`.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use pontoon_engine::*;

#[path = "model/refused.rs"]
mod refused;

/// Revision, and place within the revision.
type When = (i64, u32);

pub(crate) struct Model {
    /// Of the newest write; a new store has 1.
    pub(crate) revision: i64,
    /// The lowest revision that can be read.
    pub(crate) floor: i64,
    pub(crate) leases: BTreeSet<i64>,
    /// What each key became, and when; `None` is deleted.
    pub(crate) history: BTreeMap<Bytes, BTreeMap<When, Option<KeyValue>>>,
    /// The same of transactions that are not decided.
    staged: BTreeMap<i64, Vec<(Bytes, When, Option<KeyValue>)>>,
    /// Changes that the request being executed has made so far.
    changes: u32,
}

impl Model {
    pub(crate) fn new() -> Self {
        let (history, staged) = Default::default();
        let leases = BTreeSet::new();
        Self { revision: 1, floor: -1, leases, history, staged, changes: 0 }
    }

    /// Executes a request; if it changes anything, that makes one revision.
    pub(crate) fn execute(&mut self, request: &Request, ops_max: usize) -> Result<Answer, Reject> {
        refused::check(request, ops_max)?;
        let answer = match request {
            Request::Range(range) => self.range(range).map(Answer::Range),
            Request::Put(put) => self.put(put).map(Answer::Put),
            Request::DeleteRange(delete) => Ok(Answer::DeleteRange(self.delete(delete))),
            Request::Txn(txn) => self.txn(txn).map(Answer::Txn),
            Request::LeaseRevoke(lease) => self.revoke(*lease).map(Answer::LeaseRevoke),
        };
        match answer.is_ok() {
            true => self.revision = self.now(),
            false => drop(self.take_back(self.revision + 1)),
        }
        self.changes = 0;
        answer
    }

    /// The revision as the request being executed sees it.
    fn now(&self) -> i64 {
        self.revision + i64::from(self.changes > 0)
    }

    fn change(&mut self, key: &Bytes, kv: Option<KeyValue>) {
        let when = (self.revision + 1, self.changes);
        self.history.entry(key.clone()).or_default().insert(when, kv);
        self.changes += 1;
    }

    fn get(&self, key: &Bytes, at: i64) -> Option<KeyValue> {
        self.history.get(key)?.range(..=(at, u32::MAX)).next_back()?.1.clone()
    }

    fn live(&self, keys: &KeyRange, at: i64) -> Vec<KeyValue> {
        let inside = self.history.range(keys.key.clone()..).take_while(|(key, _)| within(keys, key));
        inside.filter_map(|(key, _)| self.get(key, at)).collect()
    }

    pub(crate) fn range(&self, range: &Range) -> Result<RangeAnswer, Reject> {
        let at = match range.revision {
            ..=0 => self.now(),
            future if future > self.now() => return Err(Reject::FutureRevision),
            past if past < self.floor => return Err(Reject::Compacted),
            past => past,
        };
        let mut kvs = self.live(&range.keys, at);
        let count = kvs.len() as i64;
        let limit = if range.limit > 0 { range.limit as usize } else { usize::MAX };
        let modified = (range.modified_min, range.modified_max);
        let created = (range.create_min, range.create_max);
        if range.count_only { kvs.clear(); }
        if range.order == SortOrder::None && (modified, created) == ((0, 0), (0, 0)) {
            // Cut before it is sorted: the quirk of an order that isn't said.
            kvs.truncate(limit.saturating_add(1));
        }
        let inside = |r: Revision, (min, max)| (min == 0 || min <= r.0) && (max == 0 || r.0 <= max);
        kvs.retain(|kv| inside(kv.modified, modified) && inside(kv.create, created));
        kvs.sort_by(|a, b| {
            let ascending = match range.target {
                SortTarget::Key => a.key.cmp(&b.key),
                SortTarget::Version => a.version.cmp(&b.version),
                SortTarget::Create => a.create.cmp(&b.create),
                SortTarget::Modified => a.modified.cmp(&b.modified),
                SortTarget::Value => a.value.cmp(&b.value),
            };
            if range.order == SortOrder::Descend { ascending.reverse() } else { ascending }
        });
        let more = kvs.len() > limit;
        kvs.truncate(limit);
        for kv in kvs.iter_mut().filter(|_| range.keys_only) {
            kv.value = Bytes::new();
            kv.lease = if range.target == SortTarget::Value { kv.lease } else { 0 };
        }
        Ok(RangeAnswer { revision: Revision(self.now()), kvs, more, count })
    }

    fn put(&mut self, put: &Put) -> Result<PutAnswer, Reject> {
        self.check_put(put)?;
        let revision = Revision(self.revision + 1);
        let prev = self.get(&put.key, self.now());
        let mut kv = KeyValue {
            key: put.key.clone(),
            value: put.value.clone(),
            create: prev.as_ref().map_or(revision, |prev| prev.create),
            modified: revision,
            version: prev.as_ref().map_or(1, |prev| prev.version + 1),
            lease: put.lease,
        };
        if let Some(prev) = &prev {
            if put.ignore_value { kv.value = prev.value.clone(); }
            if put.ignore_lease { kv.lease = prev.lease; }
        }
        self.change(&put.key, Some(kv));
        Ok(PutAnswer { revision, prev_kv: prev.filter(|_| put.prev_kv) })
    }

    fn check_put(&self, put: &Put) -> Result<(), Reject> {
        if put.lease != 0 && !self.leases.contains(&put.lease) { return Err(Reject::LeaseNotFound); }
        let needs_key = put.ignore_value || put.ignore_lease;
        if needs_key && self.get(&put.key, self.now()).is_none() { return Err(Reject::KeyNotFound); }
        Ok(())
    }

    fn delete(&mut self, delete: &DeleteRange) -> DeleteAnswer {
        let mut prev_kvs = self.live(&delete.keys, self.now());
        prev_kvs.iter().for_each(|kv| self.change(&kv.key, None));
        let deleted = prev_kvs.len() as i64;
        prev_kvs.retain(|_| delete.prev_kv);
        DeleteAnswer { revision: Revision(self.now()), deleted, prev_kvs }
    }

    fn revoke(&mut self, lease: i64) -> Result<Revision, Reject> {
        if !self.leases.remove(&lease) { return Err(Reject::LeaseNotFound); }
        self.lease_keys(lease).iter().for_each(|key| self.change(key, None));
        Ok(Revision(self.now()))
    }

    /// The keys that hang on a lease.
    pub(crate) fn lease_keys(&self, lease: i64) -> Vec<Bytes> {
        let all = self.live(&KeyRange::all(), self.now()).into_iter();
        all.filter(|kv| kv.lease == lease).map(|kv| kv.key).collect()
    }

    fn txn(&mut self, txn: &Txn) -> Result<TxnAnswer, Reject> {
        self.check_txn(txn)?;
        let mut answer = self.steps(txn)?;
        answer.revision = Revision(self.now());
        Ok(answer)
    }

    /// What must hold for all that is going to be done, before any of it is.
    fn check_txn(&self, txn: &Txn) -> Result<(), Reject> {
        for op in self.branch(txn).1 {
            match op {
                // Only 0 is the newest revision here.
                Op::Range(Range { revision: 0, .. }) => {}
                Op::Range(range) if range.revision > self.revision => return Err(Reject::FutureRevision),
                Op::Range(range) if range.revision < self.floor => return Err(Reject::Compacted),
                Op::Put(put) => self.check_put(put)?,
                Op::Txn(txn) => self.check_txn(txn)?,
                Op::Range(_) | Op::DeleteRange(_) | Op::Missing => {}
            }
        }
        Ok(())
    }

    /// A transaction inside another tells no revision.
    fn steps(&mut self, txn: &Txn) -> Result<TxnAnswer, Reject> {
        let (succeeded, ops) = self.branch(txn);
        let mut answers = Vec::new();
        for op in ops {
            answers.push(match op {
                Op::Range(range) => Answer::Range(self.range(range)?),
                Op::Put(put) => Answer::Put(self.put(put)?),
                Op::DeleteRange(delete) => Answer::DeleteRange(self.delete(delete)),
                Op::Txn(txn) => Answer::Txn(self.steps(txn)?),
                Op::Missing => unreachable!("refused before"),
            });
        }
        Ok(TxnAnswer { revision: Revision(0), succeeded, answers })
    }

    /// Which way a transaction goes.
    fn branch<'a>(&self, txn: &'a Txn) -> (bool, &'a [Op]) {
        let holds = txn.compare.iter().all(|compare| self.holds(compare));
        (holds, if holds { &txn.success } else { &txn.failure })
    }

    /// Comparisons see the state before the whole transaction.
    fn holds(&self, compare: &Compare) -> bool {
        let mut kvs = self.live(&compare.keys, self.revision);
        if kvs.is_empty() {
            if matches!(compare.operand, Operand::Value(_)) { return false; }
            kvs.push(KeyValue::default());
        }
        kvs.iter().all(|kv| {
            let order = match &compare.operand {
                Operand::Version(given) => kv.version.cmp(given),
                Operand::Create(given) => kv.create.0.cmp(given),
                Operand::Modified(given) => kv.modified.0.cmp(given),
                Operand::Value(given) => kv.value.cmp(given),
                Operand::Lease(given) => kv.lease.cmp(given),
                Operand::Unknown => Ordering::Equal,
            };
            match compare.relation {
                Relation::Equal => order.is_eq(),
                Relation::Greater => order.is_gt(),
                Relation::Less => order.is_lt(),
                Relation::NotEqual => order.is_ne(),
                Relation::Unknown => true,
            }
        })
    }

    pub(crate) fn compact(&mut self, revision: i64) -> Result<(), Reject> {
        if revision <= self.floor { return Err(Reject::Compacted); }
        if revision > self.revision { return Err(Reject::FutureRevision); }
        self.floor = revision;
        Ok(())
    }

    /// Executes a request but keeps its changes from sight until it is decided.
    /// `place` says where they stand among those that other ranges make.
    pub(crate) fn stage(&mut self, request: &Request, ops_max: usize, place: impl Fn(u32) -> u32) -> Result<Answer, Reject> {
        let answer = self.execute(request, ops_max)?;
        let mut changes = self.take_back(self.revision);
        for (_, (_, sub), _) in &mut changes { *sub = place(*sub); }
        self.staged.insert(self.revision, changes);
        Ok(answer)
    }

    pub(crate) fn decide(&mut self, revision: i64, commit: bool) {
        let changes = self.staged.remove(&revision).unwrap_or_default();
        for (key, when, kv) in changes.into_iter().filter(|_| commit) {
            self.history.entry(key).or_default().insert(when, kv);
        }
    }

    /// Takes out what happened from a revision on.
    fn take_back(&mut self, revision: i64) -> Vec<(Bytes, When, Option<KeyValue>)> {
        let mut taken = Vec::new();
        for (key, versions) in &mut self.history {
            let later = versions.split_off(&(revision, 0));
            taken.extend(later.into_iter().map(|(when, kv)| (key.clone(), when, kv)));
        }
        taken
    }

    /// What happened to the keys in these revisions, in order. At the floor
    /// itself only the last change of each key is remembered.
    pub(crate) fn events(&self, keys: &KeyRange, from: i64, through: i64, prev_kv: bool) -> Result<Vec<Event>, Reject> {
        if from < self.floor { return Err(Reject::Compacted); }
        let mut events = Vec::new();
        for (key, versions) in self.history.iter().filter(|(key, _)| within(keys, key)) {
            let wanted = versions.range((from, 0)..).take_while(|((revision, _), _)| *revision <= through);
            for (&(revision, sub), kv) in wanted {
                let later = versions.range((revision, sub + 1)..(revision + 1, 0)).next();
                if revision == self.floor && later.is_some() { continue; }
                let created = kv.as_ref().is_some_and(|kv| kv.create.0 == revision);
                let shows_prev = prev_kv && !created && revision > self.floor;
                let modified = Revision(revision);
                let deleted = KeyValue { key: key.clone(), modified, ..KeyValue::default() };
                events.push(Event {
                    change: Change { revision: modified, sub },
                    kind: if kv.is_some() { EventKind::Put } else { EventKind::Delete },
                    kv: kv.clone().unwrap_or(deleted),
                    prev_kv: self.get(key, revision - 1).filter(|_| shows_prev),
                });
            }
        }
        events.sort_by_key(|event| event.change);
        Ok(events)
    }
}

fn within(keys: &KeyRange, key: &Bytes) -> bool {
    match keys.end.as_ref() {
        b"" => *key == keys.key,
        b"\0" => *key >= keys.key,
        _ => *key >= keys.key && *key < keys.end,
    }
}
