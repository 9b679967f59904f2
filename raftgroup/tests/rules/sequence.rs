//! Rule 3: what a deposed sequencer made never leaves.

use pontoon_raftgroup::{GroupId, NodeId};

use crate::cluster::{Client, Cluster, ROOT, by_chance, pause, simulate, value};

/// Node 1 was the sequencer; 3, 4 and 5 follow node 3 instead, of which neither
/// node 1 nor node 2, which leads group 1, has heard. Every group has a quorum.
/// `None` if node 4 or 5 stood for election too, since node 2 hears that.
async fn deposed(seed: u64) -> Option<Cluster> {
    let cluster = Cluster::start_as(seed, 5, &["f", "m"]).await;
    cluster.lead(ROOT, 1).await;
    cluster.lead(GroupId(1), 2).await;
    cluster.lead(GroupId(2), 3).await;
    cluster.node(2).put("g", "old").await;
    pause(300).await;
    for other in [3, 4, 5] {
        cluster.part(1, other);
    }
    cluster.network.cut(NodeId(3), NodeId(2));
    let sequencer = cluster.until_led_among(ROOT, &[3, 4, 5]).await;
    let believed = cluster.leader(ROOT, &[1, 2]);
    (sequencer == 3 && believed == Some(1)).then_some(cluster)
}

#[test]
fn rule_3_what_a_deposed_sequencer_grants_never_leaves() {
    simulate(async {
        let cluster = by_chance(deposed).await;
        let newer = cluster.node(4).put("n", "newer").await;
        // Asked for later, so it must not come before.
        let node = cluster.node(2);
        let later = tokio::spawn(async move { node.put("g", "later").await });
        pause(1000).await;
        cluster.network.heal_all();
        let later = later.await.expect("it ends");
        assert!(later > newer, "{later} was granted after {newer}");
    });
}

#[test]
fn rule_3_a_deposed_sequencers_read_points_never_leave() {
    simulate(async {
        let cluster = by_chance(deposed).await;
        let newer = cluster.node(4).put("n", "newer").await;
        let node = cluster.node(2);
        let later = tokio::spawn(async move { node.get("g").await });
        pause(1000).await;
        cluster.network.heal_all();
        let answer = later.await.expect("it ends");
        let (text, at) = value(&answer);
        assert_eq!(text, "old");
        assert!(at >= newer, "read at {at}, after {newer}");
    });
}
