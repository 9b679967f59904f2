//! Nothing acknowledged is lost, and nothing happened that nobody asked for:
//! what failed for certain has no effect, and nothing was done twice.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use pontoon_engine::{KeyValue, Request};

use crate::history::{Asked, Changed, History, Outcome, Write};

pub(crate) const PROMISE: &str =
    "Nothing acknowledged is lost, and nothing happened that nobody asked for.";

pub(crate) fn check(history: &History) -> Result<(), String> {
    let mut acknowledged = BTreeMap::new();
    for operation in history
        .operations
        .iter()
        .filter(|operation| operation.wrote())
    {
        let revision = operation.revision().unwrap_or_default();
        if !history.truth.writes.contains_key(&revision) {
            return Err(format!(
                "no replica has revision {revision} of\n{operation}"
            ));
        }
        acknowledged.insert(revision, operation);
    }
    let mut done: BTreeMap<usize, i64> = BTreeMap::new();
    let mut deletions = Vec::new();
    for (revision, write) in &history.truth.writes {
        let mut authors = BTreeSet::new();
        for changed in write.values() {
            match author(history, *revision, changed) {
                Author::Unnamed => {}
                Author::Nobody => {
                    return Err(format!("revision {revision}: nobody asked for {changed:?}"));
                }
                Author::Named(number) => {
                    authors.insert(number);
                }
            }
        }
        for number in &authors {
            let operation = &history.operations[*number];
            if let Some(other) = done.insert(*number, *revision) {
                return Err(format!(
                    "done at revisions {other} and {revision}:\n{operation}"
                ));
            }
            match &operation.outcome {
                Outcome::Unknown(_) => {}
                Outcome::Answer(_) if operation.revision() == Some(*revision) => {}
                _ => return Err(format!("revision {revision} has\n{operation}")),
            }
        }
        if authors.len() > 1 {
            let authors = authors
                .iter()
                .map(|number| history.operations[*number].to_string());
            let authors: Vec<_> = authors.collect();
            return Err(format!(
                "revision {revision} has all of\n{}",
                authors.join("\n")
            ));
        }
        if authors.is_empty() && !acknowledged.contains_key(revision) {
            deletions.push((*revision, write));
        }
    }
    // What is left must be deletions and the like of unknown outcome, or
    // leases that ended, each with its own cause.
    let causes: Vec<Cause<'_>> = causes(history);
    let fits = deletions.iter().map(|(revision, write)| {
        let state = history.truth.state_before(*revision);
        let fitting = (0..causes.len()).filter(|place| causes[*place].explains(&state, write));
        fitting.collect()
    });
    let fits: Vec<Vec<usize>> = fits.collect();
    let mut takers = vec![None; causes.len()];
    for (place, (revision, write)) in deletions.iter().enumerate() {
        if !find_place(place, &fits, &mut takers, &mut BTreeSet::new()) {
            return Err(format!("revision {revision}: nobody asked for {write:?}"));
        }
    }
    Ok(())
}

/// Gives a write one of the operations that fit it; another that has it is
/// given a different one.
fn find_place(
    write: usize,
    fits: &[Vec<usize>],
    takers: &mut [Option<usize>],
    tried: &mut BTreeSet<usize>,
) -> bool {
    for operation in &fits[write] {
        if !tried.insert(*operation) {
            continue;
        }
        let other = takers[*operation];
        if other.is_none_or(|other| find_place(other, fits, takers, tried)) {
            takers[*operation] = Some(write);
            return true;
        }
    }
    false
}

pub(super) enum Author {
    Named(usize),
    /// The change doesn't say.
    Unnamed,
    Nobody,
}

/// Values begin with the number of the operation that wrote them.
pub(super) fn author(history: &History, revision: i64, changed: &Changed) -> Author {
    let Some(kv) = &changed.kv else {
        return Author::Unnamed;
    };
    let before = history.truth.before(&changed.key, revision);
    if before.is_some_and(|before| before.value == kv.value) {
        // A put that left the value alone.
        return Author::Unnamed;
    }
    let text = String::from_utf8_lossy(&kv.value);
    let digits = text.split(|c: char| !c.is_ascii_digit()).next();
    match digits.unwrap_or_default().parse::<usize>() {
        Ok(number) if number < history.operations.len() => Author::Named(number),
        _ => Author::Nobody,
    }
}

/// What can have made a write that doesn't say who asked for it.
enum Cause<'a> {
    Asked(&'a Request),
    /// Revoked, or its time was over.
    LeaseEnds(i64),
}

fn causes(history: &History) -> Vec<Cause<'_>> {
    let causes = history.operations.iter().filter_map(|operation| {
        let unknown = matches!(operation.outcome, Outcome::Unknown(_));
        match (&operation.asked, &operation.outcome) {
            (Asked::Request(request), _) if unknown => Some(Cause::Asked(request)),
            (Asked::Grant { .. }, Outcome::Granted(granted)) => Some(Cause::LeaseEnds(granted.id)),
            // Nobody knows the id that was chosen.
            (Asked::Grant { id: 0, .. }, _) => None,
            (Asked::Grant { id, .. }, _) if unknown => Some(Cause::LeaseEnds(*id)),
            _ => None,
        }
    });
    causes.collect()
}

impl Cause<'_> {
    /// Whether it does all that the write did, and nothing else.
    fn explains(&self, before: &BTreeMap<&Bytes, &KeyValue>, write: &Write) -> bool {
        let deletes = |picked: &dyn Fn(&KeyValue) -> bool| {
            let due = before.values().filter(|kv| picked(kv)).map(|kv| &kv.key);
            let deleted = write.values().filter(|changed| changed.kv.is_none());
            deleted.clone().count() == write.len() && due.eq(deleted.map(|changed| &changed.key))
        };
        match self {
            Self::Asked(Request::Put(put)) if put.ignore_value => write
                .values()
                .all(|changed| changed.key == put.key && changed.kv.is_some()),
            Self::Asked(Request::DeleteRange(delete)) => {
                deletes(&|kv| delete.keys.contains(&kv.key))
            }
            Self::Asked(_) => false,
            Self::LeaseEnds(lease) => deletes(&|kv| kv.lease == *lease),
        }
    }
}
