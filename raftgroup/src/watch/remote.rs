//! Parts of a watch whose group has no replica here: their events are pulled
//! from a member that has one, a bounded piece at a time.
//!
//! Kept true:
//! - The state of the watch stays at the member that was asked: which revision
//!   is next, and what was pulled and not delivered. So a piece that is lost,
//!   or that another member gives, neither loses nor doubles an event.
//! - A piece says through which revision it is complete, by what the replica
//!   that gave it has passed (rule 8), and only if that replica has all keys of
//!   the part as the map says.
//! - A piece that shows all entries through an index is complete through every
//!   closed mark at or below that index: so a group that nobody writes to is
//!   not asked again.
//! - Memory: a part has at most one piece that is not delivered, or one in
//!   flight, and a node asks for a bounded number of pieces at a time.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use pontoon_engine::{EngineError, Event, KeyRange, ReadBudget, Reject, Revision, Store};

use crate::codec::wire;
use crate::map::within;
use crate::message::Message;
use crate::mutation::{Mutation, mutated};
use crate::node::Inner;
use crate::position::{GroupId, LogIndex, NodeId};

/// What is read for a piece, unless a single revision is larger.
const PIECE: ReadBudget = ReadBudget {
    bytes_max: 256 << 10,
    changes_max: 1 << 14,
};

/// Revisions of a piece.
const PIECE_REVISIONS_MAX: i64 = 4096;

/// Pieces that a node asks for at a time.
pub(crate) const PIECES_MAX: usize = 64;

/// Before somebody else is asked: nobody has it, or the replica is behind.
const RETRY: Duration = Duration::from_millis(20);

/// Asks for the next events of a part of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pull {
    pub(crate) group: GroupId,
    /// Version of the map that says that the group has the keys.
    pub(crate) map: u64,
    pub(crate) keys: KeyRange,
    /// The first revision.
    pub(crate) from: Revision,
    pub(crate) prev_kv: bool,
    /// The watch was given all there was, at some time: a compaction since
    /// takes nothing from it that is still in memory.
    pub(crate) caught_up: bool,
}

wire!(struct Pull { group, map, keys, from, prev_kv, caught_up });

/// Answer to a [`Pull`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// All events from the wanted revision on, in order.
    Events {
        events: Vec<Event>,
        /// They are complete through this revision; below the wanted one if
        /// there is nothing yet.
        through: Revision,
        /// They show all entries through this one; 0 if there is more to pull.
        index: LogIndex,
    },
    /// The wanted revision is compacted; this one can be watched from.
    Compacted(Revision),
    /// No replica here, or another map: ask again, or another member.
    NotHere,
}

wire!(enum Piece {
    0 => Events { events, through, index },
    1 => Compacted(floor),
    2 => NotHere,
});

/// What was pulled of a part.
#[derive(Default)]
pub(super) struct Pulled {
    /// What is not delivered yet.
    events: VecDeque<Event>,
    /// All events of the part through this revision were pulled.
    pub(super) reach: Revision,
    /// They show all entries through this one.
    index: LogIndex,
    /// A piece is in flight.
    pub(super) asked: bool,
    /// Chooses who is asked; another number is another member.
    source: u64,
}

impl Pulled {
    /// What was pulled of a range counts for what is split off from it, whose
    /// log is another one.
    pub(super) fn of_child(&self) -> Self {
        Self {
            reach: self.reach,
            ..Self::default()
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// How far the part is complete, now that the node was told how far the
    /// group is closed, and has applied `root` of the root group.
    pub(super) fn passed(&self, node: &Inner, group: GroupId, root: LogIndex) -> Revision {
        let newest = node.told.lock().newest(group);
        match newest {
            Some((closed, needs))
                if needs <= root
                    && (closed.index <= self.index && self.index.0 > 0
                        || mutated(Mutation::MarkWithoutEntries)) =>
            {
                closed.revision.max(self.reach)
            }
            _ => self.reach,
        }
    }

    pub(super) fn take(&mut self, through: Revision, events: &mut Vec<Event>) {
        while let Some(event) = self
            .events
            .pop_front_if(|event| event.change.revision <= through)
        {
            events.push(event);
        }
    }

    /// Takes of a piece what is wanted from `from` on; the floor if that is
    /// compacted.
    pub(super) fn came(&mut self, from: Revision, piece: Option<Piece>) -> Option<Revision> {
        match piece {
            Some(Piece::Events {
                mut events,
                through,
                index,
            }) => {
                if through >= from {
                    if !mutated(Mutation::NewSourceBeginsAnew) {
                        events.retain(|event| event.change.revision >= from);
                    }
                    self.events.extend(events);
                    self.reach = self.reach.max(through);
                } else if index <= self.index {
                    // It has no more than was known: perhaps it is behind.
                    self.source = self.source.wrapping_add(1);
                }
                self.index = index;
                None
            }
            Some(Piece::Compacted(floor)) => Some(floor),
            Some(Piece::NotHere) | None => {
                self.source = self.source.wrapping_add(1);
                None
            }
        }
    }
}

impl Inner {
    /// Asks one of the members that have a group for a piece. Who gets nothing
    /// new is answered after a pause.
    pub(super) fn pull(
        self: &Arc<Self>,
        pull: Pull,
        pulled: &Pulled,
    ) -> impl Future<Output = Option<Piece>> + Send + use<> {
        let source = self.source_of(pull.group, pulled.source);
        let (from, index) = (pull.from, pulled.index);
        let node = Arc::clone(self);
        async move {
            let found = match (source, node.pieces.acquire().await) {
                (Some(source), Ok(_permit)) => {
                    let pull = Message::Pull(pull);
                    node.call::<Piece>(source, &pull, node.timing.call).await
                }
                _ => None,
            };
            let is_news = match &found {
                Some(Piece::Events {
                    through,
                    index: shown,
                    ..
                }) => *through >= from || *shown > index,
                Some(Piece::Compacted(_)) => true,
                Some(Piece::NotHere) | None => false,
            };
            if !is_news {
                tokio::time::sleep(RETRY).await;
            }
            found
        }
    }

    /// One of the members that have a group, and are there.
    fn source_of(&self, group: GroupId, number: u64) -> Option<NodeId> {
        let map = self.cluster.borrow().map.clone()?;
        let members = map.placed(group)?.members.iter();
        let alive = members.filter(|node| **node != self.me && self.link.is_alive(**node));
        let alive: Vec<_> = alive.collect();
        // Members begin with different ones.
        let number = number.wrapping_add(self.me.0);
        match alive.len() as u64 {
            0 => None,
            count => Some(*alive[(number % count) as usize]),
        }
    }

    /// Gives a piece of what the replica here has passed.
    pub(crate) fn piece(&self, pull: &Pull) -> Piece {
        let Some(replica) = self.replica(pull.group) else {
            return Piece::NotHere;
        };
        if self.is_failing() {
            return Piece::NotHere;
        }
        // In this order: what is passed has all of the entries, and was about
        // all of the keys if the store still has them afterwards.
        let index = replica.applied();
        let passed = match mutated(Mutation::PieceBeyondPassed) {
            true => self.closed(pull.group),
            false => self.passed(&replica),
        };
        let store = replica.group.store();
        let has_keys = || {
            self.map_version() == Some(pull.map) && within(&pull.keys, &store.bounds())
                || mutated(Mutation::PieceOfOtherKeys)
        };
        let decided = store.undecided().is_empty() || mutated(Mutation::PieceForgetsUndecided);
        if !has_keys() {
            return Piece::NotHere;
        }
        let window = pull.from.0.saturating_add(PIECE_REVISIONS_MAX - 1);
        let last = passed.min(Revision(window));
        let (events, through) = match read(&store, pull, last) {
            Ok(read) => read,
            Err(EngineError::Reject(Reject::Compacted)) => {
                return Piece::Compacted(store.floor().max(self.floor()));
            }
            Err(EngineError::Undecided(_)) => return Piece::NotHere,
            Err(error) => {
                replica.group.report(&error);
                return Piece::NotHere;
            }
        };
        // What was split off meanwhile is gone from the store, or going.
        if !has_keys() {
            return Piece::NotHere;
        }
        let shows_all = decided && through >= passed;
        Piece::Events {
            events,
            through,
            index: if shows_all { index } else { LogIndex(0) },
        }
    }
}

/// Events through `last`, or as many whole revisions as make a piece.
fn read(store: &Store, pull: &Pull, last: Revision) -> Result<(Vec<Event>, Revision), EngineError> {
    if last < pull.from {
        return Ok((Vec::new(), last));
    }
    let within = |last, budget| {
        let Pull {
            keys,
            from,
            prev_kv,
            caught_up,
            ..
        } = pull;
        match store.events_within(keys, *from, last, *prev_kv, budget) {
            Err(EngineError::Reject(Reject::Compacted)) if *caught_up => {
                let recent = store.recent_events_within(keys, *from, last, *prev_kv, budget)?;
                recent.ok_or(Reject::Compacted.into())
            }
            read => read,
        }
    };
    let mut read = within(last, PIECE)?;
    if read.through < pull.from {
        // A revision is never split.
        read = within(pull.from, ReadBudget::UNBOUNDED)?;
    }
    match mutated(Mutation::CutPieceIsComplete) {
        true => Ok((read.events, last)),
        false => Ok((read.events, read.through)),
    }
}
