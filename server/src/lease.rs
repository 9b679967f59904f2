//! Leases.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use pontoon_api::Error;
use pontoon_api::etcdserverpb::lease_server::Lease;
use pontoon_api::etcdserverpb::{
    LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse,
    LeaseLeasesRequest, LeaseLeasesResponse, LeaseRevokeRequest, LeaseRevokeResponse, LeaseStatus,
    LeaseTimeToLiveRequest, LeaseTimeToLiveResponse,
};
use pontoon_engine::Reject;
use pontoon_raftgroup::Failure;
use tonic::{Code, Request, Response, Status, Streaming};

use crate::calls::Rpc;
use crate::failure::status;
use crate::host::{Host, needs_leader};
use crate::quota::LEASE_BYTES;
use crate::stream_queue::{Receiver, Sender, stream_queue};

/// Answers that may wait for a client.
const QUEUE_ANSWERS_MAX: usize = 16;

pub(crate) struct LeaseService(pub(crate) Arc<Host>);

#[tonic::async_trait]
impl Lease for LeaseService {
    type LeaseKeepAliveStream = Receiver<Result<LeaseKeepAliveResponse, Status>>;

    async fn lease_grant(
        &self,
        request: Request<LeaseGrantRequest>,
    ) -> Result<Response<LeaseGrantResponse>, Status> {
        let (metadata, _, request) = request.into_parts();
        let host = &self.0;
        let work = async {
            let granted = host.lease_grant(request.id, request.ttl).await?;
            Ok(LeaseGrantResponse {
                header: host.header_from(granted.revision),
                id: granted.id,
                ttl: granted.ttl_secs,
                error: String::new(),
            })
        };
        host.unary(Rpc::LeaseGrant, &metadata, work).await
    }

    async fn lease_revoke(
        &self,
        request: Request<LeaseRevokeRequest>,
    ) -> Result<Response<LeaseRevokeResponse>, Status> {
        let (metadata, _, request) = request.into_parts();
        let host = &self.0;
        let work = async {
            let revoked = host.node.lease_revoke(request.id, host.limits.within());
            let revision = revoked.await.map_err(status)?;
            // That of the deletes, whatever was written since.
            Ok(LeaseRevokeResponse {
                header: host.header(revision),
            })
        };
        host.unary(Rpc::LeaseRevoke, &metadata, work).await
    }

    async fn lease_keep_alive(
        &self,
        request: Request<Streaming<LeaseKeepAliveRequest>>,
    ) -> Result<Response<Self::LeaseKeepAliveStream>, Status> {
        let mut call = self.0.open(Rpc::LeaseKeepAlive, request.metadata())?;
        let needs_leader = needs_leader(request.metadata());
        let (out, answers) = stream_queue(QUEUE_ANSWERS_MAX);
        let host = Arc::clone(&self.0);
        tokio::spawn(async move {
            let done = tokio::select! {
                done = keep_alive(&host, request.into_inner(), &out) => done,
                () = out.closed() => return,
                () = host.leaderless(needs_leader) => Err(Error::NoLeader.into()),
                () = host.stop.ordered() => Err(Error::Stopped.into()),
            };
            match done {
                Ok(()) => call.end(Code::Ok),
                Err(status) => {
                    call.end(status.code());
                    // Nobody listens any more: fine.
                    let _ = out.send(Err(status)).await;
                }
            }
        });
        Ok(Response::new(answers))
    }

    async fn lease_time_to_live(
        &self,
        request: Request<LeaseTimeToLiveRequest>,
    ) -> Result<Response<LeaseTimeToLiveResponse>, Status> {
        let (metadata, _, request) = request.into_parts();
        let host = &self.0;
        let work = async {
            let (id, within) = (request.id, host.limits.within());
            let found = host.node.lease_status(id, request.keys, within).await;
            let found = found.map_err(status)?;
            let (ttl, granted_ttl, keys) = match found {
                Some(found) => (found.ttl_secs, found.granted_secs, found.keys),
                None => (-1, 0, Vec::new()),
            };
            Ok(LeaseTimeToLiveResponse {
                header: host.header_now(),
                id,
                ttl,
                granted_ttl,
                keys,
            })
        };
        host.unary(Rpc::LeaseTimeToLive, &metadata, work).await
    }

    async fn lease_leases(
        &self,
        request: Request<LeaseLeasesRequest>,
    ) -> Result<Response<LeaseLeasesResponse>, Status> {
        let host = &self.0;
        let work = async {
            let ids = host.node.leases().into_iter();
            Ok(LeaseLeasesResponse {
                header: host.header_now(),
                leases: ids.map(|id| LeaseStatus { id }).collect(),
            })
        };
        host.unary(Rpc::LeaseLeases, request.metadata(), work).await
    }
}

impl Host {
    pub(crate) async fn lease_grant(
        &self,
        id: i64,
        ttl_secs: i64,
    ) -> Result<pontoon_raftgroup::LeaseGranted, Status> {
        self.reserve(LEASE_BYTES).await?;
        let granted = self.node.lease_grant(id, ttl_secs, self.limits.within());
        granted.await.map_err(status)
    }
}

/// One answer for each request, in order; a lease that is gone has no time left.
async fn keep_alive(
    host: &Host,
    mut requests: Streaming<LeaseKeepAliveRequest>,
    out: &Sender<Result<LeaseKeepAliveResponse, Status>>,
) -> Result<(), Status> {
    let count = host.calls.of(Rpc::LeaseKeepAlive);
    let broke_off = |status: &Status| {
        if status.code() != Code::Cancelled {
            host.tallies.keep_alive_failures.fetch_add(1, Relaxed);
        }
    };
    while let Some(request) = requests.message().await.inspect_err(broke_off)? {
        count.received.fetch_add(1, Relaxed);
        let LeaseKeepAliveRequest { id } = request;
        // Taken first: what it tells is not newer than the renewal.
        let header = host.header_now();
        let alive = host.node.lease_keep_alive(id, host.limits.within());
        let ttl = match alive.await {
            Ok(ttl) => ttl.unwrap_or(0),
            Err(Failure::Reject(Reject::LeaseNotFound)) => 0,
            Err(failure) => return Err(status(failure)),
        };
        let answer = LeaseKeepAliveResponse { header, id, ttl };
        if out.send(Ok(answer)).await.is_err() {
            return Ok(());
        }
        count.sent.fetch_add(1, Relaxed);
    }
    Ok(())
}
