//! Connections that are looked at byte by byte.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::running::{one_with, soon};

const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;

/// A client that has greeted, in HTTP/2.
async fn greet(at: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(at).await.unwrap();
    let greeting = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    stream.write_all(greeting).await.unwrap();
    stream
}

/// The next frame: its kind and what it carries.
async fn frame(stream: &mut TcpStream) -> (u8, Vec<u8>) {
    let mut head = [0; 9];
    soon(stream.read_exact(&mut head)).await.unwrap();
    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
    let mut payload = vec![0; length as usize];
    soon(stream.read_exact(&mut payload)).await.unwrap();
    (head[3], payload)
}

async fn frame_of(stream: &mut TcpStream, wanted: u8) -> Vec<u8> {
    loop {
        let (kind, payload) = frame(stream).await;
        if kind == wanted {
            return payload;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_at_a_time_are_limited() {
    let (server, _dir) = one_with(|config| config.streams_max = 7).await;
    let mut client = greet(server.server.clients()[0]).await;
    let settings = frame_of(&mut client, SETTINGS).await;
    let most = settings.chunks(6).find(|setting| setting[..2] == [0, 3]);
    assert_eq!(most.unwrap()[2..], [0, 0, 0, 7]);
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_clients_are_asked_for_a_sign_of_life() {
    let (server, _dir) = one_with(|config| {
        config.keepalive_interval = Duration::from_millis(50);
        config.keepalive_timeout = Duration::from_millis(50);
    })
    .await;
    let mut client = greet(server.server.clients()[0]).await;
    frame_of(&mut client, PING).await;
    // And who doesn't give it is left.
    let mut rest = Vec::new();
    soon(client.read_to_end(&mut rest)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_ping_too_often_are_sent_away() {
    let (server, _dir) = one_with(|config| config.keepalive_min = Duration::from_secs(60)).await;
    let mut client = greet(server.server.clients()[0]).await;
    for _ in 0..4 {
        let ping = b"\0\0\x08\x06\0\0\0\0\0pingpong";
        client.write_all(ping).await.unwrap();
    }
    let farewell = frame_of(&mut client, GOAWAY).await;
    // ENHANCE_YOUR_CALM
    assert_eq!(farewell[4..8], [0, 0, 0, 11]);
    assert_eq!(&farewell[8..], b"too_many_pings");
    let ended = soon(client.read(&mut [0; 16])).await;
    assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
    // Others are served.
    server.put("k", "v").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_are_limited() {
    let (server, _dir) = one_with(|config| config.connections_max = 2).await;
    let at = server.server.clients()[0];
    let mut first = greet(at).await;
    let mut second = greet(at).await;
    frame(&mut first).await;
    frame(&mut second).await;
    // The third waits outside until one of the others goes.
    let mut third = greet(at).await;
    let mut byte = [0];
    let waits = tokio::time::timeout(Duration::from_millis(100), third.peek(&mut byte));
    assert!(waits.await.is_err());
    drop(first);
    frame(&mut third).await;
}
