//! What nodes say to each other.
//!
//! Everything is a call with an answer, so that whoever asked knows whether it
//! was heard; only [`Message::Quiet`] and [`Message::Failing`] are just told.

use bytes::Bytes;
use pontoon_engine::{Answer, Range, Reject, Request, Revision};

use crate::codec::wire;
use crate::lease::{LeaseAnswered, LeaseWork};
use crate::ledger::{Ask, Hello, Resolved};
use crate::marks::Marks;
use crate::member::{Counted, MemberReject, MemberWork};
use crate::position::{GroupId, LogIndex, NodeId, Term};
use crate::txn::{TxnAnswered, TxnAsk, TxnGrant, TxnId, TxnWork};
use crate::watch::Pull;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// Between replicas of a group; answered in the same way, without a wrapping.
    Raft { group: GroupId, body: Bytes },
    /// To the sequencer; answered with a [`Heard`].
    Hello(Hello),
    /// To the sequencer; answered with a [`Grant`].
    Ask(Ask),
    /// To the sequencer; answered with a [`Heard`].
    Resolved(Resolved),
    /// From the sequencer; answered with a [`Heard`].
    Marks(Marks),
    /// To the sequencer; answered with an `Option` of a [`ReadPoint`].
    ReadPoint { epoch: Term },
    /// To a group's leader; answered with an [`Outcome`].
    Forward(Forward),
    /// To a group's followers: nothing is happening, let the timers rest.
    Quiet {
        group: GroupId,
        term: Term,
        index: LogIndex,
    },
    /// To the sequencer; answered with a [`crate::txn::TxnAsked`].
    TxnAsk(TxnAsk),
    /// From the sequencer; answered with a [`Heard`].
    TxnGrant(TxnGrant),
    /// From the leader of a range that is to be split: whether its upper half
    /// is copied; answered with a [`Heard`].
    SplitReady { child: GroupId },
    /// Whether a node is a member, or is still counted by some group;
    /// answered with an `Option<bool>`.
    IsMember { node: NodeId },
    /// Whether a node may be given the lead of a group; answered with a
    /// [`Heard`].
    TakesLeads,
    /// This node has failed and will be gone in a moment.
    Failing,
    /// To a node that is believed to lead quiet groups, each in a term;
    /// answered with a `Vec<GroupId>` of those that it doesn't lead.
    Leads { groups: Vec<(GroupId, Term)> },
    /// Whether a transaction that the receiver coordinates is open; answered
    /// with a `bool`.
    IsOpen { txn: TxnId },
    /// What a replica held at an entry; answered with an `Option` of a
    /// [`crate::compare::Compared`].
    Compared { group: GroupId, index: LogIndex },
    /// To a node that has a replica; answered with a [`crate::watch::Piece`].
    Pull(Pull),
    /// To a node that has a replica: what it holds at a revision, with a floor;
    /// answered with an `Option<u64>`.
    Sum {
        group: GroupId,
        /// Version of the map that says where the group is.
        map: u64,
        at: Revision,
        floor: Revision,
    },
}

wire!(enum Message {
    0 => Raft { group, body },
    1 => Hello(hello),
    2 => Ask(ask),
    3 => Resolved(resolved),
    4 => Marks(marks),
    5 => ReadPoint { epoch },
    6 => Forward(forward),
    7 => Quiet { group, term, index },
    8 => TxnAsk(ask),
    9 => TxnGrant(grant),
    10 => SplitReady { child },
    11 => IsMember { node },
    12 => Compared { group, index },
    13 => Failing,
    14 => Leads { groups },
    15 => TakesLeads,
    16 => IsOpen { txn },
    17 => Pull(pull),
    18 => Sum { group, map, at, floor },
});

/// Whether something was taken note of.
pub(crate) type Heard = bool;

/// Answer to an [`Ask`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grant {
    /// These revisions, at this place among the group's grants; `root` is the
    /// sequencer's applied root entry.
    Made {
        first: Revision,
        place: u64,
        root: LogIndex,
    },
    /// The cluster has changed: catch up to this root entry first.
    Stale { root: LogIndex },
    /// Not here, or not any more.
    Ignored,
}

wire!(enum Grant { 0 => Made { first, place, root }, 1 => Stale { root }, 2 => Ignored });

/// A confirmed revision to read at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReadPoint {
    pub(crate) revision: Revision,
    /// The root entry that must be applied where it is used (rule 15).
    pub(crate) root: LogIndex,
}

wire!(struct ReadPoint { revision, root });

/// Work for the leader of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Forward {
    pub(crate) group: GroupId,
    /// Version of the map that it was routed by.
    pub(crate) map: u64,
    pub(crate) work: Work,
}

wire!(struct Forward { group, map, work });

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Evaluated where the writes are.
    Request(Request),
    /// A read at a point that all its groups share; with one group the leader
    /// finds it.
    Read { range: Range, at: Option<ReadPoint> },
    /// Raises the compaction floor; for the root group.
    Compact { revision: Revision },
    /// A part of a transaction over several groups.
    Txn { txn: TxnId, work: TxnWork },
    /// Evaluates, at a point that all its groups share, what changes nothing.
    Look { request: Request, at: ReadPoint },
    /// About leases; for the root group.
    Lease(LeaseWork),
    /// The keys that hang on a lease, at a point.
    LeaseKeys { lease: i64, at: Option<ReadPoint> },
    /// Notes that a range is to be split; for the root group.
    Split { key: Bytes },
    /// The parent's log has the split; for the root group.
    MapSplit { parent: GroupId, child: GroupId },
    /// The parent's log has abandoned the split; for the root group.
    CancelSplit { parent: GroupId, child: GroupId },
    /// Changes the members; for the root group.
    Member(MemberWork),
    /// How a group counts a node.
    Count { id: NodeId },
    /// Hands the leadership over.
    Transfer { to: NodeId },
}

wire!(enum Work {
    0 => Request(request),
    1 => Read { range, at },
    2 => Compact { revision },
    3 => Txn { txn, work },
    4 => Look { request, at },
    5 => Lease(work),
    6 => LeaseKeys { lease, at },
    7 => Split { key },
    8 => MapSplit { parent, child },
    9 => Member(work),
    10 => Count { id },
    11 => Transfer { to },
    12 => CancelSplit { parent, child },
});

impl Work {
    /// Whether it must not wait for what is evaluated, nor depends on where
    /// keys are.
    pub(crate) fn is_aside(&self) -> bool {
        matches!(
            self,
            Self::Txn { .. }
                | Self::Lease(_)
                | Self::Split { .. }
                | Self::MapSplit { .. }
                | Self::CancelSplit { .. }
                | Self::Member(_)
                | Self::Count { .. }
                | Self::Transfer { .. }
        )
    }
}

/// What came of [`Work`].
pub(crate) type Outcome = Result<Done, Declined>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Done {
    pub(crate) answer: Answered,
    /// The entry that has it, or that was applied when it was read.
    pub(crate) index: LogIndex,
}

wire!(struct Done { answer, index });

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answered {
    Answer(Answer),
    /// The newest revision when the floor was raised.
    Compacted(Revision),
    Txn(TxnAnswered),
    /// It would change something.
    Changes,
    Lease(LeaseAnswered),
    Keys(Vec<Bytes>),
    Group(GroupId),
    Counted(Counted),
    Done,
}

wire!(enum Answered {
    0 => Answer(answer),
    1 => Compacted(revision),
    2 => Txn(answered),
    3 => Changes,
    4 => Lease(answered),
    5 => Keys(keys),
    6 => Group(group),
    7 => Counted(counted),
    8 => Done,
});

/// Why work was not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Declined {
    /// The request itself is refused.
    Reject(Reject),
    /// Nothing was done: somebody else leads, if anybody.
    NotLeader(Option<NodeId>),
    /// Nothing was done: try again at once or soon.
    Again,
    TooManyRequests,
    NoSpace,
    Corrupt,
    TooLarge,
    /// Nobody knows whether it was done.
    Unknown,
    /// Nothing was done: the keys are in another group by now.
    Moved,
    /// A change of members is refused.
    Member(MemberReject),
}

wire!(enum Declined {
    0 => Reject(reject),
    1 => NotLeader(leader),
    2 => Again,
    3 => TooManyRequests,
    4 => NoSpace,
    5 => TooLarge,
    6 => Unknown,
    7 => Moved,
    8 => Member(reject),
    9 => Corrupt,
});
