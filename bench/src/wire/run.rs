//! Runs a load: in a closed loop, where each client asks again when it is
//! answered, or in an open one, where requests are due at a rate.
//!
//! Kept true: whatever ends a load, what is known by then is reported.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use super::compaction::Compaction;
use super::connection::{Connection, Endpoint};
use super::cost::{Cost, Usage};
use super::draw::Spread;
use super::failure::Failure;
use super::fill;
use super::k8s::Cluster;
use super::report::{Ended, Report, Sample, Shape};
use super::tally::{Recent, Tally};
use super::templates::Keys;
use super::watchers::{Progress, Watched};
use super::worker::{Phase, Shared, Worker, runtime};
use super::workload::{Plan, Workload};

/// Far above what servers take.
const VALUE_BYTES_MAX: usize = 64 << 20;
/// Far above what one machine sends.
const RATE_MAX: f64 = 1e7;
/// How often the end of a load is looked for.
const LOOK: Duration = Duration::from_millis(10);
/// How long a load may go without any answer.
const STALL: Duration = Duration::from_secs(10);
/// How long answers and events are waited for after the end.
const DRAIN: Duration = Duration::from_secs(5);
/// A sample is as long as this, or shorter in a short load.
const SAMPLE: Duration = Duration::from_secs(1);
const SAMPLE_MIN: Duration = Duration::from_millis(100);
const SAMPLES_WANTED: u32 = 20;

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
    /// Requests that are due per second; none: clients ask when they are answered.
    pub rate: Option<f64>,
    /// How long it runs before it is measured.
    pub warm_up: Duration,
    /// The keys.
    pub keys: Keys,
    /// How requests are spread over them.
    pub spread: Spread,
    /// Most keys of a range.
    pub limit: u64,
    /// How many of a hundred mixed requests read.
    pub read_percent: u32,
    /// Watchers of the watch workload.
    pub watchers: usize,
    /// How long leases live that nobody keeps alive.
    pub lease_ttl_secs: i64,
    /// How often the compaction workload compacts.
    pub compact_every: Duration,
    /// The control plane of the k8s workload.
    pub cluster: Option<Arc<Cluster>>,
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
        let must = |holds: bool, text: &str| match holds {
            true => Ok(()),
            false => Err(text.to_owned()),
        };
        must(!self.endpoints.is_empty(), "there must be an endpoint")?;
        self.endpoints.iter().try_for_each(Endpoint::check)?;
        must(
            self.clients > 0 && self.connections > 0 && self.threads > 0,
            "there must be clients, connections and threads",
        )?;
        must(
            (1..10_000_000_000).contains(&self.keys.count),
            "the number of keys must have one to ten digits",
        )?;
        must(
            self.keys.values.bytes_max() <= VALUE_BYTES_MAX,
            "values are too large",
        )?;
        must(
            workload != Workload::Cas || self.keys.count >= self.clients as u64,
            "cas needs a key for each client",
        )?;
        must(self.read_percent <= 100, "a percentage is 0 to 100")?;
        must(self.lease_ttl_secs > 0, "leases must live for a second")?;
        must(
            !self.compact_every.is_zero(),
            "there must be time between compactions",
        )?;
        must(
            self.rate.is_none_or(|rate| rate > 0.0 && rate <= RATE_MAX),
            "the rate must be above 0 and not above 10,000,000",
        )?;
        match self.amount {
            Amount::Time(time) => must(!time.is_zero(), "the duration must be above 0"),
            Amount::Count(count) => must(count > 0, "the count must be above 0"),
        }
    }

    /// How it is compacted meanwhile.
    pub(super) fn compaction(&self, workload: Workload) -> Option<Compaction> {
        match workload {
            Workload::Compaction => Some(Compaction {
                every: self.compact_every,
                class: 1,
                agreed_by: None,
            }),
            Workload::K8s => self.cluster.as_ref().map(|cluster| cluster.compaction()),
            _ => None,
        }
    }

    fn watched(&self, workload: Workload) -> Vec<Watched> {
        let count = match workload {
            Workload::Watch => self.watchers,
            Workload::Lease => 1,
            Workload::K8s => {
                let cluster = self.cluster.as_ref();
                return cluster.map_or(Vec::new(), |cluster| cluster.watched());
            }
            _ => 0,
        };
        let all = Watched {
            first: self.keys.key(0),
            end: self.keys.key(self.keys.count),
            topic: 0,
            as_apiserver: false,
        };
        vec![all; count]
    }

    fn about(&self, workload: Workload) -> String {
        if let (Workload::K8s, Some(cluster)) = (workload, &self.cluster) {
            return cluster.to_string();
        }
        format!(
            "{} keys ({}), values of {} B, seed {}",
            self.keys.count,
            match self.spread {
                Spread::Uniform => "uniform",
                Spread::Zipf => "zipf",
            },
            self.keys.values,
            self.seed
        )
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

/// What a load is doing, for who looks on.
#[derive(Clone, Copy, Debug)]
pub enum Now {
    /// Keys are put that it reads.
    Preparing,
    /// It runs and is not measured.
    WarmingUp,
    /// It was measured for so long, to this share of its end.
    Measuring(Sample, f64),
    /// The last answers are waited for.
    Draining,
}

/// Runs a load. An error is one that kept it from starting.
pub fn run(
    settings: &Settings,
    workload: Workload,
    stop: &Stop,
    told: &mut dyn FnMut(Now),
) -> Result<Report, Failure> {
    told(Now::Preparing);
    let plan = Arc::new(prepare(settings, workload, stop)?);
    let shared = Arc::new(Shared::new(settings, settings.watched(workload)));
    let (ready, all_ready) = mpsc::channel();
    let workers: Vec<_> = (0..settings.threads)
        .map(|number| Worker::new(number, settings, workload, &plan, &shared))
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
    let mut load = Load {
        settings,
        shared: &shared,
        workers: &workers,
        stop,
        told,
        samples: Vec::new(),
    };
    let measured = started.map(|_| load.measure());
    let samples = load.samples;
    shared.set(Phase::Ended);
    for thread in threads {
        thread.join().expect("a worker doesn't panic");
    }
    let Measured {
        ended,
        elapsed,
        cost,
        mut tally,
    } = measured?;
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
    let unsent = shared.unsent.load(Ordering::Relaxed);
    let open = match (settings.rate, workload) {
        (_, Workload::K8s) => {
            let due = tally.lag.len() + tally.late + unsent;
            Some((due as f64 / elapsed.as_secs_f64().max(1e-9), unsent))
        }
        (rate, _) => rate.map(|rate| (rate, unsent)),
    };
    let shape = Shape {
        workload: workload.name(),
        classes: workload.classes(),
        endpoints: settings.endpoints.iter().map(ToString::to_string).collect(),
        clients: settings.clients,
        connections: settings.connections,
        threads: settings.threads,
        setup: settings.about(workload),
        watchers: shared.watchers.len(),
        deletes: {
            let of = |watcher: &Arc<Progress>| watcher.deletes.load(Ordering::Relaxed);
            shared.watchers.iter().map(of).sum()
        },
        open,
        ended,
        samples,
    };
    Ok(Report::of(&tally, elapsed, shape, cost))
}

/// Looks whether all servers are there and have the keys that the load reads.
fn prepare(settings: &Settings, workload: Workload, stop: &Stop) -> Result<Plan, Failure> {
    let work = async {
        let mut plan = Plan {
            keys: settings.keys.clone(),
            spread: settings.spread,
            clients: settings.clients,
            limit: settings.limit,
            read_percent: settings.read_percent,
            lease_ttl_secs: settings.lease_ttl_secs,
            seed: settings.seed,
            origin: Instant::now(),
            revisions: Vec::new(),
            history: (0, 0),
            expiries: Arc::default(),
            cluster: settings.cluster.clone(),
            puts: OnceLock::new(),
            swaps: OnceLock::new(),
        };
        let mut first = None;
        for endpoint in &settings.endpoints {
            let connection = Connection::open(endpoint.clone()).await?;
            first.get_or_insert(connection);
        }
        let Some(connection) = first else {
            return Ok(plan);
        };
        let mut channel = connection.channel().await;
        if let (Workload::K8s, Some(cluster)) = (workload, &settings.cluster) {
            cluster.prepare(&connection, settings.seed).await?;
        }
        if workload.reads() {
            fill::fill(&mut channel, &settings.keys, settings.seed).await?;
        }
        match workload {
            Workload::Cas => {
                plan.revisions = fill::revisions(&mut channel, &settings.keys).await?;
            }
            Workload::RangeOld => {
                plan.history = fill::overwrite(&mut channel, &settings.keys, plan.seed).await?;
            }
            _ => {}
        }
        Ok(plan)
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

/// A load that runs.
struct Load<'a> {
    settings: &'a Settings,
    shared: &'a Shared,
    workers: &'a [Worker],
    stop: &'a Stop,
    told: &'a mut dyn FnMut(Now),
    samples: Vec<Sample>,
}

struct Measured {
    ended: Ended,
    elapsed: Duration,
    cost: Cost,
    tally: Tally,
}

impl Load<'_> {
    /// Takes it through its phases.
    fn measure(&mut self) -> Measured {
        let shared = self.shared;
        (self.told)(Now::WarmingUp);
        shared.set(Phase::WarmUp);
        let warm = Instant::now() + self.settings.warm_up;
        while Instant::now() < warm && !self.stop.is_set() {
            thread::sleep(LOOK.min(warm.saturating_duration_since(Instant::now())));
        }
        let threads = || self.workers.iter().map(|worker| &*worker.thread);
        let before = Usage::now(threads());
        shared.set(Phase::Measuring);
        let start = shared.measured.get().copied();
        let start = start.unwrap_or_else(Instant::now);
        let ended = self.wait_for_end(start);
        let now = Instant::now();
        let elapsed = shared.finished.get().copied().unwrap_or(now) - start;
        let threads = || self.workers.iter().map(|worker| &*worker.thread);
        let cost = before.cost_since(elapsed, threads());
        shared.set(Phase::Stopping);
        (self.told)(Now::Draining);
        let deadline = Instant::now() + DRAIN;
        let drained =
            || shared.clients_left() == 0 && shared.watchers.iter().all(|w| !shared.is_behind(w));
        while !drained() && Instant::now() < deadline && !self.stop.is_set() {
            thread::sleep(LOOK);
        }
        let mut tally = Tally::new(self.workers[0].tally.lock().classes.len());
        for worker in self.workers {
            tally.add(&worker.tally.lock());
        }
        let unanswered = shared.clients_left() as u64;
        if unanswered > 0 && !self.stop.is_set() {
            tally.add_error("no answer".to_owned(), unanswered);
        }
        Measured {
            ended,
            elapsed,
            cost,
            tally,
        }
    }

    fn wait_for_end(&mut self, start: Instant) -> Ended {
        let period = match self.settings.amount {
            Amount::Time(time) => (time / SAMPLES_WANTED).clamp(SAMPLE_MIN, SAMPLE),
            Amount::Count(_) => SAMPLE_MIN * 5,
        };
        let mut active = (0, start);
        let mut sampled = start;
        loop {
            let now = Instant::now();
            let left = match self.settings.amount {
                Amount::Time(time) => (start + time).saturating_duration_since(now),
                Amount::Count(_) => LOOK,
            };
            let is_done = left.is_zero() || self.shared.clients_left() == 0;
            let is_over = is_done || self.stop.is_set();
            if now - sampled >= period || (is_over && now - sampled >= period / 2) {
                self.sample(start, now, now - sampled);
                sampled = now;
            }
            if is_done {
                return Ended::Done;
            }
            if self.stop.is_set() {
                return Ended::Interrupted;
            }
            let activity = self.workers.iter().map(|w| w.tally.lock().activity()).sum();
            // In an open loop there may be nothing to do for a while.
            let idles = self.settings.cluster.is_some()
                || self.settings.rate.is_some_and(|rate| rate < 1.0);
            if activity != active.0 || idles {
                active = (activity, now);
            } else if now - active.1 > STALL {
                return Ended::Stalled;
            }
            thread::sleep(left.min(LOOK));
        }
    }

    fn sample(&mut self, start: Instant, now: Instant, time: Duration) {
        let mut recent = Recent::default();
        for worker in self.workers {
            recent.take(&mut worker.tally.lock().recent);
        }
        let at = (now - start).as_secs_f64();
        let sample = Sample::of(&recent, at, time.as_secs_f64());
        self.samples.push(sample);
        let done = match self.settings.amount {
            Amount::Time(time) => at / time.as_secs_f64(),
            Amount::Count(count) => {
                let answered = |worker: &Worker| worker.tally.lock().answered_in_time;
                let answered = self.workers.iter().map(answered).sum::<u64>();
                answered as f64 / count as f64
            }
        };
        (self.told)(Now::Measuring(sample, done.min(1.0)));
    }
}
