//! Lines over a million keys that were put in no order: counts, allocations,
//! and, with peers, everything that is compared with them.

use std::io;
use std::time::Instant;

use pontoon_bench::allocations;
use pontoon_bench::lines::{Line, Target};
use pontoon_bench::pods::{Pods, Put, Puts, touch};
use pontoon_bench::runner::{Bench, watched};
use pontoon_bench::samples::Samples;
use pontoon_bench::trees::{Tree, other};
use pontoon_engine::{Config, KeyRange, Revision};

use crate::paging;

pub(crate) const NAMES: &[&str] = &[
    #[cfg(feature = "peers")]
    "apply-redb",
    #[cfg(feature = "peers")]
    "apply-lmdb",
    #[cfg(feature = "peers")]
    "get-lmdb",
    #[cfg(feature = "peers")]
    "range-lmdb",
    "count",
    "allocations-scan",
    "allocations-scan-past",
    "allocations-get",
    "paging-halves",
    "paging-pinned-halves",
    "paging-pinned",
];

pub(crate) const ROUNDS: usize = 5;
const VALUE_BYTES: usize = 256;
/// Puts of an entry while the store is filled.
const LOAD_BATCH: usize = 1000;

pub(crate) fn measure(bench: &Bench<'_>) -> io::Result<Vec<Line>> {
    let pods = Pods {
        count: bench.scaled(1_000_000),
    };
    let mut puts = Puts::new(pods, VALUE_BYTES, 1);
    let mut tree = Tree::open_tended(&bench.dir.join("tree"), Config::default())?;
    let mut lines = Vec::new();
    let wants = |names: &[&str]| names.iter().any(|name| bench.wants(name));

    #[cfg(feature = "peers")]
    let peers = match wants(&["apply-redb", "apply-lmdb", "get-lmdb", "range-lmdb"]) {
        true => Some(crate::peers::Peers::create(bench)?),
        false => None,
    };
    #[cfg(feature = "peers")]
    let mut peers = peers;
    let numbers = pods.shuffled(&mut puts.rng);
    for numbers in numbers.chunks(LOAD_BATCH) {
        let batch: Vec<Put> = numbers.iter().map(|&number| puts.of(number)).collect();
        let entry = tree.entry_of(&batch);
        tree.apply(&entry)?;
        #[cfg(feature = "peers")]
        if let Some(peers) = &mut peers {
            peers.apply(&batch)?;
        }
    }
    tree.settle()?;

    #[cfg(feature = "peers")]
    if let Some(peers) = &mut peers {
        peers.sync()?;
        if wants(&["apply-redb", "apply-lmdb"]) {
            lines.extend(watched(|| peers.apply_lines(bench, &mut tree, &mut puts))?);
        }
        if wants(&["get-lmdb"]) {
            lines.extend(watched(|| peers.get_line(bench, &tree, &mut puts))?);
        }
        if wants(&["range-lmdb"]) {
            lines.extend(watched(|| peers.range_line(bench, &tree, &mut puts))?);
        }
    }
    #[cfg(feature = "peers")]
    drop(peers);

    if wants(&["count"]) {
        lines.extend(watched(|| count(&tree, &mut puts))?);
    }
    if wants(&[
        "allocations-scan",
        "allocations-scan-past",
        "allocations-get",
    ]) {
        lines.extend(count_allocations(&mut tree, &mut puts)?);
    }
    if wants(&["paging-halves", "paging-pinned-halves", "paging-pinned"]) {
        lines.extend(watched(|| paging::measure(&mut tree, &mut puts))?);
    }
    tree.close()?;
    Ok(lines)
}

/// Exact counts of all keys or nearly all, newest revision.
fn count(tree: &Tree, puts: &mut Puts) -> io::Result<Vec<Line>> {
    const COUNTS: u64 = 2000;
    const LIMIT_MICROS: f64 = 20.0;
    let mut line = Line::new(
        "count",
        format!(
            "p50 of an exact count of nearly {} keys / 20 µs",
            puts.pods.count
        ),
        "µs",
        Target::AtMost(1.0),
    );
    let at = tree.store.revision();
    for _ in 0..ROUNDS {
        let mut samples = Samples::default();
        let start = Instant::now();
        for _ in 0..COUNTS {
            // Elsewhere each time, so that nothing could be remembered.
            let first = puts.rng.below(1000.min(puts.pods.count));
            let keys = KeyRange::new(puts.pods.key(first), Pods::all().end);
            let before = Instant::now();
            let count = tree.store.count(&keys, at).map_err(other)?;
            samples.add(before.elapsed());
            if count != (puts.pods.count - first) as i64 {
                return Err(io::Error::other(format!("{count} is not the count")));
            }
        }
        samples.elapsed = start.elapsed();
        line.round(samples.micros(0.5), LIMIT_MICROS);
        line.aside("p99 µs", samples.micros(0.99));
    }
    Ok(vec![line])
}

/// Keys that a scan looks at before it lets writers in: `STRETCH_KEYS` of the engine.
const STRETCH_KEYS: u64 = 256;

/// How often reads ask for memory.
fn count_allocations(tree: &mut Tree, puts: &mut Puts) -> io::Result<Vec<Line>> {
    let keys_max = 100_000.min(puts.pods.count);
    let stretches = keys_max.div_ceil(STRETCH_KEYS) as f64;
    let scan_line = |name: &str, when: &str, target| {
        Line::new(
            name,
            format!(
                "allocations of a scan of {keys_max} keys, {when} / stretches of {STRETCH_KEYS} keys"
            ),
            "",
            target,
        )
    };
    let at = tree.store.revision();
    let mut newest = scan_line("allocations-scan", "newest revision", Target::AtMost(2.0));
    newest.round(scan_allocations(tree, at, keys_max)?, stretches);

    let mut get = Line::new(
        "allocations-get",
        "allocations of a point get, newest revision / 1",
        "",
        Target::AtMost(0.0),
    );
    const GETS: u64 = 10_000;
    let keys: Vec<_> = (0..GETS)
        .map(|_| puts.pods.key(puts.rng.below(puts.pods.count)))
        .collect();
    let mut sum = 0u64;
    let (allocations, outcome) = allocations::during(|| {
        keys.iter().try_for_each(|key| {
            tree.store.visit_key(key, at, &mut |kv| {
                sum = sum.wrapping_add(touch(kv.value));
            })
        })
    });
    outcome.map_err(other)?;
    std::hint::black_box(sum);
    get.round(allocations as f64 / GETS as f64, 1.0);

    // So many changes that the past is not the present corrected.
    let batch = puts.any(5000.min(puts.pods.count as usize));
    let entry = tree.entry_of(&batch);
    tree.apply(&entry)?;
    let mut past = scan_line("allocations-scan-past", "5,000 revisions ago", Target::None);
    past.round(scan_allocations(tree, at, keys_max)?, stretches);
    Ok(vec![newest, past, get])
}

fn scan_allocations(tree: &Tree, at: Revision, keys_max: u64) -> io::Result<f64> {
    let mut seen = 0;
    let mut sum = 0u64;
    let (allocations, outcome) = allocations::during(|| {
        tree.store.scan(&Pods::all(), at, &mut |kv| {
            seen += 1;
            sum = sum.wrapping_add(touch(kv.value));
            seen < keys_max
        })
    });
    outcome.map_err(other)?;
    std::hint::black_box(sum);
    match seen == keys_max {
        true => Ok(allocations as f64),
        false => Err(io::Error::other(format!("a scan saw {seen} keys"))),
    }
}
