//! What a request sees: the store as it was at one revision, over that what
//! waits to be applied, over that what the request itself has done so far.
//!
//! Kept true: a key is shown once, as its topmost layer has it; whatever is
//! shown from a waiting request is noted as a dependency.

use std::cell::Cell;
use std::cmp::Ordering;

use bytes::Bytes;

use crate::error::{EngineError, Reject};
use crate::keys::KeyRange;
use crate::pending::{Changes, Pending};
use crate::position::{Revision, Ticket};
use crate::request::{KeyValue, KvRef};
use crate::store::Store;

/// Above every revision: all layers, with the request's own changes.
pub(super) const NOW: Revision = Revision(i64::MAX);

pub(super) struct View<'a> {
    store: &'a Store,
    pending: &'a Pending,
    base: Revision,
    own: Changes,
    depends_on: Cell<Option<Ticket>>,
}

impl<'a> View<'a> {
    pub(super) fn new(store: &'a Store, pending: &'a Pending, base: Revision) -> Self {
        Self {
            store,
            pending,
            base,
            own: Changes::default(),
            depends_on: Cell::new(None),
        }
    }

    /// Revision of the state that the request finds.
    pub(super) fn newest(&self) -> Revision {
        match self.pending.newest() {
            Some((ticket, revision)) => {
                self.depend_on(ticket);
                revision
            }
            None => self.base,
        }
    }

    /// Shows the live keys of a range in order, until `visit` says false.
    pub(super) fn scan(
        &self,
        keys: &KeyRange,
        at: Revision,
        visit: &mut dyn FnMut(KvRef<'_>) -> Result<bool, EngineError>,
    ) -> Result<(), EngineError> {
        let mut above = self.above(keys, at).peekable();
        let mut outcome = Ok(true);
        let mut show = |kv: KvRef<'_>| {
            outcome = visit(kv);
            matches!(outcome, Ok(true))
        };
        self.store.scan(keys, self.base.min(at), &mut |below| {
            while let Some((key, kv)) = above.next_if(|(key, _)| key.as_ref() <= below.key) {
                if kv.is_some_and(|kv| !show(kv.lend())) {
                    return false;
                }
                if key == below.key {
                    return true;
                }
            }
            show(below)
        })?;
        // The store may have ended because it was told to.
        while outcome.as_ref().is_ok_and(|more| *more)
            && let Some((_, kv)) = above.next()
        {
            if let Some(kv) = kv {
                outcome = visit(kv.lend());
            }
        }
        outcome.map(|_| ())
    }

    /// The number of live keys in a range, without visiting those that only
    /// the store has.
    pub(super) fn count(&self, keys: &KeyRange, at: Revision) -> Result<i64, EngineError> {
        let below = self.base.min(at);
        let mut count = self.store.count(keys, below)?;
        for (key, kv) in self.above(keys, at) {
            let covered = self.store.count(&KeyRange::one(key.clone()), below)?;
            count += i64::from(kv.is_some()) - covered;
        }
        Ok(count)
    }

    /// Notes that `rest` keys of the range are above `last`, if that stays so.
    pub(super) fn remember_rest(&self, keys: &KeyRange, at: Revision, last: &[u8], rest: i64) {
        let only_the_store = self.pending.is_empty() && self.own.is_empty();
        if only_the_store || at < NOW {
            let next = [last, &[0]].concat();
            self.store
                .remember_count(self.base.min(at), next.into(), &keys.end, rest);
        }
    }

    /// The keys that hang on a lease, in order.
    pub(super) fn lease_keys(&self, lease: i64) -> Result<Vec<Bytes>, EngineError> {
        // The store tells what hangs on it now, which may be newer than what
        // this request sees, but only by changes that wait here.
        let mut keys = Vec::new();
        self.store.lease_keys(lease, &mut |key| {
            keys.push(Bytes::copy_from_slice(key));
        })?;
        let all = KeyRange::all();
        for (key, version) in self.pending.within(&all, NOW) {
            if version.kv.as_ref().is_some_and(|kv| kv.lease == lease) {
                keys.push(key.clone());
            }
        }
        keys.sort_unstable();
        keys.dedup();
        let mut attached = Vec::new();
        for key in keys {
            self.scan(&KeyRange::one(key.clone()), NOW, &mut |kv| {
                if kv.lease == lease {
                    attached.push(key.clone());
                }
                Ok(false)
            })?;
        }
        Ok(attached)
    }

    /// Whether an explicit revision can be read.
    pub(super) fn readable(&self, revision: i64) -> Result<(), EngineError> {
        if revision > self.base.0 {
            let newest = self.newest();
            if let Some(ticket) = newest.ticket() {
                return Err(EngineError::Ungranted(ticket));
            }
            if revision > newest.0 {
                return Err(Reject::FutureRevision.into());
            }
        }
        if revision < self.pending.floor(self.store.floor()).0 {
            return Err(Reject::Compacted.into());
        }
        Ok(())
    }

    /// How a revision that is shown here relates to one that a client gives.
    /// One that is not granted yet is above `base`; more isn't known of it.
    pub(super) fn relate(&self, shown: Revision, given: i64) -> Result<Ordering, EngineError> {
        match shown.ticket() {
            None => Ok(shown.0.cmp(&given)),
            Some(_) if given <= self.base.0 => Ok(Ordering::Greater),
            Some(ticket) => Err(EngineError::Ungranted(ticket)),
        }
    }

    /// The request changes a key; what follows sees it.
    pub(super) fn change(&mut self, key: Bytes, kv: Option<KeyValue>) {
        self.own.0.insert(key, kv);
    }

    pub(super) fn finish(self) -> (Changes, Option<Ticket>) {
        (self.own, self.depends_on.get())
    }

    /// The keys of a range that are not as the store has them.
    fn above(
        &self,
        keys: &KeyRange,
        at: Revision,
    ) -> impl Iterator<Item = (&Bytes, Option<&KeyValue>)> {
        let bounds = keys.bounds().filter(|_| at == NOW);
        let own = bounds.map(|bounds| self.own.0.range::<[u8], _>(bounds));
        let mut own = own.into_iter().flatten().peekable();
        let mut waiting = self.pending.within(keys, at).peekable();
        std::iter::from_fn(move || {
            let own_is_first = match (own.peek(), waiting.peek()) {
                (Some((own, _)), Some((waiting, _))) => own <= waiting,
                (own, _) => own.is_some(),
            };
            if own_is_first {
                let (key, kv) = own.next()?;
                // Covered, and noted when it was changed.
                waiting.next_if(|(waiting, _)| *waiting == key);
                return Some((key, kv.as_ref()));
            }
            let (key, version) = waiting.next()?;
            self.depend_on(version.ticket);
            Some((key, version.kv.as_ref()))
        })
    }

    fn depend_on(&self, ticket: Ticket) {
        self.depends_on.set(self.depends_on.get().max(Some(ticket)));
    }
}
