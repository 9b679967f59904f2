//! Rule 13, a model of its own: no key stays attached to a lease that is gone,
//! and no lease goes before its time.
//!
//! One lease id, whose lives are told apart as by the root index of their
//! grants. The Txn that ends a lease is one step: that it ends the same way
//! everywhere is rule 12's. A grant leaves an elected sequencer only: rule 3's.

mod action;
mod promise;
mod rules;
mod state;

use action::Model;
use state::{Bounds, Budget};
