use bytes::Bytes;
use pontoon_wal::disk::{Backend, RealDisk};
use pontoon_wal::*;
use std::sync::Arc;

#[test]
fn both_backends_write_and_read() {
    for backend in [Backend::Uring, Backend::Syscalls] {
        let dir = tempfile::tempdir().unwrap();
        let rt = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .build()
            .unwrap();
        for round in 0..3u64 {
            let disk = Arc::new(RealDisk::new(backend, dir.path()).unwrap());
            let (wal, opened) = Wal::open(
                Config {
                    segment_bytes: 1 << 20,
                    cache_bytes_max: 100_000,
                    ..Config::new(dir.path(), 1)
                },
                disk,
                Arc::new(SystemClock::default()),
            )
            .unwrap();
            println!("{opened:?}");
            rt.block_on(async {
                for i in 0..200u64 {
                    let mut batch = Batch::new();
                    for s in 0..10 {
                        let next = wal.bounds(StreamId(s)).map_or(0, |b| b.1.0);
                        assert_eq!(next, round * 200 + i);
                        batch.append(
                            StreamId(s),
                            LogIndex(next),
                            vec![Bytes::from(vec![s as u8; 1000])],
                        );
                    }
                    wal.commit(batch).await.unwrap();
                }
                for s in 0..10 {
                    let entries = wal
                        .read(StreamId(s), LogIndex(0), LogIndex(u64::MAX), usize::MAX)
                        .unwrap();
                    assert_eq!(entries.len() as u64, (round + 1) * 200);
                    assert!(entries.iter().all(|e| e[..] == vec![s as u8; 1000][..]));
                }
                println!("{:?}", wal.counters().commits);
                wal.close().await;
            });
        }
    }
}
