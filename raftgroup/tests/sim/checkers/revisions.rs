//! Revisions are unique and in real-time order.

use std::collections::BTreeMap;

use pontoon_raftgroup::{GroupId, RangeMap};

use crate::cluster::Shape;
use crate::history::{Asked, History, Operation, Outcome};

pub(crate) const PROMISE: &str = "Revisions are unique and in real-time order.";

pub(crate) fn check(history: &History, shape: &Shape) -> Result<(), String> {
    writers_differ(history)?;
    real_time(history)?;
    members_go_forward(history, &history.regions(shape))
}

/// No two writes were answered with one revision.
fn writers_differ(history: &History) -> Result<(), String> {
    let mut writers: BTreeMap<i64, &Operation> = BTreeMap::new();
    for operation in &history.operations {
        if let (Asked::Compact(floor), Outcome::Compacted(newest)) =
            (&operation.asked, &operation.outcome)
            && newest.0 < *floor
        {
            return Err(format!("compacted above the newest revision:\n{operation}"));
        }
        if !operation.wrote() {
            continue;
        }
        let revision = operation.revision().unwrap_or_default();
        if let Some(other) = writers.insert(revision, operation) {
            return Err(format!(
                "revision {revision} for both\n{other}\n{operation}"
            ));
        }
    }
    Ok(())
}

/// What was asked after an answer is at a later revision: a read at the same
/// or a later one.
fn real_time(history: &History) -> Result<(), String> {
    let linearizable = || {
        let answered = history
            .operations
            .iter()
            .filter(|operation| !operation.is_serializable());
        answered.filter_map(|operation| Some((operation.revision()?, operation)))
    };
    let mut asked: Vec<_> = linearizable().collect();
    let mut answered = asked.clone();
    asked.sort_by_key(|(_, operation)| operation.invoked);
    answered.sort_by_key(|(_, operation)| operation.returned);
    let mut answered = answered.into_iter().peekable();
    let mut highest: Option<(i64, &Operation)> = None;
    for (revision, operation) in asked {
        while let Some(earlier) =
            answered.next_if(|(_, earlier)| earlier.returned < operation.invoked)
        {
            if highest.is_none_or(|highest| highest.0 < earlier.0) {
                highest = Some(earlier);
            }
        }
        let Some((before, earlier)) = highest else {
            continue;
        };
        if revision < before || (revision == before && operation.wrote()) {
            return Err(format!(
                "first\n{earlier}\nand after it was answered\n{operation}"
            ));
        }
    }
    Ok(())
}

/// A member never tells less about a group than it has told before.
fn members_go_forward(history: &History, regions: &RangeMap) -> Result<(), String> {
    type Answered<'a> = BTreeMap<u64, (i64, &'a Operation)>;
    // By start and region: what was told, by when.
    let mut told: BTreeMap<(u64, GroupId), Answered<'_>> = BTreeMap::new();
    let mut operations: Vec<_> = history.operations.iter().collect();
    operations.sort_by_key(|operation| operation.returned);
    for operation in operations {
        let (Some(revision), Some(request)) = (operation.revision(), operation.asked.request())
        else {
            continue;
        };
        for region in regions.groups_of(&request) {
            let told = told.entry((operation.start, region)).or_default();
            let before = told.range(..operation.invoked).next_back();
            if let (Asked::Serializable(_), Some((_, (before, earlier)))) =
                (&operation.asked, before)
                && revision < *before
            {
                let keys = regions.keys_of(region);
                return Err(format!("{keys:?}: first\n{earlier}\nthen\n{operation}"));
            }
            let highest = told.values().next_back();
            let highest = highest.copied().filter(|highest| highest.0 > revision);
            told.insert(operation.returned, highest.unwrap_or((revision, operation)));
        }
    }
    Ok(())
}
