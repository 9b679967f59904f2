//! Percentile curves: each nine takes the same room, so that the tail is seen.

use super::{Figure, Frame, Mark};
use crate::scale::{Scale, Unit};

/// The last quantile that is shown.
const LAST: f64 = 0.9999;
/// Points for each nine.
const PER_NINE: f64 = 16.0;

/// Quantiles (0 up to 0.9999) that make a smooth curve of so many samples:
/// none is rarer than one sample.
#[must_use]
pub fn quantiles(samples: u64) -> Vec<f64> {
    let last = LAST.min(1.0 - 1.0 / samples.max(2) as f64);
    let nines = -(1.0 - last).log10();
    let steps = (nines * PER_NINE).ceil() as u32;
    (0..=steps)
        .map(|step| 1.0 - 10f64.powf(-nines * f64::from(step) / f64::from(steps)))
        .collect()
}

/// Values by quantile, by series.
#[derive(Clone, Debug)]
pub struct Percentiles {
    title: String,
    unit: Unit,
    series: Vec<(String, Vec<(f64, f64)>)>,
    levels: Vec<Mark>,
}

impl Percentiles {
    /// Without series yet.
    pub fn new(title: impl Into<String>, unit: Unit) -> Self {
        Self {
            title: title.into(),
            unit,
            series: Vec::new(),
            levels: Vec::new(),
        }
    }

    /// Adds values by quantile (0 to 1); [`quantiles`] are good ones to ask for.
    #[must_use]
    pub fn series(
        mut self,
        name: impl Into<String>,
        values: impl IntoIterator<Item = (f64, f64)>,
    ) -> Self {
        self.series
            .push((name.into(), values.into_iter().collect()));
        self
    }

    /// Marks a value, as a limit is one.
    #[must_use]
    pub fn level(mut self, value: f64, text: impl Into<String>) -> Self {
        self.levels.push(Mark {
            value,
            text: text.into(),
        });
        self
    }
}

impl Figure for Percentiles {
    fn title(&self) -> &str {
        &self.title
    }

    fn names(&self) -> Vec<String> {
        self.series.iter().map(|(name, _)| name.clone()).collect()
    }

    fn svg(&self) -> String {
        let points = || self.series.iter().flat_map(|(_, points)| points.iter());
        let levels = self.levels.iter().map(|mark| mark.value);
        let y = Scale::log(points().map(|point| point.1).chain(levels));
        let last = points().map(|point| point.0).fold(0.9, f64::max);
        let name = |quantile: f64| match quantile {
            0.0 => "min".to_owned(),
            _ => {
                let text = format!("{:.4}", quantile * 100.0);
                format!("p{}", text.trim_end_matches('0').trim_end_matches('.'))
            }
        };
        let mut frame = Frame::new(
            Scale::nines(last.min(LAST)),
            y,
            "percentile",
            name,
            |value| self.unit.tick(value),
        );
        for (at, (series, points)) in self.series.iter().enumerate() {
            frame.path(at, points);
            for (quantile, value) in points {
                let value_text = self.unit.text(*value);
                frame.hint(
                    *quantile,
                    *value,
                    &format!("{series}: {} {value_text}", name(*quantile)),
                );
            }
        }
        self.levels
            .iter()
            .for_each(|mark| frame.level(mark, self.unit));
        frame.end()
    }
}
