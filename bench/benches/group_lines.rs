//! The speed lines of the groups.

use std::io;
use std::time::Duration;

use pontoon_bench::appenders::runtime;
use pontoon_bench::nodes::{self, Clients};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> io::Result<()> {
    let dir = tempfile::tempdir_in(".")?;
    let only: Option<(u64, usize)> = std::env::var("ONLY").ok().and_then(|text| {
        let (groups, count) = text.split_once(',')?;
        Some((groups.parse().ok()?, count.parse().ok()?))
    });
    let one;
    let plan: &[(u64, &[usize])] = match only {
        Some((groups, count)) => {
            one = [count];
            &[(groups, &one)]
        }
        None => &[(1, &[1, 16, 256, 4096][..]), (64, &[256, 4096])],
    };
    for &(groups, counts) in plan {
        let runtime = runtime()?;
        let path = dir.path().join(groups.to_string());
        std::fs::create_dir_all(&path)?;
        runtime.block_on(async {
            let node = nodes::alone(&path, groups).await?;
            for &count in counts {
                let clients = Clients { count, time: Duration::from_secs(3) };
                let done = clients.put(std::slice::from_ref(&node)).await?;
                println!(
                    "{groups} groups {count} clients: {:.0}/s p50 {:.0} p99 {:.0} us, {:.2} us cpu/put, {:.2} cpus",
                    done.puts.rate(), done.puts.micros(0.5), done.puts.micros(0.99),
                    done.micros_per_put, done.processors,
                );
            }
            io::Result::Ok(())
        })?;
    }
    Ok(())
}
