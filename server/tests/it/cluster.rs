use std::time::Duration;

use pontoon_api::Error;
use pontoon_api::etcdserverpb::{
    Member, MemberAddRequest, MemberListRequest, MemberPromoteRequest, MemberRemoveRequest,
    MemberUpdateRequest,
};
use pontoon_server::{ClusterState, Config, EXIT_STOPPED, Server, StartError};
use tonic::Status;

use crate::running::{Running, alone, free_ports, one, start, three, until};

/// How long a member that was removed may take to hear of it.
const STARTED_WITHIN: Duration = Duration::from_secs(60);

async fn list(server: &Running) -> Vec<Member> {
    let list = MemberListRequest { linearizable: true };
    let list = server.cluster().member_list(list).await.unwrap();
    let list = list.into_inner();
    assert_eq!(list.header.unwrap().revision, 0);
    list.members
}

fn add(url: &str, is_learner: bool) -> MemberAddRequest {
    MemberAddRequest {
        peer_urls: vec![url.to_owned()],
        is_learner,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn members_have_published_themselves() {
    let (members, _dir) = three(&[]).await;
    for member in &members {
        until(|| async {
            let listed = list(member).await;
            listed.iter().all(|member| !member.client_urls.is_empty())
        })
        .await;
        let listed = list(member).await;
        assert!(listed.is_sorted_by_key(|member| member.id));
        let mut names: Vec<_> = listed.iter().map(|member| member.name.as_str()).collect();
        names.sort_unstable();
        assert_eq!(names, ["m0", "m1", "m2"]);
        assert!(
            listed
                .iter()
                .all(|member| member.peer_urls.len() == 1 && !member.is_learner)
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_that_make_no_sense_are_refused() {
    let (server, _dir) = one().await;
    let mut cluster = server.cluster();
    for url in ["", "127.0.0.1:1", "http://127.0.0.1", "ftp://127.0.0.1:1"] {
        let refused = cluster.member_add(add(url, false)).await.unwrap_err();
        assert_eq!(refused.message(), Error::MemberBadUrls.text(), "{url:?}");
    }
    let own = list(&server).await.remove(0);
    let refused = cluster
        .member_add(add(&own.peer_urls[0], true))
        .await
        .unwrap_err();
    assert_eq!(refused.message(), Error::PeerUrlExist.text());
    let not_found = Error::MemberNotFound.text();
    let refused = cluster
        .member_remove(MemberRemoveRequest { id: 7 })
        .await
        .unwrap_err();
    assert_eq!(refused.message(), not_found);
    let update = MemberUpdateRequest {
        id: 7,
        peer_urls: vec!["http://127.0.0.1:9".to_owned()],
    };
    let refused = cluster.member_update(update.clone()).await.unwrap_err();
    assert_eq!(refused.message(), not_found);
    let refused = cluster
        .member_promote(MemberPromoteRequest { id: 7 })
        .await
        .unwrap_err();
    assert_eq!(refused.message(), not_found);
    let refused = cluster
        .member_promote(MemberPromoteRequest { id: own.id })
        .await
        .unwrap_err();
    assert_eq!(refused.message(), Error::MemberNotLearner.text());
    let refused = cluster
        .member_remove(MemberRemoveRequest { id: own.id })
        .await
        .unwrap_err();
    assert_eq!(
        (refused.code(), refused.message()),
        (tonic::Code::Unknown, Error::NotEnoughStartedMembers.text())
    );
    let update = MemberUpdateRequest {
        id: own.id,
        ..update
    };
    let updated = cluster.member_update(update).await.unwrap().into_inner();
    assert_eq!(updated.members[0].peer_urls, ["http://127.0.0.1:9"]);
    assert_eq!(updated.members[0].name, "default");
}

/// Tries until it isn't refused any more because members are too new.
async fn once_healthy<T>(mut change: impl AsyncFnMut() -> Result<T, Status>) -> Result<T, Status> {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    loop {
        match change().await {
            Err(refused)
                if refused.message() == Error::Unhealthy.text()
                    && tokio::time::Instant::now() < deadline =>
            {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            changed => return changed,
        }
    }
}

/// Before members have been connected for etcd's five seconds, a change might
/// cost the quorum.
#[tokio::test(flavor = "multi_thread")]
async fn members_change_only_when_a_quorum_is_steady() {
    let begun = tokio::time::Instant::now();
    let (members, _dir) = three(&[]).await;
    let listed = list(&members[0]).await;
    let mut cluster = members[0].cluster();
    let id = listed.iter().find(|member| member.name == "m2").unwrap().id;
    let learner = cluster.member_add(add("http://127.0.0.1:9", true)).await;
    let voter = cluster.member_add(add("http://127.0.0.1:9", false)).await;
    let removed = cluster.member_remove(MemberRemoveRequest { id }).await;
    // (A machine that takes so long shows nothing.)
    if begun.elapsed() < Duration::from_secs(5) {
        let texts = [learner.err(), voter.err(), removed.err()]
            .map(|refused| refused.map(|refused| refused.message().to_owned()));
        assert_eq!(
            texts,
            [(); 3].map(|()| Some(Error::Unhealthy.text().to_owned()))
        );
    }
    let added = once_healthy(async || {
        let mut cluster = members[0].cluster();
        cluster.member_add(add("http://127.0.0.1:9", true)).await
    });
    let id = added.await.unwrap().into_inner().member.unwrap().id;
    // A learner can always go.
    cluster
        .member_remove(MemberRemoveRequest { id })
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_learner_joins_is_promoted_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let ports = free_ports(2);
    let urls: Vec<_> = ports
        .iter()
        .map(|port| format!("http://127.0.0.1:{port}"))
        .collect();
    let member = |at: usize| Config {
        name: format!("m{at}"),
        listen_peer_urls: urls[at].clone(),
        initial_advertise_peer_urls: urls[at].clone(),
        ..alone(&dir.path().join(at.to_string()))
    };
    let first = start(member(0)).await;
    first.put("k", "v").await;
    let mut cluster = first.cluster();
    let added = cluster
        .member_add(add(&urls[1], true))
        .await
        .unwrap()
        .into_inner();
    let id = added.member.unwrap().id;
    assert_eq!(added.members.len(), 2);
    let listed = list(&first).await;
    let learner = listed.iter().find(|member| member.id == id).unwrap();
    assert!(learner.is_learner && learner.name.is_empty() && learner.client_urls.is_empty());
    let another = cluster.member_add(add("http://127.0.0.1:9", true)).await;
    assert_eq!(
        another.unwrap_err().message(),
        Error::TooManyLearners.text()
    );
    let refused = cluster.member_promote(MemberPromoteRequest { id }).await;
    assert_eq!(
        refused.unwrap_err().message(),
        Error::LearnerNotReady.text()
    );

    let mut config = member(1);
    config.initial_cluster_state = ClusterState::Existing;
    config.initial_cluster = Some(format!("m0={},m1={}", urls[0], urls[1]));
    let second = start(config.clone()).await;
    // A learner serves what it has, and little else.
    let mut local = crate::running::get("k");
    local.serializable = true;
    until(|| async {
        second
            .range(local.clone())
            .await
            .is_ok_and(|found| found.count == 1)
    })
    .await;
    let refused = second.range(crate::running::get("k")).await.unwrap_err();
    assert_eq!(refused.message(), Error::NotSupportedForLearner.text());
    let refused = second
        .kv()
        .put(crate::running::put("k", ""))
        .await
        .unwrap_err();
    assert_eq!(refused.message(), Error::NotSupportedForLearner.text());

    until(|| async {
        let promote = MemberPromoteRequest { id };
        first.cluster().member_promote(promote).await.is_ok()
    })
    .await;
    until(|| async { second.kv().put(crate::running::put("k2", "")).await.is_ok() }).await;
    assert_eq!(
        list(&second)
            .await
            .iter()
            .filter(|member| member.is_learner)
            .count(),
        0
    );

    let left = once_healthy(async || {
        let mut cluster = first.cluster();
        let removed = cluster.member_remove(MemberRemoveRequest { id }).await;
        removed.map(|removed| removed.into_inner().members.len())
    });
    assert_eq!(left.await.unwrap(), 1);
    // The removed one hears of it, and would stop.
    crate::running::soon(second.server.removed()).await;
    second.server.stop().await;
    first.put("k", "alone again").await;

    // Nor does it come back; as with etcd, that is no failure.
    let refused = loop {
        let started = Server::start(config.clone());
        let started = tokio::time::timeout(STARTED_WITHIN, started).await;
        match started.expect("it takes too long").err() {
            Some(error) if error.to_string().contains("is in use") => {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            error => break error.expect("it is no member"),
        }
    };
    assert!(matches!(refused, StartError::Removed), "{refused}");
    assert_eq!(refused.exit_code(), EXIT_STOPPED);
}
