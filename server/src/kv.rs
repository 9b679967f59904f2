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
use tonic::{Extensions, Request, Response, Status};

use crate::bounds::{OpenCall, ResponseKind};
use crate::calls::Rpc;
use crate::convert;
use crate::failure::{rejected, status};
use crate::front;
use crate::host::{Host, misplaced};
use crate::quota::{cost_of_put, cost_of_txn};
use crate::range_stream;
use crate::stream_queue::Receiver;

/// Between two looks whether a compaction is done.
const SWEEP_LOOK: Duration = Duration::from_millis(5);

pub(crate) struct KvService(pub(crate) Arc<Host>);

#[tonic::async_trait]
impl Kv for KvService {
    type RangeStreamStream = Receiver<Result<RangeStreamResponse, Status>>;

    async fn range(
        &self,
        request: Request<RangeRequest>,
    ) -> Result<Response<RangeResponse>, Status> {
        let (metadata, extensions, request) = request.into_parts();
        let host = &self.0;
        let work = async {
            let answer = match extensions.get::<Arc<OpenCall>>() {
                Some(call) if !request.count_only => {
                    let kind = match request.range_end.is_empty() {
                        true => ResponseKind::OneKey,
                        false => ResponseKind::ManyKeys,
                    };
                    let make = async || host.range(request.clone()).await;
                    call.make(kind, make, bytes).await?
                }
                _ => host.range(request).await?,
            };
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
        let open = request.extensions().get().cloned();
        let request = request.into_inner();
        let parts = range_stream::serve(&self.0, call, open, request)?;
        Ok(Response::new(parts))
    }

    async fn put(&self, request: Request<PutRequest>) -> Result<Response<PutResponse>, Status> {
        let (metadata, extensions, request) = request.into_parts();
        let kind = request.prev_kv.then_some(ResponseKind::PrevKv);
        let work = counted(&extensions, kind, self.0.put(request));
        self.0.unary(Rpc::Put, &metadata, work).await
    }

    async fn delete_range(
        &self,
        request: Request<DeleteRangeRequest>,
    ) -> Result<Response<DeleteRangeResponse>, Status> {
        let (metadata, extensions, request) = request.into_parts();
        let kind = request.prev_kv.then_some(ResponseKind::PrevKv);
        let work = counted(&extensions, kind, self.0.delete_range(request));
        self.0.unary(Rpc::DeleteRange, &metadata, work).await
    }

    async fn txn(&self, request: Request<TxnRequest>) -> Result<Response<TxnResponse>, Status> {
        let (metadata, extensions, request) = request.into_parts();
        let work = counted(&extensions, Some(ResponseKind::Txn), self.0.txn(request));
        self.0.unary(Rpc::Txn, &metadata, work).await
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

/// Makes a response once there is room for one of its kind, and counts it. One
/// without a kind is small.
async fn counted<T: Message>(
    extensions: &Extensions,
    kind: Option<ResponseKind>,
    make: impl Future<Output = Result<T, Status>>,
) -> Result<T, Status> {
    let (Some(call), Some(kind)) = (extensions.get::<Arc<OpenCall>>(), kind) else {
        return make.await;
    };
    let room = call.expect(kind).await;
    let response = make.await?;
    let bytes = response.encoded_len();
    call.learn(kind, bytes);
    room.fill(bytes);
    Ok(response)
}

/// Bytes of an answer, without its header.
pub(crate) fn bytes(answer: &RangeAnswer) -> usize {
    let kvs = answer.kvs.iter();
    kvs.map(|kv| kv.key.len() + kv.value.len()).sum()
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
