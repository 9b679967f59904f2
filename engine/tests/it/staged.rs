//! Transactions across ranges: their changes have the places that they were
//! staged with, and nothing undecided is compacted.

use bytes::Bytes;
use pontoon_engine::{
    Applied, Change, Effect, EngineError, Entry, KeyRange, Revision, Staged, Step, Store,
};

use crate::script::{disk, open};

fn put(key: &'static str) -> Effect {
    Effect::Put {
        key: Bytes::from(key),
        value: Bytes::from(key),
        lease: 0,
    }
}

fn stage(revision: i64, subs: &[u32]) -> Step {
    Step::Stage {
        revision: Revision(revision),
        effects: vec![put("a"), put("b")],
        subs: subs.to_vec(),
    }
}

fn apply(store: &Store, steps: Vec<Step>) -> Result<(), EngineError> {
    let applied = Applied {
        index: store.applied().index + 1,
        term: 1,
        leader: 1,
    };
    store.apply(&Entry { applied, steps })
}

fn assert_refused(result: Result<(), EngineError>) {
    assert!(
        matches!(result, Err(EngineError::Unappliable { .. })),
        "{result:?}"
    );
}

#[test]
fn changes_have_the_places_they_were_staged_with_also_after_a_restart() {
    let disk = disk(1);
    let store = open(&disk).unwrap();
    apply(&store, vec![stage(2, &[3, 7])]).unwrap();
    store.checkpoint().unwrap();
    drop(store);
    let store = open(&disk).unwrap();
    let staged = Staged {
        effects: vec![put("a"), put("b")],
        subs: vec![3, 7],
    };
    assert_eq!(store.staged(Revision(2)), Some(staged));
    let revision = Revision(2);
    apply(&store, vec![Step::Commit { revision }]).unwrap();
    let subs = |store: &Store| -> Vec<Change> {
        let events = store.events(&KeyRange::all(), revision, revision, false);
        events.unwrap().iter().map(|event| event.change).collect()
    };
    let expected = [3, 7].map(|sub| Change { revision, sub });
    assert_eq!(subs(&store), expected);
    store.checkpoint().unwrap();
    drop(store);
    assert_eq!(subs(&open(&disk).unwrap()), expected, "from the tables too");
}

#[test]
fn places_that_are_none_are_refused() {
    let store = open(&disk(2)).unwrap();
    for subs in [&[0][..], &[0, 0], &[1, 0], &[0, 1, 2], &[0, u32::MAX]] {
        assert_refused(apply(&store, vec![stage(2, subs)]));
    }
    assert_eq!(store.undecided(), []);
    apply(&store, vec![stage(2, &[0, u32::MAX - 1])]).unwrap();
    let revision = Revision(2);
    apply(&store, vec![Step::Commit { revision }]).unwrap();
    let floor = Revision(2);
    apply(&store, vec![Step::Compact { floor }]).unwrap();
    assert!(!store.compact_step(100).unwrap());
}

#[test]
fn the_floor_stays_below_what_is_undecided() {
    let store = open(&disk(3)).unwrap();
    let write = Step::Write {
        revision: Revision(3),
        effects: vec![put("c")],
    };
    apply(&store, vec![stage(2, &[0, 1]), write]).unwrap();
    for floor in [2, 3].map(Revision) {
        assert_refused(apply(&store, vec![Step::Compact { floor }]));
    }
    let compact = |floor| Step::Compact {
        floor: Revision(floor),
    };
    apply(&store, vec![compact(1)]).unwrap();
    let revision = Revision(2);
    apply(&store, vec![Step::Commit { revision }, compact(3)]).unwrap();
    assert_eq!(store.floor(), Revision(3));
}
