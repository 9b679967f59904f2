//! Over TCP on the loopback, in real time: whatever is waited for comes, sooner
//! or later.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::mpsc;

use pontoon_raftgroup::{CallError, Plain, TcpConfig, TcpNetwork, Unsent};
use tokio::task::yield_now;

use super::*;

const CLUSTER: u128 = 0xc1;
const NEVER: Duration = Duration::from_secs(24 * 3600);
const QUEUE_BYTES_MAX: usize = 1 << 20;
const MESSAGE_BYTES_MAX: usize = 100_000;

/// A node whose peers are never suspected, whatever the machine does.
fn start(id: NodeId, incarnation: u64, address: SocketAddr) -> std::io::Result<(Node, SocketAddr)> {
    let config = TcpConfig {
        queue_bytes_max: QUEUE_BYTES_MAX,
        message_bytes_max: MESSAGE_BYTES_MAX,
        greeting_max: NEVER,
        silence_max: NEVER,
        // All dial at once.
        pause_min: Duration::ZERO,
        ..TcpConfig::new(id, CLUSTER, incarnation)
    };
    let network = TcpNetwork::bind(address, config, Plain)?;
    let address = network.address();
    let timing = LinkTiming {
        ping: PING,
        suspect: NEVER,
    };
    Ok((Node::start_with(id, incarnation, network, timing), address))
}

fn start_anywhere(id: NodeId) -> (Node, SocketAddr) {
    start(id, 1, ([127, 0, 0, 1], 0).into()).unwrap()
}

fn list(node: &Node, peers: &[(NodeId, SocketAddr)]) {
    let peers = peers.iter().map(|(id, at)| (*id, at.to_string()));
    node.link.set_peers(&peers.collect::<BTreeMap<_, _>>());
}

/// Calls until there is an answer: connections may be replaced at first.
async fn reach(node: &Node, peer: NodeId) {
    let answer = async {
        while node.link.call(peer, bytes("hello"), NEVER).await.is_err() {
            yield_now().await;
        }
    };
    let answer = tokio::time::timeout(LONG, answer).await;
    answer.expect("a peer that answers");
}

/// Sends as many as asked, as fast as the queue allows.
async fn tell_many(from: &Node, to: NodeId, count: u32) {
    for number in 0..count {
        let message = Bytes::copy_from_slice(&number.to_le_bytes());
        while let Err(unsent) = from.link.tell(to, message.clone()) {
            assert_eq!(unsent, Unsent::Full);
            yield_now().await;
        }
    }
}

async fn told_many(node: &Node, by: NodeId, count: usize) {
    node.seen.until(|all| all.seen.lock().len() >= count).await;
    let told = node.seen.told(by);
    let numbers = told
        .iter()
        .map(|m| u32::from_le_bytes(m[..4].try_into().unwrap()));
    assert!(numbers.eq(0..u32::try_from(count).unwrap()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stalled_peer_holds_up_nobody_and_loses_nothing() {
    const COUNT: u32 = 100_000;
    let ((a, at_a), (b, at_b)) = (start_anywhere(A), start_anywhere(B));
    let (stalled, stall) = tokio::sync::oneshot::channel();
    let (resume, resumed) = mpsc::channel::<usize>();
    // C has a runtime of its own, which can be stopped.
    let c = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_all().build().unwrap();
        let c = runtime.block_on(async {
            let (c, _) = start_anywhere(C);
            list(&c, &[(A, at_a)]);
            reach(&c, A).await;
            c.seen.seen.lock().clear();
            c
        });
        stalled.send(()).unwrap();
        let count = resumed.recv().unwrap();
        runtime.block_on(told_many(&c, A, count));
    });
    stall.await.unwrap();

    let mut for_c = 0;
    let unsent = loop {
        let mut message = vec![0; 1000];
        message[..4].copy_from_slice(&u32::to_le_bytes(for_c));
        match a.link.tell(C, message.into()) {
            Ok(()) => for_c += 1,
            Err(unsent) => break unsent,
        }
        // More than the kernel takes for a connection.
        assert!(for_c < 100_000, "the queue has no end");
    };
    assert_eq!(unsent, Unsent::Full);

    // Only one dials, so the connection stays.
    list(&a, &[(B, at_b)]);
    reach(&a, B).await;
    reach(&b, A).await;
    a.seen.seen.lock().clear();
    b.seen.seen.lock().clear();
    tokio::join!(tell_many(&a, B, COUNT), tell_many(&b, A, COUNT));
    told_many(&a, B, COUNT as usize).await;
    told_many(&b, A, COUNT as usize).await;

    resume.send(for_c as usize).unwrap();
    tokio::task::spawn_blocking(|| c.join().unwrap())
        .await
        .unwrap();
}

#[tokio::test]
async fn a_restarted_peer_is_met_again_and_calls_to_it_are_lost() {
    let ((a, _), (b, at_b)) = (start_anywhere(A), start_anywhere(B));
    list(&a, &[(B, at_b)]);
    reach(&a, B).await;
    let lost = a.link.call(B, bytes("hold"), NEVER);
    b.seen.until(|all| !all.held.lock().is_empty()).await;
    b.scope.end();
    assert_eq!(lost.await, Err(CallError::Lost));
    drop(b);
    let (b, _) = loop {
        // The old listener goes with its task.
        match start(B, 2, at_b) {
            Ok(started) => break started,
            Err(_) => yield_now().await,
        }
    };
    let again = PeerEvent::Up {
        incarnation: 2,
        restarted: true,
    };
    a.seen.until(|all| all.has(&Seen::Peer(B, again))).await;
    reach(&a, B).await;
    reach(&b, A).await;
    assert!(a.link.is_alive(B));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_dial_each_other_at_once_agree_on_a_connection() {
    for _ in 0..50 {
        let ((a, at_a), (b, at_b)) = (start_anywhere(A), start_anywhere(B));
        list(&a, &[(B, at_b)]);
        list(&b, &[(A, at_a)]);
        tokio::join!(reach(&a, B), reach(&b, A));
        a.scope.end();
        b.scope.end();
    }
}

#[tokio::test]
async fn it_is_enough_if_one_of_two_lists_the_other() {
    let ((a, at_a), (b, at_b)) = (start_anywhere(A), start_anywhere(B));
    let (c, _) = start_anywhere(C);
    // The lower dials the higher, and the other way round.
    list(&a, &[(B, at_b)]);
    list(&c, &[(B, at_b), (A, at_a)]);
    for (node, peer) in [(&a, B), (&b, A), (&c, B), (&b, C), (&c, A), (&a, C)] {
        node.seen.until_up(peer).await;
        reach(node, peer).await;
    }
    // Unlisted, and then unknown.
    list(&a, &[]);
    while a.link.tell(B, Bytes::new()) != Err(Unsent::Unknown) {
        yield_now().await;
    }
    reach(&a, C).await;
}

#[tokio::test]
async fn the_longest_message_passes_and_a_longer_one_is_not_sent() {
    let ((a, _), (b, at_b)) = (start_anywhere(A), start_anywhere(B));
    list(&a, &[(B, at_b)]);
    a.seen.until_up(B).await;
    let too_long = Bytes::from(vec![1; MESSAGE_BYTES_MAX]);
    assert_eq!(a.link.tell(B, too_long.clone()), Err(Unsent::TooLong));
    // Of the envelope around it: tag, incarnation 1, a length of three bytes.
    let longest = too_long.slice(5..);
    a.link.tell(B, longest.clone()).unwrap();
    b.seen.until(|all| all.told(A) == [longest.clone()]).await;
    assert_eq!(a.link.tell(B, too_long.slice(4..)), Err(Unsent::TooLong));
}
