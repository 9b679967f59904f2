//! Every state reachable within the bounds is visited once, breadth first, so
//! the first violation found has a shortest trace.
//!
//! States are remembered by 64 bits of hash. A collision hides a state, it
//! never invents a violation: a trace is replayed from the start when printed.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};

use rustc_hash::FxHashSet;

use crate::action::{Action, Model};
use crate::invariants::{self, Invariant};
use crate::state::State;

/// What a search saw.
pub(crate) struct Found {
    pub(crate) states_count: usize,
    /// False when `states_max` ended the search early.
    pub(crate) complete: bool,
    /// In some state every request and failure of the bounds had happened, and
    /// every request had succeeded: the bounds don't hold vacuously.
    pub(crate) fulfilled: bool,
    pub(crate) violation: Option<Violation>,
}

/// The invariant that broke and the steps that lead there.
pub(crate) struct Violation {
    pub(crate) invariant: Invariant,
    pub(crate) trace: Vec<String>,
}

/// Explores `model` until something breaks, nothing is left, or `states_max`.
pub(crate) fn explore(model: &Model, states_max: usize) -> Found {
    let init = State::init(&model.bounds);
    let mut seen = FxHashSet::default();
    // Parent and step of every state, in order of discovery.
    let mut steps: Vec<(u32, Action)> = vec![(0, Action::ElectRoot)];
    let mut queue = VecDeque::from([(0u32, init.clone())]);
    seen.insert(fingerprint(&init));
    let mut complete = true;
    let mut fulfilled = false;
    while let Some((at, state)) = queue.pop_front() {
        if let Some(invariant) = invariants::broken(model, &state) {
            let trace = replay(model, init, &steps, at);
            let violation = Some(Violation { invariant, trace });
            return Found {
                states_count: steps.len(),
                complete,
                fulfilled,
                violation,
            };
        }
        fulfilled = fulfilled || invariants::fulfilled(model, &state);
        for action in model.enabled(&state) {
            if steps.len() >= states_max {
                complete = false;
                break;
            }
            let mut next = state.clone();
            model.act(&mut next, action);
            if seen.insert(fingerprint(&next)) {
                let id = u32::try_from(steps.len()).expect("states_max fits 32 bits");
                steps.push((at, action));
                queue.push_back((id, next));
            }
        }
    }
    Found {
        states_count: steps.len(),
        complete,
        fulfilled,
        violation: None,
    }
}

fn fingerprint(state: &State) -> u64 {
    let mut hasher = DefaultHasher::new();
    state.hash(&mut hasher);
    hasher.finish()
}

fn replay(model: &Model, mut state: State, steps: &[(u32, Action)], mut at: u32) -> Vec<String> {
    let mut path = Vec::new();
    while at != 0 {
        let (parent, action) = steps[at as usize];
        path.push(action);
        at = parent;
    }
    let mut trace = Vec::new();
    for action in path.into_iter().rev() {
        trace.push(model.label(&state, action));
        model.act(&mut state, action);
    }
    trace.push(format!("logs: {}", state.logs()));
    trace
}
