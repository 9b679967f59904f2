//! A cluster of nodes in one thread, and short words for what clients do.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pontoon_engine::{
    Answer, Compare, DeleteRange, KeyRange, Op, Operand, Put, Range, RangeAnswer, Relation,
    Request, Revision, Txn, TxnAnswer,
};
use pontoon_raftgroup::{
    Config, Failure, GroupId, Node, NodeFailure, NodeId, ReplicaStatus, Scope, SimNetwork,
};
use pontoon_wal::disk::sim::{SimClock, SimDisk};
use tokio::time::{Instant, sleep, timeout};

/// For what is expected to happen.
pub(crate) const LONG: Duration = Duration::from_secs(30);

/// Less than any election takes.
pub(crate) const SHORT: Duration = Duration::from_millis(500);

pub(crate) const ROOT: GroupId = GroupId::ROOT;

/// Runs a scenario to its end.
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

pub(crate) async fn pause(millis: u64) {
    sleep(Duration::from_millis(millis)).await;
}

/// Nodes 1, 2, 3 and so on; keys are cut at the given ones.
pub(crate) struct Cluster {
    pub(crate) network: Arc<SimNetwork>,
    seed: u64,
    places: BTreeMap<u64, Place>,
    nodes: BTreeMap<u64, (Node, Scope)>,
}

/// Where a node runs, or ran.
struct Place {
    config: Config,
    disk: SimDisk,
    starts: u64,
}

impl Cluster {
    pub(crate) async fn start(nodes: u64, splits: &[&'static str]) -> Self {
        Self::start_as(1, nodes, splits).await
    }

    pub(crate) async fn start_as(seed: u64, nodes: u64, splits: &[&'static str]) -> Self {
        Self::start_all(seed, nodes, splits, |_| ()).await
    }

    /// With something else than the defaults.
    pub(crate) async fn start_with(
        nodes: u64,
        splits: &[&'static str],
        change: impl Fn(&mut Config),
    ) -> Self {
        Self::start_all(1, nodes, splits, change).await
    }

    async fn start_all(
        seed: u64,
        nodes: u64,
        splits: &[&'static str],
        change: impl Fn(&mut Config),
    ) -> Self {
        let mut cluster = Self {
            network: SimNetwork::new(seed),
            seed,
            places: BTreeMap::new(),
            nodes: BTreeMap::new(),
        };
        for id in 1..=nodes {
            let members = (1..=nodes).map(|id| (NodeId(id), String::new())).collect();
            let mut config = Config::new(NodeId(id), 7, "/data", members);
            config.splits = splits.iter().map(|key| Bytes::from(*key)).collect();
            change(&mut config);
            cluster.open(config).await;
        }
        for group in 0..=splits.len() as u64 {
            cluster.until_led(GroupId(group)).await;
        }
        cluster
    }

    async fn open(&mut self, mut config: Config) {
        let id = config.node.0;
        config.segment_bytes = config.segment_bytes.min(4 << 20);
        let disk = SimDisk::new(self.chance(id));
        let place = Place {
            config,
            disk,
            starts: 0,
        };
        self.places.insert(id, place);
        self.start_again(id).await;
    }

    fn chance(&self, id: u64) -> u64 {
        self.seed.wrapping_mul(1_000_003).wrapping_add(id)
    }

    /// Starts a node that was ended, with what its disk has.
    pub(crate) async fn start_again(&mut self, id: u64) {
        let opened = self.try_again(id, LONG).await;
        opened.expect("it opens in time").expect("it opens");
    }

    /// The same; `None` if it can't be opened in time, and then it is ended.
    pub(crate) async fn try_again(
        &mut self,
        id: u64,
        within: Duration,
    ) -> Option<Result<(), NodeFailure>> {
        let chance = self.chance(id);
        let place = self.places.get_mut(&id).expect("it has one");
        let chance = chance.wrapping_add(place.starts << 32);
        place.starts += 1;
        let (config, disk) = (place.config.clone(), Arc::new(place.disk.clone()));
        let scope = Scope::new(chance);
        let clock = Arc::new(SimClock::new(chance));
        let network = self.network.node(config.node);
        let node = Node::open(config, disk, clock, network, scope.clone());
        match timeout(within, node).await {
            Ok(Ok(node)) => {
                self.nodes.insert(id, (node, scope));
                Some(Ok(()))
            }
            failed => {
                self.network.kill(NodeId(id));
                scope.end();
                failed.ok().map(|opened| opened.map(|_| ()))
            }
        }
    }

    /// A node that doesn't run is another one when it starts again.
    pub(crate) fn change(&mut self, id: u64, change: impl FnOnce(&mut Config)) {
        change(&mut self.places.get_mut(&id).expect("it has one").config);
    }

    /// A node that was taken in starts; it is the next number.
    pub(crate) async fn join(&mut self) -> u64 {
        self.join_with(|_| ()).await
    }

    /// With something else than the defaults.
    pub(crate) async fn join_with(&mut self, change: impl FnOnce(&mut Config)) -> u64 {
        let id = self.places.len() as u64 + 1;
        let known = self.nodes.keys().copied().chain([id]);
        let members = known.map(|id| (NodeId(id), String::new())).collect();
        let mut config = Config::new(NodeId(id), 7, "/data", members);
        config.join = true;
        change(&mut config);
        self.open(config).await;
        id
    }

    pub(crate) fn node(&self, id: u64) -> Node {
        self.nodes[&id].0.clone()
    }

    /// The node that leads a group, as those agree that are asked.
    pub(crate) fn leader(&self, group: GroupId, asked: &[u64]) -> Option<u64> {
        let mut leaders = asked.iter().map(|id| {
            let status = self.nodes[id].0.status();
            let replica = status.iter().find(|replica| replica.group == group)?;
            replica.leader
        });
        let first = leaders.next()??;
        let ready = asked
            .contains(&first.0)
            .then(|| self.node(first.0).status());
        let ready =
            ready.is_none_or(|status| status.iter().any(|one| one.group == group && one.leads));
        (ready && leaders.all(|leader| leader == Some(first))).then_some(first.0)
    }

    pub(crate) fn running(&self) -> Vec<u64> {
        self.nodes.keys().copied().collect()
    }

    /// Those that run and have a group, as the map says; all until it is known.
    fn hosts(&self, group: GroupId) -> Vec<u64> {
        let has = |id: &u64| match self.nodes[id].0.map() {
            Some(map) => map
                .placed(group)
                .is_none_or(|placed| placed.members.contains(&NodeId(*id))),
            None => true,
        };
        self.running().into_iter().filter(has).collect()
    }

    pub(crate) async fn until_led(&self, group: GroupId) -> u64 {
        let mut hosts = self.hosts(group);
        let led = async {
            loop {
                match self.leader(group, &hosts) {
                    Some(leader) if hosts.contains(&leader) => return leader,
                    _ => pause(10).await,
                }
                hosts = self.hosts(group);
            }
        };
        timeout(LONG, led).await.expect("somebody leads")
    }

    /// Waits until some nodes agree who leads, and that one of them does.
    pub(crate) async fn until_led_among(&self, group: GroupId, nodes: &[u64]) -> u64 {
        let led = async {
            loop {
                match self.leader(group, nodes) {
                    Some(leader) if nodes.contains(&leader) => return leader,
                    _ => pause(10).await,
                }
            }
        };
        timeout(LONG, led).await.expect("somebody leads")
    }

    /// Has a node lead a group.
    pub(crate) async fn lead(&self, group: GroupId, by: u64) {
        let moved = async {
            loop {
                let leader = self.until_led(group).await;
                if leader == by {
                    return;
                }
                self.node(leader).transfer(group, NodeId(by)).await;
                pause(100).await;
            }
        };
        timeout(LONG, moved).await.expect("leadership can be moved");
    }

    /// No message passes between the two, either way.
    pub(crate) fn part(&self, one: u64, other: u64) {
        self.network.cut(NodeId(one), NodeId(other));
        self.network.cut(NodeId(other), NodeId(one));
    }

    pub(crate) fn slow(&self, from: u64, to: u64, millis: u64) {
        let extra = Duration::from_millis(millis);
        self.network.set_slow(NodeId(from), NodeId(to), extra);
    }

    /// What is written takes long to be durable.
    pub(crate) fn slow_disk(&self, id: u64, millis: u64) {
        self.disk(id).slow_syncs(Duration::from_millis(millis));
    }

    pub(crate) fn disk(&self, id: u64) -> &SimDisk {
        &self.places[&id].disk
    }

    /// Ends a node at once. What it wrote and did not sync is there.
    pub(crate) fn kill(&mut self, id: u64) {
        self.end(id, SimDisk::process_kill);
    }

    /// Ends a node at once. What it did not sync may be gone.
    pub(crate) fn cut_power(&mut self, id: u64) {
        let seed = self.seed;
        self.end(id, |disk| disk.power_cut(seed));
    }

    fn end(&mut self, id: u64, left: impl FnOnce(&SimDisk) -> SimDisk) {
        let (_, scope) = self.nodes.remove(&id).expect("it runs");
        self.network.kill(NodeId(id));
        scope.end();
        let place = self.places.get_mut(&id).expect("it has one");
        place.disk = left(&place.disk);
    }

    /// Gives a node that doesn't run another disk.
    pub(crate) fn set_disk(&mut self, id: u64, disk: SimDisk) {
        assert!(!self.nodes.contains_key(&id), "it runs");
        self.places.get_mut(&id).expect("it has one").disk = disk;
    }

    /// How many groups each of the running nodes leads.
    pub(crate) fn led(&self) -> Vec<usize> {
        let nodes = self.nodes.values();
        let led = nodes.map(|(node, _)| node.status().iter().filter(|one| one.leads).count());
        led.collect()
    }

    /// What a node says of its replica of a group, if it has one.
    pub(crate) fn replica(&self, id: u64, group: GroupId) -> Option<ReplicaStatus> {
        let status = self.nodes.get(&id)?.0.status();
        status.into_iter().find(|replica| replica.group == group)
    }
}

/// The first cluster that chance brings into the state that a scenario needs.
pub(crate) async fn by_chance<F>(scenario: impl Fn(u64) -> F) -> Cluster
where
    F: Future<Output = Option<Cluster>>,
{
    for seed in 1..100 {
        if let Some(cluster) = scenario(seed).await {
            return cluster;
        }
    }
    panic!("chance never brought it about");
}

/// What clients do at a node.
pub(crate) trait Client {
    /// The revision of the write.
    async fn put_within(&self, key: &str, value: &str, within: Duration) -> Result<i64, Failure>;

    /// The same; if nobody knows whether it was written, it is written again.
    async fn put(&self, key: &str, value: &str) -> i64 {
        let end = Instant::now() + LONG;
        loop {
            match self.put_within(key, value, LONG).await {
                Ok(revision) => return revision,
                Err(failure) => assert!(Instant::now() < end, "{failure}"),
            }
        }
    }

    async fn txn(&self, txn: Txn, within: Duration) -> Result<TxnAnswer, Failure>;

    /// The revision of the answer, and how many were deleted.
    async fn delete(&self, key: &str) -> (i64, i64);

    /// A linearizable read of a key.
    async fn get_within(&self, key: &str, within: Duration) -> Result<RangeAnswer, Failure>;

    async fn get(&self, key: &str) -> RangeAnswer {
        self.get_within(key, LONG).await.expect("it is read")
    }

    /// A serializable one.
    async fn get_here(&self, key: &str) -> Result<RangeAnswer, Failure>;
}

impl Client for Node {
    async fn put_within(&self, key: &str, value: &str, within: Duration) -> Result<i64, Failure> {
        match self.request(Request::Put(put(key, value)), within).await? {
            Answer::Put(answer) => Ok(answer.revision.0),
            other => panic!("{other:?}"),
        }
    }

    async fn txn(&self, txn: Txn, within: Duration) -> Result<TxnAnswer, Failure> {
        match self.request(Request::Txn(txn), within).await? {
            Answer::Txn(answer) => Ok(answer),
            other => panic!("{other:?}"),
        }
    }

    async fn delete(&self, key: &str) -> (i64, i64) {
        let delete = Request::DeleteRange(DeleteRange {
            keys: KeyRange::one(key.to_owned()),
            prev_kv: false,
        });
        match self.request(delete, LONG).await {
            Ok(Answer::DeleteRange(answer)) => (answer.revision.0, answer.deleted),
            other => panic!("{other:?}"),
        }
    }

    async fn get_within(&self, key: &str, within: Duration) -> Result<RangeAnswer, Failure> {
        match self.request(Request::Range(range(key)), within).await? {
            Answer::Range(answer) => Ok(answer),
            other => panic!("{other:?}"),
        }
    }

    async fn get_here(&self, key: &str) -> Result<RangeAnswer, Failure> {
        self.read_serializable(&range(key), SHORT).await
    }
}

pub(crate) fn put(key: &str, value: &str) -> Put {
    Put {
        key: key.to_owned().into(),
        value: value.to_owned().into(),
        ..Put::default()
    }
}

pub(crate) fn range(key: &str) -> Range {
    Range::of(KeyRange::one(key.to_owned()))
}

/// Put if the key has this version.
pub(crate) fn put_if(key: &str, version: i64, value: &str) -> Txn {
    Txn {
        compare: vec![Compare {
            keys: KeyRange::one(key.to_owned()),
            operand: Operand::Version(version),
            relation: Relation::Equal,
        }],
        success: vec![Op::Put(put(key, value))],
        failure: Vec::new(),
    }
}

/// The value that was read, and the revision it was read at.
pub(crate) fn value(answer: &RangeAnswer) -> (&str, i64) {
    let value = answer.kvs.first().map_or(&b""[..], |kv| &kv.value);
    (std::str::from_utf8(value).expect("text"), answer.revision.0)
}

/// Whether something happened in time.
pub(crate) async fn soon<T>(what: impl Future<Output = T>) -> Option<T> {
    timeout(SHORT, what).await.ok()
}

#[track_caller]
pub(crate) fn until(mut what: impl FnMut() -> bool) -> impl Future<Output = ()> {
    let from = std::panic::Location::caller();
    async move {
        let end = Instant::now() + LONG;
        while !what() {
            assert!(Instant::now() < end, "{from}: it never happened");
            pause(10).await;
        }
    }
}

/// Writes to every key and finds it, at one node.
pub(crate) async fn use_all(node: &Node, keys: &[&str]) {
    for key in keys {
        let value = format!("{key} by {}", node.id());
        node.put(key, &value).await;
        assert_eq!(node.get(key).await.kvs[0].value, value);
    }
}

pub(crate) fn revision(number: i64) -> Revision {
    Revision(number)
}
