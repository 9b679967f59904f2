//! Time and chance: with the disk, what a simulation must be able to replace.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::{Duration, Instant};

/// Where the log gets time and randomness from.
pub trait Clock: Send + Sync + 'static {
    /// Time since some fixed moment; never goes back.
    fn now(&self) -> Duration;
    /// A number that does not repeat.
    fn random(&self) -> u64;
}

/// The machine's monotonic clock and the operating system's randomness.
pub struct SystemClock {
    start: Instant,
}

impl Default for SystemClock {
    fn default() -> Self {
        Self {
            start: Instant::now(),
        }
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn random(&self) -> u64 {
        // Each RandomState is keyed from the operating system's randomness.
        RandomState::new().build_hasher().finish()
    }
}
