//! Connections that are made anew when they are lost.
//!
//! Kept true: a connection that is lost fails the requests on it, each with its
//! own error, and no others.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pontoon_api::etcdserverpb::{AuthenticateRequest, AuthenticateResponse};
use prost::Message;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio_rustls::TlsConnector;

use super::access::{Access, NO_AUTHORITY};
use super::failure::Failure;
use super::fill::framed;
use super::http2::{Http2, Socket, Stream};

/// How long a server may take to accept a connection.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);
/// How long to wait before a lost connection is made anew.
const RECONNECT_PAUSE: Duration = Duration::from_millis(100);

/// Where a server is, and how to get in.
#[derive(Clone, Debug)]
pub struct Endpoint {
    authority: String,
    is_secure: bool,
    access: Access,
}

impl Endpoint {
    /// The same place, entered that way.
    #[must_use]
    pub fn with(self, access: &Access) -> Self {
        Self {
            access: access.clone(),
            ..self
        }
    }

    /// Whether it is known whom to trust there.
    pub fn check(&self) -> Result<(), String> {
        match self.is_secure && self.access.tls.is_none() {
            true => Err(format!("{self}: {NO_AUTHORITY}")),
            false => Ok(()),
        }
    }
}

impl std::str::FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (authority, is_secure) = match text.strip_prefix("https://") {
            Some(authority) => (authority, true),
            None => (text.strip_prefix("http://").unwrap_or(text), false),
        };
        let authority = authority.trim_end_matches('/');
        let parsed: http::uri::Authority = authority
            .parse()
            .map_err(|error| format!("{text}: {error}"))?;
        if parsed.port().is_none() {
            return Err(format!("{text} has no port"));
        }
        Ok(Self {
            authority: authority.to_owned(),
            is_secure,
            access: Access::default(),
        })
    }
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let scheme = if self.is_secure { "https" } else { "http" };
        write!(f, "{scheme}://{}", self.authority)
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
    /// `KV/DeleteRange`
    DeleteRange,
    /// `KV/Compact`
    Compact,
    /// `Watch/Watch`
    Watch,
    /// `Lease/LeaseGrant`
    Grant,
    /// `Lease/LeaseRevoke`
    Revoke,
    /// `Lease/LeaseKeepAlive`, one sign of life on a stream of its own
    KeepAlive,
    /// `Auth/Authenticate`
    Authenticate,
}

impl Rpc {
    fn path(self) -> &'static str {
        match self {
            Self::Range => "/etcdserverpb.KV/Range",
            Self::Put => "/etcdserverpb.KV/Put",
            Self::Txn => "/etcdserverpb.KV/Txn",
            Self::DeleteRange => "/etcdserverpb.KV/DeleteRange",
            Self::Compact => "/etcdserverpb.KV/Compact",
            Self::Watch => "/etcdserverpb.Watch/Watch",
            Self::Grant => "/etcdserverpb.Lease/LeaseGrant",
            Self::Revoke => "/etcdserverpb.Lease/LeaseRevoke",
            Self::KeepAlive => "/etcdserverpb.Lease/LeaseKeepAlive",
            Self::Authenticate => "/etcdserverpb.Auth/Authenticate",
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
    let connected = tokio::time::timeout(CONNECT_TIME_MAX, socket(endpoint));
    let socket = connected
        .await
        .map_err(|_| failed("no answer".to_owned()))?
        .map_err(failed)?;
    let (sender, driver) = Http2::begin(socket, &endpoint.authority);
    // Its failure reaches every request on it.
    tokio::spawn(driver);
    let settled = tokio::time::timeout(CONNECT_TIME_MAX, sender.settled());
    let settled = settled.await.unwrap_or_else(|_| {
        let reason = "it doesn't speak HTTP/2".to_owned();
        Err(Failure::Broken(reason))
    });
    settled.map_err(|failure| failed(failure.to_string()))?;
    if let Some((name, password)) = &endpoint.access.user {
        let token = authenticate(&sender, name, password).await;
        sender.set_token(token.map_err(|failure| failed(failure.to_string()))?);
    }
    Ok(sender)
}

async fn socket(endpoint: &Endpoint) -> Result<Socket, String> {
    let stream = TcpStream::connect(&endpoint.authority)
        .await
        .map_err(|error| error.to_string())?;
    stream
        .set_nodelay(true)
        .map_err(|error| error.to_string())?;
    if !endpoint.is_secure {
        return Ok(stream.into());
    }
    let config = endpoint.access.tls.as_ref().ok_or(NO_AUTHORITY)?;
    let host = endpoint
        .authority
        .rsplit_once(':')
        .map_or("", |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let name = ServerName::try_from(host.to_owned()).map_err(|error| error.to_string())?;
    let connected = TlsConnector::from(config.clone())
        .connect(name, stream)
        .await;
    Ok(connected.map_err(|error| format!("TLS: {error}"))?.into())
}

async fn authenticate(sender: &Http2, name: &str, password: &str) -> Result<String, Failure> {
    let request = AuthenticateRequest {
        name: name.to_owned(),
        password: password.to_owned(),
    };
    let path = Rpc::Authenticate.path();
    let answer = sender.open(path, framed(&request), true).await?;
    let answer = AuthenticateResponse::decode(answer.only().await?)
        .map_err(|_| Failure::Answer("malformed"))?;
    Ok(answer.token)
}
