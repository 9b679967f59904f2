//! Where a simulated disk's tasks run: on the thread of the simulation, also
//! when they are started by a task that could run on any thread.

use std::cell::RefCell;

use tokio::sync::mpsc;

use super::Task;

thread_local! {
    /// Takes tasks to the thread's current simulation.
    static HOST: RefCell<Option<mpsc::UnboundedSender<Task>>> = const { RefCell::new(None) };
}

/// From now on disks' tasks run in the current `LocalSet`, whoever starts
/// them, until it is dropped. Without it, they must be started from inside one.
pub fn host() {
    let (host, mut tasks) = mpsc::unbounded_channel::<Task>();
    tokio::task::spawn_local(async move {
        while let Some(task) = tasks.recv().await {
            tokio::task::spawn_local(task());
        }
    });
    HOST.set(Some(host));
}

/// Starts a task.
pub(super) fn run(task: Task) {
    let sent = HOST.with_borrow(|host| match host {
        Some(host) => host.send(task).map_err(|refused| refused.0),
        None => Err(task),
    });
    if let Err(task) = sent {
        tokio::task::spawn_local(task());
    }
}
