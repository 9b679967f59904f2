//! Requests, answers and steps as bytes.

use bytes::Bytes;
use pontoon_engine::{
    Answer, Change, Compare, DeleteAnswer, DeleteRange, Effect, Event, EventKind, KeyValue, Op,
    Operand, Put, PutAnswer, Range, RangeAnswer, Reject, Relation, Request, SortOrder, SortTarget,
    Step, Txn, TxnAnswer,
};

use super::{Wire, wire};

wire!(struct KeyValue { key, value, create, modified, version, lease });
wire!(struct Change { revision, sub });
wire!(enum EventKind { 0 => Put, 1 => Delete });
wire!(struct Event { change, kind, kv, prev_kv });
wire!(enum SortOrder { 0 => None, 1 => Ascend, 2 => Descend });
wire!(enum SortTarget { 0 => Key, 1 => Version, 2 => Create, 3 => Modified, 4 => Value });
wire!(struct Range {
    keys, limit, revision, order, target, keys_only, count_only,
    modified_min, modified_max, create_min, create_max,
});
wire!(struct Put { key, value, lease, prev_kv, ignore_value, ignore_lease });
wire!(struct DeleteRange { keys, prev_kv });
wire!(enum Operand {
    0 => Version(number), 1 => Create(number), 2 => Modified(number),
    3 => Value(value), 4 => Lease(lease), 5 => Unknown,
});
wire!(enum Relation { 0 => Equal, 1 => Greater, 2 => Less, 3 => NotEqual, 4 => Unknown });
wire!(struct Compare { keys, operand, relation });
wire!(enum Request {
    0 => Range(range), 1 => Put(put), 2 => DeleteRange(delete), 3 => Txn(txn),
    4 => LeaseRevoke(lease),
});
wire!(struct RangeAnswer { revision, kvs, more, count });
wire!(struct PutAnswer { revision, prev_kv });
wire!(struct DeleteAnswer { revision, deleted, prev_kvs });
wire!(enum Reject {
    0 => EmptyKey, 1 => ValueProvided, 2 => LeaseProvided, 3 => KeyNotFound, 4 => TooManyOps,
    5 => DuplicateKey, 6 => LeaseNotFound, 7 => Compacted, 8 => FutureRevision,
    9 => LeaseExists, 10 => LeaseTtlTooLarge,
});
wire!(enum Effect { 0 => Put { key, value, lease }, 1 => Delete { key } });
wire!(enum Step {
    0 => Write { revision, effects },
    1 => Stage { revision, effects, subs },
    2 => Commit { revision },
    3 => Void { revision },
    4 => Reach { revision },
    5 => Compact { floor },
    6 => Record { name, content },
    7 => Bounds { keys },
    8 => Shed,
});

/// How deep transactions may lie in each other: bytes of a peer must not use
/// up the stack.
const DEPTH_MAX: usize = 128;

thread_local! {
    static DEPTH: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Takes something that may have others of its kind inside.
fn nested<T>(take: impl FnOnce() -> Option<T>) -> Option<T> {
    DEPTH.with(|depth| {
        if depth.get() >= DEPTH_MAX {
            return None;
        }
        depth.set(depth.get() + 1);
        let taken = take();
        depth.set(depth.get() - 1);
        taken
    })
}

impl Wire for Txn {
    fn put(&self, out: &mut Vec<u8>) {
        self.compare.put(out);
        self.success.put(out);
        self.failure.put(out);
    }

    fn take(from: &mut Bytes) -> Option<Self> {
        nested(|| {
            Some(Self {
                compare: Wire::take(from)?,
                success: Wire::take(from)?,
                failure: Wire::take(from)?,
            })
        })
    }
}

wire!(enum Op {
    0 => Range(range), 1 => Put(put), 2 => DeleteRange(delete), 3 => Txn(txn), 4 => Missing,
});

impl Wire for TxnAnswer {
    fn put(&self, out: &mut Vec<u8>) {
        self.revision.put(out);
        self.succeeded.put(out);
        self.answers.put(out);
    }

    fn take(from: &mut Bytes) -> Option<Self> {
        nested(|| {
            Some(Self {
                revision: Wire::take(from)?,
                succeeded: Wire::take(from)?,
                answers: Wire::take(from)?,
            })
        })
    }
}

wire!(enum Answer {
    0 => Range(answer), 1 => Put(answer), 2 => DeleteRange(answer), 3 => Txn(answer),
    4 => LeaseRevoke(revision),
});

#[cfg(test)]
mod tests {
    use pontoon_engine::KeyRange;

    use super::*;

    #[test]
    fn a_request_survives() {
        let put = Put {
            key: Bytes::from_static(b"key"),
            value: Bytes::from_static(b"value"),
            lease: -7,
            prev_kv: true,
            ignore_value: false,
            ignore_lease: true,
        };
        let mut range = Range::of(KeyRange::all());
        range.order = SortOrder::Descend;
        range.target = SortTarget::Modified;
        range.create_max = 5;
        let inner = Txn {
            success: vec![Op::Missing, Op::Put(put.clone())],
            ..Txn::default()
        };
        let request = Request::Txn(Txn {
            compare: vec![Compare {
                keys: KeyRange::one("key"),
                operand: Operand::Value(Bytes::from_static(b"other")),
                relation: Relation::NotEqual,
            }],
            success: vec![Op::Put(put), Op::Txn(inner)],
            failure: vec![
                Op::Range(range),
                Op::DeleteRange(DeleteRange {
                    keys: KeyRange::new("a", "b"),
                    prev_kv: true,
                }),
            ],
        });
        let bytes = request.encode();
        assert_eq!(Request::decode(bytes.clone()), Some(request));
        for cut in 0..bytes.len() {
            assert_eq!(Request::decode(bytes.slice(..cut)), None);
        }
    }

    #[test]
    fn transactions_without_end_are_refused() {
        // A transaction whose only step is a transaction whose only step ...
        let mut bytes = vec![3];
        for _ in 0..1_000_000 {
            bytes.extend_from_slice(&[0, 1, 3]);
        }
        assert_eq!(Request::decode(bytes.into()), None);
        assert_eq!(DEPTH.get(), 0);
    }
}
