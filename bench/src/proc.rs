//! What the kernel counts about this process and the machine.

use std::io;

/// Processor time up to a moment, in the kernel's ticks.
#[derive(Clone, Copy, Debug)]
pub struct CpuTime {
    /// Of all processors, idle or not.
    machine: u64,
    busy: u64,
    /// Of this process and of its children that have ended.
    own: u64,
}

impl CpuTime {
    /// Up to now.
    pub fn now() -> io::Result<Self> {
        let bad = || io::Error::other("/proc has times that can't be read");
        let text = std::fs::read_to_string("/proc/stat")?;
        // user nice system idle iowait irq softirq steal
        let machine: Vec<u64> = text
            .split_whitespace()
            .skip(1)
            .take(8)
            .filter_map(|word| word.parse().ok())
            .collect();
        let text = std::fs::read_to_string("/proc/self/stat")?;
        // The name may hold anything, so count from behind it: there, utime
        // stime cutime cstime are the 12th to the 15th.
        let (_, fields) = text.rsplit_once(')').ok_or_else(bad)?;
        let own = fields
            .split_whitespace()
            .skip(11)
            .take(4)
            .filter_map(|word| word.parse::<u64>().ok())
            .sum();
        let &[_, _, _, idle, iowait, ..] = machine.as_slice() else {
            return Err(bad());
        };
        let total = machine.iter().sum::<u64>();
        Ok(Self {
            machine: total,
            busy: total - idle - iowait,
            own,
        })
    }

    /// Seconds that this process has used since.
    pub fn own_since(&self) -> io::Result<f64> {
        let ticks = Self::now()?.own.saturating_sub(self.own);
        Ok(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
    }

    /// The share of the machine (0 to 1) that others have used since.
    pub fn others_since(&self) -> io::Result<f64> {
        let now = Self::now()?;
        let busy = now.busy.saturating_sub(self.busy) as f64;
        let own = now.own.saturating_sub(self.own) as f64;
        let machine = now.machine.saturating_sub(self.machine).max(1) as f64;
        Ok(((busy - own) / machine).max(0.0))
    }
}

/// Bytes of memory that are the process's own and resident (`RssAnon`).
pub fn rss_anon_bytes() -> io::Result<u64> {
    Ok(field("/proc/self/status", "RssAnon:")? * 1024)
}

/// Bytes of files that are mapped and resident (`RssFile`).
pub fn rss_file_bytes() -> io::Result<u64> {
    Ok(field("/proc/self/status", "RssFile:")? * 1024)
}

/// Bytes that were read from a disk for this process.
pub fn disk_read_bytes() -> io::Result<u64> {
    field("/proc/self/io", "read_bytes:")
}

/// Bytes that were written to a disk for this process, or will be.
pub fn disk_written_bytes() -> io::Result<u64> {
    field("/proc/self/io", "write_bytes:")
}

/// Bytes that the process asked the kernel to read so far, from any source.
pub fn read_bytes() -> io::Result<u64> {
    field("/proc/self/io", "rchar:")
}

fn field(path: &str, name: &str) -> io::Result<u64> {
    let text = std::fs::read_to_string(path)?;
    text.lines()
        .find_map(|line| line.strip_prefix(name))
        .and_then(|rest| rest.split_whitespace().next())
        .and_then(|number| number.parse().ok())
        .ok_or_else(|| io::Error::other(format!("{path} has no {name}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_time_is_not_the_others() {
        let before = CpuTime::now().unwrap();
        let mut sum = 0u64;
        for number in 0..300_000_000u64 {
            sum = std::hint::black_box(sum.wrapping_add(number));
        }
        let after = CpuTime::now().unwrap();
        assert!(after.own > before.own && after.machine > before.machine);
        assert!((0.0..=1.0).contains(&before.others_since().unwrap()));
    }

    #[test]
    fn the_kernel_tells() {
        assert!(rss_anon_bytes().unwrap() > 0);
        assert!(read_bytes().unwrap() > 0);
        assert!(rss_file_bytes().unwrap() > 0);
        disk_read_bytes().unwrap();
    }
}
