//! A hundred thousand leases: signs of life, and memory.
//!
//! Kept true: the memory is measured in a process of its own, after leases
//! have been granted and are gone again, so that what a start needs is not
//! counted.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use pontoon_bench::child;
use pontoon_bench::lines::{Line, Target};
use pontoon_bench::load::Load;
use pontoon_bench::nodes::{self, WITHIN};
use pontoon_bench::proc::{self, CpuTime};
use pontoon_bench::runner::Bench;
use pontoon_raftgroup::{Failure, Node};

pub(crate) const KEEPALIVE_NAMES: &[&str] = &["lease-keepalives"];
pub(crate) const MEMORY_NAMES: &[&str] = &["lease-memory"];

const LEASES: u64 = 100_000;
const CLIENTS: usize = 256;
const TTL_SECS: i64 = 3600;
const ROUNDS: usize = 3;
const KEEPALIVES_PER_SECOND: f64 = 50_000.0;
const BYTES_PER_LEASE: f64 = 400.0;

pub(crate) fn keepalives(bench: &Bench<'_>) -> io::Result<Vec<Line>> {
    let mut line = Line::new(
        "lease-keepalives",
        "signs of life per second of 256 clients, 100,000 leases; the reference is the limit",
        "/s",
        Target::AtLeast(1.0),
    );
    let dir = bench.subdir("keepalives")?;
    let runtime = nodes::runtime()?;
    let measured = runtime.block_on(async {
        let member = nodes::alone(&dir, 1).await?;
        let start = Instant::now();
        grant(&member.node, bench.scaled(LEASES), TTL_SECS).await?;
        line.aside("s to grant them", start.elapsed().as_secs_f64());
        let ids: Arc<[i64]> = member.node.leases().into();
        for _ in 0..ROUNDS {
            let (node, ids) = (member.node.clone(), Arc::clone(&ids));
            let cpu = CpuTime::now()?;
            let load = Load::closed(CLIENTS, move |_, chance| {
                let id = ids[chance as usize % ids.len()];
                let node = node.clone();
                async move {
                    let left = node.lease_keep_alive(id, WITHIN).await?;
                    assert_eq!(left, Some(TTL_SECS), "the lease is there");
                    Ok(true)
                }
            });
            let samples = load.run(bench.time(Duration::from_secs(3))).await?;
            line.round(samples.rate(), KEEPALIVES_PER_SECOND);
            line.aside("p99 µs", samples.micros(0.99));
            let micros = cpu.own_since()? * 1e6 / samples.nanos.len() as f64;
            line.aside("µs of processor", micros);
        }
        Ok(())
    });
    runtime.shutdown_timeout(Duration::from_secs(1));
    measured.map(|()| vec![line])
}

pub(crate) fn memory(bench: &Bench<'_>) -> io::Result<Vec<Line>> {
    let role = if bench.small {
        "memory-small"
    } else {
        "memory"
    };
    let figures = child::ask_for_memory(role, bench.dir)?;
    let &[bytes] = figures.as_slice() else {
        return Err(io::Error::other(
            "the child's figures are not what they should be",
        ));
    };
    let mut line = Line::new(
        "lease-memory",
        "growth of RssAnon per lease, 100,000 without keys; the reference is the limit",
        "B",
        Target::AtMost(1.0),
    );
    line.round(bytes, BYTES_PER_LEASE);
    Ok(vec![line])
}

pub(crate) fn be_child(role: &str, dir: &Path) -> io::Result<()> {
    let count = match role {
        "memory-small" => LEASES / 10,
        _ => LEASES,
    };
    let bytes = nodes::runtime()?.block_on(bytes_per_lease(dir, count))?;
    child::answer(&[bytes]);
    Ok(())
}

async fn bytes_per_lease(dir: &Path, count: u64) -> io::Result<f64> {
    let member = nodes::alone(dir, 1).await?;
    let node = &member.node;
    grant(node, count / 10, TTL_SECS).await?;
    for_each(node, node.leases(), |node: Node, id| async move {
        node.lease_revoke(id, WITHIN).await.map(drop)
    })
    .await?;
    let before = settled_bytes().await?;
    grant(node, count, TTL_SECS).await?;
    let after = settled_bytes().await?;
    if node.leases().len() as u64 != count {
        return Err(io::Error::other("leases are missing"));
    }
    Ok((after as f64 - before as f64) / count as f64)
}

/// After what was given up is given back.
async fn settled_bytes() -> io::Result<u64> {
    tokio::time::sleep(Duration::from_secs(2)).await;
    proc::rss_anon_bytes()
}

/// Grants leases, whose ids the cluster chooses.
pub(crate) async fn grant(node: &Node, count: u64, ttl_secs: i64) -> io::Result<()> {
    for_each(node, vec![0; count as usize], move |node: Node, any| async move {
        node.lease_grant(any, ttl_secs, WITHIN).await.map(drop)
    })
    .await
}

/// Has many clients do something once for each lease.
pub(crate) async fn for_each<A, F>(node: &Node, ids: Vec<i64>, ask: A) -> io::Result<()>
where
    A: Fn(Node, i64) -> F + Clone + Send + 'static,
    F: Future<Output = Result<(), Failure>> + Send + 'static,
{
    let (ids, next): (Arc<[i64]>, _) = (ids.into(), Arc::new(AtomicUsize::new(0)));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let (node, ids, next) = (node.clone(), Arc::clone(&ids), Arc::clone(&next));
            let ask = ask.clone();
            tokio::spawn(async move {
                while let Some(id) = ids.get(next.fetch_add(1, Ordering::Relaxed)) {
                    ask(node.clone(), *id).await?;
                }
                Ok::<_, Failure>(())
            })
        })
        .collect();
    for client in clients {
        let done = client.await.map_err(io::Error::other)?;
        done.map_err(io::Error::other)?;
    }
    Ok(())
}
