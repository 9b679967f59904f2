//! Rule 11 at members that have no replica of what is watched.

use pontoon_engine::{KeyRange, Revision};
use pontoon_raftgroup::{Delivery, GroupId, Node, NodeId, Watch, WatchStream};
use tokio::task::spawn_local;
use tokio::time::timeout;

use crate::cluster::{Client, Cluster, LONG, pause, simulate, until};
use crate::split::split;

/// Five nodes, of which three have a group.
async fn five() -> Cluster {
    Cluster::start_with(5, &["f", "m"], |config| config.replicas = 3).await
}

/// Those that have a group, and those that don't.
fn holders(cluster: &Cluster, group: GroupId) -> (Vec<u64>, Vec<u64>) {
    let map = cluster.node(1).map().expect("it is known");
    let placed = map.placed(group).expect("it is placed").clone();
    (1..=5).partition(|id| placed.members.contains(&NodeId(*id)))
}

fn watch(node: &Node, keys: KeyRange, from: i64) -> WatchStream {
    node.watch(Watch {
        keys,
        from: Revision(from),
        prev_kv: false,
    })
}

/// The revisions of the next events, through the given one.
async fn revisions(stream: &mut WatchStream, through: i64) -> Vec<i64> {
    let mut all = Vec::new();
    while all.last().is_none_or(|last| *last < through) {
        let next = timeout(LONG, stream.next()).await;
        match next.expect("it comes").expect("it runs") {
            Delivery::Events(events) => {
                all.extend(events.iter().map(|event| event.change.revision.0));
            }
            Delivery::Compacted(floor) => panic!("compacted through {floor:?}"),
        }
    }
    all
}

#[test]
fn rule_11_a_watch_goes_on_at_another_member_when_its_source_goes() {
    simulate(async {
        let mut cluster = five().await;
        let (holders, outsiders) = holders(&cluster, GroupId(1));
        let mut streams: Vec<_> = outsiders
            .iter()
            .map(|id| watch(&cluster.node(*id), KeyRange::new("f", "m"), 1))
            .collect();
        let writer = cluster.node(outsiders[0]);
        let mut written = Vec::new();
        for gone in [&holders[..], &holders[..1]].concat() {
            cluster.kill(gone);
            for n in 0..20 {
                written.push(writer.put("g", &n.to_string()).await);
                pause(n % 3).await;
            }
            for stream in &mut streams {
                let last = written[written.len() - 1];
                let due = written[written.len() - 20..].to_vec();
                let given = revisions(stream, last).await;
                // A put whose outcome nobody knows is done once more.
                assert!(given.is_sorted_by(|one, other| one < other), "{given:?}");
                assert!(due.iter().all(|one| given.contains(one)), "{given:?}");
            }
            cluster.start_again(gone).await;
            pause(3000).await;
        }
    });
}

/// Events of the groups that are here and those that aren't come merged.
#[test]
fn rule_11_a_watch_of_groups_here_and_elsewhere_is_in_order() {
    simulate(async {
        let cluster = five().await;
        let mut streams: Vec<_> = (1..=5)
            .map(|id| watch(&cluster.node(id), KeyRange::all(), 1))
            .collect();
        let mut written = Vec::new();
        for n in 0..60_usize {
            let node = cluster.node(1 + n as u64 % 5);
            let key = ["a", "g", "n"][n % 3];
            written.push(node.put(key, &n.to_string()).await);
            if n == 30 {
                split(&cluster.node(1), "j").await;
            }
        }
        for stream in &mut streams {
            assert_eq!(revisions(stream, written[59]).await, written);
            until(|| stream.delivered().0 >= written[59]).await;
        }
    });
}

/// It was given all there was, and then comes a compaction before the piece
/// with the next events. One that begins below the floor hears so.
#[test]
fn rule_11_a_compaction_takes_nothing_from_a_watch_elsewhere_that_had_caught_up() {
    simulate(async {
        let cluster = five().await;
        let (holders, outsiders) = holders(&cluster, GroupId(1));
        let first = cluster.node(holders[0]).put("g", "0").await;
        let mut stream = watch(&cluster.node(outsiders[0]), KeyRange::one("g"), first);
        assert_eq!(revisions(&mut stream, first).await, [first]);
        // Nobody asks for the next ones.
        let mut written = Vec::new();
        for n in 0..10 {
            written.push(cluster.node(holders[0]).put("g", &n.to_string()).await);
        }
        let floor = Revision(written[9]);
        let compacted = cluster.node(holders[0]).compact(floor, LONG).await;
        compacted.expect("it is compacted");
        until(|| {
            let floor_of = |id: &u64| cluster.replica(*id, GroupId(1)).map(|one| one.floor);
            holders.iter().all(|id| floor_of(id) == Some(floor))
        })
        .await;
        assert_eq!(revisions(&mut stream, written[9]).await, written);
        let mut late = watch(&cluster.node(outsiders[1]), KeyRange::one("g"), first);
        let told = timeout(LONG, late.next()).await.expect("it hears");
        assert_eq!(told, Some(Delivery::Compacted(floor)));
    });
}

/// The events are many pieces, and somebody writes meanwhile.
#[test]
fn rule_11_a_watch_elsewhere_is_given_much_history_piece_by_piece() {
    simulate(async {
        let cluster = five().await;
        let (holders, outsiders) = holders(&cluster, GroupId(1));
        let large = "v".repeat(60_000);
        let mut written = Vec::new();
        for _ in 0..40 {
            written.push(cluster.node(holders[0]).put("g", &large).await);
        }
        let mut stream = watch(&cluster.node(outsiders[0]), KeyRange::one("g"), 1);
        let writer = cluster.node(holders[1]);
        let writing = spawn_local(async move {
            let mut written = Vec::new();
            for _ in 0..40 {
                written.push(writer.put("g", "small").await);
            }
            written
        });
        let mut given = Vec::new();
        while given.len() < 80 {
            let next = timeout(LONG, stream.next()).await.expect("it comes");
            let Some(Delivery::Events(events)) = next else {
                panic!("{next:?}");
            };
            let bytes: usize = events.iter().map(|event| event.kv.value.len()).sum();
            assert!(bytes <= (256 << 10) + 60_000, "{bytes}");
            given.extend(events.iter().map(|event| event.change.revision.0));
        }
        written.extend(writing.await.expect("it ends"));
        assert_eq!(given, written);
    });
}

/// While the group comes to the member that watches, and when it has it.
#[test]
fn rule_11_a_watch_goes_on_when_the_group_moves() {
    simulate(async {
        let mut cluster = five().await;
        let (holders, outsiders) = holders(&cluster, GroupId(1));
        let mut streams: Vec<_> = outsiders
            .iter()
            .map(|id| watch(&cluster.node(*id), KeyRange::new("f", "m"), 1))
            .collect();
        let leaves = holders[0];
        let stays = cluster.node(outsiders[0]);
        let mut written = vec![stays.put("g", "before").await];
        let removed = cluster.node(outsiders[0]);
        let removing =
            spawn_local(async move { removed.member_remove(NodeId(leaves), LONG).await });
        while !removing.is_finished() {
            written.push(stays.put("g", "meanwhile").await);
        }
        removing.await.expect("it ends").expect("it is removed");
        cluster.kill(leaves);
        written.push(stays.put("g", "after").await);
        for stream in &mut streams {
            let last = written[written.len() - 1];
            let given = revisions(stream, last).await;
            assert!(given.is_sorted_by(|one, other| one < other), "{given:?}");
            assert!(written.iter().all(|one| given.contains(one)), "{given:?}");
        }
    });
}
