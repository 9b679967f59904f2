//! The log's tests: a naive twin, simulated crashes, mutations, both real
//! backends, mapped files, and the documents.
#![allow(clippy::unwrap_used, missing_docs)]

mod backends;
mod cleaning;
mod crash;
mod docs;
mod failures;
mod golden;
mod mapped;
mod mutations;
mod recovery_rows;
mod twin;
