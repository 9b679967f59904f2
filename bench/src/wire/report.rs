//! What a load has measured, and how it is told.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use super::cost::Cost;
use super::tally::{Recent, Tally, times};

/// A rate counts as held from this share of what was asked for on.
pub const HELD: f64 = 0.99;
/// So many may be under way at the end of one that is held.
const UNDER_WAY: f64 = 5.0;

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
    pub p99_99: f64,
    pub max: f64,
    pub mean: f64,
}

impl Latency {
    /// Of some times.
    #[must_use]
    pub fn of(times: &Histogram<u64>) -> Self {
        let at = |share| times.value_at_quantile(share) as f64 / 1e6;
        Self {
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p99_9: at(0.999),
            p99_99: at(0.9999),
            max: times.max() as f64 / 1e6,
            mean: times.mean() / 1e6,
        }
    }

    fn text(&self) -> String {
        let Self { p50, p90, p99, .. } = self;
        let (p99_9, p99_99, max) = (self.p99_9, self.p99_99, self.max);
        format!(
            "p50 {p50:.3} ms, p90 {p90:.3}, p99 {p99:.3}, p99.9 {p99_9:.3}, p99.99 {p99_99:.3}, max {max:.3}"
        )
    }
}

/// What watchers saw.
#[derive(Clone, Debug, Serialize)]
pub struct Events {
    /// All watchers together.
    pub count: u64,
    /// Of keys that were deleted, or whose lease has expired; before and after
    /// it was measured, too.
    pub deletes: u64,
    /// Per second.
    pub rate: f64,
    /// From when a put was acknowledged until a watcher had its event; 0 if the
    /// event was first. Of the first event of each message.
    pub after_ack_ms: Latency,
    /// From when a put was sent until then.
    pub latency_ms: Latency,
    /// Leases that nobody kept alive and that were seen to expire, whenever
    /// that was.
    pub expired: u64,
    /// From when they were due, counted from when the last sign of life was
    /// sent, until a watcher saw their keys go.
    pub expired_late_ms: Option<Latency>,
    /// The times themselves.
    #[serde(skip)]
    pub after_ack: Histogram<u64>,
    /// The times themselves.
    #[serde(skip)]
    pub expired_late: Histogram<u64>,
}

/// What was measured in a stretch of the load.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Sample {
    /// The end of it, in seconds since it was measured.
    pub at: f64,
    /// Answered per second.
    pub rate: f64,
    /// Of those.
    pub p50_ms: f64,
    /// Of those.
    pub p99_ms: f64,
    /// Of those.
    pub max_ms: f64,
    /// Requests that failed.
    pub errors: u64,
    /// Events per second.
    pub events: f64,
}

impl Sample {
    /// Of what was counted in so many seconds.
    #[must_use]
    pub fn of(recent: &Recent, at: f64, seconds: f64) -> Self {
        let ms = |share| recent.latency.value_at_quantile(share) as f64 / 1e6;
        Self {
            at,
            rate: recent.latency.len() as f64 / seconds,
            p50_ms: ms(0.5),
            p99_ms: ms(0.99),
            max_ms: recent.latency.max() as f64 / 1e6,
            errors: recent.errors,
            events: recent.events as f64 / seconds,
        }
    }
}

/// One kind of request among several.
#[derive(Clone, Debug, Serialize)]
pub struct Class {
    /// What was asked.
    pub name: &'static str,
    /// Answered.
    pub requests: u64,
    /// Per second.
    pub rate: f64,
    /// Of those.
    pub latency_ms: Latency,
    /// Failed.
    pub failures: u64,
    /// Beside the load: not in its figures.
    pub is_beside: bool,
    /// The times themselves.
    #[serde(skip)]
    pub latency: Histogram<u64>,
}

/// An open loop.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Open {
    /// Asked for, per second.
    pub rate: f64,
    /// Whether that many were answered.
    pub held: bool,
    /// Nobody was free for them when they were due: their latency has the wait.
    pub late: u64,
    /// Due, but not even sent before the end; no latency has them.
    pub unsent: u64,
    /// How late the others were sent, 99 of a hundred at most.
    pub lag_p99_ms: f64,
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
    /// By how many threads.
    pub threads: usize,
    /// Keys, values, chance.
    pub setup: String,
    /// How it ended.
    pub ended: Ended,
    /// How long was measured.
    pub seconds: f64,
    /// Answered of those that count.
    pub requests: u64,
    /// Answered per second.
    pub rate: f64,
    /// If it was asked for at a rate.
    pub open: Option<Open>,
    /// Of the requests that count; in an open loop, since they were due.
    pub latency_ms: Latency,
    /// By what was asked, if there is more than one thing.
    pub classes: Vec<Class>,
    /// Of those: compared with what was no longer true.
    pub conflicts: u64,
    /// Failures by what they say.
    pub errors: BTreeMap<String, u64>,
    /// If there were watchers.
    pub events: Option<Events>,
    /// What the load itself cost.
    pub generator: Cost,
    /// Over time.
    pub samples: Vec<Sample>,
    /// The times themselves.
    #[serde(skip)]
    pub latency: Histogram<u64>,
}

/// What is known of a load beside what it counted.
pub struct Shape {
    /// See [`Report`].
    pub workload: &'static str,
    /// Names of the kinds of requests, and whether each is beside the load.
    pub classes: &'static [(&'static str, bool)],
    /// See [`Report`].
    pub endpoints: Vec<String>,
    /// See [`Report`].
    pub clients: usize,
    /// See [`Report`].
    pub connections: usize,
    /// See [`Report`].
    pub threads: usize,
    /// See [`Report`].
    pub setup: String,
    /// How many.
    pub watchers: usize,
    /// See [`Events`].
    pub deletes: u64,
    /// What was asked for per second, and how much of it was never sent.
    pub open: Option<(f64, u64)>,
    /// See [`Report`].
    pub ended: Ended,
    /// See [`Report`].
    pub samples: Vec<Sample>,
}

impl Report {
    /// Of what was counted.
    #[must_use]
    pub fn of(tally: &Tally, elapsed: Duration, shape: Shape, cost: Cost) -> Self {
        let seconds = elapsed.as_secs_f64();
        let per_second = |count: u64| match seconds > 0.0 {
            true => count as f64 / seconds,
            false => 0.0,
        };
        let mut latency = times(3);
        let counted = shape.classes.iter().zip(&tally.classes);
        for ((_, is_beside), class) in counted.clone() {
            if !is_beside {
                latency.add(class).expect("all have the same bounds");
            }
        }
        let classes = counted
            .zip(&tally.failures)
            .map(|((class, times), failures)| {
                let (name, is_beside) = *class;
                Class {
                    name,
                    requests: times.len(),
                    rate: per_second(times.len()),
                    latency_ms: Latency::of(times),
                    failures: *failures,
                    is_beside,
                    latency: times.clone(),
                }
            });
        let classes = match shape.classes {
            [_] => Vec::new(),
            _ => classes.collect(),
        };
        let events = (shape.watchers > 0).then(|| Events {
            count: tally.events,
            deletes: shape.deletes,
            rate: per_second(tally.events),
            after_ack_ms: Latency::of(&tally.ack_to_event),
            latency_ms: Latency::of(&tally.sent_to_event),
            expired: tally.expiry.len(),
            expired_late_ms: (!tally.expiry.is_empty()).then(|| Latency::of(&tally.expiry)),
            after_ack: tally.ack_to_event.clone(),
            expired_late: tally.expiry.clone(),
        });
        let rate = per_second(tally.answered_in_time);
        let asked = tally.classes.iter().map(Histogram::len).sum::<u64>()
            + tally.errors.values().sum::<u64>();
        Self {
            workload: shape.workload,
            endpoints: shape.endpoints,
            clients: shape.clients,
            connections: shape.connections,
            threads: shape.threads,
            setup: shape.setup,
            ended: shape.ended,
            seconds,
            requests: latency.len(),
            rate,
            open: shape.open.map(|(asked, unsent)| Open {
                rate: asked,
                held: tally.answered_in_time as f64 + UNDER_WAY >= asked * seconds * HELD,
                late: tally.late,
                unsent,
                lag_p99_ms: tally.lag.value_at_quantile(0.99) as f64 / 1e6,
            }),
            latency_ms: Latency::of(&latency),
            classes,
            conflicts: tally.conflicts,
            errors: tally.errors.clone(),
            events,
            generator: cost.for_requests(asked),
            samples: shape.samples,
            latency,
        }
    }

    /// For programs: one JSON object.
    #[must_use]
    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("a report has nothing that JSON hasn't")
    }

    /// How the load was made, in a line.
    #[must_use]
    pub fn about(&self) -> String {
        let how = match self.ended {
            Ended::Done => "",
            Ended::Interrupted => ", INTERRUPTED",
            Ended::Stalled => ", STALLED: nothing was answered any more",
        };
        format!(
            "{} by {} clients on {} connections, {:.2} s{how}",
            self.endpoints.join(" "),
            self.clients,
            self.connections,
            self.seconds
        )
    }

    /// What became of the rate that was asked for.
    #[must_use]
    pub fn about_rate(&self) -> Option<String> {
        let open = self.open?;
        let held = if open.held { "held" } else { "NOT HELD" };
        Some(format!(
            "{:.0} /s asked for: {held}; nobody free for {}, never sent {}; the others were sent within {:.3} ms (p99)",
            open.rate, open.late, open.unsent, open.lag_p99_ms
        ))
    }

    /// For people.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        let mut line = |name: &str, rest: String| {
            writeln!(text, "{name:<10} {rest}").expect("strings take all");
        };
        line(self.workload, self.about());
        line(
            "rate",
            format!("{:.0} /s ({} answers)", self.rate, self.requests),
        );
        if let Some(about) = self.about_rate() {
            line("open loop", about);
        }
        line("latency", self.latency_ms.text());
        let asked = |class: &&Class| class.requests > 0 || class.failures > 0;
        for class in self.classes.iter().filter(asked) {
            let failed = match class.failures {
                0 => String::new(),
                failures => format!(", {failures} failed"),
            };
            line(
                "",
                format!(
                    "{:<18} {:>9.1} /s  p50 {:.3} ms, p99 {:.3}, p99.9 {:.3}, max {:.3}{failed}",
                    class.name,
                    class.rate,
                    class.latency_ms.p50,
                    class.latency_ms.p99,
                    class.latency_ms.p99_9,
                    class.latency_ms.max
                ),
            );
        }
        if let Some(events) = &self.events {
            let deletes = match events.deletes {
                0 => String::new(),
                deletes => format!("; {deletes} deletions in all"),
            };
            line(
                "events",
                format!("{:.0} /s ({}){deletes}", events.rate, events.count),
            );
            line("after ack", events.after_ack_ms.text());
            line("after send", events.latency_ms.text());
            if let Some(late) = &events.expired_late_ms {
                let leases = events.expired;
                line(
                    "expired",
                    format!("{leases} leases, late by {}", late.text()),
                );
            }
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
        line("this load", self.generator.text());
        text
    }
}

#[cfg(test)]
mod tests {
    use super::super::failure::Failure;
    use super::super::workload::Outcome;
    use super::*;

    fn shape(open: Option<(f64, u64)>) -> Shape {
        Shape {
            workload: "put",
            classes: &[("put", false), ("compact", true)],
            endpoints: vec!["http://a:1".to_owned()],
            clients: 5,
            connections: 2,
            threads: 1,
            setup: "some keys".to_owned(),
            watchers: 3,
            deletes: 0,
            open,
            ended: Ended::Interrupted,
            samples: Vec::new(),
        }
    }

    #[test]
    fn a_report_tells_what_was_counted() {
        let mut tally = Tally::new(2);
        for micros in 1..=1000 {
            tally.answered(0, Outcome::Read, Duration::from_micros(micros), true);
        }
        tally.answered(0, Outcome::Conflict, Duration::from_millis(50), false);
        tally.answered(1, Outcome::Read, Duration::from_secs(9), false);
        let mut other = Tally::new(2);
        other.failed(0, &Failure::Answer("malformed"));
        other.failed(0, &Failure::Answer("malformed"));
        let ms = Duration::from_millis;
        other.events(7, Some(ms(2)), Some(ms(1)));
        other.expired(ms(250));
        tally.add(&other);
        let report = Report::of(&tally, ms(2000), shape(None), Cost::default());
        assert_eq!((report.requests, report.rate), (1001, 500.0));
        assert!((report.latency_ms.p50 - 0.501).abs() < 0.002);
        assert!(
            (report.latency_ms.max - 50.0).abs() < 0.1,
            "not what is beside"
        );
        assert!((report.classes[1].latency_ms.max - 9000.0).abs() < 10.0);
        assert_eq!(report.classes[0].failures, 2);
        let text = report.text();
        for part in [
            "http://a:1 by 5 clients on 2 connections, 2.00 s, INTERRUPTED",
            "500 /s (1001 answers)",
            "2 x wrong answer: malformed",
            "events     4 /s (7)",
            "conflicts  1",
            "expired    1 leases, late by p50 250.",
            "p99.99",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        let json: serde_json::Value = serde_json::from_str(&report.json()).unwrap();
        assert_eq!(json["ended"], "interrupted");
        assert_eq!(json["errors"]["wrong answer: malformed"], 2);
        assert_eq!(json["open"], serde_json::Value::Null);
        assert_eq!(json["events"]["expired"], 1);
        let late = &json["events"]["expired_late_ms"]["max"];
        assert!((late.as_f64().unwrap() - 250.0).abs() < 1.0);
    }

    #[test]
    fn a_rate_is_held_or_not() {
        let mut tally = Tally::new(2);
        for _ in 0..990 {
            tally.sent(Some(Duration::from_micros(20)));
            tally.answered(0, Outcome::Written(1), Duration::from_micros(100), true);
        }
        tally.sent(None);
        let told = |asked| {
            let shape = shape(Some((asked, 3)));
            let report = Report::of(&tally, Duration::from_secs(1), shape, Cost::default());
            (report.open.unwrap(), report.text())
        };
        let (open, text) = told(1000.0);
        assert!(open.held && open.late == 1 && open.unsent == 3);
        assert!(
            text.contains("1000 /s asked for: held; nobody free for 1"),
            "{text}"
        );
        assert!(!told(1010.0).0.held);
        assert!(told(2000.0).1.contains("NOT HELD"));
    }
}
