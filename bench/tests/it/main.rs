//! One binary for all integration tests.

#![allow(clippy::unwrap_used)]

mod access;
mod command;
mod compaction;
mod pages;
mod references;
mod store;
