//! `pontoonctl tree` on real files, whole and broken.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use bytes::Bytes;
use pontoon_engine::format::{LAYOUTS, PAGE_BYTES};
use pontoon_engine::inspect::{self, Selection};
use pontoon_engine::{Applied, Config, Effect, Entry, Install, KeyRange, Revision, Step, Store};
use pontoon_wal::disk::sim::SimDisk;
use pontoon_wal::disk::{Backend, Disk as _, RealDisk};
use serde_json::Value;
use tempfile::TempDir;

use super::{Answer, BINARY, answer, contents, flip, json, lines_of_json, number, table};

const PAGE: usize = PAGE_BYTES;
const STORE: u128 = 0xfeed;
const KEYS: u64 = 300;

// Files to look at.

struct Sample {
    dir: TempDir,
    disk: RealDisk,
}

/// Applies steps, each with its own entry and revision.
struct Writer<'s> {
    store: &'s Store,
    index: u64,
    revision: i64,
}

impl Writer<'_> {
    fn step(&mut self, step: Step) {
        self.index += 1;
        let applied = Applied {
            index: self.index,
            term: 3,
            leader: 1,
        };
        let steps = vec![step];
        self.store.apply(&Entry { applied, steps }).unwrap();
    }

    fn next(&mut self) -> Revision {
        self.revision += 1;
        Revision(self.revision)
    }

    fn write(&mut self, effects: Vec<Effect>) {
        let revision = self.next();
        self.step(Step::Write { revision, effects });
    }
}

fn put(key: impl Into<String>, value: Vec<u8>, lease: i64) -> Effect {
    Effect::Put {
        key: Bytes::from(key.into()),
        value: value.into(),
        lease,
    }
}

fn delete(key: impl Into<String>) -> Effect {
    Effect::Delete {
        key: Bytes::from(key.into()),
    }
}

impl Sample {
    fn path(&self) -> PathBuf {
        self.dir.path().join("range.tree")
    }

    fn empty() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let disk = RealDisk::new(Backend::Syscalls, dir.path()).unwrap();
        Self { dir, disk }
    }

    fn open(&self) -> Store {
        let config = Config {
            store: STORE,
            ..Config::default()
        };
        Store::open(&self.disk, &self.path(), config).unwrap()
    }

    /// Branches, long values, leases, records, tombstones, a stage, and a
    /// floor that is swept in part.
    fn new() -> Self {
        let this = Self::empty();
        let store = this.open();
        let mut to = Writer {
            store: &store,
            index: 0,
            revision: 1,
        };
        for n in 0..KEYS {
            let value = vec![b'v'; 20 + (n as usize * 7) % 60];
            to.write(vec![put(
                format!("/registry/pods/ns-{}/{n:04}", n % 3),
                value,
                0,
            )]);
        }
        store.checkpoint().unwrap();
        to.write(vec![
            put("/registry/secrets/long", vec![b'x'; 9000], 0),
            put("/registry/leases/a", b"1".to_vec(), 77),
            put("/registry/leases/b", b"2".to_vec(), 77),
            put("zero\0key", b"\0\xff".to_vec(), -5),
        ]);
        to.write(vec![put("/registry/secrets/long", vec![b'y'; 6000], 0)]);
        to.write(vec![put("/registry/leases/a", b"3".to_vec(), 78)]);
        for n in (0..KEYS).step_by(10) {
            to.write(vec![delete(format!("/registry/pods/ns-{}/{n:04}", n % 3))]);
        }
        to.write(vec![put("/registry/pods/ns-0/0000", b"again".to_vec(), 0)]);
        for (name, content) in [("a", vec![1; 10]), ("b", vec![2; 3000])] {
            to.step(Step::Record {
                name: Bytes::from(name),
                content: Some(content.into()),
            });
        }
        let floor = Revision(KEYS as i64 + 10);
        to.step(Step::Compact { floor });
        assert!(store.compact_step(20).unwrap(), "some is left to sweep");
        store.checkpoint().unwrap();
        let revision = to.next();
        let effects = vec![
            put("/held", b"later".to_vec(), 9),
            delete("/registry/leases/b"),
        ];
        let subs = vec![1, 4];
        to.step(Step::Stage {
            revision,
            effects,
            subs,
        });
        to.write(vec![put("/registry/secrets/long", vec![b'z'; 5000], 0)]);
        store.checkpoint().unwrap();
        this
    }

    fn ask(&self, words: &[&str]) -> Answer {
        ask(&self.path(), words)
    }

    fn check(&self, code: i32) -> Value {
        let text = self.ask(&["check"]).expect(code);
        let report = json(&self.ask(&["check", "--json"]).expect(code));
        for finding in report["findings"].as_array().unwrap() {
            assert!(text.contains(finding["what"].as_str().unwrap()), "{text}");
        }
        assert_eq!(report["clean"], code == 0);
        assert_eq!(text.ends_with("\nclean\n"), code == 0, "{text}");
        report
    }

    fn bytes(&self) -> Vec<u8> {
        fs::read(self.path()).unwrap()
    }

    /// Changes a run of the file and makes its checksum right again.
    fn forge(&self, page: u64, change: impl FnOnce(&mut [u8])) {
        let mut file = self.bytes();
        let start = page as usize * PAGE;
        let pages = field("PageHeader", "pages", &file[start..]) as usize;
        let run = &mut file[start..start + pages * PAGE];
        change(run);
        let crc = crc32fast::hash(&run[4..]);
        run[..4].copy_from_slice(&crc.to_le_bytes());
        fs::write(self.path(), file).unwrap();
    }

    /// A field of the newest meta page.
    fn meta(&self, name: &str) -> u64 {
        let file = self.bytes();
        let newest = (0..2)
            .map(|page| &file[page * PAGE..][..PAGE])
            .max_by_key(|meta| field("Meta", "generation", meta));
        field("Meta", name, newest.unwrap())
    }

    fn page(&self, page: u64) -> Value {
        json(
            &self
                .ask(&["dump", "--json", "--page", &page.to_string()])
                .expect(0),
        )
    }

    /// The page of the leaf that has an entry, and the offset of its cell.
    fn leaf(&self, table: &str, key: &str) -> (u64, usize) {
        let rows = self
            .ask(&["dump", "--json", "--table", table, "--prefix", key])
            .expect(0);
        let page = number(&lines_of_json(&rows)[0]["page"]);
        let found = self.page(page);
        let prefix = found["prefix"].as_str().unwrap();
        let rest = key.strip_prefix(prefix).unwrap();
        let cells = found["cells"].as_array().unwrap();
        let cell = cells
            .iter()
            .find(|cell| cell["suffix"].as_str().unwrap().starts_with(rest));
        (page, number(&cell.unwrap()["offset"]) as usize)
    }
}

/// `pontoonctl tree <words> <file>`, which must leave all as it is.
#[track_caller]
fn ask(path: &Path, words: &[&str]) -> Answer {
    let before = contents(path.parent().unwrap());
    let mut command = Command::new(BINARY);
    command
        .arg("tree")
        .args(words)
        .arg(path)
        .stdout(Stdio::piped());
    let answer = answer(&mut command);
    assert!(
        before == contents(path.parent().unwrap()),
        "{words:?} changed the file"
    );
    answer
}

fn field(layout: &str, name: &str, bytes: &[u8]) -> u64 {
    let layout = LAYOUTS.iter().find(|other| other.name == layout).unwrap();
    let field = layout
        .fields
        .iter()
        .find(|field| field.name == name)
        .unwrap();
    let bytes = &bytes[field.offset..][..field.bytes];
    bytes
        .iter()
        .rev()
        .fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

/// Where a cell of a branch has its child. (Its key has no escapes here.)
fn child_at(cell: &Value) -> usize {
    number(&cell["offset"]) as usize + 1 + cell["suffix"].as_str().unwrap().len()
}

#[track_caller]
fn has_finding(report: &Value, page: Option<u64>, what: &str) {
    let findings = report["findings"].as_array().unwrap();
    let found = findings.iter().any(|finding| {
        finding["page"].as_u64() == page && finding["what"].as_str().unwrap().contains(what)
    });
    assert!(found, "page {page:?}: {what:?} is not in {findings:#?}");
}

// Whole files.

#[test]
fn a_whole_file_is_clean() {
    let sample = Sample::new();
    let report = sample.check(0);
    assert_eq!(report["findings"], json("[]"));
    let newest = &report["newest"];
    assert_eq!(newest["store"], format!("{STORE:032x}"));
    assert_eq!(newest["entries"]["leases"], 3);
    assert_eq!(newest["entries"]["staged"], 1);
    assert_eq!(newest["entries"]["records"], 3);
    assert_eq!(
        newest["generation"],
        number(&report["older"]["generation"]) + 1
    );
    assert_eq!(report["state"]["floor"], KEYS + 10);

    // The rest of the sweep, and a few more checkpoints.
    let store = sample.open();
    while store.compact_step(7).unwrap() {}
    store.request_checkpoint();
    let mut to = Writer {
        store: &store,
        index: store.applied().index,
        revision: store.last_revision().0,
    };
    for n in 0..5 {
        to.write(vec![put(format!("more/{n}"), vec![0; 2000], 0)]);
        store.checkpoint().unwrap();
        sample.check(0);
    }
}

#[test]
fn a_new_file_is_clean() {
    let sample = Sample::empty();
    drop(sample.open());
    let report = sample.check(0);
    assert_eq!(report["newest"]["entries"]["current"], 0);
    let text = sample.ask(&["stats"]).expect(0);
    assert_eq!(table(&text, "table")[0][..4], ["current", "0", "0", "-"]);
}

#[test]
fn stats_add_up() {
    let sample = Sample::new();
    let stats = json(&sample.ask(&["stats", "--json"]).expect(0));
    let pages = ["used_pages", "withheld_pages", "free_pages"].map(|name| number(&stats[name]));
    assert_eq!(
        pages.iter().sum::<u64>() * PAGE as u64,
        number(&stats["file_bytes"])
    );
    let tables = stats["tables"].as_array().unwrap();
    let of_tables: u64 = tables
        .iter()
        .map(|table| number(&table["node_pages"]) + number(&table["value_pages"]))
        .sum();
    assert_eq!(pages[0], of_tables + number(&stats["map_pages"]) + 2);
    assert_eq!(tables[0]["depth"], 2);
    assert!(tables[0]["fill"].as_f64().unwrap() > 0.3);
    let by_keys = &stats["prefixes_by_keys"];
    assert_eq!(by_keys[0]["prefix"], "/registry/pods/");
    assert_eq!(by_keys[0]["keys"], KEYS - KEYS / 10 + 1);
    let keys = by_keys.as_array().unwrap().iter();
    assert_eq!(
        keys.map(|p| number(&p["keys"])).sum::<u64>(),
        number(&tables[0]["entries"])
    );
    let deeper = json(&sample.ask(&["stats", "--json", "--depth", "3"]).expect(0));
    assert_eq!(
        deeper["prefixes_by_keys"][0]["prefix"],
        "/registry/pods/ns-0/"
    );

    let text = sample.ask(&["stats"]).expect(0);
    let rows = table(&text, "table");
    for (row, table) in rows.iter().zip(tables) {
        assert_eq!(row[0], table["name"]);
        assert_eq!(row[1], table["entries"].to_string());
    }
    assert!(
        text.contains("floor        310 (swept -1, sweep at "),
        "{text}"
    );
}

#[test]
fn dump_shows_every_entry_in_order() {
    let sample = Sample::new();
    let rows = lines_of_json(&sample.ask(&["dump", "--json"]).expect(0));
    let text = sample.ask(&["dump"]).expect(0);
    assert_eq!(text.lines().count(), rows.len());
    let entries = sample.check(0)["newest"]["entries"].clone();
    for (table, extra) in [
        ("current", 0),
        ("history", 0),
        ("changes", 0),
        ("leases", 0),
        ("staged", 1),
        ("records", 0),
    ] {
        let shown = lines_of_json(&sample.ask(&["dump", "--json", "--table", table]).expect(0));
        // One line for each effect of what is staged.
        assert_eq!(
            shown.len() as u64,
            number(&entries[table]) + extra,
            "{table}"
        );
        let same: Vec<_> = rows
            .iter()
            .filter(|row| row["table"] == table)
            .cloned()
            .collect();
        assert_eq!(shown, same);
    }
    assert!(
        text.contains(
            "\"/registry/secrets/long\" at 337.0 create 302 version 3 value of 5000 bytes in page "
        ),
        "{text}"
    );
    assert!(
        text.contains(
            " \"/registry/leases/a\" at 304.0 create 302 version 2 lease 78 value \"3\"\n"
        ),
        "{text}"
    );
    assert!(text.contains("staged page "), "{text}");
    assert!(
        text.contains(" \"/held\" at 336.1 put lease 9 value \"later\"\n"),
        "{text}"
    );
    assert!(text.contains(" \"zero\\x00key\" lease -5\n"), "{text}");

    let some = |words: &[&str]| {
        let words = [&["dump", "--json"], words].concat();
        lines_of_json(&sample.ask(&words).expect(0))
    };
    for (table, prefix) in [
        ("current", "/registry/leases/"),
        ("history", "/registry/s"),
        ("changes", "/registry/leases"),
        ("leases", "zero\\x00"),
        ("records", "b"),
        ("staged", "/held"),
    ] {
        let shown = some(&["--table", table, "--prefix", prefix]);
        let expected: Vec<_> = rows
            .iter()
            .filter(|row| row["table"] == table && row["key"].as_str().unwrap().starts_with(prefix))
            .cloned()
            .collect();
        assert_eq!(shown, expected, "{table} {prefix}");
        assert!(!shown.is_empty(), "{table}");
        let from = some(&["--table", table, "--from", prefix, "--limit", "2"]);
        let expected: Vec<_> = rows
            .iter()
            .filter(|row| row["table"] == table && row["key"].as_str().unwrap() >= prefix)
            .take(2)
            .cloned()
            .collect();
        assert_eq!(from, expected, "{table} from {prefix}");
    }
}

#[test]
fn a_page_is_shown_with_header_and_cells() {
    let sample = Sample::new();
    let root = sample.meta("current");
    let page = sample.page(root);
    assert_eq!(page["kind"], "branch");
    assert_eq!(page["header"]["page"], root.to_string());
    let cells = page["cells"].as_array().unwrap();
    let total: u64 = cells.iter().map(|cell| number(&cell["count"])).sum();
    assert_eq!(total, sample.meta("current_count"));
    let leaf = sample.page(number(&cells[0]["child"]));
    assert_eq!(leaf["kind"], "leaf");
    assert_eq!(
        leaf["cells"].as_array().unwrap().len() as u64,
        number(&cells[0]["count"])
    );
    assert_eq!(sample.page(0)["kind"], "meta");
    let text = sample.ask(&["dump", "--page", &root.to_string()]).expect(0);
    assert!(
        text.starts_with(&format!("page {root}: branch\n")),
        "{text}"
    );
    sample.ask(&["dump", "--page", "99999"]).expect(2);
}

/// One whole meta page is all that a copy has.
#[test]
fn a_file_made_of_a_snapshot_is_clean() {
    let sample = Sample::new();
    let copy = sample.dir.path().join("copy.tree");
    let snapshot = Arc::new(sample.open()).snapshot().unwrap();
    let mut install = Install::begin(&sample.disk, &copy).unwrap();
    let mut page = 0;
    while let Some(piece) = snapshot.read(page).unwrap() {
        install.add(&piece).unwrap();
        page = piece.next();
    }
    install.finish(&sample.disk).unwrap();
    let report = json(&ask(&copy, &["check", "--json"]).expect(0));
    assert_eq!(report["newest"], sample.check(0)["newest"]);
    assert_eq!(report["older"], Value::Null);
    assert_eq!(report["findings"][0]["severity"], "note");
}

#[test]
fn wrong_usage_exits_with_2() {
    let sample = Sample::empty();
    for words in [
        &["inspect"][..],
        &["check", "--table", "current"],
        &["dump", "--table", "nonsense"],
        &["dump", "--prefix", "\\q"],
        &["dump", "--page", "3", "--limit", "1"],
    ] {
        let answer = sample.ask(words);
        assert!(!answer.err.is_empty());
        answer.expect(2);
    }
}

#[test]
fn every_help_has_an_example() {
    for command in ["check", "stats", "dump"] {
        let mut help = Command::new(BINARY);
        help.args(["tree", command, "--help"])
            .stdout(Stdio::piped());
        let help = answer(&mut help).expect(0);
        assert!(
            help.contains(&format!("Example: pontoonctl tree {command} ")),
            "{help}"
        );
    }
}

#[test]
fn output_that_nobody_reads_or_that_cannot_be_written() {
    let sample = Sample::new();
    for command in ["check", "stats", "dump"] {
        let run = |out: Stdio| {
            let mut run = Command::new(BINARY);
            run.args(["tree", command]).arg(sample.path()).stdout(out);
            answer(&mut run)
        };
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let gone = run(writer.into());
        assert_eq!((gone.code, gone.err.as_str()), (0, ""), "{command}");
        let full = fs::OpenOptions::new()
            .write(true)
            .open("/dev/full")
            .unwrap();
        let full = run(full.into());
        assert!(
            full.err.contains("writing the output"),
            "{command}: {}",
            full.err
        );
        full.expect(2);
    }
}

// Broken files.

/// Every page that a checkpoint leads to.
fn used_pages(sample: &Sample) -> Vec<u64> {
    let file = sample.bytes();
    let mut used = Vec::new();
    for page in 0..2 {
        let meta = &file[page * PAGE..][..PAGE];
        let index = field("Meta", "map_index", meta) as usize;
        let map = u64::from_le_bytes(*file[index * PAGE + 32..].first_chunk().unwrap()) as usize;
        let bits = &file[map * PAGE + 32..][..PAGE - 32];
        used.extend(
            (0..file.len() / PAGE)
                .filter(|p| bits[p / 8] & 1 << (p % 8) != 0)
                .map(|p| p as u64),
        );
    }
    used.sort_unstable();
    used.dedup();
    used
}

#[test]
fn a_flipped_bit_in_any_page_is_found_and_named() {
    let sample = Sample::new();
    let good = sample.bytes();
    let pages = used_pages(&sample);
    assert!(pages.len() > 30, "{}", pages.len());
    let newest = sample.meta("page");
    for page in pages {
        // A run is named by its first page; its header says so itself.
        let start = (0..=page).rev().find(|start| {
            let bytes = &good[*start as usize * PAGE..];
            field("PageHeader", "page", bytes) == *start
                && field("PageHeader", "pages", bytes) > page - start
                && (1..=6).contains(&bytes[4])
        });
        let start = start.unwrap();
        for offset in [0, 5, 8, 25, 33, 2000, 4095] {
            fs::write(sample.path(), &good).unwrap();
            flip(&sample.path(), page * PAGE as u64 + offset);
            let report = inspect::check(&sample.disk, &sample.path()).unwrap();
            let named = report
                .findings
                .iter()
                .any(|finding| finding.page == Some(start));
            assert!(
                named,
                "page {page} of {start}, byte {offset}: {:#?}",
                report.findings
            );
            // Half of a new meta page is what a crash leaves.
            assert_eq!(report.is_clean(), page < 2, "page {page}, byte {offset}");
        }
        let report = sample.check(i32::from(page >= 2));
        if page == newest {
            assert_eq!(report["findings"][0]["severity"], "note");
            assert_ne!(
                report["newest"]["generation"],
                sample.meta("generation") + 1
            );
        }
    }
}

#[test]
fn both_meta_pages_broken_are_damage() {
    let sample = Sample::new();
    flip(&sample.path(), 100);
    flip(&sample.path(), PAGE as u64 + 100);
    let report = sample.check(1);
    assert_eq!(report["newest"], Value::Null);
    has_finding(&report, Some(0), "checksum");
    has_finding(&report, Some(1), "checksum");
    sample.ask(&["stats"]).expect(1);
    sample.ask(&["dump"]).expect(1);
}

#[test]
fn a_cut_file_is_damage() {
    let sample = Sample::new();
    let good = sample.bytes();
    let last = *used_pages(&sample).last().unwrap() as usize;
    for pages in 1..=last {
        fs::write(sample.path(), &good[..pages * PAGE]).unwrap();
        let report = inspect::check(&sample.disk, &sample.path()).unwrap();
        assert!(!report.is_clean(), "{pages} pages");
    }
    fs::write(sample.path(), &good[..30 * PAGE + 100]).unwrap();
    let report = sample.check(1);
    has_finding(&report, Some(30), "ends inside this page");
    let map = report["findings"].as_array().unwrap().iter();
    assert!(
        map.filter(|f| f["what"] == "it lies behind the end of the file")
            .count()
            > 3
    );
    sample.ask(&["stats"]).expect(1);
    sample.ask(&["dump"]).expect(1);
}

#[test]
fn a_file_of_another_kind_gets_no_verdict() {
    let sample = Sample::empty();
    let path = sample.path();
    for content in [
        vec![],
        b"notes".to_vec(),
        vec![0; 3 * PAGE],
        vec![b'#'; 9 * PAGE + 5],
    ] {
        fs::write(&path, content).unwrap();
        for command in ["check", "stats", "dump"] {
            let answer = sample.ask(&[command]);
            assert!(answer.err.contains("not a tree file"), "{}", answer.err);
            assert_eq!(answer.expect(2), "");
        }
    }
    for command in ["check", "stats", "dump"] {
        let dir = sample.dir.path().join("dir");
        fs::create_dir_all(&dir).unwrap();
        for path in [sample.dir.path().join("nowhere"), dir] {
            let answer = ask(&path, &[command]);
            assert!(
                answer.err.contains(&path.display().to_string()),
                "{}",
                answer.err
            );
            assert_eq!(answer.expect(2), "");
        }
    }
}

#[test]
fn another_version_is_told() {
    let sample = Sample::new();
    for page in 0..2 {
        sample.forge(page, |meta| meta[28] = 9);
    }
    let report = sample.check(1);
    has_finding(&report, Some(0), "its format is version 9");
}

#[test]
fn wrong_counts_are_found() {
    let sample = Sample::new();
    let root = sample.meta("current");
    let cells = sample.page(root)["cells"].clone();
    let count_at = child_at(&cells[0]) + 6;
    sample.forge(root, |node| node[count_at] += 1);
    let report = sample.check(1);
    let what = format!(
        "it says that {} entries lie under page {}, there are {}",
        number(&cells[0]["count"]) + 1,
        cells[0]["child"],
        cells[0]["count"]
    );
    has_finding(&report, Some(root), &what);
    assert_eq!(report["findings_total"], 1, "{report:#}");

    let sample = Sample::new();
    let page = sample.meta("page");
    let at = LAYOUTS
        .iter()
        .find(|l| l.name == "Meta")
        .unwrap()
        .offset("history_count");
    sample.forge(page, |meta| meta[at] ^= 1);
    has_finding(&sample.check(1), Some(page), "the meta page says that");
}

#[test]
fn leaked_and_lost_pages_are_found() {
    let sample = Sample::new();
    let file = sample.bytes();
    let index = sample.meta("map_index") as usize;
    let map = u64::from_le_bytes(*file[index * PAGE + 32..].first_chunk().unwrap());
    let bits = &file[map as usize * PAGE + 32..];
    let free = (2..file.len() / PAGE)
        .find(|p| bits[p / 8] & 1 << (p % 8) == 0)
        .unwrap();
    sample.forge(map, |map| map[32 + free / 8] |= 1 << (free % 8));
    let what = format!("page {free}: marked as in use, but nothing leads there");
    has_finding(&sample.check(1), Some(free as u64), &what);

    fs::write(sample.path(), &file).unwrap();
    let root = sample.meta("changes");
    sample.forge(map, |map| map[32 + root as usize / 8] ^= 1 << (root % 8));
    has_finding(
        &sample.check(1),
        Some(root),
        "in use, but not marked so in the map",
    );
}

#[test]
fn damage_that_checksums_do_not_show_is_found() {
    let sample = Sample::new();
    let good = sample.bytes();
    let forged = |page: u64, change: &dyn Fn(&mut [u8])| {
        fs::write(sample.path(), &good).unwrap();
        sample.forge(page, change);
        sample.check(1)
    };

    // The last byte of a value in its leaf.
    let (page, cell) = sample.leaf("current", "/registry/leases/a");
    let report = forged(page, &|leaf| {
        let at = cell + leaf[cell..].windows(1).position(|w| w == b"3").unwrap();
        leaf[at] = b'4';
    });
    has_finding(&report, None, "the hash of all versions is");

    // A value that lies apart, and its checksum with it.
    let rows = sample_rows(&sample, &good, "current", "/registry/secrets/long");
    let value = number(&rows[0]["value_page"]);
    let report = forged(value, &|run| run[100] ^= 1);
    let leaf = number(&rows[0]["page"]);
    has_finding(
        &report,
        Some(leaf),
        &format!("has a value in page {value} that is not the one"),
    );

    // A page in another's place, a later age, another level.
    let root = {
        fs::write(sample.path(), &good).unwrap();
        sample.meta("current")
    };
    let report = forged(root, &|node| node[8] ^= 1);
    has_finding(&report, Some(root), "it was written for another place");
    let report = forged(root, &|node| node[16] += 1);
    has_finding(&report, Some(root), "generation");
    let report = forged(root, &|node| node[5] += 1);
    let child = number(&sample_page(&sample, root)["cells"][0]["child"]);
    has_finding(
        &report,
        Some(child),
        "a node of level 0 under one of level 2",
    );

    // Two children that are one.
    let cells = {
        fs::write(sample.path(), &good).unwrap();
        sample.page(root)["cells"].clone()
    };
    let (first, second) = (child_at(&cells[0]), child_at(&cells[1]));
    let report = forged(root, &|node| {
        let child: [u8; 6] = *node[first..].first_chunk().unwrap();
        node[second..][..6].copy_from_slice(&child);
    });
    has_finding(&report, Some(child), "is reached a second time");

    // A key that the slot doesn't tell, and that is out of order.
    let (page, cell) = {
        fs::write(sample.path(), &good).unwrap();
        sample.leaf("current", "/registry/leases/a")
    };
    let report = forged(page, &|leaf| {
        let at = cell + leaf[cell..].windows(1).position(|w| w == b"a").unwrap();
        leaf[at] = b'c';
    });
    has_finding(&report, Some(page), "doesn't begin as its key does");
    let leases = report["findings"].as_array().unwrap().iter();
    assert!(
        leases.filter(|f| f["table"] == "leases").count() > 0,
        "{report:#}"
    );

    // A change of another kind.
    let rows = sample_rows(&sample, &good, "changes", "/registry/leases/a");
    assert_eq!(rows[0]["change"], "create");
    let page = number(&rows[0]["page"]);
    let report = forged(page, &|leaf| {
        let needle = b"\0\x12/registry/leases/a";
        let at = leaf.windows(needle.len()).position(|w| w == needle);
        let at = at.unwrap();
        leaf[at] = 1;
    });
    has_finding(&report, Some(page), "of another kind than its version");
}

fn sample_rows(sample: &Sample, good: &[u8], table: &str, prefix: &str) -> Vec<Value> {
    fs::write(sample.path(), good).unwrap();
    let rows = sample
        .ask(&["dump", "--json", "--table", table, "--prefix", prefix])
        .expect(0);
    lines_of_json(&rows)
}

fn sample_page(sample: &Sample, page: u64) -> Value {
    json(
        &sample
            .ask(&["dump", "--json", "--page", &page.to_string()])
            .expect(0),
    )
}

/// A small generator, so that failures repeat.
struct Rng(u64);

impl Rng {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        ((self.0 >> 33) as usize) % end
    }
}

/// A key from a small space, some of them long, some with zeros.
fn random_key(rng: &mut Rng) -> Bytes {
    let mut key = format!("/{}/{}", ["a", "b\0", ""][rng.below(3)], rng.below(12)).into_bytes();
    if rng.below(30) == 0 {
        key.resize(1 + rng.below(7000), b'k');
    }
    key.into()
}

fn random_effects(rng: &mut Rng, keys: &KeyRange, held: &[Bytes]) -> Vec<Effect> {
    let mut effects = Vec::new();
    let most = if rng.below(10) == 0 { 60 } else { 3 };
    for _ in 0..1 + rng.below(most) {
        let key = random_key(rng);
        if held.contains(&key) || !keys.contains(&key) {
            continue;
        }
        let most = [10, 300, 7000][rng.below(3)];
        effects.push(match rng.below(4) {
            0 => Effect::Delete { key },
            _ => Effect::Put {
                key,
                value: vec![rng.below(256) as u8; rng.below(most)].into(),
                lease: rng.below(4) as i64 - 1,
            },
        });
    }
    effects
}

/// Writes, stages, compactions, splits and sweeps in any order, checked whenever a
/// checkpoint is there.
#[test]
fn whatever_was_applied_is_clean() {
    for seed in 0..40 {
        let disk = SimDisk::new(seed);
        disk.create_dir(Path::new("/t")).unwrap();
        let path = Path::new("/t/tree");
        let mut rng = Rng(seed);
        let open = || Store::open(&disk, path, Config::default()).unwrap();
        let mut store = open();
        let mut stages: Vec<(Revision, Vec<Bytes>)> = Vec::new();
        for step in 0..400 {
            let held: Vec<Bytes> = stages.iter().flat_map(|(_, keys)| keys.clone()).collect();
            let mut to = Writer {
                store: &store,
                index: store.applied().index,
                revision: store.last_revision().0,
            };
            let bounds = store.bounds();
            match rng.below(20) {
                0 if stages.len() < 3 => {
                    let (revision, effects) = (to.next(), random_effects(&mut rng, &bounds, &held));
                    let keys = effects.iter().map(|effect| effect.key().clone()).collect();
                    stages.push((revision, keys));
                    let subs = (0..effects.len() as u32).collect();
                    to.step(Step::Stage {
                        revision,
                        effects,
                        subs,
                    });
                }
                1 if !stages.is_empty() => {
                    let (revision, _) = stages.swap_remove(rng.below(stages.len()));
                    to.step(match rng.below(3) {
                        0 => Step::Void { revision },
                        _ => Step::Commit { revision },
                    });
                }
                2 => {
                    let staged = stages.iter().map(|(revision, _)| revision.0 - 1).min();
                    let floor = staged.unwrap_or(i64::MAX).min(store.revision().0);
                    let floor = Revision(floor - rng.below(5) as i64);
                    if floor > store.floor() {
                        to.step(Step::Compact { floor });
                    }
                }
                3 => {
                    let content = vec![7; rng.below(3000)];
                    let content = (rng.below(3) > 0).then(|| content.into());
                    let name = Bytes::from(rng.below(5).to_string());
                    to.step(Step::Record { name, content });
                }
                4..7 => drop(store.compact_step(rng.below(40)).unwrap()),
                7 => {
                    store.checkpoint().unwrap();
                    let report = inspect::check(&disk, path).unwrap();
                    assert_eq!(report.findings, [], "seed {seed}, step {step}");
                    let facts = report.store.unwrap();
                    assert_eq!(facts.applied, store.applied());
                }
                8 if rng.below(4) == 0 => {
                    store.checkpoint().unwrap();
                    drop(store);
                    store = open();
                }
                9 if rng.below(6) == 0 => {
                    let keys = KeyRange::new(&b"\0"[..], random_key(&mut rng));
                    if bounds.covers(&keys) && held.iter().all(|key| keys.contains(key)) {
                        to.step(Step::Bounds { keys });
                    }
                }
                10 if rng.below(6) == 0 => to.step(Step::Shed),
                11 => drop(store.shed_step(rng.below(40)).unwrap()),
                _ => to.write(random_effects(&mut rng, &bounds, &held)),
            }
        }
    }
}

/// Random bytes, with and without right checksums: there is always an answer.
#[test]
fn arbitrary_bytes_never_end_in_a_panic() {
    let sample = Sample::new();
    let good = sample.bytes();
    let copy = sample.dir.path().join("copy.tree");
    let disk = RealDisk::for_inspection();
    let mut rng = Rng(7);
    for round in 0..3000 {
        let mut file = good.clone();
        for _ in 0..1 + rng.below(3) {
            let page = rng.below(file.len() / PAGE);
            let run = &mut file[page * PAGE..][..PAGE];
            for _ in 0..1 + rng.below(4) {
                // Headers and slots are the most interesting.
                let end = if rng.below(2) == 0 { 200 } else { PAGE };
                run[rng.below(end)] = rng.below(256) as u8;
            }
            if rng.below(4) > 0 {
                let crc = crc32fast::hash(&run[4..]);
                run[..4].copy_from_slice(&crc.to_le_bytes());
            }
        }
        if rng.below(10) == 0 {
            file.truncate(rng.below(file.len()));
        }
        fs::write(&copy, &file).unwrap();
        // Whatever they say.
        let _ = inspect::check(&disk, &copy);
        if round % 4 == 0 {
            let _ = inspect::stats(&disk, &copy, 2);
            let _ = inspect::dump(&disk, &copy, &Selection::default(), &mut |_| true);
            let _ = inspect::page(&disk, &copy, rng.below(80) as u64);
        }
    }
}
