//! The `etcd-client` crate at work with Pontoon, or with etcd: what its users do
//! with it, on one node, on three, and through the death of members.
//!
//! The clusters are shared by all cases, which run one after the other.

mod kv;
mod lease;
mod members;
mod suite;
mod watch;
