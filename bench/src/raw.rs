//! The references: what the disk and the runtimes do with nothing around them.
//!
//! Kept true: every file is written once in full before it is measured, so
//! that no reference pays for the file system's books; every loop ends by its
//! count or its time; memory that the kernel may still read is never freed.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use io_uring::{IoUring, opcode, types};
use pontoon_wal::Blocks;
use tokio::sync::{mpsc, oneshot};

use crate::samples::Samples;

/// Makes a file of zeros that are on disk.
pub fn zeroed_file(path: &Path, bytes: u64) -> io::Result<()> {
    let file = File::create(path)?;
    let zeros = vec![0; 1 << 20];
    let mut offset = 0;
    while offset < bytes {
        let count = zeros.len().min((bytes - offset) as usize);
        file.write_all_at(&zeros[..count], offset)?;
        offset += count as u64;
    }
    file.sync_all()
}

/// Where the next write of a sequence goes, over and over through one file.
struct Places {
    file_bytes: u64,
    step: u64,
    next: u64,
}

impl Places {
    fn new(file: &File, step: usize) -> io::Result<Self> {
        Ok(Self {
            file_bytes: file.metadata()?.len(),
            step: step as u64,
            next: 0,
        })
    }

    fn next(&mut self) -> u64 {
        if self.next + self.step > self.file_bytes {
            self.next = 0;
        }
        self.next += self.step;
        self.next - self.step
    }
}

/// `pwrite` through the page cache and `fdatasync`, one after the other.
pub fn write_and_sync(path: &Path, bytes: usize, time: Duration) -> io::Result<Samples> {
    let file = OpenOptions::new().write(true).open(path)?;
    let mut places = Places::new(&file, bytes)?;
    let payload = vec![0x5a; bytes];
    in_a_loop(time, || {
        file.write_all_at(&payload, places.next())?;
        file.sync_data()
    })
}

/// Aligned `O_DIRECT` writes with a data sync each, through io_uring, one in flight.
pub fn write_direct(path: &Path, bytes: usize, time: Duration) -> io::Result<Samples> {
    let mut writes = DirectWrites::new(path, bytes, 1, libc::RWF_DSYNC)?;
    in_a_loop(time, || {
        writes.submit(0)?;
        writes.wait().map(drop)
    })
}

fn in_a_loop(time: Duration, mut step: impl FnMut() -> io::Result<()>) -> io::Result<Samples> {
    let mut samples = Samples::default();
    let start = Instant::now();
    let mut before = start;
    while before - start < time {
        step()?;
        let now = Instant::now();
        samples.add(now - before);
        before = now;
    }
    samples.elapsed = before - start;
    Ok(samples)
}

/// Bytes per second of sequential `O_DIRECT` writes of `write_bytes` with
/// `in_flight` outstanding, each synced if `sync_each`; one sync at the end.
pub fn write_bandwidth(
    path: &Path,
    write_bytes: usize,
    in_flight: usize,
    sync_each: bool,
    time: Duration,
) -> io::Result<f64> {
    let flags = if sync_each { libc::RWF_DSYNC } else { 0 };
    let mut writes = DirectWrites::new(path, write_bytes, in_flight, flags)?;
    let start = Instant::now();
    let mut written = 0;
    for buffer in 0..in_flight {
        writes.submit(buffer)?;
    }
    while start.elapsed() < time {
        let buffer = writes.wait()?;
        written += write_bytes;
        writes.submit(buffer)?;
    }
    while writes.outstanding > 0 {
        writes.wait()?;
        written += write_bytes;
    }
    writes.file.sync_data()?;
    Ok(written as f64 / start.elapsed().as_secs_f64())
}

/// Writes that a ring has in flight, each with a buffer of its own.
struct DirectWrites {
    ring: IoUring,
    file: File,
    buffers: Vec<Blocks>,
    places: Places,
    flags: i32,
    outstanding: usize,
}

impl DirectWrites {
    fn new(path: &Path, bytes: usize, in_flight: usize, flags: i32) -> io::Result<Self> {
        let file = OpenOptions::new()
            .write(true)
            .custom_flags(libc::O_DIRECT)
            .open(path)?;
        let mut buffer = Blocks::zeroed(bytes);
        buffer.as_mut_slice().fill(0x5a);
        Ok(Self {
            ring: IoUring::new(64)?,
            places: Places::new(&file, bytes)?,
            file,
            buffers: vec![buffer; in_flight],
            flags,
            outstanding: 0,
        })
    }

    fn submit(&mut self, buffer: usize) -> io::Result<()> {
        let bytes = self.buffers[buffer].as_slice();
        let entry = opcode::Write::new(
            types::Fd(self.file.as_raw_fd()),
            bytes.as_ptr(),
            bytes.len() as u32,
        )
        .offset(self.places.next())
        .rw_flags(self.flags)
        .build()
        .user_data(buffer as u64);
        // SAFETY: the kernel reads a buffer and a file that `self` owns and
        // neither changes nor closes meanwhile; `drop` gives the memory up
        // rather than free it while something is outstanding.
        #[allow(unsafe_code)]
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.map_err(io::Error::other)?;
        self.outstanding += 1;
        self.ring.submit().map(drop)
    }

    /// Waits for one write and tells which buffer it had.
    fn wait(&mut self) -> io::Result<usize> {
        loop {
            if let Some(entry) = self.ring.completion().next() {
                self.outstanding -= 1;
                let buffer = entry.user_data() as usize;
                return match entry.result() {
                    count if count == self.buffers[buffer].len() as i32 => Ok(buffer),
                    negative if negative < 0 => Err(io::Error::from_raw_os_error(-negative)),
                    _ => Err(io::ErrorKind::WriteZero.into()),
                };
            }
            match self.ring.submit_and_wait(1) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
        }
    }
}

impl Drop for DirectWrites {
    fn drop(&mut self) {
        if self.outstanding > 0 {
            std::mem::forget(std::mem::take(&mut self.buffers));
        }
    }
}

/// Reads files whole with `O_DIRECT` in blocks of 1 MiB; returns their bytes.
pub fn read_direct<'a>(paths: impl Iterator<Item = &'a Path>) -> io::Result<u64> {
    let mut buffer = Blocks::zeroed(1 << 20);
    let mut bytes = 0;
    for path in paths {
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_DIRECT)
            .open(path)?;
        let mut offset = 0;
        loop {
            match file.read_at(buffer.as_mut_slice(), offset)? {
                0 => break,
                count => offset += count as u64,
            }
        }
        bytes += offset;
    }
    Ok(bytes)
}

/// Round trips of nothing: from a task to a thread with a ring and back, the
/// way that a batch takes through the log.
pub async fn hand_offs(time: Duration) -> io::Result<Samples> {
    let (requests, mut queue) = mpsc::unbounded_channel::<oneshot::Sender<()>>();
    let thread = std::thread::Builder::new()
        .name("hand-off".to_owned())
        .spawn(move || {
            let runtime = tokio_uring::Runtime::new(tokio_uring::builder().entries(64))?;
            runtime.block_on(async move {
                let mut incoming = Vec::new();
                while queue.recv_many(&mut incoming, 4096).await > 0 {
                    for done in incoming.drain(..) {
                        // Whoever asked waits right below.
                        let _ = done.send(());
                    }
                }
            });
            io::Result::Ok(())
        })?;
    let ended = || io::Error::other("the hand-off thread ended");
    let mut samples = Samples::default();
    let start = Instant::now();
    let mut before = start;
    while before - start < time {
        let (done, waiting) = oneshot::channel();
        requests.send(done).map_err(|_| ended())?;
        waiting.await.map_err(|_| ended())?;
        let now = Instant::now();
        samples.add(now - before);
        before = now;
    }
    samples.elapsed = before - start;
    drop(requests);
    thread.join().map_err(|_| ended())??;
    Ok(samples)
}
