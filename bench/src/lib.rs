//! What the benches share: the references that the log and the tree are
//! measured against, the loads that they are measured with, and how a
//! comparison is told. `wire` is the load for servers, behind `pontoon-bench`.
//!
//! Kept true: nothing here is judged by absolute speed. A figure is one of
//! several rounds in which ours and the reference take turns, and the verdict
//! is about their ratio.

pub mod allocations;
pub mod appenders;
pub mod bulk;
pub mod child;
pub mod lines;
pub mod load;
pub mod nodes;
#[cfg(feature = "peers")]
pub mod peer;
pub mod pods;
pub mod proc;
pub mod raw;
pub mod runner;
pub mod samples;
#[cfg(feature = "peers")]
pub mod tree_peers;
pub mod trees;
pub mod wire;
