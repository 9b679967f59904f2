//! Engine and model side by side.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Debug;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use pontoon_engine::{
    Answer, Applied, Config, Copying, Effects, EngineError, Entry, Evaluated, Event, KeyRange,
    Pending, Range, ReadBudget, Reject, Request, Revision, Step, Store, Ticket, check, evaluate,
    range,
};
use pontoon_wal::disk::Disk;
use pontoon_wal::disk::sim::SimDisk;

use crate::model::Model;
use crate::ops::{Action, Pace, TXN_OPS_MAX};

mod split;

pub(super) use split::split_run;

/// With what the layers above would keep: the log since the last checkpoint,
/// the queue of requests, the staged keys.
pub(super) struct Both {
    path: String,
    disk: SimDisk,
    store: Arc<Store>,
    /// A copy of the keys that will be split off.
    copying: Option<Copying>,
    log: VecDeque<Entry>,
    log_index: u64,
    pending: Pending,
    queue: VecDeque<Queued>,
    next_ticket: u32,
    granted: BTreeMap<Ticket, i64>,
    /// Revision of what is applied and not pending.
    base: i64,
    staged: BTreeMap<i64, BTreeSet<Bytes>>,
    pub(super) model: Model,
    /// What went otherwise than well, by name.
    pub(super) met: BTreeSet<String>,
}

/// A request that was evaluated, and what the model says of it.
struct Queued {
    ticket: Ticket,
    pace: Pace,
    effects: Effects,
    answer: Answer,
    depends_on: Option<Ticket>,
    expected: Answer,
    /// The model's, after the request.
    revision: i64,
}

impl Both {
    pub(super) fn new(path: &str, seed: u64) -> Result<Self, String> {
        let disk = SimDisk::new(seed);
        disk.create_dir(Path::new("/agree"))
            .map_err(|error| error.to_string())?;
        let store = open(&disk, path)?;
        Ok(Self {
            path: path.into(),
            disk,
            store,
            copying: None,
            log: VecDeque::new(),
            log_index: 0,
            pending: Pending::new(),
            queue: VecDeque::new(),
            next_ticket: 0,
            granted: BTreeMap::new(),
            base: 1,
            staged: BTreeMap::new(),
            model: Model::new(),
            met: BTreeSet::new(),
        })
    }

    pub(super) fn act(&mut self, action: &Action) -> Result<(), String> {
        match action {
            Action::Request {
                request,
                named,
                pace,
                oldest,
            } => {
                self.request(request, *named)?;
                let oldest = oldest.unwrap_or(usize::MAX).min(self.queue.len());
                return self.advance(*pace, oldest);
            }
            Action::Grant(lease) => {
                if *lease != 0 {
                    self.model.leases.insert(*lease);
                }
                return Ok(());
            }
            Action::CompactStep(changes_max) => {
                self.store.compact_step(*changes_max).map_err(text)?;
                return Ok(());
            }
            Action::Checkpoint => return self.checkpoint(),
            Action::PowerCut(seed) => return self.power_cut(*seed),
            _ => self.advance(Pace::Retire, self.queue.len())?,
        }
        // The rest looks at applied state, or writes to the log itself.
        match action {
            Action::Read(range) => self.read(range),
            Action::Events {
                keys,
                from,
                through,
                prev_kv,
            } => self.events(keys, *from, *through, *prev_kv),
            Action::Compact(floor) => self.compact(*floor),
            Action::Stage {
                request,
                first,
                apart,
            } => self.stage(request, (*first, *apart)),
            Action::Decide { commit } => self.decide(*commit),
            Action::Record(name, content) => self.record(*name, content.clone()),
            _ => unreachable!("done above"),
        }
    }

    fn request(&mut self, request: &Request, named: bool) -> Result<(), String> {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        let mut own = Revision::of(ticket);
        if named {
            own = self.grant_all()?;
        }
        let mut evaluated = self.evaluate(own, request);
        if let Err(EngineError::Ungranted(awaited)) = evaluated {
            let mut queue = self.queue.iter();
            let waits = queue.any(|q| q.ticket == awaited && q.pace < Pace::Grant);
            let awaits_itself = own == Revision::of(awaited);
            agree("an ungranted ticket", &(waits || awaits_itself), &true)?;
            self.met
                .insert(format!("ungranted, its own: {awaits_itself}"));
            own = self.grant_all()?;
            evaluated = self.evaluate(own, request);
        }
        if let Err(EngineError::Undecided(revision)) = evaluated {
            self.met.insert("undecided".into());
            return agree(
                "what is undecided",
                &self.staged.contains_key(&revision.0),
                &true,
            );
        }
        self.compare_alone(own, request, &evaluated)?;
        let before = self.model.revision;
        let expected = self.model.execute(request, TXN_OPS_MAX);
        let (evaluated, expected) = match (evaluated, expected) {
            (Ok(evaluated), Ok(expected)) => (evaluated, expected),
            (Err(EngineError::Reject(reject)), Err(expected)) => {
                agree("reject", &reject, &expected)?;
                self.met.insert(format!("{reject:?}"));
                return Ok(());
            }
            (engine, model) => return Err(format!("engine {engine:?}\n  model  {model:?}")),
        };
        let changes = self.model.revision > before;
        agree(
            "whether it changes",
            &!evaluated.effects.is_empty(),
            &changes,
        )?;
        self.pending.add(ticket, own, evaluated.changes);
        self.queue.push_back(Queued {
            ticket,
            pace: if own.is_ungranted() {
                Pace::Wait
            } else {
                Pace::Grant
            },
            effects: evaluated.effects,
            answer: evaluated.answer,
            depends_on: evaluated.depends_on,
            expected,
            revision: self.model.revision,
        });
        Ok(())
    }

    /// Grants all that is queued; the next revision is that of the next request.
    fn grant_all(&mut self) -> Result<Revision, String> {
        self.advance(Pace::Grant, self.queue.len())?;
        Ok(Revision(self.model.revision + 1))
    }

    fn evaluate(&self, own: Revision, request: &Request) -> Result<Evaluated, EngineError> {
        self.evaluate_with(&self.pending, own, request)
    }

    fn evaluate_with(
        &self,
        pending: &Pending,
        own: Revision,
        request: &Request,
    ) -> Result<Evaluated, EngineError> {
        check(request, TXN_OPS_MAX)?;
        let lease_exists = |lease| self.model.leases.contains(&lease);
        let base = Revision(self.base);
        evaluate(&self.store, pending, base, own, &lease_exists, request)
    }

    /// What depends on nothing that waits is the same if nothing waits.
    fn compare_alone(
        &self,
        own: Revision,
        request: &Request,
        evaluated: &Result<Evaluated, EngineError>,
    ) -> Result<(), String> {
        let applied = self.queue.iter().any(|q| q.pace >= Pace::Apply);
        match evaluated {
            Ok(evaluated) if evaluated.depends_on.is_none() && !applied => {
                let alone = self.evaluate_with(&Pending::new(), own, request);
                let alone = alone.map_err(text)?;
                agree("answer alone", &alone.answer, &evaluated.answer)?;
                agree("effects alone", &alone.effects, &evaluated.effects)
            }
            _ => Ok(()),
        }
    }

    /// Whether a staged transaction holds a key; the layer above lets nobody
    /// else change it.
    fn holds(&self, effects: &Effects) -> bool {
        let mut held = self.staged.values();
        held.any(|keys| effects.iter().any(|effect| keys.contains(effect.key())))
    }

    /// Takes the oldest that are queued on to `pace`.
    fn advance(&mut self, pace: Pace, oldest: usize) -> Result<(), String> {
        let mut steps = Vec::new();
        for queued in self.queue.iter_mut().take(oldest) {
            let revision = Revision(queued.revision);
            if queued.pace < Pace::Grant && pace >= Pace::Grant {
                self.pending.grant(queued.ticket, revision);
            }
            if queued.pace < Pace::Apply && pace >= Pace::Apply && !queued.effects.is_empty() {
                steps.push(Step::Write {
                    revision,
                    effects: queued.effects.clone(),
                });
            }
            queued.pace = queued.pace.max(pace);
        }
        if !steps.is_empty() {
            self.append(steps)?;
        }
        if pace == Pace::Retire {
            for _ in 0..oldest {
                self.retire()?;
            }
        }
        if self.queue.is_empty() {
            agree("whether any wait", &self.pending.is_empty(), &true)?;
            agree("revision", &self.store.last_revision().0, &self.base)?;
        }
        Ok(())
    }

    /// The oldest that is queued is done.
    fn retire(&mut self) -> Result<(), String> {
        let mut queued = self.queue.pop_front().unwrap();
        self.granted.insert(queued.ticket, queued.revision);
        queued.answer.complete(&|ticket| {
            let told = ticket == queued.ticket || Some(ticket) <= queued.depends_on;
            assert!(told, "{ticket:?} is not among {:?}", queued.depends_on);
            Revision(self.granted[&ticket])
        });
        self.pending.retire(queued.ticket);
        self.base = queued.revision;
        agree("answer", &queued.answer, &queued.expected)
    }

    fn append(&mut self, steps: Vec<Step>) -> Result<(), String> {
        self.log_index += 1;
        let entry = Entry {
            applied: Applied {
                index: self.log_index,
                term: 1,
                leader: 1,
            },
            steps,
        };
        self.store.apply(&entry).map_err(text)?;
        self.log.push_back(entry);
        Ok(())
    }

    fn read(&self, wanted: &Range) -> Result<(), String> {
        let found = if wanted.keys.key.is_empty() {
            return Ok(());
        } else {
            range(&self.store, Revision(self.base), wanted)
        };
        if self.is_undecided(&found)? {
            return Ok(());
        }
        agree("read", &rejected(found)?, &self.model.range(wanted))
    }

    fn events(
        &self,
        keys: &KeyRange,
        from: i64,
        through: i64,
        prev_kv: bool,
    ) -> Result<(), String> {
        let (first, last) = (Revision(from), Revision(through));
        let found = self.store.events(keys, first, last, prev_kv);
        if self.is_undecided(&found)? {
            return Ok(());
        }
        let expected = self.model.events(keys, from, through, prev_kv);
        agree("events", &rejected(found)?, &expected)?;
        let Ok(expected) = expected else {
            return Ok(());
        };
        for share in 0..4 {
            let bytes: usize = expected.iter().map(Event::bytes).sum();
            let budget = ReadBudget {
                bytes_max: bytes * share / 3,
                changes_max: if share == 0 { usize::MAX } else { 1 << share },
            };
            self.events_within(keys, first, last, prev_kv, budget, &expected)?;
        }
        Ok(())
    }

    /// Whole revisions, as many as fit.
    fn events_within(
        &self,
        keys: &KeyRange,
        first: Revision,
        last: Revision,
        prev_kv: bool,
        budget: ReadBudget,
        all: &[Event],
    ) -> Result<(), String> {
        let read = self.store.events_within(keys, first, last, prev_kv, budget);
        let read = rejected(read)?.map_err(|reject| format!("{budget:?}: {reject}"))?;
        let bytes: usize = read.events.iter().map(Event::bytes).sum();
        let is_within = bytes <= budget.bytes_max && read.changes <= budget.changes_max;
        agree("a read within its budget", &is_within, &true)?;
        let at = all.partition_point(|event| event.change.revision <= read.through);
        agree("events within a budget", &read.events, &all[..at].to_vec())
    }

    /// Whether an answer has to wait for a staged transaction.
    fn is_undecided<T>(&self, found: &Result<T, EngineError>) -> Result<bool, String> {
        let Err(EngineError::Undecided(revision)) = found else {
            return Ok(false);
        };
        agree(
            "what is undecided",
            &self.staged.contains_key(&revision.0),
            &true,
        )?;
        Ok(true)
    }

    fn compact(&mut self, floor: i64) -> Result<(), String> {
        // The layer above compacts nothing that isn't decided.
        let undecided = self.staged.keys().next();
        if undecided.is_some_and(|staged| floor >= *staged) || self.model.compact(floor).is_err() {
            return Ok(());
        }
        let floor = Revision(floor);
        self.append(vec![Step::Compact { floor }])?;
        agree("floor", &self.store.floor(), &floor)
    }

    fn stage(&mut self, request: &Request, (first, apart): (u32, u32)) -> Result<(), String> {
        let own = Revision(self.model.revision + 1);
        let Ok(evaluated) = self.evaluate(own, request) else {
            return Ok(());
        };
        let effects = evaluated.effects;
        if effects.is_empty() || self.holds(&effects) {
            return Ok(());
        }
        let expected = self
            .model
            .stage(request, TXN_OPS_MAX, |place| first + place * apart);
        agree("staged", &Ok(evaluated.answer), &expected)?;
        let keys = effects.iter().map(|effect| effect.key().clone()).collect();
        self.staged.insert(own.0, keys);
        let places = 0..effects.len() as u32;
        self.append(vec![Step::Stage {
            revision: own,
            effects,
            subs: places.map(|place| first + place * apart).collect(),
        }])?;
        self.base = self.model.revision;
        Ok(())
    }

    fn decide(&mut self, commit: bool) -> Result<(), String> {
        let Some((staged, _)) = self.staged.pop_first() else {
            return Ok(());
        };
        self.model.decide(staged, commit);
        let revision = Revision(staged);
        self.append(vec![match commit {
            true => Step::Commit { revision },
            false => Step::Void { revision },
        }])
    }

    fn record(&mut self, name: u8, content: Option<Bytes>) -> Result<(), String> {
        let name = Bytes::copy_from_slice(&[name]);
        let step = Step::Record {
            name: name.clone(),
            content: content.clone(),
        };
        self.append(vec![step])?;
        agree("record", &self.store.record(&name).map_err(text)?, &content)
    }

    fn checkpoint(&mut self) -> Result<(), String> {
        self.store.checkpoint().map_err(text)?;
        self.log.clear();
        Ok(())
    }

    /// What was applied since the last checkpoint may be lost, and is applied again.
    fn power_cut(&mut self, seed: u64) -> Result<(), String> {
        let hash = self.store.applied_hash().map_err(text)?;
        self.copying = None;
        self.disk = self.disk.power_cut(seed);
        self.store = open(&self.disk, &self.path)?;
        let checkpoint = self.log_index - self.log.len() as u64;
        let kept = self.store.applied().index;
        agree(
            "what is kept",
            &(checkpoint..=self.log_index).contains(&kept),
            &true,
        )?;
        for entry in self.log.iter().filter(|entry| entry.applied.index > kept) {
            self.store.apply(entry).map_err(text)?;
        }
        let replayed = self.store.applied_hash().map_err(text)?;
        agree("hash after a power cut", &replayed, &hash)
    }

    pub(super) fn compare_all(&mut self) -> Result<(), String> {
        self.advance(Pace::Retire, self.queue.len())?;
        let all = KeyRange::all();
        for revision in self.model.floor.max(1)..=self.base {
            if revision == self.base || revision % 16 == 0 {
                let mut wanted = Range::of(all.clone());
                wanted.revision = revision;
                self.read(&wanted)?;
            }
        }
        self.events(&all, self.model.floor, self.base, true)?;
        for lease in [1, 2, 3, -7] {
            let mut keys = Vec::new();
            let mut push = |key: &[u8]| keys.push(Bytes::copy_from_slice(key));
            self.store.lease_keys(lease, &mut push).map_err(text)?;
            agree("keys of a lease", &keys, &self.model.lease_keys(lease))?;
        }
        Ok(())
    }
}

fn open(disk: &SimDisk, path: &str) -> Result<Arc<Store>, String> {
    let store = Store::open(disk, Path::new(path), Config::default());
    store.map(Arc::new).map_err(text)
}

/// Sorts refusals, which the model has too, from errors, which it doesn't.
fn rejected<T>(outcome: Result<T, EngineError>) -> Result<Result<T, Reject>, String> {
    match outcome {
        Ok(found) => Ok(Ok(found)),
        Err(EngineError::Reject(reject)) => Ok(Err(reject)),
        Err(error) => Err(text(error)),
    }
}

fn agree<T: PartialEq + Debug>(what: &str, engine: &T, model: &T) -> Result<(), String> {
    if engine == model {
        return Ok(());
    }
    Err(format!("{what}:\n  engine {engine:?}\n  model  {model:?}"))
}

fn text(error: EngineError) -> String {
    error.to_string()
}
