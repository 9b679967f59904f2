//! The file of settings: YAML (or JSON), whose keys are names of flags, with
//! a few blocks.

use saphyr::{LoadableYamlNode, Scalar, Yaml};

use super::{Form, Given, find};

/// Reads a file.
pub(super) fn read(path: &str, said: &mut Vec<String>) -> Result<Given, String> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| format!("--config-file {path:?} can't be read: {error}"))?;
    settings(&text, said).map_err(|reason| format!("--config-file {path:?}: {reason}"))
}

fn settings(text: &str, said: &mut Vec<String>) -> Result<Given, String> {
    let documents = Yaml::load_from_str(text).map_err(|error| error.to_string())?;
    let mut given = Given::new();
    match &documents[..] {
        [] | [Yaml::Value(Scalar::Null)] => {}
        [Yaml::Mapping(all)] => {
            for (key, value) in all {
                let Some(key) = key.as_str() else {
                    return Err(format!("the key {key:?} is no text"));
                };
                match (key, value) {
                    (_, Yaml::Mapping(block)) => {
                        for (inner, value) in block {
                            let inner = inner.as_str().unwrap_or_default();
                            let name = in_block(key, inner)?;
                            take(&mut given, &name, &format!("{key}.{inner}"), value, said)?;
                        }
                    }
                    _ => take(&mut given, key, key, value, said)?,
                }
            }
        }
        _ => return Err("it is no list of settings".to_owned()),
    }
    Ok(given)
}

/// The flag that a key in a block stands for.
fn in_block(block: &str, key: &str) -> Result<String, String> {
    let flag = match (block, key) {
        ("client-transport-security", "allowed-cn" | "allowed-hostname") => {
            "client-cert-allowed-hostname"
        }
        ("peer-transport-security", "allowed-cn") => "peer-cert-allowed-cn",
        ("peer-transport-security", "allowed-hostname") => "peer-cert-allowed-hostname",
        ("client-transport-security", "skip-client-san-verification") => {
            "peer-skip-client-san-verification"
        }
        ("client-transport-security", "crl-file") => "client-crl-file",
        ("client-transport-security", key) => key,
        ("peer-transport-security", key) => return known(block, &format!("peer-{key}")),
        ("discovery-config", key) if key.starts_with("discovery-") => key,
        ("discovery-config", key) => return known(block, &format!("discovery-{key}")),
        ("socket-options", key) => return known(block, &format!("socket-{key}")),
        _ => return Err(format!("{block} is no block of settings")),
    };
    known(block, flag)
}

/// What is in these blocks is about safety: nothing in them is passed over.
fn known(block: &str, flag: &str) -> Result<String, String> {
    match find(flag) {
        Some(flag) => Ok(flag.name.to_owned()),
        None => Err(format!("in {block} there is something unknown ({flag})")),
    }
}

fn take(
    given: &mut Given,
    name: &str,
    key: &str,
    value: &Yaml<'_>,
    said: &mut Vec<String>,
) -> Result<(), String> {
    let Some(flag) = find(name) else {
        said.push(format!("the setting {key} is not known, and ignored"));
        return Ok(());
    };
    let text = match value {
        Yaml::Value(Scalar::Null) => return Ok(()),
        Yaml::Value(Scalar::Integer(nanos)) if flag.form == Form::Time => format!("{nanos}ns"),
        Yaml::Sequence(parts) => {
            let parts = parts.iter().map(plain).collect::<Option<Vec<_>>>();
            let parts = parts.ok_or_else(|| format!("{key} is no list of texts"))?;
            parts.join(",")
        }
        value => plain(value).ok_or_else(|| format!("{key} has no value that it could have"))?,
    };
    given.insert(flag.name, text);
    Ok(())
}

fn plain(value: &Yaml<'_>) -> Option<String> {
    match value {
        Yaml::Value(Scalar::Boolean(value)) => Some(value.to_string()),
        Yaml::Value(Scalar::Integer(value)) => Some(value.to_string()),
        Yaml::Value(Scalar::FloatingPoint(value)) => Some(value.to_string()),
        Yaml::Value(Scalar::String(value)) => Some(value.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::{Parsed, Usage, parse};
    use crate::config::{Config, LogOutput};

    fn run(text: &str, arguments: &[&str]) -> Result<(Config, Vec<String>), String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("settings.yml");
        std::fs::write(&path, text).unwrap();
        let file = format!("--config-file={}", path.display());
        let arguments = arguments.iter().map(|argument| (*argument).to_owned());
        match parse(Config::default(), arguments.chain([file]), []) {
            Ok(Parsed::Run(config, said)) => Ok((*config, said)),
            Err(Usage::Wrong(reason)) => Err(reason),
            other => panic!("{other:?}"),
        }
    }

    /// As k3s and etcd-druid write it.
    #[test]
    fn files_of_deployers_are_read() {
        let text = "
            name: node-1
            data-dir: /var/lib/etcd
            listen-client-urls: http://127.0.0.1:2379,http://10.0.0.1:2379
            advertise-client-urls: http://10.0.0.1:2379
            snapshot-count: 10000
            heartbeat-interval: 500
            election-timeout: 5000
            logger: zap
            log-outputs: [stderr, stdout]
            socket-options: {reuse-port: true, reuse-address: true}
            client-transport-security: {client-cert-auth: false, cert-file: \"\"}
            experimental-initial-corrupt-check: true
            experimental-watch-progress-notify-interval: 5000000000
            auto-compaction-retention: \"30m\"
            quota-backend-bytes: 8589934592
            enable-grpc-gateway: true
            something-new: 1
        ";
        let (config, said) = run(text, &[]).unwrap();
        assert_eq!(config.name, "node-1");
        assert_eq!((config.heartbeat_ms, config.election_ms), (500, 5000));
        assert_eq!(config.quota_bytes, 8 << 30);
        assert_eq!(config.progress_notify, Duration::from_secs(5));
        assert_eq!(config.log_outputs, [LogOutput::Stderr, LogOutput::Stdout]);
        assert!(config.reuse_port);
        let unknown = said.iter().filter(|line| line.contains("something-new"));
        assert_eq!(unknown.count(), 1, "{said:?}");
    }

    /// The keys and values of the sample that etcd 3.7 comes with.
    #[test]
    fn etcds_sample_is_read() {
        let text = "
            name: 'default'
            data-dir:
            wal-dir:
            snapshot-count: 10000
            heartbeat-interval: 100
            election-timeout: 1000
            quota-backend-bytes: 0
            listen-peer-urls: http://localhost:2380
            listen-client-urls: http://localhost:2379
            max-snapshots: 5
            max-wals: 5
            cors:
            initial-advertise-peer-urls: http://localhost:2380
            advertise-client-urls: http://localhost:2379
            discovery:
            discovery-fallback: 'proxy'
            discovery-proxy:
            discovery-srv:
            initial-cluster:
            initial-cluster-token: 'etcd-cluster'
            initial-cluster-state: 'new'
            strict-reconfig-check: false
            enable-pprof: true
            proxy: 'off'
            proxy-failure-wait: 5000
            proxy-refresh-interval: 30000
            proxy-dial-timeout: 1000
            proxy-write-timeout: 5000
            proxy-read-timeout: 0
            client-transport-security:
              cert-file:
              key-file:
              client-cert-auth: false
              trusted-ca-file:
              auto-tls: false
            peer-transport-security:
              cert-file:
              key-file:
              client-cert-auth: false
              trusted-ca-file:
              auto-tls: false
            self-signed-cert-validity: 1
            log-level: debug
            logger: zap
            log-outputs: [stderr]
            force-new-cluster: false
            auto-compaction-mode: periodic
            auto-compaction-retention: \"1\"
            cipher-suites: [
              TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
              TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384
            ]
            tls-min-version: 'TLS1.2'
            tls-max-version: 'TLS1.3'
        ";
        let (config, said) = run(text, &[]).unwrap();
        assert_eq!(config.check(), Ok(()));
        assert!(!config.strict_reconfig);
        assert_eq!(config.log_level, "debug");
        assert_eq!(config.auto_compaction_retention, "1");
        let unknown = said.iter().filter(|line| line.contains("is not known"));
        assert_eq!(unknown.count(), 0, "{said:?}");
    }

    /// Every key of etcd's files, with the value that it has unless set.
    #[test]
    fn every_key_of_etcd_can_have_its_default() {
        let text = "
            name: default
            data-dir: x
            wal-dir:
            snapshot-count: 10000
            snapshot-catchup-entries: 5000
            max-wals: 5
            heartbeat-interval: 100
            election-timeout: 1000
            initial-election-tick-advance: true
            backend-batch-interval: 0
            backend-batch-limit: 0
            backend-bbolt-freelist-type: map
            quota-backend-bytes: 0
            max-txn-ops: 128
            max-request-bytes: 1572864
            max-concurrent-streams: 4294967295
            listen-peer-urls: http://localhost:2380
            listen-client-urls: http://localhost:2379
            listen-client-http-urls:
            initial-advertise-peer-urls: http://localhost:2380
            advertise-client-urls: http://localhost:2379
            client-transport-security:
              cert-file: \"\"
              key-file: \"\"
              client-cert-file: \"\"
              client-key-file: \"\"
              client-cert-auth: false
              trusted-ca-file: \"\"
              auto-tls: false
              allowed-cn: []
              allowed-hostname: []
              skip-client-san-verification: false
            peer-transport-security:
              cert-file: \"\"
              key-file: \"\"
              client-cert-file: \"\"
              client-key-file: \"\"
              client-cert-auth: false
              trusted-ca-file: \"\"
              auto-tls: false
              allowed-cn: []
              allowed-hostname: []
              skip-client-san-verification: false
            self-signed-cert-validity: 1
            cipher-suites: []
            tls-min-version: \"TLS1.2\"
            tls-max-version: \"\"
            initial-cluster-state: new
            discovery-srv:
            discovery-srv-name:
            discovery-config:
              discovery-token: \"\"
              discovery-endpoints: []
            initial-cluster: default=http://localhost:2380
            initial-cluster-token: etcd-cluster
            strict-reconfig-check: true
            auto-compaction-mode: periodic
            auto-compaction-retention: \"0\"
            grpc-keepalive-min-time: 5000000000
            grpc-keepalive-interval: 7200000000000
            grpc-keepalive-timeout: 20000000000
            socket-options: {reuse-port: false, reuse-address: false}
            pre-vote: true
            cors: \"*\"
            host-whitelist: \"*\"
            auth-token: simple
            bcrypt-cost: 10
            auth-token-ttl: 300
            corrupt-check-time: 0
            compact-hash-check-time: 60000000000
            compaction-batch-limit: 0
            compaction-sleep-interval: 0
            watch-progress-notify-interval: 0
            warning-apply-duration: 100000000
            warning-unary-request-duration: 300000000
            bootstrap-defrag-threshold-megabytes: 0
            max-learners: 1
            force-new-cluster: false
            enable-pprof: false
            metrics: basic
            listen-metrics-urls:
            enable-distributed-tracing: false
            distributed-tracing-address: localhost:4317
            distributed-tracing-service-name: etcd
            distributed-tracing-instance-id:
            distributed-tracing-sampling-rate: 0
            logger: zap
            log-level: info
            log-format: json
            log-outputs: [default]
            enable-log-rotation: false
            log-rotation-config-json: '{\"maxsize\": 100}'
            enable-grpc-gateway: true
            unsafe-no-fsync: false
            downgrade-check-time: 5000000000
            memory-mlock: false
            feature-gates: \"InitialCorruptCheck=false\"
        ";
        let (config, said) = run(text, &[]).unwrap();
        assert_eq!(config.check(), Ok(()));
        let unknown = said.iter().filter(|line| line.contains("is not known"));
        assert_eq!(unknown.count(), 0, "{said:?}");
    }

    #[test]
    fn it_counts_alone() {
        let (config, said) = run("max-txn-ops: 7", &["--name=a"]).unwrap();
        assert_eq!((config.name.as_str(), config.txn_ops_max), ("default", 7));
        assert!(said[0].contains("only --config-file counts"), "{said:?}");
        assert_eq!(run("", &[]).unwrap().0.txn_ops_max, 128);
        assert_eq!(run("{\"max-txn-ops\": 9}", &[]).unwrap().0.txn_ops_max, 9);
    }

    #[test]
    fn what_makes_no_sense_or_is_not_safe_is_refused() {
        for (text, part) in [
            ("a: [", "config-file"),
            ("- name", "no list of settings"),
            ("max-txn-ops: x", "max-txn-ops"),
            ("name: [{}]", "no list of texts"),
            ("config-file: x", "another"),
            ("client-transport-security: {cert-file: x}", "TLS"),
            ("peer-transport-security: {client-cert-auth: true}", "TLS"),
            ("peer-transport-security: {allowed-cn: [x]}", "TLS"),
            ("peer-transport-security: {novel: x}", "unknown"),
            ("discovery-config: {discovery-token: x}", "discovery"),
            ("something: {a: b}", "no block"),
        ] {
            let refused = run(text, &[]).unwrap_err();
            assert!(refused.contains(part), "{text}: {refused}");
        }
    }
}
