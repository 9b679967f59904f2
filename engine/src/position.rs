//! Where something stands: in the order of writes, in the log, in the queue.
//!
//! Kept true: a revision that is not granted yet sorts above every granted
//! one, and two of them sort in the order in which they were asked for.

use std::fmt;

/// A revision of the keyspace, as clients see it. 1 is the empty store, the
/// first write makes 2; 0 and below are etcd's words for "none" and "latest".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub i64);

/// Stands for the revision of a write that was evaluated before it was granted one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u32);

/// Revisions from here on stand for tickets.
const UNGRANTED: i64 = 1 << 62;

impl Revision {
    /// What a store without any write has.
    pub const FIRST: Self = Self(1);

    /// Stands for the revision that `ticket` will be granted.
    #[must_use]
    pub fn of(ticket: Ticket) -> Self {
        Self(UNGRANTED + 2 * i64::from(ticket.0) + 1)
    }

    /// Stands for the revision just before the one that `ticket` will be granted.
    #[must_use]
    pub fn before(ticket: Ticket) -> Self {
        Self(UNGRANTED + 2 * i64::from(ticket.0))
    }

    /// Whether it stands for a revision that is not known yet.
    #[must_use]
    pub fn is_ungranted(self) -> bool {
        self.0 >= UNGRANTED
    }

    /// The ticket that it hangs on, if it is not known yet.
    #[must_use]
    pub fn ticket(self) -> Option<Ticket> {
        self.is_ungranted().then(|| {
            let asked = (self.0 - UNGRANTED) / 2;
            Ticket(u32::try_from(asked).expect("made from a ticket of 32 bits"))
        })
    }

    /// The revision itself, or the one that `granted` says for its ticket.
    #[must_use]
    pub fn resolve(self, granted: impl FnOnce(Ticket) -> Self) -> Self {
        match self.ticket() {
            None => self,
            Some(ticket) if self == Self::of(ticket) => granted(ticket),
            Some(ticket) => granted(ticket).previous(),
        }
    }

    /// The revision right before this one; if this one is not granted yet,
    /// what stands for that.
    #[must_use]
    pub fn previous(self) -> Self {
        Self(self.0 - 1)
    }

    /// The revision right after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One change: the revision, and its place among the changes of that revision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Change {
    /// The revision that all changes of one request share.
    pub revision: Revision,
    /// 0 for the first change of the revision.
    pub sub: u32,
}

impl Change {
    /// The place right behind it.
    pub(crate) fn next(self) -> Self {
        match self.sub.checked_add(1) {
            Some(sub) => Self { sub, ..self },
            None => Self {
                revision: self.revision.next(),
                sub: 0,
            },
        }
    }
}

/// The log entry up to which a store has applied, in the words of the layer
/// above; only the index is compared here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Position in the log; 0 before the first entry.
    pub index: u64,
    /// Term of the entry.
    pub term: u64,
    /// Node that led in that term.
    pub leader: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ungranted_revisions_sort_above_granted_ones_and_resolve() {
        let (first, second) = (Ticket(0), Ticket(1));
        assert!(Revision(i64::MAX >> 2) < Revision::before(first));
        assert!(Revision::before(first) < Revision::of(first));
        assert!(Revision::of(first) < Revision::before(second));
        let granted = |ticket: Ticket| Revision(100 + i64::from(ticket.0));
        assert_eq!(Revision::of(second).resolve(granted), Revision(101));
        assert_eq!(Revision::before(second).resolve(granted), Revision(100));
        assert_eq!(Revision(7).resolve(granted), Revision(7));
        assert_eq!(Revision::of(second).previous(), Revision::before(second));
        assert_eq!(Revision::of(second).ticket(), Some(second));
        assert_eq!(Revision::before(second).ticket(), Some(second));
        assert_eq!(Revision(7).ticket(), None);
    }
}
