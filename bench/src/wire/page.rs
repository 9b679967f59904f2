//! Reports as pages with figures.

use hdrhistogram::Histogram as Times;
use pontoon_plot::{
    Bar, Bars, Histogram, Lines, Page, Percentiles, Table, Unit, Verdict as Look, quantiles,
};

use super::compare::Named;
use super::k8s::{Ramp, Step, write_latency};
use super::ratio::{Ratio, cells};
use super::report::{Class, Ended, Latency, Report};
use super::tally::times;
use super::target::{Judgement, Verdict};

/// Of one load.
#[must_use]
pub fn of_report(report: &Report) -> Page {
    let mut page = Page::new(format!("pontoon-bench: {}", report.workload));
    add_ending(&mut page, report);
    add_report(&mut page, report);
    page
}

/// Of a load that was to hold a rate.
#[must_use]
pub fn of_verdict(verdict: &Verdict) -> Page {
    let mut page = Page::new(format!(
        "pontoon-bench: {} durable writes/s?",
        Unit::Count.text(verdict.target)
    ));
    let look = match verdict.judgement {
        Judgement::Held => Look::Good,
        Judgement::NotHeld => Look::Bad,
        Judgement::Unknown => Look::Unsure,
    };
    page.verdict(look, &verdict.sentence());
    add_report(&mut page, &verdict.report);
    page
}

/// Of servers that took turns.
#[must_use]
pub fn of_comparison(
    servers: &[Named],
    ratios: &[Ratio],
    reports: &[Vec<Vec<Report>>],
    errors: &[String],
    ended_by: Option<&str>,
) -> Page {
    let names: Vec<_> = servers.iter().map(|server| server.name.as_str()).collect();
    let mut page = Page::new(format!("pontoon-bench: {}", names.join(" and ")));
    if let Some(ended_by) = ended_by {
        let text = format!("It ended early ({ended_by}); this is what is known.");
        page.verdict(Look::Unsure, &text);
    }
    if !errors.is_empty() {
        page.verdict(Look::Bad, "Some requests failed.");
        page.list(errors);
    }
    for other in &names[1..] {
        page.section(&format!("{} to {other}", names[0]));
        page.text("Ratios are geometric means of the rounds' ratios; the interval has the true one with a confidence of 95 %. An interval with 1 in it shows no difference.");
        let of: Vec<_> = ratios
            .iter()
            .filter(|ratio| ratio.theirs == **other)
            .collect();
        let mut table = Table::new(["", names[0], other, "ratio (95 %)", ""]);
        for ratio in &of {
            table = table.row(cells(ratio));
        }
        page.table(table);
        for (unit, title) in [
            ("/s", "Rates, first to second: right of 1 is better"),
            ("ms", "Latencies, first to second: left of 1 is better"),
        ] {
            let mut bars = Bars::new(title, Unit::Ratio).around(1.0);
            for ratio in of.iter().filter(|ratio| ratio.unit == unit) {
                let bar = Bar::new(&ratio.name, ratio.ratio);
                bars = bars.bar(match ratio.interval {
                    Some((low, high)) => bar.between(low, high),
                    None => bar,
                });
            }
            page.figure(&bars);
        }
    }
    for of_workload in reports {
        add_rounds(&mut page, &names, of_workload);
    }
    page
}

/// Of a search for the knee.
#[must_use]
pub fn of_ramp(ramp: &Ramp, steps: &[Step], sentence: &str, ended_by: Option<&str>) -> Page {
    let mut page = Page::new("pontoon-bench: how many nodes can this store carry?");
    let look = match ended_by {
        Some(_) => Look::Unsure,
        None => Look::Good,
    };
    page.verdict(look, sentence);
    page.section("Steps");
    let mut table = Table::new([
        "nodes",
        "due",
        "answered",
        "p50 of writes",
        "p99 of writes",
        "",
    ]);
    for step in steps {
        let writes = write_latency(&step.report);
        let due = step.report.open.map_or(f64::NAN, |open| open.rate);
        table = table.row([
            step.nodes.to_string(),
            Unit::PerSecond.text(due),
            Unit::PerSecond.text(step.report.rate),
            Unit::Seconds.text(writes.value_at_quantile(0.5) as f64 / 1e9),
            Unit::Seconds.text(step.write_p99_ms / 1e3),
            step.refused.clone().unwrap_or("carried".to_owned()),
        ]);
    }
    page.table(table);
    let mut sorted: Vec<_> = steps.iter().collect();
    sorted.sort_by_key(|step| step.nodes);
    let line = |figure: fn(&Step) -> f64| {
        let points = sorted
            .iter()
            .map(move |step| (step.nodes as f64, figure(step)));
        points.collect::<Vec<_>>()
    };
    page.figure(
        &Lines::new("Latency of writes by nodes", Unit::Count, Unit::Seconds)
            .log()
            .label("nodes")
            .series("p50", line(|step| quantile_of(step, 0.5)))
            .series("p99", line(|step| quantile_of(step, 0.99)))
            .level(ramp.p99_max.as_secs_f64(), "limit of p99"),
    );
    page.figure(
        &Lines::new("Requests by nodes", Unit::Count, Unit::PerSecond)
            .label("nodes")
            .series(
                "due",
                line(|step| step.report.open.map_or(f64::NAN, |open| open.rate)),
            )
            .series("answered", line(|step| step.report.rate)),
    );
    let last = steps.iter().filter(|step| step.refused.is_none());
    if let Some(step) = last.max_by_key(|step| step.nodes) {
        page.section(&format!(
            "The largest that was carried: {} nodes",
            step.nodes
        ));
        add_report(&mut page, &step.report);
    }
    page
}

fn quantile_of(step: &Step, share: f64) -> f64 {
    write_latency(&step.report).value_at_quantile(share) as f64 / 1e9
}

fn add_ending(page: &mut Page, report: &Report) {
    let errors: u64 = report.errors.values().sum();
    match report.ended {
        Ended::Interrupted => page.verdict(Look::Unsure, "Interrupted: this is what is known."),
        Ended::Stalled => page.verdict(Look::Bad, "Nothing was answered any more."),
        Ended::Done if errors > 0 => {
            page.verdict(Look::Bad, &format!("{errors} requests failed."));
        }
        Ended::Done => {}
    }
}

fn add_report(page: &mut Page, report: &Report) {
    page.section("What was asked");
    page.text(&report.about());
    page.text(&report.setup);
    page.section("What came of it");
    let mut heading = vec!["", "requests", "rate"];
    heading.extend(["p50", "p90", "p99", "p99.9", "p99.99", "max"]);
    let row = |name: &str, count: u64, rate: f64, latency: &Latency| {
        let mut cells = vec![
            name.to_owned(),
            Unit::Count.text(count as f64),
            Unit::PerSecond.text(rate),
        ];
        cells.extend(latency_cells(latency));
        cells
    };
    let latency = &report.latency_ms;
    let mut table = Table::new(heading);
    table = table.row(row("all", report.requests, report.rate, latency));
    let asked = |class: &&Class| class.requests > 0 || class.failures > 0;
    for class in report.classes.iter().filter(asked) {
        table = table.row(row(
            class.name,
            class.requests,
            class.rate,
            &class.latency_ms,
        ));
    }
    if let Some(events) = &report.events {
        table = table.row(row(
            "events after ack",
            events.count,
            events.rate,
            &events.after_ack_ms,
        ));
        if let Some(late) = &events.expired_late_ms {
            let rate = events.expired as f64 / report.seconds.max(1e-9);
            table = table.row(row("leases expired late", events.expired, rate, late));
        }
    }
    page.table(table);
    if let Some(about) = report.about_rate() {
        page.text(&about);
    }
    if !report.errors.is_empty() {
        let errors = report.errors.iter();
        page.list(errors.map(|(kind, count)| format!("{count} × {kind}")));
    }
    add_samples(page, report);
    let shown = shown(report);
    match shown.as_slice() {
        // More than two hide each other.
        [_] | [_, _] => page.figure(&spread("Latency", &shown)),
        _ => page.figure(&spread(
            "Latency",
            &[("all".to_owned(), report.latency.clone())],
        )),
    }
    page.figure(&curve("Latency by percentile", &shown));
    if let Some(events) = &report.events {
        let events = [("events".to_owned(), events.after_ack.clone())];
        let title = "From acknowledgement to event (1 µs: the event was first)";
        page.figure(&spread(title, &events));
        page.figure(&curve(title, &events));
    }
    let expired = report.events.iter().filter(|events| events.expired > 0);
    for events in expired {
        let late = [("leases".to_owned(), events.expired_late.clone())];
        page.figure(&spread("How late leases expired", &late));
    }
    page.section("The load itself");
    let look = match report.generator.is_bottleneck {
        true => Look::Bad,
        false => Look::Good,
    };
    let said = report.generator.verdict();
    page.verdict(look, &format!("The generator: {said}"));
    page.text(
        &report
            .generator
            .text()
            .replace('\n', ";")
            .replace("          ", " "),
    );
}

fn latency_cells(latency: &Latency) -> [String; 6] {
    let text = |ms: f64| match ms < 1e-3 {
        true => "< 1 µs".to_owned(),
        false => Unit::Seconds.text(ms / 1e3),
    };
    [
        text(latency.p50),
        text(latency.p90),
        text(latency.p99),
        text(latency.p99_9),
        text(latency.p99_99),
        text(latency.max),
    ]
}

/// The kinds of requests that curves are drawn of.
fn shown(report: &Report) -> Vec<(String, Times<u64>)> {
    let many = |class: &&Class| class.requests > 0 && !class.is_beside;
    let mut shown: Vec<_> = report.classes.iter().filter(many).collect();
    shown.sort_by_key(|class| std::cmp::Reverse(class.requests));
    let shown = shown.into_iter().take(5);
    let mut shown: Vec<_> = shown
        .map(|class| (class.name.to_owned(), class.latency.clone()))
        .collect();
    if shown.is_empty() {
        shown.push((report.workload.to_owned(), report.latency.clone()));
    }
    shown
}

fn add_samples(page: &mut Page, report: &Report) {
    let line = |figure: fn(&super::report::Sample) -> f64| {
        let samples = report.samples.iter();
        samples
            .map(move |sample| (sample.at, figure(sample)))
            .collect::<Vec<_>>()
    };
    let mut rate = Lines::new("Rate over time", Unit::Seconds, Unit::PerSecond)
        .label("time")
        .series("answered", line(|sample| sample.rate));
    if report.events.is_some() {
        rate = rate.series("events", line(|sample| sample.events));
    }
    if let Some(open) = &report.open {
        rate = rate.level(open.rate, "asked for");
    }
    page.figure(&rate);
    page.figure(
        &Lines::new("Latency over time", Unit::Seconds, Unit::Seconds)
            .log()
            .label("time")
            .series("p50", line(|sample| sample.p50_ms / 1e3))
            .series("p99", line(|sample| sample.p99_ms / 1e3))
            .series("max", line(|sample| sample.max_ms / 1e3)),
    );
}

/// Seconds, of which no less than a microsecond is drawn.
fn seconds(nanos: u64) -> f64 {
    (nanos as f64 / 1e9).max(1e-6)
}

fn spread(title: &str, all: &[(String, Times<u64>)]) -> Histogram {
    let mut spread = Histogram::new(title, Unit::Seconds).label("latency");
    for (name, times) in all {
        let recorded = times.iter_recorded();
        let values = recorded.map(|at| (seconds(at.value_iterated_to()), at.count_at_value()));
        spread = spread.series(name, values);
    }
    spread
}

fn curve(title: &str, all: &[(String, Times<u64>)]) -> Percentiles {
    let mut curve = Percentiles::new(title, Unit::Seconds);
    for (name, times) in all {
        let points = quantiles(times.len()).into_iter();
        let at = |quantile| (quantile, seconds(times.value_at_quantile(quantile)));
        curve = curve.series(name, points.map(at));
    }
    curve
}

/// A workload of a comparison: every server with all its rounds.
fn add_rounds(page: &mut Page, names: &[&str], reports: &[Vec<Report>]) {
    let Some(first) = reports.iter().flatten().next() else {
        return;
    };
    page.section(first.workload);
    page.text(&format!(
        "{} clients on {} connections, {:.1} s each; {}",
        first.clients, first.connections, first.seconds, first.setup
    ));
    let mut bars = Bars::new(
        "Rate: the middle of the rounds, and all of them",
        Unit::PerSecond,
    );
    let mut table = Table::new(["", "rounds", "p50", "p90", "p99", "p99.9", "p99.99", "max"]);
    let mut all = Vec::new();
    let mut busiest = 0.0f64;
    for (name, reports) in names.iter().zip(reports) {
        let rates: Vec<f64> = reports.iter().map(|report| report.rate).collect();
        let low = rates.iter().copied().fold(f64::INFINITY, f64::min);
        let high = rates.iter().copied().fold(0.0, f64::max);
        let middle = crate::samples::median(&rates);
        bars = bars.bar(Bar::new(*name, middle).between(low, high).of(*name));
        let mut latency = times(3);
        for report in reports {
            latency
                .add(&report.latency)
                .expect("all have the same bounds");
            busiest = busiest.max(report.generator.busiest_thread_share);
        }
        let mut cells = vec![(*name).to_owned(), reports.len().to_string()];
        cells.extend(latency_cells(&Latency::of(&latency)));
        table = table.row(cells);
        all.push(((*name).to_owned(), latency));
    }
    page.figure(&bars);
    page.table(table);
    page.figure(&spread("Latency", &all));
    page.figure(&curve("Latency by percentile", &all));
    page.text(&format!(
        "The generator's busiest thread ran {} of the time at most.",
        Unit::Share.text(busiest)
    ));
}
