//! `pontoonctl status`: all members at a glance.
//!
//! Kept true: a member that is not reached is in the table too, and is the
//! reason to end with 2.

mod tolerance;

use std::collections::BTreeMap;
use std::io::{self, Write};

use clap::Args;
use futures_util::future::join_all;
use pontoon_api::pontoonpb::{ClusterVersion, ListRequest, UnservedRange};
use serde::Serialize;

use crate::client::{AskError, Endpoints, Peer, answer};
use crate::members::{Seat, seats};
use crate::metrics::Page;
use crate::output::{Side, columns, print, shown, size};
use crate::ranges::{ask_all, merge};
use tolerance::FaultTolerance;

#[derive(Args)]
pub(crate) struct Status {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    members: Vec<Row>,
    /// Absent if no member knows of ranges, as in an etcd cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    fault_tolerance: Option<FaultTolerance>,
    /// Likewise.
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster_version: Option<Version>,
}

/// The version of the cluster, by the member that knows the newest.
#[derive(Serialize)]
struct Version {
    cluster: u32,
    /// The newest one that a member agrees to, by its name.
    members: BTreeMap<String, u32>,
}

impl Version {
    fn of(rows: &[Row]) -> Option<Self> {
        let told = rows.iter().filter_map(|row| row.told.as_ref());
        let known = told.filter_map(|told| told.cluster_version.as_ref());
        let newest = known.max_by_key(|known| known.cluster)?;
        let name = |member: u64| {
            let id = format!("{member:x}");
            let row = rows.iter().find(|row| row.id == id);
            row.map_or(id, |row| row.name.clone())
        };
        let members = newest.members.iter();
        Some(Self {
            cluster: newest.cluster,
            members: members
                .map(|told| (name(told.member), told.version))
                .collect(),
        })
    }

    fn line(&self, out: &mut dyn Write) -> io::Result<()> {
        let cluster = self.cluster;
        let newest = self.members.values().copied().max().unwrap_or(cluster);
        let (ahead, behind): (Vec<_>, Vec<_>) = self
            .members
            .iter()
            .partition(|(_, version)| **version > cluster);
        if ahead.is_empty() {
            return writeln!(out, "cluster version {cluster}");
        }
        let names = |members: &[(&String, &u32)]| {
            let names: Vec<_> = members.iter().map(|(name, _)| name.as_str()).collect();
            names.join(", ")
        };
        writeln!(
            out,
            "cluster version {cluster}: {} would go up to {newest}, {} not",
            names(&ahead),
            names(&behind)
        )
    }
}

#[derive(Serialize)]
struct Row {
    id: String,
    name: String,
    /// Absent if it is not reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    told: Option<Told>,
    #[serde(skip_serializing_if = "Option::is_none")]
    not_reached: Option<String>,
}

#[derive(Serialize)]
struct Told {
    endpoint: String,
    /// Of Pontoon, if it says so.
    version: Option<String>,
    etcd_version: String,
    leads_root: bool,
    learner: bool,
    file_bytes: i64,
    used_bytes: i64,
    revision: i64,
    ranges_led: Option<usize>,
    ranges: Option<usize>,
    io: Option<String>,
    /// Alarms, and that there is no leader.
    errors: Vec<String>,
    /// Nothing becomes durable there.
    disk_stalled: bool,
    /// Why it has failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    fault: Option<String>,
    /// Ranges placed on it that it does not serve.
    unserved: Vec<Unserved>,
    /// It is told once, for all.
    #[serde(skip)]
    cluster_version: Option<ClusterVersion>,
}

#[derive(Serialize)]
struct Unserved {
    range: u64,
    /// Absent: from the first key on.
    first_key: Option<String>,
    /// Absent: to the last.
    end_key: Option<String>,
    reason: String,
}

impl From<UnservedRange> for Unserved {
    fn from(range: UnservedRange) -> Self {
        let key = |key: &[u8]| (!key.is_empty()).then(|| shown(key));
        Self {
            range: range.id,
            first_key: key(&range.first_key),
            end_key: key(&range.end_key),
            reason: range.reason,
        }
    }
}

pub(crate) async fn run(endpoints: &Endpoints, status: Status) -> Result<(), AskError> {
    let seats = seats(endpoints).await?;
    let rows = join_all(seats.iter().map(row));
    let (members, ranges) = tokio::join!(rows, ask_all(&seats));
    let ranges = ranges.map(|told| merge(&seats, &told)).unwrap_or_default();
    let report = Report {
        fault_tolerance: FaultTolerance::of(&ranges),
        cluster_version: Version::of(&members),
        members,
    };
    print(status.json, &report, text)?;
    let away = report.members.iter().filter_map(|row| {
        let reason = row.not_reached.as_ref()?;
        Some(format!("{} ({reason})", row.name))
    });
    let away: Vec<_> = away.collect();
    match away.is_empty() {
        true => Ok(()),
        false => Err(AskError::Wrong(format!("not reached: {}", away.join(", ")))),
    }
}

async fn row(seat: &Seat) -> Row {
    let (told, not_reached) = match &seat.reached {
        Ok(peer) => (Some(told(peer).await), None),
        Err(reason) => (None, Some(reason.clone())),
    };
    Row {
        id: format!("{:x}", seat.member.id),
        name: seat.name(),
        told,
        not_reached,
    }
}

async fn told(peer: &Peer) -> Told {
    let status = &peer.status;
    let mut client = peer.ranges();
    let ranges = answer(client.list(ListRequest {}));
    let (ranges, page) = tokio::join!(ranges, Page::of(&peer.at));
    // (A real etcd has no ranges to tell of.)
    let (ranges, condition, cluster_version) = match ranges {
        Ok(list) => (Some(list.ranges), list.condition, list.version),
        Err(_) => (None, None, None),
    };
    let condition = condition.unwrap_or_default();
    let led = ranges.as_ref().map(|ranges| {
        let leads = ranges.iter().filter_map(|range| range.here.as_ref());
        leads.filter(|here| here.leads).count()
    });
    let label = |name, label| {
        let page = page.as_ref()?;
        page.label(name, label).map(str::to_owned)
    };
    Told {
        endpoint: peer.at.clone(),
        version: label("pontoon_build_info", "version"),
        etcd_version: status.version.clone(),
        leads_root: status.leader == peer.id,
        learner: status.is_learner,
        file_bytes: status.db_size,
        used_bytes: status.db_size_in_use,
        revision: status.header.as_ref().map_or(0, |header| header.revision),
        ranges_led: led,
        ranges: ranges.map(|ranges| ranges.len()),
        io: label("pontoon_io_backend_info", "backend"),
        errors: status.errors.clone(),
        disk_stalled: condition.disk_stalled,
        fault: Some(condition.fault).filter(|fault| !fault.is_empty()),
        unserved: condition.unserved.into_iter().map(Unserved::from).collect(),
        cluster_version,
    }
}

fn text(out: &mut dyn Write, report: &Report) -> io::Result<()> {
    table(out, &report.members)?;
    if let Some(tolerance) = &report.fault_tolerance {
        tolerance.line(out)?;
    }
    match &report.cluster_version {
        Some(version) => version.line(out),
        None => Ok(()),
    }
}

fn table(out: &mut dyn Write, rows: &[Row]) -> io::Result<()> {
    let names = [
        ("name", Side::Left),
        ("member", Side::Left),
        ("endpoint", Side::Left),
        ("version", Side::Left),
        ("role", Side::Left),
        ("leads", Side::Right),
        ("size", Side::Right),
        ("in use", Side::Right),
        ("revision", Side::Right),
        ("alarms", Side::Left),
    ];
    let cells = rows.iter().map(|row| {
        let Some(told) = &row.told else {
            let mut cells = [const { String::new() }; 10];
            cells[0].clone_from(&row.name);
            cells[1].clone_from(&row.id);
            cells[2] = "not reached".to_owned();
            return cells;
        };
        let version = told.version.as_ref();
        let version = version.map_or_else(
            || format!("etcd {}", told.etcd_version),
            |version| format!("{version} (etcd {})", told.etcd_version),
        );
        let role = match (told.leads_root, told.learner) {
            (true, _) => "leader",
            (false, true) => "learner",
            (false, false) => "follower",
        };
        let leads = match (told.ranges_led, told.ranges) {
            (Some(led), Some(ranges)) => format!("{led} of {ranges}"),
            _ => "-".to_owned(),
        };
        let bytes = |bytes: i64| size(u64::try_from(bytes).unwrap_or(0));
        [
            row.name.clone(),
            row.id.clone(),
            told.endpoint.clone(),
            version,
            role.to_owned(),
            leads,
            bytes(told.file_bytes),
            bytes(told.used_bytes),
            told.revision.to_string(),
            match told.errors.is_empty() {
                true => "none".to_owned(),
                false => told.errors.join("; "),
            },
        ]
    });
    columns(out, names, cells)?;
    for row in rows {
        if let Some(told) = &row.told {
            troubles(out, &row.name, told)?;
        }
    }
    // It is the same everywhere, as a rule, and long.
    let mut io: Vec<_> = rows
        .iter()
        .filter_map(|row| Some((row.told.as_ref()?.io.clone()?, row.name.clone())))
        .collect();
    io.sort();
    for group in io.chunk_by(|(one, _), (other, _)| one == other) {
        let names: Vec<_> = group.iter().map(|(_, name)| name.as_str()).collect();
        writeln!(out, "io of {}: {}", names.join(", "), group[0].0)?;
    }
    Ok(())
}

/// A line for each thing that keeps a member from serving.
fn troubles(out: &mut dyn Write, name: &str, told: &Told) -> io::Result<()> {
    if let Some(fault) = &told.fault {
        writeln!(out, "{name} has failed: {fault}")?;
    }
    if told.disk_stalled {
        writeln!(out, "{name}: its disk is stalled, it leads nothing")?;
    }
    for range in &told.unserved {
        writeln!(
            out,
            "{name} doesn't serve range {}, from {} to {}: {}",
            range.range,
            range.first_key.as_deref().unwrap_or("(first)"),
            range.end_key.as_deref().unwrap_or("(last)"),
            range.reason,
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use pontoon_api::pontoonpb::MemberVersion;

    use super::*;

    fn told() -> Told {
        Told {
            endpoint: "127.0.0.1:2379".to_owned(),
            version: None,
            etcd_version: "3.6.0".to_owned(),
            leads_root: false,
            learner: false,
            file_bytes: 0,
            used_bytes: 0,
            revision: 1,
            ranges_led: None,
            ranges: None,
            io: None,
            errors: Vec::new(),
            disk_stalled: false,
            fault: None,
            unserved: Vec::new(),
            cluster_version: None,
        }
    }

    fn lines(change: impl FnOnce(&mut Told)) -> Vec<String> {
        let mut told = told();
        change(&mut told);
        let row = Row {
            id: "7".to_owned(),
            name: "m1".to_owned(),
            told: Some(told),
            not_reached: None,
        };
        let mut out = Vec::new();
        table(&mut out, &[row]).unwrap();
        let text = String::from_utf8(out).unwrap();
        // Below the head and the member's row.
        text.lines().skip(2).map(str::to_owned).collect()
    }

    #[test]
    fn the_cluster_version_is_the_newest_that_is_known_and_who_holds_it_back_is_named() {
        let row = |id: u64, cluster: Option<u32>, versions: [u32; 3]| {
            let members = (1..).zip(versions);
            let told = Told {
                cluster_version: cluster.map(|cluster| ClusterVersion {
                    cluster,
                    members: members
                        .map(|(member, version)| MemberVersion { member, version })
                        .collect(),
                }),
                ..told()
            };
            Row {
                id: id.to_string(),
                name: format!("m{id}"),
                told: Some(told),
                not_reached: None,
            }
        };
        let line = |rows: &[Row]| {
            let mut out = Vec::new();
            Version::of(rows).unwrap().line(&mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        let mixed = [
            row(1, Some(1), [2, 1, 2]),
            row(2, None, [1; 3]),
            row(3, Some(1), [2, 1, 2]),
        ];
        assert_eq!(
            line(&mixed),
            "cluster version 1: m1, m3 would go up to 2, m2 not\n"
        );
        let late = [row(1, Some(1), [2, 1, 2]), row(2, Some(2), [2; 3])];
        assert_eq!(line(&late), "cluster version 2\n");
        assert!(Version::of(&[row(1, None, [1; 3])]).is_none());
    }

    #[test]
    fn troubles_are_below_the_table() {
        assert!(lines(|_| {}).is_empty());
        assert_eq!(
            lines(|told| told.disk_stalled = true),
            ["m1: its disk is stalled, it leads nothing"]
        );
        assert_eq!(
            lines(|told| told.fault = Some("wal/3.seg: write: EIO".to_owned())),
            ["m1 has failed: wal/3.seg: write: EIO"]
        );
        let unserved = UnservedRange {
            id: 3,
            first_key: "a\n".into(),
            end_key: "".into(),
            reason: "no leader".to_owned(),
        };
        let lines = lines(|told| told.unserved.push(unserved.into()));
        assert_eq!(lines.len(), 1);
        assert!(
            lines[0].starts_with("m1 doesn't serve range 3, from ")
                && lines[0].ends_with(" to (last): no leader")
                && lines[0].contains("\\n"),
            "{lines:?}"
        );
    }
}
