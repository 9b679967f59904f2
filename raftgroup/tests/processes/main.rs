//! A cluster of real processes on the real disk, under load, killed at random:
//! nothing acknowledged is lost, nothing is done twice, nobody sees what never
//! was.
//!
//! Less than half a minute each, or `PONTOON_PROCESSES_SECS`. The seed of
//! `PONTOON_PROCESSES_SEED` decides what is done when, not what comes of it.
//! With `PONTOON_PROCESSES_KEEP` the files stay, as they do after a failure;
//! `PONTOON_PROCESSES_DIR` names such files to be judged again.

use std::path::Path;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

mod check;
mod driver;
mod history;
mod load;
mod member;

use check::Seen;
use driver::{Cluster, Errand, NODES};
use history::{Ask, Heard, Step};
use load::Load;
use member::Release;

/// Not a test: what this binary does when it is started as a member.
#[test]
#[ignore = "it is what members run"]
fn as_a_member() {
    if let Ok(seat) = std::env::var(driver::SEAT) {
        member::run(member::Seat::from_words(&seat).expect("the driver wrote it"));
    }
}

#[test]
fn killed_at_random() {
    run(Load::Keys, 20, torment);
}

/// Transactions over several groups, while ranges are split and a member is
/// replaced.
#[test]
fn transfers() {
    run(Load::Transfers, 25, |cluster, time, rng| {
        plan_changes(cluster, time, rng);
        torment(cluster, time, rng)
    });
}

/// Transactions go on while every member gets the next release, one after the
/// other: first so that there is a way back, which is taken, and then for good.
#[test]
fn upgraded_and_rolled_back() {
    run(Load::Transfers, 0, |cluster, _, _| upgrade(cluster));
}

/// A rolling upgrade, a rollback, and an upgrade for good.
fn upgrade(cluster: &mut Cluster) -> Result<(), String> {
    /// Between two steps, so that there is load on whatever is there by then.
    const A_WHILE: Duration = Duration::from_millis(1500);
    let (this, next) = (Release::THIS.newest, Release::NEXT.newest);
    let nodes = cluster.nodes();
    // The new kind is of no use to anybody yet, and nobody meets it.
    let nothing_new = |cluster: &mut Cluster| {
        for node in cluster.nodes() {
            let seen = cluster.version(node)?;
            if seen != (this, 0) {
                return Err(format!("node {node} is at {seen:?} already"));
            }
        }
        Ok(())
    };
    for release in [Release::NEXT_HELD_BACK, Release::THIS, Release::NEXT] {
        for node in &nodes {
            cluster.attend(A_WHILE)?;
            nothing_new(cluster)?;
            cluster.restart(*node, release)?;
        }
    }
    // All agree now. The new kind is used everywhere, and by every leader.
    let deadline = Instant::now() + Duration::from_secs(120);
    let before = loop {
        cluster.attend(A_WHILE)?;
        let mut seen = Vec::new();
        for node in &nodes {
            seen.push(cluster.version(*node)?);
        }
        if seen
            .iter()
            .all(|(version, trials)| *version == next && *trials > 0)
        {
            break seen;
        }
        if Instant::now() > deadline {
            return Err(format!("it stays at {seen:?}"));
        }
    };
    println!("version and entries of the new kind, by node: {before:?}");
    // Now there is no way back, and whoever takes it is told so.
    for node in &nodes {
        let said = cluster.start_in_vain(*node, Release::THIS)?;
        let expected = format!(
            "the cluster has version {next}, this release understands versions up to {this}"
        );
        let unknown = format!("in format version {next}; this one understands up to {this}");
        if !said.contains(&expected) && !said.contains(&unknown) {
            return Err(format!("node {node} ended for another reason:\n{said}"));
        }
        cluster.restart(*node, Release::NEXT)?;
        cluster.attend(A_WHILE)?;
    }
    Ok(())
}

/// A run of some length, if none is asked for, in which something is done to
/// the cluster.
fn run(
    load: Load,
    secs: u64,
    done: impl FnOnce(&mut Cluster, Duration, &mut SmallRng) -> Result<(), String>,
) {
    static ALONE: Mutex<()> = Mutex::new(());
    // Two at a time would only keep each other waiting.
    let _alone = ALONE.lock();
    let from_env = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let secs = from_env("PONTOON_PROCESSES_SECS").unwrap_or(secs);
    let seed = from_env("PONTOON_PROCESSES_SEED").unwrap_or_else(history::now);
    let dir = tempfile::Builder::new()
        .prefix("processes-")
        .tempdir_in(env!("CARGO_TARGET_TMPDIR"))
        .expect("a directory");
    println!("{}, seed {seed}", load.name());
    let outcome = under_load(dir.path(), load, seed, |cluster, rng| {
        done(cluster, Duration::from_secs(secs), rng)
    });
    let wrong = match outcome {
        Ok(seen) => {
            println!("{secs} s, {}", summary(&seen));
            check::broken(&seen)
        }
        Err(error) => vec![error],
    };
    if wrong.is_empty() && std::env::var_os("PONTOON_PROCESSES_KEEP").is_none() {
        return;
    }
    let dir = dir.keep();
    println!("histories, dumps and diary are in {}", dir.display());
    assert!(wrong.is_empty(), "seed {seed}: {}", wrong.join("\n"));
}

/// Judges once more what an earlier run left in `PONTOON_PROCESSES_DIR`.
#[test]
fn what_is_left_of_a_run() {
    if let Some(dir) = std::env::var_os("PONTOON_PROCESSES_DIR") {
        let seen = driver::gather(Path::new(&dir)).expect("it can be read");
        println!("{}", summary(&seen));
        let wrong = check::broken(&seen);
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}

/// Does something to a cluster under load, and gathers what came of it.
fn under_load(
    dir: &Path,
    load: Load,
    seed: u64,
    done: impl FnOnce(&mut Cluster, &mut SmallRng) -> Result<(), String>,
) -> Result<Seen, String> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut cluster = Cluster::new(dir, load, 1, &mut rng);
    for node in cluster.nodes() {
        cluster.start(node);
    }
    cluster.open()?;
    done(&mut cluster, &mut rng)?;
    cluster.settle()?;
    // With all there, the rest of what can happen happens.
    cluster.attend(pause(&mut rng, 2000..3000))?;
    cluster.finish()?;
    driver::gather(dir)
}

/// Kills nodes, mostly one at a time, and lets them come back, for so long.
fn torment(cluster: &mut Cluster, time: Duration, rng: &mut SmallRng) -> Result<(), String> {
    let end = Instant::now() + time;
    while Instant::now() < end {
        cluster.attend(pause(rng, 1000..5000))?;
        let mut nodes = cluster.nodes();
        nodes.shuffle(rng);
        nodes.truncate(match rng.random_range(0..100) {
            0..70 => 1,
            70..90 => 2,
            _ => nodes.len(),
        });
        for node in &nodes {
            cluster.kill(*node);
        }
        for node in &nodes {
            cluster.attend(pause(rng, 0..2500))?;
            cluster.start(*node);
        }
    }
    Ok(())
}

/// Three splits, and between them one member is lost and replaced.
fn plan_changes(cluster: &mut Cluster, time: Duration, rng: &mut SmallRng) {
    let (old, new) = (rng.random_range(1..=NODES as u64), NODES as u64 + 1);
    let address = cluster.address(new).to_owned();
    let mut letters: Vec<char> = Load::Transfers.later_splits().collect();
    letters.shuffle(rng);
    let split = |letter: &char| vec![Errand::Tell(format!("split {letter}"))];
    let replace = vec![
        Errand::Retire(old),
        Errand::Tell(format!("remove {old}")),
        Errand::Tell(format!("add {new} {address}")),
        Errand::Join(new),
        Errand::Tell(format!("promote {new}")),
    ];
    let mut changes: Vec<_> = letters[..3].iter().map(split).collect();
    changes.insert(rng.random_range(0..=changes.len()), replace);
    let count = changes.len() as u32 + 1;
    for (number, errands) in (1..).zip(changes) {
        for errand in errands {
            cluster.plan(time * number / count, errand);
        }
    }
}

fn pause(rng: &mut SmallRng, millis: std::ops::Range<u64>) -> Duration {
    Duration::from_millis(rng.random_range(millis))
}

/// What happened, in numbers.
fn summary(seen: &Seen) -> String {
    let steps = &seen.history.steps;
    let count = |what: fn(&Step) -> bool| steps.iter().filter(|step| what(step)).count();
    let done = |step: &Step| matches!(step.heard, Heard::Done { .. });
    let reads = steps
        .iter()
        .filter(|step| done(step) && !step.ask.is_write());
    let (local, linearizable): (Vec<_>, Vec<_>) =
        reads.partition(|step| matches!(step.ask, Ask::Local { .. }));
    let without_change = count(|step| {
        let unchanged = matches!(step.heard, Heard::Done { changed: false, .. });
        step.ask.is_write() && unchanged
    });
    let watched = seen.history.watches.iter();
    let events: usize = watched
        .flat_map(|watch| &watch.deliveries)
        .map(Vec::len)
        .sum();
    let mut acknowledged: Vec<u64> = steps
        .iter()
        .filter(|step| step.written().is_some())
        .filter_map(|step| step.heard_at)
        .collect();
    acknowledged.sort_unstable();
    let gaps = acknowledged.windows(2).map(|two| {
        let without_quorum = seen.alone.iter().map(|(from, to)| {
            let (from, to) = (from.max(&two[0]), to.min(&two[1]));
            to.saturating_sub(*from)
        });
        (two[1] - two[0] - without_quorum.sum::<u64>(), two[0])
    });
    let (gap, gap_at) = gaps.max().unwrap_or_default();
    let gap = Duration::from_nanos(gap);
    let revisions = seen.dumps[0]
        .events
        .last()
        .map_or(0, |(last, _)| last.revision());
    format!(
        "{} kills, {} times without quorum, {} splits, {} replaced; writes: {} acknowledged, {} changed \
         nothing, {} unknown, {} failed; reads: {} linearizable, {} serializable; {} watches with \
         {events} events; {} events in the end, newest revision {revisions}; longest time \
         with a quorum and without an acknowledged write {gap:.1?} (from {gap_at} on)",
        seen.kills,
        seen.alone.len(),
        seen.splits,
        seen.replaced,
        acknowledged.len(),
        without_change,
        count(Step::is_unknown_write),
        count(|step| step.ask.is_write() && matches!(step.heard, Heard::Failed(_))),
        linearizable.len(),
        local.len(),
        seen.history.watches.len(),
        seen.dumps[0].events.len(),
    )
}
