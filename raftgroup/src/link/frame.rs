//! Frames on a connection.
//!
//! ```text
//! | checksum u32 | body length u32 | version u8 | kind u8 | body |      little endian
//! ```
//!
//! The version is that of the body's format. Two ends that have greeted each
//! other use the newest one that both know (`handshake.rs`); the frames before
//! that are of the first version for ever, and so is the header.
//!
//! Kept true: the checksum (CRC-32) covers all that follows it, so what was
//! changed on the way is an error, never another message; no more memory is
//! taken than the longest body that is allowed; bodies are slices of what was
//! read.

use std::io;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};

pub(super) const HEADER_BYTES: usize = 10;

/// The versions of frames that this code understands.
pub(super) const VERSION_MIN: u8 = 1;
pub(super) const VERSION_MAX: u8 = 1;

/// How much is read at once, if it is there.
const READ_BYTES: usize = 64 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Hello = 1,
    Taken = 2,
    Refusal = 3,
    Message = 4,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) kind: Kind,
    pub(super) body: Bytes,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum BadFrame {
    #[error("a frame of {bytes} bytes, more than {bytes_max}")]
    TooLong { bytes: usize, bytes_max: usize },
    #[error("a frame with a wrong checksum")]
    Checksum,
    #[error("a frame of the unknown kind {0}")]
    Kind(u8),
    #[error("a frame of version {0}, the newest one known is {VERSION_MAX}")]
    Version(u8),
}

impl From<BadFrame> for io::Error {
    fn from(bad: BadFrame) -> Self {
        Self::new(io::ErrorKind::InvalidData, bad)
    }
}

/// What goes before the body.
pub(super) fn header(version: u8, kind: Kind, body: &[u8]) -> [u8; HEADER_BYTES] {
    let length = u32::try_from(body.len()).expect("messages are limited to less");
    let mut header = [0; HEADER_BYTES];
    header[4..8].copy_from_slice(&length.to_le_bytes());
    header[8] = version;
    header[9] = kind as u8;
    let checksum = checksum(&header[4..], body);
    header[..4].copy_from_slice(&checksum.to_le_bytes());
    header
}

pub(super) fn put(version: u8, kind: Kind, body: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&header(version, kind, body));
    out.extend_from_slice(body);
}

/// Takes one off the front. `None` if it is not all there; then there is room
/// for the rest.
fn take(from: &mut BytesMut, body_bytes_max: usize) -> Result<Option<Frame>, BadFrame> {
    let Some(header) = from.first_chunk::<HEADER_BYTES>() else {
        return Ok(None);
    };
    let [c0, c1, c2, c3, l0, l1, l2, l3, version, kind] = *header;
    let bytes = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
    if bytes > body_bytes_max {
        return Err(BadFrame::TooLong {
            bytes,
            bytes_max: body_bytes_max,
        });
    }
    let frame_bytes = HEADER_BYTES + bytes;
    if from.len() < frame_bytes {
        from.reserve(frame_bytes - from.len());
        return Ok(None);
    }
    if checksum(&from[4..HEADER_BYTES], &from[HEADER_BYTES..frame_bytes])
        != u32::from_le_bytes([c0, c1, c2, c3])
    {
        return Err(BadFrame::Checksum);
    }
    if !(VERSION_MIN..=VERSION_MAX).contains(&version) {
        return Err(BadFrame::Version(version));
    }
    let kinds = [Kind::Hello, Kind::Taken, Kind::Refusal, Kind::Message];
    let kind = kinds.into_iter().find(|known| *known as u8 == kind);
    let kind = kind.ok_or(BadFrame::Kind(from[9]))?;
    let body = from.split_to(frame_bytes).freeze().slice(HEADER_BYTES..);
    Ok(Some(Frame { kind, body }))
}

fn checksum(header: &[u8], body: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(header);
    hasher.update(body);
    hasher.finalize()
}

/// The frames that a stream brings.
pub(super) struct Frames<R> {
    stream: R,
    buffer: BytesMut,
    body_bytes_max: usize,
}

impl<R: AsyncRead + Unpin> Frames<R> {
    pub(super) fn new(stream: R, body_bytes_max: usize) -> Self {
        Self {
            stream,
            buffer: BytesMut::new(),
            body_bytes_max,
        }
    }

    pub(super) fn allow(&mut self, body_bytes_max: usize) {
        self.body_bytes_max = body_bytes_max;
    }

    /// One of those already read.
    pub(super) fn take(&mut self) -> Result<Option<Frame>, BadFrame> {
        take(&mut self.buffer, self.body_bytes_max)
    }

    /// Reads more. May be dropped while it waits.
    pub(super) async fn fill(&mut self) -> io::Result<()> {
        if self.buffer.capacity() - self.buffer.len() < READ_BYTES / 4 {
            self.buffer.reserve(READ_BYTES);
        }
        match self.stream.read_buf(&mut self.buffer).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    pub(super) async fn next(&mut self) -> io::Result<Frame> {
        loop {
            if let Some(frame) = self.take()? {
                return Ok(frame);
            }
            self.fill().await?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames() -> Vec<Frame> {
        let frame = |kind, body: &[u8]| Frame {
            kind,
            body: Bytes::copy_from_slice(body),
        };
        vec![
            frame(Kind::Hello, b"first"),
            frame(Kind::Taken, b""),
            frame(Kind::Refusal, b"the third"),
            frame(Kind::Message, &[7; 300]),
        ]
    }

    fn stream() -> Vec<u8> {
        let mut out = Vec::new();
        for frame in frames() {
            put(VERSION_MAX, frame.kind, &frame.body, &mut out);
        }
        out
    }

    /// The frames that arrive of this, read so many bytes at a time.
    fn read(bytes: &[u8], at_once: usize) -> (Vec<Frame>, Result<(), BadFrame>) {
        let (mut buffer, mut frames) = (BytesMut::new(), Vec::new());
        for piece in bytes.chunks(at_once) {
            buffer.extend_from_slice(piece);
            loop {
                match take(&mut buffer, 1000) {
                    Ok(Some(frame)) => frames.push(frame),
                    Ok(None) => break,
                    Err(bad) => return (frames, Err(bad)),
                }
            }
        }
        (frames, Ok(()))
    }

    #[test]
    fn frames_cut_anywhere_arrive_whole_or_not_at_all() {
        let (bytes, sent) = (stream(), frames());
        let frame_bytes = |frame: &Frame| HEADER_BYTES + frame.body.len();
        for at_once in [1, 2, 7, bytes.len()] {
            for cut in 0..=bytes.len() {
                let (came, result) = read(&bytes[..cut], at_once);
                assert_eq!(result, Ok(()));
                assert_eq!(came, sent[..came.len()], "cut at {cut}");
                let whole: usize = came.iter().map(frame_bytes).sum();
                let missing = sent.get(came.len()).map_or(1, frame_bytes);
                assert!(whole <= cut && cut < whole + missing, "cut at {cut}");
            }
        }
    }

    #[test]
    fn a_flipped_bit_is_never_another_message() {
        let (whole, sent) = (stream(), frames());
        for bit in 0..8 * whole.len() {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let (came, _) = read(&bytes, bytes.len());
            assert!(came.len() < sent.len(), "bit {bit} was not noticed");
            assert_eq!(came, sent[..came.len()], "bit {bit}");
        }
    }

    #[test]
    fn a_long_frame_is_refused_by_its_header() {
        let mut buffer = BytesMut::new();
        buffer.extend_from_slice(&[0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 1, 4]);
        let refused = BadFrame::TooLong {
            bytes: u32::MAX as usize,
            bytes_max: 1000,
        };
        assert_eq!(take(&mut buffer, 1000), Err(refused));
        assert!(buffer.capacity() < 2000, "memory was taken for it");
    }

    #[test]
    fn an_unknown_kind_is_refused() {
        let mut header = header(VERSION_MAX, Kind::Message, b"");
        header[9] = 99;
        let checksum = checksum(&header[4..], b"");
        header[..4].copy_from_slice(&checksum.to_le_bytes());
        assert_eq!(read(&header, 9).1, Err(BadFrame::Kind(99)));
    }

    #[test]
    fn an_unknown_version_is_refused_and_named() {
        for version in [0, VERSION_MAX + 1] {
            let header = header(version, Kind::Message, b"");
            assert_eq!(read(&header, 9).1, Err(BadFrame::Version(version)));
        }
        let error = BadFrame::Version(2).to_string();
        assert_eq!(error, "a frame of version 2, the newest one known is 1");
    }

    #[test]
    fn bodies_share_the_memory_that_was_read() {
        let mut buffer = BytesMut::from(&stream()[..]);
        let read = buffer.as_ptr_range();
        let frame = take(&mut buffer, 1000).unwrap().unwrap();
        assert!(read.contains(&frame.body.as_ptr()));
    }
}
