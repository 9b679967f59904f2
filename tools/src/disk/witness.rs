//! Whether a pulled plug loses what was acknowledged: another host keeps the
//! numbers of what this one called durable, and afterwards they are compared.
//!
//! Kept true: a number is sent only after the log called its entry durable,
//! and an entry says its own number in its content. So if one that the witness
//! has is missing or different after the power cut, the disk lied.
//!
//! On the wire and in the witness's file there are lines: first
//! `pontoon-witness 1 DIR`, then `durable INDEX`.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use clap::Args;
use futures_util::FutureExt;
use pontoon_wal::disk::{Backend, RealDisk};
use pontoon_wal::{Batch, Config, LogIndex, StreamId, SystemClock, Wal};

use crate::disk::DiskError;
use crate::disk::place::{check_dir, free_bytes};
use crate::disk::stop::Stop;
use crate::output::{say, size};

/// The directory of the log, which stays.
const DIR: &str = "pontoon-powerfail";
const HELLO: &str = "pontoon-witness 1";
const STREAM: StreamId = StreamId(1);
/// Bytes of an entry, and how many are on their way.
const ENTRY_BYTES: usize = 512;
const IN_FLIGHT_MAX: u64 = 64;
/// Entries that are kept.
const KEPT: u64 = 100_000;
const SPACE: u64 = 512 << 20;
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(50);

/// `pontoonctl disk witness`.
#[derive(Args)]
pub(crate) struct Witness {
    /// Where to listen, as 0.0.0.0:7777
    #[arg(long, value_name = "ADDRESS")]
    listen: String,
    /// The file that the numbers go to; it must not be there yet
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

/// What came of a comparison.
pub(crate) struct Verified {
    pub(crate) told: u64,
    pub(crate) lost: Option<String>,
}

impl Witness {
    /// Writes down what one host says, until that ends.
    pub(crate) fn run(&self, stop: &Stop) -> Result<(), DiskError> {
        let mut options = OpenOptions::new();
        let out = options.write(true).create_new(true).open(&self.out);
        let out = out.map_err(|error| DiskError::at(&self.out, error))?;
        let failed = |error| DiskError::Network(self.listen.clone(), error);
        let listener = TcpListener::bind(&self.listen).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let at = listener.local_addr().map_err(failed)?;
        say(&format!("pontoonctl: witness listens at {at}"));
        let (stream, from) = loop {
            match listener.accept() {
                Ok(accepted) => break accepted,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(failed(error)),
            }
            if stop.is_interrupted() {
                return Ok(());
            }
            std::thread::sleep(LOOK);
        };
        say(&format!(
            "pontoonctl: {from} is being witnessed; end with Ctrl-C"
        ));
        stream.set_nonblocking(false).map_err(failed)?;
        stream.set_read_timeout(Some(LOOK)).map_err(failed)?;
        let last = copy_lines(stream, out, stop).map_err(failed)?;
        say(&format!(
            "pontoonctl: the last that {from} called durable: {}",
            last.map_or("nothing".to_owned(), |index| format!("entry {index}"))
        ));
        Ok(())
    }
}

/// Copies whole lines until there are no more; returns the last number.
fn copy_lines(stream: TcpStream, out: File, stop: &Stop) -> io::Result<Option<u64>> {
    let mut lines = BufReader::new(stream);
    let mut out = BufWriter::new(out);
    let mut line = Vec::new();
    let mut last = None;
    let mut greeted = false;
    loop {
        match lines.read_until(b'\n', &mut line) {
            Ok(0) => break,
            // A host that lost its power ends in the middle, and says no more.
            Ok(_) if !line.ends_with(b"\n") => break,
            Ok(_) => {
                let text = String::from_utf8_lossy(&line);
                if !greeted && !text.starts_with(HELLO) {
                    let what = "who connected is no `disk qualify --powerfail-witness`";
                    return Err(io::Error::other(what));
                }
                greeted = true;
                out.write_all(&line)?;
                if let Some(index) = durable_of(text.trim_end()) {
                    last = Some(index);
                }
                line.clear();
            }
            Err(error) if is_pause(&error) => out.flush()?,
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => break,
            Err(error) => return Err(error),
        }
        if stop.is_interrupted() {
            break;
        }
    }
    out.flush()?;
    out.get_ref().sync_all()?;
    Ok(last)
}

fn is_pause(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
    )
}

fn durable_of(line: &str) -> Option<u64> {
    line.strip_prefix("durable ")?.parse().ok()
}

/// What entry `index` has in it.
fn content(index: u64) -> Bytes {
    let word = index.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    let mut bytes = index.to_le_bytes().to_vec();
    bytes.extend(word.iter().cycle().take(ENTRY_BYTES - 8));
    bytes.into()
}

/// Writes entries and tells the witness of each that is durable, until it is
/// stopped, the witness goes, or the plug is pulled. Returns how many.
pub(crate) fn stream(
    dir: &Path,
    witness: &str,
    time: Option<Duration>,
    stop: &Stop,
) -> Result<u64, DiskError> {
    check_dir(dir)?;
    let kept = dir.join(DIR);
    if kept.exists() {
        return Err(DiskError::Kept(kept));
    }
    let free = free_bytes(dir)?;
    if free < SPACE {
        return Err(DiskError::Space(dir.to_owned(), size(free), size(SPACE)));
    }
    let failed = |error| DiskError::Network(witness.to_owned(), error);
    let mut to = connect(witness).map_err(failed)?;
    writeln!(to, "{HELLO} {}", kept.display()).map_err(failed)?;
    say(&format!(
        "pontoonctl: writing to {}, which stays; pull the plug, then run\n  \
         pontoonctl disk qualify --dir {} --verify FILE   (FILE is what the witness wrote)",
        kept.display(),
        dir.display()
    ));
    let wal = open(&kept)?;
    let (report, durable) = mpsc::channel();
    let began = Instant::now();
    let (mut next, mut told) = (0u64, 0u64);
    let is_over = || stop.is_interrupted() || time.is_some_and(|time| began.elapsed() >= time);
    while !is_over() {
        while next - told < IN_FLIGHT_MAX {
            let mut batch = Batch::new();
            if next.is_multiple_of(KEPT / 10) && next > KEPT {
                batch.purge_below(STREAM, LogIndex(next - KEPT));
            }
            batch.append(STREAM, LogIndex(next), vec![content(next)]);
            let (report, index) = (report.clone(), next);
            let done = move |result: io::Result<()>| {
                // Who asked has ended: then nobody is told.
                let _ = report.send((index, result.is_ok()));
            };
            match wal.append(batch, done).now_or_never() {
                Some(appended) => appended?,
                None => break,
            }
            next += 1;
        }
        let Ok(first) = durable.recv_timeout(LOOK) else {
            continue;
        };
        let mut last = first;
        while let Ok(more) = durable.try_recv() {
            last = more;
        }
        let (index, well) = last;
        if !well {
            let reason = wal.failure().map(|reason| reason.to_string());
            return Err(DiskError::Failed(reason.unwrap_or_default()));
        }
        // They become durable in order: the last one tells of all.
        told = index + 1;
        writeln!(to, "durable {index}")
            .and_then(|()| to.flush())
            .map_err(failed)?;
    }
    Ok(told)
}

fn connect(witness: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "no such host");
    for at in witness.to_socket_addrs()? {
        match TcpStream::connect_timeout(&at, CONNECT_WITHIN) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                stream.set_write_timeout(Some(CONNECT_WITHIN))?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn open(dir: &Path) -> Result<Wal, DiskError> {
    let disk = RealDisk::new(Backend::Auto, dir).map_err(|error| DiskError::at(dir, error))?;
    let clock = Arc::new(SystemClock::default());
    let (wal, _) = Wal::open(Config::new(dir, 1), Arc::new(disk), clock)?;
    Ok(wal)
}

/// Compares what the witness has with what is on the disk now.
pub(crate) fn verify(dir: &Path, file: &Path) -> Result<Verified, DiskError> {
    let text = std::fs::read_to_string(file).map_err(|error| DiskError::at(file, error))?;
    if !text.starts_with(HELLO) {
        return Err(DiskError::NotAWitness(file.to_owned()));
    }
    // A last line without its end was being written.
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let Some(last) = whole.lines().filter_map(durable_of).max() else {
        let (told, lost) = (0, None);
        return Ok(Verified { told, lost });
    };
    let told = last + 1;
    let kept = dir.join(DIR);
    if !kept.is_dir() {
        return Err(DiskError::NotKept(kept));
    }
    let lost = |what: String| {
        Ok(Verified {
            told,
            lost: Some(what),
        })
    };
    let wal = match open(&kept) {
        Ok(wal) => wal,
        Err(error @ DiskError::Wal(_)) => return lost(format!("the log doesn't open: {error}")),
        Err(error) => return Err(error),
    };
    let Some((first, next)) = wal.bounds(STREAM) else {
        return lost("the log is empty".to_owned());
    };
    if next.0 < told {
        return lost(format!(
            "entries {} to {last} were called durable and are not there",
            next.0
        ));
    }
    let mut at = first.0;
    while at < told {
        let entries = match wal.read(STREAM, LogIndex(at), LogIndex(told), 1 << 20) {
            Ok(entries) if !entries.is_empty() => entries,
            Ok(_) => return lost(format!("entry {at} is not there")),
            Err(error) => return lost(format!("entry {at} can't be read: {error}")),
        };
        for entry in entries {
            if entry != content(at) {
                return lost(format!("entry {at} is not what was written"));
            }
            at += 1;
        }
    }
    Ok(Verified { told, lost: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_says_its_number() {
        assert_eq!(content(7).len(), ENTRY_BYTES);
        assert_eq!(content(7)[..8], 7u64.to_le_bytes());
        assert_ne!(content(7)[8..], content(8)[8..]);
    }

    #[test]
    fn only_whole_lines_count() {
        assert_eq!(durable_of("durable 12"), Some(12));
        assert_eq!(durable_of("durable"), None);
        assert_eq!(durable_of(HELLO), None);
    }
}
