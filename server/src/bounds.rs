//! Bounds on the memory that clients can make this server hold: per connection
//! and for the process.
//!
//! Kept true:
//! - Counted for a connection: its open calls, the bytes of each request until
//!   its call ends, and the bytes of each response from before it is made until
//!   the socket has them.
//! - A connection beyond its share gets back-pressure or `TooManyRequests`; no
//!   other connection waits for it. The share shrinks as the process holds more.
//! - Every count is released on drop, so a closed connection holds nothing.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::atomic::{AtomicIsize, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;

use http::HeaderMap;
use parking_lot::Mutex;
use pontoon_api::Error;
use pontoon_raftgroup::DELIVERY_BYTES;
use tokio::sync::{Mutex as AsyncMutex, Notify};
use tokio::time::Instant;
use tonic::Status;

mod request_body;
mod response_body;

pub(crate) use request_body::RequestBody;
pub(crate) use response_body::ResponseBody;

/// Open calls of the process, beyond `CALLS_ALWAYS` of each connection.
const CALLS_MAX: usize = 6144;
/// Open calls that a connection may have whatever the others have.
const CALLS_ALWAYS: usize = 8;
/// Of these calls, streams, which stay open: each costs some 25 KiB.
const STREAMS_MAX: usize = 2048;
const STREAMS_ALWAYS: usize = 4;

/// Bytes of the process, requests and responses together, from which on it is
/// at each level. (What the allocator takes for them is up to half as much more.)
const HIGH_BYTES: usize = 24 << 20;
const FULL_BYTES: usize = 40 << 20;
const OVER_BYTES: usize = 48 << 20;
/// What a connection counts for itself before it tells the process.
const UNREPORTED_BYTES_MAX: isize = 32 << 10;

/// Headers and requests smaller than this are not counted: there are at most as
/// many as open calls. Nor are unary responses below `SMALL_RESPONSE_BYTES`.
const SMALL_REQUEST_BYTES: usize = 1 << 10;
const SMALL_RESPONSE_BYTES: usize = 4 << 10;
/// Streams that don't read, of which a connection's share has room.
const STREAMS_PER_SHARE: usize = 16;
/// Messages up to this size don't wait in line behind larger ones.
const PASSING_BYTES: usize = 16 << 10;
/// What the first response of a kind on a connection is expected to be, and the
/// least that any is.
const EXPECTED_BYTES_FIRST: usize = 1 << 20;
const EXPECTED_BYTES_MIN: usize = 8 << 10;

/// A connection that holds counted bytes is stalled once none of them has moved
/// for this long.
const STALLED_AFTER_MS: u64 = 5000;
/// Between two checks for stalled connections, and for room in the process.
const TICK: Duration = Duration::from_millis(25);

/// How much the process holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Low,
    High,
    /// Large messages wait, and stalled connections are closed.
    Full,
    /// Only small messages don't wait.
    Over,
}

impl Level {
    fn of(bytes: usize) -> Self {
        match bytes {
            ..HIGH_BYTES => Self::Low,
            HIGH_BYTES..FULL_BYTES => Self::High,
            FULL_BYTES..OVER_BYTES => Self::Full,
            OVER_BYTES.. => Self::Over,
        }
    }

    /// Bytes of requests, and as many of responses, that a connection may hold.
    fn share(self) -> usize {
        match self {
            Self::Low => 1 << 20,
            Self::High => 256 << 10,
            Self::Full => 64 << 10,
            Self::Over => EXPECTED_BYTES_MIN,
        }
    }

    /// Whether a connection that holds `held` may hold `more`. A message beyond
    /// the share is admitted when the connection holds nothing else, unless the
    /// process is full.
    fn admits(self, held: usize, more: usize) -> bool {
        held + more <= self.share() || (held == 0 && self < Self::Full)
    }

    /// The same for messages of a stream, which leave half of the share to other
    /// calls.
    fn admits_stream(self, held: usize, more: usize) -> bool {
        held + more <= (self.share() / 2).max(EXPECTED_BYTES_MIN)
            || (held == 0 && self < Self::Full)
    }

    /// The same for whoever is first in line, which must not starve behind
    /// smaller messages.
    fn admits_first(self, held: usize, more: usize) -> bool {
        self.admits(held, more) || (held <= self.share() / 2 && self < Self::Full)
    }
}

/// The counts of all connections together.
pub(crate) struct ProcessBounds {
    calls: AtomicUsize,
    /// Of these, streams.
    streams: AtomicUsize,
    /// What connections have reported. It may be below zero for a moment.
    bytes: AtomicIsize,
    /// Told in every tick: there may be room.
    relieved: Notify,
    /// Calls refused, and stalled connections closed, since the start.
    refused: AtomicU64,
    closed: AtomicU64,
    started: Instant,
    /// Milliseconds from `started` to the last tick.
    now_ms: AtomicU64,
    connections: Mutex<Connections>,
}

#[derive(Default)]
struct Connections {
    next: u64,
    open: BTreeMap<u64, Weak<ConnectionBounds>>,
}

/// The counts of one connection.
pub(crate) struct ConnectionBounds {
    id: u64,
    process: Arc<ProcessBounds>,
    calls: AtomicUsize,
    requests: Held,
    responses: Held,
    /// Bytes held that the process doesn't know of, or those it counts too many.
    unreported: AtomicIsize,
    /// What calls of each kind are expected to answer.
    expected: [AtomicUsize; ResponseKind::ALL.len()],
    released: Notify,
    /// When something was released last, or held after nothing was.
    moved_ms: AtomicU64,
    close: Notify,
}

/// Bytes that a connection holds, of requests or of responses.
#[derive(Default)]
struct Held {
    bytes: AtomicUsize,
    /// Messages that wait for room, and their order.
    waiting: AtomicUsize,
    line: AsyncMutex<()>,
}

/// Calls whose responses are of similar size.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ResponseKind {
    OneKey,
    ManyKeys,
    Txn,
    /// What a write has replaced.
    PrevKv,
    Page,
    /// A message of a watch.
    Events,
}

impl ResponseKind {
    const ALL: [Self; 6] = [
        Self::OneKey,
        Self::ManyKeys,
        Self::Txn,
        Self::PrevKv,
        Self::Page,
        Self::Events,
    ];

    fn expected_first(self) -> usize {
        match self {
            Self::Events => DELIVERY_BYTES,
            _ => EXPECTED_BYTES_FIRST,
        }
    }

    /// Whether a large response of this kind waits while the process is full.
    /// Writes hold their request meanwhile, so they must not wait for room that
    /// only comes when requests end; and operators need the pages then.
    fn waits_while_full(self) -> bool {
        match self {
            Self::OneKey | Self::ManyKeys | Self::Events => true,
            Self::Txn | Self::PrevKv | Self::Page => false,
        }
    }
}

/// An open call, from its headers to the last byte of its response.
pub(crate) struct OpenCall {
    connection: Arc<ConnectionBounds>,
    is_stream: bool,
    /// Bytes of its headers and its request.
    received: AtomicUsize,
    /// Response bytes that were made and have not reached the transport.
    made: AtomicUsize,
    /// Response bytes in the transport.
    unread: AtomicUsize,
}

/// Room for a response, before it is made.
pub(crate) struct Room {
    call: Arc<OpenCall>,
    bytes: usize,
}

impl ProcessBounds {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            calls: AtomicUsize::new(0),
            streams: AtomicUsize::new(0),
            bytes: AtomicIsize::new(0),
            relieved: Notify::new(),
            refused: AtomicU64::new(0),
            closed: AtomicU64::new(0),
            started: Instant::now(),
            now_ms: AtomicU64::new(0),
            connections: Mutex::default(),
        })
    }

    pub(crate) fn connect(self: &Arc<Self>) -> Arc<ConnectionBounds> {
        let mut connections = self.connections.lock();
        connections.next += 1;
        let connection = Arc::new(ConnectionBounds {
            id: connections.next,
            process: Arc::clone(self),
            calls: AtomicUsize::new(0),
            requests: Held::default(),
            responses: Held::default(),
            unreported: AtomicIsize::new(0),
            expected: ResponseKind::ALL.map(|kind| AtomicUsize::new(kind.expected_first())),
            released: Notify::new(),
            moved_ms: AtomicU64::new(self.now_ms.load(Relaxed)),
            close: Notify::new(),
        });
        let (id, weak) = (connection.id, Arc::downgrade(&connection));
        connections.open.insert(id, weak);
        connection
    }

    /// Open calls.
    pub(crate) fn calls(&self) -> usize {
        self.calls.load(Relaxed)
    }

    /// Bytes of requests and responses held for clients.
    pub(crate) fn bytes(&self) -> usize {
        usize::try_from(self.bytes.load(Relaxed)).unwrap_or(0)
    }

    /// Calls refused since the start.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Relaxed)
    }

    /// Stalled connections closed since the start.
    pub(crate) fn closed(&self) -> u64 {
        self.closed.load(Relaxed)
    }

    fn level(&self) -> Level {
        Level::of(self.bytes())
    }

    /// Keeps the time, wakes calls that wait for room in the process, and closes
    /// stalled connections while it is full. Never returns.
    pub(crate) async fn run(self: Arc<Self>) {
        loop {
            tokio::time::sleep(TICK).await;
            let now = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
            self.now_ms.store(now, Relaxed);
            match self.level() {
                Level::Low | Level::High => {}
                Level::Full | Level::Over => self.close_stalled(now),
            }
            self.relieved.notify_waiters();
        }
    }

    /// Closes the connections that have been stalled longest, until the others
    /// hold less than `FULL_BYTES`.
    fn close_stalled(&self, now_ms: u64) {
        let open: Vec<_> = {
            let connections = self.connections.lock();
            let open = connections.open.values();
            open.filter_map(Weak::upgrade).collect()
        };
        let mut stalled: Vec<_> = open
            .iter()
            .map(|connection| (connection.moved_ms.load(Relaxed), connection))
            .filter(|(moved, connection)| {
                moved + STALLED_AFTER_MS <= now_ms && connection.held() > 0
            })
            .collect();
        stalled.sort_by_key(|(moved, connection)| (*moved, connection.id));
        let excess = self.bytes().saturating_sub(FULL_BYTES);
        let (mut closed, mut bytes) = (0, 0);
        for (_, connection) in stalled {
            if bytes > excess {
                break;
            }
            bytes += connection.held();
            closed += 1;
            connection.close.notify_one();
        }
        if closed > 0 {
            self.closed.fetch_add(closed, Relaxed);
            tracing::warn!(
                connections = closed,
                bytes,
                "stalled client connections closed to free memory"
            );
        }
    }
}

impl ConnectionBounds {
    /// Admits a call. Fails with `TooManyRequests` beyond the process's bounds
    /// for calls and streams, or the connection's share for headers.
    pub(crate) fn open(
        self: &Arc<Self>,
        headers: &HeaderMap,
        is_stream: bool,
    ) -> Result<Arc<OpenCall>, Status> {
        let process = &self.process;
        let (own, streams) = (self.calls.load(Relaxed), process.streams.load(Relaxed));
        let is_beyond = (own >= CALLS_ALWAYS && process.calls() >= CALLS_MAX)
            || (is_stream && own >= STREAMS_ALWAYS && streams >= STREAMS_MAX);
        let bytes = headers_bytes(headers);
        if is_beyond || (bytes > 0 && !self.try_hold(&self.requests, bytes, Level::admits)) {
            process.refused.fetch_add(1, Relaxed);
            return Err(Error::TooManyRequests.into());
        }
        process.calls.fetch_add(1, Relaxed);
        process.streams.fetch_add(usize::from(is_stream), Relaxed);
        self.calls.fetch_add(1, Relaxed);
        Ok(Arc::new(OpenCall {
            connection: Arc::clone(self),
            is_stream,
            received: AtomicUsize::new(bytes),
            made: AtomicUsize::new(0),
            unread: AtomicUsize::new(0),
        }))
    }

    /// Waits until the connection must be closed.
    pub(crate) async fn closed(&self) {
        self.close.notified().await;
    }

    fn expected(&self, kind: ResponseKind) -> usize {
        self.expected[kind as usize].load(Relaxed)
    }

    fn held(&self) -> usize {
        self.requests.bytes.load(Relaxed) + self.responses.bytes.load(Relaxed)
    }

    fn try_hold(&self, held: &Held, bytes: usize, admits: fn(Level, usize, usize) -> bool) -> bool {
        let admitted = admits(self.process.level(), held.bytes.load(Relaxed), bytes);
        if admitted {
            self.count(held, bytes);
        }
        admitted
    }

    /// Waits until `bytes` more may be held. Large messages wait in line.
    async fn hold(&self, held: &Held, bytes: usize) {
        let may_pass = bytes <= PASSING_BYTES || held.waiting.load(Relaxed) == 0;
        if may_pass && self.try_hold(held, bytes, Level::admits) {
            return;
        }
        let _waiting = Waiting::new(self, held);
        let _first = held.line.lock().await;
        self.until(|| self.try_hold(held, bytes, Level::admits_first))
            .await;
    }

    /// Waits until something that may come true with a release does.
    async fn until(&self, mut holds: impl FnMut() -> bool) {
        loop {
            // They hear all that is told from here on.
            let released = self.released.notified();
            let relieved = self.process.relieved.notified();
            if holds() {
                return;
            }
            tokio::select! {
                () = released => {}
                () = relieved => {}
            }
        }
    }

    fn count(&self, held: &Held, bytes: usize) {
        if held.bytes.fetch_add(bytes, Relaxed) == 0 {
            self.touch();
        }
        self.report(bytes.cast_signed());
    }

    fn release(&self, held: &Held, bytes: usize) {
        held.bytes.fetch_sub(bytes, Relaxed);
        self.touch();
        self.report(-bytes.cast_signed());
        self.released.notify_waiters();
    }

    /// Notes that counted bytes have moved.
    fn touch(&self) {
        let now = self.process.now_ms.load(Relaxed);
        self.moved_ms.store(now, Relaxed);
    }

    fn report(&self, more: isize) {
        let unreported = self.unreported.fetch_add(more, Relaxed) + more;
        if unreported.abs() >= UNREPORTED_BYTES_MAX {
            let unreported = self.unreported.swap(0, Relaxed);
            self.process.bytes.fetch_add(unreported, Relaxed);
        }
    }
}

impl Drop for ConnectionBounds {
    fn drop(&mut self) {
        let unreported = *self.unreported.get_mut();
        self.process.bytes.fetch_add(unreported, Relaxed);
        self.process.connections.lock().open.remove(&self.id);
    }
}

/// A message that waits; dropped when it doesn't any more.
struct Waiting<'a> {
    connection: &'a ConnectionBounds,
    held: &'a Held,
}

impl<'a> Waiting<'a> {
    fn new(connection: &'a ConnectionBounds, held: &'a Held) -> Self {
        held.waiting.fetch_add(1, Relaxed);
        Self { connection, held }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.held.waiting.fetch_sub(1, Relaxed);
        self.connection.released.notify_waiters();
    }
}

impl OpenCall {
    /// Waits until the call may make a response of a kind, and takes the room
    /// that responses of its kind needed lately.
    pub(crate) async fn expect(self: &Arc<Self>, kind: ResponseKind) -> Room {
        let connection = &self.connection;
        let mut bytes = connection.expected(kind);
        if !kind.waits_while_full() {
            bytes = bytes.min(connection.process.level().share());
        }
        connection.hold(&connection.responses, bytes).await;
        self.room(bytes)
    }

    /// Waits until another message of a watch may be made, and takes the room
    /// that such messages needed lately. It has no place in line, so it may be
    /// left unpolled.
    pub(crate) async fn expect_events(self: &Arc<Self>) -> Room {
        let mut room = None;
        let reserve = || {
            room = self.try_expect_events();
            room.is_some()
        };
        self.connection.until(reserve).await;
        room.expect("it was reserved")
    }

    /// The same without waiting.
    pub(crate) fn try_expect_events(self: &Arc<Self>) -> Option<Room> {
        let connection = &self.connection;
        let bytes = connection.expected(ResponseKind::Events);
        // One stream must not take what all streams of a connection share.
        let own = self.made.load(Relaxed) + self.unread.load(Relaxed);
        let may_hold = own <= connection.process.level().share() / STREAMS_PER_SHARE
            && connection.try_hold(&connection.responses, bytes, Level::admits_stream);
        may_hold.then(|| self.room(bytes))
    }

    /// Counts a message that was made.
    pub(crate) fn made(&self, bytes: usize) {
        let connection = &self.connection;
        connection.count(&connection.responses, bytes);
        self.made.fetch_add(bytes, Relaxed);
    }

    fn room(self: &Arc<Self>, bytes: usize) -> Room {
        let call = Arc::clone(self);
        Room { call, bytes }
    }

    /// Makes a response and counts it. One that is larger than expected and does
    /// not fit is dropped and made again when it does. `make` must be repeatable.
    pub(crate) async fn make<T, E, F: Future<Output = Result<T, E>>>(
        self: &Arc<Self>,
        kind: ResponseKind,
        make: impl Fn() -> F,
        bytes: impl Fn(&T) -> usize,
    ) -> Result<T, E> {
        let room = self.expect(kind).await;
        let response = make().await?;
        let needed = bytes(&response);
        self.learn(kind, needed);
        if room.fits(needed) {
            room.fill(needed);
            return Ok(response);
        }
        drop((room, response));
        let connection = &self.connection;
        connection.hold(&connection.responses, needed).await;
        let room = self.room(needed);
        let response = make().await?;
        room.fill(bytes(&response));
        Ok(response)
    }

    /// Notes how large a response of a kind is: the next one is expected to be
    /// as large, or half as large as this one was expected to be.
    pub(crate) fn learn(&self, kind: ResponseKind, bytes: usize) {
        let expected = &self.connection.expected[kind as usize];
        let before = expected.load(Relaxed);
        let now = bytes.max(before / 2).max(EXPECTED_BYTES_MIN);
        if now != before {
            expected.store(now, Relaxed);
        }
    }

    /// Waits until the client has read enough of a stream for another message.
    async fn until_read(&self) {
        self.connection.until(|| self.is_read()).await;
    }

    /// Whether the client has read enough of a stream for another message: its
    /// connection is within its share, or has read all of this stream and is
    /// within twice its share, so that streams don't block each other.
    fn is_read(&self) -> bool {
        let connection = &self.connection;
        let (held, share) = (
            connection.responses.bytes.load(Relaxed),
            connection.process.level().share(),
        );
        let own = self.made.load(Relaxed) + self.unread.load(Relaxed);
        held < share || (own == 0 && held < 2 * share)
    }

    /// Moves response bytes to the transport. They are counted until the
    /// charge is dropped.
    fn send(self: &Arc<Self>, bytes: usize) -> Charge {
        let made = self.made.load(Relaxed).min(bytes);
        self.made.fetch_sub(made, Relaxed);
        self.unread.fetch_add(bytes, Relaxed);
        if bytes > made {
            let connection = &self.connection;
            connection.count(&connection.responses, bytes - made);
        }
        Charge {
            call: Arc::clone(self),
            bytes,
        }
    }

    /// Waits until the first part of a request may be received: at most a few
    /// requests whose size is known wait for room.
    async fn until_receivable(&self) {
        self.connection.until(|| self.is_receivable()).await;
    }

    fn is_receivable(&self) -> bool {
        let connection = &self.connection;
        let requests = &connection.requests;
        let share = connection.process.level().share();
        requests.waiting.load(Relaxed) == 0 && requests.bytes.load(Relaxed) < share
    }

    /// Waits for room for `bytes` of a request, and counts them.
    async fn receive(&self, bytes: usize) {
        let connection = &self.connection;
        connection.hold(&connection.requests, bytes).await;
        self.received.fetch_add(bytes, Relaxed);
    }

    /// The same without waiting; false if there is no room.
    fn try_receive(&self, bytes: usize) -> bool {
        let connection = &self.connection;
        let requests = &connection.requests;
        let may_pass = requests.waiting.load(Relaxed) == 0;
        let received = may_pass && connection.try_hold(requests, bytes, Level::admits);
        if received {
            self.received.fetch_add(bytes, Relaxed);
        }
        received
    }

    /// Releases `bytes` of the request.
    fn release_request(&self, bytes: usize) {
        self.received.fetch_sub(bytes, Relaxed);
        let connection = &self.connection;
        connection.release(&connection.requests, bytes);
    }
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        let (received, made) = (*self.received.get_mut(), *self.made.get_mut());
        let connection = &self.connection;
        if received > 0 {
            connection.release(&connection.requests, received);
        }
        if made > 0 {
            connection.release(&connection.responses, made);
        }
        connection.calls.fetch_sub(1, Relaxed);
        let process = &connection.process;
        process.calls.fetch_sub(1, Relaxed);
        process
            .streams
            .fetch_sub(usize::from(self.is_stream), Relaxed);
    }
}

impl Room {
    /// Whether a response that has been made may be held.
    fn fits(&self, needed: usize) -> bool {
        let connection = &self.call.connection;
        let others = connection.responses.bytes.load(Relaxed) - self.bytes;
        needed <= self.bytes || connection.process.level().admits(others, needed)
    }

    /// Counts a response of `bytes` for its call, in place of the room.
    pub(crate) fn fill(self, bytes: usize) {
        self.call.made(bytes);
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let connection = &self.call.connection;
        connection.release(&connection.responses, self.bytes);
    }
}

/// Response bytes in the transport.
struct Charge {
    call: Arc<OpenCall>,
    bytes: usize,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.call.unread.fetch_sub(self.bytes, Relaxed);
        let connection = &self.call.connection;
        connection.release(&connection.responses, self.bytes);
    }
}

/// Bytes to count for the headers of a call.
fn headers_bytes(headers: &HeaderMap) -> usize {
    let bytes = headers
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len());
    match bytes.sum() {
        ..SMALL_REQUEST_BYTES => 0,
        bytes => bytes,
    }
}

#[cfg(test)]
mod tests;
