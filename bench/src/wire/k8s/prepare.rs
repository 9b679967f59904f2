//! Puts a cluster's objects there before the load begins.
//!
//! Kept true: what an earlier load left below the prefix is gone, and the
//! revision of every object is known.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use parking_lot::Mutex;
use pontoon_api::etcdserverpb::request_op::Request;
use pontoon_api::etcdserverpb::{
    CompactionRequest, CompactionResponse, DeleteRangeRequest, DeleteRangeResponse,
    LeaseGrantRequest, LeaseGrantResponse, PutRequest, RequestOp, TxnRequest, TxnResponse,
};
use rand::SeedableRng;
use rand::rngs::SmallRng;

use super::super::connection::{Channel, Connection, Rpc};
use super::super::failure::Failure;
use super::super::fill::ask;
use super::objects::{Kind, Values};
use super::{Cluster, prefix_end};

/// Objects of a transaction; the largest come to less than 1 MiB.
const OPS: u64 = 60;
/// Transactions that are under way together.
const LANES: usize = 8;
/// For how long events share a lease, and how many do.
const LEASE_REUSE: Duration = Duration::from_secs(60);
const LEASE_OBJECTS_MAX: u32 = 1000;

/// What is there when a load begins.
#[derive(Debug)]
pub(super) struct World {
    /// The revision of each object, in the order of [`places`].
    revisions: Vec<i64>,
    starts: [u64; 4],
    pub(super) values: Values,
    pub(super) events_lease: EventsLease,
}

impl World {
    /// The revision of an object when the load begins.
    pub(super) fn revision(&self, kind: Kind, id: u64) -> i64 {
        let start = match kind {
            Kind::Lease => 0,
            Kind::Node => self.starts[0],
            Kind::Pod => self.starts[1],
            Kind::Slice => self.starts[2],
            Kind::ReplicaSet => self.starts[3],
            Kind::Event => return 0,
        };
        self.revisions[(start + id) as usize]
    }
}

#[cfg(test)]
impl World {
    /// As if everything were there.
    pub(super) fn empty(cluster: &Cluster) -> Self {
        let (starts, count) = places(cluster);
        Self {
            revisions: vec![1; count as usize],
            starts,
            values: Values::new(1),
            events_lease: EventsLease::new(1),
        }
    }
}

/// Where each kind begins among all objects, and how many there are.
fn places(cluster: &Cluster) -> ([u64; 4], u64) {
    let (nodes, pods) = (cluster.nodes, cluster.pods());
    let services = cluster.services();
    let starts = [
        nodes,
        2 * nodes,
        2 * nodes + pods,
        2 * nodes + pods + services,
    ];
    (starts, starts[3] + services)
}

fn object(starts: [u64; 4], at: u64) -> (Kind, u64) {
    match at {
        _ if at < starts[0] => (Kind::Lease, at),
        _ if at < starts[1] => (Kind::Node, at - starts[0]),
        _ if at < starts[2] => (Kind::Pod, at - starts[1]),
        _ if at < starts[3] => (Kind::Slice, at - starts[2]),
        _ => (Kind::ReplicaSet, at - starts[3]),
    }
}

impl Cluster {
    /// Makes the cluster's objects.
    pub(in super::super) async fn prepare(
        &self,
        connection: &Arc<Connection>,
        seed: u64,
    ) -> Result<(), Failure> {
        let mut channel = connection.channel().await;
        let all = format!("{}/", self.prefix);
        let old = DeleteRangeRequest {
            range_end: prefix_end(&all),
            key: all.into(),
            ..Default::default()
        };
        let _: DeleteRangeResponse = ask(&mut channel, Rpc::DeleteRange, &old).await?;
        let values = Values::new(seed);
        let (starts, count) = places(self);
        let filled = &values;
        let lanes = (0..LANES).map(|lane| async move {
            let channel = connection.channel().await;
            self.fill(channel, filled, seed, lane as u64).await
        });
        let lanes = try_join_all(lanes).await?;
        let mut revisions = vec![0; count as usize];
        for (first, end, revision) in lanes.into_iter().flatten() {
            revisions[first as usize..end as usize].fill(revision);
        }
        let newest = revisions.iter().copied().max().unwrap_or(0);
        let request = CompactionRequest {
            revision: newest,
            physical: false,
        };
        let _: CompactionResponse = ask(&mut channel, Rpc::Compact, &request).await?;
        let request = self.grant();
        let lease: LeaseGrantResponse = ask(&mut channel, Rpc::Grant, &request).await?;
        let world = World {
            revisions,
            starts,
            values,
            events_lease: EventsLease::new(lease.id),
        };
        *self.world.lock() = Some(Arc::new(world));
        Ok(())
    }

    /// Puts a lane's part; returns which objects have which revision.
    async fn fill(
        &self,
        mut channel: Channel,
        values: &Values,
        seed: u64,
        lane: u64,
    ) -> Result<Vec<(u64, u64, i64)>, Failure> {
        let mut rng = SmallRng::seed_from_u64(seed ^ lane << 32);
        let (starts, count) = places(self);
        let mut done = Vec::new();
        for first in (lane * OPS..count).step_by(OPS as usize * LANES) {
            let end = count.min(first + OPS);
            let mut put = |at| {
                let (kind, id) = object(starts, at);
                RequestOp {
                    request: Some(Request::RequestPut(PutRequest {
                        key: self.key(kind, id),
                        value: values.any(kind, &mut rng),
                        ..Default::default()
                    })),
                }
            };
            let request = TxnRequest {
                success: (first..end).map(&mut put).collect(),
                ..Default::default()
            };
            let answer: TxnResponse = ask(&mut channel, Rpc::Txn, &request).await?;
            let revision = answer.header.map_or(0, |header| header.revision);
            done.push((first, end, revision));
        }
        Ok(done)
    }

    /// Asks for the lease that events share.
    pub(super) fn grant(&self) -> LeaseGrantRequest {
        LeaseGrantRequest {
            ttl: self.event_ttl_secs + LEASE_REUSE.as_secs().cast_signed(),
            id: 0,
        }
    }
}

/// The lease that events share until it is too old or has too many.
#[derive(Debug)]
pub(super) struct EventsLease(Mutex<SharedLease>);

#[derive(Debug)]
struct SharedLease {
    id: i64,
    granted: Instant,
    uses: u32,
    is_asked_for: bool,
}

impl EventsLease {
    fn new(id: i64) -> Self {
        Self(Mutex::new(SharedLease {
            id,
            granted: Instant::now(),
            uses: 0,
            is_asked_for: false,
        }))
    }

    /// The lease for an event; none if who asks must see to a new one first.
    pub(super) fn take(&self) -> Option<i64> {
        let mut lease = self.0.lock();
        let is_used_up = lease.uses >= LEASE_OBJECTS_MAX || lease.granted.elapsed() > LEASE_REUSE;
        if is_used_up && !lease.is_asked_for {
            lease.is_asked_for = true;
            return None;
        }
        lease.uses += 1;
        Some(lease.id)
    }

    /// There is a new one; none if it could not be had.
    pub(super) fn renew(&self, id: Option<i64>) {
        let mut lease = self.0.lock();
        lease.is_asked_for = false;
        if let Some(id) = id {
            (lease.id, lease.granted, lease.uses) = (id, Instant::now(), 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_lease_serves_a_thousand_events_and_one_client_asks_for_the_next() {
        let lease = EventsLease::new(7);
        assert!((0..LEASE_OBJECTS_MAX).all(|_| lease.take() == Some(7)));
        assert_eq!(lease.take(), None);
        // Others go on with the old one meanwhile.
        assert_eq!(lease.take(), Some(7));
        lease.renew(None);
        assert_eq!(lease.take(), None, "asked for again");
        lease.renew(Some(8));
        assert_eq!(lease.take(), Some(8));
    }

    #[test]
    fn every_object_has_a_place() {
        let cluster = Cluster::new(3, "/p");
        let (starts, count) = places(&cluster);
        assert_eq!(count, 3 + 3 + 30 + 3 + 3);
        let kinds: Vec<_> = (0..count).map(|at| object(starts, at)).collect();
        assert_eq!(kinds[2], (Kind::Lease, 2));
        assert_eq!(kinds[3], (Kind::Node, 0));
        assert_eq!(kinds[6], (Kind::Pod, 0));
        assert_eq!(kinds[36], (Kind::Slice, 0));
        assert_eq!(kinds[41], (Kind::ReplicaSet, 2));
    }
}
