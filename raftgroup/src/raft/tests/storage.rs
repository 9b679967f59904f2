//! openraft's own tests of a log and a state machine.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use openraft::storage::RaftLogStorage;
use openraft::testing::log::{StoreBuilder, Suite};
use openraft::{RaftLogReader, StorageError};
use pontoon_wal::disk::sim::SimDisk;
use pontoon_wal::disk::{Backend, Disk, RealDisk};

use super::{GROUP, Notebook, group_config, open_wal, simulate};
use crate::raft::Tenders;
use crate::raft::failure::Failure;
use crate::raft::log::GroupLog;
use crate::raft::machine::{Replica, StateMachine};
use crate::raft::types::{Types, Vote};

fn build(disk: Arc<dyn Disk>, dir: &Path) -> (GroupLog, StateMachine) {
    let failure = Arc::new(Failure::default());
    let wal = open_wal(Arc::clone(&disk), &dir.join("wal"), 1, 1);
    let config = group_config(1, &dir.join("tree"));
    let replica = Replica::open(
        GROUP,
        config.path,
        config.store,
        Arc::clone(&disk),
        &Tenders::new(disk),
        Arc::new(Notebook::default()),
        Arc::clone(&failure),
    );
    let log = GroupLog::new(wal, GROUP, failure);
    (log, StateMachine(replica.unwrap()))
}

#[derive(Default)]
struct Simulated(AtomicU64);

impl StoreBuilder<Types, GroupLog, StateMachine> for Simulated {
    async fn build(&self) -> Result<((), GroupLog, StateMachine), StorageError<Types>> {
        let disk = SimDisk::new(self.0.fetch_add(1, Ordering::Relaxed));
        disk.create_dir(Path::new("/node")).unwrap();
        let (log, machine) = build(Arc::new(disk), Path::new("/node"));
        Ok(((), log, machine))
    }
}

struct Real;

impl StoreBuilder<Types, GroupLog, StateMachine, tempfile::TempDir> for Real {
    async fn build(
        &self,
    ) -> Result<(tempfile::TempDir, GroupLog, StateMachine), StorageError<Types>> {
        let dir = tempfile::tempdir().unwrap();
        let disk = RealDisk::new(Backend::Syscalls, dir.path()).unwrap();
        let (log, machine) = build(Arc::new(disk), dir.path());
        Ok((dir, log, machine))
    }
}

#[test]
fn openraft_is_content_with_the_storage_on_a_simulated_disk() {
    simulate(Suite::test_all(Simulated::default())).unwrap();
}

#[test]
fn openraft_is_content_with_the_storage_on_a_real_disk() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_time()
        .build()
        .unwrap();
    runtime.block_on(Suite::test_all(Real)).unwrap();
}

#[test]
fn a_vote_is_durable_once_it_is_saved() {
    for seed in 0..20 {
        simulate(async {
            let disk = SimDisk::new(seed);
            disk.create_dir(Path::new("/node")).unwrap();
            let (mut log, machine) = build(Arc::new(disk.clone()), Path::new("/node"));
            let vote = Vote::new(7, 2);
            log.save_vote(&vote).await.unwrap();
            let after = disk.power_cut(seed);
            drop((log, machine));
            let (mut log, _machine) = build(Arc::new(after), Path::new("/node"));
            assert_eq!(log.read_vote().await.unwrap(), Some(vote));
        });
    }
}
