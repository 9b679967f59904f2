//! Rule 16: what a member says of what it has.

use bytes::Bytes;
use pontoon_engine::{KeyRange, Range};
use pontoon_raftgroup::GroupId;
use tokio::task::spawn_local;

use crate::cluster::{
    Client, Cluster, LONG, ROOT, SHORT, pause, range, revision, simulate, soon, value,
};

#[test]
fn rule_16_serializable_reads_go_on_without_a_quorum() {
    simulate(async {
        let mut cluster = Cluster::start(3, &["f", "m"]).await;
        for key in ["a", "g", "n"] {
            cluster.node(1).put(key, "here").await;
        }
        let told = cluster.node(3).get("a").await.revision.0;
        pause(300).await;
        cluster.kill(1);
        cluster.kill(2);
        pause(5000).await;
        let alone = cluster.node(3);
        for key in ["a", "g", "n"] {
            let answer = alone.get_here(key).await.expect("it is here");
            let (text, at) = value(&answer);
            assert_eq!(text, "here");
            assert!(at >= told);
        }
        let all = Range::of(KeyRange::all());
        let all = soon(alone.read_serializable(&all, LONG)).await;
        assert_eq!(all.expect("it is here").expect("it is here").count, 3);
    });
}

/// Marks are always on their way, and take long.
#[test]
fn rule_16_a_member_never_tells_less_than_it_told_of_another_group() {
    simulate(async {
        let cluster = Cluster::start(3, &["f", "m"]).await;
        cluster.lead(ROOT, 1).await;
        cluster.lead(GroupId(2), 3).await;
        let other = cluster.node(1);
        let busy = spawn_local(async move {
            loop {
                let _ = other.put_within("b", "1", SHORT).await;
            }
        });
        let node = cluster.node(3);
        cluster.slow(1, 3, 20);
        for n in 0..20 {
            let acknowledged = node.put("n", &n.to_string()).await;
            let at = node.get_here("g").await.expect("it is here").revision.0;
            assert!(at >= acknowledged, "{at} after {acknowledged}");
            let told = node.get("n").await.revision.0;
            let at = node.get_here("a").await.expect("it is here").revision.0;
            assert!(at >= told, "{at} after {told}");
        }
        busy.abort();
    });
}

/// A sequencer that is there, but has nothing to tell.
#[test]
fn rule_16_what_was_told_of_other_groups_keeps_no_read_waiting_for_long() {
    simulate(async {
        let cluster = Cluster::start(3, &["f", "m"]).await;
        cluster.node(1).put("g", "here").await;
        pause(300).await;
        let node = cluster.node(3);
        node.note_told(revision(1_000_000));
        let answer = node.read_serializable(&range("g"), LONG).await;
        assert_eq!(value(&answer.expect("it is here")).0, "here");
    });
}

/// Messages get lost, so that the member is often behind what it hears.
async fn behind() -> Cluster {
    let cluster = Cluster::start(3, &["f", "m"]).await;
    cluster.lead(ROOT, 1).await;
    cluster.lead(GroupId(1), 2).await;
    cluster.lead(GroupId(2), 2).await;
    cluster.network.set_loss(0.05);
    cluster
}

#[test]
fn rule_16_a_member_finds_what_it_acknowledged() {
    simulate(async {
        let cluster = behind().await;
        let mut found = 0;
        for n in 0..100 {
            let key = ["a", "g", "n"][n % 3];
            let text = n.to_string();
            let node = cluster.node(3);
            let Ok(written) = node.put_within(key, &text, SHORT).await else {
                continue;
            };
            // It may have asked others, whose answer was lost.
            let Ok(answer) = node.get_here(key).await else {
                continue;
            };
            let (here, at) = value(&answer);
            assert_eq!(here, text);
            assert!(at >= written, "{at} after {written}");
            found += 1;
        }
        assert!(found > 50, "{found}");
    });
}

/// A point is from the sequencer; what a replica has passed it is told later.
#[test]
fn rule_16_a_member_never_tells_a_lower_revision_than_before() {
    simulate(async {
        let cluster = behind().await;
        let (mut told, mut found) = (0, 0);
        for _ in 0..100 {
            // The group that is read from has nothing to do with it.
            let _ = cluster.node(1).put_within("n", "1", SHORT).await;
            if let Ok(answer) = cluster.node(3).get_within("g", SHORT).await {
                told = told.max(answer.revision.0);
            }
            if let Ok(answer) = cluster.node(3).get_here("g").await {
                let here = answer.revision.0;
                assert!(here >= told, "{here} after {told}");
                told = here;
                found += 1;
            }
        }
        assert!(found > 50, "{found}");
    });
}

#[test]
fn rule_16_what_was_told_of_a_range_holds_for_what_is_split_off() {
    simulate(async {
        let cluster = Cluster::start(3, &["f"]).await;
        cluster.node(1).put("n", "1").await;
        for n in 0..20 {
            cluster.node(1).put("a", &n.to_string()).await;
        }
        pause(300).await;
        let node = cluster.node(3);
        let mut told = 0;
        let mut look = async || {
            if let Ok(answer) = node.get_here("n").await {
                let (_, at) = value(&answer);
                assert!(at >= told, "{at} after {told}");
                told = at;
            }
        };
        look().await;
        let other = cluster.node(1);
        let split = spawn_local(async move { other.split(Bytes::from("m"), LONG).await });
        while !split.is_finished() {
            look().await;
            pause(1).await;
        }
        for _ in 0..100 {
            look().await;
            pause(1).await;
        }
        assert!(told > 20, "{told}");
    });
}
