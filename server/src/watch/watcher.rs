//! One watcher of a stream.

use std::sync::Arc;

use bytes::Bytes;
use pontoon_api::etcdserverpb::WatchCreateRequest;
use pontoon_api::etcdserverpb::watch_create_request::FilterType;
use pontoon_engine::{Event, EventKind, KeyRange, Revision};
use pontoon_raftgroup::{Node, Watch, WatchStream};
use tokio::sync::Notify;

use super::encoded::encoded;

pub(super) struct Watcher {
    pub(super) id: i64,
    pub(super) serial: u64,
    pub(super) stream: WatchStream,
    pub(super) nudge: Arc<Notify>,
    pub(super) progress_notify: bool,
    pub(super) fragment: bool,
    /// Whether it had events since its stream last told of progress.
    pub(super) has_sent: bool,
    /// 0: from when it was created.
    start: Revision,
    /// Whether it still has to be told what was there before it.
    in_past: bool,
    no_put: bool,
    no_delete: bool,
}

impl Watcher {
    pub(super) fn new(
        node: &Node,
        id: i64,
        serial: u64,
        keys: KeyRange,
        request: &WatchCreateRequest,
        newest: Revision,
        nudge: Arc<Notify>,
    ) -> Self {
        let start = Revision(request.start_revision);
        let filtered = |filter: FilterType| request.filters.contains(&filter.into());
        let stream = node.watch(Watch {
            keys,
            from: if start.0 == 0 { newest.next() } else { start },
            prev_kv: request.prev_kv,
        });
        Self {
            id,
            serial,
            stream,
            nudge,
            progress_notify: request.progress_notify,
            fragment: request.fragment,
            has_sent: false,
            start,
            in_past: start.0 > 0 && start <= newest,
            no_put: filtered(FilterType::Noput),
            no_delete: filtered(FilterType::Nodelete),
        }
    }

    /// The revision in the header over events up to `last`: theirs, or the
    /// newest one while there is more to tell.
    pub(super) fn tells(&mut self, last: Revision, newest: Revision) -> Revision {
        let caught_up = self.stream.delivered() >= newest;
        let tells_last = caught_up && !self.in_past;
        self.in_past &= !caught_up;
        if tells_last { last } else { newest }
    }

    /// Whether it begins above a revision.
    pub(super) fn is_future(&self, revision: Revision) -> bool {
        self.start > revision
    }

    /// What it wants to hear of, encoded.
    pub(super) fn wanted(&self, events: Vec<Event>) -> Vec<Bytes> {
        let wanted = events.into_iter().filter(|event| match event.kind {
            EventKind::Put => !self.no_put,
            EventKind::Delete => !self.no_delete,
        });
        wanted.map(encoded).collect()
    }
}
