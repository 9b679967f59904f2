//! Starts nodes as processes, kills them, and gathers what they left behind.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Display;
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
use crate::history::{Content, Dump, now};
use crate::load::Load;
use crate::member::{Release, SAYS, Seat};

/// How long a node may take to do what it is told.
const PATIENCE: Duration = Duration::from_secs(120);

/// Between two looks.
const TICK: Duration = Duration::from_millis(50);

/// Tells a process which node it is.
pub(crate) const SEAT: &str = "PONTOON_PROCESSES_SEAT";

/// How many nodes a cluster has.
pub(crate) const NODES: usize = 3;

/// Something to be done to the cluster while it is under load.
pub(crate) enum Errand {
    /// Any node is told to; if it doesn't, or is killed, another one is.
    Tell(String),
    /// A node is killed, and never comes back.
    Retire(u64),
    /// A node that was taken in starts.
    Join(u64),
}

/// The nodes of a cluster, each a process while it runs.
pub(crate) struct Cluster {
    dir: PathBuf,
    load: Load,
    /// Of nodes 1, 2 and so on, also of those that are to come.
    addresses: Vec<String>,
    members: BTreeMap<u64, Member>,
    /// What is started from now on.
    pub(crate) release: Release,
    says: mpsc::Sender<(u64, String)>,
    said: mpsc::Receiver<(u64, String)>,
    /// One after the other, not before their time.
    errands: VecDeque<(Instant, Errand)>,
    /// Who was told to do the first of them.
    told: Option<u64>,
    orders: usize,
    /// What happened when.
    diary: File,
}

#[derive(Default)]
struct Member {
    starts: u64,
    running: Option<(Child, ChildStdin)>,
}

impl Cluster {
    /// Nobody runs yet.
    pub(crate) fn new(dir: &Path, load: Load, joining: usize, rng: &mut SmallRng) -> Self {
        let (says, said) = mpsc::channel();
        let nodes = 1..=NODES as u64;
        Self {
            dir: dir.to_owned(),
            load,
            addresses: free_addresses(NODES + joining, rng),
            members: nodes.map(|node| (node, Member::default())).collect(),
            release: Release::THIS,
            says,
            said,
            errands: VecDeque::new(),
            told: None,
            orders: 0,
            diary: File::create(dir.join("diary")).expect("a new file"),
        }
    }

    /// Those who belong to it, running or not.
    pub(crate) fn nodes(&self) -> Vec<u64> {
        self.members.keys().copied().collect()
    }

    pub(crate) fn address(&self, node: u64) -> &str {
        &self.addresses[at(node)]
    }

    fn seat(&self, node: u64, start: u64) -> Seat {
        // Who joins knows of the first ones, and itself.
        let known = NODES.max(at(node) + 1);
        Seat {
            node,
            start,
            load: self.load,
            join: at(node) >= NODES,
            release: self.release,
            dir: self.dir.clone(),
            addresses: self.addresses[..known].to_vec(),
        }
    }

    /// Starts a node that belongs to the cluster and doesn't run; it is at
    /// work when it says so.
    pub(crate) fn start(&mut self, node: u64) {
        let Some(member) = self.members.get_mut(&node) else {
            return;
        };
        if member.running.is_some() {
            return;
        }
        member.starts += 1;
        let start = member.starts;
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
        let member = self.members.entry(node).or_default();
        member.running = Some((child, stdin));
    }

    /// Ends a node's process as the kernel would.
    pub(crate) fn kill(&mut self, node: u64) {
        let member = self.members.get_mut(&node);
        let Some((mut child, _)) = member.and_then(|member| member.running.take()) else {
            return;
        };
        // It may have ended by itself.
        let _ = child.kill();
        child.wait().expect("it is a child");
        self.told.take_if(|told| *told == node);
        self.note("killed", node);
    }

    fn note(&mut self, what: &str, whom: impl Display) {
        writeln!(self.diary, "{} {what} {whom}", now()).expect("the diary is kept");
    }

    /// Something is to be done after so long, and after all that was to be
    /// done before.
    pub(crate) fn plan(&mut self, after: Duration, errand: Errand) {
        self.errands.push_back((Instant::now() + after, errand));
    }

    /// Lets time pass, and runs errands meanwhile.
    pub(crate) fn attend(&mut self, time: Duration) -> Result<(), String> {
        let end = Instant::now() + time;
        loop {
            self.look_after()?;
            self.run_errand();
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            if let Ok((node, said)) = self.said.recv_timeout(left.min(TICK)) {
                self.hear_of_errand(node, &said);
            }
        }
    }

    /// Starts all that belong to the cluster, and runs all errands.
    pub(crate) fn settle(&mut self) -> Result<(), String> {
        let deadline = Instant::now() + PATIENCE;
        for node in self.nodes() {
            self.start(node);
        }
        while let Some((_, errand)) = self.errands.front() {
            if Instant::now() > deadline {
                return Err(match errand {
                    Errand::Tell(order) => format!("nobody could {order}"),
                    _ => "there was no time for all errands".to_owned(),
                });
            }
            self.attend(TICK)?;
        }
        Ok(())
    }

    fn run_errand(&mut self) {
        let Some((due, errand)) = self.errands.front() else {
            return;
        };
        if Instant::now() < *due || self.told.is_some() {
            return;
        }
        match errand {
            Errand::Tell(order) => {
                let members = self.members.iter_mut();
                let running =
                    members.filter_map(|(node, member)| Some((node, member.running.as_mut()?)));
                let mut running: Vec<_> = running.collect();
                let count = running.len().max(1);
                if let Some((node, (_, stdin))) = running.get_mut(self.orders % count) {
                    // If it can't be told, it has ended, which is seen elsewhere.
                    let _ = writeln!(stdin, "{order}");
                    self.told = Some(**node);
                }
                self.orders += 1;
                return;
            }
            Errand::Retire(node) => {
                let node = *node;
                self.kill(node);
                self.members.remove(&node);
                self.note("retired", node);
            }
            Errand::Join(node) => {
                let node = *node;
                self.members.entry(node).or_default();
                self.start(node);
            }
        }
        self.errands.pop_front();
    }

    fn hear_of_errand(&mut self, node: u64, said: &str) {
        let Some((due, Errand::Tell(order))) = self.errands.front_mut() else {
            return;
        };
        if self.told != Some(node) || !said.contains(order.as_str()) {
            return;
        }
        self.told = None;
        let order = order.clone();
        if said.starts_with("done") {
            self.errands.pop_front();
        } else {
            *due = Instant::now() + TICK;
        }
        let what = said.replacen(&order, "", 1).replace(' ', "");
        self.note(&what, order.replace(' ', "-"));
    }

    /// Nobody but [`Cluster::kill`] ends a node.
    pub(crate) fn look_after(&mut self) -> Result<(), String> {
        for (node, member) in &mut self.members {
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
        let member = self.members.get_mut(&node);
        if let Some((_, stdin)) = member.and_then(|member| member.running.as_mut()) {
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

    /// Replaces a running node's process by one of another release; returns
    /// when that is at work.
    pub(crate) fn restart(&mut self, node: u64, release: Release) -> Result<(), String> {
        self.kill(node);
        self.release = release;
        self.start(node);
        self.wait_for(node, "ready").map(drop)
    }

    /// The version of the cluster, as a node knows it, and how many entries it
    /// has applied of the kind that only the next release knows.
    pub(crate) fn version(&mut self, node: u64) -> Result<(u8, u64), String> {
        let said = self.tell(node, "version", "version")?;
        let words: Vec<_> = said.split(' ').skip(1).collect();
        let parse = || Some((words.first()?.parse().ok()?, words.get(1)?.parse().ok()?));
        parse().ok_or_else(|| format!("version: what is {said:?}?"))
    }

    /// Starts a node that can't go on, in place of its process; returns what it
    /// says before it ends.
    pub(crate) fn start_in_vain(&mut self, node: u64, release: Release) -> Result<String, String> {
        self.kill(node);
        self.release = release;
        self.start(node);
        let member = self.members.get_mut(&node).expect("it was just started");
        let (child, _) = member.running.as_mut().expect("it was just started");
        let deadline = Instant::now() + PATIENCE;
        while child.try_wait().expect("it is a child").is_none() {
            if Instant::now() > deadline {
                return Err(format!("node {node} runs on"));
            }
            std::thread::sleep(TICK);
        }
        let errors = format!("errors-{node}-{}", member.starts);
        self.kill(node);
        read(&self.dir.join(errors))
    }

    /// Opens the accounts, if there are any.
    pub(crate) fn open(&mut self) -> Result<(), String> {
        match self.load {
            Load::Keys => Ok(()),
            Load::Transfers => self.tell(1, "open", "opened").map(drop),
        }
    }

    /// Ends the load, has every node write, and dump what it has. All nodes run.
    pub(crate) fn finish(&mut self) -> Result<(), String> {
        for node in self.nodes() {
            self.tell(node, "stop", "stopped")?;
        }
        let mut order = String::new();
        for node in self.nodes() {
            let marked = self.tell(node, "mark", "marked")?;
            // Each is behind the one before.
            order = marked.replace("marked", "dump");
        }
        self.compare()?;
        for node in self.nodes() {
            self.tell(node, &order, "dumped")?;
        }
        Ok(())
    }

    /// Notes what all replicas have until those of each group have all applied
    /// the same entries.
    fn compare(&mut self) -> Result<(), String> {
        let mut file = File::create(self.dir.join("contents")).expect("a new file");
        let deadline = Instant::now() + PATIENCE;
        loop {
            let mut positions = BTreeSet::new();
            for node in self.nodes() {
                let said = self.tell(node, "contents", "contents")?;
                let said = said.replacen("contents", &node.to_string(), 1);
                writeln!(file, "{said}").expect("it is kept");
                let contents = parse_contents(&said)?.into_iter();
                let at = contents.map(|(_, content)| (content.group, content.index));
                positions.insert(at.collect::<Vec<_>>());
            }
            match positions.len() {
                1 => return Ok(()),
                _ if Instant::now() > deadline => {
                    return Err(format!("replicas stay apart: {positions:?}"));
                }
                _ => std::thread::sleep(TICK),
            }
        }
    }
}

/// A node's place in lists of nodes.
fn at(node: u64) -> usize {
    usize::try_from(node).expect("small") - 1
}

/// What a node said it has.
fn parse_contents(line: &str) -> Result<Vec<(u64, Content)>, String> {
    let parse = || {
        let (node, contents) = line.split_once(' ')?;
        let node = node.parse().ok()?;
        let contents = Content::parse_all(contents)?.into_iter();
        Some(contents.map(|content| (node, content)).collect())
    };
    parse().ok_or_else(|| format!("contents: what is {line:?}?"))
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
        } else if name == "contents" {
            for line in read(&dir.join(&name))?.lines() {
                seen.contents.extend(parse_contents(line)?);
            }
        }
    }
    let mut running = BTreeSet::new();
    let mut nodes = BTreeSet::new();
    let mut alone_since = None;
    for line in read(&dir.join("diary"))?.lines() {
        let nonsense = || format!("diary: what is {line:?}?");
        let [at, what, whom] = line.split(' ').collect::<Vec<_>>()[..] else {
            return Err(nonsense());
        };
        let at: u64 = at.parse().map_err(|_| nonsense())?;
        let node = whom.to_owned();
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
            "retired" => {
                nodes.remove(&node);
            }
            "done" => {
                seen.splits += u64::from(whom.starts_with("split"));
                seen.replaced += u64::from(whom.starts_with("promote"));
            }
            failed if failed.starts_with("failed") => {}
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
