//! Lines over a file of ten million keys, larger than 4 GiB: how long opening
//! it takes, and how much memory reading from it does.

use std::fs::File;
use std::io;
use std::path::Path;
use std::time::Instant;

use pontoon_bench::lines::{Line, Target};
use pontoon_bench::pods::{Pods, Put, Puts, touch};
use pontoon_bench::runner::{Bench, watched};
use pontoon_bench::trees::{Tree, other};
use pontoon_bench::{child, proc};
use pontoon_engine::Config;
use pontoon_wal::disk::sim::Rng;
use rustix::fs::{Advice, fadvise};

use crate::MIB;
use crate::million::ROUNDS;

pub(crate) const NAMES: &[&str] = &["open-warm", "open-cold", "memory-gets"];

/// With its key, its change and what the tree needs, a put takes some 420
/// bytes of the file.
const VALUE_BYTES: usize = 340;
const KEYS: u64 = 10_000_000;
const LOAD_BATCH: usize = 1000;
const FILE_BYTES_MIN: u64 = 4 << 30;
const OPEN_MILLIS_MAX: f64 = 100.0;
const MEMORY_MIB_MAX: f64 = 200.0;
const GETS: u64 = 10_000;
/// A directory of the memory controller in which the child that reads puts
/// itself, if somebody made one.
const CGROUP: &str = "PONTOON_BENCH_CGROUP";

pub(crate) fn measure(bench: &Bench<'_>) -> io::Result<Vec<Line>> {
    let pods = Pods {
        count: bench.scaled(KEYS),
    };
    let start = Instant::now();
    let (bytes, free) = build(bench.dir, pods)?;
    let building = start.elapsed().as_secs_f64();
    if bytes < bench.scaled(FILE_BYTES_MIN) {
        return Err(io::Error::other(format!("the file has only {bytes} bytes")));
    }
    let mut lines = Vec::new();
    if bench.wants("open-warm") || bench.wants("open-cold") {
        lines.extend(watched(|| open(bench.dir, pods))?);
    }
    if bench.wants("memory-gets") {
        lines.push(memory(bench.dir, pods)?);
    }
    for line in &mut lines {
        line.aside("file MiB", bytes as f64 / MIB);
        line.aside("of which free", free as f64 / MIB);
        line.aside("puts/s while it was made", pods.count as f64 / building);
    }
    Ok(lines)
}

/// Puts all keys in order; returns the length of the file, and how much of it
/// is free.
fn build(dir: &Path, pods: Pods) -> io::Result<(u64, u64)> {
    let mut puts = Puts::new(pods, VALUE_BYTES, 6);
    let mut tree = Tree::open_tended(dir, Config::default())?;
    for first in (0..pods.count).step_by(LOAD_BATCH) {
        let numbers = first..pods.count.min(first + LOAD_BATCH as u64);
        let batch: Vec<Put> = numbers.map(|number| puts.of(number)).collect();
        let entry = tree.entry_of(&batch);
        tree.apply(&entry)?;
    }
    tree.settle()?;
    let (_, free) = tree.store.file_bytes();
    tree.close()?;
    Ok((dir.join("tree").metadata()?.len(), free))
}

/// Opening and one get.
fn open(dir: &Path, pods: Pods) -> io::Result<Vec<Line>> {
    let line = |name: &str, when: &str| {
        Line::new(
            name,
            format!(
                "opening a file of {} keys and one get, {when} / 100 ms",
                pods.count
            ),
            "ms",
            Target::AtMost(1.0),
        )
    };
    let mut warm = line("open-warm", "its pages in memory");
    let mut cold = line("open-cold", "its pages dropped from memory");
    let mut rng = Rng::new(60);
    for _ in 0..ROUNDS {
        open_once(dir, pods, &mut rng)?;
        let millis = open_once(dir, pods, &mut rng)?;
        warm.round(millis, OPEN_MILLIS_MAX);
        drop_pages(&dir.join("tree"))?;
        let before = proc::disk_read_bytes()?;
        let millis = open_once(dir, pods, &mut rng)?;
        cold.round(millis, OPEN_MILLIS_MAX);
        cold.aside(
            "MiB read from disk",
            (proc::disk_read_bytes()? - before) as f64 / MIB,
        );
    }
    Ok(vec![warm, cold])
}

fn open_once(dir: &Path, pods: Pods, rng: &mut Rng) -> io::Result<f64> {
    let key = pods.key(rng.below(pods.count));
    let start = Instant::now();
    let tree = Tree::open(dir, Config::default())?;
    let found = tree.store.get(&key, tree.store.revision()).map_err(other)?;
    let millis = start.elapsed().as_secs_f64() * 1e3;
    match found {
        Some(_) => Ok(millis),
        None => Err(io::Error::other("a key is missing")),
    }
}

/// Makes the kernel forget what it has in memory of a file that nobody maps.
fn drop_pages(path: &Path) -> io::Result<()> {
    let file = File::open(path)?;
    file.sync_all()?;
    Ok(fadvise(&file, 0, None, Advice::DontNeed)?)
}

/// Memory of a process that reads here and there in the file.
fn memory(dir: &Path, pods: Pods) -> io::Result<Line> {
    let mut line = Line::new(
        "memory-gets",
        format!("RssAnon of a process after {GETS} random gets / 200 MiB"),
        "MiB",
        Target::AtMost(1.0),
    );
    drop_pages(&dir.join("tree"))?;
    let figures = child::ask_for_memory(&format!("gets {}", pods.count), dir)?;
    let &[memory, before, mapped, seconds] = figures.as_slice() else {
        return Err(io::Error::other("there is no answer"));
    };
    line.round(memory / MIB, MEMORY_MIB_MAX);
    line.aside("MiB before opening", before / MIB);
    line.aside("RssFile MiB", mapped / MIB);
    line.aside("µs per get, from disk", seconds * 1e6 / GETS as f64);
    Ok(line)
}

pub(crate) fn be_child(role: &str, dir: &Path) -> io::Result<()> {
    let Some(("gets", count)) = role.split_once(' ') else {
        return Err(io::Error::other(format!("unknown role {role}")));
    };
    if let Some(group) = std::env::var_os(CGROUP) {
        let members = Path::new(&group).join("cgroup.procs");
        std::fs::write(members, std::process::id().to_string())?;
    }
    let pods = Pods {
        count: count.parse().map_err(io::Error::other)?,
    };
    let before = proc::rss_anon_bytes()?;
    let mut most = before;
    let start = Instant::now();
    let tree = Tree::open(dir, Config::default())?;
    let at = tree.store.revision();
    let mut rng = Rng::new(70);
    let mut found = 0;
    let mut sum = 0u64;
    for get in 0..GETS {
        let key = pods.key(rng.below(pods.count));
        let visited = tree.store.visit_key(&key, at, &mut |kv| {
            found += 1;
            sum = sum.wrapping_add(touch(kv.value));
        });
        visited.map_err(other)?;
        if get % 100 == 0 {
            most = most.max(proc::rss_anon_bytes()?);
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    std::hint::black_box(sum);
    if found != GETS {
        return Err(io::Error::other("a key is missing"));
    }
    most = most.max(proc::rss_anon_bytes()?);
    child::answer(&[
        most as f64,
        before as f64,
        proc::rss_file_bytes()? as f64,
        seconds,
    ]);
    Ok(())
}
