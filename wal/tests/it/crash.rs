//! Power cuts at every write and every sync of a scripted workload.
//!
//! After each: every acknowledged batch is there, nothing is invented, and of
//! the unacknowledged batches a clean prefix survived.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use pontoon_wal::disk::sim::{CommitStyle, Rng, SimDisk};
use pontoon_wal::{Wal, WalError};

use super::twin::{SMALL, Shape, Twin, open_sim, random_batch, simulate};

/// What a run left behind: its states after each batch, and how many of the
/// batches were acknowledged.
pub(crate) struct History {
    states: Vec<Twin>,
    acknowledged: usize,
}

impl History {
    pub(crate) fn new(start: Twin) -> Self {
        Self {
            states: vec![start],
            acknowledged: 0,
        }
    }

    /// Writes up to `batches` batches, until one fails.
    pub(crate) async fn write(&mut self, wal: &Wal, rng: &mut Rng, shape: &Shape, batches: usize) {
        let acknowledged = Arc::new(AtomicUsize::new(self.acknowledged));
        for _ in 0..batches {
            let mut twin = self.states.last().expect("there is a start").clone();
            let batch = random_batch(rng, &mut twin, shape);
            let number = self.states.len();
            // Before the append: the batch may reach the disk and fail nonetheless.
            self.states.push(twin);
            let wait = rng.chance(1, 4);
            let (done, durable) = tokio::sync::oneshot::channel();
            let acknowledged_now = Arc::clone(&acknowledged);
            let appended = wal
                .append(batch, move |result| {
                    if result.is_ok() {
                        let before = acknowledged_now.swap(number, SeqCst);
                        assert!(before < number, "acknowledged in order");
                    }
                    let _ = done.send(result.is_ok());
                })
                .await;
            match appended {
                Ok(()) => {}
                Err(WalError::Failed(_) | WalError::Closed) => break,
                Err(error) => panic!("unexpected: {error}"),
            }
            if wait && durable.await != Ok(true) {
                break;
            }
        }
        self.acknowledged = acknowledged.load(SeqCst);
    }

    /// Checks a log opened after the crash; returns which state it is in.
    pub(crate) fn check(&self, wal: &Wal, context: &str) -> usize {
        let found = Twin::of(wal).expect("what is recovered can be read");
        let state = (0..self.states.len())
            .rev()
            .find(|&at| self.states[at] == found)
            .unwrap_or_else(|| panic!("{context}: this state never was: {found:?}"));
        let newest_equal = self.states[self.acknowledged..].contains(&found);
        assert!(
            newest_equal,
            "{context}: {} batches were acknowledged, only {state} are there",
            self.acknowledged
        );
        state
    }
}

const BATCHES: usize = 300;

/// One run of the scripted workload with a crash; what the disk holds then.
async fn run_until(disk: &SimDisk, seed: u64, crash_at: u64) -> History {
    disk.crash_at(crash_at);
    let mut history = History::new(Twin::default());
    let Ok((wal, _)) = open_sim(disk, seed) else {
        return history;
    };
    history
        .write(&wal, &mut Rng::new(seed), &SMALL, BATCHES)
        .await;
    // Let what is in flight end, one way or the other.
    wal.close().await;
    history
}

fn count_operations(seed: u64, style: CommitStyle) -> u64 {
    simulate(async {
        let disk = SimDisk::new(seed);
        disk.set_commit_style(style);
        run_until(&disk, seed, u64::MAX).await;
        disk.operations()
    })
}

/// Crashes at every operation, cuts the power in several ways, and goes on
/// writing (and crashing again) on what is left.
fn crash_everywhere(seed: u64, style: CommitStyle, cuts: u64) -> u64 {
    let operations = count_operations(seed, style);
    assert!(operations > 150, "only {operations} operations");
    let mut checked = 0;
    for crash_at in 0..operations {
        simulate(async {
            let disk = SimDisk::new(seed);
            disk.set_commit_style(style);
            let history = run_until(&disk, seed, crash_at).await;
            for cut in 0..cuts {
                let context = format!("seed {seed} {style:?} crash at {crash_at} cut {cut}");
                let after = match cut {
                    0 => disk.process_kill(),
                    _ => disk.power_cut(seed ^ (crash_at << 8) ^ cut),
                };
                let (wal, _) =
                    open_sim(&after, crash_at).unwrap_or_else(|error| panic!("{context}: {error}"));
                let state = history.check(&wal, &context);
                drop(wal);
                second_crash(
                    &after,
                    history.states[state].clone(),
                    crash_at * cuts + cut,
                    &context,
                )
                .await;
                checked += 2;
            }
        });
    }
    checked
}

/// The recovered log must itself survive a crash soon after it was opened:
/// this is where a cut tail could come back to life.
async fn second_crash(disk: &SimDisk, start: Twin, seed: u64, context: &str) {
    let mut rng = Rng::new(seed);
    let disk = disk.power_cut(rng.next_u64());
    disk.crash_at(rng.below(40));
    let mut history = History::new(start);
    if let Ok((wal, _)) = open_sim(&disk, rng.next_u64()) {
        history.check(&wal, context);
        history.write(&wal, &mut rng, &SMALL, 12).await;
        wal.close().await;
    }
    let after = disk.power_cut(rng.next_u64());
    let (wal, _) =
        open_sim(&after, seed).unwrap_or_else(|error| panic!("{context}, again: {error}"));
    history.check(&wal, &format!("{context}, again (seed {seed})"));
}

#[test]
fn nothing_acknowledged_is_lost_by_a_crash_at_any_write_or_sync() {
    let mut checked = 0;
    for (seed, style) in [
        (1, CommitStyle::DataSyncWrite),
        (2, CommitStyle::DataSyncWrite),
        (3, CommitStyle::WriteThenSync),
        (4, CommitStyle::WriteThenSync),
    ] {
        checked += crash_everywhere(seed, style, 4);
    }
    println!("{checked} crashes checked");
    assert!(checked > 4000, "only {checked} crashes");
}

/// Opening alone must never bring back what an earlier opening has cut: the
/// commits of a run whose first commit was lost are not those of the next run.
#[test]
fn a_cut_tail_stays_dead_however_often_the_log_is_opened() {
    let mut cut = 0;
    for seed in 0..400 {
        simulate(async {
            let mut rng = Rng::new(seed);
            let disk = SimDisk::new(seed);
            let (wal, _) = open_sim(&disk, seed).unwrap();
            let mut history = History::new(Twin::default());
            history.write(&wal, &mut rng, &SMALL, 5).await;
            wal.close().await;

            // A run that dies soon after it was opened, with all it has in flight.
            let disk = disk.process_kill();
            disk.crash_at(2 + rng.below(12));
            if let Ok((wal, _)) = open_sim(&disk, seed + 1) {
                history.write(&wal, &mut rng, &SMALL, 4).await;
                wal.close().await;
            }
            let mut disk = disk.power_cut(rng.next_u64());
            let mut states = Vec::new();
            for generation in 0..4 {
                let (wal, opened) = open_sim(&disk, seed + generation).unwrap();
                cut += u64::from(opened.cut);
                states.push(Twin::of(&wal).unwrap());
                // Its first commit is durable, and nothing else was written.
                tokio::time::sleep(std::time::Duration::from_secs(1)).await;
                disk = disk.power_cut(rng.next_u64());
                drop(wal);
            }
            assert!(
                states.iter().all(|state| *state == states[0]),
                "seed {seed}"
            );
        });
    }
    assert!(cut > 20, "only {cut} tails were cut");
}
