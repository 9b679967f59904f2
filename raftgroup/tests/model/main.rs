//! An executable model of the protocol that gives many groups one revision
//! order: every interleaving within small bounds keeps every promise.
//!
//! `cargo test -p pontoon-raftgroup --test model -- --nocapture` prints the
//! state counts, and the shortest trace that each removed rule allows.
//! `-- --ignored --nocapture` explores larger bounds: to the end (`large`), the
//! first 3 million states, or as many as `PONTOON_MODEL_STATES` says
//! (`cut_off`), or at random (`random`).
//!
//! The ledger of revisions and Txns (rules 1 to 12, 15, 16) is in the files here;
//! leases (rule 13) and the split have models of their own.

mod action;
mod finish;
mod invariants;
mod leader;
mod lease;
mod member;
mod proof;
mod reader;
mod rules;
mod search;
mod sequencer;
mod split;
mod state;
mod txn;
mod whole;
