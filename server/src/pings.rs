//! Clients that ping too often are sent away, as etcd's library does.
//!
//! Kept true: a connection is looked at frame by frame, whichever way its
//! bytes are cut. A ping is one too many if it comes sooner than allowed after
//! the last, or without any call under way; the third such in a row, with no
//! answer in between, ends the connection with `too_many_pings`. What is no
//! HTTP/2 is let alone. On its way, a URL where a name belongs is repaired
//! (`authority.rs`).

use std::collections::BTreeSet;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::authority;

/// What an HTTP/2 client begins with.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// So many pings too many are forgiven.
const STRIKES_MAX: u32 = 2;
/// Between pings of a client that has no call under way.
const IDLE_MIN: Duration = Duration::from_secs(2 * 3600);

/// Fewer bytes of headers only name what was said before.
const NAMED_BYTES_MIN: usize = 24;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const PING: u8 = 6;
const END_STREAM: u8 = 1;
const ACK: u8 = 1;

/// GOAWAY, stream 0, ENHANCE_YOUR_CALM, and why.
const GOAWAY: &[u8] = b"\0\0\x16\x07\0\0\0\0\0\x7f\xff\xff\xff\0\0\0\x0btoo_many_pings";

/// The head of a frame.
#[derive(Clone, Copy)]
struct Head {
    kind: u8,
    flags: u8,
    stream: u32,
    payload_bytes: usize,
}

/// Finds the heads of frames in bytes that come in any pieces.
#[derive(Default)]
struct Frames {
    head: [u8; 9],
    head_bytes: usize,
    /// Of the frame whose head was seen last.
    payload_left: usize,
}

impl Frames {
    /// Tells of each head, and of the place right behind it.
    fn see(&mut self, all: &[u8], mut each: impl FnMut(Head, usize)) {
        let mut bytes = all;
        while !bytes.is_empty() {
            let skipped = self.payload_left.min(bytes.len());
            self.payload_left -= skipped;
            bytes = &bytes[skipped..];
            let taken = (self.head.len() - self.head_bytes).min(bytes.len());
            self.head[self.head_bytes..][..taken].copy_from_slice(&bytes[..taken]);
            self.head_bytes += taken;
            bytes = &bytes[taken..];
            if self.head_bytes == self.head.len() {
                self.head_bytes = 0;
                let [a, b, c, kind, flags, stream @ ..] = self.head;
                self.payload_left = u32::from_be_bytes([0, a, b, c]) as usize;
                let stream = u32::from_be_bytes(stream) & (u32::MAX >> 1);
                let head = Head {
                    kind,
                    flags,
                    stream,
                    payload_bytes: self.payload_left,
                };
                each(head, all.len() - bytes.len());
            }
        }
    }

    fn is_between(&self) -> bool {
        self.head_bytes == 0 && self.payload_left == 0
    }
}

/// What is known of the client of one connection.
struct Watchdog {
    min: Duration,
    /// Bytes of the preface that were seen; `None`: it speaks something else.
    preface: Option<usize>,
    received: Frames,
    sent: Frames,
    calls: BTreeSet<u32>,
    call_last: u32,
    answered: bool,
    pinged: Option<Instant>,
    strikes: u32,
}

impl Watchdog {
    fn new(min: Duration) -> Self {
        Self {
            min,
            preface: Some(0),
            received: Frames::default(),
            sent: Frames::default(),
            calls: BTreeSet::new(),
            call_last: 0,
            answered: false,
            pinged: None,
            strikes: 0,
        }
    }

    /// Whether the client may stay.
    fn received(&mut self, bytes: &mut [u8], now: impl Fn() -> Instant) -> bool {
        let Some(seen) = self.preface else {
            return true;
        };
        let expected = &PREFACE[seen..];
        let length = expected.len().min(bytes.len());
        if bytes[..length] != expected[..length] {
            self.preface = None;
            return true;
        }
        self.preface = Some(seen + length);
        let bytes = &mut bytes[length..];
        let mut received = std::mem::take(&mut self.received);
        let mut named = Vec::new();
        received.see(bytes, |head, at| match head.kind {
            HEADERS if head.stream > self.call_last => {
                self.call_last = head.stream;
                self.calls.insert(head.stream);
                if head.payload_bytes >= NAMED_BYTES_MIN {
                    named.push((at, head.payload_bytes));
                }
            }
            RST_STREAM => {
                self.calls.remove(&head.stream);
            }
            PING if head.flags & ACK == 0 => self.pinged(now()),
            _ => {}
        });
        self.received = received;
        for (at, length) in named {
            let end = bytes.len().min(at + length);
            authority::repair(&mut bytes[at..end]);
        }
        self.strikes <= STRIKES_MAX
    }

    fn pinged(&mut self, now: Instant) {
        let last = self.pinged.replace(now);
        if std::mem::take(&mut self.answered) {
            self.strikes = 0;
            return;
        }
        let min = match self.calls.is_empty() {
            true => IDLE_MIN,
            false => self.min,
        };
        if last.is_some_and(|last| now < last + min) {
            self.strikes += 1;
        }
    }

    fn sent(&mut self, bytes: &[u8]) {
        if self.preface.is_none() {
            return;
        }
        let mut sent = std::mem::take(&mut self.sent);
        sent.see(bytes, |head, _| {
            if matches!(head.kind, DATA | HEADERS) {
                self.answered = true;
                if head.flags & END_STREAM != 0 {
                    self.calls.remove(&head.stream);
                }
            }
            if head.kind == RST_STREAM {
                self.calls.remove(&head.stream);
            }
        });
        self.sent = sent;
    }
}

/// A connection whose pings are watched.
pub(crate) struct Calm<T> {
    inner: T,
    watchdog: Watchdog,
    /// How much of the last words was sent, once they are due.
    farewell: Option<usize>,
}

impl<T: AsyncWrite + Unpin> Calm<T> {
    pub(crate) fn new(inner: T, ping_min: Duration) -> Self {
        Self {
            inner,
            watchdog: Watchdog::new(ping_min),
            farewell: None,
        }
    }

    /// Says the last words, unless an answer was cut in the middle.
    fn poll_farewell(
        &mut self,
        context: &mut Context<'_>,
        mut said: usize,
    ) -> Poll<io::Result<()>> {
        if self.watchdog.sent.is_between() {
            while said < GOAWAY.len() {
                let inner = Pin::new(&mut self.inner);
                let bytes = ready!(inner.poll_write(context, &GOAWAY[said..]))?;
                if bytes == 0 {
                    break;
                }
                said += bytes;
                self.farewell = Some(said);
            }
            ready!(Pin::new(&mut self.inner).poll_flush(context))?;
        }
        Poll::Ready(Err(io::Error::other("the client pings too often")))
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncRead for Calm<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.farewell.is_none() {
            let before = buffer.filled().len();
            ready!(Pin::new(&mut this.inner).poll_read(context, buffer))?;
            if this
                .watchdog
                .received(&mut buffer.filled_mut()[before..], Instant::now)
            {
                return Poll::Ready(Ok(()));
            }
            buffer.set_filled(before);
        }
        let said = *this.farewell.get_or_insert(0);
        this.poll_farewell(context, said)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Calm<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        if this.farewell.is_some() {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let written = ready!(Pin::new(&mut this.inner).poll_write(context, bytes))?;
        this.watchdog.sent(&bytes[..written]);
        Poll::Ready(Ok(written))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        if this.farewell.is_some() {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let written = ready!(Pin::new(&mut this.inner).poll_write_vectored(context, parts))?;
        let mut left = written;
        for part in parts {
            let bytes = left.min(part.len());
            this.watchdog.sent(&part[..bytes]);
            left -= bytes;
        }
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIN: Duration = Duration::from_secs(5);

    fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![0, 0, payload.len() as u8, kind, flags, 0, 0, 0, stream];
        frame.extend(payload);
        frame
    }

    fn ping() -> Vec<u8> {
        frame(PING, 0, 0, &[0; 8])
    }

    /// A client that has begun, with a call under way or without.
    fn client(calls: bool) -> (Watchdog, Instant) {
        let mut watchdog = Watchdog::new(MIN);
        let now = Instant::now();
        let mut begin = PREFACE.to_vec();
        begin.extend(frame(4, 0, 0, &[]));
        if calls {
            begin.extend(frame(HEADERS, 4, 1, b"abc"));
        }
        // In pieces of any size.
        for byte in begin {
            assert!(watchdog.received(&mut [byte], || now));
        }
        (watchdog, now)
    }

    /// How many pings, one after the other, are let pass.
    fn pings(watchdog: &mut Watchdog, from: Instant, every: Duration) -> u32 {
        let passed =
            (1..100).take_while(|at| watchdog.received(&mut ping(), || from + every * *at));
        passed.count() as u32
    }

    #[test]
    fn calm_clients_stay() {
        let (mut watchdog, now) = client(true);
        assert_eq!(pings(&mut watchdog, now, MIN), 99);
        let (mut watchdog, now) = client(false);
        assert_eq!(pings(&mut watchdog, now, IDLE_MIN), 99);
    }

    #[test]
    fn hasty_clients_go() {
        // The first is free, two more are forgiven.
        let (mut watchdog, now) = client(true);
        assert_eq!(pings(&mut watchdog, now, MIN / 2), 3);
        let (mut watchdog, now) = client(false);
        assert_eq!(pings(&mut watchdog, now, MIN), 3);
        // An answer ended the call.
        let (mut watchdog, now) = client(true);
        watchdog.sent(&frame(HEADERS, END_STREAM, 1, b"x"));
        assert_eq!(pings(&mut watchdog, now, MIN), 3);
        // The client gave up its call.
        let (mut watchdog, now) = client(true);
        assert!(watchdog.received(&mut frame(RST_STREAM, 0, 1, &[0; 4]), || now));
        assert_eq!(pings(&mut watchdog, now, MIN), 3);
    }

    #[test]
    fn answers_make_up_for_pings() {
        let (mut watchdog, now) = client(true);
        for _ in 0..20 {
            assert!(watchdog.received(&mut ping(), || now));
            watchdog.sent(&frame(DATA, 0, 1, b"event"));
        }
        // Answers to the server's own pings are no pings.
        let mut ack = frame(PING, ACK, 0, &[0; 8]);
        assert!((0..20).all(|_| watchdog.received(&mut ack, || now)));
    }

    #[test]
    fn what_is_no_http2_is_let_alone() {
        let mut watchdog = Watchdog::new(MIN);
        let now = Instant::now();
        assert!(watchdog.received(&mut b"GET / HTTP/1.1\r\n\r\n".to_vec(), || now));
        assert!((0..20).all(|_| watchdog.received(&mut ping(), || now)));
    }

    #[test]
    fn a_url_is_no_name() {
        let (mut watchdog, now) = client(false);
        let mut block = b"\x83\x86\x41\x8a\x9d\x29\xae\xe3\x0cand what follows".to_vec();
        let mut bytes = ping();
        bytes.extend(frame(HEADERS, 4, 1, &block));
        assert!(watchdog.received(&mut bytes, || now));
        block[7..9].copy_from_slice(&[0xea, 0xcb]);
        assert!(bytes.ends_with(&block));
    }

    #[test]
    fn the_last_words_are_a_frame() {
        let mut frames = Frames::default();
        let mut kinds = Vec::new();
        frames.see(GOAWAY, |head, _| kinds.push(head.kind));
        assert_eq!(kinds, [7]);
        assert!(frames.is_between());
    }
}
