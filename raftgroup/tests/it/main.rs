//! The groups' tests: the link between nodes, simulated and over TCP.
#![allow(clippy::unwrap_used, missing_docs)]

mod docs;
mod link;
