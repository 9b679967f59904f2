//! Connections that are made anew when they are lost.
//!
//! Kept true: a connection that is lost fails the requests on it, each with its
//! own error, and no others.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::net::TcpStream;
use tokio::sync::Mutex;

use super::failure::Failure;
use super::http2::{Http2, Stream};

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
    live: Mutex<Live>,
}

struct Live {
    /// How many there were before this one.
    number: u64,
    sender: Http2,
}

impl Connection {
    /// Connects. The connection lives on the runtime that this is called on.
    pub async fn open(endpoint: Endpoint) -> Result<Arc<Self>, Failure> {
        let sender = connect(&endpoint).await?;
        Ok(Arc::new(Self {
            endpoint,
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
    sender: Http2,
}

impl Channel {
    /// Sends one request, which begins with its prefix, and takes its answer.
    pub async fn ask(&mut self, rpc: Rpc, request: Bytes) -> Result<Bytes, Failure> {
        let stream = self.sender.open(rpc.path(), request, true).await?;
        stream.only().await
    }

    /// Opens a stream with its first request. It stays open until dropped.
    pub async fn open(&mut self, rpc: Rpc, request: Bytes) -> Result<OpenStream, Failure> {
        let mut stream = self.sender.open(rpc.path(), request, false).await?;
        stream.begun().await?;
        Ok(OpenStream(stream))
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
pub struct OpenStream(Stream);

impl OpenStream {
    /// The next answer; none at the good end of the stream.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Failure> {
        self.0.next().await
    }
}

async fn connect(endpoint: &Endpoint) -> Result<Http2, Failure> {
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
    let (sender, driver) = Http2::begin(stream, &endpoint.authority);
    // Its failure reaches every request on it.
    tokio::spawn(driver);
    let settled = tokio::time::timeout(CONNECT_TIME_MAX, sender.settled());
    let settled = settled.await.unwrap_or_else(|_| {
        let reason = "it doesn't speak HTTP/2".to_owned();
        Err(Failure::Broken(reason))
    });
    settled.map_err(|failure| failed(failure.to_string()))?;
    Ok(sender)
}
