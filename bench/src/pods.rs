//! What trees are measured with: keys as Kubernetes names its pods, and
//! values that nobody could squeeze.
//!
//! Kept true: keys sort by their number, and a seed decides everything else.

use bytes::Bytes;
use pontoon_engine::KeyRange;
use pontoon_wal::disk::sim::Rng;

/// Names of this many pods in a thousand namespaces.
#[derive(Clone, Copy, Debug)]
pub struct Pods {
    /// Number of keys.
    pub count: u64,
}

impl Pods {
    /// Key `number`, from 0 to below the count.
    #[must_use]
    pub fn key(&self, number: u64) -> Bytes {
        let namespace = number * 1000 / self.count;
        format!("/registry/pods/namespace-{namespace:03}/pod-{number:010}").into()
    }

    /// All pods, and nothing else.
    #[must_use]
    pub fn all() -> KeyRange {
        KeyRange::new(&b"/registry/pods/"[..], &b"/registry/pods0"[..])
    }

    /// All numbers, in no order.
    pub fn shuffled(&self, rng: &mut Rng) -> Vec<u64> {
        let mut numbers: Vec<u64> = (0..self.count).collect();
        for i in (1..numbers.len()).rev() {
            numbers.swap(i, rng.below(i as u64 + 1) as usize);
        }
        numbers
    }
}

/// A put, with the revision that it has.
#[derive(Clone, Debug)]
pub struct Put {
    /// The key.
    pub key: Bytes,
    /// Its new value.
    pub value: Bytes,
    /// The revision.
    pub revision: i64,
}

/// Makes puts, each with the next revision.
pub struct Puts {
    /// The keys.
    pub pods: Pods,
    /// Decides about keys and values.
    pub rng: Rng,
    /// Of the last put; 1 before the first.
    pub revision: i64,
    /// Bytes of a value.
    pub value_bytes: usize,
}

impl Puts {
    /// Puts to a store without any.
    #[must_use]
    pub fn new(pods: Pods, value_bytes: usize, seed: u64) -> Self {
        Self {
            pods,
            rng: Rng::new(seed),
            revision: 1,
            value_bytes,
        }
    }

    /// The next put, of key `number`.
    pub fn of(&mut self, number: u64) -> Put {
        self.revision += 1;
        Put {
            key: self.pods.key(number),
            value: value(self.value_bytes, &mut self.rng),
            revision: self.revision,
        }
    }

    /// The next puts, of any keys.
    pub fn any(&mut self, count: usize) -> Vec<Put> {
        (0..count)
            .map(|_| {
                let number = self.rng.below(self.pods.count);
                self.of(number)
            })
            .collect()
    }
}

/// A value of random bytes.
pub fn value(bytes: usize, rng: &mut Rng) -> Bytes {
    let mut value = Vec::with_capacity(bytes + 8);
    while value.len() < bytes {
        value.extend_from_slice(&rng.next_u64().to_le_bytes());
    }
    value.truncate(bytes);
    value.into()
}

/// Looks at every byte, as cheaply as can be.
#[must_use]
pub fn touch(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks();
    let sum = words.iter().fold(0u64, |sum, word| {
        sum.wrapping_add(u64::from_le_bytes(*word))
    });
    rest.iter()
        .fold(sum, |sum, byte| sum.wrapping_add(u64::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_sort_by_number_and_lie_in_their_range() {
        for count in [1, 999, 100_000, 10_000_000] {
            let pods = Pods { count };
            let step = (count / 1000).max(1);
            let keys: Vec<_> = (0..count)
                .step_by(step as usize)
                .map(|number| pods.key(number))
                .collect();
            assert!(keys.is_sorted_by(|a, b| a < b));
            assert!(keys.iter().all(|key| Pods::all().contains(key)));
        }
    }

    #[test]
    fn every_byte_counts() {
        let mut bytes = [7; 21];
        let sum = touch(&bytes);
        for i in 0..bytes.len() {
            bytes[i] = 8;
            assert_ne!(touch(&bytes), sum);
            bytes[i] = 7;
        }
    }
}
