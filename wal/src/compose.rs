//! The bytes of a commit, and what it changes in the streams it is about.
//!
//! Kept true: a record is written if and only if the streams, the segment's
//! effects and the count of what is live change by it, in the same order.

use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;

use crate::batch::Change;
use crate::blocks::Blocks;
use crate::effects::{Effect, Effects, Place};
use crate::format::{CommitHeader, Digest, Kind, RecordHeader};
use crate::log::Shared;
use crate::position::{SegmentId, StreamId};
use crate::segments::SegmentFile;
use crate::stream::{Cell, LiveChange, Logged, Slot};
use crate::writer::QueuedOp;

/// What an entry in the cache costs besides its payload.
const CACHED_ENTRY_BYTES: usize = 96;

/// The entries of one append, which the cache may forget once they are durable.
pub(crate) struct CachedAppend {
    pub(crate) cell: Cell,
    pub(crate) ticket: u64,
    pub(crate) bytes: usize,
}

/// A commit while it is composed.
pub(crate) struct Commit<'a> {
    pub(crate) blocks: Blocks,
    segment: SegmentId,
    salt: u64,
    /// Offset of the commit in its segment.
    start: u32,
    records: u32,
    digest: Digest,
    effects: &'a mut Effects,
    pub(crate) live: LiveChange,
    pub(crate) cached: Vec<CachedAppend>,
    /// Entries that are readable from memory until they are at their new place.
    pub(crate) moved: Vec<(Cell, u64)>,
}

impl<'a> Commit<'a> {
    /// Starts with room for the header.
    pub(crate) fn new(
        mut blocks: Blocks,
        file: &SegmentFile,
        start: u32,
        epoch: u64,
        effects: &'a mut Effects,
    ) -> Self {
        blocks.clear();
        blocks.put(&[0; CommitHeader::BYTES]);
        Self {
            blocks,
            segment: file.id,
            salt: file.salt,
            start,
            records: 0,
            digest: Digest::new(epoch),
            effects,
            live: LiveChange::default(),
            cached: Vec::new(),
            moved: Vec::new(),
        }
    }

    /// Fills in what the records say about the commit.
    pub(crate) fn describe(&self, header: &mut CommitHeader) {
        header.records = self.records;
        header.record_bytes = (self.blocks.len() - CommitHeader::BYTES) as u32;
        header.digest = self.digest.clone().finish();
    }

    pub(crate) fn add(&mut self, op: QueuedOp, shared: &Shared) {
        let QueuedOp {
            cell,
            stream,
            change,
            ticket,
        } = op;
        let mut guard = cell.lock();
        match change {
            Change::Drop => {
                self.record(Kind::Drop, stream, 0, &Bytes::new());
                if let Some(logged) = guard.logged.take() {
                    logged.dropped(&mut self.live);
                }
                if guard.view.is_none() {
                    guard.retired = true;
                    drop(guard);
                    shared.forget(stream, &cell);
                }
                return;
            }
            // What is to be written again may be gone by now.
            Change::Move { .. } | Change::MoveFloor { .. } | Change::MoveMeta { .. }
                if guard.logged.is_none() =>
            {
                return;
            }
            _ => {}
        }
        let founded = guard.logged.is_none();
        if founded && !matches!(change, Change::Purge { .. }) {
            self.record(Kind::Purge, stream, 0, &Bytes::new());
        }
        let segment = self.segment;
        let live = &mut self.live;
        let logged = guard
            .logged
            .get_or_insert_with(|| Logged::founded(segment, 0, live));
        match change {
            Change::Append { first, entries } => {
                assert_eq!(first, logged.next(), "stream {stream} has no holes");
                let mut bytes = 0;
                for (index, payload) in (first..).zip(&entries) {
                    let slot = self.record(Kind::Entry, stream, index, payload);
                    logged.append(slot, &mut self.live);
                    bytes += payload.len() + CACHED_ENTRY_BYTES;
                }
                let ticket = ticket.expect("every append has a ticket");
                drop(guard);
                self.cached.push(CachedAppend {
                    cell,
                    ticket,
                    bytes,
                });
            }
            Change::Meta { key, value } => {
                self.record(Kind::Meta, stream, u64::from(key), &value);
                logged.set_meta(key, value, segment, &mut self.live);
            }
            Change::Truncate { from } => {
                self.record(Kind::Truncate, stream, from, &Bytes::new());
                logged.truncate(from, &mut self.live);
            }
            Change::Purge { below } => {
                self.record(Kind::Purge, stream, below, &Bytes::new());
                logged.purge(below, segment, &mut self.live);
            }
            Change::Move {
                index,
                from,
                payload,
            } => {
                if logged.slot(index) == Some(from) {
                    let slot = self.record(Kind::Entry, stream, index, &payload);
                    logged.relocate(index, slot, &mut self.live);
                    logged.moving.insert(index, payload);
                    drop(guard);
                    self.moved.push((cell, index));
                    shared.counters.entries_moved.fetch_add(1, Relaxed);
                }
            }
            Change::MoveFloor { from } => {
                if logged.floor_at == from {
                    self.record(Kind::Purge, stream, logged.first, &Bytes::new());
                    logged.purge(logged.first, segment, &mut self.live);
                }
            }
            Change::MoveMeta { key, from, value } => {
                if logged.metas.get(&key).is_some_and(|meta| meta.at == from) {
                    self.record(Kind::Meta, stream, u64::from(key), &value);
                    logged.set_meta(key, value, segment, &mut self.live);
                }
            }
            Change::Drop => unreachable!("a drop was handled above"),
        }
    }

    /// Adds a record and says where it will be.
    fn record(&mut self, kind: Kind, stream: StreamId, index: u64, payload: &Bytes) -> Slot {
        let offset = self.start + self.blocks.len() as u32;
        let header = RecordHeader {
            crc: 0,
            payload_bytes: payload.len() as u32,
            stream: stream.0,
            index,
            ordinal: self.records,
            kind: kind as u32,
        };
        let bytes = header.to_bytes(self.salt, offset, payload);
        let crc = bytes
            .first_chunk()
            .expect("a header starts with its checksum");
        self.digest.add(crc);
        self.blocks.put(&bytes);
        self.blocks.put(payload);
        self.records += 1;
        let place = Place {
            offset,
            payload_bytes: payload.len() as u32,
        };
        self.effects.add(Effect {
            kind,
            stream,
            index,
            place,
            meta: match kind {
                Kind::Meta => payload.clone(),
                _ => Bytes::new(),
            },
        });
        Slot {
            segment: self.segment.0,
            offset,
            payload_bytes: payload.len() as u32,
        }
    }
}
