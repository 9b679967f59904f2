//! Puts the keys there that a load reads.

use bytes::Bytes;
use pontoon_api::etcdserverpb::request_op::Request;
use pontoon_api::etcdserverpb::{
    PutRequest, RangeRequest, RangeResponse, RequestOp, TxnRequest, TxnResponse,
};
use prost::Message;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::connection::{Channel, Rpc};
use super::failure::Failure;
use super::messages::prefix;
use super::templates::Keys;

/// etcd takes 128 operations in a transaction and 1.5 MiB in a request.
const OPS_MAX: u64 = 100;
const REQUEST_BYTES_MAX: usize = 1 << 20;
const PAGE: i64 = 1000;

/// Puts all keys, unless they are there.
pub async fn fill(channel: &mut Channel, keys: &Keys, seed: u64) -> Result<(), Failure> {
    let count = RangeRequest {
        count_only: true,
        ..all(keys)
    };
    let there: RangeResponse = ask(channel, Rpc::Range, &count).await?;
    if there.count.cast_unsigned() == keys.count {
        return Ok(());
    }
    let mut rng = SmallRng::seed_from_u64(seed);
    let ops = (REQUEST_BYTES_MAX / (keys.value_bytes + 64)) as u64;
    let ops = ops.clamp(1, OPS_MAX);
    let mut first = 0;
    while first < keys.count {
        let end = keys.count.min(first + ops);
        let request = TxnRequest {
            success: (first..end).map(|key| put(keys, key, &mut rng)).collect(),
            ..Default::default()
        };
        let _: TxnResponse = ask(channel, Rpc::Txn, &request).await?;
        first = end;
    }
    Ok(())
}

/// The revision that each key was last changed at.
pub async fn revisions(channel: &mut Channel, keys: &Keys) -> Result<Vec<i64>, Failure> {
    let mut revisions = Vec::new();
    while (revisions.len() as u64) < keys.count {
        let page = RangeRequest {
            key: keys.key(revisions.len() as u64),
            limit: PAGE,
            keys_only: true,
            ..all(keys)
        };
        let page: RangeResponse = ask(channel, Rpc::Range, &page).await?;
        if page.kvs.is_empty() {
            return Err(Failure::Answer("keys have disappeared"));
        }
        revisions.extend(page.kvs.iter().map(|kv| kv.mod_revision));
    }
    Ok(revisions)
}

fn all(keys: &Keys) -> RangeRequest {
    RangeRequest {
        key: keys.key(0),
        range_end: keys.key(keys.count),
        ..Default::default()
    }
}

fn put(keys: &Keys, key: u64, rng: &mut SmallRng) -> RequestOp {
    let mut value = vec![0; keys.value_bytes];
    rng.fill_bytes(&mut value);
    RequestOp {
        request: Some(Request::RequestPut(PutRequest {
            key: keys.key(key),
            value: value.into(),
            ..Default::default()
        })),
    }
}

async fn ask<A: Message + Default>(
    channel: &mut Channel,
    rpc: Rpc,
    request: &impl Message,
) -> Result<A, Failure> {
    let answer = channel.ask(rpc, framed(request)).await?;
    A::decode(answer).map_err(|_| Failure::Answer("malformed"))
}

/// A request with its prefix.
pub fn framed(request: &impl Message) -> Bytes {
    let message = request.encode_to_vec();
    [&prefix(message.len())[..], &message].concat().into()
}
