//! Durable writes through io_uring: one submission writes and syncs.
//!
//! Kept true: the kernel only ever sees memory and a file descriptor that the
//! operation itself owns, so neither can go away while it is in flight.

use std::fs::File;
use std::future::Future;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use io_uring::{cqueue, opcode, types};
use tokio_uring::{InFlightOneshot, OneshotOutputTransform, UnsubmittedOneshot};

use super::Task;
use crate::blocks::Blocks;

/// What a write in flight owns; tokio-uring keeps it until the completion,
/// also when nobody waits for it any more.
struct Owned {
    _file: Arc<File>,
    blocks: Blocks,
}

struct Written;

impl OneshotOutputTransform for Written {
    type Output = (io::Result<usize>, Blocks);
    type StoredData = Owned;

    fn transform_oneshot_output(self, owned: Owned, entry: cqueue::Entry) -> Self::Output {
        let written = match entry.result() {
            negative if negative < 0 => Err(io::Error::from_raw_os_error(-negative)),
            count => Ok(count as usize),
        };
        (written, owned.blocks)
    }
}

/// Writes `blocks` at `offset` with a data sync. The first submission happens
/// in this call; the future goes on if the kernel wrote less than asked.
pub(super) fn write_durably(
    file: Arc<File>,
    offset: u64,
    blocks: Blocks,
) -> impl Future<Output = (io::Result<()>, Blocks)> + 'static {
    let mut written = 0;
    let mut in_flight = submit(&file, offset, blocks, written);
    async move {
        loop {
            let (result, blocks) = in_flight.await;
            match result {
                Ok(0) => return (Err(io::ErrorKind::WriteZero.into()), blocks),
                Ok(count) => written += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return (Err(error), blocks),
            }
            if written >= blocks.len() {
                return (Ok(()), blocks);
            }
            in_flight = submit(&file, offset, blocks, written);
        }
    }
}

fn submit(
    file: &Arc<File>,
    offset: u64,
    blocks: Blocks,
    written: usize,
) -> InFlightOneshot<Owned, Written> {
    let rest = &blocks.as_slice()[written..];
    let entry = opcode::Write::new(
        types::Fd(file.as_raw_fd()),
        rest.as_ptr(),
        u32::try_from(rest.len()).expect("a commit is smaller than a segment"),
    )
    .offset(offset + written as u64)
    .rw_flags(libc::RWF_DSYNC)
    .build();
    let owned = Owned {
        _file: Arc::clone(file),
        blocks,
    };
    UnsubmittedOneshot::new(owned, Written, entry).submit()
}

/// A ring with its runtime, or why there can be none here.
fn runtime() -> io::Result<tokio_uring::Runtime> {
    tokio_uring::Runtime::new(tokio_uring::builder().entries(64))
}

/// Whether this process may use io_uring at all.
pub(super) fn probe() -> io::Result<()> {
    runtime().map(drop)
}

/// Runs `task` on a ring of its own, reporting first whether there is one.
pub(super) fn run(task: Task, ready: impl FnOnce(io::Result<()>)) {
    match runtime() {
        Err(error) => ready(Err(error)),
        Ok(runtime) => {
            ready(Ok(()));
            runtime.block_on(task());
        }
    }
}
