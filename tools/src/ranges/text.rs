//! Ranges as people read them.

use std::io::{self, Write};

use crate::output::{Side, columns, size};

use super::view::{RangeView, ReplicaView, State};
use super::{Explained, Found};

/// Where the first range begins, and the last one ends.
const FIRST: &str = "(first)";
const LAST: &str = "(last)";

pub(super) fn ranges(out: &mut dyn Write, ranges: &[RangeView]) -> io::Result<()> {
    let names = [
        ("range", Side::Right),
        ("first key", Side::Left),
        ("end", Side::Left),
        ("leader", Side::Left),
        ("term", Side::Right),
        ("applied", Side::Right),
        ("keys", Side::Right),
        ("size", Side::Right),
        ("writes/s", Side::Right),
        ("replicas", Side::Left),
    ];
    let rows = ranges.iter().map(|range| {
        [
            range.id.to_string(),
            range.first_key.clone().unwrap_or(FIRST.to_owned()),
            range.end_key.clone().unwrap_or(LAST.to_owned()),
            leader(range),
            range.term.to_string(),
            range.applied_index.to_string(),
            number(range.keys),
            size(range.used_bytes),
            range.writes_per_second.to_string(),
            replicas(range),
        ]
    });
    columns(out, names, rows)?;
    for range in ranges {
        if let Some(key) = &range.splits_at {
            writeln!(out, "range {} is being split at {key}", range.id)?;
        }
        for replica in &range.replicas {
            if let Some(failure) = &replica.failure {
                writeln!(out, "range {} on {}: {failure}", range.id, replica.member)?;
            }
        }
    }
    Ok(())
}

pub(super) fn explained(out: &mut dyn Write, explained: &Explained) -> io::Result<()> {
    let range = &explained.range;
    writeln!(out, "key       {}", explained.key)?;
    writeln!(out, "value     {}", value(explained))?;
    writeln!(
        out,
        "range     {}, from {} to {}; {}, {}",
        range.id,
        range.first_key.as_deref().unwrap_or(FIRST),
        range.end_key.as_deref().unwrap_or(LAST),
        match range.keys {
            Some(1) => "1 key".to_owned(),
            keys => format!("{} keys", number(keys)),
        },
        size(range.used_bytes),
    )?;
    writeln!(out, "leader    {}, term {}", leader(range), range.term)?;
    for (at, replica) in range.replicas.iter().enumerate() {
        let head = if at == 0 { "replicas" } else { "" };
        writeln!(out, "{head:<8}  {}", one(replica))?;
    }
    if explained.holds_up.is_empty() {
        return writeln!(
            out,
            "waits     nothing that {} knows holds it up",
            explained.told_by
        );
    }
    for (at, reason) in explained.holds_up.iter().enumerate() {
        let head = if at == 0 { "waits" } else { "" };
        writeln!(out, "{head:<8}  {reason}")?;
    }
    writeln!(out, "told by   {}", explained.told_by)
}

fn value(explained: &Explained) -> String {
    match &explained.found {
        None if explained.looked => "there is none".to_owned(),
        None => "it could not be looked at".to_owned(),
        Some(Found {
            create_revision,
            mod_revision,
            version,
            lease,
            value_bytes,
        }) => {
            let lease = match lease.as_str() {
                "0" => String::new(),
                lease => format!(", lease {lease}"),
            };
            format!(
                "{value_bytes} bytes, created at revision {create_revision}, changed at \
                 {mod_revision}, version {version}{lease}"
            )
        }
    }
}

fn one(replica: &ReplicaView) -> String {
    let state = match replica.state {
        State::Leads => "leads",
        State::Follows => "follows",
        State::Listens => "listens",
        State::Failed => "has failed",
        State::Missing => "has no replica",
        State::NotReached => "is not reached",
    };
    match replica.applied_index {
        Some(applied) => format!("{} {state}, entry {applied} applied", replica.member),
        None => format!("{} {state}", replica.member),
    }
}

pub(crate) fn leader(range: &RangeView) -> String {
    range.leader.clone().unwrap_or("none".to_owned())
}

fn number(number: Option<u64>) -> String {
    number.map_or_else(|| "?".to_owned(), |number| number.to_string())
}

/// Their members; who is not as it should be has a word.
fn replicas(range: &RangeView) -> String {
    let replicas = range.replicas.iter().map(|replica| {
        let word = match replica.state {
            State::Leads | State::Follows => "",
            State::Listens => "(listens)",
            State::Failed => "(failed)",
            State::Missing => "(missing)",
            State::NotReached => "(not reached)",
        };
        format!("{}{word}", replica.member)
    });
    replicas.collect::<Vec<_>>().join(" ")
}
