//! What openraft sends to a peer, over the node's links.
//!
//! Kept true: requests are queued in the order in which openraft makes them,
//! and their answers are handed back in that order; a bounded number of them
//! is under way.

use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{FuturesOrdered, poll_fn};
use futures_util::{Stream, StreamExt};
use openraft::base::{BoxFuture, BoxStream};
use openraft::errors::{RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{Backoff, RPCOption};
use openraft::raft::{
    AppendEntriesResponse, SnapshotResponse, StreamAppendResult, TransferLeaderRequest,
    TransferLeaderResponse, VoteRequest, VoteResponse,
};
use openraft::{AnyError, OptionalSend, RaftNetworkFactory, RaftNetworkV2};
use tokio::time::Instant;

use crate::codec::Wire;
use crate::counters::{Counters, Transfer};
use crate::health::Health;
use crate::position::{GroupId, NodeId};
use crate::raft::failure::{Failure, Stop};
use crate::raft::machine::{Snapshot, SnapshotData};
use crate::raft::message::{self, Answer, Ballot, Request};
use crate::raft::probe::Probe;
use crate::raft::retention::SentSnapshots;
use crate::raft::snapshot;
use crate::raft::tenders::Tenders;
use crate::raft::types::{AppendRequest, Types, Vote};

/// Appends to one peer that are under way at most.
const APPENDS_MAX: usize = 16;
/// How long a peer that can't be reached is left alone, at first and at most.
const BACKOFF_FIRST: Duration = Duration::from_millis(20);
const BACKOFF_MAX: Duration = Duration::from_millis(500);

/// The way to the other replicas of all groups.
pub(crate) trait Peers: Send + Sync + 'static {
    /// Asks the replica of `group` on node `to`. The message is queued when
    /// this returns, so messages to one peer arrive in order. An error means
    /// that there is no answer: nobody knows what became of the message.
    fn call(
        &self,
        to: NodeId,
        group: GroupId,
        message: Bytes,
        within: Duration,
    ) -> Pin<Box<dyn Future<Output = Result<Bytes, String>> + Send>>;
}

/// The way to the other replicas of one group.
#[derive(Clone)]
pub(crate) struct Links {
    pub(crate) peers: Arc<dyn Peers>,
    pub(crate) group: GroupId,
    /// Which store the group keeps.
    pub(crate) store: u128,
    /// How long an append may take: its answer waits for the peer's disk.
    pub(crate) append_within: Duration,
    /// Pieces of a snapshot that are under way at most.
    pub(crate) window: usize,
    pub(crate) sent: SentSnapshots,
    pub(crate) tenders: Arc<Tenders>,
    pub(crate) probe: Arc<Probe>,
    pub(crate) failure: Arc<Failure>,
    pub(crate) health: Arc<Health>,
    pub(crate) counters: Arc<Counters>,
}

impl RaftNetworkFactory<Types> for Links {
    type Network = Link;

    async fn new_client(&mut self, target: u64, _: &openraft::EmptyNode) -> Link {
        Link {
            links: self.clone(),
            to: NodeId(target),
            since: Instant::now(),
        }
    }
}

/// The way to one other replica.
pub(crate) struct Link {
    pub(crate) links: Links,
    to: NodeId,
    /// A leader has its own links from its election on.
    since: Instant,
}

type AppendResult = Result<StreamAppendResult<Types>, RPCError<Types>>;

impl Link {
    /// Queues a request; the future is its answer.
    pub(crate) fn ask(
        &self,
        request: &Request,
        within: Duration,
    ) -> impl Future<Output = Result<Answer, Unreachable<Types>>> + Send + use<> {
        let message = message::encode(self.links.store, request);
        let links = &self.links;
        let answer = links.peers.call(self.to, links.group, message, within);
        async move {
            let answer = answer.await.map_err(|reason| unreachable(&reason))?;
            match Answer::decode(answer) {
                None => Err(unreachable("the answer makes no sense")),
                Some(Answer::Refused(reason)) => Err(unreachable(&reason)),
                Some(answer) => Ok(answer),
            }
        }
    }

    fn append(&self, request: &AppendRequest) -> BoxFuture<'static, AppendResult> {
        if self.links.health.is_stalled() {
            let silent = unreachable("a leader whose disk stalls keeps silent");
            return Box::pin(ready(Err(silent.into())));
        }
        if request.entries.is_empty() && !self.links.probe.allows(self.since) {
            let silent = unreachable("a leader without a quorum keeps silent");
            return Box::pin(ready(Err(silent.into())));
        }
        let previous = request.prev_log_id;
        let last = request.entries.last().map(|entry| entry.log_id);
        let answer = self.ask(&Request::append(request), self.links.append_within);
        Box::pin(async move {
            let response = match answer.await? {
                Answer::Appended => AppendEntriesResponse::Success,
                Answer::Conflict if previous.is_some() => AppendEntriesResponse::Conflict,
                Answer::HigherVote(vote) => AppendEntriesResponse::HigherVote(vote),
                _ => return Err(mistaken().into()),
            };
            Ok(response.into_stream_result(previous, last.or(previous)))
        })
    }

    /// What was to be sent can't be read.
    pub(crate) fn failed(&self, reason: Stop) {
        self.links
            .failure
            .set(reason.while_doing("sending a snapshot"));
    }

    async fn ballot(
        &self,
        request: Request,
        option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        match self.ask(&request, option.soft_ttl()).await? {
            Answer::Voted {
                vote,
                granted,
                last,
            } => Ok(VoteResponse::new(vote, last, granted)),
            _ => Err(mistaken().into()),
        }
    }
}

pub(crate) fn unreachable(reason: &str) -> Unreachable<Types> {
    Unreachable::new(&AnyError::error(reason))
}

pub(crate) fn mistaken() -> Unreachable<Types> {
    unreachable("the answer is to another question")
}

impl From<VoteRequest<Types>> for Ballot {
    fn from(request: VoteRequest<Types>) -> Self {
        Self {
            vote: request.vote,
            last: request.last_log_id,
            transfer: request.leadership_transfer,
        }
    }
}

impl RaftNetworkV2<Types> for Link {
    type SnapshotData = SnapshotData;

    async fn append_entries(
        &mut self,
        request: AppendRequest,
        _: RPCOption,
    ) -> Result<AppendEntriesResponse<Types>, RPCError<Types>> {
        Ok(self.append(&request).await?.into())
    }

    fn stream_append<'s, S>(
        &'s mut self,
        mut requests: S,
        _: RPCOption,
    ) -> BoxFuture<'s, Result<BoxStream<'s, AppendResult>, RPCError<Types>>>
    where
        S: Stream<Item = AppendRequest> + OptionalSend + Unpin + 'static,
    {
        let mut under_way = FuturesOrdered::new();
        let (mut more, mut failed) = (true, false);
        let answers = poll_fn(move |context| {
            while more && under_way.len() < APPENDS_MAX {
                match requests.poll_next_unpin(context) {
                    Poll::Ready(Some(request)) => under_way.push_back(self.append(&request)),
                    Poll::Ready(None) => more = false,
                    Poll::Pending => break,
                }
            }
            if failed {
                return Poll::Ready(None);
            }
            match under_way.poll_next_unpin(context) {
                Poll::Ready(None) if more => Poll::Pending,
                Poll::Ready(answer) => {
                    failed = !matches!(answer, Some(Ok(Ok(_))));
                    more &= !failed;
                    Poll::Ready(answer)
                }
                Poll::Pending => Poll::Pending,
            }
        });
        let answers: BoxStream<'s, AppendResult> = Box::pin(answers);
        Box::pin(ready(Ok(answers)))
    }

    async fn vote(
        &mut self,
        request: VoteRequest<Types>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        self.ballot(Request::Vote(request.into()), option).await
    }

    async fn pre_vote(
        &mut self,
        request: VoteRequest<Types>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        self.ballot(Request::PreVote(request.into()), option).await
    }

    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<Types>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<Types>, RPCError<Types>> {
        let request = Request::TakeOver {
            vote: *request.from_leader(),
            to: *request.to_node_id(),
            last: request.last_log_id().copied(),
        };
        match self.ask(&request, option.soft_ttl()).await? {
            Answer::Taken => Ok(Ok(())),
            _ => Err(mistaken().into()),
        }
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: Snapshot,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        option: RPCOption,
    ) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
        let last = snapshot.meta.last_log_id;
        let index = last.map_or(0, |last| last.index + 1);
        self.links.sent.begin(self.to, index);
        let transfer = Transfer::begin(self.links.counters.snapshots_to(self.to));
        let sent = snapshot::send(self, vote, snapshot, option.soft_ttl());
        let sent = tokio::select! {
            biased;
            closed = cancel => return Err(closed.into()),
            sent = sent => sent?,
        };
        transfer.done();
        Ok(sent)
    }

    fn backoff(&self) -> Option<Backoff> {
        let pauses = std::iter::successors(Some(BACKOFF_FIRST), |pause| {
            Some((*pause * 2).min(BACKOFF_MAX))
        });
        Some(Backoff::new(pauses))
    }
}
