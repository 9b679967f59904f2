//! A member's page of metrics, as far as it is of use here.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// How long a member has to send it.
const WITHIN: Duration = Duration::from_secs(3);
/// How large it may be.
const BYTES_MAX: u64 = 16 << 20;

/// Every sample: name, labels, value.
#[derive(Clone, Debug, Default)]
pub(crate) struct Page(Vec<Sample>);

#[derive(Clone, Debug)]
struct Sample {
    name: String,
    labels: Vec<(String, String)>,
    value: f64,
}

impl Page {
    /// Asks a member for it; `None` if it doesn't serve it there.
    pub(crate) async fn of(at: &str) -> Option<Self> {
        let asked = async {
            let mut stream = TcpStream::connect(at).await?;
            let request = format!("GET /metrics HTTP/1.0\r\nHost: {at}\r\n\r\n");
            stream.write_all(request.as_bytes()).await?;
            let mut page = Vec::new();
            stream.take(BYTES_MAX).read_to_end(&mut page).await?;
            Ok::<_, std::io::Error>(page)
        };
        let page = tokio::time::timeout(WITHIN, asked).await.ok()?.ok()?;
        let page = String::from_utf8(page).ok()?;
        let (head, body) = page.split_once("\r\n\r\n")?;
        (head.split(' ').nth(1) == Some("200")).then(|| Self::read(body))
    }

    fn read(text: &str) -> Self {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        Self(lines.filter_map(sample).collect())
    }

    /// The sum of all samples of this name that have these labels.
    pub(crate) fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let has = |sample: &&Sample| {
            let mut wanted = labels.iter();
            wanted.all(|(label, value)| sample.label(label) == Some(value))
        };
        let named = self.0.iter().filter(|sample| sample.name == name);
        named.filter(has).map(|sample| sample.value).sum()
    }

    /// A label of the first sample of this name.
    pub(crate) fn label(&self, name: &str, label: &str) -> Option<&str> {
        let sample = self.0.iter().find(|sample| sample.name == name)?;
        sample.label(label)
    }
}

impl Sample {
    fn label(&self, label: &str) -> Option<&str> {
        let mut labels = self.labels.iter();
        let found = labels.find(|(name, _)| name == label)?;
        Some(&found.1)
    }
}

/// `name value`, or `name{label="text",...} value`.
fn sample(line: &str) -> Option<Sample> {
    let (sample, value) = line.rsplit_once(' ')?;
    let (name, mut rest) = sample.split_once('{').unwrap_or((sample, ""));
    let mut labels = Vec::new();
    while let Some((label, text)) = rest.split_once("=\"") {
        let (text, after) = quoted(text)?;
        labels.push((label.trim_start_matches(',').to_owned(), text));
        rest = after;
    }
    Some(Sample {
        name: name.to_owned(),
        labels,
        value: value.parse().ok()?,
    })
}

/// The text up to the next quote that isn't escaped, and what follows.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut unquoted = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((unquoted, &text[at + 1..])),
            '\\' => match chars.next()?.1 {
                'n' => unquoted.push('\n'),
                c => unquoted.push(c),
            },
            c => unquoted.push(c),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_read() {
        let page = Page::read(
            "# TYPE a gauge\n\
             a 1.5\n\
             b{x=\"1\",y=\"one, \\\"two\\\"\"} 2\n\
             b{x=\"2\",y=\"\"} 3e1\n\
             nonsense\n",
        );
        assert_eq!(page.sum("a", &[]), 1.5);
        assert_eq!(page.sum("b", &[]), 32.0);
        assert_eq!(page.sum("b", &[("x", "2")]), 30.0);
        assert_eq!(page.sum("b", &[("z", "2")]), 0.0);
        assert_eq!(page.label("b", "y"), Some("one, \"two\""));
        assert_eq!(page.label("c", "y"), None);
    }
}
