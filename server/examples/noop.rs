//! What gRPC alone costs: a server that answers puts and keeps nothing.
//!
//! The yardstick for the speed of the real one (`compat/side-by-side noop`). It
//! has the runtime shape that was found to be the fastest: a thread for each
//! processor with listener, connections and runtime of its own, and requests
//! that cross to one thread and back in batches, as they must where something
//! is done with them.
//!
//! `noop ADDRESS`, until it is killed.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use parking_lot::Mutex;
use pontoon_api::etcdserverpb::kv_server::{Kv, KvServer};
use pontoon_api::etcdserverpb::{
    CompactionRequest, CompactionResponse, DeleteRangeRequest, DeleteRangeResponse, PutRequest,
    PutResponse, RangeRequest, RangeResponse, RangeStreamResponse, ResponseHeader, TxnRequest,
    TxnResponse,
};
use tokio::net::TcpSocket;
use tokio::sync::{Notify, oneshot};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const WINDOW_BYTES: u32 = 1 << 20;
const BACKLOG: u32 = 1024;

fn main() -> std::io::Result<()> {
    let address = std::env::args().nth(1);
    let address = address.and_then(|address| address.parse().ok());
    let Some(address) = address else {
        eprintln!("usage: noop ADDRESS, as in noop 127.0.0.1:2379");
        std::process::exit(2);
    };
    let mut threads = Vec::new();
    for _ in 0..std::thread::available_parallelism()?.get() {
        let crossing = Arc::new(Crossing::default());
        let across = Arc::clone(&crossing);
        threads.push(std::thread::spawn(move || run(answer(across))));
        threads.push(std::thread::spawn(move || run(serve(address, crossing))));
    }
    for thread in threads {
        if let Ok(Err(error)) = thread.join() {
            return Err(error);
        }
    }
    Ok(())
}

fn run(work: impl Future<Output = std::io::Result<()>>) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(work)
}

async fn serve(address: SocketAddr, crossing: Arc<Crossing>) -> std::io::Result<()> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.set_reuseport(true)?;
    socket.bind(address)?;
    let listener = socket.listen(BACKLOG)?;
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http2()
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES);
    tokio::spawn(deliver(Arc::clone(&crossing)));
    let door = Door(KvServer::new(Nothing(crossing)));
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let (builder, door) = (builder.clone(), door.clone());
        tokio::spawn(async move {
            // A client that goes is no matter.
            let _ = builder.serve_connection(TokioIo::new(stream), door).await;
        });
    }
}

#[derive(Clone)]
struct Door(KvServer<Nothing>);

impl hyper::service::Service<Request<Incoming>> for Door {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        self.0.clone().call(request)
    }
}

/// What goes over and comes back.
#[derive(Default)]
struct Crossing {
    going: Batch<(PutRequest, Waiter)>,
    coming: Batch<(PutResponse, Waiter)>,
}

type Waiter = oneshot::Sender<PutResponse>;

/// What gathers for somebody who takes all of it.
struct Batch<T> {
    items: Mutex<Vec<T>>,
    filled: Notify,
}

impl<T> Default for Batch<T> {
    fn default() -> Self {
        Self {
            items: Mutex::default(),
            filled: Notify::new(),
        }
    }
}

impl<T> Batch<T> {
    fn extend(&self, more: impl IntoIterator<Item = T>) {
        let mut items = self.items.lock();
        let idle = items.is_empty();
        items.extend(more);
        drop(items);
        if idle {
            self.filled.notify_one();
        }
    }

    async fn take(&self) -> Vec<T> {
        self.filled.notified().await;
        std::mem::take(&mut *self.items.lock())
    }
}

/// Across: answers all that has come.
async fn answer(crossing: Arc<Crossing>) -> std::io::Result<()> {
    let mut revision = 0;
    loop {
        let asked = crossing.going.take().await.into_iter();
        crossing.coming.extend(asked.map(|(_, waiter)| {
            revision += 1;
            let header = Some(ResponseHeader {
                cluster_id: 1,
                member_id: 1,
                revision,
                raft_term: 1,
            });
            let prev_kv = None;
            (PutResponse { header, prev_kv }, waiter)
        }));
    }
}

/// And back: wakes those whose answers have come.
async fn deliver(crossing: Arc<Crossing>) {
    loop {
        for (answer, waiter) in crossing.coming.take().await {
            // Its client has gone: fine.
            let _ = waiter.send(answer);
        }
    }
}

struct Nothing(Arc<Crossing>);

type Answer<T> = Result<tonic::Response<T>, Status>;

fn none<T>() -> Answer<T> {
    Err(Status::unimplemented("only puts"))
}

#[tonic::async_trait]
impl Kv for Nothing {
    type RangeStreamStream = tokio_stream::Empty<Result<RangeStreamResponse, Status>>;

    async fn put(&self, request: tonic::Request<PutRequest>) -> Answer<PutResponse> {
        let (waiter, answered) = oneshot::channel();
        self.0.going.extend([(request.into_inner(), waiter)]);
        match answered.await {
            Ok(answer) => Ok(tonic::Response::new(answer)),
            Err(_) => Err(Status::unavailable("it ends")),
        }
    }

    async fn range(&self, _: tonic::Request<RangeRequest>) -> Answer<RangeResponse> {
        none()
    }

    async fn range_stream(
        &self,
        _: tonic::Request<RangeRequest>,
    ) -> Answer<Self::RangeStreamStream> {
        none()
    }

    async fn delete_range(
        &self,
        _: tonic::Request<DeleteRangeRequest>,
    ) -> Answer<DeleteRangeResponse> {
        none()
    }

    async fn txn(&self, _: tonic::Request<TxnRequest>) -> Answer<TxnResponse> {
        none()
    }

    async fn compact(&self, _: tonic::Request<CompactionRequest>) -> Answer<CompactionResponse> {
        none()
    }
}
