//! Leases (rule 13): what the root group keeps of them, and how long they live.
//!
//! Kept true: a lease is known by its id and its birth, so one that has the
//! id of another that is gone is not taken for it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;
use parking_lot::Mutex;
use pontoon_engine::{EngineError, Revision, Step, Store};
use tokio::time::Instant;

use crate::codec::wire;
use crate::counters::Counters;
use crate::format::{self, Unreadable, seal};
use crate::position::GroupId;
use crate::records;

/// A lease that was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseGranted {
    /// Its id.
    pub id: i64,
    /// How long it lives without a sign of life.
    pub ttl_secs: i64,
    /// The newest revision then.
    pub revision: Revision,
}

/// What is known of a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseStatus {
    /// How long it has left, in whole seconds.
    pub ttl_secs: i64,
    /// How long it was granted for.
    pub granted_secs: i64,
    /// The keys that hang on it, if they were asked for.
    pub keys: Vec<Bytes>,
}

/// The longest life of a lease, as in etcd.
pub(crate) const TTL_SECS_MAX: i64 = 9_000_000_000;

/// The term of the root group in which it was granted, and a number in it.
pub(crate) type Birth = (u64, u64);

/// Which lease it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LeaseName {
    pub(crate) id: i64,
    pub(crate) birth: Birth,
}

wire!(struct LeaseName { id, birth });

/// Work of the root group's leader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LeaseWork {
    /// `id` 0: any.
    Grant {
        id: i64,
        ttl_secs: i64,
    },
    Revoke {
        id: i64,
    },
    KeepAlive {
        id: i64,
    },
    Status {
        id: i64,
    },
    /// Keys of the group may hang on it from now on.
    Register {
        lease: LeaseName,
        group: GroupId,
    },
}

wire!(enum LeaseWork {
    0 => Grant { id, ttl_secs },
    1 => Revoke { id },
    2 => KeepAlive { id },
    3 => Status { id },
    4 => Register { lease, group },
});

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LeaseAnswered {
    Granted {
        id: i64,
        ttl_secs: i64,
        revision: Revision,
    },
    Revoked(Revision),
    /// How long it lives from now on; `None` if there is no such lease.
    Alive(Option<i64>),
    Status(Option<LeaseKnown>),
    Registered,
}

impl LeaseAnswered {
    /// The same at a revision, if it has one.
    pub(crate) fn at(self, revision: Revision) -> Self {
        match self {
            Self::Granted { id, ttl_secs, .. } => Self::Granted {
                id,
                ttl_secs,
                revision,
            },
            Self::Revoked(_) => Self::Revoked(revision),
            Self::Alive(_) | Self::Status(_) | Self::Registered => self,
        }
    }
}

wire!(enum LeaseAnswered {
    0 => Granted { id, ttl_secs, revision },
    1 => Revoked(revision),
    2 => Alive(ttl),
    3 => Status(known),
    4 => Registered,
});

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LeaseKnown {
    pub(crate) left_secs: i64,
    pub(crate) granted_secs: i64,
    pub(crate) groups: Vec<GroupId>,
}

wire!(struct LeaseKnown { left_secs, granted_secs, groups });

/// What the root group keeps of a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LeaseRecord {
    pub(crate) birth: Birth,
    pub(crate) ttl_secs: i64,
    /// It is being revoked: nobody may use it any more.
    pub(crate) revoking: bool,
    /// The groups that may have keys which hang on it; the root group always may.
    pub(crate) groups: Vec<GroupId>,
}

wire!(struct LeaseRecord { birth, ttl_secs, revoking, groups });

const PREFIX: &[u8] = b"lease/";

impl LeaseRecord {
    const KIND: &str = "lease record";

    fn open(content: Bytes) -> Result<Self, Unreadable> {
        format::open(Self::KIND, content)
    }

    pub(crate) fn name(&self, id: i64) -> LeaseName {
        LeaseName {
            id,
            birth: self.birth,
        }
    }

    pub(crate) fn step(&self, id: i64) -> Step {
        Step::Record {
            name: name(id),
            content: Some(seal(self)),
        }
    }
}

/// Removes a lease.
pub(crate) fn gone_step(id: i64) -> Step {
    Step::Record {
        name: name(id),
        content: None,
    }
}

fn name(id: i64) -> Bytes {
    [PREFIX, &id.to_be_bytes()].concat().into()
}

fn id_of(name: &[u8]) -> Option<i64> {
    id_from(name.strip_prefix(PREFIX)?)
}

fn id_from(bytes: &[u8]) -> Option<i64> {
    Some(i64::from_be_bytes(bytes.try_into().ok()?))
}

/// Whether a record, if it is a lease's, can be decoded.
pub(crate) fn can_read(name: &[u8], content: &Bytes) -> Result<(), Unreadable> {
    if !name.starts_with(PREFIX) {
        return Ok(());
    }
    let kind = LeaseRecord::KIND;
    id_of(name).ok_or(Unreadable::Nonsense { kind })?;
    LeaseRecord::open(content.clone()).map(drop)
}

/// The leases, as this node's replica of the root group knows them.
#[derive(Default)]
pub(crate) struct Leases(Mutex<BTreeMap<i64, LeaseRecord>>);

impl Leases {
    /// Begins anew with what the store has.
    pub(crate) fn read(&self, store: &Store) -> Result<(), EngineError> {
        let found = records::read_all(store, PREFIX, |id, content| {
            let kind = LeaseRecord::KIND;
            let id = id_from(&id).ok_or(Unreadable::Nonsense { kind })?;
            Ok((id, LeaseRecord::open(content)?))
        })?;
        *self.0.lock() = found.into_iter().collect();
        Ok(())
    }

    /// Follows an entry of the root group, whose records can be decoded
    /// ([`records::check`]).
    pub(crate) fn follow(&self, steps: &[Step], counters: &Counters) {
        for step in steps {
            let Step::Record { name, content } = step else {
                continue;
            };
            let Some(id) = id_of(name) else {
                continue;
            };
            let mut leases = self.0.lock();
            let record = content.clone().map(LeaseRecord::open);
            match record.and_then(Result::ok) {
                Some(record) => {
                    let (birth, ttl) = (record.birth, record.ttl_secs.unsigned_abs());
                    let before = leases.insert(id, record);
                    if before.is_none_or(|before| before.birth != birth) {
                        counters.leases_granted.fetch_add(1, Relaxed);
                        counters.lease_ttl_secs.record(ttl);
                    }
                }
                None if leases.remove(&id).is_some() => {
                    counters.leases_revoked.fetch_add(1, Relaxed);
                }
                None => {}
            }
        }
    }

    pub(crate) fn get(&self, id: i64) -> Option<LeaseRecord> {
        self.0.lock().get(&id).cloned()
    }

    /// All groups that may have keys which hang on it; `None` if it is gone.
    pub(crate) fn groups_of(&self, name: LeaseName) -> Option<BTreeSet<GroupId>> {
        let leases = self.0.lock();
        let lease = leases.get(&name.id);
        let lease = lease.filter(|lease| lease.birth == name.birth)?;
        let groups = lease.groups.iter().copied();
        Some(groups.chain([GroupId::ROOT]).collect())
    }

    pub(crate) fn ids(&self) -> Vec<i64> {
        self.0.lock().keys().copied().collect()
    }

    pub(crate) fn all(&self) -> Vec<(i64, LeaseRecord)> {
        let leases = self.0.lock();
        leases
            .iter()
            .map(|(id, lease)| (*id, lease.clone()))
            .collect()
    }

    /// Which lease this is, if it may be used.
    pub(crate) fn alive(&self, id: i64) -> Option<LeaseName> {
        let leases = self.0.lock();
        let lease = leases.get(&id).filter(|lease| !lease.revoking)?;
        Some(LeaseName {
            id,
            birth: lease.birth,
        })
    }

    /// Whether keys of the group may hang on it.
    pub(crate) fn is_registered(&self, id: i64, group: GroupId) -> bool {
        let leases = self.0.lock();
        let lease = leases.get(&id);
        group.is_root() || lease.is_some_and(|lease| lease.groups.contains(&group))
    }

    pub(crate) fn all_alive(&self, names: &[LeaseName]) -> bool {
        names.iter().all(|name| self.alive(name.id) == Some(*name))
    }
}

/// When leases end, by the clock of the root group's leader.
#[derive(Default)]
pub(crate) struct Deadlines {
    ends: BTreeMap<i64, (Birth, Instant)>,
    order: BTreeSet<(Instant, i64)>,
}

impl Deadlines {
    /// The lease lives until then, or longer if it was said before.
    pub(crate) fn extend(&mut self, name: LeaseName, end: Instant) {
        let known = self.ends.get(&name.id).copied();
        if known.is_some_and(|(birth, known)| birth == name.birth && known >= end) {
            return;
        }
        if let Some((_, known)) = known {
            self.order.remove(&(known, name.id));
        }
        self.ends.insert(name.id, (name.birth, end));
        self.order.insert((end, name.id));
    }

    /// Removes what has this id, if it is so.
    pub(crate) fn remove_if(&mut self, id: i64, is_so: impl Fn(&LeaseName) -> bool) {
        if let Some((birth, end)) = self.ends.get(&id).copied()
            && is_so(&LeaseName { id, birth })
        {
            self.ends.remove(&id);
            self.order.remove(&(end, id));
        }
    }

    pub(crate) fn end(&self, name: LeaseName) -> Option<Instant> {
        let (birth, end) = self.ends.get(&name.id)?;
        (*birth == name.birth).then_some(*end)
    }

    /// When the next one ends.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.order.first().map(|(end, _)| *end)
    }

    /// Takes out one that has ended.
    pub(crate) fn pop(&mut self, now: Instant) -> Option<LeaseName> {
        let (end, id) = *self.order.first()?;
        if end > now {
            return None;
        }
        self.order.pop_first();
        let (birth, _) = self.ends.remove(&id)?;
        Some(LeaseName { id, birth })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn rule_13_a_sign_of_life_never_shortens_a_lease() {
        let now = Instant::now();
        let after = |secs| now + Duration::from_secs(secs);
        let (one, two) = (
            LeaseName {
                id: 1,
                birth: (1, 1),
            },
            LeaseName {
                id: 2,
                birth: (1, 2),
            },
        );
        let mut deadlines = Deadlines::default();
        deadlines.extend(one, after(5));
        deadlines.extend(two, after(3));
        deadlines.extend(one, after(4));
        assert_eq!(deadlines.end(one), Some(after(5)));
        deadlines.extend(two, after(9));
        assert_eq!(deadlines.next(), Some(after(5)));
        assert_eq!(deadlines.pop(after(4)), None);
        assert_eq!(deadlines.pop(after(5)), Some(one));
        assert_eq!(deadlines.pop(after(5)), None);
        // Another one with the same id begins anew, whatever becomes of the first.
        let again = LeaseName {
            id: 2,
            birth: (2, 1),
        };
        deadlines.extend(again, after(1));
        deadlines.remove_if(2, |name| *name == two);
        assert_eq!(deadlines.end(two), None);
        assert_eq!(deadlines.end(again), Some(after(1)));
        deadlines.remove_if(2, |name| *name == again);
        assert_eq!(deadlines.next(), None);
    }
}
