//! Ours against redb and LMDB, all three holding the same million keys.

use std::hint::black_box;
use std::io;
use std::time::Instant;

use pontoon_bench::lines::{Line, Target};
use pontoon_bench::pods::{Put, Puts, touch};
use pontoon_bench::runner::Bench;
use pontoon_bench::samples::Samples;
use pontoon_bench::tree_peers::{Lmdb, Redb};
use pontoon_bench::trees::{Tree, other};
use pontoon_engine::{Entry, KeyRange};

use crate::MIB;
use crate::million::ROUNDS;

const BATCH: usize = 100;
/// Puts of each store, all rounds together.
const PUTS: u64 = 300_000;
/// Batches of each store before the first round.
const WARM_UP: usize = 50;
const GETS: u64 = 300_000;
const RANGES: u64 = 20_000;
const RANGE_KEYS: usize = 100;

pub(crate) struct Peers {
    redb: Redb,
    lmdb: Lmdb,
}

impl Peers {
    pub(crate) fn create(bench: &Bench<'_>) -> io::Result<Self> {
        Ok(Self {
            redb: Redb::create(&bench.dir.join("redb"))?,
            lmdb: Lmdb::create(&bench.dir.join("lmdb"))?,
        })
    }

    pub(crate) fn apply(&mut self, batch: &[Put]) -> io::Result<()> {
        self.redb.apply(batch)?;
        self.lmdb.apply(batch)
    }

    pub(crate) fn sync(&mut self) -> io::Result<()> {
        self.redb.sync()?;
        self.lmdb.sync()
    }

    /// Batches of puts, none of them synced. Ours is timed until it is not
    /// behind: no more is left in memory than starts a checkpoint. The peers
    /// are timed until their last commit. What all of them have on disk at
    /// that moment differs, so the asides say what it costs until it is there.
    pub(crate) fn apply_lines(
        &mut self,
        bench: &Bench<'_>,
        tree: &mut Tree,
        puts: &mut Puts,
    ) -> io::Result<Vec<Line>> {
        let line = |peer: &str, target| {
            Line::new(
                format!("apply-{}", peer.to_lowercase()),
                format!(
                    "puts in batches of {BATCH}, 256 B, random keys, not synced / {peer}, not synced"
                ),
                "/s",
                Target::AtLeast(target),
            )
        };
        let mut redb_line = line("redb", 2.0);
        let mut lmdb_line = line("LMDB", 1.0);
        let batches = bench.scaled(PUTS) as usize / BATCH / ROUNDS;
        self.apply_round(tree, puts, WARM_UP)?;
        for _ in 0..ROUNDS {
            let round = self.apply_round(tree, puts, batches)?;
            let count = (batches * BATCH) as f64;
            let caught_up = round.ours.elapsed.as_secs_f64() + round.catching_up;
            let ours = count / caught_up;
            for line in [&mut redb_line, &mut lmdb_line] {
                line.aside(
                    "with a checkpoint of all /s",
                    count / (caught_up + round.settling),
                );
                line.aside("batch p99 µs", round.ours.micros(0.99));
                line.aside("batch max µs", round.ours.micros(1.0));
                line.aside("checkpoints", round.checkpoints);
                line.aside("dirty MiB at most", round.dirty as f64 / MIB);
            }
            for (line, samples, sync) in [
                (&mut redb_line, &round.redb, round.redb_sync),
                (&mut lmdb_line, &round.lmdb, round.lmdb_sync),
            ] {
                let theirs = samples.elapsed.as_secs_f64();
                line.round(ours, count / theirs);
                line.disturbed += usize::from(samples.held_up());
                line.aside("reference with its sync /s", count / (theirs + sync));
                line.aside("reference batch p99 µs", samples.micros(0.99));
            }
        }
        let (ours, _) = tree.store.file_bytes();
        for (line, theirs) in [
            (&mut redb_line, self.redb.file_bytes()?),
            (&mut lmdb_line, self.lmdb.file_bytes()?),
        ] {
            line.aside("file MiB", ours as f64 / MIB);
            line.aside("reference file MiB", theirs as f64 / MIB);
        }
        Ok(vec![redb_line, lmdb_line])
    }

    fn apply_round(
        &mut self,
        tree: &mut Tree,
        puts: &mut Puts,
        batches: usize,
    ) -> io::Result<Round> {
        let batches: Vec<Vec<Put>> = (0..batches).map(|_| puts.any(BATCH)).collect();
        let entries: Vec<Entry> = batches.iter().map(|batch| tree.entry_of(batch)).collect();
        let mut dirty = 0;
        let mut checkpoints = 0.0;
        let mut needed = tree.store.log_needed_after();
        let mut look = |tree: &Tree| {
            dirty = dirty.max(tree.store.dirty_bytes());
            let now = tree.store.log_needed_after();
            checkpoints += f64::from(u8::from(now != needed));
            needed = now;
        };
        let ours = timed(&entries, |entry| {
            tree.apply(entry)?;
            look(tree);
            Ok(())
        })?;
        let start = Instant::now();
        tree.catch_up()?;
        let catching_up = start.elapsed().as_secs_f64();
        let start = Instant::now();
        tree.settle()?;
        let settling = start.elapsed().as_secs_f64();
        look(tree);
        drop(entries);
        let redb = timed(&batches, |batch| self.redb.apply(batch))?;
        let start = Instant::now();
        self.redb.sync()?;
        let redb_sync = start.elapsed().as_secs_f64();
        let lmdb = timed(&batches, |batch| self.lmdb.apply(batch))?;
        let start = Instant::now();
        self.lmdb.sync()?;
        let lmdb_sync = start.elapsed().as_secs_f64();
        Ok(Round {
            ours,
            catching_up,
            settling,
            checkpoints,
            dirty,
            redb,
            redb_sync,
            lmdb,
            lmdb_sync,
        })
    }

    /// Point gets: LMDB in one transaction, ours at one revision.
    pub(crate) fn get_line(
        &self,
        bench: &Bench<'_>,
        tree: &Tree,
        puts: &mut Puts,
    ) -> io::Result<Vec<Line>> {
        let mut line = Line::new(
            "get-lmdb",
            "newest versions of random keys, every byte looked at / LMDB, in one transaction",
            "/s",
            Target::AtLeast(0.7),
        );
        let count = bench.scaled(GETS);
        for round in 0..=ROUNDS {
            let keys: Vec<_> = (0..count)
                .map(|_| puts.pods.key(puts.rng.below(puts.pods.count)))
                .collect();
            let start = Instant::now();
            let at = tree.store.revision();
            let mut ours = 0u64;
            for key in &keys {
                let visited = tree.store.visit_key(key, at, &mut |kv| {
                    ours = ours.wrapping_add(touch(kv.value));
                });
                visited.map_err(other)?;
            }
            let our_time = start.elapsed().as_secs_f64();
            let start = Instant::now();
            let reader = self.lmdb.reader()?;
            let mut theirs = 0u64;
            for key in &keys {
                if let Some(value) = reader.get(key)? {
                    theirs = theirs.wrapping_add(touch(value));
                }
            }
            let their_time = start.elapsed().as_secs_f64();
            same(black_box(ours), black_box(theirs))?;
            // The first brings everything into the caches.
            if round > 0 {
                line.round(count as f64 / our_time, count as f64 / their_time);
                line.aside("ns", our_time * 1e9 / count as f64);
                line.aside("reference ns", their_time * 1e9 / count as f64);
            }
        }
        Ok(vec![line])
    }

    /// A hundred keys from a random one on.
    pub(crate) fn range_line(
        &self,
        bench: &Bench<'_>,
        tree: &Tree,
        puts: &mut Puts,
    ) -> io::Result<Vec<Line>> {
        let mut line = Line::new(
            "range-lmdb",
            format!(
                "ranges of {RANGE_KEYS} keys from random ones on, every byte looked at / LMDB, in one transaction"
            ),
            "/s",
            Target::AtLeast(0.7),
        );
        let count = bench.scaled(RANGES);
        for round in 0..=ROUNDS {
            let ranges: Vec<_> = (0..count)
                .map(|_| {
                    let number = puts.rng.below(puts.pods.count);
                    KeyRange::new(puts.pods.key(number), &b"\0"[..])
                })
                .collect();
            let start = Instant::now();
            let at = tree.store.revision();
            let mut ours = 0u64;
            for keys in &ranges {
                let mut left = RANGE_KEYS;
                let scanned = tree.store.scan(keys, at, &mut |kv| {
                    ours = ours.wrapping_add(touch(kv.key));
                    ours = ours.wrapping_add(touch(kv.value));
                    left -= 1;
                    left > 0
                });
                scanned.map_err(other)?;
            }
            let our_time = start.elapsed().as_secs_f64();
            let start = Instant::now();
            let reader = self.lmdb.reader()?;
            let mut theirs = 0u64;
            for keys in &ranges {
                let mut left = RANGE_KEYS;
                reader.scan(&keys.key, &mut |key, value| {
                    theirs = theirs.wrapping_add(touch(key));
                    theirs = theirs.wrapping_add(touch(value));
                    left -= 1;
                    left > 0
                })?;
            }
            let their_time = start.elapsed().as_secs_f64();
            same(black_box(ours), black_box(theirs))?;
            if round > 0 {
                line.round(count as f64 / our_time, count as f64 / their_time);
                line.aside("µs", our_time * 1e6 / count as f64);
                line.aside("reference µs", their_time * 1e6 / count as f64);
            }
        }
        Ok(vec![line])
    }
}

/// What one round of puts took, in seconds where not said otherwise.
struct Round {
    ours: Samples,
    /// From the last put until no checkpoint is due.
    catching_up: f64,
    /// From then until a checkpoint has it.
    settling: f64,
    checkpoints: f64,
    /// Bytes of changed pages in memory, at most.
    dirty: usize,
    redb: Samples,
    redb_sync: f64,
    lmdb: Samples,
    lmdb_sync: f64,
}

/// Does something with each, and takes the time.
fn timed<T>(all: &[T], mut work: impl FnMut(&T) -> io::Result<()>) -> io::Result<Samples> {
    let mut samples = Samples {
        nanos: Vec::with_capacity(all.len()),
        ..Samples::default()
    };
    let start = Instant::now();
    let mut before = start;
    for one in all {
        work(one)?;
        let now = Instant::now();
        samples.add(now - before);
        before = now;
    }
    samples.elapsed = before - start;
    Ok(samples)
}

/// Both looked at the same bytes.
fn same(ours: u64, theirs: u64) -> io::Result<()> {
    match ours == theirs {
        true => Ok(()),
        false => Err(io::Error::other("ours and LMDB hold different content")),
    }
}
