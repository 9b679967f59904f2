//! A store that is split while it works: it and what was split off are
//! compared with the model, each for its keys.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use pontoon_engine::{
    Config, Copying, KeyRange, Put, Range, Request, Revision, Step, Store, range,
};
use pontoon_wal::disk::Disk;
use pontoon_wal::disk::sim::Rng;

use super::{Both, agree, rejected, text};
use crate::ops::{Action, Maker, Pace, Shape};
use crate::script::assert_whole;

const ACTIONS: u64 = 120;
const ACTIONS_AFTER: u64 = 60;

/// Random work with a copy beside it, a split, and more work beside shedding.
pub(in crate::agree) fn split_run(path: &str, seed: u64) -> Result<(), String> {
    let mut rng = Rng::new(seed);
    let shape = Shape::random(&mut rng);
    let mut both = Both::new(path, seed)?;
    let at = [&b"a"[..], b"ab", b"b", b"bc", b"a\xff"][rng.below(5) as usize];
    let lower = KeyRange::new(&b"\0"[..], at);
    let upper = KeyRange::new(at, &b"\0"[..]);
    for _ in 0..ACTIONS {
        let mut maker = Maker {
            rng: &mut rng,
            shape,
            model: &both.model,
        };
        let action = maker.action();
        both.act(&action)?;
        if rng.chance(1, 3) {
            both.copy_some(&upper, 1 + rng.below(3))?;
        }
    }
    both.drain(&mut rng)?;
    let before = both.hashes(&both.store)?;
    both.append(vec![Step::Bounds {
        keys: lower.clone(),
    }])?;
    if rng.chance(1, 3) {
        both.power_cut(rng.next_u64())?;
    }
    let child = both.make_child(&upper)?;
    let halves = both.hashes(&both.store)?.into_iter();
    let halves = halves.zip(both.hashes(&child)?);
    let sums: Vec<_> = halves.map(|(a, b)| a.wrapping_add(b)).collect();
    agree("hashes of the halves", &sums, &before)?;
    both.compare_half(&child, &upper)?;
    both.compare_half(&both.store, &lower)?;
    agree("floor", &child.floor(), &both.store.floor())?;
    agree("last", &child.last_revision(), &both.store.last_revision())?;
    let mut is_shed = false;
    for _ in 0..ACTIONS_AFTER {
        both.act_after(&mut rng, &lower)?;
        if is_shed {
            both.store.shed_step(rng.below(20) as usize).map_err(text)?;
        } else if rng.chance(1, 30) {
            let other = both.make_child(&upper)?;
            compare_children(&other, &child, &upper)?;
            both.append(vec![Step::Shed])?;
            is_shed = true;
        }
    }
    both.advance(Pace::Retire, both.queue.len())?;
    both.compare_half(&both.store, &lower)?;
    both.append(vec![])?;
    both.checkpoint()?;
    assert_whole(&both.disk, Path::new(&both.path));
    Ok(())
}

impl Both {
    fn copy_some(&mut self, keys: &KeyRange, steps: u64) -> Result<(), String> {
        if self.copying.is_none() {
            self.copying = Some(self.begin_child(keys)?);
        }
        if let Some(copying) = &mut self.copying {
            for _ in 0..steps {
                copying.advance().map_err(text)?;
            }
        }
        Ok(())
    }

    fn child_path(&self) -> String {
        format!("{}-child", self.path)
    }

    fn begin_child(&self, keys: &KeyRange) -> Result<Copying, String> {
        let disk: Arc<dyn Disk> = Arc::new(self.disk.clone());
        let path = self.child_path();
        let config = Config {
            dirty_bytes_max: 40 << 10,
            ..Config::default()
        };
        Copying::begin(&self.store, &disk, Path::new(&path), config, keys.clone()).map_err(text)
    }

    fn make_child(&mut self, keys: &KeyRange) -> Result<Store, String> {
        let copying = match self.copying.take() {
            Some(copying) => copying,
            None => self.begin_child(keys)?,
        };
        copying.finish(&[]).map_err(text)?;
        let path = self.child_path();
        assert_whole(&self.disk, Path::new(&path));
        Store::open(&self.disk, Path::new(&path), Config::default()).map_err(text)
    }

    /// Nothing waits any more, and nothing is undecided.
    fn drain(&mut self, rng: &mut Rng) -> Result<(), String> {
        self.advance(Pace::Retire, self.queue.len())?;
        while !self.staged.is_empty() {
            self.decide(rng.chance(1, 2))?;
        }
        Ok(())
    }

    /// The hash at each revision that can be read.
    fn hashes(&self, store: &Store) -> Result<Vec<u64>, String> {
        let readable = store.floor().0.max(1)..=store.revision().0;
        let hashes = readable.map(|at| Ok(store.hash(Revision(at))?.keys));
        hashes.collect::<Result<_, _>>().map_err(text)
    }

    /// Compares all that can be read of some keys with the model.
    fn compare_half(&self, store: &Store, keys: &KeyRange) -> Result<(), String> {
        let (floor, newest) = (self.model.floor.max(1), self.base);
        for revision in floor..=newest {
            let mut wanted = Range::of(keys.clone());
            wanted.revision = revision;
            wanted.limit = if revision % 2 == 0 { 3 } else { 0 };
            let found = range(store, Revision(newest), &wanted);
            agree("read", &rejected(found)?, &self.model.range(&wanted))?;
        }
        for prev_kv in [false, true] {
            let (first, last) = (Revision(self.model.floor), Revision(newest));
            let found = store.events(keys, first, last, prev_kv);
            let expected = self.model.events(keys, first.0, last.0, prev_kv);
            agree("events", &rejected(found)?, &expected)?;
        }
        for lease in [1, 2, 3, -7] {
            let mut found = Vec::new();
            let mut push = |key: &[u8]| found.push(Bytes::copy_from_slice(key));
            store.lease_keys(lease, &mut push).map_err(text)?;
            let mut expected = self.model.lease_keys(lease);
            expected.retain(|key| keys.contains(key));
            agree("keys of a lease", &found, &expected)?;
        }
        Ok(())
    }

    /// Something that concerns the lower half only.
    fn act_after(&mut self, rng: &mut Rng, lower: &KeyRange) -> Result<(), String> {
        let inside = self.model.history.keys().filter(|key| lower.contains(key));
        let inside: Vec<Bytes> = inside.cloned().collect();
        let action = match rng.below(20) {
            0 => Action::Compact(self.model.revision - rng.below(4) as i64),
            1..6 => Action::CompactStep(1 + rng.below(10) as usize),
            6 => Action::Checkpoint,
            7 => Action::PowerCut(rng.next_u64()),
            _ if inside.is_empty() => return Ok(()),
            _ => Action::Request {
                request: Request::Put(Put {
                    key: inside[rng.below(inside.len() as u64) as usize].clone(),
                    value: vec![b'z'; rng.below(9) as usize].into(),
                    ..Put::default()
                }),
                named: false,
                pace: Pace::Retire,
                oldest: None,
            },
        };
        let hash = match action {
            Action::Request { .. } | Action::Compact(_) => None,
            _ => Some(self.store.applied_hash().map_err(text)?),
        };
        self.act(&action)?;
        match hash {
            Some(hash) => agree(
                "hash after work in the background",
                &self.store.applied_hash().map_err(text)?,
                &hash,
            ),
            None => Ok(()),
        }
    }
}

/// Two stores that were made of the same keys at different times.
fn compare_children(store: &Store, other: &Store, keys: &KeyRange) -> Result<(), String> {
    let facts = |store: &Store| (store.floor(), store.revision(), store.last_revision());
    agree("facts", &facts(store), &facts(other))?;
    let hash = |store: &Store| store.applied_hash().map_err(text);
    agree("hash", &hash(store)?, &hash(other)?)?;
    let (floor, newest) = (store.floor(), store.revision());
    let events = |store: &Store| store.events(keys, floor, newest, true).map_err(text);
    agree("events", &events(store)?, &events(other)?)?;
    for at in floor.0.max(1)..=newest.0 {
        let count = |store: &Store| store.count(keys, Revision(at)).map_err(text);
        agree("count", &count(store)?, &count(other)?)?;
    }
    Ok(())
}
