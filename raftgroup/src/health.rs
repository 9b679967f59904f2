//! Whether this node can go on: it is well, its disk stalls, or it has failed.
//!
//! Kept true:
//! - A failure is final. From the moment it is reported, nothing is answered
//!   as done; the peers are told, the node's tasks end, and only then
//!   [`Node::failed`] completes.
//! - A node whose disk stalls leads nothing. It takes no disk to find that
//!   out, to act on it, or to come back.
//! - A node whose disk is full leads nothing that a node with room could lead.
//!   It refuses writes for lack of space only if no other member could take them.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use std::{io, thread};

use parking_lot::Mutex;
use pontoon_engine::KeyRange;
use tokio::runtime::{Builder, Handle, RuntimeFlavor};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::codec::Wire;
use crate::error::Failure;
use crate::message::{Declined, Message};
use crate::mutation::{Mutation, mutated};
use crate::node::{Config, Inner, Node};
use crate::position::{GroupId, NodeId};
use crate::replica::Replica;
use crate::runtime::watched;

/// Why a node can't go on; final for the process. The text names the file, the
/// operation and the system's error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Fault(pub String);

/// How a node is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Condition {
    /// It serves.
    #[default]
    Well,
    /// Nothing becomes durable, though something waits for it. The node leads
    /// nothing until its disk comes back.
    Stalled,
    /// It has stopped for good: the process must end.
    Failed(Fault),
}

/// A range that this member should serve and doesn't, or not up to date.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unserved {
    /// Its group.
    pub group: GroupId,
    /// Its keys.
    pub keys: KeyRange,
    /// What is missing, in a few words.
    pub reason: String,
}

impl std::fmt::Debug for Health {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.now().fmt(f)
    }
}

/// The condition of a node, as its parts report it.
pub(crate) struct Health {
    condition: watched::Sender<Condition>,
    /// A fault was reported; the first one is kept.
    reported: Mutex<Option<Fault>>,
    failing: AtomicBool,
    report: Notify,
    /// A replica has found itself damaged.
    pub(crate) damage: Notify,
    /// While this node's disk is full: the peers that would take its leads.
    /// `None` before they were asked.
    with_room: Mutex<Option<BTreeSet<NodeId>>>,
}

impl Default for Health {
    fn default() -> Self {
        Self {
            condition: watched::Sender::new(Condition::Well),
            reported: Mutex::default(),
            failing: AtomicBool::new(false),
            report: Notify::new(),
            damage: Notify::new(),
            with_room: Mutex::default(),
        }
    }
}

impl Health {
    pub(crate) fn now(&self) -> Condition {
        self.condition.borrow().clone()
    }

    pub(crate) fn subscribe(&self) -> watched::Receiver<Condition> {
        self.condition.subscribe()
    }

    /// Reports a fault. From now on nothing may be answered as done.
    pub(crate) fn fail(&self, reason: impl Into<String>) {
        let mut reported = self.reported.lock();
        reported.get_or_insert_with(|| Fault(reason.into()));
        self.failing.store(true, Ordering::Release);
        self.report.notify_one();
    }

    /// Reports that a replica must be rebuilt; its own failure says why.
    pub(crate) fn report_damage(&self) {
        self.damage.notify_one();
    }

    pub(crate) fn set_with_room(&self, peers: Option<BTreeSet<NodeId>>) {
        *self.with_room.lock() = peers;
    }

    /// The node was closed: nothing is to be reported any more.
    pub(crate) fn close(&self) {
        self.report.notify_one();
    }

    /// Whether a fault was reported.
    pub(crate) fn is_failing(&self) -> bool {
        self.failing.load(Ordering::Acquire)
    }

    pub(crate) fn is_stalled(&self) -> bool {
        *self.condition.borrow() == Condition::Stalled
    }

    fn set_stalled(&self, stalled: bool) -> bool {
        let next = if stalled {
            Condition::Stalled
        } else {
            Condition::Well
        };
        self.condition.send_if_modified(|condition| {
            let changes = !matches!(condition, Condition::Failed(_)) && *condition != next;
            if changes {
                *condition = next;
            }
            changes
        })
    }
}

/// How long a node that fails has to tell its peers.
const FAREWELL: Duration = Duration::from_millis(50);

/// How many times in an election timeout the disk's progress is looked at.
const LOOKS: u32 = 4;

/// Starts what watches the node: on a thread of its own, because a page of a
/// hanging disk can hold up every thread of the groups' runtime. A simulation has
/// one thread.
pub(crate) fn watch(node: &Arc<Inner>) -> io::Result<()> {
    let failing = fail_stop(Arc::clone(&node.health), Arc::downgrade(node));
    let groups = Handle::current();
    let disk = watch_disk(Arc::downgrade(node), groups.clone());
    if groups.runtime_flavor() == RuntimeFlavor::CurrentThread {
        // Not in the scope, which it ends.
        tokio::spawn(failing);
        node.scope.spawn(disk);
        return Ok(());
    }
    let runtime = Builder::new_current_thread().enable_time().build()?;
    let both = async {
        tokio::pin!(failing);
        tokio::select! {
            () = &mut failing => return,
            () = disk => {}
        }
        failing.await;
    };
    let thread = thread::Builder::new().name("disk-watch".to_owned());
    thread.spawn(move || runtime.block_on(both)).map(drop)
}

/// Ends the node when a fault is reported, or returns when the node was closed.
async fn fail_stop(health: Arc<Health>, node: Weak<Inner>) {
    if mutated(Mutation::FailedDiskGoesOn) {
        return;
    }
    let Some(log_failed) = node.upgrade().map(|node| node.wal.failed()) else {
        return;
    };
    tokio::select! {
        biased;
        () = health.report.notified() => {}
        reason = log_failed => health.fail(&*reason),
    }
    // Without a fault the node was just closed.
    let Some(fault) = health.reported.lock().clone() else {
        return;
    };
    if let Some(node) = node.upgrade() {
        for peer in node.addresses().into_keys().filter(|peer| *peer != node.me) {
            // If it doesn't hear this, it will notice the silence.
            let _ = node.link.tell(peer, Message::Failing.encode());
        }
    }
    tokio::time::sleep(FAREWELL).await;
    if let Some(node) = node.upgrade() {
        node.scope.end();
    }
    health.condition.send_replace(Condition::Failed(fault));
}

/// Watches whether what waits becomes durable, and whether there is room for
/// more, for as long as the node runs. It waits for nothing else: what is to be
/// done about it are tasks of `groups`.
async fn watch_disk(node: Weak<Inner>, groups: Handle) {
    if mutated(Mutation::StalledDiskLeads) {
        return;
    }
    let Some(timing) = node.upgrade().map(|node| DiskTiming::of(&node.config)) else {
        return;
    };
    let mut leaving: Option<JoinHandle<()>> = None;
    let mut full_looks = 0;
    loop {
        tokio::time::sleep(timing.bound / LOOKS).await;
        let Some(node) = node.upgrade() else {
            return;
        };
        let stalled = node.wal.stalled_for();
        // What waits for room on a full disk goes on when there is some.
        if stalled >= timing.stall_max && !node.wal.is_space_low() {
            let reason = format!(
                "{}: nothing has become durable for {} ms",
                node.config.log_dir().display(),
                stalled.as_millis()
            );
            return node.health.fail(reason);
        }
        let _groups = groups.enter();
        if !node.is_space_low() {
            full_looks = 0;
            node.health.set_with_room(None);
        } else if leaving.as_ref().is_none_or(JoinHandle::is_finished) {
            // An election under way is left alone until it has failed.
            let again = full_looks % (2 * LOOKS) == 0;
            full_looks += 1;
            let full = Arc::clone(&node);
            let leave = async move { full.leave_to_those_with_room(again).await };
            leaving = Some(node.scope.spawn(leave));
        }
        let stalls = stalled >= timing.bound;
        if node.health.set_stalled(stalls) {
            if stalls {
                let stalled_ms = stalled.as_millis() as u64;
                tracing::warn!(stalled_ms, "the disk stalls: this member stops leading");
                let stalled = Arc::clone(&node);
                node.scope.spawn(async move { stalled.resign_all().await });
            } else {
                tracing::info!("the disk is back");
            }
        }
    }
}

/// When a disk counts as stalled, and when as failed.
struct DiskTiming {
    bound: Duration,
    stall_max: Duration,
}

impl DiskTiming {
    fn of(config: &Config) -> Self {
        let bound = config.timing.election_min;
        Self {
            bound,
            stall_max: config.stall_max.max(bound),
        }
    }
}

impl Inner {
    /// Replaces an answer by "unknown" if the node has failed meanwhile.
    pub(crate) fn unless_failing<T>(&self, answer: Result<T, Failure>) -> Result<T, Failure> {
        match answer {
            Ok(_) if self.is_failing() => Err(Failure::LeaderChanged),
            answer => answer,
        }
    }

    /// Why a write can't be taken, if this node's disk is full: another member
    /// is about to lead the group, or none has room.
    pub(crate) fn declined_for_space(&self, replica: &Replica) -> Option<Declined> {
        if !self.wal.is_space_low() && !replica.group.store().waits_for_room() {
            return None;
        }
        let with_room = self.health.with_room.lock();
        let asked = with_room.as_ref();
        let is_left = asked.is_none_or(|peers| self.has_heir(replica, peers));
        Some(if is_left {
            Declined::Again
        } else {
            Declined::NoSpace
        })
    }

    /// Whether the disk of the log, or that of the trees, is full.
    pub(crate) fn is_space_low(&self) -> bool {
        let waits = |replica: &Arc<Replica>| replica.group.store().waits_for_room();
        self.wal.is_space_low() || self.replicas.read().values().any(waits)
    }

    /// Whether nothing may be answered as done any more.
    pub(crate) fn is_failing(&self) -> bool {
        self.health.is_failing() || self.wal.failure().is_some()
    }

    pub(crate) async fn failed(&self) -> Fault {
        let mut condition = self.health.subscribe();
        loop {
            if let Condition::Failed(fault) = &*condition.borrow_and_update() {
                return fault.clone();
            }
            if condition.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}

impl Node {
    /// How this node is.
    #[must_use]
    pub fn condition(&self) -> Condition {
        self.0.health.now()
    }

    /// Whether its disk is full: this member leads nothing then, if another has
    /// room, and refuses writes, if none has.
    #[must_use]
    pub fn is_space_low(&self) -> bool {
        self.0.is_space_low()
    }

    /// Waits until this node has failed. By then its peers were told, and
    /// nothing is answered any more: the process should exit.
    pub async fn failed(&self) -> Fault {
        self.0.failed().await
    }

    /// Ranges placed on this member that have no leader, are not open here or
    /// have not caught up; empty if all is well.
    #[must_use]
    pub fn unserved(&self) -> Vec<Unserved> {
        let Some(map) = self.map() else {
            return Vec::new();
        };
        let here = map.ranges();
        let here = here.filter(|(placed, _)| placed.members.contains(&self.0.me));
        here.filter_map(|(placed, keys)| {
            let group = placed.group;
            let reason = self.0.missing(group)?;
            Some(Unserved {
                group,
                keys,
                reason,
            })
        })
        .collect()
    }
}
