//! What clients may rely on while a group is split.

use super::state::*;
use super::{Action, Model};
use crate::search::Protocol;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Promise {
    OneOwner,
    NoWriteLost,
    ReadStable,
    MemberReadStable,
    WatchWhole,
    SplitEnds,
}

type Holds = fn(&State) -> bool;

/// The first promise that this state breaks.
pub(super) fn broken(model: &Model, s: &State) -> Option<Promise> {
    let promises: [(Promise, Holds); 5] = [
        (Promise::OneOwner, one_owner),
        (Promise::NoWriteLost, no_write_lost),
        (Promise::ReadStable, read_stable),
        (Promise::MemberReadStable, |s| {
            served_stable(s, What::ReadB, &[Key::B])
        }),
        (Promise::WatchWhole, |s| {
            served_stable(s, What::WatchBoth, &[Key::A, Key::B])
        }),
    ];
    let first = promises.iter().find(|(_, holds)| !holds(s)).map(|p| p.0);
    let stuck = || (model.bounds.drain && !split_ends(model, s)).then_some(Promise::SplitEnds);
    first.or_else(stuck)
}

/// The map gives B to the child only when the parent can't have it back.
fn one_owner(s: &State) -> bool {
    !s.map || s.groups[PARENT].log.contains(&Entry::Split)
}

/// The parent writes nothing that it gave away.
fn no_write_lost(s: &State) -> bool {
    let after = s.groups[PARENT]
        .log
        .iter()
        .skip_while(|e| **e != Entry::Split);
    after
        .into_iter()
        .all(|e| !matches!(e, Entry::Write(Key::B, _)))
}

/// All that is ever written to `keys` at or below `rev`.
fn whole(s: &State, keys: &[Key], rev: Rev) -> usize {
    let [parent, child] = &s.groups;
    count(&parent.log, keys, rev) + count(&child.log, keys, rev)
}

fn read_stable(s: &State) -> bool {
    match s.read {
        Read::Answered(rev, seen) => seen == whole(s, &[Key::B], rev),
        _ => true,
    }
}

fn served_stable(s: &State, asked: What, keys: &[Key]) -> bool {
    s.served
        .is_none_or(|(what, rev, seen)| what != asked || seen == whole(s, keys, rev))
}

/// Without further failures and requests, a split that began has its map.
fn split_ends(model: &Model, s: &State) -> bool {
    let mut s = s.clone();
    let proceeds = |s: &State, a: &Action| match *a {
        // A deposed leader may be gone.
        Action::Map(term) => term == s.groups[PARENT].term(),
        Action::Noop(_) | Action::Commit(..) | Action::LearnMap(..) => true,
        _ => false,
    };
    let next = |s: &State| model.enabled(s).into_iter().find(|a| proceeds(s, a));
    while let Some(action) = next(&s) {
        model.act(&mut s, action);
    }
    s.map || !s.groups[PARENT].log.contains(&Entry::Split)
}
