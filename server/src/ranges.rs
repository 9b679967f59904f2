//! Ranges: listed, split, handed over; and why a key would have to wait.
//!
//! Kept true: what is told is known here, nothing is guessed; what is refused
//! has changed nothing.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pontoon_api::Error;
use pontoon_api::pontoonpb::ranges_server::Ranges;
use pontoon_api::pontoonpb::{
    self, Key, ListRequest, ListResponse, MemberCondition, Range, Replica, ReplicaState,
    SplitRequest, SplitResponse, Splitting, TransferRequest, TransferResponse, UnservedRange,
    WhyRequest, WhyResponse,
};
use pontoon_engine::{KeyRange, Range as Read};
use pontoon_raftgroup::{
    Alarm, ClusterVersion, Condition, Failure, GroupId, Look, NodeId, RangeMap, ReplicaStatus,
    Unserved,
};
use tonic::{Request, Response, Status};

use crate::calls::Rpc;
use crate::card::Card;
use crate::failure::status;
use crate::host::Host;

/// The map is read and written as a whole, so its keys can't be any size.
const SPLIT_KEY_BYTES_MAX: usize = 4096;
/// How long it is tried to look at a key that somebody asks about.
const LOOK_WITHIN: Duration = Duration::from_secs(1);
/// Committed entries that are not applied, from which on it is worth a word.
const BEHIND_ENTRIES: u64 = 1000;

pub(crate) struct RangesService(pub(crate) Arc<Host>);

#[tonic::async_trait]
impl Ranges for RangesService {
    async fn list(&self, request: Request<ListRequest>) -> Result<Response<ListResponse>, Status> {
        let host = &self.0;
        let work = async {
            let map = host.map()?;
            Ok(ListResponse {
                header: host.header_now(),
                map_version: map.version,
                ranges: host.ranges(&map),
                condition: Some(condition(&host.node.condition(), &host.node.unserved())),
                version: Some(version(&host.node.cluster_version())),
            })
        };
        host.unary(Rpc::RangesList, request.metadata(), work).await
    }

    async fn split(
        &self,
        request: Request<SplitRequest>,
    ) -> Result<Response<SplitResponse>, Status> {
        let (metadata, _, request) = request.into_parts();
        let work = self.0.split(request.key);
        self.0.unary(Rpc::RangesSplit, &metadata, work).await
    }

    async fn transfer(
        &self,
        request: Request<TransferRequest>,
    ) -> Result<Response<TransferResponse>, Status> {
        let (metadata, _, request) = request.into_parts();
        let work = self.0.transfer(request);
        self.0.unary(Rpc::RangesTransfer, &metadata, work).await
    }

    async fn why(&self, request: Request<WhyRequest>) -> Result<Response<WhyResponse>, Status> {
        let (metadata, _, request) = request.into_parts();
        let work = self.0.why(request.key);
        self.0.unary(Rpc::RangesWhy, &metadata, work).await
    }
}

impl Host {
    fn map(&self) -> Result<Arc<RangeMap>, Status> {
        let map = self.node.map();
        map.ok_or_else(|| Error::NoLeader.into())
    }

    fn ranges(&self, map: &RangeMap) -> Vec<Range> {
        let replicas = self.node.status();
        let ranges = map.ranges();
        ranges
            .map(|(placed, keys)| {
                let here = replicas.iter().find(|here| here.group == placed.group);
                self.range_of(map, placed.group, &keys, here)
            })
            .collect()
    }

    fn range_of(
        &self,
        map: &RangeMap,
        group: GroupId,
        keys: &KeyRange,
        here: Option<&ReplicaStatus>,
    ) -> Range {
        let look = self.node.look(group);
        let progress = look.as_ref().and_then(|look| look.progress.clone());
        let placed = map.placed(group);
        let replicas = placed.map_or(&[][..], |placed| &placed.members).iter();
        let replicas = replicas.map(|id| Replica {
            member: id.0,
            learner: !placed.is_some_and(|placed| placed.voters.contains(id)),
            heard: self.node.is_alive(*id),
            matched_index: progress
                .as_ref()
                .and_then(|progress| Some(progress.get(id)?.0)),
        });
        let splits = self.node.splits_under_way();
        let splitting = splits.into_iter().find(|split| split.parent == group);
        let damage = self.node.damaged().remove(&group);
        let here = match (here, look) {
            (Some(here), Some(look)) => Some(state(here, &look)),
            _ => None,
        };
        Range {
            id: group.0,
            first_key: placed.map_or_else(Bytes::new, |placed| placed.start.clone()),
            end_key: upper(keys),
            replicas: replicas.collect(),
            here: match damage {
                None => here,
                Some(reason) => Some(ReplicaState {
                    failure: format!("it is damaged and being rebuilt: {reason}"),
                    ..here.unwrap_or_default()
                }),
            },
            splitting: splitting.map(|split| Splitting {
                key: split.key,
                child: split.child.0,
            }),
        }
    }

    async fn split(&self, key: Bytes) -> Result<SplitResponse, Status> {
        if key.is_empty() {
            return Err(Error::EmptyKey.into());
        }
        if key.len() > SPLIT_KEY_BYTES_MAX {
            return Err(Status::invalid_argument(format!(
                "a range can't begin with a key of {} bytes, {SPLIT_KEY_BYTES_MAX} are the most",
                key.len()
            )));
        }
        // Both halves are on the disk for a while.
        self.check_space()?;
        let map = self.map()?;
        let parent = map.group_of(&key);
        let mut under_way = self.node.splits_under_way().into_iter();
        let other = under_way.find(|split| split.parent == parent && split.key != key);
        if let Some(other) = other {
            return Err(Status::failed_precondition(format!(
                "range {parent} is being split at {} already; try again when that is done",
                shown(&other.key)
            )));
        }
        let existed = map.ranges().any(|(placed, _)| placed.start == key);
        match self.node.split(key.clone(), self.limits.within()).await {
            Ok(group) => Ok(SplitResponse {
                header: self.header_now(),
                range: group.0,
                existed: existed || group == parent,
            }),
            Err(Failure::TimedOut) if self.is_being_split(&key) => {
                Err(Status::deadline_exceeded(format!(
                    "range {parent} takes longer to be split; that goes on, and the list of \
                     ranges tells when it is done"
                )))
            }
            Err(failure) => Err(status(failure)),
        }
    }

    fn is_being_split(&self, key: &Bytes) -> bool {
        let mut under_way = self.node.splits_under_way().into_iter();
        under_way.any(|split| split.key == key)
    }

    async fn transfer(&self, request: TransferRequest) -> Result<TransferResponse, Status> {
        let (group, to) = (GroupId(request.range), NodeId(request.member));
        let map = self.map()?;
        let Some(placed) = map.placed(group) else {
            return Err(Status::not_found(format!("there is no range {group}")));
        };
        if !self.node.members().contains_key(&to) {
            return Err(Error::MemberNotFound.into());
        }
        let refused = match () {
            () if !placed.voters.contains(&to) => Some(format!("has no vote in range {group}")),
            () if !self.node.is_alive(to) => Some("isn't heard, so it can't lead".to_owned()),
            () => None,
        };
        if let Some(refused) = refused {
            let member = self.called(to.0);
            return Err(Status::failed_precondition(format!("{member} {refused}")));
        }
        let moved = self.node.move_leader(group, to, self.limits.within());
        match moved.await {
            Ok(()) => Ok(TransferResponse {
                header: self.header_now(),
            }),
            Err(Failure::TimedOut) => Err(Error::TimeoutLeaderTransfer.into()),
            Err(failure) => Err(status(failure)),
        }
    }

    async fn why(&self, key: Bytes) -> Result<WhyResponse, Status> {
        if key.is_empty() {
            return Err(Error::EmptyKey.into());
        }
        let map = self.map()?;
        let group = map.group_of(&key);
        let keys = map.keys_of(group).unwrap_or_else(KeyRange::all);
        let replicas = self.node.status();
        let here = replicas.iter().find(|here| here.group == group);
        let range = self.range_of(&map, group, &keys, here);
        let read = Read::of(KeyRange::one(key.clone()));
        let read = self.node.read_serializable(&read, LOOK_WITHIN).await;
        let found = read.as_ref().ok().and_then(|read| read.kvs.first());
        let found = found.map(|kv| Key {
            create_revision: kv.create.0,
            mod_revision: kv.modified.0,
            version: kv.version,
            lease: kv.lease,
            value_bytes: kv.value.len() as u64,
        });
        let facts = Facts {
            range: &range,
            me: self.member_id.0,
            held_by: self.node.undecided(group, &key).map(|revision| revision.0),
            alarms: &self.node.alarms(),
            is_ordered: map.is_one_group() || self.node.has_leader(GroupId::ROOT),
        };
        let holds_up = facts.holds_up(&|member| self.called(member));
        Ok(WhyResponse {
            header: self.header_now(),
            looked: read.is_ok(),
            key: found,
            holds_up,
            range: Some(range),
        })
    }

    /// A member as people know it.
    fn called(&self, member: u64) -> String {
        let known = self.node.members().remove(&NodeId(member));
        let name = known.map_or_else(String::new, |known| Card::read(&known.address).name);
        match name.is_empty() {
            true => format!("member {member:x}"),
            false => format!("member {name} ({member:x})"),
        }
    }
}

fn version(version: &ClusterVersion) -> pontoonpb::ClusterVersion {
    let members = version.members.iter();
    pontoonpb::ClusterVersion {
        cluster: version.cluster.0.into(),
        members: members
            .map(|(member, version)| pontoonpb::MemberVersion {
                member: member.0,
                version: version.0.into(),
            })
            .collect(),
    }
}

fn condition(condition: &Condition, unserved: &[Unserved]) -> MemberCondition {
    let unserved = unserved.iter().map(|range| UnservedRange {
        id: range.group.0,
        first_key: match &range.keys.key[..] {
            b"\0" => Bytes::new(),
            _ => range.keys.key.clone(),
        },
        end_key: upper(&range.keys),
        reason: range.reason.clone(),
    });
    MemberCondition {
        disk_stalled: *condition == Condition::Stalled,
        fault: match condition {
            Condition::Failed(fault) => fault.to_string(),
            Condition::Well | Condition::Stalled => String::new(),
        },
        unserved: unserved.collect(),
    }
}

/// The first key behind the range; empty if there is none.
fn upper(keys: &KeyRange) -> Bytes {
    keys.upper().map_or_else(Bytes::new, Bytes::copy_from_slice)
}

fn state(here: &ReplicaStatus, look: &Look) -> ReplicaState {
    let failure = here.failure.as_ref();
    ReplicaState {
        leader: here.leader.map_or(0, |leader| leader.0),
        term: here.term.0,
        leads: here.leads,
        committed_index: here.committed.0,
        applied_index: here.applied.0,
        file_bytes: here.file_bytes,
        used_bytes: here.used_bytes,
        keys: look.keys,
        revision: here.revision.0,
        quiet: here.quiet,
        writes: look.writes,
        writes_per_second: look.writes_per_sec,
        waiting: look.waiting as u64,
        undecided: look.undecided as u64,
        shedding: look.shedding,
        failure: failure.map_or_else(String::new, |reason| format!("it has stopped: {reason}")),
        counted: look.counted.iter().map(|member| member.0).collect(),
    }
}

/// What is known of a range when somebody asks why it would be slow.
struct Facts<'a> {
    range: &'a Range,
    me: u64,
    /// Revision of the undecided transaction that changes the key.
    held_by: Option<i64>,
    alarms: &'a [(Alarm, NodeId)],
    /// Whether revisions can be had.
    is_ordered: bool,
}

impl Facts<'_> {
    /// One sentence for each thing that a request would meet.
    fn holds_up(&self, called: &dyn Fn(u64) -> String) -> Vec<String> {
        let mut told = Vec::new();
        let id = self.range.id;
        for (alarm, member) in self.alarms {
            told.push(match alarm {
                Alarm::NoSpace => format!("puts are refused: {} has no space", called(member.0)),
                Alarm::Corrupt => format!("writes are refused: {} is corrupt", called(member.0)),
            });
        }
        if !self.is_ordered && id != GroupId::ROOT.0 {
            told.push("range 0, which gives all writes their order, has no leader".to_owned());
        }
        let voters = self.range.replicas.iter().filter(|voter| !voter.learner);
        let silent: Vec<_> = voters.clone().filter(|voter| !voter.heard).collect();
        if 2 * silent.len() >= voters.clone().count() && !silent.is_empty() {
            let silent: Vec<_> = silent.iter().map(|voter| called(voter.member)).collect();
            told.push(format!(
                "too few of range {id}'s voters are there; not heard: {}",
                silent.join(", ")
            ));
        }
        match &self.range.here {
            Some(here) => self.holds_up_here(here, called, &mut told),
            None => told.push("this member has no replica of the range; ask one that has".into()),
        }
        if let Some(split) = &self.range.splitting {
            told.push(format!(
                "range {id} is being split at {}: for a moment at the end, nothing is written",
                shown(&split.key)
            ));
        }
        if let Some(revision) = self.held_by {
            told.push(format!(
                "a transaction over several ranges, revision {revision}, has the key and is not \
                 decided"
            ));
        }
        told
    }

    fn holds_up_here(
        &self,
        here: &ReplicaState,
        called: &dyn Fn(u64) -> String,
        told: &mut Vec<String>,
    ) {
        let id = self.range.id;
        if !here.failure.is_empty() {
            told.push(format!(
                "the replica of {}: {}",
                called(self.me),
                here.failure
            ));
        }
        let mut replicas = self.range.replicas.iter();
        let heard = replicas.any(|replica| replica.member == here.leader && replica.heard);
        match here.leader {
            0 => told.push(format!("range {id} has no leader")),
            leader if leader == self.me && !here.leads => {
                told.push(format!(
                    "{} has not taken up range {id} yet",
                    called(leader)
                ));
            }
            leader if !heard => {
                told.push(format!(
                    "range {id}'s leader, {}, isn't heard",
                    called(leader)
                ));
            }
            _ => {}
        }
        if here.waiting > 0 {
            told.push(format!("{} requests wait for range {id}", here.waiting));
        }
        let behind = here.committed_index.saturating_sub(here.applied_index);
        if behind >= BEHIND_ENTRIES {
            told.push(format!(
                "{} has {behind} committed entries of range {id} to apply",
                called(self.me)
            ));
        }
    }
}

fn shown(key: &[u8]) -> String {
    format!("\"{}\"", key.escape_ascii())
}

#[cfg(test)]
mod tests {
    use pontoon_raftgroup::Fault;

    use super::*;

    const ME: u64 = 1;

    fn healthy() -> Range {
        let replicas = (1..=3).map(|member| Replica {
            member,
            heard: true,
            ..Replica::default()
        });
        Range {
            id: 7,
            replicas: replicas.collect(),
            here: Some(ReplicaState {
                leader: ME,
                leads: true,
                ..ReplicaState::default()
            }),
            ..Range::default()
        }
    }

    /// What is told when this is changed.
    fn told(change: impl FnOnce(&mut Range)) -> Vec<String> {
        let mut range = healthy();
        change(&mut range);
        let facts = Facts {
            range: &range,
            me: ME,
            held_by: None,
            alarms: &[],
            is_ordered: true,
        };
        facts.holds_up(&|member| format!("m{member}"))
    }

    fn here(change: impl FnOnce(&mut ReplicaState)) -> Vec<String> {
        told(|range| change(range.here.as_mut().unwrap()))
    }

    #[test]
    fn what_is_known_is_told() {
        assert!(told(|_| {}).is_empty());
        assert_eq!(here(|here| here.leader = 0), ["range 7 has no leader"]);
        assert_eq!(
            here(|here| here.leads = false),
            ["m1 has not taken up range 7 yet"]
        );
        assert_eq!(
            here(|here| here.leader = 9),
            ["range 7's leader, m9, isn't heard"]
        );
        assert_eq!(
            here(|here| here.waiting = 3),
            ["3 requests wait for range 7"]
        );
        assert_eq!(
            here(|here| here.failure = "it has stopped: disk".to_owned()),
            ["the replica of m1: it has stopped: disk"]
        );
        assert!(here(|here| here.committed_index = BEHIND_ENTRIES - 1).is_empty());
        assert_eq!(here(|here| here.committed_index = BEHIND_ENTRIES).len(), 1);
        // One of three may be away.
        assert!(told(|range| range.replicas[2].heard = false).is_empty());
        let two_away = told(|range| {
            range.replicas[1].heard = false;
            range.replicas[2].heard = false;
        });
        assert_eq!(
            two_away,
            ["too few of range 7's voters are there; not heard: m2, m3"]
        );
        assert_eq!(told(|range| range.here = None).len(), 1);
        let splitting = Splitting {
            key: Bytes::from_static(b"a\0"),
            child: 8,
        };
        let split = told(|range| range.splitting = Some(splitting));
        assert!(split[0].contains("being split at \"a\\x00\""), "{split:?}");
    }

    #[test]
    fn a_members_condition_is_told() {
        let told = condition(&Condition::Well, &[]);
        assert_eq!(told, MemberCondition::default());
        assert!(condition(&Condition::Stalled, &[]).disk_stalled);
        let unserved = Unserved {
            group: GroupId(7),
            keys: KeyRange::new(&b"a"[..], &b"m"[..]),
            reason: "no leader".to_owned(),
        };
        let failed = Condition::Failed(Fault("wal/3.seg: write: EIO".to_owned()));
        let told = condition(&failed, &[unserved]);
        assert_eq!(told.fault, "wal/3.seg: write: EIO");
        assert!(!told.disk_stalled);
        let range = &told.unserved[0];
        assert_eq!((range.id, &range.reason[..]), (7, "no leader"));
        assert_eq!(
            (&range.first_key[..], &range.end_key[..]),
            (&b"a"[..], &b"m"[..])
        );
    }

    #[test]
    fn what_concerns_all_ranges_is_told_too() {
        let facts = Facts {
            range: &healthy(),
            me: ME,
            held_by: Some(42),
            alarms: &[(Alarm::NoSpace, NodeId(2)), (Alarm::Corrupt, NodeId(3))],
            is_ordered: false,
        };
        let told = facts.holds_up(&|member| format!("m{member}"));
        assert_eq!(told.len(), 4, "{told:?}");
        assert_eq!(told[0], "puts are refused: m2 has no space");
        assert_eq!(told[1], "writes are refused: m3 is corrupt");
        assert!(told[3].contains("revision 42"));
    }
}
