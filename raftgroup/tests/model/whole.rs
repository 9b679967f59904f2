//! With all rules, nothing breaks: complete explorations of small bounds by
//! theme, and a part of larger ones on demand.

use crate::action::Model;
use crate::proof::holds;
use crate::rules::Rules;
use crate::state::{Bounds, Budget};

mod small {
    use super::*;
    holds! {
        sequencer_failover:
            { elections: [1, 0, 0], writes: [0, 1, 1], marks: 2 } { member_reads: &[1, 2] };
        group_failover:
            { elections: [0, 1, 0], writes: [0, 2, 0], marks: 2 } { member_reads: &[1, 2] };
        both_fail:
            { elections: [1, 1, 0], writes: [0, 1, 0], marks: 1 } { member_reads: &[1] };
        reads_while_both_fail:
            { elections: [1, 1, 0], writes: [0, 1, 0] } { reads: &[&[1]], data_groups: 1 };
        read_over_groups:
            { writes: [0, 1, 1] } { reads: &[&[1, 2]] };
        lost_and_doubled:
            { reconnects: 1, copies: 1, writes: [0, 2, 0], marks: 1 }
            { member_reads: &[1], announced: false };
        root_writes:
            { elections: [1, 0, 0], writes: [1, 1, 0] } { reads: &[&[1]], data_groups: 1 };
        freshness:
            { elections: [1, 0, 0], writes: [0, 1, 0], compacts: 1 }
            { reads: &[&[1]], data_groups: 1 };
        dependent_writes:
            { elections: [0, 1, 0], reconnects: 1, writes: [0, 2, 0], compacts: 1 }
            { one_key: true, data_groups: 1 };
        member_answers:
            { writes: [1, 1, 0], marks: 2, member_answers: 2 }
            { member_reads: &[0, 1], data_groups: 1 };
        resolution:
            { elections: [1, 1, 0], reconnects: 1, writes: [0, 1, 0], copies: 1 }
            { drain: true };
        resolution_of_dependent_writes:
            { elections: [1, 0, 0], writes: [0, 2, 0], compacts: 1 }
            { drain: true, one_key: true, data_groups: 1 };
        first_split:
            { elections: [1, 0, 0], writes: [1, 1, 0], splits: 1, marks: 1 }
            { one_group: true, member_reads: &[1], data_groups: 1 };
        merge_back:
            { elections: [1, 0, 0], writes: [0, 1, 0], merges: 1 }
            { reads: &[&[0]], data_groups: 1 };
        split_and_merge:
            { writes: [1, 1, 0], splits: 1, merges: 1 }
            { one_group: true, drain: true, reads: &[&[0]], data_groups: 1 };
        txn_beside_writes:
            { writes: [0, 0, 1], releases: 1, marks: 1 }
            { txns: &[&[1, 2]], member_reads: &[2] };
        txn_with_root:
            { elections: [1, 0, 0], marks: 1 }
            { txns: &[&[0, 1]], member_reads: &[1], data_groups: 1 };
        txn_and_root_write_on_one_key:
            { elections: [1, 0, 0], writes: [1, 0, 0] }
            { txns: &[&[0, 1]], one_key: true, data_groups: 1 };
        txn_and_write_on_one_key:
            { elections: [0, 1, 0], writes: [0, 1, 0] } { txns: &[&[1, 2]], one_key: true };
        reads_over_a_txn:
            { elections: [0, 1, 0] } { txns: &[&[1, 2]], reads: &[&[1]] };
        read_over_groups_of_a_txn:
            { releases: 1 } { txns: &[&[0, 1]], reads: &[&[0, 1]], data_groups: 1 };
        txns_one_after_the_other:
            { elections: [0, 0, 0] } { txns: &[&[1, 2], &[1, 2]], one_key: true };
        two_undecided_txns:
            { marks: 1 }
            { txns: &[&[0, 1], &[0, 1]], member_reads: &[1], data_groups: 1, swift: true };
        resolution_of_a_txn:
            { elections: [0, 1, 0], reconnects: 1 } { txns: &[&[1, 2]], drain: true };
        late_questions:
            { elections: [0, 1, 0], forgets: 2, late_questions: 1 } { txns: &[&[1, 2]] };
        lost_grants_of_a_txn:
            { reconnects: 1, copies: 1, forgets: 1 } { txns: &[&[1, 2]] };
        coordinator_asks:
            { elections: [0, 1, 0], releases: 1, forgets: 2, settles: 2 } { txns: &[&[1, 2]] };
        coordinator_asks_after_lost_grants:
            { elections: [1, 0, 0], reconnects: 1, settles: 1 } { txns: &[&[1, 2]] };
    }
}

/// Complete, in minutes.
mod large {
    use super::*;
    holds! {
        #[ignore = "large"]
        txn_beside_writes_in_both:
            { writes: [0, 1, 1], releases: 1, marks: 1 }
            { txns: &[&[1, 2]], member_reads: &[2] };
        #[ignore = "large"]
        resolution_beside_root_writes:
            { elections: [1, 1, 0], reconnects: 1, writes: [1, 1, 0], copies: 1 }
            { drain: true, data_groups: 1 };
    }
}

/// Too large to be explored to the end: the first states by the number of steps.
mod cut_off {
    use super::*;
    holds! {
        #[ignore = "large"]
        both_fail_beside_writes at first:
            { elections: [1, 1, 0], reconnects: 1, writes: [0, 2, 1], marks: 2 }
            { member_reads: &[1, 2] };
        #[ignore = "large"]
        reads_over_groups_while_both_fail at first:
            { elections: [1, 1, 0], writes: [0, 1, 1] } { reads: &[&[1, 2]] };
        #[ignore = "large"]
        two_sequencer_failovers at first:
            { elections: [2, 0, 0], writes: [1, 1, 1], marks: 1 } { member_reads: &[1] };
        #[ignore = "large"]
        txn_while_both_fail at first:
            { elections: [1, 1, 0], reconnects: 1 } { txns: &[&[1, 2]], drain: true };
        #[ignore = "large"]
        txn_of_three_groups at first:
            { elections: [1, 1, 0], forgets: 1 } { txns: &[&[0, 1, 2]] };
        #[ignore = "large"]
        late_questions_while_both_participants_fail at first:
            { elections: [0, 1, 1], forgets: 3, late_questions: 2 } { txns: &[&[1, 2]] };
        #[ignore = "large"]
        two_undecided_txns_beside_a_write at first:
            { elections: [0, 1, 0], writes: [0, 1, 0], marks: 1 }
            { txns: &[&[0, 1], &[0, 1]], member_reads: &[1], data_groups: 1, swift: true };
        #[ignore = "large"]
        two_undecided_txns_and_a_new_sequencer at first:
            { elections: [1, 0, 0], writes: [1, 0, 0] }
            { txns: &[&[0, 1], &[0, 1]], reads: &[&[1]], data_groups: 1, swift: true };
        #[ignore = "large"]
        merge_back_while_both_fail at first:
            { elections: [1, 1, 0], writes: [1, 1, 0], merges: 1 }
            { reads: &[&[0]], data_groups: 1 };
    }
}

/// Larger still: random walks.
mod random {
    use super::*;
    holds! {
        #[ignore = "large"]
        txns_and_all_failures at random:
            { elections: [2, 2, 2], reconnects: 2, copies: 2, writes: [2, 2, 2], releases: 1,
              forgets: 4, late_questions: 2, settles: 2, marks: 3 }
            { txns: &[&[0, 1, 2], &[1, 2]], reads: &[&[1, 2]], member_reads: &[0, 1, 2],
              ceiling_start: 4, ceiling_step: 4 };
        #[ignore = "large"]
        txns_on_one_key_and_all_failures at random:
            { elections: [2, 2, 2], reconnects: 2, copies: 2, writes: [2, 2, 2], releases: 1,
              forgets: 4, late_questions: 2, settles: 2, marks: 3, member_answers: 2 }
            { txns: &[&[0, 1, 2], &[0, 2]], reads: &[&[0, 2]], member_reads: &[0, 2],
              one_key: true, ceiling_start: 4, ceiling_step: 4 };
    }
}
