//! How a comparison is told: one line with both figures, their ratio and
//! whether it is what we want.
//!
//! Kept true: a reference that was held up never makes us look good. A slow
//! reference flatters us whichever way the target points, so a line whose
//! reference was disturbed has no verdict.

use std::collections::BTreeMap;
use std::fmt;

use crate::samples::median;

/// What the ratio of ours to the reference should be.
#[derive(Clone, Copy, Debug)]
pub enum Target {
    /// Not more.
    AtMost(f64),
    /// Not less.
    AtLeast(f64),
    /// Whatever it is: told for information.
    None,
}

impl Target {
    fn met(self, ratio: f64) -> Option<bool> {
        match self {
            Self::AtMost(limit) => Some(ratio <= limit),
            Self::AtLeast(limit) => Some(ratio >= limit),
            Self::None => None,
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtMost(limit) => write!(f, "<= {limit}"),
            Self::AtLeast(limit) => write!(f, ">= {limit}"),
            Self::None => f.write_str("none"),
        }
    }
}

/// Most of the machine that others may use while a line is measured. The
/// kernel's own threads that serve our writes are among them.
const OTHERS_MAX: f64 = 0.25;

/// One comparison.
#[derive(Clone, Debug)]
pub struct Line {
    /// What a filter selects it by.
    pub name: String,
    /// What is compared with what.
    pub what: String,
    /// Of the figures.
    pub unit: &'static str,
    /// What we want.
    pub target: Target,
    /// Ours and the reference, round by round.
    pub rounds: Vec<(f64, f64)>,
    /// Rounds in which something else held the reference up.
    pub disturbed: usize,
    /// The share of the machine that others used meanwhile.
    pub others: f64,
    /// What else was measured on the way, by name, round by round.
    pub asides: BTreeMap<&'static str, Vec<f64>>,
}

impl Line {
    /// A line without rounds yet.
    pub fn new(
        name: impl Into<String>,
        what: impl Into<String>,
        unit: &'static str,
        target: Target,
    ) -> Self {
        Self {
            name: name.into(),
            what: what.into(),
            unit,
            target,
            rounds: Vec::new(),
            disturbed: 0,
            others: 0.0,
            asides: BTreeMap::new(),
        }
    }

    /// Adds a round.
    pub fn round(&mut self, ours: f64, reference: f64) {
        self.rounds.push((ours, reference));
    }

    /// Notes a figure that explains the round.
    pub fn aside(&mut self, name: &'static str, figure: f64) {
        self.asides.entry(name).or_default().push(figure);
    }

    fn ratios(&self) -> Vec<f64> {
        self.rounds
            .iter()
            .map(|(ours, theirs)| ours / theirs)
            .collect()
    }

    /// The middle of the rounds' ratios: what the verdict goes by.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        median(&self.ratios())
    }

    /// Whether the target is met, if there is one and the reference can be trusted.
    #[must_use]
    pub fn met(&self) -> Option<bool> {
        if self.is_disturbed() {
            return None;
        }
        self.target.met(self.ratio())
    }

    /// Whether the ratio says nothing: others were busy, or the reference was
    /// held up in a third of the rounds or twice as fast in one as in another.
    ///
    /// Others count most. One thread that waits for the disk loses its turn
    /// after every write when the processors are taken; a thousand appenders
    /// hardly notice.
    #[must_use]
    pub fn is_disturbed(&self) -> bool {
        let references = self.rounds.iter().map(|round| round.1);
        let slowest = references.clone().fold(f64::INFINITY, f64::min);
        let fastest = references.fold(0.0, f64::max);
        self.others > OTHERS_MAX
            || self.disturbed * 3 > self.rounds.len()
            || fastest > 2.0 * slowest
    }

    fn facts(&self) -> Facts {
        let of = |pick: fn(&(f64, f64)) -> f64| {
            median(&self.rounds.iter().map(pick).collect::<Vec<_>>())
        };
        let ratios = self.ratios();
        Facts {
            ours: of(|round| round.0),
            reference: of(|round| round.1),
            ratio_min: ratios.iter().copied().fold(f64::INFINITY, f64::min),
            ratio_max: ratios.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        }
    }

    fn verdict(&self) -> &'static str {
        match self.met() {
            Some(true) => "met",
            Some(false) => "NOT MET",
            None if self.is_disturbed() => "NO VERDICT, disturbed: run again",
            None => "for information",
        }
    }

    /// For people.
    #[must_use]
    pub fn text(&self) -> String {
        let facts = self.facts();
        let target = match self.target {
            Target::None => "no target".to_owned(),
            target => format!("target {target}"),
        };
        let verdict = self.verdict();
        let mut text = format!(
            "{:<26} {}\n{:<26} ours {} {unit}, reference {} {unit}, ratio {:.3} ({:.3}..{:.3}), {target}: {verdict}",
            self.name,
            self.what,
            "",
            figure(facts.ours),
            figure(facts.reference),
            self.ratio(),
            facts.ratio_min,
            facts.ratio_max,
            unit = self.unit,
        );
        if !self.asides.is_empty() || self.others > 0.0 {
            let mut asides: Vec<_> = self
                .asides
                .iter()
                .map(|(name, figures)| format!("{name} {}", figure(median(figures))))
                .collect();
            asides.push(format!(
                "others used {:.0} % of the machine",
                self.others * 100.0
            ));
            text += &format!("\n{:<26} {}", "", asides.join(", "));
        }
        text
    }

    /// For programs: one JSON object.
    #[must_use]
    pub fn json(&self) -> String {
        let facts = self.facts();
        let (kind, limit) = match self.target {
            Target::AtMost(limit) => ("at_most", limit),
            Target::AtLeast(limit) => ("at_least", limit),
            Target::None => ("none", f64::NAN),
        };
        // What is not a number becomes null.
        serde_json::json!({
            "name": self.name,
            "what": self.what,
            "unit": self.unit,
            "ours": facts.ours,
            "reference": facts.reference,
            "ratio": self.ratio(),
            "ratio_min": facts.ratio_min,
            "ratio_max": facts.ratio_max,
            "target": kind,
            "limit": limit,
            "met": self.met(),
            "disturbed": self.is_disturbed(),
            "others": self.others,
            "rounds": self.rounds,
            "asides": self.asides,
        })
        .to_string()
    }
}

/// All lines at a glance, as a table that documents can hold.
#[must_use]
pub fn table(lines: &[Line]) -> String {
    let heading = ["line", "ours", "reference", "ratio (range)", "target", ""];
    let mut rows = vec![heading.map(str::to_owned)];
    rows.extend(lines.iter().map(|line| {
        let facts = line.facts();
        [
            line.name.clone(),
            format!("{} {}", figure(facts.ours), line.unit),
            format!("{} {}", figure(facts.reference), line.unit),
            format!(
                "{:.3} ({:.3}..{:.3})",
                line.ratio(),
                facts.ratio_min,
                facts.ratio_max
            ),
            line.target.to_string(),
            line.verdict().to_owned(),
        ]
    }));
    let widths: [usize; 6] = std::array::from_fn(|column| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.max().unwrap_or(0)
    });
    rows.insert(1, widths.map(|width| "-".repeat(width)));
    let mut text = String::new();
    for row in rows {
        for (cell, width) in row.iter().zip(widths) {
            text += &format!("| {cell:<width$} ");
        }
        text += "|\n";
    }
    text
}

/// The middles of the rounds, and how far the ratios lie apart.
struct Facts {
    ours: f64,
    reference: f64,
    ratio_min: f64,
    ratio_max: f64,
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

    #[test]
    fn a_table_has_a_row_for_each_line_and_straight_columns() {
        let mut line = Line::new("x", "this and that", "µs", Target::AtLeast(0.5));
        line.round(10.0, 10.0);
        let mut other = Line::new("longer", "", "MiB/s", Target::None);
        other.round(1234.5, 1000.0);
        let table = table(&[line, other]);
        let rows: Vec<_> = table.lines().collect();
        assert_eq!(rows.len(), 4);
        let width = rows[0].chars().count();
        assert!(rows.iter().all(|row| row.chars().count() == width));
        assert!(rows[2].contains("| 10.0 µs    | 10.0 µs    |"), "{table}");
        assert!(rows[2].contains("| >= 0.5 | met "), "{table}");
        assert!(rows[3].contains("| none   | for information |"), "{table}");
    }

    #[test]
    fn the_verdict_is_about_the_middle_ratio() {
        let mut line = Line::new("x", "a \"test\"", "µs", Target::AtMost(1.5));
        line.round(10.0, 10.0);
        line.round(14.0, 10.0);
        line.round(90.0, 10.0);
        assert_eq!(line.met(), Some(true));
        assert!(
            line.text().contains("ratio 1.400 (1.000..9.000)"),
            "{}",
            line.text()
        );
        assert!(line.text().ends_with("target <= 1.5: met"));
        assert!(line.json().contains("\"ratio\":1.4,"), "{}", line.json());
        line.target = Target::AtLeast(1.5);
        assert_eq!(line.met(), Some(false));
        let mut slowed = line.clone();
        slowed.round(14.0, 1.0);
        assert_eq!(slowed.met(), None, "a slow reference is no merit of ours");
        let mut held_up = line.clone();
        held_up.disturbed = 2;
        assert_eq!(held_up.met(), None);
        assert!(held_up.text().contains("NO VERDICT"));
        // Slow in every round alike: only the cause gives it away.
        let mut crowded = line.clone();
        crowded.others = 0.5;
        assert_eq!(crowded.met(), None);
        line.aside("why", 7.0);
        assert!(
            line.text()
                .contains("NOT MET\n                           why 7.000")
        );
        line.target = Target::None;
        assert_eq!(line.met(), None);
        assert!(line.json().contains("\"met\":null"));
    }
}
