use pontoon_api::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use pontoon_api::etcdserverpb::range_request::{SortOrder, SortTarget};
use pontoon_api::etcdserverpb::{
    CompactionRequest, Compare, DeleteRangeRequest, PutRequest, RangeRequest, RequestOp,
    ResponseHeader, TxnRequest, request_op, response_op,
};
use pontoon_api::mvccpb::KeyValue;

use crate::running::{get, one, one_with, prefix, put, three};

fn op(request: request_op::Request) -> RequestOp {
    RequestOp {
        request: Some(request),
    }
}

fn created(key: &str, revision: i64) -> Compare {
    Compare {
        result: CompareResult::Equal.into(),
        target: CompareTarget::Create.into(),
        key: key.to_owned().into(),
        target_union: Some(TargetUnion::CreateRevision(revision)),
        ..Compare::default()
    }
}

fn keys(kvs: &[KeyValue]) -> String {
    let keys = kvs.iter().map(|kv| String::from_utf8_lossy(&kv.key));
    keys.collect::<Vec<_>>().join(" ")
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_put_found_and_deleted() {
    let (server, _dir) = one().await;
    assert_eq!(server.put("k", "1").await, 2);
    let mut again = put("k", "2");
    again.prev_kv = true;
    let answer = server.kv().put(again).await.unwrap().into_inner();
    assert_eq!(answer.header.unwrap().revision, 3);
    let before = KeyValue {
        key: "k".into(),
        value: "1".into(),
        create_revision: 2,
        mod_revision: 2,
        version: 1,
        lease: 0,
    };
    assert_eq!(answer.prev_kv, Some(before.clone()));

    let found = server.range(get("k")).await.unwrap();
    let header = found.header.unwrap();
    assert_eq!(header.revision, 3);
    assert!(header.cluster_id != 0 && header.member_id != 0 && header.raft_term > 0);
    assert_eq!(found.kvs[0].value, "2");
    assert_eq!(
        (found.kvs[0].version, found.count, found.more),
        (2, 1, false)
    );

    let mut old = get("k");
    old.revision = 2;
    let found = server.range(old).await.unwrap();
    assert_eq!(found.kvs, [before]);
    assert_eq!(found.header.unwrap().revision, 3);

    let delete = DeleteRangeRequest {
        key: "k".into(),
        prev_kv: true,
        ..DeleteRangeRequest::default()
    };
    let deleted = server.kv().delete_range(delete.clone()).await.unwrap();
    let deleted = deleted.into_inner();
    assert_eq!((deleted.deleted, deleted.prev_kvs.len()), (1, 1));
    assert_eq!(deleted.header.unwrap().revision, 4);
    // Nothing is there any more, so nothing changes.
    let deleted = server.kv().delete_range(delete).await.unwrap().into_inner();
    assert_eq!((deleted.deleted, deleted.header.unwrap().revision), (0, 4));
    assert_eq!(server.get("k").await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn ranges_are_limited_sorted_and_filtered() {
    let (server, _dir) = one().await;
    for (key, value) in [("a", "5"), ("b", "1"), ("c", "2"), ("d", "0")] {
        server.put(key, value).await;
    }
    let all = RangeRequest {
        key: "\0".into(),
        range_end: "\0".into(),
        ..RangeRequest::default()
    };
    let range = |change: &dyn Fn(&mut RangeRequest)| {
        let mut request = all.clone();
        change(&mut request);
        server.range(request)
    };
    let found = range(&|range| range.limit = 2).await.unwrap();
    assert_eq!(
        (keys(&found.kvs).as_str(), found.more, found.count),
        ("a b", true, 4)
    );
    let found = range(&|range| range.set_sort_order(SortOrder::Descend))
        .await
        .unwrap();
    assert_eq!(keys(&found.kvs), "d c b a");
    let by_value = |range: &mut RangeRequest| {
        range.set_sort_target(SortTarget::Value);
        range.limit = 2;
    };
    // Without an order the limit comes first.
    assert_eq!(keys(&range(&by_value).await.unwrap().kvs), "b c");
    let found = range(&|range| {
        by_value(range);
        range.set_sort_order(SortOrder::Ascend);
    });
    assert_eq!(keys(&found.await.unwrap().kvs), "d b");
    let found = range(&|range| {
        range.min_mod_revision = 3;
        range.max_create_revision = 4;
    });
    let found = found.await.unwrap();
    assert_eq!((keys(&found.kvs).as_str(), found.count), ("b c", 4));
    let found = range(&|range| range.count_only = true).await.unwrap();
    assert_eq!((found.kvs.len(), found.count), (0, 4));
    let found = range(&|range| range.keys_only = true).await.unwrap();
    assert!(found.kvs.len() == 4 && found.kvs.iter().all(|kv| kv.value.is_empty()));
    let found = range(&|range| range.serializable = true).await.unwrap();
    assert_eq!(keys(&found.kvs), "a b c d");
    let empty = range(&|range| {
        range.key = "c".into();
        range.range_end = "a".into();
    });
    assert_eq!(empty.await.unwrap().count, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_txn_is_one_revision_and_its_steps_have_lean_headers() {
    let (server, _dir) = one().await;
    server.put("k", "1").await;
    let inner = TxnRequest {
        compare: vec![created("k", 2)],
        success: vec![op(request_op::Request::RequestPut(put("c", "3")))],
        ..TxnRequest::default()
    };
    let txn = TxnRequest {
        compare: vec![created("k", 2)],
        success: vec![
            op(request_op::Request::RequestRange(get("k"))),
            op(request_op::Request::RequestPut(put("b", "2"))),
            op(request_op::Request::RequestTxn(inner)),
            op(request_op::Request::RequestDeleteRange(
                DeleteRangeRequest {
                    key: "k".into(),
                    ..DeleteRangeRequest::default()
                },
            )),
        ],
        failure: vec![op(request_op::Request::RequestRange(get("k")))],
    };
    let answer = server.kv().txn(txn.clone()).await.unwrap().into_inner();
    assert!(answer.succeeded);
    assert_eq!(answer.header.unwrap().revision, 3);
    let lean = |revision| {
        Some(ResponseHeader {
            revision,
            ..ResponseHeader::default()
        })
    };
    let mut responses = answer.responses.into_iter().map(|op| op.response.unwrap());
    match responses.next().unwrap() {
        response_op::Response::ResponseRange(range) => {
            assert_eq!((range.header, range.count), (lean(2), 1));
        }
        other => panic!("{other:?}"),
    }
    match responses.next().unwrap() {
        response_op::Response::ResponsePut(put) => assert_eq!(put.header, lean(3)),
        other => panic!("{other:?}"),
    }
    match responses.next().unwrap() {
        response_op::Response::ResponseTxn(txn) => {
            assert_eq!((txn.header, txn.succeeded), (lean(0), true));
        }
        other => panic!("{other:?}"),
    }
    match responses.next().unwrap() {
        response_op::Response::ResponseDeleteRange(delete) => {
            assert_eq!((delete.header, delete.deleted), (lean(3), 1));
        }
        other => panic!("{other:?}"),
    }
    // The key is gone, so the other branch is taken, and changes nothing.
    let answer = server.kv().txn(txn).await.unwrap().into_inner();
    assert!(!answer.succeeded);
    assert_eq!(
        (answer.header.unwrap().revision, answer.responses.len()),
        (3, 1)
    );
    assert_eq!(server.get("c").await.unwrap(), "3");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_compacted_can_not_be_read() {
    let (server, _dir) = one().await;
    for value in ["1", "2", "3"] {
        server.put("k", value).await;
    }
    let compact = |revision, physical| {
        let mut kv = server.kv();
        async move { kv.compact(CompactionRequest { revision, physical }).await }
    };
    let done = compact(3, true).await.unwrap().into_inner();
    assert_eq!(done.header.unwrap().revision, 4);
    let mut old = get("k");
    old.revision = 2;
    let refused = server.range(old.clone()).await.unwrap_err();
    assert_eq!(
        refused.message(),
        "etcdserver: mvcc: required revision has been compacted"
    );
    assert_eq!(refused.code(), tonic::Code::OutOfRange);
    old.revision = 3;
    assert_eq!(server.range(old).await.unwrap().kvs[0].value, "2");
    let refused = compact(3, true).await.unwrap_err();
    assert_eq!(
        refused.message(),
        "etcdserver: mvcc: required revision has been compacted"
    );
    let refused = compact(5, false).await.unwrap_err();
    assert_eq!(
        refused.message(),
        "etcdserver: mvcc: required revision is a future revision"
    );
    let mut future = get("k");
    future.revision = 5;
    assert_eq!(
        server.range(future).await.unwrap_err().code(),
        tonic::Code::OutOfRange
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_range_comes_in_parts_of_one_revision() {
    let (server, _dir) = one().await;
    for at in 0..100 {
        server.put(&format!("k{at:03}"), &"x".repeat(1000)).await;
    }
    let mut parts = server
        .kv()
        .range_stream(prefix("k"))
        .await
        .unwrap()
        .into_inner();
    let mut seen = Vec::new();
    let mut messages = 0;
    let last = loop {
        let part = parts
            .message()
            .await
            .unwrap()
            .unwrap()
            .range_response
            .unwrap();
        seen.extend(part.kvs.iter().map(|kv| kv.key.clone()));
        if messages == 0 {
            // Not to be seen: the stream has begun.
            server.put("k000x", "late").await;
        }
        messages += 1;
        if part.header.is_some() {
            break part;
        }
        assert_eq!((part.count, part.more), (0, false));
    };
    assert!(messages > 2);
    assert_eq!(
        (last.count, last.more, last.header.unwrap().revision),
        (100, false, 101)
    );
    assert!(parts.message().await.unwrap().is_none());
    let expected: Vec<_> = (0..100)
        .map(|at| bytes::Bytes::from(format!("k{at:03}")))
        .collect();
    assert_eq!(seen, expected);

    let mut limited = prefix("k");
    limited.limit = 15;
    let mut parts = server
        .kv()
        .range_stream(limited)
        .await
        .unwrap()
        .into_inner();
    let (mut seen, mut last) = (0, None);
    while let Some(part) = parts.message().await.unwrap() {
        let part = part.range_response.unwrap();
        seen += part.kvs.len();
        last = Some(part);
    }
    let last = last.unwrap();
    assert_eq!((seen, last.count, last.more), (15, 101, true));

    let mut count = prefix("k");
    count.count_only = true;
    let mut parts = server.kv().range_stream(count).await.unwrap().into_inner();
    let part = parts
        .message()
        .await
        .unwrap()
        .unwrap()
        .range_response
        .unwrap();
    assert_eq!((part.count, part.kvs.len()), (101, 0));
    assert!(part.header.is_some() && parts.message().await.unwrap().is_none());
}

/// Parts that are cut by keys would be sorted each for itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_sorted_by_its_target_also_without_an_order() {
    let (server, _dir) = one().await;
    for at in 0..40 {
        let value = format!("v{:02}", at * 7 % 40);
        server.put(&format!("k{at:02}"), &value).await;
    }
    for limit in [0, 15] {
        let mut sorted = prefix("k");
        sorted.sort_target = SortTarget::Value.into();
        sorted.limit = limit;
        let whole = server.range(sorted.clone()).await.unwrap();
        let parts = server.kv().range_stream(sorted).await.unwrap();
        let mut parts = parts.into_inner();
        let (mut kvs, mut last) = (Vec::new(), None);
        while let Some(part) = parts.message().await.unwrap() {
            let part = part.range_response.unwrap();
            kvs.extend(part.kvs.clone());
            last = Some(part);
        }
        assert!(kvs.is_sorted_by_key(|kv| kv.value.clone()));
        assert_eq!(kvs, whole.kvs);
        let last = last.unwrap();
        assert_eq!((last.count, last.more), (40, limit > 0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn large_requests_are_refused_by_the_limit_they_exceed() {
    let (server, _dir) = one_with(|config| config.request_bytes_max = 10_000).await;
    let put_bytes = |bytes: usize| server.put_bytes(bytes);
    assert!(put_bytes(9_000).await.is_ok());
    let refused = put_bytes(10_001).await.unwrap_err();
    assert_eq!(refused.message(), "etcdserver: request is too large");
    assert_eq!(refused.code(), tonic::Code::InvalidArgument);
    let refused = put_bytes(600_000).await.unwrap_err();
    let expected = "grpc: received message larger than max (600011 vs. 534288)";
    assert_eq!(
        (refused.code(), refused.message()),
        (tonic::Code::ResourceExhausted, expected)
    );
}

impl crate::running::Running {
    async fn put_bytes(&self, bytes: usize) -> Result<(), tonic::Status> {
        let put = PutRequest {
            key: "large".into(),
            value: vec![7; bytes].into(),
            ..PutRequest::default()
        };
        self.kv().put(put).await.map(|_| ())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_server_refuses_puts_until_the_alarm_is_ended() {
    use pontoon_api::etcdserverpb::{AlarmRequest, AlarmType, alarm_request::AlarmAction};
    let (server, _dir) = one_with(|config| config.quota_bytes = 4 << 20).await;
    let mut refused = None;
    for at in 0..400 {
        let put = put(&format!("k{at}"), &"x".repeat(100_000));
        if let Err(status) = server.kv().put(put).await {
            refused = Some(status);
            break;
        }
    }
    let refused = refused.expect("the quota is never exceeded");
    assert_eq!(
        (refused.code(), refused.message()),
        (
            tonic::Code::ResourceExhausted,
            "etcdserver: mvcc: database space exceeded"
        )
    );
    // Small ones are refused too, as long as the alarm is on; reads and
    // deletions are not.
    let small = server.kv().put(put("small", "")).await.unwrap_err();
    assert_eq!(small.code(), tonic::Code::ResourceExhausted);
    assert!(server.get("k0").await.is_some());
    let delete = DeleteRangeRequest {
        key: "k".into(),
        range_end: "l".into(),
        ..DeleteRangeRequest::default()
    };
    let deleted = server.kv().delete_range(delete).await.unwrap().into_inner();
    assert!(deleted.deleted > 0);
    let alarm = |action: AlarmAction, member_id| AlarmRequest {
        action: action.into(),
        member_id,
        alarm: AlarmType::Nospace.into(),
    };
    let alarms = server
        .maintenance()
        .alarm(alarm(AlarmAction::Get, 0))
        .await
        .unwrap();
    let alarms = alarms.into_inner().alarms;
    assert_eq!(alarms.len(), 1);
    let revision = deleted.header.unwrap().revision;
    let compact = CompactionRequest {
        revision,
        physical: true,
    };
    server.kv().compact(compact).await.unwrap();
    let id = alarms[0].member_id;
    let ended = server
        .maintenance()
        .alarm(alarm(AlarmAction::Deactivate, id))
        .await;
    assert_eq!(ended.unwrap().into_inner().alarms, alarms);
    // Once a checkpoint lets the pages go, there is room again.
    crate::running::until(|| async {
        server.kv().put(put("small", "")).await.is_ok() || {
            let _ = server
                .maintenance()
                .alarm(alarm(AlarmAction::Deactivate, id))
                .await;
            false
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn several_groups_are_one_key_space() {
    let (server, _dir) = one_with(|config| {
        config.initial_splits = vec!["h".into(), "p".into()];
    })
    .await;
    let mut last = 1;
    for key in ["a", "i", "q", "b"] {
        let revision = server.put(key, key).await;
        assert!(revision > last);
        last = revision;
    }
    let all = RangeRequest {
        key: "\0".into(),
        range_end: "\0".into(),
        ..RangeRequest::default()
    };
    let found = server.range(all).await.unwrap();
    assert_eq!((keys(&found.kvs).as_str(), found.count), ("a b i q", 4));
    let txn = TxnRequest {
        success: ["a", "i", "q"]
            .map(|key| op(request_op::Request::RequestPut(put(key, "new"))))
            .to_vec(),
        ..TxnRequest::default()
    };
    let answer = server.kv().txn(txn).await.unwrap().into_inner();
    let revision = answer.header.unwrap().revision;
    for key in ["a", "i", "q"] {
        let found = server.range(get(key)).await.unwrap();
        assert_eq!(found.kvs[0].mod_revision, revision);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_member_of_a_cluster_serves() {
    let (members, _dir) = three(&[]).await;
    for (at, member) in members.iter().enumerate() {
        let key = format!("k{at}");
        member.put(&key, "v").await;
        for other in &members {
            assert_eq!(other.get(&key).await.unwrap(), "v");
        }
        // What a member has acknowledged, it has.
        let mut local = get(&key);
        local.serializable = true;
        assert_eq!(member.range(local).await.unwrap().count, 1);
    }
    let headers = members.iter().map(|member| member.range(get("k0")));
    let headers = futures_util::future::join_all(headers).await;
    let headers: Vec<_> = headers
        .into_iter()
        .map(|found| found.unwrap().header.unwrap())
        .collect();
    let mut ids: Vec<_> = headers.iter().map(|header| header.member_id).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 3);
    assert!(
        headers
            .iter()
            .all(|header| header.cluster_id == headers[0].cluster_id)
    );
}
