//! What runs beside applying: checkpoints that start by themselves, sweeps,
//! space that comes back; and lists that are read page by page meanwhile.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pontoon_engine::{
    Applied, Config, Effect, EngineError, Entry, KeyRange, Range, Revision, Step, Store, range,
};
use pontoon_wal::disk::sim::Rng;
use pontoon_wal::disk::{Backend, RealDisk};
use tokio::task::{LocalSet, yield_now};

use crate::script::{PATH, assert_whole, disk, everything, open};

fn put(key: u64, bytes: usize) -> Effect {
    let key = format!("key-{key:06}").into();
    let value = vec![b'v'; bytes].into();
    Effect::Put {
        key,
        value,
        lease: 0,
    }
}

/// Applies the next entry; each of the effects is a revision of its own.
fn apply(store: &Store, effects: impl IntoIterator<Item = Effect>) {
    let mut revision = store.last_revision();
    let steps = effects.into_iter().map(|effect| {
        revision = revision.next();
        Step::Write {
            revision,
            effects: vec![effect],
        }
    });
    apply_steps(store, steps.collect());
}

fn apply_steps(store: &Store, steps: Vec<Step>) {
    let index = store.applied().index + 1;
    store
        .apply(&Entry {
            applied: Applied {
                index,
                term: 1,
                leader: 1,
            },
            steps,
        })
        .unwrap();
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap()
}

/// Runs `work` beside the background work of a store with this configuration.
fn tended(config: Config, work: impl AsyncFnOnce(&Store)) {
    let disk = disk(1);
    let store = Arc::new(Store::open(&disk, Path::new(PATH), config).unwrap());
    let runtime = runtime();
    LocalSet::new().block_on(&runtime, async {
        let tended = Arc::clone(&store);
        let task = tokio::task::spawn_local(async move { tended.tend().await });
        work(&store).await;
        store.close();
        task.await.unwrap().unwrap();
    });
}

#[test]
fn a_checkpoint_starts_when_many_pages_have_changed() {
    let config = Config {
        dirty_bytes_max: 1 << 20,
        ..Config::default()
    };
    tended(config, async |store| {
        for i in 0..1500 {
            apply(store, (0..4).map(|k| put(4 * i + k, 500)));
            yield_now().await;
        }
        assert!(
            store.log_needed_after().index > 0,
            "no two checkpoints came by themselves"
        );
        assert!(store.dirty_bytes() < 4 << 20);
    });
}

/// A checkpoint that finds the disk full waits, wherever it is, and what it
/// writes in the end is whole.
#[test]
fn a_checkpoint_waits_for_room_on_a_full_disk() {
    for room in [0, 4 << 10, 40 << 10, 200 << 10] {
        let disk = disk(1);
        let store = Arc::new(open(&disk).unwrap());
        let hash = LocalSet::new().block_on(&runtime(), async {
            let tended = Arc::clone(&store);
            let task = tokio::task::spawn_local(async move { tended.tend().await });
            disk.capacity((64 << 10) + room);
            for i in 0..100 {
                apply(&store, (0..4).map(|k| put(4 * i + k, 500)));
            }
            store.request_checkpoint();
            tokio::time::sleep(Duration::from_secs(10)).await;
            assert_eq!(store.checkpoints().borrow().index, 0, "room {room}");
            assert!(store.failure().is_none());
            // It goes on with what is in memory.
            apply(&store, [put(1, 100)]);
            disk.capacity(u64::MAX);
            store.request_checkpoint();
            let durable = async |index| {
                while store.checkpoints().borrow().index < index {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            };
            durable(100).await;
            store.request_checkpoint();
            durable(101).await;
            let hash = store.applied_hash().unwrap();
            store.close();
            task.await.unwrap().unwrap();
            hash
        });
        drop(store);
        assert_whole(&disk, Path::new(PATH));
        assert_eq!(open(&disk).unwrap().applied_hash().unwrap(), hash);
    }
}

#[test]
fn a_checkpoint_starts_when_the_log_has_grown_or_on_request() {
    let config = Config {
        log_bytes_max: 64 << 10,
        ..Config::default()
    };
    tended(config, async |store| {
        for _ in 0..600 {
            apply(store, [put(1, 500)]);
            yield_now().await;
        }
        let needed = store.log_needed_after().index;
        assert!(needed > 300, "the log is needed from {needed} on");
        store.request_checkpoint();
        while store.log_needed_after().index == needed {
            yield_now().await;
        }
    });
}

#[test]
fn what_nobody_writes_any_more_is_checkpointed_and_its_memory_let_go() {
    tended(Config::default(), async |store| {
        for i in 0..1500 {
            apply(store, (0..8).map(|k| put(8 * i + k, 500)));
            yield_now().await;
        }
        assert!(store.dirty_bytes() > 4 << 20);
        // As long as somebody writes, it stays.
        for _ in 0..10 {
            tokio::time::sleep(Duration::from_secs(1)).await;
            apply(store, [put(1, 500)]);
        }
        assert!(store.dirty_bytes() > 4 << 20);
        tokio::time::sleep(Duration::from_secs(4)).await;
        assert_eq!(store.dirty_bytes(), 0);
        assert_eq!(store.checkpoints().borrow().index, store.applied().index);
    });
}

#[test]
fn damage_that_nobody_reads_is_found_in_the_background() {
    let disk = disk(3);
    let store = open(&disk).unwrap();
    for i in 0..200 {
        apply(&store, (0..10).map(|k| put(10 * i + k, 300)));
    }
    store.checkpoint().unwrap();
    let runtime = runtime();
    LocalSet::new().block_on(&runtime, async {
        let tended = Arc::clone(&store);
        let task = tokio::task::spawn_local(async move { tended.tend().await });
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(store.failure().is_none());
        disk.flip_bit(Path::new(PATH), 40 * 4096 * 8 + 9999);
        let hour = Duration::from_secs(3600);
        let found = tokio::time::timeout(hour, task).await.unwrap().unwrap();
        assert!(
            matches!(found, Err(EngineError::Damaged { page: 40, .. })),
            "{found:?}"
        );
        let failure = store.failure().unwrap();
        assert!(
            matches!(failure, EngineError::Damaged { page: 40, .. }),
            "{failure:?}"
        );
        // Every later caller can tell that it was damage.
        let refused = store
            .checkpoint()
            .and_then(|()| store.compact_step(1).map(drop));
        assert!(
            matches!(refused, Err(EngineError::Damaged { page: 40, .. })),
            "{refused:?}"
        );
    });
}

#[test]
fn what_was_split_off_is_shed_and_its_space_used_again() {
    let config = Config {
        dirty_bytes_max: 1 << 20,
        ..Config::default()
    };
    tended(config, async |store| {
        for i in 0..300 {
            apply(store, (0..10).map(|k| put(10 * i + k, 900)));
            yield_now().await;
        }
        let keys = KeyRange::new(&b"\0"[..], "key-000500");
        apply_steps(store, vec![Step::Bounds { keys: keys.clone() }]);
        let hash = store.hash(store.revision()).unwrap();
        apply_steps(store, vec![Step::Shed]);
        while store.is_shedding() {
            assert!(store.dirty_bytes() < 4 << 20);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(store.hash(store.revision()).unwrap(), hash);
        for _ in 0..2 {
            apply(store, [put(1, 1)]);
            store.request_checkpoint();
            let mut checkpoints = store.checkpoints();
            checkpoints.changed().await.unwrap();
        }
        let (bytes, free) = store.file_bytes();
        assert!(
            free > bytes / 2,
            "{free} of {bytes} bytes can be used again"
        );
        assert_eq!(store.count(&keys, store.revision()).unwrap(), 500);
    });
}

#[test]
fn what_is_compacted_is_swept_and_its_space_used_again() {
    let config = Config {
        dirty_bytes_max: 1 << 20,
        ..Config::default()
    };
    tended(config, async |store| {
        let mut sizes = Vec::new();
        for _ in 0..12 {
            for i in 0..100 {
                apply(store, (0..10).map(|k| put(10 * i + k, 300)));
                yield_now().await;
            }
            apply_steps(
                store,
                vec![Step::Compact {
                    floor: store.revision(),
                }],
            );
            while store.compact_step(0).unwrap() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            sizes.push(store.file_bytes().0);
        }
        assert!(sizes[11] < 2 * sizes[3], "{sizes:?}");
    });
}

#[test]
fn the_free_end_of_a_file_is_given_back_while_serving() {
    let disk = disk(2);
    let store = open(&disk).unwrap();
    for i in 0..100 {
        apply(&store, (0..20).map(|k| put(20 * i + k, 1000)));
    }
    store.checkpoint().unwrap();
    let full = store.file_bytes().0;
    let keys = (6..2000).map(|key| Effect::Delete {
        key: format!("key-{key:06}").into(),
    });
    apply(&store, keys);
    apply_steps(
        &store,
        vec![Step::Compact {
            floor: store.revision(),
        }],
    );
    assert!(!store.compact_step(usize::MAX).unwrap());
    for i in 0..6 {
        apply(&store, [put(i, 10)]);
        store.checkpoint().unwrap();
        store.trim().unwrap();
        let seen = everything(&store).unwrap();
        // A crash here finds a file that is shorter than its meta pages say.
        let reopened = open(&disk.process_kill()).unwrap();
        everything(&reopened)
            .unwrap()
            .assert_same(&seen, "after a cut");
    }
    let (bytes, _) = store.file_bytes();
    assert!(bytes < full / 2, "{bytes} of {full} are left");
    assert_eq!(disk.read_file(Path::new(PATH)).unwrap().len() as u64, bytes);
}

#[test]
fn a_file_cut_by_more_than_a_page_of_its_map_opens_again() {
    let dir = tempfile::tempdir().unwrap();
    let disk = RealDisk::new(Backend::Syscalls, dir.path()).unwrap();
    let path = dir.path().join("tree");
    let store = Store::open(&disk, &path, Config::default()).unwrap();
    let large = |key| put(key, 4 << 20);
    apply(&store, (0..40).map(large));
    store.checkpoint().unwrap();
    apply(
        &store,
        (0..40).map(|key| Effect::Delete {
            key: format!("key-{key:06}").into(),
        }),
    );
    apply_steps(
        &store,
        vec![Step::Compact {
            floor: store.revision(),
        }],
    );
    assert!(!store.compact_step(usize::MAX).unwrap());
    for key in 0..4 {
        apply(&store, [put(key, 10)]);
        store.checkpoint().unwrap();
        store.trim().unwrap();
        let copy = Store::open(&disk, &path, Config::default()).unwrap();
        assert_eq!(copy.applied(), store.applied());
        assert_whole(&disk, &path);
    }
    assert!(store.file_bytes().0 < 10 << 20);
    apply(&store, (0..40).map(large));
    store.checkpoint().unwrap();
    drop(store);
    let store = Store::open(&disk, &path, Config::default()).unwrap();
    assert_eq!(store.count(&KeyRange::all(), store.revision()).unwrap(), 40);
}

#[test]
fn a_list_read_by_pages_is_counted_exactly_while_writes_go_on() {
    for seed in 0..6 {
        let mut rng = Rng::new(seed);
        let disk = disk(seed);
        let store = open(&disk).unwrap();
        for i in 0..100 {
            apply(&store, (0..10).map(|k| put(2 * (10 * i + k), 20)));
        }
        let at = store.revision();
        let end = Bytes::from_static(b"key-z");
        let mut from = Bytes::from_static(b"key-");
        let mut left = 1000;
        loop {
            // Whoever lists from the start gets in between; creates, deletes and updates too.
            for _ in 0..rng.below(300) {
                let key = rng.below(2000);
                let live = store
                    .get(format!("key-{key:06}").as_bytes(), store.revision())
                    .unwrap();
                match live {
                    Some(kv) if rng.chance(1, 2) => apply(&store, [Effect::Delete { key: kv.key }]),
                    _ => apply(&store, [put(key, 20)]),
                }
            }
            if rng.chance(1, 3) {
                let mut other = Range::of(KeyRange::new("key-", end.clone()));
                (other.limit, other.revision) = (7, at.0);
                assert_eq!(range(&store, store.revision(), &other).unwrap().count, 1000);
            }
            let mut page = Range::of(KeyRange::new(from.clone(), end.clone()));
            (page.limit, page.revision) = (1 + rng.below(90) as i64, at.0);
            let answer = range(&store, store.revision(), &page).unwrap();
            assert_eq!(answer.count, left, "seed {seed} from {from:?}");
            assert!(answer.kvs.iter().all(|kv| kv.modified <= at));
            left -= answer.kvs.len() as i64;
            assert_eq!(answer.more, left > 0);
            if !answer.more {
                break;
            }
            from = [&answer.kvs[answer.kvs.len() - 1].key[..], &[0]]
                .concat()
                .into();
        }
        assert_eq!(store.count(&KeyRange::all(), Revision(at.0)).unwrap(), 1000);
    }
}

/// Also while the sweep is under way, and if the revision deletes keys.
#[test]
fn the_hash_of_a_revision_is_the_same_before_and_after_a_compaction_to_it() {
    let disk = disk(3);
    let store = open(&disk).unwrap();
    let delete = |key: u64| Effect::Delete {
        key: format!("key-{key:06}").into(),
    };
    for round in 0..4 {
        apply(&store, (0..5).map(|key| put(key, 10 + round)));
        apply(&store, [delete(round as u64)]);
    }
    let revision = store.last_revision().next();
    apply_steps(
        &store,
        vec![Step::Write {
            revision,
            effects: vec![delete(1), put(9, 1), delete(2)],
        }],
    );
    apply(&store, [put(2, 5), put(7, 5)]);
    let newest = store.revision();
    let hashes: Vec<_> = (1..=newest.0)
        .map(|at| store.hash(Revision(at)).unwrap().keys)
        .collect();
    for floor in [4, 6, 13, revision.0, newest.0].map(Revision) {
        apply_steps(&store, vec![Step::Compact { floor }]);
        loop {
            for at in floor.0..=newest.0 {
                let hash = store.hash(Revision(at)).unwrap().keys;
                assert_eq!(hash, hashes[at as usize - 1], "of {at} above {floor:?}");
            }
            if !store.compact_step(1).unwrap() {
                break;
            }
        }
    }
}
