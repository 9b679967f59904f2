//! Tree files that earlier releases wrote are opened, and have what they had.
//!
//! `tests/golden` has a file for each version, and beside it what it holds.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use pontoon_engine::format::VERSION;
use pontoon_engine::{Applied, Config, Effect, Entry, KeyRange, Revision, Step, Store};
use pontoon_wal::disk::{Backend, RealDisk};

use crate::script::everything_inside;

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn open(dir: &Path) -> Store {
    let disk = RealDisk::new(Backend::Syscalls, dir).unwrap();
    Store::open(&disk, &dir.join("tree"), Config::default()).unwrap()
}

/// One of everything that a tree file can hold.
fn entries() -> Vec<Entry> {
    let put = |key: &str, bytes: usize, lease| Effect::Put {
        key: Bytes::copy_from_slice(key.as_bytes()),
        value: key.bytes().cycle().take(bytes).collect(),
        lease,
    };
    let delete = |key: &str| Effect::Delete {
        key: Bytes::copy_from_slice(key.as_bytes()),
    };
    let write = |revision, effects: Vec<Effect>| Step::Write {
        revision: Revision(revision),
        effects,
    };
    let record = |name: &'static str, content: Option<usize>| Step::Record {
        name: Bytes::from_static(name.as_bytes()),
        content: content.map(|bytes| name.bytes().cycle().take(bytes).collect()),
    };
    let many = |revision| {
        let effects = (0..20).map(|n| put(&format!("/many/{n:03}"), 90, 0));
        write(revision, effects.collect())
    };
    let long_key = "k".repeat(3000);
    let stage = |revision, key| Step::Stage {
        revision: Revision(revision),
        effects: vec![put(key, 10, 0)],
        subs: vec![4],
    };
    let steps = [
        vec![
            many(2),
            write(3, vec![put("a", 1, 0), put("leased", 20, 3)]),
        ],
        vec![write(4, vec![put("a", 4100, 0), put(&long_key, 100, 0)])],
        vec![write(5, vec![put("a", 2, 0), delete("/many/007")])],
        vec![
            stage(6, "staged"),
            record("small", Some(5)),
            record("gone", Some(9)),
        ],
        vec![
            Step::Commit {
                revision: Revision(6),
            },
            record("large", Some(4000)),
        ],
        vec![Step::Compact { floor: Revision(4) }, record("gone", None)],
        vec![
            stage(7, "undecided"),
            write(8, vec![put("b", 0, 3), delete("leased")]),
        ],
        vec![
            write(9, vec![put("zz", 30, 0)]),
            Step::Reach {
                revision: Revision(12),
            },
        ],
        vec![Step::Bounds {
            keys: KeyRange::new("\0", "zz"),
        }],
    ];
    (1..)
        .zip(steps)
        .map(|(index, steps)| {
            let applied = Applied {
                index,
                term: 1 + index / 4,
                leader: 1,
            };
            Entry { applied, steps }
        })
        .collect()
}

/// The ends of what is long.
fn short(text: &str) -> String {
    match text.len() {
        0..=300 => text.to_owned(),
        bytes => format!("{} ({bytes}) {}", &text[..100], &text[bytes - 200..]),
    }
}

/// All that can be read of it.
fn content(store: &Store) -> String {
    let all = everything_inside(store, store.bounds()).unwrap();
    let mut text = String::new();
    let mut line = |what: String| writeln!(text, "{what}").unwrap();
    line(format!(
        "{:?}, {:?}, bounds {:?}",
        all.applied,
        all.hash,
        store.bounds()
    ));
    line(format!("revision {}, floor {}", all.revision, all.floor));
    line(format!("undecided {:?}", all.undecided));
    for kv in all.present {
        line(format!("present {}", short(&format!("{kv:?}"))));
    }
    for kv in all.at_floor {
        line(format!("at the floor {}", short(&format!("{kv:?}"))));
    }
    for event in all.events {
        line(short(&format!("{event:?}")));
    }
    for (name, content) in all.records {
        let content = short(&content.escape_ascii().to_string());
        line(format!("record {}: {content}", name.escape_ascii()));
    }
    for key in all.leases {
        line(format!("leased {}", key.escape_ascii()));
    }
    text
}

/// Run by hand when there is a new version:
/// `cargo test -p pontoon-engine --test it golden -- --ignored`.
#[test]
#[ignore = "it makes what the test below reads"]
fn make_a_golden_tree() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let store = open(dir.path());
    for entry in entries() {
        store.apply(&entry).unwrap();
        if [6, 9].contains(&entry.applied.index) {
            store.checkpoint().unwrap();
        }
    }
    fs::create_dir_all(golden()).unwrap();
    fs::write(
        golden().join(format!("v{VERSION}.content")),
        content(&store),
    )
    .unwrap();
    store.close();
    let tree = golden().join(format!("v{VERSION}.tree"));
    fs::copy(dir.path().join("tree"), tree).unwrap();
}

#[test]
fn a_tree_of_every_version_is_opened_and_has_what_it_had() {
    // Nothing of version 1 was ever released.
    for version in 2..=VERSION {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let kept = golden().join(format!("v{version}.tree"));
        fs::write(dir.path().join("tree"), fs::read(kept).unwrap()).unwrap();
        let kept = golden().join(format!("v{version}.content"));
        let expected = fs::read_to_string(kept).unwrap();
        let store = open(dir.path());
        assert_eq!(content(&store), expected, "version {version}");
        // It goes on, and is whole the next time.
        let next = Entry {
            applied: Applied {
                index: 10,
                term: 3,
                leader: 1,
            },
            steps: vec![
                Step::Void {
                    revision: Revision(7),
                },
                Step::Write {
                    revision: Revision(13),
                    effects: vec![Effect::Delete {
                        key: Bytes::from_static(b"a"),
                    }],
                },
            ],
        };
        store.apply(&next).unwrap();
        store.checkpoint().unwrap();
        let more = content(&store);
        store.close();
        drop(store);
        assert_eq!(content(&open(dir.path())), more, "version {version}");
    }
}
