//! The structure of a checkpoint: nodes, values, the map, and whether the
//! map says what is really in use.

use crate::format::{MAP_PAGES, META_PAGES, Meta, NODE_HEADER_BYTES, PageKind, run_pages};
use crate::node::{Node, RunRef, varint_bytes};
use crate::tables::Table;

use super::reader::{Bits, Reader};
use super::{CheckpointFacts, Findings, TABLES, root};

/// Bytes of a slot of a node.
pub(super) const SLOT_BYTES: usize = 6;

/// What a walk saw.
#[derive(Default)]
pub(super) struct Structure {
    pub(super) tables: [TableFacts; TABLES.len()],
    /// Pages that the checkpoint leads to, its meta pages included.
    pub(super) reached: Bits,
    /// Pages that its map says are in use, if it can be read.
    pub(super) used: Option<Bits>,
    /// First pages of values that were found good.
    good_values: Bits,
    /// Pages of the map and its index.
    pub(super) map_pages: u64,
}

/// One table.
#[derive(Clone, Default)]
pub(super) struct TableFacts {
    pub(super) entries: u64,
    /// Nodes, by level; leaves first.
    pub(super) nodes: Vec<u64>,
    pub(super) node_pages: u64,
    /// Bytes of the nodes that hold something.
    pub(super) used_bytes: u64,
    pub(super) value_pages: u64,
    pub(super) value_bytes: u64,
    /// Whether some of it can't be read.
    pub(super) hidden: bool,
}

impl Structure {
    /// Walks a checkpoint. What the walk of a newer one found good is not
    /// looked at again.
    pub(super) fn walk(
        reader: &Reader,
        meta: &Meta,
        newer: Option<&Self>,
        findings: &mut Findings,
    ) -> Self {
        let mut walk = Walk {
            reader,
            meta,
            newer,
            findings,
            seen: Self::default(),
        };
        walk.seen.reached.set_all(0..META_PAGES);
        for table in Table::ALL {
            walk.table(table);
        }
        walk.seen.used = walk.map();
        walk.compare();
        walk.seen
    }

    pub(super) fn facts(&self, meta: &Meta) -> CheckpointFacts {
        CheckpointFacts {
            store: meta.store,
            generation: meta.generation,
            pages: self.reached.count(),
            entries: std::array::from_fn(|t| self.tables[t].entries),
        }
    }

    /// Whether some of a table can't be read.
    pub(super) fn is_hidden(&self, table: Table) -> bool {
        self.tables[table as usize].hidden
    }
}

/// What a node must agree with.
struct Place<'a> {
    table: Table,
    page: u64,
    /// Level and generation of its parent; `None` for a root.
    parent: Option<(u8, u64)>,
    low: &'a [u8],
    high: Option<&'a [u8]>,
}

struct Walk<'a> {
    reader: &'a Reader,
    meta: &'a Meta,
    newer: Option<&'a Structure>,
    findings: &'a mut Findings,
    seen: Structure,
}

impl Walk<'_> {
    fn table(&mut self, table: Table) {
        let root = root(self.meta, table);
        let found = match root.page {
            0 => Some(0),
            page => self.node(&Place {
                table,
                page,
                parent: None,
                low: &[],
                high: None,
            }),
        };
        if let Some(found) = found.filter(|found| *found != root.count) {
            let said = root.count;
            self.find(
                self.meta.page,
                table,
                format!(
                    "the meta page says that {said} entries are in the table, there are {found}"
                ),
            );
        }
    }

    fn find(&mut self, page: u64, table: Table, what: impl Into<String>) {
        self.findings.at(page, Some(table), what.into());
    }

    /// Notes that some of a table can't be read, and why.
    fn hide(&mut self, page: u64, table: Table, what: impl Into<String>) {
        self.seen.tables[table as usize].hidden = true;
        self.find(page, table, what);
    }

    /// Marks pages as reached; `false` if some of them already were.
    fn reach(&mut self, page: u64, pages: u64, table: Option<Table>) -> bool {
        let again = (page..page + pages).find(|page| self.seen.reached.has(*page));
        if let Some(again) = again {
            let what = format!("page {again} is reached a second time");
            self.findings.at(page, table, what);
            if let Some(table) = table {
                self.seen.tables[table as usize].hidden = true;
            }
            return false;
        }
        self.seen.reached.set_all(page..page + pages);
        if page + pages > self.meta.end {
            let what = format!(
                "behind page {}, where the meta page says that all ends",
                self.meta.end
            );
            self.findings.at(page, table, what);
        }
        true
    }

    fn check_generation(&mut self, page: u64, table: Option<Table>, has: u64, above: u64) {
        if has > above {
            let what = format!("generation {has} under one of generation {above}");
            self.findings.at(page, table, what);
        }
    }

    /// Checks a node and all below it. Returns how many entries there are, if
    /// that can be known.
    fn node(&mut self, place: &Place<'_>) -> Option<u64> {
        let Place { table, page, .. } = *place;
        let run = match self.reader.node(page) {
            Ok(run) => run,
            Err(reason) => {
                self.hide(page, table, reason);
                return None;
            }
        };
        let node = run.node();
        let above = place
            .parent
            .map_or(self.meta.generation, |(_, generation)| generation);
        self.check_generation(page, Some(table), run.header.generation, above);
        if let Some((level, _)) = place.parent
            && node.level() + 1 != level
        {
            let what = format!(
                "a node of level {} under one of level {level}",
                node.level()
            );
            self.hide(page, table, what);
            return None;
        }
        if !self.reach(page, run.pages(), Some(table)) {
            return None;
        }
        self.count_node(table, node);
        self.check_cells(place, node);
        if node.is_leaf() {
            for i in 0..node.count() {
                if let Some(value) = node.item(i).run {
                    self.value(table, page, value, run.header.generation);
                }
            }
            return Some(node.count() as u64);
        }
        let mut total = Some(0u64);
        let mut low = place.low.to_vec();
        for i in 0..node.count() {
            let high = (i + 1 < node.count()).then(|| node.key(i + 1));
            let child = node.child(i);
            let found = self.node(&Place {
                table,
                page: child.page,
                parent: Some((node.level(), run.header.generation)),
                low: &low,
                high: high.as_deref().or(place.high),
            });
            match found {
                Some(found) if found != child.count => self.find(
                    page,
                    table,
                    format!(
                        "it says that {} entries lie under page {}, there are {found}",
                        child.count, child.page
                    ),
                ),
                _ => {}
            }
            total = total.zip(found).map(|(total, found)| total + found);
            low = high.unwrap_or_default();
        }
        total
    }

    fn count_node(&mut self, table: Table, node: Node<'_>) {
        let facts = &mut self.seen.tables[table as usize];
        let level = usize::from(node.level());
        if facts.nodes.len() <= level {
            facts.nodes.resize(level + 1, 0);
        }
        facts.nodes[level] += 1;
        facts.node_pages += (node.bytes().len() / crate::format::PAGE_BYTES) as u64;
        facts.used_bytes += node.used() as u64;
        if node.is_leaf() {
            facts.entries += node.count() as u64;
        }
    }

    /// Keys in order and between those of the parent, slots that agree with
    /// their cells, holes that are counted.
    fn check_cells(&mut self, place: &Place<'_>, node: Node<'_>) {
        let Place { table, page, .. } = *place;
        let mut before: Option<Vec<u8>> = None;
        let mut cells = 0;
        for i in 0..node.count() {
            let (head, offset) = slot(node, i);
            let suffix = node.suffix(i);
            if head != head_of(suffix) {
                self.find(
                    page,
                    table,
                    format!("slot {i} doesn't begin as its key does"),
                );
            }
            if offset + cell_bytes(node, i) > node.bytes().len() {
                self.find(page, table, format!("cell {i} ends outside the node"));
            }
            cells += cell_bytes(node, i).next_multiple_of(1 << node.bytes()[6]);
            // The first key of a branch means nothing.
            if !node.is_leaf() && i == 0 {
                continue;
            }
            let key = node.key(i);
            if before.as_ref().is_some_and(|before| *before >= key) {
                self.find(
                    page,
                    table,
                    format!("key {i} is not above the one before it"),
                );
            }
            if &key[..] < place.low || place.high.is_some_and(|high| &key[..] >= high) {
                let what = format!("key {i} is not between the keys of the node above");
                self.find(page, table, what);
            }
            before = Some(key);
        }
        let slots = NODE_HEADER_BYTES + node.prefix().len() + node.count() * SLOT_BYTES;
        if slots + cells != node.used() {
            self.find(page, table, "its holes are miscounted");
        }
    }

    fn value(&mut self, table: Table, leaf: u64, value: RunRef, above: u64) {
        let pages = run_pages(value.bytes as usize);
        let is_known = self
            .newer
            .is_some_and(|newer| newer.good_values.has(value.page));
        if !is_known {
            match self.reader.value(value) {
                Ok(run) => {
                    self.check_generation(value.page, Some(table), run.header.generation, above)
                }
                Err(reason) => {
                    let what = format!("{reason} (a value of page {leaf})");
                    return self.hide(value.page, table, what);
                }
            }
        }
        if self.reach(value.page, pages, Some(table)) {
            self.seen.good_values.set(value.page);
            let facts = &mut self.seen.tables[table as usize];
            facts.value_pages += pages;
            facts.value_bytes += u64::from(value.bytes);
        }
    }

    /// Reads the map: which pages are in use.
    fn map(&mut self) -> Option<Bits> {
        let meta = self.meta;
        let index = self.map_run(meta.map_index, PageKind::MapIndex)?;
        let (places, rest) = index.as_chunks();
        if !rest.is_empty() || (places.len() as u64) < meta.end.div_ceil(MAP_PAGES) {
            let what = format!(
                "the map has {} bytes of index, which is wrong for {} pages",
                index.len(),
                meta.end
            );
            self.findings.at(meta.map_index, None, what);
        }
        let mut used = Bits::default();
        let mut whole = true;
        for (c, place) in places.iter().enumerate() {
            let page = u64::from_le_bytes(*place);
            let Some(chunk) = self.map_run(page, PageKind::Map) else {
                whole = false;
                continue;
            };
            if chunk.len() as u64 != MAP_PAGES / 8 {
                self.findings.at(
                    page,
                    None,
                    "a page of the map has the wrong length".to_owned(),
                );
            }
            let base = c as u64 * MAP_PAGES;
            let mut behind = 0;
            for (b, byte) in chunk.iter().enumerate().filter(|(_, byte)| **byte != 0) {
                for bit in (0..8).filter(|bit| byte & 1 << bit != 0) {
                    let page = base + 8 * b as u64 + bit;
                    if page >= self.reader.pages || page >= meta.end {
                        behind += 1;
                    } else {
                        used.set(page);
                    }
                }
            }
            if behind > 0 {
                let end = self.reader.pages.min(meta.end);
                let what =
                    format!("the file is cut off: {behind} pages in use would lie from here on");
                self.findings.at(end, None, what);
            }
        }
        whole.then_some(used)
    }

    fn map_run(&mut self, page: u64, kind: PageKind) -> Option<Vec<u8>> {
        let run = match self.reader.run(page) {
            Ok(run) if run.header.kind == kind as u8 => run,
            Ok(_) => {
                self.findings
                    .at(page, None, "not a page of the map".to_owned());
                return None;
            }
            Err(reason) => {
                self.findings
                    .at(page, None, format!("{reason} (a page of the map)"));
                return None;
            }
        };
        self.check_generation(page, None, run.header.generation, self.meta.generation);
        self.seen.map_pages += run.pages();
        self.reach(page, run.pages(), None)
            .then(|| run.content().to_vec())
    }

    /// Compares the map with what was reached.
    fn compare(&mut self) {
        let Some(used) = self.seen.used.take() else {
            return;
        };
        for (first, last) in self.seen.reached.without(&used) {
            let what = format!(
                "{}: in use, but not marked so in the map",
                pages(first, last)
            );
            self.findings.at(first, None, what);
        }
        // Behind a page that can't be read anything may hide.
        if self.seen.tables.iter().all(|table| !table.hidden) {
            for (first, last) in used.without(&self.seen.reached) {
                let what = format!(
                    "{}: marked as in use, but nothing leads there",
                    pages(first, last)
                );
                self.findings.at(first, None, what);
            }
        }
        self.seen.used = Some(used);
    }
}

fn pages(first: u64, last: u64) -> String {
    match last - first {
        0 => format!("page {first}"),
        _ => format!("pages {first} to {last}"),
    }
}

/// The first bytes of key `i`, as its slot has them, and where its cell is.
pub(super) fn slot(node: Node<'_>, i: usize) -> (u32, usize) {
    let at = NODE_HEADER_BYTES + node.prefix().len() + i * SLOT_BYTES;
    let slot = &node.bytes()[at..at + SLOT_BYTES];
    let head = u32::from_le_bytes([slot[0], slot[1], slot[2], slot[3]]);
    let offset = usize::from(u16::from_le_bytes([slot[4], slot[5]]));
    (head, offset << node.bytes()[6])
}

fn head_of(suffix: &[u8]) -> u32 {
    let mut head = [0; 4];
    for (to, from) in head.iter_mut().zip(suffix) {
        *to = *from;
    }
    u32::from_be_bytes(head)
}

/// Bytes of cell `i`.
fn cell_bytes(node: Node<'_>, i: usize) -> usize {
    let suffix = node.suffix(i).len();
    let body = if node.is_leaf() {
        let item = node.item(i);
        let run = usize::from(item.run.is_some());
        let length = item.payload.len() << 1 | run;
        varint_bytes(length) + item.payload.len() + run * crate::format::RUN_REF_BYTES
    } else {
        12
    };
    varint_bytes(suffix) + suffix + body
}
