//! A linearizable read: one read point for all its groups, each answering only
//! when nothing at or below that point can still appear in it.
//!
//! A read arrives in the step that asks for its read point. To arrive earlier
//! would only ask less of the answer, so an earlier arrival is a step of its
//! own only where a removed rule looks at it. The sequencer captures the point
//! after a round, when what was committed before the round is applied.
//!
//! With one group there is no sequencer to ask: the round is that group's, and
//! the answer is given with the point.

use crate::action::{Action, Model};
use crate::state::{Answer, Group, Index, Part, Phase, ROOT, Read, Rev, State, Term, Waiting};

impl Model {
    fn arrives_early(&self) -> bool {
        !self.rules.read_round_after_capture_rule_9a || !self.rules.read_waits_until_point_rule_9b
    }

    pub(crate) fn reader_actions(&self, s: &State, out: &mut Vec<Action>) {
        for (r, read) in (0..).zip(&s.reads) {
            let epochs = 1..=s.epoch();
            match read.phase {
                Phase::Idle if self.arrives_early() => out.push(Action::Arrive(r)),
                Phase::Idle | Phase::Arrived => {
                    let many = |&e: &Term| self.many(s, e) && !self.merging(s, e);
                    out.extend(epochs.filter(many).map(|e| Action::AskPoint(r, e)));
                    if !self.many(s, s.epoch()) {
                        out.push(Action::ReadAlone(r, s.epoch()));
                    }
                }
                Phase::Confirmed { epoch, index } => {
                    let applied = s.groups[ROOT].leader(epoch).applied;
                    if applied >= index || !self.rules.round_index_applied_rule_3 {
                        out.push(Action::Capture(r));
                    }
                }
                Phase::Asked | Phase::At { .. } => {}
            }
            for (p, part) in (0..).zip(&read.parts) {
                self.part_actions(s, read, part, (r, p), out);
            }
        }
    }

    fn part_actions(
        &self,
        s: &State,
        read: &Read,
        part: &Part,
        (r, p): (u8, u8),
        out: &mut Vec<Action>,
    ) {
        let elected = s.groups[part.group].term();
        let early = !self.rules.read_round_after_capture_rule_9a;
        let may_begin = match read.phase {
            Phase::Idle => false,
            Phase::Arrived => early,
            Phase::Asked | Phase::Confirmed { .. } => false,
            Phase::At { .. } => true,
        };
        let needed = self.rules.read_own_round_rule_9a;
        if needed && may_begin && part.answer.is_none() && !part.rounded(elected) {
            out.push(Action::ReadRound(r, p, elected));
        }
        let Phase::At { rev, root } = read.phase else {
            return;
        };
        if part.term == 0 {
            // A deposed leader without its round would never answer.
            let rounded = |t| part.rounded(t) || !self.rules.round_of_own_term_rule_9a;
            let terms = (1..=elected).filter(|&t| t == elected || !needed || rounded(t));
            // Before its no-op a leader knows no prepare that it takes over, so
            // what it waits for is settled after it.
            let early =
                !self.rules.point_reaches_after_noop_rule_9 || !self.rules.read_after_noop_rule_9;
            let terms = terms.filter(|&t| early || s.groups[part.group].leader(t).ready);
            out.extend(terms.map(|term| Action::Reach(r, p, term)));
        } else if part.answer.is_none() && self.may_answer(s, part, rev, root) {
            out.push(Action::Answer(r, p));
        }
    }

    fn may_answer(&self, s: &State, part: &Part, rev: Rev, root: Index) -> bool {
        let group = &s.groups[part.group];
        let leader = group.leader(part.term);
        let awaited = leader.asks.iter().any(|a| part.awaits.contains(&a.id));
        let holds = group
            .unapplied(part.term)
            .any(|e| e.visible().is_some_and(|r| r <= rev));
        let again = self.won_again(group, part).is_some();
        (leader.ready || !self.rules.read_after_noop_rule_9)
            && (part.rounded(part.term) || again || !self.rules.read_own_round_rule_9a)
            && (!awaited || !self.rules.read_waits_for_asked_rule_9b)
            && part.awaits_txns & self.in_the_way(group, part.term) == 0
            && (!holds || !self.rules.read_applies_up_to_point_rule_9c)
            && (root_applied(s, part) >= root || !self.rules.catch_up_before_read_rule_15)
    }

    /// The later leader whose round the part's leader takes for its own, and
    /// with which it has one store. It has waited until all that is committed
    /// is applied there.
    fn won_again(&self, group: &Group, part: &Part) -> Option<Term> {
        let again = part.rounds >> (part.term + 1) != 0 && !self.rules.round_of_own_term_rule_9a;
        (again && self.caught_up(group)).then_some(group.term())
    }

    /// The elected leader has applied all that is committed, its no-op too.
    pub(crate) fn caught_up(&self, group: &Group) -> bool {
        let leader = group.leader(group.term());
        leader.ready && leader.applied == group.len()
    }

    pub(crate) fn act_reader(&self, s: &mut State, action: Action) {
        match action {
            Action::Arrive(r) => {
                self.arrive(s, r);
                let groups = &s.groups;
                for part in &mut s.reads[usize::from(r)].parts {
                    let group = &groups[part.group];
                    part.awaits = group
                        .leader(group.term())
                        .asks
                        .iter()
                        .map(|a| a.id)
                        .collect();
                }
            }
            Action::AskPoint(r, epoch) => {
                if s.reads[usize::from(r)].phase == Phase::Idle {
                    self.arrive(s, r);
                }
                s.reads[usize::from(r)].phase = Phase::Asked;
                let read = usize::from(r);
                s.seq_mut(epoch).waiting.push(Waiting::ReadPoint { read });
            }
            Action::ReadAlone(r, epoch) => {
                if s.reads[usize::from(r)].phase == Phase::Idle {
                    self.arrive(s, r);
                }
                let index = s.groups[ROOT].len();
                s.reads[usize::from(r)].phase = Phase::Confirmed { epoch, index };
            }
            Action::Capture(r) => self.capture(s, r),
            Action::ReadRound(r, p, term) => {
                s.reads[usize::from(r)].parts[usize::from(p)].rounds |= 1 << term;
            }
            Action::Reach(r, p, term) => {
                let part = &mut s.reads[usize::from(r)].parts[usize::from(p)];
                part.term = term;
                let group = &s.groups[part.group];
                let asks = &group.leader(term).asks;
                if self.rules.read_waits_for_latch_rule_9b {
                    part.awaits_txns = self.in_the_way(group, term);
                }
                if self.rules.read_waits_until_point_rule_9b {
                    part.awaits = asks.iter().map(|a| a.id).collect();
                }
            }
            Action::Answer(r, p) => {
                let read = &s.reads[usize::from(r)];
                let Phase::At { rev, .. } = read.phase else {
                    unreachable!("has its point")
                };
                let part = &read.parts[usize::from(p)];
                let group = &s.groups[part.group];
                let store = self.won_again(group, part).unwrap_or(part.term);
                let applied = group.leader(store).applied;
                let at = if self.rules.answers_at_point_rule_9 {
                    rev
                } else {
                    Rev::MAX
                };
                let answer = Answer {
                    writes_count: group.writes_through(applied, at),
                    stale: root_applied(s, part) < read.compacted,
                };
                s.reads[usize::from(r)].parts[usize::from(p)].answer = Some(answer);
            }
            _ => unreachable!("not a reader's step: {action:?}"),
        }
    }

    fn capture(&self, s: &mut State, r: u8) {
        let read = usize::from(r);
        let Phase::Confirmed { epoch, .. } = s.reads[read].phase else {
            unreachable!("has its round")
        };
        self.take_point(s, read, epoch);
        if self.many(s, epoch) {
            return;
        }
        // With one group that is all.
        let Phase::At { rev, root } = s.reads[read].phase else {
            unreachable!("has its point")
        };
        let writes_count = s.groups[ROOT].writes_through(root, rev);
        let read = &mut s.reads[read];
        for part in &mut read.parts {
            part.term = epoch;
            part.answer = Some(Answer {
                writes_count,
                stale: root < read.compacted,
            });
        }
    }

    /// The read has the point as this sequencer knows it now.
    pub(crate) fn take_point(&self, s: &mut State, read: usize, epoch: Term) {
        let rev = self.read_point(s, epoch);
        let root = s.groups[ROOT].leader(epoch).applied;
        s.reads[read].phase = Phase::At { rev, root };
    }

    fn arrive(&self, s: &mut State, r: u8) {
        // What the member showed counts as what was acknowledged.
        let shown = self.bounds.member_reads.iter();
        let shown = shown.map(|&g| s.groups[g].replica.answered).max();
        let (after, compacted) = (s.acked.max(shown.unwrap_or(0)), s.compacted);
        let read = &mut s.reads[usize::from(r)];
        read.phase = Phase::Arrived;
        read.after = after;
        read.compacted = compacted;
    }
}

/// The root index at which the part's leader looks at the floor.
fn root_applied(s: &State, part: &Part) -> Index {
    let leader = s.groups[part.group].leader(part.term);
    if part.group == ROOT {
        leader.applied
    } else {
        leader.root_applied
    }
}

impl Part {
    fn rounded(&self, term: Term) -> bool {
        self.rounds & (1 << term) != 0
    }
}
