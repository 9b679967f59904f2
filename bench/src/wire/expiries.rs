//! When leases that nobody keeps alive any more are due to expire.
//!
//! Kept true: nothing counts as expired before it was due, so what an earlier
//! lease did to the same key is not taken for this one's end.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;

/// By the key that goes with the lease, as values tell time.
#[derive(Debug, Default)]
pub struct Expiries(Mutex<HashMap<Bytes, u64>>);

impl Expiries {
    /// A key is attached to another lease: it doesn't go with the last one.
    pub fn forget(&self, key: &[u8]) {
        self.0.lock().remove(key);
    }

    /// A lease is left alone, and so its key is due to go.
    pub fn expect(&self, key: Bytes, due: u64) {
        self.0.lock().insert(key, due);
    }

    /// Whether no lease is waited for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// A key is gone: how long after it was due to, if it was.
    pub fn gone(&self, key: &[u8], now: u64) -> Option<Duration> {
        let mut due = self.0.lock();
        let late = now.checked_sub(*due.get(key)?)?;
        due.remove(key);
        Some(Duration::from_nanos(late))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_go_late_or_on_time_and_only_once() {
        let expiries = Expiries::default();
        assert_eq!(expiries.gone(b"a", 100), None);
        expiries.expect("a".into(), 100);
        expiries.expect("b".into(), 100);
        assert_eq!(expiries.gone(b"a", 99), None, "that was another lease");
        assert_eq!(expiries.gone(b"a", 130), Some(Duration::from_nanos(30)));
        assert_eq!(expiries.gone(b"a", 131), None);
        expiries.forget(b"b");
        assert_eq!(expiries.gone(b"b", 130), None);
        assert!(expiries.is_empty());
    }
}
