//! Keys that are split off become a store of their own, the same one whenever
//! and wherever it is made; a crash at any moment leaves it whole or not at
//! all; and what was left behind can go.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use pontoon_engine::{
    Applied, Config, Copying, Effect, EngineError, Entry, Install, KeyRange, Revision, Step, Store,
};
use pontoon_wal::disk::Disk;
use pontoon_wal::disk::sim::{Rng, SimDisk};

use crate::script::{
    Everything, PATH, assert_whole, disk, entries, everything, everything_inside, open,
};

const CHILD: &str = "/data/child";
/// Among the keys of the script.
const AT: &str = "/registry/nodes/030";

fn lower() -> KeyRange {
    KeyRange::new(&b"\0"[..], AT)
}

fn upper() -> KeyRange {
    KeyRange::new(AT, &b"\0"[..])
}

fn config() -> Config {
    // So that copies are written out piece by piece.
    let dirty_bytes_max = 96 << 10;
    Config {
        dirty_bytes_max,
        ..Config::default()
    }
}

fn begin(disk: &SimDisk, store: &Arc<Store>) -> Result<Copying, EngineError> {
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    Copying::begin(store, &disk, Path::new(CHILD), config(), upper())
}

fn records() -> Vec<(Bytes, Bytes)> {
    vec![(Bytes::from("made"), Bytes::from("by a split"))]
}

fn open_child(disk: &SimDisk) -> Result<Store, EngineError> {
    Store::open(disk, Path::new(CHILD), config())
}

fn copy_whole(disk: &SimDisk, store: &Arc<Store>) -> Result<Store, EngineError> {
    begin(disk, store)?.finish(&records())?;
    open_child(disk)
}

fn entry(index: u64, steps: Vec<Step>) -> Entry {
    let applied = Applied {
        index,
        term: 9,
        leader: 1,
    };
    Entry { applied, steps }
}

/// Entries like those of the script, then a split, then work on what is left.
struct Work {
    entries: Vec<Entry>,
    /// Index of the entry that splits.
    split: u64,
    /// Index of the entry after which what was split off may go.
    shed: u64,
}

fn work(seed: u64, count: u64) -> Work {
    let mut entries = entries(seed, count);
    let disk = disk(0);
    let store = open(&disk).unwrap();
    entries.iter().for_each(|entry| store.apply(entry).unwrap());
    let voids = store.undecided().into_iter();
    let mut steps: Vec<_> = voids.map(|revision| Step::Void { revision }).collect();
    steps.push(Step::Bounds { keys: lower() });
    let split = count + 1;
    entries.push(entry(split, steps));
    let mut revision = store.last_revision();
    for i in 0..12u64 {
        revision = revision.next();
        let write = Step::Write {
            revision,
            effects: vec![Effect::Put {
                key: format!("/registry/events/{:03}", i * 7 % 20).into(),
                value: vec![b'n'; 700 * i as usize].into(),
                lease: 0,
            }],
        };
        let mut steps = vec![write];
        if i == 4 {
            steps.push(Step::Compact {
                floor: revision.previous(),
            });
        }
        if i == 6 {
            steps.push(Step::Shed);
        }
        entries.push(entry(split + 1 + i, steps));
    }
    let shed = split + 7;
    Work {
        entries,
        split,
        shed,
    }
}

/// Applies entries up to and with one.
fn apply(store: &Store, work: &Work, through: u64) -> Result<(), EngineError> {
    for entry in &work.entries[store.applied().index as usize..through as usize] {
        store.apply(entry)?;
    }
    Ok(())
}

/// What is readable at the split, of the keys inside and of those split off,
/// and at the end, of those inside; from a store that only ever applied.
struct Reference {
    inside: Everything,
    outside: Everything,
    end: Everything,
}

fn reference(work: &Work) -> Reference {
    let disk = disk(0);
    let store = open(&disk).unwrap();
    apply(&store, work, work.split - 1).unwrap();
    // The split decides what was undecided, and nothing else.
    let mut decide = work.entries[work.split as usize - 1].clone();
    decide.steps.pop();
    store.apply(&decide).unwrap();
    let before = store.applied_hash().unwrap().1;
    let mut outside = everything_inside(&store, upper()).unwrap();
    let store = open(&self::disk(0)).unwrap();
    apply(&store, work, work.split).unwrap();
    let inside = everything_inside(&store, lower()).unwrap();
    assert_ne!(inside.hash.keys, before.keys);
    outside.applied = Applied {
        index: 1,
        term: 0,
        leader: 0,
    };
    outside.hash.keys = before.keys.wrapping_sub(inside.hash.keys);
    // The hash of the records was checked elsewhere.
    outside.records = records()
        .iter()
        .map(|(name, content)| (name.to_vec(), content.to_vec()))
        .collect();
    let mut leases: Vec<Vec<u8>> = Vec::new();
    for lease in 1..4 {
        let keys = outside.present.iter().filter(|kv| kv.lease == lease);
        leases.extend(keys.map(|kv| kv.key.to_vec()));
    }
    outside.leases = leases;
    apply(&store, work, work.entries.len() as u64).unwrap();
    let end = everything_inside(&store, lower()).unwrap();
    Reference {
        inside,
        outside,
        end,
    }
}

/// Compares a child with what was split off.
fn assert_child(child: &Store, expected: &Everything, context: &str) {
    assert_eq!(child.bounds(), upper());
    let mut found = everything(child).unwrap();
    assert_eq!(found.undecided, []);
    assert!(expected.undecided.is_empty(), "decided by the split");
    found.hash.records = expected.hash.records;
    found.assert_same(expected, context);
}

#[test]
fn a_child_is_the_same_whenever_it_is_made() {
    for seed in 0..6 {
        let work = work(seed, 80);
        let expected = reference(&work);
        let disk = disk(seed);
        let store = open(&disk).unwrap();
        // Begun before the split, while there is something to sweep.
        let mut rng = Rng::new(seed);
        apply(&store, &work, rng.below(60)).unwrap();
        store.compact_step(rng.below(60) as usize).unwrap();
        let mut copying = begin(&disk, &store).unwrap();
        while store.applied().index < work.split {
            apply(&store, &work, store.applied().index + 1).unwrap();
            for _ in 0..rng.below(4) {
                copying.advance().unwrap();
            }
            store.compact_step(10).unwrap();
            if rng.chance(1, 8) {
                store.checkpoint().unwrap();
            }
        }
        copying.finish(&records()).unwrap();
        assert_whole(&disk, Path::new(CHILD));
        assert_child(&open_child(&disk).unwrap(), &expected.outside, "before");
        // After the split, when the floor has risen and what it allows is swept.
        apply(&store, &work, work.split + 5).unwrap();
        while store.compact_step(50).unwrap() {}
        store.checkpoint().unwrap();
        assert_whole(&disk, Path::new(PATH));
        assert_child(
            &copy_whole(&disk, &store).unwrap(),
            &expected.outside,
            "after",
        );
        assert_whole(&disk, Path::new(CHILD));
        // Each of its two checkpoints has all of it.
        for page in 0..2 {
            let damaged = disk.fork();
            damaged.flip_bit(Path::new(CHILD), page * 4096 * 8 + 999);
            assert_child(&open_child(&damaged).unwrap(), &expected.outside, "half");
        }
        // After a restart, and from a snapshot on another machine.
        let snapshot = store.snapshot().unwrap();
        let other = self::disk(seed + 100);
        let mut install = Install::begin(&other, Path::new(PATH)).unwrap();
        let mut page = 0;
        while let Some(piece) = snapshot.read(page).unwrap() {
            page = piece.next();
            install.add(&piece).unwrap();
        }
        install.finish(&other).unwrap();
        drop((snapshot, store));
        for disk in [disk, other] {
            let store = open(&disk).unwrap();
            let child = copy_whole(&disk, &store).unwrap();
            assert_child(&child, &expected.outside, "elsewhere");
        }
    }
}

#[test]
fn what_is_split_off_and_what_is_left_have_the_hash_of_the_whole_while_it_is_shed() {
    for seed in 0..6 {
        let work = work(seed, 80);
        let expected = reference(&work);
        let disk = disk(seed);
        let store = open(&disk).unwrap();
        apply(&store, &work, work.split).unwrap();
        let found = everything_inside(&store, lower()).unwrap();
        found.assert_same(&expected.inside, "at the split");
        copy_whole(&disk, &store).unwrap();
        apply(&store, &work, work.entries.len() as u64).unwrap();
        assert!(store.is_shedding());
        let mut rng = Rng::new(seed);
        let mut store = store;
        loop {
            let found = everything_inside(&store, lower()).unwrap();
            found.assert_same(&expected.end, "while it is shed");
            if !store.shed_step(rng.below(30) as usize).unwrap() {
                break;
            }
            if rng.chance(1, 4) {
                store.compact_step(rng.below(20) as usize).unwrap();
            }
            if rng.chance(1, 6) {
                store.checkpoint().unwrap();
                drop(store);
                assert_whole(&disk, Path::new(PATH));
                store = open(&disk).unwrap();
                apply(&store, &work, work.entries.len() as u64).unwrap();
            }
        }
        assert!(!store.is_shedding());
        while store.compact_step(50).unwrap() {}
        let found = everything_inside(&store, lower()).unwrap();
        found.assert_same(&expected.end, "when it is shed");
        store
            .scan(&upper(), store.revision(), &mut |kv| {
                panic!("{kv:?} is left")
            })
            .unwrap();
        apply(&store, &work, work.entries.len() as u64).unwrap();
        store
            .apply(&entry(work.entries.len() as u64 + 1, Vec::new()))
            .unwrap();
        store.checkpoint().unwrap();
        assert_whole(&disk, Path::new(PATH));
    }
}

/// All of it, with checkpoints in between. Returns the last entry that a
/// checkpoint covers.
fn live(disk: &SimDisk, work: &Work, seed: u64) -> (u64, Result<(), EngineError>) {
    let mut covered = 0;
    let mut run = || {
        let store = open(disk)?;
        let mut rng = Rng::new(seed);
        let mut checkpoint = |store: &Store| {
            store.checkpoint()?;
            covered = store.applied().index;
            Ok::<_, EngineError>(())
        };
        apply(&store, work, work.split - 12)?;
        checkpoint(&store)?;
        let mut copying = begin(disk, &store)?;
        while store.applied().index < work.split {
            apply(&store, work, store.applied().index + 1)?;
            copying.advance()?;
        }
        checkpoint(&store)?;
        copying.finish(&records())?;
        apply(&store, work, work.shed)?;
        checkpoint(&store)?;
        while store.shed_step(40)? {
            store.compact_step(20)?;
            if rng.chance(1, 4) {
                let next = (store.applied().index + 1).min(work.entries.len() as u64);
                apply(&store, work, next)?;
                checkpoint(&store)?;
            }
        }
        apply(&store, work, work.entries.len() as u64)?;
        checkpoint(&store)
    };
    let result = run();
    (covered, result)
}

/// Opens what a crash left: the child is there whole, or can be made again.
fn recover(disk: &SimDisk, work: &Work, expected: &Reference, covered: u64, context: &str) {
    let store = open(disk).unwrap_or_else(|error| panic!("{context}: {error}"));
    let index = store.applied().index;
    assert!(index >= covered, "{context}: {covered} was covered");
    if disk.paths().contains(&CHILD.into()) {
        assert_whole(disk, Path::new(CHILD));
        let child = open_child(disk).unwrap_or_else(|error| panic!("{context}: {error}"));
        assert_child(&child, &expected.outside, context);
    } else {
        assert!(index < work.shed, "{context}: shed before it was copied");
        apply(&store, work, work.split.max(index)).unwrap();
        assert_child(
            &copy_whole(disk, &store).unwrap(),
            &expected.outside,
            context,
        );
    }
    apply(&store, work, work.entries.len() as u64).unwrap();
    while store.shed_step(1000).unwrap() {}
    while store.compact_step(1000).unwrap() {}
    let found = everything_inside(&store, lower()).unwrap();
    found.assert_same(&expected.end, context);
    store.checkpoint().unwrap();
    drop(store);
    assert_whole(disk, Path::new(PATH));
}

#[test]
fn a_crash_at_every_operation_leaves_a_child_whole_or_to_be_made_again() {
    let mut crashes = 0;
    for seed in 0..2 {
        let work = work(seed, 50);
        let expected = reference(&work);
        let whole = disk(seed);
        live(&whole, &work, seed).1.unwrap();
        for n in disk(seed).operations()..whole.operations() {
            let disk = disk(seed);
            disk.crash_at(n);
            let (covered, _) = live(&disk, &work, seed);
            assert!(disk.crashed());
            for cut in 0..3 {
                let left = match cut {
                    0 => disk.process_kill(),
                    _ => disk.power_cut(n * 7 + cut),
                };
                let context = format!("seed {seed}, operation {n}, cut {cut}");
                recover(&left, &work, &expected, covered, &context);
                crashes += 1;
            }
        }
    }
    println!("{crashes} crashes checked");
    assert!(crashes > 300);
}

#[test]
fn a_disk_that_fails_under_the_copy_leaves_the_store_alone() {
    let work = work(5, 50);
    let expected = reference(&work);
    let mut failures = 0;
    for n in 0..40 {
        for sync in [false, true] {
            let disk = disk(n);
            let store = open(&disk).unwrap();
            apply(&store, &work, work.split).unwrap();
            store.checkpoint().unwrap();
            match sync {
                true => disk.fail_sync_at(disk.syncs() + n),
                false => disk.fail_write_at(disk.writes() + n),
            }
            if copy_whole(&disk, &store).is_err() {
                failures += 1;
                assert!(store.failure().is_none());
                let child = copy_whole(&disk, &store).unwrap();
                assert_child(&child, &expected.outside, &format!("failure {n}"));
            }
        }
    }
    assert!(failures > 10, "{failures}");
}

#[test]
fn a_flipped_bit_is_reported_and_not_copied() {
    let work = work(3, 60);
    let expected = reference(&work);
    let disk = disk(3);
    let store = open(&disk).unwrap();
    apply(&store, &work, work.split).unwrap();
    store.checkpoint().unwrap();
    drop(store);
    let bytes = disk.read_file(Path::new(PATH)).unwrap().len() as u64;
    let mut rng = Rng::new(3);
    let (mut reported, mut harmless) = (0, 0);
    for page in 2..bytes / 4096 {
        let damaged = disk.fork();
        damaged.flip_bit(Path::new(PATH), (page * 4096 + rng.below(4096)) * 8);
        let child = open(&damaged).and_then(|store| copy_whole(&damaged, &store));
        match child {
            Ok(child) => {
                assert_child(&child, &expected.outside, &format!("page {page}"));
                harmless += 1;
            }
            Err(EngineError::Damaged {
                page: named, file, ..
            }) => {
                assert_eq!(file, Path::new(PATH));
                assert!(named <= page, "page {page} is wrong, {named} is named");
                reported += 1;
                let paths = damaged.paths();
                assert!(!paths.iter().any(|path| path.starts_with("/data/child")));
            }
            Err(error) => panic!("page {page}: {error}"),
        }
    }
    println!("{reported} reported, {harmless} where nothing is copied");
    assert!(reported > 20, "{reported} reported, {harmless} harmless");
}

#[test]
fn the_hash_of_a_moment_is_that_of_the_moment_whatever_comes_after() {
    let work = work(4, 60);
    let (one, other) = (disk(4), disk(4));
    let (store, twin) = (open(&one).unwrap(), open(&other).unwrap());
    let mut moments = Vec::new();
    for entry in &work.entries {
        store.apply(entry).unwrap();
        twin.apply(entry).unwrap();
        if entry.applied.index % 10 != 0 && entry.applied.index < work.split {
            store.compact_step(5).unwrap();
            continue;
        }
        moments.push((store.hash_later(), twin.applied_hash().unwrap()));
    }
    // The last first: it counts what lies outside.
    let mut rng = Rng::new(4);
    while let Some((moment, expected)) = moments.pop() {
        assert_eq!(moment.finish().unwrap(), expected);
        store.shed_step(rng.below(40) as usize).unwrap();
        store.compact_step(rng.below(40) as usize).unwrap();
    }
    let end = store.hash_later();
    assert!(!store.compact_step(1).unwrap(), "it waits for the moment");
    while store.shed_step(10).unwrap() {}
    assert!(store.is_shedding(), "and so does this");
    assert_eq!(end.finish().unwrap(), twin.applied_hash().unwrap());
    while store.shed_step(10).unwrap() {}
    assert!(!store.is_shedding());
}

#[test]
fn what_can_not_be_split_is_refused() {
    let disk = disk(1);
    let store = open(&disk).unwrap();
    let put = |key: &'static str| Effect::Put {
        key: Bytes::from(key),
        value: Bytes::new(),
        lease: 7,
    };
    let write = |revision, key| Step::Write {
        revision: Revision(revision),
        effects: vec![put(key)],
    };
    let range = |key: &'static str, end: &'static str| KeyRange::new(key, end);
    let bounds = |keys| Step::Bounds { keys };
    let apply = |steps| store.apply(&entry(store.applied().index + 1, steps));
    let assert_refused = |steps| {
        let refused = apply(steps);
        assert!(
            matches!(refused, Err(EngineError::Unappliable { .. })),
            "{refused:?}"
        );
    };
    // These are all it ever has.
    apply(vec![bounds(range("a", "x")), Step::Shed]).unwrap();
    assert_eq!(store.splits(), []);
    let stage = Step::Stage {
        revision: Revision(3),
        effects: vec![put("c"), put("p")],
        subs: vec![0, 1],
    };
    apply(vec![write(2, "b"), stage]).unwrap();
    assert_refused(vec![bounds(range("a", "y"))]);
    assert_refused(vec![bounds(KeyRange::all())]);
    assert_refused(vec![bounds(range("c", "b"))]);
    // Something undecided would be outside.
    assert_refused(vec![bounds(range("a", "m"))]);
    let revision = Revision(3);
    assert_refused(vec![
        Step::Commit { revision },
        bounds(range("a", "m")),
        write(4, "n"),
    ]);
    apply(vec![Step::Commit { revision }, bounds(range("a", "m"))]).unwrap();
    assert_refused(vec![write(4, "n")]);
    assert_eq!(store.splits().len(), 1);
    assert_eq!(store.splits()[0].keys, range("m", "x"));
    // Leases of the store are those of its own keys.
    let mut keys = Vec::new();
    store
        .lease_keys(7, &mut |key| keys.push(key.to_vec()))
        .unwrap();
    assert_eq!(keys, [b"b", b"c"]);
    // What isn't split off, or is shed, can't be finished.
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let begin = |keys| Copying::begin(&store, &shared, Path::new(CHILD), config(), keys).unwrap();
    let refused = begin(range("a", "m")).finish(&[]);
    assert!(
        matches!(refused, Err(EngineError::NotSplit(_))),
        "{refused:?}"
    );
    let copying = begin(range("m", "x"));
    apply(vec![Step::Shed]).unwrap();
    assert!(store.shed_step(10).unwrap(), "it is counted first");
    while store.shed_step(10).unwrap() {}
    assert!(store.is_shedding(), "the copy holds it");
    let refused = copying.finish(&[]);
    assert!(
        matches!(refused, Err(EngineError::NotSplit(_))),
        "{refused:?}"
    );
    while store.shed_step(10).unwrap() {}
    assert!(!store.is_shedding());
    assert_eq!(disk.paths(), [Path::new(PATH)]);
}

#[test]
fn a_second_split_may_come_before_the_first_is_shed() {
    let disk = disk(2);
    // Events come from the tables.
    let recent_bytes_max = 0;
    let config_of_store = Config {
        recent_bytes_max,
        ..Config::default()
    };
    let store = Store::open(&disk, Path::new(PATH), config_of_store);
    let store = Arc::new(store.unwrap());
    for entry in &entries(2, 60) {
        store.apply(entry).unwrap();
    }
    let voids = store.undecided().into_iter();
    let voids = voids.map(|revision| Step::Void { revision }).collect();
    store.apply(&entry(61, voids)).unwrap();
    let whole = store.applied_hash().unwrap().1.keys;
    let first = KeyRange::new("/registry/pods", &b"\0"[..]);
    let second = KeyRange::new("/registry/nodes", "/registry/pods");
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let split = |keys: &KeyRange, path: &str| {
        let path = Path::new(path);
        let copying = Copying::begin(&store, &shared, path, config(), keys.clone()).unwrap();
        copying.finish(&[]).unwrap();
        let child = Store::open(&disk, path, config()).unwrap();
        child.applied_hash().unwrap().1.keys
    };
    let bounds = |end: &KeyRange| Step::Bounds {
        keys: KeyRange::new(&b"\0"[..], end.key.clone()),
    };
    let apply = |steps| {
        store
            .apply(&entry(store.applied().index + 1, steps))
            .unwrap()
    };
    apply(vec![bounds(&first)]);
    let one = store.applied_hash().unwrap().1.keys;
    apply(vec![bounds(&second)]);
    let two = store.applied_hash().unwrap().1.keys;
    let upper = split(&first, "/data/first");
    assert_eq!(upper.wrapping_add(one), whole);
    apply(vec![Step::Shed]);
    assert_eq!(store.splits(), []);
    // A third one while the first two go.
    assert!(store.shed_step(1).unwrap(), "there is more");
    let third = KeyRange::new("/registry/events/030", "/registry/nodes");
    apply(vec![bounds(&third)]);
    let mut rounds = 0;
    while store.is_shedding() {
        store.shed_step(20).unwrap();
        let inside = store.applied_hash().unwrap().1.keys;
        let outside = split(&third, "/data/third");
        assert_eq!(outside.wrapping_add(inside), two);
        // A caller who asks for what is going is told nothing wrong.
        let events = store.events(&KeyRange::all(), store.floor(), store.revision(), true);
        assert!(!events.unwrap().is_empty());
        rounds += 1;
    }
    assert!(rounds > 3, "{rounds}");
    apply(Vec::new());
    store.checkpoint().unwrap();
    assert_whole(&disk, Path::new(PATH));
}

#[test]
fn the_middle_key_has_as_many_below_as_behind() {
    let disk = disk(1);
    let store = open(&disk).unwrap();
    assert_eq!(store.middle_key().unwrap(), None);
    for n in 0..1000u64 {
        let effects = vec![Effect::Put {
            key: format!("k{n:04}").into(),
            value: Bytes::from_static(b"v"),
            lease: 0,
        }];
        let revision = Revision(n as i64 + 2);
        let step = Step::Write { revision, effects };
        store.apply(&entry(n + 1, vec![step])).unwrap();
    }
    assert_eq!(store.middle_key().unwrap().unwrap(), "k0500");
    let keys = KeyRange::new("k0100", "k0200");
    store
        .apply(&entry(1001, vec![Step::Bounds { keys }]))
        .unwrap();
    assert_eq!(store.middle_key().unwrap().unwrap(), "k0150");
}

#[test]
fn a_store_in_which_nothing_was_written_is_split_like_others() {
    let disk = disk(1);
    let store = Arc::new(open(&disk).unwrap());
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let keys = KeyRange::new(&b"m"[..], &b"\0"[..]);
    let path = Path::new("/data/child");
    let copying = Copying::begin(&store, &shared, path, config(), keys.clone()).unwrap();
    let lower = KeyRange::new(&b"\0"[..], &b"m"[..]);
    let bounds = Step::Bounds { keys: lower };
    store.apply(&entry(1, vec![bounds])).unwrap();
    copying.finish(&[]).unwrap();
    let child = Store::open(&disk, path, config()).unwrap();
    assert_eq!(child.bounds(), keys);
    assert_eq!(child.last_revision(), store.last_revision());
    store.apply(&entry(2, vec![Step::Shed])).unwrap();
    assert!(store.splits().is_empty() && !store.is_shedding());
}
