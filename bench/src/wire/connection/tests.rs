//! Against a server that does what it is told.

use h2::Reason;
use h2::server::SendResponse;
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use tokio::net::TcpListener;

use super::super::fill::framed;
use super::super::messages::prefix;
use super::*;
use pontoon_api::etcdserverpb::PutRequest;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// What the server does with a request.
#[derive(Clone, Copy)]
enum Deed {
    /// A message of so many bytes, then status 0.
    Answer(usize),
    /// A status in the trailers, after a message.
    Trailers(&'static str),
    /// Nothing but headers with a status.
    OnlyHeaders(&'static str),
    /// An answer without any status.
    NoStatus,
    Http(u16),
    Reset,
    /// Answers, but takes no more requests on this connection.
    GoAway,
    HangUp,
}

/// Serves connections one after the other, one deed for each request.
async fn server(deeds: &'static [Deed]) -> Endpoint {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let mut deeds = deeds.iter();
        while let Ok((socket, _)) = listener.accept().await {
            let mut connection = h2::server::handshake(socket).await.unwrap();
            while let Some(Ok((request, respond))) = connection.accept().await {
                let deed = *deeds.next().expect("a deed for each request");
                if matches!(deed, Deed::HangUp) {
                    break;
                }
                if matches!(deed, Deed::GoAway) {
                    connection.graceful_shutdown();
                }
                tokio::spawn(async move {
                    let mut body = request.into_body();
                    while let Some(Ok(chunk)) = body.data().await {
                        body.flow_control().release_capacity(chunk.len()).unwrap();
                    }
                    act(deed, respond);
                });
            }
        }
    });
    address.to_string().parse().unwrap()
}

fn act(deed: Deed, mut respond: SendResponse<Bytes>) {
    let mut head = Response::new(());
    let mut trailers = HeaderMap::new();
    let mut message_bytes = 3;
    match deed {
        Deed::Reset => return respond.send_reset(Reason::REFUSED_STREAM),
        Deed::Http(status) => *head.status_mut() = StatusCode::from_u16(status).unwrap(),
        Deed::OnlyHeaders(status) => {
            let status = HeaderValue::from_static(status);
            head.headers_mut().insert("grpc-status", status);
            respond.send_response(head, true).unwrap();
            return;
        }
        Deed::Answer(bytes) => {
            message_bytes = bytes;
            trailers.insert("grpc-status", HeaderValue::from_static("0"));
        }
        Deed::Trailers(status) => {
            trailers.insert("grpc-status", HeaderValue::from_static(status));
        }
        Deed::GoAway => {
            trailers.insert("grpc-status", HeaderValue::from_static("0"));
        }
        Deed::NoStatus | Deed::HangUp => {}
    }
    let mut stream = respond.send_response(head, false).unwrap();
    let message = [&prefix(message_bytes)[..], &vec![7; message_bytes]].concat();
    stream
        .send_data(message.into(), trailers.is_empty())
        .unwrap();
    if !trailers.is_empty() {
        stream.send_trailers(trailers).unwrap();
    }
}

fn request(value_bytes: usize) -> Bytes {
    framed(&PutRequest {
        value: vec![1; value_bytes].into(),
        ..Default::default()
    })
}

async fn channel(endpoint: Endpoint) -> Channel {
    Connection::open(endpoint).await.unwrap().channel().await
}

#[tokio::test]
async fn every_way_to_fail_is_told_apart_and_leaves_the_connection() {
    let deeds = &[
        Deed::Answer(3),
        Deed::Trailers("14"),
        Deed::OnlyHeaders("3"),
        Deed::NoStatus,
        Deed::Http(503),
        Deed::Reset,
        Deed::Answer(0),
    ];
    let mut channel = channel(server(deeds).await).await;
    let status = |code| Failure::Status {
        code,
        text: String::new(),
    };
    let expected = [
        Ok(Bytes::from_static(&[7; 3])),
        Err(status(14)),
        Err(status(3)),
        Err(Failure::Answer("no grpc-status")),
        Err(Failure::Http(StatusCode::SERVICE_UNAVAILABLE)),
        Err(Failure::Reset(Reason::REFUSED_STREAM)),
        Ok(Bytes::new()),
    ];
    for expected in expected {
        let answer = channel.ask(Rpc::Put, request(10)).await;
        assert_eq!(answer, expected);
        assert!(
            answer
                .err()
                .is_none_or(|failure| !failure.needs_connection())
        );
    }
}

#[tokio::test]
async fn more_than_the_windows_goes_both_ways() {
    // Ten times 3 MiB: above the window of a stream, and of the connection.
    let deeds = &[Deed::Answer(3 * MIB); 10];
    let mut channel = channel(server(deeds).await).await;
    for _ in 0..10 {
        let answer = channel.ask(Rpc::Put, request(200 * KIB)).await;
        assert_eq!(answer.map(|bytes| bytes.len()), Ok(3 * MIB));
    }
}

#[tokio::test]
async fn after_goaway_or_a_loss_clients_share_a_new_connection() {
    let deeds = &[
        Deed::GoAway,
        Deed::Answer(1),
        Deed::Answer(1),
        Deed::HangUp,
        Deed::Answer(1),
    ];
    let connection = Connection::open(server(deeds).await).await.unwrap();
    let mut one = connection.channel().await;
    let mut other = connection.channel().await;
    // What was under way is answered.
    assert!(one.ask(Rpc::Put, request(1)).await.is_ok());
    for channel in [&mut one, &mut other] {
        let failure = channel.ask(Rpc::Put, request(1)).await.unwrap_err();
        assert!(failure.needs_connection(), "{failure}");
        channel.renew().await;
        assert!(channel.ask(Rpc::Put, request(1)).await.is_ok());
    }
    assert_eq!((one.number, other.number), (1, 1));
    let failure = one.ask(Rpc::Put, request(1)).await.unwrap_err();
    assert!(failure.needs_connection(), "{failure}");
    one.renew().await;
    assert!(one.ask(Rpc::Put, request(1)).await.is_ok());
}

#[tokio::test]
async fn nobody_there_is_said_with_the_address() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let failure = Connection::open(address.parse().unwrap()).await.err();
    let text = failure.unwrap().to_string();
    assert!(text.starts_with(&format!("can't connect to http://{address}: ")));
    assert!(text.contains("refused"), "{text}");
}

#[test]
fn endpoints_are_urls_or_addresses() {
    for good in [
        "https://a:1",
        "http://a:1",
        "a:1",
        "http://127.0.0.1:2379/",
        "[::1]:2379",
    ] {
        assert!(good.parse::<Endpoint>().is_ok(), "{good}");
    }
    for bad in ["https://a", "a", "http://", "a:b:c", ""] {
        assert!(bad.parse::<Endpoint>().is_err(), "{bad}");
    }
}
