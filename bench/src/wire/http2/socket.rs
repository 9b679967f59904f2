//! What a connection reads from and writes to: TCP, with TLS or without.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

/// What is read in one go.
const READ_BYTES: usize = 64 << 10;

pub(crate) enum Socket {
    Plain(TcpStream),
    /// With room for what was deciphered.
    Secure(Box<TlsStream<TcpStream>>, Box<[u8]>),
}

impl From<TcpStream> for Socket {
    fn from(stream: TcpStream) -> Self {
        Self::Plain(stream)
    }
}

impl From<TlsStream<TcpStream>> for Socket {
    fn from(stream: TlsStream<TcpStream>) -> Self {
        Self::Secure(Box::new(stream), vec![0; READ_BYTES].into())
    }
}

impl Socket {
    /// Reads something; 0 at the end.
    pub(super) fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        input: &mut BytesMut,
    ) -> Poll<io::Result<usize>> {
        match self {
            Self::Plain(stream) => loop {
                match stream.poll_read_ready(context) {
                    Poll::Ready(ready) => ready?,
                    Poll::Pending => return Poll::Pending,
                }
                input.reserve(READ_BYTES);
                match stream.try_read_buf(input) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    read => return Poll::Ready(read),
                }
            },
            Self::Secure(stream, room) => {
                let mut read = ReadBuf::new(room);
                let polled = Pin::new(stream).poll_read(context, &mut read);
                polled.map_ok(|()| {
                    input.extend_from_slice(read.filled());
                    read.filled().len()
                })
            }
        }
    }

    /// Writes a part.
    pub(super) fn poll_write(
        &mut self,
        context: &mut Context<'_>,
        output: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self {
            Self::Plain(stream) => Pin::new(stream).poll_write(context, output),
            Self::Secure(stream, _) => Pin::new(stream).poll_write(context, output),
        }
    }

    /// Sees to it that what was written leaves.
    pub(super) fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(_) => Poll::Ready(Ok(())),
            Self::Secure(stream, _) => Pin::new(stream).poll_flush(context),
        }
    }
}
