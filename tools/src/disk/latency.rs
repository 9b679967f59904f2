//! Times, as a distribution that keeps its tail.
//!
//! Kept true: every time that was counted is in the histogram, to three
//! digits; nothing is left out because it was long.

use std::time::Duration;

use hdrhistogram::Histogram;
use pontoon_plot::quantiles;
use serde::Serialize;

/// The longest time that is told apart.
const LONGEST: Duration = Duration::from_secs(600);

/// Times that were counted.
#[derive(Clone)]
pub(crate) struct Times(Histogram<u64>);

impl Default for Times {
    fn default() -> Self {
        let longest = LONGEST.as_nanos() as u64;
        Self(Histogram::new_with_bounds(1, longest, 3).expect("the bounds are constant and sound"))
    }
}

impl Times {
    pub(crate) fn add(&mut self, time: Duration) {
        let nanos = time.min(LONGEST).as_nanos() as u64;
        self.0.saturating_record(nanos.max(1));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn percentile(&self, percent: f64) -> Duration {
        Duration::from_nanos(self.0.value_at_percentile(percent))
    }

    pub(crate) fn mean_ns(&self) -> f64 {
        self.0.mean()
    }

    pub(crate) fn deviation_ns(&self) -> f64 {
        self.0.stdev()
    }

    /// How many there are from each bound on, up to the next: powers of two
    /// of a microsecond, from the first that has any to the last.
    pub(crate) fn by_powers(&self) -> Vec<Band> {
        let mut bands: Vec<Band> = Vec::new();
        for value in self.0.iter_recorded() {
            let micros = value.value_iterated_to() / 1000;
            let from_us = match micros {
                0 => 0,
                _ => 1 << micros.ilog2(),
            };
            let count = value.count_since_last_iteration();
            match bands.last_mut() {
                Some(last) if last.from_us == from_us => last.count += count,
                Some(last) => {
                    let mut next = (last.from_us * 2).max(1);
                    while next < from_us {
                        bands.push(Band {
                            from_us: next,
                            count: 0,
                        });
                        next *= 2;
                    }
                    bands.push(Band { from_us, count });
                }
                None => bands.push(Band { from_us, count }),
            }
        }
        bands
    }

    pub(crate) fn summary(&self) -> Latency {
        let at = |percent| self.0.value_at_percentile(percent);
        Latency {
            count: self.0.len(),
            mean_ns: self.0.mean() as u64,
            min_ns: if self.0.is_empty() { 0 } else { self.0.min() },
            p50_ns: at(50.0),
            p90_ns: at(90.0),
            p99_ns: at(99.0),
            p999_ns: at(99.9),
            p9999_ns: at(99.99),
            max_ns: self.0.max(),
            bands: self.by_powers(),
            values: self
                .0
                .iter_recorded()
                .map(|value| (value.value_iterated_to(), value.count_at_value()))
                .collect(),
            curve: quantiles(self.0.len())
                .into_iter()
                .map(|share| (share, self.0.value_at_quantile(share)))
                .collect(),
        }
    }
}

/// A distribution of times, in short.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Latency {
    pub(crate) count: u64,
    pub(crate) mean_ns: u64,
    pub(crate) min_ns: u64,
    pub(crate) p50_ns: u64,
    pub(crate) p90_ns: u64,
    pub(crate) p99_ns: u64,
    pub(crate) p999_ns: u64,
    pub(crate) p9999_ns: u64,
    pub(crate) max_ns: u64,
    pub(crate) bands: Vec<Band>,
    /// Nanoseconds with how often they came, for figures.
    #[serde(skip)]
    pub(crate) values: Vec<(u64, u64)>,
    /// Nanoseconds by share of the values, for figures.
    #[serde(skip)]
    pub(crate) curve: Vec<(f64, u64)>,
}

/// Times from `from_us` to below twice that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Band {
    pub(crate) from_us: u64,
    pub(crate) count: u64,
}

/// A time as people read it: three digits and a unit.
pub(crate) fn time(nanos: u64) -> String {
    let (value, unit) = match nanos {
        0..1_000 => return format!("{nanos} ns"),
        1_000..1_000_000 => (nanos as f64 / 1e3, "µs"),
        1_000_000..1_000_000_000 => (nanos as f64 / 1e6, "ms"),
        _ => (nanos as f64 / 1e9, "s"),
    };
    match value {
        0.0..10.0 => format!("{value:.2} {unit}"),
        10.0..100.0 => format!("{value:.1} {unit}"),
        _ => format!("{value:.0} {unit}"),
    }
}

/// A count or a rate as people read it.
pub(crate) fn number(value: f64) -> String {
    match value {
        0.0..1_000.0 => format!("{value:.0}"),
        1_000.0..100_000.0 => format!("{:.1}k", value / 1e3),
        100_000.0..1_000_000.0 => format!("{:.0}k", value / 1e3),
        _ => format!("{:.1}M", value / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_is_kept() {
        let mut times = Times::default();
        (0..9_999).for_each(|_| times.add(Duration::from_micros(100)));
        times.add(Duration::from_secs(2));
        let latency = times.summary();
        assert_eq!(latency.count, 10_000);
        assert!((99_000..=101_000).contains(&latency.p999_ns));
        assert!(latency.max_ns >= 1_999_000_000);
    }

    #[test]
    fn bands_have_no_gaps_and_all_times() {
        let mut times = Times::default();
        for micros in [3, 3, 40] {
            times.add(Duration::from_micros(micros));
        }
        let bands = times.by_powers();
        let from: Vec<_> = bands.iter().map(|band| band.from_us).collect();
        assert_eq!(from, [2, 4, 8, 16, 32]);
        assert_eq!(bands.iter().map(|band| band.count).sum::<u64>(), 3);
    }

    #[test]
    fn times_and_numbers_are_short() {
        assert_eq!(time(950), "950 ns");
        assert_eq!(time(123_456), "123 µs");
        assert_eq!(time(1_234_567), "1.23 ms");
        assert_eq!(time(12_345_678_900), "12.3 s");
        assert_eq!(number(65_432.0), "65.4k");
        assert_eq!(number(412.4), "412");
    }
}
