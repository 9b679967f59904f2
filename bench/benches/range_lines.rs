//! The speed lines of what ranges do together: transactions over several
//! groups, leases, splits, new members.
//!
//! `cargo bench -p pontoon-bench --bench range_lines [-- FILTER] [-- --json]`.
//! With `PONTOON_BENCH_SMALL=1` ranges and leases are a tenth and each load
//! takes a third of its time: a smoke test, whose figures mean little.
//! `bench/README.md` says what each line means.
//!
//! Kept true: what is compared is measured in the same run, in the same
//! directory, in turns; clients and nodes share this process. A line that
//! can't be measured makes the program fail; one that is not met doesn't.

use std::io;
use std::process::ExitCode;

use pontoon_bench::child;
use pontoon_bench::runner::{Group, run, watched};

#[path = "range_lines/join.rs"]
mod join;
#[path = "range_lines/leases.rs"]
mod leases;
#[path = "range_lines/split.rs"]
mod split;
#[path = "range_lines/storm.rs"]
mod storm;
#[path = "range_lines/txns.rs"]
mod txns;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const GROUPS: &[Group] = &[
    Group {
        names: txns::NAMES,
        measure: |bench| watched(|| txns::measure(bench)),
    },
    Group {
        names: leases::KEEPALIVE_NAMES,
        measure: |bench| watched(|| leases::keepalives(bench)),
    },
    Group {
        names: leases::MEMORY_NAMES,
        measure: |bench| watched(|| leases::memory(bench)),
    },
    Group {
        names: storm::NAMES,
        measure: |bench| watched(|| storm::measure(bench)),
    },
    Group {
        names: split::NAMES,
        measure: |bench| watched(|| split::measure(bench)),
    },
    Group {
        names: join::SNAPSHOT_NAMES,
        measure: |bench| watched(|| join::by_snapshot(bench)),
    },
    Group {
        names: join::LOG_NAMES,
        measure: |bench| watched(|| join::by_log(bench)),
    },
];

fn main() -> io::Result<ExitCode> {
    if let Some((role, dir)) = child::role() {
        return leases::be_child(&role, &dir).map(|()| ExitCode::SUCCESS);
    }
    run("range-lines", GROUPS, env!("CARGO_TARGET_TMPDIR"))
}
