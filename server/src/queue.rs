//! Waiting in line with keys: what Lock and Election have in common.
//!
//! Kept true: whose key was created first comes first; a key hangs on a lease,
//! so whoever is gone leaves the line.

use bytes::Bytes;
use pontoon_api::Error;
use pontoon_engine::{
    Answer, Compare, DeleteRange, EventKind, KeyRange, KeyValue, Op, Operand, Put, Range, Relation,
    Request, Revision, SortOrder, SortTarget, Txn,
};
use pontoon_raftgroup::{Delivery, Watch};
use tonic::Status;

use crate::host::Host;

/// The life of a lease that nobody brought.
const LEASE_SECS: i64 = 60;

/// A place in a line.
pub(crate) struct Place {
    pub(crate) key: Bytes,
    pub(crate) lease: i64,
    /// When the key was created: lower comes first.
    pub(crate) created: i64,
    /// The newest revision that is known to be before or at that.
    pub(crate) revision: Revision,
    /// The one at the head of the line, if it was there then.
    pub(crate) head: Option<KeyValue>,
    /// What the key had before, if it was there.
    pub(crate) value: Option<Bytes>,
}

/// Keys of a line begin with this.
pub(crate) fn prefix(name: &[u8]) -> Bytes {
    [name, b"/"].concat().into()
}

/// The keys that begin with `prefix`, which ends with a slash.
pub(crate) fn line(prefix: &Bytes) -> KeyRange {
    let mut end = prefix.to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    KeyRange::new(prefix.clone(), end)
}

impl Host {
    /// Takes a place; a lease of 0 is granted.
    pub(crate) async fn line_up(
        &self,
        name: &[u8],
        lease: i64,
        value: Bytes,
    ) -> Result<Place, Status> {
        let lease = match lease {
            0 => self.lease_grant(0, LEASE_SECS).await?.id,
            lease => lease,
        };
        let prefix = prefix(name);
        let key: Bytes = [&prefix[..], format!("{lease:x}").as_bytes()]
            .concat()
            .into();
        let bytes = key.len() + value.len();
        let head = Op::Range(first_of(&prefix));
        let put = Op::Put(Put {
            key: key.clone(),
            value,
            lease,
            ..Put::default()
        });
        let get = Op::Range(Range::of(KeyRange::one(key.clone())));
        let txn = Txn {
            compare: vec![created(&key, 0)],
            success: vec![put, head.clone()],
            failure: vec![get, head],
        };
        let answer = self.transact(txn, bytes, Ok(())).await?;
        let mut answers = answer.answers.into_iter();
        let own = answers.next();
        let head = answers.next();
        let (created, value) = match own {
            Some(Answer::Range(found)) => match found.kvs.into_iter().next() {
                Some(kv) => (kv.create.0, Some(kv.value)),
                None => (answer.revision.0, None),
            },
            _ => (answer.revision.0, None),
        };
        let head = match head {
            Some(Answer::Range(found)) => found.kvs.into_iter().next(),
            _ => None,
        };
        Ok(Place {
            key,
            lease,
            created,
            revision: answer.revision,
            head,
            value,
        })
    }

    /// Returns when nobody is before the place.
    pub(crate) async fn wait_for_turn(&self, name: &[u8], created: i64) -> Result<(), Status> {
        let prefix = prefix(name);
        loop {
            let mut before = first_of(&prefix);
            before.order = SortOrder::Descend;
            before.create_max = created - 1;
            let found = self.read(before).await?;
            let Some(last) = found.kvs.first() else {
                return Ok(());
            };
            self.wait_for_delete(&last.key, found.revision.next())
                .await?;
        }
    }

    /// Returns when a key is deleted.
    async fn wait_for_delete(&self, key: &Bytes, from: Revision) -> Result<(), Status> {
        let mut events = self.node.watch(Watch {
            keys: KeyRange::one(key.clone()),
            from,
            prev_kv: false,
        });
        loop {
            match events.next().await {
                Some(Delivery::Events(events)) => {
                    if events.iter().any(|event| event.kind == EventKind::Delete) {
                        return Ok(());
                    }
                }
                // What it waited for is long past: look again.
                Some(Delivery::Compacted(_)) => return Ok(()),
                None => return Err(Error::Stopped.into()),
            }
        }
    }

    /// Leaves the line.
    pub(crate) async fn leave_line(&self, key: &Bytes) -> Result<Revision, Status> {
        let delete = Request::DeleteRange(DeleteRange {
            keys: KeyRange::one(key.clone()),
            prev_kv: false,
        });
        self.check(&delete, key.len())?;
        match self.request(delete).await? {
            Answer::DeleteRange(answer) => Ok(answer.revision),
            other => Err(crate::host::misplaced(&other)),
        }
    }
}

/// etcd's recipes are clients of its own, and what those are refused goes out
/// without its code.
pub(crate) fn without_code(status: Status) -> Status {
    Status::unknown(status.message())
}

/// The head of a line.
pub(crate) fn first_of(prefix: &Bytes) -> Range {
    let mut range = Range::of(line(prefix));
    range.order = SortOrder::Ascend;
    range.target = SortTarget::Create;
    range.limit = 1;
    range
}

/// Holds if the key was created then; 0: if it isn't there.
pub(crate) fn created(key: &Bytes, revision: i64) -> Compare {
    Compare {
        keys: KeyRange::one(key.clone()),
        operand: Operand::Create(revision),
        relation: Relation::Equal,
    }
}
