//! What a log entry carries.
//!
//! Kept true: an entry is applied only in the term in which it was evaluated
//! and only onto the state that it was evaluated on, which the last revision
//! of the group stands for. So when one of several entries in flight is not
//! taken, none behind it is either.

use bytes::Bytes;
use pontoon_engine::{Revision, Step};

use crate::codec::{Wire, wire};
use crate::mutation::{Mutation, mutated};
use crate::position::Term;
use crate::raft::ROOM_BYTES;

/// What a log entry carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Command {
    /// Term in which it was evaluated.
    pub(crate) term: Term,
    /// The group's last revision right before it; `None` if it doesn't matter.
    pub(crate) base: Option<Revision>,
    pub(crate) steps: Vec<Step>,
}

wire!(struct Command { term, base, steps });

impl Command {
    /// Its bytes, with room behind them for what the log adds.
    pub(crate) fn to_proposal(&self) -> Bytes {
        let mut out = Vec::with_capacity(ROOM_BYTES + 64);
        self.put(&mut out);
        out.reserve_exact(ROOM_BYTES);
        out.into()
    }

    /// The steps that an entry of `term` takes on a group whose last revision
    /// is `last`: none if it was meant for another state.
    pub(crate) fn admitted(
        bytes: Bytes,
        term: Term,
        last: Revision,
    ) -> Result<Option<Vec<Step>>, String> {
        let command = Self::decode(bytes).ok_or("its bytes make no sense")?;
        let base_fits = command.base.is_none_or(|base| base == last);
        let base_fits = base_fits || mutated(Mutation::EntryOnAnyState);
        let fits = command.term == term && base_fits;
        Ok(fits.then_some(command.steps))
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
                term: Term(3),
                base: base.map(Revision),
                steps: steps.clone(),
            };
            Command::admitted(command.to_proposal(), Term(term), Revision(last))
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
        let nonsense = Command::admitted(Bytes::from_static(b"?"), Term(3), Revision(7));
        assert!(nonsense.is_err());
    }
}
