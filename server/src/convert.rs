//! etcd's messages to the engine's words, and back.
//!
//! Kept true: bytes are handed on, never copied. What etcd ignores is ignored:
//! an unknown number becomes what etcd makes of it.

use pontoon_api::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use pontoon_api::etcdserverpb::range_request::{SortOrder as PbOrder, SortTarget as PbTarget};
use pontoon_api::etcdserverpb::{
    Compare as PbCompare, DeleteRangeRequest, DeleteRangeResponse, PutRequest, PutResponse,
    RangeRequest, RangeResponse, RequestOp, ResponseHeader, ResponseOp, TxnRequest, TxnResponse,
    request_op, response_op,
};
use pontoon_api::{Error, mvccpb};
use pontoon_engine::{
    Answer, Compare, DeleteAnswer, DeleteRange, Event, EventKind, KeyRange, KeyValue, Op, Operand,
    Put, PutAnswer, Range, RangeAnswer, Relation, Request, SortOrder, SortTarget, Txn, TxnAnswer,
    check,
};

use crate::failure::rejected;
use crate::header;

/// Whether etcd knows how to sort like that.
pub(crate) fn is_sort_known(request: &RangeRequest) -> bool {
    PbOrder::try_from(request.sort_order).is_ok() && PbTarget::try_from(request.sort_target).is_ok()
}

/// Refuses a transaction in which a range is sorted in a way that there isn't,
/// with the error that etcd comes upon first. (The engine knows no such ranges,
/// and checks all others itself.)
pub(crate) fn check_sorts(txn: &TxnRequest, ops_max: usize) -> Result<(), Error> {
    match are_sorts_known(txn) {
        true => Ok(()),
        false => check_form(txn, ops_max),
    }
}

fn check_form(txn: &TxnRequest, ops_max: usize) -> Result<(), Error> {
    let lengths = [txn.compare.len(), txn.success.len(), txn.failure.len()];
    let ops = lengths.into_iter().max().unwrap_or(0);
    if ops > ops_max {
        return Err(Error::TooManyOps);
    }
    if txn.compare.iter().any(|compare| compare.key.is_empty()) {
        return Err(Error::EmptyKey);
    }
    for step in txn.success.iter().chain(&txn.failure) {
        match &step.request {
            Some(request_op::Request::RequestRange(range)) if range.key.is_empty() => {
                return Err(Error::EmptyKey);
            }
            Some(request_op::Request::RequestRange(range)) if !is_sort_known(range) => {
                return Err(Error::InvalidSortOption);
            }
            Some(request_op::Request::RequestTxn(txn)) => check_form(txn, ops_max - ops)?,
            _ => {
                let alone = Txn {
                    success: vec![op(step.clone())],
                    ..Txn::default()
                };
                check(&Request::Txn(alone), 1).map_err(|reject| rejected(&reject))?;
            }
        }
    }
    Ok(())
}

/// Whether that is so of every range in a transaction.
fn are_sorts_known(txn: &TxnRequest) -> bool {
    let mut ops = txn.success.iter().chain(&txn.failure);
    ops.all(|op| match &op.request {
        Some(request_op::Request::RequestRange(range)) => is_sort_known(range),
        Some(request_op::Request::RequestTxn(txn)) => are_sorts_known(txn),
        _ => true,
    })
}

pub(crate) fn range(request: RangeRequest) -> Range {
    let order = match request.sort_order() {
        PbOrder::None => SortOrder::None,
        PbOrder::Ascend => SortOrder::Ascend,
        PbOrder::Descend => SortOrder::Descend,
    };
    let target = match request.sort_target() {
        PbTarget::Key => SortTarget::Key,
        PbTarget::Version => SortTarget::Version,
        PbTarget::Create => SortTarget::Create,
        PbTarget::Mod => SortTarget::Modified,
        PbTarget::Value => SortTarget::Value,
    };
    Range {
        keys: KeyRange::new(request.key, request.range_end),
        limit: request.limit,
        revision: request.revision,
        order,
        target,
        keys_only: request.keys_only,
        count_only: request.count_only,
        modified_min: request.min_mod_revision,
        modified_max: request.max_mod_revision,
        create_min: request.min_create_revision,
        create_max: request.max_create_revision,
    }
}

pub(crate) fn put(request: PutRequest) -> Put {
    Put {
        key: request.key,
        value: request.value,
        lease: request.lease,
        prev_kv: request.prev_kv,
        ignore_value: request.ignore_value,
        ignore_lease: request.ignore_lease,
    }
}

pub(crate) fn delete_range(request: DeleteRangeRequest) -> DeleteRange {
    DeleteRange {
        keys: KeyRange::new(request.key, request.range_end),
        prev_kv: request.prev_kv,
    }
}

pub(crate) fn txn(request: TxnRequest) -> Txn {
    Txn {
        compare: request.compare.into_iter().map(compare).collect(),
        success: request.success.into_iter().map(op).collect(),
        failure: request.failure.into_iter().map(op).collect(),
    }
}

fn op(op: RequestOp) -> Op {
    match op.request {
        Some(request_op::Request::RequestRange(request)) => Op::Range(range(request)),
        Some(request_op::Request::RequestPut(request)) => Op::Put(put(request)),
        Some(request_op::Request::RequestDeleteRange(request)) => {
            Op::DeleteRange(delete_range(request))
        }
        Some(request_op::Request::RequestTxn(request)) => Op::Txn(txn(request)),
        None => Op::Missing,
    }
}

/// What is compared with is 0 or empty, if something else is given than the
/// target says.
fn compare(compare: PbCompare) -> Compare {
    let relation = match CompareResult::try_from(compare.result) {
        Ok(CompareResult::Equal) => Relation::Equal,
        Ok(CompareResult::Greater) => Relation::Greater,
        Ok(CompareResult::Less) => Relation::Less,
        Ok(CompareResult::NotEqual) => Relation::NotEqual,
        Err(_) => Relation::Unknown,
    };
    let given = compare.target_union;
    let operand = match (CompareTarget::try_from(compare.target), given) {
        (Ok(CompareTarget::Version), Some(TargetUnion::Version(given))) => Operand::Version(given),
        (Ok(CompareTarget::Version), _) => Operand::Version(0),
        (Ok(CompareTarget::Create), Some(TargetUnion::CreateRevision(given))) => {
            Operand::Create(given)
        }
        (Ok(CompareTarget::Create), _) => Operand::Create(0),
        (Ok(CompareTarget::Mod), Some(TargetUnion::ModRevision(given))) => Operand::Modified(given),
        (Ok(CompareTarget::Mod), _) => Operand::Modified(0),
        (Ok(CompareTarget::Value), Some(TargetUnion::Value(given))) => Operand::Value(given),
        (Ok(CompareTarget::Value), _) => Operand::Value(bytes::Bytes::new()),
        (Ok(CompareTarget::Lease), Some(TargetUnion::Lease(given))) => Operand::Lease(given),
        (Ok(CompareTarget::Lease), _) => Operand::Lease(0),
        (Err(_), _) => Operand::Unknown,
    };
    Compare {
        keys: KeyRange::new(compare.key, compare.range_end),
        operand,
        relation,
    }
}

pub(crate) fn key_value(kv: KeyValue) -> mvccpb::KeyValue {
    mvccpb::KeyValue {
        key: kv.key,
        create_revision: kv.create.0,
        mod_revision: kv.modified.0,
        version: kv.version,
        value: kv.value,
        lease: kv.lease,
    }
}

pub(crate) fn event(event: Event) -> mvccpb::Event {
    let kind = match event.kind {
        EventKind::Put => mvccpb::event::EventType::Put,
        EventKind::Delete => mvccpb::event::EventType::Delete,
    };
    mvccpb::Event {
        r#type: kind.into(),
        kv: Some(key_value(event.kv)),
        prev_kv: event.prev_kv.map(key_value),
    }
}

pub(crate) fn ranged(answer: RangeAnswer, header: Option<ResponseHeader>) -> RangeResponse {
    RangeResponse {
        header,
        kvs: answer.kvs.into_iter().map(key_value).collect(),
        more: answer.more,
        count: answer.count,
    }
}

pub(crate) fn was_put(answer: PutAnswer, header: Option<ResponseHeader>) -> PutResponse {
    PutResponse {
        header,
        prev_kv: answer.prev_kv.map(key_value),
    }
}

pub(crate) fn deleted(answer: DeleteAnswer, header: Option<ResponseHeader>) -> DeleteRangeResponse {
    DeleteRangeResponse {
        header,
        deleted: answer.deleted,
        prev_kvs: answer.prev_kvs.into_iter().map(key_value).collect(),
    }
}

pub(crate) fn transacted(answer: TxnAnswer, header: Option<ResponseHeader>) -> TxnResponse {
    TxnResponse {
        header,
        succeeded: answer.succeeded,
        responses: answer.answers.into_iter().map(step).collect(),
    }
}

/// The answer to a step of a transaction. One inside another has an empty header.
fn step(answer: Answer) -> ResponseOp {
    use response_op::Response;
    let response = match answer {
        Answer::Range(answer) => {
            let header = header::inner(answer.revision);
            Some(Response::ResponseRange(ranged(answer, header)))
        }
        Answer::Put(answer) => {
            let header = header::inner(answer.revision);
            Some(Response::ResponsePut(was_put(answer, header)))
        }
        Answer::DeleteRange(answer) => {
            let header = header::inner(answer.revision);
            Some(Response::ResponseDeleteRange(deleted(answer, header)))
        }
        Answer::Txn(answer) => {
            let header = Some(ResponseHeader::default());
            Some(Response::ResponseTxn(transacted(answer, header)))
        }
        // Nothing in a transaction is answered so.
        Answer::LeaseRevoke(_) => None,
    };
    ResponseOp { response }
}
