//! The link between nodes, over the simulated network and over TCP.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use pontoon_raftgroup::{
    Handler, Link, LinkTiming, Network, NodeId, PeerEvent, Reply, Scope, SimNetwork,
};
use tokio::sync::Notify;

mod sim;
mod tcp;

const A: NodeId = NodeId(1);
const B: NodeId = NodeId(2);
const C: NodeId = NodeId(3);

const PING: Duration = Duration::from_millis(100);
const SUSPECT: Duration = Duration::from_millis(500);
const LONG: Duration = Duration::from_secs(60);

fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Seen {
    Told(NodeId, Bytes),
    Called(NodeId, Bytes),
    Peer(NodeId, PeerEvent),
}

/// Writes down what it sees. Calls are answered with what they said, except
/// those that begin with `hold` or `drop`.
#[derive(Default)]
struct Recorder {
    seen: Mutex<Vec<Seen>>,
    held: Mutex<Vec<Reply>>,
    changed: Notify,
}

impl Recorder {
    fn note(&self, seen: Seen) {
        self.seen.lock().push(seen);
        self.changed.notify_one();
    }

    /// Waits until what was seen is as it should be.
    async fn until(&self, what: impl Fn(&Self) -> bool) {
        let wait = async {
            while !what(self) {
                self.changed.notified().await;
            }
        };
        if tokio::time::timeout(LONG, wait).await.is_err() {
            let seen = self.seen.lock();
            panic!(
                "still not there, after {:?}",
                &seen[seen.len().saturating_sub(20)..]
            );
        }
    }

    async fn until_up(&self, peer: NodeId) {
        let up = |seen: &Seen| matches!(seen, Seen::Peer(p, PeerEvent::Up { .. }) if *p == peer);
        self.until(|all| all.seen.lock().iter().any(up)).await;
    }

    fn has(&self, what: &Seen) -> bool {
        self.seen.lock().contains(what)
    }

    fn told(&self, by: NodeId) -> Vec<Bytes> {
        let seen = self.seen.lock();
        let told = seen.iter().filter_map(|seen| match seen {
            Seen::Told(from, message) if *from == by => Some(message.clone()),
            _ => None,
        });
        told.collect()
    }

    fn events(&self, of: NodeId) -> Vec<PeerEvent> {
        let seen = self.seen.lock();
        let events = seen.iter().filter_map(|seen| match seen {
            Seen::Peer(peer, event) if *peer == of => Some(*event),
            _ => None,
        });
        events.collect()
    }
}

impl Handler for Recorder {
    fn told(&self, from: NodeId, message: Bytes) {
        self.note(Seen::Told(from, message));
    }

    fn called(&self, from: NodeId, message: Bytes, reply: Reply) {
        self.note(Seen::Called(from, message.clone()));
        if message.starts_with(b"hold") {
            self.held.lock().push(reply);
        } else if !message.starts_with(b"drop") {
            reply.send(message);
        }
    }

    fn peer(&self, peer: NodeId, event: PeerEvent) {
        self.note(Seen::Peer(peer, event));
    }
}

struct Node {
    link: Arc<Link>,
    scope: Scope,
    seen: Arc<Recorder>,
}

impl Node {
    /// Starts a node that lists no peers.
    fn start(id: NodeId, incarnation: u64, network: Arc<dyn Network>) -> Self {
        let (ping, suspect) = (PING, SUSPECT);
        Self::start_with(id, incarnation, network, LinkTiming { ping, suspect })
    }

    fn start_with(
        id: NodeId,
        incarnation: u64,
        network: Arc<dyn Network>,
        timing: LinkTiming,
    ) -> Self {
        let link = Link::new(id, incarnation, network, timing);
        let scope = Scope::new(id.0);
        let seen = Arc::new(Recorder::default());
        link.start(&scope, seen.clone()).unwrap();
        Self { link, scope, seen }
    }

    fn list(&self, peers: &[NodeId]) {
        let peers = peers.iter().map(|id| (*id, String::new()));
        self.link.set_peers(&peers.collect());
    }

    fn tell(&self, to: NodeId, text: &str) {
        self.link.tell(to, bytes(text)).unwrap();
    }
}
