//! What is served over plain HTTP: version, health, metrics.

use std::fmt::Write;

use http::request::Parts;
use http::{HeaderValue, Method, Response, StatusCode, header};
use http_body_util::Full;
use pontoon_api::etcdserverpb::RangeRequest;
use pontoon_raftgroup::{Alarm, GroupId};
use serde_json::json;
use tonic::body::Body;

use crate::door::Behind;
use crate::host::Host;
use crate::metrics;
use crate::readiness::{Probe, check_disk, check_ranges, read_outcome};
use crate::version::{API_VERSION, CLUSTER_VERSION};

const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";
const VARS: &str = "application/json; charset=utf-8";
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Answers a request.
pub(crate) async fn serve(host: &Host, request: &Parts, behind: Behind) -> Response<Body> {
    if behind == Behind::Metrics {
        return page(host, request, &["health", "livez", "readyz", "metrics"]).await;
    }
    if !host.visitors.may_name(named_host(request)) {
        let text = "the Host of this request is not in --host-whitelist\n".to_owned();
        return answer(StatusCode::MISDIRECTED_REQUEST, TEXT, text);
    }
    let mut response = match (behind, &request.method) {
        (Behind::Grpc, _) => not_found(),
        (_, &Method::OPTIONS) => answer(StatusCode::OK, TEXT, String::new()),
        _ => {
            page(
                host,
                request,
                &["version", "health", "livez", "readyz", "metrics", "debug"],
            )
            .await
        }
    };
    let origin = request.headers.get(header::ORIGIN);
    if let Some(allowed) = host.visitors.origin(origin) {
        let headers = response.headers_mut();
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, allowed);
        let methods = HeaderValue::from_static("POST, GET, OPTIONS, PUT, DELETE");
        headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, methods);
        let allowed = HeaderValue::from_static("accept, content-type, authorization");
        headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, allowed);
    }
    response
}

/// Who may ask over HTTP.
#[derive(Debug)]
pub(crate) struct Visitors {
    origins: Vec<String>,
    hosts: Vec<String>,
}

impl Visitors {
    pub(crate) fn new(origins: &str, hosts: &str) -> Self {
        let list = |text: &str| {
            let parts = text.split(',').map(str::trim);
            parts
                .filter(|part| !part.is_empty())
                .map(str::to_owned)
                .collect()
        };
        Self {
            origins: list(origins),
            hosts: list(hosts),
        }
    }

    fn may_name(&self, host: &str) -> bool {
        self.hosts.is_empty() || self.hosts.iter().any(|known| known == "*" || known == host)
    }

    /// What a page is told about its origin, if it may ask.
    fn origin(&self, origin: Option<&HeaderValue>) -> Option<HeaderValue> {
        if self.origins.iter().any(|known| known == "*") {
            return Some(HeaderValue::from_static("*"));
        }
        let origin = origin?;
        let is_known = self
            .origins
            .iter()
            .any(|known| known.as_bytes() == origin.as_bytes());
        is_known.then(|| origin.clone())
    }
}

/// The host that the client takes this for, without the port.
fn named_host(request: &Parts) -> &str {
    let header = request.headers.get(header::HOST);
    let header = header.and_then(|host| host.to_str().ok());
    let host = header.or(request.uri.host()).unwrap_or_default();
    match host.rsplit_once(':') {
        Some((name, port)) if !port.contains(']') => name,
        _ => host,
    }
}

/// For a client beyond its bounds.
pub(crate) fn overloaded() -> Response<Body> {
    let text = "too many requests\n".to_owned();
    answer(StatusCode::SERVICE_UNAVAILABLE, TEXT, text)
}

fn not_found() -> Response<Body> {
    let text = "404 page not found\n".to_owned();
    answer(StatusCode::NOT_FOUND, TEXT, text)
}

async fn page(host: &Host, request: &Parts, known: &[&str]) -> Response<Body> {
    let (path, query) = (request.uri.path(), request.uri.query());
    let (first, rest) = match path.trim_start_matches('/').split_once('/') {
        Some((first, rest)) => (first, Some(rest)),
        None => (path.trim_start_matches('/'), None),
    };
    let is_there = match (first, rest) {
        ("debug", rest) => rest == Some("vars"),
        ("livez" | "readyz", _) | (_, None) => true,
        (_, Some(_)) => false,
    };
    if !known.contains(&first) || !is_there {
        return not_found();
    }
    if request.method != Method::GET {
        let text = "Method Not Allowed\n".to_owned();
        return answer(StatusCode::METHOD_NOT_ALLOWED, TEXT, text);
    }
    let query = Query::read(query.unwrap_or(""));
    match first {
        "version" => answer(StatusCode::OK, JSON, version()),
        "debug" => answer(StatusCode::OK, VARS, vars(host)),
        "health" => health(host, &query).await,
        "livez" => checks(host, ("livez", &LIVE), rest, &query).await,
        "readyz" => checks(host, ("readyz", &READY), rest, &query).await,
        _ => answer(StatusCode::OK, METRICS, metrics::page(host).await),
    }
}

fn version() -> String {
    format!(
        "{{\"etcdserver\":\"{API_VERSION}\",\"etcdcluster\":\"{CLUSTER_VERSION}\",\
         \"storage\":\"{CLUSTER_VERSION}\"}}"
    )
}

/// What Go's `expvar` would serve for etcd, without what is about Go.
fn vars(host: &Host) -> String {
    let replicas = host.node.status();
    let root = replicas.iter().find(|replica| replica.group.is_root());
    let status = root.map(|root| {
        let leader = root.leader.map_or(0, |leader| leader.0);
        let state = match leader == host.member_id.0 {
            true => "StateLeader",
            false => "StateFollower",
        };
        json!({
            "id": format!("{:x}", host.member_id.0),
            "term": root.term.0,
            "commit": root.committed.0,
            "lead": format!("{leader:x}"),
            "raftState": state,
            "applied": root.applied.0,
        })
    });
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let vars = json!({
        "cmdline": std::env::args().collect::<Vec<_>>(),
        "file_descriptor_limit": limit.current.unwrap_or(u64::MAX),
        "raft.status": status,
    });
    format!("{vars:#}\n")
}

fn answer(status: StatusCode, content: &'static str, text: String) -> Response<Body> {
    let mut response = Response::new(Body::new(Full::from(text)));
    *response.status_mut() = status;
    let content = HeaderValue::from_static(content);
    response.headers_mut().insert(header::CONTENT_TYPE, content);
    response
}

/// What stands behind the question mark.
struct Query(Vec<(String, String)>);

impl Query {
    fn read(text: &str) -> Self {
        let pairs = text.split('&').filter(|pair| !pair.is_empty());
        let pairs = pairs.map(|pair| match pair.split_once('=') {
            Some((name, value)) => (name.to_owned(), value.to_owned()),
            None => (pair.to_owned(), String::new()),
        });
        Self(pairs.collect())
    }

    fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(known, _)| known == name)
    }

    fn is(&self, name: &str, value: &str) -> bool {
        let mut pairs = self.0.iter();
        pairs.any(|(known, given)| known == name && given == value)
    }
}

async fn health(host: &Host, query: &Query) -> Response<Body> {
    let serializable = query.is("serializable", "true");
    let unhealthy = unhealthy(host, query, serializable).await;
    host.tallies.health(unhealthy.is_none());
    let reason = match unhealthy {
        None => {
            let text = "{\"health\":\"true\",\"reason\":\"\"}".to_owned();
            return answer(StatusCode::OK, JSON, text);
        }
        Some(reason) => reason,
    };
    let text = json!({ "health": "false", "reason": reason });
    answer(StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("{text}\n"))
}

/// Why this member is not healthy, in a few words. A serializable question is a
/// liveness probe of kubeadm's (up to 1.30).
async fn unhealthy(host: &Host, query: &Query, serializable: bool) -> Option<String> {
    let probe = match serializable {
        true => Probe::Liveness,
        false => Probe::Readiness,
    };
    if let Err(reason) = check_disk(probe, &host.node.condition()) {
        return Some(format!("DISK:{reason}"));
    }
    for (alarm, _) in host.node.alarms() {
        let name = match alarm {
            Alarm::NoSpace => "NOSPACE",
            Alarm::Corrupt => "CORRUPT",
        };
        if !query.is("exclude", name) {
            return Some(format!("ALARM {name}"));
        }
    }
    if !serializable && !host.node.has_leader(GroupId::ROOT) {
        return Some("RAFT NO LEADER".to_owned());
    }
    if !serializable && let Err(reason) = check_ranges(&host.node.unserved()) {
        return Some(format!("RANGES NOT SERVED:{reason}"));
    }
    let failed = can_read(host, serializable).await.err();
    failed.map(|reason| format!("RANGE ERROR:{reason}"))
}

/// Reads a key of the first range, of which every member has a replica.
async fn can_read(host: &Host, serializable: bool) -> Result<(), String> {
    if let Some(outcome) = read_outcome(&host.node.condition(), serializable) {
        return outcome;
    }
    let range = RangeRequest {
        key: (&b"\0"[..]).into(),
        keys_only: true,
        limit: 1,
        serializable,
        ..RangeRequest::default()
    };
    let read = host.range(range).await;
    read.map(|_| ())
        .map_err(|status| status.message().to_owned())
}

/// What is looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Check {
    DataCorruption,
    SerializableRead,
    LinearizableRead,
    NonLearner,
    Disk(Probe),
    Ranges,
}

/// etcd's checks, then ours.
const LIVE: [Check; 2] = [Check::SerializableRead, Check::Disk(Probe::Liveness)];
const READY: [Check; 6] = [
    Check::DataCorruption,
    Check::SerializableRead,
    Check::LinearizableRead,
    Check::NonLearner,
    Check::Disk(Probe::Readiness),
    Check::Ranges,
];

impl Check {
    fn name(self) -> &'static str {
        match self {
            Self::DataCorruption => "data_corruption",
            Self::SerializableRead => "serializable_read",
            Self::LinearizableRead => "linearizable_read",
            Self::NonLearner => "non_learner",
            Self::Disk(_) => "disk",
            Self::Ranges => "ranges",
        }
    }

    async fn run(self, host: &Host) -> Result<(), String> {
        match self {
            Self::DataCorruption => host
                .check_sound()
                .map_err(|_| "alarm activated: CORRUPT".into()),
            Self::SerializableRead => can_read(host, true).await,
            Self::LinearizableRead => can_read(host, false).await,
            Self::NonLearner => match host.is_learner() {
                true => Err("not supported for learner".to_owned()),
                false => Ok(()),
            },
            Self::Disk(probe) => check_disk(probe, &host.node.condition()),
            Self::Ranges => check_ranges(&host.node.unserved()),
        }
    }
}

async fn checks(
    host: &Host,
    (page, all): (&'static str, &[Check]),
    only: Option<&str>,
    query: &Query,
) -> Response<Body> {
    let chosen: Vec<Check> = match only {
        None => all
            .iter()
            .copied()
            .filter(|check| !query.is("exclude", check.name()))
            .collect(),
        Some(name) => all
            .iter()
            .copied()
            .filter(|check| check.name() == name)
            .collect(),
    };
    if only.is_some() && chosen.is_empty() {
        return not_found();
    }
    let (mut lines, mut failed) = (String::new(), false);
    for check in chosen {
        let checked = check.run(host).await;
        host.tallies.check(page, check.name(), checked.is_ok());
        let _ = match checked {
            Ok(()) => writeln!(lines, "[+]{} ok", check.name()),
            Err(reason) => {
                failed = true;
                writeln!(lines, "[-]{} failed: {reason}", check.name())
            }
        };
    }
    if failed {
        return answer(StatusCode::SERVICE_UNAVAILABLE, TEXT, lines);
    }
    let shown = if query.has("verbose") {
        lines
    } else {
        String::new()
    };
    answer(StatusCode::OK, TEXT, format!("{shown}ok\n"))
}
