//! Transfers move what is in accounts and change nothing of the sum: in no
//! read of them all, and at no revision.

use std::collections::BTreeMap;

use bytes::Bytes;
use pontoon_engine::{Answer, KeyRange, KeyValue, Range, Request};

use crate::history::{History, Outcome};
use crate::plan::Plan;
use crate::workload::accounts;

pub(crate) const PROMISE: &str = "What is in all accounts together is the same in every snapshot.";

pub(crate) fn check(plan: &Plan, history: &History) -> Result<(), String> {
    if plan.accounts == 0 {
        return Ok(());
    }
    for operation in &history.operations {
        if let (Some(Request::Range(range)), Outcome::Answer(Answer::Range(answer))) =
            (operation.asked.request(), &operation.outcome)
            && shows_all(&range)
        {
            adds_up(plan, &answer.kvs).map_err(|wrong| format!("{wrong}\n{operation}"))?;
        }
    }
    let mut state: BTreeMap<Bytes, KeyValue> = BTreeMap::new();
    let accounts = accounts::all(plan);
    for (revision, write) in &history.truth.writes {
        let changes = write.values();
        let mut news = false;
        for changed in changes.filter(|changed| accounts.contains(&changed.key)) {
            news = true;
            match &changed.kv {
                Some(kv) => drop(state.insert(changed.key.clone(), kv.clone())),
                None => drop(state.remove(&changed.key)),
            }
        }
        if news {
            let all: Vec<_> = state.values().cloned().collect();
            adds_up(plan, &all).map_err(|wrong| format!("revision {revision}: {wrong}"))?;
        }
    }
    Ok(())
}

fn shows_all(range: &Range) -> bool {
    let plain = Range {
        revision: range.revision,
        ..Range::of(KeyRange::all())
    };
    *range == plain
}

/// None is there yet, or all are.
fn adds_up(plan: &Plan, kvs: &[KeyValue]) -> Result<(), String> {
    let accounts = accounts::all(plan);
    let found = kvs.iter().filter(|kv| accounts.contains(&kv.key));
    let found: Vec<_> = found.map(accounts::balance).collect();
    if found.is_empty() {
        return Ok(());
    }
    let sum: Option<i64> = found.iter().copied().sum();
    match found.len() == accounts.len() && sum == Some(accounts::total(plan)) {
        true => Ok(()),
        false => Err(format!("{} accounts have {found:?}", accounts.len())),
    }
}
