//! What the programs that measure lines have in common: which lines are
//! wanted, where they are measured, and how they are told.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::lines::{Line, table};
use crate::proc::CpuTime;

/// Lines that are measured together.
pub struct Group {
    /// Their names.
    pub names: &'static [&'static str],
    /// Measures them.
    pub measure: fn(&Bench<'_>) -> io::Result<Vec<Line>>,
}

/// What a group is measured with.
pub struct Bench<'a> {
    /// A directory of its own.
    pub dir: &'a Path,
    /// Whether this is a smoke test, whose figures mean little.
    pub small: bool,
    filter: &'a str,
}

impl Bench<'_> {
    /// Whether a line is wanted.
    #[must_use]
    pub fn wants(&self, name: &str) -> bool {
        name.contains(self.filter)
    }

    /// A number of keys or operations, in the size of this run.
    #[must_use]
    pub fn scaled(&self, count: u64) -> u64 {
        if self.small { count / 10 } else { count }
    }

    /// How long a load takes, in the size of this run.
    #[must_use]
    pub fn time(&self, time: Duration) -> Duration {
        if self.small { time / 3 } else { time }
    }

    /// A directory for one of several measurements.
    pub fn subdir(&self, name: &str) -> io::Result<PathBuf> {
        let dir = self.dir.join(name);
        std::fs::create_dir_all(&dir)?;
        Ok(dir)
    }
}

/// Measures lines whose verdict depends on what others do meanwhile.
pub fn watched(measure: impl FnOnce() -> io::Result<Vec<Line>>) -> io::Result<Vec<Line>> {
    let before = CpuTime::now()?;
    let mut lines = measure()?;
    let others = before.others_since()?;
    lines.iter_mut().for_each(|line| line.others = others);
    Ok(lines)
}

/// Measures the groups that the command line asks for, in a directory below
/// `parent` unless `PONTOON_BENCH_DIR` names another, and prints their lines.
/// A line that can't be measured is a failure; one that is not met isn't.
pub fn run(name: &str, groups: &[Group], parent: &str) -> io::Result<ExitCode> {
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
    // Usually inside the target directory: it is on a disk, which the usual
    // place for temporary files may not be.
    let parent =
        std::env::var_os("PONTOON_BENCH_DIR").map_or_else(|| PathBuf::from(parent), PathBuf::from);
    std::fs::create_dir_all(&parent)?;
    let mut all = Vec::new();
    let mut failed = 0;
    for group in groups {
        if !group.names.iter().any(|name| name.contains(&filter)) {
            continue;
        }
        let dir = tempfile::Builder::new()
            .prefix(&format!("{name}-"))
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
        let size = match small {
            true => ", smaller than it should be",
            false => "",
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
