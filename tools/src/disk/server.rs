//! What a server on this machine would do with a disk: the processors' part.
//!
//! A server is a chain (HTTP/2 and gRPC, evaluate, append, apply, answer), of
//! which evaluating and applying one put is measured here, with the engine's
//! own code on this machine. The rest of the chain was measured once as a
//! multiple of that (docs/disks.md has the measurement), so the multiple
//! follows the machine and the build.
//!
//! Kept true: no figure here is of another machine; only ratios are.

use std::time::Duration;

use serde::Serialize;

/// Processor time of a whole put in the server, in multiples of that of its
/// evaluating and applying.
pub(crate) const PUT_COSTS: f64 = 3.8;
/// Share of the processors that a server keeps busy at its limit, next to the
/// load that comes over loopback.
const BUSY_MAX: f64 = 0.75;
/// The time that one range's own chain takes for a put, likewise in multiples:
/// more processors than fill it don't help one range.
const CHAIN_COSTS: f64 = 1.7;

/// What the processors allow.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Server {
    pub(crate) cores: f64,
    /// Measured: one put evaluated and applied.
    pub(crate) evaluate_apply_ns: u64,
    /// Derived: a put from the wire to the wire.
    pub(crate) put_cpu_ns: u64,
    /// Derived: puts per second of one range on these processors.
    pub(crate) puts_per_s: f64,
}

impl Server {
    pub(crate) fn of(evaluate_apply: Duration, cores: f64) -> Self {
        let own = evaluate_apply.as_secs_f64().max(1e-9);
        let by_processors = cores * BUSY_MAX / (own * PUT_COSTS);
        let by_chain = 1.0 / (own * CHAIN_COSTS);
        Self {
            cores,
            evaluate_apply_ns: evaluate_apply.as_nanos() as u64,
            put_cpu_ns: (own * PUT_COSTS * 1e9) as u64,
            puts_per_s: by_processors.min(by_chain),
        }
    }

    /// With clients that wait: they move in step, so the time that a put needs
    /// from the disk and from the processors adds up.
    pub(crate) fn with_clients(&self, disk_puts_per_s: f64) -> f64 {
        1.0 / (1.0 / disk_puts_per_s.max(1e-9) + 1.0 / self.puts_per_s)
    }
}

/// Processors that this process may use, by the machine and by its limits.
pub(crate) fn cores(machine: &crate::disk::machine::Machine) -> f64 {
    let quota = machine.limits.iter().filter(|limit| limit.cpu);
    let quota = quota.filter_map(|limit| {
        let mut parts = limit.value.split_whitespace();
        let quota: f64 = parts.next()?.parse().ok()?;
        let period = match parts.next() {
            Some(period) => period.parse().ok()?,
            None => 100_000.0,
        };
        Some(quota / period)
    });
    quota.fold(machine.cores as f64, f64::min)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_processors_help_until_the_chain_is_full() {
        let at = |cores| Server::of(Duration::from_micros(8), cores).puts_per_s;
        assert!(at(2.0) > 1.9 * at(1.0));
        assert!((at(64.0) - at(128.0)).abs() < 1.0);
    }

    #[test]
    fn a_slow_disk_decides_for_clients_that_wait() {
        let server = Server::of(Duration::from_micros(8), 2.0);
        let waiting = server.with_clients(1000.0);
        assert!(waiting < 1000.0 && waiting > 950.0);
        assert!(server.with_clients(1e9) > 0.99 * server.puts_per_s);
    }
}
