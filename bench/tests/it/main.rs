//! One binary for all integration tests.

mod command;
mod pages;
mod references;
mod store;
