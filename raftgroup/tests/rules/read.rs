//! Rule 9: what a linearizable read waits for.

use pontoon_raftgroup::{GroupId, NodeId};

use crate::cluster::{Client, Cluster, LONG, ROOT, SHORT, by_chance, pause, simulate, value};

#[test]
fn rule_9a_a_leader_that_was_deposed_answers_no_read_of_the_only_group() {
    simulate(async {
        let cluster = Cluster::start(3, &[]).await;
        cluster.lead(ROOT, 3).await;
        cluster.node(3).put("a", "old").await;
        cluster.network.isolate(NodeId(3));
        cluster.until_led_among(ROOT, &[1, 2]).await;
        cluster.node(1).put("a", "new").await;
        let stale = cluster.node(3).get_within("a", SHORT).await;
        assert!(stale.is_err(), "{stale:?}");
    });
}

/// Node 4 can ask the sequencer, node 1, for a point, and takes node 2 for the
/// leader of group 1, as node 2 does; 1, 3 and 5 have another one. `None` if
/// the two heard of it, which they do when node 1 stood for election.
async fn deposed(seed: u64) -> Option<Cluster> {
    let cluster = Cluster::start_as(seed, 5, &["m"]).await;
    cluster.lead(ROOT, 1).await;
    cluster.lead(GroupId(1), 2).await;
    cluster.node(2).put("n", "old").await;
    pause(300).await;
    for other in [3, 5] {
        cluster.part(2, other);
        cluster.part(4, other);
    }
    // The other way, node 2 hears that the root group is led.
    cluster.network.cut(NodeId(2), NodeId(1));
    cluster.until_led_among(GroupId(1), &[1, 3, 5]).await;
    let believed = cluster.leader(GroupId(1), &[2, 4]);
    (believed == Some(2)).then_some(cluster)
}

#[test]
fn rule_9a_a_leader_that_was_deposed_answers_no_read() {
    simulate(async {
        let cluster = by_chance(deposed).await;
        let newer = cluster.node(1).put("n", "new").await;
        let read = cluster.node(4).get_within("n", SHORT).await;
        // If it is answered at all.
        if let Ok(answer) = read {
            assert_eq!(value(&answer).0, "new", "after {newer}: {answer:?}");
        }
        cluster.network.heal_all();
        assert_eq!(value(&cluster.node(4).get("n").await).0, "new");
    });
}

/// A revision is granted, and the answer is on its way to the leader, while a
/// read at that revision is already there.
#[test]
fn rule_9b_a_read_waits_for_what_was_asked_before_it() {
    simulate(async {
        let cluster = Cluster::start(3, &["m"]).await;
        cluster.lead(ROOT, 1).await;
        cluster.lead(GroupId(1), 2).await;
        let before = cluster.node(2).put("n", "old").await;
        pause(300).await;
        cluster.slow(1, 2, 300);
        let writer = cluster.node(2);
        let write = tokio::spawn(async move { writer.put("n", "new").await });
        pause(50).await;
        let answer = cluster.node(3).get_within("n", LONG).await;
        let answer = answer.expect("it is answered");
        // The point is not below what was granted before it was captured.
        assert_eq!(value(&answer), ("new", before + 1));
        assert_eq!(write.await.expect("it ends"), before + 1);
    });
}

/// A write is granted and proposed, but a quorum doesn't have it durably yet,
/// though a quorum is quick to confirm the leader.
#[test]
fn rule_9c_a_read_waits_until_what_is_granted_below_it_is_applied() {
    simulate(async {
        let cluster = Cluster::start(5, &["m"]).await;
        cluster.lead(ROOT, 1).await;
        cluster.lead(GroupId(1), 2).await;
        let before = cluster.node(2).put("n", "old").await;
        pause(300).await;
        for id in [2, 4, 5] {
            cluster.slow_disk(id, 200);
        }
        let writer = cluster.node(2);
        let write = tokio::spawn(async move { writer.put("n", "new").await });
        pause(50).await;
        let answer = cluster.node(3).get("n").await;
        assert_eq!(value(&answer), ("new", before + 1));
        assert_eq!(write.await.expect("it ends"), before + 1);
    });
}

#[test]
fn rule_9c_a_read_through_another_node_sees_what_was_acknowledged() {
    simulate(async {
        let cluster = Cluster::start(3, &["f", "m"]).await;
        for n in 0..300_u64 {
            let key = ["a", "g", "n"][n as usize % 3];
            let text = n.to_string();
            let written = cluster.node(1 + n % 3).put(key, &text).await;
            let answer = cluster.node(1 + (n + 1) % 3).get(key).await;
            assert_eq!(value(&answer), (&*text, written));
        }
    });
}

/// Many writes are on their way while it is read: what is read at a revision
/// is all of that revision, and nothing that comes later changes it.
#[test]
fn rule_9c_what_is_read_at_a_revision_stays_so() {
    simulate(async {
        let cluster = Cluster::start(3, &["m"]).await;
        let writers = (0..6_u64).map(|writer| {
            let node = cluster.node(1 + writer % 3);
            tokio::spawn(async move {
                let mut written = Vec::new();
                for n in 0..60 {
                    let text = format!("{writer}.{n}");
                    written.push((node.put("n", &text).await, text));
                }
                written
            })
        });
        let writers: Vec<_> = writers.collect();
        let mut read = Vec::new();
        while !writers.iter().all(|writer| writer.is_finished()) {
            let answer = cluster.node(1 + read.len() as u64 % 3).get("n").await;
            let (text, at) = value(&answer);
            read.push((at, text.to_owned()));
        }
        let mut written = Vec::new();
        for writer in writers {
            written.extend(writer.await.expect("it ends"));
        }
        written.sort();
        assert!(read.len() > 20);
        for (at, text) in read {
            let last = written.iter().rfind(|(revision, _)| *revision <= at);
            assert_eq!(last.map_or("", |(_, text)| text), text, "at {at}");
        }
    });
}

/// Messages get lost, so that the replica of the node that was asked is often
/// behind the answer, which needs nothing of it.
#[test]
fn rule_10_a_read_through_another_node_waits_for_no_replica_there() {
    simulate(async {
        let cluster = Cluster::start(3, &["m"]).await;
        cluster.lead(ROOT, 1).await;
        cluster.lead(GroupId(1), 2).await;
        cluster.network.set_loss(0.2);
        let mut behind = 0;
        for n in 0..100 {
            let Ok(_) = cluster.node(2).put_within("n", &n.to_string(), SHORT).await else {
                continue;
            };
            let leads = cluster.replica(2, GroupId(1)).expect("it is there");
            // An answer that is lost says nothing.
            let Ok(answer) = cluster.node(3).get_within("n", SHORT).await else {
                continue;
            };
            assert_eq!(value(&answer).0, n.to_string());
            let asked = cluster.replica(3, GroupId(1)).expect("it is there");
            behind += u32::from(asked.applied < leads.applied);
        }
        assert!(behind > 0);
    });
}
