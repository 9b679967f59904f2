//! The transactions that kube-apiserver makes: each compares the revision (or
//! the version) that was seen last, and reads what is there if another one was
//! first.

use bytes::Bytes;
use pontoon_api::etcdserverpb::compare::{CompareTarget, TargetUnion};
use pontoon_api::etcdserverpb::request_op::Request;
use pontoon_api::etcdserverpb::{
    Compare, DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest,
};

fn op(request: Request) -> RequestOp {
    RequestOp {
        request: Some(request),
    }
}

fn if_unchanged(key: &Bytes, revision: i64, then: Request) -> TxnRequest {
    TxnRequest {
        compare: vec![Compare {
            target: CompareTarget::Mod.into(),
            key: key.clone(),
            target_union: Some(TargetUnion::ModRevision(revision)),
            ..Default::default()
        }],
        success: vec![op(then)],
        failure: vec![op(Request::RequestRange(RangeRequest {
            key: key.clone(),
            ..Default::default()
        }))],
    }
}

/// Puts if the key was last changed at that revision, with a lease unless it is 0.
#[must_use]
pub fn swap(key: Bytes, revision: i64, value: Bytes, lease: i64) -> TxnRequest {
    let put = Request::RequestPut(PutRequest {
        key: key.clone(),
        value,
        lease,
        ..Default::default()
    });
    if_unchanged(&key, revision, put)
}

/// Puts if the key was put so many times since it is there.
#[must_use]
pub fn advance(key: Bytes, version: i64, value: Bytes) -> TxnRequest {
    TxnRequest {
        compare: vec![Compare {
            target: CompareTarget::Version.into(),
            key: key.clone(),
            target_union: Some(TargetUnion::Version(version)),
            ..Default::default()
        }],
        ..swap(key, 0, value, 0)
    }
}

/// Puts if the key is not there. Nothing is read if it is.
#[must_use]
pub fn create(key: Bytes, value: Bytes, lease: i64) -> TxnRequest {
    TxnRequest {
        failure: Vec::new(),
        ..swap(key, 0, value, lease)
    }
}

/// Deletes if the key was last changed at that revision.
#[must_use]
pub fn delete(key: Bytes, revision: i64) -> TxnRequest {
    let delete = Request::RequestDeleteRange(DeleteRangeRequest {
        key: key.clone(),
        ..Default::default()
    });
    if_unchanged(&key, revision, delete)
}
