//! One stream in memory, seen from its two ends.
//!
//! Kept true: `view` is what callers were promised, queued changes included;
//! `logged` is what a replay of all commits composed so far would give. Each
//! entry of the view is in `tail`, or it is durable at its slot in `logged`.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

use crate::batch::Change;
use crate::error::WalError;
use crate::format::RecordHeader;
use crate::position::{LogIndex, SegmentId, StreamId};

/// Where an entry is on disk. Twelve bytes, because there is one for every
/// entry that is not purged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    pub(crate) segment: u32,
    pub(crate) offset: u32,
    pub(crate) payload_bytes: u32,
}

impl Slot {
    /// What the entry takes on disk, without the padding of its commit.
    fn bytes(self) -> u64 {
        u64::from(self.payload_bytes) + RecordHeader::BYTES as u64
    }
}

/// A stream that callers and the writer share.
pub(crate) type Cell = Arc<Mutex<Stream>>;

#[derive(Debug, Default)]
pub(crate) struct Stream {
    pub(crate) view: Option<View>,
    pub(crate) logged: Option<Logged>,
    /// No longer in the map: whoever holds this cell looks the stream up again.
    pub(crate) retired: bool,
    /// Counts appends, also across a drop; see [`Cached::ticket`].
    tickets: u64,
}

/// What callers see.
#[derive(Debug, Default)]
pub(crate) struct View {
    pub(crate) first: u64,
    pub(crate) next: u64,
    /// The newest entries, up to `next`.
    pub(crate) tail: VecDeque<Cached>,
    pub(crate) metas: BTreeMap<u8, Bytes>,
}

#[derive(Debug)]
pub(crate) struct Cached {
    /// The append that brought the entry. Appends become durable in order, so
    /// when one is durable, so is every cached entry with a ticket up to its.
    pub(crate) ticket: u64,
    pub(crate) payload: Bytes,
}

impl View {
    /// Index of the oldest cached entry.
    pub(crate) fn tail_first(&self) -> u64 {
        self.next - self.tail.len() as u64
    }

    /// Forgets cached entries that came with appends up to `ticket`.
    pub(crate) fn evict(&mut self, ticket: u64) {
        while self
            .tail
            .front()
            .is_some_and(|oldest| oldest.ticket <= ticket)
        {
            self.tail.pop_front();
        }
        shrink(&mut self.tail);
    }
}

/// Gives back the memory of a queue that has become short.
fn shrink<T>(queue: &mut VecDeque<T>) {
    if queue.capacity() > 64 && queue.capacity() > 4 * queue.len() {
        queue.shrink_to(2 * queue.len());
    }
}

/// First and next index of a view that may not exist yet, for checking a
/// batch before anything is changed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bounds {
    exists: bool,
    first: u64,
    next: u64,
}

impl Bounds {
    pub(crate) fn of(stream: &Stream) -> Self {
        stream
            .view
            .as_ref()
            .map_or_else(Self::default, |view| Self {
                exists: true,
                first: view.first,
                next: view.next,
            })
    }

    /// Follows one change, or says why it can't be made.
    pub(crate) fn follow(&mut self, stream: StreamId, change: &Change) -> Result<(), WalError> {
        match change {
            Change::Append { first, entries } => {
                if *first != self.next {
                    return Err(WalError::NotNext {
                        stream,
                        expected: LogIndex(self.next),
                        found: LogIndex(*first),
                    });
                }
                self.next += entries.len() as u64;
            }
            Change::Truncate { .. } | Change::Drop if !self.exists => {
                return Err(WalError::UnknownStream(stream));
            }
            Change::Truncate { from } => self.next = self.next.min(*from).max(self.first),
            Change::Purge { below } => {
                self.first = self.first.max(*below);
                self.next = self.next.max(self.first);
            }
            Change::Drop => {
                *self = Self::default();
                return Ok(());
            }
            Change::Meta { .. }
            | Change::Move { .. }
            | Change::MoveFloor { .. }
            | Change::MoveMeta { .. } => {}
        }
        self.exists = true;
        Ok(())
    }
}

impl Stream {
    /// What a stream recovered from disk looks like: nothing cached.
    pub(crate) fn recovered(logged: Logged) -> Self {
        let metas = logged.metas.iter();
        Self {
            view: Some(View {
                first: logged.first,
                next: logged.next(),
                tail: VecDeque::new(),
                metas: metas
                    .map(|(&key, meta)| (key, meta.value.clone()))
                    .collect(),
            }),
            logged: Some(logged),
            ..Self::default()
        }
    }

    /// Makes a checked change visible to callers. Returns the ticket of an append.
    pub(crate) fn change_view(&mut self, change: &Change) -> Option<u64> {
        let view = match change {
            Change::Drop => {
                self.view = None;
                return None;
            }
            Change::Move { .. } | Change::MoveFloor { .. } | Change::MoveMeta { .. } => {
                return None;
            }
            _ => self.view.get_or_insert_default(),
        };
        match change {
            Change::Append { entries, .. } => {
                self.tickets += 1;
                let ticket = self.tickets;
                view.next += entries.len() as u64;
                view.tail.extend(entries.iter().map(|payload| Cached {
                    ticket,
                    payload: payload.clone(),
                }));
                return Some(ticket);
            }
            Change::Meta { key, value } => {
                view.metas.insert(*key, value.clone());
            }
            Change::Truncate { from } => {
                let next = view.next.min(*from).max(view.first);
                let keep = next.saturating_sub(view.tail_first());
                view.tail.truncate(keep as usize);
                view.next = next;
            }
            Change::Purge { below } => {
                view.first = view.first.max(*below);
                let dead = view.first.saturating_sub(view.tail_first());
                view.tail.drain(..view.tail.len().min(dead as usize));
                view.next = view.next.max(view.first);
            }
            Change::Drop
            | Change::Move { .. }
            | Change::MoveFloor { .. }
            | Change::MoveMeta { .. } => {}
        }
        None
    }
}

/// What the log holds of a stream.
#[derive(Debug)]
pub(crate) struct Logged {
    pub(crate) first: u64,
    /// Segment with the newest record that says `first`.
    pub(crate) floor_at: SegmentId,
    /// Places of the entries from `first` on.
    pub(crate) slots: VecDeque<Slot>,
    /// What these entries take on disk together.
    pub(crate) bytes: u64,
    pub(crate) metas: BTreeMap<u8, LoggedMeta>,
    /// Payloads on their way to a new place, readable until they are there.
    pub(crate) moving: BTreeMap<u64, Bytes>,
}

#[derive(Debug)]
pub(crate) struct LoggedMeta {
    pub(crate) value: Bytes,
    pub(crate) at: SegmentId,
}

/// Changes to how much of each segment is still needed.
#[derive(Debug, Default)]
pub(crate) struct LiveChange(pub(crate) Vec<(SegmentId, i64, i64)>);

impl LiveChange {
    pub(crate) fn add(&mut self, segment: SegmentId, records: i64, bytes: i64) {
        match self.0.last_mut() {
            Some(last) if last.0 == segment => {
                last.1 += records;
                last.2 += bytes;
            }
            _ => self.0.push((segment, records, bytes)),
        }
    }

    fn add_slot(&mut self, slot: Slot, sign: i64) {
        let bytes = i64::from(slot.payload_bytes);
        self.add(SegmentId(slot.segment), sign, sign * bytes);
    }
}

impl Logged {
    /// A stream that begins with a record in `segment`.
    pub(crate) fn founded(segment: SegmentId, first: u64, live: &mut LiveChange) -> Self {
        live.add(segment, 1, 0);
        Self {
            first,
            floor_at: segment,
            slots: VecDeque::new(),
            bytes: 0,
            metas: BTreeMap::new(),
            moving: BTreeMap::new(),
        }
    }

    pub(crate) fn next(&self) -> u64 {
        self.first + self.slots.len() as u64
    }

    pub(crate) fn slot(&self, index: u64) -> Option<Slot> {
        let at = index.checked_sub(self.first)?;
        self.slots.get(usize::try_from(at).ok()?).copied()
    }

    pub(crate) fn append(&mut self, slot: Slot, live: &mut LiveChange) {
        live.add_slot(slot, 1);
        // By a quarter, not by doubling: there may be millions of slots.
        if self.slots.len() == self.slots.capacity() {
            self.slots.reserve_exact(self.slots.len() / 4 + 16);
        }
        self.bytes += slot.bytes();
        self.slots.push_back(slot);
    }

    /// Takes the entries that recovery found.
    pub(crate) fn set_slots(&mut self, slots: VecDeque<Slot>) {
        self.bytes = slots.iter().map(|slot| slot.bytes()).sum();
        self.slots = slots;
    }

    /// The first entry of those at the end that together take `bytes_max` at
    /// most. The cost grows with the number of entries before it.
    pub(crate) fn first_within(&self, bytes_max: u64) -> u64 {
        let mut rest = self.bytes;
        let over = self.slots.iter().take_while(|slot| {
            let over = rest > bytes_max;
            rest -= slot.bytes();
            over
        });
        self.first + over.count() as u64
    }

    /// Gives an entry a new place. The caller has checked that it is there.
    pub(crate) fn relocate(&mut self, index: u64, to: Slot, live: &mut LiveChange) {
        let slot = &mut self.slots[(index - self.first) as usize];
        live.add_slot(*slot, -1);
        live.add_slot(to, 1);
        *slot = to;
    }

    pub(crate) fn set_meta(&mut self, key: u8, value: Bytes, at: SegmentId, live: &mut LiveChange) {
        live.add(at, 1, value.len() as i64);
        if let Some(old) = self.metas.insert(key, LoggedMeta { value, at }) {
            live.add(old.at, -1, -(old.value.len() as i64));
        }
    }

    pub(crate) fn truncate(&mut self, from: u64, live: &mut LiveChange) {
        let keep = from.saturating_sub(self.first).min(self.slots.len() as u64);
        for slot in self.slots.drain(keep as usize..) {
            self.bytes -= slot.bytes();
            live.add_slot(slot, -1);
        }
        self.moving.split_off(&from);
    }

    /// Raises the floor, as a record in `at` says.
    pub(crate) fn purge(&mut self, below: u64, at: SegmentId, live: &mut LiveChange) {
        live.add(self.floor_at, -1, 0);
        live.add(at, 1, 0);
        self.floor_at = at;
        let dead = below
            .saturating_sub(self.first)
            .min(self.slots.len() as u64);
        for slot in self.slots.drain(..dead as usize) {
            self.bytes -= slot.bytes();
            live.add_slot(slot, -1);
        }
        self.first = self.first.max(below);
        self.moving = self.moving.split_off(&self.first);
        shrink(&mut self.slots);
    }

    /// Everything it has is live: it was just recovered.
    pub(crate) fn count_live(&self, live: &mut LiveChange) {
        self.count_all(live, 1);
    }

    /// Everything it had is garbage now.
    pub(crate) fn dropped(self, live: &mut LiveChange) {
        self.count_all(live, -1);
    }

    fn count_all(&self, live: &mut LiveChange, sign: i64) {
        live.add(self.floor_at, sign, 0);
        for &slot in &self.slots {
            live.add_slot(slot, sign);
        }
        for meta in self.metas.values() {
            live.add(meta.at, sign, sign * meta.value.len() as i64);
        }
    }
}
