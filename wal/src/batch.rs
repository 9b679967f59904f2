//! What is asked of the log in one go: whole or absent after a crash.

use bytes::Bytes;
use smallvec::SmallVec;

use crate::effects::Effects;
use crate::format::{CommitHeader, RecordHeader};
use crate::position::{LogIndex, SegmentId, StreamId};
use crate::stream::Slot;

/// Changes to one or many streams that become durable together.
#[derive(Debug, Default)]
pub struct Batch {
    pub(crate) ops: SmallVec<[Op; 1]>,
    /// At least the bytes of its records.
    pub(crate) record_bytes: usize,
    /// At least what it adds to a segment's footer.
    pub(crate) footer_bytes: usize,
    /// Whether its entries may use the reserve.
    pub(crate) admitted: bool,
}

#[derive(Debug)]
pub(crate) struct Op {
    pub(crate) stream: StreamId,
    pub(crate) change: Change,
}

#[derive(Debug)]
pub(crate) enum Change {
    Append {
        first: u64,
        entries: Vec<Bytes>,
    },
    Meta {
        key: u8,
        value: Bytes,
    },
    Truncate {
        from: u64,
    },
    Purge {
        below: u64,
    },
    Drop,
    /// Writes the entry again, if it is still at this place.
    Move {
        index: u64,
        from: Slot,
        payload: Bytes,
    },
    /// Writes the floor again, if it is still stated in this segment.
    MoveFloor {
        from: SegmentId,
    },
    /// Writes a metadata value again, if it is still stated in this segment.
    MoveMeta {
        key: u8,
        from: SegmentId,
        value: Bytes,
    },
}

impl Batch {
    /// A batch that changes nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends entries; `first` must follow the last one. A stream that is
    /// not there yet begins at index 0, or where [`Batch::purge_below`] says.
    pub fn append(&mut self, stream: StreamId, first: LogIndex, entries: Vec<Bytes>) -> &mut Self {
        let first = first.0;
        self.add(stream, Change::Append { first, entries })
    }

    /// Sets a small value that stays until it is set again: a vote, a mark.
    pub fn meta(&mut self, stream: StreamId, key: u8, value: Bytes) -> &mut Self {
        self.add(stream, Change::Meta { key, value })
    }

    /// Removes the entries at `from` and above.
    pub fn truncate_from(&mut self, stream: StreamId, from: LogIndex) -> &mut Self {
        self.add(stream, Change::Truncate { from: from.0 })
    }

    /// Removes the entries below `below`, which may lie beyond the last one:
    /// then the stream goes on from there.
    pub fn purge_below(&mut self, stream: StreamId, below: LogIndex) -> &mut Self {
        self.add(stream, Change::Purge { below: below.0 })
    }

    /// Removes the stream with all it has.
    pub fn drop_stream(&mut self, stream: StreamId) -> &mut Self {
        self.add(stream, Change::Drop)
    }

    pub(crate) fn add(&mut self, stream: StreamId, change: Change) -> &mut Self {
        let (record_bytes, footer_bytes) = change.bytes_max();
        self.record_bytes += record_bytes;
        self.footer_bytes += footer_bytes;
        self.ops.push(Op { stream, change });
        self
    }

    /// Marks its entries as admitted: they are written to the reserve if the
    /// disk is full, instead of being refused. For entries that the caller
    /// can't decline any more. While [`Wal::is_space_low`](crate::Wal::is_space_low)
    /// the caller must admit no new ones: what exceeds the reserve waits for
    /// room, as on a disk that hangs.
    pub fn admitted(&mut self) -> &mut Self {
        self.admitted = true;
        self
    }

    /// Whether there is nothing to write.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// Bytes of a commit that holds just this batch.
    pub(crate) fn commit_bytes(&self) -> usize {
        CommitHeader::BYTES + self.record_bytes
    }

    /// Whether it may be refused to keep the rest of the disk for what must go on.
    pub(crate) fn may_be_refused(&self) -> bool {
        let is_append = |op: &Op| matches!(op.change, Change::Append { .. });
        !self.admitted && self.ops.iter().any(is_append)
    }
}

impl Change {
    /// Most bytes that it adds to a commit, and to a footer.
    pub(crate) fn bytes_max(&self) -> (usize, usize) {
        // The first record of a stream is preceded by one that founds it.
        let (records, payload, meta) = match self {
            Self::Append { entries, .. } => {
                let payload = entries.iter().map(Bytes::len).sum();
                (entries.len() + 1, payload, 0)
            }
            Self::Meta { value, .. } | Self::MoveMeta { value, .. } => {
                (2, value.len(), value.len())
            }
            Self::Move { payload, .. } => (1, payload.len(), 0),
            Self::Truncate { .. } | Self::Purge { .. } | Self::Drop | Self::MoveFloor { .. } => {
                (2, 0, 0)
            }
        };
        (
            records * RecordHeader::BYTES + payload,
            Effects::footer_bytes_per_record(meta) + records * Effects::footer_bytes_per_entry(),
        )
    }
}
