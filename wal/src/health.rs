//! Whether the log has failed, and how long it has made no progress.
//!
//! Kept true: the first failure is final, and everybody who waits for it hears
//! of it. A stall is measured by whoever asks: the commit thread may itself be
//! blocked in the kernel.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::Notify;

/// The failure that ended the log, once there is one.
#[derive(Default)]
pub(crate) struct Failure {
    reason: OnceLock<Arc<str>>,
    is_set: Notify,
}

impl Failure {
    /// Keeps the first reason; returns it.
    pub(crate) fn set(&self, reason: &str) -> Arc<str> {
        let mut first = false;
        let known = self.reason.get_or_init(|| {
            first = true;
            Arc::from(reason)
        });
        if first {
            // Its user, who is told, says so.
            tracing::debug!(reason, "the log has failed and takes no more writes");
            self.is_set.notify_waiters();
        }
        Arc::clone(known)
    }

    pub(crate) fn get(&self) -> Option<&Arc<str>> {
        self.reason.get()
    }

    /// Completes when there is a reason; never, if the log ends without one.
    pub(crate) async fn wait(self: Arc<Self>) -> Arc<str> {
        loop {
            // Created before the check, so that no `set` falls in between.
            let is_set = self.is_set.notified();
            if let Some(reason) = self.get() {
                return Arc::clone(reason);
            }
            is_set.await;
        }
    }
}

/// Since when appends wait without anything becoming durable.
#[derive(Default)]
pub(crate) struct Progress {
    /// Appends that are queued or in flight.
    waiting: AtomicU64,
    /// The last time that something became durable or that nothing waited, in
    /// nanoseconds of the log's clock.
    since: AtomicU64,
}

impl Progress {
    /// An append is about to be queued.
    pub(crate) fn begin(&self, now: Duration) {
        // `now` was read before: if nothing waits, no wait is older than it.
        if self.waiting.load(Ordering::Acquire) == 0 {
            self.since.fetch_max(nanos(now), Ordering::Release);
        }
        self.waiting.fetch_add(1, Ordering::Release);
    }

    /// Something became durable, among it so many appends.
    pub(crate) fn advance(&self, now: Duration, appends: u64) {
        self.since.fetch_max(nanos(now), Ordering::Release);
        self.waiting.fetch_sub(appends, Ordering::Release);
    }

    /// Nothing waits any more, because the log has failed.
    pub(crate) fn give_up(&self, appends: u64) {
        self.waiting.fetch_sub(appends, Ordering::Release);
    }

    pub(crate) fn stalled_for(&self, now: Duration) -> Duration {
        if self.waiting.load(Ordering::Acquire) == 0 {
            return Duration::ZERO;
        }
        let since = Duration::from_nanos(self.since.load(Ordering::Acquire));
        now.saturating_sub(since)
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_stall_lasts_from_the_last_progress_while_something_waits() {
        let progress = Progress::default();
        assert_eq!(progress.stalled_for(9 * SECOND), Duration::ZERO);
        progress.begin(10 * SECOND);
        progress.begin(11 * SECOND);
        assert_eq!(progress.stalled_for(12 * SECOND), 2 * SECOND);
        progress.advance(13 * SECOND, 1);
        assert_eq!(progress.stalled_for(15 * SECOND), 2 * SECOND);
        // A commit of the log itself is progress too.
        progress.advance(14 * SECOND, 0);
        assert_eq!(progress.stalled_for(15 * SECOND), SECOND);
        progress.advance(16 * SECOND, 1);
        assert_eq!(progress.stalled_for(90 * SECOND), Duration::ZERO);
        progress.begin(100 * SECOND);
        assert_eq!(progress.stalled_for(101 * SECOND), SECOND);
        progress.give_up(1);
        assert_eq!(progress.stalled_for(102 * SECOND), Duration::ZERO);
    }

    #[tokio::test]
    async fn the_first_failure_is_kept_and_all_who_wait_hear_of_it() {
        let failure = Arc::new(Failure::default());
        let early = tokio::spawn(Arc::clone(&failure).wait());
        tokio::task::yield_now().await;
        assert_eq!(&*failure.set("first"), "first");
        assert_eq!(&*failure.set("second"), "first");
        assert_eq!(&*early.await.unwrap(), "first");
        assert_eq!(&*failure.wait().await, "first");
    }
}
