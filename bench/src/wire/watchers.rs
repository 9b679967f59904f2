//! Watchers of the keys of a load, each with a stream of its own.
//!
//! Kept true: a watcher that lost its stream goes on after what it has seen,
//! so at the end each has seen every write that was acknowledged, or it is told.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use pontoon_api::etcdserverpb::watch_request::RequestUnion;
use pontoon_api::etcdserverpb::{WatchCreateRequest, WatchRequest};

use super::answers::{WatchAnswer, deleted_keys};
use super::connection::{Channel, OpenStream, Rpc};
use super::failure::Failure;
use super::fill::framed;
use super::templates::stamp;
use super::worker::Worker;
use super::workload::stamp_since;

/// How long a watcher waits after a failure.
const PAUSE: Duration = Duration::from_millis(10);

/// What a watcher watches.
#[derive(Clone, Debug)]
pub struct Watched {
    /// From this key on.
    pub first: Bytes,
    /// Up to this one.
    pub end: Bytes,
    /// Writes with this topic are seen by it.
    pub topic: usize,
    /// As kube-apiserver asks: with what was there before, and with signs of
    /// progress.
    pub as_apiserver: bool,
}

/// How far a watcher is.
#[derive(Debug)]
pub struct Progress {
    /// What it watches.
    pub watched: Watched,
    /// The newest revision it has seen.
    pub revision: AtomicI64,
    /// The events it has seen.
    pub events: AtomicU64,
    /// Those of keys that were deleted.
    pub deletes: AtomicU64,
}

impl Progress {
    /// Of a watcher that has seen nothing.
    #[must_use]
    pub fn new(watched: Watched) -> Self {
        Self {
            watched,
            revision: AtomicI64::new(0),
            events: AtomicU64::new(0),
            deletes: AtomicU64::new(0),
        }
    }
}

/// A watcher that the server has made.
pub struct Watcher {
    channel: Channel,
    stream: OpenStream,
    progress: Arc<Progress>,
}

impl Watcher {
    /// Begins to watch.
    pub async fn open(mut channel: Channel, progress: Arc<Progress>) -> Result<Self, Failure> {
        let stream = open(&mut channel, &progress.watched, 0).await?;
        Ok(Self {
            channel,
            stream,
            progress,
        })
    }

    /// Watches until the runtime ends.
    pub async fn watch(mut self, worker: Worker) {
        loop {
            let failure = match self.see(&worker).await {
                Ok(()) => Failure::Answer("the server ended a watcher"),
                Err(failure) => failure,
            };
            worker.tally.lock().add_error(failure.to_string(), 1);
            let mut lost = failure.needs_connection();
            loop {
                tokio::time::sleep(PAUSE).await;
                if lost {
                    self.channel.renew().await;
                }
                let next = self.progress.revision.load(Ordering::Relaxed) + 1;
                match open(&mut self.channel, &self.progress.watched, next).await {
                    Ok(stream) => {
                        self.stream = stream;
                        break;
                    }
                    Err(failure) => {
                        worker.tally.lock().add_error(failure.to_string(), 1);
                        lost = failure.needs_connection();
                    }
                }
            }
        }
    }

    async fn see(&mut self, worker: &Worker) -> Result<(), Failure> {
        while let Some(message) = self.stream.next().await? {
            let answer = WatchAnswer::read(&message)?;
            if answer.canceled {
                return Err(Failure::Answer("the server cancelled a watcher"));
            }
            if answer.events == 0 {
                continue;
            }
            let now = stamp_since(worker.plan.origin);
            if worker.is_measuring() {
                let sent = stamp(answer.first_value).filter(|sent| *sent <= now);
                let sent = sent.map(|sent| Duration::from_nanos(now - sent));
                // Who was told of nothing, as of an expired lease, has no acknowledgement.
                let acked = worker.acks().since(answer.first_revision, now);
                let acked = acked.filter(|_| sent.is_some());
                worker.tally.lock().events(answer.events, sent, acked);
            }
            let expiries = &worker.plan.expiries;
            if answer.deletes > 0 && !expiries.is_empty() {
                for key in deleted_keys(&message) {
                    if let Some(late) = expiries.gone(key?, now) {
                        worker.tally.lock().expired(late);
                    }
                }
            }
            let progress = &self.progress;
            progress
                .deletes
                .fetch_add(answer.deletes, Ordering::Relaxed);
            progress.events.fetch_add(answer.events, Ordering::Relaxed);
            progress
                .revision
                .fetch_max(answer.mod_revision, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Opens a stream with a watcher, from a revision on (0: from now on).
async fn open(
    channel: &mut Channel,
    watched: &Watched,
    start_revision: i64,
) -> Result<OpenStream, Failure> {
    let request = WatchRequest {
        request_union: Some(RequestUnion::CreateRequest(WatchCreateRequest {
            key: watched.first.clone(),
            range_end: watched.end.clone(),
            start_revision,
            prev_kv: watched.as_apiserver,
            progress_notify: watched.as_apiserver,
            ..Default::default()
        })),
    };
    let mut stream = channel.open(Rpc::Watch, framed(&request)).await?;
    let message = stream.next().await?;
    let message = message.ok_or(Failure::Answer("no watcher was made"))?;
    let answer = WatchAnswer::read(&message)?;
    match answer.created && !answer.canceled {
        true => Ok(stream),
        false => Err(Failure::Answer("a watcher was refused")),
    }
}
