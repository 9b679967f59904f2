//! Rebuilding replicas that are damaged.
//!
//! Kept true: a replica that may have lost a vote or an acknowledged entry is
//! neither opened nor heard. First the root group says that its group must not
//! count it, then the group's leader says that it doesn't; only then what is
//! left is removed, and an empty one begins, which hears no older leader. The
//! group's leader brings it everything and then gives it its vote back.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pontoon_wal::disk::Disk;
use tokio::time::Instant;

use crate::link::{Handler, PeerEvent, Reply};
use crate::member::{Counted, MemberWork};
use crate::message::{Answered, Declined, Done, Forward, Work};
use crate::node::{Inner, NodeFailure};
use crate::position::{GroupId, NodeId};
use crate::raft::{Begin, Stop, destroy};
use crate::replica::Replica;

/// Before something is asked again.
const RETRY: Duration = Duration::from_millis(100);

impl Inner {
    /// Has a replica rebuilt that can't be opened, or has found itself damaged.
    pub(crate) fn mend(self: &Arc<Self>, group: GroupId, reason: String) {
        tracing::error!("group {group}: its replica here is damaged and will be rebuilt: {reason}");
        if self.damaged.lock().insert(group, reason).is_some() {
            return;
        }
        let node = Arc::clone(self);
        self.scope.spawn(async move {
            let replica = node.replica(group);
            if let Some(replica) = &replica {
                node.replicas.write().remove(&group);
                replica.group.close().await;
            }
            if let Err(error) = node.rebuild(group, replica).await {
                tracing::error!("group {group}: {error}");
            }
        });
    }

    /// Rebuilds a replica, which is not open.
    pub(crate) async fn rebuild(
        self: &Arc<Self>,
        group: GroupId,
        replica: Option<Arc<Replica>>,
    ) -> Result<Arc<Replica>, NodeFailure> {
        let id = self.me;
        let work = Work::Member(MemberWork::Damaged { id, group });
        self.at_leader(GroupId::ROOT, work).await;
        let counted = loop {
            let done = self.at_leader(group, Work::Count { id }).await;
            match done.answer {
                Answered::Counted(counted) if is_not_counted(&counted) => break counted,
                _ => tokio::time::sleep(RETRY).await,
            }
        };
        let removed = match replica {
            Some(replica) => replica.group.destroy().await,
            None => destroy(&self.group_config(group), self.wal.clone(), &*self.disk).await,
        };
        removed.map_err(|error| NodeFailure::Group(group, error.to_string()))?;
        let begin = Begin::Rebuilt {
            term: counted.term,
            leader: counted.leader,
        };
        let replica = self.open_replica(group, begin).await?;
        self.damaged.lock().remove(&group);
        let node = Arc::clone(self);
        self.scope.spawn(async move {
            let work = Work::Member(MemberWork::Rebuilt { id, group });
            node.at_leader(GroupId::ROOT, work).await;
        });
        Ok(replica)
    }

    /// Has the leader of a group do something that may be done twice, however
    /// long it takes; asks others, so that no replica is needed here.
    async fn at_leader(self: &Arc<Self>, group: GroupId, work: Work) -> Done {
        let mut hint = None;
        loop {
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

    /// Looks for replicas that have found themselves damaged.
    pub(crate) fn look_for_damage(self: &Arc<Self>) {
        for replica in self.replicas() {
            if let Some(Stop::Damaged(reason)) = replica.group.failure() {
                self.mend(replica.id, reason);
            }
        }
    }
}

fn is_not_counted(counted: &Counted) -> bool {
    !counted.member && counted.committed
}

/// Moves a log aside that can't be trusted, so that another can begin.
pub(crate) fn set_aside(disk: &dyn Disk, dir: &Path, name: &str) -> std::io::Result<()> {
    let from = dir.join(name);
    let aside = dir.join(format!("{name}-damaged"));
    disk.create_dir(&aside)?;
    for old in disk.list(&aside)? {
        disk.remove(&aside.join(old))?;
    }
    for file in disk.list(&from)? {
        disk.rename(&from.join(&file), &aside.join(&file))?;
    }
    disk.sync_dir(&aside)?;
    disk.sync_dir(&from)
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
            node.called(from, message, reply);
        }
    }

    fn peer(&self, peer: NodeId, event: PeerEvent) {
        if let Some(node) = self.node() {
            node.peer(peer, event);
        }
    }
}
