//! `pontoon`: the server.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::sync::Mutex;

use pontoon_server::{
    Config, LogFormat, LogOutput, Parsed, Server, Usage, describe, notify, parse, usage,
};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let (config, said) = match parse(std::env::args().skip(1), std::env::vars()) {
        Ok(Parsed::Run(config, said)) => (*config, said),
        Ok(Parsed::Help) => {
            say(&usage());
            return ExitCode::SUCCESS;
        }
        Ok(Parsed::Version) => {
            say(&describe());
            return ExitCode::SUCCESS;
        }
        Err(Usage::Unknown(flag)) => {
            eprintln!("flag provided but not defined: {flag}\n{}", usage());
            return ExitCode::from(2);
        }
        Err(Usage::Wrong(reason)) => {
            eprintln!("pontoon: {reason}");
            return ExitCode::FAILURE;
        }
    };
    if let Err(reason) = log(&config) {
        eprintln!("pontoon: {reason}");
        return ExitCode::FAILURE;
    }
    for line in said {
        tracing::warn!("{line}");
    }
    keep_memory();
    // Half the processors are for the groups, and all for those who speak with
    // clients (`front.rs`): a group's work is a chain, and its links wake each
    // other for less on one thread.
    let processors = std::thread::available_parallelism().map_or(1, |count| count.get());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads((processors / 2).max(1))
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("pontoon: no threads: {error}");
            return ExitCode::FAILURE;
        }
    };
    runtime.block_on(run(config))
}

/// Has freed memory kept for a while before the system gets it back: under load
/// a checkpoint lets go of a hundred MiB every second or so, all of it is needed
/// again, and each page would cost a fault.
#[allow(unsafe_code, reason = "the allocator has no other way to be told")]
fn keep_memory() {
    // `mi_option_purge_delay`, for which the crate has no name.
    const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;
    // SAFETY: setting an option must not happen on two threads at once, and
    // there is only this one yet. Options that don't exist are ignored. Who sets
    // the variable `MIMALLOC_PURGE_DELAY` has the last word.
    unsafe { libmimalloc_sys::mi_option_set_default(PURGE_DELAY, 1_500) };
}

/// To whoever listens.
fn say(text: &str) {
    let _ = writeln!(io::stdout(), "{text}");
}

async fn run(config: Config) -> ExitCode {
    let signals = (
        signal(SignalKind::terminate()),
        signal(SignalKind::interrupt()),
    );
    let (Ok(mut terminate), Ok(mut interrupt)) = signals else {
        eprintln!("pontoon: signals can't be heard");
        return ExitCode::FAILURE;
    };
    let started = tokio::select! {
        started = Server::start(config) => started,
        _ = terminate.recv() => return ExitCode::SUCCESS,
        _ = interrupt.recv() => return ExitCode::SUCCESS,
    };
    let server = match started {
        Ok(server) => server,
        Err(error) => {
            eprintln!("pontoon: {error}");
            return ExitCode::FAILURE;
        }
    };
    say(&server.welcome());
    // etcd's words: tools wait for them.
    tracing::info!("ready to serve client requests");
    notify("READY=1");
    tokio::select! {
        _ = terminate.recv() => tracing::info!("told to stop"),
        _ = interrupt.recv() => tracing::info!("interrupted"),
        () = server.removed() => tracing::warn!("removed from the cluster: stopping"),
    }
    notify("STOPPING=1");
    server.stop().await;
    ExitCode::SUCCESS
}

fn log(config: &Config) -> Result<(), String> {
    let level = EnvFilter::new(format!("{},openraft=error", config.log_level));
    let only_terminal = config.log_outputs == [LogOutput::Stderr] && io::stderr().is_terminal();
    let logs = tracing_subscriber::fmt()
        .with_env_filter(level)
        .with_writer(Logs::open(&config.log_outputs)?)
        .with_ansi(only_terminal);
    match config.log_format {
        LogFormat::Console => logs.init(),
        LogFormat::Json => logs.json().init(),
    }
    Ok(())
}

/// Everything that logs go to.
struct Logs(Vec<Output>);

enum Output {
    Stderr,
    Stdout,
    File(File),
}

impl Logs {
    fn open(outputs: &[LogOutput]) -> Result<Mutex<Self>, String> {
        let open = |output: &LogOutput| match output {
            LogOutput::Stderr => Ok(Output::Stderr),
            LogOutput::Stdout => Ok(Output::Stdout),
            LogOutput::File(path) => {
                let file = File::options().append(true).create(true).open(path);
                let file = file.map_err(|error| format!("--log-outputs {path:?}: {error}"));
                file.map(Output::File)
            }
        };
        let outputs = outputs.iter().map(open).collect::<Result<_, _>>()?;
        Ok(Mutex::new(Self(outputs)))
    }
}

impl Write for Logs {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        for output in &mut self.0 {
            match output {
                Output::Stderr => io::stderr().write_all(line)?,
                Output::Stdout => io::stdout().write_all(line)?,
                Output::File(file) => file.write_all(line)?,
            }
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
