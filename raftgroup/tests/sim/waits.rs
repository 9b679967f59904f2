//! How long clients waited, and how often in vain, at most.

use std::collections::BTreeMap;
use std::time::Duration;

use pontoon_engine::{Answer, Request};

use crate::cluster::Shape;
use crate::history::{Asked, History, Outcome};

pub(crate) fn longest(history: &History, shape: &Shape) -> BTreeMap<&'static str, u64> {
    let regions = history.regions(shape);
    let mut longest = BTreeMap::new();
    let mut note = |what, value: u64| {
        let known = longest.entry(what).or_insert(0);
        *known = value.max(*known);
    };
    // Of each client, comparisons that failed since the last that held.
    let mut in_vain: BTreeMap<u64, u64> = BTreeMap::new();
    for operation in &history.operations {
        let Some(request) = operation.asked.request() else {
            continue;
        };
        if operation.until == Duration::MAX {
            continue;
        }
        let waited = (operation.until - operation.at).as_millis() as u64;
        let several = regions.groups_of(&request).len() > 1;
        let reads = matches!(request, Request::Range(_));
        let what = match (&operation.asked, reads, several) {
            (Asked::Serializable(_), ..) => "longest wait, ms: serializable read",
            (_, true, false) => "longest wait, ms: read",
            (_, true, true) => "longest wait, ms: read over groups",
            (_, false, false) => "longest wait, ms: write",
            (_, false, true) => "longest wait, ms: write over groups",
        };
        note(what, waited);
        if several && operation.at >= history.healed {
            note("longest wait, ms: over groups, after the faults", waited);
        }
        let (Request::Txn(_), true) = (&request, several) else {
            continue;
        };
        let tries = in_vain.entry(operation.client).or_default();
        match &operation.outcome {
            Outcome::Answer(Answer::Txn(answer)) if answer.succeeded => *tries = 0,
            _ => *tries += 1,
        }
        note("most in a row: txns over groups in vain", *tries);
    }
    longest
}
