//! From the effects of segments to the streams they add up to.
//!
//! Kept true: what comes out has no holes. The oldest segments may be gone
//! and their last live entries may stand in a later one, so a stream can look
//! torn in the middle of a replay, but never at its end.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use crate::effects::{Effects, Run, StreamEffects};
use crate::error::Finding;
use crate::position::{LogIndex, SegmentId, StreamId};
use crate::stream::{LiveChange, Logged, LoggedMeta, Slot};

#[derive(Default)]
pub(crate) struct Replay {
    streams: BTreeMap<StreamId, Partial>,
}

#[derive(Default)]
struct Partial {
    floor: Option<(u64, SegmentId)>,
    metas: BTreeMap<u32, (Bytes, SegmentId)>,
    /// Entries by the first index of their run; runs neither touch nor overlap.
    runs: BTreeMap<u64, VecDeque<Slot>>,
}

impl Replay {
    /// Adds what the next segment did.
    pub(crate) fn absorb(&mut self, segment: SegmentId, effects: &Effects) {
        for (&id, effects) in &effects.streams {
            let stream = self.streams.entry(id).or_default();
            stream.absorb(segment, effects);
            if stream.is_nothing() {
                self.streams.remove(&id);
            }
        }
    }

    /// The streams, or the first thing that can't be.
    pub(crate) fn finish(self, last: SegmentId) -> Result<BTreeMap<StreamId, Logged>, Finding> {
        self.streams
            .into_iter()
            .map(|(id, partial)| Ok((id, partial.finish(id, last)?)))
            .collect()
    }
}

impl Partial {
    fn is_nothing(&self) -> bool {
        self.floor.is_none() && self.metas.is_empty() && self.runs.is_empty()
    }

    fn absorb(&mut self, segment: SegmentId, effects: &StreamEffects) {
        if effects.dropped {
            *self = Self::default();
        }
        if let Some(from) = effects.truncated_from {
            self.remove_from(from);
        }
        for run in &effects.runs {
            self.set(segment, run);
        }
        if let Some(below) = effects.purged_below {
            let below = self.floor.map_or(below, |(floor, _)| floor.max(below));
            self.floor = Some((below, segment));
            self.remove_below(below);
        }
        for (&key, value) in &effects.metas {
            self.metas.insert(key, (value.clone(), segment));
        }
    }

    fn remove_from(&mut self, from: u64) {
        self.runs.split_off(&from);
        if let Some((&first, run)) = self.runs.iter_mut().next_back() {
            run.truncate((from - first).min(run.len() as u64) as usize);
        }
    }

    fn remove_below(&mut self, below: u64) {
        while let Some(mut oldest) = self.runs.first_entry() {
            let first = *oldest.key();
            let dead = below.saturating_sub(first).min(oldest.get().len() as u64) as usize;
            if dead == 0 {
                return;
            }
            let rest = oldest.get_mut().split_off(dead);
            oldest.remove();
            if !rest.is_empty() {
                self.runs.insert(first + dead as u64, rest);
            }
        }
    }

    /// Sets the places of a run of entries, new ones or moved ones.
    fn set(&mut self, segment: SegmentId, run: &Run) {
        let mut slots: VecDeque<Slot> = run
            .places
            .iter()
            .map(|place| Slot {
                segment: segment.0,
                offset: place.offset,
                payload_bytes: place.payload_bytes,
            })
            .collect();
        let (mut first, end) = (run.first, run.first + slots.len() as u64);
        // Join with every run that touches or overlaps; the new places win.
        while let Some((&before, old)) = self.runs.range_mut(..=end).next_back() {
            let old_end = before + old.len() as u64;
            if old_end < first {
                break;
            }
            if before <= first && old_end <= end {
                // The common case: appended at the end, in place.
                old.truncate((first - before) as usize);
                old.append(&mut slots);
                return;
            }
            let mut old = self.runs.remove(&before).unwrap_or_default();
            if old_end > end {
                slots.extend(old.split_off((end - before) as usize));
            }
            if before < first {
                old.truncate((first - before) as usize);
                old.append(&mut slots);
                slots = old;
                first = before;
            }
        }
        self.runs.insert(first, slots);
    }

    fn finish(mut self, id: StreamId, last: SegmentId) -> Result<Logged, Finding> {
        let impossible = |index: u64, what: &str| Finding {
            entry: Some((id, Some(LogIndex(index)))),
            ..Finding::new(last, 0, what)
        };
        let Some((first, floor_at)) = self.floor else {
            let index = self.runs.keys().next().copied().unwrap_or(0);
            return Err(impossible(index, "a stream has records but no beginning"));
        };
        self.remove_below(first);
        let mut logged = Logged::founded(floor_at, first, &mut LiveChange::default());
        if let Some((at, slots)) = self.runs.pop_first()
            && !slots.is_empty()
        {
            if at != first {
                return Err(impossible(first, "an entry is missing"));
            }
            let end = at + slots.len() as u64;
            if self.runs.values().any(|slots| !slots.is_empty()) {
                return Err(impossible(end, "an entry is missing"));
            }
            logged.set_slots(slots);
        }
        for (key, (value, at)) in self.metas {
            let key = u8::try_from(key).map_err(|_| impossible(first, "an impossible key"))?;
            logged.metas.insert(key, LoggedMeta { value, at });
        }
        Ok(logged)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::effects::Place;

    fn run(first: u64, count: u64) -> Run {
        let places = (first..first + count)
            .map(|index| Place {
                offset: index as u32,
                payload_bytes: 1,
            })
            .collect();
        Run { first, places }
    }

    fn entries(partial: &Partial) -> Vec<(u64, u32)> {
        partial
            .runs
            .iter()
            .flat_map(|(&first, slots)| {
                (first..).zip(slots).map(|(index, slot)| {
                    assert_eq!(slot.offset, index as u32);
                    (index, slot.segment)
                })
            })
            .collect()
    }

    /// Every pair of overlapping, touching and distant runs, against a map.
    #[test]
    fn runs_join_like_a_map_of_single_entries() {
        for (a, a_count) in pairs(6) {
            for (b, b_count) in pairs(6) {
                for (c, c_count) in pairs(6) {
                    let mut partial = Partial::default();
                    let mut model = BTreeMap::new();
                    for (segment, first, count) in
                        [(1, a, a_count), (2, b, b_count), (3, c, c_count)]
                    {
                        partial.set(SegmentId(segment), &run(first, count));
                        model.extend((first..first + count).map(|index| (index, segment)));
                    }
                    let model: Vec<_> = model.into_iter().collect();
                    assert_eq!(
                        entries(&partial),
                        model,
                        "{a}+{a_count} {b}+{b_count} {c}+{c_count}"
                    );
                    for cut in 0..8 {
                        let mut cut_model = model.clone();
                        cut_model.retain(|&(index, _)| index < cut);
                        let mut other = clone(&partial);
                        other.remove_from(cut);
                        assert_eq!(entries(&other), cut_model);
                        let mut cut_model = model.clone();
                        cut_model.retain(|&(index, _)| index >= cut);
                        let mut other = clone(&partial);
                        other.remove_below(cut);
                        assert_eq!(entries(&other), cut_model);
                    }
                }
            }
        }
    }

    fn pairs(limit: u64) -> impl Iterator<Item = (u64, u64)> {
        (0..limit).flat_map(move |first| (1..=limit - first).map(move |count| (first, count)))
    }

    fn clone(partial: &Partial) -> Partial {
        Partial {
            floor: partial.floor,
            metas: partial.metas.clone(),
            runs: partial.runs.clone(),
        }
    }

    #[test]
    fn a_hole_is_named() {
        let mut partial = Partial {
            floor: Some((2, SegmentId(1))),
            ..Partial::default()
        };
        partial.set(SegmentId(1), &run(2, 2));
        partial.set(SegmentId(1), &run(5, 2));
        let finding = partial.finish(StreamId(9), SegmentId(1)).unwrap_err();
        assert_eq!(finding.entry, Some((StreamId(9), Some(LogIndex(4)))));
    }
}
