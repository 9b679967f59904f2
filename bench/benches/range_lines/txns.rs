//! Transactions over two groups, and the same in one, on one node.
//!
//! Kept true: clients have keys of their own, so that nobody waits for a key;
//! loads that are compared take turns on the same node, in either order.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use pontoon_bench::lines::{Line, Target};
use pontoon_bench::load::Load;
use pontoon_bench::nodes::{self, WITHIN};
use pontoon_bench::runner::Bench;
use pontoon_bench::samples::Samples;
use pontoon_raftgroup::{Failure, Node};

pub(crate) const NAMES: &[&str] = &["txn-latency", "txn-rate", "txn-beside"];

const ROUNDS: usize = 4;
const GROUPS: u64 = 8;
/// Keys that a client has in each group.
const KEYS: usize = 32;

/// What a client asks for.
#[derive(Clone, Copy)]
enum Kind {
    /// Puts; one in a hundred is a transaction, which doesn't count.
    PutsAndSingle,
    PutsAndCross,
    /// Transactions within a group.
    Single,
    /// Transactions over two groups.
    Cross,
}

pub(crate) fn measure(bench: &Bench<'_>) -> io::Result<Vec<Line>> {
    let mut latency = Line::new(
        "txn-latency",
        "p50 of the only client's transactions, over two groups and in one",
        "µs",
        Target::AtMost(3.0),
    );
    let mut rate = Line::new(
        "txn-rate",
        "transactions per second of 64 clients, over two groups and in one",
        "/s",
        Target::AtLeast(0.25),
    );
    let mut beside = Line::new(
        "txn-beside",
        "puts per second of 256 clients, with a hundredth of transactions over two groups, and in one",
        "/s",
        Target::AtLeast(0.95),
    );
    let dir = bench.subdir("txns")?;
    let runtime = nodes::runtime()?;
    let measured = runtime.block_on(async {
        let member = nodes::alone(&dir, GROUPS).await?;
        for round in 0..ROUNDS {
            let turns = async |clients, ours, reference| {
                let kinds = [ours, reference];
                let mut measured = [const { None }; 2];
                for turn in [round % 2, 1 - round % 2] {
                    let node = &member.node;
                    measured[turn] = Some(load(bench, node, clients, kinds[turn]).await?);
                }
                let [Some(ours), Some(reference)] = measured else {
                    return Err(io::Error::other("a load is missing"));
                };
                Ok((ours, reference))
            };
            let (ours, reference) = turns(1, Kind::Cross, Kind::Single).await?;
            latency.round(ours.micros(0.5), reference.micros(0.5));
            latency.aside("p99 µs", ours.micros(0.99));
            latency.aside("p99 µs in one group", reference.micros(0.99));
            latency.disturbed += usize::from(reference.held_up());
            let (ours, reference) = turns(64, Kind::Cross, Kind::Single).await?;
            rate.round(ours.rate(), reference.rate());
            rate.aside("p50 µs", ours.micros(0.5));
            rate.aside("p50 µs in one group", reference.micros(0.5));
            let (ours, reference) = turns(256, Kind::PutsAndCross, Kind::PutsAndSingle).await?;
            beside.round(ours.rate(), reference.rate());
            beside.aside("p99 µs", ours.micros(0.99));
            beside.aside("p99 µs in one group", reference.micros(0.99));
        }
        Ok(())
    });
    runtime.shutdown_timeout(Duration::from_secs(1));
    measured.map(|()| vec![latency, rate, beside])
}

async fn load(bench: &Bench<'_>, node: &Node, clients: usize, kind: Kind) -> io::Result<Samples> {
    let start = || {
        let node = node.clone();
        Load::closed(clients, move |client, chance| {
            ask(node.clone(), kind, client, chance)
        })
    };
    // What the load before it left to do is done, and every path was taken.
    start().run(bench.time(Duration::from_millis(600))).await?;
    start().run(bench.time(Duration::from_secs(3))).await
}

async fn ask(node: Node, kind: Kind, client: usize, chance: u32) -> Result<bool, Failure> {
    let group = u64::from(chance >> 29);
    let other = (group + 1 + u64::from(chance >> 16) % (GROUPS - 1)) % GROUPS;
    let at = (chance >> 8) as usize % KEYS;
    let first = key(group, client, at);
    let puts = matches!(kind, Kind::PutsAndSingle | Kind::PutsAndCross);
    if puts && !chance.is_multiple_of(100) {
        nodes::put(&node, first, WITHIN).await?;
        return Ok(true);
    }
    let second = match kind {
        Kind::Single | Kind::PutsAndSingle => key(group, client, (at + 1) % KEYS),
        Kind::Cross | Kind::PutsAndCross => key(other, client, at),
    };
    nodes::txn(&node, [first, second], WITHIN).await?;
    Ok(!puts)
}

fn key(group: u64, client: usize, at: usize) -> Bytes {
    nodes::key(nodes::place(group, GROUPS) + (client * KEYS + at) as u16)
}
