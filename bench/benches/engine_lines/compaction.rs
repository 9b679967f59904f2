//! Compaction: whom the sweep holds up, and whether the space that it frees
//! is used again.

use std::io;
use std::time::{Duration, Instant};

use pontoon_bench::lines::{Line, Target};
use pontoon_bench::pods::{Pods, Put, Puts};
use pontoon_bench::runner::{Bench, watched};
use pontoon_bench::samples::Samples;
use pontoon_bench::trees::{Tree, is_swept};
use pontoon_engine::{Config, Revision, Step};

use crate::MIB;

pub(crate) const SWEEP_NAMES: &[&str] = &["sweep-held-off", "sweep-p99"];
pub(crate) const SPACE_NAMES: &[&str] = &["space"];

const ROUNDS: usize = 3;
const VALUE_BYTES: usize = 256;
const BATCH: usize = 100;
/// Keys, each of which is put [`OVERWRITES`] times more before each sweep.
const SWEPT_KEYS: u64 = 250_000;
const OVERWRITES: u64 = 4;
const HELD_OFF_MICROS_MAX: f64 = 2000.0;
/// Entries per second beside the sweep.
const ENTRIES_PER_SECOND: u32 = 4000;
/// How long the same goes on without a sweep.
const IDLE: Duration = Duration::from_secs(4);
/// Between two looks at whether the sweep is over.
const LOOK: Duration = Duration::from_millis(20);

/// Applying one put at a time, during a sweep and without one.
pub(crate) fn sweep(bench: &Bench<'_>) -> io::Result<Vec<Line>> {
    let pods = Pods {
        count: bench.scaled(SWEPT_KEYS),
    };
    let superseded = pods.count * OVERWRITES;
    let mut puts = Puts::new(pods, VALUE_BYTES, 8);
    let mut tree = Tree::open_tended(bench.dir, Config::default())?;
    overwrite(&mut tree, &mut puts)?;
    let mut held_off = Line::new(
        "sweep-held-off",
        format!("p99.9 of applying one put, while {superseded} versions are swept / 2 ms"),
        "µs",
        Target::AtMost(1.0),
    );
    let mut p99 = Line::new(
        "sweep-p99",
        format!("p99 of applying one put, while {superseded} versions are swept / idle"),
        "µs",
        Target::AtMost(2.0),
    );
    for _ in 0..ROUNDS {
        for _ in 0..OVERWRITES {
            overwrite(&mut tree, &mut puts)?;
        }
        tree.settle()?;
        let lines = watched(|| {
            let start = Instant::now();
            let idle = paced(&mut tree, &mut puts, |_| Ok(start.elapsed() >= IDLE))?;
            let floor = Revision(puts.revision);
            let entry = tree.entry(vec![Step::Compact { floor }]);
            tree.apply(&entry)?;
            let start = Instant::now();
            let mut look = start;
            let sweeping = paced(&mut tree, &mut puts, |tree| {
                if look.elapsed() < LOOK {
                    return Ok(false);
                }
                look = Instant::now();
                is_swept(&tree.store)
            })?;
            let seconds = start.elapsed().as_secs_f64();
            let mut held_off = held_off.clone();
            let mut p99 = p99.clone();
            held_off.round(sweeping.micros(0.999), HELD_OFF_MICROS_MAX);
            held_off.aside("max µs", sweeping.micros(1.0));
            held_off.aside("idle p99.9 µs", idle.micros(0.999));
            held_off.aside("idle max µs", idle.micros(1.0));
            held_off.aside("entries", sweeping.nanos.len() as f64);
            held_off.aside("versions swept /s", superseded as f64 / seconds);
            p99.round(sweeping.micros(0.99), idle.micros(0.99));
            p99.aside("p50 µs", sweeping.micros(0.5));
            p99.aside("idle p50 µs", idle.micros(0.5));
            Ok(vec![held_off, p99])
        })?;
        // The worst round decides how disturbed it was.
        for (line, mut measured) in [&mut held_off, &mut p99].into_iter().zip(lines) {
            measured.others = measured.others.max(line.others);
            *line = measured;
        }
        tree.settle()?;
    }
    tree.close()?;
    Ok(vec![held_off, p99])
}

/// Applies entries of one put, so many a second, until `over`.
fn paced(
    tree: &mut Tree,
    puts: &mut Puts,
    mut over: impl FnMut(&Tree) -> io::Result<bool>,
) -> io::Result<Samples> {
    let interval = Duration::from_secs(1) / ENTRIES_PER_SECOND;
    let mut samples = Samples::default();
    let start = Instant::now();
    let mut due = start;
    while !over(tree)? {
        let entry = {
            let put = puts.any(1);
            tree.entry_of(&put)
        };
        due += interval;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let before = Instant::now();
        tree.apply(&entry)?;
        samples.add(before.elapsed());
        // Who was held up doesn't hurry afterwards.
        due = due.max(before);
    }
    samples.elapsed = start.elapsed();
    Ok(samples)
}

/// Puts every key once, in no order.
fn overwrite(tree: &mut Tree, puts: &mut Puts) -> io::Result<()> {
    let numbers = puts.pods.shuffled(&mut puts.rng);
    for numbers in numbers.chunks(BATCH) {
        let batch: Vec<Put> = numbers.iter().map(|&number| puts.of(number)).collect();
        let entry = tree.entry_of(&batch);
        tree.apply(&entry)?;
    }
    Ok(())
}

/// Over and over the same keys.
pub(crate) fn space(bench: &Bench<'_>) -> io::Result<Vec<Line>> {
    const CYCLES: usize = 20;
    let pods = Pods {
        count: bench.scaled(200_000),
    };
    let mut puts = Puts::new(pods, VALUE_BYTES, 9);
    let mut tree = Tree::open_tended(bench.dir, Config::default())?;
    let file = bench.dir.join("tree");
    let bytes = || Ok::<_, io::Error>(file.metadata()?.len() as f64 / MIB);
    overwrite(&mut tree, &mut puts)?;
    tree.settle()?;
    let loaded = bytes()?;
    let mut sizes = Vec::new();
    for _ in 0..CYCLES {
        overwrite(&mut tree, &mut puts)?;
        let floor = Revision(puts.revision);
        let entry = tree.entry(vec![Step::Compact { floor }]);
        tree.apply(&entry)?;
        tree.sweep()?;
        tree.settle()?;
        sizes.push(bytes()?);
    }
    let &[first, .., last] = sizes.as_slice() else {
        return Err(io::Error::other("there were no cycles"));
    };
    let mut line = Line::new(
        "space",
        format!(
            "growth of the file in {CYCLES} cycles of {} overwrites, compaction, sweep, checkpoint / in one cycle",
            pods.count
        ),
        "MiB",
        Target::AtMost(1.5),
    );
    line.round(last - loaded, first - loaded);
    line.aside("file MiB after the load", loaded);
    line.aside("after cycle 1", first);
    line.aside("after cycle 20", last);
    line.aside("of which free", tree.store.file_bytes().1 as f64 / MIB);
    tree.close()?;
    Ok(vec![line])
}
