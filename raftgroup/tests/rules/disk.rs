//! A member whose disk fails, or hangs: it stops leading or stops altogether,
//! by itself, and the others take over.

use std::time::Duration;

use pontoon_raftgroup::{Condition, Config, Failure, GroupId, Node, Timing};
use tokio::time::{Instant, timeout};

use crate::cluster::{Client, Cluster, ROOT, pause, simulate, until};

const OTHER: GroupId = GroupId(1);

/// Keys of the root group and of the other one.
const KEYS: [&str; 2] = ["a", "m"];

/// Two election timeouts and a second, within which every range takes writes
/// again.
fn bound() -> Duration {
    2 * Timing::default().election_max + Duration::from_secs(1)
}

/// Longer than it takes for groups to become quiet.
const QUIET: u64 = 20_000;

/// Three nodes, of which node 2 leads both groups.
async fn led_by_2(change: impl Fn(&mut Config)) -> Cluster {
    let cluster = Cluster::start_with(3, &["m"], change).await;
    cluster.lead(OTHER, 2).await;
    cluster.lead(ROOT, 2).await;
    for key in KEYS {
        cluster.node(1).put(key, "before").await;
    }
    cluster
}

/// Writes to every range through nodes 1 and 3, within the bound.
async fn others_go_on(cluster: &Cluster) {
    let begun = Instant::now();
    for node in [1, 3] {
        for key in KEYS {
            cluster.node(node).put(key, "after").await;
        }
    }
    assert!(begun.elapsed() <= bound(), "it took {:?}", begun.elapsed());
}

async fn failed(node: &Node) -> String {
    let fault = timeout(Duration::from_secs(2), node.failed()).await;
    fault.expect("it fails in time").to_string()
}

#[test]
fn a_read_only_disk_ends_a_busy_leader() {
    simulate(async {
        let cluster = led_by_2(|_| ()).await;
        cluster.disk(2).read_only(true);
        let late = cluster.node(2).put_within("a", "late", bound()).await;
        assert!(late.is_err(), "{late:?}");
        let fault = failed(&cluster.node(2)).await;
        assert!(fault.contains("os error 30"), "{fault}");
        others_go_on(&cluster).await;
    });
}

/// Nobody writes, so nobody notices; then a write to a range that the failed
/// node leads must not wait for it.
#[test]
fn a_read_only_disk_ends_a_quiet_leader_when_it_is_needed() {
    simulate(async {
        let cluster = led_by_2(|_| ()).await;
        pause(QUIET).await;
        assert!(cluster.replica(2, OTHER).is_some_and(|one| one.quiet));
        cluster.disk(2).read_only(true);
        pause(QUIET).await;
        assert_eq!(cluster.node(2).condition(), Condition::Well);
        others_go_on(&cluster).await;
        failed(&cluster.node(2)).await;
    });
}

#[test]
fn a_tree_that_cant_be_written_ends_the_node() {
    simulate(async {
        let cluster = led_by_2(|config| config.log_bytes_max = 1).await;
        cluster.disk(2).fail_tree_io(true);
        cluster.node(1).put("m", "1").await;
        let fault = failed(&cluster.node(2)).await;
        assert!(fault.contains("os error 5"), "{fault}");
        assert!(
            fault.contains("1.tree") || fault.contains("0.tree"),
            "{fault}"
        );
        others_go_on(&cluster).await;
    });
}

#[test]
fn after_a_failure_nothing_is_answered_as_done() {
    simulate(async {
        let cluster = led_by_2(|_| ()).await;
        cluster.disk(2).read_only(true);
        for _ in 0..50 {
            let node = cluster.node(2);
            let answered = node
                .put_within("m", "late", Duration::from_millis(50))
                .await;
            assert!(answered.is_err(), "{answered:?}");
        }
        assert!(matches!(cluster.node(2).condition(), Condition::Failed(_)));
    });
}

#[test]
fn a_disk_that_hangs_ends_the_lead_and_comes_back() {
    simulate(async {
        let cluster = led_by_2(|_| ()).await;
        cluster.disk(2).hang();
        others_go_on(&cluster).await;
        until(|| cluster.node(2).condition() == Condition::Stalled).await;
        // What it leads it has left to others, and so it can still pass requests on.
        let passed_on = cluster.node(2).put_within("m", "by 2", bound()).await;
        assert!(passed_on.is_ok(), "{passed_on:?}");
        cluster.disk(2).resume();
        until(|| cluster.node(2).condition() == Condition::Well).await;
        for group in [ROOT, OTHER] {
            cluster.lead(group, 2).await;
        }
        for key in KEYS {
            cluster.node(2).put(key, "again").await;
        }
    });
}

/// The hanging disk keeps the fate of what was proposed from its leader.
#[test]
fn what_was_proposed_on_a_disk_that_hangs_is_soon_unknown() {
    simulate(async {
        let cluster = led_by_2(|_| ()).await;
        // Without node 3 it takes the leader's own disk to commit.
        cluster.part(2, 3);
        cluster.disk(2).hang();
        let begun = Instant::now();
        let proposed = cluster.node(1).put_within("m", "hangs", 10 * bound()).await;
        assert_eq!(proposed.err(), Some(Failure::LeaderChanged));
        assert!(begun.elapsed() <= bound(), "it took {:?}", begun.elapsed());
    });
}

/// Leaders are spread over members that are well. A lead that is offered to one
/// that doesn't take it serves nobody meanwhile.
#[test]
fn no_lead_is_moved_to_a_member_whose_disk_hangs() {
    simulate(async {
        let cluster = Cluster::start(3, &["c", "f", "i", "l", "o"]).await;
        until(|| cluster.led().iter().all(|led| *led == 2)).await;
        cluster.disk(2).hang();
        until(|| cluster.node(2).condition() == Condition::Stalled).await;
        until(|| cluster.led()[1] == 0 && cluster.led().iter().sum::<usize>() == 6).await;
        let terms = || {
            let status = cluster.node(1).status().into_iter();
            status.map(|replica| replica.term).collect::<Vec<_>>()
        };
        let before = terms();
        pause(10_000).await;
        assert_eq!(terms(), before);
    });
}

#[test]
fn a_disk_that_hangs_while_all_is_quiet_holds_up_a_write_for_a_bounded_time() {
    simulate(async {
        let cluster = led_by_2(|_| ()).await;
        pause(QUIET).await;
        cluster.disk(2).hang();
        pause(QUIET).await;
        others_go_on(&cluster).await;
    });
}

#[test]
fn a_disk_that_hangs_for_too_long_ends_the_node() {
    simulate(async {
        let cluster = led_by_2(|config| config.stall_max = Duration::from_secs(5)).await;
        cluster.disk(2).hang();
        others_go_on(&cluster).await;
        pause(5000).await;
        let fault = failed(&cluster.node(2)).await;
        assert!(fault.contains("nothing has become durable"), "{fault}");
        others_go_on(&cluster).await;
    });
}

/// It has nobody to leave the lead to: its writes wait, and are done when the
/// disk is back.
#[test]
fn a_single_member_waits_for_its_disk() {
    simulate(async {
        let cluster = Cluster::start(1, &["m"]).await;
        cluster.disk(1).hang();
        let node = cluster.node(1);
        let waits = tokio::spawn(async move { node.put("m", "1").await });
        until(|| cluster.node(1).condition() == Condition::Stalled).await;
        pause(5000).await;
        assert!(!waits.is_finished());
        cluster.disk(1).resume();
        waits.await.expect("it is written");
        assert_eq!(
            cluster.node(1).put_within("a", "2", bound()).await.err(),
            None::<Failure>
        );
    });
}

#[test]
fn ranges_that_a_member_cant_serve_are_told() {
    simulate(async {
        let mut cluster = led_by_2(|_| ()).await;
        assert_eq!(cluster.node(1).unserved(), []);
        cluster.kill(2);
        cluster.kill(3);
        until(|| cluster.node(1).unserved().len() == 2).await;
        let unserved = cluster.node(1).unserved();
        assert!(
            unserved.iter().all(|one| one.reason == "no leader"),
            "{unserved:?}"
        );
        cluster.start_again(2).await;
        until(|| cluster.node(1).unserved().is_empty()).await;
    });
}

/// Leaves no room on a node's disk, besides what its log has reserved.
fn fill(cluster: &Cluster, node: u64) {
    let disk = cluster.disk(node);
    let used = |path| disk.read_file(path).map_or(0, |bytes| bytes.len() as u64);
    let used: u64 = disk.paths().iter().map(|path| used(path)).sum();
    disk.capacity(used);
}

/// The others have room, so the ranges go on there. Nobody is told of the full
/// disk, also not while the lead changes.
#[test]
fn a_full_disk_ends_the_lead_and_comes_back() {
    simulate(async {
        let cluster = led_by_2(|_| ()).await;
        fill(&cluster, 2);
        let value = "x".repeat(20_000);
        // More than the log has made room for.
        for n in 0..600 {
            let begun = Instant::now();
            let key = format!("m{n}");
            while let Err(failure) = cluster.node(1).put_within(&key, &value, bound()).await {
                assert_ne!(failure, Failure::NoSpace);
                assert!(begun.elapsed() <= bound(), "{failure}");
            }
        }
        others_go_on(&cluster).await;
        for group in [ROOT, OTHER] {
            until(|| cluster.leader(group, &[1, 3]) != Some(2)).await;
        }
        // Its replica is behind, and its clients don't wait for that.
        for key in KEYS {
            let passed_on = cluster.node(2).put_within(key, "by 2", bound()).await;
            assert!(passed_on.is_ok(), "{passed_on:?}");
        }
        assert_eq!(cluster.node(2).condition(), Condition::Well);
        cluster.disk(2).capacity(u64::MAX);
        for key in KEYS {
            cluster.node(2).put(key, "again").await;
        }
        for group in [ROOT, OTHER] {
            cluster.lead(group, 2).await;
        }
    });
}

/// The log's disk has room, that of the trees has none.
#[test]
fn full_disks_of_trees_end_the_lead_and_bound_what_is_in_memory() {
    let eager = |config: &mut Config| {
        config.log_bytes_max = 1;
        config.dirty_bytes_max = 2 << 20;
    };
    simulate(async {
        let cluster = led_by_2(eager).await;
        cluster.disk(2).fill_trees(true);
        let value = "x".repeat(20_000);
        let write = async |n: u32| {
            let key = format!("m{n}");
            let mut refused = None;
            let until = Instant::now() + 2 * bound();
            while let Err(failure) = cluster.node(1).put_within(&key, &value, bound()).await {
                if Instant::now() > until {
                    refused = Some(failure);
                    break;
                }
            }
            refused
        };
        for n in 0..100 {
            assert_eq!(write(n).await, None);
        }
        others_go_on(&cluster).await;
        for group in [ROOT, OTHER] {
            until(|| cluster.leader(group, &[1, 3]) != Some(2)).await;
        }
        for node in [1, 3] {
            cluster.disk(node).fill_trees(true);
        }
        let mut n = 100;
        let refused = loop {
            n += 1;
            assert!(n < 2000, "it is never full");
            if let Some(refused) = write(n).await {
                break refused;
            }
        };
        assert_eq!(refused, Failure::NoSpace);
        assert!(cluster.node(1).is_space_low());
        for node in 1..=3 {
            assert_eq!(cluster.node(node).condition(), Condition::Well);
            cluster.disk(node).fill_trees(false);
        }
        pause(5000).await;
        others_go_on(&cluster).await;
        assert!(!cluster.node(1).is_space_low());
    });
}

/// Entries that are under way when the disk becomes full are not refused: a
/// Raft core would take that for a failed disk.
#[test]
fn a_disk_that_becomes_full_under_load_ends_nothing() {
    simulate(async {
        let cluster = led_by_2(|_| ()).await;
        fill(&cluster, 2);
        let value = "x".repeat(20_000);
        let writers = (0..32).map(|writer| {
            let (node, value) = (cluster.node(1 + writer % 3), value.clone());
            tokio::spawn(async move {
                for n in 0..20 {
                    for key in KEYS {
                        node.put(&format!("{key}{writer}.{n}"), &value).await;
                    }
                }
            })
        });
        for writer in writers.collect::<Vec<_>>() {
            writer.await.expect("all is written");
        }
        for node in 1..=3 {
            assert_eq!(cluster.node(node).condition(), Condition::Well);
        }
        others_go_on(&cluster).await;
    });
}

/// No member has room: writes are refused, reads go on. Elections write entries
/// of their own, which must not end anybody.
#[test]
fn full_disks_everywhere_refuse_writes_and_end_nothing() {
    simulate(async {
        let mut cluster = led_by_2(|_| ()).await;
        for node in 1..=3 {
            fill(&cluster, node);
        }
        let value = "x".repeat(20_000);
        let mut n = 0;
        let refused = loop {
            n += 1;
            let key = format!("m{n}");
            if let Err(failure) = cluster.node(1).put_within(&key, &value, bound()).await
                && failure.is_certain()
            {
                break failure;
            }
            assert!(n < 2000, "it is never full");
        };
        assert_eq!(refused, Failure::NoSpace);
        for key in KEYS {
            let read = cluster.node(1).get(key).await;
            assert_eq!(read.kvs.len(), 1);
        }
        cluster.kill(2);
        pause(QUIET).await;
        for node in [1, 3] {
            assert_eq!(cluster.node(node).condition(), Condition::Well);
            cluster.disk(node).capacity(u64::MAX);
        }
        // A full disk is looked at again every second.
        pause(2000).await;
        others_go_on(&cluster).await;
    });
}
