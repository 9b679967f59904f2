//! Writes a page with every kind of figure to a file, to be looked at.

use pontoon_plot::{
    Bar, Bars, Destination, Histogram, Lines, Page, Percentiles, Table, Unit, Verdict, quantiles,
};

fn main() -> std::io::Result<()> {
    let path = std::env::args().nth(1).unwrap_or("figures.html".to_owned());
    let mut page = Page::new("Every kind of figure");
    page.verdict(Verdict::Good, "Fit: about 12.3k/s at p99 4.1 ms");
    page.verdict(Verdict::Unsure, "Not known: it was interrupted");
    page.verdict(Verdict::Bad, "Unfit: p99 40 ms is above 10 ms");
    page.section("Over time");
    page.text("Text, with < and & in it.");
    page.list(["one thing", "another thing"]);
    page.preformatted("$ a command --with flags\nits output");
    page.table(
        Table::new(["load", "rate", "p50", "p99"])
            .row(["put", "12.3k/s", "1.10 ms", "4.10 ms"])
            .row(["range", "45.6k/s", "310 µs", "1.90 ms"]),
    );
    let wave = |phase: f64| {
        (0..120).map(move |at| {
            let at = f64::from(at);
            (at, 10_000.0 + 900.0 * (at / 7.0 + phase).sin())
        })
    };
    page.figure(
        &Lines::new("Rate over time", Unit::Seconds, Unit::PerSecond)
            .series("put", wave(0.0))
            .series("range", wave(2.0).map(|(x, y)| (x, y * 1.4)))
            .level(10_000.0, "target")
            .at(60.0, "knee"),
    );
    page.figure(
        &Lines::new("p99 over time", Unit::Seconds, Unit::Seconds)
            .log()
            .series("put", wave(0.0).map(|(x, y)| (x, y * 4e-7)))
            .label("since the start"),
    );
    page.section("How long");
    let spread = |middle: f64| {
        (0..20_000u32).map(move |at| {
            let share = (f64::from(at) + 0.5) / 20_000.0;
            (middle * (share / (1.0 - share)).powf(0.25), 1)
        })
    };
    page.figure(
        &Histogram::new("Latency", Unit::Seconds)
            .label("latency")
            .series("put", spread(1e-3))
            .series("range", spread(3e-4))
            .at(0.01, "limit"),
    );
    let curve = |middle: f64| {
        let points = quantiles(20_000).into_iter();
        points.map(move |q| (q, middle * (q.max(1e-3) / (1.0 - q)).powf(0.25)))
    };
    page.figure(
        &Percentiles::new("Percentiles", Unit::Seconds)
            .series("put", curve(1e-3))
            .series("range", curve(3e-4))
            .level(0.01, "limit"),
    );
    page.section("Compared");
    page.figure(
        &Bars::new("Ours to theirs", Unit::Ratio)
            .around(1.0)
            .bar(Bar::new("put rate", 2.4).between(2.1, 2.8).of("rate"))
            .bar(Bar::new("range rate", 0.8).between(0.6, 1.1).of("rate"))
            .bar(Bar::new("put p99", 0.3).between(0.25, 0.41).of("p99"))
            .bar(Bar::new("range p99", 12.0).between(9.0, 15.0).of("p99")),
    );
    page.figure(
        &Bars::new("Rate", Unit::PerSecond)
            .bar(Bar::new("pontoon", 24_000.0).between(22_000.0, 26_000.0))
            .bar(Bar::new("etcd", 11_000.0).between(10_000.0, 12_500.0)),
    );
    Destination::try_new(path)?.write(&page)
}
