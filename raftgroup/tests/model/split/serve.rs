//! While a group is split, each key has one owner, no write is lost, and what
//! was read or watched at a revision stays so.
//!
//! The parent has two keys, A and B; B becomes the child's. The child's own
//! elections are in birth.rs. Grants leave elected sequencers only, and books
//! are kept without loss: both are the ledger's.

mod promise;
mod rules;
mod state;

use crate::search::Protocol;
use promise::Promise;
use rules::Rules;
use state::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    RootElect,
    /// Root commits the map, for a leader of the parent that asks for it.
    Map(Term),
    Elect,
    Noop(Term),
    // A group's leader.
    LearnMap(usize, Term),
    Hello(usize, Term),
    Ask(usize, Term, Key),
    Grant(usize, Term),
    Take(usize, Term),
    AskTxn(Term),
    Decide(Term, Rev),
    ProposeSplit(Term),
    Commit(usize, Term),
    // A linearizable read of B that came to the parent.
    Arrive(Term),
    Capture,
    Answer,
    // The lagging member.
    MemberApply(usize),
    MemberLearnMap,
    Mark(usize, usize),
    /// It looks who owns the keys of a request.
    Look(What),
    /// It answers at what the replicas have passed.
    Serve,
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
        State::init(&self.bounds)
    }

    fn enabled(&self, s: &State) -> Vec<Action> {
        let mut out = Vec::new();
        self.sequencer_actions(s, &mut out);
        for g in [PARENT, CHILD] {
            for term in 1..=s.groups[g].term() {
                self.leader_actions(s, g, term, &mut out);
            }
        }
        self.read_actions(s, &mut out);
        self.member_actions(s, &mut out);
        out
    }

    fn act(&self, s: &mut State, action: Action) {
        match action {
            Action::MemberApply(_)
            | Action::MemberLearnMap
            | Action::Mark(..)
            | Action::Look(_)
            | Action::Serve => self.act_member(s, action),
            Action::Arrive(_) | Action::Capture | Action::Answer => self.act_read(s, action),
            Action::RootElect | Action::Map(_) => act_sequencer(s, action),
            _ => self.act_leader(s, action),
        }
    }

    fn broken(&self, s: &State) -> Option<Promise> {
        promise::broken(self, s)
    }

    fn fulfilled(&self, s: &State) -> bool {
        s.left == Budget::NONE && s.map
    }

    fn label(&self, _: &State, action: Action) -> String {
        format!("{action:?}")
    }

    fn summary(&self, s: &State) -> String {
        let [parent, child] = &s.groups;
        format!(
            "parent {:?}, child {:?}, served {:?}",
            parent.log, child.log, s.served
        )
    }
}

impl Model {
    fn sequencer_actions(&self, s: &State, out: &mut Vec<Action>) {
        if s.left.root_elections > 0 {
            out.push(Action::RootElect);
        }
        let parent = &s.groups[PARENT];
        let asks = |leader: &Leader| {
            let proposed = leader.proposed.contains(&Entry::Split);
            let applied = parent.log[..leader.applied].contains(&Entry::Split);
            let own = leader.stopped || self.rules.new_leader_repeats_the_map;
            leader.ready && own && (applied || (proposed && !self.rules.map_after_split_entry))
        };
        let terms = (1..=parent.term()).filter(|&t| !s.map && asks(parent.leader(t)));
        out.extend(terms.map(Action::Map));
        if s.left.elections > 0 {
            out.push(Action::Elect);
        }
    }

    fn leader_actions(&self, s: &State, g: usize, term: Term, out: &mut Vec<Action>) {
        let group = &s.groups[g];
        let leader = group.leader(term);
        let elected = term == group.term();
        let seq = s.seqs.last().expect("one is elected");
        if !leader.ready {
            if elected {
                out.push(Action::Noop(term));
            }
            return;
        }
        if s.map && !leader.mapped {
            out.push(Action::LearnMap(g, term));
        }
        let known = g == PARENT || seq.mapped || !self.rules.hello_needs_the_map;
        if elected && leader.epoch < s.seqs.len() && known {
            out.push(Action::Hello(g, term));
        }
        let current = leader.epoch == s.seqs.len() && seq.books[g].is_some();
        match leader.asks.first() {
            Some(Ask { rev: Some(_), .. }) => out.push(Action::Take(g, term)),
            Some(_) if elected && current => out.push(Action::Grant(g, term)),
            _ => {}
        }
        if elected && !leader.proposed.is_empty() {
            out.push(Action::Commit(g, term));
        }
        let split = g == CHILD || group.log[..leader.applied].contains(&Entry::Split);
        let stopped = leader.proposed.contains(&Entry::Split) && self.rules.stops_evaluating;
        let waits = split && !leader.mapped && self.rules.halves_wait_for_the_map;
        if leader.epoch > 0 && !stopped && !waits {
            let own = |key: &Key| {
                if g == CHILD {
                    *key == Key::B
                } else {
                    *key == Key::A || !split
                }
            };
            let wanted = [(Key::A, s.left.writes_a), (Key::B, s.left.writes_b)];
            let wanted = wanted.into_iter().filter(|w| w.1 > 0).map(|w| w.0);
            out.extend(wanted.filter(own).map(|key| Action::Ask(g, term, key)));
        }
        if g == PARENT && leader.epoch > 0 && !stopped && !split && s.left.txns_b > 0 {
            out.push(Action::AskTxn(term));
        }
        let open = undecided(&group.log[..leader.applied]);
        if let Some(rev) = open.filter(|&rev| !leader.proposed.contains(&Entry::Write(Key::B, rev)))
        {
            out.push(Action::Decide(term, rev));
        }
        let drained = leader.asks.is_empty()
            && leader.proposed.is_empty()
            && (open.is_none() || !self.rules.split_after_decisions);
        let ripe = drained || !self.rules.split_after_drain;
        if g == PARENT && s.left.splits > 0 && !split && !stopped && ripe {
            out.push(Action::ProposeSplit(term));
        }
    }

    fn act_leader(&self, s: &mut State, action: Action) {
        match action {
            Action::Elect => {
                s.left.elections -= 1;
                s.groups[PARENT].leaders.push(Leader::default());
            }
            Action::Noop(term) => {
                let applied = s.groups[PARENT].log.len();
                let leader = s.groups[PARENT].leader_mut(term);
                leader.ready = true;
                leader.applied = applied;
            }
            Action::LearnMap(g, term) => s.groups[g].leader_mut(term).mapped = true,
            Action::Hello(g, term) => {
                let epoch = s.seqs.len();
                let leader = s.groups[g].leader_mut(term);
                leader.epoch = epoch;
                leader.asks.clear();
                let pending = leader.proposed.iter().filter_map(Entry::rev);
                let mut outstanding: Vec<_> = pending.collect();
                let index = leader.applied;
                outstanding.extend(undecided(&s.groups[g].log[..index]));
                s.seq_mut().books[g] = Some(Book { outstanding, index });
            }
            Action::Ask(g, term, key) => {
                match key {
                    Key::A => s.left.writes_a -= 1,
                    Key::B => s.left.writes_b -= 1,
                }
                let leader = s.groups[g].leader_mut(term);
                let mapped = leader.mapped;
                leader.asks.push(Ask {
                    key,
                    txn: false,
                    mapped,
                    rev: None,
                });
            }
            Action::AskTxn(term) => {
                s.left.txns_b -= 1;
                let leader = s.groups[PARENT].leader_mut(term);
                let mapped = leader.mapped;
                leader.asks.push(Ask {
                    key: Key::B,
                    txn: true,
                    mapped,
                    rev: None,
                });
            }
            Action::Decide(term, rev) => {
                let leader = s.groups[PARENT].leader_mut(term);
                leader.proposed.push(Entry::Write(Key::B, rev));
            }
            Action::Grant(g, term) => {
                let seq = s.seq_mut();
                let (rev, mapped) = (seq.next, seq.mapped);
                let asks = &mut s.groups[g].leader_mut(term).asks;
                if asks[0].mapped != mapped && self.rules.refuse_stale_ask_rule_15 {
                    asks.remove(0);
                    return;
                }
                asks[0].rev = Some(rev);
                let seq = s.seq_mut();
                seq.next += 1;
                let book = seq.books[g].as_mut();
                book.expect("enabled only with one").outstanding.push(rev);
            }
            Action::Take(g, term) => {
                let leader = s.groups[g].leader_mut(term);
                let ask = leader.asks.remove(0);
                let rev = ask.rev.expect("enabled only when granted");
                leader.proposed.push(if ask.txn {
                    Entry::Prepare(rev)
                } else {
                    Entry::Write(ask.key, rev)
                });
            }
            Action::ProposeSplit(term) => {
                s.left.splits -= 1;
                let leader = s.groups[PARENT].leader_mut(term);
                leader.stopped = true;
                leader.proposed.push(Entry::Split);
            }
            Action::Commit(g, term) => commit(s, g, term),
            _ => unreachable!("not a leader's: {action:?}"),
        }
    }

    fn read_actions(&self, s: &State, out: &mut Vec<Action>) {
        let parent = &s.groups[PARENT];
        let owns = |term: Term| !parent.log[..parent.leader(term).applied].contains(&Entry::Split);
        match s.read {
            Read::Idle if s.left.reads > 0 => {
                let terms = (1..=parent.term()).filter(|&t| parent.leader(t).ready && owns(t));
                out.extend(terms.map(Action::Arrive));
            }
            Read::Arrived(_) => out.push(Action::Capture),
            Read::At(term, rev) => {
                let leader = parent.leader(term);
                let below = |e: &Entry| e.rev().is_some_and(|at| at <= rev);
                let holds = !leader.asks.is_empty()
                    || leader.proposed.iter().any(below)
                    || undecided(&parent.log[..leader.applied]).is_some();
                let bounds = owns(term) || !self.rules.bounds_when_answering;
                // Its round began after the capture.
                if term == parent.term() && !holds && bounds {
                    out.push(Action::Answer);
                }
            }
            _ => {}
        }
    }

    fn act_read(&self, s: &mut State, action: Action) {
        match (action, s.read) {
            (Action::Arrive(term), _) => {
                s.left.reads -= 1;
                s.read = Read::Arrived(term);
            }
            (Action::Capture, Read::Arrived(term)) => s.read = Read::At(term, s.seq_mut().next - 1),
            (Action::Answer, Read::At(term, rev)) => {
                let parent = &s.groups[PARENT];
                let log = &parent.log[..parent.leader(term).applied];
                s.read = Read::Answered(rev, count(log, &[Key::B], rev));
            }
            _ => unreachable!("not a read's: {action:?}"),
        }
    }

    fn member_actions(&self, s: &State, out: &mut Vec<Action>) {
        let m = &s.member;
        for g in [PARENT, CHILD] {
            let here = g == PARENT || self.split_here(s);
            if m.applied[g] < s.groups[g].log.len() && here {
                out.push(Action::MemberApply(g));
            }
            for e in (0..s.seqs.len()).filter(|_| s.left.marks > 0) {
                let known = s.seqs[e].books[g].is_some();
                if known && m.marks[g].is_none() {
                    out.push(Action::Mark(e, g));
                }
            }
        }
        if s.map && !m.mapped {
            out.push(Action::MemberLearnMap);
        }
        match m.look {
            None if s.left.looks > 0 => {
                out.push(Action::Look(What::ReadB));
                out.push(Action::Look(What::WatchBoth));
            }
            Some((what, groups)) if self.may_serve(s, what, groups) => out.push(Action::Serve),
            _ => {}
        }
    }

    fn split_here(&self, s: &State) -> bool {
        s.groups[PARENT].log[..s.member.applied[PARENT]].contains(&Entry::Split)
    }

    /// The groups whose replicas a request needs.
    fn needs(&self, s: &State, what: What) -> [bool; 2] {
        match what {
            What::ReadB => [!s.member.mapped, s.member.mapped],
            What::WatchBoth => {
                let split = self.split_here(s) && self.rules.watch_crosses_at_split_entry;
                [true, split || s.member.mapped]
            }
        }
    }

    /// All that it needs is passed, and still what it needs, after that.
    fn may_serve(&self, s: &State, what: What, groups: [bool; 2]) -> bool {
        let same = self.needs(s, what) == groups;
        let bounds = what == What::WatchBoth || groups[CHILD] || !self.split_here(s);
        let child = !groups[CHILD] || self.split_here(s);
        self.point(s, what, groups) > 0
            && child
            && (same || !self.rules.map_compared_after_passing)
            && (bounds || !self.rules.bounds_compared_after_passing)
    }

    /// What all have passed. A watch inside one group is given what is applied.
    fn point(&self, s: &State, what: What, groups: [bool; 2]) -> Rev {
        let m = &s.member;
        let log = &s.groups[PARENT].log[..m.applied[PARENT]];
        let applied = log.iter().filter_map(Entry::rev).max().unwrap_or(0);
        let applied = undecided(log).map_or(applied, |rev| applied.min(rev - 1));
        match (what, groups) {
            (What::WatchBoth, [_, false]) => applied.max(m.passed[PARENT]),
            (_, [true, true]) => m.passed[PARENT].min(m.passed[CHILD]),
            (_, [parent, _]) => m.passed[if parent { PARENT } else { CHILD }],
        }
    }

    fn act_member(&self, s: &mut State, action: Action) {
        match action {
            Action::MemberApply(g) => s.member.applied[g] += 1,
            Action::MemberLearnMap => s.member.mapped = true,
            Action::Mark(e, g) => {
                s.left.marks -= 1;
                let seq = &s.seqs[e];
                let book = seq.books[g].as_ref().expect("enabled only with one");
                let first = book.outstanding.iter().copied().min();
                s.member.marks[g] = Some(Mark {
                    closed: first.unwrap_or(seq.next) - 1,
                    index: book.index,
                    mapped: seq.mapped,
                });
            }
            Action::Look(what) => {
                s.left.looks -= 1;
                s.member.look = Some((what, self.needs(s, what)));
            }
            Action::Serve => {
                let (what, groups) = s.member.look.take().expect("enabled only with one");
                let rev = self.point(s, what, groups);
                s.served = Some((what, rev, self.seen(s, what, groups, rev)));
            }
            _ => unreachable!("not the member's: {action:?}"),
        }
        let m = &mut s.member;
        for g in [PARENT, CHILD] {
            let Some(mark) = m.marks[g] else { continue };
            let root = m.mapped || !mark.mapped || !self.rules.passed_needs_root_index_rule_8;
            if m.applied[g] >= mark.index && root {
                m.passed[g] = m.passed[g].max(mark.closed);
                m.marks[g] = None;
            }
        }
    }

    /// How many writes the member shows. A watch was given what the parent had
    /// before it shrank; a read finds in a replica what its bounds leave there.
    fn seen(&self, s: &State, what: What, groups: [bool; 2], rev: Rev) -> usize {
        let applied = |g: usize| &s.groups[g].log[..s.member.applied[g]];
        let child = count(applied(CHILD), &[Key::B], rev);
        match what {
            What::ReadB if groups[CHILD] => count(applied(PARENT), &[Key::B], rev) + child,
            What::ReadB if self.split_here(s) => 0,
            What::ReadB => count(applied(PARENT), &[Key::B], rev),
            What::WatchBoth => {
                let parent = count(applied(PARENT), &[Key::A, Key::B], rev);
                parent + if groups[CHILD] { child } else { 0 }
            }
        }
    }
}

fn act_sequencer(s: &mut State, action: Action) {
    if matches!(action, Action::Map(_)) {
        s.map = true;
        s.seq_mut().mapped = true;
        return;
    }
    s.left.root_elections -= 1;
    // Above the ceiling.
    let next = s.seq_mut().next + 1;
    s.seqs.push(Seq {
        next,
        mapped: s.map,
        books: [None, None],
    });
}

fn commit(s: &mut State, g: usize, term: Term) {
    let entry = s.groups[g].leader_mut(term).proposed.remove(0);
    s.groups[g].log.push(entry);
    let index = s.groups[g].log.len();
    let leader = s.groups[g].leader_mut(term);
    leader.applied = index;
    let announced = leader.epoch == s.seqs.len();
    match (entry, &mut s.seq_mut().books[g]) {
        (Entry::Write(_, rev), Some(book)) if announced => {
            book.outstanding.retain(|&o| o != rev);
            book.index = index;
        }
        (Entry::Split, _) => s.groups[CHILD].leaders.push(Leader {
            ready: true,
            ..Leader::default()
        }),
        _ => {}
    }
}
