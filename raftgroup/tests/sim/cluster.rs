//! A cluster of nodes in one thread: a seed decides all that happens.
//!
//! Kept true: a node that was ended has no effect on the one that is started
//! in its place. That one has a copy of the disk, another connection to the
//! network and other chances.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pontoon_raftgroup::{
    Config, FormatVersion, GroupId, Node, NodeId, RangeMap, Scope, SimNetwork, Timing,
};
use pontoon_wal::disk::Disk;
use pontoon_wal::disk::sim::{Rng, SimClock, SimDisk};
use tokio::sync::Notify;

/// Runs a simulation to its end.
pub(crate) fn simulate<T>(run: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    tokio::task::LocalSet::new().block_on(&runtime, async {
        pontoon_wal::disk::sim::host();
        run.await
    })
}

/// What a cluster is made of.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) nodes: u64,
    pub(crate) splits: Vec<Bytes>,
    /// Of each group but the root group; 0: one on every node.
    pub(crate) replicas: u64,
    pub(crate) log_entries_kept: u64,
    pub(crate) log_bytes_max: u64,
    pub(crate) log_kept_bytes: u64,
    pub(crate) quiet_after: Duration,
    /// How long a disk may hang before its node exits.
    pub(crate) stall_max: Duration,
    /// Whether bits that flip in a tree are found by the next read.
    pub(crate) volatile: bool,
    /// How long each node's seconds are, in percent.
    pub(crate) seconds: Vec<u32>,
}

impl Shape {
    pub(crate) fn new(nodes: u64, splits: &[&'static str]) -> Self {
        Self {
            nodes,
            splits: splits
                .iter()
                .map(|key| Bytes::from_static(key.as_bytes()))
                .collect(),
            replicas: 0,
            log_entries_kept: 10_000,
            log_bytes_max: 256 << 20,
            log_kept_bytes: 384 << 20,
            quiet_after: Duration::from_secs(5),
            stall_max: Duration::from_secs(60),
            volatile: false,
            seconds: Vec::new(),
        }
    }

    /// The first members.
    pub(crate) fn ids(&self) -> impl Iterator<Item = NodeId> + use<> {
        (1..=self.nodes).map(NodeId)
    }
}

/// How a node ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// What was not synced may be gone, or torn.
    PowerCut,
    /// What was not synced is there, and still not synced.
    Kill,
}

/// A cluster, with those of its nodes that run.
pub(crate) struct Cluster {
    pub(crate) network: Arc<SimNetwork>,
    pub(crate) shape: Shape,
    members: RefCell<BTreeMap<NodeId, Member>>,
    seed: u64,
    starts: Cell<u64>,
}

struct Member {
    disk: SimDisk,
    running: Option<Running>,
    /// Whom it is told of when it is opened, itself too.
    told: BTreeSet<NodeId>,
    /// Whether it came to a cluster that was there.
    joined: bool,
    /// It is not started again.
    gone: bool,
    /// The formats that the release knows with which it is started next.
    release: FormatVersion,
}

impl Member {
    fn new(seed: u64, id: NodeId, shape: &Shape, told: BTreeSet<NodeId>, joined: bool) -> Self {
        let disk = SimDisk::new(seed ^ id.0);
        disk.set_volatile(shape.volatile);
        Self {
            disk,
            running: None,
            told,
            joined,
            gone: false,
            release: FormatVersion::NEWEST,
        }
    }
}

/// A node between its start and its end.
#[derive(Clone)]
pub(crate) struct Running {
    pub(crate) node: Node,
    /// Counts the starts of all nodes.
    pub(crate) start: u64,
    pub(crate) release: FormatVersion,
    scope: Scope,
    ended: Rc<Ended>,
}

/// Whether a node has ended; those who wait for it hear in the order in which
/// they began to wait.
#[derive(Default)]
struct Ended {
    has: Cell<bool>,
    news: Notify,
}

impl Running {
    /// Does something with the node; `None` if it ends meanwhile.
    pub(crate) async fn during<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let ends = self.ended.news.notified();
        if self.ended.has.get() {
            return None;
        }
        tokio::select! {
            biased;
            () = ends => None,
            result = work => Some(result),
        }
    }

    /// Puts each turn of the node's tasks off by up to `longest`.
    pub(crate) fn starve(&self, longest: Duration) {
        self.scope.starve(longest);
    }
}

impl Cluster {
    /// A cluster of which no node runs yet.
    pub(crate) fn new(seed: u64, shape: Shape) -> Self {
        let member = |id| Member::new(seed, id, &shape, shape.ids().collect(), false);
        Self {
            network: SimNetwork::new(seed),
            members: RefCell::new(shape.ids().map(|id| (id, member(id))).collect()),
            shape,
            seed,
            starts: Cell::new(0),
        }
    }

    /// A cluster of which all nodes run.
    pub(crate) async fn start(seed: u64, nodes: u64, splits: &[&'static str]) -> Self {
        let cluster = Self::new(seed, Shape::new(nodes, splits));
        for id in cluster.shape.ids() {
            cluster.start_node(id).await.expect("it opens");
        }
        cluster
    }

    /// A place for a member that the others take in; it doesn't run yet.
    pub(crate) fn add(&self) -> NodeId {
        let mut members = self.members.borrow_mut();
        let id = NodeId(members.keys().next_back().map_or(1, |last| last.0 + 1));
        let there = members.iter().filter(|(_, member)| !member.gone);
        let told = there.map(|(id, _)| *id).chain([id]).collect();
        let member = Member::new(self.seed, id, &self.shape, told, true);
        members.insert(id, member);
        id
    }

    /// Ends a member that won't come back.
    pub(crate) fn lose(&self, id: NodeId) {
        self.end(id, Ending::PowerCut);
        self.members
            .borrow_mut()
            .get_mut(&id)
            .expect("a member")
            .gone = true;
    }

    /// Those that are not gone, whether they run or not.
    pub(crate) fn ids(&self) -> Vec<NodeId> {
        let members = self.members.borrow();
        let there = members.iter().filter(|(_, member)| !member.gone);
        there.map(|(id, _)| *id).collect()
    }

    /// The release with which a member is started next.
    pub(crate) fn release(&self, id: NodeId) -> FormatVersion {
        self.members.borrow()[&id].release
    }

    pub(crate) fn set_release(&self, id: NodeId, release: FormatVersion) {
        let mut members = self.members.borrow_mut();
        members.get_mut(&id).expect("a member").release = release;
    }

    pub(crate) fn is_gone(&self, id: NodeId) -> bool {
        self.members.borrow()[&id].gone
    }

    /// One of those that are not gone.
    pub(crate) fn any(&self, rng: &mut Rng) -> NodeId {
        let ids = self.ids();
        ids[rng.below(ids.len() as u64) as usize]
    }

    /// The groups that some node has a replica of.
    pub(crate) fn groups(&self) -> BTreeSet<GroupId> {
        let running = self.all_running().into_iter();
        let status = running.flat_map(|(_, running)| running.node.status());
        status.map(|status| status.group).collect()
    }

    /// The newest map that some node knows.
    pub(crate) fn map(&self) -> Option<Arc<RangeMap>> {
        let running = self.all_running().into_iter();
        let maps = running.filter_map(|(_, running)| running.node.map());
        maps.max_by_key(|map| map.version)
    }

    pub(crate) async fn start_node(&self, id: NodeId) -> Result<(), String> {
        self.starts.set(self.starts.get() + 1);
        let start = self.starts.get();
        let chance = self.seed.wrapping_mul(1_000_003).wrapping_add(start);
        let config = self.config(id);
        let release = config.newest_format;
        let scope = Scope::new(chance);
        let disk: Arc<dyn Disk> = Arc::new(self.disk(id));
        let clock = Arc::new(SimClock::new(chance));
        let network = self.network.node(id);
        let node = Node::open(config, disk, clock, network, scope.clone()).await;
        let node = match node {
            Ok(node) => node,
            Err(error) => {
                self.network.kill(id);
                scope.end();
                return Err(error.to_string());
            }
        };
        let mut members = self.members.borrow_mut();
        let member = members.get_mut(&id).expect("a member");
        member.running = Some(Running {
            node,
            start,
            release,
            scope,
            ended: Rc::default(),
        });
        Ok(())
    }

    fn config(&self, id: NodeId) -> Config {
        let members = self.members.borrow();
        let member = &members[&id];
        let addresses = member.told.iter().map(|id| (*id, String::new()));
        let mut config = Config::new(id, 7, "/data", addresses.collect());
        config.join = member.joined;
        config.newest_format = member.release;
        config.cluster_version_max = member.release;
        let seconds = self
            .shape
            .seconds
            .get(id.0 as usize - 1)
            .copied()
            .unwrap_or(100);
        let Timing {
            heartbeat,
            election_min,
            election_max,
        } = config.timing;
        config.timing = Timing {
            heartbeat: heartbeat * seconds / 100,
            election_min: election_min * seconds / 100,
            election_max: election_max * seconds / 100,
        };
        config.second = config.second * seconds / 100;
        config.quiet_after = self.shape.quiet_after * seconds / 100;
        config.stall_max = self.shape.stall_max;
        config.splits = self.shape.splits.clone();
        config.replicas = self.shape.replicas;
        config.log_entries_kept = self.shape.log_entries_kept;
        config.log_bytes_max = self.shape.log_bytes_max;
        config.log_kept_bytes = self.shape.log_kept_bytes;
        config.segment_bytes = 256 << 10;
        config
    }

    pub(crate) fn node(&self, id: u64) -> Node {
        self.running(NodeId(id)).expect("it runs").node
    }

    pub(crate) fn is_running(&self, id: NodeId) -> bool {
        self.members.borrow()[&id].running.is_some()
    }

    pub(crate) fn running(&self, id: NodeId) -> Option<Running> {
        self.members.borrow()[&id].running.clone()
    }

    /// Those that run.
    pub(crate) fn all_running(&self) -> Vec<(NodeId, Running)> {
        let members = self.members.borrow();
        let running = members
            .iter()
            .map(|(id, member)| (*id, member.running.clone()));
        running
            .filter_map(|(id, running)| Some((id, running?)))
            .collect()
    }

    pub(crate) fn disk(&self, id: NodeId) -> SimDisk {
        self.members.borrow()[&id].disk.clone()
    }

    /// Ends a node at once, if it runs; also one that could not be opened.
    pub(crate) fn end(&self, id: NodeId, ending: Ending) {
        let mut members = self.members.borrow_mut();
        let member = members.get_mut(&id).expect("a member");
        self.network.kill(id);
        if let Some(running) = member.running.take() {
            running.ended.has.set(true);
            running.ended.news.notify_waiters();
            running.scope.end();
        }
        let disk = match ending {
            Ending::PowerCut => member
                .disk
                .power_cut(self.seed ^ self.starts.get() ^ id.0 << 32),
            Ending::Kill => member.disk.process_kill(),
        };
        // What hung there goes on, with no effect on anybody.
        std::mem::replace(&mut member.disk, disk).resume();
    }
}
