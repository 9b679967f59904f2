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
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use pontoon_bench::allocations::Counting;
use pontoon_bench::lines::{Line, table};
use pontoon_bench::{child, proc};

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

/// Lines that share what they are measured on.
struct Group {
    names: &'static [&'static str],
    measure: fn(&Bench<'_>) -> io::Result<Vec<Line>>,
}

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

/// What a group is measured with.
struct Bench<'a> {
    dir: &'a Path,
    filter: &'a str,
    small: bool,
}

impl Bench<'_> {
    /// Whether a line is wanted.
    fn wants(&self, name: &str) -> bool {
        name.contains(self.filter)
    }

    /// A number of keys or operations, in the size of this run.
    fn scaled(&self, count: u64) -> u64 {
        if self.small { count / 10 } else { count }
    }
}

/// Measures lines whose verdict depends on what others do meanwhile.
fn watched(measure: impl FnOnce() -> io::Result<Vec<Line>>) -> io::Result<Vec<Line>> {
    let before = proc::CpuTime::now()?;
    let mut lines = measure()?;
    let others = before.others_since()?;
    lines.iter_mut().for_each(|line| line.others = others);
    Ok(lines)
}

fn main() -> io::Result<ExitCode> {
    if let Some((role, dir)) = child::role() {
        return files::be_child(&role, &dir).map(|()| ExitCode::SUCCESS);
    }
    let mut json = false;
    let mut filter = String::new();
    for argument in std::env::args().skip(1) {
        match argument.as_str() {
            "--json" => json = true,
            // Cargo says so.
            "--bench" => {}
            _ => filter = argument,
        }
    }
    let small = std::env::var_os("PONTOON_BENCH_SMALL").is_some_and(|value| value == "1");
    // Inside the target directory unless told otherwise: it is on a disk,
    // which the usual place for temporary files may not be.
    let parent = std::env::var_os("PONTOON_BENCH_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_TARGET_TMPDIR")), PathBuf::from);
    std::fs::create_dir_all(&parent)?;
    let mut all = Vec::new();
    let mut failed = 0;
    for group in GROUPS {
        if !group.names.iter().any(|name| name.contains(&filter)) {
            continue;
        }
        let dir = tempfile::Builder::new()
            .prefix("engine-lines-")
            .tempdir_in(&parent)?;
        let start = Instant::now();
        let bench = Bench {
            dir: dir.path(),
            filter: &filter,
            small,
        };
        match (group.measure)(&bench) {
            Ok(lines) => {
                for line in lines.into_iter().filter(|line| bench.wants(&line.name)) {
                    println!("{}", if json { line.json() } else { line.text() });
                    all.push(line);
                }
            }
            Err(error) => {
                failed += 1;
                eprintln!("{}: {error}", group.names.join(", "));
            }
        }
        if !json {
            println!("{:<26} (took {:.1} s)", "", start.elapsed().as_secs_f64());
        }
    }
    if !json {
        let missed = all.iter().filter(|line| line.met() == Some(false)).count();
        let disturbed = all.iter().filter(|line| line.is_disturbed()).count();
        let size = if small { ", a tenth of the size" } else { "" };
        println!("\n{}", table(&all));
        println!(
            "{missed} not met, {disturbed} without a verdict, {failed} groups not measured{size}"
        );
    }
    Ok(match failed {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}
