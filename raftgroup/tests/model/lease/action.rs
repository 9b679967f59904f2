//! What may happen next to the lease, in any order.

use super::promise::{self, Promise};
use super::rules::Rules;
use super::state::*;
use crate::search::Protocol;

/// One step. A root leader is named by epoch, a group's by group and term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    RootElect,
    RootCommit(Term),
    RootApply(Term),
    Register(Term, usize),
    Revoke(Term),
    Expire(Term),
    Regrant(Term),
    Map(Term),
    /// The lease's end is tried, with a new latch id.
    Begin(Term),
    /// For the root leader of this epoch, a group's leader takes the lease latch
    /// and tells what is attached.
    Latch(Term, usize, Term),
    End(Term),
    Elect(usize),
    Noop(usize, Term),
    CatchUp(usize, Term),
    Ask(usize, Term, Entry),
    Grant(usize, Term),
    Take(usize, Term),
    Commit(usize, Term),
    /// The user's Txn is committed here.
    Decide(usize, Term, Life),
    Split(Term),
    Tick,
    KeepArrive(Term),
    KeepRound,
    KeepAnswer,
}

pub(crate) struct Model {
    pub(crate) rules: Rules,
    pub(crate) bounds: Bounds,
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
        self.root_actions(s, &mut out);
        self.group_actions(s, &mut out);
        self.clock_actions(s, &mut out);
        out
    }

    fn act(&self, s: &mut State, action: Action) {
        match action {
            Action::RootElect
            | Action::RootCommit(_)
            | Action::RootApply(_)
            | Action::Register(..)
            | Action::Revoke(_)
            | Action::Expire(_)
            | Action::Regrant(_)
            | Action::Map(_)
            | Action::Begin(_)
            | Action::Latch(..)
            | Action::End(_) => self.act_root(s, action),
            Action::Tick | Action::KeepArrive(_) | Action::KeepRound | Action::KeepAnswer => {
                self.act_clock(s, action);
            }
            _ => self.act_group(s, action),
        }
    }

    fn broken(&self, s: &State) -> Option<Promise> {
        promise::broken(self, s)
    }

    fn fulfilled(&self, s: &State) -> bool {
        let gone = s.log.iter().any(|e| matches!(e, RootEntry::Gone(_)));
        s.left == Budget::NONE && (gone || self.bounds.budget.revokes == 0)
    }

    fn label(&self, _: &State, action: Action) -> String {
        format!("{action:?}")
    }

    fn summary(&self, s: &State) -> String {
        let [parent, child] = &s.groups;
        format!(
            "root {:?}, parent {:?}, child {:?}",
            s.log, parent.log, child.log
        )
    }
}

impl Model {
    fn root_actions(&self, s: &State, out: &mut Vec<Action>) {
        if s.left.root_elections > 0 {
            out.push(Action::RootElect);
        }
        for e in 1..=s.epoch() {
            let root = s.root(e);
            let elected = e == s.epoch();
            if elected {
                if !root.proposed.is_empty() {
                    out.push(Action::RootCommit(e));
                }
                if root.applied < s.log.len() {
                    out.push(Action::RootApply(e));
                }
                self.proposals(s, e, out);
            }
            self.revoke_actions(s, e, out);
        }
    }

    fn proposals(&self, s: &State, e: Term, out: &mut Vec<Action>) {
        let (life, alive) = newest(s.root_held(e));
        let gone = s.root_applied(e).contains(&RootEntry::Gone(life));
        let open = alive || !self.rules.no_registration_while_revoking_rule_13;
        if open
            && !gone
            && !s
                .root_held(e)
                .any(|r| r == RootEntry::Register(life, PARENT))
        {
            out.push(Action::Register(e, PARENT));
        }
        if alive && s.left.revokes > 0 {
            out.push(Action::Revoke(e));
        }
        if alive && s.left.ticks < self.bounds.budget.ticks && s.now >= s.root(e).deadline {
            out.push(Action::Expire(e));
        }
        if gone && s.left.regrants > 0 {
            out.push(Action::Regrant(e));
        }
        let split = s.groups[PARENT].log.contains(&Entry::Split);
        if split && !s.root_held(e).any(|r| r == RootEntry::Map) {
            out.push(Action::Map(e));
        }
    }

    fn revoke_actions(&self, s: &State, e: Term, out: &mut Vec<Action>) {
        let root = s.root(e);
        let (life, alive) = newest(s.root_held(e));
        let applied = newest(s.root_applied(e).iter().copied());
        let early = !self.rules.revoking_committed_first_rule_13;
        let begun = applied == (life, false) || early;
        if !begun || alive || s.root_held(e).any(|r| r == RootEntry::Gone(life)) {
            return;
        }
        let Some(attempt) = root.attempt else {
            let found = e == 1 || self.rules.new_leader_drives_on_rule_13;
            if found {
                out.push(Action::Begin(e));
            }
            return;
        };
        if self.is_lost(s, &attempt) {
            out.push(Action::Begin(e));
        }
        let need = self.need(s, e, &attempt);
        for g in (0..need.len()).filter(|&g| need[g] && attempt.answers[g].is_none()) {
            for term in 1..=s.groups[g].term() {
                if self.may_latch(s, g, term, &attempt) {
                    out.push(Action::Latch(e, g, term));
                }
            }
        }
        let mut groups = (0..need.len()).filter(|&g| need[g]);
        if e == s.epoch()
            && groups.all(|g| attempt.answers[g].is_some())
            && !self.is_lost(s, &attempt)
        {
            let keys = attempt
                .answers
                .iter()
                .flatten()
                .any(|&(_, count)| count > 0);
            // A Txn over root and the groups is allocated on applied state.
            if !keys || (root.applied == s.log.len() && root.proposed.is_empty()) {
                out.push(Action::End(e));
            }
        }
    }

    /// The groups that must answer: all that are registered by now, also by a
    /// map that is on its way.
    fn need(&self, s: &State, e: Term, attempt: &Attempt) -> [bool; 2] {
        if !self.rules.end_looks_at_registrations_again_rule_13 {
            return attempt.began_with;
        }
        let log: Vec<_> = s.root_held(e).collect();
        self.registered(&log, attempt.life)
    }

    fn registered(&self, log: &[RootEntry], life: Life) -> [bool; 2] {
        let child = log.contains(&RootEntry::Map) && self.rules.map_registers_leases_rule_13;
        let parent = log.contains(&RootEntry::Register(life, PARENT));
        [parent, parent && child]
    }

    /// A latch that it needs is not held any more: its Txn would be void.
    fn is_lost(&self, s: &State, attempt: &Attempt) -> bool {
        let lost = |(group, answer): (&Group, &Option<(Term, u8)>)| match *answer {
            Some((term, count)) if count > 0 => {
                let held = group.leader(term).latch == Some((attempt.id, attempt.life));
                term != group.term() || !held
            }
            _ => false,
        };
        s.groups.iter().zip(&attempt.answers).any(lost)
    }

    fn may_latch(&self, s: &State, g: usize, term: Term, attempt: &Attempt) -> bool {
        let group = &s.groups[g];
        let leader = group.leader(term);
        let life = attempt.life;
        let asked = leader.asks.iter().map(|a| &a.0).chain(&leader.proposed);
        let busy = asked.into_iter().any(|e| e.concerns(life));
        let open = staged(group.applied(term), life);
        let newer = leader.latch.is_none_or(|(id, _)| id < attempt.id);
        let none = attached(group.applied(term), life) == 0;
        let confirmed = term == group.term()
            || !self.rules.no_keys_after_round_rule_13
            || !self.rules.no_keys_round_of_own_term_rule_13;
        newer
            && self.serves(s, g, term)
            && (!busy || !self.rules.latch_waits_for_writes_rule_13)
            && (!open || !self.rules.latch_waits_for_prepares_rule_13)
            && (!none || confirmed)
    }

    /// A leader that evaluates and latches.
    fn serves(&self, s: &State, g: usize, term: Term) -> bool {
        let leader = s.groups[g].leader(term);
        let split = g == CHILD || s.groups[g].applied(term).contains(&Entry::Split);
        let mapped = s.log[..leader.root].contains(&RootEntry::Map);
        leader.ready && (!split || mapped || !self.rules.halves_wait_for_the_map)
    }

    fn act_root(&self, s: &mut State, action: Action) {
        match action {
            Action::RootElect => {
                s.left.root_elections -= 1;
                let full = self.rules.new_leader_gives_full_ttl_rule_13;
                s.roots.push(Root {
                    applied: s.log.len(),
                    known: s.log.len(),
                    deadline: if full { s.now + TTL } else { TTL },
                    ..Root::default()
                });
            }
            Action::RootCommit(e) => {
                let entry = s.root_mut(e).proposed.remove(0);
                s.log.push(entry);
                s.root_mut(e).known = s.log.len();
            }
            Action::RootApply(e) => s.root_mut(e).applied += 1,
            Action::Register(e, g) => {
                let (life, _) = newest(s.root_held(e));
                s.root_mut(e).proposed.push(RootEntry::Register(life, g));
            }
            Action::Revoke(e) | Action::Expire(e) => {
                let (life, _) = newest(s.root_held(e));
                let expired = matches!(action, Action::Expire(_));
                s.left.revokes -= u8::from(!expired);
                s.root_mut(e)
                    .proposed
                    .push(RootEntry::Revoking { life, expired });
            }
            Action::Regrant(e) => {
                s.left.regrants -= 1;
                let (life, _) = newest(s.root_held(e));
                s.root_mut(e).proposed.push(RootEntry::Grant(life + 1));
            }
            Action::Map(e) => s.root_mut(e).proposed.push(RootEntry::Map),
            Action::Begin(e) => {
                let (life, _) = newest(s.root_held(e));
                let began_with = self.registered(s.root_applied(e), life);
                let root = s.root_mut(e);
                root.attempts_count += 1;
                root.attempt = Some(Attempt {
                    id: e << 4 | root.attempts_count,
                    life,
                    began_with,
                    answers: [None; 2],
                });
            }
            Action::Latch(e, g, term) => {
                let attempt = s.root(e).attempt.expect("enabled only with one");
                let count = attached(s.groups[g].applied(term), attempt.life);
                s.groups[g].leader_mut(term).latch = Some((attempt.id, attempt.life));
                let attempt = s.root_mut(e).attempt.as_mut();
                attempt.expect("as above").answers[g] = Some((term, count));
            }
            Action::End(e) => self.end(s, e),
            _ => unreachable!("not the root's: {action:?}"),
        }
    }

    fn end(&self, s: &mut State, e: Term) {
        let attempt = s.root_mut(e).attempt.take().expect("enabled only with one");
        let gone = RootEntry::Gone(attempt.life);
        let mut keys = false;
        for (group, answer) in s.groups.iter_mut().zip(attempt.answers) {
            let Some((term, count)) = answer else {
                continue;
            };
            if count > 0 {
                keys = true;
                group.log.push(Entry::Delete(attempt.life, count));
                group.leader_mut(term).applied = group.log.len();
            }
            group.leader_mut(term).latch = None;
        }
        if keys {
            s.log.push(gone);
            let len = s.log.len();
            let root = s.root_mut(e);
            (root.applied, root.known) = (len, len);
        } else {
            s.root_mut(e).proposed.push(gone);
        }
    }

    fn group_actions(&self, s: &State, out: &mut Vec<Action>) {
        for (g, group) in s.groups.iter().enumerate() {
            if s.left.elections > 0 && group.term() > 0 {
                out.push(Action::Elect(g));
            }
            for term in 1..=group.term() {
                let leader = group.leader(term);
                let elected = term == group.term();
                if !leader.ready {
                    if elected {
                        out.push(Action::Noop(g, term));
                    }
                    continue;
                }
                if leader.root < s.log.len() {
                    out.push(Action::CatchUp(g, term));
                }
                match leader.asks.first() {
                    Some((_, true)) => out.push(Action::Take(g, term)),
                    Some((_, false)) => out.push(Action::Grant(g, term)),
                    None => {}
                }
                if elected && !leader.proposed.is_empty() {
                    out.push(Action::Commit(g, term));
                }
                let (life, _) = newest(s.log.iter().copied());
                for life in (1..=life).filter(|&l| elected && staged(group.applied(term), l)) {
                    let decided = leader.proposed.contains(&Entry::Commit(life));
                    if !decided {
                        out.push(Action::Decide(g, term, life));
                    }
                }
                self.requests(s, g, term, out);
            }
        }
    }

    fn requests(&self, s: &State, g: usize, term: Term, out: &mut Vec<Action>) {
        let group = &s.groups[g];
        let leader = group.leader(term);
        if !self.serves(s, g, term) {
            return;
        }
        let known = &s.log[..leader.root];
        let (life, alive) = newest(known.iter().copied());
        let any = !self.rules.registration_names_life_rule_13;
        let mut lives = (1..=life).filter(|&l| l == life || any);
        let registered = lives.any(|l| self.registered(known, l)[g])
            || !self.rules.registered_before_attach_rule_13;
        let blocked = |life| {
            self.rules.latch_blocks_rule_13 && leader.latch.is_some_and(|(_, of)| of == life)
        };
        if alive && registered && !blocked(life) {
            if s.left.puts > 0 {
                out.push(Action::Ask(g, term, Entry::Attach(life)));
            }
            if s.left.staged > 0 {
                out.push(Action::Ask(g, term, Entry::Prepare(life)));
            }
        }
        let touched = (1..=2).find(|&l| attached(group.applied(term), l) > 0);
        if let Some(life) = touched.filter(|&l| s.left.detaches > 0 && !blocked(l)) {
            out.push(Action::Ask(g, term, Entry::Detach(life)));
        }
        let drained = leader.asks.is_empty()
            && leader.proposed.is_empty()
            && (leader.latch.is_none() || !self.rules.split_waits_for_latches)
            && !(1..=2).any(|l| staged(group.applied(term), l));
        if g == PARENT && s.left.splits > 0 && term == group.term() && drained {
            out.push(Action::Split(term));
        }
    }

    fn act_group(&self, s: &mut State, action: Action) {
        match action {
            Action::Elect(g) => {
                s.left.elections -= 1;
                let applied = s.groups[g].log.len();
                s.groups[g].leaders.push(Leader {
                    applied,
                    ..Leader::default()
                });
            }
            Action::Noop(g, term) => s.groups[g].leader_mut(term).ready = true,
            Action::CatchUp(g, term) => {
                let root = s.log.len();
                s.groups[g].leader_mut(term).root = root;
            }
            Action::Ask(g, term, entry) => {
                match entry {
                    Entry::Attach(_) => s.left.puts -= 1,
                    Entry::Prepare(_) => s.left.staged -= 1,
                    _ => s.left.detaches -= 1,
                }
                s.groups[g].leader_mut(term).asks.push((entry, false));
            }
            Action::Grant(g, term) => {
                let seen = s.root_applied(s.epoch());
                let (newest, alive) = newest(seen.iter().copied());
                let same = |life| life == newest || !self.rules.lease_is_id_and_life_rule_13;
                let leader = s.groups[g].leader(term);
                let fresh = match leader.asks[0].0 {
                    Entry::Attach(life) | Entry::Prepare(life) => alive && same(life),
                    _ => true,
                };
                let leader = s.groups[g].leader_mut(term);
                if fresh || !self.rules.refuse_stale_ask_rule_15 {
                    leader.asks[0].1 = true;
                } else {
                    leader.asks.remove(0);
                }
            }
            Action::Take(g, term) => {
                let leader = s.groups[g].leader_mut(term);
                let (entry, _) = leader.asks.remove(0);
                leader.proposed.push(entry);
            }
            Action::Commit(g, term) => {
                let entry = s.groups[g].leader_mut(term).proposed.remove(0);
                s.groups[g].log.push(entry);
                s.groups[g].leader_mut(term).applied = s.groups[g].log.len();
            }
            Action::Decide(g, term, life) => {
                let leader = s.groups[g].leader_mut(term);
                leader.proposed.push(Entry::Commit(life));
            }
            Action::Split(term) => {
                s.left.splits -= 1;
                s.groups[CHILD].log = s.groups[PARENT].log.clone();
                s.groups[PARENT].log.push(Entry::Split);
                let applied = s.groups[PARENT].log.len();
                s.groups[PARENT].leader_mut(term).applied = applied;
                s.groups[CHILD].leaders.push(Leader {
                    ready: true,
                    applied: applied - 1,
                    ..Leader::default()
                });
            }
            _ => unreachable!("not a group's: {action:?}"),
        }
    }

    fn clock_actions(&self, s: &State, out: &mut Vec<Action>) {
        if s.left.ticks > 0 {
            out.push(Action::Tick);
        }
        match s.keepalive {
            None if s.left.keepalives > 0 => {
                out.extend((1..=s.epoch()).map(Action::KeepArrive));
            }
            None => {}
            Some(keep) => {
                let needed = self.rules.keepalive_after_round_rule_13;
                // The root leader has won again, and waits until all that is
                // committed is applied.
                let caught_up = s.root(s.epoch()).applied == s.log.len();
                let again = !self.rules.round_of_own_term_rule_13 && caught_up;
                let own = keep.epoch == s.epoch();
                if needed && (own || again) && !keep.rounded {
                    out.push(Action::KeepRound);
                }
                let store = if again { s.epoch() } else { keep.epoch };
                let seen = newest(s.root_applied(store).iter().copied()).1;
                let alive = if self.rules.keepalive_looks_at_pending_rule_13 {
                    let own = &s.root(keep.epoch).proposed;
                    match again {
                        true => newest(s.root_applied(store).iter().chain(own).copied()).1,
                        false => newest(s.root_held(keep.epoch)).1,
                    }
                } else {
                    seen
                };
                if alive && (keep.rounded || !needed) {
                    out.push(Action::KeepAnswer);
                }
            }
        }
    }

    fn act_clock(&self, s: &mut State, action: Action) {
        match action {
            Action::Tick => {
                s.left.ticks -= 1;
                s.now += 1;
            }
            Action::KeepArrive(epoch) => {
                s.left.keepalives -= 1;
                s.keepalive = Some(Keepalive {
                    epoch,
                    arrived: s.now,
                    rounded: false,
                    dead: !newest(s.log.iter().copied()).1,
                });
            }
            Action::KeepRound => {
                let keep = s.keepalive.as_mut().expect("enabled only with one");
                keep.rounded = true;
            }
            Action::KeepAnswer => {
                let keep = s.keepalive.take().expect("enabled only with one");
                let until = keep.arrived + TTL;
                s.promised = s.promised.max(until);
                s.kept_dead |= keep.dead;
                let root = s.root_mut(keep.epoch);
                root.deadline = root.deadline.max(until);
            }
            _ => unreachable!("not the clock's: {action:?}"),
        }
    }
}
