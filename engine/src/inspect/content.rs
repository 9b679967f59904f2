//! The content of a checkpoint: whether its tables agree with each other
//! and with what the store says of itself.
//!
//! Kept true: one pass over each table and lookups in others, so memory
//! doesn't grow with the file; where a page can't be read, nobody concludes
//! that what could lie there is missing.

use std::collections::HashMap;

use crate::effects;
use crate::format::Meta;
use crate::node::Item;
use crate::position::{Change, Revision};
use crate::tables::{
    Kind, STATE_NAME, Table, change_key, change_of, history_key, history_parts, lease_key,
};
use crate::version::{ChangeRecord, Head, Version, record_hash, tombstone_hash};

use super::reader::{Entry, Reader, Scan};
use super::structure::Structure;
use super::{Findings, root};
use crate::store::Facts;

/// Checks the content of a checkpoint; returns what it says of its store.
pub(super) fn check(
    reader: &Reader,
    meta: &Meta,
    structure: &Structure,
    findings: &mut Findings,
) -> Option<Facts> {
    let facts = reader.store_facts(meta);
    let Some(facts) = facts else {
        if !structure.is_hidden(Table::Records) {
            let page = root(meta, Table::Records).page;
            findings.at(
                page,
                Some(Table::Records),
                "the record of the store's state makes no sense".to_owned(),
            );
        }
        return None;
    };
    let mut content = Checker {
        reader,
        meta,
        structure,
        findings,
        facts: &facts,
        keys_hash: 0,
        outside_hash: 0,
    };
    content.state();
    content.changes();
    content.versions();
    content.leases();
    content.staged();
    content.records();
    Some(facts)
}

struct Checker<'a> {
    reader: &'a Reader,
    meta: &'a Meta,
    structure: &'a Structure,
    findings: &'a mut Findings,
    facts: &'a Facts,
    keys_hash: u64,
    /// Of these, what lies outside the bounds.
    outside_hash: u64,
}

/// A change that superseded a version, as the next one of its key needs it.
struct Step {
    key: Vec<u8>,
    change: Change,
    kind: Kind,
    before: Head,
}

impl<'a> Checker<'a> {
    fn scan(&self, table: Table) -> Scan<'a> {
        Scan::new(self.reader, root(self.meta, table), &[])
    }

    fn find(&mut self, page: u64, table: Table, what: impl Into<String>) {
        self.findings.at(page, Some(table), what.into());
    }

    fn find_about(&mut self, page: u64, table: Table, key: &[u8], what: impl AsRef<str>) {
        let what = format!("{} {}", shown(key), what.as_ref());
        self.find(page, table, what);
    }

    /// Whether a table is whole, so that what it doesn't have is missing.
    fn is_whole(&self, table: Table) -> bool {
        !self.structure.is_hidden(table)
    }

    fn get(&self, table: Table, key: &[u8]) -> Option<Entry> {
        self.reader.get(root(self.meta, table), key).ok().flatten()
    }

    fn state(&mut self) {
        let page = root(self.meta, Table::Records).page;
        let facts = self.facts;
        let in_order = facts.swept <= facts.floor
            && facts.sweep.revision <= facts.floor.max(Revision(0))
            && facts.floor <= facts.last
            && facts.revision <= facts.last
            && Revision::FIRST <= facts.revision;
        if !in_order {
            let what = format!(
                "its revisions are out of order: swept {}, sweep {}, floor {}, revision {}, last {}",
                facts.swept, facts.sweep.revision, facts.floor, facts.revision, facts.last
            );
            self.find(page, Table::Records, what);
        }
        for split in &facts.splits {
            let in_order = split.floor <= facts.floor
                && split.revision <= facts.revision
                && split.revision <= split.last
                && split.last <= facts.last;
            if !in_order || facts.bounds.contains(&split.keys.key) {
                let what = format!(
                    "{} was split off in a way that makes no sense",
                    shown(&split.keys.key)
                );
                self.find(page, Table::Records, what);
            }
        }
    }

    /// Whether the sweep has passed a change. It keeps those at its target,
    /// but not what they superseded.
    fn is_swept(&self, key: &[u8], change: Change) -> bool {
        let (sweep, swept) = self.facts.sweep_of(key);
        change < sweep || change.revision <= swept
    }

    /// Whether it may have: what is left of a revision that was the target
    /// once is swept again, when the target is a higher one.
    fn may_be_swept(&self, key: &[u8], change: Change) -> bool {
        let (sweep, _) = self.facts.sweep_of(key);
        self.is_swept(key, change) || change.revision == sweep.revision
    }

    fn count(&mut self, key: &[u8], hash: u64) {
        self.keys_hash = self.keys_hash.wrapping_add(hash);
        if !self.facts.bounds.contains(key) {
            self.outside_hash = self.outside_hash.wrapping_add(hash);
        }
    }

    /// Whether the store may hold something of a key.
    fn place(&mut self, page: u64, table: Table, key: &[u8]) {
        let facts = self.facts;
        if !facts.shedding && !facts.kept().iter().any(|keys| keys.contains(key)) {
            self.find_about(page, table, key, "is none of the store's keys");
        }
    }

    /// Each change, with the version before it and the one that it made.
    fn changes(&mut self) {
        let table = Table::Changes;
        for entry in self.scan(table) {
            let (page, raw, item) = (entry.page, entry.key(), entry.item());
            let (Some(change), Some(record)) = (change_of(&raw), ChangeRecord::decode(item)) else {
                self.find_about(page, table, &raw, "is a change that makes no sense");
                continue;
            };
            let key = record.key;
            let at = told(change);
            self.place(page, table, key);
            if self.facts.is_shed(key) {
                self.count(key, record.hash(change));
                continue;
            }
            if item.run.is_some() && record.before.is_none() {
                self.find_about(
                    page,
                    table,
                    key,
                    format!("has a value without a version at {at}"),
                );
            }
            if change.revision < self.facts.sweep_of(key).0.revision {
                self.find_about(
                    page,
                    table,
                    key,
                    format!("has a change at {at} that should have been swept away"),
                );
            }
            if change.revision <= Revision::FIRST || change.revision > self.facts.revision {
                let newest = self.facts.revision;
                self.find_about(
                    page,
                    table,
                    key,
                    format!("has a change at {at}, the store is at {newest}"),
                );
            }
            match &record.before {
                Some(before) => self.before(page, key, change, record.kind, before, item),
                None if record.kind == Kind::Create || self.may_be_swept(key, change) => {}
                None => self.find_about(page, table, key, format!("lacks the version before {at}")),
            }
            match record.kind {
                Kind::Delete => self.count(key, tombstone_hash(key, change)),
                Kind::Create | Kind::Update => self.made(page, key, change, record.kind),
            }
        }
    }

    /// The version that a change superseded.
    fn before(
        &mut self,
        page: u64,
        key: &[u8],
        change: Change,
        kind: Kind,
        before: &Version<'_>,
        item: Item<'_>,
    ) {
        let table = Table::Changes;
        let at = told(change);
        self.version(page, table, key, before, item);
        if kind == Kind::Create {
            self.find_about(
                page,
                table,
                key,
                format!("was there before it was created at {at}"),
            );
        }
        if self.is_swept(key, change) {
            self.find_about(
                page,
                table,
                key,
                format!("has a version before {at} that should have been swept away"),
            );
        }
        if before.head.change >= change {
            self.find_about(page, table, key, format!("has a later version before {at}"));
        }
        let mut history = Vec::new();
        history_key(key, change, &mut history);
        if self.is_whole(Table::History) && self.get(Table::History, &history).is_none() {
            self.find_about(
                page,
                table,
                key,
                format!("has a version before {at} that is not in its history"),
            );
        }
    }

    /// The version that a change made: it is current, or the next change of
    /// the key has it.
    fn made(&mut self, page: u64, key: &[u8], change: Change, kind: Kind) {
        let table = Table::Changes;
        let head = |entry: Entry| Head::decode(entry.item().payload).map(|(head, _)| head);
        let current = self.get(Table::Current, key).and_then(head);
        let made = match current {
            Some(current) if current.change == change => Some(current),
            _ => self.superseded(key, change),
        };
        let whole = [Table::Current, Table::History, Table::Changes];
        let whole = whole.iter().all(|table| self.is_whole(*table));
        match made {
            Some(made) if (made.version == 1) == (kind == Kind::Create) => {}
            Some(_) => {
                let what = format!(
                    "has a change at {} of another kind than its version",
                    told(change)
                );
                self.find_about(page, table, key, what);
            }
            // The next change of the key may be swept, and this one be left.
            None if !whole || self.may_be_swept(key, change) => {}
            None => {
                let what = format!("has a change at {} without a version", told(change));
                self.find_about(page, table, key, what);
            }
        }
    }

    /// The version that `change` made, from the next change of the key.
    fn superseded(&self, key: &[u8], change: Change) -> Option<Head> {
        let mut from = Vec::new();
        history_key(key, change.next(), &mut from);
        let entry = Scan::new(self.reader, root(self.meta, Table::History), &from).next()?;
        let mut other = Vec::new();
        let next = history_parts(&entry.key(), &mut other).filter(|_| other == key)?;
        let entry = self.get(Table::Changes, &change_key(next))?;
        let record = ChangeRecord::decode(entry.item())?;
        record
            .before
            .map(|before| before.head)
            .filter(|head| head.change == change)
    }

    /// One version, wherever it is.
    fn version(
        &mut self,
        page: u64,
        table: Table,
        key: &[u8],
        version: &Version<'_>,
        item: Item<'_>,
    ) {
        self.count(key, version.hash(key));
        if key.is_empty() {
            self.find(page, table, "an empty key");
        }
        let head = version.head;
        let revision = head.change.revision;
        if revision <= Revision::FIRST || revision > self.facts.revision {
            let what = format!(
                "has revision {revision}, the store is at {}",
                self.facts.revision
            );
            self.find_about(page, table, key, what);
        }
        let is_first = head.version == 1;
        if head.version < 1 || head.create > revision || is_first && head.create != revision {
            let what = format!(
                "has version {} at revision {revision}, created at {}",
                head.version, head.create
            );
            self.find_about(page, table, key, what);
        }
        // A value that can't be read was told of already.
        if let Some(at) = item.run
            && let Ok(run) = self.reader.value(at)
            && !item
                .payload
                .ends_with(&xxhash_rust::xxh3::xxh3_64(run.content()).to_le_bytes())
        {
            let what = format!(
                "has a value in page {} that is not the one that was written",
                at.page
            );
            self.find_about(page, table, key, what);
        }
    }

    /// The versions of each key, oldest first.
    fn versions(&mut self) {
        let mut history = self.scan(Table::History).peekable();
        let mut current = self.scan(Table::Current).peekable();
        let (mut old_key, mut last) = (Vec::new(), None);
        loop {
            let is_old = match (history.peek(), current.peek()) {
                (None, None) => break,
                (None, Some(_)) => false,
                (Some(_), None) => true,
                (Some(old), Some(new)) => {
                    history_parts(&old.key(), &mut old_key).is_none() || old_key <= new.key()
                }
            };
            let next = if is_old {
                history.next()
            } else {
                current.next()
            };
            let Some(entry) = next else { break };
            last = match is_old {
                true => self.step(&entry, last),
                false => self.current(&entry, last),
            };
        }
        self.end_of_key(last);
        let whole = self.is_whole(Table::Current) && self.is_whole(Table::Changes);
        if whole && self.keys_hash != self.facts.hash.keys {
            let what = format!(
                "the hash of all versions is {:016x}, the store's state says {:016x}",
                self.keys_hash, self.facts.hash.keys
            );
            self.findings.add(None, None, what);
        }
        let said = self.facts.outside.unwrap_or(self.outside_hash);
        if whole && self.outside_hash != said {
            let what = format!(
                "the hash of all versions outside the bounds is {:016x}, the store's state says {said:016x}",
                self.outside_hash
            );
            self.findings.add(None, None, what);
        }
    }

    /// An entry of `history`; `last` is the one before it.
    fn step(&mut self, entry: &Entry, last: Option<Step>) -> Option<Step> {
        let (page, table, raw) = (entry.page, Table::History, entry.key());
        let mut key = Vec::new();
        let item = entry.item();
        let Some(change) = history_parts(&raw, &mut key) else {
            self.find_about(page, table, &raw, "makes no sense");
            return last;
        };
        if !item.payload.is_empty() || item.run.is_some() {
            self.find_about(page, table, &key, "has an entry that makes no sense");
        }
        if self.facts.is_shed(&key) {
            self.end_of_key(last);
            return None;
        }
        let found = self.get(Table::Changes, &change_key(change));
        let record = found
            .as_ref()
            .and_then(|entry| ChangeRecord::decode(entry.item()));
        let record = record.filter(|record| record.key == key);
        let before = record.and_then(|record| Some((record.kind, record.before?.head)));
        let Some((kind, before)) = before else {
            if self.is_whole(Table::Changes) {
                let what = format!("has no version before {}", told(change));
                self.find_about(page, table, &key, what);
            }
            self.end_of_key(last.filter(|last| last.key != key));
            return None;
        };
        self.succession(page, table, &key, &before, last);
        Some(Step {
            key,
            change,
            kind,
            before,
        })
    }

    fn current(&mut self, entry: &Entry, last: Option<Step>) -> Option<Step> {
        let (page, table, key, item) = (entry.page, Table::Current, entry.key(), entry.item());
        let Some(version) = Version::decode(item) else {
            self.find_about(page, table, &key, "has a version that makes no sense");
            self.end_of_key(last.filter(|last| last.key != key));
            return None;
        };
        self.version(page, table, &key, &version, item);
        self.place(page, table, &key);
        if self.facts.is_shed(&key) {
            self.end_of_key(last);
            return None;
        }
        let head = version.head;
        self.succession(page, table, &key, &head, last);
        if head.change >= self.facts.sweep_of(&key).0 && self.is_whole(Table::Changes) {
            let found = self.get(Table::Changes, &change_key(head.change));
            let record = found
                .as_ref()
                .and_then(|entry| ChangeRecord::decode(entry.item()));
            if record.is_none_or(|record| record.key != key || record.kind == Kind::Delete) {
                let what = format!(
                    "was changed at {}, but that change doesn't say so",
                    told(head.change)
                );
                self.find_about(page, table, &key, what);
            }
        }
        if head.lease != 0
            && self.is_whole(Table::Leases)
            && self
                .get(Table::Leases, &lease_key(head.lease, &key))
                .is_none()
        {
            let what = format!("hangs on lease {}, which doesn't have it", head.lease);
            self.find_about(page, table, &key, what);
        }
        None
    }

    /// Whether a version is one that can follow the last change of its key.
    fn succession(&mut self, page: u64, table: Table, key: &[u8], head: &Head, last: Option<Step>) {
        let last = match last {
            Some(last) if last.key == key => Some(last),
            other => {
                self.end_of_key(other);
                None
            }
        };
        let good = match &last {
            // What was before the first version that is left was swept away.
            None => {
                head.version == 1
                    || self.may_be_swept(key, head.change)
                    || !self.is_whole(Table::History)
            }
            Some(last) if last.kind == Kind::Delete => {
                head.version == 1 && head.change > last.change
            }
            Some(last) => {
                head.change == last.change
                    && last.before.version.checked_add(1) == Some(head.version)
                    && last.before.create == head.create
            }
        };
        // Behind a page that can't be read the missing link may be.
        if !good && self.is_whole(Table::History) && self.is_whole(Table::Changes) {
            let what = format!("doesn't go on at {} as it was before", told(head.change));
            self.find_about(page, table, key, what);
        }
    }

    /// The last change of a key that is not current is a deletion.
    fn end_of_key(&mut self, last: Option<Step>) {
        let tables = [Table::Current, Table::History, Table::Changes];
        if let Some(last) = last.filter(|last| last.kind != Kind::Delete)
            && tables.iter().all(|table| self.is_whole(*table))
        {
            let what = format!("was changed at {}, but is not there", told(last.change));
            let page = root(self.meta, Table::History).page;
            self.find_about(page, Table::History, &last.key, what);
        }
    }

    fn leases(&mut self) {
        let table = Table::Leases;
        for entry in self.scan(table) {
            let (page, raw, item) = (entry.page, entry.key(), entry.item());
            let Some((lease, key)) = raw.split_first_chunk() else {
                self.find_about(page, table, &raw, "is a lease that makes no sense");
                continue;
            };
            let lease = i64::from_be_bytes(*lease);
            if !item.payload.is_empty() || item.run.is_some() || lease == 0 {
                self.find_about(page, table, &raw, "is a lease that makes no sense");
            }
            let current = self.get(Table::Current, key);
            let head = current
                .as_ref()
                .and_then(|entry| Head::decode(entry.item().payload));
            let has = head.map(|(head, _)| head.lease);
            if has != Some(lease) && (current.is_some() || self.is_whole(Table::Current)) {
                self.find_about(
                    page,
                    table,
                    key,
                    format!("is on lease {lease}, but doesn't hang on it"),
                );
            }
        }
    }

    fn staged(&mut self) {
        let table = Table::Staged;
        let mut held: HashMap<bytes::Bytes, Revision> = HashMap::new();
        for entry in self.scan(table) {
            let (page, raw, item) = (entry.page, entry.key(), entry.item());
            // One whose value can't be read was told of already.
            let Ok(record) = self.reader.record(item) else {
                continue;
            };
            let (Some(change), Some(staged)) = (change_of(&raw), effects::decode(&record)) else {
                self.find_about(page, table, &raw, "is a stage that makes no sense");
                continue;
            };
            let revision = change.revision;
            if change.sub != 0 || revision > self.facts.last || revision <= self.facts.floor {
                let what = format!(
                    "a stage at {}, outside the revisions of the store",
                    told(change)
                );
                self.find(page, table, what);
            }
            for effect in staged.effects {
                let key = effect.key().clone();
                if let Some(by) = held
                    .insert(key.clone(), revision)
                    .filter(|by| *by != revision)
                {
                    let what = format!("is held by the stages at {by} and at {revision}");
                    self.find_about(page, table, &key, what);
                }
            }
        }
    }

    fn records(&mut self) {
        let table = Table::Records;
        let mut sum = 0u64;
        for entry in self.scan(table) {
            let (page, raw, item) = (entry.page, entry.key(), entry.item());
            match raw.split_first() {
                _ if raw == STATE_NAME => {}
                Some((1, name)) => {
                    if let Ok(record) = self.reader.record(item) {
                        sum = sum.wrapping_add(record_hash(name, &record));
                    }
                }
                _ => self.find_about(page, table, &raw, "is the name of no record"),
            }
        }
        if self.is_whole(table) && sum != self.facts.hash.records {
            let what = format!(
                "the hash of all records is {sum:016x}, the store's state says {:016x}",
                self.facts.hash.records
            );
            self.findings.add(None, Some(table), what);
        }
    }
}

fn told(change: Change) -> String {
    format!("revision {}.{}", change.revision, change.sub)
}

/// A key, for people; not all of it if it is long.
fn shown(key: &[u8]) -> String {
    const SHOWN_BYTES_MAX: usize = 200;
    match key.get(..SHOWN_BYTES_MAX) {
        None => format!("key \"{}\"", key.escape_ascii()),
        Some(start) => format!("key \"{}…\"", start.escape_ascii()),
    }
}
