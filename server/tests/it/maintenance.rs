use pontoon_api::Error;
use pontoon_api::etcdserverpb::alarm_request::AlarmAction;
use pontoon_api::etcdserverpb::downgrade_request::DowngradeAction;
use pontoon_api::etcdserverpb::{
    AlarmRequest, AlarmType, CompactionRequest, DefragmentRequest, DeleteRangeRequest,
    DowngradeRequest, HashKvRequest, HashRequest, MoveLeaderRequest, SnapshotRequest,
    StatusRequest, StatusResponse,
};

use crate::running::{Running, one, put, three, until};

async fn status(server: &Running) -> StatusResponse {
    let status = server.maintenance().status(StatusRequest {}).await;
    status.unwrap().into_inner()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_status_tells_what_tools_look_for() {
    let (server, _dir) = one().await;
    server.put("k", "v").await;
    let status = status(&server).await;
    let header = status.header.unwrap();
    assert_eq!((status.leader, header.revision), (header.member_id, 2));
    assert!(status.version.starts_with("3.") && status.storage_version.starts_with("3."));
    assert!(status.db_size > 0 && status.db_size_in_use > 0 && status.db_size_quota > 0);
    assert!(status.raft_applied_index > 0 && status.raft_index >= status.raft_applied_index);
    assert_eq!(status.raft_term, header.raft_term);
    assert!(status.errors.is_empty() && !status.is_learner);
    assert!(status.downgrade_info.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn defragment_gives_free_space_back() {
    let (server, _dir) = one().await;
    for key in 0..64 {
        server.put(&format!("k{key}"), &"v".repeat(200_000)).await;
    }
    let full = status(&server).await.db_size;
    assert!(full > 12_000_000, "{full}");
    let all = DeleteRangeRequest {
        key: "k".into(),
        range_end: "l".into(),
        ..DeleteRangeRequest::default()
    };
    server.kv().delete_range(all).await.unwrap();
    let revision = server.put("k", "v").await;
    let compaction = CompactionRequest {
        revision,
        physical: true,
    };
    server.kv().compact(compaction).await.unwrap();
    let defragment = DefragmentRequest {};
    let defragmented = server.maintenance().defragment(defragment).await;
    assert!(defragmented.is_ok());
    let left = status(&server).await.db_size;
    assert!(left < full / 4, "{left} of {full} bytes are left");
}

#[tokio::test(flavor = "multi_thread")]
async fn alarms_are_raised_seen_and_ended() {
    let (server, _dir) = one().await;
    let alarm = |action: AlarmAction, member_id, alarm: AlarmType| {
        let mut maintenance = server.maintenance();
        async move {
            let request = AlarmRequest {
                action: action.into(),
                member_id,
                alarm: alarm.into(),
            };
            maintenance
                .alarm(request)
                .await
                .unwrap()
                .into_inner()
                .alarms
        }
    };
    let id = status(&server).await.header.unwrap().member_id;
    assert!(alarm(AlarmAction::Get, 0, AlarmType::None).await.is_empty());
    assert!(
        alarm(AlarmAction::Activate, id, AlarmType::None)
            .await
            .is_empty()
    );
    let raised = alarm(AlarmAction::Activate, id, AlarmType::Nospace).await;
    assert_eq!((raised.len(), raised[0].member_id), (1, id));
    assert_eq!(alarm(AlarmAction::Get, 0, AlarmType::None).await, raised);
    assert!(
        alarm(AlarmAction::Get, 0, AlarmType::Corrupt)
            .await
            .is_empty()
    );
    assert_eq!(
        status(&server).await.errors,
        [format!("memberID:{id} alarm:NOSPACE")]
    );
    let refused = server.kv().put(put("k", "")).await.unwrap_err();
    assert_eq!(refused.message(), Error::NoSpace.text());
    assert_eq!(
        alarm(AlarmAction::Deactivate, id, AlarmType::Nospace).await,
        raised
    );
    assert!(
        alarm(AlarmAction::Deactivate, id, AlarmType::Nospace)
            .await
            .is_empty()
    );
    server.put("k", "").await;
    alarm(AlarmAction::Activate, id, AlarmType::Corrupt).await;
    let refused = server.kv().put(put("k", "")).await.unwrap_err();
    assert_eq!(
        (refused.code(), refused.message()),
        (Error::Corrupt.code(), Error::Corrupt.text())
    );
    let compact = CompactionRequest {
        revision: 1,
        physical: false,
    };
    let refused = server.kv().compact(compact).await.unwrap_err();
    assert_eq!(refused.message(), Error::Corrupt.text());
    assert!(server.get("k").await.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn members_agree_on_what_they_hold() {
    let (members, _dir) = three(&["m"]).await;
    for at in 0..20 {
        let key = if at % 2 == 0 { "a" } else { "z" };
        members[at % 3].put(key, &at.to_string()).await;
    }
    let hash = |member: &Running, revision| {
        let mut maintenance = member.maintenance();
        async move { maintenance.hash_kv(HashKvRequest { revision }).await }
    };
    let revision = status(&members[0]).await.header.unwrap().revision;
    let mut hashes = Vec::new();
    for member in &members {
        // A member that lags behind says that the revision is to come.
        until(|| async { hash(member, revision).await.is_ok() }).await;
        let answer = hash(member, revision).await.unwrap().into_inner();
        assert_eq!(
            (answer.hash_revision, answer.compact_revision),
            (revision, -1)
        );
        hashes.push(answer.hash);
    }
    assert!(hashes.iter().all(|hash| *hash == hashes[0] && *hash != 0));
    let earlier = hash(&members[0], revision - 1).await.unwrap().into_inner();
    assert_ne!(earlier.hash, hashes[0]);
    // A compaction to it changes nothing.
    let compaction = CompactionRequest {
        revision,
        physical: true,
    };
    members[0].kv().compact(compaction).await.unwrap();
    until(|| async {
        let compacted = hash(&members[0], revision).await;
        compacted.is_ok_and(|answer| {
            let answer = answer.into_inner();
            assert_eq!(answer.hash, hashes[0]);
            answer.compact_revision == revision
        })
    })
    .await;
    let refused = hash(&members[0], revision + 1000).await.unwrap_err();
    assert_eq!(refused.message(), Error::FutureRev.text());
    let whole = members[0].maintenance().hash(HashRequest {}).await.unwrap();
    assert!(whole.into_inner().header.is_some());
    let defragmented = members[0]
        .maintenance()
        .defragment(DefragmentRequest {})
        .await;
    assert_eq!(defragmented.unwrap().into_inner().header, None);
    let refused = members[0].maintenance().snapshot(SnapshotRequest {}).await;
    assert_eq!(refused.unwrap_err().code(), tonic::Code::Unimplemented);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_leader_hands_over_to_whom_it_is_told() {
    let (members, _dir) = three(&[]).await;
    let mut ids = Vec::new();
    for member in &members {
        ids.push(status(member).await.header.unwrap().member_id);
    }
    let move_to = |member: &Running, target_id| {
        let mut maintenance = member.maintenance();
        async move {
            maintenance
                .move_leader(MoveLeaderRequest { target_id })
                .await
        }
    };
    let leader = status(&members[0]).await.leader;
    let leads = ids.iter().position(|id| *id == leader).unwrap();
    let other = (leads + 1) % 3;
    let refused = move_to(&members[other], ids[leads]).await.unwrap_err();
    assert_eq!(refused.message(), Error::NotLeader.text());
    let refused = move_to(&members[leads], 77).await.unwrap_err();
    assert_eq!(refused.message(), Error::BadLeaderTransferee.text());
    let moved = move_to(&members[leads], ids[other]).await.unwrap();
    assert_eq!(moved.into_inner().header, None);
    until(|| async {
        let mut agreed = true;
        for member in &members {
            agreed &= status(member).await.leader == ids[other];
        }
        agreed
    })
    .await;
    members[leads].put("k", "v").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn downgrades_are_checked_and_never_begun() {
    let (server, _dir) = one().await;
    let downgrade = |action: i32, version: &str| {
        let mut maintenance = server.maintenance();
        let request = DowngradeRequest {
            action,
            version: version.to_owned(),
        };
        async move { maintenance.downgrade(request).await }
    };
    let validate = DowngradeAction::Validate.into();
    let done = downgrade(validate, "3.6.0").await.unwrap().into_inner();
    assert_eq!(done.version, "3.7");
    let refused = downgrade(validate, "x").await.unwrap_err();
    assert_eq!(refused.message(), Error::WrongDowngradeVersionFormat.text());
    let refused = downgrade(validate, "3.5").await.unwrap_err();
    assert_eq!(
        refused.message(),
        Error::InvalidDowngradeTargetVersion.text()
    );
    assert!(downgrade(DowngradeAction::Cancel.into(), "").await.is_ok());
    let refused = downgrade(9, "3.6").await.unwrap_err();
    assert_eq!(refused.message(), Error::UnknownDowngradeAction.text());
    let refused = downgrade(DowngradeAction::Enable.into(), "3.6")
        .await
        .unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unimplemented);
}
