//! What is written in a segment, told from its bytes alone.
//!
//! Kept true: nothing here trusts a byte before its checksum was checked, and
//! nothing here decides what a finding means: that is `recovery`'s table.

use bytes::Bytes;

use crate::blocks::BLOCK_BYTES;
use crate::effects::{Effect, Effects, Place};
use crate::error::Finding;
use crate::format::{CommitHeader, Digest, FIRST_COMMIT, Kind, RecordHeader};
use crate::position::{Lsn, SegmentId};

/// A segment's bytes (or its start, if the rest is not needed) with what its
/// header said.
#[derive(Clone, Copy)]
pub(crate) struct Image<'a> {
    pub(crate) segment: SegmentId,
    pub(crate) salt: u64,
    pub(crate) bytes: &'a [u8],
}

/// The last commit that was accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Chain {
    /// 0 before the first commit.
    pub(crate) seq: u64,
    pub(crate) epoch: u64,
    pub(crate) first_segment: u32,
    pub(crate) flags: u32,
}

/// What stands where the next commit should start.
#[derive(Debug)]
pub(crate) enum Found {
    /// The next commit, whole.
    Commit(CommitHeader, Vec<Effect>),
    /// The next commit's header, but not all of its records.
    Torn(Finding),
    /// A whole header of a commit that was cut off before: it is from an
    /// earlier epoch.
    Stale,
    /// No commit header.
    Blank,
}

impl Chain {
    /// Whether a commit with this header can come right after.
    fn precedes(&self, header: &CommitHeader) -> bool {
        header.epoch >= self.epoch && (self.seq == 0 || header.seq == self.seq + 1)
    }

    pub(crate) fn follow(&mut self, header: &CommitHeader) {
        *self = Self {
            seq: header.seq,
            epoch: header.epoch,
            first_segment: header.first_segment,
            flags: header.flags,
        };
    }
}

impl Image<'_> {
    /// Where the trailer would be: commits and footer end before it.
    pub(crate) fn trailer_at(&self) -> usize {
        self.bytes.len() - BLOCK_BYTES
    }

    fn header(&self, offset: u32) -> Option<CommitHeader> {
        let bytes = self.bytes.get(offset as usize..)?;
        CommitHeader::read(bytes, self.salt, self.segment, offset)
    }

    /// What is at `offset`, where the commit after `chain` should be.
    pub(crate) fn commit(&self, offset: u32, chain: &Chain) -> Found {
        if offset as usize >= self.trailer_at() {
            return Found::Blank;
        }
        match self.header(offset) {
            None => Found::Blank,
            Some(header) if header.epoch < chain.epoch => Found::Stale,
            // The epoch is current, yet the number is not: a commit of a run
            // whose cut it outlived. (Only possible where commits are missing.)
            Some(header) if !chain.precedes(&header) => Found::Stale,
            Some(header) => match self.records(offset, &header) {
                Ok(effects) => Found::Commit(header, effects),
                Err(finding) => Found::Torn(finding),
            },
        }
    }

    /// The records of the commit at `offset`, all of them checked.
    fn records(&self, offset: u32, header: &CommitHeader) -> Result<Vec<Effect>, Finding> {
        let mut at = offset as usize + CommitHeader::BYTES;
        let end = at + header.record_bytes as usize;
        let Some(bytes) = self.bytes[..self.trailer_at()].get(..end) else {
            return Err(self.finding(offset as usize, "a commit reaches beyond its segment"));
        };
        let mut digest = Digest::new(header.epoch);
        let mut effects = Vec::with_capacity((header.records as usize).min(1 << 16));
        for ordinal in 0..header.records {
            let (record, payload) =
                match RecordHeader::read(&bytes[at.min(end)..], self.salt, at as u32) {
                    Ok((record, payload)) if record.ordinal == ordinal => (record, payload),
                    Ok((record, _)) => return Err(self.bad_record(at, &record, "out of order")),
                    Err(record) => return Err(self.bad_record(at, &record, "damaged")),
                };
            let Some(kind) = Kind::of(record.kind) else {
                return Err(self.bad_record(at, &record, "of unknown kind"));
            };
            digest.add(&record.crc.to_le_bytes());
            effects.push(Effect {
                kind,
                stream: record.stream(),
                index: record.index,
                place: Place {
                    offset: at as u32,
                    payload_bytes: record.payload_bytes,
                },
                meta: match kind {
                    Kind::Meta => Bytes::copy_from_slice(payload),
                    _ => Bytes::new(),
                },
            });
            at += RecordHeader::BYTES + payload.len();
        }
        if at != end {
            return Err(self.finding(at, "a commit's records end before it does"));
        }
        if digest.finish() != header.digest {
            return Err(self.finding(
                offset as usize,
                "a commit's records are not the ones it was written with",
            ));
        }
        Ok(effects)
    }

    fn finding(&self, offset: usize, what: &str) -> Finding {
        Finding::new(self.segment, offset, what)
    }

    fn bad_record(&self, at: usize, record: &RecordHeader, how: &str) -> Finding {
        Finding {
            entry: Kind::of(record.kind).map(|_| (record.stream(), record.entry_index())),
            ..self.finding(at, &format!("a record is {how}"))
        }
    }

    /// The damage at `offset`, where no commit header could be read: names
    /// the first record if it survived.
    pub(crate) fn describe_blank(&self, offset: u32) -> Finding {
        let at = offset as usize + CommitHeader::BYTES;
        let record = self
            .bytes
            .get(at..)
            .and_then(|bytes| RecordHeader::read(bytes, self.salt, at as u32).ok());
        Finding {
            entry: record.map(|(record, _)| (record.stream(), record.entry_index())),
            ..self.finding(
                offset as usize,
                "an acknowledged commit is damaged or missing",
            )
        }
    }

    /// What commits after `from` prove: the highest position that one of them
    /// knew to be durable. A header is proof enough; its records may be torn.
    pub(crate) fn durable_ahead(&self, from: u32, chain: &Chain) -> Option<Lsn> {
        (from as usize..self.trailer_at())
            .step_by(BLOCK_BYTES)
            .filter_map(|offset| self.header(offset as u32))
            .filter(|header| header.epoch >= chain.epoch && header.seq > chain.seq)
            .map(|header| Lsn(header.durable))
            .max()
    }

    /// Whether the segment starts with the commit that follows `chain`.
    pub(crate) fn continues(&self, chain: &Chain) -> bool {
        self.header(FIRST_COMMIT)
            .is_some_and(|header| chain.seq != 0 && chain.precedes(&header))
    }
}

/// Effects of all whole commits from the start of a segment, and what ended them.
pub(crate) struct Scanned {
    pub(crate) effects: Effects,
    pub(crate) first_seq: u64,
    /// Where the next commit would be.
    pub(crate) end: u32,
    pub(crate) stopped_by: Found,
}

/// Follows the chain through one segment. `visit` sees every commit.
pub(crate) fn scan(
    image: Image<'_>,
    chain: &mut Chain,
    mut visit: impl FnMut(u32, &CommitHeader, &[Effect]),
) -> Scanned {
    let mut scanned = Scanned {
        effects: Effects::default(),
        first_seq: 0,
        end: FIRST_COMMIT,
        stopped_by: Found::Blank,
    };
    loop {
        match image.commit(scanned.end, chain) {
            Found::Commit(header, effects) => {
                visit(scanned.end, &header, &effects);
                for effect in effects {
                    scanned.effects.add(effect);
                }
                if scanned.first_seq == 0 {
                    scanned.first_seq = header.seq;
                }
                chain.follow(&header);
                let bytes = CommitHeader::BYTES + header.record_bytes as usize;
                scanned.end += bytes.next_multiple_of(BLOCK_BYTES) as u32;
            }
            stopped_by => {
                scanned.stopped_by = stopped_by;
                return scanned;
            }
        }
    }
}
