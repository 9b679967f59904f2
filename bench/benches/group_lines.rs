//! The speed lines of the groups: what they do, what the log or our promises
//! say, and whether the ratio is what it should be.
//!
//! `cargo bench -p pontoon-bench --bench group_lines [-- FILTER] [-- --json]`.
//! With `PONTOON_BENCH_SMALL=1` there are a tenth of the idle groups and each
//! load takes a third of its time: a smoke test, whose figures mean little.
//! `bench/README.md` says what each line means.
//!
//! Kept true: what is compared is measured in the same run, in the same
//! directory, in turns; clients and nodes share this process. A line that
//! can't be measured makes the program fail; one that is not met doesn't.

use std::io;
use std::process::ExitCode;

use pontoon_bench::child;
use pontoon_bench::runner::{Group, run, watched};

#[path = "group_lines/deaths.rs"]
mod deaths;
#[path = "group_lines/idle.rs"]
mod idle;
#[path = "group_lines/puts.rs"]
mod puts;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const GROUPS: &[Group] = &[
    Group {
        names: puts::NAMES,
        measure: |bench| watched(|| puts::measure(bench)),
    },
    Group {
        names: idle::NAMES,
        measure: |bench| watched(|| idle::measure(bench)),
    },
    Group {
        names: deaths::LEADER_NAMES,
        measure: |bench| watched(|| deaths::of_leader(bench)),
    },
    Group {
        names: deaths::SEQUENCER_NAMES,
        measure: |bench| watched(|| deaths::of_sequencer(bench)),
    },
];

fn main() -> io::Result<ExitCode> {
    if let Some((role, dir)) = child::role() {
        return idle::be_child(&role, &dir).map(|()| ExitCode::SUCCESS);
    }
    run("group-lines", GROUPS, env!("CARGO_TARGET_TMPDIR"))
}
