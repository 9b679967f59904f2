//! The group's log, in its stream of the node's log.
//!
//! Kept true:
//! - Positions in the stream are openraft's indexes.
//! - The vote is durable before anybody hears of it. What follows it in the
//!   stream is durable only after it, so entries need no wait of their own.
//! - What is known to be committed rides along with the next entries. It is a
//!   hint: without it a restart applies less until a leader says more.
//! - The first error is the last: it is remembered, and openraft stops.

use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use openraft::storage::{IOFlushed, RaftLogStorage};
use openraft::{LogState, OptionalSend, RaftLogReader};
use pontoon_wal::{Batch, LogIndex, StreamId, Wal, WalError};

use crate::codec::Wire;
use crate::format::{self, Unreadable, seal};
use crate::mutation::{Mutation, mutated};
use crate::position::GroupId;
use crate::raft::failure::{Failure, Stop};
use crate::raft::record;
use crate::raft::types::{LogEntry, LogId, Types, Vote, log_id};

/// Bytes of entries that are read in one go.
const READ_BYTES: usize = 1 << 20;

/// Values of the stream besides its entries.
pub(crate) const META_VOTE: u8 = 1;
pub(crate) const META_PURGED: u8 = 2;
pub(crate) const META_COMMITTED: u8 = 3;
/// The replica is being removed, and must not be taken for a whole one.
pub(crate) const META_DOOMED: u8 = 4;

/// A handle on the group's log.
#[derive(Clone)]
pub(crate) struct GroupLog {
    wal: Wal,
    stream: StreamId,
    /// What is committed and not yet written.
    committed: Option<LogId>,
    failure: Arc<Failure>,
}

impl GroupLog {
    pub(crate) fn new(wal: Wal, group: GroupId, failure: Arc<Failure>) -> Self {
        Self {
            wal,
            stream: StreamId(group.0),
            committed: None,
            failure,
        }
    }

    /// Whether there is anything of it: entries, a vote, a mark.
    pub(crate) fn exists(&self) -> bool {
        self.wal.bounds(self.stream).is_some()
    }

    /// Whether its removal was begun.
    pub(crate) fn is_doomed(&self) -> bool {
        self.wal.meta(self.stream, META_DOOMED).is_some()
    }

    /// Says, durably, that it is being removed.
    pub(crate) async fn doom(&self) -> Result<(), WalError> {
        let mut batch = Batch::new();
        batch.meta(self.stream, META_DOOMED, Bytes::new());
        self.wal.commit(batch).await
    }

    /// Removes all of it and begins again with a vote, durably, in one.
    pub(crate) async fn begin_again(&self, vote: &Vote) -> Result<(), WalError> {
        let mut batch = Batch::new();
        batch
            .drop_stream(self.stream)
            .meta(self.stream, META_VOTE, seal(vote));
        self.wal.commit(batch).await
    }

    /// Removes it, durably.
    pub(crate) async fn remove(&self) -> Result<(), WalError> {
        let mut batch = Batch::new();
        batch.drop_stream(self.stream);
        self.wal.commit(batch).await
    }

    /// Whether it has, or had, entries.
    pub(crate) fn is_begun(&self) -> bool {
        let bounds = self.wal.bounds(self.stream);
        bounds.is_some_and(|(_, next)| next.0 > 0)
    }

    /// Whether the disk is too full for more entries.
    pub(crate) fn is_full(&self) -> bool {
        self.wal.is_space_low()
    }

    /// How many entries, counted from the very first, must go so that the rest
    /// is within this group's share of `bytes_max`.
    pub(crate) fn first_within(&self, bytes_max: u64) -> u64 {
        match self.wal.fair_share(bytes_max) {
            u64::MAX => 0,
            share => {
                let first = self.wal.first_within(self.stream, share);
                first.map_or(0, |first| first.0)
            }
        }
    }

    /// The last entry that was removed from its front.
    pub(crate) fn purged(&self) -> Result<Option<LogId>, io::Error> {
        self.meta(META_PURGED)
    }

    pub(crate) fn vote(&self) -> Result<Option<Vote>, io::Error> {
        self.meta(META_VOTE)
    }

    fn bounds(&self) -> (u64, u64) {
        let bounds = self.wal.bounds(self.stream);
        bounds.map_or((0, 0), |(first, next)| (first.0, next.0))
    }

    fn meta<T: Wire>(&self, key: u8) -> Result<Option<T>, io::Error> {
        let Some(bytes) = self.wal.meta(self.stream, key) else {
            return Ok(None);
        };
        let kind = match key {
            META_VOTE => "vote",
            META_PURGED => "end of the purged log",
            _ => "committed position",
        };
        let value = format::open(kind, bytes).map_err(|error| self.unreadable(&error))?;
        Ok(Some(value))
    }

    /// Entries from `from` to before `to`, about as many as fit [`READ_BYTES`].
    fn read(&self, from: u64, to: u64) -> Result<Vec<LogEntry>, io::Error> {
        let records = self
            .wal
            .read(self.stream, LogIndex(from), LogIndex(to), READ_BYTES)
            .map_err(|error| self.failed("reading", error))?;
        (from..)
            .zip(records)
            .map(|(index, record)| {
                record::to_entry(index, record).map_err(|error| self.unreadable(&error))
            })
            .collect()
    }

    /// What of `range` the log has.
    fn clip(&self, range: &impl RangeBounds<u64>) -> (u64, u64) {
        let (first, next) = self.bounds();
        let from = match range.start_bound() {
            Bound::Included(index) => *index,
            Bound::Excluded(index) => index.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let to = match range.end_bound() {
            Bound::Included(index) => index.saturating_add(1),
            Bound::Excluded(index) => *index,
            Bound::Unbounded => u64::MAX,
        };
        (from.max(first), to.min(next))
    }

    /// Queues a change that need not be durable before what follows it.
    async fn queue(&self, what: &str, batch: Batch) -> Result<(), io::Error> {
        let queued = self.wal.append(batch, |_| ()).await;
        queued.map_err(|error| self.failed(what, error))
    }

    fn failed(&self, what: &str, error: WalError) -> io::Error {
        let what = format!("{what} the log of group {}", self.stream);
        self.failure.set(Stop::from(&error).while_doing(&what));
        error.into()
    }

    /// Damage, or [`io::ErrorKind::Unsupported`] if a later release wrote it.
    fn unreadable(&self, error: &Unreadable) -> io::Error {
        let reason = format!("the log of group {}: {error}", self.stream);
        let (stop, kind) = match error {
            Unreadable::Version { .. } => (Stop::Other(reason.clone()), io::ErrorKind::Unsupported),
            Unreadable::Nonsense { .. } => {
                (Stop::Damaged(reason.clone()), io::ErrorKind::InvalidData)
            }
        };
        self.failure.set(stop);
        io::Error::new(kind, reason)
    }
}

impl RaftLogReader<Types> for GroupLog {
    async fn try_get_log_entries<R: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: R,
    ) -> Result<Vec<LogEntry>, io::Error> {
        let (mut from, to) = self.clip(&range);
        let mut entries = Vec::new();
        while from < to {
            entries.append(&mut self.read(from, to)?);
            from = next_after(&entries, from, to);
        }
        Ok(entries)
    }

    async fn limited_get_log_entries(
        &mut self,
        start: u64,
        end: u64,
    ) -> Result<Vec<LogEntry>, io::Error> {
        self.read(start, end)
    }

    /// Entries to apply. Read piece by piece: after a long absence there may be
    /// many. An error if the log was removed before its core had ended.
    async fn entries_stream<R>(
        &mut self,
        range: R,
    ) -> impl Stream<Item = Result<LogEntry, io::Error>> + OptionalSend
    where
        R: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let (from, to) = self.clip(&range);
        let removed = self.wal.bounds(self.stream).is_none().then(|| {
            let reason = format!("the log of group {} was removed", self.stream);
            Err(io::Error::other(reason))
        });
        let pieces = stream::unfold((self.clone(), from, to), async |(log, from, to)| {
            if from >= to {
                return None;
            }
            let piece = log.read(from, to);
            let from = match &piece {
                Ok(entries) => next_after(entries, from, to),
                Err(_) => to,
            };
            Some((piece, (log, from, to)))
        });
        stream::iter(removed).chain(flatten(pieces))
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, io::Error> {
        self.vote()
    }
}

/// Where to read on. The entries in between are there, so a read has some.
fn next_after(entries: &[LogEntry], from: u64, to: u64) -> u64 {
    let next = entries.last().map_or(to, |last| last.log_id.index + 1);
    assert!(next > from, "a read of entries that are there has one");
    next
}

fn flatten(
    pieces: impl Stream<Item = Result<Vec<LogEntry>, io::Error>> + Send,
) -> impl Stream<Item = Result<LogEntry, io::Error>> + Send {
    pieces.flat_map(|piece| {
        let (entries, error) = match piece {
            Ok(entries) => (entries, None),
            Err(error) => (Vec::new(), Some(Err(error))),
        };
        stream::iter(entries.into_iter().map(Ok).chain(error))
    })
}

impl RaftLogStorage<Types> for GroupLog {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Result<LogState<Types>, io::Error> {
        let purged = self.purged()?;
        let (first, next) = self.bounds();
        let last = match next.checked_sub(1).filter(|last| *last >= first) {
            None => purged,
            Some(index) => self.read(index, next)?.pop().map(|entry| entry.log_id),
        };
        Ok(LogState {
            last_purged_log_id: purged,
            last_log_id: last,
        })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> Result<(), io::Error> {
        let mut batch = Batch::new();
        batch.meta(self.stream, META_VOTE, seal(vote));
        if mutated(Mutation::VoteIsNotDurable) {
            return self.queue("writing a vote to", batch).await;
        }
        let saved = self.wal.commit(batch).await;
        saved.map_err(|error| self.failed("writing a vote to", error))
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> Result<(), io::Error> {
        self.committed = committed;
        Ok(())
    }

    async fn read_committed(&mut self) -> Result<Option<LogId>, io::Error> {
        let state = self.get_log_state().await?;
        let committed = self.committed.or(self.meta(META_COMMITTED)?);
        // What a snapshot brought may be ahead of the entries.
        Ok(committed.min(state.last_log_id))
    }

    async fn append<I>(&mut self, entries: I, flushed: IOFlushed<Types>) -> Result<(), io::Error>
    where
        I: IntoIterator<Item = LogEntry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut first = None;
        let records: Vec<Bytes> = entries
            .into_iter()
            .map(|entry| {
                first.get_or_insert(entry.log_id.index);
                record::of_entry(&entry)
            })
            .collect();
        let Some(first) = first else {
            flushed.io_completed(Ok(()));
            return Ok(());
        };
        let mut batch = Batch::new();
        let (begin, next) = self.bounds();
        if begin == next && first > next {
            // An empty log may begin anywhere.
            batch.purge_below(self.stream, LogIndex(first));
        }
        // openraft takes no for a failed disk. New entries are declined before
        // they reach it; these came before the disk was full, or are its own.
        batch
            .append(self.stream, LogIndex(first), records)
            .admitted();
        if let Some(committed) = self.committed.take() {
            batch.meta(self.stream, META_COMMITTED, seal(&committed));
        }
        let failure = Arc::clone(&self.failure);
        let stream = self.stream;
        let done = move |result: io::Result<()>| {
            if let Err(error) = &result {
                let reason = format!("writing to the log of group {stream}: {error}");
                failure.set(Stop::Disk(reason));
            }
            flushed.io_completed(result);
        };
        let appended = self.wal.append(batch, done).await;
        appended.map_err(|error| self.failed("writing to", error))
    }

    async fn truncate_after(&mut self, last: Option<LogId>) -> Result<(), io::Error> {
        let from = last.map_or(0, |last| last.index + 1);
        if self.wal.bounds(self.stream).is_none() {
            return Ok(());
        }
        let mut batch = Batch::new();
        batch.truncate_from(self.stream, LogIndex(from));
        self.queue("cutting", batch).await
    }

    async fn purge(&mut self, last: LogId) -> Result<(), io::Error> {
        let mut batch = Batch::new();
        batch
            .meta(self.stream, META_PURGED, seal(&last))
            .purge_below(self.stream, LogIndex(last.index + 1));
        self.queue("shortening", batch).await
    }
}

/// The entry before position `next`, counted from 1, in openraft's words.
pub(crate) fn log_id_before(next: u64, term: u64) -> Option<LogId> {
    next.checked_sub(1).map(|index| log_id(term, index))
}
