//! What the kernel counts about this process.

use std::io;

/// Bytes of memory that are the process's own and resident (`RssAnon`).
pub fn rss_anon_bytes() -> io::Result<u64> {
    Ok(field("/proc/self/status", "RssAnon:")? * 1024)
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
    fn the_kernel_tells() {
        assert!(rss_anon_bytes().unwrap() > 0);
        assert!(read_bytes().unwrap() > 0);
    }
}
