//! Compaction beside a load.
//!
//! Kept true: a compaction never takes what clients still read: it goes up to
//! a revision that was the newest one interval ago.

use std::time::{Duration, Instant};

use bytes::Bytes;
use pontoon_api::etcdserverpb::{CompactionRequest, RangeRequest};

use super::answers::revision;
use super::connection::{Channel, Rpc};
use super::failure::Failure;
use super::fill::framed;
use super::txns::swap;
use super::worker::{Phase, Worker};
use super::workload::Outcome;

/// How a load is compacted.
#[derive(Clone, Debug)]
pub struct Compaction {
    /// How often.
    pub every: Duration,
    /// Its place among the kinds of requests.
    pub class: usize,
    /// The key by which kube-apiservers agree who does it, if they do.
    pub agreed_by: Option<Bytes>,
}

/// Compacts until the load stops.
pub async fn compact(worker: Worker, mut channel: Channel, compaction: Compaction) {
    worker.shared.reaches(Phase::WarmUp).await;
    let mut newest = None;
    loop {
        tokio::select! {
            () = tokio::time::sleep(compaction.every) => {}
            () = worker.shared.reaches(Phase::Stopping) => return,
        }
        match look(&mut channel, &compaction).await {
            Ok(now) => {
                if let Some(revision) = newest.replace(now) {
                    let start = Instant::now();
                    let done = ask(&mut channel, revision).await;
                    let mut tally = worker.tally.lock();
                    match done {
                        Ok(()) => {
                            let took = start.elapsed();
                            tally.answered(compaction.class, Outcome::Read, took, false);
                        }
                        Err(failure) => tally.failed(compaction.class, &failure),
                    }
                }
            }
            Err(failure) => {
                worker.tally.lock().failed(compaction.class, &failure);
                if failure.needs_connection() {
                    channel.renew().await;
                }
            }
        }
    }
}

/// The newest revision, by the way in which it is agreed on.
async fn look(channel: &mut Channel, compaction: &Compaction) -> Result<i64, Failure> {
    match &compaction.agreed_by {
        Some(key) => {
            // Whatever it held: this is the only one who compacts.
            let request = swap(key.clone(), 0, Bytes::from_static(b"0"), 0);
            let answer = channel.ask(Rpc::Txn, framed(&request)).await?;
            revision(&answer)
        }
        None => {
            let request = RangeRequest {
                key: Bytes::from_static(b"\0"),
                count_only: true,
                ..Default::default()
            };
            let answer = channel.ask(Rpc::Range, framed(&request)).await?;
            revision(&answer)
        }
    }
}

async fn ask(channel: &mut Channel, revision: i64) -> Result<(), Failure> {
    let request = CompactionRequest {
        revision,
        physical: false,
    };
    channel
        .ask(Rpc::Compact, framed(&request))
        .await
        .map(|_| ())
}
