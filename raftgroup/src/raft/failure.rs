//! Why a replica has stopped.
//!
//! Kept true: the first reason is kept, and said once.

use std::sync::OnceLock;

use tokio::sync::Notify;

/// Set when something failed that is never tried again.
#[derive(Default)]
pub(crate) struct Failure {
    reason: OnceLock<String>,
    failed: Notify,
}

impl Failure {
    pub(crate) fn set(&self, reason: String) {
        let mut first = false;
        let reason = self.reason.get_or_init(|| {
            first = true;
            reason
        });
        if first {
            tracing::error!("a replica has stopped: {reason}");
            self.failed.notify_one();
        }
    }

    pub(crate) fn get(&self) -> Option<&str> {
        self.reason.get().map(String::as_str)
    }

    /// Returns, to one who waits, when there is a reason.
    pub(crate) async fn failed(&self) {
        self.failed.notified().await;
    }
}
