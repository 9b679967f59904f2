//! Requests that are encoded once and then only patched.
//!
//! Kept true: what is sent is what the generated types would have encoded,
//! with other keys, values or revisions of the same length.

use bytes::Bytes;
use prost::Message;
use prost::encoding::encode_varint;

use super::messages::prefix;
use super::values::ValueSizes;

/// Digits of a key's number.
const DIGITS: usize = 10;
/// Stands for them in a request that is to become a template.
const KEY_MARK: [u8; DIGITS] = [0xff; DIGITS];
/// Stands for a revision. It needs as many bytes as any that is patched in.
pub const REVISION_MARK: i64 = 0x1234_5678_9abc_def0;
const REVISION_BYTES: usize = 9;
/// Bytes at the start of a value that tell when it was sent.
pub const STAMP_BYTES: usize = 8;

/// The keys of a load: numbers behind a prefix, all of the same length.
#[derive(Clone, Debug)]
pub struct Keys {
    prefix: String,
    /// How many there are.
    pub count: u64,
    /// How large their values are.
    pub values: ValueSizes,
}

impl Keys {
    /// Keys with values of another size have another prefix, so that what an
    /// earlier load left is either right or out of the way.
    #[must_use]
    pub fn new(prefix: &str, count: u64, values: ValueSizes) -> Self {
        Self {
            prefix: format!("{prefix}{values}/"),
            count,
            values,
        }
    }

    /// The key with a number; that of `count` is the end of all.
    #[must_use]
    pub fn key(&self, number: u64) -> Bytes {
        format!("{}{number:0DIGITS$}", self.prefix).into()
    }

    /// Stands for a key in a request that is to become a template.
    #[must_use]
    pub fn mark(&self) -> Bytes {
        [self.prefix.as_bytes(), &KEY_MARK].concat().into()
    }
}

/// An encoded request with places to patch.
#[derive(Clone, Debug)]
pub struct Template {
    bytes: Vec<u8>,
    keys: Vec<usize>,
    revisions: Vec<usize>,
    stamps: Vec<usize>,
}

impl Template {
    /// Of a request with marks, and the value that it holds, if any.
    pub fn new(request: &impl Message, value: &[u8]) -> Self {
        let message = request.encode_to_vec();
        let mut bytes = prefix(message.len()).to_vec();
        bytes.extend(message);
        let mut revision = Vec::new();
        encode_varint(REVISION_MARK.cast_unsigned(), &mut revision);
        assert_eq!(revision.len(), REVISION_BYTES);
        let stamps = match value.len() >= STAMP_BYTES {
            true => places(&bytes, value),
            false => Vec::new(),
        };
        Self {
            keys: places(&bytes, &KEY_MARK),
            revisions: places(&bytes, &revision),
            stamps,
            bytes,
        }
    }

    /// The request for a key, with its prefix.
    #[must_use]
    pub fn fill(&self, key: u64, revision: i64, stamp: u64) -> Bytes {
        let mut bytes = self.bytes.clone();
        for at in &self.keys {
            write_digits(&mut bytes[*at..*at + DIGITS], key);
        }
        for at in &self.revisions {
            write_revision(&mut bytes[*at..*at + REVISION_BYTES], revision);
        }
        for at in &self.stamps {
            bytes[*at..*at + STAMP_BYTES].copy_from_slice(&stamp.to_be_bytes());
        }
        bytes.into()
    }
}

/// A value that tells when it is sent, if it is long enough to tell.
#[must_use]
pub fn with_stamp(value: Bytes, stamp: u64) -> Bytes {
    let mut bytes = Vec::from(value);
    if let Some(place) = bytes.first_chunk_mut::<STAMP_BYTES>() {
        *place = stamp.to_be_bytes();
    }
    bytes.into()
}

/// When a value was sent, if it is long enough to tell.
#[must_use]
pub fn stamp(value: &[u8]) -> Option<u64> {
    value.first_chunk().map(|bytes| u64::from_be_bytes(*bytes))
}

fn places(bytes: &[u8], mark: &[u8]) -> Vec<usize> {
    let windows = bytes.windows(mark.len()).enumerate();
    windows
        .filter(|(_, window)| *window == mark)
        .map(|(at, _)| at)
        .collect()
}

fn write_digits(into: &mut [u8], mut number: u64) {
    for digit in into.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

/// Protobuf's numbers may be longer than they need to be.
fn write_revision(into: &mut [u8], revision: i64) {
    let mut rest = revision;
    let last = into.len() - 1;
    for (at, byte) in into.iter_mut().enumerate() {
        let more = if at < last { 0x80 } else { 0 };
        *byte = (rest & 0x7f) as u8 | more;
        rest >>= 7;
    }
}

#[cfg(test)]
mod tests {
    use pontoon_api::etcdserverpb::compare::TargetUnion;
    use pontoon_api::etcdserverpb::request_op::Request;
    use pontoon_api::etcdserverpb::{Compare, PutRequest, RequestOp, TxnRequest};

    use super::super::messages::PREFIX_BYTES;
    use super::*;

    const VALUE: &[u8] = b"STAMP...and the rest";

    fn txn(key: Bytes, revision: i64, value: Bytes) -> TxnRequest {
        TxnRequest {
            compare: vec![Compare {
                key: key.clone(),
                target_union: Some(TargetUnion::ModRevision(revision)),
                ..Default::default()
            }],
            success: vec![RequestOp {
                request: Some(Request::RequestPut(PutRequest {
                    key,
                    value,
                    ..Default::default()
                })),
            }],
            failure: vec![],
        }
    }

    #[test]
    fn a_filled_template_is_the_request() {
        let keys = Keys::new("/p/", 1000, ValueSizes::Fixed(VALUE.len()));
        let value = Bytes::from_static(VALUE);
        let template = Template::new(&txn(keys.mark(), REVISION_MARK, value), VALUE);
        for revision in [0, 1, 127, 128, 1 << 40, i64::MAX] {
            let bytes = template.fill(987, revision, u64::from_be_bytes(*b"12345678"));
            assert_eq!(bytes[..PREFIX_BYTES], prefix(bytes.len() - PREFIX_BYTES));
            let read = TxnRequest::decode(&bytes[PREFIX_BYTES..]).unwrap();
            let value = Bytes::from_static(b"12345678and the rest");
            assert_eq!(stamp(&value), Some(u64::from_be_bytes(*b"12345678")));
            assert_eq!(read, txn("/p/20/0000000987".into(), revision, value));
        }
        assert_eq!(keys.key(987), "/p/20/0000000987");
    }

    #[test]
    fn short_values_stay_as_they_are() {
        let keys = Keys::new("", 1, ValueSizes::Fixed(3));
        let request = PutRequest {
            key: keys.mark(),
            value: "abc".into(),
            ..Default::default()
        };
        let bytes = Template::new(&request, b"abc").fill(1, 0, u64::MAX);
        let read = PutRequest::decode(&bytes[PREFIX_BYTES..]).unwrap();
        assert_eq!(read.value, "abc");
        assert_eq!(stamp(b"abc"), None);
    }
}
