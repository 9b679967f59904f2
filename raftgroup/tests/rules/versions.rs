//! Nothing newer is written than what every member understands.

use std::time::Duration;

use pontoon_raftgroup::{
    Config, Failure, FormatVersion, Member, MemberReject, NodeFailure, NodeId,
};
use tokio::time::timeout;

use crate::cluster::{Client, Cluster, LONG, pause, simulate, until};

const THIS: FormatVersion = FormatVersion::NEWEST;

/// That of a release which has one more kind of entry.
const NEXT: FormatVersion = FormatVersion(THIS.0 + 1);

const KEYS: [&str; 2] = ["a", "n"];

fn this(config: &mut Config) {
    config.newest_format = THIS;
    config.cluster_version_max = THIS;
}

fn next(config: &mut Config) {
    config.newest_format = NEXT;
    config.cluster_version_max = NEXT;
}

fn next_held_back(config: &mut Config) {
    config.newest_format = NEXT;
    config.cluster_version_max = THIS;
}

/// Another release is started in place of the one that runs.
async fn replace(cluster: &mut Cluster, id: u64, release: fn(&mut Config)) {
    cluster.kill(id);
    cluster.change(id, release);
    cluster.start_again(id).await;
    for key in KEYS {
        cluster.node(id).put(key, "new").await;
    }
}

fn versions(cluster: &Cluster) -> Vec<FormatVersion> {
    let nodes = cluster.running().into_iter();
    let version = |id| cluster.node(id).cluster_version().cluster;
    nodes.map(version).collect()
}

fn trials(cluster: &Cluster) -> Vec<u64> {
    let nodes = cluster.running().into_iter();
    nodes.map(|id| cluster.node(id).trial_entries()).collect()
}

/// Until all know the version and have entries of the new kind.
async fn until_next(cluster: &Cluster) {
    until(|| versions(cluster).iter().all(|version| *version == NEXT)).await;
    for key in KEYS {
        cluster.node(1).put(key, "of the new kind").await;
    }
    until(|| trials(cluster).iter().all(|trials| *trials > 0)).await;
}

/// Why a node that is started as an older release ends; it doesn't run then.
async fn reason(cluster: &mut Cluster, id: u64) -> String {
    match cluster.try_again(id, LONG).await {
        None => panic!("it is never open"),
        Some(Err(NodeFailure::Group(_, reason))) => reason,
        Some(Err(error)) => panic!("{error}"),
        Some(Ok(())) => {
            let node = cluster.node(id);
            let failed = timeout(LONG, node.failed()).await;
            cluster.kill(id);
            failed.expect("it goes on").0
        }
    }
}

fn is_too_old(reason: &str) -> bool {
    let versions = "the cluster has version 2, this release understands versions up to 1";
    let unknown = "in format version 2; this one understands up to 1";
    reason.contains(versions) || reason.contains(unknown)
}

#[test]
fn a_new_kind_of_entry_is_used_when_the_last_member_understands_it() {
    simulate(async {
        let mut cluster = Cluster::start(3, &["m"]).await;
        for id in [1, 2] {
            replace(&mut cluster, id, next).await;
        }
        pause(5000).await;
        assert_eq!(versions(&cluster), [THIS; 3]);
        assert_eq!(trials(&cluster), [0; 3]);
        let told = cluster.node(3).cluster_version().members;
        let expected = [(1, NEXT), (2, NEXT), (3, THIS)];
        let expected = expected.map(|(id, version)| (NodeId(id), version));
        assert_eq!(told, expected.into());
        replace(&mut cluster, 3, next).await;
        until_next(&cluster).await;
    });
}

#[test]
fn the_version_is_raised_when_the_last_old_member_is_removed() {
    simulate(async {
        let mut cluster = Cluster::start(3, &["m"]).await;
        for id in [1, 2] {
            replace(&mut cluster, id, next).await;
        }
        cluster.kill(3);
        // Its death may have cost a leader.
        let node = cluster.node(1);
        let remove = || node.member_remove(NodeId(3), LONG);
        while !matches!(
            remove().await,
            Ok(()) | Err(Failure::Member(MemberReject::NotFound))
        ) {
            pause(100).await;
        }
        until_next(&cluster).await;
    });
}

#[test]
fn there_is_a_way_back_until_the_version_is_raised() {
    simulate(async {
        let mut cluster = Cluster::start(3, &["m"]).await;
        for release in [next_held_back, this, next] {
            for id in 1..=3 {
                assert_eq!(versions(&cluster), [THIS; 3]);
                assert_eq!(trials(&cluster), [0; 3]);
                replace(&mut cluster, id, release).await;
            }
            pause(5000).await;
        }
        until_next(&cluster).await;
        // The flag is too late now, and doesn't keep a member from starting.
        replace(&mut cluster, 1, next_held_back).await;
        until_next(&cluster).await;
        cluster.kill(2);
        cluster.change(2, this);
        let reason = reason(&mut cluster, 2).await;
        assert!(is_too_old(&reason), "{reason}");
        cluster.node(1).put("a", "the others go on").await;
        cluster.change(2, next);
        cluster.start_again(2).await;
        let read = cluster.node(2).get("a").await;
        assert_eq!(read.kvs[0].value, "the others go on");
    });
}

/// A member that was started with an older release says that it understands
/// less than before.
#[test]
fn a_member_that_went_back_holds_the_version_back() {
    simulate(async {
        let mut cluster = Cluster::start(3, &["m"]).await;
        replace(&mut cluster, 1, next).await;
        until(|| cluster.node(2).cluster_version().members[&NodeId(1)] == NEXT).await;
        replace(&mut cluster, 1, this).await;
        until(|| cluster.node(2).cluster_version().members[&NodeId(1)] == THIS).await;
        for id in [2, 3] {
            replace(&mut cluster, id, next).await;
        }
        pause(5000).await;
        assert_eq!(versions(&cluster), [THIS; 3]);
        assert_eq!(trials(&cluster), [0; 3]);
    });
}

#[test]
fn an_old_release_cant_join_a_newer_cluster_and_says_why() {
    simulate(async {
        let mut cluster = Cluster::start_with(3, &["m"], next).await;
        until_next(&cluster).await;
        let member = Member {
            address: String::new(),
            learner: false,
        };
        let added = cluster.node(1).member_add(NodeId(4), member, LONG).await;
        added.expect("it is taken in");
        let id = cluster.join_with(this).await;
        let node = cluster.node(id);
        let fault = timeout(Duration::from_secs(60), node.failed()).await;
        let fault = fault.expect("it goes on");
        assert!(is_too_old(&fault.0), "{fault}");
        cluster.kill(id);
        cluster.node(1).put("a", "the others go on").await;
        cluster.change(id, next);
        cluster.start_again(id).await;
        cluster.node(id).put("n", "welcome").await;
        // Its version was not known; nothing goes down for it.
        until_next(&cluster).await;
    });
}
