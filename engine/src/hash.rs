//! The content hash: the sum of the hashes of all versions that can be read.
//!
//! Kept true: it depends on the revision and the floor, not on how far the
//! sweep or a checkpoint has come. The tables keep the sum of what they hold;
//! what is newer than asked for, or doomed but not yet swept, is taken off.

use crate::error::{EngineError, Reject};
use crate::position::{Applied, Change, Revision};
use crate::read::{ReadPin, change_at};
use crate::store::{ContentHash, Facts, Store, Tables};
use crate::tables::{Kind, Table, change_key};
use crate::version::{ChangeRecord, tombstone_hash};

/// Changes that are looked at before writers get in.
const STRETCH_CHANGES: usize = if cfg!(feature = "shuttle") { 2 } else { 256 };

/// What the tables held at one moment.
struct Moment<'s> {
    hash: ContentHash,
    floor: Revision,
    sweep: Change,
    newest: Change,
    late: u64,
    /// Keeps the sweep where it is.
    _pin: ReadPin<'s>,
}

impl Store {
    /// The content hash at a revision. It costs what changed since then.
    pub fn hash(&self, at: Revision) -> Result<ContentHash, EngineError> {
        loop {
            let moment = {
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
                self.moment(&tables)?
            };
            let newer = Change {
                revision: at.next(),
                sub: 0,
            };
            let newer =
                self.sum_changes(&moment, newer, moment.newest, &|tables, change, record| {
                    if record.kind == Kind::Delete {
                        return Ok(tombstone_hash(record.key, change));
                    }
                    match tables.version_of(record.key, change)? {
                        Some(version) => Ok(version.hash(record.key)),
                        None => Err(tables.damaged_record(Table::Changes, record.key)),
                    }
                })?;
            if let (Some(newer), Some(doomed)) = (newer, self.doomed(&moment)?) {
                let keys = moment.hash.keys.wrapping_sub(newer).wrapping_sub(doomed);
                return Ok(ContentHash {
                    keys,
                    ..moment.hash
                });
            }
        }
    }

    /// The content hash of all that is visible once exactly the entries up to
    /// the one returned are applied. Replicas that applied it agree.
    pub fn applied_hash(&self) -> Result<(Applied, ContentHash), EngineError> {
        loop {
            let (applied, moment) = {
                // No entry is half applied.
                let _writer = self.writer.lock();
                let tables = self.tables.read();
                (tables.facts.applied, self.moment(&tables)?)
            };
            if let Some(doomed) = self.doomed(&moment)? {
                let keys = moment.hash.keys.wrapping_sub(doomed);
                return Ok((
                    applied,
                    ContentHash {
                        keys,
                        ..moment.hash
                    },
                ));
            }
        }
    }

    fn moment(&self, tables: &Tables) -> Result<Moment<'_>, EngineError> {
        let Facts {
            hash, floor, sweep, ..
        } = tables.facts;
        let newest = tables.change_last()?;
        Ok(Moment {
            hash,
            floor,
            sweep: tables.sweep_from(floor),
            newest: newest.map_or(Ok(Change::default()), |key| change_at(tables, &key))?,
            late: tables.late,
            _pin: self.pin_read(Revision(sweep.revision.0 - 1)),
        })
    }

    /// Sum of the hashes of the versions that the sweep had yet to remove.
    fn doomed(&self, moment: &Moment<'_>) -> Result<Option<u64>, EngineError> {
        let floor = moment.floor;
        let last = Change {
            revision: floor,
            sub: u32::MAX,
        };
        let last = last.min(moment.newest);
        self.sum_changes(moment, moment.sweep, last, &|_, change, record| {
            let before = record.before.map_or(0, |before| before.hash(record.key));
            let tombstone = match record.kind == Kind::Delete && change.revision < floor {
                true => tombstone_hash(record.key, change),
                false => 0,
            };
            Ok(before.wrapping_add(tombstone))
        })
    }

    /// Sums up over changes, in stretches. `None` if a transaction was
    /// committed below newer revisions meanwhile.
    fn sum_changes(
        &self,
        moment: &Moment<'_>,
        from: Change,
        through: Change,
        hash: HashOf<'_>,
    ) -> Result<Option<u64>, EngineError> {
        let mut sum = 0u64;
        let mut from = from;
        let mut raw = Vec::new();
        loop {
            let tables = self.tables.read();
            if tables.late != moment.late {
                return Ok(None);
            }
            let mut cursor = tables.seek(Table::Changes, &change_key(from))?;
            for _ in 0..STRETCH_CHANGES {
                if !cursor.key_into(&mut raw) {
                    return Ok(Some(sum));
                }
                from = change_at(&tables, &raw)?;
                if from > through {
                    return Ok(Some(sum));
                }
                let item = cursor.item().expect("there is a key");
                let record = tables.change_record(&raw, item)?;
                sum = sum.wrapping_add(hash(&tables, from, &record)?);
                cursor.next()?;
            }
            from = from.next();
        }
    }
}

/// What a change adds to a sum.
type HashOf<'h> = &'h dyn Fn(&Tables, Change, &ChangeRecord<'_>) -> Result<u64, EngineError>;
