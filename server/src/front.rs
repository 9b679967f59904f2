//! The threads that speak with clients.
//!
//! Each has a runtime of its own; a connection, and all that is decoded and
//! encoded for it, stays on its thread. Requests go over to the groups, and
//! their answers come back, in batches without timers: who finds the other
//! side at work adds to what it will find next, and only who finds it idle
//! wakes it.
//!
//! Kept true: every request that went over is answered, unless its client has
//! gone or the server stops.

use std::cell::RefCell;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use futures_util::future::Either;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use hyper_util::server::graceful::GracefulShutdown;
use parking_lot::Mutex;
use pontoon_engine::{Answer, Op, Request};
use pontoon_raftgroup::{Failure, Node};
use tokio::sync::{Notify, mpsc, oneshot};

use crate::stop::Stop;

/// How long calls may go on when the server stops.
const GRACE: Duration = Duration::from_secs(2);

/// Begins with a connection, on the thread where it will stay.
type Visit = Box<dyn FnOnce(&GracefulShutdown) + Send>;

/// The threads.
pub(crate) struct Fronts {
    threads: Vec<mpsc::UnboundedSender<Visit>>,
    next: AtomicUsize,
}

thread_local! {
    /// The way from this thread to the groups.
    static CROSSING: RefCell<Option<Arc<Crossing>>> = const { RefCell::new(None) };
}

impl Fronts {
    /// Starts a thread for each processor; they end some time after the order
    /// to stop.
    pub(crate) fn start(node: &Node, stop: &Stop) -> io::Result<(Self, Vec<JoinHandle<()>>)> {
        let count = std::thread::available_parallelism()?.get();
        let (mut threads, mut handles) = (Vec::new(), Vec::new());
        for number in 0..count {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            let crossing = Arc::new(Crossing::default());
            let carried = tokio::spawn(carry(node.clone(), Arc::clone(&crossing)));
            let (thread, visits) = mpsc::unbounded_channel();
            let stop = stop.clone();
            let run = move || {
                CROSSING.set(Some(Arc::clone(&crossing)));
                runtime.block_on(async {
                    tokio::spawn(deliver(crossing));
                    receive(visits, stop).await;
                });
                carried.abort();
            };
            let name = format!("front-{number}");
            handles.push(std::thread::Builder::new().name(name).spawn(run)?);
            threads.push(thread);
        }
        let next = AtomicUsize::new(0);
        Ok((Self { threads, next }, handles))
    }

    /// Has a visitor received by the next thread.
    pub(crate) fn receive(&self, visit: impl FnOnce(&GracefulShutdown) + Send + 'static) {
        let next = self.next.fetch_add(1, Relaxed) % self.threads.len();
        // The thread has ended: the server stops, and nobody is received.
        let _ = self.threads[next].send(Box::new(visit));
    }
}

/// Receives visitors until the order to stop, and lets them finish.
async fn receive(mut visits: mpsc::UnboundedReceiver<Visit>, stop: Stop) {
    let graceful = GracefulShutdown::new();
    let mut ordered = pin!(stop.ordered());
    loop {
        tokio::select! {
            biased;
            () = &mut ordered => break,
            visit = visits.recv() => match visit {
                Some(visit) => visit(&graceful),
                None => break,
            },
        }
    }
    let finished = tokio::time::timeout(GRACE, graceful.shutdown());
    if finished.await.is_err() {
        tracing::info!("some calls were not finished when the server stopped");
    }
}

/// Has a request served by the groups.
pub(crate) async fn ask(
    node: &Node,
    request: Request,
    within: Duration,
) -> Result<Answer, Failure> {
    let Some(crossing) = CROSSING.with_borrow(Clone::clone) else {
        return node.request(request, within).await;
    };
    let (answer, answered) = oneshot::channel();
    crossing.go(Asked {
        request,
        within,
        answer,
    });
    answered.await.unwrap_or(Err(Failure::Stopped))
}

/// What goes over and comes back.
#[derive(Default)]
struct Crossing {
    going: Mutex<Vec<Asked>>,
    went: Notify,
    coming: Mutex<Vec<Answered>>,
    came: Notify,
}

struct Asked {
    request: Request,
    within: Duration,
    answer: oneshot::Sender<Result<Answer, Failure>>,
}

type Answered = (
    oneshot::Sender<Result<Answer, Failure>>,
    Result<Answer, Failure>,
);

impl Crossing {
    fn go(&self, asked: Asked) {
        let mut going = self.going.lock();
        going.push(asked);
        if going.len() == 1 {
            drop(going);
            self.went.notify_one();
        }
    }

    fn come(&self, mut answered: Vec<Answered>) {
        let mut coming = self.coming.lock();
        let idle = coming.is_empty();
        coming.append(&mut answered);
        if idle {
            drop(coming);
            self.came.notify_one();
        }
    }
}

/// Where the groups are: asks them all that goes over.
async fn carry(node: Node, crossing: Arc<Crossing>) {
    let mut under_way = FuturesUnordered::new();
    loop {
        tokio::select! {
            biased;
            () = crossing.went.notified() => {
                let asked = std::mem::take(&mut *crossing.going.lock());
                under_way.extend(asked.into_iter().map(|asked| serve(node.clone(), asked)));
            }
            Some(first) = under_way.next() => {
                let mut answered = vec![first];
                while let Some(Some(next)) = under_way.next().now_or_never() {
                    answered.push(next);
                }
                crossing.come(answered);
            }
        }
    }
}

async fn serve(node: Node, asked: Asked) -> Answered {
    let Asked {
        request,
        within,
        answer,
    } = asked;
    let outcome = match is_short(&request) {
        true => Either::Left(async move { node.request(request, within).await }),
        // Nobody else waits while it is looked for.
        false => Either::Right(async move {
            let found = tokio::spawn(async move { node.request(request, within).await });
            found.await.unwrap_or(Err(Failure::Stopped))
        }),
    };
    (answer, outcome.await)
}

/// Whether a request looks at a few keys at most.
fn is_short(request: &Request) -> bool {
    let short = |op: &Op| match op {
        Op::Put(_) | Op::Missing => true,
        Op::Range(range) => range.keys.is_one(),
        Op::DeleteRange(delete) => delete.keys.is_one(),
        Op::Txn(_) => false,
    };
    match request {
        Request::Put(_) => true,
        Request::Range(range) => range.keys.is_one(),
        Request::DeleteRange(delete) => delete.keys.is_one(),
        Request::Txn(txn) => txn.success.iter().chain(&txn.failure).all(short),
        Request::LeaseRevoke(_) => false,
    }
}

/// Where the clients are: wakes those whose answers have come.
async fn deliver(crossing: Arc<Crossing>) {
    loop {
        crossing.came.notified().await;
        let answered = std::mem::take(&mut *crossing.coming.lock());
        for (waiter, answer) in answered {
            // Its client has gone: fine.
            let _ = waiter.send(answer);
        }
    }
}
