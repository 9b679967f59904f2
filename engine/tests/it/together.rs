//! Readers, a writer, a sweeper, a checkpointer and a copier at once; every
//! answer is checked, and so is what is split off in the end. On real threads, or (with the feature `shuttle`) in orders that a
//! scheduler chooses.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use pontoon_engine::{
    Applied, Config, ContentHash, Copying, Effect, EngineError, Entry, Event, EventKind, KeyRange,
    KvRef, Reject, Revision, Step, Store,
};
use pontoon_wal::disk::Disk;
use pontoon_wal::disk::sim::{Rng, SimDisk};
#[cfg(feature = "shuttle")]
use shuttle::thread;
#[cfg(not(feature = "shuttle"))]
use std::thread;

/// How much work there is.
#[derive(Clone, Copy)]
struct Size {
    keys: u64,
    entries: u64,
    readers: u64,
    reads: u64,
    checkpoints: u64,
    copies: u64,
}

/// What is live after each revision.
type States = BTreeMap<i64, BTreeMap<Bytes, Bytes>>;

struct Plan {
    entries: Vec<Entry>,
    states: States,
    /// Puts and deletes up to and with each revision.
    events: BTreeMap<i64, usize>,
}

fn plan(seed: u64, size: Size) -> Plan {
    let mut rng = Rng::new(seed);
    let mut states = States::from([(1, BTreeMap::new())]);
    let mut changes: BTreeMap<i64, Vec<Effect>> = BTreeMap::new();
    let mut entries = Vec::new();
    let mut revision = 1;
    let mut staged: Option<i64> = None;
    for index in 1..=size.entries {
        revision += 1;
        let state = states.values().next_back().cloned().unwrap_or_default();
        let mut effects = Vec::new();
        for k in 0..size.keys {
            let key = Bytes::from(format!("key-{k:04}"));
            // The last key is left to the transaction across ranges.
            if k + 1 == size.keys || rng.chance(1, 2) {
                continue;
            }
            if state.contains_key(&key) && rng.chance(1, 3) {
                effects.push(Effect::Delete { key });
            } else {
                let value = Bytes::from(format!("{revision}"));
                effects.push(Effect::Put {
                    key,
                    value,
                    lease: 0,
                });
            }
        }
        let mut steps = vec![Step::Write {
            revision: Revision(revision),
            effects: effects.clone(),
        }];
        changes.insert(revision, effects);
        match staged {
            None if index % 3 == 1 => {
                revision += 1;
                let key = Bytes::from(format!("key-{:04}", size.keys - 1));
                let value = Bytes::from(format!("{revision}"));
                let effects = vec![Effect::Put {
                    key,
                    value,
                    lease: 0,
                }];
                steps.push(Step::Stage {
                    revision: Revision(revision),
                    effects: effects.clone(),
                    subs: vec![3],
                });
                changes.insert(revision, effects);
                staged = Some(revision);
            }
            Some(at) if index % 3 == 0 => {
                steps.push(Step::Commit {
                    revision: Revision(at),
                });
                staged = None;
            }
            _ => {}
        }
        if index % 3 == 0 {
            steps.push(Step::Compact {
                floor: Revision(revision - 2),
            });
        }
        entries.push(Entry {
            applied: Applied {
                index,
                term: 1,
                leader: 1,
            },
            steps,
        });
        // States by revision, a staged one counted as committed.
        states = States::from([(1, BTreeMap::new())]);
        let mut state = BTreeMap::new();
        for (revision, effects) in &changes {
            for effect in effects {
                match effect {
                    Effect::Put { key, value, .. } => state.insert(key.clone(), value.clone()),
                    Effect::Delete { key } => state.remove(key),
                };
            }
            states.insert(*revision, state.clone());
        }
    }
    let mut total = 0;
    let events = changes.iter().map(|(revision, effects)| {
        total += effects.len();
        (*revision, total)
    });
    let events = events.collect();
    Plan {
        entries,
        states,
        events,
    }
}

/// Reads all there is at some revision and compares it with the plan. Not
/// every revision can be read: some are compacted, some not decided.
fn read(store: &Store, plan: &Plan, rng: &mut Rng) {
    let newest = store.revision();
    let back = if rng.chance(1, 2) {
        0
    } else {
        rng.below(4) as i64
    };
    let at = Revision((newest.0 - back).max(1));
    let Some(expected) = plan.states.get(&at.0) else {
        return;
    };
    let all = KeyRange::all();
    let mut found = BTreeMap::new();
    let scanned = store.scan(&all, at, &mut |kv| {
        found.insert(
            Bytes::copy_from_slice(kv.key),
            Bytes::copy_from_slice(kv.value),
        );
        true
    });
    if is_answered(scanned) {
        assert_eq!(&found, expected, "at {at}");
    }
    match store.count(&all, at) {
        Ok(count) => assert_eq!(count, expected.len() as i64, "at {at}"),
        Err(error) => assert!(!is_answered(Err(error))),
    }
    let from = store.floor().max(Revision(2));
    match store.events(&all, from, newest, rng.chance(1, 2)) {
        Ok(events) if from > newest => assert_eq!(events, []),
        Ok(events) => check_events(&events, plan, from, newest),
        Err(error) => assert!(!is_answered(Err(error))),
    }
    // A hash at a revision stays, unless the floor rises or a transaction is decided.
    let before = (store.floor(), store.undecided(), store.applied());
    if let (Ok(one), Ok(other)) = (store.hash(newest), store.hash(newest)) {
        let after = (store.floor(), store.undecided(), store.applied());
        assert!(one == other || before != after, "at {newest}");
    }
}

fn check_events(events: &[Event], plan: &Plan, from: Revision, through: Revision) {
    let upto = |revision: i64| {
        plan.events
            .range(..=revision)
            .next_back()
            .map_or(0, |(_, total)| *total)
    };
    assert_eq!(
        events.len(),
        upto(through.0) - upto(from.0 - 1),
        "from {from} through {through}"
    );
    assert!(events.is_sorted_by(|a, b| a.change < b.change));
    for event in events {
        let state = &plan.states[&event.change.revision.0];
        match event.kind {
            EventKind::Put => assert_eq!(state.get(&event.kv.key), Some(&event.kv.value)),
            EventKind::Delete => assert_eq!(state.get(&event.kv.key), None),
        }
    }
}

fn is_answered(result: Result<(), EngineError>) -> bool {
    match result {
        Ok(()) => true,
        Err(EngineError::Reject(Reject::Compacted) | EngineError::Undecided(_)) => false,
        Err(error) => panic!("{error}"),
    }
}

/// The hash once each entry is applied, from a store that does nothing else.
fn hashes(plan: &Plan) -> Vec<ContentHash> {
    let disk = SimDisk::new(0);
    disk.create_dir(Path::new("/data")).unwrap();
    let store = Store::open(&disk, Path::new("/data/tree"), Config::default()).unwrap();
    let mut hashes = vec![store.applied_hash().unwrap().1];
    for entry in &plan.entries {
        store.apply(entry).unwrap();
        hashes.push(store.applied_hash().unwrap().1);
    }
    hashes
}

/// Decides what is undecided, splits the store and compares what was split off.
fn split(store: &Arc<Store>, disk: &SimDisk, plan: &Plan, copying: Copying, keys: &KeyRange) {
    let apply = |steps| {
        let applied = Applied {
            index: store.applied().index + 1,
            term: 1,
            leader: 1,
        };
        store.apply(&Entry { applied, steps }).unwrap();
    };
    let hash = |store: &Store| store.applied_hash().unwrap().1.keys;
    let undecided = store.undecided().into_iter();
    apply(
        undecided
            .map(|revision| Step::Commit { revision })
            .collect(),
    );
    let whole = hash(store);
    let below = KeyRange::new(&b"\0"[..], keys.key.clone());
    apply(vec![Step::Bounds { keys: below }]);
    copying.finish(&[]).unwrap();
    let child = Store::open(disk, Path::new("/data/child"), Config::default()).unwrap();
    assert_eq!(hash(store).wrapping_add(hash(&child)), whole);
    for at in child.floor().0.max(1)..=child.revision().0 {
        let mut found = BTreeMap::new();
        let mut visit = |kv: KvRef<'_>| {
            let value = Bytes::copy_from_slice(kv.value);
            found.insert(Bytes::copy_from_slice(kv.key), value);
            true
        };
        child
            .scan(&KeyRange::all(), Revision(at), &mut visit)
            .unwrap();
        let mut expected = plan.states[&at].clone();
        expected.retain(|key, _| keys.contains(key));
        assert_eq!(found, expected, "at {at}");
        let count = child.count(&KeyRange::all(), Revision(at)).unwrap();
        assert_eq!(count, expected.len() as i64, "at {at}");
    }
    let (from, through) = (child.floor().max(Revision(2)), child.revision());
    let ours = child.events(&KeyRange::all(), from, through, true).unwrap();
    assert_eq!(ours, store.events(keys, from, through, true).unwrap());
}

fn meet(seed: u64, size: Size) {
    let plan = Arc::new(plan(seed, size));
    let hashes = Arc::new(hashes(&plan));
    let disk = SimDisk::new(seed);
    disk.create_dir(Path::new("/data")).unwrap();
    // A small window, so that events come from the tables too.
    let config = Config {
        recent_bytes_max: 600,
        ..Config::default()
    };
    let store = Arc::new(Store::open(&disk, Path::new("/data/tree"), config.clone()).unwrap());
    let mut threads = Vec::new();
    for reader in 0..size.readers {
        let (store, plan) = (Arc::clone(&store), Arc::clone(&plan));
        threads.push(thread::spawn(move || {
            let mut rng = Rng::new(seed * 31 + reader);
            for _ in 0..size.reads {
                read(&store, &plan, &mut rng);
            }
        }));
    }
    {
        let store = Arc::clone(&store);
        threads.push(thread::spawn(move || {
            for _ in 0..size.checkpoints {
                let moment = store.hash_later();
                store.checkpoint().unwrap();
                let (applied, hash) = moment.finish().unwrap();
                assert_eq!(hash, hashes[applied.index as usize], "{applied:?}");
                store.compact_step(3).unwrap();
            }
        }));
    }
    let keys = KeyRange::new(format!("key-{:04}", size.keys / 2), &b"\0"[..]);
    let copier = {
        let (store, keys) = (Arc::clone(&store), keys.clone());
        let disk: Arc<dyn Disk> = Arc::new(disk.clone());
        thread::spawn(move || {
            let path = Path::new("/data/child");
            let mut copying = Copying::begin(&store, &disk, path, Config::default(), keys).unwrap();
            for _ in 0..size.copies {
                copying.advance().unwrap();
            }
            copying
        })
    };
    {
        let (store, plan) = (Arc::clone(&store), Arc::clone(&plan));
        threads.push(thread::spawn(move || {
            for entry in &plan.entries {
                store.apply(entry).unwrap();
            }
        }));
    }
    for thread in threads {
        thread.join().unwrap();
    }
    split(&store, &disk, &plan, copier.join().unwrap(), &keys);
    store.checkpoint().unwrap();
    read(&store, &plan, &mut Rng::new(seed));
    let hash = store.applied_hash().unwrap();
    drop(store);
    let store = Store::open(&disk, Path::new("/data/tree"), config).unwrap();
    read(&store, &plan, &mut Rng::new(seed));
    assert_eq!(store.applied_hash().unwrap(), hash);
    while store.compact_step(100).unwrap() {}
    assert_eq!(store.applied_hash().unwrap(), hash);
}

#[cfg(not(feature = "shuttle"))]
#[test]
fn readers_at_pinned_revisions_see_what_never_changes() {
    for seed in 0..4 {
        let size = Size {
            keys: 700,
            entries: 60,
            readers: 3,
            reads: 60,
            checkpoints: 60,
            copies: 100,
        };
        meet(seed, size);
    }
}

#[cfg(feature = "shuttle")]
#[test]
fn readers_at_pinned_revisions_see_what_never_changes_in_any_order() {
    let size = Size {
        keys: 5,
        entries: 8,
        readers: 2,
        reads: 3,
        checkpoints: 3,
        copies: 12,
    };
    shuttle::check_random(move || meet(1, size), 1500);
    shuttle::check_pct(move || meet(2, size), 1500, 3);
}
