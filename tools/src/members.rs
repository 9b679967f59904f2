//! All members of the cluster, found from any of them.
//!
//! Kept true: every member is listed, whether it is reached or not.

use futures_util::future::join_all;
use pontoon_api::etcdserverpb::{Member, MemberListRequest};

use crate::client::{AskError, Endpoints, Peer, answer, authority};

/// A member, and whether it answers.
pub(crate) struct Seat {
    pub(crate) member: Member,
    pub(crate) reached: Result<Peer, String>,
}

impl Seat {
    pub(crate) fn peer(&self) -> Option<&Peer> {
        self.reached.as_ref().ok()
    }

    pub(crate) fn name(&self) -> String {
        name(&self.member)
    }
}

/// What people call it.
pub(crate) fn name(member: &Member) -> String {
    match member.name.is_empty() {
        true => format!("{:x}", member.id),
        false => member.name.clone(),
    }
}

/// The name of the member with this id.
pub(crate) fn name_of(seats: &[Seat], id: u64) -> String {
    let seat = seats.iter().find(|seat| seat.member.id == id);
    seat.map_or_else(|| format!("{id:x}"), Seat::name)
}

/// All members, by name; those that are not among the endpoints are sought at
/// the URLs that they have told.
pub(crate) async fn seats(endpoints: &Endpoints) -> Result<Vec<Seat>, AskError> {
    let tried = join_all(endpoints.all.iter().map(|at| Peer::reach(at))).await;
    let (reached, reasons): (Vec<_>, Vec<_>) = tried.into_iter().partition(Result::is_ok);
    let reached: Vec<Peer> = reached.into_iter().flatten().collect();
    let voter = reached.iter().find(|peer| !peer.status.is_learner);
    let Some(first) = voter.or(reached.first()) else {
        let reasons = reasons.into_iter().filter_map(Result::err);
        return Err(AskError::Unreachable(
            reasons.collect::<Vec<_>>().join("; "),
        ));
    };
    let members = list(first).await?;
    let seats = members.into_iter().map(|member| async {
        let known = reached.iter().find(|peer| peer.id == member.id);
        let reached = match known {
            Some(peer) => Ok(peer.clone()),
            None => seek(&member).await,
        };
        Seat { member, reached }
    });
    let mut seats = join_all(seats).await;
    seats.sort_by_key(|seat| (seat.member.name.clone(), seat.member.id));
    Ok(seats)
}

/// The members, as one of them knows; a learner and one without a quorum too.
pub(crate) async fn list(peer: &Peer) -> Result<Vec<Member>, AskError> {
    let request = MemberListRequest {
        linearizable: false,
    };
    Ok(answer(peer.cluster().member_list(request)).await?.members)
}

/// The member of this name or id.
pub(crate) fn find<'a>(members: &'a [Member], wanted: &str) -> Result<&'a Member, AskError> {
    let named: Vec<_> = members.iter().filter(|one| one.name == wanted).collect();
    let id = u64::from_str_radix(wanted, 16).ok();
    match (&named[..], members.iter().find(|one| Some(one.id) == id)) {
        ([one], _) => Ok(one),
        ([], Some(one)) => Ok(one),
        ([], None) => Err(AskError::NotFound(format!("member {wanted:?}"))),
        (_, _) => Err(AskError::Wrong(format!(
            "several members are called {wanted:?}; say which by its id"
        ))),
    }
}

async fn seek(member: &Member) -> Result<Peer, String> {
    let mut reasons = Vec::new();
    for url in &member.client_urls {
        let reached = match authority(url) {
            Ok(at) => Peer::reach(&at).await,
            Err(reason) => Err(reason),
        };
        match reached {
            Ok(peer) if peer.id == member.id => return Ok(peer),
            Ok(peer) => reasons.push(format!("{}: it is member {:x}", peer.at, peer.id)),
            Err(reason) => reasons.push(reason),
        }
    }
    match reasons.is_empty() {
        true => Err("it has not been started yet".to_owned()),
        false => Err(reasons.join("; ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_found_by_name_and_by_id() {
        let member = |id, name: &str| Member {
            id,
            name: name.to_owned(),
            ..Member::default()
        };
        let members = [
            member(0xa1, "m1"),
            member(0xb2, "a1"),
            member(0xc3, "x"),
            member(4, "x"),
        ];
        let found = |wanted| find(&members, wanted).map(|found| found.id);
        assert_eq!(found("m1").unwrap(), 0xa1);
        // A name goes before an id.
        assert_eq!(found("a1").unwrap(), 0xb2);
        assert_eq!(found("b2").unwrap(), 0xb2);
        assert_eq!(found("nobody").unwrap_err().exit_code(), 1);
        assert_eq!(found("x").unwrap_err().exit_code(), 2);
    }
}
