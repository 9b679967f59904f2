//! The tasks of one node, which end together.
//!
//! Kept true: every task of a node, openraft's too, runs in the node's
//! [`Scope`]; when the scope ends, so do they, wherever they are. Chance comes
//! from the scope, so that a simulation can repeat it, and so does a shortage
//! of processor time.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use openraft::OptionalSend;
use openraft::impls::TokioRuntime;
use openraft::{AsyncRuntime, Instant as _};
use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::Sleep;

pub(crate) mod watched;

tokio::task_local! {
    static CURRENT: Scope;
}

/// What the tasks of one node run in.
#[derive(Clone)]
pub struct Scope(Arc<Shared>);

struct Shared {
    tasks: Mutex<Tasks>,
    /// The longest that a task waits before it runs, in milliseconds.
    starved_millis_max: AtomicU64,
}

struct Tasks {
    rng: SmallRng,
    running: Vec<AbortHandle>,
    /// How many there may be before finished ones are looked for.
    sweep_at: usize,
    ended: bool,
}

impl Scope {
    /// A scope without tasks, whose chance is decided by `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(Shared {
            tasks: Mutex::new(Tasks {
                rng: SmallRng::seed_from_u64(seed),
                running: Vec::new(),
                sweep_at: 64,
                ended: false,
            }),
            starved_millis_max: AtomicU64::new(0),
        }))
    }

    /// Starts a task that ends with the scope at the latest.
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let future = Starved {
            scope: self.clone(),
            turn: None,
            future,
        };
        let task = tokio::spawn(CURRENT.scope(self.clone(), future));
        let mut tasks = self.0.tasks.lock();
        if tasks.ended {
            task.abort();
        } else {
            if tasks.running.len() >= tasks.sweep_at {
                tasks.running.retain(|task| !task.is_finished());
                tasks.sweep_at = (2 * tasks.running.len()).max(64);
            }
            tasks.running.push(task.abort_handle());
        }
        task
    }

    /// Runs a future as a part of the scope.
    pub fn enter<F: Future>(&self, future: F) -> impl Future<Output = F::Output> + use<F> {
        CURRENT.scope(self.clone(), future)
    }

    /// Ends all its tasks, those to come too.
    pub fn end(&self) {
        let running = {
            let mut tasks = self.0.tasks.lock();
            tasks.ended = true;
            std::mem::take(&mut tasks.running)
        };
        for task in running {
            task.abort();
        }
    }

    /// A number of the scope's chance.
    #[must_use]
    pub fn random(&self) -> u64 {
        self.0.tasks.lock().rng.next_u64()
    }

    /// As if other processes kept the machine busy: from now on a task of the
    /// scope that could run waits for its turn, up to `longest` by the scope's
    /// chance. Zero ends it. For simulations.
    pub fn starve(&self, longest: Duration) {
        let millis = u64::try_from(longest.as_millis()).unwrap_or(u64::MAX);
        self.0.starved_millis_max.store(millis, Ordering::Relaxed);
    }

    /// How long a task waits for its turn, if at all.
    fn turn(&self) -> Option<Duration> {
        match self.0.starved_millis_max.load(Ordering::Relaxed) {
            0 => None,
            longest => Some(Duration::from_millis(self.random() % (longest + 1))),
        }
    }
}

pin_project_lite::pin_project! {
    /// A task that runs only when it is its turn.
    struct Starved<F> {
        scope: Scope,
        turn: Option<Pin<Box<Sleep>>>,
        #[pin]
        future: F,
    }
}

impl<F: Future> Future for Starved<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        if this.turn.is_none() {
            *this.turn = this
                .scope
                .turn()
                .map(|turn| Box::pin(tokio::time::sleep(turn)));
        }
        if let Some(turn) = this.turn {
            std::task::ready!(turn.as_mut().poll(context));
            *this.turn = None;
        }
        this.future.poll(context)
    }
}

/// Does what may take long so that no other task waits for it, where there are
/// threads for that.
pub(crate) fn aside<T>(work: impl FnOnce() -> T) -> T {
    let flavor = Handle::try_current().map(|runtime| runtime.runtime_flavor());
    match flavor {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        _ => work(),
    }
}

/// Too short to wait for.
const MOMENT: Duration = Duration::from_micros(1);

/// What tokio's timer rounds up to.
const TIMER_TICK: Duration = Duration::from_millis(1);

/// openraft's runtime: tokio, inside the current [`Scope`].
#[derive(Debug)]
pub(crate) struct Runtime;

impl AsyncRuntime for Runtime {
    type JoinError = <TokioRuntime as AsyncRuntime>::JoinError;
    type JoinHandle<T: OptionalSend + 'static> = <TokioRuntime as AsyncRuntime>::JoinHandle<T>;
    type Sleep = <TokioRuntime as AsyncRuntime>::Sleep;
    type Instant = <TokioRuntime as AsyncRuntime>::Instant;
    type TimeoutError = <TokioRuntime as AsyncRuntime>::TimeoutError;
    type Timeout<R, T: Future<Output = R> + OptionalSend> =
        <TokioRuntime as AsyncRuntime>::Timeout<R, T>;
    type ThreadLocalRng = SmallRng;
    type Mpsc = <TokioRuntime as AsyncRuntime>::Mpsc;
    type Watch = watched::Watched;
    type Oneshot = <TokioRuntime as AsyncRuntime>::Oneshot;
    type Mutex<T: OptionalSend + 'static> = <TokioRuntime as AsyncRuntime>::Mutex<T>;

    fn spawn<T>(future: T) -> Self::JoinHandle<T::Output>
    where
        T: Future + OptionalSend + 'static,
        T::Output: OptionalSend + 'static,
    {
        match CURRENT.try_with(Scope::clone) {
            Ok(scope) => scope.spawn(future),
            Err(_) => tokio::spawn(future),
        }
    }

    fn sleep(duration: Duration) -> Self::Sleep {
        TokioRuntime::sleep(duration)
    }

    /// A deadline a moment away is now: openraft waits "a microsecond" for
    /// more completions of the log, and the timer would make a millisecond of
    /// it. Asked for again, it has its timer, so that nobody waits in circles
    /// for a clock that stands still.
    fn sleep_until(deadline: Self::Instant) -> Self::Sleep {
        thread_local! {
            static SKIPPED: Cell<Option<<Runtime as AsyncRuntime>::Instant>> =
                const { Cell::new(None) };
        }
        let now = Self::Instant::now();
        let skip = deadline <= now + MOMENT && SKIPPED.replace(Some(deadline)) != Some(deadline);
        TokioRuntime::sleep_until(if skip { now - TIMER_TICK } else { deadline })
    }

    fn timeout<R, F: Future<Output = R> + OptionalSend>(
        duration: Duration,
        future: F,
    ) -> Self::Timeout<R, F> {
        TokioRuntime::timeout(duration, future)
    }

    fn timeout_at<R, F: Future<Output = R> + OptionalSend>(
        deadline: Self::Instant,
        future: F,
    ) -> Self::Timeout<R, F> {
        TokioRuntime::timeout_at(deadline, future)
    }

    fn is_panic(join_error: &Self::JoinError) -> bool {
        TokioRuntime::is_panic(join_error)
    }

    fn thread_rng() -> SmallRng {
        thread_local! {
            static OUTSIDE: RefCell<SmallRng> = RefCell::new(rand::make_rng());
        }
        let seed = match CURRENT.try_with(Scope::random) {
            Ok(seed) => seed,
            Err(_) => OUTSIDE.with(|rng| rng.borrow_mut().next_u64()),
        };
        SmallRng::seed_from_u64(seed)
    }

    fn new(threads: usize) -> Self {
        let _ = threads;
        Self
    }

    fn block_on<F, T>(&mut self, future: F) -> T
    where
        F: Future<Output = T>,
    {
        TokioRuntime::new(1).block_on(future)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    /// How long a task takes that is polled ten times.
    async fn time_of_ten_turns(scope: &Scope) -> Duration {
        let start = Instant::now();
        let work = async {
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
        };
        scope.spawn(work).await.expect("it ends");
        start.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_starved_scope_is_slow_by_its_own_chance() {
        let longest = Duration::from_millis(100);
        let mut times = Vec::new();
        for seed in [1, 1, 2] {
            let scope = Scope::new(seed);
            assert_eq!(time_of_ten_turns(&scope).await, Duration::ZERO);
            scope.starve(longest);
            times.push(time_of_ten_turns(&scope).await);
            scope.starve(Duration::ZERO);
            assert_eq!(time_of_ten_turns(&scope).await, Duration::ZERO);
        }
        assert_eq!(times[0], times[1]);
        assert_ne!(times[0], times[2]);
        // Eleven turns, of 50 ms each on average.
        assert!(
            times
                .iter()
                .all(|time| *time > longest && *time < 11 * longest)
        );
    }
}
