//! Figures in a page.

use crate::{Bar, Bars, Histogram, Lines, Page, Percentiles, Table, Unit, Verdict, quantiles};

/// Everything that a page can hold, with text that means something elsewhere.
fn page() -> Page {
    let nasty = "<script>alert(1)</script> & \"quotes\" 'too' \u{1}";
    let mut page = Page::new(nasty);
    page.verdict(Verdict::Bad, nasty);
    page.section(nasty);
    page.text(nasty);
    page.list([nasty]);
    page.preformatted(nasty);
    page.table(Table::new([nasty, "b"]).row([nasty, "2"]));
    let rate = (0..100).map(|at| (f64::from(at), 10_000.0 + f64::from(at % 7) * 900.0));
    page.figure(
        &Lines::new(nasty, Unit::Seconds, Unit::PerSecond)
            .series(nasty, rate.clone())
            .series("other", rate.map(|(x, y)| (x, y / 2.0)))
            .level(12_000.0, nasty)
            .at(50.0, nasty)
            .label(nasty),
    );
    let values = (1..1000u32).map(|at| (f64::from(at) * 1e-5, u64::from(1000 - at)));
    page.figure(
        &Histogram::new(nasty, Unit::Seconds)
            .series(nasty, values)
            .at(1e-3, nasty),
    );
    let curve = quantiles(1_000_000)
        .into_iter()
        .map(|q| (q, 1e-4 / (1.0 - q)));
    page.figure(
        &Percentiles::new(nasty, Unit::Seconds)
            .series(nasty, curve)
            .level(0.01, nasty),
    );
    page.section("second");
    page.figure(
        &Bars::new(nasty, Unit::Ratio)
            .around(1.0)
            .bar(Bar::new(nasty, 2.0).between(1.5, 2.5).of(nasty))
            .bar(Bar::new("b", 0.5).of("other")),
    );
    page
}

/// Looks whether every element that begins ends, in order, and returns the
/// names of all.
fn elements(html: &str) -> Vec<String> {
    let mut open: Vec<String> = Vec::new();
    let mut seen = Vec::new();
    for part in html.split('<').skip(1) {
        let (tag, _) = part.split_once('>').expect("a tag ends");
        assert_eq!(tag.matches('"').count() % 2, 0, "quotes in <{tag}>");
        if tag.starts_with('!') || tag.ends_with('/') {
            continue;
        }
        let name = tag.split_whitespace().next().unwrap();
        match name.strip_prefix('/') {
            Some(name) => assert_eq!(open.pop().as_deref(), Some(name)),
            None => {
                open.push(name.to_owned());
                seen.push(name.to_owned());
            }
        }
    }
    assert_eq!(open, [""; 0]);
    seen
}

#[test]
fn text_stays_text_wherever_it_stands() {
    let html = page().html();
    let elements = elements(&html);
    assert!(!elements.iter().any(|name| name == "script"));
    assert_eq!(elements.iter().filter(|name| *name == "svg").count(), 4);
    assert_eq!(elements.iter().filter(|name| *name == "section").count(), 2);
    assert!(html.contains("&lt;script&gt;alert(1)&lt;/script&gt; &amp; &quot;quotes&quot;"));
    assert!(!html.contains('\u{1}'));
    // Nothing is asked of anybody.
    assert!(
        !html
            .replace("http://www.w3.org/2000/svg", "")
            .contains("http")
    );
}

#[test]
fn figures_without_anything_are_no_panic() {
    let mut page = Page::new("nothing");
    page.figure(&Lines::new("a", Unit::Seconds, Unit::Seconds).log());
    page.figure(&Lines::new("a", Unit::Seconds, Unit::Count).series("x", [(f64::NAN, 1.0)]));
    page.figure(&Histogram::new("b", Unit::Bytes).series("x", [(0.0, 3), (-1.0, 2)]));
    page.figure(&Percentiles::new("c", Unit::Seconds).series("x", []));
    page.figure(&Bars::new("d", Unit::Ratio).bar(Bar::new("x", f64::NAN)));
    page.figure(&Bars::new("d", Unit::Ratio).around(1.0));
    let html = page.html();
    elements(&html);
    assert!(!html.contains("NaN") && !html.contains("inf\""), "{html}");
}

#[test]
fn curves_end_at_the_rarest_sample() {
    let all = quantiles(u64::MAX);
    assert!((all[all.len() - 1] - 0.9999).abs() < 1e-9);
    let few = quantiles(100);
    assert!((few[few.len() - 1] - 0.99).abs() < 1e-9);
    assert!(quantiles(0).len() > 2);
    assert!(all.windows(2).all(|pair| pair[0] < pair[1]));
}
