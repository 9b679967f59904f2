//! A group just born is a Raft group that keeps its promises from its first
//! election on, and what it was born with is never lost.
//!
//! The split entry is committed in the parent's log. Each of three nodes
//! applies it, or gets a snapshot of the parent past it. The child is Raft as
//! in the paper, with votes and logs; what it was born with comes before its
//! first entry. A shed entry in the parent drops the frozen half, which until
//! then is part of the parent's snapshots.

use crate::proof::{holds, rules};
use crate::search::Protocol;

type Term = u8;
const NODES: usize = 3;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    nodes: [Node; NODES],
    /// The shed entry is committed in the parent.
    shed: bool,
    /// The longest log that was committed in the child: the terms of its entries.
    committed: Vec<Term>,
    /// Who was elected, by term.
    elected: Vec<Option<usize>>,
    broken: Option<Promise>,
    left: Budget,
}

/// How far a node's replica of the parent has applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Parent {
    #[default]
    Whole,
    /// Its bounds are shrunk, it has the frozen half.
    Split,
    Shed,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Node {
    lost: bool,
    parent: Parent,
    child: Option<Child>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Child {
    /// It has what the group was born with: applied (term 0, index 0).
    data: bool,
    /// That is on disk as its own, not only in the parent's frozen half. No log
    /// has it.
    durable: bool,
    term: Term,
    voted: Option<usize>,
    log: Vec<Term>,
    /// Of a candidate, who voted for it, a bit each.
    votes: u8,
    leads: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Budget {
    campaigns: u8,
    /// Nodes that are gone for ever.
    losses: u8,
    /// Restarts from a checkpoint of the parent before the split entry.
    replays: u8,
    /// Restarts without what is not on disk.
    crashes: u8,
}

#[derive(Clone, Copy, Debug)]
struct Bounds {
    budget: Budget,
}

impl Budget {
    const NONE: Budget = Budget {
        campaigns: 0,
        losses: 0,
        replays: 0,
        crashes: 0,
    };
}

impl Bounds {
    const QUIET: Bounds = Bounds {
        budget: Budget::NONE,
    };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Promise {
    OneLeaderPerTerm,
    LeadersHaveAll,
    BirthNotLost,
}

#[derive(Clone, Copy, Debug)]
enum Action {
    ApplySplit(usize),
    ApplyShed(usize),
    /// To the first from the second.
    Snapshot(usize, usize),
    Replay(usize),
    Checkpoint(usize),
    Crash(usize),
    Lose(usize),
    Shed,
    Campaign(usize),
    /// The first votes for the second.
    Vote(usize, usize),
    Lead(usize),
    /// From the first to the second.
    Append(usize, usize),
    Commit(usize),
}

struct Model {
    rules: Rules,
    bounds: Bounds,
}

impl Protocol for Model {
    type State = State;
    type Action = Action;
    type Promise = Promise;

    fn init(&self) -> State {
        State {
            nodes: Default::default(),
            shed: false,
            committed: Vec::new(),
            elected: Vec::new(),
            broken: None,
            left: self.bounds.budget,
        }
    }

    fn enabled(&self, s: &State) -> Vec<Action> {
        let mut out = Vec::new();
        let up = |n: &usize| !s.nodes[*n].lost;
        let pairs = (0..NODES).flat_map(|a| (0..NODES).map(move |b| (a, b)));
        let pairs = pairs.filter(|(a, b)| a != b && up(a) && up(b));
        for (a, b) in pairs {
            let drops = s.nodes[b].parent == Parent::Shed && self.needs_frozen_half(&s.nodes[a]);
            if s.nodes[a].parent < s.nodes[b].parent && !drops {
                out.push(Action::Snapshot(a, b));
            }
            if self.may_vote(s, a, b) {
                out.push(Action::Vote(a, b));
            }
            if self.may_append(s, a, b) {
                out.push(Action::Append(a, b));
            }
        }
        for n in (0..NODES).filter(up) {
            let node = &s.nodes[n];
            match node.parent {
                Parent::Whole => out.push(Action::ApplySplit(n)),
                Parent::Split if s.shed && !self.needs_frozen_half(node) => {
                    out.push(Action::ApplyShed(n));
                }
                _ => {}
            }
            if node.parent == Parent::Split && s.left.replays > 0 {
                out.push(Action::Replay(n));
            }
            if s.left.losses > 0 {
                out.push(Action::Lose(n));
            }
            let Some(child) = &node.child else { continue };
            if child.data && !child.durable {
                out.push(Action::Checkpoint(n));
                if s.left.crashes > 0 && node.parent == Parent::Shed {
                    out.push(Action::Crash(n));
                }
            }
            let full = child.data || !self.rules.empty_never_campaigns;
            if full && s.left.campaigns > 0 {
                out.push(Action::Campaign(n));
            }
            if !child.leads && majority(child.votes.count_ones()) {
                out.push(Action::Lead(n));
            }
            if child.leads && self.may_commit(s, n) {
                out.push(Action::Commit(n));
            }
        }
        let ripe = !s.committed.is_empty() || !self.rules.shed_after_childs_own_entry;
        let split = s.nodes.iter().any(|n| n.parent == Parent::Split);
        if !s.shed && ripe && split {
            out.push(Action::Shed);
        }
        out
    }

    fn act(&self, s: &mut State, action: Action) {
        match action {
            Action::ApplySplit(n) => {
                s.nodes[n].parent = Parent::Split;
                self.bear(&mut s.nodes[n]);
            }
            Action::ApplyShed(n) => s.nodes[n].parent = Parent::Shed,
            Action::Snapshot(to, from) => {
                let parent = s.nodes[from].parent;
                let node = &mut s.nodes[to];
                node.parent = parent;
                if parent == Parent::Split && self.rules.snapshot_has_frozen_half {
                    self.bear(node);
                } else {
                    // From the root map.
                    node.child.get_or_insert_default();
                }
            }
            Action::Replay(n) => {
                s.left.replays -= 1;
                s.nodes[n].parent = Parent::Whole;
                if let Some(child) = &mut s.nodes[n].child {
                    child.leads = false;
                    child.votes = 0;
                }
            }
            Action::Checkpoint(n) => {
                let child = s.nodes[n].child.as_mut().expect("enabled only with one");
                child.durable = true;
            }
            Action::Crash(n) => {
                s.left.crashes -= 1;
                let child = s.nodes[n].child.as_mut().expect("enabled only with one");
                child.data = false;
                child.leads = false;
                child.votes = 0;
            }
            Action::Lose(n) => {
                s.left.losses -= 1;
                s.nodes[n].lost = true;
            }
            Action::Shed => s.shed = true,
            Action::Campaign(n) => {
                s.left.campaigns -= 1;
                let child = s.nodes[n].child.as_mut().expect("enabled only with one");
                child.term += 1;
                child.voted = Some(n);
                child.votes = 1 << n;
                child.leads = false;
            }
            Action::Vote(n, candidate) => {
                let term = term_of(s, candidate);
                let voter = s.nodes[n].child.get_or_insert_default();
                *voter = Child {
                    term,
                    voted: Some(candidate),
                    votes: 0,
                    leads: false,
                    ..voter.clone()
                };
                let winner = s.nodes[candidate].child.as_mut();
                winner.expect("a candidate").votes |= 1 << n;
            }
            Action::Lead(n) => lead(s, n),
            Action::Append(from, to) => {
                let leader = s.nodes[from].child.clone().expect("a leader");
                let node = s.nodes[to].child.as_mut().expect("heeded only with one");
                // One that is empty doesn't have (term 0, index 0), before which
                // no entry is: it gets a snapshot.
                let given = self.rules.empty_gets_snapshot && leader.data;
                *node = Child {
                    data: node.data || given,
                    durable: node.durable || given,
                    term: leader.term,
                    voted: node.voted.filter(|_| node.term == leader.term),
                    log: leader.log,
                    votes: 0,
                    leads: false,
                };
            }
            Action::Commit(n) => {
                let log = &s.nodes[n].child.as_ref().expect("a leader").log;
                s.committed = log.clone();
            }
        }
        // What was committed is on a node that has nothing to apply it to.
        let hollow = |n: &Node| {
            n.child
                .as_ref()
                .is_some_and(|c| !c.data && !c.log.is_empty())
        };
        if s.nodes.iter().any(hollow) {
            s.broken = s.broken.or(Some(Promise::LeadersHaveAll));
        }
    }

    fn broken(&self, s: &State) -> Option<Promise> {
        let hopeless = |n: &Node| {
            let data = n.child.as_ref().is_some_and(|c| c.data);
            n.lost || (n.parent != Parent::Whole && !data)
        };
        let lost = s
            .nodes
            .iter()
            .all(hopeless)
            .then_some(Promise::BirthNotLost);
        s.broken.or(lost)
    }

    fn fulfilled(&self, s: &State) -> bool {
        s.left == Budget::NONE && s.shed && !s.committed.is_empty()
    }

    fn label(&self, _: &State, action: Action) -> String {
        format!("{action:?}")
    }

    fn summary(&self, s: &State) -> String {
        format!("{:?}", s.nodes)
    }
}

impl Model {
    /// What the child was born with is on this node's disk nowhere else.
    fn needs_frozen_half(&self, node: &Node) -> bool {
        let alone = node.child.as_ref().is_some_and(|c| c.data && !c.durable);
        alone && self.rules.shed_when_child_is_on_disk
    }

    /// The parent's replica here has the child's half: the child's is made of
    /// it, unless it is there and knows more.
    fn bear(&self, node: &mut Node) {
        let known = node
            .child
            .take()
            .filter(|_| self.rules.birth_keeps_what_is_there);
        node.child = Some(Child {
            data: true,
            durable: known.as_ref().is_some_and(|c| c.durable) || self.bounds.budget.crashes == 0,
            ..known.unwrap_or_default()
        });
    }

    fn may_vote(&self, s: &State, n: usize, candidate: usize) -> bool {
        let Some(asks) = &s.nodes[candidate].child else {
            return false;
        };
        if asks.votes == 0 || asks.leads || asks.votes & (1 << n) != 0 {
            return false;
        }
        match &s.nodes[n].child {
            None => !self.rules.message_makes_no_replica,
            Some(voter) => {
                let free =
                    asks.term > voter.term || (asks.term == voter.term && voter.voted.is_none());
                free && position(asks) >= position(voter)
            }
        }
    }

    fn may_append(&self, s: &State, from: usize, to: usize) -> bool {
        match (&s.nodes[from].child, &s.nodes[to].child) {
            (Some(leader), Some(node)) if leader.leads => {
                let news = leader.log != node.log || leader.term > node.term;
                leader.term >= node.term && !node.leads && news
            }
            _ => false,
        }
    }

    fn may_commit(&self, s: &State, n: usize) -> bool {
        let leader = s.nodes[n].child.as_ref().expect("a leader");
        let has = |node: &&Node| {
            let child = node.child.as_ref();
            child.is_some_and(|c| c.term == leader.term && c.log == leader.log)
        };
        let count = s.nodes.iter().filter(has).count();
        leader.log.len() > s.committed.len() && majority(u32::try_from(count).expect("few"))
    }
}

fn lead(s: &mut State, n: usize) {
    let child = s.nodes[n].child.as_mut().expect("a candidate");
    child.leads = true;
    let term = usize::from(child.term);
    let earlier = s.committed.last().is_some_and(|&t| t < child.term);
    if s.elected.len() <= term {
        s.elected.resize(term + 1, None);
    }
    if s.elected[term].is_some_and(|other| other != n) {
        s.broken = Some(Promise::OneLeaderPerTerm);
    } else if !child.data || (earlier && !child.log.starts_with(&s.committed)) {
        s.broken = Some(Promise::LeadersHaveAll);
    }
    s.elected[term] = Some(n);
    child.log.push(child.term);
}

fn term_of(s: &State, n: usize) -> Term {
    s.nodes[n].child.as_ref().map_or(0, |c| c.term)
}

fn position(child: &Child) -> (bool, Term, usize) {
    let last = child.log.last().copied().unwrap_or(0);
    (child.data, last, child.log.len())
}

fn majority(count: u32) -> bool {
    count as usize > NODES / 2
}

rules! {
    /// The parent's snapshots have the frozen half until it is shed.
    snapshot_has_frozen_half: breaks(BirthNotLost)
        { campaigns: 1, losses: 1 };
    /// It is shed when the child's leader has committed an entry of its own.
    shed_after_childs_own_entry: breaks(BirthNotLost)
        { campaigns: 1, losses: 1 };
    /// A node drops its frozen half, by the shed entry or by a snapshot past it,
    /// when its child's is on disk.
    shed_when_child_is_on_disk: breaks(LeadersHaveAll)
        { campaigns: 1, crashes: 1 };
    /// A replica without what the group was born with never campaigns; it would
    /// win only if the half were shed too early.
    empty_never_campaigns and shed_after_childs_own_entry: breaks(LeadersHaveAll)
        { campaigns: 2 };
    /// Before it takes entries it gets a snapshot.
    empty_gets_snapshot: breaks(LeadersHaveAll)
        { campaigns: 1 };
    /// Where the child has a replica, birth keeps its vote and log.
    birth_keeps_what_is_there: breaks(OneLeaderPerTerm)
        { campaigns: 2, replays: 1 };
    /// A message for a group that was not split off here makes no replica; while
    /// birth keeps what is there, this only keeps nodes clean.
    message_makes_no_replica: changes_nothing()
        { campaigns: 2, losses: 1 };
}

mod small {
    use super::*;
    holds! {
        newborn_elects:
            { campaigns: 2, losses: 1 };
        newborn_is_replayed:
            { campaigns: 2, replays: 1 };
        newborn_is_replayed_and_loses_a_node:
            { campaigns: 1, losses: 1, replays: 1 };
    }
}

mod large {
    use super::*;
    holds! {
        #[ignore = "large"]
        newborn_survives_all:
            { campaigns: 3, losses: 1, replays: 1 };
    }
}
