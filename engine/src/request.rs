//! Requests and their answers, in etcd's terms but free of its wire format.

use bytes::Bytes;

use crate::keys::KeyRange;
use crate::position::{Revision, Ticket};

/// A key and its value at some revision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyValue {
    /// The key.
    pub key: Bytes,
    /// Its value.
    pub value: Bytes,
    /// Revision that created the key, after it was last deleted.
    pub create: Revision,
    /// Revision that wrote this value.
    pub modified: Revision,
    /// How often it was put since it was created, 1 at first.
    pub version: i64,
    /// The lease it hangs on; 0 for none.
    pub lease: i64,
}

impl KeyValue {
    /// A look at it.
    #[must_use]
    pub fn lend(&self) -> KvRef<'_> {
        KvRef {
            key: &self.key,
            value: &self.value,
            create: self.create,
            modified: self.modified,
            version: self.version,
            lease: self.lease,
        }
    }
}

/// A [`KeyValue`] where it lies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvRef<'a> {
    /// The key.
    pub key: &'a [u8],
    /// Its value.
    pub value: &'a [u8],
    /// Revision that created the key, after it was last deleted.
    pub create: Revision,
    /// Revision that wrote this value.
    pub modified: Revision,
    /// How often it was put since it was created, 1 at first.
    pub version: i64,
    /// The lease it hangs on; 0 for none.
    pub lease: i64,
}

impl KvRef<'_> {
    /// A copy that stands on its own.
    #[must_use]
    pub fn to_owned(&self) -> KeyValue {
        KeyValue {
            key: Bytes::copy_from_slice(self.key),
            value: Bytes::copy_from_slice(self.value),
            create: self.create,
            modified: self.modified,
            version: self.version,
            lease: self.lease,
        }
    }
}

/// Which way results are sorted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SortOrder {
    /// Not said.
    #[default]
    None,
    /// Smallest first.
    Ascend,
    /// Largest first.
    Descend,
}

/// What results are sorted by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SortTarget {
    /// The key.
    #[default]
    Key,
    /// The version.
    Version,
    /// The create revision.
    Create,
    /// The mod revision.
    Modified,
    /// The value.
    Value,
}

/// So many keys are few.
const SHORT_KEYS_MAX: i64 = 1000;

/// Reads keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    /// The keys.
    pub keys: KeyRange,
    /// Most keys to return; 0 and below: all.
    pub limit: i64,
    /// Revision to read at; 0 and below: the newest.
    pub revision: i64,
    /// Order of the results.
    pub order: SortOrder,
    /// What they are ordered by.
    pub target: SortTarget,
    /// Leave values out.
    pub keys_only: bool,
    /// Leave the keys out too.
    pub count_only: bool,
    /// Lowest mod revision to return; 0: any.
    pub modified_min: i64,
    /// Highest mod revision to return; 0: any.
    pub modified_max: i64,
    /// Lowest create revision to return; 0: any.
    pub create_min: i64,
    /// Highest create revision to return; 0: any.
    pub create_max: i64,
}

impl Range {
    /// Whether it looks at a few keys only, however many there are.
    #[must_use]
    pub fn is_short(&self) -> bool {
        let filters = [
            self.modified_min,
            self.modified_max,
            self.create_min,
            self.create_max,
        ];
        let is_sorted = self.order == SortOrder::None
            || (self.order == SortOrder::Ascend && self.target == SortTarget::Key);
        let is_cut = (1..=SHORT_KEYS_MAX).contains(&self.limit) || self.count_only;
        self.keys.is_one() || (is_cut && is_sorted && filters == [0; 4])
    }

    /// All of `keys`, newest, without options.
    #[must_use]
    pub fn of(keys: KeyRange) -> Self {
        Self {
            keys,
            limit: 0,
            revision: 0,
            order: SortOrder::None,
            target: SortTarget::Key,
            keys_only: false,
            count_only: false,
            modified_min: 0,
            modified_max: 0,
            create_min: 0,
            create_max: 0,
        }
    }
}

/// Writes a key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Put {
    /// The key.
    pub key: Bytes,
    /// Its new value.
    pub value: Bytes,
    /// The lease to hang it on; 0: none.
    pub lease: i64,
    /// Return what was there before.
    pub prev_kv: bool,
    /// Keep the value that is there.
    pub ignore_value: bool,
    /// Keep the lease that is there.
    pub ignore_lease: bool,
}

/// Deletes keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeleteRange {
    /// The keys.
    pub keys: KeyRange,
    /// Return what was there before.
    pub prev_kv: bool,
}

/// What a comparison looks at, with what it is compared to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operand {
    /// The version.
    Version(i64),
    /// The create revision.
    Create(i64),
    /// The mod revision.
    Modified(i64),
    /// The value.
    Value(Bytes),
    /// The lease.
    Lease(i64),
    /// A target that etcd doesn't know: it compares 0 with 0.
    Unknown,
}

/// How stored and given must relate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    /// Both are the same.
    Equal,
    /// Stored is greater than given.
    Greater,
    /// Stored is less than given.
    Less,
    /// They differ.
    NotEqual,
    /// A relation that etcd doesn't know: it holds.
    Unknown,
}

/// One condition of a transaction; over a range it must hold for every key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compare {
    /// The keys.
    pub keys: KeyRange,
    /// What is compared.
    pub operand: Operand,
    /// How.
    pub relation: Relation,
}

/// One step of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Reads keys.
    Range(Range),
    /// Writes a key.
    Put(Put),
    /// Deletes keys.
    DeleteRange(DeleteRange),
    /// A transaction inside.
    Txn(Txn),
    /// A step that says nothing; etcd refuses it.
    Missing,
}

/// Does one thing or another, in one revision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Txn {
    /// All must hold for `success`.
    pub compare: Vec<Compare>,
    /// Done if all hold.
    pub success: Vec<Op>,
    /// Done if not.
    pub failure: Vec<Op>,
}

/// What can be asked of one range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// A read, evaluated with the writes around it.
    Range(Range),
    /// Writes a key.
    Put(Put),
    /// Deletes keys.
    DeleteRange(DeleteRange),
    /// A transaction.
    Txn(Txn),
    /// Deletes the keys that hang on this lease.
    LeaseRevoke(i64),
}

/// Answer to a [`Range`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeAnswer {
    /// Revision of the state that was read from; the store's own, also for
    /// reads in the past.
    pub revision: Revision,
    /// What was found.
    pub kvs: Vec<KeyValue>,
    /// Whether the limit held some back.
    pub more: bool,
    /// Keys in the range, whatever limit and filters say.
    pub count: i64,
}

/// Answer to a [`Put`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PutAnswer {
    /// Revision of the write.
    pub revision: Revision,
    /// What was there before, if asked for.
    pub prev_kv: Option<KeyValue>,
}

/// Answer to a [`DeleteRange`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeleteAnswer {
    /// Revision of the write, or of the state if nothing was deleted.
    pub revision: Revision,
    /// Number of keys deleted.
    pub deleted: i64,
    /// What they were, if asked for.
    pub prev_kvs: Vec<KeyValue>,
}

/// Answer to a [`Txn`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TxnAnswer {
    /// Revision of the write, or of the state if nothing was changed; 0
    /// inside another transaction.
    pub revision: Revision,
    /// Whether `success` was done.
    pub succeeded: bool,
    /// One answer for each step.
    pub answers: Vec<Answer>,
}

/// Answer to a [`Request`] or to a step of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// To [`Range`].
    Range(RangeAnswer),
    /// To [`Put`].
    Put(PutAnswer),
    /// To [`DeleteRange`].
    DeleteRange(DeleteAnswer),
    /// To [`Txn`].
    Txn(TxnAnswer),
    /// To [`Request::LeaseRevoke`]: the revision, as with a [`DeleteRange`].
    LeaseRevoke(Revision),
}

impl Answer {
    /// Puts granted revisions where tickets stood for them.
    pub fn complete(&mut self, granted: &dyn Fn(Ticket) -> Revision) {
        self.map_revisions(&|revision| revision.resolve(granted));
    }

    /// Replaces every revision in the answer.
    pub(crate) fn map_revisions(&mut self, map: &dyn Fn(Revision) -> Revision) {
        let (revision, kvs): (_, &mut [KeyValue]) = match self {
            Self::Range(answer) => (&mut answer.revision, &mut answer.kvs),
            Self::Put(answer) => (&mut answer.revision, answer.prev_kv.as_mut_slice()),
            Self::DeleteRange(answer) => (&mut answer.revision, &mut answer.prev_kvs),
            Self::LeaseRevoke(revision) => (revision, &mut []),
            Self::Txn(answer) => {
                for inner in &mut answer.answers {
                    inner.map_revisions(map);
                }
                (&mut answer.revision, &mut [])
            }
        };
        *revision = map(*revision);
        for kv in kvs {
            kv.create = map(kv.create);
            kv.modified = map(kv.modified);
        }
    }
}
