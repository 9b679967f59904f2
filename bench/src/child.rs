//! Measurements that need a process of their own: the bench runs itself again
//! with a role, and the child answers with figures on its standard output.

use std::io::{self, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

const ROLE: &str = "PONTOON_BENCH_ROLE";
const DIR: &str = "PONTOON_BENCH_ROLE_DIR";
/// Longest that a child may take.
const PATIENCE: Duration = Duration::from_secs(180);

/// The role and the directory that this process was started with, if it is a child.
#[must_use]
pub fn role() -> Option<(String, std::path::PathBuf)> {
    let role = std::env::var(ROLE).ok()?;
    Some((role, std::env::var_os(DIR)?.into()))
}

/// A child's answer: whitespace between figures.
pub fn answer(figures: &[f64]) {
    let words: Vec<_> = figures.iter().map(f64::to_string).collect();
    println!("{}", words.join(" "));
}

/// Runs this program in a role and returns its figures.
pub fn ask(role: &str, dir: &Path) -> io::Result<Vec<f64>> {
    ask_with(role, dir, &[])
}

/// [`ask`], of a child whose allocator gives freed memory back at once and
/// asks for no huge pages, so that what it has is what it needs.
pub fn ask_for_memory(role: &str, dir: &Path) -> io::Result<Vec<f64>> {
    let variables = [("MIMALLOC_PURGE_DELAY", "0"), ("MIMALLOC_ALLOW_THP", "0")];
    ask_with(role, dir, &variables)
}

fn ask_with(role: &str, dir: &Path, variables: &[(&str, &str)]) -> io::Result<Vec<f64>> {
    let mut child = Command::new(std::env::current_exe()?)
        .env(ROLE, role)
        .env(DIR, dir)
        .envs(variables.iter().copied())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let status = wait(&mut child)?;
    let mut text = String::new();
    if let Some(mut output) = child.stdout.take() {
        output.read_to_string(&mut text)?;
    }
    if !status.success() {
        return Err(io::Error::other(format!(
            "the child {role} ended with {status}"
        )));
    }
    text.split_whitespace()
        .map(|word| word.parse().map_err(io::Error::other))
        .collect()
}

/// Answers are short, so a child never waits for its output to be read.
fn wait(child: &mut Child) -> io::Result<std::process::ExitStatus> {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if start.elapsed() > PATIENCE {
            child.kill()?;
            child.wait()?;
            return Err(io::Error::other("a child took too long"));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Takes io_uring away from this process, as containers do. Threads that are
/// started later inherit that.
pub fn forbid_uring() -> io::Result<()> {
    let calls = [
        libc::SYS_io_uring_setup,
        libc::SYS_io_uring_enter,
        libc::SYS_io_uring_register,
    ];
    let arch = std::env::consts::ARCH
        .try_into()
        .map_err(io::Error::other)?;
    let program: BpfProgram = SeccompFilter::new(
        calls.into_iter().map(|call| (call, Vec::new())).collect(),
        SeccompAction::Allow,
        SeccompAction::Errno(libc::EPERM as u32),
        arch,
    )
    .and_then(TryInto::try_into)
    .map_err(io::Error::other)?;
    seccompiler::apply_filter_all_threads(&program).map_err(io::Error::other)
}
