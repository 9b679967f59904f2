//! What is counted, what has to wait, and who is refused or closed.

use futures_util::FutureExt;
use futures_util::future::join_all;

use super::*;

const MIB: usize = 1 << 20;

fn call(connection: &Arc<ConnectionBounds>) -> Arc<OpenCall> {
    let call = connection.open(&HeaderMap::new(), false);
    call.expect("there are few")
}

/// Has connections hold so many bytes of responses.
fn load(process: &Arc<ProcessBounds>, bytes: usize) -> Vec<Arc<OpenCall>> {
    let mut calls = Vec::new();
    while process.bytes() < bytes {
        let call = call(&process.connect());
        call.made(MIB);
        calls.push(call);
    }
    calls
}

fn headers(bytes: usize) -> HeaderMap {
    let value = "v".repeat(bytes).parse().expect("it is text");
    [(http::header::USER_AGENT, value)].into_iter().collect()
}

#[test]
fn shares_shrink_and_only_small_messages_pass_when_there_is_too_much() {
    let bytes = [0, HIGH_BYTES, FULL_BYTES, OVER_BYTES];
    let levels = bytes.map(Level::of);
    assert_eq!(levels, [Level::Low, Level::High, Level::Full, Level::Over]);
    assert!(levels.is_sorted_by(|one, next| one.share() > next.share()));
    for level in levels {
        assert!(level.admits(0, level.share()));
        assert!(!level.admits(1, level.share()));
        assert_eq!(level.admits(0, 100 * MIB), level < Level::Full);
        // Whatever is admitted is admitted when it is first in line.
        for held in [0, 1, level.share() / 2, level.share()] {
            for more in [1, level.share() / 2, level.share(), 100 * MIB] {
                assert!(level.admits_first(held, more) || !level.admits(held, more));
            }
        }
    }
}

#[tokio::test]
async fn whatever_was_counted_is_released() {
    let process = ProcessBounds::new();
    let connection = process.connect();
    {
        let one = connection
            .open(&headers(5000), false)
            .expect("there are few");
        assert!(one.try_receive(300_000));
        let room = one.expect(ResponseKind::ManyKeys).await;
        room.fill(70_000);
        let charge = one.send(70_000);
        let other = call(&connection);
        let _room = other.expect(ResponseKind::Txn).await;
        other.made(99);
        assert_eq!(process.calls(), 2);
        let room = ResponseKind::Txn.expected_first();
        let headers = "user-agent".len() + 5000;
        assert_eq!(connection.held(), headers + 300_000 + 70_000 + room + 99);
        drop((one, charge));
    }
    assert_eq!((process.calls(), connection.held()), (0, 0));
    drop(connection);
    assert_eq!(process.bytes(), 0);
    assert!(process.connections.lock().open.is_empty());
}

#[tokio::test]
async fn a_large_request_waits_for_another_one_and_is_not_overtaken_for_ever() {
    let process = ProcessBounds::new();
    let connection = process.connect();
    let (first, large, small) = (call(&connection), call(&connection), call(&connection));
    assert!(first.try_receive(MIB));
    assert!(!large.try_receive(MIB));
    let mut waits = Box::pin(large.receive(MIB));
    assert!(waits.as_mut().now_or_never().is_none());
    // No first frame is taken meanwhile.
    assert!(!small.is_receivable());
    drop(first);
    waits.as_mut().await;
    drop(waits);
    drop(large);
    assert!(small.is_receivable());
}

#[tokio::test]
async fn an_expected_response_is_as_large_as_the_last_ones() {
    let process = ProcessBounds::new();
    let connection = process.connect();
    let one = call(&connection);
    let make = async || Ok::<_, ()>(100);
    // The first one might be large: no other is made beside it.
    let first = one.expect(ResponseKind::OneKey).await;
    assert!(one.expect(ResponseKind::OneKey).now_or_never().is_none());
    drop(first);
    for _ in 0..10 {
        let made = one.make(ResponseKind::OneKey, make, |bytes| *bytes).await;
        assert_eq!(made, Ok(100));
    }
    let rooms = (0..64).map(|_| one.expect(ResponseKind::OneKey));
    let rooms = join_all(rooms).now_or_never().expect("there is room");
    assert_eq!(rooms[0].bytes, EXPECTED_BYTES_MIN);
    drop(rooms);
    // One large response, and the next is expected to be as large.
    let large = async || Ok::<_, ()>(MIB);
    let made = one.make(ResponseKind::OneKey, large, |bytes| *bytes).await;
    assert_eq!(made, Ok(MIB));
    assert!(one.expect(ResponseKind::OneKey).now_or_never().is_none());
}

#[tokio::test]
async fn a_watch_goes_on_after_a_message_that_is_larger_than_the_share() {
    let process = ProcessBounds::new();
    let connection = process.connect();
    let (watch, other) = (call(&connection), call(&connection));
    watch.learn(ResponseKind::Events, 2 * MIB);
    let room = watch.try_expect_events().expect("nothing else is held");
    assert!(other.try_expect_events().is_none());
    drop(room);
    assert!(other.try_expect_events().is_some());
}

/// It would wait for its own end.
#[tokio::test]
async fn a_write_is_not_held_up_by_requests_that_wait_like_itself() {
    let process = ProcessBounds::new();
    let connection = process.connect();
    let write = call(&connection);
    assert!(write.try_receive(MIB));
    let _others = load(&process, OVER_BYTES);
    assert_eq!(process.level(), Level::Over);
    assert!(write.expect(ResponseKind::Txn).now_or_never().is_some());
    assert!(
        write
            .expect(ResponseKind::ManyKeys)
            .now_or_never()
            .is_none()
    );
}

#[test]
fn streams_are_fewer_than_calls_and_each_connection_has_some() {
    let process = ProcessBounds::new();
    let open = |connection: &Arc<ConnectionBounds>| connection.open(&HeaderMap::new(), true);
    let greedy = process.connect();
    let streams: Vec<_> = (0..).map_while(|_| open(&greedy).ok()).collect();
    assert_eq!(streams.len(), STREAMS_MAX);
    assert!(greedy.open(&HeaderMap::new(), false).is_ok());
    let other = process.connect();
    let own: Vec<_> = (0..).map_while(|_| open(&other).ok()).collect();
    assert_eq!(own.len(), STREAMS_ALWAYS);
    drop(streams);
    assert!(open(&other).is_ok());
}

#[tokio::test]
async fn headers_beyond_the_share_are_refused() {
    let process = ProcessBounds::new();
    let connection = process.connect();
    let calls: Vec<_> = (0..1000)
        .map_while(|_| connection.open(&headers(15_000), false).ok())
        .collect();
    assert_eq!(calls.len(), MIB / 15_010);
    assert_eq!(process.refused(), 1);
    // Others are not concerned.
    assert!(process.connect().open(&headers(15_000), false).is_ok());
}

#[tokio::test(start_paused = true)]
async fn who_moves_nothing_while_the_process_is_full_is_closed() {
    let process = ProcessBounds::new();
    let stalled = process.connect();
    let held = call(&stalled);
    assert!(held.try_receive(MIB));
    let _others = load(&process, FULL_BYTES + 2 * MIB);
    let moves = process.connect();
    let run = tokio::spawn(Arc::clone(&process).run());
    let closed = tokio::spawn(async move { stalled.closed().await });
    for _ in 0..STALLED_AFTER_MS / 100 {
        let call = call(&moves);
        assert!(call.try_receive(1000));
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    closed.await.expect("it is closed");
    assert!(process.closed() > 0);
    assert!(moves.closed().now_or_never().is_none());
    run.abort();
}
