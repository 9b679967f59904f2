//! Rule 13: leases.

use std::time::Duration;

use bytes::Bytes;
use pontoon_engine::{Put, Reject, Request};
use pontoon_raftgroup::{Failure, GroupId, Node};
use tokio::task::spawn_local;

use crate::cluster::{Client, Cluster, LONG, ROOT, pause, simulate};

async fn attach(node: &Node, key: &'static str, lease: i64) -> Result<(), Failure> {
    let put = Put {
        key: Bytes::from(key),
        value: Bytes::from("leased"),
        lease,
        ..Put::default()
    };
    node.request(Request::Put(put), LONG).await.map(|_| ())
}

async fn revoke_and_expire(splits: &[&'static str]) {
    let cluster = Cluster::start(3, splits).await;
    cluster.lead(ROOT, 1).await;
    cluster.lead(GroupId(splits.len() as u64), 2).await;
    let node = cluster.node(3);
    let granted = node.lease_grant(0, 5, LONG).await.expect("it is granted");
    assert_eq!(granted.ttl_secs, 5);
    let (id, keys) = (granted.id, ["a", "g", "n"]);
    for key in keys {
        attach(&node, key, id).await.expect("it is attached");
    }
    let status = node.lease_status(id, true, LONG).await.expect("answered");
    assert_eq!(status.expect("it is known").keys, keys);
    let last = node.put("z", "x").await;
    let revision = node.lease_revoke(id, LONG).await.expect("it is revoked");
    assert_eq!(revision.0, last + 1);
    for key in keys {
        assert!(cluster.node(1).get(key).await.kvs.is_empty(), "{key}");
    }
    let late = attach(&node, "a", id).await;
    assert_eq!(late, Err(Failure::Reject(Reject::LeaseNotFound)));
    let again = node.lease_revoke(id, LONG).await;
    assert_eq!(again, Err(Failure::Reject(Reject::LeaseNotFound)));
    assert_eq!(node.lease_keep_alive(id, LONG).await, Ok(None));

    // The longest that there may be is not cut.
    let longest = 9_000_000_000;
    let granted = node.lease_grant(0, longest, LONG).await;
    let id = granted.expect("it is granted").id;
    let status = node.lease_status(id, false, LONG).await.expect("answered");
    assert!(status.expect("it is known").ttl_secs >= longest - 60);
    node.lease_revoke(id, LONG).await.expect("it is revoked");

    // One that is kept alive stays, one that isn't goes with its keys.
    for id in [7, 8, 9] {
        node.lease_grant(id, 2, LONG).await.expect("it is granted");
    }
    let taken = node.lease_grant(7, 2, LONG).await;
    assert_eq!(taken, Err(Failure::Reject(Reject::LeaseExists)));
    attach(&node, "b", 7).await.expect("it is attached");
    attach(&node, "o", 7).await.expect("it is attached");
    attach(&node, "p", 8).await.expect("it is attached");
    for _ in 0..8 {
        pause(500).await;
        assert_eq!(node.lease_keep_alive(8, LONG).await, Ok(Some(2)));
    }
    pause(1000).await;
    let left = |key| {
        let node = cluster.node(2);
        async move { node.get(key).await.kvs.len() }
    };
    assert_eq!(
        (left("b").await, left("o").await, left("p").await),
        (0, 0, 1)
    );
    assert_eq!(node.leases(), [8]);
}

#[test]
fn rule_13_a_lease_takes_its_keys_along_in_one_group() {
    simulate(revoke_and_expire(&[]));
}

#[test]
fn rule_13_a_lease_takes_its_keys_along_over_groups() {
    simulate(revoke_and_expire(&["f", "m"]));
}

/// A lease is being revoked, which takes a while, and is revoked again.
#[test]
fn rule_13_a_lease_is_not_said_to_be_gone_before_its_keys_are() {
    simulate(async {
        let cluster = Cluster::start(3, &["m"]).await;
        cluster.lead(ROOT, 1).await;
        cluster.lead(GroupId(1), 2).await;
        let node = cluster.node(3);
        node.lease_grant(7, 60, LONG).await.expect("it is granted");
        attach(&node, "n", 7).await.expect("it is attached");
        cluster.slow(1, 2, 100);
        let first = cluster.node(1);
        let first = spawn_local(async move { first.lease_revoke(7, LONG).await });
        pause(50).await;
        let second = node.lease_revoke(7, LONG).await;
        assert_eq!(second, Err(Failure::Reject(Reject::LeaseNotFound)));
        assert!(node.get("n").await.kvs.is_empty());
        first.await.expect("it runs").expect("it is revoked");
    });
}

#[test]
fn rule_13_a_new_leader_gives_every_lease_its_full_time() {
    simulate(async {
        let cluster = Cluster::start(3, &["m"]).await;
        cluster.lead(ROOT, 1).await;
        let node = cluster.node(2);
        node.lease_grant(5, 4, LONG).await.expect("it is granted");
        attach(&node, "n", 5).await.expect("it is attached");
        pause(3000).await;
        cluster.lead(ROOT, 3).await;
        pause(3000).await;
        assert_eq!(node.get("n").await.kvs.len(), 1);
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert_eq!(node.get("n").await.kvs.len(), 0);
    });
}
