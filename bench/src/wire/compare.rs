//! Takes turns between servers, so that what else happens on the machine
//! happens to all of them.

use super::access::Access;
use super::connection::Endpoint;
use super::failure::Failure;
use super::ratio::{Better, Ratio};
use super::report::{Ended, Report};
use super::run::{Now, Settings, Stop, run};
use super::workload::Workload;

/// A server that is compared.
#[derive(Clone, Debug)]
pub struct Named {
    /// What it is called in the report.
    pub name: String,
    /// Where its members are; connections are dealt to them in turn.
    pub endpoints: Vec<Endpoint>,
}

impl Named {
    /// The same servers, entered that way.
    #[must_use]
    pub fn with(self, access: &Access) -> Self {
        let endpoints = self.endpoints.into_iter();
        Self {
            endpoints: endpoints.map(|endpoint| endpoint.with(access)).collect(),
            ..self
        }
    }
}

impl std::str::FromStr for Named {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, urls) = text
            .split_once('=')
            .ok_or_else(|| format!("{text} is not NAME=URL"))?;
        Ok(Self {
            name: name.to_owned(),
            endpoints: urls.split(',').map(str::parse).collect::<Result<_, _>>()?,
        })
    }
}

/// What was compared.
#[derive(Debug, Default)]
pub struct Comparison {
    /// Ratios of the first server to each of the others.
    pub ratios: Vec<Ratio>,
    /// What was measured: workload by workload, server by server.
    pub reports: Vec<Vec<Vec<Report>>>,
    /// Requests that failed, by server, workload and kind.
    pub errors: Vec<String>,
    /// What ended it early.
    pub ended_by: Option<Failure>,
}

/// Runs each workload on each server in turn, so many rounds. What ends it
/// early leaves the rounds before it.
pub fn compare(
    servers: &[Named],
    workloads: &[Workload],
    rounds: usize,
    settings: &Settings,
    stop: &Stop,
    on_look: &mut dyn FnMut(&str, Workload, Now),
    told: &mut dyn FnMut(&str, &Report),
) -> Comparison {
    let mut comparison = Comparison::default();
    for &workload in workloads {
        let mut all: Vec<Vec<Report>> = vec![Vec::new(); servers.len()];
        let turns = (0..rounds).flat_map(|round| turns(round, servers.len()));
        for at in turns {
            let settings = Settings {
                endpoints: servers[at].endpoints.clone(),
                ..settings.clone()
            };
            let name = &servers[at].name;
            let mut look = |now| on_look(name, workload, now);
            match whole_run(&settings, workload, stop, &mut look) {
                Ok(report) => {
                    told(name, &report);
                    for (kind, count) in &report.errors {
                        let error = format!("{name} {}: {count} x {kind}", workload.name());
                        comparison.errors.push(error);
                    }
                    all[at].push(report);
                }
                Err(failure) => {
                    comparison.ended_by = Some(failure);
                    break;
                }
            }
        }
        comparison.ratios.extend(ratios(workload, servers, &all));
        comparison.reports.push(all);
        if comparison.ended_by.is_some() {
            break;
        }
    }
    comparison
}

/// Whoever was last is first in the next round.
fn turns(round: usize, servers: usize) -> Vec<usize> {
    match round % 2 {
        0 => (0..servers).collect(),
        _ => (0..servers).rev().collect(),
    }
}

/// A run that was not ended early.
fn whole_run(
    settings: &Settings,
    workload: Workload,
    stop: &Stop,
    look: &mut dyn FnMut(Now),
) -> Result<Report, Failure> {
    let report = run(settings, workload, stop, look)?;
    match report.ended {
        Ended::Done => Ok(report),
        Ended::Interrupted => Err(Failure::Interrupted),
        Ended::Stalled => Err(Failure::Stalled),
    }
}

/// A figure of a report that is compared.
type Figure = (&'static str, &'static str, Better, fn(&Report) -> f64);

const FIGURES: [Figure; 3] = [
    ("rate", "/s", Better::Higher, |report| report.rate),
    ("p50", "ms", Better::Lower, |report| report.latency_ms.p50),
    ("p99", "ms", Better::Lower, |report| report.latency_ms.p99),
];

const EVENT_FIGURES: [Figure; 2] = [
    ("events", "/s", Better::Higher, |report| {
        let events = report.events.as_ref();
        events.map_or(f64::NAN, |events| events.rate)
    }),
    ("events-p99", "ms", Better::Lower, |report| {
        let events = report.events.as_ref();
        events.map_or(f64::NAN, |events| events.latency_ms.p99)
    }),
];

/// Only whole rounds are compared.
fn ratios(workload: Workload, servers: &[Named], all: &[Vec<Report>]) -> Vec<Ratio> {
    let mut figures = FIGURES.to_vec();
    if workload == Workload::Watch {
        figures.extend(EVENT_FIGURES);
    }
    let mut ratios = Vec::new();
    for (other, reports) in servers.iter().zip(all).skip(1) {
        for (name, unit, better, figure) in &figures {
            let pairs = all[0].iter().zip(reports);
            let rounds: Vec<_> = pairs
                .map(|(ours, theirs)| (figure(ours), figure(theirs)))
                .collect();
            if !rounds.is_empty() {
                let name = format!("{}-{name}", workload.name());
                let names = [servers[0].name.as_str(), &other.name];
                ratios.push(Ratio::of(name, names, unit, *better, rounds));
            }
        }
    }
    ratios
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_has_a_turn_in_each_round_and_nobody_is_always_first() {
        assert_eq!(turns(0, 3), [0, 1, 2]);
        assert_eq!(turns(1, 3), [2, 1, 0]);
        assert_eq!(turns(2, 3), [0, 1, 2]);
    }

    #[test]
    fn servers_have_names() {
        let named: Named = "etcd=http://127.0.0.1:2379,http://[::1]:1".parse().unwrap();
        assert_eq!(named.name, "etcd");
        let endpoints: Vec<_> = named.endpoints.iter().map(ToString::to_string).collect();
        assert_eq!(endpoints, ["http://127.0.0.1:2379", "http://[::1]:1"]);
        assert!("http://127.0.0.1:2379".parse::<Named>().is_err());
        assert!("a=nothing".parse::<Named>().is_err());
    }
}
