//! What a load itself costs, and whether it was what it measured.
//!
//! Kept true: a generator that was busy all the time is never taken for a slow
//! server: every report says how busy its threads were.

use std::sync::atomic::{AtomicI32, Ordering};
use std::thread;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use crate::proc::CpuTime;

/// A thread that was busy for more than this was the bottleneck.
const BUSY: f64 = 0.9;

/// One that was ready and had no processor for more than this was held up.
const STARVED: f64 = 0.25;

/// What the load itself cost.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Cost {
    /// Processor time of this process, in all.
    pub cpu_seconds: f64,
    /// Of it, for each request that was answered or failed.
    pub cpu_micros_per_request: f64,
    /// Its share of the machine, 0 to 1.
    pub machine_share: f64,
    /// How much of the time its busiest thread had a processor, 0 to 1.
    pub busiest_thread_share: f64,
    /// How much of the time a thread of it was ready but had none, at most.
    pub waiting_share: f64,
    /// Whether its own speed was measured rather than the server's.
    pub is_bottleneck: bool,
    /// The share of the machine that everybody else had, servers too.
    pub others_share: f64,
}

impl Cost {
    /// For so many requests.
    #[must_use]
    pub fn for_requests(self, count: u64) -> Self {
        Self {
            cpu_micros_per_request: self.cpu_seconds * 1e6 / count.max(1) as f64,
            ..self
        }
    }

    /// For people.
    #[must_use]
    pub fn text(&self) -> String {
        let percent = |share: f64| share * 100.0;
        format!(
            "{:.2} µs of processor per request, {:.1} % of the machine; its busiest thread ran {:.0} % of the time and waited for a processor {:.0} %; others had {:.0} % of the machine\n{:<10} {}",
            self.cpu_micros_per_request,
            percent(self.machine_share),
            percent(self.busiest_thread_share),
            percent(self.waiting_share),
            percent(self.others_share),
            "",
            self.verdict()
        )
    }

    /// Whether to trust the figures.
    #[must_use]
    pub fn verdict(&self) -> &'static str {
        match self.is_bottleneck {
            true => "it WAS THE BOTTLENECK, so this is its own speed: give it more --threads",
            false if self.waiting_share > STARVED => {
                "it was not the bottleneck, but waited for processors: latencies have that wait"
            }
            false => "it was not the bottleneck",
        }
    }
}

/// What this process and the machine have used up to a moment.
pub struct Usage {
    own: Duration,
    machine: Option<CpuTime>,
    threads: Vec<Option<ThreadTime>>,
}

impl Usage {
    /// Up to now, with the threads that do the work.
    #[must_use]
    pub fn now<'a>(threads: impl Iterator<Item = &'a ThreadId>) -> Self {
        Self {
            own: own_time(),
            machine: CpuTime::now().ok(),
            threads: threads.map(ThreadId::time).collect(),
        }
    }

    /// What was used since.
    #[must_use]
    pub fn cost_since<'a>(
        &self,
        elapsed: Duration,
        threads: impl Iterator<Item = &'a ThreadId>,
    ) -> Cost {
        let own = (own_time() - self.own).as_secs_f64();
        let processors = thread::available_parallelism().map_or(1, usize::from);
        let seconds = elapsed.as_secs_f64().max(1e-9);
        let others = self.machine.and_then(|before| before.others_since().ok());
        let since = threads.zip(&self.threads).filter_map(|(thread, before)| {
            let (now, before) = (thread.time()?, before.as_ref()?);
            let share = |now: u64, before: u64| now.saturating_sub(before) as f64 / 1e9 / seconds;
            Some((share(now.ran, before.ran), share(now.waited, before.waited)))
        });
        let busiest = since.fold((0.0f64, 0.0f64), |most, thread| {
            (most.0.max(thread.0), most.1.max(thread.1))
        });
        Cost {
            cpu_seconds: own,
            cpu_micros_per_request: 0.0,
            machine_share: own / seconds / processors as f64,
            busiest_thread_share: busiest.0,
            waiting_share: busiest.1,
            is_bottleneck: busiest.0 > BUSY,
            others_share: others.unwrap_or(f64::NAN),
        }
    }
}

/// Which thread it is, once it runs.
#[derive(Debug, Default)]
pub struct ThreadId(AtomicI32);

/// Nanoseconds.
struct ThreadTime {
    ran: u64,
    waited: u64,
}

impl ThreadId {
    /// It is the one that calls this.
    pub fn set_current(&self) {
        let id = rustix::thread::gettid().as_raw_nonzero().get();
        self.0.store(id, Ordering::Relaxed);
    }

    fn time(&self) -> Option<ThreadTime> {
        let id = self.0.load(Ordering::Relaxed);
        let text = std::fs::read_to_string(format!("/proc/self/task/{id}/schedstat")).ok()?;
        let mut numbers = text.split_whitespace().map(str::parse);
        Some(ThreadTime {
            ran: numbers.next()?.ok()?,
            waited: numbers.next()?.ok()?,
        })
    }
}

fn own_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let nanos = u32::try_from(time.tv_nsec).unwrap_or(0);
    Duration::new(time.tv_sec.cast_unsigned(), nanos)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_busy_thread_is_told_from_one_that_waits() {
        let id = ThreadId::default();
        id.set_current();
        let before = Usage::now(std::iter::once(&id));
        let start = Instant::now();
        let mut sum = 0u64;
        while own_time() - before.own < Duration::from_millis(30) {
            sum = std::hint::black_box(sum + 1);
        }
        let cost = before.cost_since(start.elapsed(), std::iter::once(&id));
        assert!(cost.cpu_seconds >= 0.03 && cost.busiest_thread_share > 0.0);
        assert!(cost.for_requests(30_000).cpu_micros_per_request >= 1.0);
        // As if that had taken a thousand times as long.
        let idle = before.cost_since(start.elapsed() * 1000, std::iter::once(&id));
        assert!(!idle.is_bottleneck);
        assert!(idle.text().contains("it was not the bottleneck"));
    }
}
