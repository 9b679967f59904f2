//! A report as people read it: the verdict first, then what it rests on.

use std::io::{self, Write};

use crate::disk::latency::{Latency, number, time};
use crate::disk::report::{Phase, Report, SweepLimit};
use crate::disk::verdict::{Constraint, Fitness, NODES_MAX};
use crate::output::{Side, aligned, columns, size};

/// Cells of the longest bar.
const BAR: usize = 44;

pub(crate) fn report(out: &mut dyn Write, report: &Report) -> io::Result<()> {
    verdict(out, report)?;
    machine(out, report)?;
    latencies(out, report)?;
    sweep(out, report)?;
    rest(out, report)?;
    histogram(out, report)
}

fn verdict(out: &mut dyn Write, report: &Report) -> io::Result<()> {
    let verdict = &report.verdict;
    let wanted = verdict.nodes_wanted;
    let words = match verdict.fitness {
        Fitness::Fit => format!("FIT for the {wanted} nodes asked about"),
        Fitness::Unfit => format!("UNFIT for the {wanted} nodes asked about"),
        Fitness::Unknown => "COULD NOT TELL".to_owned(),
    };
    writeln!(out, "{}: {words}", report.directory)?;
    if let Some(why) = &report.ended_early {
        writeln!(out, "ended early ({why}); this is what is known so far")?;
    }
    if verdict.writes_per_s > 0.0 {
        let safe = match verdict.nodes {
            0 => "not safe for any cluster".to_owned(),
            nodes if nodes as f64 >= NODES_MAX => {
                format!("safe for {nodes} Kubernetes nodes and more")
            }
            nodes => format!("safe for about {nodes} Kubernetes nodes"),
        };
        writeln!(
            out,
            "{safe}; a server here: about {} writes/s, commit p99 {}",
            number(verdict.writes_per_s),
            time(verdict.p99_ns)
        )?;
    }
    let constraint = match verdict.constraint {
        Constraint::Unknown => "not known",
        Constraint::Durability => "durability",
        Constraint::Stalls => "stalls",
        Constraint::Throttling => "throttling",
        Constraint::Latency => "latency",
        Constraint::Rate => "rate",
        Constraint::Cpu => "processors, not the disk",
        Constraint::Load => "this tool's load",
    };
    writeln!(out, "constraint: {constraint}; {}", verdict.because)?;
    for fix in &verdict.fixes {
        writeln!(out, "  fix: {fix}")?;
    }
    for doubt in &report.doubts {
        let word = if doubt.durability { "DOUBT" } else { "note" };
        writeln!(out, "  {word}: {}", doubt.what)?;
    }
    if verdict.classes.is_empty() {
        return Ok(());
    }
    writeln!(out)?;
    columns(
        out,
        [
            ("cluster", Side::Left),
            ("nodes", Side::Right),
            ("writes/s", Side::Right),
            ("p99 within", Side::Right),
            ("safe", Side::Left),
        ],
        verdict.classes.iter().map(|class| {
            [
                class.name.to_owned(),
                class.nodes.to_string(),
                number(class.writes_per_s_needed),
                format!("{:.0} ms", class.p99_ms_max),
                match &class.lacks {
                    None => "yes".to_owned(),
                    Some(why) => format!("no: {why}"),
                },
            ]
        }),
    )
}

fn machine(out: &mut dyn Write, report: &Report) -> io::Result<()> {
    let machine = &report.machine;
    if machine.filesystem.is_empty() {
        return Ok(());
    }
    let line = |name: &str, value: String| [name.to_owned(), value];
    let mut lines = vec![
        line(
            "machine",
            format!(
                "{} cores, {}, Linux {}",
                machine.cores, machine.processor, machine.kernel
            ),
        ),
        line(
            "filesystem",
            format!(
                "{} at {} ({})",
                machine.filesystem, machine.mounted_at, machine.mount_options
            ),
        ),
    ];
    if let Some(device) = &machine.device {
        let mut words = vec![device.name.clone()];
        words.extend(device.model.clone());
        words.extend(device.write_cache.clone());
        words.extend(
            device
                .fua
                .map(|fua| if fua { "FUA" } else { "no FUA" }.to_owned()),
        );
        words.extend(device.scheduler.as_ref().map(|s| format!("scheduler {s}")));
        let turns = |turns| if turns { "says it rotates" } else { "flash" }.to_owned();
        words.extend(device.rotational.map(turns));
        lines.push(line("device", words.join(", ")));
    }
    for limit in &machine.limits {
        lines.push(line(
            "limit",
            format!("{} in {}", limit.value, limit.file.display()),
        ));
    }
    if !report.io.is_empty() {
        lines.push(line("commits", report.io.clone()));
    }
    writeln!(out)?;
    aligned(out, [Side::Left, Side::Left], &lines)
}

fn latencies(out: &mut dyn Write, report: &Report) -> io::Result<()> {
    let mut rows = Vec::new();
    let mut add = |name: &str, phase: &Phase| rows.push(row(name, phase, &phase.commit));
    if let Some(idle) = &report.idle {
        add("one put at a time", idle);
    }
    let mut steps = report.sweep.iter().flat_map(|sweep| &sweep.steps);
    if let Some(knee) = steps.rfind(|step| step.held) {
        add("at the knee", &knee.phase);
    }
    if let Some(mixed) = &report.mixed {
        add("mixed", &mixed.phase);
    }
    if let Some(sustained) = &report.sustained {
        add("sustained", &sustained.phase);
    }
    if rows.is_empty() {
        return Ok(());
    }
    writeln!(out, "\nHow long a commit took")?;
    let name = |name| (name, Side::Right);
    columns(
        out,
        [
            ("load", Side::Left),
            name("puts/s"),
            name("commits/s"),
            name("p50"),
            name("p90"),
            name("p99"),
            name("p99.9"),
            name("p99.99"),
            name("max"),
        ],
        rows.into_iter(),
    )?;
    let stalls = &report.stalls;
    writeln!(
        out,
        "longest stall {}; beyond a heartbeat (100 ms): {}, beyond an election timeout (1 s): {}, \
         in {:.0} s",
        time((stalls.longest_ms * 1e6) as u64),
        stalls.over_heartbeat,
        stalls.over_election,
        stalls.watched_s
    )
}

fn row(name: &str, phase: &Phase, latency: &Latency) -> [String; 9] {
    [
        name.to_owned(),
        number(phase.puts_per_s),
        number(phase.commits_per_s),
        time(latency.p50_ns),
        time(latency.p90_ns),
        time(latency.p99_ns),
        time(latency.p999_ns),
        time(latency.p9999_ns),
        time(latency.max_ns),
    ]
}

fn sweep(out: &mut dyn Write, report: &Report) -> io::Result<()> {
    let Some(sweep) = &report.sweep else {
        return Ok(());
    };
    writeln!(
        out,
        "\nPuts at fixed rates, from their moment until durable (p99 within {:.0} ms)",
        report.p99_max_ms
    )?;
    let name = |name| (name, Side::Right);
    columns(
        out,
        [
            name("offered/s"),
            name("durable/s"),
            name("per commit"),
            name("p50"),
            name("p99"),
            name("max"),
            ("held", Side::Left),
        ],
        sweep.steps.iter().map(|step| {
            let phase = &step.phase;
            [
                number(phase.offered_per_s.unwrap_or(0.0)),
                number(phase.puts_per_s),
                format!("{:.0}", phase.puts_per_commit),
                time(phase.put.p50_ns),
                time(phase.put.p99_ns),
                time(phase.put.max_ns),
                if step.held { "yes" } else { "no" }.to_owned(),
            ]
        }),
    )?;
    let knee = sweep.knee_per_s.map_or("none".to_owned(), number);
    let why = match sweep.limit {
        SweepLimit::Unknown => "not reached in the time given",
        SweepLimit::Rate => "beyond it, puts came faster than they became durable",
        SweepLimit::Latency => "beyond it, p99 passed the limit",
        SweepLimit::BeyondServer => "not driven further: twice what the server did",
        SweepLimit::Load => "beyond it, this tool itself came too late",
    };
    writeln!(out, "knee {knee} puts/s; {why}")
}

fn rest(out: &mut dyn Write, report: &Report) -> io::Result<()> {
    let mut lines: Vec<[String; 2]> = Vec::new();
    let mut line = |name: &str, value: String| lines.push([name.to_owned(), value]);
    if let Some(server) = &report.server {
        line(
            "server",
            format!(
                "one run on it answered {} puts/s of {} clients that wait, p50 {}, p99 {}",
                number(server.puts_per_s),
                server.clients,
                time(server.p50_ns),
                time(server.p99_ns)
            ),
        );
    }
    if let Some(mixed) = &report.mixed {
        let beside = &mixed.beside;
        line(
            "mixed",
            format!(
                "beside it {} checkpoints of a tree with {} puts, and {} read from snapshots",
                beside.checkpoints,
                number(beside.tree_puts as f64),
                size(beside.snapshot_bytes)
            ),
        );
    }
    if let Some(run) = &report.sustained {
        let early = format!(
            "{}/s, p99 {}",
            number(run.early.puts_per_s),
            time(run.early.p99_ns)
        );
        let late = format!(
            "{}/s, p99 {}",
            number(run.late.puts_per_s),
            time(run.late.p99_ns)
        );
        let held = match (run.throttled, run.slower_from_s) {
            (false, _) => "it held".to_owned(),
            (true, None) => "it became slower".to_owned(),
            (true, Some(from)) => format!("slower from second {from} on"),
        };
        line(
            "sustained",
            format!(
                "{:.0} s at {}: early {early}; late {late}; {held}",
                run.phase.took_s,
                number(run.phase.offered_per_s.unwrap_or(0.0))
            ),
        );
    }
    if let Some(recovery) = &report.recovery {
        line(
            "recovery",
            format!(
                "a log of {} opened in {:.0} ms; read and checked whole at {}/s; written at {}/s",
                size(recovery.log_bytes),
                recovery.open_ms,
                size(recovery.read_bytes_per_s as u64),
                size(recovery.write_bytes_per_s as u64)
            ),
        );
    }
    if let Some(tuning) = &report.tuning {
        let tried = tuning.tried.iter();
        let tried: Vec<_> = tried
            .map(|t| format!("{}: {}/s", t.in_flight, number(t.puts_per_s)))
            .collect();
        line(
            "settings",
            format!(
                "{} commits in flight ({}), at most {} each",
                tuning.in_flight_max,
                tried.join(", "),
                size(tuning.commit_bytes_max as u64)
            ),
        );
    }
    line(
        "took",
        format!(
            "{:.0} s and {} written; others used {:.0} % of the processors",
            report.took_s,
            size(report.written_bytes),
            report.others_cpu * 100.0
        ),
    );
    writeln!(out)?;
    aligned(out, [Side::Left, Side::Left], &lines)
}

fn histogram(out: &mut dyn Write, report: &Report) -> io::Result<()> {
    let phase = report
        .mixed
        .as_ref()
        .map(|mixed| ("mixed load", &mixed.phase));
    let phase = phase.or(report.idle.as_ref().map(|idle| ("one put at a time", idle)));
    match phase {
        Some((name, phase)) => {
            writeln!(out, "\nCommits under {name}")?;
            bars(out, &phase.commit)
        }
        None => Ok(()),
    }
}

/// One bar for each doubling of the time.
pub(crate) fn bars(out: &mut dyn Write, latency: &Latency) -> io::Result<()> {
    let most = latency
        .bands
        .iter()
        .map(|band| band.count)
        .max()
        .unwrap_or(1);
    let lines: Vec<[String; 3]> = latency
        .bands
        .iter()
        .map(|band| {
            let cells = (band.count as f64 / most.max(1) as f64 * BAR as f64).ceil();
            [
                format!("< {}", time((band.from_us * 2).max(1) * 1000)),
                band.count.to_string(),
                "█".repeat(cells as usize),
            ]
        })
        .collect();
    aligned(out, [Side::Right, Side::Right, Side::Left], &lines)
}
