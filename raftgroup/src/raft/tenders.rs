//! Where the stores of a node are tended, and copied.
//!
//! Kept true: a node has a bounded number of threads for it, however many
//! groups it has; the disk chooses what they are. Copying never waits for a
//! checkpoint of another group.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::future::ready;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use pontoon_wal::disk::{Disk, Task};
use tokio::sync::mpsc;

use crate::position::GroupId;

/// So many wait for the disk at a time.
const TENDERS_MAX: u64 = 4;

/// So many copy at a time.
const COPIERS_MAX: u64 = 2;

/// Those who tend the stores of one node.
pub(crate) struct Tenders {
    disk: Arc<dyn Disk>,
    started: Mutex<BTreeMap<String, mpsc::UnboundedSender<Task>>>,
}

impl Tenders {
    pub(crate) fn new(disk: Arc<dyn Disk>) -> Self {
        Self {
            disk,
            started: Mutex::default(),
        }
    }

    /// Starts what tends a group's store. It may block on the disk.
    pub(crate) fn run(&self, group: GroupId, task: Task) -> io::Result<()> {
        self.start(format!("trees-{}", group.0 % TENDERS_MAX), task)
    }

    /// Does a part of a copy, which may block on the disk. The parts of a
    /// group are done in the order in which they are handed in.
    pub(crate) fn copy(
        &self,
        group: GroupId,
        part: impl FnOnce() + Send + 'static,
    ) -> io::Result<()> {
        let task = move || {
            part();
            Box::pin(ready(())) as _
        };
        self.start(format!("copies-{}", group.0 % COPIERS_MAX), Box::new(task))
    }

    fn start(&self, name: String, task: Task) -> io::Result<()> {
        let mut started = self.started.lock();
        let task = match started.get(&name) {
            None => task,
            Some(tender) => match tender.send(task) {
                Ok(()) => return Ok(()),
                Err(refused) => refused.0,
            },
        };
        let (tender, tasks) = mpsc::unbounded_channel();
        // The other end is right here.
        let _ = tender.send(task);
        self.disk
            .run_background(&name, Box::new(move || Box::pin(tend(tasks))))?;
        started.insert(name, tender);
        Ok(())
    }
}

/// Runs tasks until all have ended and there will be no more.
async fn tend(mut tasks: mpsc::UnboundedReceiver<Task>) {
    let mut running = FuturesUnordered::new();
    let mut more = true;
    while more || !running.is_empty() {
        tokio::select! {
            biased;
            task = tasks.recv(), if more => match task {
                Some(task) => running.push(task()),
                None => more = false,
            },
            Some(()) = running.next() => {}
        }
    }
}
