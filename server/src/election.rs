//! The Election service: a line of keys, whose head leads.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use futures_util::TryFutureExt;
use pontoon_api::Error;
use pontoon_api::v3electionpb::election_server::Election;
use pontoon_api::v3electionpb::{
    CampaignRequest, CampaignResponse, LeaderKey, LeaderRequest, LeaderResponse, ProclaimRequest,
    ProclaimResponse, ResignRequest, ResignResponse,
};
use pontoon_engine::{
    DeleteRange, EventKind, KeyRange, KeyValue, Op, Put, RangeAnswer, Revision, Txn, TxnAnswer,
};
use pontoon_raftgroup::{Delivery, Watch};
use tonic::{Code, Request, Response, Status};

use crate::calls::Rpc;
use crate::convert;
use crate::host::{Host, needs_leader};
use crate::lock::Leaving;
use crate::queue::{created, first_of, line, prefix, without_code};
use crate::stream_queue::{Receiver, Sender, stream_queue};

pub(crate) struct ElectionService(pub(crate) Arc<Host>);

type Leaders = Sender<Result<LeaderResponse, Status>>;

#[tonic::async_trait]
impl Election for ElectionService {
    type ObserveStream = Receiver<Result<LeaderResponse, Status>>;

    async fn campaign(
        &self,
        request: Request<CampaignRequest>,
    ) -> Result<Response<CampaignResponse>, Status> {
        let (metadata, _, request) = request.into_parts();
        let work = campaign(&self.0, request).map_err(without_code);
        self.0.unary(Rpc::Campaign, &metadata, work).await
    }

    async fn proclaim(
        &self,
        request: Request<ProclaimRequest>,
    ) -> Result<Response<ProclaimResponse>, Status> {
        let (metadata, _, request) = request.into_parts();
        let host = &self.0;
        let work = async {
            let leader = request.leader.ok_or(Error::MissingLeaderKey)?;
            let put = Op::Put(Put {
                key: leader.key.clone(),
                value: request.value,
                lease: leader.lease,
                ..Put::default()
            });
            let answer = host.as_leader(&leader, put).await?;
            match answer.succeeded {
                true => Ok(ProclaimResponse {
                    header: host.header(answer.revision),
                }),
                false => Err(Error::ElectionNotLeader.into()),
            }
        };
        let work = work.map_err(without_code);
        host.unary(Rpc::Proclaim, &metadata, work).await
    }

    async fn leader(
        &self,
        request: Request<LeaderRequest>,
    ) -> Result<Response<LeaderResponse>, Status> {
        let (metadata, _, request) = request.into_parts();
        let host = &self.0;
        let work = async {
            let found = host.head(&request.name).await?;
            match found.kvs.into_iter().next() {
                Some(kv) => Ok(host.leader(found.revision, kv)),
                None => Err(Error::ElectionNoLeader.into()),
            }
        };
        let work = work.map_err(without_code);
        host.unary(Rpc::Leader, &metadata, work).await
    }

    async fn observe(
        &self,
        request: Request<LeaderRequest>,
    ) -> Result<Response<Self::ObserveStream>, Status> {
        let mut call = self.0.open(Rpc::Observe, request.metadata())?;
        let needs_leader = needs_leader(request.metadata());
        let (out, leaders) = stream_queue(1);
        let host = Arc::clone(&self.0);
        let name = request.into_inner().name;
        tokio::spawn(async move {
            let status = tokio::select! {
                status = observe(&host, &name, &out) => status,
                () = out.closed() => return,
                () = host.leaderless(needs_leader) => Error::NoLeader.into(),
                () = host.stop.ordered() => Error::Stopped.into(),
            };
            call.end(status.code());
            if status.code() != Code::Ok {
                // Nobody listens any more: fine.
                let _ = out.send(Err(status)).await;
            }
        });
        Ok(Response::new(leaders))
    }

    async fn resign(
        &self,
        request: Request<ResignRequest>,
    ) -> Result<Response<ResignResponse>, Status> {
        let (metadata, _, request) = request.into_parts();
        let host = &self.0;
        let work = async {
            let leader = request.leader.ok_or(Error::MissingLeaderKey)?;
            let delete = Op::DeleteRange(DeleteRange {
                keys: KeyRange::one(leader.key.clone()),
                prev_kv: false,
            });
            let answer = host.as_leader(&leader, delete).await?;
            Ok(ResignResponse {
                header: host.header(answer.revision),
            })
        };
        let work = work.map_err(without_code);
        host.unary(Rpc::Resign, &metadata, work).await
    }
}

async fn campaign(host: &Arc<Host>, request: CampaignRequest) -> Result<CampaignResponse, Status> {
    let place = host
        .line_up(&request.name, request.lease, request.value.clone())
        .await?;
    let leader = LeaderKey {
        name: request.name.clone(),
        key: place.key.clone(),
        rev: place.created,
        lease: place.lease,
    };
    let leaving = Leaving::new(host, &place.key);
    if place.value.is_some_and(|value| value != request.value) {
        let put = Op::Put(Put {
            key: place.key.clone(),
            value: request.value,
            lease: place.lease,
            ..Put::default()
        });
        if !host.as_leader(&leader, put).await?.succeeded {
            return Err(Error::ElectionNotLeader.into());
        }
    }
    host.wait_for_turn(&request.name, place.created).await?;
    leaving.stay();
    Ok(CampaignResponse {
        header: host.header(place.revision),
        leader: Some(leader),
    })
}

/// Tells the leader, and every one after it, with what they proclaim.
async fn observe(host: &Host, name: &[u8], out: &Leaders) -> Status {
    match follow(host, name, out).await {
        Ok(()) => Status::new(Code::Ok, ""),
        Err(status) => status,
    }
}

async fn follow(host: &Host, name: &[u8], out: &Leaders) -> Result<(), Status> {
    let stopped = || Status::from(Error::Stopped);
    let count = host.calls.of(Rpc::Observe);
    loop {
        let found = host.head(name).await?;
        let head = match found.kvs.into_iter().next() {
            Some(head) => head,
            None => {
                let mut events = host.node.watch(Watch {
                    keys: line(&prefix(name)),
                    from: found.revision.next(),
                    prev_kv: false,
                });
                // Someone came: see who is first.
                events.next().await.ok_or_else(stopped)?;
                continue;
            }
        };
        let (key, from) = (head.key.clone(), found.revision.next());
        if out
            .send(Ok(host.leader(found.revision, head)))
            .await
            .is_err()
        {
            return Ok(());
        }
        count.sent.fetch_add(1, Relaxed);
        let mut events = host.node.watch(Watch {
            keys: KeyRange::one(key),
            from,
            prev_kv: false,
        });
        'leads: loop {
            let Delivery::Events(events) = events.next().await.ok_or_else(stopped)? else {
                break 'leads;
            };
            for event in events {
                if event.kind == EventKind::Delete {
                    break 'leads;
                }
                let leader = host.leader(event.change.revision, event.kv);
                if out.send(Ok(leader)).await.is_err() {
                    return Ok(());
                }
                count.sent.fetch_add(1, Relaxed);
            }
        }
    }
}

impl Host {
    async fn head(&self, name: &[u8]) -> Result<RangeAnswer, Status> {
        self.read(first_of(&prefix(name))).await
    }

    fn leader(&self, revision: Revision, kv: KeyValue) -> LeaderResponse {
        LeaderResponse {
            header: self.header(revision),
            kv: Some(convert::key_value(kv)),
        }
    }

    /// Does something if the leader's key is still the one that it was.
    async fn as_leader(&self, leader: &LeaderKey, op: Op) -> Result<TxnAnswer, Status> {
        let bytes = match &op {
            Op::Put(put) => put.value.len(),
            _ => 0,
        };
        let bytes = bytes + leader.key.len();
        let txn = Txn {
            compare: vec![created(&leader.key, leader.rev)],
            success: vec![op],
            failure: Vec::new(),
        };
        self.transact(txn, bytes, Ok(())).await
    }
}
