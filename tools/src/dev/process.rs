//! Members as processes of this machine.
//!
//! Kept true: a member that was started is waited for, so its number is its
//! own as long as it is used.

use std::fs::{self, File};
use std::io;
use std::net::TcpListener;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::time::Instant;

use crate::client::AskError;

/// The port that clients look for.
const PORT: u16 = 2379;
/// How long members may take to stop in order.
const STOP_WITHIN: Duration = Duration::from_secs(10);
/// Between two looks whether they have.
const LOOK: Duration = Duration::from_millis(20);

/// What is to be started.
pub(super) struct Plan {
    pub(super) server: PathBuf,
    pub(super) dir: PathBuf,
    /// Two for each member: for clients, and for the others.
    pub(super) ports: Vec<u16>,
    /// Where the keys are cut at first.
    pub(super) splits: Vec<String>,
}

/// What has been started; killed when it is dropped.
pub(super) struct Cluster {
    pub(super) plan: Plan,
    pub(super) members: Vec<Member>,
}

pub(super) struct Member {
    pub(super) name: String,
    pub(super) log: PathBuf,
    port: u16,
    child: Child,
    command: String,
}

/// A member that has ended by itself.
pub(super) struct Ended {
    name: String,
    status: ExitStatus,
    log: PathBuf,
    /// What starts it again.
    pub(super) command: String,
}

impl Plan {
    fn arguments(&self, at: usize) -> Vec<String> {
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let name = |at: usize| format!("m{}", at + 1);
        let peers: Vec<_> = self
            .ports
            .chunks_exact(2)
            .map(|ports| url(ports[1]))
            .collect();
        let cluster = peers.iter().enumerate();
        let cluster = cluster.map(|(at, peer)| format!("{}={peer}", name(at)));
        let client = url(self.ports[2 * at]);
        let dir = self.dir.join(name(at));
        let mut arguments = vec![
            format!("--name={}", name(at)),
            format!("--data-dir={}", dir.display()),
            format!("--listen-client-urls={client}"),
            format!("--advertise-client-urls={client}"),
            format!("--listen-peer-urls={}", peers[at]),
            format!("--initial-advertise-peer-urls={}", peers[at]),
            format!(
                "--initial-cluster={}",
                cluster.collect::<Vec<_>>().join(",")
            ),
        ];
        if !self.splits.is_empty() {
            arguments.push(format!("--initial-splits={}", self.splits.join(",")));
        }
        arguments
    }

    fn start(&self, at: usize) -> io::Result<Member> {
        let name = format!("m{}", at + 1);
        let log = self.dir.join(format!("{name}.log"));
        let arguments = self.arguments(at);
        let output = File::create(&log)?;
        let mut command = Command::new(&self.server);
        command
            .args(&arguments)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            // Ctrl-C is heard here, and not by everybody at once.
            .process_group(0);
        // What is set for other servers would count for these.
        for (variable, _) in std::env::vars_os() {
            let is_flag = |name: &str| name.starts_with("ETCD_") || name.starts_with("PONTOON_");
            if variable.to_str().is_some_and(is_flag) {
                command.env_remove(variable);
            }
        }
        let child = command.spawn()?;
        Ok(Member {
            name,
            log,
            port: self.ports[2 * at],
            child,
            command: format!("{} {}", self.server.display(), arguments.join(" ")),
        })
    }
}

impl Cluster {
    pub(super) fn start(plan: Plan) -> Result<Self, AskError> {
        let mut cluster = Self {
            plan,
            members: Vec::new(),
        };
        for at in 0..cluster.plan.ports.len() / 2 {
            let member = cluster.plan.start(at).map_err(|error| {
                let server = cluster.plan.server.display();
                AskError::Wrong(format!("{server} can't be started: {error}"))
            })?;
            cluster.members.push(member);
        }
        Ok(cluster)
    }

    pub(super) fn endpoints(&self) -> impl Iterator<Item = String> {
        self.members.iter().map(Member::client)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// A member that has ended since the last question, which is forgotten.
    pub(super) fn ended(&mut self) -> Option<Ended> {
        for at in 0..self.members.len() {
            if let Ok(Some(status)) = self.members[at].child.try_wait() {
                let member = self.members.remove(at);
                return Some(Ended {
                    name: member.name,
                    status,
                    log: member.log,
                    command: member.command,
                });
            }
        }
        None
    }

    /// Ends them in order, as far as they do so soon.
    pub(super) async fn stop(&mut self) {
        for member in &self.members {
            // It can't have gone: it has not been waited for.
            let _ = i32::try_from(member.pid())
                .ok()
                .and_then(Pid::from_raw)
                .map(|pid| kill_process(pid, Signal::TERM));
        }
        let deadline = Instant::now() + STOP_WITHIN;
        while !self.is_empty() && Instant::now() < deadline {
            if self.ended().is_none() {
                tokio::time::sleep(LOOK).await;
            }
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for member in &mut self.members {
            // It may have ended by itself: fine.
            let _ = member.child.kill();
            let _ = member.child.wait();
        }
    }
}

impl Member {
    pub(super) fn client(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Ended {
    /// What has happened, with the end of its log.
    pub(super) fn words(&self, lines_max: usize) -> String {
        let log = fs::read(&self.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<_> = log.lines().collect();
        let last = &lines[lines.len().saturating_sub(lines_max)..];
        let (name, status) = (&self.name, self.status);
        match last.is_empty() {
            true => format!("{name} has ended ({status}), without a word"),
            false => format!(
                "{name} has ended ({status}); its last words:\n{}",
                last.join("\n")
            ),
        }
    }
}

/// The server: named, beside this program, or where programs are.
pub(super) fn find_server(named: Option<&Path>) -> Result<PathBuf, AskError> {
    if let Some(named) = named {
        // (A name without a directory would be sought in PATH.)
        return named
            .canonicalize()
            .map_err(|error| AskError::Wrong(format!("--server {}: {error}", named.display())));
    }
    let beside = std::env::current_exe().ok();
    let beside = beside.as_deref().and_then(Path::parent).map(Path::to_owned);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = beside.into_iter().chain(std::env::split_paths(&path));
    let mut servers = places.map(|place| place.join("pontoon"));
    servers.find(|server| server.is_file()).ok_or_else(|| {
        AskError::Wrong(
            "there is no `pontoon` beside pontoonctl nor in PATH; build it (cargo build \
             --release --bin pontoon) or name it with --server"
                .to_owned(),
        )
    })
}

/// Two ports for each member. A cluster that is to be started again needs the
/// same ones each time.
pub(super) fn ports(first: Option<u16>, members: u16, again: bool) -> Result<Vec<u16>, AskError> {
    let count = 2 * members;
    let row = |first: u16| Some((first..first.checked_add(count)?).collect::<Vec<_>>());
    let taken = |ports: &[u16]| ports.iter().copied().find(|port| !is_free(*port));
    let wrong = |port: u16| AskError::Wrong(format!("port {port} is taken; choose with --port"));
    match first {
        Some(0) => any_ports(count),
        Some(first) => {
            let ports = row(first).ok_or_else(|| {
                AskError::Wrong(format!("there are no {count} ports from {first} on"))
            })?;
            taken(&ports).map_or(Ok(ports), |port| Err(wrong(port)))
        }
        None => {
            let ports = row(PORT).unwrap_or_default();
            match taken(&ports) {
                None => Ok(ports),
                Some(port) if again => Err(wrong(port)),
                Some(_) => any_ports(count),
            }
        }
    }
}

fn is_free(port: u16) -> bool {
    TcpListener::bind(("127.0.0.1", port)).is_ok()
}

fn any_ports(count: u16) -> Result<Vec<u16>, AskError> {
    let listeners = (0..count).map(|_| TcpListener::bind("127.0.0.1:0"));
    let listeners = listeners.collect::<io::Result<Vec<_>>>();
    let ports = listeners.and_then(|listeners| {
        let ports = listeners.iter().map(|one| Ok(one.local_addr()?.port()));
        ports.collect()
    });
    ports.map_err(|error: io::Error| AskError::Wrong(format!("no free ports: {error}")))
}

/// Keys that cut the alphabet into so many parts, one or two letters each.
pub(super) fn cuts(groups: u16) -> Vec<String> {
    let letter = |at: u16| char::from(b'a' + (at % 26) as u8);
    let cut = |at: u16| match groups {
        ..=26 => letter(26 * at / groups).to_string(),
        _ => {
            let place = u16::try_from(26 * 26 * u32::from(at) / u32::from(groups)).unwrap_or(0);
            format!("{}{}", letter(place / 26), letter(place))
        }
    };
    (1..groups).map(cut).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_alphabet_is_cut_into_so_many_parts() {
        assert_eq!(cuts(8).join(" "), "d g j n q t w");
        for groups in 1..=256 {
            let cuts = cuts(groups);
            assert!(cuts.is_sorted(), "{cuts:?}");
            let different: BTreeSet<_> = cuts.iter().collect();
            assert_eq!(different.len() + 1, usize::from(groups));
        }
    }

    #[test]
    fn ports_are_those_that_were_asked_for_or_an_error() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let taken = taken.local_addr().map(|at| (taken, at.port())).unwrap();
        assert!(ports(Some(taken.1), 1, false).is_err());
        assert!(ports(Some(65530), 9, false).is_err());
        let any: BTreeSet<_> = ports(Some(0), 3, false).unwrap().into_iter().collect();
        assert_eq!(any.len(), 6);
    }

    #[test]
    fn a_server_that_is_not_there_is_named() {
        let missing = find_server(Some(Path::new("no/such/pontoon"))).unwrap_err();
        assert!(missing.to_string().contains("no/such/pontoon"));
    }
}
