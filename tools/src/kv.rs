//! `pontoonctl put`, `get`, `del`.
//!
//! Kept true: what was not there ends with 1, as what was refused does.

use std::io::{self, BufWriter, Read as _, Write};

use bytes::Bytes;
use clap::Args;
use pontoon_api::etcdserverpb::range_request::{SortOrder, SortTarget};
use pontoon_api::etcdserverpb::{
    DeleteRangeRequest, PutRequest, RangeRequest, RangeResponse, ResponseHeader,
};
use pontoon_api::mvccpb::KeyValue;
use serde::Serialize;

use crate::client::{AskError, Endpoints, Peer, answer};
use crate::lease::lease_id;
use crate::output::{Side, aligned, end_without_reader, print, say, shown};

#[derive(Args)]
pub(crate) struct Put {
    /// The key
    key: String,
    /// Its value; `-`: all of standard input
    #[arg(allow_hyphen_values = true)]
    value: String,
    /// Let the key go when this lease does
    #[arg(long, value_name = "ID", value_parser = lease_id, default_value = "0")]
    lease: i64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub(crate) struct Get {
    #[command(flatten)]
    keys: Keys,
    /// As it was at this revision
    #[arg(long = "rev", value_name = "N", default_value_t = 0)]
    revision: i64,
    /// Only so many keys
    #[arg(long, value_name = "N", default_value_t = 0)]
    limit: i64,
    /// Only the keys
    #[arg(long)]
    keys_only: bool,
    /// Only their number
    #[arg(long, conflicts_with_all = ["keys_only", "raw"])]
    count_only: bool,
    /// Only the values, byte by byte
    #[arg(long, conflicts_with_all = ["keys_only", "json"])]
    raw: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub(crate) struct Del {
    #[command(flatten)]
    keys: Keys,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// One key, or many.
#[derive(Args)]
pub(crate) struct Keys {
    /// The key
    key: String,
    /// All keys that begin with it; with the empty key: all
    #[arg(long, conflicts_with = "range_end")]
    prefix: bool,
    /// All keys from it on, up to, not including, this one
    #[arg(long, value_name = "END")]
    range_end: Option<String>,
}

impl Keys {
    /// As requests have it.
    pub(crate) fn bounds(&self) -> (Bytes, Bytes) {
        let key = Bytes::from(self.key.clone());
        match (&self.range_end, self.prefix) {
            (Some(end), _) => (key, Bytes::from(end.clone())),
            (None, true) if key.is_empty() => {
                (Bytes::from_static(b"\0"), Bytes::from_static(b"\0"))
            }
            (None, true) => {
                let end = behind(&key);
                (key, end)
            }
            (None, false) => (key, Bytes::new()),
        }
    }

    fn missing(&self) -> AskError {
        let key = format!("{:?}", self.key);
        AskError::NotFound(match (self.prefix, &self.range_end) {
            (true, _) => format!("a key that begins with {key}"),
            (false, Some(end)) => format!("a key from {key} up to {end:?}"),
            (false, None) => key,
        })
    }
}

/// The first key that doesn't begin with this; a zero byte if there is none.
fn behind(prefix: &[u8]) -> Bytes {
    let kept = prefix.iter().rposition(|byte| *byte < u8::MAX);
    match kept {
        Some(last) => {
            let mut end = prefix[..=last].to_vec();
            end[last] += 1;
            end.into()
        }
        None => Bytes::from_static(b"\0"),
    }
}

#[derive(Serialize)]
struct Written {
    revision: i64,
}

#[derive(Serialize)]
struct Deleted {
    deleted: i64,
    revision: i64,
}

#[derive(Serialize)]
struct Found {
    revision: i64,
    count: i64,
    keys: Vec<Entry>,
}

#[derive(Serialize)]
struct Entry {
    key: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<String>,
    create_revision: i64,
    mod_revision: i64,
    version: i64,
    lease: String,
}

pub(crate) fn revision(header: Option<&ResponseHeader>) -> i64 {
    header.map_or(0, |header| header.revision)
}

pub(crate) async fn put(endpoints: &Endpoints, put: Put) -> Result<(), AskError> {
    let value = match put.value.as_str() {
        "-" => {
            let mut value = Vec::new();
            let read = io::stdin().lock().read_to_end(&mut value);
            read.map_err(|error| AskError::Wrong(format!("reading standard input: {error}")))?;
            value.into()
        }
        _ => Bytes::from(put.value),
    };
    let request = PutRequest {
        key: put.key.into(),
        value,
        lease: put.lease,
        ..PutRequest::default()
    };
    let peer = Peer::any(endpoints).await?;
    let done = answer(peer.kv().put(request)).await?;
    let written = Written {
        revision: revision(done.header.as_ref()),
    };
    Ok(print(put.json, &written, |out, written| {
        writeln!(out, "ok, revision {}", written.revision)
    })?)
}

pub(crate) async fn get(endpoints: &Endpoints, get: Get) -> Result<(), AskError> {
    let (key, range_end) = get.keys.bounds();
    let request = RangeRequest {
        key,
        range_end,
        revision: get.revision,
        limit: get.limit,
        keys_only: get.keys_only,
        count_only: get.count_only,
        sort_order: SortOrder::Ascend.into(),
        sort_target: SortTarget::Key.into(),
        ..RangeRequest::default()
    };
    let peer = Peer::any(endpoints).await?;
    let found = answer(peer.kv().range(request)).await?;
    if found.kvs.is_empty() && !get.count_only {
        return Err(get.keys.missing());
    }
    if get.raw {
        raw(&found);
        return Ok(());
    }
    let more = found.more.then_some(found.count);
    let report = Found {
        revision: revision(found.header.as_ref()),
        count: found.count,
        keys: found
            .kvs
            .iter()
            .map(|kv| entry(kv, !get.keys_only))
            .collect(),
    };
    match get.count_only {
        true => print(get.json, &report, |out, found| {
            writeln!(out, "{}", found.count)
        })?,
        false => print(get.json, &report, listed)?,
    }
    if let Some(count) = more {
        say(&format!("{} of {count} keys", report.keys.len()));
    }
    Ok(())
}

pub(crate) async fn del(endpoints: &Endpoints, del: Del) -> Result<(), AskError> {
    let (key, range_end) = del.keys.bounds();
    let request = DeleteRangeRequest {
        key,
        range_end,
        prev_kv: false,
    };
    let peer = Peer::any(endpoints).await?;
    let done = answer(peer.kv().delete_range(request)).await?;
    if done.deleted == 0 {
        return Err(del.keys.missing());
    }
    let deleted = Deleted {
        deleted: done.deleted,
        revision: revision(done.header.as_ref()),
    };
    Ok(print(del.json, &deleted, |out, done| {
        writeln!(out, "deleted {}, revision {}", done.deleted, done.revision)
    })?)
}

fn entry(kv: &KeyValue, with_value: bool) -> Entry {
    Entry {
        key: shown(&kv.key),
        value: with_value.then(|| shown(&kv.value)),
        create_revision: kv.create_revision,
        mod_revision: kv.mod_revision,
        version: kv.version,
        lease: format!("{:x}", kv.lease),
    }
}

fn listed(out: &mut dyn Write, found: &Found) -> io::Result<()> {
    let lines = found.keys.iter().map(|entry| {
        let value = entry.value.clone().unwrap_or_default();
        [entry.key.clone(), value]
    });
    aligned(out, [Side::Left; 2], &lines.collect::<Vec<_>>())
}

fn raw(found: &RangeResponse) {
    let mut out = BufWriter::new(io::stdout().lock());
    let mut written = Ok(());
    for kv in &found.kvs {
        written = written.and_then(|()| out.write_all(&kv.value));
    }
    if let Err(error) = written.and_then(|()| out.flush()) {
        end_without_reader(&error);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_before_the_next_key() {
        for (prefix, end) in [
            (&b"a"[..], &b"b"[..]),
            (b"a/", b"a0"),
            (b"a\xff", b"b"),
            (b"\xff\xff", b"\0"),
        ] {
            assert_eq!(behind(prefix), end);
        }
    }
}
