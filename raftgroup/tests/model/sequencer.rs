//! The root leader in its role as sequencer: one number for all groups, a
//! ledger per group, and nothing leaves before a round that began after it.

use crate::action::{Action, Model};
use crate::finish::undecided;
use crate::state::{
    Entry, Grant, Index, Kind, Leader, Ledger, Msg, Phase, ROOT, Rev, Sequencer, State, Term,
    Waiting, Write,
};

impl Model {
    pub(crate) fn sequencer_actions(&self, s: &State, out: &mut Vec<Action>) {
        if s.left.elections[ROOT] > 0 {
            out.push(Action::ElectRoot);
        }
        for epoch in 1..=s.epoch() {
            let seq = s.seq(epoch);
            let elected = epoch == s.epoch();
            let proposed = &s.groups[ROOT].leader(epoch).proposed;
            // In the log the ceiling stands behind what was proposed before it.
            let many = self.many(s, epoch);
            if elected && many && seq.next > seq.ceiling && proposed.is_empty() {
                out.push(Action::RaiseCeiling(epoch));
            }
            let remaps = self.remaps(s, epoch);
            let waits = self.waits(&s.groups[ROOT], epoch);
            if s.left.writes[ROOT] > 0 && !remaps && !waits {
                out.push(Action::RootWrite(epoch));
            }
            if s.left.splits > 0 && !many && !remaps && self.drained(s, epoch) {
                out.push(Action::Split(epoch));
            }
            let drained = self.drained(s, epoch) || !self.rules.merge_after_drain_rule_2;
            if s.left.merges > 0 && many && !remaps && drained {
                out.push(Action::Merge(epoch));
            }
            if s.left.compacts > 0 {
                out.push(Action::Compact(epoch));
            }
            let early = !self.rules.round_after_allocation_rule_3 && !seq.round_began;
            let confirmed = elected || !self.rules.round_of_own_term_rule_3;
            if confirmed && (early || !seq.waiting.is_empty()) {
                out.push(Action::Confirm(epoch));
            }
            if seq.waiting.iter().any(|w| self.leaks(seq, w)) {
                out.push(Action::Leak(epoch));
            }
        }
    }

    pub(crate) fn act_sequencer(&self, s: &mut State, action: Action) {
        match action {
            Action::ElectRoot => self.elect_root(s),
            Action::RaiseCeiling(epoch) => {
                let seq = s.seq_mut(epoch);
                seq.ceiling = seq.next - 1 + self.bounds.ceiling_step;
                s.ceiling = seq.ceiling;
            }
            Action::RootWrite(epoch) => {
                s.left.writes[ROOT] -= 1;
                let rev = s.seq(epoch).next;
                s.seq_mut(epoch).next += 1;
                self.propose(s, epoch, Kind::Write, rev);
            }
            Action::Compact(epoch) => {
                s.left.compacts -= 1;
                self.propose(s, epoch, Kind::Compact, 0);
            }
            Action::Split(epoch) => {
                s.left.splits -= 1;
                let ceiling = s.seq(epoch).next - 1 + self.bounds.ceiling_step;
                let carried = self.rules.split_carries_ceiling_rule_2;
                self.propose(s, epoch, Kind::Split, if carried { ceiling } else { 0 });
            }
            Action::Merge(epoch) => {
                s.left.merges -= 1;
                let floor = s.seq(epoch).next - 1;
                let carried = self.rules.merge_carries_floor_rule_2;
                self.propose(s, epoch, Kind::Merge, if carried { floor } else { 0 });
            }
            Action::Confirm(epoch) => {
                // Kept only where a removed rule looks at it.
                s.seq_mut(epoch).round_began = !self.rules.round_after_allocation_rule_3;
                self.release(s, epoch, true, |_| true);
            }
            Action::Leak(epoch) => {
                let seq = s.seq(epoch).clone();
                self.release(s, epoch, false, |w| self.leaks(&seq, w));
            }
            _ => unreachable!("not a sequencer's step: {action:?}"),
        }
    }

    fn propose(&self, s: &mut State, epoch: Term, kind: Kind, rev: Rev) {
        // A name that no other write of the root group has.
        let name = epoch << 4 | rev;
        let write = match self.bounds.one_key && kind == Kind::Write {
            true => Write {
                name,
                base: Some(s.groups[ROOT].last_name(epoch)),
                ..Write::default()
            },
            false => Write::default(),
        };
        let write = Write {
            after: s.acked,
            ..write
        };
        let entry = Entry {
            kind,
            rev,
            term: epoch,
            write,
        };
        s.groups[ROOT].leader_mut(epoch).proposed.push(entry);
    }

    /// A map entry in the root log replaces the ceiling, up or down.
    pub(crate) fn note_committed(&self, s: &mut State, entry: Entry) {
        if matches!(entry.kind, Kind::Split | Kind::Merge) {
            s.ceiling = entry.rev;
        }
        if entry.kind == Kind::Merge {
            s.merged = Some(s.groups.iter().map(|g| g.len()).collect());
        }
    }

    pub(crate) fn take_map(&self, s: &mut State, epoch: Term, ceiling: Rev) {
        s.seq_mut(epoch).ceiling = ceiling;
    }

    /// There are data groups, as this sequencer's applied map says.
    pub(crate) fn many(&self, s: &State, epoch: Term) -> bool {
        self.many_in(s.groups[ROOT].applied(epoch))
    }

    pub(crate) fn many_in(&self, log: &[Entry]) -> bool {
        let map = log
            .iter()
            .rev()
            .find(|e| matches!(e.kind, Kind::Split | Kind::Merge));
        map.map_or(!self.bounds.one_group, |e| e.kind == Kind::Split)
    }

    /// A change of the map is on its way: nothing is evaluated or granted.
    fn remaps(&self, s: &State, epoch: Term) -> bool {
        s.groups[ROOT]
            .unapplied(epoch)
            .any(|e| matches!(e.kind, Kind::Split | Kind::Merge))
    }

    /// Read points over many groups are not given while they are being merged.
    pub(crate) fn merging(&self, s: &State, epoch: Term) -> bool {
        s.groups[ROOT]
            .unapplied(epoch)
            .any(|e| e.kind == Kind::Merge)
    }

    /// Everything that was granted is resolved, in every group of the map.
    fn drained(&self, s: &State, epoch: Term) -> bool {
        let groups = if self.many(s, epoch) {
            s.groups.len()
        } else {
            1
        };
        let last = s.seq(epoch).next - 1;
        let drained = |g| {
            self.outstanding(s, epoch, g)
                .is_some_and(|(first, _)| first > last)
        };
        (ROOT..groups).all(drained)
    }

    /// Election and no-op are one step: nobody else commits in between.
    fn elect_root(&self, s: &mut State) {
        s.left.elections[ROOT] -= 1;
        let root = &mut s.groups[ROOT];
        let written = root
            .log
            .iter()
            .filter_map(Entry::ordered)
            .max()
            .unwrap_or(0);
        let ceiling = if self.rules.start_above_ceiling_rule_2 {
            s.ceiling
        } else {
            0
        };
        root.leaders.push(Leader {
            applied: root.len(),
            ..Leader::new(true)
        });
        s.seqs.push(Sequencer {
            next: written.max(ceiling) + 1,
            ceiling: s.ceiling,
            ledgers: vec![None; s.groups.len()],
            waiting: Vec::new(),
            round_began: false,
        });
    }

    fn leaks(&self, seq: &Sequencer, waiting: &Waiting) -> bool {
        let rule = match waiting {
            Waiting::Grant(_) => self.rules.confirmed_rule_3,
            Waiting::ReadPoint { .. } => self.rules.read_point_confirmed_rule_3,
        };
        !rule || (!self.rules.round_after_allocation_rule_3 && seq.round_began)
    }

    fn release(&self, s: &mut State, epoch: Term, round: bool, leaves: impl Fn(&Waiting) -> bool) {
        let waiting = std::mem::take(&mut s.seq_mut(epoch).waiting);
        for w in waiting {
            if !leaves(&w) {
                s.seq_mut(epoch).waiting.push(w);
                continue;
            }
            match w {
                Waiting::Grant(grant) => {
                    let Grant { stamp, rev, .. } = grant;
                    if !self.rules.outstanding_from_allocation
                        && let Some(ledger) = &mut s.seq_mut(epoch).ledgers[stamp.group]
                    {
                        ledger.outstanding.push(rev);
                    }
                    s.send(Msg::Grant(grant));
                }
                Waiting::ReadPoint { read } if round => {
                    let index = s.groups[ROOT].len();
                    s.reads[read].phase = Phase::Confirmed { epoch, index };
                }
                Waiting::ReadPoint { read } => self.take_point(s, read, epoch),
            }
        }
    }

    /// What a sequencer would do anything for; the leader's half is in leader.rs.
    pub(crate) fn sequencer_heeds(&self, s: &State, msg: &Msg, to: Term) -> bool {
        let stamp = msg.stamp().expect("for sequencers");
        let seq = s.seq(to);
        let ledger = seq.ledgers[stamp.group].as_ref();
        let current = ledger.is_some_and(|l| (l.term, l.session) == (stamp.term, stamp.session));
        match *msg {
            Msg::Hello { .. } => {
                let newer =
                    ledger.is_none_or(|l| (stamp.term, stamp.session) > (l.term, l.session));
                to == stamp.epoch
                    && self.many(s, to)
                    && (newer || !self.rules.hello_newer_session_only_rule_4)
            }
            Msg::Ask { id, root, .. } => {
                let Some(ledger) = ledger else { return false };
                let stamped = current || !self.rules.stamps_on_asks_rule_5;
                let first = ledger.asked & (1 << id) == 0;
                let unlimited = !self.rules.split_carries_ceiling_rule_2 && seq.ceiling == 0;
                let grantable = seq.next <= seq.ceiling || unlimited || !self.rules.ceiling_rule_2;
                to == stamp.epoch
                    && self.many(s, to)
                    && !self.remaps(s, to)
                    && stamped
                    && (first || !self.rules.one_grant_per_request_rule_5)
                    && (grantable || self.refuses(s, to, root))
            }
            Msg::Resolved { rev, index, .. } => {
                let Some(ledger) = ledger else { return false };
                let stamped = to == stamp.epoch && current;
                let news = index > ledger.index || ledger.outstanding.iter().any(|&o| o <= rev);
                news && self.reports_matter(s)
                    && (stamped || !self.rules.resolved_checks_stamp_rule_7)
            }
            Msg::Void { rev, .. } => {
                let Some(ledger) = ledger else { return false };
                let news = ledger.outstanding.contains(&rev) && self.reports_matter(s);
                to == stamp.epoch && current && news
            }
            Msg::Grant(_) | Msg::Refused { .. } | Msg::Question(_) => false,
        }
    }

    pub(crate) fn sequencer_receives(&self, s: &mut State, msg: Msg, to: Term) {
        let stamp = msg.stamp().expect("for sequencers");
        match msg {
            Msg::Hello { pending, index, .. } => {
                s.seq_mut(to).ledgers[stamp.group] = Some(Ledger {
                    term: stamp.term,
                    session: stamp.session,
                    outstanding: pending,
                    index,
                    asked: 0,
                    places: 0,
                });
            }
            Msg::Ask { id, root, .. } => {
                let refused = self.refuses(s, to, root);
                let from_allocation = self.rules.outstanding_from_allocation;
                let seq = s.seq_mut(to);
                let rev = seq.next;
                let ledger = seq.ledgers[stamp.group]
                    .as_mut()
                    .expect("heeded only with a ledger");
                ledger.asked |= 1 << id;
                if refused {
                    s.send(Msg::Refused { stamp, id });
                    return;
                }
                if from_allocation {
                    ledger.outstanding.push(rev);
                }
                let place = ledger.places;
                ledger.places += 1;
                seq.next += 1;
                seq.waiting.push(Waiting::Grant(Grant {
                    stamp,
                    place,
                    id,
                    rev,
                }));
            }
            Msg::Resolved { rev, index, .. } => {
                let ledger = s.seq_mut(to).ledgers[stamp.group].as_mut();
                let ledger = ledger.expect("heeded only with a ledger");
                ledger.outstanding.retain(|&o| o > rev);
                ledger.index = ledger.index.max(index);
            }
            Msg::Void { rev, .. } => {
                let ledger = s.seq_mut(to).ledgers[stamp.group].as_mut();
                let ledger = ledger.expect("heeded only with a ledger");
                let alone = self.rules.void_resolves_only_itself_rule_6;
                ledger
                    .outstanding
                    .retain(|&o| if alone { o != rev } else { o > rev });
            }
            Msg::Grant(_) | Msg::Refused { .. } | Msg::Question(_) => unreachable!("for leaders"),
        }
    }

    /// Root state changed since the request was evaluated at root index `root`.
    fn refuses(&self, s: &State, epoch: Term, root: Index) -> bool {
        let since = s.groups[ROOT].applied(epoch).get(usize::from(root)..);
        let changed = since.is_some_and(|log| log.iter().any(|e| e.kind != Kind::Write));
        changed && self.rules.refuse_stale_ask_rule_15
    }

    /// The highest revision that a successor of this sequencer can't reuse.
    fn cap(&self, s: &State, epoch: Term) -> Rev {
        let written = s.groups[ROOT]
            .applied(epoch)
            .iter()
            .filter_map(Entry::ordered)
            .max();
        written.unwrap_or(0).max(s.seq(epoch).ceiling)
    }

    pub(crate) fn read_point(&self, s: &State, epoch: Term) -> Rev {
        let last = s.seq(epoch).next - 1;
        if self.rules.read_point_capped_rule_2 {
            last.min(self.cap(s, epoch))
        } else {
            last
        }
    }

    /// The smallest outstanding grant, or `next`; and the group's log index.
    fn outstanding(&self, s: &State, epoch: Term, group: usize) -> Option<(Rev, Index)> {
        let seq = s.seq(epoch);
        let (first, index) = if group == ROOT {
            let root = &s.groups[ROOT];
            let first = root.unapplied(epoch).filter_map(Entry::ordered).min();
            let open = undecided(root.applied(epoch).iter()).map(|(_, rev)| rev);
            let counted = self.rules.undecided_not_resolved_rule_7;
            (
                open.filter(|_| counted).chain(first).min(),
                root.leader(epoch).applied,
            )
        } else {
            match &seq.ledgers[group] {
                Some(ledger) => (ledger.outstanding.iter().copied().min(), ledger.index),
                None if self.rules.closed_undefined_before_hello_rule_4 => return None,
                None => (None, 0),
            }
        };
        Some((first.unwrap_or(seq.next), index))
    }

    /// The group's closed revision and the log index that holds it.
    pub(crate) fn closed(&self, s: &State, epoch: Term, group: usize) -> Option<(Rev, Index)> {
        let (first, index) = self.outstanding(s, epoch, group)?;
        let cap = if self.rules.closed_capped_rule_2 {
            self.cap(s, epoch)
        } else {
            Rev::MAX
        };
        Some(((first - 1).min(cap), index))
    }
}
