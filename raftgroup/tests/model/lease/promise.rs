//! What clients may rely on about leases.

use super::action::{Action, Model};
use super::state::*;
use crate::search::Protocol;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Promise {
    NoKeyOfGoneLease,
    OnlyAttachedDeleted,
    KeepaliveMeansAlive,
    NotBeforeItsTime,
    RevokeEnds,
}

type Holds = fn(&State) -> bool;

/// The first promise that this state breaks.
pub(crate) fn broken(model: &Model, s: &State) -> Option<Promise> {
    let promises: [(Promise, Holds); 4] = [
        (Promise::NoKeyOfGoneLease, no_key_of_gone_lease),
        (Promise::OnlyAttachedDeleted, only_attached_deleted),
        (Promise::KeepaliveMeansAlive, |s| !s.kept_dead),
        (Promise::NotBeforeItsTime, not_before_its_time),
    ];
    let first = promises.iter().find(|(_, holds)| !holds(s)).map(|p| p.0);
    let stuck = || (model.bounds.drain && !revoke_ends(model, s)).then_some(Promise::RevokeEnds);
    first.or_else(stuck)
}

/// No key is attached to a lease that is gone.
fn no_key_of_gone_lease(s: &State) -> bool {
    let free = |life| s.groups.iter().all(|g| attached(&g.log, life) == 0);
    s.log.iter().all(|e| match *e {
        RootEntry::Gone(life) => free(life),
        _ => true,
    })
}

/// What a lease takes with it was attached to it then.
fn only_attached_deleted(s: &State) -> bool {
    s.groups.iter().all(|g| {
        g.log.iter().enumerate().all(|(at, e)| match *e {
            Entry::Delete(life, count) => attached(&g.log[..at], life) == count,
            _ => true,
        })
    })
}

/// No lease expires while its client was promised that it lives.
fn not_before_its_time(s: &State) -> bool {
    let expired = |e: &RootEntry| matches!(e, RootEntry::Revoking { expired: true, .. });
    s.now >= s.promised || !s.log.iter().any(expired)
}

/// Without further failures and requests, a lease that is revoked goes.
fn revoke_ends(model: &Model, s: &State) -> bool {
    let mut s = s.clone();
    let failure_or_request = |a: &Action| {
        matches!(
            a,
            Action::RootElect
                | Action::Elect(_)
                | Action::Ask(..)
                | Action::Revoke(_)
                | Action::Regrant(_)
                | Action::Split(_)
                | Action::Register(..)
                | Action::Tick
                | Action::Expire(_)
                | Action::KeepArrive(_)
        )
    };
    let deposed = |s: &State, a: &Action| match *a {
        Action::Begin(e) => e < s.epoch(),
        Action::Latch(e, g, term) => e < s.epoch() || term < s.groups[g].term(),
        _ => false,
    };
    let next = |s: &State| {
        let mut enabled = model.enabled(s).into_iter();
        enabled.find(|a| !failure_or_request(a) && !deposed(s, a))
    };
    while let Some(action) = next(&s) {
        model.act(&mut s, action);
    }
    s.log.iter().all(|e| match *e {
        RootEntry::Revoking { life, .. } => s.log.contains(&RootEntry::Gone(life)),
        _ => true,
    })
}
