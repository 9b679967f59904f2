//! What is claimed about a model, as tests: with all rules no promise breaks,
//! and without any one of them, and with all others, one does.
//!
//! The macros expect `Model`, `Rules`, `Budget`, `Bounds` and `Promise` of the
//! model in scope.

use std::time::Instant;

use crate::search::{Found, Protocol, explore, wander};

/// Searches larger than this say nothing about a rule in a test's time.
const WITHOUT_STATES_MAX: usize = 400_000;
/// An exploration that claims to be complete has fewer states.
const WHOLE_STATES_MAX: usize = 3_000_000;
/// One that is cut off ends here, unless `PONTOON_MODEL_STATES` says otherwise.
const CUT_OFF_STATES_MAX: usize = 3_000_000;

const WALKS_COUNT: usize = 400_000;
const SEED: u64 = 0x5eed;
const WALK_STEPS_MAX: usize = 150;

/// The rule is needed: `without` it the promise breaks, and the same bounds
/// are clean with all rules.
pub(crate) fn breaks<M: Protocol>(name: &str, without: M, whole: M, promise: M::Promise) {
    let found = explore(&without, WITHOUT_STATES_MAX);
    let count = found.states_count;
    let Some(violation) = found.violation else {
        panic!(
            "nothing broke without {name}: {count} states, complete: {}",
            found.complete
        );
    };
    let mut trace = format!(
        "without {name}, {:?} breaks ({count} states)",
        violation.promise
    );
    for (n, step) in (1..).zip(&violation.trace) {
        trace += &format!("\n  {n:2}. {step}");
    }
    assert_eq!(violation.promise, promise, "{trace}");
    let whole = explore(&whole, WITHOUT_STATES_MAX);
    if let Some(violation) = whole.violation {
        panic!("{name} isn't what broke:\n{}", violation.trace.join("\n"));
    }
    assert!(whole.complete, "{name}: the bounds are too large to tell");
    println!(
        "{trace}\n  with all rules: all {} states are clean",
        whole.states_count
    );
}

/// The rule saves work or revisions, or is kept for what the model doesn't have.
pub(crate) fn changes_nothing<M: Protocol>(name: &str, without: M, _whole: M) {
    let found = explore(&without, WITHOUT_STATES_MAX);
    if let Some(violation) = found.violation {
        panic!(
            "needed after all: {:?}\n{}",
            violation.promise,
            violation.trace.join("\n")
        );
    }
    assert!(found.complete, "{name}: the bounds are too large to tell");
    println!(
        "without {name}, nothing breaks in {} states",
        found.states_count
    );
}

/// Nothing breaks in any state that the bounds allow: the search is complete.
pub(crate) fn nothing_breaks<M: Protocol>(name: &str, model: M) {
    let found = clean(name, model, WHOLE_STATES_MAX);
    assert!(found.complete, "{name}: the bounds are too large to say so");
    assert!(found.fulfilled, "{name} is vacuous");
}

/// Nothing breaks in the states that are reached by the fewest steps. The
/// search is cut off, so this says nothing of the others.
pub(crate) fn nothing_breaks_at_first<M: Protocol>(name: &str, model: M) {
    let states_max = match std::env::var("PONTOON_MODEL_STATES") {
        Ok(number) => number.parse().expect("PONTOON_MODEL_STATES is a number"),
        Err(_) => CUT_OFF_STATES_MAX,
    };
    let found = clean(name, model, states_max);
    assert!(found.fulfilled || !found.complete, "{name} is vacuous");
}

/// Explores up to `states_max` states, in which nothing may break.
fn clean<M: Protocol>(name: &str, model: M, states_max: usize) -> Found<M::Promise> {
    let start = Instant::now();
    let found = explore(&model, states_max);
    let how = if found.complete { "all" } else { "the first" };
    println!(
        "{name}: {how} {} states in {:.1?}",
        found.states_count,
        start.elapsed()
    );
    if let Some(violation) = &found.violation {
        panic!(
            "{:?} breaks:\n{}",
            violation.promise,
            violation.trace.join("\n")
        );
    }
    found
}

/// Nothing breaks on many random walks.
pub(crate) fn nothing_breaks_at_random<M: Protocol>(name: &str, model: M) {
    let found = wander(&model, SEED, WALKS_COUNT, WALK_STEPS_MAX);
    println!("{name}: {WALKS_COUNT} walks of up to {WALK_STEPS_MAX} steps");
    if let Some(violation) = found {
        panic!(
            "{:?} breaks:\n{}",
            violation.promise,
            violation.trace.join("\n")
        );
    }
}

/// The rules as data, and a test for each: the promise that its absence breaks
/// and the bounds in which that shows. With `and`, it is shown
/// together with another that would do for it.
macro_rules! rules {
    ($($(#[$doc:meta])* $rule:ident $(and $other:ident)?: $outcome:ident($($promise:ident)?)
        { $($budget:tt)* } $({ $($bound:tt)* })?;)*) => {
        /// The guards that can be taken away, one field each.
        #[derive(Clone, Copy, Debug)]
        pub(crate) struct Rules { $($(#[$doc])* pub(crate) $rule: bool,)* }

        impl Rules {
            /// The protocol as it is.
            pub(crate) const ALL: Rules = Rules { $($rule: true,)* };
        }

        mod without {
            use super::*;
            $(
                #[test]
                #[allow(clippy::needless_update, reason = "what isn't named is quiet")]
                fn $rule() {
                    let rules = Rules { $rule: false, $($other: false,)? ..Rules::ALL };
                    let budget = Budget { $($budget)*, ..Budget::NONE };
                    let bounds = Bounds { budget, $($($bound)*,)? ..Bounds::QUIET };
                    let (without, whole) =
                        (Model { rules, bounds }, Model { rules: Rules::ALL, bounds });
                    $crate::proof::$outcome(
                        stringify!($rule), without, whole, $(Promise::$promise)?
                    );
                }
            )*
        }
    };
}
pub(crate) use rules;

/// Explorations with all rules: complete, cut off (`at first`), or `at random`.
macro_rules! holds {
    ($($(#[$attr:meta])* $name:ident $(at $how:ident)?: { $($budget:tt)* } $({ $($bound:tt)* })?;)*) => {$(
        #[test]
        #[allow(clippy::needless_update, reason = "what isn't named is quiet")]
        $(#[$attr])*
        fn $name() {
            let budget = Budget { $($budget)*, ..Budget::NONE };
            let bounds = Bounds { budget, $($($bound)*,)? ..Bounds::QUIET };
            let model = Model { rules: Rules::ALL, bounds };
            $crate::proof::holds!(@ $($how)? stringify!($name), model);
        }
    )*};
    (@ first $name:expr, $model:ident) => { $crate::proof::nothing_breaks_at_first($name, $model) };
    (@ random $name:expr, $model:ident) => { $crate::proof::nothing_breaks_at_random($name, $model) };
    (@ $name:expr, $model:ident) => { $crate::proof::nothing_breaks($name, $model) };
}
pub(crate) use holds;
