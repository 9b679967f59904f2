//! What a seed decides before anything runs.

use std::time::Duration;

use pontoon_wal::disk::sim::Rng;

use crate::cluster::Shape;

/// What is done to a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The power of a node fails.
    PowerCut,
    /// The power of all nodes fails.
    Outage,
    /// The process of a node is killed.
    Kill,
    /// A node's disk stops in the middle of what it does.
    DiskStops,
    /// A sync of a node's disk fails.
    SyncFails,
    /// Nothing can be written to a node's trees.
    TreeFails,
    /// A node's file system is read-only, also for the next process.
    ReadOnly,
    /// A node's disk doesn't answer for 1 to 60 seconds.
    DiskHangs,
    /// A node gets little processor time.
    Starved,
    /// A node's syncs take long.
    SlowDisk,
    /// Some nodes don't hear the others, nor are they heard.
    Partition,
    /// Two sides that don't hear each other, and one node that hears both.
    Bridge,
    /// One node doesn't hear another.
    OneWay,
    /// One node hears nobody, though all hear it; or the other way round.
    Deaf,
    /// A leader neither hears the others nor is it heard, for longer than
    /// leases live. Its clients reach it.
    Deposed,
    /// All messages take long.
    Delay,
    /// Messages of one node to another take long.
    SlowPath,
    /// All that one node says takes long, and leaders hand over meanwhile.
    SlowNode,
    /// Messages get lost.
    Loss,
    /// Messages arrive twice.
    Duplication,
    /// A connection breaks.
    Reset,
    /// A leader hands over.
    Transfer,
}

impl Fault {
    /// Those that any seed may have.
    const COMMON: [Self; 18] = [
        Self::PowerCut,
        Self::Outage,
        Self::Kill,
        Self::DiskStops,
        Self::SyncFails,
        Self::SlowDisk,
        Self::Partition,
        Self::Bridge,
        Self::OneWay,
        Self::Deaf,
        Self::Deposed,
        Self::Delay,
        Self::SlowPath,
        Self::SlowNode,
        Self::Loss,
        Self::Duplication,
        Self::Reset,
        Self::Transfer,
    ];

    /// Those of a member alone, whose messages arrive.
    const OF_ONE: [Self; 9] = [
        Self::PowerCut,
        Self::Kill,
        Self::DiskStops,
        Self::SyncFails,
        Self::TreeFails,
        Self::ReadOnly,
        Self::DiskHangs,
        Self::Reset,
        Self::Transfer,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::PowerCut => "fault: power cut",
            Self::Outage => "fault: outage of all nodes",
            Self::Kill => "fault: process kill",
            Self::DiskStops => "fault: disk stops",
            Self::SyncFails => "fault: sync fails",
            Self::TreeFails => "fault: tree fails",
            Self::ReadOnly => "fault: read-only file system",
            Self::DiskHangs => "fault: disk hangs",
            Self::Starved => "fault: starved of processor time",
            Self::SlowDisk => "fault: slow disk",
            Self::Partition => "fault: partition",
            Self::Bridge => "fault: partition with a bridge",
            Self::OneWay => "fault: one-way cut",
            Self::Deaf => "fault: deaf or dumb node",
            Self::Deposed => "fault: leader cut off",
            Self::Delay => "fault: delay",
            Self::SlowPath => "fault: slow path",
            Self::SlowNode => "fault: slow node",
            Self::Loss => "fault: loss",
            Self::Duplication => "fault: duplication",
            Self::Reset => "fault: reset",
            Self::Transfer => "fault: leader transfer",
        }
    }
}

/// What a run may have beyond keys, groups and faults. Those that
/// `PONTOON_WITHOUT` names are left out, whatever the seed says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Feature {
    Txns,
    Leases,
    Splits,
    Members,
    Corruption,
    Disks,
    Starvation,
    Replicas,
    Upgrade,
}

impl Feature {
    /// Those that are not built yet: no run has them.
    const NOT_YET: [Self; 0] = [];

    fn is_wanted(self) -> bool {
        let name = match self {
            Self::Txns => "txns",
            Self::Leases => "leases",
            Self::Splits => "splits",
            Self::Members => "members",
            Self::Corruption => "corruption",
            Self::Disks => "disks",
            Self::Starvation => "starvation",
            Self::Replicas => "replicas",
            Self::Upgrade => "upgrade",
        };
        let without = std::env::var("PONTOON_WITHOUT").unwrap_or_default();
        let is_left_out = without.split(',').any(|left_out| left_out == name);
        !is_left_out && !Self::NOT_YET.contains(&self)
    }
}

/// What a seed decides.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) shape: Shape,
    pub(crate) clients: u64,
    pub(crate) watchers: u64,
    /// First letters of keys, from `a` on.
    pub(crate) letters: u64,
    pub(crate) keys_per_letter: u64,
    /// A client's longest pause between two requests.
    pub(crate) pause: Duration,
    /// How long there are faults.
    pub(crate) duration: Duration,
    /// The shortest pause between two faults.
    pub(crate) calm_min: Duration,
    /// What is added to it, at most.
    pub(crate) calm: Duration,
    /// Whether clients are silent around some faults, until groups are quiet.
    pub(crate) lulls: bool,
    /// How likely each fault is, next to the others.
    pub(crate) faults: Vec<(Fault, u64)>,
    /// Between two compactions, about; `None` for none.
    pub(crate) compactions: Option<Duration>,
    /// How many of a hundred transactions, deletions and reads are over
    /// several letters.
    pub(crate) across: u64,
    /// Accounts per letter, between which clients transfer.
    pub(crate) accounts: u64,
    /// Clients that have leases.
    pub(crate) lessees: u64,
    /// Ranges that are cut while the cluster works.
    pub(crate) splits: u64,
    /// Members that come or go.
    pub(crate) changes: u64,
    /// Disks on which bits flip.
    pub(crate) damages: u64,
    /// Whether a member gets little processor time when a range is cut.
    pub(crate) starved_splits: bool,
    /// Whether members get a release with one more kind of entry.
    pub(crate) upgrade: bool,
}

const SPLITS: [&str; 7] = ["b", "c", "d", "e", "f", "g", "h"];

impl Plan {
    pub(crate) fn of(seed: u64) -> Self {
        let rng = &mut Rng::new(seed.wrapping_mul(0x2545_f491_4f6c_dd1d));
        let nodes = [3, 5][rng.below(2) as usize];
        let groups = match rng.below(4) {
            0 => 1 + rng.below(2),
            _ => 1 + rng.below(8),
        };
        let mut shape = Shape::new(nodes, &SPLITS[..groups as usize - 1]);
        if rng.chance(1, 2) {
            // So short that who was away needs a snapshot.
            shape.log_entries_kept = 1 + rng.below(20);
            shape.log_bytes_max = 200 + rng.below(3_000);
            shape.log_kept_bytes = 10 * shape.log_bytes_max;
        }
        shape.quiet_after = Duration::from_millis(1000 + rng.below(6000));
        if rng.chance(2, 3) {
            let mut second = || 80 + rng.below(46) as u32;
            shape.seconds = (0..nodes).map(|_| second()).collect();
        }
        // Some kinds of faults, so that their mixtures differ.
        let share = 1 + rng.below(4);
        let faults = Fault::COMMON.into_iter().filter_map(|fault| {
            let weight = if fault == Fault::Outage {
                1
            } else {
                1 + rng.below(5)
            };
            rng.chance(share, 4).then_some((fault, weight))
        });
        let faults = faults.collect();
        let plan = Self {
            seed,
            shape,
            clients: 2 + rng.below(7),
            watchers: 1 + rng.below(5),
            letters: groups,
            keys_per_letter: 1 + rng.below(5),
            pause: Duration::from_millis([20, 100, 400][rng.below(3) as usize]),
            duration: Duration::from_secs(8 + rng.below(32)),
            calm_min: Duration::ZERO,
            calm: Duration::from_millis(400 + rng.below(5000)),
            lulls: false,
            faults,
            compactions: rng
                .chance(3, 4)
                .then(|| Duration::from_millis(500 + rng.below(6000))),
            across: 0,
            accounts: 0,
            lessees: 0,
            splits: 0,
            changes: 0,
            damages: 0,
            starved_splits: false,
            upgrade: false,
        };
        let mut plan = if rng.chance(1, 4) { plan.hot() } else { plan };
        plan.add_features();
        plan.add_failing_disks();
        plan.add_replicas();
        plan.add_upgrade();
        plan
    }

    /// Groups on three of five nodes, so that clients ask nodes that have no
    /// replica of what they want; from chances of its own, and always if
    /// `PONTOON_WITH` is `replicas`.
    fn add_replicas(&mut self) {
        let rng = &mut Rng::new(self.seed.wrapping_mul(0xb502_6f5a_a966_19e9) ^ 0x3b5);
        let always = std::env::var("PONTOON_WITH").is_ok_and(|with| with == "replicas");
        let wanted = rng.chance(1, 4) || always;
        if !wanted || !Feature::Replicas.is_wanted() {
            return;
        }
        self.shape.replicas = 3;
        self.shape.nodes = 5;
        if !self.shape.seconds.is_empty() {
            self.shape.seconds.resize(5, 100);
        }
        if self.shape.splits.is_empty() {
            self.shape.splits = Shape::new(0, &SPLITS[..2]).splits;
        }
        self.letters = self.letters.max(3);
        self.watchers = self.watchers.max(3);
        // A group has three votes. One that is away for good, and one that is
        // rebuilt, would be too many.
        self.damages = match self.changes {
            0 => self.damages.min(1),
            _ => 0,
        };
    }

    /// From chances of its own.
    fn add_upgrade(&mut self) {
        let rng = &mut Rng::new(self.seed.wrapping_mul(0xa24b_aed4_963e_e407) ^ 0x0b6d);
        self.upgrade = rng.chance(1, 4) && Feature::Upgrade.is_wanted();
    }

    /// Disks that fail, hang or are read-only, and processors that are busy;
    /// from chances of their own, too.
    fn add_failing_disks(&mut self) {
        let rng = &mut Rng::new(self.seed.wrapping_mul(0xd134_2543_de82_ef95) ^ 0xd15c);
        let mut has = |feature: Feature, share| rng.chance(share, 8) && feature.is_wanted();
        let steady = has(Feature::Disks, 4);
        let mixed = has(Feature::Disks, 2);
        let starvation = has(Feature::Starvation, 2);
        if steady {
            self.steady(rng);
        } else if mixed {
            let faults = [Fault::TreeFails, Fault::ReadOnly, Fault::DiskHangs];
            self.faults
                .extend(faults.map(|fault| (fault, 1 + rng.below(5))));
        }
        if steady || mixed {
            self.shape.stall_max = match rng.chance(1, 2) {
                true => Duration::from_secs(60),
                false => Duration::from_secs(3 + rng.below(18)),
            };
        }
        if starvation {
            self.starved_splits = true;
            if !steady {
                self.faults.push((Fault::Starved, 1 + rng.below(5)));
            }
        }
        if self.damages > 0 && rng.chance(1, 2) {
            self.shape.volatile = true;
        }
        if steady || mixed || self.shape.volatile {
            // Trees are written and read often, or nobody meets the faults.
            self.shape.log_bytes_max = 200 + rng.below(3_000);
        }
    }

    /// The same with faults of single members only, one after the other, and
    /// so much time between them that it shows whether clients wait too long.
    fn steady(&mut self, rng: &mut Rng) {
        let share = 2 + rng.below(3);
        let faults = Fault::OF_ONE.into_iter().filter_map(|fault| {
            let weight = 1 + rng.below(5);
            rng.chance(share, 4).then_some((fault, weight))
        });
        self.faults = faults.collect();
        self.calm_min = Duration::from_secs(6);
        self.calm = Duration::from_secs(4);
        self.duration = Duration::from_secs(20 + rng.below(40));
        self.clients = self.clients.min(4);
        self.pause = Duration::from_millis([100, 400][rng.below(2) as usize]);
        self.lulls = rng.chance(1, 2);
        if self.lulls {
            self.shape.quiet_after = Duration::from_millis(1000 + rng.below(2000));
        }
    }

    /// From chances of their own, so that what is above is the same without.
    fn add_features(&mut self) {
        let rng = &mut Rng::new(self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0xfea7);
        let mut has = |feature: Feature, share| rng.chance(share, 4) && feature.is_wanted();
        let txns = has(Feature::Txns, 3);
        let leases = has(Feature::Leases, 2);
        let splits = has(Feature::Splits, 2);
        let members = has(Feature::Members, 1);
        let corruption = has(Feature::Corruption, 1);
        if splits {
            self.shape.splits.truncate(rng.below(3) as usize);
            self.letters = self.letters.max(2 + rng.below(5));
            self.splits = 1 + rng.below(4);
        }
        if txns {
            self.across = [10, 40, 100][rng.below(3) as usize];
            self.accounts = [0, 1, 3][rng.below(3) as usize];
            if rng.chance(1, 5) {
                self.contended(rng);
            }
        }
        if leases {
            self.lessees = 1 + rng.below(3);
        }
        // With two votes for good out of five there are still three.
        let tolerated = (self.shape.nodes - 1) / 2;
        if members {
            self.changes = 1 + rng.below(3);
        }
        if corruption {
            self.damages = 1 + rng.below(tolerated);
        }
        if members && corruption {
            self.shape.nodes = 5;
            self.shape.seconds.resize(5, 100);
            self.damages = 1;
        }
    }

    /// The same with all clients at the same few keys of several groups, and
    /// grants that come late.
    fn contended(&mut self, rng: &mut Rng) {
        self.letters = self.letters.clamp(2, 3);
        let cuts = match self.splits > 0 {
            true => self.shape.splits.len().min(self.letters as usize - 1),
            false => self.letters as usize - 1,
        };
        self.shape.splits = Shape::new(0, &SPLITS[..cuts]).splits;
        if rng.chance(1, 2) {
            // The root group has no keys: nobody waits for its entries.
            self.shape.splits.insert(0, "a".into());
        }
        self.keys_per_letter = 1 + rng.below(3);
        self.accounts = 1;
        self.clients = 6 + rng.below(5);
        self.across = [40, 100][rng.below(2) as usize];
        self.faults.push((Fault::SlowPath, 16));
        self.calm = self.calm.min(Duration::from_secs(2));
        self.pause = Duration::from_millis(8);
        self.duration = self.duration.min(Duration::from_secs(16));
    }

    /// The same with few keys at which many clients are busy all the time, and
    /// leaders that don't know that they are none any more.
    fn hot(mut self) -> Self {
        self.shape.splits.truncate(2);
        self.letters = self.letters.min(3);
        self.clients = 8;
        self.keys_per_letter = 1;
        self.pause = Duration::from_millis(8);
        self.duration = self.duration.min(Duration::from_secs(16));
        self.calm = Duration::from_secs(2);
        self.faults
            .retain(|(fault, _)| !matches!(fault, Fault::Bridge | Fault::SlowNode));
        self.faults
            .extend([(Fault::Bridge, 12), (Fault::SlowNode, 8)]);
        self
    }
}
