//! What can go wrong with a request.

use h2::Reason;
use http::StatusCode;
use pontoon_api::CODE_NAMES;

const UNAUTHENTICATED: u32 = 16;

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
        match self {
            Self::Connect { .. } | Self::GoAway(_) | Self::Broken(_) => true,
            // A token has become old; a new connection gets a new one.
            Self::Status { code, .. } => *code == UNAUTHENTICATED,
            _ => false,
        }
    }

    /// What `grpc-status` and `grpc-message` say.
    pub(super) fn check_status(code: &str, text: &[u8]) -> Result<(), Self> {
        match code.parse() {
            Ok(0) => Ok(()),
            Ok(code) => Err(Self::Status {
                code,
                text: percent_decoded(text),
            }),
            Err(_) => Err(Self::Answer("grpc-status is not a number")),
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

fn code_name(code: u32) -> String {
    match CODE_NAMES.get(code as usize) {
        Some(name) => (*name).to_owned(),
        None => format!("code {code}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(code: &str, text: &str) -> Result<(), Failure> {
        Failure::check_status(code, text.as_bytes())
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
    }
}
