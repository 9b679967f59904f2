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
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use pontoon_bench::lines::{Line, table};
use pontoon_bench::{child, proc};

#[path = "group_lines/deaths.rs"]
mod deaths;
#[path = "group_lines/idle.rs"]
mod idle;
#[path = "group_lines/puts.rs"]
mod puts;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Lines that share what they are measured on.
struct Group {
    names: &'static [&'static str],
    measure: fn(&Bench<'_>) -> io::Result<Vec<Line>>,
}

const GROUPS: &[Group] = &[
    Group {
        names: puts::NAMES,
        measure: puts::measure,
    },
    Group {
        names: idle::NAMES,
        measure: idle::measure,
    },
    Group {
        names: deaths::LEADER_NAMES,
        measure: deaths::of_leader,
    },
    Group {
        names: deaths::SEQUENCER_NAMES,
        measure: deaths::of_sequencer,
    },
];

/// What a group is measured with.
struct Bench<'a> {
    dir: &'a Path,
    small: bool,
}

impl Bench<'_> {
    /// How long a load takes, in the size of this run.
    fn time(&self, time: Duration) -> Duration {
        if self.small { time / 3 } else { time }
    }

    /// A directory for one of several measurements.
    fn subdir(&self, name: &str) -> io::Result<PathBuf> {
        let dir = self.dir.join(name);
        std::fs::create_dir_all(&dir)?;
        Ok(dir)
    }
}

fn main() -> io::Result<ExitCode> {
    proc::without_huge_pages()?;
    if let Some((role, dir)) = child::role() {
        return idle::be_child(&role, &dir).map(|()| ExitCode::SUCCESS);
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
            .prefix("group-lines-")
            .tempdir_in(&parent)?;
        let start = Instant::now();
        let bench = Bench {
            dir: dir.path(),
            small,
        };
        let before = proc::CpuTime::now()?;
        match (group.measure)(&bench) {
            Ok(lines) => {
                let others = before.others_since()?;
                for mut line in lines {
                    if !line.name.contains(&filter) {
                        continue;
                    }
                    line.others = others;
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
        let size = if small {
            ", smaller than it should be"
        } else {
            ""
        };
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
