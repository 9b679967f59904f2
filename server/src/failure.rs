//! What the layers below refuse, as clients hear it: one table.

use pontoon_api::Error;
use pontoon_engine::Reject;
use pontoon_raftgroup::{Failure, MemberReject};
use tonic::Status;

/// The error that a client sees.
pub(crate) fn error(failure: &Failure) -> Error {
    match failure {
        Failure::Reject(reject) => rejected(reject),
        Failure::Member(reject) => member_rejected(*reject),
        Failure::TooManyRequests => Error::TooManyRequests,
        Failure::NoLeader => Error::NoLeader,
        Failure::NoSpace => Error::NoSpace,
        Failure::Corrupt => Error::Corrupt,
        Failure::TooLarge => Error::RequestTooLarge,
        Failure::SplitAbandoned => Error::SplitAbandoned,
        Failure::LeaderChanged => Error::LeaderChanged,
        Failure::TimedOut => Error::Timeout,
        Failure::Stopped => Error::Stopped,
    }
}

/// The same as a status.
pub(crate) fn status(failure: Failure) -> Status {
    error(&failure).into()
}

/// What the engine refuses.
pub(crate) fn rejected(reject: &Reject) -> Error {
    match reject {
        Reject::EmptyKey => Error::EmptyKey,
        Reject::ValueProvided => Error::ValueProvided,
        Reject::LeaseProvided => Error::LeaseProvided,
        Reject::KeyNotFound => Error::KeyNotFound,
        Reject::TooManyOps => Error::TooManyOps,
        Reject::DuplicateKey => Error::DuplicateKey,
        Reject::LeaseNotFound => Error::LeaseNotFound,
        Reject::LeaseExists => Error::LeaseExist,
        Reject::LeaseTtlTooLarge => Error::LeaseTtlTooLarge,
        Reject::Compacted => Error::Compacted,
        Reject::FutureRevision => Error::FutureRev,
    }
}

fn member_rejected(reject: MemberReject) -> Error {
    match reject {
        MemberReject::Exists => Error::MemberExist,
        MemberReject::NotFound => Error::MemberNotFound,
        MemberReject::NotLearner => Error::MemberNotLearner,
        MemberReject::NotInSync => Error::LearnerNotReady,
        MemberReject::NotEnough => Error::NotEnoughStartedMembers,
        MemberReject::TooOld => Error::NotCapable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The layers below speak etcd's texts too; both must agree.
    #[test]
    fn texts_are_those_of_the_layers_below() {
        let failures = [
            Failure::Reject(Reject::EmptyKey),
            Failure::Reject(Reject::ValueProvided),
            Failure::Reject(Reject::LeaseProvided),
            Failure::Reject(Reject::KeyNotFound),
            Failure::Reject(Reject::TooManyOps),
            Failure::Reject(Reject::DuplicateKey),
            Failure::Reject(Reject::LeaseNotFound),
            Failure::Reject(Reject::LeaseExists),
            Failure::Reject(Reject::LeaseTtlTooLarge),
            Failure::Reject(Reject::Compacted),
            Failure::Reject(Reject::FutureRevision),
            Failure::Member(MemberReject::Exists),
            Failure::Member(MemberReject::NotFound),
            Failure::Member(MemberReject::NotLearner),
            Failure::Member(MemberReject::NotInSync),
            Failure::Member(MemberReject::NotEnough),
            Failure::TooManyRequests,
            Failure::NoLeader,
            Failure::NoSpace,
            Failure::Corrupt,
            Failure::TooLarge,
            Failure::SplitAbandoned,
            Failure::LeaderChanged,
            Failure::TimedOut,
            Failure::Stopped,
        ];
        for failure in failures {
            assert_eq!(error(&failure).text(), failure.to_string());
        }
        // A member hears it from another one, and etcd has no word for it.
        let too_old = error(&Failure::Member(MemberReject::TooOld));
        assert_eq!(too_old, Error::NotCapable);
    }
}
