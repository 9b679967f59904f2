//! A range in parts, all of one revision.
//!
//! Kept true: only a few parts are in memory; the next is read when the client
//! has taken the one before.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;
use pontoon_api::Error;
use pontoon_api::etcdserverpb::range_request::{SortOrder, SortTarget};
use pontoon_api::etcdserverpb::{RangeRequest, RangeResponse, RangeStreamResponse};
use pontoon_engine::Revision;
use prost::Message;
use tonic::{Code, Status};

use crate::bounds::{OpenCall, ResponseKind};
use crate::calls::{Call, Rpc};
use crate::convert;
use crate::host::Host;
use crate::kv;
use crate::stream_queue::{Receiver, Sender, stream_queue};

/// Keys of the first part.
const FIRST_KEYS: i64 = 10;

type Parts = Receiver<Result<RangeStreamResponse, Status>>;

/// Checks the request and begins to answer it.
pub(crate) fn serve(
    host: &Arc<Host>,
    mut call: Call,
    open: Option<Arc<OpenCall>>,
    request: RangeRequest,
) -> Result<Parts, Status> {
    if let Err(error) = check(&request) {
        call.end(error.code());
        return Err(error.into());
    }
    let (out, parts) = stream_queue(1);
    let host = Arc::clone(host);
    tokio::spawn(async move {
        let done = tokio::select! {
            done = send(&host, request, open.as_ref(), &out) => done,
            () = out.closed() => return,
            () = host.stop.ordered() => Err(Error::Stopped.into()),
        };
        match done {
            Ok(()) => call.end(Code::Ok),
            Err(status) => {
                call.end(status.code());
                // Nobody listens any more: fine.
                let _ = out.send(Err(status)).await;
            }
        }
    });
    Ok(parts)
}

fn check(request: &RangeRequest) -> Result<(), Error> {
    if request.key.is_empty() {
        return Err(Error::EmptyKey);
    }
    if !convert::is_sort_known(request) {
        return Err(Error::InvalidSortOption);
    }
    let (order, target) = (request.sort_order(), request.sort_target());
    let by_key = order == SortOrder::Ascend && target == SortTarget::Key;
    if order != SortOrder::None && !by_key {
        return Err(Error::RangeStreamSort);
    }
    let filters = [
        request.min_mod_revision,
        request.max_mod_revision,
        request.min_create_revision,
        request.max_create_revision,
    ];
    match filters.iter().any(|filter| *filter != 0) {
        true => Err(Error::RangeStreamFilters),
        false => Ok(()),
    }
}

/// How the keys of a part are chosen.
struct Pace {
    keys: i64,
    bytes: usize,
}

impl Pace {
    /// More keys if a part was small, fewer if it was large.
    fn adapt(&mut self, part: &RangeResponse) {
        let bytes = part.encoded_len();
        if bytes < self.bytes / 2 {
            self.keys = self.keys.saturating_mul(2);
        } else if bytes > self.bytes * 2 {
            self.keys = (self.keys / 2).max(1);
        }
    }
}

async fn send(
    host: &Host,
    mut request: RangeRequest,
    open: Option<&Arc<OpenCall>>,
    out: &Sender<Result<RangeStreamResponse, Status>>,
) -> Result<(), Status> {
    let mut pace = Pace {
        keys: FIRST_KEYS,
        bytes: host.limits.request_bytes_max,
    };
    // What is sorted by something else than the key can't be cut by keys.
    let whole = request.sort_target() != SortTarget::Key;
    let limit = request.limit;
    let mut sent = 0;
    let mut first: Option<(Revision, i64)> = None;
    loop {
        request.limit = match limit {
            _ if whole => limit,
            // All in one part, as in etcd.
            ..0 => 0,
            0 => pace.keys,
            _ => pace.keys.min(limit - sent),
        };
        let read = || host.range(request.clone());
        let answer = match open {
            Some(open) => open.make(ResponseKind::ManyKeys, read, kv::bytes).await?,
            None => read().await?,
        };
        let (newest, count) = *first.get_or_insert((answer.revision, answer.count));
        let mut part = convert::ranged(answer, None);
        sent += part.kvs.len() as i64;
        pace.adapt(&part);
        let last = part.kvs.last().map(|kv| kv.key.clone());
        let done = !part.more || (limit > 0 && sent >= limit);
        if done {
            part.header = host.header(newest);
            part.count = count;
        } else {
            part.count = 0;
            part.more = false;
        }
        let part = RangeStreamResponse {
            range_response: Some(part),
        };
        if out.send(Ok(part)).await.is_err() {
            return Ok(());
        }
        host.calls.of(Rpc::RangeStream).sent.fetch_add(1, Relaxed);
        if done {
            return Ok(());
        }
        if request.revision <= 0 {
            request.revision = newest.0;
        }
        if let Some(last) = last {
            request.key = after(&last);
        }
    }
}

/// The first key that comes behind this one.
fn after(key: &Bytes) -> Bytes {
    [key.as_ref(), &[0]].concat().into()
}
