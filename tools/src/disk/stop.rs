//! When to end early: after a signal, or when the time is up.
//!
//! Kept true: who asks `is_interrupted` often ends soon after the first Ctrl-C; the
//! second one ends the process at once, without leaving files either. Nothing
//! that asks for its `patience` is waited for much beyond the deadline.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use futures_util::future::select_all;
use tokio::signal::unix::{SignalKind, signal};

/// What a second Ctrl-C ends with.
const IMPATIENT: i32 = 130;
/// What is there to be tidied up has this long after the deadline, too.
const GRACE: Duration = Duration::from_millis(300);

/// Shared by all that may have to end.
#[derive(Clone, Default)]
pub(crate) struct Stop(Arc<Shared>);

#[derive(Default)]
struct Shared {
    interrupted: AtomicBool,
    /// What goes if the process must end at once.
    scratch: Mutex<Option<PathBuf>>,
    /// When everything is to be over, if that is known.
    deadline: OnceLock<Instant>,
}

impl Stop {
    /// Listens for signals from now on.
    pub(crate) fn on_signals() -> std::io::Result<Self> {
        let stop = Self::default();
        let shared = Arc::clone(&stop.0);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let mut signals = {
            let _within = runtime.enter();
            [
                signal(SignalKind::interrupt())?,
                signal(SignalKind::terminate())?,
                signal(SignalKind::hangup())?,
            ]
        };
        std::thread::Builder::new()
            .name("signals".to_owned())
            .spawn(move || {
                runtime.block_on(async {
                    loop {
                        select_all(signals.iter_mut().map(|signal| Box::pin(signal.recv()))).await;
                        if shared.interrupted.swap(true, Ordering::Relaxed) {
                            shared.remove_scratch();
                            std::process::exit(IMPATIENT);
                        }
                    }
                });
            })?;
        Ok(stop)
    }

    pub(crate) fn is_interrupted(&self) -> bool {
        self.0.interrupted.load(Ordering::Relaxed)
    }

    /// Everything is to be over by then. The first one to say so is heard.
    pub(crate) fn is_due_at(&self, deadline: Instant) {
        self.0.deadline.get_or_init(|| deadline);
    }

    /// Whether that moment has passed.
    pub(crate) fn is_past(&self) -> bool {
        let deadline = self.0.deadline.get();
        deadline.is_some_and(|deadline| *deadline <= Instant::now())
    }

    /// How long something may be waited for: so long, or until the deadline
    /// and a little more.
    pub(crate) fn patience(&self, most: Duration) -> Duration {
        let left = |deadline: &Instant| deadline.saturating_duration_since(Instant::now());
        let left = self.0.deadline.get().map_or(most, left);
        most.min(left.max(GRACE))
    }

    /// From now on this directory goes with the process.
    pub(crate) fn owns(&self, scratch: Option<&Path>) {
        if let Ok(mut owned) = self.0.scratch.lock() {
            *owned = scratch.map(Path::to_owned);
        }
    }
}

impl Shared {
    fn remove_scratch(&self) {
        let Ok(Some(scratch)) = self.scratch.lock().map(|mut owned| owned.take()) else {
            return;
        };
        // The log may be making a file right now: then once more.
        for _ in 0..3 {
            if std::fs::remove_dir_all(&scratch).is_ok() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_ends_with_the_time() {
        let (long, hour) = (Duration::from_secs(60), Duration::from_secs(3600));
        let stop = Stop::default();
        assert_eq!(stop.patience(long), long);
        assert!(!stop.is_past());
        stop.is_due_at(Instant::now() + hour);
        assert_eq!(stop.patience(long), long);
        assert!(stop.patience(2 * hour) <= hour);
        assert!(!stop.is_past());
        let stop = Stop::default();
        stop.is_due_at(Instant::now());
        assert!(stop.is_past());
        assert_eq!(stop.patience(long), GRACE);
        assert_eq!(stop.patience(Duration::ZERO), Duration::ZERO);
    }
}
