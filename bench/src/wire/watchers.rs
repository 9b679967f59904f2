//! Watchers of all keys of a load, each with a stream of its own.
//!
//! Kept true: a watcher that lost its stream goes on after what it has seen,
//! so at the end each has seen every write that was acknowledged, or it is told.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use pontoon_api::etcdserverpb::watch_request::RequestUnion;
use pontoon_api::etcdserverpb::{WatchCreateRequest, WatchRequest};

use super::answers::WatchAnswer;
use super::connection::{Channel, OpenStream, Rpc};
use super::failure::Failure;
use super::fill::framed;
use super::run::Worker;
use super::templates::{Keys, stamp};
use super::workload::stamp_since;

/// How long a watcher waits after a failure.
const PAUSE: Duration = Duration::from_millis(10);

/// How far a watcher is.
#[derive(Debug, Default)]
pub struct Progress {
    /// The newest revision it has seen.
    pub revision: AtomicI64,
    /// The events it has seen.
    pub events: AtomicU64,
}

/// A watcher that the server has made.
pub struct Watcher {
    channel: Channel,
    stream: OpenStream,
    progress: Arc<Progress>,
}

impl Watcher {
    /// Begins to watch.
    pub async fn open(
        mut channel: Channel,
        keys: &Keys,
        progress: Arc<Progress>,
    ) -> Result<Self, Failure> {
        let stream = open(&mut channel, keys, 0).await?;
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
            worker.tally.lock().failed(&failure);
            let mut lost = failure.needs_connection();
            loop {
                tokio::time::sleep(PAUSE).await;
                if lost {
                    self.channel.renew().await;
                }
                let next = self.progress.revision.load(Ordering::Relaxed) + 1;
                match open(&mut self.channel, &worker.plan.keys, next).await {
                    Ok(stream) => {
                        self.stream = stream;
                        break;
                    }
                    Err(failure) => {
                        worker.tally.lock().failed(&failure);
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
            let took = stamp(answer.first_value)
                .map(|sent| stamp_since(worker.plan.origin).saturating_sub(sent));
            if worker.is_measuring() {
                let took = took.map(Duration::from_nanos);
                worker.tally.lock().events(answer.events, took);
            }
            let progress = &self.progress;
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
    keys: &Keys,
    start_revision: i64,
) -> Result<OpenStream, Failure> {
    let request = WatchRequest {
        request_union: Some(RequestUnion::CreateRequest(WatchCreateRequest {
            key: keys.key(0),
            range_end: keys.key(keys.count),
            start_revision,
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
