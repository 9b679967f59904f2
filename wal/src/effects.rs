//! What one segment did to each stream, all in all.
//!
//! Kept true: replaying the effects of consecutive segments, oldest first,
//! gives the same streams as replaying their records one by one. The footer
//! of a sealed segment is its effects encoded, so opening reads footers
//! instead of segments; recovery of an unsealed segment builds the same
//! effects from its records, so there is one replay for both.

use std::collections::BTreeMap;

use bytes::{Buf, Bytes};
use rustc_hash::FxHashMap;

use crate::format::{FooterMeta, FooterPlace, FooterRun, FooterStream, Kind};
use crate::position::{LogIndex, StreamId};

/// Where an entry's record lies in its segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) offset: u32,
    pub(crate) payload_bytes: u32,
}

/// Entries with consecutive indexes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) first: u64,
    pub(crate) places: Vec<Place>,
}

impl Run {
    fn end(&self) -> u64 {
        self.first + self.places.len() as u64
    }
}

/// Effects on one stream. They count in this order: dropped, truncated,
/// entries, purged; metas are apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StreamEffects {
    pub(crate) dropped: bool,
    pub(crate) truncated_from: Option<u64>,
    pub(crate) purged_below: Option<u64>,
    pub(crate) metas: BTreeMap<u32, Bytes>,
    pub(crate) runs: Vec<Run>,
}

/// Effects on all streams that the segment touched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Effects {
    pub(crate) streams: FxHashMap<StreamId, StreamEffects>,
    /// Upper bound of the encoded length.
    footer_bytes: usize,
}

/// One record, as far as it has effects.
#[derive(Clone, Debug)]
pub(crate) struct Effect {
    pub(crate) kind: Kind,
    pub(crate) stream: StreamId,
    pub(crate) index: u64,
    pub(crate) place: Place,
    /// The payload of a [`Kind::Meta`].
    pub(crate) meta: Bytes,
}

impl Effects {
    /// Most footer bytes that a change with one record can add.
    pub(crate) const fn footer_bytes_per_record(meta_bytes: usize) -> usize {
        FooterStream::BYTES + FooterMeta::BYTES + meta_bytes + FooterRun::BYTES + FooterPlace::BYTES
    }

    /// Most footer bytes that a further entry of the same append can add.
    pub(crate) const fn footer_bytes_per_entry() -> usize {
        FooterPlace::BYTES
    }

    /// At least the length of [`Effects::encode`]'s answer.
    pub(crate) fn footer_bytes(&self) -> usize {
        4 + self.footer_bytes
    }

    pub(crate) fn add(&mut self, effect: Effect) {
        let mut grown = 0;
        let stream = self.streams.entry(effect.stream).or_insert_with(|| {
            grown += FooterStream::BYTES;
            StreamEffects::default()
        });
        match effect.kind {
            Kind::Entry => grown += stream.add_entry(effect.index, effect.place),
            Kind::Meta => {
                grown += FooterMeta::BYTES + effect.meta.len();
                stream.metas.insert(effect.index as u32, effect.meta);
            }
            Kind::Truncate => stream.truncate(effect.index),
            Kind::Purge => {
                stream.purged_below = stream.purged_below.max(Some(effect.index));
            }
            Kind::Drop => {
                *stream = StreamEffects {
                    dropped: true,
                    ..StreamEffects::default()
                };
            }
        }
        self.footer_bytes += grown;
    }

    /// Whose record starts at `offset`, if it is an entry that counts.
    pub(crate) fn entry_at(&self, offset: u32) -> Option<(StreamId, Option<LogIndex>)> {
        self.streams.iter().find_map(|(&id, stream)| {
            let mut entries = stream
                .runs
                .iter()
                .flat_map(|run| (run.first..).zip(&run.places));
            let (index, _) = entries.find(|(_, place)| place.offset == offset)?;
            Some((id, Some(LogIndex(index))))
        })
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.footer_bytes());
        out.extend((self.streams.len() as u32).to_le_bytes());
        let mut streams: Vec<_> = self.streams.iter().collect();
        streams.sort_unstable_by_key(|(id, _)| **id);
        for (id, stream) in streams {
            let flag = |set: bool, flag| if set { flag } else { 0 };
            let header = FooterStream {
                stream: id.0,
                flags: flag(stream.dropped, FooterStream::DROPPED)
                    | flag(stream.truncated_from.is_some(), FooterStream::TRUNCATED)
                    | flag(stream.purged_below.is_some(), FooterStream::PURGED),
                metas: stream.metas.len() as u32,
                runs: stream.runs.len() as u32,
                reserved: 0,
                truncated_from: stream.truncated_from.unwrap_or(0),
                purged_below: stream.purged_below.unwrap_or(0),
            };
            out.extend(header.encode());
            for (&key, value) in &stream.metas {
                let value_bytes = value.len() as u32;
                out.extend(FooterMeta { key, value_bytes }.encode());
                out.extend(value);
            }
            for run in &stream.runs {
                let header = FooterRun {
                    first: run.first,
                    count: run.places.len() as u32,
                    reserved: 0,
                };
                out.extend(header.encode());
                for &place in &run.places {
                    let place = FooterPlace {
                        offset: place.offset,
                        payload_bytes: place.payload_bytes,
                    };
                    out.extend(place.encode());
                }
            }
        }
        debug_assert!(out.len() <= self.footer_bytes());
        out
    }

    /// The effects that [`Effects::encode`] wrote, or `None` if these are not such bytes.
    pub(crate) fn decode(mut bytes: Bytes) -> Option<Self> {
        let mut effects = Self::default();
        let streams = bytes.try_get_u32_le().ok()?;
        for _ in 0..streams {
            let header = FooterStream::decode(&take(&mut bytes, FooterStream::BYTES)?)?;
            let set = |flag| header.flags & flag != 0;
            let mut stream = StreamEffects {
                dropped: set(FooterStream::DROPPED),
                truncated_from: set(FooterStream::TRUNCATED).then_some(header.truncated_from),
                purged_below: set(FooterStream::PURGED).then_some(header.purged_below),
                ..StreamEffects::default()
            };
            let mut bytes_used = FooterStream::BYTES;
            for _ in 0..header.metas {
                let meta = FooterMeta::decode(&take(&mut bytes, FooterMeta::BYTES)?)?;
                let value = take(&mut bytes, meta.value_bytes as usize)?;
                bytes_used += FooterMeta::BYTES + value.len();
                // Copied, so that a few bytes don't keep the whole footer in memory.
                stream
                    .metas
                    .insert(meta.key, Bytes::copy_from_slice(&value));
            }
            for _ in 0..header.runs {
                let run = FooterRun::decode(&take(&mut bytes, FooterRun::BYTES)?)?;
                let places = take(
                    &mut bytes,
                    (run.count as usize).checked_mul(FooterPlace::BYTES)?,
                )?;
                run.first.checked_add(u64::from(run.count))?;
                bytes_used += FooterRun::BYTES + places.len();
                stream.runs.push(Run {
                    first: run.first,
                    places: places
                        .chunks_exact(FooterPlace::BYTES)
                        .filter_map(FooterPlace::decode)
                        .map(|place| Place {
                            offset: place.offset,
                            payload_bytes: place.payload_bytes,
                        })
                        .collect(),
                });
            }
            effects.footer_bytes += bytes_used;
            effects.streams.insert(StreamId(header.stream), stream);
        }
        bytes.is_empty().then_some(effects)
    }
}

fn take(bytes: &mut Bytes, count: usize) -> Option<Bytes> {
    (bytes.len() >= count).then(|| bytes.split_to(count))
}

impl StreamEffects {
    /// Returns how many footer bytes this can add.
    fn add_entry(&mut self, index: u64, place: Place) -> usize {
        match self.runs.last_mut() {
            Some(run) if run.end() == index => {
                run.places.push(place);
                FooterPlace::BYTES
            }
            _ => {
                self.runs.push(Run {
                    first: index,
                    places: vec![place],
                });
                FooterRun::BYTES + FooterPlace::BYTES
            }
        }
    }

    fn truncate(&mut self, from: u64) {
        self.truncated_from = Some(self.truncated_from.map_or(from, |before| before.min(from)));
        self.runs.retain_mut(|run| {
            let keep = from.saturating_sub(run.first).min(run.places.len() as u64);
            run.places.truncate(keep as usize);
            !run.places.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn effect(kind: Kind, stream: u64, index: u64) -> Effect {
        Effect {
            kind,
            stream: StreamId(stream),
            index,
            place: Place {
                offset: index as u32 * 100,
                payload_bytes: 7,
            },
            meta: if kind == Kind::Meta {
                Bytes::from(format!("value {index}"))
            } else {
                Bytes::new()
            },
        }
    }

    #[test]
    fn footers_give_back_what_was_added() {
        let mut effects = Effects::default();
        for added in [
            effect(Kind::Purge, 1, 0),
            effect(Kind::Entry, 1, 0),
            effect(Kind::Entry, 1, 1),
            effect(Kind::Entry, 1, 2),
            effect(Kind::Truncate, 1, 1),
            effect(Kind::Entry, 1, 1),
            effect(Kind::Meta, 2, 9),
            effect(Kind::Meta, 2, 9),
            effect(Kind::Entry, 2, 50),
            effect(Kind::Entry, 2, 7),
            effect(Kind::Entry, 3, 4),
            effect(Kind::Drop, 3, 0),
            effect(Kind::Purge, 3, 12),
        ] {
            effects.add(added);
        }
        let first = &effects.streams[&StreamId(1)];
        assert_eq!(first.truncated_from, Some(1));
        assert_eq!(first.runs.len(), 1);
        assert_eq!(first.runs[0].places.len(), 2);
        assert!(effects.streams[&StreamId(3)].runs.is_empty());

        let footer = Bytes::from(effects.encode());
        assert!(footer.len() <= effects.footer_bytes());
        let decoded = Effects::decode(footer.clone()).unwrap();
        assert_eq!(decoded.streams, effects.streams);
        assert!(decoded.footer_bytes() >= decoded.encode().len());
        for cut in 0..footer.len() {
            assert!(Effects::decode(footer.slice(..cut)).is_none(), "cut {cut}");
        }
    }

    #[test]
    fn a_truncation_before_the_segments_entries_still_counts_for_older_segments() {
        let mut effects = Effects::default();
        effects.add(effect(Kind::Truncate, 1, 5));
        effects.add(effect(Kind::Entry, 1, 5));
        effects.add(effect(Kind::Entry, 1, 6));
        effects.add(effect(Kind::Truncate, 1, 6));
        let stream = &effects.streams[&StreamId(1)];
        assert_eq!(stream.truncated_from, Some(5));
        assert_eq!(
            stream.runs,
            vec![Run {
                first: 5,
                places: vec![Place {
                    offset: 500,
                    payload_bytes: 7
                }]
            }]
        );
    }
}
