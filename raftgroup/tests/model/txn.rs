//! A Txn over several groups takes one revision: evaluated under latches in
//! all its groups, granted once, and prepared in a group only when its grant
//! leaves that group's stream while the latch is held. How it ends is in
//! finish.rs.

use crate::action::{Action, Model};
use crate::finish::{Record, record, undecided};
use crate::state::{Entry, Grant, Group, Kind, ROOT, Rev, Stamp, State, TXN, Term, Waiting, Write};

impl Model {
    /// The groups of a Txn, in the order in which their latches are taken.
    pub(crate) fn participants(&self, t: u8) -> impl Iterator<Item = usize> {
        let groups = self.bounds.txns[usize::from(t)];
        let ordered = self.rules.latches_in_group_order_rule_12 || t == 0;
        let last = groups.len() - 1;
        (0..=last).map(move |n| groups[if ordered { n } else { last - n }])
    }

    pub(crate) fn txn_actions(&self, s: &State, out: &mut Vec<Action>) {
        for (t, txn) in (0..).zip(&s.txns) {
            let next = self.participants(t).nth(txn.terms.len());
            let early = self.bounds.swift && t > 0 && s.txns[usize::from(t) - 1].rev == 0;
            let free = |g: usize| self.may_latch(s, g, s.groups[g].term());
            let early = early || (self.bounds.swift && !self.participants(t).skip(1).all(free));
            if let Some(g) = next.filter(|_| !early) {
                let terms = 1..=s.groups[g].term();
                let terms = terms.filter(|&term| self.may_latch(s, g, term));
                out.extend(terms.map(|term| Action::Latch(t, term)));
            } else if next.is_none() {
                let epochs = (1..=s.epoch()).filter(|&e| self.may_allocate(s, t, e));
                out.extend(epochs.map(|e| Action::AskTxn(t, e)));
            }
            for (g, &term) in self.participants(t).zip(&txn.terms) {
                if s.left.releases > 0 && s.groups[g].leader(term).latched & (1 << t) != 0 {
                    out.push(Action::Release(g, term, t));
                }
            }
            if txn.rev > 0 {
                self.finish_actions(s, t, out);
            }
        }
    }

    /// On one key, a latch waits for what was there before it.
    fn may_latch(&self, s: &State, g: usize, term: Term) -> bool {
        let group = &s.groups[g];
        let leader = group.leader(term);
        let asked = !leader.asks.is_empty() && self.rules.latch_waits_for_asked_rule_12;
        let writes = |e: &Entry| e.ordered().is_some() && e.write.name > 0;
        let pending = self.rules.latch_waits_for_writes_rule_12;
        let waits = asked || (pending && group.unapplied(term).any(writes));
        (leader.ready || !self.rules.latch_after_noop_rule_12)
            && (!self.bounds.one_key || (!waits && self.in_the_way(group, term) == 0))
    }

    pub(crate) fn act_txn(&self, s: &mut State, action: Action) {
        match action {
            Action::Latch(t, term) => {
                self.latch(s, t, term);
                let more = self.participants(t).skip(1);
                for g in more.filter(|_| self.bounds.swift) {
                    self.latch(s, t, s.groups[g].term());
                }
            }
            Action::AskTxn(t, epoch) => self.allocate(s, t, epoch),
            Action::Release(g, term, t) => {
                s.left.releases -= 1;
                s.groups[g].leader_mut(term).latched &= !(1 << t);
            }
            _ => self.act_finish(s, action),
        }
    }

    /// What is under the latch doesn't change, so it is evaluated here.
    fn latch(&self, s: &mut State, t: u8, term: Term) {
        let txn = &s.txns[usize::from(t)];
        let after = txn.writes.first().map_or(s.acked, |w| w.after);
        let g = self.participants(t).nth(txn.terms.len());
        let group = &mut s.groups[g.expect("enabled only with one")];
        let mut seen = group.applied(term).iter().rev();
        let seen = seen.find(|e| e.visible().is_some() && e.write.name > 0);
        let last = seen.map_or(0, |e| e.write.name);
        group.leader_mut(term).latched |= 1 << t;
        let txn = &mut s.txns[usize::from(t)];
        txn.terms.push(term);
        txn.writes.push(Write {
            name: if self.bounds.one_key { 0xf0 | t } else { 0 },
            base: self.bounds.one_key.then_some(last),
            after,
            stale: false,
        });
    }

    /// The terms in which the latches were taken are those announced.
    fn may_allocate(&self, s: &State, t: u8, epoch: Term) -> bool {
        let seq = s.seq(epoch);
        let txn = &s.txns[usize::from(t)];
        let again = !self.rules.txn_asks_once_rule_12 && epoch > txn.epoch;
        let announced = |g: usize, term: Term| match &seq.ledgers[g] {
            _ if g == ROOT => term == epoch || !self.rules.txn_names_terms_rule_12,
            Some(ledger) => ledger.term == term || !self.rules.txn_names_terms_rule_12,
            None => false,
        };
        let mut latches = self.participants(t).zip(&txn.terms);
        (txn.epoch == 0 || again)
            && seq.next <= seq.ceiling
            && latches.all(|(g, &term)| announced(g, term))
    }

    /// One revision, outstanding in every participant and granted in each one's
    /// own stream; the root prepares in this step.
    fn allocate(&self, s: &mut State, t: u8, epoch: Term) {
        let rev = s.seq(epoch).next;
        let txn = &mut s.txns[usize::from(t)];
        txn.rev = rev;
        txn.epoch = epoch;
        s.seq_mut(epoch).next += 1;
        for (n, group) in self.participants(t).enumerate() {
            if group == ROOT {
                self.take_txn_grant(s, ROOT, epoch, t, rev);
                continue;
            }
            let seq = s.seq_mut(epoch);
            let ledger = seq.ledgers[group].as_mut().expect("announced");
            if n == 0 || self.rules.txn_outstanding_everywhere_rule_12 {
                ledger.outstanding.push(rev);
            }
            let stamp = Stamp {
                epoch,
                group,
                term: ledger.term,
                session: ledger.session,
            };
            let grant = Grant {
                stamp,
                place: ledger.places,
                id: TXN + t,
                rev,
            };
            ledger.places += 1;
            seq.waiting.push(Waiting::Grant(grant));
        }
    }

    /// The Txn's grant left the stream of this session.
    pub(crate) fn take_txn_grant(&self, s: &mut State, g: usize, term: Term, t: u8, rev: Rev) {
        let group = &s.groups[g];
        let latched = group.leader(term).latched & (1 << t) != 0;
        let free = record(group.held(term), t) == Record::None;
        let prepares = latched || (free && !self.rules.prepare_needs_latch_rule_12);
        let kind = if prepares {
            Kind::Prepare(t)
        } else {
            Kind::Reach(t)
        };
        s.groups[g].leader_mut(term).latched &= !(1 << t);
        self.propose_txn(s, g, term, kind, rev);
    }

    pub(crate) fn propose_txn(&self, s: &mut State, g: usize, term: Term, kind: Kind, rev: Rev) {
        let entry = Entry {
            kind,
            rev,
            term,
            write: Write::default(),
        };
        let t = entry.txn().expect("a Txn's entry");
        let n = self.participants(t).position(|p| p == g);
        let write = s.txns[usize::from(t)].writes[n.expect("a participant")];
        let entry = Entry { write, ..entry };
        s.groups[g].leader_mut(term).proposed.push(entry);
    }

    /// The Txns whose latch is held here, or whose prepare is and its decision
    /// not applied, also one that was taken over; a bit each.
    pub(crate) fn in_the_way(&self, group: &Group, term: Term) -> u8 {
        let own = |e: &&Entry| self.rules.takes_over_latches_rule_12 || e.term == term;
        let pending = group.unapplied(term);
        let pending = pending.filter(|e| matches!(e.kind, Kind::Prepare(_)));
        let open = undecided(group.applied(term).iter().chain(pending).filter(own));
        open.fold(group.leader(term).latched, |mask, (t, _)| mask | 1 << t)
    }
}
