//! The qualification: one phase after the other, within its time and bytes.
//!
//! Kept true: what a phase found is in the report as soon as it has ended, so
//! whatever ends the next one, nothing that is known is lost; a disk that stands
//! still doesn't make it longer than planned; the log that is loaded is set as a
//! server sets it.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pontoon_wal::Config;
use pontoon_wal::disk::{Backend, Disk, RealDisk};
use pontoon_wal::inspect::{self, Depth};

use crate::disk::doubt;
use crate::disk::load::{Arrivals, Load, Log, Outcome};
use crate::disk::machine::Machine;
use crate::disk::place::{Place, check_dir};
use crate::disk::progress::Progress;
use crate::disk::report::{
    Doubt, Mixed, Phase, Recovery, Report, Sustained, Sweep, SweepLimit, SweepStep, Tried, Tuning,
    VERSION,
};
use crate::disk::server::Trial;
use crate::disk::slow::SlowDisk;
use crate::disk::stop::Stop;
use crate::disk::tree::Tree;
use crate::disk::verdict::judge;
use crate::disk::{DiskError, Settings};

/// What a put has in the log besides its value: key, revision, framing. A
/// server wrote 296 bytes for each put of 256 at a key of 21.
const PUT_OVERHEAD: usize = 48;
/// A rate that is this much beyond what a server here could do says enough.
const BEYOND_SERVER: f64 = 2.0;
/// How long a server may take to start, on a slow disk.
const START_MAX: Duration = Duration::from_secs(10);
/// A commit should not take longer than this only because it is large.
const COMMIT_TIME_MAX: f64 = 0.01;
/// The load's own lateness at which its figures say little.
const LAG_MAX: Duration = Duration::from_millis(20);

/// How long everything takes at most.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) name: &'static str,
    idle: Duration,
    /// A server, with a warm-up of a quarter of that.
    server: Duration,
    /// One rate.
    step: Duration,
    /// All rates.
    sweep: Duration,
    /// One setting of the log.
    tune: Duration,
    mixed: Duration,
    pub(crate) sustained: Duration,
    recovery_bytes: u64,
    pub(crate) bytes_max: u64,
    /// What is not done by then is left out.
    total: Duration,
    /// Of that, what is kept for recovery and settings.
    reserved: Duration,
}

/// What one try of settings writes at most: a fast disk would use up all that
/// may be written, and then there would be no verdict.
const TUNE_BYTES_MAX: u64 = 256 << 20;

const fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

impl Plan {
    pub(crate) const QUICK: Self = Self {
        name: "quick",
        idle: millis(1500),
        server: millis(2200),
        step: millis(600),
        sweep: millis(7500),
        tune: millis(500),
        mixed: millis(3500),
        sustained: millis(6500),
        recovery_bytes: 96 << 20,
        bytes_max: 2 << 30,
        total: millis(29_000),
        reserved: millis(5000),
    };
    pub(crate) const FULL: Self = Self {
        name: "default",
        idle: millis(5000),
        server: millis(8000),
        step: millis(2500),
        sweep: millis(45_000),
        tune: millis(2000),
        mixed: millis(20_000),
        sustained: millis(60_000),
        recovery_bytes: 512 << 20,
        bytes_max: 8 << 30,
        total: millis(175_000),
        reserved: millis(15_000),
    };
    pub(crate) const SOAK: Self = Self {
        name: "soak",
        sustained: Duration::from_secs(30 * 60),
        bytes_max: 256 << 30,
        ..Self::FULL
    };

    /// The same in less time.
    pub(crate) fn scaled(self, by: f64) -> Self {
        let scaled = |time: Duration| time.mul_f64(by);
        Self {
            idle: scaled(self.idle),
            server: scaled(self.server),
            step: scaled(self.step),
            sweep: scaled(self.sweep),
            tune: scaled(self.tune),
            mixed: scaled(self.mixed),
            sustained: scaled(self.sustained),
            reserved: scaled(self.reserved),
            ..self
        }
    }

    /// Room on the disk: a log that is used again and again, a longer one to
    /// recover, and a tree.
    pub(crate) fn space(&self) -> u64 {
        (448 << 20) + self.recovery_bytes
    }

    /// When all is over, whatever the disk does; a soak takes what it takes.
    fn most(&self) -> Duration {
        self.total + self.sustained.saturating_sub(Self::FULL.sustained)
    }

    /// Phases and their shares of the time.
    fn whole(&self) -> Duration {
        self.idle
            + self.server * 3 / 2
            + self.sweep
            + 3 * self.tune
            + self.mixed
            + self.sustained
            + millis(3000)
    }
}

/// A qualification under way.
pub(crate) struct Qualification<'a> {
    settings: &'a Settings,
    plan: Plan,
    stop: Stop,
    progress: Progress,
    began: Instant,
    pub(crate) report: Report,
}

impl<'a> Qualification<'a> {
    pub(crate) fn new(settings: &'a Settings, stop: &Stop) -> Self {
        let plan = settings.plan;
        let began = Instant::now();
        stop.is_due_at(began + plan.most());
        Self {
            settings,
            plan,
            stop: stop.clone(),
            progress: Progress::new(plan.whole()),
            began,
            report: Report {
                version: VERSION,
                tool: format!("pontoonctl {}", env!("CARGO_PKG_VERSION")),
                directory: settings.dir.display().to_string(),
                mode: plan.name.to_owned(),
                value_bytes: settings.value_bytes,
                put_bytes: settings.value_bytes + PUT_OVERHEAD,
                p99_max_ms: settings.p99_max.as_secs_f64() * 1e3,
                ..Report::default()
            },
        }
    }

    /// Runs all phases; whatever comes of it, the report has what is known.
    pub(crate) fn run(&mut self) -> Result<(), DiskError> {
        let outcome = self.in_a_place();
        self.progress.end();
        self.report.took_s = self.began.elapsed().as_secs_f64();
        if self.stop.is_interrupted() {
            self.report.ended_early = Some("interrupted".to_owned());
        } else if let Err(error) = &outcome {
            self.report.ended_early = Some(error.to_string());
        } else if self.bytes_left() == 0 {
            self.report.ended_early = Some("--max-bytes was reached".to_owned());
        } else if self.left().is_zero() && self.report.tuning.is_none() {
            let what = "the time was up before everything was measured";
            self.report.doubts.push(Doubt {
                durability: false,
                what: what.to_owned(),
            });
        }
        doubt::look(&mut self.report);
        self.report.verdict = judge(&self.report, self.settings.nodes);
        outcome
    }

    fn in_a_place(&mut self) -> Result<(), DiskError> {
        let dir = &self.settings.dir;
        check_dir(dir)?;
        self.report.machine = Machine::of(dir);
        let place = Place::in_dir(dir, self.plan.space(), &self.stop)?;
        let busy = Processors::now();
        let outcome = self.phases(place.path());
        self.report.others_cpu = busy.others_since();
        outcome
    }

    fn phases(&mut self, dir: &Path) -> Result<(), DiskError> {
        let logs = dir.join("log");
        let mut log = self.open(&logs)?;
        log.settle(&logs, &self.stop, millis(4000));
        let phases = self.loads(dir, &mut log);
        // The directory goes next: nobody may write into it any more.
        let closed = self.close(log);
        phases?;
        closed?;
        if self.is_over() {
            return Ok(());
        }
        std::fs::remove_dir_all(&logs).map_err(|error| DiskError::at(&logs, error))?;
        self.recovery(&dir.join("recovery"))?;
        if self.is_over() {
            return Ok(());
        }
        self.tuning(&dir.join("tuning"))
    }

    fn loads(&mut self, dir: &Path, log: &mut Log) -> Result<(), DiskError> {
        self.idle(log)?;
        if self.is_over() {
            return Ok(());
        }
        self.server(&dir.join("server"))?;
        if self.is_over() {
            return Ok(());
        }
        self.sweep(log)?;
        if self.is_over() {
            return Ok(());
        }
        self.mixed(log, &dir.join("tree"))?;
        if self.is_over() {
            return Ok(());
        }
        self.sustained(log)
    }

    fn is_over(&self) -> bool {
        self.stop.is_interrupted() || self.bytes_left() == 0 || self.left().is_zero()
    }

    /// Time that is left in all.
    fn left(&self) -> Duration {
        self.plan.most().saturating_sub(self.began.elapsed())
    }

    /// Closes a log, unless that would take longer than there is time.
    fn close(&self, log: Log) -> Result<(), DiskError> {
        match log.close(&self.stop) {
            Err(DiskError::Stuck) if self.left().is_zero() => Ok(()),
            closed => closed,
        }
    }

    /// So long, unless that would leave too little for what comes after.
    fn within(&self, time: Duration) -> Duration {
        time.min(self.left().saturating_sub(self.plan.reserved))
    }

    fn bytes_left(&self) -> u64 {
        let max = self.settings.bytes_max;
        max.saturating_sub(self.report.written_bytes)
    }

    fn disk(&self, dir: &Path) -> Result<Arc<dyn Disk>, DiskError> {
        let real = RealDisk::new(Backend::Auto, dir).map_err(|error| DiskError::at(dir, error))?;
        Ok(match self.settings.rehearse {
            None => Arc::new(real),
            Some(extra) => Arc::new(SlowDisk { real, extra }),
        })
    }

    fn open(&mut self, dir: &Path) -> Result<Log, DiskError> {
        self.progress.phase("making a log");
        let disk = self.disk(dir)?;
        self.report.io = disk.describe();
        let (log, _) = Log::open(Config::new(dir, 1), disk)?;
        Ok(log)
    }

    fn load(&self, arrivals: Arrivals, time: Duration) -> Load {
        Load {
            arrivals,
            time: time.min(self.left()),
            put_bytes: self.report.put_bytes,
            purge: true,
            bytes_max: self.bytes_left(),
        }
    }

    fn drive(&mut self, log: &mut Log, load: &Load) -> Result<Outcome, DiskError> {
        let outcome = log.run(load, &self.stop)?;
        self.report.written_bytes += outcome.written_bytes;
        Ok(outcome)
    }

    /// One put at a time.
    fn idle(&mut self, log: &mut Log) -> Result<(), DiskError> {
        self.progress.phase("one put at a time");
        let flushes = self.report.machine.flushes();
        let outcome = self.drive(log, &self.load(Arrivals::Clients(1), self.plan.idle))?;
        if !outcome.tells() {
            return Ok(());
        }
        if let (Some(before), Some(after)) = (flushes, self.report.machine.flushes()) {
            doubt::compare_flushes(&mut self.report, after - before, outcome.commit_count);
        }
        self.report.stalls.add(&outcome);
        self.report.idle = Some(Phase::of(&outcome));
        Ok(())
    }

    /// A server on the disk. Where there can be none, the disk is judged alone.
    fn server(&mut self, dir: &Path) -> Result<(), DiskError> {
        if self.settings.rehearse.is_some() {
            return Ok(());
        }
        let clients = self.settings.clients;
        self.progress
            .phase(&format!("a server with {clients} clients"));
        let trial = Trial {
            clients,
            value_bytes: self.report.value_bytes,
            start_max: self.within(START_MAX),
            time: self.plan.server,
        };
        let before = written_bytes();
        match trial.run(dir, &self.stop) {
            Ok(served) => self.report.server = served,
            Err(error) => self.report.doubts.push(Doubt {
                durability: false,
                what: format!("no server could be tried on it: {error}"),
            }),
        }
        self.report.written_bytes += written_bytes().saturating_sub(before);
        if dir.exists() {
            std::fs::remove_dir_all(dir).map_err(|error| DiskError::at(dir, error))?;
        }
        Ok(())
    }

    /// Rates: four times the last until one is not borne, then closer.
    fn sweep(&mut self, log: &mut Log) -> Result<(), DiskError> {
        let until = Instant::now() + self.within(self.plan.sweep);
        let limit = self
            .report
            .server
            .map_or(f64::MAX, |s| s.puts_per_s * BEYOND_SERVER);
        let idle = self
            .report
            .idle
            .as_ref()
            .map_or(100.0, |idle| idle.puts_per_s);
        let mut sweep = Sweep::default();
        let mut rate = (idle / 2.0).clamp(20.0, limit);
        let mut beyond: Option<f64> = None;
        let mut again = true;
        while Instant::now() < until && !self.is_over() {
            self.progress.phase(&format!("{rate:.0} puts/s"));
            let outcome = self.drive(log, &self.load(Arrivals::Rate(rate), self.plan.step))?;
            if self.stop.is_interrupted() {
                break;
            }
            let why = self.refused(&outcome);
            let step = SweepStep {
                held: why.is_none(),
                phase: Phase::of(&outcome),
            };
            sweep.steps.push(step);
            match why {
                None => {
                    self.report.stalls.add(&outcome);
                    sweep.knee_per_s = Some(sweep.knee_per_s.unwrap_or(0.0).max(rate));
                    if rate >= limit {
                        sweep.limit = SweepLimit::BeyondServer;
                        break;
                    }
                    again = true;
                }
                // Somebody else's moment may have been in it: once more.
                Some(_) if again => {
                    again = false;
                    continue;
                }
                Some(why) => {
                    sweep.limit = why;
                    beyond = Some(beyond.map_or(rate, |known| known.min(rate)));
                    again = true;
                }
            }
            let held = sweep.knee_per_s;
            rate = match (held, beyond) {
                (Some(held), None) => (held * 4.0).min(limit),
                (Some(held), Some(beyond)) if beyond / held < 1.1 => break,
                (Some(held), Some(beyond)) => (held * beyond).sqrt(),
                (None, _) if rate < 10.0 => break,
                (None, _) => rate / 4.0,
            };
        }
        let by_rate = |a: &SweepStep, b: &SweepStep| {
            let rate = |step: &SweepStep| step.phase.offered_per_s.unwrap_or(0.0);
            rate(a).total_cmp(&rate(b))
        };
        sweep.steps.sort_by(by_rate);
        self.report.sweep = Some(sweep).filter(|sweep| !sweep.steps.is_empty());
        Ok(())
    }

    /// Why a rate was not borne, if it wasn't.
    fn refused(&self, outcome: &Outcome) -> Option<SweepLimit> {
        let held = outcome.holds();
        let soon = outcome.puts.percentile(99.0) <= self.settings.p99_max;
        if held && soon {
            None
        } else if outcome.lag.percentile(95.0) > LAG_MAX {
            Some(SweepLimit::Load)
        } else if !held {
            Some(SweepLimit::Rate)
        } else {
            Some(SweepLimit::Latency)
        }
    }

    /// A rate that a server here could be asked for: a share of the lower of
    /// what the disk and the processors allow.
    fn share(&self, share: f64) -> Option<f64> {
        let knee = self.report.sweep.as_ref()?.knee_per_s?;
        let server = self.report.server.map_or(f64::MAX, |s| s.puts_per_s);
        Some((knee * share).min(server * share).max(1.0))
    }

    /// The log beside checkpoints and snapshots of a tree.
    fn mixed(&mut self, log: &mut Log, dir: &Path) -> Result<(), DiskError> {
        let Some(rate) = self.share(0.5) else {
            return Ok(());
        };
        self.progress.phase("making a tree");
        let tree = Tree::make(dir, self.report.value_bytes, &self.stop)?;
        self.progress.phase("beside checkpoints and snapshots");
        let beside = tree.beside(rate)?;
        let load = self.load(Arrivals::Rate(rate), self.plan.mixed);
        let outcome = self.drive(log, &load);
        let (_tree, done) = beside.end()?;
        let outcome = outcome?;
        if outcome.tells() {
            self.report.stalls.add(&outcome);
            self.report.mixed = Some(Mixed {
                phase: Phase::of(&outcome),
                beside: done,
            });
        }
        Ok(())
    }

    /// One rate for a long time.
    fn sustained(&mut self, log: &mut Log) -> Result<(), DiskError> {
        let Some(rate) = self.share(0.8) else {
            return Ok(());
        };
        self.progress.phase("the same rate for a while");
        let load = self.load(Arrivals::Rate(rate), self.within(self.plan.sustained));
        let outcome = self.drive(log, &load)?;
        if outcome.tells() {
            self.report.stalls.add(&outcome);
            self.report.sustained = Some(Sustained::of(&outcome));
        }
        Ok(())
    }

    /// Writes a log in large commits, and opens it again.
    fn recovery(&mut self, dir: &Path) -> Result<(), DiskError> {
        self.progress.phase("recovery");
        let disk = self.disk(dir)?;
        let (mut log, _) = Log::open(Config::new(dir, 1), Arc::clone(&disk))?;
        let load = Load {
            purge: false,
            put_bytes: 64 << 10,
            bytes_max: self.plan.recovery_bytes.min(self.bytes_left()),
            ..self.load(
                Arrivals::Clients(32),
                (self.plan.tune * 4).min(self.left() / 3),
            )
        };
        let written = self.drive(&mut log, &load);
        self.close(log)?;
        let written = written?;
        if self.stop.is_interrupted() || self.left().is_zero() {
            return Ok(());
        }
        let began = Instant::now();
        let (log, _) = Log::open(Config::new(dir, 1), Arc::clone(&disk))?;
        let open_ms = began.elapsed().as_secs_f64() * 1e3;
        self.close(log)?;
        let began = Instant::now();
        inspect::inspect(&*disk, dir, Depth::Everything)?;
        let seconds = began.elapsed().as_secs_f64().max(1e-9);
        self.report.recovery = Some(Recovery {
            log_bytes: written.written_bytes,
            open_ms,
            read_bytes_per_s: written.written_bytes as f64 / seconds,
            write_bytes_per_s: written.written_bytes as f64
                / written.elapsed.as_secs_f64().max(1e-9),
        });
        Ok(())
    }

    /// How many commits in flight, and how large: as few and as small as are
    /// as fast as more and larger ones.
    fn tuning(&mut self, dir: &Path) -> Result<(), DiskError> {
        self.progress.phase("settings of the log");
        let mut tried: Vec<Tried> = Vec::new();
        let most = self.disk(dir)?.commits_in_flight_max();
        let mut took = Duration::ZERO;
        for in_flight in 1..=most {
            if self.left() < took + self.plan.tune {
                break;
            }
            let began = Instant::now();
            let dir = dir.join(in_flight.to_string());
            let disk = self.disk(&dir)?;
            let mut config = Config::new(&dir, 1);
            config.in_flight_max = in_flight;
            let (mut log, _) = Log::open(config, disk)?;
            log.settle(&dir, &self.stop, self.plan.tune);
            let load = self.load(Arrivals::Clients(1024), self.plan.tune);
            let load = Load {
                bytes_max: load.bytes_max.min(TUNE_BYTES_MAX),
                ..load
            };
            let outcome = self.drive(&mut log, &load);
            self.close(log)?;
            if self.left().is_zero() {
                outcome?;
                break;
            }
            std::fs::remove_dir_all(&dir).map_err(|error| DiskError::at(&dir, error))?;
            let outcome = outcome?;
            took = began.elapsed();
            if self.stop.is_interrupted() {
                return Ok(());
            }
            tried.push(Tried {
                in_flight,
                puts_per_s: outcome.rate(),
                p99_ns: outcome.puts.percentile(99.0).as_nanos() as u64,
            });
        }
        let best = tried.iter().map(|t| t.puts_per_s).fold(0.0, f64::max);
        let enough = tried.iter().find(|t| t.puts_per_s >= 0.95 * best);
        let bandwidth = self.report.recovery.as_ref().map(|r| r.write_bytes_per_s);
        self.report.tuning = Some(Tuning {
            in_flight_max: enough.map_or(most, |t| t.in_flight),
            commit_bytes_max: commit_bytes(bandwidth.unwrap_or(f64::MAX)),
            tried,
        });
        Ok(())
    }
}

/// What a disk writes while a commit may take, as a power of two.
fn commit_bytes(bytes_per_s: f64) -> usize {
    let fitting = (bytes_per_s * COMMIT_TIME_MAX).clamp(64.0 * 1024.0, 4096.0 * 1024.0);
    1 << (fitting as usize).ilog2()
}

/// What this process has written to disks so far, as far as that is told.
fn written_bytes() -> u64 {
    let told = std::fs::read_to_string("/proc/self/io").unwrap_or_default();
    let line = told
        .lines()
        .find_map(|line| line.strip_prefix("write_bytes: "));
    line.and_then(|count| count.parse().ok()).unwrap_or(0)
}

/// What all processors have done, in ticks.
struct Processors(Option<(u64, u64, u64)>);

impl Processors {
    fn now() -> Self {
        Self(Self::read())
    }

    /// All, busy, own.
    fn read() -> Option<(u64, u64, u64)> {
        let stat = std::fs::read_to_string("/proc/stat").ok()?;
        let words = stat.split_whitespace().skip(1).take(8);
        let ticks: Vec<u64> = words.filter_map(|word| word.parse().ok()).collect();
        let all: u64 = ticks.iter().sum();
        let idle = ticks.get(3)? + ticks.get(4)?;
        let own = std::fs::read_to_string("/proc/self/stat").ok()?;
        let (_, fields) = own.rsplit_once(')')?;
        let own = fields.split_whitespace().skip(11).take(2);
        Some((
            all,
            all - idle,
            own.filter_map(|w| w.parse::<u64>().ok()).sum(),
        ))
    }

    /// The share of all processors that others have used since.
    fn others_since(&self) -> f64 {
        let (Some(before), Some(now)) = (self.0, Self::read()) else {
            return 0.0;
        };
        let busy = now.1.saturating_sub(before.1) as f64;
        let own = now.2.saturating_sub(before.2) as f64;
        let all = now.0.saturating_sub(before.0).max(1) as f64;
        ((busy - own) / all).clamp(0.0, 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_disks_get_small_commits() {
        assert_eq!(commit_bytes(10e6), 64 << 10);
        assert_eq!(commit_bytes(110e6), 1 << 20);
        assert_eq!(commit_bytes(5e9), 4 << 20);
        assert_eq!(commit_bytes(0.0), 64 << 10);
    }

    #[test]
    fn plans_keep_their_promises() {
        assert!(Plan::QUICK.whole() <= Duration::from_secs(27));
        assert!(Plan::FULL.whole() <= Duration::from_secs(165));
    }
}
