//! One view of the ranges, made of what several members tell.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use pontoon_api::pontoonpb::{ListRequest, Range, ReplicaState};
use serde::Serialize;

use crate::client::{AskError, answer};
use crate::members::{Seat, name_of};
use crate::output::shown;

/// What one member tells.
pub(crate) struct Told {
    pub(crate) member: u64,
    pub(crate) map_version: u64,
    pub(crate) ranges: Vec<Range>,
}

/// A range as the cluster has it.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct RangeView {
    pub(crate) id: u64,
    /// Absent: from the first key on.
    pub(crate) first_key: Option<String>,
    /// Absent: to the last.
    pub(crate) end_key: Option<String>,
    pub(crate) leader: Option<String>,
    pub(crate) term: u64,
    pub(crate) applied_index: u64,
    pub(crate) used_bytes: u64,
    pub(crate) keys: Option<u64>,
    /// Since its leader leads.
    pub(crate) writes: u64,
    pub(crate) writes_per_second: u64,
    pub(crate) replicas: Vec<ReplicaView>,
    /// The key at which it is being split.
    pub(crate) splits_at: Option<String>,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct ReplicaView {
    pub(crate) member: String,
    /// It has no vote.
    pub(crate) learner: bool,
    pub(crate) state: State,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) applied_index: Option<u64>,
    /// In words, if something is wrong with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) failure: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum State {
    Leads,
    Follows,
    Listens,
    Failed,
    /// Its member answers, and has no replica yet, or none any more.
    Missing,
    NotReached,
}

/// Asks every member that is reached.
pub(crate) async fn ask_all(seats: &[Seat]) -> Result<Vec<Told>, AskError> {
    let peers = seats.iter().filter_map(Seat::peer);
    let asked = peers.map(|peer| async {
        let list = answer(peer.ranges().list(ListRequest {})).await?;
        Ok(Told {
            member: peer.id,
            map_version: list.map_version,
            ranges: list.ranges,
        })
    });
    let (told, refused): (Vec<_>, Vec<_>) = join_all(asked)
        .await
        .into_iter()
        .partition(|asked: &Result<Told, AskError>| asked.is_ok());
    match (told.is_empty(), refused.into_iter().find_map(Result::err)) {
        (true, Some(error)) => Err(error),
        _ => Ok(told.into_iter().flatten().collect()),
    }
}

/// The ranges of the newest map, with what is known of each.
pub(crate) fn merge(seats: &[Seat], told: &[Told]) -> Vec<RangeView> {
    let newest = told.iter().max_by_key(|told| told.map_version);
    let ranges = newest.map_or(&[][..], |told| &told.ranges).iter();
    ranges.map(|range| view(seats, told, range)).collect()
}

fn view(seats: &[Seat], told: &[Told], range: &Range) -> RangeView {
    let states: BTreeMap<u64, &ReplicaState> = told
        .iter()
        .filter_map(|told| {
            let same = told.ranges.iter().find(|same| same.id == range.id)?;
            Some((told.member, same.here.as_ref()?))
        })
        .collect();
    let best = states.values().max_by_key(|here| (here.leads, here.term));
    let best = best.map_or_else(ReplicaState::default, |here| (*here).clone());
    let mut replicas = Vec::new();
    for replica in &range.replicas {
        let seat = seats.iter().find(|seat| seat.member.id == replica.member);
        let reached = seat.is_some_and(|seat| seat.reached.is_ok());
        let here = states.get(&replica.member);
        let state = match here {
            Some(here) if !here.failure.is_empty() => State::Failed,
            Some(here) if here.leads && best.leader == replica.member => State::Leads,
            Some(_) if replica.learner => State::Listens,
            Some(_) => State::Follows,
            None if reached => State::Missing,
            None => State::NotReached,
        };
        replicas.push(ReplicaView {
            member: name_of(seats, replica.member),
            learner: replica.learner,
            state,
            applied_index: here.map(|here| here.applied_index),
            failure: here
                .map(|here| here.failure.clone())
                .filter(|failure| !failure.is_empty()),
        });
    }
    replicas.sort_by(|one, other| one.member.cmp(&other.member));
    let key = |key: &[u8]| (!key.is_empty()).then(|| shown(key));
    RangeView {
        id: range.id,
        first_key: key(&range.first_key),
        end_key: key(&range.end_key),
        leader: (best.leader != 0).then(|| name_of(seats, best.leader)),
        term: best.term,
        applied_index: best.applied_index,
        used_bytes: best.used_bytes,
        keys: best.keys,
        writes: best.writes,
        writes_per_second: best.writes_per_second,
        replicas,
        splits_at: range.splitting.as_ref().map(|split| shown(&split.key)),
    }
}

#[cfg(test)]
mod tests {
    use pontoon_api::etcdserverpb::Member;
    use pontoon_api::pontoonpb::Replica;

    use super::*;

    fn seats() -> Vec<Seat> {
        let seat = |id| Seat {
            member: Member {
                id,
                name: format!("m{id}"),
                ..Member::default()
            },
            reached: Err("nobody is there".to_owned()),
        };
        (1..=3).map(seat).collect()
    }

    fn told(member: u64, map_version: u64, here: Option<ReplicaState>) -> Told {
        let replicas = (1..=3).map(|member| Replica {
            member,
            ..Replica::default()
        });
        let range = Range {
            id: 0,
            end_key: if map_version > 1 {
                "m".into()
            } else {
                "".into()
            },
            replicas: replicas.collect(),
            here,
            ..Range::default()
        };
        Told {
            member,
            map_version,
            ranges: vec![range],
        }
    }

    #[test]
    fn the_leaders_word_counts_and_the_newest_map() {
        let leads = ReplicaState {
            leader: 1,
            leads: true,
            term: 5,
            keys: Some(7),
            ..ReplicaState::default()
        };
        // It has heard of a later election, and of nobody who leads.
        let follows = ReplicaState {
            term: 6,
            keys: Some(3),
            ..ReplicaState::default()
        };
        let told = [told(1, 1, Some(leads)), told(2, 2, Some(follows))];
        let ranges = merge(&seats(), &told);
        assert_eq!(ranges.len(), 1);
        let range = &ranges[0];
        assert_eq!(range.leader.as_deref(), Some("m1"));
        assert_eq!((range.term, range.keys), (5, Some(7)));
        assert_eq!(
            (&range.first_key, range.end_key.as_deref()),
            (&None, Some("m"))
        );
        let states: Vec<_> = range.replicas.iter().map(|one| one.state).collect();
        assert_eq!(states, [State::Leads, State::Follows, State::NotReached]);
    }

    #[test]
    fn nobody_who_knows_is_no_leader() {
        let ranges = merge(&seats(), &[told(1, 1, None)]);
        assert_eq!(ranges[0].leader, None);
        assert!(
            ranges[0]
                .replicas
                .iter()
                .all(|one| one.applied_index.is_none())
        );
    }
}
