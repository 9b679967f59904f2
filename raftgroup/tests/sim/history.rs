//! What clients asked and were told, and what the replicas wrote.
//!
//! Kept true: the order of `invoked` and `returned` is the order in which
//! things happened, also within one instant of simulated time.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use pontoon_engine::{Answer, Event, EventKind, KeyRange, KeyValue, Range, Request, Revision};
use pontoon_raftgroup::{Failure, GroupId, LeaseGranted, LeaseStatus, NodeId, RangeMap};

use crate::cluster::Shape;
use crate::trace::Stamp;
use crate::waits::Causes;

/// What a client asks.
#[derive(Clone, Debug)]
pub(crate) enum Asked {
    Request(Request),
    Serializable(Range),
    Compact(i64),
    Grant { id: i64, ttl_secs: i64 },
    Revoke(i64),
    KeepAlive(i64),
    Status { id: i64, keys: bool },
    Split(Bytes),
}

impl Asked {
    /// What it does to keys, or reads of them, as a request.
    pub(crate) fn request(&self) -> Option<Request> {
        match self {
            Self::Request(request) => Some(request.clone()),
            Self::Serializable(range) => Some(Request::Range(range.clone())),
            Self::Revoke(lease) => Some(Request::LeaseRevoke(*lease)),
            _ => None,
        }
    }
}

/// What it hears.
#[derive(Clone, Debug)]
pub(crate) enum Outcome {
    Answer(Answer),
    Compacted(Revision),
    Granted(LeaseGranted),
    Alive(Option<i64>),
    Status(Option<LeaseStatus>),
    Split(GroupId),
    /// Nothing has changed.
    Failed(Failure),
    /// Nobody knows: it was told so, or the node ended, or it is still asked.
    Unknown(&'static str),
}

/// One thing a client asked.
#[derive(Clone, Debug)]
pub(crate) struct Operation {
    pub(crate) client: u64,
    pub(crate) node: NodeId,
    /// Which start of the node.
    pub(crate) start: u64,
    pub(crate) at: Duration,
    pub(crate) invoked: u64,
    /// Never, if the outcome is unknown.
    pub(crate) returned: u64,
    /// When it was answered, or given up.
    pub(crate) until: Duration,
    pub(crate) asked: Asked,
    pub(crate) outcome: Outcome,
}

impl Operation {
    /// The revision it was answered with.
    pub(crate) fn revision(&self) -> Option<i64> {
        let Outcome::Answer(answer) = &self.outcome else {
            return None;
        };
        Some(match answer {
            Answer::Range(answer) => answer.revision.0,
            Answer::Put(answer) => answer.revision.0,
            Answer::DeleteRange(answer) => answer.revision.0,
            Answer::Txn(answer) => answer.revision.0,
            Answer::LeaseRevoke(revision) => revision.0,
        })
    }

    pub(crate) fn is_serializable(&self) -> bool {
        matches!(self.asked, Asked::Serializable(_))
    }

    /// Whether it may have had an effect between the end of `one` and that of
    /// `other`, or nearly so.
    pub(crate) fn may_lie_between(&self, one: &Self, other: &Self) -> bool {
        !matches!(self.outcome, Outcome::Failed(_))
            && self.returned > one.invoked
            && self.invoked < other.returned
    }

    /// Whether the answer says that something was written. (That of a revoke
    /// doesn't.)
    pub(crate) fn wrote(&self) -> bool {
        fn writes(answer: &Answer) -> bool {
            match answer {
                Answer::Put(_) => true,
                Answer::DeleteRange(answer) => answer.deleted > 0,
                Answer::Txn(answer) => answer.answers.iter().any(writes),
                Answer::Range(_) | Answer::LeaseRevoke(_) => false,
            }
        }
        matches!(&self.outcome, Outcome::Answer(answer) if writes(answer))
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            client,
            node,
            start,
            invoked,
            returned,
            ..
        } = self;
        let (at, asked, outcome) = (Stamp(self.at), &self.asked, &self.outcome);
        let text = format!("{asked:?} -> {outcome:?}");
        let text: String = text.chars().take(900).collect();
        write!(
            f,
            "{at} [{invoked}..{returned}] client {client} at node {node}/{start}: {text}"
        )
    }
}

/// What a write did to one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Changed {
    pub(crate) key: Bytes,
    pub(crate) kv: Option<KeyValue>,
}

impl From<&Event> for Changed {
    fn from(event: &Event) -> Self {
        Self {
            key: event.kv.key.clone(),
            kv: (event.kind == EventKind::Put).then(|| event.kv.clone()),
        }
    }
}

/// A write, as replicas have it: its changes in all groups.
pub(crate) type Write = BTreeMap<u32, Changed>;

/// All writes that replicas were seen to have.
#[derive(Debug, Default)]
pub(crate) struct Truth {
    pub(crate) writes: BTreeMap<i64, Write>,
    /// When each was first seen.
    pub(crate) seen: BTreeMap<i64, Duration>,
    /// Where replicas say different things.
    pub(crate) conflicts: Vec<String>,
    /// By the first keys of ranges: up to where what they have is known.
    pub(crate) collected: BTreeMap<Bytes, i64>,
}

impl Truth {
    pub(crate) fn add(&mut self, now: Duration, node: NodeId, events: &[Event]) {
        for event in events {
            let (revision, sub) = (event.change.revision.0, event.change.sub);
            self.seen.entry(revision).or_insert(now);
            let write = self.writes.entry(revision).or_default();
            let changed = Changed::from(event);
            let known = write.entry(sub).or_insert_with(|| changed.clone());
            if *known != changed {
                self.conflicts.push(format!(
                    "revision {revision}: node {node} has {changed:?}, another had {known:?}"
                ));
            }
        }
    }

    /// All keys right before a revision.
    pub(crate) fn state_before(&self, revision: i64) -> BTreeMap<&Bytes, &KeyValue> {
        let mut state = BTreeMap::new();
        for changed in self
            .writes
            .range(..revision)
            .flat_map(|(_, write)| write.values())
        {
            match &changed.kv {
                Some(kv) => drop(state.insert(&changed.key, kv)),
                None => drop(state.remove(&changed.key)),
            }
        }
        state
    }

    /// Changes of `keys` in these revisions.
    pub(crate) fn changes<'a>(
        &'a self,
        keys: &'a KeyRange,
        from: i64,
        through: i64,
    ) -> impl Iterator<Item = (i64, u32, &'a Changed)> {
        let writes = (from <= through).then(|| self.writes.range(from..=through));
        let all = writes.into_iter().flatten().flat_map(|(revision, write)| {
            write
                .iter()
                .map(|(sub, changed)| (*revision, *sub, changed))
        });
        all.filter(|(_, _, changed)| keys.contains(&changed.key))
    }

    /// What a key was right before a revision.
    pub(crate) fn before(&self, key: &Bytes, revision: i64) -> Option<&KeyValue> {
        let writes = self.writes.range(..revision).rev();
        let mut changes = writes.flat_map(|(_, write)| write.values().rev());
        changes.find(|changed| changed.key == *key)?.kv.as_ref()
    }
}

/// What happened to a watch.
#[derive(Clone, Debug)]
pub(crate) enum Seen {
    /// Begun, or resumed; from which revision, if that is known.
    Began {
        from: Option<i64>,
    },
    Events(Vec<Event>),
    Compacted(i64),
}

/// A watch, over all nodes where it was resumed.
#[derive(Clone, Debug)]
pub(crate) struct Watched {
    pub(crate) keys: KeyRange,
    pub(crate) prev_kv: bool,
    /// With the order of happening and the node.
    pub(crate) seen: Vec<(u64, NodeId, Seen)>,
    /// At the end it was asked until nothing more came.
    pub(crate) drained: bool,
}

/// Everything that is known of a run.
#[derive(Default)]
pub(crate) struct History {
    clock: u64,
    pub(crate) operations: Vec<Operation>,
    pub(crate) truth: Truth,
    pub(crate) watches: Vec<Watched>,
    /// Newest versions that any client saw.
    pub(crate) known: BTreeMap<Bytes, KeyValue>,
    /// Leases that were granted, as far as that is known.
    pub(crate) leases: Vec<i64>,
    /// The newest revision that any client was told.
    pub(crate) newest: i64,
    /// When the faults had ended.
    pub(crate) healed: Duration,
    /// What is wrong already.
    pub(crate) violations: Vec<(&'static str, String)>,
    pub(crate) counts: BTreeMap<&'static str, u64>,
    /// What could hold clients up.
    pub(crate) causes: Causes,
    pub(crate) leaders: BTreeSet<(GroupId, u64)>,
}

impl History {
    pub(crate) fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// The keys cut wherever groups ever met: each part has always been in
    /// one group.
    pub(crate) fn regions(&self, shape: &Shape) -> RangeMap {
        let asked = self.operations.iter().map(|operation| &operation.asked);
        let cuts = asked.filter_map(|asked| match asked {
            Asked::Split(key) => Some(key),
            _ => None,
        });
        let cuts: Vec<_> = shape.splits.iter().chain(cuts).cloned().collect();
        RangeMap::first(&cuts, &BTreeMap::new(), 0)
    }

    pub(crate) fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    /// Learns what versions an answer shows.
    pub(crate) fn learn(&mut self, answer: &Answer) {
        let kvs: &[KeyValue] = match answer {
            Answer::Range(answer) => {
                self.newest = self.newest.max(answer.revision.0);
                &answer.kvs
            }
            Answer::Put(answer) => {
                self.newest = self.newest.max(answer.revision.0);
                answer.prev_kv.as_slice()
            }
            Answer::DeleteRange(answer) => &answer.prev_kvs,
            Answer::Txn(answer) => {
                self.newest = self.newest.max(answer.revision.0);
                answer.answers.iter().for_each(|answer| self.learn(answer));
                &[]
            }
            Answer::LeaseRevoke(_) => &[],
        };
        for kv in kvs {
            let known = self.known.entry(kv.key.clone()).or_default();
            // Where values are left out, they are empty.
            if known.modified < kv.modified && !kv.value.is_empty() {
                *known = kv.clone();
            }
        }
    }
}
