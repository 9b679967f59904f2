//! What the benches share: the references that the log is measured against,
//! the load that it is measured with, and how a comparison is told.
//!
//! Kept true: nothing here is judged by absolute speed. A figure is one of
//! several rounds in which ours and the reference take turns, and the verdict
//! is about their ratio.

/// Records are allocated on one thread and freed on another, which this
/// allocator is made for. Peers in the same process have it too.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

pub mod appenders;
pub mod child;
pub mod lines;
#[cfg(feature = "peers")]
pub mod peer;
pub mod proc;
pub mod raw;
pub mod samples;
