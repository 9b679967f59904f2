//! Runs a load in a closed loop: each client asks again when it is answered.
//!
//! Kept true: what is counted was asked and answered while it was measured,
//! and a client has its connection, its thread and its share of the keys for
//! the whole load, so that two runs with one seed ask the same.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;

use super::connection::{Channel, Connection, Endpoint};
use super::failure::Failure;
use super::fill;
use super::report::{Cost, Ended, Report, Shape, Tally};
use super::templates::Keys;
use super::watchers::{Progress, Watcher};
use super::workload::{Client, Outcome, Plan, Workload};
use crate::proc::CpuTime;

/// Far above what servers take.
const VALUE_BYTES_MAX: usize = 64 << 20;
/// How often the end of a load is looked for.
const LOOK: Duration = Duration::from_millis(10);
/// How long a load may go without any answer.
const STALL: Duration = Duration::from_secs(10);
/// How long answers and events are waited for after the end.
const DRAIN: Duration = Duration::from_secs(5);
/// How long a client waits after a failure.
const PAUSE: Duration = Duration::from_millis(10);

/// How a load is run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Servers; connections are dealt to them in turn.
    pub endpoints: Vec<Endpoint>,
    /// Clients; dealt to connections in turn.
    pub clients: usize,
    /// Connections; dealt to threads in turn.
    pub connections: usize,
    /// Threads.
    pub threads: usize,
    /// When it ends.
    pub amount: Amount,
    /// How long it runs before it is measured.
    pub warm_up: Duration,
    /// The keys.
    pub keys: Keys,
    /// Most keys of a range.
    pub limit: u64,
    /// Watchers of the watch workload.
    pub watchers: usize,
    /// Where chance begins.
    pub seed: u64,
}

/// When a load ends.
#[derive(Clone, Copy, Debug)]
pub enum Amount {
    /// After a time.
    Time(Duration),
    /// After so many requests.
    Count(u64),
}

impl Settings {
    /// Says what can't be.
    pub fn check(&self, workload: Workload) -> Result<(), String> {
        if self.endpoints.is_empty() {
            return Err("there must be an endpoint".to_owned());
        }
        if self.clients == 0 || self.connections == 0 || self.threads == 0 {
            return Err("there must be clients, connections and threads".to_owned());
        }
        if !(1..10_000_000_000).contains(&self.keys.count) {
            return Err("the number of keys must have one to ten digits".to_owned());
        }
        if self.keys.value_bytes > VALUE_BYTES_MAX {
            return Err("values are too large".to_owned());
        }
        if workload == Workload::Cas && self.keys.count < self.clients as u64 {
            return Err("cas needs a key for each client".to_owned());
        }
        Ok(())
    }

    fn watchers(&self, workload: Workload) -> usize {
        match workload {
            Workload::Watch => self.watchers,
            _ => 0,
        }
    }
}

/// Ends a load early.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Ends it.
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it should end.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Runs a load. An error is one that kept it from starting.
pub fn run(settings: &Settings, workload: Workload, stop: &Stop) -> Result<Report, Failure> {
    let revisions = prepare(settings, workload, stop)?;
    let watchers = settings.watchers(workload);
    let shared = Arc::new(Shared::new(settings, watchers));
    let plan = Arc::new(Plan {
        keys: settings.keys.clone(),
        clients: settings.clients,
        limit: settings.limit,
        seed: settings.seed,
        origin: Instant::now(),
        revisions: Arc::new(revisions),
    });
    let (ready, all_ready) = mpsc::channel();
    let workers: Vec<_> = (0..settings.threads)
        .map(|number| Worker {
            number,
            plan: plan.clone(),
            shared: shared.clone(),
            tally: Arc::default(),
        })
        .collect();
    let threads: Vec<_> = workers
        .iter()
        .cloned()
        .map(|worker| {
            let (settings, ready) = (settings.clone(), ready.clone());
            thread::spawn(move || worker.work(&settings, workload, &ready))
        })
        .collect();
    drop(ready);
    let started = all_ready
        .iter()
        .take(workers.len())
        .collect::<Result<Vec<()>, Failure>>();
    let measured = started.map(|_| measure(settings, &shared, &workers, stop));
    shared.set(Phase::Ended);
    for thread in threads {
        thread.join().expect("a worker doesn't panic");
    }
    let (ended, elapsed, cost, mut tally) = measured?;
    // Whoever interrupts doesn't wait for them.
    let watched = shared
        .watchers
        .iter()
        .filter(|_| ended != Ended::Interrupted);
    for progress in watched {
        if let Some(missed) = shared.missed_by(progress) {
            tally.add_error(missed.to_owned(), 1);
        }
    }
    let shape = Shape {
        workload: workload.name(),
        endpoints: settings.endpoints.iter().map(ToString::to_string).collect(),
        clients: settings.clients,
        connections: settings.connections,
        ended,
    };
    Ok(Report::of(&tally, elapsed, watchers, shape, cost))
}

/// Looks whether all servers are there and have the keys that the load reads.
fn prepare(settings: &Settings, workload: Workload, stop: &Stop) -> Result<Vec<i64>, Failure> {
    let work = async {
        let mut first = None;
        for endpoint in &settings.endpoints {
            let connection = Connection::open(endpoint.clone()).await?;
            first.get_or_insert(connection.channel().await);
        }
        let Some(mut channel) = first.filter(|_| workload.reads()) else {
            return Ok(Vec::new());
        };
        fill::fill(&mut channel, &settings.keys, settings.seed).await?;
        match workload {
            Workload::Cas => fill::revisions(&mut channel, &settings.keys).await,
            _ => Ok(Vec::new()),
        }
    };
    runtime().block_on(async {
        tokio::select! {
            done = work => done,
            () = stopped(stop) => Err(Failure::Interrupted),
        }
    })
}

async fn stopped(stop: &Stop) {
    while !stop.is_set() {
        tokio::time::sleep(LOOK).await;
    }
}

/// Takes a load through its phases.
fn measure(
    settings: &Settings,
    shared: &Shared,
    workers: &[Worker],
    stop: &Stop,
) -> (Ended, Duration, Cost, Tally) {
    shared.set(Phase::WarmUp);
    let warm = Instant::now() + settings.warm_up;
    while Instant::now() < warm && !stop.is_set() {
        thread::sleep(LOOK.min(warm.saturating_duration_since(Instant::now())));
    }
    let before = Usage::now();
    let start = Instant::now();
    shared.set(Phase::Measuring);
    let ended = wait_for_end(settings, shared, workers, stop, start);
    let end = shared.finished.get().copied().unwrap_or_else(Instant::now);
    let elapsed = end - start;
    let cost = before.cost_since(elapsed, settings.threads);
    shared.set(Phase::Stopping);
    let deadline = Instant::now() + DRAIN;
    let drained =
        || shared.clients_left() == 0 && shared.watchers.iter().all(|w| !shared.is_behind(w));
    while !drained() && Instant::now() < deadline && !stop.is_set() {
        thread::sleep(LOOK);
    }
    let mut tally = total(workers);
    let unanswered = shared.clients_left() as u64;
    if unanswered > 0 && !stop.is_set() {
        tally.add_error("no answer".to_owned(), unanswered);
    }
    (ended, elapsed, cost, tally)
}

fn wait_for_end(
    settings: &Settings,
    shared: &Shared,
    workers: &[Worker],
    stop: &Stop,
    start: Instant,
) -> Ended {
    let mut active = (0, start);
    loop {
        let now = Instant::now();
        let left = match settings.amount {
            Amount::Time(time) => (start + time).saturating_duration_since(now),
            Amount::Count(_) => LOOK,
        };
        if left.is_zero() || shared.clients_left() == 0 {
            return Ended::Done;
        }
        if stop.is_set() {
            return Ended::Interrupted;
        }
        let activity = workers.iter().map(|w| w.tally.lock().activity()).sum();
        if activity != active.0 {
            active = (activity, now);
        } else if now - active.1 > STALL {
            return Ended::Stalled;
        }
        thread::sleep(left.min(LOOK));
    }
}

fn total(workers: &[Worker]) -> Tally {
    let mut tally = Tally::default();
    for worker in workers {
        tally.add(&worker.tally.lock());
    }
    tally
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
enum Phase {
    Waiting,
    WarmUp,
    Measuring,
    /// Clients end after what they have asked.
    Stopping,
    Ended,
}

/// What all threads of a load share.
struct Shared {
    /// The phase, cheap to look at and possible to wait for.
    phase: AtomicU8,
    changes: watch::Sender<Phase>,
    /// Requests that may still be measured.
    left: AtomicI64,
    clients_left: AtomicUsize,
    /// When the last client ended by itself.
    finished: OnceLock<Instant>,
    /// What was written and acknowledged: how much, and up to where.
    writes: AtomicU64,
    revision: AtomicI64,
    watchers: Vec<Arc<Progress>>,
}

impl Shared {
    fn new(settings: &Settings, watchers: usize) -> Self {
        let left = match settings.amount {
            Amount::Time(_) => i64::MAX,
            Amount::Count(count) => i64::try_from(count).unwrap_or(i64::MAX),
        };
        Self {
            phase: AtomicU8::new(Phase::Waiting as u8),
            changes: watch::Sender::new(Phase::Waiting),
            left: AtomicI64::new(left),
            clients_left: AtomicUsize::new(settings.clients),
            finished: OnceLock::new(),
            writes: AtomicU64::new(0),
            revision: AtomicI64::new(0),
            watchers: (0..watchers).map(|_| Arc::default()).collect(),
        }
    }

    fn set(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Relaxed);
        self.changes.send_replace(phase);
    }

    fn is(&self, phase: Phase) -> bool {
        self.phase.load(Ordering::Relaxed) == phase as u8
    }

    async fn reaches(&self, phase: Phase) {
        let mut changes = self.changes.subscribe();
        let _ = changes.wait_for(|now| *now >= phase).await;
    }

    fn clients_left(&self) -> usize {
        self.clients_left.load(Ordering::Relaxed)
    }

    fn is_behind(&self, watcher: &Progress) -> bool {
        watcher.revision.load(Ordering::Relaxed) < self.revision.load(Ordering::Relaxed)
    }

    fn missed_by(&self, watcher: &Progress) -> Option<&'static str> {
        if self.is_behind(watcher) {
            return Some("a watcher was behind at the end");
        }
        let saw = watcher.events.load(Ordering::Relaxed);
        (saw < self.writes.load(Ordering::Relaxed)).then_some("a watcher missed events")
    }
}

/// One thread of a load, with its share of connections, clients and watchers.
#[derive(Clone)]
pub struct Worker {
    number: usize,
    /// What clients ask.
    pub plan: Arc<Plan>,
    shared: Arc<Shared>,
    /// What this thread has counted.
    pub tally: Arc<Mutex<Tally>>,
}

impl Worker {
    /// Whether what happens now counts.
    #[must_use]
    pub fn is_measuring(&self) -> bool {
        self.shared.is(Phase::Measuring)
    }

    fn work(
        self,
        settings: &Settings,
        workload: Workload,
        ready: &mpsc::Sender<Result<(), Failure>>,
    ) {
        let runtime = runtime();
        runtime.block_on(async {
            let started = self.start(settings, workload).await;
            let failed = started.is_err();
            // Nobody listens any more if another one has failed.
            let _ = ready.send(started);
            if !failed {
                self.shared.reaches(Phase::Ended).await;
            }
        });
        // A request that is never answered must not keep us.
        runtime.shutdown_background();
    }

    async fn start(&self, settings: &Settings, workload: Workload) -> Result<(), Failure> {
        for number in (self.number..settings.connections).step_by(settings.threads) {
            let endpoint = &settings.endpoints[number % settings.endpoints.len()];
            let connection = Connection::open(endpoint.clone()).await?;
            let watchers = self.shared.watchers.iter().skip(number);
            for progress in watchers.step_by(settings.connections) {
                let channel = connection.channel().await;
                let watcher = Watcher::open(channel, &self.plan.keys, progress.clone()).await?;
                tokio::spawn(watcher.watch(self.clone()));
            }
            for client in (number..settings.clients).step_by(settings.connections) {
                let channel = connection.channel().await;
                let client = workload.client(&self.plan, client);
                tokio::spawn(self.clone().ask(channel, client));
            }
        }
        Ok(())
    }

    async fn ask(self, mut channel: Channel, mut client: Box<dyn Client>) {
        self.shared.reaches(Phase::WarmUp).await;
        while let Some(counts) = self.next_counts() {
            let (rpc, request) = client.ask();
            let start = Instant::now();
            let answer = channel.ask(rpc, request).await;
            let outcome = answer.and_then(|answer| client.check(&answer));
            let took = start.elapsed();
            if let Ok(Outcome::Written(revision)) = outcome {
                self.shared.writes.fetch_add(1, Ordering::Relaxed);
                self.shared.revision.fetch_max(revision, Ordering::Relaxed);
            }
            if counts && self.is_measuring() {
                let mut tally = self.tally.lock();
                match &outcome {
                    Ok(outcome) => tally.answered(*outcome, took),
                    Err(failure) => tally.failed(failure),
                }
            }
            if let Err(failure) = outcome {
                tokio::time::sleep(PAUSE).await;
                if failure.needs_connection() {
                    tokio::select! {
                        () = channel.renew() => {}
                        () = self.shared.reaches(Phase::Stopping) => {}
                    }
                }
            }
        }
        if self.shared.clients_left.fetch_sub(1, Ordering::Relaxed) == 1 && self.is_measuring() {
            let _ = self.shared.finished.set(Instant::now());
        }
    }

    /// Whether the next request counts, or none if there is none.
    fn next_counts(&self) -> Option<bool> {
        if self.shared.is(Phase::WarmUp) {
            return Some(false);
        }
        let may = self.is_measuring() && self.shared.left.fetch_sub(1, Ordering::Relaxed) > 0;
        may.then_some(true)
    }
}

/// What this process and the machine have used up to a moment.
struct Usage {
    own: Duration,
    machine: Option<CpuTime>,
}

impl Usage {
    fn now() -> Self {
        Self {
            own: own_time(),
            machine: CpuTime::now().ok(),
        }
    }

    fn cost_since(&self, elapsed: Duration, threads: usize) -> Cost {
        let own = (own_time() - self.own).as_secs_f64();
        let processors = thread::available_parallelism().map_or(1, usize::from);
        let seconds = elapsed.as_secs_f64().max(1e-9);
        let others = self.machine.and_then(|before| before.others_since().ok());
        Cost {
            cpu_seconds: own,
            cpu_micros_per_request: 0.0,
            machine_share: own / seconds / processors as f64,
            threads_share: own / seconds / threads as f64,
            others_share: others.unwrap_or(f64::NAN),
        }
    }
}

fn own_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let nanos = u32::try_from(time.tv_nsec).unwrap_or(0);
    Duration::new(time.tv_sec.cast_unsigned(), nanos)
}

fn runtime() -> Runtime {
    Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime needs only a few descriptors")
}
