//! Reports with figures: one HTML file that needs nothing else.
//!
//! Kept true: a page is readable without a network, without scripts, on light
//! and dark screens and on paper; whatever text it is given stays text.
//!
//! A [`Page`] has sections of text, tables and figures, in the order in which
//! they were added. Figures are inline SVG whose colours are the page's, and
//! each tells its values to who points at it.
//!
//! ```
//! use pontoon_plot::{Lines, Page, Table, Unit};
//!
//! let mut page = Page::new("A load");
//! page.section("What came of it");
//! page.text("Everything was answered.");
//! page.table(Table::new(["what", "figure"]).row(["rate", "12.3k/s"]));
//! let rate = [(0.0, 12_000.0), (1.0, 12_600.0)];
//! page.figure(&Lines::new("Rate", Unit::Seconds, Unit::PerSecond).series("put", rate));
//! assert!(page.html().contains("<svg"));
//! ```

#![forbid(unsafe_code)]

mod destination;
mod figure;
mod page;
mod scale;

pub use destination::Destination;
pub use figure::Figure;
pub use figure::bars::{Bar, Bars};
pub use figure::histogram::Histogram;
pub use figure::lines::Lines;
pub use figure::percentiles::{Percentiles, quantiles};
pub use page::{Page, Table, Verdict};
pub use scale::Unit;
