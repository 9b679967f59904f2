//! The speed lines of the tree: what it does, what others or our promises
//! say, and whether the ratio is what it should be.
//!
//! `cargo bench -p pontoon-bench --features peers --bench engine_lines [-- FILTER] [-- --json]`;
//! without `peers` the lines against redb and LMDB are left out. With
//! `PONTOON_BENCH_SMALL=1` everything has a tenth of its size: a smoke test,
//! whose figures mean little. `bench/README.md` says what each line means.
//!
//! Kept true: in every round ours and the reference take turns, in the same
//! directory, and what one leaves to be written is written before the other's
//! turn. A line that can't be measured makes the program fail; one that is
//! not met doesn't.

use std::io;
use std::process::ExitCode;

use pontoon_bench::allocations::Counting;
use pontoon_bench::child;
use pontoon_bench::runner::{Group, run};

#[path = "engine_lines/compaction.rs"]
mod compaction;
#[path = "engine_lines/files.rs"]
mod files;
#[path = "engine_lines/million.rs"]
mod million;
#[path = "engine_lines/paging.rs"]
mod paging;
#[cfg(feature = "peers")]
#[path = "engine_lines/peers.rs"]
mod peers;

/// mimalloc for everything that is Rust, redb included; LMDB has its C library's.
#[global_allocator]
static ALLOCATOR: Counting = Counting;

const MIB: f64 = (1 << 20) as f64;

const GROUPS: &[Group] = &[
    Group {
        names: million::NAMES,
        measure: million::measure,
    },
    Group {
        names: files::NAMES,
        measure: files::measure,
    },
    Group {
        names: compaction::SWEEP_NAMES,
        measure: compaction::sweep,
    },
    Group {
        names: compaction::SPACE_NAMES,
        measure: compaction::space,
    },
];

fn main() -> io::Result<ExitCode> {
    if let Some((role, dir)) = child::role() {
        return files::be_child(&role, &dir).map(|()| ExitCode::SUCCESS);
    }
    run("engine-lines", GROUPS, env!("CARGO_TARGET_TMPDIR"))
}
