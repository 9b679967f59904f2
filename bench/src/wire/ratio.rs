//! How two servers compare: the ratio of a figure, and how far it can be trusted.
//!
//! Kept true: rounds of the two are pairs that were measured one after the
//! other, so what else happened on the machine is in both, and the interval is
//! that of the pairs' ratios. With a single round there is none.

use std::fmt::Write;

use serde::Serialize;

use crate::samples::median;

/// Student's t for 95 % of both sides together, by degrees of freedom.
const STUDENT: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
];

/// Which way is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// More, as of a rate.
    Higher,
    /// Less, as of a latency.
    Lower,
}

/// A figure of two servers, round by round.
#[derive(Clone, Debug, Serialize)]
pub struct Ratio {
    /// The workload and the figure.
    pub name: String,
    /// The first server.
    pub ours: String,
    /// The one that it is compared with.
    pub theirs: String,
    /// Of the figure.
    pub unit: &'static str,
    /// Which way is better.
    pub better: Better,
    /// Both, round by round.
    pub rounds: Vec<(f64, f64)>,
    /// The geometric mean of the rounds' ratios.
    pub ratio: f64,
    /// Where it lies with a confidence of 95 %, if there is more than one round.
    pub interval: Option<(f64, f64)>,
}

impl Ratio {
    /// Of pairs that were measured one after the other.
    #[must_use]
    pub fn of(
        name: String,
        [ours, theirs]: [&str; 2],
        unit: &'static str,
        better: Better,
        rounds: Vec<(f64, f64)>,
    ) -> Self {
        let logs: Vec<f64> = rounds
            .iter()
            .map(|(ours, theirs)| (ours / theirs).ln())
            .filter(|log| log.is_finite())
            .collect();
        let count = logs.len() as f64;
        let mean = logs.iter().sum::<f64>() / count;
        let interval = (logs.len() > 1).then(|| {
            let squares = logs.iter().map(|log| (log - mean).powi(2)).sum::<f64>();
            let error = (squares / (count - 1.0) / count).sqrt();
            let t = STUDENT.get(logs.len() - 2).copied().unwrap_or(1.96);
            ((mean - t * error).exp(), (mean + t * error).exp())
        });
        Self {
            name,
            ours: ours.to_owned(),
            theirs: theirs.to_owned(),
            unit,
            better,
            rounds,
            ratio: mean.exp(),
            interval,
        }
    }

    /// The middles of the rounds.
    #[must_use]
    pub fn medians(&self) -> (f64, f64) {
        let (ours, theirs): (Vec<_>, Vec<_>) = self.rounds.iter().copied().unzip();
        (median(&ours), median(&theirs))
    }

    /// What can be said: an interval that has 1 in it says nothing.
    #[must_use]
    pub fn verdict(&self) -> String {
        let is_above = match self.interval {
            Some((low, _)) if low > 1.0 => true,
            Some((_, high)) if high < 1.0 => false,
            Some(_) => return "no difference seen".to_owned(),
            None => return "one round: no interval".to_owned(),
        };
        let is_better = is_above == (self.better == Better::Higher);
        let who = if is_better { &self.ours } else { &self.theirs };
        format!("{who} is better")
    }
}

/// Ratios at a glance, as a table that documents can hold.
#[must_use]
pub fn table(ratios: &[Ratio]) -> String {
    let Some(first) = ratios.first() else {
        return String::new();
    };
    let (ours, theirs) = (&first.ours, &first.theirs);
    let heading = ["", ours, theirs, "ratio (95 %)", ""];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    rows.extend(ratios.iter().map(cells));
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..heading.len()).map(width).collect();
    rows.insert(1, widths.iter().map(|width| "-".repeat(*width)).collect());
    let mut text = String::new();
    for row in rows {
        for (cell, width) in row.iter().zip(&widths) {
            write!(text, "| {cell:<width$} ").expect("strings take all");
        }
        text.push_str("|\n");
    }
    text
}

/// What a table has of a ratio.
#[must_use]
pub fn cells(ratio: &Ratio) -> Vec<String> {
    let (ours, theirs) = ratio.medians();
    let interval = match ratio.interval {
        Some((low, high)) => format!(" ({low:.3}..{high:.3})"),
        None => String::new(),
    };
    vec![
        ratio.name.clone(),
        format!("{} {}", figure(ours), ratio.unit),
        format!("{} {}", figure(theirs), ratio.unit),
        format!("{:.3}{interval}", ratio.ratio),
        ratio.verdict(),
    ]
}

fn figure(value: f64) -> String {
    match value.abs() {
        large if large >= 1000.0 => format!("{value:.0}"),
        middle if middle >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ratio(better: Better, rounds: &[(f64, f64)]) -> Ratio {
        Ratio::of("put".to_owned(), ["a", "b"], "/s", better, rounds.to_vec())
    }

    #[test]
    fn the_interval_is_that_of_the_pairs() {
        let same = ratio(Better::Higher, &[(2.0, 1.0), (4.0, 2.0), (20.0, 10.0)]);
        assert!((same.ratio - 2.0).abs() < 1e-9);
        let (low, high) = same.interval.unwrap();
        assert!((low - 2.0).abs() < 1e-9 && (high - 2.0).abs() < 1e-9);
        assert_eq!(same.verdict(), "a is better");
        // ln 1, ln 2, ln 4: mean ln 2, error ln 2 / sqrt 3, t = 4.303.
        let spread = ratio(Better::Higher, &[(1.0, 1.0), (2.0, 1.0), (4.0, 1.0)]);
        let (low, high) = spread.interval.unwrap();
        let half = 4.303 * 2f64.ln() / 3f64.sqrt();
        assert!((low.ln() - (2f64.ln() - half)).abs() < 1e-9);
        assert!((high.ln() - (2f64.ln() + half)).abs() < 1e-9);
        assert_eq!(spread.verdict(), "no difference seen");
    }

    #[test]
    fn less_latency_is_better_and_one_round_says_nothing() {
        let lower = ratio(Better::Lower, &[(1.0, 2.0), (1.0, 2.0)]);
        assert_eq!(lower.verdict(), "a is better");
        let higher = ratio(Better::Lower, &[(2.0, 1.0), (2.0, 1.0)]);
        assert_eq!(higher.verdict(), "b is better");
        let once = ratio(Better::Lower, &[(2.0, 1.0)]);
        assert_eq!(
            (once.interval, once.verdict().as_str()),
            (None, "one round: no interval")
        );
        let none = ratio(Better::Lower, &[(2.0, f64::NAN)]);
        assert!(none.ratio.is_nan());
        let table = table(&[lower, once]);
        let rows: Vec<_> = table.lines().collect();
        assert_eq!(rows.len(), 4);
        assert!(
            rows[0].contains("| a ") && rows[0].contains("| b "),
            "{table}"
        );
        assert!(rows[2].contains("0.500 (0.500..0.500)"), "{table}");
        let width = rows[0].chars().count();
        assert!(rows.iter().all(|row| row.chars().count() == width));
    }
}
