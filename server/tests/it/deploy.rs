//! The files that deployers take from `docs/deploy` fit this server.

use std::process::Command;

use pontoon_server::{Config, Parsed, parse};
use saphyr::{LoadableYamlNode, Yaml};

fn read(name: &str) -> String {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(root.join("../docs/deploy").join(name)).unwrap()
}

#[test]
fn the_static_pod_has_flags_that_are_honoured() {
    let text = read("static-pod.yaml").replace("NODE_IP", "10.0.0.1");
    let pod = &Yaml::load_from_str(&text).unwrap()[0];
    let container = &pod["spec"]["containers"][0];
    let mut command = container["command"].as_vec().unwrap().iter();
    assert_eq!(command.next().unwrap().as_str(), Some("etcd"));
    let arguments = command.map(|argument| argument.as_str().unwrap().to_owned());
    let Ok(Parsed::Run(config, said)) = parse(Config::default(), arguments, []) else {
        panic!("its flags are refused");
    };
    config.check().unwrap();
    // The gate that kubeadm sets.
    assert_eq!(said.len(), 1, "{said:?}");
    for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
        assert_eq!(container[probe]["httpGet"]["port"].as_integer(), Some(2381));
    }
}

/// A server does its work when nothing but the profile's calls are allowed.
#[test]
fn the_profile_allows_what_is_needed() {
    let child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "deploy::inside_the_profile",
            "--ignored",
            "--nocapture",
        ])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout);
    let complained = String::from_utf8_lossy(&child.stderr);
    assert!(child.status.success(), "{said}{complained}");
    assert!(said.contains("served inside the profile"), "{said}");
    // Where the kernel has it, io_uring is used.
    let has_ring = said.contains("outside: io_uring");
    assert_eq!(said.contains("inside: io_uring"), has_ring, "{said}");
}

#[test]
#[ignore = "started by the test above, in a process of its own"]
fn inside_the_profile() {
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.enable_all().build().unwrap()
    };
    let dir = tempfile::tempdir().unwrap();
    let outside = pontoon_wal::disk::RealDisk::new(pontoon_wal::disk::Backend::Auto, dir.path());
    let outside = pontoon_wal::disk::Disk::describe(&outside.unwrap());
    println!("outside: {outside}");
    apply(&read("seccomp.json"));
    runtime().block_on(async {
        let (server, _dir) = crate::running::one().await;
        server.put("k", "v").await;
        assert_eq!(server.get("k").await.unwrap(), "v");
        let welcome = server.server.welcome();
        let io = welcome.lines().find_map(|line| line.strip_prefix("io "));
        println!("inside: {}", io.unwrap().trim());
        server.server.stop().await;
    });
    println!("served inside the profile");
}

/// From the profile of container runtimes to the one of seccompiler.
fn apply(profile: &str) {
    let profile: serde_json::Value = serde_json::from_str(profile).unwrap();
    assert_eq!(profile["defaultAction"], "SCMP_ACT_ERRNO");
    let arch = std::env::consts::ARCH.try_into().unwrap();
    let known = |name: &&serde_json::Value| {
        let one = serde_json::json!({"x": {
            "mismatch_action": "allow", "match_action": "trap", "filter": [{"syscall": name}],
        }});
        // Other machines have calls that this one hasn't.
        seccompiler::compile_from_json(one.to_string().as_bytes(), arch).is_ok()
    };
    let names = profile["syscalls"][0]["names"].as_array().unwrap();
    let allowed = names.iter().filter(known);
    let allowed: Vec<_> = allowed
        .map(|name| serde_json::json!({"syscall": name}))
        .collect();
    let filter = serde_json::json!({"x": {
        "mismatch_action": {"errno": 1}, "match_action": "allow", "filter": allowed,
    }});
    let text = filter.to_string();
    let programs = seccompiler::compile_from_json(text.as_bytes(), arch).unwrap();
    seccompiler::apply_filter_all_threads(&programs["x"]).unwrap();
}
