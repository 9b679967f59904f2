//! A bar on the terminal while it takes its time; nothing where nobody looks.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// How often the bar moves.
const LOOK: Duration = Duration::from_millis(200);

pub(crate) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// For something that takes about so long. Drawn on stderr, if that is a
    /// terminal.
    pub(crate) fn new(whole: Duration) -> Self {
        let bar = ProgressBar::with_draw_target(
            Some(whole.as_secs().max(1)),
            ProgressDrawTarget::stderr_with_hz(10),
        );
        let style = ProgressStyle::with_template("{elapsed:>4} [{bar:30}] {msg}");
        if let Ok(style) = style {
            bar.set_style(style.progress_chars("=> "));
        }
        if !bar.is_hidden() {
            let moving = bar.clone();
            std::thread::spawn(move || {
                while !moving.is_finished() {
                    moving.set_position(moving.elapsed().as_secs());
                    std::thread::sleep(LOOK);
                }
            });
        }
        Self { bar }
    }

    pub(crate) fn phase(&self, name: &str) {
        self.bar.set_message(name.to_owned());
    }

    pub(crate) fn end(&self) {
        self.bar.finish_and_clear();
    }
}
