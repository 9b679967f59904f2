//! What a cluster asks, without a store.

use std::collections::HashMap;
use std::sync::OnceLock;

use rand::SeedableRng;

use super::super::draw::Spread;
use super::super::templates::Keys;
use super::super::values::ValueSizes;
use super::super::workload::Client;
use super::*;

#[test]
fn rates_are_those_of_a_cluster() {
    let cluster = Cluster::new(5000, "/p");
    let rates: HashMap<_, _> = cluster.rates().into_iter().collect();
    assert_eq!(rates["lease renewal"], 500.0);
    let near = |name: &str, rate: f64| assert!((rates[name] - rate).abs() < 0.1, "{name}");
    near("node status", 16.7);
    // 16.7 pods per second.
    near("pod write", 133.3);
    near("event", 100.0);
    near("other write", 66.7);
    near("get", 116.7);
}

#[test]
fn resources_are_where_kubernetes_has_them_and_below_the_prefix() {
    let cluster = Cluster::new(1, "/p");
    assert_eq!(
        cluster.key(Kind::Lease, 7),
        "/p/registry/leases/kube-node-lease/node-000007"
    );
    let watched = cluster.watched();
    assert_eq!(watched.len(), 6);
    for kind in Kind::ALL {
        let key = cluster.key(kind, 123_456);
        let seen = |watched: &Watched| watched.first <= key && key < watched.end;
        let by: Vec<_> = watched.iter().filter(|watched| seen(watched)).collect();
        assert_eq!(by.len(), 1);
        assert_eq!(by[0].topic, kind as usize);
    }
}

/// Lets actors ask for a time and answers nothing; counts what they asked.
#[test]
fn actors_ask_at_the_rates_of_the_cluster() {
    let cluster = Arc::new(Cluster::new(600, "/p"));
    *cluster.world.lock() = Some(Arc::new(World::empty(&cluster)));
    let clients = 11;
    let plan = Plan {
        keys: Keys::new("", 1, ValueSizes::Fixed(1)),
        spread: Spread::Uniform,
        clients,
        limit: 0,
        read_percent: 0,
        lease_ttl_secs: 1,
        seed: 1,
        origin: std::time::Instant::now(),
        revisions: Vec::new(),
        history: (0, 0),
        expiries: Arc::default(),
        cluster: None,
        puts: OnceLock::new(),
        swaps: OnceLock::new(),
    };
    let seconds = 600;
    let mut counts = [0u32; CLASSES.len()];
    for number in 0..clients {
        let rng = SmallRng::seed_from_u64(number as u64);
        let mut actor = cluster.client(&plan, number, rng);
        while actor
            .due()
            .is_some_and(|due| due < Duration::from_secs(seconds))
        {
            counts[actor.ask().class] += 1;
        }
    }
    for (class, (name, rate)) in cluster.rates().into_iter().enumerate() {
        let expected = rate * seconds as f64;
        let off = (f64::from(counts[class]) - expected).abs() / expected;
        assert!(off < 0.1, "{name}: {} of {expected}", counts[class]);
    }
    // Pods and nodes, once a minute, a page each since nothing is answered.
    assert_eq!(counts[class::PAGE], 20);
}
