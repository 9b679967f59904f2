//! What is refused without a look at any key.

use bytes::Bytes;
use pontoon_engine::{DeleteRange, KeyRange, Op, Range, Reject, Request};

use super::within;

pub(super) fn check(request: &Request, ops_max: usize) -> Result<(), Reject> {
    match request.clone() {
        Request::Range(range) => check_op(&Op::Range(range), 0),
        Request::Put(put) => check_op(&Op::Put(put), 0),
        Request::DeleteRange(delete) => check_op(&Op::DeleteRange(delete), 0),
        Request::Txn(txn) => {
            check_op(&Op::Txn(txn.clone()), ops_max)?;
            changed(&txn.success)?;
            changed(&txn.failure)?;
            Ok(())
        }
        Request::LeaseRevoke(_) => Ok(()),
    }
}

fn check_op(op: &Op, ops_max: usize) -> Result<(), Reject> {
    match op {
        Op::Missing => Err(Reject::KeyNotFound),
        Op::Range(Range { keys, .. }) if keys.key.is_empty() => Err(Reject::EmptyKey),
        Op::DeleteRange(DeleteRange { keys, .. }) if keys.key.is_empty() => Err(Reject::EmptyKey),
        Op::Put(put) if put.key.is_empty() => Err(Reject::EmptyKey),
        Op::Put(put) if put.ignore_value && !put.value.is_empty() => Err(Reject::ValueProvided),
        Op::Put(put) if put.ignore_lease && put.lease != 0 => Err(Reject::LeaseProvided),
        Op::Range(_) | Op::DeleteRange(_) | Op::Put(_) => Ok(()),
        Op::Txn(txn) => {
            let lens = [txn.compare.len(), txn.success.len(), txn.failure.len()];
            let used = *lens.iter().max().unwrap();
            if used > ops_max {
                return Err(Reject::TooManyOps);
            }
            if txn
                .compare
                .iter()
                .any(|compare| compare.keys.key.is_empty())
            {
                return Err(Reject::EmptyKey);
            }
            let mut ops = txn.success.iter().chain(&txn.failure);
            ops.try_for_each(|op| check_op(op, ops_max - used))
        }
    }
}

/// The keys that steps may put and delete. None may be put twice, or put and
/// deleted; only that a transaction inside may delete what an earlier one
/// puts, and what is deleted from a key on never counts.
fn changed(ops: &[Op]) -> Result<(Vec<Bytes>, Vec<KeyRange>), Reject> {
    let (mut puts, mut deletes) = (Vec::new(), Vec::new());
    for op in ops {
        if let Op::DeleteRange(DeleteRange { keys, .. }) = op
            && keys.end != "\0"
        {
            deletes.push(keys.clone());
        }
    }
    let mut add = |new: Vec<Bytes>, deletes: &[KeyRange]| {
        for key in &new {
            if puts.contains(key) || deletes.iter().any(|keys| within(keys, key)) {
                return Err(Reject::DuplicateKey);
            }
        }
        puts.extend(new);
        Ok(())
    };
    for op in ops {
        if let Op::Txn(txn) = op {
            let (mut inner_puts, inner_deletes) = changed(&txn.success)?;
            let (other_puts, other_deletes) = changed(&txn.failure)?;
            inner_puts.extend(other_puts);
            add(inner_puts, &deletes)?;
            deletes.extend(inner_deletes);
            deletes.extend(other_deletes);
        }
    }
    for op in ops {
        if let Op::Put(put) = op {
            add(vec![put.key.clone()], &deletes)?;
        }
    }
    Ok((puts, deletes))
}
