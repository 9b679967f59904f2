//! What must hold of a history, one function for each promise.
//!
//! The judge is the dump: all events in the order of their revisions. Replayed,
//! they say what any answer must have been.

use std::collections::{BTreeMap, BTreeSet};

use crate::history::{Ask, Changes, Content, Dump, Heard, History, Kv, Step, balance};

/// `Err` says what was seen.
type Verdict = Result<(), String>;

/// All that was seen in a run.
#[derive(Clone, Default)]
pub(crate) struct Seen {
    pub(crate) history: History,
    /// One for each node.
    pub(crate) dumps: Vec<Dump>,
    /// What replicas had at times, and on which node.
    pub(crate) contents: Vec<(u64, Content)>,
    pub(crate) kills: u64,
    pub(crate) splits: u64,
    /// How many were killed for good, and replaced.
    pub(crate) replaced: u64,
    /// When fewer than a quorum of nodes ran.
    pub(crate) alone: Vec<(u64, u64)>,
}

type Judge = fn(&Seen) -> Verdict;

/// Everything that must hold, by name.
const PROMISES: [(&str, Judge); 11] = [
    ("all nodes dump the same", dumps_agree),
    ("replicas have the same at the same entry", replicas_agree),
    ("the dump is a history", dump_is_a_history),
    ("nothing is lost", nothing_is_lost),
    ("nothing is invented or doubled", nothing_is_invented),
    ("revisions respect real time", real_time_is_respected),
    ("answers are the replayed state", answers_are_true),
    ("money is neither made nor lost", money_stays),
    ("a member's time never goes back", members_never_go_back),
    ("watches are complete", watches_are_complete),
    ("no quorum, no answer", nothing_without_quorum),
];

/// The promises that were broken.
pub(crate) fn broken(seen: &Seen) -> Vec<String> {
    let verdicts = PROMISES.iter().map(|(name, judge)| (name, judge(seen)));
    verdicts
        .filter_map(|(name, verdict)| Some(format!("not true: {name}: {}", verdict.err()?)))
        .collect()
}

/// Every node tells the same events and has the same keys in the end.
fn dumps_agree(seen: &Seen) -> Verdict {
    let first = seen.dumps.first().ok_or("there is no dump")?;
    for (node, dump) in seen.dumps.iter().enumerate() {
        if dump != first {
            let pairs = first.events.iter().zip(&dump.events);
            let same = pairs.take_while(|(one, other)| one == other).count();
            return Err(format!(
                "node {} differs from node 1 at event {same}: {:?} and {:?}",
                node + 1,
                dump.events.get(same),
                first.events.get(same)
            ));
        }
    }
    Ok(())
}

/// Replicas of a group that have applied the same entry have the same content.
fn replicas_agree(seen: &Seen) -> Verdict {
    let mut known = BTreeMap::new();
    for (node, content) in &seen.contents {
        let position = (content.group, content.index);
        let (first, hash) = known.entry(position).or_insert((node, &content.hash));
        if *hash != &content.hash {
            return Err(format!("{content} on node {node}, {hash} on node {first}"));
        }
    }
    Ok(())
}

/// Revisions grow; each event's version, and what it says was there before,
/// follow from the events before it; the keys at the end from all of them.
fn dump_is_a_history(seen: &Seen) -> Verdict {
    let dump = &seen.dumps[0];
    let mut state: BTreeMap<&str, &Kv> = BTreeMap::new();
    let mut last = (1, BTreeSet::new());
    for (change, before) in &dump.events {
        let key = change.kv.key.as_str();
        if change.revision() < last.0 {
            return Err(format!("{change} comes after revision {}", last.0));
        }
        if change.revision() > last.0 {
            last = (change.revision(), BTreeSet::new());
        }
        if !last.1.insert(key) {
            return Err(format!("{change} is there twice"));
        }
        let there = state.get(key).copied();
        if before.as_ref() != there {
            return Err(format!("{change}: {there:?} was there, not {before:?}"));
        }
        if change.deleted {
            state.remove(key).ok_or(format!("{change}: of nothing"))?;
            continue;
        }
        let (create, version) =
            there.map_or((change.revision(), 1), |kv| (kv.create, kv.version + 1));
        if (change.kv.create, change.kv.version) != (create, version) {
            return Err(format!("{change}: after {there:?}"));
        }
        state.insert(key, &change.kv);
    }
    match state.into_values().eq(&dump.state) {
        true => Ok(()),
        false => Err(format!("in the end there is {:?}", dump.state)),
    }
}

/// Every acknowledged write is in the dump, with its revision and its value,
/// and no two have the same revision.
fn nothing_is_lost(seen: &Seen) -> Verdict {
    let replay = Replay::new(&seen.dumps[0]);
    let mut revisions = BTreeSet::new();
    for step in &seen.history.steps {
        let Some(revision) = step.written() else {
            continue;
        };
        if !revisions.insert(revision) {
            return Err(format!("{step}: another has that revision"));
        }
        let there = replay.changes.get(&revision);
        if there.is_none_or(|there| *there != step.ask.changes()) {
            return Err(format!("{step}: at its revision there is {there:?}"));
        }
    }
    Ok(())
}

/// Every revision of the dump is of one write that was asked for and did not
/// fail, and each write is there at most once.
fn nothing_is_invented(seen: &Seen) -> Verdict {
    let replay = Replay::new(&seen.dumps[0]);
    let steps = &seen.history.steps;
    let written: BTreeSet<i64> = steps.iter().filter_map(Step::written).collect();
    // Values are unique, so a write that has one is known by it.
    let mut unknown: BTreeMap<Changes<'_>, &Step> = BTreeMap::new();
    // Deletions are not: for each key, what was acknowledged before each.
    let mut deletions: BTreeMap<&str, Vec<i64>> = BTreeMap::new();
    let told = Told::firmly(steps);
    for step in steps.iter().filter(|step| step.is_unknown_write()) {
        match &step.ask {
            Ask::Delete { key } => deletions
                .entry(key)
                .or_default()
                .push(told.before(step.asked_at)),
            ask => {
                unknown.insert(ask.changes(), step);
            }
        }
    }
    for after in deletions.values_mut() {
        // Each is given the earliest that it can be.
        after.sort_unstable_by(|one, other| other.cmp(one));
    }
    for (revision, changes) in &replay.changes {
        if written.contains(revision) {
            continue;
        }
        let asked = match changes[..] {
            [(key, None)] => {
                let left = deletions.get_mut(key);
                left.and_then(|left| left.pop_if(|after| *after < *revision))
                    .is_some()
            }
            _ => match unknown.remove(changes) {
                Some(step) => told.before(step.asked_at) < *revision,
                None => false,
            },
        };
        if !asked {
            return Err(format!("nobody asked for {changes:?} at {revision}"));
        }
    }
    Ok(())
}

/// What was answered before something was asked has a lower revision, or for
/// a read, none that is higher.
fn real_time_is_respected(seen: &Seen) -> Verdict {
    let steps = &seen.history.steps;
    let told = Told::firmly(steps);
    for step in steps {
        let before = told.before(step.asked_at);
        let (Some(revision), false) = (step.revision(), matches!(step.ask, Ask::Local { .. }))
        else {
            continue;
        };
        let respected = match step.written() {
            Some(revision) => revision > before,
            None => revision >= before,
        };
        if !respected {
            return Err(format!("{step}: {before} was told before"));
        }
    }
    Ok(())
}

/// Every answer, also of a write that changed nothing, is what the replayed
/// events say at its revision; a write tells what was there right before.
fn answers_are_true(seen: &Seen) -> Verdict {
    let replay = Replay::new(&seen.dumps[0]);
    for step in &seen.history.steps {
        let Heard::Done {
            revision,
            changed,
            kvs,
        } = &step.heard
        else {
            continue;
        };
        let at = revision - i64::from(*changed && step.ask.is_write());
        let keys = step.ask.keys();
        let there = match &step.ask {
            // It doesn't tell.
            Ask::Together { .. } => Vec::new(),
            _ if keys.is_empty() => replay.all_at(at),
            _ => keys.iter().filter_map(|key| replay.at(key, at)).collect(),
        };
        let modified_at = |key: &String| replay.at(key, at).map_or(0, |kv| kv.modified);
        let right = match &step.ask {
            Ask::Delete { .. } => *changed != there.is_empty() && kvs.iter().eq(there),
            // Only one that was not done tells what is there.
            Ask::Swap { key, modified, .. } => {
                (modified_at(key) == *modified) == *changed && (*changed || kvs.iter().eq(there))
            }
            Ask::Transfer { keys, modified, .. } => {
                let unchanged = keys.each_ref().map(modified_at) == *modified;
                unchanged == *changed && (*changed || kvs.iter().eq(there))
            }
            _ => kvs.iter().eq(there),
        };
        if !right {
            let there: Vec<_> = keys.iter().map(|key| replay.at(key, at)).collect();
            return Err(format!("{step}: replayed, there is {there:?} at {at}"));
        }
    }
    Ok(())
}

/// All accounts together have what they were opened with, in every answer
/// that has all of them and after every revision.
fn money_stays(seen: &Seen) -> Verdict {
    let opened = seen.history.steps.iter().find_map(|step| match &step.ask {
        Ask::Together { keys, value } => Some(balance(value)? * keys.len() as i64),
        _ => None,
    });
    // Before they are opened there are no accounts.
    let stays = |balances: &[i64]| balances.is_empty() || Some(balances.iter().sum()) == opened;
    for step in &seen.history.steps {
        let Heard::Done { kvs, .. } = &step.heard else {
            continue;
        };
        let balances: Vec<i64> = kvs.iter().filter_map(|kv| balance(&kv.value)).collect();
        if step.ask.keys().is_empty() && !stays(&balances) {
            return Err(format!("{step}: {}", balances.iter().sum::<i64>()));
        }
    }
    let mut accounts: BTreeMap<&str, i64> = BTreeMap::new();
    for (revision, changes) in Replay::new(&seen.dumps[0]).changes {
        for (key, value) in changes {
            match value.and_then(balance) {
                Some(balance) => accounts.insert(key, balance),
                None => accounts.remove(key),
            };
        }
        let balances: Vec<i64> = accounts.values().copied().collect();
        if !stays(&balances) {
            let sum: i64 = balances.iter().sum();
            return Err(format!("{sum} at {revision}, not {opened:?}"));
        }
    }
    Ok(())
}

/// A serializable read is not older than anything that the same process has
/// answered before from the same groups; so it finds the writes made there.
fn members_never_go_back(seen: &Seen) -> Verdict {
    let mut processes: BTreeMap<&str, Vec<&Step>> = BTreeMap::new();
    for step in &seen.history.steps {
        processes.entry(&step.process).or_default().push(step);
    }
    for steps in processes.into_values() {
        for letter in seen.letters() {
            let touches = |step: &Step| {
                let keys = step.ask.keys();
                keys.is_empty() || keys.iter().any(|key| key.starts_with(letter))
            };
            let here = || steps.iter().copied().filter(|step| touches(step));
            let told = Told::by(here());
            for step in here().filter(|step| matches!(step.ask, Ask::Local { .. })) {
                let before = told.before(step.asked_at);
                if step.revision().is_some_and(|revision| revision < before) {
                    return Err(format!("{step}: {before} was told here before"));
                }
            }
        }
    }
    Ok(())
}

/// Every watch was given each event of its keys from its start to its last
/// delivery, once, in order, and no revision in two deliveries.
fn watches_are_complete(seen: &Seen) -> Verdict {
    let dump = &seen.dumps[0];
    let mut writes: Vec<(u64, i64)> = seen
        .history
        .steps
        .iter()
        .filter_map(|step| Some((step.asked_at, step.written()?)))
        .collect();
    writes.sort_unstable();
    for watch in &seen.history.watches {
        let name = format!(
            "watch of process {} from {} at {}",
            watch.process, watch.from, watch.began_at
        );
        for two in watch.deliveries.windows(2) {
            let (last, next) = (two[0].last(), two[1].first());
            if last.map(|change| change.revision()) >= next.map(|change| change.revision()) {
                return Err(format!("{name}: {last:?} and {next:?} in two deliveries"));
            }
        }
        let given: Vec<_> = watch.deliveries.iter().flatten().collect();
        let (Some(first), Some(last)) = (given.first(), given.last()) else {
            continue;
        };
        let start = match watch.from {
            // It must at least have all that was asked for after it began.
            0 => {
                let later = writes.partition_point(|(at, _)| *at <= watch.began_at);
                let asked_later = writes[later..].iter().map(|(_, revision)| *revision).min();
                asked_later.map_or(first.revision(), |asked| asked.min(first.revision()))
            }
            from => from,
        };
        let prefix = watch.prefix.as_deref().unwrap_or_default();
        let before = dump
            .events
            .partition_point(|(change, _)| change.revision() < start);
        let mut wanted = dump.events[before..]
            .iter()
            .map(|(change, _)| change)
            .take_while(|change| change.revision() <= last.revision())
            .filter(|change| change.kv.key.starts_with(prefix));
        for change in &given {
            let due = wanted.next();
            if due != Some(change) {
                return Err(format!("{name}: {change} where {due:?} was due"));
            }
        }
        if let Some(missing) = wanted.next() {
            return Err(format!("{name}: {missing} is missing"));
        }
    }
    Ok(())
}

/// While there was no quorum, nothing was done and nothing read but locally.
fn nothing_without_quorum(seen: &Seen) -> Verdict {
    for step in &seen.history.steps {
        let local = matches!(step.ask, Ask::Local { .. });
        let (Some(heard_at), Heard::Done { .. }, false) = (step.heard_at, &step.heard, local)
        else {
            continue;
        };
        let inside = |(from, to): &&(u64, u64)| *from <= step.asked_at && heard_at <= *to;
        if let Some((from, to)) = seen.alone.iter().find(inside) {
            return Err(format!("{step}: no quorum from {from} to {to}"));
        }
    }
    Ok(())
}

impl Seen {
    /// The first letters of keys; those of a letter are in the same group.
    fn letters(&self) -> BTreeSet<char> {
        let steps = self.history.steps.iter();
        let letters = steps.flat_map(|step| step.ask.keys().into_iter());
        letters.filter_map(|key| key.chars().next()).collect()
    }
}

/// The highest revision that was told until a time, for every time of an answer.
struct Told(Vec<(u64, i64)>);

impl Told {
    fn by<'a>(steps: impl Iterator<Item = &'a Step>) -> Self {
        let answers = steps.filter_map(|step| Some((step.heard_at?, step.revision()?)));
        let mut answers: Vec<(u64, i64)> = answers.collect();
        answers.sort_unstable();
        let mut highest = 0;
        for (_, revision) in &mut answers {
            highest = highest.max(*revision);
            *revision = highest;
        }
        Self(answers)
    }

    /// By what is linearizable.
    fn firmly(steps: &[Step]) -> Self {
        let firm = |step: &&Step| !matches!(step.ask, Ask::Local { .. });
        Self::by(steps.iter().filter(firm))
    }

    fn before(&self, time: u64) -> i64 {
        let before = self.0.partition_point(|(at, _)| *at < time);
        before.checked_sub(1).map_or(0, |last| self.0[last].1)
    }
}

/// The dump, to be looked up.
struct Replay<'a> {
    /// By revision, what became of which keys.
    changes: BTreeMap<i64, Changes<'a>>,
    /// By key, its versions.
    versions: BTreeMap<&'a str, Vec<(i64, Option<&'a Kv>)>>,
}

impl<'a> Replay<'a> {
    fn new(dump: &'a Dump) -> Self {
        let mut changes: BTreeMap<i64, Changes<'a>> = BTreeMap::new();
        let mut versions: BTreeMap<&'a str, Vec<_>> = BTreeMap::new();
        for (change, _) in &dump.events {
            let kv = (!change.deleted).then_some(&change.kv);
            let key = change.kv.key.as_str();
            let value = kv.map(|kv| kv.value.as_str());
            let revision = change.revision();
            changes.entry(revision).or_default().push((key, value));
            versions.entry(key).or_default().push((revision, kv));
        }
        Self { changes, versions }
    }

    /// What a key had at a revision.
    fn at(&self, key: &str, revision: i64) -> Option<&'a Kv> {
        let versions = self.versions.get(key)?;
        let later = versions.partition_point(|(at, _)| *at <= revision);
        versions[..later].last()?.1
    }

    fn all_at(&self, revision: i64) -> Vec<&'a Kv> {
        let keys = self.versions.keys();
        keys.filter_map(|key| self.at(key, revision)).collect()
    }
}

#[cfg(test)]
mod tests;
