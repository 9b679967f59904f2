//! The rules of `docs/revisions.md` in the real code: for each a scenario that
//! goes wrong without it. Rules 2, 4, 5 and 7 are tested where they are pure,
//! in `src/ledger/tests.rs`, rule 6 in `src/command.rs` and `src/replica.rs`,
//! rule 8 in `src/marks.rs`.

mod alarm;
mod cluster;
mod compact;
mod damage;
mod disk;
mod fail;
mod golden;
mod lease;
mod members;
mod place;
mod read;
mod records;
mod remote;
mod retention;
mod sequence;
mod serializable;
mod split;
mod txn;
mod versions;
mod watch;
mod write;
