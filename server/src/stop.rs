//! The order to stop, for whoever waits for something.

use tokio::sync::watch;

/// Gives the order.
#[derive(Debug)]
pub(crate) struct Stopper(watch::Sender<bool>);

/// Hears it.
#[derive(Clone, Debug)]
pub(crate) struct Stop(watch::Receiver<bool>);

pub(crate) fn channel() -> (Stopper, Stop) {
    let (sender, receiver) = watch::channel(false);
    (Stopper(sender), Stop(receiver))
}

impl Stopper {
    pub(crate) fn stop(&self) {
        self.0.send_replace(true);
    }
}

impl Stop {
    /// Returns when the order was given.
    pub(crate) async fn ordered(&self) {
        // Gone without an order: that is one too.
        let _ = self.0.clone().wait_for(|stop| *stop).await;
    }
}
