//! Whether a store holds a rate of durable writes.
//!
//! Kept true: "held" is said only of a rate that was asked for in an open loop
//! and answered in full; "not held" is not said when the load itself was what
//! couldn't.

use std::fmt::Write;
use std::time::Duration;

use serde::Serialize;

use super::report::{Ended, Report};

/// A rate, as people write it: `10k`, `2.5k`, `1M` or `12000`.
pub fn rate(text: &str) -> Result<f64, String> {
    let (digits, factor) = match text.chars().last() {
        Some('k' | 'K') => (&text[..text.len() - 1], 1e3),
        Some('m' | 'M') => (&text[..text.len() - 1], 1e6),
        _ => (text, 1.0),
    };
    match digits.parse::<f64>() {
        Ok(number) if number > 0.0 && number.is_finite() => Ok(number * factor),
        _ => Err("say it as 10k, 2.5k or 12000, above 0".to_owned()),
    }
}

/// What the verdict is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Judgement {
    /// All was answered.
    Held,
    /// The store didn't keep up.
    NotHeld,
    /// The load didn't run to its end, or didn't keep up itself.
    Unknown,
}

/// A verdict with its reasons.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    /// Writes per second.
    pub target: f64,
    /// What it is.
    pub judgement: Judgement,
    /// Why it isn't held, or not known.
    pub reasons: Vec<String>,
    /// What was measured.
    pub report: Report,
}

impl Verdict {
    /// Judges a load in an open loop. The p99 may have a limit.
    #[must_use]
    pub fn of(target: f64, p99_max: Option<Duration>, report: Report) -> Self {
        let mut reasons = Vec::new();
        let held = report.open.is_some_and(|open| open.held);
        if !held {
            reasons.push(format!(
                "{:.0} of {target:.0} writes/s were answered",
                report.rate
            ));
        }
        let errors: u64 = report.errors.values().sum();
        if errors > 0 {
            reasons.push(format!("{errors} requests failed"));
        }
        if let Some(limit) = p99_max {
            let limit_ms = limit.as_secs_f64() * 1e3;
            if report.latency_ms.p99 > limit_ms {
                let p99 = report.latency_ms.p99;
                reasons.push(format!("p99 was {p99:.1} ms, above {limit_ms:.0} ms"));
            }
        }
        let mut judgement = match (report.ended, reasons.is_empty()) {
            (Ended::Stalled, _) => Judgement::NotHeld,
            (Ended::Interrupted, _) => Judgement::Unknown,
            (Ended::Done, true) => Judgement::Held,
            (Ended::Done, false) => Judgement::NotHeld,
        };
        if report.ended == Ended::Interrupted {
            reasons.push("it was interrupted".to_owned());
        }
        if judgement == Judgement::NotHeld && !held && report.generator.is_bottleneck {
            judgement = Judgement::Unknown;
            reasons.push("the load itself was the bottleneck: give it more --threads".to_owned());
        }
        Self {
            target,
            judgement,
            reasons,
            report,
        }
    }

    /// In a sentence.
    #[must_use]
    pub fn sentence(&self) -> String {
        let said = match self.judgement {
            Judgement::Held => "HELD",
            Judgement::NotHeld => "NOT HELD",
            Judgement::Unknown => "NOT KNOWN",
        };
        let latency = &self.report.latency_ms;
        let mut text = format!(
            "{:.0} durable writes/s: {said} (p50 {:.2} ms, p99 {:.2} ms, p99.9 {:.2} ms)",
            self.target, latency.p50, latency.p99, latency.p99_9
        );
        for (at, reason) in self.reasons.iter().enumerate() {
            let before = if at == 0 { ": " } else { "; " };
            write!(text, "{before}{reason}").expect("strings take all");
        }
        text
    }

    /// For programs: one JSON object.
    #[must_use]
    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("a verdict has nothing that JSON hasn't")
    }
}

#[cfg(test)]
mod tests {
    use super::super::cost::Cost;
    use super::super::failure::Failure;
    use super::super::report::Shape;
    use super::super::tally::Tally;
    use super::super::workload::Outcome;
    use super::*;

    fn report(answered: u64, errors: u64, ended: Ended, is_bottleneck: bool) -> Report {
        let mut tally = Tally::new(1);
        for _ in 0..answered {
            tally.answered(0, Outcome::Written(1), Duration::from_millis(2), true);
        }
        for _ in 0..errors {
            tally.failed(0, &Failure::Answer("malformed"));
        }
        let shape = Shape {
            workload: "put",
            classes: &[("put", false)],
            endpoints: Vec::new(),
            clients: 1,
            connections: 1,
            threads: 1,
            setup: String::new(),
            watchers: 0,
            deletes: 0,
            open: Some((1000.0, 0)),
            ended,
            samples: Vec::new(),
        };
        let cost = Cost {
            is_bottleneck,
            ..Cost::default()
        };
        Report::of(&tally, Duration::from_secs(1), shape, cost)
    }

    #[test]
    fn every_case_has_its_verdict() {
        use Judgement::{Held, NotHeld, Unknown};
        let ms = Duration::from_millis;
        for (answered, errors, ended, bottleneck, p99_max, judgement) in [
            (1000, 0, Ended::Done, false, None, Held),
            (1000, 0, Ended::Done, true, None, Held),
            (995, 0, Ended::Done, false, Some(ms(3)), Held),
            (995, 0, Ended::Done, false, Some(ms(1)), NotHeld),
            (900, 0, Ended::Done, false, None, NotHeld),
            (900, 0, Ended::Done, true, None, Unknown),
            (1000, 1, Ended::Done, false, None, NotHeld),
            (1000, 0, Ended::Interrupted, false, None, Unknown),
            (500, 0, Ended::Stalled, false, None, NotHeld),
        ] {
            let report = report(answered, errors, ended, bottleneck);
            let verdict = Verdict::of(1000.0, p99_max, report);
            assert_eq!(verdict.judgement, judgement, "{}", verdict.sentence());
            assert_eq!(verdict.reasons.is_empty(), judgement == Held);
        }
    }

    #[test]
    fn rates_are_read_as_people_write_them() {
        assert_eq!(rate("10k"), Ok(10_000.0));
        assert_eq!(rate("2.5K"), Ok(2500.0));
        assert_eq!(rate("1M"), Ok(1e6));
        assert_eq!(rate("12000"), Ok(12_000.0));
        for bad in ["", "k", "0", "-5", "ten", "1e999", "nan"] {
            assert!(rate(bad).is_err(), "{bad}");
        }
    }
}
