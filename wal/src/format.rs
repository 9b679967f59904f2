//! The bytes of the log. `docs/format.md` explains them, and a test compares
//! its tables with the layouts here.
//!
//! Kept true: every structure begins with a checksum over all its other
//! bytes; a checksum inside a segment is also seeded with the segment's salt
//! and the offset, so that bytes left over from the file's earlier life, or
//! copied from elsewhere, never pass for new ones.

use crc32fast::Hasher;

use crate::blocks::BLOCK_BYTES;
use crate::position::{LogIndex, SegmentId, StreamId};

/// Version of everything below.
pub const VERSION: u32 = 1;

/// Offset of the first commit in a segment.
pub(crate) const FIRST_COMMIT: u32 = BLOCK_BYTES as u32;

/// Segments have at least this many bytes.
pub const SEGMENT_BYTES_MIN: u32 = 8 * BLOCK_BYTES as u32;
/// Segments have at most this many bytes.
pub const SEGMENT_BYTES_MAX: u32 = 1 << 30;

/// Name of the file that says whose log this is.
pub(crate) const IDENTITY_NAME: &str = "identity";
/// Name of the file that a running process keeps locked.
pub(crate) const LOCK_NAME: &str = "lock";
/// Name of the zeroed segment that is held back for a full disk.
pub const RESERVE_NAME: &str = "reserve";
/// Name of a segment that is being made.
pub const PREPARING_NAME: &str = "preparing.tmp";

/// File name of a segment.
#[must_use]
pub fn segment_name(segment: SegmentId) -> String {
    format!("{:010}.wal", segment.0)
}

/// The segment that a file name stands for. `None` if it is some other file,
/// `Some(None)` if it ends like a segment but is not the name of one.
pub(crate) fn segment_of_name(name: &str) -> Option<Option<SegmentId>> {
    let digits = name.strip_suffix(".wal")?;
    let id = digits.parse().ok().map(SegmentId);
    Some(id.filter(|&id| id.0 > 0 && segment_name(id) == name))
}

/// A field of a structure: its name, its offset and its length in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Name of the field.
    pub name: &'static str,
    /// Offset in the structure.
    pub offset: usize,
    /// Length in bytes; integers are little-endian.
    pub bytes: usize,
}

/// A structure on disk.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Name of the structure.
    pub name: &'static str,
    /// Length in bytes.
    pub bytes: usize,
    /// All fields, in order, without holes.
    pub fields: &'static [Field],
}

impl Layout {
    /// Where a field begins.
    #[must_use]
    pub const fn offset(&self, name: &str) -> usize {
        let mut i = 0;
        while i < self.fields.len() {
            if same(self.fields[i].name, name) {
                return self.fields[i].offset;
            }
            i += 1;
        }
        panic!("no such field")
    }
}

const fn same(a: &str, b: &str) -> bool {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let mut i = 0;
    while i < a.len() && i < b.len() && a[i] == b[i] {
        i += 1;
    }
    i == a.len() && i == b.len()
}

/// Declares a structure with its bytes in order, so that what is encoded,
/// what is decoded and what the documentation is compared with are one thing.
#[macro_export]
macro_rules! layout {
    ($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
        pub(crate) struct $name { $(pub(crate) $field: $type,)* }

        impl $name {
            pub(crate) const BYTES: usize = 0 $(+ size_of::<$type>())*;

            pub(crate) const LAYOUT: $crate::format::Layout = $crate::format::Layout {
                name: stringify!($name),
                bytes: Self::BYTES,
                fields: &{
                    let mut end = 0;
                    [$({
                        let bytes = size_of::<$type>();
                        end += bytes;
                        $crate::format::Field { name: stringify!($field), offset: end - bytes, bytes }
                    },)*]
                },
            };

            #[allow(dead_code, reason = "some structures are only read field by field")]
            pub(crate) fn encode(&self) -> [u8; Self::BYTES] {
                let mut out = [0; Self::BYTES];
                let mut at = 0;
                $(
                    let bytes = self.$field.to_le_bytes();
                    out[at..at + bytes.len()].copy_from_slice(&bytes);
                    at += bytes.len();
                )*
                debug_assert_eq!(at, Self::BYTES);
                out
            }

            /// The fields at the start of `bytes`, unchecked; `None` if it is too short.
            #[allow(dead_code, reason = "some structures are only read field by field")]
            pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
                let mut rest = bytes;
                $(
                    let (field, after) = rest.split_first_chunk()?;
                    let $field = <$type>::from_le_bytes(*field);
                    rest = after;
                )*
                let _ = rest;
                Some(Self { $($field,)* })
            }
        }
    };
}

layout! {
    /// The identity file: one block that says whose log the directory holds.
    Identity {
        crc: u32,
        version: u32,
        magic: u64,
        log: u128,
        node: u64,
    }
}

layout! {
    /// The first bytes of every segment file.
    SegmentHeader {
        crc: u32,
        version: u32,
        magic: u64,
        log: u128,
        node: u64,
        salt: u64,
        segment: u32,
        segment_bytes: u32,
    }
}

layout! {
    /// The start of a commit: the unit that is written, synced and recovered whole.
    CommitHeader {
        crc: u32,
        magic: u32,
        lsn: u64,
        seq: u64,
        epoch: u64,
        durable: u64,
        first_segment: u32,
        records: u32,
        record_bytes: u32,
        digest: u32,
        flags: u32,
        reserved: u32,
    }
}

layout! {
    /// The start of a record; its payload follows.
    RecordHeader {
        crc: u32,
        payload_bytes: u32,
        stream: u64,
        index: u64,
        ordinal: u32,
        kind: u32,
    }
}

layout! {
    /// The last block of a sealed segment.
    Trailer {
        crc: u32,
        magic: u32,
        segment: u32,
        end: u32,
        footer_bytes: u32,
        footer_crc: u32,
        first_segment: u32,
        last_flags: u32,
        first_seq: u64,
        last_seq: u64,
        last_epoch: u64,
    }
}

layout! {
    /// Footer: what the segment did to one stream; metas and runs follow.
    FooterStream {
        stream: u64,
        flags: u32,
        metas: u32,
        runs: u32,
        reserved: u32,
        truncated_from: u64,
        purged_below: u64,
    }
}

layout! {
    /// Footer: a metadata value; its bytes follow.
    FooterMeta {
        key: u32,
        value_bytes: u32,
    }
}

layout! {
    /// Footer: entries with consecutive indexes; their places follow.
    FooterRun {
        first: u64,
        count: u32,
        reserved: u32,
    }
}

layout! {
    /// Footer: where the record of one entry starts, and its payload's length.
    FooterPlace {
        offset: u32,
        payload_bytes: u32,
    }
}

/// Every structure, in the order in which the documentation explains them.
pub const LAYOUTS: &[Layout] = &[
    Identity::LAYOUT,
    SegmentHeader::LAYOUT,
    CommitHeader::LAYOUT,
    RecordHeader::LAYOUT,
    FooterStream::LAYOUT,
    FooterMeta::LAYOUT,
    FooterRun::LAYOUT,
    FooterPlace::LAYOUT,
    Trailer::LAYOUT,
];

/// The constants that the documentation lists, by name.
pub const CONSTANTS: &[(&str, u64)] = &[
    ("VERSION", VERSION as u64),
    ("BLOCK_BYTES", BLOCK_BYTES as u64),
    ("SEGMENT_BYTES_MIN", SEGMENT_BYTES_MIN as u64),
    ("SEGMENT_BYTES_MAX", SEGMENT_BYTES_MAX as u64),
    ("IDENTITY_MAGIC", Identity::MAGIC),
    ("SEGMENT_MAGIC", SegmentHeader::MAGIC),
    ("COMMIT_MAGIC", CommitHeader::MAGIC as u64),
    ("TRAILER_MAGIC", Trailer::MAGIC as u64),
    ("COMMIT_OPENS", CommitHeader::OPENS as u64),
    ("COMMIT_CLOSES", CommitHeader::CLOSES as u64),
    ("RECORD_ENTRY", Kind::Entry as u64),
    ("RECORD_META", Kind::Meta as u64),
    ("RECORD_TRUNCATE", Kind::Truncate as u64),
    ("RECORD_PURGE", Kind::Purge as u64),
    ("RECORD_DROP", Kind::Drop as u64),
    ("FOOTER_DROPPED", FooterStream::DROPPED as u64),
    ("FOOTER_TRUNCATED", FooterStream::TRUNCATED as u64),
    ("FOOTER_PURGED", FooterStream::PURGED as u64),
];

/// What a record does to its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// The entry at the index is the payload.
    Entry = 1,
    /// The metadata value with the index as its key is the payload.
    Meta = 2,
    /// Entries at the index and above are gone.
    Truncate = 3,
    /// Entries below the index are gone; the first record of every stream.
    Purge = 4,
    /// The stream is gone.
    Drop = 5,
}

impl Kind {
    pub(crate) fn of(number: u32) -> Option<Self> {
        Some(match number {
            1 => Self::Entry,
            2 => Self::Meta,
            3 => Self::Truncate,
            4 => Self::Purge,
            5 => Self::Drop,
            _ => return None,
        })
    }
}

/// Checksums inside a segment start from this.
fn seed(salt: u64, offset: u32) -> u32 {
    (salt ^ (salt >> 32)) as u32 ^ offset
}

fn crc(seed: u32, parts: &[&[u8]]) -> u32 {
    let mut hasher = Hasher::new_with_initial(seed);
    for part in parts {
        hasher.update(part);
    }
    hasher.finalize()
}

/// Sets the checksum that starts a structure.
fn stamp(bytes: &mut [u8], seed: u32) {
    let sum = crc(seed, &[&bytes[4..]]);
    bytes[..4].copy_from_slice(&sum.to_le_bytes());
}

/// Whether the checksum that starts a structure is right.
fn is_stamped(bytes: &[u8], seed: u32) -> bool {
    bytes[..4] == crc(seed, &[&bytes[4..]]).to_le_bytes()
}

/// Why a file's first block is not what it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BadStart {
    Damaged(&'static str),
    Version(u32),
}

impl Identity {
    pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"PNTN-LOG");

    pub(crate) fn to_bytes(mut self) -> [u8; Self::BYTES] {
        (self.magic, self.version) = (Self::MAGIC, VERSION);
        let mut bytes = self.encode();
        stamp(&mut bytes, 0);
        bytes
    }

    pub(crate) fn read(bytes: &[u8]) -> Result<Self, BadStart> {
        let this = Self::decode(bytes).ok_or(BadStart::Damaged("too short"))?;
        check_start(&bytes[..Self::BYTES], this.magic, Self::MAGIC, this.version)?;
        Ok(this)
    }
}

impl SegmentHeader {
    pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"PNTN-SEG");

    pub(crate) fn to_bytes(mut self) -> [u8; Self::BYTES] {
        (self.magic, self.version) = (Self::MAGIC, VERSION);
        let mut bytes = self.encode();
        stamp(&mut bytes, 0);
        bytes
    }

    pub(crate) fn read(bytes: &[u8]) -> Result<Self, BadStart> {
        let this = Self::decode(bytes).ok_or(BadStart::Damaged("too short"))?;
        check_start(&bytes[..Self::BYTES], this.magic, Self::MAGIC, this.version)?;
        if !segment_bytes_valid(this.segment_bytes) {
            return Err(BadStart::Damaged("impossible segment size"));
        }
        Ok(this)
    }
}

/// Whether a segment can have this size.
pub(crate) fn segment_bytes_valid(bytes: u32) -> bool {
    (SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&bytes)
        && bytes.is_multiple_of(BLOCK_BYTES as u32)
}

/// What it says of its version counts only with a right checksum: otherwise one
/// bit that flipped there would look like a later version. So every version
/// keeps these fields, and this checksum of them.
fn check_start(bytes: &[u8], magic: u64, expected: u64, version: u32) -> Result<(), BadStart> {
    if magic != expected {
        return Err(BadStart::Damaged("not a file of this log (wrong magic)"));
    }
    if !is_stamped(bytes, 0) {
        return Err(BadStart::Damaged("wrong checksum"));
    }
    match version {
        VERSION => Ok(()),
        other => Err(BadStart::Version(other)),
    }
}

impl CommitHeader {
    pub(crate) const MAGIC: u32 = u32::from_le_bytes(*b"PNTC");
    /// The first commit of a run of the process.
    pub(crate) const OPENS: u32 = 1;
    /// The last commit before a clean close.
    pub(crate) const CLOSES: u32 = 2;

    pub(crate) fn to_bytes(mut self, salt: u64) -> [u8; Self::BYTES] {
        self.magic = Self::MAGIC;
        let mut bytes = self.encode();
        stamp(&mut bytes, seed(salt, self.lsn as u32));
        bytes
    }

    /// The commit header at `offset` of a segment, if there is a whole one.
    pub(crate) fn read(bytes: &[u8], salt: u64, segment: SegmentId, offset: u32) -> Option<Self> {
        let this = Self::decode(bytes)?;
        let valid = this.magic == Self::MAGIC
            && this.lsn == crate::position::Lsn::new(segment, offset).0
            && is_stamped(&bytes[..Self::BYTES], seed(salt, offset));
        valid.then_some(this)
    }
}

impl RecordHeader {
    /// The header with its checksum, which covers the payload too.
    pub(crate) fn to_bytes(self, salt: u64, offset: u32, payload: &[u8]) -> [u8; Self::BYTES] {
        let mut bytes = self.encode();
        let sum = crc(seed(salt, offset), &[&bytes[4..], payload]);
        bytes[..4].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// The record that starts `bytes`, with its payload.
    pub(crate) fn read(bytes: &[u8], salt: u64, offset: u32) -> Result<(Self, &[u8]), Self> {
        let Some(this) = Self::decode(bytes) else {
            return Err(Self::default());
        };
        let end = Self::BYTES.saturating_add(this.payload_bytes as usize);
        let Some(payload) = bytes.get(Self::BYTES..end) else {
            return Err(this);
        };
        if this.crc != crc(seed(salt, offset), &[&bytes[4..Self::BYTES], payload]) {
            return Err(this);
        }
        Ok((this, payload))
    }

    pub(crate) fn stream(&self) -> StreamId {
        StreamId(self.stream)
    }

    /// The index, for kinds where it is one.
    pub(crate) fn entry_index(&self) -> Option<LogIndex> {
        matches!(
            Kind::of(self.kind),
            Some(Kind::Entry | Kind::Truncate | Kind::Purge)
        )
        .then_some(LogIndex(self.index))
    }
}

/// Checksum of a commit's record checksums, in order: with them it covers
/// every byte of the commit, at four bytes a record.
#[derive(Clone)]
pub(crate) struct Digest(Hasher);

impl Digest {
    pub(crate) fn new(epoch: u64) -> Self {
        let mut hasher = Hasher::new();
        hasher.update(&epoch.to_le_bytes());
        Self(hasher)
    }

    pub(crate) fn add(&mut self, record_crc: &[u8; 4]) {
        self.0.update(record_crc);
    }

    pub(crate) fn finish(self) -> u32 {
        self.0.finalize()
    }
}

impl Trailer {
    pub(crate) const MAGIC: u32 = u32::from_le_bytes(*b"PNTE");

    pub(crate) fn to_bytes(mut self, salt: u64) -> [u8; Self::BYTES] {
        self.magic = Self::MAGIC;
        let mut bytes = self.encode();
        stamp(&mut bytes, seed(salt, u32::MAX));
        bytes
    }

    pub(crate) fn read(bytes: &[u8], salt: u64, segment: SegmentId) -> Option<Self> {
        let this = Self::decode(bytes)?;
        let valid = this.magic == Self::MAGIC
            && this.segment == segment.0
            && is_stamped(&bytes[..Self::BYTES], seed(salt, u32::MAX));
        valid.then_some(this)
    }

    /// Checksum of the footer that the trailer points to.
    pub(crate) fn footer_crc(footer: &[u8], salt: u64) -> u32 {
        crc(seed(salt, 0), &[footer])
    }
}

impl FooterStream {
    /// The stream was dropped in this segment, before its other effects.
    pub(crate) const DROPPED: u32 = 1;
    /// `truncated_from` counts.
    pub(crate) const TRUNCATED: u32 = 2;
    /// `purged_below` counts.
    pub(crate) const PURGED: u32 = 4;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_have_no_holes() {
        for layout in LAYOUTS {
            let mut end = 0;
            for field in layout.fields {
                assert_eq!(field.offset, end, "{}.{}", layout.name, field.name);
                end += field.bytes;
            }
            assert_eq!(end, layout.bytes, "{}", layout.name);
        }
        const { assert!(SegmentHeader::BYTES <= BLOCK_BYTES && Trailer::BYTES <= BLOCK_BYTES) };
    }

    #[test]
    fn a_record_is_bound_to_its_salt_and_place() {
        let header = RecordHeader {
            payload_bytes: 3,
            stream: 1,
            index: 2,
            kind: Kind::Entry as u32,
            ..RecordHeader::default()
        };
        let mut bytes = header.to_bytes(77, 4096, b"abc").to_vec();
        bytes.extend(b"abc");
        assert!(RecordHeader::read(&bytes, 77, 4096).is_ok());
        assert!(RecordHeader::read(&bytes, 78, 4096).is_err());
        assert!(RecordHeader::read(&bytes, 77, 8192).is_err());
        assert!(RecordHeader::read(&bytes[..34], 77, 4096).is_err());
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(RecordHeader::read(&flipped, 77, 4096).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn only_canonical_names_are_segments() {
        assert_eq!(segment_of_name("0000000042.wal"), Some(Some(SegmentId(42))));
        assert_eq!(segment_of_name("42.wal"), Some(None));
        assert_eq!(segment_of_name("0000000000.wal"), Some(None));
        assert_eq!(segment_of_name("+000000042.wal"), Some(None));
        assert_eq!(segment_of_name("identity"), None);
    }
}
