//! The references and the load do what they say, for a moment each.

use std::time::Duration;

use pontoon_bench::appenders::{self, Load};
use pontoon_bench::raw;

#[cfg(feature = "peers")]
mod trees;

const A_MOMENT: Duration = Duration::from_millis(20);

#[test]
fn every_reference_does_something() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("raw");
    raw::zeroed_file(&path, 4 << 20).unwrap();
    assert!(
        !raw::write_and_sync(&path, 512, A_MOMENT)
            .unwrap()
            .nanos
            .is_empty()
    );
    assert!(
        !raw::write_direct(&path, 4096, A_MOMENT)
            .unwrap()
            .nanos
            .is_empty()
    );
    for sync_each in [false, true] {
        assert!(raw::write_bandwidth(&path, 64 << 10, 16, sync_each, A_MOMENT).unwrap() > 0.0);
    }
    let runtime = appenders::runtime().unwrap();
    assert!(
        !runtime
            .block_on(raw::hand_offs(A_MOMENT))
            .unwrap()
            .nanos
            .is_empty()
    );
    assert_eq!(
        raw::read_direct([path.as_path()].into_iter()).unwrap(),
        4 << 20
    );
}

#[test]
fn appenders_append_and_purge() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let runtime = appenders::runtime().unwrap();
    let wal = appenders::open_default(dir.path()).unwrap();
    let load = Load {
        appenders: 3,
        entry_bytes: 2 << 20,
        time: Duration::from_millis(300),
    };
    let samples = runtime.block_on(appenders::run(&wal, load)).unwrap();
    let bounds: Vec<_> = wal
        .streams()
        .into_iter()
        .map(|stream| wal.bounds(stream).unwrap())
        .collect();
    assert_eq!(bounds.len(), 3);
    let appended: u64 = bounds.iter().map(|(_, next)| next.0).sum();
    assert_eq!(samples.nanos.len() as u64, appended);
    assert!(
        bounds
            .iter()
            .all(|(first, next)| next.0 - first.0 <= load.live_entries_max())
    );
    runtime.block_on(wal.close());
}
