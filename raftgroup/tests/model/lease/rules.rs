//! Each sentence of rule 13 is needed, and with all of them no promise breaks.

use super::promise::Promise;
use super::{Bounds, Budget, Model};
use crate::proof::{holds, rules};

rules! {
    /// A lease is named by its id and its grant, not by the id alone.
    lease_is_id_and_life_rule_13: breaks(NoKeyOfGoneLease)
        { puts: 1, revokes: 1, regrants: 1 };
    /// A registration is for one life of the id.
    registration_names_life_rule_13: breaks(NoKeyOfGoneLease)
        { puts: 1, revokes: 2, regrants: 1 };
    /// A group is registered before it attaches its first key.
    registered_before_attach_rule_13: breaks(NoKeyOfGoneLease)
        { puts: 1, revokes: 1 } { registered: false };
    /// Nobody is registered for a lease that is being revoked.
    no_registration_while_revoking_rule_13: changes_nothing()
        { puts: 1, revokes: 1, elections: 1 } { registered: false };
    /// The revoke is committed before it looks for keys.
    revoking_committed_first_rule_13: breaks(NoKeyOfGoneLease)
        { puts: 1, revokes: 1, elections: 1 };
    /// A put with a lease that changed since it was evaluated is refused.
    refuse_stale_ask_rule_15: breaks(NoKeyOfGoneLease)
        { puts: 1, revokes: 1 };
    /// The lease latch waits for writes that name it or touch its keys.
    latch_waits_for_writes_rule_13: breaks(NoKeyOfGoneLease)
        { puts: 1, revokes: 1 };
    /// It waits for undecided Txns that name it, also for those taken over.
    latch_waits_for_prepares_rule_13: breaks(NoKeyOfGoneLease)
        { staged: 1, revokes: 1, elections: 1 };
    /// It makes later ones wait.
    latch_blocks_rule_13: breaks(OnlyAttachedDeleted)
        { puts: 1, detaches: 1, revokes: 1 };
    /// That there are no keys counts after a round that began after the latch.
    no_keys_after_round_rule_13: breaks(NoKeyOfGoneLease)
        { puts: 1, revokes: 1, elections: 1 };
    /// In the term of the latch.
    no_keys_round_of_own_term_rule_13: breaks(NoKeyOfGoneLease)
        { puts: 1, revokes: 1, elections: 1 };
    /// The lease goes when all groups have answered that are registered then.
    end_looks_at_registrations_again_rule_13: breaks(NoKeyOfGoneLease)
        { puts: 1, revokes: 1, splits: 1 };
    /// The map registers in the child the leases of the parent.
    map_registers_leases_rule_13: breaks(NoKeyOfGoneLease)
        { puts: 1, revokes: 1, splits: 1 };
    /// A group is split when it holds no lease latch.
    split_waits_for_latches: breaks(NoKeyOfGoneLease)
        { puts: 1, revokes: 1, splits: 1 };
    /// Neither half of a split latches before root has committed the map.
    halves_wait_for_the_map: breaks(NoKeyOfGoneLease)
        { puts: 1, revokes: 1, splits: 1 };
    /// A new root leader drives on what it finds revoking.
    new_leader_drives_on_rule_13: breaks(RevokeEnds)
        { revokes: 1, root_elections: 1 } { drain: true };
    /// A keepalive is answered after a root round that began after it came.
    keepalive_after_round_rule_13: breaks(KeepaliveMeansAlive)
        { revokes: 1, root_elections: 1, keepalives: 1 };
    /// In the epoch in which it came: another has given the lease its own time.
    round_of_own_term_rule_13: breaks(NotBeforeItsTime)
        { root_elections: 1, keepalives: 1, ticks: 3 };
    /// And only if no revoke is on its way.
    keepalive_looks_at_pending_rule_13: breaks(KeepaliveMeansAlive)
        { keepalives: 1, ticks: 3 };
    /// A new root leader gives every lease its full time.
    new_leader_gives_full_ttl_rule_13: breaks(NotBeforeItsTime)
        { root_elections: 1, keepalives: 1, ticks: 3 };
}

mod small {
    use super::*;
    holds! {
        revoke_while_both_fail:
            { puts: 1, revokes: 1, root_elections: 1, elections: 1 };
        revoke_over_a_txn:
            { puts: 1, staged: 1, detaches: 1, revokes: 1, elections: 1 };
        revoke_and_grant_again:
            { puts: 2, revokes: 2, regrants: 1 } { registered: false };
        revoke_beside_a_split:
            { puts: 1, revokes: 1, splits: 1, root_elections: 1 };
        keepalives:
            { root_elections: 1, keepalives: 2, ticks: 3, revokes: 1 };
        revokes_end:
            { puts: 1, revokes: 1, splits: 1, root_elections: 1 } { drain: true };
        revokes_end_after_txns:
            { staged: 1, revokes: 1, elections: 1 } { drain: true };
    }
}
