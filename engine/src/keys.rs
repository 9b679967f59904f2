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

    /// Whether `key` is in the range.
    #[must_use]
    pub fn contains(&self, key: &[u8]) -> bool {
        if self.is_one() {
            return self.key == key;
        }
        self.key.as_ref() <= key && self.upper().is_none_or(|end| key < end)
    }
}
