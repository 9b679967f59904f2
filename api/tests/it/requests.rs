//! Requests as etcd's Go client encodes them are what our types read, and what
//! our types write is read as the same.

use std::fmt::Debug;

use bytes::Bytes;
use pontoon_api::authpb::{Permission, UserAddOptions, permission};
use pontoon_api::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use pontoon_api::etcdserverpb::range_request::{SortOrder, SortTarget};
use pontoon_api::etcdserverpb::request_op::Request;
use pontoon_api::etcdserverpb::watch_create_request::FilterType;
use pontoon_api::etcdserverpb::watch_request::RequestUnion;
use pontoon_api::etcdserverpb::*;
use prost::Message;

const RECORDED: &str = include_str!("../golden/requests.txt");

/// The lines of the recording, one after the other.
struct Recording(std::str::Lines<'static>);

impl Recording {
    fn next<M: Message + Default + PartialEq + Debug>(&mut self, method: &str, expected: M) {
        let line = self.0.next().expect("a line for every request");
        let (recorded, hex) = line.split_once(' ').unwrap();
        assert_eq!(recorded, format!("/etcdserverpb.{method}"));
        let bytes = bytes_of(hex);
        assert_eq!(M::decode(bytes.clone()).unwrap(), expected, "{method}");
        // Fields may come in another order, but not with other sizes.
        let ours = expected.encode_to_vec();
        assert_eq!(ours.len(), bytes.len(), "{method}");
        assert_eq!(M::decode(&ours[..]).unwrap(), expected, "{method}");
    }
}

#[test]
fn the_go_clients_requests_are_read() {
    let mut recording = Recording(RECORDED.lines());
    keys(&mut recording);
    leases_and_members(&mut recording);
    users(&mut recording);
    streams(&mut recording);
    assert_eq!(recording.0.next(), None);
}

fn keys(recording: &mut Recording) {
    recording.next(
        "KV/Range",
        RangeRequest {
            key: "a".into(),
            range_end: "b".into(),
            limit: 100,
            revision: 7,
            sort_order: SortOrder::Descend.into(),
            sort_target: SortTarget::Mod.into(),
            serializable: true,
            keys_only: true,
            count_only: false,
            min_mod_revision: 2,
            max_mod_revision: 3,
            min_create_revision: 4,
            max_create_revision: 5,
        },
    );
    recording.next(
        "KV/Range",
        RangeRequest {
            key: "p/".into(),
            range_end: "p0".into(),
            count_only: true,
            ..Default::default()
        },
    );
    recording.next(
        "KV/Put",
        PutRequest {
            key: "key".into(),
            value: "value".into(),
            lease: 0x1234,
            prev_kv: true,
            ..Default::default()
        },
    );
    recording.next(
        "KV/Put",
        PutRequest {
            key: "key".into(),
            ignore_value: true,
            ignore_lease: true,
            ..Default::default()
        },
    );
    recording.next(
        "KV/DeleteRange",
        DeleteRangeRequest {
            key: "a".into(),
            range_end: "\0".into(),
            prev_kv: true,
        },
    );
    recording.next("KV/Txn", txn());
    recording.next(
        "KV/Compact",
        CompactionRequest {
            revision: 7,
            physical: true,
        },
    );
}

fn txn() -> TxnRequest {
    let compare = |result: CompareResult, target: CompareTarget, union| Compare {
        result: result.into(),
        target: target.into(),
        key: "key".into(),
        target_union: Some(union),
        range_end: Bytes::new(),
    };
    let op = |request| RequestOp {
        request: Some(request),
    };
    TxnRequest {
        compare: vec![
            compare(
                CompareResult::Equal,
                CompareTarget::Mod,
                TargetUnion::ModRevision(7),
            ),
            compare(
                CompareResult::Greater,
                CompareTarget::Create,
                TargetUnion::CreateRevision(2),
            ),
            compare(
                CompareResult::Less,
                CompareTarget::Version,
                TargetUnion::Version(9),
            ),
            compare(
                CompareResult::NotEqual,
                CompareTarget::Value,
                TargetUnion::Value("value".into()),
            ),
            Compare {
                key: "a".into(),
                range_end: "b".into(),
                ..compare(
                    CompareResult::Equal,
                    CompareTarget::Lease,
                    TargetUnion::Lease(0),
                )
            },
        ],
        success: vec![
            op(Request::RequestPut(PutRequest {
                key: "key".into(),
                value: "value".into(),
                ..Default::default()
            })),
            op(Request::RequestTxn(TxnRequest {
                success: vec![op(Request::RequestDeleteRange(DeleteRangeRequest {
                    key: "other".into(),
                    ..Default::default()
                }))],
                ..Default::default()
            })),
        ],
        failure: vec![op(Request::RequestRange(RangeRequest {
            key: "key".into(),
            ..Default::default()
        }))],
    }
}

fn leases_and_members(recording: &mut Recording) {
    recording.next("Lease/LeaseGrant", LeaseGrantRequest { ttl: 60, id: 0 });
    recording.next("Lease/LeaseRevoke", LeaseRevokeRequest { id: 0x1234 });
    recording.next(
        "Lease/LeaseTimeToLive",
        LeaseTimeToLiveRequest {
            id: 0x1234,
            keys: true,
        },
    );
    recording.next(
        "Cluster/MemberList",
        MemberListRequest { linearizable: true },
    );
    recording.next(
        "Cluster/MemberAdd",
        MemberAddRequest {
            peer_urls: vec!["http://127.0.0.1:2380".to_owned()],
            is_learner: true,
        },
    );
    recording.next(
        "Cluster/MemberUpdate",
        MemberUpdateRequest {
            id: 9,
            peer_urls: vec!["http://127.0.0.1:2381".to_owned()],
        },
    );
    recording.next("Maintenance/MoveLeader", MoveLeaderRequest { target_id: 9 });
    recording.next(
        "Maintenance/Downgrade",
        DowngradeRequest {
            action: downgrade_request::DowngradeAction::Enable.into(),
            version: "3.6.0".to_owned(),
        },
    );
}

fn users(recording: &mut Recording) {
    recording.next(
        "Auth/Authenticate",
        AuthenticateRequest {
            name: "root".to_owned(),
            password: "secret".to_owned(),
        },
    );
    recording.next(
        "Auth/UserAdd",
        AuthUserAddRequest {
            name: "u".to_owned(),
            options: Some(UserAddOptions { no_password: true }),
            ..Default::default()
        },
    );
    recording.next(
        "Auth/RoleGrantPermission",
        AuthRoleGrantPermissionRequest {
            name: "r".to_owned(),
            perm: Some(Permission {
                perm_type: permission::Type::Readwrite.into(),
                key: "a".into(),
                range_end: "b".into(),
            }),
        },
    );
}

fn streams(recording: &mut Recording) {
    recording.next(
        "Watch/Watch",
        WatchRequest {
            request_union: Some(RequestUnion::CreateRequest(WatchCreateRequest {
                key: "a".into(),
                range_end: "b".into(),
                start_revision: 7,
                progress_notify: true,
                filters: vec![FilterType::Noput.into(), FilterType::Nodelete.into()],
                prev_kv: true,
                watch_id: 0,
                fragment: true,
            })),
        },
    );
    recording.next("Lease/LeaseKeepAlive", LeaseKeepAliveRequest { id: 0x1234 });
}

fn bytes_of(hex: &str) -> Bytes {
    (0..hex.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
        .collect()
}
