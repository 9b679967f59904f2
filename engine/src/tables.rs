//! The tables of a store: how their keys and records look.
//!
//! Kept true: the bytes of a table's keys sort as what they stand for.
//!
//! | table | key | holds |
//! |---|---|---|
//! | current | key | its newest version; live keys only |
//! | changes | change | what happened to which key, and the version before it |
//! | history | key, change | nothing: the changes of a key, but for those that created it |
//! | leases | lease, key | nothing |
//! | staged | revision | changes of an undecided transaction |
//! | records | name | what the layer above put there; and this store's own state |

use crate::position::{Change, Revision};

/// One of the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Table {
    Current,
    History,
    Changes,
    Leases,
    Staged,
    Records,
}

impl Table {
    pub(crate) const ALL: [Self; 6] = [
        Self::Current,
        Self::History,
        Self::Changes,
        Self::Leases,
        Self::Staged,
        Self::Records,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Current => "current",
            Self::History => "history",
            Self::Changes => "changes",
            Self::Leases => "leases",
            Self::Staged => "staged",
            Self::Records => "records",
        }
    }
}

/// Bytes of a change in a key.
pub(crate) const CHANGE_BYTES: usize = 12;

/// A change, so that bytes sort as changes do. (Revisions are positive.)
pub(crate) fn change_key(change: Change) -> [u8; CHANGE_BYTES] {
    let mut key = [0; CHANGE_BYTES];
    key[..8].copy_from_slice(&change.revision.0.to_be_bytes());
    key[8..].copy_from_slice(&change.sub.to_be_bytes());
    key
}

/// The change that [`change_key`] made `key` of.
pub(crate) fn change_of(key: &[u8]) -> Option<Change> {
    let key: &[u8; CHANGE_BYTES] = key.try_into().ok()?;
    let (revision, sub) = key.split_first_chunk()?;
    Some(Change {
        revision: Revision(i64::from_be_bytes(*revision)),
        sub: u32::from_be_bytes(sub.try_into().ok()?),
    })
}

/// Sets `out` to what the history keys of `key` begin with. A zero byte in
/// the key is followed by 0xff and the key's end is marked by 0x00 0x01, so
/// that no key's bytes begin another's and the order stays.
pub(crate) fn history_prefix(key: &[u8], out: &mut Vec<u8>) {
    out.clear();
    let mut rest = key;
    while let Some(zero) = rest.iter().position(|&byte| byte == 0) {
        out.extend_from_slice(&rest[..=zero]);
        out.push(0xff);
        rest = &rest[zero + 1..];
    }
    out.extend_from_slice(rest);
    out.extend_from_slice(&[0, 1]);
}

/// Sets `out` to the history key of `key` at `change`.
pub(crate) fn history_key(key: &[u8], change: Change, out: &mut Vec<u8>) {
    history_prefix(key, out);
    out.extend_from_slice(&change_key(change));
}

/// Sets `key` to the key that a history key is about, and returns the change.
pub(crate) fn history_parts(history: &[u8], key: &mut Vec<u8>) -> Option<Change> {
    key.clear();
    let (mut rest, change) = history.split_at_checked(history.len().checked_sub(CHANGE_BYTES)?)?;
    rest = rest.strip_suffix(&[0, 1])?;
    while let Some(zero) = rest.iter().position(|&byte| byte == 0) {
        key.extend_from_slice(&rest[..=zero]);
        rest = rest[zero + 1..].strip_prefix(&[0xff])?;
    }
    key.extend_from_slice(rest);
    change_of(change)
}

/// What happened to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It was not there and now is.
    Create,
    /// It has another version.
    Update,
    /// It was there and now is not.
    Delete,
}

impl Kind {
    pub(crate) fn byte(self) -> u8 {
        match self {
            Self::Create => 0,
            Self::Update => 1,
            Self::Delete => 2,
        }
    }

    pub(crate) fn of_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            0 => Self::Create,
            1 => Self::Update,
            2 => Self::Delete,
            _ => return None,
        })
    }
}

/// Key of the leases table.
pub(crate) fn lease_key(lease: i64, key: &[u8]) -> Vec<u8> {
    [&lease.to_be_bytes(), key].concat()
}

/// Name of the record that holds the store's own state.
pub(crate) const STATE_NAME: &[u8] = &[0];

/// Name under which a record of the layer above is stored.
pub(crate) fn record_key(name: &[u8]) -> Vec<u8> {
    [&[1], name].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn history_keys_sort_by_key_then_change_and_come_apart_again() {
        let keys: [&[u8]; 8] = [
            b"", b"\0", b"\0\0", b"\0\x01", b"\0\xff", b"a", b"a\0", b"a\0b",
        ];
        let mut last = Vec::new();
        for key in keys {
            for revision in [1, 256, i64::MAX >> 2] {
                let change = Change {
                    revision: Revision(revision),
                    sub: 7,
                };
                let (mut encoded, mut decoded) = (Vec::new(), Vec::new());
                history_key(key, change, &mut encoded);
                assert!(last < encoded, "{key:?} at {revision}");
                assert_eq!(history_parts(&encoded, &mut decoded), Some(change));
                assert_eq!(decoded, key);
                last = encoded;
            }
        }
    }
}
