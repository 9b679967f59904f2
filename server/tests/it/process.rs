//! The program itself: its flags, variables, words and signals.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::running::{SOON, free_ports};

fn pontoon(dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pontoon"));
    command.current_dir(dir).env_clear().stdin(Stdio::null());
    command
}

fn run(dir: &Path, arguments: &[&str]) -> Output {
    pontoon(dir).args(arguments).output().unwrap()
}

/// Ended with the test.
struct Ending(Child);

impl Drop for Ending {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Ending {
    fn stop(mut self) -> bool {
        let id = self.0.id().to_string();
        let told = Command::new("kill").args(["-TERM", &id]).status().unwrap();
        assert!(told.success());
        let since = Instant::now();
        while since.elapsed() < SOON {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status.success();
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("it doesn't stop");
    }
}

#[test]
fn it_says_what_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let version = run(dir.path(), &["--version"]);
    assert!(version.status.success());
    let text = String::from_utf8(version.stdout).unwrap();
    assert!(text.starts_with("etcd Version: 3."), "{text}");
    assert_eq!(text.lines().count(), 4);
    let help = run(dir.path(), &["-h"]);
    assert!(help.status.success());
    assert!(
        String::from_utf8(help.stdout)
            .unwrap()
            .contains("--initial-cluster\n")
    );
    let unknown = run(dir.path(), &["--no-such-flag"]);
    assert_eq!(unknown.status.code(), Some(2));
    let text = String::from_utf8(unknown.stderr).unwrap();
    assert!(
        text.starts_with("flag provided but not defined: --no-such-flag"),
        "{text}"
    );
}

#[test]
fn what_is_refused_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let refused = [
        (&["--cert-file=server.crt"][..], "TLS is not served yet"),
        (&["--listen-peer-urls=https://127.0.0.1:0"], "only http"),
        (&["--force-new-cluster"], "can't be cut down"),
        (&["--discovery-token=x"], "--discovery-srv"),
        (&["--auth-token=jwt,pub-key=x"], "users and roles"),
        (&["--io-backend=fast"], "neither auto, uring nor syscalls"),
        (&["--config-file=missing.yml"], "can't be read"),
        (&["--log-outputs=no/such/dir/log"], "--log-outputs"),
    ];
    for (arguments, words) in refused {
        let ended = run(dir.path(), arguments);
        assert_eq!(ended.status.code(), Some(1), "{arguments:?}");
        let text = String::from_utf8(ended.stderr).unwrap();
        assert!(text.contains(words), "{arguments:?}: {text}");
    }
    assert!(dir.path().read_dir().unwrap().next().is_none());
}

/// One that is set up by variables and a file, as systemd would run it.
#[test]
fn it_runs_as_a_service() {
    let dir = tempfile::tempdir().unwrap();
    let ports = free_ports(2);
    let (client, peer) = (ports[0], ports[1]);
    let settings = format!(
        "name: m1\n\
         data-dir: data\n\
         listen-client-urls: http://127.0.0.1:{client}\n\
         advertise-client-urls: http://127.0.0.1:{client}\n\
         listen-peer-urls: http://127.0.0.1:{peer}\n\
         initial-advertise-peer-urls: http://127.0.0.1:{peer}\n\
         initial-cluster: m1=http://127.0.0.1:{peer}\n\
         warning-unary-request-duration: 1\n\
         logger: zap\n\
         log-format: json\n\
         log-outputs: [stdout, log]\n"
    );
    fs::write(dir.path().join("settings.yml"), settings).unwrap();
    let notify = UnixDatagram::bind(dir.path().join("notify")).unwrap();
    notify.set_read_timeout(Some(SOON)).unwrap();
    let child = pontoon(dir.path())
        .env("ETCD_CONFIG_FILE", "settings.yml")
        .env("NOTIFY_SOCKET", dir.path().join("notify"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let child = Ending(child);
    let told = || {
        let mut told = [0; 64];
        let bytes = notify.recv(&mut told).unwrap();
        String::from_utf8(told[..bytes].to_vec()).unwrap()
    };
    assert_eq!(told(), "READY=1");
    put(client);
    assert!(child.stop());
    assert_eq!(told(), "STOPPING=1");

    let log = fs::read_to_string(dir.path().join("log")).unwrap();
    for line in log.lines() {
        serde_json::from_str::<serde_json::Value>(line).unwrap_or_else(|_| panic!("{line}"));
    }
    for words in [
        "--logger has no effect",
        "ready to serve client requests",
        "Put took",
        "told to stop",
    ] {
        let said = log.lines().filter(|line| line.contains(words)).count();
        assert_eq!(said, 1, "{words}: {log}");
    }
}

fn put(port: u16) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(async {
        let at = format!("http://127.0.0.1:{port}");
        let channel = tonic::transport::Endpoint::from_shared(at)
            .unwrap()
            .connect()
            .await;
        let mut client = pontoon_api::etcdserverpb::kv_client::KvClient::new(channel.unwrap());
        client.put(crate::running::put("k", "v")).await.unwrap();
    });
}
