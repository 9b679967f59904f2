//! `pontoon`: the server.

mod fail_stop;

use std::io::{self, Write};
use std::process::ExitCode;

use pontoon_server::{
    Config, EXIT_REFUSED, EXIT_STOPPED, EXIT_USAGE, Log, LogFormat, Parsed, Server, StartError,
    Usage, describe, notify, parse, usage,
};
use tokio::signal::unix::{SignalKind, signal};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let mut arguments = std::env::args();
    let defaults = Config::of_program(&arguments.next().unwrap_or_default());
    let parsed = parse(defaults.clone(), arguments, std::env::vars());
    let (config, said) = match parsed {
        Ok(Parsed::Run(config, said)) => (*config, said),
        Ok(Parsed::Help) => {
            say(&usage());
            return ExitCode::from(EXIT_STOPPED);
        }
        Ok(Parsed::Version) => {
            say(&describe());
            return ExitCode::from(EXIT_STOPPED);
        }
        Err(Usage::Unknown(flag)) => {
            eprintln!("flag provided but not defined: {flag}\n{}", usage());
            return ExitCode::from(EXIT_USAGE);
        }
        Err(Usage::Wrong(reason)) => {
            // Where it should go instead, nobody knows yet.
            let log = Log::start(&defaults);
            refuse(defaults.log_format, &reason);
            drop(log);
            return ExitCode::from(EXIT_REFUSED);
        }
    };
    let format = config.log_format;
    let log = match Log::start(&config) {
        Ok(log) => log,
        Err(reason) => {
            eprintln!("pontoon: {reason}");
            return ExitCode::from(EXIT_REFUSED);
        }
    };
    config.log();
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
            refuse(format, &format!("no threads: {error}"));
            return ExitCode::from(EXIT_REFUSED);
        }
    };
    let code = runtime.block_on(run(config));
    log.flush();
    code
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

/// Says why the program ends before it serves: for people, behind all that was
/// logged; for programs, as one more line of the log.
fn refuse(format: LogFormat, reason: &str) {
    match format {
        LogFormat::Console => eprintln!("pontoon: {reason}"),
        LogFormat::Json => tracing::error!(error = reason, "can't start"),
    }
}

/// To whoever listens.
fn say(text: &str) {
    let _ = writeln!(io::stdout(), "{text}");
}

async fn run(config: Config) -> ExitCode {
    let format = config.log_format;
    let signals = (
        signal(SignalKind::terminate()),
        signal(SignalKind::interrupt()),
    );
    let (Ok(mut terminate), Ok(mut interrupt)) = signals else {
        refuse(format, "signals can't be heard");
        return ExitCode::from(EXIT_REFUSED);
    };
    let watch = |watch| {
        if let Err(error) = fail_stop::watch(watch) {
            tracing::warn!(%error, "no thread to watch for failures");
        }
    };
    let started = tokio::select! {
        started = Server::start_watched(config, watch) => started,
        _ = terminate.recv() => return ExitCode::from(EXIT_STOPPED),
        _ = interrupt.recv() => return ExitCode::from(EXIT_STOPPED),
    };
    let server = match started {
        Ok(server) => server,
        Err(StartError::Failed(fault)) => fail_stop::end(fault, || {}),
        Err(error) => {
            refuse(format, &error.to_string());
            // At once: what was begun may hang with the disk.
            std::process::exit(error.exit_code().into());
        }
    };
    match format {
        LogFormat::Console => say(&server.welcome()),
        LogFormat::Json => server.log_welcome(),
    }
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
    ExitCode::from(EXIT_STOPPED)
}
