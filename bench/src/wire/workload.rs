//! What the clients of a load ask, and what a good answer is.

mod leases;
mod puts;
mod ranges;

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use clap::ValueEnum;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::connection::Rpc;
use super::draw::{Draw, Spread};
use super::expiries::Expiries;
use super::failure::Failure;
use super::k8s::{self, Cluster};
use super::templates::{Keys, Template};
use leases::Leases;
use puts::{Puts, Swaps};
use ranges::{Pages, Ranges};

/// A kind of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Workload {
    /// Puts.
    Put,
    /// Transactions as kube-apiserver makes them: put if the revision is the
    /// one that was seen last, else range. Every client has keys of its own.
    Cas,
    /// Linearizable gets.
    Get,
    /// Serializable gets.
    GetSerializable,
    /// Linearizable ranges with a limit, from any key to the last one.
    Range,
    /// All keys page by page, at the revision of the first page.
    Pages,
    /// Ranges with a limit, at revisions before the last ones.
    RangeOld,
    /// Gets and puts (--read-percent).
    Mixed,
    /// Puts, and watchers that see every one of them.
    Watch,
    /// Leases: granted, attached to a key, kept alive three times; then one
    /// half is revoked and the other left to expire.
    Lease,
    /// Puts, and a compaction every now and then (--compact-every).
    Compaction,
    /// A control plane; has a command of its own.
    #[value(skip)]
    K8s,
}

impl Workload {
    /// As it is called on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Put => "put",
            Self::Cas => "cas",
            Self::Get => "get",
            Self::GetSerializable => "get-serializable",
            Self::Range => "range",
            Self::Pages => "pages",
            Self::RangeOld => "range-old",
            Self::Mixed => "mixed",
            Self::Watch => "watch",
            Self::Lease => "lease",
            Self::Compaction => "compaction",
            Self::K8s => "k8s",
        }
    }

    /// Whether all keys must be there before.
    #[must_use]
    pub fn reads(self) -> bool {
        match self {
            Self::Put | Self::Watch | Self::Lease | Self::Compaction | Self::K8s => false,
            Self::Cas | Self::Get | Self::GetSerializable | Self::Range => true,
            Self::Pages | Self::RangeOld | Self::Mixed => true,
        }
    }

    /// The kinds of its requests, and whether each is beside the load.
    #[must_use]
    pub fn classes(self) -> &'static [(&'static str, bool)] {
        match self {
            Self::Put | Self::Watch => &[("put", false)],
            Self::Cas => &[("txn", false)],
            Self::Get | Self::GetSerializable => &[("get", false)],
            Self::Range | Self::Pages | Self::RangeOld => &[("range", false)],
            Self::Mixed => &[("get", false), ("put", false)],
            Self::Lease => &leases::CLASSES,
            Self::Compaction => &[("put", false), ("compact", true)],
            Self::K8s => &k8s::CLASSES,
        }
    }

    /// One of its clients.
    #[must_use]
    pub fn client(self, plan: &Plan, number: usize) -> Box<dyn Client> {
        let mut rng = SmallRng::seed_from_u64(plan.seed ^ (number as u64) << 32);
        match self {
            Self::Put | Self::Watch | Self::Compaction => Box::new(Puts::new(plan, rng)),
            Self::Cas => {
                let turn = rng.random_range(0..plan.keys.count) as usize;
                Box::new(Swaps::new(plan, number, turn))
            }
            Self::Get => Box::new(Ranges::new(plan, rng, None, false)),
            Self::GetSerializable => Box::new(Ranges::new(plan, rng, None, true)),
            Self::Range => Box::new(Ranges::new(plan, rng, Some(plan.limit), false)),
            Self::RangeOld => Box::new(Ranges::old(plan, rng)),
            Self::Pages => Box::new(Pages::new(plan, rng)),
            Self::Mixed => Box::new(Mixed {
                gets: Ranges::new(plan, rng.clone(), None, false),
                puts: Puts::new(plan, rng.clone()),
                read_percent: plan.read_percent,
                reads: false,
                rng,
            }),
            Self::Lease => Box::new(Leases::new(plan, number, rng)),
            Self::K8s => {
                let cluster = plan.cluster.as_ref().expect("k8s has a cluster");
                Box::new(cluster.client(plan, number, rng))
            }
        }
    }
}

/// What all clients of a load know.
pub struct Plan {
    /// Their keys.
    pub keys: Keys,
    /// How requests are spread over them.
    pub spread: Spread,
    /// How many clients there are.
    pub clients: usize,
    /// Most keys of a range.
    pub limit: u64,
    /// How many of a hundred mixed requests read.
    pub read_percent: u32,
    /// How long leases live that nobody keeps alive.
    pub lease_ttl_secs: i64,
    /// Where chance begins.
    pub seed: u64,
    /// Values tell when they were sent, counted from here.
    pub origin: Instant,
    /// The revision of each key before the load, if the load must know.
    pub revisions: Vec<i64>,
    /// The revisions that old ranges are at: from the one to the other.
    pub history: (i64, i64),
    /// Leases that were left, and when they are due to expire.
    pub expiries: Arc<Expiries>,
    /// The control plane that is simulated.
    pub cluster: Option<Arc<Cluster>>,
    /// Encoded once for all clients.
    pub puts: OnceLock<Arc<[Template]>>,
    /// Encoded once for all clients.
    pub swaps: OnceLock<Arc<[Template]>>,
}

impl Plan {
    fn draw(&self) -> Draw {
        Draw::new(self.spread, self.keys.count)
    }
}

/// Now, as values tell it.
#[must_use]
pub fn stamp_since(origin: Instant) -> u64 {
    u64::try_from(origin.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// A request.
pub struct Ask {
    /// Of which kind.
    pub rpc: Rpc,
    /// With its prefix.
    pub request: Bytes,
    /// Its place in [`Workload::classes`].
    pub class: usize,
    /// Which watchers see it.
    pub topic: usize,
}

impl Ask {
    fn new(rpc: Rpc, request: Bytes) -> Self {
        Self {
            rpc,
            request,
            class: 0,
            topic: 0,
        }
    }

    fn of_class(self, class: usize) -> Self {
        Self { class, ..self }
    }
}

/// One client: it asks, waits, and asks again.
pub trait Client: Send {
    /// When the next request is due, since the load began, if this client has
    /// times of its own.
    fn due(&mut self) -> Option<Duration> {
        None
    }
    /// The next request.
    fn ask(&mut self) -> Ask;
    /// What the answer to it means.
    fn check(&mut self, answer: &[u8]) -> Result<Outcome, Failure>;
    /// There is no good answer to it.
    fn give_up(&mut self) {}
}

/// What came of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It read, or left no event.
    Read,
    /// It wrote, and this is the revision.
    Written(i64),
    /// It compared with what is no longer true.
    Conflict,
}

struct Mixed {
    gets: Ranges,
    puts: Puts,
    read_percent: u32,
    /// The request under way is a get.
    reads: bool,
    rng: SmallRng,
}

impl Client for Mixed {
    fn ask(&mut self) -> Ask {
        self.reads = self.rng.random_range(0..100) < self.read_percent;
        match self.reads {
            true => self.gets.ask(),
            false => self.puts.ask().of_class(1),
        }
    }

    fn check(&mut self, answer: &[u8]) -> Result<Outcome, Failure> {
        match self.reads {
            true => self.gets.check(answer),
            false => self.puts.check(answer),
        }
    }
}
