use pontoon_api::Error;
use pontoon_api::etcdserverpb::{
    LeaseGrantRequest, LeaseKeepAliveRequest, LeaseLeasesRequest, LeaseRevokeRequest,
    LeaseTimeToLiveRequest,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;

use crate::running::{Running, get, one, put, soon, three, until};

async fn grant(server: &Running, id: i64, ttl: i64) -> Result<(i64, i64), tonic::Status> {
    let granted = server
        .lease()
        .lease_grant(LeaseGrantRequest { ttl, id })
        .await?;
    let granted = granted.into_inner();
    Ok((granted.id, granted.ttl))
}

async fn put_on(server: &Running, key: &str, lease: i64) {
    let mut put = put(key, "");
    put.lease = lease;
    server.kv().put(put).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_are_granted_looked_at_and_revoked() {
    let (server, _dir) = one().await;
    let (id, ttl) = grant(&server, 0, 100).await.unwrap();
    assert!(id > 0 && ttl == 100);
    // Too short is made longer; an id may be anything but taken.
    assert_eq!(grant(&server, -5, 0).await.unwrap(), (-5, 2));
    let refused = grant(&server, -5, 10).await.unwrap_err();
    assert_eq!(refused.message(), Error::LeaseExist.text());
    let refused = grant(&server, 0, 9_000_000_001).await.unwrap_err();
    assert_eq!(refused.message(), Error::LeaseTtlTooLarge.text());
    put_on(&server, "a", id).await;
    put_on(&server, "b", id).await;
    let look = |id, keys| {
        let mut lease = server.lease();
        async move {
            let found = lease
                .lease_time_to_live(LeaseTimeToLiveRequest { id, keys })
                .await;
            found.unwrap().into_inner()
        }
    };
    let found = look(id, true).await;
    assert_eq!((found.granted_ttl, found.keys.len()), (100, 2));
    assert!((90..=100).contains(&found.ttl));
    assert_eq!(found.header.unwrap().revision, 3);
    let found = look(77, true).await;
    assert_eq!((found.id, found.ttl, found.granted_ttl), (77, -1, 0));
    let leases = server
        .lease()
        .lease_leases(LeaseLeasesRequest {})
        .await
        .unwrap();
    let leases = leases.into_inner().leases;
    assert!(leases.iter().any(|lease| lease.id == id));
    let revoke = |id| {
        let mut lease = server.lease();
        async move { lease.lease_revoke(LeaseRevokeRequest { id }).await }
    };
    let revoked = revoke(id).await.unwrap().into_inner();
    // Both keys are gone, in one revision.
    assert_eq!(revoked.header.unwrap().revision, 4);
    assert_eq!((server.get("a").await, server.get("b").await), (None, None));
    let refused = revoke(id).await.unwrap_err();
    assert_eq!(
        (refused.code(), refused.message()),
        (Error::LeaseNotFound.code(), Error::LeaseNotFound.text())
    );
}

/// Whatever others write meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_revocation_tells_the_revision_of_its_deletions() {
    let (members, _dir) = three(&["m"]).await;
    let (over, mut is_over) = tokio::sync::watch::channel(false);
    let writers = ["b", "y"].map(|key| {
        let (mut kv, is_over) = (members[1].kv(), is_over.clone());
        tokio::spawn(async move {
            while !*is_over.borrow() {
                kv.put(put(key, "")).await.unwrap();
            }
        })
    });
    is_over.mark_unchanged();
    for at in 0..60 {
        let member = &members[at % 3];
        let (id, _) = grant(member, 0, 60).await.unwrap();
        // In the root group, in another one, in both, in none.
        let keys = [&["a"][..], &["z"], &["a", "z"], &[]][at % 4];
        for key in keys {
            put_on(member, key, id).await;
        }
        let revoke = LeaseRevokeRequest { id };
        let revoked = member.lease().lease_revoke(revoke).await.unwrap();
        let revision = revoked.into_inner().header.unwrap().revision;
        for key in keys {
            let count = async |revision| {
                let mut get = get(key);
                get.revision = revision;
                member.range(get).await.unwrap().count
            };
            assert_eq!((count(revision - 1).await, count(revision).await), (1, 0));
        }
    }
    over.send(true).unwrap();
    for writer in writers {
        writer.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_end_unless_they_are_kept_alive() {
    let (server, _dir) = one().await;
    let (kept, _) = grant(&server, 0, 2).await.unwrap();
    let (left, _) = grant(&server, 0, 2).await.unwrap();
    put_on(&server, "kept", kept).await;
    put_on(&server, "left", left).await;
    let (requests, stream) = mpsc::unbounded_channel();
    let mut client = server.lease();
    let answers = client.lease_keep_alive(UnboundedReceiverStream::new(stream));
    let mut answers = answers.await.unwrap().into_inner();
    let ask = |id| requests.send(LeaseKeepAliveRequest { id }).unwrap();
    until(|| async {
        ask(kept);
        server.get("left").await.is_none()
    })
    .await;
    assert!(server.get("kept").await.is_some());
    // One that is gone has no time left, and the stream goes on.
    ask(left);
    ask(77);
    ask(kept);
    drop(requests);
    let mut told = Vec::new();
    while let Some(answer) = soon(answers.message()).await.unwrap() {
        assert!(answer.header.is_some());
        told.push((answer.id, answer.ttl));
    }
    assert_eq!(told[told.len() - 3..], [(left, 0), (77, 0), (kept, 2)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn any_member_serves_leases() {
    let (members, _dir) = three(&["m"]).await;
    let (id, _) = grant(&members[0], 0, 60).await.unwrap();
    for (at, member) in members.iter().enumerate() {
        put_on(member, ["a", "n", "z"][at], id).await;
        let look = LeaseTimeToLiveRequest { id, keys: true };
        let found = member.lease().lease_time_to_live(look).await.unwrap();
        assert_eq!(found.into_inner().keys.len(), at + 1);
    }
    let revoke = LeaseRevokeRequest { id };
    members[2].lease().lease_revoke(revoke).await.unwrap();
    for key in ["a", "n", "z"] {
        assert_eq!(members[1].get(key).await, None);
    }
}
