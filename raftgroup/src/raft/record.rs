//! A log entry as bytes, the same in the log and between nodes.
//!
//! Kept true: what was proposed is never copied on its way into the log.
//! Version, kind and term stand *behind* it where the
//! proposer's buffer has room for them, so one run of bytes is the proposal,
//! the record of the log, and a slice of the message that brought it.

use bytes::{BufMut, Bytes, BytesMut};
use openraft::EntryPayload;
use openraft::entry::RaftEntry;

use crate::codec::Wire;
use crate::format::{self, FormatVersion, Unreadable};
use crate::raft::types::{Command, LogEntry, Membership, log_id};

/// Spare capacity that the buffer of a proposal should have.
pub(crate) const ROOM_BYTES: usize = 10;

/// What is proposed has a version of its own, inside.
const VERSION: FormatVersion = FormatVersion::FIRST;

const KIND: &str = "log record";

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Blank = 0,
    Proposal = 1,
    Membership = 2,
}

/// A proposal as a record; copied only if its buffer is shared or full.
pub(crate) fn of_proposal(term: u64, proposal: Bytes) -> Command {
    Command(seal(proposal, Kind::Proposal, term))
}

/// The record of an entry.
pub(crate) fn of_entry(entry: &LogEntry) -> Bytes {
    let term = entry.log_id.leader_id.term;
    match &entry.payload {
        EntryPayload::Blank => seal(Bytes::new(), Kind::Blank, term),
        EntryPayload::Membership(membership) => seal(membership.encode(), Kind::Membership, term),
        EntryPayload::Normal(command) => {
            assert_eq!(
                self::term(&command.0),
                Some(term),
                "a proposal is for one term, and it is only taken in that term"
            );
            command.0.clone()
        }
    }
}

/// The entry at `index` (as openraft counts) that `record` is.
pub(crate) fn to_entry(index: u64, record: Bytes) -> Result<LogEntry, Unreadable> {
    const NONSENSE: Unreadable = Unreadable::Nonsense { kind: KIND };
    let id = log_id(term(&record).ok_or(NONSENSE)?, index);
    let [version, kind] = record[record.len() - ROOM_BYTES..][..2] else {
        unreachable!("two bytes were taken")
    };
    format::check(KIND, FormatVersion(version), FormatVersion::NEWEST)?;
    let payload = match kind {
        kind if kind == Kind::Blank as u8 => EntryPayload::Blank,
        kind if kind == Kind::Proposal as u8 => EntryPayload::Normal(Command(record)),
        kind if kind == Kind::Membership as u8 => {
            EntryPayload::Membership(Membership::decode(payload(&record)).ok_or(NONSENSE)?)
        }
        _ => return Err(NONSENSE),
    };
    Ok(LogEntry::new(id, payload))
}

/// The term of a record.
pub(crate) fn term(record: &[u8]) -> Option<u64> {
    let end = record.last_chunk::<ROOM_BYTES>()?;
    let (_, term) = end.split_last_chunk::<8>()?;
    Some(u64::from_le_bytes(*term))
}

/// What stands before version, kind and term.
pub(crate) fn payload(record: &Bytes) -> Bytes {
    record.slice(..record.len() - ROOM_BYTES)
}

fn seal(payload: Bytes, kind: Kind, term: u64) -> Bytes {
    let mut record = payload.try_into_mut().unwrap_or_else(|shared| {
        let mut copy = BytesMut::with_capacity(shared.len() + ROOM_BYTES);
        copy.put_slice(&shared);
        copy
    });
    record.put_u8(VERSION.0);
    record.put_u8(kind as u8);
    record.put_u64_le(term);
    record.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proposal_with_room_is_not_copied() {
        let mut buffer = Vec::with_capacity(100);
        buffer.extend_from_slice(b"proposal");
        let place = buffer.as_ptr();
        let command = of_proposal(7, buffer.into());
        assert_eq!(command.0.as_ptr(), place);
        assert_eq!(&command.payload()[..], b"proposal");
        let entry = to_entry(3, command.0.clone()).unwrap();
        assert_eq!(entry.log_id, log_id(7, 3));
        assert_eq!(of_entry(&entry).as_ptr(), place);
    }

    #[test]
    fn a_shared_or_full_buffer_is_kept_whole() {
        let shared = Bytes::from_static(b"static");
        assert_eq!(&of_proposal(1, shared).payload()[..], b"static");
        let full = Bytes::from(b"full".to_vec().into_boxed_slice());
        assert_eq!(&of_proposal(1, full).payload()[..], b"full");
    }

    #[test]
    fn bytes_that_are_no_record_are_no_entry() {
        let nonsense = Err(Unreadable::Nonsense { kind: KIND });
        let ends = [
            [0; 10],
            [1, 9, 0, 0, 0, 0, 0, 0, 0, 0],
            [1, 2, 0, 0, 0, 0, 0, 0, 0, 0],
        ];
        for record in [&b""[..], &[0; 8], &[1; 9]]
            .into_iter()
            .chain(ends.iter().map(|end| &end[..]))
        {
            let entry = to_entry(0, Bytes::copy_from_slice(record));
            assert_eq!(entry, nonsense, "{record:?}");
        }
    }

    #[test]
    fn a_record_of_an_unknown_version_is_named() {
        let later = FormatVersion(FormatVersion::NEWEST.0 + 1);
        let mut record = of_proposal(7, "proposal".into()).0.to_vec();
        let place = record.len() - ROOM_BYTES;
        record[place] = later.0;
        let unknown = Err(Unreadable::Version {
            kind: KIND,
            found: later,
            newest: FormatVersion::NEWEST,
        });
        assert_eq!(to_entry(3, record.into()), unknown);
    }
}
