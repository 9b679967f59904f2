//! Every error that a client can see.
//!
//! Kept true: text and code are etcd's. Clients compare texts: the Go client
//! looks them up to make its own errors of them, and decides by the code
//! whether it tries again. `docs/errors.md` is this table for reading.

use std::fmt;

use tonic::{Code, Status};

/// gRPC's codes from 0 on, as Go and gRPC's metrics name them.
pub const CODE_NAMES: [&str; 17] = [
    "OK",
    "Canceled",
    "Unknown",
    "InvalidArgument",
    "DeadlineExceeded",
    "NotFound",
    "AlreadyExists",
    "PermissionDenied",
    "ResourceExhausted",
    "FailedPrecondition",
    "Aborted",
    "OutOfRange",
    "Unimplemented",
    "Internal",
    "Unavailable",
    "DataLoss",
    "Unauthenticated",
];

macro_rules! errors {
    ($($name:ident: $code:ident, $text:literal;)*) => {
        /// An error of the API.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Error {
            $(#[doc = concat!("`", $text, "`")] $name,)*
        }

        impl Error {
            /// All of them, in the order of `docs/errors.md`.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// What clients compare.
            #[must_use]
            pub const fn text(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }

            /// What clients decide by whether to try again.
            #[must_use]
            pub const fn code(self) -> Code {
                match self {
                    $(Self::$name => Code::$code,)*
                }
            }
        }
    };
}

errors! {
    // Keys, values and revisions
    EmptyKey: InvalidArgument, "etcdserver: key is not provided";
    KeyNotFound: InvalidArgument, "etcdserver: key not found";
    ValueProvided: InvalidArgument, "etcdserver: value is provided";
    LeaseProvided: InvalidArgument, "etcdserver: lease is provided";
    TooManyOps: InvalidArgument, "etcdserver: too many operations in txn request";
    DuplicateKey: InvalidArgument, "etcdserver: duplicate key given in txn request";
    InvalidClientApiVersion: InvalidArgument, "etcdserver: invalid client api version";
    InvalidSortOption: InvalidArgument, "etcdserver: invalid sort option";
    Compacted: OutOfRange, "etcdserver: mvcc: required revision has been compacted";
    FutureRev: OutOfRange, "etcdserver: mvcc: required revision is a future revision";
    NoSpace: ResourceExhausted, "etcdserver: mvcc: database space exceeded";
    // Leases
    LeaseNotFound: NotFound, "etcdserver: requested lease not found";
    LeaseExist: FailedPrecondition, "etcdserver: lease already exists";
    LeaseTtlTooLarge: OutOfRange, "etcdserver: too large lease TTL";
    // Watches
    WatchCanceled: Cancelled, "etcdserver: watch canceled";
    // Members
    MemberExist: FailedPrecondition, "etcdserver: member ID already exist";
    PeerUrlExist: FailedPrecondition, "etcdserver: Peer URLs already exists";
    NotEnoughStartedMembers: Unknown, "etcdserver: re-configuration failed due to not enough started members";
    MemberBadUrls: InvalidArgument, "etcdserver: given member URLs are invalid";
    MemberNotFound: NotFound, "etcdserver: member not found";
    MemberNotLearner: FailedPrecondition, "etcdserver: can only promote a learner member";
    LearnerNotReady: FailedPrecondition, "etcdserver: can only promote a learner member which is in sync with leader";
    TooManyLearners: FailedPrecondition, "etcdserver: too many learner members in cluster";
    ClusterIdMismatch: FailedPrecondition, "etcdserver: cluster ID mismatch";
    // Limits
    RequestTooLarge: InvalidArgument, "etcdserver: request is too large";
    TooManyRequests: Unknown, "etcdserver: too many requests";
    // Users and roles
    RootUserNotExist: FailedPrecondition, "etcdserver: root user does not exist";
    RootRoleNotExist: FailedPrecondition, "etcdserver: root user does not have root role";
    UserAlreadyExist: FailedPrecondition, "etcdserver: user name already exists";
    UserEmpty: InvalidArgument, "etcdserver: user name is empty";
    UserNotFound: FailedPrecondition, "etcdserver: user name not found";
    RoleAlreadyExist: FailedPrecondition, "etcdserver: role name already exists";
    RoleNotFound: FailedPrecondition, "etcdserver: role name not found";
    RoleEmpty: InvalidArgument, "etcdserver: role name is empty";
    AuthFailed: InvalidArgument, "etcdserver: authentication failed, invalid user ID or password";
    PermissionNotGiven: InvalidArgument, "etcdserver: permission not given";
    PermissionDenied: PermissionDenied, "etcdserver: permission denied";
    RoleNotGranted: FailedPrecondition, "etcdserver: role is not granted to the user";
    PermissionNotGranted: FailedPrecondition, "etcdserver: permission is not granted to the role";
    AuthNotEnabled: FailedPrecondition, "etcdserver: authentication is not enabled";
    InvalidAuthToken: Unauthenticated, "etcdserver: invalid auth token";
    InvalidAuthMgmt: InvalidArgument, "etcdserver: invalid auth management";
    AuthOldRevision: InvalidArgument, "etcdserver: revision of auth store is old";
    // The cluster
    NoLeader: Unavailable, "etcdserver: no leader";
    NotLeader: FailedPrecondition, "etcdserver: not leader";
    LeaderChanged: Unavailable, "etcdserver: leader changed";
    NotCapable: FailedPrecondition, "etcdserver: not capable";
    Stopped: Unavailable, "etcdserver: server stopped";
    Timeout: Unavailable, "etcdserver: request timed out";
    TimeoutDueToLeaderFail: Unavailable, "etcdserver: request timed out, possibly due to previous leader failure";
    TimeoutDueToConnectionLost: Unavailable, "etcdserver: request timed out, possibly due to connection lost";
    TimeoutWaitAppliedIndex: Unavailable, "etcdserver: request timed out, waiting for the applied index took too long";
    Unhealthy: Unavailable, "etcdserver: unhealthy cluster";
    Corrupt: DataLoss, "etcdserver: corrupt cluster";
    NotSupportedForLearner: FailedPrecondition, "etcdserver: rpc not supported for learner";
    BadLeaderTransferee: FailedPrecondition, "etcdserver: bad leader transferee";
    // Downgrades
    WrongDowngradeVersionFormat: InvalidArgument, "etcdserver: wrong downgrade target version format";
    InvalidDowngradeTargetVersion: InvalidArgument, "etcdserver: invalid downgrade target version";
    ClusterVersionUnavailable: FailedPrecondition, "etcdserver: cluster version not found during downgrade";
    DowngradeInProcess: FailedPrecondition, "etcdserver: cluster has a downgrade job in progress";
    NoInflightDowngrade: FailedPrecondition, "etcdserver: no inflight downgrade job";
    // Requests that were given up
    Canceled: Cancelled, "etcdserver: request canceled";
    DeadlineExceeded: DeadlineExceeded, "etcdserver: context deadline exceeded";
    ContextCanceled: Cancelled, "context canceled";
    ContextDeadlineExceeded: DeadlineExceeded, "context deadline exceeded";
    // Not in etcd's table of errors, so they go out with the code Unknown
    NoPasswordUser: Unknown, "auth: authentication failed, password was given for no password user";
    VerifyOnly: Unknown, "auth: token signing attempted with verify-only key";
    PasswordTooLong: Unknown, "bcrypt: password length exceeds 72 bytes";
    NotPrimaryLessor: Unknown, "not a primary lessor";
    TimeoutLeaderTransfer: Unknown, "etcdserver: request timed out, leader transfer took too long";
    UnknownDowngradeAction: Unknown, "etcdserver: unknown method";
    ElectionNotLeader: Unknown, "election: not leader";
    ElectionNoLeader: Unknown, "election: no leader";
    MissingLeaderKey: Unknown, "\"leader\" field must be provided";
    SessionExpired: Unknown, "mutex: session is expired";
    LostWatcher: Unknown, "lost watcher waiting for delete";
    // Of RangeStream
    RangeStreamSort: Unimplemented, "RangeStream does not support custom sort orders";
    RangeStreamFilters: Unimplemented, "RangeStream does not support revision filters";
    // Of Pontoon's own services
    SplitAbandoned: Aborted, "pontoon: the split was abandoned: too few replicas were ready in time";
    TooManyVoters: FailedPrecondition, "pontoon: more than 9 voting members need --replicas 3 or 5";
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl std::error::Error for Error {}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        Self::new(error.code(), error.text())
    }
}

/// A message above the limit of the transport.
pub fn message_too_large(bytes: impl fmt::Display, bytes_max: impl fmt::Display) -> Status {
    Status::resource_exhausted(format!(
        "grpc: received message larger than max ({bytes} vs. {bytes_max})"
    ))
}

/// A service that has no such method.
pub fn unknown_method(service: impl fmt::Display, method: impl fmt::Display) -> Status {
    Status::unimplemented(format!("unknown method {method} for service {service}"))
}

/// A service that is not there at all.
pub fn unknown_service(service: impl fmt::Display) -> Status {
    Status::unimplemented(format!("unknown service {service}"))
}

/// Why a watcher was refused or ended by the server, as `cancel_reason` has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CancelReason {
    /// The range holds no key.
    RangeEmpty,
    /// Another watcher of the stream has the id.
    DuplicateId,
    /// The revision to start at is negative.
    Compacted,
    /// The user may not read the range.
    PermissionDenied,
    /// The token is not known.
    InvalidAuthToken,
    /// Users or roles have changed since the token was made.
    AuthOldRevision,
    /// There is no user.
    UserEmpty,
}

impl CancelReason {
    /// All of them, in the order of `docs/errors.md`.
    pub const ALL: &[Self] = &[
        Self::RangeEmpty,
        Self::DuplicateId,
        Self::Compacted,
        Self::PermissionDenied,
        Self::InvalidAuthToken,
        Self::AuthOldRevision,
        Self::UserEmpty,
    ];

    /// What clients compare. Some are statuses in the form that Go prints.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::RangeEmpty => "mvcc: watcher range is empty",
            Self::DuplicateId => "mvcc: duplicate watch ID provided on the WatchStream",
            Self::Compacted => Error::Compacted.text(),
            Self::PermissionDenied => {
                "rpc error: code = PermissionDenied desc = etcdserver: permission denied"
            }
            Self::InvalidAuthToken => {
                "rpc error: code = Unauthenticated desc = etcdserver: invalid auth token"
            }
            Self::AuthOldRevision => {
                "rpc error: code = InvalidArgument desc = etcdserver: revision of auth store is old"
            }
            Self::UserEmpty => {
                "rpc error: code = InvalidArgument desc = etcdserver: user name is empty"
            }
        }
    }
}
