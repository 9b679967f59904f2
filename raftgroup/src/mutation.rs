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
    VoteIsNotDurable, "vote-is-not-durable",
        "A vote is told before it is durable.";
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
