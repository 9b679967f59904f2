//! One thread of a load, with its share of connections, clients and watchers.
//!
//! Kept true: what is counted was due while it was measured (in an open loop)
//! or asked and answered then (in a closed one), and a client has its
//! connection, its thread and its share of the keys for the whole load, so
//! that two runs with one seed ask the same.

use std::sync::atomic::{AtomicI64, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;

use super::acks::Acks;
use super::compaction;
use super::connection::{Channel, Connection};
use super::cost::ThreadId;
use super::failure::Failure;
use super::pacing::{Pacer, TICK, Turn};
use super::run::{Amount, Settings};
use super::tally::Tally;
use super::watchers::{Progress, Watched, Watcher};
use super::workload::{Client, Outcome, Plan, Workload, stamp_since};

/// How long a client waits after a failure.
const PAUSE: Duration = Duration::from_millis(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(super) enum Phase {
    Waiting,
    WarmUp,
    Measuring,
    /// Clients end after what they have asked.
    Stopping,
    Ended,
}

/// What was written and acknowledged: how much, and up to where.
#[derive(Default)]
struct Written {
    count: AtomicU64,
    revision: AtomicI64,
}

/// What all threads of a load share.
pub(super) struct Shared {
    /// The phase, cheap to look at and possible to wait for.
    phase: AtomicU8,
    changes: watch::Sender<Phase>,
    /// Requests that may still be measured.
    left: AtomicI64,
    clients_left: AtomicUsize,
    /// When it began, when it was measured, when the last client ended by itself.
    begun: OnceLock<Instant>,
    pub(super) measured: OnceLock<Instant>,
    pub(super) finished: OnceLock<Instant>,
    /// Requests that were due and never sent.
    pub(super) unsent: AtomicU64,
    /// By topic.
    written: Vec<Written>,
    acks: Acks,
    pub(super) watchers: Vec<Arc<Progress>>,
}

impl Shared {
    pub(super) fn new(settings: &Settings, watched: Vec<Watched>) -> Self {
        let left = match settings.amount {
            Amount::Time(_) => i64::MAX,
            Amount::Count(count) => i64::try_from(count).unwrap_or(i64::MAX),
        };
        let topics = watched.iter().map(|watched| watched.topic + 1).max();
        Self {
            phase: AtomicU8::new(Phase::Waiting as u8),
            changes: watch::Sender::new(Phase::Waiting),
            left: AtomicI64::new(left),
            clients_left: AtomicUsize::new(settings.clients),
            begun: OnceLock::new(),
            measured: OnceLock::new(),
            finished: OnceLock::new(),
            unsent: AtomicU64::new(0),
            written: (0..topics.unwrap_or(1))
                .map(|_| Written::default())
                .collect(),
            acks: Acks::default(),
            watchers: watched
                .into_iter()
                .map(|watched| Arc::new(Progress::new(watched)))
                .collect(),
        }
    }

    pub(super) fn set(&self, phase: Phase) {
        let now = Instant::now();
        match phase {
            Phase::WarmUp => drop(self.begun.set(now)),
            Phase::Measuring => drop(self.measured.set(now)),
            _ => {}
        }
        self.phase.store(phase as u8, Ordering::Relaxed);
        self.changes.send_replace(phase);
    }

    fn is(&self, phase: Phase) -> bool {
        self.phase.load(Ordering::Relaxed) == phase as u8
    }

    pub(super) async fn reaches(&self, phase: Phase) {
        let mut changes = self.changes.subscribe();
        let _ = changes.wait_for(|now| *now >= phase).await;
    }

    pub(super) fn clients_left(&self) -> usize {
        self.clients_left.load(Ordering::Relaxed)
    }

    pub(super) fn is_behind(&self, watcher: &Progress) -> bool {
        let written = &self.written[watcher.watched.topic];
        watcher.revision.load(Ordering::Relaxed) < written.revision.load(Ordering::Relaxed)
    }

    pub(super) fn missed_by(&self, watcher: &Progress) -> Option<&'static str> {
        if self.is_behind(watcher) {
            return Some("a watcher was behind at the end");
        }
        let saw = watcher.events.load(Ordering::Relaxed);
        let written = &self.written[watcher.watched.topic];
        (saw < written.count.load(Ordering::Relaxed)).then_some("a watcher missed events")
    }

    fn wrote(&self, topic: usize, revision: i64, now: u64) {
        if self.watchers.is_empty() {
            return;
        }
        self.acks.add(revision, now);
        if let Some(written) = self.written.get(topic) {
            written.count.fetch_add(1, Ordering::Relaxed);
            written.revision.fetch_max(revision, Ordering::Relaxed);
        }
    }
}

/// A thread's part in a load.
#[derive(Clone)]
pub struct Worker {
    number: usize,
    threads: usize,
    /// What clients ask.
    pub plan: Arc<Plan>,
    pub(super) shared: Arc<Shared>,
    /// What this thread has counted.
    pub tally: Arc<Mutex<Tally>>,
    /// Which thread it is.
    pub thread: Arc<ThreadId>,
    pacer: Arc<OnceLock<Arc<Pacer>>>,
    rate: Option<f64>,
}

impl Worker {
    pub(super) fn new(
        number: usize,
        settings: &Settings,
        workload: Workload,
        plan: &Arc<Plan>,
        shared: &Arc<Shared>,
    ) -> Self {
        let tally = Tally::new(workload.classes().len());
        Self {
            number,
            threads: settings.threads,
            plan: plan.clone(),
            shared: shared.clone(),
            tally: Arc::new(Mutex::new(tally)),
            thread: Arc::default(),
            pacer: Arc::default(),
            rate: settings.rate,
        }
    }

    /// Whether what happens now counts.
    #[must_use]
    pub fn is_measuring(&self) -> bool {
        self.shared.is(Phase::Measuring)
    }

    /// When writes were acknowledged.
    #[must_use]
    pub fn acks(&self) -> &Acks {
        &self.shared.acks
    }

    pub(super) fn work(
        self,
        settings: &Settings,
        workload: Workload,
        ready: &mpsc::Sender<Result<(), Failure>>,
    ) {
        self.thread.set_current();
        let runtime = runtime();
        runtime.block_on(async {
            let started = self.start(settings, workload).await;
            let failed = started.is_err();
            // Nobody listens any more if another one has failed.
            let _ = ready.send(started);
            if !failed {
                self.shared.reaches(Phase::Stopping).await;
                if let Some(pacer) = self.pacer.get() {
                    let end = self.shared.finished.get().copied();
                    let untaken = pacer.untaken(end.unwrap_or_else(Instant::now));
                    self.shared.unsent.fetch_add(untaken, Ordering::Relaxed);
                    pacer.close();
                }
                self.shared.reaches(Phase::Ended).await;
            }
        });
        // A request that is never answered must not keep us.
        runtime.shutdown_background();
    }

    async fn start(&self, settings: &Settings, workload: Workload) -> Result<(), Failure> {
        let pacer = Pacer::begin().map_err(|error| Failure::Broken(error.to_string()))?;
        let _ = self.pacer.set(pacer);
        for number in (self.number..settings.connections).step_by(settings.threads) {
            let endpoint = &settings.endpoints[number % settings.endpoints.len()];
            let connection = Connection::open(endpoint.clone()).await?;
            let watchers = self.shared.watchers.iter().skip(number);
            for progress in watchers.step_by(settings.connections) {
                let channel = connection.channel().await;
                let watcher = Watcher::open(channel, progress.clone()).await?;
                tokio::spawn(watcher.watch(self.clone()));
            }
            for client in (number..settings.clients).step_by(settings.connections) {
                let channel = connection.channel().await;
                let client = workload.client(&self.plan, client);
                tokio::spawn(self.clone().ask(channel, client));
            }
            if let (0, Some(plan)) = (number, settings.compaction(workload)) {
                let channel = connection.channel().await;
                tokio::spawn(compaction::compact(self.clone(), channel, plan));
            }
        }
        Ok(())
    }

    async fn ask(self, mut channel: Channel, mut client: Box<dyn Client>) {
        self.shared.reaches(Phase::WarmUp).await;
        while let Some(Next { counts, turn }) = self.next(&mut *client).await {
            let ask = client.ask();
            let start = Instant::now();
            let answer = channel.ask(ask.rpc, ask.request).await;
            let outcome = answer.and_then(|answer| client.check(&answer));
            let since = turn.map_or(start, |turn| turn.due);
            let took = since.elapsed();
            if let Ok(Outcome::Written(revision)) = outcome {
                let now = stamp_since(self.plan.origin);
                self.shared.wrote(ask.topic, revision, now);
            }
            let in_time = self.is_measuring();
            if counts && (in_time || turn.is_some()) {
                let mut tally = self.tally.lock();
                if let Some(turn) = turn {
                    tally.sent(turn.in_time.then(|| start - turn.due));
                }
                match &outcome {
                    Ok(outcome) => tally.answered(ask.class, *outcome, took, in_time),
                    Err(failure) => tally.failed(ask.class, failure),
                }
            }
            if turn.is_some() && !counts && in_time && outcome.is_ok() {
                self.tally.lock().answered_from_before(took);
            }
            if let Err(failure) = outcome {
                client.give_up();
                tokio::time::sleep(PAUSE).await;
                if failure.needs_connection() {
                    tokio::select! {
                        () = channel.renew() => {}
                        () = self.shared.reaches(Phase::Stopping) => {}
                    }
                }
            }
        }
        self.count_overdue(&mut *client);
        if self.shared.clients_left.fetch_sub(1, Ordering::Relaxed) == 1 && self.is_measuring() {
            let _ = self.shared.finished.set(Instant::now());
        }
    }

    /// Waits until the next request is due; none if there are no more.
    async fn next(&self, client: &mut dyn Client) -> Option<Next> {
        let pacer = self.pacer.get().expect("clients start after it");
        let begun = *self.shared.begun.get().expect("it is warm or warming up");
        let turn = match (client.due(), self.rate) {
            (Some(due), _) => pacer.until(begun + due).await?,
            (None, Some(rate)) => {
                // Threads take turns.
                let first = begun + TICK.mul_f64(self.number as f64 / self.threads as f64);
                pacer.set_turns(first, self.threads as f64 / rate);
                pacer.turn().await?
            }
            (None, None) => {
                let counts = self.may_ask()?;
                return Some(Next { counts, turn: None });
            }
        };
        // What was due before it was measured doesn't count.
        let measured = self.shared.measured.get();
        let counts = measured.is_some_and(|measured| turn.due >= *measured);
        if counts {
            self.may_ask()?;
        }
        Some(Next {
            counts,
            turn: Some(turn),
        })
    }

    /// Whether the next request counts, or none if there is none.
    fn may_ask(&self) -> Option<bool> {
        if self.shared.is(Phase::WarmUp) {
            return Some(false);
        }
        let may = self.is_measuring() && self.shared.left.fetch_sub(1, Ordering::Relaxed) > 0;
        may.then_some(true)
    }

    /// A client with times of its own may have had no time for all of them.
    fn count_overdue(&self, client: &mut dyn Client) {
        let begun = self.shared.begun.get();
        if let (Some(due), Some(begun)) = (client.due(), begun)
            && *begun + due < Instant::now()
        {
            self.shared.unsent.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// A request that may be made.
struct Next {
    counts: bool,
    turn: Option<Turn>,
}

pub(super) fn runtime() -> Runtime {
    Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime needs only a few descriptors")
}
