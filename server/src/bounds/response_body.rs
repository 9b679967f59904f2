//! Counts the bytes of a response until they are written.
//!
//! Kept true: bytes are counted until the transport drops them. Small unary
//! responses are not counted: there are at most as many as open calls.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use tonic::Status;
use tonic::body::Body;

use super::{Charge, OpenCall, SMALL_RESPONSE_BYTES};

type Wait = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A response body whose bytes are counted for its call. The call stays open
/// until this is dropped.
pub(crate) struct ResponseBody {
    inner: Body,
    call: Arc<OpenCall>,
    is_stream: bool,
    wait: Option<Wait>,
}

impl ResponseBody {
    pub(crate) fn new(inner: Body, call: Arc<OpenCall>, is_stream: bool) -> Self {
        Self {
            inner,
            call,
            is_stream,
            wait: None,
        }
    }

    /// Whether the next message of a stream may be taken. One that its maker
    /// has counted already always may.
    fn may_take(&self) -> bool {
        !self.is_stream || self.call.made.load(Relaxed) > 0 || self.call.is_read()
    }
}

impl hyper::body::Body for ResponseBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        loop {
            if let Some(wait) = &mut this.wait {
                ready!(wait.as_mut().poll(context));
                this.wait = None;
            }
            if this.may_take() {
                break;
            }
            let call = Arc::clone(&this.call);
            this.wait = Some(Box::pin(async move { call.until_read().await }));
        }
        let frame = ready!(Pin::new(&mut this.inner).poll_frame(context));
        let Some(Ok(frame)) = frame else {
            return Poll::Ready(frame);
        };
        let frame = match frame.into_data() {
            Ok(data) if this.is_stream || data.len() >= SMALL_RESPONSE_BYTES => {
                let charge = this.call.send(data.len());
                Frame::data(Bytes::from_owner(Counted {
                    data,
                    _charge: charge,
                }))
            }
            Ok(data) => Frame::data(data),
            Err(frame) => frame,
        };
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// Bytes with their charge.
struct Counted {
    data: Bytes,
    _charge: Charge,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}
