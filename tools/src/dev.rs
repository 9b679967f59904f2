//! `pontoonctl dev`: a cluster on this machine, to try things out.
//!
//! Kept true: whoever is started here is ended here, however this ends short
//! of `kill -9`; so is the directory, unless it was named.

mod place;
mod process;

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use pontoon_api::pontoonpb::ListRequest;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;

use crate::client::{AskError, Peer, answer};
use crate::output::{Side, aligned, say};
use place::Place;
use process::{Cluster, Plan};

/// Between two looks at the members.
const LOOK: Duration = Duration::from_millis(50);
/// How long they may take to be ready.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// Lines at the end of a log that tell why its member has ended.
const LAST_LINES: usize = 12;

#[derive(Args)]
pub(crate) struct Dev {
    /// How many members
    #[arg(long, value_name = "N", default_value_t = 3,
          value_parser = clap::value_parser!(u16).range(1..=9))]
    nodes: u16,
    /// How many ranges the keys are cut into, at letters
    #[arg(long, value_name = "N", default_value_t = 8,
          value_parser = clap::value_parser!(u16).range(1..=256))]
    groups: u16,
    /// Keep the data here, to go on with it the next time
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// The first port; each member has two. 0: any [default: 2379, or any if taken]
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
    /// The server [default: `pontoon` beside this program, or in PATH]
    #[arg(long, value_name = "FILE")]
    server: Option<PathBuf>,
}

pub(crate) async fn run(dev: Dev) -> Result<(), AskError> {
    let mut signals = Signals::heard().map_err(AskError::Output)?;
    let server = process::find_server(dev.server.as_deref())?;
    let ports = process::ports(dev.port, dev.nodes, dev.dir.is_some())?;
    // It goes after the members, which are declared behind it.
    let place = Place::take(dev.dir)?;
    let plan = Plan {
        server,
        dir: place.dir.clone(),
        ports,
        splits: process::cuts(dev.groups),
    };
    let mut cluster = Cluster::start(plan)?;
    tokio::select! {
        ready = ready(&mut cluster) => welcome(&cluster, &place, ready?)?,
        () = signals.any() => return Ok(()),
    }
    tokio::select! {
        ended = watch_over(&mut cluster) => return Err(ended),
        () = signals.any() => {}
    }
    say("stopping");
    if place.is_kept {
        // The others are still there to take over; what is left is killed.
        cluster.stop().await;
    }
    Ok(())
}

/// What ends it.
struct Signals(Vec<Signal>);

impl Signals {
    fn heard() -> io::Result<Self> {
        let kinds = [
            SignalKind::interrupt(),
            SignalKind::terminate(),
            SignalKind::hangup(),
        ];
        kinds
            .into_iter()
            .map(signal)
            .collect::<io::Result<_>>()
            .map(Self)
    }

    async fn any(&mut self) {
        let heard = self.0.iter_mut().map(|signal| Box::pin(signal.recv()));
        futures_util::future::select_all(heard).await;
    }
}

/// Returns the number of ranges, when all members serve and all ranges are led.
async fn ready(cluster: &mut Cluster) -> Result<usize, AskError> {
    let deadline = Instant::now() + READY_WITHIN;
    loop {
        if let Some(ended) = cluster.ended() {
            return Err(AskError::Refused(ended.words(LAST_LINES)));
        }
        if let Some(ranges) = ranges_led(cluster).await {
            return Ok(ranges);
        }
        if Instant::now() > deadline {
            return Err(AskError::Refused(format!(
                "not ready in {} s; the logs are in {}",
                READY_WITHIN.as_secs(),
                cluster.plan.dir.display()
            )));
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// `None` if something is missing.
async fn ranges_led(cluster: &Cluster) -> Option<usize> {
    let mut ranges = 0;
    for at in cluster.endpoints() {
        let peer = Peer::reach(&at).await.ok()?;
        let list = answer(peer.ranges().list(ListRequest {})).await.ok()?;
        let led = |leader| leader != 0;
        let mut leaders = list.ranges.iter().map(|range| range.here.as_ref());
        if !leaders.all(|here| here.is_some_and(|here| led(here.leader))) {
            return None;
        }
        ranges = list.ranges.len();
    }
    Some(ranges)
}

/// Tells of members that end; returns when none is left.
async fn watch_over(cluster: &mut Cluster) -> AskError {
    loop {
        while let Some(ended) = cluster.ended() {
            say(&ended.words(LAST_LINES));
            say(&format!("to start it again: {}", ended.command));
        }
        if cluster.is_empty() {
            return AskError::Refused("no member is left".to_owned());
        }
        tokio::time::sleep(LOOK).await;
    }
}

fn welcome(cluster: &Cluster, place: &Place, ranges: usize) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let fate = match place.is_kept {
        true => "which stays",
        false => "which goes with them",
    };
    let members = cluster.members.len();
    writeln!(
        out,
        "{members} members, {ranges} ranges, ready; in {}, {fate}",
        place.dir.display()
    )?;
    writeln!(out)?;
    let lines = cluster.members.iter().map(|member| {
        [
            format!("  {}", member.name),
            format!("http://{}", member.client()),
            format!("pid {}", member.pid()),
            format!("log {}", member.log.display()),
        ]
    });
    aligned(&mut out, [Side::Left; 4], &lines.collect::<Vec<_>>())?;
    let endpoints: Vec<_> = cluster.endpoints().collect();
    let flag = match endpoints.first().is_some_and(|at| at == "127.0.0.1:2379") {
        true => String::new(),
        false => format!(" --endpoints {}", endpoints.join(",")),
    };
    writeln!(out, "\nTry, in another terminal:\n")?;
    for command in [
        "put hello world",
        "get hello",
        "why hello",
        "ranges list",
        "status",
    ] {
        writeln!(out, "  pontoonctl{flag} {command}")?;
    }
    if let Some(last) = cluster.members.last().filter(|_| members > 2) {
        writeln!(out, "  kill -9 {}   # the others go on", last.pid())?;
    }
    writeln!(out, "\nCtrl-C ends it.")?;
    out.flush()
}
