//! Puts of 256 bytes: one node, three nodes, one group, many groups.

use std::io;
use std::time::Duration;

use pontoon_bench::appenders::{self, Load};
use pontoon_bench::lines::{Line, Target};
use pontoon_bench::nodes::{self, Clients, Done};
use pontoon_bench::runner::Bench;

pub(crate) const NAMES: &[&str] = &[
    "one-cpu",
    "one-saturated",
    "one-latency",
    "three-rate",
    "many-cpu-4096",
    "many-cpu-256",
];

const ROUNDS: usize = 3;
const GROUPS: u64 = 64;
/// What a put may take of a processor, in microseconds.
const CPU_MICROS: f64 = 10.0;

pub(crate) fn measure(bench: &Bench<'_>) -> io::Result<Vec<Line>> {
    let mut cpu = Line::new(
        "one-cpu",
        "processor time of a put, 1 node, 1 group, 256 clients; the reference is the limit",
        "µs",
        Target::AtMost(1.0),
    );
    let mut saturated = Line::new(
        "one-saturated",
        "processors busy meanwhile, of the one that a group's chain of work has at a time",
        "",
        Target::AtLeast(0.85),
    );
    let mut latency = Line::new(
        "one-latency",
        "p50 of the only client's puts, and of the log's commits",
        "µs",
        Target::AtMost(1.5),
    );
    let mut three = Line::new(
        "three-rate",
        "puts per second of 256 clients, 3 nodes over TCP and 1 node",
        "/s",
        Target::AtLeast(0.4),
    );
    let mut many = [(4096, 1.2), (256, 2.5)].map(|(clients, limit)| {
        let line = Line::new(
            format!("many-cpu-{clients}"),
            format!("processor time of a put, {clients} clients, {GROUPS} groups and 1"),
            "µs",
            Target::AtMost(limit),
        );
        (clients, line)
    });
    for round in 0..ROUNDS {
        let wal = wal_p50(bench, round)?;
        let one = loads(bench, &format!("one-{round}"), 1, 1, &[1, 256, 4096])?;
        let spread = loads(bench, &format!("many-{round}"), 1, GROUPS, &[4096, 256])?;
        let of_three = loads(bench, &format!("three-{round}"), 3, 1, &[256])?;
        let [alone, crowd, throng] = &one[..] else {
            return Err(io::Error::other("a load is missing"));
        };
        latency.round(alone.puts.micros(0.5), wal);
        latency.aside("p99", alone.puts.micros(0.99));
        cpu.round(crowd.micros_per_put, CPU_MICROS);
        cpu.aside("puts/s", crowd.puts.rate());
        cpu.aside("p50 µs", crowd.puts.micros(0.5));
        cpu.aside("p99 µs", crowd.puts.micros(0.99));
        saturated.round(crowd.processors, 1.0);
        saturated.aside("of the log", crowd.log_busy);
        saturated.aside("with 64 groups", spread[0].processors);
        three.round(of_three[0].puts.rate(), crowd.puts.rate());
        three.aside("µs of processor", of_three[0].micros_per_put);
        three.aside("p50 µs", of_three[0].puts.micros(0.5));
        for ((_, line), (ours, reference)) in
            many.iter_mut().zip(spread.iter().zip([throng, crowd]))
        {
            line.round(ours.micros_per_put, reference.micros_per_put);
            line.aside("puts/s", ours.puts.rate());
            line.aside("puts/s of 1 group", reference.puts.rate());
            line.aside("p50 µs", ours.puts.micros(0.5));
        }
    }
    let many = many.map(|(_, line)| line);
    Ok([cpu, saturated, latency, three]
        .into_iter()
        .chain(many)
        .collect())
}

/// One load after the other on new nodes.
fn loads(
    bench: &Bench<'_>,
    name: &str,
    count: u64,
    groups: u64,
    clients: &[usize],
) -> io::Result<Vec<Done>> {
    let dir = bench.subdir(name)?;
    let runtime = nodes::runtime()?;
    let loaded = runtime.block_on(async {
        let members = match count {
            1 => vec![nodes::alone(&dir, groups).await?],
            _ => nodes::together(&dir, count, groups).await?,
        };
        let mut loaded = Vec::new();
        for &count in clients {
            // What a start leaves to do is done, and every path was taken.
            let time = bench.time(Duration::from_millis(600));
            Clients { count, time }.put(&members).await?;
            let time = bench.time(Duration::from_secs(3));
            loaded.push(Clients { count, time }.put(&members).await?);
        }
        Ok(loaded)
    });
    runtime.shutdown_timeout(Duration::from_secs(1));
    std::fs::remove_dir_all(dir)?;
    loaded
}

/// The middle of the log's commits, of as many bytes as a put's entry has.
fn wal_p50(bench: &Bench<'_>, round: usize) -> io::Result<f64> {
    let dir = bench.subdir(&format!("wal-{round}"))?;
    let wal = appenders::open_default(&dir)?;
    let load = Load {
        appenders: 1,
        entry_bytes: 300,
        time: bench.time(Duration::from_secs(2)),
    };
    let samples = nodes::runtime()?.block_on(appenders::run(&wal, load))?;
    Ok(samples.micros(0.5))
}
