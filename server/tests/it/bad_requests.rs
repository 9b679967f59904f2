//! What is refused, in etcd's words.

use pontoon_api::Error;
use pontoon_api::etcdserverpb::{
    Compare, DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest, request_op,
};
use tonic::Status;

use crate::running::{get, one, one_with, prefix, put};

fn is(status: &Status, error: Error) {
    let expected = (error.code(), error.text());
    assert_eq!((status.code(), status.message()), expected);
}

fn op(request: request_op::Request) -> RequestOp {
    RequestOp {
        request: Some(request),
    }
}

fn op_put(key: &str) -> RequestOp {
    op(request_op::Request::RequestPut(put(key, "")))
}

#[tokio::test(flavor = "multi_thread")]
async fn puts_and_ranges() {
    let (server, _dir) = one().await;
    let mut kv = server.kv();
    is(&kv.range(get("")).await.unwrap_err(), Error::EmptyKey);
    let mut sorted = get("k");
    sorted.sort_order = 7;
    is(
        &kv.range(sorted.clone()).await.unwrap_err(),
        Error::InvalidSortOption,
    );
    sorted.sort_order = 0;
    sorted.sort_target = 5;
    is(
        &kv.range(sorted).await.unwrap_err(),
        Error::InvalidSortOption,
    );

    is(&kv.put(put("", "v")).await.unwrap_err(), Error::EmptyKey);
    let with = |change: &dyn Fn(&mut PutRequest)| {
        let mut request = put("k", "");
        change(&mut request);
        request
    };
    let refused = kv.put(with(&|put| {
        put.ignore_value = true;
        put.value = "v".into();
    }));
    is(&refused.await.unwrap_err(), Error::ValueProvided);
    let refused = kv.put(with(&|put| {
        put.ignore_lease = true;
        put.lease = 1;
    }));
    is(&refused.await.unwrap_err(), Error::LeaseProvided);
    let refused = kv.put(with(&|put| put.ignore_value = true));
    is(&refused.await.unwrap_err(), Error::KeyNotFound);
    let refused = kv.put(with(&|put| put.lease = 77));
    is(&refused.await.unwrap_err(), Error::LeaseNotFound);
    let delete = DeleteRangeRequest::default();
    is(&kv.delete_range(delete).await.unwrap_err(), Error::EmptyKey);
    assert_eq!(
        kv.range(get("k"))
            .await
            .unwrap()
            .into_inner()
            .header
            .unwrap()
            .revision,
        1
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn txns() {
    let (server, _dir) = one_with(|config| config.txn_ops_max = 3).await;
    let mut kv = server.kv();
    let of = |success: Vec<RequestOp>| TxnRequest {
        success,
        ..TxnRequest::default()
    };
    let many = of(["a", "b", "c", "d"].map(op_put).to_vec());
    is(&kv.txn(many).await.unwrap_err(), Error::TooManyOps);
    let compares = TxnRequest {
        compare: vec![Compare::default(); 4],
        ..TxnRequest::default()
    };
    is(&kv.txn(compares).await.unwrap_err(), Error::TooManyOps);
    let compare = TxnRequest {
        compare: vec![Compare::default()],
        ..TxnRequest::default()
    };
    is(&kv.txn(compare).await.unwrap_err(), Error::EmptyKey);
    is(
        &kv.txn(of(vec![op_put("")])).await.unwrap_err(),
        Error::EmptyKey,
    );
    is(
        &kv.txn(of(vec![RequestOp::default()])).await.unwrap_err(),
        Error::KeyNotFound,
    );
    is(
        &kv.txn(of(vec![op_put("a"), op_put("a")]))
            .await
            .unwrap_err(),
        Error::DuplicateKey,
    );
    // What is inside has only what is left.
    let inner = of(vec![op_put("b"), op_put("c"), op_put("d")]);
    let nested = of(vec![op(request_op::Request::RequestTxn(inner))]);
    is(&kv.txn(nested).await.unwrap_err(), Error::TooManyOps);
    let mut sorted = get("k");
    sorted.sort_order = 9;
    let sorted = of(vec![op(request_op::Request::RequestRange(sorted))]);
    is(&kv.txn(sorted).await.unwrap_err(), Error::InvalidSortOption);
    let mut put = put("k", "");
    put.lease = 5;
    let leased = of(vec![op(request_op::Request::RequestPut(put))]);
    is(&kv.txn(leased).await.unwrap_err(), Error::LeaseNotFound);
    let nothing = kv.txn(TxnRequest::default()).await.unwrap().into_inner();
    assert_eq!(
        (nothing.succeeded, nothing.header.unwrap().revision),
        (true, 1)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn range_streams() {
    let (server, _dir) = one().await;
    let mut kv = server.kv();
    is(
        &kv.range_stream(get("")).await.unwrap_err(),
        Error::EmptyKey,
    );
    let with = |change: &dyn Fn(&mut RangeRequest)| {
        let mut request = prefix("k");
        change(&mut request);
        request
    };
    let refused = kv.range_stream(with(&|range| range.sort_order = 2)).await;
    is(&refused.unwrap_err(), Error::RangeStreamSort);
    let refused = kv
        .range_stream(with(&|range| range.min_mod_revision = 1))
        .await;
    is(&refused.unwrap_err(), Error::RangeStreamFilters);
    let mut future = kv
        .range_stream(with(&|range| range.revision = 9))
        .await
        .unwrap()
        .into_inner();
    is(&future.message().await.unwrap_err(), Error::FutureRev);
}

#[tokio::test(flavor = "multi_thread")]
async fn services_and_methods_that_are_not_there() {
    use pontoon_api::etcdserverpb::AuthStatusRequest;
    use pontoon_api::etcdserverpb::auth_client::AuthClient;
    let (server, _dir) = one().await;
    let mut auth = AuthClient::new(server.channel.clone());
    let refused = auth.auth_status(AuthStatusRequest {}).await.unwrap_err();
    assert_eq!(
        (refused.code(), refused.message()),
        (
            tonic::Code::Unimplemented,
            "unknown service etcdserverpb.Auth"
        )
    );
}
