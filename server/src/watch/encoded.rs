//! Events as bytes, encoded once for all watchers on a thread.
//!
//! Kept true: a change never becomes another one, so what is remembered of it
//! is what it would be encoded to again; only its previous version may be gone
//! by then, and counts in what it is remembered by. Memory is bounded.

use std::cell::RefCell;

use bytes::Bytes;
use pontoon_engine::{Change, Event};
use prost::Message;

use crate::convert;

/// Events that are remembered, by their number the newest ones.
const EVENTS_MAX: usize = 1 << 10;
/// Larger ones are encoded again: what that costs is mostly copying.
const EVENT_BYTES_MAX: usize = 4 << 10;

/// A change, and whether its previous version is with it.
type Name = (Change, bool);

thread_local! {
    static REMEMBERED: RefCell<Vec<Option<(Name, Bytes)>>> =
        RefCell::new(vec![None; EVENTS_MAX]);
}

/// An event as etcd says it.
pub(super) fn encoded(event: Event) -> Bytes {
    let name = (event.change, event.prev_kv.is_some());
    let Change { revision, sub } = event.change;
    let place = (revision.0 as usize).wrapping_add(sub as usize) % EVENTS_MAX;
    REMEMBERED.with_borrow_mut(|remembered| match &remembered[place] {
        Some((known, bytes)) if *known == name => bytes.clone(),
        _ => {
            let bytes = Bytes::from(convert::event(event).encode_to_vec());
            if bytes.len() <= EVENT_BYTES_MAX {
                remembered[place] = Some((name, bytes.clone()));
            }
            bytes
        }
    })
}

#[cfg(test)]
mod tests {
    use pontoon_api::mvccpb;
    use pontoon_engine::{EventKind, KeyValue, Revision};

    use super::*;

    fn event(revision: i64, sub: u32, prev: bool, bytes: usize) -> Event {
        let revision = Revision(revision);
        let kv = KeyValue {
            key: format!("{sub}").into(),
            value: vec![b'v'; bytes].into(),
            create: revision,
            modified: revision,
            version: 1,
            lease: 0,
        };
        Event {
            change: Change { revision, sub },
            kind: EventKind::Put,
            prev_kv: prev.then(|| kv.clone()),
            kv,
        }
    }

    #[test]
    fn every_event_is_encoded_as_itself() {
        let far = EVENTS_MAX as i64;
        for _ in 0..2 {
            for revision in [7, 8, 7 + far, 7 + 2 * far] {
                for (sub, prev) in [(0, false), (1, false), (1, true)] {
                    let event = event(revision, sub, prev, 10);
                    let expected = convert::event(event.clone());
                    let found = mvccpb::Event::decode(encoded(event));
                    assert_eq!(found, Ok(expected));
                }
            }
        }
    }

    #[test]
    fn small_ones_are_encoded_once_and_large_ones_not_kept() {
        let address = |bytes| encoded(event(99, 0, false, bytes)).as_ptr();
        assert_eq!(address(10), address(10));
        let (first, second) = (
            encoded(event(100, 0, false, 9000)),
            encoded(event(100, 0, false, 9000)),
        );
        assert_ne!(first.as_ptr(), second.as_ptr());
        assert_eq!(first, second);
    }
}
