//! Every answer equals the model at its revision.
//!
//! The writes are replayed in the order of revisions. If it is known who asked
//! for one, by executing that, so that all its effects in all groups are
//! compared, and its answer if there is one; else by taking over what the
//! replicas have.

use std::collections::{BTreeMap, BTreeSet};

use pontoon_engine::{Event, EventKind, KeyRange, Op, Reject, Request, Txn};
use pontoon_raftgroup::Failure;

use super::lost::{Author, author};
use crate::history::{Asked, Changed, History, Operation, Outcome, Write};
use crate::model::Model;

pub(crate) const PROMISE: &str = "Every answer equals the model at its revision.";

const OPS_MAX: usize = 128;

pub(crate) fn check(history: &History) -> Result<(), String> {
    let mut writers = BTreeMap::new();
    let mut readers: BTreeMap<i64, Vec<&Operation>> = BTreeMap::new();
    for operation in &history.operations {
        match operation.revision() {
            Some(revision) if operation.wrote() => drop(writers.insert(revision, operation)),
            Some(revision) => readers.entry(revision).or_default().push(operation),
            None => refusal_is_due(history, operation)?,
        }
    }
    let mut model = Model::new();
    let mut readers = readers.into_iter().peekable();
    for (revision, write) in &history.truth.writes {
        while let Some((at, readers)) = readers.next_if(|(at, _)| at < revision) {
            answers_equal(&mut model, at, &readers)?;
        }
        model.revision = revision - 1;
        let revoke = || {
            let told = readers.peek().filter(|(at, _)| at == revision)?;
            let mut told = told.1.iter();
            told.position(|operation| revokes(&model, operation, write))
        };
        let revoke = (!writers.contains_key(revision)).then(revoke).flatten();
        let revoke = revoke.and_then(|place| Some(readers.peek_mut()?.1.remove(place)));
        match writers.get(revision).copied().or(revoke) {
            Some(operation) => {
                answers_equal(&mut model, revision - 1, &[operation])?;
                effects_equal(&model, *revision, operation, write)?;
            }
            None => match author_of(history, *revision, write) {
                // Whole or not at all, though nobody was told.
                Some(operation) => {
                    execute(&mut model, revision - 1, operation);
                    effects_equal(&model, *revision, operation, write)?;
                }
                None => {
                    for (sub, changed) in write {
                        follows(&model, *revision, changed)?;
                        let versions = model.history.entry(changed.key.clone()).or_default();
                        versions.insert((*revision, *sub), changed.kv.clone());
                    }
                }
            },
        }
        model.revision = *revision;
    }
    for (at, readers) in readers {
        answers_equal(&mut model, at, &readers)?;
    }
    Ok(())
}

/// Whether a revoke was the write, and not told its revision by chance.
fn revokes(model: &Model, operation: &Operation, write: &Write) -> bool {
    let Asked::Revoke(lease) = operation.asked else {
        return false;
    };
    let deleted = write.values().filter(|changed| changed.kv.is_none());
    let deleted: Vec<_> = deleted.map(|changed| changed.key.clone()).collect();
    deleted.len() == write.len() && deleted == model.lease_keys(lease)
}

/// Who asked for a write, if one of its values says so.
fn author_of<'a>(history: &'a History, revision: i64, write: &Write) -> Option<&'a Operation> {
    let mut authors = write
        .values()
        .map(|changed| author(history, revision, changed));
    authors.find_map(|author| match author {
        Author::Named(number) => Some(&history.operations[number]),
        _ => None,
    })
}

/// `None` if it is about no key.
fn execute(
    model: &mut Model,
    at: i64,
    operation: &Operation,
) -> Option<Result<pontoon_engine::Answer, Reject>> {
    let request = operation.asked.request()?;
    model.revision = at;
    // Whether there was such a lease, its own checker says.
    leases_of(&request, &mut model.leases);
    Some(model.execute(&request, OPS_MAX))
}

pub(super) fn leases_of(request: &Request, leases: &mut BTreeSet<i64>) {
    fn of_txn(txn: &Txn, leases: &mut BTreeSet<i64>) {
        for op in txn.success.iter().chain(&txn.failure) {
            match op {
                Op::Put(put) => drop(leases.insert(put.lease)),
                Op::Txn(txn) => of_txn(txn, leases),
                _ => {}
            }
        }
    }
    match request {
        Request::Put(put) => drop(leases.insert(put.lease)),
        Request::LeaseRevoke(lease) => drop(leases.insert(*lease)),
        Request::Txn(txn) => of_txn(txn, leases),
        Request::Range(_) | Request::DeleteRange(_) => {}
    }
}

fn answers_equal(model: &mut Model, at: i64, operations: &[&Operation]) -> Result<(), String> {
    for operation in operations {
        let Outcome::Answer(answer) = &operation.outcome else {
            continue;
        };
        match execute(model, at, operation) {
            None => {}
            Some(Ok(expected)) if expected == *answer => {}
            Some(expected) => {
                return Err(format!("{operation}\nbut the model says {expected:?}"));
            }
        }
    }
    Ok(())
}

fn effects_equal(
    model: &Model,
    revision: i64,
    operation: &Operation,
    write: &Write,
) -> Result<(), String> {
    let events = model.events(&KeyRange::all(), revision, revision, false);
    let modelled: Write = events
        .unwrap_or_default()
        .iter()
        .map(|event| (event.change.sub, Changed::from(event)))
        .collect();
    match modelled == *write {
        true => Ok(()),
        false => Err(format!("{operation}\ndid {write:?}\nnot {modelled:?}")),
    }
}

/// A put that nobody was told of goes on from what was there.
fn follows(model: &Model, revision: i64, changed: &Changed) -> Result<(), String> {
    let Some(kv) = &changed.kv else {
        return Ok(());
    };
    let versions = model.history.get(&changed.key);
    let before = versions.and_then(|versions| versions.values().next_back()?.as_ref());
    let expected = match before {
        Some(before) => (before.create.0, before.version + 1, revision),
        None => (revision, 1, revision),
    };
    match (kv.create.0, kv.version, kv.modified.0) == expected {
        true => Ok(()),
        false => Err(format!("revision {revision} wrote {kv:?} onto {before:?}")),
    }
}

/// What is refused must be refusable at some time between question and answer.
fn refusal_is_due(history: &History, operation: &Operation) -> Result<(), String> {
    let Outcome::Failed(Failure::Reject(reject)) = &operation.outcome else {
        return Ok(());
    };
    let before = history
        .operations
        .iter()
        .filter(|other| other.returned < operation.invoked);
    let due = match (reject, &operation.asked) {
        (Reject::FutureRevision, Asked::Request(Request::Range(range))) => {
            let told = before.filter(|other| !other.is_serializable());
            let told = told.filter_map(Operation::revision).max();
            told.is_none_or(|told| range.revision > told)
        }
        (Reject::FutureRevision, Asked::Compact(revision)) => {
            let told = before.filter(|other| !other.is_serializable());
            let told = told.filter_map(Operation::revision).max();
            told.is_none_or(|told| *revision > told)
        }
        (Reject::Compacted, Asked::Compact(revision)) => {
            compacted(history, operation.returned, *revision)
        }
        (Reject::Compacted, asked) => match lowest_revision(asked) {
            Some(revision) => compacted(history, operation.returned, revision + 1),
            None => false,
        },
        (Reject::KeyNotFound, Asked::Request(Request::Put(put))) => {
            let told = before.filter_map(Operation::revision).max().unwrap_or(0);
            let absent = history.truth.before(&put.key, told + 1).is_none();
            let keys = KeyRange::one(put.key.clone());
            let mut later = history.truth.changes(&keys, told + 1, i64::MAX);
            absent || later.any(|(_, _, changed)| changed.kv.is_none())
        }
        // It was granted before, and may not be gone for good yet.
        (Reject::LeaseExists, Asked::Grant { id, .. }) => {
            let granted = |other: &&Operation| {
                matches!(&other.asked, Asked::Grant { id: same, .. } if same == id)
                    && !matches!(other.outcome, Outcome::Failed(_))
                    && other.invoked < operation.returned
            };
            let revoked = |grant: &Operation| {
                let mut before = before.clone();
                before.any(|other| {
                    matches!(&other.asked, Asked::Revoke(same) if same == id)
                        && matches!(other.outcome, Outcome::Answer(_))
                        && grant.returned < other.invoked
                })
            };
            let mut grants = history.operations.iter().filter(granted);
            grants.any(|grant| !revoked(grant))
        }
        (Reject::FutureRevision | Reject::DuplicateKey | Reject::LeaseNotFound, _) => true,
        _ => false,
    };
    match due {
        true => Ok(()),
        false => Err(format!("not to be refused:\n{operation}")),
    }
}

/// Whether somebody had asked by then for a floor at `revision` or above.
pub(super) fn compacted(history: &History, by: u64, revision: i64) -> bool {
    let mut earlier = history.operations.iter().filter(|other| other.invoked < by);
    earlier.any(|other| match (&other.asked, &other.outcome) {
        (Asked::Compact(_), Outcome::Failed(_)) => false,
        (Asked::Compact(floor), _) => *floor >= revision,
        _ => false,
    })
}

/// The lowest past revision that is asked for.
fn lowest_revision(asked: &Asked) -> Option<i64> {
    fn of_txn(txn: &Txn) -> Option<i64> {
        let ops = txn.success.iter().chain(&txn.failure);
        let revisions = ops.filter_map(|op| match op {
            Op::Range(range) => Some(range.revision),
            Op::Txn(txn) => of_txn(txn),
            _ => None,
        });
        revisions.filter(|revision| *revision > 0).min()
    }
    match asked {
        Asked::Serializable(range) | Asked::Request(Request::Range(range)) => {
            Some(range.revision).filter(|revision| *revision > 0)
        }
        Asked::Request(Request::Txn(txn)) => of_txn(txn),
        _ => None,
    }
}

/// Whether an event tells of a put.
pub(super) fn is_put(event: &Event) -> bool {
    event.kind == EventKind::Put
}
