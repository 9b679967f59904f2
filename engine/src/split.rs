//! What narrower bounds leave behind: keys that belong to another store from
//! then on, which every replica makes out of what it has (`copying.rs`).
//!
//! Kept true: from the entry that narrows the bounds on, what was split off
//! stands still. Nobody writes there, nothing undecided is there, and the
//! sweep removes nothing that the floor of that entry lets read, until an
//! entry says that all of it can go (`shed.rs`). So whenever the other store
//! is made, and on whichever machine, it is the same one.

use crate::keys::KeyRange;
use crate::position::{Change, Revision};
use crate::store::{Facts, Tables};

/// Keys that were split off, and what was in force at that entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    /// The keys.
    pub keys: KeyRange,
    /// The lowest revision that can be read of them.
    pub floor: Revision,
    /// The newest revision that was visible.
    pub revision: Revision,
    /// The highest revision of a write or a stage.
    pub last: Revision,
}

impl Split {
    /// How far the sweep has come with these keys, as it would be said in a
    /// store that has no others: the change where it goes on, and the floor
    /// that it last swept up to.
    pub(crate) fn sweep(&self, facts: &Facts) -> (Change, Revision) {
        let revision = self.floor.max(Revision(0));
        match facts.sweep.revision > revision {
            true => (Change { revision, sub: 0 }, self.floor),
            false => (facts.sweep, facts.swept.min(self.floor)),
        }
    }
}

impl Facts {
    /// Whether there may be anything.
    fn was_written(&self) -> bool {
        self.last > Revision::FIRST
    }

    /// What `key` was split off with, if that can still be copied.
    pub(crate) fn split_of(&self, key: &[u8]) -> Option<&Split> {
        self.splits.iter().find(|split| split.keys.contains(key))
    }

    /// [`Split::sweep`] for any key.
    pub(crate) fn sweep_of(&self, key: &[u8]) -> (Change, Revision) {
        match self.split_of(key) {
            Some(split) => split.sweep(self),
            None => (self.sweep, self.swept),
        }
    }

    /// Ranges that nothing is shed of.
    pub(crate) fn kept(&self) -> Vec<&KeyRange> {
        let splits = self.splits.iter().map(|split| &split.keys);
        splits.chain([&self.bounds]).collect()
    }

    /// Whether `key` is being removed, so that only parts of it may be there.
    pub(crate) fn is_shed(&self, key: &[u8]) -> bool {
        self.shedding && !self.bounds.contains(key) && self.split_of(key).is_none()
    }
}

impl Tables {
    /// Splits off what `keys` doesn't have of the bounds. `visible` is the
    /// newest revision that will be seen after this entry.
    pub(crate) fn narrow(&mut self, keys: &KeyRange, visible: Revision) {
        let facts = &mut self.facts;
        let (floor, revision, last) = (facts.floor, facts.revision.max(visible), facts.last);
        let left = facts.bounds.without(keys).into_iter();
        let left = left.map(|keys| Split {
            keys,
            floor,
            revision,
            last,
        });
        facts.splits.extend(left);
        if facts.bounds != *keys && facts.was_written() {
            facts.outside = None;
        }
        facts.bounds = keys.clone();
    }

    /// Nothing will be copied any more of what lies outside the bounds.
    pub(crate) fn shed(&mut self) {
        if !self.facts.splits.is_empty() {
            self.facts.splits.clear();
            self.facts.shedding |= self.facts.was_written();
            self.shed = Default::default();
        }
    }

    /// Takes what is removed of a key off the sums.
    pub(crate) fn uncount(&mut self, is_outside: bool, gone: u64) {
        let facts = &mut self.facts;
        facts.hash.keys = facts.hash.keys.wrapping_sub(gone);
        if is_outside && let Some(sum) = &mut facts.outside {
            *sum = sum.wrapping_sub(gone);
        }
    }
}
