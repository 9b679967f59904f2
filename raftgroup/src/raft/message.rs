//! What replicas of a group say to each other, as bytes.
//!
//! Kept true: every message names the store that the group keeps, so one of
//! another cluster is refused; entries that are taken share the memory of the
//! message.

use std::collections::BTreeSet;

use bytes::Bytes;
use openraft::impls::EmptyNode;

use crate::codec::{Wire, wire};
use crate::format::{FormatVersion, Unreadable};
use crate::raft::record;
use crate::raft::types::{AppendRequest, LogId, Membership, StoredMembership, Vote, log_id};

/// What a replica asks of another.
#[derive(Debug)]
pub(crate) enum Request {
    Append {
        vote: Vote,
        previous: Option<LogId>,
        committed: Option<LogId>,
        records: Vec<Bytes>,
    },
    Vote(Ballot),
    PreVote(Ballot),
    TakeOver {
        vote: Vote,
        to: u64,
        last: Option<LogId>,
    },
    /// Begins the snapshot `id`; whatever began before is given up. What is in
    /// it is of no later version than `formats`.
    SnapshotBegin {
        formats: FormatVersion,
        id: u64,
        vote: Vote,
        last: Option<LogId>,
        membership: StoredMembership,
    },
    SnapshotPiece {
        id: u64,
        number: u64,
        page: u64,
        bytes: Bytes,
    },
    /// All `pieces` were sent.
    SnapshotEnd {
        id: u64,
        pieces: u64,
    },
}

#[derive(Debug)]
pub(crate) struct Ballot {
    pub(crate) vote: Vote,
    pub(crate) last: Option<LogId>,
    pub(crate) transfer: bool,
}

/// What it is answered.
#[derive(Debug)]
pub(crate) enum Answer {
    Appended,
    Conflict,
    HigherVote(Vote),
    Voted {
        vote: Vote,
        granted: bool,
        last: Option<LogId>,
    },
    /// A leadership will be taken over, or a piece of a snapshot was written.
    Taken,
    Installed(Vote),
    /// Nothing was done.
    Refused(String),
}

wire!(enum Request {
    1 => Append { vote, previous, committed, records },
    2 => Vote(ballot),
    3 => PreVote(ballot),
    4 => TakeOver { vote, to, last },
    5 => SnapshotBegin { formats, id, vote, last, membership },
    6 => SnapshotPiece { id, number, page, bytes },
    7 => SnapshotEnd { id, pieces },
});

wire!(struct Ballot { vote, last, transfer });

wire!(enum Answer {
    1 => Appended,
    2 => Conflict,
    3 => HigherVote(vote),
    4 => Voted { vote, granted, last },
    5 => Taken,
    6 => Installed(vote),
    7 => Refused(reason),
});

/// A request of a replica of `store`, as a message.
pub(crate) fn encode(store: u128, request: &Request) -> Bytes {
    let mut out = Vec::with_capacity(64 + request.bytes());
    out.extend_from_slice(&mark(store));
    request.put(&mut out);
    out.into()
}

/// What [`encode`] made, or why it is refused.
pub(crate) fn decode(store: u128, mut message: Bytes) -> Result<Request, String> {
    let mark = mark(store);
    if message.len() < mark.len() {
        return Err("the message is cut off".to_owned());
    }
    if message.split_to(mark.len()) != mark[..] {
        return Err("the message is of another cluster or for another group".to_owned());
    }
    Request::decode(message).ok_or_else(|| "the message makes no sense".to_owned())
}

/// Stands for the store in every message: replicas of one group have copies of
/// one store.
fn mark(store: u128) -> [u8; 8] {
    ((store >> 64) as u64 ^ store as u64).to_le_bytes()
}

impl Request {
    pub(crate) fn append(request: &AppendRequest) -> Self {
        Self::Append {
            vote: request.vote,
            previous: request.prev_log_id,
            committed: request.leader_commit,
            records: request.entries.iter().map(record::of_entry).collect(),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Append { records, .. } => records.iter().map(|record| record.len() + 4).sum(),
            Self::SnapshotPiece { bytes, .. } => bytes.len(),
            _ => 0,
        }
    }
}

/// What [`Request::Append`] asks, in openraft's words, if all entries can be
/// read.
pub(crate) fn append_request(
    vote: Vote,
    previous: Option<LogId>,
    committed: Option<LogId>,
    records: Vec<Bytes>,
) -> Result<AppendRequest, Unreadable> {
    let first = previous.map_or(0, |id| id.index + 1);
    let entries = (first..)
        .zip(records)
        .map(|(index, record)| record::to_entry(index, record));
    Ok(AppendRequest {
        vote,
        prev_log_id: previous,
        entries: entries.collect::<Result<_, _>>()?,
        leader_commit: committed,
    })
}

impl Wire for Vote {
    fn put(&self, out: &mut Vec<u8>) {
        self.leader_id.term.put(out);
        self.leader_id.voted_for.put(out);
        self.committed.put(out);
    }

    fn take(from: &mut Bytes) -> Option<Self> {
        let (term, node) = Wire::take(from)?;
        Some(match bool::take(from)? {
            true => Self::new_committed(term, node),
            false => Self::new(term, node),
        })
    }
}

impl Wire for LogId {
    fn put(&self, out: &mut Vec<u8>) {
        self.leader_id.term.put(out);
        self.index.put(out);
    }

    fn take(from: &mut Bytes) -> Option<Self> {
        let (term, index) = Wire::take(from)?;
        Some(log_id(term, index))
    }
}

impl Wire for Membership {
    fn put(&self, out: &mut Vec<u8>) {
        let quorums = self.get_joint_config().iter();
        let quorums: Vec<Vec<u64>> = quorums.map(|set| set.iter().copied().collect()).collect();
        quorums.put(out);
        let nodes: Vec<u64> = self.nodes().map(|(node, _)| *node).collect();
        nodes.put(out);
    }

    fn take(from: &mut Bytes) -> Option<Self> {
        let quorums = Vec::<Vec<u64>>::take(from)?;
        let quorums: Vec<BTreeSet<u64>> = quorums
            .into_iter()
            .map(|set| set.into_iter().collect())
            .collect();
        let nodes: std::collections::BTreeMap<u64, EmptyNode> = Vec::<u64>::take(from)?
            .into_iter()
            .map(|node| (node, EmptyNode::default()))
            .collect();
        if quorums.is_empty() && nodes.is_empty() {
            return Some(Self::default());
        }
        Self::new(quorums, nodes).ok()
    }
}

impl Wire for StoredMembership {
    fn put(&self, out: &mut Vec<u8>) {
        self.log_id().put(out);
        self.membership().put(out);
    }

    fn take(from: &mut Bytes) -> Option<Self> {
        Some(Self::new(Wire::take(from)?, Wire::take(from)?))
    }
}
