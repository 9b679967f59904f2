//! Those who ask on behalf of a cluster: each has a share of the nodes and of
//! what happens on them, and a list of what is due when.
//!
//! Kept true: an object is written by one actor only, with the revision that
//! it saw last, so a conflict is the store's fault and not the load's.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use pontoon_api::etcdserverpb::{RangeRequest, TxnRequest};
use rand::RngExt;
use rand::rngs::SmallRng;

use super::super::answers::{RangeAnswer, TxnAnswer, last_key, lease, revision};
use super::super::connection::Rpc;
use super::super::failure::Failure;
use super::super::fill::framed;
use super::super::templates::with_stamp;
use super::super::txns::{create, delete, swap};
use super::super::workload::{Ask, Client, Outcome, Plan, stamp_since};
use super::objects::Kind;
use super::prepare::World;
use super::{Cluster, PAGE, class};

/// Something that is due.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Deed {
    /// A node renews its lease.
    Renew(usize),
    /// A node tells its status.
    Status(usize),
    /// A pod is created, and another one begins to end.
    Birth,
    /// Somebody looks at a pod before it is written.
    Get(u64),
    /// A pod is bound, tells its status, or is marked for its end.
    Update(u64),
    /// A pod is deleted.
    Delete(u64),
    /// Something is told about a pod.
    Event(u64),
    /// A pod is ready or goes: the endpoint slice changes.
    Slice(usize),
    /// And so does the replica set.
    ReplicaSet(usize),
    /// Somebody lists a resource, from a key on, at a revision.
    List(usize, Bytes, i64),
    /// The events need a new lease.
    Grant,
}

/// Something that happens to a pod, seconds after another thing.
type Later = (f64, fn(u64) -> Deed);

/// What happens to a pod that is born, seconds after its creation.
const LIFE: [Later; 13] = [
    (0.05, Deed::Get),
    (0.10, Deed::Update),
    (0.20, Deed::Event),
    (0.40, Deed::Get),
    (0.45, Deed::Update),
    (0.55, Deed::Event),
    (1.10, Deed::Event),
    (1.20, Deed::Event),
    (1.30, Deed::Event),
    (1.50, Deed::Get),
    (1.55, Deed::Update),
    (2.50, Deed::Get),
    (2.55, Deed::Update),
];
/// What happens to one that goes.
const DEATH: [Later; 7] = [
    (0.05, Deed::Get),
    (0.10, Deed::Update),
    (0.20, Deed::Event),
    (1.65, Deed::Get),
    (1.70, Deed::Update),
    (1.75, Deed::Get),
    (1.80, Deed::Delete),
];
/// Seconds after which all of the one has happened.
const CHILDHOOD: f64 = 5.0;
/// When services hear of the one and of the other.
const SERVICES_HEAR: [f64; 2] = [2.65, 0.30];

struct Node {
    id: u64,
    lease_revision: i64,
    revision: i64,
}

struct Service {
    id: u64,
    slice_revision: i64,
    set_revision: i64,
}

/// One of those who ask.
pub(super) struct Actor {
    cluster: Arc<Cluster>,
    world: Arc<World>,
    origin: Instant,
    rng: SmallRng,
    begun: Option<Instant>,
    due: BinaryHeap<Reverse<(Duration, Deed)>>,
    under_way: Deed,
    nodes: Vec<Node>,
    services: Vec<Service>,
    /// The revision of each pod that is there.
    pods: HashMap<u64, i64>,
    /// Those that have not begun to end, the oldest first, with when they may.
    living: VecDeque<(Duration, u64)>,
    next_pod: u64,
    next_event: u64,
    /// How far numbers of new objects lie apart: every actor has its own.
    stride: u64,
}

impl Actor {
    pub(super) fn new(
        cluster: Arc<Cluster>,
        world: Arc<World>,
        plan: &Plan,
        number: usize,
        rng: SmallRng,
    ) -> Self {
        // The first one lists, so that nobody waits behind a page.
        let actors = plan.clients.saturating_sub(1).max(1) as u64;
        let stride = actors;
        let number = number as u64;
        let own = |count: u64| {
            let from = if number == 0 { count } else { number - 1 };
            (from..count).step_by(actors as usize)
        };
        let nodes = own(cluster.nodes).map(|id| Node {
            id,
            lease_revision: world.revision(Kind::Lease, id),
            revision: world.revision(Kind::Node, id),
        });
        let services = own(cluster.services()).map(|id| Service {
            id,
            slice_revision: world.revision(Kind::Slice, id),
            set_revision: world.revision(Kind::ReplicaSet, id),
        });
        let living = own(cluster.pods()).map(|id| (Duration::ZERO, id));
        let pods = own(cluster.pods()).map(|id| (id, world.revision(Kind::Pod, id)));
        let mut actor = Self {
            origin: plan.origin,
            rng,
            begun: None,
            due: BinaryHeap::new(),
            under_way: Deed::Grant,
            nodes: nodes.collect(),
            services: services.collect(),
            pods: pods.collect(),
            // Numbers of new pods go on behind those that are there.
            next_pod: cluster.pods() + number,
            next_event: number,
            stride,
            living: living.collect(),
            cluster,
            world,
        };
        actor.plan(number == 0);
        actor
    }

    /// What is due from the beginning on: spread evenly, as clusters are.
    fn plan(&mut self, lists: bool) {
        let cluster = self.cluster.clone();
        if lists {
            for kind in [Kind::Pod, Kind::Node] {
                let at = self.within(cluster.list_every);
                self.add(at, Deed::List(kind as usize, cluster.range(kind).0, 0));
            }
            return;
        }
        for node in 0..self.nodes.len() {
            let at = self.within(cluster.renew_every);
            self.add(at, Deed::Renew(node));
            let at = self.within(cluster.status_every);
            self.add(at, Deed::Status(node));
        }
        self.plan_birth(Duration::ZERO);
    }

    fn within(&mut self, time: Duration) -> Duration {
        time.mul_f64(self.rng.random_range(0.0..1.0))
    }

    fn add(&mut self, at: Duration, deed: Deed) {
        self.due.push(Reverse((at, deed)));
    }

    fn plan_birth(&mut self, now: Duration) {
        let per_second = self.nodes.len() as f64 * self.cluster.pod_churn_per_hour / 3600.0;
        if per_second > 0.0 {
            // Births don't know of each other.
            let gap = -(1.0 - self.rng.random_range(0.0..1.0f64)).ln() / per_second;
            self.add(now + Duration::from_secs_f64(gap.min(1e6)), Deed::Birth);
        }
    }

    /// Plans the life of a pod that is created now, and the end of another one.
    fn bear(&mut self, now: Duration) -> u64 {
        self.plan_birth(now);
        let id = self.next_pod;
        self.next_pod += self.stride + 1;
        let after = |seconds: f64| now + Duration::from_secs_f64(seconds);
        for (seconds, deed) in LIFE {
            self.add(after(seconds), deed(id));
        }
        // Nobody dies in its cradle: what is planned for it would find nothing.
        let old = self.living.pop_front_if(|(from, _)| *from <= now);
        if let Some((_, old)) = old {
            for (seconds, deed) in DEATH {
                self.add(after(seconds), deed(old));
            }
        }
        self.living.push_back((after(CHILDHOOD), id));
        if !self.services.is_empty() {
            let service = self.rng.random_range(0..self.services.len());
            for seconds in SERVICES_HEAR {
                self.add(after(seconds), Deed::Slice(service));
                self.add(after(seconds + 0.05), Deed::ReplicaSet(service));
            }
        }
        id
    }

    fn value(&mut self, kind: Kind) -> Bytes {
        let value = self.world.values.any(kind, &mut self.rng);
        with_stamp(value, stamp_since(self.origin))
    }

    fn swap(&mut self, kind: Kind, id: u64, revision: i64) -> TxnRequest {
        let value = self.value(kind);
        swap(self.cluster.key(kind, id), revision, value, 0)
    }

    fn pod_revision(&self, id: u64) -> i64 {
        self.pods.get(&id).copied().unwrap_or(0)
    }

    /// The request for what is due at a time.
    fn request(&mut self, at: Duration) -> Ask {
        let txn = |class, kind: Kind, request: TxnRequest| Ask {
            rpc: Rpc::Txn,
            request: framed(&request),
            class,
            topic: kind as usize,
        };
        let other = |rpc, class, request: Bytes| Ask {
            rpc,
            request,
            class,
            topic: 0,
        };
        match self.under_way.clone() {
            Deed::Renew(node) => {
                let again = at + self.cluster.renew_every;
                self.add(again, Deed::Renew(node));
                let Node {
                    id, lease_revision, ..
                } = self.nodes[node];
                let request = self.swap(Kind::Lease, id, lease_revision);
                txn(class::RENEWAL, Kind::Lease, request)
            }
            Deed::Status(node) => {
                let again = at + self.cluster.status_every;
                self.add(again, Deed::Status(node));
                let Node { id, revision, .. } = self.nodes[node];
                let request = self.swap(Kind::Node, id, revision);
                txn(class::STATUS, Kind::Node, request)
            }
            Deed::Birth => {
                let id = self.bear(at);
                self.pods.insert(id, 0);
                // What its answer is for.
                self.under_way = Deed::Update(id);
                let value = self.value(Kind::Pod);
                let request = create(self.cluster.key(Kind::Pod, id), value, 0);
                txn(class::POD, Kind::Pod, request)
            }
            Deed::Get(id) => {
                let request = RangeRequest {
                    key: self.cluster.key(Kind::Pod, id),
                    ..Default::default()
                };
                other(Rpc::Range, class::GET, framed(&request))
            }
            Deed::Update(id) => {
                let request = self.swap(Kind::Pod, id, self.pod_revision(id));
                txn(class::POD, Kind::Pod, request)
            }
            Deed::Delete(id) => {
                let key = self.cluster.key(Kind::Pod, id);
                txn(class::POD, Kind::Pod, delete(key, self.pod_revision(id)))
            }
            Deed::Event(id) => match self.world.events_lease.take() {
                Some(lease) => {
                    let event = self.next_event;
                    self.next_event += self.stride + 1;
                    let value = self.value(Kind::Event);
                    let key = self.cluster.key(Kind::Event, event);
                    txn(class::EVENT, Kind::Event, create(key, value, lease))
                }
                None => {
                    self.add(at, Deed::Event(id));
                    self.under_way = Deed::Grant;
                    let request = framed(&self.cluster.grant());
                    other(Rpc::Grant, class::GRANT, request)
                }
            },
            Deed::Slice(service) => {
                let Service {
                    id, slice_revision, ..
                } = self.services[service];
                let request = self.swap(Kind::Slice, id, slice_revision);
                txn(class::OTHER, Kind::Slice, request)
            }
            Deed::ReplicaSet(service) => {
                let Service {
                    id, set_revision, ..
                } = self.services[service];
                let request = self.swap(Kind::ReplicaSet, id, set_revision);
                txn(class::OTHER, Kind::ReplicaSet, request)
            }
            Deed::List(kind, from, revision) => {
                let (first, end) = self.cluster.range(Kind::ALL[kind]);
                if from == first {
                    let again = at + self.cluster.list_every;
                    self.add(again, Deed::List(kind, first, 0));
                }
                let request = RangeRequest {
                    key: from,
                    range_end: end,
                    limit: PAGE,
                    revision,
                    ..Default::default()
                };
                other(Rpc::Range, class::PAGE, framed(&request))
            }
            Deed::Grant => other(Rpc::Grant, class::GRANT, framed(&self.cluster.grant())),
        }
    }

    /// Where the revision of what is under way is kept.
    fn kept(&mut self) -> Option<&mut i64> {
        match self.under_way {
            Deed::Renew(node) => Some(&mut self.nodes[node].lease_revision),
            Deed::Status(node) => Some(&mut self.nodes[node].revision),
            Deed::Slice(service) => Some(&mut self.services[service].slice_revision),
            Deed::ReplicaSet(service) => Some(&mut self.services[service].set_revision),
            Deed::Update(id) => self.pods.get_mut(&id),
            _ => None,
        }
    }

    fn check_txn(&mut self, answer: &[u8]) -> Result<Outcome, Failure> {
        let (revision, outcome) = match TxnAnswer::read(answer)? {
            TxnAnswer::Succeeded(revision) => (revision, Outcome::Written(revision)),
            TxnAnswer::Failed(range) => (range.mod_revision, Outcome::Conflict),
        };
        if let Some(kept) = self.kept() {
            *kept = revision;
        }
        if let Deed::Delete(id) = self.under_way {
            self.pods.remove(&id);
        }
        Ok(outcome)
    }
}

impl Client for Actor {
    fn due(&mut self) -> Option<Duration> {
        self.begun.get_or_insert_with(Instant::now);
        let due = self.due.peek().map(|Reverse((at, _))| *at);
        // Who has nothing to do waits for the end.
        Some(due.unwrap_or(Duration::from_secs(1 << 30)))
    }

    fn ask(&mut self) -> Ask {
        let (at, deed) = match self.due.pop() {
            Some(Reverse(due)) => due,
            None => (Duration::ZERO, Deed::Grant),
        };
        self.under_way = deed;
        self.request(at)
    }

    fn check(&mut self, answer: &[u8]) -> Result<Outcome, Failure> {
        match self.under_way.clone() {
            Deed::Get(id) => {
                let range = RangeAnswer::read(answer)?;
                if range.count != 1 {
                    return Err(Failure::Answer("a pod has disappeared"));
                }
                self.pods.insert(id, range.mod_revision);
                Ok(Outcome::Read)
            }
            Deed::List(kind, _, at) => {
                let page = RangeAnswer::read(answer)?;
                if page.count > page.kvs {
                    let next = [last_key(answer)?, b"\0"].concat();
                    let at = if at == 0 { revision(answer)? } else { at };
                    let now = self.begun.map_or(Duration::ZERO, |begun| begun.elapsed());
                    self.add(now, Deed::List(kind, next.into(), at));
                }
                Ok(Outcome::Read)
            }
            Deed::Grant => {
                self.world.events_lease.renew(Some(lease(answer)?));
                Ok(Outcome::Read)
            }
            _ => self.check_txn(answer),
        }
    }

    fn give_up(&mut self) {
        if self.under_way == Deed::Grant {
            self.world.events_lease.renew(None);
        }
    }
}
