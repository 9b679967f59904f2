//! `pontoonctl top`: what the members and ranges are doing now.
//!
//! Kept true: a rate is the difference of two counts over the time between
//! them; what was counted by one side only is no rate.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal as _, Write};
use std::time::Duration;

use clap::Args;
use futures_util::future::join_all;
use serde::Serialize;
use tokio::time::Instant;

use crate::client::{AskError, Endpoints, until_interrupted};
use crate::members::{Seat, seats};
use crate::metrics::Page;
use crate::output::{Side, columns, print, size};
use crate::ranges::{RangeView, ask_all, merge};

#[derive(Args)]
pub(crate) struct Top {
    /// Seconds between two looks
    #[arg(long, value_name = "SECS", default_value = "1", value_parser = seconds)]
    every: Duration,
    /// Show at most so many ranges, the busiest first
    #[arg(long, value_name = "N", default_value_t = 20)]
    ranges: usize,
    /// Look twice, print once, and end
    #[arg(long)]
    once: bool,
    /// Print JSON, one document for each look
    #[arg(long)]
    json: bool,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok();
    let seconds = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let seconds = seconds.filter(|seconds| !seconds.is_zero());
    seconds.ok_or_else(|| "it is no number of seconds above 0".to_owned())
}

/// What is counted, at one moment.
struct Moment {
    at: Instant,
    /// By name; without those that are not reached.
    pages: BTreeMap<String, Page>,
    away: Vec<String>,
    ranges: Vec<RangeView>,
}

#[derive(Serialize)]
struct Report {
    members: Vec<MemberRow>,
    not_reached: Vec<String>,
    ranges_total: usize,
    ranges: Vec<RangeRow>,
}

#[derive(Serialize)]
struct MemberRow {
    name: String,
    puts: f64,
    gets: f64,
    txns: f64,
    deletes: f64,
    /// Sent to watchers.
    events: f64,
    log_commits: f64,
    log_bytes: f64,
    /// The mean of the commits since the last look; absent if there were none.
    sync_ms: Option<f64>,
    connections: f64,
    memory_bytes: f64,
}

#[derive(Serialize)]
struct RangeRow {
    id: u64,
    first_key: Option<String>,
    leader: Option<String>,
    /// Absent if its leader has changed meanwhile.
    writes: Option<f64>,
    keys: Option<u64>,
    used_bytes: u64,
}

pub(crate) async fn run(endpoints: &Endpoints, top: Top) -> Result<(), AskError> {
    until_interrupted(look_again(endpoints, top)).await
}

async fn look_again(endpoints: &Endpoints, top: Top) -> Result<(), AskError> {
    let redraws = !top.once && !top.json && io::stdout().is_terminal();
    let mut before = look(endpoints).await?;
    loop {
        tokio::time::sleep(top.every).await;
        let now = look(endpoints).await?;
        let report = compare(&before, &now, top.ranges);
        if redraws {
            // To the corner, and away with what was there.
            write!(io::stdout(), "\x1b[H\x1b[2J")?;
        }
        print(top.json, &report, text)?;
        if top.once {
            return Ok(());
        }
        before = now;
    }
}

async fn look(endpoints: &Endpoints) -> Result<Moment, AskError> {
    let seats = seats(endpoints).await?;
    let told = ask_all(&seats).await?;
    let at = Instant::now();
    let pages = join_all(seats.iter().filter_map(Seat::peer).map(|peer| async {
        let page = Page::of(&peer.at).await?;
        Some((peer.id, page))
    }));
    let pages: BTreeMap<u64, Page> = pages.await.into_iter().flatten().collect();
    let named = |seat: &Seat| Some((seat.name(), pages.get(&seat.member.id)?.clone()));
    let away = seats.iter().filter(|seat| seat.reached.is_err());
    Ok(Moment {
        at,
        pages: seats.iter().filter_map(named).collect(),
        away: away.map(Seat::name).collect(),
        ranges: merge(&seats, &told),
    })
}

fn compare(before: &Moment, now: &Moment, ranges_max: usize) -> Report {
    let secs = (now.at - before.at).as_secs_f64();
    let members = now.pages.iter().filter_map(|(name, page)| {
        let before = before.pages.get(name)?;
        Some(member(name, before, page, secs))
    });
    let mut ranges: Vec<_> = now
        .ranges
        .iter()
        .map(|range| {
            let mut ranges = before.ranges.iter();
            let before = ranges.find(|before| before.id == range.id);
            range_row(before, range, secs)
        })
        .collect();
    ranges.sort_by(|one, other| {
        let busier = other
            .writes
            .unwrap_or(0.0)
            .total_cmp(&one.writes.unwrap_or(0.0));
        busier.then(one.first_key.cmp(&other.first_key))
    });
    let ranges_total = ranges.len();
    ranges.truncate(ranges_max);
    Report {
        members: members.collect(),
        not_reached: now.away.clone(),
        ranges_total,
        ranges,
    }
}

fn member(name: &str, before: &Page, now: &Page, secs: f64) -> MemberRow {
    let grown = |name, labels: &[(&str, &str)]| {
        // One that was started again counts from 0.
        (now.sum(name, labels) - before.sum(name, labels)).max(0.0)
    };
    let calls = |method| grown("grpc_server_handled_total", &[("grpc_method", method)]) / secs;
    let syncs = grown("etcd_disk_wal_fsync_duration_seconds_count", &[]);
    let synced = grown("etcd_disk_wal_fsync_duration_seconds_sum", &[]);
    MemberRow {
        name: name.to_owned(),
        puts: calls("Put"),
        gets: calls("Range"),
        txns: calls("Txn"),
        deletes: calls("DeleteRange"),
        events: grown("etcd_debugging_mvcc_events_total", &[]) / secs,
        log_commits: grown("pontoon_wal_commits_total", &[]) / secs,
        log_bytes: grown("pontoon_wal_written_bytes_total", &[]) / secs,
        sync_ms: (syncs > 0.0).then(|| synced / syncs * 1000.0),
        connections: now.sum("pontoon_connections", &[]),
        memory_bytes: now.sum("process_resident_memory_bytes", &[]),
    }
}

fn range_row(before: Option<&RangeView>, now: &RangeView, secs: f64) -> RangeRow {
    let same = before.filter(|before| before.leader == now.leader && now.leader.is_some());
    let written = same.and_then(|before| now.writes.checked_sub(before.writes));
    RangeRow {
        id: now.id,
        first_key: now.first_key.clone(),
        leader: now.leader.clone(),
        writes: written.map(|written| written as f64 / secs),
        keys: now.keys,
        used_bytes: now.used_bytes,
    }
}

fn text(out: &mut dyn Write, report: &Report) -> io::Result<()> {
    let names = [
        ("member", Side::Left),
        ("puts/s", Side::Right),
        ("gets/s", Side::Right),
        ("txns/s", Side::Right),
        ("dels/s", Side::Right),
        ("events/s", Side::Right),
        ("commits/s", Side::Right),
        ("log/s", Side::Right),
        ("sync ms", Side::Right),
        ("conns", Side::Right),
        ("memory", Side::Right),
    ];
    let rows = report.members.iter().map(|member| {
        [
            member.name.clone(),
            rate(member.puts),
            rate(member.gets),
            rate(member.txns),
            rate(member.deletes),
            rate(member.events),
            rate(member.log_commits),
            size(member.log_bytes as u64),
            member
                .sync_ms
                .map_or("-".to_owned(), |ms| format!("{ms:.2}")),
            rate(member.connections),
            size(member.memory_bytes as u64),
        ]
    });
    columns(out, names, rows)?;
    for name in &report.not_reached {
        writeln!(out, "{name}  not reached")?;
    }
    writeln!(out)?;
    let names = [
        ("range", Side::Right),
        ("first key", Side::Left),
        ("leader", Side::Left),
        ("writes/s", Side::Right),
        ("keys", Side::Right),
        ("size", Side::Right),
    ];
    let rows = report.ranges.iter().map(|range| {
        [
            range.id.to_string(),
            range.first_key.clone().unwrap_or("(first)".to_owned()),
            range.leader.clone().unwrap_or("none".to_owned()),
            range.writes.map_or("-".to_owned(), rate),
            range.keys.map_or("?".to_owned(), |keys| keys.to_string()),
            size(range.used_bytes),
        ]
    });
    columns(out, names, rows)?;
    match report.ranges_total - report.ranges.len() {
        0 => Ok(()),
        more => writeln!(out, "and {more} more"),
    }
}

fn rate(rate: f64) -> String {
    format!("{rate:.0}")
}
