//! gRPC's health service.
//!
//! Kept true: this server serves unless it stops, its disk stalls or it has
//! failed, and every watcher is told of each change.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use pontoon_api::health::health_check_response::ServingStatus;
use pontoon_api::health::health_server::Health;
use pontoon_api::health::{
    HealthCheckRequest, HealthCheckResponse, HealthListRequest, HealthListResponse,
};
use pontoon_raftgroup::Condition;
use tonic::{Request, Response, Status};

use crate::host::Host;
use crate::readiness::{Probe, check_disk};
use crate::stream_queue::{Receiver, Sender, stream_queue};

/// Between two looks at the condition of the node, for a watcher.
const LOOK: Duration = Duration::from_millis(100);

pub(crate) struct HealthService(pub(crate) Arc<Host>);

/// What is said in this condition.
fn serving_status(stopping: bool, condition: &Condition) -> ServingStatus {
    if stopping || check_disk(Probe::Readiness, condition).is_err() {
        return ServingStatus::NotServing;
    }
    ServingStatus::Serving
}

fn response(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse {
        status: status.into(),
    }
}

impl Host {
    fn serving_status(&self) -> ServingStatus {
        serving_status(self.stop.is_ordered(), &self.node.condition())
    }
}

#[tonic::async_trait]
impl Health for HealthService {
    type WatchStream = Receiver<Result<HealthCheckResponse, Status>>;

    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        match request.into_inner().service.as_str() {
            "" => Ok(Response::new(response(self.0.serving_status()))),
            _ => Err(Status::not_found("unknown service")),
        }
    }

    async fn list(
        &self,
        _: Request<HealthListRequest>,
    ) -> Result<Response<HealthListResponse>, Status> {
        let all = [(String::new(), response(self.0.serving_status()))];
        Ok(Response::new(HealthListResponse {
            statuses: all.into_iter().collect(),
        }))
    }

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let (out, answers) = stream_queue(2);
        let host = Arc::clone(&self.0);
        let known = request.into_inner().service.is_empty();
        tokio::spawn(async move {
            if known {
                watch(&host, &out).await;
            } else {
                let unknown = response(ServingStatus::ServiceUnknown);
                let _ = out.send(Ok(unknown)).await;
                out.closed().await;
            }
        });
        Ok(Response::new(answers))
    }
}

/// Tells a watcher of each change, until it leaves or the server stops.
async fn watch(host: &Host, out: &Sender<Result<HealthCheckResponse, Status>>) {
    let mut ordered = pin!(host.stop.ordered());
    let mut told = None;
    loop {
        let stopping = host.stop.is_ordered();
        let status = host.serving_status();
        if told.replace(status) != Some(status) && out.send(Ok(response(status))).await.is_err() {
            return;
        }
        if stopping {
            return;
        }
        tokio::select! {
            () = out.closed() => return,
            () = &mut ordered => {}
            _ = host.node.failed() => {
                // Final: only the order to stop is still to come.
                let failed = response(ServingStatus::NotServing);
                if told != Some(ServingStatus::NotServing) {
                    let _ = out.send(Ok(failed)).await;
                }
                return;
            }
            () = tokio::time::sleep(LOOK) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use pontoon_raftgroup::Fault;

    use super::*;

    #[test]
    fn a_server_serves_unless_it_stops_stalls_or_has_failed() {
        let failed = Condition::Failed(Fault(String::new()));
        for stopping in [false, true] {
            for condition in [&Condition::Well, &Condition::Stalled, &failed] {
                let serves = !stopping && *condition == Condition::Well;
                let expected = match serves {
                    true => ServingStatus::Serving,
                    false => ServingStatus::NotServing,
                };
                assert_eq!(serving_status(stopping, condition), expected);
            }
        }
    }
}
