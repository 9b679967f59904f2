//! The log as JSON, in etcd's form: one object a line, with `level`, `ts`,
//! `caller` and `msg` first, then the event's fields.

use std::fmt;
use std::io::Write;

use serde::Serialize;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::layer::Context;

/// Writes events as lines of JSON.
pub(super) struct Json<W>(pub(super) W);

impl<S, W> Layer<S> for Json<W>
where
    S: Subscriber,
    W: for<'a> MakeWriter<'a> + 'static,
{
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let line = line(event);
        // Nobody can be told that the log can't be written.
        let _ = self.0.make_writer_for(event.metadata()).write_all(&line);
    }
}

fn line(event: &Event<'_>) -> Vec<u8> {
    let metadata = event.metadata();
    let mut fields = Fields::default();
    event.record(&mut fields);
    let mut time = String::new();
    // It only fails if the string does.
    let _ = SystemTime.format_time(&mut Writer::new(&mut time));
    let mut line = b"{".to_vec();
    put(&mut line, "level", level(metadata));
    put(&mut line, "ts", &time);
    put(&mut line, "caller", caller(metadata));
    // etcd's tools want a text on each line.
    let message = fields.message.as_deref().unwrap_or(metadata.name());
    put(&mut line, "msg", message);
    if !fields.rest.is_empty() {
        line.push(b',');
        line.extend(fields.rest);
    }
    line.extend(b"}\n");
    line
}

/// Adds a key and its value.
fn put(out: &mut Vec<u8>, key: &str, value: impl Serialize) {
    if out.last().is_some_and(|last| *last != b'{') {
        out.push(b',');
    }
    // Texts and numbers can be written, and memory takes them.
    let _ = serde_json::to_writer(&mut *out, key);
    out.push(b':');
    let _ = serde_json::to_writer(out, &value);
}

/// etcd has no level below `debug`.
fn level(metadata: &Metadata<'_>) -> &'static str {
    match *metadata.level() {
        Level::ERROR => "error",
        Level::WARN => "warn",
        Level::INFO => "info",
        _ => "debug",
    }
}

/// The last directory, the file and the line, like `raft/machine.rs:120`. Of
/// `server/src/main.rs` the directory is `server`.
fn caller(metadata: &Metadata<'_>) -> String {
    let Some(file) = metadata.file() else {
        return metadata.target().to_owned();
    };
    let mut parts = file.rsplit(['/', '\\']).filter(|part| *part != "src");
    let name = parts.next().unwrap_or(file);
    let line = metadata.line().unwrap_or(0);
    match parts.next() {
        Some(directory) => format!("{directory}/{name}:{line}"),
        None => format!("{name}:{line}"),
    }
}

/// The message of an event, and its other fields as they stand in the line.
#[derive(Default)]
struct Fields {
    message: Option<String>,
    rest: Vec<u8>,
}

impl Fields {
    fn put(&mut self, field: &Field, value: impl Serialize) {
        put(&mut self.rest, field.name(), value);
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            "message" => self.message = Some(format!("{value:?}")),
            _ => self.put(field, format!("{value:?}")),
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => self.message = Some(value.to_owned()),
            _ => self.put(field, value),
        }
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.put(field, value.to_string());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, value);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tracing_subscriber::Registry;
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn logged(work: impl FnOnce()) -> Vec<String> {
        let kept = Kept::default();
        let out = kept.clone();
        let subscriber = Registry::default().with(Json(move || out.clone()));
        tracing::subscriber::with_default(subscriber, work);
        let text = String::from_utf8(kept.0.lock().unwrap().clone()).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    /// Go's `2006-01-02T15:04:05.000000Z0700`, in UTC.
    fn is_time(text: &str) -> bool {
        let form = "dddd-dd-ddTdd:dd:dd.ddddddZ";
        let fits = |(c, f): (char, char)| if f == 'd' { c.is_ascii_digit() } else { c == f };
        text.len() == form.len() && text.chars().zip(form.chars()).all(fits)
    }

    #[test]
    fn lines_have_etcds_keys_in_its_order_and_then_the_fields() {
        let at = line!() + 2;
        let lines = logged(|| {
            tracing::warn!(peer = 7, group = %"g", "a \"message\" of {} words", 5);
            tracing::trace!(ratio = 0.5, is_new = true);
        });
        assert_eq!(lines.len(), 2, "{lines:?}");
        let (start, rest) = lines[0].split_once(",\"ts\":\"").unwrap();
        assert_eq!(start, "{\"level\":\"warn\"");
        let (time, rest) = rest.split_once("\",\"caller\":").unwrap();
        assert!(is_time(time), "{time}");
        let expected = format!(
            "\"log/json.rs:{at}\",\"msg\":\"a \\\"message\\\" of 5 words\",\
             \"peer\":7,\"group\":\"g\"}}"
        );
        assert_eq!(rest, expected);
        let second: serde_json::Value = serde_json::from_str(&lines[1]).unwrap();
        assert_eq!(second["level"], "debug");
        assert_eq!(second["ratio"], 0.5);
        assert_eq!(second["is_new"], true);
        assert!(second["msg"].as_str().is_some_and(|text| !text.is_empty()));
    }
}
