//! The content hash: the sum of the hashes of versions inside the bounds. There
//! are two: of all that can be read ([`Store::applied_hash`]), and of what is
//! current at a revision ([`Store::hash`]).
//!
//! Kept true: the first depends on the revision, the floor and the bounds, the
//! second on the revision and the bounds only; neither depends on how far the
//! sweep, a checkpoint or shedding has come. The tables keep the sum of what
//! they hold; what is newer than asked for, superseded, doomed but not yet
//! swept, or outside, is taken off.

use std::ops::Deref;
use std::sync::Arc;

use crate::error::{EngineError, Reject};
use crate::keys::KeyRange;
use crate::position::{Applied, Change, Revision};
use crate::read::{ReadPin, change_at};
use crate::store::{ContentHash, Store, Tables};
use crate::tables::{Kind, Table, change_key};
use crate::tally::Tally;
use crate::version::{ChangeRecord, tombstone_hash};

/// Changes that are looked at before writers get in.
const STRETCH_CHANGES: usize = if cfg!(feature = "shuttle") { 2 } else { 256 };

/// What the tables held at one moment.
struct Moment<S: Deref<Target = Store>> {
    hash: ContentHash,
    /// What was superseded at this revision or below doesn't count.
    floor: Revision,
    /// Nor do tombstones below this one.
    tombstones_from: Revision,
    /// The first change that may have left any of it.
    sweep: Change,
    bounds: KeyRange,
    outside: Outside,
    /// Keeps the sweep where it is.
    pin: ReadPin<S>,
}

/// The sum of what lies outside the bounds.
enum Outside {
    Known(u64),
    Unknown(Tally),
}

/// The content hash as it is once exactly the entries up to one are applied,
/// to be computed while others are.
pub struct HashMoment {
    applied: Applied,
    moment: Moment<Arc<Store>>,
}

impl HashMoment {
    /// Computes it; the result is that of [`Store::applied_hash`] at that moment.
    pub fn finish(self) -> Result<(Applied, ContentHash), EngineError> {
        Ok((self.applied, self.moment.finish()?))
    }
}

impl Store {
    /// The content hash of what is current at a revision: of the newest version
    /// of each key. A compaction to that revision, or below, doesn't change it.
    /// It costs what changed since the floor.
    pub fn hash(&self, at: Revision) -> Result<ContentHash, EngineError> {
        loop {
            let (moment, newest, late) = {
                let tables = self.tables.read();
                if at < tables.facts.floor {
                    return Err(Reject::Compacted.into());
                }
                if at > tables.facts.revision {
                    return Err(Reject::FutureRevision.into());
                }
                if let Some(revision) = tables.staged.keys().next().filter(|first| **first <= at) {
                    return Err(EngineError::Undecided(*revision));
                }
                let newest = tables.change_last()?;
                let newest =
                    newest.map_or(Ok(Change::default()), |key| change_at(&tables, &key))?;
                (
                    Moment::of(self, &tables).current_at(at),
                    newest,
                    tables.late,
                )
            };
            let newer = Change {
                revision: at.next(),
                sub: 0,
            };
            let newer = moment.sum_changes(newer, newest, &|tables, change, record| {
                if record.kind == Kind::Delete {
                    return Ok(tombstone_hash(record.key, change));
                }
                match tables.version_of(record.key, change)? {
                    Some(version) => Ok(version.hash(record.key)),
                    None => Err(tables.damaged_record(Table::Changes, record.key)),
                }
            })?;
            let mut hash = moment.finish()?;
            hash.keys = hash.keys.wrapping_sub(newer);
            // Unless a transaction was committed below newer revisions meanwhile.
            if self.tables.read().late == late {
                return Ok(hash);
            }
        }
    }

    /// The content hash of all that is visible once exactly the entries up to
    /// the one returned are applied. Replicas that applied it agree.
    pub fn applied_hash(&self) -> Result<(Applied, ContentHash), EngineError> {
        let (applied, moment) = {
            // No entry is half applied.
            let _writer = self.writer.lock();
            let tables = self.tables.read();
            (tables.facts.applied, Moment::of(self, &tables))
        };
        Ok((applied, moment.finish()?))
    }

    /// [`Store::applied_hash`] as of now, to be computed later, on another
    /// thread. This call costs nothing, but sweeps wait until it is finished
    /// or dropped.
    pub fn hash_later(self: &Arc<Self>) -> HashMoment {
        let _writer = self.writer.lock();
        let tables = self.tables.read();
        HashMoment {
            applied: tables.facts.applied,
            moment: Moment::of(Arc::clone(self), &tables),
        }
    }
}

impl<S: Deref<Target = Store>> Moment<S> {
    fn of(store: S, tables: &Tables) -> Self {
        let facts = &tables.facts;
        Self {
            hash: facts.hash,
            floor: facts.floor,
            tombstones_from: facts.floor,
            sweep: tables.sweep_from(facts.floor),
            bounds: facts.bounds.clone(),
            outside: match facts.outside {
                Some(sum) => Outside::Known(sum),
                None => Outside::Unknown(Tally::begin(facts)),
            },
            pin: ReadPin::of_all(store, tables),
        }
    }

    /// The same without what is superseded at a revision that isn't below the
    /// floor, and without deletions up to it.
    fn current_at(mut self, at: Revision) -> Self {
        // Of a revision that is half swept, tombstones may still be there.
        self.sweep = Change {
            revision: self.sweep.revision.min(at),
            sub: 0,
        };
        (self.floor, self.tombstones_from) = (at, at.next());
        self
    }

    /// Takes off what lies outside or doesn't count.
    fn finish(self) -> Result<ContentHash, EngineError> {
        let doomed = self.doomed()?;
        let outside = match self.outside {
            Outside::Known(sum) => sum,
            Outside::Unknown(tally) => tally.finish(&self.pin.store)?,
        };
        Ok(ContentHash {
            keys: self.hash.keys.wrapping_sub(doomed).wrapping_sub(outside),
            ..self.hash
        })
    }

    /// Sum of the hashes of the versions that don't count: for the floor of the
    /// store, those that the sweep had yet to remove. (Nothing is ever added
    /// there or below, but for what [`Store::hash`] looks for itself.)
    fn doomed(&self) -> Result<u64, EngineError> {
        let floor = self.floor;
        let last = Change {
            revision: floor,
            sub: u32::MAX,
        };
        self.sum_changes(self.sweep, last, &|_, change, record| {
            let before = record.before.map_or(0, |before| before.hash(record.key));
            let tombstone =
                match record.kind == Kind::Delete && change.revision < self.tombstones_from {
                    true => tombstone_hash(record.key, change),
                    false => 0,
                };
            Ok(before.wrapping_add(tombstone))
        })
    }

    /// Sums up over changes inside the bounds, in stretches.
    fn sum_changes(
        &self,
        from: Change,
        through: Change,
        hash: HashOf<'_>,
    ) -> Result<u64, EngineError> {
        let mut sum = 0u64;
        let mut from = from;
        let mut raw = Vec::new();
        loop {
            let tables = self.pin.store.tables.read();
            let mut cursor = tables.seek(Table::Changes, &change_key(from))?;
            for _ in 0..STRETCH_CHANGES {
                if !cursor.key_into(&mut raw) {
                    return Ok(sum);
                }
                from = change_at(&tables, &raw)?;
                if from > through {
                    return Ok(sum);
                }
                let item = cursor.item().expect("there is a key");
                let record = tables.change_record(&raw, item)?;
                if self.bounds.contains(record.key) {
                    sum = sum.wrapping_add(hash(&tables, from, &record)?);
                }
                cursor.next()?;
            }
            from = from.next();
        }
    }
}

/// What a change adds to a sum.
type HashOf<'h> = &'h dyn Fn(&Tables, Change, &ChangeRecord<'_>) -> Result<u64, EngineError>;
