//! What can go wrong, grouped by what the caller may do about it.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::position::{LogIndex, Lsn, SegmentId, StreamId};

/// An error of the log.
#[derive(Clone, Debug, thiserror::Error)]
pub enum WalError {
    // Reject: the request is wrong; nothing was changed.
    /// Entries must follow each other without holes.
    #[error("stream {stream}: the next entry is {expected}, not {found}")]
    NotNext {
        /// The stream appended to.
        stream: StreamId,
        /// The only index that can be appended.
        expected: LogIndex,
        /// The index that was given.
        found: LogIndex,
    },
    /// The stream was never written or was dropped.
    #[error("stream {0} does not exist")]
    UnknownStream(StreamId),
    /// The batch can't be written as one commit.
    #[error("a batch of {bytes} bytes is over the limit of {limit}")]
    BatchTooLarge {
        /// Bytes of the batch as it would be written.
        bytes: usize,
        /// Most bytes that one batch may have.
        limit: usize,
    },
    /// The wanted entries were purged.
    #[error("stream {stream}: entries before {first} are purged")]
    Purged {
        /// The stream read from.
        stream: StreamId,
        /// The oldest entry that is still there.
        first: LogIndex,
    },
    /// The configuration can't work.
    #[error("bad configuration: {0}")]
    Config(String),

    // Retry: later, or after making room.
    /// The disk is full. Marks, votes and purges are still taken, entries are not.
    #[error("no space left for the log: only purges and metadata are accepted")]
    NoSpace,

    // Stop: this process can't go on with this log.
    /// Another process has the directory open.
    #[error("{} is in use by another process", .0.display())]
    Locked(PathBuf),
    /// The directory belongs to another node.
    #[error("{} is the log of node {found}, not of node {expected}", dir.display())]
    OtherNode {
        /// The log's directory.
        dir: PathBuf,
        /// The node that opens it.
        expected: u64,
        /// The node that wrote it.
        found: u64,
    },
    /// A newer (or unknown) program wrote this.
    #[error("{} has format version {found}, this program knows version {known}", file.display())]
    WrongVersion {
        /// The file with the version.
        file: PathBuf,
        /// The version it has.
        found: u32,
        /// The version this program reads and writes.
        known: u32,
    },
    /// What was acknowledged is damaged or gone.
    #[error("the log is damaged: {0}")]
    Damaged(Arc<Damage>),
    /// A write or sync failed. It is never retried: after a failed sync nobody
    /// knows what is on the disk.
    #[error("the log has failed and takes no more writes: {0}")]
    Failed(Arc<str>),
    /// The log was closed.
    #[error("the log is closed")]
    Closed,
    /// The disk failed an operation other than a commit.
    #[error("{what}: {error}")]
    Io {
        /// The file and the operation on it.
        what: String,
        /// The disk's answer.
        error: Arc<io::Error>,
    },
}

impl WalError {
    pub(crate) fn io(file: &Path, operation: impl fmt::Display, error: io::Error) -> Self {
        Self::Io {
            what: format!("{}: {operation}", file.display()),
            error: Arc::new(error),
        }
    }
}

impl From<Damage> for WalError {
    fn from(damage: Damage) -> Self {
        Self::Damaged(Arc::new(damage))
    }
}

impl From<WalError> for io::Error {
    fn from(error: WalError) -> Self {
        let kind = match &error {
            WalError::NoSpace => io::ErrorKind::StorageFull,
            WalError::Damaged(_) => io::ErrorKind::InvalidData,
            WalError::Io { error, .. } => error.kind(),
            _ => io::ErrorKind::Other,
        };
        io::Error::new(kind, error)
    }
}

/// Where the log is damaged and what is known to be hit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The damaged (or missing) file.
    pub file: PathBuf,
    /// Byte offset of the damage in the file.
    pub offset: u64,
    /// What was found there.
    pub what: String,
    /// The first stream that is hit, where it can be told.
    pub stream: Option<StreamId>,
    /// The first entry of that stream that is hit.
    pub index: Option<LogIndex>,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} at offset {:#x}: {}",
            self.file.display(),
            self.offset,
            self.what
        )?;
        match (self.stream, self.index) {
            (Some(stream), Some(index)) => write!(f, " (stream {stream}, index {index})"),
            (Some(stream), None) => write!(f, " (stream {stream})"),
            _ => Ok(()),
        }
    }
}

/// Damage as the pure parts of recovery see it: they know positions, not files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) at: Lsn,
    pub(crate) what: String,
    pub(crate) entry: Option<(StreamId, Option<LogIndex>)>,
}

impl Finding {
    pub(crate) fn new(segment: SegmentId, offset: usize, what: impl Into<String>) -> Self {
        Self {
            at: Lsn::new(segment, offset as u32),
            what: what.into(),
            entry: None,
        }
    }

    /// The same finding, with the file that holds it.
    pub(crate) fn in_dir(self, dir: &std::path::Path) -> Damage {
        Damage {
            file: dir.join(crate::format::segment_name(self.at.segment())),
            offset: u64::from(self.at.offset()),
            what: self.what,
            stream: self.entry.map(|(stream, _)| stream),
            index: self.entry.and_then(|(_, index)| index),
        }
    }
}
