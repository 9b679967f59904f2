//! Replicas of a group are compared, in the background and all the time.
//!
//! Kept true: hashes are compared only of the same entry, which the leader
//! puts into the log for that; what differs from most is an alarm.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pontoon_engine::{ContentHash, Step, Store};
use tokio::time::Instant;

use crate::codec::wire;
use crate::format::seal;
use crate::member::{Alarm, MemberWork};
use crate::message::Message;
use crate::node::Inner;
use crate::position::{GroupId, LogIndex, NodeId, Term};
use crate::replica::Replica;

const NAME: &[u8] = b"compare";

/// Between two questions whether a hash is there.
const RETRY: Duration = Duration::from_millis(250);

/// Who has no hash by then is left out.
const PATIENCE: Duration = Duration::from_secs(30);

/// What a replica held when it had applied an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Compared {
    pub(crate) index: LogIndex,
    pub(crate) keys: u64,
    pub(crate) records: u64,
}

wire!(struct Compared { index, keys, records });

/// Has every replica note what it holds then.
pub(crate) fn step(term: Term) -> Step {
    Step::Record {
        name: Bytes::from_static(NAME),
        content: Some(seal(&term)),
    }
}

/// Whether it is such a step.
pub(crate) fn is_about(step: &Step) -> bool {
    matches!(step, Step::Record { name, .. } if name == NAME)
}

impl Inner {
    /// Notes what a replica holds, which has just applied the entry.
    pub(crate) fn note_content(&self, group: GroupId, store: &Arc<Store>, index: LogIndex) {
        let Some(replica) = self.replica(group) else {
            return;
        };
        let moment = store.hash_later();
        let task = Box::new(move || {
            Box::pin(async move {
                match moment.finish() {
                    Ok((_, ContentHash { keys, records })) => {
                        let compared = Compared {
                            index,
                            keys,
                            records,
                        };
                        *replica.compared.lock() = Some(compared);
                    }
                    Err(error) => replica.group.report(&error),
                }
            }) as _
        });
        if let Err(reason) = self.tend_store(group, task) {
            tracing::warn!("group {group} is not compared: {reason}");
        }
    }

    /// What a replica here held at an entry, if it is known.
    pub(crate) fn content_at(&self, group: GroupId, index: LogIndex) -> Option<Compared> {
        let compared = *self.replica(group)?.compared.lock();
        compared.filter(|compared| compared.index == index)
    }

    /// Compares all replicas of a group at an entry.
    pub(crate) async fn compare(self: &Arc<Self>, replica: &Arc<Replica>, index: LogIndex) {
        let end = Instant::now() + PATIENCE;
        let nodes = replica.group.membership().nodes();
        let mut found: BTreeMap<NodeId, Compared> = BTreeMap::new();
        while found.len() < nodes.len() && Instant::now() < end {
            tokio::time::sleep(RETRY).await;
            for node in &nodes {
                if found.contains_key(node) {
                    continue;
                }
                let told = match *node == self.me {
                    true => self.content_at(replica.id, index),
                    false => {
                        let message = Message::Compared {
                            group: replica.id,
                            index,
                        };
                        let told = self.call(*node, &message, self.timing.call).await;
                        told.unwrap_or(None)
                    }
                };
                if let Some(compared) = told {
                    found.insert(*node, compared);
                }
            }
        }
        for id in who_differs(&found, self.me) {
            tracing::error!("group {}: node {id} holds something else", replica.id);
            let alarm = Alarm::Corrupt;
            let work = MemberWork::Alarm {
                id,
                alarm,
                on: true,
            };
            let soon = Instant::now() + 4 * self.timing.call;
            if let Err(failure) = self.change_members(work, soon).await {
                tracing::error!("the alarm was not raised: {failure}");
            }
        }
    }
}

/// Those who hold something else than most; where there is no most, something
/// else than `me`.
fn who_differs(found: &BTreeMap<NodeId, Compared>, me: NodeId) -> Vec<NodeId> {
    let mut counts: BTreeMap<Compared, usize> = BTreeMap::new();
    for compared in found.values() {
        *counts.entry(*compared).or_default() += 1;
    }
    let most = counts.iter().find(|(_, count)| 2 * **count > found.len());
    let right = most.map(|(compared, _)| *compared);
    let Some(right) = right.or(found.get(&me).copied()) else {
        return Vec::new();
    };
    let differs = found.iter().filter(|(_, compared)| **compared != right);
    differs.map(|(node, _)| *node).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_minority_differs() {
        let found = |hashes: &[u64]| {
            let all = (1..).map(NodeId).zip(hashes);
            let compared = |keys: &u64| Compared {
                index: LogIndex(5),
                keys: *keys,
                records: 0,
            };
            all.map(|(node, keys)| (node, compared(keys))).collect()
        };
        let differs = |hashes: &[u64]| who_differs(&found(hashes), NodeId(1));
        assert_eq!(differs(&[7, 7, 7]), []);
        assert_eq!(differs(&[7, 8, 7]), [NodeId(2)]);
        assert_eq!(differs(&[8, 7, 7]), [NodeId(1)]);
        assert_eq!(differs(&[7, 8]), [NodeId(2)]);
        assert_eq!(differs(&[]), []);
    }
}
