//! Takes turns between servers, so that what else happens on the machine
//! happens to all of them.

use super::connection::Endpoint;
use super::failure::Failure;
use super::report::{Ended, Report};
use super::run::{Settings, Stop, run};
use super::workload::Workload;
use crate::lines::{Line, Target};

/// A server that is compared.
#[derive(Clone, Debug)]
pub struct Named {
    /// What it is called in the report.
    pub name: String,
    /// Where it is.
    pub endpoint: Endpoint,
}

impl std::str::FromStr for Named {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, url) = text
            .split_once('=')
            .ok_or_else(|| format!("{text} is not NAME=URL"))?;
        Ok(Self {
            name: name.to_owned(),
            endpoint: url.parse()?,
        })
    }
}

/// What was compared.
#[derive(Debug, Default)]
pub struct Comparison {
    /// Ratios of the first server to each of the others.
    pub lines: Vec<Line>,
    /// Whether it was ended early.
    pub interrupted: bool,
    /// Requests that failed, by server, workload and kind.
    pub errors: Vec<String>,
}

/// Runs each workload on each server in turn, so many rounds.
pub fn compare(
    servers: &[Named],
    workloads: &[Workload],
    rounds: usize,
    settings: &Settings,
    stop: &Stop,
    mut told: impl FnMut(&str, &Report),
) -> Result<Comparison, Failure> {
    let mut comparison = Comparison::default();
    for &workload in workloads {
        let mut all: Vec<Vec<Report>> = vec![Vec::new(); servers.len()];
        for round in 0..rounds {
            for turn in 0..servers.len() {
                // Whoever was last is first in the next round.
                let at = match round % 2 {
                    0 => turn,
                    _ => servers.len() - 1 - turn,
                };
                let server = &servers[at];
                let settings = Settings {
                    endpoints: vec![server.endpoint.clone()],
                    ..settings.clone()
                };
                let report = run(&settings, workload, stop)?;
                told(&server.name, &report);
                if report.ended != Ended::Done {
                    comparison.interrupted = true;
                    comparison.errors.extend(
                        (report.ended == Ended::Stalled)
                            .then(|| format!("{} {}: stalled", server.name, workload.name())),
                    );
                    break;
                }
                for (kind, count) in &report.errors {
                    let (name, workload) = (&server.name, workload.name());
                    comparison
                        .errors
                        .push(format!("{name} {workload}: {count} x {kind}"));
                }
                all[at].push(report);
            }
            if comparison.interrupted {
                break;
            }
        }
        comparison.lines.extend(lines(workload, servers, &all));
        if comparison.interrupted {
            break;
        }
    }
    Ok(comparison)
}

/// A figure of a report that is compared.
type Figure = (&'static str, &'static str, fn(&Report) -> f64);

const FIGURES: [Figure; 3] = [
    ("rate", "/s", |report| report.rate),
    ("p50", "ms", |report| report.latency_ms.p50),
    ("p99", "ms", |report| report.latency_ms.p99),
];

const EVENT_FIGURES: [Figure; 2] = [
    ("events", "/s", |report| {
        report.events.map_or(f64::NAN, |events| events.rate)
    }),
    ("events-p99", "ms", |report| {
        report
            .events
            .map_or(f64::NAN, |events| events.latency_ms.p99)
    }),
];

/// Only whole rounds are compared.
fn lines(workload: Workload, servers: &[Named], all: &[Vec<Report>]) -> Vec<Line> {
    let mut figures = FIGURES.to_vec();
    if workload == Workload::Watch {
        figures.extend(EVENT_FIGURES);
    }
    let mut lines = Vec::new();
    for (other, reports) in servers.iter().zip(all).skip(1) {
        for (name, unit, figure) in &figures {
            let ours = &servers[0].name;
            let mut line = Line::new(
                format!("{}-{name}", workload.name()),
                format!("{ours} to {}", other.name),
                unit,
                Target::None,
            );
            for (ours, theirs) in all[0].iter().zip(reports) {
                line.round(figure(ours), figure(theirs));
            }
            if !line.rounds.is_empty() {
                lines.push(line);
            }
        }
    }
    lines
}
