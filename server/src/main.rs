//! `pontoon`: the server.

use std::io::IsTerminal;
use std::process::ExitCode;

use pontoon_server::{Config, LogFormat, Parsed, Server, Usage, describe, parse, usage};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let (config, said) = match parse(std::env::args().skip(1), std::env::vars()) {
        Ok(Parsed::Run(config, said)) => (*config, said),
        Ok(Parsed::Help) => {
            println!("{}", usage());
            return ExitCode::SUCCESS;
        }
        Ok(Parsed::Version) => {
            println!("{}", describe());
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
    log(&config);
    for line in said {
        tracing::warn!("{line}");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
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
    println!("{}", server.welcome());
    tokio::select! {
        _ = terminate.recv() => tracing::info!("told to stop"),
        _ = interrupt.recv() => tracing::info!("interrupted"),
        () = server.removed() => tracing::warn!("removed from the cluster: stopping"),
    }
    server.stop().await;
    ExitCode::SUCCESS
}

fn log(config: &Config) {
    let level = EnvFilter::new(format!("{},openraft=error", config.log_level));
    let logs = tracing_subscriber::fmt()
        .with_env_filter(level)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    match config.log_format {
        LogFormat::Console => logs.init(),
        LogFormat::Json => logs.json().init(),
    }
}
