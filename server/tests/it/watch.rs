use std::time::Duration;

use bytes::Bytes;
use pontoon_api::etcdserverpb::watch_create_request::FilterType;
use pontoon_api::etcdserverpb::watch_request::RequestUnion;
use pontoon_api::etcdserverpb::{
    CompactionRequest, DeleteRangeRequest, WatchCancelRequest, WatchCreateRequest,
    WatchProgressRequest, WatchRequest, WatchResponse,
};
use pontoon_api::mvccpb::event::EventType;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::Streaming;

use crate::running::{Running, one, one_with, put, soon, three};

/// A stream of watches.
struct Watching {
    requests: mpsc::UnboundedSender<WatchRequest>,
    responses: Streaming<WatchResponse>,
}

impl Watching {
    async fn open(server: &Running) -> Self {
        let (requests, stream) = mpsc::unbounded_channel();
        let mut client = server.watch();
        let responses = client.watch(UnboundedReceiverStream::new(stream));
        Self {
            requests,
            responses: soon(responses).await.unwrap().into_inner(),
        }
    }

    fn ask(&self, request: RequestUnion) {
        let request = WatchRequest {
            request_union: Some(request),
        };
        self.requests.send(request).unwrap();
    }

    async fn next(&mut self) -> WatchResponse {
        soon(self.responses.message()).await.unwrap().unwrap()
    }

    /// Asks for a watch, and returns what it is told first.
    async fn create(&mut self, request: WatchCreateRequest) -> WatchResponse {
        self.ask(RequestUnion::CreateRequest(request));
        let created = self.next().await;
        assert!(created.created && created.events.is_empty(), "{created:?}");
        created
    }

    fn progress(&self) {
        self.ask(RequestUnion::ProgressRequest(WatchProgressRequest {}));
    }

    /// Asks for progress until it comes; nothing else may come before.
    async fn progressed(&mut self) -> i64 {
        loop {
            self.progress();
            let answer = tokio::time::timeout(Duration::from_millis(500), self.responses.message());
            let Ok(answer) = answer.await else {
                continue;
            };
            let answer = answer.unwrap().unwrap();
            assert!(
                answer.events.is_empty() && answer.watch_id == -1,
                "{answer:?}"
            );
            return answer.header.unwrap().revision;
        }
    }
}

fn of(key: &str) -> WatchCreateRequest {
    WatchCreateRequest {
        key: key.to_owned().into(),
        ..WatchCreateRequest::default()
    }
}

fn everything() -> WatchCreateRequest {
    WatchCreateRequest {
        key: "\0".into(),
        range_end: "\0".into(),
        ..WatchCreateRequest::default()
    }
}

fn told(response: &WatchResponse) -> Vec<(String, i64)> {
    let events = response.events.iter().map(|event| {
        let kv = event.kv.as_ref().unwrap();
        let sign = if event.r#type() == EventType::Put {
            '+'
        } else {
            '-'
        };
        let key = String::from_utf8_lossy(&kv.key);
        (format!("{sign}{key}"), kv.mod_revision)
    });
    events.collect()
}

async fn delete(server: &Running, key: &str) {
    let request = DeleteRangeRequest {
        key: key.to_owned().into(),
        ..DeleteRangeRequest::default()
    };
    server.kv().delete_range(request).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn events_come_in_order_after_the_watch_is_created() {
    let (server, _dir) = one().await;
    server.put("k", "0").await;
    let mut watching = Watching::open(&server).await;
    let created = watching.create(of("k")).await;
    assert_eq!((created.watch_id, created.header.unwrap().revision), (0, 2));
    server.put("k", "1").await;
    let response = watching.next().await;
    assert_eq!(told(&response), [("+k".to_owned(), 3)]);
    let header = response.header.unwrap();
    assert_eq!((response.watch_id, header.revision), (0, 3));
    assert!(header.cluster_id != 0 && header.raft_term > 0);
    delete(&server, "k").await;
    let response = watching.next().await;
    assert_eq!(told(&response), [("-k".to_owned(), 4)]);
    let kv = response.events[0].kv.clone().unwrap();
    assert_eq!((kv.create_revision, kv.version, kv.value.len()), (0, 0, 0));
    // Others are not heard of.
    server.put("other", "").await;
    server.put("k", "2").await;
    assert_eq!(told(&watching.next().await), [("+k".to_owned(), 6)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn history_is_told_from_where_it_was_asked() {
    let (server, _dir) = one().await;
    for at in 0..5 {
        server.put("k", &at.to_string()).await;
    }
    let mut watching = Watching::open(&server).await;
    let created = watching
        .create(WatchCreateRequest {
            start_revision: 3,
            prev_kv: true,
            ..of("k")
        })
        .await;
    assert_eq!(created.header.unwrap().revision, 6);
    let mut values = Vec::new();
    while values.len() < 4 {
        for event in watching.next().await.events {
            values.push((event.prev_kv.unwrap().value, event.kv.unwrap().value));
        }
    }
    let expected = ["0", "1", "2", "3", "4"].map(Bytes::from);
    let expected: Vec<_> = expected
        .windows(2)
        .map(|two| (two[0].clone(), two[1].clone()))
        .collect();
    assert_eq!(values, expected);
    // One that begins later hears nothing before.
    let later = WatchCreateRequest {
        start_revision: 8,
        ..of("k")
    };
    let mut watching = Watching::open(&server).await;
    watching.create(later).await;
    server.put("k", "7").await;
    watching.progress();
    server.put("k", "8").await;
    assert_eq!(told(&watching.next().await), [("+k".to_owned(), 8)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn ids_are_given_or_chosen() {
    let (server, _dir) = one().await;
    let mut watching = Watching::open(&server).await;
    assert_eq!(watching.create(of("a")).await.watch_id, 0);
    let chosen = |id| WatchCreateRequest {
        watch_id: id,
        ..of("b")
    };
    assert_eq!(watching.create(chosen(1)).await.watch_id, 1);
    assert_eq!(watching.create(of("c")).await.watch_id, 2);
    let refused = watching.create(chosen(1)).await;
    assert!(refused.canceled && refused.watch_id == -1);
    assert_eq!(
        refused.cancel_reason,
        "mvcc: duplicate watch ID provided on the WatchStream"
    );
    let empty = WatchCreateRequest {
        range_end: "a".into(),
        ..of("b")
    };
    let refused = watching.create(empty).await;
    assert_eq!(
        (refused.watch_id, refused.cancel_reason.as_str()),
        (-1, "mvcc: watcher range is empty")
    );
    let negative = WatchCreateRequest {
        start_revision: -1,
        ..of("b")
    };
    let refused = watching.create(negative).await;
    assert_eq!(
        (
            refused.canceled,
            refused.watch_id,
            refused.cancel_reason.as_str()
        ),
        (
            true,
            -1,
            "etcdserver: mvcc: required revision has been compacted"
        )
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_canceled_watch_is_silent() {
    let (server, _dir) = one().await;
    let mut watching = Watching::open(&server).await;
    watching.create(of("k")).await;
    watching.create(of("k")).await;
    let cancel = |watch_id| RequestUnion::CancelRequest(WatchCancelRequest { watch_id });
    // One that is not known gets no answer.
    watching.ask(cancel(77));
    watching.ask(cancel(0));
    let canceled = watching.next().await;
    assert_eq!(
        (canceled.watch_id, canceled.canceled, canceled.created),
        (0, true, false)
    );
    assert!(canceled.cancel_reason.is_empty() && canceled.compact_revision == 0);
    server.put("k", "1").await;
    server.put("k", "2").await;
    assert_eq!(watching.next().await.watch_id, 1);
    // Ids are not used twice.
    watching.ask(RequestUnion::CreateRequest(of("x")));
    loop {
        let next = watching.next().await;
        assert_ne!(next.watch_id, 0);
        if next.created {
            assert_eq!(next.watch_id, 2);
            break;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_below_the_floor_is_canceled() {
    let (server, _dir) = one().await;
    for value in ["1", "2", "3"] {
        server.put("k", value).await;
    }
    let compact = CompactionRequest {
        revision: 3,
        physical: false,
    };
    server.kv().compact(compact).await.unwrap();
    let mut watching = Watching::open(&server).await;
    let from = |start_revision| WatchCreateRequest {
        start_revision,
        ..of("k")
    };
    assert!(!watching.create(from(2)).await.canceled);
    let canceled = watching.next().await;
    assert_eq!(
        (
            canceled.canceled,
            canceled.compact_revision,
            canceled.watch_id
        ),
        (true, 3, 0)
    );
    assert_eq!(canceled.header.unwrap().revision, 0);
    assert!(canceled.cancel_reason.is_empty());
    // The client still cancels it, and is answered.
    watching.ask(RequestUnion::CancelRequest(WatchCancelRequest {
        watch_id: 0,
    }));
    let answer = watching.next().await;
    assert_eq!((answer.canceled, answer.compact_revision), (true, 0));
    watching.create(from(3)).await;
    assert_eq!(told(&watching.next().await)[0], ("+k".to_owned(), 3));
}

#[tokio::test(flavor = "multi_thread")]
async fn filters_leave_out_what_nobody_wants() {
    let (server, _dir) = one().await;
    let mut watching = Watching::open(&server).await;
    let without = |filter: FilterType| WatchCreateRequest {
        filters: vec![filter.into(), 99],
        ..of("k")
    };
    watching.create(without(FilterType::Noput)).await;
    watching.create(without(FilterType::Nodelete)).await;
    server.put("k", "").await;
    let response = watching.next().await;
    assert_eq!(
        (response.watch_id, told(&response)[0].0.as_str()),
        (1, "+k")
    );
    delete(&server, "k").await;
    let response = watching.next().await;
    assert_eq!(
        (response.watch_id, told(&response)[0].0.as_str()),
        (0, "-k")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn progress_is_told_after_everything_before_it() {
    let (server, _dir) = one().await;
    let mut watching = Watching::open(&server).await;
    // Nobody watches: nothing to tell.
    watching.progress();
    watching.create(of("a")).await;
    watching.create(everything()).await;
    assert_eq!(watching.progressed().await, 1);
    // One watcher hears of it, the other does not; both have passed it.
    for at in 2..50 {
        assert_eq!(server.put("b", "").await, at);
        watching.progress();
        let (mut events, mut progress) = (0, 0);
        while events < at || progress < at {
            let response = watching.next().await;
            let revision = response.header.unwrap().revision;
            match response.watch_id {
                -1 => {
                    assert!(revision >= events, "{revision} after events of {events}");
                    progress = revision;
                }
                _ => {
                    assert!(response.events[0].kv.as_ref().unwrap().mod_revision > progress);
                    events = told(&response).last().unwrap().1;
                }
            }
            if progress < at && events >= at {
                watching.progress();
            }
        }
    }
    // As long as one is in the future, there is no common progress.
    let later = WatchCreateRequest {
        start_revision: 1000,
        ..of("c")
    };
    let mut watching = Watching::open(&server).await;
    watching.create(later).await;
    watching.progress();
    // (The next thing that comes is what was asked for after it.)
    watching.create(of("d")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn quiet_watches_are_told_of_progress_by_themselves() {
    let (server, _dir) = one_with(|config| {
        config.progress_notify = Duration::from_millis(100);
    })
    .await;
    server.put("k", "").await;
    let mut watching = Watching::open(&server).await;
    let wanted = WatchCreateRequest {
        progress_notify: true,
        ..of("x")
    };
    watching.create(of("y")).await;
    watching.create(wanted).await;
    let progress = watching.next().await;
    assert_eq!((progress.watch_id, progress.events.len()), (1, 0));
    assert_eq!(progress.header.unwrap().revision, 2);
    server.put("k", "").await;
    loop {
        let progress = watching.next().await;
        assert_eq!((progress.watch_id, progress.events.len()), (1, 0));
        if progress.header.unwrap().revision == 3 {
            break;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn large_responses_come_in_pieces_if_asked_for() {
    let (server, _dir) = one_with(|config| config.request_bytes_max = 100_000).await;
    // More than the transport takes at once: 100,000 bytes and 512 KiB.
    for at in 0..12 {
        server.put(&format!("k{at:02}"), &"x".repeat(90_000)).await;
    }
    let txn_like = WatchCreateRequest {
        start_revision: 2,
        fragment: true,
        ..everything()
    };
    let mut watching = Watching::open(&server).await;
    watching.create(txn_like).await;
    let mut seen = Vec::new();
    while seen.len() < 12 {
        let response = watching.next().await;
        seen.extend(told(&response).into_iter().map(|(key, _)| key));
    }
    let expected: Vec<_> = (0..12).map(|at| format!("+k{at:02}")).collect();
    assert_eq!(seen, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_client_misses_nothing() {
    let (server, _dir) = one().await;
    let mut watching = Watching::open(&server).await;
    watching.create(everything()).await;
    let value = "x".repeat(10_000);
    for at in 0..600 {
        server
            .kv()
            .put(put(&format!("k{at}"), &value))
            .await
            .unwrap();
    }
    let mut next = 2;
    while next < 602 {
        for (_, revision) in told(&watching.next().await) {
            assert_eq!(revision, next);
            next += 1;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn watches_over_several_groups_and_members_are_whole() {
    let (members, _dir) = three(&["h", "p"]).await;
    let mut watching = Vec::new();
    for member in &members {
        let mut stream = Watching::open(member).await;
        stream.create(everything()).await;
        watching.push(stream);
    }
    let mut expected = Vec::new();
    for at in 0..30 {
        let key = ["a", "i", "q"][at % 3];
        let revision = members[at % 2].put(key, &at.to_string()).await;
        expected.push((format!("+{key}"), revision));
    }
    for stream in &mut watching {
        let mut seen = Vec::new();
        while seen.len() < expected.len() {
            seen.extend(told(&stream.next().await));
        }
        assert_eq!(seen, expected);
        // And progress reaches what was written last.
        soon(async { while stream.progressed().await < expected[29].1 {} }).await;
    }
}
