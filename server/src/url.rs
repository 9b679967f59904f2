//! URLs of members, as far as etcd uses them: a scheme, a host and a port.

use std::fmt;

/// `http://host:port`, or with another scheme.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Url {
    pub(crate) scheme: String,
    /// With the port; of `unix` the path of a socket.
    pub(crate) authority: String,
}

impl Url {
    /// Reads one.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let Some((scheme, rest)) = text.split_once("://") else {
            return Err(format!("{text:?} is not a URL: it has no scheme"));
        };
        let scheme = scheme.to_ascii_lowercase();
        if !["http", "https", "unix", "unixs"].contains(&scheme.as_str()) {
            return Err(format!(
                "URL scheme of {text:?} must be http, https, unix, or unixs"
            ));
        }
        let authority = match scheme.starts_with("unix") {
            true => rest,
            false => rest.strip_suffix('/').unwrap_or(rest),
        };
        if authority.contains(['/', '?', '#']) && !scheme.starts_with("unix") {
            return Err(format!("URL {text:?} must not contain a path"));
        }
        let Some((_, port)) = authority.rsplit_once(':') else {
            return Err(format!("URL {text:?} must have a port"));
        };
        if port.parse::<u16>().is_err() {
            return Err(format!("URL {text:?} has an invalid port"));
        }
        Ok(Self {
            scheme,
            authority: authority.to_owned(),
        })
    }

    /// Reads a list, with commas between; sorted, as etcd has it.
    pub(crate) fn parse_list(text: &str) -> Result<Vec<Self>, String> {
        let parts = text.split(',').filter(|part| !part.trim().is_empty());
        let mut urls = parts.map(Self::parse).collect::<Result<Vec<_>, _>>()?;
        urls.sort();
        Ok(urls)
    }

    pub(crate) fn host(&self) -> &str {
        let host = self.authority.rsplit_once(':');
        let host = host.map_or(self.authority.as_str(), |(host, _)| host);
        host.trim_start_matches('[').trim_end_matches(']')
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme, self.authority)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read_as_etcd_does() {
        let url = Url::parse("http://10.0.0.1:2380/").unwrap();
        assert_eq!(url.to_string(), "http://10.0.0.1:2380");
        assert_eq!(url.host(), "10.0.0.1");
        assert_eq!(Url::parse("https://[::1]:1").unwrap().host(), "::1");
        for bad in [
            "",
            "localhost:2380",
            "ftp://localhost:2380",
            "http://localhost",
            "http://localhost:2380/path",
            "http://localhost:x",
        ] {
            assert!(Url::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn lists_are_sorted() {
        let urls = Url::parse_list("http://b:1, http://a:1").unwrap();
        let urls: Vec<_> = urls.iter().map(Url::to_string).collect();
        assert_eq!(urls, ["http://a:1", "http://b:1"]);
    }
}
