//! Leases, and the services of locks and elections.

use etcd_client::{
    Error, EventType, LeaseGrantOptions, LeaseTimeToLiveOptions, LockOptions, ProclaimOptions,
    PutOptions, ResignOptions, WatchFilterType, WatchOptions,
};
use tonic::Code;

use crate::suite::{both, events, eventually, next, refused, soon, value};

#[test]
fn a_lease_takes_its_keys_along() {
    both(async |mut client| {
        let lease = client.lease_grant(100, None).await.unwrap().id();
        for key in ["b-leased", "r-leased"] {
            client
                .put(key, "", Some(PutOptions::new().with_lease(lease)))
                .await
                .unwrap();
        }
        let left = eventually("it has its keys", async || {
            let with_keys = Some(LeaseTimeToLiveOptions::new().with_keys());
            let left = client.lease_time_to_live(lease, with_keys).await?;
            Ok((left.keys().len() == 2).then_some(left))
        })
        .await;
        assert_eq!(left.granted_ttl(), 100);
        assert!(left.ttl() <= 100);
        client.lease_revoke(lease).await.unwrap();
        assert_eq!(value(&mut client, "b-leased").await, None);
        assert_eq!(value(&mut client, "r-leased").await, None);
        let gone = "etcdserver: requested lease not found";
        refused(Code::NotFound, gone, client.lease_revoke(lease).await);
    });
}

#[test]
fn a_lease_ends() {
    both(async |mut client| {
        let lease = client.lease_grant(1, None).await.unwrap().id();
        let deletes = WatchOptions::new().with_filters([WatchFilterType::NoPut]);
        let mut watch = client.watch("lease/ends", Some(deletes)).await.unwrap();
        assert!(next(&mut watch).await.created());
        client
            .put("lease/ends", "", Some(PutOptions::new().with_lease(lease)))
            .await
            .unwrap();
        assert_eq!(
            events(&mut watch, 1).await[0].event_type(),
            EventType::Delete
        );
    });
}

#[test]
fn a_lease_has_the_id_that_is_asked_for() {
    both(async |mut client| {
        let options = || Some(LeaseGrantOptions::new().with_id(4711));
        assert_eq!(client.lease_grant(100, options()).await.unwrap().id(), 4711);
        let again = client.lease_grant(100, options()).await;
        refused(
            Code::FailedPrecondition,
            "etcdserver: lease already exists",
            again,
        );
        client.lease_revoke(4711).await.unwrap();
        let long = client.lease_grant(9_000_000_001, None).await;
        refused(Code::OutOfRange, "etcdserver: too large lease TTL", long);
    });
}

#[test]
fn a_lease_is_kept_alive() {
    both(async |mut client| {
        let lease = client.lease_grant(50, None).await.unwrap().id();
        let (mut keeper, mut answers) = client.lease_keep_alive(lease).await.unwrap();
        for _ in 0..3 {
            keeper.keep_alive().await.unwrap();
            assert_eq!(soon(answers.message()).await.unwrap().unwrap().ttl(), 50);
        }
        client.lease_revoke(lease).await.unwrap();
        eventually("its end is told", async || {
            keeper.keep_alive().await?;
            Ok((soon(answers.message())
                .await?
                .is_some_and(|answer| answer.ttl() == 0))
            .then_some(()))
        })
        .await;
        assert!(matches!(
            client.lease_keep_alive(98765).await,
            Err(Error::LeaseKeepAliveError(_))
        ));
    });
}

#[test]
fn leases_are_listed() {
    both(async |mut client| {
        let lease = client.lease_grant(100, None).await.unwrap().id();
        eventually("it is listed", async || {
            let found = client
                .leases()
                .await?
                .leases()
                .iter()
                .any(|found| found.id() == lease);
            Ok(found.then_some(()))
        })
        .await;
        client.lease_revoke(lease).await.unwrap();
    });
}

#[test]
fn a_lease_goes_from_key_to_key() {
    both(async |mut client| {
        let first = client.lease_grant(100, None).await.unwrap().id();
        let second = client.lease_grant(100, None).await.unwrap().id();
        for lease in [first, second] {
            client
                .put("lease/moves", "", Some(PutOptions::new().with_lease(lease)))
                .await
                .unwrap();
        }
        client.lease_revoke(first).await.unwrap();
        let answer = client.get("lease/moves", None).await.unwrap();
        assert_eq!(answer.kvs()[0].lease(), second);
        client.lease_revoke(second).await.unwrap();
        assert_eq!(value(&mut client, "lease/moves").await, None);
    });
}

#[test]
fn a_lock_is_held_by_one() {
    both(async |mut client| {
        let lease = client.lease_grant(100, None).await.unwrap().id();
        let other = client.lease_grant(100, None).await.unwrap().id();
        let with = |lease| Some(LockOptions::new().with_lease(lease));
        let first = client.lock("mutex", with(lease)).await.unwrap();
        assert!(
            value(&mut client, str::from_utf8(first.key()).unwrap())
                .await
                .is_some()
        );
        let mut waiting = client.clone();
        let second = tokio::spawn(async move { waiting.lock("mutex", with(other)).await });
        // The second has written its key when it waits, and holds nothing yet.
        eventually("it waits", async || {
            let found = client
                .get("mutex/", Some(etcd_client::GetOptions::new().with_prefix()))
                .await?;
            Ok((found.count() == 2).then_some(()))
        })
        .await;
        assert!(!second.is_finished());
        client.unlock(first.key()).await.unwrap();
        let second = soon(second).await.unwrap().unwrap();
        client.unlock(second.key()).await.unwrap();
        client.lease_revoke(lease).await.unwrap();
        client.lease_revoke(other).await.unwrap();
    });
}

#[test]
fn a_lock_ends_with_its_lease() {
    both(async |mut client| {
        let lease = client.lease_grant(100, None).await.unwrap().id();
        let other = client.lease_grant(100, None).await.unwrap().id();
        let with = |lease| Some(LockOptions::new().with_lease(lease));
        client.lock("mutex/ends", with(lease)).await.unwrap();
        client.lease_revoke(lease).await.unwrap();
        let key = soon(client.lock("mutex/ends", with(other)))
            .await
            .unwrap()
            .key()
            .to_vec();
        client.unlock(key).await.unwrap();
        let none = client.lock("mutex/ends", with(lease)).await;
        // (The service of locks loses the code.)
        refused(Code::Unknown, "etcdserver: requested lease not found", none);
    });
}

#[test]
fn an_election() {
    both(async |mut client| {
        let lease = client.lease_grant(100, None).await.unwrap().id();
        let other = client.lease_grant(100, None).await.unwrap().id();
        refused(
            Code::Unknown,
            "election: no leader",
            client.leader("election").await,
        );
        let a = client
            .campaign("election", "a", lease)
            .await
            .unwrap()
            .take_leader()
            .unwrap();
        let mut seen = soon(client.observe("election")).await.unwrap();
        let observed = soon(seen.message()).await.unwrap().unwrap();
        assert_eq!(observed.kv().unwrap().value(), b"a");
        let mut waiting = client.clone();
        let b = tokio::spawn(async move { waiting.campaign("election", "b", other).await });
        client
            .proclaim("a2", Some(ProclaimOptions::new().with_leader(a.clone())))
            .await
            .unwrap();
        let observed = soon(seen.message()).await.unwrap().unwrap();
        assert_eq!(observed.kv().unwrap().value(), b"a2");
        client
            .resign(Some(ResignOptions::new().with_leader(a.clone())))
            .await
            .unwrap();
        let b = soon(b).await.unwrap().unwrap().take_leader().unwrap();
        let leader = client.leader("election").await.unwrap();
        assert_eq!(leader.kv().unwrap().value(), b"b");
        let late = client
            .proclaim("a3", Some(ProclaimOptions::new().with_leader(a)))
            .await;
        refused(Code::Unknown, "election: not leader", late);
        client
            .resign(Some(ResignOptions::new().with_leader(b)))
            .await
            .unwrap();
    });
}
