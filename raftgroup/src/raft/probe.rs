//! When a leader without a quorum keeps silent, and when a group has ticks.
//!
//! Kept true:
//! - A leader that no quorum has answered for as long as an election takes
//!   sends no heartbeats every other phase, so that those who do hear it can
//!   vote for somebody else. Otherwise a follower that hears both sides of a
//!   divided cluster could be kept from either for good. openraft has the same
//!   rule, but takes a quiet group for one without a quorum and would not let
//!   it wake: so the rule is kept here, where quiet is known.
//! - A group has no ticks while it is quiet, nor while the disk stalls.
//!   openraft's core takes none while it waits for a vote to become durable,
//!   and then reports that vote through the queue that they would have filled:
//!   it would wait for itself for good.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::runtime::watched as watch;
use openraft::Instant as _;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::metrics::RaftDataMetrics;
use openraft::type_config::alias::WatchReceiverOf;
use tokio::time::Instant;

use crate::health::Health;
use crate::mutation::{Mutation, mutated};
use crate::raft::types::Types;

pub(crate) struct Probe {
    /// A follower waits at most this long.
    election_max: Duration,
    metrics: OnceLock<WatchReceiverOf<Types, RaftDataMetrics<Types>>>,
    /// Whether the group is quiet.
    pub(crate) quiet: watch::Sender<bool>,
    woken: watch::Sender<Option<Instant>>,
    health: Arc<Health>,
}

impl Probe {
    pub(crate) fn new(election_max: Duration, health: Arc<Health>) -> Self {
        Self {
            election_max,
            metrics: OnceLock::new(),
            quiet: watch::Sender::new(false),
            woken: watch::Sender::new(None),
            health,
        }
    }

    /// Where to see when a quorum last answered.
    pub(crate) fn observe(&self, metrics: WatchReceiverOf<Types, RaftDataMetrics<Types>>) {
        // It is set once, by who opens the group.
        let _ = self.metrics.set(metrics);
    }

    /// The group has timers again, and was not expected to be heard before.
    pub(crate) fn woken(&self) {
        self.quiet.send_replace(false);
        self.woken.send_replace(Some(Instant::now()));
    }

    /// Whether the group is to have ticks.
    pub(crate) fn wants_ticks(&self) -> bool {
        let stalled = self.health.is_stalled() && !mutated(Mutation::StalledDiskTicks);
        !*self.quiet.borrow() && !stalled
    }

    /// Whether a leader since `elected` may send a heartbeat.
    pub(crate) fn allows(&self, elected: Instant) -> bool {
        if *self.quiet.borrow() {
            return true;
        }
        let answered = self.metrics.get().and_then(|metrics| {
            let metrics = metrics.borrow_watched();
            let acked = metrics.last_quorum_acked.as_ref();
            acked.map(|acked| acked.elapsed())
        });
        let woken = self.woken.borrow().map(|woken| woken.elapsed());
        let since = [answered, woken].into_iter().flatten();
        let silence = since.fold(elected.elapsed(), Duration::min);
        let phase = 2 * self.election_max;
        match silence.checked_sub(self.election_max) {
            None => true,
            Some(over) => (over.as_nanos() / phase.as_nanos()) % 2 == 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn silence_and_trying_again_take_turns() {
        let probe = Probe::new(Duration::from_secs(1), Arc::default());
        let elected = Instant::now();
        let mut allowed = Vec::new();
        for _ in 0..8 {
            allowed.push(probe.allows(elected));
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        let expected = [true, false, false, true, true, false, false, true];
        assert_eq!(allowed, expected);
        tokio::time::advance(Duration::from_secs(3600)).await;
        probe.woken();
        assert!(probe.allows(elected));
        tokio::time::advance(Duration::from_secs(2)).await;
        assert!(!probe.allows(elected));
        probe.quiet.send_replace(true);
        assert!(probe.allows(elected));
    }
}
