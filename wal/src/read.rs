//! Reads of entries: from memory for the recent tail, from disk for the rest.
//!
//! Kept true: what is returned was checked against its checksum, its stream
//! and its index; a segment can't be used again while a read needs it.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;

use crate::blocks::BLOCK_BYTES;
use crate::disk::read_blocks;
use crate::error::{Finding, WalError};
use crate::format::{Kind, RecordHeader, segment_name};
use crate::log::Shared;
use crate::position::{LogIndex, SegmentId, StreamId};
use crate::segments::SegmentFile;
use crate::stream::{Slot, Stream};

/// Most bytes that one read of the disk asks for.
const SPAN_BYTES_MAX: usize = 1 << 20;

/// An entry to be read.
enum Wanted {
    Here(Bytes),
    There(Slot),
}

impl Shared {
    /// Consecutive entries from `from` to before `to`, as many as there are
    /// and as fit `bytes_max`, but at least one if there is one.
    pub(crate) fn read(
        &self,
        stream: StreamId,
        from: u64,
        to: u64,
        bytes_max: usize,
    ) -> Result<Vec<Bytes>, WalError> {
        let cell = self.find(stream).ok_or(WalError::UnknownStream(stream))?;
        let (wanted, pins) = {
            let guard = cell.lock();
            let wanted = plan(&guard, stream, from, to, bytes_max)?;
            // Pinned under the stream's lock: until then its slots keep the segments.
            let pins = self.pin(&wanted);
            (wanted, pins)
        };
        self.fetch(stream, from, wanted, &pins)
    }

    fn pin(&self, wanted: &[Wanted]) -> BTreeMap<u32, SegmentFile> {
        let mut pins = BTreeMap::new();
        for entry in wanted {
            if let Wanted::There(slot) = entry {
                pins.entry(slot.segment).or_insert_with(|| {
                    self.segments
                        .lock()
                        .get(SegmentId(slot.segment))
                        .expect("a segment with a live entry is held")
                        .clone()
                });
            }
        }
        pins
    }

    fn fetch(
        &self,
        stream: StreamId,
        from: u64,
        wanted: Vec<Wanted>,
        pins: &BTreeMap<u32, SegmentFile>,
    ) -> Result<Vec<Bytes>, WalError> {
        let mut entries = Vec::with_capacity(wanted.len());
        let mut span: Option<Span> = None;
        for (at, entry) in wanted.iter().enumerate() {
            let slot = match entry {
                Wanted::Here(payload) => {
                    self.counters.reads_cached.fetch_add(1, Relaxed);
                    entries.push(payload.clone());
                    continue;
                }
                Wanted::There(slot) => *slot,
            };
            self.counters.reads_disk.fetch_add(1, Relaxed);
            if !span.as_ref().is_some_and(|span| span.holds(slot)) {
                let more = wanted[at..].iter().map_while(|entry| match entry {
                    Wanted::There(slot) => Some(*slot),
                    Wanted::Here(_) => None,
                });
                span = Some(self.read_span(&pins[&slot.segment], more)?);
            }
            if let Some(span) = &span {
                entries.push(self.check(span, stream, from + at as u64, slot)?);
            }
        }
        Ok(entries)
    }

    /// Reads the blocks of the first slot and of those that lie close behind it.
    fn read_span(
        &self,
        file: &SegmentFile,
        mut slots: impl Iterator<Item = Slot>,
    ) -> Result<Span, WalError> {
        let first = slots.next().expect("a span is read for a slot");
        let start = first.offset as usize / BLOCK_BYTES * BLOCK_BYTES;
        let mut end = record_end(first);
        for slot in slots {
            let near = slot.segment == first.segment
                && slot.offset as usize >= end
                && slot.offset as usize <= end + SPAN_BYTES_MAX / 16
                && record_end(slot) - start <= SPAN_BYTES_MAX;
            if !near {
                break;
            }
            end = record_end(slot);
        }
        let bytes = (end - start).next_multiple_of(BLOCK_BYTES);
        let blocks = read_blocks(&*file.file, start as u64, bytes).map_err(|error| {
            let path = self.config.dir.join(segment_name(file.id));
            let operation = format_args!("read of {bytes} bytes at {start:#x}");
            WalError::io(&path, operation, error)
        })?;
        Ok(Span {
            segment: file.id,
            salt: file.salt,
            start,
            bytes: Bytes::from_owner(blocks),
        })
    }

    fn check(
        &self,
        span: &Span,
        stream: StreamId,
        index: u64,
        slot: Slot,
    ) -> Result<Bytes, WalError> {
        let at = slot.offset as usize - span.start;
        let right = |record: &RecordHeader| {
            record.kind == Kind::Entry as u32
                && record.stream() == stream
                && record.index == index
                && record.payload_bytes == slot.payload_bytes
        };
        match RecordHeader::read(&span.bytes[at..], span.salt, slot.offset) {
            Ok((record, payload)) if right(&record) => Ok(span.bytes.slice_ref(payload)),
            _ => Err(Finding {
                entry: Some((stream, Some(LogIndex(index)))),
                ..Finding::new(span.segment, slot.offset as usize, "an entry is damaged")
            }
            .in_dir(&self.config.dir)
            .into()),
        }
    }

    /// The payload of one entry at one place, for moving it.
    pub(crate) fn read_slot(
        &self,
        stream: StreamId,
        index: u64,
        slot: Slot,
        file: &SegmentFile,
    ) -> Result<Bytes, WalError> {
        let span = self.read_span(file, std::iter::once(slot))?;
        self.check(&span, stream, index, slot)
    }
}

/// Consecutive blocks of one segment.
struct Span {
    segment: SegmentId,
    salt: u64,
    start: usize,
    bytes: Bytes,
}

impl Span {
    fn holds(&self, slot: Slot) -> bool {
        slot.segment == self.segment.0
            && slot.offset as usize >= self.start
            && record_end(slot) <= self.start + self.bytes.len()
    }
}

fn record_end(slot: Slot) -> usize {
    slot.offset as usize + RecordHeader::BYTES + slot.payload_bytes as usize
}

fn plan(
    guard: &Stream,
    stream: StreamId,
    from: u64,
    to: u64,
    bytes_max: usize,
) -> Result<Vec<Wanted>, WalError> {
    let view = guard.view.as_ref().ok_or(WalError::UnknownStream(stream))?;
    if from < view.first {
        return Err(WalError::Purged {
            stream,
            first: LogIndex(view.first),
        });
    }
    let mut bytes = 0;
    let mut wanted = Vec::new();
    for index in from..to.min(view.next) {
        let entry = match index.checked_sub(view.tail_first()) {
            Some(at) => Wanted::Here(view.tail[at as usize].payload.clone()),
            None => {
                let logged = guard.logged.as_ref();
                let logged = logged.expect("what is not cached was logged");
                match logged.moving.get(&index) {
                    Some(payload) => Wanted::Here(payload.clone()),
                    None => {
                        Wanted::There(logged.slot(index).expect("what is not cached has a place"))
                    }
                }
            }
        };
        bytes += match &entry {
            Wanted::Here(payload) => payload.len(),
            Wanted::There(slot) => slot.payload_bytes as usize,
        };
        if bytes > bytes_max && !wanted.is_empty() {
            break;
        }
        wanted.push(entry);
    }
    Ok(wanted)
}
