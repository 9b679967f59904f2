//! Nodes in this process, on the real disk, and clients that keep them busy.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use pontoon_engine::{Answer, Put, Request};
use pontoon_raftgroup::{Config, Network, Node, NodeId, Scope, SimNetwork};
use pontoon_wal::disk::{Backend, Disk, RealDisk};
use pontoon_wal::{Clock, SystemClock};

use crate::proc::CpuTime;
use crate::samples::Samples;

/// How long a request may take before a run fails.
const WITHIN: Duration = Duration::from_secs(30);

/// Split keys that cut the keys of [`Clients`] evenly.
#[must_use]
pub fn splits(groups: u64) -> Vec<Bytes> {
    let cut = |group: u64| format!("key/{:04x}", group * 0x1_0000 / groups).into();
    (1..groups).map(cut).collect()
}

/// One node without others.
pub async fn alone(dir: &Path, groups: u64) -> io::Result<Node> {
    let members = BTreeMap::from([(NodeId(1), String::new())]);
    let network = SimNetwork::new(1).node(NodeId(1));
    open(dir, NodeId(1), members, groups, network).await
}

/// One node among others.
pub async fn open(
    dir: &Path,
    id: NodeId,
    members: BTreeMap<NodeId, String>,
    groups: u64,
    network: Arc<dyn Network>,
) -> io::Result<Node> {
    let dir = dir.join(id.to_string());
    std::fs::create_dir_all(&dir)?;
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::new(Backend::Auto, &dir)?);
    let clock = Arc::new(SystemClock::default());
    let scope = Scope::new(clock.random());
    let mut config = Config::new(id, 1, dir, members);
    config.splits = splits(groups);
    let node = Node::open(config, disk, clock, network, scope).await;
    node.map_err(|error| io::Error::other(error.to_string()))
}

/// What clients do, all at once.
#[derive(Clone, Copy, Debug)]
pub struct Clients {
    /// How many there are.
    pub count: usize,
    /// For how long.
    pub time: Duration,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Done {
    /// How long each put took.
    pub puts: Samples,
    /// Processor time of this process for each put, in microseconds.
    pub micros_per_put: f64,
    /// How many processors this process kept busy.
    pub processors: f64,
}

impl Clients {
    /// Each puts 256 bytes at keys all over, one after the other, to the
    /// nodes in turn.
    pub async fn put(self, nodes: &[Node]) -> io::Result<Done> {
        let stop = Arc::new(AtomicBool::new(false));
        let failures = Arc::new(AtomicU64::new(0));
        let value = Bytes::from(vec![7; 256]);
        let start = Instant::now();
        let cpu = CpuTime::now()?;
        let clients = (0..self.count).map(|client| {
            let node = nodes[client % nodes.len()].clone();
            let (stop, failures, value) = (Arc::clone(&stop), Arc::clone(&failures), value.clone());
            tokio::spawn(async move {
                let mut samples = Samples::default();
                let mut chance = client as u64 + 1;
                while !stop.load(Ordering::Relaxed) {
                    chance = chance
                        .wrapping_mul(0x5851_f42d_4c95_7f2d)
                        .wrapping_add(0x14057b7e);
                    let key = format!("key/{:04x}", (chance >> 48) as u16);
                    let request = Request::Put(Put {
                        key: key.into(),
                        value: value.clone(),
                        ..Put::default()
                    });
                    let asked = Instant::now();
                    match node.request(request, WITHIN).await {
                        Ok(Answer::Put(_)) => samples.add(asked.elapsed()),
                        _ => {
                            failures.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
                samples
            })
        });
        let clients: Vec<_> = clients.collect();
        tokio::time::sleep(self.time).await;
        stop.store(true, Ordering::Relaxed);
        let mut puts = Samples::default();
        for client in clients {
            puts.nanos
                .extend(client.await.map_err(io::Error::other)?.nanos);
        }
        if failures.load(Ordering::Relaxed) > 0 {
            return Err(io::Error::other("some puts failed"));
        }
        puts.elapsed = start.elapsed();
        let cpu = cpu.own_since()?;
        Ok(Done {
            micros_per_put: cpu * 1e6 / puts.nanos.len() as f64,
            processors: cpu / puts.elapsed.as_secs_f64(),
            puts,
        })
    }
}
