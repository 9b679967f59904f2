//! Starts nodes as processes, kills them, and gathers what they left behind.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Write as _};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rand::RngExt;
use rand::rngs::SmallRng;

use crate::check::Seen;
use crate::history::{Dump, now};
use crate::member::{SAYS, Seat};

/// How long a node may take to do what it is told.
const PATIENCE: Duration = Duration::from_secs(120);

/// Tells a process which node it is.
pub(crate) const SEAT: &str = "PONTOON_PROCESSES_SEAT";

/// The nodes of a cluster, each a process while it runs.
pub(crate) struct Cluster {
    dir: PathBuf,
    addresses: Vec<String>,
    members: Vec<Member>,
    says: mpsc::Sender<(u64, String)>,
    said: mpsc::Receiver<(u64, String)>,
    /// Who was started and killed when.
    diary: File,
}

#[derive(Default)]
struct Member {
    starts: u64,
    running: Option<(Child, ChildStdin)>,
}

impl Cluster {
    pub(crate) fn new(dir: &Path, nodes: usize, rng: &mut SmallRng) -> Self {
        let (says, said) = mpsc::channel();
        Self {
            dir: dir.to_owned(),
            addresses: free_addresses(nodes, rng),
            members: (0..nodes).map(|_| Member::default()).collect(),
            says,
            said,
            diary: File::create(dir.join("diary")).expect("a new file"),
        }
    }

    fn nodes(&self) -> std::ops::RangeInclusive<u64> {
        1..=self.members.len() as u64
    }

    fn member(&mut self, node: u64) -> &mut Member {
        let at = usize::try_from(node).expect("small") - 1;
        &mut self.members[at]
    }

    fn seat(&self, node: u64, start: u64) -> Seat {
        Seat {
            node,
            start,
            dir: self.dir.clone(),
            addresses: self.addresses.clone(),
        }
    }

    /// Starts a node that doesn't run; it is at work when it says so.
    pub(crate) fn start(&mut self, node: u64) {
        if self.member(node).running.is_some() {
            return;
        }
        let start = self.member(node).starts + 1;
        self.member(node).starts = start;
        let seat = self.seat(node, start);
        self.note("start", node);
        let errors = self.dir.join(format!("errors-{}", seat.process()));
        let mut child = Command::new(std::env::current_exe().expect("it runs"))
            .args(["--exact", "as_a_member", "--nocapture", "--include-ignored"])
            .env(SEAT, seat.to_words())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(errors).expect("a new file"))
            .spawn()
            .expect("it starts");
        let stdin = child.stdin.take().expect("it is piped");
        let stdout = child.stdout.take().expect("it is piped");
        let says = self.says.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                // The test harness may have begun a line before.
                if let Some((_, said)) = line.split_once(SAYS) {
                    // Nobody listens any more: fine.
                    let _ = says.send((node, said.to_owned()));
                }
            }
        });
        self.member(node).running = Some((child, stdin));
    }

    /// Ends a node's process as the kernel would.
    pub(crate) fn kill(&mut self, node: u64) {
        let Some((mut child, _)) = self.member(node).running.take() else {
            return;
        };
        child.kill().expect("it is a child");
        child.wait().expect("it is a child");
        self.note("killed", node);
    }

    fn note(&mut self, what: &str, node: u64) {
        writeln!(self.diary, "{} {what} {node}", now()).expect("the diary is kept");
    }

    /// Nobody but [`Cluster::kill`] ends a node.
    pub(crate) fn look_after(&mut self) -> Result<(), String> {
        for (node, member) in (1..).zip(&mut self.members) {
            if let Some((child, _)) = &mut member.running
                && let Ok(Some(status)) = child.try_wait()
            {
                let errors = format!("errors-{node}-{}", member.starts);
                let errors = std::fs::read_to_string(self.dir.join(errors)).unwrap_or_default();
                return Err(format!("node {node} ended by itself: {status}\n{errors}"));
            }
        }
        Ok(())
    }

    /// Tells a node to do something, and waits until it says that it has.
    fn tell(&mut self, node: u64, order: &str, answer: &str) -> Result<String, String> {
        if let Some((_, stdin)) = &mut self.member(node).running {
            // If it can't be told, it has ended, which is seen below.
            let _ = writeln!(stdin, "{order}");
        }
        self.wait_for(node, answer)
    }

    fn wait_for(&mut self, node: u64, answer: &str) -> Result<String, String> {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            self.look_after()?;
            match self.said.recv_timeout(Duration::from_millis(100)) {
                Ok((by, said)) if by == node && said.starts_with(answer) => return Ok(said),
                _ => {}
            }
        }
        Err(format!("node {node} was never {answer}"))
    }

    /// Ends the load and has every node dump what it has. All nodes run.
    pub(crate) fn finish(&mut self) -> Result<(), String> {
        for node in self.nodes() {
            self.tell(node, "stop", "stopped")?;
        }
        let marked = self.tell(1, "mark", "marked")?;
        let order = marked.replace("marked", "dump");
        for node in self.nodes() {
            self.tell(node, &order, "dumped")?;
        }
        Ok(())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for node in self.nodes() {
            self.kill(node);
        }
    }
}

/// Gathers what a run left in its directory.
pub(crate) fn gather(dir: &Path) -> Result<Seen, String> {
    let mut seen = Seen::default();
    let files = std::fs::read_dir(dir).map_err(|error| error.to_string())?;
    let mut names: Vec<String> = files
        .filter_map(|file| file.ok()?.file_name().into_string().ok())
        .collect();
    names.sort();
    for name in names {
        if let Some(process) = name.strip_prefix("history-") {
            seen.history.add(process, &read(&dir.join(&name))?)?;
        } else if name.starts_with("dump-") {
            seen.dumps.push(Dump::parse(&read(&dir.join(&name))?)?);
        }
    }
    let mut running = BTreeSet::new();
    let mut nodes = BTreeSet::new();
    let mut alone_since = None;
    for line in read(&dir.join("diary"))?.lines() {
        let nonsense = || format!("diary: what is {line:?}?");
        let [at, what, node] = line.split(' ').collect::<Vec<_>>()[..] else {
            return Err(nonsense());
        };
        let at: u64 = at.parse().map_err(|_| nonsense())?;
        let node = node.to_owned();
        match what {
            "start" => {
                // From before it starts.
                seen.alone
                    .extend(alone_since.take().map(|since| (since, at)));
                nodes.insert(node.clone());
                running.insert(node);
            }
            "killed" => {
                seen.kills += 1;
                running.remove(&node);
                if 2 * running.len() <= nodes.len() {
                    alone_since.get_or_insert(at);
                }
            }
            _ => return Err(nonsense()),
        }
    }
    Ok(seen)
}

fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// Addresses that nobody has, and that nobody gets by chance while a node is
/// down: below what the kernel hands out.
fn free_addresses(count: usize, rng: &mut SmallRng) -> Vec<String> {
    let mut taken = Vec::new();
    while taken.len() < count {
        let port = rng.random_range(10_000..32_000_u16);
        taken.extend(TcpListener::bind(("127.0.0.1", port)).ok());
    }
    let address = |listener: &TcpListener| listener.local_addr().expect("it is bound").to_string();
    taken.iter().map(address).collect()
}
