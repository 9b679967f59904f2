//! What exists in the model: a root group whose leaders are sequencers, data
//! groups with a leader per term, one lagging member with a replica of each
//! group, a network, and what clients were told.
//!
//! Abstractions that keep it small without losing behaviour:
//! - A quorum round is one step, possible while its leader has the newest
//!   term. What it allows may happen at any later time, so a round that began
//!   before an election and ended after it is covered.
//! - A node may lose its lead and win it again: then a deposed leader and a
//!   later one are the same node, and have one store. Which leaders are, only
//!   matters where the rule that a round belongs to a term is removed, and
//!   there any two may be.
//! - A leader of the newest term commits at will. Entries of a deposed leader
//!   that survive its successor's election are those committed just before it,
//!   without its noticing. Ceilings are committed in the root log in this way.
//! - A deposed leader never notices: it goes on with all that needs no quorum.
//! - Messages are lost, doubled and reordered at will, also inside a session,
//!   with one exception that only eventual resolution rests on: what is ignored
//!   because its own Hello is still on the way stays in flight.

use std::fmt;

/// A revision; 0 stands for "none yet".
pub(crate) type Rev = u8;
/// A term of a group; an epoch is a term of the root group. Terms start at 1.
pub(crate) type Term = u8;
/// A position in a group's log: how many entries come before and at it.
pub(crate) type Index = u8;

/// The root group's place in `State::groups`.
pub(crate) const ROOT: usize = 0;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(crate) groups: Vec<Group>,
    /// By epoch, beginning at 1; the last one is the elected one.
    pub(crate) seqs: Vec<Sequencer>,
    /// The ceiling committed in the root log.
    pub(crate) ceiling: Rev,
    /// In flight, sorted. Loss is a message that is never delivered.
    pub(crate) net: Vec<Msg>,
    pub(crate) reads: Vec<Read>,
    pub(crate) member: Member,
    /// The highest revision that any client heard acknowledged.
    pub(crate) acked: Rev,
    /// Root index of the newest Compact that a client heard acknowledged.
    pub(crate) compacted: Index,
    /// The length of each log when the groups were merged.
    pub(crate) merged: Option<Vec<Index>>,
    /// As `Bounds::txns`.
    pub(crate) txns: Vec<Txn>,
    pub(crate) left: Budget,
}

/// An attempt of a Txn over several groups, as its coordinator knows it. Each
/// of the coordinator's steps may stay out for ever: that is its death.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Txn {
    /// In which terms the latches were taken, in participant order.
    pub(crate) terms: Vec<Term>,
    /// The write it does in each participant, as evaluated under the latch.
    pub(crate) writes: Vec<Write>,
    /// Where it asked for its grant; 0 before.
    pub(crate) epoch: Term,
    /// 0 before its grant.
    pub(crate) rev: Rev,
    pub(crate) acked: bool,
    /// The coordinator asks no more what became of it.
    pub(crate) closed: bool,
    /// The coordinator, or somebody who is no participant, was told that it is
    /// void.
    pub(crate) told_void: bool,
}

/// The request id of the first Txn's grants; those of writes are smaller.
pub(crate) const TXN: u8 = 12;
pub(crate) const TXNS_MAX: usize = 2;

/// What may still happen: failures and requests that the bounds allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Budget {
    /// Per group; the root's are sequencer failovers.
    pub(crate) elections: [u8; 3],
    pub(crate) reconnects: u8,
    /// Deliveries that leave a second copy of the message behind.
    pub(crate) copies: u8,
    /// Per group; for the root, its own writes.
    pub(crate) writes: [u8; 3],
    pub(crate) compacts: u8,
    pub(crate) splits: u8,
    pub(crate) merges: u8,
    /// Latches given up by the leader that holds them.
    pub(crate) releases: u8,
    /// Records of decided Txns that are forgotten.
    pub(crate) forgets: u8,
    /// Questions about a Txn that stay in flight for a while.
    pub(crate) late_questions: u8,
    /// Questions of a Txn's coordinator about what became of it.
    pub(crate) settles: u8,
    /// Watermarks that reach the member.
    pub(crate) marks: u8,
    /// Answers and acknowledgements of the lagging member.
    pub(crate) member_answers: u8,
}

/// The bounds of one exploration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) budget: Budget,
    /// The groups that each linearizable read touches.
    pub(crate) reads: &'static [&'static [usize]],
    /// The groups that the lagging member reads.
    pub(crate) member_reads: &'static [usize],
    /// The participants of each Txn, in latch order.
    pub(crate) txns: &'static [&'static [usize]],
    pub(crate) asks_in_flight_max: usize,
    pub(crate) ceiling_start: Rev,
    pub(crate) ceiling_step: Rev,
    pub(crate) data_groups: usize,
    /// Start with every group announced to epoch 1.
    pub(crate) announced: bool,
    /// Start with the root group alone; the others are born by the split.
    pub(crate) one_group: bool,
    /// All writes and Txns are on one key of each group, and each depends on the
    /// one before it; otherwise each has keys of its own.
    pub(crate) one_key: bool,
    /// With `one_key`: only Txns write it; what writes have is elsewhere, but
    /// depends on it.
    pub(crate) writes_elsewhere: bool,
    /// For larger themes: an elected leader applies in the step that commits,
    /// the lagging member applies what a watermark asks for when it comes, and
    /// a Txn takes all its latches in one step, after the grant of the one
    /// before it.
    pub(crate) swift: bool,
    /// Check eventual resolution from every state, too.
    pub(crate) drain: bool,
}

impl Budget {
    pub(crate) const NONE: Budget = Budget {
        elections: [0; 3],
        reconnects: 0,
        copies: 0,
        writes: [0; 3],
        compacts: 0,
        splits: 0,
        merges: 0,
        releases: 0,
        forgets: 0,
        late_questions: 0,
        settles: 0,
        marks: 0,
        member_answers: 0,
    };
}

impl Bounds {
    pub(crate) const QUIET: Bounds = Bounds {
        budget: Budget::NONE,
        reads: &[],
        member_reads: &[],
        txns: &[],
        asks_in_flight_max: 2,
        ceiling_start: 2,
        ceiling_step: 2,
        data_groups: 2,
        announced: true,
        one_group: false,
        one_key: false,
        writes_elsewhere: false,
        swift: false,
        drain: false,
    };
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Group {
    /// Committed entries.
    pub(crate) log: Vec<Entry>,
    /// By term, beginning at 1; the last one is the elected one.
    pub(crate) leaders: Vec<Leader>,
    pub(crate) replica: Replica,
}

/// What an entry does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Write,
    /// As the next two, in the root log only.
    Compact,
    /// The data groups exist from here on; `rev` is the first ceiling.
    Split,
    /// The root group is alone again; `rev` is the floor.
    Merge,
    /// The records of a Txn in each participant. A void may come before its
    /// grant, and then has no place in the order of revisions.
    Prepare(u8),
    Commit(u8),
    Void(u8),
    /// A void that takes the place of the prepare.
    Reach(u8),
    Forget(u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Entry {
    pub(crate) kind: Kind,
    pub(crate) rev: Rev,
    pub(crate) term: Term,
    pub(crate) write: Write,
}

/// What a write needs to be right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Write {
    /// Unique in its group; 0 if nothing depends on it, and stands for "none".
    pub(crate) name: u8,
    /// The name of the write that it was evaluated on, if it depends on one.
    pub(crate) base: Option<u8>,
    /// `State::acked` when the request arrived.
    pub(crate) after: Rev,
    /// Evaluated on root state older than a Compact acknowledged before.
    pub(crate) stale: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Leader {
    /// Its own no-op is applied.
    pub(crate) ready: bool,
    pub(crate) applied: Index,
    /// Appended, not committed.
    pub(crate) proposed: Vec<Entry>,
    /// The Txns whose latch it holds and that it has not prepared, a bit each.
    pub(crate) latched: u8,
    /// What other participants told about each Txn.
    pub(crate) heard: [Heard; TXNS_MAX],
    // What follows is unused in the root group.
    /// The newest epoch after whose discovery a round of this group began.
    pub(crate) learned: Term,
    /// The epoch it announced itself to; 0 before the first.
    pub(crate) epoch: Term,
    pub(crate) session: u8,
    pub(crate) asks_count: u8,
    pub(crate) asks: Vec<Ask>,
    /// The place in the grant stream of this session that it takes next.
    pub(crate) place: u8,
    /// How far its node's root replica has applied.
    pub(crate) root_applied: Index,
}

/// Answers about a Txn, a bit for each participant's group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Heard {
    pub(crate) prepared: u8,
    pub(crate) decided: u8,
    pub(crate) void: bool,
}

/// A grant request that waits for its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Ask {
    pub(crate) id: u8,
    pub(crate) write: Write,
}

/// The lagging member's copy of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Replica {
    pub(crate) applied: Index,
    pub(crate) mark: Option<Mark>,
    pub(crate) passed: Rev,
    /// The highest revision answered or acknowledged from it.
    pub(crate) answered: Rev,
}

/// A watermark: all writes through `closed` are in the log up to `index`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Mark {
    pub(crate) closed: Rev,
    pub(crate) index: Index,
    pub(crate) root: Index,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Sequencer {
    pub(crate) next: Rev,
    /// The committed ceiling as it knows it.
    pub(crate) ceiling: Rev,
    /// By group; none before the group's Hello. The root's is its own log.
    pub(crate) ledgers: Vec<Option<Ledger>>,
    /// Allocated or captured, not confirmed by a round.
    pub(crate) waiting: Vec<Waiting>,
    /// A round began while it was elected. Only the removal of "the round
    /// starts after the allocation" looks at it.
    pub(crate) round_began: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Ledger {
    pub(crate) term: Term,
    pub(crate) session: u8,
    pub(crate) outstanding: Vec<Rev>,
    pub(crate) index: Index,
    /// Requests of this session seen, one bit per id.
    pub(crate) asked: u16,
    /// Grants put into this session's stream.
    pub(crate) places: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Waiting {
    Grant(Grant),
    ReadPoint { read: usize },
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Stamp {
    pub(crate) epoch: Term,
    pub(crate) group: usize,
    pub(crate) term: Term,
    pub(crate) session: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Grant {
    pub(crate) stamp: Stamp,
    /// In the grant stream of that stamp.
    pub(crate) place: u8,
    pub(crate) id: u8,
    pub(crate) rev: Rev,
}

/// What became of a Txn, a participant's leader asks the leader of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Question {
    pub(crate) txn: u8,
    pub(crate) from: usize,
    pub(crate) term: Term,
    /// The asker's own prepare is undecided.
    pub(crate) undecided: bool,
    pub(crate) to: usize,
    pub(crate) rev: Rev,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Msg {
    Hello {
        stamp: Stamp,
        pending: Vec<Rev>,
        index: Index,
    },
    Ask {
        stamp: Stamp,
        id: u8,
        root: Index,
    },
    Grant(Grant),
    Refused {
        stamp: Stamp,
        id: u8,
    },
    Resolved {
        stamp: Stamp,
        rev: Rev,
        index: Index,
    },
    /// The grant of `rev` will not be used.
    Void {
        stamp: Stamp,
        rev: Rev,
    },
    Question(Question),
}

/// A linearizable read. Its read point travels inside it: a delayed or lost
/// answer is a read that proceeds later or never.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Read {
    pub(crate) phase: Phase,
    /// `State::acked` and `State::compacted` when it arrived.
    pub(crate) after: Rev,
    pub(crate) compacted: Index,
    pub(crate) parts: Vec<Part>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    Idle,
    Arrived,
    /// The sequencer was asked for a read point.
    Asked,
    /// A round of this epoch began when the root log was this long.
    Confirmed {
        epoch: Term,
        index: Index,
    },
    At {
        rev: Rev,
        root: Index,
    },
}

/// What one group does for a read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Part {
    pub(crate) group: usize,
    /// Terms whose leader began a round after the capture, one bit per term.
    pub(crate) rounds: u8,
    /// The leader that the read point reached; 0 before.
    pub(crate) term: Term,
    /// Requests whose answers it waits for.
    pub(crate) awaits: Vec<u8>,
    /// The Txns in the way when the point reached the leader, a bit each.
    pub(crate) awaits_txns: u8,
    pub(crate) answer: Option<Answer>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Answer {
    /// How many writes the snapshot held.
    pub(crate) writes_count: usize,
    pub(crate) stale: bool,
}

/// What the lagging member told its clients last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Member {
    /// Revision and, per group it touched, the number of writes seen.
    pub(crate) served: Option<(Rev, Vec<(usize, usize)>)>,
    /// A header went back.
    pub(crate) went_back: bool,
}

impl State {
    pub(crate) fn init(bounds: &Bounds) -> State {
        let announced = u8::from(bounds.announced && !bounds.one_group);
        let ceiling = if bounds.one_group {
            0
        } else {
            bounds.ceiling_start
        };
        let groups = 1 + bounds.data_groups;
        let leader = Leader {
            learned: announced,
            epoch: announced,
            session: announced,
            ..Leader::new(true)
        };
        let group = Group {
            log: Vec::new(),
            leaders: vec![leader],
            replica: Replica {
                applied: 0,
                mark: None,
                passed: 0,
                answered: 0,
            },
        };
        let ledger = Ledger {
            term: 1,
            session: 1,
            outstanding: Vec::new(),
            index: 0,
            asked: 0,
            places: 0,
        };
        let ledger = (announced > 0).then_some(ledger);
        let seq = Sequencer {
            next: 1,
            ceiling,
            ledgers: (0..groups)
                .map(|g| ledger.clone().filter(|_| g != ROOT))
                .collect(),
            waiting: Vec::new(),
            round_began: false,
        };
        let read = |groups: &&'static [usize]| Read {
            phase: Phase::Idle,
            after: 0,
            compacted: 0,
            parts: groups.iter().map(|&group| Part::of(group)).collect(),
        };
        State {
            groups: vec![group; groups],
            seqs: vec![seq],
            ceiling,
            net: Vec::new(),
            reads: bounds.reads.iter().map(read).collect(),
            member: Member::default(),
            acked: 0,
            compacted: 0,
            merged: None,
            txns: vec![Txn::default(); bounds.txns.len()],
            left: bounds.budget,
        }
    }

    pub(crate) fn epoch(&self) -> Term {
        self.groups[ROOT].term()
    }

    pub(crate) fn seq(&self, epoch: Term) -> &Sequencer {
        &self.seqs[usize::from(epoch) - 1]
    }

    pub(crate) fn seq_mut(&mut self, epoch: Term) -> &mut Sequencer {
        &mut self.seqs[usize::from(epoch) - 1]
    }

    pub(crate) fn send(&mut self, msg: Msg) {
        let at = self.net.partition_point(|m| *m < msg);
        self.net.insert(at, msg);
    }

    /// The committed revisions of each group, for people.
    pub(crate) fn logs(&self) -> String {
        let revs = |g: &Group| g.log.iter().filter_map(Entry::visible).collect::<Vec<_>>();
        let logs: Vec<_> = self.groups.iter().map(revs).collect();
        format!("root {:?}, data {:?}", logs[ROOT], &logs[ROOT + 1..])
    }
}

impl Group {
    pub(crate) fn term(&self) -> Term {
        Term::try_from(self.leaders.len()).expect("few elections")
    }

    pub(crate) fn leader(&self, term: Term) -> &Leader {
        &self.leaders[usize::from(term) - 1]
    }

    pub(crate) fn leader_mut(&mut self, term: Term) -> &mut Leader {
        &mut self.leaders[usize::from(term) - 1]
    }

    pub(crate) fn len(&self) -> Index {
        Index::try_from(self.log.len()).expect("few entries")
    }

    /// How many of the first `applied` entries are writes at or below `rev`.
    pub(crate) fn writes_through(&self, applied: Index, rev: Rev) -> usize {
        let applied = &self.log[..usize::from(applied)];
        applied
            .iter()
            .filter_map(Entry::visible)
            .filter(|&r| r <= rev)
            .count()
    }

    /// Entries that the leader of `term` holds and has not applied: what it
    /// knows as committed, which before its no-op is nothing, and its proposals.
    pub(crate) fn unapplied(&self, term: Term) -> impl Iterator<Item = &Entry> {
        let leader = self.leader(term);
        let known = &self.log[usize::from(leader.applied)..];
        let known = known.iter().filter(move |e| leader.ready && e.term <= term);
        known.chain(&leader.proposed)
    }

    pub(crate) fn applied(&self, term: Term) -> &[Entry] {
        &self.log[..usize::from(self.leader(term).applied)]
    }

    /// What the leader of `term` applied or holds.
    pub(crate) fn held(&self, term: Term) -> impl Iterator<Item = &Entry> {
        self.applied(term).iter().chain(self.unapplied(term))
    }

    /// The name of the last write that is visible in what the leader of `term`
    /// applied or holds.
    pub(crate) fn last_name(&self, term: Term) -> u8 {
        let visible = self.held(term).filter(|e| e.visible().is_some());
        let names = visible.map(|e| e.write.name).filter(|&name| name > 0);
        names.last().unwrap_or(0)
    }
}

impl Entry {
    /// The revision, if its place in the log follows it.
    pub(crate) fn ordered(&self) -> Option<Rev> {
        let ordered = matches!(self.kind, Kind::Write | Kind::Prepare(_) | Kind::Reach(_));
        ordered.then_some(self.rev)
    }

    /// The revision, if the entry makes a write visible.
    pub(crate) fn visible(&self) -> Option<Rev> {
        matches!(self.kind, Kind::Write | Kind::Commit(_)).then_some(self.rev)
    }

    /// The Txn that the entry is about.
    pub(crate) fn txn(&self) -> Option<u8> {
        match self.kind {
            Kind::Prepare(t)
            | Kind::Commit(t)
            | Kind::Void(t)
            | Kind::Reach(t)
            | Kind::Forget(t) => Some(t),
            _ => None,
        }
    }
}

impl Leader {
    pub(crate) fn new(ready: bool) -> Leader {
        Leader {
            ready,
            applied: 0,
            proposed: Vec::new(),
            latched: 0,
            heard: [Heard::default(); TXNS_MAX],
            learned: 0,
            epoch: 0,
            session: 0,
            asks_count: 0,
            asks: Vec::new(),
            place: 0,
            root_applied: 0,
        }
    }

    pub(crate) fn stamp(&self, group: usize, term: Term) -> Stamp {
        Stamp {
            epoch: self.epoch,
            group,
            term,
            session: self.session,
        }
    }
}

impl fmt::Debug for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Stamp {
            epoch,
            group,
            term,
            session,
        } = self;
        write!(
            f,
            "epoch {epoch} group {group} term {term} session {session}"
        )
    }
}

impl Part {
    fn of(group: usize) -> Part {
        Part {
            group,
            rounds: 0,
            term: 0,
            awaits: Vec::new(),
            awaits_txns: 0,
            answer: None,
        }
    }
}

impl Msg {
    /// None for what goes from leader to leader.
    pub(crate) fn stamp(&self) -> Option<Stamp> {
        match *self {
            Msg::Hello { stamp, .. }
            | Msg::Ask { stamp, .. }
            | Msg::Grant(Grant { stamp, .. })
            | Msg::Refused { stamp, .. }
            | Msg::Resolved { stamp, .. }
            | Msg::Void { stamp, .. } => Some(stamp),
            Msg::Question(_) => None,
        }
    }
}
