//! What health checks conclude from a member's condition and its ranges.
//!
//! Kept true: a liveness probe (`/livez`, `/health?serializable=true`) fails only
//! if the process can't recover. A supervisor restarts a process whose liveness
//! probe fails, and a restart helps neither a stalled disk nor a range that
//! waits for a quorum.

use std::fmt::Write;

use pontoon_raftgroup::{Condition, Unserved};

/// Ranges that a health page names.
const NAMED_MAX: usize = 8;
const STALLED: &str = "stalled, nothing becomes durable";

/// What a probe decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Probe {
    /// Whether the process is restarted.
    Liveness,
    /// Whether it gets requests.
    Readiness,
}

/// Whether the disk allows what the probe asks for.
pub(crate) fn check_disk(probe: Probe, condition: &Condition) -> Result<(), String> {
    match (condition, probe) {
        (Condition::Well, _) | (Condition::Stalled, Probe::Liveness) => Ok(()),
        (Condition::Stalled, Probe::Readiness) => Err(STALLED.to_owned()),
        (Condition::Failed(fault), _) => Err(fault.to_string()),
    }
}

/// The outcome of a read that must not be tried in this condition; `None` if it
/// can be. A failed node answers nothing, and a stalled one leads nothing; even
/// a local read could wait for a page of the stalled disk.
pub(crate) fn read_outcome(condition: &Condition, serializable: bool) -> Option<ReadOutcome> {
    match condition {
        Condition::Well => None,
        Condition::Stalled if serializable => Some(Ok(())),
        Condition::Stalled => Some(Err(format!("disk {STALLED}"))),
        Condition::Failed(fault) => Some(Err(fault.to_string())),
    }
}

type ReadOutcome = Result<(), String>;

/// Whether this member serves all ranges that are placed on it.
pub(crate) fn check_ranges(unserved: &[Unserved]) -> Result<(), String> {
    if unserved.is_empty() {
        return Ok(());
    }
    let mut text = String::new();
    for (at, range) in unserved.iter().take(NAMED_MAX).enumerate() {
        let comma = if at == 0 { "" } else { ", " };
        let _ = write!(text, "{comma}range {} ({})", range.group, range.reason);
    }
    if unserved.len() > NAMED_MAX {
        let _ = write!(text, " and {} more", unserved.len() - NAMED_MAX);
    }
    Err(text)
}

#[cfg(test)]
mod tests {
    use pontoon_engine::KeyRange;
    use pontoon_raftgroup::{Fault, GroupId};

    use super::*;

    fn failed() -> Condition {
        Condition::Failed(Fault("wal/3.seg: write: EIO".to_owned()))
    }

    #[test]
    fn only_a_failure_ends_liveness() {
        let all = [Condition::Well, Condition::Stalled, failed()];
        let live = all
            .each_ref()
            .map(|condition| check_disk(Probe::Liveness, condition).is_ok());
        let ready = all
            .each_ref()
            .map(|condition| check_disk(Probe::Readiness, condition).is_ok());
        assert_eq!(live, [true, true, false]);
        assert_eq!(ready, [true, false, false]);
        let reason = check_disk(Probe::Liveness, &failed()).unwrap_err();
        assert_eq!(reason, "wal/3.seg: write: EIO");
    }

    /// A read that could hang is not tried, whatever its outcome is said to be.
    #[test]
    fn reads_are_tried_only_if_all_is_well() {
        for serializable in [false, true] {
            assert_eq!(read_outcome(&Condition::Well, serializable), None);
            let outcome = read_outcome(&failed(), serializable);
            assert!(outcome.is_some_and(|outcome| outcome.is_err()));
        }
        assert_eq!(read_outcome(&Condition::Stalled, true), Some(Ok(())));
        let linearizable = read_outcome(&Condition::Stalled, false);
        assert!(linearizable.is_some_and(|outcome| outcome.is_err()));
    }

    #[test]
    fn unserved_ranges_are_named_up_to_a_bound() {
        let unserved = |count: u64| -> Vec<Unserved> {
            let range = |group| Unserved {
                group: GroupId(group),
                keys: KeyRange::all(),
                reason: "no leader".to_owned(),
            };
            (1..=count).map(range).collect()
        };
        assert_eq!(check_ranges(&[]), Ok(()));
        let one = check_ranges(&unserved(1)).unwrap_err();
        assert_eq!(one, "range 1 (no leader)");
        let eight = check_ranges(&unserved(8)).unwrap_err();
        assert!(eight.ends_with("range 8 (no leader)"), "{eight}");
        let many = check_ranges(&unserved(64)).unwrap_err();
        assert!(many.ends_with("range 8 (no leader) and 56 more"), "{many}");
    }
}
