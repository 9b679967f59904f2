//! How replicas begin, and what is left of them when they are removed.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pontoon_engine::{Applied, Entry, Step, Store};
use pontoon_wal::disk::Disk;
use pontoon_wal::disk::sim::SimDisk;
use pontoon_wal::{Batch, StreamId};
use tokio::sync::oneshot;
use tokio::time::sleep;

use super::{Cluster, GROUP, STORE, group_config, new_disk, nodes, open_wal, simulate, tree_path};
use crate::codec::Wire;
use crate::format::FormatVersion;
use crate::position::{LogIndex, NodeId, Term};
use crate::raft::message::{self, Answer, Ballot, Request};
use crate::raft::types::{Vote, log_id};
use crate::raft::{Begin, GroupFailure, begin_again, membership_record};

/// A disk with the store that a split made.
fn born_disk(seed: u64) -> SimDisk {
    let disk = new_disk(seed);
    let store = Store::open(&disk, &tree_path(), group_config(1, &tree_path()).store).unwrap();
    let (name, content) = membership_record(&nodes(1..=3), &nodes([]));
    let records = [(name, content), ("inherited".into(), "yes".into())];
    let steps = records.map(|(name, content): (Bytes, Bytes)| Step::Record {
        name,
        content: Some(content),
    });
    let applied = Applied {
        index: 1,
        term: 0,
        leader: 0,
    };
    let steps = steps.into();
    store.apply(&Entry { applied, steps }).unwrap();
    store.checkpoint().unwrap();
    disk
}

fn inherited(cluster: &Cluster, id: u64) -> bool {
    let record = cluster.group(id).store().record(b"inherited");
    record.unwrap().is_some()
}

#[test]
fn a_group_that_is_born_elects_and_goes_on() {
    for seed in 100..104 {
        simulate(async {
            let mut cluster = Cluster::new(seed);
            for id in 1..=3 {
                let disk = born_disk(seed * 10 + id);
                cluster.open(id, disk, Begin::Born).await;
                let counts = cluster.group(id).counts();
                let born = LogIndex(1);
                assert_eq!((counts.last, counts.applied), (born, born));
                assert_eq!((counts.purged, counts.committed), (born, born));
                let membership = cluster.group(id).membership();
                assert_eq!(membership.voters, nodes(1..=3));
                assert_eq!(membership.index, born);
                assert!(membership.committed);
            }
            // Nothing is in their logs yet.
            cluster.restart(2).await;
            cluster.group(3).elect().await;
            let (leader, term) = cluster.leader().await;
            assert_eq!((leader, term), (3, Term(1)));
            assert_eq!(cluster.write("first").await, LogIndex(3));
            cluster.converge().await;
            for id in 1..=3 {
                cluster.restart(id).await;
            }
            cluster.write("second").await;
            cluster.converge().await;
            for id in 1..=3 {
                assert!(inherited(&cluster, id));
                assert_eq!(cluster.group(id).counts().snapshots_installed, 0);
            }
        });
    }
}

#[test]
fn a_group_that_is_born_elects_by_itself_too() {
    simulate(async {
        let mut cluster = Cluster::new(105);
        for id in [1, 3] {
            cluster.open(id, born_disk(id), Begin::Born).await;
        }
        cluster.write("first").await;
        // One that comes late is born as well.
        cluster.open(2, born_disk(2), Begin::Born).await;
        cluster.converge().await;
        assert_eq!(cluster.group(2).counts().snapshots_installed, 0);
    });
}

#[test]
fn who_missed_the_birth_gets_a_copy() {
    for born in [1, 2] {
        simulate(async {
            let mut cluster = Cluster::new(106);
            for id in 1..=3 {
                let (disk, begin) = match id <= born {
                    true => (born_disk(id), Begin::Born),
                    false => (new_disk(id), Begin::Empty),
                };
                cluster.open(id, disk, begin).await;
            }
            cluster.group(1).elect().await;
            cluster.write("first").await;
            cluster.converge().await;
            for id in 1..=3 {
                assert!(inherited(&cluster, id));
                let installed = cluster.group(id).counts().snapshots_installed;
                assert_eq!(installed, u64::from(id > born), "{id} of {born}");
            }
            // From then on it is like the others.
            cluster.group(1).transfer(NodeId(3)).await;
            cluster.leader_of(&[3]).await;
            cluster.restart(3).await;
            cluster.write("second").await;
            cluster.converge().await;
        });
    }
}

#[test]
fn those_who_have_nothing_never_elect() {
    simulate(async {
        let mut cluster = Cluster::new(107);
        for id in [1, 2] {
            cluster.open(id, new_disk(id), Begin::Empty).await;
        }
        for id in [1, 2] {
            cluster.group(id).elect().await;
        }
        sleep(Duration::from_secs(60)).await;
        for id in [1, 2] {
            let leadership = *cluster.group(id).leadership().borrow();
            assert_eq!((leadership.leader, leadership.term), (None, Term(0)));
            assert_eq!(cluster.group(id).membership().voters, nodes([]));
        }
        assert_eq!(cluster.net.messages(), 0);
        // But they vote.
        cluster.open(3, born_disk(3), Begin::Born).await;
        cluster.group(3).elect().await;
        cluster.converge().await;
        assert_eq!(cluster.leader().await.0, 3);
    });
}

#[test]
fn a_store_that_was_not_born_is_not_taken_for_one() {
    simulate(async {
        let mut cluster = Cluster::new(108);
        let not_born = cluster.try_open(1, new_disk(1), Begin::Born).await;
        assert_damaged(not_born);
    });
}

#[test]
fn a_store_whose_votes_are_gone_is_damaged() {
    for vote_is_older in [false, true] {
        simulate(async {
            let mut cluster = Cluster::start(109).await;
            cluster.write("first").await;
            cluster.converge().await;
            let store = cluster.group(1).store();
            store.request_checkpoint();
            sleep(Duration::from_secs(1)).await;
            drop(store);
            let disk = cluster.stop(1);
            let shared: Arc<dyn Disk> = Arc::new(disk.clone());
            let wal = open_wal(shared, Path::new("/node/wal"), 1, 1);
            let mut batch = Batch::new();
            batch.drop_stream(StreamId(GROUP.0));
            if vote_is_older {
                let older = Vote::new_committed(0, 2).encode();
                batch.meta(StreamId(GROUP.0), 1, older);
            }
            wal.commit(batch).await.unwrap();
            wal.close().await;
            let members = Begin::Members(nodes(1..=3));
            assert_damaged(cluster.try_open(1, disk, members).await);
        });
    }
}

fn assert_damaged(opened: Result<(), GroupFailure>) {
    let error = opened.unwrap_err();
    assert!(matches!(error, GroupFailure::Damaged(_)), "{error}");
}

async fn ask(cluster: &Cluster, of: u64, from: u64, request: Request) -> Answer {
    let (reply, answer) = oneshot::channel();
    let reply = Box::new(move |bytes| {
        let _ = reply.send(bytes);
    });
    let message = message::encode(STORE, &request);
    cluster.group(of).receive(NodeId(from), message, reply);
    Answer::decode(answer.await.unwrap()).unwrap()
}

#[test]
fn a_rebuilt_replica_never_hears_an_older_leader() {
    for crash in [false, true] {
        simulate(async {
            let mut cluster = Cluster::new(110);
            let disk = new_disk(3);
            again(&disk, 3, Term(7), NodeId(1)).await.unwrap();
            // Told to begin as a new one, it doesn't.
            let begin = Begin::Members(nodes(1..=3));
            cluster.open(3, disk, begin).await;
            if crash {
                cluster.restart(3).await;
            }
            let append = |term, node| Request::Append {
                vote: Vote::new_committed(term, node),
                previous: None,
                committed: None,
                records: Vec::new(),
            };
            let vote = |term, node| {
                let ballot = Ballot {
                    vote: Vote::new(term, node),
                    last: Some(log_id(6, 100)),
                    transfer: true,
                };
                Request::Vote(ballot)
            };
            for (term, node) in [(6, 1), (6, 2), (1, 2)] {
                let answer = ask(&cluster, 3, node, append(term, node)).await;
                let Answer::HigherVote(vote) = answer else {
                    panic!("{answer:?}");
                };
                assert_eq!(vote, Vote::new_committed(7, 1));
            }
            for (term, node) in [(6, 2), (7, 2), (7, 1)] {
                let answer = ask(&cluster, 3, node, vote(term, node)).await;
                assert!(matches!(answer, Answer::Voted { granted: false, .. }));
            }
            let answer = ask(&cluster, 3, 1, append(7, 1)).await;
            assert!(matches!(answer, Answer::Appended), "{answer:?}");
            let answer = ask(&cluster, 3, 2, vote(8, 2)).await;
            assert!(matches!(answer, Answer::Voted { granted: true, .. }));
        });
    }
}

#[test]
fn a_damaged_replica_is_rebuilt_and_votes_again() {
    for seed in 111..115 {
        simulate(async {
            let mut cluster = Cluster::start(seed).await;
            for i in 0..50 {
                cluster.write(format!("{i}-{}", "r".repeat(1000))).await;
            }
            cluster.converge().await;
            let (leader, term) = cluster.leader().await;
            let damaged = leader % 3 + 1;
            let disk = cluster.stop(damaged);
            disk.write_file(&tree_path(), vec![7; 8192]);
            assert_damaged(cluster.try_open(damaged, disk.clone(), Begin::Empty).await);
            let disk = disk.power_cut(seed);
            let voters = nodes((1..=3).filter(|id| *id != damaged));
            let group = cluster.group(leader);
            // The leader remembers how far it was.
            let demoted = group.set_members(term, &voters, &nodes([damaged])).await;
            assert_eq!(demoted, Ok(()));
            again(&disk, damaged, term, NodeId(leader)).await.unwrap();
            cluster.open(damaged, disk, Begin::Empty).await;
            cluster.converge().await;
            assert_eq!(
                group.set_members(term, &nodes(1..=3), &nodes([])).await,
                Ok(())
            );
            drop(group);
            cluster.restart(damaged).await;
            cluster.write("after").await;
            cluster.converge().await;
        });
    }
}

async fn again(disk: &SimDisk, node: u64, term: Term, leader: NodeId) -> Result<(), GroupFailure> {
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let wal = open_wal(shared, Path::new("/node/wal"), node, 1);
    let config = group_config(node, &tree_path());
    let begun = begin_again(&config, wal.clone(), disk, term, leader).await;
    wal.close().await;
    begun
}

#[test]
fn nothing_is_left_of_a_replica_that_was_destroyed() {
    simulate(async {
        let mut cluster = Cluster::start(120).await;
        cluster.write("first").await;
        let (leader, term) = cluster.leader().await;
        let gone = leader % 3 + 1;
        cluster.group(gone).destroy().await.unwrap();
        // A late message makes nothing of it.
        let begin = Request::SnapshotBegin {
            formats: FormatVersion::FIRST,
            id: 1,
            vote: Vote::new_committed(term.0, leader),
            last: Some(log_id(term.0, 1 << 40)),
            membership: Default::default(),
        };
        let answer = ask(&cluster, gone, leader, begin).await;
        assert!(matches!(answer, Answer::Refused(_)), "{answer:?}");
        let disk = cluster.stop(gone);
        let trees = disk.paths().into_iter();
        let trees: Vec<_> = trees
            .filter(|path| path.to_string_lossy().contains("5.tree"))
            .collect();
        assert!(trees.is_empty(), "{trees:?}");
        cluster.open(gone, disk, Begin::Empty).await;
        let counts = cluster.group(gone).counts();
        assert_eq!((counts.last, counts.applied), (LogIndex(0), LogIndex(0)));
        assert_eq!(cluster.group(gone).leadership().borrow().term, Term(0));
    });
}

/// A replica that has voted is removed, and the power fails in between.
#[test]
fn what_is_left_of_a_replica_is_never_taken_for_a_whole_one() {
    for born in [false, true] {
        let mut outcomes = [0; 3];
        for operation in 0.. {
            let finished = simulate(async {
                let mut cluster = Cluster::new(121);
                let disk = match born {
                    true => born_disk(1),
                    false => new_disk(1),
                };
                cluster.open(1, disk, Begin::Empty).await;
                let vote = Request::Vote(Ballot {
                    vote: Vote::new(7, 2),
                    last: Some(log_id(6, 100)),
                    transfer: false,
                });
                let voted = ask(&cluster, 1, 2, vote).await;
                assert!(matches!(voted, Answer::Voted { granted: true, .. }));
                let group = cluster.group(1);
                let disk = cluster.nodes[&1].disk.clone();
                disk.crash_at(disk.operations() + operation);
                let removed = group.destroy().await;
                drop(group);
                let disk = cluster.stop(1);
                let begin = match born {
                    true => Begin::Born,
                    false => Begin::Empty,
                };
                let shared: Arc<dyn Disk> = Arc::new(disk.clone());
                let wal = open_wal(shared, Path::new("/node/wal"), 1, 1);
                let has_log = wal.streams().contains(&StreamId(GROUP.0));
                wal.close().await;
                let has_tree = disk.read_file(&tree_path()).is_some();
                let opened = cluster.try_open(1, disk.clone(), begin).await;
                match opened {
                    // As if nothing had happened: it remembers its vote.
                    Ok(()) if has_log => {
                        assert!(has_tree);
                        let term = cluster.group(1).leadership().borrow().term;
                        assert_eq!(term, Term(7));
                        outcomes[0] += 1;
                    }
                    Ok(()) => {
                        assert!(!has_tree && !born);
                        outcomes[1] += 1;
                    }
                    Err(GroupFailure::Damaged(_)) if !has_log => assert!(!has_tree && born),
                    Err(GroupFailure::Damaged(_)) => {
                        outcomes[2] += 1;
                        // It is finished then.
                        let disk = disk.power_cut(operation);
                        again(&disk, 1, Term(8), NodeId(2)).await.unwrap();
                        assert!(disk.read_file(&tree_path()).is_none());
                    }
                    Err(error) => panic!("{error}"),
                }
                removed.is_ok()
            });
            if finished {
                break;
            }
            assert!(operation < 1000);
        }
        assert!(outcomes[0] > 0 && outcomes[2] > 0, "{outcomes:?}");
    }
}

/// A replica that has voted is rebuilt, and the power fails in between.
#[test]
fn a_replica_is_never_new_while_it_is_rebuilt() {
    let mut outcomes = [0; 3];
    for operation in 0.. {
        let finished = simulate(async {
            let mut cluster = Cluster::new(122);
            cluster.open(1, new_disk(1), Begin::Empty).await;
            let vote = Request::Vote(Ballot {
                vote: Vote::new(7, 2),
                last: Some(log_id(6, 100)),
                transfer: false,
            });
            let voted = ask(&cluster, 1, 2, vote).await;
            assert!(matches!(voted, Answer::Voted { granted: true, .. }));
            let disk = cluster.stop(1);
            let shared: Arc<dyn Disk> = Arc::new(disk.clone());
            let wal = open_wal(shared, Path::new("/node/wal"), 1, 1);
            disk.crash_at(disk.operations() + operation);
            let config = group_config(1, &tree_path());
            let begun = begin_again(&config, wal.clone(), &disk, Term(9), NodeId(3)).await;
            wal.close().await;
            let disk = disk.power_cut(operation);
            let members = Begin::Members(nodes(1..=3));
            match cluster.try_open(1, disk, members).await {
                Ok(()) => match cluster.group(1).leadership().borrow().term {
                    Term(7) => outcomes[0] += 1,
                    Term(9) => outcomes[1] += 1,
                    term => panic!("{term:?}"),
                },
                Err(GroupFailure::Damaged(_)) => outcomes[2] += 1,
                Err(error) => panic!("{error}"),
            }
            begun.is_ok()
        });
        if finished {
            break;
        }
        assert!(operation < 1000);
    }
    assert!(outcomes.iter().all(|count| *count > 0), "{outcomes:?}");
}
