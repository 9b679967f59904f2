//! Transactions over several groups (rule 12): what their parts say to each
//! other, and what a participant keeps.
//!
//! Kept true: a participant's record stays until no participant is undecided
//! and its coordinator has closed it, and one that can't be read is never taken
//! for none, so what was committed is never taken for void.

use bytes::Bytes;
use pontoon_engine::{
    Answer, EngineError, KeyRange, Op, Reject, Request, Revision, Step, Store, Txn,
};

use crate::codec::{Wire, wire};
use crate::command::version_of_all;
use crate::format::{self, Unreadable};
use crate::lease::LeaseName;
use crate::position::{GroupId, LogIndex, NodeId, Term};
use crate::records;

mod coordinate;
mod finish;
mod plan;

pub(crate) use coordinate::Tried;

/// One attempt of a transaction, and its latch in each group: the node that
/// coordinates it, and a random number. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct TxnId(pub(crate) (u64, u64));

wire!(newtype TxnId);

impl TxnId {
    pub(crate) fn coordinator(self) -> NodeId {
        NodeId(self.0.0)
    }
}

/// What a latch holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    Keys(Vec<KeyRange>),
    /// What hangs on a lease, and whatever names it.
    Lease(i64),
}

wire!(enum Hold { 0 => Keys(keys), 1 => Lease(lease) });

/// What a participant is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Ops(Vec<Op>),
    /// Deletes what hangs on a lease; the steps are done with it.
    Revoke(i64, Vec<Step>),
}

wire!(enum Part { 0 => Ops(ops), 1 => Revoke(lease, steps) });

/// Work of a participant's leader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TxnWork {
    /// Holds keys for a while; answered with [`TxnAnswered::Latched`].
    Latch {
        hold: Hold,
        /// Evaluated as soon as they are held.
        probe: Txn,
        within_millis: u64,
    },
    /// Evaluates under the latch; answered with [`TxnAnswered::Evaluated`],
    /// [`TxnAnswered::Refused`] or [`TxnAnswered::Ungranted`].
    Evaluate {
        part: Part,
        /// The newest revision, where it is known.
        newest: Revision,
        /// The revision it will have, where it must be known.
        own: Option<Revision>,
    },
    /// Lets go what was not asked a revision for.
    Unlatch,
    /// Waits for what becomes of it here, for its coordinator, who has it open.
    /// Answered with [`Fate::Void`] if it was never prepared here and never
    /// will be: its record is not forgotten before it is closed. Answered with
    /// [`Fate::Unknown`] if a grant may have been lost: then it is asked again.
    Await {
        /// The session in whose stream the revision was granted, once known.
        granted_in: Option<u64>,
    },
    /// What was decided.
    Decide { revision: Revision, commit: bool },
    /// A participant whose own prepare is undecided asks for the fate of this
    /// one's.
    Inquire {
        revision: Revision,
        participants: Vec<GroupId>,
    },
    /// All participants are decided.
    Forget,
    /// Whether it is undecided here.
    Ask,
    /// Lets go what may have been granted a revision, unless it is prepared;
    /// answered with [`TxnAnswered::Released`].
    Release,
}

wire!(enum TxnWork {
    0 => Latch { hold, probe, within_millis },
    1 => Evaluate { part, newest, own },
    2 => Unlatch,
    3 => Await { granted_in },
    4 => Decide { revision, commit },
    5 => Inquire { revision, participants },
    6 => Forget,
    7 => Ask,
    8 => Release,
});

/// What a participant's leader says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TxnAnswered {
    Latched {
        term: Term,
        verdicts: Answer,
    },
    Evaluated {
        answer: Answer,
        /// How many changes each op makes.
        changes: Vec<u32>,
        leases: Vec<LeaseName>,
        /// The root entry after which it was evaluated.
        root: LogIndex,
    },
    Refused {
        /// Which of its ops.
        at: u32,
        reject: Reject,
    },
    /// It hangs on the revision that the transaction will have.
    Ungranted,
    Fate(Fate),
    Done,
    /// Whether a latch was let go of. If so, the transaction is not prepared in
    /// this group and never will be: a latch is taken once.
    Released(bool),
}

wire!(enum TxnAnswered {
    0 => Latched { term, verdicts },
    1 => Evaluated { answer, changes, leases, root },
    2 => Refused { at, reject },
    3 => Ungranted,
    4 => Fate(fate),
    5 => Done,
    6 => Released(released),
});

/// What became of a transaction in one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Nothing is known here.
    Unknown,
    Prepared,
    Committed,
    Void,
}

wire!(enum Fate { 0 => Unknown, 1 => Prepared, 2 => Committed, 3 => Void });

/// To the sequencer, for the one revision; answered with a [`TxnAsked`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TxnAsk {
    pub(crate) epoch: Term,
    pub(crate) txn: TxnId,
    pub(crate) participants: Vec<Participant>,
    /// The root entry after which all were evaluated (rule 15).
    pub(crate) root: LogIndex,
    pub(crate) leases: Vec<LeaseName>,
    /// Only this revision will do.
    pub(crate) exactly: Option<Revision>,
}

wire!(struct TxnAsk { epoch, txn, participants, root, leases, exactly });

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Participant {
    pub(crate) group: GroupId,
    /// The term in which its latch was taken.
    pub(crate) term: Term,
    /// The places of its changes among all: runs of a first one and a number.
    pub(crate) places: Vec<(u32, u32)>,
}

wire!(struct Participant { group, term, places });

/// What comes of a [`TxnAsk`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TxnAsked {
    /// The revision, and in which session of each participant's leader the
    /// grant was put into its stream; the root group has none.
    Granted(Revision, Vec<(GroupId, u64)>),
    /// Nothing was granted: a term, the cluster or a lease has changed.
    Refused,
}

wire!(enum TxnAsked { 0 => Granted(revision, sessions), 1 => Refused });

/// From the sequencer, in the grant stream of a participant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TxnGrant {
    pub(crate) stamp: crate::ledger::Stamp,
    /// Its place in the stream.
    pub(crate) place: u64,
    pub(crate) txn: TxnId,
    pub(crate) revision: Revision,
    pub(crate) places: Vec<(u32, u32)>,
    pub(crate) participants: Vec<GroupId>,
    pub(crate) root: LogIndex,
}

wire!(struct TxnGrant { stamp, place, txn, revision, places, participants, root });

/// What a participant keeps in its store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TxnRecord {
    pub(crate) fate: Fate,
    pub(crate) revision: Revision,
    pub(crate) participants: Vec<GroupId>,
    /// What is latched while it is undecided.
    pub(crate) keys: Vec<KeyRange>,
    /// What is done when it is committed.
    pub(crate) then: Vec<Step>,
}

wire!(struct TxnRecord { fate, revision, participants, keys, then });

const PREFIX: &[u8] = b"txn/";

impl TxnRecord {
    const KIND: &str = "transaction record";

    fn open(content: Bytes) -> Result<Self, Unreadable> {
        format::open(Self::KIND, content)
    }

    /// The records of a store.
    pub(crate) fn all(store: &Store) -> Result<Vec<(TxnId, Self)>, EngineError> {
        records::read_all(store, PREFIX, |name, content| {
            let id = TxnId::decode(name).ok_or(Unreadable::Nonsense { kind: Self::KIND })?;
            Ok((id, Self::open(content)?))
        })
    }

    /// `None` only if there is no record: whoever hears that may void the
    /// transaction.
    pub(crate) fn of(store: &Store, txn: TxnId) -> Result<Option<Self>, EngineError> {
        records::read(store, &name(txn), Self::open)
    }

    pub(crate) fn step(&self, txn: TxnId) -> Step {
        Step::Record {
            name: name(txn),
            content: Some(format::seal_as(version_of_all(&self.then), self)),
        }
    }
}

/// Removes the record.
pub(crate) fn forget_step(txn: TxnId) -> Step {
    Step::Record {
        name: name(txn),
        content: None,
    }
}

fn name(txn: TxnId) -> Bytes {
    let mut name = PREFIX.to_vec();
    txn.put(&mut name);
    name.into()
}

/// Whether a record, if it is a transaction's, can be decoded.
pub(crate) fn can_read(name: &[u8], content: &Bytes) -> Result<(), Unreadable> {
    let Some(id) = name.strip_prefix(PREFIX) else {
        return Ok(());
    };
    let kind = TxnRecord::KIND;
    TxnId::decode(Bytes::copy_from_slice(id)).ok_or(Unreadable::Nonsense { kind })?;
    TxnRecord::open(content.clone()).map(drop)
}

/// The transaction that a request over several groups is.
pub(crate) fn as_txn(request: &Request) -> Txn {
    match request {
        Request::Txn(txn) => txn.clone(),
        Request::DeleteRange(delete) => Txn {
            success: vec![Op::DeleteRange(delete.clone())],
            ..Txn::default()
        },
        Request::Put(put) => Txn {
            success: vec![Op::Put(put.clone())],
            ..Txn::default()
        },
        Request::Range(range) => Txn {
            success: vec![Op::Range(range.clone())],
            ..Txn::default()
        },
        Request::LeaseRevoke(_) => Txn::default(),
    }
}
