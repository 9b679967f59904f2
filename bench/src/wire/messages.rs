//! How gRPC puts messages on a stream: a byte that says whether it is
//! compressed, four bytes of length, the message.

use bytes::{Buf, Bytes, BytesMut};

use super::failure::Failure;

/// Bytes before every message.
pub const PREFIX_BYTES: usize = 5;

/// Writes what comes before a message.
#[must_use]
pub fn prefix(message_bytes: usize) -> [u8; PREFIX_BYTES] {
    let length = u32::try_from(message_bytes).expect("our requests are small");
    let [a, b, c, d] = length.to_be_bytes();
    [0, a, b, c, d]
}

/// Finds the messages in the chunks of a stream, wherever they are cut.
#[derive(Default)]
pub struct Messages {
    /// What has no whole message yet.
    rest: Rest,
}

#[derive(Default)]
enum Rest {
    #[default]
    Empty,
    /// Chunks that are used as they came.
    Chunk(Bytes),
    /// Chunks that had to be joined.
    Joined(BytesMut),
}

impl Messages {
    /// Takes the next chunk.
    pub fn add(&mut self, chunk: Bytes) {
        self.rest = match std::mem::take(&mut self.rest) {
            Rest::Empty => Rest::Chunk(chunk),
            Rest::Chunk(before) if before.is_empty() => Rest::Chunk(chunk),
            Rest::Chunk(before) => {
                let mut joined = BytesMut::from(before);
                joined.extend_from_slice(&chunk);
                Rest::Joined(joined)
            }
            Rest::Joined(mut joined) => {
                joined.extend_from_slice(&chunk);
                Rest::Joined(joined)
            }
        };
    }

    /// The next message, if it is there as a whole.
    pub fn take(&mut self) -> Result<Option<Bytes>, Failure> {
        let bytes: &[u8] = match &self.rest {
            Rest::Empty => return Ok(None),
            Rest::Chunk(chunk) => chunk,
            Rest::Joined(joined) => joined,
        };
        let &[compressed, a, b, c, d, ..] = bytes else {
            return Ok(None);
        };
        if compressed != 0 {
            return Err(Failure::Answer("compressed, which nobody asked for"));
        }
        let length = u32::from_be_bytes([a, b, c, d]) as usize;
        if bytes.len() - PREFIX_BYTES < length {
            return Ok(None);
        }
        Ok(Some(match &mut self.rest {
            Rest::Empty => Bytes::new(),
            Rest::Chunk(chunk) => {
                chunk.advance(PREFIX_BYTES);
                chunk.split_to(length)
            }
            Rest::Joined(joined) => {
                joined.advance(PREFIX_BYTES);
                joined.split_to(length).freeze()
            }
        }))
    }

    /// Whether no part of a message is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        match &self.rest {
            Rest::Empty => true,
            Rest::Chunk(chunk) => chunk.is_empty(),
            Rest::Joined(joined) => joined.is_empty(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_found_wherever_chunks_are_cut() {
        let texts = ["", "a", "a longer message", "", "end"];
        let stream: Vec<u8> = texts
            .iter()
            .flat_map(|text| [&prefix(text.len())[..], text.as_bytes()].concat())
            .collect();
        for size in 1..=stream.len() {
            let mut messages = Messages::default();
            let mut found = Vec::new();
            for chunk in stream.chunks(size) {
                messages.add(Bytes::copy_from_slice(chunk));
                while let Some(message) = messages.take().unwrap() {
                    found.push(message);
                }
            }
            assert_eq!(found, texts, "in chunks of {size}");
            assert!(messages.is_empty());
        }
        let mut cut = Messages::default();
        cut.add(Bytes::copy_from_slice(&stream[..stream.len() - 1]));
        while cut.take().unwrap().is_some() {}
        assert!(!cut.is_empty());
    }

    #[test]
    fn compressed_messages_are_refused() {
        let mut messages = Messages::default();
        messages.add(Bytes::from_static(&[1, 0, 0, 0, 0]));
        assert!(messages.take().is_err());
    }
}
