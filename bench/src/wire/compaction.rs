//! Compaction beside a load.
//!
//! Kept true: a compaction never takes what clients still read: it goes up to
//! a revision that was the newest one interval ago.

use std::time::{Duration, Instant};

use bytes::Bytes;
use pontoon_api::etcdserverpb::response_op::Response;
use pontoon_api::etcdserverpb::{
    CompactionRequest, CompactionResponse, RangeRequest, RangeResponse, TxnResponse,
};

use super::connection::{Channel, Rpc};
use super::failure::Failure;
use super::fill::ask;
use super::txns::advance;
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
    let mut turns = Turns::new(compaction.agreed_by);
    loop {
        tokio::select! {
            () = tokio::time::sleep(compaction.every) => {}
            () = worker.shared.reaches(Phase::Stopping) => return,
        }
        match turns.next(&mut channel).await {
            Ok(None) => {}
            Ok(Some(revision)) => {
                let start = Instant::now();
                let request = CompactionRequest {
                    revision,
                    physical: false,
                };
                let done = ask::<CompactionResponse>(&mut channel, Rpc::Compact, &request).await;
                let mut tally = worker.tally.lock();
                match done {
                    Ok(_) => {
                        let took = start.elapsed();
                        tally.answered(compaction.class, Outcome::Read, took, false);
                    }
                    Err(failure) => tally.failed(compaction.class, &failure),
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

/// Whose turn it is to compact, and up to where, as kube-apiservers find out:
/// who knows the key's version puts there what it is about to compact; the
/// others take the version that they find, and wait.
#[derive(Debug)]
pub struct Turns {
    agreed_by: Option<Bytes>,
    /// Of that key, as it was seen last.
    version: i64,
    /// The newest revision when it was looked last; 0 at the beginning.
    revision: i64,
}

impl Turns {
    /// Of one that has seen nothing; alone, unless there is a key.
    #[must_use]
    pub fn new(agreed_by: Option<Bytes>) -> Self {
        Self {
            agreed_by,
            version: 0,
            revision: 0,
        }
    }

    /// Looks at the newest revision. Returns the one before it, to be
    /// compacted, if there is one and it is this one's turn.
    pub async fn next(&mut self, channel: &mut Channel) -> Result<Option<i64>, Failure> {
        let before = self.revision;
        let (header, is_ours) = match &self.agreed_by {
            Some(key) => {
                let request = advance(key.clone(), self.version, before.to_string().into());
                let answer: TxnResponse = ask(channel, Rpc::Txn, &request).await?;
                self.version = match answer.succeeded {
                    true => self.version + 1,
                    false => found_version(&answer),
                };
                (answer.header, answer.succeeded)
            }
            None => {
                let request = RangeRequest {
                    key: Bytes::from_static(b"\0"),
                    count_only: true,
                    ..Default::default()
                };
                let answer: RangeResponse = ask(channel, Rpc::Range, &request).await?;
                (answer.header, true)
            }
        };
        self.revision = header.map_or(0, |header| header.revision);
        Ok((is_ours && before > 0).then_some(before))
    }
}

/// Of the key that another one has put; 0 if it is gone.
fn found_version(answer: &TxnResponse) -> i64 {
    let found = answer.responses.iter().find_map(|op| match &op.response {
        Some(Response::ResponseRange(range)) => range.kvs.first(),
        _ => None,
    });
    found.map_or(0, |kv| kv.version)
}
