//! What can be called, and how often it was.
//!
//! Kept true: a call that was begun is counted as handled once, with the code
//! that its client was told.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use pontoon_api::CODE_NAMES;
use pontoon_wal::Histogram;
use tonic::Code;

/// How a call goes, in the words of gRPC's metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    Unary,
    ServerStream,
    BidiStream,
}

impl Shape {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Unary => "unary",
            Self::ServerStream => "server_stream",
            Self::BidiStream => "bidi_stream",
        }
    }
}

macro_rules! rpcs {
    ($($name:ident: $shape:ident, $service:literal, $method:literal;)*) => {
        /// Everything that can be called.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Rpc {
            $($name,)*
        }

        impl Shape {
            /// The shape of the method with this path; unary if there is none.
            pub(crate) fn of(path: &str) -> Self {
                match path {
                    $(concat!("/", $service, "/", $method) => Self::$shape,)*
                    _ => Self::Unary,
                }
            }
        }

        impl Rpc {
            pub(crate) const ALL: &[Self] = &[$(Self::$name,)*];

            pub(crate) fn shape(self) -> Shape {
                match self { $(Self::$name => Shape::$shape,)* }
            }

            pub(crate) fn service(self) -> &'static str {
                match self { $(Self::$name => $service,)* }
            }

            pub(crate) fn method(self) -> &'static str {
                match self { $(Self::$name => $method,)* }
            }
        }
    };
}

rpcs! {
    Range: Unary, "etcdserverpb.KV", "Range";
    RangeStream: ServerStream, "etcdserverpb.KV", "RangeStream";
    Put: Unary, "etcdserverpb.KV", "Put";
    DeleteRange: Unary, "etcdserverpb.KV", "DeleteRange";
    Txn: Unary, "etcdserverpb.KV", "Txn";
    Compact: Unary, "etcdserverpb.KV", "Compact";
    Watch: BidiStream, "etcdserverpb.Watch", "Watch";
    LeaseGrant: Unary, "etcdserverpb.Lease", "LeaseGrant";
    LeaseRevoke: Unary, "etcdserverpb.Lease", "LeaseRevoke";
    LeaseKeepAlive: BidiStream, "etcdserverpb.Lease", "LeaseKeepAlive";
    LeaseTimeToLive: Unary, "etcdserverpb.Lease", "LeaseTimeToLive";
    LeaseLeases: Unary, "etcdserverpb.Lease", "LeaseLeases";
    MemberAdd: Unary, "etcdserverpb.Cluster", "MemberAdd";
    MemberRemove: Unary, "etcdserverpb.Cluster", "MemberRemove";
    MemberUpdate: Unary, "etcdserverpb.Cluster", "MemberUpdate";
    MemberList: Unary, "etcdserverpb.Cluster", "MemberList";
    MemberPromote: Unary, "etcdserverpb.Cluster", "MemberPromote";
    Alarm: Unary, "etcdserverpb.Maintenance", "Alarm";
    Status: Unary, "etcdserverpb.Maintenance", "Status";
    Defragment: Unary, "etcdserverpb.Maintenance", "Defragment";
    Hash: Unary, "etcdserverpb.Maintenance", "Hash";
    HashKv: Unary, "etcdserverpb.Maintenance", "HashKV";
    Snapshot: ServerStream, "etcdserverpb.Maintenance", "Snapshot";
    MoveLeader: Unary, "etcdserverpb.Maintenance", "MoveLeader";
    Downgrade: Unary, "etcdserverpb.Maintenance", "Downgrade";
    Lock: Unary, "v3lockpb.Lock", "Lock";
    Unlock: Unary, "v3lockpb.Lock", "Unlock";
    Campaign: Unary, "v3electionpb.Election", "Campaign";
    Proclaim: Unary, "v3electionpb.Election", "Proclaim";
    Leader: Unary, "v3electionpb.Election", "Leader";
    Observe: ServerStream, "v3electionpb.Election", "Observe";
    Resign: Unary, "v3electionpb.Election", "Resign";
    RangesList: Unary, "pontoonpb.Ranges", "List";
    RangesSplit: Unary, "pontoonpb.Ranges", "Split";
    RangesTransfer: Unary, "pontoonpb.Ranges", "Transfer";
    RangesWhy: Unary, "pontoonpb.Ranges", "Why";
}

/// Counts since the start.
pub(crate) struct Calls(Vec<Count>);

#[derive(Default)]
pub(crate) struct Count {
    pub(crate) started: AtomicU64,
    pub(crate) handled: [AtomicU64; CODE_NAMES.len()],
    /// Messages that came on streams of clients.
    pub(crate) received: AtomicU64,
    /// Messages that went out on streams of this server.
    pub(crate) sent: AtomicU64,
    /// How long those took that ended well.
    pub(crate) took_ok: Histogram,
    /// And those that didn't.
    pub(crate) took_failed: Histogram,
}

impl Default for Calls {
    fn default() -> Self {
        Self(Rpc::ALL.iter().map(|_| Count::default()).collect())
    }
}

impl Calls {
    pub(crate) fn of(&self, rpc: Rpc) -> &Count {
        &self.0[rpc as usize]
    }

    /// Messages that came and that went out; errors are none.
    pub(crate) fn messages(&self, rpc: Rpc) -> (u64, u64) {
        let count = self.of(rpc);
        let started = || count.started.load(Relaxed);
        match rpc.shape() {
            Shape::Unary => (started(), count.handled[Code::Ok as usize].load(Relaxed)),
            Shape::ServerStream => (started(), count.sent.load(Relaxed)),
            Shape::BidiStream => (count.received.load(Relaxed), count.sent.load(Relaxed)),
        }
    }

    /// A call begins.
    pub(crate) fn begin(self: &Arc<Self>, rpc: Rpc) -> Call {
        self.of(rpc).started.fetch_add(1, Relaxed);
        Call {
            calls: Arc::clone(self),
            rpc,
            // Dropped before its end: the client has gone.
            code: Code::Cancelled,
            since: Instant::now(),
        }
    }
}

/// A call that is under way; counted as handled when it is dropped.
pub(crate) struct Call {
    calls: Arc<Calls>,
    rpc: Rpc,
    code: Code,
    since: Instant,
}

impl Call {
    /// What the client is told.
    pub(crate) fn end(&mut self, code: Code) {
        self.code = code;
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.since.elapsed()
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let count = self.calls.of(self.rpc);
        count.handled[self.code as usize].fetch_add(1, Relaxed);
        let took = match self.code {
            Code::Ok => &count.took_ok,
            _ => &count.took_failed,
        };
        took.record_time(self.since.elapsed());
    }
}
