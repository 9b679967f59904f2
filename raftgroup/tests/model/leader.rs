//! A data group's leader: what it proposes was granted to its current stamp,
//! in revision order; what it reports is applied. Commit and apply of the root
//! group are here too, since they are the same.

use crate::action::{Action, Model};
use crate::state::{Ask, Entry, Kind, Leader, Msg, ROOT, State, TXN, Term, Write};
use crate::txn::{report, undecided};

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
            if exists && (elected || !self.rules.hello_after_own_round_rule_4) {
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
        if leader.epoch > 0 && s.left.writes[g] > 0 && room {
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
            pending.extend(undecided(group.applied(term).iter()));
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
        let held = s.groups[g].last(term).map_or(0, |e| e.write.name);
        let leader = s.groups[g].leader_mut(term);
        let id = leader.asks_count;
        let root = leader.root_applied;
        leader.asks_count += 1;
        // What was asked before counts as if it were there.
        let last = leader.asks.last().map_or(held, |a| a.write.name);
        let base = self.bounds.one_key.then_some(last);
        let name = if self.bounds.one_key {
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
            Kind::Commit | Kind::Void => {
                group.leader_mut(term).latched = false;
                // The caller hears of a commit from any participant.
                s.acked = s.acked.max(if kind == Kind::Commit { rev } else { 0 });
            }
            Kind::Write | Kind::Compact | Kind::Prepare => {}
        }
        if g != ROOT && stamp.epoch > 0 && self.rules.resolved_after_apply_rule_7 {
            let group = &s.groups[g];
            let report = report(group, stamp, self.resolved(group, term));
            s.send(report);
        }
    }

    pub(crate) fn heeds(&self, s: &State, msg: &Msg, to: Term) -> bool {
        match msg {
            Msg::Grant { stamp, id: TXN, .. } => {
                let group = &s.groups[stamp.group];
                let current = *stamp == group.leader(stamp.term).stamp(stamp.group, stamp.term);
                to == stamp.epoch && current && !group.held(stamp.term).any(Entry::is_txn)
            }
            Msg::Grant { id, .. } | Msg::Refused { id, .. } => {
                to == msg.stamp().epoch && self.answered_ask(s, msg, *id).is_some()
            }
            _ => self.sequencer_heeds(s, msg, to),
        }
    }

    pub(crate) fn receive(&self, s: &mut State, msg: Msg, to: Term) {
        let stamp = msg.stamp();
        let (id, granted) = match msg {
            Msg::Grant { id: TXN, rev, .. } => return self.take_txn_grant(s, stamp, rev),
            Msg::Grant { id, rev, .. } => (id, Some(rev)),
            Msg::Refused { id, .. } => (id, None),
            _ => return self.sequencer_receives(s, msg, to),
        };
        let at = self
            .answered_ask(s, &msg, id)
            .expect("heeded only with its request");
        let last = s.groups[stamp.group].last(stamp.term);
        let (last_rev, last_name) = last.map_or((0, 0), |e| (e.rev, e.write.name));
        let leader = s.groups[stamp.group].leader_mut(stamp.term);
        let ask = leader.asks.remove(at);
        let Some(rev) = granted else { return };
        let late = rev <= last_rev && self.rules.log_order_rule_6;
        let astray = ask.write.base.is_some_and(|base| base != last_name);
        if late || (astray && self.rules.evaluated_on_last_rule_1) {
            if self.rules.unused_grant_is_void_rule_7 {
                s.send(Msg::Void { stamp, rev });
            }
            return;
        }
        let entry = Entry {
            kind: Kind::Write,
            rev,
            term: stamp.term,
            write: ask.write,
        };
        leader.proposed.push(entry);
        let index = leader.applied;
        if !self.rules.resolved_after_apply_rule_7 {
            s.send(Msg::Resolved { stamp, rev, index });
        }
    }

    /// The waiting request that this grant or refusal answers.
    fn answered_ask(&self, s: &State, msg: &Msg, id: u8) -> Option<usize> {
        let stamp = msg.stamp();
        let leader = s.groups[stamp.group].leader(stamp.term);
        let current = stamp == leader.stamp(stamp.group, stamp.term)
            || !self.rules.stamps_on_grants_rule_5
            || (stamp.epoch < leader.epoch && !self.rules.refuse_older_epochs_rule_4);
        let any = !self.rules.grant_answers_one_request_rule_5;
        let at = leader.asks.iter().position(|a| a.id == id || any);
        at.filter(|_| current)
    }
}
