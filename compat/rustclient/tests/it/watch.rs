//! Watches: where they begin, what they tell, and how they end.

use etcd_client::{EventType, Txn, TxnOp, WatchFilterType, WatchOptions};

use crate::suite::{both, events, eventually, keys_of, next, put};

#[test]
fn from_now() {
    both(async |mut client| {
        let mut watch = client.watch("watch/now", None).await.unwrap();
        assert!(next(&mut watch).await.created());
        let revision = put(&mut client, &["watch/now"]).await;
        let event = &events(&mut watch, 1).await[0];
        assert_eq!(event.event_type(), EventType::Put);
        assert_eq!(event.kv().unwrap().mod_revision(), revision);
    });
}

#[test]
fn from_the_past_over_groups() {
    both(async |mut client| {
        let begin = put(&mut client, &["b-past"]).await;
        put(&mut client, &["k-past", "t-past"]).await;
        let options = WatchOptions::new()
            .with_range("u")
            .with_start_revision(begin);
        let mut watch = client.watch("b-past", Some(options)).await.unwrap();
        assert!(next(&mut watch).await.created());
        assert_eq!(
            keys_of(&events(&mut watch, 3).await),
            ["b-past", "k-past", "t-past"]
        );
    });
}

#[test]
fn from_the_future() {
    both(async |mut client| {
        let now = put(&mut client, &["watch/future"]).await;
        let options = WatchOptions::new().with_start_revision(now + 2);
        let mut watch = client.watch("watch/future", Some(options)).await.unwrap();
        next(&mut watch).await;
        let last = put(&mut client, &["watch/future", "watch/future"]).await;
        assert_eq!(
            events(&mut watch, 1).await[0].kv().unwrap().mod_revision(),
            last
        );
    });
}

#[test]
fn a_prefix_and_what_was_before() {
    both(async |mut client| {
        put(&mut client, &["watch/before/1"]).await;
        let options = WatchOptions::new().with_prefix().with_prev_key();
        let mut watch = client.watch("watch/before/", Some(options)).await.unwrap();
        next(&mut watch).await;
        put(&mut client, &["watch/before0"]).await;
        client.delete("watch/before/1", None).await.unwrap();
        let event = &events(&mut watch, 1).await[0];
        assert_eq!(event.event_type(), EventType::Delete);
        assert_eq!(event.prev_kv().unwrap().value(), b"watch/before/1");
    });
}

#[test]
fn filters() {
    both(async |mut client| {
        let only = |filter| Some(WatchOptions::new().with_filters([filter]));
        let mut puts = client
            .watch("watch/filter", only(WatchFilterType::NoDelete))
            .await
            .unwrap();
        next(&mut puts).await;
        let mut deletes = client
            .watch("watch/filter", only(WatchFilterType::NoPut))
            .await
            .unwrap();
        next(&mut deletes).await;
        put(&mut client, &["watch/filter"]).await;
        client.delete("watch/filter", None).await.unwrap();
        put(&mut client, &["watch/filter"]).await;
        let puts = events(&mut puts, 2).await;
        assert!(
            puts.iter()
                .all(|event| event.event_type() == EventType::Put)
        );
        assert_eq!(
            events(&mut deletes, 1).await[0].event_type(),
            EventType::Delete
        );
    });
}

#[test]
fn that_begins_too_early() {
    both(async |mut client| {
        let now = put(&mut client, &["watch/early", "watch/early"]).await;
        client.compact(now, None).await.unwrap();
        // A member that hasn't heard of this compaction does as before it.
        eventually("all know of the compaction", async || {
            let options = WatchOptions::new().with_start_revision(1);
            let mut watch = client.watch("watch/early", Some(options)).await?;
            assert!(next(&mut watch).await.created());
            let told = next(&mut watch).await;
            Ok((told.canceled() && told.compact_revision() == now).then_some(()))
        })
        .await;
    });
}

#[test]
fn that_is_cancelled_hears_no_more() {
    both(async |mut client| {
        let mut watch = client.watch("watch/cancel", None).await.unwrap();
        let first = next(&mut watch).await.watch_id();
        watch.watch("watch/cancel", None).await.unwrap();
        let second = next(&mut watch).await.watch_id();
        assert_ne!(first, second);
        watch.cancel(first).await.unwrap();
        let told = next(&mut watch).await;
        assert!(told.canceled());
        assert_eq!(told.watch_id(), first);
        put(&mut client, &["watch/cancel", "watch/cancel"]).await;
        let mut count = 0;
        while count < 2 {
            let response = next(&mut watch).await;
            assert_eq!(response.watch_id(), second);
            count += response.events().len();
        }
    });
}

#[test]
fn ids_are_given_or_chosen() {
    both(async |mut client| {
        let seven = || Some(WatchOptions::new().with_watch_id(7));
        let mut watch = client.watch("x", seven()).await.unwrap();
        assert_eq!(next(&mut watch).await.watch_id(), 7);
        watch.watch("x", seven()).await.unwrap();
        let again = next(&mut watch).await;
        assert!(again.canceled());
        assert_eq!(
            again.cancel_reason(),
            "mvcc: duplicate watch ID provided on the WatchStream"
        );
        watch.watch("x", None).await.unwrap();
        assert_ne!(next(&mut watch).await.watch_id(), 7);
        watch
            .watch("x", Some(WatchOptions::new().with_range("a")))
            .await
            .unwrap();
        assert_eq!(
            next(&mut watch).await.cancel_reason(),
            "mvcc: watcher range is empty"
        );
    });
}

#[test]
fn progress_on_request() {
    both(async |mut client| {
        let mut watch = client.watch("watch/progress", None).await.unwrap();
        next(&mut watch).await;
        let revision = put(&mut client, &["elsewhere"]).await;
        eventually("progress is told", async || {
            watch.request_progress().await?;
            let told = next(&mut watch).await;
            assert_eq!((told.watch_id(), told.events().len()), (-1, 0));
            Ok((told.header().unwrap().revision() >= revision).then_some(()))
        })
        .await;
    });
}

#[test]
fn a_transaction_is_one_response() {
    both(async |mut client| {
        let mut watch = client
            .watch("a", Some(WatchOptions::new().with_range("zz")))
            .await
            .unwrap();
        next(&mut watch).await;
        let keys = ["b-one", "n-one", "y-one"];
        let txn = Txn::new().and_then(keys.map(|key| TxnOp::put(key, "1", None)));
        client.txn(txn).await.unwrap();
        assert_eq!(keys_of(next(&mut watch).await.events()), keys);
    });
}

#[test]
fn many_on_one_stream() {
    both(async |mut client| {
        let key = |n| format!("many/{n}");
        let mut watch = client.watch(key(0), None).await.unwrap();
        let mut ids = vec![next(&mut watch).await.watch_id()];
        for n in 1..50 {
            watch.watch(key(n), None).await.unwrap();
            ids.push(next(&mut watch).await.watch_id());
        }
        for (n, id) in ids.into_iter().enumerate() {
            put(&mut client, &[&key(n)]).await;
            let response = next(&mut watch).await;
            assert_eq!(
                (response.watch_id(), keys_of(response.events())),
                (id, vec![key(n).as_str()])
            );
        }
    });
}

#[test]
fn large_revisions_come_in_pieces() {
    both(async |mut client| {
        let begin = put(&mut client, &["e-large"]).await;
        let keys = ["e-large", "n-large", "y-large", "yy-large"];
        for key in keys {
            client.put(key, "x".repeat(1_000_000), None).await.unwrap();
        }
        let options = WatchOptions::new()
            .with_range("z")
            .with_start_revision(begin + 1)
            .with_fragment();
        let mut watch = client.watch("e-large", Some(options)).await.unwrap();
        next(&mut watch).await;
        let all = events(&mut watch, keys.len()).await;
        assert_eq!(keys_of(&all), keys);
        assert!(
            all.iter()
                .all(|event| event.kv().unwrap().value().len() == 1_000_000)
        );
    });
}
