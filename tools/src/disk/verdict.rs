//! From what was measured to what it means: how many nodes, what binds, what
//! to do about it.
//!
//! Kept true: the verdict hangs on nothing but the report, and what was not
//! measured is not vouched for. `docs/disks.md` has the arithmetic.

use serde::Serialize;

use crate::disk::latency::{number, time};
use crate::disk::report::{Report, SweepLimit};

/// Writes per second of one Kubernetes node in steady state: its lease every
/// 10 s (0.1), its status (0.0033), and the share of pods that come and go
/// (0.147); docs/disks.md adds them up.
pub(crate) const WRITES_PER_NODE: f64 = 0.25;
/// How much more than the steady state there must be room for: a zone that
/// restarts, a rollout of everything.
pub(crate) const HEADROOM: f64 = 4.0;
/// A disk that takes so many times what a server did is not what held it back.
const IDLE_DISK: f64 = 1.8;
/// Nobody has run more; the number is not extended beyond it.
pub(crate) const NODES_MAX: f64 = 15_000.0;
/// Where stalls are the rule rather than the exception, it is the latency that
/// is bad.
const P99_MS_STALLING: f64 = 25.0;
/// With so much of the processors used by others, commits are late for their
/// sake: up to this p99 that is no verdict on the disk.
const OTHERS_CPU_MAX: f64 = 0.5;
const P99_MS_OF_OTHERS: f64 = 50.0;
/// Stalls beyond a heartbeat that are forgiven.
const STALLS_PER_MINUTE_MAX: f64 = 1.0;

/// A size of cluster, and what it needs of a commit under mixed load.
struct Class {
    name: &'static str,
    nodes: u64,
    p99_ms_max: f64,
}

const CLASSES: [Class; 6] = [
    Class {
        name: "trying out",
        nodes: 10,
        p99_ms_max: 100.0,
    },
    Class {
        name: "small",
        nodes: 100,
        p99_ms_max: 25.0,
    },
    Class {
        name: "medium",
        nodes: 500,
        p99_ms_max: 10.0,
    },
    Class {
        name: "large",
        nodes: 1000,
        p99_ms_max: 10.0,
    },
    Class {
        name: "very large",
        nodes: 5000,
        p99_ms_max: 10.0,
    },
    Class {
        name: "beyond",
        nodes: 15_000,
        p99_ms_max: 10.0,
    },
];

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Fitness {
    Fit,
    Unfit,
    #[default]
    Unknown,
}

/// What stands in the way of more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Constraint {
    /// Not enough was measured.
    #[default]
    Unknown,
    /// A sync may not make anything durable.
    Durability,
    /// It stops for longer than a leader may be silent.
    Stalls,
    /// It is slower after a while than at first.
    Throttling,
    /// A commit takes too long.
    Latency,
    /// It takes no more puts per second.
    Rate,
    /// The server's processors, not the disk.
    Cpu,
    /// The load of this tool came too late to tell more.
    Load,
}

#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Verdict {
    pub(crate) fitness: Fitness,
    pub(crate) nodes_wanted: u64,
    /// About so many Kubernetes nodes are safe.
    pub(crate) nodes: u64,
    /// About so many writes per second a server here would do.
    pub(crate) writes_per_s: f64,
    /// What the disk alone would do.
    pub(crate) disk_writes_per_s: f64,
    /// p99 of a commit under mixed load.
    pub(crate) p99_ns: u64,
    pub(crate) constraint: Constraint,
    /// In a sentence.
    pub(crate) because: String,
    pub(crate) classes: Vec<ClassVerdict>,
    pub(crate) fixes: Vec<String>,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct ClassVerdict {
    pub(crate) name: &'static str,
    pub(crate) nodes: u64,
    pub(crate) writes_per_s_needed: f64,
    pub(crate) p99_ms_max: f64,
    pub(crate) safe: bool,
    /// What is missing.
    pub(crate) lacks: Option<String>,
}

/// Judges a report.
pub(crate) fn judge(report: &Report, nodes_wanted: u64) -> Verdict {
    let mut verdict = Verdict {
        nodes_wanted,
        ..Verdict::default()
    };
    let Some(idle) = &report.idle else {
        verdict.because = "nothing was measured".to_owned();
        return verdict;
    };
    // Without the mixed load, what there is counts, but not as a verdict.
    let p99_ns = report.mixed.as_ref().map(|mixed| mixed.phase.commit.p99_ns);
    verdict.p99_ns = p99_ns.unwrap_or(idle.commit.p99_ns);
    let knee = report.sweep.as_ref().and_then(|sweep| sweep.knee_per_s);
    let Some(knee) = knee else {
        verdict.constraint = match report.sweep {
            _ if report.stalls.over_election > 0 => Constraint::Stalls,
            Some(_) => Constraint::Latency,
            None => Constraint::Unknown,
        };
        verdict.because = match verdict.constraint {
            Constraint::Stalls => because(report, &verdict),
            Constraint::Latency => "no rate at all was held within the limit on p99".to_owned(),
            _ => "it ended before the rates were swept".to_owned(),
        };
        match (verdict.constraint, &report.ended_early) {
            (Constraint::Unknown, _) => {}
            (_, Some(_)) => verdict.constraint = Constraint::Unknown,
            (_, None) => {
                verdict.fitness = Fitness::Unfit;
                verdict.fixes = fixes(report, &verdict);
            }
        }
        return verdict;
    };
    verdict.disk_writes_per_s = match &report.sustained {
        Some(run) if run.throttled => knee.min(run.late.puts_per_s),
        _ => knee,
    };
    let server = report
        .server
        .map_or(f64::INFINITY, |server| server.puts_per_s);
    verdict.writes_per_s = verdict.disk_writes_per_s.min(server);
    let p99_ms = verdict.p99_ns as f64 / 1e6;
    let lossy = report.doubts.iter().any(|doubt| doubt.durability);
    let stalls = &report.stalls;
    let often = stalls.per_minute() > STALLS_PER_MINUTE_MAX && p99_ms <= P99_MS_STALLING;
    let stalled = stalls.over_election > 0 || often;
    let by_rate = verdict.writes_per_s / (WRITES_PER_NODE * HEADROOM);
    verdict.classes = CLASSES
        .iter()
        .map(|class| {
            let needed = class.nodes as f64 * WRITES_PER_NODE * HEADROOM;
            let lacks = if lossy {
                Some("what it acknowledges may not survive".to_owned())
            } else if stalled {
                Some(format!("it stopped for {:.0} ms", stalls.longest_ms))
            } else if p99_ms > class.p99_ms_max {
                Some(format!("p99 is {}", time(verdict.p99_ns)))
            } else if needed > verdict.writes_per_s {
                Some(format!("only {} writes/s", number(verdict.writes_per_s)))
            } else {
                None
            };
            ClassVerdict {
                name: class.name,
                nodes: class.nodes,
                writes_per_s_needed: needed,
                p99_ms_max: class.p99_ms_max,
                safe: lacks.is_none(),
                lacks,
            }
        })
        .collect();
    let by_latency = CLASSES
        .iter()
        .rev()
        .find(|class| p99_ms <= class.p99_ms_max);
    let by_latency = match by_latency {
        // The last class is for all larger ones.
        Some(class) if class.nodes == CLASSES[CLASSES.len() - 1].nodes => f64::INFINITY,
        Some(class) => class.nodes as f64,
        None => 0.0,
    };
    let nodes = if lossy || stalled {
        0.0
    } else {
        by_rate.min(by_latency)
    };
    verdict.nodes = two_digits(nodes.min(NODES_MAX));
    let throttled = report.sustained.as_ref().is_some_and(|run| run.throttled);
    let limit = report
        .sweep
        .as_ref()
        .map_or(SweepLimit::Unknown, |s| s.limit);
    verdict.constraint = if lossy {
        Constraint::Durability
    } else if stalled {
        Constraint::Stalls
    } else if by_latency < by_rate {
        Constraint::Latency
    } else if server * IDLE_DISK <= verdict.disk_writes_per_s {
        Constraint::Cpu
    } else if throttled {
        Constraint::Throttling
    } else {
        match limit {
            SweepLimit::Latency => Constraint::Latency,
            SweepLimit::Load => Constraint::Load,
            _ => Constraint::Rate,
        }
    };
    verdict.because = because(report, &verdict);
    verdict.fixes = fixes(report, &verdict);
    let late = matches!(verdict.constraint, Constraint::Latency | Constraint::Stalls);
    let by_others = late
        && report.others_cpu > OTHERS_CPU_MAX
        && stalls.over_election == 0
        && p99_ms <= P99_MS_OF_OTHERS;
    if by_others && verdict.nodes < nodes_wanted {
        verdict.because = format!(
            "{}, but others used {:.0} % of the processors, which may be why",
            verdict.because,
            report.others_cpu * 100.0
        );
        verdict.fixes = vec!["run it again on a quiet machine".to_owned()];
        return verdict;
    }
    let complete = report.mixed.is_some() && report.sustained.is_some();
    // What was not measured could only make it worse.
    let too_few = report.mixed.is_some() && verdict.nodes < nodes_wanted;
    verdict.fitness = if lossy || too_few || stalls.over_election > 0 {
        Fitness::Unfit
    } else if complete && report.ended_early.is_none() {
        Fitness::Fit
    } else {
        Fitness::Unknown
    };
    verdict
}

fn because(report: &Report, verdict: &Verdict) -> String {
    let p99 = time(verdict.p99_ns);
    match verdict.constraint {
        Constraint::Unknown => "too little was measured".to_owned(),
        Constraint::Durability => {
            let doubt = report.doubts.iter().find(|doubt| doubt.durability);
            doubt.map(|doubt| doubt.what.clone()).unwrap_or_default()
        }
        Constraint::Stalls => format!(
            "the disk stopped: {} times for more than a heartbeat (100 ms), {} of them for more \
             than an election timeout (1 s), which replaces leaders; {:.0} ms at the longest",
            report.stalls.over_heartbeat, report.stalls.over_election, report.stalls.longest_ms
        ),
        Constraint::Throttling => {
            let run = report.sustained.as_ref();
            let from = run.and_then(|run| run.slower_from_s);
            format!(
                "the disk became slower after {} s of steady writing: from {} to {} writes/s \
                 (credits, a full cache, or heat)",
                from.unwrap_or_default(),
                number(run.map_or(0.0, |run| run.early.puts_per_s)),
                number(run.map_or(0.0, |run| run.late.puts_per_s)),
            )
        }
        Constraint::Latency => {
            format!("a commit takes {p99} at p99 beside checkpoints and snapshots")
        }
        Constraint::Rate => format!(
            "the disk takes {} writes/s and no more; a server on it did {}",
            number(verdict.disk_writes_per_s),
            report
                .server
                .map_or("an unknown number".to_owned(), |s| number(s.puts_per_s)),
        ),
        Constraint::Cpu => format!(
            "the disk is not the constraint (it takes {}{} writes/s): the processors of this \
             machine are, at about {} writes/s",
            match report.sweep.as_ref().map(|sweep| sweep.limit) {
                Some(SweepLimit::BeyondServer) => "at least ",
                _ => "",
            },
            number(verdict.disk_writes_per_s),
            number(verdict.writes_per_s),
        ),
        Constraint::Load => format!(
            "this machine was too busy to make more than {} writes/s on time; the disk may take more",
            number(verdict.disk_writes_per_s)
        ),
    }
}

/// What to do, in the order of what it helps.
fn fixes(report: &Report, verdict: &Verdict) -> Vec<String> {
    let mut fixes = Vec::new();
    let machine = &report.machine;
    let device = machine.device.as_ref();
    let binds = verdict.constraint;
    let is_disk = matches!(
        binds,
        Constraint::Stalls | Constraint::Throttling | Constraint::Latency | Constraint::Rate
    );
    if binds == Constraint::Durability {
        fixes.push(match machine.filesystem.as_str() {
            "tmpfs" | "ramfs" => format!(
                "{} is memory: put the data directory on a disk",
                machine.mounted_at
            ),
            _ => "find out who answers syncs too early (a controller's cache without a battery, \
                  a hypervisor's cache=unsafe, eatmydata), then pull the plug under \
                  --powerfail-witness"
                .to_owned(),
        });
    }
    if is_disk {
        for limit in machine.limits.iter().filter(|limit| !limit.cpu) {
            fixes.push(format!(
                "raise the limit of this control group: {} says {}",
                limit.file.display(),
                limit.value
            ));
        }
        if let Some(device) = device {
            let name = &device.name;
            if device.rotational == Some(true) && device.model.is_some() {
                fixes.push(format!(
                    "{name} says that it rotates: use flash with power-loss protection"
                ));
            }
            if let Some(chosen) = device.scheduler.as_deref().filter(|s| *s == "bfq") {
                fixes.push(format!(
                    "{name} has the scheduler {chosen}: echo none > /sys/block/{name}/queue/scheduler"
                ));
            }
        }
        if report.io.contains("io_uring not available") {
            fixes.push(
                "let the server use io_uring (sysctl kernel.io_uring_disabled=0, and a seccomp \
                 profile that allows io_uring_setup, io_uring_enter and io_uring_register)"
                    .to_owned(),
            );
        }
        if report.io.contains("no O_DIRECT") {
            fixes.push(format!(
                "{} has no O_DIRECT: use ext4 or xfs",
                machine.filesystem
            ));
        }
    }
    match binds {
        Constraint::Throttling => fixes.push(
            "buy provisioned speed instead of credits (a volume type with guaranteed IOPS, or a \
             larger one), and run --soak on it"
                .to_owned(),
        ),
        Constraint::Rate => fixes.push(
            "a volume with more IOPS and bandwidth, or --wal-dir on a device of its own".to_owned(),
        ),
        Constraint::Latency => fixes.push(
            "a local NVMe disk with power-loss protection, or --wal-dir on a device that nothing \
             else writes to"
                .to_owned(),
        ),
        Constraint::Stalls => fixes.push(
            "see who else writes to this device (iostat -x 1, iotop); until then a longer \
             --heartbeat-interval and --election-timeout keep leaders in office"
                .to_owned(),
        ),
        Constraint::Cpu => fixes.push(
            "more or faster processors, if more writes are needed; another disk would not help"
                .to_owned(),
        ),
        Constraint::Load => fixes.push("run it again on a quiet machine".to_owned()),
        Constraint::Durability | Constraint::Unknown => {}
    }
    fixes
}

/// Down to two digits that count.
fn two_digits(value: f64) -> u64 {
    if value < 1.0 {
        return 0;
    }
    let unit = 10f64.powi((value.log10().floor() as i32 - 1).max(0));
    ((value / unit).floor() * unit) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::latency::Latency;
    use crate::disk::report::{Doubt, Mixed, Phase, Stretch, Sustained, Sweep};
    use crate::disk::server::Served;
    use crate::disk::tree::BesideDone;

    /// A disk that takes `knee` puts a second, each commit `p99_us` long.
    fn report(knee: f64, p99_us: u64) -> Report {
        let phase = Phase {
            puts_per_s: knee,
            commit: Latency {
                p99_ns: p99_us * 1000,
                ..Latency::default()
            },
            ..Phase::default()
        };
        let stretch = Stretch {
            puts_per_s: knee,
            ..Stretch::default()
        };
        let mut report = Report {
            idle: Some(phase.clone()),
            server: Some(Served {
                puts_per_s: 40_000.0,
                ..Served::default()
            }),
            sweep: Some(Sweep {
                knee_per_s: Some(knee),
                limit: SweepLimit::Rate,
                steps: Vec::new(),
            }),
            mixed: Some(Mixed {
                phase: phase.clone(),
                beside: BesideDone::default(),
            }),
            sustained: Some(Sustained {
                phase,
                seconds: Vec::new(),
                early: stretch,
                late: stretch,
                throttled: false,
                slower_from_s: None,
            }),
            ..Report::default()
        };
        report.stalls.watched_s = 60.0;
        report
    }

    fn judged(change: impl FnOnce(&mut Report)) -> Verdict {
        let mut report = report(200_000.0, 900);
        change(&mut report);
        judge(&report, 500)
    }

    #[test]
    fn a_fast_disk_is_not_what_binds() {
        let verdict = judged(|_| {});
        assert_eq!(verdict.fitness, Fitness::Fit);
        assert_eq!(verdict.constraint, Constraint::Cpu);
        assert!(verdict.writes_per_s < 200_000.0);
        assert!(verdict.because.contains("not the constraint"));
        assert!(verdict.classes.iter().all(|class| class.safe));
    }

    #[test]
    fn every_constraint_is_named() {
        type Change = fn(&mut Report);
        let cases: [(Constraint, Fitness, Change); 7] = [
            (Constraint::Rate, Fitness::Unfit, |r| {
                *r = report(300.0, 900)
            }),
            (Constraint::Rate, Fitness::Fit, |r| *r = report(9000.0, 900)),
            (Constraint::Latency, Fitness::Unfit, |r| {
                *r = report(9000.0, 30_000)
            }),
            (Constraint::Stalls, Fitness::Unfit, |r| {
                r.stalls.over_heartbeat = 1;
                r.stalls.over_election = 1;
                r.stalls.longest_ms = 1700.0;
            }),
            (Constraint::Throttling, Fitness::Unfit, |r| {
                let run = r.sustained.as_mut().unwrap();
                run.throttled = true;
                run.late.puts_per_s = 200.0;
            }),
            (Constraint::Durability, Fitness::Unfit, |r| {
                r.doubts.push(Doubt {
                    durability: true,
                    what: "memory".to_owned(),
                });
            }),
            (Constraint::Cpu, Fitness::Unknown, |r| {
                r.ended_early = Some("interrupted".to_owned());
            }),
        ];
        for (constraint, fitness, change) in cases {
            let verdict = judged(change);
            assert_eq!(verdict.constraint, constraint);
            assert_eq!(verdict.fitness, fitness, "{constraint:?}");
            assert!(!verdict.because.is_empty());
            assert!(!verdict.fixes.is_empty(), "{constraint:?}");
        }
    }

    #[test]
    fn a_busy_machine_is_not_a_bad_disk() {
        let busy = |p99_us| {
            judged(move |r| {
                *r = report(9000.0, p99_us);
                r.others_cpu = 0.9;
            })
        };
        assert_eq!(busy(900).fitness, Fitness::Fit);
        assert_eq!(busy(15_000).fitness, Fitness::Unknown);
        assert_eq!(busy(90_000).fitness, Fitness::Unfit);
    }

    #[test]
    fn what_was_not_measured_is_not_vouched_for() {
        assert_eq!(judge(&Report::default(), 1).fitness, Fitness::Unknown);
        let verdict = judged(|report| report.sweep = None);
        assert_eq!(verdict.fitness, Fitness::Unknown);
        let verdict = judged(|report| report.mixed = None);
        assert_eq!(verdict.fitness, Fitness::Unknown);
    }

    #[test]
    fn no_rate_held_is_a_verdict_too() {
        let verdict = judged(|report| {
            let sweep = report.sweep.as_mut().unwrap();
            (sweep.knee_per_s, sweep.limit) = (None, SweepLimit::Latency);
        });
        assert_eq!(verdict.fitness, Fitness::Unfit);
        assert_eq!(verdict.constraint, Constraint::Latency);
        let stood_still = |report: &mut Report| {
            report.sweep = None;
            report.stalls.over_election = 1;
        };
        let verdict = judged(stood_still);
        assert_eq!(verdict.fitness, Fitness::Unfit);
        assert_eq!(verdict.constraint, Constraint::Stalls);
        let verdict = judged(|report| {
            stood_still(report);
            report.ended_early = Some("interrupted".to_owned());
        });
        assert_eq!(verdict.fitness, Fitness::Unknown);
    }

    #[test]
    fn numbers_of_nodes_are_rounded_down() {
        assert_eq!(two_digits(0.4), 0);
        assert_eq!(two_digits(7.9), 7);
        assert_eq!(two_digits(1299.0), 1200);
        assert_eq!(two_digits(65_900.0), 65_000);
    }
}
