//! Requests that were evaluated but are not applied yet, as a layer over the store.
//!
//! Kept true: for each key that a waiting request changes there is what the
//! key becomes with each of them, in the order of their tickets; a revision
//! stands there as a ticket only while it is not granted.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use smallvec::SmallVec;

use crate::keys::KeyRange;
use crate::position::{Revision, Ticket};
use crate::request::KeyValue;

/// What a request makes of the keys that it changes; `None` is a deleted key.
#[derive(Clone, Debug, Default)]
pub struct Changes(pub(crate) BTreeMap<Bytes, Option<KeyValue>>);

impl Changes {
    /// Whether nothing changes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// What evaluated requests will change.
#[derive(Debug, Default)]
pub struct Pending {
    keys: BTreeMap<Bytes, SmallVec<[Version; 1]>>,
    requests: VecDeque<Waiting>,
    floor: Option<Revision>,
}

/// What a key becomes with one request.
#[derive(Debug)]
pub(crate) struct Version {
    pub(crate) ticket: Ticket,
    pub(crate) revision: Revision,
    pub(crate) kv: Option<KeyValue>,
}

/// A request that waits, and the keys that it changes.
#[derive(Debug)]
struct Waiting {
    ticket: Ticket,
    revision: Revision,
    keys: Vec<Bytes>,
}

impl Pending {
    /// Nothing is waiting.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether nothing is waiting.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// The request with this ticket, which is above all earlier ones, waits.
    /// `own` is what it was evaluated with. Without changes there is nothing
    /// to wait for.
    pub fn add(&mut self, ticket: Ticket, own: Revision, changes: Changes) {
        if changes.is_empty() {
            return;
        }
        if let Some((last, revision)) = self.newest() {
            assert!(last < ticket, "{ticket:?} was added after {last:?}");
            assert!(revision < own, "{own} was added after {revision}");
        }
        let mut keys = Vec::with_capacity(changes.0.len());
        for (key, kv) in changes.0 {
            keys.push(key.clone());
            self.keys.entry(key).or_default().push(Version {
                ticket,
                revision: own,
                kv,
            });
        }
        self.requests.push_back(Waiting {
            ticket,
            revision: own,
            keys,
        });
    }

    /// The revision that a waiting request was granted; nothing if it doesn't wait.
    pub fn grant(&mut self, ticket: Ticket, granted: Revision) {
        let Ok(at) = self.requests.binary_search_by_key(&ticket, |r| r.ticket) else {
            return;
        };
        let request = &mut self.requests[at];
        let resolve = |revision: &mut Revision| {
            if *revision == Revision::of(ticket) {
                *revision = granted;
            }
        };
        resolve(&mut request.revision);
        // Later versions of the same keys may have been created by it.
        for key in &request.keys {
            let versions = self.keys.get_mut(key);
            for version in versions.expect("a waiting request's keys are here") {
                resolve(&mut version.revision);
                if let Some(kv) = &mut version.kv {
                    resolve(&mut kv.create);
                    resolve(&mut kv.modified);
                }
            }
        }
    }

    /// All requests up to this ticket are applied, and what is evaluated from
    /// now on is so at a revision that shows it. They must have been granted
    /// their revisions.
    pub fn retire(&mut self, ticket: Ticket) {
        while let Some(request) = self.requests.pop_front_if(|r| r.ticket <= ticket) {
            assert!(
                !request.revision.is_ungranted(),
                "{ticket:?} has no revision"
            );
            for key in request.keys {
                let versions = self.keys.get_mut(&key);
                let versions = versions.expect("a waiting request's keys are here");
                let oldest = versions.remove(0);
                assert_eq!(oldest.ticket, request.ticket, "versions are in order");
                if versions.is_empty() {
                    self.keys.remove(&key);
                }
            }
        }
    }

    /// The requests from this ticket on will not happen.
    pub fn withdraw(&mut self, ticket: Ticket) {
        while let Some(request) = self.requests.pop_back_if(|r| r.ticket >= ticket) {
            for key in request.keys {
                let versions = self.keys.get_mut(&key);
                let versions = versions.expect("a waiting request's keys are here");
                let newest = versions.pop().expect("it waits");
                assert_eq!(newest.ticket, request.ticket, "versions are in order");
                if versions.is_empty() {
                    self.keys.remove(&key);
                }
            }
        }
    }

    /// A compaction floor that is decided but may not be applied yet.
    pub fn raise_floor(&mut self, floor: Revision) {
        self.floor = self.floor.max(Some(floor));
    }

    /// The higher of two floors: that of the store and what is decided.
    pub(crate) fn floor(&self, store: Revision) -> Revision {
        self.floor.map_or(store, |floor| floor.max(store))
    }

    /// Ticket and revision of the newest request that waits.
    #[must_use]
    pub fn newest(&self) -> Option<(Ticket, Revision)> {
        self.requests.back().map(|r| (r.ticket, r.revision))
    }

    /// Whether a request that waits changes a key of the range.
    #[must_use]
    pub fn touches(&self, keys: &KeyRange) -> bool {
        self.within(keys, Revision(i64::MAX)).next().is_some()
    }

    /// The keys that hang on a lease after some request that waits.
    pub fn keys_of_lease(&self, lease: i64) -> impl Iterator<Item = &Bytes> {
        let attaches = move |version: &Version| {
            let kv = version.kv.as_ref();
            kv.is_some_and(|kv| kv.lease == lease)
        };
        let keys = self.keys.iter();
        keys.filter(move |(_, versions)| versions.iter().any(attaches))
            .map(|(key, _)| key)
    }

    /// The keys in the range that are changed up to `at`, in order, with what
    /// they are then.
    pub(crate) fn within(
        &self,
        keys: &KeyRange,
        at: Revision,
    ) -> impl Iterator<Item = (&Bytes, &Version)> {
        let bounds = keys.bounds();
        let found = bounds.map(|bounds| self.keys.range::<[u8], _>(bounds));
        found
            .into_iter()
            .flatten()
            .filter_map(move |(key, versions)| {
                let version = versions.iter().rev().find(|v| v.revision <= at)?;
                Some((key, version))
            })
    }
}
