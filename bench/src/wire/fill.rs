//! Puts the keys there that a load reads.

use bytes::Bytes;
use pontoon_api::etcdserverpb::request_op::Request;
use pontoon_api::etcdserverpb::{
    PutRequest, RangeRequest, RangeResponse, RequestOp, TxnRequest, TxnResponse,
};
use prost::Message;
use rand::SeedableRng;
use rand::rngs::SmallRng;

use super::connection::{Channel, Rpc};
use super::failure::Failure;
use super::messages::prefix;
use super::templates::Keys;

/// etcd takes 128 operations in a transaction and 1.5 MiB in a request.
const OPS_MAX: u64 = 100;
const REQUEST_BYTES_MAX: usize = 1 << 20;
const PAGE: i64 = 1000;
/// Keys that are put again, and how often.
const OVERWRITTEN_MAX: u64 = 20_000;
const VERSIONS: u32 = 3;

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
    let ops = ops(keys);
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

/// Puts a part of the keys again and again, so that there is something to read
/// at older revisions: from the first that is returned to the second.
pub async fn overwrite(
    channel: &mut Channel,
    keys: &Keys,
    seed: u64,
) -> Result<(i64, i64), Failure> {
    let mut rng = SmallRng::seed_from_u64(seed + 1);
    let part = keys.count.min(OVERWRITTEN_MAX);
    let every = keys.count / part;
    let (mut first, mut last) = (0, 0);
    for _ in 0..VERSIONS {
        let mut next = 0;
        while next < part {
            let end = part.min(next + ops(keys));
            let puts = (next..end).map(|key| put(keys, key * every, &mut rng));
            let request = TxnRequest {
                success: puts.collect(),
                ..Default::default()
            };
            let answer: TxnResponse = ask(channel, Rpc::Txn, &request).await?;
            last = answer.header.map_or(0, |header| header.revision);
            if first == 0 {
                first = last - 1;
            }
            next = end;
        }
    }
    Ok((first, last))
}

/// Puts that fit into a transaction.
fn ops(keys: &Keys) -> u64 {
    let ops = (REQUEST_BYTES_MAX / (keys.values.bytes_max() + 64)) as u64;
    ops.clamp(1, OPS_MAX)
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
    RequestOp {
        request: Some(Request::RequestPut(PutRequest {
            key: keys.key(key),
            value: keys.values.value(rng),
            ..Default::default()
        })),
    }
}

/// Asks, and reads the whole answer.
pub async fn ask<A: Message + Default>(
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
