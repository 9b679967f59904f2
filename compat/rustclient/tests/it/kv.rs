//! Keys, ranges, transactions, compaction, and how bad requests are refused.

use etcd_client::{
    Client, CompactionOptions, Compare, CompareOp, DeleteOptions, GetOptions, GetResponse,
    KvClientPrefix, PutOptions, SortOrder, SortTarget, Txn, TxnOp, TxnOpResponse,
};
use tonic::Code;

use crate::suite::{both, eventually, put, refused, value};

fn keys(answer: &GetResponse) -> Vec<&str> {
    answer
        .kvs()
        .iter()
        .map(|kv| kv.key_str().expect("text"))
        .collect()
}

#[test]
fn put_and_get() {
    both(async |mut client| {
        put(&mut client, &["kv/a"]).await;
        let revision = put(&mut client, &["kv/a"]).await;
        let answer = client.get("kv/a", None).await.unwrap();
        let kv = &answer.kvs()[0];
        assert_eq!(
            (kv.value_str().unwrap(), kv.mod_revision()),
            ("kv/a", revision)
        );
        assert!(kv.version() > 1);
        assert!(answer.header().unwrap().revision() >= revision);
    });
}

#[test]
fn put_tells_what_was_before() {
    both(async |mut client| {
        client.put("kv/before", "old", None).await.unwrap();
        let answer = client
            .put("kv/before", "new", Some(PutOptions::new().with_prev_key()))
            .await
            .unwrap();
        assert_eq!(answer.prev_key().unwrap().value(), b"old");
    });
}

#[test]
fn a_missing_key_is_none() {
    both(async |mut client| assert_eq!(value(&mut client, "kv/none").await, None));
}

#[test]
fn keys_and_values_are_bytes() {
    both(async |mut client| {
        let (key, bytes) = (b"kv/\x00\xff\xfe".to_vec(), (0..=255).collect::<Vec<u8>>());
        client.put(key.clone(), bytes.clone(), None).await.unwrap();
        assert_eq!(
            client.get(key.clone(), None).await.unwrap().kvs()[0].value(),
            bytes
        );
        client.put(key.clone(), "", None).await.unwrap();
        assert_eq!(client.get(key, None).await.unwrap().kvs()[0].value(), b"");
    });
}

#[test]
fn ranges_over_groups() {
    both(async |mut client| {
        put(
            &mut client,
            &["re-range", "rf-range", "sa-range", "sb-range"],
        )
        .await;
        let range = || GetOptions::new().with_range("sc");
        let all = client.get("re-range", Some(range())).await.unwrap();
        assert_eq!(keys(&all), ["re-range", "rf-range", "sa-range", "sb-range"]);
        let last = range()
            .with_sort(SortTarget::Key, SortOrder::Descend)
            .with_limit(2);
        let last = client.get("re-range", Some(last)).await.unwrap();
        assert_eq!(
            (keys(&last), last.more(), last.count()),
            (vec!["sb-range", "sa-range"], true, 4)
        );
    });
}

#[test]
fn prefix_and_from_key() {
    both(async |mut client| {
        put(&mut client, &["prefix/1", "prefix/2", "prefix0"]).await;
        let prefix = || GetOptions::new().with_prefix();
        assert_eq!(
            keys(&client.get("prefix/", Some(prefix())).await.unwrap()),
            ["prefix/1", "prefix/2"]
        );
        let count = client
            .get("prefix/", Some(prefix().with_count_only()))
            .await
            .unwrap();
        assert_eq!((count.count(), count.kvs().len()), (2, 0));
        let only = client
            .get("prefix/", Some(prefix().with_keys_only()))
            .await
            .unwrap();
        assert!(only.kvs().iter().all(|kv| kv.value().is_empty()));
        let from = client
            .get(
                "prefix/2",
                Some(GetOptions::new().with_from_key().with_limit(2)),
            )
            .await
            .unwrap();
        assert_eq!(keys(&from), ["prefix/2", "prefix0"]);
    });
}

#[test]
fn all_keys() {
    both(async |mut client| {
        put(&mut client, &["a-all", "n-all", "zz-all"]).await;
        let found = client
            .get("", Some(GetOptions::new().with_all_keys().with_keys_only()))
            .await
            .unwrap();
        let found = found.kvs().iter().map(|kv| kv.key()).collect::<Vec<_>>();
        assert!(found.is_sorted());
        assert!(
            ["a-all", "n-all", "zz-all"]
                .iter()
                .all(|key| found.contains(&key.as_bytes()))
        );
    });
}

#[test]
fn a_range_as_a_stream() {
    both(async |mut client| {
        client
            .delete("stream", Some(DeleteOptions::new().with_prefix()))
            .await
            .unwrap();
        let wanted = (0..200)
            .map(|n| format!("stream{}/{n:03}", n % 2))
            .collect::<Vec<_>>();
        for key in &wanted {
            client
                .put(key.as_str(), "x".repeat(10_000), None)
                .await
                .unwrap();
        }
        let prefix = GetOptions::new().with_prefix();
        let mut stream = client
            .kv_client()
            .get_stream("stream", Some(prefix))
            .await
            .unwrap();
        let (mut found, mut count) = (Vec::new(), 0);
        while let Some(part) = stream.message().await.unwrap() {
            found.extend(keys(&part).into_iter().map(str::to_owned));
            count = part.count();
        }
        assert_eq!((found.len(), count), (200, 200));
        assert!(found.is_sorted());
    });
}

#[test]
fn sorted_by_anything() {
    both(async |mut client| {
        client
            .delete("sort", Some(DeleteOptions::new().with_prefix()))
            .await
            .unwrap();
        for (key, value) in [
            ("sort/b", "3"),
            ("sort/c", "1"),
            ("sorta", "2"),
            ("sort/c", "1"),
        ] {
            client.put(key, value, None).await.unwrap();
        }
        for (target, sorted) in [
            (SortTarget::Key, ["sort/b", "sort/c", "sorta"]),
            (SortTarget::Version, ["sort/b", "sorta", "sort/c"]),
            (SortTarget::Create, ["sort/b", "sort/c", "sorta"]),
            (SortTarget::Mod, ["sort/b", "sorta", "sort/c"]),
            (SortTarget::Value, ["sort/c", "sorta", "sort/b"]),
        ] {
            let options = GetOptions::new()
                .with_prefix()
                .with_sort(target, SortOrder::Ascend);
            assert_eq!(
                keys(&client.get("sort", Some(options)).await.unwrap()),
                sorted
            );
        }
    });
}

#[test]
fn past_revisions() {
    both(async |mut client| {
        let revision = put(&mut client, &["past"]).await;
        client.delete("past", None).await.unwrap();
        assert_eq!(value(&mut client, "past").await, None);
        let then = GetOptions::new().with_revision(revision);
        assert_eq!(
            keys(&client.get("past", Some(then)).await.unwrap()),
            ["past"]
        );
    });
}

#[test]
fn a_serializable_get() {
    both(async |mut client| {
        put(&mut client, &["serial"]).await;
        eventually("it is there", async || {
            let answer = client
                .get("serial", Some(GetOptions::new().with_serializable()))
                .await?;
            Ok((answer.count() == 1).then_some(()))
        })
        .await;
    });
}

#[test]
fn only_what_changed_since() {
    both(async |mut client| {
        client
            .delete("since/", Some(DeleteOptions::new().with_prefix()))
            .await
            .unwrap();
        put(&mut client, &["since/1"]).await;
        let middle = put(&mut client, &["since/2"]).await;
        put(&mut client, &["since/3", "since/1"]).await;
        let all = || GetOptions::new().with_prefix();
        for (options, found) in [
            (
                all().with_min_mod_revision(middle),
                vec!["since/1", "since/2", "since/3"],
            ),
            (all().with_max_mod_revision(middle), vec!["since/2"]),
            (
                all().with_min_create_revision(middle),
                vec!["since/2", "since/3"],
            ),
            (
                all().with_max_create_revision(middle),
                vec!["since/1", "since/2"],
            ),
        ] {
            assert_eq!(
                keys(&client.get("since/", Some(options)).await.unwrap()),
                found
            );
        }
    });
}

#[test]
fn delete_tells_what_was_there() {
    both(async |mut client| {
        put(&mut client, &["f-gone", "h-gone", "n-gone"]).await;
        let range = DeleteOptions::new().with_range("n-gonf").with_prev_key();
        let gone = client.delete("f-gone", Some(range)).await.unwrap();
        let all = gone
            .prev_kvs()
            .iter()
            .map(|kv| kv.key())
            .collect::<Vec<_>>();
        assert_eq!(gone.deleted() as usize, all.len());
        assert!(
            ["f-gone", "h-gone", "n-gone"]
                .iter()
                .all(|key| all.contains(&key.as_bytes()))
        );
        assert_eq!(client.delete("f-gone", None).await.unwrap().deleted(), 0);
    });
}

#[test]
fn a_put_that_keeps_value_or_lease() {
    both(async |mut client| {
        let lease = client.lease_grant(100, None).await.unwrap().id();
        let leased = || Some(PutOptions::new().with_lease(lease));
        client.put("keep", "value", leased()).await.unwrap();
        client
            .put("keep", "", Some(PutOptions::new().with_ignore_value()))
            .await
            .unwrap();
        let answer = client.get("keep", None).await.unwrap();
        assert_eq!(
            (answer.kvs()[0].value(), answer.kvs()[0].lease()),
            (&b"value"[..], 0)
        );
        client.put("keep", "value", leased()).await.unwrap();
        client
            .put("keep", "other", Some(PutOptions::new().with_ignore_lease()))
            .await
            .unwrap();
        let answer = client.get("keep", None).await.unwrap();
        assert_eq!(
            (answer.kvs()[0].value(), answer.kvs()[0].lease()),
            (&b"other"[..], lease)
        );
        let ignore = || Some(PutOptions::new().with_ignore_value());
        let missing = client.put("keep/none", "", ignore()).await;
        refused(Code::InvalidArgument, "etcdserver: key not found", missing);
        let given = client.put("keep", "x", ignore()).await;
        refused(
            Code::InvalidArgument,
            "etcdserver: value is provided",
            given,
        );
        let both_leases = Some(PutOptions::new().with_ignore_lease().with_lease(lease));
        let given = client.put("keep", "x", both_leases).await;
        refused(
            Code::InvalidArgument,
            "etcdserver: lease is provided",
            given,
        );
    });
}

#[test]
fn a_namespace() {
    both(async |mut client| {
        let mut inside = KvClientPrefix::new(client.kv_client(), "space/".into());
        inside.put("k", "v", None).await.unwrap();
        assert_eq!(value(&mut client, "space/k").await.as_deref(), Some("v"));
        let found = inside
            .get("", Some(GetOptions::new().with_all_keys()))
            .await
            .unwrap();
        assert_eq!(keys(&found), ["k"]);
    });
}

async fn swap(client: &mut Client) -> (bool, Vec<TxnOpResponse>) {
    let txn = Txn::new()
        .when([
            Compare::value("a-txn", CompareOp::Equal, "a-txn"),
            Compare::version("x-txn", CompareOp::Greater, 0),
        ])
        .and_then([
            TxnOp::put("a-txn", "x", None),
            TxnOp::put("x-txn", "a", None),
            TxnOp::get("a-txn", None),
        ])
        .or_else([TxnOp::get("x-txn", None)]);
    let answer = client.txn(txn).await.unwrap();
    (answer.succeeded(), answer.op_responses())
}

#[test]
fn transactions_over_groups() {
    both(async |mut client| {
        put(&mut client, &["a-txn", "x-txn"]).await;
        let (succeeded, responses) = swap(&mut client).await;
        assert!(succeeded);
        assert!(matches!(&responses[2], TxnOpResponse::Get(got) if got.kvs()[0].value() == b"x"));
        let (succeeded, responses) = swap(&mut client).await;
        assert!(!succeeded);
        assert!(matches!(&responses[0], TxnOpResponse::Get(got) if got.kvs()[0].value() == b"a"));
        let a = client.get("a-txn", None).await.unwrap().kvs()[0].mod_revision();
        assert_eq!(
            client.get("x-txn", None).await.unwrap().kvs()[0].mod_revision(),
            a
        );
    });
}

#[test]
fn nested_transactions() {
    both(async |mut client| {
        put(&mut client, &["b-nested"]).await;
        client.delete("y-nested", None).await.unwrap();
        for expected in [true, false] {
            let inner = Txn::new()
                .when([Compare::create_revision("y-nested", CompareOp::Equal, 0)])
                .and_then([TxnOp::put("y-nested", "1", None)])
                .or_else([TxnOp::delete("b-nested", None)]);
            let txn = Txn::new().and_then([TxnOp::get("b-nested", None), TxnOp::txn(inner)]);
            let responses = client.txn(txn).await.unwrap().op_responses();
            assert!(
                matches!(&responses[1], TxnOpResponse::Txn(txn) if txn.succeeded() == expected)
            );
        }
        assert_eq!(value(&mut client, "b-nested").await, None);
    });
}

#[test]
fn every_comparison() {
    both(async |mut client| {
        let revision = put(&mut client, &["compared", "l-compared"]).await;
        let created = client.get("compared", None).await.unwrap().kvs()[0].create_revision();
        for (compare, expected) in [
            (
                Compare::value("compared", CompareOp::Equal, "compared"),
                true,
            ),
            (
                Compare::value("compared", CompareOp::NotEqual, "compared"),
                false,
            ),
            (Compare::value("compared", CompareOp::Less, "d"), true),
            (Compare::version("compared", CompareOp::Greater, 0), true),
            (
                Compare::create_revision("compared", CompareOp::Less, created),
                false,
            ),
            (
                Compare::mod_revision("l-compared", CompareOp::Equal, revision),
                true,
            ),
            (Compare::lease("compared", CompareOp::Equal, 0), true),
            (
                Compare::mod_revision("compared", CompareOp::Less, revision + 1)
                    .with_range("l-comparee"),
                true,
            ),
            (Compare::version("compared/none", CompareOp::Equal, 0), true),
        ] {
            let answer = client
                .txn(Txn::new().when([compare.clone()]))
                .await
                .unwrap();
            assert_eq!(answer.succeeded(), expected, "{compare:?}");
        }
    });
}

#[test]
fn what_changes_nothing_makes_no_revision() {
    both(async |mut client| {
        let before = put(&mut client, &["still"]).await;
        let txn =
            Txn::new().and_then([TxnOp::get("still", None), TxnOp::delete("still/none", None)]);
        client.txn(txn).await.unwrap();
        assert_eq!(
            client
                .get("still", None)
                .await
                .unwrap()
                .header()
                .unwrap()
                .revision(),
            before
        );
    });
}

#[test]
fn compaction() {
    both(async |mut client| {
        let old = put(&mut client, &["compact"]).await;
        let now = put(&mut client, &["compact"]).await;
        client
            .compact(now, Some(CompactionOptions::new().with_physical()))
            .await
            .unwrap();
        let gone = "etcdserver: mvcc: required revision has been compacted";
        let then = GetOptions::new().with_revision(old);
        refused(
            Code::OutOfRange,
            gone,
            client.get("compact", Some(then)).await,
        );
        let then = GetOptions::new().with_revision(now);
        assert_eq!(
            keys(&client.get("compact", Some(then)).await.unwrap()),
            ["compact"]
        );
        refused(Code::OutOfRange, gone, client.compact(now, None).await);
        let future = "etcdserver: mvcc: required revision is a future revision";
        refused(
            Code::OutOfRange,
            future,
            client.compact(now + 1_000_000_000, None).await,
        );
    });
}

#[test]
fn bad_requests_are_refused() {
    both(async |mut client| {
        let invalid = Code::InvalidArgument;
        refused(
            invalid,
            "etcdserver: key is not provided",
            client.put("", "x", None).await,
        );
        let leased = Some(PutOptions::new().with_lease(12345));
        refused(
            Code::NotFound,
            "etcdserver: requested lease not found",
            client.put("x", "x", leased).await,
        );
        let future = "etcdserver: mvcc: required revision is a future revision";
        let then = GetOptions::new().with_revision(1 << 40);
        refused(Code::OutOfRange, future, client.get("x", Some(then)).await);
        let large = client.put("x", "x".repeat(1_600_000), None).await;
        refused(invalid, "etcdserver: request is too large", large);
        let twice = Txn::new().and_then([TxnOp::put("x", "1", None), TxnOp::put("x", "2", None)]);
        refused(
            invalid,
            "etcdserver: duplicate key given in txn request",
            client.txn(twice).await,
        );
        let many = (0..129)
            .map(|n| TxnOp::put(format!("many/{n}"), "", None))
            .collect::<Vec<_>>();
        let many = client.txn(Txn::new().and_then(many)).await;
        refused(
            invalid,
            "etcdserver: too many operations in txn request",
            many,
        );
    });
}
