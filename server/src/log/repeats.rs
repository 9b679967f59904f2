//! Warnings and errors that repeat: logged once, then counted.
//!
//! Kept true:
//! - In each [`WINDOW`], a callsite logs an event with the same text once, and at
//!   most [`TEXTS_MAX`] different texts. What is left out is counted, and the
//!   count is logged when the window ends.
//! - Memory is bounded by the number of callsites in the program.
//! - Nothing is logged while the lock is held.

use std::collections::HashMap;
use std::fmt::{self, Write};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// How long repeats are counted before the count is logged.
const WINDOW: Duration = Duration::from_secs(30);
/// Different texts of one callsite that are logged in a window. Some have
/// numbers in them that differ each time.
const TEXTS_MAX: usize = 8;
/// Bytes of a text that are kept for the line with the count.
const TEXT_BYTES_MAX: usize = 256;
/// Under which counts are logged; they are never left out.
const TARGET: &str = "pontoon_server::log::repeats";

/// Counts what repeats, and logs the counts on a thread of its own.
pub(super) struct Repeats {
    table: Mutex<Table<Identifier>>,
    /// Something was left out.
    counting: Condvar,
}

impl Repeats {
    pub(super) fn start() -> io::Result<Arc<Self>> {
        let repeats = Arc::new(Self::new());
        let thread = thread::Builder::new().name("log-repeats".to_owned());
        thread.spawn({
            let repeats = Arc::clone(&repeats);
            move || repeats.run()
        })?;
        Ok(repeats)
    }

    fn new() -> Self {
        Self {
            table: Mutex::default(),
            counting: Condvar::new(),
        }
    }

    /// Logs all counts so far.
    pub(super) fn flush(&self) {
        let counted = self.table.lock().take_all();
        counted.iter().for_each(Count::log);
    }

    fn run(&self) {
        loop {
            let counted = {
                let mut table = self.table.lock();
                match table.next_due() {
                    None => self.counting.wait(&mut table),
                    Some(due) => drop(self.counting.wait_until(&mut table, due)),
                }
                table.take_due(Instant::now())
            };
            counted.iter().for_each(Count::log);
        }
    }

    fn admits(&self, event: &Event<'_>) -> bool {
        let metadata = event.metadata();
        if metadata.target() == TARGET {
            return true;
        }
        let mut text = Text::default();
        event.record(&mut text);
        let source = Source {
            level: *metadata.level(),
            target: metadata.target(),
        };
        let mut table = self.table.lock();
        let admission = table.admit(metadata.callsite(), source, &text, Instant::now());
        drop(table);
        if admission == Admission::FirstSuppressed {
            self.counting.notify_one();
        }
        admission == Admission::Logged
    }
}

/// The layer that leaves out what repeats, for all layers.
pub(super) struct Limit(pub(super) Arc<Repeats>);

impl<S: Subscriber> Layer<S> for Limit {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let is_severe = *event.metadata().level() <= Level::WARN;
        !is_severe || self.0.admits(event)
    }
}

/// An event's fields and message.
#[derive(Default)]
struct Text {
    hasher: DefaultHasher,
    message: String,
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        field.name().hash(&mut self.hasher);
        let _ = write!(Hashed(&mut self.hasher), "{value:?}");
        if field.name() == "message" {
            let _ = write!(self.message, "{value:?}");
        }
    }
}

/// Text that is hashed and not kept.
struct Hashed<'a>(&'a mut DefaultHasher);

impl Write for Hashed<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
    }
}

/// Where an event comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Source {
    level: Level,
    target: &'static str,
}

/// What is done with an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Admission {
    Logged,
    /// It is counted, as the first of its window.
    FirstSuppressed,
    Suppressed,
}

/// A count to be logged.
#[derive(Debug, PartialEq, Eq)]
struct Count {
    source: Source,
    /// The message of the first event that was left out.
    message: String,
    suppressed: u64,
}

impl Count {
    fn log(&self) {
        let (suppressed, source) = (self.suppressed, self.source.target);
        match self.source.level {
            Level::ERROR => {
                tracing::error!(target: TARGET, suppressed, source, "repeated: {}", self.message);
            }
            _ => tracing::warn!(target: TARGET, suppressed, source, "repeated: {}", self.message),
        }
    }
}

/// The window of a callsite.
struct Window {
    since: Instant,
    /// Hashes of the texts that were logged in it.
    logged: Vec<u64>,
    counted: Option<Count>,
}

/// The windows of all callsites that log warnings or errors.
struct Table<K> {
    windows: HashMap<K, Window>,
    /// Counts of windows that ended.
    ended: Vec<Count>,
}

impl<K> Default for Table<K> {
    fn default() -> Self {
        Self {
            windows: HashMap::new(),
            ended: Vec::new(),
        }
    }
}

impl<K: Hash + Eq> Table<K> {
    fn admit(&mut self, callsite: K, source: Source, text: &Text, now: Instant) -> Admission {
        let window = self.windows.entry(callsite).or_insert_with(|| Window {
            since: now,
            logged: Vec::new(),
            counted: None,
        });
        if now >= window.since + WINDOW {
            window.since = now;
            window.logged.clear();
            self.ended.extend(window.counted.take());
        }
        let hash = text.hasher.finish();
        if window.logged.len() < TEXTS_MAX && !window.logged.contains(&hash) {
            window.logged.push(hash);
            return Admission::Logged;
        }
        if let Some(counted) = &mut window.counted {
            counted.suppressed += 1;
            return Admission::Suppressed;
        }
        let bytes = text.message.floor_char_boundary(TEXT_BYTES_MAX);
        window.counted = Some(Count {
            source,
            message: text.message[..bytes].to_owned(),
            suppressed: 1,
        });
        Admission::FirstSuppressed
    }

    /// When the next count is to be logged.
    fn next_due(&self) -> Option<Instant> {
        let counting = self.windows.values();
        let counting = counting.filter(|window| window.counted.is_some());
        counting.map(|window| window.since + WINDOW).min()
    }

    /// The counts of windows that have ended.
    fn take_due(&mut self, now: Instant) -> Vec<Count> {
        let mut due = std::mem::take(&mut self.ended);
        for window in self.windows.values_mut() {
            if now >= window.since + WINDOW {
                due.extend(window.counted.take());
            }
        }
        due
    }

    fn take_all(&mut self) -> Vec<Count> {
        let mut all = std::mem::take(&mut self.ended);
        let windows = self.windows.values_mut();
        all.extend(windows.filter_map(|window| window.counted.take()));
        all
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::MutexGuard;
    use tracing_subscriber::Registry;
    use tracing_subscriber::fmt::MakeWriter;
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;
    use crate::config::LogFormat;

    const SOURCE: Source = Source {
        level: Level::ERROR,
        target: "openraft",
    };

    fn text(message: &str) -> Text {
        let mut text = Text::default();
        message.hash(&mut text.hasher);
        text.message = message.to_owned();
        text
    }

    #[test]
    fn a_repeated_text_is_counted() {
        let mut table = Table::default();
        let start = Instant::now();
        let mut admit = |callsite, message: &str, secs| {
            let now = start + Duration::from_secs(secs);
            table.admit(callsite, SOURCE, &text(message), now)
        };
        assert_eq!(admit(1, "a", 0), Admission::Logged);
        assert_eq!(admit(1, "a", 1), Admission::FirstSuppressed);
        assert_eq!(admit(1, "a", 2), Admission::Suppressed);
        // Another text, and the same text of another callsite, are others.
        assert_eq!(admit(1, "b", 3), Admission::Logged);
        assert_eq!(admit(2, "a", 3), Admission::Logged);
        let end = start + WINDOW;
        assert_eq!(table.next_due(), Some(end));
        assert!(table.take_due(end - Duration::from_millis(1)).is_empty());
        let due = table.take_due(end);
        let expected = Count {
            source: SOURCE,
            message: "a".to_owned(),
            suppressed: 2,
        };
        assert_eq!(due, [expected]);
        assert!(table.take_due(end).is_empty() && table.next_due().is_none());
        // The next window begins with a line.
        let admission = table.admit(1, SOURCE, &text("a"), end);
        assert_eq!(admission, Admission::Logged);
    }

    /// If an event comes before the thread that logs counts, nothing is lost.
    #[test]
    fn a_count_outlives_its_window() {
        let mut table = Table::default();
        let start = Instant::now();
        for _ in 0..3 {
            table.admit(1, SOURCE, &text("a"), start);
        }
        let admission = table.admit(1, SOURCE, &text("a"), start + WINDOW);
        assert_eq!(admission, Admission::Logged);
        let due = table.take_due(start + WINDOW);
        assert_eq!(due.len(), 1);
        assert_eq!(due[0].suppressed, 2);
    }

    /// Numbers in the text don't make a flood: neither of lines nor of memory.
    #[test]
    fn a_callsite_has_few_texts() {
        let mut table = Table::default();
        let now = Instant::now();
        let message = |at: usize| text(&format!("{at} {}", "ä".repeat(1000)));
        let admitted = (0..1000).map(|at| table.admit(1, SOURCE, &message(at), now));
        let logged = admitted.filter(|admission| *admission == Admission::Logged);
        assert_eq!(logged.count(), TEXTS_MAX);
        let window = &table.windows[&1];
        assert!(window.logged.len() <= TEXTS_MAX);
        let counted = window.counted.as_ref().unwrap();
        assert_eq!(counted.suppressed, 1000 - TEXTS_MAX as u64);
        assert!(counted.message.len() <= TEXT_BYTES_MAX);
        assert_eq!(table.take_all().len(), 1);
    }

    /// A log that is kept in memory.
    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl<'a> MakeWriter<'a> for Kept {
        type Writer = KeptWriter<'a>;

        fn make_writer(&'a self) -> KeptWriter<'a> {
            KeptWriter(self.0.lock())
        }
    }

    struct KeptWriter<'a>(MutexGuard<'a, Vec<u8>>);

    impl io::Write for KeptWriter<'_> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// What is logged, line by line, with the counts at the end.
    fn logged(format: LogFormat, work: impl FnOnce()) -> Vec<String> {
        let (repeats, kept) = (Arc::new(Repeats::new()), Kept::default());
        let subscriber = Registry::default()
            .with(Limit(Arc::clone(&repeats)))
            .with(super::super::lines(format, kept.clone()));
        tracing::subscriber::with_default(subscriber, || {
            work();
            repeats.flush();
        });
        let text = String::from_utf8(kept.0.lock().clone()).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    fn flood() {
        for index in 0..100 {
            tracing::error!(target: "openraft::core", peer = index % 2, "can't append");
            tracing::info!("not a failure");
        }
    }

    #[test]
    fn both_formats_tell_the_count() {
        for format in [LogFormat::Console, LogFormat::Json] {
            let lines = logged(format, flood);
            let with = |part: &str| lines.iter().filter(|line| line.contains(part)).count();
            assert_eq!(with("not a failure"), 100, "{lines:?}");
            // One for each peer, and the count.
            assert_eq!(with("can't append"), 3, "{lines:?}");
            let count = lines.last().unwrap();
            match format {
                LogFormat::Console => {
                    assert!(count.contains(" ERROR "), "{count}");
                    assert!(count.contains("repeated: can't append"), "{count}");
                    assert!(count.contains("suppressed=98"), "{count}");
                    assert!(count.contains("source=\"openraft::core\""), "{count}");
                }
                LogFormat::Json => {
                    let count: serde_json::Value = serde_json::from_str(count).unwrap();
                    assert_eq!(count["level"], "error");
                    assert_eq!(count["msg"], "repeated: can't append");
                    assert_eq!(count["suppressed"], 98);
                    assert_eq!(count["source"], "openraft::core");
                }
            }
        }
    }

    #[test]
    fn what_does_not_repeat_is_logged_as_it_is() {
        let lines = logged(LogFormat::Console, || {
            tracing::warn!("one");
            tracing::error!("two");
            tracing::warn!(peer = 7, "three");
        });
        assert_eq!(lines.len(), 3, "{lines:?}");
        assert!(lines[2].contains("three peer=7"), "{lines:?}");
    }
}
