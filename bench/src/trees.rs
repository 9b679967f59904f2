//! Our store as production runs it: checkpoints and sweeps on a thread of
//! their own, and a writer that waits when the disk doesn't keep up.

use std::io;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use pontoon_engine::{Applied, Config, Effect, EngineError, Entry, Revision, Step, Store};
use pontoon_wal::disk::{Backend, Disk, RealDisk};

use crate::pods::Put;

/// Changed pages in memory at which the writer waits, in multiples of those
/// that start a checkpoint.
pub const DIRTY_FACTOR_MAX: usize = 2;
/// How often the writer looks again.
const LOOK_AGAIN: Duration = Duration::from_micros(200);
/// How long it waits in all before something must be wrong.
const PATIENCE: Duration = Duration::from_secs(120);

/// A store, and where its next entry goes.
pub struct Tree {
    /// The store.
    pub store: Arc<Store>,
    disk: RealDisk,
    config: Config,
    index: u64,
    tended: Option<mpsc::Receiver<Result<(), EngineError>>>,
}

impl Tree {
    /// Opens the store in `dir`, or makes it.
    pub fn open(dir: &Path, config: Config) -> io::Result<Self> {
        std::fs::create_dir_all(dir)?;
        let disk = RealDisk::new(Backend::Auto, dir)?;
        let store = Store::open(&disk, &dir.join("tree"), config.clone()).map_err(other)?;
        Ok(Self {
            index: store.applied().index,
            store: Arc::new(store),
            disk,
            config,
            tended: None,
        })
    }

    /// [`Tree::open`], with the background work running.
    pub fn open_tended(dir: &Path, config: Config) -> io::Result<Self> {
        let mut tree = Self::open(dir, config)?;
        let store = Arc::clone(&tree.store);
        let (ended, tended) = mpsc::channel();
        tree.disk.run_background(
            "tree",
            Box::new(move || {
                Box::pin(async move {
                    let outcome = store.tend().await;
                    drop(store);
                    // Nobody listens if the tree was dropped without a close.
                    let _ = ended.send(outcome);
                })
            }),
        )?;
        tree.tended = Some(tended);
        Ok(tree)
    }

    /// The next entry of the log.
    pub fn entry(&mut self, steps: Vec<Step>) -> Entry {
        self.index += 1;
        Entry {
            applied: Applied {
                index: self.index,
                term: 1,
                leader: 1,
            },
            steps,
        }
    }

    /// The next entry of the log: what as many clients asked for at once.
    pub fn entry_of(&mut self, puts: &[Put]) -> Entry {
        let steps = puts.iter().map(step).collect();
        self.entry(steps)
    }

    /// Applies an entry, and then waits if too much is in memory only.
    pub fn apply(&self, entry: &Entry) -> io::Result<()> {
        self.store.apply(entry).map_err(other)?;
        let dirty_max = self.config.dirty_bytes_max * DIRTY_FACTOR_MAX;
        if self.tended.is_some() && self.store.dirty_bytes() > dirty_max {
            self.wait(|store| Ok(store.dirty_bytes() <= dirty_max))?;
        }
        Ok(())
    }

    /// Waits until no more is in memory only than starts a checkpoint.
    pub fn catch_up(&self) -> io::Result<()> {
        let dirty_max = self.config.dirty_bytes_max;
        self.wait(|store| Ok(store.dirty_bytes() <= dirty_max))
    }

    /// Waits until a checkpoint has everything. Nobody else writes meanwhile.
    pub fn settle(&self) -> io::Result<()> {
        if self.store.dirty_bytes() == 0 {
            return Ok(());
        }
        if self.tended.is_none() {
            return self.store.checkpoint().map_err(other);
        }
        self.store.request_checkpoint();
        self.wait(|store| Ok(store.dirty_bytes() == 0))
    }

    /// Waits until nothing is left to sweep.
    pub fn sweep(&self) -> io::Result<()> {
        self.wait(is_swept)
    }

    fn wait(&self, over: impl Fn(&Store) -> io::Result<bool>) -> io::Result<()> {
        let start = Instant::now();
        while !over(&self.store)? {
            if let Some(failure) = self.store.failure() {
                return Err(io::Error::other(failure.to_owned()));
            }
            if start.elapsed() > PATIENCE {
                return Err(io::Error::other("the store's background work is stuck"));
            }
            std::thread::sleep(LOOK_AGAIN);
        }
        Ok(())
    }

    /// Ends the background work, if there is any; the next opening finds what
    /// the last checkpoint has.
    pub fn close(self) -> io::Result<()> {
        self.store.close();
        match self.tended.map(|tended| tended.recv_timeout(PATIENCE)) {
            None => Ok(()),
            Some(Ok(outcome)) => outcome.map_err(other),
            Some(Err(_)) => Err(io::Error::other("the store's background work is stuck")),
        }
    }
}

/// Whether nothing is left to sweep. If something is, it sweeps one change:
/// the store doesn't tell otherwise.
pub fn is_swept(store: &Store) -> io::Result<bool> {
    store.compact_step(1).map(|more| !more).map_err(other)
}

/// What a put is in the log.
#[must_use]
pub fn step(put: &Put) -> Step {
    Step::Write {
        revision: Revision(put.revision),
        effects: vec![Effect::Put {
            key: put.key.clone(),
            value: put.value.clone(),
            lease: 0,
        }],
    }
}

/// The error as a bench reports it.
pub fn other(error: EngineError) -> io::Error {
    io::Error::other(error)
}
