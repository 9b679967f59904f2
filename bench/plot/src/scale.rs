//! Where a value is on an axis, where the axis has ticks, and how figures are
//! told: three digits and a unit that people read.

/// What a figure counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A time, in seconds.
    Seconds,
    /// Something per second.
    PerSecond,
    /// Bytes.
    Bytes,
    /// Bytes per second.
    BytesPerSecond,
    /// How many.
    Count,
    /// A share, 0 to 1.
    Share,
    /// One figure by another.
    Ratio,
}

impl Unit {
    /// A figure with its unit, as `123 µs`, `12.3k/s` or `4.00 MiB`.
    #[must_use]
    pub fn text(self, value: f64) -> String {
        if !value.is_finite() {
            return "–".to_owned();
        }
        match self {
            Self::Seconds => seconds(value),
            Self::PerSecond => format!("{}/s", thousands(value)),
            Self::Bytes => bytes(value),
            Self::BytesPerSecond => format!("{}/s", bytes(value)),
            Self::Count => thousands(value),
            Self::Share => format!("{} %", digits(value * 100.0)),
            Self::Ratio => format!("{}×", digits(value)),
        }
    }

    /// The same without digits that say nothing: for ticks.
    pub(crate) fn tick(self, value: f64) -> String {
        let text = self.text(value);
        let end = text
            .find(|c: char| !c.is_ascii_digit() && c != '.' && c != '-')
            .unwrap_or(text.len());
        let (number, unit) = text.split_at(end);
        match number.contains('.') {
            true => {
                let number = number.trim_end_matches('0').trim_end_matches('.');
                format!("{number}{unit}")
            }
            false => text,
        }
    }
}

fn seconds(value: f64) -> String {
    let (factor, unit) = match value.abs() {
        0.0 => (1.0, "s"),
        x if x < 0.999_5e-6 => (1e9, "ns"),
        x if x < 0.999_5e-3 => (1e6, "µs"),
        x if x < 0.999_5 => (1e3, "ms"),
        x if x < 120.0 => (1.0, "s"),
        x if x < 7200.0 => (1.0 / 60.0, "min"),
        _ => (1.0 / 3600.0, "h"),
    };
    format!("{} {unit}", digits(value * factor))
}

fn thousands(value: f64) -> String {
    match value.abs() {
        x if x < 999.5 => digits(value),
        x if x < 999_500.0 => format!("{}k", digits(value / 1e3)),
        x if x < 999.5e6 => format!("{}M", digits(value / 1e6)),
        _ => format!("{}G", digits(value / 1e9)),
    }
}

fn bytes(value: f64) -> String {
    let mut rest = value;
    let mut unit = "B";
    for next in ["KiB", "MiB", "GiB", "TiB"] {
        if rest.abs() < 1023.5 {
            break;
        }
        rest /= 1024.0;
        unit = next;
    }
    format!("{} {unit}", digits(rest))
}

/// Three digits, or all that are before the point.
fn digits(value: f64) -> String {
    match value.abs() {
        x if x.fract() == 0.0 && x < 1000.0 => format!("{value:.0}"),
        x if x >= 99.95 => format!("{value:.0}"),
        x if x >= 9.995 => format!("{value:.1}"),
        x if x >= 0.0995 => format!("{value:.2}"),
        x if x >= 0.000_995 => format!("{value:.4}"),
        _ => format!("{value:.1e}"),
    }
}

/// An axis: values between two ends, drawn between two places.
#[derive(Clone, Debug)]
pub(crate) struct Scale {
    kind: Kind,
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Linear,
    Log,
    /// Of quantiles: each nine takes the same room.
    Nines,
}

impl Scale {
    /// From a round value to a round value; it has some room if all are one.
    pub(crate) fn linear(values: impl Iterator<Item = f64>, from_zero: bool) -> Self {
        let (mut low, mut high) = ends(values);
        if from_zero {
            low = low.min(0.0);
            high = high.max(0.0);
        }
        if low == high {
            high = low + if low == 0.0 { 1.0 } else { low.abs() };
        }
        let step = step(high - low, 5.0);
        Self {
            kind: Kind::Linear,
            low: (low / step + 1e-9).floor() * step,
            high: (high / step - 1e-9).ceil() * step,
            from: 0.0,
            to: 1.0,
        }
    }

    /// As [`linear`](Self::linear), but it ends where the values end.
    pub(crate) fn tight(values: impl Iterator<Item = f64>) -> Self {
        let (low, high) = ends(values);
        let high = if low == high { low + 1.0 } else { high };
        Self {
            kind: Kind::Linear,
            low,
            high,
            from: 0.0,
            to: 1.0,
        }
    }

    /// Values that aren't above zero have no place on it.
    pub(crate) fn log(values: impl Iterator<Item = f64>) -> Self {
        let (low, high) = ends(values.filter(|value| *value > 0.0));
        let (low, high) = match low > 0.0 {
            true => (low, high),
            false => (1.0, 10.0),
        };
        // To 1, 2 or 5 times a power of ten.
        let down = |value: f64| {
            let power = 10f64.powf(value.log10().floor());
            let rounds = [5.0, 2.0, 1.0];
            let found = rounds.iter().find(|r| *r * power <= value * (1.0 + 1e-9));
            found.unwrap_or(&1.0) * power
        };
        let up = |value: f64| {
            let power = 10f64.powf(value.log10().floor());
            let rounds = [1.0, 2.0, 5.0, 10.0];
            let found = rounds.iter().find(|r| *r * power >= value * (1.0 - 1e-9));
            found.unwrap_or(&10.0) * power
        };
        let (low, high) = (down(low), up(high));
        Self {
            kind: Kind::Log,
            low,
            high: if low == high { high * 10.0 } else { high },
            from: 0.0,
            to: 1.0,
        }
    }

    /// Quantiles from 0 up to one below 1.
    pub(crate) fn nines(high: f64) -> Self {
        Self {
            kind: Kind::Nines,
            low: 0.0,
            high: high.clamp(0.9, 0.999_999),
            from: 0.0,
            to: 1.0,
        }
    }

    /// The places of its ends.
    pub(crate) fn between(mut self, from: f64, to: f64) -> Self {
        (self.from, self.to) = (from, to);
        self
    }

    /// The place of a value; those outside are at the ends.
    pub(crate) fn place(&self, value: f64) -> f64 {
        let bent = |value: f64| match self.kind {
            Kind::Linear => value,
            Kind::Log => value.max(self.low * 1e-3).log10(),
            Kind::Nines => -(1.0 - value.min(0.999_999_9)).log10(),
        };
        let (low, high) = (bent(self.low), bent(self.high));
        let share = ((bent(value) - low) / (high - low)).clamp(0.0, 1.0);
        self.from + share * (self.to - self.from)
    }

    /// Whether a value is on it.
    pub(crate) fn has(&self, value: f64) -> bool {
        (self.low..=self.high).contains(&value)
    }

    /// Values that have a tick, about so many.
    pub(crate) fn ticks(&self, about: f64) -> Vec<f64> {
        match self.kind {
            Kind::Linear => {
                let step = step(self.high - self.low, about);
                let first = (self.low / step - 1e-9).ceil() as i64;
                let last = (self.high / step + 1e-9).floor() as i64;
                (first..=last).map(|at| at as f64 * step).collect()
            }
            Kind::Log => self.log_ticks(about),
            Kind::Nines => {
                let all = [0.0, 0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999];
                let on = all.into_iter().filter(|tick| *tick <= self.high + 1e-9);
                on.collect()
            }
        }
    }

    fn log_ticks(&self, about: f64) -> Vec<f64> {
        let first = self.low.log10().floor() as i32;
        let last = self.high.log10().ceil() as i32;
        let decades = (self.high / self.low).log10();
        let parts: &[f64] = match about / decades {
            many if many >= 9.0 => &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0],
            many if many >= 3.0 => &[1.0, 2.0, 5.0],
            many if many >= 2.0 => &[1.0, 3.0],
            _ => &[1.0],
        };
        let every = ((decades / about).ceil() as i32).max(1);
        let powers = (first..=last).filter(|power| power % every == 0);
        powers
            .flat_map(|power| parts.iter().map(move |part| part * 10f64.powi(power)))
            .filter(|tick| (self.low * 0.999..=self.high * 1.001).contains(tick))
            .collect()
    }
}

fn ends(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let finite = values.filter(|value| value.is_finite());
    let ends = finite.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
        (low.min(value), high.max(value))
    });
    match ends.0 <= ends.1 {
        true => ends,
        false => (0.0, 1.0),
    }
}

/// 1, 2 or 5 times a power of ten.
fn step(length: f64, about: f64) -> f64 {
    let raw = length / about;
    let power = 10f64.powf(raw.log10().floor());
    let part = match raw / power {
        x if x <= 1.0 => 1.0,
        x if x <= 2.0 => 2.0,
        x if x <= 5.0 => 5.0,
        _ => 10.0,
    };
    part * power
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_three_digits_and_a_unit() {
        for (unit, value, text) in [
            (Unit::Seconds, 0.000_123_4, "123 µs"),
            (Unit::Seconds, 0.000_999_9, "1.00 ms"),
            (Unit::Seconds, 2.51e-8, "25.1 ns"),
            (Unit::Seconds, 12.0, "12 s"),
            (Unit::Seconds, 600.0, "10 min"),
            (Unit::PerSecond, 12_345.0, "12.3k/s"),
            (Unit::PerSecond, 999_900.0, "1.00M/s"),
            (Unit::PerSecond, 0.0, "0/s"),
            (Unit::Bytes, 4.0 * 1024.0 * 1024.0, "4 MiB"),
            (Unit::BytesPerSecond, 1536.0, "1.50 KiB/s"),
            (Unit::Share, 0.125, "12.5 %"),
            (Unit::Share, 0.000_1, "0.0100 %"),
            (Unit::Ratio, 1.5, "1.50×"),
            (Unit::Count, f64::NAN, "–"),
        ] {
            assert_eq!(unit.text(value), text);
        }
        assert_eq!(Unit::Seconds.tick(0.000_02), "20 µs");
        assert_eq!(Unit::PerSecond.tick(2500.0), "2.5k/s");
    }

    #[test]
    fn axes_end_at_round_values_and_have_ticks() {
        let linear = Scale::linear([3.0, 97.0].into_iter(), true).between(0.0, 100.0);
        assert_eq!(linear.ticks(5.0), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
        assert_eq!(linear.place(50.0), 50.0);
        assert_eq!(linear.place(1e9), 100.0);
        let log = Scale::log([0.000_15, 0.09].into_iter()).between(0.0, 300.0);
        assert_eq!(log.ticks(6.0).len(), 7, "{:?}", log.ticks(6.0));
        assert_eq!(log.ticks(3.0).len(), 4, "{:?}", log.ticks(3.0));
        assert!((log.place(0.001) - 100.0).abs() < 1e-9);
        assert!(log.has(0.1) && !log.has(0.2));
        let nines = Scale::nines(0.9999).between(0.0, 4.0);
        for (at, quantile) in [0.0, 0.9, 0.99, 0.999, 0.9999].into_iter().enumerate() {
            assert!((nines.place(quantile) - at as f64).abs() < 1e-9);
        }
        assert_eq!(nines.ticks(0.0), [0.0, 0.5, 0.9, 0.99, 0.999, 0.9999]);
    }

    #[test]
    fn nothing_to_show_is_no_panic() {
        for scale in [
            Scale::linear(std::iter::empty(), false),
            Scale::linear([7.0, 7.0].into_iter(), false),
            Scale::tight(std::iter::once(f64::NAN)),
            Scale::log([0.0, -1.0].into_iter()),
            Scale::log([5.0].into_iter()),
        ] {
            assert!(scale.place(5.0).is_finite());
            assert!(scale.ticks(5.0).len() < 20);
        }
    }
}
