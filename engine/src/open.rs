//! Opening a tree file: in time that doesn't depend on how many keys it has.
//!
//! Kept true: a file has its final name only once its first checkpoint is on
//! disk, so a file without a whole meta page is damaged and never taken for
//! a new one.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};

use crate::sync::{Mutex, RwLock};
use bytes::Bytes;
use pontoon_wal::disk::{Disk, MappedFile, Mapping};
use tokio::sync::{Notify, watch};

use crate::counts::Counts;
use crate::effects::{self, Staged};
use crate::error::EngineError;
use crate::events::Recent;
use crate::format::{
    MAGIC, MAP_PAGES, META_PAGES, Meta, PAGE_BYTES, PageKind, RUN_HEADER_BYTES, RunHeader,
    SplitHead, State, VERSION, checksum,
};
use crate::keys::KeyRange;
use crate::node::Child;
use crate::pages::{Pages, check_run};
use crate::position::{Applied, Change, Revision};
use crate::space::{Chunk, Run, Space};
use crate::split::Split;
use crate::store::{Config, ContentHash, Durable, Facts, Store, Tables};
use crate::tables::{STATE_NAME, Table, change_of};
use crate::tally::Next;

impl Store {
    /// Opens the store in `path`, or makes a new one there. What was applied
    /// after [`Store::applied`] must be applied again.
    pub fn open(disk: &dyn Disk, path: &Path, config: Config) -> Result<Self, EngineError> {
        let name = path.file_name().unwrap_or_default();
        let names = clear_unfinished(disk, path)?;
        if names.iter().any(|other| other.as_str() == name) {
            let file = disk.open_mapped(path, true);
            let file = file.map_err(|error| EngineError::disk(path, "open", error))?;
            return Self::of_file(path, file, config);
        }
        let store = Self::unnamed(disk, path, config)?;
        // Both meta pages are whole from the start.
        store.checkpoint()?;
        store.force_checkpoint()?;
        give_name(disk, path)?;
        Ok(store)
    }

    /// A new store for `path`, whose file doesn't have that name yet.
    pub(crate) fn unnamed(
        disk: &dyn Disk,
        path: &Path,
        config: Config,
    ) -> Result<Self, EngineError> {
        clear_unfinished(disk, path)?;
        let file = create_unfinished(disk, path)?;
        let pages = Pages::new(path, file, 1, Space::new(), config.dirty_bytes_max)?;
        Ok(Self::of_tables(
            Tables {
                pages,
                roots: Default::default(),
                facts: Facts::default(),
                staged: BTreeMap::new(),
                late: 0,
                sweep_target: None,
                sweep_since: None,
                shed: Next::default(),
            },
            Durable::default(),
            config,
        ))
    }

    fn of_file(
        path: &Path,
        file: Arc<dyn MappedFile>,
        config: Config,
    ) -> Result<Self, EngineError> {
        let view = View::new(path, &*file)?;
        let found = view.newest()?;
        if found.meta.store != config.store {
            return Err(EngineError::Foreign {
                file: path.to_owned(),
                reason: format!(
                    "it belongs to store {:x}, not to {:x}",
                    found.meta.store, config.store
                ),
            });
        }
        let map = view.map(&found.meta)?;
        let before_map = found.before.and_then(|before| view.map(&before).ok());
        let before = before_map.map(|map| map.used).unwrap_or_default();
        let meta = found.meta;
        let space = Space::of_checkpoint(
            meta.generation,
            meta.end,
            map.used,
            &before,
            map.places,
            map.index,
        );
        let pages = Pages::new(
            path,
            file,
            meta.generation + 1,
            space,
            config.dirty_bytes_max,
        )?;
        let mut tables = Tables {
            pages,
            roots: found.before.as_ref().map_or_else(Default::default, roots),
            facts: Facts::default(),
            staged: BTreeMap::new(),
            late: 0,
            sweep_target: None,
            sweep_since: None,
            shed: Next::default(),
        };
        let before = found.before.and_then(|_| read_facts(&tables).ok());
        tables.roots = roots(&meta);
        tables.facts = read_facts(&tables)?;
        tables.staged = read_staged(&tables)?;
        let applied = tables.facts.applied;
        let durable = Durable {
            generation: meta.generation,
            applied,
            applied_before: before.map_or(applied, |facts| facts.applied),
        };
        Ok(Self::of_tables(tables, durable, config))
    }

    fn of_tables(tables: Tables, durable: Durable, config: Config) -> Self {
        Self {
            path: tables.pages.path().to_owned(),
            file: Arc::clone(tables.pages.file()),
            writer: Mutex::new(()),
            checkpointing: Mutex::new(()),
            recent: Mutex::new(Recent::after(tables.facts.last, config.recent_bytes_max)),
            tables: RwLock::new(tables),
            reads: Mutex::new(BTreeMap::new()),
            counts: Mutex::new(Counts::default()),
            tally: Mutex::new(None),
            checkpointed: watch::Sender::new(durable.applied),
            durable: Mutex::new(durable),
            log_bytes: AtomicU64::new(0),
            wake: Notify::new(),
            checkpoint_wanted: AtomicBool::new(false),
            waits_for_room: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            failure: OnceLock::new(),
            config,
        }
    }
}

/// Name of a file that has no checkpoint yet.
pub(crate) fn unfinished_name(path: &Path) -> PathBuf {
    let mut name = OsString::from(path.file_name().unwrap_or_default());
    name.push(".new");
    path.with_file_name(name)
}

/// Makes the file that [`give_name`] later gives its final name.
pub(crate) fn create_unfinished(
    disk: &dyn Disk,
    path: &Path,
) -> Result<Arc<dyn MappedFile>, EngineError> {
    let unfinished = unfinished_name(path);
    let file = disk.create_mapped(&unfinished);
    file.map_err(|error| EngineError::disk(&unfinished, "creation", error))
}

/// Removes what was left unfinished at `path`. Returns the names in its
/// directory.
pub(crate) fn clear_unfinished(disk: &dyn Disk, path: &Path) -> Result<Vec<String>, EngineError> {
    let unfinished = unfinished_name(path);
    let dir = dir_of(path);
    let names = disk.list(dir);
    let names = names.map_err(|error| EngineError::disk(dir, "list", error))?;
    if names
        .iter()
        .any(|name| Some(name.as_ref()) == unfinished.file_name())
    {
        let removed = disk.remove(&unfinished);
        removed.map_err(|error| EngineError::disk(&unfinished, "removal", error))?;
    }
    Ok(names)
}

/// Gives what is now finished its name.
pub(crate) fn give_name(disk: &dyn Disk, path: &Path) -> Result<(), EngineError> {
    let (unfinished, dir) = (unfinished_name(path), dir_of(path));
    disk.rename(&unfinished, path).map_err(|error| {
        let operation = format!("rename to {}", path.display());
        EngineError::disk(&unfinished, operation, error)
    })?;
    disk.sync_dir(dir)
        .map_err(|error| EngineError::disk(dir, "sync of the directory", error))
}

fn dir_of(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new(""))
}

pub(crate) fn roots(meta: &Meta) -> [Child; Table::ALL.len()] {
    [
        (meta.current, meta.current_count),
        (meta.history, meta.history_count),
        (meta.changes, meta.changes_count),
        (meta.leases, meta.leases_count),
        (meta.staged, meta.staged_count),
        (meta.records, meta.records_count),
    ]
    .map(|(page, count)| Child { page, count })
}

/// The record that holds the facts.
pub(crate) fn encode_facts(facts: &Facts) -> Bytes {
    let state = State {
        revision: facts.revision.0,
        last: facts.last.0,
        floor: facts.floor.0,
        swept: facts.swept.0,
        sweep_revision: facts.sweep.revision.0,
        sweep_sub: facts.sweep.sub,
        key_bytes: length(&facts.bounds.key),
        index: facts.applied.index,
        term: facts.applied.term,
        leader: facts.applied.leader,
        keys_hash: facts.hash.keys,
        records_hash: facts.hash.records,
        outside_hash: facts.outside.unwrap_or_default(),
        end_bytes: length(&facts.bounds.end),
        splits: u32::try_from(facts.splits.len()).expect("each is an entry of the log"),
        is_outside_known: u8::from(facts.outside.is_some()),
        is_shedding: u8::from(facts.shedding),
    };
    let mut record = state.encode().to_vec();
    put_keys(&mut record, &facts.bounds);
    for split in &facts.splits {
        let head = SplitHead {
            floor: split.floor.0,
            revision: split.revision.0,
            last: split.last.0,
            key_bytes: length(&split.keys.key),
            end_bytes: length(&split.keys.end),
        };
        record.extend_from_slice(&head.encode());
        put_keys(&mut record, &split.keys);
    }
    record.into()
}

fn length(key: &Bytes) -> u32 {
    u32::try_from(key.len()).expect("keys are below 4 GiB")
}

fn put_keys(out: &mut Vec<u8>, keys: &KeyRange) {
    out.extend_from_slice(&keys.key);
    out.extend_from_slice(&keys.end);
}

fn take_keys(from: &mut &[u8], key_bytes: u32, end_bytes: u32) -> Option<KeyRange> {
    let (key, rest) = from.split_at_checked(key_bytes as usize)?;
    let (end, rest) = rest.split_at_checked(end_bytes as usize)?;
    *from = rest;
    Some(KeyRange::new(key.to_vec(), end.to_vec()))
}

fn take_split(from: &mut &[u8]) -> Option<Split> {
    let head = SplitHead::decode(from)?;
    *from = &from[SplitHead::BYTES..];
    Some(Split {
        keys: take_keys(from, head.key_bytes, head.end_bytes)?,
        floor: Revision(head.floor),
        revision: Revision(head.revision),
        last: Revision(head.last),
    })
}

/// The facts in such a record, if it is one.
pub(crate) fn decode_facts(record: &[u8]) -> Option<Facts> {
    let state = State::decode(record)?;
    let mut rest = &record[State::BYTES..];
    let bounds = take_keys(&mut rest, state.key_bytes, state.end_bytes)?;
    let splits = (0..state.splits).map(|_| take_split(&mut rest));
    let splits = splits.collect::<Option<_>>()?;
    Some(Facts {
        revision: Revision(state.revision),
        last: Revision(state.last),
        floor: Revision(state.floor),
        swept: Revision(state.swept),
        sweep: Change {
            revision: Revision(state.sweep_revision),
            sub: state.sweep_sub,
        },
        applied: Applied {
            index: state.index,
            term: state.term,
            leader: state.leader,
        },
        bounds,
        hash: ContentHash {
            keys: state.keys_hash,
            records: state.records_hash,
        },
        outside: (state.is_outside_known != 0).then_some(state.outside_hash),
        splits,
        shedding: state.is_shedding != 0,
    })
}

pub(crate) fn read_facts(tables: &Tables) -> Result<Facts, EngineError> {
    let record = tables.record(Table::Records, STATE_NAME)?;
    let decoded = record.and_then(decode_facts);
    decoded.ok_or_else(|| tables.damaged_record(Table::Records, STATE_NAME))
}

fn read_staged(tables: &Tables) -> Result<BTreeMap<Revision, Staged>, EngineError> {
    let mut staged = BTreeMap::new();
    let mut cursor = tables.seek(Table::Staged, &[])?;
    let mut key = Vec::new();
    while cursor.key_into(&mut key) {
        let record = tables.record(Table::Staged, &key)?;
        let decoded = record.and_then(effects::decode);
        let (Some(change), Some(transaction)) = (change_of(&key), decoded) else {
            return Err(tables.damaged_record(Table::Staged, &key));
        };
        staged.insert(change.revision, transaction);
        cursor.next()?;
    }
    Ok(staged)
}

/// A file whose pages are not known yet.
pub(crate) struct View<'a> {
    path: &'a Path,
    mapping: Box<dyn Mapping>,
    pages: u64,
}

/// The meta pages of a file.
pub(crate) struct Found {
    /// The newest that is whole.
    pub(crate) meta: Meta,
    /// The one before it, if it is whole too.
    pub(crate) before: Option<Meta>,
}

/// The map of a checkpoint.
pub(crate) struct Map {
    pub(crate) used: Vec<Arc<Chunk>>,
    pub(crate) places: Vec<u64>,
    pub(crate) index: Run,
}

impl<'a> View<'a> {
    pub(crate) fn new(path: &'a Path, file: &dyn MappedFile) -> Result<Self, EngineError> {
        let bytes = file.size();
        let bytes = bytes.map_err(|error| EngineError::disk(path, "size", error))?;
        let pages = bytes / PAGE_BYTES as u64;
        if pages < META_PAGES {
            return Err(EngineError::Foreign {
                file: path.to_owned(),
                reason: format!("{bytes} bytes are too few for a tree file"),
            });
        }
        let mapping = file
            .map(bytes)
            .map_err(|error| EngineError::disk(path, format!("map of {bytes} bytes"), error))?;
        Ok(Self {
            path,
            mapping,
            pages,
        })
    }

    #[allow(unsafe_code)]
    fn bytes(&self, page: u64, pages: u64) -> &[u8] {
        // SAFETY: callers stay below `self.pages`, the length of the file; and
        // nobody writes a file that is being opened or inspected.
        unsafe {
            self.mapping
                .slice(page * PAGE_BYTES as u64, pages as usize * PAGE_BYTES)
        }
    }

    /// A page that is there.
    pub(crate) fn page(&self, page: u64) -> &[u8] {
        self.bytes(page, 1)
    }

    fn damaged(&self, page: u64, reason: impl Into<String>) -> EngineError {
        EngineError::Damaged {
            file: self.path.to_owned(),
            page,
            reason: reason.into(),
        }
    }

    /// The meta page in place 0 or 1.
    pub(crate) fn meta(&self, page: u64) -> Result<Meta, EngineError> {
        let bytes = self.bytes(page, 1);
        let meta = Meta::decode(bytes).expect("a page is longer");
        if meta.magic != MAGIC {
            return Err(self.damaged(page, "not a meta page of a tree file"));
        }
        if meta.crc != checksum(bytes) {
            return Err(self.damaged(page, "its checksum is wrong"));
        }
        if meta.version != VERSION {
            let reason = format!(
                "its format is version {}, this program knows {VERSION}",
                meta.version
            );
            return Err(EngineError::Foreign {
                file: self.path.to_owned(),
                reason,
            });
        }
        if meta.kind != PageKind::Meta as u8
            || meta.page != page
            || meta.generation % META_PAGES != page
        {
            return Err(self.damaged(page, "it was written for another place"));
        }
        Ok(meta)
    }

    pub(crate) fn newest(&self) -> Result<Found, EngineError> {
        match (self.meta(0), self.meta(1)) {
            (Err(error @ EngineError::Foreign { .. }), _)
            | (_, Err(error @ EngineError::Foreign { .. })) => Err(error),
            (Ok(a), Ok(b)) => {
                let (meta, before) = if a.generation > b.generation {
                    (a, b)
                } else {
                    (b, a)
                };
                Ok(Found {
                    meta,
                    before: Some(before),
                })
            }
            (Ok(meta), Err(error)) | (Err(error), Ok(meta)) => {
                tracing::warn!("{error}: opening the checkpoint before it");
                Ok(Found { meta, before: None })
            }
            (Err(error), Err(_)) => Err(error),
        }
    }

    /// A run of the map, checked.
    fn run(&self, page: u64, kind: PageKind) -> Result<(&[u8], u64), EngineError> {
        let header = match page >= META_PAGES && page < self.pages {
            true => RunHeader::decode(self.bytes(page, 1)).expect("a page is longer"),
            false => return Err(self.damaged(page, "it lies outside the file")),
        };
        let pages = u64::from(header.pages);
        if pages == 0 || pages > self.pages - page {
            return Err(self.damaged(page, "its length makes no sense"));
        }
        let bytes = self.bytes(page, pages);
        check_run(bytes, page).map_err(|reason| self.damaged(page, reason))?;
        if header.kind != kind as u8 {
            return Err(self.damaged(page, "not a page of the map"));
        }
        Ok((
            &bytes[RUN_HEADER_BYTES..RUN_HEADER_BYTES + header.bytes as usize],
            pages,
        ))
    }

    /// The map of a checkpoint: which pages it uses.
    pub(crate) fn map(&self, meta: &Meta) -> Result<Map, EngineError> {
        let (index, pages) = self.run(meta.map_index, PageKind::MapIndex)?;
        let (places, rest) = index.as_chunks();
        let places: Vec<u64> = places
            .iter()
            .map(|place| u64::from_le_bytes(*place))
            .collect();
        if !rest.is_empty() || (places.len() as u64) < meta.end.div_ceil(MAP_PAGES) {
            return Err(self.damaged(meta.map_index, "the map has the wrong length"));
        }
        let mut used = Vec::with_capacity(places.len());
        for &place in &places {
            let (bytes, _) = self.run(place, PageKind::Map)?;
            let mut chunk: Chunk = [0; _];
            if bytes.len() != size_of::<Chunk>() {
                return Err(self.damaged(place, "a page of the map has the wrong length"));
            }
            for (word, bytes) in chunk.iter_mut().zip(bytes.as_chunks().0) {
                *word = u64::from_le_bytes(*bytes);
            }
            used.push(Arc::new(chunk));
        }
        let last_used = used.iter().enumerate().rev().find_map(|(c, chunk)| {
            let (w, word) = chunk.iter().enumerate().rfind(|(_, word)| **word != 0)?;
            Some(c as u64 * MAP_PAGES + w as u64 * 64 + u64::from(word.ilog2()))
        });
        if last_used.is_some_and(|last| last >= self.pages || last >= meta.end) {
            return Err(self.damaged(self.pages, "the file is cut off here"));
        }
        Ok(Map {
            used,
            places,
            index: Run {
                page: meta.map_index,
                pages,
            },
        })
    }
}
