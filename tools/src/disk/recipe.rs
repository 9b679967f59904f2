//! The classic recipe, as IBM published it for fio: 2,300-byte writes, 22 MiB,
//! a data sync after each, one job.
//!
//! Kept true: it does what `fio --rw=write --ioengine=sync --fdatasync=1
//! --size=22m --bs=2300` does, with a file laid out as fio lays it out, so the
//! two can be compared; it is about the disk and says nothing of a log.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use pontoon_wal::disk::sim::Rng;
use serde::Serialize;
use serde_json::{Value, json};

use crate::disk::DiskError;
use crate::disk::latency::{Latency, Times, time};
use crate::disk::place::Place;
use crate::disk::progress::Progress;
use crate::disk::stop::Stop;
use crate::disk::text;

const WRITE_BYTES: usize = 2300;
const FILE_BYTES: u64 = 22 << 20;
/// The verdict: p99 of a sync.
const SYNC_P99_MAX: Duration = Duration::from_millis(10);
/// What it may take; a disk that needs longer is unfit anyway.
const TIME_MAX: Duration = Duration::from_secs(170);

/// fio's own list.
const PERCENTILES: [f64; 17] = [
    1.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.95,
    99.99,
];

/// What the recipe found.
pub(crate) struct Found {
    writes: Times,
    syncs: Times,
    count: u64,
    elapsed: Duration,
    complete: bool,
}

#[derive(Serialize)]
pub(crate) struct Summary {
    directory: String,
    recipe: &'static str,
    writes: u64,
    complete: bool,
    elapsed_s: f64,
    iops: f64,
    write: Latency,
    sync: Latency,
    sync_p99_max_ms: f64,
    pub(crate) fit: Option<bool>,
}

pub(crate) fn run(dir: &Path, stop: &Stop) -> Result<Found, DiskError> {
    let place = Place::in_dir(dir, FILE_BYTES, stop)?;
    let progress = Progress::new(Duration::from_secs(10));
    progress.phase("2,300-byte writes, each synced");
    let path = place.path().join("test.0.0");
    let found = write_all(&path, stop).map_err(|error| DiskError::at(&path, error));
    progress.end();
    found
}

fn write_all(path: &Path, stop: &Stop) -> io::Result<Found> {
    let file = OpenOptions::new().write(true).create_new(true).open(path)?;
    // As fio does; where the file system can't, it goes on without, too.
    let flags = rustix::fs::FallocateFlags::empty();
    let _ = rustix::fs::fallocate(&file, flags, 0, FILE_BYTES);
    let mut rng = Rng::new(1);
    let words = (0..WRITE_BYTES.div_ceil(8)).map(|_| rng.next_u64().to_le_bytes());
    let buffer: Vec<u8> = words.flatten().take(WRITE_BYTES).collect();
    let mut found = Found {
        writes: Times::default(),
        syncs: Times::default(),
        count: 0,
        elapsed: Duration::ZERO,
        complete: false,
    };
    let all = FILE_BYTES / WRITE_BYTES as u64;
    let start = Instant::now();
    while found.count < all && !stop.is_interrupted() && start.elapsed() < TIME_MAX {
        let before = Instant::now();
        file.write_all_at(&buffer, found.count * WRITE_BYTES as u64)?;
        let written = Instant::now();
        file.sync_data()?;
        found.syncs.add(written.elapsed());
        found.writes.add(written - before);
        found.count += 1;
    }
    found.elapsed = start.elapsed();
    found.complete = found.count == all;
    Ok(found)
}

impl Found {
    /// Whether the disk is fit; unknown if the recipe was not finished for
    /// another reason than slowness.
    pub(crate) fn fit(&self) -> Option<bool> {
        let within = self.syncs.percentile(99.0) < SYNC_P99_MAX;
        match self.complete {
            true => Some(within),
            false if self.elapsed >= TIME_MAX => Some(false),
            false => None,
        }
    }

    pub(crate) fn summary(&self, dir: &Path) -> Summary {
        Summary {
            directory: dir.display().to_string(),
            recipe: "22 MiB in writes of 2300 bytes, each with fdatasync, one job",
            writes: self.count,
            complete: self.complete,
            elapsed_s: self.elapsed.as_secs_f64(),
            iops: self.count as f64 / self.elapsed.as_secs_f64().max(1e-9),
            write: self.writes.summary(),
            sync: self.syncs.summary(),
            sync_p99_max_ms: SYNC_P99_MAX.as_secs_f64() * 1e3,
            fit: self.fit(),
        }
    }

    /// What `fio --output-format=json` would print, as far as parsers look.
    pub(crate) fn as_fio(&self, dir: &Path) -> Value {
        let ms = self.elapsed.as_millis() as u64;
        let seconds = self.elapsed.as_secs_f64().max(1e-9);
        let bytes = self.count * WRITE_BYTES as u64;
        let bw_bytes = (bytes as f64 / seconds) as u64;
        let now = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap_or_default();
        let mut write = side(&self.writes);
        let fields = json!({
            "io_bytes": bytes,
            "io_kbytes": bytes / 1024,
            "bw_bytes": bw_bytes,
            "bw": bw_bytes / 1024,
            "iops": self.count as f64 / seconds,
            "runtime": ms,
            "total_ios": self.count,
        });
        merge(&mut write, fields);
        json!({
            "fio version": concat!("pontoonctl-", env!("CARGO_PKG_VERSION")),
            "timestamp": now.as_secs(),
            "timestamp_ms": now.as_millis() as u64,
            "global options": {
                "rw": "write",
                "ioengine": "sync",
                "fdatasync": "1",
                "directory": dir.display().to_string(),
                "size": "22m",
                "bs": "2300",
            },
            "jobs": [{
                "jobname": "test",
                "groupid": 0,
                "error": 0,
                "eta": 0,
                "elapsed": self.elapsed.as_secs() + 1,
                "job options": { "name": "test" },
                "read": side(&Times::default()),
                "write": write,
                "trim": side(&Times::default()),
                "sync": {
                    "total_ios": 0,
                    "lat_ns": distribution(&self.syncs, true),
                },
                "job_runtime": ms,
            }],
            "disk_util": [],
        })
    }
}

/// One direction of a job.
fn side(times: &Times) -> Value {
    json!({
        "io_bytes": 0,
        "io_kbytes": 0,
        "bw_bytes": 0,
        "bw": 0,
        "iops": 0.0,
        "runtime": 0,
        "total_ios": 0,
        "short_ios": 0,
        "drop_ios": 0,
        "slat_ns": distribution(&Times::default(), false),
        "clat_ns": distribution(times, !times.is_empty()),
        "lat_ns": distribution(times, false),
    })
}

fn distribution(times: &Times, percentiles: bool) -> Value {
    let summary = times.summary();
    let mut value = json!({
        "min": summary.min_ns,
        "max": summary.max_ns,
        "mean": times.mean_ns(),
        "stddev": times.deviation_ns(),
        "N": summary.count,
    });
    if percentiles {
        let all = PERCENTILES.iter();
        let all: serde_json::Map<_, _> = all
            .map(|percent| {
                let nanos = times.percentile(*percent).as_nanos() as u64;
                (format!("{percent:.6}"), nanos.into())
            })
            .collect();
        merge(&mut value, json!({ "percentile": all }));
    }
    value
}

fn merge(into: &mut Value, fields: Value) {
    if let (Value::Object(into), Value::Object(fields)) = (into, fields) {
        into.extend(fields);
    }
}

/// For people.
pub(crate) fn words(out: &mut dyn io::Write, found: &Summary) -> io::Result<()> {
    let fit = match found.fit {
        Some(true) => "FIT",
        Some(false) => "UNFIT",
        None => "COULD NOT TELL",
    };
    let sync = &found.sync;
    writeln!(
        out,
        "{}: {fit} by the classic recipe ({})",
        found.directory, found.recipe
    )?;
    writeln!(
        out,
        "fdatasync p99 {}, which must be below {:.0} ms",
        time(sync.p99_ns),
        found.sync_p99_max_ms
    )?;
    writeln!(
        out,
        "{} writes in {:.1} s, {:.0} per second",
        found.writes, found.elapsed_s, found.iops
    )?;
    for (name, latency) in [("fdatasync", sync), ("write", &found.write)] {
        writeln!(
            out,
            "{name:9}  p50 {}  p90 {}  p99 {}  p99.9 {}  p99.99 {}  max {}",
            time(latency.p50_ns),
            time(latency.p90_ns),
            time(latency.p99_ns),
            time(latency.p999_ns),
            time(latency.p9999_ns),
            time(latency.max_ns)
        )?;
    }
    writeln!(out)?;
    text::bars(out, sync)
}
