//! What is seen while a load runs: one line on a terminal, nothing elsewhere.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use pontoon_bench::wire::run::Now;
use pontoon_plot::Unit;

/// Parts of the whole that the line is drawn in.
const PARTS: u64 = 1000;

/// The line.
pub(crate) struct Progress(ProgressBar);

impl Progress {
    /// A line for a load. It draws to stderr, and only on a terminal.
    pub(crate) fn new() -> Self {
        let bar = ProgressBar::new(PARTS);
        let style = ProgressStyle::with_template("{prefix} {bar:24} {percent:>3} %  {wide_msg}");
        bar.set_style(style.expect("the template is one"));
        bar.enable_steady_tick(Duration::from_millis(500));
        Self(bar)
    }

    /// Shows what a load is doing.
    pub(crate) fn show(&self, name: &str, now: Now) {
        self.0.set_prefix(name.to_owned());
        match now {
            Now::Preparing => self.begin("preparing"),
            Now::WarmingUp => self.begin("warming up"),
            Now::Draining => self.0.set_message("waiting for the last answers"),
            Now::Measuring(sample, share) => {
                self.0.set_position((share * PARTS as f64) as u64);
                let errors = match sample.errors {
                    0 => String::new(),
                    errors => format!(", {errors} ERRORS"),
                };
                let rate = Unit::PerSecond.text(sample.rate);
                let p99 = Unit::Seconds.text(sample.p99_ms / 1e3);
                self.0.set_message(format!("{rate}, p99 {p99}{errors}"));
            }
        }
    }

    fn begin(&self, what: &'static str) {
        self.0.set_position(0);
        self.0.set_message(what);
    }

    /// Says something that stays, above the line.
    pub(crate) fn say(&self, text: &str) {
        self.0.suspend(|| eprintln!("{text}"));
    }
}

/// The line is gone with it.
impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
