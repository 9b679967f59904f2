//! `pontoonctl ranges`: the ranges of the cluster, as all members that are
//! reached tell of them.
//!
//! Kept true: of each range, its leader's word counts; what no leader tells is
//! taken from who knows the newest term.

mod text;
mod view;

use clap::Subcommand;
use futures_util::future::join_all;
use pontoon_api::pontoonpb::{SplitRequest, TransferRequest, WhyRequest, WhyResponse};
use serde::Serialize;

use crate::client::{AskError, Endpoints, Peer, answer};
use crate::members::{Seat, find, list, name, name_of, seats};
use crate::output::{print, shown};
#[cfg(test)]
pub(crate) use view::ReplicaView;
use view::Told;
pub(crate) use view::{RangeView, State, ask_all, merge};

/// What can be asked about ranges.
#[derive(Subcommand)]
pub(crate) enum RangesCommand {
    /// List all ranges: keys, leader, size, replicas
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Cut the range that has KEY in two, of which the second begins with it
    #[command(after_help = "Example: pontoonctl ranges split /registry/pods/")]
    Split {
        /// The first key of the second range
        key: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Have a member lead a range
    ///
    /// The cluster moves a leader again if one member leads two ranges more
    /// than another.
    #[command(after_help = "Example: pontoonctl ranges transfer 3 m2")]
    Transfer {
        /// The range's number
        range: u64,
        /// A name, or an id
        member: String,
    },
    /// Say where a key is, and what would hold up a request for it now
    Why(Why),
}

#[derive(clap::Args)]
pub(crate) struct Why {
    /// The key
    key: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Split {
    range: u64,
    existed: bool,
}

/// What is known of a key.
#[derive(Serialize)]
struct Explained {
    key: String,
    range: RangeView,
    told_by: String,
    /// Whether somebody could look at the key.
    looked: bool,
    found: Option<Found>,
    holds_up: Vec<String>,
}

#[derive(Serialize)]
struct Found {
    create_revision: i64,
    mod_revision: i64,
    version: i64,
    lease: String,
    value_bytes: u64,
}

pub(crate) async fn run(endpoints: &Endpoints, command: RangesCommand) -> Result<(), AskError> {
    match command {
        RangesCommand::List { json } => {
            let seats = seats(endpoints).await?;
            let told = ask_all(&seats).await?;
            let ranges = merge(&seats, &told);
            print(json, &ranges[..], text::ranges)?;
        }
        RangesCommand::Split { key, json } => {
            let peer = Peer::any(endpoints).await?;
            let request = SplitRequest { key: key.into() };
            let split = answer(peer.ranges().split(request)).await?;
            let split = Split {
                range: split.range,
                existed: split.existed,
            };
            print(json, &split, |out, split| match split.existed {
                true => writeln!(out, "range {} begins there already", split.range),
                false => writeln!(out, "range {} begins there now", split.range),
            })?;
        }
        RangesCommand::Transfer { range, member } => {
            let peer = Peer::any(endpoints).await?;
            let members = list(&peer).await?;
            let to = find(&members, &member)?;
            let request = TransferRequest {
                range,
                member: to.id,
            };
            answer(peer.ranges().transfer(request)).await?;
            print(false, &(name(to), range), |out, (to, range)| {
                writeln!(out, "{to} leads range {range}")
            })?;
        }
        RangesCommand::Why(command) => why(endpoints, command).await?,
    }
    Ok(())
}

pub(crate) async fn why(endpoints: &Endpoints, why: Why) -> Result<(), AskError> {
    let seats = seats(endpoints).await?;
    let explained = explain(&seats, &why.key).await?;
    Ok(print(why.json, &explained, text::explained)?)
}

/// Asks everybody; the leader knows best.
async fn explain(seats: &[Seat], key: &str) -> Result<Explained, AskError> {
    let peers = seats.iter().filter_map(Seat::peer);
    let asked = peers.map(|peer| async {
        let request = WhyRequest {
            key: key.to_owned().into(),
        };
        let answer = answer(peer.ranges().why(request)).await;
        answer.map(|answer| (peer.id, answer))
    });
    let mut answers = Vec::new();
    let mut refused = None;
    for asked in join_all(asked).await {
        match asked {
            Ok(answer) => answers.push(answer),
            Err(error) => refused = Some(error),
        }
    }
    let leads = |answer: &WhyResponse| {
        let here = answer.range.as_ref().and_then(|range| range.here.as_ref());
        here.map(|here| (here.leads, here.term))
    };
    let best = answers.iter().max_by_key(|(_, answer)| leads(answer));
    let Some((told_by, best)) = best else {
        let nobody = || AskError::Unreachable("no member tells of its ranges".to_owned());
        return Err(refused.unwrap_or_else(nobody));
    };
    let told: Vec<Told> = answers
        .iter()
        .map(|(member, answer)| Told {
            member: *member,
            map_version: 0,
            ranges: answer.range.iter().cloned().collect(),
        })
        .collect();
    let number = best.range.as_ref().map_or(0, |range| range.id);
    let ranges = merge(seats, &told);
    let range = ranges.into_iter().find(|range| range.id == number);
    let range = range.ok_or_else(|| AskError::NotFound(format!("range {number}")))?;
    Ok(Explained {
        key: shown(key.as_bytes()),
        range,
        told_by: name_of(seats, *told_by),
        looked: best.looked,
        found: best.key.as_ref().map(|key| Found {
            create_revision: key.create_revision,
            mod_revision: key.mod_revision,
            version: key.version,
            lease: format!("{:x}", key.lease),
            value_bytes: key.value_bytes,
        }),
        holds_up: best.holds_up.clone(),
    })
}
