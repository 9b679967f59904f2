//! What a request changes: the only thing that a log entry carries of it.
//!
//! Kept true: applying the same effects at the same revision to the same
//! state gives the same state, so versions and create revisions are not here.

use bytes::Bytes;

use crate::version::{number, put_number};

/// One change of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The key has this value and lease from now on.
    Put {
        /// The key.
        key: Bytes,
        /// Its new value.
        value: Bytes,
        /// The lease it hangs on; 0 for none.
        lease: i64,
    },
    /// The key, which is there, is gone from now on.
    Delete {
        /// The key.
        key: Bytes,
    },
}

impl Effect {
    /// The key that is changed.
    #[must_use]
    pub fn key(&self) -> &Bytes {
        match self {
            Self::Put { key, .. } | Self::Delete { key } => key,
        }
    }
}

/// The changes of one request, in order; all of one revision.
pub type Effects = Vec<Effect>;

const PUT: u8 = 0;
const PUT_LEASED: u8 = 1;
const DELETE: u8 = 2;

/// The part that one range has of a transaction across ranges, while it is
/// not decided.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Staged {
    /// Its changes, in order.
    pub effects: Effects,
    /// The place of each among all changes of the transaction, ascending.
    pub subs: Vec<u32>,
}

/// Whether these can be the places of so many changes. (The last one is not
/// used, so that there is always one behind.)
pub(crate) fn are_places(subs: &[u32], effects: usize) -> bool {
    subs.len() == effects
        && subs.is_sorted_by(|a, b| a < b)
        && subs.last().is_none_or(|last| *last < u32::MAX)
}

/// What is stored of a transaction that is not decided.
pub(crate) fn encode(effects: &[Effect], subs: &[u32]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let out = &mut bytes;
    put_number(out, effects.len() as u64);
    for (effect, sub) in effects.iter().zip(subs) {
        put_number(out, u64::from(*sub));
        match effect {
            Effect::Put { key, value, lease } => {
                out.push(if *lease == 0 { PUT } else { PUT_LEASED });
                put_bytes(out, key);
                put_bytes(out, value);
                if *lease != 0 {
                    out.extend_from_slice(&lease.to_le_bytes());
                }
            }
            Effect::Delete { key } => {
                out.push(DELETE);
                put_bytes(out, key);
            }
        }
    }
    bytes
}

/// What [`encode`] wrote; `None` if it didn't.
pub(crate) fn decode(mut bytes: &[u8]) -> Option<Staged> {
    let count = number(&mut bytes)?;
    let Staged {
        mut effects,
        mut subs,
    } = Staged::default();
    for _ in 0..count {
        subs.push(u32::try_from(number(&mut bytes)?).ok()?);
        let (&kind, rest) = bytes.split_first()?;
        bytes = rest;
        let key = take_bytes(&mut bytes)?;
        effects.push(match kind {
            PUT | PUT_LEASED => {
                let value = take_bytes(&mut bytes)?;
                let mut lease = 0;
                if kind == PUT_LEASED {
                    let (number, rest) = bytes.split_first_chunk()?;
                    lease = i64::from_le_bytes(*number);
                    bytes = rest;
                }
                Effect::Put { key, value, lease }
            }
            DELETE => Effect::Delete { key },
            _ => return None,
        });
    }
    let good = bytes.is_empty() && are_places(&subs, effects.len());
    good.then_some(Staged { effects, subs })
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_number(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn take_bytes(from: &mut &[u8]) -> Option<Bytes> {
    let count = number(from)?;
    let (bytes, rest) = from.split_at_checked(usize::try_from(count).ok()?)?;
    *from = rest;
    Some(Bytes::copy_from_slice(bytes))
}
