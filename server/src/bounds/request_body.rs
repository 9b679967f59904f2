//! Counts the bytes of a request as they are received.
//!
//! Kept true: nothing reads more than the first frame of a message, and nobody
//! decodes that, before there is room for the whole message.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};

use super::{OpenCall, SMALL_REQUEST_BYTES};

/// Bytes of a message's head: whether it is compressed, and its length.
const HEAD_BYTES: usize = 5;

type Wait = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A request's body whose bytes are counted for its call.
pub(crate) struct RequestBody<B> {
    inner: B,
    call: Arc<OpenCall>,
    messages: Messages,
    /// Many messages may come, of which only the last ones are held.
    is_stream: bool,
    /// Something of it has come.
    has_begun: bool,
    /// Bytes of the messages that are held.
    counted: usize,
    /// A frame that waits for room for its message.
    frame: Option<Frame<Bytes>>,
    wait: Option<Wait>,
}

impl<B> RequestBody<B> {
    /// A body of messages of up to `bytes_max`.
    pub(crate) fn new(inner: B, call: Arc<OpenCall>, is_stream: bool, bytes_max: usize) -> Self {
        Self {
            inner,
            call,
            messages: Messages::new(bytes_max),
            is_stream,
            has_begun: false,
            counted: 0,
            frame: None,
            wait: None,
        }
    }

    /// Whether the next frame begins a message. (Of a unary call there is no
    /// second one, and its end releases the first.)
    fn is_before_message(&self) -> bool {
        self.messages.is_between() && (self.is_stream || !self.has_begun)
    }

    /// Who asks for the next message of a stream is done with the last one.
    fn release(&mut self) {
        if self.is_stream && self.counted > 0 {
            self.call.release_request(std::mem::take(&mut self.counted));
        }
    }

    /// Counts the messages whose heads end in this frame; false if it has to
    /// wait for room.
    fn count(&mut self, data: &[u8]) -> bool {
        let bytes = self.messages.read(data);
        if bytes == 0 {
            return true;
        }
        self.release();
        self.counted = bytes;
        if self.call.try_receive(bytes) {
            return true;
        }
        let call = Arc::clone(&self.call);
        self.wait = Some(Box::pin(async move { call.receive(bytes).await }));
        false
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for RequestBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = &mut *self;
        loop {
            if let Some(wait) = &mut this.wait {
                ready!(wait.as_mut().poll(context));
                this.wait = None;
            }
            if let Some(frame) = this.frame.take() {
                return Poll::Ready(Some(Ok(frame)));
            }
            if this.is_before_message() {
                this.release();
                if !this.call.is_receivable() {
                    let call = Arc::clone(&this.call);
                    this.wait = Some(Box::pin(async move { call.until_receivable().await }));
                    continue;
                }
            }
            let Some(frame) = ready!(Pin::new(&mut this.inner).poll_frame(context)?) else {
                return Poll::Ready(None);
            };
            this.has_begun = true;
            if frame.data_ref().is_none_or(|data| this.count(data)) {
                return Poll::Ready(Some(Ok(frame)));
            }
            this.frame = Some(frame);
        }
    }

    fn is_end_stream(&self) -> bool {
        self.frame.is_none() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        match self.frame {
            Some(_) => SizeHint::default(),
            None => self.inner.size_hint(),
        }
    }
}

/// Finds the gRPC messages in a body.
struct Messages {
    head: [u8; HEAD_BYTES],
    /// Bytes of the head that have come.
    head_bytes: usize,
    /// Bytes of the message that are still to come.
    left: usize,
    bytes_max: usize,
}

impl Messages {
    fn new(bytes_max: usize) -> Self {
        Self {
            head: [0; HEAD_BYTES],
            head_bytes: 0,
            left: 0,
            bytes_max,
        }
    }

    fn is_between(&self) -> bool {
        self.head_bytes == 0 && self.left == 0
    }

    /// Consumes `data`; returns the bytes to count for the messages whose heads
    /// ended in it. A message above `bytes_max` counts nothing: tonic rejects it.
    fn read(&mut self, mut data: &[u8]) -> usize {
        let mut bytes = 0;
        while !data.is_empty() {
            let skipped = self.left.min(data.len());
            self.left -= skipped;
            data = &data[skipped..];
            let of_head = data.len().min(HEAD_BYTES - self.head_bytes);
            let (head, rest) = data.split_at(of_head);
            self.head[self.head_bytes..][..of_head].copy_from_slice(head);
            self.head_bytes += of_head;
            data = rest;
            if self.head_bytes == HEAD_BYTES {
                self.head_bytes = 0;
                let [_, length @ ..] = self.head;
                self.left = u32::from_be_bytes(length) as usize;
                if (SMALL_REQUEST_BYTES..=self.bytes_max).contains(&self.left) {
                    bytes += self.left + HEAD_BYTES;
                }
            }
        }
        bytes.min(self.bytes_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES_MAX: usize = 100_000;

    fn message(bytes: usize) -> Vec<u8> {
        let mut message = vec![0];
        message.extend((bytes as u32).to_be_bytes());
        message.resize(HEAD_BYTES + bytes, 7);
        message
    }

    #[test]
    fn messages_are_counted_however_they_are_cut() {
        let sizes = [3, 0, 5000, 70, 4096];
        let all = sizes.map(message).concat();
        for piece in (1..100).chain([5000, 5015, all.len()]) {
            let mut messages = Messages::new(BYTES_MAX);
            let counted: usize = all.chunks(piece).map(|data| messages.read(data)).sum();
            assert_eq!(counted, 5000 + 4096 + 2 * HEAD_BYTES);
            assert!(messages.is_between());
        }
    }

    /// Frames that are all there.
    struct Frames(std::collections::VecDeque<Bytes>);

    impl Body for Frames {
        type Data = Bytes;
        type Error = std::convert::Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
            Poll::Ready(self.0.pop_front().map(|data| Ok(Frame::data(data))))
        }
    }

    /// It must not wait for its own end, nor for messages that are over, also if
    /// no frame ends where a message does.
    #[test]
    fn messages_of_more_than_the_share_are_received_to_their_end() {
        let frame_bytes = 16 << 10;
        for (is_stream, messages, message_bytes) in
            [(false, 1, 1 << 20), (true, 3, 1 << 20), (true, 1000, 3000)]
        {
            let connection = super::super::ProcessBounds::new().connect();
            let call = connection.open(&http::HeaderMap::new(), is_stream);
            let call = call.expect("it is the first");
            let all = Bytes::from(message(message_bytes).repeat(messages));
            let starts = (0..all.len()).step_by(frame_bytes);
            let frames = starts.map(|start| all.slice(start..all.len().min(start + frame_bytes)));
            let frames = Frames(frames.collect());
            let mut body = RequestBody::new(frames, call, is_stream, 2 << 20);
            let mut bytes = 0;
            let mut context = Context::from_waker(std::task::Waker::noop());
            while let Poll::Ready(Some(frame)) = Pin::new(&mut body).poll_frame(&mut context) {
                let Ok(frame) = frame;
                bytes += frame.data_ref().map_or(0, Bytes::len);
            }
            assert_eq!(bytes, all.len());
        }
    }

    #[test]
    fn a_message_that_is_too_large_counts_nothing() {
        let mut messages = Messages::new(BYTES_MAX);
        assert_eq!(messages.read(&message(BYTES_MAX + 1)[..500]), 0);
        assert!(!messages.is_between());
    }
}
