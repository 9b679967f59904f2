//! `pontoonctl member`: listed, taken in, removed, given a vote.

use clap::Subcommand;
use pontoon_api::etcdserverpb::{
    Member, MemberAddRequest, MemberPromoteRequest, MemberRemoveRequest,
};
use serde::Serialize;

use crate::client::{AskError, Endpoints, Peer, answer};
use crate::members::{find, list, name};
use crate::output::{Side, columns, print};

/// What can be asked about members. MEMBER is a name, or an id as it is listed.
#[derive(Subcommand)]
pub(crate) enum MemberCommand {
    /// List all members
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Take a member in, and say how to start it
    Add {
        /// The name that it will have
        name: String,
        /// Where the others will find it
        #[arg(value_name = "PEER_URL")]
        url: String,
        /// Let it only listen until it is promoted
        #[arg(long)]
        learner: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove a member for good
    Remove {
        /// Which one
        member: String,
    },
    /// Give a member that only listens its vote
    Promote {
        /// Which one
        member: String,
    },
}

#[derive(Serialize)]
struct Listed {
    id: String,
    name: String,
    state: &'static str,
    peer_urls: Vec<String>,
    client_urls: Vec<String>,
}

#[derive(Serialize)]
struct Added {
    id: String,
    name: String,
    peer_url: String,
    initial_cluster: String,
}

pub(crate) async fn run(endpoints: &Endpoints, command: MemberCommand) -> Result<(), AskError> {
    let peer = Peer::any(endpoints).await?;
    match command {
        MemberCommand::List { json } => {
            let members = list(&peer).await?;
            let members: Vec<_> = members.into_iter().map(listed).collect();
            print(json, &members[..], |out, members| {
                let names = [
                    ("member", Side::Left),
                    ("name", Side::Left),
                    ("state", Side::Left),
                    ("peers", Side::Left),
                    ("clients", Side::Left),
                ];
                let rows = members.iter().map(|member| {
                    [
                        member.id.clone(),
                        member.name.clone(),
                        member.state.to_owned(),
                        member.peer_urls.join(","),
                        member.client_urls.join(","),
                    ]
                });
                columns(out, names, rows)
            })?;
        }
        MemberCommand::Add {
            name,
            url,
            learner,
            json,
        } => {
            let added = add(&peer, name, url, learner).await?;
            print(json, &added, |out, added| {
                let Added { id, name, .. } = added;
                writeln!(
                    out,
                    "member {id} is taken in; start it in an empty directory:"
                )?;
                writeln!(out)?;
                writeln!(
                    out,
                    "pontoon --name {name} --initial-cluster-state existing \\"
                )?;
                writeln!(out, "    --listen-peer-urls {} \\", added.peer_url)?;
                writeln!(
                    out,
                    "    --initial-advertise-peer-urls {} \\",
                    added.peer_url
                )?;
                writeln!(out, "    --initial-cluster {}", added.initial_cluster)
            })?;
        }
        MemberCommand::Remove { member } => {
            let id = find(&list(&peer).await?, &member)?.id;
            answer(peer.cluster().member_remove(MemberRemoveRequest { id })).await?;
            print(false, &id, |out, id| {
                writeln!(out, "member {id:x} is removed")
            })?;
        }
        MemberCommand::Promote { member } => {
            let id = find(&list(&peer).await?, &member)?.id;
            answer(peer.cluster().member_promote(MemberPromoteRequest { id })).await?;
            print(false, &id, |out, id| writeln!(out, "member {id:x} votes"))?;
        }
    }
    Ok(())
}

fn listed(member: Member) -> Listed {
    Listed {
        id: format!("{:x}", member.id),
        name: name(&member),
        state: match (member.name.is_empty(), member.is_learner) {
            (true, _) => "not started",
            (false, true) => "learner",
            (false, false) => "voter",
        },
        peer_urls: member.peer_urls,
        client_urls: member.client_urls,
    }
}

async fn add(peer: &Peer, name: String, url: String, learner: bool) -> Result<Added, AskError> {
    let request = MemberAddRequest {
        peer_urls: vec![url.clone()],
        is_learner: learner,
    };
    let added = answer(peer.cluster().member_add(request)).await?;
    let id = added.member.map_or(0, |member| member.id);
    let cluster = added.members.iter().flat_map(|member| {
        let name = if member.id == id { &name } else { &member.name };
        let urls = member.peer_urls.iter();
        urls.map(move |url| format!("{name}={url}"))
    });
    Ok(Added {
        id: format!("{id:x}"),
        initial_cluster: cluster.collect::<Vec<_>>().join(","),
        name,
        peer_url: url,
    })
}
