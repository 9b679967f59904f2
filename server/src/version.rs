//! What this server says it is.

/// The etcd whose API is spoken: clients decide by it what they may ask.
pub const API_VERSION: &str = "3.7.3";

/// The version of the cluster, as etcd writes it.
pub(crate) const CLUSTER_VERSION: &str = "3.7.0";

/// The same without the patch.
pub(crate) const CLUSTER_MINOR: (u32, u32) = (3, 7);

/// What `--version` prints: etcd's four lines, which tools read, and ours.
#[must_use]
pub fn describe() -> String {
    format!(
        "etcd Version: {API_VERSION}\n\
         Git SHA: pontoon-{own}\n\
         Go Version: none, this is Pontoon {own}\n\
         Go OS/Arch: {os}/{arch}",
        own = env!("CARGO_PKG_VERSION"),
        os = std::env::consts::OS,
        arch = std::env::consts::ARCH,
    )
}
