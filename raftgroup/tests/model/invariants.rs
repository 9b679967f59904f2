//! What the protocol promises, as predicates of one state: the state carries
//! what clients were told, so no history is needed.

use crate::action::{Action, Model};
use crate::finish::undecided;
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
    NoDeadlock,
    LocalWatchWhole,
    EventualResolution,
}

type Holds = fn(&State) -> bool;
type TxnsHold = fn(&Model, &State) -> bool;

/// The first promise that this state breaks.
pub(crate) fn broken(model: &Model, s: &State) -> Option<Promise> {
    let promises: [(Promise, Holds); 10] = [
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
    ];
    let of_txns: [(Promise, TxnsHold); 3] = [
        (Promise::TxnAtomic, txn_atomic),
        (Promise::NoDeadlock, no_deadlock),
        (Promise::LocalWatchWhole, local_watch_whole),
    ];
    let first = promises.iter().find(|(_, holds)| !holds(s)).map(|p| p.0);
    let of_txns = of_txns.iter().filter(|_| !s.txns.is_empty());
    let first = first.or_else(|| {
        of_txns
            .into_iter()
            .find(|(_, holds)| !holds(model, s))
            .map(|p| p.0)
    });
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
    let commits = |t, g: usize| s.groups[g].log.iter().any(|e| e.kind == Kind::Commit(t));
    let ended = |(t, _)| model.participants(t).all(|g| commits(t, g));
    let Budget {
        releases, settles, ..
    } = model.bounds.budget;
    let committed = releases > 0 || settles > 0 || (0..).zip(&s.txns).all(ended);
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

/// A write that depends on the one before it was evaluated on it.
fn evaluated_on_last(s: &State) -> bool {
    s.groups.iter().all(|g| {
        let mut visible: Vec<_> = g.log.iter().filter(|e| e.visible().is_some()).collect();
        visible.sort_by_key(|e| e.rev);
        let mut last = 0;
        visible.iter().all(|e| {
            let right = e.write.base.is_none_or(|base| base == last);
            if e.write.name > 0 {
                last = e.write.name;
            }
            right
        })
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

/// A Txn is committed in all its groups at one revision of its own, or in none,
/// and nobody was told otherwise.
fn txn_atomic(model: &Model, s: &State) -> bool {
    (0..).zip(&s.txns).all(|(t, txn)| {
        let logs = || model.participants(t).map(|g| s.groups[g].log.iter());
        let all_have = |kind| logs().all(|mut log| log.any(|e| e.kind == kind));
        let commits = || logs().flatten().filter(|e| e.kind == Kind::Commit(t));
        let voided = |log: std::slice::Iter<'_, Entry>| {
            let mut after = log.skip_while(|e| e.kind != Kind::Prepare(t)).skip(1);
            let decision = after.find(|e| e.txn() == Some(t));
            decision.is_some_and(|e| matches!(e.kind, Kind::Void(_) | Kind::Reach(_)))
        };
        let alone = |rev| writes(s).all(|e| e.rev != rev);
        let right = |e: &Entry| e.rev == txn.rev && alone(e.rev) && e.rev > e.write.after;
        if txn.acked && txn.told_void || !commits().all(right) {
            return false;
        }
        let happened = txn.acked || commits().next().is_some();
        !happened || (all_have(Kind::Prepare(t)) && !logs().any(voided))
    })
}

/// No two Txns wait for each other's latch.
fn no_deadlock(model: &Model, s: &State) -> bool {
    let waits = |a: u8, b: u8| {
        let next = model
            .participants(a)
            .nth(s.txns[usize::from(a)].terms.len());
        let group = next.map(|g| &s.groups[g]);
        group.is_some_and(|g| g.leader(g.term()).latched & (1 << b) != 0)
    };
    !model.bounds.one_key || s.txns.len() < 2 || !(waits(0, 1) && waits(1, 0))
}

/// A watch inside one group is given what is applied, below the smallest
/// undecided prepare; nothing at or below that comes later. It may be at any
/// entry of the log.
fn local_watch_whole(model: &Model, s: &State) -> bool {
    s.groups.iter().all(|g| {
        (1..=g.len()).all(|at| {
            let applied = &g.log[..usize::from(at)];
            let last = applied.iter().filter_map(Entry::ordered).max().unwrap_or(0);
            let open = undecided(applied.iter()).map(|(_, rev)| rev - 1).min();
            let open = open.filter(|_| model.rules.watch_below_undecided_rule_11);
            let given = last.min(open.unwrap_or(last));
            g.writes_through(at, given) == g.writes_through(g.len(), given)
        })
    })
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
            | Action::Inquire(..)
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
