//! A lagging member: it answers from its own replicas, without any leader, at
//! a revision through which each of them is whole.
//!
//! Watermarks reach it in the step that makes them. A watermark is a claim
//! about all time to come, so a delay would only postpone its refutation.

use crate::action::{Action, Model};
use crate::state::{Entry, Mark, ROOT, Rev, State};

impl Model {
    pub(crate) fn member_actions(&self, s: &State, out: &mut Vec<Action>) {
        let reads = self.bounds.member_reads;
        if reads.is_empty() {
            return;
        }
        for (g, group) in s.groups.iter().enumerate() {
            let lags = group.replica.applied < group.len();
            if lags && !self.bounds.swift && (g == ROOT || reads.contains(&g)) {
                out.push(Action::ReplicaApply(g));
            }
        }
        for &g in reads {
            let replica = &s.groups[g].replica;
            let known = replica.mark.map_or(0, |m| m.closed).max(replica.passed);
            let news = |&epoch: &_| self.closed(s, epoch, g).is_some_and(|c| c.0 > known);
            if s.left.marks > 0 {
                let epochs = (1..=s.epoch()).filter(news);
                out.extend(epochs.map(|epoch| Action::Watermark(epoch, g)));
            }
            if s.left.member_answers > 0 && self.last_applied(s, g) > replica.answered {
                out.push(Action::MemberAck(g));
            }
        }
        let rev = self.member_point(s);
        let back = reads.iter().any(|&g| rev < s.groups[g].replica.answered);
        let may = !back || !self.rules.member_header_monotone_rule_16;
        if s.left.member_answers > 0 && rev > 0 && may {
            out.push(Action::MemberRead);
        }
    }

    pub(crate) fn act_member(&self, s: &mut State, action: Action) {
        let reads = self.bounds.member_reads;
        match action {
            Action::Watermark(epoch, g) => {
                s.left.marks -= 1;
                let (closed, index) = self.closed(s, epoch, g).expect("enabled only if defined");
                let root = s.groups[ROOT].leader(epoch).applied;
                if self.bounds.swift {
                    let replica = &mut s.groups[g].replica;
                    replica.applied = replica.applied.max(index);
                    let replica = &mut s.groups[ROOT].replica;
                    replica.applied = replica.applied.max(root);
                }
                s.groups[g].replica.mark = Some(Mark {
                    closed,
                    index,
                    root,
                });
            }
            Action::ReplicaApply(g) => s.groups[g].replica.applied += 1,
            Action::MemberRead => {
                s.left.member_answers -= 1;
                let rev = self.member_point(s);
                for &g in reads {
                    let replica = &mut s.groups[g].replica;
                    s.member.went_back |= rev < replica.answered;
                    replica.answered = replica.answered.max(rev);
                }
                let seen = |&g: &usize| {
                    (
                        g,
                        s.groups[g].writes_through(s.groups[g].replica.applied, rev),
                    )
                };
                s.member.served = Some((rev, reads.iter().map(seen).collect()));
            }
            Action::MemberAck(g) => {
                s.left.member_answers -= 1;
                s.groups[g].replica.answered = self.last_applied(s, g);
            }
            _ => unreachable!("not a member's step: {action:?}"),
        }
        self.pass(s);
    }

    fn pass(&self, s: &mut State) {
        let root = s.groups[ROOT].replica.applied;
        for group in &mut s.groups {
            let replica = &mut group.replica;
            let Some(mark) = replica.mark else { continue };
            let reached = replica.applied >= mark.index && root >= mark.root;
            if reached || !self.rules.passed_needs_log_index_rule_8 {
                replica.passed = replica.passed.max(mark.closed);
                replica.mark = None;
            }
        }
    }

    /// The highest revision that all touched replicas have passed.
    fn member_point(&self, s: &State) -> Rev {
        let passed = self
            .bounds
            .member_reads
            .iter()
            .map(|&g| s.groups[g].replica.passed);
        let point = if self.rules.passed_by_all_rule_16 {
            passed.min()
        } else {
            passed.max()
        };
        point.unwrap_or(0)
    }

    fn last_applied(&self, s: &State, g: usize) -> Rev {
        let group = &s.groups[g];
        let applied = &group.log[..usize::from(group.replica.applied)];
        applied.iter().filter_map(Entry::visible).max().unwrap_or(0)
    }
}
