//! Exit codes of the process, and which failed start has which.
//!
//! Kept true: code 74 means that the disk failed or hung, so a supervisor can
//! tell that from settings that must be changed first. `docs/operations.md` has
//! the table too, and a test compares them.

use std::io;

use pontoon_raftgroup::NodeFailure;
use pontoon_wal::WalError;

use crate::identity::IdentityError;
use crate::node::OpenError;
use crate::serve::StartError;

/// A stop that was asked for.
pub const EXIT_STOPPED: u8 = 0;
/// The server can't run with these settings, or on this data.
pub const EXIT_REFUSED: u8 = 1;
/// A flag that doesn't exist.
pub const EXIT_USAGE: u8 = 2;
/// The disk failed or hung (`EX_IOERR` of `sysexits.h`).
pub const EXIT_DISK: u8 = 74;

/// Every exit code of the server, and what it means.
pub const EXIT_CODES: [(u8, &str); 4] = [
    (
        EXIT_STOPPED,
        "stopped by SIGTERM or Ctrl-C, or removed from the cluster, at once or when it is started \
         again; also after `--help` and `--version`",
    ),
    (
        EXIT_REFUSED,
        "can't start with these settings or on this data; the last line says why",
    ),
    (EXIT_USAGE, "a flag that doesn't exist"),
    (
        EXIT_DISK,
        "the disk failed, at the start or later, or hung for `--disk-stall-timeout`; the last \
         ERROR names file, operation and error",
    ),
];

impl StartError {
    /// The exit code of a process that could not start.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        let is_disk = match self {
            Self::Failed(_) => true,
            Self::Open(error) => is_disk_failure(error),
            // As in etcd: a supervisor need not start it again.
            Self::Removed => return EXIT_STOPPED,
            Self::Config(_) | Self::Listen(..) | Self::Threads(_) => false,
        };
        if is_disk { EXIT_DISK } else { EXIT_REFUSED }
    }
}

fn is_disk_failure(error: &OpenError) -> bool {
    match error {
        OpenError::Identity(IdentityError::Disk { error, .. }) | OpenError::Disk(_, error) => {
            is_io_failure(error)
        }
        OpenError::Node(NodeFailure::Failed(_)) => true,
        OpenError::Node(NodeFailure::Disk(error)) => is_io_failure(error),
        OpenError::Node(NodeFailure::Wal(WalError::Io { error, .. })) => is_io_failure(error),
        OpenError::Node(NodeFailure::Wal(error)) => {
            matches!(error, WalError::Failed(_) | WalError::NoSpace)
        }
        _ => false,
    }
}

/// Whether the disk failed, rather than the operator named a place that this
/// process may not use.
fn is_io_failure(error: &io::Error) -> bool {
    use io::ErrorKind::{
        AlreadyExists, InvalidFilename, InvalidInput, IsADirectory, NotADirectory, NotFound,
        PermissionDenied, Unsupported,
    };
    !matches!(
        error.kind(),
        AlreadyExists
            | InvalidFilename
            | InvalidInput
            | IsADirectory
            | NotADirectory
            | NotFound
            | PermissionDenied
            | Unsupported
    )
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::Arc;

    use pontoon_raftgroup::Fault;

    use super::*;
    use crate::config::ConfigError;

    fn errno(number: i32) -> io::Error {
        io::Error::from_raw_os_error(number)
    }

    #[test]
    fn failures_of_the_disk_have_their_own_exit_code() {
        let [eperm, eio, eacces, enospc, erofs] = [1, 5, 13, 28, 30];
        let opening = |error: OpenError| StartError::from(error).exit_code();
        let identity = |number| {
            opening(OpenError::Identity(IdentityError::Disk {
                operation: "write",
                file: PathBuf::from("pontoon.json"),
                error: errno(number),
            }))
        };
        let log = |number| {
            opening(OpenError::Node(NodeFailure::Wal(WalError::Io {
                what: "wal/1.seg".to_owned(),
                error: Arc::new(errno(number)),
            })))
        };
        for number in [eio, enospc, erofs] {
            assert_eq!(identity(number), EXIT_DISK, "{number}");
            assert_eq!(log(number), EXIT_DISK, "{number}");
            let disk = OpenError::Node(NodeFailure::Disk(errno(number)));
            assert_eq!(opening(disk), EXIT_DISK, "{number}");
        }
        for number in [eperm, eacces] {
            assert_eq!(identity(number), EXIT_REFUSED, "{number}");
            assert_eq!(log(number), EXIT_REFUSED, "{number}");
        }
        let failed = WalError::Failed("wal/1.seg: write: EIO".into());
        assert_eq!(opening(NodeFailure::Wal(failed).into()), EXIT_DISK);
        let locked = WalError::Locked(PathBuf::from("wal"));
        assert_eq!(opening(NodeFailure::Wal(locked).into()), EXIT_REFUSED);
        let fault = Fault("wal/1.seg: write: EIO".to_owned());
        let group = NodeFailure::Failed(fault.clone());
        assert_eq!(opening(group.into()), EXIT_DISK);
        assert_eq!(StartError::Failed(fault).exit_code(), EXIT_DISK);
        let config = ConfigError(String::new());
        assert_eq!(StartError::from(config).exit_code(), EXIT_REFUSED);
        assert_eq!(StartError::Removed.exit_code(), EXIT_STOPPED);
    }
}
