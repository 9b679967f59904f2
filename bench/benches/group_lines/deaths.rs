//! How long who waits for what when a node dies.
//!
//! Kept true: the clients talk to nodes that live on, and a put that fails is
//! made again: what is measured is from when it was first asked.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pontoon_bench::lines::{Line, Target};
use pontoon_bench::nodes::{self, Member};
use pontoon_bench::runner::Bench;
use pontoon_raftgroup::{GroupId, Timing};
use tokio::task::JoinHandle;

pub(crate) const LEADER_NAMES: &[&str] = &["leader-others", "leader-own"];
pub(crate) const SEQUENCER_NAMES: &[&str] = &["sequencer-others", "sequencer-own"];

/// Each node leads two, the root group among those of the first node.
const GROUPS: u64 = 6;
const NODES: usize = 3;
const CLIENTS_PER_GROUP: u64 = 4;
const OTHERS_MILLIS: f64 = 50.0;
const BEFORE: Duration = Duration::from_secs(1);
const AFTER: Duration = Duration::from_secs(5);

pub(crate) fn of_leader(bench: &Bench<'_>) -> io::Result<Vec<Line>> {
    let stalls = kill(bench.dir, 1)?;
    let mut others = Line::new(
        "leader-others",
        "p99.9 of puts to other ranges around a leader's death; the reference is the limit",
        "ms",
        Target::AtMost(1.0),
    );
    others.round(stalls.others_p999, OTHERS_MILLIS);
    others.aside("longest", stalls.others_longest);
    others.aside("puts", stalls.others_count);
    let mut own = Line::new(
        "leader-own",
        "the longest put to its own ranges, and the longest election timeout",
        "ms",
        Target::AtMost(1.5),
    );
    own.round(stalls.own_longest, election_millis());
    Ok(vec![others, own])
}

pub(crate) fn of_sequencer(bench: &Bench<'_>) -> io::Result<Vec<Line>> {
    let stalls = kill(bench.dir, 0)?;
    let line = |name, what, stall| {
        let mut line = Line::new(name, what, "ms", Target::None);
        line.round(stall, election_millis());
        line
    };
    Ok(vec![
        line(
            "sequencer-others",
            "the longest put to ranges of other leaders when the sequencer dies, and the longest election timeout",
            stalls.others_longest,
        ),
        line(
            "sequencer-own",
            "the longest put to ranges that the sequencer's node led, and the longest election timeout",
            stalls.own_longest,
        ),
    ])
}

fn election_millis() -> f64 {
    Timing::default().election_max.as_secs_f64() * 1e3
}

/// What was waited for, in milliseconds.
struct Stalls {
    others_p999: f64,
    others_longest: f64,
    others_count: f64,
    own_longest: f64,
}

/// Kills the node at `victim`, which leads every third group from it on.
fn kill(dir: &Path, victim: usize) -> io::Result<Stalls> {
    let runtime = nodes::runtime()?;
    let stalls = runtime.block_on(async {
        let members = nodes::together(dir, NODES as u64, GROUPS).await?;
        for group in 0..GROUPS {
            nodes::place_leader(&members, GroupId(group), group as usize % NODES).await?;
        }
        let stop = Arc::new(AtomicBool::new(false));
        let clients: Vec<_> = (0..GROUPS * CLIENTS_PER_GROUP)
            .map(|client| start(&members, victim, client, &stop))
            .collect();
        tokio::time::sleep(BEFORE).await;
        members[victim].kill();
        tokio::time::sleep(AFTER).await;
        stop.store(true, Ordering::Relaxed);
        let (mut own, mut others) = (Vec::new(), Vec::new());
        for (client, puts) in (0..).zip(clients) {
            let led = (client % GROUPS) as usize % NODES == victim;
            let puts: Vec<f64> = puts.await.map_err(io::Error::other)?;
            if led { &mut own } else { &mut others }.extend(puts);
        }
        own.sort_by(f64::total_cmp);
        others.sort_by(f64::total_cmp);
        let (Some(own_longest), Some(others_longest)) = (own.last(), others.last()) else {
            return Err(io::Error::other("nothing was put"));
        };
        Ok(Stalls {
            others_p999: others[(others.len() - 1) * 999 / 1000],
            others_longest: *others_longest,
            others_count: others.len() as f64,
            own_longest: *own_longest,
        })
    });
    runtime.shutdown_timeout(Duration::from_secs(1));
    stalls
}

/// A client of one group; the milliseconds that each of its puts took.
fn start(
    members: &[Member],
    victim: usize,
    client: u64,
    stop: &Arc<AtomicBool>,
) -> JoinHandle<Vec<f64>> {
    let group = client % GROUPS;
    let alive = (victim + 1 + (client / GROUPS) as usize % (NODES - 1)) % NODES;
    let (node, stop) = (members[alive].node.clone(), Arc::clone(stop));
    let key = nodes::key(nodes::place(group, GROUPS) + client as u16);
    tokio::spawn(async move {
        let mut puts = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            let asked = Instant::now();
            let within = Duration::from_secs(10);
            while nodes::put(&node, key.clone(), within).await.is_err() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            puts.push(asked.elapsed().as_secs_f64() * 1e3);
        }
        puts
    })
}
