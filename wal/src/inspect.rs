//! A look at a log from outside: reads, changes nothing, and shares its code
//! with recovery, so what it calls clean opens.

use std::path::Path;

use crate::blocks::BLOCK_BYTES;
use crate::disk::{Disk, read_blocks};
use crate::error::{Damage, Finding, WalError};
use crate::format::{
    BadStart, Kind, LOCK_NAME, SegmentHeader, Trailer, segment_name, segment_of_name,
};
use crate::position::{LogIndex, Lsn, SegmentId, StreamId};
use crate::recovery::{read_footer, recover};

pub use crate::recovery::Depth;

/// A log as it stands on disk.
#[derive(Debug)]
pub struct Inspection {
    /// Every segment file, oldest first, by its own header and trailer.
    pub segments: Vec<SegmentFacts>,
    /// What they add up to, or the first damage.
    pub log: Result<LogFacts, WalError>,
}

/// One segment file.
#[derive(Clone, Debug)]
pub struct SegmentFacts {
    /// Its number, from its name.
    pub id: SegmentId,
    /// Size of the file.
    pub file_bytes: u64,
    /// What is wrong with its header, if it can't be read.
    pub header_problem: Option<String>,
    /// What its footer says, if it has one.
    pub seal: Option<SealFacts>,
    /// Where its footer is and is damaged. A node reads the records instead.
    pub damaged_footer: Option<Damage>,
}

/// What a sealed segment says of itself.
#[derive(Clone, Copy, Debug)]
pub struct SealFacts {
    /// Number of the first commit in it.
    pub first_seq: u64,
    /// Number of the last one.
    pub last_seq: u64,
    /// Where its commits end.
    pub end: u32,
}

/// A log that can be opened.
#[derive(Clone, Debug)]
pub struct LogFacts {
    /// The node that wrote it.
    pub node: u64,
    /// Which log it is.
    pub log: u128,
    /// The oldest and the newest segment with commits.
    pub segments: (SegmentId, SegmentId),
    /// The oldest segment that the log needs; older ones wait to be used again.
    pub first_needed: SegmentId,
    /// Number of the last commit.
    pub last_seq: u64,
    /// How often the log was opened.
    pub epoch: u64,
    /// Where the next commit would go.
    pub end: Lsn,
    /// Whether it was closed in order.
    pub closed: bool,
    /// Whether unacknowledged commits lie behind the end.
    pub has_unacknowledged_tail: bool,
    /// All streams.
    pub streams: Vec<StreamFacts>,
}

/// One stream.
#[derive(Clone, Debug)]
pub struct StreamFacts {
    /// Which one.
    pub id: StreamId,
    /// The first entry that is there.
    pub first: LogIndex,
    /// The next one to come.
    pub next: LogIndex,
    /// Bytes of all entries.
    pub entry_bytes: u64,
    /// Keys of the metadata values, with their lengths.
    pub metas: Vec<(u8, usize)>,
    /// The oldest segment that it needs.
    pub oldest_segment: SegmentId,
}

/// One record, as [`dump`] shows it.
#[derive(Clone, Copy, Debug)]
pub struct RecordFacts {
    /// Where it starts.
    pub at: Lsn,
    /// Number of its commit.
    pub seq: u64,
    /// Epoch of its commit.
    pub epoch: u64,
    /// The position that was known to be durable when it was written.
    pub durable: Lsn,
    /// What it does.
    pub kind: Kind,
    /// To which stream.
    pub stream: StreamId,
    /// Index of an entry, key of a metadata value.
    pub index: u64,
    /// Bytes of its payload.
    pub payload_bytes: u32,
}

/// Recovery's decision table as words: what is found, what lies ahead, what
/// is done. For documents.
#[must_use]
pub fn decision_table() -> Vec<[String; 3]> {
    let rows = crate::recovery::TABLE.iter();
    rows.map(|(here, ahead, decision)| {
        [
            format!("{here:?}"),
            format!("{ahead:?}"),
            format!("{decision:?}"),
        ]
    })
    .collect()
}

/// Whether a process has the log open.
pub fn is_in_use(disk: &dyn Disk, dir: &Path) -> Result<bool, WalError> {
    let lock = dir.join(LOCK_NAME);
    disk.is_locked(&lock)
        .map_err(|error| WalError::io(&lock, "test of the lock", error))
}

/// Looks at the log in `dir`; `None` if there is none.
pub fn inspect(disk: &dyn Disk, dir: &Path, depth: Depth) -> Result<Option<Inspection>, WalError> {
    dump(disk, dir, depth, &mut |_| {})
}

/// [`inspect`] that shows every record on the way (with [`Depth::Everything`];
/// else only those of segments that have no footer).
pub fn dump(
    disk: &dyn Disk,
    dir: &Path,
    depth: Depth,
    show: &mut dyn FnMut(RecordFacts),
) -> Result<Option<Inspection>, WalError> {
    let segments = survey(disk, dir)?;
    let found = recover(disk, dir, depth, &mut |segment, _, header, effects| {
        for effect in effects {
            show(RecordFacts {
                at: Lsn::new(segment, effect.place.offset),
                seq: header.seq,
                epoch: header.epoch,
                durable: Lsn(header.durable),
                kind: effect.kind,
                stream: effect.stream,
                index: effect.index,
                payload_bytes: effect.place.payload_bytes,
            });
        }
    });
    let log = match found {
        Ok(None) => return Ok(None),
        Err(error) => Err(error),
        Ok(Some(found)) => Ok(LogFacts {
            node: found.identity.node,
            log: found.identity.log,
            segments: (found.segments[0].id, found.end.segment()),
            first_needed: SegmentId(found.chain.first_segment.max(1)),
            last_seq: found.chain.seq,
            epoch: found.chain.epoch,
            end: found.end,
            closed: found.chain.flags & crate::format::CommitHeader::CLOSES != 0,
            has_unacknowledged_tail: found.cut,
            streams: found
                .streams
                .iter()
                .map(|(&id, logged)| StreamFacts {
                    id,
                    first: LogIndex(logged.first),
                    next: LogIndex(logged.next()),
                    entry_bytes: logged
                        .slots
                        .iter()
                        .map(|slot| u64::from(slot.payload_bytes))
                        .sum(),
                    metas: logged
                        .metas
                        .iter()
                        .map(|(&key, meta)| (key, meta.value.len()))
                        .collect(),
                    oldest_segment: logged
                        .metas
                        .values()
                        .map(|meta| meta.at)
                        .chain(logged.slots.iter().map(|slot| SegmentId(slot.segment)))
                        .fold(logged.floor_at, SegmentId::min),
                })
                .collect(),
        }),
    };
    Ok(Some(Inspection { segments, log }))
}

/// The segment files, each on its own.
fn survey(disk: &dyn Disk, dir: &Path) -> Result<Vec<SegmentFacts>, WalError> {
    let mut ids: Vec<_> = disk
        .list(dir)
        .map_err(|error| WalError::io(dir, "list", error))?
        .iter()
        .filter_map(|name| segment_of_name(name).flatten())
        .collect();
    ids.sort_unstable();
    ids.into_iter()
        .map(|id| {
            let path = dir.join(segment_name(id));
            let at = |error| WalError::io(&path, "read", error);
            let file = disk.open(&path, false).map_err(at)?;
            let file_bytes = file.size().map_err(at)?;
            let mut facts = SegmentFacts {
                id,
                file_bytes,
                header_problem: None,
                seal: None,
                damaged_footer: None,
            };
            if file_bytes < 2 * BLOCK_BYTES as u64 || file_bytes % BLOCK_BYTES as u64 != 0 {
                facts.header_problem = Some("impossible size".to_owned());
                return Ok(facts);
            }
            let start = read_blocks(&*file, 0, BLOCK_BYTES).map_err(at)?;
            match SegmentHeader::read(start.as_slice()) {
                Err(BadStart::Damaged(what)) => facts.header_problem = Some(what.to_owned()),
                Err(BadStart::Version(version)) => {
                    facts.header_problem = Some(format!("format version {version}"));
                }
                Ok(header) if u64::from(header.segment_bytes) == file_bytes => {
                    let trailer_at = file_bytes - BLOCK_BYTES as u64;
                    let last = read_blocks(&*file, trailer_at, BLOCK_BYTES).map_err(at)?;
                    let Some(trailer) = Trailer::read(last.as_slice(), header.salt, id) else {
                        return Ok(facts);
                    };
                    facts.seal = Some(SealFacts {
                        first_seq: trailer.first_seq,
                        last_seq: trailer.last_seq,
                        end: trailer.end,
                    });
                    if read_footer(&*file, &header, &trailer)
                        .map_err(at)?
                        .is_none()
                    {
                        let end = trailer.end as usize;
                        let what = "the footer is damaged (it can be made again from the records)";
                        facts.damaged_footer = Some(Finding::new(id, end, what).in_dir(dir));
                    }
                }
                Ok(_) => facts.header_problem = Some("another size than the file's".to_owned()),
            }
            Ok(facts)
        })
        .collect()
}
