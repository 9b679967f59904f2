//! A new member gets all that a full range has, while it is written to.
//!
//! Kept true: it has caught up when it could be made a voter, and then, once
//! nobody writes, it has the same content. It has a runtime of its own, so
//! that where it waits for the disk nobody else does.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use pontoon_bench::bulk::Bulk;
use pontoon_bench::lines::{Line, Target};
use pontoon_bench::nodes::{self, Member, WITHIN};
use pontoon_bench::raw;
use pontoon_bench::runner::Bench;
use pontoon_raftgroup::{Config, Failure, GroupId, MemberReject};
use tokio::runtime::Handle;

pub(crate) const SNAPSHOT_NAMES: &[&str] = &["join-rate", "join-puts"];
pub(crate) const LOG_NAMES: &[&str] = &["join-log-rate", "join-log-puts"];

const ROUNDS: usize = 3;
const BYTES: u64 = 1 << 30;
const CLIENTS: usize = 32;
const PUTS_PER_SECOND: u32 = 500;
/// How long it may take until it has all.
const PATIENCE: Duration = Duration::from_secs(120);
const MIB: f64 = (1 << 20) as f64;

/// The log is kept short, so it gets a checkpoint.
pub(crate) fn by_snapshot(bench: &Bench<'_>) -> io::Result<Vec<Line>> {
    let set_up = |config: &mut Config| {
        config.log_entries_kept = 100;
        config.log_bytes_max = 16 << 20;
    };
    let rate = Line::new(
        "join-rate",
        "bytes of keys and values per second to a new member, and raw sequential O_DIRECT writes",
        "MiB/s",
        Target::AtLeast(0.5),
    );
    let puts = Line::new(
        "join-puts",
        "p99 of puts meanwhile, and before",
        "ms",
        Target::AtMost(2.0),
    );
    rounds(bench, bench.scaled(BYTES), set_up, rate, puts)
}

/// The log has everything.
pub(crate) fn by_log(bench: &Bench<'_>) -> io::Result<Vec<Line>> {
    let set_up = |config: &mut Config| config.log_entries_kept = 1_000_000;
    let rate = Line::new(
        "join-log-rate",
        "the same, a quarter of it, from the log",
        "MiB/s",
        Target::None,
    );
    let puts = Line::new(
        "join-log-puts",
        "p99 of puts meanwhile, and before",
        "ms",
        Target::None,
    );
    rounds(bench, bench.scaled(BYTES / 4), set_up, rate, puts)
}

fn rounds(
    bench: &Bench<'_>,
    bytes: u64,
    set_up: fn(&mut Config),
    mut rate: Line,
    mut puts: Line,
) -> io::Result<Vec<Line>> {
    for round in 0..ROUNDS {
        let file = bench.dir.join("raw");
        let start = Instant::now();
        raw::zeroed_file(&file, 256 << 20)?;
        let new_file = 256.0 / start.elapsed().as_secs_f64();
        let time = bench.time(Duration::from_secs(1));
        let disk = raw::write_bandwidth(&file, 64 << 10, 16, false, time)?;
        std::fs::remove_file(file)?;
        let dir = bench.subdir(&format!("join-{round}"))?;
        let bulk = Bulk::new(0..0x1_0000, bytes);
        let (runtime, its_own) = (nodes::runtime()?, nodes::runtime()?);
        let joined = join(bench, &dir, &bulk, set_up, its_own.handle(), &mut puts);
        let joined = runtime.block_on(joined);
        runtime.shutdown_timeout(Duration::from_secs(1));
        its_own.shutdown_timeout(Duration::from_secs(1));
        let joined = joined?;
        rate.round(bulk.bytes() as f64 / MIB / joined.seconds, disk / MIB);
        rate.aside("s", joined.seconds);
        rate.aside("MiB/s of a new file", new_file);
        let tree = tree_bytes(&dir.join("2/trees"))?;
        rate.aside("MiB of its tree", tree as f64 / MIB);
        rate.aside("snapshots", joined.snapshots);
        std::fs::remove_dir_all(dir)?;
    }
    Ok(vec![rate, puts])
}

struct Joined {
    seconds: f64,
    snapshots: f64,
}

async fn join(
    bench: &Bench<'_>,
    dir: &Path,
    bulk: &Bulk,
    set_up: fn(&mut Config),
    its_own: &Handle,
    puts: &mut Line,
) -> io::Result<Joined> {
    let mut members = nodes::together_with(dir, 1, 1, set_up).await?;
    let first = members.remove(0);
    bulk.fill(&first.node).await?;
    let load = bulk.load(&first.node, CLIENTS, PUTS_PER_SECOND);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let calm = Instant::now();
    tokio::time::sleep(bench.time(Duration::from_secs(5))).await;
    let asked = Instant::now();
    let (dir, node) = (dir.to_owned(), first.node.clone());
    let second = its_own.spawn(async move { nodes::join(&dir, &node).await });
    let second = second.await.map_err(io::Error::other)??;
    catches_up(&first, &second).await?;
    let done = Instant::now();
    let history = load.stop().await?;
    let snapshots: u64 = second.node.status().iter().map(|one| one.snapshots).sum();
    agree(&first, &second).await?;
    let (before, meanwhile) = (history.between(calm, asked), history.between(asked, done));
    puts.round(meanwhile.micros(0.99) / 1e3, before.micros(0.99) / 1e3);
    puts.aside("longest ms", meanwhile.micros(1.0) / 1e3);
    puts.aside("longest ms before", before.micros(1.0) / 1e3);
    puts.aside("p50 ms", meanwhile.micros(0.5) / 1e3);
    puts.aside("p50 ms before", before.micros(0.5) / 1e3);
    Ok(Joined {
        seconds: (done - asked).as_secs_f64(),
        snapshots: snapshots as f64,
    })
}

/// Returns when the second one is a voter.
async fn catches_up(first: &Member, second: &Member) -> io::Result<()> {
    let start = Instant::now();
    loop {
        match first.node.member_promote(second.node.id(), WITHIN).await {
            Ok(()) => return Ok(()),
            Err(Failure::Member(MemberReject::NotInSync)) => {}
            Err(failure) => return Err(io::Error::other(failure)),
        }
        if start.elapsed() > PATIENCE {
            let status = second.node.status();
            return Err(io::Error::other(format!("it doesn't catch up: {status:?}")));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Returns when both have the same.
async fn agree(first: &Member, second: &Member) -> io::Result<()> {
    let start = Instant::now();
    while first.node.content(GroupId::ROOT) != second.node.content(GroupId::ROOT) {
        if start.elapsed() > PATIENCE {
            return Err(io::Error::other("the new member has something else"));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

fn tree_bytes(dir: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    for file in std::fs::read_dir(dir)? {
        bytes += file?.metadata()?.len();
    }
    Ok(bytes)
}
