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
        while let Some(nodes) = self.next(Self::knee(&steps)) {
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

    /// What to try next, after the most that was carried and the least that
    /// was not; none if that is fine enough.
    fn next(&self, knee: (Option<u64>, Option<u64>)) -> Option<u64> {
        match knee {
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

#[cfg(test)]
mod tests {
    use super::super::super::cost::Cost;
    use super::super::super::report::Shape;
    use super::super::super::tally::Tally;
    use super::super::super::workload::Outcome;
    use super::super::CLASSES;
    use super::*;

    /// What was measured in a second in which so many were due: renewals that
    /// took so long, and failures.
    fn report(ended: Ended, due: u32, took: &[Duration], failures: u64) -> Report {
        let mut tally = Tally::new(CLASSES.len());
        for took in took {
            tally.answered(class::RENEWAL, Outcome::Written(1), *took, true);
        }
        // What nobody writes is not judged.
        let slow = Duration::from_secs(9);
        tally.answered(class::PAGE, Outcome::Read, slow, true);
        if failures > 0 {
            tally.add_error("Unavailable".to_owned(), failures);
        }
        let shape = Shape {
            workload: "k8s",
            classes: &CLASSES,
            endpoints: Vec::new(),
            clients: 1,
            connections: 1,
            threads: 1,
            setup: String::new(),
            watchers: 0,
            deletes: 0,
            open: Some((f64::from(due), 0)),
            ended,
            samples: Vec::new(),
        };
        Report::of(&tally, Duration::from_secs(1), shape, Cost::default())
    }

    const fn ramp(nodes_min: u64, nodes_max: u64) -> Ramp {
        Ramp {
            nodes_min,
            nodes_max,
            p99_max: Duration::from_millis(100),
        }
    }

    /// Searches a store that carries so many nodes: how many were tried, and
    /// the knee.
    fn search(ramp: &Ramp, capacity: u64) -> (usize, (Option<u64>, Option<u64>)) {
        let (mut tried, mut most, mut least) = (Vec::new(), None, None);
        while let Some(nodes) = ramp.next((most, least)) {
            assert!((1..=ramp.nodes_max).contains(&nodes));
            assert!(!tried.contains(&nodes), "{nodes} nodes are tried again");
            tried.push(nodes);
            match nodes <= capacity {
                true => most = most.max(Some(nodes)),
                false => least = Some(least.map_or(nodes, |least: u64| least.min(nodes))),
            }
        }
        (tried.len(), (most, least))
    }

    #[test]
    fn the_knee_is_found_wherever_it_is() {
        for (nodes_min, nodes_max) in [(100, 10_000), (1, 10_000), (7, 7), (5000, 999_999)] {
            let ramp = ramp(nodes_min, nodes_max);
            for capacity in (0..300).chain([999, 5000, 9999, 10_000, 77_777]) {
                let (tried, knee) = search(&ramp, capacity);
                let about = format!("{capacity} of {nodes_min} to {nodes_max}: {knee:?}");
                match knee {
                    (None, Some(1)) => assert_eq!(capacity, 0, "{about}"),
                    (Some(most), None) => {
                        assert!(most == nodes_max && capacity >= nodes_max, "{about}");
                    }
                    (Some(most), Some(least)) => {
                        assert!(most <= capacity && capacity < least, "{about}");
                        let is_fine = least as f64 <= most as f64 * FINE;
                        assert!(is_fine || least == most + 1, "{about}");
                    }
                    _ => panic!("{about}"),
                }
                assert!(tried <= 25, "{about} took {tried} steps");
            }
        }
    }

    #[test]
    fn steps_make_the_knee() {
        let ramp = ramp(30, 100);
        assert_eq!(Ramp::knee(&[]), (None, None));
        assert_eq!(ramp.next((None, None)), Some(30));
        let step = |(nodes, failures)| ramp.judge(nodes, report(Ended::Done, 0, &[], failures));
        let steps = [(30, 0), (60, 0), (100, 1), (80, 2)].map(step);
        assert_eq!(Ramp::knee(&steps), (Some(60), Some(80)));
        assert_eq!(Ramp::knee(&steps[2..]), (None, Some(80)));
    }

    #[test]
    fn every_refusal_says_why() {
        let ms = Duration::from_millis;
        let judged = |report| ramp(1, 1).judge(1, report).refused;
        let soon = [ms(5); 200];
        assert_eq!(judged(report(Ended::Done, 200, &soon, 0)), None);
        let refused = |report, text: &str| {
            let why = judged(report).expect("it is refused");
            assert!(why.contains(text), "{text:?} is not in {why:?}");
        };
        refused(
            report(Ended::Stalled, 200, &soon, 3),
            "nothing was answered any more",
        );
        refused(report(Ended::Done, 900, &soon, 3), "3 requests failed");
        refused(
            report(Ended::Done, 900, &[ms(500); 200], 0),
            "900 /s were due, 201 /s answered",
        );
        refused(
            report(Ended::Done, 200, &[ms(500); 200], 0),
            "ms, above 100 ms",
        );
        let mut some = [ms(5); 200];
        some[0] = ms(500);
        assert_eq!(judged(report(Ended::Done, 200, &some, 0)), None);
    }
}
