//! The port for other members: their messages, and who the members are.
//!
//! Kept true: the groups' addresses are cards; only here they become hosts
//! and ports. Whoever asks over HTTP at this port gets an answer and is no
//! peer.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{HeaderValue, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::RwLock;
use pontoon_raftgroup::{
    Inbox, Network, Node, NodeId, Plain, Scope, Stream, TcpNetwork, Unsent, Wrap,
};
use pontoon_wal::Histogram;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::card::Card;
use crate::url::Url;

/// etcd's header of answers at this port.
const CLUSTER_HEADER: &str = "x-etcd-cluster-id";
/// How long a question to another member may take.
const ASK_WITHIN: Duration = Duration::from_secs(5);
/// Between two measurements of a round trip.
const ROUND_TRIP_EVERY: Duration = Duration::from_secs(2);
/// A list of members is never longer.
const LIST_BYTES_MAX: u64 = 1 << 20;

/// What went to and came from another member.
#[derive(Debug, Default)]
pub(crate) struct PeerCount {
    pub(crate) sent_bytes: AtomicU64,
    pub(crate) received_bytes: AtomicU64,
    /// Messages that could not be sent.
    pub(crate) unsent: AtomicU64,
    /// Connections that were lost.
    pub(crate) lost: AtomicU64,
    /// Nanoseconds that a message there and its answer took.
    pub(crate) round_trip: Histogram,
    /// Whether there is one now.
    pub(crate) connected: AtomicBool,
}

/// The same for all of them.
#[derive(Debug, Default)]
pub(crate) struct PeerCounts(RwLock<BTreeMap<NodeId, Arc<PeerCount>>>);

impl PeerCounts {
    pub(crate) fn of(&self, id: NodeId) -> Arc<PeerCount> {
        if let Some(count) = self.0.read().get(&id) {
            return Arc::clone(count);
        }
        Arc::clone(self.0.write().entry(id).or_default())
    }
}

/// Measures how far away the other members are, while they are alive.
pub(crate) async fn measure_round_trips(node: Node, counts: Arc<PeerCounts>) {
    loop {
        let members = node.members().into_keys();
        let others = members.filter(|id| *id != node.id() && node.is_alive(*id));
        let trips = others.map(|id| {
            let (link, counts) = (node.link(), &counts);
            async move {
                if let Some(took) = link.round_trip(id, ROUND_TRIP_EVERY).await {
                    counts.of(id).round_trip.record_time(took);
                }
            }
        });
        futures_util::future::join_all(trips).await;
        tokio::time::sleep(ROUND_TRIP_EVERY).await;
    }
}

/// Counts what arrives.
struct Counting {
    inbox: Arc<dyn Inbox>,
    counts: Arc<PeerCounts>,
}

impl Inbox for Counting {
    fn received(&self, from: NodeId, message: Bytes) {
        let count = self.counts.of(from);
        count
            .received_bytes
            .fetch_add(message.len() as u64, Relaxed);
        self.inbox.received(from, message);
    }

    fn connected(&self, peer: NodeId) {
        self.counts.of(peer).connected.store(true, Relaxed);
        self.inbox.connected(peer);
    }

    fn lost(&self, peer: NodeId) {
        let count = self.counts.of(peer);
        count.lost.fetch_add(1, Relaxed);
        count.connected.store(false, Relaxed);
        self.inbox.lost(peer);
    }
}

/// The network, with cards for addresses, and counted.
pub(crate) struct Peers {
    pub(crate) network: Arc<TcpNetwork>,
    pub(crate) counts: Arc<PeerCounts>,
}

impl Network for Peers {
    fn start(&self, scope: &Scope, inbox: Arc<dyn Inbox>) -> io::Result<()> {
        let counts = Arc::clone(&self.counts);
        self.network
            .start(scope, Arc::new(Counting { inbox, counts }))
    }

    fn send(&self, to: NodeId, message: Bytes) -> Result<(), Unsent> {
        let bytes = message.len() as u64;
        let sent = self.network.send(to, message);
        let count = self.counts.of(to);
        match sent {
            Ok(()) => count.sent_bytes.fetch_add(bytes, Relaxed),
            Err(_) => count.unsent.fetch_add(1, Relaxed),
        };
        sent
    }

    fn set_peers(&self, peers: &BTreeMap<NodeId, String>) {
        let peers = peers.iter();
        let addresses =
            peers.filter_map(|(id, card)| Some((*id, Card::read(card).peer_address()?)));
        self.network.set_peers(&addresses.collect());
    }
}

/// Who is asked at this port, while it runs.
#[derive(Clone, Default)]
pub(crate) struct Reception(Arc<RwLock<Option<(u64, Node)>>>);

impl Reception {
    pub(crate) fn open(&self, cluster: u64, node: &Node) {
        *self.0.write() = Some((cluster, node.clone()));
    }

    /// Lets go of the node, which has the network, which has this.
    pub(crate) fn close(&self) {
        *self.0.write() = None;
    }
}

impl Wrap for Reception {
    fn connect(
        &self,
        stream: TcpStream,
        to: NodeId,
    ) -> BoxFuture<'static, io::Result<Box<dyn Stream>>> {
        Plain.connect(stream, to)
    }

    /// Members greet with a word of their own; who begins like HTTP is served
    /// here.
    fn accept(&self, stream: TcpStream) -> BoxFuture<'static, io::Result<Box<dyn Stream>>> {
        let reception = self.clone();
        Box::pin(async move {
            let mut first = [0; 4];
            let mut seen = stream.peek(&mut first).await?;
            while seen > 0 && seen < first.len() && b"GET "[..seen] == first[..seen] {
                tokio::time::sleep(Duration::from_millis(1)).await;
                seen = stream.peek(&mut first).await?;
            }
            if &first != b"GET " {
                return Ok(Box::new(stream) as Box<dyn Stream>);
            }
            reception.serve(stream).await;
            Err(io::Error::other("it spoke HTTP, and was answered"))
        })
    }
}

/// A member, as etcd tells at this port.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Listed {
    pub(crate) id: u64,
    #[serde(
        default,
        rename = "isLearner",
        skip_serializing_if = "std::ops::Not::not"
    )]
    learner: bool,
    #[serde(flatten)]
    pub(crate) card: Card,
}

impl Reception {
    async fn serve(&self, stream: TcpStream) {
        let service = service_fn(|request: http::Request<Incoming>| {
            let answer = self.answer(request.uri().path());
            async move { Ok::<_, std::convert::Infallible>(answer) }
        });
        let mut builder = hyper::server::conn::http1::Builder::new();
        builder.timer(TokioTimer::new()).keep_alive(false);
        let served = builder
            .serve_connection(TokioIo::new(stream), service)
            .await;
        if let Err(error) = served {
            tracing::debug!("a question at the peer port was not answered: {error}");
        }
    }

    fn answer(&self, path: &str) -> Response<Full<Bytes>> {
        let asked = self.0.read().clone();
        let (Some((cluster, node)), "/members") = (asked, path) else {
            let mut answer = Response::new(Full::default());
            *answer.status_mut() = match path {
                "/members" => StatusCode::SERVICE_UNAVAILABLE,
                _ => StatusCode::NOT_FOUND,
            };
            return answer;
        };
        let members = node.members();
        let members = members.into_iter().map(|(id, member)| Listed {
            id: id.0,
            learner: member.learner,
            card: Card::read(&member.address),
        });
        let members: Vec<_> = members.collect();
        let text = serde_json::to_string(&members).expect("strings can be written");
        let mut answer = Response::new(Full::from(text));
        if let Ok(cluster) = HeaderValue::from_str(&format!("{cluster:x}")) {
            answer.headers_mut().insert(CLUSTER_HEADER, cluster);
        }
        answer
    }
}

/// Asks a member who the members are: the cluster's id, and all of them.
pub(crate) async fn ask(url: &Url) -> io::Result<(u64, Vec<Listed>)> {
    let asked = async {
        let mut stream = TcpStream::connect(&url.authority).await?;
        let request = format!("GET /members HTTP/1.0\r\nHost: {}\r\n\r\n", url.authority);
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        let mut limited = stream.take(LIST_BYTES_MAX);
        limited.read_to_end(&mut answer).await?;
        Ok::<_, io::Error>(answer)
    };
    let asked = tokio::time::timeout(ASK_WITHIN, asked).await;
    let answer = asked.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    read_answer(&answer).ok_or_else(|| io::Error::other("its answer makes no sense"))
}

fn read_answer(answer: &[u8]) -> Option<(u64, Vec<Listed>)> {
    let answer = std::str::from_utf8(answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let mut lines = head.lines();
    let is_ok = lines.next()?.split(' ').nth(1)? == "200";
    let cluster = lines.find_map(|line| {
        let (name, value) = line.split_once(':')?;
        let is_cluster = name.eq_ignore_ascii_case(CLUSTER_HEADER);
        is_cluster.then(|| u64::from_str_radix(value.trim(), 16).ok())?
    })?;
    let members = serde_json::from_str(body).ok()?;
    is_ok.then_some((cluster, members))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read() {
        let answer = b"HTTP/1.0 200 OK\r\nX-Etcd-Cluster-ID: ff\r\n\r\n\
            [{\"id\":7,\"peerURLs\":[\"http://a:1\"],\"name\":\"x\",\"clientURLs\":[]}]";
        let (cluster, members) = read_answer(answer).unwrap();
        assert_eq!((cluster, members[0].id), (255, 7));
        assert_eq!(members[0].card.peer_urls, ["http://a:1"]);
        assert!(read_answer(b"HTTP/1.0 503 No\r\nX-Etcd-Cluster-ID: ff\r\n\r\n[]").is_none());
        assert!(read_answer(b"PONTOON\n").is_none());
    }
}
