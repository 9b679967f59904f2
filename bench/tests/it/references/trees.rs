//! Ours and its peers hold the same after the same puts.

use std::collections::BTreeMap;

use pontoon_bench::pods::{Pods, Puts};
use pontoon_bench::tree_peers::{Content, Lmdb, Record, Redb};
use pontoon_bench::trees::Tree;
use pontoon_engine::{Config, KeyRange, Revision};

/// What a peer would answer to a read at a revision.
fn at(content: &Content, revision: i64) -> BTreeMap<Vec<u8>, Record> {
    let mut state: BTreeMap<Vec<u8>, Record> = BTreeMap::new();
    for (key, record) in content.history.iter().chain(&content.current) {
        let newest = state.get(key).map_or(0, |record| record.revision);
        if record.revision <= revision && record.revision > newest {
            state.insert(key.clone(), record.clone());
        }
    }
    state
}

#[test]
fn the_same_puts_leave_the_same_content() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut puts = Puts::new(Pods { count: 50 }, 40, 3);
    let mut tree = Tree::open_tended(&dir.path().join("tree"), Config::default()).unwrap();
    let mut redb = Redb::create(&dir.path().join("redb")).unwrap();
    let mut lmdb = Lmdb::create(&dir.path().join("lmdb")).unwrap();
    for batch in 0..8 {
        let batch = puts.any(10 + batch);
        let entry = tree.entry_of(&batch);
        tree.apply(&entry).unwrap();
        redb.apply(&batch).unwrap();
        lmdb.apply(&batch).unwrap();
    }
    tree.settle().unwrap();
    redb.sync().unwrap();
    lmdb.sync().unwrap();
    let content = lmdb.content().unwrap();
    assert_eq!(redb.content().unwrap(), content);
    assert!(!content.history.is_empty());
    for revision in 1..=puts.revision {
        let mut ours = BTreeMap::new();
        let scanned = tree
            .store
            .scan(&KeyRange::all(), Revision(revision), &mut |kv| {
                let record = Record {
                    revision: kv.modified.0,
                    create: kv.create.0,
                    version: kv.version,
                    value: kv.value.to_vec(),
                };
                ours.insert(kv.key.to_vec(), record);
                true
            });
        scanned.unwrap();
        assert_eq!(ours, at(&content, revision), "at revision {revision}");
    }
    let events = tree
        .store
        .events(
            &KeyRange::all(),
            Revision(2),
            Revision(puts.revision),
            false,
        )
        .unwrap();
    let changes: Vec<_> = events
        .into_iter()
        .map(|event| {
            let created = event.kv.version == 1;
            (event.change.revision.0, created, event.kv.key.to_vec())
        })
        .collect();
    assert_eq!(changes, content.changes);
    tree.close().unwrap();
}
