//! Reads answers no further than is needed to check them.

use super::failure::Failure;

/// What begins the kind of an event.
const KIND_TAG: u8 = 0x08;

const MALFORMED: Failure = Failure::Answer("malformed");

/// What is known of a `RangeResponse`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RangeAnswer {
    /// Keys in it.
    pub kvs: u64,
    /// Keys in the range.
    pub count: u64,
    /// Of the last key in it, 0 if there is none.
    pub mod_revision: i64,
}

impl RangeAnswer {
    /// Of an encoded response.
    pub fn read(message: &[u8]) -> Result<Self, Failure> {
        let mut answer = Self::default();
        let mut last = &[][..];
        for field in Fields(message) {
            match field? {
                (2, Value::Bytes(kv)) => {
                    answer.kvs += 1;
                    last = kv;
                }
                (4, Value::Number(count)) => answer.count = count,
                _ => {}
            }
        }
        answer.mod_revision = number(last, 3)?.cast_signed();
        Ok(answer)
    }
}

/// What is known of a `TxnResponse` of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxnAnswer {
    /// The comparison held, and this is the revision it made.
    Succeeded(i64),
    /// It did not; what the range of one key found.
    Failed(RangeAnswer),
}

impl TxnAnswer {
    /// Of an encoded response whose failure is a range.
    pub fn read(message: &[u8]) -> Result<Self, Failure> {
        if number(message, 2)? == 1 {
            return Ok(Self::Succeeded(revision(message)?));
        }
        let range = bytes(bytes(message, 3)?, 1)?;
        Ok(Self::Failed(RangeAnswer::read(range)?))
    }
}

/// The revision in the header that most answers have.
pub fn revision(message: &[u8]) -> Result<i64, Failure> {
    Ok(number(bytes(message, 1)?, 3)?.cast_signed())
}

/// The lease in the answer to a grant.
pub fn lease(message: &[u8]) -> Result<i64, Failure> {
    Ok(number(message, 2)?.cast_signed())
}

/// How long a lease lives that was kept alive; 0 if it has ended.
pub fn lease_ttl(message: &[u8]) -> Result<i64, Failure> {
    Ok(number(message, 3)?.cast_signed())
}

/// The last key in a `RangeResponse`, empty if there is none.
pub fn last_key(message: &[u8]) -> Result<&[u8], Failure> {
    let mut last = &[][..];
    for field in Fields(message) {
        if let (2, Value::Bytes(kv)) = field? {
            last = kv;
        }
    }
    bytes(last, 1)
}

/// What is known of a `WatchResponse`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WatchAnswer<'a> {
    /// Whether the watcher was made with it.
    pub created: bool,
    /// Whether it was ended with it.
    pub canceled: bool,
    /// How many events.
    pub events: u64,
    /// How many of them are of keys that were deleted.
    pub deletes: u64,
    /// The lowest revision that can still be watched, if that is why it ended.
    pub compact_revision: i64,
    /// Of the first event, 0 if there is none.
    pub first_revision: i64,
    /// Of the last event, 0 if there is none.
    pub mod_revision: i64,
    /// The value of the first event, empty if there is none.
    pub first_value: &'a [u8],
}

impl<'a> WatchAnswer<'a> {
    /// Of an encoded response.
    pub fn read(message: &'a [u8]) -> Result<Self, Failure> {
        let mut answer = Self::default();
        let (mut first, mut last) = (None, &[][..]);
        for field in Fields(message) {
            match field? {
                (3, Value::Number(created)) => answer.created = created != 0,
                (4, Value::Number(canceled)) => answer.canceled = canceled != 0,
                (5, Value::Number(revision)) => answer.compact_revision = revision.cast_signed(),
                (11, Value::Bytes(event)) => {
                    answer.events += 1;
                    // Its kind comes first, and is left out for puts.
                    answer.deletes += u64::from(event.first() == Some(&KIND_TAG));
                    first.get_or_insert(event);
                    last = event;
                }
                _ => {}
            }
        }
        answer.mod_revision = number(bytes(last, 2)?, 3)?.cast_signed();
        let first = bytes(first.unwrap_or_default(), 2)?;
        answer.first_revision = number(first, 3)?.cast_signed();
        answer.first_value = bytes(first, 5)?;
        Ok(answer)
    }
}

/// The keys in a `WatchResponse` that were deleted.
pub fn deleted_keys(message: &[u8]) -> impl Iterator<Item = Result<&[u8], Failure>> {
    Fields(message).filter_map(|field| match field {
        Ok((11, Value::Bytes(event))) if event.first() == Some(&KIND_TAG) => {
            Some(bytes(event, 2).and_then(|kv| bytes(kv, 1)))
        }
        Ok(_) => None,
        Err(failure) => Some(Err(failure)),
    })
}

/// The number that a field has, 0 if it is missing.
fn number(message: &[u8], wanted: u64) -> Result<u64, Failure> {
    for field in Fields(message) {
        if let (number, Value::Number(value)) = field?
            && number == wanted
        {
            return Ok(value);
        }
    }
    Ok(0)
}

/// The bytes that a field has at its first place, none if it is missing.
fn bytes(message: &[u8], wanted: u64) -> Result<&[u8], Failure> {
    for field in Fields(message) {
        if let (number, Value::Bytes(value)) = field?
            && number == wanted
        {
            return Ok(value);
        }
    }
    Ok(&[])
}

enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// The fields of a message, by number.
struct Fields<'a>(&'a [u8]);

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, Value<'a>), Failure>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_none() {
            self.0 = &[];
        }
        Some(field.ok_or(MALFORMED))
    }
}

impl<'a> Fields<'a> {
    fn field(&mut self) -> Option<(u64, Value<'a>)> {
        let tag = self.varint()?;
        let value = match tag & 7 {
            0 => Value::Number(self.varint()?),
            2 => {
                let length = usize::try_from(self.varint()?).ok()?;
                let (value, rest) = self.0.split_at_checked(length)?;
                self.0 = rest;
                Value::Bytes(value)
            }
            // The API has no fields of other kinds.
            _ => return None,
        };
        Some((tag >> 3, value))
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for at in 0..10 {
            let byte = *self.0.get(at)?;
            value |= u64::from(byte & 0x7f) << (7 * at);
            if byte < 0x80 {
                self.0 = &self.0[at + 1..];
                return Some(value);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use pontoon_api::etcdserverpb::response_op::Response;
    use pontoon_api::etcdserverpb::{
        RangeResponse, ResponseHeader, ResponseOp, TxnResponse, WatchResponse,
    };
    use pontoon_api::mvccpb::event::EventType;
    use pontoon_api::mvccpb::{Event, KeyValue};
    use prost::Message;

    use super::*;

    fn header(revision: i64) -> Option<ResponseHeader> {
        Some(ResponseHeader {
            cluster_id: u64::MAX,
            member_id: 300,
            revision,
            raft_term: 2,
        })
    }

    fn kv(mod_revision: i64) -> KeyValue {
        KeyValue {
            key: "key".into(),
            create_revision: 1,
            mod_revision,
            version: 3,
            value: format!("value {mod_revision}").into(),
            lease: -1,
        }
    }

    fn range() -> RangeResponse {
        RangeResponse {
            header: header(900),
            kvs: vec![kv(700), kv(800)],
            more: true,
            count: 100_000,
        }
    }

    const RANGE: RangeAnswer = RangeAnswer {
        kvs: 2,
        count: 100_000,
        mod_revision: 800,
    };

    #[test]
    fn ranges_and_transactions_are_read() {
        assert_eq!(RangeAnswer::read(&range().encode_to_vec()), Ok(RANGE));
        assert_eq!(RangeAnswer::read(&[]), Ok(RangeAnswer::default()));
        assert_eq!(last_key(&range().encode_to_vec()), Ok(&b"key"[..]));
        assert_eq!(last_key(&[]), Ok(&[][..]));
        let mut txn = TxnResponse {
            header: header(901),
            succeeded: true,
            responses: vec![],
        };
        assert_eq!(
            TxnAnswer::read(&txn.encode_to_vec()),
            Ok(TxnAnswer::Succeeded(901))
        );
        txn.succeeded = false;
        txn.responses = vec![ResponseOp {
            response: Some(Response::ResponseRange(range())),
        }];
        assert_eq!(
            TxnAnswer::read(&txn.encode_to_vec()),
            Ok(TxnAnswer::Failed(RANGE))
        );
    }

    #[test]
    fn watch_responses_are_read() {
        let event = |revision| Event {
            kv: Some(kv(revision)),
            prev_kv: Some(kv(1)),
            ..Default::default()
        };
        let response = WatchResponse {
            header: header(900),
            events: vec![
                event(700),
                Event {
                    r#type: EventType::Delete.into(),
                    ..event(800)
                },
            ],
            ..Default::default()
        };
        let bytes = response.encode_to_vec();
        let expected = WatchAnswer {
            events: 2,
            deletes: 1,
            first_revision: 700,
            mod_revision: 800,
            first_value: b"value 700",
            ..Default::default()
        };
        assert_eq!(WatchAnswer::read(&bytes), Ok(expected));
        let deleted: Vec<_> = deleted_keys(&bytes).collect();
        assert_eq!(deleted, [Ok(&b"key"[..])]);
        let created = WatchResponse {
            created: true,
            canceled: true,
            ..Default::default()
        };
        let bytes = created.encode_to_vec();
        let answer = WatchAnswer::read(&bytes).unwrap();
        assert!(answer.created && answer.canceled && answer.events == 0);
    }

    #[test]
    fn what_is_cut_or_broken_is_an_error_and_not_a_panic() {
        let whole = range().encode_to_vec();
        for end in 0..whole.len() {
            let _ = RangeAnswer::read(&whole[..end]);
            let _ = WatchAnswer::read(&whole[..end]);
            let _ = TxnAnswer::read(&whole[..end]);
            let _ = deleted_keys(&whole[..end]).count();
        }
        assert_eq!(RangeAnswer::read(&[0xff; 11]), Err(MALFORMED));
        assert_eq!(RangeAnswer::read(&[0x12, 0x7f]), Err(MALFORMED));
    }
}
