//! Which group has which keys.
//!
//! Kept true: the ranges follow each other without gaps from the first key to
//! the last, so every key has exactly one group; a newer map has a higher
//! version.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};

use bytes::Bytes;
use pontoon_engine::{KeyRange, Op, Put, Request, Txn};

use crate::codec::wire;
use crate::member::{Member, Members};
use crate::position::{GroupId, NodeId};
use crate::split::Splitting;

/// Which group has which keys, and which nodes have the group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeMap {
    /// Grows with every change.
    pub version: u64,
    /// How many replicas a group has at most, the root group aside; 0: one on
    /// every member.
    pub replicas: u64,
    /// In key order; the first begins with the empty key.
    ranges: Vec<Placed>,
}

/// A range: from its start to that of the next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Its first key.
    pub start: Bytes,
    /// The group that has it.
    pub group: GroupId,
    /// The nodes that have the group.
    pub members: Vec<NodeId>,
    /// Those of them that vote in it.
    pub voters: Vec<NodeId>,
    /// The group that it was split off from, if it was.
    pub parent: Option<GroupId>,
}

wire!(struct RangeMap { version, replicas, ranges });
wire!(struct Placed { start, group, members, voters, parent });

impl RangeMap {
    /// The first map: cut at `splits`. The root group has the first range.
    #[must_use]
    pub fn first(splits: &[Bytes], members: &BTreeMap<NodeId, Member>, replicas: u64) -> Self {
        let cuts: BTreeSet<_> = splits.iter().filter(|key| !key.is_empty()).collect();
        let starts = std::iter::once(Bytes::new()).chain(cuts.into_iter().cloned());
        let ranges = starts.zip(0..).map(|(start, group)| Placed {
            start,
            group: GroupId(group),
            members: Vec::new(),
            voters: Vec::new(),
            parent: None,
        });
        let empty = Self {
            version: 0,
            replicas,
            ranges: ranges.collect(),
        };
        empty.placed_on(members)
    }

    /// The next map, with every group placed on these members.
    pub(crate) fn placed_on(&self, members: &Members) -> Self {
        let mut next = self.clone();
        next.version += 1;
        let all: Vec<NodeId> = members.keys().copied().collect();
        let voters = members.iter().filter(|(_, member)| !member.learner);
        let voters: Vec<NodeId> = voters.map(|(id, _)| *id).collect();
        for range in &mut next.ranges {
            let most = match (next.replicas, range.group.is_root()) {
                (0, _) => usize::MAX,
                (_, true) => ROOT_VOTERS_MAX,
                (replicas, false) => usize::try_from(replicas).unwrap_or(usize::MAX),
            };
            range.voters = choose(range.group, &voters, most);
            range.members = match range.group.is_root() || most >= voters.len() {
                true => all.clone(),
                false => range.voters.clone(),
            };
        }
        next
    }

    /// The next map, in which ranges on too many members are placed like others;
    /// `None` if there are none. (What is split off from the root group's range
    /// begins where that one is.)
    pub(crate) fn thinned(&self, members: &Members) -> Option<Self> {
        let mut next = self.clone();
        next.version += 1;
        let due = self.placed_on(members).ranges.into_iter();
        for (range, due) in next.ranges.iter_mut().zip(due) {
            if range.voters.len() > due.voters.len() {
                *range = due;
            }
        }
        (next.ranges != self.ranges).then_some(next)
    }

    /// The groups that would have no quorum of voters without a member, of those
    /// that `is_there` says are there.
    #[must_use]
    pub fn lost_without(&self, id: NodeId, is_there: impl Fn(NodeId) -> bool) -> Vec<GroupId> {
        let is_lost = |range: &&Placed| {
            let left = range.voters.iter().filter(|voter| **voter != id);
            let there = left.clone().filter(|voter| is_there(**voter)).count();
            range.voters.contains(&id) && 2 * there <= left.count()
        };
        let lost = self.ranges.iter().filter(is_lost);
        lost.map(|range| range.group).collect()
    }

    /// Whether its ranges are what a map's ranges must be.
    #[must_use]
    pub(crate) fn is_sound(&self) -> bool {
        let groups: BTreeSet<_> = self.ranges.iter().map(|range| range.group).collect();
        self.ranges
            .first()
            .is_some_and(|first| first.start.is_empty())
            && self.ranges.is_sorted_by(|a, b| a.start < b.start)
            && groups.len() == self.ranges.len()
            && groups.contains(&GroupId::ROOT)
    }

    /// The next map, in which a range is split; `None` if it can't be.
    pub(crate) fn split(&self, splitting: &Splitting) -> Option<Self> {
        let key = &splitting.key;
        let at = self.place(key);
        let parent = &self.ranges[at];
        if parent.group != splitting.parent || parent.start == *key {
            return None;
        }
        let mut next = self.clone();
        let child = Placed {
            start: key.clone(),
            group: splitting.child,
            members: parent.members.clone(),
            voters: parent.voters.clone(),
            parent: Some(parent.group),
        };
        next.version += 1;
        next.ranges.insert(at + 1, child);
        next.is_sound().then_some(next)
    }

    /// A number above those of all groups.
    pub(crate) fn next_group(&self) -> u64 {
        let groups = self.ranges.iter().map(|range| range.group.0);
        groups.max().unwrap_or(0) + 1
    }

    /// The group whose first key this is. (No key is below a zero byte.)
    pub(crate) fn group_that_begins_with(&self, key: &[u8]) -> Option<GroupId> {
        let range = &self.ranges[self.place(key)];
        let is_first = range.start.is_empty() && key == b"\0";
        (range.start == key || is_first).then_some(range.group)
    }

    /// Where a group is.
    #[must_use]
    pub fn placed(&self, group: GroupId) -> Option<&Placed> {
        self.ranges.iter().find(|range| range.group == group)
    }

    /// Whether there is only the root group.
    #[must_use]
    pub fn is_one_group(&self) -> bool {
        self.ranges.len() == 1
    }

    /// All groups with their places.
    pub fn ranges(&self) -> impl Iterator<Item = (&Placed, KeyRange)> {
        (0..self.ranges.len()).map(|at| (&self.ranges[at], self.keys(at)))
    }

    /// The keys of a group.
    #[must_use]
    pub fn keys_of(&self, group: GroupId) -> Option<KeyRange> {
        let at = self.ranges.iter().position(|range| range.group == group)?;
        Some(self.keys(at))
    }

    /// The group that has a key.
    #[must_use]
    pub fn group_of(&self, key: &[u8]) -> GroupId {
        self.ranges[self.place(key)].group
    }

    /// The groups that have some of `keys`, in key order, each with its part.
    #[must_use]
    pub fn parts(&self, keys: &KeyRange) -> Vec<(GroupId, KeyRange)> {
        let first = self.place(&keys.key);
        let mut parts = Vec::new();
        for at in first..self.ranges.len() {
            let range = &self.ranges[at];
            let begins_behind = match keys.upper() {
                _ if keys.is_one() => true,
                Some(end) => range.start.as_ref() >= end,
                None => false,
            };
            if at > first && begins_behind {
                break;
            }
            let mut part = keys.clone();
            if at > first {
                part.key = range.start.clone();
            }
            if !keys.is_one()
                && let Some(next) = self.ranges.get(at + 1)
                && keys.upper().is_none_or(|end| next.start.as_ref() < end)
                && part.key < next.start
            {
                part.end = next.start.clone();
            }
            parts.push((range.group, part));
        }
        parts
    }

    /// The groups that a request looks at or changes.
    #[must_use]
    pub fn groups_of(&self, request: &Request) -> BTreeSet<GroupId> {
        let touches = Touches::of(request);
        let parts = touches.keys.iter().flat_map(|keys| self.parts(keys));
        let mut groups: BTreeSet<_> = parts.map(|(group, _)| group).collect();
        if groups.is_empty() {
            // A transaction that touches no key.
            groups.insert(GroupId::ROOT);
        }
        groups
    }

    /// Whether a group has all of these keys.
    pub(crate) fn has(&self, group: GroupId, keys: &KeyRange) -> bool {
        match &self.ranges[..] {
            [all] => all.group == group,
            _ => self.keys_of(group).is_some_and(|all| within(keys, &all)),
        }
    }

    /// The group that has all keys of a request, if there is one.
    #[must_use]
    pub fn one_group_of(&self, request: &Request) -> Option<GroupId> {
        if let Request::Put(put) = request {
            return Some(self.group_of(&put.key));
        }
        if let [all] = &self.ranges[..] {
            return Some(all.group);
        }
        let mut groups = self.groups_of(request).into_iter();
        let one = groups.next();
        one.filter(|_| groups.next().is_none())
    }

    fn place(&self, key: &[u8]) -> usize {
        self.ranges.partition_point(|range| range.start <= key) - 1
    }

    fn keys(&self, at: usize) -> KeyRange {
        let mut keys = KeyRange::all();
        if at > 0 {
            keys.key = self.ranges[at].start.clone();
        }
        if let Some(next) = self.ranges.get(at + 1) {
            keys.end = next.start.clone();
        }
        keys
    }
}

/// The root group votes on so many nodes at most, where groups aren't on all.
const ROOT_VOTERS_MAX: usize = 5;

/// Some of the nodes, the same whenever it is asked; when one comes or goes,
/// few groups move.
fn choose(group: GroupId, nodes: &[NodeId], most: usize) -> Vec<NodeId> {
    if nodes.len() <= most {
        return nodes.to_vec();
    }
    let mut ranked = nodes.to_vec();
    ranked.sort_by_key(|node| {
        let mut hasher = rustc_hash::FxHasher::default();
        (group.0, node.0).hash(&mut hasher);
        // Its low bits alone say little.
        std::cmp::Reverse(
            hasher
                .finish()
                .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .rotate_left(32),
        )
    });
    ranked.truncate(most);
    ranked.sort_unstable();
    ranked
}

/// Whether all keys of a range are in another. One that is empty is where it
/// begins.
pub(crate) fn within(keys: &KeyRange, all: &KeyRange) -> bool {
    let begins = all.key.as_ref() == b"\0" || all.key <= keys.key;
    let ends = match (all.upper(), keys.upper()) {
        (None, _) => true,
        (Some(end), _) if keys.is_one() || keys.is_empty() => keys.key.as_ref() < end,
        (Some(_), None) => false,
        (Some(end), Some(upper)) => upper <= end,
    };
    begins && ends
}

/// What a request looks at or changes, and the leases that it names.
#[derive(Clone, Debug, Default)]
pub(crate) struct Touches {
    pub(crate) keys: Vec<KeyRange>,
    pub(crate) leases: Vec<i64>,
    /// Which key would hang on which of them.
    pub(crate) attaches: Vec<(Bytes, i64)>,
}

impl Touches {
    pub(crate) fn of(request: &Request) -> Self {
        let mut touches = Self::default();
        match request {
            Request::Range(range) => touches.keys.push(range.keys.clone()),
            Request::Put(put) => touches.put(put),
            Request::DeleteRange(delete) => touches.keys.push(delete.keys.clone()),
            Request::Txn(txn) => touches.txn(txn),
            Request::LeaseRevoke(lease) => touches.leases.push(*lease),
        }
        touches
    }

    /// The same of steps of a transaction.
    pub(crate) fn of_ops(ops: &[Op]) -> Self {
        let mut touches = Self::default();
        touches.ops(ops);
        touches
    }

    fn txn(&mut self, txn: &Txn) {
        let compared = txn.compare.iter().map(|compare| compare.keys.clone());
        self.keys.extend(compared);
        self.ops(&txn.success);
        self.ops(&txn.failure);
    }

    fn ops(&mut self, ops: &[Op]) {
        for op in ops {
            match op {
                Op::Range(range) => self.keys.push(range.keys.clone()),
                Op::Put(put) => self.put(put),
                Op::DeleteRange(delete) => self.keys.push(delete.keys.clone()),
                Op::Txn(txn) => self.txn(txn),
                Op::Missing => {}
            }
        }
    }

    fn put(&mut self, put: &Put) {
        self.keys.push(KeyRange::one(put.key.clone()));
        if put.lease != 0 {
            self.leases.push(put.lease);
            self.attaches.push((put.key.clone(), put.lease));
        }
    }
}

/// Split keys by name: `kubernetes` separates leases, events and pods from
/// the rest. `None` if there is no such profile.
#[must_use]
pub fn profile(name: &str) -> Option<Vec<Bytes>> {
    let profiles: BTreeMap<&str, &[&str]> = BTreeMap::from([
        ("one", &[][..]),
        (
            "kubernetes",
            // `0` is what follows `/`: the first key behind the directory.
            &[
                "/registry/events/",
                "/registry/events0",
                "/registry/leases/",
                "/registry/leases0",
                "/registry/pods/",
                "/registry/pods0",
            ][..],
        ),
    ]);
    let splits = profiles.get(name)?;
    Some(
        splits
            .iter()
            .map(|key| Bytes::from_static(key.as_bytes()))
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::Wire;

    fn members(count: u64) -> Members {
        let member = Member {
            address: String::new(),
            learner: false,
        };
        (1..=count).map(|id| (NodeId(id), member.clone())).collect()
    }

    fn map(splits: &[&'static str]) -> RangeMap {
        let splits: Vec<_> = splits
            .iter()
            .map(|key| Bytes::from_static(key.as_bytes()))
            .collect();
        let map = RangeMap::first(&splits, &members(2), 0);
        assert!(map.is_sound());
        assert_eq!(RangeMap::decode(map.encode()), Some(map.clone()));
        map
    }

    fn parts(map: &RangeMap, key: &'static str, end: &'static str) -> Vec<String> {
        let parts = map.parts(&KeyRange::new(key, end));
        let text = |bytes: &Bytes| bytes.escape_ascii().to_string();
        parts
            .iter()
            .map(|(group, keys)| format!("{group}:{}-{}", text(&keys.key), text(&keys.end)))
            .collect()
    }

    #[test]
    fn every_key_has_one_group() {
        let map = map(&["m", "f", "", "m"]);
        assert_eq!(map.ranges().count(), 3);
        for (key, group) in [
            ("", 0),
            ("a", 0),
            ("ezz", 0),
            ("f", 1),
            ("lz", 1),
            ("m", 2),
            ("zz", 2),
        ] {
            assert_eq!(map.group_of(key.as_bytes()), GroupId(group), "{key}");
            let holders = map
                .ranges()
                .filter(|(_, keys)| !key.is_empty() && keys.contains(key.as_bytes()));
            assert_eq!(holders.count(), usize::from(!key.is_empty()), "{key}");
        }
    }

    /// Nothing could be split off below the very first key.
    #[test]
    fn a_group_begins_with_its_first_key() {
        let map = map(&["f", "m"]);
        for (key, group) in [("\0", Some(0)), ("f", Some(1)), ("m", Some(2))] {
            let begins = map.group_that_begins_with(key.as_bytes());
            assert_eq!(begins, group.map(GroupId), "{key:?}");
        }
        for key in ["\0\0", "e", "fa", "z"] {
            assert_eq!(map.group_that_begins_with(key.as_bytes()), None, "{key:?}");
        }
    }

    #[test]
    fn a_range_is_cut_where_groups_meet() {
        let map = map(&["f", "m"]);
        assert_eq!(parts(&map, "a", ""), ["0:a-"]);
        assert_eq!(parts(&map, "a", "c"), ["0:a-c"]);
        assert_eq!(parts(&map, "a", "f"), ["0:a-f"]);
        assert_eq!(parts(&map, "a", "g"), ["0:a-f", "1:f-g"]);
        assert_eq!(parts(&map, "f", "m"), ["1:f-m"]);
        assert_eq!(parts(&map, "g", "\0"), ["1:g-m", "2:m-\\x00"]);
        assert_eq!(parts(&map, "\0", "\0"), ["0:\\x00-f", "1:f-m", "2:m-\\x00"]);
        assert_eq!(parts(&map, "z", "\0"), ["2:z-\\x00"]);
        // Nothing is in it, but somebody must say so.
        assert_eq!(parts(&map, "g", "a"), ["1:g-a"]);
    }

    #[test]
    fn the_kubernetes_profile_separates_what_is_busy() {
        let splits = profile("kubernetes").expect("it exists");
        let map = RangeMap::first(&splits, &members(1), 0);
        let of = |key: &str| map.group_of(key.as_bytes());
        let busy = [
            "/registry/events/a/b",
            "/registry/leases/x",
            "/registry/pods/default/p",
        ];
        let groups: BTreeSet<_> = busy.iter().map(|key| of(key)).collect();
        assert_eq!(groups.len(), 3);
        for rest in [
            "/registry/configmaps/x",
            "/registry/secrets/y",
            "/registry/jobs/j",
            "a",
            "z",
        ] {
            assert!(!groups.contains(&of(rest)), "{rest}");
        }
        assert_eq!(profile("unheard of"), None);
    }

    #[test]
    fn groups_are_placed_evenly_and_few_move() {
        let splits: Vec<_> = (0..100).map(|n| Bytes::from(format!("k{n:03}"))).collect();
        let map = RangeMap::first(&splits, &members(12), 3);
        let mut load = BTreeMap::new();
        for (placed, _) in map.ranges() {
            let expected = if placed.group.is_root() { 5 } else { 3 };
            assert_eq!(placed.voters.len(), expected);
            for voter in &placed.voters {
                *load.entry(*voter).or_insert(0) += 1;
            }
        }
        assert_eq!(load.len(), 12);
        assert!(
            load.values().all(|count| (12..=40).contains(count)),
            "{load:?}"
        );
        let next = map.placed_on(&members(13));
        let pairs = map.ranges().zip(next.ranges());
        let moved = pairs.filter(|((old, _), (new, _))| old.voters != new.voters);
        assert!(moved.count() < 50);
    }

    #[test]
    fn what_is_split_off_from_the_root_group_is_placed_like_others() {
        let members = members(7);
        let map = RangeMap::first(&[], &members, 3);
        let split = |map: &RangeMap, parent, child, key: &'static str| {
            let splitting = Splitting {
                parent: GroupId(parent),
                child: GroupId(child),
                key: key.into(),
            };
            map.split(&splitting).expect("it can be split")
        };
        let of_root = split(&map, 0, 1, "m");
        assert_eq!(
            of_root
                .placed(GroupId(1))
                .expect("it is there")
                .members
                .len(),
            7
        );
        let thinned = of_root.thinned(&members).expect("it is on too many");
        assert!(of_root.version < thinned.version);
        let placed = thinned.placed(GroupId(1)).expect("it is there");
        assert_eq!((placed.voters.len(), placed.members.len()), (3, 3));
        assert_eq!(thinned.placed(GroupId::ROOT), of_root.placed(GroupId::ROOT));
        assert_eq!(thinned.thinned(&members), None);
        // A child of that one stays where its parent is.
        assert_eq!(split(&thinned, 1, 2, "t").thinned(&members), None);
        let everywhere = split(&RangeMap::first(&[], &members, 0), 0, 1, "m");
        assert_eq!(everywhere.thinned(&members), None);
    }

    #[test]
    fn a_group_without_a_quorum_of_those_who_stay_is_lost() {
        let splits: Vec<_> = (0..20).map(|n| Bytes::from(format!("k{n:02}"))).collect();
        let map = RangeMap::first(&splits, &members(7), 3);
        let all = map.lost_without(NodeId(1), |_| true);
        assert_eq!(all, []);
        for (placed, _) in map.ranges().filter(|(placed, _)| !placed.group.is_root()) {
            let [one, two, three] = placed.voters[..] else {
                panic!("there are three");
            };
            let without = |id| map.lost_without(id, |voter| voter != two);
            assert!(without(one).contains(&placed.group));
            assert!(without(three).contains(&placed.group));
            // Who isn't there can go.
            assert!(!without(two).contains(&placed.group));
        }
    }

    #[test]
    fn up_to_nine_members_every_group_is_everywhere() {
        let map = RangeMap::first(&[Bytes::from_static(b"m")], &members(9), 0);
        for (placed, _) in map.ranges() {
            assert_eq!((placed.voters.len(), placed.members.len()), (9, 9));
        }
    }
}
