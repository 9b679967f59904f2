//! A value that others watch.
//!
//! Kept true: those who wait are woken in the order in which they began to
//! wait. tokio's own channel wakes them in an order of chance that no seed
//! decides.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use openraft::async_runtime::watch::{RecvError, SendError, Watch, WatchReceiver, WatchSender};
use parking_lot::{RwLock, RwLockReadGuard};
use tokio::sync::Notify;

/// Makes such values for openraft.
pub(crate) struct Watched;

struct Shared<T> {
    value: RwLock<T>,
    /// Counts changes; only raised while `value` is locked.
    version: AtomicU64,
    senders: AtomicUsize,
    receivers: AtomicUsize,
    changed: Notify,
}

pub(crate) struct Sender<T>(Arc<Shared<T>>);

pub(crate) struct Receiver<T> {
    shared: Arc<Shared<T>>,
    seen: u64,
}

impl Watch for Watched {
    type Sender<T: Send + Sync> = Sender<T>;
    type Receiver<T: Send + Sync> = Receiver<T>;
    type Ref<'a, T: Send + 'a> = RwLockReadGuard<'a, T>;

    fn channel<T: Send + Sync>(value: T) -> (Sender<T>, Receiver<T>) {
        let shared = Arc::new(Shared {
            value: RwLock::new(value),
            version: AtomicU64::new(0),
            senders: AtomicUsize::new(1),
            receivers: AtomicUsize::new(1),
            changed: Notify::new(),
        });
        let receiver = Receiver {
            shared: Arc::clone(&shared),
            seen: 0,
        };
        (Sender(shared), receiver)
    }
}

impl<T: Send + Sync> Sender<T> {
    /// Nobody watches it yet.
    pub(crate) fn new(value: T) -> Self {
        Watched::channel(value).0
    }

    pub(crate) fn borrow(&self) -> RwLockReadGuard<'_, T> {
        self.0.value.read()
    }

    pub(crate) fn subscribe(&self) -> Receiver<T> {
        WatchSender::subscribe(self)
    }

    pub(crate) fn send_if_modified(&self, modify: impl FnOnce(&mut T) -> bool) -> bool {
        WatchSender::send_if_modified(self, modify)
    }

    pub(crate) fn send_modify(&self, modify: impl FnOnce(&mut T)) {
        self.send_if_modified(|value| {
            modify(value);
            true
        });
    }

    pub(crate) fn send_replace(&self, new: T) -> T {
        let mut old = None;
        self.send_modify(|value| old = Some(std::mem::replace(value, new)));
        old.expect("it was replaced")
    }
}

impl<T: Send + Sync> Receiver<T> {
    pub(crate) fn borrow(&self) -> RwLockReadGuard<'_, T> {
        self.shared.value.read()
    }

    pub(crate) fn borrow_and_update(&mut self) -> RwLockReadGuard<'_, T> {
        WatchReceiver::borrow_and_update(self)
    }

    /// What there is now doesn't count as a change.
    pub(crate) fn mark_unchanged(&mut self) {
        drop(self.borrow_and_update());
    }

    pub(crate) async fn changed(&mut self) -> Result<(), RecvError> {
        WatchReceiver::changed(self).await
    }

    /// Returns when the value is as it should be; an error if it will never be.
    pub(crate) async fn wait_for(
        &mut self,
        mut wanted: impl FnMut(&T) -> bool,
    ) -> Result<(), RecvError> {
        loop {
            if wanted(&self.borrow_and_update()) {
                return Ok(());
            }
            self.changed().await?;
        }
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.0.senders.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(&self.0))
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        if self.0.senders.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.changed.notify_waiters();
        }
    }
}

impl<T: Send + Sync> WatchSender<Watched, T> for Sender<T> {
    fn send(&self, value: T) -> Result<(), SendError<T>> {
        if self.0.receivers.load(Ordering::Acquire) == 0 {
            return Err(SendError(value));
        }
        self.send_if_modified(|current| {
            *current = value;
            true
        });
        Ok(())
    }

    fn send_if_modified<F: FnOnce(&mut T) -> bool>(&self, modify: F) -> bool {
        let mut value = self.0.value.write();
        if !modify(&mut value) {
            return false;
        }
        self.0.version.fetch_add(1, Ordering::Release);
        drop(value);
        self.0.changed.notify_waiters();
        true
    }

    fn borrow_watched(&self) -> RwLockReadGuard<'_, T> {
        self.0.value.read()
    }

    fn subscribe(&self) -> Receiver<T> {
        self.0.receivers.fetch_add(1, Ordering::Relaxed);
        let value = self.0.value.read();
        let seen = self.0.version.load(Ordering::Acquire);
        drop(value);
        Receiver {
            shared: Arc::clone(&self.0),
            seen,
        }
    }
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Self {
        self.shared.receivers.fetch_add(1, Ordering::Relaxed);
        Self {
            shared: Arc::clone(&self.shared),
            seen: self.seen,
        }
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.shared.receivers.fetch_sub(1, Ordering::AcqRel);
    }
}

impl<T: Send + Sync> WatchReceiver<Watched, T> for Receiver<T> {
    async fn changed(&mut self) -> Result<(), RecvError> {
        loop {
            let shared = Arc::clone(&self.shared);
            let mut changed = std::pin::pin!(shared.changed.notified());
            // Before looking, so that no change falls in between.
            changed.as_mut().enable();
            let version = self.shared.version.load(Ordering::Acquire);
            if version != self.seen {
                self.seen = version;
                return Ok(());
            }
            if self.shared.senders.load(Ordering::Acquire) == 0 {
                return Err(RecvError(()));
            }
            changed.await;
        }
    }

    fn borrow_watched(&self) -> RwLockReadGuard<'_, T> {
        self.shared.value.read()
    }

    fn borrow_and_update(&mut self) -> RwLockReadGuard<'_, T> {
        let value = self.shared.value.read();
        self.seen = self.shared.version.load(Ordering::Acquire);
        value
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[tokio::test]
    async fn those_who_wait_are_woken_in_order_and_see_the_end() {
        for _ in 0..20 {
            let (sender, receiver) = Watched::channel(0);
            let woken = Arc::new(Mutex::new(Vec::new()));
            let tasks: Vec<_> = (0..10)
                .map(|waiter| {
                    let (mut receiver, woken) = (receiver.clone(), Arc::clone(&woken));
                    tokio::spawn(async move {
                        receiver.changed().await.unwrap();
                        woken
                            .lock()
                            .unwrap()
                            .push((waiter, *receiver.borrow_watched()));
                        assert!(receiver.changed().await.is_err());
                    })
                })
                .collect();
            tokio::task::yield_now().await;
            sender.send(7).unwrap();
            tokio::task::yield_now().await;
            drop(sender);
            for task in tasks {
                task.await.unwrap();
            }
            let expected: Vec<_> = (0..10).map(|waiter| (waiter, 7)).collect();
            assert_eq!(*woken.lock().unwrap(), expected);
        }
    }

    #[tokio::test]
    async fn a_last_change_is_seen_before_the_end() {
        let (sender, mut receiver) = Watched::channel(0);
        let other = sender.clone();
        drop(sender);
        assert!(other.send_if_greater(1) && !other.send_if_greater(1));
        drop(other);
        receiver.changed().await.unwrap();
        assert_eq!(*receiver.borrow_and_update(), 1);
        assert!(receiver.changed().await.is_err());
    }
}
