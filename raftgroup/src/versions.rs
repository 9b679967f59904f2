//! The version of the cluster, which gates new formats and kinds of entries.
//!
//! Kept true: every member understands and agrees to the version of the
//! cluster, and it never goes down. It is raised in the entry that makes that
//! true, so no member can be missed. Who doesn't understand it any more,
//! because an older release was started, stops before it serves anything.
//!
//! A member tells its version when it has started; one that tells none is of
//! [`FormatVersion::FIRST`]. Nothing newer than the version of the cluster is
//! ever proposed: see [`Command::to_proposal`](crate::command::Command::to_proposal).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::codec::wire;
use crate::error::Failure;
use crate::format::FormatVersion;
use crate::member::{MemberReject, MemberWork, Members};
use crate::node::{Inner, Node};
use crate::position::NodeId;

/// What the root group knows of versions. The layout of its record is for
/// ever: every release must be able to read that it is too old.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Versions {
    pub(crate) cluster: FormatVersion,
    told: BTreeMap<NodeId, FormatVersion>,
}

impl Default for Versions {
    fn default() -> Self {
        Self {
            cluster: FormatVersion::FIRST,
            told: BTreeMap::new(),
        }
    }
}

wire!(struct Versions { cluster, told });

impl Versions {
    /// The newest version that a member agrees to.
    pub(crate) fn of(&self, member: NodeId) -> FormatVersion {
        let told = self.told.get(&member).copied();
        told.unwrap_or(FormatVersion::FIRST)
    }

    /// Notes what a member agrees to.
    pub(crate) fn tell(
        &mut self,
        member: NodeId,
        version: FormatVersion,
    ) -> Result<(), MemberReject> {
        if version < self.cluster {
            return Err(MemberReject::TooOld);
        }
        self.told.insert(member, version);
        Ok(())
    }

    /// Raises the version of the cluster, if all of these members agree.
    pub(crate) fn follow(&mut self, members: &Members) {
        self.told.retain(|member, _| members.contains_key(member));
        let agreed = members.keys().map(|member| self.of(*member)).min();
        self.cluster = self.cluster.max(agreed.unwrap_or(self.cluster));
    }
}

#[cfg(test)]
impl Versions {
    pub(crate) fn sample() -> Self {
        Self {
            cluster: FormatVersion(1),
            told: [(NodeId(300), FormatVersion(2))].into(),
        }
    }
}

/// What a member understands is older than the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the cluster has version {cluster}, this release understands versions up to {newest}: \
     start this member with the release that the others have"
)]
pub(crate) struct TooOld {
    cluster: FormatVersion,
    newest: FormatVersion,
}

impl Versions {
    /// Whether a release that understands all up to `newest` may take part.
    pub(crate) fn check(&self, newest: FormatVersion) -> Result<(), TooOld> {
        match self.cluster > newest {
            true => Err(TooOld {
                cluster: self.cluster,
                newest,
            }),
            false => Ok(()),
        }
    }
}

/// The version of the cluster, and what its members agree to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterVersion {
    /// Entries may have everything up to it.
    pub cluster: FormatVersion,
    /// The newest version that each member agrees to.
    pub members: BTreeMap<NodeId, FormatVersion>,
}

impl Node {
    /// The version of the cluster, as far as this member knows.
    #[must_use]
    pub fn cluster_version(&self) -> ClusterVersion {
        let members = self.0.member_list().into_keys();
        let cluster = self.0.cluster.borrow();
        ClusterVersion {
            cluster: cluster.versions.cluster,
            members: members
                .map(|member| (member, cluster.versions.of(member)))
                .collect(),
        }
    }

    /// How many entries were applied here whose kind only a release knows that
    /// tests call the next one.
    #[doc(hidden)]
    #[must_use]
    pub fn trial_entries(&self) -> u64 {
        let count = |replica: Arc<crate::replica::Replica>| {
            let trials = &replica.follow.trials;
            trials.load(std::sync::atomic::Ordering::Relaxed)
        };
        self.0.replicas().into_iter().map(count).sum()
    }
}

/// Before a version that was not taken is told again.
const RETRY: Duration = Duration::from_secs(1);

/// How long the root group's leader may take to hear it.
const TELL_WITHIN: Duration = Duration::from_secs(10);

/// Has the root group know what this member agrees to, for as long as it runs.
pub(crate) async fn tell(node: Arc<Inner>) {
    let mut cluster = node.cluster.subscribe();
    loop {
        let wanted = {
            let cluster = cluster.borrow_and_update();
            let members = cluster.members.as_ref();
            let is_member = members.is_some_and(|members| members.contains_key(&node.me));
            let agrees = node.agrees_to(&cluster.versions);
            (is_member && cluster.versions.of(node.me) != agrees).then_some(agrees)
        };
        let Some(version) = wanted else {
            if cluster.changed().await.is_err() {
                return;
            }
            continue;
        };
        let work = MemberWork::Version {
            id: node.me,
            version,
        };
        let told = node.change_members(work, Instant::now() + TELL_WITHIN);
        match told.await {
            Ok(_) => tracing::info!(%version, "the cluster knows this member's version"),
            Err(Failure::Member(reject @ MemberReject::TooOld)) => {
                return node.health.fail(reject.to_string());
            }
            Err(error) => {
                tracing::warn!(%version, %error, "this member's version is not known yet");
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

impl Inner {
    /// Nothing newer may be proposed.
    pub(crate) fn cluster_version(&self) -> FormatVersion {
        self.cluster.borrow().versions.cluster
    }

    fn agrees_to(&self, versions: &Versions) -> FormatVersion {
        let agrees = self.config.cluster_version_max.max(versions.cluster);
        agrees.min(self.config.newest_format)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::Wire;
    use crate::member::Member;

    fn members(ids: &[u64]) -> Members {
        let member = |id: &u64| {
            let member = Member {
                address: String::new(),
                learner: *id > 2,
            };
            (NodeId(*id), member)
        };
        ids.iter().map(member).collect()
    }

    #[test]
    fn the_version_is_raised_when_every_member_agrees_and_never_goes_down() {
        let mut versions = Versions::default();
        let mut tells = |member, version, among: &[u64]| {
            let told = versions.tell(NodeId(member), FormatVersion(version));
            versions.follow(&members(among));
            told.map(|()| versions.cluster.0)
        };
        assert_eq!(tells(1, 3, &[1, 2, 3]), Ok(1));
        assert_eq!(tells(2, 2, &[1, 2, 3]), Ok(1));
        // A learner counts as much as anybody.
        assert_eq!(tells(3, 2, &[1, 2, 3]), Ok(2));
        // A new member has told nothing yet.
        assert_eq!(tells(2, 3, &[1, 2, 3, 4]), Ok(2));
        assert_eq!(tells(4, 1, &[1, 2, 3, 4]), Err(MemberReject::TooOld));
        // Who held it back is gone.
        assert_eq!(tells(3, 3, &[1, 2, 3]), Ok(3));
        assert_eq!(tells(1, 2, &[1, 2, 3]), Err(MemberReject::TooOld));
    }

    #[test]
    fn a_member_that_is_not_there_any_more_is_forgotten() {
        let mut versions = Versions::default();
        versions.tell(NodeId(1), FormatVersion(2)).unwrap();
        versions.follow(&members(&[2]));
        assert_eq!(versions.of(NodeId(1)), FormatVersion::FIRST);
        // It comes back with an older release.
        versions.follow(&members(&[1, 2]));
        assert_eq!(versions.cluster, FormatVersion::FIRST);
    }

    #[test]
    fn an_older_release_is_told_what_to_do() {
        let versions = Versions {
            cluster: FormatVersion(2),
            ..Versions::default()
        };
        assert_eq!(versions.check(FormatVersion(2)), Ok(()));
        let error = versions.check(FormatVersion(1)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the cluster has version 2, this release understands versions up to 1: \
             start this member with the release that the others have"
        );
        assert_eq!(Versions::decode(versions.encode()), Some(versions));
    }
}
