//! The header of an answer.
//!
//! Kept true: a member that told a client of a revision doesn't call an older
//! one the newest, also while a replica here has not applied it.

use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

use pontoon_api::etcdserverpb::ResponseHeader;
use pontoon_engine::Revision;

use crate::host::Host;

/// The highest revision that clients were told of.
#[derive(Default)]
pub(crate) struct Told(AtomicI64);

impl Told {
    fn note(&self, revision: Revision) {
        if self.0.load(Relaxed) < revision.0 {
            self.0.fetch_max(revision.0, Relaxed);
        }
    }

    fn last(&self) -> Revision {
        Revision(self.0.load(Relaxed))
    }
}

impl Host {
    /// With a revision that the answer speaks of.
    pub(crate) fn header(&self, revision: Revision) -> Option<ResponseHeader> {
        self.told.note(revision);
        let (term, _) = self.node.leadership();
        Some(ResponseHeader {
            cluster_id: self.cluster_id,
            member_id: self.member_id.0,
            revision: revision.0,
            raft_term: term.0,
        })
    }

    /// The newest revision that is known here.
    pub(crate) fn newest(&self) -> Revision {
        self.node.revision().max(self.told.last())
    }

    /// With the newest revision here, and not less than one that a group told,
    /// which may know nothing newer of the others.
    pub(crate) fn header_from(&self, revision: Revision) -> Option<ResponseHeader> {
        self.header(revision.max(self.newest()))
    }

    /// With the newest revision here.
    pub(crate) fn header_now(&self) -> Option<ResponseHeader> {
        self.header(self.newest())
    }

    /// Answers about members have no revision.
    pub(crate) fn header_without_revision(&self) -> Option<ResponseHeader> {
        self.header(Revision(0))
    }
}

/// The header of a step of a transaction: just the revision.
pub(crate) fn inner(revision: Revision) -> Option<ResponseHeader> {
    Some(ResponseHeader {
        revision: revision.0,
        ..ResponseHeader::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_told_only_grows() {
        let told = Told::default();
        for (revision, last) in [(7, 7), (3, 7), (0, 7), (9, 9)] {
            told.note(Revision(revision));
            assert_eq!(told.last(), Revision(last));
        }
    }
}
