//! gRPC's health service: this server serves.

use std::sync::Arc;

use pontoon_api::health::health_check_response::ServingStatus;
use pontoon_api::health::health_server::Health;
use pontoon_api::health::{
    HealthCheckRequest, HealthCheckResponse, HealthListRequest, HealthListResponse,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use crate::host::Host;

pub(crate) struct HealthService(pub(crate) Arc<Host>);

fn serving() -> HealthCheckResponse {
    HealthCheckResponse {
        status: ServingStatus::Serving.into(),
    }
}

#[tonic::async_trait]
impl Health for HealthService {
    type WatchStream = ReceiverStream<Result<HealthCheckResponse, Status>>;

    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        match request.into_inner().service.as_str() {
            "" => Ok(Response::new(serving())),
            _ => Err(Status::not_found("unknown service")),
        }
    }

    async fn list(
        &self,
        _: Request<HealthListRequest>,
    ) -> Result<Response<HealthListResponse>, Status> {
        let all = [(String::new(), serving())];
        Ok(Response::new(HealthListResponse {
            statuses: all.into_iter().collect(),
        }))
    }

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let mut answer = serving();
        if !request.into_inner().service.is_empty() {
            answer.status = ServingStatus::ServiceUnknown.into();
        }
        let (out, answers) = mpsc::channel(2);
        let host = Arc::clone(&self.0);
        tokio::spawn(async move {
            if out.send(Ok(answer)).await.is_err() {
                return;
            }
            // It changes only once: when the server stops.
            tokio::select! {
                () = out.closed() => {}
                () = host.stop.ordered() => {
                    let mut answer = serving();
                    answer.status = ServingStatus::NotServing.into();
                    let _ = out.send(Ok(answer)).await;
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(answers)))
    }
}
