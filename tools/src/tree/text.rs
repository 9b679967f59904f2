//! Reports as people read them.
//!
//! Kept true: the last line of a check is the verdict, or the worst finding.

use std::io::{self, Write};

use crate::output::table;

use super::report::{Cell, Page, Prefix, Report, Row, RowContent, State, Stats};

pub(super) fn check(out: &mut dyn Write, report: &Report) -> io::Result<()> {
    let checkpoints = [("newest", &report.newest), ("older", &report.older)];
    for (name, checkpoint) in checkpoints {
        let Some(checkpoint) = checkpoint else {
            continue;
        };
        let entries: u64 = checkpoint.entries.values().sum();
        writeln!(
            out,
            "{name} checkpoint: generation {} of store {}, {} pages, {entries} entries",
            checkpoint.generation, checkpoint.store, checkpoint.pages
        )?;
    }
    if let Some(state) = &report.state {
        writeln!(
            out,
            "state: revision {}, floor {}, log entry {}",
            state.revision, state.floor, state.index
        )?;
    }
    let untold = report.findings_total - report.findings.len() as u64;
    if untold > 0 {
        writeln!(out, "{untold} more findings are not listed")?;
    }
    // The worst come first in the report, and last where a reader looks.
    for finding in report.findings.iter().rev() {
        writeln!(out, "{finding}")?;
    }
    if report.clean {
        writeln!(out, "clean")?;
    }
    Ok(())
}

pub(super) fn stats(out: &mut dyn Write, stats: &Stats) -> io::Result<()> {
    writeln!(out, "store        {}", stats.store)?;
    writeln!(out, "generation   {}", stats.generation)?;
    if let Some(state) = &stats.state {
        facts(out, state)?;
    }
    writeln!(out, "file bytes   {}", stats.file_bytes)?;
    writeln!(out, "pages used   {}", stats.used_pages)?;
    writeln!(out, "withheld     {}", stats.withheld_pages)?;
    writeln!(out, "free         {}", stats.free_pages)?;
    writeln!(out, "map          {}", stats.map_pages)?;
    writeln!(out)?;
    table(
        out,
        [
            "table", "entries", "depth", "nodes", "pages", "fill", "apart", "bytes",
        ],
        stats.tables.iter().map(|table| {
            [
                table.name.to_owned(),
                table.entries.to_string(),
                table.depth.to_string(),
                levels(&table.nodes_by_level),
                table.node_pages.to_string(),
                format!("{:.0}%", 100.0 * table.fill),
                table.value_pages.to_string(),
                table.value_bytes.to_string(),
            ]
        }),
    )?;
    for (name, list) in [
        ("most bytes", &stats.prefixes_by_bytes),
        ("most keys", &stats.prefixes_by_keys),
    ] {
        writeln!(out, "\n{name}")?;
        prefixes(out, list)?;
    }
    for finding in &stats.findings {
        writeln!(out, "{finding}")?;
    }
    Ok(())
}

fn facts(out: &mut dyn Write, state: &State) -> io::Result<()> {
    writeln!(out, "revision     {} (last {})", state.revision, state.last)?;
    writeln!(
        out,
        "floor        {} (swept {}, sweep at {}.{})",
        state.floor, state.swept, state.sweep_revision, state.sweep_sub
    )?;
    writeln!(
        out,
        "applied      {} (term {}, leader {})",
        state.index, state.term, state.leader
    )?;
    writeln!(
        out,
        "bounds       \"{}\" to \"{}\"",
        state.first_key, state.end_key
    )?;
    writeln!(
        out,
        "hash         {} of keys, {} of records",
        state.keys_hash, state.records_hash
    )?;
    for split in &state.splits {
        writeln!(
            out,
            "split off    \"{}\" to \"{}\" (floor {}, revision {}, last {})",
            split.first_key, split.end_key, split.floor, split.revision, split.last
        )?;
    }
    if state.shedding {
        writeln!(out, "shedding     what lies outside the bounds")?;
    }
    Ok(())
}

/// Nodes of each level, leaves first.
fn levels(nodes: &[u64]) -> String {
    match nodes {
        [] => "-".to_owned(),
        nodes => nodes
            .iter()
            .map(u64::to_string)
            .collect::<Vec<_>>()
            .join("+"),
    }
}

fn prefixes(out: &mut dyn Write, list: &[Prefix]) -> io::Result<()> {
    table(
        out,
        ["keys", "bytes", "prefix"],
        list.iter().map(|prefix| {
            [
                prefix.keys.to_string(),
                prefix.bytes.to_string(),
                format!("\"{}\"", prefix.prefix),
            ]
        }),
    )
}

/// One entry of a dump.
pub(super) fn row(out: &mut dyn Write, row: &Row) -> io::Result<()> {
    write!(out, "{} page {} \"{}\" ", row.table, row.page, row.key)?;
    content(out, &row.content)
}

fn content(out: &mut dyn Write, content: &RowContent) -> io::Result<()> {
    match content {
        RowContent::Version {
            revision,
            sub,
            create,
            version,
            lease,
            value,
            value_bytes,
            value_page,
        } => {
            write!(
                out,
                "at {revision}.{sub} create {create} version {version} "
            )?;
            if *lease != 0 {
                write!(out, "lease {lease} ")?;
            }
            match (value, value_page) {
                (Some(value), _) => writeln!(out, "value \"{value}\""),
                (None, Some(page)) => writeln!(out, "value of {value_bytes} bytes in page {page}"),
                (None, None) => writeln!(out, "value of {value_bytes} bytes"),
            }
        }
        RowContent::Change {
            revision,
            sub,
            change,
            before,
        } => {
            write!(out, "at {revision}.{sub} {change}")?;
            match before {
                None => writeln!(out),
                Some(before) => {
                    write!(out, ", before ")?;
                    self::content(out, before)
                }
            }
        }
        RowContent::Superseded { revision, sub } => writeln!(out, "before {revision}.{sub}"),
        RowContent::Lease { lease } => writeln!(out, "lease {lease}"),
        RowContent::StagedPut {
            revision,
            sub,
            lease,
            value,
        } => writeln!(
            out,
            "at {revision}.{sub} put lease {lease} value \"{value}\""
        ),
        RowContent::StagedDelete { revision, sub } => writeln!(out, "at {revision}.{sub} delete"),
        RowContent::Record { content } => writeln!(out, "holds \"{content}\""),
        RowContent::State(state) => writeln!(
            out,
            "is the state: revision {} last {} floor {} swept {} sweep {}.{} index {} term {} \
             leader {} keys \"{}\" to \"{}\" hash {} {}",
            state.revision,
            state.last,
            state.floor,
            state.swept,
            state.sweep_revision,
            state.sweep_sub,
            state.index,
            state.term,
            state.leader,
            state.first_key,
            state.end_key,
            state.keys_hash,
            state.records_hash
        ),
        RowContent::Nonsense { what } => writeln!(out, "nonsense: {what}"),
    }
}

/// One page of a dump.
pub(super) fn page(out: &mut dyn Write, page: &Page) -> io::Result<()> {
    writeln!(out, "page {}: {}", page.page, page.kind)?;
    for (name, value) in &page.fields {
        writeln!(out, "  {name:<16} {value}")?;
    }
    if let Some(prefix) = &page.prefix {
        writeln!(out, "keys begin with \"{prefix}\"")?;
    }
    for (i, cell) in page.cells.iter().enumerate() {
        writeln!(out, "{}", line(i, cell))?;
    }
    if let Some(content) = &page.content {
        writeln!(out, "\"{content}\"")?;
    }
    match &page.problem {
        Some(problem) => writeln!(out, "{problem}"),
        None => Ok(()),
    }
}

fn line(i: usize, cell: &Cell) -> String {
    let mut line = format!(
        "{i:>4} {} {:#06x} \"{}\"",
        cell.head, cell.offset, cell.suffix
    );
    if let (Some(child), Some(count)) = (cell.child, cell.count) {
        line += &format!(" page {child} with {count} entries");
    }
    if let Some(payload) = &cell.payload {
        line += &format!(" holds \"{payload}\"");
    }
    if let (Some(page), Some(bytes)) = (cell.value_page, cell.value_bytes) {
        line += &format!(" and {bytes} bytes in page {page}");
    }
    line
}
