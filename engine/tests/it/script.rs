//! Scripted work on a store: entries by seed, and all that can be read of it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use pontoon_engine::inspect::Severity;
use pontoon_engine::{
    Applied, Config, ContentHash, Effect, EngineError, Entry, Event, KeyRange, KeyValue, Revision,
    Step, Store,
};
use pontoon_wal::disk::Disk;
use pontoon_wal::disk::sim::{Rng, SimDisk};

pub(crate) const PATH: &str = "/data/tree";

pub(crate) fn disk(seed: u64) -> SimDisk {
    let disk = SimDisk::new(seed);
    disk.create_dir(Path::new("/data")).unwrap();
    disk
}

pub(crate) fn open(disk: &SimDisk) -> Result<Arc<Store>, EngineError> {
    Store::open(disk, Path::new(PATH), Config::default()).map(Arc::new)
}

/// Entries that overwrite, delete, stage, compact and record.
pub(crate) fn entries(seed: u64, count: u64) -> Vec<Entry> {
    let mut rng = Rng::new(seed);
    let mut live: BTreeMap<Bytes, ()> = BTreeMap::new();
    let mut revision = 1;
    let mut floor = 1;
    let mut staged: Option<(i64, Vec<Effect>)> = None;
    let mut entries = Vec::new();
    for index in 1..=count {
        let mut steps = Vec::new();
        for _ in 0..1 + rng.below(4) {
            revision += 1;
            let mut effects: Vec<Effect> = Vec::new();
            for _ in 0..1 + rng.below(5) {
                let key = key(&mut rng);
                let held = staged
                    .iter()
                    .flat_map(|(_, effects)| effects)
                    .any(|effect| effect.key() == &key);
                if held || effects.iter().any(|effect| effect.key() == &key) {
                    continue;
                }
                if live.contains_key(&key) && rng.chance(1, 4) {
                    live.remove(&key);
                    effects.push(Effect::Delete { key });
                } else {
                    live.insert(key.clone(), ());
                    let lease = if rng.chance(1, 5) {
                        1 + rng.below(3) as i64
                    } else {
                        0
                    };
                    effects.push(Effect::Put {
                        key,
                        value: value(&mut rng),
                        lease,
                    });
                }
            }
            let revision = Revision(revision);
            if staged.is_none() && rng.chance(1, 8) {
                staged = Some((revision.0, effects.clone()));
                let subs = (0..effects.len() as u32).map(|sub| 3 * sub + 1).collect();
                steps.push(Step::Stage {
                    revision,
                    effects,
                    subs,
                });
            } else {
                steps.push(Step::Write { revision, effects });
            }
        }
        if let Some((at, effects)) = &staged
            && rng.chance(1, 3)
        {
            let revision = Revision(*at);
            if rng.chance(2, 3) {
                steps.push(Step::Commit { revision });
            } else {
                steps.push(Step::Void { revision });
                // The generator counted on it: put the keys right again.
                for effect in effects.clone() {
                    live.remove(effect.key());
                }
                staged = None;
                entries.push(Entry {
                    applied: Applied {
                        index,
                        term: 1,
                        leader: 1,
                    },
                    steps,
                });
                resync(&mut live, &entries);
                continue;
            }
            staged = None;
        }
        if staged.is_none() && rng.chance(1, 6) {
            floor = floor + rng.below((revision - floor) as u64 + 1) as i64;
            steps.push(Step::Compact {
                floor: Revision(floor),
            });
        }
        if rng.chance(1, 5) {
            let name = Bytes::from(format!("record-{}", rng.below(4)));
            let content = rng.chance(3, 4).then(|| value(&mut rng));
            steps.push(Step::Record { name, content });
        }
        entries.push(Entry {
            applied: Applied {
                index,
                term: 1 + index / 50,
                leader: 1,
            },
            steps,
        });
    }
    entries
}

/// Which keys are live after these entries.
fn resync(live: &mut BTreeMap<Bytes, ()>, entries: &[Entry]) {
    let mut staged: BTreeMap<i64, Vec<Effect>> = BTreeMap::new();
    live.clear();
    let apply = |live: &mut BTreeMap<Bytes, ()>, effects: &[Effect]| {
        for effect in effects {
            match effect {
                Effect::Put { key, .. } => live.insert(key.clone(), ()),
                Effect::Delete { key } => live.remove(key),
            };
        }
    };
    for step in entries.iter().flat_map(|entry| &entry.steps) {
        match step {
            Step::Write { effects, .. } => apply(live, effects),
            Step::Stage {
                revision, effects, ..
            } => {
                staged.insert(revision.0, effects.clone());
            }
            Step::Commit { revision } => {
                apply(live, &staged.remove(&revision.0).unwrap_or_default())
            }
            Step::Void { revision } => {
                staged.remove(&revision.0);
            }
            _ => {}
        }
    }
}

fn key(rng: &mut Rng) -> Bytes {
    let long = rng.chance(1, 60);
    let mut key = format!(
        "/registry/{}/{:03}",
        ["pods", "nodes", "events"][rng.below(3) as usize],
        rng.below(60)
    );
    if long {
        key.push_str(&"x".repeat(rng.below(6000) as usize));
    }
    key.into()
}

fn value(rng: &mut Rng) -> Bytes {
    let bytes = match rng.below(20) {
        0 => 2000 + rng.below(20_000),
        1..4 => 500 + rng.below(1500),
        _ => rng.below(300),
    };
    vec![rng.below(256) as u8; bytes as usize].into()
}

/// Everything that can be read of a store.
pub(crate) struct Everything {
    pub(crate) applied: Applied,
    pub(crate) revision: Revision,
    pub(crate) floor: Revision,
    pub(crate) hash: ContentHash,
    pub(crate) undecided: Vec<Revision>,
    pub(crate) present: Vec<KeyValue>,
    pub(crate) at_floor: Vec<KeyValue>,
    pub(crate) counts: Vec<i64>,
    pub(crate) events: Vec<Event>,
    pub(crate) records: Vec<(Vec<u8>, Vec<u8>)>,
    pub(crate) leases: Vec<Vec<u8>>,
}

pub(crate) fn everything(store: &Store) -> Result<Everything, EngineError> {
    everything_inside(store, KeyRange::all())
}

/// The same of some keys only.
pub(crate) fn everything_inside(store: &Store, all: KeyRange) -> Result<Everything, EngineError> {
    let undecided = store.undecided();
    // Below what is undecided everything can be read.
    let newest = undecided
        .first()
        .map_or(store.revision(), |first| Revision(first.0 - 1));
    let newest = newest.min(store.revision());
    let floor = store.floor().max(Revision(1));
    let scan = |at| {
        let mut kvs = Vec::new();
        store.scan(&all, at, &mut |kv| {
            kvs.push(kv.to_owned());
            true
        })?;
        Ok::<_, EngineError>(kvs)
    };
    let mut records = Vec::new();
    store.records(b"", &mut |name, content| {
        records.push((name.to_vec(), content.to_vec()))
    })?;
    let mut leases = Vec::new();
    for lease in 1..4 {
        store.lease_keys(lease, &mut |key| leases.push(key.to_vec()))?;
    }
    Ok(Everything {
        applied: store.applied(),
        revision: store.revision(),
        floor: store.floor(),
        hash: store.applied_hash()?.1,
        present: scan(newest)?,
        at_floor: scan(floor)?,
        counts: vec![store.count(&all, newest)?, store.count(&all, floor)?],
        events: store.events(&all, floor, newest, true)?,
        undecided,
        records,
        leases,
    })
}

impl Everything {
    /// Panics with the first difference, in short.
    pub(crate) fn assert_same(&self, expected: &Self, context: &str) {
        fn short(value: &impl std::fmt::Debug) -> String {
            format!("{value:?}").chars().take(400).collect()
        }
        fn each<T: std::fmt::Debug + PartialEq>(name: &str, a: &[T], b: &[T], context: &str) {
            for i in 0..a.len().max(b.len()) {
                let (a, b) = (a.get(i), b.get(i));
                assert!(
                    a == b,
                    "{context}: {name} {i}: {} but expected {}",
                    short(&a),
                    short(&b)
                );
            }
        }
        assert_eq!(
            (
                self.applied,
                self.revision,
                self.floor,
                &self.undecided,
                &self.counts
            ),
            (
                expected.applied,
                expected.revision,
                expected.floor,
                &expected.undecided,
                &expected.counts
            ),
            "{context}"
        );
        each("present", &self.present, &expected.present, context);
        each("at floor", &self.at_floor, &expected.at_floor, context);
        each("events", &self.events, &expected.events, context);
        each("records", &self.records, &expected.records, context);
        each("leases", &self.leases, &expected.leases, context);
        assert_eq!(self.hash, expected.hash, "{context}");
    }
}

/// Panics with what `pontoonctl tree check` would say is damaged.
pub(crate) fn assert_whole(disk: &dyn Disk, path: &Path) {
    let report = pontoon_engine::inspect::check(disk, path).unwrap();
    let damaged: Vec<_> = report
        .findings
        .iter()
        .filter(|finding| finding.severity != Severity::Note)
        .collect();
    assert!(damaged.is_empty(), "{damaged:?}");
}
