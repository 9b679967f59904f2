//! The segments that hold the log, and how much of each is still needed.
//!
//! Kept true: a segment that a reader or an entry needs is in the table. What
//! is live is counted when a commit is composed, so a count of zero may run
//! ahead of the disk; a segment goes only after a later commit is durable.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::disk::DiskFile;
use crate::effects::Effects;
use crate::position::{Lsn, SegmentId};
use crate::stream::LiveChange;

/// An open segment file.
#[derive(Clone)]
pub(crate) struct SegmentFile {
    pub(crate) id: SegmentId,
    pub(crate) salt: u64,
    pub(crate) bytes: u32,
    pub(crate) file: Arc<dyn DiskFile>,
}

/// A segment that takes no more commits and wants its footer.
pub(crate) struct Full {
    pub(crate) file: SegmentFile,
    pub(crate) effects: Effects,
    pub(crate) first_seq: u64,
    pub(crate) last_seq: u64,
    pub(crate) last_epoch: u64,
    pub(crate) last_flags: u32,
    pub(crate) first_segment: u32,
    pub(crate) end: u32,
}

impl Full {
    pub(crate) fn end(&self) -> Lsn {
        Lsn::new(self.file.id, self.end)
    }
}

struct Held {
    file: SegmentFile,
    live_records: i64,
    live_bytes: i64,
}

#[derive(Default)]
pub(crate) struct SegmentTable {
    held: BTreeMap<SegmentId, Held>,
}

/// What the janitor goes by.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) oldest: SegmentId,
    /// The first segment that is needed: the newest one at the latest.
    pub(crate) first_needed: SegmentId,
    pub(crate) newest: SegmentId,
    pub(crate) segments: usize,
    /// Of all but the newest.
    pub(crate) bytes: u64,
    pub(crate) live_bytes: u64,
}

impl SegmentTable {
    pub(crate) fn add(&mut self, file: SegmentFile) {
        let held = Held {
            file,
            live_records: 0,
            live_bytes: 0,
        };
        let replaced = self.held.insert(held.file.id, held);
        assert!(replaced.is_none(), "a segment number is used once");
    }

    pub(crate) fn get(&self, id: SegmentId) -> Option<&SegmentFile> {
        self.held.get(&id).map(|held| &held.file)
    }

    pub(crate) fn remove(&mut self, id: SegmentId) -> Option<SegmentFile> {
        self.held.remove(&id).map(|held| held.file)
    }

    /// Counts what became live or dead. True if the oldest is not needed any more.
    pub(crate) fn count(&mut self, change: &LiveChange) -> bool {
        for &(segment, records, bytes) in &change.0 {
            let held = self
                .held
                .get_mut(&segment)
                .expect("a segment with live records is held");
            held.live_records += records;
            held.live_bytes += bytes;
            assert!(
                held.live_records >= 0 && held.live_bytes >= 0,
                "segment {segment} can't have less than nothing live"
            );
        }
        self.held.len() > 1
            && self
                .held
                .values()
                .next()
                .is_some_and(|oldest| oldest.live_records == 0)
    }

    pub(crate) fn usage(&self) -> Option<Usage> {
        let (&oldest, _) = self.held.first_key_value()?;
        let (&newest, _) = self.held.last_key_value()?;
        let first_needed = self
            .held
            .iter()
            .find(|(id, held)| held.live_records > 0 || **id == newest)
            .map(|(id, _)| *id)?;
        let full = || self.held.values().filter(|held| held.file.id != newest);
        Some(Usage {
            oldest,
            first_needed,
            newest,
            segments: self.held.len(),
            bytes: full().map(|held| u64::from(held.file.bytes)).sum(),
            live_bytes: full().map(|held| held.live_bytes.unsigned_abs()).sum(),
        })
    }
}
