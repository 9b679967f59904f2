//! A Txn over several groups takes one revision: committed when every
//! participant's prepare is committed, and then everywhere; until it is
//! decided, nobody reads past it. Its keys are not those of the other writes.

use crate::action::{Action, Model};
use crate::state::{Entry, Group, Kind, Msg, ROOT, Rev, Stamp, State, TXN, Term, Waiting, Write};

impl Model {
    pub(crate) fn txn_actions(&self, s: &State, out: &mut Vec<Action>) {
        let groups = self.bounds.txn;
        if groups.is_empty() {
            return;
        }
        let latched = s.txn.terms.len();
        if latched < groups.len() && s.left.txns > 0 {
            let group = &s.groups[groups[latched]];
            let terms = (1..=group.term()).filter(|&t| group.leader(t).ready);
            out.extend(terms.map(Action::Latch));
        }
        if latched == groups.len() && s.txn.rev == 0 {
            let epochs = (1..=s.epoch()).filter(|&e| self.may_allocate(s, e));
            out.extend(epochs.map(Action::AskTxn));
        }
        for (&g, &term) in groups.iter().zip(&s.txn.terms) {
            if s.left.releases > 0 && s.groups[g].leader(term).latched {
                out.push(Action::Release(g, term));
            }
        }
        if s.txn.rev == 0 {
            return;
        }
        for &g in groups {
            for term in (1..=s.groups[g].term()).filter(|&t| s.groups[g].leader(t).ready) {
                if self.decision(s, g, term).is_some() {
                    out.push(Action::Decide(g, term));
                }
            }
        }
    }

    pub(crate) fn act_txn(&self, s: &mut State, action: Action) {
        match action {
            Action::Latch(term) => {
                let g = self.bounds.txn[s.txn.terms.len()];
                if s.txn.terms.is_empty() {
                    s.txn.after = s.acked;
                }
                s.groups[g].leader_mut(term).latched = true;
                s.txn.terms.push(term);
                if s.txn.terms.len() == self.bounds.txn.len() {
                    s.left.txns -= 1;
                }
            }
            Action::AskTxn(epoch) => self.allocate(s, epoch),
            Action::Release(g, term) => {
                s.left.releases -= 1;
                s.groups[g].leader_mut(term).latched = false;
            }
            Action::Decide(g, term) => {
                let kind = self.decision(s, g, term).expect("enabled only with one");
                propose(s, g, term, kind);
            }
            _ => unreachable!("not a Txn's step: {action:?}"),
        }
    }

    /// The terms in which the latches were taken are those announced.
    fn may_allocate(&self, s: &State, epoch: Term) -> bool {
        let seq = s.seq(epoch);
        let announced = |g: usize, term: Term| match &seq.ledgers[g] {
            _ if g == ROOT => term == epoch,
            Some(ledger) => ledger.term == term || !self.rules.txn_names_terms_rule_12,
            None => false,
        };
        let mut latches = self.bounds.txn.iter().zip(&s.txn.terms);
        seq.next <= seq.ceiling && latches.all(|(&g, &term)| announced(g, term))
    }

    /// One revision, outstanding in every participant and granted in each one's
    /// own stream; the root prepares in this step.
    fn allocate(&self, s: &mut State, epoch: Term) {
        let rev = s.seq(epoch).next;
        s.txn.rev = rev;
        s.seq_mut(epoch).next += 1;
        for (n, &group) in self.bounds.txn.iter().enumerate() {
            if group == ROOT {
                let latched = s.groups[ROOT].leader(epoch).latched;
                propose(
                    s,
                    ROOT,
                    epoch,
                    if latched { Kind::Prepare } else { Kind::Void },
                );
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
            seq.waiting.push(Waiting::Grant {
                stamp,
                id: TXN,
                rev,
            });
        }
    }

    /// The Txn's grant left the stream of this session.
    pub(crate) fn take_txn_grant(&self, s: &mut State, stamp: Stamp, rev: Rev) {
        let group = &s.groups[stamp.group];
        let above = group.last(stamp.term).is_none_or(|e| e.rev < rev);
        let latched = group.leader(stamp.term).latched || !self.rules.prepare_needs_latch_rule_12;
        let kind = if above && latched {
            Kind::Prepare
        } else {
            Kind::Void
        };
        propose(s, stamp.group, stamp.term, kind);
    }

    /// What the leader can add about the Txn, asking the other participants:
    /// a decision, or a void for one whose prepare waits and who finds no
    /// record here.
    fn decision(&self, s: &State, g: usize, term: Term) -> Option<Kind> {
        let group = &s.groups[g];
        let others = || self.bounds.txn.iter().map(|&o| &s.groups[o]);
        if !group.held(term).any(Entry::is_txn) {
            let waits = |o: &Group| undecided(o.log.iter()).is_some();
            return others().any(waits).then_some(Kind::Void);
        }
        // Its own prepare is applied and nothing about it is on its way.
        undecided(group.applied(term).iter())?;
        if group.unapplied(term).any(Entry::is_txn) {
            return None;
        }
        let has = |o: &Group, kind| o.log.iter().any(|e| e.kind == kind);
        let prepared = |o: &Group| {
            let appended = || o.held(o.term()).any(|e| e.kind == Kind::Prepare);
            has(o, Kind::Prepare) || (!self.rules.decide_after_commits_rule_12 && appended())
        };
        if others().any(|o| has(o, Kind::Void)) {
            Some(Kind::Void)
        } else {
            others().all(prepared).then_some(Kind::Commit)
        }
    }

    /// Through where everything is applied, as a leader may report it.
    pub(crate) fn resolved(&self, group: &Group, term: Term) -> Rev {
        let applied = group.applied(term);
        let last = applied.iter().filter_map(Entry::ordered).max().unwrap_or(0);
        match undecided(applied.iter()) {
            Some(rev) if self.rules.undecided_not_resolved_rule_7 => last.min(rev - 1),
            _ => last,
        }
    }

    /// The latch is held here, or a prepare taken over is undecided.
    pub(crate) fn txn_in_the_way(&self, group: &Group, term: Term) -> bool {
        group.leader(term).latched || undecided(group.held(term)).is_some()
    }
}

fn propose(s: &mut State, g: usize, term: Term, kind: Kind) {
    let entry = Entry {
        kind,
        rev: s.txn.rev,
        term,
        write: Write::default(),
    };
    s.groups[g].leader_mut(term).proposed.push(entry);
}

/// The revision of the prepare among these entries that has no decision.
pub(crate) fn undecided<'a>(entries: impl Iterator<Item = &'a Entry>) -> Option<Rev> {
    entries.fold(None, |open, e| match e.kind {
        Kind::Prepare => Some(e.rev),
        Kind::Commit | Kind::Void => None,
        _ => open,
    })
}

/// A void of something that was never prepared resolves its own revision only.
pub(crate) fn report(group: &Group, stamp: Stamp, rev: Rev) -> Msg {
    let index = group.leader(stamp.term).applied;
    let applied = group.applied(stamp.term);
    let lone = |e: &Entry| e.kind == Kind::Void && !applied.iter().any(|p| p.kind == Kind::Prepare);
    match applied.last() {
        Some(e) if lone(e) => Msg::Void { stamp, rev: e.rev },
        _ => Msg::Resolved { stamp, rev, index },
    }
}
