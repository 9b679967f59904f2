//! Whole clusters in one process, on simulated disks, network and time.
//!
//! `PONTOON_SEED=<n>` runs one seed and tells what happens in it
//! (`PONTOON_TRACE=2` also every message); `PONTOON_SEEDS=<from>..<to>` runs
//! many and counts. `PONTOON_WITHOUT=txns,leases,splits,members,corruption,
//! disks,starvation,replicas,upgrade` leaves some of what seeds may have out, and
//! `PONTOON_WITH=replicas` has all runs keep groups on three of five nodes. Built with
//! `--features mutations`, `PONTOON_MUTATION=<name>` puts a deliberate bug in;
//! `raftgroup/tests/mutations` does so with all of them.

mod changes;
mod checkers;
mod cluster;
mod damage;
mod disks;
mod end;
mod faults;
mod history;
mod members;
#[rustfmt::skip]
#[allow(dead_code, clippy::unwrap_used)]
#[path = "../../../engine/tests/it/model.rs"]
mod model;
mod plan;
mod seeds;
mod smoke;
mod splits;
mod supervisor;
mod trace;
mod upgrade;
mod waits;
mod watchers;
mod workload;
