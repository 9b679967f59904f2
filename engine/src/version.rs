//! Versions of keys, as `current` and `changes` hold them.
//!
//! Kept true: the same version has the same bytes in both tables, so that
//! superseding one moves it without looking inside, and the same hash
//! wherever its value lies.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::error::EngineError;
use crate::node::{Item, RunRef};
use crate::pages::Pages;
use crate::position::{Change, Revision};
use crate::request::KvRef;
use crate::tables::Kind;

/// Versions whose key and content are longer keep their value elsewhere, so
/// that a page holds two of them.
const INLINE_BYTES_MAX: usize = 1900;
/// Values up to this length stay with their key however long the key is.
const SMALL_BYTES: usize = 64;

const LEASED: u8 = 1;

/// What is known of a version beside its key and its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) change: Change,
    pub(crate) create: Revision,
    pub(crate) version: i64,
    pub(crate) lease: i64,
}

/// Whether a value of `value` bytes lies in pages of its own.
pub(crate) fn lies_apart(key: usize, value: usize) -> bool {
    value > SMALL_BYTES && key + value > INLINE_BYTES_MAX
}

impl Head {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.push(if self.lease != 0 { LEASED } else { 0 });
        put_number(out, self.change.revision.0 as u64);
        put_number(out, u64::from(self.change.sub));
        put_number(out, (self.change.revision.0 - self.create.0) as u64);
        put_number(out, self.version as u64);
        if self.lease != 0 {
            out.extend_from_slice(&self.lease.to_le_bytes());
        }
    }

    /// The head at the start of `bytes`, and what follows.
    pub(crate) fn decode(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (&flags, mut rest) = bytes.split_first()?;
        let revision = Revision(number(&mut rest)? as i64);
        let sub = u32::try_from(number(&mut rest)?).ok()?;
        let create = Revision(revision.0.checked_sub(number(&mut rest)? as i64)?);
        let version = number(&mut rest)? as i64;
        let mut lease = 0;
        if flags & LEASED != 0 {
            let (bytes, after) = rest.split_first_chunk()?;
            lease = i64::from_le_bytes(*bytes);
            rest = after;
        }
        let change = Change { revision, sub };
        Some((
            Self {
                change,
                create,
                version,
                lease,
            },
            rest,
        ))
    }
}

/// A version where it lies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Version<'a> {
    pub(crate) head: Head,
    head_bytes: &'a [u8],
    /// The value, or its hash if it lies apart.
    rest: &'a [u8],
    run: Option<RunRef>,
}

impl<'a> Version<'a> {
    pub(crate) fn decode(item: Item<'a>) -> Option<Self> {
        let (head, rest) = Head::decode(item.payload)?;
        if item.run.is_some() && rest.len() != 8 {
            return None;
        }
        Some(Self {
            head,
            head_bytes: &item.payload[..item.payload.len() - rest.len()],
            rest,
            run: item.run,
        })
    }

    pub(crate) fn value(&self, pages: &'a Pages) -> Result<&'a [u8], EngineError> {
        match self.run {
            None => Ok(self.rest),
            Some(run) => pages.value(run),
        }
    }

    fn value_hash(&self) -> u64 {
        match self.run {
            None => xxh3_64(self.rest),
            Some(_) => u64::from_le_bytes(self.rest.try_into().expect("checked by decode")),
        }
    }

    /// What this version adds to the content hash.
    pub(crate) fn hash(&self, key: &[u8]) -> u64 {
        hash(key, self.head_bytes, self.value_hash())
    }

    /// The version as a reader sees it.
    pub(crate) fn kv<'b>(&self, key: &'b [u8], pages: &'b Pages) -> Result<KvRef<'b>, EngineError>
    where
        'a: 'b,
    {
        Ok(KvRef {
            key,
            value: self.value(pages)?,
            create: self.head.create,
            modified: self.head.change.revision,
            version: self.head.version,
            lease: self.head.lease,
        })
    }
}

/// A record of `changes`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChangeRecord<'a> {
    pub(crate) kind: Kind,
    pub(crate) key: &'a [u8],
    /// The version that the change superseded, unless it was swept away.
    pub(crate) before: Option<Version<'a>>,
}

impl<'a> ChangeRecord<'a> {
    /// Sets `out` to what comes before the superseded version.
    pub(crate) fn encode_start(kind: Kind, key: &[u8], out: &mut Vec<u8>) {
        out.clear();
        out.push(kind.byte());
        put_number(out, key.len() as u64);
        out.extend_from_slice(key);
    }

    /// What it adds to the content hash, if it is this change.
    pub(crate) fn hash(&self, change: Change) -> u64 {
        let before = self.before.map_or(0, |before| before.hash(self.key));
        match self.kind {
            Kind::Delete => before.wrapping_add(tombstone_hash(self.key, change)),
            Kind::Create | Kind::Update => before,
        }
    }

    pub(crate) fn decode(item: Item<'a>) -> Option<Self> {
        let (kind, mut rest) = item.payload.split_first()?;
        let key = number(&mut rest)?;
        let (key, before) = rest.split_at_checked(usize::try_from(key).ok()?)?;
        let before = match before.is_empty() {
            true => None,
            false => Some(Version::decode(Item {
                payload: before,
                run: item.run,
            })?),
        };
        Some(Self {
            kind: Kind::of_byte(*kind)?,
            key,
            before,
        })
    }
}

/// What the deletion of a key adds to the content hash.
pub(crate) fn tombstone_hash(key: &[u8], change: Change) -> u64 {
    hash(key, &crate::tables::change_key(change), 0)
}

/// What a version with this head and a value with this hash adds to the content hash.
pub(crate) fn hash(key: &[u8], head: &[u8], value_hash: u64) -> u64 {
    xxh3_64_with_seed(head, xxh3_64_with_seed(key, value_hash))
}

/// What a record of the layer above adds to the hash of records.
pub(crate) fn record_hash(name: &[u8], content: &[u8]) -> u64 {
    xxh3_64_with_seed(name, xxh3_64(content))
}

/// Seven bits a byte, lowest first.
pub(crate) fn put_number(out: &mut Vec<u8>, value: u64) {
    let mut rest = value;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

/// Takes a number off the start of `bytes`.
pub(crate) fn number(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for (i, byte) in bytes.iter().take(10).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * i);
        if byte & 0x80 == 0 {
            *bytes = &bytes[i + 1..];
            return Some(value);
        }
    }
    None
}
