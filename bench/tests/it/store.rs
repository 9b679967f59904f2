//! A store in memory that speaks as much of etcd's API as the loads ask for.
//! It has no history: what is asked at an old revision is answered as of now.
//! A lease that was never kept alive never expires.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::{HeaderMap, HeaderValue, Request, Response};
use parking_lot::Mutex;
use pontoon_api::etcdserverpb::compare::TargetUnion;
use pontoon_api::etcdserverpb::request_op::Request as Op;
use pontoon_api::etcdserverpb::response_op::Response as Done;
use pontoon_api::etcdserverpb::watch_request::RequestUnion;
use pontoon_api::etcdserverpb::*;
use pontoon_api::mvccpb::event::EventType;
use pontoon_api::mvccpb::{Event, KeyValue};
use prost::Message;
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;

/// A store that runs until it is dropped.
pub(crate) struct Store {
    pub(crate) endpoint: String,
    state: Arc<State>,
    _runtime: tokio::runtime::Runtime,
}

#[derive(Default)]
struct State {
    keys: Mutex<Keys>,
    refuses: AtomicBool,
    /// With more nodes than this, what reads fails.
    nodes_max: OnceLock<usize>,
    /// Who may ask, with the password; anybody if there is none.
    user: Option<(&'static str, &'static str)>,
}

/// What those get who have told the password.
const TOKEN: &str = "a token";

#[derive(Default)]
struct Keys {
    revision: i64,
    /// By number: how long each lives, and its signs of life.
    leases: Vec<(i64, u64)>,
    kvs: BTreeMap<Bytes, KeyValue>,
    watchers: Vec<(Bytes, Bytes, mpsc::UnboundedSender<WatchResponse>)>,
}

impl Store {
    pub(crate) fn start() -> Self {
        Self::behind(None, None)
    }

    /// One that answers only over TLS, or only those who know a password.
    pub(crate) fn behind(
        tls: Option<Arc<ServerConfig>>,
        user: Option<(&'static str, &'static str)>,
    ) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let scheme = if tls.is_some() { "https" } else { "http" };
        let endpoint = format!("{scheme}://{}", listener.local_addr().unwrap());
        let state = Arc::new(State {
            user,
            ..State::default()
        });
        let tls = tls.map(TlsAcceptor::from);
        runtime.spawn(serve(listener, tls, state.clone()));
        Self {
            endpoint,
            state,
            _runtime: runtime,
        }
    }

    /// From now on every request fails.
    pub(crate) fn refuse(&self) {
        self.state.refuses.store(true, Ordering::Relaxed);
    }

    /// It carries so many nodes of a simulated cluster: with more, whoever
    /// lists is refused.
    pub(crate) fn carries(&self, nodes: usize) {
        self.state.nodes_max.set(nodes).unwrap();
    }

    /// A key's value and version.
    pub(crate) fn get(&self, key: &str) -> Option<(Bytes, i64)> {
        let keys = self.state.keys.lock();
        let kv = keys.kvs.get(key.as_bytes())?;
        Some((kv.value.clone(), kv.version))
    }

    pub(crate) fn keys(&self) -> usize {
        self.state.keys.lock().kvs.len()
    }
}

impl State {
    fn is_overloaded(&self) -> bool {
        let Some(max) = self.nodes_max.get() else {
            return false;
        };
        let keys = self.keys.lock();
        let is_node = |key: &&Bytes| key.windows(9).any(|part| part == b"/minions/");
        keys.kvs.keys().filter(is_node).count() > *max
    }

    /// What a request of somebody unknown is answered with, unless it is by
    /// somebody known.
    fn turns_away(&self, path: &str, token: Option<&str>, message: &[u8]) -> Option<Answer> {
        let (name, password) = self.user?;
        if path.ends_with("/Authenticate") {
            let request = AuthenticateRequest::decode(message).unwrap();
            let is_known = (request.name.as_str(), request.password.as_str()) == (name, password);
            let response = AuthenticateResponse {
                token: TOKEN.to_owned(),
                ..Default::default()
            };
            return Some(match is_known {
                true => (Some(response.encode_to_vec()), "0"),
                false => (None, "3"),
            });
        }
        (token != Some(TOKEN)).then_some((None, "16"))
    }
}

/// A message, and gRPC's status.
type Answer = (Option<Vec<u8>>, &'static str);

async fn serve(listener: TcpListener, tls: Option<TlsAcceptor>, state: Arc<State>) {
    while let Ok((socket, _)) = listener.accept().await {
        let (state, tls) = (state.clone(), tls.clone());
        tokio::spawn(async move {
            match tls {
                None => talk(socket, state).await,
                Some(tls) => {
                    // Who doesn't trust us, or whom we don't trust, is gone.
                    if let Ok(socket) = tls.accept(socket).await {
                        talk(socket, state).await;
                    }
                }
            }
        });
    }
}

async fn talk(socket: impl AsyncRead + AsyncWrite + Unpin, state: Arc<State>) {
    let mut connection = h2::server::handshake(socket).await.unwrap();
    while let Some(Ok((request, respond))) = connection.accept().await {
        tokio::spawn(answer(request, respond, state.clone()));
    }
}

async fn answer(request: Request<RecvStream>, respond: SendResponse<Bytes>, state: Arc<State>) {
    let path = request.uri().path().to_owned();
    let token = request.headers().get("token").cloned();
    let mut body = request.into_body();
    let mut bytes = BytesMut::new();
    let is_watch = path.ends_with("/Watch");
    while let Some(Ok(chunk)) = body.data().await {
        body.flow_control().release_capacity(chunk.len()).unwrap();
        bytes.extend_from_slice(&chunk);
        if is_watch {
            break;
        }
    }
    let message = &bytes[5..];
    let token = token.as_ref().map(|token| token.to_str().unwrap());
    if let Some((answer, status)) = state.turns_away(&path, token, message) {
        return end(respond, answer, status);
    }
    let is_list = path.ends_with("/Range");
    if state.refuses.load(Ordering::Relaxed) || (is_list && state.is_overloaded()) {
        return end(respond, None, "14");
    }
    if is_watch {
        return watch(WatchRequest::decode(message).unwrap(), respond, &state).await;
    }
    if path.ends_with("/LeaseKeepAlive") {
        let id = LeaseKeepAliveRequest::decode(message).unwrap().id;
        let (ttl_secs, signs) = state.keys.lock().keep_alive(id);
        let state = state.clone();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(ttl_secs.cast_unsigned())).await;
            state.keys.lock().expire(id, signs);
        });
    }
    let answer = state.keys.lock().answer(&path, message);
    end(respond, Some(answer), "0");
}

fn framed(message: &[u8]) -> Bytes {
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    [&[0][..], &length, message].concat().into()
}

fn end(mut respond: SendResponse<Bytes>, answer: Option<Vec<u8>>, status: &'static str) {
    let Ok(mut stream) = respond.send_response(Response::new(()), false) else {
        return;
    };
    if let Some(answer) = answer {
        let _ = stream.send_data(framed(&answer), false);
    }
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static(status));
    let _ = stream.send_trailers(trailers);
}

async fn watch(request: WatchRequest, mut respond: SendResponse<Bytes>, state: &State) {
    let Some(RequestUnion::CreateRequest(create)) = request.request_union else {
        panic!("a watch begins with its creation");
    };
    let (sender, mut events) = mpsc::unbounded_channel();
    let created = WatchResponse {
        created: true,
        ..Default::default()
    };
    sender.send(created).unwrap();
    let watcher = (create.key, create.range_end, sender);
    state.keys.lock().watchers.push(watcher);
    let mut stream: SendStream<Bytes> = respond.send_response(Response::new(()), false).unwrap();
    while let Some(response) = events.recv().await {
        let message = framed(&response.encode_to_vec());
        if stream.send_data(message, false).is_err() {
            return;
        }
    }
}

impl Keys {
    fn header(&self) -> Option<ResponseHeader> {
        Some(ResponseHeader {
            revision: self.revision,
            ..Default::default()
        })
    }

    fn answer(&mut self, path: &str, message: &[u8]) -> Vec<u8> {
        match path.rsplit('/').next().unwrap() {
            "Put" => {
                self.revision += 1;
                self.put(PutRequest::decode(message).unwrap());
                let header = self.header();
                let prev_kv = None;
                PutResponse { header, prev_kv }.encode_to_vec()
            }
            "Range" => self
                .range(&RangeRequest::decode(message).unwrap())
                .encode_to_vec(),
            "Txn" => self
                .txn(TxnRequest::decode(message).unwrap())
                .encode_to_vec(),
            "DeleteRange" => {
                let request = DeleteRangeRequest::decode(message).unwrap();
                self.revision += 1;
                self.delete(&request);
                DeleteRangeResponse::default().encode_to_vec()
            }
            "LeaseGrant" => {
                let ttl = LeaseGrantRequest::decode(message).unwrap().ttl;
                self.leases.push((ttl, 0));
                let response = LeaseGrantResponse {
                    id: self.leases.len() as i64,
                    ttl,
                    ..Default::default()
                };
                response.encode_to_vec()
            }
            "LeaseKeepAlive" => {
                let id = LeaseKeepAliveRequest::decode(message).unwrap().id;
                let response = LeaseKeepAliveResponse {
                    ttl: self.lease(id).0,
                    ..Default::default()
                };
                response.encode_to_vec()
            }
            "LeaseRevoke" => {
                self.end_lease(LeaseRevokeRequest::decode(message).unwrap().id);
                Vec::new()
            }
            "Compact" => Vec::new(),
            other => panic!("nobody should ask {other}"),
        }
    }

    fn lease(&mut self, id: i64) -> &mut (i64, u64) {
        &mut self.leases[usize::try_from(id).unwrap() - 1]
    }

    /// How long it lives now, and how many signs of life there were.
    fn keep_alive(&mut self, id: i64) -> (i64, u64) {
        let lease = self.lease(id);
        lease.1 += 1;
        *lease
    }

    /// Ends a lease, unless there was another sign of life.
    fn expire(&mut self, id: i64, signs: u64) {
        if self.lease(id).1 == signs {
            self.end_lease(id);
        }
    }

    fn end_lease(&mut self, id: i64) {
        let attached = self.kvs.values().filter(|kv| kv.lease == id);
        let keys: Vec<_> = attached.map(|kv| kv.key.clone()).collect();
        for key in keys {
            self.revision += 1;
            self.delete(&DeleteRangeRequest {
                key,
                ..Default::default()
            });
        }
    }

    fn put(&mut self, put: PutRequest) {
        let before = self.kvs.get(&put.key);
        let kv = KeyValue {
            key: put.key.clone(),
            value: put.value,
            mod_revision: self.revision,
            create_revision: before.map_or(self.revision, |kv| kv.create_revision),
            version: before.map_or(1, |kv| kv.version + 1),
            lease: put.lease,
        };
        self.tell(EventType::Put, kv.clone());
        self.kvs.insert(put.key, kv);
    }

    fn delete(&mut self, request: &DeleteRangeRequest) {
        let keys: Vec<_> = self
            .found(&request.key, &request.range_end)
            .map(|kv| kv.key.clone())
            .collect();
        for key in keys {
            self.kvs.remove(&key);
            let kv = KeyValue {
                key,
                mod_revision: self.revision,
                ..Default::default()
            };
            self.tell(EventType::Delete, kv);
        }
    }

    fn tell(&mut self, kind: EventType, kv: KeyValue) {
        self.watchers.retain(|(first, end, sender)| {
            let seen = *first <= kv.key && kv.key < *end;
            let event = Event {
                r#type: kind.into(),
                kv: Some(kv.clone()),
                prev_kv: None,
            };
            let response = WatchResponse {
                events: vec![event],
                ..Default::default()
            };
            !seen || sender.send(response).is_ok()
        });
    }

    fn found<'a>(&'a self, key: &Bytes, end: &'a Bytes) -> impl Iterator<Item = &'a KeyValue> {
        let is_one = end.is_empty();
        let from = self.kvs.range(key.clone()..);
        let key = key.clone();
        from.map(|(_, kv)| kv)
            .take_while(move |kv| if is_one { kv.key == key } else { kv.key < *end })
    }

    fn range(&self, request: &RangeRequest) -> RangeResponse {
        let found: Vec<_> = self.found(&request.key, &request.range_end).collect();
        let limit = match request.limit {
            0 => found.len(),
            limit => usize::try_from(limit).unwrap(),
        };
        let limit = if request.count_only { 0 } else { limit };
        RangeResponse {
            header: self.header(),
            count: found.len() as i64,
            more: found.len() > limit,
            kvs: found.into_iter().take(limit).cloned().collect(),
        }
    }

    fn txn(&mut self, txn: TxnRequest) -> TxnResponse {
        let holds = |compare: &Compare| {
            let there = self.kvs.get(&compare.key);
            match compare.target_union {
                Some(TargetUnion::ModRevision(revision)) => {
                    there.map_or(0, |kv| kv.mod_revision) == revision
                }
                Some(TargetUnion::Version(version)) => there.map_or(0, |kv| kv.version) == version,
                _ => panic!("loads compare revisions and versions"),
            }
        };
        let succeeded = txn.compare.iter().all(holds);
        let ops = if succeeded { txn.success } else { txn.failure };
        let writes = |op: &RequestOp| !matches!(op.request, Some(Op::RequestRange(_)) | None);
        if ops.iter().any(writes) {
            self.revision += 1;
        }
        let mut responses = Vec::new();
        for op in ops {
            let response = match op.request.unwrap() {
                Op::RequestPut(put) => {
                    self.put(put);
                    Done::ResponsePut(PutResponse::default())
                }
                Op::RequestRange(range) => Done::ResponseRange(self.range(&range)),
                Op::RequestDeleteRange(delete) => {
                    self.delete(&delete);
                    Done::ResponseDeleteRange(DeleteRangeResponse::default())
                }
                Op::RequestTxn(_) => panic!("loads have no transactions within others"),
            };
            let response = Some(response);
            responses.push(ResponseOp { response });
        }
        TxnResponse {
            header: self.header(),
            succeeded,
            responses,
        }
    }
}
