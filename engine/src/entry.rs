//! What a log entry does to a store.

use bytes::Bytes;

use crate::effects::Effects;
use crate::keys::KeyRange;
use crate::position::{Applied, Revision};

/// One log entry: applied whole, or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Where it stands in the log.
    pub applied: Applied,
    /// What it does, in order.
    pub steps: Vec<Step>,
}

/// One step of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Changes keys. The revision is above that of every earlier write or stage.
    Write {
        /// The revision of all these changes.
        revision: Revision,
        /// The changes.
        effects: Effects,
    },
    /// Keeps changes of a transaction across ranges until it is decided; their
    /// keys are not touched by others meanwhile. Revisions as with `Write`.
    Stage {
        /// The revision of all these changes.
        revision: Revision,
        /// The changes.
        effects: Effects,
        /// The place of each change among those that the transaction makes in
        /// all ranges: ascending, as many as there are changes.
        subs: Vec<u32>,
    },
    /// Makes what was staged at this revision visible.
    Commit {
        /// The revision.
        revision: Revision,
    },
    /// Forgets what was staged at this revision, if anything was.
    Void {
        /// The revision.
        revision: Revision,
    },
    /// No write or stage at or below this revision will come: everything
    /// through it is here.
    Reach {
        /// The revision.
        revision: Revision,
    },
    /// Raises the compaction floor.
    Compact {
        /// The lowest revision that can still be read.
        floor: Revision,
    },
    /// Sets, or removes, a record of the layer above.
    Record {
        /// Its name.
        name: Bytes,
        /// Its content; `None` removes it.
        content: Option<Bytes>,
    },
    /// Sets the keys that this store is responsible for; they can only
    /// become fewer. What is left out stands still from now on, so that
    /// another store can be made of it. Nothing undecided may be there.
    Bounds {
        /// The keys.
        keys: KeyRange,
    },
    /// What lies outside the bounds can go: no other store will be made of it.
    Shed,
}
