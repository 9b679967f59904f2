//! Opening replicas, as the map says.
//!
//! Kept true: a node opens a replica of every group that the map places on it;
//! one that is split off is made of its parent here, or comes from its leader.

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pontoon_wal::disk::{Disk, Task};
use tokio::sync::mpsc;

use crate::codec::Wire;
use crate::lead;
use crate::link::Link;
use crate::map::Placed;
use crate::message::Message;
use crate::node::{Inner, NodeFailure};
use crate::position::{GroupId, NodeId};
use crate::raft::{Begin, Group, GroupConfig, GroupFailure, Machine, Peers};
use crate::replica::{Follow, Replica};
use crate::rounds::Rounds;
use crate::split::SplitRecord;

impl Inner {
    pub(crate) fn disk(&self) -> Arc<dyn Disk> {
        Arc::clone(&self.disk)
    }

    /// Does something about a group's store where it may wait for the disk.
    pub(crate) fn tend_store(&self, group: GroupId, task: Task) -> Result<(), String> {
        let started = self.tenders.run(group, task);
        started.map_err(|error| format!("no background task: {error}"))
    }

    /// How a group's replica is kept.
    pub(crate) fn group_config(&self, group: GroupId) -> GroupConfig {
        let groups = self.config.splits.len() + 1;
        GroupConfig {
            node: self.me,
            group,
            begin: Begin::Empty,
            path: self.config.dir.join("trees").join(format!("{group}.tree")),
            store: pontoon_engine::Config {
                store: self.config.cluster.wrapping_add(u128::from(group.0)),
                dirty_bytes_max: self.dirty_bytes_max / 2,
                log_bytes_max: self.config.log_bytes_max,
                recent_bytes_max: (self.config.recent_bytes_max / groups).max(1 << 20),
            },
            timing: self.config.timing,
            log_entries_kept: self.config.log_entries_kept,
            snapshot_window: 16,
        }
    }

    /// Whether there is a tree for a group here, open or not.
    pub(crate) fn has_tree(&self, group: GroupId) -> bool {
        let path = self.group_config(group).path;
        let names = path.parent().map(|dir| self.disk.list(dir));
        let name = path.file_name();
        names.is_some_and(|names| {
            let mut names = names.into_iter().flatten();
            names.any(|found| Some(found.as_ref()) == name)
        })
    }

    pub(crate) async fn open_replica(
        self: &Arc<Self>,
        group: GroupId,
        begin: Begin,
    ) -> Result<Arc<Replica>, NodeFailure> {
        let failed = |error: GroupFailure| match error {
            GroupFailure::Damaged(reason) => NodeFailure::Damaged(group, reason),
            error => NodeFailure::Group(group, error.to_string()),
        };
        let config = GroupConfig {
            begin,
            ..self.group_config(group)
        };
        let follow = Follow::new(group, Arc::downgrade(self));
        let opened = Group::open(
            config,
            self.wal.clone(),
            Arc::clone(&self.disk),
            &self.tenders,
            Arc::new(ToPeers(Arc::clone(&self.link))),
            Arc::clone(&follow) as Arc<dyn Machine>,
            &self.scope,
        );
        let opened = opened.await.map_err(failed)?;
        let (jobs, queue) = mpsc::channel(self.config.queue_jobs_max);
        let (notes, told) = mpsc::unbounded_channel();
        let rounds = Rounds::new(Arc::clone(&opened), self.scope.clone());
        let replica = Arc::new(Replica::new(group, opened, rounds, follow, jobs, notes));
        if group.is_root() {
            *self.root.write() = Some(Arc::clone(&replica));
        }
        self.replicas.write().insert(group, Arc::clone(&replica));
        let serving = lead::serve(Arc::clone(self), Arc::clone(&replica), queue, told);
        self.scope.spawn(serving);
        self.progress.send_modify(|count| *count += 1);
        Ok(replica)
    }

    /// How a replica that the map places here begins; `None` if that is not
    /// for the map to say, or not yet.
    pub(crate) fn begin(&self, placed: &Placed) -> Option<Begin> {
        let Some(parent) = placed.parent else {
            // One of the first groups.
            let first = self.first_map();
            let first = first.placed(placed.group);
            let voters: BTreeSet<_> = first
                .map_or(&[][..], |placed| &placed.voters)
                .iter()
                .copied()
                .collect();
            return Some(match self.config.join || !voters.contains(&self.me) {
                true => Begin::Empty,
                false => Begin::Members(voters),
            });
        };
        if self.has_tree(placed.group) {
            return Some(Begin::Empty);
        }
        let Some(parent) = self.replica(parent) else {
            return Some(Begin::Empty);
        };
        let store = parent.group.store();
        let to_come = store.bounds().contains(&placed.start);
        let mut records = SplitRecord::all(&store).into_iter();
        let here = records.any(|record| record.child == placed.group);
        // Past the split, and nothing of it is here: it comes from its leader.
        (!to_come && !here).then_some(Begin::Empty)
    }
}

/// Opens the replicas that the map places here.
pub(crate) async fn follow_map(node: Arc<Inner>) {
    let mut cluster = node.cluster.subscribe();
    loop {
        let news = node.copies.opens.notified();
        let map = cluster.borrow_and_update().map.clone();
        if let Some(map) = map {
            for (placed, keys) in map.ranges() {
                if node.replica(placed.group).is_some()
                    || !placed.members.contains(&node.me)
                    || node.damaged.lock().contains_key(&placed.group)
                {
                    continue;
                }
                let Some(begin) = node.begin(placed) else {
                    continue;
                };
                if let Some(parent) = placed.parent {
                    node.watches.split(parent, placed.group, &keys);
                    node.answers.split(parent, placed.group);
                }
                match node.open_replica(placed.group, begin).await {
                    Ok(_) => {}
                    Err(NodeFailure::Damaged(group, reason)) => node.mend(group, reason),
                    Err(error) => tracing::error!("{error}"),
                }
            }
        }
        tokio::select! {
            biased;
            changed = cluster.changed() => if changed.is_err() {
                return;
            },
            () = news => {},
        }
    }
}

/// A group's way to its peers.
struct ToPeers(Arc<Link>);

impl Peers for ToPeers {
    fn call(
        &self,
        to: NodeId,
        group: GroupId,
        message: Bytes,
        within: Duration,
    ) -> Pin<Box<dyn Future<Output = Result<Bytes, String>> + Send>> {
        let message = Message::Raft {
            group,
            body: message,
        };
        let answer = self.0.call(to, message.encode(), within);
        Box::pin(async move { answer.await.map_err(|error| error.to_string()) })
    }
}
