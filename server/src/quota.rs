//! How much the trees may hold.
//!
//! Kept true: what was let pass since the trees were last measured counts as
//! if it were in them, so a burst doesn't slip through between two looks.

use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

use pontoon_engine::{Op, Put, Txn};

/// What etcd adds for each put.
const PUT_BYTES: i64 = 256;
/// What etcd counts for a lease.
pub(crate) const LEASE_BYTES: i64 = 64;

/// A limit on the bytes in use.
#[derive(Debug)]
pub(crate) struct Quota {
    /// 0 and below: none.
    bytes_max: i64,
    measured: AtomicI64,
    admitted: AtomicI64,
}

impl Quota {
    pub(crate) fn new(bytes_max: i64) -> Self {
        Self {
            bytes_max,
            measured: AtomicI64::new(0),
            admitted: AtomicI64::new(0),
        }
    }

    /// The trees have so many bytes in use.
    pub(crate) fn measure(&self, bytes: u64) {
        self.admitted.store(0, Relaxed);
        self.measured
            .store(i64::try_from(bytes).unwrap_or(i64::MAX), Relaxed);
    }

    /// Whether there is room; if so, it is taken.
    pub(crate) fn admit(&self, bytes: i64) -> bool {
        if self.bytes_max <= 0 || bytes == 0 {
            return true;
        }
        let used = self.measured.load(Relaxed) + self.admitted.load(Relaxed);
        let fits = used.saturating_add(bytes) < self.bytes_max;
        if fits {
            self.admitted.fetch_add(bytes, Relaxed);
        }
        fits
    }
}

/// What a put costs.
pub(crate) fn cost_of_put(put: &Put) -> i64 {
    PUT_BYTES + put.key.len() as i64 + put.value.len() as i64
}

/// What a transaction costs: the dearer of its branches.
pub(crate) fn cost_of_txn(txn: &Txn) -> i64 {
    let branch = |ops: &[Op]| ops.iter().map(cost_of_op).sum::<i64>();
    branch(&txn.success).max(branch(&txn.failure))
}

fn cost_of_op(op: &Op) -> i64 {
    match op {
        Op::Put(put) => cost_of_put(put),
        Op::Txn(txn) => cost_of_txn(txn),
        Op::Range(_) | Op::DeleteRange(_) | Op::Missing => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_admitted_counts_until_it_is_measured() {
        let quota = Quota::new(1000);
        quota.measure(400);
        assert!(quota.admit(300));
        assert!(!quota.admit(300));
        quota.measure(600);
        assert!(quota.admit(300));
        quota.measure(999);
        assert!(!quota.admit(1));
        assert!(quota.admit(0));
    }

    #[test]
    fn a_txn_costs_what_its_dearer_branch_costs() {
        let put = |bytes: usize| {
            Op::Put(Put {
                key: vec![1; bytes].into(),
                ..Put::default()
            })
        };
        let inner = Txn {
            failure: vec![put(10), put(20)],
            ..Txn::default()
        };
        let txn = Txn {
            success: vec![put(100)],
            failure: vec![Op::Txn(inner), put(1)],
            ..Txn::default()
        };
        assert_eq!(cost_of_txn(&txn), 3 * 256 + 31);
    }
}
