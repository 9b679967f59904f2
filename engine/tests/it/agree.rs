//! The engine agrees with the naive model on random work: requests evaluated
//! ahead of their revisions, reads of the present and the past, events,
//! leases, compaction, staged transactions, and power cuts in between.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use pontoon_wal::disk::sim::Rng;

use crate::ops::{Action, Maker, Shape, shrink};

mod both;

use both::Both;

/// Each test does a quarter of a million actions.
const RUNS: u64 = 450;
const ACTIONS: u64 = 500;
const LONG_RUNS: u64 = 5;
const LONG_ACTIONS: u64 = 5000;
/// Stores that are split.
const SPLITS: u64 = 1000;

#[test]
fn agrees_with_the_model_1() {
    agrees("1", 0x1000_0000);
}

#[test]
fn agrees_with_the_model_2() {
    agrees("2", 0x2000_0000);
}

#[test]
fn agrees_with_the_model_3() {
    agrees("3", 0x3000_0000);
}

#[test]
fn agrees_with_the_model_4() {
    agrees("4", 0x4000_0000);
}

#[test]
fn a_split_store_and_what_was_split_off_agree_with_the_model() {
    let mut rounds = 0;
    for seed in 0x5000_0000..0x5000_0000 + SPLITS {
        let outcome = failure_of(|| both::split_run("/agree/split", seed));
        if let Some(failure) = outcome {
            panic!("seed {seed:#x}: {failure}");
        }
        rounds += 1;
    }
    assert_eq!(rounds, SPLITS);
}

/// Runs work from seeds, shrinks what fails and tells it.
fn agrees(name: &str, first_seed: u64) {
    let path = format!("/agree/{name}");
    let mut done = 0;
    let mut met = BTreeSet::new();
    let lengths = [(RUNS, ACTIONS), (LONG_RUNS, LONG_ACTIONS)];
    let lengths = lengths
        .iter()
        .flat_map(|&(runs, actions)| (0..runs).map(move |_| actions));
    for (seed, count) in (first_seed..).zip(lengths) {
        let mut actions = Vec::new();
        let failure = failure_of(|| random_run(&path, seed, count, &mut actions, &mut met));
        done += actions.len() as u64;
        if let Some(failure) = failure {
            panic!(
                "seed {seed:#x}: {}",
                shrunken(&path, seed, actions, failure)
            );
        }
    }
    assert_eq!(done, RUNS * ACTIONS + LONG_RUNS * LONG_ACTIONS);
    // Work that never gets into trouble proves little.
    assert_eq!(met.len(), 12, "met only {met:?}");
}

/// The least of the actions that fail, and how they fail.
fn shrunken(path: &str, seed: u64, actions: Vec<Action>, failure: String) -> String {
    let replay = |actions: &[Action]| {
        let mut revisions = Vec::new();
        let failure = failure_of(|| run(path, seed, actions, &mut revisions))?;
        Some((failure, revisions))
    };
    let actions = shrink(actions, |actions| Some(replay(actions)?.1));
    let Some((failure, _)) = replay(&actions) else {
        return format!("not if done again, but at first: {failure}");
    };
    let lines: String = actions
        .iter()
        .map(|action| format!("  {action}\n"))
        .collect();
    format!("{} actions are enough:\n{lines}=> {failure}", actions.len())
}

/// What a run says of itself or panics with.
fn failure_of(run: impl FnOnce() -> Result<(), String>) -> Option<String> {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(outcome) => outcome.err(),
        Err(panic) => Some(match panic.downcast::<String>() {
            Ok(text) => format!("panic: {text}"),
            Err(_) => "panic".into(),
        }),
    }
}

fn random_run(
    path: &str,
    seed: u64,
    count: u64,
    actions: &mut Vec<Action>,
    met: &mut BTreeSet<String>,
) -> Result<(), String> {
    let mut rng = Rng::new(seed);
    let shape = Shape::random(&mut rng);
    let mut both = Both::new(path, seed)?;
    for _ in 0..count {
        let mut maker = Maker {
            rng: &mut rng,
            shape,
            model: &both.model,
        };
        let action = maker.action();
        actions.push(action.clone());
        both.act(&action)?;
    }
    met.append(&mut both.met);
    both.compare_all()
}

/// Does it again; `revisions` gets the model's after each action.
fn run(path: &str, seed: u64, actions: &[Action], revisions: &mut Vec<i64>) -> Result<(), String> {
    let mut both = Both::new(path, seed)?;
    for action in actions {
        both.act(action)?;
        revisions.push(both.model.revision);
    }
    both.compare_all()
}
