//! Quorum rounds belong to a term, and count when what they confirm is applied.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::time::{sleep, timeout};

use super::{Cluster, STORE, simulate};
use crate::position::{NodeId, Term};
use crate::raft::NotLeader;
use crate::raft::message::{self, Request};
use crate::rounds::Rounds;

impl Cluster {
    fn rounds(&self, id: u64) -> Arc<Rounds> {
        Rounds::new(
            self.group(id),
            self.nodes[&id].scope.clone(),
            Arc::default(),
        )
    }

    /// Hands the lead to `to`, until it is taken.
    async fn hand_to(&self, to: u64) -> Term {
        loop {
            let (leader, term) = self.leader().await;
            if leader == to {
                return term;
            }
            self.group(leader).transfer(NodeId(to)).await;
            sleep(Duration::from_millis(50)).await;
        }
    }
}

/// The leader asks, loses its lead, wins it again, and a quorum confirms that.
#[test]
fn a_round_of_a_later_term_confirms_nothing() {
    simulate(async {
        let cluster = Cluster::start(80).await;
        let (leader, term) = cluster.leader().await;
        let rounds = cluster.rounds(leader);
        assert!(rounds.confirm_in(term).await.is_ok());
        cluster.hand_to(leader % 3 + 1).await;
        cluster.write("of another leader").await;
        assert_eq!(rounds.confirm_in(term).await, Err(NotLeader));
        let again = cluster.hand_to(leader).await;
        assert!(again > term);
        assert_eq!(rounds.confirm_in(term).await, Err(NotLeader));
        assert!(rounds.confirm_in(again).await.is_ok());
    });
}

/// A quorum hears the new leader, but takes none of its entries for a while.
/// `held` says for how long.
async fn elect_without_entries(cluster: &Cluster, to: u64) -> (Arc<Mutex<bool>>, Term) {
    let held = Arc::new(Mutex::new(true));
    let holds = Arc::clone(&held);
    cluster.net.tamper(Some(Box::new(
        move |from, _, message| match message::decode(STORE, message.clone()) {
            Ok(Request::Append { records, .. })
                if from.0 == to && !records.is_empty() && *holds.lock() =>
            {
                Bytes::new()
            }
            _ => message,
        },
    )));
    let (leader, _) = cluster.leader().await;
    cluster.group(leader).transfer(NodeId(to)).await;
    let mut leadership = cluster.group(to).leadership();
    let elected = leadership.wait_for(|now| now.leader == Some(NodeId(to)));
    let elected = timeout(Duration::from_secs(10), elected).await;
    assert!(elected.is_ok(), "{to} doesn't lead");
    let term = leadership.borrow().term;
    (held, term)
}

#[test]
fn a_round_counts_when_what_was_committed_before_it_is_applied() {
    simulate(async {
        let cluster = Cluster::start(81).await;
        cluster.write("before").await;
        let (leader, _) = cluster.leader().await;
        let to = leader % 3 + 1;
        let (held, term) = elect_without_entries(&cluster, to).await;
        let group = cluster.group(to);
        let confirmed = group.confirm().await.expect("a quorum hears it");
        assert_eq!(confirmed.term, term);
        assert!(group.applied_index() < confirmed.index);
        let rounds = cluster.rounds(to);
        let mut waiting = Box::pin(rounds.confirm_in(term));
        let early = timeout(Duration::from_millis(50), &mut waiting).await;
        assert!(early.is_err(), "{early:?}");
        *held.lock() = false;
        let index = waiting.await.expect("it still leads");
        assert!(index >= confirmed.index);
        assert!(group.applied_index() >= index);
    });
}

/// A replica that loses its lead before it has applied all of it says so,
/// instead of keeping its caller waiting.
#[test]
fn a_round_whose_entries_never_come_ends_with_the_lead() {
    simulate(async {
        let cluster = Cluster::start(82).await;
        let (leader, _) = cluster.leader().await;
        let to = leader % 3 + 1;
        let (_held, term) = elect_without_entries(&cluster, to).await;
        let rounds = cluster.rounds(to);
        let confirmed = tokio::spawn(async move { rounds.confirm_in(term).await });
        sleep(Duration::from_millis(20)).await;
        cluster.net.cut(to);
        let others: Vec<u64> = (1..=3).filter(|id| *id != to).collect();
        cluster.leader_of(&others).await;
        cluster.net.mend(to);
        let confirmed = timeout(Duration::from_secs(10), confirmed).await;
        assert_eq!(confirmed.unwrap().unwrap(), Err(NotLeader));
    });
}
