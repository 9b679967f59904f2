//! In the end all replicas of a group are the same; and never do two of them
//! say different things about a revision.

use crate::end::{End, is_one};
use crate::history::History;

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
    Ok(())
}
