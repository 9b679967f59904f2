//! Mapped files on a real disk: what is written shows in mappings that are
//! already there, and a mapping that can't be read says so before it dies.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use pontoon_wal::disk::{Backend, Disk, EXIT_DISK_FAILED, Mapping, RealDisk};

const PAGE: u64 = 4096;

fn temp_dir() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn disk(dir: &Path) -> RealDisk {
    RealDisk::new(Backend::Syscalls, dir).unwrap()
}

fn page(byte: u8) -> Vec<u8> {
    vec![byte; PAGE as usize]
}

#[allow(unsafe_code)]
fn byte(mapping: &dyn Mapping, offset: u64) -> u8 {
    let (page, at) = (offset / PAGE, (offset % PAGE) as usize);
    // SAFETY: the tests read where the file is and write nowhere meanwhile;
    // the one that doesn't wants to see what happens.
    unsafe { mapping.slice(page * PAGE, at + 1)[at] }
}

#[test]
fn writes_and_growth_show_in_a_mapping_that_is_already_there() {
    let dir = temp_dir();
    let path = dir.path().join("tree");
    let disk = disk(dir.path());
    let file = disk.create_mapped(&path).unwrap();
    let exists = disk.create_mapped(&path).map(drop).unwrap_err();
    assert_eq!(exists.kind(), std::io::ErrorKind::AlreadyExists);

    // Over nothing at all, and much beyond.
    let mapping = file.map(1 << 30).unwrap();
    assert_eq!(mapping.bytes(), 1 << 30);
    file.set_size(2 * PAGE).unwrap();
    assert_eq!(byte(&*mapping, 2 * PAGE - 1), 0);
    file.write_at(PAGE, &page(7)).unwrap();
    assert_eq!(byte(&*mapping, 2 * PAGE - 1), 7);
    file.sync().unwrap();
    // Growth by a write and by a size, and a cut that leaves zeros.
    file.write_at(1000 * PAGE, &page(8)).unwrap();
    assert_eq!(byte(&*mapping, 1000 * PAGE), 8);
    assert_eq!(file.size().unwrap(), 1001 * PAGE);
    file.set_size(1000 * PAGE).unwrap();
    file.set_size(2000 * PAGE).unwrap();
    assert_eq!(byte(&*mapping, 1000 * PAGE), 0);
    file.write_at(PAGE, &page(9)).unwrap();
    assert_eq!(byte(&*mapping, PAGE), 9);

    let reader = disk.open_mapped(&path, false).unwrap();
    assert!(reader.write_at(0, &page(1)).is_err() && reader.set_size(0).is_err());
    let other = reader.map(2 * PAGE).unwrap();
    drop((file, reader));
    disk.remove(&path).unwrap();
    let writer = disk.open_mapped(&path, true).map(drop).unwrap_err();
    assert_eq!(writer.kind(), std::io::ErrorKind::NotFound);
    assert_eq!((byte(&*mapping, PAGE), byte(&*other, PAGE)), (9, 9));
    drop(mapping);
    assert_eq!(byte(&*other, PAGE), 9);
}

#[test]
fn a_mapping_does_not_give_more_than_it_has() {
    let dir = temp_dir();
    let file = disk(dir.path()).create_mapped(&dir.path().join("tree"));
    let file = file.unwrap();
    file.set_size(4 * PAGE).unwrap();
    let mapping = file.map(2 * PAGE).unwrap();
    assert_eq!(file.map(0).unwrap().bytes(), 0);
    for (offset, bytes) in [
        (PAGE, PAGE as usize + 1),
        (2 * PAGE, 1),
        (u64::MAX - PAGE + 1, PAGE as usize),
        (PAGE, usize::MAX),
        (1, 1),
    ] {
        let asked = std::panic::AssertUnwindSafe(|| slice_bytes(&*mapping, offset, bytes));
        assert!(std::panic::catch_unwind(asked).is_err(), "{offset} {bytes}");
    }
    assert_eq!(slice_bytes(&*mapping, 2 * PAGE, 0), 0);
}

#[allow(unsafe_code)]
fn slice_bytes(mapping: &dyn Mapping, offset: u64, bytes: usize) -> usize {
    // SAFETY: the file has all that the mapping has, and nobody writes.
    unsafe { mapping.slice(offset, bytes).len() }
}

/// Writes that bypassed the page cache would bypass the mapping.
#[test]
fn mapped_files_are_never_direct() {
    let dir = temp_dir();
    let disk = disk(dir.path());
    let [log, tree] = ["log", "tree"].map(|name| dir.path().join(name));
    let _log = disk.create(&log).unwrap();
    let _created = disk.create_mapped(&tree).unwrap();
    let _opened = disk.open_mapped(&tree, true).unwrap();
    assert_eq!(are_direct(&tree), [false, false]);
    let direct = !disk.describe().contains("no O_DIRECT");
    assert_eq!(are_direct(&log), [direct]);
}

/// For each open descriptor of this file, whether it bypasses the page cache.
fn are_direct(path: &Path) -> Vec<bool> {
    let path = path.canonicalize().unwrap();
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap();
    descriptors
        .filter_map(|entry| {
            let entry = entry.unwrap().path();
            // Other tests open and close files meanwhile.
            (std::fs::read_link(&entry).ok()? == path).then_some(())?;
            let info = Path::new("/proc/self/fdinfo").join(entry.file_name().unwrap());
            let info = std::fs::read_to_string(info).unwrap();
            let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
            let flags = i32::from_str_radix(flags.unwrap().trim(), 8).unwrap();
            Some(flags & libc::O_DIRECT != 0)
        })
        .collect()
}

#[test]
fn a_fault_in_a_mapping_names_file_and_page_and_exits() {
    let dir = temp_dir();
    for role in ["cut", "cut in a thread"] {
        let output = child(role, dir.path());
        let errors = String::from_utf8_lossy(&output.stderr);
        let line = format!(
            "{}: read of page 3 at 0x3064: the device failed or the file was cut (SIGBUS)",
            dir.path().join("tree").display()
        );
        assert_eq!(errors.lines().filter(|l| *l == line).count(), 1, "{errors}");
        assert_eq!(output.status.code(), Some(EXIT_DISK_FAILED), "{errors}");
        std::fs::remove_file(dir.path().join("tree")).unwrap();
    }
}

#[test]
fn a_fault_elsewhere_ends_as_it_would_without_us() {
    let dir = temp_dir();
    for role in ["cut elsewhere", "cut elsewhere by default"] {
        let output = child(role, dir.path());
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(!errors.contains("(SIGBUS)"), "{errors}");
        assert_eq!(output.status.signal(), Some(libc::SIGBUS), "{errors}");
        std::fs::remove_file(dir.path().join("tree")).unwrap();
    }
}

/// This test program again, in the given role.
fn child(role: &str, dir: &Path) -> Output {
    Command::new(std::env::current_exe().unwrap())
        .args(["mapped::child_process", "--exact", "--nocapture"])
        .env("PONTOON_MAPPED_ROLE", role)
        .env("PONTOON_MAPPED_DIR", dir)
        .output()
        .unwrap()
}

/// Not a test of its own: what the child processes of the others run.
#[test]
#[allow(unsafe_code)]
fn child_process() {
    let Ok(role) = std::env::var("PONTOON_MAPPED_ROLE") else {
        return;
    };
    let dir = PathBuf::from(std::env::var_os("PONTOON_MAPPED_DIR").unwrap());
    if role.ends_with("by default") {
        // SAFETY: the default action is no function that could misbehave.
        unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
    }
    let file = disk(&dir).create_mapped(&dir.join("tree")).unwrap();
    file.set_size(5 * PAGE).unwrap();
    let mapping = file.map(1 << 20).unwrap();
    // Its slot is another's by the time of the fault.
    drop(file.map(1 << 20).unwrap());
    let foreign = std::fs::File::open(dir.join("tree")).unwrap();
    let foreign = memmap2::MmapOptions::new().map_raw_read_only(&foreign);
    let foreign = foreign.unwrap();
    assert_eq!(byte(&*mapping, 3 * PAGE + 100), 0);
    file.set_size(2 * PAGE).unwrap();
    match role.as_str() {
        "cut" => println!("{}", byte(&*mapping, 3 * PAGE + 100)),
        "cut in a thread" => {
            let read = move || println!("{}", byte(&*mapping, 3 * PAGE + 100));
            std::thread::spawn(read).join().unwrap();
        }
        _ => {
            let at = foreign.as_ptr().wrapping_add(3 * PAGE as usize + 100);
            // SAFETY: mapped, and that it can't be read is the point.
            unsafe { at.read_volatile() };
        }
    }
}
