//! What etcd refuses before it looks at any state.

use std::collections::BTreeSet;

use bytes::Bytes;

use crate::error::Reject;
use crate::keys::KeyRange;
use crate::request::{DeleteRange, Op, Put, Range, Request, Txn};

/// Refuses a request that can't be valid, as etcd's API layer does and in its
/// order. `txn_ops_max` bounds comparisons and steps of a transaction.
pub fn check(request: &Request, txn_ops_max: usize) -> Result<(), Reject> {
    match request {
        Request::Range(Range { keys, .. }) => check_key(&keys.key),
        Request::Put(put) => check_put(put),
        Request::DeleteRange(DeleteRange { keys, .. }) => check_key(&keys.key),
        Request::Txn(txn) => {
            check_txn(txn, txn_ops_max)?;
            Touched::by(&txn.success)?;
            Touched::by(&txn.failure)?;
            Ok(())
        }
        Request::LeaseRevoke(_) => Ok(()),
    }
}

fn check_key(key: &Bytes) -> Result<(), Reject> {
    if key.is_empty() {
        return Err(Reject::EmptyKey);
    }
    Ok(())
}

fn check_put(put: &Put) -> Result<(), Reject> {
    check_key(&put.key)?;
    if put.ignore_value && !put.value.is_empty() {
        return Err(Reject::ValueProvided);
    }
    if put.ignore_lease && put.lease != 0 {
        return Err(Reject::LeaseProvided);
    }
    Ok(())
}

/// What a transaction uses up of `ops_max` is gone for those inside, but each
/// of them may use what is left.
fn check_txn(txn: &Txn, ops_max: usize) -> Result<(), Reject> {
    let branches = txn.success.len().max(txn.failure.len());
    let ops = txn.compare.len().max(branches);
    let left = ops_max.checked_sub(ops).ok_or(Reject::TooManyOps)?;
    for compare in &txn.compare {
        check_key(&compare.keys.key)?;
    }
    for op in txn.success.iter().chain(&txn.failure) {
        match op {
            Op::Range(range) => check_key(&range.keys.key)?,
            Op::Put(put) => check_put(put)?,
            Op::DeleteRange(delete) => check_key(&delete.keys.key)?,
            Op::Txn(txn) => check_txn(txn, left)?,
            Op::Missing => return Err(Reject::KeyNotFound),
        }
    }
    Ok(())
}

/// What a list of steps may change, whichever way the transactions in it go.
#[derive(Default)]
struct Touched<'a> {
    puts: BTreeSet<&'a [u8]>,
    deletes: Vec<&'a KeyRange>,
}

impl<'a> Touched<'a> {
    /// Refuses steps that would change a key twice, as far as etcd notices:
    /// - It takes a deletion from a key on literally, as the range up to
    ///   `"\0"`, which is empty and so never in the way.
    /// - Puts of a transaction inside are held against deletions of those
    ///   before it, but not of those after it.
    fn by(ops: &'a [Op]) -> Result<Self, Reject> {
        let mut all = Self::default();
        for op in ops {
            if let Op::DeleteRange(DeleteRange { keys, .. }) = op
                && keys.end.as_ref() != b"\0"
            {
                all.deletes.push(keys);
            }
        }
        for op in ops {
            if let Op::Txn(txn) = op {
                let mut inner = Self::by(&txn.success)?;
                // Only one of the branches is taken, so they may agree.
                let other = Self::by(&txn.failure)?;
                inner.puts.extend(other.puts);
                inner.deletes.extend(other.deletes);
                all.add_puts(inner.puts)?;
                all.deletes.extend(inner.deletes);
            }
        }
        let mut puts = BTreeSet::new();
        for op in ops {
            if let Op::Put(put) = op
                && !puts.insert(put.key.as_ref())
            {
                return Err(Reject::DuplicateKey);
            }
        }
        all.add_puts(puts)?;
        Ok(all)
    }

    fn add_puts(&mut self, puts: BTreeSet<&'a [u8]>) -> Result<(), Reject> {
        let deleted = self.deletes.iter().any(|keys| {
            let bounds = keys.bounds();
            bounds.is_some_and(|bounds| puts.range::<[u8], _>(bounds).next().is_some())
        });
        if deleted || !self.puts.is_disjoint(&puts) {
            return Err(Reject::DuplicateKey);
        }
        self.puts.extend(puts);
        Ok(())
    }
}
