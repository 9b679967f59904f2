//! Which way a transaction goes, decided before anything is done.
//!
//! Kept true: every comparison, also of transactions inside, sees the state
//! that the whole transaction finds.

use super::view::{NOW, View};
use crate::error::EngineError;
use crate::request::{Compare, KvRef, Op, Operand, Relation, Txn};

/// The steps that will be done.
pub(super) struct Path<'a> {
    pub(super) succeeded: bool,
    pub(super) ops: &'a [Op],
    /// For each transaction among the steps, in order.
    pub(super) inner: Vec<Path<'a>>,
}

impl<'a> Path<'a> {
    pub(super) fn choose(view: &View<'_>, txn: &'a Txn) -> Result<Self, EngineError> {
        let mut succeeded = true;
        for compare in &txn.compare {
            succeeded = holds(view, compare)?;
            if !succeeded {
                break;
            }
        }
        let ops = if succeeded {
            &txn.success
        } else {
            &txn.failure
        };
        let inner = ops.iter().filter_map(|op| match op {
            Op::Txn(txn) => Some(Self::choose(view, txn)),
            _ => None,
        });
        Ok(Self {
            succeeded,
            ops,
            inner: inner.collect::<Result<_, _>>()?,
        })
    }
}

/// Whether a comparison holds for every key of its range. Where there is no
/// key it is made with zeros, but a value that isn't there relates to none.
fn holds(view: &View<'_>, compare: &Compare) -> Result<bool, EngineError> {
    let mut found = false;
    let mut holds = true;
    view.scan(&compare.keys, NOW, &mut |kv| {
        found = true;
        holds = holds_for(view, compare, kv)?;
        Ok(holds)
    })?;
    match compare.operand {
        _ if found => Ok(holds),
        Operand::Value(_) => Ok(false),
        _ => holds_for(view, compare, KvRef::default()),
    }
}

fn holds_for(view: &View<'_>, compare: &Compare, kv: KvRef<'_>) -> Result<bool, EngineError> {
    let stored_to_given = match &compare.operand {
        Operand::Version(given) => kv.version.cmp(given),
        Operand::Create(given) => view.relate(kv.create, *given)?,
        Operand::Modified(given) => view.relate(kv.modified, *given)?,
        Operand::Value(given) => kv.value.cmp(given.as_ref()),
        Operand::Lease(given) => kv.lease.cmp(given),
        Operand::Unknown => 0.cmp(&0),
    };
    Ok(match compare.relation {
        Relation::Equal => stored_to_given.is_eq(),
        Relation::Greater => stored_to_given.is_gt(),
        Relation::Less => stored_to_given.is_lt(),
        Relation::NotEqual => stored_to_given.is_ne(),
        Relation::Unknown => true,
    })
}
