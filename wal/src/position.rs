//! Positions are different types, so that one is never taken for another.

use std::fmt;

/// One of the many logs that share the WAL: a Raft group, for the layer above.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId(pub u64);

/// Place of an entry inside its stream. The first is 0; there are no holes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LogIndex(pub u64);

/// Number of a segment file. The first is 1; numbers are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SegmentId(pub u32);

/// Place of a byte in the node's log: the segment, then the offset in its file.
///
/// Later bytes have larger positions, also across segments.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Lsn(pub u64);

impl SegmentId {
    /// The segment written after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl Lsn {
    /// The position `offset` bytes into `segment`.
    #[must_use]
    pub const fn new(segment: SegmentId, offset: u32) -> Self {
        Self(((segment.0 as u64) << 32) | offset as u64)
    }

    /// The segment file this position lies in.
    #[must_use]
    pub const fn segment(self) -> SegmentId {
        SegmentId((self.0 >> 32) as u32)
    }

    /// The byte offset inside that file.
    #[must_use]
    pub const fn offset(self) -> u32 {
        self.0 as u32
    }
}

impl fmt::Debug for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{:#x}", self.segment(), self.offset())
    }
}

macro_rules! display_as_number {
    ($($position:ty),*) => {$(
        impl fmt::Display for $position {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )*};
}
display_as_number!(StreamId, LogIndex, SegmentId);

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_order_across_segments() {
        let end_of_first = Lsn::new(SegmentId(1), u32::MAX);
        let start_of_second = Lsn::new(SegmentId(2), 0);
        assert!(end_of_first < start_of_second);
        assert_eq!(end_of_first.segment(), SegmentId(1));
        assert_eq!(end_of_first.offset(), u32::MAX);
        assert_eq!(Lsn::new(SegmentId(7), 4096).to_string(), "7:0x1000");
    }
}
