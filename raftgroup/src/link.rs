//! Calls, one-way messages and liveness between nodes.
//!
//! Kept true:
//! - What is sent to one peer arrives in the order it was queued, calls and
//!   one-way messages alike; some of it may be missing. A call is taken once,
//!   even if the network repeats it.
//! - A call to a peer ends as lost, at the latest, when the peer is suspected.
//! - A call ends once, and a reply ends only the call that it answers: ids
//!   begin where the incarnation decides, so that a reply to an earlier life of
//!   this process finds nobody.
//! - The handler hears `Up` before the first message of an incarnation, and a
//!   peer's events in the order in which they became true.
//! - The network and the handler are called without the lock on `peers`. What
//!   is started ends with the scope, and nothing here keeps the handler alive
//!   after that.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::Instant;
use tracing::warn;

use crate::codec::{Wire, wire};
use crate::position::NodeId;
use crate::runtime::Scope;

mod frame;
mod handshake;
mod network;
mod outbox;
mod sim;
mod tcp;

pub use network::{Inbox, Network, Unsent};
pub use sim::{SimCounts, SimDelivery, SimNetwork};
pub use tcp::{Plain, Stream, TcpConfig, TcpNetwork, Wrap};

/// What a node does with what others send to it. Nothing here may block.
pub trait Handler: Send + Sync + 'static {
    /// A one-way message, in order with the calls of the same peer.
    fn told(&self, from: NodeId, message: Bytes);

    /// A call; `reply` answers it, now or later.
    fn called(&self, from: NodeId, message: Bytes, reply: Reply);

    /// A peer came or went. It may send, but not wait for another event.
    fn peer(&self, peer: NodeId, event: PeerEvent);
}

/// What became true of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerEvent {
    /// It was heard of for the first time, again, or as a new process.
    Up {
        /// Differs at every start of the peer's process.
        incarnation: u64,
        /// Whether another incarnation was known before.
        restarted: bool,
    },
    /// Nothing was heard of it for the time after which a peer is suspected.
    Suspected,
}

/// Why a call has no reply. Unless it is `Unsent`, the peer may have acted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// It was not sent.
    #[error("the call was not sent")]
    Unsent,
    /// The connection was lost, or the peer dropped the call.
    #[error("the reply was lost")]
    Lost,
    /// No reply came in time.
    #[error("the call timed out")]
    TimedOut,
}

/// When a peer is spoken to and when it is given up.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// A peer that was sent nothing for this long is sent a ping.
    pub ping: Duration,
    /// A peer that is silent for this long is suspected.
    pub suspect: Duration,
}

/// This node's end of the connections to all others.
pub struct Link {
    me: NodeId,
    incarnation: u64,
    network: Arc<dyn Network>,
    timing: Timing,
    call_next: AtomicU64,
    peers: Mutex<BTreeMap<NodeId, Peer>>,
    /// Held from deciding on an event until the handler knows it.
    telling: Mutex<()>,
    /// Wakes the watch over the peers when it has more to look after.
    wake: Notify,
    to_me: mpsc::UnboundedSender<ToMe>,
    for_me: Mutex<Option<mpsc::UnboundedReceiver<ToMe>>>,
    /// Pings that were sent twice as late as they should have been, or later.
    pings_late: AtomicU64,
}

impl Link {
    /// A link over `network`. `incarnation` differs at every start of the process.
    pub fn new(
        me: NodeId,
        incarnation: u64,
        network: Arc<dyn Network>,
        timing: Timing,
    ) -> Arc<Self> {
        let (to_me, for_me) = mpsc::unbounded_channel();
        Arc::new(Self {
            me,
            incarnation,
            network,
            timing,
            // An odd multiple: incarnations next to each other begin far apart.
            call_next: AtomicU64::new(incarnation.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            peers: Mutex::default(),
            telling: Mutex::default(),
            wake: Notify::new(),
            to_me,
            for_me: Mutex::new(Some(for_me)),
            pings_late: AtomicU64::new(0),
        })
    }

    /// Starts to deliver to the handler. Once only.
    pub fn start(self: &Arc<Self>, scope: &Scope, handler: Arc<dyn Handler>) -> io::Result<()> {
        let for_me = self.for_me.lock().take();
        let for_me = for_me.expect("a link is started once");
        let link = self.clone();
        let receiver = Arc::new(Receiver { link, handler });
        let inlet = Inlet(Arc::downgrade(&receiver));
        self.network.start(scope, Arc::new(inlet))?;
        scope.spawn(receiver.clone().deliver_to_me(for_me));
        scope.spawn(receiver.watch());
        Ok(())
    }

    /// Nodes to be connected with, and where they are; replaces the earlier
    /// list. This node may be in it.
    pub fn set_peers(&self, peers: &BTreeMap<NodeId, String>) {
        let mut others = peers.clone();
        others.remove(&self.me);
        {
            let mut known = self.peers.lock();
            for (id, peer) in known.iter_mut() {
                peer.listed = others.contains_key(id);
            }
            known.retain(|_, peer| peer.listed || peer.connected);
            for id in others.keys() {
                known.entry(*id).or_insert_with(Peer::new).listed = true;
            }
        }
        self.network.set_peers(&others);
        self.wake.notify_one();
    }

    /// Whether a call of a peer came for the first time.
    fn take(&self, from: NodeId, id: u64) -> bool {
        let mut peers = self.peers.lock();
        peers.get_mut(&from).is_none_or(|peer| peer.take(id))
    }

    /// The node that this is.
    pub fn me(&self) -> NodeId {
        self.me
    }

    /// Queues a one-way message, which may get lost.
    pub fn tell(&self, to: NodeId, message: Bytes) -> Result<(), Unsent> {
        match to == self.me {
            true => self.send_to_me(ToMe::Told(message)),
            false => self.send(to, Content::Tell(message)),
        }
    }

    /// Queues a call and gives what waits for its reply. It is queued when this
    /// returns, so calls to one peer arrive in the order they were made.
    pub fn call(
        self: &Arc<Self>,
        to: NodeId,
        message: Bytes,
        within: Duration,
    ) -> impl Future<Output = Result<Bytes, CallError>> + Send + use<> {
        let id = self.call_next.fetch_add(1, Ordering::Relaxed);
        let (reply, replied) = oneshot::channel();
        let replied = tokio::time::timeout(within, replied);
        let waiting = Waiting {
            link: self.clone(),
            to,
            id,
        };
        let sent = match to == self.me {
            true => self.send_to_me(ToMe::Called(message, reply)),
            false => self.await_reply(to, id, reply).and_then(|()| {
                let content = Content::Call { id, message };
                self.send(to, content)
            }),
        };
        async move {
            let _waiting = waiting;
            sent.map_err(|_| CallError::Unsent)?;
            match replied.await {
                Ok(Ok(reply)) => Ok(reply),
                Ok(Err(_)) => Err(CallError::Lost),
                Err(_) => Err(CallError::TimedOut),
            }
        }
    }

    /// Whether something was heard of the peer within the time after which it
    /// is suspected.
    pub fn is_alive(&self, peer: NodeId) -> bool {
        let suspect = self.timing.suspect;
        let heard = |peer: &Peer| {
            let is_there = peer.incarnation.is_some() && peer.incarnation != peer.forsaken;
            is_there && peer.heard.elapsed() < suspect
        };
        peer == self.me || self.peers.lock().get(&peer).is_some_and(heard)
    }

    /// How long a message to a peer and its answer take; `None` if none came.
    pub async fn round_trip(self: &Arc<Self>, peer: NodeId, within: Duration) -> Option<Duration> {
        let since = Instant::now();
        // A peer that doesn't know what an empty call is drops it, and says so.
        let answer = self.call(peer, Bytes::new(), within).await;
        answer.ok().map(|_| since.elapsed())
    }

    /// Pings that were late because this process was held up.
    pub fn pings_late(&self) -> u64 {
        self.pings_late.load(Ordering::Relaxed)
    }

    /// Messages of a peer that made no sense.
    pub fn garbled(&self, peer: NodeId) -> u64 {
        self.peers.lock().get(&peer).map_or(0, |peer| peer.garbled)
    }

    /// For how long the peer has been alive without a break, as this process;
    /// `None` if it isn't alive.
    pub fn alive_for(&self, peer: NodeId) -> Option<Duration> {
        let alive = self.is_alive(peer);
        let peers = self.peers.lock();
        let peer = peers.get(&peer).filter(|peer| alive && peer.up)?;
        Some(peer.up_since.elapsed())
    }

    /// Suspects a peer that has said that it ends: nothing will come of what
    /// was asked of it, and only another incarnation of it is alive again. The
    /// handler is not told.
    pub(crate) fn forsake(&self, peer: NodeId) {
        let mut peers = self.peers.lock();
        let calls = peers.get_mut(&peer).map(|peer| {
            peer.forsaken = peer.incarnation;
            peer.suspect()
        });
        drop(peers);
        drop(calls);
    }

    fn send(&self, to: NodeId, content: Content) -> Result<(), Unsent> {
        let envelope = Envelope {
            incarnation: self.incarnation,
            content,
        };
        self.network.send(to, envelope.seal())?;
        if let Some(peer) = self.peers.lock().get_mut(&to) {
            peer.sent = Instant::now();
        }
        Ok(())
    }

    fn send_to_me(&self, message: ToMe) -> Result<(), Unsent> {
        self.to_me.send(message).map_err(|_| Unsent::NotConnected)
    }

    fn await_reply(&self, to: NodeId, id: u64, reply: ReplySender) -> Result<(), Unsent> {
        let mut peers = self.peers.lock();
        let peer = peers.get_mut(&to).ok_or(Unsent::Unknown)?;
        peer.calls.insert(id, reply);
        Ok(())
    }

    fn take_call(&self, to: NodeId, id: u64) -> Option<ReplySender> {
        self.peers.lock().get_mut(&to)?.calls.remove(&id)
    }
}

/// Dropping it tells the caller that there will be no reply.
type ReplySender = oneshot::Sender<Bytes>;

/// The way back to a caller. Dropped, it tells the caller [`CallError::Lost`].
pub struct Reply(Option<Caller>);

enum Caller {
    Here(ReplySender),
    There {
        link: Arc<Link>,
        at: NodeId,
        id: u64,
    },
}

impl Reply {
    /// Answers the call. Whether the reply arrives is not known here.
    pub fn send(mut self, message: Bytes) {
        match self.0.take().expect("it is there until it is used") {
            // Nobody waits any more, or the connection is gone and the caller knows.
            Caller::Here(caller) => drop(caller.send(message)),
            Caller::There { link, at, id } => drop(link.send(at, Content::Reply { id, message })),
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if let Some(Caller::There { link, at, id }) = self.0.take() {
            let _ = link.send(at, Content::Dropped { id });
        }
    }
}

/// Forgets a call when nobody waits for it any more.
struct Waiting {
    link: Arc<Link>,
    to: NodeId,
    id: u64,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.link.take_call(self.to, self.id);
    }
}

/// What this node sends to itself.
enum ToMe {
    Told(Bytes),
    Called(Bytes, ReplySender),
}

/// A message on its way; each says which incarnation of the sender sent it.
struct Envelope {
    incarnation: u64,
    content: Content,
}

enum Content {
    Ping,
    Tell(Bytes),
    Call { id: u64, message: Bytes },
    Reply { id: u64, message: Bytes },
    Dropped { id: u64 },
}

wire!(struct Envelope { incarnation, content });
wire!(enum Content {
    0 => Ping,
    1 => Tell(message),
    2 => Call { id, message },
    3 => Reply { id, message },
    4 => Dropped { id },
});

impl Envelope {
    /// The bytes, in memory that is taken once.
    fn seal(&self) -> Bytes {
        let message_bytes = match &self.content {
            Content::Tell(message)
            | Content::Call { message, .. }
            | Content::Reply { message, .. } => message.len(),
            Content::Ping | Content::Dropped { .. } => 0,
        };
        // Three numbers of at most ten bytes and a tag go before the message.
        let mut out = Vec::with_capacity(message_bytes + 31);
        self.put(&mut out);
        out.into()
    }
}

/// A node that is in the list or connected, or both.
struct Peer {
    listed: bool,
    connected: bool,
    /// When it last was; at first, when it became known here.
    heard: Instant,
    sent: Instant,
    /// The last that was heard of.
    incarnation: Option<u64>,
    /// The one that has said that it ends.
    forsaken: Option<u64>,
    up: bool,
    /// When it came up last.
    up_since: Instant,
    suspected: bool,
    calls: BTreeMap<u64, ReplySender>,
    /// The newest calls of this incarnation that were taken.
    taken: BTreeSet<u64>,
    /// Messages that made no sense.
    garbled: u64,
}

/// Calls that are remembered, so that a repeated one is known.
const TAKEN_MAX: usize = 4096;

impl Peer {
    fn new() -> Self {
        let now = Instant::now();
        Self {
            listed: false,
            connected: false,
            heard: now,
            sent: now,
            incarnation: None,
            forsaken: None,
            up: false,
            up_since: now,
            suspected: false,
            calls: BTreeMap::new(),
            taken: BTreeSet::new(),
            garbled: 0,
        }
    }

    /// Whether a call has not been taken before; then it is now.
    fn take(&mut self, id: u64) -> bool {
        let full = self.taken.len() >= TAKEN_MAX;
        if full && self.taken.first().is_some_and(|oldest| id < *oldest) {
            return false;
        }
        let new = self.taken.insert(id);
        if new && full {
            self.taken.pop_first();
        }
        new
    }

    /// Notes that it lives; gives the event, if that is news.
    fn hear(&mut self, incarnation: u64) -> Option<PeerEvent> {
        if self.forsaken == Some(incarnation) {
            // Sent before it said so.
            return None;
        }
        self.heard = Instant::now();
        let earlier = self.incarnation.replace(incarnation);
        if self.up && earlier == Some(incarnation) {
            return None;
        }
        if earlier != Some(incarnation) {
            self.taken.clear();
        }
        (self.up, self.suspected) = (true, false);
        self.up_since = self.heard;
        Some(PeerEvent::Up {
            incarnation,
            restarted: earlier.is_some_and(|earlier| earlier != incarnation),
        })
    }

    /// Returns the calls that nobody will answer.
    fn suspect(&mut self) -> BTreeMap<u64, ReplySender> {
        (self.up, self.suspected) = (false, true);
        std::mem::take(&mut self.calls)
    }
}

/// Takes what the network delivers. Lives as long as the tasks in the scope.
struct Receiver {
    link: Arc<Link>,
    handler: Arc<dyn Handler>,
}

/// The network's way to the receiver, which does not keep it alive.
struct Inlet(Weak<Receiver>);

impl Inbox for Inlet {
    fn received(&self, from: NodeId, message: Bytes) {
        if let Some(receiver) = self.0.upgrade() {
            receiver.received(from, message);
        }
    }

    fn connected(&self, peer: NodeId) {
        if let Some(receiver) = self.0.upgrade() {
            receiver.connected(peer);
        }
    }

    fn lost(&self, peer: NodeId) {
        if let Some(receiver) = self.0.upgrade() {
            receiver.lost(peer);
        }
    }
}

impl Receiver {
    fn received(&self, from: NodeId, message: Bytes) {
        let Some(Envelope {
            incarnation,
            content,
        }) = Envelope::decode(message)
        else {
            if let Some(peer) = self.link.peers.lock().get_mut(&from) {
                peer.garbled += 1;
            }
            warn!(peer = %from, "ignoring a message that is none");
            return;
        };
        self.hear(from, incarnation);
        match content {
            Content::Ping => {}
            Content::Tell(message) => self.handler.told(from, message),
            // Only to see how long it takes.
            Content::Call { id, message } if message.is_empty() => {
                let _ = self.link.send(from, Content::Reply { id, message });
            }
            Content::Call { id, message } => {
                if !self.link.take(from, id) {
                    return;
                }
                let link = self.link.clone();
                let caller = Caller::There { link, at: from, id };
                self.handler.called(from, message, Reply(Some(caller)));
            }
            Content::Reply { id, message } => {
                if let Some(call) = self.link.take_call(from, id) {
                    let _ = call.send(message);
                }
            }
            Content::Dropped { id } => drop(self.link.take_call(from, id)),
        }
    }

    fn hear(&self, from: NodeId, incarnation: u64) {
        {
            let mut peers = self.link.peers.lock();
            match peers.get_mut(&from) {
                Some(peer) if peer.up && peer.incarnation == Some(incarnation) => {
                    peer.heard = Instant::now();
                    return;
                }
                Some(_) => {}
                None => return,
            }
        }
        let _telling = self.link.telling.lock();
        let mut peers = self.link.peers.lock();
        let event = peers.get_mut(&from).and_then(|p| p.hear(incarnation));
        drop(peers);
        if let Some(event) = event {
            self.handler.peer(from, event);
            self.link.wake.notify_one();
        }
    }

    fn connected(&self, peer: NodeId) {
        let mut peers = self.link.peers.lock();
        let known = peers.entry(peer).or_insert_with(Peer::new);
        known.connected = true;
        known.sent = Instant::now();
        drop(peers);
        // So that the peer knows at once which incarnation this is.
        let _ = self.link.send(peer, Content::Ping);
        self.link.wake.notify_one();
    }

    fn lost(&self, peer: NodeId) {
        let mut peers = self.link.peers.lock();
        let Some(known) = peers.get_mut(&peer) else {
            return;
        };
        known.connected = false;
        let calls = std::mem::take(&mut known.calls);
        if !known.listed {
            peers.remove(&peer);
        }
        drop(peers);
        drop(calls);
    }

    async fn deliver_to_me(self: Arc<Self>, mut for_me: mpsc::UnboundedReceiver<ToMe>) {
        let me = self.link.me;
        while let Some(message) = for_me.recv().await {
            match message {
                ToMe::Told(message) => self.handler.told(me, message),
                ToMe::Called(message, caller) => {
                    let caller = Caller::Here(caller);
                    self.handler.called(me, message, Reply(Some(caller)));
                }
            }
        }
    }

    /// Pings and suspects; one for all peers.
    async fn watch(self: Arc<Self>) {
        loop {
            let next = self.look();
            tokio::select! {
                biased;
                () = self.link.wake.notified() => {}
                () = tokio::time::sleep_until(next) => {}
            }
        }
    }

    /// Does what is due now; says when there is more to do.
    fn look(&self) -> Instant {
        let Timing { ping, suspect } = self.link.timing;
        let now = Instant::now();
        let mut next = now + suspect;
        let (mut quiet, mut silent) = (Vec::new(), Vec::new());
        let mut lost = Vec::new();
        let _telling = self.link.telling.lock();
        for (id, peer) in self.link.peers.lock().iter_mut() {
            if peer.connected {
                if peer.sent + ping <= now {
                    let late = peer.sent + 2 * ping <= now;
                    self.link
                        .pings_late
                        .fetch_add(u64::from(late), Ordering::Relaxed);
                    peer.sent = now;
                    quiet.push(*id);
                }
                next = next.min(peer.sent + ping);
            }
            if !peer.suspected {
                if peer.heard + suspect <= now {
                    lost.push(peer.suspect());
                    silent.push(*id);
                } else {
                    next = next.min(peer.heard + suspect);
                }
            }
        }
        drop(lost);
        for peer in quiet {
            // If the queue is full, there is enough to hear of this node.
            let _ = self.link.send(peer, Content::Ping);
        }
        for peer in silent {
            self.handler.peer(peer, PeerEvent::Suspected);
        }
        next
    }
}

/// What `docs/format.md` says of this part.
#[cfg(test)]
pub(crate) mod documented {
    use super::frame::{HEADER_BYTES, Kind, VERSION_MAX, VERSION_MIN};
    use crate::codec::{Layout, Wire};

    pub(crate) const HELLO: Layout = super::handshake::Hello::LAYOUT;

    pub(crate) const CONSTANTS: [(&str, u64); 7] = [
        ("FRAME_VERSION_MIN", VERSION_MIN as u64),
        ("FRAME_VERSION_MAX", VERSION_MAX as u64),
        ("FRAME_HEADER_BYTES", HEADER_BYTES as u64),
        ("FRAME_HELLO", Kind::Hello as u64),
        ("FRAME_TAKEN", Kind::Taken as u64),
        ("FRAME_REFUSAL", Kind::Refusal as u64),
        ("FRAME_MESSAGE", Kind::Message as u64),
    ];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_taken_once_also_from_a_peer_that_ends() {
        let mut peer = Peer::new();
        assert!(peer.hear(7).is_some());
        assert!(peer.take(1));
        peer.forsaken = peer.incarnation;
        peer.suspect();
        // What it had sent before still arrives, some of it twice.
        assert_eq!(peer.hear(7), None);
        assert!(!peer.up && !peer.take(1) && peer.take(2));
        let next = PeerEvent::Up {
            incarnation: 8,
            restarted: true,
        };
        assert_eq!(peer.hear(8), Some(next));
        assert!(peer.up && peer.take(1));
    }
}
