//! What can go wrong with a request.

use h2::Reason;
use http::{HeaderMap, StatusCode};

/// Why a request has no good answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// Nobody listens there, or the address means nothing.
    #[error("can't connect to {address}: {error}")]
    Connect {
        /// Where.
        address: String,
        /// What the system says.
        error: String,
    },
    /// The server wants no more requests on this connection.
    #[error("GOAWAY {0:?}")]
    GoAway(Reason),
    /// The server, or we, gave this one request up.
    #[error("RST_STREAM {0:?}")]
    Reset(Reason),
    /// The connection is broken.
    #[error("connection: {0}")]
    Broken(String),
    /// Something that isn't gRPC answered.
    #[error("HTTP status {0}")]
    Http(StatusCode),
    /// The server answered with an error.
    #[error("{}: {text}", code_name(*code))]
    Status {
        /// gRPC's number of it.
        code: u32,
        /// What it says.
        text: String,
    },
    /// Somebody pressed Ctrl-C.
    #[error("interrupted")]
    Interrupted,
    /// Nothing was answered any more.
    #[error("stalled: nothing was answered any more")]
    Stalled,
    /// The answer is not what the request asked for.
    #[error("wrong answer: {0}")]
    Answer(&'static str),
}

impl Failure {
    /// Whether only a new connection can help.
    #[must_use]
    pub fn needs_connection(&self) -> bool {
        matches!(
            self,
            Self::Connect { .. } | Self::GoAway(_) | Self::Broken(_)
        )
    }

    /// Reads `grpc-status` where it must be: in the trailers, or in the
    /// headers if nothing follows them.
    pub(super) fn check_status(headers: &HeaderMap) -> Result<(), Self> {
        let code = headers
            .get("grpc-status")
            .ok_or(Self::Answer("no grpc-status"))?;
        if code.as_bytes() == b"0" {
            return Ok(());
        }
        let code = code.to_str().ok().and_then(|code| code.parse().ok());
        let text = headers
            .get("grpc-message")
            .map_or(&b""[..], |text| text.as_bytes());
        Err(Self::Status {
            code: code.ok_or(Self::Answer("grpc-status is not a number"))?,
            text: percent_decoded(text),
        })
    }
}

impl From<h2::Error> for Failure {
    fn from(error: h2::Error) -> Self {
        match error.reason() {
            Some(reason) if error.is_go_away() => Self::GoAway(reason),
            Some(reason) if error.is_reset() => Self::Reset(reason),
            _ => Self::Broken(error.to_string()),
        }
    }
}

fn percent_decoded(text: &[u8]) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, after @ ..] = rest {
        let hex = after.get(..2).and_then(|hex| str::from_utf8(hex).ok());
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) if *first == b'%' => {
                bytes.push(byte);
                rest = &after[2..];
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// gRPC's names for its codes, from 0 on.
const CODES: [&str; 17] = [
    "Ok",
    "Cancelled",
    "Unknown",
    "InvalidArgument",
    "DeadlineExceeded",
    "NotFound",
    "AlreadyExists",
    "PermissionDenied",
    "ResourceExhausted",
    "FailedPrecondition",
    "Aborted",
    "OutOfRange",
    "Unimplemented",
    "Internal",
    "Unavailable",
    "DataLoss",
    "Unauthenticated",
];

fn code_name(code: u32) -> String {
    match CODES.get(code as usize) {
        Some(name) => (*name).to_owned(),
        None => format!("code {code}"),
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn status(code: &'static str, text: &'static str) -> Result<(), Failure> {
        let mut headers = HeaderMap::new();
        headers.insert("grpc-status", HeaderValue::from_static(code));
        headers.insert("grpc-message", HeaderValue::from_static(text));
        Failure::check_status(&headers)
    }

    #[test]
    fn statuses_are_told_as_grpc_names_them() {
        assert_eq!(status("0", ""), Ok(()));
        let told = |code, text| status(code, text).unwrap_err().to_string();
        assert_eq!(
            told("14", "etcdserver: no leader"),
            "Unavailable: etcdserver: no leader"
        );
        assert_eq!(told("2", "50%25 of %E2%82%AC, 3%"), "Unknown: 50% of €, 3%");
        assert_eq!(told("99", ""), "code 99: ");
        assert!(told("x", "").contains("not a number"));
        assert_eq!(
            Failure::check_status(&HeaderMap::new()),
            Err(Failure::Answer("no grpc-status"))
        );
    }
}
