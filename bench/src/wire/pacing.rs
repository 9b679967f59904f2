//! When requests are due that don't wait for answers: an open loop.
//!
//! Kept true: when a request is due depends on the rate alone, never on how
//! fast the server is. A turn that nobody was free for is taken late, and its
//! latency still counts from when it was due.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tokio::io::unix::AsyncFd;
use tokio::sync::{Notify, oneshot};

/// Turns come in ticks of this length: waking for each would cost more than the
/// request itself, on both sides.
pub const TICK: Duration = Duration::from_millis(1);
/// Who is due within this time is woken together.
const TOGETHER: Duration = Duration::from_micros(50);

/// Turns of one thread's clients.
pub struct Pacer {
    state: Mutex<State>,
    changed: Notify,
}

struct State {
    turns: Option<Turns>,
    waiting: BinaryHeap<Reverse<Waiting>>,
    is_closed: bool,
}

struct Turns {
    first: Instant,
    every: f64,
    next: u64,
}

impl Turns {
    /// The tick at or before the moment that the rate gives.
    fn due(&self, number: u64) -> Instant {
        let ticks = self.every * number as f64 / TICK.as_secs_f64();
        // What isn't exact must not fall back into the tick before.
        let ticks = (ticks + 1e-6) as u64;
        self.first + Duration::from_nanos(ticks.saturating_mul(TICK.as_nanos() as u64))
    }
}

struct Waiting {
    due: Instant,
    sender: oneshot::Sender<()>,
}

impl PartialEq for Waiting {
    fn eq(&self, other: &Self) -> bool {
        self.due == other.due
    }
}

impl Eq for Waiting {}

impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Waiting {
    fn cmp(&self, other: &Self) -> Ordering {
        self.due.cmp(&other.due)
    }
}

/// When a request is due.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    /// The moment.
    pub due: Instant,
    /// Somebody was free for it then.
    pub in_time: bool,
}

impl Pacer {
    /// Begins to pace on the runtime that this is called on.
    pub fn begin() -> io::Result<Arc<Self>> {
        let timer = timerfd_create(
            TimerfdClockId::Monotonic,
            TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
        )?;
        // What it warns of is a descriptor that changes or closes meanwhile; an
        // `OwnedFd` does neither, and the other way to say this is unsafe.
        #[expect(deprecated)]
        let timer = AsyncFd::new(timer)?;
        let pacer = Arc::new(Self {
            state: Mutex::new(State {
                turns: None,
                waiting: BinaryHeap::new(),
                is_closed: false,
            }),
            changed: Notify::new(),
        });
        let driven = Arc::clone(&pacer);
        tokio::spawn(async move { driven.drive(&timer).await });
        Ok(pacer)
    }

    /// From `first` on a turn is due every so many seconds, at the tick before.
    pub fn set_turns(&self, first: Instant, every: f64) {
        self.state.lock().turns.get_or_insert(Turns {
            first,
            every,
            next: 0,
        });
    }

    /// Takes the next turn and waits for it; none if there are no more.
    pub async fn turn(&self) -> Option<Turn> {
        let due = {
            let mut state = self.state.lock();
            let turns = state.turns.as_mut().filter(|turns| turns.every > 0.0)?;
            let due = turns.due(turns.next);
            turns.next += 1;
            due
        };
        self.until(due).await
    }

    /// Waits for a moment; none if there are no more turns.
    pub async fn until(&self, due: Instant) -> Option<Turn> {
        if self.state.lock().is_closed {
            return None;
        }
        if due <= Instant::now() {
            return Some(Turn {
                due,
                in_time: false,
            });
        }
        let woken = {
            let (sender, woken) = oneshot::channel();
            let mut state = self.state.lock();
            let is_first = state
                .waiting
                .peek()
                .is_none_or(|Reverse(first)| due < first.due);
            state.waiting.push(Reverse(Waiting { due, sender }));
            if is_first {
                self.changed.notify_one();
            }
            woken
        };
        woken.await.ok()?;
        Some(Turn { due, in_time: true })
    }

    /// Turns up to a moment that nobody has taken.
    #[must_use]
    pub fn untaken(&self, until: Instant) -> u64 {
        let state = self.state.lock();
        let Some(turns) = state.turns.as_ref().filter(|turns| turns.every > 0.0) else {
            return 0;
        };
        let due = until.saturating_duration_since(turns.first).as_secs_f64() / turns.every;
        (due as u64).saturating_sub(turns.next)
    }

    /// There are no more turns.
    pub fn close(&self) {
        let mut state = self.state.lock();
        state.is_closed = true;
        state.waiting.clear();
    }

    async fn drive(&self, timer: &AsyncFd<OwnedFd>) {
        loop {
            let first = self.state.lock().waiting.peek().map(|first| first.0.due);
            let Some(due) = first else {
                self.changed.notified().await;
                continue;
            };
            let left = due.saturating_duration_since(Instant::now());
            tokio::select! {
                biased;
                () = sleep(timer, left.max(TOGETHER)) => {}
                // Somebody is due sooner.
                () = self.changed.notified() => {}
            }
            let now = Instant::now();
            let mut state = self.state.lock();
            while state.waiting.peek().is_some_and(|first| first.0.due <= now) {
                if let Some(Reverse(waiting)) = state.waiting.pop() {
                    // Who gave up needs no turn.
                    let _ = waiting.sender.send(());
                }
            }
        }
    }
}

/// Tokio's own timers are of a millisecond.
async fn sleep(timer: &AsyncFd<OwnedFd>, time: Duration) {
    let spec = Itimerspec {
        it_interval: Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        },
        it_value: Timespec {
            tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: time.subsec_nanos().into(),
        },
    };
    if timerfd_settime(timer, TimerfdTimerFlags::empty(), &spec).is_err() {
        return tokio::time::sleep(time).await;
    }
    if let Ok(mut ready) = timer.readable().await {
        let mut count = [0; 8];
        let _ = rustix::io::read(timer, &mut count);
        ready.clear_ready();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn turns_are_due_by_the_rate_alone() {
        let pacer = Pacer::begin().unwrap();
        let first = Instant::now();
        pacer.set_turns(first, 0.0005);
        for number in 0..20 {
            let turn = pacer.turn().await.unwrap();
            assert_eq!(turn.due, first + Duration::from_millis(number / 2));
            assert!(Instant::now() >= turn.due);
        }
        // Whoever is held up finds the turns that passed, late.
        std::thread::sleep(Duration::from_millis(5));
        assert!(pacer.untaken(Instant::now()) >= 8);
        let late = pacer.turn().await.unwrap();
        assert!(!late.in_time);
        assert_eq!(late.due, first + Duration::from_millis(10));
    }

    #[tokio::test]
    async fn the_sooner_is_first_and_the_end_wakes_all() {
        let pacer = Pacer::begin().unwrap();
        let now = Instant::now();
        let far = tokio::spawn({
            let pacer = pacer.clone();
            async move { pacer.until(now + Duration::from_secs(3600)).await }
        });
        tokio::task::yield_now().await;
        let near = pacer.until(now + Duration::from_millis(2)).await.unwrap();
        assert!(near.in_time && Instant::now() < now + Duration::from_secs(3600));
        pacer.close();
        assert!(far.await.unwrap().is_none());
        assert!(pacer.until(now).await.is_none() && pacer.turn().await.is_none());
    }
}
