//! What stops a replica, and what doesn't.

use std::time::Duration;

use bytes::Bytes;
use openraft::RaftLogReader;
use pontoon_engine::EngineError;
use pontoon_wal::disk::sim::SimDisk;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use super::{Cluster, STORE, propose, simulate, tree_path};
use crate::codec::Wire;
use crate::position::NodeId;
use crate::raft::message::{self, Answer, Ballot, Request};
use crate::raft::types::{Vote, log_id};
use crate::raft::{Begin, GroupFailure, Proposed, Stop};

#[test]
fn a_failed_sync_stops_the_replica_with_a_reason() {
    simulate(async {
        let cluster = Cluster::start(50).await;
        let (leader, term) = cluster.leader().await;
        cluster.write("before").await;
        cluster.converge().await;
        let disk = &cluster.nodes[&leader].disk;
        disk.fail_sync_at(disk.syncs());
        let group = cluster.group(leader);
        let lost = timeout(
            Duration::from_secs(10),
            propose(&group, term, "lost".into()),
        )
        .await;
        assert_eq!(lost, Ok(Proposed::Unknown));
        let mut leadership = group.leadership();
        leadership
            .wait_for(|now| now.leader.is_none())
            .await
            .unwrap();
        let reason = group.failure().unwrap();
        assert!(
            matches!(&reason, Stop::Disk(why) if why.contains("the log of group 5")),
            "{reason:?}"
        );
        // The others go on.
        let others: Vec<u64> = (1..=3).filter(|id| *id != leader).collect();
        let (next, next_term) = cluster.leader_of(&others).await;
        let kept = propose(&cluster.group(next), next_term, "kept".into()).await;
        assert!(matches!(kept, Proposed::Applied(_)), "{kept:?}");
    });
}

#[test]
fn a_failed_checkpoint_stops_the_replica_with_a_reason() {
    simulate(async {
        let cluster = Cluster::start(51).await;
        let (leader, _) = cluster.leader().await;
        cluster.write("x".repeat(3000)).await;
        cluster.converge().await;
        let follower = leader % 3 + 1;
        let group = cluster.group(follower);
        let disk = &cluster.nodes[&follower].disk;
        disk.fail_write_at(disk.writes());
        group.store().request_checkpoint();
        while group.failure().is_none() {
            sleep(Duration::from_millis(10)).await;
        }
        let reason = group.failure().unwrap();
        assert!(
            matches!(&reason, Stop::Disk(why) if why.contains("5.tree")),
            "{reason:?}"
        );
        let mut leadership = group.leadership();
        leadership
            .wait_for(|now| now.leader.is_none())
            .await
            .unwrap();
        assert!(group.confirm().await.is_err());
        cluster.write("the others go on").await;
    });
}

#[test]
fn an_entry_that_makes_no_sense_stops_the_replica_and_is_named() {
    simulate(async {
        let cluster = Cluster::start(52).await;
        let (leader, term) = cluster.leader().await;
        let group = cluster.group(leader);
        let poison = propose(&group, term, "poison".into()).await;
        assert_eq!(poison, Proposed::Unknown);
        sleep(Duration::from_secs(1)).await;
        let Some(Stop::Other(reason)) = group.failure() else {
            panic!("{:?}", group.failure());
        };
        assert!(reason.contains("applying entry"), "{reason}");
        assert!(
            reason.contains("poison: the bytes make no sense"),
            "{reason}"
        );
    });
}

#[test]
fn bytes_that_make_no_sense_are_refused() {
    simulate(async {
        let cluster = Cluster::start(53).await;
        cluster.leader().await;
        let append = Request::Append {
            vote: Vote::new_committed(9, 2),
            previous: Some(log_id(1, 1)),
            committed: None,
            records: vec![Bytes::from_static(b"\x07shorter")],
        };
        let piece = Request::SnapshotPiece {
            id: 1,
            number: 0,
            page: 0,
            bytes: Bytes::new(),
        };
        let whole = message::encode(STORE, &append);
        let ballot = Request::PreVote(Ballot {
            vote: Vote::new(9, 2),
            last: None,
            transfer: false,
        });
        let cut = (0..whole.len()).map(|cut| (whole.slice(..cut), ""));
        let mut messages: Vec<(Bytes, &str)> = cut.collect();
        messages.push((message::encode(STORE + 1, &ballot), "another cluster"));
        messages.push((message::encode(STORE, &piece), "has not begun"));
        messages.push((whole.clone(), "log record: the bytes make no sense"));
        for (message, reason) in messages {
            let (reply, answer) = oneshot::channel();
            let reply = Box::new(move |bytes| {
                let _ = reply.send(bytes);
            });
            cluster.group(1).receive(NodeId(2), message, reply);
            let answer = Answer::decode(answer.await.unwrap()).unwrap();
            let Answer::Refused(why) = answer else {
                panic!("{answer:?}");
            };
            assert!(why.contains(reason), "{why}");
        }
        cluster.write("still here").await;
        cluster.converge().await;
    });
}

#[test]
fn a_store_that_is_older_than_the_log_is_refused() {
    simulate(async {
        let mut cluster = Cluster::start(54).await;
        while cluster.group(1).counts().purged.0 == 0 {
            cluster.write("y".repeat(3000)).await;
        }
        cluster.group(1).close().await;
        let disk = cluster.stop(1);
        disk.remove_file(&tree_path());
        let error = cluster.try_open(1, disk, Begin::Empty).await.unwrap_err();
        assert!(matches!(error, GroupFailure::Damaged(_)), "{error}");
    });
}

/// Flips a bit in each page of the tree but the first ones, which are found
/// damaged when it is opened.
fn damage_pages(disk: &SimDisk) {
    let pages = disk.read_file(&tree_path()).unwrap().len() / 4096;
    for page in 2..pages {
        disk.flip_bit(&tree_path(), (page * 4096 + 100) as u64 * 8);
    }
}

#[test]
fn a_damaged_tree_is_told_from_a_failing_disk() {
    simulate(async {
        let mut cluster = Cluster::start(55).await;
        for i in 0..100 {
            cluster.write(format!("{i}-{}", "z".repeat(2000))).await;
        }
        let (leader, _) = cluster.leader().await;
        let follower = leader % 3 + 1;
        // The background finds it while the replica goes on.
        damage_pages(&cluster.nodes[&follower].disk);
        let group = cluster.group(follower);
        while group.failure().is_none() {
            sleep(Duration::from_millis(100)).await;
        }
        let reason = group.failure().unwrap();
        assert!(matches!(reason, Stop::Damaged(_)), "{reason:?}");
        // So does opening, when nothing can be read.
        drop(group);
        let disk = cluster.stop(follower);
        let bytes = disk.read_file(&tree_path()).unwrap().len();
        disk.write_file(&tree_path(), vec![7; bytes]);
        let error = cluster.try_open(follower, disk, Begin::Empty).await;
        let error = error.unwrap_err();
        assert!(matches!(error, GroupFailure::Damaged(_)), "{error}");
    });
}

#[test]
fn who_reads_a_store_may_report_damage() {
    simulate(async {
        let cluster = Cluster::start(56).await;
        let group = cluster.group(1);
        group.report(&EngineError::Stopped("closed".to_owned()));
        assert_eq!(group.failure(), None);
        group.report(&EngineError::Damaged {
            file: tree_path(),
            page: 7,
            reason: "its checksum is wrong".to_owned(),
        });
        assert!(matches!(group.failure(), Some(Stop::Damaged(_))));
        let mut leadership = group.leadership();
        let stopped = leadership.wait_for(|now| now.leader.is_none());
        stopped.await.unwrap();
    });
}

#[test]
fn a_damaged_log_is_told_from_a_failing_disk() {
    simulate(async {
        let cluster = Cluster::start(57).await;
        for i in 0..15 {
            cluster.write(format!("{i}-{}", "d".repeat(2000))).await;
        }
        cluster.converge().await;
        let disk = &cluster.nodes[&1].disk;
        let files = disk.paths().into_iter();
        for path in files.filter(|path| path.starts_with("/node/wal")) {
            let bytes = disk.read_file(&path).unwrap();
            let places = (0..bytes.len()).step_by(100);
            for place in places.filter(|place| bytes[*place] == b'd') {
                disk.flip_bit(&path, place as u64 * 8);
            }
        }
        // As a leader does for one who is behind.
        let group = cluster.group(1);
        let read = group.log.clone().try_get_log_entries(0..10).await;
        assert!(read.is_err());
        let reason = group.failure().unwrap();
        assert!(matches!(reason, Stop::Damaged(_)), "{reason:?}");
        let mut leadership = group.leadership();
        let stopped = leadership.wait_for(|now| now.leader.is_none());
        stopped.await.unwrap();
    });
}
