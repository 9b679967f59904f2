//! One log per node, shared by many streams (Raft groups).
//!
//! The promise: **what was acknowledged survives**. The crate knows nothing
//! of terms, keys or etcd: entries and metadata are bytes.
//!
//! - [`Wal::open`] recovers and starts a log; [`Wal::append`] makes a
//!   [`Batch`] readable at once and calls back when it is durable;
//!   [`Wal::read`] gives entries back.
//! - [`disk`] and [`clock`] are traits, because a simulation must be able to
//!   replace what can't be trusted.
//! - `docs/format.md` explains the bytes and how a crash is told from damage.

#[cfg(not(target_os = "linux"))]
compile_error!(
    "Pontoon's log needs Linux: it relies on O_DIRECT, fdatasync and (where allowed) io_uring"
);

mod batch;
mod blocks;
mod clock;
mod compose;
mod counters;
pub mod disk;
mod effects;
mod error;
pub mod format;
mod health;
pub mod inspect;
mod janitor;
mod log;
mod open;
mod position;
mod profile;
mod read;
mod recovery;
mod replay;
mod scan;
mod segments;
mod stream;
mod writer;

pub use batch::Batch;
pub use blocks::{BLOCK_BYTES, Blocks};
pub use clock::{Clock, SystemClock};
pub use counters::{Counters, Histogram};
pub use error::{Damage, WalError};
pub use log::{Config, Opened, Wal};
pub use position::{LogIndex, Lsn, SegmentId, StreamId};
pub use profile::{Profile, ProfileError};
