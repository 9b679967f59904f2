//! Keys: read, written, deleted, compacted.
//!
//! Kept true: a request is checked in etcd's order: quota, form and size here,
//! then alarms where it is evaluated.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use pontoon_api::Error;
use pontoon_api::etcdserverpb::kv_server::Kv;
use pontoon_api::etcdserverpb::{
    CompactionRequest, CompactionResponse, DeleteRangeRequest, DeleteRangeResponse, PutRequest,
    PutResponse, RangeRequest, RangeResponse, RangeStreamResponse, TxnRequest, TxnResponse,
};
use pontoon_engine::{Answer, RangeAnswer, Request as Asked, Revision, Txn, TxnAnswer, check};
use pontoon_raftgroup::Alarm;
use prost::Message;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use crate::calls::Rpc;
use crate::convert;
use crate::failure::{rejected, status};
use crate::front;
use crate::host::{Host, misplaced};
use crate::quota::{cost_of_put, cost_of_txn};
use crate::range_stream;

/// Between two looks whether a compaction is done.
const SWEEP_LOOK: Duration = Duration::from_millis(5);

pub(crate) struct KvService(pub(crate) Arc<Host>);

#[tonic::async_trait]
impl Kv for KvService {
    type RangeStreamStream = ReceiverStream<Result<RangeStreamResponse, Status>>;

    async fn range(
        &self,
        request: Request<RangeRequest>,
    ) -> Result<Response<RangeResponse>, Status> {
        let (metadata, _, request) = request.into_parts();
        let host = &self.0;
        let work = async {
            let answer = host.range(request).await?;
            let header = host.header(answer.revision);
            Ok(convert::ranged(answer, header))
        };
        host.unary(Rpc::Range, &metadata, work).await
    }

    async fn range_stream(
        &self,
        request: Request<RangeRequest>,
    ) -> Result<Response<Self::RangeStreamStream>, Status> {
        let call = self.0.open(Rpc::RangeStream, request.metadata())?;
        let request = request.into_inner();
        Ok(Response::new(range_stream::serve(&self.0, call, request)?))
    }

    async fn put(&self, request: Request<PutRequest>) -> Result<Response<PutResponse>, Status> {
        let (metadata, _, request) = request.into_parts();
        self.0.unary(Rpc::Put, &metadata, self.0.put(request)).await
    }

    async fn delete_range(
        &self,
        request: Request<DeleteRangeRequest>,
    ) -> Result<Response<DeleteRangeResponse>, Status> {
        let (metadata, _, request) = request.into_parts();
        let work = self.0.delete_range(request);
        self.0.unary(Rpc::DeleteRange, &metadata, work).await
    }

    async fn txn(&self, request: Request<TxnRequest>) -> Result<Response<TxnResponse>, Status> {
        let (metadata, _, request) = request.into_parts();
        self.0.unary(Rpc::Txn, &metadata, self.0.txn(request)).await
    }

    async fn compact(
        &self,
        request: Request<CompactionRequest>,
    ) -> Result<Response<CompactionResponse>, Status> {
        let (metadata, _, request) = request.into_parts();
        let work = self.0.compact(request);
        self.0.unary(Rpc::Compact, &metadata, work).await
    }
}

impl Host {
    pub(crate) async fn range(&self, request: RangeRequest) -> Result<RangeAnswer, Status> {
        if self.is_learner() && !request.serializable {
            return Err(Error::NotSupportedForLearner.into());
        }
        if request.key.is_empty() {
            return Err(Error::EmptyKey.into());
        }
        if !convert::is_sort_known(&request) {
            return Err(Error::InvalidSortOption.into());
        }
        let serializable = request.serializable;
        let range = convert::range(request);
        if serializable {
            let read = front::read_serializable(&self.node, range, self.limits.within());
            return read.await.map_err(status);
        }
        self.read(range).await
    }

    async fn put(&self, request: PutRequest) -> Result<PutResponse, Status> {
        let bytes = request.encoded_len();
        let put = convert::put(request);
        self.reserve(cost_of_put(&put)).await?;
        let request = Asked::Put(put);
        self.check(&request, bytes)?;
        match self.request(request).await? {
            Answer::Put(answer) => {
                let header = self.header(answer.revision);
                Ok(convert::was_put(answer, header))
            }
            other => Err(misplaced(&other)),
        }
    }

    async fn delete_range(
        &self,
        request: DeleteRangeRequest,
    ) -> Result<DeleteRangeResponse, Status> {
        let bytes = request.encoded_len();
        let request = Asked::DeleteRange(convert::delete_range(request));
        self.check(&request, bytes)?;
        match self.request(request).await? {
            Answer::DeleteRange(answer) => {
                let header = self.header(answer.revision);
                Ok(convert::deleted(answer, header))
            }
            other => Err(misplaced(&other)),
        }
    }

    async fn txn(&self, request: TxnRequest) -> Result<TxnResponse, Status> {
        let bytes = request.encoded_len();
        let sorts = convert::check_sorts(&request, self.limits.txn_ops_max);
        let answer = self.transact(convert::txn(request), bytes, sorts).await?;
        let header = self.header(answer.revision);
        Ok(convert::transacted(answer, header))
    }

    /// A transaction of so many bytes, and whether the ranges in it are sorted
    /// in a way that there is.
    pub(crate) async fn transact(
        &self,
        txn: Txn,
        bytes: usize,
        sorts: Result<(), Error>,
    ) -> Result<TxnAnswer, Status> {
        self.reserve(cost_of_txn(&txn)).await?;
        sorts?;
        let request = Asked::Txn(txn);
        self.check(&request, bytes)?;
        match self.request(request).await? {
            Answer::Txn(answer) => {
                self.count_txn(&answer);
                Ok(answer)
            }
            other => Err(misplaced(&other)),
        }
    }

    fn count_txn(&self, answer: &TxnAnswer) {
        let (steps, ranges) = steps(&answer.answers);
        let tallies = &self.tallies;
        tallies.txns.fetch_add(u64::from(steps > 1), Relaxed);
        tallies.txn_ranges.fetch_add(ranges, Relaxed);
    }

    async fn compact(&self, request: CompactionRequest) -> Result<CompactionResponse, Status> {
        let deadline = Instant::now() + self.limits.within();
        let revision = Revision(request.revision);
        let compacted = self.node.compact(revision, self.limits.within()).await;
        if request.physical {
            // Also if it was refused: whoever asks wants to know it done.
            while !self.node.is_swept() && Instant::now() < deadline {
                tokio::time::sleep(SWEEP_LOOK).await;
            }
        }
        let newest = compacted.map_err(status)?;
        Ok(CompactionResponse {
            header: self.header_from(newest),
        })
    }

    /// What can be refused without looking at any state.
    pub(crate) fn check(&self, request: &Asked, bytes: usize) -> Result<(), Error> {
        check(request, self.limits.txn_ops_max).map_err(|reject| rejected(&reject))?;
        match bytes > self.limits.request_bytes_max {
            true => Err(Error::RequestTooLarge),
            false => Ok(()),
        }
    }

    /// Looks how much the trees hold now.
    pub(crate) fn measure(&self) {
        let replicas = self.node.status();
        let used = replicas.iter().map(|replica| replica.used_bytes);
        self.quota.measure(used.sum());
    }

    /// Takes room for a write; raises the alarm if there is none.
    pub(crate) async fn reserve(&self, bytes: i64) -> Result<(), Status> {
        if self.quota.admit(bytes) {
            return Ok(());
        }
        let (id, within) = (self.member_id, self.limits.within());
        let alarm = Box::pin(self.node.alarm(id, Alarm::NoSpace, true, within)).await;
        if let Err(failure) = alarm {
            tracing::warn!("the alarm NOSPACE can't be raised: {failure}");
        }
        Err(Error::NoSpace.into())
    }
}

/// Steps of a transaction, and how many of them are ranges.
fn steps(answers: &[Answer]) -> (u64, u64) {
    let counts = answers.iter().map(|answer| match answer {
        Answer::Txn(txn) => steps(&txn.answers),
        Answer::Range(_) => (1, 1),
        _ => (1, 0),
    });
    counts.fold((0, 0), |(steps, ranges), (s, r)| (steps + s, ranges + r))
}
