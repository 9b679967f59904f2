//! Records of this layer, read back from a store.
//!
//! Kept true: a record that is there and can't be read or decoded is an error,
//! never an absence. Whoever meets the error stops the replica: it must not say
//! that something was never done. A damaged one is then rebuilt; one that a
//! later release wrote is left as it is.

use bytes::Bytes;
use pontoon_engine::{EngineError, Step, Store};

use crate::format::Unreadable;
use crate::mutation::{Mutation, mutated};
use crate::{cluster, lease, split, txn};

/// The record `name`, if there is one.
pub(crate) fn read<T>(
    store: &Store,
    name: &[u8],
    decode: impl FnOnce(Bytes) -> Result<T, Unreadable>,
) -> Result<Option<T>, EngineError> {
    let content = match store.record(name) {
        Err(_) if mutated(Mutation::UnreadableRecordIsNone) => None,
        content => content?,
    };
    match content {
        None => Ok(None),
        Some(content) => match decode(content) {
            Ok(decoded) => Ok(Some(decoded)),
            Err(_) if mutated(Mutation::UnreadableRecordIsNone) => Ok(None),
            Err(error) => Err(unreadable(store, name, &error)),
        },
    }
}

/// All records whose names begin with `prefix`; `decode` is given what follows
/// the prefix, and the content.
pub(crate) fn read_all<T>(
    store: &Store,
    prefix: &[u8],
    decode: impl Fn(Bytes, Bytes) -> Result<T, Unreadable>,
) -> Result<Vec<T>, EngineError> {
    let mut found = Vec::new();
    let mut nonsense = None;
    store.records(prefix, &mut |name, content| {
        let rest = Bytes::copy_from_slice(&name[prefix.len()..]);
        match decode(rest, Bytes::copy_from_slice(content)) {
            Ok(record) => found.push(record),
            Err(_) if mutated(Mutation::UnreadableRecordIsNone) => {}
            Err(error) => nonsense = Some((name.to_vec(), error)),
        }
    })?;
    match nonsense {
        None => Ok(found),
        Some((name, error)) => Err(unreadable(store, &name, &error)),
    }
}

fn unreadable(store: &Store, name: &[u8], error: &Unreadable) -> EngineError {
    match error {
        Unreadable::Version { .. } => store.foreign_record(name, error),
        Unreadable::Nonsense { .. } => store.damaged_record(name),
    }
}

/// Checks that what these steps write can be read back. An entry that fails
/// this is not applied: it was made by another version of this program, or by
/// a bug, and ignoring a part of it would make replicas differ.
pub(crate) fn check(steps: &[Step]) -> Result<(), Unreadable> {
    for step in steps {
        let Step::Record {
            name,
            content: Some(content),
        } = step
        else {
            continue;
        };
        let known = [
            cluster::can_read,
            lease::can_read,
            split::can_read,
            txn::can_read,
        ];
        for can_read in known {
            can_read(name, content)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use pontoon_engine::{Applied, Entry};
    use pontoon_wal::disk::Disk;
    use pontoon_wal::disk::sim::SimDisk;

    use super::*;
    use crate::cluster::Cluster;
    use crate::format::FormatVersion;
    use crate::lease::Leases;
    use crate::split::SplitRecord;
    use crate::txn::{TxnId, TxnRecord};

    /// A store with one record, which makes no sense.
    fn store(name: &[u8]) -> Store {
        store_with(nonsense(name))
    }

    fn store_with(record: Step) -> Store {
        let disk = SimDisk::new(1);
        disk.create_dir(Path::new("/trees")).expect("a directory");
        let config = pontoon_engine::Config::default();
        let store = Store::open(&disk, Path::new("/trees/1.tree"), config).expect("it opens");
        let entry = Entry {
            applied: Applied {
                index: 1,
                term: 1,
                leader: 1,
            },
            steps: vec![record],
        };
        store.apply(&entry).expect("it is applied");
        store
    }

    fn nonsense(name: &[u8]) -> Step {
        record(name, &[FormatVersion::FIRST.0, 0xff, 0xff])
    }

    fn record(name: &[u8], content: &'static [u8]) -> Step {
        Step::Record {
            name: Bytes::copy_from_slice(name),
            content: Some(Bytes::from_static(content)),
        }
    }

    fn is_damage<T>(read: Result<T, EngineError>) -> bool {
        matches!(read, Err(EngineError::Damaged { .. }))
    }

    #[test]
    fn a_transactions_record_that_cant_be_decoded_is_damage() {
        let txn = TxnId((1, 2));
        let Step::Record { name, .. } = crate::txn::forget_step(txn) else {
            panic!("it forgets a record");
        };
        let store = store(&name);
        assert!(is_damage(TxnRecord::of(&store, txn)));
        assert!(is_damage(TxnRecord::all(&store)));
        assert_eq!(TxnRecord::of(&store, TxnId((1, 3))).ok(), Some(None));
    }

    #[test]
    fn a_splits_record_that_cant_be_decoded_is_damage() {
        assert!(is_damage(SplitRecord::all(&store(b"split/\x05"))));
    }

    #[test]
    fn a_leases_record_that_cant_be_decoded_is_damage() {
        let leases = Leases::default();
        assert!(is_damage(leases.read(&store(b"lease/\0\0\0\0\0\0\0\x07"))));
        assert!(is_damage(leases.read(&store(b"lease/7"))));
    }

    #[test]
    fn what_the_root_group_says_and_cant_be_decoded_is_damage() {
        for name in [
            "map", "ceiling", "splits", "members", "damaged", "alarms", "versions",
        ] {
            let name = format!("cluster/{name}");
            assert!(
                is_damage(Cluster::read(
                    &store(name.as_bytes()),
                    FormatVersion::NEWEST
                )),
                "{name}"
            );
        }
    }

    /// What a later release wrote is left as it is: were it called damaged,
    /// the replica would be rebuilt.
    #[test]
    fn a_record_of_an_unknown_version_is_neither_absent_nor_damaged() {
        const LATER: u8 = FormatVersion::NEWEST.0 + 1;
        let names: [&[u8]; 4] = [
            b"txn/\x01\x02",
            b"split/\x05",
            b"lease/\0\0\0\0\0\0\0\x07",
            b"cluster/map",
        ];
        for name in names {
            let store = store_with(record(name, &[LATER, 1, 2, 3]));
            let read: [Result<(), EngineError>; 4] = [
                TxnRecord::all(&store).map(drop),
                SplitRecord::all(&store).map(drop),
                Leases::default().read(&store),
                Cluster::read(&store, FormatVersion::NEWEST).map(drop),
            ];
            let errors = read.into_iter().filter_map(Result::err);
            let errors: Vec<_> = errors.map(|error| error.to_string()).collect();
            let name = name.escape_ascii();
            assert_eq!(errors.len(), 1, "{name}: {errors:?}");
            assert!(
                errors[0].ends_with("in format version 2; this one understands up to 1"),
                "{name}: {errors:?}"
            );
        }
        let later = check(&[record(b"split/\x05", &[LATER])]).unwrap_err();
        assert!(matches!(later, Unreadable::Version { .. }), "{later}");
    }

    #[test]
    fn an_entry_with_a_record_that_cant_be_decoded_is_refused() {
        let names: [&[u8]; 5] = [
            b"txn/\x01\x02",
            b"split/\x05",
            b"lease/\0\0\0\0\0\0\0\x07",
            b"cluster/map",
            b"cluster/ceiling",
        ];
        for name in names {
            assert!(check(&[nonsense(name)]).is_err(), "{}", name.escape_ascii());
        }
        assert_eq!(check(&[nonsense(b"compare")]), Ok(()));
    }
}
