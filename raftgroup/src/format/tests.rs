//! Formats are what `docs/format.md` says, and what earlier releases wrote can
//! be read.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::fs;
use std::path::Path;

use pontoon_engine::{Effect, KeyRange, Revision, Step};

use super::*;
use crate::codec::Layout;
use crate::command::{Command, Kind};
use crate::lease::LeaseRecord;
use crate::link::documented as link;
use crate::map::{Placed, RangeMap};
use crate::member::{Alarm, Member, Members};
use crate::position::{GroupId, NodeId, Term};
use crate::raft::{documented as raft, membership_record};
use crate::split::{SplitRecord, Splits, Splitting};
use crate::txn::{Fate, TxnRecord};
use crate::versions::Versions;

#[test]
fn an_unknown_version_is_named_and_is_neither_damage_nor_absence() {
    let sealed = seal(&7_u64);
    assert_eq!(open::<u64>("number", sealed.clone()), Ok(7));
    let mut later = sealed.to_vec();
    later[0] = FormatVersion::NEWEST.0 + 1;
    let error = open::<u64>("number", later.into()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "number: a later release wrote it, in format version 2; this one understands up to 1"
    );
    let nonsense = Err(Unreadable::Nonsense { kind: "number" });
    for bytes in [&b""[..], &[1], &[0, 7], &[1, 7, 7]] {
        let bytes = Bytes::copy_from_slice(bytes);
        assert_eq!(open::<u64>("number", bytes), nonsense);
    }
}

/// Rows of the tables under each heading, without those of the column names.
fn tables() -> BTreeMap<String, Vec<Vec<String>>> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/format.md");
    let mut heading = String::new();
    let mut tables: BTreeMap<String, Vec<Vec<String>>> = BTreeMap::new();
    for line in fs::read_to_string(path).unwrap().lines() {
        if line.starts_with('#') {
            heading = line.trim_start_matches('#').trim().replace('`', "");
        } else if let Some(row) = line.strip_prefix('|') {
            let cells = row.trim_end_matches('|').split('|');
            let cells: Vec<_> = cells.map(|cell| cell.trim().replace('`', "")).collect();
            match cells[0].starts_with('-') {
                true => drop(tables.entry(heading.clone()).or_default().pop()),
                false => tables.entry(heading.clone()).or_default().push(cells),
            }
        }
    }
    tables
}

#[test]
fn the_format_document_has_every_structure_of_entries_and_records_as_it_is() {
    let tables = tables();
    let structures = [
        ("EntryKind", Kind::LAYOUT),
        ("Step", Step::LAYOUT),
        ("Effect", Effect::LAYOUT),
        ("RangeMap", RangeMap::LAYOUT),
        ("Placed", Placed::LAYOUT),
        ("Splits", Splits::LAYOUT),
        ("Splitting", Splitting::LAYOUT),
        ("Member", Member::LAYOUT),
        ("Alarm", Alarm::LAYOUT),
        ("Versions", Versions::LAYOUT),
        ("LeaseRecord", LeaseRecord::LAYOUT),
        ("TxnRecord", TxnRecord::LAYOUT),
        ("Fate", Fate::LAYOUT),
        ("SplitRecord", SplitRecord::LAYOUT),
        ("Hello", link::HELLO),
    ];
    for (name, layout) in structures {
        let rows = tables.get(name);
        let rows = rows.unwrap_or_else(|| panic!("no table under the heading {name}"));
        let real: Vec<Vec<String>> = match layout {
            Layout::Plain => panic!("{name} has no layout"),
            Layout::Fields(fields) => fields.iter().map(|field| vec![(*field).into()]).collect(),
            Layout::Variants(variants) => variants
                .iter()
                .map(|(tag, kind, fields)| vec![tag.to_string(), (*kind).into(), fields.join(", ")])
                .collect(),
        };
        let columns = real[0].len();
        let written: Vec<_> = rows.iter().map(|row| row[..columns].to_vec()).collect();
        assert_eq!(written, real, "{name}");
        let has_meaning = rows.iter().all(|row| row[columns].len() > 5);
        assert!(has_meaning, "{name}: everything is explained");
    }
}

#[test]
fn the_format_document_has_every_constant_of_entries_and_records_as_it_is() {
    let first = [
        ("FORMAT_FIRST", FormatVersion::FIRST.0.into()),
        ("FORMAT_NEWEST", FormatVersion::NEWEST.0.into()),
    ];
    let mut real: Vec<(&str, u64)> = first.into();
    let (versions, frames) = link::CONSTANTS.split_at(2);
    real.extend(versions);
    real.extend(raft::CONSTANTS);
    real.extend(frames);
    let real = real.iter();
    let real: Vec<_> = real
        .map(|(name, value)| ((*name).to_owned(), value.to_string()))
        .collect();
    let tables = tables();
    let rows = tables["Constants of entries and records"].iter();
    let written: Vec<_> = rows.map(|row| (row[0].clone(), row[1].clone())).collect();
    assert_eq!(written, real);
}

/// Something stored, as this release writes it, and whether bytes mean the same.
struct Sample {
    name: &'static str,
    bytes: Bytes,
    is_read: Box<dyn Fn(Bytes) -> bool>,
}

fn sample<T: Wire + PartialEq + Debug + 'static>(name: &'static str, value: T) -> Sample {
    Sample {
        name,
        bytes: seal(&value),
        is_read: Box::new(move |bytes| open::<T>(name, bytes).as_ref() == Ok(&value)),
    }
}

/// One of everything. A later release changes no line of the golden files: it
/// adds samples, and a file of its own.
fn samples() -> Vec<Sample> {
    let key = |key: &'static str| Bytes::from_static(key.as_bytes());
    let keys = KeyRange::new("b", "c");
    let nodes = || vec![NodeId(1), NodeId(300)];
    let effects = [
        Effect::Put {
            key: key("key"),
            value: key("value"),
            lease: -7,
        },
        Effect::Delete { key: key("gone") },
    ];
    let steps = vec![
        Step::Write {
            revision: Revision(5),
            effects: effects.clone().into_iter().collect(),
        },
        Step::Stage {
            revision: Revision(6),
            effects: effects.into_iter().collect(),
            subs: [0, 3].into_iter().collect(),
        },
        Step::Commit {
            revision: Revision(6),
        },
        Step::Void {
            revision: Revision(7),
        },
        Step::Reach {
            revision: Revision(8),
        },
        Step::Compact { floor: Revision(4) },
        Step::Record {
            name: key("compare"),
            content: Some(seal(&Term(3))),
        },
        Step::Record {
            name: key("lease/7"),
            content: None,
        },
        Step::Bounds { keys: keys.clone() },
        Step::Shed,
    ];
    let members: Members = [(1, false), (300, true)]
        .into_iter()
        .map(|(id, learner)| {
            let address = format!("node-{id}:2380");
            (NodeId(id), Member { address, learner })
        })
        .collect();
    let first = RangeMap::first(&[key("m")], &members, 3);
    let mut map = first.placed_on(&members);
    map.version = 9;
    let versions = Versions::sample();
    let (_, born) = membership_record(&nodes().into_iter().collect(), &BTreeSet::from([NodeId(2)]));
    let splits = Splits {
        next: 12,
        under_way: vec![Splitting {
            parent: GroupId(1),
            child: GroupId(11),
            key: key("p"),
        }],
    };
    let command = Command {
        kind: Kind::Steps,
        term: Term(3),
        base: Some(Revision(4)),
        steps: steps.clone(),
    };
    let mut samples = vec![
        Sample {
            name: "entry",
            bytes: command.to_proposal(FormatVersion::FIRST),
            is_read: Box::new(move |bytes| {
                let read = Command::admitted(bytes, Term(3), Revision(4), FormatVersion::NEWEST);
                read.is_ok_and(|read| read.steps.as_ref() == Some(&command.steps))
            }),
        },
        Sample {
            name: "raft/membership",
            bytes: born.clone(),
            is_read: Box::new(move |bytes| bytes == born && raft::is_membership(bytes)),
        },
        sample("cluster/map", map),
        sample("cluster/ceiling", Revision(12345)),
        sample("cluster/splits", splits),
        sample("cluster/members", members),
        sample("cluster/damaged", vec![(GroupId(1), NodeId(300))]),
        sample(
            "cluster/alarms",
            vec![(Alarm::Corrupt, NodeId(1)), (Alarm::NoSpace, NodeId(300))],
        ),
        sample("cluster/versions", versions),
        sample("split-abandoned", GroupId(11)),
        sample(
            "lease",
            LeaseRecord {
                birth: (3, 1),
                ttl_secs: 60,
                revoking: true,
                groups: vec![GroupId(1), GroupId(11)],
            },
        ),
        sample(
            "txn",
            TxnRecord {
                fate: Fate::Prepared,
                revision: Revision(6),
                participants: vec![GroupId(0), GroupId(1)],
                keys: vec![keys.clone()],
                then: steps,
            },
        ),
        sample(
            "split",
            SplitRecord {
                child: GroupId(11),
                keys,
                voters: nodes(),
                learners: vec![NodeId(2)],
            },
        ),
    ];
    samples.extend(raft::samples().map(|(name, bytes)| {
        let expected = bytes.clone();
        Sample {
            name,
            bytes,
            is_read: Box::new(move |bytes| bytes == expected && raft::is_read(name, bytes)),
        }
    }));
    samples
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Where the samples of a version are.
fn golden(version: FormatVersion) -> std::path::PathBuf {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    dir.join(format!("records-v{version}"))
}

/// Writes the file of the newest version, when a release has a new one.
#[test]
#[ignore = "it makes what the test below reads"]
fn make_golden_records() {
    let path = golden(FormatVersion::NEWEST);
    let lines = samples().into_iter();
    let lines: String = lines
        .map(|sample| format!("{} {}\n", sample.name, hex(&sample.bytes)))
        .collect();
    fs::write(path, lines).unwrap();
}

#[test]
fn records_and_entries_of_every_version_are_read_and_the_newest_are_written() {
    let samples = samples();
    for version in 1..=FormatVersion::NEWEST.0 {
        let path = golden(FormatVersion(version));
        let text = fs::read_to_string(&path).unwrap();
        for line in text.lines() {
            let (name, bytes) = line.split_once(' ').unwrap();
            let sample = samples.iter().find(|sample| sample.name == name).unwrap();
            let pairs = bytes.as_bytes().chunks(2);
            let bytes: Bytes = pairs
                .map(|pair| {
                    let pair = std::str::from_utf8(pair).unwrap();
                    u8::from_str_radix(pair, 16).unwrap()
                })
                .collect();
            assert!(
                (sample.is_read)(bytes.clone()),
                "{name} of {}",
                path.display()
            );
            if version == FormatVersion::NEWEST.0 {
                assert_eq!(hex(&bytes), hex(&sample.bytes), "{name} is written so");
            }
        }
        let all = samples.iter().all(|sample| text.contains(sample.name));
        assert!(all, "a sample is missing in {}", path.display());
    }
}
