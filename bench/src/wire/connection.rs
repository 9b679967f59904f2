//! HTTP/2 connections that are made anew when they are lost.
//!
//! Kept true: what is received is given back to flow control at once, and a
//! connection that is lost fails the requests on it, each with its own error,
//! and no others.

#[cfg(test)]
mod tests;

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use h2::RecvStream;
use h2::client::SendRequest;
use http::request::Parts;
use http::{HeaderValue, Method, Request, StatusCode, Uri, Version};
use tokio::net::TcpStream;
use tokio::sync::Mutex;

use super::failure::Failure;
use super::messages::Messages;
use super::socket::Socket;

/// What the server may send before we have read, in one stream and in all.
const STREAM_WINDOW_BYTES: u32 = 1 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;
/// An answer is collected in memory.
const ANSWER_BYTES_MAX: usize = 256 << 20;
/// How long a server may take to accept a connection.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);
/// How long to wait before a lost connection is made anew.
const RECONNECT_PAUSE: Duration = Duration::from_millis(100);

/// Where a server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    authority: String,
}

impl std::str::FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.starts_with("https://") {
            return Err("https is not spoken yet".to_owned());
        }
        let authority = text.strip_prefix("http://").unwrap_or(text);
        let authority = authority.trim_end_matches('/');
        let parsed: http::uri::Authority = authority
            .parse()
            .map_err(|error| format!("{text}: {error}"))?;
        if parsed.port().is_none() {
            return Err(format!("{text} has no port"));
        }
        Ok(Self {
            authority: authority.to_owned(),
        })
    }
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "http://{}", self.authority)
    }
}

/// A method of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rpc {
    /// `KV/Range`
    Range,
    /// `KV/Put`
    Put,
    /// `KV/Txn`
    Txn,
    /// `Watch/Watch`
    Watch,
}

impl Rpc {
    const ALL: [Self; 4] = [Self::Range, Self::Put, Self::Txn, Self::Watch];

    fn path(self) -> &'static str {
        match self {
            Self::Range => "/etcdserverpb.KV/Range",
            Self::Put => "/etcdserverpb.KV/Put",
            Self::Txn => "/etcdserverpb.KV/Txn",
            Self::Watch => "/etcdserverpb.Watch/Watch",
        }
    }
}

/// A connection that several clients share.
pub struct Connection {
    endpoint: Endpoint,
    heads: [Parts; Rpc::ALL.len()],
    live: Mutex<Live>,
}

struct Live {
    /// How many there were before this one.
    number: u64,
    sender: SendRequest<Bytes>,
}

impl Connection {
    /// Connects. The connection lives on the runtime that this is called on.
    pub async fn open(endpoint: Endpoint) -> Result<Arc<Self>, Failure> {
        let sender = connect(&endpoint).await?;
        let heads = Rpc::ALL.map(|rpc| head(&endpoint, rpc));
        Ok(Arc::new(Self {
            endpoint,
            heads,
            live: Mutex::new(Live { number: 0, sender }),
        }))
    }

    /// A client's access to it.
    pub async fn channel(self: &Arc<Self>) -> Channel {
        let live = self.live.lock().await;
        Channel {
            connection: self.clone(),
            number: live.number,
            sender: live.sender.clone(),
        }
    }
}

/// One client's access to a connection.
pub struct Channel {
    connection: Arc<Connection>,
    number: u64,
    sender: SendRequest<Bytes>,
}

impl Channel {
    /// Sends one request, which begins with its prefix, and takes its answer.
    pub async fn ask(&mut self, rpc: Rpc, request: Bytes) -> Result<Bytes, Failure> {
        let (response, mut stream) = self.send(rpc).await?;
        stream.send_data(request, true)?;
        let (head, mut body) = response.await?.into_parts();
        check_head(head.status)?;
        let mut messages = Messages::default();
        let mut received = 0;
        while let Some(chunk) = body.data().await {
            let chunk = chunk?;
            body.flow_control().release_capacity(chunk.len())?;
            received += chunk.len();
            if received > ANSWER_BYTES_MAX {
                return Err(Failure::Answer("too large"));
            }
            messages.add(chunk);
        }
        match body.trailers().await? {
            Some(trailers) => Failure::check_status(&trailers)?,
            None => Failure::check_status(&head.headers)?,
        }
        let answer = messages.take()?.ok_or(Failure::Answer("no message"))?;
        match messages.is_empty() {
            true => Ok(answer),
            false => Err(Failure::Answer("more than one message")),
        }
    }

    /// Opens a stream with its first request. It stays open until dropped.
    pub async fn open(&mut self, rpc: Rpc, request: Bytes) -> Result<OpenStream, Failure> {
        let (response, mut stream) = self.send(rpc).await?;
        stream.send_data(request, false)?;
        let (head, body) = response.await?.into_parts();
        check_head(head.status)?;
        if body.is_end_stream() {
            Failure::check_status(&head.headers)?;
        }
        Ok(OpenStream {
            body,
            messages: Messages::default(),
            _requests: stream,
        })
    }

    async fn send(
        &mut self,
        rpc: Rpc,
    ) -> Result<(h2::client::ResponseFuture, h2::SendStream<Bytes>), Failure> {
        poll_fn(|context| self.sender.poll_ready(context)).await?;
        let head = self.connection.heads[rpc as usize].clone();
        let request = Request::from_parts(head, ());
        Ok(self.sender.send_request(request, false)?)
    }

    /// Gets a connection again after this one was lost, however long it takes.
    /// Only the first client to come makes it.
    pub async fn renew(&mut self) {
        let mut live = self.connection.live.lock().await;
        while live.number == self.number {
            if let Ok(sender) = connect(&self.connection.endpoint).await {
                live.number += 1;
                live.sender = sender;
            } else {
                tokio::time::sleep(RECONNECT_PAUSE).await;
            }
        }
        self.number = live.number;
        self.sender = live.sender.clone();
    }
}

/// A stream of answers.
pub struct OpenStream {
    body: RecvStream,
    messages: Messages,
    _requests: h2::SendStream<Bytes>,
}

impl OpenStream {
    /// The next answer; none at the good end of the stream.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Failure> {
        loop {
            if let Some(message) = self.messages.take()? {
                return Ok(Some(message));
            }
            let Some(chunk) = self.body.data().await else {
                let trailers = self.body.trailers().await?.unwrap_or_default();
                return Failure::check_status(&trailers).map(|()| None);
            };
            let chunk = chunk?;
            self.body.flow_control().release_capacity(chunk.len())?;
            self.messages.add(chunk);
        }
    }
}

async fn connect(endpoint: &Endpoint) -> Result<SendRequest<Bytes>, Failure> {
    let failed = |error: String| Failure::Connect {
        address: endpoint.to_string(),
        error,
    };
    let connected = TcpStream::connect(&endpoint.authority);
    let stream = tokio::time::timeout(CONNECT_TIME_MAX, connected)
        .await
        .map_err(|_| failed("no answer".to_owned()))?
        .map_err(|error| failed(error.to_string()))?;
    stream
        .set_nodelay(true)
        .map_err(|error| failed(error.to_string()))?;
    let (sender, connection) = h2::client::Builder::new()
        .initial_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .enable_push(false)
        .handshake(Socket(stream))
        .await
        .map_err(|error| failed(error.to_string()))?;
    // Its error reaches every request on it.
    tokio::spawn(connection);
    Ok(sender)
}

fn check_head(status: StatusCode) -> Result<(), Failure> {
    match status {
        StatusCode::OK => Ok(()),
        other => Err(Failure::Http(other)),
    }
}

fn head(endpoint: &Endpoint, rpc: Rpc) -> Parts {
    let uri = Uri::builder()
        .scheme("http")
        .authority(endpoint.authority.as_str())
        .path_and_query(rpc.path())
        .build()
        .expect("the authority was parsed and paths are ours");
    let mut request = Request::new(());
    *request.method_mut() = Method::POST;
    *request.uri_mut() = uri;
    *request.version_mut() = Version::HTTP_2;
    let headers = request.headers_mut();
    headers.insert("content-type", HeaderValue::from_static("application/grpc"));
    headers.insert("te", HeaderValue::from_static("trailers"));
    request.into_parts().0
}
