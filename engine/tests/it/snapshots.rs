//! Snapshots: copies that stand still while the store goes on.

use std::path::Path;
use std::sync::Arc;

use pontoon_engine::{Config, EngineError, Install, Store};

use crate::script::{disk, entries, everything, open};

const COPY: &str = "/data/copy";

#[test]
fn a_snapshot_is_the_checkpoint_it_was_taken_of_whatever_happens_meanwhile() {
    let disk = disk(1);
    let store = open(&disk).unwrap();
    let entries = entries(11, 120);
    for entry in &entries[..60] {
        store.apply(entry).unwrap();
    }
    store.checkpoint().unwrap();
    let expected = everything(&store).unwrap();
    let snapshot = store.snapshot().unwrap();
    assert_eq!(snapshot.applied(), store.applied());
    let mut install = Install::begin(&disk, Path::new(COPY)).unwrap();
    let mut page = 0;
    let mut bytes = 0;
    let mut rest = entries[60..].iter();
    while let Some(piece) = snapshot.read(page).unwrap() {
        page = piece.next();
        bytes += piece.bytes.len() as u64;
        install.add(&piece).unwrap();
        // Pages are freed, written and, but for the snapshot, used again.
        for entry in rest.by_ref().take(3) {
            store.apply(entry).unwrap();
            store.compact_step(50).unwrap();
            store.checkpoint().unwrap();
        }
    }
    // One of the two meta pages is not sent.
    assert_eq!(bytes, snapshot.bytes() - 4096);
    install.finish(&disk).unwrap();
    let free = store.file_bytes().1;
    drop(snapshot);
    store.apply(rest.next().unwrap()).unwrap();
    store.checkpoint().unwrap();
    assert!(
        store.file_bytes().1 > free,
        "what the snapshot kept can be used again"
    );
    for entry in rest {
        store.apply(entry).unwrap();
    }
    let copy = Store::open(&disk, Path::new(COPY), Config::default()).unwrap();
    everything(&copy).unwrap().assert_same(&expected, "copy");
    for entry in &entries[60..] {
        copy.apply(entry).unwrap();
    }
    everything(&copy)
        .unwrap()
        .assert_same(&everything(&store).unwrap(), "copy, brought up to date");
}

#[test]
fn a_damaged_page_is_neither_sent_nor_installed() {
    let disk = disk(2);
    let store = open(&disk).unwrap();
    for entry in &entries(12, 40) {
        store.apply(entry).unwrap();
    }
    store.checkpoint().unwrap();
    let snapshot = store.snapshot().unwrap();
    let mut pieces = Vec::new();
    let mut page = 0;
    while let Some(piece) = snapshot.read(page).unwrap() {
        page = piece.next();
        pieces.push(piece);
    }
    for i in 0..pieces.len() {
        let mut install = Install::begin(&disk, Path::new(COPY)).unwrap();
        let mut result = Ok(());
        for (k, piece) in pieces.iter().enumerate() {
            let mut piece = piece.clone();
            if k == i {
                let middle = piece.bytes.len() / 2;
                let mut bytes = piece.bytes.to_vec();
                bytes[middle] ^= 1;
                piece.bytes = bytes.into();
            }
            result = result.and_then(|()| install.add(&piece));
        }
        let result = result.and_then(|()| install.finish(&disk));
        assert!(
            matches!(result, Err(EngineError::Damaged { .. })),
            "piece {i}"
        );
    }
    drop(snapshot);
    drop(Arc::try_unwrap(store).ok().unwrap());
    let first = pieces[0].page;
    disk.flip_bit(Path::new("/data/tree"), first * 4096 * 8 + 1000);
    let store = open(&disk).unwrap();
    let snapshot = store.snapshot().unwrap();
    let mut page = 0;
    let error = loop {
        match snapshot.read(page) {
            Ok(Some(piece)) => page = piece.next(),
            Ok(None) => panic!("the damage was not seen"),
            Err(error) => break error,
        }
    };
    assert!(
        matches!(error, EngineError::Damaged { page, .. } if page == first),
        "{error}"
    );
}
