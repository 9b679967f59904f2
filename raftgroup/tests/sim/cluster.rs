//! A cluster of nodes in one thread: a seed decides all that happens.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use pontoon_raftgroup::{Config, Node, NodeId, Scope, SimNetwork};
use pontoon_wal::disk::Disk;
use pontoon_wal::disk::sim::{SimClock, SimDisk};

/// Runs a simulation to its end.
pub(crate) fn simulate<T>(run: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    tokio::task::LocalSet::new().block_on(&runtime, run)
}

/// A cluster, with those of its nodes that run.
pub(crate) struct Cluster {
    pub(crate) network: Arc<SimNetwork>,
    pub(crate) splits: Vec<Bytes>,
    members: BTreeMap<NodeId, Member>,
    seed: u64,
    starts: u64,
}

struct Member {
    disk: SimDisk,
    running: Option<(Node, Scope)>,
}

impl Cluster {
    pub(crate) async fn start(seed: u64, nodes: u64, splits: &[&'static str]) -> Self {
        let members = (1..=nodes).map(|id| {
            let member = Member {
                disk: SimDisk::new(seed ^ id),
                running: None,
            };
            (NodeId(id), member)
        });
        let mut cluster = Self {
            network: SimNetwork::new(seed),
            splits: splits
                .iter()
                .map(|key| Bytes::from_static(key.as_bytes()))
                .collect(),
            members: members.collect(),
            seed,
            starts: 0,
        };
        for id in 1..=nodes {
            cluster.start_node(NodeId(id)).await;
        }
        cluster
    }

    pub(crate) async fn start_node(&mut self, id: NodeId) {
        self.starts += 1;
        let chance = self.seed.wrapping_mul(1_000_003).wrapping_add(self.starts);
        let addresses = self.members.keys().map(|id| (*id, String::new())).collect();
        let mut config = Config::new(id, 7, "/data", addresses);
        config.splits = self.splits.clone();
        config.segment_bytes = 256 << 10;
        let scope = Scope::new(chance);
        let member = self.members.get_mut(&id).expect("a member");
        let disk: Arc<dyn Disk> = Arc::new(member.disk.clone());
        let clock = Arc::new(SimClock::new(chance));
        let node = Node::open(config, disk, clock, self.network.node(id), scope.clone()).await;
        member.running = Some((node.expect("it opens"), scope));
    }

    pub(crate) fn node(&self, id: u64) -> &Node {
        let member = &self.members[&NodeId(id)];
        &member.running.as_ref().expect("it runs").0
    }

    /// Cuts a node's power: what was not synced may be gone.
    pub(crate) fn crash(&mut self, id: NodeId) {
        let member = self.members.get_mut(&id).expect("a member");
        let Some((node, scope)) = member.running.take() else {
            return;
        };
        self.network.kill(id);
        scope.end();
        drop(node);
        member.disk = member.disk.power_cut(self.seed ^ self.starts);
    }
}
