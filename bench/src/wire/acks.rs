//! When writes were acknowledged, so that watchers can tell how much later
//! they saw them.
//!
//! Kept true: what is not known is not guessed. Old acknowledgements are
//! forgotten, and a watcher that is so far behind tells no time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Revisions that are remembered.
const SLOTS: usize = 1 << 16;
/// A slot has so many bits of a revision above those of a time.
const REVISION_BITS: u32 = 24;
const TIME_BITS: u32 = 64 - REVISION_BITS;
/// Times are told in steps of 2^6 nanoseconds: 40 bits are half a day.
const STEP_BITS: u32 = 6;

/// When each of the last revisions was acknowledged.
pub struct Acks(Box<[AtomicU64]>);

impl Default for Acks {
    fn default() -> Self {
        Self((0..SLOTS).map(|_| AtomicU64::new(0)).collect())
    }
}

impl Acks {
    fn slot(&self, revision: i64) -> &AtomicU64 {
        &self.0[revision.cast_unsigned() as usize % SLOTS]
    }

    /// A revision was acknowledged at a time, in nanoseconds.
    pub fn add(&self, revision: i64, at: u64) {
        let short = revision.cast_unsigned() << TIME_BITS;
        let time = (at >> STEP_BITS) & ((1 << TIME_BITS) - 1);
        self.slot(revision).store(short | time, Ordering::Relaxed);
    }

    /// How long before a time that was; zero if it has not been yet, none if
    /// it is forgotten.
    pub fn since(&self, revision: i64, now: u64) -> Option<Duration> {
        let slot = self.slot(revision).load(Ordering::Relaxed);
        let short = revision.cast_unsigned() & ((1 << REVISION_BITS) - 1);
        let there = slot >> TIME_BITS;
        if there == short {
            let acked = (slot & ((1 << TIME_BITS) - 1)) << STEP_BITS;
            return Some(Duration::from_nanos(now.saturating_sub(acked)));
        }
        // A newer one is in its place, or an older one, or none.
        let ahead = there.wrapping_sub(short) & ((1 << REVISION_BITS) - 1);
        let is_newer = ahead < 1 << (REVISION_BITS - 1);
        (slot == 0 || !is_newer).then_some(Duration::ZERO)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_after_its_acknowledgement_or_before_it() {
        let acks = Acks::default();
        assert_eq!(acks.since(7, 100), Some(Duration::ZERO));
        acks.add(7, 64_000);
        assert_eq!(acks.since(7, 128_000), Some(Duration::from_nanos(64_000)));
        assert_eq!(acks.since(7, 0), Some(Duration::ZERO));
        let later = 7 + SLOTS as i64;
        assert_eq!(acks.since(later, 200_000), Some(Duration::ZERO));
        acks.add(later, 192_000);
        assert_eq!(acks.since(7, 200_000), None, "forgotten");
        let far = later + (1 << 40);
        acks.add(far, 192_000);
        assert_eq!(acks.since(far, 192_064), Some(Duration::from_nanos(64)));
    }
}
