//! A naive twin of the log: what each batch should leave behind, in maps.
//! With it, a seeded workload and the means to run it on a simulated disk.

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use pontoon_wal::disk::Disk;
use pontoon_wal::disk::sim::{Rng, SimClock, SimDisk};
use pontoon_wal::{Batch, Clock, Config, LogIndex, Opened, StreamId, Wal, WalError};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Twin {
    pub(crate) streams: BTreeMap<u64, TwinStream>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TwinStream {
    pub(crate) first: u64,
    pub(crate) entries: VecDeque<Bytes>,
    pub(crate) metas: BTreeMap<u8, Bytes>,
}

#[derive(Clone, Debug)]
pub(crate) enum Step {
    Append(u64, Vec<Bytes>),
    Meta(u64, u8, Bytes),
    Truncate(u64, u64),
    Purge(u64, u64),
    Drop(u64),
}

impl TwinStream {
    pub(crate) fn next(&self) -> u64 {
        self.first + self.entries.len() as u64
    }
}

impl Twin {
    pub(crate) fn apply(&mut self, step: &Step) {
        match step {
            Step::Append(id, entries) => {
                let stream = self.streams.entry(*id).or_default();
                stream.entries.extend(entries.iter().cloned());
            }
            Step::Meta(id, key, value) => {
                let stream = self.streams.entry(*id).or_default();
                stream.metas.insert(*key, value.clone());
            }
            Step::Truncate(id, from) => {
                let stream = self.streams.get_mut(id).expect("it exists");
                let keep = from.saturating_sub(stream.first) as usize;
                stream.entries.truncate(keep);
            }
            Step::Purge(id, below) => {
                let stream = self.streams.entry(*id).or_default();
                while stream.first < *below {
                    stream.entries.pop_front();
                    stream.first += 1;
                }
            }
            Step::Drop(id) => {
                self.streams.remove(id).expect("it exists");
            }
        }
    }

    /// What the log says, read back entry by entry.
    pub(crate) fn of(wal: &Wal) -> Result<Self, WalError> {
        let mut twin = Self::default();
        for id in wal.streams() {
            let (first, next) = wal.bounds(id).expect("it exists");
            let mut stream = TwinStream {
                first: first.0,
                ..TwinStream::default()
            };
            while stream.next() < next.0 {
                // A small limit, so that reads end at all sorts of places.
                let entries = wal.read(id, LogIndex(stream.next()), next, 2000)?;
                assert!(!entries.is_empty(), "there are entries up to {next}");
                stream.entries.extend(entries);
            }
            for key in 0..=u8::MAX {
                if let Some(value) = wal.meta(id, key) {
                    stream.metas.insert(key, value);
                }
            }
            twin.streams.insert(id.0, stream);
        }
        Ok(twin)
    }

    /// A random step that is possible now.
    pub(crate) fn random_step(&self, rng: &mut Rng, shape: &Shape) -> Step {
        let id = rng.below(shape.streams);
        let stream = self.streams.get(&id);
        match (rng.below(20), stream) {
            (0, _) => Step::Meta(id, rng.below(3) as u8, random_bytes(rng, 40)),
            (1, Some(stream)) => {
                let back = rng.below(stream.entries.len() as u64 + 1);
                Step::Truncate(id, stream.next() - back)
            }
            (2 | 3, Some(stream)) => {
                let ahead = rng.below(stream.entries.len() as u64 + 1);
                Step::Purge(id, stream.first + ahead)
            }
            (4, Some(stream)) if rng.chance(1, 4) => {
                // Beyond the end, as when a snapshot replaces the log.
                Step::Purge(id, stream.next() + rng.below(50))
            }
            (5, Some(_)) if rng.chance(1, 3) => Step::Drop(id),
            _ => {
                let count = 1 + rng.below(4);
                let bytes = if rng.chance(1, 10) {
                    shape.large_bytes
                } else {
                    shape.entry_bytes
                };
                Step::Append(id, (0..count).map(|_| random_bytes(rng, bytes)).collect())
            }
        }
    }
}

/// What a workload is made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) streams: u64,
    pub(crate) entry_bytes: u64,
    pub(crate) large_bytes: u64,
}

pub(crate) const SMALL: Shape = Shape {
    streams: 5,
    entry_bytes: 300,
    large_bytes: 3000,
};

pub(crate) fn random_bytes(rng: &mut Rng, bytes_max: u64) -> Bytes {
    let len = rng.below(bytes_max + 1) as usize;
    let mut bytes = vec![0; len];
    for chunk in bytes.chunks_mut(8) {
        chunk.copy_from_slice(&rng.next_u64().to_le_bytes()[..chunk.len()]);
    }
    Bytes::from(bytes)
}

/// The batch for steps that are applied to `twin` one after the other.
pub(crate) fn batch_of(twin: &mut Twin, steps: &[Step]) -> Batch {
    let mut batch = Batch::new();
    for step in steps {
        match step {
            Step::Append(id, entries) => {
                let next = twin.streams.get(id).map_or(0, TwinStream::next);
                batch.append(StreamId(*id), LogIndex(next), entries.clone())
            }
            Step::Meta(id, key, value) => batch.meta(StreamId(*id), *key, value.clone()),
            Step::Truncate(id, from) => batch.truncate_from(StreamId(*id), LogIndex(*from)),
            Step::Purge(id, below) => batch.purge_below(StreamId(*id), LogIndex(*below)),
            Step::Drop(id) => batch.drop_stream(StreamId(*id)),
        };
        twin.apply(step);
    }
    batch
}

/// One to four random steps as a batch.
pub(crate) fn random_batch(rng: &mut Rng, twin: &mut Twin, shape: &Shape) -> Batch {
    let mut steps = Vec::new();
    let mut after = twin.clone();
    for _ in 0..1 + rng.below(4) {
        let step = after.random_step(rng, shape);
        after.apply(&step);
        steps.push(step);
    }
    batch_of(twin, &steps)
}

pub(crate) fn dir() -> PathBuf {
    PathBuf::from("/log")
}

/// Small segments, so that everything happens often.
pub(crate) fn small_config(dir: &Path) -> Config {
    Config {
        segment_bytes: 64 << 10,
        commit_bytes_max: 16 << 10,
        queue_bytes_max: 64 << 10,
        cache_bytes_max: 8 << 10,
        clean_above_bytes: 200 << 10,
        ..Config::new(dir, 7)
    }
}

pub(crate) fn open_sim(disk: &SimDisk, seed: u64) -> Result<(Wal, Opened), WalError> {
    open_with(small_config(&dir()), Arc::new(disk.clone()), seed)
}

pub(crate) fn open_with(
    config: Config,
    disk: Arc<dyn Disk>,
    seed: u64,
) -> Result<(Wal, Opened), WalError> {
    let clock: Arc<dyn Clock> = Arc::new(SimClock::new(seed));
    Wal::open(config, disk, clock)
}

/// Runs everything on one thread with a clock that jumps.
pub(crate) fn simulate<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, test)
}

/// The log agrees with its twin through random work, reopening and reading.
#[test]
fn the_log_agrees_with_its_twin() {
    for seed in 0..40 {
        simulate(async {
            let disk = SimDisk::new(seed);
            if seed % 3 == 0 {
                disk.short_reads(seed);
            }
            let mut rng = Rng::new(seed);
            let mut twin = Twin::default();
            for round in 0..6 {
                let (wal, opened) = open_sim(&disk, seed * 100 + round).unwrap();
                assert_eq!(opened.created, round == 0);
                assert!(opened.was_closed && !opened.cut, "{opened:?}");
                assert_eq!(Twin::of(&wal).unwrap(), twin, "seed {seed} round {round}");
                for _ in 0..150 {
                    let batch = random_batch(&mut rng, &mut twin, &SMALL);
                    if rng.chance(1, 5) {
                        wal.commit(batch).await.unwrap();
                    } else {
                        wal.append(batch, |result| result.unwrap()).await.unwrap();
                    }
                    if rng.chance(1, 10) {
                        assert_eq!(Twin::of(&wal).unwrap(), twin, "seed {seed}");
                    }
                }
                wal.close().await;
            }
        });
    }
}
