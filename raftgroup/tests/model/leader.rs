//! A data group's leader: what it proposes was granted to its current stamp,
//! in revision order; what it reports is applied. Commit and apply of the root
//! group are here too, since they are the same.

use crate::action::{Action, Model};
use crate::finish::{report, undecided};
use crate::state::{
    Ask, Entry, Grant, Group, Heard, Kind, Leader, Msg, ROOT, Stamp, State, TXN, Term, Write,
};

impl Model {
    pub(crate) fn leader_actions(&self, s: &State, out: &mut Vec<Action>) {
        for (g, group) in s.groups.iter().enumerate() {
            if g != ROOT && s.left.elections[g] > 0 {
                out.push(Action::Elect(g));
            }
            for term in 1..=group.term() {
                let leader = group.leader(term);
                let elected = term == group.term();
                if elected && !leader.ready {
                    out.push(Action::ApplyNoop(g, term));
                }
                if elected && leader.ready && !leader.proposed.is_empty() {
                    out.push(Action::Commit(g, term));
                }
                let next = group.log.get(usize::from(leader.applied));
                if leader.ready && next.is_some_and(|e| e.term <= term) {
                    out.push(Action::Apply(g, term));
                }
                if g != ROOT {
                    self.announcements(s, g, term, out);
                }
            }
        }
    }

    fn announcements(&self, s: &State, g: usize, term: Term, out: &mut Vec<Action>) {
        let leader = s.groups[g].leader(term);
        let elected = term == s.groups[g].term();
        if leader.ready || !self.rules.hello_after_noop_rule_4 {
            let exists = self.many_in(&s.groups[ROOT].log);
            let confirmed = elected || !self.rules.round_of_own_term_rule_4;
            if exists && (confirmed || !self.rules.hello_after_own_round_rule_4) {
                let epochs = leader.learned + 1..=s.epoch();
                out.extend(epochs.map(|epoch| Action::Learn(g, term, epoch)));
            }
            if leader.learned > leader.epoch {
                out.push(Action::Hello(g, term));
            }
        }
        if !leader.ready {
            return;
        }
        if leader.epoch > 0 && s.left.reconnects > 0 {
            out.push(Action::Reconnect(g, term));
        }
        let room = leader.asks.len() < self.bounds.asks_in_flight_max;
        if leader.epoch > 0 && s.left.writes[g] > 0 && room && !self.waits(&s.groups[g], term) {
            out.push(Action::Ask(g, term));
        }
        if leader.root_applied < s.groups[ROOT].len() {
            out.push(Action::CatchUpRoot(g, term));
        }
    }

    pub(crate) fn act_leader(&self, s: &mut State, action: Action) {
        match action {
            Action::Elect(g) => {
                s.left.elections[g] -= 1;
                let applied = s.groups[g].replica.applied;
                let root_applied = s.groups[ROOT].replica.applied;
                let leader = Leader {
                    applied,
                    root_applied,
                    ..Leader::new(false)
                };
                s.groups[g].leaders.push(leader);
            }
            Action::ApplyNoop(g, term) => {
                let applied = s.groups[g].len();
                let leader = s.groups[g].leader_mut(term);
                leader.applied = applied;
                leader.ready = true;
            }
            Action::Learn(g, term, epoch) => s.groups[g].leader_mut(term).learned = epoch,
            Action::Hello(g, term) => self.hello(s, g, term),
            Action::Reconnect(g, term) => {
                s.left.reconnects -= 1;
                self.hello(s, g, term);
            }
            Action::Ask(g, term) => self.ask(s, g, term),
            Action::CatchUpRoot(g, term) => {
                let root = s.groups[ROOT].len();
                s.groups[g].leader_mut(term).root_applied = root;
            }
            Action::Commit(g, term) => {
                let entry = s.groups[g].leader_mut(term).proposed.remove(0);
                s.groups[g].log.push(entry);
                self.note_committed(s, entry);
                if self.bounds.swift && s.groups[g].leader(term).applied + 1 == s.groups[g].len() {
                    self.apply(s, g, term);
                }
            }
            Action::Apply(g, term) => self.apply(s, g, term),
            _ => unreachable!("not a leader's step: {action:?}"),
        }
    }

    /// A new session: requests without an answer are given up, their callers
    /// hear *unknown*, and a late grant for them will carry an old stamp.
    pub(crate) fn hello(&self, s: &mut State, g: usize, term: Term) {
        let group = &s.groups[g];
        let mut pending: Vec<_> = group.unapplied(term).filter_map(Entry::ordered).collect();
        if self.rules.hello_names_prepared_rule_4 {
            pending.extend(undecided(group.applied(term).iter()).map(|(_, rev)| rev));
        }
        if !self.rules.hello_names_pending_rule_4 {
            pending.clear();
        }
        let leader = s.groups[g].leader_mut(term);
        let new_epoch = leader.learned > leader.epoch;
        let keeps_asks = !self.rules.stamps_on_grants_rule_5
            || (new_epoch && !self.rules.refuse_older_epochs_rule_4);
        if !keeps_asks {
            leader.asks.clear();
        }
        leader.epoch = leader.learned;
        leader.session += 1;
        leader.place = 0;
        let stamp = leader.stamp(g, term);
        let index = leader.applied;
        s.send(Msg::Hello {
            stamp,
            pending,
            index,
        });
    }

    fn ask(&self, s: &mut State, g: usize, term: Term) {
        s.left.writes[g] -= 1;
        let (after, compacted) = (s.acked, s.compacted);
        let held = s.groups[g].last_name(term);
        let leader = s.groups[g].leader_mut(term);
        let id = leader.asks_count;
        let root = leader.root_applied;
        leader.asks_count += 1;
        // What was asked before counts as if it were there.
        let names = leader.asks.iter().map(|a| a.write.name);
        let last = names.rev().find(|&name| name > 0).unwrap_or(held);
        let base = self.bounds.one_key.then_some(last);
        let name = if self.bounds.one_key && !self.bounds.writes_elsewhere {
            term << 4 | (id + 1)
        } else {
            0
        };
        leader.asks.push(Ask {
            id,
            write: Write {
                name,
                base,
                after,
                stale: root < compacted,
            },
        });
        let stamp = leader.stamp(g, term);
        s.send(Msg::Ask { stamp, id, root });
    }

    /// Applies one entry, answers its caller, and reports it resolved.
    fn apply(&self, s: &mut State, g: usize, term: Term) {
        let group = &mut s.groups[g];
        let leader = group.leader_mut(term);
        leader.applied += 1;
        let index = leader.applied;
        let stamp = leader.stamp(g, term);
        let Entry {
            kind,
            rev,
            term: evaluated,
            ..
        } = group.log[usize::from(index) - 1];
        match kind {
            Kind::Write if evaluated == term => s.acked = s.acked.max(rev),
            Kind::Compact if evaluated == term => s.compacted = s.compacted.max(index),
            Kind::Split | Kind::Merge => self.take_map(s, term, rev),
            Kind::Prepare(t) => self.note_prepared(s, t),
            Kind::Commit(t) | Kind::Void(t) | Kind::Reach(t) | Kind::Forget(t) => {
                let leader = group.leader_mut(term);
                leader.latched &= !(1 << t);
                leader.heard[usize::from(t)] = Heard::default();
            }
            Kind::Write | Kind::Compact => {}
        }
        let reports = self.reports_matter(s) && self.rules.resolved_after_apply_rule_7;
        if g != ROOT && stamp.epoch > 0 && reports {
            let group = &s.groups[g];
            let report = report(group, stamp, self.resolved(group, term));
            s.send(report);
        }
    }

    /// Something still looks at what is closed.
    pub(crate) fn reports_matter(&self, s: &State) -> bool {
        self.bounds.drain || s.left.marks + s.left.splits + s.left.merges > 0
    }

    /// A write on the key of a Txn waits behind its latch.
    pub(crate) fn waits(&self, group: &Group, term: Term) -> bool {
        let in_the_way = self.bounds.one_key && self.in_the_way(group, term) != 0;
        in_the_way && self.rules.writes_wait_behind_latch_rule_12
    }

    pub(crate) fn heeds(&self, s: &State, msg: &Msg, to: Term) -> bool {
        match *msg {
            Msg::Grant(grant) => to == grant.stamp.epoch && self.takes(s, grant),
            Msg::Refused { stamp, id } => to == stamp.epoch && self.asked(s, stamp, id).is_some(),
            Msg::Question(question) => self.is_answered(s, question, to),
            _ => self.sequencer_heeds(s, msg, to),
        }
    }

    /// The grant is the next one in the stream of the current session.
    fn takes(&self, s: &State, grant: Grant) -> bool {
        let Grant { stamp, id, .. } = grant;
        let group = &s.groups[stamp.group];
        let leader = group.leader(stamp.term);
        let current = stamp == leader.stamp(stamp.group, stamp.term);
        let in_order = grant.place == leader.place || !self.rules.log_order_rule_6;
        if id < TXN {
            return (in_order || !current) && self.asked(s, stamp, id).is_some();
        }
        let granted = |e: &Entry| e.txn() == Some(id - TXN) && e.rev == grant.rev;
        let taken = group.held(stamp.term).filter(|e| e.ordered().is_some());
        let mut taken = taken.filter(|e| granted(e));
        current && in_order && taken.next().is_none()
    }

    pub(crate) fn receive(&self, s: &mut State, msg: Msg, to: Term) {
        match msg {
            Msg::Grant(grant) => self.take_grant(s, grant),
            Msg::Refused { stamp, id } => {
                let at = self.asked(s, stamp, id);
                let at = at.expect("heeded only with its request");
                let leader = s.groups[stamp.group].leader_mut(stamp.term);
                leader.asks.remove(at);
            }
            Msg::Question(question) => self.answer(s, question, to),
            _ => self.sequencer_receives(s, msg, to),
        }
    }

    fn take_grant(&self, s: &mut State, grant: Grant) {
        let Grant {
            stamp,
            place,
            id,
            rev,
        } = grant;
        let leader = s.groups[stamp.group].leader_mut(stamp.term);
        if stamp == leader.stamp(stamp.group, stamp.term) {
            leader.place = leader.place.max(place + 1);
        }
        if id >= TXN {
            return self.take_txn_grant(s, stamp.group, stamp.term, id - TXN, rev);
        }
        let at = self.asked(s, stamp, id);
        let at = at.expect("heeded only with its request");
        let last = s.groups[stamp.group].last_name(stamp.term);
        let leader = s.groups[stamp.group].leader_mut(stamp.term);
        let ask = leader.asks.remove(at);
        let astray = ask.write.base.is_some_and(|base| base != last);
        if astray && self.rules.evaluated_on_last_rule_1 {
            if self.rules.unused_grant_is_void_rule_7 {
                s.send(Msg::Void { stamp, rev });
            }
            return;
        }
        leader.proposed.push(Entry {
            kind: Kind::Write,
            rev,
            term: stamp.term,
            write: ask.write,
        });
        let index = leader.applied;
        if !self.rules.resolved_after_apply_rule_7 {
            s.send(Msg::Resolved { stamp, rev, index });
        }
    }

    /// The waiting request that a grant or refusal with this stamp answers.
    fn asked(&self, s: &State, stamp: Stamp, id: u8) -> Option<usize> {
        let leader = s.groups[stamp.group].leader(stamp.term);
        let current = stamp == leader.stamp(stamp.group, stamp.term)
            || !self.rules.stamps_on_grants_rule_5
            || (stamp.epoch < leader.epoch && !self.rules.refuse_older_epochs_rule_4);
        let any = !self.rules.grant_answers_one_request_rule_5;
        let at = leader.asks.iter().position(|a| a.id == id || any);
        at.filter(|_| current)
    }
}
