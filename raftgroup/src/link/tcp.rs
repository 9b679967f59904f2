//! The network over TCP.
//!
//! Kept true:
//! - One connection carries all messages of two nodes. Either may dial; which
//!   connection stays is decided in `handshake.rs`.
//! - One task for each peer makes all calls of the inbox that concern it, so
//!   they never overlap. A peer that stalls or is gone holds up only itself.
//! - A peer is in the table as long as its task runs: as long as it is listed
//!   or connected.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::{debug, info, warn};

use super::frame::{Frames, Kind};
use super::handshake::{self, Identity, NotGreeted};
use super::network::{Inbox, Network, Unsent};
use super::outbox::Outbox;
use crate::position::NodeId;
use crate::runtime::Scope;

/// Strangers that may be greeted at a time.
const GREETINGS_MAX: usize = 64;

/// Who this node is, and its limits.
#[derive(Clone, Copy, Debug)]
pub struct TcpConfig {
    /// This node.
    pub me: NodeId,
    /// Nodes of other clusters are refused.
    pub cluster: u128,
    /// Differs at every start of the process.
    pub incarnation: u64,
    /// Most bytes that wait for one peer.
    pub queue_bytes_max: usize,
    /// The longest message that is sent or received; must be less than 4 GiB.
    pub message_bytes_max: usize,
    /// How long connecting and greeting may take.
    pub greeting_max: Duration,
    /// A connection that brings nothing for so long is given up; must be longer
    /// than any pause that a living peer makes.
    pub silence_max: Duration,
    /// The pause before a peer is dialled again grows from this…
    pub pause_min: Duration,
    /// …to this.
    pub pause_max: Duration,
}

impl TcpConfig {
    /// With the usual limits.
    #[must_use]
    pub fn new(me: NodeId, cluster: u128, incarnation: u64) -> Self {
        Self {
            me,
            cluster,
            incarnation,
            queue_bytes_max: 64 << 20,
            message_bytes_max: 64 << 20,
            greeting_max: Duration::from_secs(5),
            silence_max: Duration::from_secs(10),
            pause_min: Duration::from_millis(10),
            pause_max: Duration::from_secs(1),
        }
    }
}

/// A stream of bytes between two nodes.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> Stream for T {}

/// What lies between TCP and the messages: nothing, or encryption.
pub trait Wrap: Send + Sync + 'static {
    /// Wraps a connection that this node made to a peer.
    fn connect(
        &self,
        stream: TcpStream,
        to: NodeId,
    ) -> BoxFuture<'static, io::Result<Box<dyn Stream>>>;

    /// Wraps a connection that was made to this node.
    fn accept(&self, stream: TcpStream) -> BoxFuture<'static, io::Result<Box<dyn Stream>>>;
}

/// Nothing but TCP.
#[derive(Debug)]
pub struct Plain;

impl Wrap for Plain {
    fn connect(
        &self,
        stream: TcpStream,
        _: NodeId,
    ) -> BoxFuture<'static, io::Result<Box<dyn Stream>>> {
        self.accept(stream)
    }

    fn accept(&self, stream: TcpStream) -> BoxFuture<'static, io::Result<Box<dyn Stream>>> {
        Box::pin(async { Ok(Box::new(stream) as Box<dyn Stream>) })
    }
}

/// This node's end of TCP connections to others.
pub struct TcpNetwork {
    shared: Arc<Shared>,
    address: SocketAddr,
    /// Until it is started.
    listeners: Mutex<Option<Vec<StdListener>>>,
}

impl TcpNetwork {
    /// Listens at `address`; answers once it is started.
    pub fn bind(
        address: impl ToSocketAddrs,
        config: TcpConfig,
        wrap: impl Wrap,
    ) -> io::Result<Arc<Self>> {
        Self::new(vec![StdListener::bind(address)?], config, wrap)
    }

    /// Answers at each of the listeners, of which there must be one or more,
    /// once it is started.
    pub fn new(
        listeners: Vec<StdListener>,
        config: TcpConfig,
        wrap: impl Wrap,
    ) -> io::Result<Arc<Self>> {
        for listener in &listeners {
            listener.set_nonblocking(true)?;
        }
        let first = listeners.first().ok_or(io::ErrorKind::InvalidInput)?;
        let identity = Identity {
            me: config.me,
            cluster: config.cluster,
            incarnation: config.incarnation,
            version_min: handshake::VERSION_MIN,
            version_max: handshake::VERSION_MAX,
            number_next: AtomicU64::new(1),
        };
        Ok(Arc::new(Self {
            address: first.local_addr()?,
            listeners: Mutex::new(Some(listeners)),
            shared: Arc::new(Shared {
                config,
                identity,
                wrap: Box::new(wrap),
                state: Mutex::default(),
                refusal_last: Mutex::default(),
            }),
        }))
    }

    /// Where its first listener is.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Network for TcpNetwork {
    fn start(&self, scope: &Scope, inbox: Arc<dyn Inbox>) -> io::Result<()> {
        let listeners = self.listeners.lock().take();
        let listeners = listeners.expect("a network is started once").into_iter();
        let listeners = listeners.map(TcpListener::from_std);
        let listeners = listeners.collect::<io::Result<Vec<_>>>()?;
        let greetings = Arc::new(Semaphore::new(GREETINGS_MAX));
        // Held while accepting begins: whoever is accepted must find it running.
        let mut state = self.shared.state.lock();
        for listener in listeners {
            let (shared, greetings) = (self.shared.clone(), greetings.clone());
            scope.spawn(shared.accept(listener, greetings, scope.clone()));
        }
        let scope = scope.clone();
        state.running = Some(Running { scope, inbox });
        let listed = std::mem::take(&mut state.listed_early);
        self.shared.list(&mut state, &listed);
        Ok(())
    }

    fn send(&self, to: NodeId, message: Bytes) -> Result<(), Unsent> {
        if message.len() > self.shared.config.message_bytes_max {
            return Err(Unsent::TooLong);
        }
        let outbox = {
            let state = self.shared.state.lock();
            let peer = state.peers.get(&to).ok_or(Unsent::Unknown)?;
            peer.outbox.clone().ok_or(Unsent::NotConnected)?
        };
        outbox.push(message)
    }

    fn set_peers(&self, peers: &BTreeMap<NodeId, String>) {
        let mut state = self.shared.state.lock();
        match state.running {
            Some(_) => self.shared.list(&mut state, peers),
            None => state.listed_early = peers.clone(),
        }
    }
}

type Greeted = handshake::Greeted<Box<dyn Stream>>;

struct Shared {
    config: TcpConfig,
    identity: Identity,
    wrap: Box<dyn Wrap>,
    state: Mutex<State>,
    /// What the last stranger was told, so that the same is not logged each time.
    refusal_last: Mutex<String>,
}

#[derive(Default)]
struct State {
    running: Option<Running>,
    /// The list that was set before the start.
    listed_early: BTreeMap<NodeId, String>,
    peers: BTreeMap<NodeId, Peer>,
}

#[derive(Clone)]
struct Running {
    scope: Scope,
    inbox: Arc<dyn Inbox>,
}

struct Peer {
    /// Where it is, if it is listed.
    address: Option<String>,
    /// There is one while it is connected.
    outbox: Option<Arc<Outbox>>,
    news: mpsc::UnboundedSender<News>,
}

/// What a peer's task is told.
enum News {
    Greeted(Greeted),
    /// The connection that it dialled came to nothing.
    NotGreeted(NotGreeted),
    /// It was taken off the list; it may be on it again.
    Unlisted,
}

impl Shared {
    fn list(self: &Arc<Self>, state: &mut State, peers: &BTreeMap<NodeId, String>) {
        for (id, peer) in &mut state.peers {
            let before = std::mem::replace(&mut peer.address, peers.get(id).cloned());
            if before.is_some() && peer.address.is_none() {
                let _ = peer.news.send(News::Unlisted);
            }
        }
        for (id, address) in peers {
            if !state.peers.contains_key(id) {
                self.add(state, *id, Some(address.clone()));
            }
        }
    }

    fn add(self: &Arc<Self>, state: &mut State, id: NodeId, address: Option<String>) {
        let (news, receiver) = mpsc::unbounded_channel();
        let outbox = None;
        let peer = Peer {
            address,
            outbox,
            news,
        };
        state.peers.insert(id, peer);
        let running = state
            .running
            .clone()
            .expect("peers are added after the start");
        let keeper = Keeper {
            shared: self.clone(),
            id,
            scope: running.scope.clone(),
            inbox: running.inbox,
            news: receiver,
            failures: 0,
            complaint: String::new(),
        };
        running.scope.spawn(keeper.run());
    }

    async fn accept(
        self: Arc<Self>,
        listener: TcpListener,
        greetings: Arc<Semaphore>,
        scope: Scope,
    ) {
        loop {
            let (stream, from) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    // Of the process, such as no descriptors left: it may pass.
                    warn!(%error, "can't accept connections from nodes");
                    sleep(self.config.pause_max).await;
                    continue;
                }
            };
            let Ok(greeting) = greetings.clone().try_acquire_owned() else {
                debug!(%from, "too many strangers at once");
                continue;
            };
            let shared = self.clone();
            scope.spawn(async move {
                match shared.greet(stream, None).await {
                    Ok(greeted) => shared.hand_over(greeted),
                    Err(error) => shared.complain(from, &error),
                }
                drop(greeting);
            });
        }
    }

    async fn greet(&self, stream: TcpStream, to: Option<NodeId>) -> Result<Greeted, NotGreeted> {
        let greeting = async {
            stream.set_nodelay(true)?;
            let stream = match to {
                Some(peer) => self.wrap.connect(stream, peer).await?,
                None => self.wrap.accept(stream).await?,
            };
            let mut greeted = self.identity.greet(stream, to).await?;
            greeted.frames.allow(self.config.message_bytes_max);
            Ok(greeted)
        };
        let greeted = timeout(self.config.greeting_max, greeting).await;
        greeted.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()))
    }

    /// Gives a connection to its peer's task.
    fn hand_over(self: &Arc<Self>, greeted: Greeted) {
        let mut state = self.state.lock();
        if !state.peers.contains_key(&greeted.peer) {
            self.add(&mut state, greeted.peer, None);
        }
        let _ = state.peers[&greeted.peer].news.send(News::Greeted(greeted));
    }

    fn complain(&self, from: SocketAddr, error: &NotGreeted) {
        let reason = error.to_string();
        let mut last = self.refusal_last.lock();
        match matches!(error, NotGreeted::Refused(_)) && *last != reason {
            true => warn!(%from, %reason, "refused a connection"),
            false => debug!(%from, %reason, "refused a connection"),
        }
        *last = reason;
    }
}

/// The task of one peer.
struct Keeper {
    shared: Arc<Shared>,
    id: NodeId,
    scope: Scope,
    inbox: Arc<dyn Inbox>,
    news: mpsc::UnboundedReceiver<News>,
    /// Dialled in vain so often since the last connection that lasted.
    failures: u32,
    /// What was logged last.
    complaint: String,
}

/// Why a connection ended.
enum End {
    Lost(io::Error),
    Replaced(Greeted),
    Unlisted,
}

impl Keeper {
    async fn run(mut self) {
        let mut next = None;
        loop {
            let greeted = match next.take() {
                Some(greeted) => greeted,
                None => match self.connect().await {
                    Some(greeted) => greeted,
                    None => return,
                },
            };
            next = self.keep(greeted).await;
        }
    }

    /// Waits for a connection and dials meanwhile; `None` if the peer is listed
    /// no longer.
    async fn connect(&mut self) -> Option<Greeted> {
        loop {
            let news = match self.address() {
                Some(address) => self.dial(&address).await,
                None => self.news_or_leave()?,
            };
            match news {
                News::Greeted(greeted) => return Some(greeted),
                News::NotGreeted(error) => self.complain(&error),
                News::Unlisted => {}
            }
        }
    }

    fn address(&self) -> Option<String> {
        self.shared.state.lock().peers[&self.id].address.clone()
    }

    /// Takes the peer out of the table, if nobody has put news or an address there.
    fn news_or_leave(&mut self) -> Option<News> {
        let mut state = self.shared.state.lock();
        let news = self.news.try_recv().ok();
        if news.is_none() && state.peers[&self.id].address.is_none() {
            state.peers.remove(&self.id);
            return None;
        }
        Some(news.unwrap_or(News::Unlisted))
    }

    /// Dials once, after a pause; gives the outcome, or what came meanwhile.
    async fn dial(&mut self, address: &str) -> News {
        let pause = self.pause();
        let greeting_max = self.shared.config.greeting_max;
        let connect = async {
            sleep(pause).await;
            let connected = timeout(greeting_max, TcpStream::connect(address)).await;
            connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
        };
        let stream = tokio::select! {
            biased;
            news = self.news.recv() => return news.expect("the table has the sender"),
            stream = connect => stream,
        };
        self.failures += 1;
        let stream = match stream {
            Ok(stream) => stream,
            Err(error) => return News::NotGreeted(error.into()),
        };
        // In a task of its own, because half a greeting must not be dropped
        // when another connection comes: the peer may count on this one.
        let (shared, id) = (self.shared.clone(), self.id);
        self.scope.spawn(async move {
            let news = match shared.greet(stream, Some(id)).await {
                Ok(greeted) => News::Greeted(greeted),
                Err(error) => News::NotGreeted(error),
            };
            if let Some(peer) = shared.state.lock().peers.get(&id) {
                let _ = peer.news.send(news);
            }
        });
        loop {
            match self.news.recv().await.expect("the table has the sender") {
                News::Unlisted if self.address().is_some() => {}
                news => return news,
            }
        }
    }

    /// Grows with the failures, and differs from node to node.
    fn pause(&self) -> Duration {
        let config = &self.shared.config;
        let pause = config.pause_min * 2_u32.saturating_pow(self.failures.min(20));
        let pause = pause.min(config.pause_max).as_nanos() as u64;
        let half = pause / 2;
        Duration::from_nanos(half + self.scope.random() % (half + 1))
    }

    fn complain(&mut self, error: &NotGreeted) {
        let (peer, reason) = (self.id, error.to_string());
        match error {
            _ if reason == self.complaint => debug!(%peer, %reason, "can't connect"),
            NotGreeted::Io(_) => info!(%peer, %reason, "can't connect"),
            NotGreeted::Refused(_) | NotGreeted::RefusedByPeer(_) => {
                warn!(%peer, %reason, "can't connect");
            }
        }
        self.complaint = reason;
    }

    /// Uses a connection to its end; gives the one that takes its place.
    async fn keep(&mut self, greeted: Greeted) -> Option<Greeted> {
        let (peer, incarnation) = (self.id, greeted.incarnation);
        info!(%peer, incarnation, "connected");
        self.complaint.clear();
        let since = Instant::now();
        let outbox = Outbox::new(self.shared.config.queue_bytes_max);
        self.set_outbox(Some(outbox.clone()));
        self.inbox.connected(peer);
        let end = self.converse(greeted, &outbox).await;
        self.set_outbox(None);
        outbox.close();
        self.inbox.lost(peer);
        if since.elapsed() > self.shared.config.pause_max {
            self.failures = 0;
        }
        match end {
            End::Lost(error) if error.kind() == io::ErrorKind::InvalidData => {
                warn!(%peer, reason = %error, "closed the connection");
            }
            End::Lost(error) => info!(%peer, reason = %error, "lost the connection"),
            End::Unlisted => info!(%peer, "closed the connection, the peer is listed no longer"),
            End::Replaced(greeted) => return Some(greeted),
        }
        None
    }

    fn set_outbox(&self, outbox: Option<Arc<Outbox>>) {
        let mut state = self.shared.state.lock();
        let peer = state.peers.get_mut(&self.id);
        peer.expect("it is there as long as its task").outbox = outbox;
    }

    async fn converse(&mut self, greeted: Greeted, outbox: &Arc<Outbox>) -> End {
        let current = (greeted.incarnation, greeted.number);
        let mut frames = greeted.frames;
        let mut writing = self
            .scope
            .spawn(outbox.clone().write_to(greeted.writer, greeted.version));
        let silence_max = self.shared.config.silence_max;
        let mut heard = Instant::now();
        let silence = sleep(silence_max);
        tokio::pin!(silence);
        let end = loop {
            // The greeting may have brought the first of them.
            if let Err(error) = self.receive(&mut frames) {
                break End::Lost(error);
            }
            tokio::select! {
                biased;
                news = self.news.recv() => match news.expect("the table has the sender") {
                    News::Greeted(greeted) if greeted.replaces(current) => {
                        break End::Replaced(greeted);
                    }
                    News::Unlisted if self.address().is_none() => break End::Unlisted,
                    _ => {}
                },
                written = &mut writing => {
                    let written = written.unwrap_or_else(|ended| Err(io::Error::other(ended)));
                    let error = written.err().unwrap_or(io::ErrorKind::BrokenPipe.into());
                    return End::Lost(error);
                }
                read = frames.fill() => match read {
                    Ok(()) => heard = Instant::now(),
                    Err(error) => break End::Lost(error),
                },
                () = &mut silence => {
                    if heard.elapsed() >= silence_max {
                        break End::Lost(io::ErrorKind::TimedOut.into());
                    }
                    silence.set(sleep_until(heard + silence_max));
                }
            }
        };
        writing.abort();
        end
    }

    fn receive<R: AsyncRead + Unpin>(&self, frames: &mut Frames<R>) -> io::Result<()> {
        while let Some(frame) = frames.take()? {
            if frame.kind != Kind::Message {
                let reason = format!("it said {:?} after the greeting", frame.kind);
                return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
            }
            self.inbox.received(self.id, frame.body);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::super::frame;
    use super::*;

    const ME: NodeId = NodeId(2);
    const STRANGER: NodeId = NodeId(1);

    #[derive(Debug, PartialEq, Eq)]
    enum Seen {
        Received(Bytes),
        Connected,
        Lost,
    }

    struct Recorder(mpsc::UnboundedSender<Seen>);

    impl Inbox for Recorder {
        fn received(&self, from: NodeId, message: Bytes) {
            assert_eq!(from, STRANGER);
            self.0.send(Seen::Received(message)).unwrap();
        }

        fn connected(&self, _: NodeId) {
            self.0.send(Seen::Connected).unwrap();
        }

        fn lost(&self, _: NodeId) {
            self.0.send(Seen::Lost).unwrap();
        }
    }

    fn network(silence_max: Duration) -> (Arc<TcpNetwork>, Scope, mpsc::UnboundedReceiver<Seen>) {
        let config = TcpConfig {
            message_bytes_max: 1000,
            silence_max,
            ..TcpConfig::new(ME, 9, 1)
        };
        let network = TcpNetwork::bind("127.0.0.1:0", config, Plain).unwrap();
        let (sender, seen) = mpsc::unbounded_channel();
        let scope = Scope::new(1);
        network.start(&scope, Arc::new(Recorder(sender))).unwrap();
        (network, scope, seen)
    }

    /// What comes sooner or later, or the test fails.
    async fn soon<T>(coming: impl Future<Output = T>) -> T {
        let came = timeout(Duration::from_secs(30), coming).await;
        came.expect("what should have come by now")
    }

    async fn greet(network: &TcpNetwork, incarnation: u64, number: u64) -> Greeted {
        let identity = Identity {
            me: STRANGER,
            cluster: 9,
            incarnation,
            version_min: 1,
            version_max: 1,
            number_next: number.into(),
        };
        let stream = TcpStream::connect(network.address()).await.unwrap();
        let stream: Box<dyn Stream> = Box::new(stream);
        identity.greet(stream, Some(ME)).await.ok().unwrap()
    }

    async fn write(to: &mut Greeted, kind: Kind, body: &[u8], damage: usize) {
        let mut out = Vec::new();
        frame::put(frame::VERSION_MAX, kind, body, &mut out);
        if let Some(byte) = out.get_mut(damage) {
            *byte ^= 1;
        }
        to.writer.write_all(&out).await.unwrap();
    }

    #[tokio::test]
    async fn a_bad_frame_ends_the_connection() {
        let (network, _scope, mut seen) = network(Duration::MAX / 4);
        const NO_DAMAGE: usize = usize::MAX;
        for (kind, body, damage) in [
            (Kind::Message, &[1; 10][..], 0),
            (Kind::Message, &[1; 10], 8),
            (Kind::Message, &[1; 10], 15),
            (Kind::Message, &[1; 1001], NO_DAMAGE),
            (Kind::Hello, &[1; 10], NO_DAMAGE),
        ] {
            let mut stranger = greet(&network, 1, 1).await;
            write(&mut stranger, Kind::Message, b"good", NO_DAMAGE).await;
            write(&mut stranger, kind, body, damage).await;
            assert_eq!(soon(seen.recv()).await, Some(Seen::Connected));
            assert_eq!(soon(seen.recv()).await, Some(Seen::Received("good".into())));
            assert_eq!(
                soon(seen.recv()).await,
                Some(Seen::Lost),
                "{kind:?} {damage}"
            );
            assert!(
                soon(stranger.frames.next()).await.is_err(),
                "it is still open"
            );
        }
    }

    #[tokio::test]
    async fn of_two_connections_the_one_with_the_higher_number_stays() {
        let (network, _scope, mut seen) = network(Duration::MAX / 4);
        let mut kept = greet(&network, 1, 5).await;
        assert_eq!(soon(seen.recv()).await, Some(Seen::Connected));
        let mut older = greet(&network, 1, 4).await;
        assert!(soon(older.frames.next()).await.is_err(), "the older stayed");
        write(&mut kept, Kind::Message, b"kept", usize::MAX).await;
        assert_eq!(soon(seen.recv()).await, Some(Seen::Received("kept".into())));
        let mut newer = greet(&network, 1, 6).await;
        assert!(
            soon(kept.frames.next()).await.is_err(),
            "the newer did not replace it"
        );
        let mut restarted = greet(&network, 2, 1).await;
        assert!(
            soon(newer.frames.next()).await.is_err(),
            "a dead process stayed"
        );
        write(&mut restarted, Kind::Message, b"again", usize::MAX).await;
        for _ in 0..2 {
            assert_eq!(soon(seen.recv()).await, Some(Seen::Lost));
            assert_eq!(soon(seen.recv()).await, Some(Seen::Connected));
        }
        assert_eq!(
            soon(seen.recv()).await,
            Some(Seen::Received("again".into()))
        );
        network.send(STRANGER, "back".into()).unwrap();
        assert_eq!(soon(restarted.frames.next()).await.unwrap().body, "back");
    }

    #[tokio::test]
    async fn a_silent_connection_is_given_up() {
        let (network, _scope, mut seen) = network(Duration::from_millis(20));
        let mut stranger = greet(&network, 1, 1).await;
        assert_eq!(soon(seen.recv()).await, Some(Seen::Connected));
        assert_eq!(soon(seen.recv()).await, Some(Seen::Lost));
        assert!(soon(stranger.frames.next()).await.is_err());
        // It is not listed, so it is forgotten.
        let forgotten = async {
            while network.send(STRANGER, Bytes::new()) != Err(Unsent::Unknown) {
                tokio::task::yield_now().await;
            }
        };
        soon(forgotten).await;
    }

    #[tokio::test]
    async fn who_speaks_no_protocol_is_shown_out_and_the_listener_lives() {
        use tokio::io::AsyncReadExt;
        let (network, _scope, mut seen) = network(Duration::MAX / 4);
        for junk in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 100], &[0xff; 100]] {
            let mut stream = TcpStream::connect(network.address()).await.unwrap();
            stream.write_all(junk).await.unwrap();
            let mut answer = Vec::new();
            // With an end or a reset.
            let _ = stream.read_to_end(&mut answer).await;
            assert!(answer.is_empty());
        }
        let _stranger = greet(&network, 1, 1).await;
        assert_eq!(soon(seen.recv()).await, Some(Seen::Connected));
    }
}
