//! Each rule of the protocol is needed: without it, and with all others, the
//! search finds a broken promise, and the same bounds are clean with all rules.
//! The numbers are those that code and documents use for the rules.

use crate::action::Model;
use crate::invariants::Promise;
use crate::proof::rules;
use crate::state::{Bounds, Budget};

rules! {
    /// A write is proposed only on what it was evaluated on.
    evaluated_on_last_rule_1: breaks(EvaluatedOnLast)
        { writes: [0, 2, 0], compacts: 1 } { one_key: true };
    /// A revision is granted only at or below the committed ceiling.
    ceiling_rule_2: breaks(UniqueRevisions)
        { elections: [1, 0, 0], writes: [0, 1, 1] } { ceiling_start: 0 };
    /// A new sequencer starts above the ceiling, not only above root's writes.
    start_above_ceiling_rule_2: breaks(UniqueRevisions)
        { elections: [1, 0, 0], writes: [0, 1, 1] };
    /// No read point above what a successor can't reuse.
    read_point_capped_rule_2: breaks(ReadSnapshotStable)
        { elections: [1, 0, 0], writes: [1, 1, 0] }
        { ceiling_start: 0, reads: &[&[1]], data_groups: 1 };
    /// No closed revision above what a successor can't reuse.
    closed_capped_rule_2: breaks(WatermarkStable)
        { elections: [1, 0, 0], writes: [1, 1, 0], marks: 1 }
        { ceiling_start: 0, member_reads: &[1], data_groups: 1 };
    /// The split that makes the second group carries the first ceiling.
    split_carries_ceiling_rule_2: breaks(UniqueRevisions)
        { elections: [1, 0, 0], writes: [0, 1, 1], splits: 1 } { one_group: true };
    /// A merge waits until every grant is resolved.
    merge_after_drain_rule_2: breaks(MergeWhole)
        { writes: [0, 1, 0], merges: 1 };
    /// A merge carries the last revision that was granted.
    merge_carries_floor_rule_2: breaks(RealTimeOrder)
        { writes: [0, 1, 0], merges: 1 } { reads: &[&[0]] };
    /// A grant leaves only after a root round.
    confirmed_rule_3: breaks(RealTimeOrder)
        { elections: [1, 0, 0], writes: [0, 1, 1] };
    /// A read point leaves only after a root round.
    read_point_confirmed_rule_3: breaks(RealTimeOrder)
        { elections: [1, 0, 0], writes: [0, 1, 0] } { reads: &[&[1]] };
    /// That round began after the allocation or capture.
    round_after_allocation_rule_3: breaks(ReadSnapshotStable)
        { elections: [1, 0, 0], writes: [0, 1, 0] } { reads: &[&[1]] };
    /// And it is of the epoch of the allocation or capture: not of one that the
    /// same node won since.
    round_of_own_term_rule_3: breaks(RealTimeOrder)
        { elections: [1, 0, 0], writes: [0, 1, 1] };
    /// A read point is captured when all that was committed before the round is
    /// applied: another member may have shown it. With one group, too.
    round_index_applied_rule_3: breaks(RealTimeOrder)
        { writes: [1, 0, 0], member_answers: 1 }
        { reads: &[&[0]], member_reads: &[0], ceiling_start: 0, data_groups: 1 };
    /// A Hello follows a round of the group begun after the epoch was met.
    hello_after_own_round_rule_4: breaks(WatermarkStable)
        { elections: [1, 1, 0], writes: [0, 1, 0], marks: 1 } { member_reads: &[1] };
    /// In the term that it announces.
    round_of_own_term_rule_4: breaks(WatermarkStable)
        { elections: [1, 1, 0], writes: [0, 1, 0], marks: 1 } { member_reads: &[1] };
    /// A Hello follows the leader's own no-op.
    hello_after_noop_rule_4: breaks(WatermarkStable)
        { elections: [0, 1, 0], writes: [0, 1, 0], marks: 1 } { member_reads: &[1] };
    /// A Hello replaces a ledger only with a newer (term, session).
    hello_newer_session_only_rule_4: breaks(WatermarkStable)
        { copies: 1, writes: [0, 1, 0], marks: 1 } { member_reads: &[1], announced: false };
    /// A Hello names what was granted and is not applied.
    hello_names_pending_rule_4: breaks(WatermarkStable)
        { reconnects: 1, writes: [0, 1, 0], marks: 1 } { member_reads: &[1] };
    /// A Hello names prepares that are undecided.
    hello_names_prepared_rule_4: breaks(WatermarkStable)
        { reconnects: 1, marks: 1 } { txns: &[&[1, 2]], member_reads: &[1] };
    /// After a Hello to an epoch, grants of older ones are refused.
    refuse_older_epochs_rule_4: breaks(WatermarkStable)
        { elections: [1, 0, 0], writes: [0, 1, 0], marks: 1 } { member_reads: &[1] };
    /// A group has no closed revision before its Hello in the epoch.
    closed_undefined_before_hello_rule_4: breaks(WatermarkStable)
        { elections: [1, 0, 0], writes: [0, 1, 0], marks: 1 } { member_reads: &[1] };
    /// A new epoch makes groups without requests say Hello, too.
    hello_wakes_quiet_groups_rule_4: breaks(EventualResolution)
        { elections: [1, 0, 0] } { drain: true };
    /// The leader ignores grants with another stamp.
    stamps_on_grants_rule_5: breaks(WatermarkStable)
        { reconnects: 1, writes: [0, 1, 0], marks: 1 } { member_reads: &[1] };
    /// The sequencer ignores requests with another stamp.
    stamps_on_asks_rule_5: breaks(EventualResolution)
        { reconnects: 1, writes: [0, 1, 0] } { drain: true };
    /// A grant is used for the request it names.
    grant_answers_one_request_rule_5: breaks(RootStateFresh)
        { compacts: 1, writes: [0, 2, 0] };
    /// A request is granted once, however often it arrives.
    one_grant_per_request_rule_5: breaks(EventualResolution)
        { copies: 1, writes: [0, 1, 0] } { drain: true };
    /// A leader takes grants in the order of their places in its stream.
    log_order_rule_6: breaks(LogOrder)
        { writes: [0, 2, 0] };
    /// A void resolves its own revision, not those below it.
    void_resolves_only_itself_rule_6: breaks(WatermarkStable)
        { writes: [0, 1, 0], marks: 1 } { txns: &[&[1, 2]], member_reads: &[1] };
    /// A resolved report with another stamp is ignored.
    resolved_checks_stamp_rule_7: changes_nothing()
        { elections: [1, 1, 0], reconnects: 1, writes: [0, 1, 0], marks: 1 }
        { member_reads: &[1], data_groups: 1 };
    /// Resolved means applied, not proposed.
    resolved_after_apply_rule_7: breaks(WatermarkStable)
        { writes: [0, 1, 0], marks: 1 } { member_reads: &[1] };
    /// A grant that its leader won't use is reported void.
    unused_grant_is_void_rule_7: breaks(EventualResolution)
        { writes: [0, 2, 0], compacts: 1 } { one_key: true, drain: true };
    /// An undecided prepare is not resolved.
    undecided_not_resolved_rule_7: breaks(WatermarkStable)
        { marks: 1 } { txns: &[&[1, 2]], member_reads: &[1] };
    /// A grant is outstanding when allocated, not when sent.
    outstanding_from_allocation: breaks(WatermarkStable)
        { writes: [0, 1, 0], marks: 1 } { member_reads: &[1] };
    /// A replica passes a watermark when it applied its log index.
    passed_needs_log_index_rule_8: breaks(WatermarkStable)
        { writes: [0, 1, 0], marks: 1 } { member_reads: &[1] };
    /// The leader that answers a read confirms itself.
    read_own_round_rule_9a: breaks(ReadSnapshotStable)
        { elections: [0, 1, 0], writes: [0, 1, 0] } { reads: &[&[1]] };
    /// Its round began after the capture of the read point.
    read_round_after_capture_rule_9a: breaks(ReadSnapshotStable)
        { elections: [0, 1, 0], writes: [0, 1, 0] } { reads: &[&[1]] };
    /// And it is of the term of the leader that the read point reached, even if
    /// the same node has won again and applied all that is committed.
    round_of_own_term_rule_9a: breaks(ReadSnapshotStable)
        { elections: [0, 1, 0], writes: [0, 1, 0] } { reads: &[&[1]] };
    /// A read waits for the answers to requests already sent.
    read_waits_for_asked_rule_9b: breaks(ReadSnapshotStable)
        { writes: [0, 1, 0] } { reads: &[&[1]] };
    /// Sent before the read point came, not only before the read came.
    read_waits_until_point_rule_9b: breaks(ReadSnapshotStable)
        { writes: [0, 1, 0] } { reads: &[&[1]] };
    /// A read waits for the Txn whose latch is in its way.
    read_waits_for_latch_rule_9b: breaks(ReadSnapshotStable)
        { releases: 0 } { txns: &[&[1, 2]], reads: &[&[1]] };
    /// A read waits until what the leader holds at or below it is applied.
    read_applies_up_to_point_rule_9c: breaks(ReadSnapshotStable)
        { writes: [0, 1, 0] } { reads: &[&[1]] };
    /// A leader answers reads only after its own no-op.
    read_after_noop_rule_9: breaks(ReadSnapshotStable)
        { elections: [0, 1, 0], writes: [0, 1, 0] } { reads: &[&[1]] };
    /// A read point reaches a leader, to fix what it waits for, after the no-op.
    point_reaches_after_noop_rule_9: breaks(ReadSnapshotStable)
        { elections: [0, 1, 0] } { txns: &[&[1, 2]], reads: &[&[1]] };
    /// A read is answered from the snapshot at its point, not from the newest.
    answers_at_point_rule_9: breaks(ReadSnapshotStable)
        { writes: [0, 1, 0] } { reads: &[&[1]] };
    /// A watch inside one group stays below its undecided prepares.
    watch_below_undecided_rule_11: breaks(LocalWatchWhole)
        { writes: [0, 0, 1] } { txns: &[&[1, 2]] };
    /// A latch is taken only after the leader's own no-op.
    latch_after_noop_rule_12: breaks(EvaluatedOnLast)
        { elections: [0, 1, 0], writes: [0, 1, 0] } { txns: &[&[1, 2]], one_key: true };
    /// A latch is held when what is pending in its range is applied.
    latch_waits_for_writes_rule_12: breaks(EvaluatedOnLast)
        { writes: [0, 1, 0] } { txns: &[&[1, 2]], one_key: true };
    /// And when what was evaluated without it has a revision, if it only read
    /// there, too.
    latch_waits_for_asked_rule_12: breaks(EvaluatedOnLast)
        { writes: [0, 1, 0] }
        { txns: &[&[1, 2]], one_key: true, writes_elsewhere: true };
    /// A write in the range of a latch waits for its end.
    writes_wait_behind_latch_rule_12: breaks(EvaluatedOnLast)
        { writes: [0, 1, 0] } { txns: &[&[1, 2]], one_key: true };
    /// A new leader takes over undecided prepares with their latches.
    takes_over_latches_rule_12: breaks(EvaluatedOnLast)
        { elections: [0, 1, 0], writes: [0, 1, 0] } { txns: &[&[1, 2]], one_key: true };
    /// Latches are taken in group order.
    latches_in_group_order_rule_12: breaks(NoDeadlock)
        { releases: 0 } { txns: &[&[1, 2], &[1, 2]], one_key: true };
    /// A Txn is granted only if its latches are of the announced terms; since a
    /// latch ends with its term, this only saves a revision.
    txn_names_terms_rule_12: changes_nothing()
        { elections: [0, 1, 0] } { txns: &[&[1, 2]], reads: &[&[1]] };
    /// An attempt asks for its grant once.
    txn_asks_once_rule_12: breaks(TxnAtomic)
        { elections: [1, 0, 0] } { txns: &[&[1, 2]] };
    /// A Txn's grant is outstanding in each participant.
    txn_outstanding_everywhere_rule_12: breaks(WatermarkStable)
        { marks: 1 } { txns: &[&[1, 2]], member_reads: &[2] };
    /// A grant becomes a prepare only while its latch is held.
    prepare_needs_latch_rule_12: breaks(ReadSnapshotStable)
        { releases: 1 } { txns: &[&[1, 2]], reads: &[&[1]] };
    /// A Txn is acknowledged when all its prepares are applied.
    ack_after_all_prepared_rule_12: breaks(TxnAtomic)
        { elections: [0, 1, 0] } { txns: &[&[1, 2]] };
    /// A Txn is committed when its prepares are committed, not appended.
    decide_after_commits_rule_12: breaks(TxnAtomic)
        { elections: [0, 1, 0] } { txns: &[&[1, 2]] };
    /// A finisher asks after a round of its own group.
    finisher_round_rule_12: changes_nothing()
        { elections: [0, 1, 0], forgets: 2 } { txns: &[&[1, 2]] };
    /// A leader answers about Txns after its own no-op.
    answers_after_noop_rule_12: breaks(TxnAtomic)
        { elections: [0, 1, 0] } { txns: &[&[1, 2]] };
    /// A void for one without a record looks at what is on its way.
    void_looks_at_pending_rule_12: breaks(TxnAtomic)
        { elections: [0; 3] } { txns: &[&[1, 2]] };
    /// It is committed before it is told.
    void_is_committed_rule_12: breaks(TxnAtomic)
        { elections: [0, 1, 0] } { txns: &[&[1, 2]] };
    /// It releases the latch when it is proposed, not when it is applied.
    void_releases_latch_at_once_rule_12: breaks(TxnAtomic)
        { elections: [0; 3] } { txns: &[&[1, 2]] };
    /// Only for one whose own prepare is undecided; others hear *unknown*.
    void_only_for_undecided_rule_12: breaks(TxnAtomic)
        { forgets: 1 } { txns: &[&[1, 2]] };
    /// A record is kept until all participants have decided.
    forget_after_all_decided_rule_12: breaks(TxnAtomic)
        { forgets: 1 } { txns: &[&[1, 2]] };
    /// And until its coordinator asks no more.
    forget_after_close_rule_12: breaks(TxnAtomic)
        { forgets: 1, settles: 1 } { txns: &[&[1, 2]] };
    /// To the coordinator the absence of a record is a void only after a round
    /// of that group.
    absent_after_round_rule_12: breaks(TxnAtomic)
        { elections: [0, 1, 0], settles: 1 } { txns: &[&[1, 2]] };
    /// That one has no record counts as decided only after a round of its group.
    forgotten_after_round_rule_12: breaks(TxnAtomic)
        { elections: [0, 1, 0], forgets: 1 } { txns: &[&[1, 2]] };
    /// A round of a later term would do for that, if the record is looked for
    /// after its index is applied.
    round_of_own_term_rule_12: changes_nothing()
        { elections: [0, 1, 0], releases: 1, forgets: 2 } { txns: &[&[1, 2]] };
    /// A request evaluated before a change of root state is refused.
    refuse_stale_ask_rule_15: breaks(RootStateFresh)
        { compacts: 1, writes: [0, 1, 0] };
    /// A leader catches up with the root index that a read point carries.
    catch_up_before_read_rule_15: breaks(RootStateFresh)
        { compacts: 1 } { reads: &[&[1]] };
    /// A member reads at what all touched replicas have passed.
    passed_by_all_rule_16: breaks(MemberReadStable)
        { writes: [0, 1, 1], marks: 1, member_answers: 1 } { member_reads: &[1, 2] };
    /// A member never answers below what it answered or acknowledged.
    member_header_monotone_rule_16: breaks(MemberHeaderMonotone)
        { writes: [0, 2, 0], marks: 1, member_answers: 2 } { member_reads: &[1] };
}
