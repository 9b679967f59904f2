//! A page: sections of text, tables and figures, in the order they were added.
//!
//! Kept true: text is escaped where it enters the page, and nowhere else.

use std::fmt::Write;

use crate::figure::Figure;

const STYLE: &str = include_str!("page.css");

/// A report.
#[derive(Clone, Debug)]
pub struct Page {
    title: String,
    body: String,
    in_section: bool,
}

/// How a judgement looks. It is said in words too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// As it should be.
    Good,
    /// With reservations, or not known.
    Unsure,
    /// Not as it should be.
    Bad,
}

impl Page {
    /// An empty one.
    pub fn new(title: impl Into<String>) -> Self {
        Self {
            title: title.into(),
            body: String::new(),
            in_section: false,
        }
    }

    /// Begins a section.
    pub fn section(&mut self, heading: &str) {
        self.end_section();
        self.in_section = true;
        self.add(format_args!("<section>\n<h2>{}</h2>\n", escaped(heading)));
    }

    /// A paragraph.
    pub fn text(&mut self, text: &str) {
        self.add(format_args!("<p>{}</p>\n", escaped(text)));
    }

    /// A list of short sentences.
    pub fn list<T: AsRef<str>>(&mut self, items: impl IntoIterator<Item = T>) {
        self.add(format_args!("<ul>\n"));
        for item in items {
            self.add(format_args!("<li>{}</li>\n", escaped(item.as_ref())));
        }
        self.add(format_args!("</ul>\n"));
    }

    /// Text as it is, line by line: a command, or what a program printed.
    pub fn preformatted(&mut self, text: &str) {
        self.add(format_args!("<pre>{}</pre>\n", escaped(text)));
    }

    /// A judgement that is seen at once.
    pub fn verdict(&mut self, verdict: Verdict, text: &str) {
        let class = match verdict {
            Verdict::Good => "good",
            Verdict::Unsure => "unsure",
            Verdict::Bad => "bad",
        };
        self.add(format_args!(
            "<p class=\"verdict {class}\">{}</p>\n",
            escaped(text)
        ));
    }

    /// A table.
    pub fn table(&mut self, table: Table) {
        let row = |cells: &[String], kind: &str| {
            let cells: String = cells
                .iter()
                .map(|cell| format!("<{kind}>{}</{kind}>", escaped(cell)))
                .collect();
            format!("<tr>{cells}</tr>\n")
        };
        self.add(format_args!("<div class=\"wide\"><table>\n"));
        self.add(format_args!(
            "<thead>{}</thead>\n",
            row(&table.heading, "th")
        ));
        self.add(format_args!("<tbody>\n"));
        for cells in &table.rows {
            self.add(format_args!("{}", row(cells, "td")));
        }
        self.add(format_args!("</tbody>\n</table></div>\n"));
    }

    /// A figure.
    pub fn figure(&mut self, figure: &dyn Figure) {
        let legend = match figure.names().as_slice() {
            [] | [_] => String::new(),
            names => {
                let name = |(at, name): (usize, &String)| {
                    format!(
                        "<span class=\"key c{}\">{}</span>",
                        at % crate::figure::COLOURS,
                        escaped(name)
                    )
                };
                let names: String = names.iter().enumerate().map(name).collect();
                format!("<div class=\"legend\">{names}</div>\n")
            }
        };
        self.add(format_args!(
            "<figure>\n<figcaption>{}</figcaption>\n{legend}{}</figure>\n",
            escaped(figure.title()),
            figure.svg()
        ));
    }

    /// The whole file.
    #[must_use]
    pub fn html(&self) -> String {
        let title = escaped(&self.title);
        let end = if self.in_section { "</section>\n" } else { "" };
        format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
             <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n\
             <h1>{title}</h1>\n{}{end}</main>\n</body>\n</html>\n",
            self.body
        )
    }

    fn end_section(&mut self) {
        if self.in_section {
            self.body.push_str("</section>\n");
        }
    }

    fn add(&mut self, part: std::fmt::Arguments<'_>) {
        self.body.write_fmt(part).expect("strings take all");
    }
}

/// Rows of text; all but the first column are set as figures are.
#[derive(Clone, Debug)]
pub struct Table {
    heading: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without rows.
    pub fn new<T: Into<String>>(heading: impl IntoIterator<Item = T>) -> Self {
        Self {
            heading: heading.into_iter().map(Into::into).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row.
    #[must_use]
    pub fn row<T: Into<String>>(mut self, cells: impl IntoIterator<Item = T>) -> Self {
        self.rows.push(cells.into_iter().map(Into::into).collect());
        self
    }
}

/// Text that means itself, in HTML, in SVG and in attributes.
pub(crate) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            // What XML has no way to say.
            control if control.is_control() && control != '\n' && control != '\t' => {
                escaped.push('\u{fffd}');
            }
            other => escaped.push(other),
        }
    }
    escaped
}
