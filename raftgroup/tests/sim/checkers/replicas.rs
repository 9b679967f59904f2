//! In the end all replicas of a group are the same, and all nodes have the
//! same map and members; and never do two replicas say different things about
//! a revision.

use crate::end::{End, is_one};
use crate::history::{Asked, History, Outcome};

pub(crate) const PROMISE: &str = "All replicas of a group are the same.";

pub(crate) fn check(history: &History, end: &End) -> Result<(), String> {
    if let Some(conflict) = history.truth.conflicts.first() {
        return Err(conflict.clone());
    }
    for (group, of_nodes) in &end.contents {
        if !is_one(of_nodes) {
            return Err(format!("group {group}: {of_nodes:?}"));
        }
    }
    if !is_one(&end.maps) {
        return Err(format!("the maps are {:?}", end.maps));
    }
    if !is_one(&end.members) {
        return Err(format!("the members are {:?}", end.members));
    }
    let mut maps = end.maps.values().flatten();
    let Some(map) = maps.next() else {
        return Ok(());
    };
    for operation in &history.operations {
        if let (Asked::Split(key), Outcome::Split(group)) = (&operation.asked, &operation.outcome)
            && !map
                .ranges()
                .any(|(placed, _)| placed.start == *key && placed.group == *group)
        {
            return Err(format!("no such group begins at the key of\n{operation}"));
        }
    }
    Ok(())
}
