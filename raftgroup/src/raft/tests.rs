//! Replicas of one group in one process, on simulated disks and links.

mod begin;
mod cluster;
mod failures;
mod members;
mod rounds;
mod snapshots;
mod storage;

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use pontoon_engine::{Revision, Step, Store};
use pontoon_wal::Wal;
use pontoon_wal::disk::Disk;
use pontoon_wal::disk::sim::{Rng, SimClock, SimDisk};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::format::Unreadable;
use crate::position::{GroupId, LogIndex, NodeId, Term};
use crate::raft::{
    Begin, Group, GroupConfig, GroupFailure, Kept, Machine, Peers, Proposed, Tenders, Timing,
};
use crate::runtime::Scope;

pub(crate) const GROUP: GroupId = GroupId(5);
pub(crate) const STORE: u128 = 0x1234 << 64 | 5;

/// Runs everything on one thread with a clock that jumps.
pub(crate) fn simulate<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, async {
        pontoon_wal::disk::sim::host();
        test.await
    })
}

/// Keeps each command as a record, and the last one as another, so that the
/// order shows; remembers what it was told.
#[derive(Default)]
pub(crate) struct Notebook {
    pub(crate) told: Mutex<Vec<(LogIndex, Term, Bytes)>>,
    /// Entries that were shown, with what the group had applied then.
    pub(crate) shown: Mutex<Vec<(LogIndex, LogIndex)>>,
    group: Mutex<Weak<Group>>,
    /// The next snapshot waits for it.
    pub(crate) holds: Mutex<Option<oneshot::Receiver<()>>>,
}

impl Machine for Notebook {
    fn steps(&self, _: &Arc<Store>, _: Term, command: Bytes) -> Result<Vec<Step>, Unreadable> {
        if command == "poison" {
            return Err(Unreadable::Nonsense { kind: "poison" });
        }
        let name = command.slice(..command.len().min(40));
        let record = |name: Bytes| Step::Record {
            name,
            content: Some(command.clone()),
        };
        Ok(vec![record(name), record(Bytes::from_static(b"last"))])
    }

    fn applied(&self, _: &Arc<Store>, index: LogIndex, term: Term, steps: &[Step]) {
        let command = match steps.first() {
            Some(Step::Record { name, .. }) => name.clone(),
            _ => Bytes::new(),
        };
        let mut told = self.told.lock();
        if let Some((last, _, _)) = told.last() {
            assert!(index > *last, "{index} after {last}");
        }
        told.push((index, term, command));
    }

    fn shown(&self, index: LogIndex) {
        if let Some(group) = self.group.lock().upgrade() {
            self.shown.lock().push((index, group.applied_index()));
        }
    }

    fn before_compact(&self, _: &Arc<Store>, _: Revision) {}

    fn before_install(&self) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let holds = self.holds.lock().take();
        Box::pin(async move {
            if let Some(holds) = holds {
                let _ = holds.await;
            }
        })
    }
}

pub(crate) fn group_config(node: u64, path: &Path) -> GroupConfig {
    GroupConfig {
        node: NodeId(node),
        group: GROUP,
        begin: Begin::Empty,
        path: path.to_owned(),
        store: pontoon_engine::Config {
            store: STORE,
            dirty_bytes_max: 1 << 20,
            log_bytes_max: 20 << 10,
            recent_bytes_max: 64 << 10,
            ..pontoon_engine::Config::default()
        },
        timing: Timing {
            heartbeat: Duration::from_millis(100),
            election_min: Duration::from_millis(400),
            election_max: Duration::from_millis(800),
        },
        kept: Kept {
            entries_max: 20,
            bytes_max: 100 << 10,
        },
        rotations: crate::runtime::watched::Sender::new(0),
        snapshot_window: 2,
        health: Arc::default(),
        counters: Arc::default(),
    }
}

pub(crate) fn open_wal(disk: Arc<dyn Disk>, dir: &Path, node: u64, seed: u64) -> Wal {
    let config = pontoon_wal::Config {
        segment_bytes: 1 << 20,
        cache_bytes_max: 8 << 10,
        ..pontoon_wal::Config::new(dir, node)
    };
    let clock = Arc::new(SimClock::new(seed));
    Wal::open(config, disk, clock).unwrap().0
}

/// Changes a message on its way.
type Tamper = Box<dyn FnMut(NodeId, NodeId, Bytes) -> Bytes + Send>;

/// The links between the nodes: in order per direction, and late.
#[derive(Clone)]
pub(crate) struct Net(Arc<Mutex<Links>>);

struct Links {
    rng: Rng,
    nodes: BTreeMap<NodeId, Arc<Group>>,
    /// Nodes that nobody hears, and that hear nobody.
    cut: BTreeSet<NodeId>,
    lanes: BTreeMap<(NodeId, NodeId), mpsc::UnboundedSender<Message>>,
    tamper: Option<Tamper>,
    messages: u64,
    /// Bytes of messages on their way, and the most there were.
    bytes: usize,
    bytes_max: usize,
}

struct Message {
    bytes: Bytes,
    at: Instant,
    answer: oneshot::Sender<Bytes>,
}

impl Net {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(Links {
            rng: Rng::new(seed),
            nodes: BTreeMap::new(),
            cut: BTreeSet::new(),
            lanes: BTreeMap::new(),
            tamper: None,
            messages: 0,
            bytes: 0,
            bytes_max: 0,
        })))
    }

    pub(crate) fn cut(&self, node: u64) {
        self.0.lock().cut.insert(NodeId(node));
    }

    pub(crate) fn mend(&self, node: u64) {
        self.0.lock().cut.remove(&NodeId(node));
    }

    pub(crate) fn tamper(&self, tamper: Option<Tamper>) {
        self.0.lock().tamper = tamper;
    }

    pub(crate) fn messages(&self) -> u64 {
        self.0.lock().messages
    }

    pub(crate) fn bytes_max(&self) -> usize {
        self.0.lock().bytes_max
    }

    fn is_cut(&self, from: NodeId, to: NodeId) -> bool {
        let links = self.0.lock();
        links.cut.contains(&from) || links.cut.contains(&to)
    }

    async fn deliver(self, from: NodeId, to: NodeId, mut lane: mpsc::UnboundedReceiver<Message>) {
        while let Some(message) = lane.recv().await {
            sleep_until(message.at).await;
            self.0.lock().bytes -= message.bytes.len();
            let group = self.0.lock().nodes.get(&to).cloned();
            let Some(group) = group.filter(|_| !self.is_cut(from, to)) else {
                continue;
            };
            let bytes = match &mut self.0.lock().tamper {
                None => message.bytes,
                Some(tamper) => tamper(from, to, message.bytes),
            };
            let net = self.clone();
            let reply = Box::new(move |answer| {
                tokio::spawn(async move {
                    sleep(Duration::from_millis(1)).await;
                    if !net.is_cut(from, to) {
                        let _ = message.answer.send(answer);
                    }
                });
            });
            group.receive(from, bytes, reply);
        }
    }
}

struct NetOf(Net, NodeId);

impl Peers for NetOf {
    fn call(
        &self,
        to: NodeId,
        group: GroupId,
        bytes: Bytes,
        within: Duration,
    ) -> Pin<Box<dyn Future<Output = Result<Bytes, String>> + Send>> {
        assert_eq!(group, GROUP);
        let Self(net, from) = self;
        let (answer, answered) = oneshot::channel();
        let mut links = net.0.lock();
        links.messages += 1;
        links.bytes += bytes.len();
        links.bytes_max = links.bytes_max.max(links.bytes);
        let at = Instant::now() + Duration::from_millis(1 + links.rng.below(3));
        let message = Message { bytes, at, answer };
        let lane = links.lanes.entry((*from, to)).or_insert_with(|| {
            let (lane, messages) = mpsc::unbounded_channel();
            tokio::spawn(net.clone().deliver(*from, to, messages));
            lane
        });
        assert!(lane.send(message).is_ok(), "the lane is never closed");
        Box::pin(async move {
            match timeout(within, answered).await {
                Ok(Ok(answer)) => Ok(answer),
                _ => Err("no answer".to_owned()),
            }
        })
    }
}

pub(crate) struct Node {
    pub(crate) id: u64,
    pub(crate) disk: SimDisk,
    pub(crate) scope: Scope,
    pub(crate) group: Arc<Group>,
    pub(crate) machine: Arc<Notebook>,
}

pub(crate) struct Cluster {
    pub(crate) net: Net,
    pub(crate) nodes: BTreeMap<u64, Node>,
    pub(crate) rng: Rng,
}

pub(crate) fn tree_path() -> PathBuf {
    PathBuf::from("/node/5.tree")
}

pub(crate) fn nodes(ids: impl IntoIterator<Item = u64>) -> BTreeSet<NodeId> {
    ids.into_iter().map(NodeId).collect()
}

pub(crate) fn new_disk(seed: u64) -> SimDisk {
    let disk = SimDisk::new(seed);
    disk.create_dir(Path::new("/node")).unwrap();
    disk
}

impl Cluster {
    /// Nobody yet.
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            net: Net::new(seed),
            nodes: BTreeMap::new(),
            rng: Rng::new(seed),
        }
    }

    /// Three replicas that have just begun.
    pub(crate) async fn start(seed: u64) -> Self {
        let mut cluster = Self::new(seed);
        for id in 1..=3 {
            let begin = Begin::Members(nodes(1..=3));
            cluster.open(id, new_disk(seed * 10 + id), begin).await;
        }
        cluster.converge().await;
        cluster
    }

    pub(crate) async fn open(&mut self, id: u64, disk: SimDisk, begin: Begin) {
        self.try_open(id, disk, begin).await.unwrap();
    }

    pub(crate) async fn try_open(
        &mut self,
        id: u64,
        disk: SimDisk,
        begin: Begin,
    ) -> Result<(), GroupFailure> {
        let scope = Scope::new(self.rng.next_u64());
        let seed = self.rng.next_u64();
        let machine = Arc::new(Notebook::default());
        let shared: Arc<dyn Disk> = Arc::new(disk.clone());
        let config = GroupConfig {
            begin,
            ..group_config(id, &tree_path())
        };
        let group = Group::open(
            config,
            open_wal(Arc::clone(&shared), Path::new("/node/wal"), id, seed),
            Arc::clone(&shared),
            &Arc::new(Tenders::new(shared)),
            Arc::new(NetOf(self.net.clone(), NodeId(id))),
            Arc::clone(&machine) as Arc<dyn Machine>,
            &scope,
        )
        .await?;
        *machine.group.lock() = Arc::downgrade(&group);
        let links = &self.net.0;
        links.lock().nodes.insert(NodeId(id), Arc::clone(&group));
        let node = Node {
            id,
            disk,
            scope,
            group,
            machine,
        };
        self.nodes.insert(id, node);
        Ok(())
    }

    /// The power of a node fails.
    pub(crate) fn stop(&mut self, id: u64) -> SimDisk {
        let node = self.nodes.remove(&id).unwrap();
        self.net.0.lock().nodes.remove(&NodeId(id));
        node.scope.end();
        let disk = node.disk.power_cut(self.rng.next_u64());
        drop(node);
        for other in self.nodes.values() {
            other.group.peer_lost(NodeId(id));
        }
        disk
    }

    /// The power of a node fails and comes back. What it has decides how it
    /// goes on.
    pub(crate) async fn restart(&mut self, id: u64) {
        let disk = self.stop(id);
        sleep(Duration::from_millis(50)).await;
        self.open(id, disk, Begin::Empty).await;
    }

    pub(crate) fn group(&self, id: u64) -> Arc<Group> {
        Arc::clone(&self.nodes[&id].group)
    }

    /// Waits for a leader among `ids` that may propose, and takes the latest
    /// of those who think that they do.
    pub(crate) async fn leader_of(&self, ids: &[u64]) -> (u64, Term) {
        let started = Instant::now();
        while started.elapsed() < Duration::from_secs(600) {
            let leaderships = ids
                .iter()
                .map(|id| (*id, *self.group(*id).leadership().borrow()));
            let latest = leaderships
                .filter(|(_, leadership)| leadership.ready)
                .max_by_key(|(_, leadership)| leadership.term);
            if let Some((id, leadership)) = latest {
                return (id, leadership.term);
            }
            sleep(Duration::from_millis(5)).await;
        }
        panic!("none of {ids:?} leads");
    }

    pub(crate) async fn leader(&self) -> (u64, Term) {
        let ids: Vec<u64> = self.nodes.keys().copied().collect();
        self.leader_of(&ids).await
    }

    /// Proposes through whoever leads, until it is applied. What had to be
    /// proposed again may be there twice.
    pub(crate) async fn write(&self, command: impl Into<Bytes>) -> LogIndex {
        let command = command.into();
        loop {
            let (id, term) = self.leader().await;
            match propose(&self.group(id), term, command.clone()).await {
                Proposed::Applied(index) => return index,
                Proposed::Refused | Proposed::Unknown => sleep(Duration::from_millis(20)).await,
            }
        }
    }

    /// Waits until all have applied the same, and checks that it is the same.
    pub(crate) async fn converge(&self) -> LogIndex {
        let index = loop {
            let (leader, _) = self.leader().await;
            if let Ok(confirmed) = self.group(leader).confirm().await {
                break confirmed.index;
            }
            // It was one that had not heard of the next.
            sleep(Duration::from_millis(20)).await;
        };
        let mut states = Vec::new();
        for node in self.nodes.values() {
            let applied = timeout(Duration::from_secs(60), node.group.wait_applied(index)).await;
            applied.unwrap_or_else(|_| {
                panic!("node {} is behind: {:?}", node.id, node.group.counts())
            });
            states.push(node.group.store().applied_hash().unwrap());
        }
        assert!(
            states.windows(2).all(|pair| pair[0] == pair[1]),
            "{states:?}"
        );
        index
    }
}

pub(crate) async fn propose(group: &Arc<Group>, term: Term, command: Bytes) -> Proposed {
    let (done, proposed) = oneshot::channel();
    let done = Box::new(move |result| {
        let _ = done.send(result);
    });
    group.propose(term, command, done).await;
    proposed.await.expect("it is always called")
}
