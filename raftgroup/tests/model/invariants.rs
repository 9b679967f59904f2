//! What the protocol promises, as predicates of one state: the state carries
//! what clients were told, so no history is needed.

use crate::action::{Action, Model};
use crate::search::Protocol;
use crate::state::{Budget, Entry, Group, Kind, Phase, ROOT, State};

/// The promises, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Promise {
    UniqueRevisions,
    LogOrder,
    ReadSnapshotStable,
    WatermarkStable,
    MemberReadStable,
    MemberHeaderMonotone,
    RealTimeOrder,
    RootStateFresh,
    EvaluatedOnLast,
    MergeWhole,
    TxnAtomic,
    EventualResolution,
}

type Holds = fn(&State) -> bool;

/// The first promise that this state breaks.
pub(crate) fn broken(model: &Model, s: &State) -> Option<Promise> {
    let promises: [(Promise, Holds); 11] = [
        (Promise::UniqueRevisions, unique_revisions),
        (Promise::LogOrder, log_order),
        (Promise::ReadSnapshotStable, read_snapshot_stable),
        (Promise::WatermarkStable, watermark_stable),
        (Promise::MemberReadStable, member_read_stable),
        (Promise::MemberHeaderMonotone, member_header_monotone),
        (Promise::RealTimeOrder, real_time_order),
        (Promise::RootStateFresh, root_state_fresh),
        (Promise::EvaluatedOnLast, evaluated_on_last),
        (Promise::MergeWhole, merge_whole),
        (Promise::TxnAtomic, txn_atomic),
    ];
    let first = promises.iter().find(|(_, holds)| !holds(s)).map(|p| p.0);
    let stuck =
        || (model.bounds.drain && !resolves(model, s)).then_some(Promise::EventualResolution);
    first.or_else(stuck)
}

/// Everything that the bounds allow has happened, and every request succeeded.
pub(crate) fn fulfilled(model: &Model, s: &State) -> bool {
    let asked = model.bounds.budget.writes.iter().sum::<u8>();
    let answered = s
        .reads
        .iter()
        .flat_map(|r| &r.parts)
        .all(|p| p.answer.is_some());
    let commits = |&g: &usize| s.groups[g].log.iter().any(|e| e.kind == Kind::Commit);
    let committed = model.bounds.budget.releases > 0 || model.bounds.txn.iter().all(commits);
    s.left == Budget::NONE && committed && answered && writes(s).count() == usize::from(asked)
}

fn writes(s: &State) -> impl Iterator<Item = &Entry> {
    s.groups
        .iter()
        .flat_map(|g| &g.log)
        .filter(|e| e.kind == Kind::Write)
}

/// No revision is committed twice.
fn unique_revisions(s: &State) -> bool {
    let mut seen = 0u64;
    writes(s).all(|e| {
        let new = seen & (1 << e.rev) == 0;
        seen |= 1 << e.rev;
        new
    })
}

/// Inside a group, later in the log means a higher revision.
fn log_order(s: &State) -> bool {
    let ordered = |g: &Group| g.log.iter().filter_map(Entry::ordered).is_sorted();
    s.groups.iter().all(ordered)
}

/// An answered read saw what its group will ever hold at or below its revision.
fn read_snapshot_stable(s: &State) -> bool {
    s.reads.iter().all(|read| {
        let Phase::At { rev, .. } = read.phase else {
            return true;
        };
        read.parts.iter().all(|part| {
            let group = &s.groups[part.group];
            let whole = group.writes_through(group.len(), rev);
            part.answer.is_none_or(|a| a.writes_count == whole)
        })
    })
}

/// A replica that passed R holds what its group will ever hold through R.
fn watermark_stable(s: &State) -> bool {
    s.groups.iter().all(|g| {
        let held = g.writes_through(g.replica.applied, g.replica.passed);
        held == g.writes_through(g.len(), g.replica.passed)
    })
}

/// The same for what the member answered, in all groups it touched.
fn member_read_stable(s: &State) -> bool {
    s.member.served.iter().all(|(rev, seen)| {
        let whole = |&(g, count): &(usize, usize)| {
            s.groups[g].writes_through(s.groups[g].len(), *rev) == count
        };
        seen.iter().all(whole)
    })
}

/// A member's header never goes back for one group.
fn member_header_monotone(s: &State) -> bool {
    !s.member.went_back
}

/// What was asked after an acknowledgement is above it: writes by their
/// revision, reads by their read point.
fn real_time_order(s: &State) -> bool {
    let reads = s.reads.iter().all(|read| match read.phase {
        Phase::At { rev, .. } => rev >= read.after,
        _ => true,
    });
    reads && writes(s).all(|e| e.rev > e.write.after)
}

/// What was asked after a Compact was acknowledged was evaluated with it.
fn root_state_fresh(s: &State) -> bool {
    let answers = s
        .reads
        .iter()
        .flat_map(|r| &r.parts)
        .filter_map(|p| p.answer);
    answers.into_iter().all(|a| !a.stale) && writes(s).all(|e| !e.write.stale)
}

/// A write that depends on the one before it in the log was evaluated on it.
fn evaluated_on_last(s: &State) -> bool {
    s.groups.iter().all(|g| {
        let before = std::iter::once(0).chain(g.log.iter().map(|e| e.write.name));
        g.log
            .iter()
            .zip(before)
            .all(|(e, last)| e.write.base.is_none_or(|base| base == last))
    })
}

/// A merge took everything: nothing is committed in a data group after it.
fn merge_whole(s: &State) -> bool {
    let taken = s.merged.iter().flatten();
    taken
        .zip(&s.groups)
        .skip(ROOT + 1)
        .all(|(&len, g)| g.len() == len)
}

/// A Txn is committed in all its groups or in none, at a revision of its own
/// above all that was acknowledged before it came.
fn txn_atomic(s: &State) -> bool {
    let has = |kind| s.groups.iter().flat_map(|g| &g.log).any(|e| e.kind == kind);
    let alone = writes(s).all(|e| e.rev != s.txn.rev);
    let later = s.txn.rev == 0 || s.txn.rev > s.txn.after;
    !has(Kind::Commit) || (!has(Kind::Void) && alone && later)
}

/// Without further failures and requests every grant ends: each group is
/// closed at the last revision. It must hold whether what is in flight arrives
/// or is lost; a loss is noticed, as a broken session.
fn resolves(model: &Model, s: &State) -> bool {
    let mut arrives = s.clone();
    settle(model, &mut arrives);
    for g in ROOT + 1..s.groups.len() {
        let term = arrives.groups[g].term();
        if !arrives.groups[g].leader(term).asks.is_empty() {
            model.hello(&mut arrives, g, term);
        }
    }
    settle(model, &mut arrives);

    let mut lost = s.clone();
    lost.net.clear();
    settle(model, &mut lost);
    for g in ROOT + 1..s.groups.len() {
        let term = lost.groups[g].term();
        if lost.groups[g].leader(term).epoch > 0 {
            model.hello(&mut lost, g, term);
        }
    }
    settle(model, &mut lost);

    let closed = |s: &State| {
        let last = s.seq(s.epoch()).next - 1;
        let at_last = |g| model.closed(s, s.epoch(), g).is_some_and(|c| c.0 == last);
        let groups = if model.many(s, s.epoch()) {
            s.groups.len()
        } else {
            1
        };
        (ROOT..groups).all(at_last)
    };
    closed(&arrives) && closed(&lost)
}

/// Takes steps that need no failure and no client until none is left.
fn settle(model: &Model, s: &mut State) {
    loop {
        let enabled = model.enabled(s);
        let next = enabled.into_iter().find(|action| match *action {
            Action::Deliver { copy, .. } => !copy,
            Action::Learn(g, term, _) => {
                let asks = !s.groups[g].leader(term).asks.is_empty();
                asks || model.rules.hello_wakes_quiet_groups_rule_4
            }
            Action::ApplyNoop(..)
            | Action::Hello(..)
            | Action::Commit(..)
            | Action::Apply(..)
            | Action::Decide(..)
            | Action::RaiseCeiling(_)
            | Action::Confirm(_) => true,
            _ => false,
        });
        match next {
            Some(action) => model.act(s, action),
            None => return,
        }
    }
}
