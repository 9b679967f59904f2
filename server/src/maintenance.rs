//! Alarms, status, hashes, leadership.

use std::sync::Arc;
use std::time::Duration;

use pontoon_api::Error;
use pontoon_api::etcdserverpb::alarm_request::AlarmAction;
use pontoon_api::etcdserverpb::downgrade_request::DowngradeAction;
use pontoon_api::etcdserverpb::maintenance_server::Maintenance;
use pontoon_api::etcdserverpb::{
    AlarmMember, AlarmRequest, AlarmResponse, AlarmType, DefragmentRequest, DefragmentResponse,
    DowngradeInfo, DowngradeRequest, DowngradeResponse, HashKvRequest, HashKvResponse, HashRequest,
    HashResponse, MoveLeaderRequest, MoveLeaderResponse, SnapshotRequest, SnapshotResponse,
    StatusRequest, StatusResponse,
};
use pontoon_engine::{Reject, Revision};
use pontoon_raftgroup::{Alarm, ContentSum, Failure, GroupId, NodeId};
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use crate::calls::Rpc;
use crate::failure::status;
use crate::host::Host;
use crate::metrics::Present;
use crate::readiness::{Probe, check_disk, check_ranges};
use crate::version::{API_VERSION, CLUSTER_MINOR, CLUSTER_VERSION};

/// Between two looks whether a leadership has moved.
const TRANSFER_LOOK: Duration = Duration::from_millis(5);

/// Between two looks whether all groups have passed a revision.
const HASH_LOOK: Duration = Duration::from_millis(2);

pub(crate) struct MaintenanceService(pub(crate) Arc<Host>);

#[tonic::async_trait]
impl Maintenance for MaintenanceService {
    type SnapshotStream = ReceiverStream<Result<SnapshotResponse, Status>>;

    async fn alarm(
        &self,
        request: Request<AlarmRequest>,
    ) -> Result<Response<AlarmResponse>, Status> {
        let (metadata, _, request) = request.into_parts();
        let host = &self.0;
        let work = async {
            // It is ordered among all that others do, as in etcd's log.
            let revision = host.catch_up().await?;
            let alarms = host.alarm(&request).await?;
            Ok(AlarmResponse {
                header: host.header_from(revision),
                alarms,
            })
        };
        host.unary(Rpc::Alarm, &metadata, work).await
    }

    async fn status(
        &self,
        request: Request<StatusRequest>,
    ) -> Result<Response<StatusResponse>, Status> {
        let work = async { Ok(self.0.status()) };
        self.0.unary(Rpc::Status, request.metadata(), work).await
    }

    /// Free pages are used again by themselves; what is free at the end of a
    /// file is given back, while everything is served.
    async fn defragment(
        &self,
        request: Request<DefragmentRequest>,
    ) -> Result<Response<DefragmentResponse>, Status> {
        let tallies = &self.0.tallies;
        let work = async {
            let _running = Present::new(&tallies.defrags);
            let since = Instant::now();
            let bytes = self.0.node.trim().await.map_err(status)?;
            tallies.defrag_took.record_time(since.elapsed());
            // The client may go on with what there is room for now.
            self.0.measure();
            tracing::info!("{bytes} bytes were given back to the file system");
            Ok(DefragmentResponse { header: None })
        };
        self.0
            .unary(Rpc::Defragment, request.metadata(), work)
            .await
    }

    async fn hash(&self, request: Request<HashRequest>) -> Result<Response<HashResponse>, Status> {
        let host = &self.0;
        let work = async {
            let since = Instant::now();
            let content = host.hash(Revision(0)).await?;
            host.tallies.hash_took.record_time(since.elapsed());
            Ok(HashResponse {
                header: host.header_now(),
                hash: folded(content.sum),
            })
        };
        host.unary(Rpc::Hash, request.metadata(), work).await
    }

    async fn hash_kv(
        &self,
        request: Request<HashKvRequest>,
    ) -> Result<Response<HashKvResponse>, Status> {
        let (metadata, _, request) = request.into_parts();
        let host = &self.0;
        let work = async {
            let since = Instant::now();
            let content = host.hash(Revision(request.revision)).await?;
            host.tallies.hash_kv_took.record_time(since.elapsed());
            Ok(HashKvResponse {
                header: host.header_now(),
                hash: folded(content.sum),
                compact_revision: content.floor.0,
                // etcd gives back one below 0, though it hashes the newest.
                hash_revision: if request.revision < 0 {
                    request.revision
                } else {
                    content.at.0
                },
            })
        };
        host.unary(Rpc::HashKv, &metadata, work).await
    }

    async fn snapshot(
        &self,
        request: Request<SnapshotRequest>,
    ) -> Result<Response<Self::SnapshotStream>, Status> {
        let mut call = self.0.open(Rpc::Snapshot, request.metadata())?;
        let status = Status::unimplemented("snapshots are not served yet");
        call.end(status.code());
        Err(status)
    }

    async fn move_leader(
        &self,
        request: Request<MoveLeaderRequest>,
    ) -> Result<Response<MoveLeaderResponse>, Status> {
        let (metadata, _, request) = request.into_parts();
        let work = async {
            self.0.move_leader(NodeId(request.target_id)).await?;
            Ok(MoveLeaderResponse { header: None })
        };
        self.0.unary(Rpc::MoveLeader, &metadata, work).await
    }

    async fn downgrade(
        &self,
        request: Request<DowngradeRequest>,
    ) -> Result<Response<DowngradeResponse>, Status> {
        let (metadata, _, request) = request.into_parts();
        let host = &self.0;
        let work = async {
            check_downgrade(&request)?;
            let (major, minor) = CLUSTER_MINOR;
            Ok(DowngradeResponse {
                header: host.header_now(),
                version: format!("{major}.{minor}"),
            })
        };
        host.unary(Rpc::Downgrade, &metadata, work).await
    }
}

impl Host {
    /// Gets, raises or ends alarms; returns those that it is about.
    async fn alarm(&self, request: &AlarmRequest) -> Result<Vec<AlarmMember>, Status> {
        let kind = match AlarmType::try_from(request.alarm) {
            Ok(AlarmType::Nospace) => Some(Alarm::NoSpace),
            Ok(AlarmType::Corrupt) => Some(Alarm::Corrupt),
            Ok(AlarmType::None) | Err(_) => None,
        };
        let (id, within) = (NodeId(request.member_id), self.limits.within());
        let about = |alarm: Alarm, id: NodeId| AlarmMember {
            member_id: id.0,
            alarm: alarm_type(alarm).into(),
        };
        match (AlarmAction::try_from(request.action), kind) {
            (Ok(AlarmAction::Get), kind) => {
                let alarms = self.node.alarms().into_iter();
                let alarms = alarms.filter(|(alarm, _)| kind.is_none_or(|kind| kind == *alarm));
                Ok(alarms.map(|(alarm, id)| about(alarm, id)).collect())
            }
            (Ok(AlarmAction::Activate), Some(alarm)) => {
                let raised = self.node.alarm(id, alarm, true, within);
                raised.await.map_err(status)?;
                Ok(vec![about(alarm, id)])
            }
            (Ok(AlarmAction::Deactivate), Some(alarm)) => {
                let was_on = self.node.alarms().contains(&(alarm, id));
                let ended = self.node.alarm(id, alarm, false, within);
                ended.await.map_err(status)?;
                Ok(was_on.then(|| about(alarm, id)).into_iter().collect())
            }
            _ => Ok(Vec::new()),
        }
    }

    fn status(&self) -> StatusResponse {
        let replicas = self.node.status();
        let root = replicas.iter().find(|replica| replica.group.is_root());
        let (term, leader) = self.node.leadership();
        let file_bytes: u64 = replicas.iter().map(|replica| replica.file_bytes).sum();
        let used_bytes: u64 = replicas.iter().map(|replica| replica.used_bytes).sum();
        let has_leader = self.node.has_leader(GroupId::ROOT);
        let mut errors: Vec<String> = self
            .node
            .alarms()
            .into_iter()
            .map(|(alarm, id)| {
                let name = alarm_type(alarm).as_str_name();
                match id.0 {
                    // As protobuf's text form has it.
                    0 => format!("alarm:{name}"),
                    id => format!("memberID:{id} alarm:{name}"),
                }
            })
            .collect();
        let mut unserved = self.node.unserved();
        if !has_leader {
            errors.push(Error::NoLeader.text().to_owned());
            // etcd's line says it of the root group already.
            unserved.retain(|range| range.group != GroupId::ROOT);
        }
        if let Err(reason) = check_disk(Probe::Readiness, &self.node.condition()) {
            errors.push(format!("disk: {reason}"));
        }
        if let Err(reason) = check_ranges(&unserved) {
            errors.push(format!("ranges not served: {reason}"));
        }
        StatusResponse {
            header: self.header_now(),
            version: API_VERSION.to_owned(),
            db_size: bytes(file_bytes),
            leader: leader.filter(|_| has_leader).map_or(0, |id| id.0),
            raft_index: root.map_or(0, |root| root.committed.0),
            raft_term: term.0,
            raft_applied_index: root.map_or(0, |root| root.applied.0),
            errors,
            db_size_in_use: bytes(used_bytes),
            is_learner: self.is_learner(),
            storage_version: CLUSTER_VERSION.to_owned(),
            db_size_quota: self.limits.quota_bytes,
            downgrade_info: Some(DowngradeInfo::default()),
        }
    }

    /// What this member holds at a revision, which is returned too. If clients
    /// were told of it, all groups will pass it soon.
    async fn hash(&self, revision: Revision) -> Result<ContentSum, Status> {
        let newest = self.newest();
        let wanted = if revision.0 <= 0 { newest } else { revision };
        let deadline = Instant::now() + self.limits.within();
        loop {
            let node = self.node.clone();
            let hash = tokio::task::spawn_blocking(move || node.hash(wanted)).await;
            // Also of the ranges that this member has no replica of, so that all
            // members say the same.
            let hash = match hash.map_err(|_| Status::from(Error::Stopped))? {
                Ok(here) => self.node.hash_with_others(here).await,
                failed => failed,
            };
            match hash {
                Ok(content) => return Ok(content),
                Err(Failure::Reject(Reject::FutureRevision))
                    if wanted <= newest && Instant::now() < deadline =>
                {
                    tokio::time::sleep(HASH_LOOK).await;
                }
                Err(failure) => return Err(status(failure)),
            }
        }
    }

    async fn move_leader(&self, to: NodeId) -> Result<(), Status> {
        let leads = |id: NodeId| self.node.leadership().1 == Some(id);
        if !leads(self.member_id) {
            return Err(Error::NotLeader.into());
        }
        let members = self.node.members();
        if members.get(&to).is_none_or(|member| member.learner) {
            return Err(Error::BadLeaderTransferee.into());
        }
        let deadline = Instant::now() + self.limits.within();
        if to != self.member_id {
            self.node.transfer(GroupId::ROOT, to).await;
        }
        while !leads(to) {
            if Instant::now() >= deadline {
                return Err(Error::TimeoutLeaderTransfer.into());
            }
            tokio::time::sleep(TRANSFER_LOOK).await;
        }
        Ok(())
    }
}

/// A hash of half the length; all bits of the long one count.
fn folded(hash: u64) -> u32 {
    (hash ^ (hash >> 32)) as u32
}

fn alarm_type(alarm: Alarm) -> AlarmType {
    match alarm {
        Alarm::NoSpace => AlarmType::Nospace,
        Alarm::Corrupt => AlarmType::Corrupt,
    }
}

fn bytes(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// There is nothing to go back to, so nothing is enabled; what is asked is
/// checked as etcd does. To cancel is always fine.
fn check_downgrade(request: &DowngradeRequest) -> Result<(), Status> {
    let action = DowngradeAction::try_from(request.action);
    let action = action.map_err(|_| Error::UnknownDowngradeAction)?;
    if action == DowngradeAction::Cancel {
        return Ok(());
    }
    let target = minor(&request.version).ok_or(Error::WrongDowngradeVersionFormat)?;
    let (major, own) = CLUSTER_MINOR;
    if target != (major, own - 1) {
        return Err(Error::InvalidDowngradeTargetVersion.into());
    }
    match action {
        DowngradeAction::Enable => Err(Status::unimplemented(
            "a cluster of Pontoon can't be downgraded to an earlier etcd",
        )),
        _ => Ok(()),
    }
}

/// `X.Y` or `X.Y.Z`, without the Z.
fn minor(version: &str) -> Option<(u32, u32)> {
    let parts: Vec<u32> = version
        .split('.')
        .map(|part| part.parse().ok())
        .collect::<Option<_>>()?;
    match parts[..] {
        [major, minor] | [major, minor, _] => Some((major, minor)),
        _ => None,
    }
}
