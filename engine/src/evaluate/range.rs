//! Reads: what is kept of a range, in which order, how much of it.

use bytes::Bytes;

use super::view::{NOW, View};
use crate::error::EngineError;
use crate::position::Revision;
use crate::request::{KeyValue, KvRef, Range, RangeAnswer, SortOrder, SortTarget};

/// Reads a range; `header` is the revision that the answer tells.
pub(super) fn read(
    view: &View<'_>,
    header: Revision,
    range: &Range,
) -> Result<RangeAnswer, EngineError> {
    let at = if range.revision > 0 {
        view.readable(range.revision)?;
        Revision(range.revision)
    } else {
        NOW
    };
    let mut answer = RangeAnswer {
        revision: header,
        ..RangeAnswer::default()
    };
    if range.count_only {
        answer.count = view.count(&range.keys, at)?;
    } else {
        fetch(view, at, range, &mut answer)?;
        arrange(range, &mut answer);
    }
    if range.revision > 0 {
        // The floor may have risen over it while it was read.
        view.readable(range.revision)?;
    }
    Ok(answer)
}

fn fetch(
    view: &View<'_>,
    at: Revision,
    range: &Range,
    answer: &mut RangeAnswer,
) -> Result<(), EngineError> {
    let keep_max = keep_max(range);
    let mut seen_all = true;
    let mut seen = 0;
    view.scan(&range.keys, at, &mut |kv| {
        seen += 1;
        if !passes(view, range, kv)? {
            return Ok(true);
        }
        if answer.kvs.len() == keep_max {
            answer.more = true;
            seen_all = false;
            return Ok(false);
        }
        answer.kvs.push(copy(range, kv));
        Ok(true)
    })?;
    // Neither the limit nor the filters change the count.
    answer.count = if seen_all {
        seen
    } else {
        view.count(&range.keys, at)?
    };
    if answer.more
        && let Some(last) = answer.kvs.last()
    {
        // A client that reads page by page goes on right after the last key.
        view.remember_rest(&range.keys, at, &last.key, answer.count - seen + 1);
    }
    Ok(())
}

/// What each of several stores is asked, so that [`join`] finds the answer of
/// one that had all their keys; `found` is what those before it gave.
#[must_use]
pub fn part(range: &Range, found: &[RangeAnswer]) -> Range {
    let mut part = range.clone();
    if !in_key_order(range) {
        // Sorting comes after all of them.
        part.keys_only &= range.target != SortTarget::Value;
        part.order = SortOrder::None;
        part.target = SortTarget::Key;
        part.limit = 0;
    } else if limit(range).is_some() {
        // One more tells whether there is more.
        let seen: usize = found.iter().map(|answer| answer.kvs.len()).sum();
        part.limit = range.limit.saturating_add(1) - seen as i64;
        part.count_only |= part.limit <= 0;
    }
    part
}

/// The answer to a read whose keys were read in parts, in key order, as
/// [`part`] says.
#[must_use]
pub fn join(range: &Range, parts: Vec<RangeAnswer>) -> RangeAnswer {
    let mut whole = RangeAnswer::default();
    for part in parts {
        whole.revision = part.revision;
        whole.kvs.extend(part.kvs);
        whole.count += part.count;
        whole.more |= part.more;
    }
    let keep_max = keep_max(range);
    if !in_key_order(range) && whole.kvs.len() > keep_max {
        whole.more = true;
        whole.kvs.truncate(keep_max);
    }
    arrange(range, &mut whole);
    whole
}

fn arrange(range: &Range, answer: &mut RangeAnswer) {
    if !in_key_order(range) {
        sort(range, &mut answer.kvs);
    }
    if let Some(limit) = limit(range)
        && answer.kvs.len() > limit
    {
        answer.kvs.truncate(limit);
        answer.more = true;
    }
    if range.keys_only {
        for kv in &mut answer.kvs {
            kv.value = Bytes::new();
        }
    }
}

fn limit(range: &Range) -> Option<usize> {
    usize::try_from(range.limit).ok().filter(|limit| *limit > 0)
}

/// Whether the keys are wanted as they come.
fn in_key_order(range: &Range) -> bool {
    range.target == SortTarget::Key && range.order != SortOrder::Descend
}

/// The most keys that are kept for sorting. An order that isn't said, with a
/// target that isn't the key, sorts the first of them and not all: etcd
/// fetches one more than the limit before it sorts, unless it must filter.
fn keep_max(range: &Range) -> usize {
    let filters = [
        range.modified_min,
        range.modified_max,
        range.create_min,
        range.create_max,
    ];
    match limit(range) {
        Some(limit) if in_key_order(range) => limit,
        Some(limit) if range.order == SortOrder::None && filters == [0; 4] => {
            limit.saturating_add(1)
        }
        _ => usize::MAX,
    }
}

fn passes(view: &View<'_>, range: &Range, kv: KvRef<'_>) -> Result<bool, EngineError> {
    let at_least = |shown, min| Ok::<_, EngineError>(min == 0 || view.relate(shown, min)?.is_ge());
    let at_most = |shown, max| Ok::<_, EngineError>(max == 0 || view.relate(shown, max)?.is_le());
    Ok(at_most(kv.modified, range.modified_max)?
        && at_least(kv.modified, range.modified_min)?
        && at_most(kv.create, range.create_max)?
        && at_least(kv.create, range.create_min)?)
}

/// etcd answers keys without values from its index (since 3.7), which knows
/// no leases; unless it needs the values to sort by.
fn copy(range: &Range, kv: KvRef<'_>) -> KeyValue {
    if !range.keys_only || range.target == SortTarget::Value {
        return kv.to_owned();
    }
    let shown = KvRef {
        value: &[],
        lease: 0,
        ..kv
    };
    shown.to_owned()
}

/// Equal ones stay in key order, where etcd leaves the order open.
fn sort(range: &Range, kvs: &mut [KeyValue]) {
    let compare = |a: &KeyValue, b: &KeyValue| match range.target {
        SortTarget::Key => a.key.cmp(&b.key),
        SortTarget::Version => a.version.cmp(&b.version),
        SortTarget::Create => a.create.cmp(&b.create),
        SortTarget::Modified => a.modified.cmp(&b.modified),
        SortTarget::Value => a.value.cmp(&b.value),
    };
    match range.order {
        SortOrder::None | SortOrder::Ascend => kvs.sort_by(compare),
        SortOrder::Descend => kvs.sort_by(|a, b| compare(b, a)),
    }
}
