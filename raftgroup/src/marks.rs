//! How far each group is closed, as the sequencer told this node (rule 8).
//!
//! Kept true: a replica has passed a revision only if it has applied the log
//! entry, and its node the root entry, that came with it; then what it shows
//! at that revision never changes. What it has passed never goes back, unless
//! the replica does: one that is rebuilt begins again.

use std::collections::{BTreeMap, VecDeque};

use pontoon_engine::Revision;

use crate::codec::wire;
use crate::ledger::Closed;
use crate::position::{GroupId, LogIndex, Term};

/// What the sequencer tells a node: what is different from last time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Marks {
    pub(crate) epoch: Term,
    /// Counts in an epoch. 0 tells everything; else it goes on from the one before.
    pub(crate) sequence: u64,
    pub(crate) root: LogIndex,
    /// Closed in all groups that have nothing outstanding.
    pub(crate) open: Revision,
    pub(crate) groups: Vec<GroupMark>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GroupMark {
    pub(crate) group: GroupId,
    /// `None`: nothing is outstanding.
    pub(crate) closed: Option<Revision>,
    pub(crate) index: LogIndex,
}

wire!(struct Marks { epoch, sequence, root, open, groups });
wire!(struct GroupMark { group, closed, index });

/// Marks that wait until they are reached, per group.
const WAITING_MAX: usize = 32;

/// What this node was told, and what its replicas made of it.
#[derive(Debug, Default)]
pub(crate) struct Told {
    epoch: Term,
    sequence: u64,
    /// As last told, so that the next telling can be short.
    groups: BTreeMap<GroupId, GroupMark>,
    places: BTreeMap<GroupId, Place>,
}

/// Where one replica stands.
#[derive(Debug, Default)]
struct Place {
    passed: Passed,
    /// Not reached yet, lowest first, each with the root entry it needs.
    waiting: VecDeque<(Closed, LogIndex)>,
}

/// The highest mark that a replica here has reached.
#[derive(Clone, Copy, Debug, Default)]
struct Passed {
    revision: Revision,
    /// The entries that it took: a replica that is rebuilt has to reach them
    /// again.
    index: LogIndex,
    root: LogIndex,
}

impl Told {
    /// Takes note of what the sequencer says. `false` if something is missing
    /// in between, and it must tell everything.
    pub(crate) fn hear(&mut self, marks: &Marks) -> bool {
        if marks.epoch < self.epoch {
            return false;
        }
        if marks.sequence == 0 {
            self.groups.clear();
        } else if marks.epoch != self.epoch || marks.sequence != self.sequence + 1 {
            return false;
        }
        self.epoch = marks.epoch;
        self.sequence = marks.sequence;
        for mark in &marks.groups {
            self.groups.insert(mark.group, *mark);
        }
        for mark in self.groups.values() {
            let closed = Closed {
                revision: mark.closed.unwrap_or(marks.open),
                index: mark.index,
            };
            let place = self.places.entry(mark.group).or_default();
            place.add(closed, marks.root);
        }
        true
    }

    /// What the replica of `group` here has passed, now that it has applied
    /// `index`, and this node `root` of the root group.
    pub(crate) fn passed(&mut self, group: GroupId, index: LogIndex, root: LogIndex) -> Revision {
        let Some(place) = self.places.get_mut(&group) else {
            return Revision(0);
        };
        let reached =
            |(closed, needs): &(Closed, LogIndex)| closed.index <= index && *needs <= root;
        let passed = &mut place.passed;
        if let Some(last) = place.waiting.iter().rposition(reached) {
            // Higher ones come later.
            for (closed, needs) in place.waiting.drain(..=last) {
                *passed = Passed {
                    revision: closed.revision,
                    index: closed.index,
                    root: needs,
                };
            }
        }
        if passed.index <= index && passed.root <= root {
            passed.revision
        } else {
            Revision(0)
        }
    }

    /// Whether the group was announced in this epoch.
    pub(crate) fn knows(&self, group: GroupId) -> bool {
        self.groups.contains_key(&group)
    }

    /// How far the group is closed, wherever the replica here stands.
    pub(crate) fn closed(&self, group: GroupId) -> Revision {
        let newest = self.newest(group);
        newest.map_or(Revision(0), |(closed, _)| closed.revision)
    }

    /// The newest mark of a group, wherever the replica here stands, and the
    /// root entry that it needs.
    pub(crate) fn newest(&self, group: GroupId) -> Option<(Closed, LogIndex)> {
        let place = self.places.get(&group)?;
        let Passed {
            revision,
            index,
            root,
        } = place.passed;
        let passed = (revision.0 > 0).then_some((Closed { revision, index }, root));
        place.waiting.back().copied().or(passed)
    }
}

impl Place {
    fn add(&mut self, closed: Closed, root: LogIndex) {
        let newest = self
            .waiting
            .back()
            .map_or(self.passed.revision, |(newest, _)| newest.revision);
        if closed.revision <= newest {
            return;
        }
        if self.waiting.len() == WAITING_MAX {
            // The replica is far behind: it can do with fewer steps.
            self.waiting.remove(WAITING_MAX / 2);
        }
        self.waiting.push_back((closed, root));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUP: GroupId = GroupId(1);

    fn marks(sequence: u64, open: i64, groups: &[(u64, Option<i64>, u64)]) -> Marks {
        Marks {
            epoch: Term(1),
            sequence,
            root: LogIndex(5),
            open: Revision(open),
            groups: groups
                .iter()
                .map(|(group, closed, index)| GroupMark {
                    group: GroupId(*group),
                    closed: closed.map(Revision),
                    index: LogIndex(*index),
                })
                .collect(),
        }
    }

    #[test]
    fn rule_8_a_mark_counts_when_both_entries_are_applied() {
        let mut told = Told::default();
        assert!(told.hear(&marks(0, 10, &[(1, None, 7)])));
        assert_eq!(told.passed(GROUP, LogIndex(6), LogIndex(9)), Revision(0));
        assert_eq!(told.passed(GROUP, LogIndex(7), LogIndex(4)), Revision(0));
        assert_eq!(told.passed(GROUP, LogIndex(7), LogIndex(5)), Revision(10));
        // A replica that is rebuilt, or the root group's, has to get there again.
        assert_eq!(told.passed(GROUP, LogIndex(0), LogIndex(9)), Revision(0));
        assert_eq!(told.passed(GROUP, LogIndex(7), LogIndex(4)), Revision(0));
        assert_eq!(told.passed(GROUP, LogIndex(7), LogIndex(5)), Revision(10));
        assert_eq!(told.closed(GroupId(9)), Revision(0));
    }

    #[test]
    fn a_group_with_nothing_outstanding_follows_without_being_named() {
        let mut told = Told::default();
        assert!(told.hear(&marks(0, 10, &[(1, None, 7), (2, Some(8), 3)])));
        assert!(told.hear(&marks(1, 20, &[])));
        let passed = |told: &mut Told, group| told.passed(GroupId(group), LogIndex(9), LogIndex(9));
        assert_eq!(passed(&mut told, 1), Revision(20));
        assert_eq!(passed(&mut told, 2), Revision(8));
        assert_eq!(told.closed(GroupId(2)), Revision(8));
    }

    #[test]
    fn after_a_gap_everything_must_be_told() {
        let mut told = Told::default();
        assert!(!told.hear(&marks(1, 10, &[])));
        assert!(told.hear(&marks(0, 10, &[(1, None, 1)])));
        assert!(!told.hear(&marks(2, 30, &[])));
        assert_eq!(told.closed(GROUP), Revision(10));
        // A group that is not named in a full telling is not known any more.
        assert!(told.hear(&marks(0, 40, &[])));
        assert_eq!(told.closed(GROUP), Revision(10));
        let old = Marks {
            epoch: Term(0),
            ..marks(0, 50, &[(1, None, 1)])
        };
        assert!(!told.hear(&old));
    }

    #[test]
    fn a_replica_that_is_behind_gets_on_step_by_step() {
        let mut told = Told::default();
        told.hear(&marks(0, 1, &[(1, None, 1)]));
        for step in 1..200 {
            let open = 1 + i64::try_from(step).expect("small");
            told.hear(&marks(step, open, &[(1, None, 1 + step)]));
        }
        let mut last = Revision(0);
        let mut steps = 0;
        for index in 0..=200 {
            let passed = told.passed(GROUP, LogIndex(index), LogIndex(9));
            assert!(passed.0 <= i64::try_from(index).expect("small"));
            steps += u32::from(passed > last);
            last = passed;
        }
        assert_eq!(last, Revision(200));
        assert!(steps > 4);
    }
}
