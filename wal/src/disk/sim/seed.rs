//! Time and chance of a simulation: both decided by a seed and a runtime.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::clock::Clock;

/// Time of the runtime that it was made in, and numbers from a seed.
pub struct SimClock {
    start: Instant,
    rng: Mutex<Rng>,
}

impl SimClock {
    /// Starts now, by the clock of the current runtime.
    pub fn new(seed: u64) -> Self {
        Self {
            start: Instant::now(),
            rng: Mutex::new(Rng::new(seed)),
        }
    }
}

impl Clock for SimClock {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn random(&self) -> u64 {
        self.rng.lock().next_u64()
    }
}

/// Numbers that a seed decides (splitmix64).
#[derive(Clone, Debug, Default)]
pub struct Rng(u64);

impl Rng {
    /// The same seed gives the same numbers.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Any number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number less than `n`, which must not be 0.
    pub fn below(&mut self, n: u64) -> u64 {
        assert!(n > 0, "nothing is below 0");
        ((u128::from(self.next_u64()) * u128::from(n)) >> 64) as u64
    }

    /// True `numerator` times of `denominator`.
    pub fn chance(&mut self, numerator: u64, denominator: u64) -> bool {
        self.below(denominator) < numerator
    }
}
