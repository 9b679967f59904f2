//! What must hold for a run, a file for each promise.

mod accounts;
mod leases;
mod lost;
mod progress;
mod reads;
mod replicas;
mod revisions;
mod tests;
mod watches;

use crate::end::End;
use crate::history::History;
use crate::plan::Plan;
use crate::waits;

/// The promises that a run breaks, each with where it does.
pub(crate) fn check(plan: &Plan, history: &History, end: &End) -> Vec<(&'static str, String)> {
    let mut broken = history.violations.clone();
    let checked = [
        (revisions::PROMISE, revisions::check(history, &plan.shape)),
        (lost::PROMISE, lost::check(history)),
        (reads::PROMISE, reads::check(history)),
        (watches::PROMISE, watches::check(history)),
        (accounts::PROMISE, accounts::check(plan, history)),
        (leases::PROMISE, leases::check(plan, history)),
        (replicas::PROMISE, replicas::check(history, end)),
        (progress::PROMISE, progress::check(end)),
        (waits::PROMISE, waits::check(history, &plan.shape)),
    ];
    for (promise, result) in checked {
        if let Err(detail) = result {
            broken.push((promise, detail));
        }
    }
    broken
}
