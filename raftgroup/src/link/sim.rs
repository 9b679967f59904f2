//! A network in memory that delays, loses, repeats and cuts by seed.
//!
//! Kept true:
//! - One seed and one order of calls give one behaviour, in a runtime of one
//!   thread with a paused clock: nothing depends on addresses or the time of day.
//! - Two nodes have one connection, once both are started, one of them lists
//!   the other, and nothing is cut between them. Each side is told of it, and
//!   that it is lost, a latency later. What belongs to an earlier connection,
//!   or to an earlier start of a node, is never delivered.
//! - In one direction messages arrive in the order sent, except for duplicates.
//!   A lost message is missing from the middle, which TCP would not do.
//! - A cut is silent: messages vanish, the connection stays.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use pontoon_wal::disk::sim::Rng;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::network::{Inbox, Network, Unsent};
use crate::position::NodeId;
use crate::runtime::Scope;

/// The simulated network of a whole cluster.
pub struct SimNetwork {
    start: Instant,
    state: Mutex<State>,
}

/// What happened to messages so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SimCounts {
    /// Accepted from senders.
    pub sent: u64,
    /// Of those and their duplicates, not delivered for whatever reason.
    pub dropped: u64,
    /// Sent twice.
    pub duplicated: u64,
}

/// A message that arrives, as it is shown to a trace.
#[derive(Clone, Copy, Debug)]
pub struct SimDelivery<'a> {
    /// Since the network was made.
    pub at: Duration,
    /// Who sent it.
    pub from: NodeId,
    /// Who receives it.
    pub to: NodeId,
    /// The length of the message.
    pub bytes: usize,
    /// Its first 32 bytes, or all.
    pub head: &'a [u8],
}

/// Is shown each message that arrives; must not use the network.
type Trace = Box<dyn FnMut(SimDelivery<'_>) + Send>;

impl SimNetwork {
    /// A network without faults, of the time of the runtime that it is made in;
    /// `seed` decides latencies and faults.
    #[must_use]
    pub fn new(seed: u64) -> Arc<Self> {
        Arc::new(Self {
            start: Instant::now(),
            state: Mutex::new(State {
                rng: Rng::new(seed),
                latency: Duration::from_micros(100)..=Duration::from_millis(2),
                loss: 0.0,
                duplication: 0.0,
                nodes: BTreeMap::new(),
                paths: BTreeMap::new(),
                isolated: BTreeSet::new(),
                connections: BTreeMap::new(),
                number_next: 0,
                counts: SimCounts::default(),
                trace: None,
            }),
        })
    }

    /// The network as a node sees it from now on; what it had before is killed.
    pub fn node(self: &Arc<Self>, id: NodeId) -> Arc<dyn Network> {
        let mut state = self.state.lock();
        state.kill(id);
        let attachment = state.number();
        state.nodes.insert(id, Node::new(attachment));
        Arc::new(SimNode {
            network: self.clone(),
            id,
            attachment,
        })
    }

    /// All to and from the node vanishes, and its peers see the connection lost
    /// unless a cut hides it. Best before the node's scope ends, so that what
    /// ends there says nothing.
    pub fn kill(&self, node: NodeId) {
        self.state.lock().kill(node);
    }

    /// How long messages sent from now on travel; 100 µs to 2 ms unless told.
    /// They are delivered at the next whole millisecond of tokio's timer, in
    /// order of their exact time.
    pub fn set_latency(&self, latency: RangeInclusive<Duration>) {
        assert!(!latency.is_empty(), "no latency is in {latency:?}");
        self.state.lock().latency = latency;
    }

    /// How likely a message vanishes.
    pub fn set_loss(&self, probability: f64) {
        self.state.lock().loss = probability;
    }

    /// How likely a message arrives twice, the second time up to ten latencies late.
    pub fn set_duplication(&self, probability: f64) {
        self.state.lock().duplication = probability;
    }

    /// Messages sent from now on in this direction travel so much longer.
    pub fn set_slow(&self, from: NodeId, to: NodeId, extra: Duration) {
        self.state.lock().path(from, to).slow = extra;
    }

    /// Messages in this direction vanish, those on their way too.
    pub fn cut(&self, from: NodeId, to: NodeId) {
        self.state.lock().path(from, to).cut = true;
    }

    /// Ends what [`SimNetwork::cut`] began.
    pub fn heal(&self, from: NodeId, to: NodeId) {
        let mut state = self.state.lock();
        state.path(from, to).cut = false;
        state.connect();
    }

    /// Cuts the node off from all others, those to come too.
    pub fn isolate(&self, node: NodeId) {
        self.state.lock().isolated.insert(node);
    }

    /// Ends what [`SimNetwork::isolate`] began; other cuts stay.
    pub fn rejoin(&self, node: NodeId) {
        let mut state = self.state.lock();
        state.isolated.remove(&node);
        state.connect();
    }

    /// Ends all cuts and isolations; loss, duplication and slowness stay.
    pub fn heal_all(&self) {
        let mut state = self.state.lock();
        state.isolated.clear();
        for path in state.paths.values_mut() {
            path.cut = false;
        }
        state.connect();
    }

    /// Ends the connection of two nodes, and what is on its way with it; both
    /// see that it is lost, then a new one.
    pub fn reset(&self, one: NodeId, other: NodeId) {
        let mut state = self.state.lock();
        state.disconnect(one, other);
        state.connect();
    }

    /// What happened to messages so far.
    pub fn counts(&self) -> SimCounts {
        self.state.lock().counts
    }

    /// Shows each message that arrives from now on to `trace`, which must not
    /// use the network.
    pub fn set_trace(&self, trace: Option<Trace>) {
        self.state.lock().trace = trace;
    }

    /// Brings a node what is for it, until the node is another.
    async fn deliver(self: Arc<Self>, node: NodeId, attachment: u64, inbox: Arc<dyn Inbox>) {
        loop {
            let step = self.state.lock().step(node, attachment, self.start);
            match step {
                Step::Deliver(Event::Message { from, message, .. }) => {
                    inbox.received(from, message);
                }
                Step::Deliver(Event::Connected { peer, .. }) => inbox.connected(peer),
                Step::Deliver(Event::Lost { peer, .. }) => inbox.lost(peer),
                Step::Wait(wake, None) => wake.notified().await,
                Step::Wait(wake, Some(at)) => tokio::select! {
                    biased;
                    () = wake.notified() => {}
                    () = tokio::time::sleep_until(at) => {}
                },
                Step::End => return,
            }
        }
    }
}

/// One start of a node.
struct SimNode {
    network: Arc<SimNetwork>,
    id: NodeId,
    attachment: u64,
}

impl Network for SimNode {
    fn start(&self, scope: &Scope, inbox: Arc<dyn Inbox>) -> io::Result<()> {
        let network = self.network.clone();
        let mut state = network.state.lock();
        if let Some(node) = state.attached(self.id, self.attachment) {
            node.started = true;
            state.connect();
        }
        drop(state);
        scope.spawn(network.deliver(self.id, self.attachment, inbox));
        Ok(())
    }

    fn send(&self, to: NodeId, message: Bytes) -> Result<(), Unsent> {
        let mut state = self.network.state.lock();
        let node = state.attached(self.id, self.attachment);
        let node = node.ok_or(Unsent::NotConnected)?;
        match (node.open.get(&to).copied(), node.listed.contains(&to)) {
            (Some(connection), _) => state.send(self.id, to, connection, message),
            (None, true) => return Err(Unsent::NotConnected),
            (None, false) => return Err(Unsent::Unknown),
        }
        Ok(())
    }

    fn set_peers(&self, peers: &BTreeMap<NodeId, String>) {
        let mut state = self.network.state.lock();
        if let Some(node) = state.attached(self.id, self.attachment) {
            node.listed = peers.keys().copied().collect();
            state.connect();
        }
    }
}

struct State {
    rng: Rng,
    latency: RangeInclusive<Duration>,
    loss: f64,
    duplication: f64,
    nodes: BTreeMap<NodeId, Node>,
    /// By sender and receiver.
    paths: BTreeMap<(NodeId, NodeId), Path>,
    isolated: BTreeSet<NodeId>,
    /// By the lower and the higher of two nodes.
    connections: BTreeMap<(NodeId, NodeId), u64>,
    /// Next number of an attachment, a connection or an event.
    number_next: u64,
    counts: SimCounts,
    trace: Option<Trace>,
}

struct Node {
    attachment: u64,
    started: bool,
    listed: BTreeSet<NodeId>,
    /// The connections that it was told of, and not that they are lost.
    open: BTreeMap<NodeId, u64>,
    /// What it will be told, by time and number.
    arriving: BTreeMap<(Instant, u64), Event>,
    wake: Arc<Notify>,
}

impl Node {
    fn new(attachment: u64) -> Self {
        Self {
            attachment,
            started: false,
            listed: BTreeSet::new(),
            open: BTreeMap::new(),
            arriving: BTreeMap::new(),
            wake: Arc::new(Notify::new()),
        }
    }
}

/// One direction between two nodes.
#[derive(Default)]
struct Path {
    cut: bool,
    slow: Duration,
    /// When the last thing sent arrives: the next does not overtake it.
    last: Option<Instant>,
}

enum Event {
    Connected {
        peer: NodeId,
        connection: u64,
    },
    Lost {
        peer: NodeId,
        connection: u64,
    },
    Message {
        from: NodeId,
        connection: u64,
        message: Bytes,
    },
}

/// What the task that delivers to a node does next.
enum Step {
    Deliver(Event),
    Wait(Arc<Notify>, Option<Instant>),
    End,
}

impl State {
    fn number(&mut self) -> u64 {
        self.number_next += 1;
        self.number_next
    }

    /// The node, if this is still its attachment.
    fn attached(&mut self, id: NodeId, attachment: u64) -> Option<&mut Node> {
        let node = self.nodes.get_mut(&id);
        node.filter(|node| node.attachment == attachment)
    }

    fn path(&mut self, from: NodeId, to: NodeId) -> &mut Path {
        self.paths.entry((from, to)).or_default()
    }

    fn passes(&self, from: NodeId, to: NodeId) -> bool {
        let cut = self.paths.get(&(from, to)).is_some_and(|path| path.cut);
        !cut && !self.isolated.contains(&from) && !self.isolated.contains(&to)
    }

    fn happens(&mut self, probability: f64) -> bool {
        // 53 bits are what an f64 has.
        let drawn = (self.rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
        drawn < probability
    }

    /// When something sent now arrives; not before what was sent earlier.
    fn arrival(&mut self, from: NodeId, to: NodeId) -> Instant {
        let (min, max) = (*self.latency.start(), *self.latency.end());
        let nanos = u64::try_from((max - min).as_nanos()).unwrap_or(u64::MAX - 1);
        let latency = min + Duration::from_nanos(self.rng.below(nanos + 1));
        let path = self.path(from, to);
        let at = Instant::now() + latency + path.slow;
        *path.last.insert(path.last.map_or(at, |last| last.max(at)))
    }

    fn send(&mut self, from: NodeId, to: NodeId, connection: u64, message: Bytes) {
        self.counts.sent += 1;
        let at = self.arrival(from, to);
        let lost = self.happens(self.loss);
        let duplicated = self.happens(self.duplication);
        let latency_max = u64::try_from(self.latency.end().as_nanos()).unwrap_or(u64::MAX);
        let late = self.rng.below(latency_max.saturating_mul(10).max(1));
        if lost || !self.passes(from, to) || !self.is_current(from, to, connection) {
            self.counts.dropped += 1;
            return;
        }
        let event = |message| Event::Message {
            from,
            connection,
            message,
        };
        if duplicated {
            self.counts.duplicated += 1;
            self.schedule(to, at + Duration::from_nanos(late), event(message.clone()));
        }
        self.schedule(to, at, event(message));
    }

    fn schedule(&mut self, node: NodeId, at: Instant, event: Event) {
        let number = self.number();
        if let Some(node) = self.nodes.get_mut(&node) {
            node.arriving.insert((at, number), event);
            node.wake.notify_one();
        }
    }

    fn is_current(&self, one: NodeId, other: NodeId, connection: u64) -> bool {
        self.connections.get(&pair(one, other)) == Some(&connection)
    }

    /// Makes the connections that should be and ends those that should not.
    fn connect(&mut self) {
        let started = self.nodes.iter().filter(|(_, node)| node.started);
        let ids: Vec<NodeId> = started.map(|(id, _)| *id).collect();
        for (place, &low) in ids.iter().enumerate() {
            for &high in &ids[place + 1..] {
                let lists = |one, other| self.nodes[&one].listed.contains(&other);
                let wanted = lists(low, high) || lists(high, low);
                let connected = self.connections.contains_key(&(low, high));
                let passes = self.passes(low, high) && self.passes(high, low);
                match (wanted, connected) {
                    (true, false) if passes => self.connect_pair(low, high),
                    (false, true) => self.disconnect(low, high),
                    _ => {}
                }
            }
        }
    }

    fn connect_pair(&mut self, low: NodeId, high: NodeId) {
        let connection = self.number();
        self.connections.insert((low, high), connection);
        // Both at once: what one sends then reaches the other later.
        let at = self.arrival(low, high).max(self.arrival(high, low));
        for (node, peer) in [(low, high), (high, low)] {
            self.path(peer, node).last = Some(at);
            self.schedule(node, at, Event::Connected { peer, connection });
        }
    }

    fn disconnect(&mut self, one: NodeId, other: NodeId) {
        let Some(connection) = self.connections.remove(&pair(one, other)) else {
            return;
        };
        for (node, peer) in [(one, other), (other, one)] {
            if self.passes(peer, node) {
                let at = self.arrival(peer, node);
                self.schedule(node, at, Event::Lost { peer, connection });
            }
        }
    }

    fn kill(&mut self, id: NodeId) {
        let Some(node) = self.nodes.remove(&id) else {
            return;
        };
        node.wake.notify_one();
        let messages = node.arriving.values();
        let messages = messages.filter(|event| matches!(event, Event::Message { .. }));
        self.counts.dropped += messages.count() as u64;
        let peers: Vec<NodeId> = self.nodes.keys().copied().collect();
        for peer in peers {
            self.disconnect(id, peer);
        }
    }

    /// The next thing to be done for a node; notes it as done.
    fn step(&mut self, id: NodeId, attachment: u64, start: Instant) -> Step {
        let now = Instant::now();
        while let Some(node) = self.attached(id, attachment) {
            let Some(next) = node.arriving.first_entry() else {
                return Step::Wait(node.wake.clone(), None);
            };
            let (at, number) = *next.key();
            if at > now {
                return Step::Wait(node.wake.clone(), Some(at));
            }
            let event = next.remove();
            match &event {
                Event::Connected { peer, connection } => {
                    let (peer, connection) = (*peer, *connection);
                    if !self.is_current(id, peer, connection) {
                        continue;
                    }
                    let node = self.attached(id, attachment).expect("it was just there");
                    // The end of the earlier connection was hidden by a cut.
                    if let Some(connection) = node.open.remove(&peer) {
                        node.arriving.insert((at, number), event);
                        return Step::Deliver(Event::Lost { peer, connection });
                    }
                    node.open.insert(peer, connection);
                }
                Event::Lost { peer, connection } => {
                    if node.open.get(peer) != Some(connection) {
                        continue;
                    }
                    node.open.remove(peer);
                }
                Event::Message {
                    from,
                    connection,
                    message,
                } => {
                    let open = node.open.get(from) == Some(connection);
                    let current = self.is_current(id, *from, *connection);
                    if !open || !current || !self.passes(*from, id) {
                        self.counts.dropped += 1;
                        continue;
                    }
                    self.show(now - start, *from, id, message);
                }
            }
            return Step::Deliver(event);
        }
        Step::End
    }

    fn show(&mut self, at: Duration, from: NodeId, to: NodeId, message: &Bytes) {
        if let Some(trace) = &mut self.trace {
            trace(SimDelivery {
                at,
                from,
                to,
                bytes: message.len(),
                head: &message[..message.len().min(32)],
            });
        }
    }
}

fn pair(one: NodeId, other: NodeId) -> (NodeId, NodeId) {
    (one.min(other), one.max(other))
}
