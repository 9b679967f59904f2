//! Who was granted which revisions, and what is closed: the sequencer's books,
//! without any messages or time.
//!
//! Kept true:
//! - A revision is granted once, and above every earlier one (rule 2: also
//!   above all that an earlier sequencer can have granted).
//! - A grant is outstanding in its group's book from the moment it is made
//!   until the group says that it is applied, or that it never will be.
//! - What is closed stays closed: no group writes at or below its closed
//!   revision again.
//!
//! The numbers of the rules are those of `docs/revisions.md`.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use pontoon_engine::Revision;

use crate::codec::wire;
use crate::lease::LeaseName;
use crate::marks::GroupMark;
use crate::position::{GroupId, LogIndex, NodeId, Term};
use crate::txn::TxnAsk;

/// Who speaks about grants. Whatever doesn't carry the current one is ignored
/// (rule 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// The sequencer's term of the root group.
    pub(crate) epoch: Term,
    pub(crate) group: GroupId,
    /// The group leader's term.
    pub(crate) term: Term,
    /// Counts that leader's attempts in this term.
    pub(crate) session: u64,
}

/// A leader announces itself (rule 4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) stamp: Stamp,
    /// What it was granted and has not applied, first and last of each run.
    pub(crate) pending: Vec<(Revision, Revision)>,
    pub(crate) applied: LogIndex,
}

/// Asks for revisions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ask {
    pub(crate) stamp: Stamp,
    pub(crate) count: u64,
    /// The root entry up to which the asker knew the cluster (rule 15).
    pub(crate) root: LogIndex,
    /// The leases that its writes name: they must be alive.
    pub(crate) leases: Vec<LeaseName>,
    /// What a [`Resolved`] would say now.
    pub(crate) applied: (Revision, LogIndex),
}

/// Everything through a revision is applied, or will never be (rule 7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Resolved {
    pub(crate) stamp: Stamp,
    pub(crate) revision: Revision,
    pub(crate) index: LogIndex,
}

wire!(struct Stamp { epoch, group, term, session });
wire!(struct Hello { stamp, pending, applied });
wire!(struct Ask { stamp, count, root, leases, applied });
wire!(struct Resolved { stamp, revision, index });

/// What comes of an [`Ask`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// These revisions, from the first one on, at this place of the group's
    /// grants.
    Granted(Revision, u64),
    /// The cluster has changed since: look again, in a new session.
    Stale,
    /// First the ceiling must be raised; ask again, in the same order.
    Wait,
    /// It isn't stamped as it should be.
    Ignored,
}

/// What comes of a [`TxnAsk`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TxnEntered {
    /// One revision, outstanding in every participant's book. The grants of
    /// all but the root group are to be sent.
    Granted(Revision, Vec<TxnPlace>),
    /// First the ceiling must be raised; ask again.
    Wait,
    /// Nothing was granted.
    Refused,
}

/// Where the grant of a transaction stands among a participant's grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TxnPlace {
    pub(crate) node: NodeId,
    pub(crate) stamp: Stamp,
    pub(crate) place: u64,
}

/// How far a group is closed, and the log entry that has all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Closed {
    pub(crate) revision: Revision,
    pub(crate) index: LogIndex,
}

/// How far the ceiling is raised above what is granted.
const AHEAD: i64 = 1 << 16;

/// What was done since the node was started, by one ledger after the other.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) grants: AtomicU64,
    pub(crate) revisions: AtomicU64,
    pub(crate) stale: AtomicU64,
    pub(crate) read_points: AtomicU64,
}

impl Tally {
    fn granted(&self, revisions: u64) {
        self.grants.fetch_add(1, Relaxed);
        self.revisions.fetch_add(revisions, Relaxed);
    }
}

/// What stands in the books of a sequencer now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LedgerOpen {
    /// Groups that have announced themselves to it.
    pub groups: usize,
    /// Grants whose revisions are not all known to be applied.
    pub grants: usize,
    /// Revisions from the first of those on.
    pub revisions: i64,
    /// Revisions that can be granted before the ceiling must be raised.
    pub below_ceiling: i64,
}

pub(crate) struct Ledger {
    epoch: Term,
    next: Revision,
    /// As committed in the root log; `None` while there is one group.
    ceiling: Option<Revision>,
    /// The root group's own newest write that is applied.
    root_applied: Revision,
    /// The root entry that last changed what requests are evaluated on.
    changed: LogIndex,
    books: BTreeMap<GroupId, Book>,
    tally: Arc<Tally>,
}

/// What is known of one group in this epoch.
struct Book {
    /// Who announced itself.
    node: NodeId,
    term: Term,
    session: u64,
    /// How many grants were made in this session.
    places: u64,
    /// Nothing more is granted in this session.
    stale: bool,
    /// Runs of revisions, lowest first.
    outstanding: VecDeque<(Revision, Revision)>,
    index: LogIndex,
}

impl Ledger {
    /// For a sequencer that has applied its own first entry. `last` is the
    /// newest revision in the root log, `undecided` are those of transactions
    /// there, `ceiling` is the committed one.
    pub(crate) fn new(
        epoch: Term,
        last: Revision,
        undecided: &[Revision],
        ceiling: Option<Revision>,
        changed: LogIndex,
        applied: LogIndex,
    ) -> Self {
        let root = Book {
            node: NodeId(0),
            term: epoch,
            session: 0,
            places: 0,
            stale: false,
            outstanding: undecided.iter().map(|at| (*at, *at)).collect(),
            index: applied,
        };
        Self {
            epoch,
            next: ceiling.map_or(last, |ceiling| ceiling.max(last)).next(),
            ceiling,
            root_applied: last,
            changed,
            books: BTreeMap::from([(GroupId::ROOT, root)]),
            tally: Arc::default(),
        }
    }

    /// The same, which goes on counting where others have.
    pub(crate) fn counted(self, tally: Arc<Tally>) -> Self {
        Self { tally, ..self }
    }

    pub(crate) fn open(&self) -> LedgerOpen {
        let first = |book: &Book| book.outstanding.front().map(|run| run.0);
        let first = self.books.values().filter_map(first).min();
        let ceiling = self.ceiling.unwrap_or(self.next);
        LedgerOpen {
            groups: self.books.len(),
            grants: self.books.values().map(|book| book.outstanding.len()).sum(),
            revisions: self.next.0 - first.unwrap_or(self.next).0,
            below_ceiling: (ceiling.next().0 - self.next.0).max(0),
        }
    }

    /// The cluster was changed by this root entry (rule 15).
    pub(crate) fn changed(&mut self, index: LogIndex) {
        self.changed = self.changed.max(index);
    }

    /// The ceiling that is committed now.
    pub(crate) fn ceiling_committed(&mut self, ceiling: Revision) {
        self.ceiling = self.ceiling.max(Some(ceiling));
    }

    /// The ceiling that should be proposed, if it is time.
    pub(crate) fn ceiling_wanted(&self) -> Option<Revision> {
        let ceiling = self.ceiling?;
        (self.next.0 + AHEAD / 2 > ceiling.0).then(|| Revision(self.next.0 + AHEAD))
    }

    /// Opens a new book for a group, if the announcement is newer than the
    /// last one (rule 4).
    pub(crate) fn hello(&mut self, node: NodeId, hello: &Hello) -> bool {
        let stamp = hello.stamp;
        if stamp.epoch != self.epoch || stamp.group.is_root() {
            return false;
        }
        if let Some(book) = self.books.get(&stamp.group)
            && (stamp.term, stamp.session) <= (book.term, book.session)
        {
            return false;
        }
        let book = Book {
            node,
            term: stamp.term,
            session: stamp.session,
            places: 0,
            stale: false,
            outstanding: hello.pending.iter().copied().collect(),
            index: hello.applied,
        };
        self.books.insert(stamp.group, book);
        true
    }

    /// Grants revisions to a group; `alive` says whether all leases are that it
    /// names.
    pub(crate) fn ask(&mut self, ask: &Ask, alive: bool) -> Asked {
        let asked = self.enter(ask, alive);
        match asked {
            Asked::Granted(..) => self.tally.granted(ask.count),
            Asked::Stale => _ = self.tally.stale.fetch_add(1, Relaxed),
            Asked::Wait | Asked::Ignored => {}
        }
        asked
    }

    fn enter(&mut self, ask: &Ask, alive: bool) -> Asked {
        let (changed, ceiling, next) = (self.changed, self.ceiling, self.next);
        let Some(book) = self.current(ask.stamp) else {
            return Asked::Ignored;
        };
        book.resolve(ask.applied.0, ask.applied.1);
        // What was asked after something stale was evaluated on it.
        book.stale |= ask.root < changed || !alive;
        if book.stale {
            return Asked::Stale;
        }
        let Ok(count @ 1..) = i64::try_from(ask.count) else {
            return Asked::Ignored;
        };
        let last = Revision(next.0.saturating_add(count - 1));
        if ceiling.is_none_or(|ceiling| last > ceiling) {
            return Asked::Wait;
        }
        let place = book.grant(next, last);
        self.next = last.next();
        Asked::Granted(next, place)
    }

    /// Grants a transaction over several groups its revision (rule 12).
    pub(crate) fn txn(&mut self, ask: &TxnAsk, alive: bool) -> TxnEntered {
        let latched = |group: GroupId, term: Term| match self.books.get(&group) {
            Some(book) => book.term == term && !book.stale,
            None => false,
        };
        let mut participants = ask.participants.iter();
        let refused = ask.epoch != self.epoch
            || ask.root < self.changed
            || !alive
            || ask.exactly.is_some_and(|revision| revision != self.next)
            || !participants.all(|participant| latched(participant.group, participant.term));
        if refused {
            return TxnEntered::Refused;
        }
        let revision = self.next;
        if self.ceiling.is_none_or(|ceiling| revision > ceiling) {
            return TxnEntered::Wait;
        }
        self.next = revision.next();
        self.tally.granted(1);
        let mut places = Vec::new();
        for participant in &ask.participants {
            let group = participant.group;
            let book = self.books.get_mut(&group).expect("it was just looked at");
            let place = book.grant(revision, revision);
            let stamp = Stamp {
                epoch: self.epoch,
                group,
                term: book.term,
                session: book.session,
            };
            if !group.is_root() {
                places.push(TxnPlace {
                    node: book.node,
                    stamp,
                    place,
                });
            }
        }
        TxnEntered::Granted(revision, places)
    }

    /// Revisions for the root group's own writes, which its log confirms and
    /// which need no ceiling.
    pub(crate) fn own(&mut self, count: u64) -> Revision {
        let first = self.next;
        self.tally.granted(count);
        let count = i64::try_from(count).expect("a batch fits in memory");
        self.next = Revision(first.0 + count);
        let root = self.books.get_mut(&GroupId::ROOT).expect("it is there");
        root.outstanding.push_back((first, self.next.previous()));
        first
    }

    /// The revision that [`Ledger::own`] would give next.
    #[cfg(test)]
    pub(crate) fn next(&self) -> Revision {
        self.next
    }

    /// The root group's own writes through `newest` are applied, and decided
    /// through `resolved`.
    pub(crate) fn own_applied(&mut self, newest: Revision, resolved: Revision, index: LogIndex) {
        self.root_has(newest);
        let root = self.books.get_mut(&GroupId::ROOT).expect("it is there");
        root.resolve(resolved, index);
    }

    /// The root group's store has revisions through `newest`, so no other
    /// sequencer will grant them.
    pub(crate) fn root_has(&mut self, newest: Revision) {
        self.root_applied = self.root_applied.max(newest);
    }

    /// What the root group's own writes were given and is not applied will
    /// never be; what is undecided stays.
    pub(crate) fn own_void(&mut self, undecided: &[Revision]) {
        let root = self.books.get_mut(&GroupId::ROOT).expect("it is there");
        root.outstanding = undecided.iter().map(|at| (*at, *at)).collect();
    }

    /// A group reports (rule 7).
    pub(crate) fn resolved(&mut self, resolved: &Resolved) -> bool {
        match self.current(resolved.stamp) {
            Some(book) => {
                book.resolve(resolved.revision, resolved.index);
                true
            }
            None => false,
        }
    }

    /// A revision that every acknowledged write is at or below, if
    /// [`Ledger::root_has`] what is applied after a round that began when it was
    /// asked for (rule 3).
    pub(crate) fn read_point(&self) -> Revision {
        self.next.previous().min(self.limit())
    }

    /// How far a group is closed; not known before its announcement (rule 4).
    #[cfg(test)]
    pub(crate) fn closed(&self, group: GroupId) -> Option<Closed> {
        let book = self.books.get(&group)?;
        let open = book.outstanding.front().map_or(self.next, |run| run.0);
        Some(Closed {
            revision: open.previous().min(self.limit()),
            index: book.index,
        })
    }

    /// What is to be told about each group that has announced itself.
    pub(crate) fn marks(&self) -> impl Iterator<Item = GroupMark> {
        self.books.iter().map(|(group, book)| GroupMark {
            group: *group,
            closed: book
                .outstanding
                .front()
                .map(|run| run.0.previous().min(self.limit())),
            index: book.index,
        })
    }

    /// What a later sequencer is sure to start above (rule 2).
    fn limit(&self) -> Revision {
        match self.ceiling {
            Some(ceiling) => ceiling.max(self.root_applied),
            None => self.root_applied,
        }
    }

    fn current(&mut self, stamp: Stamp) -> Option<&mut Book> {
        if stamp.epoch != self.epoch || stamp.group.is_root() {
            return None;
        }
        let book = self.books.get_mut(&stamp.group)?;
        ((book.term, book.session) == (stamp.term, stamp.session)).then_some(book)
    }
}

impl Book {
    /// Enters a grant; returns its place.
    fn grant(&mut self, first: Revision, last: Revision) -> u64 {
        self.outstanding.push_back((first, last));
        self.places += 1;
        self.places
    }

    fn resolve(&mut self, through: Revision, index: LogIndex) {
        while let Some(run) = self.outstanding.front_mut() {
            if run.1 > through {
                run.0 = run.0.max(through.next());
                break;
            }
            self.outstanding.pop_front();
        }
        self.index = self.index.max(index);
    }
}

#[cfg(test)]
mod tests;
