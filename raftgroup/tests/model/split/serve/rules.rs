//! Each step of the split is needed, and with all of them no promise breaks.

use super::promise::Promise;
use super::{Bounds, Budget, Model};
use crate::proof::{holds, rules};

rules! {
    /// The parent's leader evaluates nothing after it proposed the split.
    stops_evaluating: breaks(NoWriteLost)
        { writes_b: 1, splits: 1 };
    /// It has no grant asked or pending when it proposes it.
    split_after_drain: breaks(NoWriteLost)
        { writes_b: 1, splits: 1 };
    /// Nor an undecided prepare.
    split_after_decisions: breaks(NoWriteLost)
        { txns_b: 1, splits: 1 };
    /// Root gets the map when the split entry is applied, not when proposed.
    map_after_split_entry: breaks(OneOwner)
        { splits: 1 };
    /// A new leader that finds the split entry without the map repeats it.
    new_leader_repeats_the_map: breaks(SplitEnds)
        { splits: 1, elections: 1 } { drain: true };
    /// The sequencer knows no group that is not in its map; a child that waits
    /// for the map by itself would do.
    hello_needs_the_map and halves_wait_for_the_map: breaks(MemberReadStable)
        { writes_b: 1, splits: 1, marks: 1, looks: 1 };
    /// Neither half evaluates before the map; the child's Hello is refused until
    /// then, so this only saves the parent a refusal.
    halves_wait_for_the_map: changes_nothing()
        { writes_a: 1, writes_b: 1, splits: 1, marks: 2, looks: 1 };
    /// A request evaluated before the map is refused after it; who owned the key
    /// then stopped and drained, so this guards only against late readers of root.
    refuse_stale_ask_rule_15: changes_nothing()
        { writes_a: 1, writes_b: 1, splits: 1, elections: 1 };
    /// A leader compares its bounds when it answers, not when it was asked.
    bounds_when_answering: breaks(ReadStable)
        { writes_b: 1, splits: 1, reads: 1 };
    /// A replica passes a mark when its node has the root index that it carries.
    passed_needs_root_index_rule_8: breaks(MemberReadStable)
        { writes_b: 1, splits: 1, marks: 1, looks: 1 };
    /// A member compares the map after it took what is passed.
    map_compared_after_passing: breaks(MemberReadStable)
        { writes_b: 1, splits: 1, marks: 1, looks: 1 };
    /// It compares the bounds then, too.
    bounds_compared_after_passing: breaks(MemberReadStable)
        { writes_b: 1, splits: 1, marks: 1, looks: 1 };
    /// A watch is over both halves from the split entry on.
    watch_crosses_at_split_entry: breaks(WatchWhole)
        { writes_a: 1, writes_b: 1, splits: 1, marks: 2, looks: 1 };
}

mod small {
    use super::*;
    holds! {
        split_while_both_fail:
            { root_elections: 1, elections: 1, writes_a: 1, writes_b: 1, splits: 1 }
            { drain: true };
        reads_beside_a_split:
            { root_elections: 1, writes_b: 2, splits: 1, reads: 1 };
        reads_beside_a_split_and_an_election:
            { elections: 1, writes_b: 2, splits: 1, reads: 1 };
        members_beside_a_split:
            { writes_a: 1, writes_b: 1, splits: 1, marks: 2, looks: 1 };
        members_beside_a_txn_and_a_split:
            { writes_a: 1, txns_b: 1, splits: 1, marks: 1, looks: 1 };
        members_beside_a_split_and_a_new_sequencer:
            { root_elections: 1, writes_b: 1, splits: 1, marks: 1, looks: 1 };
    }
}

/// Too large to be explored to the end: the first states by the number of steps.
mod cut_off {
    use super::*;
    holds! {
        #[ignore = "large"]
        members_while_both_fail at first:
            { root_elections: 1, elections: 1, writes_a: 1, writes_b: 2, splits: 1, marks: 2,
              looks: 1 };
    }
}
