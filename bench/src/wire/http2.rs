//! A client's half of HTTP/2, as much as gRPC needs of it: what it costs must
//! not be seen beside what a server costs.
//!
//! Requests are appended to one buffer, which leaves in one system call when
//! all clients that were answered together have asked again.
//!
//! Kept true: no more is sent than the server's windows allow, and what is
//! received is given back. A stream ends once, with its own failure or with that
//! of the connection; who drops one that has not ended resets it.

mod frames;
mod hpack;
mod socket;

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};
use h2::Reason;
use http::StatusCode;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use super::failure::Failure;
use super::messages::Messages;
use frames::{Frame, Kind, Setting, flag, take_frame, write_head, write_settings};
use hpack::{Asking, Blocks, Said};
pub(super) use socket::Socket;

/// What the server may send before it is given back, in one stream and in all.
const STREAM_WINDOW_BYTES: u32 = 1 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;
/// The windows that there are before anybody says otherwise.
const WINDOW_BYTES: u32 = 65_535;
/// The longest frame that we take and send.
const FRAME_BYTES_MAX: usize = 16_384;
/// An answer is collected in memory.
const ANSWER_BYTES_MAX: usize = 256 << 20;
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A connection, shared by its clients and by who drives it.
#[derive(Clone)]
pub(super) struct Http2(Arc<Mutex<State>>);

impl Http2 {
    /// Begins to speak on a socket. The future that comes back does all reading
    /// and writing.
    pub(super) fn begin(
        socket: Socket,
        authority: &str,
    ) -> (Self, impl Future<Output = ()> + Send + use<>) {
        let is_secure = matches!(socket, Socket::Secure(..));
        let mut state = State::new(authority, is_secure);
        state.out.extend_from_slice(PREFACE);
        write_settings(
            &mut state.out,
            &[
                (Setting::HeaderTableSize, 0),
                (Setting::EnablePush, 0),
                (Setting::InitialWindowSize, STREAM_WINDOW_BYTES),
            ],
        );
        state.give_back(0, CONNECTION_WINDOW_BYTES - WINDOW_BYTES);
        let state = Arc::new(Mutex::new(state));
        let driver = Driver {
            socket,
            state: Arc::clone(&state),
            input: BytesMut::new(),
            output: Vec::new(),
            written: 0,
        };
        (Self(state), driver)
    }

    /// Returns when the server has said its settings, or never will.
    pub(super) async fn settled(&self) -> Result<(), Failure> {
        poll_fn(|context| {
            let mut state = self.0.lock();
            match &state.ended {
                Some(failure) => Poll::Ready(Err(failure.clone())),
                None if state.settled => Poll::Ready(Ok(())),
                None => {
                    state.ready.push_back(context.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// Requests say from now on who asks.
    pub(super) fn set_token(&self, token: String) {
        self.0.lock().asking.set_token(token);
    }

    /// Opens a stream with its first message, which is its only one if `last`.
    pub(super) async fn open(
        &self,
        path: &'static str,
        message: Bytes,
        last: bool,
    ) -> Result<Stream, Failure> {
        let id = poll_fn(|context| self.0.lock().poll_open(path, last, context)).await?;
        self.0.lock().send(id, message, last);
        Ok(Stream {
            connection: self.clone(),
            id,
        })
    }
}

/// A stream that was opened.
pub(super) struct Stream {
    connection: Http2,
    id: u32,
}

impl Stream {
    /// The next message; none at the good end.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, Failure> {
        poll_fn(|context| self.connection.0.lock().poll_next(self.id, context)).await
    }

    /// The only message.
    pub(super) async fn only(self) -> Result<Bytes, Failure> {
        poll_fn(|context| self.connection.0.lock().poll_only(self.id, context)).await
    }

    /// Returns when the server has begun to answer.
    pub(super) async fn begun(&mut self) -> Result<(), Failure> {
        poll_fn(|context| self.connection.0.lock().poll_begun(self.id, context)).await
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.connection.0.lock().close(self.id);
    }
}

/// What is known of one stream.
#[derive(Default)]
struct Incoming {
    waker: Option<Waker>,
    messages: Messages,
    /// What its first headers say of the end, if they are all there is.
    head: Option<Said>,
    /// How it ended.
    end: Option<Result<(), Failure>>,
    received: usize,
    /// Nobody takes anything of it before it has ended.
    is_collected: bool,
    /// Received and not given back.
    owed: u32,
    /// What may still be sent.
    window: i64,
    /// Something of it waits for a window.
    waits: bool,
}

/// What waits until it may be sent.
struct Outgoing {
    id: u32,
    rest: Bytes,
    last: bool,
}

struct State {
    out: Vec<u8>,
    driver: Option<Waker>,
    blocks: Blocks,
    asking: Asking,
    streams: FxHashMap<u32, Incoming>,
    next_id: u32,
    /// Those who wait until a stream may be opened.
    ready: VecDeque<Waker>,
    streams_max: usize,
    settled: bool,
    /// Of the connection, and of a stream at its start.
    window: i64,
    stream_window: i64,
    waiting: VecDeque<Outgoing>,
    owed: u32,
    /// Headers that are not whole yet, with their stream and flags.
    part: Option<(u32, u8, Vec<u8>)>,
    /// Why no stream can be opened any more.
    ended: Option<Failure>,
}

impl State {
    fn new(authority: &str, is_secure: bool) -> Self {
        Self {
            out: Vec::new(),
            driver: None,
            blocks: Blocks::default(),
            asking: Asking::new(authority, is_secure),
            streams: FxHashMap::default(),
            next_id: 1,
            ready: VecDeque::new(),
            streams_max: usize::MAX,
            settled: false,
            window: i64::from(WINDOW_BYTES),
            stream_window: i64::from(WINDOW_BYTES),
            waiting: VecDeque::new(),
            owed: 0,
            part: None,
            ended: None,
        }
    }

    fn poll_open(
        &mut self,
        path: &'static str,
        is_collected: bool,
        context: &mut Context<'_>,
    ) -> Poll<Result<u32, Failure>> {
        if let Some(failure) = &self.ended {
            return Poll::Ready(Err(failure.clone()));
        }
        if self.streams.len() >= self.streams_max {
            self.ready.push_back(context.waker().clone());
            return Poll::Pending;
        }
        let id = self.next_id;
        self.next_id += 2;
        if self.next_id > i32::MAX as u32 {
            // There are no more numbers: another connection has some.
            self.ended = Some(Failure::GoAway(Reason::NO_ERROR));
        }
        let incoming = Incoming {
            window: self.stream_window,
            is_collected,
            ..Incoming::default()
        };
        self.streams.insert(id, incoming);
        let head = self.out.len();
        write_head(&mut self.out, 0, Kind::Headers, flag::END_HEADERS, id);
        self.asking.write(path, &mut self.out);
        frames::set_length(&mut self.out, head);
        Poll::Ready(Ok(id))
    }

    fn send(&mut self, id: u32, message: Bytes, last: bool) {
        let outgoing = Outgoing {
            id,
            rest: message,
            last,
        };
        if let Some(outgoing) = self.send_some(outgoing) {
            self.wait(outgoing);
        }
        self.wake_driver();
    }

    fn wait(&mut self, outgoing: Outgoing) {
        if let Some(stream) = self.streams.get_mut(&outgoing.id) {
            stream.waits = true;
            self.waiting.push_back(outgoing);
        }
    }

    /// Sends as much as the windows allow; gives back what they don't.
    fn send_some(&mut self, mut outgoing: Outgoing) -> Option<Outgoing> {
        let stream = self.streams.get_mut(&outgoing.id)?;
        loop {
            let allowed = self.window.min(stream.window).max(0) as usize;
            let bytes = outgoing.rest.len().min(allowed).min(FRAME_BYTES_MAX);
            if bytes == 0 && !outgoing.rest.is_empty() {
                return Some(outgoing);
            }
            let part = outgoing.rest.split_to(bytes);
            self.window -= bytes as i64;
            stream.window -= bytes as i64;
            let is_last = outgoing.rest.is_empty();
            let flags = if is_last && outgoing.last {
                flag::END_STREAM
            } else {
                0
            };
            write_head(&mut self.out, bytes, Kind::Data, flags, outgoing.id);
            self.out.extend_from_slice(&part);
            if is_last {
                stream.waits = false;
                return None;
            }
        }
    }

    /// A window has grown.
    fn send_waiting(&mut self) {
        for outgoing in std::mem::take(&mut self.waiting) {
            if let Some(outgoing) = self.send_some(outgoing) {
                self.wait(outgoing);
            }
        }
    }

    fn wake_driver(&self) {
        if let Some(driver) = &self.driver {
            driver.wake_by_ref();
        }
    }

    fn poll_begun(&mut self, id: u32, context: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        let stream = self.streams.get_mut(&id).expect("it is not closed yet");
        match &stream.end {
            Some(end) => Poll::Ready(end.clone()),
            None if stream.head.is_some() => Poll::Ready(Ok(())),
            None => stream.wait(context),
        }
    }

    fn poll_next(
        &mut self,
        id: u32,
        context: &mut Context<'_>,
    ) -> Poll<Result<Option<Bytes>, Failure>> {
        let stream = self.streams.get_mut(&id).expect("it is not closed yet");
        match stream.messages.take() {
            Ok(None) => {}
            message => return Poll::Ready(message),
        }
        match &stream.end {
            Some(end) => Poll::Ready(end.clone().map(|()| None)),
            None => stream.wait(context),
        }
    }

    fn poll_only(&mut self, id: u32, context: &mut Context<'_>) -> Poll<Result<Bytes, Failure>> {
        let stream = self.streams.get_mut(&id).expect("it is not closed yet");
        let Some(end) = &stream.end else {
            return stream.wait(context);
        };
        if let Err(failure) = end {
            return Poll::Ready(Err(failure.clone()));
        }
        Poll::Ready(match stream.messages.take() {
            Ok(Some(_)) if !stream.messages.is_empty() => {
                Err(Failure::Answer("more than one message"))
            }
            Ok(Some(message)) => Ok(message),
            Ok(None) => Err(Failure::Answer("no message")),
            Err(failure) => Err(failure),
        })
    }

    /// Nobody is interested in a stream any more.
    fn close(&mut self, id: u32) {
        let Some(stream) = self.streams.remove(&id) else {
            return;
        };
        if stream.waits {
            self.waiting.retain(|outgoing| outgoing.id != id);
        }
        if stream.end.is_none() && self.ended.is_none() {
            self.reset(id);
            self.wake_driver();
        }
        if let Some(next) = self.ready.pop_front() {
            next.wake();
        }
    }

    /// Tells the server that nobody waits for the rest of a stream.
    fn reset(&mut self, id: u32) {
        write_head(&mut self.out, 4, Kind::Reset, 0, id);
        let reason = u32::from(Reason::CANCEL);
        self.out.extend_from_slice(&reason.to_be_bytes());
    }

    /// Takes note of a frame.
    fn take(&mut self, frame: Frame) -> Result<(), Failure> {
        if let Some((id, _, _)) = &self.part
            && (frame.kind != Kind::Continuation || frame.id != *id)
        {
            return Err(broken("headers are interrupted"));
        }
        match frame.kind {
            Kind::Data => self.data(frame)?,
            Kind::Headers => {
                let (id, flags) = (frame.id, frame.flags);
                self.headers(id, flags, &frame.content()?, Vec::new())?;
            }
            Kind::Continuation => {
                let part = self.part.take();
                let (id, flags, before) = part.ok_or_else(|| broken("headers without a start"))?;
                let flags = flags | (frame.flags & flag::END_HEADERS);
                self.headers(id, flags, &frame.payload, before)?;
            }
            Kind::Reset => {
                let reason = frame.number(0)?.into();
                self.end(frame.id, Err(Failure::Reset(reason)));
            }
            Kind::Settings if frame.flags & flag::ACK != 0 => {}
            Kind::Settings => {
                self.settings(&frame)?;
                write_head(&mut self.out, 0, Kind::Settings, flag::ACK, 0);
            }
            Kind::Ping if frame.flags & flag::ACK != 0 => {}
            Kind::Ping => {
                write_head(&mut self.out, frame.payload.len(), Kind::Ping, flag::ACK, 0);
                self.out.extend_from_slice(&frame.payload);
            }
            Kind::GoAway => {
                let last = frame.number(0)? & frames::ID_MASK;
                let failure = Failure::GoAway(frame.number(4)?.into());
                self.ended.get_or_insert(failure.clone());
                let ids: Vec<_> = self.streams.keys().copied().collect();
                for id in ids.into_iter().filter(|id| *id > last) {
                    self.end(id, Err(failure.clone()));
                }
                self.wake_ready();
            }
            Kind::WindowUpdate => {
                let more = i64::from(frame.number(0)? & frames::ID_MASK);
                match frame.id {
                    0 => self.window += more,
                    id => {
                        if let Some(stream) = self.streams.get_mut(&id) {
                            stream.window += more;
                        }
                    }
                }
                self.send_waiting();
            }
            Kind::PushPromise => return Err(broken("a push, which nobody allowed")),
            Kind::Other => {}
        }
        Ok(())
    }

    fn data(&mut self, frame: Frame) -> Result<(), Failure> {
        // Padding counts too.
        let bytes = frame.payload.len() as u32;
        self.owed += bytes;
        if self.owed >= CONNECTION_WINDOW_BYTES / 2 {
            let owed = std::mem::take(&mut self.owed);
            self.give_back(0, owed);
        }
        let (id, is_last) = (frame.id, frame.flags & flag::END_STREAM != 0);
        let Some(stream) = self.streams.get_mut(&id) else {
            // It was given up.
            return Ok(());
        };
        stream.received += bytes as usize;
        stream.owed += bytes;
        let content = frame.content()?;
        if !content.is_empty() {
            stream.messages.add(content);
        }
        if is_last {
            // What its first headers say counts, if nothing follows.
            let end = stream.head.clone().map_or(Err(NO_STATUS), |said| said.end);
            self.end(id, end);
            return Ok(());
        }
        if stream.is_collected && stream.received > ANSWER_BYTES_MAX {
            self.end(id, Err(Failure::Answer("too large")));
            self.reset(id);
            return Ok(());
        }
        if !stream.is_collected {
            stream.wake();
        }
        if stream.owed >= STREAM_WINDOW_BYTES / 2 {
            let owed = std::mem::take(&mut stream.owed);
            self.give_back(id, owed);
        }
        Ok(())
    }

    fn give_back(&mut self, id: u32, bytes: u32) {
        write_head(&mut self.out, 4, Kind::WindowUpdate, 0, id);
        self.out.extend_from_slice(&bytes.to_be_bytes());
    }

    fn headers(
        &mut self,
        id: u32,
        flags: u8,
        block: &[u8],
        mut before: Vec<u8>,
    ) -> Result<(), Failure> {
        if flags & flag::END_HEADERS == 0 {
            before.extend_from_slice(block);
            if before.len() > hpack::BLOCK_BYTES_MAX {
                return Err(broken("headers without an end"));
            }
            self.part = Some((id, flags, before));
            return Ok(());
        }
        let said = match before.is_empty() {
            true => self.blocks.read(block)?,
            false => {
                before.extend_from_slice(block);
                self.blocks.read(&before)?
            }
        };
        let Some(stream) = self.streams.get_mut(&id) else {
            return Ok(());
        };
        let is_last = flags & flag::END_STREAM != 0;
        match said.http {
            Some(StatusCode::OK) | None if is_last => self.end(id, said.end),
            // The first ones, or those before the first ones.
            Some(StatusCode::OK) => stream.head = Some(said),
            Some(status) if status.is_informational() => {}
            Some(status) => {
                self.end(id, Err(Failure::Http(status)));
                if !is_last {
                    self.reset(id);
                }
            }
            None => return Err(broken("trailers that end nothing")),
        }
        if let Some(stream) = self.streams.get_mut(&id)
            && !stream.is_collected
        {
            // Who opened it may wait for that.
            stream.wake();
        }
        Ok(())
    }

    fn settings(&mut self, frame: &Frame) -> Result<(), Failure> {
        for (setting, value) in frame.settings()? {
            match setting {
                Setting::HeaderTableSize => self.asking.limit(value as usize),
                Setting::MaxConcurrentStreams => self.streams_max = value as usize,
                Setting::InitialWindowSize => {
                    let change = i64::from(value) - self.stream_window;
                    self.stream_window += change;
                    for stream in self.streams.values_mut() {
                        stream.window += change;
                    }
                }
                Setting::EnablePush | Setting::Other => {}
            }
        }
        self.settled = true;
        self.wake_ready();
        self.send_waiting();
        Ok(())
    }

    fn wake_ready(&mut self) {
        self.ready.drain(..).for_each(Waker::wake);
    }

    fn end(&mut self, id: u32, end: Result<(), Failure>) {
        if let Some(stream) = self.streams.get_mut(&id)
            && stream.end.is_none()
        {
            stream.end = Some(end);
            stream.wake();
        }
    }

    /// The connection is over.
    fn fail(&mut self, failure: Failure) {
        let failure = self.ended.get_or_insert(failure).clone();
        let ids: Vec<_> = self.streams.keys().copied().collect();
        for id in ids {
            self.end(id, Err(failure.clone()));
        }
        self.wake_ready();
    }
}

const NO_STATUS: Failure = Failure::Answer("no grpc-status");

impl Incoming {
    fn wait<T>(&mut self, context: &Context<'_>) -> Poll<T> {
        match &mut self.waker {
            Some(waker) => waker.clone_from(context.waker()),
            none => *none = Some(context.waker().clone()),
        }
        Poll::Pending
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

fn broken(what: &str) -> Failure {
    Failure::Broken(what.to_owned())
}

/// Reads and writes for a connection until it is over.
struct Driver {
    socket: Socket,
    state: Arc<Mutex<State>>,
    input: BytesMut,
    /// What is being written, from `written` on.
    output: Vec<u8>,
    written: usize,
}

impl Future for Driver {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let driven = self
            .poll_read(context)
            .and_then(|()| self.poll_write(context));
        match driven {
            // Nobody has it any more.
            Ok(()) if Arc::strong_count(&self.state) == 1 => Poll::Ready(()),
            Ok(()) => Poll::Pending,
            Err(failure) => {
                self.state.lock().fail(failure);
                Poll::Ready(())
            }
        }
    }
}

impl Driver {
    /// Takes all that has come.
    fn poll_read(&mut self, context: &mut Context<'_>) -> Result<(), Failure> {
        while let Poll::Ready(read) = self.socket.poll_read(context, &mut self.input) {
            if read.map_err(lost)? == 0 {
                return Err(broken("the server has hung up"));
            }
            let mut state = self.state.lock();
            while let Some(frame) = take_frame(&mut self.input)? {
                state.take(frame)?;
            }
        }
        Ok(())
    }

    /// Writes all that waits.
    fn poll_write(&mut self, context: &mut Context<'_>) -> Result<(), Failure> {
        loop {
            if self.written == self.output.len() {
                self.written = 0;
                self.output.clear();
                let mut state = self.state.lock();
                std::mem::swap(&mut self.output, &mut state.out);
                if self.output.is_empty() {
                    match &mut state.driver {
                        Some(waker) => waker.clone_from(context.waker()),
                        none => *none = Some(context.waker().clone()),
                    }
                    drop(state);
                    // What is left of it leaves when there is room again.
                    return match self.socket.poll_flush(context) {
                        Poll::Ready(Err(error)) => Err(lost(error)),
                        Poll::Ready(Ok(())) | Poll::Pending => Ok(()),
                    };
                }
            }
            let output = &self.output[self.written..];
            match self.socket.poll_write(context, output) {
                Poll::Ready(written) => self.written += written.map_err(lost)?,
                Poll::Pending => return Ok(()),
            }
        }
    }
}

fn lost(error: io::Error) -> Failure {
    Failure::Broken(error.to_string())
}
