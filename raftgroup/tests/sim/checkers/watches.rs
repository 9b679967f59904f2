//! Every watch is complete from its start, in order, without repetition, and
//! never given a part of a revision.

use crate::checkers::reads::{compacted, is_put};
use crate::history::{Changed, History, Seen, Watched};

pub(crate) const PROMISE: &str =
    "Every watch is complete, in order, without repetition, and no revision is split.";

pub(crate) fn check(history: &History) -> Result<(), String> {
    for (number, watched) in history.watches.iter().enumerate() {
        check_one(history, watched).map_err(|wrong| {
            let (keys, prev_kv) = (&watched.keys, watched.prev_kv);
            format!("watch {number} of {keys:?}, prev_kv {prev_kv}: {wrong}")
        })?;
    }
    Ok(())
}

fn check_one(history: &History, watched: &Watched) -> Result<(), String> {
    // The first revision that is due.
    let mut next = None;
    for (tick, node, seen) in &watched.seen {
        match seen {
            Seen::Began { from } => next = next.max(*from),
            Seen::Compacted(floor) => {
                let due = next.unwrap_or(0);
                if !compacted(history, *tick, due + 1) {
                    return Err(format!(
                        "at node {node}: {due} is not compacted, nobody asked for it"
                    ));
                }
                next = Some(*floor);
            }
            Seen::Events(events) => {
                let revisions = events.iter().map(|event| event.change.revision.0);
                let (Some(first), Some(last)) = (revisions.clone().min(), revisions.max()) else {
                    return Err(format!("at node {node}: an empty delivery"));
                };
                let from = next.unwrap_or(first);
                let due = history.truth.changes(&watched.keys, from, last);
                let due: Vec<_> = due
                    .map(|(revision, sub, changed)| (revision, sub, changed.clone()))
                    .collect();
                let given = events.iter().map(|event| {
                    let change = event.change;
                    (change.revision.0, change.sub, Changed::from(event))
                });
                let given: Vec<_> = given.collect();
                if given != due && !floor_forgot(history, *tick, &given, &due) {
                    let same = given.iter().zip(&due).take_while(|(a, b)| a == b).count();
                    let (given, due) = (given.get(same), due.get(same));
                    return Err(format!(
                        "at node {node}, from {from} to {last}: given {given:?}\nnot {due:?}"
                    ));
                }
                for event in events {
                    let revision = event.change.revision.0;
                    let before = history.truth.before(&event.kv.key, revision);
                    let forgotten = compacted(history, *tick, revision);
                    let right = match (&event.prev_kv, watched.prev_kv) {
                        (prev, false) => prev.is_none(),
                        (None, true) => before.is_none() || forgotten,
                        (Some(prev), true) => {
                            // Put again after it was deleted in the same revision.
                            Some(prev) == before || (before.is_none() && !is_put(event))
                        }
                    };
                    if !right {
                        return Err(format!(
                            "at node {node}: {event:?}\nbut before it was {before:?}"
                        ));
                    }
                }
                next = Some(last + 1);
            }
        }
    }
    if let (true, Some(next)) = (watched.drained, next)
        && let Some((revision, _, changed)) =
            history.truth.changes(&watched.keys, next, i64::MAX).next()
    {
        return Err(format!("{revision} was never given: {changed:?}"));
    }
    Ok(())
}

/// At the floor itself only the last change of each key is remembered.
fn floor_forgot(
    history: &History,
    by: u64,
    given: &[(i64, u32, Changed)],
    due: &[(i64, u32, Changed)],
) -> bool {
    let first = due.first().map_or(0, |(revision, _, _)| *revision);
    let last_of_key = |place: usize| {
        let (revision, _, changed) = &due[place];
        let later = &due[place + 1..];
        *revision > first
            || !later
                .iter()
                .any(|(at, _, other)| at == revision && other.key == changed.key)
    };
    let kept = (0..due.len())
        .filter(|place| last_of_key(*place))
        .map(|place| &due[place]);
    compacted(history, by, first) && kept.eq(given)
}
