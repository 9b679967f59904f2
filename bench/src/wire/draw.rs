//! Which key comes next.

use clap::ValueEnum;
use rand::RngExt;
use rand::rngs::SmallRng;
use rand_distr::{Distribution, Zipf};

/// How requests are spread over the keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Spread {
    /// All alike.
    #[default]
    Uniform,
    /// A few are asked for most: the second half as often as the first, the
    /// third a third as often (Zipf's law, exponent 0.99 as YCSB has it).
    Zipf,
}

const EXPONENT: f64 = 0.99;
/// Hot keys lie apart. A prime above any number of keys: nothing is met twice.
const STRIDE: u128 = 0xffff_ffff_ffff_ffc5;

/// Draws keys.
#[derive(Clone, Debug)]
pub struct Draw {
    keys: u64,
    zipf: Option<Zipf<f64>>,
}

impl Draw {
    /// From so many keys, of which there must be one.
    #[must_use]
    pub fn new(spread: Spread, keys: u64) -> Self {
        let zipf = match spread {
            Spread::Uniform => None,
            Spread::Zipf => Some(Zipf::new(keys as f64, EXPONENT).expect("there is a key")),
        };
        Self { keys, zipf }
    }

    /// The next one.
    pub fn key(&self, rng: &mut SmallRng) -> u64 {
        match &self.zipf {
            None => rng.random_range(0..self.keys),
            Some(zipf) => {
                let rank = (zipf.sample(rng) as u64).clamp(1, self.keys) - 1;
                (u128::from(rank) * STRIDE % u128::from(self.keys)) as u64
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use rand::SeedableRng;

    use super::*;

    fn counts(spread: Spread, keys: u64) -> HashMap<u64, u32> {
        let draw = Draw::new(spread, keys);
        let mut rng = SmallRng::seed_from_u64(7);
        let mut counts = HashMap::new();
        for _ in 0..20_000 {
            *counts.entry(draw.key(&mut rng)).or_default() += 1;
        }
        assert!(counts.keys().all(|key| *key < keys));
        counts
    }

    #[test]
    fn zipf_has_hot_keys_and_uniform_has_none() {
        let uniform = counts(Spread::Uniform, 100);
        assert_eq!(uniform.len(), 100);
        assert!(uniform.values().all(|count| *count < 400));
        let zipf = counts(Spread::Zipf, 100);
        let mut sorted: Vec<_> = zipf.values().copied().collect();
        sorted.sort_unstable_by(|a, b| b.cmp(a));
        // The first of a hundred has a share of about 1/5.2.
        assert!((3400..4400).contains(&sorted[0]), "{sorted:?}");
        assert!((1500..2400).contains(&sorted[1]), "{sorted:?}");
        assert_eq!(counts(Spread::Zipf, 1).len(), 1);
    }
}
