//! What waits to be written to one connection.
//!
//! Kept true: no more bytes wait than allowed, unless it is one message alone;
//! all that waits is written at once, up to a limit, and nothing waits for a
//! timer; once closed, nothing is taken.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::Notify;

use super::frame::{self, Kind};
use super::network::Unsent;

/// Most bytes of messages that are gathered for one write.
const WRITE_BYTES_MAX: usize = 256 << 10;

pub(super) struct Outbox {
    bytes_max: usize,
    queue: Mutex<Queue>,
    filled: Notify,
}

#[derive(Default)]
struct Queue {
    messages: VecDeque<Bytes>,
    bytes: usize,
    closed: bool,
}

impl Outbox {
    pub(super) fn new(bytes_max: usize) -> Arc<Self> {
        Arc::new(Self {
            bytes_max,
            queue: Mutex::default(),
            filled: Notify::new(),
        })
    }

    pub(super) fn push(&self, message: Bytes) -> Result<(), Unsent> {
        let mut queue = self.queue.lock();
        if queue.closed {
            return Err(Unsent::NotConnected);
        }
        let bytes = queue.bytes + message.len() + frame::HEADER_BYTES;
        if bytes > self.bytes_max && !queue.messages.is_empty() {
            return Err(Unsent::Full);
        }
        queue.bytes = bytes;
        queue.messages.push_back(message);
        let first = queue.messages.len() == 1;
        drop(queue);
        if first {
            self.filled.notify_one();
        }
        Ok(())
    }

    pub(super) fn close(&self) {
        let mut queue = self.queue.lock();
        queue.closed = true;
        queue.messages = VecDeque::new();
    }

    /// Moves messages for one write to `batch`.
    fn take(&self, batch: &mut Vec<Bytes>) {
        let mut queue = self.queue.lock();
        let mut bytes = 0;
        while let Some(message) = queue.messages.pop_front() {
            bytes += message.len() + frame::HEADER_BYTES;
            if bytes > WRITE_BYTES_MAX && !batch.is_empty() {
                queue.messages.push_front(message);
                break;
            }
            queue.bytes -= message.len() + frame::HEADER_BYTES;
            batch.push(message);
        }
    }

    /// Writes what is pushed, in frames of `version`, until that fails.
    pub(super) async fn write_to(
        self: Arc<Self>,
        mut stream: impl AsyncWrite + Unpin,
        version: u8,
    ) -> io::Result<()> {
        let (mut batch, mut buffer) = (Vec::new(), Vec::new());
        loop {
            self.take(&mut batch);
            if batch.is_empty() {
                self.filled.notified().await;
                continue;
            }
            for message in batch.drain(..) {
                if message.len() < WRITE_BYTES_MAX {
                    frame::put(version, Kind::Message, &message, &mut buffer);
                } else {
                    // It is alone, and long enough not to be copied.
                    stream
                        .write_all(&frame::header(version, Kind::Message, &message))
                        .await?;
                    stream.write_all(&message).await?;
                }
            }
            stream.write_all(&buffer).await?;
            stream.flush().await?;
            buffer.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::frame::Frames;
    use super::*;

    fn message(bytes: usize) -> Bytes {
        vec![bytes as u8; bytes].into()
    }

    #[test]
    fn a_full_queue_refuses_and_a_closed_one_too() {
        let outbox = Outbox::new(1000);
        outbox.push(message(500 - frame::HEADER_BYTES)).unwrap();
        let one_more = message(501 - frame::HEADER_BYTES);
        assert_eq!(outbox.push(one_more), Err(Unsent::Full));
        outbox.push(message(500 - frame::HEADER_BYTES)).unwrap();
        assert_eq!(outbox.push(message(0)), Err(Unsent::Full));
        let mut batch = Vec::new();
        outbox.take(&mut batch);
        assert_eq!(batch.len(), 2);
        // Longer than what may wait, but alone.
        outbox.push(message(5000)).unwrap();
        assert_eq!(outbox.push(message(0)), Err(Unsent::Full));
        outbox.take(&mut batch);
        outbox.close();
        assert_eq!(outbox.push(message(0)), Err(Unsent::NotConnected));
    }

    #[test]
    fn a_batch_is_bounded() {
        let outbox = Outbox::new(usize::MAX);
        let sizes = [
            WRITE_BYTES_MAX / 2,
            WRITE_BYTES_MAX / 2 - 2 * frame::HEADER_BYTES,
            WRITE_BYTES_MAX,
            1,
            2,
        ];
        sizes
            .iter()
            .for_each(|bytes| outbox.push(message(*bytes)).unwrap());
        let batches = std::iter::from_fn(|| {
            let mut batch = Vec::new();
            outbox.take(&mut batch);
            (!batch.is_empty()).then(|| batch.iter().map(Bytes::len).collect::<Vec<_>>())
        });
        let batches: Vec<Vec<usize>> = batches.collect();
        assert_eq!(batches, [&sizes[..2], &sizes[2..3], &sizes[3..]]);
        assert_eq!(outbox.queue.lock().bytes, 0);
    }

    #[tokio::test]
    async fn long_and_short_messages_are_written_in_order() {
        let outbox = Outbox::new(usize::MAX);
        let (one, other) = tokio::io::duplex(1000);
        let writing = tokio::spawn(outbox.clone().write_to(one, frame::VERSION_MAX));
        let mut frames = Frames::new(other, 4 * WRITE_BYTES_MAX);
        let sizes = [
            1,
            0,
            WRITE_BYTES_MAX - 1,
            WRITE_BYTES_MAX,
            3 * WRITE_BYTES_MAX + 1,
            5,
        ];
        for _ in 0..2 {
            sizes
                .iter()
                .for_each(|bytes| outbox.push(message(*bytes)).unwrap());
            for bytes in sizes {
                assert_eq!(frames.next().await.unwrap().body, message(bytes));
            }
        }
        drop(frames);
        outbox.push(message(1)).unwrap();
        assert!(writing.await.unwrap().is_err());
    }
}
