//! The order to stop, for whoever waits for something.

use std::sync::Arc;

use tokio::sync::watch;

/// Gives the order.
#[derive(Clone, Debug)]
pub(crate) struct Stopper(Arc<watch::Sender<bool>>);

/// Hears it.
#[derive(Clone, Debug)]
pub(crate) struct Stop(watch::Receiver<bool>);

pub(crate) fn channel() -> (Stopper, Stop) {
    let (sender, receiver) = watch::channel(false);
    (Stopper(Arc::new(sender)), Stop(receiver))
}

impl Stopper {
    pub(crate) fn stop(&self) {
        self.0.send_replace(true);
    }
}

impl Stop {
    /// Whether the order was given.
    pub(crate) fn is_ordered(&self) -> bool {
        *self.0.borrow() || self.0.has_changed().is_err()
    }

    /// Returns when the order was given.
    pub(crate) async fn ordered(&self) {
        // Gone without an order: that is one too.
        let _ = self.0.clone().wait_for(|stop| *stop).await;
    }
}
