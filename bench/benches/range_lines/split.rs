//! A full range is cut in two while it is written to, and so is another.
//!
//! Kept true: a put that fails is made again, and its time counts from when
//! it should have been asked first.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use pontoon_bench::bulk::Bulk;
use pontoon_bench::lines::{Line, Target};
use pontoon_bench::nodes;
use pontoon_bench::runner::Bench;

pub(crate) const NAMES: &[&str] = &["split-pause", "split-own", "split-others"];

const ROUNDS: usize = 3;
const BYTES: u64 = 1 << 30;
/// Of the other range.
const OTHERS_BYTES: u64 = 16 << 20;
/// The root group, the one that is cut, the other.
const GROUPS: u64 = 3;
const CLIENTS: usize = 32;
const PUTS_PER_SECOND: u32 = 500;
const PAUSE_MILLIS: f64 = 200.0;
/// Before the cut, and after it.
const AROUND: Duration = Duration::from_secs(1);
const WITHIN: Duration = Duration::from_secs(120);

pub(crate) fn measure(bench: &Bench<'_>) -> io::Result<Vec<Line>> {
    let mut lines = [
        Line::new(
            "split-pause",
            "the longest time without an answer to a put to the range; the reference is the limit",
            "ms",
            Target::AtMost(1.0),
        ),
        Line::new(
            "split-own",
            "p99 of puts to the range from 1 s before the cut to 1 s after; the reference is the limit",
            "ms",
            Target::AtMost(1.0),
        ),
        Line::new(
            "split-others",
            "p99 of puts to another range meanwhile, and before",
            "ms",
            Target::AtMost(1.2),
        ),
    ];
    for round in 0..ROUNDS {
        let dir = bench.subdir(&format!("split-{round}"))?;
        let runtime = nodes::runtime()?;
        let measured = runtime.block_on(split(bench, &dir, &mut lines));
        runtime.shutdown_timeout(Duration::from_secs(1));
        measured?;
        std::fs::remove_dir_all(dir)?;
    }
    Ok(lines.into())
}

async fn split(bench: &Bench<'_>, dir: &Path, lines: &mut [Line; 3]) -> io::Result<()> {
    let member = nodes::alone(dir, GROUPS).await?;
    let node = &member.node;
    let bulk = |group, bytes| {
        let end = match group + 1 {
            GROUPS => 0x1_0000,
            next => u32::from(nodes::place(next, GROUPS)),
        };
        Bulk::new(u32::from(nodes::place(group, GROUPS))..end, bytes)
    };
    let (own, other) = (bulk(1, bench.scaled(BYTES)), bulk(2, OTHERS_BYTES));
    let start = Instant::now();
    own.fill(node).await?;
    other.fill(node).await?;
    let filled = start.elapsed();
    let to_own = own.load(node, CLIENTS, PUTS_PER_SECOND);
    let to_other = other.load(node, CLIENTS, PUTS_PER_SECOND);
    tokio::time::sleep(AROUND).await;
    let calm = Instant::now();
    tokio::time::sleep(bench.time(Duration::from_secs(5))).await;
    let asked = Instant::now();
    let cut = node.split(own.middle(), WITHIN).await;
    cut.map_err(io::Error::other)?;
    let done = Instant::now();
    tokio::time::sleep(2 * AROUND).await;
    let end = Instant::now();
    let (to_own, to_other) = (to_own.stop().await?, to_other.stop().await?);
    let millis = |samples: &pontoon_bench::samples::Samples, share| samples.micros(share) / 1e3;

    let [pause, around, others] = lines;
    let longest = |from, to| to_own.pause(from, to).as_secs_f64() * 1e3;
    pause.round(longest(asked, end), PAUSE_MILLIS);
    pause.aside("ms before", longest(calm, asked));
    pause.aside("s until it is cut", (done - asked).as_secs_f64());
    pause.aside("s to fill it", filled.as_secs_f64());
    let near = to_own.between(done - AROUND, done + AROUND);
    around.round(millis(&near, 0.99), PAUSE_MILLIS);
    around.aside("ms before", millis(&to_own.between(calm, asked), 0.99));
    around.aside(
        "ms while it is copied",
        millis(&to_own.between(asked, done), 0.99),
    );
    around.aside("longest ms", millis(&to_own.between(asked, end), 1.0));
    let (before, meanwhile) = (to_other.between(calm, asked), to_other.between(asked, end));
    others.round(millis(&meanwhile, 0.99), millis(&before, 0.99));
    others.aside("longest ms", millis(&meanwhile, 1.0));
    others.aside("longest ms before", millis(&before, 1.0));
    others.aside("p50 ms", millis(&meanwhile, 0.5));
    others.aside("p50 ms before", millis(&before, 0.5));
    Ok(())
}
