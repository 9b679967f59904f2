//! Reading a long list page by page, as clients do that list everything, and
//! being told the exact count of the rest with every page.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use pontoon_bench::lines::{Line, Target};
use pontoon_bench::pods::{Pods, Puts, value};
use pontoon_bench::samples::Samples;
use pontoon_bench::trees::{Tree, other};
use pontoon_engine::{Effect, KeyRange, Range, RangeAnswer, Revision, Step, Store, range};

use crate::million::ROUNDS;

const PAGE_KEYS: usize = 500;
/// How much slower the second half may be than the first, which it mustn't:
/// what a quiet machine strays by.
const HALVES_MAX: f64 = 1.2;
/// Writes per second beside the reader.
const WRITES_PER_SECOND: u64 = 10_000;
/// Writes of one entry: as many as come together in a millisecond.
const WRITES_PER_ENTRY: u64 = 10;
/// Writes after which something created is deleted, or the other way round.
const LIFE: usize = 1000;

pub(crate) fn measure(tree: &mut Tree, puts: &mut Puts) -> io::Result<Vec<Line>> {
    let what = format!(
        "{} keys by {PAGE_KEYS}, each page with an exact count",
        puts.pods.count
    );
    let halves = |name: &str, when: &str| {
        Line::new(
            name,
            format!("the second half of the pages / the first, {what}, {when}"),
            "s",
            Target::AtMost(HALVES_MAX),
        )
    };
    let mut quiet_halves = halves("paging-halves", "newest revision, nobody writes");
    let mut busy_halves = halves(
        "paging-pinned-halves",
        "past revision, 10,000 writes/s beside it",
    );
    let mut busy = Line::new(
        "paging-pinned",
        format!("{what}, past revision, 10,000 writes/s beside it / newest, nobody writes"),
        "s",
        Target::None,
    );
    let mut writer = Writer::new(puts);
    for _ in 0..ROUNDS {
        let at = tree.store.revision();
        let quiet = read_all(&tree.store, at, writer.live)?;
        let (written, pinned) = beside(tree, puts, &mut writer, at)?;
        quiet_halves.round(quiet.second, quiet.first);
        quiet_halves.aside("page p50 µs", quiet.pages.micros(0.5));
        quiet_halves.aside("page p99 µs", quiet.pages.micros(0.99));
        busy_halves.round(pinned.second, pinned.first);
        busy_halves.aside("page p50 µs", pinned.pages.micros(0.5));
        busy_halves.aside("page p99 µs", pinned.pages.micros(0.99));
        busy.round(pinned.first + pinned.second, quiet.first + quiet.second);
        busy.aside("writes/s", written);
        busy.aside(
            "pages with an exact count",
            (quiet.pages.nanos.len() + pinned.pages.nanos.len()) as f64,
        );
        // What the writer left is none of the quiet reader's business.
        tree.settle()?;
    }
    Ok(vec![quiet_halves, busy_halves, busy])
}

/// What reading everything took: seconds for each half of the pages.
struct Reading {
    first: f64,
    second: f64,
    pages: Samples,
}

/// Reads everything at a revision, page by page; an error if a count is wrong.
fn read_all(store: &Store, at: Revision, live: u64) -> io::Result<Reading> {
    let pages = live.div_ceil(PAGE_KEYS as u64);
    let mut samples = Samples::default();
    let mut keys = Pods::all();
    let mut left = live as i64;
    let start = Instant::now();
    let mut middle = start;
    for number in 0..pages {
        if number == pages / 2 {
            middle = Instant::now();
        }
        let before = Instant::now();
        let page = page(store, &keys, at)?;
        samples.add(before.elapsed());
        if page.count != left {
            return Err(io::Error::other(format!(
                "page {number} of {pages} says that {} keys are left, not {left}",
                page.count
            )));
        }
        left -= page.kvs.len() as i64;
        if page.more != (left > 0) {
            return Err(io::Error::other(format!(
                "page {number} of {pages} says more = {}, but {left} are left",
                page.more
            )));
        }
        if let Some(last) = page.kvs.last() {
            // As clients go on: right after the last key.
            keys.key = [&last.key[..], &[0]].concat().into();
        }
    }
    let end = Instant::now();
    samples.elapsed = end - start;
    Ok(Reading {
        first: (middle - start).as_secs_f64(),
        second: (end - middle).as_secs_f64(),
        pages: samples,
    })
}

/// One page with the count of all that is left, the page included.
fn page(store: &Store, keys: &KeyRange, at: Revision) -> io::Result<RangeAnswer> {
    let request = Range {
        limit: PAGE_KEYS as i64,
        revision: at.0,
        ..Range::of(keys.clone())
    };
    range(store, store.revision(), &request).map_err(other)
}

/// Reads everything at a revision while a writer goes on. Also returns the
/// writes per second.
fn beside(
    tree: &mut Tree,
    puts: &mut Puts,
    writer: &mut Writer,
    at: Revision,
) -> io::Result<(f64, Reading)> {
    let live = writer.live;
    let over = AtomicBool::new(false);
    let store = std::sync::Arc::clone(&tree.store);
    std::thread::scope(|scope| {
        let writing = scope.spawn(|| writer.write_until(&over, tree, puts));
        let reading = read_all(&store, at, live);
        over.store(true, Ordering::Relaxed);
        let written = writing
            .join()
            .map_err(|_| io::Error::other("the writer panicked"))??;
        Ok((written, reading?))
    })
}

/// Changes, creates and deletes keys, so many in a second.
struct Writer {
    /// Keys that are there now.
    live: u64,
    /// Keys that are there besides the pods, oldest first.
    extra: VecDeque<Bytes>,
    extra_next: u64,
    /// Pods that are gone, oldest first.
    gone: VecDeque<u64>,
    gone_next: u64,
}

impl Writer {
    fn new(puts: &Puts) -> Self {
        Self {
            live: puts.pods.count,
            extra: VecDeque::new(),
            extra_next: 0,
            gone: VecDeque::new(),
            gone_next: 0,
        }
    }

    fn write_until(
        &mut self,
        over: &AtomicBool,
        tree: &mut Tree,
        puts: &mut Puts,
    ) -> io::Result<f64> {
        let start = Instant::now();
        let interval = Duration::from_micros(1_000_000 * WRITES_PER_ENTRY / WRITES_PER_SECOND);
        let mut entries = 0;
        while !over.load(Ordering::Relaxed) {
            let steps = (0..WRITES_PER_ENTRY).map(|write| {
                let effect = self.effect(write, puts);
                puts.revision += 1;
                Step::Write {
                    revision: Revision(puts.revision),
                    effects: vec![effect],
                }
            });
            let entry = tree.entry(steps.collect());
            tree.apply(&entry)?;
            entries += 1;
            // Who is late goes on at once: so many a second, not at most.
            let due = start + interval * entries;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        }
        Ok(f64::from(entries) * WRITES_PER_ENTRY as f64 / start.elapsed().as_secs_f64())
    }

    /// Of ten writes two create, two delete, and the rest change a key.
    fn effect(&mut self, write: u64, puts: &mut Puts) -> Effect {
        match write % 10 {
            0 => {
                let number = puts.rng.below(puts.pods.count);
                let mut key = puts.pods.key(number).to_vec();
                key.extend_from_slice(format!("-{}", self.extra_next).as_bytes());
                self.extra_next += 1;
                let key = Bytes::from(key);
                self.extra.push_back(key.clone());
                self.live += 1;
                put(key, puts)
            }
            3 if self.extra.len() > LIFE => {
                let key = self.extra.pop_front().expect("there are many");
                self.live -= 1;
                Effect::Delete { key }
            }
            5 => {
                // Far from the one before, and never one of those that change.
                let tens = puts.pods.count / 10;
                let number = self.gone_next * 7919 % tens * 10;
                self.gone_next += 1;
                self.gone.push_back(number);
                self.live -= 1;
                Effect::Delete {
                    key: puts.pods.key(number),
                }
            }
            8 if self.gone.len() > LIFE => {
                let number = self.gone.pop_front().expect("there are many");
                self.live += 1;
                put(puts.pods.key(number), puts)
            }
            _ => {
                let number = puts.rng.below(puts.pods.count / 10) * 10 + 1 + puts.rng.below(9);
                put(puts.pods.key(number), puts)
            }
        }
    }
}

fn put(key: Bytes, puts: &mut Puts) -> Effect {
    Effect::Put {
        key,
        value: value(puts.value_bytes, &mut puts.rng),
        lease: 0,
    }
}
