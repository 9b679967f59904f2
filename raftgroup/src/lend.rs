//! Leases as a client of this node has them (rule 13).

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pontoon_engine::{Answer, Request, Revision};
use tokio::time::Instant;

use crate::error::Failure;
use crate::lease::{LeaseAnswered, LeaseGranted, LeaseName, LeaseStatus, LeaseWork};
use crate::map::{RangeMap, Touches};
use crate::message::{Answered, Done, Work};
use crate::node::Inner;
use crate::position::{GroupId, Term};
use crate::replica::{Note, Replica};
use crate::route::Undone;

/// Before it is looked whether a lease is gone that was revoked.
const SOON: Duration = Duration::from_millis(5);

/// Before a revocation that came to nothing is tried again.
const RETRY: Duration = Duration::from_millis(50);

impl Inner {
    /// Has the root group's leader do something about leases.
    async fn lease_work(
        self: &Arc<Self>,
        work: LeaseWork,
        deadline: Instant,
    ) -> Result<Done, Failure> {
        loop {
            let map = self.map_known(deadline).await?;
            let work = Work::Lease(work.clone());
            match self.work(GroupId::ROOT, map.version, work, deadline).await {
                Ok(done) => return Ok(done),
                Err(Undone::Moved) => {}
                Err(Undone::Failed(failure)) => return Err(failure),
            }
        }
    }

    pub(crate) async fn lease_grant(
        self: &Arc<Self>,
        id: i64,
        ttl_secs: i64,
        deadline: Instant,
    ) -> Result<LeaseGranted, Failure> {
        let work = LeaseWork::Grant { id, ttl_secs };
        match self.lease_work(work, deadline).await?.answer {
            Answered::Lease(LeaseAnswered::Granted {
                id,
                ttl_secs,
                revision,
            }) => Ok(LeaseGranted {
                id,
                ttl_secs,
                revision,
            }),
            _ => Err(Failure::LeaderChanged),
        }
    }

    pub(crate) async fn lease_revoke(
        self: &Arc<Self>,
        id: i64,
        deadline: Instant,
    ) -> Result<Revision, Failure> {
        let done = self.lease_work(LeaseWork::Revoke { id }, deadline).await?;
        match done.answer {
            Answered::Lease(LeaseAnswered::Revoked(revision))
            | Answered::Answer(Answer::LeaseRevoke(revision)) => {
                // Its keys may have been anywhere.
                let map = self.cluster.borrow().map.clone();
                for (placed, _) in map.iter().flat_map(|map| map.ranges()) {
                    self.answers.note(placed.group, revision);
                }
                Ok(revision)
            }
            _ => Err(Failure::LeaderChanged),
        }
    }

    pub(crate) async fn lease_keep_alive(
        self: &Arc<Self>,
        id: i64,
        deadline: Instant,
    ) -> Result<Option<i64>, Failure> {
        let work = LeaseWork::KeepAlive { id };
        match self.lease_work(work, deadline).await?.answer {
            Answered::Lease(LeaseAnswered::Alive(ttl)) => Ok(ttl),
            _ => Err(Failure::LeaderChanged),
        }
    }

    pub(crate) async fn lease_status(
        self: &Arc<Self>,
        id: i64,
        keys: bool,
        deadline: Instant,
    ) -> Result<Option<LeaseStatus>, Failure> {
        let mut found = None;
        loop {
            let done = self.lease_work(LeaseWork::Status { id }, deadline).await?;
            let Answered::Lease(LeaseAnswered::Status(known)) = done.answer else {
                return Err(Failure::LeaderChanged);
            };
            let Some(known) = known else {
                return Ok(None);
            };
            // If it is in the same groups as before, none of them was split.
            let found_keys = match found.take() {
                Some((groups, keys)) if groups == known.groups => Some(keys),
                _ if !keys => Some(Vec::new()),
                _ => None,
            };
            if let Some(keys) = found_keys {
                return Ok(Some(LeaseStatus {
                    ttl_secs: known.left_secs,
                    granted_secs: known.granted_secs,
                    keys,
                }));
            }
            match self.keys_on(id, &known.groups, deadline).await {
                Ok(keys) => found = Some((known.groups, keys)),
                Err(Undone::Moved) => tokio::time::sleep(SOON).await,
                Err(Undone::Failed(failure)) => return Err(failure),
            }
        }
    }

    /// What hangs on a lease in the root group and others, in order. They are
    /// asked one after the other.
    async fn keys_on(
        self: &Arc<Self>,
        lease: i64,
        groups: &[GroupId],
        deadline: Instant,
    ) -> Result<Vec<Bytes>, Undone> {
        let mut keys = Vec::new();
        for group in std::iter::once(&GroupId::ROOT).chain(groups) {
            let map = self.map_known(deadline).await.map_err(Undone::Failed)?;
            let work = Work::LeaseKeys { lease, at: None };
            match self.work(*group, map.version, work, deadline).await?.answer {
                Answered::Keys(found) => keys.extend(found),
                _ => return Err(Undone::Failed(Failure::LeaderChanged)),
            }
        }
        keys.sort_unstable();
        Ok(keys)
    }

    /// Has the root group note that keys of a group may hang on a lease;
    /// returns when this node knows it too.
    pub(crate) async fn register_lease(
        self: &Arc<Self>,
        lease: LeaseName,
        group: GroupId,
        deadline: Instant,
    ) -> Result<(), Failure> {
        if self.leases.is_registered(lease.id, group) {
            return Ok(());
        }
        let work = LeaseWork::Register { lease, group };
        match self.lease_work(work, deadline).await {
            Ok(done) => {
                self.root_catches_up(done.index).await;
                Ok(())
            }
            // It is gone: who names it is refused where it is evaluated.
            Err(Failure::Reject(_)) => {
                if let Some(point) = self.read_point().await {
                    self.root_catches_up(point.root).await;
                }
                Ok(())
            }
            Err(failure) => Err(failure),
        }
    }

    /// The same for all that a request names.
    pub(crate) async fn register_leases(
        self: &Arc<Self>,
        request: &Request,
        map: &RangeMap,
        deadline: Instant,
    ) -> Result<(), Failure> {
        for (key, lease) in Touches::of(request).attaches {
            if let Some(name) = self.leases.alive(lease) {
                self.register_lease(name, map.group_of(&key), deadline)
                    .await?;
            }
        }
        Ok(())
    }

    /// Revokes a lease that may have keys in several groups, however often
    /// it takes, while this node leads the root group in `term`.
    pub(crate) async fn drive_revocation(
        self: &Arc<Self>,
        root: &Arc<Replica>,
        term: Term,
        name: LeaseName,
    ) {
        let mut revision = None;
        loop {
            let leadership = *root.group.leadership().borrow();
            if !leadership.ready || leadership.term != term {
                return;
            }
            if self.leases.groups_of(name).is_none() {
                break;
            }
            if revision.is_none() {
                let deadline = Instant::now() + 4 * self.timing.call;
                match self.revoke_once(name, deadline).await {
                    Ok(None) => break,
                    Ok(done) => revision = done,
                    // What became of it will be seen; then it is tried anew.
                    Err(_) => {}
                }
            }
            // The decision takes the lease with it.
            let pause = if revision.is_some() { SOON } else { RETRY };
            tokio::time::sleep(pause).await;
        }
        let lease = name;
        let _ = root.notes.send(Note::Revoked { lease, revision });
    }
}
