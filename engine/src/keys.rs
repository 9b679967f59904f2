//! Ranges of keys, in etcd's forms.

use std::ops::{Bound, RangeBounds};

use bytes::Bytes;

/// `[key, end)`, or the single `key`, or everything from `key` on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KeyRange {
    /// First key.
    pub key: Bytes,
    /// Empty: just `key`. A single zero byte: all keys from `key` on. Else
    /// the first key that is not in the range.
    pub end: Bytes,
}

impl KeyRange {
    /// Just this key.
    pub fn one(key: impl Into<Bytes>) -> Self {
        Self {
            key: key.into(),
            end: Bytes::new(),
        }
    }

    /// From `key` up to, not including, `end`.
    pub fn new(key: impl Into<Bytes>, end: impl Into<Bytes>) -> Self {
        Self {
            key: key.into(),
            end: end.into(),
        }
    }

    /// Every key.
    #[must_use]
    pub fn all() -> Self {
        Self::new(&b"\0"[..], &b"\0"[..])
    }

    /// Whether it is one key and not a range.
    #[must_use]
    pub fn is_one(&self) -> bool {
        self.end.is_empty()
    }

    /// The first key that is not in the range, if there is one and this is a range.
    #[must_use]
    pub fn upper(&self) -> Option<&[u8]> {
        (self.end.as_ref() != b"\0").then_some(self.end.as_ref())
    }

    /// The same for an ordered map; `None` if no key can be in the range.
    #[must_use]
    pub fn bounds(&self) -> Option<impl RangeBounds<[u8]>> {
        let key = self.key.as_ref();
        let end = match self.upper() {
            _ if self.is_one() => Bound::Included(key),
            None => Bound::Unbounded,
            Some(end) if key < end => Bound::Excluded(end),
            Some(_) => return None,
        };
        Some((Bound::Included(key), end))
    }

    /// Whether some key can be in both.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        let begins_in = |one: &Self, two: &Self| two.contains(&one.key) && !one.is_empty();
        !other.is_empty() && (begins_in(self, other) || begins_in(other, self))
    }

    /// Whether no key can be in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bounds().is_none()
    }

    /// The first key behind all of the range, if there is one.
    pub(crate) fn behind(&self) -> Option<Bytes> {
        match self.is_one() {
            true => Some([&self.key[..], &[0]].concat().into()),
            false => self.upper().map(Bytes::copy_from_slice),
        }
    }

    /// Whether everything in `other` is in this range.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        let reaches = match (self.behind(), other.behind()) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(own), Some(other)) => other <= own,
        };
        self.key <= other.key && reaches
    }

    /// What is left if `inner`, which it covers, is cut out: before it, and
    /// behind it.
    pub(crate) fn without(&self, inner: &Self) -> Vec<Self> {
        let mut left = Vec::new();
        // (No key is below a single zero byte.)
        if self.key < inner.key && inner.key.as_ref() != b"\0" {
            left.push(Self::new(self.key.clone(), inner.key.clone()));
        }
        let end = self.behind();
        if let Some(behind) = inner.behind()
            && end.as_ref().is_none_or(|end| behind < *end)
        {
            left.push(Self::new(
                behind,
                end.unwrap_or_else(|| Bytes::from_static(b"\0")),
            ));
        }
        left
    }

    /// Whether `key` is in the range.
    #[must_use]
    pub fn contains(&self, key: &[u8]) -> bool {
        if self.is_one() {
            return self.key == key;
        }
        self.key.as_ref() <= key && self.upper().is_none_or(|end| key < end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_cut_out_and_what_is_left_are_the_whole() {
        let range = |key: &'static str, end: &'static str| KeyRange::new(key, end);
        let ranges = [
            KeyRange::all(),
            range("b", "\0"),
            range("\0", "c"),
            range("b", "c"),
            KeyRange::one("b"),
            KeyRange::one("bb"),
            range("a", "d"),
        ];
        let keys = [
            "\0", "a", "az", "b", "b\0", "bb", "bb\0", "c", "d", "\u{7f}",
        ];
        for (whole, inner) in ranges
            .iter()
            .flat_map(|a| ranges.iter().map(move |b| (a, b)))
        {
            let covered = keys.iter().all(|key| {
                let key = key.as_bytes();
                whole.contains(key) || !inner.contains(key)
            });
            assert_eq!(whole.covers(inner), covered, "{whole:?} {inner:?}");
            if !covered {
                continue;
            }
            let left = whole.without(inner);
            for key in keys.map(str::as_bytes) {
                let parts = left.iter().chain([inner]);
                let has = parts.filter(|part| part.contains(key)).count();
                assert_eq!(has, usize::from(whole.contains(key)), "{whole:?} {inner:?}");
            }
        }
    }
}
