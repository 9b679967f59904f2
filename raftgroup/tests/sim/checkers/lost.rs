//! Nothing acknowledged is lost, and nothing happened that nobody asked for:
//! what failed for certain has no effect, and nothing was done twice.

use std::collections::{BTreeMap, BTreeSet};

use pontoon_engine::{DeleteRange, Put, Request};

use crate::history::{Asked, Changed, History, Operation, Outcome};

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
        for changed in write.changes.values() {
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
            deletions.push((revision, write.changes.values().collect::<Vec<_>>()));
        }
    }
    // What is left must be deletions and the like of unknown outcome, each
    // with its own operation.
    let mut unknown: Vec<&Operation> = history.operations.iter().collect();
    unknown.retain(|operation| matches!(operation.outcome, Outcome::Unknown(_)));
    let fits: Vec<Vec<usize>> = deletions
        .iter()
        .map(|(_, changes)| {
            let all = unknown.iter().enumerate();
            let fitting = all.filter(|(_, operation)| explains(operation, changes));
            fitting.map(|(place, _)| place).collect()
        })
        .collect();
    let mut takers = vec![None; unknown.len()];
    for (place, (revision, changes)) in deletions.iter().enumerate() {
        if !find_place(place, &fits, &mut takers, &mut BTreeSet::new()) {
            return Err(format!("revision {revision}: nobody asked for {changes:?}"));
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

enum Author {
    Named(usize),
    /// The change doesn't say.
    Unnamed,
    Nobody,
}

fn author(history: &History, revision: i64, changed: &Changed) -> Author {
    let Some(kv) = &changed.kv else {
        return Author::Unnamed;
    };
    let before = history.truth.before(&changed.key, revision);
    if before.is_some_and(|before| before.value == kv.value) {
        // A put that left the value alone.
        return Author::Unnamed;
    }
    let text = String::from_utf8_lossy(&kv.value);
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    match digits.parse::<usize>() {
        Ok(number) if number < history.operations.len() => Author::Named(number),
        _ => Author::Nobody,
    }
}

fn explains(operation: &Operation, changes: &[&Changed]) -> bool {
    let Asked::Request(request) = &operation.asked else {
        return false;
    };
    match request {
        Request::Put(Put {
            key,
            ignore_value: true,
            ..
        }) => changes
            .iter()
            .all(|changed| changed.key == *key && changed.kv.is_some()),
        Request::DeleteRange(DeleteRange { keys, .. }) => changes
            .iter()
            .all(|changed| keys.contains(&changed.key) && changed.kv.is_none()),
        _ => false,
    }
}
