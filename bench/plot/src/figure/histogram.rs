//! Histograms on a logarithmic axis: how often a latency was how long.

use std::collections::BTreeMap;

use super::{COLOURS, Figure, Frame, Mark};
use crate::page::escaped;
use crate::scale::{Scale, Unit};

/// Columns for each power of ten.
const PER_DECADE: f64 = 20.0;

/// How values are spread, by series.
#[derive(Clone, Debug)]
pub struct Histogram {
    title: String,
    label: String,
    unit: Unit,
    series: Vec<(String, Columns)>,
    marks: Vec<Mark>,
}

/// Counts by the number of a column; column 0 begins at 1.
type Columns = BTreeMap<i32, u64>;

impl Histogram {
    /// Without series yet.
    pub fn new(title: impl Into<String>, unit: Unit) -> Self {
        Self {
            title: title.into(),
            label: String::new(),
            unit,
            series: Vec::new(),
            marks: Vec::new(),
        }
    }

    /// Says what is along the lower axis.
    #[must_use]
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = label.into();
        self
    }

    /// Adds values, each with how often it came. What isn't above zero has no
    /// place and is left out.
    #[must_use]
    pub fn series(
        mut self,
        name: impl Into<String>,
        values: impl IntoIterator<Item = (f64, u64)>,
    ) -> Self {
        let mut columns = Columns::new();
        for (value, count) in values {
            if value > 0.0 && value.is_finite() && count > 0 {
                let column = (value.log10() * PER_DECADE).floor() as i32;
                *columns.entry(column).or_default() += count;
            }
        }
        self.series.push((name.into(), columns));
        self
    }

    /// Marks a value, as a limit is one.
    #[must_use]
    pub fn at(mut self, value: f64, text: impl Into<String>) -> Self {
        self.marks.push(Mark {
            value,
            text: text.into(),
        });
        self
    }
}

fn start(column: i32) -> f64 {
    10f64.powf(f64::from(column) / PER_DECADE)
}

impl Figure for Histogram {
    fn title(&self) -> &str {
        &self.title
    }

    fn names(&self) -> Vec<String> {
        self.series.iter().map(|(name, _)| name.clone()).collect()
    }

    fn svg(&self) -> String {
        let shares: Vec<Vec<(i32, u64, f64)>> = self
            .series
            .iter()
            .map(|(_, columns)| {
                let all = columns.values().sum::<u64>().max(1) as f64;
                let share = |(column, count): (&i32, &u64)| (*column, *count, *count as f64 / all);
                columns.iter().map(share).collect()
            })
            .collect();
        let columns = || shares.iter().flatten();
        let ends = columns().flat_map(|(column, ..)| [start(*column), start(column + 1)]);
        let marks = self.marks.iter().map(|mark| mark.value);
        let x = Scale::log(ends.chain(marks));
        let y = Scale::linear(columns().map(|(_, _, share)| *share), true);
        let mut frame = Frame::new(
            x,
            y,
            &self.label,
            |value| self.unit.tick(value),
            |value| Unit::Share.tick(value),
        );
        for (at, ((name, _), columns)) in self.series.iter().zip(&shares).enumerate() {
            let colour = at % COLOURS;
            for (column, count, share) in columns {
                let (from, to) = (start(*column), start(column + 1));
                let (left, right) = (frame.x.place(from), frame.x.place(to));
                let (top, bottom) = (frame.y.place(*share), frame.y.place(0.0));
                let hint = format!(
                    "{name}: {} to {}: {} ({count})",
                    self.unit.text(from),
                    self.unit.text(to),
                    Unit::Share.text(*share)
                );
                frame.add(format_args!(
                    "<rect class=\"area f{colour} s{colour}\" x=\"{left:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{:.1}\"><title>{}</title></rect>\n",
                    right - left,
                    bottom - top,
                    escaped(&hint)
                ));
            }
        }
        self.marks
            .iter()
            .for_each(|mark| frame.upright(mark, self.unit));
        frame.end()
    }
}
