//! How many members may fail before a range loses its quorum.
//!
//! Kept true: the weakest range decides for the cluster. Learners don't count,
//! and a voter counts as serving only if its member was reached and its replica
//! works.

use std::io::{self, Write};

use serde::Serialize;

use crate::ranges::{RangeView, State};

#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct FaultTolerance {
    /// Members that may fail when all of them serve.
    by_placement: usize,
    /// Members that may fail now. Absent: a range has no quorum.
    remaining: Option<usize>,
    /// The range that is closest to losing its quorum, or has lost it.
    weakest_range: u64,
    voters: usize,
    voters_serving: usize,
}

impl FaultTolerance {
    /// `None` if there is no range.
    pub(super) fn of(ranges: &[RangeView]) -> Option<Self> {
        let votes = ranges.iter().map(Votes::of);
        let by_placement = votes.clone().map(|votes| votes.may_fail(votes.voters));
        let weakest = votes.min_by_key(|votes| votes.may_fail(votes.serving))?;
        Some(Self {
            by_placement: by_placement.min().flatten()?,
            remaining: weakest.may_fail(weakest.serving),
            weakest_range: weakest.range,
            voters: weakest.voters,
            voters_serving: weakest.serving,
        })
    }

    pub(super) fn line(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self {
            weakest_range: range,
            voters,
            voters_serving: serving,
            ..
        } = self;
        match self.remaining {
            None => writeln!(
                out,
                "no quorum: range {range} has {serving} of {voters} voters"
            ),
            Some(remaining) if remaining < self.by_placement => writeln!(
                out,
                "tolerates {}, {remaining} now: range {range} has {serving} of {voters} voters",
                failures(self.by_placement),
            ),
            Some(remaining) => writeln!(out, "tolerates {}", failures(remaining)),
        }
    }
}

fn failures(count: usize) -> String {
    match count {
        0 => "no member failure".to_owned(),
        1 => "1 member failure".to_owned(),
        count => format!("{count} member failures"),
    }
}

struct Votes {
    range: u64,
    voters: usize,
    serving: usize,
}

impl Votes {
    fn of(range: &RangeView) -> Self {
        let voters = range.replicas.iter().filter(|replica| !replica.learner);
        let serving = voters
            .clone()
            .filter(|voter| matches!(voter.state, State::Leads | State::Follows));
        Self {
            range: range.id,
            voters: voters.clone().count(),
            serving: serving.count(),
        }
    }

    /// How many of `serving` voters may fail; `None` if they are no quorum.
    fn may_fail(&self, serving: usize) -> Option<usize> {
        serving.checked_sub(self.voters / 2 + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ranges::ReplicaView;

    /// `L` leads, `f` follows, `l` is a learner, `x` a voter that is not
    /// reached, `y` a learner that is not reached.
    fn range(id: u64, replicas: &str) -> RangeView {
        let replicas = replicas.chars().map(|kind| ReplicaView {
            member: "m".to_owned(),
            learner: matches!(kind, 'l' | 'y'),
            state: match kind {
                'L' => State::Leads,
                'f' => State::Follows,
                'l' => State::Listens,
                _ => State::NotReached,
            },
            applied_index: None,
            failure: None,
        });
        RangeView {
            id,
            replicas: replicas.collect(),
            ..RangeView::default()
        }
    }

    fn line(ranges: &[RangeView]) -> String {
        let mut out = Vec::new();
        let tolerance = FaultTolerance::of(ranges).unwrap();
        tolerance.line(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_weakest_range_decides() {
        for (replicas, expected) in [
            (&["L"][..], "tolerates no member failure\n"),
            (&["Lf"], "tolerates no member failure\n"),
            (&["Lff"], "tolerates 1 member failure\n"),
            (&["Lffl"], "tolerates 1 member failure\n"),
            (&["Lffff"], "tolerates 2 member failures\n"),
            // Five vote in the root group, three in a data group.
            (&["Lffff", "fLf"], "tolerates 1 member failure\n"),
            (&["Lfffx", "fLf"], "tolerates 1 member failure\n"),
            (
                &["Lfffx", "fLx"],
                "tolerates 1 member failure, 0 now: range 1 has 2 of 3 voters\n",
            ),
            (&["Lffy"], "tolerates 1 member failure\n"),
            (&["Lff", "fxx"], "no quorum: range 1 has 1 of 3 voters\n"),
        ] {
            let ranges = replicas.iter().zip(0..);
            let ranges: Vec<_> = ranges.map(|(replicas, id)| range(id, replicas)).collect();
            assert_eq!(line(&ranges), expected, "{replicas:?}");
        }
        assert_eq!(FaultTolerance::of(&[]), None);
    }
}
