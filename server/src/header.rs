//! The header of an answer.

use pontoon_api::etcdserverpb::ResponseHeader;
use pontoon_engine::Revision;

use crate::host::Host;

impl Host {
    /// With a revision that the answer speaks of.
    pub(crate) fn header(&self, revision: Revision) -> Option<ResponseHeader> {
        let (term, _) = self.node.leadership();
        Some(ResponseHeader {
            cluster_id: self.cluster_id,
            member_id: self.member_id.0,
            revision: revision.0,
            raft_term: term.0,
        })
    }

    /// With the newest revision here.
    pub(crate) fn header_now(&self) -> Option<ResponseHeader> {
        self.header(self.node.revision())
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
