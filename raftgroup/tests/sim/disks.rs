//! One member's disk fails or hangs, while all ranges are quiet or under load:
//! every range takes writes through the others within the bound, and the member
//! exits, or is back when its disk is.

use std::time::Duration;

use pontoon_engine::{Answer, Put, Request};
use pontoon_raftgroup::{Condition, Node, NodeId};
use pontoon_wal::disk::sim::SimDisk;
use tokio::task::spawn_local;
use tokio::time::{Instant, sleep, timeout};

use crate::cluster::{Cluster, Ending, Shape, simulate};
use crate::waits::bound;

const MEMBERS: u64 = 3;
const SPLITS: [&str; 7] = ["b", "c", "d", "e", "f", "g", "h"];
const KEYS: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];

/// How long the member has to exit once it has met the failure.
const EXITS_WITHIN: Duration = Duration::from_secs(2);

/// A cluster whose trees are written often.
async fn start(seed: u64, stall_max: Duration) -> Cluster {
    let mut shape = Shape::new(MEMBERS, &SPLITS);
    shape.quiet_after = Duration::from_secs(1);
    shape.log_bytes_max = 200;
    shape.stall_max = stall_max;
    let cluster = Cluster::new(seed, shape);
    for id in cluster.shape.ids() {
        cluster.start_node(id).await.expect("it opens");
    }
    cluster
}

async fn put(node: &Node, key: &'static str, within: Duration) -> bool {
    let request = Request::Put(Put {
        key: key.into(),
        value: "x".into(),
        ..Put::default()
    });
    matches!(node.request(request, within).await, Ok(Answer::Put(_)))
}

/// Every range takes a write through this node within the bound, whatever was
/// asked of it before.
async fn all_take_writes(cluster: &Cluster, id: NodeId, context: &str) {
    let begun = Instant::now();
    let within = bound(&cluster.shape);
    for key in KEYS {
        // An attempt may have been on its way to who failed.
        while !put(&cluster.node(id.0), key, within).await {
            let waited = begun.elapsed();
            assert!(
                waited < within,
                "{context}: no put of {key} at node {id} for {waited:?}"
            );
        }
    }
    let waited = begun.elapsed();
    assert!(waited < within, "{context}: node {id} took {waited:?}");
}

/// Lets a disk fail, in a cluster whose ranges are quiet or written to, and
/// has all ranges written through the other members, all at once.
async fn fail(cluster: &Cluster, id: NodeId, quiet: bool, break_disk: impl FnOnce(&SimDisk)) {
    let context = format!("node {id} fails, quiet: {quiet}");
    for other in cluster.shape.ids() {
        all_take_writes(cluster, other, "at first").await;
    }
    if quiet {
        let is_quiet = |node: &Node| node.status().iter().all(|status| status.quiet);
        let all = || cluster.all_running().into_iter();
        while !all().all(|(_, running)| is_quiet(&running.node)) {
            sleep(Duration::from_millis(100)).await;
        }
    } else {
        for node in cluster.shape.ids().map(|id| cluster.node(id.0)) {
            spawn_local(async move {
                for round in 0..100 {
                    put(&node, KEYS[round % KEYS.len()], Duration::from_secs(1)).await;
                }
            });
        }
        sleep(Duration::from_millis(300)).await;
    }
    break_disk(&cluster.disk(id));
    let others = cluster.shape.ids().filter(|other| *other != id);
    for other in others {
        all_take_writes(cluster, other, &context).await;
    }
}

/// Ends what has exited, and starts it again on a disk that is well.
async fn restart(cluster: &Cluster, id: NodeId) {
    cluster.end(id, Ending::PowerCut);
    cluster.disk(id).end_faults();
    cluster.start_node(id).await.expect("it opens");
    sleep(Duration::from_secs(3)).await;
    for id in cluster.shape.ids() {
        all_take_writes(cluster, id, "after all are well").await;
    }
}

fn each_member_quiet_and_loaded() -> impl Iterator<Item = (NodeId, bool)> {
    (1..=MEMBERS).flat_map(|id| [(NodeId(id), true), (NodeId(id), false)])
}

#[test]
fn a_read_only_file_system_ends_the_member_and_no_range() {
    for (id, quiet) in each_member_quiet_and_loaded() {
        simulate(async {
            let cluster = start(id.0, Duration::from_secs(60)).await;
            fail(&cluster, id, quiet, |disk| disk.read_only(true)).await;
            let node = cluster.node(id.0);
            let fault = timeout(EXITS_WITHIN, node.failed()).await;
            let fault = fault.expect("the node fails").to_string();
            assert!(fault.ends_with("(os error 30)"), "{fault}");
            assert!(matches!(node.condition(), Condition::Failed(_)));
            // A start on the same disk says so.
            cluster.end(id, Ending::Kill);
            let refused = cluster.start_node(id).await.expect_err("it is read-only");
            assert!(refused.ends_with("(os error 30)"), "{refused}");
            restart(&cluster, id).await;
        });
    }
}

#[test]
fn trees_that_cannot_be_written_end_the_member_and_no_range() {
    for (id, quiet) in each_member_quiet_and_loaded() {
        simulate(async {
            let cluster = start(10 + id.0, Duration::from_secs(60)).await;
            fail(&cluster, id, quiet, |disk| disk.fail_tree_io(true)).await;
            // It meets the failure with its next checkpoint.
            let checkpoint = async {
                let other = NodeId(id.0 % MEMBERS + 1);
                loop {
                    all_take_writes(&cluster, other, "with one that fails").await;
                }
            };
            let node = cluster.node(id.0);
            let fault = tokio::select! {
                biased;
                fault = timeout(Duration::from_secs(10), node.failed()) => fault,
                () = checkpoint => unreachable!(),
            };
            let fault = fault.expect("the node fails").to_string();
            assert!(fault.contains(".tree: write of "), "{fault}");
            assert!(fault.ends_with("(os error 5)"), "{fault}");
            restart(&cluster, id).await;
        });
    }
}

#[test]
fn a_disk_that_hangs_takes_no_range_with_it_and_comes_back() {
    for (id, quiet) in each_member_quiet_and_loaded() {
        simulate(async {
            let cluster = start(20 + id.0, Duration::from_secs(60)).await;
            fail(&cluster, id, quiet, SimDisk::hang).await;
            let node = cluster.node(id.0);
            // Nothing that gathers meanwhile keeps a group from going on.
            sleep(Duration::from_secs(55)).await;
            assert_eq!(node.condition(), Condition::Stalled);
            assert!(node.status().iter().all(|status| !status.leads));
            cluster.disk(id).resume();
            sleep(Duration::from_secs(3)).await;
            assert_eq!(node.condition(), Condition::Well);
            for id in cluster.shape.ids() {
                all_take_writes(&cluster, id, "after it is back").await;
            }
        });
    }
}

#[test]
fn a_disk_that_hangs_too_long_ends_the_member() {
    for (id, quiet) in each_member_quiet_and_loaded() {
        simulate(async {
            let stall_max = Duration::from_secs(8);
            let cluster = start(30 + id.0, stall_max).await;
            let begun = Instant::now();
            fail(&cluster, id, quiet, SimDisk::hang).await;
            let fault = timeout(stall_max + EXITS_WITHIN, cluster.node(id.0).failed()).await;
            let fault = fault.expect("the node fails").to_string();
            assert!(fault.contains("nothing has become durable"), "{fault}");
            assert!(begun.elapsed() > stall_max);
            restart(&cluster, id).await;
        });
    }
}
