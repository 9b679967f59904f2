//! Crashes at every write and sync of checkpoints, and disks that fail.

use std::path::Path;

use pontoon_engine::{EngineError, Entry, Store};
use pontoon_wal::disk::sim::{Rng, SimDisk};

use crate::script::{Everything, PATH, assert_whole, disk, entries, everything, open};

/// Applies entries from where the store stands, with checkpoints and sweeps
/// in between. Returns the last entry that a finished checkpoint covers.
fn work(store: &Store, entries: &[Entry], seed: u64) -> (u64, Result<(), EngineError>) {
    let mut rng = Rng::new(seed);
    let mut covered = store.applied().index;
    for entry in &entries[covered as usize..] {
        let mut round = || {
            store.apply(entry)?;
            if rng.chance(1, 4) {
                store.compact_step(rng.below(40) as usize)?;
            }
            if rng.chance(1, 5) {
                store.checkpoint()?;
                covered = entry.applied.index;
            }
            Ok(())
        };
        if let Err(error) = round() {
            return (covered, Err(error));
        }
    }
    (covered, Ok(()))
}

/// What can be read after each entry, from a store that never crashed.
fn reference(entries: &[Entry]) -> Vec<Everything> {
    let store = open(&disk(0)).unwrap();
    let mut states = vec![everything(&store).unwrap()];
    for entry in entries {
        store.apply(entry).unwrap();
        states.push(everything(&store).unwrap());
    }
    states
}

/// Opens what the crash left and brings it up to date again.
fn recover(disk: &SimDisk, entries: &[Entry], states: &[Everything], covered: u64, seed: u64) {
    let store = open(disk).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    let index = store.applied().index;
    assert!(
        index >= covered,
        "seed {seed}: entry {covered} was covered, {index} is there"
    );
    everything(&store)
        .unwrap()
        .assert_same(&states[index as usize], &format!("seed {seed}"));
    let (_, result) = work(&store, entries, seed);
    result.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    store.checkpoint().unwrap();
    drop(store);
    assert_whole(disk, Path::new(PATH));
    let store = open(disk).unwrap();
    everything(&store)
        .unwrap()
        .assert_same(&states[entries.len()], &format!("seed {seed}"));
    assert!(!store.compact_step(usize::MAX).unwrap());
    everything(&store)
        .unwrap()
        .assert_same(&states[entries.len()], &format!("seed {seed}"));
}

#[test]
fn a_crash_at_every_operation_leaves_the_last_checkpoint() {
    let mut crashes = 0;
    for seed in 0..3 {
        let entries = entries(seed, 60);
        let states = reference(&entries);
        let whole = disk(seed);
        let store = open(&whole).unwrap();
        work(&store, &entries, seed).1.unwrap();
        let operations = whole.operations();
        for n in disk(seed).operations()..operations {
            let disk = disk(seed);
            disk.crash_at(n);
            let covered = match open(&disk) {
                Err(_) => 0,
                Ok(store) => work(&store, &entries, seed).0,
            };
            assert!(disk.crashed());
            for cut in 0..3 {
                let left = match cut {
                    0 => disk.process_kill(),
                    _ => disk.power_cut(n * 7 + cut),
                };
                recover(&left, &entries, &states, covered, seed);
                crashes += 1;
            }
        }
    }
    println!("{crashes} crashes checked");
    assert!(crashes > 500);
}

#[test]
fn a_second_crash_after_recovery_leaves_a_checkpoint_too() {
    let entries = entries(9, 60);
    let states = reference(&entries);
    let mut rng = Rng::new(9);
    for round in 0..150 {
        let first = disk(round);
        first.crash_at(10 + rng.below(90));
        let mut covered = match open(&first) {
            Err(_) => 0,
            Ok(store) => work(&store, &entries, round).0,
        };
        let second = first.power_cut(round);
        second.crash_at(second.operations() + rng.below(60));
        match open(&second) {
            Err(_) => {}
            Ok(store) => covered = covered.max(work(&store, &entries, round + 1).0),
        }
        recover(
            &second.power_cut(round + 1),
            &entries,
            &states,
            covered,
            round,
        );
    }
}

#[test]
fn a_failed_write_or_sync_stops_the_store_and_loses_nothing() {
    let entries = entries(4, 60);
    let states = reference(&entries);
    for n in 0..60 {
        for sync in [false, true] {
            let disk = disk(n);
            match sync {
                true => disk.fail_sync_at(n / 2),
                false => disk.fail_write_at(n),
            }
            let Ok(store) = open(&disk) else { continue };
            let (covered, result) = work(&store, &entries, n);
            if result.is_err() {
                let failure = store.failure().unwrap().to_string();
                // Every later caller gets the same error, not just its text.
                let refused = store.apply(&entries[entries.len() - 1]).unwrap_err();
                assert!(matches!(refused, EngineError::Disk { .. }), "{refused:?}");
                assert_eq!(refused.to_string(), failure);
                let operation = if sync { ": sync: " } else { ": write of " };
                assert!(failure.contains(operation), "{failure}");
                assert!(failure.ends_with("(os error 5)"), "{failure}");
            }
            drop(store);
            recover(&disk.power_cut(n), &entries, &states, covered, n);
        }
    }
}

#[test]
fn a_file_without_its_first_checkpoint_is_made_anew() {
    let disk = disk(1);
    disk.write_file(Path::new("/data/tree.new"), vec![1; 4096]);
    let store = open(&disk).unwrap();
    assert_eq!(store.applied().index, 0);
    assert!(disk.paths().contains(&PATH.into()));
    assert!(!disk.paths().contains(&"/data/tree.new".into()));
}
