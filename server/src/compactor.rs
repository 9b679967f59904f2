//! Forgets history by itself, as etcd does: what is older than a time, or all
//! but a number of revisions.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use pontoon_engine::{Reject, Revision};
use pontoon_raftgroup::Failure;

use crate::config::AutoCompaction;
use crate::host::Host;

/// Of a periodic compaction, so many looks in one period.
const LOOKS: u32 = 10;
/// A period is never longer than this.
const PERIOD_MAX: Duration = Duration::from_secs(3600);
/// Between two compactions that keep a number of revisions.
const REVISION_EVERY: Duration = Duration::from_secs(300);

/// Runs as long as the member does; only the root group's leader compacts.
pub(crate) async fn run(host: Arc<Host>, wanted: AutoCompaction) {
    match wanted {
        AutoCompaction::Off => {}
        AutoCompaction::Revision(kept) => loop {
            tokio::time::sleep(REVISION_EVERY).await;
            let at = Revision(host.node.revision().0 - kept);
            compact(&host, at).await;
        },
        AutoCompaction::Periodic(kept) => {
            let mut past = Past::new(kept);
            loop {
                tokio::time::sleep(past.every).await;
                if let Some(at) = past.look(host.node.revision()) {
                    compact(&host, at).await;
                }
            }
        }
    }
}

/// What the newest revision was, at each look.
struct Past {
    every: Duration,
    /// Looks that are as old as what is kept.
    kept: usize,
    /// Looks between two compactions.
    between: usize,
    seen: VecDeque<Revision>,
    since: usize,
}

impl Past {
    fn new(kept: Duration) -> Self {
        let every = (kept.min(PERIOD_MAX) / LOOKS).max(Duration::from_millis(1));
        Self {
            every,
            kept: (kept.as_nanos() / every.as_nanos()).max(1) as usize,
            between: LOOKS as usize,
            seen: VecDeque::new(),
            since: 0,
        }
    }

    /// Notes the newest revision; tells what to compact, when it is time.
    fn look(&mut self, newest: Revision) -> Option<Revision> {
        self.seen.push_back(newest);
        self.since += 1;
        if self.seen.len() <= self.kept {
            return None;
        }
        let old = self.seen.pop_front();
        if self.since < self.between {
            return None;
        }
        self.since = 0;
        old
    }
}

async fn compact(host: &Host, at: Revision) {
    let leads = host.node.leadership().1 == Some(host.member_id);
    if !leads || at <= host.node.floor() || at <= Revision::FIRST {
        return;
    }
    match host.node.compact(at, host.limits.within()).await {
        Ok(_) => tracing::info!("compacted by itself at revision {}", at.0),
        Err(Failure::Reject(Reject::Compacted)) => {}
        Err(failure) => tracing::warn!("no compaction at revision {}: {failure}", at.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_younger_than_asked_for_is_kept() {
        let mut past = Past::new(Duration::from_secs(7200));
        assert_eq!(past.every, Duration::from_secs(360));
        let compacted: Vec<_> = (1..=50)
            .filter_map(|look| Some((look, past.look(Revision(100 * look))?)))
            .collect();
        // 20 looks are two hours.
        assert_eq!(
            compacted,
            [
                (21, Revision(100)),
                (31, Revision(1100)),
                (41, Revision(2100))
            ]
        );
    }
}
