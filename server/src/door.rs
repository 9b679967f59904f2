//! Where clients come in: every service behind one port, gRPC and HTTP alike.
//!
//! Kept true:
//! - What no service answers is answered as etcd's library does.
//! - Every call is counted for its connection (`bounds.rs`), from its headers to
//!   the end of its response.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, Request, Response, header};
use hyper::body::{Body as _, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use pontoon_api::encoded::watch_server::WatchServer;
use pontoon_api::etcdserverpb::cluster_server::ClusterServer;
use pontoon_api::etcdserverpb::kv_server::KvServer;
use pontoon_api::etcdserverpb::lease_server::LeaseServer;
use pontoon_api::etcdserverpb::maintenance_server::MaintenanceServer;
use pontoon_api::health::health_server::HealthServer;
use pontoon_api::pontoonpb::ranges_server::RangesServer;
use pontoon_api::v3electionpb::election_server::ElectionServer;
use pontoon_api::v3lockpb::lock_server::LockServer;
use pontoon_api::{message_too_large, unknown_method, unknown_service};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::{Code, Status};

use crate::bounds::{
    ConnectionBounds, OpenCall, ProcessBounds, RequestBody, ResponseBody, ResponseKind,
};
use crate::calls::Shape;
use crate::cluster::ClusterService;
use crate::config::Config;
use crate::election::ElectionService;
use crate::endpoints;
use crate::front::Fronts;
use crate::gather::Gathered;
use crate::health::HealthService;
use crate::host::Host;
use crate::kv::KvService;
use crate::lease::LeaseService;
use crate::lock::LockService;
use crate::maintenance::MaintenanceService;
use crate::metrics::Counted;
use crate::pings::Calm;
use crate::ranges::RangesService;
use crate::stop::Stop;
use crate::url::Url;
use crate::watch::WatchService;

/// etcd's margin of the transport above the largest request.
const MARGIN_BYTES: usize = 512 << 10;
/// How much a client may send of a call before it is read.
const STREAM_WINDOW_BYTES: u32 = 64 << 10;
/// The same of all its calls: the transport holds what isn't read. h2 closes a
/// connection on which half of this is overhead of small frames, so it is twice
/// what a small frame on each stream may cost (256 bytes), at least.
const CONNECTION_WINDOW_BYTES: u32 = 256 << 10;
const CONNECTION_WINDOW_BYTES_MAX: u32 = 16 << 20;
/// Headers of a call.
const HEADER_BYTES_MAX: u32 = 16 << 10;
/// Answers of a call that the transport takes before they can be sent.
const SEND_BUFFER_BYTES: usize = 64 << 10;
/// How long a client may take for the head of a request of HTTP/1.
const HEAD_WITHIN: Duration = Duration::from_secs(30);
/// What is read of it at a time, and the largest head.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// Connections that wait to be taken.
const BACKLOG: u32 = 1024;
/// After an error of the listener that may pass.
const PAUSE: Duration = Duration::from_millis(100);

/// All services.
#[derive(Clone)]
struct Services {
    host: Arc<Host>,
    /// Bytes of the largest request, in messages of the transport.
    request_bytes_max: usize,
    kv: KvServer<KvService>,
    watch: WatchServer<WatchService>,
    lease: LeaseServer<LeaseService>,
    cluster: ClusterServer<ClusterService>,
    maintenance: MaintenanceServer<MaintenanceService>,
    lock: LockServer<LockService>,
    election: ElectionServer<ElectionService>,
    health: HealthServer<HealthService>,
    ranges: RangesServer<RangesService>,
}

/// What is behind a door.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Behind {
    /// gRPC and HTTP.
    All,
    /// Only gRPC.
    Grpc,
    /// Only HTTP.
    Http,
    /// Only metrics and health.
    Metrics,
}

/// The door: who is let in, and to what.
#[derive(Clone)]
pub(crate) struct Door {
    services: Arc<Services>,
    behind: Behind,
    /// As many connections as there may be, for all doors together.
    places: Arc<Semaphore>,
    bounds: Arc<ProcessBounds>,
}

/// The service of one connection.
struct Connection {
    door: Door,
    connection: Arc<ConnectionBounds>,
}

type Answer = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

impl Door {
    pub(crate) fn new(host: &Arc<Host>, connections_max: usize) -> Self {
        let bytes_max = host.limits.request_bytes_max.saturating_add(MARGIN_BYTES);
        let at = || Arc::clone(host);
        macro_rules! limited {
            ($server:ident, $service:ident) => {
                $server::new($service(at()))
                    .max_decoding_message_size(bytes_max)
                    .max_encoding_message_size(i32::MAX as usize)
            };
        }
        Self {
            services: Arc::new(Services {
                host: at(),
                request_bytes_max: bytes_max,
                kv: limited!(KvServer, KvService),
                watch: limited!(WatchServer, WatchService),
                lease: limited!(LeaseServer, LeaseService),
                cluster: limited!(ClusterServer, ClusterService),
                maintenance: limited!(MaintenanceServer, MaintenanceService),
                lock: limited!(LockServer, LockService),
                election: limited!(ElectionServer, ElectionService),
                health: limited!(HealthServer, HealthService),
                ranges: limited!(RangesServer, RangesService),
            }),
            behind: Behind::All,
            places: Arc::new(Semaphore::new(connections_max.min(Semaphore::MAX_PERMITS))),
            bounds: Arc::clone(&host.bounds),
        }
    }

    /// The same with something else behind it.
    pub(crate) fn to(&self, behind: Behind) -> Self {
        Self {
            behind,
            ..self.clone()
        }
    }

    /// Serves everyone who comes until the order to stop.
    pub(crate) async fn serve(
        self,
        listener: TcpListener,
        fronts: Arc<Fronts>,
        config: ConnectionConfig,
        stop: Stop,
    ) {
        let mut builder = Builder::new(TokioExecutor::new());
        builder
            .http2()
            .timer(TokioTimer::new())
            // gRPC has no use for it, and it would be in every answer.
            .auto_date_header(false)
            .max_concurrent_streams(config.streams_max)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(connection_window_bytes(config.streams_max))
            .max_header_list_size(HEADER_BYTES_MAX)
            .max_send_buf_size(SEND_BUFFER_BYTES)
            .keep_alive_interval(config.keepalive_interval)
            .keep_alive_timeout(config.keepalive_timeout);
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_WITHIN)
            .max_buf_size(HEAD_BYTES_MAX);
        loop {
            // Who comes when all places are taken waits outside, as in etcd.
            let place = tokio::select! {
                place = self.place() => place,
                () = stop.ordered() => break,
            };
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = stop.ordered() => break,
            };
            let stream = match accepted {
                Ok((stream, _)) => stream,
                // It listens no more: this member has failed.
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => break,
                Err(error) => {
                    tracing::warn!("a client can't be taken: {error}");
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            };
            // Without it small answers wait for others.
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!("a connection without TCP_NODELAY: {error}");
            }
            let (builder, door) = (builder.clone(), self.clone());
            let (stream, ping_min) = (stream.into_std(), config.ping_min);
            fronts.receive(move |graceful| match stream.and_then(TcpStream::from_std) {
                Ok(stream) => door.receive(stream, place, &builder, ping_min, graceful),
                Err(error) => tracing::warn!("a client can't be served: {error}"),
            });
        }
    }

    /// Serves a connection, on the thread where this is called.
    fn receive(
        self,
        stream: TcpStream,
        place: Option<OwnedSemaphorePermit>,
        builder: &Builder<TokioExecutor>,
        ping_min: Duration,
        graceful: &GracefulShutdown,
    ) {
        let traffic = Arc::clone(&self.services.host.traffic);
        let stream = Calm::new(Counted::new(stream, traffic), ping_min);
        let stream = TokioIo::new(Gathered::new(stream));
        let bounds = self.bounds.connect();
        let service = Connection {
            door: self,
            connection: Arc::clone(&bounds),
        };
        let connection = builder.serve_connection_with_upgrades(stream, service);
        let connection = graceful.watch(connection.into_owned());
        tokio::spawn(async move {
            tokio::select! {
                ended = connection => {
                    if let Err(error) = ended {
                        tracing::debug!("a connection ended: {error}");
                    }
                }
                () = bounds.closed() => tracing::debug!("a stalled connection is closed"),
            }
            drop(place);
        });
    }
}

impl Door {
    async fn place(&self) -> Option<OwnedSemaphorePermit> {
        // Health and metrics are to be had when nothing else is.
        if self.behind == Behind::Metrics {
            return None;
        }
        if self.places.available_permits() == 0 {
            let connections = self.services.host.limits.connections_max;
            tracing::warn!("{connections} connections are open: no more until one ends");
        }
        self.places.clone().acquire_owned().await.ok()
    }
}

/// How connections are kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionConfig {
    streams_max: u32,
    ping_min: Duration,
    keepalive_interval: Option<Duration>,
    keepalive_timeout: Duration,
}

impl ConnectionConfig {
    pub(crate) fn of(config: &Config) -> Self {
        let interval = config.keepalive_interval;
        Self {
            streams_max: config.streams_max,
            ping_min: config.keepalive_min,
            keepalive_interval: (!interval.is_zero()).then_some(interval),
            keepalive_timeout: config.keepalive_timeout,
        }
    }
}

impl hyper::service::Service<Request<Incoming>> for Connection {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Answer;

    fn call(&self, request: Request<Incoming>) -> Answer {
        let behind = self.door.behind;
        let is_grpc = is_grpc(request.headers());
        let shape = Shape::of(request.uri().path());
        let is_stream = shape != Shape::Unary;
        let call = match self.connection.open(request.headers(), is_stream) {
            Ok(call) => call,
            Err(status) => {
                let refused = match is_grpc {
                    true => status.into_http(),
                    false => endpoints::overloaded(),
                };
                return Box::pin(async move { Ok(refused) });
            }
        };
        if !is_grpc || matches!(behind, Behind::Http | Behind::Metrics) {
            let services = Arc::clone(&self.door.services);
            let (head, _) = request.into_parts();
            return Box::pin(async move {
                let room = call.expect(ResponseKind::Page).await;
                let answer = endpoints::serve(&services.host, &head, behind).await;
                let bytes = answer.body().size_hint().lower() as usize;
                call.learn(ResponseKind::Page, bytes);
                room.fill(bytes);
                Ok(answer.map(|body| Body::new(ResponseBody::new(body, call, false))))
            });
        }
        self.door.call(request, call, shape)
    }
}

impl Door {
    /// Dispatches a call to its service.
    fn call(&self, request: Request<Incoming>, call: Arc<OpenCall>, shape: Shape) -> Answer {
        let path = request.uri().path().to_owned();
        let service = path.strip_prefix('/').and_then(|path| path.split_once('/'));
        let service = service.map_or("", |(service, _)| service);
        let services = &self.services;
        let is_stream = shape != Shape::Unary;
        let is_bidi = shape == Shape::BidiStream;
        let bytes_max = services.request_bytes_max;
        let mut request =
            request.map(|body| RequestBody::new(body, Arc::clone(&call), is_bidi, bytes_max));
        if is_stream || service == "etcdserverpb.KV" {
            request.extensions_mut().insert(Arc::clone(&call));
        }
        macro_rules! to {
            ($server:ident) => {{
                let answer = services.$server.clone().call(request);
                Box::pin(async move {
                    let answer = polished(answer.await?, &path);
                    Ok(answer.map(|body| Body::new(ResponseBody::new(body, call, is_stream))))
                })
            }};
        }
        match service {
            "etcdserverpb.KV" => to!(kv),
            "etcdserverpb.Watch" => to!(watch),
            "etcdserverpb.Lease" => to!(lease),
            "etcdserverpb.Cluster" => to!(cluster),
            "etcdserverpb.Maintenance" => to!(maintenance),
            "v3lockpb.Lock" => to!(lock),
            "v3electionpb.Election" => to!(election),
            "grpc.health.v1.Health" => to!(health),
            "pontoonpb.Ranges" => to!(ranges),
            unknown => {
                let answer = unknown_service(unknown).into_http();
                Box::pin(async move { Ok(answer) })
            }
        }
    }
}

fn connection_window_bytes(streams_max: u32) -> u32 {
    let small_frames = streams_max.saturating_mul(2 * 256);
    small_frames.clamp(CONNECTION_WINDOW_BYTES, CONNECTION_WINDOW_BYTES_MAX)
}

fn is_grpc(headers: &HeaderMap) -> bool {
    headers
        .get(header::CONTENT_TYPE)
        .is_some_and(|content| content.as_bytes().starts_with(b"application/grpc"))
}

/// Errors that no service has made get the words that etcd's library has for
/// them. They are in the headers: nothing was answered before.
fn polished(answer: Response<Body>, path: &str) -> Response<Body> {
    if !answer.headers().contains_key(Status::GRPC_STATUS) {
        return answer;
    }
    let Some(status) = Status::from_header_map(answer.headers()) else {
        return answer;
    };
    match (status.code(), status.message()) {
        (Code::Unimplemented, "") => {
            let (service, method) = path
                .trim_start_matches('/')
                .split_once('/')
                .unwrap_or((path, ""));
            unknown_method(service, method).into_http()
        }
        (Code::OutOfRange, message) => match too_large(message) {
            Some((bytes, bytes_max)) => message_too_large(bytes, bytes_max).into_http(),
            None => answer,
        },
        _ => answer,
    }
}

/// The numbers in tonic's words about a message that is too large.
fn too_large(message: &str) -> Option<(u64, u64)> {
    let rest = message.strip_prefix("Error, decoded message length too large: found ")?;
    let (bytes, rest) = rest.split_once(" bytes, the limit is: ")?;
    let bytes_max = rest.strip_suffix(" bytes")?;
    Some((bytes.parse().ok()?, bytes_max.parse().ok()?))
}

/// Listens at the host and port of a URL.
pub(crate) fn listen(url: &Url, reuse_port: bool) -> io::Result<TcpListener> {
    let mut addresses: Vec<SocketAddr> = url.authority.to_socket_addrs()?.collect();
    // `localhost` is both; clients look for the older one first.
    addresses.sort_by_key(SocketAddr::is_ipv6);
    let mut failure = io::Error::new(io::ErrorKind::InvalidInput, "no such host");
    for address in addresses {
        let listened = || -> io::Result<TcpListener> {
            let socket = match address.is_ipv4() {
                true => tokio::net::TcpSocket::new_v4()?,
                false => tokio::net::TcpSocket::new_v6()?,
            };
            // A server that was just stopped must be able to start again.
            socket.set_reuseaddr(true)?;
            socket.set_reuseport(reuse_port)?;
            socket.bind(address)?;
            socket.listen(BACKLOG)
        };
        match listened() {
            Ok(listener) => return Ok(listener),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(answer: &Response<Body>) -> Option<&http::HeaderValue> {
        answer.headers().get(Status::GRPC_MESSAGE)
    }

    #[test]
    fn errors_of_the_library_are_in_the_words_of_etcds() {
        let message =
            "Error, decoded message length too large: found 12 bytes, the limit is: 7 bytes";
        let answer = polished(Status::out_of_range(message).into_http(), "/a/b");
        assert!(
            text(&answer).is_some_and(|text| text.as_bytes().ends_with(b"max%20(12%20vs.%207)"))
        );
        let answer = polished(
            Status::unimplemented("").into_http(),
            "/etcdserverpb.KV/Steal",
        );
        let expected = b"unknown%20method%20Steal%20for%20service%20etcdserverpb.KV";
        assert!(text(&answer).is_some_and(|text| text.as_bytes() == expected));
        let answer = polished(Status::out_of_range("compacted").into_http(), "/a/b");
        assert!(text(&answer).is_some_and(|text| text.as_bytes() == b"compacted"));
    }
}
