//! What all figures share: the frame with its axes, and how marks are set.
//!
//! Kept true: figures draw with classes and never with colours of their own,
//! so that the page decides what they look like; their size is that of a page.

pub(crate) mod bars;
pub(crate) mod histogram;
pub(crate) mod lines;
pub(crate) mod percentiles;
#[cfg(test)]
mod tests;

use std::fmt::Write;

use crate::page::escaped;
use crate::scale::{Scale, Unit};

/// Series that are told apart by colour.
pub(crate) const COLOURS: usize = 6;
/// The size that everything is drawn in.
pub(crate) const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 300.0;
/// Room for ticks.
const LEFT: f64 = 74.0;
const RIGHT: f64 = 22.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 44.0;

/// Something that a page can show.
pub trait Figure {
    /// What it shows.
    fn title(&self) -> &str;
    /// The names of its series, in the order of their colours.
    fn names(&self) -> Vec<String>;
    /// The drawing.
    fn svg(&self) -> String;
}

/// A value that is drawn into a figure as a line with a name.
#[derive(Clone, Debug)]
pub(crate) struct Mark {
    pub(crate) value: f64,
    pub(crate) text: String,
}

/// A drawing with two axes.
pub(crate) struct Frame {
    pub(crate) x: Scale,
    pub(crate) y: Scale,
    out: String,
}

impl Frame {
    /// Draws the axes; `label` says what is along the lower one.
    pub(crate) fn new(
        x: Scale,
        y: Scale,
        label: &str,
        x_tick: impl Fn(f64) -> String,
        y_tick: impl Fn(f64) -> String,
    ) -> Self {
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        let mut frame = Self {
            x: x.between(LEFT, right),
            y: y.between(bottom, TOP),
            out: begin(HEIGHT),
        };
        for tick in frame.y.ticks(5.0) {
            let at = frame.y.place(tick);
            frame.line("grid", (LEFT, at), (right, at));
            frame.text("", (LEFT - 8.0, at + 4.0), "end", &y_tick(tick));
        }
        for tick in frame.x.ticks(9.0) {
            let at = frame.x.place(tick);
            frame.line("grid", (at, TOP), (at, bottom));
            frame.text("", (at, bottom + 18.0), "middle", &x_tick(tick));
        }
        frame.line("axis", (LEFT, bottom), (right, bottom));
        let middle = f64::midpoint(LEFT, right);
        frame.text("", (middle, HEIGHT - 6.0), "middle", label);
        frame
    }

    /// Marks a value of the upright axis.
    pub(crate) fn level(&mut self, mark: &Mark, unit: Unit) {
        if !self.y.has(mark.value) {
            return;
        }
        let at = self.y.place(mark.value);
        self.line("mark", (LEFT, at), (WIDTH - RIGHT, at));
        let text = format!("{} {}", mark.text, unit.text(mark.value));
        // Above the line, unless there is no room.
        let up = if at < TOP + 18.0 { 15.0 } else { -5.0 };
        self.text("mark-text", (WIDTH - RIGHT - 4.0, at + up), "end", &text);
    }

    /// Marks a value of the lower axis.
    pub(crate) fn upright(&mut self, mark: &Mark, unit: Unit) {
        if !self.x.has(mark.value) {
            return;
        }
        let at = self.x.place(mark.value);
        self.line("mark", (at, TOP), (at, HEIGHT - BOTTOM));
        let text = format!("{} {}", mark.text, unit.text(mark.value));
        let (aside, anchor) = match at > WIDTH / 2.0 {
            true => (-5.0, "end"),
            false => (5.0, "start"),
        };
        self.text("mark-text", (at + aside, TOP + 12.0), anchor, &text);
    }

    /// A line through points that are values.
    pub(crate) fn path(&mut self, series: usize, points: &[(f64, f64)]) {
        let colour = series % COLOURS;
        let places: Vec<_> = points
            .iter()
            .filter(|(x, y)| x.is_finite() && y.is_finite())
            .map(|(x, y)| (self.x.place(*x), self.y.place(*y)))
            .collect();
        if let [(x, y)] = places.as_slice() {
            let dot =
                format!("<circle class=\"dot f{colour}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\"/>\n");
            self.out.push_str(&dot);
            return;
        }
        let places: Vec<_> = places
            .iter()
            .map(|(x, y)| format!("{x:.1},{y:.1}"))
            .collect();
        self.add(format_args!(
            "<polyline class=\"line s{colour}\" points=\"{}\"/>\n",
            places.join(" ")
        ));
    }

    /// Says a value to who points there.
    pub(crate) fn hint(&mut self, x: f64, y: f64, text: &str) {
        if !x.is_finite() || !y.is_finite() {
            return;
        }
        let (x, y) = (self.x.place(x), self.y.place(y));
        self.add(format_args!(
            "<circle class=\"hit\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"6\"><title>{}</title></circle>\n",
            escaped(text)
        ));
    }

    pub(crate) fn line(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) {
        line(&mut self.out, class, from, to);
    }

    pub(crate) fn text(&mut self, class: &str, at: (f64, f64), anchor: &str, text: &str) {
        label(&mut self.out, class, at, anchor, text);
    }

    pub(crate) fn add(&mut self, part: std::fmt::Arguments<'_>) {
        self.out.write_fmt(part).expect("strings take all");
    }

    pub(crate) fn end(mut self) -> String {
        self.out.push_str("</svg>\n");
        self.out
    }
}

pub(crate) fn begin(height: f64) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" viewBox=\"0 0 {WIDTH} {height}\">\n"
    )
}

pub(crate) fn line(out: &mut String, class: &str, from: (f64, f64), to: (f64, f64)) {
    let ((x1, y1), (x2, y2)) = (from, to);
    writeln!(
        out,
        "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>"
    )
    .expect("strings take all");
}

pub(crate) fn label(out: &mut String, class: &str, at: (f64, f64), anchor: &str, text: &str) {
    writeln!(
        out,
        "<text class=\"{class}\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{}</text>",
        at.0,
        at.1,
        escaped(text)
    )
    .expect("strings take all");
}
