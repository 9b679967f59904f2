//! A lease lives at least as long as was promised with its last sign of life.
//! When it is gone it stays gone, with all its keys, which went in one
//! revision.
//!
//! That all its keys went, and no others, is checked where writes without a
//! name are explained (`lost.rs`) and where revokes are replayed (`reads.rs`).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use pontoon_engine::{KeyValue, Reject, Request};
use pontoon_raftgroup::Failure;

use super::reads::leases_of;
use crate::history::{Asked, History, Operation, Outcome, Write};
use crate::plan::Plan;

pub(crate) const PROMISE: &str =
    "A lease lives as long as was promised, and goes for good, with all its keys.";

pub(crate) fn check(plan: &Plan, history: &History) -> Result<(), String> {
    // How long the shortest second of a node may be, in percent.
    let second = plan.shape.seconds.iter().copied().min();
    let second = second.unwrap_or(100).min(100);
    let leases = all(history, second);
    for lease in leases.values() {
        lease.lives()?;
        lease.stays_gone()?;
    }
    ends_in_time(history, &leases)?;
    statuses_agree(history)?;
    let left = history.truth.state_before(i64::MAX);
    match left.values().find(|kv| kv.lease != 0) {
        Some(kv) => Err(format!("in the end there is {kv:?}")),
        None => Ok(()),
    }
}

/// What clients did with a lease and saw of it.
#[derive(Default)]
struct Lease<'a> {
    grants: Vec<&'a Operation>,
    revokes: Vec<&'a Operation>,
    /// With the time before which it can't end by itself.
    renewed: Vec<(&'a Operation, Duration)>,
    seen_alive: Vec<&'a Operation>,
    seen_gone: Vec<&'a Operation>,
}

fn all(history: &History, second: u32) -> BTreeMap<i64, Lease<'_>> {
    let mut leases: BTreeMap<i64, Lease<'_>> = BTreeMap::new();
    for operation in &history.operations {
        let until = |ttl_secs: i64| {
            let ttl = Duration::from_secs(ttl_secs.max(0) as u64);
            (operation, operation.at + ttl * second / 100)
        };
        match (&operation.asked, &operation.outcome) {
            (Asked::Grant { .. }, Outcome::Granted(granted)) => {
                let lease = leases.entry(granted.id).or_default();
                lease.grants.push(operation);
                lease.seen_alive.push(operation);
                lease.renewed.push(until(granted.ttl_secs));
            }
            (Asked::Grant { id, .. }, _) => leases.entry(*id).or_default().grants.push(operation),
            (Asked::KeepAlive(id), Outcome::Alive(alive)) => {
                let lease = leases.entry(*id).or_default();
                match alive {
                    Some(ttl_secs) => {
                        lease.seen_alive.push(operation);
                        lease.renewed.push(until(*ttl_secs));
                    }
                    None => lease.seen_gone.push(operation),
                }
            }
            (Asked::Status { id, .. }, Outcome::Status(status)) => {
                let lease = leases.entry(*id).or_default();
                match status {
                    Some(_) => lease.seen_alive.push(operation),
                    None => lease.seen_gone.push(operation),
                }
            }
            (Asked::Revoke(id), outcome) => {
                let lease = leases.entry(*id).or_default();
                lease.revokes.push(operation);
                if matches!(outcome, Outcome::Answer(_)) || is_not_found(outcome) {
                    lease.seen_gone.push(operation);
                }
            }
            (Asked::Request(request), outcome) => {
                let mut named = BTreeSet::new();
                leases_of(request, &mut named);
                named.remove(&0);
                let (Some(id), true) = (named.first(), named.len() == 1) else {
                    continue;
                };
                let lease = leases.entry(*id).or_default();
                match (request, outcome) {
                    (Request::Put(_), Outcome::Answer(_)) => lease.seen_alive.push(operation),
                    (_, outcome) if is_not_found(outcome) => lease.seen_gone.push(operation),
                    _ => {}
                }
            }
            _ => {}
        }
    }
    leases
}

fn is_not_found(outcome: &Outcome) -> bool {
    *outcome_reject(outcome).unwrap_or(&Reject::EmptyKey) == Reject::LeaseNotFound
}

fn outcome_reject(outcome: &Outcome) -> Option<&Reject> {
    match outcome {
        Outcome::Failed(Failure::Reject(reject)) => Some(reject),
        _ => None,
    }
}

impl Lease<'_> {
    /// Nobody finds it gone before its time, unless it was revoked.
    fn lives(&self) -> Result<(), String> {
        for (renewed, until) in &self.renewed {
            for gone in &self.seen_gone {
                let mut revokes = self.revokes.iter();
                let early = renewed.returned < gone.invoked && gone.until < *until;
                if early && !revokes.any(|revoke| revoke.may_lie_between(renewed, gone)) {
                    return Err(format!("first\n{renewed}\nand too early\n{gone}"));
                }
            }
        }
        Ok(())
    }

    /// Nobody finds it again, unless it was granted again.
    fn stays_gone(&self) -> Result<(), String> {
        for gone in &self.seen_gone {
            for alive in &self.seen_alive {
                let mut grants = self.grants.iter();
                if gone.returned < alive.invoked
                    && !grants.any(|grant| grant.may_lie_between(gone, alive))
                {
                    return Err(format!("first\n{gone}\nand later\n{alive}"));
                }
            }
        }
        Ok(())
    }
}

type State = BTreeMap<Bytes, KeyValue>;

/// No write takes the keys of a lease that lives; and when they were revoked,
/// none hangs on it later.
fn ends_in_time(history: &History, leases: &BTreeMap<i64, Lease<'_>>) -> Result<(), String> {
    let answered: BTreeSet<_> = history
        .operations
        .iter()
        .filter(|operation| operation.wrote())
        .filter_map(Operation::revision)
        .collect();
    let mut state = State::new();
    let mut revoked = BTreeMap::new();
    for (revision, write) in &history.truth.writes {
        let ends = (!answered.contains(revision))
            .then(|| ending(&state, write))
            .flatten();
        if let Some((id, lease)) = ends.and_then(|id| Some((id, leases.get(&id)?)))
            && lease.grants.len() == 1
        {
            let seen = history.truth.seen[revision];
            let early = lease.renewed.iter().find(|(_, until)| seen < *until);
            let mut revokes = lease.revokes.iter();
            let revoke = revokes.find(|revoke| revoke.revision() == Some(*revision));
            if let (Some(revoke), None) = (revoke, revoked.get(&id)) {
                revoked.insert(id, *revoke);
            }
            if let Some((renewed, _)) = early
                && lease.revokes.is_empty()
                && !somebody_may_have_deleted(history, write)
            {
                return Err(format!(
                    "revision {revision} has the end of lease {id}, too early after\n{renewed}"
                ));
            }
        }
        for changed in write.values() {
            if let Some(kv) = &changed.kv
                && let Some(revoke) = revoked.get(&kv.lease)
            {
                return Err(format!("revision {revision} has {kv:?} after\n{revoke}"));
            }
            match &changed.kv {
                Some(kv) => drop(state.insert(changed.key.clone(), kv.clone())),
                None => drop(state.remove(&changed.key)),
            }
        }
    }
    Ok(())
}

/// The lease whose keys, all of them, a write deletes.
fn ending(state: &State, write: &Write) -> Option<i64> {
    let first = write.values().next()?;
    let lease = state.get(&first.key)?.lease;
    let due = state.values().filter(|kv| kv.lease == lease);
    let due: BTreeSet<_> = due.map(|kv| &kv.key).collect();
    let deleted = write.values().filter(|changed| changed.kv.is_none());
    let deleted: BTreeSet<_> = deleted.map(|changed| &changed.key).collect();
    (lease != 0 && deleted.len() == write.len() && due == deleted).then_some(lease)
}

fn somebody_may_have_deleted(history: &History, write: &Write) -> bool {
    let mut unknown = history
        .operations
        .iter()
        .filter(|operation| matches!(operation.outcome, Outcome::Unknown(_)));
    unknown.any(|operation| match &operation.asked {
        Asked::Request(Request::DeleteRange(delete)) => write
            .values()
            .all(|changed| delete.keys.contains(&changed.key)),
        _ => false,
    })
}

/// Of each key that is told with a lease: it hung on it at some revision
/// between question and answer. Of each other: at some it didn't. The groups
/// are not asked at one revision.
fn statuses_agree(history: &History) -> Result<(), String> {
    let told = || {
        let linearizable = history.operations.iter();
        let linearizable = linearizable.filter(|operation| !operation.is_serializable());
        linearizable.filter_map(|operation| Some((operation.revision()?, operation)))
    };
    for operation in &history.operations {
        let (Asked::Status { id, keys: true }, Outcome::Status(Some(status))) =
            (&operation.asked, &operation.outcome)
        else {
            continue;
        };
        let before = told().filter(|(_, other)| other.returned < operation.invoked);
        let lowest = before.map(|(revision, _)| revision).max().unwrap_or(0);
        let after = told().filter(|(_, other)| other.invoked > operation.returned && other.wrote());
        let highest = after.map(|(revision, _)| revision - 1).min();
        let found: BTreeSet<_> = status.keys.iter().collect();
        let mut state = history.truth.state_before(lowest + 1);
        let due = |state: &BTreeMap<&Bytes, &KeyValue>| {
            let attached = state.values().filter(|kv| kv.lease == *id);
            attached.map(|kv| kv.key.clone()).collect::<BTreeSet<_>>()
        };
        let mut ever = due(&state);
        let mut always = ever.clone();
        let writes = history.truth.writes.range(lowest + 1..);
        for (_, write) in writes.take_while(|(at, _)| highest.is_none_or(|top| **at <= top)) {
            for changed in write.values() {
                match &changed.kv {
                    Some(kv) => drop(state.insert(&changed.key, kv)),
                    None => drop(state.remove(&changed.key)),
                }
            }
            let now = due(&state);
            always.retain(|key| now.contains(key));
            ever.extend(now);
        }
        let right = always.iter().all(|key| found.contains(key))
            && found.iter().all(|key| ever.contains(*key));
        if !right || status.ttl_secs > status.granted_secs {
            return Err(format!("not from {lowest} to {highest:?}:\n{operation}"));
        }
    }
    Ok(())
}
