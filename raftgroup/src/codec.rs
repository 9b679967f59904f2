//! How things become bytes, in the log and between nodes.
//!
//! Kept true: what was put is taken as it was; bytes that nobody put are
//! `None`, never a panic; byte strings that are taken share the memory they
//! came in.

use std::collections::BTreeMap;

use bytes::Bytes;
use pontoon_engine::{KeyRange, Revision};

use crate::position::{GroupId, LogIndex, NodeId, Term};

mod requests;

/// Something that is written to the log or sent between nodes.
pub(crate) trait Wire: Sized {
    /// Of what it is made; `docs/format.md` has the same.
    #[cfg_attr(not(test), allow(dead_code, reason = "a test compares it"))]
    const LAYOUT: Layout = Layout::Plain;

    /// Appends it to `out`.
    fn put(&self, out: &mut Vec<u8>);

    /// Takes one off the front of `from`.
    fn take(from: &mut Bytes) -> Option<Self>;

    /// All of it, as bytes.
    fn encode(&self) -> Bytes {
        let mut out = Vec::new();
        self.put(&mut out);
        out.into()
    }

    /// What [`Wire::encode`] made, and nothing behind it.
    fn decode(mut bytes: Bytes) -> Option<Self> {
        let value = Self::take(&mut bytes)?;
        bytes.is_empty().then_some(value)
    }
}

/// Of what something that is written is made.
#[cfg_attr(not(test), allow(dead_code, reason = "a test compares it"))]
pub(crate) enum Layout {
    Plain,
    /// These fields, one after the other.
    Fields(&'static [&'static str]),
    /// A tag, which is one byte, and the fields of the variant that it names.
    Variants(&'static [(u8, &'static str, &'static [&'static str])]),
}

/// Implements [`Wire`] for a struct (its fields in order), a newtype, or an
/// enum (a tag, then the fields of the variant).
macro_rules! wire {
    (struct $name:ty { $($field:ident),* $(,)? }) => {
        impl $crate::codec::Wire for $name {
            const LAYOUT: $crate::codec::Layout =
                $crate::codec::Layout::Fields(&[$(stringify!($field)),*]);

            fn put(&self, out: &mut Vec<u8>) {
                $($crate::codec::Wire::put(&self.$field, out);)*
                let _ = out;
            }

            fn take(from: &mut bytes::Bytes) -> Option<Self> {
                $(let $field = $crate::codec::Wire::take(from)?;)*
                let _ = from;
                Some(Self { $($field),* })
            }
        }
    };
    (newtype $($name:ident),* $(,)?) => {
        $(impl $crate::codec::Wire for $name {
            fn put(&self, out: &mut Vec<u8>) {
                $crate::codec::Wire::put(&self.0, out);
            }

            fn take(from: &mut bytes::Bytes) -> Option<Self> {
                Some(Self($crate::codec::Wire::take(from)?))
            }
        })*
    };
    (enum $name:ident { $($tag:literal => $variant:ident
        $(( $($place:ident),* ))? $({ $($field:ident),* $(,)? })? ),* $(,)? }) => {
        impl $crate::codec::Wire for $name {
            const LAYOUT: $crate::codec::Layout = $crate::codec::Layout::Variants(&[$(
                ($tag, stringify!($variant), &[
                    $($(stringify!($place)),*)?
                    $($(stringify!($field)),*)?
                ]),
            )*]);

            fn put(&self, out: &mut Vec<u8>) {
                match self {
                    $(Self::$variant $(( $($place),* ))? $({ $($field),* })? => {
                        out.push($tag);
                        $($($crate::codec::Wire::put($place, out);)*)?
                        $($($crate::codec::Wire::put($field, out);)*)?
                    })*
                }
            }

            fn take(from: &mut bytes::Bytes) -> Option<Self> {
                match <u8 as $crate::codec::Wire>::take(from)? {
                    $($tag => {
                        $($(let $place = $crate::codec::Wire::take(from)?;)*)?
                        $($(let $field = $crate::codec::Wire::take(from)?;)*)?
                        Some(Self::$variant $(( $($place),* ))? $({ $($field),* })?)
                    })*
                    _ => None,
                }
            }
        }
    };
}
pub(crate) use wire;

wire!(newtype NodeId, GroupId, Term, LogIndex, Revision);

impl Wire for u8 {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(*self);
    }

    fn take(from: &mut Bytes) -> Option<Self> {
        let byte = *from.first()?;
        let _ = from.split_to(1);
        Some(byte)
    }
}

impl Wire for bool {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }

    fn take(from: &mut Bytes) -> Option<Self> {
        match u8::take(from)? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }
}

/// Seven bits at a time, lowest first.
impl Wire for u64 {
    fn put(&self, out: &mut Vec<u8>) {
        let mut rest = *self;
        while rest >= 0x80 {
            out.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        out.push(rest as u8);
    }

    fn take(from: &mut Bytes) -> Option<Self> {
        let mut value = 0;
        for (place, &byte) in from.iter().enumerate().take(10) {
            let bits = u64::from(byte & 0x7f);
            if place == 9 && bits > 1 {
                return None;
            }
            value |= bits << (7 * place);
            if byte < 0x80 {
                let _ = from.split_to(place + 1);
                return Some(value);
            }
        }
        None
    }
}

/// Small numbers of either sign are short.
impl Wire for i64 {
    fn put(&self, out: &mut Vec<u8>) {
        ((*self << 1) ^ (*self >> 63)).cast_unsigned().put(out);
    }

    fn take(from: &mut Bytes) -> Option<Self> {
        let folded = u64::take(from)?;
        Some((folded >> 1).cast_signed() ^ -(folded & 1).cast_signed())
    }
}

impl Wire for u32 {
    fn put(&self, out: &mut Vec<u8>) {
        u64::from(*self).put(out);
    }

    fn take(from: &mut Bytes) -> Option<Self> {
        u64::take(from)?.try_into().ok()
    }
}

impl Wire for Bytes {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u64).put(out);
        out.extend_from_slice(self);
    }

    fn take(from: &mut Bytes) -> Option<Self> {
        let count = usize::try_from(u64::take(from)?).ok()?;
        (count <= from.len()).then(|| from.split_to(count))
    }
}

impl Wire for String {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u64).put(out);
        out.extend_from_slice(self.as_bytes());
    }

    fn take(from: &mut Bytes) -> Option<Self> {
        Self::from_utf8(Bytes::take(from)?.into()).ok()
    }
}

impl<T: Wire> Wire for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }

    fn take(from: &mut Bytes) -> Option<Self> {
        match bool::take(from)? {
            false => Some(None),
            true => T::take(from).map(Some),
        }
    }
}

impl<T: Wire> Wire for Vec<T> {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u64).put(out);
        for value in self {
            value.put(out);
        }
    }

    fn take(from: &mut Bytes) -> Option<Self> {
        let count = u64::take(from)?;
        // Each takes a byte at least: a count that lies reserves nothing.
        let mut values = Self::with_capacity(usize::try_from(count).ok()?.min(from.len()));
        for _ in 0..count {
            values.push(T::take(from)?);
        }
        Some(values)
    }
}

impl<K: Wire + Ord, V: Wire> Wire for BTreeMap<K, V> {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u64).put(out);
        for (key, value) in self {
            key.put(out);
            value.put(out);
        }
    }

    fn take(from: &mut Bytes) -> Option<Self> {
        Some(Vec::take(from)?.into_iter().collect())
    }
}

impl<T: Wire, E: Wire> Wire for Result<T, E> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_ok().put(out);
        match self {
            Ok(value) => value.put(out),
            Err(error) => error.put(out),
        }
    }

    fn take(from: &mut Bytes) -> Option<Self> {
        match bool::take(from)? {
            true => T::take(from).map(Ok),
            false => E::take(from).map(Err),
        }
    }
}

impl<A: Wire, B: Wire> Wire for (A, B) {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
        self.1.put(out);
    }

    fn take(from: &mut Bytes) -> Option<Self> {
        Some((A::take(from)?, B::take(from)?))
    }
}

wire!(struct KeyRange { key, end });

#[cfg(test)]
mod tests {
    use super::*;

    fn survives<T: Wire + PartialEq + std::fmt::Debug>(value: T) {
        let bytes = value.encode();
        assert_eq!(T::decode(bytes.clone()).as_ref(), Some(&value));
        for cut in 0..bytes.len() {
            assert_eq!(
                T::decode(bytes.slice(..cut)),
                None,
                "{value:?} cut at {cut}"
            );
        }
    }

    #[test]
    fn what_was_put_is_taken_and_what_was_cut_is_not() {
        for number in [0, 1, 0x7f, 0x80, 1 << 35, u64::MAX - 1, u64::MAX] {
            survives(number);
            survives(number.cast_signed());
        }
        survives(vec![
            (Bytes::from_static(b"key"), Some(true)),
            (Bytes::new(), None),
        ]);
        survives("words".to_owned());
        survives(KeyRange::all());
    }

    #[test]
    fn a_number_of_more_than_64_bits_is_refused() {
        assert_eq!(u64::decode(Bytes::from_static(&[0xff; 11])), None);
        let mut wide = [0xff; 10];
        wide[9] = 2;
        assert_eq!(u64::decode(Bytes::copy_from_slice(&wide)), None);
    }

    #[test]
    fn a_count_that_lies_takes_no_memory() {
        let mut out = Vec::new();
        u64::MAX.put(&mut out);
        assert_eq!(Vec::<Bytes>::decode(out.into()), None);
    }
}
