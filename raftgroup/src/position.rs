//! Names and places: nodes, groups, terms, positions in a group's log.

use std::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number! {
    /// A member of the cluster.
    NodeId
}

number! {
    /// A Raft group.
    GroupId
}

number! {
    /// A term of a group: at most one leader each.
    Term
}

number! {
    /// A position in a group's log; 0 is before the first entry.
    LogIndex
}

impl GroupId {
    /// The group that always exists and keeps what is known of the cluster.
    pub const ROOT: Self = Self(0);

    /// Whether it is the root group.
    #[must_use]
    pub fn is_root(self) -> bool {
        self == Self::ROOT
    }
}

impl LogIndex {
    /// The position after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}
