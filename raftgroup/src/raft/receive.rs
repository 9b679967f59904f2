//! What other replicas ask of this one.
//!
//! Kept true: appends of one peer reach openraft in the order in which they
//! came, without waiting for the ones before; everything is answered, and
//! bytes that make no sense are refused.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesOrdered;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::raft::{AppendEntriesResponse, TransferLeaderRequest, VoteRequest};
use parking_lot::Mutex;
use tokio::sync::mpsc;

use crate::codec::Wire;
use crate::counters::Present;
use crate::format::{self, Unreadable};
use crate::position::NodeId;
use crate::raft::failure::Stop;
use crate::raft::message::{self, Answer, Ballot, Request};
use crate::raft::probe::Probe;
use crate::raft::types::{AppendRequest, SnapshotMeta, Types, Vote};
use crate::raft::{Group, Raft, wake};

/// Takes the answer to a message.
pub(crate) type Answered = Box<dyn FnOnce(Bytes) + Send>;

/// The appends of each peer that are under way.
#[derive(Default)]
pub(crate) struct Lanes(Mutex<BTreeMap<NodeId, mpsc::UnboundedSender<Append>>>);

type Append = (AppendRequest, Answered);

impl Lanes {
    pub(crate) fn clear(&self) {
        self.0.lock().clear();
    }
}

impl Group {
    /// Takes a message of a peer's replica. Messages of one peer are handed
    /// in in the order in which they came; `reply` gets the answer.
    pub(crate) fn receive(self: &Arc<Self>, from: NodeId, message: Bytes, reply: Answered) {
        let request = match message::decode(self.store_id, message) {
            Ok(request) => request,
            Err(reason) => return reply(Answer::Refused(reason).encode()),
        };
        match request {
            Request::Append {
                vote,
                previous,
                committed,
                records,
            } => {
                if !records.is_empty() && self.is_full() {
                    return reply(refused("there is no space left on the disk").encode());
                }
                match message::append_request(vote, previous, committed, records) {
                    Ok(request) => self.queue(from, (request, reply)),
                    Err(error) => reply(refused(&self.cant_read(&error)).encode()),
                }
            }
            Request::SnapshotBegin {
                formats,
                id,
                vote,
                last,
                membership,
            } => {
                if let Err(error) = format::check("snapshot", formats, self.replica.newest()) {
                    return reply(refused(&self.cant_read(&error)).encode());
                }
                let meta = SnapshotMeta {
                    last_log_id: last,
                    last_membership: membership,
                };
                self.copy(reply, move |group| match group.higher_vote(vote) {
                    Some(higher) => Answer::HigherVote(higher),
                    None => taken(group.incoming.begin(&group.replica, from, id, vote, meta)),
                });
            }
            Request::SnapshotPiece {
                id,
                number,
                page,
                bytes,
            } => self.copy(reply, move |group| {
                taken(group.incoming.add(from, id, number, page, bytes))
            }),
            request => {
                let group = Arc::clone(self);
                self.scope.spawn(async move {
                    let answer = group.answer(from, request).await;
                    reply(answer.unwrap_or_else(Answer::Refused).encode());
                });
            }
        }
    }

    /// What a peer is told of something that it sent. If a later release wrote
    /// that, this one can't follow the group any more, and stops.
    fn cant_read(&self, error: &Unreadable) -> String {
        let reason = format!("node {} can't read what was sent: {error}", self.node);
        if let Unreadable::Version { .. } = error {
            self.replica.failure.set(Stop::Other(reason.clone()));
        }
        reason
    }

    /// Does a part of a copy where nobody else waits for the disk.
    fn copy(
        self: &Arc<Self>,
        reply: Answered,
        part: impl FnOnce(&Self) -> Answer + Send + 'static,
    ) {
        let reply = Arc::new(Mutex::new(Some(reply)));
        let (group, owed) = (Arc::clone(self), Arc::clone(&reply));
        let part = move || {
            let answer = part(&group).encode();
            if let Some(reply) = owed.lock().take() {
                reply(answer);
            }
        };
        if let Err(error) = self.tenders.copy(self.replica.group(), part) {
            tracing::warn!(%error, "no thread for a copy");
            if let Some(reply) = reply.lock().take() {
                reply(refused("there is no thread for a copy").encode());
            }
        }
    }

    /// Forgets the appends of a peer whose link is gone.
    pub(crate) fn peer_lost(&self, peer: NodeId) {
        self.lanes.0.lock().remove(&peer);
    }

    /// Puts an append behind the peer's others.
    fn queue(&self, from: NodeId, append: Append) {
        let mut lanes = self.lanes.0.lock();
        let append = match lanes.get(&from) {
            None => append,
            Some(lane) => match lane.send(append) {
                Ok(()) => return,
                Err(refused) => refused.0,
            },
        };
        let (lane, appends) = mpsc::unbounded_channel();
        // The other end is right here.
        let _ = lane.send(append);
        lanes.insert(from, lane);
        let (raft, probe) = (self.raft.clone(), Arc::clone(&self.probe));
        self.scope.spawn(append_in_order(raft, probe, appends));
    }

    /// Our vote, if it is above that of a sender, who then has lost its place.
    fn higher_vote(&self, vote: Vote) -> Option<Vote> {
        let ours = self.raft.server_metrics().borrow_watched().vote;
        (ours > vote).then_some(ours)
    }

    async fn answer(&self, from: NodeId, request: Request) -> Result<Answer, String> {
        let voted = |response: openraft::raft::VoteResponse<Types>| Answer::Voted {
            vote: response.vote,
            granted: response.vote_granted,
            last: response.last_log_id,
        };
        match request {
            Request::Vote(ballot) => self.raft.vote(ballot.into()).await.map(voted).map_err(text),
            Request::PreVote(ballot) => {
                let response = self.raft.pre_vote(ballot.into()).await;
                response.map(voted).map_err(text)
            }
            Request::TakeOver { to, .. } if to == self.node.0 && self.is_full() => {
                Err("there is no space left on the disk".to_owned())
            }
            Request::TakeOver { vote, to, last } => {
                let request = TransferLeaderRequest::new(vote, to, last);
                let response = self.raft.handle_transfer_leader(request).await;
                response.map_err(text)?.map_err(text)?;
                wake(&self.raft, &self.probe);
                Ok(Answer::Taken)
            }
            Request::SnapshotEnd { id, pieces } => {
                let (vote, snapshot) = self.incoming.end(from, id, pieces)?;
                let _present = Present::new(&self.counters.installing);
                let response = self.raft.install_full_snapshot(vote, snapshot).await;
                self.incoming.installed();
                response
                    .map(|response| Answer::Installed(response.vote))
                    .map_err(text)
            }
            _ => Err("the message was to be handled at once".to_owned()),
        }
    }
}

/// Hands appends to openraft as they come, and its answers back in order.
async fn append_in_order(
    raft: Raft,
    probe: Arc<Probe>,
    mut appends: mpsc::UnboundedReceiver<Append>,
) {
    let mut under_way = FuturesOrdered::new();
    loop {
        tokio::select! {
            biased;
            append = appends.recv() => match append {
                None => return,
                Some((request, reply)) => {
                    let wakes = !request.entries.is_empty();
                    let response = raft.append_entries(request);
                    under_way.push_back(async move { (response.await, wakes, reply) });
                }
            },
            Some((response, wakes, reply)) = under_way.next() => {
                let answer = match response {
                    Ok(AppendEntriesResponse::Success) => Answer::Appended,
                    Ok(AppendEntriesResponse::Conflict) => Answer::Conflict,
                    Ok(AppendEntriesResponse::HigherVote(vote)) => Answer::HigherVote(vote),
                    Ok(AppendEntriesResponse::PartialSuccess(_)) => {
                        refused("only a part was appended")
                    }
                    Err(error) => refused(&error.to_string()),
                };
                reply(answer.encode());
                // Only now that the leader was heard: with its timers before
                // that, this replica would have stood for election.
                if wakes && *probe.quiet.borrow() {
                    wake(&raft, &probe);
                }
            }
        }
    }
}

impl From<Ballot> for VoteRequest<Types> {
    fn from(ballot: Ballot) -> Self {
        Self {
            leadership_transfer: ballot.transfer,
            ..Self::new(ballot.vote, ballot.last)
        }
    }
}

fn refused(reason: &str) -> Answer {
    Answer::Refused(reason.to_owned())
}

fn taken(result: Result<(), String>) -> Answer {
    result.map_or_else(Answer::Refused, |()| Answer::Taken)
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
