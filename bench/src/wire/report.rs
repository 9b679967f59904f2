//! What a load has measured, and how it is told.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use super::failure::Failure;
use super::workload::Outcome;

/// Times are told apart up to this, and to three digits.
const NANOS_MAX: u64 = 600_000_000_000;
/// More kinds of errors than this are not told apart.
const KINDS_MAX: usize = 40;

/// What is counted while a load runs.
pub struct Tally {
    latency: Histogram<u64>,
    event_latency: Histogram<u64>,
    conflicts: u64,
    events: u64,
    errors: BTreeMap<String, u64>,
}

impl Default for Tally {
    fn default() -> Self {
        let times =
            || Histogram::new_with_bounds(1, NANOS_MAX, 3).expect("these bounds are in order");
        Self {
            latency: times(),
            event_latency: times(),
            conflicts: 0,
            events: 0,
            errors: BTreeMap::new(),
        }
    }
}

impl Tally {
    /// A request was answered.
    pub fn answered(&mut self, outcome: Outcome, took: Duration) {
        self.latency.saturating_record(nanos(took));
        if outcome == Outcome::Conflict {
            self.conflicts += 1;
        }
    }

    /// A request or a watcher failed.
    pub fn failed(&mut self, failure: &Failure) {
        self.add_error(failure.to_string(), 1);
    }

    /// Events came. The first of them took so long, if that is known.
    pub fn events(&mut self, count: u64, first_took: Option<Duration>) {
        self.events += count;
        if let Some(took) = first_took {
            self.event_latency.saturating_record(nanos(took));
        }
    }

    /// Counts an error; with too many kinds, among the others.
    pub fn add_error(&mut self, kind: String, count: u64) {
        let known = self.errors.contains_key(&kind) || self.errors.len() < KINDS_MAX;
        let kind = if known { kind } else { "others".to_owned() };
        *self.errors.entry(kind).or_default() += count;
    }

    /// Adds what another one has counted.
    pub fn add(&mut self, other: &Self) {
        let same = "all have the same bounds";
        self.latency.add(&other.latency).expect(same);
        self.event_latency.add(&other.event_latency).expect(same);
        self.conflicts += other.conflicts;
        self.events += other.events;
        for (kind, count) in &other.errors {
            self.add_error(kind.clone(), *count);
        }
    }

    /// Everything that has happened, good or bad.
    #[must_use]
    pub fn activity(&self) -> u64 {
        self.latency.len() + self.events + self.errors.values().sum::<u64>()
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// How a load ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Ended {
    /// As it should.
    Done,
    /// Somebody pressed Ctrl-C.
    Interrupted,
    /// Nothing was answered any more.
    Stalled,
}

/// Milliseconds that a share of the requests didn't exceed.
#[derive(Clone, Copy, Debug, Serialize)]
#[allow(missing_docs)]
pub struct Latency {
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub p99_9: f64,
    pub max: f64,
    pub mean: f64,
}

impl Latency {
    fn of(times: &Histogram<u64>) -> Self {
        let at = |share| times.value_at_quantile(share) as f64 / 1e6;
        Self {
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p99_9: at(0.999),
            max: times.max() as f64 / 1e6,
            mean: times.mean() / 1e6,
        }
    }

    fn text(&self) -> String {
        let Self { p50, p90, p99, .. } = self;
        let (p99_9, max) = (self.p99_9, self.max);
        format!("p50 {p50:.3} ms, p90 {p90:.3}, p99 {p99:.3}, p99.9 {p99_9:.3}, max {max:.3}")
    }
}

/// What the load itself cost.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Cost {
    /// Processor time of this process, in all.
    pub cpu_seconds: f64,
    /// Of it, for each request that was answered or failed.
    pub cpu_micros_per_request: f64,
    /// Its share of the machine, 0 to 1.
    pub machine_share: f64,
    /// Its share of the threads that it was given, 0 to 1.
    pub threads_share: f64,
    /// The share of the machine that everybody else had, servers too.
    pub others_share: f64,
}

/// What watchers saw.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Events {
    /// All watchers together.
    pub count: u64,
    /// Per second.
    pub rate: f64,
    /// From when a put was sent until a watcher had its event.
    pub latency_ms: Latency,
}

/// A load, told.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// What was asked.
    pub workload: &'static str,
    /// Whom.
    pub endpoints: Vec<String>,
    /// By how many.
    pub clients: usize,
    /// On how many connections.
    pub connections: usize,
    /// How it ended.
    pub ended: Ended,
    /// How long was measured.
    pub seconds: f64,
    /// Answered in that time.
    pub requests: u64,
    /// Per second.
    pub rate: f64,
    /// Of those.
    pub latency_ms: Latency,
    /// Of those: compared with what was no longer true.
    pub conflicts: u64,
    /// Failures by what they say.
    pub errors: BTreeMap<String, u64>,
    /// If there were watchers.
    pub events: Option<Events>,
    /// What the load itself cost.
    pub generator: Cost,
}

impl Report {
    /// Of what was counted.
    #[must_use]
    pub fn of(tally: &Tally, elapsed: Duration, watchers: usize, shape: Shape, cost: Cost) -> Self {
        let seconds = elapsed.as_secs_f64();
        let per_second = |count: u64| match seconds > 0.0 {
            true => count as f64 / seconds,
            false => 0.0,
        };
        let events = (watchers > 0).then(|| Events {
            count: tally.events,
            rate: per_second(tally.events),
            latency_ms: Latency::of(&tally.event_latency),
        });
        let requests = tally.latency.len();
        let asked = requests + tally.errors.values().sum::<u64>();
        Self {
            workload: shape.workload,
            endpoints: shape.endpoints,
            clients: shape.clients,
            connections: shape.connections,
            ended: shape.ended,
            seconds,
            requests,
            rate: per_second(requests),
            latency_ms: Latency::of(&tally.latency),
            conflicts: tally.conflicts,
            errors: tally.errors.clone(),
            events,
            generator: Cost {
                cpu_micros_per_request: cost.cpu_seconds * 1e6 / asked.max(1) as f64,
                ..cost
            },
        }
    }

    /// For programs: one JSON object.
    #[must_use]
    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("a report has nothing that JSON hasn't")
    }

    /// For people.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        let mut line = |name: &str, rest: String| {
            writeln!(text, "{name:<10} {rest}").expect("strings take all");
        };
        let how = match self.ended {
            Ended::Done => "",
            Ended::Interrupted => ", INTERRUPTED",
            Ended::Stalled => ", STALLED: nothing was answered any more",
        };
        line(
            self.workload,
            format!(
                "{} by {} clients on {} connections, {:.2} s{how}",
                self.endpoints.join(" "),
                self.clients,
                self.connections,
                self.seconds
            ),
        );
        line(
            "rate",
            format!("{:.0} /s ({} answers)", self.rate, self.requests),
        );
        line("latency", self.latency_ms.text());
        if let Some(events) = &self.events {
            line(
                "events",
                format!("{:.0} /s ({})", events.rate, events.count),
            );
            line("seen after", events.latency_ms.text());
        }
        if self.conflicts > 0 {
            line("conflicts", self.conflicts.to_string());
        }
        if self.errors.is_empty() {
            line("errors", "none".to_owned());
        }
        for (kind, count) in &self.errors {
            line("errors", format!("{count} x {kind}"));
        }
        let cost = &self.generator;
        line(
            "this load",
            format!(
                "{:.2} µs of processor per request, {:.1} % of the machine, {:.0} % of its threads; others had {:.0} % of the machine",
                cost.cpu_micros_per_request,
                cost.machine_share * 100.0,
                cost.threads_share * 100.0,
                cost.others_share * 100.0
            ),
        );
        if cost.threads_share > 0.9 {
            line(
                "",
                "its threads were busy, so this may be its own speed: give it more (--threads)"
                    .to_owned(),
            );
        }
        text
    }
}

/// What is known of a load beside what it counted.
pub struct Shape {
    /// See [`Report`].
    pub workload: &'static str,
    /// See [`Report`].
    pub endpoints: Vec<String>,
    /// See [`Report`].
    pub clients: usize,
    /// See [`Report`].
    pub connections: usize,
    /// See [`Report`].
    pub ended: Ended,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_tells_what_was_counted() {
        let mut tally = Tally::default();
        for micros in 1..=1000 {
            tally.answered(Outcome::Read, Duration::from_micros(micros));
        }
        tally.answered(Outcome::Conflict, Duration::from_millis(50));
        let mut other = Tally::default();
        other.failed(&Failure::Answer("malformed"));
        other.failed(&Failure::Answer("malformed"));
        other.events(7, Some(Duration::from_millis(2)));
        tally.add(&other);
        assert_eq!(tally.activity(), 1001 + 7 + 2);
        let shape = Shape {
            workload: "put",
            endpoints: vec!["http://a:1".to_owned()],
            clients: 3,
            connections: 2,
            ended: Ended::Interrupted,
        };
        let cost = Cost {
            cpu_seconds: 1.003,
            cpu_micros_per_request: 0.0,
            machine_share: 0.5,
            threads_share: 0.95,
            others_share: 0.25,
        };
        let report = Report::of(&tally, Duration::from_secs(2), 1, shape, cost);
        assert_eq!(report.rate, 500.5);
        assert!((report.latency_ms.p50 - 0.501).abs() < 0.001);
        assert!((report.latency_ms.max - 50.0).abs() < 0.1);
        assert!((report.generator.cpu_micros_per_request - 1000.0).abs() < 1e-6);
        assert_eq!(report.conflicts, 1);
        let text = report.text();
        for part in [
            "INTERRUPTED",
            "2 x wrong answer: malformed",
            "4 /s (7)",
            "500 /s (1001 answers)",
            "--threads",
        ] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
        let json: serde_json::Value = serde_json::from_str(&report.json()).unwrap();
        assert_eq!(json["errors"]["wrong answer: malformed"], 2);
        assert_eq!(json["ended"], "interrupted");
    }

    #[test]
    fn kinds_of_errors_are_bounded() {
        let mut tally = Tally::default();
        for number in 0..1000 {
            tally.add_error(format!("error {number}"), 1);
        }
        assert_eq!(tally.errors.len(), KINDS_MAX + 1);
        assert_eq!(tally.activity(), 1000);
    }
}
