//! Compaction (rule 15).

use std::sync::Arc;

use pontoon_engine::{Reject, Revision, Step};

use super::evaluate::unsound;
use super::{Flight, Freight, Lead, Source};
use crate::cluster::Cluster;
use crate::map::Touches;
use crate::message::{Answered, Declined, Done, Work};
use crate::replica::Job;

impl Lead<'_> {
    pub(super) fn floor_waits(&self) -> bool {
        matches!(self.source, Source::Sequencer(_))
            && !self.compacting
            && self.node.cluster.borrow().floor > self.replica.group.store().floor()
    }

    pub(super) async fn compact(&mut self, cluster: &Cluster) {
        for job in std::mem::take(&mut self.compactions) {
            let Work::Compact { revision } = job.work else {
                continue;
            };
            if !self.replica.id.is_root() {
                job.finish(Err(Declined::Reject(Reject::FutureRevision)));
            } else if let Some(declined) = unsound(&cluster.alarms) {
                self.refuse(declined, job);
            } else if revision <= cluster.floor {
                job.finish(Err(Declined::Reject(Reject::Compacted)));
            } else if matches!(self.source, Source::Own) && revision > self.store_revision() {
                self.refuse_future(revision, job);
            } else if self
                .first_undecided()
                .is_some_and(|first| first <= revision)
            {
                // What is undecided can't be compacted yet.
                self.compactions.push(job);
            } else {
                // The router compared it with a read point, if there are many groups.
                self.raise_floor(revision, Some(job)).await;
            }
        }
        let store_floor = self.replica.group.store().floor();
        if matches!(self.source, Source::Sequencer(_))
            && !self.compacting
            && cluster.floor > store_floor
            && self.node.closed(self.replica.id) >= cluster.floor
        {
            self.compacting = true;
            self.raise_floor(cluster.floor, None).await;
        }
    }

    /// The smallest revision of a transaction that is prepared here, or about
    /// to be, and not decided.
    fn first_undecided(&self) -> Option<Revision> {
        let flights = self.flights.iter();
        let preparing = flights.filter(|flight| matches!(flight.freight, Freight::Prepare(_)));
        let preparing = preparing.map(|flight| flight.first);
        let undecided = self.replica.group.store().undecided();
        preparing.chain(undecided).min()
    }

    fn store_revision(&self) -> Revision {
        self.replica.group.store().revision()
    }

    /// Refuses a compaction beyond what is there, once it is certain that
    /// nobody else leads and has acknowledged more.
    fn refuse_future(&self, revision: Revision, job: Job) {
        let (node, replica) = (Arc::clone(self.node), Arc::clone(self.replica));
        self.node.scope.spawn(async move {
            match node
                .settle_point(&replica, None, &Touches::default(), false)
                .await
            {
                Ok(newest) if revision > newest => {
                    job.finish(Err(Declined::Reject(Reject::FutureRevision)));
                }
                Ok(_) => replica.enqueue(job),
                Err(declined) => job.finish(Err(declined)),
            }
        });
    }

    async fn raise_floor(&mut self, floor: Revision, job: Option<Job>) {
        let flight = Flight {
            id: self.launched,
            first: floor,
            last: floor,
            freight: Freight::Floor,
        };
        let newest = self.base.max(floor);
        let steps = vec![Step::Reach { revision: floor }, Step::Compact { floor }];
        self.launch(flight, steps, move |outcome| {
            if let Some(job) = job {
                job.finish(outcome.map(|index| Done {
                    answer: Answered::Compacted(newest),
                    index,
                }));
            }
        })
        .await;
    }
}
