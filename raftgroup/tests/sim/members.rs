//! Clusters of 1 to 9 members tolerate what the table says: with any
//! F = (N - 1) / 2 down every range takes writes; with one more down writes
//! fail, serializable reads go on, and all of it resumes by itself.

use std::time::Duration;

use pontoon_engine::{Answer, KeyRange, Put, Range, Request};
use pontoon_raftgroup::{Node, NodeId};
use pontoon_wal::disk::sim::Rng;
use tokio::time::{Instant, sleep};

use crate::cluster::{Cluster, Ending, simulate};

const SPLITS: [&str; 2] = ["b", "c"];
const KEYS: [&str; 3] = ["a", "b", "c"];

async fn put(node: &Node, key: &'static str, within: Duration) -> bool {
    let request = Request::Put(Put {
        key: key.into(),
        value: "x".into(),
        ..Put::default()
    });
    matches!(node.request(request, within).await, Ok(Answer::Put(_)))
}

/// Every range takes a write from every node that runs, within bounded time.
async fn all_take_writes(cluster: &Cluster, context: &str) {
    let deadline = Instant::now() + Duration::from_secs(20);
    for (id, running) in cluster.all_running() {
        for key in KEYS {
            while !put(&running.node, key, Duration::from_secs(2)).await {
                assert!(
                    Instant::now() < deadline,
                    "{context}: no put of {key} at node {id}"
                );
            }
        }
    }
}

async fn tolerates(members: u64) {
    let cluster = Cluster::start(members, members, &SPLITS).await;
    let mut rng = Rng::new(members);
    all_take_writes(&cluster, "at first").await;
    let tolerated = (members - 1) / 2;
    for round in 0..3 {
        let mut ids: Vec<u64> = (1..=members).collect();
        let mut away = Vec::new();
        while away.len() < tolerated as usize {
            away.push(ids.remove(rng.below(ids.len() as u64) as usize));
        }
        let context = format!("{members} members, {away:?} away, round {round}");
        for id in &away {
            cluster.end(NodeId(*id), Ending::PowerCut);
        }
        all_take_writes(&cluster, &context).await;
        if ids.len() > 1 {
            // One too many.
            let last = ids.remove(rng.below(ids.len() as u64) as usize);
            away.push(last);
            cluster.end(NodeId(last), Ending::PowerCut);
            sleep(Duration::from_secs(3)).await;
            for (id, running) in cluster.all_running() {
                for key in KEYS {
                    let done = put(&running.node, key, Duration::from_secs(1)).await;
                    assert!(!done, "{context}, and {last}: a put of {key} at node {id}");
                    let range = Range::of(KeyRange::one(key));
                    let read = running
                        .node
                        .read_serializable(&range, Duration::from_secs(1))
                        .await;
                    let read = read.unwrap_or_else(|error| {
                        panic!("{context}, and {last}: node {id}: {error}")
                    });
                    assert_eq!(read.count, 1);
                }
            }
        }
        for id in away {
            cluster.start_node(NodeId(id)).await.expect("it opens");
        }
        all_take_writes(&cluster, "after all are back").await;
    }
}

#[test]
fn a_minority_may_be_away() {
    for members in 1..=9 {
        simulate(tolerates(members));
    }
}
