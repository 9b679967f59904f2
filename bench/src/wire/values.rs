//! How large values are.
//!
//! Kept true: a size is drawn from a seed alone, so two loads with one seed
//! write values of the same sizes.

use std::fmt;

use bytes::Bytes;
use rand::rngs::SmallRng;
use rand::{Rng, RngExt};

/// Sizes of the values of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueSizes {
    /// All of them.
    Fixed(usize),
    /// Evenly from the one to the other.
    Uniform(usize, usize),
    /// Several kinds of values, each so often.
    Mix(&'static Mix),
}

/// Values of several kinds.
#[derive(Debug, PartialEq, Eq)]
pub struct Mix {
    /// As it is called on the command line.
    pub name: &'static str,
    /// What it stands for.
    pub what: &'static str,
    /// How often of a hundred, and from which size to which.
    parts: &'static [(u32, usize, usize)],
}

/// The mixes that have names.
pub const MIXES: [Mix; 3] = [
    Mix {
        name: "k8s",
        what: "a control plane's writes: leases, events, pods, nodes",
        parts: &[
            (55, 300, 500),
            (20, 600, 1000),
            (22, 2048, 8192),
            (3, 10_240, 16_384),
        ],
    },
    Mix {
        name: "config",
        what: "settings: mostly below 256 B, some files of up to 4 KiB",
        parts: &[(80, 16, 256), (20, 256, 4096)],
    },
    Mix {
        name: "documents",
        what: "1 to 16 KiB, one of ten up to 256 KiB",
        parts: &[(90, 1024, 16_384), (10, 65_536, 262_144)],
    },
];

impl ValueSizes {
    /// The size of the next value.
    pub fn draw(self, rng: &mut SmallRng) -> usize {
        match self {
            Self::Fixed(bytes) => bytes,
            Self::Uniform(least, most) => rng.random_range(least..=most),
            Self::Mix(mix) => {
                let mut at = rng.random_range(0..100);
                for (share, least, most) in mix.parts {
                    if at < *share {
                        return rng.random_range(*least..=*most);
                    }
                    at -= share;
                }
                unreachable!("the shares are a hundred, which a test adds up")
            }
        }
    }

    /// The next value, which nothing can compress.
    pub fn value(self, rng: &mut SmallRng) -> Bytes {
        let mut value = vec![0; self.draw(rng)];
        rng.fill_bytes(&mut value);
        value.into()
    }

    /// The largest.
    #[must_use]
    pub fn bytes_max(self) -> usize {
        match self {
            Self::Fixed(bytes) => bytes,
            Self::Uniform(_, most) => most,
            Self::Mix(mix) => mix.parts.iter().map(|part| part.2).max().unwrap_or(0),
        }
    }

    /// Whether all have one size.
    #[must_use]
    pub fn is_fixed(self) -> bool {
        matches!(self, Self::Fixed(_))
    }
}

impl fmt::Display for ValueSizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(bytes) => write!(f, "{bytes}"),
            Self::Uniform(least, most) => write!(f, "{least}..{most}"),
            Self::Mix(mix) => f.write_str(mix.name),
        }
    }
}

impl std::str::FromStr for ValueSizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(mix) = MIXES.iter().find(|mix| mix.name == text) {
            return Ok(Self::Mix(mix));
        }
        let bytes = |text: &str| {
            let names = MIXES.map(|mix| mix.name).join(", ");
            text.parse::<usize>()
                .map_err(|_| format!("say it as 256, 100..4000 or one of {names}"))
        };
        match text.split_once("..") {
            None => Ok(Self::Fixed(bytes(text)?)),
            Some((least, most)) => match (bytes(least)?, bytes(most)?) {
                (least, most) if least <= most => Ok(Self::Uniform(least, most)),
                _ => Err("the smaller size comes first".to_owned()),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn sizes_are_as_they_are_called() {
        let mut rng = SmallRng::seed_from_u64(1);
        for (text, least, most) in [
            ("256", 256, 256),
            ("10..20", 10, 20),
            ("k8s", 300, 16_384),
            ("config", 16, 4096),
            ("documents", 1024, 262_144),
        ] {
            let sizes: ValueSizes = text.parse().unwrap();
            assert_eq!(sizes.to_string(), text);
            assert_eq!(sizes.bytes_max(), most);
            for _ in 0..500 {
                assert!((least..=most).contains(&sizes.draw(&mut rng)));
            }
        }
        for mix in &MIXES {
            assert_eq!(mix.parts.iter().map(|part| part.0).sum::<u32>(), 100);
        }
        for bad in ["", "many", "20..10", "1..", "-1"] {
            assert!(bad.parse::<ValueSizes>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_seed_makes_the_same_values() {
        let values = |seed| {
            let mut rng = SmallRng::seed_from_u64(seed);
            let sizes: ValueSizes = "1..100".parse().unwrap();
            (0..20).map(|_| sizes.value(&mut rng)).collect::<Vec<_>>()
        };
        assert_eq!(values(3), values(3));
        assert_ne!(values(3), values(4));
    }
}
