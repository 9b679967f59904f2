//! A control plane of N nodes, as its store sees it: what kube-apiserver asks
//! for N kubelets, for pods that come and go, and for who lists and watches.
//!
//! Kept true: rates are those of a cluster of that size, and time is never
//! compressed. All keys lie below a prefix of our own, so that a store with a
//! real cluster in it isn't harmed; its history is compacted, though.
//!
//! The arithmetic of the mix is in [`Cluster::rates`] and in `bench/README.md`.

mod actors;
mod objects;
mod prepare;
mod ramp;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use rand::rngs::SmallRng;

use super::compaction::Compaction;
use super::watchers::Watched;
use super::workload::Plan;
use actors::Actor;
use objects::Kind;
use prepare::World;
pub use ramp::{Ramp, Step, with_cluster, write_latency};

/// The kinds of requests, and whether each is beside the load.
pub const CLASSES: [(&str, bool); 9] = [
    ("lease renewal", false),
    ("node status", false),
    ("pod write", false),
    ("event", false),
    ("other write", false),
    ("get", false),
    ("list page", false),
    ("lease grant", false),
    ("compact", true),
];

/// Places in [`CLASSES`].
mod class {
    pub(super) const RENEWAL: usize = 0;
    pub(super) const STATUS: usize = 1;
    pub(super) const POD: usize = 2;
    pub(super) const EVENT: usize = 3;
    pub(super) const OTHER: usize = 4;
    pub(super) const GET: usize = 5;
    pub(super) const PAGE: usize = 6;
    pub(super) const GRANT: usize = 7;
    pub(super) const COMPACT: usize = 8;
    /// Those that write for somebody who waits.
    pub(super) const WRITES: std::ops::RangeInclusive<usize> = RENEWAL..=OTHER;
}

/// What one pod costs from its creation to its end.
pub const POD_WRITES: u32 = 8;
/// Reads by the kubelet before it writes a status, and by kube-apiserver before a
/// pod is bound or deleted.
pub const POD_GETS: u32 = 7;
/// Scheduled, pulling, pulled, created, started, killing.
pub const POD_EVENTS: u32 = 6;
/// Endpoint slice and replica set, when it is ready and when it goes.
pub const POD_OTHERS: u32 = 4;
/// Pods behind a service, which has an endpoint slice and a replica set.
const PODS_PER_SERVICE: u64 = 10;
/// Keys of a page, as kubectl and most clients ask for.
const PAGE: i64 = 500;

/// A cluster that is simulated.
#[derive(Debug)]
pub struct Cluster {
    /// Nodes.
    pub nodes: u64,
    /// Pods on each.
    pub pods_per_node: u64,
    /// Pods that are born and die on each in an hour.
    pub pod_churn_per_hour: f64,
    /// Watchers of each resource.
    pub apiservers: usize,
    /// How often a node renews its lease.
    pub renew_every: Duration,
    /// How often a node tells its status when nothing has changed.
    pub status_every: Duration,
    /// How often somebody lists all pods and all nodes.
    pub list_every: Duration,
    /// How often the history is compacted.
    pub compact_every: Duration,
    /// How long events live.
    pub event_ttl_secs: i64,
    /// What all keys begin with.
    pub prefix: String,
    world: Mutex<Option<Arc<World>>>,
}

impl Cluster {
    /// A cluster with Kubernetes' defaults.
    #[must_use]
    pub fn new(nodes: u64, prefix: &str) -> Self {
        Self {
            nodes,
            pods_per_node: 10,
            pod_churn_per_hour: 12.0,
            apiservers: 1,
            renew_every: Duration::from_secs(10),
            status_every: Duration::from_secs(300),
            list_every: Duration::from_secs(60),
            compact_every: Duration::from_secs(300),
            event_ttl_secs: 3600,
            prefix: prefix.to_owned(),
            world: Mutex::new(None),
        }
    }

    /// The same with other nodes.
    #[must_use]
    pub fn with_nodes(&self, nodes: u64) -> Self {
        Self {
            nodes,
            prefix: self.prefix.clone(),
            world: Mutex::new(None),
            ..*self
        }
    }

    /// Says what can't be.
    pub fn check(&self) -> Result<(), String> {
        if !(1..1_000_000).contains(&self.nodes) {
            return Err("there must be 1 to 999,999 nodes".to_owned());
        }
        if self.pods_per_node > 1000 {
            return Err("a node has 1000 pods at most".to_owned());
        }
        if !(0.0..=1e6).contains(&self.pod_churn_per_hour) {
            return Err("the churn of pods must be 0 to 1,000,000 per hour".to_owned());
        }
        Ok(())
    }

    /// Requests per second by kind: what the mix comes to, without pages.
    #[must_use]
    pub fn rates(&self) -> [(&'static str, f64); 6] {
        let nodes = self.nodes as f64;
        let pods = nodes * self.pod_churn_per_hour / 3600.0;
        let each = |class: usize, rate: f64| (CLASSES[class].0, rate);
        [
            each(class::RENEWAL, nodes / self.renew_every.as_secs_f64()),
            each(class::STATUS, nodes / self.status_every.as_secs_f64()),
            each(class::POD, pods * f64::from(POD_WRITES)),
            each(class::EVENT, pods * f64::from(POD_EVENTS)),
            each(class::OTHER, pods * f64::from(POD_OTHERS)),
            each(class::GET, pods * f64::from(POD_GETS)),
        ]
    }

    fn pods(&self) -> u64 {
        self.nodes * self.pods_per_node
    }

    fn services(&self) -> u64 {
        self.pods().div_ceil(PODS_PER_SERVICE).max(1)
    }

    fn key(&self, kind: Kind, id: u64) -> Bytes {
        format!(
            "{}/registry/{}{}",
            self.prefix,
            kind.folder(),
            kind.name(id)
        )
        .into()
    }

    /// The first and the last key of a resource.
    fn range(&self, kind: Kind) -> (Bytes, Bytes) {
        let first = format!("{}/registry/{}", self.prefix, kind.folder());
        let end = prefix_end(&first);
        (first.into(), end)
    }

    /// What its apiservers watch.
    #[must_use]
    pub fn watched(&self) -> Vec<Watched> {
        let watched = |kind: Kind| {
            let (first, end) = self.range(kind);
            Watched {
                first,
                end,
                topic: kind as usize,
                as_apiserver: true,
            }
        };
        let each = || Kind::ALL.into_iter().map(watched);
        (0..self.apiservers).flat_map(|_| each()).collect()
    }

    /// How its history is compacted.
    #[must_use]
    pub fn compaction(&self) -> Compaction {
        Compaction {
            every: self.compact_every,
            class: class::COMPACT,
            agreed_by: Some(format!("{}/compact_rev_key", self.prefix).into()),
        }
    }

    /// One of those who ask for it: the first lists, the others have nodes.
    pub(super) fn client(
        self: &Arc<Self>,
        plan: &Plan,
        number: usize,
        rng: SmallRng,
    ) -> impl super::workload::Client + use<> {
        let world = self.world.lock().clone().expect("it is prepared");
        Actor::new(self.clone(), world, plan, number, rng)
    }
}

impl fmt::Display for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} nodes with {} pods each, {} pods per node and hour come and go, watched by {} apiservers",
            self.nodes, self.pods_per_node, self.pod_churn_per_hour, self.apiservers
        )
    }
}

/// The first key behind all that begin so; what we begin with doesn't end in 0xff.
fn prefix_end(prefix: &str) -> Bytes {
    let mut end = prefix.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end.into()
}
