//! How many nodes a store can carry: more and more are tried until it can't.
//!
//! Kept true: a number counts as carried only if it was run, with every
//! request sent and answered and writes within the limit.

use std::sync::Arc;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use super::super::failure::Failure;
use super::super::report::{Ended, Report};
use super::super::run::{Now, Settings, Stop, run};
use super::super::tally::times;
use super::super::workload::Workload;
use super::{Cluster, class};

/// Clients of a cluster, beside the one that lists.
const CLIENTS_MAX: u64 = 512;
/// The last step is not finer than this share.
const FINE: f64 = 1.15;

/// A search for the knee.
#[derive(Clone, Copy, Debug)]
pub struct Ramp {
    /// Where it begins.
    pub nodes_min: u64,
    /// Where it ends, if everything is carried.
    pub nodes_max: u64,
    /// What the p99 of writes may be.
    pub p99_max: Duration,
}

/// One number of nodes that was tried.
#[derive(Clone, Debug, Serialize)]
pub struct Step {
    /// How many.
    pub nodes: u64,
    /// Why they are not carried.
    pub refused: Option<String>,
    /// The p99 of writes.
    pub write_p99_ms: f64,
    /// What was measured.
    pub report: Report,
}

impl Ramp {
    /// Doubles the nodes until they are not carried, then looks closer. What
    /// ends it early leaves the steps before it.
    pub fn run(
        &self,
        settings: &Settings,
        cluster: &Cluster,
        stop: &Stop,
        told: &mut dyn FnMut(u64, Now),
        stepped: &mut dyn FnMut(&Step),
    ) -> (Vec<Step>, Option<Failure>) {
        let mut steps: Vec<Step> = Vec::new();
        while let Some(nodes) = self.next(&steps) {
            let settings = with_cluster(settings, cluster.with_nodes(nodes));
            let done = run(&settings, Workload::K8s, stop, &mut |now| told(nodes, now));
            let report = match done {
                Ok(report) if report.ended == Ended::Interrupted => {
                    return (steps, Some(Failure::Interrupted));
                }
                Ok(report) => report,
                Err(failure) => return (steps, Some(failure)),
            };
            let step = self.judge(nodes, report);
            stepped(&step);
            steps.push(step);
        }
        (steps, None)
    }

    /// Judges what was measured with so many nodes.
    #[must_use]
    pub fn judge(&self, nodes: u64, report: Report) -> Step {
        let write_p99_ms = write_latency(&report).value_at_quantile(0.99) as f64 / 1e6;
        let limit_ms = self.p99_max.as_secs_f64() * 1e3;
        let refused = match (&report.open, report.ended) {
            (_, Ended::Stalled) => Some("nothing was answered any more".to_owned()),
            _ if !report.errors.is_empty() => {
                let errors: u64 = report.errors.values().sum();
                Some(format!("{errors} requests failed"))
            }
            (Some(open), _) if !open.held => Some(format!(
                "{:.0} /s were due, {:.0} /s answered",
                open.rate, report.rate
            )),
            _ if write_p99_ms > limit_ms => Some(format!(
                "the p99 of writes was {write_p99_ms:.1} ms, above {limit_ms:.0} ms"
            )),
            _ => None,
        };
        Step {
            nodes,
            refused,
            write_p99_ms,
            report,
        }
    }

    /// The most that was carried, and the least that was not.
    #[must_use]
    pub fn knee(steps: &[Step]) -> (Option<u64>, Option<u64>) {
        let refused = steps.iter().filter(|step| step.refused.is_some());
        let least = refused.map(|step| step.nodes).min();
        let carried = steps.iter().filter(|step| step.refused.is_none());
        (carried.map(|step| step.nodes).max(), least)
    }

    /// What to try next; none if the knee is found.
    fn next(&self, steps: &[Step]) -> Option<u64> {
        match Self::knee(steps) {
            (None, None) => Some(self.nodes_min),
            (Some(most), None) if most >= self.nodes_max => None,
            (Some(most), None) => Some((most * 2).min(self.nodes_max)),
            (None, Some(least)) => (least > 1).then(|| (least / 4).max(1)),
            (Some(most), Some(least)) => {
                let is_fine = least as f64 <= most as f64 * FINE || least - most <= 1;
                (!is_fine && least > most).then(|| most.midpoint(least))
            }
        }
    }
}

/// The settings with a cluster, and as many clients as it needs.
pub fn with_cluster(settings: &Settings, cluster: Cluster) -> Settings {
    Settings {
        clients: cluster.nodes.min(CLIENTS_MAX) as usize + 1,
        cluster: Some(Arc::new(cluster)),
        ..settings.clone()
    }
}

/// How long the writes of a control plane took.
#[must_use]
pub fn write_latency(report: &Report) -> Histogram<u64> {
    let mut all = times(3);
    for (at, class) in report.classes.iter().enumerate() {
        if class::WRITES.contains(&at) {
            all.add(&class.latency).expect("all have the same bounds");
        }
    }
    all
}
