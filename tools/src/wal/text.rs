//! Reports as people read them.
//!
//! Kept true: the last line of a report of a damaged log says where the
//! damage is; columns line up, whatever the numbers are.

use std::io::{self, Write};

use pontoon_wal::inspect::RecordFacts;

use crate::output::table;

use super::report::{Log, Report, Segment, State, kind_name, record_index};

/// One verdict per line, the last one on the whole.
pub(super) fn check(out: &mut dyn Write, report: &Report) -> io::Result<()> {
    if let Some(log) = &report.log {
        writeln!(out, "identity: node {}, log {}", log.node, log.id)?;
    }
    for segment in &report.segments {
        let verdict = segment_verdict(segment, report);
        writeln!(out, "segment {}: {verdict}", segment.number)?;
    }
    if let Some(log) = &report.log {
        let entries: u64 = log.streams.iter().map(|stream| stream.entries).sum();
        let streams = log.streams.len();
        writeln!(
            out,
            "streams: {streams} with {entries} entries, none missing"
        )?;
        writeln!(
            out,
            "end: {}, closed {}, {}",
            log.end.lsn(),
            closed(log),
            tail(log)
        )?;
    }
    conclusion(out, report)
}

fn segment_verdict(segment: &Segment, report: &Report) -> String {
    if let Some(problem) = &segment.header_problem {
        return match segment.state {
            State::LeftOver => format!("left over and not needed; its header: {problem}"),
            _ => format!("bad header: {problem}"),
        };
    }
    let records = segment.records.unwrap_or(0);
    let state = state_name(segment.state);
    match segment.state {
        State::Spare => "good header, spare".to_owned(),
        State::LeftOver => "good header, left over and not needed".to_owned(),
        _ if report.clean => format!("good header, {state}, {records} good records"),
        // Damage ends the walk, and may be found before it starts.
        _ if records == 0 => "good header, records not read".to_owned(),
        _ => format!("good header, {records} good records read"),
    }
}

/// Whose log, its segments, its streams.
pub(super) fn inspect(out: &mut dyn Write, report: &Report) -> io::Result<()> {
    if let Some(log) = &report.log {
        writeln!(out, "node         {}", log.node)?;
        writeln!(out, "log          {}", log.id)?;
        writeln!(out, "epoch        {}", log.epoch)?;
        writeln!(out, "last commit  {}", log.last_commit)?;
        writeln!(out, "end          {}", log.end.lsn())?;
        writeln!(out, "closed       {}", closed(log))?;
        writeln!(out, "tail         {}", tail(log))?;
        writeln!(out)?;
    }
    table(
        out,
        ["segment", "bytes", "state", "commits", "end"],
        report.segments.iter().map(|segment| {
            [
                segment.number.to_string(),
                segment.file_bytes.to_string(),
                match segment.header_problem {
                    Some(_) => "bad".to_owned(),
                    None => state_name(segment.state).to_owned(),
                },
                or_dash(segment.commits.map(|c| format!("{}..{}", c.first, c.last))),
                or_dash(segment.end.map(|end| format!("{end:#x}"))),
            ]
        }),
    )?;
    if let Some(log) = &report.log {
        writeln!(out)?;
        table(
            out,
            [
                "stream", "first", "next", "entries", "bytes", "metas", "needs",
            ],
            log.streams.iter().map(|stream| {
                [
                    stream.id.to_string(),
                    stream.first.to_string(),
                    stream.next.to_string(),
                    stream.entries.to_string(),
                    stream.bytes.to_string(),
                    stream.metas.len().to_string(),
                    format!("{}..", stream.oldest_segment),
                ]
            }),
        )?;
    }
    if report.clean {
        return Ok(());
    }
    writeln!(out)?;
    conclusion(out, report)
}

/// One record of a dump, with the names of the columns before the first.
/// The widths are fixed, because the rest is not known yet: a longer number
/// pushes its own line out of line, and nothing else.
pub(super) fn record(out: &mut dyn Write, facts: &RecordFacts, is_first: bool) -> io::Result<()> {
    if is_first {
        writeln!(
            out,
            "{:>16} {:>10} {:>6} {:>8} {:>8} {:>12} {:>10}",
            "position", "commit", "epoch", "kind", "stream", "index", "bytes"
        )?;
    }
    writeln!(
        out,
        "{:>16} {:>10} {:>6} {:>8} {:>8} {:>12} {:>10}",
        facts.at.to_string(),
        facts.seq,
        facts.epoch,
        kind_name(facts.kind),
        facts.stream,
        or_dash(record_index(facts).map(|index| index.to_string())),
        facts.payload_bytes
    )
}

fn conclusion(out: &mut dyn Write, report: &Report) -> io::Result<()> {
    match &report.damage {
        None => writeln!(out, "clean"),
        Some(damage) => writeln!(out, "{damage}"),
    }
}

fn state_name(state: State) -> &'static str {
    match state {
        State::Sealed => "sealed",
        State::Unsealed => "unsealed",
        State::Spare => "spare",
        State::LeftOver => "left-over",
        State::Unknown => "unknown",
    }
}

fn closed(log: &Log) -> &'static str {
    if log.closed_in_order {
        "in order"
    } else {
        "not in order"
    }
}

fn tail(log: &Log) -> &'static str {
    if log.unacknowledged_tail {
        "an unacknowledged tail, which the next open cuts off"
    } else {
        "no unacknowledged tail"
    }
}

fn or_dash(cell: Option<String>) -> String {
    cell.unwrap_or_else(|| "-".to_owned())
}
