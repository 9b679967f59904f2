//! The Lock service: a line of keys, whose head has the lock.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::TryFutureExt;
use pontoon_api::Error;
use pontoon_api::v3lockpb::lock_server::Lock;
use pontoon_api::v3lockpb::{LockRequest, LockResponse, UnlockRequest, UnlockResponse};
use tonic::{Request, Response, Status};

use crate::calls::Rpc;
use crate::host::Host;
use crate::queue::without_code;

pub(crate) struct LockService(pub(crate) Arc<Host>);

#[tonic::async_trait]
impl Lock for LockService {
    async fn lock(&self, request: Request<LockRequest>) -> Result<Response<LockResponse>, Status> {
        let (metadata, _, request) = request.into_parts();
        let work = lock(&self.0, request).map_err(without_code);
        self.0.unary(Rpc::Lock, &metadata, work).await
    }

    async fn unlock(
        &self,
        request: Request<UnlockRequest>,
    ) -> Result<Response<UnlockResponse>, Status> {
        let (metadata, _, request) = request.into_parts();
        let host = &self.0;
        let work = async {
            let left = host.leave_line(&request.key).await;
            let revision = left.map_err(without_code)?;
            Ok(UnlockResponse {
                header: host.header(revision),
            })
        };
        host.unary(Rpc::Unlock, &metadata, work).await
    }
}

async fn lock(host: &Arc<Host>, request: LockRequest) -> Result<LockResponse, Status> {
    let place = host
        .line_up(&request.name, request.lease, Bytes::new())
        .await?;
    let leaving = Leaving::new(host, &place.key);
    let is_first = place.head.is_none_or(|head| head.key == place.key);
    let mut revision = place.revision;
    if !is_first {
        host.wait_for_turn(&request.name, place.created).await?;
        // The lease may have ended while waiting, and the key with it.
        let own = pontoon_engine::KeyRange::one(place.key.clone());
        let found = host.read(pontoon_engine::Range::of(own)).await?;
        if found.kvs.is_empty() {
            return Err(Error::SessionExpired.into());
        }
        revision = found.revision;
    }
    leaving.stay();
    Ok(LockResponse {
        header: host.header(revision),
        key: place.key,
    })
}

/// Gives a place up when its client goes away while it waits.
pub(crate) struct Leaving(Option<(Arc<Host>, Bytes)>);

impl Leaving {
    pub(crate) fn new(host: &Arc<Host>, key: &Bytes) -> Self {
        Self(Some((Arc::clone(host), key.clone())))
    }

    pub(crate) fn stay(mut self) {
        self.0 = None;
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        if let Some((host, key)) = self.0.take() {
            tokio::spawn(async move {
                if let Err(status) = host.leave_line(&key).await {
                    tracing::debug!("a place in a line was not given up: {status}");
                }
            });
        }
    }
}
