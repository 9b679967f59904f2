//! Finding members that answer, and how a question may end.
//!
//! Kept true: a member is asked only after it has answered, so that a question
//! is sent once, to one member; what came of it is never guessed.

use std::error::Error as _;
use std::future::Future;
use std::io;
use std::time::Duration;

use clap::Args;
use pontoon_api::etcdserverpb::cluster_client::ClusterClient;
use pontoon_api::etcdserverpb::kv_client::KvClient;
use pontoon_api::etcdserverpb::lease_client::LeaseClient;
use pontoon_api::etcdserverpb::maintenance_client::MaintenanceClient;
use pontoon_api::etcdserverpb::watch_client::WatchClient;
use pontoon_api::etcdserverpb::{StatusRequest, StatusResponse};
use pontoon_api::pontoonpb::ranges_client::RangesClient;
use tonic::transport::{Channel, Endpoint};
use tonic::{Response, Status};

/// How long a member has to answer that it is there.
const GREET_WITHIN: Duration = Duration::from_secs(2);
/// How long it has to answer a question; its own limit is below that.
const ANSWER_WITHIN: Duration = Duration::from_secs(15);

/// etcd's.
const PORT: &str = "2379";

/// Where the cluster is.
#[derive(Args, Clone, Debug)]
pub(crate) struct Endpoints {
    /// Members of the cluster; the first that answers is asked
    #[arg(
        long = "endpoints",
        value_name = "HOST:PORT,...",
        default_value = "127.0.0.1:2379",
        value_delimiter = ',',
        value_parser = authority,
        global = true
    )]
    pub(crate) all: Vec<String>,
}

/// Why there is nothing to print.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AskError {
    /// Said no, with its reason.
    #[error("{0}")]
    Refused(String),
    #[error("{0} not found")]
    NotFound(String),
    #[error("no member answers: {0}")]
    Unreachable(String),
    /// Not known whether it was done.
    #[error("{0}, so it is not known whether it was done")]
    Lost(String),
    #[error("{0}")]
    Wrong(String),
    #[error("writing the output: {0}")]
    Output(#[from] io::Error),
}

impl AskError {
    /// What the process ends with.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Refused(_) | Self::NotFound(_) => 1,
            Self::Unreachable(_) | Self::Lost(_) | Self::Wrong(_) | Self::Output(_) => 2,
        }
    }
}

impl From<Status> for AskError {
    fn from(status: Status) -> Self {
        // What has a cause was made on this side.
        match status.source() {
            Some(_) => Self::Lost(format!("the connection broke ({})", reason(&status))),
            None if status.message().is_empty() => Self::Refused(status.code().to_string()),
            None => Self::Refused(status.message().to_owned()),
        }
    }
}

/// The innermost reason, which is the one that helps.
pub(crate) fn reason(error: &dyn std::error::Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

/// A member that has answered.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    /// Host and port.
    pub(crate) at: String,
    pub(crate) id: u64,
    pub(crate) status: StatusResponse,
    channel: Channel,
}

macro_rules! clients {
    ($($name:ident: $client:ident;)*) => {
        impl Peer {
            $(pub(crate) fn $name(&self) -> $client<Channel> {
                $client::new(self.channel.clone())
                    .max_decoding_message_size(usize::MAX)
                    .max_encoding_message_size(usize::MAX)
            })*
        }
    };
}

clients! {
    kv: KvClient;
    watch: WatchClient;
    lease: LeaseClient;
    cluster: ClusterClient;
    ranges: RangesClient;
}

impl Peer {
    /// Connects and greets; says why if that fails.
    pub(crate) async fn reach(at: &str) -> Result<Self, String> {
        let failed = |why: String| format!("{at}: {why}");
        let greeted = async {
            let endpoint = Endpoint::from_shared(format!("http://{at}"));
            let endpoint = endpoint.map_err(|error| reason(&error))?;
            let channel = endpoint.connect().await.map_err(|error| reason(&error))?;
            let mut client = MaintenanceClient::new(channel.clone());
            let status = client.status(StatusRequest {}).await;
            let status = status.map_err(|status| match status.source() {
                Some(_) => reason(&status),
                None => status.message().to_owned(),
            })?;
            Ok((channel, status.into_inner()))
        };
        let greeted = tokio::time::timeout(GREET_WITHIN, greeted).await;
        let silence = || format!("no answer in {} s", GREET_WITHIN.as_secs());
        let (channel, status) = greeted.unwrap_or_else(|_| Err(silence())).map_err(failed)?;
        Ok(Self {
            at: at.to_owned(),
            id: status.header.as_ref().map_or(0, |header| header.member_id),
            status,
            channel,
        })
    }

    /// The first that answers. One that only listens serves hardly anything,
    /// so it is asked if there is no other.
    pub(crate) async fn any(endpoints: &Endpoints) -> Result<Self, AskError> {
        let mut listener = None;
        let mut reasons = Vec::new();
        for at in &endpoints.all {
            match Self::reach(at).await {
                Ok(peer) if peer.status.is_learner => listener = listener.or(Some(peer)),
                Ok(peer) => return Ok(peer),
                Err(reason) => reasons.push(reason),
            }
        }
        listener.ok_or_else(|| AskError::Unreachable(reasons.join("; ")))
    }
}

/// Waits for an answer, not forever.
pub(crate) async fn answer<T>(
    asked: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, AskError> {
    Ok(soon(asked).await?.into_inner())
}

/// The same for one of several answers.
pub(crate) async fn soon<T>(asked: impl Future<Output = Result<T, Status>>) -> Result<T, AskError> {
    match tokio::time::timeout(ANSWER_WITHIN, asked).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(AskError::Lost(format!(
            "there was no answer in {} s",
            ANSWER_WITHIN.as_secs()
        ))),
    }
}

/// What goes on until Ctrl-C is done then.
pub(crate) async fn until_interrupted(
    work: impl Future<Output = Result<(), AskError>>,
) -> Result<(), AskError> {
    tokio::select! {
        outcome = work => outcome,
        interrupted = tokio::signal::ctrl_c() => Ok(interrupted?),
    }
}

/// Host and port of an endpoint, of which the scheme and the port may be left out.
pub(crate) fn authority(endpoint: &str) -> Result<String, String> {
    let endpoint = endpoint.trim();
    if endpoint.starts_with("https://") {
        return Err("TLS is not served yet: leave https:// out".to_owned());
    }
    let at = endpoint.strip_prefix("http://").unwrap_or(endpoint);
    let at = at.strip_suffix('/').unwrap_or(at);
    if at.is_empty() || at.contains(['/', ' ']) {
        return Err(format!("{endpoint:?} is no HOST:PORT"));
    }
    let has_port = at
        .rsplit_once(':')
        .is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    let is_name = !at.contains(':') || at.ends_with(']');
    match (has_port, is_name) {
        (true, _) => Ok(at.to_owned()),
        (false, true) => Ok(format!("{at}:{PORT}")),
        (false, false) => Err(format!("{endpoint:?} is no HOST:PORT")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_read_in_every_form() {
        for (endpoint, at) in [
            ("127.0.0.1:2379", "127.0.0.1:2379"),
            ("http://127.0.0.1:2379", "127.0.0.1:2379"),
            ("http://host:1/", "host:1"),
            (" host ", "host:2379"),
            ("[::1]", "[::1]:2379"),
            ("[::1]:7", "[::1]:7"),
        ] {
            assert_eq!(authority(endpoint).as_deref(), Ok(at));
        }
        for wrong in [
            "",
            "http://",
            "https://a:1",
            "a:b",
            "a:99999",
            "ftp://a:1",
            "a b",
        ] {
            assert!(authority(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn who_refuses_and_who_is_not_there_are_told_apart() {
        let refused = AskError::from(Status::unavailable("etcdserver: no leader"));
        assert_eq!(refused.exit_code(), 1);
        let broken = io::Error::from(io::ErrorKind::BrokenPipe);
        let lost = AskError::from(Status::from_error(Box::new(broken)));
        assert_eq!(lost.exit_code(), 2);
    }
}
