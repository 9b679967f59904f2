//! A look at a tree file from outside: reads, changes nothing, and takes
//! nothing for granted.
//!
//! Kept true: whatever the bytes are, a look ends, and with an answer. Pages
//! are copied and checked before they are looked into (so a file in motion
//! does no harm), each is visited once, and no list grows with the damage.

mod content;
mod dump;
mod reader;
mod stats;
mod structure;

use std::collections::HashSet;
use std::path::Path;

use pontoon_wal::disk::Disk;

use crate::error::EngineError;
use crate::format::{
    MAGIC, MAP_PAGES, META_PAGES, Meta, PAGE_BYTES, PageKind, RUN_REF_BYTES, VERSION,
};
use crate::node::Child;
use crate::open::roots;
use crate::tables::{Kind, Table};

pub use crate::store::Facts;
pub use dump::{Cell, Content, PageBody, PageFacts, Row, Selection, dump, page};
pub use stats::{Prefix, Stats, TableStats, stats};

use reader::Reader;
use structure::Structure;

/// Names of the tables, in the order of the meta page.
pub const TABLES: [&str; Table::ALL.len()] = [
    "current", "history", "changes", "leases", "staged", "records",
];
/// What `docs/format.md` calls by name.
pub const CONSTANTS: &[(&str, u64)] = &[
    ("VERSION", VERSION as u64),
    ("PAGE_BYTES", PAGE_BYTES as u64),
    ("TREE_MAGIC", MAGIC),
    ("META_PAGES", META_PAGES),
    ("MAP_PAGES", MAP_PAGES),
    ("RUN_REF_BYTES", RUN_REF_BYTES as u64),
    ("PAGE_LEAF", PageKind::Leaf as u64),
    ("PAGE_BRANCH", PageKind::Branch as u64),
    ("PAGE_VALUE", PageKind::Value as u64),
    ("PAGE_MAP", PageKind::Map as u64),
    ("PAGE_MAP_INDEX", PageKind::MapIndex as u64),
    ("PAGE_META", PageKind::Meta as u64),
    ("CHANGE_CREATE", Kind::Create as u64),
    ("CHANGE_UPDATE", Kind::Update as u64),
    ("CHANGE_DELETE", Kind::Delete as u64),
];
/// Findings that are listed; more are only counted.
const FINDINGS_MAX: usize = 1000;

/// How bad something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// A crash explains it, and a store doesn't mind.
    Note,
    /// Only the older checkpoint suffers: a store opens, but the disk lied.
    Warning,
    /// The newest checkpoint doesn't hold what was written.
    Damage,
}

/// Something that should not be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// Page where it is, if it is about one.
    pub page: Option<u64>,
    /// Table to which it belongs, if to one.
    pub table: Option<&'static str>,
    /// What it is.
    pub what: String,
}

/// What a check found.
#[derive(Clone, Debug)]
pub struct Report {
    /// Length of the file.
    pub file_bytes: u64,
    /// The newest checkpoint, if there is one.
    pub newest: Option<CheckpointFacts>,
    /// The one before it, if its meta page is whole.
    pub older: Option<CheckpointFacts>,
    /// What the newest one says of its store, if that can be read.
    pub store: Option<Facts>,
    /// What should not be, the first so many.
    pub findings: Vec<Finding>,
    /// How many findings there are in all.
    pub findings_total: u64,
}

impl Report {
    /// Whether the file holds what was written, as far as anyone can tell.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.findings
            .iter()
            .all(|finding| finding.severity == Severity::Note)
    }
}

/// A checkpoint.
#[derive(Clone, Debug)]
pub struct CheckpointFacts {
    /// Which store it is of.
    pub store: u128,
    /// Its number.
    pub generation: u64,
    /// Pages that it uses.
    pub pages: u64,
    /// Entries that were seen, by table.
    pub entries: [u64; Table::ALL.len()],
}

/// Walks all that the two checkpoints of a file lead to. An error means that
/// the file can't be read or is no tree file; all else is a finding.
pub fn check(disk: &dyn Disk, path: &Path) -> Result<Report, EngineError> {
    let reader = Reader::open(disk, path)?;
    let mut findings = Findings::default();
    let mut report = Report {
        file_bytes: reader.bytes,
        newest: None,
        older: None,
        store: None,
        findings: Vec::new(),
        findings_total: 0,
    };
    let metas = find_metas(&reader, &mut findings)?;
    if let Some(meta) = metas.newest {
        let structure = Structure::walk(&reader, &meta, None, &mut findings);
        report.store = content::check(&reader, &meta, &structure, &mut findings);
        report.newest = Some(structure.facts(&meta));
        if let Some(before) = metas.older {
            findings.severity = Severity::Warning;
            let older = Structure::walk(&reader, &before, Some(&structure), &mut findings);
            report.older = Some(older.facts(&before));
        }
    }
    findings
        .list
        .sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    report.findings = findings.list;
    report.findings_total = findings.total;
    Ok(report)
}

/// The meta pages that are whole.
struct Metas {
    newest: Option<Meta>,
    older: Option<Meta>,
}

fn find_metas(reader: &Reader, findings: &mut Findings) -> Result<Metas, EngineError> {
    let (first, second) = (reader.meta(0), reader.meta(1));
    if !reader.is_tree() {
        return Err(EngineError::Foreign {
            file: reader.path.clone(),
            reason: "not a tree file".to_owned(),
        });
    }
    let metas = match (first, second) {
        (Ok(a), Ok(b)) => {
            let (newest, older) = if a.generation > b.generation {
                (a, b)
            } else {
                (b, a)
            };
            if newest.generation - older.generation != 1 || older.store != newest.store {
                findings.severity = Severity::Warning;
                findings.at(
                    older.page,
                    None,
                    format!(
                        "generation {} of store {:x}, next to generation {} of store {:x}",
                        older.generation, older.store, newest.generation, newest.store
                    ),
                );
            }
            Metas {
                newest: Some(newest),
                older: Some(older),
            }
        }
        (Ok(meta), Err(reason)) | (Err(reason), Ok(meta)) => {
            // A crash while it was written leaves it like this.
            findings.severity = Severity::Note;
            findings.at(1 - meta.page, None, reason);
            Metas {
                newest: Some(meta),
                older: None,
            }
        }
        (Err(first), Err(second)) => {
            findings.at(0, None, first);
            findings.at(1, None, second);
            Metas {
                newest: None,
                older: None,
            }
        }
    };
    if !reader.bytes.is_multiple_of(PAGE_BYTES as u64) {
        // A power cut may leave it so, behind all that is in use.
        findings.severity = Severity::Note;
        findings.at(
            reader.pages,
            None,
            "the file ends inside this page".to_owned(),
        );
    }
    findings.severity = Severity::Damage;
    Ok(metas)
}

/// What was found so far.
struct Findings {
    list: Vec<Finding>,
    total: u64,
    /// Of the next findings.
    severity: Severity,
    told: HashSet<(Option<u64>, String)>,
}

impl Default for Findings {
    fn default() -> Self {
        Self {
            list: Vec::new(),
            total: 0,
            severity: Severity::Damage,
            told: HashSet::new(),
        }
    }
}

impl Findings {
    fn at(&mut self, page: u64, table: Option<Table>, what: String) {
        self.add(Some(page), table, what);
    }

    /// Adds a finding, unless the walk of the other checkpoint made it too.
    fn add(&mut self, page: Option<u64>, table: Option<Table>, what: String) {
        if self.list.len() < FINDINGS_MAX {
            if !self.told.insert((page, what.clone())) {
                return;
            }
            self.list.push(Finding {
                severity: self.severity,
                page,
                table: table.map(Table::name),
                what,
            });
        }
        self.total += 1;
    }
}

fn root(meta: &Meta, table: Table) -> Child {
    roots(meta)[table as usize]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_constants_are_those_that_are_written() {
        for (name, kind) in [
            ("CHANGE_CREATE", Kind::Create),
            ("CHANGE_UPDATE", Kind::Update),
            ("CHANGE_DELETE", Kind::Delete),
        ] {
            assert!(
                CONSTANTS.contains(&(name, u64::from(kind.byte()))),
                "{name}"
            );
        }
        assert_eq!(TABLES, Table::ALL.map(Table::name));
    }
}
