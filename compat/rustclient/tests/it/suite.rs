//! What the cases share: two clusters, clients of them, and waiting.

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{LazyLock, Mutex};
use std::time::{Duration, Instant};

use etcd_client::{Client, ConnectOptions, Error, Event, WatchResponse, WatchStream};
use tokio::runtime::Runtime;
use tokio::time::{sleep, timeout};
use tonic::Code;

/// What takes longer is not coming. Nothing waits for this if all is well.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// One member and three; they end with this process.
pub static CLUSTERS: LazyLock<Clusters> = LazyLock::new(Clusters::start);

pub struct Clusters {
    pub one: Vec<String>,
    pub three: Vec<String>,
    process: Mutex<(Child, BufReader<ChildStdout>)>,
}

impl Clusters {
    fn start() -> Self {
        let var = |name| env::var(name).unwrap_or_else(|_| panic!("{name} is not set"));
        let splits = var("SPLITS");
        let mut process = Command::new(var("CLUSTERS"))
            .arg(var("SERVER"))
            .args((!splits.is_empty()).then_some(splits))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the clusters start");
        let mut lines = BufReader::new(process.stdout.take().expect("it is piped"));
        let mut places = |name: &str| {
            let line = line(&mut lines);
            let (first, rest) = line.split_once(' ').expect("a name and places");
            assert_eq!(first, name);
            rest.split(' ').map(str::to_owned).collect()
        };
        let (one, three) = (places("one"), places("three"));
        Self {
            one,
            three,
            process: Mutex::new((process, lines)),
        }
    }

    /// Kills or starts a member of the three.
    pub fn order(&self, verb: &str, at: usize) {
        let mut process = self.process.lock().expect("no case has panicked here");
        let (child, lines) = &mut *process;
        let input = child.stdin.as_mut().expect("it is piped");
        writeln!(input, "{verb} {at}").expect("it listens");
        assert_eq!(line(lines), "done");
    }
}

fn line(lines: &mut BufReader<ChildStdout>) -> String {
    let mut line = String::new();
    lines.read_line(&mut line).expect("a line");
    line.trim_end().to_owned()
}

pub async fn connect(places: &[String]) -> Client {
    let options = ConnectOptions::new().with_connect_timeout(Duration::from_secs(2));
    Client::connect(places, Some(options))
        .await
        .expect("an address is an address")
}

/// Runs a case with a client of the one member and with one of the three.
pub fn both(case: impl AsyncFn(Client)) {
    run(async {
        for places in [&CLUSTERS.one, &CLUSTERS.three] {
            case(connect(places).await).await;
        }
    });
}

/// Runs a case that is about the three alone.
pub fn of_three(case: impl AsyncFn(Client)) {
    run(async { case(connect(&CLUSTERS.three).await).await });
}

pub fn run(case: impl Future<Output = ()>) {
    let runtime = Runtime::new().expect("a runtime");
    runtime
        .block_on(async { timeout(6 * PATIENCE, case).await })
        .expect("the case ends");
}

/// What comes must come in time.
pub async fn soon<T>(what: impl Future<Output = T>) -> T {
    timeout(PATIENCE, what).await.expect("it comes in time")
}

/// Waits until something is so, whatever goes wrong meanwhile.
pub async fn eventually<T>(
    what: &str,
    mut done: impl AsyncFnMut() -> Result<Option<T>, Error>,
) -> T {
    let deadline = Instant::now() + PATIENCE;
    let mut last = None;
    while Instant::now() < deadline {
        match timeout(PATIENCE, done()).await {
            Ok(Ok(Some(found))) => return found,
            Ok(Ok(None)) => {}
            Ok(Err(error)) => last = Some(error),
            Err(_) => break,
        }
        sleep(Duration::from_millis(20)).await;
    }
    panic!("{what}: not in time; {last:?}");
}

/// A call must fail, with etcd's code and text.
#[track_caller]
pub fn refused<T: std::fmt::Debug>(code: Code, text: &str, answer: Result<T, Error>) {
    match answer {
        Err(Error::GRpcStatus(status)) => {
            assert_eq!((status.code(), status.message()), (code, text))
        }
        other => panic!("{other:?} instead of {text}"),
    }
}

/// Puts keys, each with itself as its value; the revision of the last.
pub async fn put(client: &mut Client, keys: &[&str]) -> i64 {
    let mut revision = 0;
    for key in keys {
        let answer = client.put(*key, *key, None).await.expect("it is put");
        revision = answer.header().expect("a header").revision();
    }
    revision
}

/// The value of a key, if it is there.
pub async fn value(client: &mut Client, key: &str) -> Option<String> {
    let answer = client.get(key, None).await.expect("it is read");
    answer
        .kvs()
        .first()
        .map(|kv| kv.value_str().expect("text").to_owned())
}

/// The next response of a watch.
pub async fn next(watch: &mut WatchStream) -> WatchResponse {
    soon(watch.message())
        .await
        .expect("the stream is well")
        .expect("the stream goes on")
}

/// Events, of as many responses as it takes.
pub async fn events(watch: &mut WatchStream, count: usize) -> Vec<Event> {
    let mut all = Vec::new();
    while all.len() < count {
        all.extend(next(watch).await.events().to_vec());
    }
    all
}

pub fn keys_of(events: &[Event]) -> Vec<&str> {
    events
        .iter()
        .map(|event| event.kv().expect("a key").key_str().expect("text"))
        .collect()
}
