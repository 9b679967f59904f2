//! What a qualification found, as it is printed, drawn and written down.
//!
//! Kept true: a part that was not measured is absent, never zero.

use serde::Serialize;

use crate::disk::latency::Latency;
use crate::disk::load::{ELECTION, Outcome, Second, Stall};
use crate::disk::machine::Machine;
use crate::disk::server::Served;
use crate::disk::tree::BesideDone;
use crate::disk::verdict::Verdict;

/// Of the JSON document.
pub(crate) const VERSION: u32 = 1;

#[derive(Clone, Default, Serialize)]
pub(crate) struct Report {
    pub(crate) version: u32,
    pub(crate) tool: String,
    pub(crate) directory: String,
    pub(crate) mode: String,
    pub(crate) value_bytes: usize,
    /// Bytes of a put in the log.
    pub(crate) put_bytes: usize,
    pub(crate) p99_max_ms: f64,
    pub(crate) took_s: f64,
    pub(crate) written_bytes: u64,
    /// Why it ended before its end, if it did.
    pub(crate) ended_early: Option<String>,
    pub(crate) machine: Machine,
    /// How commits reach the disk, and why so.
    pub(crate) io: String,
    /// Share of the processors that others used meanwhile.
    pub(crate) others_cpu: f64,
    pub(crate) doubts: Vec<Doubt>,
    pub(crate) idle: Option<Phase>,
    /// A server that was run on the disk.
    pub(crate) server: Option<Served>,
    pub(crate) sweep: Option<Sweep>,
    pub(crate) mixed: Option<Mixed>,
    pub(crate) sustained: Option<Sustained>,
    pub(crate) recovery: Option<Recovery>,
    pub(crate) tuning: Option<Tuning>,
    pub(crate) stalls: Stalls,
    pub(crate) verdict: Verdict,
}

/// Something that makes the figures less true than they look.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Doubt {
    /// Whether what is acknowledged may not survive a power cut.
    pub(crate) durability: bool,
    pub(crate) what: String,
}

/// One load.
#[derive(Clone, Default, Serialize)]
pub(crate) struct Phase {
    /// Puts per second that were to come; absent where clients wait.
    pub(crate) offered_per_s: Option<f64>,
    pub(crate) puts_per_s: f64,
    pub(crate) commits_per_s: f64,
    pub(crate) puts_per_commit: f64,
    pub(crate) written_bytes_per_s: f64,
    /// Share of the time with a commit under way.
    pub(crate) busy: f64,
    pub(crate) took_s: f64,
    /// From the moment a put was to come until it was durable.
    pub(crate) put: Latency,
    /// From when an entry was handed to the log until it was durable.
    pub(crate) commit: Latency,
    /// How late the load itself was.
    pub(crate) lag_p99_ns: u64,
}

impl Phase {
    pub(crate) fn of(outcome: &Outcome) -> Self {
        let seconds = outcome.elapsed.as_secs_f64().max(1e-9);
        Self {
            offered_per_s: outcome.offered,
            puts_per_s: outcome.rate(),
            commits_per_s: outcome.commits_per_s(),
            puts_per_commit: outcome.puts_per_commit(),
            written_bytes_per_s: outcome.written_bytes as f64 / seconds,
            busy: outcome.busy,
            took_s: seconds,
            put: outcome.puts.summary(),
            commit: outcome.commits.summary(),
            lag_p99_ns: outcome.lag.percentile(99.0).as_nanos() as u64,
        }
    }
}

/// Rates, one after the other, up to the knee.
#[derive(Clone, Default, Serialize)]
pub(crate) struct Sweep {
    /// In the order of their rates.
    pub(crate) steps: Vec<SweepStep>,
    /// The highest rate that was held within the limit on p99.
    pub(crate) knee_per_s: Option<f64>,
    pub(crate) limit: SweepLimit,
}

#[derive(Clone, Serialize)]
pub(crate) struct SweepStep {
    pub(crate) held: bool,
    #[serde(flatten)]
    pub(crate) phase: Phase,
}

/// What was beyond the knee.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SweepLimit {
    /// It did not get that far.
    #[default]
    Unknown,
    /// Puts came faster than they became durable.
    Rate,
    /// p99 passed the limit.
    Latency,
    /// It was not driven further than a server here could ever need.
    BeyondServer,
    /// The load itself came too late.
    Load,
}

/// The log beside a tree that is written and copied.
#[derive(Clone, Serialize)]
pub(crate) struct Mixed {
    #[serde(flatten)]
    pub(crate) phase: Phase,
    #[serde(flatten)]
    pub(crate) beside: BesideDone,
}

/// A long run at one rate.
#[derive(Clone, Serialize)]
pub(crate) struct Sustained {
    #[serde(flatten)]
    pub(crate) phase: Phase,
    pub(crate) seconds: Vec<Second>,
    pub(crate) early: Stretch,
    pub(crate) late: Stretch,
    /// Whether it became slower for good.
    pub(crate) throttled: bool,
    /// From this second on.
    pub(crate) slower_from_s: Option<usize>,
}

/// Medians over some seconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Stretch {
    pub(crate) puts_per_s: f64,
    pub(crate) p50_ns: u64,
    pub(crate) p99_ns: u64,
}

/// What a restart would read.
#[derive(Clone, Serialize)]
pub(crate) struct Recovery {
    pub(crate) log_bytes: u64,
    /// Until the log served again.
    pub(crate) open_ms: f64,
    /// Every record read and checked.
    pub(crate) read_bytes_per_s: f64,
    /// How fast that log was written, in large commits.
    pub(crate) write_bytes_per_s: f64,
}

/// How the log is best set for this disk.
#[derive(Clone, Serialize)]
pub(crate) struct Tuning {
    pub(crate) tried: Vec<Tried>,
    pub(crate) in_flight_max: usize,
    pub(crate) commit_bytes_max: usize,
}

#[derive(Clone, Copy, Serialize)]
pub(crate) struct Tried {
    pub(crate) in_flight: usize,
    pub(crate) puts_per_s: f64,
    pub(crate) p99_ns: u64,
}

/// Times without progress, in all loads that the disk should bear.
#[derive(Clone, Default, Serialize)]
pub(crate) struct Stalls {
    pub(crate) watched_s: f64,
    pub(crate) longest_ms: f64,
    pub(crate) over_heartbeat: usize,
    pub(crate) over_election: usize,
    pub(crate) list: Vec<Stall>,
}

impl Stalls {
    /// The longest time without progress is no shorter than what a commit took.
    pub(crate) fn add(&mut self, outcome: &Outcome) {
        self.watched_s += outcome.elapsed.as_secs_f64();
        let longest = outcome.commits.percentile(100.0).as_secs_f64() * 1e3;
        self.longest_ms = self.longest_ms.max(longest);
        let election = ELECTION.as_secs_f64() * 1e3;
        self.over_heartbeat += outcome.stalls.len();
        let over = outcome.stalls.iter().filter(|stall| stall.ms > election);
        self.over_election += over.count();
        self.list.extend(&outcome.stalls);
    }

    pub(crate) fn per_minute(&self) -> f64 {
        self.over_heartbeat as f64 / (self.watched_s / 60.0).max(1.0)
    }
}

impl Sustained {
    pub(crate) fn of(outcome: &Outcome) -> Self {
        // The first second starts with nothing, the last one is not whole.
        let whole = outcome.seconds.len().saturating_sub(1);
        let seconds = outcome.seconds.get(1..whole).unwrap_or_default();
        let third = (seconds.len() / 3).max(1);
        let early = Stretch::of(seconds.get(..third).unwrap_or_default());
        let late = Stretch::of(&seconds[seconds.len().saturating_sub(third)..]);
        let is_slow = |second: &Stretch| {
            second.puts_per_s < 0.85 * early.puts_per_s
                || second.p50_ns > 3 * early.p50_ns.max(100_000)
        };
        let throttled = seconds.len() >= 6 && is_slow(&late);
        let alone = |second: &Second| Stretch::of(std::slice::from_ref(second));
        let slower_from_s = throttled
            .then(|| {
                let last_well = seconds.iter().rposition(|second| !is_slow(&alone(second)));
                last_well.map(|at| at + 2)
            })
            .flatten();
        Self {
            phase: Phase::of(outcome),
            seconds: outcome.seconds.clone(),
            early,
            late,
            throttled,
            slower_from_s,
        }
    }
}

impl Stretch {
    fn of(seconds: &[Second]) -> Self {
        let middle = |value: fn(&Second) -> u64| {
            let mut values: Vec<_> = seconds.iter().map(value).collect();
            values.sort_unstable();
            values.get(values.len() / 2).copied().unwrap_or_default()
        };
        Self {
            puts_per_s: middle(|second| second.puts) as f64,
            p50_ns: middle(|second| second.p50_ns),
            p99_ns: middle(|second| second.p99_ns),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(rates: &[u64]) -> Outcome {
        let second = |puts: &u64| Second {
            puts: *puts,
            p50_ns: 200_000,
            p99_ns: 900_000,
            max_ns: 1_000_000,
        };
        Outcome {
            seconds: rates.iter().map(second).collect(),
            elapsed: std::time::Duration::from_secs(rates.len() as u64),
            ..Outcome::default()
        }
    }

    #[test]
    fn credits_that_run_out_are_seen() {
        let mut rates = vec![5000; 12];
        rates.extend([800; 12]);
        let run = Sustained::of(&seconds(&rates));
        assert!(run.throttled);
        assert_eq!(run.slower_from_s, Some(12));
        assert!(run.late.puts_per_s < 1000.0);
    }

    #[test]
    fn one_slow_second_is_not_throttling() {
        let mut rates = vec![5000; 24];
        rates[20] = 10;
        let run = Sustained::of(&seconds(&rates));
        assert!(!run.throttled);
        assert_eq!(run.slower_from_s, None);
    }
}
