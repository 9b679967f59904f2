//! What a closed loop measured.

use std::time::Duration;

/// Times of single operations and how long all of them took together.
#[derive(Clone, Debug, Default)]
pub struct Samples {
    /// Nanoseconds of each operation, in no order.
    pub nanos: Vec<u64>,
    /// From the first start to the last end.
    pub elapsed: Duration,
}

impl Samples {
    /// Notes one operation.
    pub fn add(&mut self, time: Duration) {
        self.nanos
            .push(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Operations per second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.nanos.len() as f64 / self.elapsed.as_secs_f64()
    }

    /// The time in microseconds that `share` (0 to 1) of the operations don't exceed.
    #[must_use]
    pub fn micros(&self, share: f64) -> f64 {
        let mut nanos = self.nanos.clone();
        if nanos.is_empty() {
            return f64::NAN;
        }
        let at = ((nanos.len() - 1) as f64 * share).round() as usize;
        let (_, value, _) = nanos.select_nth_unstable(at);
        *value as f64 / 1e3
    }

    /// Whether something else held the loop up: single operations took so long
    /// that the mean is more than twice the median.
    #[must_use]
    pub fn held_up(&self) -> bool {
        let mean = 1e6 / self.rate();
        mean > 2.0 * self.micros(0.5)
    }
}

/// The middle of some figures; not a number if there are none.
#[must_use]
pub fn median(figures: &[f64]) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        count if count % 2 == 1 => sorted[count / 2],
        count => f64::midpoint(sorted[count / 2 - 1], sorted[count / 2]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_and_medians_are_of_the_values_themselves() {
        let mut samples = Samples::default();
        for micros in (1..=101).rev() {
            samples.add(Duration::from_micros(micros));
        }
        samples.elapsed = Duration::from_secs(2);
        assert_eq!(samples.micros(0.0), 1.0);
        assert_eq!(samples.micros(0.5), 51.0);
        assert_eq!(samples.micros(1.0), 101.0);
        assert_eq!(samples.rate(), 50.5);
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        let mut steady = Samples::default();
        (0..100).for_each(|_| steady.add(Duration::from_micros(100)));
        steady.elapsed = Duration::from_millis(10);
        assert!(!steady.held_up());
        // The same operations, and one that waited for somebody else.
        steady.add(Duration::from_millis(20));
        steady.elapsed += Duration::from_millis(20);
        assert!(steady.held_up());
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
    }
}
