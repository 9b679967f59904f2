//! What makes a figure less true than it looks, and whether a sync syncs.
//!
//! Kept true: a doubt about durability is raised only on evidence; what can't
//! be known from here is said as such and proved by pulling the plug.

use crate::disk::latency::time;
use crate::disk::report::{Doubt, Report};

/// No flash can make a write durable in less: the fastest take about 10 µs.
const SYNC_NS_MIN: u64 = 5_000;
/// Of the machine, at which figures are worse than the disk.
const OTHERS_MAX: f64 = 0.25;

/// Memory that looks like a disk.
const VOLATILE: [&str; 3] = ["tmpfs", "ramfs", "rootfs"];
/// File systems whose syncs end at somebody else's word.
const REMOTE: [&str; 9] = [
    "nfs",
    "nfs4",
    "cifs",
    "9p",
    "virtiofs",
    "fuse",
    "fuseblk",
    "ceph",
    "glusterfs",
];

/// Adds what the report itself gives reason to doubt.
pub(crate) fn look(report: &mut Report) {
    let kind = report.machine.filesystem.clone();
    if VOLATILE.contains(&kind.as_str()) {
        add(
            report,
            true,
            format!("{kind} is memory: nothing on it survives a restart"),
        );
    }
    if REMOTE
        .iter()
        .any(|name| kind == *name || kind.starts_with("fuse."))
    {
        let what = format!("{kind}: whether a sync is durable is up to another host or process");
        add(report, false, what);
    }
    let options = report.machine.mount_options.clone();
    if options
        .split(',')
        .any(|o| o == "nobarrier" || o == "barrier=0")
    {
        let what = "mounted without barriers: a sync doesn't empty the device's cache";
        add(report, true, what.to_owned());
    }
    if let Some(idle) = &report.idle
        && idle.commit.p50_ns < SYNC_NS_MIN
    {
        let what = format!(
            "a commit takes {}, which no flash can do: a sync doesn't reach a device",
            time(idle.commit.p50_ns)
        );
        add(report, true, what);
    }
    if let Some(device) = report.machine.device.clone() {
        match device.write_cache.as_deref() {
            Some("write back") if device.name.starts_with("vd") => {
                let what = format!(
                    "{} is a virtual disk with a write-back cache: flushes were asked for, what \
                     the host does with them can't be seen from here (--powerfail-witness can)",
                    device.name
                );
                add(report, false, what);
            }
            Some("write through") => {
                let what = format!(
                    "{} says that it has no volatile cache (write through), so no flushes are \
                     sent: true for disks with power-loss protection, else a lie",
                    device.name
                );
                add(report, false, what);
            }
            _ => {}
        }
        if device.name.starts_with("loop") || !device.made_of.is_empty() {
            let made_of = device.made_of.join(", ");
            let what = format!(
                "{} is made of other devices ({}), whose settings count too",
                device.name,
                if made_of.is_empty() {
                    "a file"
                } else {
                    &made_of
                }
            );
            add(report, false, what);
        }
    }
    if report.others_cpu > OTHERS_MAX {
        let what = format!(
            "others used {:.0} % of the processors meanwhile: the disk is better than this",
            report.others_cpu * 100.0
        );
        add(report, false, what);
    }
    if report.io.contains("on purpose") {
        let what = "every commit was made longer on purpose (--rehearse-delay)";
        add(report, false, what.to_owned());
    }
}

/// A cache that must be emptied was, for about every commit.
pub(crate) fn compare_flushes(report: &mut Report, flushes: u64, commits: u64) {
    let Some(device) = report.machine.device.clone() else {
        return;
    };
    let volatile = device.write_cache.as_deref() == Some("write back");
    if volatile && device.fua == Some(false) && flushes * 2 < commits {
        let what = format!(
            "{} has a volatile cache, and {commits} commits caused only {flushes} flushes: a sync \
             doesn't reach the device",
            device.name
        );
        add(report, true, what);
    }
}

fn add(report: &mut Report, durability: bool, what: String) {
    let doubt = Doubt { durability, what };
    if !report.doubts.contains(&doubt) {
        report.doubts.push(doubt);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::machine::Device;
    use crate::disk::report::Phase;

    fn is_lossy(report: &Report) -> bool {
        report.doubts.iter().any(|doubt| doubt.durability)
    }

    #[test]
    fn memory_and_impossible_speed_are_found_out() {
        let mut report = Report::default();
        report.machine.filesystem = "tmpfs".to_owned();
        look(&mut report);
        assert!(is_lossy(&report));

        let mut report = Report::default();
        let mut idle = Phase::default();
        idle.commit.p50_ns = 900;
        report.idle = Some(idle);
        look(&mut report);
        assert!(is_lossy(&report));
    }

    #[test]
    fn missing_flushes_are_found_out() {
        let mut report = Report::default();
        report.machine.device = Some(Device {
            name: "vda".to_owned(),
            write_cache: Some("write back".to_owned()),
            fua: Some(false),
            ..Device::default()
        });
        compare_flushes(&mut report, 990, 1000);
        assert!(!is_lossy(&report));
        compare_flushes(&mut report, 3, 1000);
        assert!(is_lossy(&report));
    }

    #[test]
    fn an_honest_disk_loses_nothing() {
        let mut report = Report::default();
        report.machine.filesystem = "ext4".to_owned();
        let mut idle = Phase::default();
        idle.commit.p50_ns = 120_000;
        report.idle = Some(idle);
        look(&mut report);
        assert!(!is_lossy(&report), "{:?}", report.doubts);
    }
}
