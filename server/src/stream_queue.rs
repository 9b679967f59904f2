//! The queue between the task that serves a stream and its response body.
//!
//! Kept true: items come out in the order in which they went in; an empty queue
//! holds no memory for them. (A channel of tokio's holds room for 32 items from
//! the start, some 6 KiB for each open stream.)

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use futures_util::Stream;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// A queue of at most `items_max` items, by its two ends.
pub(crate) fn stream_queue<T>(items_max: usize) -> (Sender<T>, Receiver<T>) {
    assert!(items_max > 0, "a queue without room blocks for ever");
    let shared = Arc::new(Shared {
        items_max,
        state: Mutex::new(State {
            items: VecDeque::new(),
            receiver: None,
            senders: 1,
            is_received: true,
        }),
        taken: Notify::new(),
    });
    let sender = Sender(Arc::clone(&shared));
    (sender, Receiver(shared))
}

struct Shared<T> {
    items_max: usize,
    state: Mutex<State<T>>,
    /// An item was taken, or the receiver is gone.
    taken: Notify,
}

struct State<T> {
    items: VecDeque<T>,
    /// Wakes the receiver that found the queue empty.
    receiver: Option<Waker>,
    senders: usize,
    is_received: bool,
}

/// The end that items go into.
pub(crate) struct Sender<T>(Arc<Shared<T>>);

/// The end that items come out of; a stream, which ends when all senders are
/// gone and all items were taken.
pub(crate) struct Receiver<T>(Arc<Shared<T>>);

/// The receiver is gone.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Closed;

impl<T> Sender<T> {
    /// Waits for a place and puts the item there.
    pub(crate) async fn send(&self, item: T) -> Result<(), Closed> {
        let mut item = Some(item);
        loop {
            let taken = self.0.taken.notified();
            let sent = self.try_send(&mut item)?;
            if sent {
                return Ok(());
            }
            taken.await;
        }
    }

    fn try_send(&self, item: &mut Option<T>) -> Result<bool, Closed> {
        let receiver = {
            let mut state = self.0.state.lock();
            if !state.is_received {
                return Err(Closed);
            }
            if state.items.len() >= self.0.items_max {
                return Ok(false);
            }
            state.items.extend(item.take());
            state.receiver.take()
        };
        if let Some(receiver) = receiver {
            receiver.wake();
        }
        Ok(true)
    }

    /// Waits until the receiver is gone.
    pub(crate) async fn closed(&self) {
        loop {
            let taken = self.0.taken.notified();
            if !self.0.state.lock().is_received {
                return;
            }
            taken.await;
        }
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.0.state.lock().senders += 1;
        Self(Arc::clone(&self.0))
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let receiver = {
            let mut state = self.0.state.lock();
            state.senders -= 1;
            match state.senders {
                0 => state.receiver.take(),
                _ => None,
            }
        };
        if let Some(receiver) = receiver {
            receiver.wake();
        }
    }
}

impl<T> Stream for Receiver<T> {
    type Item = T;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        let item = {
            let mut state = self.0.state.lock();
            match state.items.pop_front() {
                Some(item) => {
                    if state.items.is_empty() {
                        state.items = VecDeque::new();
                    }
                    item
                }
                None if state.senders == 0 => return Poll::Ready(None),
                None => {
                    state.receiver = Some(context.waker().clone());
                    return Poll::Pending;
                }
            }
        };
        self.0.taken.notify_waiters();
        Poll::Ready(Some(item))
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let items = {
            let mut state = self.0.state.lock();
            state.is_received = false;
            std::mem::take(&mut state.items)
        };
        drop(items);
        self.0.taken.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::{FutureExt, StreamExt};

    use super::*;

    #[tokio::test]
    async fn items_come_in_order_and_a_full_queue_waits() {
        let (sender, mut receiver) = stream_queue(2);
        assert_eq!(sender.send(1).now_or_never(), Some(Ok(())));
        assert_eq!(sender.send(2).now_or_never(), Some(Ok(())));
        assert_eq!(sender.send(3).now_or_never(), None);
        let more = tokio::spawn(async move {
            for item in 3..100 {
                sender.send(item).await.unwrap();
            }
        });
        for item in 1..100 {
            assert_eq!(receiver.next().await, Some(item));
        }
        more.await.unwrap();
        assert_eq!(receiver.next().await, None);
    }

    #[tokio::test]
    async fn a_receiver_that_goes_ends_all_senders() {
        let (sender, receiver) = stream_queue(1);
        assert_eq!(sender.closed().now_or_never(), None);
        sender.send(1).await.unwrap();
        let other = sender.clone();
        let waits = tokio::spawn(async move { other.send(2).await });
        tokio::task::yield_now().await;
        drop(receiver);
        assert_eq!(waits.await.unwrap(), Err(Closed));
        assert_eq!(sender.send(3).await, Err(Closed));
        sender.closed().await;
    }

    #[tokio::test]
    async fn an_item_is_taken_though_its_sender_is_gone() {
        let (sender, mut receiver) = stream_queue(1);
        sender.send(1).await.unwrap();
        drop(sender);
        assert_eq!(receiver.next().await, Some(1));
        assert_eq!(receiver.next().await, None);
    }
}
