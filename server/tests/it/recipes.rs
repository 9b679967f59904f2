use pontoon_api::Error;
use pontoon_api::etcdserverpb::{LeaseGrantRequest, LeaseRevokeRequest};
use pontoon_api::v3electionpb::{
    CampaignRequest, LeaderKey, LeaderRequest, ProclaimRequest, ResignRequest,
};
use pontoon_api::v3lockpb::{LockRequest, UnlockRequest};

use crate::running::{Running, one, prefix, soon, until};

async fn lease(server: &Running) -> i64 {
    let grant = LeaseGrantRequest { ttl: 60, id: 0 };
    let granted = server.lease().lease_grant(grant).await.unwrap();
    granted.into_inner().id
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_is_given_to_one_at_a_time() {
    let (server, _dir) = one().await;
    let lock = |lease| {
        let mut lock = server.lock();
        let request = LockRequest {
            name: "l".into(),
            lease,
        };
        async move { lock.lock(request).await }
    };
    let first = lease(&server).await;
    let held = lock(first).await.unwrap().into_inner();
    assert_eq!(held.key, format!("l/{first:x}"));
    assert!(held.header.is_some());
    // Whoever comes next waits, and one who gives up leaves the line.
    let second = lease(&server).await;
    let waiting = tokio::spawn(lock(second));
    let third = tokio::spawn(lock(0));
    until(|| async { server.range(prefix("l")).await.unwrap().count == 3 }).await;
    third.abort();
    until(|| async { server.range(prefix("l")).await.unwrap().count == 2 }).await;
    assert!(!waiting.is_finished());
    let unlock = UnlockRequest { key: held.key };
    server.lock().unlock(unlock).await.unwrap();
    let held = soon(waiting).await.unwrap().unwrap().into_inner();
    assert_eq!(held.key, format!("l/{second:x}"));
    let refused = lock(77).await.unwrap_err();
    assert_eq!(refused.message(), Error::LeaseNotFound.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_election_has_one_leader_at_a_time() {
    let (server, _dir) = one().await;
    let mut election = server.election();
    let name = LeaderRequest { name: "e".into() };
    let refused = election.leader(name.clone()).await.unwrap_err();
    assert_eq!(
        (refused.code(), refused.message()),
        (tonic::Code::Unknown, Error::ElectionNoLeader.text())
    );
    let refused = election
        .proclaim(ProclaimRequest::default())
        .await
        .unwrap_err();
    assert_eq!(refused.message(), Error::MissingLeaderKey.text());
    let mut observed = election.observe(name.clone()).await.unwrap().into_inner();
    let campaign = |lease, value: &'static str| {
        let mut election = server.election();
        let request = CampaignRequest {
            name: "e".into(),
            lease,
            value: value.into(),
        };
        async move {
            election
                .campaign(request)
                .await
                .unwrap()
                .into_inner()
                .leader
                .unwrap()
        }
    };
    let (one, two) = (lease(&server).await, lease(&server).await);
    let leader: LeaderKey = campaign(one, "one").await;
    assert_eq!(
        (leader.key.clone(), leader.lease),
        (format!("e/{one:x}").into(), one)
    );
    let mut seen = async || {
        let leader = soon(observed.message()).await.unwrap().unwrap();
        String::from_utf8_lossy(&leader.kv.unwrap().value).into_owned()
    };
    assert_eq!(seen().await, "one");
    let waiting = tokio::spawn(campaign(two, "two"));
    let proclaim = ProclaimRequest {
        leader: Some(leader.clone()),
        value: "uno".into(),
    };
    election.proclaim(proclaim.clone()).await.unwrap();
    assert_eq!(seen().await, "uno");
    let found = election
        .leader(name)
        .await
        .unwrap()
        .into_inner()
        .kv
        .unwrap();
    assert_eq!(found.value, "uno");
    until(|| async { server.range(prefix("e")).await.unwrap().count == 2 }).await;
    assert!(!waiting.is_finished());
    let resign = ResignRequest {
        leader: Some(leader),
    };
    election.resign(resign).await.unwrap();
    soon(waiting).await.unwrap();
    assert_eq!(seen().await, "two");
    let refused = election.proclaim(proclaim).await.unwrap_err();
    assert_eq!(refused.message(), Error::ElectionNotLeader.text());
    // A leader whose lease ends is none.
    let revoke = LeaseRevokeRequest { id: two };
    server.lease().lease_revoke(revoke).await.unwrap();
    let third = lease(&server).await;
    campaign(third, "three").await;
    assert_eq!(seen().await, "three");
}
