//! Every state reachable within the bounds is visited once, breadth first, so
//! the first violation found has a shortest trace.
//!
//! States are remembered by 64 bits of hash. A collision hides a state, it
//! never invents a violation: a trace is replayed from the start when printed.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};

use rustc_hash::FxHashSet;

/// A protocol under some rules, within some bounds.
pub(crate) trait Protocol {
    type State: Clone + Hash;
    type Action: Copy;
    type Promise: Copy + Debug + PartialEq;

    fn init(&self) -> Self::State;
    /// All that may happen next.
    fn enabled(&self, s: &Self::State) -> Vec<Self::Action>;
    fn act(&self, s: &mut Self::State, action: Self::Action);
    /// The first promise that this state breaks.
    fn broken(&self, s: &Self::State) -> Option<Self::Promise>;
    /// Everything that the bounds allow has happened, and succeeded.
    fn fulfilled(&self, s: &Self::State) -> bool;
    /// The step in words that a trace shows.
    fn label(&self, s: &Self::State, action: Self::Action) -> String;
    /// The end of a trace.
    fn summary(&self, s: &Self::State) -> String;
}

/// What a search saw.
pub(crate) struct Found<P> {
    pub(crate) states_count: usize,
    /// False when `states_max` ended the search early.
    pub(crate) complete: bool,
    /// In some state every request and failure of the bounds had happened, and
    /// every request had succeeded: the bounds don't hold vacuously.
    pub(crate) fulfilled: bool,
    pub(crate) violation: Option<Violation<P>>,
}

/// The promise that broke and the steps that lead there.
pub(crate) struct Violation<P> {
    pub(crate) promise: P,
    pub(crate) trace: Vec<String>,
}

/// Explores `model` until something breaks, nothing is left, or `states_max`.
pub(crate) fn explore<M: Protocol>(model: &M, states_max: usize) -> Found<M::Promise> {
    let init = model.init();
    let mut seen = FxHashSet::default();
    // Parent and step of every state but the first, in order of discovery.
    let mut steps: Vec<(u32, M::Action)> = Vec::new();
    let mut queue = VecDeque::from([(0u32, init.clone())]);
    seen.insert(fingerprint(&init));
    let mut found = Found {
        states_count: 1,
        complete: true,
        fulfilled: false,
        violation: None,
    };
    while let Some((at, state)) = queue.pop_front() {
        if let Some(promise) = model.broken(&state) {
            let trace = replay(model, init, &steps, at);
            found.violation = Some(Violation { promise, trace });
            break;
        }
        found.fulfilled = found.fulfilled || model.fulfilled(&state);
        for action in model.enabled(&state) {
            if found.states_count >= states_max {
                found.complete = false;
                break;
            }
            let mut next = state.clone();
            model.act(&mut next, action);
            if seen.insert(fingerprint(&next)) {
                steps.push((at, action));
                found.states_count += 1;
                let id = u32::try_from(steps.len()).expect("states_max fits 32 bits");
                queue.push_back((id, next));
            }
        }
    }
    found
}

/// Takes `walks_count` random walks of `steps_max` steps, for bounds that are too
/// large to explore. The same seed takes the same walks.
pub(crate) fn wander<M: Protocol>(
    model: &M,
    seed: u64,
    walks_count: usize,
    steps_max: usize,
) -> Option<Violation<M::Promise>> {
    let mut random = seed | 1;
    for _ in 0..walks_count {
        let mut state = model.init();
        let mut trace = Vec::new();
        for _ in 0..steps_max {
            let enabled = model.enabled(&state);
            if enabled.is_empty() {
                break;
            }
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let at = usize::try_from(random >> 33).expect("31 bits") % enabled.len();
            trace.push(model.label(&state, enabled[at]));
            model.act(&mut state, enabled[at]);
            if let Some(promise) = model.broken(&state) {
                trace.push(model.summary(&state));
                return Some(Violation { promise, trace });
            }
        }
    }
    None
}

fn fingerprint(state: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    state.hash(&mut hasher);
    hasher.finish()
}

fn replay<M: Protocol>(
    model: &M,
    mut state: M::State,
    steps: &[(u32, M::Action)],
    mut at: u32,
) -> Vec<String> {
    let mut path = Vec::new();
    while at != 0 {
        let (parent, action) = steps[at as usize - 1];
        path.push(action);
        at = parent;
    }
    let mut trace = Vec::new();
    for action in path.into_iter().rev() {
        trace.push(model.label(&state, action));
        model.act(&mut state, action);
    }
    trace.push(model.summary(&state));
    trace
}
