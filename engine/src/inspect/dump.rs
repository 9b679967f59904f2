//! Entries and pages, readable.

use std::path::Path;

use pontoon_wal::disk::Disk;

use crate::effects::{self, Effect};
use crate::error::EngineError;
use crate::format::{META_PAGES, Meta, PageKind, RunHeader};
use crate::node::{Item, Node};
use crate::position::{Change, Revision};
use crate::tables::{
    Kind, STATE_NAME, Table, change_of, history_parts, history_prefix, record_key,
};
use crate::version::{ChangeRecord, Head};

use super::reader::{Entry, Reader, Scan};
use super::structure::slot;
use super::{Finding, Findings, Severity, find_metas, root};
use crate::open::decode_facts;
use crate::store::Facts;

/// Which entries are shown.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Name of the only table to look at.
    pub table: Option<String>,
    /// What their keys begin with.
    pub prefix: Vec<u8>,
    /// The lowest key.
    pub from: Vec<u8>,
}

/// An entry of a table, or one effect of an entry of `staged`.
#[derive(Clone, Debug)]
pub struct Row {
    /// Name of the table.
    pub table: &'static str,
    /// Page of the leaf that has it.
    pub page: u64,
    /// The key that it is about; of a record, the name.
    pub key: Vec<u8>,
    /// What it says.
    pub content: Content,
}

/// What an entry says.
#[derive(Clone, Debug)]
pub enum Content {
    /// A version.
    Version {
        /// When it was made.
        change: Change,
        /// Revision that created the key.
        create: Revision,
        /// How often it was changed since then, plus one.
        version: i64,
        /// The lease that it hangs on; 0 for none.
        lease: i64,
        /// The value, unless it lies apart.
        value: Option<Vec<u8>>,
        /// Length of the value.
        value_bytes: u64,
        /// First page of the value, if it lies apart.
        value_page: Option<u64>,
    },
    /// A change: `create`, `update` or `delete`.
    Change {
        /// When.
        change: Change,
        /// What.
        kind: &'static str,
        /// The version that it superseded, if it is left.
        before: Option<Box<Content>>,
    },
    /// A version before this change is left.
    Superseded {
        /// When it was superseded.
        change: Change,
    },
    /// The key hangs on this lease.
    Lease(i64),
    /// A put of an undecided transaction.
    StagedPut {
        /// What it would be.
        change: Change,
        /// The value.
        value: Vec<u8>,
        /// The lease; 0 for none.
        lease: i64,
    },
    /// A deletion of an undecided transaction.
    StagedDelete {
        /// What it would be.
        change: Change,
    },
    /// A record of the layer above.
    Record(Vec<u8>),
    /// The record that the store keeps for itself.
    State(Box<Facts>),
    /// Something that makes no sense, and why.
    Nonsense(String),
}

/// Shows the entries of the newest checkpoint in order, until `show` returns
/// false. Returns what could not be shown.
pub fn dump(
    disk: &dyn Disk,
    path: &Path,
    selection: &Selection,
    show: &mut dyn FnMut(Row) -> bool,
) -> Result<Vec<Finding>, EngineError> {
    let reader = Reader::open(disk, path)?;
    let mut findings = Findings::default();
    let metas = find_metas(&reader, &mut findings)?;
    let Some(meta) = metas.newest else {
        return Ok(findings.list);
    };
    let is_wanted = |table: Table| {
        selection
            .table
            .as_deref()
            .is_none_or(|name| name == table.name())
    };
    for table in Table::ALL.into_iter().filter(|table| is_wanted(*table)) {
        let from = selection.start(table);
        let mut scan = Scan::new(&reader, root(&meta, table), &from);
        let mut rows = Vec::new();
        'entries: for entry in scan.by_ref() {
            rows_of(&reader, table, &entry, &mut rows);
            for row in rows.drain(..) {
                // Keys come in order here, so there are no more.
                let sorted = matches!(table, Table::Current | Table::History | Table::Records);
                if sorted && row.key > selection.prefix && !row.key.starts_with(&selection.prefix) {
                    break 'entries;
                }
                if selection.takes(&row) && !show(row) {
                    return Ok(findings.list);
                }
            }
        }
        for (page, reason) in scan.unread {
            findings.at(page, Some(table), reason);
        }
    }
    Ok(findings.list)
}

impl Selection {
    /// Where to begin in a table.
    fn start(&self, table: Table) -> Vec<u8> {
        let key = (&self.from).max(&self.prefix);
        match table {
            Table::Current => key.clone(),
            Table::History => {
                let mut start = Vec::new();
                history_prefix(key, &mut start);
                // Without the mark of the key's end: longer keys count too.
                start.truncate(start.len() - 2);
                start
            }
            Table::Records if !key.is_empty() => record_key(key),
            Table::Records | Table::Changes | Table::Leases | Table::Staged => Vec::new(),
        }
    }

    fn takes(&self, row: &Row) -> bool {
        row.key.starts_with(&self.prefix) && row.key >= self.from
    }
}

fn rows_of(reader: &Reader, table: Table, entry: &Entry, rows: &mut Vec<Row>) {
    let raw = entry.key();
    let mut add = |key: &[u8], content| {
        rows.push(Row {
            table: table.name(),
            page: entry.page,
            key: key.to_vec(),
            content,
        });
    };
    let item = entry.item();
    let nonsense = || Content::Nonsense("it makes no sense".to_owned());
    let record = || reader.record(item);
    match table {
        Table::Current => add(&raw, version(item).unwrap_or_else(nonsense)),
        Table::History => {
            let mut key = Vec::new();
            match history_parts(&raw, &mut key) {
                Some(change) => add(&key, Content::Superseded { change }),
                None => add(&raw, nonsense()),
            }
        }
        Table::Changes => match change_of(&raw).zip(ChangeRecord::decode(item)) {
            Some((change, record)) => {
                let kind = kind_name(record.kind);
                let start = item.payload.len() - superseded_bytes(&record, item);
                let payload = &item.payload[start..];
                let before = version(Item { payload, ..item }).map(Box::new);
                let before = before.filter(|_| record.before.is_some());
                let content = Content::Change {
                    change,
                    kind,
                    before,
                };
                add(record.key, content);
            }
            None => add(&raw, nonsense()),
        },
        Table::Leases => match raw.split_first_chunk() {
            Some((lease, key)) => add(key, Content::Lease(i64::from_be_bytes(*lease))),
            None => add(&raw, nonsense()),
        },
        Table::Staged => match (
            change_of(&raw),
            record().map(|record| effects::decode(&record)),
        ) {
            (Some(change), Ok(Some(staged))) => {
                for (sub, effect) in staged.subs.into_iter().zip(staged.effects) {
                    let change = Change { sub, ..change };
                    match effect {
                        Effect::Put { key, value, lease } => {
                            let value = value.to_vec();
                            add(
                                &key,
                                Content::StagedPut {
                                    change,
                                    value,
                                    lease,
                                },
                            );
                        }
                        Effect::Delete { key } => add(&key, Content::StagedDelete { change }),
                    }
                }
            }
            (_, Err(reason)) => add(&raw, Content::Nonsense(reason)),
            _ => add(&raw, nonsense()),
        },
        Table::Records => match (raw.split_first(), record()) {
            (_, Err(reason)) => add(&raw, Content::Nonsense(reason)),
            (_, Ok(record)) if raw == STATE_NAME => match decode_facts(&record) {
                Some(facts) => add(&[], Content::State(Box::new(facts))),
                None => add(&[], nonsense()),
            },
            (Some((1, name)), Ok(record)) => add(name, Content::Record(record)),
            _ => add(&raw, nonsense()),
        },
    }
}

/// Bytes of the superseded version in a record of `changes`.
fn superseded_bytes(record: &ChangeRecord<'_>, item: Item<'_>) -> usize {
    let mut start = Vec::new();
    ChangeRecord::encode_start(record.kind, record.key, &mut start);
    item.payload.len().saturating_sub(start.len())
}

fn version(item: Item<'_>) -> Option<Content> {
    let (head, rest) = Head::decode(item.payload)?;
    Some(Content::Version {
        change: head.change,
        create: head.create,
        version: head.version,
        lease: head.lease,
        value: item.run.is_none().then(|| rest.to_vec()),
        value_bytes: item
            .run
            .map_or(rest.len() as u64, |run| u64::from(run.bytes)),
        value_page: item.run.map(|run| run.page),
    })
}

fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Create => "create",
        Kind::Update => "update",
        Kind::Delete => "delete",
    }
}

/// A page as it is, whole or not.
#[derive(Clone, Debug)]
pub struct PageFacts {
    /// The page that was asked for.
    pub page: u64,
    /// What is wrong with it, if anything is.
    pub problem: Option<Finding>,
    /// Fields of its header, by name.
    pub header: Vec<(&'static str, u128)>,
    /// What it holds, if it can be read.
    pub body: PageBody,
}

/// What a page holds.
#[derive(Clone, Debug)]
pub enum PageBody {
    /// A node: what its keys begin with, and its cells.
    Node {
        /// What all its keys begin with.
        prefix: Vec<u8>,
        /// Its cells, in order.
        cells: Vec<Cell>,
    },
    /// Some other run: its bytes.
    Bytes(Vec<u8>),
    /// Nothing that can be read: the middle of a run, a page that is not in
    /// use, or damage.
    Unknown,
}

/// A cell of a node.
#[derive(Clone, Debug)]
pub struct Cell {
    /// Offset of the cell in its node.
    pub offset: usize,
    /// First bytes of the key without the prefix, as the slot has them.
    pub head: u32,
    /// The key without the prefix.
    pub suffix: Vec<u8>,
    /// In a branch: the page below.
    pub child: Option<u64>,
    /// In a branch: entries below.
    pub count: Option<u64>,
    /// In a leaf: the bytes beside the key.
    pub payload: Option<Vec<u8>>,
    /// First page and length of the value that lies apart.
    pub run: Option<(u64, u32)>,
}

/// Shows one page, without regard to what leads to it.
pub fn page(disk: &dyn Disk, path: &Path, page: u64) -> Result<PageFacts, EngineError> {
    let reader = Reader::open(disk, path)?;
    find_metas(&reader, &mut Findings::default())?;
    let raw = reader.raw(page, 1).map_err(|reason| EngineError::Foreign {
        file: path.to_owned(),
        reason: format!("page {page}: {reason}"),
    })?;
    let raw = raw.as_slice();
    let is_meta = page < META_PAGES;
    let found = match is_meta {
        true => reader.meta(page).map(|_| None),
        false => reader.run(page).map(Some),
    };
    let (body, problem) = match found {
        Ok(None) => (PageBody::Unknown, None),
        Ok(Some(run)) if run.header.kind <= PageKind::Branch as u8 => (node_body(run.node()), None),
        Ok(Some(run)) => (PageBody::Bytes(run.content().to_vec()), None),
        Err(what) => (
            PageBody::Unknown,
            Some(Finding {
                severity: Severity::Damage,
                page: Some(page),
                table: None,
                what,
            }),
        ),
    };
    let kind = raw[crate::format::NodeHeader::KIND];
    let layout = match kind {
        _ if is_meta => Meta::LAYOUT,
        kind if kind == PageKind::Leaf as u8 || kind == PageKind::Branch as u8 => {
            crate::format::NodeHeader::LAYOUT
        }
        _ => RunHeader::LAYOUT,
    };
    let fields = layout.fields.iter();
    let header = fields.map(|field| (field.name, number(&raw[field.offset..][..field.bytes])));
    Ok(PageFacts {
        page,
        problem,
        header: header.collect(),
        body,
    })
}

fn number(bytes: &[u8]) -> u128 {
    bytes
        .iter()
        .rev()
        .fold(0, |sum, byte| sum << 8 | u128::from(*byte))
}

fn node_body(node: Node<'_>) -> PageBody {
    let cell = |i: usize| {
        let (head, offset) = slot(node, i);
        let item = node.is_leaf().then(|| node.item(i));
        let child = (!node.is_leaf()).then(|| node.child(i));
        Cell {
            offset,
            head,
            suffix: node.suffix(i).to_vec(),
            child: child.map(|child| child.page),
            count: child.map(|child| child.count),
            payload: item.map(|item| item.payload.to_vec()),
            run: item
                .and_then(|item| item.run)
                .map(|run| (run.page, run.bytes)),
        }
    };
    PageBody::Node {
        prefix: node.prefix().to_vec(),
        cells: (0..node.count()).map(cell).collect(),
    }
}
