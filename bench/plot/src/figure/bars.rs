//! Bars with the interval in which each value lies.

use super::{COLOURS, Figure, WIDTH, begin, label, line};
use crate::page::escaped;
use crate::scale::{Scale, Unit};

const BAR: f64 = 20.0;
const GAP: f64 = 10.0;
const AXIS: f64 = 26.0;
/// What a letter takes; enough for most.
const LETTER: f64 = 7.2;
/// Room for the value behind the longest bar.
const VALUE: f64 = 150.0;

/// One bar.
#[derive(Clone, Debug)]
pub struct Bar {
    name: String,
    group: String,
    value: f64,
    interval: Option<(f64, f64)>,
}

impl Bar {
    /// A bar without an interval.
    pub fn new(name: impl Into<String>, value: f64) -> Self {
        Self {
            name: name.into(),
            group: String::new(),
            value,
            interval: None,
        }
    }

    /// The value lies between these, as far as is known.
    #[must_use]
    pub fn between(mut self, low: f64, high: f64) -> Self {
        self.interval = Some((low, high));
        self
    }

    /// It has the colour of a group.
    #[must_use]
    pub fn of(mut self, group: impl Into<String>) -> Self {
        self.group = group.into();
        self
    }
}

/// Bars, one below the other.
#[derive(Clone, Debug)]
pub struct Bars {
    title: String,
    unit: Unit,
    bars: Vec<Bar>,
    around: Option<f64>,
}

impl Bars {
    /// Without bars yet; they begin at zero.
    pub fn new(title: impl Into<String>, unit: Unit) -> Self {
        Self {
            title: title.into(),
            unit,
            bars: Vec::new(),
            around: None,
        }
    }

    /// The axis is logarithmic and bars begin at this value: for ratios, at 1.
    #[must_use]
    pub fn around(mut self, value: f64) -> Self {
        self.around = Some(value);
        self
    }

    /// Adds a bar.
    #[must_use]
    pub fn bar(mut self, bar: Bar) -> Self {
        self.bars.push(bar);
        self
    }

    fn text(&self, bar: &Bar) -> String {
        let value = self.unit.text(bar.value);
        match bar.interval {
            Some((low, high)) => {
                format!("{value} ({}–{})", self.unit.text(low), self.unit.text(high))
            }
            None => value,
        }
    }
}

impl Figure for Bars {
    fn title(&self) -> &str {
        &self.title
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        for bar in &self.bars {
            if !names.contains(&bar.group) {
                names.push(bar.group.clone());
            }
        }
        names
    }

    fn svg(&self) -> String {
        let longest = self.bars.iter().map(|bar| bar.name.chars().count()).max();
        let left = (longest.unwrap_or(0) as f64 * LETTER + 14.0).min(WIDTH / 2.0);
        let right = WIDTH - VALUE - 30.0;
        let ends = |bar: &Bar| {
            let (low, high) = bar.interval.unwrap_or((bar.value, bar.value));
            [bar.value, low, high]
        };
        let values = self.bars.iter().flat_map(ends).chain(self.around);
        let scale = match self.around {
            Some(_) => Scale::log(values),
            None => Scale::linear(values, true),
        };
        let scale = scale.between(left, right);
        let height = self.bars.len() as f64 * (BAR + GAP) + GAP + AXIS;
        let bottom = height - AXIS;
        let mut out = begin(height);
        for tick in scale.ticks(7.0) {
            let at = scale.place(tick);
            line(&mut out, "grid", (at, 0.0), (at, bottom));
            label(
                &mut out,
                "",
                (at, bottom + 17.0),
                "middle",
                &self.unit.tick(tick),
            );
        }
        let groups = self.names();
        let origin = scale.place(self.around.unwrap_or(0.0));
        for (row, bar) in self.bars.iter().enumerate() {
            let top = GAP + row as f64 * (BAR + GAP);
            let middle = top + BAR / 2.0;
            let group = groups.iter().position(|group| *group == bar.group);
            let colour = group.unwrap_or(0) % COLOURS;
            let text = self.text(bar);
            label(
                &mut out,
                "strong",
                (left - 8.0, middle + 4.5),
                "end",
                &bar.name,
            );
            let mut last = origin;
            if bar.value.is_finite() {
                let end = scale.place(bar.value);
                last = last.max(end);
                out.push_str(&format!(
                    "<rect class=\"f{colour}\" x=\"{:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{BAR}\"><title>{}</title></rect>\n",
                    origin.min(end),
                    (origin - end).abs().max(1.0),
                    escaped(&format!("{} {}: {text}", bar.name, bar.group))
                ));
            }
            if let Some((low, high)) = bar.interval
                && low.is_finite()
                && high.is_finite()
            {
                let (low, high) = (scale.place(low), scale.place(high));
                last = last.max(high);
                line(&mut out, "whisker", (low, middle), (high, middle));
                for end in [low, high] {
                    line(
                        &mut out,
                        "whisker",
                        (end, middle - 5.0),
                        (end, middle + 5.0),
                    );
                }
            }
            label(
                &mut out,
                "strong",
                (last + 8.0, middle + 4.5),
                "start",
                &text,
            );
        }
        line(&mut out, "axis", (origin, 0.0), (origin, bottom));
        out.push_str("</svg>\n");
        out
    }
}
