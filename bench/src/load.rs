//! Clients in the background, and when each of their requests was asked and
//! answered, so that what happens meanwhile can be told from what was before.
//!
//! Kept true: a client that is held up doesn't hide how long others would have
//! waited. A paced one goes on asking as often as it should, and what it asks
//! late counts from when it should have asked.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pontoon_raftgroup::Failure;
use tokio::task::JoinHandle;

use crate::samples::Samples;

/// How late a client may wake up because timers are coarse.
const COARSE: Duration = Duration::from_millis(3);

/// One request.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// When it was asked, or should have been.
    pub at: Instant,
    /// How long the answer took from then.
    pub took: Duration,
}

/// Clients that ask until they are stopped.
pub struct Load {
    stop: Arc<AtomicBool>,
    start: Instant,
    clients: Vec<JoinHandle<Result<Vec<Asked>, Failure>>>,
}

impl Load {
    /// Each client asks again as soon as it is answered. `ask` is given the
    /// client and chance, and tells whether the request counts.
    pub fn closed<A, F>(count: usize, ask: A) -> Self
    where
        A: Fn(usize, u32) -> F + Clone + Send + 'static,
        F: Future<Output = Result<bool, Failure>> + Send + 'static,
    {
        Self::start(count, None, ask)
    }

    /// All clients together ask `per_second` times, evenly.
    pub fn paced<A, F>(count: usize, per_second: u32, ask: A) -> Self
    where
        A: Fn(usize, u32) -> F + Clone + Send + 'static,
        F: Future<Output = Result<bool, Failure>> + Send + 'static,
    {
        Self::start(count, Some(Duration::from_secs(1) / per_second), ask)
    }

    fn start<A, F>(count: usize, pace: Option<Duration>, ask: A) -> Self
    where
        A: Fn(usize, u32) -> F + Clone + Send + 'static,
        F: Future<Output = Result<bool, Failure>> + Send + 'static,
    {
        let stop = Arc::new(AtomicBool::new(false));
        let start = Instant::now();
        let clients = (0..count).map(|client| {
            let (stop, ask) = (Arc::clone(&stop), ask.clone());
            let mut due = pace.map(|pace| start + pace * client as u32);
            tokio::spawn(async move {
                let mut asked = Vec::new();
                let mut chance = client as u64 + 1;
                while !stop.load(Ordering::Relaxed) {
                    chance = chance
                        .wrapping_mul(0x5851_f42d_4c95_7f2d)
                        .wrapping_add(0x1405_7b7e);
                    let at = match &mut due {
                        Some(due) => turn(due, pace.unwrap_or_default() * count as u32).await,
                        None => Instant::now(),
                    };
                    if ask(client, (chance >> 32) as u32).await? {
                        let took = at.elapsed();
                        asked.push(Asked { at, took });
                    }
                }
                Ok(asked)
            })
        });
        Self {
            clients: clients.collect(),
            start,
            stop,
        }
    }

    /// Waits for the last answers and returns all.
    pub async fn stop(self) -> io::Result<History> {
        self.stop.store(true, Ordering::Relaxed);
        let mut asked = Vec::new();
        for client in self.clients {
            let client = client.await.map_err(io::Error::other)?;
            asked.extend(client.map_err(io::Error::other)?);
        }
        Ok(History {
            asked,
            start: self.start,
            end: Instant::now(),
        })
    }

    /// Lets them ask for some time.
    pub async fn run(self, time: Duration) -> io::Result<Samples> {
        tokio::time::sleep(time).await;
        let history = self.stop().await?;
        Ok(history.between(history.start, history.end))
    }
}

/// Waits for a client's turn; returns when it has asked or should have.
async fn turn(due: &mut Instant, every: Duration) -> Instant {
    let at = *due;
    *due += every;
    tokio::time::sleep_until(at.into()).await;
    let now = Instant::now();
    if now > at + COARSE { at } else { now }
}

/// What was asked and answered.
pub struct History {
    asked: Vec<Asked>,
    /// When the clients began.
    pub start: Instant,
    /// When the last one had its answer.
    pub end: Instant,
}

impl History {
    /// What was asked in some time.
    #[must_use]
    pub fn between(&self, from: Instant, to: Instant) -> Samples {
        let mut samples = Samples {
            elapsed: to - from,
            ..Samples::default()
        };
        let within = self
            .asked
            .iter()
            .filter(|one| from <= one.at && one.at < to);
        within.for_each(|one| samples.add(one.took));
        samples
    }

    /// The longest time in which nobody had an answer.
    #[must_use]
    pub fn pause(&self, from: Instant, to: Instant) -> Duration {
        let mut answers: Vec<_> = self.asked.iter().map(|one| one.at + one.took).collect();
        answers.retain(|at| from <= *at && *at < to);
        answers.extend([from, to]);
        answers.sort_unstable();
        let pauses = answers.windows(2).map(|pair| pair[1] - pair[0]);
        pauses.max().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_between_answers_and_samples_go_by_when_they_were_asked() {
        let start = Instant::now();
        let after = |millis| start + Duration::from_millis(millis);
        let asked = |at, took| Asked {
            at: after(at),
            took: Duration::from_millis(took),
        };
        let history = History {
            asked: vec![asked(0, 10), asked(5, 65), asked(75, 5)],
            start,
            end: after(100),
        };
        let pause = |from, to| history.pause(after(from), after(to)).as_millis();
        assert_eq!(pause(0, 100), 60);
        assert_eq!(pause(20, 60), 40);
        assert_eq!(history.between(after(5), after(75)).nanos, [65_000_000]);
    }

    #[tokio::test]
    async fn what_is_asked_late_counts_from_when_it_was_due() {
        let start = Instant::now();
        let mut due = start;
        let every = Duration::from_millis(20);
        assert!(turn(&mut due, every).await >= start);
        std::thread::sleep(Duration::from_millis(60));
        assert_eq!(turn(&mut due, every).await, start + every);
        assert_eq!(due, start + 2 * every);
    }
}
