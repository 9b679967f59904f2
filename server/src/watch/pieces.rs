//! Large responses in pieces, for clients that asked for that.

use pontoon_api::encoded::WatchResponse;
use prost::Message;

/// Cuts a response of `bytes_max` or more; all pieces but the last say so.
pub(super) fn cut(response: WatchResponse, bytes_max: usize) -> Vec<WatchResponse> {
    if response.encoded_len() < bytes_max || response.events.len() < 2 {
        return vec![response];
    }
    let empty = WatchResponse {
        events: Vec::new(),
        ..response.clone()
    };
    let mut pieces = vec![empty.clone()];
    let (base, mut bytes) = (empty.encoded_len(), empty.encoded_len());
    for event in response.events {
        // A tag, a length, and the event.
        let more = event.len() + 6;
        let piece = pieces.last_mut().expect("there is always one");
        if bytes + more >= bytes_max && !piece.events.is_empty() {
            piece.fragment = true;
            bytes = base;
            pieces.push(WatchResponse {
                events: vec![event],
                ..empty.clone()
            });
        } else {
            piece.events.push(event);
        }
        bytes += more;
    }
    pieces
}

#[cfg(test)]
mod tests {
    use pontoon_api::mvccpb::{Event, KeyValue};

    use super::*;

    fn response(events: usize, bytes: usize) -> WatchResponse {
        let event = |at: usize| Event {
            kv: Some(KeyValue {
                key: at.to_string().into(),
                value: vec![0; bytes].into(),
                ..KeyValue::default()
            }),
            ..Event::default()
        };
        let event = |at| event(at).encode_to_vec().into();
        WatchResponse {
            watch_id: 7,
            events: (0..events).map(event).collect(),
            ..WatchResponse::default()
        }
    }

    #[test]
    fn pieces_are_small_and_together_the_whole() {
        let whole = response(10, 300);
        let pieces = cut(whole.clone(), 1000);
        assert!(pieces.len() > 1);
        let (last, others) = pieces.split_last().unwrap();
        assert!(!last.fragment && others.iter().all(|piece| piece.fragment));
        for piece in &pieces {
            assert_eq!(piece.watch_id, 7);
            assert!(piece.encoded_len() < 1000 && !piece.events.is_empty());
        }
        let events: Vec<_> = pieces.into_iter().flat_map(|piece| piece.events).collect();
        assert_eq!(events, whole.events);
    }

    #[test]
    fn what_is_small_or_one_event_stays_whole() {
        assert_eq!(cut(response(3, 10), 1000), [response(3, 10)]);
        assert_eq!(cut(response(1, 3000), 1000), [response(1, 3000)]);
        let pieces = cut(response(2, 3000), 1000);
        assert_eq!(pieces.len(), 2);
    }
}
