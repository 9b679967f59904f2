//! The header of an answer.
//!
//! Kept true: a member that told a client of a revision doesn't call an older
//! one the newest, also while a replica here has not applied it.

use pontoon_api::etcdserverpb::ResponseHeader;
use pontoon_engine::Revision;

use crate::host::Host;

impl Host {
    /// With a revision that the answer speaks of.
    pub(crate) fn header(&self, revision: Revision) -> Option<ResponseHeader> {
        self.node.note_told(revision);
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
        self.node.revision().max(self.node.told())
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
