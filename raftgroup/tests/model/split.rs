//! The split of a group, in two models: how the child's replicas come to be
//! (birth), and who answers for its keys meanwhile (serve). The first ceiling,
//! and the root group as the parent, are in the model of the ledger.

mod birth;
mod serve;
