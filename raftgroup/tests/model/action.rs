//! Whatever is enabled may happen next, in any order; the roles say what that
//! is and what it does. Nothing happens outside this list.

use crate::invariants::{self, Promise};
use crate::rules::Rules;
use crate::search::Protocol;
use crate::state::{Bounds, Index, Msg, Question, ROOT, State, Term};

/// One step. A group's leader is named by group and term, a sequencer by epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    // sequencer.rs
    ElectRoot,
    RaiseCeiling(Term),
    RootWrite(Term),
    Compact(Term),
    Split(Term),
    Merge(Term),
    /// A root round begins that will succeed, and confirms what waits.
    Confirm(Term),
    /// What waits leaves without its round: needs a rule removed.
    Leak(Term),
    // leader.rs
    Elect(usize),
    ApplyNoop(usize, Term),
    /// It meets an epoch and begins a round of its own group.
    Learn(usize, Term, Term),
    Hello(usize, Term),
    Reconnect(usize, Term),
    Ask(usize, Term),
    CatchUpRoot(usize, Term),
    Commit(usize, Term),
    Apply(usize, Term),
    // network
    Deliver {
        at: u8,
        to: Term,
        copy: bool,
    },
    // reader.rs
    Arrive(u8),
    /// The sequencer of this epoch is asked for a read point.
    AskPoint(u8, Term),
    /// With one group, the round that begins a read.
    ReadAlone(u8, Term),
    /// What was committed before the round is applied. The read has its point,
    /// and with one group its answer.
    Capture(u8),
    ReadRound(u8, u8, Term),
    Reach(u8, u8, Term),
    Answer(u8, u8),
    // txn.rs
    /// The leader of this term of the next participant takes the latch.
    Latch(u8, Term),
    AskTxn(u8, Term),
    Release(usize, Term, u8),
    // finish.rs
    /// A question and the answer of the leader of this term.
    Inquire(Question, Term),
    InquireLate(Question),
    Decide(usize, Term, u8),
    Forget(usize, Term, u8),
    /// The coordinator asks the leader of this term, and hears that it is void.
    Settle(usize, Term, u8),
    /// The coordinator asks no more.
    Close(u8),
    /// Somebody without a prepare asks: needs a rule removed.
    AskOutcome(usize, u8),
    // member.rs
    Watermark(Term, usize),
    ReplicaApply(usize),
    MemberRead,
    MemberAck(usize),
}

/// The protocol under some rules, within some bounds.
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

    fn broken(&self, s: &State) -> Option<Promise> {
        invariants::broken(self, s)
    }

    fn fulfilled(&self, s: &State) -> bool {
        invariants::fulfilled(self, s)
    }

    fn summary(&self, s: &State) -> String {
        format!("logs: {}", s.logs())
    }

    fn enabled(&self, s: &State) -> Vec<Action> {
        let mut out = Vec::with_capacity(32);
        self.deliveries(s, &mut out);
        self.leader_actions(s, &mut out);
        self.sequencer_actions(s, &mut out);
        self.reader_actions(s, &mut out);
        self.member_actions(s, &mut out);
        self.txn_actions(s, &mut out);
        out
    }

    fn act(&self, s: &mut State, action: Action) {
        match action {
            Action::ElectRoot
            | Action::RaiseCeiling(_)
            | Action::RootWrite(_)
            | Action::Compact(_)
            | Action::Split(_)
            | Action::Merge(_)
            | Action::Confirm(_)
            | Action::Leak(_) => self.act_sequencer(s, action),
            Action::Deliver { at, to, copy } => self.deliver(s, at, to, copy),
            Action::Arrive(_)
            | Action::AskPoint(..)
            | Action::ReadAlone(..)
            | Action::Capture(_)
            | Action::ReadRound(..)
            | Action::Reach(..)
            | Action::Answer(..) => self.act_reader(s, action),
            Action::Latch(..)
            | Action::AskTxn(..)
            | Action::Release(..)
            | Action::Inquire(..)
            | Action::InquireLate(_)
            | Action::Decide(..)
            | Action::Forget(..)
            | Action::Settle(..)
            | Action::Close(_)
            | Action::AskOutcome(..) => self.act_txn(s, action),
            Action::Watermark(..)
            | Action::ReplicaApply(_)
            | Action::MemberRead
            | Action::MemberAck(_) => self.act_member(s, action),
            _ => self.act_leader(s, action),
        }
    }

    fn label(&self, s: &State, action: Action) -> String {
        let debug = format!("{action:?}");
        let name = debug.split('(').next().unwrap_or_default();
        match action {
            Action::Deliver { at, copy, .. } => {
                let copied = if copy { ", a copy stays" } else { "" };
                format!("deliver {:?}{copied}", s.net[usize::from(at)])
            }
            Action::RaiseCeiling(epoch)
            | Action::RootWrite(epoch)
            | Action::Compact(epoch)
            | Action::Split(epoch)
            | Action::Merge(epoch)
            | Action::Confirm(epoch)
            | Action::Leak(epoch) => format!("sequencer {epoch}: {name}"),
            Action::AskTxn(t, epoch) => format!("sequencer {epoch}: {name} for Txn {t}"),
            Action::Watermark(epoch, g) => {
                let closed = self.closed(s, epoch, g);
                format!("sequencer {epoch}: {name} of group {g}, (closed, index) {closed:?}")
            }
            Action::AskPoint(read, epoch) => format!("sequencer {epoch}: {name} for read {read}"),
            Action::Learn(g, term, epoch) => format!("group {g} term {term}: {name} epoch {epoch}"),
            Action::ApplyNoop(g, term)
            | Action::Hello(g, term)
            | Action::Reconnect(g, term)
            | Action::Ask(g, term)
            | Action::CatchUpRoot(g, term)
            | Action::Commit(g, term)
            | Action::Apply(g, term) => format!("group {g} term {term}: {name}"),
            Action::Latch(t, term) => {
                let g = self.participants(t).nth(s.txns[usize::from(t)].terms.len());
                format!("group {} term {term}: {name} of Txn {t}", g.unwrap_or(ROOT))
            }
            Action::Release(g, term, t)
            | Action::Forget(g, term, t)
            | Action::Settle(g, term, t) => {
                format!("group {g} term {term}: {name} of Txn {t}")
            }
            Action::Decide(g, term, t) => {
                let decision = self.decision(s, t, g, term);
                format!("group {g} term {term}: {name} {decision:?}")
            }
            Action::Inquire(q, at) => {
                let reply = self.reply(s, q, at);
                format!("{q:?}: the leader of term {at} answers {reply:?}")
            }
            Action::ReadRound(read, part, term) | Action::Reach(read, part, term) => {
                format!("read {read} part {part}: {name} of the leader of term {term}")
            }
            _ => debug,
        }
    }
}

impl Model {
    /// A message is delivered when it would be heeded. To ignore it is the
    /// same as to leave it undelivered.
    fn deliveries(&self, s: &State, out: &mut Vec<Action>) {
        for (at, msg) in s.net.iter().enumerate() {
            if at > 0 && s.net[at - 1] == *msg {
                continue;
            }
            let receivers = match msg {
                Msg::Question(q) => 1..=s.groups[q.to].term(),
                _ => msg.stamp().map_or(1, |stamp| stamp.epoch)..=s.epoch(),
            };
            for to in receivers {
                if self.heeds(s, msg, to) {
                    let at = Index::try_from(at).expect("few messages");
                    out.push(Action::Deliver {
                        at,
                        to,
                        copy: false,
                    });
                    if s.left.copies > 0 {
                        out.push(Action::Deliver { at, to, copy: true });
                    }
                }
            }
        }
    }

    fn deliver(&self, s: &mut State, at: u8, to: Term, copy: bool) {
        let msg = s.net.remove(usize::from(at));
        if copy {
            s.left.copies -= 1;
            s.net.insert(usize::from(at), msg.clone());
        }
        self.receive(s, msg, to);
    }
}
