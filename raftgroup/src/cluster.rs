//! What the root group says about the cluster, as this node's replica of it knows.

use std::sync::Arc;

use bytes::Bytes;
use pontoon_engine::{EngineError, Revision, Step, Store};

use crate::codec::Wire;
use crate::format::{FormatVersion, Unreadable, open, seal};
use crate::lead::{Alarms, Damaged};
use crate::map::RangeMap;
use crate::member::{Alarm, Members};
use crate::position::{GroupId, LogIndex, NodeId};
use crate::records;
use crate::split::Splits;
use crate::versions::Versions;

/// Names of the root group's records.
const MAP: &[u8] = b"cluster/map";
const CEILING: &[u8] = b"cluster/ceiling";
const SPLITS: &[u8] = b"cluster/splits";
const MEMBERS: &[u8] = b"cluster/members";
const DAMAGED: &[u8] = b"cluster/damaged";
const ALARMS: &[u8] = b"cluster/alarms";
const VERSIONS: &[u8] = b"cluster/versions";

/// What is known of the cluster.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cluster {
    /// `None` before the first entry says it.
    pub(crate) map: Option<Arc<RangeMap>>,
    /// Revisions up to here may be granted; `None` with one group.
    pub(crate) ceiling: Option<Revision>,
    pub(crate) splits: Splits,
    /// `None` before the first entry says it.
    pub(crate) members: Option<Arc<Members>>,
    /// Who must not be counted in which group.
    pub(crate) damaged: Damaged,
    pub(crate) alarms: Alarms,
    /// What entries may have in them, and who understands how much.
    pub(crate) versions: Versions,
    /// What is below it is compacted, or about to be.
    pub(crate) floor: Revision,
    /// The entry that last changed what requests are evaluated on, or a later one.
    pub(crate) changed: LogIndex,
}

impl Cluster {
    /// As the root group's store has it.
    pub(crate) fn read(store: &Store, newest: FormatVersion) -> Result<Self, EngineError> {
        let mut cluster = Self {
            floor: store.floor(),
            changed: LogIndex(store.applied().index),
            ..Self::default()
        };
        for name in [VERSIONS, MAP, CEILING, SPLITS, MEMBERS, DAMAGED, ALARMS] {
            records::read(store, name, |content| {
                cluster.record(name, content).map(drop)
            })?;
            // Before anything that only a later release understands.
            let checked = cluster.versions.check(newest);
            checked.map_err(|error| store.foreign_record(name, &error))?;
        }
        Ok(cluster)
    }

    /// Follows an entry of the root group, whose records can be decoded
    /// ([`records::check`]). Whether there was something in it.
    pub(crate) fn follow(&mut self, index: LogIndex, steps: &[Step]) -> bool {
        let mut news = false;
        for step in steps {
            match step {
                Step::Compact { floor } => {
                    self.floor = self.floor.max(*floor);
                    self.changed = index;
                    news = true;
                }
                Step::Record {
                    name,
                    content: Some(content),
                } => {
                    news |= self.record(name, content.clone()) == Ok(true);
                    if name == MAP || name == ALARMS {
                        self.changed = index;
                    }
                }
                _ => {}
            }
        }
        news
    }

    /// Takes note of a record; `false` if it is about something else.
    fn record(&mut self, name: &[u8], content: Bytes) -> Result<bool, Unreadable> {
        match name {
            MAP => {
                let kind = "range map";
                let map: RangeMap = open(kind, content)?;
                if !map.is_sound() {
                    return Err(Unreadable::Nonsense { kind });
                }
                self.map = Some(Arc::new(map));
            }
            CEILING => {
                let ceiling: Revision = open("revision ceiling", content)?;
                self.ceiling = self.ceiling.max(Some(ceiling));
            }
            MEMBERS => {
                let members: Members = open("list of members", content)?;
                self.members = Some(Arc::new(members));
            }
            DAMAGED => {
                let damaged: Vec<_> = open("list of damaged replicas", content)?;
                self.damaged = damaged.into_iter().collect();
            }
            ALARMS => {
                let alarms: Vec<_> = open("list of alarms", content)?;
                self.alarms = alarms.into_iter().collect();
            }
            VERSIONS => self.versions = open("versions of the members", content)?,
            SPLITS => self.splits = open("list of splits", content)?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// Whether a record, if it is about the cluster, can be decoded.
pub(crate) fn can_read(name: &[u8], content: &Bytes) -> Result<(), Unreadable> {
    Cluster::default().record(name, content.clone()).map(drop)
}

/// Sets the map.
pub(crate) fn map_step(map: &RangeMap) -> Step {
    set(MAP, map)
}

/// Raises the ceiling.
pub(crate) fn ceiling_step(ceiling: Revision) -> Step {
    set(CEILING, &ceiling)
}

/// Notes the splits that are under way.
pub(crate) fn splits_step(splits: &Splits) -> Step {
    set(SPLITS, splits)
}

/// Sets the members.
pub(crate) fn members_step(members: &Members) -> Step {
    set(MEMBERS, members)
}

/// Sets the versions.
pub(crate) fn versions_step(versions: &Versions) -> Step {
    set(VERSIONS, versions)
}

/// Says who must not be counted where.
pub(crate) fn damaged_step(damaged: &Damaged) -> Step {
    let list: Vec<(GroupId, NodeId)> = damaged.iter().copied().collect();
    set(DAMAGED, &list)
}

/// Sets the alarms.
pub(crate) fn alarms_step(alarms: &Alarms) -> Step {
    let list: Vec<(Alarm, NodeId)> = alarms.iter().copied().collect();
    set(ALARMS, &list)
}

fn set(name: &'static [u8], content: &impl Wire) -> Step {
    Step::Record {
        name: Bytes::from_static(name),
        content: Some(seal(content)),
    }
}
