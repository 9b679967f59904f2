//! Arbitrary damage to a log's files: recovery answers with an error or with
//! a state that once was, and never leaves out in silence what an undamaged
//! later commit proves to have been acknowledged. It never panics.

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;

use pontoon_wal::disk::sim::{CommitStyle, Rng, SimDisk};
use pontoon_wal::inspect::{Depth, LogFacts, RecordFacts, dump, inspect};
use pontoon_wal::{BLOCK_BYTES, Lsn, WalError};

use super::twin::{SMALL, Twin, dir, open_sim, random_batch, simulate};

const MUTATIONS: u64 = 100_000;

/// A log as a kill left it, with all states it ever was in.
struct Base {
    disk: SimDisk,
    states: Vec<Twin>,
    shapes: Vec<Shape>,
    commits: BTreeMap<u64, RecordFacts>,
}

/// What inspection shows of a state: enough to tell states apart.
type Shape = Vec<(u64, u64, u64, u64, Vec<(u8, usize)>)>;

fn shape_of_twin(twin: &Twin) -> Shape {
    let streams = twin.streams.iter();
    streams
        .map(|(&id, stream)| {
            let bytes = stream.entries.iter().map(|entry| entry.len() as u64).sum();
            let metas = stream.metas.iter();
            let metas = metas.map(|(&key, value)| (key, value.len())).collect();
            (id, stream.first, stream.next(), bytes, metas)
        })
        .collect()
}

fn shape_of_log(log: &LogFacts) -> Shape {
    log.streams
        .iter()
        .map(|stream| {
            (
                stream.id.0,
                stream.first.0,
                stream.next.0,
                stream.entry_bytes,
                stream.metas.clone(),
            )
        })
        .collect()
}

fn base(seed: u64) -> Base {
    simulate(async {
        let disk = SimDisk::new(seed);
        if seed % 4 == 3 {
            disk.set_commit_style(CommitStyle::WriteThenSync);
        }
        let mut rng = Rng::new(seed);
        let mut states = vec![Twin::default()];
        // Some logs were opened several times, so that there are epochs.
        let epochs = 1 + seed % 3;
        let mut killed = None;
        for epoch in 0..epochs {
            let (wal, _) = open_sim(&disk, seed * 10 + epoch).unwrap();
            for _ in 0..60 {
                let mut twin = states.last().unwrap().clone();
                let batch = random_batch(&mut rng, &mut twin, &SMALL);
                states.push(twin);
                if rng.chance(1, 2) {
                    wal.commit(batch).await.unwrap();
                } else {
                    wal.append(batch, |_| {}).await.unwrap();
                }
            }
            if epoch + 1 == epochs && !seed.is_multiple_of(4) {
                // Killed with commits in flight, whose proof is still missing.
                killed = Some(disk.process_kill());
            }
            wal.close().await;
        }
        let disk = killed.unwrap_or(disk);
        let mut commits = BTreeMap::new();
        let facts = dump(&disk, &dir(), Depth::Everything, &mut |record| {
            commits.entry(record.seq).or_insert(record);
        });
        facts.unwrap().unwrap().log.unwrap();
        Base {
            shapes: states.iter().map(shape_of_twin).collect(),
            disk,
            states,
            commits,
        }
    })
}

/// Changes files at random and remembers which blocks are not what they were.
struct Vandal<'a> {
    disk: &'a SimDisk,
    rng: &'a mut Rng,
    touched: HashSet<(PathBuf, usize)>,
}

impl Vandal<'_> {
    fn mutate(&mut self) {
        let paths = self.disk.paths();
        let pick = |rng: &mut Rng| paths[rng.below(paths.len() as u64) as usize].clone();
        let path = pick(self.rng);
        let Some(mut bytes) = self.disk.read_file(&path) else {
            return;
        };
        if bytes.is_empty() {
            return;
        }
        let blocks = bytes.len().div_ceil(BLOCK_BYTES);
        let at = self.rng.below(bytes.len() as u64) as usize;
        // Half of the time near the start of a block, where headers are.
        let at = if self.rng.chance(1, 2) {
            (at / BLOCK_BYTES * BLOCK_BYTES + self.rng.below(160) as usize).min(bytes.len() - 1)
        } else {
            at
        };
        let block = at / BLOCK_BYTES * BLOCK_BYTES;
        let block_end = (block + BLOCK_BYTES).min(bytes.len());
        match self.rng.below(12) {
            0..=2 => bytes[at] ^= 1 << self.rng.below(8),
            3 => {
                let end = (at + 1 + self.rng.below(300) as usize).min(bytes.len());
                for byte in &mut bytes[at..end] {
                    *byte = self.rng.next_u64() as u8;
                }
            }
            4 | 5 => bytes[block..block_end].fill(0),
            6 => {
                // An integer with an extreme value.
                let value = [0u64, 1, u64::MAX, 1 << 31, 1 << 63][self.rng.below(5) as usize];
                let width = [1, 2, 4, 8][self.rng.below(4) as usize];
                let end = (at + width).min(bytes.len());
                bytes[at..end].copy_from_slice(&value.to_le_bytes()[..end - at]);
            }
            7 | 8 => {
                // A block from somewhere else in the log.
                let from = self.disk.read_file(&pick(self.rng)).unwrap_or_default();
                let count = from.len() / BLOCK_BYTES;
                if count > 0 {
                    let start = self.rng.below(count as u64) as usize * BLOCK_BYTES;
                    let len = block_end - block;
                    bytes[block..block_end].copy_from_slice(&from[start..start + len]);
                }
            }
            9 => bytes.truncate(at),
            10 if self.rng.chance(1, 2) => bytes = self.disk.read_file(&pick(self.rng)).unwrap(),
            10 => {
                self.disk.remove_file(&path);
                self.touched
                    .extend((0..blocks).map(|block| (path.clone(), block)));
                return;
            }
            _ => {
                let more = self.rng.below(9000) as usize;
                bytes.resize(bytes.len() + more, 0);
            }
        }
        let before = self.disk.read_file(&path).unwrap();
        let blocks = bytes.len().max(before.len()).div_ceil(BLOCK_BYTES);
        for block in 0..blocks {
            let range = |bytes: &[u8]| {
                let start = (block * BLOCK_BYTES).min(bytes.len());
                let end = (start + BLOCK_BYTES).min(bytes.len());
                bytes[start..end].to_vec()
            };
            if range(&bytes) != range(&before) {
                self.touched.insert((path.clone(), block));
            }
        }
        self.disk.write_file(&path, bytes);
    }

    fn is_whole(&self, at: Lsn) -> bool {
        let path = dir().join(pontoon_wal::format::segment_name(at.segment()));
        let block = at.offset() as usize / BLOCK_BYTES;
        !self.touched.contains(&(path.clone(), block)) && !self.touched.contains(&(path, 0))
    }
}

#[test]
fn a_hundred_thousand_mutations_give_an_error_or_a_true_prefix() {
    let bases: Vec<_> = (0..12).map(base).collect();
    let mut rng = Rng::new(2026);
    let (mut errors, mut cut, mut whole, mut opened) = (0, 0, 0, 0);
    for number in 0..MUTATIONS {
        let base = &bases[(number % bases.len() as u64) as usize];
        let disk = base.disk.fork();
        let mutations = 1 + rng.below(3);
        let mut vandal = Vandal {
            disk: &disk,
            rng: &mut rng,
            touched: HashSet::new(),
        };
        for _ in 0..mutations {
            vandal.mutate();
        }
        let depth = match number % 4 {
            0 => Depth::Everything,
            _ => Depth::Footers,
        };
        let log = match inspect(&disk, &dir(), depth) {
            // No log at all: only if its identity and all commits are gone.
            Ok(None) => {
                let survivors = base
                    .commits
                    .values()
                    .any(|commit| vandal.is_whole(commit.at));
                assert!(
                    !survivors,
                    "mutation {number}: taken for an empty directory"
                );
                continue;
            }
            Ok(Some(inspection)) => inspection.log,
            Err(error) => Err(error),
        };
        let Ok(log) = log else {
            errors += 1;
            continue;
        };
        assert!(
            base.shapes.contains(&shape_of_log(&log)),
            "mutation {number}: this state never was"
        );
        // The first commit that is not there any more was acknowledged if a
        // whole later one says so.
        if let Some((seq, lost)) = base.commits.range(log.last_seq + 1..).next() {
            cut += 1;
            let proof = base
                .commits
                .range(seq..)
                .find(|(_, later)| later.durable > lost.at && vandal.is_whole(later.at));
            assert!(
                proof.is_none(),
                "mutation {number}: commit {seq} was acknowledged, as {proof:?} proves"
            );
        } else {
            whole += 1;
        }
        // What inspection accepts can be opened and read, or says what is damaged.
        if number % 10 == 0 {
            opened += 1;
            simulate(async {
                match open_sim(&disk, number) {
                    Ok((wal, _)) => match Twin::of(&wal) {
                        Ok(twin) => assert!(base.states.contains(&twin), "mutation {number}"),
                        Err(WalError::Damaged(_)) => assert_eq!(depth, Depth::Footers),
                        Err(other) => panic!("mutation {number}: {other}"),
                    },
                    Err(error) => panic!("mutation {number}: inspected but not opened: {error}"),
                }
            });
        }
    }
    println!("{errors} errors, {cut} cut, {whole} whole; {opened} of those opened and read");
    // The mutations must reach all outcomes, or they prove little.
    assert!(errors > MUTATIONS / 4 && cut > 500 && whole > MUTATIONS / 10);
}
