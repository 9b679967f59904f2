//! Over the simulated network, in a runtime whose clock stands until all wait.

use std::hash::{DefaultHasher, Hash, Hasher};

use pontoon_raftgroup::{CallError, SimCounts, SimDelivery, Unsent};
use tokio::time::{Instant, sleep};

use super::*;

const MS: Duration = Duration::from_millis(1);

/// Nodes that list each other and have heard of each other.
async fn cluster(network: &Arc<SimNetwork>, ids: &[NodeId]) -> Vec<Node> {
    let nodes: Vec<Node> = ids.iter().map(|id| join(network, *id, 1, ids)).collect();
    for node in &nodes {
        for peer in ids.iter().filter(|id| **id != node.link.me()) {
            node.seen.until_up(*peer).await;
        }
    }
    nodes
}

fn join(network: &Arc<SimNetwork>, id: NodeId, incarnation: u64, peers: &[NodeId]) -> Node {
    let node = Node::start(id, incarnation, network.node(id));
    node.list(peers);
    node
}

fn up(incarnation: u64, restarted: bool) -> PeerEvent {
    PeerEvent::Up {
        incarnation,
        restarted,
    }
}

#[tokio::test(start_paused = true)]
async fn calls_and_messages_arrive_in_the_order_they_were_made() {
    let network = SimNetwork::new(1);
    let nodes = cluster(&network, &[A, B]).await;
    for to in [A, B] {
        let seen = &nodes[usize::from(to == B)].seen;
        seen.seen.lock().clear();
        let mut expected = Vec::new();
        let mut replies = Vec::new();
        for round in 0..100 {
            let (told, called) = (format!("told {round}"), format!("called {round}"));
            nodes[0].tell(to, &told);
            // Not polled before all is sent.
            replies.push(nodes[0].link.call(to, bytes(&called), LONG));
            expected.push(Seen::Told(A, bytes(&told)));
            expected.push(Seen::Called(A, bytes(&called)));
        }
        assert!(seen.seen.lock().is_empty(), "delivered inside the call");
        for (round, reply) in replies.into_iter().enumerate() {
            assert_eq!(reply.await, Ok(bytes(&format!("called {round}"))));
        }
        seen.until(|all| *all.seen.lock() == expected).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_ends_with_why_there_is_no_reply() {
    let network = SimNetwork::new(1);
    let nodes = cluster(&network, &[A, B]).await;
    let call = |to, text| nodes[0].link.call(to, bytes(text), 10 * PING);
    assert_eq!(call(B, "drop").await, Err(CallError::Lost));
    assert_eq!(call(A, "drop").await, Err(CallError::Lost));
    assert_eq!(call(C, "nobody").await, Err(CallError::Unsent));
    let before = Instant::now();
    assert_eq!(call(B, "hold").await, Err(CallError::TimedOut));
    assert_eq!(call(A, "hold").await, Err(CallError::TimedOut));
    assert!(before.elapsed() >= 20 * PING);
    // Nobody waits for these any more.
    for node in &nodes {
        node.seen
            .held
            .lock()
            .drain(..)
            .for_each(|r| r.send(bytes("late")));
    }
    let lost = call(B, "hold");
    network.reset(A, B);
    assert_eq!(lost.await, Err(CallError::Lost));
    sleep(10 * MS).await;
    let lost = call(B, "hold");
    network.kill(B);
    assert_eq!(lost.await, Err(CallError::Lost));
    assert_eq!(call(B, "dead").await, Err(CallError::Unsent));
    assert_eq!(
        nodes[0].link.tell(B, bytes("dead")),
        Err(Unsent::NotConnected)
    );
    assert_eq!(nodes[0].link.tell(C, bytes("nobody")), Err(Unsent::Unknown));
}

#[tokio::test(start_paused = true)]
async fn a_reply_to_an_earlier_incarnation_answers_nothing() {
    let network = SimNetwork::new(1);
    let nodes = cluster(&network, &[A, B]).await;
    let (a, b) = (&nodes[0], &nodes[1]);
    let old = a.link.call(B, bytes("hold old"), LONG);
    b.seen
        .until(|all| all.has(&Seen::Called(A, bytes("hold old"))))
        .await;
    network.kill(A);
    a.scope.end();
    drop(old);
    let a = join(&network, A, 2, &[B]);
    a.seen.until_up(B).await;
    let new = a.link.call(B, bytes("hold new"), LONG);
    b.seen
        .until(|all| all.has(&Seen::Called(A, bytes("hold new"))))
        .await;
    let held: Vec<Reply> = b.seen.held.lock().drain(..).collect();
    for (reply, text) in held.into_iter().zip(["to the old", "to the new"]) {
        reply.send(bytes(text));
    }
    assert_eq!(new.await, Ok(bytes("to the new")));
}

#[tokio::test(start_paused = true)]
async fn silence_is_suspected_once_and_hearing_ends_it() {
    let network = SimNetwork::new(1);
    let nodes = cluster(&network, &[A, B]).await;
    let (a, b) = (&nodes[0], &nodes[1]);
    sleep(10 * SUSPECT).await;
    assert_eq!(a.seen.events(B), [up(1, false)]);
    assert!(a.link.is_alive(B) && a.link.is_alive(A) && !a.link.is_alive(C));

    // One direction only: B still hears A.
    network.cut(B, A);
    let before = Instant::now();
    a.seen.until(|all| all.events(B).len() == 2).await;
    let took = before.elapsed();
    assert!(
        took <= SUSPECT + 5 * MS && took >= SUSPECT - PING - 5 * MS,
        "{took:?}"
    );
    assert!(!a.link.is_alive(B) && b.link.is_alive(A));
    sleep(10 * SUSPECT).await;
    assert_eq!(a.seen.events(B), [up(1, false), PeerEvent::Suspected]);
    assert_eq!(b.seen.events(A), [up(1, false)]);

    network.heal(B, A);
    a.seen.until(|all| all.events(B).len() == 3).await;
    assert_eq!(a.seen.events(B).last(), Some(&up(1, false)));

    network.kill(B);
    b.scope.end();
    a.seen.until(|all| all.events(B).len() == 4).await;
    assert_eq!(a.seen.events(B).last(), Some(&PeerEvent::Suspected));
    let b = join(&network, B, 2, &[A]);
    a.seen.until(|all| all.events(B).len() == 5).await;
    assert_eq!(a.seen.events(B).last(), Some(&up(2, true)));

    // So quick that nobody missed it.
    network.kill(B);
    b.scope.end();
    let _b = join(&network, B, 3, &[A]);
    a.seen.until(|all| all.events(B).len() == 6).await;
    assert_eq!(a.seen.events(B).last(), Some(&up(3, true)));
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_never_comes_is_suspected() {
    let network = SimNetwork::new(1);
    let a = join(&network, A, 1, &[B]);
    a.seen
        .until(|all| all.events(B) == [PeerEvent::Suspected])
        .await;
    assert!(!a.link.is_alive(B));
    let b = join(&network, B, 7, &[]);
    a.seen.until(|all| all.events(B).len() == 2).await;
    assert_eq!(a.seen.events(B)[1], up(7, false));
    // B does not list A, and speaks with it nevertheless.
    b.seen.until_up(A).await;
    b.tell(A, "hello");
    a.seen.until(|all| all.told(B) == ["hello"]).await;
    sleep(10 * SUSPECT).await;
    assert_eq!(a.seen.events(B).len(), 2);
}

#[tokio::test(start_paused = true)]
async fn pings_are_sent_only_into_silence() {
    let network = SimNetwork::new(1);
    let nodes = cluster(&network, &[A, B]).await;
    let before = network.counts().sent;
    sleep(100 * PING).await;
    let pings = network.counts().sent - before;
    assert!((190..=202).contains(&pings), "{pings} pings");
    let before = network.counts().sent;
    for _ in 0..100 {
        nodes
            .iter()
            .for_each(|n| n.tell(NodeId(3 - n.link.me().0), "word"));
        sleep(PING / 2).await;
    }
    assert_eq!(network.counts().sent - before, 200);
}

#[tokio::test(start_paused = true)]
async fn lost_messages_are_missing_and_duplicated_ones_come_twice() {
    let network = SimNetwork::new(7);
    let nodes = cluster(&network, &[A, B]).await;
    let texts: Vec<String> = (0..1000).map(|n| format!("{n:04}")).collect();

    network.set_loss(0.3);
    texts.iter().for_each(|text| nodes[0].tell(B, text));
    network.set_loss(0.0);
    sleep(10 * MS).await;
    let told = nodes[1].seen.told(A);
    assert!(told.is_sorted());
    assert_eq!(told.len() as u64, 1000 - network.counts().dropped);
    assert!((600..800).contains(&told.len()), "{} came", told.len());

    nodes[1].seen.seen.lock().clear();
    network.set_duplication(0.3);
    texts.iter().for_each(|text| nodes[0].tell(B, text));
    network.set_duplication(0.0);
    sleep(100 * MS).await;
    let mut told = nodes[1].seen.told(A);
    let duplicated = network.counts().duplicated;
    assert!((200..400).contains(&duplicated), "{duplicated} duplicated");
    assert_eq!(told.len() as u64, 1000 + duplicated);
    assert!(!told.is_sorted(), "no duplicate was late");
    // Without the second of each the order is the one sent.
    let mut first = std::collections::BTreeSet::new();
    told.retain(|message| first.insert(message.clone()));
    assert_eq!(told, texts);
}

#[tokio::test(start_paused = true)]
async fn a_cut_is_silent_and_one_way() {
    let network = SimNetwork::new(1);
    let nodes = cluster(&network, &[A, B, C]).await;
    nodes[0].tell(B, "on its way");
    network.cut(A, B);
    nodes[0].tell(B, "cut");
    nodes[1].tell(A, "back");
    nodes[2].tell(B, "past it");
    sleep(10 * MS).await;
    assert!(nodes[1].seen.told(A).is_empty());
    assert_eq!(nodes[0].seen.told(B), ["back"]);
    assert_eq!(nodes[1].seen.told(C), ["past it"]);
    network.heal_all();
    nodes[0].tell(B, "healed");
    sleep(10 * MS).await;
    assert_eq!(nodes[1].seen.told(A), ["healed"]);

    network.isolate(B);
    nodes[0].tell(B, "isolated");
    nodes[1].tell(C, "isolated");
    nodes[0].tell(C, "others");
    sleep(10 * MS).await;
    assert_eq!(nodes[1].seen.told(A), ["healed"]);
    assert!(nodes[2].seen.told(B).is_empty());
    assert_eq!(nodes[2].seen.told(A), ["others"]);
    network.rejoin(B);
    nodes[1].tell(C, "together");
    sleep(10 * MS).await;
    assert_eq!(nodes[2].seen.told(B), ["together"]);
}

#[tokio::test(start_paused = true)]
async fn no_connection_is_made_through_a_cut() {
    let network = SimNetwork::new(1);
    let nodes = cluster(&network, &[A, B]).await;
    network.cut(B, A);
    network.kill(B);
    let b = join(&network, B, 2, &[A]);
    // A does not know: what it sends vanishes, and its call times out.
    let vanished = nodes[0].link.call(B, bytes("x"), PING).await;
    assert_eq!(vanished, Err(CallError::TimedOut));
    assert_eq!(b.link.tell(A, bytes("x")), Err(Unsent::NotConnected));
    let lost = nodes[0].link.call(B, bytes("x"), LONG);
    network.heal(B, A);
    assert_eq!(lost.await, Err(CallError::Lost));
    nodes[0]
        .seen
        .until(|all| all.events(B).contains(&up(2, true)))
        .await;
    nodes[0].tell(B, "hello");
    b.seen.until(|all| all.told(A) == ["hello"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_slow_direction_delays_and_keeps_order() {
    let network = SimNetwork::new(1);
    let nodes = cluster(&network, &[A, B]).await;
    network.set_slow(A, B, 50 * MS);
    nodes[0].tell(B, "slow");
    nodes[1].tell(A, "quick");
    network.set_slow(A, B, Duration::ZERO);
    nodes[0].tell(B, "behind it");
    sleep(49 * MS).await;
    assert!(nodes[1].seen.told(A).is_empty());
    assert_eq!(nodes[0].seen.told(B), ["quick"]);
    sleep(5 * MS).await;
    assert_eq!(nodes[1].seen.told(A), ["slow", "behind it"]);
    network.set_latency(20 * MS..=20 * MS);
    nodes[1].tell(A, "far");
    sleep(19 * MS).await;
    assert_eq!(nodes[0].seen.told(B).len(), 1);
    sleep(2 * MS).await;
    assert_eq!(nodes[0].seen.told(B).len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_reset_drops_what_is_on_its_way_and_connects_anew() {
    let network = SimNetwork::new(1);
    let nodes = cluster(&network, &[A, B, C]).await;
    nodes[0].tell(B, "on its way");
    nodes[0].tell(C, "elsewhere");
    let lost = nodes[1].link.call(A, bytes("hold"), LONG);
    network.reset(A, B);
    assert_eq!(lost.await, Err(CallError::Lost));
    sleep(10 * MS).await;
    nodes[0].tell(B, "anew");
    sleep(10 * MS).await;
    assert_eq!(nodes[1].seen.told(A), ["anew"]);
    assert_eq!(nodes[2].seen.told(A), ["elsewhere"]);
    assert_eq!(nodes[1].seen.events(A), [up(1, false)]);
}

#[tokio::test(start_paused = true)]
async fn a_killed_node_and_its_earlier_attachment_are_cut_off() {
    let network = SimNetwork::new(1);
    let nodes = cluster(&network, &[A, B]).await;
    nodes[0].tell(B, "on its way");
    network.kill(A);
    nodes[1].tell(A, "nobody there");
    sleep(10 * MS).await;
    assert!(nodes[1].seen.told(A).is_empty());
    assert!(nodes[0].seen.told(B).is_empty());
    assert_eq!(nodes[1].link.tell(A, bytes("x")), Err(Unsent::NotConnected));
    assert_eq!(nodes[0].link.tell(B, bytes("x")), Err(Unsent::NotConnected));
    let again = join(&network, A, 2, &[B]);
    again.seen.until_up(B).await;
    assert_eq!(nodes[0].link.tell(B, bytes("x")), Err(Unsent::NotConnected));
    nodes[1].tell(A, "to the new one");
    again
        .seen
        .until(|all| all.told(B) == ["to the new one"])
        .await;
    assert!(nodes[0].seen.told(B).is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_peer_out_of_the_list_is_left() {
    let network = SimNetwork::new(1);
    let nodes = cluster(&network, &[A, B]).await;
    nodes[0].list(&[]);
    let lost = nodes[1]
        .link
        .call(A, bytes("still listed there"), LONG)
        .await;
    assert_eq!(lost, Ok(bytes("still listed there")));
    nodes[1].list(&[]);
    sleep(10 * SUSPECT).await;
    assert_eq!(nodes[0].link.tell(B, bytes("x")), Err(Unsent::Unknown));
    assert_eq!(
        nodes[1].seen.events(A),
        [up(1, false)],
        "nobody suspects it"
    );
}

#[tokio::test(start_paused = true)]
async fn nothing_outlives_the_scope() {
    let network = SimNetwork::new(1);
    let mut nodes = cluster(&network, &[A, B]).await;
    let Node { link, scope, seen } = nodes.remove(0);
    let (weak_link, weak_seen) = (Arc::downgrade(&link), Arc::downgrade(&seen));
    nodes[0].tell(A, "x");
    scope.end();
    drop((link, seen));
    sleep(10 * MS).await;
    assert!(weak_link.upgrade().is_none() && weak_seen.upgrade().is_none());
}

/// Everything at once; gives what the trace saw, as one number.
fn run(seed: u64) -> (u64, SimCounts) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async {
        let network = SimNetwork::new(seed);
        let hash = Arc::new(Mutex::new(DefaultHasher::new()));
        let trace = hash.clone();
        network.set_trace(Some(Box::new(move |seen: SimDelivery<'_>| {
            let hash = &mut *trace.lock();
            (seen.at, seen.from, seen.to, seen.bytes, seen.head).hash(hash);
        })));
        let ids = [A, B, C];
        let mut nodes = cluster(&network, &ids).await;
        network.set_loss(0.05);
        network.set_duplication(0.05);
        for round in 0..300_u64 {
            for node in &nodes {
                for to in ids {
                    let _ = node.link.tell(to, bytes(&format!("round {round}")));
                    let call = node.link.call(to, bytes("call"), PING);
                    node.scope.spawn(call);
                }
            }
            match round % 50 {
                10 => network.cut(A, C),
                20 => network.heal_all(),
                30 => network.reset(B, C),
                40 => {
                    network.kill(B);
                    nodes[1].scope.end();
                    nodes[1] = join(&network, B, round, &ids);
                }
                _ => {}
            }
            sleep(7 * MS).await;
        }
        let counts = network.counts();
        let hash = hash.lock().finish();
        (hash, counts)
    })
}

#[test]
fn one_seed_gives_one_run() {
    let first = run(42);
    let SimCounts {
        sent,
        dropped,
        duplicated,
    } = first.1;
    assert!(sent > 3000 && dropped > 0 && duplicated > 0, "{first:?}");
    for _ in 0..3 {
        assert_eq!(run(42), first);
    }
    assert_ne!(run(43), first);
}
