//! A thousand groups in which nothing happens, on three nodes, and what
//! becomes of a watch over all of them when their sequencer dies.
//!
//! Kept true: a process of its own, so that its memory and its processor time
//! are those of the groups.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use pontoon_bench::child;
use pontoon_bench::lines::{Line, Target};
use pontoon_bench::nodes::{self, Member};
use pontoon_bench::proc::{self, CpuTime};
use pontoon_bench::runner::Bench;
use pontoon_engine::{KeyRange, Revision};
use pontoon_raftgroup::{Delivery, GroupId, Watch};

pub(crate) const NAMES: &[&str] = &["idle-cpu", "idle-memory", "idle-watch"];

const GROUPS: u64 = 1000;
const NODES: u64 = 3;
/// Of one processor, in percent.
const CPU_PERCENT: f64 = 2.0;
const MEMORY_KIB: f64 = 350.0;
const WATCH_SECONDS: f64 = 5.0;
/// How long they may take until all rest.
const REST_MAX: Duration = Duration::from_secs(45);

pub(crate) fn measure(bench: &Bench<'_>) -> io::Result<Vec<Line>> {
    let role = if bench.small { "idle-small" } else { "idle" };
    let figures = child::ask_for_memory(role, bench.dir)?;
    let &[percent, kib, watch, opened, rested, awake] = figures.as_slice() else {
        return Err(io::Error::other(
            "the child's figures are not what they should be",
        ));
    };
    let line = |name, what, unit, ours, limit| {
        let mut line = Line::new(name, what, unit, Target::AtMost(1.0));
        line.round(ours, limit);
        line
    };
    let mut cpu = line(
        "idle-cpu",
        "what 1,000 idle groups on 3 nodes take of a processor; the reference is the limit",
        "%",
        percent,
        CPU_PERCENT,
    );
    cpu.aside("s until they serve", opened);
    cpu.aside("s until they rest", rested);
    cpu.aside("replicas awake", awake);
    let memory = line(
        "idle-memory",
        "memory of an idle replica; the reference is the limit",
        "KiB",
        kib,
        MEMORY_KIB,
    );
    let watch = line(
        "idle-watch",
        "from the sequencer's death until a watch over all keys sees a new put; the reference is the limit",
        "s",
        watch,
        WATCH_SECONDS,
    );
    Ok(vec![cpu, memory, watch])
}

pub(crate) fn be_child(role: &str, dir: &Path) -> io::Result<()> {
    let groups = match role {
        "idle-small" => GROUPS / 10,
        _ => GROUPS,
    };
    let figures = nodes::runtime()?.block_on(idle(dir, groups))?;
    child::answer(&figures);
    Ok(())
}

async fn idle(dir: &Path, groups: u64) -> io::Result<Vec<f64>> {
    let bytes = proc::rss_anon_bytes()?;
    let start = Instant::now();
    let members = nodes::together(dir, NODES, groups).await?;
    let opened = start.elapsed().as_secs_f64();
    let start = Instant::now();
    while awake(&members) > 0 && start.elapsed() < REST_MAX {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let rested = start.elapsed().as_secs_f64();
    let still_awake = awake(&members) as f64;
    let bytes = proc::rss_anon_bytes()? - bytes;
    let (cpu, start) = (CpuTime::now()?, Instant::now());
    tokio::time::sleep(Duration::from_secs(5)).await;
    let percent = 100.0 * cpu.own_since()? / start.elapsed().as_secs_f64();
    let watch = watch_goes_on(&members, groups).await?;
    let kib = bytes as f64 / 1024.0 / (groups * NODES) as f64;
    Ok(vec![percent, kib, watch, opened, rested, still_awake])
}

fn awake(members: &[Member]) -> usize {
    let replicas = members.iter().flat_map(|member| member.node.status());
    replicas.filter(|replica| !replica.quiet).count()
}

/// Kills the sequencer; seconds until a watch elsewhere sees a put that was
/// made after that.
async fn watch_goes_on(members: &[Member], groups: u64) -> io::Result<f64> {
    let sequencer = nodes::leader(members, GroupId::ROOT);
    let sequencer = sequencer.ok_or_else(|| io::Error::other("nobody sequences"))?;
    let node = members[(sequencer + 1) % members.len()].node.clone();
    let mut watch = node.watch(Watch {
        keys: KeyRange::all(),
        from: Revision(0),
        prev_kv: false,
    });
    let start = Instant::now();
    members[sequencer].kill();
    let key = nodes::key(nodes::place(groups / 2, groups));
    let writer = tokio::spawn({
        let key = key.clone();
        async move {
            let within = Duration::from_secs(30);
            // Nobody may know what became of it: then it is put again.
            while nodes::put(&node, key.clone(), within).await.is_err() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    });
    let seen = tokio::time::timeout(Duration::from_secs(30), async {
        loop {
            match watch.next().await {
                Some(Delivery::Events(events)) if events.iter().any(|e| e.kv.key == key) => {
                    return Ok(());
                }
                Some(Delivery::Events(_)) => {}
                other => return Err(io::Error::other(format!("the watch gave {other:?}"))),
            }
        }
    });
    seen.await
        .unwrap_or_else(|_| Err(io::Error::other("the watch stands still")))?;
    writer.abort();
    Ok(start.elapsed().as_secs_f64())
}
