//! When to end early: after a signal.
//!
//! Kept true: who asks `is_interrupted` often ends soon after the first Ctrl-C; the
//! second one ends the process at once, without leaving files either.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use futures_util::future::select_all;
use tokio::signal::unix::{SignalKind, signal};

/// What a second Ctrl-C ends with.
const IMPATIENT: i32 = 130;

/// Shared by all that may have to end.
#[derive(Clone, Default)]
pub(crate) struct Stop(Arc<Shared>);

#[derive(Default)]
struct Shared {
    interrupted: AtomicBool,
    /// What goes if the process must end at once.
    scratch: Mutex<Option<PathBuf>>,
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
