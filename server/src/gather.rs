//! Answers that are ready together leave together.
//!
//! The HTTP/2 library hands over frames of some hundred bytes one by one to who
//! can take several parts at once, and each would be a system call. So this
//! says that it can't; then the library joins what is short by itself, and
//! what it hands over between two flushes is one system call here.
//!
//! Kept true: bytes leave in the order in which they came, and all of them
//! have left when a flush is done.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Longer parts are not copied.
const COPIED_BYTES_MAX: usize = 8 << 10;

/// A connection whose writes are gathered.
pub(crate) struct Gathered<T> {
    inner: T,
    /// What waits for the next write or flush, from `left` on.
    waiting: Vec<u8>,
    left: usize,
}

impl<T: AsyncWrite + Unpin> Gathered<T> {
    pub(crate) fn new(inner: T) -> Self {
        Self {
            inner,
            waiting: Vec::new(),
            left: 0,
        }
    }

    /// Writes what waits, and with it some of `more`; returns how much of that.
    fn poll_send(&mut self, context: &mut Context<'_>, more: &[u8]) -> Poll<io::Result<usize>> {
        while self.left < self.waiting.len() {
            let waiting = &self.waiting[self.left..];
            let parts = [IoSlice::new(waiting), IoSlice::new(more)];
            let inner = Pin::new(&mut self.inner);
            let sent = ready!(inner.poll_write_vectored(context, &parts))?;
            if sent == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            let of_more = sent.saturating_sub(waiting.len());
            self.left += sent - of_more;
            if of_more > 0 {
                self.clear();
                return Poll::Ready(Ok(of_more));
            }
        }
        self.clear();
        match more.is_empty() {
            true => Poll::Ready(Ok(0)),
            false => Pin::new(&mut self.inner).poll_write(context, more),
        }
    }

    fn clear(&mut self) {
        self.waiting.clear();
        self.left = 0;
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Gathered<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.waiting.len() + bytes.len() <= COPIED_BYTES_MAX {
            self.waiting.extend_from_slice(bytes);
            return Poll::Ready(Ok(bytes.len()));
        }
        self.poll_send(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_send(context, &[]))?;
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_send(context, &[]))?;
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Gathered<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(context, buffer)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn bytes_leave_in_order_and_all_of_them() {
        let (ours, mut theirs) = tokio::io::duplex(777);
        let sizes = [1, 9, 300, 8000, 48, 8193, 5, 40_000, 0, 8192, 3];
        let sent: Vec<u8> = (0..sizes.iter().sum::<usize>())
            .map(|at| (at % 251) as u8)
            .collect();
        let expected = sent.clone();
        let writing = tokio::spawn(async move {
            let mut ours = Gathered::new(ours);
            let mut rest = &sent[..];
            for (at, size) in sizes.into_iter().enumerate() {
                ours.write_all(&rest[..size]).await.unwrap();
                rest = &rest[size..];
                if at % 3 == 2 {
                    ours.flush().await.unwrap();
                }
            }
            ours.shutdown().await.unwrap();
        });
        let mut came = Vec::new();
        theirs.read_to_end(&mut came).await.unwrap();
        writing.await.unwrap();
        assert_eq!(came, expected);
    }

    #[tokio::test]
    async fn what_is_short_waits_for_the_flush() {
        let (ours, mut theirs) = tokio::io::duplex(1000);
        let mut ours = Gathered::new(ours);
        ours.write_all(b"one").await.unwrap();
        ours.write_all(b"two").await.unwrap();
        let mut came = [0; 16];
        let early = futures_util::FutureExt::now_or_never(theirs.read(&mut came));
        assert!(early.is_none());
        ours.flush().await.unwrap();
        assert_eq!(theirs.read(&mut came).await.unwrap(), 6);
    }
}
