//! What all services share: the member they speak for, its limits, and what
//! is checked before any of them is asked.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

use pontoon_api::Error;
use pontoon_engine::{Answer, KeyRange, Range, RangeAnswer, Request, Revision};
use pontoon_raftgroup::{Alarm, GroupId, Node, NodeId};
use tonic::metadata::MetadataMap;
use tonic::{Code, Response, Status};

use crate::bounds::ProcessBounds;
use crate::calls::{Call, Calls, Rpc};
use crate::drift::Drift;
use crate::endpoints::Visitors;
use crate::failure::status;
use crate::front;
use crate::metrics::{Tallies, Traffic};
use crate::peers::PeerCounts;
use crate::quota::Quota;
use crate::stop::Stop;

/// A stream that needs a leader is ended after so many election timeouts without.
const LEADERLESS_ELECTIONS: u32 = 3;

/// What is allowed, and for how long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) request_bytes_max: usize,
    pub(crate) txn_ops_max: usize,
    pub(crate) learners_max: usize,
    /// Changes of members are refused if they could cost the quorum.
    pub(crate) strict_reconfig: bool,
    pub(crate) election: Duration,
    pub(crate) progress_notify: Duration,
    pub(crate) quota_bytes: i64,
    /// A request that takes longer than this is logged; 0: none.
    pub(crate) slow_request: Duration,
    pub(crate) connections_max: usize,
    /// Whether metrics tell how long calls take.
    pub(crate) metrics_extensive: bool,
}

impl Limits {
    /// How long a request may take, as in etcd.
    pub(crate) fn within(&self) -> Duration {
        Duration::from_secs(5) + 2 * self.election
    }
}

/// The member that the services speak for.
pub(crate) struct Host {
    pub(crate) node: Node,
    pub(crate) cluster_id: u64,
    pub(crate) member_id: NodeId,
    pub(crate) limits: Limits,
    pub(crate) quota: Quota,
    pub(crate) bounds: Arc<ProcessBounds>,
    pub(crate) calls: Arc<Calls>,
    pub(crate) traffic: Arc<Traffic>,
    pub(crate) tallies: Tallies,
    pub(crate) peers: Arc<PeerCounts>,
    pub(crate) visitors: Visitors,
    pub(crate) drift: Drift,
    /// How the log is written, and why.
    pub(crate) io: String,
    pub(crate) feature_gates: BTreeMap<&'static str, bool>,
    pub(crate) started: SystemTime,
    /// Whether this member only listens; looked up now and then.
    pub(crate) learner: AtomicBool,
    pub(crate) stop: Stop,
}

impl Host {
    /// Serves a unary call: checked, counted.
    pub(crate) async fn unary<T>(
        &self,
        rpc: Rpc,
        metadata: &MetadataMap,
        work: impl Future<Output = Result<T, Status>>,
    ) -> Result<Response<T>, Status> {
        let mut call = self.calls.begin(rpc);
        let outcome = match self.admit(rpc, metadata) {
            Ok(()) => work.await,
            Err(error) => Err(error.into()),
        };
        call.end(outcome.as_ref().err().map_or(Code::Ok, Status::code));
        self.note_slow(rpc, call.elapsed());
        outcome.map(Response::new)
    }

    /// Lock and Campaign wait for others, and that is no matter.
    fn note_slow(&self, rpc: Rpc, elapsed: Duration) {
        let slow = self.limits.slow_request;
        let waits = matches!(rpc, Rpc::Lock | Rpc::Campaign);
        if slow.is_zero() || elapsed <= slow || waits {
            return;
        }
        tracing::warn!(
            "{} took {} ms, more than expected ({} ms)",
            rpc.method(),
            elapsed.as_millis(),
            slow.as_millis()
        );
    }

    /// Begins a stream: checked, counted when the call is dropped.
    pub(crate) fn open(&self, rpc: Rpc, metadata: &MetadataMap) -> Result<Call, Status> {
        let mut call = self.calls.begin(rpc);
        match self.admit(rpc, metadata) {
            Ok(()) => Ok(call),
            Err(error) => {
                call.end(error.code());
                Err(error.into())
            }
        }
    }

    /// In etcd's order: first whether a learner serves this at all.
    fn admit(&self, rpc: Rpc, metadata: &MetadataMap) -> Result<(), Error> {
        // (What a learner's Range may be, Range itself knows.)
        let served = matches!(
            rpc,
            Rpc::Status | Rpc::Range | Rpc::Snapshot | Rpc::RangesList | Rpc::RangesWhy
        );
        if !served && self.is_learner() {
            return Err(Error::NotSupportedForLearner);
        }
        let version = metadata.get("client-api-version");
        let version = version.map(|version| std::str::from_utf8(version.as_bytes()));
        let version = match version {
            Some(Err(_)) => return Err(Error::InvalidClientApiVersion),
            Some(Ok(version)) => version,
            None => "unknown",
        };
        self.tallies.request(rpc.shape(), version);
        if needs_leader(metadata) && !self.node.has_leader(GroupId::ROOT) {
            return Err(Error::NoLeader);
        }
        Ok(())
    }

    /// Whether this member is a learner, by the list of members that is applied
    /// here. (Only while it is one, that list is looked at.)
    pub(crate) fn is_learner(&self) -> bool {
        let is_one = || {
            let me = self.node.members().remove(&self.member_id);
            me.is_some_and(|member| member.learner)
        };
        self.learner.load(Relaxed) && is_one()
    }

    /// Returns when a stream that needs a leader has had none for too long.
    pub(crate) async fn leaderless(&self, needed: bool) {
        if !needed {
            std::future::pending::<()>().await;
        }
        let mut missed = 0;
        while missed < LEADERLESS_ELECTIONS {
            tokio::time::sleep(self.limits.election).await;
            missed = match self.node.has_leader(GroupId::ROOT) {
                true => 0,
                false => missed + 1,
            };
        }
    }

    /// Whether what the cluster holds can be trusted enough to change it, as
    /// this member knows. (What is evaluated is checked where that is done.)
    pub(crate) fn check_sound(&self) -> Result<(), Error> {
        self.check_alarm(Alarm::Corrupt, Error::Corrupt)
    }

    /// Also whether there is space for it.
    pub(crate) fn check_space(&self) -> Result<(), Error> {
        self.check_sound()?;
        self.check_alarm(Alarm::NoSpace, Error::NoSpace)
    }

    fn check_alarm(&self, wanted: Alarm, error: Error) -> Result<(), Error> {
        let mut alarms = self.node.alarms().into_iter();
        match alarms.any(|(alarm, _)| alarm == wanted) {
            true => Err(error),
            false => Ok(()),
        }
    }

    /// A request to the groups.
    pub(crate) async fn request(&self, request: Request) -> Result<Answer, Status> {
        let answer = front::ask(&self.node, request, self.limits.within());
        answer.await.map_err(status)
    }

    /// A linearizable read.
    pub(crate) async fn read(&self, range: Range) -> Result<RangeAnswer, Status> {
        match self.request(Request::Range(range)).await? {
            Answer::Range(answer) => Ok(answer),
            other => Err(misplaced(&other)),
        }
    }

    /// Returns when this member knows all that was acknowledged before, with a
    /// revision that is not older.
    pub(crate) async fn catch_up(&self) -> Result<Revision, Status> {
        let mut nothing = Range::of(KeyRange::one(&b"\0"[..]));
        nothing.count_only = true;
        Ok(self.read(nothing).await?.revision)
    }
}

/// Whether the client wants an error rather than to wait for a leader.
pub(crate) fn needs_leader(metadata: &MetadataMap) -> bool {
    metadata
        .get("hasleader")
        .is_some_and(|value| value.as_bytes() == b"true")
}

/// The groups answer what they were asked, so this is a fault of this program.
pub(crate) fn misplaced(answer: &Answer) -> Status {
    tracing::error!("an answer to another question: {answer:?}");
    Status::internal("an answer to another question")
}
