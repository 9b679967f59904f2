//! The parent with a leader per term, the child, sequencers with their books,
//! one lagging member, and what clients were told.

pub(super) type Rev = u8;
pub(super) type Term = u8;

pub(super) const PARENT: usize = 0;
pub(super) const CHILD: usize = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Key {
    A,
    B,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Entry {
    Write(Key, Rev),
    /// Of B, by a Txn that is not decided; its commit is a write.
    Prepare(Rev),
    Split,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct State {
    /// Root has committed the map in which the child owns B.
    pub(super) map: bool,
    /// By epoch; the last one is elected.
    pub(super) seqs: Vec<Seq>,
    pub(super) groups: [Group; 2],
    pub(super) read: Read,
    pub(super) member: Member,
    /// What the member answered, at which revision, with how many writes.
    pub(super) served: Option<(What, Rev, usize)>,
    pub(super) left: Budget,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Seq {
    pub(super) next: Rev,
    pub(super) mapped: bool,
    pub(super) books: [Option<Book>; 2],
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Book {
    pub(super) outstanding: Vec<Rev>,
    /// The log entry of the last report; the split entry reports nothing.
    pub(super) index: usize,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Group {
    pub(super) log: Vec<Entry>,
    /// By term, beginning at 1; the child has one from its birth.
    pub(super) leaders: Vec<Leader>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Leader {
    pub(super) ready: bool,
    pub(super) applied: usize,
    pub(super) asks: Vec<Ask>,
    pub(super) proposed: Vec<Entry>,
    /// Its node's root replica has the map.
    pub(super) mapped: bool,
    /// To which epoch it announced itself.
    pub(super) epoch: usize,
    /// It proposed the split.
    pub(super) stopped: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Ask {
    pub(super) key: Key,
    /// It is a latch of a Txn, and its grant makes a prepare.
    pub(super) txn: bool,
    pub(super) mapped: bool,
    /// Its grant, on the way.
    pub(super) rev: Option<Rev>,
}

/// A linearizable read of B at a leader of the parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Read {
    Idle,
    Arrived(Term),
    At(Term, Rev),
    Answered(Rev, usize),
}

/// What the member is asked for: a serializable read, or how far a watch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum What {
    ReadB,
    WatchBoth,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Member {
    pub(super) applied: [usize; 2],
    pub(super) mapped: bool,
    pub(super) marks: [Option<Mark>; 2],
    pub(super) passed: [Rev; 2],
    /// A request, and the groups that it needed when it looked.
    pub(super) look: Option<(What, [bool; 2])>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Mark {
    pub(super) closed: Rev,
    pub(super) index: usize,
    /// The root index that it carries has the map.
    pub(super) mapped: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Budget {
    pub(super) root_elections: u8,
    /// Of the parent.
    pub(super) elections: u8,
    pub(super) writes_a: u8,
    pub(super) writes_b: u8,
    /// Writes of B in the parent by Txns.
    pub(super) txns_b: u8,
    pub(super) splits: u8,
    pub(super) reads: u8,
    pub(super) marks: u8,
    pub(super) looks: u8,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) budget: Budget,
    /// Check from every state that the split comes to its end, too.
    pub(super) drain: bool,
}

impl Budget {
    pub(super) const NONE: Budget = Budget {
        root_elections: 0,
        elections: 0,
        writes_a: 0,
        writes_b: 0,
        txns_b: 0,
        splits: 0,
        reads: 0,
        marks: 0,
        looks: 0,
    };
}

impl Bounds {
    pub(super) const QUIET: Bounds = Bounds {
        budget: Budget::NONE,
        drain: false,
    };
}

impl State {
    pub(super) fn init(bounds: &Bounds) -> State {
        let leader = Leader {
            ready: true,
            epoch: 1,
            ..Leader::default()
        };
        let book = Book {
            outstanding: Vec::new(),
            index: 0,
        };
        let seq = Seq {
            next: 1,
            mapped: false,
            books: [Some(book), None],
        };
        let parent = Group {
            log: Vec::new(),
            leaders: vec![leader],
        };
        State {
            map: false,
            seqs: vec![seq],
            groups: [parent, Group::default()],
            read: Read::Idle,
            member: Member::default(),
            served: None,
            left: bounds.budget,
        }
    }

    /// The elected sequencer.
    pub(super) fn seq_mut(&mut self) -> &mut Seq {
        self.seqs.last_mut().expect("one is elected")
    }
}

impl Group {
    pub(super) fn term(&self) -> Term {
        Term::try_from(self.leaders.len()).expect("few elections")
    }

    pub(super) fn leader(&self, term: Term) -> &Leader {
        &self.leaders[usize::from(term) - 1]
    }

    pub(super) fn leader_mut(&mut self, term: Term) -> &mut Leader {
        &mut self.leaders[usize::from(term) - 1]
    }
}

impl Entry {
    pub(super) fn rev(&self) -> Option<Rev> {
        match *self {
            Entry::Write(_, rev) | Entry::Prepare(rev) => Some(rev),
            Entry::Split => None,
        }
    }
}

/// The prepare among these entries that is not decided.
pub(super) fn undecided(log: &[Entry]) -> Option<Rev> {
    let decided = |rev| log.contains(&Entry::Write(Key::B, rev));
    let prepares = log.iter().filter_map(|e| match *e {
        Entry::Prepare(rev) => Some(rev),
        _ => None,
    });
    prepares.filter(|&rev| !decided(rev)).min()
}

/// How many of these entries write one of `keys` at or below `rev`.
pub(super) fn count(log: &[Entry], keys: &[Key], rev: Rev) -> usize {
    let counts =
        |e: &&Entry| matches!(e, Entry::Write(key, at) if keys.contains(key) && *at <= rev);
    log.iter().filter(counts).count()
}
