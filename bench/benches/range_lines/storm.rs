//! Ten thousand leases that end at once, and puts meanwhile.
//!
//! Kept true: the last sign of life of all leases falls into a fraction of
//! their life, so all end within that time.

use std::io;
use std::time::{Duration, Instant};

use bytes::Bytes;
use pontoon_bench::lines::{Line, Target};
use pontoon_bench::load::Load;
use pontoon_bench::nodes::{self, Member, WITHIN};
use pontoon_bench::runner::Bench;
use pontoon_engine::{Answer, KeyRange, Put, Range, Request};
use pontoon_raftgroup::{Failure, Node};

use crate::leases::{for_each, grant};

pub(crate) const NAMES: &[&str] = &["lease-storm"];

const LEASES: u64 = 10_000;
const GROUPS: u64 = 8;
const ROUNDS: usize = 3;
const TTL_SECS: i64 = 10;
const CLIENTS: usize = 64;
const PUTS_PER_SECOND: u32 = 2_000;
/// How long they may take until all are gone.
const STORM_MAX: Duration = Duration::from_secs(60);

pub(crate) fn measure(bench: &Bench<'_>) -> io::Result<Vec<Line>> {
    let mut line = Line::new(
        "lease-storm",
        "p99 of puts while 10,000 leases with a key each end, and before",
        "µs",
        Target::AtMost(2.0),
    );
    for round in 0..ROUNDS {
        let dir = bench.subdir(&format!("storm-{round}"))?;
        let runtime = nodes::runtime()?;
        let measured = runtime.block_on(async {
            let member = nodes::alone(&dir, GROUPS).await?;
            storm(&member, bench.scaled(LEASES), &mut line).await
        });
        runtime.shutdown_timeout(Duration::from_secs(1));
        measured?;
        std::fs::remove_dir_all(dir)?;
    }
    Ok(vec![line])
}

async fn storm(member: &Member, count: u64, line: &mut Line) -> io::Result<()> {
    let node = &member.node;
    grant(node, count, TTL_SECS).await?;
    let start = Instant::now();
    for_each(node, node.leases(), |node: Node, id| async move {
        let request = Request::Put(Put {
            key: key(id),
            value: Bytes::from_static(b"here"),
            lease: id,
            ..Put::default()
        });
        node.request(request, WITHIN).await.map(drop)
    })
    .await?;
    line.aside("s for their keys", start.elapsed().as_secs_f64());
    let start = Instant::now();
    for_each(node, node.leases(), |node: Node, id| async move {
        match node.lease_keep_alive(id, WITHIN).await? {
            Some(_) => Ok(()),
            None => Err(Failure::TimedOut),
        }
    })
    .await?;
    line.aside(
        "s for a sign of life of each",
        start.elapsed().as_secs_f64(),
    );
    if node.leases().len() as u64 != count {
        return Err(io::Error::other("leases have ended too early"));
    }
    let client = node.clone();
    let load = Load::paced(CLIENTS, PUTS_PER_SECOND, move |_, chance| {
        let (node, key) = (client.clone(), nodes::key((chance >> 16) as u16));
        async move {
            nodes::put(&node, key, WITHIN).await?;
            Ok(true)
        }
    });
    let calm = Instant::now() + Duration::from_secs(1);
    let begun = ends(node, count - 1).await?;
    let over = ends(node, 0).await?;
    let history = load.stop().await?;
    let before = history.between(calm, begun - Duration::from_millis(200));
    let during = history.between(begun, over);
    line.round(during.micros(0.99), before.micros(0.99));
    line.aside("s until all are gone", (over - begun).as_secs_f64());
    line.aside("p50 µs", during.micros(0.5));
    line.aside("p50 µs before", before.micros(0.5));
    line.aside("longest µs", during.micros(1.0));
    line.aside("longest µs before", before.micros(1.0));
    let left = count_keys(node).await?;
    if left != 0 {
        return Err(io::Error::other(format!(
            "{left} keys outlive their leases"
        )));
    }
    Ok(())
}

/// When so few leases are left.
async fn ends(node: &Node, count: u64) -> io::Result<Instant> {
    let start = Instant::now();
    while node.leases().len() as u64 > count {
        if start.elapsed() > STORM_MAX {
            return Err(io::Error::other("leases don't end"));
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(Instant::now())
}

/// In all groups in turn; the clients have other keys.
fn key(lease: i64) -> Bytes {
    let group = lease.unsigned_abs() % GROUPS;
    let place = nodes::place(group, GROUPS);
    format!("key/{place:04x}/lease/{lease}").into()
}

/// How many of the leases' keys there are.
async fn count_keys(node: &Node) -> io::Result<i64> {
    let mut count = 0;
    for group in 0..GROUPS {
        let place = nodes::place(group, GROUPS);
        let mut range = Range::of(KeyRange::new(
            format!("key/{place:04x}/lease/"),
            format!("key/{place:04x}/lease0"),
        ));
        range.count_only = true;
        let answer = node.request(Request::Range(range), WITHIN).await;
        match answer.map_err(io::Error::other)? {
            Answer::Range(answer) => count += answer.count,
            other => return Err(io::Error::other(format!("{other:?}"))),
        }
    }
    Ok(count)
}
