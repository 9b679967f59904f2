//! Why a replica has stopped.
//!
//! Kept true: the first reason is kept. Only a reason that names its cause
//! takes the place of one that doesn't: whoever meets a store that has stopped
//! may be faster than who found out why. A failed disk fails the node.

use std::sync::Arc;

use parking_lot::Mutex;
use pontoon_engine::EngineError;
use pontoon_wal::WalError;
use tokio::sync::Notify;

use crate::health::Health;

/// Why a replica has stopped, by what may be done about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Stop {
    /// What is on disk is not what was written: this replica must be rebuilt.
    #[error("{0}")]
    Damaged(String),
    /// The disk failed: nothing more can be done in this process.
    #[error("{0}")]
    Disk(String),
    /// An entry can't be applied, openraft has ended, or the cause is not known here.
    #[error("{0}")]
    Other(String),
}

impl Stop {
    /// The same, and what was being done.
    pub(crate) fn while_doing(self, what: &str) -> Self {
        let place: fn(String) -> Self = match &self {
            Self::Damaged(_) => Self::Damaged,
            Self::Disk(_) => Self::Disk,
            Self::Other(_) => Self::Other,
        };
        place(format!("{what}: {self}"))
    }
}

impl From<&EngineError> for Stop {
    fn from(error: &EngineError) -> Self {
        let reason = error.to_string();
        match error {
            EngineError::Damaged { .. } => Self::Damaged(reason),
            EngineError::Disk { .. } => Self::Disk(reason),
            _ => Self::Other(reason),
        }
    }
}

impl From<&WalError> for Stop {
    fn from(error: &WalError) -> Self {
        let reason = error.to_string();
        match error {
            WalError::Damaged(_) => Self::Damaged(reason),
            WalError::Failed(_) | WalError::Io { .. } | WalError::NoSpace => Self::Disk(reason),
            _ => Self::Other(reason),
        }
    }
}

/// Set when something failed that is never tried again.
pub(crate) struct Failure {
    reason: Mutex<Option<Stop>>,
    failed: Notify,
    health: Arc<Health>,
}

impl Default for Failure {
    fn default() -> Self {
        Self::new(Arc::default())
    }
}

impl Failure {
    pub(crate) fn new(health: Arc<Health>) -> Self {
        Self {
            reason: Mutex::default(),
            failed: Notify::new(),
            health,
        }
    }

    pub(crate) fn set(&self, reason: Stop) {
        let mut known = self.reason.lock();
        match &*known {
            None => {}
            Some(Stop::Other(_)) if !matches!(reason, Stop::Other(_)) => {}
            Some(_) => return,
        }
        tracing::debug!(%reason, "a replica has stopped");
        if let Stop::Disk(reason) = &reason {
            self.health.fail(reason);
        }
        *known = Some(reason);
        self.failed.notify_one();
    }

    pub(crate) fn get(&self) -> Option<Stop> {
        self.reason.lock().clone()
    }

    /// Returns, to one who waits, when there is a reason, or a better one.
    pub(crate) async fn failed(&self) {
        self.failed.notified().await;
    }
}
