//! Rule 11: watches.

use std::collections::BTreeMap;

use pontoon_engine::{Event, KeyRange, Op, Txn};
use pontoon_raftgroup::{Delivery, GroupId, Node, NodeId, Watch, WatchStream};
use tokio::time::timeout;

use crate::cluster::{Client, Cluster, LONG, ROOT, pause, put, revision, simulate, soon, until};

fn watch_all(node: &Node, from: i64) -> WatchStream {
    node.watch(Watch {
        keys: KeyRange::all(),
        from: revision(from),
        prev_kv: false,
    })
}

async fn next(stream: &mut WatchStream) -> Vec<Event> {
    match timeout(LONG, stream.next()).await {
        Ok(Some(Delivery::Events(events))) => events,
        other => panic!("{other:?}"),
    }
}

/// Takes deliveries until one reaches `through`; revision and value of each.
async fn take(stream: &mut WatchStream, through: i64) -> Vec<(i64, String)> {
    let mut taken: Vec<(i64, String)> = Vec::new();
    while taken.last().is_none_or(|(last, _)| *last < through) {
        for event in next(stream).await {
            let value = String::from_utf8(event.kv.value.to_vec()).expect("text");
            taken.push((event.change.revision.0, value));
        }
    }
    taken
}

/// Node 2 takes itself for the leader of group 1, and hears of a new sequencer,
/// node 1. Did it announce itself there, all that others were granted before
/// would count as written.
#[test]
fn rule_4_a_leader_that_no_quorum_hears_is_not_announced() {
    simulate(async {
        let cluster = Cluster::start(5, &["m"]).await;
        cluster.lead(ROOT, 3).await;
        cluster.lead(GroupId(1), 2).await;
        cluster.node(1).put("n", "1").await;
        pause(300).await;
        for other in [3, 4, 5] {
            cluster.part(2, other);
        }
        cluster.node(3).transfer(ROOT, NodeId(1)).await;
        until(|| cluster.leader(ROOT, &[1, 3]) == Some(1)).await;
        let mut stream = watch_all(&cluster.node(1), 0);
        let put = cluster.node(1).put("a", "1").await;
        // Nobody else can lead group 1 so soon.
        assert_eq!(soon(next(&mut stream)).await, None);
        let taken = take(&mut stream, put).await;
        assert_eq!(taken, [(put, "1".to_owned())]);
    });
}

/// A group has a revision and has not written it yet; another has written a
/// higher one.
#[test]
fn rule_11_a_watch_over_groups_waits_for_the_slowest() {
    simulate(async {
        let cluster = Cluster::start(3, &["f", "m"]).await;
        cluster.lead(ROOT, 1).await;
        cluster.lead(GroupId(1), 2).await;
        cluster.lead(GroupId(2), 3).await;
        cluster.node(3).put("g", "0").await;
        let mut stream = watch_all(&cluster.node(3), 0);
        pause(300).await;
        cluster.slow(1, 2, 300);
        let slow = cluster.node(2);
        let slow = tokio::spawn(async move { slow.put("g", "slow").await });
        pause(50).await;
        let fast = cluster.node(3).put("n", "fast").await;
        let taken = take(&mut stream, fast).await;
        let slow = slow.await.expect("it ends");
        assert!(slow < fast);
        let fast = (fast, "fast".to_owned());
        assert!(
            taken.ends_with(&[(slow, "slow".to_owned()), fast]),
            "{taken:?}"
        );
    });
}

#[test]
fn rule_11_a_watch_is_complete_and_in_order_while_a_leader_fails() {
    simulate(async {
        let mut cluster = Cluster::start(3, &["f", "m"]).await;
        cluster.lead(ROOT, 1).await;
        cluster.lead(GroupId(1), 2).await;
        cluster.lead(GroupId(2), 3).await;
        let first = cluster.node(1).put("a", "first").await;
        let mut streams = [
            watch_all(&cluster.node(1), first),
            watch_all(&cluster.node(3), first),
        ];
        let writers = ["a", "g", "n"].map(|key| {
            let node = cluster.node(if key == "n" { 3 } else { 1 });
            tokio::spawn(async move {
                let mut written = BTreeMap::new();
                for n in 0..100 {
                    let text = format!("{key}{n}");
                    let put = node.put_within(key, &text, LONG).await;
                    // Of a put that was under way it may not be known.
                    written.extend(put.ok().map(|revision| (revision, text)));
                }
                written
            })
        });
        pause(100).await;
        cluster.kill(2);
        let mut written = BTreeMap::from([(first, "first".to_owned())]);
        for writer in writers {
            written.extend(writer.await.expect("it ends"));
        }
        assert!(written.len() > 290);
        let last = cluster.node(1).put("a", "last").await;
        written.insert(last, "last".to_owned());
        for stream in &mut streams {
            let taken = take(stream, last).await;
            assert!(taken.is_sorted_by(|one, other| one.0 < other.0));
            let mut taken: BTreeMap<_, _> = taken.into_iter().collect();
            // Those of which it was not known.
            taken.retain(|revision, _| written.contains_key(revision));
            assert_eq!(taken, written);
        }
    });
}

#[test]
fn rule_11_a_revision_is_never_split() {
    simulate(async {
        let cluster = Cluster::start(3, &["f", "m"]).await;
        let text = "x".repeat(8 << 10);
        let first = cluster.node(1).put("a", "first").await;
        let mut last = first;
        for n in 0..20_u64 {
            let letter = ["a", "g", "n"][n as usize % 3];
            let puts = (0..100).map(|key| Op::Put(put(&format!("{letter}{key}"), &text)));
            let txn = Txn {
                success: puts.collect(),
                ..Txn::default()
            };
            let answer = cluster.node(1 + n % 3).txn(txn, LONG).await;
            last = answer.expect("it is written").revision.0;
        }
        for from in [first + 1, last] {
            let mut stream = watch_all(&cluster.node(2), from);
            let mut due = from;
            while due <= last {
                let events = next(&mut stream).await;
                let revisions = events.iter().map(|event| event.change.revision.0);
                let mut counts: BTreeMap<i64, usize> = BTreeMap::new();
                for revision in revisions {
                    *counts.entry(revision).or_default() += 1;
                }
                for (revision, count) in counts {
                    assert_eq!((revision, count), (due, 100));
                    due += 1;
                }
            }
        }
    });
}

/// The watch is not asked for its events until they are compacted.
#[test]
fn rule_11_a_compaction_takes_nothing_from_a_watch_that_had_caught_up() {
    for splits in [&["f", "m"][..], &[]] {
        simulate(async {
            let cluster = Cluster::start(3, splits).await;
            let first = cluster.node(1).put("a", "first").await;
            pause(300).await;
            let mut stream = watch_all(&cluster.node(3), 0);
            // One that begins later has caught up, too.
            let mut ahead = watch_all(&cluster.node(3), first + 10);
            let mut written = Vec::new();
            for n in 0..20_u64 {
                let text = n.to_string();
                let key = ["a", "g", "n"][n as usize % 3];
                written.push((cluster.node(1 + n % 3).put(key, &text).await, text));
            }
            let last = written.last().expect("there are some").0;
            let compacted = cluster.node(2).compact(revision(last), LONG).await;
            assert_eq!(compacted, Ok(revision(last)));
            until(|| {
                let status = cluster.node(3).status();
                status.iter().all(|replica| replica.floor.0 == last)
            })
            .await;
            assert_eq!(take(&mut stream, last).await, written);
            written.retain(|(revision, _)| *revision >= first + 10);
            assert_eq!(take(&mut ahead, last).await, written);
            // One that begins below it hears so.
            let mut late = watch_all(&cluster.node(3), last - 1);
            let heard = timeout(LONG, late.next()).await.expect("it hears");
            assert_eq!(heard, Some(Delivery::Compacted(revision(last))));
        });
    }
}

/// Watches that had caught up and are not asked for their events until more of
/// them are compacted than are kept.
#[test]
fn rule_11_a_watch_that_is_too_far_behind_hears_that_it_is_compacted() {
    for splits in [&["f", "m"][..], &[]] {
        simulate(async {
            let cluster = Cluster::start(3, splits).await;
            cluster.node(1).put("a", "first").await;
            pause(300).await;
            let mut far = watch_all(&cluster.node(3), 0);
            let text = "x".repeat(64 << 10);
            for n in 0..40_u64 {
                let key = ["a", "g", "n"][n as usize % 3];
                cluster.node(1 + n % 3).put(key, &text).await;
            }
            pause(300).await;
            let mut near = watch_all(&cluster.node(3), 0);
            let last = cluster.node(1).put("g", "last").await;
            let compacted = cluster.node(2).compact(revision(last), LONG).await;
            assert_eq!(compacted, Ok(revision(last)));
            until(|| {
                let status = cluster.node(3).status();
                status.iter().all(|replica| replica.floor.0 == last)
            })
            .await;
            let heard = timeout(LONG, far.next()).await.expect("it hears");
            assert_eq!(heard, Some(Delivery::Compacted(revision(last))));
            assert_eq!(take(&mut near, last).await, [(last, "last".to_owned())]);
        });
    }
}

/// Of many that lack much, those are cancelled for which there is no room.
#[test]
fn rule_11_what_is_kept_for_all_watches_is_bounded() {
    simulate(async {
        let cluster = Cluster::start(1, &[]).await;
        cluster.node(1).put("a", "first").await;
        let mut streams: Vec<_> = (0..50).map(|_| watch_all(&cluster.node(1), 0)).collect();
        let text = "x".repeat(225 << 10);
        for key in ["a", "b", "c", "d"] {
            cluster.node(1).put(key, &text).await;
        }
        let last = cluster.node(1).put("e", "last").await;
        let compacted = cluster.node(1).compact(revision(last), LONG).await;
        assert_eq!(compacted, Ok(revision(last)));
        let mut kept = 0;
        for stream in &mut streams {
            match timeout(LONG, stream.next()).await.expect("it hears") {
                Some(Delivery::Events(_)) => kept += 1,
                heard => assert_eq!(heard, Some(Delivery::Compacted(revision(last)))),
            }
        }
        // 32 MiB of 900 KiB each.
        assert_eq!(kept, 36);
    });
}
