//! redb and LMDB doing what our store does for a put: they read the old
//! record, move it to history, put the new one and note the change.
//!
//! Kept true: the same three tables, one transaction for each batch, and no
//! batch waits for the disk. Records are as small as is easy: 20 bytes and
//! the value.

use std::io;
use std::ops::Bound;
use std::path::{Path, PathBuf};

use heed::types::Bytes as Raw;
use heed::{CommitOrAbort, EnvFlags, PutFlags, WithoutTls};
use redb::{Durability, ReadableDatabase, ReadableTable, TableDefinition};

use crate::pods::Put;

const HEAD_BYTES: usize = 20;
/// Address space for LMDB, which never grows its map by itself.
const MAP_BYTES: usize = 64 << 30;
/// Memory for redb's pages: as much as it takes to hold everything here.
const CACHE_BYTES: usize = 4 << 30;

const CREATE: u8 = 0;
const UPDATE: u8 = 1;

/// A record's value.
#[must_use]
pub fn value(record: &[u8]) -> &[u8] {
    &record[HEAD_BYTES..]
}

/// Everything that a peer holds, table by table, in key order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    /// Key; revision, create revision, version and value.
    pub current: Vec<(Vec<u8>, Record)>,
    /// The same of superseded versions.
    pub history: Vec<(Vec<u8>, Record)>,
    /// Revision, whether it created the key, key.
    pub changes: Vec<(i64, bool, Vec<u8>)>,
}

/// A version of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The revision that wrote it.
    pub revision: i64,
    /// The revision that created the key.
    pub create: i64,
    /// How often it was put since.
    pub version: i64,
    /// The value.
    pub value: Vec<u8>,
}

impl Record {
    fn of(record: &[u8]) -> Self {
        let head = Head::of(record);
        Self {
            revision: head.revision,
            create: head.create,
            version: i64::from(head.version),
            value: value(record).to_vec(),
        }
    }
}

/// The fixed part of a record.
struct Head {
    revision: i64,
    create: i64,
    version: u32,
}

impl Head {
    fn of(record: &[u8]) -> Self {
        let revision = record.first_chunk().expect("a record has its head");
        let create = record[8..].first_chunk().expect("a record has its head");
        let version = record[16..].first_chunk().expect("a record has its head");
        Self {
            revision: i64::from_le_bytes(*revision),
            create: i64::from_le_bytes(*create),
            version: u32::from_le_bytes(*version),
        }
    }

    fn encode(&self, value: &[u8], out: &mut Vec<u8>) {
        out.clear();
        out.extend_from_slice(&self.revision.to_le_bytes());
        out.extend_from_slice(&self.create.to_le_bytes());
        out.extend_from_slice(&self.version.to_le_bytes());
        out.extend_from_slice(value);
    }
}

/// Memory that is used again for each put.
#[derive(Default)]
struct Scratch {
    /// The record that the put replaces, with its place in history.
    old: Vec<u8>,
    old_key: Vec<u8>,
    new: Vec<u8>,
    change: Vec<u8>,
}

impl Scratch {
    /// Works out what a put writes. `old` is what is there now.
    fn prepare(&mut self, put: &Put, old: Option<&[u8]>) -> bool {
        let mut head = Head {
            revision: put.revision,
            create: put.revision,
            version: 1,
        };
        if let Some(old) = old {
            let before = Head::of(old);
            head.create = before.create;
            head.version = before.version + 1;
            self.old.clear();
            self.old.extend_from_slice(old);
            self.old_key.clear();
            self.old_key.extend_from_slice(&put.key);
            self.old_key
                .extend_from_slice(&before.revision.to_be_bytes());
        }
        head.encode(&put.value, &mut self.new);
        self.change.clear();
        self.change
            .push(if old.is_some() { UPDATE } else { CREATE });
        self.change.extend_from_slice(&put.key);
        old.is_some()
    }
}

fn content(
    current: Vec<(Vec<u8>, Vec<u8>)>,
    history: Vec<(Vec<u8>, Vec<u8>)>,
    changes: Vec<(Vec<u8>, Vec<u8>)>,
) -> Content {
    Content {
        current: current
            .into_iter()
            .map(|(key, record)| (key, Record::of(&record)))
            .collect(),
        history: history
            .into_iter()
            .map(|(mut key, record)| {
                key.truncate(key.len() - 8);
                (key, Record::of(&record))
            })
            .collect(),
        changes: changes
            .into_iter()
            .map(|(revision, change)| {
                let revision = revision.try_into().expect("keys of changes are revisions");
                (
                    i64::from_be_bytes(revision),
                    change[0] == CREATE,
                    change[1..].to_vec(),
                )
            })
            .collect(),
    }
}

type RedbTable = TableDefinition<'static, &'static [u8], &'static [u8]>;
const CURRENT: RedbTable = TableDefinition::new("current");
const HISTORY: RedbTable = TableDefinition::new("history");
const CHANGES: RedbTable = TableDefinition::new("changes");

/// An open redb.
pub struct Redb {
    database: redb::Database,
    path: PathBuf,
    scratch: Scratch,
}

impl Redb {
    /// Makes a database in `dir`.
    pub fn create(dir: &Path) -> io::Result<Self> {
        std::fs::create_dir_all(dir)?;
        let path = dir.join("redb");
        let database = redb::Builder::new()
            .set_cache_size(CACHE_BYTES)
            .create(&path)
            .map_err(io::Error::other)?;
        Ok(Self {
            database,
            path,
            scratch: Scratch::default(),
        })
    }

    /// Applies puts in one transaction, which is not durable.
    pub fn apply(&mut self, puts: &[Put]) -> io::Result<()> {
        self.write(puts, Durability::None).map_err(io::Error::other)
    }

    /// Makes everything durable. Pages that were given up since the last time
    /// can be used again only now.
    pub fn sync(&mut self) -> io::Result<()> {
        self.write(&[], Durability::Immediate)
            .map_err(io::Error::other)
    }

    fn write(&mut self, puts: &[Put], durability: Durability) -> Result<(), redb::Error> {
        let mut transaction = self.database.begin_write()?;
        transaction.set_durability(durability)?;
        {
            let mut current = transaction.open_table(CURRENT)?;
            let mut history = transaction.open_table(HISTORY)?;
            let mut changes = transaction.open_table(CHANGES)?;
            let scratch = &mut self.scratch;
            for put in puts {
                let key = &put.key[..];
                let moves = {
                    let old = current.get(key)?;
                    scratch.prepare(put, old.as_ref().map(|old| old.value()))
                };
                if moves {
                    history.insert(&scratch.old_key[..], &scratch.old[..])?;
                }
                current.insert(key, &scratch.new[..])?;
                changes.insert(&put.revision.to_be_bytes()[..], &scratch.change[..])?;
            }
        }
        transaction.commit()?;
        Ok(())
    }

    /// Length of the file.
    pub fn file_bytes(&self) -> io::Result<u64> {
        Ok(self.path.metadata()?.len())
    }

    /// Everything in it.
    pub fn content(&self) -> io::Result<Content> {
        let read = || {
            let transaction = self.database.begin_read()?;
            let all = |table: RedbTable| {
                transaction
                    .open_table(table)?
                    .iter()?
                    .map(|entry| {
                        let (key, record) = entry?;
                        Ok((key.value().to_vec(), record.value().to_vec()))
                    })
                    .collect::<Result<Vec<_>, redb::Error>>()
            };
            Ok::<_, redb::Error>(content(all(CURRENT)?, all(HISTORY)?, all(CHANGES)?))
        };
        read().map_err(io::Error::other)
    }
}

type LmdbTable = heed::Database<'static, Raw, Raw>;

/// An open LMDB.
pub struct Lmdb {
    environment: heed::Env<WithoutTls>,
    current: LmdbTable,
    history: LmdbTable,
    changes: LmdbTable,
    scratch: Scratch,
}

impl Lmdb {
    /// Makes an environment in `dir`.
    pub fn create(dir: &Path) -> io::Result<Self> {
        std::fs::create_dir_all(dir)?;
        let mut options = heed::EnvOpenOptions::new().read_txn_without_tls();
        options.map_size(MAP_BYTES).max_dbs(3);
        // SAFETY: without syncs a crash of the machine may damage the file,
        // which is made for this process and thrown away with it.
        #[allow(unsafe_code)]
        unsafe {
            options.flags(EnvFlags::NO_SYNC);
        }
        // SAFETY: nobody else touches the file while it is mapped.
        #[allow(unsafe_code)]
        let environment = unsafe { options.open(dir) }.map_err(io::Error::other)?;
        let transaction = environment.write_txn().map_err(io::Error::other)?;
        let tables = environment.create_databases_and_commit(transaction, |opener, transaction| {
            let mut table = |name| opener.create_database::<Raw, Raw>(transaction, Some(name));
            let tables = (table("current")?, table("history")?, table("changes")?);
            Ok::<_, heed::Error>(CommitOrAbort::<_, ()>::Commit(tables))
        });
        let (current, history, changes) = tables.map_err(io::Error::other)?.unwrap_commit();
        Ok(Self {
            environment,
            current,
            history,
            changes,
            scratch: Scratch::default(),
        })
    }

    /// Applies puts in one transaction, which reaches the page cache.
    pub fn apply(&mut self, puts: &[Put]) -> io::Result<()> {
        self.write(puts).map_err(io::Error::other)
    }

    fn write(&mut self, puts: &[Put]) -> Result<(), heed::Error> {
        let mut transaction = self.environment.write_txn()?;
        let scratch = &mut self.scratch;
        for put in puts {
            let old = self.current.get(&transaction, &put.key)?;
            if scratch.prepare(put, old) {
                self.history
                    .put(&mut transaction, &scratch.old_key, &scratch.old)?;
            }
            self.current.put(&mut transaction, &put.key, &scratch.new)?;
            self.changes.put_with_flags(
                &mut transaction,
                PutFlags::APPEND,
                &put.revision.to_be_bytes(),
                &scratch.change,
            )?;
        }
        transaction.commit()
    }

    /// Makes everything durable.
    pub fn sync(&mut self) -> io::Result<()> {
        self.environment.force_sync().map_err(io::Error::other)
    }

    /// Length of the file.
    pub fn file_bytes(&self) -> io::Result<u64> {
        self.environment.real_disk_size().map_err(io::Error::other)
    }

    /// Starts reading what is there now.
    pub fn reader(&self) -> io::Result<LmdbReader<'_>> {
        Ok(LmdbReader {
            transaction: self.environment.read_txn().map_err(io::Error::other)?,
            current: self.current,
        })
    }

    /// Everything in it.
    pub fn content(&self) -> io::Result<Content> {
        let read = || {
            let transaction = self.environment.read_txn()?;
            let all = |table: LmdbTable| {
                table
                    .iter(&transaction)?
                    .map(|entry| entry.map(|(key, record)| (key.to_vec(), record.to_vec())))
                    .collect::<Result<Vec<_>, heed::Error>>()
            };
            Ok::<_, heed::Error>(content(
                all(self.current)?,
                all(self.history)?,
                all(self.changes)?,
            ))
        };
        read().map_err(io::Error::other)
    }
}

/// A read transaction.
pub struct LmdbReader<'a> {
    transaction: heed::RoTxn<'a, WithoutTls>,
    current: LmdbTable,
}

impl LmdbReader<'_> {
    /// The value of `key`.
    pub fn get(&self, key: &[u8]) -> io::Result<Option<&[u8]>> {
        let record = self
            .current
            .get(&self.transaction, key)
            .map_err(io::Error::other)?;
        Ok(record.map(value))
    }

    /// Visits keys and values from `key` on until `visit` returns false.
    pub fn scan(&self, key: &[u8], visit: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> io::Result<()> {
        let from = (Bound::Included(key), Bound::Unbounded);
        let entries = self
            .current
            .range(&self.transaction, &from)
            .map_err(io::Error::other)?;
        for entry in entries {
            let (key, record) = entry.map_err(io::Error::other)?;
            if !visit(key, value(record)) {
                break;
            }
        }
        Ok(())
    }
}
