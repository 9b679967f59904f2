//! What is reported of a log, once for text and JSON: the JSON is these
//! structures as they are.
//!
//! Kept true: what can't be told is `None`, never a guess; a log that can be
//! opened has `log`, one that is not whole has `damage`.

use std::collections::BTreeMap;
use std::fmt;

use pontoon_wal::format::Kind;
use pontoon_wal::inspect::{Inspection, LogFacts, RecordFacts, SegmentFacts, StreamFacts};
use pontoon_wal::{Damage, Lsn, SegmentId, WalError};
use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

use crate::output::Verdict;

/// Offset of the version in the identity and in a segment's header.
const VERSION_AT: u64 = 4;

#[derive(Serialize)]
pub(super) struct Report {
    pub(super) clean: bool,
    pub(super) in_use: bool,
    pub(super) log: Option<Log>,
    pub(super) segments: Vec<Segment>,
    pub(super) damage: Option<Refusal>,
}

#[derive(Serialize)]
pub(super) struct Log {
    pub(super) node: u64,
    /// In hex: too large for a JSON number.
    pub(super) id: String,
    pub(super) epoch: u64,
    pub(super) last_commit: u64,
    pub(super) end: Position,
    pub(super) closed_in_order: bool,
    pub(super) unacknowledged_tail: bool,
    pub(super) streams: Vec<Stream>,
}

#[derive(Clone, Copy, Serialize)]
pub(super) struct Position {
    pub(super) segment: u32,
    pub(super) offset: u32,
}

#[derive(Serialize)]
pub(super) struct Stream {
    pub(super) id: u64,
    pub(super) first: u64,
    pub(super) next: u64,
    pub(super) entries: u64,
    pub(super) bytes: u64,
    pub(super) metas: Vec<Meta>,
    pub(super) oldest_segment: u32,
}

#[derive(Serialize)]
pub(super) struct Meta {
    pub(super) key: u8,
    pub(super) bytes: usize,
}

#[derive(Serialize)]
pub(super) struct Segment {
    pub(super) number: u32,
    pub(super) file_bytes: u64,
    pub(super) state: State,
    pub(super) commits: Option<Commits>,
    /// Where its commits end.
    pub(super) end: Option<u32>,
    pub(super) header_problem: Option<String>,
    /// Records that were read and found good, if records were read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) records: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum State {
    /// Part of the log, with a footer.
    Sealed,
    /// Part of the log, without a footer: the newest one, or its last run
    /// ended before the footer was written.
    Unsealed,
    /// Made ahead, without commits.
    Spare,
    /// Older than the log: waits to be used again, or to be removed.
    LeftOver,
    /// Not sealed; the log is damaged, so it can't be told what it is.
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Commits {
    pub(super) first: u64,
    pub(super) last: u64,
}

/// The first damage, which nearly always keeps a log from being opened.
pub(super) struct Refusal(pub(super) Damage);

/// A line of a dump.
#[derive(Serialize)]
pub(super) struct Record {
    segment: u32,
    offset: u32,
    commit: u64,
    epoch: u64,
    kind: &'static str,
    stream: u64,
    index: Option<u64>,
    payload_bytes: u32,
}

impl Report {
    /// The report of a look; an error if what stopped it was not the contents.
    pub(super) fn of(
        found: Inspection,
        in_use: bool,
        records_read: Option<&BTreeMap<SegmentId, u64>>,
    ) -> Result<Self, WalError> {
        let (facts, damage) = match found.log {
            Ok(facts) => {
                // A node would do without the footer, but the disk has lied.
                let footers = found.segments.iter();
                let damaged = footers
                    .filter(|segment| segment.id >= facts.first_needed)
                    .find_map(|segment| segment.damaged_footer.clone());
                (Some(facts), damaged.map(Refusal))
            }
            Err(error) => (None, Some(Refusal::of(error)?)),
        };
        let mut segments = segments(&found.segments, facts.as_ref());
        if let Some(read) = records_read {
            for segment in &mut segments {
                segment.records = Some(read.get(&SegmentId(segment.number)).copied().unwrap_or(0));
            }
        }
        Ok(Self {
            clean: damage.is_none(),
            in_use,
            log: facts.map(Log::of),
            segments,
            damage,
        })
    }

    pub(super) fn verdict(&self) -> Verdict {
        if self.clean {
            Verdict::Clean
        } else {
            Verdict::Damaged
        }
    }
}

impl Refusal {
    /// An error that is not about the contents is given back.
    pub(super) fn of(error: WalError) -> Result<Self, WalError> {
        match error {
            WalError::Damaged(damage) => Ok(Self((*damage).clone())),
            WalError::WrongVersion { file, found, known } => Ok(Self(Damage {
                file,
                offset: VERSION_AT,
                what: format!("format version {found}, this program knows version {known}"),
                stream: None,
                index: None,
            })),
            other => Err(other),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "damaged: {}", self.0)
    }
}

impl Serialize for Refusal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("damage", 5)?;
        // Not as a path: that would refuse names that are not UTF-8.
        fields.serialize_field("file", &self.0.file.to_string_lossy())?;
        fields.serialize_field("offset", &self.0.offset)?;
        fields.serialize_field("what", &self.0.what)?;
        fields.serialize_field("stream", &self.0.stream.map(|stream| stream.0))?;
        fields.serialize_field("index", &self.0.index.map(|index| index.0))?;
        fields.end()
    }
}

impl Log {
    fn of(facts: LogFacts) -> Self {
        Self {
            node: facts.node,
            id: format!("{:032x}", facts.log),
            epoch: facts.epoch,
            last_commit: facts.last_seq,
            end: Position::of(facts.end),
            closed_in_order: facts.closed,
            unacknowledged_tail: facts.has_unacknowledged_tail,
            streams: facts.streams.into_iter().map(Stream::of).collect(),
        }
    }
}

impl Position {
    fn of(lsn: Lsn) -> Self {
        Self {
            segment: lsn.segment().0,
            offset: lsn.offset(),
        }
    }

    pub(super) fn lsn(self) -> Lsn {
        Lsn::new(SegmentId(self.segment), self.offset)
    }
}

impl Stream {
    fn of(facts: StreamFacts) -> Self {
        Self {
            id: facts.id.0,
            first: facts.first.0,
            next: facts.next.0,
            entries: facts.next.0 - facts.first.0,
            bytes: facts.entry_bytes,
            metas: facts
                .metas
                .into_iter()
                .map(|(key, bytes)| Meta { key, bytes })
                .collect(),
            oldest_segment: facts.oldest_segment.0,
        }
    }
}

impl Record {
    pub(super) fn of(facts: &RecordFacts) -> Self {
        Self {
            segment: facts.at.segment().0,
            offset: facts.at.offset(),
            commit: facts.seq,
            epoch: facts.epoch,
            kind: kind_name(facts.kind),
            stream: facts.stream.0,
            index: record_index(facts),
            payload_bytes: facts.payload_bytes,
        }
    }
}

pub(super) fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Entry => "entry",
        Kind::Meta => "meta",
        Kind::Truncate => "truncate",
        Kind::Purge => "purge",
        Kind::Drop => "drop",
    }
}

/// The index of a record (of a meta, the key); a drop has none.
pub(super) fn record_index(facts: &RecordFacts) -> Option<u64> {
    (facts.kind != Kind::Drop).then_some(facts.index)
}

/// The segment files, each with its part in the log.
fn segments(files: &[SegmentFacts], log: Option<&LogFacts>) -> Vec<Segment> {
    let mut segments: Vec<Segment> = Vec::with_capacity(files.len());
    for (at, file) in files.iter().enumerate() {
        let state = state(file, log);
        let newest = log.filter(|log| file.id == log.segments.1);
        let before = segments
            .last()
            .filter(|before| SegmentId(before.number).next() == file.id);
        let commits = match (file.seal, state) {
            (Some(seal), _) => Commits::between(Some(seal.first_seq), Some(seal.last_seq)),
            // Commits are numbered without gaps, so the neighbours tell.
            (None, State::Unsealed) => {
                let first = match before {
                    Some(before) => before.commits.map(|commits| commits.last + 1),
                    None => (file.id == SegmentId(1)).then_some(1),
                };
                let after = files.get(at + 1).and_then(|after| after.seal);
                let last = match newest {
                    Some(log) => Some(log.last_seq),
                    None => after.and_then(|seal| seal.first_seq.checked_sub(1)),
                };
                Commits::between(first, last)
            }
            (None, State::Sealed | State::Spare | State::LeftOver | State::Unknown) => None,
        };
        segments.push(Segment {
            number: file.id.0,
            file_bytes: file.file_bytes,
            state,
            commits,
            end: file
                .seal
                .map(|seal| seal.end)
                .or(newest.map(|log| log.end.offset())),
            header_problem: file.header_problem.clone(),
            records: None,
        });
    }
    segments
}

impl Commits {
    /// `None` if an end is not known, or if there are none.
    fn between(first: Option<u64>, last: Option<u64>) -> Option<Self> {
        let (first, last) = first.zip(last)?;
        (first <= last).then_some(Self { first, last })
    }
}

fn state(file: &SegmentFacts, log: Option<&LogFacts>) -> State {
    match log.map(|log| log.segments) {
        Some(_) if log.is_some_and(|log| file.id < log.first_needed) => State::LeftOver,
        Some((_, newest)) if file.id > newest => State::Spare,
        _ if file.seal.is_some() => State::Sealed,
        Some(_) => State::Unsealed,
        None => State::Unknown,
    }
}
