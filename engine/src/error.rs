//! What can go wrong, grouped by what the caller may do about it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::keys::KeyRange;
use crate::position::{Revision, Ticket};

/// A request that is refused; nothing has changed. The texts are etcd's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reject {
    /// An empty key.
    #[error("etcdserver: key is not provided")]
    EmptyKey,
    /// `ignore_value` with a value.
    #[error("etcdserver: value is provided")]
    ValueProvided,
    /// `ignore_lease` with a lease.
    #[error("etcdserver: lease is provided")]
    LeaseProvided,
    /// `ignore_value` or `ignore_lease` for a key that isn't there; also a
    /// step of a transaction that says nothing.
    #[error("etcdserver: key not found")]
    KeyNotFound,
    /// More steps or comparisons than allowed.
    #[error("etcdserver: too many operations in txn request")]
    TooManyOps,
    /// A key that a transaction would change twice.
    #[error("etcdserver: duplicate key given in txn request")]
    DuplicateKey,
    /// No such lease.
    #[error("etcdserver: requested lease not found")]
    LeaseNotFound,
    /// A lease with this id is there already.
    #[error("etcdserver: lease already exists")]
    LeaseExists,
    /// A lease can't live that long.
    #[error("etcdserver: too large lease TTL")]
    LeaseTtlTooLarge,
    /// The revision is below the compaction floor.
    #[error("etcdserver: mvcc: required revision has been compacted")]
    Compacted,
    /// The revision is above the newest one.
    #[error("etcdserver: mvcc: required revision is a future revision")]
    FutureRevision,
}

/// Why an operation of the engine failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum EngineError {
    /// The request is refused: tell the client.
    #[error(transparent)]
    Reject(#[from] Reject),
    /// The answer hangs on the revision that this ticket will be granted: ask
    /// again when it is known. It may be the request's own.
    #[error("the answer hangs on a revision that is not granted yet")]
    Ungranted(Ticket),
    /// The answer hangs on a transaction across ranges that is not decided
    /// yet: ask again when it is.
    #[error("keys are held by an undecided transaction at revision {0}")]
    Undecided(Revision),
    /// No entry has split these keys off, or what was split off is shed.
    #[error("{0:?} are not split off")]
    NotSplit(KeyRange),
    /// What was to be applied can't be: the layer above broke its contract.
    #[error("log entry {index} can't be applied: {reason}")]
    Unappliable {
        /// Index of the entry.
        index: u64,
        /// What is wrong with it.
        reason: String,
    },
    /// The file is not what was written: this replica must be rebuilt.
    #[error("{}: page {page}: {reason}", file.display())]
    Damaged {
        /// The file.
        file: PathBuf,
        /// The page, counted in units of 4 KiB.
        page: u64,
        /// What is wrong with it.
        reason: String,
    },
    /// The file is of a kind or version that this program can't read.
    #[error("{}: {reason}", file.display())]
    Foreign {
        /// The file.
        file: PathBuf,
        /// What it is.
        reason: String,
    },
    /// The disk failed; final for this process.
    #[error("{}: {operation}: {error}", file.display())]
    Disk {
        /// The file.
        file: PathBuf,
        /// What was asked of the disk.
        operation: String,
        /// The system's answer.
        error: Arc<io::Error>,
    },
    /// The store is closed or can't be used. One that has failed gives its
    /// failure instead.
    #[error("the store has stopped: {0}")]
    Stopped(String),
}

impl EngineError {
    /// Whether the disk is full: what was refused can be tried again.
    #[must_use]
    pub fn is_no_space(&self) -> bool {
        let is_full = |error: &io::Error| {
            let kind = error.kind();
            matches!(
                kind,
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
            )
        };
        matches!(self, Self::Disk { error, .. } if is_full(error))
    }

    /// The disk failed `operation` on `file`.
    pub fn disk(file: &Path, operation: impl Into<String>, error: io::Error) -> Self {
        Self::Disk {
            file: file.to_owned(),
            operation: operation.into(),
            error: Arc::new(error),
        }
    }
}
