//! `pontoonctl watch`: changes as they come, until Ctrl-C.
//!
//! Kept true: every change from where the watch began is told once, in order,
//! also if the member that tells them goes away and another takes over.

use std::error::Error as _;
use std::io::{self, Write};
use std::time::Duration;

use clap::Args;
use pontoon_api::etcdserverpb::watch_request::RequestUnion;
use pontoon_api::etcdserverpb::{WatchCreateRequest, WatchRequest, WatchResponse};
use pontoon_api::mvccpb::event::EventType;
use pontoon_api::mvccpb::{Event, KeyValue};
use serde::Serialize;
use tokio_stream::StreamExt as _;
use tonic::{Code, Status, Streaming};

use crate::client::{AskError, Endpoints, Peer, reason, until_interrupted};
use crate::kv::{Keys, revision};
use crate::output::{end_without_reader, json_line, say, shown};

/// Before another member is asked to go on.
const PAUSE: Duration = Duration::from_millis(200);

#[derive(Args)]
pub(crate) struct Watch {
    #[command(flatten)]
    keys: Keys,
    /// Begin with the changes of this revision
    #[arg(long = "rev", value_name = "N", default_value_t = 0)]
    revision: i64,
    /// Print JSON, one object per line
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Change {
    revision: i64,
    change: &'static str,
    key: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<String>,
}

/// Why a stream of changes has ended.
enum Ended {
    /// Another member may go on.
    Broken(String),
    Refused(AskError),
}

pub(crate) async fn run(endpoints: &Endpoints, watch: Watch) -> Result<(), AskError> {
    until_interrupted(tell_all(endpoints, &watch)).await
}

async fn tell_all(endpoints: &Endpoints, watch: &Watch) -> Result<(), AskError> {
    let mut next = watch.revision;
    loop {
        let peer = Peer::any(endpoints).await?;
        match follow(&peer, watch, &mut next).await {
            Ended::Refused(error) => return Err(error),
            Ended::Broken(why) => say(&format!("{}: {why}; looking for another member", peer.at)),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Tells all changes from `next` on, which is the one to go on with.
async fn follow(peer: &Peer, watch: &Watch, next: &mut i64) -> Ended {
    let (key, range_end) = watch.keys.bounds();
    let create = WatchRequest {
        request_union: Some(RequestUnion::CreateRequest(WatchCreateRequest {
            key,
            range_end,
            start_revision: *next,
            ..WatchCreateRequest::default()
        })),
    };
    // The stream of requests stays open as long as changes are wanted.
    let requests = tokio_stream::once(create).chain(tokio_stream::pending());
    let mut changes = match peer.watch().watch(requests).await {
        Ok(changes) => changes.into_inner(),
        Err(status) => return ended(&status),
    };
    loop {
        match heard(&mut changes).await {
            Ok(response) => {
                if let Some(refused) = refused(&response) {
                    return Ended::Refused(refused);
                }
                if response.created && *next == 0 {
                    *next = revision(response.header.as_ref()) + 1;
                }
                let told = response.events.last().and_then(|event| event.kv.as_ref());
                *next = told.map_or(*next, |kv| kv.mod_revision + 1);
                tell(&response.events, watch.json);
            }
            Err(ended) => return ended,
        }
    }
}

async fn heard(changes: &mut Streaming<WatchResponse>) -> Result<WatchResponse, Ended> {
    match changes.message().await {
        Ok(Some(response)) => Ok(response),
        Ok(None) => Err(Ended::Broken("the watch has ended".to_owned())),
        Err(status) => Err(ended(&status)),
    }
}

fn ended(status: &Status) -> Ended {
    match (status.source(), status.code()) {
        (Some(_), _) => Ended::Broken(reason(status)),
        (None, Code::Unavailable) => Ended::Broken(status.message().to_owned()),
        (None, _) => Ended::Refused(AskError::Refused(status.message().to_owned())),
    }
}

fn refused(response: &WatchResponse) -> Option<AskError> {
    if !response.canceled {
        return None;
    }
    Some(AskError::Refused(match response.compact_revision {
        0 => response.cancel_reason.clone(),
        oldest => format!("what came before revision {oldest} was compacted"),
    }))
}

fn tell(events: &[Event], json: bool) {
    let mut out = io::stdout().lock();
    for event in events {
        let Some(kv) = &event.kv else {
            continue;
        };
        let change = change(kv, event.r#type() == EventType::Delete);
        let written = match json {
            true => json_line(&mut out, &change),
            false => line(&mut out, &change),
        };
        if let Err(error) = written.and_then(|()| out.flush()) {
            end_without_reader(&error);
        }
    }
}

fn change(kv: &KeyValue, gone: bool) -> Change {
    Change {
        revision: kv.mod_revision,
        change: if gone { "del" } else { "put" },
        key: shown(&kv.key),
        value: (!gone).then(|| shown(&kv.value)),
    }
}

fn line(out: &mut dyn Write, change: &Change) -> io::Result<()> {
    let Change {
        revision,
        change: what,
        key,
        ..
    } = change;
    match &change.value {
        Some(value) => writeln!(out, "{revision:>6}  {what}  {key}  {value}"),
        None => writeln!(out, "{revision:>6}  {what}  {key}"),
    }
}
