//! A report as one HTML file with figures.

use pontoon_plot::{Histogram, Lines, Page, Percentiles, Table, Unit, Verdict as Judged};

use crate::disk::latency::{number, time};
use crate::disk::report::{Phase, Report, SweepLimit};
use crate::disk::text;
use crate::disk::verdict::Fitness;

pub(crate) fn page(report: &Report) -> Page {
    let mut page = Page::new(format!("Disk under {}", report.directory));
    verdict(&mut page, report);
    commits(&mut page, report);
    rates(&mut page, report);
    over_time(&mut page, report);
    page.section("Everything, as printed");
    let mut printed = Vec::new();
    // Writing to memory can't fail.
    let _ = text::report(&mut printed, report);
    page.preformatted(&String::from_utf8_lossy(&printed));
    page
}

fn verdict(page: &mut Page, report: &Report) {
    let verdict = &report.verdict;
    let judged = match verdict.fitness {
        Fitness::Fit => (Judged::Good, "Fit"),
        Fitness::Unfit => (Judged::Bad, "Unfit"),
        Fitness::Unknown => (Judged::Unsure, "Could not tell"),
    };
    let words = format!(
        "{} for {} nodes: safe for about {} Kubernetes nodes, {} writes/s, commit p99 {}",
        judged.1,
        verdict.nodes_wanted,
        verdict.nodes,
        number(verdict.writes_per_s),
        time(verdict.p99_ns)
    );
    page.section("Verdict");
    page.verdict(judged.0, &words);
    if let Some(why) = &report.ended_early {
        page.text(&format!("It ended early: {why}."));
    }
    page.text(&format!("What binds: {}.", verdict.because));
    if !verdict.fixes.is_empty() {
        page.list(verdict.fixes.iter().map(|fix| format!("Fix: {fix}")));
    }
    if !report.doubts.is_empty() {
        page.list(report.doubts.iter().map(|doubt| match doubt.durability {
            true => format!("Doubt: {}", doubt.what),
            false => format!("Note: {}", doubt.what),
        }));
    }
    let mut table = Table::new(["cluster", "nodes", "writes/s", "p99 within", "safe"]);
    for class in &verdict.classes {
        table = table.row([
            class.name.to_owned(),
            class.nodes.to_string(),
            number(class.writes_per_s_needed),
            format!("{:.0} ms", class.p99_ms_max),
            class
                .lacks
                .clone()
                .map_or("yes".to_owned(), |why| format!("no: {why}")),
        ]);
    }
    if !verdict.classes.is_empty() {
        page.table(table);
    }
}

/// The loads whose commits are drawn, by name.
fn loads(report: &Report) -> Vec<(&'static str, &Phase)> {
    let mut loads = Vec::new();
    loads.extend(report.idle.as_ref().map(|idle| ("one put at a time", idle)));
    loads.extend(report.mixed.as_ref().map(|mixed| ("mixed", &mixed.phase)));
    loads.extend(
        report
            .sustained
            .as_ref()
            .map(|run| ("sustained", &run.phase)),
    );
    loads
}

fn commits(page: &mut Page, report: &Report) {
    let loads = loads(report);
    if loads.is_empty() {
        return;
    }
    page.section("How long a commit took");
    let mut curve = Percentiles::new("Commit latency by percentile", Unit::Seconds)
        .level(0.01, "the classic limit")
        .level(0.1, "heartbeat");
    let mut spread = Histogram::new("Commit latency", Unit::Seconds).label("latency");
    for (name, phase) in loads {
        let points = phase.commit.curve.iter();
        curve = curve.series(
            name,
            points.map(|(share, nanos)| (*share, *nanos as f64 / 1e9)),
        );
        let values = phase.commit.values.iter();
        spread = spread.series(
            name,
            values.map(|(nanos, count)| (*nanos as f64 / 1e9, *count)),
        );
    }
    page.figure(&curve);
    page.figure(&spread);
}

fn rates(page: &mut Page, report: &Report) {
    let Some(sweep) = &report.sweep else {
        return;
    };
    page.section("Puts at fixed rates");
    page.text(
        "Each put counts from the moment at which it was to come until it was durable, whatever \
         held it up.",
    );
    // Of a rate that was tried twice, the second try counts.
    let steps: Vec<_> = sweep
        .steps
        .iter()
        .enumerate()
        .filter(|(at, step)| {
            let next = sweep.steps.get(at + 1);
            next.is_none_or(|next| next.phase.offered_per_s != step.phase.offered_per_s)
        })
        .map(|(_, step)| &step.phase)
        .collect();
    let points = |value: fn(&Phase) -> u64| {
        let point = move |phase: &&Phase| {
            let rate = phase.offered_per_s.unwrap_or_default();
            (rate, value(phase) as f64 / 1e9)
        };
        steps.iter().map(point).collect::<Vec<_>>()
    };
    let mut lines = Lines::new("Latency by rate", Unit::PerSecond, Unit::Seconds)
        .label("puts offered")
        .log()
        .series("p50", points(|phase| phase.put.p50_ns))
        .series("p99", points(|phase| phase.put.p99_ns));
    let limit = report.p99_max_ms / 1e3;
    if steps
        .iter()
        .any(|phase| phase.put.p99_ns as f64 / 1e9 > limit / 3.0)
    {
        lines = lines.level(limit, "limit on p99");
    }
    if let Some(knee) = sweep.knee_per_s
        && sweep.limit != SweepLimit::BeyondServer
    {
        lines = lines.at(knee, "knee");
    }
    page.figure(&lines);
}

fn over_time(page: &mut Page, report: &Report) {
    let Some(run) = &report.sustained else {
        return;
    };
    page.section("The same rate for a while");
    // The last second is not whole.
    let seconds = &run.seconds[..run.seconds.len().saturating_sub(1)];
    let points = |value: fn(&crate::disk::load::Second) -> f64| {
        let seconds = seconds.iter().enumerate();
        seconds.map(move |(at, second)| (at as f64, value(second)))
    };
    let rate = Lines::new("Durable puts", Unit::Seconds, Unit::PerSecond)
        .label("time")
        .series("puts", points(|second| second.puts as f64));
    let latency = Lines::new("Latency of puts", Unit::Seconds, Unit::Seconds)
        .label("time")
        .log()
        .series("p50", points(|second| second.p50_ns as f64 / 1e9))
        .series("p99", points(|second| second.p99_ns as f64 / 1e9))
        .series("max", points(|second| second.max_ns as f64 / 1e9));
    page.figure(&rate);
    page.figure(&latency);
}
