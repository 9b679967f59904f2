//! What the commands do.

use std::process::ExitCode;
use std::time::Duration;

use pontoon_bench::wire::compare::{Named, compare};
use pontoon_bench::wire::k8s::{Ramp, Step};
use pontoon_bench::wire::page;
use pontoon_bench::wire::ratio::table;
use pontoon_bench::wire::report::{Ended, Report};
use pontoon_bench::wire::run::{Settings, Stop, run};
use pontoon_bench::wire::target::{Judgement, Verdict};
use pontoon_bench::wire::workload::Workload;
use pontoon_plot::{Destination, Page};

use crate::args::{AccessArgs, ClusterArgs, EndpointsArgs, LoadArgs, ToldArgs, cluster_settings};
use crate::progress::Progress;
use crate::{COULD_NOT_RUN, FAILED, INTERRUPTED, Trouble};

/// Where the page goes, if one is wanted. Whether it can be written is known
/// before the load.
struct Paper(Option<Destination>);

impl Paper {
    fn new(told: &ToldArgs) -> Result<Self, Trouble> {
        let Some(path) = &told.report else {
            return Ok(Self(None));
        };
        match Destination::try_new(path) {
            Ok(destination) => Ok(Self(Some(destination))),
            Err(error) => Err(cannot_write(&path.display(), &error).into()),
        }
    }

    fn write(&self, page: impl FnOnce() -> Page) -> Result<(), Trouble> {
        if let Some(destination) = &self.0 {
            let path = destination.path().display();
            let written = destination.write(&page());
            written.map_err(|error| cannot_write(&path, &error))?;
            eprintln!("the report is in {path}");
        }
        Ok(())
    }
}

fn cannot_write(path: &std::path::Display<'_>, error: &std::io::Error) -> String {
    format!("can't write the report to {path}: {error}")
}

/// One load, with a line that shows how it goes.
fn run_shown(settings: &Settings, workload: Workload, stop: &Stop) -> Result<Report, Trouble> {
    let progress = Progress::new();
    let name = workload.name();
    let report = run(settings, workload, stop, &mut |now| {
        progress.show(name, now)
    })?;
    Ok(report)
}

pub(crate) fn run_one(
    workload: Workload,
    at: EndpointsArgs,
    load: &LoadArgs,
    told: &ToldArgs,
    stop: &Stop,
) -> Result<ExitCode, Trouble> {
    let settings = load.settings(at.endpoints()?, None);
    settings.check(workload)?;
    let paper = Paper::new(told)?;
    let report = run_shown(&settings, workload, stop)?;
    tell(&report, told);
    paper.write(|| page::of_report(&report))?;
    Ok(code(&report))
}

fn tell(report: &Report, told: &ToldArgs) {
    match told.json {
        true => println!("{}", report.json()),
        false => print!("{}", report.text()),
    }
}

fn code(report: &Report) -> ExitCode {
    match report.ended {
        Ended::Interrupted => ExitCode::from(INTERRUPTED),
        Ended::Stalled => ExitCode::from(FAILED),
        Ended::Done if report.errors.is_empty() => ExitCode::SUCCESS,
        Ended::Done => ExitCode::from(FAILED),
    }
}

pub(crate) fn judge(
    target: f64,
    workload: Workload,
    p99_max: Option<Duration>,
    at: EndpointsArgs,
    load: &LoadArgs,
    told: &ToldArgs,
    stop: &Stop,
) -> Result<ExitCode, Trouble> {
    if !matches!(workload, Workload::Put | Workload::Cas) {
        return Err("a target is of writes: put or cas".to_owned().into());
    }
    let settings = load.settings(at.endpoints()?, Some(target));
    settings.check(workload)?;
    let paper = Paper::new(told)?;
    let report = run_shown(&settings, workload, stop)?;
    let ended = report.ended;
    let verdict = Verdict::of(target, p99_max, report);
    match told.json {
        true => println!("{}", verdict.json()),
        false => println!("{}{}", verdict.report.text(), verdict.sentence()),
    }
    paper.write(|| page::of_verdict(&verdict))?;
    Ok(ExitCode::from(match verdict.judgement {
        Judgement::Held => 0,
        Judgement::NotHeld => FAILED,
        Judgement::Unknown if ended == Ended::Interrupted => INTERRUPTED,
        Judgement::Unknown => COULD_NOT_RUN,
    }))
}

pub(crate) fn compare_all(
    servers: Vec<Named>,
    workloads: &[Workload],
    rounds: usize,
    access: AccessArgs,
    load: &LoadArgs,
    told: &ToldArgs,
    stop: &Stop,
) -> Result<ExitCode, Trouble> {
    let access = access.access()?;
    let servers: Vec<_> = servers
        .into_iter()
        .map(|server| server.with(&access))
        .collect();
    let [_, _, ..] = servers.as_slice() else {
        return Err("there must be two servers at least".to_owned().into());
    };
    if rounds == 0 {
        return Err("there must be a round".to_owned().into());
    }
    for server in &servers {
        let settings = load.settings(server.endpoints.clone(), None);
        for workload in workloads {
            settings.check(*workload)?;
        }
    }
    let settings = load.settings(servers[0].endpoints.clone(), None);
    let paper = Paper::new(told)?;
    let progress = Progress::new();
    let mut tell = |name: &str, report: &Report| {
        progress.say(&format!(
            "{name:<12} {:<16} {:.0} /s, p50 {:.3} ms, p99 {:.3} ms, {:.2} µs of ours per request",
            report.workload,
            report.rate,
            report.latency_ms.p50,
            report.latency_ms.p99,
            report.generator.cpu_micros_per_request
        ));
    };
    let mut look = |name: &str, workload: Workload, now| {
        progress.show(&format!("{name} {}", workload.name()), now);
    };
    let comparison = compare(
        &servers, workloads, rounds, &settings, stop, &mut look, &mut tell,
    );
    drop(progress);
    for other in &servers[1..] {
        let ratios = comparison.ratios.iter();
        let ratios: Vec<_> = ratios
            .filter(|ratio| ratio.theirs == other.name)
            .cloned()
            .collect();
        match told.json {
            true => {
                for ratio in &ratios {
                    let json = serde_json::to_string(ratio);
                    println!("{}", json.expect("a ratio has nothing that JSON hasn't"));
                }
            }
            false => println!("{} to {}\n{}", servers[0].name, other.name, table(&ratios)),
        }
    }
    for error in &comparison.errors {
        eprintln!("{error}");
    }
    let ended_by = comparison.ended_by.as_ref().map(ToString::to_string);
    let (ratios, reports) = (&comparison.ratios, &comparison.reports);
    let errors = &comparison.errors;
    paper.write(|| page::of_comparison(&servers, ratios, reports, errors, ended_by.as_deref()))?;
    match (comparison.ended_by, comparison.errors.is_empty()) {
        (Some(failure), _) => Err(failure.into()),
        (None, false) => Ok(ExitCode::from(FAILED)),
        (None, true) => Ok(ExitCode::SUCCESS),
    }
}

pub(crate) fn simulate(
    args: &ClusterArgs,
    at: EndpointsArgs,
    counts: [usize; 2],
    times: [Duration; 2],
    seed: u64,
    told: &ToldArgs,
    stop: &Stop,
) -> Result<ExitCode, Trouble> {
    let cluster = args.cluster()?;
    let (nodes, about) = (cluster.nodes, cluster.to_string());
    let first = cluster.with_nodes(nodes);
    let settings = cluster_settings(first, at.endpoints()?, counts, times, seed);
    settings.check(Workload::K8s)?;
    let paper = Paper::new(told)?;
    let ramp = Ramp {
        nodes_min: nodes,
        nodes_max: args.nodes_max.max(nodes),
        p99_max: args.p99_max,
    };
    if !args.ramp {
        let report = run_shown(&settings, Workload::K8s, stop)?;
        let ended = report.ended;
        let step = ramp.judge(nodes, report);
        match told.json {
            true => println!("{}", json(&step)),
            false => println!("{about}\n{}{}", step.report.text(), said(&step)),
        }
        paper.write(|| page::of_report(&step.report))?;
        return Ok(ExitCode::from(match (ended, &step.refused) {
            (Ended::Interrupted, _) => INTERRUPTED,
            (_, Some(_)) => FAILED,
            (_, None) => 0,
        }));
    }
    let progress = Progress::new();
    let (steps, ended_by) = ramp.run(
        &settings,
        &cluster,
        stop,
        &mut |nodes, now| progress.show(&format!("{nodes} nodes"), now),
        &mut |step| progress.say(&said(step)),
    );
    drop(progress);
    let sentence = match Ramp::knee(&steps) {
        (Some(most), None) => format!("At least {most} nodes are carried; no more were tried."),
        (Some(most), Some(least)) => {
            format!("{most} nodes are carried, {least} are not.")
        }
        (None, Some(least)) => format!("Not even {least} nodes are carried."),
        (None, None) => "Nothing is known.".to_owned(),
    };
    match told.json {
        true => steps.iter().for_each(|step| println!("{}", json(step))),
        false => println!("{sentence}"),
    }
    let ended_text = ended_by.as_ref().map(ToString::to_string);
    paper.write(|| page::of_ramp(&ramp, &steps, &sentence, ended_text.as_deref()))?;
    match (ended_by, Ramp::knee(&steps).0) {
        (Some(failure), _) => Err(failure.into()),
        (None, Some(_)) => Ok(ExitCode::SUCCESS),
        (None, None) => Ok(ExitCode::from(FAILED)),
    }
}

fn json(step: &Step) -> String {
    serde_json::to_string(step).expect("a step has nothing that JSON hasn't")
}

fn said(step: &Step) -> String {
    let carried = match &step.refused {
        None => "carried".to_owned(),
        Some(why) => format!("NOT CARRIED: {why}"),
    };
    format!(
        "{} nodes: {carried} ({:.0} /s, p99 of writes {:.2} ms)",
        step.nodes, step.report.rate, step.write_p99_ms
    )
}
