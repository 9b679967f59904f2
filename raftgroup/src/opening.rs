//! Opening replicas, as the map says.
//!
//! Kept true: a node opens a replica of every group that the map places on it,
//! however often it takes; one that is split off is made of its parent here,
//! or comes from its leader. At any time at most one task makes, opens,
//! rebuilds or removes the replica of a group: it holds the group's [`Claim`].

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use pontoon_engine::KeyRange;
use pontoon_wal::disk::{Disk, Task};
use tokio::sync::{Notify, mpsc};

use crate::codec::Wire;
use crate::lead;
use crate::link::Link;
use crate::map::Placed;
use crate::message::Message;
use crate::mutation::{Mutation, mutated};
use crate::node::{Inner, NodeFailure};
use crate::position::{GroupId, NodeId};
use crate::raft::{Begin, Group, GroupConfig, GroupFailure, Kept, Machine, Peers};
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
        // As many as there are when it is opened; those that come later get less.
        let groups = {
            let cluster = self.cluster.borrow();
            let map = cluster.map.as_ref();
            map.map_or(self.config.splits.len() + 1, |map| map.ranges().count())
        };
        let log_kept = self.config.log_kept_bytes;
        GroupConfig {
            node: self.me,
            group,
            begin: Begin::Empty,
            path: self.config.dir.join("trees").join(tree_name(group)),
            store: pontoon_engine::Config {
                store: self.config.cluster.wrapping_add(u128::from(group.0)),
                dirty_bytes_max: (self.config.dirty_bytes_max / groups).max(4 << 20) / 2,
                log_bytes_max: self.config.log_bytes_max.min(log_kept / 4),
                recent_bytes_max: (self.config.recent_bytes_max / groups).max(1 << 20),
                slow_apply: self.config.slow_apply,
                counters: Arc::clone(&self.counters.stores),
            },
            timing: self.config.timing,
            kept: Kept {
                entries_max: self.config.log_entries_kept,
                bytes_max: log_kept,
            },
            rotations: self.rotations.clone(),
            snapshot_window: 16,
            health: Arc::clone(&self.health),
            counters: Arc::clone(&self.counters),
        }
    }

    /// Whether there is a tree for a group here, open or not; `None` if the
    /// disk doesn't say, which fails the node.
    pub(crate) fn has_tree(&self, group: GroupId) -> Option<bool> {
        let name = tree_name(group);
        self.tree_names().map(|names| names.contains(&name))
    }

    fn tree_names(&self) -> Option<Vec<String>> {
        let trees = self.config.dir.join("trees");
        match self.disk.list(&trees) {
            Ok(names) => Some(names),
            Err(error) => {
                let dir = trees.display();
                self.health.fail(format!("{dir}: list: {error}"));
                None
            }
        }
    }

    pub(crate) async fn open_replica(
        self: &Arc<Self>,
        group: GroupId,
        begin: Begin,
    ) -> Result<Arc<Replica>, NodeFailure> {
        let failed = |error: GroupFailure| NodeFailure::of(group, error);
        let config = GroupConfig {
            begin,
            ..self.group_config(group)
        };
        let follow = Follow::new(group, Arc::downgrade(self), self.config.newest_format);
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
        let rounds = Rounds::new(
            Arc::clone(&opened),
            self.scope.clone(),
            Arc::clone(&self.counters),
        );
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

    /// Opens the root group's replica, or has it rebuilt.
    pub(crate) async fn open_root(self: &Arc<Self>) -> Result<(), NodeFailure> {
        let first = self.first_map();
        let begin = first.placed(GroupId::ROOT);
        let begin = begin.and_then(|placed| self.begin(placed));
        let root = self.open_replica(GroupId::ROOT, begin.unwrap_or(Begin::Empty));
        let root = match root.await {
            Err(NodeFailure::Damaged(group, reason)) if self.config.members.len() > 1 => {
                tracing::error!("group {group} is rebuilt before anything else: {reason}");
                self.rebuild(group, None).await
            }
            root => root,
        };
        root.map(|_| ())
    }

    /// How a replica of a group begins here; `None` if that is not for the map
    /// to say, or not yet.
    pub(crate) fn begin(&self, placed: &Placed) -> Option<Begin> {
        if !placed.members.contains(&self.me) {
            return Some(Begin::Empty);
        }
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
        if self.has_tree(placed.group)? {
            return Some(Begin::Empty);
        }
        let Some(parent) = self.replica(parent) else {
            return Some(Begin::Empty);
        };
        let store = parent.group.store();
        let to_come = store.bounds().contains(&placed.start);
        let records = SplitRecord::all(&store).map_err(|error| parent.group.report(&error));
        let here = records
            .ok()?
            .iter()
            .any(|record| record.child == placed.group);
        // Past the split, and nothing of it is here: it comes from its leader.
        (!to_come && !here).then_some(Begin::Empty)
    }
}

fn tree_name(group: GroupId) -> String {
    format!("{group}.tree")
}

/// Who makes, opens, rebuilds or removes the replica of a group here.
///
/// Each of these looks at the replica's files and the log and then changes
/// them, so it must be the only one to do so.
#[derive(Default)]
pub(crate) struct Claims {
    claimed: Arc<Mutex<BTreeSet<GroupId>>>,
    /// A claim ended.
    ended: Arc<Notify>,
}

/// Held by the only one who may make, open, rebuild or remove a replica.
pub(crate) struct Claim {
    claimed: Arc<Mutex<BTreeSet<GroupId>>>,
    ended: Arc<Notify>,
    group: GroupId,
}

impl Claims {
    /// `None` if somebody else is at it.
    pub(crate) fn claim(&self, group: GroupId) -> Option<Claim> {
        self.claimed.lock().insert(group).then(|| Claim {
            claimed: Arc::clone(&self.claimed),
            ended: Arc::clone(&self.ended),
            group,
        })
    }

    /// Waits until nobody else is at it.
    pub(crate) async fn claimed(&self, group: GroupId) -> Claim {
        loop {
            let ended = self.ended.notified();
            if let Some(claim) = self.claim(group) {
                return claim;
            }
            ended.await;
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.claimed.lock().remove(&self.group);
        self.ended.notify_waiters();
    }
}

/// Pauses between attempts, which grow.
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(10);

/// The pause after one of this length.
pub(crate) fn next_pause(pause: Duration) -> Duration {
    (2 * pause).clamp(RETRY_FIRST, RETRY_MAX)
}

/// Opens the replicas that the map places here, and those that it doesn't but
/// that are here: their groups may still need their votes.
pub(crate) async fn follow_map(node: Arc<Inner>) {
    let mut cluster = node.cluster.subscribe();
    let mut pause = Duration::ZERO;
    loop {
        let news = node.copies.opens.notified();
        let map = cluster.borrow_and_update().map.clone();
        let mut failed = false;
        if let Some(map) = map {
            let is_placed = |placed: &Placed| placed.members.contains(&node.me);
            let may_have_more = map.ranges().any(|(placed, _)| !is_placed(placed));
            let here = may_have_more.then(|| node.tree_names()).flatten();
            let here = here.unwrap_or_default();
            for (placed, keys) in map.ranges() {
                if is_placed(placed) || here.contains(&tree_name(placed.group)) {
                    failed |= !node.open_placed(placed, &keys).await;
                }
            }
        }
        pause = match failed {
            true => next_pause(pause),
            false => Duration::ZERO,
        };
        tokio::select! {
            biased;
            changed = cluster.changed() => if changed.is_err() {
                return;
            },
            () = news => {},
            () = tokio::time::sleep(pause), if failed => {},
        }
    }
}

impl Inner {
    /// Opens the replica of a group, unless it is open or somebody is at it. `false` if that failed and is to be tried again.
    async fn open_placed(self: &Arc<Self>, placed: &Placed, keys: &KeyRange) -> bool {
        let group = placed.group;
        if self.replica(group).is_some() {
            return true;
        }
        let claim = self.claims.claim(group);
        if claim.is_none() && !mutated(Mutation::ChildOpenedByMap) {
            return true;
        }
        // Under the claim nobody else opens it or changes its files.
        if self.replica(group).is_some() || self.damaged.lock().contains_key(&group) {
            return true;
        }
        let Some(begin) = self.begin(placed) else {
            return true;
        };
        if let Some(parent) = placed.parent {
            self.watches.split(parent, group, keys);
            self.answers.split(parent, group);
        }
        match self.open_replica(group, begin).await {
            Ok(_) => {
                self.troubles.lock().remove(&group);
                true
            }
            Err(NodeFailure::Damaged(group, reason)) => {
                drop(claim);
                self.mend(group, reason);
                true
            }
            Err(NodeFailure::Failed(fault)) => {
                self.health.fail(fault.0);
                true
            }
            Err(error) => {
                let reason = error.to_string();
                let known = self.troubles.lock().insert(group, reason.clone());
                if known.is_none_or(|known| known != reason) {
                    tracing::error!(%group, error = reason, "the replica can't be opened yet");
                }
                false
            }
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
