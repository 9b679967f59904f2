//! What a log entry carries.
//!
//! Kept true: an entry is applied only in the term in which it was evaluated
//! and only onto the state that it was evaluated on, which the last revision
//! of the group stands for. So when one of several entries in flight is not
//! taken, none behind it is either.

use bytes::{BufMut, Bytes};
use pontoon_engine::{Revision, Step};

use crate::codec::{Wire, wire};
use crate::format::{self, FormatVersion, Unreadable};
use crate::mutation::{Mutation, mutated};
use crate::position::Term;
use crate::raft::ROOM_BYTES;

/// What a log entry carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Command {
    pub(crate) kind: Kind,
    /// Term in which it was evaluated.
    pub(crate) term: Term,
    /// The group's last revision right before it; `None` if it doesn't matter.
    pub(crate) base: Option<Revision>,
    pub(crate) steps: Vec<Step>,
}

/// Kinds of entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Kind {
    #[default]
    Steps,
    /// The same, as a release writes it that exists in tests only: its version
    /// is the next one, and this kind is new in it.
    Trial,
}

wire!(enum Kind { 0 => Steps, 1 => Trial });

/// What the entries of a version of the cluster are.
impl From<FormatVersion> for Kind {
    fn from(cluster: FormatVersion) -> Self {
        match cluster > FormatVersion::NEWEST {
            true => Self::Trial,
            false => Self::Steps,
        }
    }
}

const KIND: &str = "log entry";

impl Command {
    /// Its bytes, with room behind them for what the log adds. Nothing that is
    /// newer than the version of the cluster leaves this place: a member may
    /// not understand it.
    pub(crate) fn to_proposal(&self, cluster: FormatVersion) -> Bytes {
        let version = self.version();
        assert!(
            version <= cluster,
            "an entry of version {version} in a cluster of version {cluster}"
        );
        let mut out = Vec::with_capacity(ROOM_BYTES + 64);
        out.put_u8(version.0);
        self.kind.put(&mut out);
        self.term.put(&mut out);
        self.base.put(&mut out);
        self.steps.put(&mut out);
        out.reserve_exact(ROOM_BYTES);
        out.into()
    }

    /// The first version that has all that is in it.
    fn version(&self) -> FormatVersion {
        let kind = match self.kind {
            Kind::Steps => FormatVersion::FIRST,
            Kind::Trial => FormatVersion(FormatVersion::NEWEST.0 + 1),
        };
        kind.max(version_of_all(&self.steps))
    }

    /// What [`Command::to_proposal`] made, if this node, which understands all
    /// up to `newest`, understands it.
    fn read(mut bytes: Bytes, newest: FormatVersion) -> Result<Self, Unreadable> {
        const NONSENSE: Unreadable = Unreadable::Nonsense { kind: KIND };
        let version = FormatVersion::take(&mut bytes).ok_or(NONSENSE)?;
        format::check(KIND, version, newest)?;
        let mut take = || {
            Some(Self {
                kind: Wire::take(&mut bytes)?,
                term: Wire::take(&mut bytes)?,
                base: Wire::take(&mut bytes)?,
                steps: Wire::take(&mut bytes)?,
            })
        };
        let command = take().filter(|command| command.version() == version);
        command.filter(|_| bytes.is_empty()).ok_or(NONSENSE)
    }

    /// The steps that an entry of `term` takes on a group whose last revision
    /// is `last`: none if it was meant for another state.
    pub(crate) fn admitted(
        bytes: Bytes,
        term: Term,
        last: Revision,
        newest: FormatVersion,
    ) -> Result<Admitted, Unreadable> {
        let command = Self::read(bytes, newest)?;
        let base_fits = command.base.is_none_or(|base| base == last);
        let base_fits = base_fits || mutated(Mutation::EntryOnAnyState);
        let fits = command.term == term && base_fits;
        Ok(Admitted {
            kind: command.kind,
            steps: fits.then_some(command.steps),
        })
    }
}

/// What an entry does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Admitted {
    pub(crate) kind: Kind,
    /// `None` if it was meant for another state.
    pub(crate) steps: Option<Vec<Step>>,
}

/// The first version that has all of these steps.
pub(crate) fn version_of_all(steps: &[Step]) -> FormatVersion {
    let versions = steps.iter().map(version_of);
    versions.fold(FormatVersion::FIRST, Ord::max)
}

/// The first version that has a step. A new kind of step gets its version here.
fn version_of(step: &Step) -> FormatVersion {
    match step {
        // Every record begins with its version.
        Step::Record {
            content: Some(content),
            ..
        } => FormatVersion(content.first().copied().unwrap_or(0)),
        Step::Write { .. }
        | Step::Stage { .. }
        | Step::Commit { .. }
        | Step::Void { .. }
        | Step::Reach { .. }
        | Step::Compact { .. }
        | Step::Record { content: None, .. }
        | Step::Bounds { .. }
        | Step::Shed => FormatVersion::FIRST,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_6_an_entry_is_admitted_only_on_the_state_it_was_made_for() {
        let steps = vec![Step::Reach {
            revision: Revision(8),
        }];
        let admitted = |base: Option<i64>, term, last| {
            let command = Command {
                kind: Kind::Steps,
                term: Term(3),
                base: base.map(Revision),
                steps: steps.clone(),
            };
            let bytes = command.to_proposal(FormatVersion::FIRST);
            Command::admitted(bytes, Term(term), Revision(last), FormatVersion::NEWEST)
                .map(|admitted| admitted.steps)
        };
        for (base, term, last, fits) in [
            (Some(7), 3, 7, true),
            // One before it was not taken, or one more was.
            (Some(7), 3, 6, false),
            (Some(7), 3, 8, false),
            // It was evaluated by another leader.
            (Some(7), 2, 7, false),
            (Some(7), 4, 7, false),
            (None, 3, 1, true),
            (None, 4, 1, false),
        ] {
            let expected = Ok(fits.then(|| steps.clone()));
            assert_eq!(
                admitted(base, term, last),
                expected,
                "{base:?} {term} {last}"
            );
        }
        let admitted = |bytes: &'static [u8]| {
            let bytes = Bytes::from_static(bytes);
            Command::admitted(bytes, Term(3), Revision(7), FormatVersion::NEWEST)
        };
        for bytes in [&b""[..], b"\x01", b"\x01?", b"\0"] {
            let nonsense = Err(Unreadable::Nonsense { kind: KIND });
            assert_eq!(admitted(bytes), nonsense, "{bytes:?}");
        }
    }

    const NEXT: FormatVersion = FormatVersion(FormatVersion::NEWEST.0 + 1);

    fn trial() -> Command {
        Command {
            kind: NEXT.into(),
            term: Term(3),
            base: None,
            steps: Vec::new(),
        }
    }

    #[test]
    fn an_entry_of_a_later_version_is_named_and_its_own_release_takes_it() {
        let bytes = trial().to_proposal(NEXT);
        let read = |newest| Command::admitted(bytes.clone(), Term(3), Revision(7), newest);
        let unknown = Unreadable::Version {
            kind: KIND,
            found: NEXT,
            newest: FormatVersion::NEWEST,
        };
        assert_eq!(read(FormatVersion::NEWEST), Err(unknown));
        assert_eq!(read(NEXT).map(|admitted| admitted.kind), Ok(Kind::Trial));
    }

    #[test]
    #[should_panic(expected = "an entry of version 2 in a cluster of version 1")]
    fn a_kind_that_is_newer_than_the_cluster_is_never_proposed() {
        trial().to_proposal(FormatVersion::NEWEST);
    }

    #[test]
    #[should_panic(expected = "an entry of version 2 in a cluster of version 1")]
    fn a_record_that_is_newer_than_the_cluster_is_never_proposed() {
        let record = Step::Record {
            name: Bytes::from_static(b"later"),
            content: Some(Bytes::copy_from_slice(&[NEXT.0])),
        };
        let command = Command {
            kind: Kind::Steps,
            steps: vec![record],
            ..trial()
        };
        command.to_proposal(FormatVersion::NEWEST);
    }
}
