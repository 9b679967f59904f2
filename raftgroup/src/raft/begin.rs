//! How a replica begins, and how it is removed.
//!
//! Kept true: a replica that may have lost a vote or an acknowledged entry is
//! called damaged, whatever it is told to begin with. What is left of one whose
//! removal was cut short is never taken for a whole one.
//!
//! | log | store | it is |
//! |---|---|---|
//! | none | empty | new: it begins as it is told |
//! | none | at position 1 of term 0 | born by a split: that position is the end of its log |
//! | with a vote of the store's term or a later one | one that the log reaches back to | one that goes on |
//! | anything else | | damaged |

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use bytes::Bytes;
use pontoon_engine::{Applied, EngineError};
use pontoon_wal::disk::Disk;
use pontoon_wal::{Wal, WalError};

use crate::format::seal;
use crate::position::{GroupId, NodeId, Term};
use crate::raft::failure::{Failure, Stop};
use crate::raft::log::GroupLog;
use crate::raft::machine::{MEMBERSHIP, Replica};
use crate::raft::types::{Membership, StoredMembership, Vote, log_id};
use crate::raft::{GroupConfig, GroupFailure};

/// How a replica without a log begins. One that has a log goes on with that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Begin {
    /// As one of the first voters of a new group; all of them begin so.
    Members(BTreeSet<NodeId>),
    /// As nobody: it may vote, but doesn't stand for election before a
    /// leader has made it a member.
    Empty,
    /// With the store that a split made, which has [`membership_record`].
    Born,
}

/// The last position of a log that has just been born.
const BORN: Applied = Applied {
    index: 1,
    term: 0,
    leader: 0,
};

/// What the store of a group that is born has to have, at position 1 of term
/// 0: the name and content of a record that says who its members are.
pub(crate) fn membership_record(
    voters: &BTreeSet<NodeId>,
    learners: &BTreeSet<NodeId>,
) -> (Bytes, Bytes) {
    let last = BORN.index - 1;
    let membership = StoredMembership::new(
        Some(log_id(BORN.term, last)),
        membership(vec![voters.clone()], voters | learners),
    );
    (Bytes::from_static(MEMBERSHIP), seal(&membership))
}

/// A membership in openraft's words; who is in none of the sets is a learner.
pub(crate) fn membership(voters: Vec<BTreeSet<NodeId>>, nodes: BTreeSet<NodeId>) -> Membership {
    let voters = voters.into_iter().map(|set| ids(&set)).collect();
    Membership::new_with_defaults(voters, ids(&nodes))
}

fn ids(nodes: &BTreeSet<NodeId>) -> BTreeSet<u64> {
    nodes.iter().map(|node| node.0).collect()
}

/// Whether this is what is left of a replica that was being removed.
pub(crate) fn check_doomed(log: &GroupLog) -> Result<(), GroupFailure> {
    match log.is_doomed() {
        false => Ok(()),
        true => Err(damaged("its removal was begun")),
    }
}

/// Whether log and store fit together, and to what the replica begins with.
pub(crate) fn check(begin: &Begin, log: &GroupLog, replica: &Replica) -> Result<(), GroupFailure> {
    let applied = replica.store().applied();
    let purged = log.purged().map_err(unreadable)?;
    let needed = purged.map_or(0, |last| last.index + 1);
    if applied.index < needed {
        return Err(damaged(&format!(
            "the store has entries up to {}, the log only those after {needed}",
            applied.index
        )));
    }
    // Nothing of a term is applied before a vote of that term is durable.
    let vote = log.vote().map_err(unreadable)?;
    let voted = vote.map_or(0, |vote| vote.leader_id.term);
    if voted < applied.term {
        return Err(damaged(&format!(
            "the store has entries of term {}, the log only votes up to {voted}",
            applied.term
        )));
    }
    if log.exists() {
        return Ok(());
    }
    let born = (applied.index, applied.term) == (BORN.index, BORN.term)
        && *replica.membership().log_id() == Some(log_id(BORN.term, BORN.index - 1));
    match begin {
        _ if applied.index > 0 && !born => Err(damaged("its log is gone")),
        Begin::Born if !born => Err(damaged("its store was not made by a split")),
        _ => Ok(()),
    }
}

/// Removes what is left of a damaged replica, which is not open, so that an
/// empty one can begin: it hears no leader before this one, which has committed
/// a membership in which this node is no voter.
pub(crate) async fn begin_again(
    config: &GroupConfig,
    wal: Wal,
    disk: &dyn Disk,
    term: Term,
    leader: NodeId,
) -> Result<(), GroupFailure> {
    let log = GroupLog::new(wal, config.group, Failure::default().into());
    log.doom().await.map_err(log_failed)?;
    remove_tree(disk, &config.path)?;
    let vote = Vote::new_committed(term.0, leader.0);
    log.begin_again(&vote).await.map_err(log_failed)
}

/// Says, durably, that a replica must be rebuilt, whatever is left of it.
pub(crate) async fn doom(wal: Wal, group: GroupId) -> Result<(), GroupFailure> {
    let log = GroupLog::new(wal, group, Failure::default().into());
    log.doom().await.map_err(log_failed)
}

/// Removes a replica. The log goes last, because it says what was promised:
/// a store without its log would look like one that has just been born, which
/// may vote again. And it says first that it will go, because a log without
/// its store may reach back to the first entry: it would be whole.
pub(crate) async fn remove(
    log: &GroupLog,
    disk: &dyn Disk,
    tree: &Path,
) -> Result<(), GroupFailure> {
    if log.exists() {
        log.doom().await.map_err(log_failed)?;
    }
    remove_tree(disk, tree)?;
    if log.exists() {
        log.remove().await.map_err(log_failed)?;
    }
    Ok(())
}

fn log_failed(error: WalError) -> GroupFailure {
    Stop::from(&error).into()
}

/// Removes a tree, and a copy of one that was to take its place.
fn remove_tree(disk: &dyn Disk, tree: &Path) -> Result<(), EngineError> {
    let dir = tree.parent().unwrap_or(Path::new(""));
    let name = tree.file_name().unwrap_or_default().to_string_lossy();
    let remove = || {
        for found in disk.list(dir)? {
            let rest = found.strip_prefix(&*name);
            if rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.')) {
                disk.remove(&dir.join(found))?;
            }
        }
        disk.sync_dir(dir)
    };
    remove().map_err(|error| EngineError::disk(tree, "removal", error))
}

/// What a later release wrote isn't damaged.
fn unreadable(error: io::Error) -> GroupFailure {
    match error.kind() {
        io::ErrorKind::Unsupported => GroupFailure::Stopped(error.to_string()),
        _ => damaged(&error.to_string()),
    }
}

fn damaged(reason: &str) -> GroupFailure {
    GroupFailure::Damaged(reason.to_owned())
}
