//! Pontoon's own service: ranges, listed, split, handed over, explained.

use bytes::Bytes;
use pontoon_api::Error;
use pontoon_api::etcdserverpb::LeaseGrantRequest;
use pontoon_api::pontoonpb::{
    ListRequest, ListResponse, Range, SplitRequest, SplitResponse, TransferRequest, WhyRequest,
    WhyResponse,
};
use tonic::{Code, Status};

use crate::running::{Running, one, put, three, until};

async fn list(server: &Running) -> ListResponse {
    let list = server.ranges().list(ListRequest {}).await;
    list.unwrap().into_inner()
}

async fn split(server: &Running, key: impl Into<Bytes>) -> Result<SplitResponse, Status> {
    let request = SplitRequest { key: key.into() };
    Ok(server.ranges().split(request).await?.into_inner())
}

async fn transfer(server: &Running, range: u64, member: u64) -> Result<(), Status> {
    let request = TransferRequest { range, member };
    server.ranges().transfer(request).await.map(|_| ())
}

async fn why(server: &Running, key: &'static str) -> Result<WhyResponse, Status> {
    let request = WhyRequest { key: key.into() };
    Ok(server.ranges().why(request).await?.into_inner())
}

async fn id(server: &Running) -> u64 {
    list(server).await.header.unwrap().member_id
}

/// Id, first key, end key.
fn cuts(list: &ListResponse) -> Vec<(u64, &[u8], &[u8])> {
    let cut = |range: &'_ Range| range.id;
    let ranges = list.ranges.iter();
    ranges
        .map(|range| (cut(range), &range.first_key[..], &range.end_key[..]))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_range_is_split_and_both_halves_are_listed() {
    let (server, _dir) = one().await;
    for key in ["a", "b", "x"] {
        server.put(key, "v").await;
    }
    let before = list(&server).await;
    assert_eq!(cuts(&before), [(0, &b""[..], &b""[..])]);
    let made = split(&server, "m").await.unwrap();
    assert_eq!((made.range, made.existed), (1, false));
    let after = list(&server).await;
    assert!(after.map_version > before.map_version);
    assert_eq!(cuts(&after), [(0, &b""[..], &b"m"[..]), (1, b"m", b"")]);
    // The half that is new may still have to be opened.
    until(|| async {
        let list = list(&server).await;
        let led = |range: &Range| range.here.as_ref().is_some_and(|here| here.leads);
        list.ranges.iter().all(led)
    })
    .await;
    server.put("y", "v").await;
    let list = list(&server).await;
    let me = list.header.unwrap().member_id;
    for (range, keys) in list.ranges.iter().zip([2, 2]) {
        let here = range.here.as_ref().unwrap();
        assert_eq!((here.leader, here.keys), (me, Some(keys)), "{range:?}");
        assert!(here.term > 0 && here.applied_index > 0 && here.used_bytes > 0);
        assert!(here.committed_index >= here.applied_index && here.failure.is_empty());
        assert_eq!(range.replicas.len(), 1);
        assert!(range.replicas[0].heard && !range.replicas[0].learner);
        assert_eq!(range.replicas[0].member, me);
    }
    assert!(list.ranges[1].here.as_ref().unwrap().writes >= 1);
    assert_eq!(server.get("x").await.unwrap(), "v");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_makes_no_sense_changes_nothing() {
    let (server, _dir) = one().await;
    server.put("k", "v").await;
    split(&server, "m").await.unwrap();
    let before = list(&server).await;
    let refused = split(&server, "").await.unwrap_err();
    assert_eq!(refused.message(), Error::EmptyKey.text());
    let refused = split(&server, vec![b'x'; 4097]).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    // These are where ranges begin.
    for (key, range) in [("m", 1), ("\0", 0)] {
        let there = split(&server, key).await.unwrap();
        assert_eq!((there.range, there.existed), (range, true), "{key:?}");
    }
    let me = id(&server).await;
    let refused = transfer(&server, 9, me).await.unwrap_err();
    assert_eq!(
        (refused.code(), refused.message()),
        (Code::NotFound, "there is no range 9")
    );
    let refused = transfer(&server, 0, 7).await.unwrap_err();
    assert_eq!(refused.message(), Error::MemberNotFound.text());
    transfer(&server, 1, me).await.unwrap();
    let refused = why(&server, "").await.unwrap_err();
    assert_eq!(refused.message(), Error::EmptyKey.text());
    let after = list(&server).await;
    assert_eq!(after.map_version, before.map_version);
    assert_eq!(cuts(&after), cuts(&before));
    assert_eq!(server.get("k").await.unwrap(), "v");
    split(&server, "t").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_range_goes_to_whom_it_is_told_from_wherever_it_is_told() {
    let (members, _dir) = three(&["m"]).await;
    let mut ids = Vec::new();
    for member in &members {
        ids.push(id(member).await);
    }
    let leaders = async |member: &Running| {
        let list = list(member).await;
        let leader = |range: &Range| range.here.as_ref().map_or(0, |here| here.leader);
        (leader(&list.ranges[0]), leader(&list.ranges[1]))
    };
    // Leaders are spread first, and stay when two members lead one each.
    until(|| async {
        let (root, other) = leaders(&members[0]).await;
        root != 0 && other != 0 && root != other
    })
    .await;
    let (root, other) = leaders(&members[0]).await;
    let idle = ids.iter().find(|id| ![root, other].contains(id)).unwrap();
    // Whoever is asked: not the one who leads it.
    let asked = ids.iter().position(|id| *id == root).unwrap();
    transfer(&members[asked], 1, *idle).await.unwrap();
    for member in &members {
        until(|| async { leaders(member).await.1 == *idle }).await;
    }
    members[0].put("z", "v").await;
    let leads = ids.iter().position(|id| id == idle).unwrap();
    until(|| async {
        let list = list(&members[leads]).await;
        let matched = |range: &Range| range.replicas.iter().all(|one| one.matched_index.is_some());
        matched(&list.ranges[1])
    })
    .await;
    ids.sort_unstable();
    for range in list(&members[leads]).await.ranges {
        assert_eq!(range.here.unwrap().counted, ids);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_explained() {
    let (server, _dir) = one().await;
    let lease = LeaseGrantRequest { ttl: 60, id: 77 };
    server.lease().lease_grant(lease).await.unwrap();
    server.put("k", "1").await;
    let mut request = put("k", "two");
    request.lease = 77;
    server.kv().put(request).await.unwrap();
    let told = why(&server, "k").await.unwrap();
    let key = told.key.unwrap();
    assert_eq!((key.create_revision, key.mod_revision), (2, 3));
    assert_eq!((key.version, key.lease, key.value_bytes), (2, 77, 3));
    assert!(told.looked && told.holds_up.is_empty(), "{told:?}");
    assert_eq!(told.range.unwrap().id, 0);
    split(&server, "m").await.unwrap();
    let told = why(&server, "x").await.unwrap();
    assert!(told.looked && told.key.is_none());
    assert_eq!(told.range.unwrap().id, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_quorum_it_says_so() {
    let (mut members, _dir) = three(&["m"]).await;
    members[0].put("k", "v").await;
    let mut away = Vec::new();
    for member in members.drain(1..) {
        away.push(id(&member).await);
        member.server.stop().await;
    }
    let here = &members[0];
    until(|| async {
        let told = why(here, "k").await.unwrap();
        let words = told.holds_up.join("\n");
        words.contains("too few of range 0's voters")
            && words.contains("m1")
            && words.contains("m2")
    })
    .await;
    let told = why(here, "k").await.unwrap();
    assert_eq!(told.key.unwrap().value_bytes, 1, "what is here is told");
    let list = list(here).await;
    for replica in &list.ranges[1].replicas {
        assert_eq!(replica.heard, !away.contains(&replica.member));
    }
    let refused = transfer(here, 0, away[0]).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("isn't heard"), "{refused:?}");
}
