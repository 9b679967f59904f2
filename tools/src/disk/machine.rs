//! What the machine says of itself and of the disk under a directory.
//!
//! Kept true: nothing is guessed. What the kernel doesn't tell is absent, and
//! looking changes nothing.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::Serialize;

/// What was found.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Machine {
    pub(crate) kernel: String,
    pub(crate) processor: String,
    pub(crate) cores: usize,
    pub(crate) filesystem: String,
    pub(crate) mounted_at: String,
    pub(crate) mount_options: String,
    /// The block device, if there is one that the kernel names.
    pub(crate) device: Option<Device>,
    /// Limits of the control groups that this process is in.
    pub(crate) limits: Vec<Limit>,
}

/// A block device.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Device {
    pub(crate) name: String,
    pub(crate) model: Option<String>,
    /// `write back` (a cache that a sync must empty) or `write through`.
    pub(crate) write_cache: Option<String>,
    /// Whether a single write can be asked to go through the cache.
    pub(crate) fua: Option<bool>,
    pub(crate) scheduler: Option<String>,
    pub(crate) rotational: Option<bool>,
    /// What it is made of, for RAID, LVM and encryption.
    pub(crate) made_of: Vec<String>,
}

/// One limit of a control group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Limit {
    /// The file that has it.
    pub(crate) file: PathBuf,
    pub(crate) value: String,
    /// Whether it is about processors and not about the disk.
    pub(crate) cpu: bool,
}

impl Machine {
    /// Looks at `dir`.
    pub(crate) fn of(dir: &Path) -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let mounts = read("/proc/self/mountinfo");
        let device = fs::metadata(dir).map(|found| found.dev()).ok();
        let device = device.map(|dev| (rustix::fs::major(dev), rustix::fs::minor(dev)));
        let mount = device.and_then(|device| Mount::of(&mounts, device));
        let mount = mount.or_else(|| Mount::above(&mounts, dir));
        let cpus = read("/proc/cpuinfo");
        let processor = cpus
            .lines()
            .find_map(|line| line.strip_prefix("model name"));
        let release = read("/proc/sys/kernel/osrelease");
        let block = device.and_then(|(major, minor)| Device::of(major, minor));
        let number = block.as_ref().map(|(_, number)| number.as_str());
        Self {
            kernel: release.trim().to_owned(),
            processor: processor
                .map(|rest| rest.trim_matches([' ', '\t', ':']).to_owned())
                .unwrap_or_default(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            limits: limits(&read("/proc/self/cgroup"), &mounts, number),
            device: block.map(|(device, _)| device),
            filesystem: mount.as_ref().map(|m| m.kind.clone()).unwrap_or_default(),
            mounted_at: mount.as_ref().map(|m| m.at.clone()).unwrap_or_default(),
            mount_options: mount.map(|m| m.options).unwrap_or_default(),
        }
    }

    /// Flushes that the device has done so far, if it counts them.
    pub(crate) fn flushes(&self) -> Option<u64> {
        let device = self.device.as_ref()?;
        let stat = fs::read_to_string(format!("/sys/class/block/{}/stat", device.name)).ok()?;
        stat.split_whitespace().nth(15)?.parse().ok()
    }
}

/// A line of `/proc/self/mountinfo`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mount {
    device: (u32, u32),
    at: String,
    kind: String,
    options: String,
}

impl Mount {
    /// `36 35 98:0 /root /at rw,noatime master:1 - ext3 /dev/root rw,errors=continue`
    fn parse(line: &str) -> Option<Self> {
        let (left, right) = line.split_once(" - ")?;
        let left: Vec<_> = left.split(' ').collect();
        let mut right = right.split(' ');
        let kind = right.next()?.to_owned();
        let own = right.nth(1).unwrap_or_default();
        let (major, minor) = left.get(2)?.split_once(':')?;
        let mut options: Vec<&str> = left.get(5)?.split(',').collect();
        options.extend(own.split(',').filter(|option| !option.is_empty()));
        options.dedup();
        let mut seen = std::collections::BTreeSet::new();
        options.retain(|option| seen.insert(*option));
        Some(Self {
            device: (major.parse().ok()?, minor.parse().ok()?),
            at: left.get(4)?.replace("\\040", " "),
            kind,
            options: options.join(","),
        })
    }

    fn of(mounts: &str, device: (u32, u32)) -> Option<Self> {
        let mut found = mounts.lines().filter_map(Self::parse);
        found.find(|mount| mount.device == device)
    }

    /// Some file systems have devices that no mount names: then by the path.
    fn above(mounts: &str, dir: &Path) -> Option<Self> {
        let dir = dir.canonicalize().ok()?;
        let found = mounts.lines().filter_map(Self::parse);
        let above = found.filter(|mount| dir.starts_with(&mount.at));
        above.max_by_key(|mount| mount.at.len())
    }
}

impl Device {
    /// The device, and its number for limits: that of the whole disk.
    fn of(major: u32, minor: u32) -> Option<(Self, String)> {
        let link = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
        let mut path = link.canonicalize().ok()?;
        if path.join("partition").exists() {
            path = path.parent()?.to_owned();
        }
        let text = |name: &str| {
            let text = fs::read_to_string(path.join(name)).ok()?;
            Some(text.trim().to_owned()).filter(|text| !text.is_empty())
        };
        let flag = |name: &str| text(name).map(|text| text == "1");
        let scheduler = text("queue/scheduler").map(|all| {
            let chosen = all.split(['[', ']']).nth(1);
            chosen.unwrap_or(&all).to_owned()
        });
        let slaves = fs::read_dir(path.join("slaves")).into_iter().flatten();
        let slaves = slaves.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let device = Self {
            name: path.file_name()?.to_string_lossy().into_owned(),
            model: text("device/model"),
            write_cache: text("queue/write_cache"),
            fua: flag("queue/fua"),
            scheduler,
            rotational: flag("queue/rotational"),
            made_of: slaves.collect(),
        };
        let number = text("dev").unwrap_or_else(|| format!("{major}:{minor}"));
        Some((device, number))
    }
}

/// Limits of all groups from ours up to the root.
fn limits(groups: &str, mounts: &str, device: Option<&str>) -> Vec<Limit> {
    const V1: [(&str, &str, bool); 5] = [
        ("blkio", "blkio.throttle.write_iops_device", false),
        ("blkio", "blkio.throttle.write_bps_device", false),
        ("blkio", "blkio.throttle.read_iops_device", false),
        ("blkio", "blkio.throttle.read_bps_device", false),
        ("cpu", "cpu.cfs_quota_us", true),
    ];
    const V2: [(&str, bool); 2] = [("io.max", false), ("cpu.max", true)];
    let roots: Vec<_> = mounts.lines().filter_map(Mount::parse).collect();
    let mut found = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else {
            continue;
        };
        let files: Vec<(&str, bool)> = if controllers.is_empty() {
            V2.to_vec()
        } else {
            let ours = |name: &str| controllers.split(',').any(|own| own == name);
            let rows = V1.iter().filter(|(name, _, _)| ours(name));
            rows.map(|(_, file, cpu)| (*file, *cpu)).collect()
        };
        let Some(root) = roots.iter().find(|mount| match controllers {
            "" => mount.kind == "cgroup2",
            names => {
                mount.kind == "cgroup"
                    && names
                        .split(',')
                        .all(|name| mount.options.split(',').any(|option| option == name))
            }
        }) else {
            continue;
        };
        let root = Path::new(&root.at);
        let own = root.join(path.trim_start_matches('/'));
        for dir in own.ancestors().take_while(|dir| dir.starts_with(root)) {
            for (name, cpu) in &files {
                let file = dir.join(name);
                let text = fs::read_to_string(&file).unwrap_or_default();
                found.extend(limit_of(&text, *cpu, device).map(|value| Limit {
                    file,
                    value,
                    cpu: *cpu,
                }));
            }
        }
    }
    found
}

/// What a limit's file says, if it limits anything.
fn limit_of(text: &str, cpu: bool, device: Option<&str>) -> Option<String> {
    if cpu {
        let text = text.trim();
        let none = text.is_empty() || text.starts_with("max") || text.starts_with('-');
        return (!none).then(|| text.to_owned());
    }
    let device = device?;
    let lines = text.lines().filter_map(|line| line.split_once(' '));
    let mut ours = lines.filter(|(number, _)| *number == device);
    ours.next().map(|(_, value)| value.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_mounts_is_understood() {
        let line = "36 35 98:0 /mnt1 /mnt\\0402 rw,noatime master:1 - ext4 /dev/root rw,discard";
        let mount = Mount::parse(line).unwrap();
        assert_eq!(mount.device, (98, 0));
        assert_eq!(mount.at, "/mnt 2");
        assert_eq!(mount.kind, "ext4");
        assert_eq!(mount.options, "rw,noatime,discard");
        assert_eq!(Mount::parse("nonsense"), None);
    }

    #[test]
    fn only_limits_of_this_device_count() {
        let text = "8:0 rbps=max wbps=1048576 riops=max wiops=max\n9:0 wbps=5";
        assert_eq!(
            limit_of(text, false, Some("9:0")).as_deref(),
            Some("wbps=5")
        );
        assert_eq!(limit_of(text, false, Some("7:0")), None);
        assert_eq!(limit_of("max 100000", true, None), None);
        assert_eq!(limit_of("-1\n", true, None), None);
        assert_eq!(
            limit_of("50000 100000", true, None).as_deref(),
            Some("50000 100000")
        );
    }

    #[test]
    fn this_machine_is_told() {
        let machine = Machine::of(&std::env::temp_dir());
        assert!(!machine.filesystem.is_empty());
        assert!(machine.cores > 0);
    }
}
