//! Parts of the tree under criterion, to see what a change did to one of them.
//! Whether the tree is fast enough is `engine_lines`' question.
//!
//! `cargo bench -p pontoon-bench --bench engine [-- FILTER]`

use std::hint::black_box;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use pontoon_bench::pods::{Pods, Put, Puts, touch};
use pontoon_bench::trees::Tree;
use pontoon_engine::{Config, KeyRange, Revision, Step};
use tempfile::TempDir;

/// The one that the speed lines are measured with.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const KEYS: u64 = 100_000;
const VALUE_BYTES: usize = 256;
const BATCH: usize = 100;

/// A store with all keys, put in no order.
struct Loaded {
    tree: Tree,
    puts: Puts,
    _dir: TempDir,
}

fn loaded(tended: bool) -> Loaded {
    let parent = std::env::var_os("PONTOON_BENCH_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_TARGET_TMPDIR")), PathBuf::from);
    let dir = std::fs::create_dir_all(&parent)
        .and_then(|()| {
            tempfile::Builder::new()
                .prefix("engine-bench-")
                .tempdir_in(parent)
        })
        .expect("a directory can be made for the bench");
    let open = if tended {
        Tree::open_tended
    } else {
        Tree::open
    };
    let mut tree = open(dir.path(), Config::default()).expect("the store opens");
    let mut puts = Puts::new(Pods { count: KEYS }, VALUE_BYTES, 1);
    let numbers = puts.pods.shuffled(&mut puts.rng);
    for numbers in numbers.chunks(BATCH) {
        let batch: Vec<Put> = numbers.iter().map(|&number| puts.of(number)).collect();
        let entry = tree.entry_of(&batch);
        tree.apply(&entry).expect("the store works");
    }
    tree.settle().expect("the store works");
    Loaded {
        tree,
        puts,
        _dir: dir,
    }
}

impl Loaded {
    /// Applies a batch of puts of any keys; returns how long that took.
    fn apply(&mut self) -> Duration {
        let batch = self.puts.any(BATCH);
        let entry = self.tree.entry_of(&batch);
        let start = Instant::now();
        self.tree.apply(&entry).expect("the store works");
        start.elapsed()
    }

    fn compact(&mut self) {
        let floor = Revision(self.puts.revision);
        let entry = self.tree.entry(vec![Step::Compact { floor }]);
        self.tree.apply(&entry).expect("the store works");
    }
}

fn apply(criterion: &mut Criterion) {
    let mut store = loaded(true);
    let mut group = criterion.benchmark_group("apply");
    group
        .sample_size(20)
        .warm_up_time(Duration::from_secs(1))
        .measurement_time(Duration::from_secs(3));
    group.throughput(Throughput::Elements(BATCH as u64));
    group.bench_function("100 puts, 256 B, random keys", |bencher| {
        bencher.iter_custom(|count| (0..count).map(|_| store.apply()).sum());
    });
    group.finish();
    store.tree.close().expect("the store closes");
}

fn read(criterion: &mut Criterion) {
    let mut loaded = loaded(false);
    let Loaded { tree, puts, .. } = &mut loaded;
    let store = &tree.store;
    let at = store.revision();
    let keys: Vec<_> = (0..10_000)
        .map(|_| puts.pods.key(puts.rng.below(KEYS)))
        .collect();
    let mut group = criterion.benchmark_group("read");
    group
        .sample_size(20)
        .warm_up_time(Duration::from_secs(1))
        .measurement_time(Duration::from_secs(2));
    let mut turn = 0;
    let mut key = || {
        turn = (turn + 1) % keys.len();
        &keys[turn]
    };
    group.bench_function("newest version of a key", |bencher| {
        bencher.iter(|| {
            let mut sum = 0;
            let visited = store.visit_key(key(), at, &mut |kv| sum = touch(kv.value));
            visited.expect("the store works");
            black_box(sum)
        });
    });
    group.bench_function("100 keys in order", |bencher| {
        bencher.iter(|| {
            let mut sum = 0u64;
            let mut left = 100;
            let range = KeyRange::new(key().clone(), &b"\0"[..]);
            let scanned = store.scan(&range, at, &mut |kv| {
                sum = sum.wrapping_add(touch(kv.value));
                left -= 1;
                left > 0
            });
            scanned.expect("the store works");
            black_box(sum)
        });
    });
    group.bench_function("exact count of many keys", |bencher| {
        bencher.iter(|| {
            let range = KeyRange::new(key().clone(), &b"\0"[..]);
            black_box(store.count(&range, at).expect("the store works"))
        });
    });
    group.finish();
}

fn compact(criterion: &mut Criterion) {
    const CHANGES: usize = 64;
    // Nobody else sweeps.
    let mut store = loaded(false);
    let mut group = criterion.benchmark_group("compact");
    group
        .sample_size(20)
        .warm_up_time(Duration::from_secs(1))
        .measurement_time(Duration::from_secs(3));
    group.throughput(Throughput::Elements(CHANGES as u64));
    group.bench_function("a step of 64 changes", |bencher| {
        bencher.iter_custom(|count| {
            let mut time = Duration::ZERO;
            for _ in 0..count {
                let start = Instant::now();
                let more = store.tree.store.compact_step(CHANGES);
                time += start.elapsed();
                if !more.expect("the store works") {
                    for _ in 0..500 {
                        store.apply();
                    }
                    store.compact();
                    store.tree.settle().expect("the store works");
                }
            }
            time
        });
    });
    group.finish();
}

criterion_group!(benches, apply, read, compact);
criterion_main!(benches);
