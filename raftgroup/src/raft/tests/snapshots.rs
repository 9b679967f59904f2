//! Replicas that are too far behind for the log.

use std::time::Duration;

use bytes::Bytes;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use super::{Cluster, STORE, simulate};
use crate::codec::Wire;
use crate::format::FormatVersion;
use crate::position::NodeId;
use crate::raft::message::{self, Answer, Request};
use crate::raft::types::{StoredMembership, Vote, log_id};

/// Writes until the leader's log begins after the last entry that `behind` has.
pub(super) async fn write_past(cluster: &Cluster, behind: u64) {
    let (leader, _) = cluster.leader().await;
    let has = cluster.group(behind).counts().last;
    let mut i = 0;
    while cluster.group(leader).counts().purged <= has {
        let filler = vec![b'a' + (i % 26) as u8; 3000];
        let name = format!("{i:040}");
        cluster.write([name.as_bytes(), &filler].concat()).await;
        i += 1;
        assert!(i < 5000, "the log is never shortened");
    }
}

#[test]
fn a_follower_that_was_cut_off_catches_up_by_a_snapshot() {
    for seed in 30..34 {
        simulate(async {
            let mut cluster = Cluster::start(seed).await;
            cluster.write("first").await;
            cluster.converge().await;
            let (leader, _) = cluster.leader().await;
            let behind = leader % 3 + 1;
            let old = cluster.group(behind).store();
            cluster.net.cut(behind);
            write_past(&cluster, behind).await;
            cluster.net.mend(behind);
            cluster.converge().await;
            assert_eq!(cluster.group(behind).counts().snapshots_installed, 1);
            // Who still reads the old store finds it as it was.
            assert!(old.record(b"first").unwrap().is_some());
            assert!(old.applied().index < cluster.group(behind).store().applied().index);
            // What was installed is there after a power cut, and goes on.
            cluster.restart(behind).await;
            cluster.write("later").await;
            cluster.converge().await;
            // It can lead, and send snapshots itself.
            let (leader, _) = cluster.leader().await;
            if leader != behind {
                cluster.group(leader).transfer(NodeId(behind)).await;
                cluster.leader_of(&[behind]).await;
            }
            let third = behind % 3 + 1;
            cluster.net.cut(third);
            write_past(&cluster, third).await;
            cluster.net.mend(third);
            cluster.converge().await;
            assert_eq!(cluster.group(third).counts().snapshots_installed, 1);
        });
    }
}

#[test]
fn a_damaged_piece_is_refused_and_the_next_try_succeeds() {
    simulate(async {
        let cluster = Cluster::start(40).await;
        cluster.write("first").await;
        cluster.converge().await;
        let (leader, _) = cluster.leader().await;
        let behind = leader % 3 + 1;
        cluster.net.cut(behind);
        write_past(&cluster, behind).await;
        let (refused, pieces) = (std::sync::Arc::new(parking_lot::Mutex::new(0)), 3);
        let damaged = refused.clone();
        cluster.net.tamper(Some(Box::new(move |_, _, message| {
            let piece = message::decode(STORE, message.clone());
            let mut count = damaged.lock();
            match piece {
                Ok(Request::SnapshotPiece { .. }) if *count < pieces => {
                    *count += 1;
                    let mut bytes = message.to_vec();
                    let place = bytes.len() - 100;
                    bytes[place] ^= 4;
                    bytes.into()
                }
                _ => message,
            }
        })));
        cluster.net.mend(behind);
        cluster.converge().await;
        assert_eq!(*refused.lock(), pieces);
        assert_eq!(cluster.group(behind).failure(), None);
        assert_eq!(cluster.group(behind).counts().snapshots_installed, 1);
    });
}

async fn ask(cluster: &Cluster, of: u64, from: u64, message: Bytes) -> Answer {
    let (reply, answer) = oneshot::channel();
    let reply = Box::new(move |bytes| {
        let _ = reply.send(bytes);
    });
    cluster.group(of).receive(NodeId(from), message, reply);
    Answer::decode(answer.await.unwrap()).unwrap()
}

fn assert_refused(answer: Answer, reason: &str) {
    match answer {
        Answer::Refused(why) => assert!(why.contains(reason), "{why}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn pieces_are_taken_once_in_order_and_from_who_began() {
    simulate(async {
        let cluster = Cluster::start(41).await;
        let (leader, term) = cluster.leader().await;
        cluster.write("x".repeat(5000)).await;
        let source = cluster.group(leader).store();
        source.request_checkpoint();
        sleep(Duration::from_secs(1)).await;
        let snapshot = source.snapshot().unwrap();
        let of = leader % 3 + 1;
        let begin = |id, term| Request::SnapshotBegin {
            formats: FormatVersion::FIRST,
            id,
            vote: Vote::new_committed(term, leader),
            last: Some(log_id(term, snapshot.applied().index - 1)),
            membership: StoredMembership::default(),
        };
        let mut pieces = Vec::new();
        let mut page = 0;
        while let Some(piece) = snapshot.read(page).unwrap() {
            page = piece.next();
            pieces.push(piece);
        }
        let piece = |id, number: u64| Request::SnapshotPiece {
            id,
            number,
            page: pieces[number as usize].page,
            bytes: pieces[number as usize].bytes.clone(),
        };
        let say = |request: &Request| message::encode(STORE, request);
        let ask = |request: Request| ask(&cluster, of, leader, say(&request));
        assert!(pieces.len() > 1);
        assert_refused(ask(piece(7, 0)).await, "has not begun");
        let stale = ask(begin(7, 0)).await;
        assert!(matches!(stale, Answer::HigherVote(vote) if vote.leader_id.term == term.0));
        assert!(matches!(ask(begin(7, term.0)).await, Answer::Taken));
        assert_refused(ask(piece(7, 1)).await, "piece 0 is the next");
        assert!(matches!(ask(piece(7, 0)).await, Answer::Taken));
        assert_refused(ask(piece(7, 0)).await, "piece 0 came");
        assert_refused(ask(piece(6, 1)).await, "was replaced");
        let end = Request::SnapshotEnd { id: 7, pieces: 2 };
        assert_refused(ask(end).await, "1 of 2 pieces");
        // A newer one replaces it.
        assert!(matches!(ask(begin(8, term.0)).await, Answer::Taken));
        assert_refused(ask(piece(7, 1)).await, "was replaced by 8");
        let cut = Request::SnapshotPiece {
            id: 8,
            number: 0,
            page: pieces[0].page,
            bytes: pieces[0].bytes[..100].to_vec().into(),
        };
        assert_refused(ask(cut).await, "cut off");
        assert_eq!(cluster.group(of).failure(), None);
        cluster.converge().await;
    });
}

#[test]
fn without_a_thread_a_copy_is_refused_and_the_next_try_succeeds() {
    simulate(async {
        let cluster = Cluster::start(43).await;
        let (leader, term) = cluster.leader().await;
        let of = leader % 3 + 1;
        let begin = Request::SnapshotBegin {
            formats: FormatVersion::FIRST,
            id: 7,
            vote: Vote::new_committed(term.0, leader),
            last: Some(log_id(term.0, 1)),
            membership: StoredMembership::default(),
        };
        let begin = message::encode(STORE, &begin);
        let disk = &cluster.nodes[&of].disk;
        disk.no_background(true);
        let answer = ask(&cluster, of, leader, begin.clone()).await;
        assert_refused(answer, "no thread");
        disk.no_background(false);
        let answer = ask(&cluster, of, leader, begin).await;
        assert!(matches!(answer, Answer::Taken));
    });
}

#[test]
fn a_sender_keeps_to_its_window() {
    simulate(async {
        let cluster = Cluster::start(42).await;
        let (leader, _) = cluster.leader().await;
        let behind = leader % 3 + 1;
        cluster.write("first").await;
        cluster.converge().await;
        cluster.net.cut(behind);
        for i in 0..400 {
            let name = format!("{i:040}");
            cluster
                .write([name.as_bytes(), &[7; 30_000]].concat())
                .await;
        }
        let (leader, _) = cluster.leader().await;
        let total = cluster.group(leader).store().snapshot().unwrap().bytes();
        assert!(total > 8 << 20, "{total}");
        let before = cluster.net.bytes_max();
        assert!(before < 2 << 20, "{before}");
        cluster.net.mend(behind);
        cluster.converge().await;
        assert_eq!(cluster.group(behind).counts().snapshots_installed, 1);
        let most = cluster.net.bytes_max();
        assert!(most < 3 << 20, "{most} bytes were under way");
    });
}

#[test]
fn a_snapshot_waits_for_the_layer_above_and_others_for_it() {
    simulate(async {
        let cluster = Cluster::start(43).await;
        cluster.write("first").await;
        cluster.converge().await;
        let (leader, term) = cluster.leader().await;
        let behind = leader % 3 + 1;
        cluster.net.cut(behind);
        write_past(&cluster, behind).await;
        let (release, holds) = oneshot::channel();
        *cluster.nodes[&behind].machine.holds.lock() = Some(holds);
        cluster.net.mend(behind);
        let waits = &cluster.nodes[&behind].machine.holds;
        let asked = async {
            while waits.lock().is_some() {
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(Duration::from_secs(60), asked).await.unwrap();
        let old = cluster.group(behind).store();
        sleep(Duration::from_secs(30)).await;
        assert!(std::sync::Arc::ptr_eq(&old, &cluster.group(behind).store()));
        // Another copy would have the same name.
        let begin = Request::SnapshotBegin {
            formats: FormatVersion::FIRST,
            id: 9,
            vote: Vote::new_committed(term.0, leader),
            last: Some(log_id(term.0, 1 << 40)),
            membership: StoredMembership::default(),
        };
        let begin = message::encode(STORE, &begin);
        let answer = ask(&cluster, behind, leader, begin.clone()).await;
        assert_refused(answer, "is being installed");
        release.send(()).unwrap();
        cluster.converge().await;
        assert_eq!(cluster.group(behind).counts().snapshots_installed, 1);
        let answer = ask(&cluster, behind, leader, begin).await;
        assert!(matches!(answer, Answer::Taken), "{answer:?}");
    });
}
