//! What is counted besides calls and bytes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::{Mutex, RwLock};
use pontoon_wal::Histogram;

use crate::calls::Shape;

/// Versions of clients, and reasons, that are told apart; clients choose
/// them, so there must be a limit.
const TEXTS_MAX: usize = 16;
const OTHER: &str = "other";

/// Counts since the start.
#[derive(Default)]
pub(crate) struct Tallies {
    pub(crate) leader_changes: AtomicU64,
    pub(crate) events: AtomicU64,
    pub(crate) watch_streams: Arc<AtomicU64>,
    pub(crate) watchers: Arc<AtomicU64>,
    pub(crate) defrags: Arc<AtomicU64>,
    pub(crate) defrag_took: Histogram,
    pub(crate) hash_took: Histogram,
    pub(crate) hash_kv_took: Histogram,
    /// Transactions of more than one step, and the ranges in all of them.
    pub(crate) txns: AtomicU64,
    pub(crate) txn_ranges: AtomicU64,
    pub(crate) watch_sends: WatchSends,
    /// Streams of clients that broke off.
    pub(crate) watch_failures: AtomicU64,
    pub(crate) keep_alive_failures: AtomicU64,
    /// Unary calls and streams by the version that the client has.
    requests: RwLock<BTreeMap<String, [AtomicU64; 2]>>,
    health_success: AtomicU64,
    health_failures: AtomicU64,
    checks: Mutex<BTreeMap<(&'static str, &'static str), Checked>>,
    promoted: AtomicU64,
    not_promoted: Mutex<BTreeMap<String, u64>>,
}

/// How long responses of watch streams took until they had a place in the
/// queue of their client.
#[derive(Default)]
pub(crate) struct WatchSends {
    /// Of events, all that a watcher had at a time.
    pub(crate) events: Histogram,
    /// The same for one event, on average.
    pub(crate) event: Histogram,
    /// Of answers to requests.
    pub(crate) control: Histogram,
    /// Of signs of progress, of all watchers of a stream.
    pub(crate) progress: Histogram,
}

/// Counted as long as it is there.
pub(crate) struct Present(Arc<AtomicU64>);

impl Present {
    pub(crate) fn new(count: &Arc<AtomicU64>) -> Self {
        count.fetch_add(1, Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for Present {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

#[derive(Clone, Copy, Default)]
struct Checked {
    last: bool,
    passed: u64,
    failed: u64,
}

impl Tallies {
    /// A client of this version asks.
    pub(crate) fn request(&self, shape: Shape, version: &str) {
        let at = usize::from(shape != Shape::Unary);
        {
            let requests = self.requests.read();
            let full = requests.len() >= TEXTS_MAX;
            let known = requests.get(version);
            if let Some(counts) = known.or_else(|| requests.get(OTHER).filter(|_| full)) {
                counts[at].fetch_add(1, Relaxed);
                return;
            }
        }
        let mut requests = self.requests.write();
        let name = match requests.len() + 1 < TEXTS_MAX {
            true => version,
            false => OTHER,
        };
        let counts = requests.entry(name.to_owned()).or_default();
        counts[at].fetch_add(1, Relaxed);
    }

    pub(crate) fn health(&self, is_well: bool) {
        let count = match is_well {
            true => &self.health_success,
            false => &self.health_failures,
        };
        count.fetch_add(1, Relaxed);
    }

    pub(crate) fn check(&self, page: &'static str, name: &'static str, passed: bool) {
        let mut checks = self.checks.lock();
        let checked = checks.entry((page, name)).or_default();
        checked.last = passed;
        checked.passed += u64::from(passed);
        checked.failed += u64::from(!passed);
    }

    pub(crate) fn promoted(&self, refused: Option<&str>) {
        let Some(reason) = refused else {
            self.promoted.fetch_add(1, Relaxed);
            return;
        };
        let mut reasons = self.not_promoted.lock();
        let known = reasons.contains_key(reason) || reasons.len() + 1 < TEXTS_MAX;
        let reason = if known { reason } else { OTHER };
        *reasons.entry(reason.to_owned()).or_default() += 1;
    }

    /// Gives names of metrics, each with its labels and values.
    pub(crate) fn write(&self, mut give: impl FnMut(&str, Vec<(String, u64)>)) {
        let requests = self.requests.read();
        let lines = requests.iter().flat_map(|(version, counts)| {
            ["unary", "stream"]
                .into_iter()
                .zip(counts)
                .map(move |(kind, count)| {
                    let version = super::escaped(version);
                    let labels = format!("client_api_version=\"{version}\",type=\"{kind}\"");
                    (labels, count.load(Relaxed))
                })
        });
        give("etcd_server_client_requests_total", lines.collect());
        let one = |count: &AtomicU64| vec![(String::new(), count.load(Relaxed))];
        give("etcd_server_health_success", one(&self.health_success));
        give("etcd_server_health_failures", one(&self.health_failures));
        let checks = self.checks.lock().clone();
        let lines = checks.iter().map(|((page, name), checked)| {
            let labels = format!("name=\"{name}\",type=\"{page}\"");
            (labels, u64::from(checked.last))
        });
        give("etcd_server_healthcheck", lines.collect());
        let lines = checks.iter().flat_map(|((page, name), checked)| {
            let counts = [("success", checked.passed), ("error", checked.failed)];
            counts.map(|(status, count)| {
                let labels = format!("name=\"{name}\",status=\"{status}\",type=\"{page}\"");
                (labels, count)
            })
        });
        give("etcd_server_healthchecks_total", lines.collect());
        give("etcd_server_learner_promote_successes", one(&self.promoted));
        let reasons = self.not_promoted.lock();
        let lines = reasons.iter().map(|(reason, count)| {
            let reason = super::escaped(reason);
            (format!("Reason=\"{reason}\""), *count)
        });
        give("etcd_server_learner_promote_failures", lines.collect());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_can_not_make_the_page_longer_and_longer() {
        let tallies = Tallies::default();
        for at in 0..1000 {
            tallies.request(Shape::Unary, &at.to_string());
            tallies.promoted(Some(&at.to_string()));
        }
        tallies.request(Shape::BidiStream, "3");
        let mut lines = BTreeMap::new();
        tallies.write(|name, found| {
            lines.insert(name.to_owned(), found);
        });
        let requests = &lines["etcd_server_client_requests_total"];
        assert_eq!(requests.len(), 2 * TEXTS_MAX);
        assert_eq!(requests.iter().map(|(_, count)| count).sum::<u64>(), 1001);
        let third = "client_api_version=\"3\",type=\"stream\"".to_owned();
        assert!(requests.contains(&(third, 1)));
        assert_eq!(
            lines["etcd_server_learner_promote_failures"].len(),
            TEXTS_MAX
        );
    }
}
