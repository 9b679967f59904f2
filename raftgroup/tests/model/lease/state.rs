//! The root log with what it says of the lease, two data groups of which the
//! second is born by a split of the first, and what clients were told.

/// Which grant of the lease id.
pub(crate) type Life = u8;
pub(crate) type Term = u8;
pub(crate) type Time = u8;

pub(crate) const TTL: Time = 2;
/// The group that is split, and the one that is born.
pub(crate) const PARENT: usize = 0;
pub(crate) const CHILD: usize = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum RootEntry {
    Grant(Life),
    Register(Life, usize),
    Revoking {
        life: Life,
        expired: bool,
    },
    Gone(Life),
    /// The child owns its half.
    Map,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Entry {
    /// A put of a new key with the lease.
    Attach(Life),
    /// A put of an attached key without it.
    Detach(Life),
    /// An attach as part of a user's Txn, and its decision.
    Prepare(Life),
    Commit(Life),
    /// The end of the lease here, with the count of keys that were to go.
    Delete(Life, u8),
    /// All attached keys are the child's.
    Split,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(crate) log: Vec<RootEntry>,
    /// By epoch, beginning at 1.
    pub(crate) roots: Vec<Root>,
    pub(crate) groups: [Group; 2],
    pub(crate) now: Time,
    pub(crate) keepalive: Option<Keepalive>,
    /// The client was promised the lease until then.
    pub(crate) promised: Time,
    /// A keepalive was acknowledged that came after the revoke.
    pub(crate) kept_dead: bool,
    pub(crate) left: Budget,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Root {
    pub(crate) applied: usize,
    /// How much of the log it knows as committed.
    pub(crate) known: usize,
    pub(crate) proposed: Vec<RootEntry>,
    pub(crate) deadline: Time,
    pub(crate) attempt: Option<Attempt>,
    pub(crate) attempts_count: u8,
}

/// One try to end the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Attempt {
    /// Its latch id; later ones are larger.
    pub(crate) id: u8,
    pub(crate) life: Life,
    /// The groups that were registered when it began.
    pub(crate) began_with: [bool; 2],
    /// Per group the term of the latch and the count of attached keys.
    pub(crate) answers: [Option<(Term, u8)>; 2],
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Group {
    pub(crate) log: Vec<Entry>,
    /// By term, beginning at 1; none before the group is born.
    pub(crate) leaders: Vec<Leader>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Leader {
    pub(crate) ready: bool,
    pub(crate) applied: usize,
    /// Asked, in order; the flag says that the grant is on its way.
    pub(crate) asks: Vec<(Entry, bool)>,
    pub(crate) proposed: Vec<Entry>,
    /// How far its node's root replica has applied.
    pub(crate) root: usize,
    /// The attempt whose lease latch it holds, and for which life.
    pub(crate) latch: Option<(u8, Life)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Keepalive {
    pub(crate) epoch: Term,
    pub(crate) arrived: Time,
    /// A root round that began after it arrived succeeded.
    pub(crate) rounded: bool,
    /// The revoke was committed when it arrived.
    pub(crate) dead: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Budget {
    pub(crate) root_elections: u8,
    pub(crate) elections: u8,
    pub(crate) puts: u8,
    /// Puts as parts of Txns.
    pub(crate) staged: u8,
    pub(crate) detaches: u8,
    pub(crate) revokes: u8,
    pub(crate) regrants: u8,
    pub(crate) splits: u8,
    pub(crate) keepalives: u8,
    pub(crate) ticks: u8,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) budget: Budget,
    /// Start with the parent registered.
    pub(crate) registered: bool,
    /// Check from every state that a revoke comes to its end, too.
    pub(crate) drain: bool,
}

impl Budget {
    pub(crate) const NONE: Budget = Budget {
        root_elections: 0,
        elections: 0,
        puts: 0,
        staged: 0,
        detaches: 0,
        revokes: 0,
        regrants: 0,
        splits: 0,
        keepalives: 0,
        ticks: 0,
    };
}

impl Bounds {
    pub(crate) const QUIET: Bounds = Bounds {
        budget: Budget::NONE,
        registered: true,
        drain: false,
    };
}

impl State {
    pub(crate) fn init(bounds: &Bounds) -> State {
        let mut log = vec![RootEntry::Grant(1)];
        if bounds.registered {
            log.push(RootEntry::Register(1, PARENT));
        }
        let root = Root {
            applied: log.len(),
            known: log.len(),
            deadline: TTL,
            ..Root::default()
        };
        let leader = Leader {
            ready: true,
            root: log.len(),
            ..Leader::default()
        };
        let parent = Group {
            log: Vec::new(),
            leaders: vec![leader],
        };
        State {
            log,
            roots: vec![root],
            groups: [parent, Group::default()],
            now: 0,
            keepalive: None,
            promised: TTL,
            kept_dead: false,
            left: bounds.budget,
        }
    }

    pub(crate) fn epoch(&self) -> Term {
        Term::try_from(self.roots.len()).expect("few elections")
    }

    pub(crate) fn root(&self, epoch: Term) -> &Root {
        &self.roots[usize::from(epoch) - 1]
    }

    pub(crate) fn root_mut(&mut self, epoch: Term) -> &mut Root {
        &mut self.roots[usize::from(epoch) - 1]
    }

    pub(crate) fn root_applied(&self, epoch: Term) -> &[RootEntry] {
        &self.log[..self.root(epoch).applied]
    }

    /// What this root leader applied or holds.
    pub(crate) fn root_held(&self, epoch: Term) -> impl Iterator<Item = RootEntry> + Clone {
        let root = self.root(epoch);
        self.log[..root.known].iter().chain(&root.proposed).copied()
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

    pub(crate) fn applied(&self, term: Term) -> &[Entry] {
        &self.log[..self.leader(term).applied]
    }
}

impl Entry {
    /// It names the lease or touches a key attached to it.
    pub(crate) fn concerns(&self, of: Life) -> bool {
        match *self {
            Entry::Attach(life)
            | Entry::Detach(life)
            | Entry::Prepare(life)
            | Entry::Commit(life)
            | Entry::Delete(life, _) => life == of,
            Entry::Split => false,
        }
    }
}

/// How many keys these entries leave attached.
pub(crate) fn attached(entries: &[Entry], of: Life) -> u8 {
    entries.iter().fold(0, |count: u8, entry| match *entry {
        Entry::Attach(life) | Entry::Commit(life) if life == of => count + 1,
        Entry::Detach(life) if life == of => count.saturating_sub(1),
        Entry::Delete(life, _) if life == of => 0,
        Entry::Split => 0,
        _ => count,
    })
}

/// A Txn's attach is staged and not decided.
pub(crate) fn staged(entries: &[Entry], of: Life) -> bool {
    entries.iter().fold(false, |open, entry| match *entry {
        Entry::Prepare(life) if life == of => true,
        Entry::Commit(life) if life == of => false,
        _ => open,
    })
}

/// The newest life, and whether it is neither revoking nor gone.
pub(crate) fn newest(log: impl Iterator<Item = RootEntry>) -> (Life, bool) {
    log.fold((0, false), |(newest, alive), entry| match entry {
        RootEntry::Grant(life) => (life, true),
        RootEntry::Revoking { life, .. } | RootEntry::Gone(life) if life == newest => {
            (newest, false)
        }
        _ => (newest, alive),
    })
}
