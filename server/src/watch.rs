//! Watches: one task for each stream, which has all watchers of it.
//!
//! Kept true:
//! - Every request to create is answered once, in order, before any event.
//! - Whatever is sent goes through one queue of a few responses, and is counted
//!   for its connection. If the client doesn't take them, the task waits, and
//!   its watchers hold positions, not events.
//! - A sign of progress at a revision is sent after all events up to it and
//!   before any later one.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use pontoon_api::encoded::WatchResponse;
use pontoon_api::encoded::watch_server::Watch;
use pontoon_api::etcdserverpb::watch_request::RequestUnion;
use pontoon_api::etcdserverpb::{WatchCancelRequest, WatchCreateRequest, WatchRequest};
use pontoon_api::{CancelReason, Error};
use pontoon_engine::{Event, KeyRange, Revision};
use pontoon_raftgroup::Delivery;
use prost::Message;
use tokio::sync::Notify;
use tokio::time::Instant;
use tonic::{Code, Request, Response, Status, Streaming};

use crate::bounds::{OpenCall, ResponseKind, Room};
use crate::calls::Rpc;
use crate::host::{Host, needs_leader};
use crate::metrics::Present;
use crate::stream_queue::{Receiver, Sender, stream_queue};

mod encoded;
mod pieces;
mod watcher;

use watcher::Watcher;

/// Responses that may wait for the client.
const QUEUE_RESPONSES_MAX: usize = 4;
/// How long watchers have to reach a revision that was asked for.
const PATIENCE: Duration = Duration::from_millis(100);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(1);
/// The watch id of a response that is about the whole stream, or about none.
const NO_WATCH: i64 = -1;
/// What gRPC puts before a message.
const MESSAGE_HEAD_BYTES: usize = 5;

pub(crate) struct WatchService(pub(crate) Arc<Host>);

type Queue = Sender<Result<WatchResponse, Status>>;

#[tonic::async_trait]
impl Watch for WatchService {
    type WatchStream = Receiver<Result<WatchResponse, Status>>;

    async fn watch(
        &self,
        request: Request<Streaming<WatchRequest>>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let mut call = self.0.open(Rpc::Watch, request.metadata())?;
        let needs_leader = needs_leader(request.metadata());
        let open = request.extensions().get().cloned();
        let (out, responses) = stream_queue(QUEUE_RESPONSES_MAX);
        let host = Arc::clone(&self.0);
        tokio::spawn(async move {
            let _open = Present::new(&host.tallies.watch_streams);
            let mut session = Session::new(Arc::clone(&host), open, out.clone());
            let error = tokio::select! {
                Gone = session.run(request.into_inner()) => return,
                () = out.closed() => return,
                () = host.leaderless(needs_leader) => Error::NoLeader,
                () = host.stop.ordered() => Error::Stopped,
            };
            call.end(error.code());
            // Nobody listens any more: fine.
            let _ = out.send(Err(error.into())).await;
        });
        Ok(Response::new(responses))
    }
}

/// The client doesn't listen any more, or this member has ended.
struct Gone;

/// What a watcher came back with.
enum Step {
    /// A delivery, and the room that was reserved for it.
    Delivery(Delivery, Option<Room>),
    /// It was called.
    Nudged,
    /// The node has ended.
    Ended,
}

/// What the stream knows of a watcher.
struct Known {
    /// Calls it back.
    nudge: Arc<Notify>,
    /// Tells watchers apart that had the same id one after the other.
    serial: u64,
    _present: Present,
}

/// One stream.
struct Session {
    host: Arc<Host>,
    /// Counts what is sent; none if nobody counts.
    open: Option<Arc<OpenCall>>,
    out: Queue,
    known: BTreeMap<i64, Known>,
    /// All watchers that wait for something.
    waiting: FuturesUnordered<BoxFuture<'static, (Watcher, Step)>>,
    id_next: i64,
    serial_next: u64,
    /// The highest revision of any event or sign of progress that was sent.
    sent: Revision,
}

impl Session {
    fn new(host: Arc<Host>, open: Option<Arc<OpenCall>>, out: Queue) -> Self {
        Self {
            host,
            open,
            out,
            known: BTreeMap::new(),
            waiting: FuturesUnordered::new(),
            id_next: 0,
            serial_next: 0,
            sent: Revision(0),
        }
    }

    async fn run(&mut self, mut requests: Streaming<WatchRequest>) -> Gone {
        let mut notify = tokio::time::interval(self.notify_every());
        notify.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        notify.reset();
        let mut open = true;
        loop {
            let done = tokio::select! {
                request = requests.message(), if open => match request {
                    Ok(Some(request)) => {
                        let count = self.host.calls.of(Rpc::Watch);
                        count.received.fetch_add(1, Relaxed);
                        // (Boxed, as what is rare: every stream has room for the rest.)
                        Box::pin(self.handle(request)).await
                    }
                    // The client has no more requests, but still listens.
                    Ok(None) => {
                        open = false;
                        Ok(())
                    }
                    Err(status) => {
                        if status.code() != Code::Cancelled {
                            self.host.tallies.watch_failures.fetch_add(1, Relaxed);
                        }
                        Err(Gone)
                    }
                },
                Some((watcher, step)) = self.waiting.next(), if !self.waiting.is_empty() => {
                    self.came_back(watcher, step).await
                }
                _ = notify.tick() => Box::pin(self.notify()).await,
            };
            if let Err(gone) = done {
                return gone;
            }
        }
    }

    /// Not all streams at the same time.
    fn notify_every(&self) -> Duration {
        let every = self.host.limits.progress_notify;
        let chance = RandomState::new().hash_one(()) as u8;
        every + every / 10 * u32::from(chance) / u32::from(u8::MAX)
    }

    async fn handle(&mut self, request: WatchRequest) -> Result<(), Gone> {
        match request.request_union {
            Some(RequestUnion::CreateRequest(request)) => self.create(request).await,
            Some(RequestUnion::CancelRequest(request)) => self.cancel(request).await,
            Some(RequestUnion::ProgressRequest(_)) => self.progress().await,
            None => Ok(()),
        }
    }

    async fn create(&mut self, request: WatchCreateRequest) -> Result<(), Gone> {
        let keys = keys_of(&request);
        let refused = match &keys {
            _ if request.start_revision < 0 => Some(CancelReason::Compacted),
            None => Some(CancelReason::RangeEmpty),
            Some(_) if self.known.contains_key(&request.watch_id) && request.watch_id != 0 => {
                Some(CancelReason::DuplicateId)
            }
            Some(_) => None,
        };
        let (Some(keys), None) = (keys, refused) else {
            let reason = refused.map_or("", CancelReason::text);
            let refusal = self.refusal(reason);
            return self.send_control(refusal).await;
        };
        let id = match request.watch_id {
            0 => self.id_free(),
            id => id,
        };
        let nudge = Arc::new(Notify::new());
        let serial = self.serial_next;
        self.serial_next += 1;
        let known = Known {
            nudge: Arc::clone(&nudge),
            serial,
            _present: Present::new(&self.host.tallies.watchers),
        };
        self.known.insert(id, known);
        let newest = self.host.newest();
        let watcher = Watcher::new(&self.host.node, id, serial, keys, &request, newest, nudge);
        let created = WatchResponse {
            header: self.host.header(newest),
            watch_id: id,
            created: true,
            ..WatchResponse::default()
        };
        self.send_control(created).await?;
        self.wait_for(watcher);
        Ok(())
    }

    fn refusal(&self, reason: &str) -> WatchResponse {
        WatchResponse {
            header: self.host.header_now(),
            watch_id: NO_WATCH,
            created: true,
            canceled: true,
            cancel_reason: reason.to_owned(),
            ..WatchResponse::default()
        }
    }

    fn id_free(&mut self) -> i64 {
        while self.known.contains_key(&self.id_next) {
            self.id_next += 1;
        }
        self.id_next += 1;
        self.id_next - 1
    }

    /// One that isn't known gets no answer.
    async fn cancel(&mut self, request: WatchCancelRequest) -> Result<(), Gone> {
        let Some(known) = self.known.remove(&request.watch_id) else {
            return Ok(());
        };
        // It comes back, and isn't known any more.
        known.nudge.notify_one();
        let canceled = WatchResponse {
            header: self.host.header_now(),
            watch_id: request.watch_id,
            canceled: true,
            ..WatchResponse::default()
        };
        self.send_control(canceled).await
    }

    fn wait_for(&mut self, mut watcher: Watcher) {
        let open = self.open.clone();
        self.waiting.push(Box::pin(async move {
            let nudge = Arc::clone(&watcher.nudge);
            let newest = Revision(i64::MAX);
            let step = tokio::select! {
                biased;
                () = nudge.notified() => Step::Nudged,
                next = watcher.stream.next_in(newest, || room(open.clone())) => match next {
                    Some((delivery, room)) => Step::Delivery(delivery, room.flatten()),
                    None => Step::Ended,
                },
            };
            (watcher, step)
        }));
    }

    fn is_known(&self, watcher: &Watcher) -> bool {
        let known = self.known.get(&watcher.id);
        known.is_some_and(|known| known.serial == watcher.serial)
    }

    async fn came_back(&mut self, watcher: Watcher, step: Step) -> Result<(), Gone> {
        if let Some(watcher) = self.take(watcher, step).await? {
            self.wait_for(watcher);
        }
        Ok(())
    }

    /// Sends what a watcher came back with; `None` if it has ended.
    async fn take(&mut self, mut watcher: Watcher, step: Step) -> Result<Option<Watcher>, Gone> {
        if !self.is_known(&watcher) {
            return Ok(None);
        }
        match step {
            Step::Nudged => Ok(Some(watcher)),
            Step::Delivery(Delivery::Events(events), room) => {
                // Counted from here on as what is sent.
                drop(room);
                self.send_events(&mut watcher, events).await?;
                Ok(Some(watcher))
            }
            Step::Delivery(Delivery::Compacted(floor), _) => {
                self.send_compacted(watcher.id, floor).await?;
                Ok(None)
            }
            Step::Ended => Err(Gone),
        }
    }

    async fn send(&mut self, response: WatchResponse) -> Result<(), Gone> {
        if let Some(open) = &self.open {
            open.made(response.encoded_len() + MESSAGE_HEAD_BYTES);
        }
        self.out.send(Ok(response)).await.map_err(|_| Gone)?;
        self.host.calls.of(Rpc::Watch).sent.fetch_add(1, Relaxed);
        Ok(())
    }

    /// Sends what is no event.
    async fn send_control(&mut self, response: WatchResponse) -> Result<(), Gone> {
        let since = Instant::now();
        self.send(response).await?;
        let took = &self.host.tallies.watch_sends.control;
        took.record_time(since.elapsed());
        Ok(())
    }

    async fn send_events(&mut self, watcher: &mut Watcher, events: Vec<Event>) -> Result<(), Gone> {
        let Some(last) = events.last().map(|event| event.change.revision) else {
            return Ok(());
        };
        let events = watcher.wanted(events);
        if events.is_empty() {
            return Ok(());
        }
        let count = events.len() as u64;
        self.host.tallies.events.fetch_add(count, Relaxed);
        watcher.has_sent = true;
        self.sent = self.sent.max(last);
        let newest = self.host.newest().max(last);
        let response = WatchResponse {
            header: self.host.header(watcher.tells(last, newest)),
            watch_id: watcher.id,
            events,
            ..WatchResponse::default()
        };
        if let Some(open) = &self.open {
            open.learn(ResponseKind::Events, response.encoded_len());
        }
        let bytes_max = self.host.limits.request_bytes_max + (512 << 10);
        let since = Instant::now();
        match watcher.fragment {
            false => self.send(response).await?,
            true => {
                for piece in pieces::cut(response, bytes_max) {
                    self.send(piece).await?;
                }
            }
        }
        let (took, sends) = (since.elapsed(), &self.host.tallies.watch_sends);
        sends.events.record_time(took);
        sends.event.record_time(took.div_f64(count as f64));
        Ok(())
    }

    /// The client still has to cancel it, so its id stays.
    async fn send_compacted(&mut self, id: i64, floor: Revision) -> Result<(), Gone> {
        let canceled = WatchResponse {
            header: self.host.header(Revision(0)),
            watch_id: id,
            canceled: true,
            compact_revision: floor.0,
            ..WatchResponse::default()
        };
        self.send_control(canceled).await
    }

    /// Calls all watchers back.
    async fn gather(&mut self) -> Result<Vec<Watcher>, Gone> {
        for known in self.known.values() {
            known.nudge.notify_one();
        }
        let mut here = Vec::new();
        while let Some((watcher, step)) = self.waiting.next().await {
            here.extend(self.take(watcher, step).await?);
        }
        Ok(here)
    }

    /// A sign for the whole stream, if all its watchers can be brought to one
    /// revision.
    async fn progress(&mut self) -> Result<(), Gone> {
        let here = self.gather().await?;
        let wanted = self.host.newest().max(self.sent);
        // One that a compaction ended holds all signs back until it is cancelled.
        let mut reached = !here.is_empty() && here.len() == self.known.len();
        let deadline = Instant::now() + PATIENCE;
        let mut later = Vec::new();
        let mut left = Vec::new();
        for mut watcher in here {
            if watcher.is_future(wanted) {
                reached = false;
                left.push(watcher);
                continue;
            }
            match self.advance(&mut watcher, wanted, deadline).await? {
                Advanced::Reached(held) => {
                    if !held.is_empty() {
                        later.push((watcher.id, held));
                    }
                    left.push(watcher);
                }
                Advanced::NotYet => {
                    reached = false;
                    left.push(watcher);
                }
                Advanced::Ended => reached = false,
            }
        }
        if reached {
            self.sent = wanted;
            let response = WatchResponse {
                header: self.host.header(wanted),
                watch_id: NO_WATCH,
                ..WatchResponse::default()
            };
            self.send_control(response).await?;
        }
        for mut watcher in left {
            let held = later.iter_mut().find(|(id, _)| *id == watcher.id);
            if let Some((_, events)) = held {
                let events = std::mem::take(events);
                self.send_events(&mut watcher, events).await?;
            }
            self.wait_for(watcher);
        }
        Ok(())
    }

    /// Has a watcher deliver all up to a revision; what is above is returned.
    async fn advance(
        &mut self,
        watcher: &mut Watcher,
        through: Revision,
        deadline: Instant,
    ) -> Result<Advanced, Gone> {
        while watcher.stream.delivered() < through {
            let room = self.open.as_ref().map(OpenCall::try_expect_events);
            if let Some(None) = room {
                return Ok(Advanced::NotYet);
            }
            // It does what it can at once; nothing is lost if it is dropped.
            let next = watcher.stream.next().now_or_never();
            drop(room);
            match next {
                Some(Some(Delivery::Events(mut events))) => {
                    let at = events.partition_point(|event| event.change.revision <= through);
                    let above = events.split_off(at);
                    self.send_events(watcher, events).await?;
                    if !above.is_empty() {
                        return Ok(Advanced::Reached(above));
                    }
                }
                Some(Some(Delivery::Compacted(floor))) => {
                    self.send_compacted(watcher.id, floor).await?;
                    return Ok(Advanced::Ended);
                }
                Some(None) => return Err(Gone),
                None if Instant::now() >= deadline => return Ok(Advanced::NotYet),
                None if watcher.stream.delivered() < through => tokio::time::sleep(LOOK).await,
                None => {}
            }
            if Instant::now() >= deadline && watcher.stream.delivered() < through {
                return Ok(Advanced::NotYet);
            }
        }
        Ok(Advanced::Reached(Vec::new()))
    }

    /// A sign for each watcher that wants one and heard nothing lately.
    async fn notify(&mut self) -> Result<(), Gone> {
        let since = Instant::now();
        let here = self.gather().await?;
        let newest = self.host.newest();
        let deadline = Instant::now() + PATIENCE;
        for mut watcher in here {
            let quiet = !std::mem::take(&mut watcher.has_sent);
            if watcher.progress_notify && quiet && !watcher.is_future(newest) {
                match self.advance(&mut watcher, newest, deadline).await? {
                    Advanced::Reached(held) => {
                        let at = match held.first() {
                            Some(event) => event.change.revision.previous(),
                            None => watcher.stream.delivered(),
                        };
                        self.sent = self.sent.max(at);
                        let progress = WatchResponse {
                            header: self.host.header(at),
                            watch_id: watcher.id,
                            ..WatchResponse::default()
                        };
                        self.send(progress).await?;
                        self.send_events(&mut watcher, held).await?;
                    }
                    Advanced::NotYet => {}
                    Advanced::Ended => continue,
                }
            }
            self.wait_for(watcher);
        }
        let took = &self.host.tallies.watch_sends.progress;
        took.record_time(since.elapsed());
        Ok(())
    }
}

/// Waits for room for a delivery: until then a watcher holds a position, not
/// events.
async fn room(open: Option<Arc<OpenCall>>) -> Option<Room> {
    Some(open?.expect_events().await)
}

/// How far a watcher came.
enum Advanced {
    /// All that was wanted is sent; these are above it.
    Reached(Vec<Event>),
    NotYet,
    Ended,
}

/// The keys that are watched; `None` if there can be none.
fn keys_of(request: &WatchCreateRequest) -> Option<KeyRange> {
    let key = match request.key.is_empty() {
        true => Bytes::from_static(b"\0"),
        false => request.key.clone(),
    };
    let keys = KeyRange::new(key, request.range_end.clone());
    (!keys.is_empty()).then_some(keys)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_those_of_etcd() {
        let keys = |key: &'static str, range_end: &'static str| {
            keys_of(&WatchCreateRequest {
                key: key.into(),
                range_end: range_end.into(),
                ..WatchCreateRequest::default()
            })
        };
        assert_eq!(keys("", ""), Some(KeyRange::one("\0")));
        assert_eq!(keys("", "\0"), Some(KeyRange::all()));
        assert_eq!(keys("a", "b"), Some(KeyRange::new("a", "b")));
        assert_eq!(keys("b", "a"), None);
        assert_eq!(keys("a", "a"), None);
    }
}
