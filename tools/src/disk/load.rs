//! Puts that arrive at the log as they would at a server: what has gathered
//! becomes one entry, and a few entries are on their way.
//!
//! Kept true: a put's time counts from the moment at which it was to arrive,
//! whatever held it up, and one that was never taken counts with what it had
//! waited. So a disk that stops for a second is seen by all who came meanwhile,
//! and one that has not come back when the time is up is seen, too.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::FutureExt;
use pontoon_wal::disk::Disk;
use pontoon_wal::disk::sim::Rng;
use pontoon_wal::{Batch, Config, LogIndex, Opened, StreamId, SystemClock, Wal};
use serde::Serialize;

use crate::disk::DiskError;
use crate::disk::latency::Times;
use crate::disk::stop::Stop;

/// Puts that one entry has at most, and entries that are on their way at most:
/// as the leader of a group does it.
pub(crate) const ENTRY_PUTS_MAX: u64 = 1024;
const ENTRY_BYTES_MAX: usize = 1 << 20;
pub(crate) const ENTRIES_IN_FLIGHT_MAX: usize = 4;

/// Requests that are under way at most: as many clients as a busy server has.
const REQUESTS_MAX: u64 = 1024;

/// Bytes of entries that are kept, so that segments are used again as they
/// are in real use.
const LIVE_BYTES_MAX: usize = 32 << 20;
/// How long the log may take for what is under way before it counts as stuck.
const PATIENCE: Duration = Duration::from_secs(60);
/// An open load that is so far behind is given up.
const BEHIND_MAX: Duration = Duration::from_secs(2);
/// A load doesn't look more often than this.
const PAUSE_MIN: Duration = Duration::from_micros(20);
/// A stop is noticed within this time.
const LOOK: Duration = Duration::from_millis(20);

const STREAM: StreamId = StreamId(1);

/// The server's heartbeat and election timeout, unless it is told otherwise.
pub(crate) const HEARTBEAT: Duration = Duration::from_millis(100);
pub(crate) const ELECTION: Duration = Duration::from_secs(1);

/// How puts come.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Arrivals {
    /// So many per second, at even distances, whatever happens.
    Rate(f64),
    /// From so many clients, each of which waits until its put is durable.
    Clients(u64),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) arrivals: Arrivals,
    pub(crate) time: Duration,
    /// Bytes of a put in the log.
    pub(crate) put_bytes: usize,
    /// Whether old entries go, as they do once a checkpoint has them.
    pub(crate) purge: bool,
    /// Most bytes that it may write.
    pub(crate) bytes_max: u64,
}

/// What came of a load.
#[derive(Clone, Default)]
pub(crate) struct Outcome {
    /// From a put's moment until it was durable.
    pub(crate) puts: Times,
    /// From when an entry was handed to the log until it was durable.
    pub(crate) commits: Times,
    /// How late the load itself was.
    pub(crate) lag: Times,
    /// Puts per second that were to come, if that was fixed.
    pub(crate) offered: Option<f64>,
    pub(crate) durable: u64,
    /// Puts that were due and were not even handed over when time was up, or
    /// were given up when everything had to end.
    pub(crate) left: u64,
    pub(crate) elapsed: Duration,
    pub(crate) stalls: Vec<Stall>,
    pub(crate) seconds: Vec<Second>,
    /// Commits of the log, and what they wrote.
    pub(crate) commit_count: u64,
    pub(crate) written_bytes: u64,
    /// Share of the time in which the log had a commit under way.
    pub(crate) busy: f64,
    /// Whether it was ended early.
    pub(crate) cut: bool,
}

impl Outcome {
    /// Durable puts per second. At a fixed rate, those that were on their way
    /// when time was up don't count against it.
    pub(crate) fn rate(&self) -> f64 {
        match self.offered {
            Some(rate) => rate * self.durable as f64 / (self.durable + self.left).max(1) as f64,
            None => self.durable as f64 / self.elapsed.as_secs_f64().max(1e-9),
        }
    }

    pub(crate) fn commits_per_s(&self) -> f64 {
        self.commit_count as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }

    pub(crate) fn puts_per_commit(&self) -> f64 {
        self.durable as f64 / self.commit_count.max(1) as f64
    }

    /// Whether anything is known: something became durable, or it didn't.
    pub(crate) fn tells(&self) -> bool {
        self.durable > 0 || !self.stalls.is_empty()
    }

    /// Whether the rate was held: hardly more was left behind than gathers
    /// while a commit is under way.
    pub(crate) fn holds(&self) -> bool {
        let all = (self.durable + self.left) as f64;
        let gathers = self.offered.unwrap_or(0.0) * self.commits.percentile(50.0).as_secs_f64();
        self.left as f64 <= 0.03 * all + gathers
    }
}

/// A time during which something was on its way and nothing became durable.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Stall {
    /// Seconds after the load began.
    pub(crate) at_s: f64,
    pub(crate) ms: f64,
}

/// One second of a load.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Second {
    pub(crate) puts: u64,
    pub(crate) p50_ns: u64,
    pub(crate) p99_ns: u64,
    pub(crate) max_ns: u64,
}

/// A log to be loaded.
pub(crate) struct Log {
    wal: Wal,
    payloads: Bytes,
    rng: Rng,
    next: u64,
    /// Entries that are there, oldest first, with their bytes.
    live: VecDeque<(u64, usize)>,
    live_bytes: usize,
}

impl Log {
    pub(crate) fn open(config: Config, disk: Arc<dyn Disk>) -> Result<(Self, Opened), DiskError> {
        let (wal, opened) = Wal::open(config, disk, Arc::new(SystemClock::default()))?;
        let mut rng = Rng::new(1);
        let words = (0..2 * ENTRY_BYTES_MAX / 8).map(|_| rng.next_u64().to_le_bytes());
        let payloads: Vec<u8> = words.flatten().collect();
        Ok((
            Self {
                next: wal.bounds(STREAM).map_or(0, |(_, next)| next.0),
                wal,
                payloads: payloads.into(),
                rng,
                live: VecDeque::new(),
                live_bytes: 0,
            },
            opened,
        ))
    }

    /// Waits until the log has made what it keeps ready, so that the making
    /// isn't taken for the disk's slowness.
    pub(crate) fn settle(&self, dir: &Path, stop: &Stop, within: Duration) {
        let until = Instant::now() + within;
        let reserve = dir.join(pontoon_wal::format::RESERVE_NAME);
        let preparing = dir.join(pontoon_wal::format::PREPARING_NAME);
        while Instant::now() < until
            && !stop.is_interrupted()
            && (!reserve.exists() || preparing.exists())
        {
            std::thread::sleep(LOOK);
        }
    }

    pub(crate) fn close(self, stop: &Stop) -> Result<(), DiskError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .map_err(DiskError::Machine)?;
        runtime.block_on(async {
            tokio::time::timeout(stop.patience(PATIENCE), self.wal.close())
                .await
                .map_err(|_| DiskError::Stuck)
        })
    }

    /// Runs a load to its end, or until it is stopped.
    pub(crate) fn run(&mut self, load: &Load, stop: &Stop) -> Result<Outcome, DiskError> {
        Run::new(self, load).run_out(stop)
    }

    /// Hands one entry of so many bytes to the log.
    fn append(
        &mut self,
        bytes: usize,
        purge: bool,
        done: impl FnOnce(bool) + Send + 'static,
    ) -> Result<(), DiskError> {
        let mut batch = Batch::new();
        if purge && self.live_bytes > LIVE_BYTES_MAX {
            while self.live_bytes > LIVE_BYTES_MAX / 2
                && let Some((_, bytes)) = self.live.pop_front()
            {
                self.live_bytes -= bytes;
            }
            let first = self.live.front().map_or(self.next, |(index, _)| *index);
            batch.purge_below(STREAM, LogIndex(first));
        }
        let start = self.rng.below((self.payloads.len() - bytes) as u64) as usize;
        let payload = self.payloads.slice(start..start + bytes);
        batch.append(STREAM, LogIndex(self.next), vec![payload]);
        let appended = self
            .wal
            .append(batch, move |result| done(result.is_ok()))
            .now_or_never();
        match appended {
            Some(Ok(())) => {}
            Some(Err(error)) => return Err(error.into()),
            // There is always room in the queue for the few that are under way.
            None => return Err(DiskError::Stuck),
        }
        self.live.push_back((self.next, bytes));
        self.live_bytes += bytes;
        self.next += 1;
        Ok(())
    }
}

/// An entry on its way.
struct Flight {
    first: u64,
    count: u64,
    handed: Instant,
    /// For clients that wait: since when, and how many.
    due: Vec<(Instant, u64)>,
}

struct Ended {
    at: Instant,
    well: bool,
}

/// A load under way.
struct Run<'a> {
    log: &'a mut Log,
    load: &'a Load,
    start: Instant,
    end: Instant,
    taken: u64,
    /// Clients whose next put is due.
    ready: VecDeque<(Instant, u64)>,
    flights: VecDeque<Flight>,
    ended: mpsc::Receiver<Ended>,
    report: mpsc::Sender<Ended>,
    /// When something last became durable, or began to be waited for.
    progress: Instant,
    second: Times,
    out: Outcome,
}

impl<'a> Run<'a> {
    fn new(log: &'a mut Log, load: &'a Load) -> Self {
        let (report, ended) = mpsc::channel();
        let start = Instant::now();
        let ready = match load.arrivals {
            Arrivals::Rate(_) => VecDeque::new(),
            Arrivals::Clients(count) => VecDeque::from([(start, count)]),
        };
        Self {
            log,
            load,
            start,
            end: start + load.time,
            taken: 0,
            ready,
            flights: VecDeque::new(),
            ended,
            report,
            progress: start,
            second: Times::default(),
            out: Outcome {
                offered: match load.arrivals {
                    Arrivals::Rate(rate) => Some(rate),
                    Arrivals::Clients(_) => None,
                },
                ..Outcome::default()
            },
        }
    }

    fn run_out(mut self, stop: &Stop) -> Result<Outcome, DiskError> {
        let before = Counted::of(&self.log.wal);
        let mut last = self.start;
        loop {
            let now = Instant::now();
            let written = Counted::of(&self.log.wal).written_bytes - before.written_bytes;
            let is_behind = self
                .oldest(now)
                .is_some_and(|since| now - since > BEHIND_MAX);
            let is_over = now >= self.end
                || stop.is_interrupted()
                || written > self.load.bytes_max
                || is_behind;
            if is_over {
                self.out.cut = now < self.end;
                self.end = now;
                break;
            }
            self.take(now)?;
            let wait = self.wait(Instant::now());
            match self.ended.recv_timeout(wait) {
                Ok(ended) => {
                    last = self.complete(ended)?;
                    while let Ok(ended) = self.ended.try_recv() {
                        last = self.complete(ended)?;
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(DiskError::Stuck),
            }
        }
        while !self.flights.is_empty() {
            match self.ended.recv_timeout(stop.patience(PATIENCE)) {
                Ok(ended) => last = self.complete(ended)?,
                Err(_) if stop.is_past() => last = self.abandon(),
                Err(_) => return Err(DiskError::Stuck),
            }
        }
        self.leave();
        self.sum_up_second();
        self.out.elapsed = self.end.max(last) - self.start;
        let after = Counted::of(&self.log.wal);
        self.out.commit_count = after.commits - before.commits;
        self.out.written_bytes = after.written_bytes - before.written_bytes;
        let busy = Duration::from_nanos(after.busy - before.busy);
        self.out.busy = busy.as_secs_f64() / self.out.elapsed.as_secs_f64().max(1e-9);
        Ok(self.out)
    }

    /// Puts that are due and not handed over yet.
    fn due(&self, now: Instant) -> u64 {
        match self.load.arrivals {
            Arrivals::Rate(rate) => {
                let arrived = ((now - self.start).as_secs_f64() * rate) as u64 + 1;
                arrived.saturating_sub(self.taken)
            }
            Arrivals::Clients(_) => self.ready.iter().map(|(_, count)| count).sum(),
        }
    }

    /// Since when the oldest of them is due.
    fn oldest(&self, now: Instant) -> Option<Instant> {
        match self.load.arrivals {
            Arrivals::Rate(rate) => {
                Some(moment(self.start, self.taken, rate)).filter(|at| *at <= now)
            }
            Arrivals::Clients(_) => self.ready.front().map(|(at, _)| *at),
        }
    }

    /// Hands over what is due, as far as entries may be on their way.
    fn take(&mut self, now: Instant) -> Result<(), DiskError> {
        while self.flights.len() < ENTRIES_IN_FLIGHT_MAX {
            let fitting = (ENTRY_BYTES_MAX / self.load.put_bytes).max(1) as u64;
            let under_way: u64 = self.flights.iter().map(|flight| flight.count).sum();
            let free = match self.load.arrivals {
                Arrivals::Rate(_) => REQUESTS_MAX.saturating_sub(under_way),
                Arrivals::Clients(_) => u64::MAX,
            };
            let count = self.due(now).min(ENTRY_PUTS_MAX).min(fitting).min(free);
            if count == 0 {
                return Ok(());
            }
            let mut due = Vec::new();
            if let Arrivals::Clients(_) = self.load.arrivals {
                let mut wanted = count;
                while wanted > 0
                    && let Some((since, clients)) = self.ready.pop_front()
                {
                    let some = clients.min(wanted);
                    due.push((since, some));
                    wanted -= some;
                    if clients > some {
                        self.ready.push_front((since, clients - some));
                    }
                }
            }
            if self.flights.is_empty() {
                self.progress = now;
                if let Some(oldest) = self.oldest(now) {
                    self.out.lag.add(now - oldest);
                }
            }
            let report = self.report.clone();
            let bytes = count as usize * self.load.put_bytes;
            self.log.append(bytes, self.load.purge, move |well| {
                let at = Instant::now();
                // Who asked has given up: fine.
                let _ = report.send(Ended { at, well });
            })?;
            self.flights.push_back(Flight {
                first: self.taken,
                count,
                handed: now,
                due,
            });
            self.taken += count;
        }
        Ok(())
    }

    /// Until when there is nothing to do, unless an entry becomes durable.
    fn wait(&self, now: Instant) -> Duration {
        let until_end = self.end.saturating_duration_since(now).min(LOOK);
        match self.load.arrivals {
            Arrivals::Rate(rate) if self.flights.len() < ENTRIES_IN_FLIGHT_MAX => {
                // If it is due already, requests under way are in its way.
                let next = moment(self.start, self.taken, rate).max(now + PAUSE_MIN);
                until_end.min(next.saturating_duration_since(now))
            }
            _ => until_end,
        }
    }

    fn complete(&mut self, ended: Ended) -> Result<Instant, DiskError> {
        let flight = self.flights.pop_front().expect("each is reported once");
        if !ended.well {
            let reason = self.log.wal.failure();
            let reason = reason.map_or_else(|| "it was closed".to_owned(), |r| r.to_string());
            return Err(DiskError::Failed(reason));
        }
        let at = ended.at;
        self.end_stall(at);
        self.enter_second(at);
        self.count_flight(&flight, at);
        if let Arrivals::Clients(_) = self.load.arrivals {
            self.ready.push_back((at, flight.count));
        }
        self.out.durable += flight.count;
        if let Some(second) = self.out.seconds.last_mut() {
            second.puts += flight.count;
        }
        Ok(at)
    }

    /// Nobody waits any longer for what is on its way: it took until now at
    /// least. Returns when that is.
    fn abandon(&mut self) -> Instant {
        let now = Instant::now();
        self.end_stall(now);
        for flight in std::mem::take(&mut self.flights) {
            self.count_flight(&flight, now);
            self.out.left += flight.count;
        }
        now
    }

    /// Something became durable, or is no longer waited for.
    fn end_stall(&mut self, at: Instant) {
        let stalled = at.saturating_duration_since(self.progress);
        if stalled > HEARTBEAT {
            self.out.stalls.push(Stall {
                at_s: (self.progress - self.start).as_secs_f64(),
                ms: stalled.as_secs_f64() * 1e3,
            });
        }
        self.progress = self.progress.max(at);
    }

    fn count_flight(&mut self, flight: &Flight, at: Instant) {
        let commit = at.saturating_duration_since(flight.handed);
        self.out.commits.add(commit);
        match self.load.arrivals {
            Arrivals::Rate(rate) => {
                for put in flight.first..flight.first + flight.count {
                    let due = moment(self.start, put, rate);
                    self.count(at.saturating_duration_since(due));
                }
            }
            Arrivals::Clients(_) => {
                for (since, count) in &flight.due {
                    (0..*count).for_each(|_| self.count(at.saturating_duration_since(*since)));
                }
            }
        }
    }

    fn count(&mut self, time: Duration) {
        self.out.puts.add(time);
        self.second.add(time);
    }

    /// Ends the seconds that are over, so that what comes belongs to this one.
    fn enter_second(&mut self, now: Instant) {
        let wanted = (now - self.start).as_secs() as usize + 1;
        while self.out.seconds.len() < wanted {
            self.sum_up_second();
            self.out.seconds.push(Second::default());
        }
    }

    fn sum_up_second(&mut self) {
        if let Some(second) = self.out.seconds.last_mut()
            && !self.second.is_empty()
        {
            let at = |percent| self.second.percentile(percent).as_nanos() as u64;
            second.p50_ns = at(50.0);
            second.p99_ns = at(99.0);
            second.max_ns = at(100.0);
            self.second = Times::default();
        }
    }

    /// What was due and never taken has waited, too.
    fn leave(&mut self) {
        let Arrivals::Rate(rate) = self.load.arrivals else {
            return;
        };
        let due = self.due(self.end).saturating_sub(1);
        for put in self.taken..self.taken + due {
            let since = moment(self.start, put, rate);
            self.out.puts.add(self.end.saturating_duration_since(since));
        }
        self.out.left += due;
    }
}

/// When a put is to arrive.
fn moment(start: Instant, put: u64, rate: f64) -> Instant {
    start + Duration::from_secs_f64(put as f64 / rate)
}

/// What the log counts itself.
struct Counted {
    commits: u64,
    written_bytes: u64,
    busy: u64,
}

impl Counted {
    fn of(wal: &Wal) -> Self {
        let counters = wal.counters();
        Self {
            commits: counters.commits.load(Relaxed),
            written_bytes: counters.written_bytes.load(Relaxed),
            busy: counters.busy.load(Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use pontoon_wal::disk::{Backend, RealDisk};

    use super::*;
    use crate::disk::slow::SlowDisk;

    /// Loads a disk on which every commit takes at least so long.
    fn loaded_until(stop: &Stop, extra: Duration, arrivals: Arrivals) -> Outcome {
        let dir = tempfile::tempdir().unwrap();
        let real = RealDisk::new(Backend::Auto, dir.path()).unwrap();
        let mut config = Config::new(dir.path(), 1);
        config.segment_bytes = 1 << 20;
        let (mut log, _) = Log::open(config, Arc::new(SlowDisk { real, extra })).unwrap();
        let load = Load {
            arrivals,
            time: Duration::from_millis(500),
            put_bytes: 100,
            purge: true,
            bytes_max: u64::MAX,
        };
        let outcome = log.run(&load, stop).unwrap();
        // It may not be done when the time is up.
        let closed = log.close(stop);
        assert!(closed.is_ok() || stop.is_past());
        outcome
    }

    fn loaded(extra: Duration, arrivals: Arrivals) -> Outcome {
        loaded_until(&Stop::default(), extra, arrivals)
    }

    #[test]
    fn a_disk_that_does_not_come_back_is_not_waited_for() {
        for arrivals in [Arrivals::Clients(4), Arrivals::Rate(100.0)] {
            let stop = Stop::default();
            stop.is_due_at(Instant::now() + Duration::from_secs(1));
            let began = Instant::now();
            let outcome = loaded_until(&stop, Duration::from_secs(600), arrivals);
            assert!(began.elapsed() < Duration::from_secs(120));
            assert_eq!(outcome.durable, 0);
            assert!(outcome.left > 0);
            assert_eq!(outcome.stalls.len(), 1);
            assert!(outcome.tells());
            // What they had waited by then is known.
            assert!(outcome.puts.percentile(100.0) >= Duration::from_millis(300));
            assert!(outcome.commits.percentile(100.0) >= Duration::from_millis(300));
        }
    }

    #[test]
    fn a_put_counts_from_its_moment() {
        let outcome = loaded(Duration::from_millis(40), Arrivals::Rate(1000.0));
        // Those that were left at the end count with what they had waited, so
        // only commits have a least time.
        assert!(outcome.commits.percentile(0.0) >= Duration::from_millis(39));
        assert!(outcome.puts.percentile(50.0) >= Duration::from_millis(39));
        assert!(
            outcome.puts.percentile(100.0) > Duration::from_millis(45),
            "those that came while others were under way waited longer than a commit"
        );
        assert!(outcome.puts_per_commit() > 1.5, "they gather");
        let came = outcome.durable + outcome.left;
        let due = outcome.elapsed.as_secs_f64() * 1000.0 + 1.0;
        assert!(came as f64 <= due, "{came} of {due} came");
        assert!(came >= 499 || outcome.cut, "only {came} came");
    }

    #[test]
    fn stalls_are_seen() {
        let outcome = loaded(Duration::from_millis(150), Arrivals::Clients(4));
        assert!(!outcome.stalls.is_empty());
        assert!(outcome.stalls.iter().all(|stall| stall.ms > 140.0));
    }

    #[test]
    fn clients_wait_for_their_puts() {
        let outcome = loaded(Duration::from_millis(50), Arrivals::Clients(7));
        // Each has one put under way, so at most eleven rounds fit.
        assert!(outcome.durable >= 7 && outcome.durable <= 7 * 11);
        assert_eq!(outcome.durable % 7, 0);
    }
}
