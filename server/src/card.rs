//! What members tell of themselves: their name and URLs.
//!
//! The groups below know one line of text for each member, its address. This
//! is that line: a card, from which `peers.rs` reads where to connect.

use pontoon_api::etcdserverpb;
use pontoon_raftgroup::{Member, NodeId};
use serde::{Deserialize, Serialize};

use crate::url::Url;

/// A member as the others know it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Card {
    /// Empty as long as it has not started.
    #[serde(default)]
    pub(crate) name: String,
    /// Sorted.
    #[serde(default, rename = "peerURLs")]
    pub(crate) peer_urls: Vec<String>,
    /// Empty as long as it has not told them.
    #[serde(default, rename = "clientURLs")]
    pub(crate) client_urls: Vec<String>,
}

impl Card {
    /// The card of one that others must be told of.
    pub(crate) fn of(name: &str, peer_urls: &[Url]) -> Self {
        let mut peer_urls: Vec<_> = peer_urls.iter().map(Url::to_string).collect();
        peer_urls.sort();
        Self {
            name: name.to_owned(),
            peer_urls,
            client_urls: Vec::new(),
        }
    }

    /// Reads one; a line that is none is an empty card.
    pub(crate) fn read(address: &str) -> Self {
        serde_json::from_str(address).unwrap_or_default()
    }

    /// The line.
    pub(crate) fn write(&self) -> String {
        serde_json::to_string(self).expect("strings can be written")
    }

    /// Where the member is reached by others: `host:port`.
    pub(crate) fn peer_address(&self) -> Option<String> {
        let url = Url::parse(self.peer_urls.first()?).ok()?;
        Some(url.authority)
    }

    pub(crate) fn is_started(&self) -> bool {
        !self.name.is_empty()
    }
}

/// A member in etcd's message.
pub(crate) fn member(id: NodeId, member: &Member) -> etcdserverpb::Member {
    let card = Card::read(&member.address);
    etcdserverpb::Member {
        id: id.0,
        name: card.name,
        peer_urls: card.peer_urls,
        client_urls: card.client_urls,
        is_learner: member.learner,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_is_read_as_it_was_written() {
        let urls = Url::parse_list("http://127.0.0.1:2,http://127.0.0.1:1").unwrap();
        let mut card = Card::of("one, \"two\"", &urls);
        card.client_urls = vec!["http://127.0.0.1:3".to_owned()];
        assert_eq!(Card::read(&card.write()), card);
        assert_eq!(card.peer_address().as_deref(), Some("127.0.0.1:1"));
        assert_eq!(Card::read("127.0.0.1:1"), Card::default());
    }
}
