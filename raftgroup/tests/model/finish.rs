//! A Txn ends the same way in all its groups: committed if all have a committed
//! prepare, void if one never will. Whoever waits for the end asks the others,
//! and what is forgotten was decided everywhere.

use crate::action::{Action, Model};
use crate::state::{Entry, Group, Kind, Msg, Question, Rev, Stamp, State, TXNS_MAX, Term};

/// What a group knows of a Txn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    None,
    Prepared(Rev),
    Committed(Rev),
    Void(Rev),
}

/// The record of Txn `t` that these entries leave.
pub(crate) fn record<'a>(entries: impl Iterator<Item = &'a Entry>, t: u8) -> Record {
    let of_txn = entries.filter(|e| e.txn() == Some(t));
    of_txn.fold(Record::None, |known, e| match (e.kind, known) {
        (Kind::Prepare(_), _) => Record::Prepared(e.rev),
        (Kind::Commit(_), _) => Record::Committed(e.rev),
        (Kind::Forget(_), _) => Record::None,
        (_, Record::Committed(_)) => known,
        _ => Record::Void(e.rev),
    })
}

/// The Txns among these entries whose prepare has no decision.
pub(crate) fn undecided<'a>(
    entries: impl Iterator<Item = &'a Entry>,
) -> impl Iterator<Item = (u8, Rev)> {
    let mut open = [0; TXNS_MAX];
    for entry in entries {
        match entry.kind {
            Kind::Prepare(t) => open[usize::from(t)] = entry.rev,
            Kind::Commit(t) | Kind::Void(t) | Kind::Reach(t) => open[usize::from(t)] = 0,
            _ => {}
        }
    }
    (0..).zip(open).filter(|&(_, rev)| rev > 0)
}

/// What a participant's leader says to a question, if anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Prepared,
    Committed,
    Void,
    /// Only to one who knows the decision.
    NoRecord,
    /// It commits a void before it says so.
    VoidFirst,
}

impl Model {
    pub(crate) fn finish_actions(&self, s: &State, t: u8, out: &mut Vec<Action>) {
        for g in self.participants(t) {
            let group = &s.groups[g];
            for term in 1..=group.term() {
                if !group.leader(term).ready {
                    continue;
                }
                for to in self.participants(t).filter(|&to| to != g) {
                    self.questions(s, t, (g, term), to, out);
                }
                if term == group.term() && self.decision(s, t, g, term).is_some() {
                    out.push(Action::Decide(g, term, t));
                }
                if term == group.term() && self.may_forget(s, t, g, term) {
                    out.push(Action::Forget(g, term, t));
                }
            }
            let terms = 1..=group.term();
            let asked = terms.filter(|&term| self.may_settle(s, t, g, term));
            out.extend(asked.map(|term| Action::Settle(g, term, t)));
            if !self.rules.void_only_for_undecided_rule_12 && s.txns[usize::from(t)].acked {
                out.push(Action::AskOutcome(g, t));
            }
        }
        if self.bounds.budget.settles > 0 && !s.txns[usize::from(t)].closed {
            out.push(Action::Close(t));
        }
    }

    /// The leader tells the coordinator that the Txn is not prepared and never
    /// will be: it lets go of the latch, or has none.
    fn may_settle(&self, s: &State, t: u8, g: usize, term: Term) -> bool {
        let (txn, group) = (&s.txns[usize::from(t)], &s.groups[g]);
        let leader = group.leader(term);
        let elected = term == group.term() || !self.rules.absent_after_round_rule_12;
        let certain = leader.latched & (1 << t) != 0 || elected;
        s.left.settles > 0
            && !txn.closed
            && leader.ready
            && certain
            && record(group.held(term), t) == Record::None
    }

    fn questions(
        &self,
        s: &State,
        t: u8,
        (g, term): (usize, Term),
        to: usize,
        out: &mut Vec<Action>,
    ) {
        let elected = term == s.groups[g].term();
        let confirmed = elected || !self.rules.finisher_round_rule_12;
        let Some(question) = self.question(s, t, g, term, to).filter(|_| confirmed) else {
            return;
        };
        for at in 1..=s.groups[to].term() {
            if self.is_answered(s, question, at) {
                out.push(Action::Inquire(question, at));
            }
        }
        let late = Msg::Question(question);
        if s.left.late_questions > 0 && question.undecided && !s.net.contains(&late) {
            out.push(Action::InquireLate(question));
        }
    }

    fn question(&self, s: &State, t: u8, g: usize, term: Term, to: usize) -> Option<Question> {
        let group = &s.groups[g];
        if group.unapplied(term).any(|e| e.txn() == Some(t)) {
            return None;
        }
        let (undecided, rev) = match record(group.applied(term).iter(), t) {
            Record::Prepared(rev) => (true, rev),
            Record::Committed(rev) | Record::Void(rev) if s.left.forgets > 0 => (false, rev),
            _ => return None,
        };
        Some(Question {
            txn: t,
            from: g,
            term,
            undecided,
            to,
            rev,
        })
    }

    /// The answer of the leader of term `at`, from applied state.
    pub(crate) fn reply(&self, s: &State, q: Question, at: Term) -> Option<Reply> {
        let group = &s.groups[q.to];
        if !group.leader(at).ready && self.rules.answers_after_noop_rule_12 {
            return None;
        }
        let elected = at == group.term();
        // The leader won again, asks its later self, and waits for its index.
        let again = !self.rules.round_of_own_term_rule_12 && self.caught_up(group);
        let store = if again { group.term() } else { at };
        let applied = record(group.applied(store).iter(), q.txn);
        let held = match again {
            true => record(
                group
                    .applied(store)
                    .iter()
                    .chain(&group.leader(at).proposed),
                q.txn,
            ),
            false => record(group.held(at), q.txn),
        };
        let known = if self.rules.decide_after_commits_rule_12 {
            applied
        } else {
            held
        };
        match known {
            Record::Prepared(_) => q.undecided.then_some(Reply::Prepared),
            Record::Committed(_) => Some(Reply::Committed),
            Record::Void(_) => Some(Reply::Void),
            Record::None if q.undecided => {
                let free = held == Record::None || !self.rules.void_looks_at_pending_rule_12;
                let may = elected || !self.rules.void_is_committed_rule_12;
                (free && may).then_some(Reply::VoidFirst)
            }
            Record::None => {
                let may = elected || again || !self.rules.forgotten_after_round_rule_12;
                (held == Record::None && may).then_some(Reply::NoRecord)
            }
        }
    }

    /// The leader of term `at` has an answer that is news.
    pub(crate) fn is_answered(&self, s: &State, q: Question, at: Term) -> bool {
        let heard = s.groups[q.from].leader(q.term).heard[usize::from(q.txn)];
        let bit = 1 << q.to;
        match self.reply(s, q, at) {
            None => false,
            Some(Reply::VoidFirst) => !heard.void,
            Some(_) if !q.undecided => heard.decided & bit == 0,
            Some(Reply::Void) => !heard.void,
            Some(_) => heard.prepared & bit == 0,
        }
    }

    pub(crate) fn answer(&self, s: &mut State, q: Question, at: Term) {
        let reply = self.reply(s, q, at).expect("enabled only with one");
        if reply == Reply::VoidFirst {
            if self.rules.void_releases_latch_at_once_rule_12 {
                s.groups[q.to].leader_mut(at).latched &= !(1 << q.txn);
            }
            if self.rules.void_is_committed_rule_12 {
                return self.propose_txn(s, q.to, at, Kind::Void(q.txn), q.rev);
            }
        }
        let asker = s.groups[q.from].leader_mut(q.term);
        let heard = &mut asker.heard[usize::from(q.txn)];
        let bit = 1 << q.to;
        match reply {
            _ if !q.undecided => heard.decided |= bit,
            Reply::Void | Reply::VoidFirst => heard.void = true,
            Reply::Prepared | Reply::Committed | Reply::NoRecord => heard.prepared |= bit,
        }
    }

    pub(crate) fn act_finish(&self, s: &mut State, action: Action) {
        match action {
            Action::Inquire(question, at) => self.answer(s, question, at),
            Action::InquireLate(question) => {
                s.left.late_questions -= 1;
                s.send(Msg::Question(question));
            }
            Action::Decide(g, term, t) => {
                let decision = self.decision(s, t, g, term);
                let (kind, rev) = decision.expect("enabled only with one");
                self.propose_txn(s, g, term, kind, rev);
            }
            Action::Forget(g, term, t) => {
                s.left.forgets -= 1;
                self.propose_txn(s, g, term, Kind::Forget(t), 0);
            }
            Action::Settle(g, term, t) => {
                s.left.settles -= 1;
                s.groups[g].leader_mut(term).latched &= !(1 << t);
                s.txns[usize::from(t)].told_void = true;
            }
            Action::Close(t) => s.txns[usize::from(t)].closed = true,
            Action::AskOutcome(g, t) => {
                // Nobody's prepare is behind this question.
                let txn = &mut s.txns[usize::from(t)];
                let group = &s.groups[g];
                let known = record(group.applied(group.term()).iter(), t);
                txn.told_void |= matches!(known, Record::None | Record::Void(_));
            }
            _ => unreachable!("not a Txn's step: {action:?}"),
        }
    }

    /// What the leader can add about the Txn after what it heard.
    pub(crate) fn decision(&self, s: &State, t: u8, g: usize, term: Term) -> Option<(Kind, Rev)> {
        let question = self.question(s, t, g, term, g)?;
        let heard = s.groups[g].leader(term).heard[usize::from(t)];
        if !question.undecided {
            return None;
        }
        if heard.void {
            return Some((Kind::Void(t), question.rev));
        }
        let mut others = self.participants(t).filter(|&o| o != g);
        let all = others.all(|o| heard.prepared & (1 << o) != 0);
        all.then_some((Kind::Commit(t), question.rev))
    }

    fn may_forget(&self, s: &State, t: u8, g: usize, term: Term) -> bool {
        let Some(question) = self.question(s, t, g, term, g) else {
            return false;
        };
        let heard = s.groups[g].leader(term).heard[usize::from(t)];
        let mut others = self.participants(t).filter(|&o| o != g);
        let all = others.all(|o| heard.decided & (1 << o) != 0);
        let asks = self.bounds.budget.settles > 0 && !s.txns[usize::from(t)].closed;
        !question.undecided
            && (all || !self.rules.forget_after_all_decided_rule_12)
            && (!asks || !self.rules.forget_after_close_rule_12)
    }

    /// The caller hears of success as soon as it is sure.
    pub(crate) fn note_prepared(&self, s: &mut State, t: u8) {
        let prepared = |g: usize| {
            let group = &s.groups[g];
            let has = |e: &Entry| e.kind == Kind::Prepare(t);
            (1..=group.term()).any(|term| group.applied(term).iter().any(has))
        };
        let all = self.participants(t).all(prepared);
        if all || !self.rules.ack_after_all_prepared_rule_12 {
            let txn = &mut s.txns[usize::from(t)];
            txn.acked = true;
            s.acked = s.acked.max(txn.rev);
        }
    }

    /// Through where everything is applied, as a leader may report it.
    pub(crate) fn resolved(&self, group: &Group, term: Term) -> Rev {
        let applied = group.applied(term);
        let last = applied.iter().filter_map(Entry::ordered).max().unwrap_or(0);
        let open = undecided(applied.iter()).map(|(_, rev)| rev).min();
        match open {
            Some(rev) if self.rules.undecided_not_resolved_rule_7 => last.min(rev - 1),
            _ => last,
        }
    }
}

/// A void of something that was never prepared resolves its own revision only.
pub(crate) fn report(group: &Group, stamp: Stamp, rev: Rev) -> Msg {
    let index = group.leader(stamp.term).applied;
    let applied = group.applied(stamp.term);
    let prepared = |t| applied.iter().any(|e| e.kind == Kind::Prepare(t));
    match applied.last() {
        Some(e) if matches!(e.kind, Kind::Void(t) if !prepared(t)) => {
            Msg::Void { stamp, rev: e.rev }
        }
        _ => Msg::Resolved { stamp, rev, index },
    }
}
