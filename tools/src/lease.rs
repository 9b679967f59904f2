//! `pontoonctl lease`: granted, kept alive, ended, looked at.

use std::time::Duration;

use clap::Subcommand;
use pontoon_api::etcdserverpb::{
    LeaseGrantRequest, LeaseKeepAliveRequest, LeaseLeasesRequest, LeaseRevokeRequest,
    LeaseTimeToLiveRequest,
};
use serde::Serialize;

use crate::client::{AskError, Endpoints, Peer, answer, soon, until_interrupted};
use crate::output::{print, shown};

/// What can be asked about leases. Ids are hexadecimal, as they are shown.
#[derive(Subcommand)]
pub(crate) enum LeaseCommand {
    /// Make a lease that lives for so many seconds
    Grant {
        /// Seconds
        ttl: i64,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// End a lease; its keys go with it
    Revoke {
        /// The lease
        #[arg(value_parser = lease_id)]
        id: i64,
    },
    /// Give a lease its whole life again, three times in each, until Ctrl-C
    Keepalive {
        /// The lease
        #[arg(value_parser = lease_id)]
        id: i64,
        /// Only now
        #[arg(long)]
        once: bool,
    },
    /// List all leases
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show how long a lease still lives, and its keys
    Ttl {
        /// The lease
        #[arg(value_parser = lease_id)]
        id: i64,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

/// Reads an id.
pub(crate) fn lease_id(text: &str) -> Result<i64, String> {
    i64::from_str_radix(text, 16).map_err(|_| "it is no hexadecimal number".to_owned())
}

#[derive(Serialize)]
struct Granted {
    id: String,
    ttl_secs: i64,
}

#[derive(Serialize)]
struct Life {
    id: String,
    ttl_secs: i64,
    granted_secs: i64,
    keys: Vec<String>,
}

pub(crate) async fn run(endpoints: &Endpoints, command: LeaseCommand) -> Result<(), AskError> {
    let peer = Peer::any(endpoints).await?;
    match command {
        LeaseCommand::Grant { ttl, json } => {
            let request = LeaseGrantRequest { ttl, id: 0 };
            let granted = answer(peer.lease().lease_grant(request)).await?;
            let granted = Granted {
                id: format!("{:x}", granted.id),
                ttl_secs: granted.ttl,
            };
            print(json, &granted, |out, granted| {
                writeln!(out, "lease {} lives for {} s", granted.id, granted.ttl_secs)
            })?;
        }
        LeaseCommand::Revoke { id } => {
            answer(peer.lease().lease_revoke(LeaseRevokeRequest { id })).await?;
            print(false, &id, |out, id| {
                writeln!(out, "lease {id:x} has ended")
            })?;
        }
        LeaseCommand::Keepalive { id, once: true } => {
            keep_alive(&peer, id).await?;
        }
        LeaseCommand::Keepalive { id, once: false } => {
            until_interrupted(async {
                loop {
                    let ttl_secs = keep_alive(&peer, id).await?;
                    let millis = u64::try_from(ttl_secs).unwrap_or(0) * 1000 / 3;
                    tokio::time::sleep(Duration::from_millis(millis)).await;
                }
            })
            .await?;
        }
        LeaseCommand::List { json } => {
            let leases = answer(peer.lease().lease_leases(LeaseLeasesRequest {})).await?;
            let leases = leases.leases.iter().map(|lease| format!("{:x}", lease.id));
            print(json, &leases.collect::<Vec<_>>(), |out, leases| {
                leases.iter().try_for_each(|id| writeln!(out, "{id}"))
            })?;
        }
        LeaseCommand::Ttl { id, json } => {
            let life = life(&peer, id).await?;
            print(json, &life, |out, life| {
                let (ttl, granted) = (life.ttl_secs, life.granted_secs);
                writeln!(out, "lease {} lives for {ttl} of {granted} s", life.id)?;
                life.keys.iter().try_for_each(|key| writeln!(out, "{key}"))
            })?;
        }
    }
    Ok(())
}

/// Says and returns how many seconds it lives from now on.
async fn keep_alive(peer: &Peer, id: i64) -> Result<i64, AskError> {
    let requests = tokio_stream::once(LeaseKeepAliveRequest { id });
    let mut answers = answer(peer.lease().lease_keep_alive(requests)).await?;
    let ttl_secs = match soon(answers.message()).await? {
        Some(alive) if alive.ttl > 0 => alive.ttl,
        Some(_) => return Err(missing(id)),
        None => return Err(AskError::Lost("there was no answer".to_owned())),
    };
    print(false, &(id, ttl_secs), |out, (id, ttl_secs)| {
        writeln!(out, "lease {id:x} lives for {ttl_secs} s")
    })?;
    Ok(ttl_secs)
}

async fn life(peer: &Peer, id: i64) -> Result<Life, AskError> {
    let request = LeaseTimeToLiveRequest { id, keys: true };
    let life = answer(peer.lease().lease_time_to_live(request)).await?;
    if life.ttl < 0 {
        return Err(missing(id));
    }
    Ok(Life {
        id: format!("{id:x}"),
        ttl_secs: life.ttl,
        granted_secs: life.granted_ttl,
        keys: life.keys.iter().map(|key| shown(key)).collect(),
    })
}

fn missing(id: i64) -> AskError {
    AskError::NotFound(format!("lease {id:x}"))
}
