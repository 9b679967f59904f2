//! What must hold for a run, a file for each promise.

mod lost;
mod progress;
mod reads;
mod replicas;
mod revisions;
mod watches;

use crate::end::End;
use crate::history::History;

/// The promises that a run breaks, each with where it does.
pub(crate) fn check(history: &History, end: &End) -> Vec<(&'static str, String)> {
    let mut broken = history.violations.clone();
    let checked = [
        (revisions::PROMISE, revisions::check(history)),
        (lost::PROMISE, lost::check(history)),
        (reads::PROMISE, reads::check(history)),
        (watches::PROMISE, watches::check(history)),
        (replicas::PROMISE, replicas::check(history, end)),
        (progress::PROMISE, progress::check(end)),
    ];
    for (promise, result) in checked {
        if let Err(detail) = result {
            broken.push((promise, detail));
        }
    }
    broken
}
