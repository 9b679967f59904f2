//! Lines: something over time, or one figure over another.

use super::{Figure, Frame, Mark};
use crate::scale::{Scale, Unit};

/// Points that are shown where somebody points; more would make large files.
const HINTS_MAX: usize = 400;

/// Series of points, each joined by a line.
#[derive(Clone, Debug)]
pub struct Lines {
    title: String,
    label: String,
    x: Unit,
    y: Unit,
    is_log: bool,
    series: Vec<(String, Vec<(f64, f64)>)>,
    levels: Vec<Mark>,
    marks: Vec<Mark>,
}

impl Lines {
    /// Without series yet.
    pub fn new(title: impl Into<String>, x: Unit, y: Unit) -> Self {
        Self {
            title: title.into(),
            label: String::new(),
            x,
            y,
            is_log: false,
            series: Vec::new(),
            levels: Vec::new(),
            marks: Vec::new(),
        }
    }

    /// Says what is along the lower axis.
    #[must_use]
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = label.into();
        self
    }

    /// The upright axis is logarithmic.
    #[must_use]
    pub fn log(mut self) -> Self {
        self.is_log = true;
        self
    }

    /// Adds a series of points from left to right.
    #[must_use]
    pub fn series(
        mut self,
        name: impl Into<String>,
        points: impl IntoIterator<Item = (f64, f64)>,
    ) -> Self {
        self.series
            .push((name.into(), points.into_iter().collect()));
        self
    }

    /// Marks a value of the upright axis, as a limit is one.
    #[must_use]
    pub fn level(mut self, value: f64, text: impl Into<String>) -> Self {
        self.levels.push(Mark {
            value,
            text: text.into(),
        });
        self
    }

    /// Marks a value of the lower axis, as a knee is one.
    #[must_use]
    pub fn at(mut self, value: f64, text: impl Into<String>) -> Self {
        self.marks.push(Mark {
            value,
            text: text.into(),
        });
        self
    }
}

impl Figure for Lines {
    fn title(&self) -> &str {
        &self.title
    }

    fn names(&self) -> Vec<String> {
        self.series.iter().map(|(name, _)| name.clone()).collect()
    }

    fn svg(&self) -> String {
        let points = || self.series.iter().flat_map(|(_, points)| points.iter());
        let levels = self.levels.iter().map(|mark| mark.value);
        let ys = points().map(|point| point.1).chain(levels);
        let marks = self.marks.iter().map(|mark| mark.value);
        let x = Scale::tight(points().map(|point| point.0).chain(marks));
        let y = match self.is_log {
            true => Scale::log(ys),
            false => Scale::linear(ys, true),
        };
        let tick = |unit: Unit| move |value| unit.tick(value);
        let mut frame = Frame::new(x, y, &self.label, tick(self.x), tick(self.y));
        for (at, (name, points)) in self.series.iter().enumerate() {
            frame.path(at, points);
            let every = points.len().div_ceil(HINTS_MAX).max(1);
            for (x, y) in points.iter().step_by(every) {
                let (at, value) = (self.x.text(*x), self.y.text(*y));
                frame.hint(*x, *y, &format!("{name}: {value} at {at}"));
            }
        }
        self.levels
            .iter()
            .for_each(|mark| frame.level(mark, self.y));
        self.marks
            .iter()
            .for_each(|mark| frame.upright(mark, self.x));
        frame.end()
    }
}
