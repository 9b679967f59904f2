//! How the newest checkpoint of a file uses its pages.

use std::path::Path;

use pontoon_wal::disk::Disk;

use crate::error::EngineError;
use crate::format::PAGE_BYTES;
use crate::tables::Table;
use crate::version::Head;

use super::reader::{Reader, Scan};
use super::structure::Structure;
use super::{Finding, Findings, TABLES, find_metas, root};
use crate::store::Facts;

/// Prefixes that are listed.
const PREFIXES_MAX: usize = 20;

/// How a file is used.
#[derive(Clone, Debug)]
pub struct Stats {
    /// Which store it is of.
    pub store: u128,
    /// Number of the newest checkpoint.
    pub generation: u64,
    /// What it says of its store, if that can be read.
    pub facts: Option<Facts>,
    /// Length of the file.
    pub file_bytes: u64,
    /// Pages that the newest checkpoint uses, meta pages included.
    pub used_pages: u64,
    /// Pages that only the checkpoint before it uses.
    pub withheld_pages: u64,
    /// Pages that nobody uses.
    pub free_pages: u64,
    /// Pages of the map of used pages.
    pub map_pages: u64,
    /// Each table.
    pub tables: Vec<TableStats>,
    /// Where most bytes of current keys and values are.
    pub prefixes_by_bytes: Vec<Prefix>,
    /// Where most current keys are.
    pub prefixes_by_keys: Vec<Prefix>,
    /// What should not be: the rest is told as if it were not there.
    pub findings: Vec<Finding>,
}

/// How a table is stored.
#[derive(Clone, Debug)]
pub struct TableStats {
    /// Its name.
    pub name: &'static str,
    /// Its entries.
    pub entries: u64,
    /// Nodes by level, leaves first; none if the table is empty.
    pub nodes: Vec<u64>,
    /// Pages of its nodes.
    pub node_pages: u64,
    /// Bytes of these pages that hold something.
    pub used_bytes: u64,
    /// Pages of values that lie apart.
    pub value_pages: u64,
    /// Bytes of these values.
    pub value_bytes: u64,
}

/// Keys that begin alike.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prefix {
    /// What they begin with: up to a slash, or empty.
    pub prefix: Vec<u8>,
    /// How many there are.
    pub keys: u64,
    /// Bytes of the keys and their values.
    pub bytes: u64,
}

/// Counts what the newest checkpoint consists of. Prefixes end behind
/// `depth` parts that end with slashes; keys with fewer count where they lie.
pub fn stats(disk: &dyn Disk, path: &Path, depth: usize) -> Result<Stats, EngineError> {
    let reader = Reader::open(disk, path)?;
    let mut findings = Findings::default();
    let metas = find_metas(&reader, &mut findings)?;
    let Some(meta) = metas.newest else {
        let first = findings.list.swap_remove(0);
        return Err(EngineError::Damaged {
            file: path.to_owned(),
            page: first.page.unwrap_or(0),
            reason: first.what,
        });
    };
    let newest = Structure::walk(&reader, &meta, None, &mut findings);
    let mut all = newest.reached.clone();
    if let Some(before) = metas.older {
        let mut untold = Findings::default();
        let older = Structure::walk(&reader, &before, Some(&newest), &mut untold);
        for (first, last) in older.reached.without(&newest.reached) {
            all.set_all(first..=last);
        }
    }
    let used_pages = newest.reached.count();
    let (by_bytes, by_keys) = prefixes(Scan::new(&reader, root(&meta, Table::Current), &[]), depth);
    Ok(Stats {
        store: meta.store,
        generation: meta.generation,
        facts: reader.store_facts(&meta),
        file_bytes: reader.bytes,
        used_pages,
        withheld_pages: all.count() - used_pages,
        free_pages: reader.pages.saturating_sub(all.count()),
        map_pages: newest.map_pages,
        tables: TABLES
            .into_iter()
            .zip(newest.tables)
            .map(|(name, table)| TableStats {
                name,
                entries: table.entries,
                nodes: table.nodes,
                node_pages: table.node_pages,
                used_bytes: table.used_bytes,
                value_pages: table.value_pages,
                value_bytes: table.value_bytes,
            })
            .collect(),
        prefixes_by_bytes: by_bytes.0,
        prefixes_by_keys: by_keys.0,
        findings: findings.list,
    })
}

impl TableStats {
    /// Part of the pages' bytes that holds something.
    #[must_use]
    pub fn fill(&self) -> f64 {
        match self.node_pages {
            0 => 0.0,
            pages => self.used_bytes as f64 / (pages * PAGE_BYTES as u64) as f64,
        }
    }
}

/// The largest prefixes, in descending order.
#[derive(Default)]
struct Top(Vec<Prefix>);

impl Top {
    fn add(&mut self, prefix: &Prefix, by: fn(&Prefix) -> u64) {
        let place = self.0.partition_point(|other| by(other) >= by(prefix));
        if prefix.keys > 0 && place < PREFIXES_MAX {
            self.0.insert(place, prefix.clone());
            self.0.truncate(PREFIXES_MAX);
        }
    }
}

/// Adds up keys that come in order: of each prefix that is open now, those
/// that lie right there.
fn prefixes(scan: Scan<'_>, depth: usize) -> (Top, Top) {
    let (mut by_bytes, mut by_keys) = (Top::default(), Top::default());
    let mut close = |prefix: Option<Prefix>| {
        if let Some(prefix) = prefix {
            by_bytes.add(&prefix, |prefix| prefix.bytes);
            by_keys.add(&prefix, |prefix| prefix.keys);
        }
    };
    let mut open: Vec<Prefix> = Vec::new();
    for entry in scan {
        let key = entry.key();
        let item = entry.item();
        let value = match (item.run, Head::decode(item.payload)) {
            (Some(run), _) => u64::from(run.bytes),
            (None, Some((_, rest))) => rest.len() as u64,
            (None, None) => 0,
        };
        let prefix = &key[..prefix_bytes(&key, depth)];
        while open
            .last()
            .is_some_and(|last| !prefix.starts_with(&last.prefix))
        {
            close(open.pop());
        }
        if open.last().is_none_or(|last| last.prefix != prefix) {
            open.push(Prefix {
                prefix: prefix.to_vec(),
                ..Prefix::default()
            });
        }
        if let Some(here) = open.last_mut() {
            here.keys += 1;
            here.bytes += key.len() as u64 + value;
        }
    }
    while !open.is_empty() {
        close(open.pop());
    }
    (by_bytes, by_keys)
}

/// Bytes up to and with the slash behind `depth` parts, or the last one. A
/// slash at the start ends no part.
fn prefix_bytes(key: &[u8], depth: usize) -> usize {
    let slashes = key.iter().enumerate().filter(|(_, byte)| **byte == b'/');
    let ends = slashes.map(|(at, _)| at + 1);
    ends.take(depth + usize::from(key.first() == Some(&b'/')))
        .last()
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_behind_its_parts() {
        for (key, depth, prefix) in [
            ("/registry/pods/default/a", 2, "/registry/pods/"),
            ("/registry/pods/default/a", 3, "/registry/pods/default/"),
            ("/registry/lease", 2, "/registry/"),
            ("a/b/c", 1, "a/"),
            ("plain", 2, ""),
            ("/x", 2, "/"),
            ("a/b", 0, ""),
        ] {
            assert_eq!(&key[..prefix_bytes(key.as_bytes(), depth)], prefix, "{key}");
        }
    }
}
