//! The log of the process: where it goes, how it looks, what is left out.
//!
//! Kept true: a warning or error that repeats is counted, not written each time
//! (`log/repeats.rs`). An ordinary stop logs no ERROR.

mod json;
mod repeats;

use std::fs::File;
use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt};

use crate::config::{Config, LogFormat, LogOutput};
use json::Json;
use repeats::{Limit, Repeats};

/// The log of this process.
pub struct Log(Arc<Repeats>);

impl Log {
    /// Sets it up for the whole process; once only.
    pub fn start(config: &Config) -> Result<Self, String> {
        let writer = Writer::open(&config.log_outputs)?;
        let repeats = Repeats::start().map_err(|error| format!("no thread for logs: {error}"))?;
        // A group that stops is reported by raftgroup, once. openraft would say so
        // too, for every request that waits, and also of groups that end in order.
        let openraft = match config.log_level.as_str() {
            "debug" => "error",
            _ => "off",
        };
        let level = EnvFilter::new(format!("{},openraft={openraft}", config.log_level));
        let subscriber = Registry::default()
            .with(level)
            .with(Limit(Arc::clone(&repeats)))
            .with(lines(config.log_format, writer));
        let started = subscriber.try_init();
        started.map_err(|error| format!("no log: {error}"))?;
        Ok(Self(repeats))
    }

    /// Says what was suppressed so far.
    pub fn flush(&self) {
        self.0.flush();
    }
}

/// Writes events as lines. (Colours would need the feature `ansi` of
/// tracing-subscriber, which complains if it is asked for and missing.)
fn lines<S, W>(format: LogFormat, writer: W) -> Box<dyn Layer<S> + Send + Sync>
where
    S: tracing::Subscriber + for<'a> tracing_subscriber::registry::LookupSpan<'a>,
    W: for<'a> fmt::MakeWriter<'a> + Send + Sync + 'static,
{
    match format {
        LogFormat::Console => fmt::layer().with_ansi(false).with_writer(writer).boxed(),
        LogFormat::Json => Json(writer).boxed(),
    }
}

/// Everything that the log goes to.
struct Writer(Vec<Output>);

enum Output {
    Stderr,
    Stdout,
    File(File),
}

impl Writer {
    /// As in etcd, each output is written to once, and `/dev/null` among them
    /// takes everything.
    fn open(outputs: &[LogOutput]) -> Result<Mutex<Self>, String> {
        let nowhere = LogOutput::File("/dev/null".into());
        if outputs.contains(&nowhere) {
            return Ok(Mutex::new(Self(Vec::new())));
        }
        let mut wanted: Vec<&LogOutput> = Vec::new();
        for output in outputs {
            if !wanted.contains(&output) {
                wanted.push(output);
            }
        }
        let open = |output: &LogOutput| match output {
            LogOutput::Stderr => Ok(Output::Stderr),
            LogOutput::Stdout => Ok(Output::Stdout),
            LogOutput::File(path) => {
                let file = File::options().append(true).create(true).open(path);
                let file = file.map_err(|error| format!("--log-outputs {path:?}: {error}"));
                file.map(Output::File)
            }
        };
        let outputs = wanted.into_iter().map(open).collect::<Result<_, _>>()?;
        Ok(Mutex::new(Self(outputs)))
    }
}

impl Write for Writer {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        for output in &mut self.0 {
            match output {
                Output::Stderr => io::stderr().write_all(line)?,
                Output::Stdout => io::stdout().write_all(line)?,
                Output::File(file) => file.write_all(line)?,
            }
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
