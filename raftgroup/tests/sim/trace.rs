//! What happens in a simulation, a line each: hashed always, shown if asked for.

use std::cell::RefCell;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pontoon_raftgroup::{SimDelivery, SimNetwork};
use tokio::time::Instant;

/// How much is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Shown {
    Nothing,
    Events,
    Messages,
}

/// The trace of one simulation.
#[derive(Clone)]
pub(crate) struct Trace(Rc<Inner>);

struct Inner {
    start: Instant,
    shown: Shown,
    hash: RefCell<DefaultHasher>,
    messages: Arc<Mutex<DefaultHasher>>,
}

impl Trace {
    pub(crate) fn new(shown: Shown, network: &SimNetwork) -> Self {
        let messages = Arc::new(Mutex::new(DefaultHasher::new()));
        let hash = Arc::clone(&messages);
        network.set_trace(Some(Box::new(move |delivery: SimDelivery<'_>| {
            let SimDelivery {
                at,
                from,
                to,
                bytes,
                head,
            } = delivery;
            (at, from, to, bytes, head).hash(&mut *hash.lock());
            if shown == Shown::Messages {
                let head = head.escape_ascii();
                println!("{} {from} to {to}: {bytes} bytes: {head}", Stamp(at));
            }
        })));
        Self(Rc::new(Inner {
            start: Instant::now(),
            shown,
            hash: RefCell::default(),
            messages,
        }))
    }

    pub(crate) fn now(&self) -> Duration {
        self.0.start.elapsed()
    }

    /// Notes an event; `who` is a node, a client, or the fault director.
    pub(crate) fn say(&self, who: impl fmt::Display, what: impl fmt::Display) {
        let line = format!("{} {who}: {what}", Stamp(self.now()));
        line.hash(&mut *self.0.hash.borrow_mut());
        if self.0.shown >= Shown::Events {
            println!("{line}");
        }
    }

    /// Of all events and messages so far.
    pub(crate) fn hash(&self) -> u64 {
        let mut hash = self.0.hash.borrow().clone();
        self.0.messages.lock().finish().hash(&mut hash);
        hash.finish()
    }
}

/// A time as the trace shows it.
pub(crate) struct Stamp(pub(crate) Duration);

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:9.3}", self.0.as_secs_f64())
    }
}

/// Shows what nodes log, if `PONTOON_LOG` says from which level on.
pub(crate) fn show_log() {
    let level = std::env::var("PONTOON_LOG").ok();
    let Some(level) = level.and_then(|level| level.parse::<tracing::Level>().ok()) else {
        return;
    };
    let shown = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_timer(Simulated(Instant::now()))
        .with_ansi(false)
        .with_writer(std::io::stdout);
    shown.init();
}

struct Simulated(Instant);

impl tracing_subscriber::fmt::time::FormatTime for Simulated {
    fn format_time(&self, to: &mut tracing_subscriber::fmt::format::Writer<'_>) -> fmt::Result {
        write!(to, "{}", Stamp(self.0.elapsed()))
    }
}
