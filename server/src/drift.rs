//! Whether the disk still does what its profile says.
//!
//! Kept true: only what commits took since the last look counts, and only if
//! there were enough of them; a disk that stays slow is warned of now and
//! then, not at every look.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use pontoon_wal::{Histogram, Profile};
use tokio::time::Instant;

use crate::host::Host;

/// How often it is looked.
const LOOK: Duration = Duration::from_secs(10);
/// Commits below which a look says nothing.
const COMMITS_MIN: u64 = 50;
/// How many times longer than in the profile commits may take.
const RATIO_MAX: f64 = 3.0;
/// Between two warnings.
const WARN_EVERY: Duration = Duration::from_secs(600);

/// What the disk did when it was qualified, and what it does.
#[derive(Debug, Default)]
pub(crate) struct Drift {
    profile: Option<Profile>,
    ratio: AtomicU64,
    pub(crate) warnings: AtomicU64,
}

impl Drift {
    pub(crate) fn from(profile: Option<Profile>) -> Self {
        Self {
            profile,
            ..Self::default()
        }
    }

    /// The median of commits at the last look, in multiples of the profile's;
    /// 0 without a profile, and while too few were made.
    pub(crate) fn ratio(&self) -> f64 {
        f64::from_bits(self.ratio.load(Relaxed))
    }

    /// Takes note of the median; `true` if it is worth a warning.
    fn note(&self, profile: &Profile, median: Duration) -> bool {
        let ratio = median.as_nanos() as f64 / profile.commit_p50_ns as f64;
        self.ratio.store(ratio.to_bits(), Relaxed);
        ratio > RATIO_MAX
    }
}

/// Looks for as long as the server runs.
pub(crate) async fn run(host: Arc<Host>) {
    let Some(profile) = host.drift.profile.clone() else {
        return;
    };
    let latency = &host.node.log_counters().sync_latency;
    let mut seen = Seen::default();
    let mut quiet_until = Instant::now();
    loop {
        tokio::time::sleep(LOOK).await;
        let Some(median) = seen.median_since(latency) else {
            continue;
        };
        let drifted = host.drift.note(&profile, median);
        if drifted && Instant::now() >= quiet_until {
            quiet_until = Instant::now() + WARN_EVERY;
            host.drift.warnings.fetch_add(1, Relaxed);
            tracing::warn!(
                "the disk is slower than its profile says: half of the last commits took more \
                 than {median:?}, {:?} when {} was qualified; qualify it again \
                 (pontoonctl disk qualify)",
                Duration::from_nanos(profile.commit_p50_ns),
                profile.directory,
            );
        }
    }
}

/// What a histogram had at the last look.
#[derive(Default)]
struct Seen(Vec<(u64, u64)>);

impl Seen {
    /// The median of what came since the last look, if it was enough; else
    /// that counts at the next one.
    fn median_since(&mut self, now: &Histogram) -> Option<Duration> {
        let now: Vec<(u64, u64)> = now.buckets().collect();
        let before = |bound: u64| {
            let at = self.0.binary_search_by_key(&bound, |(bound, _)| *bound);
            at.map_or(0, |at| self.0[at].1)
        };
        let since = now
            .iter()
            .map(|(bound, count)| (*bound, count - before(*bound)));
        let since: Vec<_> = since.collect();
        let all: u64 = since.iter().map(|(_, count)| count).sum();
        if all < COMMITS_MIN {
            return None;
        }
        self.0 = now;
        let mut below = 0u64;
        let median = since.iter().find(|(_, count)| {
            below += count;
            below * 2 >= all
        });
        median.map(|(bound, _)| Duration::from_nanos(*bound))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile() -> Profile {
        Profile {
            directory: "/data".to_owned(),
            device: String::new(),
            made_at_secs: 0,
            commit_bytes_max: 1 << 20,
            in_flight_max: 3,
            commit_p50_ns: 100_000,
            commit_p99_ns: 300_000,
            writes_per_s: 1,
        }
    }

    fn add(histogram: &Histogram, count: usize, micros: u64) {
        (0..count).for_each(|_| histogram.record_time(Duration::from_micros(micros)));
    }

    #[test]
    fn only_the_newest_commits_count_and_only_if_there_are_enough() {
        let (histogram, mut seen) = (Histogram::default(), Seen::default());
        add(&histogram, 1000, 100);
        let first = seen.median_since(&histogram).unwrap();
        assert!((90..120).contains(&first.as_micros()), "{first:?}");
        add(&histogram, 40, 5000);
        assert_eq!(seen.median_since(&histogram), None);
        add(&histogram, 40, 5000);
        let second = seen.median_since(&histogram).unwrap();
        assert!((5000..5700).contains(&second.as_micros()), "{second:?}");
    }

    #[test]
    fn a_slower_disk_is_noticed() {
        let drift = Drift::from(Some(profile()));
        assert_eq!(drift.ratio(), 0.0);
        assert!(!drift.note(&profile(), Duration::from_micros(120)));
        assert!(drift.note(&profile(), Duration::from_micros(500)));
        assert!((drift.ratio() - 5.0).abs() < 0.01);
    }
}
