//! Blocks of headers. Ours hardly change from request to request, and so do
//! the server's: what was written or read once costs next to nothing again.
//!
//! Kept true: the server is told to keep no table for its answers, so what a
//! block means depends on its bytes alone.

use std::str::from_utf8;

use http::StatusCode;
use loona_hpack::Decoder;

use super::{NO_STATUS, broken};
use crate::wire::failure::Failure;

/// The most that headers of an answer may have.
pub(super) const BLOCK_BYTES_MAX: usize = 64 << 10;
/// Different blocks that are remembered.
const KNOWN_MAX: usize = 32;
/// The first place behind the names that everybody knows.
const FIRST_PLACE: usize = 62;
/// What an entry of the table counts besides its bytes.
const ENTRY_BYTES: usize = 32;
/// What a server's table holds, unless it says otherwise.
const TABLE_BYTES: usize = 4096;

/// What headers or trailers say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Said {
    pub(super) http: Option<StatusCode>,
    /// How the call ended, if nothing follows.
    pub(super) end: Result<(), Failure>,
}

/// Blocks that were read before.
#[derive(Default)]
pub(super) struct Blocks(Vec<(Box<[u8]>, Said)>);

impl Blocks {
    pub(super) fn read(&mut self, block: &[u8]) -> Result<Said, Failure> {
        if let Some((_, said)) = self.0.iter().find(|(known, _)| **known == *block) {
            return Ok(said.clone());
        }
        let said = read(block)?;
        if self.0.len() < KNOWN_MAX {
            self.0.push((block.into(), said.clone()));
        }
        Ok(said)
    }
}

fn read(block: &[u8]) -> Result<Said, Failure> {
    let decoded = Decoder::new().decode(block);
    let headers = decoded.map_err(|error| broken(&format!("headers make no sense: {error:?}")))?;
    let find = |name: &[u8]| {
        let mut headers = headers.iter();
        let found = headers.find(|(header, _)| header == name);
        found.map(|(_, value)| &value[..])
    };
    let http = match find(b":status") {
        None => None,
        Some(status) => {
            let status = StatusCode::from_bytes(status);
            Some(status.map_err(|_| broken("a status that isn't one"))?)
        }
    };
    let end = match find(b"grpc-status") {
        None => Err(NO_STATUS),
        Some(code) => Failure::check_status(
            from_utf8(code).unwrap_or_default(),
            find(b"grpc-message").unwrap_or_default(),
        ),
    };
    Ok(Said { http, end })
}

/// The headers of our requests.
pub(super) struct Asking {
    authority: String,
    is_secure: bool,
    /// Says who asks, if the server wants to know.
    token: Option<String>,
    /// Entries that the server keeps for us, the oldest first.
    kept: Vec<(usize, &'static str)>,
    kept_bytes: usize,
    table_bytes: usize,
    /// The server does not know yet that no more of its table is used.
    is_limited: bool,
}

/// Names by their places in the table that everybody knows.
const AUTHORITY: usize = 1;
const PATH: usize = 4;
const CONTENT_TYPE: usize = 31;
/// Two that aren't there, and what they are called.
const TE: usize = 100;
const TOKEN: usize = 101;
/// Whole headers by their places in it.
const POST: u8 = 0x83;
const HTTP: u8 = 0x86;
const HTTPS: u8 = 0x87;

impl Asking {
    pub(super) fn new(authority: &str, is_secure: bool) -> Self {
        Self {
            authority: authority.to_owned(),
            is_secure,
            token: None,
            kept: Vec::new(),
            kept_bytes: 0,
            table_bytes: TABLE_BYTES,
            is_limited: false,
        }
    }

    /// The server's table holds so much, from before the first request on.
    pub(super) fn limit(&mut self, bytes: usize) {
        self.is_limited = bytes < self.table_bytes;
        self.table_bytes = self.table_bytes.min(bytes);
    }

    /// Requests say who asks, once.
    pub(super) fn set_token(&mut self, token: String) {
        self.token.get_or_insert(token);
    }

    /// Writes the headers of a request.
    pub(super) fn write(&mut self, path: &'static str, out: &mut Vec<u8>) {
        if std::mem::take(&mut self.is_limited) {
            write_number(0x20, 5, self.table_bytes, out);
        }
        let scheme = if self.is_secure { HTTPS } else { HTTP };
        out.extend_from_slice(&[POST, scheme]);
        for (name, value) in [
            (PATH, path),
            (AUTHORITY, ""),
            (CONTENT_TYPE, "application/grpc"),
            (TE, "trailers"),
        ] {
            self.write_one(name, value, out);
        }
        if self.token.is_some() {
            self.write_one(TOKEN, "", out);
        }
    }

    fn write_one(&mut self, name: usize, value: &'static str, out: &mut Vec<u8>) {
        let at = self.kept.iter().position(|kept| *kept == (name, value));
        if let Some(at) = at {
            // The newest comes first.
            let place = FIRST_PLACE + self.kept.len() - 1 - at;
            write_number(0x80, 7, place, out);
            return;
        }
        let text = match name {
            AUTHORITY => &self.authority,
            TOKEN => self.token.as_deref().unwrap_or_default(),
            _ => value,
        };
        // Names have 14 bytes at most.
        let bytes = ENTRY_BYTES + 14 + text.len();
        let fits = self.kept_bytes + bytes <= self.table_bytes;
        let own_name = match name {
            TE => Some("te"),
            TOKEN => Some("token"),
            _ => None,
        };
        let place = if own_name.is_some() { 0 } else { name };
        match fits {
            true => write_number(0x40, 6, place, out),
            false => write_number(0, 4, place, out),
        }
        if let Some(own_name) = own_name {
            write_text(own_name, out);
        }
        write_text(text, out);
        if fits {
            self.kept.push((name, value));
            self.kept_bytes += bytes;
        }
    }
}

/// A text, with its length before it.
fn write_text(text: &str, out: &mut Vec<u8>) {
    write_number(0, 7, text.len(), out);
    out.extend_from_slice(text.as_bytes());
}

/// A number whose first `bits` share a byte with `first`.
fn write_number(first: u8, bits: u32, number: usize, out: &mut Vec<u8>) {
    let most = (1 << bits) - 1;
    if number < most {
        out.push(first | number as u8);
        return;
    }
    out.push(first | most as u8);
    let mut rest = number - most;
    while rest >= 0x80 {
        out.push(0x80 | (rest % 0x80) as u8);
        rest /= 0x80;
    }
    out.push(rest as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(decoder: &mut Decoder<'_>, block: &[u8]) -> Vec<(String, String)> {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        let headers = decoder.decode(block).unwrap();
        let headers = headers.into_iter();
        headers
            .map(|(name, value)| (text(name), text(value)))
            .collect()
    }

    #[test]
    fn requests_say_the_same_with_a_table_and_without() {
        for table_bytes in [4096, 150, 0] {
            let long = format!("{}:2379", "a".repeat(300));
            for authority in ["127.0.0.1:2379", &long] {
                let mut asking = Asking::new(authority, true);
                asking.limit(table_bytes);
                asking.set_token("secret.42".to_owned());
                let mut decoder = Decoder::new();
                for path in ["/a/Put", "/a/Range", "/a/Put", "/a/Range"] {
                    let mut block = Vec::new();
                    asking.write(path, &mut block);
                    let mut expected = [
                        (":method", "POST"),
                        (":scheme", "https"),
                        (":path", path),
                        (":authority", authority),
                        ("content-type", "application/grpc"),
                        ("te", "trailers"),
                        ("token", "secret.42"),
                    ]
                    .map(|(name, value)| (name.to_owned(), value.to_owned()));
                    let mut headers = decoded(&mut decoder, &block);
                    headers.sort();
                    expected.sort();
                    assert_eq!(headers, expected, "{table_bytes}");
                }
            }
        }
    }

    #[test]
    fn the_second_time_a_request_needs_a_few_bytes() {
        let mut asking = Asking::new("127.0.0.1:2379", false);
        let (mut first, mut second) = (Vec::new(), Vec::new());
        asking.write("/a/Put", &mut first);
        asking.write("/a/Put", &mut second);
        assert_eq!(second.len(), 6);
    }

    #[test]
    fn what_makes_no_sense_is_an_error() {
        let mut blocks = Blocks::default();
        for nonsense in [&[0x80][..], &[0xff, 0xff, 0xff, 0xff, 0xff], &[0x40, 0x85]] {
            assert!(blocks.read(nonsense).is_err());
        }
    }
}
