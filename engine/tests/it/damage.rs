//! Flipped bits: reported with page and file, never returned as data.

use std::path::Path;

use pontoon_engine::EngineError;
use pontoon_wal::disk::sim::Rng;

use crate::script::{PATH, disk, entries, everything, open};

#[test]
fn a_flipped_bit_in_any_page_is_reported_and_never_read() {
    let disk = disk(3);
    let store = open(&disk).unwrap();
    for entry in &entries(3, 80) {
        store.apply(entry).unwrap();
        if entry.applied.index % 30 == 0 {
            store.checkpoint().unwrap();
        }
    }
    store.checkpoint().unwrap();
    let whole = everything(&store).unwrap();
    drop(store);
    let bytes = disk.read_file(Path::new(PATH)).unwrap().len() as u64;
    let mut rng = Rng::new(3);
    let (mut reported, mut harmless) = (0, 0);
    for page in 0..bytes / 4096 {
        // Anywhere, and in the field that says how many pages belong together.
        let anywhere = (0..4).map(|_| rng.below(4096 * 8));
        let length = (0..32).map(|bit| 24 * 8 + bit);
        for bit in anywhere.chain(length).collect::<Vec<_>>() {
            let bit = page * 4096 * 8 + bit;
            let damaged = disk.fork();
            damaged.flip_bit(Path::new(PATH), bit);
            let result = open(&damaged).and_then(|store| everything(&store));
            match result {
                // Free pages, and the older of the two checkpoints.
                Ok(read) if read.applied == whole.applied => {
                    read.assert_same(&whole, &format!("page {page} with bit {bit} flipped"));
                    harmless += 1;
                }
                // The newest meta page: the checkpoint before it is whole.
                Ok(read) => assert!(page < 2 && read.applied.index < whole.applied.index),
                Err(EngineError::Damaged {
                    page: named, file, ..
                }) => {
                    assert_eq!(file, Path::new(PATH));
                    // The start of the run that the page is part of.
                    assert!(named <= page, "page {page} is wrong, {named} is named");
                    reported += 1;
                }
                Err(error) => panic!("page {page}: {error}"),
            }
        }
    }
    println!("{reported} reported, {harmless} where nothing is read");
    assert!(reported > harmless / 4);
}

/// Where checks are not remembered, the next read finds what was damaged under
/// a running store, and never returns it.
#[test]
fn damage_of_a_running_store_is_found_by_the_next_read() {
    let disk = disk(4);
    disk.set_volatile(true);
    let store = open(&disk).unwrap();
    for entry in &entries(4, 80) {
        store.apply(entry).unwrap();
    }
    store.checkpoint().unwrap();
    let whole = everything(&store).unwrap();
    let path = Path::new(PATH);
    let bytes = disk.read_file(path).unwrap().len() as u64;
    let mut reported = 0;
    for page in 2..bytes / 4096 {
        let bit = page * 4096 * 8 + 999;
        disk.flip_bit(path, bit);
        match everything(&store) {
            Ok(read) => read.assert_same(&whole, &format!("page {page}")),
            Err(EngineError::Damaged { .. }) => reported += 1,
            Err(error) => panic!("page {page}: {error}"),
        }
        disk.flip_bit(path, bit);
        everything(&store).unwrap().assert_same(&whole, "repaired");
    }
    assert!(reported > 5, "{reported} of {} pages", bytes / 4096);
}

/// A checkpoint is not taken at its word: what it has written is checked when it
/// is read for the first time.
#[test]
fn damage_of_what_a_checkpoint_has_just_written_is_found_by_the_first_read() {
    let disk = disk(6);
    let store = open(&disk).unwrap();
    for entry in &entries(6, 80) {
        store.apply(entry).unwrap();
    }
    store.checkpoint().unwrap();
    let path = Path::new(PATH);
    let bytes = disk.read_file(path).unwrap().len() as u64;
    for page in 2..bytes / 4096 {
        disk.flip_bit(path, page * 4096 * 8 + 999);
    }
    let failure = everything(&store).err();
    assert!(
        matches!(failure, Some(EngineError::Damaged { .. })),
        "{failure:?}"
    );
}

#[test]
fn a_scrub_finds_what_nobody_reads() {
    let disk = disk(5);
    let store = open(&disk).unwrap();
    for entry in &entries(5, 40) {
        store.apply(entry).unwrap();
    }
    store.checkpoint().unwrap();
    let mut page = 0;
    let mut steps = 0;
    loop {
        page = store.scrub_step(page, 8).unwrap();
        steps += 1;
        if page == 0 {
            break;
        }
    }
    assert!(steps > 2);
    drop(store);
    let bytes = disk.read_file(Path::new(PATH)).unwrap().len() as u64;
    let mut found = 0;
    for page in 2..bytes / 4096 {
        let damaged = disk.fork();
        damaged.flip_bit(Path::new(PATH), page * 4096 * 8 + 20_000);
        let Ok(store) = open(&damaged) else { continue };
        let mut next = 0;
        let outcome = loop {
            match store.scrub_step(next, 16) {
                Ok(0) => break Ok(()),
                Ok(page) => next = page,
                Err(error) => break Err(error),
            }
        };
        if let Err(EngineError::Damaged { page: named, .. }) = outcome {
            assert!(named <= page);
            found += 1;
        }
    }
    assert!(found > 10, "{found}");
}

#[test]
fn a_file_that_is_cut_or_foreign_is_refused() {
    let disk = disk(6);
    let store = open(&disk).unwrap();
    for entry in &entries(6, 40) {
        store.apply(entry).unwrap();
    }
    store.checkpoint().unwrap();
    drop(store);
    let bytes = disk.read_file(Path::new(PATH)).unwrap();
    for pages in 0..bytes.len() / 4096 {
        let cut = disk.fork();
        cut.write_file(Path::new(PATH), bytes[..pages * 4096].to_vec());
        assert!(open(&cut).is_err(), "{pages} pages");
    }
    let other = disk.fork();
    other.write_file(Path::new(PATH), vec![7; 8192]);
    assert!(open(&other).is_err());
    let config = pontoon_engine::Config {
        store: 77,
        ..Default::default()
    };
    let refused = pontoon_engine::Store::open(&disk, Path::new(PATH), config);
    assert!(matches!(refused, Err(EngineError::Foreign { .. })));
}
