//! What a request does and answers: etcd's semantics of one range.
//!
//! Kept true: nothing here changes anything. The same request on the same
//! view has the same answer and the same effects, which say all that applying
//! it needs to know.

use bytes::Bytes;

use crate::effects::{Effect, Effects};
use crate::error::{EngineError, Reject};
use crate::keys::KeyRange;
use crate::pending::{Changes, Pending};
use crate::position::{Revision, Ticket};
use crate::request::{
    Answer, DeleteAnswer, DeleteRange, KeyValue, Op, Put, PutAnswer, Range, RangeAnswer, Request,
    TxnAnswer,
};
use crate::store::Store;

mod check;
mod path;
mod range;
#[cfg(test)]
mod tests;
mod view;

pub use check::check;
use path::Path;
pub use range::{join, part};
use view::{NOW, View};

/// What came of a request.
#[derive(Debug)]
pub struct Evaluated {
    /// For the client, after [`Answer::complete`].
    pub answer: Answer,
    /// For the log; empty if nothing changes.
    pub effects: Effects,
    /// The same for [`Pending::add`].
    pub changes: Changes,
    /// The newest ticket that the answer hangs on, for what it shows or for
    /// the revision it tells.
    pub depends_on: Option<Ticket>,
}

/// Evaluates a request that [`check`] lets pass on the state at `base` with
/// all that is pending on top.
///
/// The store may be ahead of `base`, but only by what is still pending. `own`
/// is, or stands for, the revision of the request if it changes something.
///
/// A request can await the grant of its own ticket: a transaction that reads
/// what it wrote, with bounds on revisions. Then it must be evaluated again
/// with the revision that it will have, once all that wait have theirs.
pub fn evaluate(
    store: &Store,
    pending: &Pending,
    base: Revision,
    own: Revision,
    lease_exists: &dyn Fn(i64) -> bool,
    request: &Request,
) -> Result<Evaluated, EngineError> {
    let mut execution = Execution {
        view: View::new(store, pending, base),
        own,
        lease_exists,
        effects: Effects::new(),
    };
    let mut answer = execution.run(request)?;
    let Execution { view, effects, .. } = execution;
    if effects.is_empty() {
        // It turned out to have no revision of its own to be just before.
        let newest = view.newest();
        let found = |revision| {
            if revision == own.previous() {
                newest
            } else {
                revision
            }
        };
        answer.map_revisions(&found);
    }
    let (changes, depends_on) = view.finish();
    Ok(Evaluated {
        answer,
        effects,
        changes,
        depends_on,
    })
}

/// A read of applied state, where `newest` is the newest revision.
pub fn range(store: &Store, newest: Revision, range: &Range) -> Result<RangeAnswer, EngineError> {
    range::read(&View::new(store, &Pending::new(), newest), newest, range)
}

struct Execution<'a> {
    view: View<'a>,
    own: Revision,
    lease_exists: &'a dyn Fn(i64) -> bool,
    effects: Effects,
}

impl Execution<'_> {
    fn run(&mut self, request: &Request) -> Result<Answer, EngineError> {
        Ok(match request {
            Request::Range(range) => Answer::Range(self.range(range)?),
            Request::Put(put) => {
                self.admit_put_lease(put)?;
                Answer::Put(self.put(put)?)
            }
            Request::DeleteRange(delete) => Answer::DeleteRange(self.delete_range(delete)?),
            Request::Txn(txn) => {
                let path = Path::choose(&self.view, txn)?;
                self.admit(&path)?;
                let mut answer = self.follow(&path)?;
                answer.revision = self.header();
                Answer::Txn(answer)
            }
            Request::LeaseRevoke(lease) => {
                self.admit_lease(*lease)?;
                for key in self.view.lease_keys(*lease)? {
                    self.delete(key);
                }
                Answer::LeaseRevoke(self.header())
            }
        })
    }

    /// The revision that answers tell: the one before the request's own until
    /// the first change.
    fn header(&self) -> Revision {
        if self.effects.is_empty() {
            self.own.previous()
        } else {
            self.own
        }
    }

    /// All that can be refused on the way, before any of it is done.
    fn admit(&self, path: &Path<'_>) -> Result<(), EngineError> {
        let mut inner = path.inner.iter();
        for op in path.ops {
            match op {
                Op::Range(range) => self.admit_range(range)?,
                Op::Put(put) => self.admit_put(put)?,
                Op::DeleteRange(_) => {}
                Op::Txn(_) => self.admit(inner.next().expect("a path for each transaction"))?,
                Op::Missing => return Err(Reject::KeyNotFound.into()),
            }
        }
        Ok(())
    }

    /// Unlike in a read of its own, only 0 is the newest revision: a negative
    /// one is held against the compaction floor like any other.
    fn admit_range(&self, range: &Range) -> Result<(), EngineError> {
        if range.revision == 0 {
            return Ok(());
        }
        self.view.readable(range.revision)
    }

    fn admit_put(&self, put: &Put) -> Result<(), EngineError> {
        self.admit_put_lease(put)?;
        if put.ignore_value || put.ignore_lease {
            let key = KeyRange::one(put.key.clone());
            if self.view.count(&key, NOW)? == 0 {
                return Err(Reject::KeyNotFound.into());
            }
        }
        Ok(())
    }

    fn admit_put_lease(&self, put: &Put) -> Result<(), EngineError> {
        if put.lease == 0 {
            return Ok(());
        }
        self.admit_lease(put.lease)
    }

    fn admit_lease(&self, lease: i64) -> Result<(), EngineError> {
        if !(self.lease_exists)(lease) {
            return Err(Reject::LeaseNotFound.into());
        }
        Ok(())
    }

    fn follow(&mut self, path: &Path<'_>) -> Result<TxnAnswer, EngineError> {
        let mut inner = path.inner.iter();
        let mut answer = TxnAnswer {
            succeeded: path.succeeded,
            ..TxnAnswer::default()
        };
        for op in path.ops {
            answer.answers.push(match op {
                Op::Range(range) => Answer::Range(self.range(range)?),
                Op::Put(put) => Answer::Put(self.put(put)?),
                Op::DeleteRange(delete) => Answer::DeleteRange(self.delete_range(delete)?),
                Op::Txn(_) => {
                    let inner = inner.next().expect("a path for each transaction");
                    Answer::Txn(self.follow(inner)?)
                }
                Op::Missing => return Err(Reject::KeyNotFound.into()),
            });
        }
        Ok(answer)
    }

    fn range(&self, range: &Range) -> Result<RangeAnswer, EngineError> {
        range::read(&self.view, self.header(), range)
    }

    fn put(&mut self, put: &Put) -> Result<PutAnswer, EngineError> {
        let mut kv = KeyValue {
            key: put.key.clone(),
            value: put.value.clone(),
            create: self.own,
            modified: self.own,
            version: 1,
            lease: put.lease,
        };
        let mut found = false;
        let mut prev_kv = None;
        let key = KeyRange::one(put.key.clone());
        self.view.scan(&key, NOW, &mut |prev| {
            found = true;
            kv.create = prev.create;
            kv.version = prev.version + 1;
            if put.ignore_value {
                kv.value = prev.to_owned().value;
            }
            if put.ignore_lease {
                kv.lease = prev.lease;
            }
            prev_kv = put.prev_kv.then(|| prev.to_owned());
            Ok(false)
        })?;
        // A transaction was admitted with the key there, but may have deleted
        // it since; etcd dies of that.
        if !found && (put.ignore_value || put.ignore_lease) {
            return Err(Reject::KeyNotFound.into());
        }
        self.effects.push(Effect::Put {
            key: kv.key.clone(),
            value: kv.value.clone(),
            lease: kv.lease,
        });
        self.view.change(put.key.clone(), Some(kv));
        Ok(PutAnswer {
            revision: self.own,
            prev_kv,
        })
    }

    fn delete_range(&mut self, delete: &DeleteRange) -> Result<DeleteAnswer, EngineError> {
        let mut keys = Vec::new();
        let mut prev_kvs = Vec::new();
        self.view.scan(&delete.keys, NOW, &mut |kv| {
            keys.push(Bytes::copy_from_slice(kv.key));
            if delete.prev_kv {
                prev_kvs.push(kv.to_owned());
            }
            Ok(true)
        })?;
        let deleted = i64::try_from(keys.len()).expect("keys fit in memory");
        for key in keys {
            self.delete(key);
        }
        Ok(DeleteAnswer {
            revision: self.header(),
            deleted,
            prev_kvs,
        })
    }

    fn delete(&mut self, key: Bytes) {
        self.effects.push(Effect::Delete { key: key.clone() });
        self.view.change(key, None);
    }
}
