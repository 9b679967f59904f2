//! etcd's v3 API at level 3.7: messages, services and errors.
//!
//! Kept true: every package, service, message, field and number is what etcd
//! has on the wire, and every error has etcd's text and code; what is our own
//! is in a package of its own, `pontoonpb`. This crate knows nothing of what a
//! request does.

#![forbid(unsafe_code)]

mod codec;
mod errors;

pub use errors::{
    CODE_NAMES, CancelReason, Error, message_too_large, unknown_method, unknown_service,
};

/// All `.proto` files as an encoded `FileDescriptorSet`, with the names of the wire.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

macro_rules! packages {
    ($($(#[$doc:meta])* $name:ident = $package:literal;)*) => {$(
        $(#[$doc])*
        #[allow(missing_docs, unreachable_pub, clippy::all)]
        pub mod $name {
            tonic::include_proto!($package);
        }
    )*};
}

packages! {
    /// Users and roles.
    authpb = "authpb";
    /// KV, Watch, Lease, Cluster, Maintenance and Auth.
    etcdserverpb = "etcdserverpb";
    /// Keys and events.
    mvccpb = "mvccpb";
    /// The Election service.
    v3electionpb = "v3electionpb";
    /// The Lock service.
    v3lockpb = "v3lockpb";
    /// gRPC's health service.
    health = "grpc.health.v1";
    /// Ranges, which etcd doesn't have.
    pontoonpb = "pontoonpb";
}

/// The Watch service for a server that encodes an event once for many watchers:
/// its responses have events as bytes, which is the same on the wire.
#[allow(missing_docs, unreachable_pub, clippy::all)]
pub mod encoded {
    include!(concat!(env!("OUT_DIR"), "/encoded/etcdserverpb.rs"));
}
