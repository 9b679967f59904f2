//! The simulated disk does what it says, or it proves nothing.

use super::*;
use crate::clock::Clock;

const SEEDS: u64 = 400;

fn disk_with(name: &str) -> (SimDisk, Arc<dyn DiskFile>) {
    let disk = SimDisk::new(1);
    disk.create_dir(Path::new("/d")).unwrap();
    let file = disk.create(&at(name)).unwrap();
    disk.sync_dir(Path::new("/d")).unwrap();
    (disk, file)
}

fn at(name: &str) -> PathBuf {
    Path::new("/d").join(name)
}

fn block(byte: u8) -> Vec<u8> {
    vec![byte; BLOCK_BYTES]
}

fn blocks(byte: u8) -> Blocks {
    let mut blocks = Blocks::default();
    blocks.put(&block(byte));
    blocks
}

fn names(disk: &SimDisk) -> Vec<String> {
    let mut names = disk.list(Path::new("/d")).unwrap();
    names.sort();
    names
}

fn image(disk: &SimDisk) -> Vec<(PathBuf, Vec<u8>)> {
    let paths = disk.paths().into_iter();
    paths
        .map(|p| (p.clone(), disk.read_file(&p).unwrap()))
        .collect()
}

fn after_cut(disk: &SimDisk, name: &str) -> Vec<Vec<u8>> {
    let cuts = (0..SEEDS).map(|seed| disk.power_cut(seed));
    cuts.map(|disk| disk.read_file(&at(name)).unwrap())
        .collect()
}

#[test]
fn a_power_cut_keeps_loses_tears_and_spoils_what_was_not_synced() {
    let (disk, file) = disk_with("a");
    file.write_at(0, &block(1)).unwrap();
    file.sync().unwrap();
    file.write_at(0, &block(2)).unwrap();
    assert_eq!(disk.read_file(&at("a")).unwrap(), block(2));
    let images = after_cut(&disk, "a");
    assert!(images.iter().all(|i| i.len() == BLOCK_BYTES));
    assert!(images.contains(&block(1)) && images.contains(&block(2)));
    for cut in (SECTOR_BYTES..BLOCK_BYTES).step_by(SECTOR_BYTES) {
        let (old, new) = (block(1), block(2));
        assert!(images.contains(&[&new[cut..], &old[..cut]].concat()));
        assert!(images.contains(&[&old[cut..], &new[..cut]].concat()));
    }
    assert!(images.iter().flatten().any(|b| ![1, 2].contains(b)));
}

#[test]
fn what_was_synced_survives_every_power_cut() {
    let (disk, file) = disk_with("a");
    file.write_at(0, &block(1)).unwrap();
    file.write_at(4096, &block(2)).unwrap();
    file.sync().unwrap();
    file.write_at(8192, &block(3)).unwrap();
    let images = after_cut(&disk, "a");
    assert!(
        images
            .iter()
            .all(|i| i[..8192] == [block(1), block(2)].concat())
    );
    let lens: BTreeSet<usize> = images.iter().map(Vec::len).collect();
    assert!(lens.contains(&8192) && lens.contains(&12288) && lens.len() > 2);
}

#[test]
fn a_later_write_may_survive_an_earlier_one() {
    let (disk, file) = disk_with("a");
    file.write_at(0, &block(1)).unwrap();
    file.write_at(4096, &block(2)).unwrap();
    let images = after_cut(&disk, "a");
    assert!(images.contains(&[block(0), block(2)].concat()));
    assert!(images.contains(&block(1)));
}

#[test]
fn directory_changes_survive_as_a_prefix() {
    let (disk, _) = disk_with("a");
    let b = disk.create(&at("b")).unwrap();
    b.write_at(0, &block(1)).unwrap();
    b.sync().unwrap();
    disk.rename(&at("b"), &at("c")).unwrap();
    disk.remove(&at("a")).unwrap();
    disk.create(&at("e")).unwrap();
    disk.remove(&at("e")).unwrap();
    assert_eq!(names(&disk), ["c"]);
    let outcomes: BTreeSet<String> = (0..SEEDS)
        .map(|seed| {
            let cut = disk.power_cut(seed);
            // Every name that survives has a file.
            assert_eq!(image(&cut).len(), names(&cut).len());
            names(&cut).concat()
        })
        .collect();
    assert!(outcomes.iter().eq(["a", "ab", "ac", "c", "ce"]));
    disk.sync_dir(Path::new("/d")).unwrap();
    assert!(after_cut(&disk, "c").iter().all(|i| *i == block(1)));
}

#[test]
fn handles_follow_the_file_not_the_name() {
    let (disk, file) = disk_with("a");
    disk.rename(&at("a"), &at("b")).unwrap();
    file.write_at(0, &block(1)).unwrap();
    assert_eq!(disk.read_file(&at("b")).unwrap(), block(1));
    disk.remove(&at("b")).unwrap();
    disk.sync_dir(Path::new("/d")).unwrap();
    file.sync().unwrap();
    assert_eq!(file.size().unwrap(), 4096);
    drop(file);
    disk.sync_dir(Path::new("/d")).unwrap();
    assert!(disk.0.lock().inodes.is_empty());
}

#[test]
fn a_failed_sync_leaves_data_visible_that_no_later_sync_saves() {
    let (disk, file) = disk_with("a");
    file.write_at(0, &block(1)).unwrap();
    disk.fail_sync_at(disk.syncs());
    assert_eq!(file.sync().unwrap_err().raw_os_error(), Some(EIO));
    file.write_at(4096, &block(2)).unwrap();
    file.sync().unwrap();
    let visible = [block(1), block(2)].concat();
    assert_eq!(disk.read_file(&at("a")).unwrap(), visible);
    assert_eq!(disk.process_kill().read_file(&at("a")).unwrap(), visible);
    let durable = [block(0), block(2)].concat();
    assert!(after_cut(&disk, "a").iter().all(|i| *i == durable));
    // Only writing it again does.
    file.write_at(0, &block(3)).unwrap();
    file.sync().unwrap();
    let durable = [block(3), block(2)].concat();
    assert_eq!(disk.read_file(&at("a")).unwrap(), durable);
    assert!(after_cut(&disk, "a").iter().all(|i| *i == durable));
}

#[test]
fn capacity_limits_growth_only() {
    let (disk, file) = disk_with("a");
    disk.capacity(2 * 4096);
    file.write_at(0, &block(1)).unwrap();
    let full = |result: io::Result<()>| {
        assert_eq!(result.unwrap_err().kind(), io::ErrorKind::StorageFull);
    };
    full(file.write_at(4096, &[2; 8192]));
    assert_eq!(disk.read_file(&at("a")).unwrap(), block(1));
    let b = disk.create(&at("b")).unwrap();
    b.write_at(0, &block(3)).unwrap();
    full(disk.create(&at("c")).map(drop));
    full(file.write_at(4096, &block(2)));
    file.write_at(0, &block(4)).unwrap();
    disk.remove(&at("b")).unwrap();
    file.write_at(4096, &block(2)).unwrap();
    full(disk.process_kill().create(&at("c")).map(drop));
    disk.capacity(3 * 4096);
    file.write_at(8192, &block(2)).unwrap();
}

#[tokio::test(start_paused = true)]
async fn nothing_happens_from_the_crash_on() {
    let (disk, file) = disk_with("a");
    let reader = disk.open(&at("a"), false).unwrap();
    let denied = reader.write_at(0, &block(1)).unwrap_err();
    assert_eq!(denied.kind(), io::ErrorKind::PermissionDenied);
    let commit = file.clone().commit(0, blocks(1), false);
    assert_eq!(disk.operations(), 3);
    disk.crash_at(4);
    file.write_at(4096, &block(2)).unwrap();
    assert!(!disk.crashed());
    let (result, blocks) = commit.await;
    assert_eq!(result.unwrap_err().to_string(), "simulated crash");
    assert_eq!(blocks.as_slice(), block(1));
    assert!(disk.crashed());
    assert!(file.write_at(0, &block(3)).is_err() && file.sync().is_err());
    assert!(disk.create(&at("b")).is_err() && reader.size().is_err());
    assert_eq!(disk.operations(), 4);
    assert!(after_cut(&disk, "a").contains(&Vec::new()));
    let killed = disk.process_kill();
    assert!(!killed.crashed());
    assert_eq!(image(&killed)[0].1, [block(1), block(2)].concat());
}

#[test]
fn a_killed_process_loses_nothing_until_the_power_fails() {
    let (disk, file) = disk_with("a");
    file.write_at(0, &block(1)).unwrap();
    disk.create(&at("b")).unwrap();
    let held = disk.lock(&at("lock")).unwrap();
    let refused = disk.lock(&at("lock")).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
    let killed = disk.process_kill();
    assert_eq!(image(&killed), image(&disk));
    killed.lock(&at("lock")).unwrap();
    assert!(after_cut(&killed, "a").contains(&Vec::new()));
    assert!((0..SEEDS).any(|seed| names(&killed.power_cut(seed)) == ["a"]));
    killed.open(&at("a"), true).unwrap().sync().unwrap();
    assert!(after_cut(&killed, "a").iter().all(|i| *i == block(1)));
    assert!(after_cut(&disk, "a").contains(&Vec::new()));
    drop(held);
    disk.lock(&at("lock")).unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_commit_makes_durable_what_its_style_says() {
    for style in [CommitStyle::DataSyncWrite, CommitStyle::WriteThenSync] {
        let (disk, file) = disk_with("a");
        disk.set_commit_style(style);
        file.write_at(0, &[1; 8192]).unwrap();
        file.clone().commit(4096, blocks(2), false).await.0.unwrap();
        let written = [block(1), block(2)].concat();
        assert_eq!(disk.read_file(&at("a")).unwrap(), written);
        let images = after_cut(&disk, "a");
        assert!(images.iter().all(|i| i[4096..] == block(2)));
        let all = images.iter().all(|i| *i == written);
        assert_eq!(all, style == CommitStyle::WriteThenSync);
        assert_eq!(disk.commits_in_flight_max(), if all { 1 } else { 4 });
        // The older write must not come back over the commit.
        file.sync().unwrap();
        assert!(after_cut(&disk, "a").iter().all(|i| *i == written));
    }
}

/// Runs commits, a failing one too; gives the order of their ends and the images left.
async fn run(seed: u64) -> (Vec<u64>, Vec<Vec<(PathBuf, Vec<u8>)>>) {
    let disk = SimDisk::new(seed);
    disk.write_file(&at("a"), Vec::new());
    disk.fail_sync_at(2);
    let ended = Arc::new(Mutex::new(Vec::new()));
    let tasks = tokio::task::LocalSet::new();
    let entered = tasks.enter();
    for n in 0..4 {
        let (file, ended) = (disk.open(&at("a"), true).unwrap(), ended.clone());
        let task: Task = Box::new(move || {
            Box::pin(async move {
                drop(file.commit(n * 4096, blocks(n as u8 + 1), false).await);
                ended.lock().push(n);
            })
        });
        disk.run_commits("commits", task).unwrap();
    }
    drop(entered);
    tasks.await;
    disk.open(&at("a"), true)
        .unwrap()
        .write_at(16384, &block(9))
        .unwrap();
    let images = (0..20).map(|seed| image(&disk.power_cut(seed))).collect();
    (mem::take(&mut ended.lock()), images)
}

#[tokio::test(start_paused = true)]
async fn a_seed_decides_everything() {
    let mut orders = BTreeSet::new();
    for seed in 0..20 {
        let first = run(seed).await;
        assert!(first == run(seed).await);
        orders.insert(first.0);
    }
    assert!(orders.len() > 5);
}

#[test]
fn short_reads_still_get_to_the_end() {
    let (disk, file) = disk_with("a");
    let bytes: Vec<u8> = (0..40960u32).map(|i| (i / 7) as u8).collect();
    file.write_at(0, &bytes).unwrap();
    disk.short_reads(3);
    let mut lens = BTreeSet::new();
    for _ in 0..100 {
        let mut into = block(0).repeat(10);
        lens.insert(file.read_at(0, &mut into).unwrap());
        let got = crate::disk::read_blocks(&*file, 0, 40960).unwrap();
        assert!(got.as_slice() == bytes);
        assert_eq!(file.read_at(40960, &mut into).unwrap(), 0);
    }
    assert!(!lens.contains(&0) && lens.iter().any(|len| len % 4096 != 0));
}

#[tokio::test(start_paused = true)]
async fn time_passes_with_the_runtime() {
    let (clock, (disk, file)) = (SimClock::new(5), disk_with("a"));
    assert_ne!(clock.random(), clock.random());
    disk.slow_syncs(Duration::from_secs(1));
    disk.fail_write_at(1);
    file.clone().commit(0, blocks(1), false).await.0.unwrap();
    assert!((1000..1020).contains(&clock.now().as_millis()));
    let (result, _) = file.clone().commit(0, blocks(2), false).await;
    assert_eq!(result.unwrap_err().raw_os_error(), Some(EIO));
    file.write_at(0, &block(3)).unwrap();
    disk.flip_bit(&at("a"), 8 * 10 + 1);
    assert_eq!(disk.read_file(&at("a")).unwrap()[9..11], [3, 1]);
    assert_eq!(
        disk.fork().power_cut(0).read_file(&at("a")).unwrap().len(),
        4096
    );
}

#[test]
#[should_panic(expected = "not whole blocks")]
fn odd_writes_are_a_bug() {
    drop(disk_with("a").1.write_at(512, &block(0)));
}

/// A mapped file, and a mapping of it that reaches beyond any size used here.
fn mapped_with(name: &str) -> (SimDisk, Arc<dyn MappedFile>, Box<dyn Mapping>) {
    let (disk, _) = disk_with(name);
    let file = disk.open_mapped(&at(name), true).unwrap();
    let mapping = file.map(1 << 40).unwrap();
    (disk, file, mapping)
}

#[allow(unsafe_code)]
fn mapped(mapping: &dyn Mapping, offset: u64, bytes: usize) -> &[u8] {
    // SAFETY: a simulated mapping hands out copies.
    unsafe { mapping.slice(offset, bytes) }
}

/// What is in each page, if it is all the same.
fn pages(bytes: &[u8]) -> Vec<u8> {
    let pages = bytes.chunks(BLOCK_BYTES);
    pages
        .map(|page| {
            assert_eq!(page, vec![page[0]; BLOCK_BYTES]);
            page[0]
        })
        .collect()
}

#[test]
fn a_mapping_shows_what_is_written_and_copies_only_what_changed() {
    let (disk, file, mapping) = mapped_with("a");
    file.write_at(0, &block(1)).unwrap();
    file.write_at(4096, &block(2)).unwrap();
    let first = mapped(&*mapping, 0, 4096);
    assert_eq!(*first, block(1));
    assert!(first.as_ptr().addr().is_multiple_of(BLOCK_BYTES));
    assert_eq!(*mapped(&*mapping, 4096, 100), [2; 100]);
    assert_eq!(pages(mapped(&*mapping, 0, 8192)), [1, 2]);
    file.write_at(4096, &block(3)).unwrap();
    file.set_size(4 * 4096).unwrap();
    file.sync().unwrap();
    assert_eq!(mapped(&*mapping, 0, 4096).as_ptr(), first.as_ptr());
    assert_eq!(*mapped(&*mapping, 4096, 100), [3; 100]);
    assert_eq!(pages(mapped(&*mapping, 0, 4 * 4096)), [1, 3, 0, 0]);
    // Who writes where a slice lives breaks a promise, but here nothing else.
    file.write_at(0, &block(4)).unwrap();
    assert_eq!(*mapped(&*mapping, 0, 4096), block(4));
    assert_eq!(*first, block(1));
    // A mapping is of the file: neither its name nor a handle is needed.
    disk.remove(&at("a")).unwrap();
    disk.sync_dir(Path::new("/d")).unwrap();
    drop(file);
    disk.sync_dir(Path::new("/d")).unwrap();
    assert_eq!(pages(mapped(&*mapping, 0, 8192)), [4, 3]);
    // Many copies, none of which moves.
    let ones: Vec<_> = (1..1000).map(|n| mapped(&*mapping, 0, n)).collect();
    assert!(ones.iter().all(|slice| slice.iter().all(|&b| b == 4)));
    drop(mapping);
    disk.sync_dir(Path::new("/d")).unwrap();
    assert!(disk.0.lock().inodes.is_empty());
}

#[test]
fn a_power_cut_keeps_or_loses_a_size_that_was_not_synced() {
    let (disk, file, mapping) = mapped_with("a");
    file.write_at(0, &[1; 8192]).unwrap();
    file.sync().unwrap();
    let images = |disk: &SimDisk| -> BTreeSet<Vec<u8>> {
        let images = after_cut(disk, "a").into_iter();
        images.map(|image| pages(&image)).collect()
    };
    // Grown, cut and grown again: a prefix of that.
    file.set_size(3 * 4096).unwrap();
    file.set_size(4096).unwrap();
    file.set_size(4 * 4096).unwrap();
    assert_eq!(file.size().unwrap(), 4 * 4096);
    assert_eq!(pages(mapped(&*mapping, 0, 4 * 4096)), [1, 0, 0, 0]);
    let prefixes = [&[1][..], &[1, 0, 0, 0], &[1, 1], &[1, 1, 0]];
    assert!(images(&disk).iter().eq(prefixes));
    assert!(images(&disk.process_kill()).iter().eq(prefixes));
    assert!(images(&disk.fork()).iter().eq(prefixes));
    let killed = disk.process_kill();
    assert_eq!(pages(&killed.read_file(&at("a")).unwrap()), [1, 0, 0, 0]);
    // A failed sync decides nothing about sizes, one that succeeds does.
    disk.fail_sync_at(disk.syncs());
    assert_eq!(file.sync().unwrap_err().raw_os_error(), Some(EIO));
    assert!(images(&disk).iter().eq(prefixes));
    file.sync().unwrap();
    assert!(images(&disk).iter().eq([&[1, 0, 0, 0]]));
    assert_eq!(pages(&disk.read_file(&at("a")).unwrap()), [1, 0, 0, 0]);
}

#[test]
fn unsynced_writes_to_a_mapped_file_survive_or_not_with_or_without_its_size() {
    let (disk, file, mapping) = mapped_with("a");
    file.set_size(4 * 4096).unwrap();
    file.write_at(4096, &block(1)).unwrap();
    assert_eq!(pages(mapped(&*mapping, 0, 4 * 4096)), [0, 1, 0, 0]);
    let images = after_cut(&disk, "a");
    let [none, all] = [[0; 16384].to_vec(), disk.read_file(&at("a")).unwrap()];
    for image in [&none, &all, &all[..8192].to_vec(), &Vec::new()] {
        assert!(images.contains(image));
    }
    file.sync().unwrap();
    assert!(after_cut(&disk, "a").iter().all(|i| *i == all));
}

#[test]
fn what_a_size_cut_off_does_not_come_back() {
    let (disk, file, mapping) = mapped_with("a");
    // No sync saves this write, and it stays visible until it is cut off.
    file.write_at(4096, &block(1)).unwrap();
    disk.fail_sync_at(disk.syncs());
    file.sync().unwrap_err();
    file.write_at(0, &block(2)).unwrap();
    file.sync().unwrap();
    assert_eq!(pages(mapped(&*mapping, 0, 8192)), [2, 1]);
    file.set_size(4096).unwrap();
    file.set_size(3 * 4096).unwrap();
    assert_eq!(pages(mapped(&*mapping, 0, 3 * 4096)), [2, 0, 0]);
    file.sync().unwrap();
    // Not through the mapping, which knows that a sync changes nothing.
    assert_eq!(pages(&disk.read_file(&at("a")).unwrap()), [2, 0, 0]);
    assert!(after_cut(&disk, "a").iter().all(|i| pages(i) == [2, 0, 0]));
}

#[tokio::test(start_paused = true)]
async fn a_commit_takes_the_size_below_it_along() {
    let (disk, file, _mapping) = mapped_with("a");
    file.write_at(0, &[1; 3 * 4096]).unwrap();
    file.sync().unwrap();
    file.set_size(4096).unwrap();
    let other = disk.open(&at("a"), true).unwrap();
    let commit = other.commit(2 * 4096, blocks(2), false);
    file.set_size(4 * 4096).unwrap();
    commit.await.0.unwrap();
    assert_eq!(pages(&disk.read_file(&at("a")).unwrap()), [1, 0, 2, 0]);
    let images = after_cut(&disk, "a");
    let images: BTreeSet<_> = images.iter().map(|i| pages(i)).collect();
    assert!(images.iter().eq([&[1, 0, 2][..], &[1, 0, 2, 0]]));
}

#[test]
fn flipped_bits_show_in_a_mapping() {
    let (disk, file, mapping) = mapped_with("a");
    file.write_at(0, &block(0)).unwrap();
    file.sync().unwrap();
    file.write_at(4096, &block(0)).unwrap();
    file.set_size(3 * 4096).unwrap();
    // Durable, cached, and a zero that only the size tells of.
    for page in 0..3 {
        let offset = page * 4096;
        assert_eq!(mapped(&*mapping, offset, 4096)[9], 0);
        disk.flip_bit(&at("a"), (offset + 9) * 8 + 2);
        let bytes = mapped(&*mapping, offset, 4096);
        assert_eq!(bytes[8..11], [0, 4, 0]);
        disk.flip_bit(&at("a"), (offset + 9) * 8 + 2);
        assert_eq!(*mapped(&*mapping, offset, 4096), block(0));
        disk.flip_bit(&at("a"), (offset + 9) * 8 + 2);
    }
    file.sync().unwrap();
    let visible = mapped(&*mapping, 0, 3 * 4096);
    assert_eq!(visible.iter().filter(|&&b| b == 4).count(), 3);
    assert!(after_cut(&disk, "a").iter().all(|i| i == visible));
}

#[test]
fn mapped_files_meet_the_same_faults() {
    let disk = SimDisk::new(1);
    disk.create_dir(Path::new("/d")).unwrap();
    let file = disk.create_mapped(&at("a")).unwrap();
    let exists = disk.create_mapped(&at("a")).map(drop).unwrap_err();
    assert_eq!(exists.kind(), io::ErrorKind::AlreadyExists);
    let reader = disk.open_mapped(&at("a"), false).unwrap();
    for denied in [reader.write_at(0, &block(1)), reader.set_size(0)] {
        assert_eq!(denied.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    }
    disk.capacity(2 * 4096);
    let full = file.set_size(3 * 4096).unwrap_err();
    assert_eq!(full.kind(), io::ErrorKind::StorageFull);
    file.set_size(2 * 4096).unwrap();
    disk.fail_write_at(disk.writes());
    assert!(file.write_at(0, &block(1)).is_err());
    // Two tries to create, two sizes, one write.
    assert_eq!((disk.operations(), disk.writes(), disk.syncs()), (5, 1, 0));
    let mapping = reader.map(2 * 4096).unwrap();
    assert_eq!(mapping.bytes(), 2 * 4096);
    assert_eq!(pages(mapped(&*mapping, 0, 8192)), [0, 0]);
    disk.crash_at(8);
    file.write_at(0, &block(2)).unwrap();
    file.sync().unwrap();
    file.set_size(4096).unwrap();
    assert!(!disk.crashed());
    assert!(file.set_size(8192).is_err() && disk.crashed());
    assert!(file.sync().is_err() && file.size().is_err() && file.map(0).is_err());
    assert!(disk.open_mapped(&at("a"), false).is_err());
    assert_eq!(*mapped(&*mapping, 0, 4096), block(2));
    assert_eq!((disk.operations(), disk.writes(), disk.syncs()), (8, 2, 1));
}

#[tokio::test(start_paused = true)]
async fn commits_of_a_disk_that_hangs_complete_when_it_resumes() {
    let (clock, (disk, file)) = (SimClock::new(5), disk_with("a"));
    let early = file.clone().commit(0, blocks(1), false);
    disk.hang();
    let late = file.clone().commit(4096, blocks(2), false);
    let both = async { tokio::join!(early, late) };
    tokio::pin!(both);
    let minute = Duration::from_secs(60);
    assert!(tokio::time::timeout(minute, &mut both).await.is_err());
    // They are in the page cache; other calls go on.
    let written = [block(1), block(2)].concat();
    assert_eq!(disk.read_file(&at("a")).unwrap(), written);
    assert!(after_cut(&disk, "a").contains(&Vec::new()));
    file.write_at(8192, &block(3)).unwrap();
    // A process that is killed meanwhile finds a disk that answers.
    let killed = disk.process_kill();
    let other = killed.open(&at("a"), true).unwrap();
    other.commit(0, blocks(4), false).await.0.unwrap();
    let cut = disk.power_cut(1).create(&at("b")).unwrap();
    cut.commit(0, blocks(4), false).await.0.unwrap();
    disk.resume();
    let ((early, _), (late, _)) = both.await;
    early.unwrap();
    late.unwrap();
    assert!(clock.now() < minute + Duration::from_secs(1));
    assert!(after_cut(&disk, "a").iter().all(|i| i[..8192] == written));
}

#[tokio::test(start_paused = true)]
async fn a_read_only_disk_fails_every_change_and_reads_on_until_it_is_writable_again() {
    let (disk, file) = disk_with("a");
    file.write_at(0, &block(1)).unwrap();
    file.sync().unwrap();
    file.write_at(0, &block(2)).unwrap();
    let in_flight = file.clone().commit(4096, blocks(3), false);
    let mapped_file = disk.open_mapped(&at("a"), true).unwrap();
    disk.read_only(true);
    let refused = |result: io::Result<()>| {
        assert_eq!(result.unwrap_err().raw_os_error(), Some(EROFS));
    };
    refused(in_flight.await.0);
    refused(file.clone().commit(0, blocks(9), false).await.0);
    refused(file.write_at(0, &block(9)));
    refused(file.sync());
    refused(mapped_file.write_at(0, &block(9)));
    refused(mapped_file.write_out(0, 4096));
    refused(mapped_file.set_size(0));
    refused(mapped_file.sync());
    refused(disk.create(&at("b")).map(drop));
    refused(disk.create_mapped(&at("b")).map(drop));
    refused(disk.open(&at("a"), true).map(drop));
    refused(disk.open_mapped(&at("a"), true).map(drop));
    refused(disk.rename(&at("a"), &at("b")));
    refused(disk.remove(&at("a")));
    refused(disk.sync_dir(Path::new("/d")));
    refused(disk.create_dir(Path::new("/e")));
    refused(disk.lock(&at("lock")).map(drop));
    // What is there can be read.
    disk.create_dir(Path::new("/d")).unwrap();
    assert_eq!(names(&disk), ["a"]);
    let mut into = block(0);
    let reader = disk.open(&at("a"), false).unwrap();
    assert_eq!(reader.read_at(0, &mut into).unwrap(), 4096);
    assert_eq!(into, block(2));
    // A restart finds it the same, and what was not synced is lost for good.
    for next in [disk.process_kill(), disk.power_cut(1)] {
        refused(next.lock(&at("lock")).map(drop));
        next.read_only(false);
        next.open(&at("a"), true).unwrap().sync().unwrap();
        assert!(after_cut(&next, "a").iter().all(|i| *i == block(1)));
    }
}

#[test]
fn tree_io_fails_without_the_log_and_until_a_reboot() {
    let (disk, log) = disk_with("log");
    let tree = disk.create_mapped(&at("tree")).unwrap();
    disk.sync_dir(Path::new("/d")).unwrap();
    tree.write_at(0, &block(1)).unwrap();
    tree.sync().unwrap();
    tree.write_at(0, &block(2)).unwrap();
    disk.fail_tree_io(true);
    for failed in [
        tree.write_at(0, &block(3)),
        tree.write_out(0, 4096),
        tree.set_size(0),
        tree.sync(),
    ] {
        assert_eq!(failed.unwrap_err().raw_os_error(), Some(EIO));
    }
    log.write_at(0, &block(4)).unwrap();
    log.sync().unwrap();
    assert_eq!(tree.size().unwrap(), 4096);
    assert_eq!(disk.read_file(&at("tree")).unwrap(), block(2));
    assert!(after_cut(&disk, "tree").iter().all(|i| *i == block(1)));
    let killed = disk.process_kill();
    let tree = killed.open_mapped(&at("tree"), true).unwrap();
    tree.write_at(0, &block(5)).unwrap();
    tree.sync().unwrap();
    disk.fail_tree_io(false);
    disk.open_mapped(&at("tree"), true).unwrap().sync().unwrap();
    disk.fail_tree_io(true);
    disk.read_only(true);
    disk.fail_sync_at(disk.syncs());
    disk.end_faults();
    disk.open_mapped(&at("tree"), true).unwrap().sync().unwrap();
}

#[test]
#[should_panic(expected = "bytes that the file has")]
fn slices_beyond_the_file_are_a_bug() {
    let (_disk, file, mapping) = mapped_with("a");
    file.set_size(4096).unwrap();
    mapped(&*mapping, 0, 4097);
}

#[test]
#[should_panic(expected = "of a mapping of 4096 bytes")]
fn slices_beyond_the_mapping_are_a_bug() {
    let (_disk, file, _) = mapped_with("a");
    file.set_size(8192).unwrap();
    mapped(&*file.map(4096).unwrap(), 4096, 1);
}
