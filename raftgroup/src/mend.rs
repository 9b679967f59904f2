//! Rebuilding replicas that are damaged.
//!
//! Kept true: a replica that may have lost a vote or an acknowledged entry is
//! neither opened nor heard. First the root group says that its group must not
//! count it, then the group's leader says that it doesn't; only then what is
//! left is removed, and an empty one begins, which hears no older leader. At no
//! moment between does a replica look as if it were new. The group's leader
//! brings it everything and then gives it its vote back.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pontoon_wal::disk::Disk;
use pontoon_wal::{Clock, Wal, WalError};
use tokio::time::Instant;

use crate::cluster::Cluster;
use crate::codec::Wire;
use crate::link::{Handler, PeerEvent, Reply};
use crate::member::MemberWork;
use crate::message::{Answered, Declined, Done, Forward, Message, Outcome, Work};
use crate::mutation::{Mutation, mutated};
use crate::node::{Inner, NodeFailure};
use crate::opening::next_pause;
use crate::position::{GroupId, NodeId};
use crate::raft::{Begin, GroupFailure, Stop, begin_again, doom};
use crate::replica::Replica;

/// Before something is asked again.
const RETRY: Duration = Duration::from_millis(100);

impl Inner {
    /// Has a replica rebuilt that can't be opened, or has found itself damaged,
    /// however often it takes.
    pub(crate) fn mend(self: &Arc<Self>, group: GroupId, reason: String) {
        if self.addresses().len() < 2 {
            let reason = format!("group {group} is damaged, and no other member has it: {reason}");
            return self.health.fail(reason);
        }
        if mutated(Mutation::DamageIsNotRebuilt) {
            return;
        }
        let known = self.damaged.lock().insert(group, reason.clone());
        if known.is_some() {
            return;
        }
        tracing::error!(%group, reason, "the replica is damaged and will be rebuilt");
        let node = Arc::clone(self);
        self.scope.spawn(async move {
            let claim = node.claims.claimed(group).await;
            let mut replica = node.replicas.write().remove(&group);
            if let Some(replica) = &replica {
                replica.group.close().await;
            }
            let mut pause = Duration::ZERO;
            loop {
                match node.rebuild(group, replica.take()).await {
                    Ok(_) => break,
                    Err(NodeFailure::Failed(fault)) => return node.health.fail(fault.0),
                    Err(error) => {
                        pause = next_pause(pause);
                        tracing::error!(%group, %error, ?pause, "the replica is not rebuilt yet");
                        tokio::time::sleep(pause).await;
                    }
                }
            }
            drop(claim);
            node.copies.opens.notify_one();
        });
    }

    /// Rebuilds a replica, which is not open.
    pub(crate) async fn rebuild(
        self: &Arc<Self>,
        group: GroupId,
        replica: Option<Arc<Replica>>,
    ) -> Result<Arc<Replica>, NodeFailure> {
        let id = self.me;
        let counted = loop {
            // Each time: what was said of an earlier rebuilding may come late.
            let work = Work::Member(MemberWork::Damaged { id, group });
            self.at_leader(GroupId::ROOT, work).await;
            let done = self.at_leader(group, Work::Count { id }).await;
            match done.answer {
                Answered::Counted(counted) if counted.is_out() => break counted,
                _ => tokio::time::sleep(RETRY).await,
            }
        };
        if let Some(replica) = replica {
            replica.group.end().await;
        }
        let failed = |error: GroupFailure| NodeFailure::of(group, error);
        let config = self.group_config(group);
        let (wal, term, leader) = (self.wal.clone(), counted.term, counted.leader);
        let begun = begin_again(&config, wal, &*self.disk, term, leader).await;
        begun.map_err(failed)?;
        let replica = self.open_replica(group, Begin::Empty).await?;
        self.damaged.lock().remove(&group);
        Ok(replica)
    }

    /// Tells the root group of replicas here that are whole, and that it takes
    /// for damaged. A root replica that has just begun can't know that.
    pub(crate) async fn tell_of_rebuilt(self: &Arc<Self>, cluster: &Cluster) {
        let id = self.me;
        for replica in self.replicas() {
            let group = replica.id;
            let marked = match group.is_root() {
                true => !replica.group.membership().nodes().contains(&id),
                false => cluster.damaged.contains(&(group, id)),
            };
            if marked && replica.group.failure().is_none() && !self.addresses().is_empty() {
                let work = Work::Member(MemberWork::Rebuilt { id, group });
                let told = self.at_leader(GroupId::ROOT, work);
                // If nobody hears it, it is told again.
                let _ = tokio::time::timeout(2 * self.timing.call, told).await;
            }
        }
    }

    /// Has the leader of a group do something that may be done twice, however
    /// long it takes; asks others too, so that no replica is needed here.
    async fn at_leader(self: &Arc<Self>, group: GroupId, work: Work) -> Done {
        let mut hint = None;
        loop {
            if self.replica(group).is_some() {
                let soon = Instant::now() + self.timing.call;
                if let Ok(done) = self.work_once(group, 0, work.clone(), soon).await {
                    return done;
                }
            }
            for peer in self.addresses().into_keys().filter(|peer| *peer != self.me) {
                let forward = Forward {
                    group,
                    map: 0,
                    work: work.clone(),
                };
                let to = hint.take().unwrap_or(peer);
                let soon = Instant::now() + self.timing.call;
                match self.work_there(to, forward, soon).await {
                    Ok(done) => return done,
                    Err(Declined::NotLeader(leader)) => {
                        hint = leader.filter(|leader| *leader != self.me);
                    }
                    Err(_) => {}
                }
            }
            tokio::time::sleep(RETRY).await;
        }
    }
}

/// Has replicas rebuilt that have found themselves damaged, for as long as the
/// node runs.
pub(crate) async fn watch_damage(node: Arc<Inner>) {
    loop {
        node.health.damage.notified().await;
        for replica in node.replicas() {
            if let Some(Stop::Damaged(reason)) = replica.group.failure() {
                node.mend(replica.id, reason);
            }
        }
    }
}

/// Beside a new log, as long as it doesn't say of every replica that its old
/// one was set aside.
const UNFINISHED: &str = "unfinished";

/// What the names of files that were set aside end with.
const DAMAGED: &str = ".damaged";

/// Opens the node's log. One that can't be trusted is set aside: then another
/// begins, which says of every replica that it is to be rebuilt.
pub(crate) async fn open_log(
    config: pontoon_wal::Config,
    trees: &Path,
    alone: bool,
    disk: &Arc<dyn Disk>,
    clock: &Arc<dyn Clock>,
) -> Result<Wal, NodeFailure> {
    let open = || Wal::open(config.clone(), Arc::clone(disk), Arc::clone(clock));
    let marker = config.dir.join(UNFINISHED);
    let found = disk.create_dir(&config.dir);
    let found = found.and_then(|()| disk.list(&config.dir));
    let mut names = found.map_err(NodeFailure::Disk)?.into_iter();
    if !names.any(|name| name == UNFINISHED) {
        match open() {
            Err(error @ WalError::Damaged(_)) if !alone => {
                tracing::error!("the log is set aside, all replicas will be rebuilt: {error}");
            }
            opened => return Ok(opened?.0),
        }
        let marked = disk.create(&marker).and_then(|file| file.sync());
        let marked = marked.and_then(|()| disk.sync_dir(&config.dir));
        marked.map_err(NodeFailure::Disk)?;
    }
    set_aside(&**disk, &config.dir).map_err(NodeFailure::Disk)?;
    let (wal, _) = open()?;
    for name in disk.list(trees).map_err(NodeFailure::Disk)? {
        let number = name.split('.').next().and_then(|name| name.parse().ok());
        if let Some(group) = number.map(GroupId) {
            let doomed = doom(wal.clone(), group).await;
            doomed.map_err(|error| NodeFailure::Group(group, error.to_string()))?;
        }
    }
    let finished = disk.remove(&marker);
    let finished = finished.and_then(|()| disk.sync_dir(&config.dir));
    finished.map_err(NodeFailure::Disk)?;
    Ok(wal)
}

/// Gives the files of a log other names.
fn set_aside(disk: &dyn Disk, dir: &Path) -> std::io::Result<()> {
    for name in disk.list(dir)? {
        if name != UNFINISHED && !name.ends_with(DAMAGED) {
            let aside = dir.join(format!("{name}{DAMAGED}"));
            disk.rename(&dir.join(name), &aside)?;
        }
    }
    disk.sync_dir(dir)
}

/// Takes messages when there is somebody to take them.
#[derive(Default)]
pub(crate) struct Gate(Mutex<Option<Arc<Inner>>>);

impl Gate {
    pub(crate) fn open(&self, node: &Arc<Inner>) {
        *self.0.lock() = Some(Arc::clone(node));
    }

    fn node(&self) -> Option<Arc<Inner>> {
        self.0.lock().clone()
    }
}

impl Handler for Gate {
    fn told(&self, from: NodeId, message: bytes::Bytes) {
        if let Some(node) = self.node() {
            node.told(from, message);
        }
    }

    fn called(&self, from: NodeId, message: bytes::Bytes, reply: Reply) {
        if let Some(node) = self.node() {
            return node.called(from, message, reply);
        }
        // Work that is sent to a node that just starts is certainly not done:
        // without an answer, the sender would have to say that nobody knows.
        if let Some(Message::Forward(_)) = Message::decode(message) {
            let outcome: Outcome = Err(Declined::NotLeader(None));
            reply.send(outcome.encode());
        }
    }

    fn peer(&self, peer: NodeId, event: PeerEvent) {
        if let Some(node) = self.node() {
            node.peer(peer, event);
        }
    }
}
