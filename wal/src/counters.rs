//! Numbers about the log while it runs. Reading them costs the log nothing.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Counts since the log was opened.
#[derive(Debug, Default)]
pub struct Counters {
    /// Commits made durable.
    pub commits: AtomicU64,
    /// Batches made durable.
    pub batches: AtomicU64,
    /// Records made durable.
    pub records: AtomicU64,
    /// Bytes of those records.
    pub record_bytes: AtomicU64,
    /// Bytes written for them, block padding included.
    pub written_bytes: AtomicU64,
    /// Batches per commit.
    pub commit_batches: Histogram,
    /// Nanoseconds from the call to the start of the commit.
    pub queue_wait: Histogram,
    /// Nanoseconds from the start of the commit until it was durable.
    pub sync_latency: Histogram,
    /// Nanoseconds during which at least one commit was under way.
    pub busy: AtomicU64,
    /// Times that a commit waited for a segment to be made.
    pub segment_stalls: AtomicU64,
    /// Segments made new.
    pub segments_made: AtomicU64,
    /// Segments used again.
    pub segments_recycled: AtomicU64,
    /// Entries written again so that an old segment could go.
    pub entries_moved: AtomicU64,
    /// Entries read from memory.
    pub reads_cached: AtomicU64,
    /// Entries read from disk.
    pub reads_disk: AtomicU64,
}

const STEPS: usize = 8;

/// Counts by size, in buckets that are at most an eighth wide.
#[derive(Debug)]
pub struct Histogram {
    buckets: [AtomicU64; 64 * STEPS],
    sum: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            buckets: [const { AtomicU64::new(0) }; 64 * STEPS],
            sum: AtomicU64::new(0),
        }
    }
}

impl Histogram {
    /// Counts one value.
    pub fn record(&self, value: u64) {
        self.buckets[bucket(value)].fetch_add(1, Relaxed);
        self.sum.fetch_add(value, Relaxed);
    }

    /// Counts a time in nanoseconds.
    pub fn record_time(&self, time: Duration) {
        self.record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    /// How many values were counted.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.load(Relaxed)).sum()
    }

    /// The sum of all values.
    pub fn sum(&self) -> u64 {
        self.sum.load(Relaxed)
    }

    /// Values up to each bound that has any, for cumulative exports.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.buckets.iter().enumerate().filter_map(|(at, bucket)| {
            let count = bucket.load(Relaxed);
            (count > 0).then(|| (upper_bound(at), count))
        })
    }

    /// The smallest bound that `share` (0 to 1) of the values don't exceed.
    pub fn quantile(&self, share: f64) -> u64 {
        let wanted = (self.count() as f64 * share).ceil() as u64;
        let mut seen = 0;
        for (bound, count) in self.buckets() {
            seen += count;
            if seen >= wanted {
                return bound;
            }
        }
        0
    }
}

/// Values below STEPS have a bucket each; above, each power of two has STEPS.
fn bucket(value: u64) -> usize {
    if value < STEPS as u64 {
        return value as usize;
    }
    let power = value.ilog2() as usize;
    let step = (value >> (power - 3)) as usize - STEPS;
    (power - 2) * STEPS + step
}

/// The largest value of a bucket.
fn upper_bound(bucket: usize) -> u64 {
    if bucket < STEPS {
        return bucket as u64;
    }
    let power = bucket / STEPS + 2;
    let step = (bucket % STEPS + STEPS) as u64;
    ((step + 1) << (power - 3)).wrapping_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_is_within_an_eighth_of_its_bucket() {
        let mut last = 0;
        for shift in 0..64 {
            for value in [
                1u64 << shift,
                (1 << shift) + (1 << shift) / 3,
                u64::MAX >> shift,
            ] {
                let at = bucket(value);
                let bound = upper_bound(at);
                assert!(
                    bound >= value && bound - value <= value / 8,
                    "{value} in {bound}"
                );
                last = last.max(at);
            }
        }
        assert!(last < 64 * STEPS);
    }

    #[test]
    fn quantiles_follow_the_counts() {
        let histogram = Histogram::default();
        (1..=1000).for_each(|value| histogram.record(value));
        assert_eq!(histogram.count(), 1000);
        assert!((495..=560).contains(&histogram.quantile(0.5)));
        assert!((985..=1100).contains(&histogram.quantile(0.99)));
    }
}
