//! When the faults end, everything gets on: every group takes writes from
//! every node, reads of all keys and watches over all keys go on.

use crate::end::{End, PATIENCE};

pub(crate) const PROMISE: &str = "When the faults end, everything gets on.";

pub(crate) fn check(end: &End) -> Result<(), String> {
    match end.stuck.is_empty() {
        true => Ok(()),
        false => Err(format!("not within {PATIENCE:?}: {}", end.stuck.join(", "))),
    }
}
