//! What starts a node's process and starts it again after it has exited, as
//! systemd would; and what sees that a node which can't go on does exit.
//!
//! Kept true: nothing but an exit has a process started again. A process exits
//! when its node says that it has failed, or can't be opened. What it had
//! written is there for the next one, unless a failed sync has left in the page
//! cache what the medium hasn't: then the power fails, too.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use pontoon_raftgroup::NodeId;
use pontoon_wal::disk::sim::Rng;
use tokio::time::{Instant, sleep};

use crate::cluster::{Ending, Running};
use crate::seeds::Sim;
use crate::waits::{Illness, election_timeout};
use crate::watchers::collect;

/// The longest pause before a process that has exited is started again.
const RESTART_MAX: Duration = Duration::from_secs(2);

/// Ends a node's process from outside.
pub(crate) fn end(sim: &Sim, id: NodeId, ending: Ending) {
    // What a failed sync left in the page cache would be there after a kill,
    // and gone after the next power cut.
    let tainted = sim.tainted.borrow_mut().remove(&id);
    let ending = if tainted { Ending::PowerCut } else { ending };
    sim.trace
        .say(format_args!("node {id}"), format_args!("{ending:?}"));
    sim.history.borrow_mut().count("node ended");
    sim.cluster.end(id, ending);
    sim.hung.borrow_mut().remove(&id);
    sim.hung_until.borrow_mut().remove(&id);
    sim.is_well_again(id);
}

/// Starts a node that doesn't run. If it exits before it is open, again.
pub(crate) async fn start(sim: &Rc<Sim>, id: NodeId) {
    if sim.cluster.is_running(id) || !sim.starting.borrow_mut().insert(id) {
        return;
    }
    let rng = &mut Rng::new(sim.plan.seed ^ id.0 << 32 ^ sim.trace.now().as_nanos() as u64);
    // One that is gone, or goes meanwhile, is not started.
    let is_gone = || sim.cluster.is_gone(id);
    while !is_gone() {
        sim.trace.say(format_args!("node {id}"), "starts");
        let Err(error) = sim.cluster.start_node(id).await else {
            match is_gone() {
                true => sim.cluster.end(id, Ending::PowerCut),
                false => {
                    collect(sim, id);
                    supervise(sim, id);
                }
            }
            sim.cause();
            break;
        };
        sim.trace.say(format_args!("node {id}"), &error);
        sim.history.borrow_mut().count("node exited at its start");
        if !is_of_disk(&error) && !sim.went_back_too_late(id, &error) {
            let promise = "A node opens after any crash.";
            sim.violate(promise, format!("node {id}: {error}"));
            break;
        }
        end(sim, id, Ending::Kill);
        sleep(pause(rng)).await;
    }
    sim.starting.borrow_mut().remove(&id);
}

fn pause(rng: &mut Rng) -> Duration {
    Duration::from_millis(1 + rng.below(RESTART_MAX.as_millis() as u64))
}

/// Whether a failure is one that was made.
fn is_of_disk(failure: &str) -> bool {
    let made = ["simulated crash", "(os error 5)", "(os error 30)"];
    made.iter().any(|made| failure.contains(made))
}

/// Waits until the process of a node that has just started exits by itself,
/// and starts it again.
fn supervise(sim: &Rc<Sim>, id: NodeId) {
    let Some(running) = sim.cluster.running(id) else {
        return;
    };
    let sim = Rc::clone(sim);
    let mut rng = Rng::new(sim.plan.seed ^ 0x5afe << 16 ^ running.start);
    tokio::task::spawn_local(async move {
        let Some(fault) = running.during(running.node.failed()).await else {
            return;
        };
        sim.trace
            .say(format_args!("node {id}"), format_args!("exits: {fault}"));
        // What waited for the disk is not durable in the instant in which the disk
        // comes back, and never if the file system is read-only by then.
        let hung_until = sim.hung_until.borrow().get(&id).copied();
        let hung = sim.hung.borrow().contains_key(&id)
            || hung_until.is_some_and(|until| until.elapsed() < HANG_SHOWS);
        sim.history.borrow_mut().count(match hung {
            true => "node exited by itself, its disk hung",
            false => "node exited by itself",
        });
        if !is_of_disk(&fault.0) && !hung && !sim.went_back_too_late(id, &fault.0) {
            let promise = "A node fails only if its disk does.";
            sim.violate(promise, format!("node {id}: {fault}"));
        }
        end(&sim, id, Ending::Kill);
        sim.wait(pause(&mut rng)).await;
        start(&sim, id).await;
    });
}

const STOPS_OR_IS_REBUILT: &str = "A failed replica stops its node or is rebuilt.";

const LEADS_NOTHING: &str = "A node whose disk hangs leads nothing.";

/// What was under way when a disk began to hang, or came back, is over after this.
const HANG_SHOWS: Duration = Duration::from_millis(500);

/// Counts leaders and snapshots, and sees that nodes don't live on with
/// replicas that have failed.
pub(crate) async fn look_on(sim: Rc<Sim>) {
    let mut seen = Seen::default();
    loop {
        sleep(Duration::from_millis(50)).await;
        for (id, running) in sim.cluster.all_running() {
            seen.look_at(&sim, id, &running);
            sim.look_at_version(id, &running);
            seen.look_at_hanging(&sim, id, &running);
        }
    }
}

#[derive(Default)]
struct Seen {
    /// Snapshots by start and group.
    snapshots: BTreeMap<(u64, u64), u64>,
    /// Failures by start and group, since when.
    failed: BTreeMap<(u64, u64), Instant>,
    told: BTreeSet<(u64, u64)>,
    /// Nodes that rebuild a replica, by start.
    rebuilding: BTreeMap<u64, Illness>,
    /// Nodes whose disks hang, by when that began.
    hanging: BTreeMap<(NodeId, Instant), Hanging>,
}

/// What is known of a node whose disk hangs.
struct Hanging {
    /// Entries in its log, of all groups.
    entries: u64,
    /// Since when there are more, so that something waits for the disk.
    waiting: Option<Instant>,
}

impl Seen {
    fn look_at(&mut self, sim: &Sim, id: NodeId, running: &Running) {
        let damaged = running.node.damaged();
        for status in running.node.status() {
            let group = status.group;
            let leads = (group, status.term.0);
            if status.leads && sim.history.borrow_mut().leaders.insert(leads) {
                let name = match group.is_root() {
                    true => "epoch",
                    false => "term of another group",
                };
                sim.history.borrow_mut().count(name);
                let term = status.term;
                sim.trace.say(
                    format_args!("node {id}"),
                    format_args!("leads group {group} in term {term}"),
                );
            }
            let of_start = (running.start, group.0);
            let installed = self.snapshots.entry(of_start).or_insert(0);
            while *installed < status.snapshots {
                *installed += 1;
                sim.history.borrow_mut().count("snapshot installed");
                sim.trace.say(
                    format_args!("node {id}"),
                    format_args!("group {group} from a snapshot"),
                );
            }
            let Some(failure) = status.failure.filter(|_| !damaged.contains_key(&group)) else {
                self.failed.remove(&of_start);
                continue;
            };
            let since = *self.failed.entry(of_start).or_insert_with(|| {
                sim.trace.say(
                    format_args!("node {id}"),
                    format_args!("group {group} has failed: {failure}"),
                );
                Instant::now()
            });
            self.judge(sim, id, of_start, since, failure);
        }
        let was_rebuilding = self.rebuilding.get(&running.start).copied();
        match (damaged.is_empty(), was_rebuilding) {
            (false, None) => {
                sim.history.borrow_mut().count("replica found damaged");
                sim.trace
                    .say(format_args!("node {id}"), format_args!("{damaged:?}"));
                self.rebuilding.insert(running.start, sim.falls_ill(id));
            }
            (true, Some(illness)) => {
                self.rebuilding.remove(&running.start);
                sim.recovers(illness);
            }
            _ => {}
        }
    }

    /// Sees that a node gives up leading if its disk hangs while it works.
    fn look_at_hanging(&mut self, sim: &Sim, id: NodeId, running: &Running) {
        let hung_since = sim.hung.borrow().get(&id).copied();
        let Some(since) = hung_since.filter(|since| since.elapsed() > HANG_SHOWS) else {
            return;
        };
        let status = running.node.status();
        let entries = status.iter().map(|status| status.last.0).sum();
        let hanging = self.hanging.entry((id, since)).or_insert(Hanging {
            entries,
            waiting: None,
        });
        if entries > hanging.entries {
            hanging.waiting.get_or_insert_with(Instant::now);
        }
        let most = election_timeout(&sim.plan.shape) + Duration::from_secs(1);
        let too_long = |waiting: Instant| waiting.elapsed() > most;
        let leads = status.iter().find(|status| status.leads);
        if let Some(status) = leads.filter(|_| hanging.waiting.is_some_and(too_long))
            && self.told.insert((running.start, status.group.0))
        {
            let hangs = since.elapsed();
            let detail = format!("node {id} leads group {} after {hangs:?}", status.group);
            sim.violate(LEADS_NOTHING, detail);
        }
    }

    fn judge(
        &mut self,
        sim: &Sim,
        id: NodeId,
        of_start: (u64, u64),
        since: Instant,
        failure: String,
    ) {
        // Its replicas stop when their groups let it go.
        if sim.leaving.borrow().contains(&id) || self.told.contains(&of_start) {
            return;
        }
        let promise = if sim.went_back_too_late(id, &failure) {
            return;
        } else if !is_of_disk(&failure) && !sim.damaged.borrow().contains(&id) {
            "A replica stops only if its disk fails."
        } else if since.elapsed() > election_timeout(&sim.plan.shape) {
            STOPS_OR_IS_REBUILT
        } else {
            return;
        };
        self.told.insert(of_start);
        let group = of_start.1;
        sim.violate(promise, format!("node {id}, group {group}: {failure}"));
    }
}
