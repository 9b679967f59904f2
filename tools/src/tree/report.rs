//! What is reported of a tree file, once for text and JSON: the JSON is
//! these structures as they are.
//!
//! Kept true: what can't be told is `None`, never a guess; numbers that JSON
//! readers would round are hexadecimal text.

use std::collections::BTreeMap;
use std::fmt;

use pontoon_engine::Split;
use pontoon_engine::inspect::{self, Content, Facts, PageBody, Severity, TABLES};
use serde::Serialize;

use super::escape;

#[derive(Serialize)]
pub(super) struct Report {
    pub(super) clean: bool,
    pub(super) file_bytes: u64,
    pub(super) newest: Option<Checkpoint>,
    pub(super) older: Option<Checkpoint>,
    pub(super) state: Option<State>,
    pub(super) findings: Vec<Found>,
    pub(super) findings_total: u64,
}

#[derive(Serialize)]
pub(super) struct Checkpoint {
    pub(super) store: String,
    pub(super) generation: u64,
    pub(super) pages: u64,
    pub(super) entries: BTreeMap<&'static str, u64>,
}

#[derive(Serialize)]
pub(super) struct State {
    pub(super) revision: i64,
    pub(super) last: i64,
    pub(super) floor: i64,
    pub(super) swept: i64,
    pub(super) sweep_revision: i64,
    pub(super) sweep_sub: u32,
    pub(super) index: u64,
    pub(super) term: u64,
    pub(super) leader: u64,
    pub(super) first_key: String,
    pub(super) end_key: String,
    pub(super) keys_hash: String,
    pub(super) records_hash: String,
    /// Of the keys' hash, what lies outside the bounds, if it is known.
    pub(super) outside_hash: Option<String>,
    pub(super) splits: Vec<SplitOff>,
    pub(super) shedding: bool,
}

/// Keys that were split off.
#[derive(Serialize)]
pub(super) struct SplitOff {
    pub(super) first_key: String,
    pub(super) end_key: String,
    pub(super) floor: i64,
    pub(super) revision: i64,
    pub(super) last: i64,
}

/// A finding.
#[derive(Serialize)]
pub(super) struct Found {
    severity: &'static str,
    page: Option<u64>,
    table: Option<&'static str>,
    what: String,
}

#[derive(Serialize)]
pub(super) struct Stats {
    pub(super) store: String,
    pub(super) generation: u64,
    pub(super) state: Option<State>,
    pub(super) file_bytes: u64,
    pub(super) used_pages: u64,
    pub(super) withheld_pages: u64,
    pub(super) free_pages: u64,
    pub(super) map_pages: u64,
    pub(super) tables: Vec<Table>,
    pub(super) prefixes_by_bytes: Vec<Prefix>,
    pub(super) prefixes_by_keys: Vec<Prefix>,
    pub(super) findings: Vec<Found>,
}

#[derive(Serialize)]
pub(super) struct Table {
    pub(super) name: &'static str,
    pub(super) entries: u64,
    pub(super) depth: usize,
    /// Leaves first.
    pub(super) nodes_by_level: Vec<u64>,
    pub(super) node_pages: u64,
    pub(super) used_bytes: u64,
    pub(super) fill: f64,
    pub(super) value_pages: u64,
    pub(super) value_bytes: u64,
}

#[derive(Serialize)]
pub(super) struct Prefix {
    pub(super) prefix: String,
    pub(super) keys: u64,
    pub(super) bytes: u64,
}

/// A line of a dump.
#[derive(Serialize)]
pub(super) struct Row {
    pub(super) table: &'static str,
    pub(super) page: u64,
    pub(super) key: String,
    #[serde(flatten)]
    pub(super) content: RowContent,
}

#[derive(Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(super) enum RowContent {
    Version {
        revision: i64,
        sub: u32,
        create: i64,
        version: i64,
        lease: i64,
        value: Option<String>,
        value_bytes: u64,
        value_page: Option<u64>,
    },
    Change {
        revision: i64,
        sub: u32,
        change: &'static str,
        before: Option<Box<RowContent>>,
    },
    Superseded {
        revision: i64,
        sub: u32,
    },
    Lease {
        lease: i64,
    },
    StagedPut {
        revision: i64,
        sub: u32,
        lease: i64,
        value: String,
    },
    StagedDelete {
        revision: i64,
        sub: u32,
    },
    Record {
        content: String,
    },
    State(Box<State>),
    Nonsense {
        what: String,
    },
}

#[derive(Serialize)]
pub(super) struct Page {
    pub(super) page: u64,
    pub(super) kind: &'static str,
    pub(super) header: BTreeMap<&'static str, String>,
    /// The same, in the order of the page.
    #[serde(skip)]
    pub(super) fields: Vec<(&'static str, String)>,
    pub(super) prefix: Option<String>,
    pub(super) cells: Vec<Cell>,
    /// Bytes of what is no node, escaped.
    pub(super) content: Option<String>,
    pub(super) problem: Option<Found>,
}

#[derive(Serialize)]
pub(super) struct Cell {
    pub(super) offset: usize,
    pub(super) head: String,
    pub(super) suffix: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) child: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) count: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) payload: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) value_page: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) value_bytes: Option<u32>,
}

impl Report {
    pub(super) fn of(found: inspect::Report) -> Self {
        Self {
            clean: found.is_clean(),
            file_bytes: found.file_bytes,
            newest: found.newest.map(Checkpoint::of),
            older: found.older.map(Checkpoint::of),
            state: found.store.map(State::of),
            findings: found.findings.into_iter().map(Found::of).collect(),
            findings_total: found.findings_total,
        }
    }
}

impl Checkpoint {
    fn of(facts: inspect::CheckpointFacts) -> Self {
        Self {
            store: format!("{:032x}", facts.store),
            generation: facts.generation,
            pages: facts.pages,
            entries: TABLES.into_iter().zip(facts.entries).collect(),
        }
    }
}

impl State {
    fn of(facts: Facts) -> Self {
        Self {
            revision: facts.revision.0,
            last: facts.last.0,
            floor: facts.floor.0,
            swept: facts.swept.0,
            sweep_revision: facts.sweep.revision.0,
            sweep_sub: facts.sweep.sub,
            index: facts.applied.index,
            term: facts.applied.term,
            leader: facts.applied.leader,
            first_key: escape(&facts.bounds.key),
            end_key: escape(&facts.bounds.end),
            keys_hash: format!("{:016x}", facts.hash.keys),
            records_hash: format!("{:016x}", facts.hash.records),
            outside_hash: facts.outside.map(|sum| format!("{sum:016x}")),
            splits: facts.splits.iter().map(SplitOff::of).collect(),
            shedding: facts.shedding,
        }
    }
}

impl SplitOff {
    fn of(split: &Split) -> Self {
        Self {
            first_key: escape(&split.keys.key),
            end_key: escape(&split.keys.end),
            floor: split.floor.0,
            revision: split.revision.0,
            last: split.last.0,
        }
    }
}

impl Found {
    pub(super) fn of(finding: inspect::Finding) -> Self {
        Self {
            severity: match finding.severity {
                Severity::Note => "note",
                Severity::Warning => "warning",
                Severity::Damage => "damaged",
            },
            page: finding.page,
            table: finding.table,
            what: finding.what,
        }
    }

    pub(super) fn is_note(&self) -> bool {
        self.severity == "note"
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.severity)?;
        if let Some(page) = self.page {
            write!(f, "page {page}: ")?;
        }
        if let Some(table) = self.table {
            write!(f, "{table}: ")?;
        }
        f.write_str(&self.what)
    }
}

impl Stats {
    pub(super) fn of(found: inspect::Stats) -> Self {
        let prefixes = |list: Vec<inspect::Prefix>| {
            let shown = |prefix: inspect::Prefix| Prefix {
                prefix: escape(&prefix.prefix),
                keys: prefix.keys,
                bytes: prefix.bytes,
            };
            list.into_iter().map(shown).collect()
        };
        Self {
            store: format!("{:032x}", found.store),
            generation: found.generation,
            state: found.facts.map(State::of),
            file_bytes: found.file_bytes,
            used_pages: found.used_pages,
            withheld_pages: found.withheld_pages,
            free_pages: found.free_pages,
            map_pages: found.map_pages,
            tables: found.tables.into_iter().map(Table::of).collect(),
            prefixes_by_bytes: prefixes(found.prefixes_by_bytes),
            prefixes_by_keys: prefixes(found.prefixes_by_keys),
            findings: found.findings.into_iter().map(Found::of).collect(),
        }
    }
}

impl Table {
    fn of(found: inspect::TableStats) -> Self {
        Self {
            fill: (found.fill() * 1000.0).round() / 1000.0,
            name: found.name,
            entries: found.entries,
            depth: found.nodes.len(),
            nodes_by_level: found.nodes,
            node_pages: found.node_pages,
            used_bytes: found.used_bytes,
            value_pages: found.value_pages,
            value_bytes: found.value_bytes,
        }
    }
}

impl Row {
    pub(super) fn of(row: inspect::Row) -> Self {
        Self {
            table: row.table,
            page: row.page,
            key: escape(&row.key),
            content: RowContent::of(row.content),
        }
    }
}

impl RowContent {
    fn of(content: Content) -> Self {
        match content {
            Content::Version {
                change,
                create,
                version,
                lease,
                value,
                value_bytes,
                value_page,
            } => Self::Version {
                revision: change.revision.0,
                sub: change.sub,
                create: create.0,
                version,
                lease,
                value: value.map(|value| escape(&value)),
                value_bytes,
                value_page,
            },
            Content::Change {
                change,
                kind,
                before,
            } => Self::Change {
                revision: change.revision.0,
                sub: change.sub,
                change: kind,
                before: before.map(|before| Box::new(Self::of(*before))),
            },
            Content::Superseded { change } => Self::Superseded {
                revision: change.revision.0,
                sub: change.sub,
            },
            Content::Lease(lease) => Self::Lease { lease },
            Content::StagedPut {
                change,
                value,
                lease,
            } => Self::StagedPut {
                revision: change.revision.0,
                sub: change.sub,
                lease,
                value: escape(&value),
            },
            Content::StagedDelete { change } => Self::StagedDelete {
                revision: change.revision.0,
                sub: change.sub,
            },
            Content::Record(content) => Self::Record {
                content: escape(&content),
            },
            Content::State(facts) => Self::State(Box::new(State::of(*facts))),
            Content::Nonsense(what) => Self::Nonsense { what },
        }
    }
}

impl Page {
    pub(super) fn of(found: inspect::PageFacts) -> Self {
        let shown = |(name, value): &(&'static str, u128)| {
            let hex = matches!(*name, "crc" | "magic" | "store");
            let value = if hex {
                format!("{value:#x}")
            } else {
                value.to_string()
            };
            (*name, value)
        };
        let fields: Vec<_> = found.header.iter().map(shown).collect();
        let kind = found.header.iter().find(|(name, _)| *name == "kind");
        let (prefix, cells, content) = match found.body {
            PageBody::Node { prefix, cells } => (Some(escape(&prefix)), cells, None),
            PageBody::Bytes(bytes) => (None, Vec::new(), Some(escape(&bytes))),
            PageBody::Unknown => (None, Vec::new(), None),
        };
        Self {
            page: found.page,
            kind: kind_name(kind.map_or(0, |(_, kind)| *kind)),
            header: fields.iter().cloned().collect(),
            fields,
            prefix,
            cells: cells.into_iter().map(Cell::of).collect(),
            content,
            problem: found.problem.map(Found::of),
        }
    }
}

impl Cell {
    fn of(cell: inspect::Cell) -> Self {
        Self {
            offset: cell.offset,
            head: format!("{:08x}", cell.head),
            suffix: escape(&cell.suffix),
            child: cell.child,
            count: cell.count,
            payload: cell.payload.map(|payload| escape(&payload)),
            value_page: cell.run.map(|(page, _)| page),
            value_bytes: cell.run.map(|(_, bytes)| bytes),
        }
    }
}

fn kind_name(kind: u128) -> &'static str {
    match kind {
        1 => "leaf",
        2 => "branch",
        3 => "value",
        4 => "map",
        5 => "map index",
        6 => "meta",
        _ => "unknown",
    }
}
