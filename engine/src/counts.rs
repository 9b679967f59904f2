//! Counts of the rest of a list that is read page by page.
//!
//! Kept true: what was counted at a revision stays so, as long as the
//! revision can be read. So a client that reads on where its last page ended
//! is told the count without counting.

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;

use crate::position::Revision;

/// Lists that are remembered.
const LISTS_MAX: usize = 1024;

type List = (Revision, Bytes);

/// The rest of each list, by revision and end: where it begins and its count.
#[derive(Default)]
pub(crate) struct Counts {
    rests: HashMap<List, (Bytes, i64)>,
    oldest: VecDeque<List>,
}

impl Counts {
    /// Number of keys from `key` to `end` at a revision, if it is known.
    pub(crate) fn get(&self, at: Revision, key: &[u8], end: &Bytes) -> Option<i64> {
        let (from, count) = self.rests.get(&(at, end.clone()))?;
        (from == key).then_some(*count)
    }

    pub(crate) fn set(&mut self, at: Revision, key: Bytes, end: Bytes, count: i64) {
        let list = (at, end);
        if self.rests.insert(list.clone(), (key, count)).is_none() {
            self.oldest.push_back(list);
        }
        if self.rests.len() > LISTS_MAX
            && let Some(list) = self.oldest.pop_front()
        {
            self.rests.remove(&list);
        }
    }
}
