//! One binary for all integration tests.

#![allow(clippy::unwrap_used)]

mod command;
mod pages;
mod references;
mod store;
