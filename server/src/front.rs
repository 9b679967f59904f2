//! The threads that speak with clients.
//!
//! Each has a runtime of its own; a connection, and all that is decoded and
//! encoded for it, stays on its thread. A write whose leader is here is put in
//! that leader's queue, a read of one key from the only group waits for the
//! group's word and is done here; other requests go over to the groups. All
//! answers come back in batches without timers: who finds the other side at
//! work adds to what it will find next, and only who finds it idle wakes it.
//!
//! Kept true: every request that went over is answered, unless its client has
//! gone or the server stops.

use std::cell::RefCell;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use futures_util::future::Either;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use hyper_util::server::graceful::GracefulShutdown;
use parking_lot::Mutex;
use pontoon_engine::{Answer, Op, Range, RangeAnswer, Request};
use pontoon_raftgroup::{Failure, Node};
use tokio::sync::{Notify, mpsc, oneshot};

use crate::stop::Stop;

/// How long calls may go on when the server stops.
const GRACE: Duration = Duration::from_secs(2);

/// How long a quorum's word is waited for before the long way is gone.
const CONFIRM_WITHIN: Duration = Duration::from_secs(1);

/// How long a thread that clients ask has a timer.
const AWAKE: Duration = Duration::from_millis(50);

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
            let confirmed = tokio::spawn(confirm(node.clone(), Arc::clone(&crossing)));
            let (thread, visits) = mpsc::unbounded_channel();
            let stop = stop.clone();
            let run = move || {
                CROSSING.set(Some(Arc::clone(&crossing)));
                runtime.block_on(async {
                    tokio::spawn(deliver(crossing));
                    receive(visits, stop).await;
                });
                carried.abort();
                confirmed.abort();
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
        // On its own, so that the others are small.
        return Box::pin(node.request(request, within)).await;
    };
    let asked = Instant::now();
    let short = match &request {
        Request::Range(range) => read(&crossing, node, range).await,
        Request::LeaseRevoke(_) => None,
        write => hand_in(&crossing, node, write.clone(), within).await,
    };
    if let Some(outcome) = short {
        return outcome;
    }
    let within = within.saturating_sub(asked.elapsed());
    cross(&crossing, What::Request(request), within).await
}

/// A serializable read, done here if it is short.
pub(crate) async fn read_serializable(
    node: &Node,
    range: Range,
    within: Duration,
) -> Result<RangeAnswer, Failure> {
    let crossing = CROSSING.with_borrow(Clone::clone);
    let Some(crossing) = crossing.filter(|_| !range.is_short()) else {
        return Box::pin(node.read_serializable(&range, within)).await;
    };
    match cross(&crossing, What::Serializable(range), within).await? {
        Answer::Range(answer) => Ok(answer),
        _ => Err(Failure::Stopped),
    }
}

/// Has something done where the groups are.
async fn cross(crossing: &Crossing, what: What, within: Duration) -> Result<Answer, Failure> {
    let (waiter, answered) = oneshot::channel();
    crossing.going.push(Asked {
        what,
        within,
        waiter,
    });
    let answered = answered.await.ok().flatten();
    answered.unwrap_or(Err(Failure::Stopped))
}

/// Reads a key of the only group, if this member leads it.
async fn read(crossing: &Crossing, node: &Node, range: &Range) -> Outcome {
    if !range.keys.is_one() || !node.leads_alone() {
        return None;
    }
    let (waiter, confirmed) = oneshot::channel();
    crossing.doubts.push(waiter);
    match confirmed.await {
        Ok(true) => node.read_alone(range).map(|read| read.map(Answer::Range)),
        _ => None,
    }
}

/// Hands a write to its leader, if that is here.
async fn hand_in(
    crossing: &Arc<Crossing>,
    node: &Node,
    request: Request,
    within: Duration,
) -> Outcome {
    let (waiter, answered) = oneshot::channel();
    let way_back = Arc::clone(crossing);
    let done = move |outcome| way_back.coming.push(Come::Outcome(waiter, outcome));
    if !node.hand_in(request, done) {
        return None;
    }
    stay_awake(crossing);
    match tokio::time::timeout(within, answered).await {
        Ok(Ok(outcome)) => outcome,
        // Whoever had it is gone.
        Ok(Err(_)) => Some(Err(Failure::LeaderChanged)),
        Err(_) => Some(Err(Failure::TimedOut)),
    }
}

/// While clients ask, this thread has a timer that ends soon: its runtime wakes
/// itself, with a system call, for each new one that would be the first to end.
fn stay_awake(crossing: &Arc<Crossing>) {
    crossing.asked.store(true, Relaxed);
    if crossing.awake.swap(true, Relaxed) {
        return;
    }
    let crossing = Arc::clone(crossing);
    tokio::spawn(async move {
        while crossing.asked.swap(false, Relaxed) {
            tokio::time::sleep(AWAKE).await;
        }
        crossing.awake.store(false, Relaxed);
    });
}

/// What goes over and comes back.
#[derive(Default)]
struct Crossing {
    /// Whether somebody has asked lately, and whether that is looked at.
    asked: AtomicBool,
    awake: AtomicBool,
    going: Batch<Asked>,
    /// Reads that want to know whether this member still leads.
    doubts: Batch<oneshot::Sender<bool>>,
    coming: Batch<Come>,
}

/// What gathers for somebody who takes all of it.
struct Batch<T> {
    items: Mutex<Vec<T>>,
    filled: Notify,
}

impl<T> Default for Batch<T> {
    fn default() -> Self {
        Self {
            items: Mutex::default(),
            filled: Notify::new(),
        }
    }
}

impl<T> Batch<T> {
    fn push(&self, item: T) {
        self.extend([item]);
    }

    fn extend(&self, more: impl IntoIterator<Item = T>) {
        let mut items = self.items.lock();
        let idle = items.is_empty();
        items.extend(more);
        drop(items);
        if idle {
            self.filled.notify_one();
        }
    }

    /// All there is, when there is something.
    async fn take(&self) -> Vec<T> {
        self.filled.notified().await;
        std::mem::take(&mut *self.items.lock())
    }
}

struct Asked {
    what: What,
    within: Duration,
    waiter: Waiter,
}

/// What the groups can be asked.
enum What {
    Request(Request),
    Serializable(Range),
}

/// What came of a request; `None` if it has to be asked once more.
type Outcome = Option<Result<Answer, Failure>>;
type Waiter = oneshot::Sender<Outcome>;

/// What comes back.
enum Come {
    Outcome(Waiter, Outcome),
    Confirmed(oneshot::Sender<bool>, bool),
}

/// Where the groups are: asks them all that goes over.
async fn carry(node: Node, crossing: Arc<Crossing>) {
    let mut under_way = FuturesUnordered::new();
    loop {
        tokio::select! {
            biased;
            asked = crossing.going.take() => {
                under_way.extend(asked.into_iter().map(|asked| serve(node.clone(), asked)));
            }
            Some(first) = under_way.next() => {
                let mut answered = vec![first];
                while let Some(Some(next)) = under_way.next().now_or_never() {
                    answered.push(next);
                }
                crossing.coming.extend(answered);
            }
        }
    }
}

/// Where the groups are: has all confirmed that wait for it, in one go.
async fn confirm(node: Node, crossing: Arc<Crossing>) {
    loop {
        let waiting = crossing.doubts.take().await;
        let confirmed = tokio::time::timeout(CONFIRM_WITHIN, node.confirm_alone()).await;
        let confirmed = confirmed.unwrap_or(false);
        let told = waiting.into_iter();
        let told = told.map(|waiter| Come::Confirmed(waiter, confirmed));
        crossing.coming.extend(told);
    }
}

async fn serve(node: Node, asked: Asked) -> Come {
    let Asked {
        what,
        within,
        waiter,
    } = asked;
    let outcome = match is_short(&what) {
        true => Either::Left(find(node, what, within)),
        // Nobody else waits while it is looked for.
        false => Either::Right(async move {
            let found = tokio::spawn(find(node, what, within));
            found.await.unwrap_or(Err(Failure::Stopped))
        }),
    };
    Come::Outcome(waiter, Some(outcome.await))
}

async fn find(node: Node, what: What, within: Duration) -> Result<Answer, Failure> {
    match what {
        What::Request(request) => node.request(request, within).await,
        What::Serializable(range) => {
            let read = node.read_serializable(&range, within).await;
            read.map(Answer::Range)
        }
    }
}

/// Whether a request looks at a few keys at most.
fn is_short(what: &What) -> bool {
    let What::Request(request) = what else {
        return false;
    };
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
        for come in crossing.coming.take().await {
            // Its client has gone: fine.
            match come {
                Come::Outcome(waiter, outcome) => drop(waiter.send(outcome)),
                Come::Confirmed(waiter, confirmed) => drop(waiter.send(confirmed)),
            }
        }
    }
}
