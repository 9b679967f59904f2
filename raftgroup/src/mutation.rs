//! Deliberate bugs, to see that the tests find them: `raftgroup/tests/mutations`
//! runs the simulator with one after the other.
//!
//! Kept true: without the feature `mutations` there are none, and the compiler
//! removes the places where they would be. With it there is at most one in a
//! process, which `PONTOON_MUTATION` names.
//!
//! A bug is a line below and a place that asks for it:
//! `if mutated(Mutation::StalledDiskLeads) { return; }`

macro_rules! mutations {
    ($($variant:ident, $name:literal, $bug:literal;)*) => {
        /// A deliberate bug.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum Mutation {
            $(#[doc = $bug] $variant,)*
        }

        impl Mutation {
            /// All of them: what `PONTOON_MUTATION` calls it, and what is wrong.
            pub const ALL: &[(Self, &str, &str)] = &[$((Self::$variant, $name, $bug),)*];
        }
    };
}

mutations! {
    FailedDiskGoesOn, "failed-disk-goes-on",
        "A node whose log or tree failed on disk isn't ended.";
    StalledDiskLeads, "stalled-disk-leads",
        "A node whose disk hangs goes on leading.";
    StalledDiskTicks, "stalled-disk-ticks",
        "Ticks gather in front of a core that waits for a disk that hangs.";
    QuietGroupSleepsOn, "quiet-group-sleeps-on",
        "Nobody wakes a quiet group whose leader leads it no more.";
    UnreadableRecordIsNone, "unreadable-record-is-none",
        "A record that can't be read or decoded counts as none.";
    RoundOfAnyTerm, "round-of-any-term",
        "A quorum round counts for a term in which it wasn't asked for.";
    ChildOpenedByMap, "child-opened-by-map",
        "The range map has a child opened while the split makes it.";
    LostGrantIsUntold, "lost-grant-is-untold",
        "Nobody is told that a transaction's grant was lost with its session.";
    SplitWaitsForOwnCopy, "split-waits-for-own-copy",
        "A split waits for the leader's own copy instead of a quorum of copies.";
    DamageIsNotRebuilt, "damage-is-not-rebuilt",
        "A damaged replica isn't rebuilt.";
    EntryOnAnyState, "entry-on-any-state",
        "An entry is applied on another state than it was evaluated on.";
    PurgeIgnoresFollowers, "purge-ignores-followers",
        "The log is shortened though a snapshot is on its way or a follower catches up.";
    KindBeforeAllKnow, "kind-before-all-know",
        "A leader uses a new kind of entry before all members know it.";
    VoteIsNotDurable, "vote-is-not-durable",
        "A vote is told before it is durable.";
    SerializablePerGroup, "serializable-per-group",
        "A serializable read may be below what its member told of other groups.";
    MarkWithoutEntries, "mark-without-entries",
        "A remote part of a watch counts a mark whose entries were not pulled.";
    PieceBeyondPassed, "piece-beyond-passed",
        "A piece of a watch counts as complete through what its replica has not applied.";
    PieceOfOtherKeys, "piece-of-other-keys",
        "A piece of a watch is given though a part of its keys was split off.";
    PieceForgetsUndecided, "piece-forgets-undecided",
        "A piece of a watch shows all entries though a transaction in them is undecided.";
    CutPieceIsComplete, "cut-piece-is-complete",
        "A piece of a watch that was cut off counts as complete.";
    NewSourceBeginsAnew, "new-source-begins-anew",
        "A watch that goes on at another member is given again what it has pulled.";
    SpreadsOnlyWhatIsHere, "spreads-only-what-is-here",
        "Leaders are spread only if the root group's leader has replicas of all groups.";
    MovedReplicaRoutes, "moved-replica-routes",
        "A replica that its group doesn't count any more is asked who leads the group.";
}

/// Whether this bug is to be there.
#[cfg(not(feature = "mutations"))]
pub(crate) const fn mutated(_: Mutation) -> bool {
    false
}

/// Whether this bug is to be there. Panics if `PONTOON_MUTATION` names none.
#[cfg(feature = "mutations")]
pub(crate) fn mutated(mutation: Mutation) -> bool {
    use std::sync::OnceLock;
    static CHOSEN: OnceLock<Option<Mutation>> = OnceLock::new();
    let chosen = CHOSEN.get_or_init(|| {
        let name = std::env::var("PONTOON_MUTATION").ok()?;
        let found = Mutation::ALL.iter().find(|(_, known, _)| *known == name);
        let (mutation, _, bug) = found.unwrap_or_else(|| panic!("no mutation is called {name:?}"));
        tracing::warn!(name, bug, "a deliberate bug is in this process");
        Some(*mutation)
    });
    *chosen == Some(mutation)
}
