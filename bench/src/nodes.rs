//! Nodes in this process, on the real disk, and clients that keep them busy.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use pontoon_engine::{Answer, Compare, KeyRange, Op, Operand, Put, Relation, Request, Txn};
use pontoon_raftgroup::{
    Config, Failure, GroupId, Member as Known, Network, Node, NodeId, Plain, Scope, SimNetwork,
    TcpConfig, TcpNetwork,
};
use pontoon_wal::disk::{Backend, Disk, RealDisk};
use pontoon_wal::{Clock, SystemClock};
use tokio::runtime::Runtime;

use crate::load::Load;
use crate::proc::CpuTime;
use crate::samples::Samples;

/// How long a request may take before a run fails.
pub const WITHIN: Duration = Duration::from_secs(30);

/// How long a cluster may take until it serves.
const PATIENCE: Duration = Duration::from_secs(120);

/// The runtime that nodes and clients share.
pub fn runtime() -> io::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
}

/// A key; `place` (0 to 65535) says where between the first and the last.
#[must_use]
pub fn key(place: u16) -> Bytes {
    format!("key/{place:04x}").into()
}

/// The place of the first key of a group, if the keys are cut evenly.
#[must_use]
pub fn place(group: u64, groups: u64) -> u16 {
    (group * 0x1_0000 / groups) as u16
}

fn splits(groups: u64) -> Vec<Bytes> {
    (1..groups).map(|group| key(place(group, groups))).collect()
}

/// A member that can be killed.
pub struct Member {
    /// It.
    pub node: Node,
    scope: Scope,
}

impl Member {
    /// Ends all its tasks wherever they are, those that hold its connections too.
    pub fn kill(&self) {
        self.scope.end();
    }
}

/// One node without others, that serves.
pub async fn alone(dir: &Path, groups: u64) -> io::Result<Member> {
    let members = BTreeMap::from([(NodeId(1), String::new())]);
    let network = SimNetwork::new(1).node(NodeId(1));
    let config = config(dir, NodeId(1), members, groups);
    let member = open(config, network).await?;
    serves(std::slice::from_ref(&member), groups).await?;
    Ok(member)
}

/// Nodes that are connected over loopback, and serve.
pub async fn together(dir: &Path, count: u64, groups: u64) -> io::Result<Vec<Member>> {
    together_with(dir, count, groups, |_| {}).await
}

/// The same, set up in another way.
pub async fn together_with(
    dir: &Path,
    count: u64,
    groups: u64,
    set_up: impl Fn(&mut Config),
) -> io::Result<Vec<Member>> {
    let mut networks = Vec::new();
    for id in (1..=count).map(NodeId) {
        networks.push((id, listen(id)?));
    }
    let addresses: BTreeMap<_, _> = networks
        .iter()
        .map(|(id, network)| (*id, network.address().to_string()))
        .collect();
    let mut members = Vec::new();
    for (id, network) in networks {
        let mut config = config(dir, id, addresses.clone(), groups);
        set_up(&mut config);
        members.push(open(config, network).await?);
    }
    serves(&members, groups).await?;
    Ok(members)
}

/// One more for nodes that are connected over loopback: it only listens.
pub async fn join(dir: &Path, beside: &Node) -> io::Result<Member> {
    let members = beside.members();
    let id = NodeId(members.len() as u64 + 1);
    let network = listen(id)?;
    let address = network.address().to_string();
    let known = Known {
        address: address.clone(),
        learner: true,
    };
    let added = beside.member_add(id, known, WITHIN).await;
    added.map_err(io::Error::other)?;
    let members = members.into_iter().map(|(id, known)| (id, known.address));
    let mut config = config(dir, id, members.chain([(id, address)]).collect(), 1);
    config.join = true;
    open(config, network).await
}

fn listen(id: NodeId) -> io::Result<Arc<TcpNetwork>> {
    let config = TcpConfig::new(id, 1, SystemClock::default().random());
    TcpNetwork::bind("127.0.0.1:0", config, Plain)
}

fn config(dir: &Path, id: NodeId, members: BTreeMap<NodeId, String>, groups: u64) -> Config {
    let mut config = Config::new(id, 1, dir.join(id.to_string()), members);
    config.splits = splits(groups);
    config
}

async fn open(config: Config, network: Arc<dyn Network>) -> io::Result<Member> {
    std::fs::create_dir_all(&config.dir)?;
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::new(Backend::Auto, &config.dir)?);
    let clock = Arc::new(SystemClock::default());
    let scope = Scope::new(clock.random());
    let node = Node::open(config, disk, clock, network, scope.clone()).await;
    let node = node.map_err(|error| io::Error::other(error.to_string()))?;
    Ok(Member { node, scope })
}

/// Returns when every member knows the leader of every group.
async fn serves(members: &[Member], groups: u64) -> io::Result<()> {
    let start = Instant::now();
    let knows = |member: &Member| {
        let status = member.node.status();
        status.len() as u64 == groups && status.iter().all(|replica| replica.leader.is_some())
    };
    while !members.iter().all(knows) {
        if start.elapsed() > PATIENCE {
            return Err(io::Error::other("the nodes don't come to serve"));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

/// The member that leads a group, by its place among them.
#[must_use]
pub fn leader(members: &[Member], group: GroupId) -> Option<usize> {
    members.iter().position(|member| {
        let status = member.node.status();
        status
            .iter()
            .any(|replica| replica.group == group && replica.leads)
    })
}

/// Gives the leadership of a group to the member at `to`.
pub async fn place_leader(members: &[Member], group: GroupId, to: usize) -> io::Result<()> {
    let start = Instant::now();
    loop {
        match leader(members, group) {
            Some(at) if at == to => return Ok(()),
            Some(at) => {
                members[at]
                    .node
                    .transfer(group, members[to].node.id())
                    .await
            }
            None => {}
        }
        if start.elapsed() > PATIENCE {
            return Err(io::Error::other("a leadership isn't taken over"));
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Puts 256 bytes.
pub async fn put(node: &Node, key: Bytes, within: Duration) -> Result<(), Failure> {
    static VALUE: [u8; 256] = [7; 256];
    let request = Request::Put(Put {
        key,
        value: Bytes::from_static(&VALUE),
        ..Put::default()
    });
    match node.request(request, within).await? {
        Answer::Put(_) => Ok(()),
        other => panic!("a put was answered with {other:?}"),
    }
}

/// Compares one key and puts 256 bytes at both, as a transaction that always
/// succeeds.
pub async fn txn(node: &Node, keys: [Bytes; 2], within: Duration) -> Result<(), Failure> {
    static VALUE: [u8; 256] = [7; 256];
    let compare = Compare {
        keys: KeyRange::one(keys[0].clone()),
        operand: Operand::Version(-1),
        relation: Relation::Greater,
    };
    let put = |key| {
        Op::Put(Put {
            key,
            value: Bytes::from_static(&VALUE),
            ..Put::default()
        })
    };
    let request = Request::Txn(Txn {
        compare: vec![compare],
        success: keys.map(put).to_vec(),
        failure: Vec::new(),
    });
    match node.request(request, within).await? {
        Answer::Txn(answer) if answer.succeeded => Ok(()),
        other => panic!("a transaction was answered with {other:?}"),
    }
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
    /// The share of the time in which the first node's log had a commit under way.
    pub log_busy: f64,
}

impl Clients {
    /// Each puts at keys all over, one after the other, to the nodes in turn.
    pub async fn put(self, members: &[Member]) -> io::Result<Done> {
        let log = members[0].node.log_counters();
        let log_busy = log.busy.load(Ordering::Relaxed);
        let cpu = CpuTime::now()?;
        let nodes: Vec<_> = members.iter().map(|member| member.node.clone()).collect();
        let load = Load::closed(self.count, move |client, chance| {
            let node = nodes[client % nodes.len()].clone();
            async move {
                put(&node, key((chance >> 16) as u16), WITHIN).await?;
                Ok(true)
            }
        });
        let puts = load.run(self.time).await?;
        let cpu = cpu.own_since()?;
        let log_busy = log.busy.load(Ordering::Relaxed) - log_busy;
        Ok(Done {
            log_busy: log_busy as f64 / 1e9 / puts.elapsed.as_secs_f64(),
            micros_per_put: cpu * 1e6 / puts.nanos.len() as f64,
            processors: cpu / puts.elapsed.as_secs_f64(),
            puts,
        })
    }
}
