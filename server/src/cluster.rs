//! Members: listed, added, removed, updated, promoted.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pontoon_api::Error;
use pontoon_api::etcdserverpb::cluster_server::Cluster;
use pontoon_api::etcdserverpb::{
    Member as PbMember, MemberAddRequest, MemberAddResponse, MemberListRequest, MemberListResponse,
    MemberPromoteRequest, MemberPromoteResponse, MemberRemoveRequest, MemberRemoveResponse,
    MemberUpdateRequest, MemberUpdateResponse,
};
use pontoon_raftgroup::{Member, NodeId};
use tonic::{Request, Response, Status};

use crate::calls::Rpc;
use crate::card::{Card, member};
use crate::failure::status;
use crate::host::Host;
use crate::identity::member_id;
use crate::node::FULLY_REPLICATED_MAX;
use crate::url::Url;

/// A member that was connected for less counts as down when the members change
/// (etcd's `HealthInterval`).
const HEALTH_INTERVAL: Duration = Duration::from_secs(5);

pub(crate) struct ClusterService(pub(crate) Arc<Host>);

#[tonic::async_trait]
impl Cluster for ClusterService {
    async fn member_add(
        &self,
        request: Request<MemberAddRequest>,
    ) -> Result<Response<MemberAddResponse>, Status> {
        let (metadata, _, request) = request.into_parts();
        let work = self.0.member_add(request);
        self.0.unary(Rpc::MemberAdd, &metadata, work).await
    }

    async fn member_remove(
        &self,
        request: Request<MemberRemoveRequest>,
    ) -> Result<Response<MemberRemoveResponse>, Status> {
        let (metadata, _, request) = request.into_parts();
        let host = &self.0;
        let work = async {
            let id = NodeId(request.id);
            // One that was removed may still be counted by some range.
            if host.find(id).await?.is_some() {
                host.check_removal(id)?;
            }
            let removed = host.node.member_remove(id, host.limits.within());
            removed.await.map_err(status)?;
            Ok(MemberRemoveResponse {
                header: host.header_without_revision(),
                members: host.members(),
            })
        };
        host.unary(Rpc::MemberRemove, &metadata, work).await
    }

    async fn member_update(
        &self,
        request: Request<MemberUpdateRequest>,
    ) -> Result<Response<MemberUpdateResponse>, Status> {
        let (metadata, _, request) = request.into_parts();
        let host = &self.0;
        let work = async {
            host.member_update(request).await?;
            Ok(MemberUpdateResponse {
                header: host.header_without_revision(),
                members: host.members(),
            })
        };
        host.unary(Rpc::MemberUpdate, &metadata, work).await
    }

    async fn member_list(
        &self,
        request: Request<MemberListRequest>,
    ) -> Result<Response<MemberListResponse>, Status> {
        let (metadata, _, request) = request.into_parts();
        let host = &self.0;
        let work = async {
            if request.linearizable {
                host.catch_up().await?;
            }
            Ok(MemberListResponse {
                header: host.header_without_revision(),
                members: host.members(),
            })
        };
        host.unary(Rpc::MemberList, &metadata, work).await
    }

    async fn member_promote(
        &self,
        request: Request<MemberPromoteRequest>,
    ) -> Result<Response<MemberPromoteResponse>, Status> {
        let (metadata, _, request) = request.into_parts();
        let host = &self.0;
        let work = async {
            let id = NodeId(request.id);
            host.known(id).await?;
            if host.limits.strict_reconfig {
                host.check_promotion()?;
            }
            host.check_count(&host.node.members())?;
            let promoted = host.node.member_promote(id, host.limits.within());
            let promoted = promoted.await.map_err(status);
            let refused = promoted.as_ref().err().map(Status::message);
            host.tallies.promoted(refused);
            promoted?;
            Ok(MemberPromoteResponse {
                header: host.header_without_revision(),
                members: host.members(),
            })
        };
        host.unary(Rpc::MemberPromote, &metadata, work).await
    }
}

impl Host {
    /// All members, by their ids.
    pub(crate) fn members(&self) -> Vec<PbMember> {
        let members = self.node.members();
        members
            .iter()
            .map(|(id, known)| member(*id, known))
            .collect()
    }

    /// A member, if there is one with this id: that there is none is said only
    /// by what was acknowledged before, also if another member did so.
    async fn find(&self, id: NodeId) -> Result<Option<Member>, Status> {
        let find = || self.node.members().remove(&id);
        if let Some(member) = find() {
            return Ok(Some(member));
        }
        self.catch_up().await?;
        Ok(find())
    }

    async fn known(&self, id: NodeId) -> Result<Member, Status> {
        let member = self.find(id).await?;
        member.ok_or_else(|| Error::MemberNotFound.into())
    }

    async fn member_add(&self, request: MemberAddRequest) -> Result<MemberAddResponse, Status> {
        let urls = request.peer_urls.iter().map(|url| Url::parse(url));
        let urls = urls.collect::<Result<Vec<_>, _>>();
        let urls = urls.map_err(|_| Error::MemberBadUrls)?;
        if urls.is_empty() {
            return Err(Error::MemberBadUrls.into());
        }
        if self.limits.strict_reconfig {
            self.check_addition(request.is_learner)?;
        }
        // What others have added counts too.
        self.catch_up().await?;
        let members = self.node.members();
        if !request.is_learner {
            self.check_count(&members)?;
        }
        let card = Card::of("", &urls);
        check_urls_free(&members, None, &card)?;
        let learners = members.values().filter(|member| member.learner).count();
        if request.is_learner && learners >= self.limits.learners_max {
            return Err(Error::TooManyLearners.into());
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.map_or(0, |since| since.as_secs());
        let id = member_id(&urls, &now.to_string());
        let added = Member {
            address: card.write(),
            learner: request.is_learner,
        };
        let done = self
            .node
            .member_add(id, added.clone(), self.limits.within());
        done.await.map_err(status)?;
        Ok(MemberAddResponse {
            header: self.header_without_revision(),
            member: Some(member(id, &added)),
            members: self.members(),
        })
    }

    async fn member_update(&self, request: MemberUpdateRequest) -> Result<(), Status> {
        let id = NodeId(request.id);
        let known = self.known(id).await?;
        let members = self.node.members();
        let mut card = Card::read(&known.address);
        card.peer_urls = request.peer_urls;
        card.peer_urls.sort();
        check_urls_free(&members, Some(id), &card)?;
        let updated = self
            .node
            .member_update(id, card.write(), self.limits.within());
        updated.await.map_err(status)
    }

    /// Whether there may be one more voter.
    fn check_count(&self, members: &BTreeMap<NodeId, Member>) -> Result<(), Error> {
        let voters = members.values().filter(|member| !member.learner).count();
        let is_everywhere = self.node.map().is_some_and(|map| map.replicas == 0);
        match is_everywhere && voters >= FULLY_REPLICATED_MAX {
            true => Err(Error::TooManyVoters),
            false => Ok(()),
        }
    }

    /// Whether the voters that have started, and those that are steadily
    /// connected, are still a quorum when there is one more member that isn't
    /// there yet. As in etcd, a learner must not cost the quorum either.
    fn check_addition(&self, learner: bool) -> Result<(), Error> {
        let voters = Voters::of(self, &self.node.members(), None);
        // With one member there is no other way to have two.
        if voters.all == 1 {
            return Ok(());
        }
        let quorum = quorum(voters.all + 1);
        if !learner && voters.started < quorum {
            return Err(Error::NotEnoughStartedMembers);
        }
        match voters.steady < quorum {
            true => Err(Error::Unhealthy),
            false => Ok(()),
        }
    }

    /// Whether the voters that have started are a quorum beside the learner.
    fn check_promotion(&self) -> Result<(), Error> {
        let voters = Voters::of(self, &self.node.members(), None);
        match voters.started + 1 < quorum(voters.all + 1) {
            true => Err(Error::NotEnoughStartedMembers),
            false => Ok(()),
        }
    }

    /// Whether the voters that stay are a quorum: those that have started, and
    /// those that are steadily connected. One that isn't there can always go.
    fn check_removal(&self, id: NodeId) -> Result<(), Error> {
        let members = self.node.members();
        let gone = members.get(&id).ok_or(Error::MemberNotFound)?;
        if gone.learner || !self.limits.strict_reconfig {
            return Ok(());
        }
        if let Some(map) = self.node.map().filter(|map| map.replicas > 0) {
            let is_there = |other| other == self.member_id || self.node.is_alive(other);
            let lost = map.lost_without(id, is_there);
            if !lost.is_empty() {
                tracing::warn!(%id, ?lost, "without this member ranges would have no quorum");
                return Err(Error::Unhealthy);
            }
        }
        let left = Voters::of(self, &members, Some(id));
        let quorum = quorum(left.all);
        if left.started < quorum {
            return Err(Error::NotEnoughStartedMembers);
        }
        if !self.node.is_alive(id) {
            return Ok(());
        }
        // (etcd takes one off, whether the one that goes was counted or not.)
        let voters = Voters::of(self, &members, None);
        match voters.steady < quorum + 1 {
            true => Err(Error::Unhealthy),
            false => Ok(()),
        }
    }

    /// Whether a member has been connected for so long that it counts.
    fn is_steady(&self, id: NodeId) -> bool {
        let connected = self.node.alive_for(id);
        id == self.member_id || connected.is_some_and(|time| time > HEALTH_INTERVAL)
    }
}

fn quorum(voters: usize) -> usize {
    voters / 2 + 1
}

/// How many vote, and how many of them count.
struct Voters {
    all: usize,
    started: usize,
    steady: usize,
}

impl Voters {
    fn of(host: &Host, members: &BTreeMap<NodeId, Member>, without: Option<NodeId>) -> Self {
        let voters = members
            .iter()
            .filter(|(id, member)| !member.learner && Some(**id) != without);
        let voters: Vec<_> = voters.collect();
        let started = |member: &Member| Card::read(&member.address).is_started();
        Self {
            all: voters.len(),
            started: voters.iter().filter(|(_, member)| started(member)).count(),
            steady: voters.iter().filter(|(id, _)| host.is_steady(**id)).count(),
        }
    }
}

fn check_urls_free(
    members: &BTreeMap<NodeId, Member>,
    own: Option<NodeId>,
    card: &Card,
) -> Result<(), Error> {
    let others = members.iter().filter(|(id, _)| Some(**id) != own);
    let mut urls = others.flat_map(|(_, member)| Card::read(&member.address).peer_urls);
    match urls.any(|url| card.peer_urls.contains(&url)) {
        true => Err(Error::PeerUrlExist),
        false => Ok(()),
    }
}
