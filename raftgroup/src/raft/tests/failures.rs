//! What stops a replica, and what doesn't.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pontoon_wal::disk::Disk;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use super::{
    Cluster, NetOf, Notebook, STORE, group_config, open_wal, propose, simulate, tree_path,
};
use crate::codec::Wire;
use crate::position::NodeId;
use crate::raft::message::{self, Answer, Ballot, Request};
use crate::raft::types::{Vote, log_id};
use crate::raft::{Group, GroupFailure, Proposed, Tenders};
use crate::runtime::Scope;

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
        assert!(reason.contains("the log of group 5"), "{reason}");
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
        assert!(reason.contains("5.tree"), "{reason}");
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
        let reason = group.failure().unwrap();
        assert!(reason.contains("applying entry"), "{reason}");
        assert!(reason.contains("it is poison"), "{reason}");
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
        messages.push((whole.clone(), "an entry makes no sense"));
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
        let node = cluster.nodes.remove(&1).unwrap();
        node.group.close().await;
        node.scope.end();
        let disk = node.disk.power_cut(1);
        disk.remove_file(&tree_path());
        let shared: Arc<dyn Disk> = Arc::new(disk);
        let opened = Group::open(
            group_config(1, &tree_path()),
            open_wal(Arc::clone(&shared), Path::new("/node/wal"), 1, 1),
            Arc::clone(&shared),
            &Tenders::new(shared),
            Arc::new(NetOf(cluster.net.clone(), NodeId(1))),
            Arc::new(Notebook::default()),
            &Scope::new(1),
        )
        .await;
        let error = opened.err().unwrap();
        assert!(matches!(error, GroupFailure::Damaged(_)), "{error}");
    });
}
